//! Which share of an epoch's samples may be bad.

/// The quota, as the program set it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct BadShare {
    /// From 0 to 1.
    pub(crate) most: f64,
    /// How many samples are counted before it holds: of few, one is a large share.
    pub(crate) after: u64,
}

/// The samples of the batches that an epoch gave out so far. It counts in the order in which they are given out, so it is the same
/// whatever the number of workers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct BadCount {
    quota: BadShare,
    pub(crate) samples: u64,
    pub(crate) bad: u64,
}

impl BadCount {
    pub(crate) fn new(quota: BadShare) -> BadCount {
        BadCount {
            quota,
            samples: 0,
            bad: 0,
        }
    }

    pub(crate) fn most(&self) -> f64 {
        self.quota.most
    }

    /// Counts those of a batch. `is_last`: none come behind it. Returns whether they are too many.
    pub(crate) fn add(&mut self, samples: usize, bad: usize, is_last: bool) -> bool {
        self.samples += samples as u64;
        self.bad += bad as u64;
        (is_last || self.samples >= self.quota.after) && self.are_too_many()
    }

    /// Whether they are too many, however few were counted.
    pub(crate) fn are_too_many(&self) -> bool {
        self.bad as f64 > self.quota.most * self.samples as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_holds_from_some_samples_on_and_at_the_end() {
        let quota = BadShare {
            most: 0.1,
            after: 30,
        };
        let mut count = BadCount::new(quota);
        assert!(!count.add(10, 3, false)); // too few to tell
        assert!(!count.add(20, 0, false)); // 3 of 30 are as many as may be
        assert!(count.add(1, 1, false));
        assert!(!count.add(20, 0, true));
        assert!(BadCount::new(quota).add(10, 2, true));
        let none = BadShare {
            most: 0.0,
            after: 0,
        };
        assert!(!BadCount::new(none).add(10, 0, false));
        assert!(BadCount::new(none).add(10, 1, false));
        let all = BadShare {
            most: 1.0,
            after: 0,
        };
        assert!(!BadCount::new(all).add(10, 10, true));
    }
}
