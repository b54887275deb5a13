//! Slots: what the board holds of an epoch and of an open unit, and what becomes of a unit that the consumer takes.

use crate::device::{Account, Charge};
use crate::error::Result;
use crate::meter::Meter;
use crate::pipeline::epoch::Pass;
use crate::pipeline::lookahead::EndsPass;
use crate::pipeline::plan::epoch_plan::Destination;
use crate::pipeline::schedule::Unit;
use crate::pipeline::threads::decoded::Decoding;
use crate::pipeline::traits::{Changes, Failed, OwnItems, Pull, Sends, Work};
use crate::sync::{Arc, Instant};
use crate::tensor::Offload;

/// What the board holds of one epoch.
pub(crate) struct EpochSlot<B> {
    pub(crate) epoch: u64,
    pub(crate) meter: Arc<Meter>,
    /// What its batches are for. Nothing is loaded until that is known.
    pub(crate) destination: Option<Destination>,
    /// Sends its units to a device as soon as they are made.
    pub(crate) outbox: Option<Arc<dyn Sends<B>>>,
    pub(crate) pass: Option<Arc<Pass>>,
    /// The stream of its items, while nobody pulls; `None` for samples that have an index.
    pub(crate) stream: Option<Box<dyn Pull<B>>>,
    /// If the data set wants to know what comes: it hears that the pass is over when this is dropped.
    pub(crate) announced: Option<EndsPass>,
}

/// A unit that was made.
pub(crate) enum Made<B> {
    Here(B),
    /// It was sent to its device, and is in the outbox.
    Sent,
    /// It was sent, and some of its rows are being decoded. If a thread has sent it, the decoder's makes it ready, and nobody sees this.
    Decoding(Option<Arc<Decoding>>),
}

/// What the board holds of one open unit.
pub(crate) struct UnitSlot<B> {
    pub(crate) pass: Arc<Pass>,
    /// `None` once somebody finishes it.
    pub(crate) work: Option<Arc<dyn Work<B>>>,
    /// The unit, made.
    pub(crate) outcome: Option<Result<Made<B>>>,
    /// Why it failed; of several reasons, that of the first row.
    pub(crate) failure: Option<Failed>,
    /// When it began to wait for its slab.
    pub(crate) waiting_since: Option<Instant>,
    /// When it was handed to its device's decoder.
    pub(crate) decoding_since: Option<Instant>,
    /// Its memory is pageable although the loader pins.
    pub(crate) is_unpinned: bool,
    /// Its slabs' shares of the bytes in flight.
    pub(crate) charges: Charges,
    /// What became of samples that failed.
    pub(crate) changes: Option<Box<Changes>>,
    /// The items that were pulled for it, and how to make them again.
    pub(crate) own: Option<Box<OwnItems<B>>>,
}

/// A unit that the consumer took.
pub(crate) struct Delivered<B> {
    pub(crate) pass: Arc<Pass>,
    pub(crate) unit: Unit,
    pub(crate) outcome: Result<Made<B>>,
    pub(crate) changes: Option<Box<Changes>>,
    pub(crate) own: Option<Box<OwnItems<B>>>,
    /// What is in flight until it was sent.
    pub(crate) charges: Charges,
}

impl<B> Delivered<B> {
    /// Whether it is to be sent.
    pub(crate) fn is_here(&self) -> bool {
        matches!(self.outcome, Ok(Made::Here(_)))
    }

    /// Takes what is to be sent.
    pub(crate) fn take_here(&mut self) -> Option<B> {
        match std::mem::replace(&mut self.outcome, Ok(Made::Sent)) {
            Ok(Made::Here(made)) => Some(made),
            outcome => {
                self.outcome = outcome;
                None
            }
        }
    }

    /// It was to be sent. `false`: it is still here.
    pub(crate) fn comes_back(&mut self, outcome: Result<Made<B>>) -> bool {
        self.outcome = outcome;
        if !self.is_here() {
            self.charges.end();
        }
        !self.is_here()
    }
}

/// Shares of the bytes in flight: none, unless these are limited. (Units are moved often, so it is small.)
#[derive(Default)]
pub(crate) struct Charges(Option<Box<(Arc<Charge>, Charges)>>);

impl Charges {
    /// They are in flight no more.
    pub(crate) fn end(&self) {
        if let Some(charges) = &self.0 {
            charges.0.release();
            charges.1.end();
        }
    }

    pub(crate) fn add(&mut self, charge: Option<Arc<Charge>>) {
        if let Some(charge) = charge {
            self.0 = Some(Box::new((charge, std::mem::take(self))));
        }
    }
}

impl<B> UnitSlot<B> {
    pub(crate) fn new(pass: Arc<Pass>, work: Option<Arc<dyn Work<B>>>) -> UnitSlot<B> {
        UnitSlot {
            pass,
            work,
            outcome: None,
            failure: None,
            waiting_since: None,
            decoding_since: None,
            is_unpinned: false,
            charges: Charges::default(),
            changes: None,
            own: None,
        }
    }

    /// It was sent: what is pageable was read then, and is in flight no more.
    pub(crate) fn was_sent(&self) {
        if self.is_pageable() {
            self.charges.end();
        }
    }

    fn is_pageable(&self) -> bool {
        self.is_unpinned || self.pass.account.is_none()
    }

    /// `ends`: its slabs are in flight no more.
    pub(crate) fn deliver(self, unit: Unit, ends: bool) -> Option<Delivered<B>> {
        if ends {
            self.charges.end();
        }
        let charges = match self.is_pageable() {
            true => self.charges,
            false => Charges::default(),
        };
        Some(Delivered {
            pass: self.pass,
            unit,
            outcome: self.outcome?,
            changes: self.changes,
            own: self.own,
            charges,
        })
    }
}

impl<B> EpochSlot<B> {
    pub(crate) fn new(
        epoch: u64,
        meter: &Arc<Meter>,
        destination: Option<Destination>,
        outbox: Option<Arc<dyn Sends<B>>>,
        stream: Option<Box<dyn Pull<B>>>,
    ) -> EpochSlot<B> {
        EpochSlot {
            epoch,
            meter: Arc::clone(meter),
            destination,
            outbox,
            pass: None,
            stream,
            announced: None,
        }
    }

    pub(crate) fn account(&self) -> Option<&Arc<Account>> {
        self.pass.as_ref()?.account.as_ref()
    }

    /// What its device does itself.
    pub(crate) fn offload(&self) -> Offload {
        match self.destination {
            Some(Destination::Device { offload, .. }) => offload,
            _ => Offload::default(),
        }
    }
}
