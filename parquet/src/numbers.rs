//! Numbers as rows of tensors, a block at a time: [`ParquetBuilder::build_numbers`].

use std::cell::Cell;
use std::convert::Infallible;
use std::marker::PhantomData;
use std::ops::Range;
use std::sync::Arc;

use pinfeed::dataset::{
    BlockSource, Blocked, Dataset, IntoDataset, Table, TensorDataset, TensorRows,
};
use pinfeed::sampler::Blocks;
use pinfeed::tensor::Element;
use pinfeed::{BoxError, Result, SampleRng, Tensor};

use crate::builder::{ParquetBuilder, invalid, of_source};
use crate::dataset::Inner;
use crate::kind::Leaf;
use crate::plan::Batch;
use crate::row::Row;
use crate::value::{Misfit, Value};
use crate::write::write_rows;

/// Columns of numbers that are one tensor of a batch, of elements `T`: [`ParquetBuilder::build_numbers`].
///
/// A column's values are taken for `T` as [`Value`] says.
///
/// # Examples
///
/// In [`ParquetBuilder::build_numbers`].
#[derive(Debug, Clone)]
pub struct Numbers<T> {
    columns: Vec<String>,
    of: PhantomData<fn() -> T>,
}

impl<T: Value + Element> Numbers<T> {
    /// These columns, in this order: `[rows, columns]` of several, and `[rows]` of one. A structure's name stands for all of its fields.
    pub fn of<C: Into<String>>(columns: impl IntoIterator<Item = C>) -> Numbers<T> {
        Numbers {
            columns: columns.into_iter().map(Into::into).collect(),
            of: PhantomData,
        }
    }
}

impl ParquetBuilder {
    /// Finds the files, and makes a data set whose samples are the rows of tensors: of one [`Numbers`], or of a tuple of up to eight. Batches are
    /// tensors, and the same as those of [`build`](ParquetBuilder::build) with a function that returns these values. But a batch copies its rows
    /// from decoded blocks, several at a time, and no function is called for each: that is several times as fast for a few numbers.
    ///
    /// Columns are those of the fields; [`columns`](ParquetBuilder::columns) is left alone. Numbers that fit into memory are read faster still
    /// by [`tensor`](ParquetBuilder::tensor), once for all epochs.
    ///
    /// A value that is null, or does not fit, is an error of its row, as it is where a function takes it.
    ///
    /// # Errors
    ///
    /// Those of [`build`](ParquetBuilder::build); if a field names no column, or one that has no numbers; if `columns` was called.
    ///
    /// # Examples
    ///
    /// ```
    /// use pinfeed::DataLoader;
    /// use pinfeed_parquet::{Numbers, Parquet};
    ///
    /// # let file = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/types.parquet");
    /// let data = Parquet::open(file)?.build_numbers((
    ///     Numbers::<f32>::of(["a", "b"]), // [n, 2]
    ///     Numbers::<i64>::of(["id"]),     // [n]
    /// ))?;
    /// let loader = DataLoader::builder(data).batch_size(10).shuffle(true).num_workers(2).build()?;
    /// for batch in loader.epoch(0) {
    ///     let (features, targets) = batch?;
    ///     assert_eq!((&features.shape()[..], &targets.shape()[..]), (&[10, 2][..], &[10][..]));
    /// }
    /// # Ok::<(), pinfeed::BoxError>(())
    /// ```
    pub fn build_numbers<F: NumberFields>(mut self, fields: F) -> Result<ParquetNumbers<F>> {
        if self.names_columns() {
            let reason =
                "is for `build` and `tensor`: `build_numbers` reads the columns of its fields";
            return Err(invalid("columns", reason.to_owned()));
        }
        let mut named = Vec::new();
        fields.names(&mut named);
        let mut columns = Vec::with_capacity(named.len());
        self = self.columns(named.concat());
        let inner = self.inner().map_err(of_source)?;
        for (field, names) in named.iter().enumerate() {
            let of_field = inner.columns_of(names);
            if of_field.is_empty() {
                let reason = format!("field {field} names no column: each has at least one");
                return Err(invalid("build_numbers", reason));
            }
            let leaves = of_field.iter().filter_map(|at| inner.leaves.get(*at));
            let other = |leaf: &&Leaf| leaf.lists > 0 || leaf.kind.is_viewed();
            if let Some(other) = leaves.clone().find(other) {
                let (path, of) = (&other.path, other.type_name());
                let reason =
                    format!("column {path:?} is {of}, and has no numbers: take it with `build`");
                return Err(invalid("build_numbers", reason));
            }
            columns.push(of_field);
        }
        Ok(ParquetNumbers {
            inner: Arc::new(inner),
            fields: Arc::new(fields),
            columns: columns.into(),
        })
    }
}

