//! How an epoch is cut into batches, and batches into parts.

/// The batches of one epoch, and the *units* they are made in. Usually a batch is one unit. Large batches that are sent to a device
/// are cut into several parts, so that the slabs in use stay in the last-level cache until the device has read them.
///
/// Positions are global. Several *lanes* (ranks of one run) share each global batch of `lanes * batch_size` samples of one
/// common order. A resumed run begins at another `base`. Batches and units are counted from 0 within the lane.
/// [`place`](Cut::place) is the only way from a unit to positions.
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
    last: LastBatch,
    sharding: Sharding,
}

/// What becomes of an epoch's last global batch if there are not enough samples to fill it.
///
/// Whatever it is, all ranks have equally many batches, so none waits for another in a collective operation.
///
/// *Filler* rows repeat samples from the beginning of the epoch's order, with random numbers of their own. They are a batch's last
/// rows: [`BatchInfo`](crate::loader::BatchInfo) tells how many rows are real, so that an evaluation counts each sample once.
///
/// # Examples
///
/// Ten samples on two ranks, three to a batch:
///
/// ```
/// use pinfeed::loader::{LastBatch, World};
/// use pinfeed::{DataLoader, from_fn};
///
/// let batches = |rank, last| -> pinfeed::Result<Vec<Vec<i64>>> {
///     let loader = DataLoader::builder(from_fn(10, |index, _| Ok(index as i64)))
///         .batch_size(3)
///         .world(World::new(rank, 2)?)
///         .last_batch(last)
///         .build()?;
///     loader.epoch(0).map(|batch| Ok(batch?.as_slice().to_vec())).collect()
/// };
/// assert_eq!(batches(0, LastBatch::Drop)?, [[0, 1, 2]]);
/// assert_eq!(batches(1, LastBatch::Drop)?, [[3, 4, 5]]);
/// assert_eq!(batches(0, LastBatch::Partial)?, [&[0, 1, 2][..], &[6, 7]]);
/// assert_eq!(batches(1, LastBatch::Partial)?, [&[3, 4, 5][..], &[8, 9]]);
/// assert_eq!(batches(0, LastBatch::Fill)?, [[0, 1, 2], [6, 7, 8]]);
/// assert_eq!(batches(1, LastBatch::Fill)?, [[3, 4, 5], [9, 0, 1]]); // 0 and 1 are filler
/// # Ok::<(), pinfeed::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum LastBatch {
    /// It is left out: `drop_last(true)`.
    Drop,
    /// It has the samples that are left, divided evenly among the ranks. (If there are fewer than ranks, each rank without a sample
    /// gets one filler row.) The default.
    #[default]
    Partial,
    /// It is as large as the others: what is missing is filler.
    Fill,
}

/// How ranks share the samples of a global batch.
///
/// # Examples
///
/// ```
/// use pinfeed::loader::{Sharding, World};
/// use pinfeed::{DataLoader, from_fn};
///
/// let samples = from_fn(8, |index, _| Ok(index as i64));
/// let loader = DataLoader::builder(samples)
///     .batch_size(2)
///     .world(World::new(1, 2)?)
///     .sharding(Sharding::Strided { drop_last: false })
///     .build()?;
/// let seen: Vec<_> = loader.epoch(0).map(|batch| Ok(batch?.as_slice().to_vec())).collect::<pinfeed::Result<_>>()?;
/// assert_eq!(seen, [[1, 3], [5, 7]]);
/// # Ok::<(), pinfeed::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Sharding {
    /// Each rank gets a slice: of `R` ranks, rank `r` gets the `r`-th `batch_size` samples of each `R * batch_size`. The default.
    #[default]
    Slices,
    /// Of `R` ranks, rank `r` gets the samples at positions `r`, `r + R`, `r + 2 R`, ..., as with PyTorch's `DistributedSampler`.
    /// The samples of a global batch are the same as with slices.
    Strided {
        /// As PyTorch's option: whether the last samples are left out if `R` does not divide their number. Otherwise there are up to
        /// `R - 1` filler rows, one for each of the last ranks.
        drop_last: bool,
    },
}

