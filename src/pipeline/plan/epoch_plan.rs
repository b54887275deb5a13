//! Plans: how the tasks of one epoch are made, as a pure function of what is known when its first task is opened.

use super::delivered::Given;
use super::lister::Batching;
use super::options::Options;
use super::partition::{Even, Partition};
use super::shard::DeviceShard;
use crate::device::Kind;
use crate::tensor::Offload;
use crate::tuning::{
    COPYING_BYTES_PER_10_NS, COPYING_WORKERS, DEFAULT_DEPTH_BATCHES, FEWEST_SLABS_IN_TURN,
    GATHERED_ROW_BYTES, MOST_RUNS_AHEAD, SLABS_IN_TURN,
};

/// What an epoch's batches are for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Destination {
    /// The program gets them on the host.
    Host,
    /// They are sent to a device, `depth` batches ahead; the program never sees them on the host.
    Device {
        depth: usize,
        /// It is the very device that the loader pins for: its list of copies brings the slabs of parts home.
        pins: bool,
        /// What the device does itself. The loader's slabs belong to this device, or to another handle of it: waiting for slabs is what
        /// limits the copies in flight, so only then may rows stay where they are for the device to gather, or pictures as they are.
        offload: Offload,
    },
}

impl Destination {
    /// How many batches may be on their way to the device, besides those that are open.
    pub(crate) fn depth(self) -> usize {
        match self {
            Destination::Host => DEFAULT_DEPTH_BATCHES,
            Destination::Device { depth, .. } => depth,
        }
    }
}

impl Destination {
    /// Whether pictures are decoded there.
    pub(crate) fn decodes(self) -> bool {
        match self {
            Destination::Host => false,
            Destination::Device { offload, .. } => offload.decodes.is_some(),
        }
    }
}

/// What is known about the samples, from the data set or from earlier batches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Hints {
    /// How many bytes of its slab a sample takes, if that is known and batches can travel in parts.
    pub(crate) sample_bytes: Option<usize>,
    /// Some device could gather rows where they are.
    pub(crate) is_gatherable: bool,
    /// Some device could decode samples.
    pub(crate) has_pictures: bool,
    /// A batch may have tensors that were not built in its slab.
    pub(crate) may_be_elsewhere: bool,
    /// Every tensor of a batch has a row for each of its samples, and nothing else.
    pub(crate) is_dense: bool,
    /// And all samples of a batch take as many bytes.
    pub(crate) have_one_size: bool,
    /// Samples are rows of tensors, so loading is copying. Where it is slow, many workers share the host's memory.
    pub(crate) are_rows: bool,
}

impl Hints {
    fn are_long_rows(self) -> bool {
        let is_long = |bytes| bytes >= GATHERED_ROW_BYTES;
        self.are_rows && self.sample_bytes.is_some_and(is_long)
    }
}

/// What the device's host is like: what fits its last-level cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Machine {
    /// How many bytes of slabs stay in the cache from being filled until the device reads them.
    pub(crate) resident_bytes: usize,
    /// The smallest part that is worth a copy of its own.
    pub(crate) least_part_bytes: usize,
}

/// How the tasks of one epoch are made. It does not change once the first of them is open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct EpochPlan {
    pub(crate) partition: Partition,
    /// How many tasks may be ahead of the consumer.
    pub(crate) window: usize,
    /// How many slabs the epoch may have.
    pub(crate) slabs: usize,
    /// How many slabs fit in the cache together, if tasks are parts: as long as loading is little more than copying, window and
    /// slabs are no larger.
    pub(crate) resident: Option<usize>,
    /// How many slabs of the ring a task may need until it is ready: two if it may be built in one and moved to another.
    pub(crate) slabs_per_task: usize,
    /// Tasks may be made from end to end by one thread each: there is no slab to wait for, or a run of them shares one that is there.
    pub(crate) solo: Option<Solo>,
    /// How many slabs more the epoch may have once runs of page-locked tasks share them.
    pub(crate) more_slabs: usize,
    /// How many bytes a sample has, where tasks are cut for the cache; 0 otherwise.
    pub(crate) streamed_bytes: u64,
    /// Loading counts as copying if a worker produces more than so many bytes in 10 ns.
    pub(crate) copying: u64,
    /// The items of tasks are pulled from a stream, whose end is not known.
    pub(crate) pulls: Option<Pulls>,
    /// Tasks are delivered in the order in which they are ready.
    pub(crate) any_order: bool,
    /// How many bytes may be in flight.
    pub(crate) bound: Option<Bound>,
    /// Which of the partition's batches were given out before the epoch was resumed: no tasks are made of them.
    pub(crate) given: Given,
}

