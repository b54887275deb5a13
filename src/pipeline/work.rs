//! Making one unit: the one way from samples to a batch, with data set and collate erased.
//!
//! Several workers share a unit ([`Recipe::open`]), or one makes it from end to end ([`Recipe::make`]). Both load rows by
//! [`Making::load`], lay the unit out, get a slab and finish in the same steps.

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::announcer::{Announced, EpochSamples, Listener};
use super::cut::{EpochOrder, Place};
use super::desk::{Desk, Doing};
use super::guard::drop_each;
use super::plan::Hints;
use super::pull::{Pull, StreamStart};
use super::recovery::{Changes, Loading, OnError, Replaced, Retry, Settled};
use super::schedule::{Claimed, Loaded};
use super::source::{Failed, Indices, Source};
use super::stopwatch::{Spent, Stopwatch, Timed, nanoseconds};
use crate::batch::{Collate, Needs, NotLoaded, Opening, Table, Took};
use crate::dataset::Dataset;
use crate::device::Slab;
use crate::error::{CollateError, Error, Result, SampleId, panic_message};
use crate::meter::{Meter, Sum};
use crate::sync::{Arc, AtomicBool, AtomicUsize, Instant, Mutex, Ordering};
use crate::tensor::Backend;
use crate::tuning::INDICES_AT_ONCE;

/// How batches of type `B` are made: of a data set, by a collate. Each epoch has its own order.
pub(crate) trait Recipe<B>: Send + Sync {
    /// Opens a unit for several workers. `gathered_by`: the backend whose devices gather the rows that they can reach.
    fn open(
        &self,
        place: Place,
        samples: EpochSamples<'_>,
        gathered_by: Option<Backend>,
        meter: Arc<Meter>,
    ) -> Arc<dyn Work<B>>;

    /// Makes a unit on this thread from end to end, in a slab from `slab`. `changes`: what became of samples that failed so far.
    fn make(
        &self,
        place: Place,
        samples: EpochSamples<'_>,
        meter: &Meter,
        slab: &dyn Fn(usize) -> Option<Slab>,
        changes: Changes,
        at: &Desk,
    ) -> MadeAlone<B>;

    /// What is known of the sample at a row. It calls the data set, and the sampler if the index is not known.
    fn sample_id(
        &self,
        place: Place,
        order: &EpochOrder,
        row: usize,
        index: Option<u64>,
    ) -> SampleId;

    /// What is known of the samples.
    fn hints(&self) -> Hints;

    /// Who may want to know which samples come; `None` where they have no index.
    fn listener(&self) -> Option<Arc<dyn Listener>> {
        None
    }

    /// The stream of an epoch, from where it begins or is resumed; `None` for samples that have an index.
    fn stream(&self, from: StreamStart) -> Option<Box<dyn Pull<B>>> {
        drop(from);
        None
    }

    /// The error of a part that does not match an earlier part of its batch.
    fn unlike(&self, part: Place, like: Place, order: &EpochOrder, error: CollateError) -> Error;

    /// The loader is being dropped: nobody waits to try a sample again.
    fn end(&self);
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

    /// What became of samples that failed.
    fn changes(&self) -> Changes;
}

/// A unit that one thread made from end to end.
pub(crate) struct MadeAlone<B> {
    pub(crate) made: Result<B>,
    pub(crate) changes: Changes,
    /// How long it took; `None` if it panicked.
    pub(crate) elapsed_ns: Option<u64>,
    pub(super) spent: Spent,
}

/// What came of claimed rows.
pub(crate) struct Report {
    pub(crate) rows: Loaded,
    /// How long rows took to load, without the time in `ask`, because making a slab says nothing about the samples.
    pub(crate) elapsed_ns: Option<u64>,
    pub(super) spent: Spent,
    /// Why rows are missing.
    pub(crate) failure: Option<Failed>,
}

impl<B> MadeAlone<B> {
    /// A unit that was not made, for a reason that has nothing to do with its samples.
    pub(super) fn failed(error: Error) -> MadeAlone<B> {
        MadeAlone {
            made: Err(error),
            changes: Changes::default(),
            elapsed_ns: None,
            spent: Spent::default(),
        }
    }
}

pub(crate) struct DatasetRecipe<D, C> {
    pub(crate) dataset: Arc<D>,
    pub(crate) collate: Arc<C>,
    pub(crate) seed: u64,
    pub(crate) on_error: OnError,
    pub(crate) retry: Arc<Retry>,
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

