//! Rows that are copied out of tables, instead of each being got as a sample.

use std::ops::Range;

use super::{Fill, Run};
use crate::batch::{Collate, NotLoaded, Table, Took};
use crate::dataset::Dataset;
use crate::pipeline::build::on_error::Loading;
use crate::pipeline::build::stopwatch::Stopwatch;
use crate::pipeline::plan::indices::Indices;
use crate::pipeline::traits::Failed;
use crate::sync::Instant;
use crate::tensor::Column;
use crate::tuning::{INDICES_AT_ONCE, ROWS_AT_ONCE};

impl<D: Dataset, C: Collate<D::Sample>> Fill<'_, D, C> {
    /// Whether samples are rows of a table in memory. (Where they are announced, they are got.)
    #[inline]
    pub(super) fn is_table(&self) -> bool {
        self.source.context.announced.is_none() && self.source.dataset.columns(&mut []).is_some()
    }

    /// Copies the next rows of a table in memory, instead of getting each as a sample. `false`: there are none, or these are got.
    #[inline(never)]
    pub(super) fn copy_rows(
        &self,
        rows: &mut Range<usize>,
        indices: &mut Indices<'_>,
        run: &mut Run<D, C>,
        took: &mut Took,
    ) -> bool {
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

    /// Copies the next rows of tables that are there. `false`: the next one is to be got, or there is none.
    #[inline(never)]
    pub(super) fn take_rows(
        &self,
        rows: &mut Range<usize>,
        indices: &mut Indices<'_>,
        run: &mut Run<D, C>,
        watch: &mut Stopwatch,
        took: &mut Took,
    ) -> Result<bool, NotLoaded<Failed>> {
        let (source, start) = (self.source, Instant::now());
        if rows.start >= rows.end || !self.table.takes_rows() {
            return Ok(false);
        }
        self.comes_to(rows.start);
        let others_ns = || self.sampled.measured_ns() + self.announcing_ns.get();
        let before_ns = others_ns();
        let mut end = rows.end;
        if self.loading == Loading::Solo && source.context.announced.is_some() {
            if rows.start >= self.announced.get() {
                let announced = self.announce_next(rows.clone(), watch);
                announced.map_err(NotLoaded::Sample)?;
            }
            end = end.min(self.announced.get());
        }
        self.at.samples(rows.start, start);
        let (mut wanted, mut count) = ([0; ROWS_AT_ONCE], 0);
        let most = wanted.len().min(end - rows.start);
        while count < most {
            let some = indices.from(rows.start + count);
            let some = &some[..some.len().min(most - count)];
            if some.is_empty() {
                break; // the sampler panics: where its sample is got
            }
            wanted[count..count + some.len()].copy_from_slice(some);
            count += some.len();
        }
        let mut at = rows.start;
        let mut copy = |columns: &[Column], of_table: &[u64]| {
            let is_copied = self.table.copy_rows(at, columns, of_table, run);
            at += if is_copied { of_table.len() } else { 0 };
            is_copied
        };
        let given = source
            .dataset
            .give_rows(&wanted[..count], source.context.short_id, &mut copy);
        let given = given.unwrap_or(0);
        rows.start += given;
        took.filled += given;
        if given > 0 {
            let other_ns = others_ns() - before_ns;
            watch.are_loaded(start, other_ns, given, &source.context.meter);
        }
        Ok(given > 0)
    }
}
