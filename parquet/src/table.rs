//! Numbers that fit into memory: all rows as one tensor.

use std::cell::Cell;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use pinfeed::tensor::Element;
use pinfeed::{BoxError, Error, Result, Tensor};

use crate::builder::{ParquetBuilder, in_parallel, of_source};
use crate::dataset::Inner;
use crate::row::Row;
use crate::value::Value;

/// How much of a row group is read at once, if the program does not say.
const PART: u64 = 8 << 20;

/// How many rows are written at once.
const AT_ONCE: usize = 256;

impl ParquetBuilder {
    /// Reads all rows into memory, as one tensor: `[rows, columns]` of several columns, and `[rows]` of one. For numbers that fit, that is much
    /// faster than taking them row by row: a [`TensorDataset`](pinfeed::TensorDataset) copies its rows into batches, and an epoch
    /// reads no file.
    ///
    /// Rows come in the order in which they lie, those that are [filtered](ParquetBuilder::filter) out left out; so tensors of other columns, with the same
    /// filters, have the same rows. All cores decode, and beside the tensor there are at most 16 blocks in memory.
    ///
    /// # Errors
    ///
    /// Those of [`build`](ParquetBuilder::build); if a column has no numbers (lists among them), or a value is null or does not fit; if there is not
    /// enough memory.
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
        inner.tensor().map_err(of_source)
    }
}

impl Inner {
    fn tensor<T: Value + Element>(&self) -> Result<Tensor<T>, BoxError> {
        let (rows, columns) = (usize::try_from(self.blocks.samples())?, self.names.len());
        let elements = rows
            .checked_mul(columns)
            .ok_or("there are too many numbers")?;
        // (Asked first: where there is no memory, `vec!` ends the process.)
        let room = Vec::<T>::new().try_reserve_exact(elements);
        room.map_err(|_| {
            let bytes = elements.saturating_mul(size_of::<T>());
            format!(
                "{rows} rows of {columns} columns take {} MiB, which there are not: take them row by row (`build`)",
                bytes >> 20
            )
        })?;
        let mut values = vec![T::default(); elements];

        let (mut rest, mut parts) = (&mut values[..], Vec::new());
        for block in 0..self.blocks.len() {
            let samples = self.blocks.range(block);
            let length = (samples.end - samples.start) as usize * columns;
            let (part, behind) = rest.split_at_mut(length);
            parts.push((samples, Mutex::new(part)));
            rest = behind;
        }
        in_parallel(&parts, |(samples, part)| {
            let mut part = part.lock().unwrap_or_else(PoisonError::into_inner);
            self.fill(samples, &mut part)
        })?;
        drop(parts);
        let shape: &[usize] = if columns == 1 {
            &[rows]
        } else {
            &[rows, columns]
        };
        Ok(Tensor::from_vec(values, shape).map_err(Error::from)?)
    }

    /// Writes the values of these samples, one row behind the other.
    fn fill<T: Value>(&self, samples: &Range<u64>, values: &mut [T]) -> Result<(), BoxError> {
        let (group, own) = self.within(samples).ok_or("there are no such rows")?;
        let columns = group.fetch(&*self.store, &self.files[group.file], &own)?;
        let rows = (own.end - own.start) as usize;
        // (A few rows at a time, which stay in the cache while all of their columns are written.)
        for (first, values) in (0..rows)
            .step_by(AT_ONCE)
            .zip(values.chunks_mut(AT_ONCE * columns.len()))
        {
            for (at, column) in columns.iter().enumerate() {
                let written = T::write(column, first, at, columns.len(), values);
                written.map_err(|(row, misfit)| {
                    let row = Row {
                        inner: self,
                        group,
                        sample: own.start + row as u64,
                        columns: &columns,
                        at: row,
                        next: Cell::new(0),
                    };
                    row.misfit(&self.names[at], misfit)
                })?;
            }
        }
        Ok(())
    }
}
