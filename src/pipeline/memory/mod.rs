//! Memory for the batches that are made: a slab of the device's ring, pageable memory, or one slab for several batches.
//!
//! A task asks for its memory when it knows its size. What cannot be granted at once is left to the pin thread, or, if bytes in flight are
//! limited, to a worker. Nothing here loads, sends or calls the floor above: what follows from a grant or a refusal is returned.

pub(super) mod early;
mod moved;
mod pageable;
pub(super) mod pinned;
pub(super) mod room;
pub(super) mod slices;

use crate::device::{ByteBudget, Ring};
use crate::pipeline::epoch::EpochContext;
use crate::pipeline::plan::options::{Options, Pinning};
use crate::pipeline::shared::lock::Shared;
use crate::sync::{Arc, AtomicBool};

/// Gives tasks their memory.
pub(crate) struct Memory<B: 'static> {
    shared: Arc<Shared<B>>,
    /// Those of each device.
    options: Arc<[Options]>,
    /// Slabs for batches that need not be page-locked, or cannot be.
    pageable: Arc<Ring>,
    /// The bytes of slabs ahead of the program, if they are limited.
    byte_budget: Option<Arc<ByteBudget>>,
    /// That batches are not page-locked has been logged.
    has_warned: AtomicBool,
}

/// How many pageable slabs are kept for later, where bytes in flight are limited.
const FEWEST_KEPT: usize = 2;

impl<B: 'static> Memory<B> {
    pub(crate) fn new(
        shared: &Arc<Shared<B>>,
        options: &Arc<[Options]>,
        byte_budget: Option<Arc<ByteBudget>>,
    ) -> Memory<B> {
        let kept = match &byte_budget {
            None => options.iter().map(|options| options.slabs(0)).sum(),
            Some(_) => FEWEST_KEPT,
        };
        Memory {
            shared: Arc::clone(shared),
            options: Arc::clone(options),
            pageable: Ring::pageable(kept),
            byte_budget,
            has_warned: AtomicBool::new(false),
        }
    }

    /// How the epoch's batches get into page-locked memory, if they do.
    pub(crate) fn pinning(&self, context: &EpochContext) -> Option<&Pinning> {
        self.options[context.device].pinning.as_ref()
    }
}
