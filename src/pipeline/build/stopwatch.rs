//! Where the time of loading goes: to the data set, to decoding, or to collating.
//!
//! Reading the clock takes as long as loading a small sample. So only a few samples of a run are timed, and their split stands for the
//! others. Decoding is counted where it happens ([`Decoded`]).

use std::time::Duration;

use crate::meter::{Decoded, Meter, TookNs, nanoseconds_between};
use crate::pipeline::schedule::Claimed;
use crate::pipeline::traits::Spent;
use crate::sync::Instant;
use crate::tuning::{BATCHES_PER_TIMED_ONE, TIMED_RUN_SAMPLES};

/// Which samples of a run are timed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Timed {
    /// The first `rows` of the `of` in the run, which may be all.
    First { rows: usize, of: usize },
    /// None, because the split is known from other runs.
    None,
}

impl Timed {
    /// `all`: every sample is timed, for none may take too long.
    pub(crate) fn of_run(claimed: &Claimed, all: bool) -> Timed {
        match claimed {
            Claimed::Rows(rows) if all || rows.len() <= TIMED_RUN_SAMPLES => Timed::First {
                rows: rows.len(),
                of: rows.len(),
            },
            Claimed::Rows(rows) => Timed::First {
                rows: 1,
                of: rows.len(),
            },
            Claimed::Parked(_) => Timed::None,
        }
    }

    /// For a task that one thread makes. Where batches take microseconds, the split hardly changes, and is measured only now and then.
    pub(crate) fn of_solo(meter: &Meter, batch: u64, all: bool) -> Timed {
        // (How long the first one takes is not known.)
        let all = all || meter.solo.has_long_samples().unwrap_or(true);
        let is_long = meter.solo.is_long();
        let is_known = meter.get_share.of(0).is_some();
        match is_known && !is_long && !batch.is_multiple_of(BATCHES_PER_TIMED_ONE) {
            true if !all => Timed::None,
            _ => Timed::First {
                rows: if all { usize::MAX } else { TIMED_RUN_SAMPLES },
                of: usize::MAX,
            },
        }
    }

    /// Whether any sample is timed.
    pub(crate) fn is_some(self) -> bool {
        self != Timed::None
    }
}

/// What takes less than this is shared, or as short as reading the clock: so not all of such samples, and not all of such batches of one
/// thread, are timed.
const LONG_SAMPLE_NS: u64 = 25_000;
const LONG_BATCH_NS: u64 = 400_000;

/// Runs from `start` to one of its ends.
pub(crate) struct Stopwatch {
    started: Instant,
    decoded: Decoded,
    timed: Timed,
    /// When the timed sample began to load; later, when it was loaded.
    mark: Instant,
    /// The timed sample is loaded, and is being filled into its row.
    is_filling: bool,
    laps: usize,
    /// Time that the timed samples took in the data set, and after it (collating and decoding).
    get_ns: u64,
    fill_ns: u64,
    /// How much of that was decoding, up to the last of them.
    decoded_ns: u64,
    /// Time that calls for several samples at once took.
    many_ns: u64,
    /// Time that the sampler took, and telling the data set what comes.
    sampling_ns: u64,
    announcing_ns: u64,
}

impl Stopwatch {
    pub(crate) fn start(timed: Timed) -> Stopwatch {
        let now = Instant::now();
        Stopwatch {
            started: now,
            decoded: Decoded::begin(),
            timed,
            mark: now,
            is_filling: false,
            laps: 0,
            get_ns: 0,
            fill_ns: 0,
            decoded_ns: 0,
            many_ns: 0,
            sampling_ns: 0,
            announcing_ns: 0,
        }
    }

    /// Whether samples are timed, so that the sampler is, too, and telling the data set what comes.
    pub(crate) fn times_sampler(&self) -> bool {
        self.timed.is_some()
    }

    /// The timed sample begins so much later: before it, the sampler was asked for several.
    #[inline]
    pub(crate) fn begins_later(&mut self, ns: u64) {
        if ns > 0 {
            self.mark += Duration::from_nanos(ns);
        }
    }

    /// So much of the time went to the sampler, and to telling the data set what comes.
    pub(crate) fn also(&mut self, sampling_ns: u64, announcing_ns: u64) {
        self.sampling_ns += sampling_ns;
        self.announcing_ns += announcing_ns;
    }

    /// When it was started.
    pub(crate) fn started(&self) -> Instant {
        self.started
    }

    /// Whether each sample is timed.
    pub(crate) fn times_all(&self) -> bool {
        matches!(self.timed, Timed::First { rows, of } if rows == of)
    }

    /// When the timed sample began, or was loaded.
    pub(crate) fn mark(&self) -> Instant {
        self.mark
    }

    /// A sample begins to load, and the one before is in its row. `true`: it is timed, and the caller says when it is loaded.
    #[inline]
    pub(crate) fn begins(&mut self, meter: &Meter) -> bool {
        self.is_in(meter);
        match self.timed {
            Timed::First { rows, .. } if self.laps < rows => {
                self.mark = Instant::now();
                true
            }
            _ => false,
        }
    }

    pub(crate) fn is_loaded(&mut self, meter: &Meter) {
        let now = Instant::now();
        let elapsed = nanoseconds_between(self.mark, now);
        meter.loading_times.count(elapsed);
        self.get_ns += elapsed;
        self.mark = now;
        self.is_filling = true;
    }

