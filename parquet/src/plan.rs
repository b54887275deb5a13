//! What is read at once: row groups, or parts of large ones, and how many bytes that is.

use std::ops::Range;
use std::sync::Arc;

use arrow_array::RecordBatch;
use bytes::Bytes;
use parquet::DecodeResult;
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{ArrowReaderMetadata, RowSelection};
use parquet::arrow::push_decoder::{ParquetPushDecoderBuilder, RowGroupSelection};
use parquet::basic::Type;
use parquet::file::metadata::RowGroupMetaData;
use pinfeed::BoxError;
use pinfeed::store::{Object, Store};

use crate::column::Column;
use crate::error::{Cause, ParquetError};
use crate::filter::Scalar;
use crate::footer::{guarded, said};
use crate::kind::Leaf;
use crate::parallel::{Core, Cores};

/// How many rows are decoded at once: few enough that a batch of some columns stays in a core's cache until its rows are taken.
const BATCH: usize = 8192;

/// What a part of a row group reads may be so many times its share of the row group, because of pages that it has in common with others.
const MOST_SHARED: f64 = 1.5;

/// What is read into one buffer, at most, of ranges that lie side by side: as much as a store reads by one request.
const JOINED: u64 = 16 << 20;

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
    /// Whether values are copied out of what is read, as numbers are: then no value keeps alive what lies beside it.
    are_copied: bool,
}

impl Chosen {
    pub(crate) fn new(reader: &ArrowReaderMetadata, leaves: Vec<usize>) -> Chosen {
        let mut order: Vec<usize> = (0..leaves.len()).collect();
        order.sort_by_key(|column| leaves[*column]);
        let columns = reader.parquet_schema();
        let is_copied = |leaf: &usize| columns.column(*leaf).physical_type() != Type::BYTE_ARRAY;
        Chosen {
            are_copied: leaves.iter().all(is_copied),
            mask: ProjectionMask::leaves(reader.parquet_schema(), leaves.iter().copied()),
            leaves,
            order,
        }
    }

