//! Iterables whose items are rearranged window by window: bounded memory, and an exact state of a few bytes.
//!
//! What a window gives is a function of its items and its number. So a state is where the iterable stood before the window, and how
//! much of it was given out: to resume, the window is read again.

use super::state::{Reader, Writer, wrong};
use super::{ItemIter, progress};
use crate::error::{Again, BoxError, Interrupted};
use crate::rng::SampleRng;

/// The windows of an iterable, and what comes of them.
#[derive(Debug)]
pub(super) struct Windows<I: ItemIter, T> {
    inner: I,
    /// The number of items in a window.
    size: usize,
    /// Which window is given out, counted from 1; 0 before the first.
    window: u64,
    /// How many of what it gives were given out.
    given: usize,
    /// What is left of it, the next one last.
    current: Vec<Result<T, BoxError>>,
    /// The items of the window after it, as far as they were pulled.
    next: Vec<Result<I::Item, BoxError>>,
    is_over: bool,
    /// Where the iterable inside stood before this window, behind it, and before the next, if it can say so.
    state: Option<Vec<u8>>,
    behind: Option<Vec<u8>>,
    next_state: Option<Vec<u8>>,
    /// The iterable inside had nothing to give for now, which is to be told next.
    failed: Option<BoxError>,
}

/// The items of a window, in the iterable's order.
pub(super) type Items<I> = Vec<Result<<I as ItemIter>::Item, BoxError>>;

impl<I: ItemIter, T> Windows<I, T> {
    pub(super) fn new(inner: I, size: usize) -> Windows<I, T> {
        Windows {
            inner,
            size,
            window: 0,
            given: 0,
            current: Vec::new(),
            next: Vec::new(),
            is_over: false,
            state: None,
            behind: None,
            next_state: None,
            failed: None,
        }
    }

    /// Gives the next of what `arrange` makes of a window, given its number, from 0, and its items. It gives the last one first.
    pub(super) fn next(
        &mut self,
        arrange: impl Fn(u64, Items<I>) -> Vec<Result<T, BoxError>>,
    ) -> Option<Result<T, BoxError>> {
        if let Some(failed) = self.failed.take() {
            return Some(Err(failed));
        }
        while self.current.is_empty() {
            if let Err(error) = self.pull(self.size) {
                return Some(Err(error));
            }
            if self.next.is_empty() {
                return None;
            }
            self.current = arrange(self.window, std::mem::take(&mut self.next));
            self.state = self.next_state.take();
            self.behind = self.inner.state();
            self.window += 1;
            self.given = 0;
        }
        let given = self.current.pop();
        self.given += 1;
        // The next window is filled while this one is given out, so that no call takes much longer than another.
        let all = self.given + self.current.len();
        let share = self.size as u128 * self.given as u128;
        self.failed = self.pull(share.div_ceil(all as u128) as usize).err();
        given
    }

    /// Pulls items until there are so many of the next window. An error is none of these.
    fn pull(&mut self, count: usize) -> Result<(), BoxError> {
        while !self.is_over && self.next.len() < count {
            progress()?;
            if self.next.is_empty() {
                self.next_state = self.inner.state();
            }
            match self.inner.next() {
                Some(Err(error)) if error.is::<Again>() => return Err(error),
                Some(item) => self.next.push(item),
                None => self.is_over = true,
            }
        }
        Ok(())
    }

    /// Adds where the iterable stands to a state.
    pub(super) fn state(&self, state: Writer) -> Option<Vec<u8>> {
        let inner = match self.window {
            0 => self.behind()?,
            _ => self.state.clone()?,
        };
        let state = state.number(self.size as u64).number(self.window);
        Some(state.number(self.given as u64).inner(&inner).finish())
    }

    /// Where the iterable inside stood behind the window that is given out; before the first, if there is none yet.
    pub(super) fn behind(&self) -> Option<Vec<u8>> {
        match self.window {
            0 if self.next.is_empty() => self.inner.state(),
            0 => self.next_state.clone(),
            _ => self.behind.clone(),
        }
    }

    /// How many things the window that is given out had.
    pub(super) fn count(&self) -> u64 {
        (self.given + self.current.len()) as u64
    }

    /// Goes to a state, before the first item.
    pub(super) fn seek(
        &mut self,
        mut state: Reader<'_>,
        arrange: impl Fn(u64, Items<I>) -> Vec<Result<T, BoxError>>,
    ) -> Result<(), BoxError> {
        let (size, window, given) = (state.number()?, state.number()?, state.number()?);
        if size != self.size as u64 {
            return Err(format!(
                "the state is that of a buffer of {size} items, and this one has {}",
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
            progress()?;
            if let Some(failed) = self.failed.take() {
                return Err(failed);
            }
            // (The iterable inside gives what it gave then.)
            match self.next(&arrange).ok_or_else(wrong)? {
                Err(error) if error.is::<Again>() || error.is::<Interrupted>() => {
                    return Err(error);
                }
                _ => {}
            }
            if self.window != window {
                return Err(wrong());
            }
        }
        Ok(())
    }
}

/// Puts things in a random order: all orders are as likely.
pub(super) fn shuffle<T>(things: &mut [T], rng: &mut SampleRng) {
    for left in (2..=things.len()).rev() {
        let chosen = rng.below(left as u64) as usize;
        things.swap(left - 1, chosen);
    }
}
