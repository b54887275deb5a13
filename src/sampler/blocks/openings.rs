//! Which blocks a lane needs, and from when to when.

use std::fmt;
use std::ops::Range;

use super::again::Again;

/// A stretch of a block that a lane begins to need.
///
/// A *lane* is what takes every `lanes`-th position of an epoch's order: a rank or, where several devices share a rank's batches, one of
/// its devices ([`Sharding::Interleaved`](crate::loader::Sharding::Interleaved)).
///
/// # Examples
///
/// Two lanes share the blocks of an order that has one track, so each uses half of them:
///
/// ```
/// use std::sync::Arc;
///
/// use pinfeed::sampler::{BlockSampler, Blocks, Opening, Sampler};
///
/// let sampler = BlockSampler::in_order(Arc::new(Blocks::even(20, 10)?));
/// let mut of_lane_1 = sampler.openings(0, 0, 1, 2).ok_or("it has blocks")?;
/// let first = Opening { block: 0, samples: 0..10, first: 1, until: 10, uses: 5 };
/// assert_eq!(of_lane_1.next(), Some(first));
/// # Ok::<(), pinfeed::BoxError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Opening {
    /// The number of the block.
    pub block: u64,
    /// The samples that are needed of it, by their indices in the data set: the block, or a part of it.
    pub samples: Range<u64>,
    /// The lane's first position that has one of these samples.
    pub first: u64,
    /// The position behind the last that has one: from here on, the lane needs nothing of it.
    pub until: u64,
    /// How many of these samples the lane takes, at positions from `first` to `until`. Fewer than there are if the lane began within them,
    /// as in a resumed epoch, or if it shares them with other lanes.
    pub uses: u64,
}

/// What a lane needs of an epoch, in the order in which it begins to: by [`Opening::first`].
///
/// It is made as it is asked for, and owns what it needs: it may outlive the sampler, and an epoch of a million blocks is never listed.
///
/// # Examples
///
/// ```
/// use std::sync::Arc;
///
/// use pinfeed::sampler::{BlockSampler, Blocks, Sampler};
///
/// let sampler = BlockSampler::in_order(Arc::new(Blocks::from_sizes([3, 2])?));
/// let openings = sampler.openings(0, 1, 0, 1).ok_or("it has blocks")?; // from position 1 on, for the only lane
/// let found: Vec<_> = openings.map(|opening| (opening.block, opening.first, opening.until, opening.uses)).collect();
/// assert_eq!(found, [(0, 1, 3, 2), (1, 3, 5, 2)]);
/// # Ok::<(), pinfeed::BoxError>(())
/// ```
pub struct Openings {
    openings: Box<dyn Iterator<Item = Opening> + Send>,
    /// `None`: when their samples come again is not known.
    again: Option<Again>,
}

impl Openings {
    /// Wraps the openings of a sampler of the program's own, which come in the order of [`Opening::first`].
    ///
    /// # Examples
    ///
    /// ```
    /// use pinfeed::sampler::{Opening, Openings};
    ///
    /// let opening = Opening { block: 7, samples: 70..80, first: 0, until: 10, uses: 10 };
    /// let openings = Openings::new([opening.clone()]);
    /// assert!(openings.eq([opening]));
    /// ```
    pub fn new<I>(openings: I) -> Openings
    where
        I: IntoIterator<Item = Opening>,
        I::IntoIter: Send + 'static,
    {
        Openings {
            openings: Box::new(openings.into_iter()),
            again: None,
        }
    }

    /// These openings, and when their samples come again.
    pub(super) fn with_again(self, again: Again) -> Openings {
        Openings {
            again: Some(again),
            ..self
        }
    }

    pub(crate) fn again(&self) -> Option<Again> {
        self.again.clone()
    }

    /// Those that begin before a position.
    pub(crate) fn before(self, end: u64) -> Openings {
        let openings = self.openings.take_while(move |opening| opening.first < end);
        Openings {
            openings: Box::new(openings),
            again: self.again,
        }
    }
}

impl Iterator for Openings {
    type Item = Opening;

    fn next(&mut self) -> Option<Opening> {
        self.openings.next()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.openings.size_hint()
    }
}

impl fmt::Debug for Openings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Openings").finish_non_exhaustive()
    }
}
