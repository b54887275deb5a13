//! Statistics as a table, with a sentence that names what limits the loop.

use std::fmt;
use std::time::Duration;

use super::{Histogram, Limit, Stats};

impl Stats {
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
            Limit::Unknown if self.wall_ns() == 0 => {
                "Nothing was measured yet: iterate an epoch first."
            }
            Limit::Unknown if self.batches == 0 => {
                "Nothing was measured: there was no batch without an error."
            }
            Limit::Unknown => {
                "The loop is too short to tell what limits it: let it take more than 10 ms."
            }
            Limit::Consumer if self.workers == 0 || self.sizing.is_auto() => {
                "The training step limits the loop: the loader keeps up."
            }
            Limit::Consumer => {
                "The training step limits the loop: the loader keeps up, and fewer workers might do."
            }
            Limit::Sampling => {
                "The sampler limits the loop: raise num_workers, or make it cheaper (`Sampler::indices` is asked for several positions at \
                 once; the lists of a batch sampler can be made ahead, by `epochs`)."
            }
            Limit::Pulling => {
                "The iterable limits the loop: one worker at a time pulls its items, so do less in its `next` and more in the source's \
                 `load`, which all workers do, or pull larger items."
            }
            Limit::Loading if self.fetch_wait_ns >= self.loading_ns / 2 => {
                "Requests limit the loop: raise `with_in_flight` of the Staged data set, its `with_max_bytes` or `with_lookahead` if these \
                 are what is reached, or fetch less for a sample."
            }
            Limit::Loading => {
                "Loading limits the loop: raise num_workers, or make the data set's `get` cheaper."
            }
            Limit::Decoding if cfg!(feature = "turbojpeg") => {
                "Decoding limits the loop: raise num_workers, or have less to decode (smaller files; of JPEG files \
                 ImageTransform::with_scaled_decoding)."
            }
            Limit::Decoding => {
                "Decoding limits the loop: raise num_workers, or have less to decode (smaller files; of JPEG files \
                 ImageTransform::with_scaled_decoding, and the feature `turbojpeg` decodes them faster)."
            }
            Limit::DeviceDecoding => {
                "The device's decoder limits the loop: start the program with CUDA_DEVICE_MAX_CONNECTIONS=32 if the device trains meanwhile, let \
                 the workers decode more (Decode::Both, a smaller device_share), or have less to decode (smaller files)."
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
        let wall = Duration::from_nanos(self.wall_ns());
        // (Loaded ahead, of an epoch that was left, or failed on their way to the device.)
        let more = self.made_batches.saturating_sub(self.batches);
        let rate = self.samples_per_second();
        let epoch = self.epoch;
        match self.epochs {
            0 | 1 => write!(f, "epoch {epoch}: ")?,
            epochs => write!(f, "{epochs} epochs to {epoch}: ")?,
        }
        write!(
            f,
            "{} batches, {} samples in {:.2} s ({rate:.0} samples/s, {} workers",
            self.batches,
            self.samples,
            wall.as_secs_f64(),
            self.workers
        )?;
        match self.sizing.is_auto() {
            true => writeln!(f, ": {})", self.sizing)?,
            false => writeln!(f, ")")?,
        }
        if more > 0 {
            writeln!(
                f,
                "made and not given out: {more} batches more, which count below for loading, decoding, collating and pinning"
            )?;
        }
        self.rows(f)?;
        if self.transfer_ns > 0 && self.transfer_bytes > 0 {
            writeln!(
                f,
                "transfer: {:.1} GB/s while copying",
                self.transfer_bytes as f64 / self.transfer_ns as f64
            )?;
        }
        self.who_decoded(f)?;
        self.how_full(f)?;
        self.why_unpinned(f)?;
        self.what_was_bad(f)?;
        match self.sizing.is_auto() {
            true => f.write_str(&self.advice().replace("raise num_workers", MORE_CORES)),
            false => f.write_str(self.advice()),
        }
    }
}

