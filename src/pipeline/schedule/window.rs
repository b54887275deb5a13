//! The window: how far ahead of the consumer tasks are made.
//!
//! A plan says how many tasks may be open. Where they take microseconds, and the program did not say `prefetch`, more of them may, so that
//! a worker makes several in a run, and the consumer takes several at once. All of that follows from the plan and the pace, here.

use super::entry::TaskId;
use super::pace::Pace;
use crate::device::Pieces;
use crate::pipeline::plan::epoch_plan::{EpochPlan, Solo};
use crate::tuning::{
    MOST_BATCHES_AHEAD, MOST_RUNS_AHEAD, RUN_NS, RUN_SLAB_BYTES, TASKS_IN_RUN, WHOLE_NS,
};

/// How far ahead the tasks of an epoch are made. It is made anew for each look, under the shared lock, so everything is computed once.
#[derive(Debug, Clone, Copy)]
pub(super) struct Window {
    /// How many tasks may be ahead of the consumer.
    pub(super) tasks: usize,
    /// Tasks take microseconds: less than waking a worker.
    is_fast: bool,
    /// How many tasks a worker makes from end to end; 0: their rows are for all workers.
    run: usize,
}

/// How many tasks a worker opens, to make them from end to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Opens {
    /// One, and its rows are for all workers.
    Shared,
    /// So many.
    Run(u64),
    /// None now: more tasks are open than there would be without runs.
    Nothing,
}

impl Window {
    /// `next`: the task that is opened next.
    pub(super) fn of(plan: &EpochPlan, pace: &Pace, next: TaskId) -> Window {
        let tasks = match plan.resident {
            Some(resident) if pace.is_wide != Some(true) => plan.window.min(resident),
            _ => plan.window,
        };
        let window = Window {
            tasks,
            is_fast: false,
            run: 0,
        };
        match (plan.solo, pace.task_ns(plan)) {
            (None, None) => window,
            (None, Some(ns)) => Window {
                is_fast: ns <= RUN_NS / 2,
                ..window
            },
            (Some(solo), ns) => window.of_solo(plan, solo, ns, pace, next),
        }
    }

    /// Where one worker may make a task, which takes so long, if that is known.
    fn of_solo(
        self,
        plan: &EpochPlan,
        solo: Solo,
        ns: Option<u64>,
        pace: &Pace,
        next: TaskId,
    ) -> Window {
        let usual = if solo.grows { plan.window } else { self.tasks };
        // The caller's thread is the only one, and makes one pageable task at a time.
        let is_callers = solo.workers == 0 && !solo.is_pinned;
        let ns = match ns {
            Some(ns) if !is_callers => ns,
            _ => {
                return Window {
                    tasks: usual,
                    run: usize::from(is_callers),
                    ..self
                };
            }
        };
        let is_fast = ns <= RUN_NS / 2;
        let runs = solo.runs();
        // Page-locked tasks share a slab.
        let (per_slab, may_share) = match solo.is_pinned {
            true => (tasks_per_slab(plan, solo, pace), pace.may_share(next)),
            false => (usize::MAX, true),
        };
        let most = match solo.is_pinned && (plan.any_order || !may_share) {
            true => plan.window, // each has a slab of its own
            false => per_slab.saturating_mul(runs).min(MOST_BATCHES_AHEAD),
        };
        // Page-locked tasks that take longer are made by one worker each if as many may be ahead as keep all workers busy: workers that
        // share a batch of a thousand short rows wait for its slab, and for each other.
        let is_small = pace.task_bytes <= RUN_SLAB_BYTES;
        let is_whole =
            is_fast || solo.is_pinned && ns <= WHOLE_NS && solo.grows && is_small && most >= runs;
        let times = |of: u64| usize::try_from(of / ns.max(1)).unwrap_or(usize::MAX);
        // Page-locked tasks of a run are sent together.
        let longest = match solo.is_pinned {
            true => times(RUN_NS).max(times(2 * RUN_NS).min(TASKS_IN_RUN)),
            false => times(RUN_NS),
        };
        let tasks = match solo.grows {
            false => usual,
            true => {
                let fast = times(4 * RUN_NS);
                // They keep all workers busy: each makes a run, and the next is there or may begin.
                let fast = match solo.is_pinned && is_whole {
                    true => fast.max(longest.clamp(2, TASKS_IN_RUN) * runs),
                    false => fast,
                };
                usual.max(fast.min(most))
            }
        };
        // Half a run at most, to leave something for the other workers. And in any order, no task is to wait for a slow one that was
        // claimed with it.
        let share = (tasks / runs).max(1).min(longest).max(1);
        let run = match (is_whole && may_share, plan.any_order) {
            (false, _) => 0,
            (true, true) => 1,
            (true, false) => share.min(per_slab),
        };
        Window {
            tasks,
            is_fast,
            run,
        }
    }

