//! Rows whose samples the data set gets several at a time.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::{Fill, Got, Run};
use crate::batch::{Collate, Needs, NotLoaded, Table, Took};
use crate::dataset::Dataset;
use crate::error::{drop_each, panic_message};
use crate::pipeline::build::on_error::{Loading, OnError};
use crate::pipeline::build::stopwatch::Stopwatch;
use crate::pipeline::plan::indices::Indices;
use crate::pipeline::traits::Failed;
use crate::sync::Instant;
use crate::sync::log;

impl<D: Dataset, C: Collate<D::Sample>> Fill<'_, D, C> {
    /// Loads rows whose samples the data set gets several at a time.
    #[inline(never)]
    pub(super) fn load_many(
        &self,
        rows: &mut Range<usize>,
        got: &mut std::vec::IntoIter<Got<D::Sample>>,
        run: &mut Run<D, C>,
        ask: &dyn Fn(Needs) -> bool,
        watch: &mut Stopwatch,
        took: &mut Took,
    ) -> Result<(), NotLoaded<Failed>> {
        let source = self.source;
        let mut indices =
            Indices::new(&source.context.order, source.place, rows.end, &self.sampled);
        let next = || {
            if got.len() == 0 && rows.start < rows.end {
                let end = rows.start.saturating_add(source.dataset.at_once());
                let some = rows.start..end.min(rows.end);
                rows.start = some.end;
                let (start, count) = (Instant::now(), some.len());
                let others_ns = || self.sampled.measured_ns() + self.announcing_ns.get();
                let before_ns = others_ns();
                *got = self.get_many(some, &mut indices, start).into_iter();
                let other_ns = others_ns() - before_ns;
                watch.are_loaded(start, other_ns, count, &source.context.meter);
            }
            let (row, sample) = got.next()?;
            self.at.fills(row, || None);
            Some(sample.map(|sample| (row, sample)))
        };
        self.table.load(next, run, took, ask)
    }

    /// Gets the samples of these rows in one call. If it panics, each is got alone, to find out which of them is bad.
    fn get_many(
        &self,
        rows: Range<usize>,
        indices: &mut Indices<'_>,
        start: Instant,
    ) -> Vec<Got<D::Sample>> {
        let (source, at) = (self.source, self.at);
        self.comes_to(rows.start);
        let _many = self.progress.as_ref().map(|progress| progress.several());
        if let Err(failed) = self.report(rows.start) {
            return vec![(rows.start, Err(failed))];
        }
        if self.loading == Loading::Solo
            && let Err(failed) = self.announce(rows.clone(), true)
        {
            return vec![(rows.start, Err(failed))];
        }
        // Unwind safety: what a panic leaves behind is only dropped.
        let get = AssertUnwindSafe(|| {
            at.samples(rows.start, start);
            let own: Vec<u64> = rows.clone().map(|row| indices.of(row)).collect();
            at.gets_many(own[0], own.len());
            source.get_many(rows.clone(), &own)
        });
        match catch_unwind(get) {
            Ok(got) => got,
            Err(payload) => self.get_each(rows, indices, &panic_message(payload)),
        }
    }

    /// Gets the samples of these rows one by one, whose common call panicked with this message. Which samples share a call depends on the
    /// workers and the ranks, so what becomes of a sample must not depend on the others.
    #[cold]
    fn get_each(
        &self,
        rows: Range<usize>,
        indices: &mut Indices<'_>,
        message: &str,
    ) -> Vec<Got<D::Sample>> {
        let (source, at) = (self.source, self.at);
        let (first, count) = (rows.start, rows.len());
        let mut got = Vec::with_capacity(count);
        for row in rows {
            at.samples(row, Instant::now());
            let get = AssertUnwindSafe(|| {
                let index = indices.of(row);
                at.gets(index);
                source.get(row, row, index)
            });
            let sample = catch_unwind(get)
                .unwrap_or_else(|payload| Err(source.sample_panicked(row, panic_message(payload))));
            let ends = sample.is_err() && self.factory.on_error == OnError::Fail;
            got.push((row, sample));
            if ends {
                break; // its batch fails, whatever the others are
            }
        }
        if got.iter().any(|(_, sample)| sample.is_err()) {
            return got;
        }
        // None of them is bad: it was the call.
        if self.factory.on_error == OnError::Fail {
            drop_each(got);
            let said =
                format!("{message} (in `get_many`, of {count} samples, each of which `get` loads)");
            let failed = Failed {
                is_samples_own: false,
                ..source.sample_panicked(first, said)
            };
            return vec![(first, Err(failed))];
        }
        if source.context.meter.many_panicked() {
            let (epoch, batch) = (source.place.epoch, source.place.batch);
            log::warn!(
                "`get_many` panicked on {count} samples of batch {batch} in epoch {epoch}, each of which `get` loads: {message} (others of \
                 this epoch are not logged)"
            );
        }
        got
    }
}
