//! The open iterator of a [`WebStream`](super::WebStream).

use std::fmt;

use super::Shards;
use super::reader::{Behind, ShardReader, Step};
use super::sample::StreamedSample;
use super::standing::{Begun, Standing, wrong};
use crate::error::{Again, BoxError, Refused};
use crate::iterable::{ItemIter, progress};
use crate::sync::Arc;

/// The open iterator of [`WebStream`](super::WebStream).
pub struct WebStreamIter {
    shards: Arc<Shards>,
    /// Which shard is at each place of the epoch's order.
    order: Vec<u32>,
    open_shards: usize,
    standing: Standing,
    /// Of the shards that `standing` has open; fewer before the first item.
    readers: Vec<ShardReader>,
}

impl WebStreamIter {
    pub(super) fn new(
        shards: Arc<Shards>,
        order: Vec<u32>,
        open_shards: usize,
        standing: Standing,
    ) -> WebStreamIter {
        WebStreamIter {
            shards,
            order,
            open_shards,
            standing,
            readers: Vec::new(),
        }
    }

    fn read(&self, begun: Begun) -> ShardReader {
        // (A state's places are checked when it is read.)
        let shard = self.order.get(begun.place as usize).copied();
        ShardReader::start(&self.shards, shard.unwrap_or(0) as usize, begun)
    }

    /// Opens as many shards as are open at a time.
    fn fill(&mut self) {
        while self.standing.open.len() < self.open_shards {
            let Some(begun) = self.standing.take() else {
                break;
            };
            self.standing.open.push(begun);
        }
        while let Some(begun) = self.standing.open.get(self.readers.len()) {
            let reader = self.read(*begun);
            self.readers.push(reader);
        }
    }

    /// The shard whose turn it is has no more: the next one takes its place.
    fn replace(&mut self, turn: usize) {
        match self.standing.take() {
            Some(begun) => {
                self.standing.open[turn] = begun;
                self.readers[turn] = self.read(begun);
            }
            None => {
                self.standing.open.remove(turn);
                drop(self.readers.remove(turn));
            }
        }
    }

    /// Whose turn it is behind this one.
    fn pass_on(&mut self, turn: usize) {
        self.standing.turn = match self.standing.open.len() {
            0 => 0,
            open => turn % open,
        };
    }
}

impl ItemIter for WebStreamIter {
    type Item = StreamedSample;

    fn next(&mut self) -> Option<Result<StreamedSample, BoxError>> {
        if !self.readers.iter().all(ShardReader::is_here) {
            let elsewhere = "this process was forked from the one that has the threads which read the shards: make data set and loader after the fork, \
                             and go on from a state";
            return Some(Err(Refused(elsewhere.into()).into()));
        }
        self.fill();
        loop {
            let turn = self.standing.turn;
            let step = self.readers.get(turn)?.next();
            let open = self.standing.open.len();
            let item = match step {
                Some(Step::Reads) => {
                    if let Err(interrupted) = progress() {
                        return Some(Err(interrupted.into()));
                    }
                    continue;
                }
                Some(Step::Sample(sample, Behind::Next { samples, offset })) => {
                    let begun = &mut self.standing.open[turn];
                    (begun.samples, begun.offset) = (samples, offset);
                    Some(sample)
                }
                Some(Step::Sample(sample, Behind::Nothing)) => {
                    self.replace(turn);
                    Some(sample)
                }
                Some(Step::Unread(error)) => {
                    self.readers[turn] = self.read(self.standing.open[turn]);
                    return Some(Err(Again(error).into()));
                }
                Some(Step::Failed(error)) => {
                    self.replace(turn);
                    Some(Err(error))
                }
                None => {
                    self.replace(turn);
                    None
                }
            };
            // Where a shard went and none took its place, the one behind it is at its turn.
            let was_removed = self.standing.open.len() < open;
            self.pass_on(if was_removed { turn } else { turn + 1 });
            if item.is_some() {
                return item;
            }
            if let Err(interrupted) = progress() {
                return Some(Err(interrupted.into()));
            }
        }
    }

    fn state(&self) -> Option<Vec<u8>> {
        Some(self.standing.write())
    }

    fn seek(&mut self, state: &[u8]) -> Result<(), BoxError> {
        let shards = self.order.len() as u64;
        self.standing = Standing::read(state, shards, self.open_shards).ok_or_else(wrong)?;
        self.readers.clear();
        Ok(())
    }
}

impl fmt::Debug for WebStreamIter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WebStreamIter")
            .field("standing", &self.standing)
            .finish_non_exhaustive()
    }
}