/// Where the loading of an epoch begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Start {
    pub(crate) epoch: u64,
    /// In the epoch's order: 0, except in a resumed run.
    pub(crate) position: u64,
}

impl Start {
    /// An epoch from its beginning.
    pub(crate) fn of(epoch: u64) -> Start {
        Start { epoch, position: 0 }
    }
}

/// Where a unit lies in its epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) epoch: u64,
    /// The number of its batch, within the epoch and the lane.
    pub(crate) batch: u64,
    /// The position of its first sample in the epoch's order. The positions of filler rows are behind the order's end.
    pub(crate) start: u64,
    /// How far apart the positions of its rows are.
    pub(crate) step: u64,
    pub(crate) rows: usize,
    /// The row of its batch that it begins with: 0, except in later parts of a batch.
    pub(crate) first_row: usize,
    /// How many rows its whole batch has.
    pub(crate) batch_rows: usize,
    /// How many positions lie between the beginnings of this batch and the lane's next.
    pub(crate) stride: u64,
    /// The number of samples in the whole order.
    pub(crate) samples: u64,
}

impl Place {
    /// Whether the unit is its batch's last.
    pub(crate) fn ends_batch(&self) -> bool {
        self.first_row + self.rows == self.batch_rows
    }

    /// The position that keys the random numbers of a row: each row of an epoch has its own, filler rows too.
    pub(crate) fn key(&self, row: usize) -> u64 {
        self.start
            .saturating_add((row as u64).saturating_mul(self.step))
    }

    /// The position of a row's sample in the epoch's order.
    pub(crate) fn position(&self, row: usize) -> u64 {
        match self.key(row) {
            real if real < self.samples => real,
            filler => filler % self.samples,
        }
    }

    /// How many rows, from a row on, have positions that lie side by side.
    pub(crate) fn side_by_side(&self, row: usize) -> u64 {
        match self.step {
            1 => self.samples - self.position(row),
            _ => 1,
        }
    }

    /// How many of the rows are real.
    pub(crate) fn real_rows(&self) -> usize {
        let left = self.samples.saturating_sub(self.start);
        left.div_ceil(self.step).min(self.rows as u64) as usize
    }

    /// The position of a row of this lane, counted from the batch's first row on through the batches that follow; and how many rows from
    /// there on lie side by side.
    pub(crate) fn behind(&self, row: u64) -> (u64, u64) {
        let rows = self.batch_rows as u64;
        let before = (self.first_row as u64).saturating_mul(self.step);
        let batch_start = self.start.saturating_sub(before);
        if self.stride == rows {
            return (batch_start.saturating_add(row), u64::MAX);
        }
        let batches = (row / rows).saturating_mul(self.stride);
        let within = (row % rows).saturating_mul(self.step);
        let side_by_side = match self.step {
            1 => rows - row % rows,
            _ => 1,
        };
        (
            batch_start.saturating_add(batches).saturating_add(within),
            side_by_side,
        )
    }
}

impl Cut {
    /// Batches of one part each, of all samples, for one lane.
    pub(crate) fn whole(samples: u64, batch_size: usize, last: LastBatch) -> Cut {
        // If a single batch holds all samples, it has no more rows than that.
        let batch_size = match last {
            LastBatch::Drop | LastBatch::Fill => batch_size,
            LastBatch::Partial => u64::min(batch_size as u64, samples.max(1)) as usize,
        };
        Cut {
            samples,
            batch_size,
            part_rows: batch_size,
            base: 0,
            lane: 0,
            lanes: 1,
            last,
            sharding: Sharding::Slices,
        }
    }

    /// The batches of lane `lane` of `lanes`.
    pub(crate) fn of_lane(self, lane: u64, lanes: u64, sharding: Sharding) -> Cut {
        Cut {
            lane,
            lanes,
            sharding,
            ..self
        }
    }

    /// The batches from a position on.
    pub(crate) fn from(self, base: u64) -> Cut {
        Cut { base, ..self }
    }

    /// The same batches, each in that many parts of about the same size.
    pub(crate) fn into_parts(self, parts: usize) -> Cut {
        let parts = parts.clamp(1, self.batch_size);
        Cut {
            part_rows: self.batch_size.div_ceil(parts),
            ..self
        }
    }

