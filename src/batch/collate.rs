//! Collating: how samples become a batch, by several workers at once or by one.
//!
//! A batch being made is a `Table`. Its workers hand samples to [`load`](Table::load), which fills each sample's row,
//! or parks the sample if the batch has no slab yet. A table [plans](Table::plan) its layout from the first sample, or
//! from all of them; then it asks for a slab, which is granted at once or later. Once the slab is there, parked samples
//! are [handed out](Table::unpark) and loaded again. When every row is filled, [`finish`](Table::finish) makes the
//! batch.

use super::Batch;
use crate::device::Piece;
use crate::error::{BoxError, CollateError};
use crate::tensor::{Column, Offload};

/// Makes batches from samples: [`Stack`](crate::collate::Stack), or a function
/// ([`CollateFn`](crate::collate::CollateFn)). The trait is sealed.
///
/// # Examples
///
/// A function that makes a loader for any samples that can be stacked:
///
/// ```
/// use pinfeed::collate::{Collate, Stack};
/// use pinfeed::{Batch, DataLoader, Dataset, Result, from_fn};
///
/// fn validation<D: Dataset, B: Batch>(data: D) -> Result<DataLoader<B>>
/// where
///     Stack: Collate<D::Sample, Batch = B>,
/// {
///     DataLoader::builder(data).batch_size(64).num_workers(2).build()
/// }
///
/// let loader = validation(from_fn(100, |_, _| Ok((1.0f32, 1i64))))?;
/// assert_eq!(loader.len(), 2);
/// # Ok::<(), pinfeed::Error>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "samples of type `{S}` cannot be collated into a batch",
    label = "these samples cannot be stacked",
    note = "numbers, bool, arrays and Vec of these, Tensor, Option of these, String, tuples, and structs with #[derive(pinfeed::Sample)] can",
    note = "instead of a Vec of Vecs, take a Tensor, or where lengths differ pinfeed::Padded or pinfeed::Ragged",
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

    /// Whether every tensor of a batch has a row for each of its samples, and nothing else.
    #[doc(hidden)]
    const IS_DENSE: bool = false;

    /// Whether all of a batch's tensors lie in the slab that its table is granted.
    #[doc(hidden)]
    const IN_PLACE: bool;

    /// Starts a batch.
    #[doc(hidden)]
    fn open(&self, opening: Opening) -> Self::Table;
}

/// The parameters of a batch.
#[derive(Debug)]
pub struct Opening {
    pub(crate) rows: usize,
    /// What is left to the device.
    pub(crate) offload: Offload,
}

/// What a batch needs, as its layout says.
#[doc(hidden)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Needs {
    /// The size of its slab.
    pub(crate) bytes: usize,
    /// The size of each sample in it; 0 if samples differ.
    pub(crate) sample_bytes: usize,
    /// A device could gather some rows from where they lie.
    pub(crate) is_gatherable: bool,
    /// A device could decode some rows.
    pub(crate) has_pictures: bool,
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
    /// what the batch needs, calls `ask` with that. `ask` may grant the slab before it returns; it returns `false` if
    /// there is no such memory. `took` is correct even after an error or a panic.
    fn load<E>(
        &self,
        next: impl FnMut() -> Option<Result<(usize, S), E>>,
        run: &mut Self::Run,
        took: &mut Took,
        ask: &dyn Fn(Needs) -> bool,
    ) -> Result<(), NotLoaded<E>>;

    /// Whether [`copy_rows`](Table::copy_rows) may succeed: there is a slab.
    fn takes_rows(&self) -> bool {
        false
    }

    /// Copies a table's rows, instead of loading as many samples that would be views of them, into the rows from `first` on. `false`:
    /// it cannot, for there is no slab yet, or the batch has other fields.
    fn copy_rows(
        &self,
        first: usize,
        columns: &[Column],
        indices: &[u64],
        run: &mut Self::Run,
    ) -> bool {
        let _ = (first, columns, indices, run);
        false
    }

    /// Ends a worker's run of samples.
    fn end_run(&self, run: Self::Run);

    /// Whether any sample fits any row. If not, the layout was made from just these samples.
    fn takes_any(&self) -> bool;

    /// Hands out up to `most` parked samples, with their rows.
    fn unpark(&self, most: usize) -> Vec<(usize, S)>;

    /// What the batch needs, for a layout that no single sample determines. All samples have been loaded, and only one
    /// thread calls this.
    fn plan(&self) -> Result<Needs, Failure>;

    /// Gives the table the slab it asked for, or its piece of one.
    fn grant(&self, piece: Piece);

    /// Makes the batch. Every row must be filled.
    fn finish(&mut self) -> Result<B, Failure>;
}