/// How many bytes the tasks of a session may have together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Bound {
    pub(crate) bytes: usize,
    /// How many bytes a row has, if that is known before.
    pub(crate) row_bytes: Option<usize>,
}

/// How items are pulled from a stream: by one worker at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Pulls {
    /// Rather than load items that were pulled: there are other workers for that. (With a single one, items that were pulled must not wait
    /// for a stream that gives no more for now.)
    pub(crate) before_loading: bool,
}

/// How tasks are made by one thread each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Solo {
    /// How many workers share them; 0: the consumer makes them.
    pub(crate) workers: usize,
    /// Tasks that take microseconds may be further ahead than the window says.
    pub(crate) grows: bool,
    /// They are page-locked: only those that take microseconds are made so, and only if the ring has a slab for them.
    pub(crate) is_pinned: bool,
}

impl Solo {
    /// How many runs of tasks are in the window, so that there is one for each worker, and one that is ready.
    pub(crate) fn runs(self) -> usize {
        let runs = self.workers.saturating_mul(2).max(1);
        match self.is_pinned {
            true => runs.min(MOST_RUNS_AHEAD),
            false => runs,
        }
    }
}

/// Makes the plan of an epoch with these batches. `is_followed`: other epochs follow it, and share its slabs.
///
/// Epochs that follow each other are loaded across their boundary only if their plans are alike. So the partition depends neither on how
/// far ahead batches are sent, nor on how fast loading turned out to be.
pub(crate) fn plan(
    options: &Options,
    machine: Option<Machine>,
    hints: Hints,
    destination: Destination,
    partition: Partition,
    is_followed: bool,
) -> EpochPlan {
    let parts = match &partition {
        Partition::Even(even) => Parts::of(options, machine, hints, *even),
        Partition::Listed(_) => None,
    };
    let solo = Solo {
        workers: options.workers,
        grows: options.prefetch_grows && options.workers > 0,
        is_pinned: options.pinning.is_some(),
    };
    // (A thread that makes a task alone cannot wait for memory.)
    let may_be_solo = match &options.pinning {
        None => true,
        Some(pinning) => hints.have_one_size && !pinning.by_copy,
    };
    let is_solo = may_be_solo && !options.is_stream && options.max_bytes.is_none();
    let slabs = |prefetch| {
        options.slabs_for(
            prefetch,
            destination.depth(),
            partition.batches(),
            is_followed,
        )
    };
    let whole = EpochPlan {
        window: options.prefetch,
        slabs: slabs(options.prefetch),
        // For the runs that are ahead, and as many that the program has, or that are being copied.
        more_slabs: match is_solo && solo.is_pinned && solo.grows {
            true => slabs(options.prefetch.max(2 * solo.runs())) - slabs(options.prefetch),
            false => 0,
        },
        partition,
        resident: None,
        slabs_per_task: match &options.pinning {
            None => 0,
            Some(pinning) if pinning.by_copy || !hints.may_be_elsewhere => 1,
            Some(_) => 2,
        },
        solo: is_solo.then_some(solo),
        streamed_bytes: 0,
        // (Of long rows, as many as COPYING_WORKERS do that each produce so many. Short ones wait for memory, and do not fill its bandwidth.)
        copying: match hints.are_long_rows() && options.workers > COPYING_WORKERS {
            true => COPYING_BYTES_PER_10_NS * COPYING_WORKERS as u64 / options.workers as u64,
            false => COPYING_BYTES_PER_10_NS,
        },
        pulls: options.is_stream.then_some(Pulls {
            before_loading: options.workers > 1,
        }),
        any_order: options.any_order,
        bound: options.max_bytes.map(|bytes| Bound {
            bytes,
            row_bytes: hints.sample_bytes,
        }),
        given: Given::default(),
    };
    let may_be_in_parts = match destination {
        Destination::Device { pins, offload, .. } => pins && offload.gathers.is_some(),
        Destination::Host => false,
    };
    let Some(parts) = parts.filter(|_| may_be_in_parts) else {
        return whole;
    };
    let count = parts.partition.parts_per_batch() as usize;
    let tasks = usize::try_from(parts.partition.tasks()).unwrap_or(usize::MAX);
    EpochPlan {
        partition: Partition::Even(parts.partition),
        window: options.prefetch.saturating_mul(count),
        // For the open batches, and one on its way.
        slabs: count
            .saturating_mul(options.prefetch.saturating_add(1))
            .min(tasks),
        resident: Some(parts.resident),
        solo: None,
        more_slabs: 0,
        streamed_bytes: parts.sample_bytes as u64,
        ..whole
    }
}

