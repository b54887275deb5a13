//! The entries of arrays and vectors that are samples: numbers, and arrays of numbers.

use super::{Element, Field, Filled, Layout, Row, Sample, Shape, Tensor};
use crate::error::CollateError;

/// An element of an array or a vector that is a sample: any [`Element`]; `bool`, which becomes `u8`; `u64`, `usize` and
/// `isize`, which become `i64`; and arrays of these, of any depth. The trait is sealed.
///
/// A number that does not fit an `i64` is an error of its sample ([`CollateError::Number`]). (Neither PyTorch nor
/// candle computes with unsigned 64-bit numbers; counts and indices fit.)
///
/// # Examples
///
/// ```
/// use pinfeed::{DataLoader, Tensor, from_fn};
///
/// let poses = from_fn(8, |index, _| {
///     let rotation = [[1.0f32, 0.0], [0.0, 1.0]];
///     let points: Vec<[f32; 3]> = vec![[0.5; 3]; 17];
///     Ok((rotation, points, index, [index > 3, true])) // the index is a u64
/// });
/// let loader = DataLoader::builder(poses).batch_size(8).build()?;
/// let (rotations, points, indices, flags) = loader.epoch(0).next().unwrap()?;
/// assert_eq!(rotations.shape()[..], [8, 2, 2]);
/// assert_eq!(points.shape()[..], [8, 17, 3]);
/// assert_eq!(indices, Tensor::from(vec![0i64, 1, 2, 3, 4, 5, 6, 7]));
/// assert_eq!(flags.row(3).as_slice(), [0u8, 1]);
/// # Ok::<(), pinfeed::Error>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "samples that are arrays or Vecs of `{Self}` cannot be collated into a batch",
    label = "`{Self}` is not a number, nor an array of numbers",
    note = "arrays and Vecs hold numbers, bool, and arrays of these; a Vec holds strings and paths too, which stay on the host",
    note = "instead of a Vec of Vecs, take a Tensor, or where lengths differ pinfeed::Padded or pinfeed::Ragged",
    note = "wrap the whole in pinfeed::Host(..) to keep it on the host, or give the builder a collate_fn"
)]
pub trait ArrayElement: Sized + Send + 'static + sealed::Sealed {
    /// The element type in a batch.
    type Element: Element;

    /// The number of dimensions: 0 for a number.
    #[doc(hidden)]
    const RANK: usize;

    /// The length of a dimension below [`RANK`](ArrayElement::RANK).
    #[doc(hidden)]
    fn length(dimension: usize) -> usize;

    /// Writes one sample's entries: a whole row.
    #[doc(hidden)]
    fn write(
        entries: &[Self],
        field: &Field<Self::Element>,
        row: &mut Row<'_>,
    ) -> Result<(), CollateError>;
}

mod sealed {
    pub trait Sealed {}
}

macro_rules! elements {
    ($($type:ty),*) => {$(
        impl sealed::Sealed for $type {}

        impl ArrayElement for $type {
            type Element = $type;
            const RANK: usize = 0;

            fn length(_: usize) -> usize {
                unreachable!("a number has no dimensions")
            }

            #[inline]
            fn write(
                entries: &[$type],
                field: &Field<$type>,
                row: &mut Row<'_>,
            ) -> Result<(), CollateError> {
                row.write(field, entries)
            }
        }
    )*};
}

elements!(
    u8,
    i8,
    i16,
    u16,
    i32,
    u32,
    i64,
    half::f16,
    half::bf16,
    f32,
    f64
);

impl<A: ArrayElement, const N: usize> sealed::Sealed for [A; N] {}

impl<A: ArrayElement, const N: usize> ArrayElement for [A; N] {
    type Element = A::Element;
    const RANK: usize = 1 + A::RANK;

    fn length(dimension: usize) -> usize {
        match dimension.checked_sub(1) {
            None => N,
            Some(inner) => A::length(inner),
        }
    }

