//! A pass in the hands of those that load its samples and take its batches: [`Announced`].

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::Announcer;
use crate::dataset::Pass;
use crate::error::panic_message;
use crate::pipeline::plan::indices::Sampled;
use crate::pipeline::plan::partition::Place;
use crate::sync::log;
use crate::sync::{Arc, Ordering, plain, planted};

/// A pass, as the threads that load its samples hold it.
pub(crate) struct Announced {
    announcer: Arc<Announcer>,
    pub(super) id: u64,
    /// How many batches were delivered. Relaxed: it is a hint.
    settled: plain::AtomicU64,
}

/// Ends its pass when it is dropped, which must be without the shared lock: the data set is told.
pub(crate) struct EndsPass(pub(crate) Arc<Announced>);

impl Drop for EndsPass {
    fn drop(&mut self) {
        self.0.announcer.end(self.0.id);
    }
}

impl Announced {
    pub(super) fn new(announcer: &Arc<Announcer>, id: u64) -> Announced {
        Announced {
            announcer: Arc::clone(announcer),
            id,
            settled: plain::AtomicU64::new(0),
        }
    }

    /// Announces what comes, up to `lookahead` behind these rows of a task, which are loaded next. They themselves were announced when
    /// it returns. Returns how long the sampler took, in nanoseconds.
    pub(crate) fn announce(&self, place: &Place, rows: Range<usize>) -> u64 {
        let sampled = Sampled::default();
        let rows = rows_of_batch(place, rows);
        self.announcer.announce(self, place.batch, rows, &sampled);
        sampled.ns()
    }

    /// These rows of a task were loaded: nothing is needed for them any more.
    pub(crate) fn loaded(&self, place: &Place, rows: Range<usize>) {
        if planted("rows that were loaded keep their block") {
            return;
        }
        let rows = rows_of_batch(place, rows);
        let passes = self.announcer.passes.lock();
        self.announcer.tell_done(passes, self.id, |ahead| {
            if let (Some(start), Some(end)) = (
                ahead.number(place.batch, rows.start),
                ahead.number(place.batch, rows.end),
            ) {
                ahead.loaded.add(start..end);
            }
        });
    }

    /// How many samples ahead the data set is told what comes.
    pub(crate) fn lookahead(&self) -> usize {
        usize::try_from(self.announcer.shared.lookahead).unwrap_or(usize::MAX)
    }

    /// The pass's number, as the samples' generators have it: never 0, and unique as far as passes live at the same time.
    pub(crate) fn short_id(&self) -> u32 {
        Pass::new(self.id, 0).short_id()
    }

    /// The consumer has taken a task, and all before it: none of their rows is loaded any more.
    pub(crate) fn settle(&self, place: &Place) {
        if place.ends_batch() {
            self.settle_before(place.batch + 1);
        }
    }

    /// Whether the data set wants to know that batches were taken.
    pub(crate) fn wants_to_know(&self) -> bool {
        self.announcer.shared.has_blocks
    }

    /// Tells the data set that batches were taken. Without the shared lock.
    pub(crate) fn tell_settled(&self) {
        let tell = || {
            let passes = self.announcer.passes.lock();
            self.announcer
                .tell_done(passes, self.id, |ahead| ahead.settle(self.settled()));
        };
        // The consumer's own thread, whose batch has come.
        if let Err(payload) = catch_unwind(AssertUnwindSafe(tell)) {
            let message = panic_message(payload);
            log::warn!("`Dataset::will_need` panicked: {message}");
        }
    }

    /// How many batches are settled. Asked with the announcer's lock, for a batch that is settled before it was announced is so after that.
    pub(super) fn settled(&self) -> u64 {
        self.settled.load(Ordering::Relaxed)
    }

    /// The consumer has taken all batches before this one.
    pub(crate) fn settle_before(&self, batch: u64) {
        self.settled.fetch_max(batch, Ordering::Relaxed);
    }
}

/// Rows of a task, as those of its whole batch.
fn rows_of_batch(place: &Place, rows: Range<usize>) -> Range<u64> {
    let first = place.first_row as u64;
    first + rows.start as u64..first + rows.end as u64
}
