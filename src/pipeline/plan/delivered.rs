//! Which batches of an epoch the program was given.

use crate::sync::plain::AtomicU64;
use crate::sync::{Mutex, Ordering};

/// How far beyond the oldest batch that was not given out another one may be given out, or opened.
pub(crate) const MOST_BEHIND: u64 = 64;

/// A set of batches: all before one that is missing, and some of the [`MOST_BEHIND`] behind it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) struct Given {
    /// The first that is missing.
    first: u64,
    /// Bit `i` is batch `first + 1 + i`.
    behind: u64,
}

impl Given {
    /// Batch 0 is missing, and these behind it are not.
    pub(crate) fn behind_first(behind: u64) -> Given {
        Given { first: 0, behind }
    }

    /// The first batch that is missing.
    pub(crate) fn first(&self) -> u64 {
        self.first
    }

    /// Those behind it that are not: bit 0 is the next.
    pub(crate) fn behind(&self) -> u64 {
        self.behind
    }

    /// Whether nothing behind the first missing one was given out.
    pub(crate) fn has_no_gap(&self) -> bool {
        self.behind == 0
    }

    /// The same, in an epoch of so many batches.
    pub(crate) fn of(self, batches: u64) -> Given {
        let behind = batches.saturating_sub(self.first).saturating_sub(1);
        let bits = match behind {
            64.. => u64::MAX,
            bits => (1 << bits) - 1,
        };
        Given {
            behind: self.behind & bits,
            ..self
        }
    }

    pub(crate) fn contains(&self, batch: u64) -> bool {
        match batch.checked_sub(self.first) {
            None => true,
            Some(0) => false,
            Some(distance @ 1..=MOST_BEHIND) => self.behind >> (distance - 1) & 1 == 1,
            Some(_) => false,
        }
    }

    pub(crate) fn count(&self) -> u64 {
        self.first + u64::from(self.behind.count_ones())
    }

    /// Adds a batch that is missing, and no further behind the first than [`MOST_BEHIND`].
    pub(crate) fn add(&mut self, batch: u64) {
        let Some(distance) = batch.checked_sub(self.first) else {
            return;
        };
        if distance == 0 {
            let run = self.behind.trailing_ones();
            self.first += 1 + u64::from(run);
            self.behind = self.behind.checked_shr(run + 1).unwrap_or(0);
        } else {
            debug_assert!(distance <= MOST_BEHIND);
            self.behind |= 1 << (distance - 1);
        }
    }

    /// Those of the batches behind the first missing one.
    pub(crate) fn batches_behind(&self) -> impl Iterator<Item = u64> + use<> {
        let Given { first, behind } = *self;
        (0..MOST_BEHIND)
            .filter(move |bit| behind >> bit & 1 == 1)
            .map(move |bit| first + 1 + bit)
    }

    /// The number of a batch that is missing: the first has number 0 among them.
    pub(crate) fn missing(&self, number: u64) -> u64 {
        if self.behind == 0 {
            return self.first.saturating_add(number);
        }
        let (mut batch, mut left, mut behind) = (self.first, number, self.behind);
        while left > 0 && behind > 0 {
            batch += 1;
            left -= u64::from(behind & 1 == 0);
            behind >>= 1;
        }
        // The last bit that is set ends the loop where nothing is missing.
        batch.saturating_add(left)
    }
}

/// What was given out of one epoch. One thread adds; others read.
#[derive(Debug)]
pub(crate) struct Progress {
    /// Given out before the epoch was resumed.
    before: Given,
    /// How many batches were given out since. Relaxed: it orders nothing.
    count: AtomicU64,
    /// Which, if they come in any order. Otherwise it is the first of those that were missing.
    any_order: Option<Mutex<Given>>,
}

impl Progress {
    pub(crate) fn new(before: Given, any_order: bool) -> Progress {
        Progress {
            before,
            count: AtomicU64::new(0),
            any_order: any_order.then(|| Mutex::new(before)),
        }
    }

    /// How many batches were given out since the epoch began, or was resumed.
    pub(crate) fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// The batch that comes next; `None`: that is not known, as they come in any order.
    pub(crate) fn next(&self) -> Option<u64> {
        match self.any_order {
            None => Some(self.before.missing(self.count())),
            Some(_) => None,
        }
    }

    /// This batch is given out.
    pub(crate) fn add(&self, batch: u64) {
        if let Some(given) = &self.any_order {
            given.lock().add(batch);
        }
        // (No other thread writes.)
        self.count.store(self.count() + 1, Ordering::Relaxed);
    }

    /// Which batches were given out, before and since.
    pub(crate) fn given(&self) -> Given {
        match &self.any_order {
            Some(given) => *given.lock(),
            None if self.before.behind == 0 => Given {
                first: self.before.first + self.count(),
                behind: 0,
            },
            None => {
                let mut given = self.before;
                let count = self.count();
                for _ in 0..count.min(MOST_BEHIND) {
                    given.add(given.first);
                }
                // Behind as many, nothing is left of the bits.
                given.first += count.saturating_sub(MOST_BEHIND);
                given
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Whatever is added in whatever order, as far as the bits reach: it is the set, and its gaps are numbered.
        #[test]
        fn it_is_a_set(picks in prop::collection::vec(any::<u16>(), 0..300)) {
            let (mut given, mut set) = (Given::default(), BTreeSet::new());
            for pick in picks {
                let batch = given.first() + u64::from(pick) % (MOST_BEHIND + 1);
                if set.insert(batch) {
                    given.add(batch);
                }
                let missing: Vec<u64> = (0..).filter(|batch| !set.contains(batch)).take(99).collect();
                prop_assert_eq!(given.first(), missing[0]);
                prop_assert_eq!(given.count(), set.len() as u64);
                prop_assert!((0..200).all(|batch| given.contains(batch) == set.contains(&batch)));
                let behind: Vec<u64> = set.iter().copied().filter(|batch| *batch > missing[0]).collect();
                prop_assert_eq!(given.batches_behind().collect::<Vec<_>>(), behind);
                for (number, batch) in missing.iter().enumerate() {
                    prop_assert_eq!(given.missing(number as u64), *batch);
                }
            }
        }

        /// In order, what was given is the first of what was missing.
        #[test]
        fn in_order_a_count_says_it(behind: u64, count in 0u64..200) {
            let before = Given::behind_first(behind);
            let progress = Progress::new(before, false);
            let mut expected = before;
            for _ in 0..count {
                prop_assert_eq!(progress.next(), Some(expected.first()));
                progress.add(expected.first());
                expected.add(expected.first());
            }
            prop_assert_eq!(progress.given(), expected);
            prop_assert_eq!(progress.count(), count);
        }
    }
}
