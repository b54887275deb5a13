//! What is read at once: row groups, or parts of large ones, and how many bytes that is.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use parquet::DecodeResult;
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{ArrowReaderMetadata, RowSelection};
use parquet::arrow::push_decoder::{ParquetPushDecoderBuilder, RowGroupSelection};
use parquet::file::metadata::RowGroupMetaData;
use pinfeed::BoxError;
use pinfeed::store::{Object, Store};

use crate::column::Column;
use crate::error::{Cause, ParquetError};
use crate::filter::Scalar;
use crate::footer::{guarded, said};
use crate::kind::Leaf;

/// A file, and which of its columns are read.
pub(crate) struct File {
    pub(crate) object: Object,
    pub(crate) place: String,
    pub(crate) reader: ArrowReaderMetadata,
    pub(crate) chosen: Chosen,
    /// The values of the columns that its folders' names make.
    pub(crate) partitions: Vec<Scalar>,
}

/// Columns of values of a file.
#[derive(Clone)]
pub(crate) struct Chosen {
    /// Of each column, as the data set lists them: where it is among the file's.
    pub(crate) leaves: Vec<usize>,
    mask: ProjectionMask,
    /// Of each column, in the order in which the file has them: where it is in the data set's list.
    order: Vec<usize>,
}

impl Chosen {
    pub(crate) fn new(reader: &ArrowReaderMetadata, leaves: Vec<usize>) -> Chosen {
        let mut order: Vec<usize> = (0..leaves.len()).collect();
        order.sort_by_key(|column| leaves[*column]);
        Chosen {
            mask: ProjectionMask::leaves(reader.parquet_schema(), leaves.iter().copied()),
            leaves,
            order,
        }
    }
}

/// A row group, and which of its rows are samples.
pub(crate) struct Group {
    pub(crate) file: usize,
    pub(crate) row_group: usize,
    /// How many rows the file has before it.
    pub(crate) row: u64,
    pub(crate) rows: u64,
    /// The rows that are taken; `None`: all.
    pub(crate) kept: Option<Arc<[u32]>>,
    /// Whether parts of it can be read.
    pub(crate) has_pages: bool,
    /// How many bytes of it are read, and how many these are once they are decoded.
    pub(crate) stored: u64,
    pub(crate) decoded: u64,
}

impl Group {
    pub(crate) fn new(
        file: usize,
        row_group: usize,
        row: u64,
        metadata: &RowGroupMetaData,
    ) -> Group {
        Group {
            file,
            row_group,
            row,
            rows: u64::try_from(metadata.num_rows()).unwrap_or(0),
            kept: None,
            has_pages: false,
            stored: 0,
            decoded: 0,
        }
    }

    /// How many samples it has.
    pub(crate) fn samples(&self) -> u64 {
        self.kept
            .as_ref()
            .map_or(self.rows, |kept| kept.len() as u64)
    }

    /// The row of a sample.
    pub(crate) fn row_of(&self, sample: u64) -> u64 {
        match &self.kept {
            Some(kept) => kept.get(sample as usize).map_or(0, |row| u64::from(*row)),
            None => sample,
        }
    }

    /// The rows from the first to the last of these samples.
    fn rows_of(&self, samples: &Range<u64>) -> Range<u64> {
        match samples.end.checked_sub(1) {
            Some(last) if samples.start <= last => {
                self.row_of(samples.start)..self.row_of(last) + 1
            }
            _ => 0..0,
        }
    }

    /// Which rows are decoded for these samples; `None`: all of the row group.
    fn selection(&self, samples: &Range<u64>) -> Option<RowSelection> {
        let total = self.rows as usize;
        match &self.kept {
            None if *samples == (0..self.rows) => None,
            None => {
                let rows = samples.start as usize..samples.end as usize;
                Some(RowSelection::from_consecutive_ranges(
                    std::iter::once(rows),
                    total,
                ))
            }
            Some(kept) => {
                let kept = &kept[samples.start as usize..samples.end as usize];
                let runs = kept.chunk_by(|row, next| row + 1 == *next);
                let runs = runs.map(|run| run[0] as usize..run[0] as usize + run.len());
                Some(RowSelection::from_consecutive_ranges(runs, total))
            }
        }
    }

