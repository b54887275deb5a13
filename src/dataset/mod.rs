//! Sources of samples: [`Dataset`], and ready-made ones.
//!
//! A data set knows how many samples it has and how to get one by its index. It knows nothing about batches, orders,
//! workers or devices.

mod adapters;
mod tensors;

pub use adapters::{Described, FromFn, Map, from_fn};
pub use tensors::{TensorDataset, TensorRows};

use std::path::Path;

pub use crate::fingerprint::Fingerprint;

use crate::error::BoxError;
use crate::fingerprint::spread;
use crate::rng::SampleRng;
use crate::sync::Arc;
use crate::system;

/// A source of samples. Several threads get samples at once, by index.
///
/// [`from_fn`] makes one from a function; [`Dataset::map`] changes the samples of another. A `Vec` of cloneable samples
/// is a data set, and so is a `Box` or an `Arc` of a data set: use `Box<dyn Dataset<Sample = S>>` to choose one at run
/// time.
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
    /// The type of a sample. Stacking it into batches needs [`Sample`](crate::Sample); a `collate_fn` takes anything.
    type Sample: Send + 'static;

    /// The number of samples.
    fn len(&self) -> u64;

    /// Whether there are no samples.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Gets the sample at `index`, which is below [`len`](Dataset::len). Draw random augmentation from `rng`: it is
    /// keyed by seed, epoch and the sample's position in the epoch, so its numbers do not depend on the number of
    /// workers.
    ///
    /// # Errors
    ///
    /// Any error. The loader reports it in place of the sample's batch, with the index and
    /// [`describe`](Dataset::describe). A panic is caught and reported the same way.
    fn get(&self, index: u64, rng: &mut SampleRng) -> Result<Self::Sample, BoxError>;

    /// How errors should describe the sample: by its path, for example. (It may be called while a `get` hangs, and should not wait for
    /// what that holds. If it does, the error is without a description.)
    fn describe(&self, index: u64) -> Option<String> {
        let _ = index;
        None
    }

    /// How many samples ahead [`will_need`](Dataset::will_need) is told what comes next. Default: 0, never.
    fn lookahead(&self) -> usize {
        0
    }

    /// Told that the samples at `indices` will be needed soon, so that a data set on a slow disk can start reading
    /// them.
    ///
    /// Before a worker gets a sample, it calls this with the index [`lookahead`](Dataset::lookahead) positions later in
    /// the epoch's order; before it gets several samples, with as many indices. It is a hint: `get` may be called for a
    /// sample that was not announced (the first ones of an epoch are not), and may never be called for one that was. So
    /// it cannot fail. The worker loads nothing until it returns, so start work that continues without the worker. A
    /// panic is reported as that of the sample that the worker gets next.
    fn will_need(&self, indices: &[u64]) {
        let _ = indices;
    }

    /// Whether samples lie in registered memory, as far as the data set knows. If so, the epoch's destination decides
    /// whether the host or the device copies them, and loading waits until it is known.
    #[doc(hidden)]
    fn is_registered(&self) -> bool {
        false
    }

    /// The size of one sample in its batch, in bytes, if the data set knows it and all samples have the same. Default:
    /// `None`.
    ///
    /// With this hint, even the first epoch that goes to a device is sent in parts, as later ones are. Without it, the
    /// first epoch discovers the size.
    fn sample_bytes(&self) -> Option<usize> {
        None
    }

    /// A fingerprint of the data set, by which [`DataLoader::resume`](crate::DataLoader::resume) tells another one. Default: of the
    /// number of samples, and of what [`describe`](Dataset::describe) says about sixteen of them.
    ///
    /// It must be the same in the next run. [`Fingerprint`] makes one.
    fn fingerprint(&self) -> u32 {
        let mut print = Fingerprint::new();
        print.add_number(self.len());
        for index in spread(self.len(), 16) {
            print.add(self.describe(index).unwrap_or_default().as_bytes());
        }
        print.finish()
    }

    /// Changes each sample with `f`, on the worker that loads it.
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
/// It is a hint, so it reports no errors: `get` will. Linux only; elsewhere it does nothing.
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

/// Forwards all methods to the data set inside.
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

            fn fingerprint(&self) -> u32 {
                (**self).fingerprint()
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
