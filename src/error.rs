//! The error type: what went wrong, where, and what to do about it.

mod again;
mod causes;
mod display;
mod document;
mod interrupted;
mod item;
mod shapes;
mod stack;
mod temporary;

use std::fmt;

use self::display::FieldName;
use self::shapes::what_fits;
use crate::shape::{DType, Shape};

pub(crate) use again::{Again, Refused};
#[cfg(feature = "webdataset")]
pub(crate) use causes::causes;
pub use document::DocumentError;
pub use interrupted::Interrupted;
pub use item::ItemError;
pub use stack::StackMisfit;
pub use temporary::Temporary;
pub(crate) use temporary::is_temporary;

/// Any error: what data sets and collate functions return.
pub type BoxError = Box<dyn std::error::Error + Send + Sync + 'static>;

/// A result whose error is [`enum@Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What can go wrong between a data set and a device.
///
/// `{}` says where, what, and the cause; `{:#}` and `{:?}` add the rest of the chain, in one line.
/// [`source`](std::error::Error::source) begins after the cause that `{}` includes, as with [`std::io::Error`], so that
/// a report that prints the chain, such as anyhow's, repeats nothing. The cause itself is in the variant.
///
/// # Examples
///
/// A program that continues, depending on the data set's error:
///
/// ```
/// use std::io;
///
/// use pinfeed::{DataLoader, Error, from_fn};
///
/// let files = from_fn(4, |index, _| Ok(std::fs::read(format!("/nowhere/{index}.bin"))?));
/// let loader = DataLoader::builder(files).build()?;
/// for batch in &loader {
///     match batch {
///         Ok(_) => {}
///         Err(Error::Sample(sample, cause)) if cause.is::<io::Error>() => {
///         eprintln!("sample {} is left out: {cause}", sample.index);
///         }
///         Err(error) => return Err(error), // printed by `{error}` or `{error:#}`
///     }
/// }
/// # Ok::<(), pinfeed::Error>(())
/// ```
#[non_exhaustive]
pub enum Error {
    /// `build()` refused an option, or a combination of options.
    InvalidOption {
        /// The builder's method.
        option: &'static str,
        /// Why the value is invalid, and what would be valid.
        reason: String,
    },

    /// A sample failed to load.
    Sample(SampleId, BoxError),

    /// A sample's `get` panicked, or its own `plan` or `fill`; the loader continues.
    SamplePanicked(SampleId, String),

    /// The sampler panicked, so the sample at a position is unknown; the loader continues.
    SamplerPanicked {
        /// The epoch.
        epoch: u64,
        /// The batch's position in its epoch.
        batch: u64,
        /// The position in the epoch's order that the sampler was asked for.
        position: u64,
        /// The panic's message.
        message: String,
    },

    /// An iterable did not open, or did not go to where a resumed run stood; or it was [`Interrupted`] together with an iterable around it,
    /// whose items come from its loader. The epoch ends with this error.
    Iterable {
        /// The epoch.
        epoch: u64,
        /// What the source returned.
        source: BoxError,
    },

    /// An iterable panicked when it was opened, or asked for its next item. The epoch ends with this error.
    IterablePanicked {
        /// The epoch.
        epoch: u64,
        /// The batch whose items were pulled.
        batch: u64,
        /// The panic's message.
        message: String,
    },

    /// A sample took longer than the loader's [`timeout`](crate::loader::Builder::timeout), or the making of a batch of its samples
    /// did; the loader continues.
    TimedOut(Box<TimedOut>),

    /// More samples of an epoch failed to load than
    /// [`bad_share_at_most`](crate::loader::Builder::bad_share_at_most) lets [`OnError`](crate::loader::OnError) replace or leave out. The
    /// epoch ends with this error, and the run stands before the batch.
    TooManyBad {
        /// The epoch.
        epoch: u64,
        /// How many of its samples failed, up to the batch that this error stands for.
        bad: u64,
        /// How many samples there were up to there, those that failed among them.
        samples: u64,
        /// The share that may fail.
        at_most: f64,
    },

    /// The batch sampler panicked, and the epoch has one batch, which is this error; or it gave an empty list, and this is that one's
    /// batch ([`OnEmpty`](crate::loader::OnEmpty)).
    BatchSampler {
        /// The epoch.
        epoch: u64,
        /// Why its batches cannot be loaded: the panic's message, or what is wrong with them.
        reason: String,
    },

    /// A sample does not fit its batch.
    Collate(Box<Misfit>),

