//! Optional samples: a value, or `None`.

use super::{ArrayElement, Element, Field, Filled, Layout, Row, Sample, Tensor};
use crate::error::CollateError;

/// What an `Option` that is a sample can hold: numbers and `bool`, arrays and `Vec`s of these, and tensors. The trait
/// is sealed.
///
/// A batch of `Option<S>` is a pair: the batch of `S`, with zeros where a sample is `None`, and the presence mask, a
/// `Tensor<u8>` of shape `[n]`, which is 1 where there is a value. So `0.0` and `None` are told apart. For another
/// value than zero, make the pair in the sample: `(age.unwrap_or(-1.0), age.is_some())`.
///
/// Numbers and arrays tell their shape by their type. A `Vec`'s or a tensor's shape is that of the batch's first
/// value, so such a batch is planned from all of its samples. If all of them are `None`, there is no shape: the batch is an
/// error ([`CollateError::AllNone`]). (Its shape could be known from another batch only, and then what a batch
/// holds would depend on which came first.) Where that may happen, take an array, or a tuple of a value and a bool.
///
/// # Examples
///
/// ```
/// use pinfeed::{DataLoader, Tensor, from_fn};
///
/// let patients = from_fn(3, |index, _| {
///     let age = (index != 1).then_some(30.0 + index as f32);
///     let position: Option<[f32; 2]> = (index == 2).then_some([0.5, 1.5]);
///     Ok((age, position))
/// });
/// let loader = DataLoader::builder(patients).batch_size(3).build()?;
/// for batch in &loader {
///     let ((ages, is_known), (positions, has_position)) = batch?;
///     assert_eq!(ages.as_slice(), [30.0, 0.0, 32.0]);
///     assert_eq!(is_known.as_slice(), [1, 0, 1]);
///     assert_eq!(positions.as_slice(), [0.0, 0.0, 0.0, 0.0, 0.5, 1.5]);
///     assert_eq!(has_position, Tensor::from(vec![0u8, 0, 1]));
/// }
/// # Ok::<(), pinfeed::Error>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "samples of type `Option<{Self}>` cannot be collated into a batch",
    label = "this is an Option of `{Self}`",
    note = "Options of numbers, bool, arrays and Vec of these, Tensor, String and PathBuf can",
    note = "instead of an Option of a tuple or a struct, take one whose parts are Options; of Ragged or Padded, one without rows",
    note = "wrap the Option in pinfeed::Host(..) to keep it on the host (a field of a struct: #[pinfeed(host)]), or give the builder a collate_fn"
)]
pub trait Nullable:
    Sample<Plan = Field<Self::Element>, Rest = (), Batch = Tensor<Self::Element>> + sealed::Sealed
{
    /// The element type in a batch.
    type Element: Element;

    /// Whether the type tells the shape, so that a sample without a value has one.
    #[doc(hidden)]
    const TELLS_SHAPE: bool;
}

mod sealed {
    pub trait Sealed {}
}

macro_rules! numbers {
    ($($type:ty),*) => {$(
        impl sealed::Sealed for $type {}

        impl Nullable for $type {
            type Element = <$type as ArrayElement>::Element;
            const TELLS_SHAPE: bool = true;
        }
    )*};
}

numbers!(
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
    f64,
    bool,
    u64,
    usize,
    isize
);

impl<A: ArrayElement, const N: usize> sealed::Sealed for [A; N] {}

impl<A: ArrayElement, const N: usize> Nullable for [A; N] {
    type Element = A::Element;
    const TELLS_SHAPE: bool = true;
}

impl<A: ArrayElement> sealed::Sealed for Vec<A> {}

impl<A: ArrayElement> Nullable for Vec<A> {
    type Element = A::Element;
    const TELLS_SHAPE: bool = false;
}

impl<T: Element> sealed::Sealed for Tensor<T> {}

impl<T: Element> Nullable for Tensor<T> {
    type Element = T;
    const TELLS_SHAPE: bool = false;
}

/// Where values and mask lie.
#[doc(hidden)]
#[derive(Debug)]
pub struct Plan<T> {
    values: Field<T>,
    is_present: Field<u8>,
}

impl<S: Nullable> Sample for Option<S> {
    type Batch = (Tensor<S::Element>, Tensor<u8>);
    type Plan = Plan<S::Element>;
    type Rest = ();
    const ALIKE: bool = S::TELLS_SHAPE;
    const DENSE: bool = S::DENSE;

    fn plan<'a>(
        samples: impl Iterator<Item = &'a Self> + Clone,
        layout: &mut Layout,
    ) -> Result<Self::Plan, CollateError> {
        let values = samples.clone().flatten();
        let has_rows = layout.rows() > 0 && samples.clone().next().is_some();
        if !S::TELLS_SHAPE && values.clone().next().is_none() && has_rows {
            return Err(CollateError::AllNone {
                field: layout.name(),
            });
        }
        Ok(Plan {
            values: S::plan(values, layout)?,
            is_present: layout.field(&[])?,
        })
    }

    fn fill(self, plan: &Self::Plan, row: &mut Row<'_>) -> Result<(), CollateError> {
        row.write(&plan.is_present, &[u8::from(self.is_some())])?;
        match self {
            Some(value) => value.fill(&plan.values, row),
            None => {
                row.slice_mut(&plan.values)?.fill(S::Element::default());
                Ok(())
            }
        }
    }

    fn finish(plan: Self::Plan, _: Vec<()>, filled: &mut Filled) -> Self::Batch {
        (filled.take(plan.values), filled.take(plan.is_present))
    }
}
