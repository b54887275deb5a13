//! The error type: what went wrong, where, and what to do about it.

use std::fmt;

use crate::shape::{DType, Shape};

/// Any error, as data sets and collate functions return it.
pub type BoxError = Box<dyn std::error::Error + Send + Sync + 'static>;

/// A result whose error is [`enum@Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What can go wrong between a data set and a device.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// `build()` refused an option, alone or beside another.
    #[error("`{option}`: {reason}")]
    Option {
        /// The builder's method.
        option: &'static str,
        /// Why the value makes no sense, and what would.
        reason: String,
    },

    /// A sample failed to load.
    #[error("{0} failed to load")]
    Sample(SampleId, #[source] BoxError),

    /// A sample's `get` panicked, or its own `plan` or `fill`; the loader goes on.
    #[error("{0} panicked while loading: {message}", message = .1)]
    SamplePanicked(SampleId, String),

    /// A sample does not fit into its batch.
    #[error(transparent)]
    Collate(Box<Misfit>),

    /// The `collate_fn` returned an error.
    #[error("collate_fn failed on batch {batch} of epoch {epoch}")]
    CollateFn {
        /// The epoch.
        epoch: u64,
        /// The batch's position in its epoch.
        batch: u64,
        /// What the function returned.
        #[source]
        source: BoxError,
    },

    /// The `collate_fn` panicked, or a batch's own functions did; the loader goes on.
    #[error("collating batch {batch} of epoch {epoch} panicked: {message}")]
    CollatePanicked {
        /// The epoch.
        epoch: u64,
        /// The batch's position in its epoch.
        batch: u64,
        /// The panic's message.
        message: String,
    },

    /// Data and shape do not go together.
    #[error(transparent)]
    Shape(#[from] ShapeError),

    /// A file or folder could not be read.
    #[error("{} cannot be read", path.display())]
    Io {
        /// The file or folder.
        path: std::path::PathBuf,
        /// What the system says.
        #[source]
        source: std::io::Error,
    },

    /// A file could not be written.
    #[error("{} cannot be written", path.display())]
    Write {
        /// The file.
        path: std::path::PathBuf,
        /// What the system says.
        #[source]
        source: std::io::Error,
    },

    /// A folder or file list does not hold what a data set needs.
    #[error("{}: {reason}", path.display())]
    DataSet {
        /// The folder or file.
        path: std::path::PathBuf,
        /// What is wrong with it, and what would be right.
        reason: String,
    },

    /// The crate was built without what the call needs.
    #[error(
        "pinfeed was built without the feature `{feature}`: add it to the dependency in Cargo.toml"
    )]
    FeatureMissing {
        /// The feature.
        feature: &'static str,
    },

    /// There is no CUDA driver on this machine.
    #[error(
        "no CUDA driver on this machine ({detail}): install NVIDIA's driver, or use Device::cpu()"
    )]
    NoDriver {
        /// What the search for the driver's library found.
        detail: String,
    },

    /// The CUDA driver is older than what is served.
    #[error(
        "the CUDA driver serves CUDA {}.{}, and pinfeed needs {}.{} or newer: update NVIDIA's driver",
        found / 1000, found % 1000 / 10, required / 1000, required % 1000 / 10
    )]
    DriverTooOld {
        /// The driver's version as CUDA counts it: 1000 x major + 10 x minor.
        found: i32,
        /// The oldest version served, counted alike.
        required: i32,
    },

    /// The driver's library is the toolkit's stub, which is made for linking and drives nothing.
    #[error(
        "the CUDA driver library found first is the toolkit's stub, which is for linking only: \
         remove the toolkit's `stubs` folder from the library path"
    )]
    StubDriver,

    /// The driver is there, and no such device.
    #[error(
        "there is no CUDA device {ordinal}: the driver sees {count} (CUDA_VISIBLE_DEVICES can hide devices)"
    )]
    NoDevice {
        /// The device that was asked for.
        ordinal: usize,
        /// The number of devices that the driver sees.
        count: usize,
    },

    /// A device operation failed.
    #[error("{operation} failed on {device}: {cause}")]
    Device {
        /// The operation, by the driver's name for it.
        operation: &'static str,
        /// The device.
        device: String,
        /// What the driver says.
        cause: DeviceFault,
    },

    /// The device pool's budget is held by tensors that are alive.
    #[error(
        "device memory: {requested_bytes} bytes do not fit into the budget of {budget_bytes}: {held_blocks} \
         blocks that are alive hold {held_bytes}. Drop batches that are done with, or raise the budget \
         (Device::set_device_budget_bytes)"
    )]
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
    #[error("page-locked memory: {bytes} bytes could not be had: {reason}")]
    Pinned {
        /// What was asked for.
        bytes: usize,
        /// Why there is none, and the knob.
        reason: String,
    },

    /// A batch does not fit into the memory that the process may use.
    #[error(
        "host memory: a batch of {bytes} bytes does not fit into what this process may use: lower batch_size or \
         prefetch, or look at the shape of its samples"
    )]
    HostMemory {
        /// What the batch needs.
        bytes: usize,
    },

    /// Two things of different devices met.
    #[error(
        "{what} belongs to {found}, and the call is for {expected}: copy through the host, or open one device and clone it"
    )]
    WrongDevice {
        /// The tensor or stream.
        what: &'static str,
        /// Its device.
        found: String,
        /// The call's device.
        expected: String,
    },

    /// The library's own kernels do not run on a device as old.
    #[error(
        "{device} has compute capability {}.{}, and {what} is a kernel that needs {}.{} or newer. Loading, pinning and copies work \
         on this device: do this step on the host, or in kernels of your own", found.0, found.1, required.0, required.1
    )]
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
    #[error(
        "this per-thread default stream belongs to another thread: its handle names a different stream here. \
         Use it on the thread that made it, or use a stream of your own (Device::stream)"
    )]
    WrongThread,

    /// The tensor's memory cannot be written: a view or a transfer shares it.
    #[error(
        "the tensor is shared by {sharers} views or transfers: drop them, or write into another tensor"
    )]
    Shared {
        /// How many others hold it.
        sharers: usize,
    },

    /// The system gave no thread.
    #[error("could not start the thread `{name}`")]
    Thread {
        /// The thread's name.
        name: String,
        /// What the system says.
        #[source]
        source: std::io::Error,
    },
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

