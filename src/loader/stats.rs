//! Where the time goes: sums over an epoch, and a sentence that names what limits the loop.

use std::fmt;
use std::time::Duration;

use crate::pipeline::{Crew, Options, Seat};

/// Where the time of one epoch went ([`DataLoader::stats`](crate::DataLoader::stats)). It prints as a short table.
///
/// Loading, decoding, collating and pinning are sums over all workers; the others are of one stream or thread each.
///
/// # Examples
///
/// ```
/// use pinfeed::loader::Limit;
/// use pinfeed::{DataLoader, from_fn};
///
/// let loader = DataLoader::builder(from_fn(10, |index, _| Ok(index as i64)))
///     .batch_size(4)
///     .build()?;
/// for batch in &loader {
///     batch?;
/// }
/// let stats = loader.stats();
/// println!("{stats}"); // a table, and a sentence that names what limits the loop
/// assert_eq!((stats.batches, stats.samples), (3, 10));
/// if stats.limit() == Limit::Loading {
///     println!("{} ms in the data set's `get`", stats.loading_ns / 1_000_000);
/// }
/// # Ok::<(), pinfeed::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Stats {
    /// The epoch.
    pub epoch: u64,
    /// Samples in the batches that were made.
    pub samples: u64,
    /// Batches made.
    pub batches: u64,
    /// The number of workers that load now; 0 if the caller loads.
    pub workers: usize,
    /// Why it is that many.
    pub crew: Crew,
    /// Time in the data set's `get`, over all workers, in nanoseconds.
    pub loading_ns: u64,
    /// Time that lazy samples took to make the elements of their rows, over all workers, in nanoseconds: decoding and transforming
    /// pictures and masks, and what your own samples count by [`Row::decoding`](crate::sample::Row::decoding).
    pub decoding_ns: u64,
    /// Time filling rows and finishing batches, without decoding, over all workers, in nanoseconds.
    pub collating_ns: u64,
    /// Time taking slabs (page-locking new ones) and copying into them, in nanoseconds.
    pub pinning_ns: u64,
    /// Time that batches waited for a slab, in nanoseconds.
    pub slab_wait_ns: u64,
    /// Copies to the device.
    pub transfers: u64,
    /// Bytes copied to the device.
    pub transfer_bytes: u64,
    /// Time of the copies to the device, measured by events on its stream, in nanoseconds.
    pub transfer_ns: u64,
    /// Batches whose processing was measured.
    pub processed: u64,
    /// Time from the first loan of a device batch to the end of its last, measured by events on the consumer's stream, in
    /// nanoseconds.
    pub processing_ns: u64,
    /// The host's own time between two batches, in nanoseconds.
    pub host_ns: u64,
    /// Time that the consumer waited for the loader, in nanoseconds.
    pub consumer_wait_ns: u64,
    /// Batches, or parts of batches, that should have been page-locked and were not.
    pub unpinned: u64,
    /// How many of these the budget of page-locked memory had no room for
    /// ([`Device::set_pinned_budget_bytes`](crate::Device::set_pinned_budget_bytes)).
    pub over_budget: u64,
    /// The size of the largest of them, in bytes.
    pub over_budget_bytes: u64,
    /// The current pinned budget of the device that the loader pins for, in bytes; 0 if the loader does not pin.
    pub pinned_budget_bytes: u64,
    /// The most bytes of host memory that were in flight at once while batches of the epoch were loaded; 0 without
    /// [`max_bytes_in_flight`](crate::loader::Builder::max_bytes_in_flight).
    pub most_bytes_in_flight: u64,
    /// How many of the unpinned ones the system refused to page-lock.
    pub unlockable: u64,
    /// Samples that failed, and whose rows others took ([`OnError::Replace`](crate::loader::OnError::Replace)).
    pub replaced: u64,
    /// Samples that failed, and were left out ([`OnError::Skip`](crate::loader::OnError::Skip)).
    pub skipped: u64,
    /// How often samples were tried again ([`Builder::retry`](crate::loader::Builder::retry)).
    pub retried: u64,
    /// Which samples were replaced, left out or tried again, and why they failed: the first hundred.
    pub bad_samples: Vec<String>,
}

