//! Memory for units that need not be page-locked: at once, or, if bytes in flight are limited, when there is room.

use crate::batch::Batch;
use crate::device::{Charge, block_bytes};
use crate::error::drop_each;
use crate::pipeline::epoch::Pass;
use crate::pipeline::schedule::Unit;
use crate::pipeline::threads::pipeline::Pipeline;
use crate::pipeline::traits::{Failed, Work};
use crate::sync::Arc;

impl<B: Batch> Pipeline<B> {
    /// A unit asks for a slab that need not be page-locked.
    pub(crate) fn ask_pageable(
        &self,
        pass: &Pass,
        unit: Unit,
        work: &dyn Work<B>,
        bytes: usize,
    ) -> bool {
        // (The ring's blocks are whole pages.)
        let size = block_bytes(bytes).unwrap_or(bytes);
        let charge = match &self.in_flight {
            None => None,
            Some(in_flight) => {
                let mut board = self.lock();
                let Some((line, _)) = board.line_of(pass, unit) else {
                    return true;
                };
                if !line.schedule.want_pageable(unit, size, in_flight.free()) {
                    return true; // a worker grants it later
                }
                Some(in_flight.charge(size, &pass.meter))
            }
        };
        let Some(slab) = self.pageable.take(bytes) else {
            return false;
        };
        let slab = slab.for_epoch(pass.meter.clone()).charged(charge);
        let charge = slab.charge();
        work.grant(slab);
        let mut board = self.lock();
        if let Some((line, bin)) = board.line_of(pass, unit) {
            if charge.is_none() {
                line.schedule.want(unit, bytes);
            }
            line.schedule.granted_pageable(unit);
            line.slot(unit).charges.add(charge);
            bin.wake_workers = true;
        }
        true
    }

    /// Grants a unit its slab that waited until fewer bytes were in flight.
    pub(crate) fn grant_held(
        &self,
        pass: &Pass,
        unit: Unit,
        work: Arc<dyn Work<B>>,
        bytes: usize,
        charge: Option<Arc<Charge>>,
    ) {
        let Some(slab) = self.pageable.take(bytes) else {
            drop_each([work]); // it may be the last holder
            return self.refuse(pass, unit, Failed::too_large(bytes));
        };
        let slab = slab.for_epoch(pass.meter.clone()).charged(charge);
        let charge = slab.charge();
        work.grant(slab);
        drop_each([work]);
        let mut board = self.lock();
        if let Some((line, bin)) = board.line_of(pass, unit) {
            line.schedule.granted_pageable(unit);
            line.slot(unit).charges.add(charge);
            bin.wake_workers = true;
        }
    }
}
