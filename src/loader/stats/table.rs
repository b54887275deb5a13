//! Statistics as a table, with a sentence that names what limits the loop.

use std::fmt;
use std::time::Duration;

use super::{Histogram, Limit, Stats, Timed};

impl Stats {
    /// The table that is printed, without the sentence that ends it: for a program that says in its own words what [`limit`](Stats::limit)
    /// and [`copying`](Stats::copying) find.
    ///
    /// # Examples
    ///
    /// ```
    /// use pinfeed::{DataLoader, from_fn};
    ///
    /// let loader = DataLoader::builder(from_fn(100, |index, _| Ok(index))).batch_size(10).build()?;
    /// for batch in &loader {
    ///     batch?;
    /// }
    /// let stats = loader.stats();
    /// assert!(stats.table().to_string().contains("loading (all workers)"));
    /// # Ok::<(), pinfeed::Error>(())
    /// ```
    pub fn table(&self) -> impl fmt::Display + '_ {
        Table(self)
    }

    /// Which samples were replaced, skipped or retried.
    fn what_was_bad(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bad = &self.bad;
        if bad.listed.is_empty() {
            return Ok(());
        }
        writeln!(
            f,
            "bad samples: {} replaced, {} skipped, {} retried",
            bad.replaced, bad.skipped, bad.retried
        )?;
        for line in bad.listed.iter().take(PRINTED) {
            writeln!(f, "  {line}")?;
        }
        match bad.listed.len().saturating_sub(PRINTED) {
            0 => Ok(()),
            more => writeln!(f, "  and {more} more"),
        }
    }

    /// `raise`: how the budget is raised.
    fn why_unpinned(&self, f: &mut fmt::Formatter<'_>, raise: &str) -> fmt::Result {
        let (unpinned, held) = (&self.unpinned, self.unpinned.held());
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
        if unpinned.over_budget > 0 {
            let (count, noun) = (unpinned.over_budget, batches(unpinned.over_budget));
            let (bytes, budget) = (unpinned.over_budget_bytes, self.pinned_budget_bytes);
            writeln!(
                f,
                "{count} {noun} went unpinned: a batch is {bytes} bytes, and the budget of {budget} had no room \
                 ({raise}, or lower batch_size)"
            )?;
        }
        if unpinned.unlockable > 0 {
            let (count, noun) = (unpinned.unlockable, batches(unpinned.unlockable));
            writeln!(
                f,
                "{count} {noun} went unpinned: the system did not page-lock their memory (raise its limit, or free memory)"
            )?;
        }
        Ok(())
    }

    fn advice(&self) -> &'static str {
        match self.limit() {
            Limit::Unknown if self.wall_time().is_zero() => {
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
            Limit::Loading if self.fetch_wait >= self.loading.total / 2 => {
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
            Limit::Transfer
                if self.transfers.bytes / self.transfers.count.max(1) < LITTLE_BYTES =>
            {
                "Submissions to the device limit the loop: the copies are so small that starting one costs more. Raise batch_size, or depth, so that \
                 more are sent together."
            }
            Limit::Transfer => {
                "The link to the device limits the loop: send smaller elements (u8 instead of f32)."
            }
        }
    }
}

/// Statistics without the sentence.
struct Table<'a>(&'a Stats);

impl fmt::Display for Table<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.lines(f, "raise the pinned budget")
    }
}

impl fmt::Display for Stats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.lines(f, "Device::set_pinned_budget_bytes")?;
        if let Some((all, each)) = self.copying() {
            let (all, each) = (all / 1e9, each / 1e9);
            let more = match self.sizing.is_auto() {
                true => "",
                false => " Otherwise raise num_workers.",
            };
            return write!(
                f,
                "Copying rows limits the loop: {} workers copy {all:.1} GB/s, {each:.1} each while busy. If more of them copy no \
                 more, the host's memory is the limit: where rows are of a table, page-lock it in place (`Tensor::register`), and the device \
                 reads them where they lie.{more}",
                self.workers
            );
        }
        match self.sizing.is_auto() {
            true => f.write_str(&self.advice().replace("raise num_workers", MORE_CORES))?,
            false => f.write_str(self.advice())?,
        }
        let computes = [
            Limit::Sampling,
            Limit::Loading,
            Limit::Decoding,
            Limit::Collating,
        ];
        match cfg!(debug_assertions) && computes.contains(&self.limit()) {
            true => f.write_str(DEBUG_BUILD),
            false => Ok(()),
        }
    }
}