impl Stats {
    fn rows(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (batches, given) = (self.made_batches, self.batches);
        let (samples, none) = (Some("sample"), &Histogram::default());
        let rows = [
            ("asking the sampler", self.sampling_ns, batches, none, None),
            (
                "pulling from the iterable",
                self.pulling_ns,
                batches,
                none,
                None,
            ),
            (
                "loading (all workers)",
                self.loading_ns,
                batches,
                &self.loading_times,
                samples,
            ),
            (
                "decoding (all workers)",
                self.decoding_ns,
                batches,
                &self.decoding_times,
                samples,
            ),
            (
                "decoding by the device",
                self.device_decoding_ns,
                batches,
                none,
                None,
            ),
            (
                "collating (all workers)",
                self.collating_ns,
                batches,
                &self.collating_times,
                None,
            ),
            ("pinning", self.pinning_ns, batches, none, None),
            (
                "waiting for a slab",
                self.slab_wait_ns,
                batches,
                &self.slab_wait_times,
                None,
            ),
            (
                "transfer to the device",
                self.transfer_ns,
                self.transfers,
                &self.transfer_times,
                None,
            ),
            (
                "processing on the device",
                self.processing_ns,
                self.processed,
                none,
                None,
            ),
            ("host between batches", self.host_ns, given, none, None),
            (
                "consumer waiting",
                self.consumer_wait_ns,
                given,
                &self.consumer_wait_times,
                None,
            ),
        ];
        let ms = |ns: u64| ns as f64 / 1e6;
        let (batch, p50, p99) = ("ms per batch", "p50", "p99");
        writeln!(
            f,
            "{:<28}{:>10}{batch:>14}{p50:>10}{p99:>10}",
            "stage", "total ms"
        )?;
        for (name, ns, count, times, each) in rows {
            let is_optional = ["decoding", "transfer", "processing", "pulling"];
            let is_optional = is_optional.iter().any(|start| name.starts_with(start));
            if is_optional && (ns == 0 || count == 0) {
                continue;
            }
            // A sampler that is as good as free is not worth a line.
            if name.starts_with("asking") && ns < self.loading_ns.max(self.collating_ns) / 20 {
                continue;
            }
            write!(
                f,
                "{name:<28}{:>10.1}{:>14.3}",
                ms(ns),
                ms(ns) / count.max(1) as f64
            )?;
            if times.count() > 0 {
                write!(f, "{:>10.3}{:>10.3}", ms(times.p50()), ms(times.p99()))?;
                each.map_or(Ok(()), |each| write!(f, " a {each}"))?;
            }
            writeln!(f)?;
        }
        Ok(())
    }

    /// How many pictures the device decoded, of those that it should have, and why the CPU decoded the others.
    fn who_decoded(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let by_cpu: u64 = self.left_to_cpu.values().sum();
        let all = self.device_decoded + by_cpu;
        if all == 0 {
            return Ok(());
        }
        write!(
            f,
            "pictures: {} of {all} were decoded by the device",
            self.device_decoded
        )?;
        match self.decoded_by_kernels {
            0 => {}
            all if all == self.device_decoded => f.write_str(" (by kernels)")?,
            some => write!(f, " ({some} by kernels)")?,
        }
        if by_cpu > 0 {
            // The most frequent reason first.
            let mut reasons: Vec<_> = self.left_to_cpu.iter().collect();
            reasons.sort_by_key(|(reason, count)| (std::cmp::Reverse(**count), **reason));
            let reasons = reasons
                .iter()
                .map(|(reason, count)| format!("{reason} {count}"));
            let reasons: Vec<String> = reasons.collect();
            write!(f, ", {by_cpu} by the CPU: {}", reasons.join(", "))?;
        }
        writeln!(f)
    }

    /// How full the queue was, and how long it was waited for.
    fn how_full(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ready = &self.ready_batches;
        if ready.count() > 0 {
            let (mean, none) = (ready.mean(), 100.0 * ready.share_of_zero());
            writeln!(
                f,
                "queue: {mean:.1} batches were ready when one was asked for, none {none:.0} % of the time"
            )?;
        }
        if self.has_others_than_first() {
            let (share, first) = (100.0 * self.starvation(), self.first_wait_ns as f64 / 1e6);
            let first_of = if self.epochs > 1 {
                "the first of each epoch"
            } else {
                "the first"
            };
            let of = if self.epochs > 1 { " in all" } else { "" };
            writeln!(
                f,
                "starvation: {share:.1} % of the time was waiting for batches, beside {first:.1} ms{of} for {first_of}"
            )?;
        }
        Ok(())
    }
}

/// What is said where the number of workers was left to the loader.
const MORE_CORES: &str = "set num_workers above the number of cores if samples wait (for a disk, a server), or let the process have more cores";

