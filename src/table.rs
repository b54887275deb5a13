//! Tables in device memory: the loader's order, samplers and batches, of rows that are on the device already.
//!
//! A sample is the number of its row. So a batch on the host is a list of numbers in its slab, which the pipeline fills like any other
//! field; its tensors refer to that list and to the table's columns (`tensor/scattered.rs`). Sending the batch runs one kernel, which
//! gathers the rows (`device/table.rs`).

use std::fmt;
use std::marker::PhantomData;

use crate::batch::Batch;
use crate::dataset::{HostRows, StoredRows, TensorDataset, TensorRows, sealed};
use crate::device::{Device, DeviceTensor, table};
use crate::error::{CollateError, Error, Result};
use crate::sync::Arc;
use crate::tensor::{
    Column, Element, Field, Filled, Layout, Row, Sample, Shape, TableColumn, Tensor, are_below,
};

impl<R> TensorDataset<R>
where
    R: TensorRows<Stored = R> + HostRows + Batch,
    R::OnDevice: TensorRows,
{
    /// Copies the table to the device, and gives its samples from there: batches are of the same type, and in the same order, but nothing
    /// crosses the link except the numbers of their rows. A kernel gathers these when a batch is sent to the device. Tensors that are
    /// there already make a table by [`new`](TensorDataset::new).
    ///
    /// Send the batches to the device that has the table. Another one is [`Error::WrongDevice`]. A batch
    /// that is read on the host is copied from the device then, which takes its time, and panics if the device fails. It cannot be written.
    ///
    /// # Synchronization
    ///
    /// Blocks until the table is on the device. What it had on the host is dropped.
    ///
    /// # Errors
    ///
    /// [`Error::DeviceBudget`], with both sizes, if the table does not fit into what is left of the
    /// [budget](Device::set_device_budget_bytes); [`Error::Device`] if the device fails.
    ///
    /// # Examples
    ///
    /// ```
    /// use pinfeed::{DataLoader, Device, Tensor, TensorDataset};
    ///
    /// let device = Device::cpu();
    /// let inputs = Tensor::<f32>::zeros(&[1_000, 20]);
    /// let targets = Tensor::<f32>::zeros(&[1_000]);
    /// let table = TensorDataset::new((inputs, targets))?.to_device(&device)?;
    /// let loader = DataLoader::builder(table).batch_size(100).shuffle(true).pin_memory(&device).build()?;
    /// for batch in loader.epoch(0).prefetch_to_device(&device, 2) {
    ///     let (inputs, targets) = batch?;
    ///     assert_eq!((inputs.shape()[..].to_vec(), targets.len()), (vec![100, 20], 100));
    /// }
    /// # Ok::<(), pinfeed::Error>(())
    /// ```
    pub fn to_device(self, device: &Device) -> Result<TensorDataset<R::OnDevice>> {
        TensorDataset::new(self.into_stored().to_device(device, false)?)
    }
}

/// Tensors on a device, as a table's columns.
#[doc(hidden)]
pub trait DeviceRows: Send + Sync + 'static {
    /// Some of the rows.
    type Batch: Send + 'static;

    #[doc(hidden)]
    fn devices(&self) -> Vec<Device>;

    #[doc(hidden)]
    fn into_columns(self) -> Result<Vec<TableField>>;

    /// The rows of these numbers.
    #[doc(hidden)]
    fn batch(rows: &Rows<'_>) -> Self::Batch;
}

/// A column, and the shape of its rows.
#[doc(hidden)]
#[expect(missing_debug_implementations, reason = "programs cannot name it")]
pub struct TableField {
    column: Arc<dyn TableColumn>,
    row_shape: Shape,
    rows: usize,
    bytes: usize,
}

/// Rows of a table, by their numbers.
#[doc(hidden)]
#[expect(missing_debug_implementations, reason = "programs cannot name it")]
pub struct Rows<'a> {
    table: &'a [TableField],
    numbers: &'a Tensor<i64>,
}

/// A table on a device.
#[doc(hidden)]
pub struct DeviceTable<R> {
    fields: Arc<[TableField]>,
    rows: usize,
    tensors: PhantomData<fn() -> R>,
}

