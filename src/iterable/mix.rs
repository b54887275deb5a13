//! Items of several sources in proportions.

use super::ask::{Asked, ask, told};
use super::state::{Reader, Tag, Writer, fingerprint, wrong};
use super::{ItemIter, IterableDataset, Shard, progress};
use crate::error::{BoxError, Error, Result};
use crate::rng::SampleRng;

/// Gives items of several sources, in proportion to their weights. When one ends, the others go on in their proportions, until all have
/// ended; [`repeat`](IterableDataset::repeat) the shorter ones if that is not what you want.
///
/// A source of weight 0 is not opened.
///
/// Which one comes next is not drawn: of `n` items, each source has its share, to within the number of sources. So all batches are mixed
/// alike. Each source keeps its order.
///
/// # Errors
///
/// [`Error::InvalidOption`] if there are no sources, or if a weight is negative, not finite, or so small that none of them is above 0.
///
/// # Examples
///
/// Sources of different types become one by an `enum` of your own; these are of one type:
///
/// ```
/// use pinfeed::iterable::{self, IterableDataset};
/// use pinfeed::DataLoader;
///
/// let numbers = |first: i64| iterable::from_fn(move |_, _| Ok((first..).map(Ok)));
/// let mixed = iterable::mix([(numbers(0), 3.0), (numbers(1_000), 1.0)])?;
/// let batch = DataLoader::iterable(mixed.take(8)).batch_size(8).build()?.epoch(0).next().unwrap()?;
/// assert_eq!(batch.as_slice(), [0, 1, 1_000, 2, 3, 4, 1_001, 5]);
/// # Ok::<(), pinfeed::Error>(())
/// ```
pub fn mix<S: IterableDataset>(sources: impl IntoIterator<Item = (S, f64)>) -> Result<Mixture<S>> {
    let (sources, weights): (Vec<S>, Vec<f64>) = sources.into_iter().unzip();
    let sum: f64 = weights.iter().sum();
    let is_good = |weight: &f64| weight.is_finite() && *weight >= 0.0;
    if !weights.iter().all(is_good) || !sum.is_normal() {
        return Err(Error::option(
            "mix",
            format!(
                "has the weights {weights:?}: they are finite, none is negative, and one at least is above 0"
            ),
        ));
    }
    Ok(Mixture { sources, weights })
}

/// Several sources in proportions: [`mix`] makes it.
#[derive(Debug, Clone)]
pub struct Mixture<S> {
    sources: Vec<S>,
    weights: Vec<f64>,
}

impl<S: IterableDataset> IterableDataset for Mixture<S> {
    type Item = (usize, S::Item);
    type Sample = S::Sample;
    type Iter = MixtureIter<S::Iter>;

    fn open(&self, epoch: u64, shard: Shard) -> Result<Self::Iter, BoxError> {
        let sources = (0..).zip(&self.sources).zip(&self.weights);
        let inner = sources.map(|((number, source), weight)| {
            if *weight == 0.0 {
                return Ok(None);
            }
            progress()?;
            source.open(epoch, shard.of_child(number)).map(Some)
        });
        Ok(MixtureIter {
            inner: inner.collect::<Result<_, BoxError>>()?,
            given: vec![0; self.weights.len()],
            weights: self.weights.clone(),
        })
    }

    fn load(&self, (source, item): Self::Item, rng: &mut SampleRng) -> Result<S::Sample, BoxError> {
        self.sources[source].load(item, rng)
    }

    fn fingerprint(&self) -> u32 {
        let sources = self.sources.iter().zip(&self.weights);
        let print = |(source, weight): (&S, &f64)| [weight.to_bits(), source.fingerprint().into()];
        fingerprint(Tag::Mix, sources.flat_map(print))
    }
}

/// The open iterator of [`Mixture`].
#[derive(Debug)]
pub struct MixtureIter<I> {
    /// `None`: it has ended, or it is of weight 0, and was never opened.
    inner: Vec<Option<I>>,
    weights: Vec<f64>,
    /// How many items each has given since one of them ended last.
    given: Vec<u64>,
}

impl<I> MixtureIter<I> {
    /// The source that is furthest behind its share, if one has not ended.
    fn choose(&self) -> Option<usize> {
        let live = || (0..self.inner.len()).filter(|&source| self.inner[source].is_some());
        let sum: f64 = live().map(|source| self.weights[source]).sum();
        let given: u64 = live().map(|source| self.given[source]).sum();
        let behind = |source: usize| {
            let share = self.weights[source] / sum;
            share * (given + 1) as f64 - self.given[source] as f64
        };
        // Of several, the first.
        live().reduce(|best, other| {
            if behind(other) > behind(best) {
                other
            } else {
                best
            }
        })
    }
}

impl<I: ItemIter> MixtureIter<I> {
    fn step(&mut self) -> Asked<(usize, I::Item)> {
        while let Some(source) = self.choose() {
            let Some(inner) = &mut self.inner[source] else {
                break;
            };
            if let Some(item) = ask(inner)? {
                self.given[source] += 1;
                return Ok(Some(item.map(|item| (source, item))));
            }
            self.inner[source] = None;
            // The others need not make up for what it had.
            self.given.fill(0);
            progress()?;
        }
        Ok(None)
    }
}

impl<I: ItemIter> ItemIter for MixtureIter<I> {
    type Item = (usize, I::Item);

    fn next(&mut self) -> Option<Result<Self::Item, BoxError>> {
        told(self.step())
    }

    fn state(&self) -> Option<Vec<u8>> {
        let mut state = Writer::new(Tag::Mix).number(self.inner.len() as u64);
        for (source, inner) in self.inner.iter().enumerate() {
            state = state.number(u64::from(inner.is_some()));
            state = state.number(self.given[source]);
            state = match inner {
                Some(inner) => state.inner(&inner.state()?),
                None => state.inner(&[]),
            };
        }
        Some(state.finish())
    }

    fn seek(&mut self, state: &[u8]) -> Result<(), BoxError> {
        let mut state = Reader::new(Tag::Mix, state)?;
        if state.number()? != self.inner.len() as u64 {
            return Err(wrong());
        }
        for (source, inner) in self.inner.iter_mut().enumerate() {
            let is_live = state.number()? == 1;
            self.given[source] = state.number()?;
            let inner_state = state.inner()?;
            if !is_live {
                *inner = None;
                continue;
            }
            progress()?;
            inner.as_mut().ok_or_else(wrong)?.seek(inner_state)?;
        }
        state.end()
    }
}