/// Whether plans for the host and for a device differ, so that loading must wait until the destination is known.
pub(crate) fn destination_matters(
    options: &Options,
    machine: Option<Machine>,
    hints: Hints,
) -> bool {
    let is_in_parts = || match &options.batching {
        Batching::Even(even) => {
            let even = options.even(even, DeviceShard::WHOLE);
            Parts::of(options, machine, hints, even).is_some()
        }
        Batching::Listed(_) => false,
    };
    hints.is_gatherable || hints.has_pictures || is_in_parts()
}

/// How batches are cut into parts.
struct Parts {
    partition: Even,
    /// How many of their slabs stay in the cache together.
    resident: usize,
    sample_bytes: usize,
}

impl Parts {
    /// Cuts batches so that the slabs in use stay in the last-level cache until the device has read them. `None`: they fit
    /// anyway, or the size of samples is not known.
    /// ([`RESIDENT_CACHE_SHARE`](crate::tuning::RESIDENT_CACHE_SHARE) says what that is worth.)
    fn of(
        options: &Options,
        machine: Option<Machine>,
        hints: Hints,
        partition: Even,
    ) -> Option<Parts> {
        // (Parts of one batch come one after the other.)
        let machine = machine.filter(|_| !options.any_order)?;
        let pinning = options.pinning.as_ref()?;
        // Of a row that the device gathers, the slab holds only the address.
        let sample_bytes = hints
            .sample_bytes
            .filter(|_| !pinning.by_copy && !hints.is_gatherable)?;
        let batch_bytes = sample_bytes.checked_mul(partition.full_rows())?;
        // Of a whole epoch, also where this one is resumed: the epochs that follow must be cut alike.
        let batches = partition.from(0).batches();
        let slabs = options.slabs_for(options.prefetch, DEFAULT_DEPTH_BATCHES, batches, false);
        if batch_bytes.saturating_mul(slabs) <= machine.resident_bytes {
            return None;
        }
        let part_bytes = (machine.resident_bytes / SLABS_IN_TURN).max(machine.least_part_bytes);
        let partition = partition.into_parts(batch_bytes.div_ceil(part_bytes.max(1)));
        let part_bytes = partition.part_rows().saturating_mul(sample_bytes).max(1);
        (partition.parts_per_batch() > 1 && partition.batches() > 0).then_some(Parts {
            partition,
            resident: (machine.resident_bytes / part_bytes).max(FEWEST_SLABS_IN_TURN),
            sample_bytes,
        })
    }
}

impl EpochPlan {
    /// How many tasks the epoch has.
    pub(crate) fn tasks(&self) -> u64 {
        self.partition.tasks().saturating_sub(self.given.count())
    }

    /// Whether batches travel in parts.
    pub(crate) fn is_in_parts(&self) -> bool {
        self.partition.parts_per_batch() > 1
    }

    /// What slabs are for.
    pub(crate) fn kind(&self) -> Kind {
        match self.is_in_parts() {
            true => Kind::Part,
            false => Kind::Whole,
        }
    }

