//! Blocks are opened, in the order in which samples need them; what is done with is dropped, and its room given to what waits.

use std::ops::Range;

use super::pieces::{Gone, Pieces, Step};
use super::requests::{Fetched, Requests};
use super::{BlockSource, Blocked};
use crate::dataset::staged::Forgotten;
use crate::sampler::{Opening, Openings};
use crate::sync::WriteGuard;

impl<S: BlockSource> Blocked<S> {
    /// Lets go of the lock: drops what is not needed, and then gives its room to what waits.
    pub(super) fn unlock<'a>(
        &'a self,
        mut pieces: WriteGuard<'a, Pieces<Fetched<S>>>,
        mut gone: Gone<Fetched<S>>,
    ) {
        let (inner, requests) = (self.inner(), self.requests());
        let mut forgotten = Forgotten::default();
        for request in gone.requests.drain(..) {
            inner.forget(request, &mut forgotten);
        }
        if !gone.is_empty() {
            drop(pieces);
            Requests::<S>::drop_all(&mut gone);
            pieces = requests.pieces.write();
            pieces.dropped(&gone);
        }
        for (piece, timeout) in pieces.give_room(requests.max_bytes) {
            let request = inner.queue(piece, timeout);
            pieces.ask(piece, request);
        }
        drop(pieces);
        requests.notify();
        inner.run(forgotten);
    }

    /// Opens what a pass needs of what is announced, and what there may be ahead. The caller [gives room](Blocked::gives_room) to it.
    pub(super) fn open(&self, pass: u32) {
        let (inner, requests) = (self.inner(), self.requests());
        let ahead = requests.ahead.unwrap_or(requests.in_flight);
        loop {
            let mut pieces = requests.pieces.write();
            match pieces.open(pass, ahead, &|request| inner.hangs(request)) {
                Step::Read(pass, openings) => {
                    drop(pieces);
                    Reading {
                        blocked: self,
                        pass,
                        openings: Some(openings),
                        next: None,
                    }
                    .read();
                }
                Step::Wait => requests.wait(pieces, None),
                Step::Done => return,
            }
        }
    }

    /// Gives room to what was opened, and wakes threads for it, when it is dropped: when the calling thread has nothing left to do that other
    /// workers wait for. A thread that is woken often takes the core of the one that wakes it, for as long as its request takes.
    pub(super) fn gives_room(&self) -> GivesRoom<'_, S> {
        GivesRoom { blocked: self }
    }
}

/// The openings of a pass, while they are asked for the next one. It is the program's code, and may panic: then there are no more.
struct Reading<'a, S: BlockSource> {
    blocked: &'a Blocked<S>,
    pass: u32,
    openings: Option<Openings>,
    next: Option<(Opening, usize)>,
}

impl<S: BlockSource> Reading<'_, S> {
    fn read(mut self) {
        let requests = self.blocked.requests();
        let Some(mut openings) = self.openings.take() else {
            return;
        };
        let is_there = |samples: &Range<u64>, block: u64| {
            let range = requests.blocks.range(block);
            !samples.is_empty() && range.start <= samples.start && samples.end <= range.end
        };
        let next =
            openings.find(|opening| opening.uses > 0 && is_there(&opening.samples, opening.block));
        let next = next.map(|opening| {
            let bytes = requests
                .source
                .block_bytes(opening.block, opening.samples.clone());
            (opening, bytes)
        });
        self.openings = next.is_some().then_some(openings);
        self.next = next;
    }
}

impl<S: BlockSource> Drop for Reading<'_, S> {
    fn drop(&mut self) {
        let requests = self.blocked.requests();
        let mut gone = Gone::default();
        let (openings, next) = (self.openings.take(), self.next.take());
        let mut pieces = requests.pieces.write();
        pieces.put_back(self.pass, openings, next, &mut gone);
        drop(pieces);
        requests.notify();
        Requests::<S>::drop_all(&mut gone);
    }
}

/// [`Blocked::gives_room`].
pub(super) struct GivesRoom<'a, S: BlockSource> {
    blocked: &'a Blocked<S>,
}

impl<S: BlockSource> Drop for GivesRoom<'_, S> {
    fn drop(&mut self) {
        let pieces = self.blocked.requests().pieces.write();
        self.blocked.unlock(pieces, Gone::default());
    }
}