/// The rows of Parquet files as rows of tensors: [`ParquetBuilder::build_numbers`].
///
/// As a [`Parquet`](crate::Parquet), it reads row groups at once, or parts of them, and knows its length; clones share the footers.
pub struct ParquetNumbers<F: NumberFields> {
    inner: Arc<Inner>,
    fields: Arc<F>,
    /// Which columns each field has.
    columns: Arc<[Vec<usize>]>,
}

impl<F: NumberFields> ParquetNumbers<F> {
    /// The number of rows: of those that were filtered, if they were.
    pub fn len(&self) -> u64 {
        self.inner.blocks.samples()
    }

    /// Whether there are none: never, as [`build_numbers`](ParquetBuilder::build_numbers) refuses that.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The files' keys in their store, and how many samples each has.
    pub fn files(&self) -> impl Iterator<Item = (&str, u64)> {
        self.inner.samples_of_files()
    }
}

impl<F: NumberFields> Clone for ParquetNumbers<F> {
    fn clone(&self) -> ParquetNumbers<F> {
        ParquetNumbers {
            inner: Arc::clone(&self.inner),
            fields: Arc::clone(&self.fields),
            columns: Arc::clone(&self.columns),
        }
    }
}

impl<F: NumberFields> std::fmt::Debug for ParquetNumbers<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ParquetNumbers")
            .field("store", &self.inner.store)
            .field("files", &self.inner.files.len())
            .field("rows", &self.len())
            .field("blocks", &self.inner.blocks.len())
            .finish_non_exhaustive()
    }
}

/// Rows that were read at once, as tensors.
pub struct NumberRows<R: TensorRows> {
    table: TensorDataset<R>,
    /// Their indices.
    samples: Range<u64>,
    /// Which row group they are of, and the number of the first among its samples.
    group: usize,
    first: u64,
    /// The rows that have a value which is no such number, in order.
    bad: Vec<Bad>,
}

impl<R: TensorRows> std::fmt::Debug for NumberRows<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NumberRows")
            .field("samples", &self.samples)
            .finish_non_exhaustive()
    }
}

/// A value that is no such number as it is taken for.
#[doc(hidden)]
#[derive(Debug)]
pub struct Bad {
    row: usize,
    column: usize,
    misfit: Misfit,
}

impl<F: NumberFields> BlockSource for ParquetNumbers<F> {
    type Block = NumberRows<F::Tensors>;
    type Sample = <F::Tensors as TensorRows>::Row;

    fn blocks(&self) -> Arc<Blocks> {
        Arc::clone(&self.inner.blocks)
    }

    /// What is read and decoded, or the tensors, if these are larger.
    fn block_bytes(&self, _: u64, samples: Range<u64>) -> usize {
        let columns = self.columns.iter().map(Vec::len);
        let row_bytes = self.fields.row_bytes(&columns.collect::<Vec<_>>());
        let rows = usize::try_from(samples.end.saturating_sub(samples.start));
        let tensors = rows.unwrap_or(usize::MAX).saturating_mul(row_bytes);
        self.inner.block_bytes(&samples).max(tensors)
    }

