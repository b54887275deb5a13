//! Samples: what a data set returns, and how many of them make a batch.

use std::path::PathBuf;

use super::{Element, Field, Filled, Layout, Row, Tensor};
use crate::error::CollateError;

/// Something that can be collated: many samples make one batch.
///
/// Scalars, arrays, vectors of these and tensors become tensors with one more dimension; strings and paths stay on the
/// host as a `Vec`; tuples of up to eight elements, and structs with `#[derive(pinfeed::Sample)]`, become batches with
/// the same parts. [`Host`] keeps any other value on the host.
///
/// | sample | batch |
/// | --- | --- |
/// | `f32`, `i64`, any [`Element`] | `Tensor` of shape `[n]` |
/// | `bool` | `Tensor<u8>` of shape `[n]`, 0 or 1 |
/// | `u64`, `usize`, `isize` | `Tensor<i64>` of shape `[n]`; a value that does not fit is an error of its sample |
/// | `[T; N]`, `Vec<T>` of any [`ArrayElement`](crate::sample::ArrayElement) | `Tensor<T>` of shape `[n, N]` |
/// | `[[T; N]; M]`, `Vec<[T; N]>`, and deeper | `Tensor<T>` of shape `[n, M, N]` |
/// | `Tensor<T>` | `Tensor<T>` of shape `[n, shape..]` |
/// | [`Ragged<T>`](crate::Ragged) of `k` rows, where `k` may differ | [`RaggedTensor<T>`](crate::ragged::RaggedTensor): all rows, and where each sample's rows begin |
/// | [`Padded<T>`](crate::Padded) of `k` rows, where `k` may differ | [`PaddedTensor<T>`](crate::padded::PaddedTensor): `[n, longest, ..]`, and the lengths |
/// | `Option<S>` of numbers, arrays, `Vec`s and `Tensor`s ([`Nullable`](crate::sample::Nullable)) | the batch of `S`, zeros where it is `None`, and a `Tensor<u8>` of shape `[n]`, 1 where it is not |
/// | `String`, `PathBuf`, `Host<X>` | `Vec<String>`, `Vec<PathBuf>`, `Vec<X>` |
/// | `Vec<S>`, `Option<S>` of strings or paths | `Vec<Vec<S>>`, `Vec<Option<S>>` |
/// | `(A, B, ..)` | `(A::Batch, B::Batch, ..)` |
///
/// # Implementing it
///
/// A batch is *planned* (which fields, of what shape), its rows are *filled*, by several threads at once, and it is
/// *finished*. A sample may be lazy: an undecoded image decodes into its row ([`Row::decoding`] counts the time).
///
/// # Examples
///
/// An angle, which becomes its sine and cosine:
///
/// ```
/// use pinfeed::error::CollateError;
/// use pinfeed::sample::{Field, Filled, Layout, Row};
/// use pinfeed::{DataLoader, Sample, Tensor};
///
/// #[derive(Clone)]
/// struct Angle(f32);
///
/// impl Sample for Angle {
///     type Batch = Tensor<f32>; // [n, 2]
///     type Plan = Field<f32>;
///     type Rest = ();
///
///     fn plan<'a>(
///         _: impl Iterator<Item = &'a Self> + Clone,
///         layout: &mut Layout,
///     ) -> Result<Field<f32>, CollateError> {
///         layout.field(&[2])
///     }
///
///     fn fill(self, plan: &Field<f32>, row: &mut Row<'_>) -> Result<(), CollateError> {
///         row.write(plan, &[self.0.sin(), self.0.cos()])
///     }
///
///     fn finish(plan: Field<f32>, _: Vec<()>, filled: &mut Filled) -> Tensor<f32> {
///         filled.take(plan)
///     }
/// }
///
/// let loader = DataLoader::builder(vec![Angle(0.0); 3]).batch_size(3).build()?;
/// for batch in &loader {
///     assert_eq!(batch?.as_slice(), [0.0, 1.0, 0.0, 1.0, 0.0, 1.0]);
/// }
/// # Ok::<(), pinfeed::Error>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "samples of type `{Self}` cannot be collated into a batch",
    label = "this is `{Self}`",
    note = "numbers, bool, arrays and Vec of these, Tensor, Option of these, String, tuples, and structs with #[derive(pinfeed::Sample)] can",
    note = "instead of a Vec of Vecs, take a Tensor, or where lengths differ pinfeed::Padded or pinfeed::Ragged",
    note = "wrap a value in pinfeed::Host(..) to keep it on the host (a field of a struct: #[pinfeed(host)]), or give the builder a collate_fn"
)]
pub trait Sample: Send + Sized + 'static {
    /// The batch that the samples become.
    type Batch: Send + 'static;
    /// The batch's fields, as [`plan`](Sample::plan) laid them out.
    type Plan: Send + Sync + 'static;
    /// What remains of a sample once its row is filled: `()`, or what stays on the host.
    type Rest: Send + 'static;
    /// Whether one sample determines the layout of the whole batch. If not, the batch is planned from all of its
    /// samples.
    const ALIKE: bool = true;
    /// Whether a batch is nothing but the rows of its samples: [`finish`](Sample::finish) only takes, from [`Filled`],
    /// fields that [`Layout::field`] made.
    ///
    /// Large batches of such samples travel to a device in parts, which share a block of device memory. So joining the
    /// parts' tensors along the first dimension must give the batch of all samples. Memory safety does not depend on
    /// it: a part that does not fit the others is an error of its batch.
    const DENSE: bool = false;

    /// What remains of a sample that is nothing but its rows; `None` if there is more to it.
    #[doc(hidden)]
    fn rest_of_rows() -> Option<Self::Rest> {
        None
    }

    /// Lays out the fields of a batch, from its first sample (if [`ALIKE`](Sample::ALIKE)) or from all of them.
    ///
    /// An empty batch ([`OnEmpty::Keep`](crate::loader::OnEmpty::Keep); [`Layout::rows`] is 0) is laid out from one sample, which tells
    /// what rows would be like and is no part of it, and [`finish`](Sample::finish) is given no rests.
    ///
    /// # Errors
    ///
    /// If no batch can be made of these samples.
    fn plan<'a>(
        samples: impl Iterator<Item = &'a Self> + Clone,
        layout: &mut Layout,
    ) -> Result<Self::Plan, CollateError>;

    /// Writes one sample into its row: every field of the plan.
    ///
    /// # Errors
    ///
    /// If the sample does not fit its batch.
    fn fill(self, plan: &Self::Plan, row: &mut Row<'_>) -> Result<Self::Rest, CollateError>;

    /// Makes the batch from the filled fields and what remains of the samples, in their order.
    fn finish(plan: Self::Plan, rest: Vec<Self::Rest>, filled: &mut Filled) -> Self::Batch;
}

