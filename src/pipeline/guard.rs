//! The board's lock. Whoever holds it holds a [`Guard`]: for a few instructions at a time, and never across the user's code, the ring or
//! a device. What must happen without it goes into the guard's [`Bin`], which is emptied when the lock is released.

use std::ops::{Deref, DerefMut};
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::Pipeline;
use super::board::Board;
use super::line::{Made, Segment, Slot};
use super::source::Failed;
use super::work::Work;
use crate::device::Account;
use crate::error::{Result, panic_message};
use crate::sync::{Arc, Condvar, MutexGuard};

/// Holds the board's lock.
pub(super) struct Guard<'a, B> {
    pipeline: &'a Pipeline<B>,
    /// `None` only for an instant, while the lock is released.
    board: Option<MutexGuard<'a, Board<B>>>,
    pub(super) bin: Bin<B>,
}

impl<'a, B> Guard<'a, B> {
    pub(super) fn new(pipeline: &'a Pipeline<B>) -> Guard<'a, B> {
        Guard {
            pipeline,
            board: Some(pipeline.board.lock()),
            bin: Bin::default(),
        }
    }

    pub(super) fn parts(&mut self) -> (&mut Board<B>, &mut Bin<B>) {
        match &mut self.board {
            Some(board) => (board, &mut self.bin),
            None => unreachable!("it is `None` within `release` only"),
        }
    }

    /// Sleeps until somebody notifies, or wakes at once if something was to be done without the lock. So look again.
    pub(super) fn wait(&mut self, condvar: &Condvar) {
        match &mut self.board {
            Some(board) if self.bin.is_empty() => condvar.wait(board),
            _ => {
                self.release();
                self.board = Some(self.pipeline.board.lock());
            }
        }
    }

    fn release(&mut self) {
        let bin = std::mem::take(&mut self.bin);
        let worker = self
            .board
            .as_mut()
            .filter(|_| bin.wake_workers)
            .and_then(|board| board.worker_to_wake());
        drop(self.board.take());
        bin.empty(self.pipeline, worker);
    }
}

impl<B> Deref for Guard<'_, B> {
    type Target = Board<B>;

    fn deref(&self) -> &Board<B> {
        match &self.board {
            Some(board) => board,
            None => unreachable!("it is `None` within `release` only"),
        }
    }
}

impl<B> DerefMut for Guard<'_, B> {
    fn deref_mut(&mut self) -> &mut Board<B> {
        self.parts().0
    }
}

impl<B> Drop for Guard<'_, B> {
    fn drop(&mut self) {
        if self.board.is_some() {
            self.release();
        }
    }
}

/// What must happen when the board's lock is released.
pub(super) struct Bin<B> {
    /// There may be something to do for a sleeping worker.
    pub(super) wake_workers: bool,
    pub(super) tell_pin_thread: bool,
    /// Whether loading turned out to be far from copying.
    pub(super) found_wide: Option<bool>,
    /// Most often there is nothing in it.
    left_over: Option<Box<LeftOver<B>>>,
}

/// What the board has no more use for. Much of it is the user's.
pub(super) struct LeftOver<B> {
    pub(super) slots: Vec<Slot<B>>,
    pub(super) segments: Vec<Segment<B>>,
    pub(super) outcomes: Vec<Result<Made<B>>>,
    pub(super) works: Vec<Arc<dyn Work<B>>>,
    pub(super) failures: Vec<Failed>,
    /// Accounts that may have so many slabs from now on.
    pub(super) limits: Vec<(Arc<Account>, usize)>,
    /// Accounts that were opened or shared in vain.
    pub(super) accounts: Vec<Arc<Account>>,
}

impl<B> Default for Bin<B> {
    fn default() -> Bin<B> {
        Bin {
            wake_workers: false,
            tell_pin_thread: false,
            found_wide: None,
            left_over: None,
        }
    }
}

impl<B> Bin<B> {
    fn is_empty(&self) -> bool {
        !self.wake_workers
            && !self.tell_pin_thread
            && self.found_wide.is_none()
            && self.left_over.is_none()
    }

    /// What is dropped without the lock.
    pub(super) fn left_over(&mut self) -> &mut LeftOver<B> {
        self.left_over.get_or_insert_with(|| {
            Box::new(LeftOver {
                slots: Vec::new(),
                segments: Vec::new(),
                outcomes: Vec::new(),
                works: Vec::new(),
                failures: Vec::new(),
                limits: Vec::new(),
                accounts: Vec::new(),
            })
        })
    }

    /// Without the board's lock. Threads are told first, for a `drop` of the user's may take its time, or wait for one of them.
    fn empty(self, pipeline: &Pipeline<B>, worker: Option<usize>) {
        if let Some(is_wide) = self.found_wide {
            let _ = pipeline.is_wide.set(is_wide);
        }
        if let Some(left_over) = &self.left_over {
            left_over.settle_accounts();
        }
        if self.tell_pin_thread {
            pipeline.tell_pin_thread();
        }
        if let Some(worker) = worker {
            pipeline.work[worker].notify_one();
        }
        if let Some(left_over) = self.left_over {
            left_over.drop_each();
        }
    }
}

impl<B> LeftOver<B> {
    fn settle_accounts(&self) {
        for (account, limit) in &self.limits {
            account.set_limit(*limit);
        }
        let ended = self.segments.iter().filter_map(Segment::account);
        ended
            .chain(&self.accounts)
            .for_each(|account| account.close());
    }

    fn drop_each(self) {
        drop_each(self.slots);
        drop_each(self.segments);
        drop_each(self.outcomes);
        drop_each(self.works);
        drop_each(self.failures);
    }
}

/// Drops what is the user's. A `drop` that panics ends neither the thread nor the others.
pub(super) fn drop_each<T>(things: impl IntoIterator<Item = T>) {
    for thing in things {
        if let Err(payload) = catch_unwind(AssertUnwindSafe(|| drop(thing))) {
            drop(panic_message(payload));
        }
    }
}
