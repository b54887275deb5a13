//! Several items for each of a source.

use std::fmt;

use super::ask::{Asked, told};
use super::loaded::{Loaded, caught};
use super::state::{Reader, Tag, Writer, fingerprint, wrong};
use super::{ItemIter, IterableDataset, Shard, progress};
use crate::error::{BoxError, ItemError};
use crate::rng::SampleRng;
use crate::sync::Arc;

/// A source each of whose items becomes any number of parts: [`IterableDataset::flat_map`] makes it.
pub struct FlatMap<S, F> {
    source: Arc<S>,
    f: Arc<F>,
}

impl<S, F> FlatMap<S, F> {
    pub(super) fn new(source: S, f: F) -> FlatMap<S, F> {
        FlatMap {
            source: Arc::new(source),
            f: Arc::new(f),
        }
    }
}

impl<S, F, I, T> IterableDataset for FlatMap<S, F>
where
    S: IterableDataset,
    F: Fn(S::Sample, &mut SampleRng) -> Result<I, BoxError> + Send + Sync + 'static,
    I: IntoIterator<Item = Result<T, BoxError>, IntoIter: Send + 'static> + 'static,
    T: Clone + Send + 'static,
{
    type Item = T;
    type Sample = T;
    type Iter = FlatMapIter<S, F, I>;

    fn open(&self, epoch: u64, shard: Shard) -> Result<Self::Iter, BoxError> {
        Ok(FlatMapIter {
            items: Loaded::open(&self.source, epoch, shard)?,
            f: Arc::clone(&self.f),
            open: None,
            before: None,
        })
    }

    fn load(&self, part: T, _: &mut SampleRng) -> Result<T, BoxError> {
        Ok(part)
    }

    fn fingerprint(&self) -> u32 {
        fingerprint(Tag::FlatMap, [u64::from(self.source.fingerprint())])
    }
}

impl<S, F> Clone for FlatMap<S, F> {
    fn clone(&self) -> FlatMap<S, F> {
        FlatMap {
            source: Arc::clone(&self.source),
            f: Arc::clone(&self.f),
        }
    }
}

impl<S: fmt::Debug, F> fmt::Debug for FlatMap<S, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FlatMap")
            .field("source", &self.source)
            .finish_non_exhaustive()
    }
}

/// The open iterator of [`FlatMap`].
pub struct FlatMapIter<S: IterableDataset, F, I: IntoIterator> {
    items: Loaded<S>,
    f: Arc<F>,
    /// The item whose parts are given out.
    open: Option<Open<I::IntoIter>>,
    /// Where the iterable stood when the item behind that was asked for.
    before: Option<Vec<u8>>,
}

struct Open<P> {
    parts: P,
    number: u64,
    /// How many of its parts were given out, those that failed among them.
    given: u64,
    /// Where the iterable stood before it, if it can say so.
    before: Option<Vec<u8>>,
}

impl<S, F, I, T> FlatMapIter<S, F, I>
where
    S: IterableDataset,
    F: Fn(S::Sample, &mut SampleRng) -> Result<I, BoxError>,
    I: IntoIterator<Item = Result<T, BoxError>>,
{
    /// Opens the next item.
    fn pull(&mut self) -> Asked<()> {
        // (Not again, if there was nothing for now: states are those of a run in which there was.)
        if self.before.is_none() {
            self.before = self.items.state(Tag::FlatMap);
        }
        let f = &self.f;
        let parts = |sample, rng: &mut SampleRng| Ok(f(sample, rng)?.into_iter());
        let Some((number, parts)) = self.items.next(parts)? else {
            return Ok(None);
        };
        let before = self.before.take();
        let opened = parts.map(|parts| {
            self.open = Some(Open {
                parts,
                number,
                given: 0,
                before,
            });
        });
        Ok(Some(
            opened.map_err(|cause| ItemError::of(number, None, cause)),
        ))
    }

    fn step(&mut self) -> Asked<T> {
        loop {
            if let Some(part) = self.part() {
                return Ok(Some(part));
            }
            progress()?;
            match self.pull()? {
                None => return Ok(None),
                Some(Ok(())) => {}
                Some(Err(error)) => return Ok(Some(Err(error))),
            }
        }
    }

    /// Gives the next part of the item that is open, if it has one. A part that panics is the item's last: what comes behind it is unknown.
    fn part(&mut self) -> Option<Result<T, BoxError>> {
        let open = self.open.as_mut()?;
        let (item, part) = (open.number, open.given);
        let given = caught("while giving it", || Ok(open.parts.next()));
        let failed = |cause| ItemError::of(item, Some(part), cause);
        match given {
            Ok(None) => {
                self.open = None;
                None
            }
            Ok(Some(given)) => {
                open.given += 1;
                Some(given.map_err(failed))
            }
            Err(panicked) => {
                self.open = None;
                Some(Err(failed(panicked)))
            }
        }
    }
}

impl<S, F, I, T> ItemIter for FlatMapIter<S, F, I>
where
    S: IterableDataset,
    F: Fn(S::Sample, &mut SampleRng) -> Result<I, BoxError> + Send + Sync + 'static,
    I: IntoIterator<Item = Result<T, BoxError>, IntoIter: Send + 'static> + 'static,
{
    type Item = T;

    fn next(&mut self) -> Option<Result<T, BoxError>> {
        told(self.step())
    }

    fn state(&self) -> Option<Vec<u8>> {
        let state = Writer::new(Tag::FlatMap);
        Some(
            match &self.open {
                Some(open) => state.number(open.given).inner(open.before.as_ref()?),
                None => state.number(0).inner(&self.items.state(Tag::FlatMap)?),
            }
            .finish(),
        )
    }

    fn seek(&mut self, state: &[u8]) -> Result<(), BoxError> {
        let mut state = Reader::new(Tag::FlatMap, state)?;
        let given = state.number()?;
        self.items.seek(Tag::FlatMap, state.inner()?)?;
        state.end()?;
        if given == 0 {
            return Ok(());
        }
        progress()?;
        self.pull()?.ok_or_else(wrong)??;
        for part in 0..given {
            progress()?;
            // (A part that failed was given out as an error.)
            let found = self.part().map(drop);
            if found.is_none() || self.open.is_none() {
                return Err(format!(
                    "the run that is resumed had {given} parts of an item, and it has {part} now: the iterable is not what it was"
                )
                .into());
            }
        }
        Ok(())
    }
}

impl<S: IterableDataset, F, I: IntoIterator> fmt::Debug for FlatMapIter<S, F, I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FlatMapIter").finish_non_exhaustive()
    }
}
