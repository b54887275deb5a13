//! The board's lock. A [`Guard`] holds it for a few instructions at a time, and never across the user's code, the ring or a device.
//! What must happen without it goes into the guard's [`Bin`], which is emptied when the lock is released.

use std::any::Any;
use std::ops::{Deref, DerefMut};

use super::data::{EpochSlot, UnitSlot};
use super::session::Line;
use super::state::{Board, Wake};
use crate::device::Account;
use crate::error::drop_each;
use crate::pipeline::epoch::Pass;
use crate::pipeline::schedule::{Removed, Unit};
use crate::pipeline::threads::pipeline::Pipeline;
use crate::pipeline::traits::MadeAlone;
use crate::sync::{Arc, Condvar, Instant, MutexGuard, planted};

/// Holds the board's lock.
pub(crate) struct Guard<'a, B: 'static> {
    pipeline: &'a Pipeline<B>,
    /// `None` only for an instant, while the lock is released.
    board: Option<MutexGuard<'a, Board<B>>>,
    pub(crate) bin: Bin<B>,
}

impl<'a, B: 'static> Guard<'a, B> {
    pub(crate) fn new(pipeline: &'a Pipeline<B>) -> Guard<'a, B> {
        Guard {
            pipeline,
            board: Some(pipeline.board.lock()),
            bin: Bin::default(),
        }
    }

    pub(crate) fn split(&mut self) -> (&mut Board<B>, &mut Bin<B>) {
        match &mut self.board {
            Some(board) => (board, &mut self.bin),
            None => unreachable!("it is `None` within `release` only"),
        }
    }

    pub(crate) fn line(&mut self, key: u64) -> Option<(&mut Line<B>, &mut Bin<B>)> {
        let (board, bin) = self.split();
        Some((board.line(key)?, bin))
    }

    /// The line of an open unit; `None` if the unit is gone, and nobody wants it.
    pub(crate) fn line_of(
        &mut self,
        pass: &Pass,
        unit: Unit,
    ) -> Option<(&mut Line<B>, &mut Bin<B>)> {
        let (line, bin) = self.line(pass.line)?;
        line.schedule.holds(unit).then_some((line, bin))
    }

    /// Reports a unit that was made from end to end. `false`: the unit is gone.
    pub(crate) fn made(&mut self, pass: &Pass, unit: Unit, alone: MadeAlone<B>) -> bool {
        match self.line_of(pass, unit) {
            Some((line, _)) => line.made(unit, alone),
            None => {
                self.bin.drop_later(alone.made);
                return false;
            }
        }
        true
    }

    /// Sleeps until notified. Returns at once if the bin had to be emptied first, so the caller must look again in any case.
    pub(crate) fn wait(&mut self, condvar: &Condvar) {
        match &mut self.board {
            Some(board) if self.bin.is_empty() => condvar.wait(board),
            _ => {
                self.release();
                self.board = Some(self.pipeline.board.lock());
            }
        }
    }

    /// The same, until `end` at most.
    pub(crate) fn wait_until(&mut self, condvar: &Condvar, end: Option<Instant>) {
        let Some(end) = end else {
            return self.wait(condvar);
        };
        match &mut self.board {
            Some(board) if self.bin.is_empty() => {
                condvar.wait_until(board, end);
            }
            _ => self.wait(condvar), // which returns at once
        }
    }

    fn release(&mut self) {
        let bin = std::mem::take(&mut self.bin);
        let board = self.board.as_mut().filter(|_| bin.wake_workers);
        let worker = board.and_then(|board| board.worker_to_wake());
        drop(self.board.take());
        bin.empty(self.pipeline, worker);
    }
}

impl<B: 'static> Deref for Guard<'_, B> {
    type Target = Board<B>;

    fn deref(&self) -> &Board<B> {
        match &self.board {
            Some(board) => board,
            None => unreachable!("it is `None` within `release` only"),
        }
    }
}

impl<B: 'static> DerefMut for Guard<'_, B> {
    fn deref_mut(&mut self) -> &mut Board<B> {
        self.split().0
    }
}

impl<B: 'static> Drop for Guard<'_, B> {
    fn drop(&mut self) {
        if self.board.is_some() {
            self.release();
        }
    }
}