    pub(super) fn is_gatherable(&self) -> bool {
        self.is_gatherable.load(Ordering::Relaxed)
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
    fn source<'a>(
        &'a self,
        place: Place,
        samples: EpochSamples<'a>,
        kept: Option<&'a [usize]>,
        changes: &'a Mutex<Changes>,
        meter: &'a Meter,
    ) -> Source<'a, D> {
        Source {
            dataset: &self.dataset,
            order: samples.order,
            seed: self.seed,
            place,
            announced: samples.announced.map(|announced| &**announced),
            pass: short_id(samples.announced),
            kept,
            changes,
            retry: &self.retry,
            meter,
        }
    }
}

impl<D: Dataset, C: Collate<D::Sample>> DatasetRecipe<D, C> {
    /// Makes a unit once: with what is known of its bad samples, it may have to be made again.
    fn make_once(
        &self,
        source: &Source<'_, D>,
        slab: &dyn Fn(usize) -> Option<Slab>,
        watch: &mut Stopwatch,
        at: &Desk,
    ) -> Result<C::Batch, Failed> {
        let mut table = self.collate.open(Opening {
            rows: source.rows(),
            gathered_by: None,
        });
        let making = Making {
            source,
            table: &table,
            learned: &self.learned,
            at,
            on_error: self.on_error,
            loading: Loading::Solo,
            left_out: RefCell::new(None),
        };
        making.make_rows(slab, watch)?;
        at.begins(Doing::Collating);
        finish(source, &mut table)
    }
}

impl<D: Dataset, C: Collate<D::Sample>> Recipe<C::Batch> for DatasetRecipe<D, C> {
    fn open(
        &self,
        place: Place,
        samples: EpochSamples<'_>,
        gathered_by: Option<Backend>,
        meter: Arc<Meter>,
    ) -> Arc<dyn Work<C::Batch>> {
        Arc::new(DatasetWork {
            samples: UnitSamples {
                dataset: Arc::clone(&self.dataset),
                order: samples.order.clone(),
                seed: self.seed,
                retry: Arc::clone(&self.retry),
                changes: Mutex::default(),
                place,
                announced: samples.announced.cloned(),
                meter,
            },
            table: self.collate.open(Opening {
                rows: place.rows,
                gathered_by,
            }),
            learned: Arc::clone(&self.learned),
            on_error: self.on_error,
            collating_ns: Sum::default(),
            collated: std::marker::PhantomData,
        })
    }

    fn make(
        &self,
        place: Place,
        samples: EpochSamples<'_>,
        meter: &Meter,
        slab: &dyn Fn(usize) -> Option<Slab>,
        changes: Changes,
        at: &Desk,
    ) -> MadeAlone<C::Batch> {
        let mut is_changed = !changes.is_empty();
        let changes = Mutex::new(changes);
        let timed = Timed::of_solo(meter, place.batch, at.is_timed());
        let mut watch = Stopwatch::start(timed);
        at.since(watch.started());
        let made = loop {
            let kept = is_changed.then(|| changes.lock().kept(place.rows));
            let kept = kept.as_deref();
            let source = self.source(place, samples, kept, &changes, meter);
            match self.make_once(&source, slab, &mut watch, at) {
                // Its bad samples are known now, so this comes to an end.
                Err(failed) if failed.can_remake => is_changed = true,
                made => break made,
            }
        };
        if at.is_given_up() {
            // Nobody counts it.
            return MadeAlone {
                made: made.map_err(|failed| failed.error),
                changes: Changes::default(),
                elapsed_ns: None,
                spent: Spent::default(),
            };
        }
        let spent = watch.end_solo(meter);
        if made.is_ok() {
            let skipped = changes.lock().skipped.len();
            meter.samples.add((place.rows - skipped) as u64);
            meter.batches.add(1);
        }
        MadeAlone {
            made: made.map_err(|failed| failed.error),
            changes: changes.into_inner(),
            elapsed_ns: Some(spent.elapsed_ns),
            spent,
        }
    }

    fn sample_id(
        &self,
        place: Place,
        order: &EpochOrder,
        row: usize,
        index: Option<u64>,
    ) -> SampleId {
        let (changes, meter) = (Mutex::default(), Meter::default());
        let source = self.source(place, EpochSamples::of(order), None, &changes, &meter);
        match index {
            Some(index) => source.id(row, index),
            None => source.id_of_row(row),
        }
    }

