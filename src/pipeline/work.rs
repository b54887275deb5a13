//! The work on one batch, with data set and collate erased.

use std::ops::Range;
use std::panic::AssertUnwindSafe;

use super::source::{BatchId, Failed, Indices, Source, Split};
use crate::batch::{Collate, Learned, Opening, Request, Table, Unmade};
use crate::dataset::Dataset;
use crate::device::Slab;
use crate::error::{CollateError, Error, Result, panic_message};
use crate::meter::{Decoded, Meter};
use crate::sampler::Sampler;
use crate::sync::{Arc, Instant};
use crate::tuning::{BATCHES_PER_TIMED_ONE as CLOSELY, TIMED_RUN_SAMPLES as TIMED_RUN};

/// How batches of type `B` are made: a data set, its order and a collate.
pub(crate) trait Recipe<B>: Send + Sync {
    /// Opens the work on a batch, for several workers.
    fn open(&self, batch: BatchId, meter: Arc<Meter>) -> Arc<dyn Work<B>>;

    /// Makes a whole batch on this thread, in a slab that `slab` gives.
    fn make(
        &self,
        batch: BatchId,
        meter: &Meter,
        slab: &dyn Fn(usize) -> Option<Slab>,
    ) -> Result<B>;

    /// Whether samples came up that a device could gather itself.
    fn is_gatherable(&self) -> bool;

    /// How many bytes of its slab a sample takes, where batches can travel in parts and that is known.
    fn sample_bytes(&self) -> Option<usize>;

    /// The error of a part that does not fit to another part of its batch, which came before.
    fn unlike(&self, part: BatchId, like: BatchId, error: CollateError) -> Error;
}

/// One open batch.
pub(crate) trait Work<B>: Send + Sync {
    /// Loads rows. When the batch finds out how large a slab it needs, it calls `ask`, which may grant it at once.
    fn load(&self, rows: Range<usize>, ask: &dyn Fn(usize)) -> std::result::Result<(), Failed>;

    /// How large a slab the batch needs, asked once all samples are loaded.
    fn plan(&self) -> std::result::Result<usize, Failed>;

    fn grant(&self, slab: Slab);

    /// Makes the batch.
    fn finish(&mut self) -> std::result::Result<B, Failed>;
}

pub(crate) struct DatasetRecipe<D, C> {
    pub(crate) dataset: Arc<D>,
    pub(crate) sampler: Arc<dyn Sampler>,
    pub(crate) collate: C,
    pub(crate) seed: u64,
    pub(crate) learned: Arc<Learned>,
}

impl<D, C> DatasetRecipe<D, C> {
    fn source(&self, batch: BatchId) -> Source<'_, D> {
        Source {
            dataset: &self.dataset,
            sampler: &*self.sampler,
            seed: self.seed,
            batch,
        }
    }
}

impl<D: Dataset, C: Collate<D::Sample>> Recipe<C::Batch> for DatasetRecipe<D, C> {
    fn open(&self, batch: BatchId, meter: Arc<Meter>) -> Arc<dyn Work<C::Batch>> {
        Arc::new(DatasetWork {
            dataset: Arc::clone(&self.dataset),
            sampler: Arc::clone(&self.sampler),
            table: self.collate.open(Opening {
                rows: batch.rows,
                gathered_by: batch.gathered_by,
                learned: &self.learned,
            }),
            seed: self.seed,
            batch,
            meter,
            collated: std::marker::PhantomData,
        })
    }

    fn make(
        &self,
        batch: BatchId,
        meter: &Meter,
        slab: &dyn Fn(usize) -> Option<Slab>,
    ) -> Result<C::Batch> {
        let source = self.source(batch);
        let started = Instant::now();
        let decoded = Decoded::begin();
        // Where it is always the same, the time of a batch is split now and then only.
        let known = meter.get_share.of(0).is_some() && !batch.batch.is_multiple_of(CLOSELY);
        let mut split = (!known).then(|| Split::new(started));
        let mut at = 0;
        let mut indices = Indices::new(&*self.sampler, batch, batch.rows);
        let next = |row: usize| {
            at = row;
            source.announce(row..row + 1);
            let index = indices.of(row);
            let Some(split) = split.as_mut().filter(|split| split.rows < TIMED_RUN) else {
                return source.get(row, index);
            };
            split.begin(decoded.ns());
            let sample = source.get(row, index);
            split.end();
            sample
        };
        // Unwind safety: what a panic leaves behind is only ever dropped.
        let make = AssertUnwindSafe(|| self.collate.make(batch.rows, next, slab));
        let made = match std::panic::catch_unwind(make) {
            Ok(Ok(made)) => Ok(made),
            Ok(Err(Unmade::Sample(failed))) => Err(failed.error),
            Ok(Err(Unmade::Failed(failure))) => Err(source.failed(failure).error),
            Ok(Err(Unmade::Panicked(message))) => Err(source.collate_panicked(message).error),
            Ok(Err(Unmade::NoMemory(bytes))) => Err(Error::HostMemory { bytes }),
            Err(payload) => Err(source.sample_panicked(at, panic_message(payload)).error),
        };
        let elapsed = started.elapsed().as_nanos() as u64;
        if let Some(mut split) = split {
            if split.rows == batch.rows {
                split.begin(decoded.ns()); // what came behind the last row
            }
            meter
                .get_share
                .set(split.get_ns, split.get_ns + split.fill_ns);
        }
        let decoding = decoded.ns().min(elapsed);
        let loading = meter.get_share.of(elapsed - decoding).unwrap_or(0);
        let collating = elapsed - decoding - loading.min(elapsed - decoding);
        meter.made_in(loading, decoding, collating);
        if made.is_ok() {
            meter.samples.add(batch.rows as u64);
            meter.batches.add(1);
        }
        made
    }

