//! How an epoch is cut into batches, and batches into parts.

/// The batches of one epoch, and the *units* they are made in. Usually a batch is one unit. Large batches that are sent to a device
/// are cut into several parts, so that the slabs in use stay in the last-level cache until the device has read them.
///
/// Positions are global. Several *lanes* (ranks of one run) take turns: with each global batch, every lane gets the next
/// `batch_size` samples of one common order. A resumed run begins at another `base`. Batches and units are counted from 0 within
/// the lane. [`place`](Cut::place) is the only way from a unit to positions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Cut {
    /// The number of samples in the whole order, for all lanes.
    samples: u64,
    batch_size: usize,
    /// The number of rows in a part. The last part of a batch may have fewer.
    part_rows: usize,
    /// Where the first global batch begins.
    base: u64,
    lane: u64,
    lanes: u64,
    tail: Tail,
}

/// What happens to the last global batch if there are not enough samples to fill it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tail {
    /// It is left out.
    Drop,
    /// Lanes share the rows that are left: one lane gets fewer than `batch_size`, and those after it get no batch.
    Short,
}

/// Where a unit lies in its epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) epoch: u64,
    /// The number of its batch, within the epoch and the lane.
    pub(crate) batch: u64,
    /// The position of its first sample in the epoch's order.
    pub(crate) start: u64,
    pub(crate) rows: usize,
    /// The row of its batch that it begins with: 0, except in later parts of a batch.
    pub(crate) first_row: usize,
    /// How many rows its whole batch has.
    pub(crate) batch_rows: usize,
    /// How many positions of other lanes lie between this batch and the lane's next.
    pub(crate) gap: u64,
}

impl Place {
    /// Whether the unit is its batch's last.
    pub(crate) fn ends_batch(&self) -> bool {
        self.first_row + self.rows == self.batch_rows
    }

    /// The position of a row of this lane, counted from the batch's first row on through the batches that follow; and how many rows from
    /// there on lie side by side.
    pub(crate) fn behind(&self, row: u64) -> (u64, u64) {
        let batch_start = self.start - self.first_row as u64;
        if self.gap == 0 {
            return (batch_start.saturating_add(row), u64::MAX);
        }
        let rows = self.batch_rows as u64;
        let batches = (row / rows).saturating_mul(rows + self.gap);
        let position = batch_start.saturating_add(batches);
        (position.saturating_add(row % rows), rows - row % rows)
    }
}

impl Cut {
    /// Batches of one part each, of all samples, for one lane.
    pub(crate) fn whole(samples: u64, batch_size: usize, tail: Tail) -> Cut {
        // If a single batch holds all samples, it has no more rows than that.
        let batch_size = match tail {
            Tail::Drop => batch_size,
            Tail::Short => u64::min(batch_size as u64, samples.max(1)) as usize,
        };
        Cut {
            samples,
            batch_size,
            part_rows: batch_size,
            base: 0,
            lane: 0,
            lanes: 1,
            tail,
        }
    }

    /// The batches of lane `lane`, where `lanes` of them take turns.
    pub(crate) fn of_lane(self, lane: u64, lanes: u64) -> Cut {
        Cut {
            lane,
            lanes,
            ..self
        }
    }

    /// The same batches, each in that many parts of about the same size.
    pub(crate) fn into_parts(self, parts: usize) -> Cut {
        let parts = parts.clamp(1, self.batch_size);
        Cut {
            part_rows: self.batch_size.div_ceil(parts),
            ..self
        }
    }

    fn global_batch(&self) -> u64 {
        (self.batch_size as u64).saturating_mul(self.lanes)
    }

    /// How many samples there are from `base` on, for all lanes.
    fn left(&self) -> u64 {
        self.samples.saturating_sub(self.base)
    }

    /// How many batches there are.
    pub(crate) fn batches(&self) -> u64 {
        let (full, rest) = (
            self.left() / self.global_batch(),
            self.left() % self.global_batch(),
        );
        match self.tail {
            Tail::Drop => full,
            Tail::Short => full + u64::from(rest > self.lane * self.batch_size as u64),
        }
    }

    /// How many parts a full batch has.
    pub(crate) fn parts_per_batch(&self) -> u64 {
        self.batch_size.div_ceil(self.part_rows) as u64
    }

    /// How many rows a unit has at most.
    pub(crate) fn part_rows(&self) -> usize {
        self.part_rows
    }

    /// How many units all batches have together.
    pub(crate) fn units(&self) -> u64 {
        let Some(last) = self.batches().checked_sub(1) else {
            return 0;
        };
        let in_last = self.batch_rows(last).div_ceil(self.part_rows) as u64;
        last.saturating_mul(self.parts_per_batch())
            .saturating_add(in_last)
    }

