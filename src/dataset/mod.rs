//! Sources of samples: [`Dataset`], and the ones that are ready-made.
//!
//! A data set knows how many samples it has and how to get one by its index. It knows nothing of batches, orders,
//! workers or devices.

mod adapters;
mod tensors;

pub use adapters::{Described, FromFn, Map, from_fn};
pub use tensors::{TensorDataset, TensorRows};

use std::path::Path;

use crate::error::BoxError;
use crate::rng::SampleRng;
use crate::sync::Arc;
use crate::system;

/// A source of samples that are got by their index, from several threads at once.
///
/// [`from_fn`] makes one from a function, [`Dataset::map`] changes the samples of another. `Vec`s of cloneable
/// samples, and `Box`es and `Arc`s of data sets are data sets too: a `Box<dyn Dataset<Sample = S>>` is one that was chosen when
/// the program ran.
///
/// # Examples
///
/// ```
/// use pinfeed::{BoxError, Dataset, SampleRng};
///
/// struct Squares;
///
/// impl Dataset for Squares {
///     type Sample = (i64, f32);
///
///     fn len(&self) -> u64 {
///         1_000
///     }
///
///     fn get(&self, index: u64, _rng: &mut SampleRng) -> Result<(i64, f32), BoxError> {
///         Ok((index as i64, (index * index) as f32))
///     }
/// }
///
/// let noisy = Squares.map(|(x, square), rng| Ok((x, square + rng.f32())));
/// # assert_eq!(noisy.len(), 1_000);
/// ```
pub trait Dataset: Send + Sync + 'static {
    /// What one index gives. Stacking them into batches needs [`Sample`](crate::Sample); a `collate_fn` takes anything.
    type Sample: Send + 'static;

    /// The number of samples.
    fn len(&self) -> u64;

    /// Whether there are no samples.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Gets the sample at `index`, below [`len`](Dataset::len). Random augmentation draws from `rng`, which is keyed by
    /// seed, epoch and the sample's place in the epoch: it gives the same numbers whatever the number of workers.
    ///
    /// # Errors
    ///
    /// Any error: the loader reports it with the sample's index and [`describe`](Dataset::describe), in the place of
    /// the sample's batch. A panic is caught and reported alike.
    fn get(&self, index: u64, rng: &mut SampleRng) -> Result<Self::Sample, BoxError>;

    /// What an error should say of the sample: its path, say.
    fn describe(&self, index: u64) -> Option<String> {
        let _ = index;
        None
    }

    /// How many samples ahead [`will_need`](Dataset::will_need) wants to be told what comes. Default: 0, not at all.
    fn lookahead(&self) -> usize {
        0
    }

    /// Hears that the samples at `indices` will be got soon, so that a data set on a slow disk can have them read meanwhile.
    ///
    /// A worker calls it before it gets a sample, with the one that stands [`lookahead`](Dataset::lookahead) places behind
    /// in the epoch's order, or before several, with as many. It is a hint: `get` may be called for a sample that was not
    /// announced (the first ones of an epoch are not), and may not be called for one that was. So it cannot fail, and what
    /// it starts must go on without the worker, which loads nothing until it returns. A panic is reported as that of the
    /// sample that the worker gets next.
    fn will_need(&self, indices: &[u64]) {
        let _ = indices;
    }

    /// Whether samples lie in registered memory, as far as the data set knows: where an epoch's destination decides who
    /// copies them, loading waits until it is known.
    #[doc(hidden)]
    fn is_registered(&self) -> bool {
        false
    }

    /// How many bytes of its batch each sample takes, if the data set knows and they are alike. Default: `None`.
    ///
    /// With this hint, the first epoch that goes to a device is sent in parts, as later ones are. Without it, the first
    /// epoch finds the size out.
    fn sample_bytes(&self) -> Option<usize> {
        None
    }

    /// Changes each sample by `f`, on the worker that loads it.
    fn map<S, F>(self, f: F) -> Map<Self, F>
    where
        Self: Sized,
        S: Send + 'static,
        F: Fn(Self::Sample, &mut SampleRng) -> Result<S, BoxError> + Send + Sync + 'static,
    {
        Map::new(self, f)
    }
}

/// Asks the system to read a file into its cache, without waiting for it. A data set of files calls it in
/// [`Dataset::will_need`].
///
/// This is a hint, so it reports no errors: `get` will. Linux only; elsewhere it does nothing.
///
/// # Examples
///
/// ```
/// use std::path::PathBuf;
///
/// use pinfeed::dataset::read_ahead;
/// use pinfeed::{BoxError, Dataset, SampleRng};
///
/// struct Files(Vec<PathBuf>);
///
/// impl Dataset for Files {
///     type Sample = Vec<u8>;
///
///     fn len(&self) -> u64 {
///         self.0.len() as u64
///     }
///
///     fn get(&self, index: u64, _rng: &mut SampleRng) -> Result<Vec<u8>, BoxError> {
///         Ok(std::fs::read(&self.0[index as usize])?)
///     }
///
///     fn lookahead(&self) -> usize {
///         64
///     }
///
///     fn will_need(&self, indices: &[u64]) {
///         indices.iter().for_each(|&index| read_ahead(&self.0[index as usize]));
///     }
/// }
/// # Files(vec!["nowhere".into()]).will_need(&[0]);
/// ```
pub fn read_ahead(path: impl AsRef<Path>) {
    system::read_ahead(path.as_ref());
}

/// To all methods, for whatever holds a data set.
macro_rules! forwarded {
    ($($holder:ident),*) => {$(
        impl<D: Dataset + ?Sized> Dataset for $holder<D> {
            type Sample = D::Sample;

            fn len(&self) -> u64 {
                (**self).len()
            }

            fn is_empty(&self) -> bool {
                (**self).is_empty()
            }

            fn get(&self, index: u64, rng: &mut SampleRng) -> Result<D::Sample, BoxError> {
                (**self).get(index, rng)
            }

            fn describe(&self, index: u64) -> Option<String> {
                (**self).describe(index)
            }

            fn lookahead(&self) -> usize {
                (**self).lookahead()
            }

            fn will_need(&self, indices: &[u64]) {
                (**self).will_need(indices);
            }

            fn is_registered(&self) -> bool {
                (**self).is_registered()
            }

            fn sample_bytes(&self) -> Option<usize> {
                (**self).sample_bytes()
            }
        }
    )*};
}

forwarded!(Box, Arc);

impl<S: Clone + Send + Sync + 'static> Dataset for Vec<S> {
    type Sample = S;

    fn len(&self) -> u64 {
        self.as_slice().len() as u64
    }

    fn get(&self, index: u64, _: &mut SampleRng) -> Result<S, BoxError> {
        Ok(self[index as usize].clone())
    }
}
