//! Making one unit: the one way from samples to a batch, with data set and collate erased.
//!
//! Several workers share a unit ([`Recipe::open`]), or one makes it from end to end ([`Recipe::make`]). Both load rows by
//! [`Making::load`], lay the unit out, get a slab and finish in the same steps.

use std::cell::Cell;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::cut::Place;
use super::desk::{Desk, Doing};
use super::plan::Hints;
use super::schedule::{Claimed, Loaded};
use super::source::{Failed, Indices, Source};
use super::stopwatch::{Stopwatch, Timed, nanoseconds};
use crate::batch::{Collate, Needs, NotLoaded, Opening, Table, Took};
use crate::dataset::Dataset;
use crate::device::Slab;
use crate::error::{CollateError, Error, Result, SampleId, panic_message};
use crate::meter::Meter;
use crate::sampler::Sampler;
use crate::sync::{Arc, AtomicBool, AtomicUsize, Instant, Ordering};
use crate::tensor::Backend;

/// How batches of type `B` are made: a data set, an order and a collate.
pub(crate) trait Recipe<B>: Send + Sync {
    /// Opens a unit for several workers. `gathered_by`: the backend whose devices gather the rows that they can reach.
    fn open(
        &self,
        place: Place,
        gathered_by: Option<Backend>,
        meter: Arc<Meter>,
    ) -> Arc<dyn Work<B>>;

    /// Makes a unit on this thread from end to end, in a slab from `slab`. Returns the time that it took as well, in nanoseconds.
    fn make(
        &self,
        place: Place,
        meter: &Meter,
        slab: &dyn Fn(usize) -> Option<Slab>,
        at: &Desk,
    ) -> (Result<B>, u64);

    /// What is known of the sample at a row. It calls the data set, and the sampler if the index is not known.
    fn sample_id(&self, place: Place, row: usize, index: Option<u64>) -> SampleId;

    /// What is known of the samples.
    fn hints(&self) -> Hints;

    /// The error of a part that does not match an earlier part of its batch.
    fn unlike(&self, part: Place, like: Place, error: CollateError) -> Error;
}

/// One open unit. Everybody who holds it may load and grant; the last holder finishes it.
pub(crate) trait Work<B>: Send + Sync {
    /// Loads rows, or fills parked samples into theirs. When the unit finds out how large a slab it needs, it calls `ask` with the
    /// bytes, which may grant the slab at once; `false`: there is no such memory.
    fn load(&self, claimed: Claimed, ask: &dyn Fn(usize) -> bool, at: &Desk) -> Report;

    /// Lays the unit out, all of whose samples are parked. Returns the size of its slab in bytes.
    fn lay_out(&self) -> Result<usize, Failed>;

    fn grant(&self, slab: Slab);

    /// Makes the batch.
    fn finish(&mut self) -> Result<B, Failed>;
}

/// What came of claimed rows.
pub(crate) struct Report {
    pub(crate) rows: Loaded,
    /// How long rows took to load, without the time in `ask`, because making a slab says nothing about the samples.
    pub(crate) elapsed_ns: Option<u64>,
    /// Why rows are missing.
    pub(crate) failure: Option<Failed>,
}

pub(crate) struct DatasetRecipe<D, C> {
    pub(crate) dataset: Arc<D>,
    pub(crate) sampler: Arc<dyn Sampler>,
    pub(crate) collate: C,
    pub(crate) seed: u64,
    pub(crate) learned: Arc<Learned>,
}

/// What is known of a loader's samples: by the data set, or from batches that were laid out. All accesses are relaxed, because these
/// are hints for later epochs.
pub(crate) struct Learned {
    is_gatherable: AtomicBool,
    sample_bytes: AtomicUsize,
}

impl Learned {
    /// What the data set knows.
    pub(crate) fn new(is_gatherable: bool, sample_bytes: Option<usize>) -> Learned {
        Learned {
            is_gatherable: AtomicBool::new(is_gatherable),
            sample_bytes: AtomicUsize::new(sample_bytes.unwrap_or(0)),
        }
    }

