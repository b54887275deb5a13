//! The shared state's lock. A [`Locked`] holds it for a few instructions at a time, and never across the user's code, the ring or a device.
//! What must happen without it is noted in [`Deferred`], and done when the lock is released.

use std::any::Any;
use std::ops::{Deref, DerefMut};

use super::data::{EpochData, TaskData};
use super::session::Session;
use super::state::{State, Wake};
use crate::device::SlabQuota;
use crate::error::drop_each;
use crate::pipeline::epoch::EpochContext;
use crate::pipeline::schedule::{Removed, TaskId};
use crate::pipeline::threads::pipeline::Pipeline;
use crate::pipeline::traits::MadeAlone;
use crate::sync::{Arc, Condvar, Instant, MutexGuard, planted};

/// Holds the shared lock.
pub(crate) struct Locked<'a, B: 'static> {
    pipeline: &'a Pipeline<B>,
    /// `None` only for an instant, while the lock is released.
    state: Option<MutexGuard<'a, State<B>>>,
    pub(crate) deferred: Deferred<B>,
}

impl<'a, B: 'static> Locked<'a, B> {
    pub(crate) fn new(pipeline: &'a Pipeline<B>) -> Locked<'a, B> {
        Locked {
            pipeline,
            state: Some(pipeline.state.lock()),
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
            Some((session, _)) => session.made(task, alone),
            None => {
                self.deferred.drop_later(alone.made);
                return false;
            }
        }
        true
    }

    /// Sleeps until notified. Returns at once if deferred work had to be done first, so the caller must look again in any case.
    pub(crate) fn wait(&mut self, condvar: &Condvar) {
        match &mut self.state {
            Some(state) if self.deferred.is_empty() => condvar.wait(state),
            _ => {
                self.release();
                self.state = Some(self.pipeline.state.lock());
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
        let deferred = std::mem::take(&mut self.deferred);
        let state = self.state.as_mut().filter(|_| deferred.wake_workers);
        let worker = state.and_then(|state| state.worker_to_wake());
        drop(self.state.take());
        deferred.empty(self.pipeline, worker);
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

/// What must happen when the shared lock is released.
pub(crate) struct Deferred<B> {
    /// There may be something to do for a sleeping worker.
    pub(crate) wake_workers: bool,
    /// The device whose pin thread is told to look again.
    told: Option<usize>,
    /// Whether loading turned out to be far from copying.
    pub(crate) found_wide: Option<bool>,
    /// Usually `None`.
    leftovers: Option<Box<Leftovers<B>>>,
}

/// What must not be done while the lock is held.
struct Leftovers<B> {
    removed: Removed<EpochData<B>, TaskData<B>>,
    /// Much of this is the user's, whose `drop` may do anything.
    drops: Vec<Box<dyn Any>>,
    /// Quotas, with how many slabs they have use for from now on.
    slabs: Vec<(Arc<SlabQuota>, usize)>,
    /// Quotas that were opened or shared, and are not needed.
    quotas: Vec<Arc<SlabQuota>>,
}

impl<B> Default for Deferred<B> {
    fn default() -> Deferred<B> {
        Deferred {
            wake_workers: false,
            told: None,
            found_wide: None,
            leftovers: None,
        }
    }
}

impl<B: 'static> Deferred<B> {
    fn is_empty(&self) -> bool {
        !self.wake_workers
            && self.told.is_none()
            && self.found_wide.is_none()
            && self.leftovers.is_none()
    }

    fn leftovers(&mut self) -> &mut Leftovers<B> {
        self.leftovers.get_or_insert_with(|| {
            Box::new(Leftovers {
                removed: Removed::default(),
                drops: Vec::new(),
                slabs: Vec::new(),
                quotas: Vec::new(),
            })
        })
    }

    /// Tells the device's pin thread to look again. (While the lock is held, one session is worked on, and it has one device.)
    pub(crate) fn tell_pin_thread(&mut self, device: usize) {
        debug_assert!(self.told.is_none_or(|told| told == device));
        self.told = Some(device);
    }

    /// Drops something without the lock.
    pub(crate) fn drop_later(&mut self, thing: impl Any) {
        if !planted("what is left over is dropped under the lock") {
            self.leftovers().drops.push(Box::new(thing));
        }
    }

    /// Where a schedule puts what it removes.
    pub(crate) fn removed(&mut self) -> &mut Removed<EpochData<B>, TaskData<B>> {
        &mut self.leftovers().removed
    }

    /// A quota has use for that many slabs from now on.
    pub(crate) fn set_slabs(&mut self, quota: Arc<SlabQuota>, slabs: usize) {
        self.leftovers().slabs.push((quota, slabs));
    }

    /// Closes a quota that was opened or shared, and is not needed.
    pub(crate) fn close_quota(&mut self, quota: Option<Arc<SlabQuota>>) {
        if let Some(quota) = quota {
            self.leftovers().quotas.push(quota);
        }
    }

    /// Runs without the lock. Threads are told first, because a user's `drop` may take long, or wait for one of them.
    fn empty(self, pipeline: &Pipeline<B>, worker: Option<Wake>) {
        if let Some(is_wide) = self.found_wide {
            let _ = pipeline.is_wide.set(is_wide);
        }
        if let Some(leftovers) = &self.leftovers {
            leftovers.tell_passes();
            leftovers.settle_quotas(pipeline);
        }
        if let Some(device) = self.told {
            pipeline.tell_pin_thread(device);
        }
        match worker {
            Some(Wake::One(group)) => _ = pipeline.worker_wakeups[group].notify_one(),
            Some(Wake::Inactive) => _ = pipeline.inactive.notify_all(),
            None => {}
        }
        if let Some(leftovers) = self.leftovers {
            drop_each(leftovers.removed.tasks);
            drop_each(leftovers.removed.epochs);
            drop_each(leftovers.drops);
        }
    }
}

impl<B: 'static> Leftovers<B> {
    /// Tells workers that pull for an epoch that is gone to stop.
    fn tell_passes(&self) {
        let passes = self.removed.epochs.iter();
        let passes = passes.filter_map(|epoch| epoch.context.as_ref());
        passes.for_each(|context| context.leaves());
    }

    fn settle_quotas(&self, pipeline: &Pipeline<B>) {
        for (quota, slabs) in &self.slabs {
            quota.set_slabs(*slabs, pipeline.slabs_within(quota.kind()));
        }
        let ended = self.removed.epochs.iter().filter_map(EpochData::quota);
        ended.chain(&self.quotas).for_each(|quota| quota.close());
    }
}