    /// A sample stacked by [`Arena::collate`](crate::collate::Arena::collate) or
    /// [`Arena::stack`](crate::collate::Arena::stack) does not fit the others.
    Stack(Box<StackMisfit>),

    /// The `collate_fn` returned an error.
    CollateFn {
        /// The epoch.
        epoch: u64,
        /// The batch's position in its epoch.
        batch: u64,
        /// What the function returned.
        source: BoxError,
    },

    /// The `collate_fn`, or a method of the batch, panicked; the loader continues.
    CollatePanicked {
        /// The epoch.
        epoch: u64,
        /// The batch's position in its epoch.
        batch: u64,
        /// The panic's message.
        message: String,
    },

    /// Data and shape do not match.
    Shape(ShapeError),

    /// The owner's bytes cannot hold the requested tensor.
    OwnedBytes {
        /// The element type.
        dtype: DType,
        /// The requested shape.
        shape: Shape,
        /// What is missing, or which alignment is needed.
        reason: String,
    },

    /// A file or folder could not be read.
    Io {
        /// The file or folder.
        path: std::path::PathBuf,
        /// The system's error.
        source: std::io::Error,
    },

    /// A file could not be written.
    Write {
        /// The file.
        path: std::path::PathBuf,
        /// The system's error.
        source: std::io::Error,
    },

    /// A folder or file list does not contain what a data set needs.
    DataSet {
        /// The folder or file.
        path: std::path::PathBuf,
        /// What is wrong with it, and what would be right.
        reason: String,
    },

    /// A source of samples could not be opened, for example shards of a store. It says where they are, and why.
    Source(BoxError),

    /// A loader's state that [`resume`](crate::DataLoader::resume) cannot go on from, or that is none.
    State {
        /// Why not.
        reason: String,
    },

    /// The crate was built without a feature that the call needs.
    FeatureMissing {
        /// The feature.
        feature: &'static str,
    },

    /// A device's decoder of pictures cannot be used, or failed.
    Decoder {
        /// The device.
        device: String,
        /// Why, and what to do.
        reason: String,
    },

    /// There is no CUDA driver on this machine.
    NoDriver {
        /// What the search for the driver's library found.
        detail: String,
    },

    /// The CUDA driver is older than the oldest supported one.
    DriverTooOld {
        /// The driver's version as CUDA counts it: 1000 x major + 10 x minor.
        found: i32,
        /// The oldest supported version, in the same form.
        required: i32,
    },

    /// The driver's library is the toolkit's stub, which is for linking only.
    StubDriver,

    /// The driver has no such device.
    NoDevice {
        /// The requested device.
        ordinal: usize,
        /// The number of devices that the driver sees.
        count: usize,
    },

    /// A device operation failed.
    Device {
        /// The driver's name for the operation.
        operation: &'static str,
        /// The device.
        device: String,
        /// The driver's error.
        cause: DeviceFault,
    },

    /// Live device tensors hold the device pool's budget.
    DeviceBudget {
        /// The requested size.
        requested_bytes: usize,
        /// The budget.
        budget_bytes: usize,
        /// The size that live device tensors hold.
        held_bytes: usize,
        /// How many blocks hold it: one for each live upload.
        held_blocks: usize,
        /// The size of what is adrift: [`Device::sweep`](crate::Device::sweep) makes it free.
        adrift_bytes: usize,
    },

    /// A batch cannot go to its buffer at a fixed address ([`DeviceBuffers`](crate::device::DeviceBuffers)).
    Buffers {
        /// Why not, and what to do.
        reason: String,
    },

    /// Page-locked memory was required, but not available.
    Pinned {
        /// The requested size.
        bytes: usize,
        /// Why none is available, and which setting changes that.
        reason: String,
    },

    /// A batch does not fit the memory that the process may use.
    HostMemory {
        /// The batch's size.
        bytes: usize,
    },

    /// Objects of different devices were used together.
    WrongDevice {
        /// The tensor or stream.
        what: &'static str,
        /// The device it belongs to.
        found: String,
        /// The device of the call.
        expected: String,
    },

    /// The device is too old for the library's own kernels.
    ComputeCapability {
        /// The requested operation.
        what: &'static str,
        /// The device.
        device: String,
        /// Its compute capability, as (major, minor).
        found: (i32, i32),
        /// The lowest that the kernels run on.
        required: (i32, i32),
    },

    /// A per-thread default stream was used from another thread.
    WrongThread,

