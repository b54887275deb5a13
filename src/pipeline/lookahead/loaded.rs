//! Which samples of a pass were loaded: all before a point, and some behind it.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::sync::planted;

/// The samples of a pass that workers are done with, by their numbers in it. Workers are at different tasks, so there are gaps: about as many as
/// there are workers.
#[derive(Debug, Default)]
pub(super) struct Loaded {
    /// All before this one.
    all_before: u64,
    /// Where ranges behind it begin, and end. They neither overlap nor touch.
    behind: BTreeMap<u64, u64>,
}

impl Loaded {
    /// The first sample that was not loaded.
    pub(super) fn all_before(&self) -> u64 {
        self.all_before
    }

    /// These were loaded.
    pub(super) fn add(&mut self, range: Range<u64>) {
        let (mut start, mut end) = (range.start, range.end);
        if start >= end {
            return;
        }
        if start > self.all_before && !planted("blocks are let go before the rows of slow workers")
        {
            // (Ranges before `start` end before it, or hold it.)
            if let Some((before, until)) = self.behind.range(..=start).next_back()
                && *until >= start
            {
                (start, end) = (*before, end.max(*until));
            }
            while let Some((next, until)) = self.behind.range(start..=end).next() {
                let (next, until) = (*next, *until);
                self.behind.remove(&next);
                end = end.max(until);
            }
            self.behind.insert(start, end);
            return;
        }
        self.reach(end);
    }

    /// All before this one are done with, whatever became of them.
    pub(super) fn settle(&mut self, end: u64) {
        self.reach(end);
    }

    fn reach(&mut self, end: u64) {
        self.all_before = self.all_before.max(end);
        while let Some(first) = self.behind.first_entry()
            && *first.key() <= self.all_before
        {
            self.all_before = self.all_before.max(first.remove());
        }
    }
}

#[cfg(test)]
#[cfg(not(shuttle))]
mod tests {
    use super::*;

    fn ranges(loaded: &Loaded) -> (u64, Vec<(u64, u64)>) {
        let behind = loaded.behind.iter();
        let behind = behind.map(|(start, end)| (*start, *end));
        (loaded.all_before, behind.collect())
    }

    #[test]
    fn ranges_meet() {
        let mut loaded = Loaded::default();
        loaded.add(4..6);
        loaded.add(8..9);
        loaded.add(3..3);
        assert_eq!(ranges(&loaded), (0, vec![(4, 6), (8, 9)]));
        loaded.add(6..8);
        assert_eq!(ranges(&loaded), (0, vec![(4, 9)]));
        loaded.add(2..12);
        loaded.add(0..1);
        assert_eq!(ranges(&loaded), (1, vec![(2, 12)]));
        loaded.add(1..2);
        assert_eq!(ranges(&loaded), (12, vec![]));
        loaded.add(20..30);
        loaded.settle(25);
        assert_eq!(ranges(&loaded), (30, vec![]));
        loaded.add(5..31);
        assert_eq!(loaded.all_before(), 31);
    }
}
