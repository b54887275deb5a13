//! The schedule of a session: which task is opened, claimed, granted a slab, finished and delivered, and when.
//!
//! It is a plain state machine, without threads, clocks or devices. The threads that work on a session ask it, under the shared lock, what
//! to do next, and report what was done. `README.md` has the states of a task as a table.
//!
//! A *session* is what one consumer iterates: epochs that follow each other, as [entries](EpochEntry) of one sequence of tasks. So the
//! boundary of two epochs changes neither the window, nor the order in which slabs are granted and tasks delivered.

mod delivery;
mod entry;
mod epoch_entry;
mod runs;
mod slabs;

use std::collections::VecDeque;
use std::ops::Range;

pub(crate) use self::entry::{Claimed, Loaded, Next};
use self::entry::{SlabState, Stage, TaskEntry};
use self::epoch_entry::EpochEntry;
pub(crate) use self::epoch_entry::{EpochTasks, Removed};
pub(crate) use self::runs::RunSlab;
pub(crate) use self::slabs::Want;
use super::plan::delivered::MOST_BEHIND;
use super::plan::epoch_plan::{EpochPlan, Solo};
use crate::sync::planted;
use crate::tuning::{COPYING_BYTES_PER_10_NS, MOST_BATCHES_AHEAD, RUN_NS, RUN_NS_PER_DEVICE};

/// The number of a task within its session. Numbers run through all epochs and are never reused, so a late report finds nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TaskId(pub(crate) u64);

/// A session's tasks, from the first that was not delivered to the last that was opened. Entries and tasks have
/// payloads, of which the schedule knows nothing.
#[derive(Debug)]
pub(crate) struct Schedule<E, U> {
    /// The first is the one that the consumer is at, or will come to next.
    epoch_entries: VecDeque<EpochEntry<E>>,
    appended: u64,
    open: VecDeque<TaskEntry<U>>,
    /// The first open task, which the consumer gets next.
    first: TaskId,
    /// The consumer is blocked on the first open task.
    is_blocked: bool,
    /// How many tasks the consumer took in advance, and has not come to yet.
    taken: usize,
    /// How many of the open tasks were sent, or given out. They do not count in the window.
    open_away: usize,
    /// How long a sample takes, in nanoseconds, smoothed; 0 before the first.
    sample_ns: u64,
    /// The fewest samples that a worker claims at once, if there are as many.
    least_run: usize,
    /// The bytes of a sample, if tasks outgrow the last-level cache, or are cut so that they do not; 0 otherwise.
    streamed_bytes: u64,
    /// Loading takes much longer than copying, so slabs need not stay in the cache. `None`: not known yet.
    is_wide: Option<bool>,
    /// Tasks of some plan are pulled before rows of earlier ones are loaded.
    pulls_first: bool,
    /// Tasks are delivered in the order in which they are ready.
    any_order: bool,
    /// The bytes of the largest task whose slab was wanted: in whole pages, and what was wanted.
    largest_task: usize,
    task_bytes: usize,
    /// Tasks of some plan are page-locked, and may share slabs.
    shares_slabs: bool,
    /// How many runs there was no slab for, and the first task that may be in another one.
    runs_without: u32,
    runs_from: TaskId,
    /// Bytes are limited.
    is_bounded: bool,
}

/// Something to do for a worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Claim {
    /// Plan the epoch of this entry.
    Plan { epoch_entry: u64 },
    /// Load rows of the task, or fill its parked samples into theirs.
    Load { task: TaskId, claimed: Claimed },
    /// Make the task's batch: its rows are filled.
    Finish { task: TaskId },
    /// Make these tasks from end to end, and report each as it is done.
    Solo { tasks: Range<u64> },
    /// Grant the task a slab of so many bytes: there are few enough in flight.
    Grant { task: TaskId, bytes: usize },
    /// Pull the items of the task, which was opened for them, from its epoch's stream.
    Pull { task: TaskId },
}

