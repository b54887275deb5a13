//! How tasks are made of a data set by a collate: shared by several workers, or by one from end to end. Both load rows by
//! [`Fill`], lay the task out, get a slab and finish in the same steps.

use std::cell::Cell;

use super::fill::{Fill, finish, lay_out};
use super::on_error::{Loading, OnError, Retry};
use super::samples::Source;
use super::stopwatch::{Stopwatch, Timed};
use crate::batch::{Collate, Needs, Opening, Table};
use crate::dataset::Dataset;
use crate::device::Slab;
use crate::error::{CollateError, Error, Result, SampleId};
use crate::meter::{Sum, nanoseconds_between};
use crate::pipeline::epoch::EpochContext;
use crate::pipeline::lookahead::Listener;
use crate::pipeline::plan::epoch_plan::Hints;
use crate::pipeline::plan::partition::Place;
use crate::pipeline::schedule::Claimed;
use crate::pipeline::traits::{
    Build, Changes, Factory, Failed, Learned, MadeAlone, Report, Spent, TaskMemory,
};
use crate::pipeline::worker_status::{Doing, WorkerStatus};
use crate::sync::{Arc, Instant, Mutex};
use crate::tensor::Offload;

/// Makes batches of a data set's samples.
pub(crate) struct DatasetFactory<D, C> {
    pub(crate) dataset: Arc<D>,
    pub(crate) collate: Arc<C>,
    pub(crate) seed: u64,
    pub(crate) on_error: OnError,
    pub(crate) retry: Arc<Retry>,
    pub(crate) learned: Arc<Learned>,
}

/// (Its parts are shared. Derived, it would ask for data sets that can be cloned.)
impl<D, C> Clone for DatasetFactory<D, C> {
    fn clone(&self) -> Self {
        DatasetFactory {
            dataset: Arc::clone(&self.dataset),
            collate: Arc::clone(&self.collate),
            seed: self.seed,
            on_error: self.on_error,
            retry: Arc::clone(&self.retry),
            learned: Arc::clone(&self.learned),
        }
    }
}

impl<D, C> DatasetFactory<D, C> {
    /// Where the rows of a task come from. `kept`: the rows that are made, of a task that is made again.
    fn source<'a>(
        &'a self,
        context: &'a EpochContext,
        place: Place,
        kept: Option<&'a [usize]>,
        changes: &'a Mutex<Changes>,
    ) -> Source<'a, D> {
        Source {
            dataset: &self.dataset,
            seed: self.seed,
            context,
            place,
            kept,
            changes,
            retry: &self.retry,
        }
    }
}

impl<D: Dataset, C: Collate<D::Sample>> DatasetFactory<D, C> {
    /// What of a task that is about to be made is left to the device.
    fn offload(&self, offload: Offload, place: &Place) -> Offload {
        if place.is_empty() {
            return Offload::default();
        }
        if offload.decodes.is_some() {
            let own = Some(self.learned.share.of_task(self.seed, place));
            return Offload { own, ..offload };
        }
        offload
    }

    /// Makes a task once: with what is known of its bad samples, it may have to be made again.
    fn make_once(
        &self,
        source: &Source<'_, D>,
        memory: &TaskMemory<'_>,
        watch: &mut Stopwatch,
        at: &WorkerStatus,
    ) -> Result<C::Batch, Failed> {
        let mut table = self.collate.open(Opening {
            rows: source.rows_of_batch(),
            offload: self.offload(memory.offload, &source.place),
        });
        let fill = Fill::new(self, source, &table, at, Loading::Solo, watch);
        fill.make_rows(memory.slab, watch)?;
        at.begins(Doing::Collating);
        finish(source, &mut table)
    }
}

impl<D: Dataset, C: Collate<D::Sample>> Factory<C::Batch> for DatasetFactory<D, C> {
    fn open(
        &self,
        context: &Arc<EpochContext>,
        place: Place,
        offload: Offload,
    ) -> Arc<dyn Build<C::Batch>> {
        Arc::new(DatasetBuild {
            factory: self.clone(),
            context: Arc::clone(context),
            place,
            changes: Mutex::default(),
            table: self.collate.open(Opening {
                rows: place.rows,
                offload: self.offload(offload, &place),
            }),
            collating_ns: Sum::default(),
        })
    }

    fn make(
        &self,
        context: &EpochContext,
        place: Place,
        memory: &TaskMemory<'_>,
        changes: Changes,
        at: &WorkerStatus,
    ) -> MadeAlone<C::Batch> {
        let meter = &*context.meter;
        let mut is_changed = !changes.is_empty();
        let changes = Mutex::new(changes);
        // What is made again is made without the device.
        let mut offload = memory.offload;
        let timed = Timed::of_solo(meter, place.batch, at.is_timed());
        let mut watch = Stopwatch::start(timed);
        at.since(watch.started());
        let made = loop {
            let kept = is_changed.then(|| changes.lock().kept(place.loaded_rows()));
            let kept = kept.as_deref();
            let source = self.source(context, place, kept, &changes);
            let memory = TaskMemory {
                slab: memory.slab,
                offload,
            };
            match self.make_once(&source, &memory, &mut watch, at) {
                // Its bad samples are known now, or will be, so this comes to an end.
                Err(failed) if failed.can_rebuild => {
                    (is_changed, offload) = (true, Offload::default());
                }
                made => break made,
            }
        };
        // (What a worker makes after it was given up is not counted.)
        let spent = (!at.is_given_up()).then(|| watch.end_solo(meter, place.rows));
        if made.is_ok() && spent.is_some() {
            let skipped = changes.lock().skipped.len();
            meter.samples.add(place.rows.saturating_sub(skipped) as u64);
            // A batch in parts is made when the last of them is sent.
            meter.batches.add(u64::from(!context.plan().is_in_parts()));
        }
        MadeAlone {
            made: made.map_err(|failed| failed.error),
            changes: changes.into_inner(),
            spent,
        }
    }