    #[inline]
    fn write(
        entries: &[[A; N]],
        field: &Field<A::Element>,
        row: &mut Row<'_>,
    ) -> Result<(), CollateError> {
        A::write(entries.as_flattened(), field, row)
    }
}

/// Numbers that a batch holds as another type, alone and in arrays.
macro_rules! converted {
    ($($type:ty => $element:ty, $convert:expr;)*) => {$(
        impl sealed::Sealed for $type {}

        impl ArrayElement for $type {
            type Element = $element;
            const RANK: usize = 0;

            fn length(_: usize) -> usize {
                unreachable!("a number has no dimensions")
            }

            fn write(
                entries: &[$type],
                field: &Field<$element>,
                row: &mut Row<'_>,
            ) -> Result<(), CollateError> {
                let name = row.name(field);
                let elements = row.slice_mut(field)?;
                if elements.len() != entries.len() {
                    return Err(row.mismatch(field, [entries.len()].as_slice().into()));
                }
                for (element, entry) in elements.iter_mut().zip(entries) {
                    *element = $convert(*entry, name)?;
                }
                Ok(())
            }
        }

        impl Sample for $type {
            type Batch = Tensor<$element>;
            type Plan = Field<$element>;
            type Rest = ();
            const DENSE: bool = true;

            fn plan<'a>(
                _: impl Iterator<Item = &'a Self> + Clone,
                layout: &mut Layout,
            ) -> Result<Self::Plan, CollateError> {
                layout.field(&[])
            }

            fn fill(self, plan: &Self::Plan, row: &mut Row<'_>) -> Result<(), CollateError> {
                ArrayElement::write(&[self], plan, row)
            }

            fn finish(plan: Self::Plan, _: Vec<()>, filled: &mut Filled) -> Self::Batch {
                filled.take(plan)
            }
        }
    )*};
}

converted! {
    bool => u8, |truth, _| Ok(u8::from(truth));
    u64 => i64, signed;
    usize => i64, |number, name| signed(number as u64, name);
    isize => i64, |number, _| Ok(number as i64);
}

fn signed(value: u64, field: &'static str) -> Result<i64, CollateError> {
    i64::try_from(value).map_err(|_| CollateError::Number { field, value })
}

/// The shape of this many entries.
fn shape<A: ArrayElement>(entries: usize) -> Shape {
    std::iter::once(entries)
        .chain((0..A::RANK).map(A::length))
        .collect()
}

impl<A: ArrayElement, const N: usize> Sample for [A; N] {
    type Batch = Tensor<A::Element>;
    type Plan = Field<A::Element>;
    type Rest = ();
    const DENSE: bool = true;

    fn plan<'a>(
        _: impl Iterator<Item = &'a Self> + Clone,
        layout: &mut Layout,
    ) -> Result<Self::Plan, CollateError> {
        layout.field(&shape::<A>(N))
    }

    fn fill(self, plan: &Self::Plan, row: &mut Row<'_>) -> Result<(), CollateError> {
        A::write(&self, plan, row)
    }

    fn finish(plan: Self::Plan, _: Vec<()>, filled: &mut Filled) -> Self::Batch {
        filled.take(plan)
    }
}

impl<A: ArrayElement> Sample for Vec<A> {
    type Batch = Tensor<A::Element>;
    type Plan = Field<A::Element>;
    type Rest = ();
    const DENSE: bool = true;

    fn plan<'a>(
        mut samples: impl Iterator<Item = &'a Self> + Clone,
        layout: &mut Layout,
    ) -> Result<Self::Plan, CollateError> {
        layout.field(&shape::<A>(samples.next().map_or(0, Vec::len)))
    }

    fn fill(self, plan: &Self::Plan, row: &mut Row<'_>) -> Result<(), CollateError> {
        if plan.row_shape.first() != Some(&self.len()) {
            return Err(row.mismatch(plan, shape::<A>(self.len())));
        }
        A::write(&self, plan, row)
    }

    fn finish(plan: Self::Plan, _: Vec<()>, filled: &mut Filled) -> Self::Batch {
        filled.take(plan)
    }
}