impl<R: DeviceRows> DeviceTable<R> {
    /// The first dimensions are asked of the columns themselves, whatever was asked of the tensors before.
    fn new(tensors: R) -> Result<DeviceTable<R>> {
        table::same_device(tensors.devices().iter())?;
        let fields: Arc<[TableField]> = tensors.into_columns()?.into();
        let rows = fields.first().map_or(0, |field| field.rows);
        match fields.iter().find(|field| field.rows != rows) {
            None => Ok(DeviceTable {
                fields,
                rows,
                tensors: PhantomData,
            }),
            Some(other) => Err(Error::option(
                "TensorDataset::new",
                format!(
                    "tensor 0 has {rows} rows and another has {}: a table has as many of each",
                    other.rows
                ),
            )),
        }
    }
}

impl<R: DeviceRows> StoredRows for DeviceTable<R> {
    type Row = DeviceRow<R>;

    fn columns(&self, columns: &mut Vec<Column>) {
        columns.push(Column::numbers(self.rows));
    }

    fn row(&self, index: usize) -> DeviceRow<R> {
        assert!(
            index < self.rows,
            "row {index} of a table of {} rows",
            self.rows
        );
        DeviceRow {
            table: Arc::clone(&self.fields),
            index,
            tensors: PhantomData,
        }
    }

    fn is_registered(&self) -> bool {
        false
    }

    fn size_bytes(&self) -> usize {
        self.fields.iter().map(|field| field.bytes).sum()
    }

    /// Its number.
    fn sample_bytes(&self, _: usize) -> usize {
        size_of::<i64>()
    }
}

impl<R> fmt::Debug for DeviceTable<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shapes = self.fields.iter().map(|field| &field.row_shape);
        f.debug_list().entries(shapes).finish()
    }
}

impl TableField {
    fn new<T: Element>(tensor: DeviceTensor<T>) -> Result<TableField> {
        Ok(TableField {
            row_shape: tensor.shape().get(1..).unwrap_or_default().into(),
            rows: tensor.shape().first().copied().unwrap_or(0),
            bytes: tensor.size_bytes(),
            column: tensor.into_column()?,
        })
    }
}

impl<'a> Rows<'a> {
    /// # Panics
    ///
    /// If the table has no row of a number.
    fn new(table: &'a [TableField], numbers: &'a Tensor<i64>) -> Rows<'a> {
        let rows = table.first().map_or(0, |field| field.rows); // as many as each of the others
        // Each was checked before. But a sample of the program's own could have written into the field, and the kernel trusts it.
        let are_there = are_below(numbers.as_slice().iter().map(|&row| row as u64), rows);
        assert!(are_there, "rows of a table that it does not have");
        Rows { table, numbers }
    }

    /// # Safety
    ///
    /// The column of this index must be of `T`.
    unsafe fn of<T: Element>(&self, column: usize) -> Tensor<T> {
        let field = &self.table[column];
        let column = Arc::clone(&field.column);
        // SAFETY: the caller's contract; `new` checked the numbers, and they are not written any more.
        unsafe { Tensor::from_table(self.numbers, &field.row_shape, column) }
    }
}

impl<T: Element> sealed::Sealed for DeviceTensor<T> {}

impl<T: Element> DeviceRows for DeviceTensor<T> {
    type Batch = Tensor<T>;

    fn devices(&self) -> Vec<Device> {
        vec![self.device()]
    }

    fn into_columns(self) -> Result<Vec<TableField>> {
        Ok(vec![TableField::new(self)?])
    }

    fn batch(rows: &Rows<'_>) -> Tensor<T> {
        // SAFETY: `into_columns` made this column.
        unsafe { rows.of(0) }
    }
}

impl<T: Element> TensorRows for DeviceTensor<T> {
    type Row = DeviceRow<Self>;
    type Stored = DeviceTable<Self>;

    fn lengths(&self, lengths: &mut Vec<Option<usize>>) {
        lengths.push(self.shape().first().copied());
    }

    fn stored(self) -> Result<DeviceTable<Self>> {
        DeviceTable::new(self)
    }
}