    fn hints(&self) -> Hints {
        let sample_bytes = self.learned.sample_bytes.load(Ordering::Relaxed);
        Hints {
            sample_bytes: Some(sample_bytes)
                .filter(|bytes| *bytes > 0 && C::IN_PARTS && !self.on_error.skips()),
            is_gatherable: self.learned.is_gatherable(),
            may_be_elsewhere: !C::IN_PLACE,
        }
    }

    fn listener(&self) -> Option<Arc<dyn Listener>> {
        Some(Arc::clone(&self.dataset) as Arc<dyn Listener>)
    }

    fn unlike(&self, part: Place, like: Place, order: &EpochOrder, error: CollateError) -> Error {
        let changes = Mutex::default();
        let meter = Meter::default();
        let source = |place| self.source(place, EpochSamples::of(order), None, &changes, &meter);
        source(part).unlike(&source(like), error)
    }

    fn end(&self) {
        self.retry.end();
    }
}

fn short_id(announced: Option<&Arc<Announced>>) -> u32 {
    announced.map_or(0, |announced| announced.short_id())
}

/// A unit that is being made, wherever its table lies.
struct Making<'a, D, T> {
    source: &'a Source<'a, D>,
    table: &'a T,
    learned: &'a Learned,
    /// Where the thread says which row it is at: others may wonder, and a panic is reported by it.
    at: &'a Desk,
    on_error: OnError,
    /// Who is alone announces samples one at a time as it goes, instead of a run at once.
    loading: Loading,
    /// The last of the samples that are left out, if there are any.
    left_out: RefCell<Option<Failed>>,
}

/// What of a claim is not loaded yet.
enum Left<S> {
    Rows(Range<usize>),
    /// Rows whose samples the data set gets several at a time, and those that it got.
    Many(Range<usize>, std::vec::IntoIter<Got<S>>),
    /// Loaded samples with their rows, to be filled in.
    Parked(std::vec::IntoIter<(usize, S)>),
}

type Got<S> = (usize, Result<S, Failed>);

/// Another sample for the row of one that failed.
#[derive(Debug, Clone, Copy)]
struct Again {
    row: usize,
    index: u64,
}

