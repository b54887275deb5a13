//! Options: what the builder was told, and what follows from it for any epoch.

use std::time::Duration;

use super::bad_share::BadShare;
use super::epoch_plan::{Destination, Machine};
use super::lister::{Batching, EvenBatching, FirstEpoch};
use super::partition::{EpochOrder, Even, LastBatch, Listed, Lists, Partition, Start};
use super::shard::DeviceShard;
use crate::device::{Device, Ring};
use crate::sampler::Openings;
use crate::sync::Arc;
use crate::system::numa::Cores;
use crate::tensor::Offload;

/// How the epochs of a session are loaded: what the builder was told.
#[derive(Debug, Clone)]
pub(crate) struct Options {
    pub(crate) batching: Batching,
    pub(crate) last_batch: LastBatch,
    /// Which of how many ranks this one is.
    pub(crate) shard: u64,
    pub(crate) shards: u64,
    pub(crate) workers: usize,
    /// Their number was left to the loader: not all of them need load.
    pub(crate) is_auto: bool,
    /// Where the threads run; `None`: wherever the process may.
    pub(crate) cores: Option<Arc<Cores>>,
    /// How many samples the data set gets at once.
    pub(crate) at_once: usize,
    pub(crate) prefetch: usize,
    /// `prefetch` was not set: tiny batches may be loaded further ahead.
    pub(crate) prefetch_grows: bool,
    /// Batches are delivered in the order in which they are ready.
    pub(crate) any_order: bool,
    /// How many bytes may be in flight.
    pub(crate) max_bytes: Option<usize>,
    pub(crate) pinning: Option<Pinning>,
    /// Samples come from streams: it is not known how many there are.
    pub(crate) is_stream: bool,
    /// How long a sample may take; `None`: for ever.
    pub(crate) timeout: Option<Duration>,
    /// How long the consumer waits before the log says for what, and from one line to the next.
    pub(crate) patience: Option<Duration>,
    /// Which share of an epoch's samples may be replaced or left out.
    pub(crate) bad_share: Option<BadShare>,
}

/// How batches get into page-locked memory.
#[derive(Debug, Clone)]
pub(crate) struct Pinning {
    pub(crate) device: Device,
    /// A batch that cannot be page-locked is an error.
    pub(crate) strict: bool,
    /// Batches are built in pageable memory, and copied by the pin thread.
    pub(crate) by_copy: bool,
    pub(crate) min_slab_bytes: Option<usize>,
}

impl Pinning {
    /// The slab size for `bytes`: no less than the builder was told.
    pub(crate) fn at_least(&self, bytes: usize) -> usize {
        bytes.max(self.min_slab_bytes.unwrap_or(0))
    }

    pub(crate) fn ring(&self) -> &Arc<Ring> {
        &self.device.inner.ring
    }
}

impl Options {
    /// The batches that a share of this rank has of an epoch, from a position on. It may ask the program's batch sampler, so not under
    /// the shared lock.
    pub(crate) fn partition(&self, start: Start, share: DeviceShard) -> Partition {
        if let Some(refused) = Partition::refused(start, share) {
            return refused;
        }
        match &self.batching {
            Batching::Even(batching) => {
                Partition::Even(self.even(batching, share).from(start.position))
            }
            Batching::Listed(lister) => {
                let lists = lister.lists(start.epoch);
                Partition::Listed(self.listed(lists, start.position, share))
            }
        }
    }

    /// Which of how many shards a share is: those of one rank are side by side.
    pub(crate) fn shard(&self, share: DeviceShard) -> (u64, u64) {
        let shard = self.shard * share.of + share.index;
        (shard, self.shards.saturating_mul(share.of))
    }

    /// The batches of any epoch, if all are alike.
    pub(crate) fn even(&self, batching: &EvenBatching, share: DeviceShard) -> Even {
        let (shard, shards) = self.shard(share);
        Even::whole(batching.samples, batching.batch_size, self.last_batch).of_shard(
            shard,
            shards,
            batching.sharding,
        )
    }