impl Stats {
    /// The table. `raise`: how the budget of page-locked memory is raised.
    fn lines(&self, f: &mut fmt::Formatter<'_>, raise: &str) -> fmt::Result {
        let wall = self.wall_time();
        // (Loaded ahead, of an epoch that was left, or failed on their way to the device.)
        let more = self.made.batches.saturating_sub(self.batches);
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
        let bandwidth = self.transfers.bytes_per_second();
        if bandwidth > 0.0 {
            writeln!(f, "transfers: {:.1} GB/s while copying", bandwidth / 1e9)?;
        }
        self.who_decoded(f)?;
        self.how_full(f)?;
        self.why_unpinned(f, raise)?;
        self.what_was_bad(f)
    }
}

impl Stats {
    fn rows(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (batches, given) = (self.made.batches, self.batches);
        let (transfers, processing) = (&self.transfers, &self.processing);
        let rows = [
            // A sampler that is as good as free is not worth a line.
            Line::of("sampling", self.sampling, batches)
                .from(self.loading.total.max(self.collating.total) / 20),
            Line::of("pulling (one at a time)", self.pulling, batches).if_any(),
            Line::timed("loading (all workers)", &self.loading, batches).each_sample(),
            Line::timed("decoding (all workers)", &self.decoding, batches)
                .each_sample()
                .if_any(),
            Line::of("decoder (the device's)", self.decoder.decoding, batches).if_any(),
            Line::timed("collating (all workers)", &self.collating, batches),
            Line::of("pinning", self.pinning, batches),
            Line::timed("slab wait", &self.slab_wait, batches),
            Line::of(
                "transfers (to the device)",
                transfers.total,
                transfers.count,
            )
            .each(&transfers.each)
            .if_any(),
            Line::of(
                "processing (on the device)",
                processing.total,
                processing.count,
            )
            .if_any(),
            Line::of("step (between batches)", self.step, given),
            Line::timed("consumer wait", &self.consumer_wait, given),
        ];
        let (batch, p50, p99) = ("ms per batch", "p50", "p99");
        writeln!(
            f,
            "{:<28}{:>10}{batch:>14}{p50:>10}{p99:>10}",
            "stage", "total ms"
        )?;
        rows.iter()
            .filter(|line| line.is_shown())
            .try_for_each(|line| line.write(f))
    }

    /// How many pictures the device decoded, of those that it should have, and why the CPU decoded the others.
    fn who_decoded(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let decoder = &self.decoder;
        let by_cpu: u64 = decoder.left_to_cpu.values().sum();
        let (decoded, all) = (decoder.decoded, decoder.decoded + by_cpu);
        if all == 0 {
            return Ok(());
        }
        write!(
            f,
            "decoder: {decoded} of {all} pictures were decoded by the device"
        )?;
        match decoder.by_kernels {
            0 => {}
            all if all == decoded => f.write_str(" (by kernels)")?,
            some => write!(f, " ({some} by kernels)")?,
        }
        if by_cpu > 0 {
            // The most frequent reason first.
            let mut reasons: Vec<_> = decoder.left_to_cpu.iter().collect();
            reasons.sort_by_key(|(reason, count)| (std::cmp::Reverse(**count), **reason));
            let reasons = reasons
                .iter()
                .map(|(reason, count)| format!("{reason} {count}"));
            let reasons: Vec<String> = reasons.collect();
            write!(f, ", {by_cpu} left to the CPU: {}", reasons.join(", "))?;
        }
        writeln!(f)
    }

    /// How many batches were ready, and how long the consumer waited.
    fn how_full(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ready = &self.ready_batches;
        if ready.count() > 0 {
            let (mean, none) = (ready.mean(), 100.0 * ready.share_of_zero());
            writeln!(
                f,
                "ready batches: {mean:.1} when one was asked for, none {none:.0} % of the time"
            )?;
        }
        if self.has_others_than_first() {
            let (share, first) = (100.0 * self.starvation(), in_ms(self.first_wait.total));
            let first = match self.epochs > 1 {
                true => format!("first waits of {first:.1} ms in all"),
                false => format!("a first wait of {first:.1} ms"),
            };
            writeln!(
                f,
                "starvation: {share:.1} % of the time was waiting for batches, beside {first}"
            )?;
        }
        Ok(())
    }
}

