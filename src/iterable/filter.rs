//! Items of a source that a function keeps.

use std::fmt;

use super::ask::{Asked, told};
use super::loaded::{Loaded, hand_over};
use super::state::{Tag, fingerprint};
use super::{ItemIter, IterableDataset, Left, Shard, progress};
use crate::error::{BoxError, ItemError};
use crate::rng::SampleRng;
use crate::sync::Arc;

/// A source without what a function does not keep: [`IterableDataset::filter`] makes it.
pub struct Filter<S, F> {
    source: Arc<S>,
    keeps: Arc<F>,
}

impl<S, F> Filter<S, F> {
    pub(super) fn new(source: S, keeps: F) -> Filter<S, F> {
        Filter {
            source: Arc::new(source),
            keeps: Arc::new(keeps),
        }
    }
}

impl<S, F> IterableDataset for Filter<S, F>
where
    S: IterableDataset<Sample: Clone>,
    F: Fn(&S::Sample, &mut SampleRng) -> Result<bool, BoxError> + Send + Sync + 'static,
{
    type Item = S::Sample;
    type Sample = S::Sample;
    type Iter = FilterIter<S, F>;

    fn open(&self, epoch: u64, shard: Shard) -> Result<Self::Iter, BoxError> {
        Ok(FilterIter {
            items: Loaded::open(&self.source, epoch, shard)?,
            keeps: Arc::clone(&self.keeps),
        })
    }

    fn load(&self, item: S::Sample, _: &mut SampleRng) -> Result<S::Sample, BoxError> {
        Ok(item)
    }

    fn fingerprint(&self) -> u32 {
        fingerprint(Tag::Filter, [u64::from(self.source.fingerprint())])
    }

    fn hand_over(&self, epoch: u64, left: &[Left], to: &[Shard]) -> Result<Vec<Vec<u8>>, BoxError> {
        hand_over(&*self.source, Tag::Filter, epoch, left, to)
    }
}

impl<S, F> Clone for Filter<S, F> {
    fn clone(&self) -> Filter<S, F> {
        Filter {
            source: Arc::clone(&self.source),
            keeps: Arc::clone(&self.keeps),
        }
    }
}

impl<S: fmt::Debug, F> fmt::Debug for Filter<S, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Filter")
            .field("source", &self.source)
            .finish_non_exhaustive()
    }
}

/// The open iterator of [`Filter`].
pub struct FilterIter<S: IterableDataset, F> {
    items: Loaded<S>,
    keeps: Arc<F>,
}

impl<S, F> FilterIter<S, F>
where
    S: IterableDataset<Sample: Clone>,
    F: Fn(&S::Sample, &mut SampleRng) -> Result<bool, BoxError>,
{
    fn step(&mut self) -> Asked<S::Sample> {
        loop {
            let keeps = &self.keeps;
            let next = self.items.next(|sample, rng| {
                let is_kept = keeps(&sample, rng)?;
                Ok(is_kept.then_some(sample))
            })?;
            match next {
                None => return Ok(None),
                Some((_, Ok(None))) => {}
                Some((_, Ok(Some(sample)))) => return Ok(Some(Ok(sample))),
                Some((number, Err(cause))) => {
                    return Ok(Some(Err(ItemError::of(number, None, cause))));
                }
            }
            progress()?;
        }
    }
}

impl<S, F> ItemIter for FilterIter<S, F>
where
    S: IterableDataset<Sample: Clone>,
    F: Fn(&S::Sample, &mut SampleRng) -> Result<bool, BoxError> + Send + Sync + 'static,
{
    type Item = S::Sample;

    fn next(&mut self) -> Option<Result<S::Sample, BoxError>> {
        told(self.step())
    }

    fn state(&self) -> Option<Vec<u8>> {
        self.items.state(Tag::Filter)
    }

    fn seek(&mut self, state: &[u8]) -> Result<(), BoxError> {
        self.items.seek(Tag::Filter, state)
    }
}

impl<S: IterableDataset, F> fmt::Debug for FilterIter<S, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FilterIter").finish_non_exhaustive()
    }
}