/// What limits a loop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Limit {
    /// Nothing was measured.
    Unknown,
    /// The consumer: the training step is slower than the loader.
    Consumer,
    /// The data set's `get`.
    Loading,
    /// Lazy samples: decoding and transforming pictures.
    Decoding,
    /// Filling rows and finishing batches.
    Collating,
    /// Taking slabs, or waiting for them.
    Pinning,
    /// The copies to the device.
    Transfer,
}

impl Stats {
    pub(super) fn of(seat: &Seat, options: &Options, (workers, crew): (usize, Crew)) -> Stats {
        let meter = &seat.meter;
        meter.settle();
        Stats {
            epoch: seat.start.epoch,
            samples: meter.samples.get(),
            batches: meter.batches.get(),
            workers,
            crew,
            loading_ns: meter.loading_ns.get(),
            decoding_ns: meter.decoding_ns.get(),
            collating_ns: meter.collating_ns.get(),
            pinning_ns: meter.pinning_ns.get(),
            slab_wait_ns: meter.slab_wait_ns.get(),
            transfers: meter.transfers.get(),
            transfer_bytes: meter.transfer_bytes.get(),
            transfer_ns: meter.transfer_ns.get(),
            processed: meter.processed.get(),
            processing_ns: meter.processing_ns.get(),
            host_ns: meter.host_ns.get(),
            consumer_wait_ns: meter.consumer_wait_ns.get(),
            unpinned: meter.unpinned.get(),
            over_budget: meter.over_budget.get(),
            over_budget_bytes: meter.over_budget_bytes.get(),
            pinned_budget_bytes: options.pinning.as_ref().map_or(0, |pinning| {
                pinning.device.memory().pinned_budget_bytes as u64
            }),
            most_bytes_in_flight: meter.most_bytes_in_flight.get(),
            unlockable: meter.unlockable.get(),
            replaced: meter.replaced.get(),
            skipped: meter.skipped.get(),
            retried: meter.retried.get(),
            bad_samples: meter.bad_samples(),
        }
    }

    /// The wall time of the consumer's loop: the wait for batches, and its own work between them.
    pub fn wall_ns(&self) -> u64 {
        self.consumer_wait_ns + self.host_ns
    }

    /// Says what limits the loop: the consumer, if it waits for less than a tenth of the time; otherwise the stage of the loader
    /// that takes longest, divided by the number of threads that do it.
    pub fn limit(&self) -> Limit {
        if self.batches == 0 || self.wall_ns() == 0 {
            return Limit::Unknown;
        }
        if self.consumer_wait_ns * 10 < self.wall_ns() {
            return Limit::Consumer;
        }
        let workers = self.workers.max(1) as u64;
        let stages = [
            (Limit::Loading, self.loading_ns / workers),
            (Limit::Decoding, self.decoding_ns / workers),
            (Limit::Collating, self.collating_ns / workers),
            (Limit::Pinning, self.pinning_ns.max(self.slab_wait_ns)),
            (Limit::Transfer, self.transfer_ns),
        ];
        stages
            .into_iter()
            .max_by_key(|(_, ns)| *ns)
            .map_or(Limit::Unknown, |(limit, _)| limit)
    }

    /// Which samples were replaced or left out.
    fn what_was_bad(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.bad_samples.is_empty() {
            return Ok(());
        }
        let (replaced, skipped, retried) = (self.replaced, self.skipped, self.retried);
        writeln!(
            f,
            "bad samples: {replaced} replaced, {skipped} left out, {retried} times tried again"
        )?;
        for bad in self.bad_samples.iter().take(PRINTED) {
            writeln!(f, "  {bad}")?;
        }
        match self.bad_samples.len().saturating_sub(PRINTED) {
            0 => Ok(()),
            more => writeln!(f, "  and {more} more"),
        }
    }

