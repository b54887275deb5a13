//! Iterables whose items are rearranged window by window: bounded memory, and an exact state of a few bytes.
//!
//! What a window gives is a function of its items and its number. So a state is where the iterable stood before the window, and how
//! much of it was given out: to resume, the window is read again. How many things it had, and where the iterable stood behind it, tell whether it is
//! the same.

use super::ask::{Asked, NoItem, ask};
use super::state::{Reader, Writer, wrong};
use super::{ItemIter, progress};
use crate::error::BoxError;
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
    /// The iterable inside has nothing for now: how many more calls do not ask it, and of how many that is what is left.
    pause: (usize, usize),
    /// Why it is not to be asked any more, which is to be told next.
    ended: Option<NoItem>,
}

/// The items of a window, in the iterable's order.
pub(super) type Items<I> = Vec<Result<<I as ItemIter>::Item, BoxError>>;

pub(super) const OTHERS: &str = "what the source gives is not what it gave before the interruption: perhaps a shard could not be read then that can be now, or the \
                                 other way round. So it is not known which items of a window were given out: go on from an earlier state, or from the end of the epoch";

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
            pause: (0, 0),
            ended: None,
        }
    }

    /// Gives the next of what `arrange` makes of a window, given its number, from 0, and its items. It gives the last one first.
    pub(super) fn next(
        &mut self,
        arrange: impl Fn(u64, Items<I>) -> Vec<Result<T, BoxError>>,
    ) -> Asked<T> {
        if let Some(ended) = self.ended.take() {
            return Err(ended);
        }
        while self.current.is_empty() {
            self.pull(self.size)?;
            if self.next.is_empty() {
                return Ok(None);
            }
            self.current = arrange(self.window, std::mem::take(&mut self.next));
            self.state = self.next_state.take();
            self.behind = self.inner.state();
            self.window += 1;
            self.given = 0;
        }
        let given = self.current.pop();
        self.given += 1;
        self.pull_ahead();
        Ok(given)
    }

    /// Fills the next window while this one is given out, so that no call takes much longer than another. If there is nothing for now, that
    /// is told where it is missed. Until then, the iterable is asked again after one call, after two more, after four more, and so on: it may
    /// take its time to find that out.
    fn pull_ahead(&mut self) {
        if self.pause.0 > 0 {
            self.pause.0 -= 1;
            return;
        }
        let all = self.given + self.current.len();
        let share = self.size as u128 * self.given as u128;
        match self.pull(share.div_ceil(all as u128) as usize) {
            Ok(()) => self.pause = (0, 0),
            Err(none) if none.is_again() => {
                let calls = self.pause.1.saturating_mul(2).max(1);
                self.pause = (calls, calls);
            }
            Err(none) => self.ended = Some(none),
        }
    }

    /// Pulls items until there are so many of the next window.
    fn pull(&mut self, count: usize) -> Result<(), NoItem> {
        while !self.is_over && self.next.len() < count {
            progress()?;
            // (Not again, if there was nothing for now: it may have come closer to its next item meanwhile, and a state would differ from that of
            // a run in which there was.)
            if self.next.is_empty() && self.next_state.is_none() {
                self.next_state = self.inner.state();
            }
            match ask(&mut self.inner)? {
                Some(item) => self.next.push(item),
                None => self.is_over = true,
            }
        }
        Ok(())
    }

    /// Adds where the iterable stands to a state.
    pub(super) fn state(&self, state: Writer) -> Option<Vec<u8>> {
        let behind = self.behind()?;
        let stand = match self.window {
            0 => Stand {
                size: self.size as u64,
                window: 0,
                given: 0,
                inner: behind,
                end: None,
            },
            window => Stand {
                size: self.size as u64,
                window,
                given: self.given as u64,
                inner: self.state.clone()?,
                end: Some((self.count(), behind)),
            },
        };
        Some(stand.write(state))
    }

    /// Where the iterable inside stood behind the window that is given out; before the first, if there is none yet.
    fn behind(&self) -> Option<Vec<u8>> {
        match self.window {
            0 => self.next_state.clone().or_else(|| self.inner.state()),
            _ => self.behind.clone(),
        }
    }

    /// How many things the window that is given out had.
    fn count(&self) -> u64 {
        (self.given + self.current.len()) as u64
    }

    /// Goes to a state, before the first item.
    pub(super) fn seek(
        &mut self,
        stand: Stand,
        arrange: impl Fn(u64, Items<I>) -> Vec<Result<T, BoxError>>,
    ) -> Result<(), BoxError> {
        let Stand {
            size,
            window,
            given,
            inner,
            end,
        } = stand;
        if size != self.size as u64 {
            return Err(format!(
                "the state is that of a buffer of {size} items, and this one has {}",
                self.size
            )
            .into());
        }
        self.inner.seek(&inner)?;
        let Some(before) = window.checked_sub(1) else {
            return Ok(());
        };
        self.window = before;
        for _ in 0..given {
            progress()?;
            // (It gives what it gave then, errors among it.)
            let Some(_given) = self.next(&arrange)? else {
                return Err(end.map_or_else(wrong, |_| OTHERS.into()));
            };
            if self.window != window {
                return Err(end.map_or_else(wrong, |_| OTHERS.into()));
            }
        }
        let is_same = end.is_none_or(|end| Some(end) == self.behind().map(|at| (self.count(), at)));
        match is_same {
            true => Ok(()),
            false => Err(OTHERS.into()),
        }
    }
}

/// What marks the size in a state that says where the window ends.
const WITH_END: u64 = 1 << 63;

/// Where windows stand, as a state says it.
#[derive(Debug)]
pub(super) struct Stand {
    pub(super) size: u64,
    /// Which window is given out, counted from 1 (0 before the first), and how much of it was.
    pub(super) window: u64,
    pub(super) given: u64,
    /// Where the iterable inside stood before it.
    pub(super) inner: Vec<u8>,
    /// How many things it had, and where the iterable inside stood behind it. `None` before the first; and earlier versions did not say it.
    pub(super) end: Option<(u64, Vec<u8>)>,
}

impl Stand {
    pub(super) fn write(&self, state: Writer) -> Vec<u8> {
        let mark = if self.end.is_some() { WITH_END } else { 0 };
        let state = state.number(self.size | mark).number(self.window);
        let state = state.number(self.given).inner(&self.inner);
        match &self.end {
            None => state.finish(),
            Some((count, behind)) => state.number(*count).inner(behind).finish(),
        }
    }

    pub(super) fn read(mut state: Reader<'_>) -> Result<Stand, BoxError> {
        let (size, window, given) = (state.number()?, state.number()?, state.number()?);
        let inner = state.inner()?.to_vec();
        let end = match size & WITH_END {
            0 => None,
            _ => Some((state.number()?, state.inner()?.to_vec())),
        };
        state.end()?;
        Ok(Stand {
            size: size & !WITH_END,
            window,
            given,
            inner,
            end,
        })
    }
}

/// Puts things in a random order: all orders are as likely.
pub(super) fn shuffle<T>(things: &mut [T], rng: &mut SampleRng) {
    for left in (2..=things.len()).rev() {
        let chosen = rng.below(left as u64) as usize;
        things.swap(left - 1, chosen);
    }
}
