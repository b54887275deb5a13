//! A track: its pieces in the order in which an epoch reads them, and the samples at its positions.

use std::ops::Range;

use super::row::Row;
use crate::sampler::permutation::{Permutation, mix};

/// What a permutation is for: those of one seed have nothing in common.
#[derive(Debug, Clone, Copy)]
pub(super) enum Key {
    /// The blocks of a run.
    Row,
    /// The pieces of a track in an epoch.
    Track { epoch: u64, track: u64 },
    /// The samples of a piece in an epoch.
    Piece { epoch: u64, lo: u64 },
    /// Which sample takes another's place.
    Instead { epoch: u64, position: u64 },
}

impl Key {
    pub(super) fn of(self, seed: u64) -> u64 {
        let (use_, epoch, at) = match self {
            Key::Row => (0, 0, 0),
            Key::Track { epoch, track } => (1, epoch, track),
            Key::Piece { epoch, lo } => (2, epoch, lo),
            Key::Instead { epoch, position } => (3, epoch, position),
        };
        let parts = [0x626c_6f63_6b00 | use_, epoch, at]; // "block"
        parts.iter().fold(seed, |key, part| {
            mix(key ^ mix(part.wrapping_add(0x9E37_79B9_7F4A_7C15)))
        })
    }
}

/// A track's pieces in the order in which an epoch reads them: 16 bytes each.
#[derive(Debug)]
pub(super) struct Track {
    /// Where each ends, in the track's positions.
    ends: Vec<u64>,
    /// The first sample of each.
    starts: Vec<u64>,
}

/// A piece of a track.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Piece {
    /// Its samples, by index.
    pub(super) samples: Range<u64>,
    /// The track's position at which it begins.
    pub(super) begins: u64,
}

impl Piece {
    /// The track's position at which it ends.
    pub(super) fn ends(&self) -> u64 {
        self.begins + self.len()
    }

    pub(super) fn len(&self) -> u64 {
        self.samples.end - self.samples.start
    }

    /// The order of its samples.
    pub(super) fn order(&self, seed: u64, epoch: u64) -> Permutation {
        let lo = self.samples.start;
        Permutation::keyed(self.len(), Key::Piece { epoch, lo }.of(seed))
    }
}

impl Track {
    pub(super) fn new(row: &Row, epoch: u64, track: u64) -> Track {
        let pieces = row.pieces(track);
        let mut order: Vec<u64> = (0..pieces.len() as u64).collect();
        let key = Key::Track { epoch, track }.of(row.seed());
        Permutation::keyed(order.len() as u64, key).apply(&mut order);
        let mut read = Track {
            ends: Vec::with_capacity(order.len() + 1),
            starts: Vec::with_capacity(order.len() + 1),
        };
        let mut order = order.into_iter().map(|at| pieces[at as usize].clone());
        let Some(first) = order.next() else {
            return read;
        };
        let len = u128::from(first.end - first.start);
        let cut = len * u128::from(track) / u128::from(row.tracks());
        let cut = first.start + cut as u64;
        read.push(cut..first.end);
        order.for_each(|piece| read.push(piece));
        read.push(first.start..cut);
        read
    }

    fn push(&mut self, samples: Range<u64>) {
        if samples.is_empty() {
            return;
        }
        let begins = self.ends.last().copied().unwrap_or(0);
        self.ends.push(begins + (samples.end - samples.start));
        self.starts.push(samples.start);
    }

    pub(super) fn piece(&self, at: usize) -> Option<Piece> {
        let (end, start) = (*self.ends.get(at)?, *self.starts.get(at)?);
        let begins = match at {
            0 => 0,
            at => self.ends[at - 1],
        };
        Some(Piece {
            samples: start..start + (end - begins),
            begins,
        })
    }

    /// The pieces that have some of these samples.
    pub(super) fn pieces_with(&self, samples: &Range<u64>) -> Vec<Piece> {
        let pieces = (0..self.starts.len()).filter_map(|at| self.piece(at));
        let has_some =
            |piece: &Piece| piece.samples.start < samples.end && samples.start < piece.samples.end;
        pieces.filter(has_some).collect()
    }

    /// The number of the piece that a position of the track lies in; behind the last, how many there are.
    pub(super) fn number(&self, position: u64) -> usize {
        self.ends.partition_point(|end| *end <= position)
    }

    /// Writes the samples at the track's positions from `start` on. Returns how many there are.
    pub(super) fn indices(&self, row: &Row, epoch: u64, start: u64, indices: &mut [u64]) -> usize {
        let (mut done, mut at) = (0, self.number(start));
        while done < indices.len() {
            let Some(piece) = self.piece(at) else {
                break;
            };
            let from = start + done as u64 - piece.begins;
            let left = usize::try_from(piece.len() - from).unwrap_or(usize::MAX);
            let run = left.min(indices.len() - done);
            let run = &mut indices[done..done + run];
            for (index, place) in run.iter_mut().zip(from..) {
                *index = place;
            }
            piece.order(row.seed(), epoch).apply(run);
            run.iter_mut()
                .for_each(|index| *index += piece.samples.start);
            done += run.len();
            at += 1;
        }
        done
    }
}