impl<D: Dataset, T> Making<'_, D, T> {
    /// Loads what was claimed. **This is where a sample fails**, in whatever way: it does not exist, does not load, does not fit, or
    /// panics. What then becomes of it follows from [`OnError`]; if the unit fails, the rows after it are not loaded.
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
        let mut run = T::Run::default();
        let count = claimed.len();
        let at = self.at;
        at.set(match &claimed {
            Claimed::Rows(rows) => rows.start,
            Claimed::Parked(_) => 0,
        });
        let mut left = match claimed {
            Claimed::Rows(rows)
                if self.source.dataset.at_once() > 1 && !self.source.is_changed() =>
            {
                Left::Many(rows, Vec::new().into_iter())
            }
            Claimed::Rows(rows) => Left::Rows(rows),
            Claimed::Parked(count) => Left::Parked(self.table.unpark(count).into_iter()),
        };
        let mut again = None;
        let mut is_announced = false;
        let failure = loop {
            // Unwind safety: a row whose sample panicked is filled again from the start, or its unit has failed.
            let load = AssertUnwindSafe(|| {
                if let Some(again) = again.take() {
                    self.load_other(again, &mut run, ask, &mut took)?;
                }
                if !matches!(left, Left::Parked(_)) {
                    self.source.check().map_err(NotLoaded::Sample)?;
                }
                if let (Left::Rows(rows) | Left::Many(rows, _), Loading::Shared, false) =
                    (&left, self.loading, is_announced)
                {
                    is_announced = true;
                    self.announce(rows.clone()).map_err(NotLoaded::Sample)?;
                }
                match &mut left {
                    Left::Rows(rows) => self.load_rows(rows, &mut run, ask, watch, &mut took),
                    Left::Many(rows, got) => {
                        self.load_many(rows, got, &mut run, ask, watch, &mut took)
                    }
                    Left::Parked(parked) => self.fill_parked(parked, &mut run, ask, &mut took),
                }
            });
            let failed = match catch_unwind(load) {
                Ok(Ok(())) => break None,
                Ok(Err(NotLoaded::Sample(failed))) => failed,
                Ok(Err(NotLoaded::Failed(failure))) => self.source.failed(failure),
                Err(payload) => {
                    let message = panic_message(payload);
                    self.source.sample_panicked(at.get(), message)
                }
            };
            match self.recover::<B>(failed) {
                Ok(other) => again = other,
                Err(failed) => break Some(failed),
            }
        };
        if failure.is_none() {
            self.table.end_run(run);
        } else {
            // It may be the user's to drop, and the unit's error must come all the same.
            drop_each([run]);
            drop_each([left]);
        }
        let loaded = Loaded {
            claimed: count,
            filled: took.filled,
            parked: took.parked,
        };
        let leaves_out = failure.is_some() || self.left_out.borrow().is_some();
        debug_assert!(
            leaves_out || loaded.filled + loaded.parked == count,
            "a row is missing, or there twice, and nobody says why"
        );
        (loaded, failure)
    }

    /// Announces what follows these rows, before the first of them is taken. If that panics, no sample is to blame, so none is replaced.
    fn announce(&self, rows: Range<usize>) -> Result<(), Failed> {
        let first = rows.start;
        let announce = AssertUnwindSafe(|| self.source.announce(rows));
        catch_unwind(announce).map_err(|payload| Failed {
            is_samples_own: false,
            ..self.source.sample_panicked(first, panic_message(payload))
        })
    }

    fn load_rows<B>(
        &self,
        rows: &mut Range<usize>,
        run: &mut T::Run,
        ask: &dyn Fn(Needs) -> bool,
        watch: &mut Stopwatch,
        took: &mut Took,
    ) -> Result<(), NotLoaded<Failed>>
    where
        T: Table<D::Sample, B>,
    {
        if self.source.is_changed() {
            return self.load_changed(rows, run, ask, took);
        }
        let mut indices = Indices::new(self.source.order, self.source.place, rows.end);
        if self.is_table() {
            // The first sample says what batch it is, and asks for the slab.
            self.load_each(rows, 1, &mut indices, run, ask, watch, took)?;
            while self.copy_rows(rows, &mut indices, run, took) {}
        }
        self.load_each(rows, usize::MAX, &mut indices, run, ask, watch, took)
    }

    /// Loads rows one by one, at most as many as this.
    #[inline]
    #[expect(
        clippy::too_many_arguments,
        reason = "what all that load have, and two"
    )]
    fn load_each<B>(
        &self,
        rows: &mut Range<usize>,
        most: usize,
        indices: &mut Indices<'_>,
        run: &mut T::Run,
        ask: &dyn Fn(Needs) -> bool,
        watch: &mut Stopwatch,
        took: &mut Took,
    ) -> Result<(), NotLoaded<Failed>>
    where
        T: Table<D::Sample, B>,
    {
        let (source, at) = (self.source, self.at);
        let announces = self.loading == Loading::Solo && source.announced.is_some();
        let end = rows.end.min(rows.start.saturating_add(most));
        let tells = watch.times_all();
        let next = || {
            let row = (rows.start < end).then_some(rows.start)?;
            rows.start += 1;
            at.set(row);
            if announces {
                source.announce(row..row + 1);
            }
            let sample = match watch.begins(source.meter) {
                false => source.get(row, row, indices.of(row)),
                true => {
                    at.samples(row, watch.mark());
                    let index = indices.of(row);
                    at.gets(index);
                    let sample = source.get(row, row, index);
                    watch.is_loaded(source.meter);
                    // (Who looks on takes the rest of a long run for loading, too.)
                    if tells {
                        at.is(Doing::Filling);
                    }
                    sample
                }
            };
            Some(sample.map(|sample| (row, sample)))
        };
        self.table.load(next, run, took, ask)
    }

    /// Whether samples are rows of a table in memory. (Where they are announced one by one, they are loaded so.)
    #[inline]
    fn is_table(&self) -> bool {
        self.source.announced.is_none() && self.source.dataset.columns(&mut []).is_some()
    }

    /// Copies the next rows of a table in memory, instead of getting each as a sample. `false`: there are none, or these are got.
    #[inline(never)]
    fn copy_rows<B>(
        &self,
        rows: &mut Range<usize>,
        indices: &mut Indices<'_>,
        run: &mut T::Run,
        took: &mut Took,
    ) -> bool
    where
        T: Table<D::Sample, B>,
    {
        let first = rows.start;
        if first >= rows.end {
            return false;
        }
        let mut of_table = [0; INDICES_AT_ONCE];
        let wanted = indices.from(first);
        let of_table = &mut of_table[..wanted.len()];
        of_table.copy_from_slice(wanted);
        if self.at.is_timed() {
            self.at.samples(first, Instant::now());
        }
        let Some(columns) = self.source.dataset.columns(of_table) else {
            return false;
        };
        if of_table.is_empty() || !self.table.copy_rows(first, columns, of_table, run) {
            return false;
        }
        rows.start += of_table.len();
        took.filled += of_table.len();
        true
    }

    /// Loads rows whose samples the data set gets several at a time.
    #[inline(never)]
    fn load_many<B>(
        &self,
        rows: &mut Range<usize>,
        got: &mut std::vec::IntoIter<Got<D::Sample>>,
        run: &mut T::Run,
        ask: &dyn Fn(Needs) -> bool,
        watch: &mut Stopwatch,
        took: &mut Took,
    ) -> Result<(), NotLoaded<Failed>>
    where
        T: Table<D::Sample, B>,
    {
        let source = self.source;
        let mut indices = Indices::new(source.order, source.place, rows.end);
        let next = || {
            if got.len() == 0 && rows.start < rows.end {
                let end = rows.start.saturating_add(source.dataset.at_once());
                let some = rows.start..end.min(rows.end);
                rows.start = some.end;
                let (start, count) = (Instant::now(), some.len());
                *got = self.get_many(some, &mut indices, start).into_iter();
                watch.are_loaded(start, count, source.meter);
            }
            let (row, sample) = got.next()?;
            self.at.fills(row);
            Some(sample.map(|sample| (row, sample)))
        };
        self.table.load(next, run, took, ask)
    }

    /// Gets the samples of these rows in one call. If it panics, all of them did: each row has its result.
    fn get_many(
        &self,
        rows: Range<usize>,
        indices: &mut Indices<'_>,
        start: Instant,
    ) -> Vec<Got<D::Sample>> {
        let (source, at) = (self.source, self.at);
        at.set(rows.start);
        // Unwind safety: what a panic leaves behind is only dropped.
        let get = AssertUnwindSafe(|| {
            if self.loading == Loading::Solo {
                source.announce(rows.clone());
            }
            at.samples(rows.start, start);
            let own: Vec<u64> = rows.clone().map(|row| indices.of(row)).collect();
            at.gets(own[0]);
            source.get_many(rows.clone(), &own)
        });
        catch_unwind(get).unwrap_or_else(|payload| {
            let message = panic_message(payload);
            let failed = |row| (row, Err(source.sample_panicked(row, message.clone())));
            rows.map(failed).collect()
        })
    }

    /// Loads rows of a unit that is made again.
    #[cold]
    fn load_changed<B>(
        &self,
        rows: &mut Range<usize>,
        run: &mut T::Run,
        ask: &dyn Fn(Needs) -> bool,
        took: &mut Took,
    ) -> Result<(), NotLoaded<Failed>>
    where
        T: Table<D::Sample, B>,
    {
        let (source, at) = (self.source, self.at);
        let mut indices = Indices::new(source.order, source.place, source.place.rows);
        let next = || {
            let row = rows.next()?;
            at.set(row);
            at.samples(row, Instant::now());
            let in_place = source.row_of_place(row);
            let other = source.changes.lock().of(in_place);
            let index = match other {
                None => indices.of(in_place),
                Some(other) => other.index,
            };
            at.gets(index);
            let sample = source.get(row, in_place, index);
            Some(sample.map(|sample| (row, sample)))
        };
        self.table.load(next, run, took, ask)
    }

    fn fill_parked<B>(
        &self,
        parked: &mut std::vec::IntoIter<(usize, D::Sample)>,
        run: &mut T::Run,
        ask: &dyn Fn(Needs) -> bool,
        took: &mut Took,
    ) -> Result<(), NotLoaded<Failed>>
    where
        T: Table<D::Sample, B>,
    {
        let at = self.at;
        let next = || {
            let parked = parked.next()?;
            at.fills(parked.0);
            Some(Ok(parked))
        };
        self.table.load(next, run, took, ask)
    }

    /// Loads another sample into the row of one that failed.
    #[cold]
    fn load_other<B>(
        &self,
        Again { row, index }: Again,
        run: &mut T::Run,
        ask: &dyn Fn(Needs) -> bool,
        took: &mut Took,
    ) -> Result<(), NotLoaded<Failed>>
    where
        T: Table<D::Sample, B>,
    {
        self.at.samples(row, Instant::now());
        self.at.gets(index);
        let in_place = self.source.row_of_place(row);
        let sample = self.source.get(row, in_place, index);
        let mut sample = Some(sample.map(|sample| (row, sample)));
        self.table.load(|| sample.take(), run, took, ask)
    }

    /// Settles a sample's failure: it is replaced by another, which is returned; it is left out; or the unit fails.
    #[cold]
    fn recover<B>(&self, failed: Failed) -> Result<Option<Again>, Failed>
    where
        T: Table<D::Sample, B>,
    {
        let (source, row) = (self.source, failed.row);
        let row_of_place = source.row_of_place(row);
        let before = source.changes.lock().of(row_of_place);
        let attempt = before.map_or(0, |before| before.attempt);
        let takes_any = self.table.takes_any();
        let settled = self
            .on_error
            .settle(failed, attempt, self.loading, takes_any, source.meter);
        match settled {
            Settled::Fail(failed) => Err(failed),
            Settled::Skip(failed) => {
                source.changes.lock().skipped.push(row_of_place);
                self.left_out.replace(Some(failed));
                Ok(None)
            }
            Settled::Replace { remake } => {
                let attempt = attempt + 1;
                let draw = AssertUnwindSafe(|| source.index_of_other(row, attempt));
                let index = catch_unwind(draw)
                    .map_err(|payload| source.sampler_panicked(row, panic_message(payload)))?;
                source.changes.lock().replaced.push(Replaced {
                    row: row_of_place,
                    attempt,
                    index,
                });
                match remake {
                    None => Ok(Some(Again { row, index })),
                    Some(failed) => Err(failed),
                }
            }
        }
    }

    /// Samples that are left out leave holes: the unit is made again without them, unless nothing is left.
    fn are_all_kept(&self) -> Result<(), Failed> {
        match self.left_out.take() {
            None => Ok(()),
            Some(failed) => Err(Failed {
                can_remake: self.source.changes.lock().skipped.len() < self.source.place.rows,
                ..failed
            }),
        }
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
        let rows = self.source.rows();
        let (loaded, failure) = self.load(Claimed::Rows(0..rows), &ask, watch);
        failure.map_or(Ok(()), Err)?;
        self.are_all_kept()?;
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
                failure.map_or(Ok(()), Err)?;
                self.are_all_kept()
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
    samples: UnitSamples<D>,
    table: T,
    learned: Arc<Learned>,
    on_error: OnError,
    /// Time that filling its rows took so far.
    collating_ns: Sum,
    collated: std::marker::PhantomData<fn() -> B>,
}