    fn listed(&self, lists: Arc<Lists>, position: u64, share: DeviceShard) -> Listed {
        let drops_last = self.last_batch == LastBatch::Drop;
        Listed::new(lists, position, self.shard(share), drops_last)
    }

    /// Which samples stand at the positions of an epoch with these batches.
    pub(crate) fn order(&self, partition: &Partition) -> EpochOrder {
        match (&self.batching, partition) {
            (_, Partition::Listed(listed)) => EpochOrder::Listed(listed.clone()),
            (Batching::Even(batching), _) => EpochOrder::Sampled(Arc::clone(&batching.sampler)),
            (Batching::Listed(_), Partition::Even(_)) => {
                unreachable!("`cut` has listed its batches")
            }
        }
    }

    /// Which blocks a share of this rank needs of an epoch, from a position on, if its sampler knows.
    pub(crate) fn openings(&self, start: Start, share: DeviceShard) -> Option<Openings> {
        let Batching::Even(batching) = &self.batching else {
            return None;
        };
        let even = self.even(batching, share).from(start.position);
        // (Ranks that do not take turns need all blocks.)
        let (lane, lanes) = even.lane().unwrap_or((0, 1));
        let (sampler, epoch) = (&batching.sampler, start.epoch);
        sampler.openings(epoch, start.position, lane, lanes)
    }

    /// How many batches epoch 0 has, and how many samples the largest of them.
    pub(crate) fn first_epoch(&self) -> FirstEpoch {
        match &self.batching {
            Batching::Even(batching) => FirstEpoch {
                batches: self.even(batching, DeviceShard::WHOLE).batches(),
                most_rows: batching.batch_size,
            },
            Batching::Listed(lister) => {
                lister.first(|lists| self.listed(lists, 0, DeviceShard::WHOLE))
            }
        }
    }

    /// How many tasks an epoch may have at most.
    pub(crate) fn most_tasks(&self) -> u64 {
        match &self.batching {
            Batching::Even(batching) => batching.samples.saturating_add(batching.batch_size as u64),
            Batching::Listed(_) => u64::MAX / 16, // a list lies in memory
        }
    }

    /// The cache of the pinning device's host, if known.
    pub(crate) fn machine(&self) -> Option<Machine> {
        let device = &self.pinning.as_ref()?.device;
        let (resident_bytes, least_part_bytes) = device.inner.resident_bytes()?;
        Some(Machine {
            resident_bytes,
            least_part_bytes,
        })
    }

    /// What epochs are for that go to a device.
    pub(crate) fn destination(&self, device: &Device, depth: usize) -> Destination {
        let pinning = self.pinning.as_ref();
        let is = |same: fn(&Device, &Device) -> bool| {
            pinning.is_some_and(|pinning| !pinning.by_copy && same(&pinning.device, device))
        };
        Destination::Device {
            depth,
            pins: is(|ours, other| Arc::ptr_eq(&ours.inner, &other.inner)),
            offload: match is(|ours, other| ours.inner.driver.same_device(&other.inner.driver)) {
                true => device.inner.offload(),
                false => Offload::default(),
            },
        }
    }

    /// How many slabs an epoch needs: for the open batches, the one that the consumer has, one that is being copied,
    /// and `depth` on their way to the device.
    pub(crate) fn slabs(&self, depth: usize) -> usize {
        self.prefetch.saturating_add(depth).saturating_add(2)
    }

    /// The same with so many open batches, but no more than its batches can use if no epoch follows: each may be built in one slab and
    /// moved to another.
    pub(crate) fn slabs_for(
        &self,
        prefetch: usize,
        depth: usize,
        batches: u64,
        is_followed: bool,
    ) -> usize {
        let slabs = prefetch.saturating_add(depth).saturating_add(2);
        if is_followed {
            return slabs;
        }
        let most = usize::try_from(batches.saturating_mul(2)).unwrap_or(usize::MAX);
        slabs.min(most)
    }
}
