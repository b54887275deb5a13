//! A data set in random parts.

use super::{Dataset, Subset};
use crate::error::{Error, Result};
use crate::sampler::{RandomSampler, Sampler};
use crate::sync::Arc;

/// Splits a data set at random into parts that share it; PyTorch's `random_split`.
///
/// `sizes` are lengths (`u64`) that sum to the number of samples, or fractions (`f64`) that sum to 1. A fraction is
/// rounded down; what is left over is handed out one by one, from the first part on. A part may be empty. Each sample
/// is in one part, and the split depends on the seed and the number of samples alone. The parts' indices take 8 bytes
/// for each sample.
///
/// # Errors
///
/// [`Error::Option`] if lengths do not sum to the number of samples, if a fraction is not between 0 and 1, or if the
/// fractions' sum is off 1 by more than 10⁻⁹.
///
/// # Examples
///
/// ```
/// use pinfeed::dataset::random_split;
/// use pinfeed::{DataLoader, Dataset};
///
/// let samples: Vec<i64> = (0..103).collect();
/// let parts = random_split(samples, &[0.8, 0.1, 0.1], 17)?;
/// let lengths: Vec<u64> = parts.iter().map(|part| part.len()).collect();
/// assert_eq!(lengths, [83, 10, 10]); // 82.4, 10.3 and 10.3: rounded down, and one more for the first
///
/// let [train, val, test] = parts.try_into().unwrap();
/// let train = DataLoader::builder(train).batch_size(8).shuffle(true).build()?;
/// let val = DataLoader::builder(val).batch_size(10).build()?;
/// # let _ = test;
/// assert_eq!((train.len(), val.len()), (11, 1));
/// # Ok::<(), pinfeed::Error>(())
/// ```
pub fn random_split<D: Dataset, P: SplitSize>(
    dataset: D,
    sizes: &[P],
    seed: u64,
) -> Result<Vec<Subset<Arc<D>>>> {
    let len = dataset.len();
    let lengths = P::lengths(sizes, len).map_err(|reason| Error::option("random_split", reason))?;
    let mut order = vec![0; len as usize];
    // An epoch that no training comes to: a loader with this seed has other orders.
    RandomSampler::new(len, seed).indices(u64::MAX, 0, &mut order);
    let (dataset, mut rest) = (Arc::new(dataset), &order[..]);
    let parts = lengths.into_iter().map(|length| {
        let (part, behind) = rest.split_at(length as usize);
        rest = behind;
        Subset::new(Arc::clone(&dataset), part.iter().copied())
    });
    parts.collect()
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
