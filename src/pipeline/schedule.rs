//! The schedule of a session: which task is opened, claimed, granted a slab, finished and delivered, and when.
//!
//! It is a plain state machine, without threads, clocks or devices. The threads that work on a session ask it, under the shared lock, what
//! to do next, and report what was done. `schedule/README.md` has the states of a task as a table.
//!
//! A *session* is what one consumer iterates: epochs that follow each other, as [entries](EpochEntry) of one sequence of tasks. So the
//! boundary of two epochs changes neither the window, nor the order in which slabs are granted and tasks delivered.

mod delivery;
mod entry;
mod epoch_entry;
mod pace;
mod runs;
mod slabs;
mod tasks;
mod window;

use std::collections::VecDeque;
use std::ops::Range;

pub(crate) use self::entry::{Claimed, Loaded, Next, TaskId};
use self::entry::{SlabState, Stage, TaskEntry};
use self::epoch_entry::EpochEntry;
pub(crate) use self::epoch_entry::{EpochTasks, Removed};
use self::pace::Pace;
pub(crate) use self::runs::RunSlab;
pub(crate) use self::slabs::Want;
use self::tasks::Tasks;
use self::window::{Opens, Window};
use super::plan::delivered::MOST_BEHIND;
use super::plan::epoch_plan::EpochPlan;
use crate::sync::planted;

/// The epochs of a session, and its open tasks. Both have payloads, of which the schedule knows nothing.
#[derive(Debug)]
pub(crate) struct Schedule<E, U> {
    /// The first is the one that the consumer is at, or will come to next.
    epochs: VecDeque<EpochEntry<E>>,
    appended: u64,
    tasks: Tasks<U>,
    pace: Pace,
    mode: Mode,
}

