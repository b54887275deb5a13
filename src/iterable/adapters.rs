//! Sources made of other sources.

use std::fmt;

use super::ask::{Asked, ask, settled, told};
use super::state::{Reader, Tag, Writer, fingerprint, wrong};
use super::{ItemIter, IterableDataset, Left, Shard, progress};
use crate::error::BoxError;
use crate::rng::SampleRng;
use crate::sync::Arc;

/// A source whose samples are changed by a function: [`IterableDataset::map`] makes it.
#[derive(Clone)]
pub struct Map<S, F> {
    source: S,
    f: F,
}

impl<S, F> Map<S, F> {
    pub(super) fn new(source: S, f: F) -> Map<S, F> {
        Map { source, f }
    }
}

impl<S, T, F> IterableDataset for Map<S, F>
where
    S: IterableDataset,
    T: Send + 'static,
    F: Fn(S::Sample, &mut SampleRng) -> Result<T, BoxError> + Send + Sync + 'static,
{
    type Item = S::Item;
    type Sample = T;
    type Iter = S::Iter;

    fn open(&self, epoch: u64, shard: Shard) -> Result<S::Iter, BoxError> {
        self.source.open(epoch, shard)
    }

    fn load(&self, item: S::Item, rng: &mut SampleRng) -> Result<T, BoxError> {
        (self.f)(self.source.load(item, rng)?, rng)
    }

    fn fingerprint(&self) -> u32 {
        self.source.fingerprint()
    }

    fn hand_over(&self, epoch: u64, left: &[Left], to: &[Shard]) -> Result<Vec<Vec<u8>>, BoxError> {
        self.source.hand_over(epoch, left, to)
    }
}

impl<S: fmt::Debug, F> fmt::Debug for Map<S, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Map")
            .field("source", &self.source)
            .finish_non_exhaustive()
    }
}

/// The first items of a source: [`IterableDataset::take`] makes it.
#[derive(Debug, Clone)]
pub struct Take<S> {
    source: S,
    count: u64,
}

/// The open iterator of [`Take`].
#[derive(Debug)]
pub struct TakeIter<I> {
    inner: I,
    left: u64,
}

impl<S> Take<S> {
    pub(super) fn new(source: S, count: u64) -> Take<S> {
        Take { source, count }
    }
}

impl<S: IterableDataset> IterableDataset for Take<S> {
    type Item = S::Item;
    type Sample = S::Sample;
    type Iter = TakeIter<S::Iter>;

    fn open(&self, epoch: u64, shard: Shard) -> Result<Self::Iter, BoxError> {
        Ok(TakeIter {
            inner: self.source.open(epoch, shard)?,
            left: self.count,
        })
    }

    fn load(&self, item: S::Item, rng: &mut SampleRng) -> Result<S::Sample, BoxError> {
        self.source.load(item, rng)
    }

    fn fingerprint(&self) -> u32 {
        let inner = u64::from(self.source.fingerprint());
        fingerprint(Tag::Take, [self.count, inner])
    }
}

impl<I: ItemIter> ItemIter for TakeIter<I> {
    type Item = I::Item;

    fn next(&mut self) -> Option<Result<I::Item, BoxError>> {
        let left = self.left.checked_sub(1)?;
        let asked = ask(&mut self.inner);
        if asked.is_ok() {
            self.left = left;
        }
        told(asked)
    }

    fn state(&self) -> Option<Vec<u8>> {
        let inner = self.inner.state()?;
        Some(
            Writer::new(Tag::Take)
                .number(self.left)
                .inner(&inner)
                .finish(),
        )
    }

    fn seek(&mut self, state: &[u8]) -> Result<(), BoxError> {
        let mut state = Reader::new(Tag::Take, state)?;
        self.left = state.number()?;
        self.inner.seek(state.inner()?)?;
        state.end()
    }
}

/// A source without its first items: [`IterableDataset::skip`] makes it.
#[derive(Debug, Clone)]
pub struct Skip<S> {
    source: S,
    count: u64,
}

/// The open iterator of [`Skip`].
#[derive(Debug)]
pub struct SkipIter<I> {
    inner: I,
    left: u64,
}

impl<S> Skip<S> {
    pub(super) fn new(source: S, count: u64) -> Skip<S> {
        Skip { source, count }
    }
}

impl<S: IterableDataset> IterableDataset for Skip<S> {
    type Item = S::Item;
    type Sample = S::Sample;
    type Iter = SkipIter<S::Iter>;

    fn open(&self, epoch: u64, shard: Shard) -> Result<Self::Iter, BoxError> {
        Ok(SkipIter {
            inner: self.source.open(epoch, shard)?,
            left: self.count,
        })
    }

    fn load(&self, item: S::Item, rng: &mut SampleRng) -> Result<S::Sample, BoxError> {
        self.source.load(item, rng)
    }

    fn fingerprint(&self) -> u32 {
        let inner = u64::from(self.source.fingerprint());
        fingerprint(Tag::Skip, [self.count, inner])
    }
}