    /// How many samples a batch has.
    fn batch_rows(&self, batch: u64) -> usize {
        let left = self.samples - self.batch_start(batch);
        left.min(self.batch_size as u64) as usize
    }

    fn batch_start(&self, batch: u64) -> u64 {
        self.base + (batch * self.lanes + self.lane) * self.batch_size as u64
    }

    /// How many rows a unit has.
    pub(crate) fn rows(&self, unit: u64) -> usize {
        self.place(0, unit).rows
    }

    /// Where a unit lies.
    pub(crate) fn place(&self, epoch: u64, unit: u64) -> Place {
        let batch = unit / self.parts_per_batch();
        let batch_rows = self.batch_rows(batch);
        let first_row = (unit % self.parts_per_batch()) as usize * self.part_rows;
        Place {
            epoch,
            batch,
            start: self.batch_start(batch) + first_row as u64,
            rows: (batch_rows - first_row).min(self.part_rows),
            first_row,
            batch_rows,
            gap: (self.lanes - 1) * self.batch_size as u64,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn tail(drop_last: bool) -> Tail {
        match drop_last {
            true => Tail::Drop,
            false => Tail::Short,
        }
    }

    proptest! {
        /// The parts of all batches, one after the other, are the epoch's samples.
        #[test]
        fn parts_make_up_their_batches(
            samples in 0..2_000u64, batch_size in 1..300usize, parts in 0..40usize, drop_last: bool
        ) {
            let whole = Cut::whole(samples, batch_size, tail(drop_last));
            let cut = whole.into_parts(parts);
            prop_assert_eq!(cut.batches(), whole.units());
            let (mut position, mut ended) = (0, 0);
            for unit in 0..cut.units() {
                let place = cut.place(7, unit);
                prop_assert_eq!(place.start, position);
                prop_assert!((1..=cut.part_rows).contains(&place.rows));
                prop_assert_eq!((place.epoch, place.batch), (7, ended));
                prop_assert_eq!(place.batch * batch_size as u64 + place.first_row as u64, position);
                position += place.rows as u64;
                ended += u64::from(place.ends_batch());
            }
            prop_assert_eq!(ended, cut.batches());
            let last_rows = if drop_last { samples / batch_size as u64 * batch_size as u64 } else { samples };
            prop_assert_eq!(position, last_rows);
            prop_assert!(cut.parts_per_batch() as usize <= parts.max(1));
            prop_assert_eq!(cut, whole.into_parts(cut.parts_per_batch() as usize));
        }

        /// All lanes together have each sample once, and in each global batch in order. So they do where a run of other lanes
        /// stopped and is resumed.
        #[test]
        fn lanes_and_resumed_runs_make_up_the_epoch(
            samples in 0..2_000u64, batch_size in 1..60usize, lanes in 1..9u64, done in 0..40u64, parts in 1..4usize, drop_last: bool
        ) {
            let whole = Cut { lanes, ..Cut::whole(samples, batch_size, tail(drop_last)) };
            let of_lane = |lane, base| Cut { lane, base, ..whole }.into_parts(parts);
            let base = (done * whole.global_batch()).min(samples);
            // With short tails nothing but full global batches can be done.
            let mut seen = Vec::new();
            for batch in 0.. {
                let before = seen.len();
                for cut in (0..lanes).map(|lane| of_lane(lane, base)) {
                    let units = (0..cut.units()).map(|unit| cut.place(0, unit));
                    let of_batch = units.filter(|place| place.batch == batch);
                    seen.extend(of_batch.flat_map(|place| place.start..place.start + place.rows as u64));
                }
                if seen.len() == before {
                    break;
                }
            }
            let left = samples - base;
            let end = match drop_last {
                true => base + left / whole.global_batch() * whole.global_batch(),
                false => samples,
            };
            prop_assert_eq!(seen, (base..end).collect::<Vec<_>>());
        }
    }

    /// Sizes that do not divide: as many rows as there are samples, and not one more.
    #[test]
    fn the_last_batch_has_what_is_left() {
        let rows = |samples, size, tail| -> Vec<usize> {
            let cut = Cut::whole(samples, size, tail);
            (0..cut.units()).map(|unit| cut.rows(unit)).collect()
        };
        assert_eq!(rows(7, 3, Tail::Short), [3, 3, 1]);
        assert_eq!(rows(7, 3, Tail::Drop), [3, 3]);
        assert_eq!(rows(2, 3, Tail::Drop), [] as [usize; 0]);
        assert_eq!(rows(0, 3, Tail::Short), [] as [usize; 0]);
        assert_eq!(rows(2, usize::MAX, Tail::Short), [2]);
        assert_eq!(rows(2, usize::MAX, Tail::Drop), [] as [usize; 0]);
        assert_eq!(Cut::whole(u64::MAX, 1, Tail::Short).units(), u64::MAX);
    }
}
