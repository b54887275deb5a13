//! Numbers that fit into memory: all rows as one tensor.

use std::cell::Cell;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use pinfeed::tensor::Element;
use pinfeed::{BoxError, Result, Tensor};

use crate::builder::{ParquetBuilder, invalid, of_source};
use crate::dataset::Inner;
use crate::parallel::{Cores, decode_in_parallel};
use crate::row::Row;
use crate::value::Value;
use crate::write::write_rows;

/// How much memory what is read at once takes, read and decoded, if the program does not say.
const PART: u64 = 16 << 20;

impl ParquetBuilder {
    /// Reads all rows into memory, as one tensor: `[rows, columns]` of several columns, and `[rows]` of one. For numbers that fit, that is much
    /// faster than taking them row by row: a [`TensorDataset`](pinfeed::TensorDataset) copies its rows into batches, and an epoch
    /// reads no file.
    ///
    /// Rows come in the order in which they lie, those that are [filtered](ParquetBuilder::filter) out left out; so tensors of other columns, with the same
    /// filters, have the same rows. Columns come in the order in which they are [asked for](ParquetBuilder::columns), those of folders
    /// (`year=2024/`) if they are; if none is asked for, all that `build` reads.
    ///
    /// All cores decode, while up to 16 threads read (as many as there are cores, if those are more). Beside the tensor, there is 1 GiB in
    /// memory at most, read and decoded, or one row group that is larger.
    ///
    /// # Errors
    ///
    /// Those of [`build`](ParquetBuilder::build); if there is no column; if one has no numbers (lists among them), or a value is null or
    /// does not fit; if there is not enough memory.
    ///
    /// # Examples
    ///
    /// ```
    /// use pinfeed::{DataLoader, TensorDataset};
    /// use pinfeed_parquet::Parquet;
    ///
    /// # let file = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/types.parquet");
    /// let features = Parquet::open(file)?.columns(["a", "b"]).tensor::<f32>()?; // [20, 2]
    /// let targets = Parquet::open(file)?.columns(["id"]).tensor::<i64>()?; // [20]
    /// let table = TensorDataset::new((features, targets))?;
    /// let loader = DataLoader::builder(table).batch_size(10).shuffle(true).build()?;
    /// let (features, targets) = loader.epoch(0).next().unwrap()?;
    /// assert_eq!((&features.shape()[..], &targets.shape()[..]), (&[10, 2][..], &[10][..]));
    /// # Ok::<(), pinfeed::BoxError>(())
    /// ```
    pub fn tensor<T: Value + Element>(mut self) -> Result<Tensor<T>> {
        self.block_bytes.get_or_insert(PART); // (Nothing has to mix here.)
        let inner = self.inner().map_err(of_source)?;
        if inner.asked.is_empty() {
            let reason = "names none, and a tensor has at least one: name those with numbers";
            return Err(invalid("columns", reason.to_owned()));
        }
        inner.tensor().map_err(of_source)
    }
}

impl Inner {
    fn tensor<T: Value + Element>(&self) -> Result<Tensor<T>, BoxError> {
        let (rows, columns) = (usize::try_from(self.blocks.samples())?, self.asked.len());
        let elements = rows
            .checked_mul(columns)
            .ok_or("there are too many numbers")?;
        // (Asked first: where there is no memory, `zeros` panics.)
        let room = Vec::<T>::new().try_reserve_exact(elements);
        room.map_err(|_| {
            let bytes = elements.saturating_mul(size_of::<T>());
            format!(
                "{rows} rows of {columns} columns take {} MiB, which there are not: take them row by row (`build`)",
                bytes >> 20
            )
        })?;
        let shape: &[usize] = match columns {
            1 => &[rows],
            _ => &[rows, columns],
        };
        let mut tensor = Tensor::<T>::zeros(shape);
        let values = tensor.as_mut_slice().ok_or("the tensor is shared")?; // cannot be

        let (mut rest, mut parts) = (values, Vec::new());
        for block in 0..self.blocks.len() {
            let samples = self.blocks.range(block);
            let length = (samples.end - samples.start) as usize * columns;
            let (part, behind) = rest.split_at_mut(length);
            parts.push((samples, Mutex::new(part)));
            rest = behind;
        }
        let bytes_of = |(samples, _): &(Range<u64>, _)| {
            let part = self.within(samples).map(|(group, own)| {
                let group = &self.groups[group];
                group.bytes(&self.files[group.file], &self.leaves, &own)
            });
            part.unwrap_or(0)
        };
        decode_in_parallel(&parts, bytes_of, |(samples, part), cores| {
            let mut part = part.lock().unwrap_or_else(PoisonError::into_inner);
            self.fill(samples, &mut part, cores)
        })?;
        drop(parts);
        Ok(tensor)
    }

    /// Writes the values of these samples, one row behind the other.
    fn fill<T: Value>(
        &self,
        samples: &Range<u64>,
        values: &mut [T],
        cores: &Cores,
    ) -> Result<(), BoxError> {
        let (group, own) = self.within(samples).ok_or("there are no such rows")?;
        let group = &self.groups[group];
        let file = &self.files[group.file];
        group.fetch_each(&*self.store, file, &own, Some(cores), |batch| {
            write_rows(&batch, &self.asked, values, |row, column, misfit| {
                let row = Row {
                    inner: self,
                    group,
                    sample: own.start + (batch.first + row) as u64,
                    columns: &batch.columns,
                    at: row,
                    next: Cell::new(0),
                };
                Err(row.misfit(&self.names[column], misfit).into())
            })
        })
    }
}
