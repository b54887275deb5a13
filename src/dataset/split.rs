//! A data set in random parts.

use super::{Dataset, IntoDataset, Subset};
use crate::error::{Error, Result};
use crate::sampler::{RandomSampler, Sampler};
use crate::sync::Arc;
use crate::system::room::{NoRoom, check_room, list_of};

/// Splits a data set at random into parts that share it; PyTorch's `random_split`.
///
/// `sizes` are lengths (`u64`) that sum to the number of samples, or fractions (`f64`) that sum to 1. A fraction is
/// rounded down; what is left over is handed out one by one, from the first part on. A part may be empty. Each sample
/// is in one part, and the split depends on the seed and the number of samples alone.
///
/// Of an array of sizes, the parts are an array; of a slice or a `Vec`, they are a `Vec`. Their indices take 8 bytes for
/// each sample.
///
/// # Errors
///
/// [`Error::InvalidOption`] if lengths do not sum to the number of samples, if a fraction is not between 0 and 1, if the
/// fractions' sum is off 1 by more than 10⁻⁹, or if the indices exceed the memory that the process may use.
///
/// # Examples
///
/// ```
/// use pinfeed::dataset::random_split;
/// use pinfeed::{DataLoader, Dataset};
///
/// let samples: Vec<i64> = (0..103).collect();
/// let [train, val, test] = random_split(samples, [0.8, 0.1, 0.1], 17)?;
/// // 82.4, 10.3 and 10.3: rounded down, and one more for the first.
/// assert_eq!((train.len(), val.len(), test.len()), (83, 10, 10));
///
/// let train = DataLoader::builder(train).batch_size(8).shuffle(true).build()?;
/// let val = DataLoader::builder(val).batch_size(10).build()?;
/// assert_eq!((train.len(), val.len()), (11, 1));
/// # Ok::<(), pinfeed::Error>(())
/// ```
///
/// As many parts as the program is told:
///
/// ```
/// use pinfeed::Dataset;
/// use pinfeed::dataset::random_split;
///
/// let folds = 5;
/// let parts = random_split(vec![0u8; 100], vec![1.0 / folds as f64; folds], 17)?;
/// assert!(parts.len() == folds && parts.iter().all(|part| part.len() == 20));
/// # Ok::<(), pinfeed::Error>(())
/// ```
pub fn random_split<D: Dataset, S: SplitSizes>(
    dataset: impl IntoDataset<Dataset = D>,
    sizes: S,
    seed: u64,
) -> Result<S::Parts<Subset<Arc<D>>>> {
    let dataset = dataset.into_dataset();
    let refused = |reason| Error::option("random_split", reason);
    let len = dataset.len();
    let lengths = SplitSize::lengths(sizes.sizes(), len).map_err(refused)?;
    let no_room = |no_room: NoRoom| {
        refused(format!(
            "the indices of {len} samples take {no_room}: split the files or shards that they lie in, or take ranges, which need no list \
             (dataset::Subset)"
        ))
    };
    check_room(len, size_of::<u64>()).map_err(no_room)?; // all parts together
    let order = RandomSampler::with_seed(len, seed);
    let (dataset, mut start) = (Arc::new(dataset), 0);
    let parts = lengths.into_iter().map(|length| {
        let mut part = list_of(length, 0).map_err(no_room)?;
        // An epoch that no training comes to: a loader with this seed has other orders.
        order.indices(u64::MAX, start, &mut part);
        start += length;
        Ok(Subset::of(Arc::clone(&dataset), part))
    });
    Ok(S::parts(parts.collect::<Result<_>>()?))
}

/// The sizes of the parts in [`random_split`]: an array, a slice or a `Vec` of `u64` or of `f64`. The trait is sealed.
///
/// # Examples
///
/// In [`random_split`].
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no list of the sizes of parts",
    note = "sizes are an array, a slice or a Vec of lengths (u64) or fractions (f64)"
)]
pub trait SplitSizes: sealed::Sealed {
    /// One of them.
    type Size: SplitSize;

    /// As many parts as there are sizes.
    type Parts<T>;

    #[doc(hidden)]
    fn sizes(&self) -> &[Self::Size];

    /// Of a list of as many.
    #[doc(hidden)]
    fn parts<T>(parts: Vec<T>) -> Self::Parts<T>;
}

fn array_of<T, const N: usize>(parts: Vec<T>) -> [T; N] {
    match parts.try_into() {
        Ok(parts) => parts,
        Err(_) => unreachable!("there is a part for each size"),
    }
}

macro_rules! sizes {
    ($([$($generics:tt)*] $sizes:ty => $parts:ty, $make:expr;)*) => {$(
        impl<P: SplitSize, $($generics)*> sealed::Sealed for $sizes {}

        impl<P: SplitSize, $($generics)*> SplitSizes for $sizes {
            type Size = P;
            type Parts<T> = $parts;

            fn sizes(&self) -> &[P] {
                &self[..]
            }

            fn parts<T>(parts: Vec<T>) -> $parts {
                $make(parts)
            }
        }
    )*};
}

sizes! {
    [const N: usize] [P; N] => [T; N], array_of;
    [const N: usize] &[P; N] => [T; N], array_of;
    [] &[P] => Vec<T>, std::convert::identity;
    [] Vec<P> => Vec<T>, std::convert::identity;
    [] &Vec<P> => Vec<T>, std::convert::identity;
}

/// The size of a part in [`random_split`]: a `u64` is a number of samples, an `f64` a fraction of them. The trait is sealed.
///
/// # Examples
///
/// In [`random_split`].
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not the size of a part",
    note = "sizes are lengths (u64) or fractions (f64)"
)]
pub trait SplitSize: Copy + sealed::Sealed {
    /// The parts' lengths, or why there are none.
    #[doc(hidden)]
    fn lengths(sizes: &[Self], len: u64) -> Result<Vec<u64>, String>;
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for u64 {}
    impl Sealed for f64 {}
}

impl SplitSize for u64 {
    fn lengths(sizes: &[u64], len: u64) -> Result<Vec<u64>, String> {
        let sum: u128 = sizes.iter().map(|size| u128::from(*size)).sum();
        match sum == u128::from(len) {
            true => Ok(sizes.to_vec()),
            false => Err(format!(
                "the lengths sum to {sum}, and the data set has {len} samples"
            )),
        }
    }
}

impl SplitSize for f64 {
    fn lengths(sizes: &[f64], len: u64) -> Result<Vec<u64>, String> {
        if let Some(at) = sizes.iter().position(|size| !(0.0..=1.0).contains(size)) {
            return Err(format!(
                "fraction {at} is {}: fractions are between 0 and 1, lengths are u64",
                sizes[at]
            ));
        }
        let sum = sizes.iter().fold(0.0, |sum, size| sum + size); // (of no fractions, `sum` makes -0)
        if (sum - 1.0).abs() > 1e-9 {
            return Err(format!("the fractions sum to {sum}, not to 1"));
        }
        let mut lengths: Vec<u64> = sizes
            .iter()
            .map(|size| (len as f64 * size) as u64)
            .collect();
        let taken: u128 = lengths.iter().map(|length| u128::from(*length)).sum();
        let Some(left) = u128::from(len).checked_sub(taken) else {
            return Err(format!("the fractions sum to {sum}, which is more than 1"));
        };
        let (each, more) = (left / sizes.len() as u128, left % sizes.len() as u128);
        for (length, at) in lengths.iter_mut().zip(0u128..) {
            *length += (each + u128::from(at < more)) as u64;
        }
        Ok(lengths)
    }
}
