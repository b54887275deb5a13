//! Blocks that are tables: batches copy their rows, a few dozen at a time, instead of getting each as a sample.
//!
//! Only rows that are there are copied. A sample whose block is fetched, or has failed, or is in none, is got: that waits, and says what
//! is wrong.

use super::pieces::Gone;
use super::{BlockSource, Blocked};
use crate::sync::planted;
use crate::tensor::Column;
use crate::tuning::INDICES_AT_ONCE;

/// How many samples are announced ahead, at least: rows are taken so fast that few would be one at a time.
pub(super) const ROWS_AHEAD: usize = 8 * INDICES_AT_ONCE;

impl<S: BlockSource> Blocked<S> {
    /// Gives rows of the first of these samples, as [`Dataset::give_rows`](crate::Dataset::give_rows).
    pub(super) fn give_rows_of(
        &self,
        indices: &[u64],
        pass: u32,
        give: &mut dyn FnMut(&[Column], &[u64]) -> bool,
    ) -> usize {
        let requests = self.requests();
        let indices = &indices[..indices.len().min(INDICES_AT_ONCE)];
        if indices.is_empty() {
            return 0;
        }
        // (What was fetched stays there while it is in `runs`, whatever becomes of the pass.)
        let runs = requests.pieces.lock().find_rows(indices, pass);
        let (mut rows, mut tables, mut found) = ([0; INDICES_AT_ONCE], Vec::new(), 0);
        for run in &runs {
            let table = run.fetched.as_ref().ok();
            let Some(table) = table.and_then(|block| requests.source.table(block)) else {
                break;
            };
            let own = found..found + run.count;
            for (row, index) in rows[own.clone()].iter_mut().zip(&indices[own.clone()]) {
                *row = index - run.start;
            }
            // (Most rows are in no cache where the order is shuffled.)
            let columns = table.columns.iter();
            columns.for_each(|column| column.fetch_ahead(rows[own.start]));
            found = own.end;
            tables.push(table);
        }
        let (mut given, mut taken) = (0, 0);
        for (table, run) in tables.iter().zip(&runs) {
            if !give(table.columns, &rows[given..given + run.count]) {
                break;
            }
            given += run.count;
            taken += 1;
        }
        let held = planted("a block is held beyond its room").then(|| runs.clone());
        // (Without what was fetched: its room may be given to another.)
        let runs = runs.into_iter().take(taken);
        let taken: Vec<(u64, usize)> = runs.map(|run| (run.piece, run.count)).collect();
        let (mut gone, mut rest) = (Gone::default(), indices);
        let mut pieces = requests.pieces.lock();
        for (piece, count) in taken {
            let (own, behind) = rest.split_at(count);
            pieces.took_rows(piece, own, pass, &mut gone);
            rest = behind;
        }
        match gone.is_empty() {
            true => drop(pieces),
            false => self.unlock(pieces, gone),
        }
        drop(held);
        given
    }
}