    /// Learns from a batch. (All workers read this. Most batches are alike, and those do not write.)
    fn note(&self, needs: Needs) {
        if needs.is_gatherable && !self.is_gatherable.load(Ordering::Relaxed) {
            self.is_gatherable.store(true, Ordering::Relaxed);
        }
        if self.sample_bytes.load(Ordering::Relaxed) != needs.sample_bytes {
            self.sample_bytes
                .store(needs.sample_bytes, Ordering::Relaxed);
        }
    }
}

impl<D, C> DatasetRecipe<D, C> {
    fn source(&self, place: Place) -> Source<'_, D> {
        Source {
            dataset: &self.dataset,
            sampler: &*self.sampler,
            seed: self.seed,
            place,
        }
    }
}

impl<D: Dataset, C: Collate<D::Sample>> Recipe<C::Batch> for DatasetRecipe<D, C> {
    fn open(
        &self,
        place: Place,
        gathered_by: Option<Backend>,
        meter: Arc<Meter>,
    ) -> Arc<dyn Work<C::Batch>> {
        Arc::new(DatasetWork {
            dataset: Arc::clone(&self.dataset),
            sampler: Arc::clone(&self.sampler),
            learned: Arc::clone(&self.learned),
            table: self.collate.open(Opening {
                rows: place.rows,
                gathered_by,
            }),
            seed: self.seed,
            place,
            meter,
            collated: std::marker::PhantomData,
        })
    }

    fn make(
        &self,
        place: Place,
        meter: &Meter,
        slab: &dyn Fn(usize) -> Option<Slab>,
        at: &Desk,
    ) -> (Result<C::Batch>, u64) {
        let source = self.source(place);
        let mut table = self.collate.open(Opening {
            rows: place.rows,
            gathered_by: None,
        });
        let timed = Timed::of_solo(meter, place.batch, at.is_timed());
        let mut watch = Stopwatch::start(timed);
        at.since(watch.started());
        let making = Making {
            source: &source,
            table: &table,
            learned: &self.learned,
            at,
            is_solo: true,
        };
        let made = making.make_rows(slab, &mut watch);
        let made = made.and_then(|()| {
            at.begins(Doing::Collating);
            finish(&source, &mut table)
        });
        if at.is_given_up() {
            return (made.map_err(|failed| failed.error), 0); // nobody counts it
        }
        let elapsed_ns = watch.end_solo(meter);
        if made.is_ok() {
            meter.samples.add(place.rows as u64);
            meter.batches.add(1);
        }
        (made.map_err(|failed| failed.error), elapsed_ns)
    }

    fn sample_id(&self, place: Place, row: usize, index: Option<u64>) -> SampleId {
        let source = self.source(place);
        match index {
            Some(index) => source.id(row, index),
            None => source.id_of_row(row),
        }
    }

    fn hints(&self) -> Hints {
        let sample_bytes = self.learned.sample_bytes.load(Ordering::Relaxed);
        Hints {
            sample_bytes: Some(sample_bytes).filter(|bytes| *bytes > 0 && C::IN_PARTS),
            is_gatherable: self.learned.is_gatherable.load(Ordering::Relaxed),
            may_be_elsewhere: !C::IN_PLACE,
        }
    }

    fn unlike(&self, part: Place, like: Place, error: CollateError) -> Error {
        self.source(part).unlike(&self.source(like), error)
    }
}

/// A unit that is being made, wherever its table lies.
struct Making<'a, D, T> {
    source: &'a Source<'a, D>,
    table: &'a T,
    learned: &'a Learned,
    /// Where the thread says which row it is at: others may wonder, and a panic is reported by it.
    at: &'a Desk,
    /// One thread makes all rows of the unit. It announces samples one at a time as it goes, instead of a run at once.
    is_solo: bool,
}

