//! Even batches: an order that is dealt out to ranks, cut into batches of one size, and these into parts. All of it is arithmetic.

use super::place::Place;

/// The batches of one size that an epoch has.
///
/// Positions are global. Several *shards* (ranks of one run) share each global batch of `shards * batch_size` samples of one
/// common order. A resumed run begins at another `base`. Batches and tasks are counted from 0 within the shard.
/// [`place`](Even::place) is the only way from a task to positions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Even {
    /// The number of samples in the whole order, for all shards.
    samples: u64,
    batch_size: usize,
    /// The number of rows in a part. The last part of a batch may have fewer.
    part_rows: usize,
    /// Where the first global batch begins.
    base: u64,
    shard: u64,
    shards: u64,
    last: LastBatch,
    sharding: Sharding,
    /// How many full batches the shard has: what is looked up several times for each batch.
    full: u64,
}

impl Even {
    /// Batches of one part each, of all samples, for one shard.
    pub(crate) fn whole(samples: u64, batch_size: usize, last: LastBatch) -> Even {
        // If a single batch holds all samples, it has no more rows than that.
        let batch_size = match last {
            LastBatch::Drop | LastBatch::Fill => batch_size,
            LastBatch::Partial => u64::min(batch_size as u64, samples.max(1)) as usize,
        };
        Even {
            samples,
            batch_size,
            part_rows: batch_size,
            base: 0,
            shard: 0,
            shards: 1,
            last,
            sharding: Sharding::Slices,
            full: 0,
        }
        .counted()
    }

    /// The same, with its full batches counted.
    fn counted(self) -> Even {
        let (rows, of_each) = match self.sharding {
            Sharding::Slices | Sharding::Interleaved => (self.left(), self.global_batch()),
            Sharding::Strided { drop_last } => (self.strided(drop_last), self.batch_size as u64),
        };
        Even {
            full: rows / of_each,
            ..self
        }
    }

    /// The batches of shard `shard` of `shards`.
    pub(crate) fn of_shard(self, shard: u64, shards: u64, sharding: Sharding) -> Even {
        Even {
            shard,
            shards,
            sharding,
            ..self
        }
        .counted()
    }

    /// The batches from a position on.
    pub(crate) fn from(self, base: u64) -> Even {
        Even { base, ..self }.counted()
    }

    /// The same batches, each in that many parts of about the same size.
    pub(crate) fn into_parts(self, parts: usize) -> Even {
        let parts = parts.clamp(1, self.batch_size);
        Even {
            part_rows: self.batch_size.div_ceil(parts),
            ..self
        }
    }

    /// How many samples a batch has, unless it is the last.
    pub(crate) fn full_rows(&self) -> usize {
        self.batch_size
    }

    /// How many samples the full batches of all shards have together.
    fn global_batch(&self) -> u64 {
        (self.batch_size as u64).saturating_mul(self.shards)
    }

    /// How many samples there are from `base` on, for all shards.
    fn left(&self) -> u64 {
        self.samples.saturating_sub(self.base)
    }

    /// How many full batches each shard has, and how many rows its last one has behind them: 0 if there is none.
    fn dealt(&self) -> (u64, usize) {
        let rest = match self.sharding {
            Sharding::Slices => self.share_of(self.left() % self.global_batch(), self.shard),
            Sharding::Interleaved => self.share_of(self.left() % self.global_batch(), self.turn()),
            Sharding::Strided { drop_last } => self.strided(drop_last) % self.batch_size as u64,
        };
        let rows = match self.last {
            LastBatch::Drop => 0,
            LastBatch::Partial => rest as usize,
            LastBatch::Fill if rest > 0 => self.batch_size,
            LastBatch::Fill => 0,
        };
        (self.full, rows)
    }

    /// How many rows of the last batch a shard has whose turn it is after so many others: the first have one more, and no batch is empty.
    fn share_of(&self, rest: u64, turn: u64) -> u64 {
        let own = rest / self.shards + u64::from(turn < rest % self.shards);
        if rest > 0 { own.max(1) } else { 0 }
    }