/// How many bad samples are printed.
const PRINTED: usize = 5;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::meter::Buckets;
    use crate::pipeline::WorkerSizing;

    #[test]
    fn the_last_sentence_names_what_limits_and_the_knob() {
        let stats = Stats {
            batches: 10,
            made_batches: 10,
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
        // One thread drives a device's decoder: more workers do not help.
        let by_device = Stats {
            device_decoding_ns: 1_500_000_000,
            ..lazy.clone()
        };
        assert_eq!(by_device.limit(), Limit::DeviceDecoding);
        let table = by_device.to_string();
        assert!(
            table.contains("\ndecoding by the device          1500.0       150.000"),
            "{table}"
        );
        assert!(
            table.contains("Decode::Both")
                && table.contains("CONNECTIONS=32")
                && !table.contains("num_workers"),
            "{table}"
        );
        let table = lazy.to_string();
        assert!(
            table.contains("\ndecoding (all workers)          5000.0       500.000\n"),
            "{table}"
        );
        assert_eq!(table.contains("turbojpeg"), !cfg!(feature = "turbojpeg"));
        assert!(table.contains("\nDecoding limits the loop: raise num_workers"));
    }

    #[test]
    fn starvation_is_what_was_waited_for_after_the_first_batch() {
        let waits = Buckets::default();
        for wait in [200_000_000, 50_000_000, 49_000_000] {
            waits.count(wait);
        }
        let stats = Stats {
            epochs: 1,
            first_waits: 1,
            samples: 30,
            batches: 3,
            workers: 2,
            loading_ns: 9_000_000,
            consumer_wait_ns: 299_000_000,
            first_wait_ns: 200_000_000,
            host_ns: 901_000_000,
            consumer_wait_times: Histogram::of(&waits),
            ..Stats::default()
        };
        assert_eq!(stats.starvation(), 0.099);
        assert_eq!(stats.limit(), Limit::Consumer);
        let table = stats.to_string();
        assert!(
            table.contains("\nstarvation: 9.9 % of the time was waiting for batches, beside 200.0 ms for the first\n"),
            "{table}"
        );
        // Two such epochs starve as much as one.
        let twice = stats.clone() + stats.clone();
        assert_eq!(twice.starvation(), 0.099);
        assert!(
            twice
                .to_string()
                .contains("beside 400.0 ms in all for the first of each epoch")
        );
        let slower = Stats {
            consumer_wait_ns: 301_000_000,
            ..stats.clone()
        };
        assert_eq!(slower.limit(), Limit::Loading);
        // Of one batch, there is nothing but the first.
        let first = Buckets::default();
        first.count(200_000_000);
        let one = Stats {
            consumer_wait_ns: 200_000_000,
            host_ns: 200_000_000,
            consumer_wait_times: Histogram::of(&first),
            ..stats
        };
        assert_eq!(one.starvation(), 0.5);
        assert_eq!(Stats::default().starvation(), 0.0);
    }

    #[test]
    fn the_queue_and_the_quantiles_are_in_the_table() {
        let [loading, ready] = [(); 2].map(|()| Buckets::default());
        (0..100).for_each(|sample| loading.count(if sample < 98 { 2_000_000 } else { 64_000_000 }));
        for batches in [0, 2, 2, 2] {
            ready.count(batches);
        }
        let stats = Stats {
            made_batches: 10,
            loading_ns: 324_000_000,
            loading_times: Histogram::of(&loading),
            ready_batches: Histogram::of(&ready),
            ..Stats::default()
        };
        let table = stats.to_string();
        assert!(
            table.contains("\nloading (all workers)            324.0        32.400     2.032    65.012 a sample\n"),
            "{table}"
        );
        assert!(
            table.contains(
                "\nqueue: 1.5 batches were ready when one was asked for, none 25 % of the time\n"
            ),
            "{table}"
        );
    }

    #[test]
    fn it_says_who_decoded_and_why() {
        assert!(!Stats::default().to_string().contains("pictures:"));
        let mut stats = Stats {
            device_decoded: 90,
            ..Stats::default()
        };
        let all = "\npictures: 90 of 90 were decoded by the device\n";
        assert!(stats.to_string().contains(all), "{stats}");
        stats.decoded_by_kernels = 90;
        let all = "\npictures: 90 of 90 were decoded by the device (by kernels)\n";
        assert!(stats.to_string().contains(all), "{stats}");
        stats.decoded_by_kernels = 30; // of several devices, one has no hardware
        let of_them = "\npictures: 90 of 90 were decoded by the device (30 by kernels)\n";
        assert!(stats.to_string().contains(of_them), "{stats}");
        stats.decoded_by_kernels = 0;
        let reasons = [("not JPEG", 3), ("a filter", 3), ("progressive JPEG", 4)];
        stats.left_to_cpu = reasons.into();
        let some = "\npictures: 90 of 100 were decoded by the device, 10 by the CPU: progressive JPEG 4, a filter 3, not JPEG 3\n";
        assert!(stats.to_string().contains(some), "{stats}");
    }

    /// No advice that `build` would refuse, or that changes nothing.
    #[test]
    fn the_advice_is_for_the_loop_at_hand() {
        let fed = Stats {
            batches: 10,
            host_ns: 100_000_000,
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
            sizing: WorkerSizing::AllCores,
            ..fed.clone()
        };
        let starved = Stats {
            loading_ns: 100_000_000,
            consumer_wait_ns: 100_000_000,
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
            slab_wait_ns: 100_000_000,
            consumer_wait_ns: 100_000_000,
            ..fed.clone()
        };
        assert_eq!(slabs.limit(), Limit::Pinning);
        assert!(!slabs.to_string().contains("prefetch"), "{slabs}");

        let failed = Stats {
            consumer_wait_ns: 100_000_000,
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

    /// A stage of each kind, and what is said of it.
    #[test]
    fn each_stage_has_its_advice() {
        let of = |stage: fn(&mut Stats) -> &mut u64| {
            let mut stats = Stats {
                batches: 10,
                made_batches: 12,
                workers: 2,
                consumer_wait_ns: 1_000_000_000,
                collating_ns: 1_000_000,
                ..Stats::default()
            };
            *stage(&mut stats) = 2_000_000_000;
            stats
        };
        let sampling = of(|stats| &mut stats.sampling_ns);
        assert_eq!(sampling.limit(), Limit::Sampling);
        let said = sampling.to_string();
        assert!(
            said.contains("\nasking the sampler              2000.0       166.667\n")
                && said.contains("Sampler::indices"),
            "{said}"
        );
        assert!(
            said.contains("\nmade and not given out: 2 batches more"),
            "{said}"
        );
        let pulling = of(|stats| &mut stats.pulling_ns);
        assert_eq!(pulling.limit(), Limit::Pulling);
        let said = pulling.to_string();
        assert!(
            said.contains("\npulling from the iterable ") && said.contains("`load`"),
            "{said}"
        );
        assert!(!said.contains("asking the sampler"), "{said}");
        // What a Staged data set waits for is not made faster by workers.
        let mut staged = of(|stats| &mut stats.loading_ns);
        assert!(staged.to_string().contains("num_workers"));
        staged.fetch_wait_ns = 1_800_000_000;
        assert_eq!(staged.limit(), Limit::Loading);
        let said = staged.to_string();
        assert!(
            said.contains("`with_in_flight`") && !said.contains("num_workers"),
            "{said}"
        );
        // No advice for pictures that it does nothing for.
        let decoding = of(|stats| &mut stats.decoding_ns).to_string();
        assert!(decoding.contains("of JPEG files"), "{decoding}");
    }

    #[test]
    fn nothing_is_said_of_a_loop_that_is_too_short() {
        let short = Stats {
            batches: 1,
            loading_ns: 900_000,
            consumer_wait_ns: 1_000_000,
            ..Stats::default()
        };
        assert_eq!(short.limit(), Limit::Unknown);
        let said = short.to_string();
        assert!(
            said.contains("too short") && !said.contains("limits the loop:"),
            "{said}"
        );
    }

    /// Two devices that share an epoch take as long as the longer one; in the sum of what each says, they would not.
    #[test]
    fn loops_side_by_side_take_as_long_as_the_longest() {
        let device = |ms: u64| Stats {
            epoch: 3,
            epochs: 1,
            samples: 300,
            batches: 30,
            consumer_wait_ns: ms * 500_000,
            host_ns: ms * 500_000,
            ..Stats::default()
        };
        let both = Stats::side_by_side(&[device(1_000), device(900)]);
        assert_eq!((both.epochs, both.samples), (1, 600));
        assert_eq!(both.wall_ns(), 1_000_000_000);
        assert_eq!(both.samples_per_second(), 600.0);
        assert!(
            both.to_string()
                .starts_with("epoch 3: 60 batches, 600 samples in 1.00 s (600 samples/s")
        );
        assert_eq!(Stats::side_by_side(&[]), Stats::default());
    }
}