/// What must happen when the board's lock is released.
pub(crate) struct Bin<B> {
    /// There may be something to do for a sleeping worker.
    pub(crate) wake_workers: bool,
    /// The device whose pin thread is told to look again.
    told: Option<usize>,
    /// Whether loading turned out to be far from copying.
    pub(crate) found_wide: Option<bool>,
    /// Usually `None`.
    deferred: Option<Box<Deferred<B>>>,
}

/// What must not be done while the lock is held.
struct Deferred<B> {
    removed: Removed<EpochSlot<B>, UnitSlot<B>>,
    /// Much of this is the user's, whose `drop` may do anything.
    drops: Vec<Box<dyn Any>>,
    /// Accounts, with how many slabs they have use for from now on.
    slabs: Vec<(Arc<Account>, usize)>,
    /// Accounts that were opened or shared, and are not needed.
    accounts: Vec<Arc<Account>>,
}

impl<B> Default for Bin<B> {
    fn default() -> Bin<B> {
        Bin {
            wake_workers: false,
            told: None,
            found_wide: None,
            deferred: None,
        }
    }
}

impl<B: 'static> Bin<B> {
    fn is_empty(&self) -> bool {
        !self.wake_workers
            && self.told.is_none()
            && self.found_wide.is_none()
            && self.deferred.is_none()
    }

    fn deferred(&mut self) -> &mut Deferred<B> {
        self.deferred.get_or_insert_with(|| {
            Box::new(Deferred {
                removed: Removed::default(),
                drops: Vec::new(),
                slabs: Vec::new(),
                accounts: Vec::new(),
            })
        })
    }

    /// Tells the device's pin thread to look again. (Whoever holds the lock is busy with one line, which has one device.)
    pub(crate) fn tell_pin_thread(&mut self, device: usize) {
        debug_assert!(self.told.is_none_or(|told| told == device));
        self.told = Some(device);
    }

    /// Drops something without the lock.
    pub(crate) fn drop_later(&mut self, thing: impl Any) {
        if !planted("what is left over is dropped under the lock") {
            self.deferred().drops.push(Box::new(thing));
        }
    }

    /// Where a schedule puts what it removes.
    pub(crate) fn removed(&mut self) -> &mut Removed<EpochSlot<B>, UnitSlot<B>> {
        &mut self.deferred().removed
    }

    /// An account has use for that many slabs from now on.
    pub(crate) fn set_slabs(&mut self, account: Arc<Account>, slabs: usize) {
        self.deferred().slabs.push((account, slabs));
    }

    /// Closes an account that was opened or shared, and is not needed.
    pub(crate) fn close_account(&mut self, account: Option<Arc<Account>>) {
        if let Some(account) = account {
            self.deferred().accounts.push(account);
        }
    }

    /// Runs without the lock. Threads are told first, because a user's `drop` may take long, or wait for one of them.
    fn empty(self, pipeline: &Pipeline<B>, worker: Option<Wake>) {
        if let Some(is_wide) = self.found_wide {
            let _ = pipeline.is_wide.set(is_wide);
        }
        if let Some(deferred) = &self.deferred {
            deferred.tell_passes();
            deferred.settle_accounts(pipeline);
        }
        if let Some(device) = self.told {
            pipeline.tell_pin_thread(device);
        }
        match worker {
            Some(Wake::One(group)) => _ = pipeline.worker_wakeups[group].notify_one(),
            Some(Wake::OffDuty) => _ = pipeline.off_duty.notify_all(),
            None => {}
        }
        if let Some(deferred) = self.deferred {
            drop_each(deferred.removed.units);
            drop_each(deferred.removed.epochs);
            drop_each(deferred.drops);
        }
    }
}

impl<B: 'static> Deferred<B> {
    /// Those who pull for an epoch that is gone stop.
    fn tell_passes(&self) {
        let passes = self.removed.epochs.iter();
        let passes = passes.filter_map(|epoch| epoch.pass.as_ref());
        passes.for_each(|pass| pass.leaves());
    }

    fn settle_accounts(&self, pipeline: &Pipeline<B>) {
        for (account, slabs) in &self.slabs {
            account.set_slabs(*slabs, pipeline.slabs_within(account.kind()));
        }
        let ended = self.removed.epochs.iter().filter_map(EpochSlot::account);
        ended
            .chain(&self.accounts)
            .for_each(|account| account.close());
    }
}