impl<I: ItemIter> SkipIter<I> {
    fn step(&mut self) -> Asked<I::Item> {
        loop {
            let item = ask(&mut self.inner)?;
            if self.left == 0 || item.is_none() {
                return Ok(item);
            }
            self.left -= 1;
            drop(item);
            progress()?;
        }
    }
}

impl<I: ItemIter> ItemIter for SkipIter<I> {
    type Item = I::Item;

    fn next(&mut self) -> Option<Result<I::Item, BoxError>> {
        told(self.step())
    }

    fn state(&self) -> Option<Vec<u8>> {
        let inner = self.inner.state()?;
        Some(
            Writer::new(Tag::Skip)
                .number(self.left)
                .inner(&inner)
                .finish(),
        )
    }

    fn seek(&mut self, state: &[u8]) -> Result<(), BoxError> {
        let mut state = Reader::new(Tag::Skip, state)?;
        self.left = state.number()?;
        self.inner.seek(state.inner()?)?;
        state.end()
    }
}

/// One source after another: [`IterableDataset::chain`] makes it.
#[derive(Debug)]
pub struct Chain<A, B> {
    first: A,
    second: Arc<B>,
}

/// An item of one of two sources.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Either<A, B> {
    /// Of the first.
    First(A),
    /// Of the second.
    Second(B),
}

/// The open iterator of [`Chain`].
pub struct ChainIter<A: IterableDataset, B: IterableDataset> {
    second: Arc<B>,
    epoch: u64,
    shard: Shard,
    at: Either<A::Iter, B::Iter>,
    /// The first one has ended, and the second is to be opened.
    first_is_over: bool,
    is_over: bool,
}

impl<A, B> Chain<A, B> {
    pub(super) fn new(first: A, second: B) -> Chain<A, B> {
        Chain {
            first,
            second: Arc::new(second),
        }
    }
}

impl<A, B> IterableDataset for Chain<A, B>
where
    A: IterableDataset,
    B: IterableDataset<Sample = A::Sample>,
{
    type Item = Either<A::Item, B::Item>;
    type Sample = A::Sample;
    type Iter = ChainIter<A, B>;

    fn open(&self, epoch: u64, shard: Shard) -> Result<Self::Iter, BoxError> {
        Ok(ChainIter {
            second: Arc::clone(&self.second),
            epoch,
            shard,
            at: Either::First(self.first.open(epoch, shard.of_child(0))?),
            first_is_over: false,
            is_over: false,
        })
    }

    fn load(&self, item: Self::Item, rng: &mut SampleRng) -> Result<A::Sample, BoxError> {
        match item {
            Either::First(item) => self.first.load(item, rng),
            Either::Second(item) => self.second.load(item, rng),
        }
    }

    fn fingerprint(&self) -> u32 {
        let both = [self.first.fingerprint(), self.second.fingerprint()];
        fingerprint(Tag::Chain, both.map(u64::from))
    }
}

impl<A: IterableDataset, B: IterableDataset> ChainIter<A, B> {
    fn open_second(&self) -> Result<B::Iter, BoxError> {
        progress()?;
        let second = self.second.open(self.epoch, self.shard.of_child(1))?;
        progress()?;
        Ok(second)
    }

    fn step(&mut self) -> Asked<Either<A::Item, B::Item>> {
        if self.is_over {
            return Ok(None);
        }
        if let Either::First(first) = &mut self.at {
            if !self.first_is_over
                && let Some(item) = ask(first)?
            {
                return Ok(Some(item.map(Either::First)));
            }
            self.first_is_over = true;
            match settled(self.open_second())? {
                Ok(second) => self.at = Either::Second(second),
                Err(error) => {
                    self.is_over = true;
                    return Ok(Some(Err(error)));
                }
            }
        }
        match &mut self.at {
            Either::Second(second) => Ok(ask(second)?.map(|item| item.map(Either::Second))),
            Either::First(_) => Ok(None),
        }
    }
}

impl<A: IterableDataset, B: IterableDataset> ItemIter for ChainIter<A, B> {
    type Item = Either<A::Item, B::Item>;

    fn next(&mut self) -> Option<Result<Self::Item, BoxError>> {
        told(self.step())
    }

    fn state(&self) -> Option<Vec<u8>> {
        let (number, inner) = match &self.at {
            Either::First(first) => (0, first.state()?),
            Either::Second(second) => (1, second.state()?),
        };
        let number = if self.is_over { 2 } else { number };
        Some(
            Writer::new(Tag::Chain)
                .number(number)
                .inner(&inner)
                .finish(),
        )
    }

    fn seek(&mut self, state: &[u8]) -> Result<(), BoxError> {
        let mut state = Reader::new(Tag::Chain, state)?;
        let (number, inner) = (state.number()?, state.inner()?);
        state.end()?;
        match (number, &mut self.at) {
            (0, Either::First(first)) => first.seek(inner),
            (1, _) => {
                let mut second = self.open_second()?;
                second.seek(inner)?;
                self.at = Either::Second(second);
                Ok(())
            }
            (2, _) => {
                self.is_over = true;
                Ok(())
            }
            _ => Err(wrong()),
        }
    }
}

