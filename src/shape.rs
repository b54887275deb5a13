//! What a tensor is made of, as values: its [`Shape`] and the type of its elements. Errors name both.

use std::fmt;
use std::ops::Deref;

/// The lengths of a tensor's dimensions, outermost first; empty for a scalar. It reads as a `[usize]`.
#[derive(Clone, PartialEq, Eq, Hash, Default)]
pub struct Shape(Box<[usize]>);

impl Shape {
    /// Makes the shape of a batch: `rows` times this one.
    pub(crate) fn batched(rows: usize, row: &[usize]) -> Shape {
        std::iter::once(rows).chain(row.iter().copied()).collect()
    }

    /// The number of elements: the product of the lengths, 1 for a scalar; `None` if it does not fit an `usize`.
    pub fn elements(dimensions: &[usize]) -> Option<usize> {
        dimensions
            .iter()
            .try_fold(1usize, |product, &length| product.checked_mul(length))
    }
}

impl Deref for Shape {
    type Target = [usize];

    fn deref(&self) -> &[usize] {
        &self.0
    }
}

impl From<&[usize]> for Shape {
    fn from(dimensions: &[usize]) -> Shape {
        Shape(dimensions.into())
    }
}

impl FromIterator<usize> for Shape {
    fn from_iter<I: IntoIterator<Item = usize>>(dimensions: I) -> Shape {
        Shape(dimensions.into_iter().collect())
    }
}

impl fmt::Debug for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
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

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
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