    fn is_gatherable(&self) -> bool {
        self.learned.is_gatherable()
    }

    fn sample_bytes(&self) -> Option<usize> {
        // What a device gathers has but an address in the slab.
        let bytes = self.learned.sample_bytes();
        bytes.filter(|_| C::IN_PARTS && !self.is_gatherable())
    }

    fn unlike(&self, part: BatchId, like: BatchId, error: CollateError) -> Error {
        self.source(part).unlike(&self.source(like), error)
    }
}

struct DatasetWork<D, T, B> {
    dataset: Arc<D>,
    sampler: Arc<dyn Sampler>,
    table: T,
    seed: u64,
    batch: BatchId,
    meter: Arc<Meter>,
    collated: std::marker::PhantomData<fn() -> B>,
}

impl<D: Dataset, B, T: Table<D::Sample, B>> DatasetWork<D, T, B> {
    /// Loads rows; `at` is the row that it is at, for the report of a panic.
    fn run(
        &self,
        rows: Range<usize>,
        ask: &dyn Fn(usize),
        at: &mut usize,
    ) -> std::result::Result<(), Failed> {
        let mut run = T::Run::default();
        let started = Instant::now();
        let decoded = Decoded::begin();
        let (count, start, end) = (rows.len(), rows.start, rows.end);
        // In a long run the first sample's split stands for all. What is decoded is counted by itself.
        let (mut get_ns, mut load_ns, mut decoded_ns) = (0, 0, 0);
        let source = self.source();
        source.announce(start..end);
        let mut indices = Indices::new(source.sampler, self.batch, end);
        for row in rows {
            let timed = count <= TIMED_RUN || row == start;
            let before = timed.then(Instant::now);
            *at = row;
            let sample = source.get(row, indices.of(row))?;
            let between = timed.then(Instant::now);
            let request = self
                .table
                .load(row, sample, &mut run)
                .map_err(|failure| source.failed(failure))?;
            if let (Some(before), Some(between)) = (before, between) {
                get_ns += (between - before).as_nanos() as u64;
                load_ns += between.elapsed().as_nanos() as u64;
                decoded_ns = decoded.ns();
            }
            if let Request::Slab { bytes } = request {
                ask(bytes);
            }
        }
        self.table.end_run(run);
        let load_ns = u64::saturating_sub(load_ns, decoded_ns);
        let decoding = decoded.ns();
        let (loading, collating) = if count <= TIMED_RUN {
            (get_ns, load_ns)
        } else {
            let total = (started.elapsed().as_nanos() as u64).saturating_sub(decoding);
            let measured = (get_ns + load_ns).max(1);
            let loading = (u128::from(total) * u128::from(get_ns) / u128::from(measured)) as u64;
            (loading, total.saturating_sub(loading))
        };
        self.meter.made_in(loading, decoding, collating);
        self.meter.samples.add(count as u64);
        Ok(())
    }

    fn source(&self) -> Source<'_, D> {
        Source {
            dataset: &self.dataset,
            sampler: &*self.sampler,
            seed: self.seed,
            batch: self.batch,
        }
    }
}

impl<D: Dataset, B: 'static, T: Table<D::Sample, B>> Work<B> for DatasetWork<D, T, B> {
    fn load(&self, rows: Range<usize>, ask: &dyn Fn(usize)) -> std::result::Result<(), Failed> {
        let mut at = rows.start;
        // Unwind safety: what a panic leaves behind is only ever dropped, for the batch has failed.
        let run = AssertUnwindSafe(|| self.run(rows, ask, &mut at));
        match std::panic::catch_unwind(run) {
            Ok(result) => result,
            Err(payload) => Err(self.source().sample_panicked(at, panic_message(payload))),
        }
    }

    fn plan(&self) -> std::result::Result<usize, Failed> {
        match std::panic::catch_unwind(AssertUnwindSafe(|| self.table.loaded())) {
            Ok(Ok(Request::Slab { bytes })) => Ok(bytes),
            Ok(Ok(Request::Nothing)) => Ok(0),
            Ok(Err(failure)) => Err(self.source().failed(failure)),
            Err(payload) => Err(self.source().collate_panicked(panic_message(payload))),
        }
    }

    fn grant(&self, slab: Slab) {
        self.table.grant(slab);
    }

    fn finish(&mut self) -> std::result::Result<B, Failed> {
        let (start, decoded) = (Instant::now(), Decoded::begin());
        let finished = std::panic::catch_unwind(AssertUnwindSafe(|| self.table.finish()));
        let (elapsed, decoding) = (start.elapsed().as_nanos() as u64, decoded.ns());
        let collating = elapsed.saturating_sub(decoding);
        self.meter.made_in(0, decoding, collating);
        match finished {
            Ok(result) => result.map_err(|failure| self.source().failed(failure)),
            Err(payload) => Err(self.source().collate_panicked(panic_message(payload))),
        }
    }
}