    /// How many samples a batch has, unless it is the last.
    pub(crate) fn full_rows(&self) -> usize {
        self.batch_size
    }

    /// How many samples the full batches of all lanes have together.
    fn global_batch(&self) -> u64 {
        (self.batch_size as u64).saturating_mul(self.lanes)
    }

    /// How many samples there are from `base` on, for all lanes.
    fn left(&self) -> u64 {
        self.samples.saturating_sub(self.base)
    }

    /// How many full batches each lane has, and how many rows its last one has behind them: 0 if there is none.
    fn dealt(&self) -> (u64, usize) {
        let left = self.left();
        let (full, rest) = match self.sharding {
            Sharding::Slices => {
                let rest = left % self.global_batch();
                // Those of the first lanes have one row more; no batch is empty.
                let own = rest / self.lanes + u64::from(self.lane < rest % self.lanes);
                let own = if rest > 0 { own.max(1) } else { 0 };
                (left / self.global_batch(), own)
            }
            Sharding::Strided { drop_last } => {
                let rows = match drop_last {
                    true => left / self.lanes,
                    false => left.div_ceil(self.lanes),
                };
                let batch_size = self.batch_size as u64;
                (rows / batch_size, rows % batch_size)
            }
        };
        let rows = match self.last {
            LastBatch::Drop => 0,
            LastBatch::Partial => rest as usize,
            LastBatch::Fill if rest > 0 => self.batch_size,
            LastBatch::Fill => 0,
        };
        (full, rows)
    }

    /// How many batches there are: as many for each lane.
    pub(crate) fn batches(&self) -> u64 {
        let (full, last_rows) = self.dealt();
        full + u64::from(last_rows > 0)
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
        let (full, last_rows) = self.dealt();
        full.saturating_mul(self.parts_per_batch())
            .saturating_add(last_rows.div_ceil(self.part_rows) as u64)
    }

    /// Where the order stands when each lane has had that many batches.
    pub(crate) fn position_after(&self, batches: u64) -> u64 {
        let global = batches.saturating_mul(self.global_batch());
        self.base.saturating_add(global).min(self.samples)
    }

    /// The position of a batch's first row, and how far apart the positions of its rows are.
    fn batch_start(&self, batch: u64) -> (u64, u64) {
        let global = batch.saturating_mul(self.global_batch());
        let global = self.base.saturating_add(global);
        let (first, step) = match self.sharding {
            Sharding::Strided { .. } => (self.lane, self.lanes),
            Sharding::Slices => {
                let rest = self.samples.saturating_sub(global);
                let is_divided = self.last == LastBatch::Partial && rest < self.global_batch();
                let first = match (is_divided, rest / self.lanes) {
                    (false, _) => self.lane.saturating_mul(self.batch_size as u64),
                    // Filler rows have positions of their own, too.
                    (true, 0) => self.lane,
                    (true, rows) => self.lane * rows + self.lane.min(rest % self.lanes),
                };
                (first, 1)
            }
        };
        (global.saturating_add(first), step)
    }

    /// How many rows a unit has.
    pub(crate) fn rows(&self, unit: u64) -> usize {
        self.place(0, unit).rows
    }

    /// Where a whole batch lies.
    pub(crate) fn batch_place(&self, epoch: u64, batch: u64) -> Place {
        self.into_parts(1).place(epoch, batch)
    }

