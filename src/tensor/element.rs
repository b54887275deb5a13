//! The element types of tensors: plain numbers for which every bit pattern is a valid value.

use half::{bf16, f16};

use super::ArrayElement;
use crate::shape::DType;

/// A type that a tensor can hold: `u8`, `i8`, `i16`, `u16`, `i32`, `u32`, `i64`, `f16`, `bf16`, `f32` or `f64`.
///
/// A `bool` travels as `u8`: bytes that came back from a device need not be 0 or 1, and a Rust `bool` must.
///
/// The trait is sealed: reused memory is safe to read because every bit pattern is a valid value.
///
/// # Examples
///
/// ```
/// use pinfeed::Tensor;
/// use pinfeed::tensor::{DType, Element};
///
/// /// The mean of a tensor of any type that converts to `f64`.
/// fn mean<T: Element + Into<f64>>(tensor: &Tensor<T>) -> f64 {
///     let sum: f64 = tensor.as_slice().iter().map(|&x| x.into()).sum();
///     sum / tensor.len() as f64
/// }
///
/// assert_eq!(mean(&Tensor::from(vec![1u8, 2])), 1.5);
/// assert_eq!(f32::DTYPE, DType::F32);
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not an element type of tensors",
    note = "tensors hold u8, i8, i16, u16, i32, u32, i64, f16, bf16, f32 or f64; a bool travels as u8"
)]
pub trait Element:
    Copy
    + Default
    + PartialEq
    + std::fmt::Debug
    + Send
    + Sync
    + 'static
    + sealed::Sealed
    + ArrayElement<Element = Self>
{
    /// The element type as a value.
    const DTYPE: DType;
}

mod sealed {
    /// Implemented only where all bit patterns are values and there is no padding.
    pub trait Sealed {}
}

/// A floating-point type that images are normalised to and soft labels are made of: `f32`, `f16` or `bf16`.
///
/// # Examples
///
/// ```
/// use pinfeed::ops::Normalize;
/// use pinfeed::tensor::Float;
/// use pinfeed::{Batch, Device, DeviceTensor, Result, Tensor};
///
/// /// The input of a network of any precision.
/// fn input<F: Float>(images: DeviceTensor<u8>) -> Result<DeviceTensor<F>> {
///     images.normalize(&Normalize::IMAGENET)
/// }
///
/// let images = Tensor::<u8>::zeros(&[2, 8, 8, 3]).to_device(&Device::cpu(), true)?;
/// let images: DeviceTensor<f32> = input(images)?;
/// # drop(images);
/// # Ok::<(), pinfeed::Error>(())
/// ```
pub trait Float: Element {
    /// Rounds to the nearest value of the type, ties to even.
    #[doc(hidden)]
    fn from_f32(value: f32) -> Self;

    /// The number's bits, in the low bits of the result.
    #[doc(hidden)]
    fn bits(self) -> u32;
}

impl Float for f32 {
    fn from_f32(value: f32) -> f32 {
        value
    }

    fn bits(self) -> u32 {
        self.to_bits()
    }
}

impl Float for f16 {
    fn from_f32(value: f32) -> f16 {
        f16::from_f32(value)
    }

    fn bits(self) -> u32 {
        u32::from(self.to_bits())
    }
}

impl Float for bf16 {
    fn from_f32(value: f32) -> bf16 {
        bf16::from_f32(value)
    }

    fn bits(self) -> u32 {
        u32::from(self.to_bits())
    }
}

macro_rules! elements {
    ($($type:ty => $dtype:ident),* $(,)?) => {$(
        impl sealed::Sealed for $type {}
        impl Element for $type {
            const DTYPE: DType = DType::$dtype;
        }
        const _: () = assert!(size_of::<$type>() == DType::$dtype.size_bytes());
    )*};
}

elements! {
    u8 => U8, i8 => I8, i16 => I16, u16 => U16, i32 => I32, u32 => U32, i64 => I64,
    f16 => F16, bf16 => BF16, f32 => F32, f64 => F64,
}
