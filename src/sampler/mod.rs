//! Orders of indices: which samples an epoch has, and in which order.
//!
//! | sampler | an epoch |
//! | --- | --- |
//! | [`SequentialSampler`] | 0, 1, 2, ... |
//! | [`RandomSampler`] | all samples once in random order; or with replacement; or more or fewer than all |
//! | [`SubsetRandomSampler`] | listed samples once, in random order |
//! | [`WeightedRandomSampler`] | samples drawn by weight, with or without replacement |
//! | [`MixtureSampler`] | several data sets in fixed proportions, each in random order |
//! | [`BlockSampler`] | all samples once, in random order, out of blocks that are read in sequence |
//! | `Vec<u64>` | these indices, in this order |
//!
//! | batch sampler | an epoch |
//! | --- | --- |
//! | [`GroupedBatchSampler`] | all samples once, each batch of one group: one size, one class |
//! | [`TokenBatchSampler`] | all samples once, batches of similar lengths under a budget of tokens |
//! | [`FixedBatchSampler`] | a sampler's order in batches of one size |
//! | `Vec<Vec<u64>>` | these batches |
//!
//! They are pure functions of seed, epoch and position; batch samplers, which list whole epochs, of seed and epoch. None depends on the
//! number of workers or ranks, and a run that is resumed at a position computes nothing that came before it. (Only a
//! [`WeightedRandomSampler`] without replacement, like batch samplers, computes all of an epoch when that is first asked for.)

mod alias;
mod batches;
mod blocks;
mod fixed;
mod grouped;
mod indices;
mod mixture;
#[cfg_attr(
    target_arch = "x86_64",
    expect(
        unsafe_code,
        reason = "it calls what the compiler made for newer processors"
    )
)]
mod permutation;
mod random;
mod sequential;
mod splits;
mod subset;
mod successive;
mod tokens;
mod weighted;

pub use batches::{BatchSampler, Batches};
pub(crate) use blocks::Again;
pub use blocks::{BlockSampler, Blocks, Opening, Openings};
pub use fixed::FixedBatchSampler;
pub use grouped::GroupedBatchSampler;
pub(crate) use indices::Indices;
pub use mixture::MixtureSampler;
pub use random::RandomSampler;
pub use sequential::SequentialSampler;
pub use subset::SubsetRandomSampler;
pub use tokens::TokenBatchSampler;
pub use weighted::WeightedRandomSampler;

use std::fmt;
use std::num::NonZeroU64;
use std::ops::Range;

use crate::fingerprint::{Fingerprint, spread};
use crate::sync::Arc;