impl<A: IterableDataset, B: IterableDataset> fmt::Debug for ChainIter<A, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChainIter").finish_non_exhaustive()
    }
}

/// A source that is opened again at its end: [`IterableDataset::repeat`] and [`IterableDataset::repeat_n`] make it.
#[derive(Debug)]
pub struct Repeat<S> {
    source: Arc<S>,
    /// `None`: without end.
    times: Option<u64>,
}

/// The open iterator of [`Repeat`].
pub struct RepeatIter<S: IterableDataset> {
    source: Arc<S>,
    times: Option<u64>,
    epoch: u64,
    shard: Shard,
    /// The number of the pass, and whether it gave an item.
    pass: u64,
    has_given: bool,
    at: Pass<S::Iter>,
}

/// Where a pass stands.
enum Pass<I> {
    Open(I),
    /// It is opened when the next item is asked for.
    Due,
    /// It was the last.
    Over,
}

impl<S> Repeat<S> {
    pub(super) fn new(source: S, times: Option<u64>) -> Repeat<S> {
        Repeat {
            source: Arc::new(source),
            times,
        }
    }
}

impl<S: IterableDataset> IterableDataset for Repeat<S> {
    type Item = S::Item;
    type Sample = S::Sample;
    type Iter = RepeatIter<S>;

    fn open(&self, epoch: u64, shard: Shard) -> Result<Self::Iter, BoxError> {
        let mut iter = RepeatIter {
            source: Arc::clone(&self.source),
            times: self.times,
            epoch,
            shard,
            pass: 0,
            has_given: false,
            at: Pass::Over,
        };
        if self.times != Some(0) {
            iter.at = Pass::Open(iter.open()?);
        }
        Ok(iter)
    }

    fn load(&self, item: S::Item, rng: &mut SampleRng) -> Result<S::Sample, BoxError> {
        self.source.load(item, rng)
    }

    fn fingerprint(&self) -> u32 {
        let inner = u64::from(self.source.fingerprint());
        fingerprint(Tag::Repeat, [self.times.unwrap_or(u64::MAX), inner])
    }
}

impl<S: IterableDataset> RepeatIter<S> {
    fn open(&self) -> Result<S::Iter, BoxError> {
        let first = self.epoch.wrapping_mul(self.times.unwrap_or(1));
        self.source.open(first.wrapping_add(self.pass), self.shard)
    }

    /// Opens a pass in the middle of a call, before which and after which something else takes its time.
    fn open_between(&self) -> Result<S::Iter, BoxError> {
        progress()?;
        let inner = self.open()?;
        progress()?;
        Ok(inner)
    }
}

impl<S: IterableDataset> RepeatIter<S> {
    fn step(&mut self) -> Asked<S::Item> {
        loop {
            match &mut self.at {
                Pass::Over => return Ok(None),
                Pass::Due => match settled(self.open_between())? {
                    Ok(inner) => self.at = Pass::Open(inner),
                    Err(error) => {
                        self.at = Pass::Over;
                        return Ok(Some(Err(error)));
                    }
                },
                Pass::Open(inner) => {
                    if let Some(item) = ask(inner)? {
                        self.has_given = true;
                        return Ok(Some(item));
                    }
                    self.pass += 1;
                    let was_last = self.times.is_some_and(|times| self.pass >= times);
                    // (An endless search for an item would hang.)
                    let has_given = std::mem::take(&mut self.has_given);
                    self.at = match was_last || !has_given {
                        true => Pass::Over,
                        false => Pass::Due,
                    };
                }
            }
        }
    }
}

impl<S: IterableDataset> ItemIter for RepeatIter<S> {
    type Item = S::Item;

    fn next(&mut self) -> Option<Result<S::Item, BoxError>> {
        told(self.step())
    }

    fn state(&self) -> Option<Vec<u8>> {
        let state = Writer::new(Tag::Repeat).number(self.pass);
        let state = state.number(u64::from(self.has_given));
        Some(match &self.at {
            Pass::Open(inner) => state.number(0).inner(&inner.state()?).finish(),
            Pass::Over => state.number(1).inner(&[]).finish(),
            Pass::Due => state.number(2).inner(&[]).finish(),
        })
    }

    fn seek(&mut self, state: &[u8]) -> Result<(), BoxError> {
        let mut state = Reader::new(Tag::Repeat, state)?;
        self.pass = state.number()?;
        self.has_given = state.number()? == 1;
        let (at, inner) = (state.number()?, state.inner()?);
        state.end()?;
        self.at = match at {
            0 => {
                let mut iter = self.open_between()?;
                iter.seek(inner)?;
                Pass::Open(iter)
            }
            1 => Pass::Over,
            2 => Pass::Due,
            _ => return Err(wrong()),
        };
        Ok(())
    }
}

impl<S: IterableDataset> fmt::Debug for RepeatIter<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RepeatIter")
            .field("pass", &self.pass)
            .finish_non_exhaustive()
    }
}
