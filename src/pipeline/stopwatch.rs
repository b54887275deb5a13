//! Where the time of loading goes: to the data set, to decoding, or to collating.
//!
//! Reading the clock takes as long as loading a small sample. So only a few samples of a run are timed, and their split stands for the
//! others. Decoding is counted where it happens ([`Decoded`]).

use super::schedule::Claimed;
use crate::meter::{Decoded, Meter};
use crate::sync::Instant;
use crate::tuning::{BATCHES_PER_TIMED_ONE, TIMED_RUN_SAMPLES};

/// Which samples of a run are timed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Timed {
    /// The first `rows` of the `of` in the run, which may be all.
    First { rows: usize, of: usize },
    /// None, because the split is known from other runs.
    None,
}

impl Timed {
    /// `all`: every sample is timed, for none may take too long.
    pub(super) fn of_run(claimed: &Claimed, all: bool) -> Timed {
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

    /// For a unit that one thread makes. The split hardly changes, so it is measured only now and then.
    pub(super) fn of_solo(meter: &Meter, batch: u64, all: bool) -> Timed {
        let is_known = meter.get_share.of(0).is_some();
        match is_known && !batch.is_multiple_of(BATCHES_PER_TIMED_ONE) {
            true if !all => Timed::None,
            _ => Timed::First {
                rows: if all { usize::MAX } else { TIMED_RUN_SAMPLES },
                of: usize::MAX,
            },
        }
    }
}

/// Runs from `start` to one of its ends.
pub(super) struct Stopwatch {
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
}

impl Stopwatch {
    pub(super) fn start(timed: Timed) -> Stopwatch {
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
        }
    }

    /// When it was started.
    pub(super) fn started(&self) -> Instant {
        self.started
    }

    /// Whether each sample is timed.
    pub(super) fn times_all(&self) -> bool {
        matches!(self.timed, Timed::First { rows, of } if rows == of)
    }

    /// When the timed sample began, or was loaded.
    pub(super) fn mark(&self) -> Instant {
        self.mark
    }

    /// A sample begins to load, and the one before is in its row. `true`: it is timed, and the caller says when it is loaded.
    #[inline]
    pub(super) fn begins(&mut self) -> bool {
        self.is_in();
        match self.timed {
            Timed::First { rows, .. } if self.laps < rows => {
                self.mark = Instant::now();
                true
            }
            _ => false,
        }
    }

    pub(super) fn is_loaded(&mut self) {
        let now = Instant::now();
        self.get_ns += nanoseconds(self.mark, now);
        self.mark = now;
        self.is_filling = true;
    }

    #[inline]
    fn is_in(&mut self) {
        if self.is_filling {
            self.is_filling = false;
            self.laps += 1;
            self.fill_ns += nanoseconds(self.mark, Instant::now());
            self.decoded_ns = self.decoded.ns();
        }
    }

    /// Ends a run that spent `asked_ns` on asking for a slab. Returns how long the rest took.
    pub(super) fn end_run(mut self, meter: &Meter, asked_ns: u64) -> u64 {
        self.is_in();
        let elapsed = nanoseconds(self.started, Instant::now()).saturating_sub(asked_ns);
        let decoding = self.decoded.ns().min(elapsed);
        let fill_ns = self.fill_ns.saturating_sub(asked_ns + self.decoded_ns);
        match self.timed {
            Timed::First { of, .. } if self.laps == of => {
                meter.made_in(self.get_ns, decoding, fill_ns);
            }
            _ => {
                let rest = elapsed - decoding;
                let measured = u128::from(self.get_ns + fill_ns).max(1);
                let loading = u128::from(rest) * u128::from(self.get_ns) / measured;
                meter.made_in(loading as u64, decoding, rest - loading as u64);
            }
        }
        elapsed
    }

    /// Ends a unit that one thread made. Returns how long it took.
    pub(super) fn end_solo(self, meter: &Meter) -> u64 {
        if self.laps > 0 {
            let fill_ns = self.fill_ns.saturating_sub(self.decoded_ns);
            meter.get_share.set(self.get_ns, self.get_ns + fill_ns);
        }
        let elapsed = nanoseconds(self.started, Instant::now());
        let decoding = self.decoded.ns().min(elapsed);
        let rest = elapsed - decoding;
        let loading = meter.get_share.of(rest).unwrap_or(0);
        meter.made_in(loading, decoding, rest - loading);
        elapsed
    }

    /// Ends something that was only collating and decoding.
    pub(super) fn end_collating(self, meter: &Meter) {
        let elapsed = nanoseconds(self.started, Instant::now());
        let decoding = self.decoded.ns().min(elapsed);
        meter.made_in(0, decoding, elapsed - decoding);
    }
}

pub(super) fn nanoseconds(from: Instant, to: Instant) -> u64 {
    to.saturating_duration_since(from).as_nanos() as u64
}