/// What some plan of the session asks for.
#[derive(Debug, Default)]
struct Mode {
    /// Tasks are pulled before rows of earlier ones are loaded.
    pulls_first: bool,
    /// Tasks are delivered in the order in which they are ready.
    any_order: bool,
    /// Tasks are page-locked, and may share slabs.
    shares_slabs: bool,
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
            epochs: VecDeque::new(),
            appended: 0,
            tasks: Tasks::new(),
            pace: Pace::new(is_wide, least_run),
            mode: Mode::default(),
        }
    }

    /// What a worker should do next, oldest task first. `open` makes the payload of a new task; its flag says whether one worker
    /// has the task to itself: it makes it alone, or pulls its items first.
    pub(crate) fn claim(
        &mut self,
        claimant: Claimant,
        mut open: impl FnMut(&E, TaskId, bool) -> U,
    ) -> Option<Claim> {
        if self.mode.is_bounded
            && let Some((task, bytes)) = self.next_held(claimant)
        {
            self.tasks.entry(task).slab = SlabState::Granting { bytes };
            return Some(Claim::Grant { task, bytes });
        }
        let may_load = self.may_load(claimant);
        let pulls = self.mode.pulls_first && self.can_pull(claimant);
        let count = match may_load {
            true => self.tasks.open.len().min(self.reach(claimant)),
            false => 0,
        };
        for (index, entry) in self.tasks.open.iter_mut().take(count).enumerate() {
            let task = TaskId(self.tasks.first.0 + index as u64);
            if entry.can_finish() {
                entry.stage = Stage::Finishing;
                return Some(Claim::Finish { task });
            }
            if entry.has_parked() {
                let claimed = entry.claim_parked(self.pace.rows(claimant.devices));
                return Some(Claim::Load { task, claimed });
            }
            if !pulls && entry.has_rows() {
                let claimed = entry.claim_rows(self.pace.rows(claimant.devices));
                return Some(Claim::Load { task, claimed });
            }
        }
        if claimant.beyond
            && let Some(epoch_entry) = self.epoch_entry_to_plan()
        {
            epoch_entry.is_planning = true;
            return Some(Claim::Plan {
                epoch_entry: epoch_entry.id,
            });
        }
        let (index, tasks, opens) = self.opens(claimant).filter(|_| may_load)?;
        let task = self.tasks.end();
        let is_pulled = tasks.plan.pulls.is_some();
        let epoch_entry = &self.epochs[index];
        let (stage, count) = match opens {
            _ if is_pulled => (Stage::Pulling, 1),
            Opens::Run(count) => (Stage::Solo, count),
            Opens::Shared | Opens::Nothing => (Stage::Loading, 1),
        };
        let opened = task.0..task.0 + count;
        for task in opened.clone().map(TaskId) {
            let Some(tasks) = &epoch_entry.tasks else {
                unreachable!("tasks are opened of epochs that are planned");
            };
            let is_own = stage != Stage::Loading;
            let payload = open(&epoch_entry.payload, task, is_own);
            let rows = tasks.plan.partition.rows(tasks.number(task));
            let slabs = match stage {
                Stage::Solo => 0, // they share one, for which `run_slab` asks
                _ => tasks.plan.slabs_per_task,
            };
            let bytes = self.expected_bytes(tasks, task);
            let mut entry = TaskEntry::new(rows, slabs, stage, payload);
            entry.bytes = bytes.unwrap_or(0);
            self.tasks.open.push_back(entry);
        }
        match stage {
            Stage::Pulling => return Some(Claim::Pull { task }),
            Stage::Solo => return Some(Claim::Solo { tasks: opened }),
            _ => {}
        }
        let run = self.pace.rows(claimant.devices);
        let claimed = self.tasks.entry(task).claim_rows(run);
        Some(Claim::Load { task, claimed })
    }

    /// Whether [`claim`](Schedule::claim) would return something.
    pub(crate) fn has_claim(&mut self, claimant: Claimant) -> bool {
        let mut entries = self.tasks.open.iter().take(self.reach(claimant));
        let has_work =
            |entry: &TaskEntry<U>| entry.can_finish() || entry.has_parked() || entry.has_rows();
        self.may_load(claimant) && (entries.any(has_work) || self.opens(claimant).is_some())
            || self.mode.is_bounded && self.next_held(claimant).is_some()
            || claimant.beyond && self.epoch_entry_to_plan().is_some()
    }

    /// How many of the open tasks the claimant may work on.
    fn reach(&self, claimant: Claimant) -> usize {
        match claimant.beyond {
            true => usize::MAX,
            false => (self.consumers_end().0 - self.tasks.first.0) as usize,
        }
    }

    /// The entry of the tasks that the claimant opens, with its plan, and how many; `None`: it opens none now.
    fn opens(&self, claimant: Claimant) -> Option<(usize, &EpochTasks, Opens)> {
        let (index, tasks, window) = self.next_to_open(claimant)?;
        let ahead = self.tasks.ahead();
        let left = tasks.end.0 - self.tasks.end().0;
        let opens = match tasks.plan.solo {
            None => Opens::Shared,
            Some(solo) if solo.is_pinned => {
                let has_slab = || self.has_slab_for_run(claimant);
                window.pinned_run(ahead, left, tasks.plan.window, has_slab)
            }
            Some(_) => window.pageable_run(ahead, left),
        };
        (opens != Opens::Nothing).then_some((index, tasks, opens))
    }

    /// The entry whose task may be opened next, with its plan and window.
    fn next_to_open(&self, claimant: Claimant) -> Option<(usize, &EpochTasks, Window)> {
        let next = self.tasks.end();
        if !claimant.beyond && next >= self.consumers_end() {
            return None;
        }
        let (index, tasks) = self.epoch_entry_of(next)?;
        let may_open = match tasks.plan.pulls {
            Some(_) => !self.is_pulling(),
            None => self.is_near(next, tasks),
        };
        let window = self.window(&tasks.plan);
        let has_room = window.room(self.tasks.ahead()) > 0;
        (has_room && may_open && self.has_room_for(tasks, next)).then_some((index, tasks, window))
    }

    /// Whether the claimant could pull the items of another task, before it loads those of earlier ones.
    fn can_pull(&self, claimant: Claimant) -> bool {
        let next = self.next_to_open(claimant);
        let pulls = next.and_then(|(_, tasks, _)| tasks.plan.pulls);
        pulls.is_some_and(|pulls| pulls.before_loading)
    }

    /// Whether the items of a task are being pulled. Tasks are pulled one at a time, in order.
    fn is_pulling(&self) -> bool {
        let last = self.tasks.open.back();
        last.is_some_and(|entry| entry.stage == Stage::Pulling)
    }

    /// Whether a task is at most `MOST_BEHIND` batches beyond the first: as far as is recorded which batches were given out. Only tasks of
    /// the consumer's epoch are given out before their turn, so those of later epochs are always near.
    fn is_near(&self, task: TaskId, tasks: &EpochTasks) -> bool {
        !self.mode.any_order
            || self.tasks.first < tasks.first
            || tasks.number(task) - tasks.number(self.tasks.first) <= MOST_BEHIND
    }

    /// How far ahead the tasks of an epoch are made.
    fn window(&self, plan: &EpochPlan) -> Window {
        Window::of(plan, &self.pace, self.tasks.end())
    }

    /// Whether the claimant may work on tasks: spare workers do not while loading is little more than copying.
    fn may_load(&self, claimant: Claimant) -> bool {
        !claimant.is_spare || !self.copies()
    }

    /// Whether loading is little more than copying, into slabs whose place in the cache matters.
    pub(crate) fn copies(&self) -> bool {
        self.pace.copies()
    }

    /// Whether tasks take microseconds, so that one worker makes several of them: more workers would wait for the lock, and for each other.
    pub(crate) fn is_tiny(&self) -> bool {
        let mut planned = self.epochs.iter();
        let tasks = planned.find_map(|epoch_entry| epoch_entry.tasks.as_ref());
        tasks.is_some_and(|tasks| tasks.plan.solo.is_some() && self.window(&tasks.plan).is_fast())
    }

    /// Whether the task is open, and was not given out.
    pub(crate) fn holds(&self, task: TaskId) -> bool {
        self.tasks.holds(task)
    }

    /// The payload of an open task.
    pub(crate) fn payload(&mut self, task: TaskId) -> &mut U {
        match &mut self.tasks.entry(task).payload {
            Some(payload) => payload,
            None => unreachable!("who looks for a task asks first whether it is held"),
        }
    }

    /// A worker is done with what it claimed. `elapsed_ns`: how long rows took to load; `None` for parked samples, which were loaded
    /// before.
    pub(crate) fn loaded(&mut self, task: TaskId, rows: Loaded, elapsed_ns: Option<u64>) -> Next {
        if let Some(elapsed_ns) = elapsed_ns {
            self.pace.learn(rows.claimed, elapsed_ns);
        }
        let entry = self.tasks.entry(task);
        entry.loaded(rows);
        entry.has_failed |= rows.filled + rows.parked < rows.claimed;
        entry.next_step()
    }

    /// A task that one worker makes alone was made, or failed. `elapsed_ns`: how long it took, if that is known.
    pub(crate) fn made(&mut self, task: TaskId, elapsed_ns: Option<u64>) {
        self.took(task, elapsed_ns);
        self.ready(task);
    }

    /// One worker loaded all of a task's rows, in that time, if it is known.
    pub(crate) fn took(&mut self, task: TaskId, elapsed_ns: Option<u64>) {
        if let Some(elapsed_ns) = elapsed_ns {
            let rows = self.tasks.entry(task).rows;
            self.pace.learn(rows, elapsed_ns);
        }
    }

    /// The items of a task were pulled, and others may load its `rows`.
    pub(crate) fn pulled(&mut self, task: TaskId, rows: usize) {
        let entry = self.tasks.entry(task);
        debug_assert_eq!(entry.stage, Stage::Pulling);
        entry.rows = rows;
        entry.stage = Stage::Loading;
    }

    /// The caller has laid out the task.
    pub(crate) fn laid_out(&mut self, task: TaskId) -> Next {
        let entry = self.tasks.entry(task);
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
        self.tasks.set_away(task, false);
        let entry = self.tasks.entry(task);
        entry.has_failed = planted("a task that is made again stays failed");
        entry.stage = Stage::Finishing;
        entry.slab = SlabState::Unknown;
        entry.needs_slabs = entry.needs_slabs.max(1);
    }

    /// The task failed.
    pub(crate) fn failed(&mut self, task: TaskId) -> Next {
        let entry = self.tasks.entry(task);
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