/// Where a shared unit's samples come from.
struct UnitSamples<D> {
    dataset: Arc<D>,
    order: EpochOrder,
    seed: u64,
    retry: Arc<Retry>,
    changes: Mutex<Changes>,
    place: Place,
    announced: Option<Arc<Announced>>,
    meter: Arc<Meter>,
}

impl<D> UnitSamples<D> {
    fn source(&self) -> Source<'_, D> {
        Source {
            dataset: &self.dataset,
            order: &self.order,
            seed: self.seed,
            place: self.place,
            announced: self.announced.as_deref(),
            pass: short_id(self.announced.as_ref()),
            kept: None,
            changes: &self.changes,
            retry: &self.retry,
            meter: &self.meter,
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
            source: &self.samples.source(),
            table: &self.table,
            learned: &self.learned,
            at,
            on_error: self.on_error,
            loading: Loading::Shared,
            left_out: RefCell::new(None),
        };
        let (rows, failure) = making.load(claimed, &ask, &mut watch);
        if at.is_given_up() {
            // Nobody counts it.
            return Report {
                rows,
                elapsed_ns: None,
                spent: Spent::default(),
                failure,
            };
        }
        let spent = watch.end_run(&self.samples.meter, asked_ns.get());
        self.collating_ns.add(spent.collating_ns);
        Report {
            rows,
            elapsed_ns: is_fresh.then_some(spent.elapsed_ns),
            spent,
            failure,
        }
    }

    fn lay_out(&self) -> Result<usize, Failed> {
        let needs = lay_out(&self.samples.source(), &self.table)?;
        self.learned.note(needs);
        Ok(needs.bytes)
    }

    fn grant(&self, slab: Slab) {
        self.table.grant(slab);
    }

    fn finish(&mut self) -> Result<B, Failed> {
        let watch = Stopwatch::start(Timed::None);
        let samples = &self.samples;
        let finished = finish(&samples.source(), &mut self.table);
        let rows_ns = self.collating_ns.get();
        let finishing_ns = watch.end_collating(&samples.meter);
        if finished.is_ok() {
            let times = &samples.meter.collating_times;
            times.count(rows_ns + finishing_ns);
            samples.meter.samples.add(samples.place.rows as u64);
        }
        finished
    }

    fn changes(&self) -> Changes {
        self.samples.changes.lock().clone()
    }
}