impl<D: Dataset, T> Making<'_, D, T> {
    /// Loads what was claimed. **This is where a sample fails**, in whatever way: it does not exist, does not load, does not fit, or
    /// panics. The rows after it are not loaded.
    fn load<B>(
        &self,
        claimed: Claimed,
        ask: &dyn Fn(Needs) -> bool,
        watch: &mut Stopwatch,
    ) -> (Loaded, Option<Failed>)
    where
        T: Table<D::Sample, B>,
    {
        let mut took = Took::default();
        let count = claimed.len();
        let at = self.at;
        at.set(match &claimed {
            Claimed::Rows(rows) => rows.start,
            Claimed::Parked(_) => 0,
        });
        // Unwind safety: the unit has failed, so what a panic leaves behind is only dropped.
        let load = AssertUnwindSafe(|| match claimed {
            Claimed::Rows(rows) => self.load_rows(rows, ask, watch, &mut took),
            Claimed::Parked(count) => self.fill_parked(count, ask, &mut took),
        });
        let failure = match catch_unwind(load) {
            Ok(Ok(())) => None,
            Ok(Err(NotLoaded::Sample(failed))) => Some(failed),
            Ok(Err(NotLoaded::Failed(failure))) => Some(self.source.failed(failure)),
            Err(payload) => Some(
                self.source
                    .sample_panicked(at.get(), panic_message(payload)),
            ),
        };
        let loaded = Loaded {
            claimed: count,
            filled: took.filled,
            parked: took.parked,
        };
        (loaded, failure)
    }

    fn load_rows<B>(
        &self,
        mut rows: Range<usize>,
        ask: &dyn Fn(Needs) -> bool,
        watch: &mut Stopwatch,
        took: &mut Took,
    ) -> Result<(), NotLoaded<Failed>>
    where
        T: Table<D::Sample, B>,
    {
        let (source, table, at) = (self.source, self.table, self.at);
        let is_solo = self.is_solo;
        if !is_solo {
            source.announce(rows.clone());
        }
        let mut indices = Indices::new(source.sampler, source.place, rows.end);
        let tells = watch.times_all();
        let next = || {
            let row = rows.next()?;
            at.set(row);
            if is_solo {
                source.announce(row..row + 1);
            }
            let sample = match watch.begins() {
                false => source.get(row, indices.of(row)),
                true => {
                    at.samples(row, watch.mark());
                    let index = indices.of(row);
                    at.gets(index);
                    let sample = source.get(row, index);
                    watch.is_loaded();
                    // (Who looks on takes the rest of a long run for loading, too.)
                    if tells {
                        at.is(Doing::Filling);
                    }
                    sample
                }
            };
            Some(sample.map(|sample| (row, sample)))
        };
        let mut run = T::Run::default();
        table.load(next, &mut run, took, ask)?;
        table.end_run(run);
        Ok(())
    }

    fn fill_parked<B>(
        &self,
        count: usize,
        ask: &dyn Fn(Needs) -> bool,
        took: &mut Took,
    ) -> Result<(), NotLoaded<Failed>>
    where
        T: Table<D::Sample, B>,
    {
        let at = self.at;
        let mut parked = self.table.unpark(count).into_iter();
        let next = || {
            let parked = parked.next()?;
            at.fills(parked.0);
            Some(Ok(parked))
        };
        let mut run = T::Run::default();
        self.table.load(next, &mut run, took, ask)?;
        self.table.end_run(run);
        Ok(())
    }

    /// Makes all rows of a unit that one thread makes from end to end.
    fn make_rows<B>(
        &self,
        slab: &dyn Fn(usize) -> Option<Slab>,
        watch: &mut Stopwatch,
    ) -> Result<(), Failed>
    where
        T: Table<D::Sample, B>,
    {
        let grant = |bytes| {
            let slab = slab(bytes);
            let granted = slab.is_some();
            slab.into_iter().for_each(|slab| self.table.grant(slab));
            granted
        };
        let is_asked = Cell::new(false);
        let ask = |needs: Needs| {
            is_asked.set(true);
            self.learned.note(needs);
            grant(needs.bytes)
        };
        let rows = self.source.place.rows;
        let (loaded, failure) = self.load(Claimed::Rows(0..rows), &ask, watch);
        failure.map_or(Ok(()), Err)?;
        if !is_asked.get() {
            self.at.begins(Doing::Planning);
            let needs = lay_out(self.source, self.table)?;
            if !ask(needs) {
                return Err(Failed::too_large(needs.bytes));
            }
        }
        match loaded.parked {
            0 => Ok(()),
            parked => {
                let (_, failure) = self.load(Claimed::Parked(parked), &ask, watch);
                failure.map_or(Ok(()), Err)
            }
        }
    }
}

