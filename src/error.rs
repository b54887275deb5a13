//! The error type: what went wrong, where, and what to do about it.

mod display;
mod stack;

use std::fmt;

use self::display::FieldName;
use crate::shape::{DType, Shape};

pub use stack::StackMisfit;

/// Any error, as data sets and collate functions return it.
pub type BoxError = Box<dyn std::error::Error + Send + Sync + 'static>;

/// A result whose error is [`enum@Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What can go wrong between a data set and a device.
///
/// `{}` says where, what, and what caused it; `{:#}`, and `{:?}` as well, add what caused that: the whole chain, in one line.
/// [`source`](std::error::Error::source) begins behind the cause that `{}` says, as with [`std::io::Error`], so that a
/// report that prints the chain, such as anyhow's, says nothing twice. The cause itself is in the variant.
///
/// # Examples
///
/// A program that goes on, and looks at what the data set said:
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
///             eprintln!("sample {} is left out: {cause}", sample.index);
///         }
///         Err(error) => return Err(error), // printed by `{error}` or `{error:#}`
///     }
/// }
/// # Ok::<(), pinfeed::Error>(())
/// ```
#[non_exhaustive]
pub enum Error {
    /// `build()` refused an option, alone or beside another.
    Option {
        /// The builder's method.
        option: &'static str,
        /// Why the value makes no sense, and what would.
        reason: String,
    },

    /// A sample failed to load.
    Sample(SampleId, BoxError),

    /// A sample's `get` panicked, or its own `plan` or `fill`; the loader goes on.
    SamplePanicked(SampleId, String),

    /// The sampler panicked, so it is not known which sample stands at a position; the loader goes on.
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

    /// A sample does not fit into its batch.
    Collate(Box<Misfit>),

    /// Of what is stacked by [`Arena::collate`](crate::collate::Arena::collate) or [`Arena::stack`](crate::collate::Arena::stack), one does not fit
    /// to the others.
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

    /// The `collate_fn` panicked, or a batch's own functions did; the loader goes on.
    CollatePanicked {
        /// The epoch.
        epoch: u64,
        /// The batch's position in its epoch.
        batch: u64,
        /// The panic's message.
        message: String,
    },

    /// Data and shape do not go together.
    Shape(ShapeError),

    /// The bytes of an owner do not hold the tensor that was to be made over them.
    OwnedBytes {
        /// The element type.
        dtype: DType,
        /// The shape that was asked for.
        shape: Shape,
        /// What is missing, or where the elements must begin.
        reason: String,
    },

    /// A file or folder could not be read.
    Io {
        /// The file or folder.
        path: std::path::PathBuf,
        /// What the system says.
        source: std::io::Error,
    },

    /// A file could not be written.
    Write {
        /// The file.
        path: std::path::PathBuf,
        /// What the system says.
        source: std::io::Error,
    },

    /// A folder or file list does not hold what a data set needs.
    DataSet {
        /// The folder or file.
        path: std::path::PathBuf,
        /// What is wrong with it, and what would be right.
        reason: String,
    },

    /// The crate was built without what the call needs.
    FeatureMissing {
        /// The feature.
        feature: &'static str,
    },

    /// There is no CUDA driver on this machine.
    NoDriver {
        /// What the search for the driver's library found.
        detail: String,
    },

    /// The CUDA driver is older than what is served.
    DriverTooOld {
        /// The driver's version as CUDA counts it: 1000 x major + 10 x minor.
        found: i32,
        /// The oldest version served, counted alike.
        required: i32,
    },

    /// The driver's library is the toolkit's stub, which is made for linking and drives nothing.
    StubDriver,

    /// The driver is there, and no such device.
    NoDevice {
        /// The device that was asked for.
        ordinal: usize,
        /// The number of devices that the driver sees.
        count: usize,
    },

    /// A device operation failed.
    Device {
        /// The operation, by the driver's name for it.
        operation: &'static str,
        /// The device.
        device: String,
        /// What the driver says.
        cause: DeviceFault,
    },

    /// The device pool's budget is held by tensors that are alive.
    DeviceBudget {
        /// What was asked for.
        requested_bytes: usize,
        /// The budget.
        budget_bytes: usize,
        /// What device tensors that are alive hold.
        held_bytes: usize,
        /// How many blocks that is: one for each upload that is alive.
        held_blocks: usize,
    },

    /// Page-locked memory was demanded, and there was none.
    Pinned {
        /// What was asked for.
        bytes: usize,
        /// Why there is none, and the knob.
        reason: String,
    },

