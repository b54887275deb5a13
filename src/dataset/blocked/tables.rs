//! Blocks that are tables: batches copy their rows, a few hundred at a time, instead of getting each as a sample.
//!
//! Only rows that are there are copied. A sample whose block is fetched, or has failed, or is in none, is got: that waits, and says what
//! is wrong.

use super::{BlockSource, Blocked};
use crate::dataset::Table;
use crate::tensor::Column;
use crate::tuning::ROWS_AT_ONCE;

/// How many samples are announced ahead, at least: an eighth of them is announced at once, and as many rows are found and copied.
pub(super) const ROWS_AHEAD: usize = 8 * ROWS_AT_ONCE;

/// How many runs of rows are fetched into the cache before they are copied.
const RUNS_AHEAD: usize = 16;

impl<S: BlockSource> Blocked<S> {
    /// Gives rows of the first of these samples, as [`Dataset::give_rows`](crate::Dataset::give_rows).
    pub(super) fn give_rows_of(
        &self,
        indices: &[u64],
        pass: u32,
        give: &mut dyn FnMut(&[Column], &[u64]) -> bool,
    ) -> usize {
        let requests = self.requests();
        let indices = &indices[..indices.len().min(ROWS_AT_ONCE)];
        if indices.is_empty() {
            return 0;
        }
        // (What was fetched stays there while it is in `runs`, whatever becomes of the pass.)
        let runs = requests.pieces.read().find_rows(indices, pass);
        let (mut rows, mut found) = ([0; ROWS_AT_ONCE], 0);
        // The tables, with their first rows.
        let mut tables = Vec::with_capacity(runs.len());
        for run in &runs {
            let block = run.fetched.as_ref().ok();
            let Some(table) = block.and_then(|block| requests.source.table(block)) else {
                break;
            };
            let own = found..found + run.count;
            for (row, index) in rows[own.clone()].iter_mut().zip(&indices[own.clone()]) {
                *row = index - run.start;
            }
            tables.push((table, rows[own.start]));
            found = own.end;
        }
        // (Most rows are in no cache where the order is shuffled.)
        let fetch_ahead = |(table, row): &(Table<'_>, u64)| {
            let columns = table.columns.iter();
            columns.for_each(|column| column.fetch_ahead(*row));
        };
        tables.iter().take(RUNS_AHEAD).for_each(fetch_ahead);
        let mut given = 0;
        for (at, ((table, _), run)) in tables.iter().zip(&runs).enumerate() {
            if let Some(next) = tables.get(at + RUNS_AHEAD) {
                fetch_ahead(next);
            }
            if !give(table.columns, &rows[given..given + run.count]) {
                break;
            }
            given += run.count;
        }
        given
    }
}
