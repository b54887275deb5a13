//! Where an order comes to the same samples again.

use super::Opening;
use super::known::Known;
use super::track::Piece;
use crate::store::{NextUse, Rest};
use crate::sync::Arc;

/// Says of the openings of an epoch when their samples come in the next one. Positions are those of a run: of all epochs together.
#[derive(Clone)]
pub(crate) struct Again {
    /// Which order it is: a fingerprint of blocks, tracks and seed, and 1.
    run: u64,
    /// How many samples an epoch has.
    samples: u64,
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

    /// When an opening begins, and when the same samples come in the epoch that follows. (It may put a track of that epoch in order.)
    pub(crate) fn next_use(&self, opening: &Opening) -> NextUse {
        let at = |epoch: u64, position: u64| {
            let before = epoch.saturating_mul(self.samples);
            before.saturating_add(position)
        };
        let epoch = self.epoch.saturating_add(1);
        let next_use = NextUse {
            run: self.run,
            now: at(self.epoch, opening.first),
            next: at(epoch, opening.first),
            rest: None,
            lap: self.samples.max(1),
        };
        let Some(known) = &self.shuffled else {
            return next_use;
        };
        let (tracks, samples) = (known.row.tracks(), &opening.samples);
        let number = opening.first % tracks;
        let track = known.epoch(epoch).track(&known.row, number);
        let position = |piece: &Piece| at(epoch, piece.begins * tracks + number);
        let mut pieces = track.pieces_with(samples);
        pieces.sort_by_key(|piece| piece.samples.start);
        // (Two at most: an epoch cuts one piece of a track, in two.)
        let rest = pieces.get(1).map(|piece| {
            let behind = piece.samples.start.saturating_sub(samples.start);
            Rest {
                behind: (behind, samples.end - samples.start),
                next: position(piece),
            }
        });
        NextUse {
            next: pieces.first().map_or(next_use.now, position),
            rest,
            ..next_use
        }
    }
}