macro_rules! tuples {
    ($(($($name:ident $index:tt),+);)*) => {$(
        impl<$($name: Element),+> sealed::Sealed for ($(DeviceTensor<$name>,)+) {}

        impl<$($name: Element),+> DeviceRows for ($(DeviceTensor<$name>,)+) {
            type Batch = ($(Tensor<$name>,)+);

            fn devices(&self) -> Vec<Device> {
                vec![$(self.$index.device()),+]
            }

            fn into_columns(self) -> Result<Vec<TableField>> {
                Ok(vec![$(TableField::new(self.$index)?),+])
            }

            fn batch(rows: &Rows<'_>) -> Self::Batch {
                // SAFETY: `into_columns` made the column of each index.
                unsafe { ($(rows.of::<$name>($index),)+) }
            }
        }

        impl<$($name: Element),+> TensorRows for ($(DeviceTensor<$name>,)+) {
            type Row = DeviceRow<Self>;
            type Stored = DeviceTable<Self>;

            fn lengths(&self, lengths: &mut Vec<Option<usize>>) {
                $(TensorRows::lengths(&self.$index, lengths);)+
            }

            fn stored(self) -> Result<DeviceTable<Self>> {
                DeviceTable::new(self)
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

/// A row of a table on a device: what a [`TensorDataset`] of [`DeviceTensor`]s gives as a sample. It has the row's number, and nothing to
/// read.
///
/// # Examples
///
/// ```
/// use pinfeed::dataset::Dataset;
/// use pinfeed::{Batch, DataLoader, Device, Tensor, TensorDataset};
///
/// let device = Device::cpu();
/// let table = TensorDataset::new(Tensor::from(vec![0.5f32; 100]))?.to_device(&device)?;
/// let numbered = table.map(|row, _| {
///     let number = row.index() as i64;
///     Ok((row, number))
/// });
/// let loader = DataLoader::builder(numbered).batch_size(10).build()?;
/// for batch in &loader {
///     let (rows, numbers) = batch?.to_device(&device, true)?;
///     assert_eq!((rows.len(), numbers.len()), (10, 10));
/// }
/// # Ok::<(), pinfeed::Error>(())
/// ```
pub struct DeviceRow<R> {
    table: Arc<[TableField]>,
    index: usize,
    tensors: PhantomData<fn() -> R>,
}

impl<R> DeviceRow<R> {
    /// The number of the row in its table.
    pub fn index(&self) -> usize {
        self.index
    }
}

impl<R> fmt::Debug for DeviceRow<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceRow")
            .field("index", &self.index)
            .finish_non_exhaustive()
    }
}

/// The plan of a batch of rows: a list of their numbers.
#[doc(hidden)]
#[expect(missing_debug_implementations, reason = "programs cannot name it")]
pub struct DevicePlan {
    table: Arc<[TableField]>,
    numbers: Field<i64>,
}

impl<R: DeviceRows> Sample for DeviceRow<R> {
    type Batch = R::Batch;
    type Plan = DevicePlan;
    type Rest = ();
    const DENSE: bool = true;

    fn rest_of_rows() -> Option<()> {
        Some(())
    }

    fn plan<'a>(
        mut samples: impl Iterator<Item = &'a Self> + Clone,
        layout: &mut Layout,
    ) -> Result<DevicePlan, CollateError> {
        let Some(first) = samples.next() else {
            return Err(CollateError::Other(
                "a batch without samples is of no table".into(),
            ));
        };
        Ok(DevicePlan {
            table: Arc::clone(&first.table),
            numbers: layout.field(&[])?,
        })
    }

    fn fill(self, plan: &DevicePlan, row: &mut Row<'_>) -> Result<(), CollateError> {
        if !Arc::ptr_eq(&self.table, &plan.table) {
            return Err(CollateError::Other(
                "the batch has rows of two tables on a device: concatenate the tensors, not the data sets".into(),
            ));
        }
        row.write(&plan.numbers, &[self.index as i64])
    }

    fn finish(plan: DevicePlan, _: Vec<()>, filled: &mut Filled) -> R::Batch {
        R::batch(&Rows::new(&plan.table, &filled.take(plan.numbers)))
    }
}