    /// How far behind `base` the shard's first position is, if its positions are those that are its own number modulo that of shards.
    fn turn(&self) -> u64 {
        let before = self.base % self.shards;
        match self.shard.checked_sub(before) {
            Some(turn) => turn,
            None => self.shards - before + self.shard,
        }
    }

    /// Which of how many lanes the shard is: it has the positions that are `lane` modulo `lanes`. `None`: of slices of each global batch,
    /// which are no lanes unless there is one shard only.
    pub(crate) fn lane(&self) -> Option<(u64, u64)> {
        match self.sharding {
            Sharding::Interleaved => Some((self.shard, self.shards)),
            Sharding::Strided { .. } => {
                let lane = u128::from(self.base) + u128::from(self.shard);
                Some(((lane % u128::from(self.shards)) as u64, self.shards))
            }
            Sharding::Slices => (self.shards == 1).then_some((0, 1)),
        }
    }

    /// How many rows each shard has, if they take turns.
    fn strided(&self, drop_last: bool) -> u64 {
        match drop_last {
            true => self.left() / self.shards,
            false => self.left().div_ceil(self.shards),
        }
    }

    /// How many batches there are: as many for each shard.
    pub(crate) fn batches(&self) -> u64 {
        let (full, last_rows) = self.dealt();
        full + u64::from(last_rows > 0)
    }

    /// How many parts a full batch has.
    pub(crate) fn parts_per_batch(&self) -> u64 {
        match self.part_rows == self.batch_size {
            true => 1,
            false => self.batch_size.div_ceil(self.part_rows) as u64,
        }
    }

    /// How many rows a task has at most.
    pub(crate) fn part_rows(&self) -> usize {
        self.part_rows
    }

    /// How many rows the largest batch of a whole epoch has.
    pub(super) fn most_rows(&self) -> usize {
        match self.from(0).dealt() {
            (0, last_rows) => last_rows,
            _ => self.batch_size,
        }
    }

    /// How many tasks all batches have together.
    pub(crate) fn tasks(&self) -> u64 {
        let (full, last_rows) = self.dealt();
        full.saturating_mul(self.parts_per_batch())
            .saturating_add(last_rows.div_ceil(self.part_rows) as u64)
    }

    /// Where the order stands when each shard has had that many batches.
    pub(crate) fn position_after(&self, batches: u64) -> u64 {
        let global = batches.saturating_mul(self.global_batch());
        self.base.saturating_add(global).min(self.samples)
    }

    /// The position of a batch's first row, and how far apart the positions of its rows are.
    fn batch_start(&self, batch: u64) -> (u64, u64) {
        let global = batch.saturating_mul(self.global_batch());
        let global = self.base.saturating_add(global);
        let (first, step) = match self.sharding {
            Sharding::Strided { .. } => (self.shard, self.shards),
            Sharding::Interleaved => (self.turn(), self.shards),
            Sharding::Slices => {
                let rest = self.samples.saturating_sub(global);
                let is_divided = self.last == LastBatch::Partial && rest < self.global_batch();
                if !is_divided {
                    (self.shard.saturating_mul(self.batch_size as u64), 1)
                } else {
                    let first = match rest / self.shards {
                        // Filler rows have positions of their own, too.
                        0 => self.shard,
                        rows => self.shard * rows + self.shard.min(rest % self.shards),
                    };
                    (first, 1)
                }
            }
        };
        (global.saturating_add(first), step)
    }

    /// How many rows a task has.
    pub(crate) fn rows(&self, task: u64) -> usize {
        let (batch, part) = self.batch_and_part(task);
        self.part_of(self.batch_rows(batch), part).1
    }

    /// How many rows a whole batch has.
    pub(crate) fn batch_rows(&self, batch: u64) -> usize {
        match batch < self.full {
            true => self.batch_size,
            false => self.dealt().1,
        }
    }

