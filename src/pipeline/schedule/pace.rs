//! Pace: what was learned of samples and tasks, as far as it decides how far ahead tasks are made.

use super::entry::TaskId;
use crate::device::block_bytes;
use crate::pipeline::plan::epoch_plan::EpochPlan;
use crate::tuning::{COPYING_BYTES_PER_10_NS, RUN_NS, RUN_NS_PER_DEVICE};

/// How fast samples load, and how large tasks are.
#[derive(Debug)]
pub(super) struct Pace {
    /// How long a sample takes, in nanoseconds, smoothed; 0 before the first.
    pub(super) sample_ns: u64,
    /// The fewest samples that a worker claims at once, if there are as many.
    least_run: usize,
    /// The bytes of a sample, if tasks outgrow the last-level cache, or are cut so that they do not; 0 otherwise.
    pub(super) streamed_bytes: u64,
    /// Loading counts as copying if a worker produces more than so many bytes in 10 ns.
    pub(super) copying: u64,
    /// Loading takes much longer than copying, so slabs need not stay in the cache. `None`: not known yet.
    pub(super) is_wide: Option<bool>,
    /// The bytes of the largest task whose slab was wanted: in whole pages, and what was wanted.
    pub(super) largest_task: usize,
    pub(super) task_bytes: usize,
    /// How many runs there was no slab for, and the first task that may be in another one.
    runs_without: u32,
    runs_from: TaskId,
    /// How many page-locked tasks may be in a run, since there was no slab for a longer one.
    pub(super) most_in_run: usize,
}

/// How many tasks are made without runs after a run for which there was no slab. After each further such run, twice as many.
const TASKS_WITHOUT: u64 = 16;

impl Pace {
    /// `is_wide`: what an earlier session found out.
    pub(super) fn new(is_wide: Option<bool>, least_run: usize) -> Pace {
        Pace {
            sample_ns: 0,
            least_run,
            streamed_bytes: 0,
            copying: COPYING_BYTES_PER_10_NS,
            is_wide,
            largest_task: 0,
            task_bytes: 0,
            runs_without: 0,
            runs_from: TaskId(0),
            most_in_run: usize::MAX,
        }
    }

    /// So many samples took so long.
    pub(super) fn learn(&mut self, rows: usize, elapsed_ns: u64) {
        let each = elapsed_ns / rows.max(1) as u64;
        self.sample_ns = match self.sample_ns {
            0 => each.max(1),
            smoothed => (smoothed * 7 + each).div_ceil(8).max(1),
        };
    }

    /// A task wanted a slab of so many bytes. Returns how many whole pages of it are counted, in bytes.
    pub(super) fn saw_task(&mut self, bytes: usize) -> usize {
        let whole = block_bytes(bytes).unwrap_or(bytes);
        self.largest_task = self.largest_task.max(whole);
        self.task_bytes = self.task_bytes.max(bytes);
        whole
    }

    /// How long a task takes, once that is known.
    pub(super) fn task_ns(&self, plan: &EpochPlan) -> Option<u64> {
        let rows = plan.partition.usual_rows() as u64;
        (self.sample_ns > 0).then(|| self.sample_ns.saturating_mul(rows))
    }

    /// Whether loading is little more than copying, into slabs whose place in the cache matters.
    pub(super) fn copies(&self) -> bool {
        let bytes = self.streamed_bytes.saturating_mul(10);
        bytes > self.copying.saturating_mul(self.sample_ns)
    }

    /// How many samples a worker claims at once, if workers load for so many devices.
    pub(super) fn rows(&self, devices: usize) -> usize {
        let run_ns = match devices {
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

    /// There was no slab for a run of so many tasks. More tasks are made before there is another, which is half as long: its slab is smaller,
    /// and less is left for it until it has that. `end` is opened next.
    pub(super) fn no_run_slab(&mut self, tasks: usize, end: TaskId) {
        self.most_in_run = (self.most_in_run.min(tasks) / 2).max(1);
        let without = TASKS_WITHOUT << self.runs_without.min(10);
        self.runs_from = TaskId(end.0.saturating_add(without));
        self.runs_without += 1;
    }

    /// Whether this task may be in a run that shares a slab, as far as sizes and earlier runs tell.
    pub(super) fn may_share(&self, task: TaskId) -> bool {
        self.task_bytes > 0 && task >= self.runs_from
    }
}