    fn sample_id(
        &self,
        context: &EpochContext,
        place: Place,
        row: usize,
        index: Option<u64>,
    ) -> SampleId {
        let changes = Mutex::default();
        let source = self.source(context, place, None, &changes);
        match index {
            Some(index) => source.id(row, index),
            None => source.id_of_row(row),
        }
    }

    fn hints(&self) -> Hints {
        let sample_bytes = self.learned.sample_bytes();
        Hints {
            sample_bytes: Some(sample_bytes)
                .filter(|bytes| *bytes > 0 && C::IN_PARTS && !self.on_error.skips()),
            is_gatherable: self.learned.is_gatherable(),
            has_pictures: self.learned.has_pictures(),
            may_be_elsewhere: !C::IN_PLACE,
            is_dense: C::IS_DENSE,
            have_one_size: C::IN_PARTS,
            are_rows: self.dataset.columns(&mut []).is_some(),
        }
    }

    fn learned(&self) -> &Learned {
        &self.learned
    }

    fn listener(&self) -> Option<Arc<dyn Listener>> {
        Some(Arc::clone(&self.dataset) as Arc<dyn Listener>)
    }

    fn unlike(
        &self,
        context: &EpochContext,
        part: Place,
        like: Place,
        error: CollateError,
    ) -> Error {
        let changes = Mutex::default();
        let source = |place| self.source(context, place, None, &changes);
        source(part).unlike(&source(like), error)
    }

    fn end(&self) {
        self.retry.end();
    }
}

/// A task that several workers share.
struct DatasetBuild<D: Dataset, C: Collate<D::Sample>> {
    factory: DatasetFactory<D, C>,
    context: Arc<EpochContext>,
    place: Place,
    changes: Mutex<Changes>,
    table: C::Table,
    /// Time that filling its rows took so far.
    collating_ns: Sum,
}

impl<D: Dataset, C: Collate<D::Sample>> DatasetBuild<D, C> {
    fn source(&self) -> Source<'_, D> {
        self.factory
            .source(&self.context, self.place, None, &self.changes)
    }
}

impl<D: Dataset, C: Collate<D::Sample>> Build<C::Batch> for DatasetBuild<D, C> {
    fn load(&self, claimed: Claimed, ask: &dyn Fn(usize) -> bool, at: &WorkerStatus) -> Report {
        let is_fresh = matches!(claimed, Claimed::Rows(_));
        let mut watch = Stopwatch::start(Timed::of_run(&claimed, at.is_timed()));
        at.since(watch.started());
        let asked_ns = Cell::new(0);
        let ask = |needs: Needs| {
            self.factory.learned.note(needs);
            let start = Instant::now();
            at.is(Doing::Memory);
            let granted = ask(needs.bytes);
            at.begins(Doing::Filling);
            asked_ns.set(asked_ns.get() + nanoseconds_between(start, Instant::now()));
            granted
        };
        let source = self.source();
        let fill = Fill::new(
            &self.factory,
            &source,
            &self.table,
            at,
            Loading::Shared,
            &watch,
        );
        let (rows, failure) = fill.load(claimed, &ask, &mut watch);
        if at.is_given_up() {
            // It is not counted.
            return Report {
                rows,
                elapsed_ns: None,
                spent: Spent::default(),
                failure,
            };
        }
        let spent = watch.end_run(&self.context.meter, asked_ns.get());
        self.collating_ns.add(spent.collating_ns);
        Report {
            rows,
            elapsed_ns: is_fresh.then_some(spent.elapsed_ns),
            spent,
            failure,
        }
    }

    fn lay_out(&self) -> Result<usize, Failed> {
        let needs = lay_out(&self.source(), &self.table)?;
        self.factory.learned.note(needs);
        Ok(needs.bytes)
    }

    fn grant(&self, slab: Slab) {
        self.table.grant(slab.into());
    }

    fn finish(&mut self) -> Result<C::Batch, Failed> {
        let watch = Stopwatch::start(Timed::None);
        let (context, place) = (&self.context, self.place);
        let source = self.factory.source(context, place, None, &self.changes);
        let finished = finish(&source, &mut self.table);
        let rows_ns = self.collating_ns.get();
        let finishing_ns = watch.end_collating(&context.meter);
        if finished.is_ok() {
            context.meter.collating_times.count(rows_ns + finishing_ns);
            context.meter.samples.add(place.rows as u64);
        }
        finished
    }

    fn changes(&self) -> Changes {
        self.changes.lock().clone()
    }

    fn has_good_samples(&self) -> bool {
        self.changes.lock().skipped.len() < self.place.loaded_rows().max(1)
    }
}
