//! The shared state: all sessions of a loader, under one lock.

use std::collections::VecDeque;

use super::data::EpochData;
use super::deferred::Deferred;
use super::session::{Consumer, Job, Session};
use super::sessions::Sessions;
use super::sizing::{ActiveWorkers, WorkerSizing};
use super::workers::{Assignment, WorkerSlot};
use crate::device::ByteBudget;
use crate::pipeline::epoch::{EpochContext, EpochKey};
use crate::pipeline::plan::shard::DeviceShard;
use crate::pipeline::schedule::{Claimant, Schedule, TaskId};
use crate::pipeline::traits::{EpochHandle, Factory, SendWindow};
use crate::pipeline::worker_status::WorkerStatus;
use crate::sync::{Arc, Condvar, planted};
use crate::tuning::{COPYING_WORKERS, TINY_WORKERS};

/// Which sleeping workers are woken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wake {
    /// One of a group.
    One(usize),
    /// All that were off duty: each finds out itself whether it is on duty now.
    Inactive,
}

/// All sessions of a loader.
pub(crate) struct State<B> {
    pub(crate) sessions: Sessions<B>,
    /// How many workers sleep, in each group of [`COPYING_WORKERS`].
    pub(crate) idle: Vec<usize>,
    /// How many workers sleep that are off duty.
    pub(crate) idle_inactive: usize,
    pub(crate) active_workers: ActiveWorkers,
    /// One for each worker.
    pub(crate) slots: Vec<WorkerSlot>,
    /// Tasks, with their session, that were opened and that no thread works on any more. They are claimed before all else.
    pub(crate) requeued: VecDeque<(u64, Requeued)>,
    /// The bytes in flight, if they are limited.
    byte_budget: Option<Arc<ByteBudget>>,
    /// The loader is being dropped, and threads end.
    pub(crate) is_closed: bool,
    /// How a thread of the library panicked outside of the program's code. What it was to do will never be done.
    broken: Option<String>,
}

/// Tasks that no thread works on, or not any more.
pub(crate) enum Requeued {
    /// Their worker had claimed them to make them from end to end, and was given up.
    OfRun(std::ops::Range<u64>),
    /// It was sent, and the device could not decode all of it: it is made again, without the device.
    NotDecoded(TaskId),
    /// What is made of this epoch, and may be sent: its consumer has left it to a worker.
    Made(u64),
}