/// A line of the table: a stage's time, for so many batches.
struct Line<'a> {
    name: &'static str,
    total: Duration,
    batches: u64,
    each: Option<&'a Histogram>,
    /// What `each` is of, unless it is batches.
    of: &'static str,
    /// It is left out where the time is less.
    least: Duration,
}

impl<'a> Line<'a> {
    fn of(name: &'static str, total: Duration, batches: u64) -> Line<'a> {
        Line {
            name,
            total,
            batches,
            each: None,
            of: "",
            least: Duration::ZERO,
        }
    }

    fn timed(name: &'static str, timed: &'a Timed, batches: u64) -> Line<'a> {
        Line::of(name, timed.total, batches).each(&timed.each)
    }

    fn each(self, each: &'a Histogram) -> Line<'a> {
        let each = Some(each);
        Line { each, ..self }
    }

    fn each_sample(self) -> Line<'a> {
        Line {
            of: " a sample",
            ..self
        }
    }

    fn from(self, least: Duration) -> Line<'a> {
        Line { least, ..self }
    }

    /// Many programs have no such stage.
    fn if_any(self) -> Line<'a> {
        self.from(Duration::from_nanos(1))
    }

    fn is_shown(&self) -> bool {
        self.total >= self.least
    }

    fn write(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let total = in_ms(self.total);
        let per_batch = total / self.batches.max(1) as f64;
        write!(f, "{:<28}{total:>10.1}{per_batch:>14.3}", self.name)?;
        if let Some(each) = self.each.filter(|each| each.count() > 0) {
            let (p50, p99) = (in_ms(each.p50()), in_ms(each.p99()));
            write!(f, "{p50:>10.3}{p99:>10.3}{}", self.of)?;
        }
        writeln!(f)
    }
}

fn in_ms(time: Duration) -> f64 {
    time.as_nanos() as f64 / 1e6
}

/// What is said where the number of workers was left to the loader.
const MORE_CORES: &str = "set num_workers above the number of cores if samples wait (for a disk, a server), or let the process have more cores";

/// What is said of a program that was built without optimisation, as far as the library knows.
const DEBUG_BUILD: &str =
    " (This is a debug build, whose samples take many times as long: measure with --release.)";

/// Copying less takes less time (5 us at 50 GB/s) than the driver's calls for it.
const LITTLE_BYTES: u64 = 256 << 10;

/// How many bad samples are printed.
const PRINTED: usize = 5;

#[cfg(test)]
mod tests {
    use super::super::{
        BadSampleStats, DecoderStats, MadeStats, Tally, TransferStats, UnpinnedStats,
    };
    use super::*;
    use crate::meter::Buckets;
    use crate::pipeline::WorkerSizing;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn timed(total: Duration) -> Timed {
        Timed {
            total,
            ..Timed::default()
        }
    }

    fn made(batches: u64) -> MadeStats {
        MadeStats {
            batches,
            ..MadeStats::default()
        }
    }

    #[test]
    fn the_last_sentence_names_what_limits_and_the_knob() {
        let stats = Stats {
            batches: 10,
            made: made(10),
            samples: 100,
            workers: 4,
            loading: timed(ms(4_000)),
            collating: timed(ms(100)),
            step: ms(100),
            consumer_wait: timed(ms(900)),
            ..Stats::default()
        };
        assert_eq!(stats.limit(), Limit::Loading);
        assert!(
            stats
                .to_string()
                .contains("raise num_workers, or make the data set's `get` cheaper.")
        );
        let fed = Stats {
            consumer_wait: timed(Duration::from_micros(1)),
            ..stats.clone()
        };
        assert_eq!(fed.limit(), Limit::Consumer);
        assert!(!stats.to_string().contains("decoding"));
        let lazy = Stats {
            decoding: timed(ms(5_000)),
            ..stats.clone()
        };
        assert_eq!(lazy.limit(), Limit::Decoding);
        // One thread drives a device's decoder: more workers do not help.
        let by_device = Stats {
            decoder: DecoderStats {
                decoding: ms(1_500),
                ..DecoderStats::default()
            },
            ..lazy.clone()
        };
        assert_eq!(by_device.limit(), Limit::DeviceDecoding);
        let table = by_device.to_string();
        assert!(
            table.contains("\ndecoder (the device's)          1500.0       150.000"),
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
            samples: 30,
            batches: 3,
            workers: 2,
            loading: timed(ms(9)),
            consumer_wait: Timed {
                total: ms(299),
                each: Histogram::of(&waits),
            },
            first_wait: Tally {
                count: 1,
                total: ms(200),
            },
            step: ms(901),
            ..Stats::default()
        };
        assert_eq!(stats.starvation(), 0.099);
        assert_eq!(stats.limit(), Limit::Consumer);
        let table = stats.to_string();
        assert!(
            table.contains("\nstarvation: 9.9 % of the time was waiting for batches, beside a first wait of 200.0 ms\n"),
            "{table}"
        );
        // Two such epochs starve as much as one.
        let twice = stats.clone() + stats.clone();
        assert_eq!(twice.starvation(), 0.099);
        assert!(
            twice
                .to_string()
                .contains("beside first waits of 400.0 ms in all\n")
        );
        let slower = Stats {
            consumer_wait: timed(ms(301)),
            ..stats.clone()
        };
        assert_eq!(slower.limit(), Limit::Loading);
        // Of one batch, there is nothing but the first.
        let first = Buckets::default();
        first.count(200_000_000);
        let one = Stats {
            consumer_wait: Timed {
                total: ms(200),
                each: Histogram::of(&first),
            },
            step: ms(200),
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
            made: made(10),
            loading: Timed {
                total: ms(324),
                each: Histogram::of(&loading),
            },
            ready_batches: Histogram::of(&ready),
            ..Stats::default()
        };
        let table = stats.to_string();
        assert!(
            table.contains("\nloading (all workers)            324.0        32.400     2.032    65.012 a sample\n"),
            "{table}"
        );
        assert!(
            table.contains("\nready batches: 1.5 when one was asked for, none 25 % of the time\n"),
            "{table}"
        );
    }