impl fmt::Display for SampleId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sample {}", self.index)?;
        if let Some(description) = &self.description {
            write!(f, " ({description})")?;
        }
        write!(
            f,
            ", row {} of batch {} in epoch {},",
            self.row, self.batch, self.epoch
        )
    }
}

/// A sample does not fit into its batch.
#[derive(Debug, thiserror::Error)]
#[error("{sample} does not fit into its batch{}", Planner(planned_from))]
#[non_exhaustive]
pub struct Misfit {
    /// The sample that does not fit.
    pub sample: SampleId,
    /// The sample that the batch's layout was planned from, if it is another one.
    pub planned_from: Option<SampleId>,
    /// What does not fit.
    #[source]
    pub source: CollateError,
}

/// The sample that the layout came from, as the end of a sentence.
struct Planner<'a>(&'a Option<SampleId>);

impl fmt::Display for Planner<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(sample) = self.0 else { return Ok(()) };
        write!(f, ", which was planned from sample {}", sample.index)?;
        match &sample.description {
            Some(description) => write!(f, " ({description})"),
            None => Ok(()),
        }
    }
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
    #[error("{}its shape is {found}, and the batch's rows are {expected}: make all samples of one shape, or give a collate_fn", FieldName(.field))]
    Shape {
        /// The field's name, empty where it has none.
        field: &'static str,
        /// The shape of the batch's rows.
        expected: Shape,
        /// The sample's own.
        found: Shape,
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
    #[error("a lazy sample failed to load")]
    Load(#[source] BoxError),

    /// An own implementation of `Sample` refused.
    #[error(transparent)]
    Other(BoxError),
}

/// A field's name as the start of a sentence.
struct FieldName<'a>(&'a &'static str);

impl fmt::Display for FieldName<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            Ok(())
        } else {
            write!(f, "field `{}`: ", self.0)
        }
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_say_where_what_and_what_to_do() {
        let sample = |index, row| SampleId {
            index,
            row,
            batch: 4,
            epoch: 1,
            description: Some(format!("train/cat/{index}.jpg")),
        };
        let error = Error::Collate(Box::new(Misfit {
            sample: sample(17, 3),
            planned_from: Some(sample(9, 0)),
            source: CollateError::Shape {
                field: "image",
                expected: [224, 224, 3].as_slice().into(),
                found: [200, 224, 3].as_slice().into(),
            },
        }));
        assert_eq!(
            error.to_string(),
            "sample 17 (train/cat/17.jpg), row 3 of batch 4 in epoch 1, does not fit into its batch, \
             which was planned from sample 9 (train/cat/9.jpg)"
        );
        assert_eq!(
            std::error::Error::source(&error).unwrap().to_string(),
            "field `image`: its shape is [200, 224, 3], and the batch's rows are [224, 224, 3]: \
             make all samples of one shape, or give a collate_fn"
        );
        let error = Error::DriverTooOld {
            found: 11080,
            required: 12000,
        };
        assert!(
            error
                .to_string()
                .starts_with("the CUDA driver serves CUDA 11.8, and pinfeed needs 12.0")
        );
    }
}