    /// How many bytes these samples take while they are read and decoded.
    pub(crate) fn bytes(&self, file: &File, leaves: &[Leaf], samples: &Range<u64>) -> u64 {
        let rows = self.rows_of(samples);
        if !self.has_pages || rows == (0..self.rows) {
            return self.stored + self.decoded;
        }
        let metadata = file.reader.metadata();
        let pages = metadata.page_index_for_row_group(self.row_group);
        let row_group = metadata.row_group(self.row_group);
        let mut bytes = 0;
        for (leaf, of) in file.chosen.leaves.iter().zip(leaves) {
            let chunk = row_group.column(*leaf);
            let (start, stored) = chunk.byte_range();
            let touched = match pages.page_locations(*leaf).map(|pages| &pages[..]) {
                Some(pages @ [first, ..]) => {
                    let number = |value: i64| u64::try_from(value).unwrap_or(0);
                    // (The page that a row lies in is the last that does not begin behind it.)
                    let from =
                        pages.partition_point(|page| number(page.first_row_index) <= rows.start);
                    let to = pages.partition_point(|page| number(page.first_row_index) < rows.end);
                    let touched = &pages[from.saturating_sub(1).min(to)..to];
                    let touched = touched
                        .iter()
                        .map(|page| number(page.compressed_page_size.into()));
                    number(first.offset).saturating_sub(start) + touched.sum::<u64>()
                }
                _ => stored,
            };
            let part = ((rows.end - rows.start) as f64 / self.rows.max(1) as f64).min(1.0);
            bytes += touched
                + decoded_bytes(
                    of,
                    row_group,
                    *leaf,
                    part,
                    touched as f64 / stored.max(1) as f64,
                );
        }
        bytes
    }

    /// Counts the bytes of the chosen columns.
    pub(crate) fn measure(&mut self, file: &File, leaves: &[Leaf]) {
        let row_group = file.reader.metadata().row_group(self.row_group);
        (self.stored, self.decoded) = (0, 0);
        for (leaf, of) in file.chosen.leaves.iter().zip(leaves) {
            self.stored += row_group.column(*leaf).byte_range().1;
            self.decoded += decoded_bytes(of, row_group, *leaf, 1.0, 1.0);
        }
    }

    /// Cuts it where pages of its largest column begin, into parts of about so many bytes to read. Returns how many samples each has.
    pub(crate) fn cut(&self, file: &File, part_bytes: u64) -> Vec<u64> {
        let metadata = file.reader.metadata();
        let row_group = metadata.row_group(self.row_group);
        let largest = file.chosen.leaves.iter().copied();
        let largest = largest.max_by_key(|leaf| row_group.column(*leaf).byte_range().1);
        let pages = metadata.page_index_for_row_group(self.row_group);
        let pages = largest.and_then(|leaf| pages.page_locations(leaf));
        let Some(pages) = pages.filter(|_| self.has_pages && self.stored > part_bytes) else {
            return vec![self.samples()];
        };
        let row_bytes = self.stored as f64 / self.rows.max(1) as f64;
        let rows = (part_bytes as f64 / row_bytes) as u64;
        let mut cuts = vec![0];
        for page in pages {
            let row = u64::try_from(page.first_row_index)
                .unwrap_or(0)
                .min(self.rows);
            let last = cuts[cuts.len() - 1];
            // (What is left at the end is at least half as large.)
            if row - last.min(row) >= rows && self.rows - row >= rows / 2 {
                cuts.push(row);
            }
        }
        cuts.push(self.rows);
        let samples_before = |row: u64| match &self.kept {
            Some(kept) => kept.partition_point(|kept| u64::from(*kept) < row) as u64,
            None => row,
        };
        let parts = cuts
            .windows(2)
            .map(|cut| samples_before(cut[1]) - samples_before(cut[0]));
        parts.filter(|samples| *samples > 0).collect()
    }