fn lay_out<D: Dataset, B, T: Table<D::Sample, B>>(
    source: &Source<'_, D>,
    table: &T,
) -> Result<Needs, Failed> {
    match catch_unwind(AssertUnwindSafe(|| table.plan())) {
        Ok(planned) => planned.map_err(|failure| source.failed(failure)),
        Err(payload) => Err(source.collate_panicked(panic_message(payload))),
    }
}

fn finish<D: Dataset, B, T: Table<D::Sample, B>>(
    source: &Source<'_, D>,
    table: &mut T,
) -> Result<B, Failed> {
    match catch_unwind(AssertUnwindSafe(|| table.finish())) {
        Ok(finished) => finished.map_err(|failure| source.failed(failure)),
        Err(payload) => Err(source.collate_panicked(panic_message(payload))),
    }
}

struct DatasetWork<D, T, B> {
    dataset: Arc<D>,
    sampler: Arc<dyn Sampler>,
    table: T,
    learned: Arc<Learned>,
    seed: u64,
    place: Place,
    meter: Arc<Meter>,
    collated: std::marker::PhantomData<fn() -> B>,
}

impl<D, T, B> DatasetWork<D, T, B> {
    fn source(&self) -> Source<'_, D> {
        Source {
            dataset: &self.dataset,
            sampler: &*self.sampler,
            seed: self.seed,
            place: self.place,
        }
    }
}

impl<D: Dataset, B: 'static, T: Table<D::Sample, B>> Work<B> for DatasetWork<D, T, B> {
    fn load(&self, claimed: Claimed, ask: &dyn Fn(usize) -> bool, at: &Desk) -> Report {
        let is_fresh = matches!(claimed, Claimed::Rows(_));
        let mut watch = Stopwatch::start(Timed::of_run(&claimed, at.is_timed()));
        at.since(watch.started());
        let asked_ns = Cell::new(0);
        let ask = |needs: Needs| {
            self.learned.note(needs);
            let start = Instant::now();
            at.is(Doing::Memory);
            let granted = ask(needs.bytes);
            at.begins(Doing::Filling);
            asked_ns.set(asked_ns.get() + nanoseconds(start, Instant::now()));
            granted
        };
        let making = Making {
            source: &self.source(),
            table: &self.table,
            learned: &self.learned,
            at,
            is_solo: false,
        };
        let (rows, failure) = making.load(claimed, &ask, &mut watch);
        if at.is_given_up() {
            // Nobody counts it.
            return Report {
                rows,
                elapsed_ns: None,
                failure,
            };
        }
        if is_fresh && failure.is_none() {
            self.meter.samples.add(rows.claimed as u64);
        }
        let elapsed_ns = watch.end_run(&self.meter, asked_ns.get());
        Report {
            rows,
            elapsed_ns: is_fresh.then_some(elapsed_ns),
            failure,
        }
    }

    fn lay_out(&self) -> Result<usize, Failed> {
        let needs = lay_out(&self.source(), &self.table)?;
        self.learned.note(needs);
        Ok(needs.bytes)
    }

    fn grant(&self, slab: Slab) {
        self.table.grant(slab);
    }

    fn finish(&mut self) -> Result<B, Failed> {
        let watch = Stopwatch::start(Timed::None);
        let source = Source {
            dataset: &*self.dataset,
            sampler: &*self.sampler,
            seed: self.seed,
            place: self.place,
        };
        let finished = finish(&source, &mut self.table);
        watch.end_collating(&self.meter);
        finished
    }
}