/// The thread that asks for something to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Claimant {
    /// It is a worker beyond [`COPYING_WORKERS`](crate::tuning::COPYING_WORKERS).
    pub(crate) is_spare: bool,
    /// For how many devices workers load.
    pub(crate) devices: usize,
    /// It also works beyond the epoch that the consumer is at.
    pub(crate) beyond: bool,
    /// How many more bytes may be in flight, if they are limited.
    pub(crate) free_bytes: usize,
    /// How many more slabs the session may have, if some that are page-locked [may be shared](Schedule::shares_slabs).
    pub(crate) free_slabs: usize,
}

impl Claimant {
    /// The consumer, for the epoch that it is at: there are no workers, or none that could work.
    pub(crate) const CONSUMER: Claimant = Claimant {
        is_spare: false,
        devices: 1,
        beyond: false,
        free_bytes: usize::MAX,
        free_slabs: 0,
    };
}

impl<E, U> Schedule<E, U> {
    /// `is_wide`: what an earlier session found out.
    pub(crate) fn new(is_wide: Option<bool>, least_run: usize) -> Schedule<E, U> {
        Schedule {
            epoch_entries: VecDeque::new(),
            appended: 0,
            open: VecDeque::new(),
            first: TaskId(0),
            is_blocked: false,
            taken: 0,
            open_away: 0,
            sample_ns: 0,
            least_run,
            streamed_bytes: 0,
            is_wide,
            pulls_first: false,
            any_order: false,
            largest_task: 0,
            task_bytes: 0,
            shares_slabs: false,
            runs_without: 0,
            runs_from: TaskId(0),
            is_bounded: false,
        }
    }

    /// What a worker should do next, oldest task first. `open` makes the payload of a new task; its flag says whether one worker
    /// has the task to itself: it makes it alone, or pulls its items first.
    pub(crate) fn claim(
        &mut self,
        claimant: Claimant,
        mut open: impl FnMut(&E, TaskId, bool) -> U,
    ) -> Option<Claim> {
        if self.is_bounded
            && let Some((task, bytes)) = self.next_held(claimant)
        {
            self.entry(task).slab = SlabState::Granting { bytes };
            return Some(Claim::Grant { task, bytes });
        }
        let run = self.run(claimant);
        let may_load = self.may_load(claimant);
        let pulls = self.pulls_first && self.can_pull(claimant);
        let count = match may_load {
            true => self.open.len().min(self.reach(claimant)),
            false => 0,
        };
        for (index, entry) in self.open.iter_mut().take(count).enumerate() {
            let task = TaskId(self.first.0 + index as u64);
            if entry.can_finish() {
                entry.stage = Stage::Finishing;
                return Some(Claim::Finish { task });
            }
            if entry.has_parked() {
                let claimed = entry.claim_parked(run);
                return Some(Claim::Load { task, claimed });
            }
            if !pulls && entry.has_rows() {
                let claimed = entry.claim_rows(run);
                return Some(Claim::Load { task, claimed });
            }
        }
        if let Some(epoch_entry) = self.epoch_entry_to_plan().filter(|_| claimant.beyond) {
            epoch_entry.is_planning = true;
            return Some(Claim::Plan {
                epoch_entry: epoch_entry.id,
            });
        }
        let (index, tasks, solo) = self.opens(claimant).filter(|_| may_load)?;
        let task = self.end();
        let is_pulled = tasks.plan.pulls.is_some();
        let epoch_entry = &self.epoch_entries[index];
        let stage = match solo {
            _ if is_pulled => Stage::Pulling,
            0 => Stage::Loading,
            _ => Stage::Solo,
        };
        let opened = task.0..task.0 + solo.max(1);
        for task in opened.clone().map(TaskId) {
            let Some(tasks) = &epoch_entry.tasks else {
                unreachable!("tasks are opened of epochs that are planned");
            };
            let is_own = solo > 0 || is_pulled;
            let payload = open(&epoch_entry.payload, task, is_own);
            let rows = tasks.plan.partition.rows(tasks.number(task));
            let slabs = match solo {
                0 => tasks.plan.slabs_per_task,
                _ => 0, // they share one, for which `run_slab` asks
            };
            let bytes = self.expected_bytes(tasks, task);
            let mut entry = TaskEntry::new(rows, slabs, stage, payload);
            entry.bytes = bytes.unwrap_or(0);
            self.open.push_back(entry);
        }
        if is_pulled {
            return Some(Claim::Pull { task });
        }
        if solo > 0 {
            return Some(Claim::Solo { tasks: opened });
        }
        let claimed = self.entry(task).claim_rows(run);
        Some(Claim::Load { task, claimed })
    }

