//! What became of samples that failed.

/// How a batch differs from what its place says. Rows are those of the batch, before any were left out.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Changes {
    /// Of several for one row, the last counts.
    pub(crate) replaced: Vec<Replaced>,
    pub(crate) skipped: Vec<usize>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Replaced {
    pub(crate) row: usize,
    pub(crate) attempt: u32,
    /// The index of the sample that took the row.
    pub(crate) index: u64,
}

impl Changes {
    pub(crate) fn is_empty(&self) -> bool {
        self.replaced.is_empty() && self.skipped.is_empty()
    }

    pub(crate) fn append(&mut self, mut later: Changes) {
        self.replaced.append(&mut later.replaced);
        self.skipped.append(&mut later.skipped);
    }

    /// How many samples failed: of several in one row, the first.
    pub(crate) fn bad(&self) -> usize {
        let mut rows: Vec<usize> = self.replaced.iter().map(|replaced| replaced.row).collect();
        rows.extend(&self.skipped);
        rows.sort_unstable();
        rows.dedup();
        rows.len()
    }

    /// The rows that are not left out, of so many.
    pub(crate) fn kept(&self, rows: usize) -> Vec<usize> {
        let is_kept = |row: &usize| !self.skipped.contains(row);
        (0..rows).filter(is_kept).collect()
    }

    /// Which sample took a row that another one had.
    pub(crate) fn of(&self, row: usize) -> Option<Replaced> {
        let mut latest = self.replaced.iter().rev();
        latest.find(|replaced| replaced.row == row).copied()
    }
}
