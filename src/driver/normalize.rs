//! What the library's own kernels make of pictures and of their labels, as values: both backends give the same numbers.

use super::{Driver, RawStream};
use crate::error::Result;
use crate::shape::DType;

/// Pictures of three channels, pixel by pixel, that become floating point numbers: `x * scale + bias`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Normalizing {
    pub(crate) from: u64,
    pub(crate) to: u64,
    pub(crate) images: usize,
    /// Of each image.
    pub(crate) pixels: usize,
    /// What they become.
    pub(crate) dtype: DType,
    /// Whether the result is pixel by pixel too, or channel by channel.
    pub(crate) channels_last: bool,
    pub(crate) scale: [f32; 3],
    pub(crate) bias: [f32; 3],
    /// Whether, and how, they are mixed with each other then.
    pub(crate) mixture: Option<Mixture>,
}

/// Each picture is mixed with the one before (the first, with the last): within the box, `own * x + other * before`, of values
/// that are normalised. The kernel takes it as it lies here.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct Mixture {
    /// Of the pictures.
    pub(crate) width: u64,
    pub(crate) left: u64,
    pub(crate) top: u64,
    pub(crate) right: u64,
    pub(crate) bottom: u64,
    pub(crate) own: f32,
    pub(crate) other: f32,
}

/// Labels that become a row each, of a number for each class.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Labelling {
    pub(crate) from: u64,
    pub(crate) to: u64,
    pub(crate) rows: usize,
    pub(crate) classes: usize,
    /// The size of a number: 2 or 4.
    pub(crate) element_bytes: usize,
    /// Whether each row is mixed with the one before (the first, with the last).
    pub(crate) is_mixed: bool,
    pub(crate) weights: Weights,
}

/// What a label's row is made of, by the numbers' bits: of the type's size, in the low ones. The kernel takes it as it lies here.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct Weights {
    /// Of a class that is neither label.
    pub(crate) none: u32,
    /// Of the row's own label.
    pub(crate) own: u32,
    /// Of the label that it is mixed with.
    pub(crate) other: u32,
    /// Of a class that is both.
    pub(crate) both: u32,
    /// Everywhere in a row that has a label that is no class.
    pub(crate) invalid: u32,
}

impl Driver {
    /// Enqueues the normalising of pictures on the stream.
    ///
    /// # Safety
    ///
    /// `from` must be valid for as many bytes, and `to` for as many elements of the type, both aligned to 16 bytes and of this
    /// device's memory, until the work is done; until then nobody may write the one, or touch the other, but work that is
    /// ordered by the stream.
    pub(crate) unsafe fn normalize(&self, stream: &RawStream, work: Normalizing) -> Result<()> {
        match (self, stream) {
            // SAFETY: the caller's contract is the backend's.
            (Driver::Cpu(driver), RawStream::Cpu(stream)) => unsafe {
                driver.normalize(stream, work)
            },
            #[cfg(feature = "cuda")]
            // SAFETY: likewise.
            (Driver::Cuda(driver), RawStream::Cuda(stream)) => unsafe {
                driver.normalize(stream, work)
            },
            #[cfg(feature = "cuda")]
            _ => Err(self.foreign("stream")),
        }
    }

    /// Enqueues the making of labels' rows on the stream.
    ///
    /// # Safety
    ///
    /// As `normalize`: `from` for as many `i64`s as there are rows, `to` for as many elements as rows and classes make.
    pub(crate) unsafe fn label(&self, stream: &RawStream, work: Labelling) -> Result<()> {
        match (self, stream) {
            // SAFETY: the caller's contract is the backend's.
            (Driver::Cpu(driver), RawStream::Cpu(stream)) => unsafe { driver.label(stream, work) },
            #[cfg(feature = "cuda")]
            // SAFETY: likewise.
            (Driver::Cuda(driver), RawStream::Cuda(stream)) => unsafe {
                driver.label(stream, work)
            },
            #[cfg(feature = "cuda")]
            _ => Err(self.foreign("stream")),
        }
    }
}
