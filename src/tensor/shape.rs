//! Shapes: the lengths of a tensor's dimensions, outermost first.

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