    /// The tensor's memory cannot be written: a view or a transfer shares it.
    Shared {
        /// How many others share it.
        sharers: usize,
    },

    /// A batch was waited for where no thread would make it: in a process that was forked from the loader's, or on one of the loader's own
    /// threads. The epoch ends with this error.
    CannotWait {
        /// Which of them, and what to do.
        reason: String,
    },

    /// The system could not start a thread; while batches are loaded, one in the place of the last worker, which hangs.
    Thread {
        /// The thread's name.
        name: String,
        /// The system's error.
        source: std::io::Error,
    },
}

impl From<ShapeError> for Error {
    fn from(error: ShapeError) -> Error {
        Error::Shape(error)
    }
}

impl Error {
    /// Makes the error for a builder's option.
    /// Why a source could not be opened: one of these errors as it is, or another one's.
    #[cfg(feature = "webdataset")]
    pub(crate) fn of_source(error: BoxError) -> Error {
        match error.downcast::<Error>() {
            Ok(error) => *error,
            Err(other) => Error::Source(other),
        }
    }

    pub(crate) fn option(option: &'static str, reason: impl Into<String>) -> Error {
        Error::InvalidOption {
            option,
            reason: reason.into(),
        }
    }
}

/// Identifies a sample: its index, its batch, and the data set's description.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct SampleId {
    /// The index in the data set.
    pub index: u64,
    /// The sample's row in its batch.
    pub row: usize,
    /// The batch's position in its epoch.
    pub batch: u64,
    /// The epoch.
    pub epoch: u64,
    /// The data set's description of the sample, such as its path.
    pub description: Option<String>,
}

/// What took longer than the loader's [`timeout`](crate::loader::Builder::timeout).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct TimedOut {
    /// The sample; `None` where the sampler was asked for it, or all of the batch's samples were at work.
    pub sample: Option<SampleId>,
    /// How many samples were got in one call ([`Dataset::get_many`](crate::Dataset::get_many)), of which `sample` is the first; it is not
    /// known which of them hangs. Otherwise 1. They are in neighbouring rows.
    pub count: usize,
    /// The indices of the others, row by row; empty if the sampler could not be asked.
    pub others: Vec<u64>,
    /// The epoch.
    pub epoch: u64,
    /// The batch's position in its epoch.
    pub batch: u64,
    /// What was being done.
    pub stage: Stage,
    /// For how long, when the loader gave it up.
    pub elapsed: std::time::Duration,
    /// The worker's thread, or the device's decoder, which may still be at it.
    pub worker: String,
}

/// A data set has waited for a sample for as long as the loader's `timeout` lets it. It becomes a [`TimedOut`] of the sample.
#[derive(Debug, thiserror::Error)]
#[error("no answer came to its request within {elapsed:.1?}")]
pub(crate) struct NoAnswer {
    /// How long it has waited.
    pub(crate) elapsed: std::time::Duration,
}

impl NoAnswer {
    /// Finds it among an error and its causes.
    pub(crate) fn in_error(error: &BoxError) -> Option<&NoAnswer> {
        let mut link: Option<&(dyn std::error::Error + 'static)> = Some(&**error);
        while let Some(error) = link {
            if let Some(found) = error.downcast_ref() {
                return Some(found);
            }
            link = error.source();
        }
        None
    }
}

/// What a worker, or the batch's device, does with a sample, or with the samples of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Stage {
    /// The sampler is asked for the index at a position.
    Sampling,
    /// An iterable is opened, or asked for its next item.
    Pulling,
    /// The data set's `get`.
    Loading,
    /// The sample is filled into its row: lazy ones are decoded.
    Filling,
    /// The batch is laid out from all of its samples.
    Planning,
    /// The batch is made of its rows, or by the `collate_fn`.
    Collating,
    /// The device that the batch was sent to decodes its pictures (feature `nvjpeg`).
    Decoding,
}

/// A sample does not fit its batch.
#[derive(Debug)]
#[non_exhaustive]
pub struct Misfit {
    /// The sample that does not fit.
    pub sample: SampleId,
    /// The sample that the batch's layout was planned from, if it is a different one.
    pub planned_from: Option<SampleId>,
    /// What does not fit.
    pub source: CollateError,
}

/// Data and shape do not match.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{elements} elements do not make the shape {shape}")]
pub struct ShapeError {
    /// How many elements there are.
    pub elements: usize,
    /// The requested shape.
    pub shape: Shape,
}

