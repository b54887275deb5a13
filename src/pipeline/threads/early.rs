//! What slabs the first epoch will need, as far as that is known when the loader is built.

use super::pipeline::Pipeline;
use crate::batch::Batch;
use crate::pipeline::memory::early::Early;
use crate::pipeline::plan::epoch_plan::plan;
use crate::pipeline::plan::lister::Batching;
use crate::pipeline::plan::partition::Start;
use crate::pipeline::plan::shard::DeviceShard;
use crate::tuning::DEFAULT_DEPTH_BATCHES;

/// What a batch may take beside its samples: each of its tensors begins at a multiple of 256 bytes. (Those with more tensors, and bytes
/// just short of a page, get other slabs when they come.)
const GAPS_BYTES: usize = 4 * 256;

impl<B: Batch> Pipeline<B> {
    /// What the first epoch will need of the device's ring. `None`: nothing tells its size (a batch sampler is not asked before the first
    /// epoch), or its batches travel in parts if the program sends them to the device: then it is known too late what slabs are for.
    pub(crate) fn early(&self, device: usize) -> Option<Early> {
        let options = &self.options[device];
        let pinning = options.pinning.as_ref()?;
        // Several devices: it is not known which of them have an epoch. Few bytes in flight: nor how many slabs those allow.
        if self.options.len() > 1 || options.max_bytes.is_some() {
            return None;
        }
        if matches!(options.batching, Batching::Listed(_)) {
            return Some(Early {
                bytes: pinning.min_slab_bytes?,
                slabs: options.slabs(DEFAULT_DEPTH_BATCHES),
            });
        }
        let hints = self.factory.hints();
        let destination = options.destination(&pinning.device, DEFAULT_DEPTH_BATCHES);
        let partition = options.partition(Start::of(0), DeviceShard::WHOLE);
        let plan = plan(
            options,
            options.machine(),
            hints,
            destination,
            partition,
            false,
        );
        if plan.is_in_parts() {
            return None;
        }
        // Of a row that the device gathers, the slab holds only the address.
        let sample_bytes = hints.sample_bytes.filter(|_| !hints.is_gatherable);
        let batch_bytes = sample_bytes
            .and_then(|bytes| bytes.checked_mul(plan.partition.usual_rows()))
            .and_then(|bytes| bytes.checked_add(GAPS_BYTES));
        Some(Early {
            bytes: batch_bytes.max(pinning.min_slab_bytes)?,
            slabs: plan.slabs(false),
        })
    }
}
