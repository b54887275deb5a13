//! Where a task lies in its epoch, and so which positions its rows have.

/// Where a task lies in its epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) epoch: u64,
    /// The number of its batch, within the epoch and the shard.
    pub(crate) batch: u64,
    /// The position of its first sample in the epoch's order. The positions of filler rows are behind the order's end.
    pub(crate) start: u64,
    /// How far apart the positions of its rows are.
    pub(crate) step: u64,
    /// 0: it is an empty batch.
    pub(crate) rows: usize,
    /// The row of its batch that it begins with: 0, except in later parts of a batch.
    pub(crate) first_row: usize,
    /// How many rows its whole batch has.
    pub(crate) batch_rows: usize,
    /// The number of samples in the whole order.
    pub(crate) samples: u64,
}

impl Place {
    /// Whether it is an empty batch.
    pub(crate) fn is_empty(&self) -> bool {
        self.rows == 0
    }

    /// How many samples are loaded for it: its rows, or a pattern that tells what rows would be like.
    pub(crate) fn loaded_rows(&self) -> usize {
        self.rows.max(1)
    }

    /// Whether the task is its batch's last.
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
}