macro_rules! scalars {
    ($($type:ty),*) => {$(
        impl Sample for $type {
            type Batch = Tensor<$type>;
            type Plan = Field<$type>;
            type Rest = ();
            const DENSE: bool = true;

            fn rest_of_rows() -> Option<()> {
                Some(())
            }

            fn plan<'a>(
                _: impl Iterator<Item = &'a Self> + Clone,
                layout: &mut Layout,
            ) -> Result<Self::Plan, CollateError> {
                layout.field(&[])
            }

            #[inline]
            fn fill(self, plan: &Self::Plan, row: &mut Row<'_>) -> Result<(), CollateError> {
                row.slice_mut(plan)?[0] = self;
                Ok(())
            }

            fn finish(plan: Self::Plan, _: Vec<()>, filled: &mut Filled) -> Self::Batch {
                filled.take(plan)
            }
        }
    )*};
}

scalars!(
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

impl<T: Element> Sample for Tensor<T> {
    type Batch = Tensor<T>;
    type Plan = Field<T>;
    type Rest = ();
    const DENSE: bool = true;

    fn rest_of_rows() -> Option<()> {
        Some(())
    }

    fn plan<'a>(
        mut samples: impl Iterator<Item = &'a Self> + Clone,
        layout: &mut Layout,
    ) -> Result<Field<T>, CollateError> {
        match samples.next() {
            Some(sample) => layout.field_like(sample),
            None => layout.field(&[]),
        }
    }

    fn fill(self, plan: &Self::Plan, row: &mut Row<'_>) -> Result<(), CollateError> {
        row.take(plan, self)
    }

    fn finish(plan: Self::Plan, _: Vec<()>, filled: &mut Filled) -> Self::Batch {
        filled.take(plan)
    }
}

