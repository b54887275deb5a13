//! What a batch leaves to its device.

use super::Backend;
use crate::picture::DecoderLimits;
use crate::rng::{RngKey, SampleRng};

/// What the device that a batch is made for does itself. By default, nothing: all rows are made on the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Offload {
    /// It gathers rows that lie in memory that was registered for this backend's devices.
    pub(crate) gathers: Option<Backend>,
    /// It decodes such pictures.
    pub(crate) decodes: Option<DecoderLimits>,
    /// Which of them are its own, where the CPU decodes others.
    pub(crate) own: Option<OwnPictures>,
}

/// The share of a whole, in which shares of pictures are counted. So many pictures that follow each other in the order have exactly their
/// share in each decoder, unless their batch has fewer.
pub(crate) const WHOLE_SHARE: u8 = 64;

/// Which rows of a task a device decodes, where the CPU decodes the others. It follows from the seed, the epoch and the row's place in the
/// order, so it is the same for any number of workers, ranks, or interruptions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OwnPictures {
    /// How many of 64.
    pub(crate) share: u8,
    pub(crate) seed: u64,
    pub(crate) epoch: u64,
    /// The place in the order of the task's first row, and how far apart the places of its rows are.
    pub(crate) start: u64,
    pub(crate) step: u64,
}

impl OwnPictures {
    /// Whether a row is among them.
    ///
    /// Of 64 rows that follow each other in the order, each has another rank, in an order that is drawn for them; the first are the
    /// device's. So there are never a few batches with many more of them than others, as there would be if each row were drawn.
    pub(crate) fn has(&self, row: usize) -> bool {
        if self.share == 0 || self.share >= WHOLE_SHARE {
            return self.share != 0;
        }
        let place = (row as u64).wrapping_mul(self.step);
        let place = self.start.wrapping_add(place);
        let whole = u64::from(WHOLE_SHARE);
        let mut rng = SampleRng::for_decoders(RngKey {
            seed: self.seed,
            epoch: self.epoch,
            position: place / whole,
        });
        // An odd factor makes another rank of each.
        let (factor, first) = (rng.next_u64() | 1, rng.next_u64());
        let rank = place.wrapping_mul(factor).wrapping_add(first) % whole;
        rank < u64::from(self.share)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(share: u8, seed: u64, epoch: u64) -> OwnPictures {
        OwnPictures {
            share,
            seed,
            epoch,
            start: 0,
            step: 1,
        }
    }

    #[test]
    fn each_block_has_its_share() {
        for share in 0..=WHOLE_SHARE {
            let own = of(share, 7, 3);
            for block in 0..50 {
                let rows = block * 64..block * 64 + 64;
                assert_eq!(rows.filter(|row| own.has(*row)).count(), usize::from(share));
            }
        }
    }

    /// A row stays the device's when the share grows; and it is the row's place that counts, not its task.
    #[test]
    fn a_place_decides() {
        for row in 0..1_000 {
            let mut was = false;
            for share in 0..=WHOLE_SHARE {
                let own = of(share, 1, 2);
                assert!(own.has(row) || !was);
                was = own.has(row);
                let later = OwnPictures { start: 100, ..own };
                assert_eq!(later.has(row), own.has(row + 100));
                let strided = OwnPictures {
                    start: 5,
                    step: 8,
                    ..own
                };
                assert_eq!(strided.has(row), own.has(5 + 8 * row));
            }
        }
    }

    /// Rows at any place of their block are drawn equally often, and another epoch or seed draws others.
    #[test]
    fn all_places_are_drawn() {
        let mut drawn = [0; 64];
        let mut differs = [0; 2];
        for row in 0..64 * 4_000 {
            let has = of(16, 5, 0).has(row);
            drawn[row % 64] += u32::from(has);
            differs[0] += u32::from(has != of(16, 5, 1).has(row));
            differs[1] += u32::from(has != of(16, 6, 0).has(row));
        }
        // 1,000 are expected, with a standard deviation of 27.
        assert!(
            drawn.iter().all(|times| (860..=1_140).contains(times)),
            "{drawn:?}"
        );
        // Of two independent draws, 3 in 8 differ.
        assert!(
            differs
                .iter()
                .all(|differs| (91_000..101_000).contains(differs)),
            "{differs:?}"
        );
    }
}
