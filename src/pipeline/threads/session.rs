//! Handles: a consumer begins an epoch, appends others, comes to them and leaves them.
//!
//! Epochs that follow each other are one session of tasks, so workers load across the boundary as they do from one batch to the next:
//! with one window, one order of slabs, and one share of page-locked memory. An epoch is planned when workers will soon have nothing
//! else to do. In two cases that would take twice the slabs, and nothing is loaded across the boundary: if the plan does not
//! [join](crate::pipeline::plan::epoch_plan::EpochPlan::joins) the one before, or if the program takes the epoch while the one before has
//! batches to come.

use super::pipeline::{FORKED, Pipeline};
use crate::batch::Batch;
use crate::device::{SlabQuota, Target};
use crate::pipeline::epoch::EpochContext;
use crate::pipeline::lookahead::Announcer;
use crate::pipeline::plan::delivered::Progress;
use crate::pipeline::plan::epoch_plan::{Destination, EpochPlan, destination_matters, plan};
use crate::pipeline::plan::lister::Batching;
use crate::pipeline::plan::partition::{Partition, Start};
use crate::pipeline::plan::shard::DeviceShard;
use crate::pipeline::schedule::TaskId;
use crate::pipeline::shared::data::{EpochData, Taken};
use crate::pipeline::traits::{Beginning, EpochHandle, Pull, Reached, StreamStart, TransferQueue};
use crate::pipeline::transfer::queue::DeviceQueue;
use crate::sync::{Arc, Condvar, Mutex, planted};

impl<B: Batch> Pipeline<B> {
    /// Begins a session with one epoch, and lets workers load it.
    pub(crate) fn begin(&self, beginning: Beginning) -> EpochHandle {
        let Beginning {
            start,
            state,
            is_followed,
            share,
            is_apart,
        } = beginning;
        self.options().batching.refuse_itself();
        let (stream, reached) = self.stream(start, state);
        if self.has_lost_threads() {
            return EpochHandle::without_session(start, share, reached, self.options().any_order);
        }
        let task_ready = Arc::new(Condvar::new());
        let meter = match is_apart {
            true => self.meters.apart(start.epoch),
            false => self.meters.add(start.epoch),
        };
        let announcer = self
            .announcing
            .as_ref()
            .map(|shared| Announcer::new(shared, share));
        let mut data = EpochData::new(start.epoch, &meter, None, None, stream);
        data.announced = announcer.as_ref().map(|announcer| announcer.append(start));
        let handle = {
            let mut state = self.lock();
            if state.active_workers.begin() && !planted("a session begins in silence") {
                self.shared.inactive.notify_all();
            }
            let is_wide = self.shared.is_wide.get().copied();
            let at_once = self.options[share.device].at_once;
            let session = state.add_session(share, Arc::clone(&task_ready), is_wide, at_once);
            let epoch_entry = state.append(session, data, true);
            EpochHandle {
                session,
                share,
                epoch_entry,
                start,
                meter,
                progress: Arc::new(Progress::new(start.given, self.options().any_order)),
                reached,
                task_ready,
                announcer,
                is_followed,
            }
        };
        if let Some(destination) = self.assumed_destination(handle.share.device) {
            self.decide(&handle, destination);
        }
        handle
    }

    /// The batches of a handle. Where threads were lost, one of them may be in the batch sampler for ever: then there is one batch, in
    /// whose place the error comes.
    pub(crate) fn partition(&self, handle: &EpochHandle) -> Partition {
        let options = &self.options[handle.share.device];
        match &options.batching {
            Batching::Listed(_) if self.has_lost_threads() => {
                Partition::not_resumed(FORKED.to_owned())
            }
            _ => options.partition(handle.start, handle.share),
        }
    }

