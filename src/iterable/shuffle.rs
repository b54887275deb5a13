//! Shuffling by windows.

use super::state::{Reader, Tag, Writer, fingerprint};
use super::windows::{Windows, shuffle};
use super::{ItemIter, IterableDataset, Shard, scramble};
use crate::error::BoxError;
use crate::rng::{RngKey, SampleRng};

/// A source whose items come in a random order within windows: [`IterableDataset::shuffle`] makes it.
#[derive(Debug, Clone)]
pub struct Shuffle<S> {
    source: S,
    window: usize,
}

impl<S> Shuffle<S> {
    pub(super) fn new(source: S, buffer_size: usize) -> Shuffle<S> {
        Shuffle {
            source,
            window: buffer_size.max(1),
        }
    }
}

impl<S: IterableDataset> IterableDataset for Shuffle<S> {
    type Item = S::Item;
    type Sample = S::Sample;
    type Iter = ShuffleIter<S::Iter>;

    fn open(&self, epoch: u64, shard: Shard) -> Result<Self::Iter, BoxError> {
        let inner = self.source.open(epoch, shard.of_child(0))?;
        Ok(ShuffleIter {
            windows: Windows::new(inner, self.window),
            // Each rank has an order of its own, and another seed than its samples.
            seed: scramble(scramble(shard.seed()) ^ shard.rank()),
            epoch,
        })
    }

    fn load(&self, item: S::Item, rng: &mut SampleRng) -> Result<S::Sample, BoxError> {
        self.source.load(item, rng)
    }

    fn fingerprint(&self) -> u32 {
        let inner = u64::from(self.source.fingerprint());
        fingerprint(Tag::Shuffle, [self.window as u64, inner])
    }
}

/// The open iterator of [`Shuffle`].
#[derive(Debug)]
pub struct ShuffleIter<I: ItemIter> {
    windows: Windows<I, I::Item>,
    seed: u64,
    epoch: u64,
}

/// The order of a window.
fn shuffled<T>(seed: u64, epoch: u64) -> impl Fn(u64, Vec<T>) -> Vec<T> {
    move |window, mut items| {
        shuffle(
            &mut items,
            &mut SampleRng::for_sampler(RngKey {
                seed,
                epoch,
                position: window,
            }),
        );
        items
    }
}

impl<I: ItemIter> ItemIter for ShuffleIter<I>
where
    I::Item: Send,
{
    type Item = I::Item;

    fn next(&mut self) -> Option<Result<I::Item, BoxError>> {
        self.windows.next(shuffled(self.seed, self.epoch))
    }

    fn state(&self) -> Option<Vec<u8>> {
        self.windows.state(Writer::new(Tag::Shuffle))
    }

    fn seek(&mut self, state: &[u8]) -> Result<(), BoxError> {
        let state = Reader::new(Tag::Shuffle, state)?;
        self.windows.seek(state, shuffled(self.seed, self.epoch))
    }
}
