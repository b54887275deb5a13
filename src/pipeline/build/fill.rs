//! Making a task: its rows are loaded, and it is laid out and finished. **This is where a sample fails** ([`Fill::load`]).

mod many;
mod tables;

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

use super::factory::DatasetFactory;
use super::on_error::{Loading, Settled};
use super::progress::Progress;
use super::samples::Source;
use super::stopwatch::Stopwatch;
use crate::batch::{Collate, Needs, NotLoaded, Table, Took};
use crate::dataset::{Dataset, Progress as _, with_progress};
use crate::device::Piece;
use crate::error::{NotDrawn, drop_each, panic_message};
use crate::pipeline::plan::indices::{Indices, Sampled};
use crate::pipeline::schedule::{Claimed, Loaded};
use crate::pipeline::traits::{Failed, Replaced};
use crate::pipeline::worker_status::{Doing, WorkerStatus};
use crate::sync::Instant;
use crate::tuning::ROWS_AT_ONCE;

/// A task that is being made, wherever its table lies.
pub(crate) struct Fill<'a, D: Dataset, C: Collate<D::Sample>> {
    factory: &'a DatasetFactory<D, C>,
    source: &'a Source<'a, D>,
    table: &'a C::Table,
    /// Where the thread says which row it is at, for other threads that look, and for the error if it panics.
    at: &'a WorkerStatus,
    /// A thread that makes the task alone announces samples as it goes ([`Fill::announced`]), instead of all that it claimed at once.
    loading: Loading,
    /// Such a thread has announced the rows below this one.
    announced: Cell<usize>,
    /// For a data set that reads blocks.
    progress: Option<Rc<Progress>>,
    /// The last of the samples that are left out, if there are any.
    left_out: RefCell<Option<Failed>>,
    /// How long the sampler took for what is loaded, and how long the data set took to be told what comes, in nanoseconds.
    sampled: Sampled,
    announcing_ns: Cell<u64>,
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

/// What a table collects over a run of samples.
type Run<D, C> = <<C as Collate<<D as Dataset>::Sample>>::Table as Table<
    <D as Dataset>::Sample,
    <C as Collate<<D as Dataset>::Sample>>::Batch,
>>::Run;

/// Another sample for the row of one that failed.
#[derive(Debug, Clone, Copy)]
struct Again {
    row: usize,
    index: u64,
}