    /// Whether [`claim`](Schedule::claim) would return something.
    pub(crate) fn has_claim(&mut self, claimant: Claimant) -> bool {
        let mut entries = self.open.iter().take(self.reach(claimant));
        let has_work =
            |entry: &TaskEntry<U>| entry.can_finish() || entry.has_parked() || entry.has_rows();
        self.may_load(claimant) && (entries.any(has_work) || self.opens(claimant).is_some())
            || self.is_bounded && self.next_held(claimant).is_some()
            || claimant.beyond && self.epoch_entry_to_plan().is_some()
    }

    /// How many of the open tasks the claimant may work on.
    fn reach(&self, claimant: Claimant) -> usize {
        match claimant.beyond {
            true => usize::MAX,
            false => (self.consumers_end().0 - self.first.0) as usize,
        }
    }

    /// The entry of the tasks that the claimant opens, with its plan; and how many it makes from end to end, or 0: it claims rows of one.
    fn opens(&self, claimant: Claimant) -> Option<(usize, &EpochTasks, u64)> {
        let (index, tasks) = self.next_to_open(claimant)?;
        let run = match tasks.plan.solo {
            None => 0,
            Some(solo) if solo.is_pinned => self.pinned_run(tasks, solo, claimant)?,
            Some(solo) => self.solo_run(tasks, solo),
        };
        Some((index, tasks, run))
    }

    /// The entry whose task may be opened next, with its plan.
    fn next_to_open(&self, claimant: Claimant) -> Option<(usize, &EpochTasks)> {
        let next = self.end();
        if !claimant.beyond && next >= self.consumers_end() {
            return None;
        }
        let (index, tasks) = self.epoch_entry_of(next)?;
        let may_open = match tasks.plan.pulls {
            Some(_) => !self.is_pulling(),
            None => self.is_near(next, tasks),
        };
        let may_open = may_open && self.has_room_for(tasks, next);
        (self.room(&tasks.plan) > 0 && may_open).then_some((index, tasks))
    }

    /// Whether the claimant could pull the items of another task, before it loads those of earlier ones.
    fn can_pull(&self, claimant: Claimant) -> bool {
        let next = self.next_to_open(claimant);
        let pulls = next.and_then(|(_, tasks)| tasks.plan.pulls);
        pulls.is_some_and(|pulls| pulls.before_loading)
    }

    /// Whether the items of a task are being pulled. Tasks are pulled one at a time, in order.
    fn is_pulling(&self) -> bool {
        let last = self.open.back();
        last.is_some_and(|entry| entry.stage == Stage::Pulling)
    }

    /// Whether a task is at most `MOST_BEHIND` batches beyond the first: as far as is recorded which batches were given out. Only tasks of
    /// the consumer's epoch are given out before their turn, so those of later epochs are always near.
    fn is_near(&self, task: TaskId, tasks: &EpochTasks) -> bool {
        !self.any_order
            || self.first < tasks.first
            || tasks.number(task) - tasks.number(self.first) <= MOST_BEHIND
    }

    /// How many more tasks fit in the window.
    fn room(&self, plan: &EpochPlan) -> usize {
        self.window(plan).saturating_sub(self.ahead())
    }

    /// How many tasks are ahead of the consumer.
    fn ahead(&self) -> usize {
        self.open.len() - self.open_away + self.taken
    }

    /// The task that is opened next.
    fn end(&self) -> TaskId {
        TaskId(self.first.0 + self.open.len() as u64)
    }

