//! A session: the schedule of what one consumer iterates, with what its epochs and open tasks carry.

use std::collections::VecDeque;
use std::ops::Range;

use super::data::{Delivered, EpochData, Made, Taken, TaskData};
use super::deferred::Deferred;
use crate::device::{ByteBudget, BytePermit, Reservation, SlabQuota};
use crate::error::Result;
use crate::pipeline::epoch::{EpochContext, EpochKey};
use crate::pipeline::plan::epoch_plan::EpochPlan;
use crate::pipeline::plan::partition::EpochOrder;
use crate::pipeline::plan::shard::DeviceShard;
use crate::pipeline::schedule::{Claim, Claimant, Claimed, RunSlab, Schedule, TaskId};
use crate::pipeline::traits::{
    Build, Changes, Each, Factory, Failed, MadeAlone, Pull, Rebuilder, SendWindow, TransferQueue,
};
use crate::sync::{Arc, AtomicBool, Condvar, planted};
use crate::tensor::Offload;

/// What one consumer iterates: an epoch, or several that follow each other.
pub(crate) struct Session<B> {
    pub(crate) key: u64,
    /// Which of this rank's batches it has, and for which device.
    pub(crate) share: DeviceShard,
    /// Its consumer sleeps here.
    pub(crate) task_ready: Arc<Condvar>,
    pub(crate) consumer: Consumer,
    pub(crate) schedule: Schedule<EpochData<B>, TaskData<B>>,
    /// The bytes in flight, if they are limited.
    pub(crate) byte_budget: Option<Arc<ByteBudget>>,
}

/// Where a session's consumer is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Consumer {
    /// With the program.
    Away,
    /// It asks for the next task, or sends it, and looks again before it sleeps.
    Asks,
    /// It sleeps until it is woken.
    Sleeps,
}

/// Something to do, with all that is needed to do it.
pub(crate) enum Job<B> {
    Plan {
        session: u64,
        epoch_entry: u64,
    },
    Load {
        context: Arc<EpochContext>,
        task: TaskId,
        claimed: Claimed,
        build: Arc<dyn Build<B>>,
    },
    Finish {
        context: Arc<EpochContext>,
        task: TaskId,
    },
    /// It was made, and is to be made again, without the device's help.
    Rebuild {
        context: Arc<EpochContext>,
        task: TaskId,
        /// What had become of its samples.
        changes: Changes,
        own: Option<Rebuilder<B>>,
    },
    Solo {
        context: Arc<EpochContext>,
        tasks: Range<u64>,
        /// They are page-locked: the slab for all of them.
        run: Option<Run>,
    },
    Grant {
        context: Arc<EpochContext>,
        task: TaskId,
        bytes: usize,
        build: Arc<dyn Build<B>>,
        permit: Option<Arc<BytePermit>>,
    },
    Pull {
        context: Arc<EpochContext>,
        task: TaskId,
        stream: Box<dyn Pull<B>>,
        offload: Offload,
    },
    /// What is made of an epoch is sent.
    Send {
        of: EpochKey,
        queue: Arc<dyn TransferQueue<B>>,
    },
}

/// Tasks that are sent together: one, or whole batches that follow each other.
pub(crate) struct Group<B> {
    pub(crate) context: Arc<EpochContext>,
    pub(crate) tasks: Each<B>,
}

/// What became of tasks that were sent, and that no decoder has.
pub(crate) struct Sent<B> {
    pub(crate) context: Arc<EpochContext>,
    pub(crate) outcomes: Each<Result<Made<B>>>,
}

impl<B> Sent<B> {
    /// Whether one of them could not be sent now.
    pub(crate) fn is_one_here(&self) -> bool {
        let mut outcomes = self.outcomes.iter();
        outcomes.any(|(_, outcome)| matches!(outcome, Ok(Made::Here(_))))
    }
}

