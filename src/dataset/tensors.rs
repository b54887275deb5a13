//! Tensors as a data set: sample `i` is row `i` of each tensor.

use super::Dataset;
use crate::error::{BoxError, Error, Result};
use crate::fingerprint::Fingerprint;
use crate::rng::SampleRng;
use crate::tensor::{Column, Element, Sample, Tensor};

/// Tensors with the same number of rows, as a data set. Sample `i` is row `i` of each.
///
/// Tensors in host memory give views of their rows, so getting a sample copies nothing. A table that fits into the device's memory is
/// served best from there: [`to_device`](TensorDataset::to_device).
///
/// # Examples
///
/// ```
/// use pinfeed::{DataLoader, Tensor, TensorDataset};
///
/// let images = Tensor::<u8>::zeros(&[60, 8, 8]);
/// let labels = Tensor::from_vec((0..60).collect::<Vec<i64>>(), &[60])?;
/// let loader = DataLoader::builder(TensorDataset::new((images, labels))?).batch_size(20).build()?;
/// for batch in &loader {
///     let (images, labels) = batch?;
///     assert_eq!(images.shape()[..], [20, 8, 8]);
///     assert_eq!(labels.shape()[..], [20]);
/// }
/// # Ok::<(), pinfeed::Error>(())
/// ```
#[derive(Debug)]
pub struct TensorDataset<R: TensorRows> {
    tensors: R::Stored,
    rows: usize,
    columns: Vec<Column>,
}

impl<R: TensorRows> TensorDataset<R> {
    /// Makes a data set from one tensor, or from a tuple of up to eight: [`Tensor`]s, or [`DeviceTensor`](crate::DeviceTensor)s of one
    /// device.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidOption`] if a tensor is a scalar, or if the first dimensions differ; [`Error::WrongDevice`] if tensors are on different
    /// devices, and [`Error::Device`] if that fails while it waits for them to be written.
    pub fn new(tensors: R) -> Result<TensorDataset<R>> {
        let mut lengths = Vec::new();
        tensors.lengths(&mut lengths);
        let rows = match lengths.iter().position(Option::is_none) {
            Some(scalar) => {
                return Err(Error::option(
                    "TensorDataset::new",
                    format!("tensor {scalar} is a scalar and has no rows"),
                ));
            }
            None => lengths[0].unwrap_or(0),
        };
        if let Some(other) = lengths.iter().position(|&length| length != Some(rows)) {
            let reason = format!(
                "tensor 0 has {rows} rows and tensor {other} has {}",
                lengths[other].unwrap_or(0)
            );
            return Err(Error::option("TensorDataset::new", reason));
        }
        let tensors = tensors.stored()?;
        let mut columns = Vec::with_capacity(lengths.len());
        tensors.columns(&mut columns);
        Ok(TensorDataset {
            tensors,
            rows,
            columns,
        })
    }

    /// Takes the tensors out.
    pub(crate) fn into_stored(self) -> R::Stored {
        self.tensors
    }
}

impl<R: TensorRows + HostRows> TensorDataset<R> {
    /// The table that it is, as a source of [blocks](crate::dataset::BlockSource::table) gives it.
    ///
    /// # Examples
    ///
    /// In [`BlockSource::table`](crate::dataset::BlockSource::table).
    pub fn table(&self) -> Table<'_> {
        Table {
            columns: &self.columns,
        }
    }
}

/// The rows of a [`TensorDataset`], to be copied into batches: [`TensorDataset::table`].
///
/// # Examples
///
/// In [`BlockSource::table`](crate::dataset::BlockSource::table).
#[derive(Debug, Clone, Copy)]
pub struct Table<'a> {
    pub(super) columns: &'a [Column],
}

impl<R: TensorRows> Dataset for TensorDataset<R> {
    type Sample = R::Row;

    fn len(&self) -> u64 {
        self.rows as u64
    }

    fn get(&self, index: u64, _: &mut SampleRng) -> Result<R::Row, BoxError> {
        Ok(self.tensors.row(index as usize))
    }

    fn is_registered(&self) -> bool {
        self.tensors.is_registered()
    }

    fn columns(&self, _: &mut [u64]) -> Option<&[Column]> {
        Some(&self.columns)
    }

    fn sample_bytes(&self) -> Option<usize> {
        (self.rows > 0).then(|| self.tensors.sample_bytes(self.rows))
    }

    /// Of the sizes only: the numbers may come out a little different when a program makes them again. It does not matter where the
    /// tensors lie.
    fn fingerprint(&self) -> u32 {
        let mut print = Fingerprint::new();
        print.add_number(self.len());
        print.add_number(self.tensors.size_bytes() as u64);
        print.finish()
    }
}