    /// The open tasks, in order. (Of numbers up to the largest that there is.)
    fn numbered(&self) -> impl Iterator<Item = (TaskId, &TaskEntry<U>)> {
        let tasks = self.open.iter().enumerate();
        tasks.map(|(index, entry)| (TaskId(self.first.0 + index as u64), entry))
    }

    /// How many tasks may be ahead of the consumer.
    fn window(&self, plan: &EpochPlan) -> usize {
        match (plan.solo, plan.resident) {
            (Some(solo), _) if solo.grows => self.grown_window(plan, solo),
            (_, Some(resident)) if !self.is_wide() => plan.window.min(resident),
            _ => plan.window,
        }
    }

    #[inline(never)]
    fn grown_window(&self, plan: &EpochPlan, solo: Solo) -> usize {
        let Some(ns) = self.task_ns(plan) else {
            return plan.window;
        };
        let most = match solo.is_pinned {
            true => self.most_in_runs(plan, solo),
            false => MOST_BATCHES_AHEAD,
        };
        let fast = usize::try_from(4 * RUN_NS / ns.max(1)).unwrap_or(usize::MAX);
        // Tasks that are made by one worker each keep all workers busy: each makes one, and the next may begin.
        let fast = match solo.is_pinned && self.is_whole(plan, solo, ns) {
            true => fast.max(2 * solo.runs()),
            false => fast,
        };
        plan.window.max(fast.min(most))
    }

    /// How long a task takes, once that is known.
    fn task_ns(&self, plan: &EpochPlan) -> Option<u64> {
        let rows = plan.partition.usual_rows() as u64;
        (self.sample_ns > 0).then(|| self.sample_ns.saturating_mul(rows))
    }

    /// Whether the claimant may work on tasks: spare workers do not while loading is little more than copying.
    fn may_load(&self, claimant: Claimant) -> bool {
        !claimant.is_spare || !self.copies()
    }

    /// Whether loading is little more than copying, into slabs whose place in the cache matters.
    pub(crate) fn copies(&self) -> bool {
        let bytes = self.streamed_bytes.saturating_mul(10);
        bytes > COPYING_BYTES_PER_10_NS.saturating_mul(self.sample_ns)
    }

    /// Whether tasks take microseconds, so that one worker makes several of them: more workers would wait for the lock, and for each other.
    pub(crate) fn is_tiny(&self) -> bool {
        let mut planned = self.epoch_entries.iter();
        let tasks = planned.find_map(|epoch_entry| epoch_entry.tasks.as_ref());
        tasks.is_some_and(|tasks| {
            let ns = self.task_ns(&tasks.plan);
            tasks.plan.solo.is_some() && ns.is_some_and(|ns| ns <= RUN_NS / 2)
        })
    }

    /// How many tasks a worker claims to make from end to end; 0: it claims rows instead.
    fn solo_run(&self, tasks: &EpochTasks, solo: Solo) -> u64 {
        let plan = &tasks.plan;
        match (solo, self.task_ns(plan)) {
            // The caller's thread is the only one.
            (Solo { workers: 0, .. }, _) => 1,
            // Half a run at most, to leave something for the other workers.
            (solo, Some(ns)) if ns <= RUN_NS / 2 => {
                let share = (self.window(plan) / solo.runs()).max(1);
                let fast = usize::try_from(RUN_NS / ns.max(1)).unwrap_or(usize::MAX);
                // In any order, no task is to wait for a slow one that was claimed with it.
                let most = if self.any_order { 1 } else { usize::MAX };
                let left = tasks.end.0 - self.end().0;
                left.min(share.min(fast).min(self.room(plan)).min(most) as u64)
            }
            _ => 0,
        }
    }

    /// How many samples a worker claims at once.
    fn run(&self, claimant: Claimant) -> usize {
        let run_ns = match claimant.devices {
            1 => RUN_NS,
            devices => RUN_NS_PER_DEVICE.saturating_mul(devices as u64),
        };
        let run = match self.sample_ns {
            0 => 1,
            ns => usize::try_from(run_ns / ns).unwrap_or(usize::MAX),
        };
        // Whole calls of `get_many`.
        match self.least_run {
            1 => run.max(1),
            calls => (run / calls).max(1).saturating_mul(calls),
        }
    }