    /// How many tasks the consumer may take together. They count as ahead until it asks for more, so taking several leaves fewer ahead
    /// than `prefetch` promises. That pays off only if making a task takes less time than waking a worker; then the consumer may take
    /// half of the window, and leaves the other half to keep workers busy.
    pub(super) fn together(self) -> usize {
        match self.is_fast {
            true => (self.tasks / 2).max(1),
            false => 1,
        }
    }

    /// Whether tasks take microseconds: more workers would wait for the lock, and for each other.
    pub(super) fn is_fast(self) -> bool {
        self.is_fast
    }

    /// How many tasks a worker makes from end to end that need not be page-locked, if so many are ahead, and so many left.
    pub(super) fn pageable_run(self, ahead: usize, left: u64) -> Opens {
        match self.run {
            0 => Opens::Shared,
            run => Opens::Run(left.min(run.min(self.room(ahead)) as u64)),
        }
    }

    /// The same for page-locked tasks. `usual`: how many may be ahead without runs. `has_slab`: whether a slab is left for a run, and no task
    /// waits for one.
    pub(super) fn pinned_run(
        self,
        ahead: usize,
        left: u64,
        usual: usize,
        has_slab: impl FnOnce() -> bool,
    ) -> Opens {
        let room = self.room(ahead);
        let left = usize::try_from(left).unwrap_or(usize::MAX);
        let run = (self.run > 0 && has_slab()).then(|| self.run.min(left));
        match run {
            // Short runs would leave slabs half empty, and soon there would be none.
            Some(run) if run <= room || ahead < usual => Opens::Run(run.min(room) as u64),
            _ if ahead < usual => Opens::Shared,
            _ => Opens::Nothing,
        }
    }

    /// How many more tasks may be open.
    pub(super) fn room(self, ahead: usize) -> usize {
        self.tasks.saturating_sub(ahead)
    }
}

/// How many page-locked tasks share a slab.
pub(super) fn tasks_per_slab(plan: &EpochPlan, solo: Solo, pace: &Pace) -> usize {
    if plan.any_order || solo.workers == 0 {
        return 1;
    }
    let most = match solo.grows {
        true => plan.window.max(MOST_BATCHES_AHEAD),
        false => plan.window,
    };
    let stride = Pieces::stride(pace.task_bytes).unwrap_or(usize::MAX);
    // Where many batches may be ahead, slabs are many, and all of them may be made as large: they are smaller then.
    let slabs = plan.window.max(MOST_RUNS_AHEAD);
    let fit = RUN_SLAB_BYTES * MOST_RUNS_AHEAD / slabs / stride.max(1);
    let fit = match stride.saturating_mul(TASKS_IN_RUN) <= 2 * RUN_SLAB_BYTES {
        true if slabs == MOST_RUNS_AHEAD => fit.max(TASKS_IN_RUN),
        _ => fit,
    };
    (most / solo.runs()).min(fit).min(pace.most_in_run).max(1)
}
