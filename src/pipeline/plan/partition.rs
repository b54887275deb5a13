//! How an epoch is cut into batches, and batches into parts.

mod empty;
mod even;
mod listed;
mod place;

pub use empty::OnEmpty;
pub(crate) use even::Even;
pub use even::{LastBatch, Sharding};
pub(crate) use listed::{Listed, Lists};
pub(crate) use place::Place;

use std::fmt;

use super::delivered::Given;
use super::shard::DeviceShard;
use crate::sampler::Sampler;
use crate::sync::Arc;

/// The batches of one epoch, and the *tasks* they are made in. Usually a batch is one task. Large batches that are sent to a device
/// are cut into several parts, so that the slabs in use stay in the last-level cache until the device has read them.
///
/// Batches and tasks are counted from 0 within the shard. [`place`](Partition::place) is the only way from a task to positions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Partition {
    /// Batches of one size, out of a sampler's order.
    Even(Even),
    /// The lists of a batch sampler, each a whole batch.
    Listed(Listed),
}

impl Partition {
    /// The partition of a share that cannot go on from where its rank stands: one batch, which is that error.
    pub(crate) fn refused(start: Start, share: DeviceShard) -> Option<Partition> {
        let devices = start.bound_to.filter(|devices| *devices != share.of)?;
        let count = |devices| match devices {
            1 => "one device".to_owned(),
            devices => format!("{devices} devices"),
        };
        Some(Partition::not_resumed(format!(
            "within an epoch of a loader with in_order(false) on several ranks, it says what one rank was given, whose batches went to \
             {}, and now they are to go to {}: let as many share the epoch, or resume at an epoch's end; or, where batches may come \
             again, resume all ranks from DataLoader::state_at, at the smallest position of their states",
            count(devices),
            count(share.of)
        )))
    }

    /// One batch, which is the error that the run does not go on, and why.
    pub(crate) fn not_resumed(reason: String) -> Partition {
        let lists = Arc::new(Lists::not_resumed(reason));
        Partition::Listed(Listed::new(lists, 0, (0, 1), false))
    }

    /// Whether it is that of a share that cannot go on.
    pub(crate) fn is_refused(&self) -> bool {
        matches!(self, Partition::Listed(listed) if listed.is_not_resumed())
    }

    /// How many batches there are: as many for each shard.
    pub(crate) fn batches(&self) -> u64 {
        match self {
            Partition::Even(even) => even.batches(),
            Partition::Listed(listed) => listed.batches(),
        }
    }

    /// How many tasks all batches have together.
    pub(crate) fn tasks(&self) -> u64 {
        match self {
            Partition::Even(even) => even.tasks(),
            Partition::Listed(listed) => listed.batches(),
        }
    }

    /// How many parts a full batch has.
    pub(crate) fn parts_per_batch(&self) -> u64 {
        match self {
            Partition::Even(even) => even.parts_per_batch(),
            Partition::Listed(_) => 1,
        }
    }

    /// How many rows a task has: the most, or the mean where batches are listed.
    pub(crate) fn usual_rows(&self) -> usize {
        match self {
            Partition::Even(even) => even.part_rows(),
            Partition::Listed(listed) => listed.mean_rows(),
        }
    }

    /// How many rows the largest batch of a whole epoch has, for this shard or any.
    pub(crate) fn most_rows(&self) -> usize {
        match self {
            Partition::Even(even) => even.most_rows(),
            Partition::Listed(listed) => listed.most_rows(),
        }
    }

    /// Whether tasks are made as those of the other: of full batches, equally many parts of equally many rows.
    pub(crate) fn is_like(&self, other: &Partition) -> bool {
        let shape = |partition: &Partition| match partition {
            Partition::Even(even) => Some((even.part_rows(), even.parts_per_batch())),
            Partition::Listed(_) => None,
        };
        shape(self) == shape(other)
    }

    /// How many rows of a task are loaded.
    pub(crate) fn rows(&self, task: u64) -> usize {
        match self {
            Partition::Even(even) => even.rows(task),
            Partition::Listed(listed) => listed.place(0, task).loaded_rows(),
        }
    }

    /// Where a whole batch lies.
    pub(crate) fn batch_place(&self, epoch: u64, batch: u64) -> Place {
        match self {
            Partition::Even(even) => even.batch_place(epoch, batch),
            Partition::Listed(listed) => listed.place(epoch, batch),
        }
    }