    #[test]
    fn it_says_who_decoded_and_why() {
        assert!(!Stats::default().to_string().contains("decoder:"));
        let mut stats = Stats {
            decoder: DecoderStats {
                decoded: 90,
                ..DecoderStats::default()
            },
            ..Stats::default()
        };
        let all = "\ndecoder: 90 of 90 pictures were decoded by the device\n";
        assert!(stats.to_string().contains(all), "{stats}");
        stats.decoder.by_kernels = 90;
        let all = "\ndecoder: 90 of 90 pictures were decoded by the device (by kernels)\n";
        assert!(stats.to_string().contains(all), "{stats}");
        stats.decoder.by_kernels = 30; // of several devices, one has no hardware
        let of_them = "\ndecoder: 90 of 90 pictures were decoded by the device (30 by kernels)\n";
        assert!(stats.to_string().contains(of_them), "{stats}");
        stats.decoder.by_kernels = 0;
        let reasons = [("not JPEG", 3), ("a filter", 3), ("progressive JPEG", 4)];
        stats.decoder.left_to_cpu = reasons.into();
        let some = "\ndecoder: 90 of 100 pictures were decoded by the device, 10 left to the CPU: progressive JPEG 4, a filter 3, not JPEG 3\n";
        assert!(stats.to_string().contains(some), "{stats}");
    }

    #[test]
    fn small_copies_are_told_from_a_link_that_is_full() {
        let sent = |bytes: u64| Stats {
            batches: 10,
            transfers: TransferStats {
                count: 10,
                bytes: 10 * bytes,
                total: ms(900),
                ..TransferStats::default()
            },
            consumer_wait: timed(ms(900)),
            step: ms(100),
            ..Stats::default()
        };
        let [small, large] = [8 << 10, 38 << 20].map(sent);
        assert_eq!(
            (small.limit(), large.limit()),
            (Limit::Transfer, Limit::Transfer)
        );
        assert!(
            small.to_string().contains("Raise batch_size, or depth"),
            "{small}"
        );
        assert!(
            large.to_string().contains("send smaller elements"),
            "{large}"
        );
    }