    /// Appends an epoch that follows the handle's, whose partition has so many `batches`. `to`: its batches go to the device of this queue,
    /// that many ahead.
    pub(crate) fn append(
        &self,
        handle: &EpochHandle,
        batches: u64,
        epoch: u64,
        to: Option<(&Arc<DeviceQueue<B>>, usize)>,
    ) -> (EpochHandle, Option<Arc<DeviceQueue<B>>>) {
        let start = Start::of(epoch);
        let options = &self.options[handle.share.device];
        let meter = self.meters.add(epoch);
        let destination =
            to.map(|(before, depth)| options.destination(before.target().device(), depth));
        let is_dense = self.factory.hints().is_dense;
        let queue = to.map(|(before, _)| {
            let (target, before) = (before.target(), Some((before, batches)));
            DeviceQueue::new(target, start.given, options.any_order, is_dense, before)
        });
        let sends = queue
            .clone()
            .map(|queue| queue as Arc<dyn TransferQueue<B>>);
        let (stream, reached) = self.stream(start, None);
        let mut data = EpochData::new(epoch, &meter, destination, sends, stream);
        let announcer = handle.announcer.as_ref();
        data.announced = announcer.map(|announcer| announcer.append(start));
        let mut state = self.lock();
        let epoch_entry = state.append(handle.session, data, false);
        state.deferred.wake_workers = true; // short epochs may be planned at once
        let handle = EpochHandle {
            epoch_entry,
            start,
            meter,
            progress: Arc::new(Progress::new(start.given, options.any_order)),
            reached,
            ..handle.clone()
        };
        (handle, queue)
    }

    /// The stream of an epoch, not opened yet; and where it stands.
    #[expect(clippy::type_complexity, reason = "a pair of options")]
    fn stream(
        &self,
        start: Start,
        state: Option<Vec<u8>>,
    ) -> (Option<Box<dyn Pull<B>>>, Option<Arc<Mutex<Reached>>>) {
        if !self.options().is_stream {
            return (None, None);
        }
        let items = start.position / self.options().shards;
        let reached = Reached {
            items,
            state: state.clone(),
            ..Reached::default()
        };
        let stream = self.factory.stream(StreamStart {
            epoch: start.epoch,
            items,
            state,
        });
        (stream, Some(Arc::new(Mutex::new(reached))))
    }

    /// The consumer comes to an epoch that was appended. `false`: the one before has batches to come, and slabs for one epoch are not
    /// enough for both, so this one must begin a session of its own.
    pub(crate) fn come_to(&self, handle: &EpochHandle) -> bool {
        if self.has_lost_threads() {
            return true; // its first batch says so
        }
        // In case no worker found the time: while the epoch before is still there to be joined.
        self.plan_early(handle.session, handle.epoch_entry);
        let options = &self.options[handle.share.device];
        let most_tasks = options.most_tasks();
        let destination = {
            let mut state = self.lock();
            let Some((session, deferred)) = state.session(handle.session) else {
                return false;
            };
            deferred.wake_workers = true;
            let schedule = &mut session.schedule;
            if !schedule.come_to(handle.epoch_entry, deferred.removed()) {
                schedule.truncate(deferred.removed());
                return false;
            }
            let TaskId(first) = schedule.first();
            if first.checked_add(most_tasks).is_none() {
                // Task numbers would overflow. Those of a new session begin at 0.
                schedule.leave(handle.epoch_entry, deferred.removed());
                state.remove_if_over(handle.session);
                return false;
            }
            if schedule.is_planned(handle.epoch_entry) {
                return true;
            }
            let data = schedule.epoch(handle.epoch_entry);
            data.and_then(|data| data.destination)
        };
        // Its plan did not join the one before, which is used up now.
        if let Some(destination) =
            destination.or_else(|| self.assumed_destination(handle.share.device))
        {
            self.decide(handle, destination);
        }
        true
    }

