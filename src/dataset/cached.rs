//! A data set whose samples stay in memory once they were loaded.

use std::collections::HashMap;
use std::fmt;

use super::{Cacheable, Dataset, pass_on};
use crate::error::BoxError;
use crate::rng::SampleRng;
use crate::sync::plain::AtomicU64;
use crate::sync::{Arc, Mutex, Ordering};

/// The data set that [`Dataset::cached`] makes.
pub struct Cached<D: Dataset> {
    dataset: D,
    budget_bytes: usize,
    /// Locked to look up and to enter, never while a sample is loaded, measured or copied.
    kept: Mutex<Kept<D::Sample>>,
    hits: AtomicU64,
    misses: AtomicU64,
}

struct Kept<S> {
    samples: HashMap<u64, Arc<S>>,
    bytes: usize,
}

/// What a sample costs besides its own bytes: the counts of its `Arc`, and its share of a map that is half full.
const ENTRY_BYTES: usize = 64;

/// What a cache holds, and how often it had what was asked for: [`Cached::stats`].
///
/// # Examples
///
/// In [`Dataset::cached`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct CacheStats {
    /// How many samples were asked for and were there.
    pub hits: u64,
    /// How many were loaded, or failed to load.
    pub misses: u64,
    /// How many samples the cache holds.
    pub samples: u64,
    /// The memory that they take: at most `budget_bytes`.
    pub bytes: usize,
    /// The memory that they may take.
    pub budget_bytes: usize,
}

impl<D: Dataset> Cached<D> {
    pub(super) fn new(dataset: D, budget_bytes: usize) -> Cached<D> {
        let (samples, bytes) = (HashMap::new(), 0);
        Cached {
            dataset,
            budget_bytes,
            kept: Mutex::new(Kept { samples, bytes }),
            hits: AtomicU64::new(0),
            misses: AtomicU64::new(0),
        }
    }

    /// What the cache holds, and how often it had what was asked for, so far.
    pub fn stats(&self) -> CacheStats {
        let kept = self.kept.lock();
        CacheStats {
            hits: self.hits.load(Ordering::Relaxed),
            misses: self.misses.load(Ordering::Relaxed),
            samples: kept.samples.len() as u64,
            bytes: kept.bytes,
            budget_bytes: self.budget_bytes,
        }
    }

    /// The data set inside.
    pub fn dataset(&self) -> &D {
        &self.dataset
    }

    fn find(&self, index: u64) -> Option<Arc<D::Sample>> {
        self.kept.lock().samples.get(&index).map(Arc::clone)
    }

    /// Loads a sample, which must not be random: it would be the same in all epochs, and which one it is would depend
    /// on who came first. So its generator is a function of the index, and must come back unused.
    fn load(&self, index: u64) -> Result<D::Sample, BoxError> {
        let mut unused = SampleRng::new(0, 0, index);
        let mut given = unused.clone();
        let sample = self.dataset.get(index, &mut given)?;
        // A generator that was drawn from goes on with another number.
        match given.next_u64() == unused.next_u64() {
            true => Ok(sample),
            false => Err("it drew random numbers, and the cache would repeat them in each epoch: draw them in a `map` \
                          after `cached`"
                .into()),
        }
    }

    /// Keeps the sample, if there is room and no other worker was faster.
    fn keep(&self, index: u64, sample: &Arc<D::Sample>, bytes: usize) {
        let mut kept = self.kept.lock();
        let Kept {
            samples,
            bytes: all,
        } = &mut *kept;
        let room = self.budget_bytes - *all;
        if bytes <= room && !samples.contains_key(&index) {
            samples.insert(index, Arc::clone(sample));
            *all += bytes;
        }
    }
}

impl<D: Dataset> Dataset for Cached<D>
where
    D::Sample: Cacheable,
{
    type Sample = D::Sample;

    fn len(&self) -> u64 {
        self.dataset.len()
    }

    fn get(&self, index: u64, _: &mut SampleRng) -> Result<D::Sample, BoxError> {
        if let Some(sample) = self.find(index) {
            self.hits.fetch_add(1, Ordering::Relaxed);
            return Ok(sample.share());
        }
        self.misses.fetch_add(1, Ordering::Relaxed);
        let sample = Arc::new(self.load(index)?);
        let own = size_of::<D::Sample>() + ENTRY_BYTES;
        self.keep(index, &sample, sample.heap_bytes().saturating_add(own));
        // What was not kept is given away as it is.
        Arc::try_unwrap(sample).or_else(|kept| Ok(kept.share()))
    }

    fn describe(&self, index: u64) -> Option<String> {
        self.dataset.describe(index)
    }

    fn lookahead(&self) -> usize {
        self.dataset.lookahead()
    }

    /// Of samples that the cache has, the data set is not told.
    fn will_need(&self, indices: &[u64]) {
        pass_on(&self.dataset, indices, |index| {
            let has = self.kept.lock().samples.contains_key(&index);
            (!has).then_some(index)
        });
    }

    fn is_registered(&self) -> bool {
        self.dataset.is_registered()
    }

    fn sample_bytes(&self) -> Option<usize> {
        self.dataset.sample_bytes()
    }

    fn fingerprint(&self) -> u32 {
        self.dataset.fingerprint()
    }
}

impl<D: Dataset> fmt::Debug for Cached<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cached")
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}