    fn why_unpinned(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let held = self.unpinned.saturating_sub(self.over_budget);
        let held = held.saturating_sub(self.unlockable);
        let batches = |count: u64| if count == 1 { "batch" } else { "batches" };
        if held > 0 {
            let noun = batches(held);
            let prefetch = match self.workers {
                0 => "", // it needs workers
                _ => ", or raise prefetch",
            };
            writeln!(
                f,
                "{held} {noun} went unpinned: the program held all slabs (drop batches sooner{prefetch})"
            )?;
        }
        if self.over_budget > 0 {
            let (count, noun) = (self.over_budget, batches(self.over_budget));
            let (bytes, budget) = (self.over_budget_bytes, self.pinned_budget_bytes);
            writeln!(
                f,
                "{count} {noun} went unpinned: a batch is {bytes} bytes, and the budget of {budget} had no room \
                 (Device::set_pinned_budget_bytes, or lower batch_size)"
            )?;
        }
        if self.unlockable > 0 {
            let (count, noun) = (self.unlockable, batches(self.unlockable));
            writeln!(
                f,
                "{count} {noun} went unpinned: the system did not page-lock their memory (raise its limit, or free memory)"
            )?;
        }
        Ok(())
    }

    fn advice(&self) -> &'static str {
        match self.limit() {
            Limit::Unknown if self.wall_ns() > 0 => {
                "Nothing was measured: there was no batch without an error."
            }
            Limit::Unknown => "Nothing was measured yet: iterate an epoch first.",
            Limit::Consumer if self.workers == 0 || self.crew.is_auto() => {
                "The training step limits the loop: the loader keeps up."
            }
            Limit::Consumer => {
                "The training step limits the loop: the loader keeps up, and fewer workers might do."
            }
            Limit::Loading => {
                "Loading limits the loop: raise num_workers, or make the data set's `get` cheaper."
            }
            Limit::Decoding if cfg!(feature = "turbojpeg") => {
                "Decoding limits the loop: raise num_workers, or have less to decode (ImageTransform::scaled_decoding, smaller files)."
            }
            Limit::Decoding => {
                "Decoding limits the loop: raise num_workers, build with the feature `turbojpeg`, or have less to decode \
                 (ImageTransform::scaled_decoding, smaller files)."
            }
            Limit::Collating => {
                "Collating limits the loop: raise num_workers, or make the collate_fn cheaper (where there is none: have samples \
                 fill their row in place)."
            }
            Limit::Pinning if self.workers == 0 => {
                "Slabs limit the loop: raise the pinned budget, and drop batches sooner."
            }
            Limit::Pinning => {
                "Slabs limit the loop: raise prefetch or the pinned budget, and drop batches sooner."
            }
            Limit::Transfer => {
                "The link to the device limits the loop: send smaller elements (u8 instead of f32)."
            }
        }
    }
}

impl fmt::Display for Stats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let batches = self.batches.max(1);
        let wall = Duration::from_nanos(self.wall_ns());
        let rate = self.samples as f64 / wall.as_secs_f64().max(1e-9);
        write!(
            f,
            "epoch {}: {} batches, {} samples in {:.2} s ({rate:.0} samples/s, {} workers",
            self.epoch,
            self.batches,
            self.samples,
            wall.as_secs_f64(),
            self.workers
        )?;
        match self.crew.is_auto() {
            true => writeln!(f, ": {})", self.crew)?,
            false => writeln!(f, ")")?,
        }
        writeln!(f, "{:<28}{:>12}{:>14}", "stage", "total ms", "ms per batch")?;
        let mut row = |name: &str, ns: u64, count: u64| {
            writeln!(
                f,
                "{name:<28}{:>12.1}{:>14.3}",
                ns as f64 / 1e6,
                ns as f64 / 1e6 / count.max(1) as f64
            )
        };
        row("loading (all workers)", self.loading_ns, batches)?;
        if self.decoding_ns > 0 {
            row("decoding (all workers)", self.decoding_ns, batches)?;
        }
        row("collating (all workers)", self.collating_ns, batches)?;
        row("pinning", self.pinning_ns, batches)?;
        row("waiting for a slab", self.slab_wait_ns, batches)?;
        if self.transfers > 0 {
            row("transfer to the device", self.transfer_ns, self.transfers)?;
        }
        if self.processed > 0 {
            row(
                "processing on the device",
                self.processing_ns,
                self.processed,
            )?;
        }
        row("host between batches", self.host_ns, batches)?;
        row("consumer waiting", self.consumer_wait_ns, batches)?;
        if self.transfer_ns > 0 {
            writeln!(
                f,
                "transfer: {:.1} GB/s while copying",
                self.transfer_bytes as f64 / self.transfer_ns as f64
            )?;
        }
        self.why_unpinned(f)?;
        self.what_was_bad(f)?;
        match self.crew.is_auto() {
            true => f.write_str(&self.advice().replace("raise num_workers", MORE_CORES)),
            false => f.write_str(self.advice()),
        }
    }
}

