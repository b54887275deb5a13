//! How a loader is built of its options.

use super::Builder;
use super::options::warn_of_empty_epochs;
use super::order::{usual_sampler, usual_sharding, warn_of_tracks};
use crate::batch::{Arena, Batch, Collate, CollateFn};
use crate::dataset::Dataset;
use crate::error::{BoxError, Result};
use crate::loader::affinity::Placed;
use crate::loader::data_loader::DataLoader;
use crate::loader::inner::Order;
use crate::pipeline::{
    Batching, DatasetFactory, EvenBatching, Learned, Lister, Pipeline, Retry, Threads, check_room,
};
use crate::sampler::{BatchSampler, Sampler};
use crate::sync::{Arc, OnceLock};

impl<D: Dataset, C> Builder<D, C> {
    /// Collates by a function of your own. It gets a batch's samples in order, whatever their type, and an [`Arena`] whose
    /// tensors lie in page-locked memory, if the loader [pins](Builder::pin_memory) it.
    ///
    /// # Examples
    ///
    /// Sequences of different lengths, padded to the longest:
    ///
    /// ```
    /// use pinfeed::collate::Arena;
    /// use pinfeed::{BoxError, DataLoader, Tensor};
    ///
    /// fn pad(samples: Vec<Vec<i64>>, arena: &mut Arena) -> Result<(Tensor<i64>, Tensor<i64>), BoxError> {
    ///     let longest = samples.iter().map(Vec::len).max().unwrap_or(0);
    ///     let mut padded = arena.zeros(&[samples.len(), longest])?;
    ///     let mut lengths = arena.zeros(&[samples.len()])?;
    ///     let rows = padded.as_mut_slice().ok_or("new tensors are not shared")?.chunks_mut(longest.max(1));
    ///     for (row, sample) in rows.zip(&samples) {
    ///         row[..sample.len()].copy_from_slice(sample);
    ///     }
    ///     let all = lengths.as_mut_slice().ok_or("new tensors are not shared")?;
    ///     all.iter_mut().zip(&samples).for_each(|(length, sample)| *length = sample.len() as i64);
    ///     Ok((padded, lengths))
    /// }
    ///
    /// let sequences = vec![vec![1i64, 2, 3], vec![4], vec![5, 6]];
    /// let loader = DataLoader::builder(sequences).batch_size(3).collate_fn(pad).build()?;
    /// let (padded, lengths) = loader.epoch(0).next().unwrap()?;
    /// assert_eq!(padded.as_slice(), [1, 2, 3, 4, 0, 0, 5, 6, 0]);
    /// assert_eq!(lengths.as_slice(), [3, 1, 2]);
    /// # Ok::<(), pinfeed::Error>(())
    /// ```
    pub fn collate_fn<B, F>(self, f: F) -> Builder<D, CollateFn<F, B>>
    where
        B: Batch,
        F: Fn(Vec<D::Sample>, &mut Arena) -> Result<B, BoxError> + Send + Sync + 'static,
    {
        self.collated_by(CollateFn::new(f))
    }

