//! What the program did last with a loader: where `state` and `stats` look.

use crate::pipeline::{DeviceShard, EpochHandle, Given, Options, Partition, Start};

/// The epoch that was begun last; if it is shared by several devices, that of each.
pub(super) struct Last {
    /// Tells one split from another.
    split: u64,
    stands: Vec<Stand>,
}

/// Where the run stands on one device.
enum Stand {
    /// This epoch was begun.
    Begun(EpochHandle, Partition),
    /// The loader was built, or the program asked to go on from here, where its iterable had this state.
    At(Start, Option<Vec<u8>>),
}

impl Last {
    pub(super) fn at(start: Start, iterable: Option<Vec<u8>>) -> Last {
        Last {
            split: DeviceShard::WHOLE.split,
            stands: vec![Stand::At(start, iterable)],
        }
    }

    /// An epoch was begun, or one of several devices came to its next.
    pub(super) fn begun(&mut self, handle: &EpochHandle, partition: &Partition) {
        let DeviceShard {
            index, of, split, ..
        } = handle.share;
        let (index, of) = (index as usize, of as usize);
        if self.split != split {
            // (The other devices have not begun theirs.)
            self.split = split;
            self.stands = (0..of).map(|_| Stand::At(handle.start, None)).collect();
        }
        self.stands[index] = Stand::Begun(handle.clone(), partition.clone());
    }

    /// Where the run stands: after what all devices were given.
    pub(super) fn start(&self, options: &Options) -> Start {
        let starts = self.stands.iter().map(|stand| match stand {
            Stand::Begun(handle, partition) => reached(handle, partition, options),
            Stand::At(start, _) => *start,
        });
        let first = starts.clone();
        let first = first.min_by_key(|start| (start.epoch, start.position));
        let first = first.unwrap_or(Start::of(0));
        // What one of them was given sets the rank apart from others, even if another has nothing yet.
        let is_own = |start: Start| {
            let is_ahead = is_unlike_others(options) && start.epoch > first.epoch;
            let devices = is_ahead.then(|| self.devices());
            start.bound_to.or(devices)
        };
        Start {
            bound_to: starts.filter_map(is_own).next(),
            ..first
        }
    }

    /// The state of the iterable from where the program asked to go on.
    pub(super) fn iterable(&self) -> Option<Vec<u8>> {
        self.stands.iter().find_map(|stand| match stand {
            Stand::At(_, iterable) => iterable.clone(),
            Stand::Begun(..) => None,
        })
    }

    /// Whether the epoch that was begun last is this share's.
    pub(super) fn is_of(&self, share: DeviceShard) -> bool {
        self.split == share.split
    }

    /// How many devices share the epoch.
    pub(super) fn devices(&self) -> u64 {
        self.stands.len() as u64
    }

    /// The epoch handles of devices whose epoch has begun.
    pub(super) fn handles(&self) -> impl Iterator<Item = &EpochHandle> {
        self.stands.iter().filter_map(|stand| match stand {
            Stand::Begun(handle, _) => Some(handle),
            Stand::At(..) => None,
        })
    }
}

/// Where the run stands after the batches of an epoch handle that were given out.
pub(super) fn reached(handle: &EpochHandle, partition: &Partition, options: &Options) -> Start {
    let (given, epoch) = (handle.progress.given(), handle.start.epoch);
    if partition.is_refused() {
        return handle.start;
    }
    if given.first() >= partition.batches() {
        return Start::of(epoch.saturating_add(1));
    }
    let start = Start::at(epoch, partition.position_after(given.first()));
    let is_begun = handle.progress.count() > 0;
    let bound_to = |is_own: bool| {
        let devices = is_own.then_some(handle.share.of);
        handle.start.bound_to.or(devices.filter(|_| is_begun))
    };
    match handle.share.of {
        1 => Start {
            given: Given::behind_first(given.behind()),
            bound_to: bound_to(!given.has_no_gap() || is_unlike_others(options)),
            ..start
        },
        // A state says nothing of what each device was given before its turn, so that comes again.
        _ => Start {
            bound_to: bound_to(is_unlike_others(options)),
            ..start
        },
    }
}

/// Whether after equally many steps, ranks may have been given other batches.
fn is_unlike_others(options: &Options) -> bool {
    options.any_order && options.shards > 1
}