    /// No advice that `build` would refuse, or that changes nothing.
    #[test]
    fn the_advice_is_for_the_loop_at_hand() {
        let fed = Stats {
            batches: 10,
            step: ms(100),
            unpinned: UnpinnedStats {
                count: 3,
                ..UnpinnedStats::default()
            },
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
            loading: timed(ms(100)),
            consumer_wait: timed(ms(100)),
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
            slab_wait: timed(ms(100)),
            consumer_wait: timed(ms(100)),
            ..fed.clone()
        };
        assert_eq!(slabs.limit(), Limit::Pinning);
        assert!(!slabs.to_string().contains("prefetch"), "{slabs}");

        let failed = Stats {
            consumer_wait: timed(ms(100)),
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
        let of = |stage: fn(&mut Stats) -> &mut Duration| {
            let mut stats = Stats {
                batches: 10,
                made: made(12),
                workers: 2,
                consumer_wait: timed(ms(1_000)),
                collating: timed(ms(1)),
                ..Stats::default()
            };
            *stage(&mut stats) = ms(2_000);
            stats
        };
        let sampling = of(|stats| &mut stats.sampling);
        assert_eq!(sampling.limit(), Limit::Sampling);
        let said = sampling.to_string();
        assert!(
            said.contains("\nsampling                        2000.0       166.667\n")
                && said.contains("Sampler::indices"),
            "{said}"
        );
        assert!(
            said.contains("\nmade and not given out: 2 batches more"),
            "{said}"
        );
        let pulling = of(|stats| &mut stats.pulling);
        assert_eq!(pulling.limit(), Limit::Pulling);
        let said = pulling.to_string();
        assert!(
            said.contains("\npulling (one at a time) ") && said.contains("`load`"),
            "{said}"
        );
        assert!(!said.contains("\nsampling"), "{said}");
        // What a Staged data set waits for is not made faster by workers.
        let mut staged = of(|stats| &mut stats.loading.total);
        assert!(staged.to_string().contains("num_workers"));
        staged.fetch_wait = ms(1_800);
        assert_eq!(staged.limit(), Limit::Loading);
        let said = staged.to_string();
        assert!(
            said.contains("`with_in_flight`") && !said.contains("num_workers"),
            "{said}"
        );
        // No advice for pictures that it does nothing for.
        let decoding = of(|stats| &mut stats.decoding.total).to_string();
        assert!(decoding.contains("of JPEG files"), "{decoding}");
    }

    #[test]
    fn nothing_is_said_of_a_loop_that_is_too_short() {
        let short = Stats {
            batches: 1,
            loading: timed(Duration::from_micros(900)),
            consumer_wait: timed(ms(1)),
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
        let device = |each: u64| Stats {
            epoch: 3,
            epochs: 1,
            samples: 300,
            batches: 30,
            consumer_wait: timed(ms(each) / 2),
            step: ms(each) / 2,
            ..Stats::default()
        };
        let both = Stats::side_by_side(&[device(1_000), device(900)]);
        assert_eq!((both.epochs, both.samples), (1, 600));
        assert_eq!(both.wall_time(), ms(1_000));
        assert_eq!(both.samples_per_second(), 600.0);
        assert!(
            both.to_string()
                .starts_with("epoch 3: 60 batches, 600 samples in 1.00 s (600 samples/s")
        );
        assert_eq!(Stats::side_by_side(&[]), Stats::default());
    }

    /// Four devices: each link is busy for half of the time, and the workers for all of it.
    #[test]
    fn links_of_several_devices_are_not_one_link() {
        let device = Stats {
            epochs: 1,
            batches: 10,
            samples: 2_560,
            made: made(10),
            workers: 16,
            collating: timed(ms(3_900)),
            transfers: TransferStats {
                count: 10,
                bytes: 16_000_000_000,
                total: ms(500),
                ..TransferStats::default()
            },
            consumer_wait: timed(ms(900)),
            step: ms(100),
            ..Stats::default()
        };
        let all = Stats {
            workers: 16,
            ..Stats::side_by_side(&[0; 4].map(|_| device.clone()))
        };
        assert_eq!(all.limit(), Limit::Collating);
        let said = all.to_string();
        assert!(
            said.contains("16 workers copy 64.0 GB/s, 4.1 each")
                && said.contains("Tensor::register"),
            "{said}"
        );
        // Samples that are computed are no rows that are copied.
        let computed = Stats {
            transfers: TransferStats {
                bytes: 1_000_000_000,
                ..all.transfers.clone()
            },
            ..all
        };
        assert!(computed.to_string().contains("Collating limits the loop"));
    }

    #[test]
    fn bad_samples_are_told_by_the_words_of_the_fields() {
        let bad = BadSampleStats {
            replaced: 1,
            skipped: 4,
            retried: 2,
            listed: (0..7).map(|sample| format!("sample {sample}")).collect(),
        };
        let stats = Stats {
            bad,
            ..Stats::default()
        };
        let table = stats.to_string();
        assert!(
            table.contains("\nbad samples: 1 replaced, 4 skipped, 2 retried\n  sample 0\n")
                && table.contains("\n  sample 4\n  and 2 more\n"),
            "{table}"
        );
    }
}