    /// Several samples were loaded by one call, which began at `start`. So much of the time since then was not the data set's.
    pub(crate) fn are_loaded(
        &mut self,
        start: Instant,
        other_ns: u64,
        samples: usize,
        meter: &Meter,
    ) {
        let elapsed = nanoseconds_between(start, Instant::now()).saturating_sub(other_ns);
        let each = elapsed / samples.max(1) as u64;
        meter.loading_times.count(each);
        self.many_ns += elapsed;
    }

    /// The sample before is in its row.
    #[inline]
    pub(crate) fn is_in(&mut self, meter: &Meter) {
        if self.is_filling {
            self.is_filling = false;
            self.laps += 1;
            self.fill_ns += nanoseconds_between(self.mark, Instant::now());
            let decoded_ns = self.decoded.ns();
            if decoded_ns > self.decoded_ns {
                meter.decoding_times.count(decoded_ns - self.decoded_ns);
                self.decoded_ns = decoded_ns;
            }
        }
    }

    /// Ends a run that spent `asked_ns` on asking for a slab, and says what the rest went to.
    pub(crate) fn end_run(mut self, meter: &Meter, asked_ns: u64) -> Spent {
        self.is_in(meter);
        let elapsed_ns = nanoseconds_between(self.started, Instant::now()).saturating_sub(asked_ns);
        let decoding = self.decoded.ns().min(elapsed_ns);
        let fill_ns = self.fill_ns.saturating_sub(asked_ns + self.decoded_ns);
        let rest = elapsed_ns - decoding;
        let sampling = self.sampling_ns.min(rest);
        let announcing = self.announcing_ns.min(rest - sampling);
        let rest = rest - sampling - announcing;
        let (loading, collating) = match self.timed {
            Timed::First { of, .. } if self.laps == of => (self.get_ns, fill_ns),
            _ => {
                let measured = u128::from(self.get_ns + fill_ns).max(1);
                let loading = match self.many_ns {
                    0 => (u128::from(rest) * u128::from(self.get_ns) / measured) as u64,
                    many_ns => many_ns.min(rest),
                };
                (loading, rest - loading)
            }
        };
        let took = TookNs {
            sampling,
            loading: loading + announcing,
            fetching: 0,
            decoding,
            collating,
        };
        self.spent(meter, elapsed_ns, took)
    }

    /// Ends a task of so many rows that one thread made, and says what the time went to.
    pub(crate) fn end_solo(mut self, meter: &Meter, rows: usize) -> Spent {
        self.is_in(meter);
        let elapsed_ns = nanoseconds_between(self.started, Instant::now());
        let decoding = self.decoded.ns().min(elapsed_ns);
        let rest = elapsed_ns - decoding;
        let sampling = match self.timed.is_some() {
            true => {
                let sampling = self.sampling_ns.min(rest);
                meter.sampler_share.set(sampling, rest);
                sampling
            }
            false => meter.sampler_share.of(rest).unwrap_or(0),
        };
        let unsampled = rest - sampling;
        let announcing = match self.timed.is_some() || self.many_ns > 0 {
            true => {
                let announcing = self.announcing_ns.min(unsampled);
                meter.announcing_share.set(announcing, unsampled);
                announcing
            }
            false => meter.announcing_share.of(unsampled).unwrap_or(0),
        };
        let rest = unsampled - announcing;
        if self.many_ns > 0 {
            meter.get_share.set(self.many_ns, rest);
        } else if self.laps > 0 {
            let fill_ns = self.fill_ns.saturating_sub(self.decoded_ns);
            meter.get_share.set(self.get_ns, self.get_ns + fill_ns);
        }
        let loading = match self.laps == rows {
            true => self.get_ns.min(rest), // all of them were timed
            false => meter.get_share.of(rest).unwrap_or(0),
        };
        meter.solo.see(
            elapsed_ns >= LONG_BATCH_NS,
            elapsed_ns / rows.max(1) as u64 >= LONG_SAMPLE_NS,
        );
        let collating = rest - loading;
        meter.collating_times.count(collating);
        let took = TookNs {
            sampling,
            loading: loading + announcing,
            fetching: 0,
            decoding,
            collating,
        };
        self.spent(meter, elapsed_ns, took)
    }

    /// Counts what the time went to. (How much of loading was fetching is asked here.)
    fn spent(self, meter: &Meter, elapsed_ns: u64, took: TookNs) -> Spent {
        let fetching = self.decoded.fetched_ns().min(took.loading);
        meter.made_in(TookNs { fetching, ..took });
        Spent {
            elapsed_ns,
            loading_ns: took.loading,
            decoding_ns: took.decoding,
            collating_ns: took.collating,
        }
    }

    /// Ends something that was only collating and decoding. Returns how long collating took.
    pub(crate) fn end_collating(self, meter: &Meter) -> u64 {
        let elapsed = nanoseconds_between(self.started, Instant::now());
        let decoding = self.decoded.ns().min(elapsed);
        let collating = elapsed - decoding;
        meter.made_in(TookNs {
            decoding,
            collating,
            ..TookNs::default()
        });
        collating
    }
}