    /// The columns of a batch, as the data set lists them.
    fn columns(&self, batch: &RecordBatch) -> Result<Vec<Column>, String> {
        let mut columns = Vec::with_capacity(self.order.len());
        for column in batch.columns() {
            let flat = Column::flatten(column, &mut columns);
            flat.ok_or_else(|| format!("a column has the type {}", column.data_type()))?;
        }
        if columns.len() != self.order.len() {
            let (found, wanted) = (columns.len(), self.order.len());
            return Err(format!("it has {found} of {wanted} columns"));
        }
        let mut ordered: Vec<(usize, Column)> = self.order.iter().copied().zip(columns).collect();
        ordered.sort_by_key(|(at, _)| *at);
        Ok(ordered.into_iter().map(|(_, column)| column).collect())
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
    /// Whether the file says where the pages of all chosen columns lie.
    pub(crate) has_index: bool,
    /// Whether that was read, because it is larger than a block: so parts of it can be read.
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
            has_index: false,
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

    /// How many bytes it takes, read and decoded.
    pub(crate) fn whole_bytes(&self) -> u64 {
        self.stored.saturating_add(self.decoded)
    }

    /// How many bytes these samples take while they are read and decoded.
    pub(crate) fn bytes(&self, file: &File, leaves: &[Leaf], samples: &Range<u64>) -> u64 {
        let rows = self.rows_of(samples);
        if !self.has_pages || rows == (0..self.rows) {
            return self.whole_bytes();
        }
        self.part(file, leaves, &rows).total as u64
    }

    /// What is read for these rows, where pages are known.
    fn part(&self, file: &File, leaves: &[Leaf], rows: &Range<u64>) -> Part {
        let metadata = file.reader.metadata();
        let pages = metadata.page_index_for_row_group(self.row_group);
        let row_group = metadata.row_group(self.row_group);
        let number = |value: i64| u64::try_from(value).unwrap_or(0);
        let share_of_rows = (rows.end - rows.start) as f64 / self.rows.max(1) as f64;
        let share_of_rows = share_of_rows.min(1.0);
        let mut part = Part::default();
        for (leaf, of) in file.chosen.leaves.iter().zip(leaves) {
            let chunk = row_group.column(*leaf);
            let (start, stored) = chunk.byte_range();
            let (mut touched, mut share) = (stored as f64, stored as f64 * share_of_rows);
            if let Some(pages @ [first, ..]) = pages.page_locations(*leaf).map(|pages| &pages[..]) {
                // (The page that a row lies in is the last that does not begin behind it.)
                let begin = |at: usize| match pages.get(at) {
                    Some(page) => number(page.first_row_index),
                    None => self.rows,
                };
                let from = pages.partition_point(|page| number(page.first_row_index) <= rows.start);
                let to = pages.partition_point(|page| number(page.first_row_index) < rows.end);
                // (All of them need the dictionary, which lies before the first.)
                touched = number(first.offset).saturating_sub(start) as f64;
                share = touched * share_of_rows;
                let from = from.saturating_sub(1).min(to);
                for (at, page) in (from..to).zip(&pages[from..to]) {
                    let bytes = number(page.compressed_page_size.into()) as f64;
                    let (begin, end) = (begin(at), begin(at + 1));
                    let inside = end.min(rows.end).saturating_sub(begin.max(rows.start));
                    touched += bytes;
                    share += bytes * inside as f64 / end.saturating_sub(begin).max(1) as f64;
                }
            }
            let decoded = |bytes: f64| {
                let pages = bytes / stored.max(1) as f64;
                decoded_bytes(of, row_group, *leaf, share_of_rows, pages) as f64
            };
            part.read += touched;
            part.share_of_read += share;
            part.total += touched + decoded(touched);
            part.share_of_total += share + decoded(share);
        }
        part
    }

    /// Counts the bytes of the chosen columns.
    pub(crate) fn measure(&mut self, file: &File, leaves: &[Leaf]) {
        let row_group = file.reader.metadata().row_group(self.row_group);
        let chosen = &file.chosen.leaves;
        let columns = chosen.iter().copied().zip(leaves);
        (self.stored, self.decoded) = bytes_of(row_group, columns);
        let has_index = |leaf: &usize| row_group.column(*leaf).offset_index_range().is_some();
        self.has_index = chosen.iter().all(has_index);
    }

    /// Cuts it where pages of its largest column begin, into parts that take about so many bytes, read and decoded; into fewer, if pages of
    /// other columns would be read too often. Returns how many samples each has.
    pub(crate) fn cut(&self, file: &File, leaves: &[Leaf], part_bytes: u64) -> Vec<u64> {
        let metadata = file.reader.metadata();
        let row_group = metadata.row_group(self.row_group);
        let columns = file.chosen.leaves.iter().copied().zip(leaves);
        let largest = columns.max_by_key(|(leaf, of)| {
            let stored = row_group.column(*leaf).byte_range().1;
            stored + decoded_bytes(of, row_group, *leaf, 1.0, 1.0)
        });
        let pages = metadata.page_index_for_row_group(self.row_group);
        let pages = largest.and_then(|(leaf, _)| pages.page_locations(leaf));
        let Some(pages) = pages.filter(|_| self.has_pages && self.whole_bytes() > part_bytes)
        else {
            return vec![self.samples()];
        };
        let row_bytes = self.whole_bytes() as f64 / self.rows.max(1) as f64;
        let rows = (part_bytes as f64 / row_bytes) as u64;
        let begins = pages.iter().map(|page| {
            let row = u64::try_from(page.first_row_index).unwrap_or(0);
            row.min(self.rows)
        });
        let begins: Vec<u64> = begins.collect();
        let is_fair = |from: u64, to: u64| self.part(file, leaves, &(from..to)).is_fair();
        let mut cuts = vec![0];
        for (at, row) in begins.iter().copied().enumerate() {
            let page = begins.get(at + 1).copied().unwrap_or(self.rows);
            let page = page.saturating_sub(row);
            let last = cuts[cuts.len() - 1];
            let length = row.saturating_sub(last);
            // (With one page more, it would be farther from what is wanted. What is left at the end is at least half as large.)
            let is_long = length > 0 && length + page / 2 >= rows;
            if is_long && self.rows - row >= rows / 2 && is_fair(last, row) {
                cuts.push(row);
            }
        }
        while cuts.len() > 1 && !is_fair(cuts[cuts.len() - 1], self.rows) {
            cuts.pop();
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
    ) -> Result<Vec<Batch>, BoxError> {
        let mut batches = Vec::new();
        self.fetch_each(store, file, samples, None, |batch| {
            batches.push(batch);
            Ok(())
        })?;
        Ok(batches)
    }

    /// Reads these samples, and decodes them a batch at a time.
    pub(crate) fn fetch_each(
        &self,
        store: &dyn Store,
        file: &File,
        samples: &Range<u64>,
        cores: Option<&Cores>,
        mut take: impl FnMut(Batch) -> Result<(), BoxError>,
    ) -> Result<(), BoxError> {
        let wanted = Wanted {
            chosen: &file.chosen,
            row_group: self.row_group,
            selection: self.selection(samples),
            rows: (samples.end - samples.start) as usize,
        };
        read(store, file, wanted, cores, |mut batch| {
            let same = file.partitions.iter().cloned().map(Column::same);
            batch.columns.extend(same);
            take(batch)
        })
    }
}

/// What some rows of a row group take, in bytes, with the pages that they have in common with others.
#[derive(Default)]
struct Part {
    read: f64,
    /// Its share of it: of a page of which it has half of the rows, a half.
    share_of_read: f64,
    /// The same, read and decoded.
    total: f64,
    share_of_total: f64,
}

impl Part {
    /// Whether not much is read and decoded for it that is for others, too.
    fn is_fair(&self) -> bool {
        self.read <= MOST_SHARED * self.share_of_read
            && self.total <= MOST_SHARED * self.share_of_total
    }
}

/// How many bytes of columns of a row group are read, and how many these are once they are decoded.
pub(crate) fn bytes_of<'a>(
    row_group: &RowGroupMetaData,
    columns: impl Iterator<Item = (usize, &'a Leaf)>,
) -> (u64, u64) {
    columns.fold((0, 0), |(stored, decoded), (at, leaf)| {
        (
            stored + row_group.column(at).byte_range().1,
            decoded + decoded_bytes(leaf, row_group, at, 1.0, 1.0),
        )
    })
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

/// Which rows of a row group are read, and which columns.
pub(crate) struct Wanted<'a> {
    pub(crate) chosen: &'a Chosen,
    pub(crate) row_group: usize,
    /// `None`: all rows.
    pub(crate) selection: Option<RowSelection>,
    /// How many these are.
    pub(crate) rows: usize,
}

/// Rows that were decoded at once. (Public in name only: a hidden trait mentions it.)
#[derive(Debug)]
pub struct Batch {
    /// How many rows come before it, of those that are wanted.
    pub(crate) first: usize,
    pub(crate) rows: usize,
    pub(crate) columns: Vec<Column>,
}

/// Reads columns of a row group, and decodes them a batch at a time: columns as the data set lists them. While it decodes, it has one of
/// the cores, if some are given.
pub(crate) fn read(
    store: &dyn Store,
    file: &File,
    wanted: Wanted<'_>,
    cores: Option<&Cores>,
    mut take: impl FnMut(Batch) -> Result<(), BoxError>,
) -> Result<(), BoxError> {
    let Wanted {
        chosen,
        row_group,
        selection,
        rows,
    } = wanted;
    let mut first = 0;
    if chosen.leaves.is_empty() {
        let columns = Vec::new();
        return take(Batch {
            first,
            rows,
            columns,
        });
    }
    let damaged = |what: String| -> BoxError {
        ParquetError::new(&file.place, Cause::Damaged { row_group, what }).into()
    };
    let selection = RowGroupSelection::new(row_group, selection);
    let decoder = ParquetPushDecoderBuilder::new_with_metadata(file.reader.clone())
        .with_projection(chosen.mask.clone())
        .with_batch_size(rows.clamp(1, BATCH))
        .with_row_group_selections(vec![selection])
        .build();
    let mut decoder = decoder.map_err(|fault| damaged(said(&fault)))?;
    let mut core: Option<Core<'_>> = None;
    loop {
        let step = guarded(|| decoder.try_decode());
        match step.map_err(|fault| damaged(said(&fault)))? {
            DecodeResult::Data(batch) => {
                let columns = chosen.columns(&batch).map_err(damaged)?;
                let before = first;
                first += batch.num_rows();
                if first > rows {
                    break;
                }
                take(Batch {
                    first: before,
                    rows: batch.num_rows(),
                    columns,
                })?;
            }
            DecodeResult::NeedsData(ranges) => {
                drop(core.take());
                let parts = read_ranges(store, file, &ranges, chosen.are_copied)?;
                core = cores.map(Cores::take);
                let pushed = decoder.push_ranges(ranges, parts);
                pushed.map_err(|fault| damaged(said(&fault)))?;
            }
            DecodeResult::Finished => break,
        }
    }
    match first == rows {
        true => Ok(()),
        false => Err(damaged(format!("it has {first} of {rows} rows"))),
    }
}

/// Reads ranges of a file. Those that lie side by side are read into one buffer, if they may be: they need not be copied out of it.
fn read_ranges(
    store: &dyn Store,
    file: &File,
    ranges: &[Range<u64>],
    may_join: bool,
) -> Result<Vec<Bytes>, BoxError> {
    let (mut joined, mut places) = (Vec::<Range<u64>>::new(), Vec::new());
    for range in ranges {
        match joined.last_mut() {
            Some(last)
                if may_join && last.end == range.start && range.end - last.start <= JOINED =>
            {
                last.end = range.end;
            }
            _ => joined.push(range.clone()),
        }
        places.push(joined.len() - 1);
    }
    let of_store = |error| ParquetError::of_store(&file.place, &file.object, error);
    let parts = store.read_many(&file.object, &joined).map_err(of_store)?;
    let parts: Vec<Bytes> = parts.into_iter().map(Bytes::from).collect();
    let parts = ranges.iter().zip(places).map(|(range, at)| {
        let from = range.start - joined[at].start;
        let part = from as usize..(from + (range.end - range.start)) as usize;
        let whole = parts.get(at).filter(|whole| part.end <= whole.len());
        whole.map(|whole| whole.slice(part))
    });
    let parts: Option<Vec<Bytes>> = parts.collect();
    parts.ok_or_else(|| of_store("its store has given too few bytes".into()))
}
