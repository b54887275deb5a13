//! What limits a loop, as its statistics say.

use std::time::Duration;

use super::Stats;
use crate::tuning::{COPYING_BYTES_PER_10_NS, COPYING_WORKERS, GATHERED_ROW_BYTES};

/// Of a shorter loop, it is not said what limits it: threads that start, and first batches, are most of it.
const SHORTEST_JUDGED: Duration = Duration::from_millis(10);

/// Copying less takes less time (5 us at 50 GB/s) than the driver's calls for it.
const LITTLE_BYTES: u64 = 256 << 10;

/// What limits a loop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Limit {
    /// Nothing was measured, or too little: the loop took less than 10 ms.
    Unknown,
    /// The consumer: the training step is slower than the loader.
    Consumer,
    /// The sampler, or the batch sampler.
    Sampling,
    /// The iterable, from which one worker at a time pulls items.
    Pulling,
    /// The data set's `get`.
    Loading,
    /// Lazy samples: decoding and transforming pictures.
    Decoding,
    /// The device's decoder, which one thread drives, however many workers there are.
    DeviceDecoding,
    /// Filling rows and finishing batches.
    Collating,
    /// Taking slabs, or waiting for them.
    Pinning,
    /// Submitting copies to the device: they are so small that starting one costs more than what it copies.
    Submission,
    /// The copies to the device: the link.
    Transfer,
}

impl Stats {
    /// Returns what limits the loop: the consumer, if it waits for less than a tenth of the time (as [`starvation`](Stats::starvation)
    /// counts); otherwise the stage of the loader that takes longest, divided by the number of threads that do it. It is [`Limit::Unknown`]
    /// if the program was given no batch, or its loop took less than 10 ms.
    pub fn limit(&self) -> Limit {
        if self.batches == 0 || self.wall_time() < SHORTEST_JUDGED {
            return Limit::Unknown;
        }
        let (waited, wall) = self.waited();
        if waited.saturating_mul(10) < wall {
            return Limit::Consumer;
        }
        let workers = u32::try_from(self.workers.max(1)).unwrap_or(u32::MAX);
        // (What each device has of its own goes on side by side.)
        let devices = self.loop_time().as_secs_f64() / self.wall_time().as_secs_f64();
        let of_each = |time: Duration| time.div_f64(devices.max(1.0));
        let stages = [
            (Limit::Sampling, self.sampling / workers),
            (Limit::Pulling, self.pulling),
            (Limit::Loading, self.loading.total / workers),
            (Limit::Decoding, self.decoding.total / workers),
            (Limit::DeviceDecoding, of_each(self.decoder.decoding)),
            (Limit::Collating, self.collating.total / workers),
            (Limit::Pinning, self.pinning.max(self.slab_wait.total)),
            (self.sending(), of_each(self.transfers.total)),
        ];
        stages
            .into_iter()
            .max_by_key(|(_, time)| *time)
            .map_or(Limit::Unknown, |(limit, _)| limit)
    }

    /// What limits a loop that sending limits.
    fn sending(&self) -> Limit {
        let each = self.transfers.bytes / self.transfers.count.max(1);
        if each < LITTLE_BYTES {
            Limit::Submission
        } else {
            Limit::Transfer
        }
    }

    /// Where loading limits the loop and is little more than copying long rows, which a device could gather itself
    /// ([`Tensor::register`](crate::Tensor::register)): bytes a second of all workers, by the clock, and of one while it is busy.
    pub fn copying(&self) -> Option<(f64, f64)> {
        if !matches!(self.limit(), Limit::Loading | Limit::Collating) {
            return None;
        }
        let busy = self.loading.total + self.collating.total;
        let row_bytes = self.transfers.bytes / self.samples.max(1);
        let are_long = row_bytes >= GATHERED_ROW_BYTES as u64;
        if self.workers == 0 || !self.decoding.total.is_zero() || busy.is_zero() || !are_long {
            return None;
        }
        let bytes = self.transfers.bytes as f64;
        let (all, each) = (
            bytes / self.wall_time().as_secs_f64(),
            bytes / busy.as_secs_f64(),
        );
        let copies = 1e8 * COPYING_BYTES_PER_10_NS as f64;
        (each >= copies || all >= copies * COPYING_WORKERS as f64).then_some((all, each))
    }
}