    /// How many slabs the epoch may have now. `is_wide`: loading turned out to be far from copying.
    pub(crate) fn slabs(&self, is_wide: bool) -> usize {
        match self.resident.filter(|_| !is_wide) {
            Some(resident) => self.slabs.min(resident),
            None => self.slabs,
        }
    }

    /// Whether an epoch of this plan can follow one of the other as if they were one epoch, with the same slabs.
    pub(crate) fn joins(&self, before: &EpochPlan) -> bool {
        self.partition.is_like(&before.partition) && self.solo == before.solo
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Device;
    use crate::pipeline::plan::lister::EvenBatching;
    use crate::pipeline::plan::options::Pinning;
    use crate::pipeline::plan::partition::{LastBatch, Sharding, Start};
    use crate::sampler::SequentialSampler;
    use crate::sync::Arc;

    const MIB: usize = 1 << 20;

    fn options_of(samples: u64, pinned: bool) -> Options {
        Options {
            batching: Batching::Even(EvenBatching {
                sampler: Arc::new(SequentialSampler::new(samples)),
                samples,
                batch_size: 64,
                sharding: Sharding::Slices,
            }),
            last_batch: LastBatch::Partial,
            shard: 0,
            shards: 1,
            workers: 4,
            is_auto: false,
            cores: None,
            at_once: 1,
            prefetch: 2,
            prefetch_grows: true,
            any_order: false,
            max_bytes: None,
            pinning: pinned.then(|| Pinning {
                device: Device::cpu(),
                strict: false,
                by_copy: false,
                min_slab_bytes: None,
            }),
            is_stream: false,
            timeout: None,
            patience: None,
            bad_share: None,
        }
    }

    fn options(pinned: bool) -> Options {
        options_of(1_000, pinned)
    }

    /// Of an epoch from its beginning.
    fn plan(
        options: &Options,
        machine: Option<Machine>,
        hints: Hints,
        destination: Destination,
        position: u64,
        is_followed: bool,
    ) -> EpochPlan {
        let start = Start::at(0, position);
        super::plan(
            options,
            machine,
            hints,
            destination,
            options.partition(start, DeviceShard::WHOLE),
            is_followed,
        )
    }

    fn device(depth: usize, pins: bool) -> Destination {
        Destination::Device {
            depth,
            pins,
            offload: match pins {
                true => Device::cpu().inner.offload(),
                false => Offload::default(),
            },
        }
    }

    /// What changes from case to case, as one line.
    fn summary(plan: &EpochPlan) -> String {
        format!(
            "{} tasks, {} parts of {} rows; window {}, slabs {} (+ {}), resident {:?}; solo {:?}; streamed {}",
            plan.partition.tasks(),
            plan.partition.parts_per_batch(),
            plan.partition.usual_rows(),
            plan.window,
            plan.slabs,
            plan.more_slabs,
            plan.resident,
            plan.solo
                .map(|solo| (solo.workers, solo.grows, solo.is_pinned)),
            plan.streamed_bytes,
        )
    }

    /// Golden plans: a change in one of them is a change in how every epoch of that kind is loaded.
    #[test]
    fn plans_are_as_they_were() {
        // A last-level cache of 300 MB of which 0.3 are used, and images of 600 KB.
        let h200 = Some(Machine {
            resident_bytes: 90 * MIB,
            least_part_bytes: 8 * MIB,
        });
        let unknown = Hints {
            sample_bytes: None,
            is_gatherable: false,
            has_pictures: false,
            may_be_elsewhere: false,
            is_dense: true,
            have_one_size: true,
            are_rows: false,
        };
        let images = Hints {
            sample_bytes: Some(600_000),
            ..unknown
        };
        let numbers = Hints {
            sample_bytes: Some(8),
            ..unknown
        };
        let registered = Hints {
            is_gatherable: true,
            ..images
        };
        let by_copy = {
            let mut options = options(true);
            options.pinning.as_mut().unwrap().by_copy = true;
            options
        };
        let whole = "16 tasks, 1 parts of 64 rows; window 2, slabs 5 (+ 14), resident None; solo Some((4, true, true)); streamed 0";
        let shared = "16 tasks, 1 parts of 64 rows; window 2, slabs 5 (+ 0), resident None; solo None; streamed 0";
        let parts = "47 tasks, 3 parts of 22 rows; window 6, slabs 9 (+ 0), resident Some(7); solo None; streamed 600000";
        let host = Destination::Host;
        #[rustfmt::skip]
        let table = [
            ("not pinned", plan(&options(false), None, unknown, host, 0, false),
             "16 tasks, 1 parts of 64 rows; window 2, slabs 5 (+ 0), resident None; solo Some((4, true, false)); streamed 0"),
            ("to the host", plan(&options(true), h200, images, host, 0, false), whole),
            ("followed", plan(&options(true), h200, images, host, 0, true), whole),
            ("to the device", plan(&options(true), h200, images, device(1, true), 0, false), parts),
            ("followed, to the device", plan(&options(true), h200, images, device(1, true), 0, true), parts),
            ("deeper", plan(&options(true), h200, images, device(4, true), 0, true), parts),
            ("to another device", plan(&options(true), h200, images, device(1, false), 0, false), whole),
            ("small samples", plan(&options(true), h200, numbers, device(1, true), 0, false), whole),
            ("small samples, deeper", plan(&options(true), h200, numbers, device(4, true), 0, false),
             "16 tasks, 1 parts of 64 rows; window 2, slabs 8 (+ 14), resident None; solo Some((4, true, true)); streamed 0"),
            ("samples that nobody knows", plan(&options(true), h200, unknown, device(1, true), 0, false), whole),
            ("gathered samples", plan(&options(true), h200, registered, device(1, true), 0, false), whole),
            ("by copy", plan(&by_copy, h200, images, device(1, true), 0, false), shared),
            ("a machine that nobody knows", plan(&options(true), None, images, device(1, true), 0, false), whole),
        ];
        for (case, plan, expected) in &table {
            assert_eq!(summary(plan), *expected, "{case}");
        }
        // What joins what: parts join parts, whatever the depth.
        let find = |name| {
            let mut rows = table.iter();
            rows.find(|(case, ..)| *case == name).unwrap().1.clone()
        };
        assert!(find("deeper").joins(&find("to the device")));
        assert!(find("small samples").joins(&find("to the host")));
        assert!(!find("to the device").joins(&find("to the host")));
        assert!(!find("to the host").joins(&find("not pinned")));
        // Slabs follow what loading turned out to be.
        let partition = find("to the device");
        assert_eq!((partition.slabs(false), partition.slabs(true)), (7, 9));
        // Loading waits for the destination where it makes a difference.
        let matters = |hints| destination_matters(&options(true), h200, hints);
        assert_eq!(
            [unknown, images, numbers, registered].map(matters),
            [false, true, false, true]
        );
    }

    /// Many workers that copy rows share the host's memory, and are still copying.
    #[test]
    fn rows_are_copied_however_many_workers_share_memory() {
        let copying = |workers, are_rows, bytes| {
            let options = Options {
                workers,
                ..options(true)
            };
            let hints = Hints {
                sample_bytes: Some(bytes),
                is_gatherable: false,
                has_pictures: false,
                may_be_elsewhere: false,
                is_dense: true,
                have_one_size: true,
                are_rows,
            };
            plan(&options, None, hints, device(1, true), 0, false).copying
        };
        assert_eq!(
            [4, 10, 40, 64].map(|workers| copying(workers, true, 600_000)),
            [25, 25, 6, 3]
        );
        assert_eq!(
            [copying(64, false, 600_000), copying(64, true, 84)],
            [25, 25]
        );
    }

    /// An epoch of few batches has few slabs, unless others follow it.
    #[test]
    fn few_batches_need_few_slabs() {
        let few = options_of(64, true);
        let hints = Hints {
            sample_bytes: None,
            is_gatherable: false,
            has_pictures: false,
            may_be_elsewhere: false,
            is_dense: true,
            have_one_size: true,
            are_rows: false,
        };
        let slabs = |is_followed| plan(&few, None, hints, Destination::Host, 0, is_followed).slabs;
        assert_eq!([false, true].map(slabs), [2, 5]);
    }
}