    /// How many rows all batches have together.
    pub(crate) fn all_rows(&self) -> u64 {
        let (full, last_rows) = self.dealt();
        full.saturating_mul(self.batch_size as u64)
            .saturating_add(last_rows as u64)
    }

    /// The first row of a part of a batch with so many rows, and how many rows the part has.
    fn part_of(&self, batch_rows: usize, part: u64) -> (usize, usize) {
        let first_row = part as usize * self.part_rows;
        (first_row, (batch_rows - first_row).min(self.part_rows))
    }

    /// Where a whole batch lies.
    pub(crate) fn batch_place(&self, epoch: u64, batch: u64) -> Place {
        self.into_parts(1).place(epoch, batch)
    }

    /// The batch that a task belongs to, and which part of it the task is.
    pub(super) fn batch_and_part(&self, task: u64) -> (u64, u64) {
        match self.parts_per_batch() {
            1 => (task, 0),
            parts => (task / parts, task % parts),
        }
    }

    /// Where a task lies.
    pub(crate) fn place(&self, epoch: u64, task: u64) -> Place {
        let (batch, part) = self.batch_and_part(task);
        let batch_rows = self.batch_rows(batch);
        let (first_row, rows) = self.part_of(batch_rows, part);
        let (start, step) = self.batch_start(batch);
        Place {
            epoch,
            batch,
            start: start.saturating_add((first_row as u64).saturating_mul(step)),
            step,
            rows,
            first_row,
            batch_rows,
            samples: self.samples,
        }
    }
}

