//! Where an order comes to the same samples again.

use super::Opening;
use super::known::Known;
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

    /// When an opening begins, and when the same samples, or the first of them, come in the epoch that follows.
    pub(crate) fn positions(&self, opening: &Opening) -> (u64, u64) {
        let next = self.shuffled.as_ref().and_then(|known| {
            let tracks = known.row.tracks();
            let track = opening.first % tracks;
            let next = known.epoch(self.epoch + 1).track(&known.row, track);
            let place = next.first_of(&opening.samples)?;
            Some(place * tracks + track)
        });
        let at = |epoch: u64, position: u64| {
            let before = epoch.saturating_mul(self.samples);
            before.saturating_add(position)
        };
        let next = next.unwrap_or(opening.first);
        (
            at(self.epoch, opening.first),
            at(self.epoch.saturating_add(1), next),
        )
    }
}
