//! Rows of pieces that are tables: several are found at a time, and taken.

use super::{Gone, Mark, Pieces, Stage};
use crate::sync::planted;

/// Samples that come one after the other, and are rows of one piece that is there.
#[derive(Clone)]
pub(in crate::dataset::blocked) struct Run<F> {
    pub(in crate::dataset::blocked) piece: u64,
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
        while let Some(index) = rest.first() {
            let number = self.piece_of(*index, pass);
            let piece = number.and_then(|number| Some((number, self.pieces.get(&number)?)));
            let Some((number, piece)) = piece else {
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
                piece: number,
                fetched: fetched.clone(),
                start: piece.samples.start,
                count,
            });
            rest = &rest[count..];
        }
        runs
    }

    /// Rows of a piece were copied.
    pub(in crate::dataset::blocked) fn took_rows(
        &mut self,
        number: u64,
        indices: &[u64],
        pass: u32,
        gone: &mut Gone<F>,
    ) {
        let Some(piece) = self.pieces.get_mut(&number) else {
            return; // the pass was left
        };
        if planted("rows that were copied keep their block") {
            return;
        }
        let mut counted = 0;
        piece.each_mark(indices, pass, |mark| {
            if *mark == Mark::Announced {
                *mark = Mark::Taken;
                counted += 1;
            }
        });
        let mut needs = piece.needs.iter_mut();
        let Some(need) = needs.find(|need| need.pass == pass) else {
            return;
        };
        need.left -= counted;
        if counted > 0 && need.left == 0 {
            self.leave(number, pass, gone);
        }
    }
}