    /// Where a unit lies.
    pub(crate) fn place(&self, epoch: u64, unit: u64) -> Place {
        let batch = unit / self.parts_per_batch();
        let (full, last_rows) = self.dealt();
        let batch_rows = match batch < full {
            true => self.batch_size,
            false => last_rows,
        };
        let first_row = (unit % self.parts_per_batch()) as usize * self.part_rows;
        let (start, step) = self.batch_start(batch);
        Place {
            epoch,
            batch,
            start: start.saturating_add((first_row as u64).saturating_mul(step)),
            step,
            rows: (batch_rows - first_row).min(self.part_rows),
            first_row,
            batch_rows,
            stride: self.global_batch(),
            samples: self.samples,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn last_batch() -> impl Strategy<Value = LastBatch> {
        use LastBatch::*;
        prop::sample::select(vec![Drop, Partial, Fill])
    }

    fn sharding() -> impl Strategy<Value = Sharding> {
        let strided = |drop_last| Sharding::Strided { drop_last };
        prop::sample::select(vec![Sharding::Slices, strided(false), strided(true)])
    }

    /// The keys of a lane's batches, from a list of all positions.
    fn listed(
        (base, samples): (u64, u64),
        batch_size: usize,
        (lane, lanes): (usize, usize),
        last: LastBatch,
        sharding: Sharding,
    ) -> Vec<Vec<u64>> {
        let mut all: Vec<u64> = (base..samples).collect();
        let batches: Vec<Vec<u64>> = match sharding {
            // `DistributedSampler`, and then a `BatchSampler`.
            Sharding::Strided { drop_last } => {
                match drop_last {
                    true => all.truncate(all.len() / lanes * lanes),
                    false => {
                        all.extend((samples..).take(all.len().next_multiple_of(lanes) - all.len()))
                    }
                }
                let own: Vec<u64> = all.iter().copied().skip(lane).step_by(lanes).collect();
                own.chunks(batch_size).map(<[u64]>::to_vec).collect()
            }
            Sharding::Slices => all
                .chunks(batch_size * lanes)
                .map(|global| {
                    let each = match global.len() == batch_size * lanes || last == LastBatch::Fill {
                        true => vec![batch_size; lanes],
                        false => (0..lanes)
                            .map(|lane| (global.len() + lanes - 1 - lane) / lanes)
                            .collect(),
                    };
                    let start: usize = each[..lane].iter().sum();
                    let first = global.first().unwrap() + start as u64;
                    match each[lane] {
                        0 => vec![global[0] + lane as u64],
                        rows => (first..).take(rows).collect(),
                    }
                })
                .collect(),
        };
        let is_whole = |batch: &Vec<u64>| batch.len() == batch_size;
        let is_short = !all.len().is_multiple_of(batch_size * lanes);
        let count = batches.len() - usize::from(is_short && !batches.is_empty());
        match last {
            LastBatch::Drop if sharding == Sharding::Slices => batches[..count].to_vec(),
            LastBatch::Drop => batches.into_iter().filter(is_whole).collect(),
            LastBatch::Partial => batches,
            LastBatch::Fill => batches
                .into_iter()
                .map(|batch| {
                    let step = if sharding == Sharding::Slices {
                        1
                    } else {
                        lanes
                    };
                    (batch[0]..).step_by(step).take(batch_size).collect()
                })
                .collect(),
        }
    }

    proptest! {
        /// Whatever the last batch, the lanes, the parts and the place to begin: a lane's rows are those of a list that is dealt out.
        #[test]
        fn batches_are_as_if_dealt_from_a_list(
            samples in 1..800u64, batch_size in 1..60usize, lanes in 1..9u64, lane in 0..9u64, base in 0..800u64, parts in 0..9usize,
            last in last_batch(), sharding in sharding()
        ) {
            let (lane, base) = (lane % lanes, base % (samples + 1));
            let whole = Cut::whole(samples, batch_size, last).of_lane(lane, lanes, sharding).from(base);
            let cut = whole.into_parts(parts);
            prop_assert_eq!(cut.batches(), whole.units());
            let mut batches: Vec<Vec<u64>> = Vec::new();
            for unit in 0..cut.units() {
                let place = cut.place(7, unit);
                prop_assert!((1..=cut.part_rows()).contains(&place.rows));
                prop_assert_eq!(place.rows, cut.rows(unit));
                if place.first_row == 0 {
                    batches.push(Vec::new());
                }
                prop_assert_eq!((place.epoch, place.batch), (7, batches.len() as u64 - 1));
                let batch = batches.last_mut().unwrap();
                prop_assert_eq!(place.first_row, batch.len());
                batch.extend((0..place.rows).map(|row| place.key(row)));
                prop_assert_eq!(place.ends_batch(), batch.len() == place.batch_rows);
                let real = (0..place.rows).filter(|row| place.key(*row) < samples).count();
                prop_assert_eq!(place.real_rows(), real);
                for row in 0..place.rows {
                    prop_assert_eq!(place.position(row), place.key(row) % samples);
                    let side_by_side = place.side_by_side(row).min((place.rows - row) as u64);
                    prop_assert!(side_by_side > 0);
                    for next in 1..side_by_side {
                        prop_assert_eq!(place.position(row) + next, place.position(row + next as usize));
                    }
                }
            }
            let batch_size = whole.full_rows();
            let listed = listed((base, samples), batch_size, (lane as usize, lanes as usize), last, sharding);
            prop_assert_eq!(batches, listed);
            prop_assert!(cut.parts_per_batch() as usize <= parts.max(1));
            prop_assert_eq!(cut, whole.into_parts(cut.parts_per_batch() as usize));
        }

        /// All lanes together have each sample once, and in each global batch in order; and so they do if a run of some lanes stops
        /// anywhere, and others resume it.
        #[test]
        fn lanes_and_resumed_runs_make_up_the_epoch(
            samples in 1..800u64, runs in prop::collection::vec((1..40usize, 1..9u64, 0..12u64), 1..5), fills: bool, strided: bool
        ) {
            let last = if fills { LastBatch::Fill } else { LastBatch::Partial };
            let sharding = if strided { Sharding::Strided { drop_last: false } } else { Sharding::Slices };
            let (mut base, mut seen) = (0, Vec::new());
            for (run, &(batch_size, lanes, most)) in runs.iter().enumerate() {
                let cuts: Vec<Cut> = (0..lanes)
                    .map(|lane| Cut::whole(samples, batch_size, last).of_lane(lane, lanes, sharding).from(base))
                    .collect();
                let batches = cuts[0].batches();
                prop_assert!(cuts.iter().all(|cut| cut.batches() == batches));
                let done = if run + 1 == runs.len() { batches } else { most.min(batches) };
                for batch in 0..done {
                    let places = cuts.iter().map(|cut| cut.place(0, batch));
                    let mut real: Vec<u64> = places
                        .flat_map(|place| (0..place.real_rows()).map(move |row| place.position(row)))
                        .collect();
                    match sharding {
                        Sharding::Slices => {}
                        Sharding::Strided { .. } => real.sort_unstable(),
                    }
                    seen.extend(real);
                }
                base = cuts[0].position_after(done);
                prop_assert_eq!(base, seen.len() as u64);
            }
            prop_assert_eq!(seen, (0..samples).collect::<Vec<_>>());
        }
    }

    /// Sizes that do not divide: as many rows as there are samples, and not one more.
    #[test]
    fn the_last_batch_has_what_is_left() {
        let rows = |samples, size, last| -> Vec<usize> {
            let cut = Cut::whole(samples, size, last);
            (0..cut.units()).map(|unit| cut.rows(unit)).collect()
        };
        use LastBatch::*;
        assert_eq!(rows(7, 3, Partial), [3, 3, 1]);
        assert_eq!(rows(7, 3, Drop), [3, 3]);
        assert_eq!(rows(7, 3, Fill), [3, 3, 3]);
        assert_eq!(rows(2, 3, Drop), [] as [usize; 0]);
        assert_eq!(rows(0, 3, Partial), [] as [usize; 0]);
        assert_eq!(rows(0, 3, Fill), [] as [usize; 0]);
        assert_eq!(rows(2, usize::MAX, Partial), [2]);
        assert_eq!(rows(2, usize::MAX, Drop), [] as [usize; 0]);
        assert_eq!(rows(2, usize::MAX, Fill), [usize::MAX]);
        assert_eq!(Cut::whole(u64::MAX, 1, Partial).units(), u64::MAX);
        // Numbers that would overflow lead nowhere.
        let giant = Cut::whole(u64::MAX, usize::MAX, Fill).of_lane(6, 7, Sharding::Slices);
        assert_eq!((giant.units(), giant.place(0, 0).real_rows()), (1, 0));
    }
}