    /// The consumer leaves its epoch. It waits for no thread: workers that are busy with a task find out when they report.
    pub(crate) fn leave(&self, handle: &EpochHandle) {
        if self.has_lost_threads() {
            return;
        }
        let following = {
            let mut state = self.lock();
            let session = state.session(handle.session);
            session.and_then(|(session, _)| {
                // If its stream has not ended, it ends here.
                session.schedule.close_end(handle.epoch_entry);
                session.schedule.id_after(handle.epoch_entry)
            })
        };
        // (What is dropped should not have to wait for a batch sampler.)
        let is_even = matches!(
            self.options[handle.share.device].batching,
            Batching::Even(_)
        );
        if let Some(following) = following.filter(|_| is_even) {
            // While this one is still there to be joined.
            self.plan_early(handle.session, following);
        }
        let mut state = self.lock();
        if let Some((session, deferred)) = state.session(handle.session) {
            session
                .schedule
                .leave(handle.epoch_entry, deferred.removed());
            deferred.wake_workers = true; // for the epochs that waited for this one
            deferred.tell_pin_thread(session.share.device);
            state.remove_if_over(handle.session);
        }
    }

    /// Gives up the epochs that were appended to the handle's session: the consumer will not come to them.
    pub(crate) fn truncate(&self, handle: &EpochHandle) {
        if self.has_lost_threads() {
            return;
        }
        let mut state = self.lock();
        if let Some((session, deferred)) = state.session(handle.session) {
            session.schedule.truncate(deferred.removed());
            deferred.tell_pin_thread(session.share.device);
            state.remove_if_over(handle.session);
        }
    }

    /// The program takes the batches on the host.
    pub(crate) fn keep_on_host(&self, handle: &EpochHandle) {
        self.decide(handle, Destination::Host);
    }

    /// The batches go to a device, `depth` ahead: those that are not open yet as their destination wants it, and also what is made, or was
    /// `taken` in advance. Returns the queue that they go through.
    pub(crate) fn send_to(
        &self,
        handle: &EpochHandle,
        target: &Target,
        depth: usize,
        taken: &mut Taken<B>,
    ) -> Arc<DeviceQueue<B>> {
        let options = &self.options[handle.share.device];
        let (given, is_dense) = (handle.progress.given(), self.factory.hints().is_dense);
        let queue = DeviceQueue::new(target, given, options.any_order, is_dense, None);
        if self.has_lost_threads() {
            return queue;
        }
        let (failed, end) = {
            let mut state = self.lock();
            let session = state.session(handle.session).map(|(session, _)| session);
            let sends = Arc::clone(&queue) as Arc<dyn TransferQueue<B>>;
            session.map(|session| {
                let failed = session.set_queue(handle.epoch_entry, sends, taken);
                (failed, session.schedule.tasks_of(handle.epoch_entry))
            })
        }
        .unzip();
        if let Some(batches) = end.flatten().filter(|_| options.is_stream) {
            queue.ends(batches); // its stream has ended already
        }
        for (batch, task) in failed.into_iter().flatten() {
            queue.give_up(batch, task);
        }
        let destination = options.destination(target.device(), depth);
        if destination.decodes() {
            self.factory.learned().is_decoded_by(&target.device().inner);
        }
        // Then, so that the first tasks find it.
        self.decide(handle, destination);
        queue
    }

    /// What to plan for before the program has said what batches are for. `None`: loading must wait for that, because a device could
    /// gather the samples itself, or batches would be cut into parts.
    fn assumed_destination(&self, device: usize) -> Option<Destination> {
        let options = &self.options[device];
        let matters = destination_matters(options, options.machine(), self.factory.hints());
        // Of several devices, it is not known which one gets them.
        (!matters && self.options.len() == 1).then_some(Destination::Host)
    }

    /// It is known what the batches are for: the epoch is planned, unless it has been. If it is loaded for the host, and turns out to go to
    /// a device, it keeps its plan, and only the number of its slabs changes.
    fn decide(&self, handle: &EpochHandle, destination: Destination) {
        if self.is_planned_for(handle, destination) {
            return;
        }
        let (options, hints) = (&self.options[handle.share.device], self.factory.hints());
        let (given, is_followed) = (handle.start.given, handle.is_followed);
        // (Where some batches were given out before, tasks are whole batches.)
        let machine = options.machine().filter(|_| given.has_no_gap());
        let partition = options.partition(handle.start, handle.share);
        let order = options.order(&partition);
        let plan = EpochPlan {
            given,
            ..plan(options, machine, hints, destination, partition, is_followed)
        };
        // First: a thread that asks for a slab must find that there may be some.
        let slabs = plan.slabs(self.shared.is_wide.get() == Some(&true));
        let within = self.shared.slab_sizes.within(plan.kind());
        let quota = options.pinning.as_ref();
        let quota = quota.map(|pinning| pinning.ring().open_quota(plan.kind(), slabs, within));
        let mut state = self.lock();
        let session = state.session(handle.session);
        let context = session.and_then(|(session, _)| {
            session.enter_plan(handle.epoch_entry, plan, order, quota.clone())
        });
        state.deferred.wake_workers = true;
        match context {
            Some(context) => self.begins(&context, handle.share),
            None => state.deferred.close_quota(quota),
        }
    }

