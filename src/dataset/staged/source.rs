//! What a program implements: how its samples are fetched and decoded.

#[cfg(doc)]
use super::Staged;
#[cfg(doc)]
use crate::dataset::Dataset;
use crate::error::BoxError;
use crate::fingerprint::{Fingerprint, spread};
use crate::rng::SampleRng;

/// A source of samples that has two steps: to *fetch* what is stored, which waits for a network or a disk, and to *decode* it, which
/// computes. [`Staged`] makes a data set of it, with many requests in flight and few workers.
///
/// `fetch` blocks a thread. For a client that is asynchronous, there is `AsyncStagedDataset`, with the feature `tokio`.
///
/// # Examples
///
/// ```
/// use pinfeed::dataset::{Staged, StagedDataset};
/// use pinfeed::{BoxError, DataLoader, SampleRng};
///
/// /// Stands for objects in a store far away.
/// struct Store;
///
/// impl StagedDataset for Store {
///     type Raw = Vec<u8>;
///     type Sample = (f32, i64);
///
///     fn len(&self) -> u64 {
///         200
///     }
///
///     fn fetch(&self, index: u64) -> Result<Vec<u8>, BoxError> {
///         std::thread::sleep(std::time::Duration::from_millis(5));
///         Ok(vec![index as u8; 1000])
///     }
///
///     fn decode(&self, index: u64, raw: Vec<u8>, rng: &mut SampleRng) -> Result<(f32, i64), BoxError> {
///         Ok((f32::from(raw[0]) + rng.f32(), index as i64))
///     }
///
///     fn raw_bytes(&self, raw: &Vec<u8>) -> usize {
///         raw.len()
///     }
/// }
///
/// let data = Staged::new(Store).with_in_flight(50); // 50 requests wait at a time, for two workers
/// let loader = DataLoader::builder(data).batch_size(20).shuffle(true).num_workers(2).build()?;
/// for batch in loader.epoch(0) {
///     let (values, indices) = batch?;
///     assert_eq!(values.len(), indices.len());
/// }
/// # Ok::<(), pinfeed::Error>(())
/// ```
pub trait StagedDataset: Send + Sync + 'static {
    /// What a request brings.
    type Raw: Send + 'static;
    /// What is made of it.
    type Sample: Send + 'static;

    /// The number of samples.
    fn len(&self) -> u64;

    /// Whether there are no samples.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Fetches what is stored of the sample at `index`. It runs on a thread of [`Staged`]'s, and may wait.
    ///
    /// Give it a time limit of its own, as clients of servers have: it cannot be interrupted.
    ///
    /// # Errors
    ///
    /// Any error: it is that of the sample, at its place in the order. One that is [`Temporary`](crate::error::Temporary) is tried again
    /// with [`retry`](crate::loader::Builder::retry). A panic is caught, and reported as the sample's.
    fn fetch(&self, index: u64) -> Result<Self::Raw, BoxError>;

    /// Makes the sample, on a worker. Draw random augmentation from `rng`, as in [`Dataset::get`].
    ///
    /// # Errors
    ///
    /// As [`Dataset::get`].
    fn decode(
        &self,
        index: u64,
        raw: Self::Raw,
        rng: &mut SampleRng,
    ) -> Result<Self::Sample, BoxError>;

    /// How much memory that has, in bytes: it counts in [`with_max_bytes`](Staged::with_max_bytes) until it is decoded.
    fn raw_bytes(&self, raw: &Self::Raw) -> usize;

    /// As [`Dataset::describe`].
    fn describe(&self, index: u64) -> Option<String> {
        let _ = index;
        None
    }

    /// As [`Dataset::sample_bytes`].
    fn sample_bytes(&self) -> Option<usize> {
        None
    }

    /// As [`Dataset::fingerprint`].
    fn fingerprint(&self) -> u32 {
        fingerprint(self.len(), |index| self.describe(index))
    }
}

/// A [`StagedDataset`] whose requests are futures: [`Staged::on_runtime`] makes a data set of it. (With the feature `tokio`.)
///
/// # Examples
///
/// ```
/// use std::time::Duration;
///
/// use pinfeed::dataset::{AsyncStagedDataset, Staged};
/// use pinfeed::{BoxError, DataLoader, SampleRng};
///
/// /// Stands for a client of an object store.
/// struct Store;
///
/// impl AsyncStagedDataset for Store {
///     type Raw = Vec<u8>;
///     type Sample = i64;
///
///     fn len(&self) -> u64 {
///         200
///     }
///
///     async fn fetch(&self, index: u64) -> Result<Vec<u8>, BoxError> {
///         tokio::task::yield_now().await;
///         Ok(index.to_le_bytes().to_vec())
///     }
///
///     fn decode(&self, _: u64, raw: Vec<u8>, _: &mut SampleRng) -> Result<i64, BoxError> {
///         Ok(i64::from_le_bytes(raw.as_slice().try_into()?))
///     }
///
///     fn raw_bytes(&self, raw: &Vec<u8>) -> usize {
///         raw.len()
///     }
/// }
///
/// let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build()?;
/// let data = Staged::on_runtime(Store, runtime.handle().clone()).with_in_flight(100);
/// let loader = DataLoader::builder(data).batch_size(50).num_workers(2).build()?;
/// let batch = loader.epoch(0).next().unwrap()?;
/// assert_eq!(batch.as_slice()[..3], [0, 1, 2]);
/// # Ok::<(), pinfeed::BoxError>(())
/// ```
#[cfg(feature = "tokio")]
pub trait AsyncStagedDataset: Send + Sync + 'static {
    /// What a request brings.
    type Raw: Send + 'static;
    /// What is made of it.
    type Sample: Send + 'static;

    /// The number of samples.
    fn len(&self) -> u64;

    /// Whether there are no samples.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Fetches what is stored of the sample at `index`. It is a task of the program's runtime, dropped at an `await` when the sample is no
    /// longer needed. Implement it as `async fn`.
    ///
    /// # Errors
    ///
    /// As [`StagedDataset::fetch`].
    fn fetch(&self, index: u64) -> impl Future<Output = Result<Self::Raw, BoxError>> + Send;

    /// As [`StagedDataset::decode`].
    ///
    /// # Errors
    ///
    /// As [`Dataset::get`].
    fn decode(
        &self,
        index: u64,
        raw: Self::Raw,
        rng: &mut SampleRng,
    ) -> Result<Self::Sample, BoxError>;

    /// As [`StagedDataset::raw_bytes`].
    fn raw_bytes(&self, raw: &Self::Raw) -> usize;

    /// As [`Dataset::describe`].
    fn describe(&self, index: u64) -> Option<String> {
        let _ = index;
        None
    }

    /// As [`Dataset::sample_bytes`].
    fn sample_bytes(&self) -> Option<usize> {
        None
    }

    /// As [`Dataset::fingerprint`].
    fn fingerprint(&self) -> u32 {
        fingerprint(self.len(), |index| self.describe(index))
    }
}

/// As the default of [`Dataset::fingerprint`].
fn fingerprint(len: u64, describe: impl Fn(u64) -> Option<String>) -> u32 {
    let mut print = Fingerprint::new();
    print.add_number(len);
    for index in spread(len, 16) {
        print.add(describe(index).unwrap_or_default().as_bytes());
    }
    print.finish()
}
