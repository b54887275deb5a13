//! Where an order comes to the same samples again.

use super::Opening;
use super::known::Known;
use super::track::Piece;
use crate::sync::Arc;

/// Says of the openings of an epoch when their samples come in the next one. Positions are those of a run: of all epochs together.
#[derive(Clone)]
pub(crate) struct Again {
    /// Which order it is: a fingerprint of blocks, tracks and seed, and 1.
    pub(crate) run: u64,
    /// How many samples an epoch has.
    pub(crate) samples: u64,
    epoch: u64,
    /// `None`: the data set's own order, which is the same in each epoch.
    shuffled: Option<Arc<Known>>,
}

impl Again {
    pub(super) fn new(
        fingerprint: u32,
        samples: u64,
        epoch: u64,
        shuffled: Option<Arc<Known>>,
    ) -> Again {
        Again {
            run: u64::from(fingerprint) + 1,
            samples,
            epoch,
            shuffled,
        }
    }

    /// When an opening begins, and when the same samples come in the epoch that follows.
    pub(crate) fn positions(&self, opening: &Opening) -> Positions {
        let at = |epoch: u64, position: u64| {
            let before = epoch.saturating_mul(self.samples);
            before.saturating_add(position)
        };
        let now = at(self.epoch, opening.first);
        let epoch = self.epoch.saturating_add(1);
        let Some(known) = &self.shuffled else {
            let next = at(epoch, opening.first);
            return Positions {
                now,
                next,
                rest: None,
            };
        };
        let (tracks, samples) = (known.row.tracks(), &opening.samples);
        let number = opening.first % tracks;
        let track = known.epoch(epoch).track(&known.row, number);
        let position = |piece: &Piece| at(epoch, piece.begins * tracks + number);
        let mut pieces = track.pieces_with(samples);
        pieces.sort_by_key(|piece| piece.samples.start);
        let next = pieces.first().map_or(now, position);
        // (Two at most: an epoch cuts one piece of a track, in two.)
        let rest = pieces.get(1).map(|piece| {
            let behind = piece.samples.start.saturating_sub(samples.start);
            (behind, position(piece))
        });
        Positions { now, next, rest }
    }
}

/// Where an opening is, and where its samples are in the next epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Positions {
    pub(crate) now: u64,
    /// Where the first of the samples come.
    pub(crate) next: u64,
    /// Behind how many of them others come, and where.
    pub(crate) rest: Option<(u64, u64)>,
}
