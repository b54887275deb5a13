//! Rows of pieces that are tables: several are found at a time.

use super::{Pieces, Stage};

/// Samples that come one after the other, and are rows of one piece that is there.
#[derive(Clone)]
pub(in crate::dataset::blocked) struct Run<F> {
    pub(in crate::dataset::blocked) fetched: F,
    /// The first sample of the piece.
    pub(in crate::dataset::blocked) start: u64,
    /// How many these are.
    pub(in crate::dataset::blocked) count: usize,
}

impl<F: Clone> Pieces<F> {
    /// The first of these samples, in runs, as far as their pieces are there.
    pub(in crate::dataset::blocked) fn find_rows(&self, indices: &[u64], pass: u32) -> Vec<Run<F>> {
        let (mut runs, mut rest) = (Vec::with_capacity(indices.len()), indices);
        let Some(course) = self.passes.get(&pass) else {
            return runs;
        };
        while let Some(index) = rest.first() {
            let Some((_, piece)) = self.piece_among(&course.needs, *index) else {
                break;
            };
            let Stage::Here(_, fetched) = &piece.stage else {
                break;
            };
            if !(self.is_good)(fetched) {
                break; // the thread that gets it says why
            }
            let own = rest
                .iter()
                .take_while(|index| piece.samples.contains(index));
            let count = own.count();
            runs.push(Run {
                fetched: fetched.clone(),
                start: piece.samples.start,
                count,
            });
            rest = &rest[count..];
        }
        runs
    }
}