    /// An epoch is planned, and no thread works on it yet.
    fn begins(&self, context: &EpochContext, shard: DeviceShard) {
        // (Of several devices that share the batches, one stands for all.)
        if shard.index == 0 {
            let first = context.place(context.tasks.first);
            self.factory.learned().share.begins(&first);
        }
    }

    /// Notes what the batches are for. `true`: the epoch has its plan, and nothing is left to decide.
    fn is_planned_for(&self, handle: &EpochHandle, destination: Destination) -> bool {
        let mut state = self.lock();
        let Some((session, deferred)) = state.session(handle.session) else {
            return true;
        };
        let Some(data) = session.schedule.epoch(handle.epoch_entry) else {
            return true;
        };
        data.destination = Some(destination);
        let Some(context) = &data.context else {
            return false;
        };
        if let Some(quota) = context
            .quota
            .clone()
            .filter(|_| !context.plan().is_in_parts())
        {
            let (options, depth) = (&self.options[handle.share.device], destination.depth());
            deferred.set_slabs(
                quota,
                options.slabs_for(
                    options.prefetch,
                    depth,
                    context.plan().partition.batches(),
                    handle.is_followed,
                ),
            );
            deferred.tell_pin_thread(session.share.device);
        }
        true
    }

    /// Plans an epoch that follows another before the consumer comes to it. If the plans join, both are loaded as if they were one.
    pub(crate) fn plan_early(&self, session: u64, epoch_entry: u64) {
        let (share, start, destination) = {
            let mut state = self.lock();
            let session = state.session(session).map(|(session, _)| session);
            let Some(session) = session.filter(|session| !session.schedule.is_planned(epoch_entry))
            else {
                return;
            };
            let schedule = &mut session.schedule;
            let Some(data) = schedule.epoch(epoch_entry) else {
                return;
            };
            // (No epoch but a session's first begins anywhere else than at its beginning.)
            let (start, own) = (Start::of(data.epoch), data.destination);
            // A program that took the last epoch on the host will do so again.
            let before = schedule.epoch_before(epoch_entry);
            let before = before.and_then(|before| before.destination);
            let destination = own.or(before.filter(|before| *before == Destination::Host));
            (session.share, start, destination)
        };
        let destination = destination.or_else(|| self.assumed_destination(share.device));
        let (options, hints) = (&self.options[share.device], self.factory.hints());
        let machine = options.machine();
        let plan = destination.map(|destination| {
            let partition = options.partition(start, share);
            let order = options.order(&partition);
            let plan = plan(options, machine, hints, destination, partition, true);
            (plan, order)
        });
        let mut state = self.lock();
        let Some((session, deferred)) = state.session(session) else {
            return;
        };
        let Some((plan, order)) = plan else {
            return session.schedule.plan_when_reached(epoch_entry);
        };
        let Some(before) = session.schedule.epoch_before(epoch_entry) else {
            return; // the consumer has come to it, and plans it
        };
        let quota = before.quota().map(SlabQuota::share);
        match session.enter_plan(epoch_entry, plan, order, quota.clone()) {
            Some(context) => self.begins(&context, share),
            None => return deferred.close_quota(quota),
        }
        if let Some(data) = session.schedule.epoch(epoch_entry) {
            data.destination = destination;
        }
        deferred.wake_workers = true;
    }
}