    fn fetch(&self, _: u64, samples: Range<u64>) -> Result<NumberRows<F::Tensors>, BoxError> {
        let inner = &*self.inner;
        let Some((at, own)) = inner.within(&samples) else {
            return Err(inner.no_row(samples.start));
        };
        let group = &inner.groups[at];
        let rows = usize::try_from(own.end - own.start)?;
        let columns = self.columns.iter().map(Vec::len);
        let mut made = self.fields.begin(rows, &columns.collect::<Vec<_>>());
        let mut bad = Vec::new();
        group.fetch_each(
            &*inner.store,
            &inner.files[group.file],
            &own,
            None,
            |batch| {
                let mut columns = self.columns.iter();
                F::each(&mut made, &mut |field| {
                    let columns = columns.next().map_or(&[][..], Vec::as_slice);
                    field.write(&batch, columns, &mut bad);
                });
                Ok(())
            },
        )?;
        bad.sort_by_key(|bad: &Bad| (bad.row, bad.column));
        bad.dedup_by_key(|bad| bad.row);
        Ok(NumberRows {
            table: TensorDataset::new(F::end(made))?,
            samples,
            group: at,
            first: own.start,
            bad,
        })
    }

    fn decode(
        &self,
        rows: &NumberRows<F::Tensors>,
        index: u64,
        rng: &mut SampleRng,
    ) -> Result<Self::Sample, BoxError> {
        let inner = &*self.inner;
        let at = index.checked_sub(rows.samples.start);
        let at = at.filter(|_| index < rows.samples.end);
        let at = at.ok_or_else(|| inner.no_row(index))?;
        let bad = rows.bad.binary_search_by_key(&(at as usize), |bad| bad.row);
        let Ok(bad) = bad else {
            return rows.table.get(at, rng);
        };
        let Bad { column, misfit, .. } = &rows.bad[bad];
        let row = Row {
            inner,
            group: &inner.groups[rows.group],
            sample: rows.first + at,
            columns: &[],
            at: at as usize,
            next: Cell::new(0),
        };
        Err(row.misfit(&inner.names[*column], misfit.clone()).into())
    }

    fn has_tables(&self) -> bool {
        true
    }

    fn table<'a>(&self, rows: &'a NumberRows<F::Tensors>) -> Option<Table<'a>> {
        rows.bad.is_empty().then(|| F::table(&rows.table))
    }

    fn in_flight(&self) -> usize {
        self.inner.in_flight()
    }

    fn describe(&self, index: u64) -> Option<String> {
        self.inner.describe(index)
    }

    fn fingerprint(&self) -> u32 {
        self.inner.fingerprint()
    }
}

impl<F: NumberFields> IntoDataset for ParquetNumbers<F> {
    type Dataset = Blocked<ParquetNumbers<F>>;

    fn into_dataset(self) -> Blocked<ParquetNumbers<F>> {
        Blocked::new(self)
    }
}

/// What batches of numbers are made of: a [`Numbers`], or a tuple of up to eight. The trait is sealed.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a field of numbers",
    note = "a field is a pinfeed_parquet::Numbers or a tuple of up to eight of them"
)]
pub trait NumberFields: Send + Sync + 'static + sealed::Sealed {
    /// The tensors of a block.
    type Tensors: TensorRows;

    #[doc(hidden)]
    type Made;

    /// The columns of each field, as the program names them.
    #[doc(hidden)]
    fn names(&self, names: &mut Vec<Vec<String>>);

    /// How much memory a row takes, where the fields have so many columns.
    #[doc(hidden)]
    fn row_bytes(&self, columns: &[usize]) -> usize;

    /// The fields of so many rows, to be written.
    #[doc(hidden)]
    fn begin(&self, rows: usize, columns: &[usize]) -> Self::Made;

    /// Calls `f` with each field.
    #[doc(hidden)]
    fn each(made: &mut Self::Made, f: &mut dyn FnMut(&mut dyn Field));

    #[doc(hidden)]
    fn end(made: Self::Made) -> Self::Tensors;

    #[doc(hidden)]
    fn table(tensors: &TensorDataset<Self::Tensors>) -> Table<'_>;
}

