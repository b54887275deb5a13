//! What the pipeline is told.

use super::Builder;
use crate::device::Device;
use crate::loader::affinity::Placed;
use crate::pipeline::{Batching, Options, Pinning, Workers};
use crate::sync::Arc;
use crate::sync::log;

impl<D, C> Builder<D, C> {
    /// What the pipeline is told, for each device.
    pub(in crate::loader) fn options(&self, batching: &Batching, placed: &Placed) -> Vec<Options> {
        if self.devices.is_empty() {
            return vec![self.options_for(batching.clone(), None, placed)];
        }
        let devices = self.devices.iter().enumerate();
        // A device that is named twice has one ring all the same.
        let is_first = |(index, device): &(usize, &Device)| {
            let mut before = self.devices[..*index].iter();
            before.all(|before| !Arc::ptr_eq(&before.inner, &device.inner))
        };
        let devices = devices.filter(is_first).map(|(_, device)| device);
        let options =
            devices.map(|device| self.options_for(batching.clone(), Some(device), placed));
        options.collect()
    }

    fn options_for(&self, batching: Batching, device: Option<&Device>, placed: &Placed) -> Options {
        let cores = placed.cores();
        let own_cores = cores.map(|cores| cores.list.len());
        Options {
            batching,
            last_batch: self.last_batch,
            shard: self.world.data_rank() as u64,
            shards: self.world.data_ranks() as u64,
            workers: self.num_workers.started(self.cores.or(own_cores)),
            cores: cores.cloned(),
            is_auto: self.num_workers == Workers::Auto,
            at_once: 1,
            prefetch: if self.num_workers == Workers::Fixed(0) {
                1
            } else {
                self.prefetch.unwrap_or(2)
            },
            prefetch_grows: self.prefetch.is_none(),
            any_order: !self.in_order && self.num_workers != Workers::Fixed(0),
            max_bytes: self.max_bytes,
            pinning: device.map(|device| Pinning {
                device: device.clone(),
                strict: self.strict,
                by_copy: self.by_copy,
                min_slab_bytes: self.min_slab_bytes,
            }),
            is_stream: false,
            timeout: self.timeout,
            patience: self.patience,
            bad_share: self.bad_share,
        }
    }
}

/// A loader with nothing to load should say so.
pub(super) fn warn_of_empty_epochs(options: &Options) {
    let Batching::Even(even) = &options.batching else {
        return; // it is not known yet
    };
    if options.first_epoch().batches > 0 {
        return;
    }
    let samples = even.samples;
    let batch_size = (even.batch_size as u64).saturating_mul(options.shards);
    match samples {
        0 => log::warn!(
            "the loader's epochs are empty: the data set, or the sampler, has no samples"
        ),
        _ => log::warn!(
            "the loader's epochs are empty: drop_last leaves out the only batch, which has {samples} of {batch_size} samples \
             (batch_size, times the ranks that load different batches). Lower batch_size, or leave drop_last out"
        ),
    }
}