impl<'a, D: Dataset, C: Collate<D::Sample>> Fill<'a, D, C> {
    pub(crate) fn new(
        factory: &'a DatasetFactory<D, C>,
        source: &'a Source<'a, D>,
        table: &'a C::Table,
        at: &'a WorkerStatus,
        loading: Loading,
        watch: &Stopwatch,
    ) -> Fill<'a, D, C> {
        Fill {
            factory,
            source,
            table,
            at,
            loading,
            announced: Cell::new(0),
            progress: Progress::new(source.context.announced.as_ref(), source.place),
            left_out: RefCell::new(None),
            sampled: match watch.times_sampler() {
                true => Sampled::default(),
                false => Sampled::unasked(),
            },
            announcing_ns: Cell::new(0),
        }
    }

    /// Loads what was claimed. **This is where a sample fails**, in whatever way: it does not exist, does not load, does not fit, or
    /// panics. What then becomes of it follows from [`OnError`](super::on_error::OnError); if the task fails, the rows after it are not loaded.
    pub(crate) fn load(
        &self,
        claimed: Claimed,
        ask: &dyn Fn(Needs) -> bool,
        watch: &mut Stopwatch,
    ) -> (Loaded, Option<Failed>) {
        let count = claimed.len();
        if !C::IN_PLACE && self.source.place.is_empty() {
            return self.without_pattern(count);
        }
        let mut took = Took::default();
        let mut run = Run::<D, C>::default();
        let at = self.at;
        let first = match &claimed {
            Claimed::Rows(rows) if !rows.is_empty() => self.source.row_of_place(rows.start),
            Claimed::Rows(_) | Claimed::Parked(_) => 0,
        };
        at.comes_to(first);
        let end = self.begins(&claimed, first);
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
            // Unwind safety: a row whose sample panicked is filled again from the start, or its task has failed.
            let load = || {
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
                    self.announce(rows.clone(), true)
                        .map_err(NotLoaded::Sample)?;
                }
                match &mut left {
                    Left::Rows(rows) => self.load_rows(rows, &mut run, ask, watch, &mut took),
                    Left::Many(rows, got) => {
                        self.load_many(rows, got, &mut run, ask, watch, &mut took)
                    }
                    Left::Parked(parked) => self.fill_parked(parked, &mut run, ask, &mut took),
                }
            };
            let progress = self.progress.as_ref();
            let progress = progress.map(|progress| Rc::clone(progress) as _);
            let load = AssertUnwindSafe(|| with_progress(progress, load));
            let failed = match catch_unwind(load) {
                Ok(Ok(())) => break self.ends(end).err(),
                Ok(Err(NotLoaded::Sample(failed))) => failed,
                Ok(Err(NotLoaded::Failed(failure))) => self.source.failed(failure),
                Err(payload) => {
                    let message = panic_message(payload);
                    let row = self.source.row_made(at.row());
                    self.source.sample_panicked(row, message)
                }
            };
            match self.recover(failed) {
                Ok(other) => again = other,
                Err(failed) => break Some(failed),
            }
        };
        watch.also(self.sampled.take_ns(), self.announcing_ns.take());
        if let Some(failed) = &failure {
            // What is not loaded any more needs no block. (A task that is made again by the same thread loads it then.)
            if self.loading == Loading::Shared || !failed.can_rebuild {
                _ = self.ends(end);
            }
        }
        if failure.is_none() {
            self.table.end_run(run);
        } else {
            // It may be the user's to drop, and the task's error must come all the same.
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
            "a row is missing, or there twice, and no error says why"
        );
        (loaded, failure)
    }

    /// A function collates the samples of an empty batch, which are none.
    fn without_pattern(&self, claimed: usize) -> (Loaded, Option<Failed>) {
        let failure = self.source.check().err();
        let loaded = Loaded {
            claimed,
            filled: if failure.is_none() { claimed } else { 0 },
            parked: 0,
        };
        (loaded, failure)
    }

    /// Rows are loaded from here on. Returns the row of the place up to which they were, when that is done; `None`: they were loaded before.
    fn begins(&self, claimed: &Claimed, first: usize) -> Option<usize> {
        let (source, progress) = (self.source, self.progress.as_ref()?);
        let Claimed::Rows(rows) = claimed else {
            return None;
        };
        // (A task that is made again is made as a whole.)
        progress.begins(if source.is_changed() { 0 } else { first });
        Some(match rows.end < source.rows() {
            true => source.row_of_place(rows.end),
            false => source.place.rows,
        })
    }

    /// The rows before this one were loaded.
    fn ends(&self, end: Option<usize>) -> Result<(), Failed> {
        let (Some(progress), Some(end)) = (&self.progress, end) else {
            return Ok(());
        };
        progress.comes_to(end);
        self.report(end.saturating_sub(1))
    }

    /// Says which rows were loaded. If that panics, no sample is to blame. (Rows of tables take so little time that this is said when the thread waits,
    /// or is done with all that it claimed.)
    fn report(&self, row: usize) -> Result<(), Failed> {
        let Some(progress) = &self.progress else {
            return Ok(());
        };
        let report = AssertUnwindSafe(|| _ = progress.report());
        catch_unwind(report).map_err(|payload| self.data_set_panicked(row, payload))
    }

    #[cold]
    fn data_set_panicked(&self, row: usize, payload: Box<dyn Any + Send>) -> Failed {
        Failed {
            is_samples_own: false,
            ..self.source.sample_panicked(row, panic_message(payload))
        }
    }

    /// Announces what follows these rows, before the first of them is taken. If that panics, no sample is to blame, so none is replaced.
    fn announce(&self, rows: Range<usize>, is_timed: bool) -> Result<(), Failed> {
        let first = rows.start;
        let announce = AssertUnwindSafe(|| self.source.announce(rows, is_timed));
        let (ns, sampling_ns) =
            catch_unwind(announce).map_err(|payload| self.data_set_panicked(first, payload))?;
        self.sampled.add(sampling_ns);
        let announcing_ns = self.announcing_ns.get() + ns.saturating_sub(sampling_ns);
        self.announcing_ns.set(announcing_ns);
        Ok(())
    }

    fn load_rows(
        &self,
        rows: &mut Range<usize>,
        run: &mut Run<D, C>,
        ask: &dyn Fn(Needs) -> bool,
        watch: &mut Stopwatch,
        took: &mut Took,
    ) -> Result<(), NotLoaded<Failed>> {
        if self.source.is_changed() {
            return self.load_changed(rows, run, ask, took);
        }
        let (order, place) = (&self.source.context.order, self.source.place);
        let mut indices = Indices::new(order, place, rows.end, &self.sampled);
        if self.is_table() {
            // The first sample says what batch it is, and asks for the slab.
            self.load_each(rows, 1, &mut indices, run, ask, watch, took)?;
            while self.copy_rows(rows, &mut indices, run, took) {}
        } else if self
            .source
            .dataset
            .give_rows(&[], 0, &mut |_, _| false)
            .is_some()
        {
            // (The first says what batch it is, here too; one that is not there yet, or fails, is got.)
            while rows.start < rows.end && (took.filled == 0 || self.table.takes_rows()) {
                while self.take_rows(rows, &mut indices, run, watch, took)? {}
                self.load_each(rows, 1, &mut indices, run, ask, watch, took)?;
            }
        }
        self.load_each(rows, usize::MAX, &mut indices, run, ask, watch, took)
    }

    /// Loads rows one by one, at most as many as this.
    #[inline]
    #[expect(
        clippy::too_many_arguments,
        reason = "what all that load have, and two"
    )]
    fn load_each(
        &self,
        rows: &mut Range<usize>,
        most: usize,
        indices: &mut Indices<'_>,
        run: &mut Run<D, C>,
        ask: &dyn Fn(Needs) -> bool,
        watch: &mut Stopwatch,
        took: &mut Took,
    ) -> Result<(), NotLoaded<Failed>> {
        let source = self.source;
        let announces = self.loading == Loading::Solo && source.context.announced.is_some();
        let end = rows.end.min(rows.start.saturating_add(most));
        let next = || {
            let row = (rows.start < end).then_some(rows.start)?;
            rows.start += 1;
            self.comes_to(row);
            if announces
                && row >= self.announced.get()
                && let Err(failed) = self
                    .report(row)
                    .and_then(|()| self.announce_next(row..end, watch))
            {
                return Some(Err(failed));
            }
            let sample = match watch.begins(&source.context.meter) {
                false => source.get(row, row, indices.of(row)),
                true => self.get_timed(row, indices, watch),
            };
            Some(sample.map(|sample| (row, sample)))
        };
        self.table.load(next, run, took, ask)
    }

    /// Tells the data set that the samples of the first of these rows come next: of so many that its window hardly moves by them.
    #[inline(never)]
    fn announce_next(&self, rows: Range<usize>, watch: &mut Stopwatch) -> Result<(), Failed> {
        watch.is_in(&self.source.context.meter); // the sample before
        let lookahead = self.source.context.announced.as_ref();
        let lookahead = lookahead.map_or(0, |announced| announced.lookahead());
        let most = (lookahead / 8).clamp(1, ROWS_AT_ONCE);
        let rows = rows.start..rows.end.min(rows.start.saturating_add(most));
        self.announced.set(rows.end);
        self.announce(rows, watch.times_sampler())
    }

    /// The row of the place that is loaded next.
    #[inline]
    fn comes_to(&self, row: usize) {
        self.at.comes_to(row);
        if let Some(progress) = &self.progress {
            progress.comes_to(row);
        }
    }

    /// Gets the sample of a row, and notes how long that takes.
    #[inline(never)]
    fn get_timed(
        &self,
        row: usize,
        indices: &mut Indices<'_>,
        watch: &mut Stopwatch,
    ) -> Result<D::Sample, Failed> {
        let (source, at) = (self.source, self.at);
        at.samples(row, watch.mark());
        let before_ns = self.sampled.measured_ns();
        let index = indices.of(row);
        watch.begins_later(self.sampled.measured_ns() - before_ns);
        at.gets(index);
        let sample = source.get(row, row, index);
        watch.is_loaded(&source.context.meter);
        // (Where not every sample is timed, the rest of a long run is seen as loading, too.)
        if watch.times_all() {
            at.is(Doing::Filling);
        }
        sample
    }

    /// Loads rows of a task that is made again.
    #[cold]
    fn load_changed(
        &self,
        rows: &mut Range<usize>,
        run: &mut Run<D, C>,
        ask: &dyn Fn(Needs) -> bool,
        took: &mut Took,
    ) -> Result<(), NotLoaded<Failed>> {
        let (source, at) = (self.source, self.at);
        let (order, place) = (&source.context.order, source.place);
        let mut indices = Indices::new(order, place, place.rows, &self.sampled);
        let next = || {
            let row = rows.next()?;
            let in_place = source.row_of_place(row);
            self.comes_to(in_place);
            at.samples(in_place, Instant::now());
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

    fn fill_parked(
        &self,
        parked: &mut std::vec::IntoIter<(usize, D::Sample)>,
        run: &mut Run<D, C>,
        ask: &dyn Fn(Needs) -> bool,
        took: &mut Took,
    ) -> Result<(), NotLoaded<Failed>> {
        let (source, at) = (self.source, self.at);
        let next = || {
            let parked = parked.next()?;
            let in_place = source.row_of_place(parked.0);
            let replaced = || source.changes.lock().of(in_place);
            at.fills(in_place, || replaced().map(|replaced| replaced.index));
            Some(Ok(parked))
        };
        self.table.load(next, run, took, ask)
    }

    /// Loads another sample into the row of one that failed.
    #[cold]
    fn load_other(
        &self,
        Again { row, index }: Again,
        run: &mut Run<D, C>,
        ask: &dyn Fn(Needs) -> bool,
        took: &mut Took,
    ) -> Result<(), NotLoaded<Failed>> {
        let in_place = self.source.row_of_place(row);
        self.at.comes_to(in_place);
        self.at.samples(in_place, Instant::now());
        self.at.gets(index);
        let sample = self.source.get(row, in_place, index);
        let mut sample = Some(sample.map(|sample| (row, sample)));
        self.table.load(|| sample.take(), run, took, ask)
    }

    /// Settles a sample's failure: it is replaced by another, which is returned; it is left out; or the task fails.
    #[cold]
    fn recover(&self, failed: Failed) -> Result<Option<Again>, Failed> {
        let failed = failed.if_late(|| self.at.name());
        let (source, row) = (self.source, failed.row);
        let row_of_place = source.row_of_place(row);
        let before = source.changes.lock().of(row_of_place);
        let attempt = before.map_or(0, |before| before.attempt);
        let on_error = match source.place.is_empty() {
            true => self.factory.on_error.of_pattern(),
            false => self.factory.on_error,
        };
        let takes_any = self.table.takes_any();
        let meter = &source.context.meter;
        let settled = on_error.settle(failed, attempt, self.loading, takes_any, meter);
        match settled {
            Settled::Fail(failed) => Err(failed),
            Settled::Skip(failed) => {
                source.changes.lock().skipped.push(row_of_place);
                if self.loading == Loading::Shared {
                    // What else is claimed would be loaded in vain.
                    return Err(Failed {
                        can_rebuild: true,
                        ..failed
                    });
                }
                self.left_out.replace(Some(failed));
                Ok(None)
            }
            Settled::Replace { rebuild } => {
                let attempt = attempt + 1;
                let draw = AssertUnwindSafe(|| source.index_of_other(row, attempt));
                let index = catch_unwind(draw)
                    .map_err(|payload| source.sampler_panicked(row, panic_message(payload)))?;
                source.changes.lock().replaced.push(Replaced {
                    row: row_of_place,
                    attempt,
                    index,
                });
                match rebuild {
                    None => Ok(Some(Again { row, index })),
                    Some(failed) => Err(failed),
                }
            }
        }
    }

    /// Samples that are left out leave holes: the task is made again without them, unless nothing is left.
    fn are_all_kept(&self) -> Result<(), Failed> {
        match self.left_out.take() {
            None => Ok(()),
            Some(failed) => Err(Failed {
                can_rebuild: self.source.changes.lock().skipped.len() < self.source.place.rows,
                ..failed
            }),
        }
    }

    /// Makes all rows of a task that one thread makes from end to end.
    pub(crate) fn make_rows(
        &self,
        slab: &dyn Fn(usize) -> Option<Piece>,
        watch: &mut Stopwatch,
    ) -> Result<(), Failed> {
        let grant = |bytes| {
            let piece = slab(bytes);
            let granted = piece.is_some();
            piece.into_iter().for_each(|piece| self.table.grant(piece));
            granted
        };
        let is_asked = Cell::new(false);
        let ask = |needs: Needs| {
            is_asked.set(true);
            self.factory.learned.note(needs);
            grant(needs.bytes)
        };
        let rows = self.source.rows();
        let (loaded, failure) = self.load(Claimed::Rows(0..rows), &ask, watch);
        if let Some(failed) = failure {
            return Err(failed);
        }
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

pub(crate) fn lay_out<D: Dataset, B, T: Table<D::Sample, B>>(
    source: &Source<'_, D>,
    table: &T,
) -> Result<Needs, Failed> {
    match catch_unwind(AssertUnwindSafe(|| table.plan())) {
        Ok(planned) => planned.map_err(|failure| source.failed(failure)),
        Err(payload) => Err(source.collate_panicked(panic_message(payload))),
    }
}

pub(crate) fn finish<D: Dataset, B, T: Table<D::Sample, B>>(
    source: &Source<'_, D>,
    table: &mut T,
) -> Result<B, Failed> {
    match catch_unwind(AssertUnwindSafe(|| table.finish())) {
        Ok(finished) => finished.map_err(|failure| source.failed(failure)),
        Err(payload) => Err(match payload.downcast::<NotDrawn>() {
            Ok(not_drawn) => source.not_drawn(*not_drawn),
            Err(payload) => source.collate_panicked(panic_message(payload)),
        }),
    }
}