/// What is said where the number of workers was left to the loader.
const MORE_CORES: &str = "set num_workers above the number of cores if samples wait (for a disk, a server), or let the process have more cores";

/// How many bad samples are printed.
const PRINTED: usize = 5;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_sentence_names_what_limits_and_the_knob() {
        let stats = Stats {
            batches: 10,
            samples: 100,
            workers: 4,
            loading_ns: 4_000_000_000,
            collating_ns: 100_000_000,
            host_ns: 100_000_000,
            consumer_wait_ns: 900_000_000,
            ..Stats::default()
        };
        assert_eq!(stats.limit(), Limit::Loading);
        assert!(
            stats
                .to_string()
                .ends_with("raise num_workers, or make the data set's `get` cheaper.")
        );
        let fed = Stats {
            consumer_wait_ns: 1_000,
            ..stats.clone()
        };
        assert_eq!(fed.limit(), Limit::Consumer);
        assert!(!stats.to_string().contains("decoding"));
        let lazy = Stats {
            decoding_ns: 5_000_000_000,
            ..stats.clone()
        };
        assert_eq!(lazy.limit(), Limit::Decoding);
        let table = lazy.to_string();
        assert!(table.contains("\ndecoding (all workers)            5000.0       500.000\n"));
        assert_eq!(table.contains("turbojpeg"), !cfg!(feature = "turbojpeg"));
        assert!(table.contains("\nDecoding limits the loop: raise num_workers"));
    }

    /// No advice that `build` would refuse, or that changes nothing.
    #[test]
    fn the_advice_is_for_the_loop_at_hand() {
        let fed = Stats {
            batches: 10,
            host_ns: 1_000_000,
            unpinned: 3,
            ..Stats::default()
        };
        let [without, with] = [0, 4].map(|workers| {
            Stats {
                workers,
                ..fed.clone()
            }
            .to_string()
        });
        assert!(with.contains("raise prefetch"), "{with}");
        assert!(!without.contains("prefetch"), "{without}"); // it needs workers
        assert!(with.contains("fewer workers"), "{with}");
        assert!(!without.contains("fewer workers"), "{without}");

        let auto = Stats {
            workers: 4,
            crew: Crew::AllCores,
            ..fed.clone()
        };
        let starved = Stats {
            loading_ns: 1_000_000,
            consumer_wait_ns: 1_000_000,
            ..auto.clone()
        };
        let (auto, starved) = (auto.to_string(), starved.to_string());
        assert!(auto.contains(" 4 workers: all cores)\n"), "{auto}");
        assert!(!auto.contains("fewer workers"), "{auto}");
        assert!(
            starved.contains("let the process have more cores"),
            "{starved}"
        );
        assert!(!starved.contains("raise num_workers"), "{starved}");

        let slabs = Stats {
            slab_wait_ns: 1_000_000,
            consumer_wait_ns: 1_000_000,
            ..fed.clone()
        };
        assert_eq!(slabs.limit(), Limit::Pinning);
        assert!(!slabs.to_string().contains("prefetch"), "{slabs}");

        let failed = Stats {
            consumer_wait_ns: 1_000_000,
            ..Stats::default()
        };
        assert_eq!(failed.limit(), Limit::Unknown);
        assert!(
            failed
                .to_string()
                .ends_with("there was no batch without an error.")
        );
        assert!(
            Stats::default()
                .to_string()
                .ends_with("iterate an epoch first.")
        );
    }
}