/// A run of page-locked tasks.
pub(crate) struct Run {
    pub(crate) slab: RunSlab,
    /// `None`: the quota has no room for it.
    pub(crate) reservation: Option<Reservation>,
    pub(crate) offload: Offload,
}

impl<B: 'static> Session<B> {
    pub(crate) fn claim(&mut self, factory: &dyn Factory<B>, claimant: Claimant) -> Option<Job<B>> {
        let claimant = self.with_slabs(claimant);
        let open = |epoch: &EpochData<B>, task: TaskId, is_own: bool| {
            let Some(context) = &epoch.context else {
                unreachable!("tasks are opened of epochs that are planned");
            };
            let build =
                (!is_own).then(|| factory.open(context, context.place(task), epoch.offload()));
            TaskData::new(Arc::clone(context), build)
        };
        match self.schedule.claim(claimant, open)? {
            Claim::Plan { epoch_entry } => {
                let session = self.key;
                Some(Job::Plan {
                    session,
                    epoch_entry,
                })
            }
            Claim::Load { task, claimed } => {
                let build = self.data(task).build.clone()?;
                Some(Job::Load {
                    context: self.context(task),
                    task,
                    claimed,
                    build,
                })
            }
            Claim::Finish { task } => {
                let context = self.context(task);
                Some(Job::Finish { context, task })
            }
            Claim::Solo { tasks } => Some(self.solo(tasks)),
            Claim::Grant { task, bytes } => {
                let build = self.data(task).build.clone()?;
                // Here, under the lock: the next that looks finds it counted.
                let byte_budget = self.byte_budget.as_ref();
                let byte_budget = byte_budget.cloned();
                let context = self.context(task);
                let permit =
                    byte_budget.map(|byte_budget| byte_budget.permit(bytes, &context.meter));
                Some(Job::Grant {
                    context,
                    task,
                    bytes,
                    build,
                    permit,
                })
            }
            Claim::Pull { task } => {
                let context = self.context(task);
                let epoch = self.schedule.epoch(context.epoch_entry)?;
                let offload = epoch.offload();
                let Some(stream) = epoch.stream.take() else {
                    unreachable!(
                        "a task is opened for the worker that pulls next, and the stream is back"
                    );
                };
                Some(Job::Pull {
                    context,
                    task,
                    stream,
                    offload,
                })
            }
        }
    }

    /// Whether [`claim`](Session::claim) would return something.
    pub(crate) fn has_claim(&mut self, claimant: Claimant) -> bool {
        let claimant = self.with_slabs(claimant);
        self.schedule.has_claim(claimant)
    }

    /// Whether this claimant found nothing to do because there is nothing: other claimants would find nothing either, until the session is
    /// accessed again.
    pub(crate) fn has_nothing_for_any(&self, claimant: Claimant) -> bool {
        let is_for_others = claimant.is_spare && self.schedule.copies();
        !is_for_others && !self.schedule.holds_back()
    }

    /// How many slabs are left for runs, where tasks may share them.
    fn with_slabs(&mut self, claimant: Claimant) -> Claimant {
        if !self.schedule.shares_slabs() {
            return claimant;
        }
        let epoch = self.schedule.current();
        let epoch = epoch.and_then(|epoch_entry| self.schedule.epoch(epoch_entry)); // those that follow share its quota
        let context = epoch.and_then(|epoch| epoch.context.as_ref());
        let room = context.and_then(|context| {
            let quota = context.quota.as_ref()?;
            Some(quota.room(context.plan().more_slabs))
        });
        Claimant {
            free_slabs: room.unwrap_or(0),
            ..claimant
        }
    }

    /// Tasks that their worker makes from end to end: they were claimed so.
    pub(crate) fn solo(&mut self, tasks: Range<u64>) -> Job<B> {
        let first = TaskId(tasks.start);
        let context = self.context(first);
        let run = context.quota.as_ref().map(|quota| {
            let slab = self.schedule.run_slab(&tasks);
            let epoch = self.schedule.epoch(context.epoch_entry);
            Run {
                slab,
                reservation: quota.reserve(slab.uncounted, context.plan().more_slabs),
                offload: epoch.map_or(Offload::default(), |epoch| epoch.offload()),
            }
        });
        Job::Solo {
            context,
            tasks,
            run,
        }
    }

    /// Gives the caller a task to make again.
    pub(crate) fn rebuild(&mut self, task: TaskId) -> Job<B> {
        self.schedule.remaking(task);
        let data = self.data(task);
        Job::Rebuild {
            context: Arc::clone(&data.context),
            task,
            changes: data
                .changes
                .take()
                .map(|changes| *changes)
                .unwrap_or_default(),
            own: data.own.as_ref().map(|own| own.again()),
        }
    }

    pub(crate) fn data(&mut self, task: TaskId) -> &mut TaskData<B> {
        self.schedule.payload(task)
    }

    pub(crate) fn context(&mut self, task: TaskId) -> Arc<EpochContext> {
        Arc::clone(&self.data(task).context)
    }

    /// The first task that waits for a slab.
    pub(crate) fn first_waiting(&mut self) -> Option<(Arc<EpochContext>, TaskId)> {
        let task = self.schedule.next_want()?.task;
        Some((self.context(task), task))
    }

    /// Sets the plan of an epoch, if [`Schedule::enter_plan`] takes it. `quota`: a new one, or that of the epoch before.
    pub(crate) fn enter_plan(
        &mut self,
        epoch_entry: u64,
        plan: EpochPlan,
        order: EpochOrder,
        quota: Option<Arc<SlabQuota>>,
    ) -> Option<Arc<EpochContext>> {
        let tasks = self.schedule.enter_plan(epoch_entry, plan)?;
        let data = self.schedule.epoch(epoch_entry)?;
        let announced = data.announced.as_ref().map(|ends| Arc::clone(&ends.0));
        let context = Arc::new(EpochContext {
            session: self.key,
            epoch_entry,
            device: self.share.device,
            epoch: data.epoch,
            tasks,
            order,
            short_id: announced
                .as_ref()
                .map_or(0, |announced| announced.short_id()),
            announced,
            meter: Arc::clone(&data.meter),
            quota,
            has_left: AtomicBool::new(false),
        });
        data.context = Some(Arc::clone(&context));
        Some(context)
    }

    /// Gives the consumer the next tasks that are ready: returns the first, and adds the others to `taken`.
    pub(crate) fn deliver(
        &mut self,
        taken: &mut VecDeque<Delivered<B>>,
        deferred: &mut Deferred<B>,
    ) -> Option<Delivered<B>> {
        self.schedule.used_up();
        // What the program gets on the host is not in flight any more.
        let ends = self.byte_budget.is_some() && !self.is_sent_ahead();
        if self.schedule.is_any_order() {
            let next = self.deliver_any(taken, ends, deferred);
            if ends && next.is_some() {
                self.tell_if_waiting(deferred);
            }
            return next;
        }
        let count = self.schedule.deliverable();
        if count == 0 {
            return None;
        }
        let first = self.schedule.first();
        let slots = self.schedule.deliver(count).enumerate();
        let mut delivered = slots.filter_map(|(index, data)| {
            let task = TaskId(first.0 + index as u64);
            if let Some(announced) = &data.context.announced {
                announced.settle(&data.context.place(task));
                deferred.settled(announced);
            }
            data.deliver(task, ends)
        });
        let next = delivered.next();
        taken.extend(delivered);
        if ends {
            self.tell_if_waiting(deferred);
        }
        deferred.found_wide = self.schedule.find_out_if_wide();
        if deferred.found_wide == Some(true)
            && let Some(context) = next.as_ref().map(|next| &next.context)
            && let Some(quota) = &context.quota
        {
            deferred.set_slabs(Arc::clone(quota), context.plan().slabs(true));
            deferred.tell_pin_thread(self.share.device);
        }
        next
    }

    /// As [`deliver`](Session::deliver), for tasks in any order.
    fn deliver_any(
        &mut self,
        taken: &mut VecDeque<Delivered<B>>,
        ends: bool,
        deferred: &mut Deferred<B>,
    ) -> Option<Delivered<B>> {
        let slots = self.schedule.deliver_any().into_iter();
        let mut delivered = slots.filter_map(|(task, data)| data.deliver(task, ends));
        let next = delivered.next();
        taken.extend(delivered);
        if let Some(context) = next.as_ref().map(|next| Arc::clone(&next.context))
            && let Some(announced) = &context.announced
        {
            // The oldest that was not taken may be of the next epoch.
            let first = self.schedule.first();
            announced.settle_before(match first < context.tasks.end {
                true => context.batch(first),
                false => u64::MAX,
            });
            deferred.settled(announced);
        }
        next
    }

    /// Whether the consumer's epoch goes to a device.
    fn is_sent_ahead(&mut self) -> bool {
        let epoch_entry = self.schedule.current();
        epoch_entry.is_some_and(|epoch_entry| self.queue(epoch_entry).is_some())
    }

    /// Takes what a thread sends next of an epoch, if anything may be sent: its first task that is made, and those that follow it, if they
    /// may go together. `pageable`: even if the first is not page-locked.
    pub(crate) fn take_made(
        &mut self,
        epoch_entry: u64,
        window: SendWindow,
        pageable: bool,
    ) -> Option<Group<B>> {
        let may_go = |&(task, data): &(TaskId, &TaskData<B>)| {
            data.context.epoch_entry == epoch_entry
                && (pageable || !data.is_pageable())
                && (data.context.batch(task) < window.allowed
                    || planted("batches are sent beyond depth"))
        };
        let (first, data) = self.schedule.made_tasks().find(may_go)?;
        let batch = data.context.batch(first);
        let count = self.goes_with(first, window);
        window
            .lets(batch, count)
            .then(|| self.take_group(first, count))
    }

    /// Whether a thread that does not wait would find something to send of an epoch: the first that may be sent is page-locked.
    pub(crate) fn may_send(&self, epoch_entry: u64, window: SendWindow) -> bool {
        let mut made = self.schedule.made_tasks();
        let may_go = |(task, data): &(TaskId, &TaskData<B>)| {
            data.context.epoch_entry == epoch_entry && data.context.batch(*task) < window.allowed
        };
        made.find(may_go)
            .is_some_and(|(_, data)| !data.is_pageable())
    }

    /// Takes the task that the consumer waits for, if it is made, to send it; and those that follow it, if they may go with it.
    pub(crate) fn take_next_made(&mut self, window: SendWindow) -> Option<Group<B>> {
        let first = self.schedule.next_to_send()?;
        let count = self.goes_with(first, window);
        Some(self.take_group(first, count))
    }

    /// How many tasks from this one on go together.
    fn goes_with(&self, first: TaskId, window: SendWindow) -> usize {
        let mut made = self
            .schedule
            .made_tasks()
            .skip_while(|(task, _)| *task < first);
        let Some((_, data)) = made.next() else {
            return 1;
        };
        let context = &data.context;
        if context.is_sent_alone(first) {
            return 1;
        }
        let goes_too = |((task, data), next): &((TaskId, &TaskData<B>), u64)| {
            task.0 == *next
                && data.context.epoch_entry == context.epoch_entry
                && !data.is_unpinned
                && context.batch(*task) < window.allowed
                && !context.is_sent_alone(*task)
        };
        let others = made
            .zip(first.0 + 1..)
            .take(window.together.saturating_sub(1));
        1 + others.take_while(goes_too).count()
    }

    fn take_group(&mut self, first: TaskId, count: usize) -> Group<B> {
        let context = self.context(first);
        let tasks = (first.0..first.0 + count as u64).map(TaskId).map(|task| {
            let Some(Ok(Made::Here(made))) = self.data(task).outcome.take() else {
                unreachable!("a task that is made is here until it is sent");
            };
            if !planted("a task can be taken while it is sent") {
                self.schedule.sending(task);
            }
            (task, made)
        });
        Group {
            tasks: tasks.collect(),
            context,
        }
    }

    /// Sets the queue of an epoch: what is made of it is to be sent, also what the consumer took in advance. Returns the tasks that failed
    /// already, with their batches.
    pub(crate) fn set_queue(
        &mut self,
        epoch_entry: u64,
        queue: Arc<dyn TransferQueue<B>>,
        taken: &mut Taken<B>,
    ) -> Vec<(u64, TaskId)> {
        let Some(data) = self.schedule.epoch(epoch_entry) else {
            return Vec::new();
        };
        data.queue = Some(queue);
        while let Some(next) = taken.pop_back() {
            self.schedule.put_back(next.task, TaskData::put_back(next));
        }
        let own = |&(_, data): &(TaskId, &TaskData<B>)| data.context.epoch_entry == epoch_entry;
        let ready = self.schedule.ready_tasks().filter(own);
        let (failed, made): (Vec<_>, Vec<_>) = ready
            .map(|(task, data)| (data.context.batch(task), task, &data.outcome))
            .partition(|(.., outcome)| matches!(outcome, Some(Err(_))));
        let failed = failed
            .into_iter()
            .map(|(batch, task, _)| (batch, task))
            .collect();
        let made: Vec<TaskId> = made.into_iter().map(|(_, task, _)| task).collect();
        made.into_iter()
            .for_each(|task| self.schedule.made_to_send(task));
        failed
    }

    /// The queue of an epoch, if it goes to a device.
    pub(crate) fn queue(&mut self, epoch_entry: u64) -> Option<Arc<dyn TransferQueue<B>>> {
        self.schedule.epoch(epoch_entry)?.queue.clone()
    }

    /// The queue of the epoch after this one, if it goes to a device.
    pub(crate) fn queue_after(
        &mut self,
        epoch_entry: u64,
    ) -> Option<(u64, Arc<dyn TransferQueue<B>>)> {
        let following = self.schedule.id_after(epoch_entry)?;
        Some((following, self.queue(following)?))
    }

    /// Whether a task goes to a device.
    fn is_for_device(&mut self, task: TaskId) -> bool {
        let epoch_entry = self.data(task).context.epoch_entry;
        let epoch = self.schedule.epoch(epoch_entry);
        epoch.is_some_and(|epoch| epoch.queue.is_some())
    }

    /// Reports a task that was made from end to end, or its error. The consumer sends it, if it goes to a device.
    pub(crate) fn made(&mut self, task: TaskId, alone: MadeAlone<B>, deferred: &mut Deferred<B>) {
        self.schedule.made(task, alone.elapsed_ns());
        if alone.made.is_ok() && self.is_for_device(task) {
            self.schedule.made_to_send(task);
        }
        let data = self.data(task);
        data.outcome = Some(alone.made.map(Made::Here));
        if !alone.changes.is_empty() {
            data.changes = Some(Box::new(alone.changes));
        }
        self.tell_consumer(task, deferred);
    }

    /// The same for a page-locked task of a run, if it need not move. Returns whether the caller may send it, if it goes to a device.
    ///
    /// A consumer that asks sends it itself, with what others have made meanwhile: the driver serves one thread at a time, and its calls take
    /// longest where several threads make them. (Not while it waits for a decoder, for then it does not come to what is behind.)
    pub(crate) fn made_of_run(
        &mut self,
        task: TaskId,
        alone: MadeAlone<B>,
        deferred: &mut Deferred<B>,
    ) -> bool {
        // (The first has the run's reserve until now, although the run has its slab.)
        let was_reserved = self.schedule.reserve_of(task) > 0;
        self.made(task, alone, deferred);
        if was_reserved {
            self.tell_if_waiting(deferred);
        }
        (self.consumer == Consumer::Away || self.schedule.is_next_decoded())
            && !planted("a worker leaves what it made to a consumer that is away")
    }

    /// Notes a failure. Of several, the first row's is delivered.
    pub(crate) fn note_failure(
        &mut self,
        task: TaskId,
        failure: Failed,
        deferred: &mut Deferred<B>,
    ) {
        let data = self.data(task);
        match &mut data.failure {
            Some(first) if first.row <= failure.row => deferred.drop_later(failure),
            Some(first) => deferred.drop_later(std::mem::replace(first, failure)),
            none => *none = Some(failure),
        }
    }

    /// Makes a task or its error ready, or, if it goes to a device, to be sent; and wakes the consumer if it waits for that.
    pub(crate) fn publish(
        &mut self,
        task: TaskId,
        outcome: Result<Made<B>>,
        deferred: &mut Deferred<B>,
    ) {
        self.settle(task, outcome, deferred);
        self.tell_consumer(task, deferred);
    }

    /// The same, but if the task is to be sent, the caller gets it and its queue, to send it.
    pub(crate) fn hand_over(
        &mut self,
        task: TaskId,
        made: B,
        deferred: &mut Deferred<B>,
    ) -> Option<(Arc<dyn TransferQueue<B>>, Group<B>)> {
        self.settle(task, Ok(Made::Here(made)), deferred);
        if !self.schedule.is_made(task) {
            self.tell_consumer(task, deferred);
            return None;
        }
        let epoch_entry = self.data(task).context.epoch_entry;
        let queue = self.queue(epoch_entry)?;
        Some((queue, self.take_group(task, 1)))
    }

    /// The first outcome counts.
    fn settle(&mut self, task: TaskId, outcome: Result<Made<B>>, deferred: &mut Deferred<B>) {
        if self.schedule.is_settled(task) {
            return deferred.drop_later(outcome);
        }
        let (is_sent, is_failed) = (matches!(outcome, Ok(Made::Sent)), outcome.is_err());
        let data = self.data(task);
        if let Some(outcome) = data.outcome.replace(outcome) {
            deferred.drop_later(outcome);
        }
        if let Some(build) = data.build.take() {
            deferred.drop_later(build);
        }
        if let Some(failure) = data.failure.take() {
            deferred.drop_later(failure);
        }
        if is_sent {
            data.was_sent();
        }
        // (A task that failed gave its reserve up when it failed, without telling the pin thread.)
        let was_reserved = self.schedule.reserve_of(task) > 0 || is_failed;
        if is_sent {
            self.schedule.sent(task);
        } else if !is_failed && self.is_for_device(task) {
            self.schedule.made_to_send(task);
        } else {
            self.schedule.ready(task);
        }
        // It is out of the window, so other tasks can be opened.
        deferred.wake_workers |= is_sent && !planted("a task that was sent wakes no worker");
        // The slabs that were left for it are free for others.
        if was_reserved && !planted("a reserve is given up in silence") {
            self.tell_if_waiting(deferred);
        }
    }

    /// Tells the pin thread to look again, if a task waits for its slab.
    pub(crate) fn tell_if_waiting(&self, deferred: &mut Deferred<B>) {
        if self.schedule.waits_for_slab() {
            deferred.tell_pin_thread(self.share.device);
        }
    }

    /// Wakes the consumer, if it sleeps until this task is ready.
    pub(crate) fn tell_consumer(&mut self, task: TaskId, deferred: &mut Deferred<B>) {
        if self.schedule.is_next(task) && !planted("the consumer is not told") {
            self.wake_consumer(deferred);
        }
    }

    /// Wakes the consumer, if it sleeps.
    pub(crate) fn wake_consumer(&mut self, deferred: &mut Deferred<B>) {
        if self.consumer == Consumer::Sleeps {
            self.consumer = Consumer::Asks;
            deferred.tell_consumer(&self.task_ready);
        }
    }
}