/// What becomes of an epoch's last global batch if there are not enough samples to fill it.
///
/// Whatever it is, all ranks have equally many batches, so none waits for another in a collective operation. Where a
/// [batch sampler](crate::sampler::BatchSampler) lists the batches, the last global batch is the last lists, if they are fewer than ranks.
/// (With [`OnEmpty::Keep`](crate::loader::OnEmpty::Keep), each rank without a list has an empty batch.)
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
    /// gets one filler row. So does each rank without a list, where batches are listed: lists stay whole.) The default.
    #[default]
    Partial,
    /// It is as large as the others: what is missing is filler. (Where batches are listed, as `Partial`.)
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
    /// Each rank gets a slice: of `R` ranks, rank `r` gets the `r`-th `batch_size` samples of each `R * batch_size`. The default, unless the
    /// order is made of [tracks](crate::sampler::Sampler::tracks).
    #[default]
    Slices,
    /// Of `R` ranks, rank `r` gets the samples at positions `r`, `r + R`, `r + 2 R`, ..., as with PyTorch's `DistributedSampler`.
    /// The samples of a global batch are the same as with slices.
    Strided {
        /// As PyTorch's option: whether the last samples are left out if `R` does not divide their number. Otherwise there are up to
        /// `R - 1` filler rows, one for each of the last ranks.
        drop_last: bool,
    },
    /// Of `R` ranks, rank `r` gets the samples at the positions `p` with `p mod R = r`, wherever the run begins or goes on. The samples of a
    /// global batch are the same as with slices, and so is what becomes of the last one: it is divided evenly, and
    /// [`LastBatch`] counts.
    ///
    /// The default where the order is made of [tracks](crate::sampler::Sampler::tracks), as that of
    /// [`BlockSampler`](crate::sampler::BlockSampler) is: each track, and so each block, is then one rank's, if `R` divides the number of
    /// tracks. With slices, each rank would read all blocks. Where several devices share a rank's batches, each counts as a rank.
    Interleaved,
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
        prop::sample::select(vec![
            Sharding::Slices,
            Sharding::Interleaved,
            strided(false),
            strided(true),
        ])
    }

    /// The keys of a shard's batches, from a list of all positions.
    fn listed(
        (base, samples): (u64, u64),
        batch_size: usize,
        (shard, shards): (usize, usize),
        last: LastBatch,
        sharding: Sharding,
    ) -> Vec<Vec<u64>> {
        let mut all: Vec<u64> = (base..samples).collect();
        let batches: Vec<Vec<u64>> = match sharding {
            // `DistributedSampler`, and then a `BatchSampler`.
            Sharding::Strided { drop_last } => {
                match drop_last {
                    true => all.truncate(all.len() / shards * shards),
                    false => {
                        all.extend((samples..).take(all.len().next_multiple_of(shards) - all.len()))
                    }
                }
                let own: Vec<u64> = all.iter().copied().skip(shard).step_by(shards).collect();
                own.chunks(batch_size).map(<[u64]>::to_vec).collect()
            }
            // Each position belongs to one shard, wherever the run begins. A shard without one has filler.
            Sharding::Interleaved => all
                .chunks(batch_size * shards)
                .map(|global| {
                    let is_own = |position: &u64| *position % shards as u64 == shard as u64;
                    let own: Vec<u64> = global.iter().copied().filter(is_own).collect();
                    match own.is_empty() {
                        true => (global[0]..).find(is_own).into_iter().collect(),
                        false => own,
                    }
                })
                .collect(),
            Sharding::Slices => all
                .chunks(batch_size * shards)
                .map(|global| {
                    let each = match global.len() == batch_size * shards || last == LastBatch::Fill
                    {
                        true => vec![batch_size; shards],
                        false => (0..shards)
                            .map(|shard| (global.len() + shards - 1 - shard) / shards)
                            .collect(),
                    };
                    let start: usize = each[..shard].iter().sum();
                    let first = global.first().unwrap() + start as u64;
                    match each[shard] {
                        0 => vec![global[0] + shard as u64],
                        rows => (first..).take(rows).collect(),
                    }
                })
                .collect(),
        };
        let is_whole = |batch: &Vec<u64>| batch.len() == batch_size;
        let is_short = !all.len().is_multiple_of(batch_size * shards);
        let count = batches.len() - usize::from(is_short && !batches.is_empty());
        match last {
            LastBatch::Drop if matches!(sharding, Sharding::Strided { .. }) => {
                batches.into_iter().filter(is_whole).collect()
            }
            LastBatch::Drop => batches[..count].to_vec(),
            LastBatch::Partial => batches,
            LastBatch::Fill => batches
                .into_iter()
                .map(|batch| {
                    let step = if sharding == Sharding::Slices {
                        1
                    } else {
                        shards
                    };
                    (batch[0]..).step_by(step).take(batch_size).collect()
                })
                .collect(),
        }
    }

    proptest! {
        /// Whatever the last batch, the shards, the parts and the place to begin: a shard's rows are those of a list that is dealt out.
        #[test]
        fn batches_are_as_if_dealt_from_a_list(
            samples in 1..800u64, batch_size in 1..60usize, shards in 1..9u64, shard in 0..9u64, base in 0..800u64, parts in 0..9usize,
            last in last_batch(), sharding in sharding()
        ) {
            let (shard, base) = (shard % shards, base % (samples + 1));
            let whole = Even::whole(samples, batch_size, last).of_shard(shard, shards, sharding).from(base);
            let partition = whole.into_parts(parts);
            prop_assert_eq!(partition.batches(), whole.tasks());
            let mut batches: Vec<Vec<u64>> = Vec::new();
            for task in 0..partition.tasks() {
                let place = partition.place(7, task);
                prop_assert!((1..=partition.part_rows()).contains(&place.rows));
                prop_assert_eq!(place.rows, partition.rows(task));
                if place.first_row == 0 {
                    batches.push(Vec::new());
                }
                prop_assert_eq!((place.epoch, place.batch), (7, batches.len() as u64 - 1));
                let batch = batches.last_mut().unwrap();
                prop_assert_eq!(place.first_row, batch.len());
                batch.extend((0..place.rows).map(|row| place.key(row)));
                prop_assert_eq!(place.ends_batch(), batch.len() == place.batch_rows);
                if let Some((lane, lanes)) = partition.lane() {
                    prop_assert!((0..place.rows).all(|row| place.key(row) % lanes == lane));
                }
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
            let listed = listed((base, samples), batch_size, (shard as usize, shards as usize), last, sharding);
            // Of a resumed epoch as of a whole one.
            let of_whole = whole.from(0);
            let most_rows = (0..of_whole.batches()).map(|batch| of_whole.batch_place(0, batch).rows).max();
            prop_assert_eq!(partition.most_rows(), most_rows.unwrap_or(0));
            prop_assert!(batches.iter().all(|batch| batch.len() <= partition.most_rows()));
            prop_assert_eq!(batches, listed);
            prop_assert!(partition.parts_per_batch() as usize <= parts.max(1));
            prop_assert_eq!(partition, whole.into_parts(partition.parts_per_batch() as usize));
        }

        /// All shards together have each sample once, and in each global batch in order; and so they do if a run of some shards stops
        /// anywhere, and others resume it.
        #[test]
        fn shards_and_resumed_runs_make_up_the_epoch(
            samples in 1..800u64, runs in prop::collection::vec((1..40usize, 1..9u64, 0..12u64), 1..5), fills: bool, sharding in sharding()
        ) {
            let last = if fills { LastBatch::Fill } else { LastBatch::Partial };
            prop_assume!(sharding != Sharding::Strided { drop_last: true });
            let (mut base, mut seen) = (0, Vec::new());
            for (run, &(batch_size, shards, most)) in runs.iter().enumerate() {
                let cuts: Vec<Even> = (0..shards)
                    .map(|shard| Even::whole(samples, batch_size, last).of_shard(shard, shards, sharding).from(base))
                    .collect();
                let batches = cuts[0].batches();
                prop_assert!(cuts.iter().all(|partition| partition.batches() == batches));
                let done = if run + 1 == runs.len() { batches } else { most.min(batches) };
                for batch in 0..done {
                    let places = cuts.iter().map(|partition| partition.place(0, batch));
                    let mut real: Vec<u64> = places
                        .flat_map(|place| (0..place.real_rows()).map(move |row| place.position(row)))
                        .collect();
                    match sharding {
                        Sharding::Slices => {}
                        Sharding::Strided { .. } | Sharding::Interleaved => real.sort_unstable(),
                    }
                    seen.extend(real);
                }
                base = cuts[0].position_after(done);
                prop_assert_eq!(base, seen.len() as u64);
            }
            prop_assert_eq!(seen, (0..samples).collect::<Vec<_>>());
        }
    }

    /// Tracks stay with their shard, from wherever the run goes on.
    #[test]
    fn interleaved_shards_keep_their_positions() {
        let rows = |base, shard| -> Vec<Vec<u64>> {
            let whole = Even::whole(11, 2, LastBatch::Partial);
            let even = whole.of_shard(shard, 3, Sharding::Interleaved).from(base);
            let places = (0..even.tasks()).map(|task| even.place(0, task));
            places
                .map(|place| (0..place.rows).map(|row| place.key(row)).collect())
                .collect()
        };
        assert_eq!(rows(0, 1), [[1, 4], [7, 10]]);
        assert_eq!(rows(0, 2), [&[2, 5][..], &[8]]);
        assert_eq!(rows(4, 0), [&[6, 9][..], &[12]]); // 12 is filler: position 10 is all that is left
        assert_eq!(rows(4, 1), [&[4, 7][..], &[10]]);
        assert_eq!(rows(4, 2), [&[5, 8][..], &[11]]);
    }

    /// Sizes that do not divide: as many rows as there are samples, and not one more.
    #[test]
    fn the_last_batch_has_what_is_left() {
        let rows = |samples, size, last| -> Vec<usize> {
            let partition = Even::whole(samples, size, last);
            (0..partition.tasks())
                .map(|task| partition.rows(task))
                .collect()
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
        assert_eq!(Even::whole(u64::MAX, 1, Partial).tasks(), u64::MAX);
        // Numbers that would overflow lead nowhere.
        let giant = Even::whole(u64::MAX, usize::MAX, Fill).of_shard(6, 7, Sharding::Slices);
        assert_eq!((giant.tasks(), giant.place(0, 0).real_rows()), (1, 0));
    }
}
