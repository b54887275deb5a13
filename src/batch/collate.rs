//! Collating: how samples become a batch, by several workers at once or by one.
//!
//! A batch being made is a `Table`. Its workers hand samples to [`load`](Table::load), which fills each sample's row,
//! or parks the sample if the batch has no slab yet. A table [plans](Table::plan) its layout from the first sample, or
//! from all of them; then it asks for a slab, which is granted at once or later. Once the slab is there, parked samples
//! are [handed out](Table::unpark) and loaded again. When every row is filled, [`finish`](Table::finish) makes the
//! batch.

use super::Batch;
use crate::device::Slab;
use crate::error::{BoxError, CollateError};
use crate::sync::{Arc, AtomicBool, AtomicUsize, Ordering};
use crate::tensor::Backend;

/// Makes batches from samples: [`Stack`](crate::collate::Stack), or a function
/// ([`CollateFn`](crate::collate::CollateFn)). The trait is sealed.
///
/// # Examples
///
/// A function that makes a loader for any samples that can be stacked:
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
    /// The batches it makes.
    type Batch: Batch;
    /// A batch that is being collated.
    #[doc(hidden)]
    type Table: Table<S, Self::Batch>;
    /// Whether a batch is nothing but its samples' rows, so that it can be made and sent in independent parts.
    #[doc(hidden)]
    const IN_PARTS: bool = false;

    /// Whether all of a batch's tensors lie in the slab that its table is granted.
    #[doc(hidden)]
    const IN_PLACE: bool;

    /// Starts a batch.
    #[doc(hidden)]
    fn open(&self, opening: Opening<'_>) -> Self::Table;
}

/// The parameters of a batch.
#[derive(Debug)]
pub struct Opening<'a> {
    pub(crate) rows: usize,
    /// The backend whose devices gather the rows that they can reach, if any.
    pub(crate) gathered_by: Option<Backend>,
    pub(crate) hints: &'a Arc<CollateHints>,
}

/// What a loader's batches reveal about its samples: hints for later epochs, so all accesses are relaxed.
#[derive(Debug, Default)]
pub(crate) struct CollateHints {
    gatherable: AtomicBool,
    sample_bytes: AtomicUsize,
}

impl CollateHints {
    /// Notes that a device could gather some rows from where they lie.
    pub(crate) fn set_gatherable(&self) {
        if !self.is_gatherable() {
            self.gatherable.store(true, Ordering::Relaxed);
        }
    }

    pub(crate) fn is_gatherable(&self) -> bool {
        self.gatherable.load(Ordering::Relaxed)
    }

    /// Notes the size of a sample in its slab. (All workers read this. Most batches report the same size, and do not
    /// write it.)
    pub(crate) fn set_sample_bytes(&self, bytes: usize) {
        if self.sample_bytes.load(Ordering::Relaxed) != bytes {
            self.sample_bytes.store(bytes, Ordering::Relaxed);
        }
    }

    pub(crate) fn sample_bytes(&self) -> Option<usize> {
        Some(self.sample_bytes.load(Ordering::Relaxed)).filter(|bytes| *bytes > 0)
    }
}

pub(super) mod sealed {
    pub trait Sealed {}
}

/// The outcome of loading samples into a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Took {
    /// The number of rows filled.
    pub(crate) filled: usize,
    /// The number of samples parked, because the slab was missing.
    pub(crate) parked: usize,
}

/// Why samples were not loaded.
#[doc(hidden)]
#[derive(Debug)]
pub enum NotLoaded<E> {
    /// The sample itself is missing: getting it failed.
    Sample(E),
    Failed(Failure),
}

/// The size in bytes of this many values, if it exceeds the memory that the process may use.
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
    /// What is kept of the samples exceeds the memory that the process may use.
    NoMemory { bytes: usize },
    /// A sample does not fit: its row, and the row that the layout was planned from.
    Row {
        row: usize,
        planned_from: Option<usize>,
        error: CollateError,
    },
    /// The collate function failed.
    Function(BoxError),
}

/// A batch that is being collated.
#[doc(hidden)]
pub trait Table<S, B>: Send + Sync {
    /// What one worker collects over a run of samples.
    type Run: Default;

    /// Loads the samples, with their rows, that `next` returns: fills each row, or parks the sample. If a sample tells
    /// which size of slab the batch needs, calls `ask` with that size in bytes. `ask` may grant the slab before it
    /// returns; it returns `false` if there is no such memory. `took` is correct even after an error or a panic.
    fn load<E>(
        &self,
        next: impl FnMut() -> Option<Result<(usize, S), E>>,
        run: &mut Self::Run,
        took: &mut Took,
        ask: &dyn Fn(usize) -> bool,
    ) -> Result<(), NotLoaded<E>>;

    /// Ends a worker's run of samples.
    fn end_run(&self, run: Self::Run);

    /// Hands out up to `most` parked samples, with their rows.
    fn unpark(&self, most: usize) -> Vec<(usize, S)>;

    /// The size of the batch's slab in bytes, for a layout that no single sample determines. All samples have been
    /// loaded, and only one thread calls this.
    fn plan(&self) -> Result<usize, Failure>;

    /// Gives the table the slab it asked for.
    fn grant(&self, slab: Slab);

    /// Makes the batch. Every row must be filled.
    fn finish(&mut self) -> Result<B, Failure>;
}