    /// Whether the task is open, and was not given out.
    pub(crate) fn holds(&self, task: TaskId) -> bool {
        let index = task.0.checked_sub(self.first.0);
        let entry = index.and_then(|index| self.open.get(index as usize));
        entry.is_some_and(|entry| entry.stage != Stage::Given)
    }

    fn entry(&mut self, task: TaskId) -> &mut TaskEntry<U> {
        &mut self.open[(task.0 - self.first.0) as usize]
    }

    /// The payload of an open task.
    pub(crate) fn payload(&mut self, task: TaskId) -> &mut U {
        match &mut self.entry(task).payload {
            Some(payload) => payload,
            None => unreachable!("who looks for a task asks first whether it is held"),
        }
    }

    /// A worker is done with what it claimed. `elapsed_ns`: how long rows took to load; `None` for parked samples, which were loaded
    /// before.
    pub(crate) fn loaded(&mut self, task: TaskId, rows: Loaded, elapsed_ns: Option<u64>) -> Next {
        if let Some(elapsed_ns) = elapsed_ns {
            self.learn(rows.claimed, elapsed_ns);
        }
        let entry = self.entry(task);
        entry.loaded(rows);
        entry.has_failed |= rows.filled + rows.parked < rows.claimed;
        entry.next_step()
    }

    fn learn(&mut self, rows: usize, elapsed_ns: u64) {
        let each = elapsed_ns / rows.max(1) as u64;
        self.sample_ns = match self.sample_ns {
            0 => each.max(1),
            smoothed => (smoothed * 7 + each).div_ceil(8).max(1),
        };
    }

    /// A task that one worker makes alone was made, or failed. `elapsed_ns`: how long it took, if that is known.
    pub(crate) fn made(&mut self, task: TaskId, elapsed_ns: Option<u64>) {
        self.took(task, elapsed_ns);
        self.ready(task);
    }

    /// One worker loaded all of a task's rows, in that time, if it is known.
    pub(crate) fn took(&mut self, task: TaskId, elapsed_ns: Option<u64>) {
        if let Some(elapsed_ns) = elapsed_ns {
            let rows = self.entry(task).rows;
            self.learn(rows, elapsed_ns);
        }
    }

    /// The items of a task were pulled, and others may load its `rows`.
    pub(crate) fn pulled(&mut self, task: TaskId, rows: usize) {
        let entry = self.entry(task);
        debug_assert_eq!(entry.stage, Stage::Pulling);
        entry.rows = rows;
        entry.stage = Stage::Loading;
    }

    /// The caller has laid out the task.
    pub(crate) fn laid_out(&mut self, task: TaskId) -> Next {
        let entry = self.entry(task);
        if entry.stage != Stage::LayingOut {
            // It failed meanwhile for lack of a slab: another thread delivers the error, or already has.
            return Next::Wait;
        }
        entry.stage = Stage::Loading;
        entry.next_step()
    }

    /// The task failed, and the caller makes it again, alone. The slab that it had is given up; it may have to move into another. If it was
    /// sent, it is ahead of the consumer again.
    pub(crate) fn remaking(&mut self, task: TaskId) {
        self.set_away(task, false);
        let entry = self.entry(task);
        entry.has_failed = planted("a unit that is made again stays failed");
        entry.stage = Stage::Finishing;
        entry.slab = SlabState::Unknown;
        entry.needs_slabs = entry.needs_slabs.max(1);
    }

    /// The task failed.
    pub(crate) fn failed(&mut self, task: TaskId) -> Next {
        let entry = self.entry(task);
        entry.has_failed = true;
        if entry.stage == Stage::LayingOut {
            entry.stage = Stage::Loading;
        }
        entry.next_step()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used)]
mod tests;
