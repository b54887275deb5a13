//! Passes: what everybody shares who works on an epoch.

use super::lookahead::Announced;
use super::plan::epoch_plan::EpochPlan;
use super::plan::partition::{EpochOrder, Place};
use super::schedule::{EpochUnits, Unit};
use crate::device::Account;
use crate::error::Error;
use crate::meter::{Activity, Bar, Meter, Subject};
use crate::sync::{Arc, AtomicBool, Ordering, planted};
use crate::tuning::ONE_ALONE_OF;

/// How the units of one epoch are made, shared by everybody who works on them. That never changes.
pub(crate) struct Pass {
    pub(crate) line: u64,
    pub(crate) segment: u64,
    pub(crate) device: usize,
    pub(crate) epoch: u64,
    pub(crate) units: EpochUnits,
    /// Which samples stand at its positions.
    pub(crate) order: EpochOrder,
    pub(crate) announced: Option<Arc<Announced>>,
    /// Its number, as the samples' generators have it; 0: nobody wants to know what comes.
    pub(crate) short_id: u32,
    pub(crate) meter: Arc<Meter>,
    /// Its share of the device's ring, if the loader pins. Epochs whose plans join have one together.
    pub(crate) account: Option<Arc<Account>>,
    /// The epoch has left the board, so nobody waits for its units. Relaxed: the board's lock decides; this is for who is busy without it.
    pub(crate) has_left: AtomicBool,
}

impl Pass {
    /// The epoch has left the board.
    pub(crate) fn leaves(&self) {
        self.has_left.store(true, Ordering::Relaxed);
    }

    /// Whether nobody waits for its units any more.
    pub(crate) fn has_left(&self) -> bool {
        self.has_left.load(Ordering::Relaxed)
            && !planted("a stream that nobody waits for is pulled")
    }

    /// Where a unit lies in its epoch.
    pub(crate) fn place(&self, unit: Unit) -> Place {
        let cut = &self.units.plan.cut;
        cut.place(self.epoch, self.units.number(unit))
    }

    /// The batch that a unit belongs to, within its epoch.
    pub(crate) fn batch(&self, unit: Unit) -> u64 {
        self.units.plan.cut.batch(self.units.number(unit))
    }

    /// Whether the unit is its epoch's last.
    pub(crate) fn is_last(&self, unit: Unit) -> bool {
        unit.0 + 1 == self.units.end.0
    }

    pub(crate) fn plan(&self) -> &EpochPlan {
        &self.units.plan
    }

    /// Begins an event of a timeline, if the program wants one.
    #[inline]
    pub(crate) fn bar(&self, kind: Activity, unit: Unit) -> Option<Bar<'_>> {
        let subject = self.subject(unit)?;
        Some(subject.begin(kind))
    }

    #[inline]
    /// Whether the unit is sent by itself, whatever is ready beside it: parts are, what is recorded is, and now and then a batch, so that
    /// how long it is processed can be measured.
    pub(crate) fn is_sent_alone(&self, unit: Unit) -> bool {
        let is_measured = unit.0.is_multiple_of(ONE_ALONE_OF);
        is_measured || self.plan().is_cut() || self.subject(unit).is_some()
    }

    pub(crate) fn subject(&self, unit: Unit) -> Option<Subject<'_>> {
        self.meter.subject(|| Some(self.batch(unit)))
    }

    pub(crate) fn collate_panicked(&self, unit: Unit, message: String) -> Error {
        Error::CollatePanicked {
            epoch: self.epoch,
            batch: self.batch(unit),
            message,
        }
    }
}