/// An order of a data set's samples: which index is at each position of an epoch.
///
/// It is a pure function, evaluated when needed and never stored: workers ask for positions in any order, from several
/// threads. An index may occur more than once, or not at all.
///
/// For a random order, draw from [`SampleRng::for_sampler`](crate::SampleRng::for_sampler) (its example draws by
/// weight), whose numbers no sample gets. With [`SampleRng::for_sample`](crate::SampleRng::for_sample) and the loader's seed, the
/// same numbers would choose a sample and then augment it.
///
/// A `Box` or an `Arc` of a sampler is a sampler too: use `Box<dyn Sampler>` to choose the order at run time.
///
/// # Examples
///
/// ```
/// use pinfeed::DataLoader;
/// use pinfeed::sampler::Sampler;
///
/// /// Every other sample.
/// struct Evens(u64);
///
/// impl Sampler for Evens {
///     fn len(&self) -> u64 {
///         self.0.div_ceil(2)
///     }
///
///     fn index(&self, _epoch: u64, position: u64) -> u64 {
///         2 * position
///     }
/// }
///
/// let loader = DataLoader::builder(vec![10i64, 11, 12, 13, 14]).sampler(Evens(5)).batch_size(8).build()?;
/// let batch = loader.epoch(0).next().unwrap()?;
/// assert_eq!(batch.as_slice(), [10, 12, 14]);
/// # Ok::<(), pinfeed::Error>(())
/// ```
pub trait Sampler: Send + Sync + 'static {
    /// The number of positions in an epoch.
    fn len(&self) -> u64;

    /// Whether an epoch has no positions.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The index of the sample at `position`, which is below [`len`](Sampler::len). (The loader asks for no other
    /// position; the crate's own samplers panic if they have no index for it.)
    fn index(&self, epoch: u64, position: u64) -> u64;

    /// Writes the indices for as many positions as `indices` has places, from `start` on. Workers call this. It must
    /// agree with [`index`](Sampler::index), as the default does.
    fn indices(&self, epoch: u64, start: u64, indices: &mut [u64]) {
        for (index, position) in indices.iter_mut().zip(start..) {
            *index = self.index(epoch, position);
        }
    }

    /// Takes the loader's seed, which [`Builder::build`](crate::loader::Builder::build) gives once, before it asks for an index. Default:
    /// does nothing, which is right for an order without random numbers, and for one with a seed of its own.
    ///
    /// A sampler that is made of others passes the seed on. A sampler in an `Arc` that something else holds, too, is not told: give it its
    /// seed when it is made.
    fn set_seed(&mut self, seed: u64) {
        let _ = seed;
    }

    /// A fingerprint of the order, by which [`DataLoader::resume`](crate::DataLoader::resume) tells another one. Default: of the
    /// number of positions, and of 32 indices of epoch 0 and as many of epoch 1.
    fn fingerprint(&self) -> u32 {
        let mut print = Fingerprint::new();
        print.add_number(self.len());
        for epoch in 0..2 {
            spread(self.len(), 32)
                .for_each(|position| print.add_number(self.index(epoch, position)));
        }
        print.finish()
    }

    /// How many *tracks* the order has, if it is made of them: position `p` is one of track `p mod tracks`, and the positions of a track
    /// read blocks one after the other. Default: `None`.
    ///
    /// The loader then deals positions out so that tracks stay with their ranks
    /// ([`Sharding::Interleaved`](crate::loader::Sharding::Interleaved)), unless the program says otherwise. See [`BlockSampler`].
    fn tracks(&self) -> Option<NonZeroU64> {
        None
    }

    /// Which parts of which blocks a lane needs at the positions from `from` on, in the order in which it begins to. Default: `None`, for
    /// an order that knows no blocks.
    ///
    /// A *lane* has the positions `p` with `p mod lanes = lane`: `lane` is below `lanes`. A data set that reads whole blocks is told this
    /// when an epoch begins, or is resumed, so it must agree with [`index`](Sampler::index).
    fn openings(&self, epoch: u64, from: u64, lane: u64, lanes: u64) -> Option<Openings> {
        let _ = (epoch, from, lane, lanes);
        None
    }

    /// The index of a sample that takes the place of the one at `position`, which failed to load
    /// ([`OnError::Replace`](crate::loader::OnError::Replace)): `attempt` counts from 1. Default: `None`, and the loader draws from the
    /// whole epoch.
    ///
    /// An order in which not all samples are equally near names one that is: of a block that is open anyway.
    fn instead(&self, epoch: u64, position: u64, attempt: u32) -> Option<u64> {
        let _ = (epoch, position, attempt);
        None
    }
}

/// A list of indices, the same in each epoch.
impl Sampler for Vec<u64> {
    fn len(&self) -> u64 {
        self.as_slice().len() as u64
    }

    fn index(&self, _epoch: u64, position: u64) -> u64 {
        self[position as usize]
    }
}

/// Forwards all methods to the sampler inside.
macro_rules! forwarded {
    ($($holder:ident, |$held:ident| $inner:expr;)*) => {$(
        impl<S: Sampler + ?Sized> Sampler for $holder<S> {
            fn len(&self) -> u64 {
                (**self).len()
            }

            fn is_empty(&self) -> bool {
                (**self).is_empty()
            }

            fn index(&self, epoch: u64, position: u64) -> u64 {
                (**self).index(epoch, position)
            }

            fn indices(&self, epoch: u64, start: u64, indices: &mut [u64]) {
                (**self).indices(epoch, start, indices);
            }

            fn set_seed(&mut self, seed: u64) {
                let $held = self;
                if let Some(sampler) = $inner {
                    sampler.set_seed(seed);
                }
            }

            fn fingerprint(&self) -> u32 {
                (**self).fingerprint()
            }

            fn tracks(&self) -> Option<NonZeroU64> {
                (**self).tracks()
            }

            fn openings(&self, epoch: u64, from: u64, lane: u64, lanes: u64) -> Option<Openings> {
                (**self).openings(epoch, from, lane, lanes)
            }

            fn instead(&self, epoch: u64, position: u64, attempt: u32) -> Option<u64> {
                (**self).instead(epoch, position, attempt)
            }
        }
    )*};
}

forwarded! {
    Box, |held| Some(&mut **held);
    Arc, |held| Arc::get_mut(held);
}

impl fmt::Debug for dyn Sampler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sampler")
            .field("len", &self.len())
            .finish_non_exhaustive()
    }
}

/// The positions from `start` on, for as many indices; panics unless all are below `len`.
fn positions(start: u64, indices: &[u64], len: u64) -> Range<u64> {
    match start.checked_add(indices.len() as u64) {
        Some(end) if end <= len => start..end,
        _ => panic!("positions {start} and on are not all below {len}"),
    }
}