mod sealed {
    pub trait Sealed {}
}

/// A tensor of a block that is being written.
#[doc(hidden)]
pub trait Field {
    /// Writes the values of these columns of a batch.
    fn write(&mut self, batch: &Batch, columns: &[usize], bad: &mut Vec<Bad>);
}

#[doc(hidden)]
#[derive(Debug)]
pub struct Writing<T: Element>(Tensor<T>);

impl<T: Value + Element> Field for Writing<T> {
    fn write(&mut self, batch: &Batch, columns: &[usize], bad: &mut Vec<Bad>) {
        let values = self.0.as_mut_slice().unwrap_or_default();
        let Ok(()) = write_rows(batch, columns, values, |row, column, misfit| {
            let row = batch.first + row;
            bad.push(Bad {
                row,
                column,
                misfit,
            });
            Ok::<(), Infallible>(())
        });
    }
}

impl<T: Value + Element> sealed::Sealed for Numbers<T> {}

impl<T: Value + Element> NumberFields for Numbers<T> {
    type Tensors = Tensor<T>;
    type Made = Writing<T>;

    fn names(&self, names: &mut Vec<Vec<String>>) {
        names.push(self.columns.clone());
    }

    fn row_bytes(&self, columns: &[usize]) -> usize {
        columns.iter().sum::<usize>() * size_of::<T>()
    }

    fn begin(&self, rows: usize, columns: &[usize]) -> Writing<T> {
        Writing(match columns {
            [1] => Tensor::zeros(&[rows]),
            columns => Tensor::zeros(&[rows, columns.iter().sum()]),
        })
    }

    fn each(made: &mut Writing<T>, f: &mut dyn FnMut(&mut dyn Field)) {
        f(made);
    }

    fn end(made: Writing<T>) -> Tensor<T> {
        made.0
    }

    fn table(tensors: &TensorDataset<Tensor<T>>) -> Table<'_> {
        tensors.table()
    }
}

macro_rules! tuples {
    ($(($($index:tt $type:ident),+);)*) => {$(
        impl<$($type: Value + Element),+> sealed::Sealed for ($(Numbers<$type>,)+) {}

        impl<$($type: Value + Element),+> NumberFields for ($(Numbers<$type>,)+) {
            type Tensors = ($(Tensor<$type>,)+);
            type Made = ($(Writing<$type>,)+);

            fn names(&self, names: &mut Vec<Vec<String>>) {
                $(self.$index.names(names);)+
            }

            fn row_bytes(&self, columns: &[usize]) -> usize {
                0 $(+ self.$index.row_bytes(&columns[$index..=$index]))+
            }

            fn begin(&self, rows: usize, columns: &[usize]) -> Self::Made {
                ($(self.$index.begin(rows, &columns[$index..=$index]),)+)
            }

            fn each(made: &mut Self::Made, f: &mut dyn FnMut(&mut dyn Field)) {
                $(f(&mut made.$index);)+
            }

            fn end(made: Self::Made) -> Self::Tensors {
                ($(made.$index.0,)+)
            }

            fn table(tensors: &TensorDataset<Self::Tensors>) -> Table<'_> {
                tensors.table()
            }
        }
    )*};
}

tuples! {
    (0 A);
    (0 A, 1 B);
    (0 A, 1 B, 2 C);
    (0 A, 1 B, 2 C, 3 D);
    (0 A, 1 B, 2 C, 3 D, 4 E);
    (0 A, 1 B, 2 C, 3 D, 4 E, 5 F);
    (0 A, 1 B, 2 C, 3 D, 4 E, 5 F, 6 G);
    (0 A, 1 B, 2 C, 3 D, 4 E, 5 F, 6 G, 7 H);
}