/// Why a sample does not fit its batch.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CollateError {
    /// Its shape differs from the one that the batch was planned with.
    #[error("{}its shape is {found}, and the batch's rows are {expected}: {}", FieldName(.field), what_fits(expected, found))]
    Shape {
        /// The field's name; empty if it has none.
        field: &'static str,
        /// The shape of the batch's rows.
        expected: Shape,
        /// The sample's shape.
        found: Shape,
    },

    /// A [`Padded`](crate::Padded) sample is padded otherwise than the first one of its batch.
    #[error("{}it is padded with {found}, and the first sample of its batch with {expected}: pad all samples alike", FieldName(.field))]
    Padding {
        /// The field's name; empty if it has none.
        field: &'static str,
        /// The first sample's padding value, and what its length is a multiple of.
        expected: String,
        /// The sample's.
        found: String,
    },

    /// A [`Padded`](crate::Padded) sample is longer than [`at_most`](crate::Padded::at_most) allows.
    #[error(
        "its length is {found}, and at most {at_most} is allowed: `truncate` it, allow more, or leave such samples out with OnError::Skip"
    )]
    TooLong {
        /// The sample's length.
        found: usize,
        /// The greatest length allowed.
        at_most: usize,
    },

    /// All samples of the batch are `None`, and their type does not tell a shape.
    #[error("{}all samples of the batch are `None`, so the shape of its rows is unknown: take an array, Option<[T; N]>, whose type tells its shape, or a tuple of a value and a bool", FieldName(.field))]
    AllNone {
        /// The field's name; empty if it has none.
        field: &'static str,
    },

    /// An unsigned 64-bit number is too large for `i64`, which it becomes in the batch.
    #[error("{}{value} does not fit into an i64, the type that u64 and usize become in a batch: cast it with `as i64` if only its bits matter, or use pinfeed::Host to keep it on the host", FieldName(.field))]
    Number {
        /// The field's name; empty if it has none.
        field: &'static str,
        /// The number.
        value: u64,
    },

    /// A field of the row was left unwritten.
    #[error("{}the sample's `fill` did not write it", FieldName(.field))]
    Unwritten {
        /// The field's name; empty if it has none.
        field: &'static str,
    },

    /// A `Field` was used with a batch of another layout.
    #[error(
        "a field of type {found} was used on a batch whose layout does not hold it: use what `plan` returned for this batch"
    )]
    ForeignField {
        /// The field's element type.
        found: DType,
    },

    /// The batch is larger than any memory.
    #[error("the batch's size in bytes does not fit into a machine word")]
    TooLarge,

    /// A lazy sample failed while producing its elements: its batch reports this as [`Error::Sample`].
    #[error(transparent)]
    Load(BoxError),

    /// An implementation of `Sample` refused the sample.
    #[error(transparent)]
    Other(BoxError),
}

/// A driver's report of a failed operation.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceFault {
    /// The driver's error number: a `CUresult` on CUDA.
    pub code: i32,
    /// The driver's error name and description.
    pub message: String,
}

impl fmt::Display for DeviceFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.message, self.code)
    }
}

/// What a panic brings: code of the program's reads a row on the host whose picture cannot be decoded.
pub(crate) struct NotDrawn {
    /// Its number, among the rows of its batch or part.
    pub(crate) row: usize,
    pub(crate) error: BoxError,
}

/// Drops things of the user's. If one panics, the others are dropped all the same, and the thread goes on.
pub(crate) fn drop_each<T>(things: impl IntoIterator<Item = T>) {
    for thing in things {
        if let Err(payload) = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(thing)))
        {
            drop(panic_message(payload));
        }
    }
}

/// The message of a caught panic.
pub(crate) fn panic_message(payload: Box<dyn std::any::Any + Send>) -> String {
    let payload = match payload.downcast::<NotDrawn>() {
        Ok(not_drawn) => {
            let error = &not_drawn.error;
            return format!("a batch that was made for a device is read on the host: {error}");
        }
        Err(payload) => payload,
    };
    match payload.downcast::<String>() {
        Ok(message) => *message,
        Err(payload) => match payload.downcast::<&'static str>() {
            Ok(message) => (*message).to_owned(),
            Err(payload) => {
                #[expect(
                    clippy::mem_forget,
                    reason = "a user's own type can panic when dropped"
                )]
                std::mem::forget(payload);
                "(a panic without a message)".to_owned()
            }
        },
    }
}
