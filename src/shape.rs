//! Shapes and element types as values: [`Shape`] and [`DType`]. Errors use both.

use std::fmt;
use std::ops::Deref;

/// The lengths of a tensor's dimensions, outermost first; empty for a scalar. It dereferences to `[usize]`.
///
/// # Examples
///
/// ```
/// use pinfeed::Tensor;
///
/// let tensor = Tensor::<f32>::zeros(&[2, 3]);
/// assert_eq!(tensor.shape()[..], [2, 3]);
/// assert_eq!(tensor.shape().to_string(), "[2, 3]");
/// if let [rows, columns] = tensor.shape()[..] {
///     assert_eq!(rows * columns, tensor.len());
/// }
/// ```
#[derive(Clone)]
pub struct Shape(Lengths);

/// Nearly all shapes are short and are made once for each row of a batch, so short ones need no allocation.
#[derive(Clone)]
enum Lengths {
    Few { count: u8, lengths: [usize; FEW] },
    Many(Box<[usize]>),
}

const FEW: usize = 4;

impl Shape {
    /// Makes the shape of a batch: `rows` followed by `row`.
    pub(crate) fn batched(rows: usize, row: &[usize]) -> Shape {
        if row.len() < FEW {
            let mut lengths = [0; FEW];
            lengths[0] = rows;
            lengths[1..=row.len()].copy_from_slice(row);
            return Shape(Lengths::Few {
                count: row.len() as u8 + 1,
                lengths,
            });
        }
        std::iter::once(rows).chain(row.iter().copied()).collect()
    }

    /// The number of elements: the product of the lengths, 1 for a scalar; `None` if it does not fit a `usize`.
    pub fn elements(dimensions: &[usize]) -> Option<usize> {
        dimensions
            .iter()
            .try_fold(1usize, |product, &length| product.checked_mul(length))
    }
}

impl Default for Shape {
    /// A scalar's shape.
    fn default() -> Shape {
        Shape::from([].as_slice())
    }
}

impl Deref for Shape {
    type Target = [usize];

    fn deref(&self) -> &[usize] {
        match &self.0 {
            Lengths::Few { count, lengths } => &lengths[..usize::from(*count)],
            Lengths::Many(lengths) => lengths,
        }
    }
}

impl From<&[usize]> for Shape {
    fn from(dimensions: &[usize]) -> Shape {
        if dimensions.len() > FEW {
            return Shape(Lengths::Many(dimensions.into()));
        }
        let mut lengths = [0; FEW];
        lengths[..dimensions.len()].copy_from_slice(dimensions);
        Shape(Lengths::Few {
            count: dimensions.len() as u8,
            lengths,
        })
    }
}

impl FromIterator<usize> for Shape {
    fn from_iter<I: IntoIterator<Item = usize>>(dimensions: I) -> Shape {
        let dimensions: Vec<usize> = dimensions.into_iter().collect();
        Shape::from(dimensions.as_slice())
    }
}

impl PartialEq for Shape {
    fn eq(&self, other: &Shape) -> bool {
        self[..] == other[..]
    }
}

impl Eq for Shape {}

impl std::hash::Hash for Shape {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self[..].hash(state);
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
///
/// # Examples
///
/// ```
/// use pinfeed::Tensor;
/// use pinfeed::tensor::DType;
///
/// let tensor = Tensor::<f32>::zeros(&[2, 3]);
/// assert_eq!(tensor.dtype(), DType::F32);
/// assert_eq!(DType::F32.size_bytes(), 4);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
#[allow(missing_docs)] // the variants are the names of the element types
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
