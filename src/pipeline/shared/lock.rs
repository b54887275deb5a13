//! What all threads of a loader share, and its lock. A [`Locked`] holds that for a few instructions at a time, and never across the program's
//! code, the ring or a device. What must happen without it is [`Deferred`] until the lock is released.

use std::ops::{Deref, DerefMut};

use super::deferred::Deferred;
use super::session::{Sent, Session};
use super::slab_size::SlabSizes;
use super::state::{State, Wake};
use crate::device::Ring;
use crate::pipeline::epoch::EpochContext;
use crate::pipeline::schedule::TaskId;
use crate::pipeline::traits::MadeAlone;
use crate::sync::{Arc, Condvar, Instant, Mutex, MutexGuard, OnceLock};

/// What all threads of a loader share.
pub(crate) struct Shared<B> {
    state: Mutex<State<B>>,
    /// Workers sleep here: those of each group, which are woken only if none of the groups before sleeps. There is a group for each device,
    /// and one for the workers beyond.
    pub(crate) workers: Vec<Condvar>,
    /// Those that are off duty sleep here.
    pub(crate) inactive: Condvar,
    /// The ring of each device, if its batches are page-locked: its pin thread sleeps there.
    rings: Vec<Option<Arc<Ring>>>,
    pub(crate) slab_sizes: SlabSizes,
    /// Whether the slabs of parts need not stay in the last-level cache, because loading takes much longer than copying. The first epoch
    /// whose batches are cut finds out for all that follow, so that no more slabs are made.
    pub(crate) is_wide: OnceLock<bool>,
}

impl<B: 'static> Shared<B> {
    /// `rings`: one for each device that sessions are loaded for.
    pub(crate) fn new(
        state: State<B>,
        rings: Vec<Option<Arc<Ring>>>,
        slab_sizes: SlabSizes,
    ) -> Shared<B> {
        let groups = rings.len() + 1;
        Shared {
            state: Mutex::new(state),
            workers: (0..groups).map(|_| Condvar::new()).collect(),
            inactive: Condvar::new(),
            rings,
            slab_sizes,
            is_wide: OnceLock::new(),
        }
    }

    pub(crate) fn lock(&self) -> Locked<'_, B> {
        Locked::new(self)
    }

    /// Does what was deferred, without the lock. Threads are told first.
    fn perform(&self, mut deferred: Deferred<B>, worker: Option<Wake>) {
        deferred.wake_consumer();
        if let Some(is_wide) = deferred.found_wide {
            let _ = self.is_wide.set(is_wide);
        }
        deferred.settle(&self.slab_sizes);
        if let Some(device) = deferred.told() {
            self.tell_pin_thread(device);
        }
        match worker {
            Some(Wake::One(group)) => _ = self.workers[group].notify_one(),
            Some(Wake::Inactive) => _ = self.inactive.notify_all(),
            None => {}
        }
        deferred.tell_settled();
        deferred.drop_removed();
    }

    /// Tells the device's pin thread to look again.
    pub(crate) fn tell_pin_thread(&self, device: usize) {
        if let Some(ring) = &self.rings[device] {
            ring.news().notify();
        }
    }
}

/// Holds the shared lock.
pub(crate) struct Locked<'a, B: 'static> {
    shared: &'a Shared<B>,
    /// `None` only for an instant, while the lock is released.
    state: Option<MutexGuard<'a, State<B>>>,
    pub(crate) deferred: Deferred<B>,
}

impl<'a, B: 'static> Locked<'a, B> {
    fn new(shared: &'a Shared<B>) -> Locked<'a, B> {
        Locked {
            shared,
            state: Some(shared.state.lock()),
            deferred: Deferred::default(),
        }
    }

    pub(crate) fn split(&mut self) -> (&mut State<B>, &mut Deferred<B>) {
        match &mut self.state {
            Some(state) => (state, &mut self.deferred),
            None => unreachable!("it is `None` within `release` only"),
        }
    }

    pub(crate) fn session(&mut self, key: u64) -> Option<(&mut Session<B>, &mut Deferred<B>)> {
        let (state, deferred) = self.split();
        Some((state.session(key)?, deferred))
    }

    /// The session of an open task; `None` if the task is gone, and not wanted any more.
    pub(crate) fn session_of(
        &mut self,
        context: &EpochContext,
        task: TaskId,
    ) -> Option<(&mut Session<B>, &mut Deferred<B>)> {
        let (session, deferred) = self.session(context.session)?;
        session.schedule.holds(task).then_some((session, deferred))
    }

    /// Reports a task that was made from end to end. `false`: the task is gone.
    pub(crate) fn made(
        &mut self,
        context: &EpochContext,
        task: TaskId,
        alone: MadeAlone<B>,
    ) -> bool {
        match self.session_of(context, task) {
            Some((session, deferred)) => session.made(task, alone, deferred),
            None => {
                self.deferred.drop_later(alone.made);
                return false;
            }
        }
        true
    }

    /// Reports tasks of an epoch that were sent, failed, or could not be sent now.
    pub(crate) fn were_sent(&mut self, sent: Sent<B>) {
        for (task, outcome) in sent.outcomes {
            match self.session_of(&sent.context, task) {
                Some((session, deferred)) => session.publish(task, outcome, deferred),
                None => self.deferred.drop_later(outcome),
            }
        }
    }

    /// Sleeps until notified. Returns at once if deferred work had to be done first, so the caller must look again in any case.
    pub(crate) fn wait(&mut self, condvar: &Condvar) {
        match &mut self.state {
            Some(state) if self.deferred.is_empty() => condvar.wait(state),
            _ => {
                self.release();
                self.state = Some(self.shared.state.lock());
            }
        }
    }

    /// The same, until `end` at most.
    pub(crate) fn wait_until(&mut self, condvar: &Condvar, end: Option<Instant>) {
        let Some(end) = end else {
            return self.wait(condvar);
        };
        match &mut self.state {
            Some(state) if self.deferred.is_empty() => {
                condvar.wait_until(state, end);
            }
            _ => self.wait(condvar), // which returns at once
        }
    }

    fn release(&mut self) {
        if self.deferred.is_empty() {
            return drop(self.state.take());
        }
        let deferred = std::mem::take(&mut self.deferred);
        let state = self.state.as_mut().filter(|_| deferred.wake_workers);
        let worker = state.and_then(|state| state.worker_to_wake());
        drop(self.state.take());
        self.shared.perform(deferred, worker);
    }
}

impl<B: 'static> Deref for Locked<'_, B> {
    type Target = State<B>;

    fn deref(&self) -> &State<B> {
        match &self.state {
            Some(state) => state,
            None => unreachable!("it is `None` within `release` only"),
        }
    }
}

impl<B: 'static> DerefMut for Locked<'_, B> {
    fn deref_mut(&mut self) -> &mut State<B> {
        self.split().0
    }
}

impl<B: 'static> Drop for Locked<'_, B> {
    fn drop(&mut self) {
        if self.state.is_some() {
            self.release();
        }
    }
}