/// A value that stays on the host. A batch of samples has a `Vec` of the values; in a batch of your own, it is one
/// value for the whole batch.
///
/// # Examples
///
/// ```
/// use pinfeed::{DataLoader, Host, Tensor, from_fn};
///
/// /// A value that no tensor can hold.
/// #[derive(Debug, PartialEq)]
/// struct Source(String);
///
/// let samples = from_fn(2, |index, _| Ok((index as f32, Host(Source(format!("{index}.wav"))))));
/// let loader = DataLoader::builder(samples).batch_size(2).build()?;
/// for batch in &loader {
///     let (_numbers, sources): (Tensor<f32>, Vec<Source>) = batch?;
///     assert_eq!(sources[1], Source("1.wav".into()));
/// }
/// # Ok::<(), pinfeed::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Host<X>(pub X);

macro_rules! stays_on_the_host {
    ($([$($generics:tt)*] $sample:ty => $value:ty, $into:expr;)*) => {$(
        impl<$($generics)*> Sample for $sample {
            type Batch = Vec<$value>;
            type Plan = ();
            type Rest = $value;

            fn plan<'a>(_: impl Iterator<Item = &'a Self> + Clone, _: &mut Layout) -> Result<(), CollateError> {
                Ok(())
            }

            fn fill(self, (): &(), _: &mut Row<'_>) -> Result<$value, CollateError> {
                Ok($into(self))
            }

            fn finish((): (), rest: Vec<$value>, _: &mut Filled) -> Vec<$value> {
                rest
            }
        }
    )*};
}

stays_on_the_host! {
    [] String => String, std::convert::identity;
    [] PathBuf => PathBuf, std::convert::identity;
    [] &'static str => &'static str, std::convert::identity;
    [] Vec<String> => Vec<String>, std::convert::identity;
    [] Vec<PathBuf> => Vec<PathBuf>, std::convert::identity;
    [] Vec<&'static str> => Vec<&'static str>, std::convert::identity;
    [] Option<String> => Option<String>, std::convert::identity;
    [] Option<PathBuf> => Option<PathBuf>, std::convert::identity;
    [] Option<&'static str> => Option<&'static str>, std::convert::identity;
    [X: Send + 'static] Host<X> => X, |host: Host<X>| host.0;
}

macro_rules! tuples {
    ($(($($name:ident $index:tt $label:literal),+);)*) => {$(
        impl<$($name: Sample),+> Sample for ($($name,)+) {
            type Batch = ($($name::Batch,)+);
            type Plan = ($($name::Plan,)+);
            type Rest = ($($name::Rest,)+);
            const ALIKE: bool = $($name::ALIKE)&&+;
            const DENSE: bool = $($name::DENSE)&&+;

            fn rest_of_rows() -> Option<Self::Rest> {
                Some(($($name::rest_of_rows()?,)+))
            }

            fn plan<'a>(
                samples: impl Iterator<Item = &'a Self> + Clone,
                layout: &mut Layout,
            ) -> Result<Self::Plan, CollateError> {
                Ok(($(
                    layout.named($label, |layout| $name::plan(samples.clone().map(|sample| &sample.$index), layout))?,
                )+))
            }

            fn fill(self, plan: &Self::Plan, row: &mut Row<'_>) -> Result<Self::Rest, CollateError> {
                Ok(($(self.$index.fill(&plan.$index, row)?,)+))
            }

            fn finish(plan: Self::Plan, rest: Vec<Self::Rest>, filled: &mut Filled) -> Self::Batch {
                // One vector for each part. If a part's rest is `()`, its vector costs nothing.
                let mut parts = ($(Vec::<$name::Rest>::with_capacity(rest.len()),)+);
                for rest in rest {
                    $(parts.$index.push(rest.$index);)+
                }
                ($($name::finish(plan.$index, parts.$index, filled),)+)
            }
        }
    )*};
}

tuples! {
    (A 0 "0");
    (A 0 "0", B 1 "1");
    (A 0 "0", B 1 "1", C 2 "2");
    (A 0 "0", B 1 "1", C 2 "2", D 3 "3");
    (A 0 "0", B 1 "1", C 2 "2", D 3 "3", E 4 "4");
    (A 0 "0", B 1 "1", C 2 "2", D 3 "3", E 4 "4", F 5 "5");
    (A 0 "0", B 1 "1", C 2 "2", D 3 "3", E 4 "4", F 5 "5", G 6 "6");
    (A 0 "0", B 1 "1", C 2 "2", D 3 "3", E 4 "4", F 5 "5", G 6 "6", H 7 "7");
}