    /// Builds the loader, and starts its threads.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidOption`](crate::Error::InvalidOption) if options make no sense, alone or together, or if there are more workers than the system
    /// has stacks for; [`Error::Thread`](crate::Error::Thread) if the system does not start another thread: those that were started are
    /// ended.
    pub fn build<B: Batch>(mut self) -> Result<DataLoader<B>>
    where
        C: Collate<D::Sample, Batch = B>,
    {
        let batch_size = self.check()?;
        if let Some(sampler) = &mut self.sampler {
            sampler.set_seed(self.seed);
        }
        if let Some(batch_sampler) = &mut self.batch_sampler {
            batch_sampler.set_seed(self.seed);
        }
        let placed = self.placed()?;
        let batching = self.batching(batch_size)?;
        let mut options = self.options(&batching, &placed);
        let at_once = self.dataset.at_once().max(1);
        options
            .iter_mut()
            .for_each(|options| options.at_once = at_once);
        warn_of_empty_epochs(&options[0]);
        check_room(&self.dataset, &options[0], self.devices.len() as u64)?;
        let learned = Learned::new(self.dataset.is_registered(), self.dataset.sample_bytes());
        let has_pictures = C::IN_PLACE
            && !self.devices.is_empty()
            && !self.by_copy
            && self.dataset.has_encoded_pictures();
        let learned = learned
            .device_share(self.device_share_of_64()?)
            .pictures(has_pictures);
        let dataset = Arc::new(self.dataset);
        let order = Order {
            seed: self.seed,
            data: {
                let dataset = Arc::clone(&dataset);
                Box::new(move || (dataset.len(), dataset.fingerprint()))
            },
            hand_over: None,
            owner: OnceLock::new(),
        };
        let factory = DatasetFactory {
            dataset,
            collate: Arc::new(self.collate),
            seed: self.seed,
            on_error: self.on_error,
            retry: Arc::new(Retry::new(self.retry)),
            learned: Arc::new(learned),
        };
        let threads = Threads::start(Pipeline::new(Box::new(factory), options))?;
        // (A decoder takes most of a second to open. Programs have other things to do before they iterate.)
        if has_pictures {
            let devices = self.devices.iter();
            devices.for_each(|device| device.inner.open_decoder());
        }
        Ok(DataLoader::start(threads, order, placed))
    }

    /// Which samples each batch has. The samplers know their seed.
    fn batching(&self, batch_size: usize) -> Result<Batching> {
        if let Some(lists) = &self.batch_sampler {
            let on_empty = self.on_empty.unwrap_or_default();
            let lister = Lister::new(Arc::clone(lists), on_empty);
            return Ok(Batching::Listed(Arc::new(lister)));
        }
        let sampler = match &self.sampler {
            Some(sampler) => Arc::clone(sampler),
            None => {
                let (len, blocks) = (self.dataset.len(), self.dataset.blocks());
                usual_sampler(len, blocks, self.shuffle, self.seed)?
            }
        };
        let sharding = self.sharding.unwrap_or_else(|| usual_sharding(&*sampler));
        let lanes = self
            .world
            .data_ranks()
            .saturating_mul(self.devices.len().max(1));
        warn_of_tracks(&*sampler, sharding, lanes as u64);
        Ok(Batching::Even(EvenBatching {
            samples: sampler.len(),
            sampler,
            batch_size,
            sharding,
        }))
    }
}

impl<D, C> Builder<D, C> {
    /// Finds the cores that threads run on.
    pub(in crate::loader) fn placed(&self) -> Result<Placed> {
        Placed::new(&self.affinity, &self.devices, self.machine.as_ref())
    }

    /// With another collate.
    pub(in crate::loader) fn collated_by<O>(self, collate: O) -> Builder<D, O> {
        Builder {
            dataset: self.dataset,
            collate,
            batch_size: self.batch_size,
            global_batch_size: self.global_batch_size,
            shuffle: self.shuffle,
            seed: self.seed,
            sampler: self.sampler,
            batch_sampler: self.batch_sampler,
            on_empty: self.on_empty,
            num_workers: self.num_workers,
            cores: self.cores,
            affinity: self.affinity,
            machine: self.machine,
            prefetch: self.prefetch,
            in_order: self.in_order,
            max_bytes: self.max_bytes,
            last_batch: self.last_batch,
            world: self.world,
            sharding: self.sharding,
            on_error: self.on_error,
            retry: self.retry,
            bad_share: self.bad_share,
            devices: self.devices,
            names_no_device: self.names_no_device,
            strict: self.strict,
            by_copy: self.by_copy,
            min_slab_bytes: self.min_slab_bytes,
            timeout: self.timeout,
            patience: self.patience,
            device_share: self.device_share,
        }
    }
}
