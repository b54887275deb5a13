//! A data set whose samples stay in memory once they were loaded.

use std::collections::HashMap;
use std::fmt;
use std::num::NonZeroU64;

use super::{Cacheable, Dataset, Pass, pass_on};
use crate::error::{BoxError, Result};
use crate::rng::{RngKey, SampleRng};
use crate::sampler::{Blocks, Openings};
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
    /// on the thread that came first. So its generator is a function of the index, and must come back unused.
    fn load(&self, index: u64, pass: u32) -> Result<D::Sample, BoxError> {
        let mut given = SampleRng::for_sample(RngKey {
            seed: 0,
            epoch: 0,
            position: index,
        })
        .of_pass(pass);
        let sample = self.dataset.get(index, &mut given)?;
        unused(index, given).map(|()| sample)
    }

    /// Keeps a sample that was loaded, if there is room, and shares it.
    fn keep_and_share(&self, index: u64, sample: D::Sample) -> D::Sample
    where
        D::Sample: Cacheable,
    {
        let sample = Arc::new(sample);
        let own = size_of::<D::Sample>() + ENTRY_BYTES;
        self.keep(index, &sample, sample.heap_bytes().saturating_add(own));
        // What was not kept is given away as it is.
        Arc::try_unwrap(sample).unwrap_or_else(|kept| kept.share())
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

/// The generator that a sample was given must come back unused.
fn unused(index: u64, mut given: SampleRng) -> Result<(), BoxError> {
    // One that was drawn from goes on with another number.
    match given.next_u64() == SampleRng::for_sample(RngKey { seed: 0, epoch: 0, position: index }).next_u64() {
        true => Ok(()),
        false => Err(
            "it drew random numbers, and the cache would repeat them in each epoch: draw them in a `map` after `cached`".into(),
        ),
    }
}

/// What `get_many` of the data set inside did wrong.
pub(super) const TOO_FEW: &str = "`get_many` returned fewer samples than it was asked for";

impl<D: Dataset> Dataset for Cached<D>
where
    D::Sample: Cacheable,
{
    type Sample = D::Sample;

    fn len(&self) -> u64 {
        self.dataset.len()
    }

    fn get(&self, index: u64, rng: &mut SampleRng) -> Result<D::Sample, BoxError> {
        if let Some(sample) = self.find(index) {
            self.hits.fetch_add(1, Ordering::Relaxed);
            return Ok(sample.share());
        }
        self.misses.fetch_add(1, Ordering::Relaxed);
        Ok(self.keep_and_share(index, self.load(index, rng.pass())?))
    }

    fn get_many(
        &self,
        indices: &[u64],
        rngs: &mut [SampleRng],
    ) -> Vec<Result<D::Sample, BoxError>> {
        let found = indices.iter().map(|index| self.find(*index));
        let found: Vec<Option<Arc<D::Sample>>> = found.collect();
        let is_missing = |(found, _): &(&Option<_>, _)| found.is_none();
        let missing = found.iter().zip(indices).filter(is_missing);
        let missing: Vec<u64> = missing.map(|(_, index)| *index).collect();
        let hits = indices.len() - missing.len();
        self.hits.fetch_add(hits as u64, Ordering::Relaxed);
        self.misses
            .fetch_add(missing.len() as u64, Ordering::Relaxed);
        let pass = rngs.first().map_or(0, SampleRng::pass); // all are of one
        let given = missing.iter();
        let given = given.map(|index| {
            SampleRng::for_sample(RngKey {
                seed: 0,
                epoch: 0,
                position: *index,
            })
            .of_pass(pass)
        });
        let mut given: Vec<SampleRng> = given.collect();
        let loaded = match missing.is_empty() {
            true => Vec::new(),
            false => self.dataset.get_many(&missing, &mut given),
        };
        let mut loaded = loaded.into_iter().zip(missing.into_iter().zip(given));
        let mut next = || {
            let (sample, (index, given)) = loaded.next().ok_or(TOO_FEW)?;
            let sample = sample?;
            unused(index, given)?;
            Ok(self.keep_and_share(index, sample))
        };
        let each = found.into_iter();
        each.map(|found| found.map_or_else(&mut next, |found| Ok(found.share())))
            .collect()
    }

    fn at_once(&self) -> usize {
        self.dataset.at_once()
    }

    fn describe(&self, index: u64) -> Option<String> {
        self.dataset.describe(index)
    }

    fn lookahead(&self) -> usize {
        self.dataset.lookahead()
    }

    /// Of samples that the cache has, the data set is not told.
    fn will_need(&self, indices: &[u64], pass: Pass) {
        pass_on(&self.dataset, indices, pass, |index| {
            let has = self.kept.lock().samples.contains_key(&index);
            (!has).then_some(index)
        });
    }

    fn pass_ended(&self, pass: Pass) {
        self.dataset.pass_ended(pass);
    }

    fn blocks(&self) -> Option<Arc<Blocks>> {
        self.dataset.blocks()
    }

    /// If the cache has all samples, the data set inside is not told, and reads nothing. While it has some, blocks are read whole.
    fn pass_began(&self, openings: Openings, pass: Pass) {
        if (self.kept.lock().samples.len() as u64) < self.len() {
            self.dataset.pass_began(openings, pass);
        }
    }

    fn check_room(&self, openings: Openings, tracks: NonZeroU64, share: usize) -> Result<()> {
        self.dataset.check_room(openings, tracks, share)
    }

    fn is_registered(&self) -> bool {
        self.dataset.is_registered()
    }

    fn has_encoded_pictures(&self) -> bool {
        self.dataset.has_encoded_pictures()
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
