//! What limits a loop, as its statistics say.

use std::time::Duration;

use super::Stats;

/// Of a shorter loop, it is not said what limits it: threads that start, and first batches, are most of it.
const SHORTEST_JUDGED: Duration = Duration::from_millis(10);

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
    /// The copies to the device.
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
        let stages = [
            (Limit::Sampling, self.sampling / workers),
            (Limit::Pulling, self.pulling),
            (Limit::Loading, self.loading.total / workers),
            (Limit::Decoding, self.decoding.total / workers),
            (Limit::DeviceDecoding, self.decoder.decoding),
            (Limit::Collating, self.collating.total / workers),
            (Limit::Pinning, self.pinning.max(self.slab_wait.total)),
            (Limit::Transfer, self.transfers.total),
        ];
        stages
            .into_iter()
            .max_by_key(|(_, time)| *time)
            .map_or(Limit::Unknown, |(limit, _)| limit)
    }
}