/// What a [`TensorDataset`] is made of: a tensor, or a tuple of up to eight, all on the host or all on one device. The trait is sealed.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a table",
    label = "neither tensors on the host nor on a device",
    note = "a table is a pinfeed::Tensor or a tuple of up to eight, which may hold such tuples",
    note = "on a device, it is a pinfeed::DeviceTensor or a tuple of up to eight of them, and nothing else"
)]
pub trait TensorRows: Send + Sync + 'static + sealed::Sealed {
    /// One row of each tensor.
    type Row: Sample;

    /// What the data set holds.
    #[doc(hidden)]
    type Stored: StoredRows<Row = Self::Row>;

    /// The lengths of the first dimensions; `None` for a scalar.
    #[doc(hidden)]
    fn lengths(&self, lengths: &mut Vec<Option<usize>>);

    /// Makes what the data set holds.
    #[doc(hidden)]
    fn stored(self) -> Result<Self::Stored>;
}

/// Tensors that a data set holds.
#[doc(hidden)]
pub trait StoredRows: std::fmt::Debug + Send + Sync + 'static {
    /// One row of each tensor.
    type Row: Sample;

    /// What a batch's rows are copies of.
    fn columns(&self, columns: &mut Vec<Column>);

    /// Row `index` of each tensor.
    fn row(&self, index: usize) -> Self::Row;

    /// Whether any of the tensors is registered.
    fn is_registered(&self) -> bool;

    /// The size of all tensors in bytes.
    fn size_bytes(&self) -> usize;

    /// What a sample takes in its batch on the host, of so many.
    fn sample_bytes(&self, rows: usize) -> usize {
        self.size_bytes() / rows
    }
}

/// Tensors on the host, which are held as they are.
#[doc(hidden)]
pub trait HostRows: StoredRows + sealed::Sealed {
    fn host_lengths(&self, lengths: &mut Vec<Option<usize>>);
}

pub(crate) mod sealed {
    pub trait Sealed {}
}

impl<T: Element> sealed::Sealed for Tensor<T> {}

impl<T: Element> StoredRows for Tensor<T> {
    type Row = Tensor<T>;

    fn columns(&self, columns: &mut Vec<Column>) {
        columns.push(Column::new(self));
    }

    fn row(&self, index: usize) -> Tensor<T> {
        Tensor::row(self, index)
    }

    fn is_registered(&self) -> bool {
        self.storage().registered().is_some()
    }

    fn size_bytes(&self) -> usize {
        Tensor::size_bytes(self)
    }
}

impl<T: Element> HostRows for Tensor<T> {
    fn host_lengths(&self, lengths: &mut Vec<Option<usize>>) {
        lengths.push(self.shape().first().copied());
    }
}

impl<T: Element> TensorRows for Tensor<T> {
    type Row = Tensor<T>;
    type Stored = Tensor<T>;

    fn lengths(&self, lengths: &mut Vec<Option<usize>>) {
        self.host_lengths(lengths);
    }

    fn stored(self) -> Result<Tensor<T>> {
        Ok(self)
    }
}

macro_rules! tuples {
    ($(($($name:ident $index:tt),+);)*) => {$(
        impl<$($name: HostRows),+> sealed::Sealed for ($($name,)+) {}

        impl<$($name: HostRows),+> StoredRows for ($($name,)+) {
            type Row = ($($name::Row,)+);

            fn columns(&self, columns: &mut Vec<Column>) {
                $(self.$index.columns(columns);)+
            }

            fn row(&self, index: usize) -> Self::Row {
                ($(self.$index.row(index),)+)
            }

            fn is_registered(&self) -> bool {
                $(self.$index.is_registered())||+
            }

            fn size_bytes(&self) -> usize {
                // Views may overlap, so the sum may exceed any memory.
                [$(StoredRows::size_bytes(&self.$index)),+].into_iter().fold(0, usize::saturating_add)
            }
        }

        impl<$($name: HostRows),+> HostRows for ($($name,)+) {
            fn host_lengths(&self, lengths: &mut Vec<Option<usize>>) {
                $(self.$index.host_lengths(lengths);)+
            }
        }

        impl<$($name: HostRows),+> TensorRows for ($($name,)+) {
            type Row = ($($name::Row,)+);
            type Stored = Self;

            fn lengths(&self, lengths: &mut Vec<Option<usize>>) {
                self.host_lengths(lengths);
            }

            fn stored(self) -> Result<Self> {
                Ok(self)
            }
        }
    )*};
}

tuples! {
    (A 0);
    (A 0, B 1);
    (A 0, B 1, C 2);
    (A 0, B 1, C 2, D 3);
    (A 0, B 1, C 2, D 3, E 4);
    (A 0, B 1, C 2, D 3, E 4, F 5);
    (A 0, B 1, C 2, D 3, E 4, F 5, G 6);
    (A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensors_of_different_length_are_refused() {
        let error = TensorDataset::new((Tensor::<u8>::zeros(&[3, 2]), Tensor::<i64>::zeros(&[4])))
            .unwrap_err();
        assert!(
            error
                .to_string()
                .contains("tensor 0 has 3 rows and tensor 1 has 4"),
            "{error}"
        );
        let error = TensorDataset::new(Tensor::<u8>::zeros(&[])).unwrap_err();
        assert!(error.to_string().contains("scalar"), "{error}");
    }
}