impl<B: 'static> State<B> {
    pub(crate) fn new(
        groups: usize,
        byte_budget: Option<Arc<ByteBudget>>,
        active_workers: ActiveWorkers,
    ) -> State<B> {
        State {
            sessions: Sessions::new(),
            idle: vec![0; groups],
            idle_inactive: 0,
            active_workers,
            slots: Vec::new(),
            requeued: VecDeque::new(),
            byte_budget,
            is_closed: false,
            broken: None,
        }
    }

    /// A thread panicked: consumers hear of it.
    pub(crate) fn breaks(&mut self, how: String) {
        self.broken.get_or_insert(how);
        for session in self.sessions.iter() {
            session.task_ready.notify_all();
        }
    }

    /// # Panics
    ///
    /// If a thread of the library has panicked whose work consumers would wait for.
    pub(crate) fn check(&self) {
        if let Some(how) = &self.broken {
            panic!(
                "a thread of the loader panicked, which is a defect of pinfeed, and not of the program: {how}"
            );
        }
    }

    /// Adds a session without epochs; returns its key.
    pub(crate) fn add_session(
        &mut self,
        share: DeviceShard,
        task_ready: Arc<Condvar>,
        is_wide: Option<bool>,
        least_run: usize,
    ) -> u64 {
        let byte_budget = self.byte_budget.clone();
        self.sessions.add(|key| Session {
            key,
            share,
            task_ready,
            consumer: Consumer::Away,
            schedule: Schedule::new(is_wide, least_run),
            byte_budget,
        })
    }

    /// Removes a session that has no epochs left.
    pub(crate) fn remove_if_over(&mut self, key: u64) {
        if self
            .session(key)
            .is_some_and(|session| session.schedule.is_over())
        {
            self.sessions.remove(key);
            self.requeued.retain(|(session, _)| *session != key);
        }
    }

    /// Removes all sessions.
    pub(crate) fn clear(&mut self, deferred: &mut Deferred<B>) {
        for session in self.sessions.iter_mut() {
            // (Only epochs that were leaked by `mem::forget` are left: others hold the loader.)
            session.schedule.clear(deferred.removed());
        }
        self.sessions.clear();
    }

    pub(crate) fn session(&mut self, key: u64) -> Option<&mut Session<B>> {
        self.sessions.get(key)
    }

    /// The context of an open task; `None` if the task is gone, and not wanted any more.
    pub(crate) fn context_of(&mut self, session: u64, task: TaskId) -> Option<Arc<EpochContext>> {
        let session = self.session(session)?;
        let is_open = session.schedule.holds(task);
        is_open.then(|| session.context(task))
    }

    /// Appends an epoch to a session; returns the id of its entry. `is_reached`: the consumer is there already.
    pub(crate) fn append(&mut self, session: u64, epoch: EpochData<B>, is_reached: bool) -> u64 {
        match self.session(session) {
            Some(session) => session.schedule.append(epoch, is_reached),
            None => unreachable!("a session is there as long as one of its handles is"),
        }
    }

    /// Notes what the worker of this status has to report on, in case another thread must do so in its place.
    pub(crate) fn takes_on(&mut self, status: &WorkerStatus, assignment: Option<Assignment>) {
        // (The consumer's own status has no worker slot.)
        if let Some(slot) = self.slots.get_mut(status.number()) {
            slot.assignment = assignment;
        }
    }

    /// Tasks that were claimed, and that no thread makes any more. `of`: only those of this session, for its consumer, which does not do
    /// what the consumer of another session waits for.
    pub(crate) fn claim_requeued(&mut self, of: Option<u64>) -> Option<Job<B>> {
        loop {
            let is_own = |(session, _): &(u64, Requeued)| of.is_none_or(|of| of == *session);
            let own = self.requeued.iter().position(is_own)?;
            let (session, requeued) = self.requeued.remove(own)?;
            // Their epoch may have been left, and what was sent may have failed otherwise.
            let Some(session) = self.session(session) else {
                continue;
            };
            let schedule = &mut session.schedule;
            match requeued {
                Requeued::OfRun(tasks) if schedule.holds(TaskId(tasks.start)) => {
                    return Some(session.solo(tasks));
                }
                Requeued::NotDecoded(task)
                    if schedule.holds(task) && schedule.is_being_sent(task) =>
                {
                    return Some(session.rebuild(task));
                }
                Requeued::Made(epoch_entry) => {
                    let of = EpochKey {
                        session: session.key,
                        epoch_entry,
                    };
                    if let Some(queue) = session.queue(epoch_entry)
                        && !planted("what is left to a worker is sent by none")
                    {
                        return Some(Job::Send { of, queue });
                    }
                }
                _ => {}
            }
        }
    }

    /// Leaves to a worker what may be sent of an epoch, if one sleeps. The caller wakes it
    /// ([`wake_workers`](crate::pipeline::shared::deferred::Deferred::wake_workers)).
    pub(crate) fn leave_made(&mut self, of: EpochKey, window: SendWindow) -> bool {
        let one_sleeps = self.idle.iter().any(|idle| *idle > 0);
        let session = self.session(of.session).filter(|_| one_sleeps);
        let is_made = session.is_some_and(|session| session.may_send(of.epoch_entry, window));
        if is_made {
            let left = (of.session, Requeued::Made(of.epoch_entry));
            let is_left = self.requeued.iter().any(|(session, requeued)| {
                *session == of.session && matches!(requeued, Requeued::Made(_))
            });
            (!is_left).then(|| self.requeued.push_back(left));
        }
        is_made
    }

    /// The group of workers that this one belongs to. The last group has all that are left.
    pub(crate) fn group(&self, worker: usize) -> usize {
        (worker / COPYING_WORKERS).min(self.idle.len() - 1)
    }

    /// For how many devices there are sessions.
    fn devices(&self) -> usize {
        match self.idle.len() {
            ..=2 => 1, // the loader knows of no other
            _ => self.sessions.devices().max(1),
        }
    }

    /// A worker of a group. One group copies as fast as the link of one device; the others work only where loading is more than copying.
    fn claimant(&self, group: usize, beyond: bool) -> Claimant {
        let devices = self.devices();
        Claimant {
            is_spare: group >= devices,
            beyond,
            devices,
            free_bytes: self.free_bytes(),
            free_slabs: 0, // each session knows its own
        }
    }

    /// Finds something to do for a worker of a group, first for sessions whose consumer is blocked. Work beyond the epoch that a consumer
    /// is at comes last.
    pub(crate) fn claim(&mut self, factory: &dyn Factory<B>, group: usize) -> Option<Job<B>> {
        if !self.requeued.is_empty()
            && let Some(job) = self.claim_requeued(None)
        {
            return Some(job);
        }
        let claimant = self.claimant(group, false);
        self.sessions.claim(factory, claimant)
    }

    /// How many more bytes may be in flight.
    fn free_bytes(&self) -> usize {
        let limited = self.byte_budget.as_ref();
        limited.map_or(usize::MAX, |byte_budget| byte_budget.free())
    }

    pub(crate) fn has_claim(&mut self, group: usize) -> bool {
        !self.requeued.is_empty() || self.has_tasks(group)
    }

    /// Whether there is a task to work on. (What is made and was left to a worker is sent by the consumer, if it blocks.)
    fn has_tasks(&mut self, group: usize) -> bool {
        let claimant = self.claimant(group, true);
        let is_task = |(_, requeued): &(u64, Requeued)| !matches!(requeued, Requeued::Made(_));
        self.requeued.iter().any(is_task) || self.sessions.has_claim(claimant)
    }

    /// The consumer gets a batch of its epoch, which may show how many workers are needed.
    pub(crate) fn watch(&mut self, handle: &EpochHandle) {
        let only = self.sessions.only();
        self.active_workers.serves(only.is_some());
        if let Some(session) = only {
            let given = handle.progress.count();
            let epoch = (handle.session, handle.epoch_entry);
            let most = || match &session.schedule {
                schedule if schedule.copies() => Some((COPYING_WORKERS, WorkerSizing::Copying)),
                schedule if schedule.is_tiny() => Some((TINY_WORKERS, WorkerSizing::Tiny)),
                _ => None,
            };
            self.active_workers.watch(epoch, given, &handle.meter, most);
        } // several consumers together need more than each of them shows
    }

    /// Which sleeping workers have something to do. One is woken, and wakes the next when it has found work.
    pub(crate) fn worker_to_wake(&mut self) -> Option<Wake> {
        let mut groups = 0..self.idle.len();
        let group = groups.find(|&group| self.idle[group] > 0 && self.has_claim(group));
        let inactive = || self.needs_more().then_some(Wake::Inactive);
        group.map(Wake::One).or_else(inactive)
    }

    /// Whether workers that were off duty are on duty from now on: a consumer waits, and no worker on duty is free to do what there is to
    /// do.
    fn needs_more(&mut self) -> bool {
        let (active, _) = self.active_workers.now();
        let is_enough = |session: &Session<B>| active >= TINY_WORKERS && session.schedule.is_tiny();
        // (If workers that were called have not come yet, they will do it.)
        (1..=self.active_workers.off()).contains(&self.idle_inactive)
            && self.sessions.blocked().any(|session| !is_enough(session))
            && self.has_tasks(self.group(active))
            && !planted("no worker goes on duty again")
            && self.active_workers.grow()
    }
}
