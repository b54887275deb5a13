//! A sample is got: its block is found, and waited for, or it is fetched alone.

use std::panic::resume_unwind;
use std::time::Duration;

use super::pieces::{Found, Gone, Pieces, Use};
use super::requests::{Fetched, NotFetched};
use super::{BlockSource, Blocked};
use crate::dataset::before_waiting::report_progress;
use crate::dataset::staged::Came;
use crate::error::{BoxError, NoAnswer};
use crate::meter::Fetching;
use crate::rng::SampleRng;
use crate::sync::{Instant, WriteGuard, sample_timeout};

impl<S: BlockSource> Blocked<S> {
    /// Finds the piece of a sample, and waits for it.
    pub(super) fn find(
        &self,
        index: u64,
        pass: u32,
    ) -> Result<(Fetched<S>, Using<'_, S>), BoxError> {
        let (inner, requests) = (self.inner(), self.requests());
        if let Some(fetched) = requests.pieces.read().find_here(index, pass) {
            let using = Using {
                blocked: self,
                used: None,
                alone: None,
            };
            return Ok((fetched, using));
        }
        // When it began to wait, and how long it may.
        let mut wait = None;
        let mut using = Using {
            blocked: self,
            used: None,
            alone: None,
        };
        let (mut has_reported, mut may_wait, mut has_waited) = (false, true, false);
        loop {
            let mut pieces = requests.pieces.write();
            let found = pieces.find(index, pass, using.used, requests.max_bytes);
            let mut waits = || {
                *wait.get_or_insert_with(|| {
                    let timeout = sample_timeout().or_else(|| pieces.timeout(pass));
                    (Instant::now(), timeout)
                })
            };
            match found {
                Found::Here {
                    used,
                    fetched,
                    again,
                } => {
                    using.used = Some(used);
                    let is_tried_again = again
                        && matches!(&fetched, Err(failure) if failure.is_temporary)
                        && self.ask_again(pieces, used.piece);
                    if !is_tried_again {
                        return Ok((fetched, using));
                    }
                }
                Found::Asked(..) | Found::NoRoom if !has_reported => {
                    has_reported = true;
                    _ = waits();
                    drop(pieces);
                    may_wait = report_progress();
                }
                Found::NoRoom if !may_wait => {
                    let limit = waits();
                    drop(pieces);
                    return self.find_alone(index, limit, using);
                }
                Found::Asked(used, request) => {
                    using.used = Some(used);
                    let (began, timeout) = waits();
                    drop(pieces);
                    match inner.wait_for(request, began, timeout)? {
                        Came::Done | Came::Gone => {}
                        Came::Nobody => return Ok((self.fetch_here(index), using)),
                    }
                }
                Found::NoRoom => {
                    has_waited = true;
                    let (began, timeout) = waits();
                    let end = timeout.and_then(|timeout| began.checked_add(timeout));
                    check_time(began, end, Instant::now())?;
                    let _fetching = Fetching::begin();
                    requests.wait(pieces, end);
                }
                Found::Alone(None) if has_waited && pass != 0 && !pieces.knows(pass) => {
                    return Err(NOT_NEEDED.into());
                }
                Found::Gone => return Err(NOT_NEEDED.into()),
                Found::Alone(used) => {
                    using.used = used;
                    let limit = waits();
                    drop(pieces);
                    return self.find_alone(index, limit, using);
                }
            }
        }
    }

    /// Fetches a piece once more, which has failed. `false`: it is not there any more.
    #[cold]
    fn ask_again(&self, mut pieces: WriteGuard<'_, Pieces<Fetched<S>>>, piece: u64) -> bool {
        let mut gone = Gone::default();
        let timeout = pieces.again(piece, &mut gone);
        if let Some(timeout) = timeout {
            let request = self.inner().queue(piece, timeout);
            pieces.ask(piece, request);
        }
        self.unlock(pieces, gone);
        timeout.is_some()
    }

    /// Fetches one sample.
    fn find_alone<'a>(
        &'a self,
        index: u64,
        (began, timeout): (Instant, Option<Duration>),
        mut using: Using<'a, S>,
    ) -> Result<(Fetched<S>, Using<'a, S>), BoxError> {
        let (inner, requests) = (self.inner(), self.requests());
        let single = self.single(index);
        let end = timeout.and_then(|timeout| began.checked_add(timeout));
        let mut pieces = requests.pieces.write();
        let piece = loop {
            let now = Instant::now();
            let limits = (now, timeout);
            if let Some(piece) = pieces.make_alone(index, single, requests.max_bytes, limits) {
                break piece;
            }
            check_time(began, end, now)?;
            let _fetching = Fetching::begin();
            let end = [end, pieces.beyond_until()].into_iter().flatten().min();
            requests.wait(pieces, end);
            pieces = requests.pieces.write();
        };
        using.alone = Some(piece);
        let request = inner.queue(piece, timeout);
        pieces.ask(piece, request);
        drop(pieces);
        match inner.wait_for(request, began, timeout)? {
            Came::Done | Came::Gone => {}
            Came::Nobody => return Ok((self.fetch_here(index), using)),
        }
        let fetched = requests.pieces.read().alone(piece);
        Ok((fetched.ok_or(NOT_NEEDED)?, using))
    }

    /// Fetches one sample on the caller's thread: there is no other.
    #[cold]
    pub(super) fn fetch_here(&self, index: u64) -> Fetched<S> {
        let _fetching = Fetching::begin();
        let requests = self.requests();
        let block = requests.blocks.block_of(index).unwrap_or(0);
        requests.fetch_piece(block, index..index + 1)
    }

    pub(super) fn decode(
        &self,
        fetched: Fetched<S>,
        index: u64,
        rng: &mut SampleRng,
    ) -> Result<S::Sample, BoxError> {
        match fetched {
            Ok(block) => self.requests().source.decode(&block, index, rng),
            Err(failure) => match failure.panicked() {
                Some(message) => resume_unwind(Box::new(message)),
                None => Err(NotFetched(failure).into()),
            },
        }
    }

    /// The block of a sample, and how much memory it takes if it is fetched alone.
    pub(super) fn single(&self, index: u64) -> (u64, usize) {
        let requests = self.requests();
        let block = requests.blocks.block_of(index).unwrap_or(0);
        (block, requests.source.block_bytes(block, index..index + 1))
    }
}

/// A sample that comes to nothing, because it is not waited for.
const NOT_NEEDED: &str = "it is not needed any more: its epoch was left, or its batch has failed";

fn check_time(began: Instant, end: Option<Instant>, now: Instant) -> Result<(), BoxError> {
    match end.is_some_and(|end| end <= now) {
        true => Err(NoAnswer {
            elapsed: now.saturating_duration_since(began),
        }
        .into()),
        false => Ok(()),
    }
}

/// A sample that is being got: what it takes is given back when it was decoded, or that failed.
pub(super) struct Using<'a, S: BlockSource> {
    blocked: &'a Blocked<S>,
    used: Option<Use>,
    /// The piece that it is, if it is fetched alone.
    alone: Option<u64>,
}

impl<S: BlockSource> Drop for Using<'_, S> {
    fn drop(&mut self) {
        if self.used.is_none() && self.alone.is_none() {
            return;
        }
        let mut gone = Gone::default();
        let mut pieces = self.blocked.requests().pieces.write();
        if let Some(piece) = self.alone {
            pieces.forget_alone(piece, &mut gone);
        }
        if let Some(used) = self.used {
            pieces.used(used, &mut gone);
        }
        match gone.is_empty() {
            true => drop(pieces),
            false => self.blocked.unlock(pieces, gone),
        }
    }
}
