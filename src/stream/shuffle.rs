//! Shuffling by windows: bounded memory, and an exact state.

use super::state::{Reader, Tag, Writer, wrong};
use super::{ItemStream, Shard, StreamSource, scramble};
use crate::error::BoxError;
use crate::rng::SampleRng;

/// A source whose items come in a random order within windows: [`StreamSource::shuffle`] makes it.
#[derive(Debug, Clone)]
pub struct Shuffle<S> {
    source: S,
    window: usize,
}

impl<S> Shuffle<S> {
    pub(super) fn new(source: S, buffer_size: usize) -> Shuffle<S> {
        Shuffle {
            source,
            window: buffer_size.max(1),
        }
    }
}

impl<S: StreamSource> StreamSource for Shuffle<S> {
    type Item = S::Item;
    type Sample = S::Sample;
    type Stream = ShuffleStream<S::Stream>;

    fn open(&self, epoch: u64, shard: Shard) -> Result<Self::Stream, BoxError> {
        Ok(ShuffleStream {
            inner: self.source.open(epoch, shard)?,
            size: self.window,
            // Each rank has an order of its own, and another seed than its samples.
            seed: scramble(scramble(shard.seed()) ^ shard.rank()),
            epoch,
            window: 0,
            given: 0,
            current: Vec::new(),
            next: Vec::new(),
            is_over: false,
            state: None,
            next_state: None,
        })
    }

    fn load(&self, item: S::Item, rng: &mut SampleRng) -> Result<S::Sample, BoxError> {
        self.source.load(item, rng)
    }
}

/// An open stream of [`Shuffle`].
#[derive(Debug)]
pub struct ShuffleStream<I: ItemStream> {
    inner: I,
    size: usize,
    seed: u64,
    epoch: u64,
    /// Which window is given out, counted from 1; 0 before the first.
    window: u64,
    /// How many of its items were given out.
    given: u64,
    /// What is left of it, the next item last.
    current: Vec<Result<I::Item, BoxError>>,
    /// The window after it, as far as it was pulled.
    next: Vec<Result<I::Item, BoxError>>,
    is_over: bool,
    /// Where the stream inside stood before this window and before the next, if it can say so.
    state: Option<Vec<u8>>,
    next_state: Option<Vec<u8>>,
}

impl<I: ItemStream> ShuffleStream<I> {
    /// Pulls one item of the next window.
    fn pull(&mut self) {
        if self.next.is_empty() {
            self.next_state = self.inner.state();
        }
        match self.inner.next() {
            Some(item) => self.next.push(item),
            None => self.is_over = true,
        }
    }

    /// Makes the next window the current one. `false`: there is none.
    fn turn(&mut self) -> bool {
        while !self.is_over && self.next.len() < self.size {
            self.pull();
        }
        if self.next.is_empty() {
            return false;
        }
        self.current = std::mem::take(&mut self.next);
        self.state = self.next_state.take();
        let mut rng = SampleRng::for_sampler(self.seed, self.epoch, self.window);
        for left in (2..=self.current.len()).rev() {
            let chosen = rng.below(left as u64) as usize;
            self.current.swap(left - 1, chosen);
        }
        self.window += 1;
        self.given = 0;
        true
    }
}

impl<I: ItemStream> ItemStream for ShuffleStream<I>
where
    I::Item: Send,
{
    type Item = I::Item;

    fn next(&mut self) -> Option<Result<I::Item, BoxError>> {
        if self.current.is_empty() && !self.turn() {
            return None;
        }
        let item = self.current.pop();
        self.given += 1;
        if !self.is_over && self.next.len() < self.size {
            self.pull();
        }
        item
    }

    fn state(&self) -> Option<Vec<u8>> {
        let state = match self.window {
            0 => self.inner.state()?,
            _ => self.state.clone()?,
        };
        let numbers = Writer::new(Tag::Shuffle).number(self.size as u64);
        let numbers = numbers.number(self.window).number(self.given);
        Some(numbers.inner(&state).finish())
    }

    fn seek(&mut self, state: &[u8]) -> Result<(), BoxError> {
        let mut state = Reader::new(Tag::Shuffle, state)?;
        let (size, window, given) = (state.number()?, state.number()?, state.number()?);
        if size != self.size as u64 || given > size {
            return Err(format!(
                "the state is that of a shuffle of {size}, and this one has {}",
                self.size
            )
            .into());
        }
        self.inner.seek(state.inner()?)?;
        state.end()?;
        let Some(before) = window.checked_sub(1) else {
            return Ok(());
        };
        self.window = before;
        for _ in 0..given {
            // (The stream inside gives what it gave then.)
            self.next().ok_or_else(wrong)?.ok();
        }
        if given == 0 {
            return Err(wrong()); // a window begins when its first item is given out
        }
        Ok(())
    }
}