    /// Reads and decodes these samples.
    pub(crate) fn fetch(
        &self,
        store: &dyn Store,
        file: &File,
        samples: &Range<u64>,
    ) -> Result<Vec<Column>, BoxError> {
        let rows = (samples.end - samples.start) as usize;
        let mut columns = read(
            store,
            file,
            &file.chosen,
            self.row_group,
            self.selection(samples),
            rows,
        )?;
        columns.extend(file.partitions.iter().cloned().map(Column::same));
        Ok(columns)
    }
}

/// How many bytes values are once they are decoded: those of a part of the rows, which lie in a part of the pages.
fn decoded_bytes(
    leaf: &Leaf,
    row_group: &RowGroupMetaData,
    at: usize,
    rows: f64,
    pages: f64,
) -> u64 {
    let chunk = row_group.column(at);
    let number = |value: i64| u64::try_from(value).unwrap_or(0) as f64;
    let mut bytes = number(chunk.num_values()) * rows * leaf.kind.width() as f64;
    if leaf.kind.is_viewed() {
        bytes += number(chunk.uncompressed_size()) * pages;
    }
    // (Where lists begin, and a bit of each value that may be null.)
    bytes += leaf.lists as f64 * 4.0 * number(row_group.num_rows()) * rows;
    bytes += number(chunk.num_values()) * rows / 8.0;
    bytes as u64
}

/// Reads columns of a row group, and decodes them: all rows, or those that are selected. They come as the data set lists them.
pub(crate) fn read(
    store: &dyn Store,
    file: &File,
    chosen: &Chosen,
    row_group: usize,
    selection: Option<RowSelection>,
    rows: usize,
) -> Result<Vec<Column>, BoxError> {
    let File {
        object,
        place,
        reader,
        ..
    } = file;
    if chosen.leaves.is_empty() {
        return Ok(Vec::new());
    }
    let damaged = |what: String| -> BoxError {
        ParquetError::new(place, Cause::Damaged { row_group, what }).into()
    };
    let selection = RowGroupSelection::new(row_group, selection);
    let decoder = ParquetPushDecoderBuilder::new_with_metadata(reader.clone())
        .with_projection(chosen.mask.clone())
        .with_batch_size(rows)
        .with_row_group_selections(vec![selection])
        .build();
    let mut decoder = decoder.map_err(|fault| damaged(said(&fault)))?;
    let mut batches = Vec::new();
    loop {
        let step = guarded(|| decoder.try_decode());
        match step.map_err(|fault| damaged(said(&fault)))? {
            DecodeResult::Data(batch) => batches.push(batch),
            DecodeResult::NeedsData(ranges) => {
                let parts = store.read_many(object, &ranges);
                let parts = parts.map_err(|error| ParquetError::of_store(place, object, error))?;
                let parts = parts.into_iter().map(Bytes::from).collect();
                let pushed = decoder.push_ranges(ranges, parts);
                pushed.map_err(|fault| damaged(said(&fault)))?;
            }
            DecodeResult::Finished => break,
        }
    }
    let batch = match &batches[..] {
        [only] => only.clone(),
        [] => return Err(damaged(format!("it has none of {rows} rows"))),
        [first, ..] => arrow_select::concat::concat_batches(&first.schema(), &batches)
            .map_err(|error| damaged(error.to_string()))?,
    };
    if batch.num_rows() != rows {
        return Err(damaged(format!(
            "it has {} of {rows} rows",
            batch.num_rows()
        )));
    }
    let mut columns = Vec::with_capacity(chosen.leaves.len());
    for column in batch.columns() {
        let flat = Column::flatten(column, &mut columns);
        flat.ok_or_else(|| damaged(format!("a column has the type {}", column.data_type())))?;
    }
    if columns.len() != chosen.order.len() {
        return Err(damaged(format!(
            "it has {} of {} columns",
            columns.len(),
            chosen.order.len()
        )));
    }
    let mut ordered: Vec<(usize, Column)> = chosen.order.iter().copied().zip(columns).collect();
    ordered.sort_by_key(|(at, _)| *at);
    Ok(ordered.into_iter().map(|(_, column)| column).collect())
}