    /// A batch does not fit into the memory that the process may use.
    HostMemory {
        /// What the batch needs.
        bytes: usize,
    },

    /// Two things of different devices met.
    WrongDevice {
        /// The tensor or stream.
        what: &'static str,
        /// Its device.
        found: String,
        /// The call's device.
        expected: String,
    },

    /// The library's own kernels do not run on a device as old.
    ComputeCapability {
        /// What was asked for.
        what: &'static str,
        /// The device.
        device: String,
        /// Its compute capability, as (major, minor).
        found: (i32, i32),
        /// The oldest that the kernels run on.
        required: (i32, i32),
    },

    /// A per-thread default stream was used from another thread.
    WrongThread,

    /// The tensor's memory cannot be written: a view or a transfer shares it.
    Shared {
        /// How many others hold it.
        sharers: usize,
    },

    /// The system gave no thread.
    Thread {
        /// The thread's name.
        name: String,
        /// What the system says.
        source: std::io::Error,
    },
}

impl From<ShapeError> for Error {
    fn from(error: ShapeError) -> Error {
        Error::Shape(error)
    }
}

impl Error {
    /// Makes the error of a builder's option.
    pub(crate) fn option(option: &'static str, reason: impl Into<String>) -> Error {
        Error::Option {
            option,
            reason: reason.into(),
        }
    }
}

/// Which sample: its index, its batch, and what the data set says of it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct SampleId {
    /// The index that the data set was asked for.
    pub index: u64,
    /// The sample's place in its batch.
    pub row: usize,
    /// The batch's position in its epoch.
    pub batch: u64,
    /// The epoch.
    pub epoch: u64,
    /// What the data set says of the sample: its path, say.
    pub description: Option<String>,
}

/// A sample does not fit into its batch.
#[derive(Debug)]
#[non_exhaustive]
pub struct Misfit {
    /// The sample that does not fit.
    pub sample: SampleId,
    /// The sample that the batch's layout was planned from, if it is another one.
    pub planned_from: Option<SampleId>,
    /// What does not fit.
    pub source: CollateError,
}

/// Data and shape do not go together.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{elements} elements do not make the shape {shape}")]
pub struct ShapeError {
    /// How many elements there are.
    pub elements: usize,
    /// The shape that was asked for.
    pub shape: Shape,
}

/// Why a sample does not fit into its batch.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CollateError {
    /// Its shape is not the one that the batch was planned with.
    #[error("{}its shape is {found}, and the batch's rows are {expected}: make all samples of one shape (a collate_fn can pad them), or take pinfeed::Ragged", FieldName(.field))]
    Shape {
        /// The field's name, empty where it has none.
        field: &'static str,
        /// The shape of the batch's rows.
        expected: Shape,
        /// The sample's own.
        found: Shape,
    },

    /// A whole number of 64 bits without a sign is too large: it travels as `i64`.
    #[error("{}{value} does not fit into an i64, as which u64 and usize travel: take `as i64` where its bits are what counts, or pinfeed::Host to keep it on the host", FieldName(.field))]
    Number {
        /// The field's name, empty where it has none.
        field: &'static str,
        /// The number.
        value: u64,
    },

    /// A field of the row was left unwritten.
    #[error("{}the sample's `fill` did not write it", FieldName(.field))]
    Unwritten {
        /// The field's name, empty where it has none.
        field: &'static str,
    },

    /// A `Field` was used with a batch whose layout it does not come from.
    #[error(
        "a field of type {found} was used on a batch whose layout does not hold it: use what `plan` returned for this batch"
    )]
    ForeignField {
        /// The field's element type.
        found: DType,
    },

    /// The batch is larger than memory can be.
    #[error("the batch's size in bytes does not fit into a machine word")]
    TooLarge,

    /// A lazy sample failed while it made its elements: its batch reports it as [`Error::Sample`].
    #[error(transparent)]
    Load(BoxError),

    /// An own implementation of `Sample` refused.
    #[error(transparent)]
    Other(BoxError),
}

/// What a device's driver says of a failed operation.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceFault {
    /// The driver's number for it: a `CUresult` on CUDA.
    pub code: i32,
    /// The driver's name and words for it.
    pub message: String,
}

impl fmt::Display for DeviceFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.message, self.code)
    }
}

/// The message of a caught panic.
pub(crate) fn panic_message(payload: Box<dyn std::any::Any + Send>) -> String {
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
