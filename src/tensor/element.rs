//! The element types that travel: plain numbers of which every bit pattern is a value.

use half::{bf16, f16};

/// A type that a tensor can hold: `u8`, `i8`, `i16`, `u16`, `i32`, `u32`, `i64`, `f16`, `bf16`, `f32` or `f64`.
///
/// A `bool` travels as `u8`: bytes that came back from a device need not be 0 or 1, and a Rust `bool` must.
///
/// The trait is sealed: that every bit pattern is a valid value is what makes reused memory safe to read.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not an element type of tensors",
    note = "tensors hold u8, i8, i16, u16, i32, u32, i64, f16, bf16, f32 or f64; a bool travels as u8"
)]
pub trait Element:
    Copy + Default + PartialEq + std::fmt::Debug + Send + Sync + 'static + sealed::Sealed
{
    /// The element type as a value.
    const DTYPE: DType;
}

mod sealed {
    /// Implemented only where all bit patterns are values and there is no padding.
    pub trait Sealed {}
}

/// An element type as a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
#[allow(missing_docs)] // the variants are the element types' own names
pub enum DType {
    U8,
    I8,
    I16,
    U16,
    I32,
    U32,
    I64,
    F16,
    BF16,
    F32,
    F64,
}

impl DType {
    /// The size of one element in bytes.
    pub const fn size_bytes(self) -> usize {
        match self {
            DType::U8 | DType::I8 => 1,
            DType::I16 | DType::U16 | DType::F16 | DType::BF16 => 2,
            DType::I32 | DType::U32 | DType::F32 => 4,
            DType::I64 | DType::F64 => 8,
        }
    }
}

impl std::fmt::Display for DType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            DType::U8 => "u8",
            DType::I8 => "i8",
            DType::I16 => "i16",
            DType::U16 => "u16",
            DType::I32 => "i32",
            DType::U32 => "u32",
            DType::I64 => "i64",
            DType::F16 => "f16",
            DType::BF16 => "bf16",
            DType::F32 => "f32",
            DType::F64 => "f64",
        })
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
