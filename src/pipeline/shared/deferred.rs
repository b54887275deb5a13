//! What must not be done under the shared lock: it is done when that is released.

use std::any::Any;

use super::data::{EpochData, TaskData};
use super::slab_size::SlabSizes;
use crate::device::SlabQuota;
use crate::error::drop_each;
use crate::pipeline::lookahead::Announced;
use crate::pipeline::schedule::Removed;
use crate::sync::{Arc, Condvar, planted};

/// What must happen when the shared lock is released.
pub(crate) struct Deferred<B> {
    /// There may be something to do for a sleeping worker.
    pub(crate) wake_workers: bool,
    /// The device whose pin thread is told to look again.
    told: Option<usize>,
    /// Where the consumer sleeps that is woken. To wake a thread is a call of the kernel, which takes longer than all else that is done under
    /// the lock.
    task_ready: Option<Arc<Condvar>>,
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
    /// The pass that batches were taken of, whose data set wants to know. (While the lock is held, one session is worked on. What is done with
    /// of its last pass, the next call says.)
    settled: Option<Arc<Announced>>,
}

impl<B> Default for Deferred<B> {
    fn default() -> Deferred<B> {
        Deferred {
            wake_workers: false,
            told: None,
            task_ready: None,
            found_wide: None,
            leftovers: None,
        }
    }
}

impl<B: 'static> Deferred<B> {
    pub(super) fn is_empty(&self) -> bool {
        !self.wake_workers
            && self.told.is_none()
            && self.task_ready.is_none()
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
                settled: None,
            })
        })
    }

    /// Tells the device's pin thread to look again. (While the lock is held, one session is worked on, and it has one device.)
    pub(crate) fn tell_pin_thread(&mut self, device: usize) {
        debug_assert!(self.told.is_none_or(|told| told == device));
        self.told = Some(device);
    }

    /// Wakes the consumer of a session. (While the lock is held, one session is worked on. If there were a second, its consumer would be woken
    /// under the lock.)
    pub(crate) fn tell_consumer(&mut self, task_ready: &Arc<Condvar>) {
        let before = self.task_ready.replace(Arc::clone(task_ready));
        if let Some(other) = before.filter(|before| !Arc::ptr_eq(before, task_ready)) {
            other.notify_one();
        }
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

    /// Batches of a pass were taken.
    pub(crate) fn settled(&mut self, announced: &Arc<Announced>) {
        if announced.wants_to_know() {
            self.leftovers().settled = Some(Arc::clone(announced));
        }
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

    /// Whose pin thread is to be told.
    pub(super) fn told(&self) -> Option<usize> {
        self.told
    }

    /// Wakes the consumer, if it is told: first of all, for it waits. Without the lock, as all of this.
    pub(super) fn wake_consumer(&mut self) {
        if let Some(task_ready) = self.task_ready.take() {
            task_ready.notify_one();
        }
    }

    /// Tells passes that they are over, and sets quotas.
    pub(super) fn settle(&self, slab_sizes: &SlabSizes) {
        if let Some(leftovers) = &self.leftovers {
            leftovers.settle_passes();
            leftovers.settle_quotas(slab_sizes);
        }
    }

    /// Tells the data set which batches were taken, before it hears that their pass is over.
    pub(super) fn tell_settled(&mut self) {
        let leftovers = self.leftovers.as_mut();
        if let Some(announced) = leftovers.and_then(|leftovers| leftovers.settled.take()) {
            announced.tell_settled();
        }
    }

    /// Drops what was removed: last, because a user's `drop` may take long, or wait for one of the threads.
    pub(super) fn drop_removed(self) {
        if let Some(leftovers) = self.leftovers {
            drop_each(leftovers.removed.tasks);
            drop_each(leftovers.removed.epochs);
            drop_each(leftovers.drops);
        }
    }
}

impl<B: 'static> Leftovers<B> {
    /// Tells workers that pull for an epoch that is gone to stop.
    fn settle_passes(&self) {
        let passes = self.removed.epochs.iter();
        let passes = passes.filter_map(|epoch| epoch.context.as_ref());
        passes.for_each(|context| context.leaves());
    }

    fn settle_quotas(&self, slab_sizes: &SlabSizes) {
        for (quota, slabs) in &self.slabs {
            quota.set_slabs(*slabs, slab_sizes.within(quota.kind()));
        }
        let ended = self.removed.epochs.iter().filter_map(EpochData::quota);
        ended.chain(&self.quotas).for_each(|quota| quota.close());
    }
}
