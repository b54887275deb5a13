//! Collating: how samples become a batch, by several workers at once.
//!
//! An open batch is a [`Table`]. Workers [`load`](Table::load) samples into it; at some point it says how large a slab
//! it needs ([`Request`]), which is granted now or later; samples that come before are *parked*. Whoever brought the
//! last sample, once the slab is there, [`finish`](Table::finish)es it.
//!
//! A batch that one thread makes from end to end needs no table: [`Collate::make`].

use super::Batch;
use crate::device::Slab;
use crate::error::{BoxError, CollateError, panic_message};
use crate::sync::{Arc, AtomicBool, AtomicUsize, Ordering};
use crate::tensor::Backend;

/// Makes batches out of samples: [`Stack`](crate::collate::Stack), or a function ([`CollateFn`](crate::collate::CollateFn)). It cannot be implemented elsewhere.
///
/// # Examples
///
/// A function that makes loaders, of any samples that can be stacked:
///
/// ```
/// use pinfeed::collate::{Collate, Stack};
/// use pinfeed::{Batch, DataLoader, Dataset, Result};
///
/// fn validation<D: Dataset, B: Batch>(data: D) -> Result<DataLoader<B>>
/// where
///     Stack: Collate<D::Sample, Batch = B>,
/// {
///     DataLoader::builder(data).batch_size(64).num_workers(2).build()
/// }
///
/// let loader = validation(vec![(1.0f32, 1i64); 100])?;
/// assert_eq!(loader.len(), 2);
/// # Ok::<(), pinfeed::Error>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "samples of type `{S}` cannot be collated into a batch",
    label = "these samples cannot be stacked",
    note = "numbers, bool, arrays and Vec of these, Tensor, String, tuples of these, and structs with #[derive(pinfeed::Sample)] can",
    note = "instead of an Option, take the value and a bool; of a Vec of Vecs, a Tensor, or pinfeed::Ragged where lengths differ",
    note = "wrap a value in pinfeed::Host(..) to keep it on the host, or give the builder a collate_fn"
)]
pub trait Collate<S>: Send + Sync + 'static + sealed::Sealed {
    /// What comes out.
    type Batch: Batch;
    /// A batch that is being collated.
    #[doc(hidden)]
    type Table: Table<S, Self::Batch>;
    /// Whether a batch is nothing but its samples' rows, so that parts of it can be made, and travel, each by itself.
    #[doc(hidden)]
    const IN_PARTS: bool = false;

    /// Opens a batch.
    #[doc(hidden)]
    fn open(&self, opening: Opening<'_>) -> Self::Table;

    /// Makes a batch on this thread: `next` loads the sample of a row, row after row, and `slab` gives memory.
    #[doc(hidden)]
    fn make<E>(
        &self,
        rows: usize,
        next: impl FnMut(usize) -> Result<S, E>,
        slab: impl FnOnce(usize) -> Option<Slab>,
    ) -> Result<Self::Batch, Unmade<E>>;
}

/// Why a batch was not made.
#[doc(hidden)]
#[derive(Debug)]
pub enum Unmade<E> {
    /// A sample was not loaded.
    Sample(E),
    Failed(Failure),
    /// What was done with all of the samples panicked.
    Panicked(String),
    /// There is no slab of so many bytes.
    NoMemory(usize),
}

impl<E> Unmade<E> {
    /// Runs what is done with all of the samples.
    pub(super) fn guard<R>(f: impl FnOnce() -> R) -> Result<R, Unmade<E>> {
        // Unwind safety: what a panic leaves behind is only ever dropped, for the batch has failed.
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(f));
        result.map_err(|payload| Unmade::Panicked(panic_message(payload)))
    }
}

/// What a batch is to be.
#[derive(Debug)]
pub struct Opening<'a> {
    pub(crate) rows: usize,
    /// The devices that gather the rows that they can reach.
    pub(crate) gathered_by: Option<Backend>,
    pub(crate) learned: &'a Arc<Learned>,
}

/// What a loader's batches said of all of its samples: hints for epochs to come, and so relaxed.
#[derive(Debug, Default)]
pub(crate) struct Learned {
    gatherable: AtomicBool,
    sample_bytes: AtomicUsize,
}

impl Learned {
    /// There are rows that some device could gather.
    pub(crate) fn gatherable(&self) {
        self.gatherable.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_gatherable(&self) -> bool {
        self.gatherable.load(Ordering::Relaxed)
    }

    /// A sample takes so many bytes of its slab.
    pub(crate) fn sample_takes(&self, bytes: usize) {
        self.sample_bytes.store(bytes, Ordering::Relaxed);
    }

    pub(crate) fn sample_bytes(&self) -> Option<usize> {
        Some(self.sample_bytes.load(Ordering::Relaxed)).filter(|bytes| *bytes > 0)
    }
}

pub(super) mod sealed {
    pub trait Sealed {}
}

/// What a table needs next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Request {
    /// Nothing, or nothing that was not asked for before.
    Nothing,
    /// A slab of so many bytes.
    Slab { bytes: usize },
}

/// What so many values of one type take in bytes, if that is more than the process may use.
pub(super) fn excess_bytes<T>(count: usize) -> Option<usize> {
    if size_of::<T>() == 0 {
        return None;
    }
    let bytes = count.saturating_mul(size_of::<T>());
    (bytes > crate::system::usable_memory_bytes()).then_some(bytes)
}

/// Why a batch could not be collated.
#[derive(Debug)]
pub enum Failure {
    /// What is kept of its samples does not fit into what the process may use.
    NoMemory { bytes: usize },
    /// A sample, by its row, and the row that the layout was planned from.
    Row {
        row: usize,
        planned_from: Option<usize>,
        error: CollateError,
    },
    /// A sample's `fill` panicked with this message.
    Panicked { row: usize, message: String },
    /// The collate function.
    Function(BoxError),
}

/// An open batch.
#[doc(hidden)]
pub trait Table<S, B>: Send + Sync {
    /// What one worker gathers over a run of samples.
    type Run: Default;

    /// Takes one sample.
    fn load(&self, row: usize, sample: S, run: &mut Self::Run) -> Result<Request, Failure>;

    /// Ends a worker's run of samples.
    fn end_run(&self, run: Self::Run);

    /// What the table needs once all samples are loaded, if it did not say before.
    fn loaded(&self) -> Result<Request, Failure>;

    /// Gives the table the slab that it asked for.
    fn grant(&self, slab: Slab);

    /// Fills what was parked, and makes the batch. All samples were loaded and the slab was granted.
    fn finish(&mut self) -> Result<B, Failure>;
}
