//! Statistics as a table.

use std::fmt;
use std::time::Duration;

use super::{Histogram, Stats, Timed};

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
        self.verdict(f)
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

/// How many bad samples are printed.
const PRINTED: usize = 5;

#[cfg(test)]
mod tests {
    use super::super::testing::{made, ms, timed};
    use super::super::{BadSampleStats, DecoderStats, Limit, Tally};
    use super::*;
    use crate::meter::Buckets;

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