    /// How many rows a whole batch has.
    pub(crate) fn batch_rows(&self, batch: u64) -> usize {
        match self {
            Partition::Even(even) => even.batch_rows(batch),
            Partition::Listed(listed) => listed.place(0, batch).rows,
        }
    }

    /// How many rows all batches have together.
    pub(crate) fn all_rows(&self) -> u64 {
        let batches = self.batches();
        match self {
            Partition::Even(even) => even.all_rows(),
            Partition::Listed(_) => (0..batches)
                .map(|batch| self.batch_rows(batch) as u64)
                .sum(),
        }
    }

    /// The batch that a task belongs to.
    pub(crate) fn batch(&self, task: u64) -> u64 {
        match self {
            Partition::Even(even) => even.batch_and_part(task).0,
            Partition::Listed(_) => task,
        }
    }

    /// Where a task lies.
    pub(crate) fn place(&self, epoch: u64, task: u64) -> Place {
        match self {
            Partition::Even(even) => even.place(epoch, task),
            Partition::Listed(listed) => listed.place(epoch, task),
        }
    }

    /// A position before which the shard has no samples but those before a row of a batch.
    pub(crate) fn position_before(&self, epoch: u64, batch: u64, row: u64) -> u64 {
        match self {
            Partition::Even(even) if row > 0 => {
                let place = even.batch_place(epoch, batch);
                place.key(row as usize).min(place.samples)
            }
            _ => self.position_after(batch),
        }
    }

    /// Where the order stands when each shard has had that many batches.
    pub(crate) fn position_after(&self, batches: u64) -> u64 {
        match self {
            Partition::Even(even) => even.position_after(batches),
            Partition::Listed(listed) => listed.position_after(batches),
        }
    }
}

/// Which samples stand at the positions of one epoch.
#[derive(Clone)]
pub(crate) enum EpochOrder {
    /// The samples that the loader's sampler gives.
    Sampled(Arc<dyn Sampler>),
    /// The samples of the epoch's lists, one list after the other.
    Listed(Listed),
}

impl EpochOrder {
    pub(crate) fn index(&self, epoch: u64, position: u64) -> u64 {
        match self {
            EpochOrder::Sampled(sampler) => sampler.index(epoch, position),
            EpochOrder::Listed(listed) => listed.index(position),
        }
    }

    /// The indices from a position on.
    pub(crate) fn indices(&self, epoch: u64, start: u64, indices: &mut [u64]) {
        match self {
            EpochOrder::Sampled(sampler) => sampler.indices(epoch, start, indices),
            EpochOrder::Listed(listed) => listed.indices(start, indices),
        }
    }

    /// The index of a sample that takes the place of one that failed, if the order names it.
    pub(crate) fn instead(&self, epoch: u64, position: u64, attempt: u32) -> Option<u64> {
        match self {
            EpochOrder::Sampled(sampler) => sampler.instead(epoch, position, attempt),
            EpochOrder::Listed(_) => None,
        }
    }

    /// How many positions there are.
    pub(crate) fn len(&self) -> u64 {
        match self {
            EpochOrder::Sampled(sampler) => sampler.len(),
            EpochOrder::Listed(listed) => listed.samples(),
        }
    }
}

impl fmt::Debug for EpochOrder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EpochOrder")
            .field("len", &self.len())
            .finish_non_exhaustive()
    }
}

/// Where the loading of an epoch begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Start {
    pub(crate) epoch: u64,
    /// In the epoch's order: 0, except in a resumed run.
    pub(crate) position: u64,
    /// Which of the batches from there on were given out before: not the first.
    pub(crate) given: Given,
    /// Batches came in any order, so other ranks of the run may stand elsewhere. What is left is this rank's own only if its batches are
    /// shared by as many devices as they were.
    pub(crate) bound_to: Option<u64>,
}

impl Start {
    /// An epoch from a position on.
    pub(crate) fn at(epoch: u64, position: u64) -> Start {
        Start {
            epoch,
            position,
            given: Given::default(),
            bound_to: None,
        }
    }

    /// An epoch from its beginning.
    pub(crate) fn of(epoch: u64) -> Start {
        Start::at(epoch, 0)
    }

    /// For several devices that share what is left, on one of so many ranks. They are not told what was given out before its turn.
    pub(crate) fn shared(self, devices: usize, ranks: u64) -> Start {
        match devices {
            1 => self,
            _ => Start {
                given: Given::default(),
                bound_to: self.bound_to.filter(|_| ranks > 1),
                ..self
            },
        }
    }
}
