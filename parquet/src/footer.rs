//! Footers: which columns and row groups a file has, and where its pages lie.

use std::panic::{AssertUnwindSafe, catch_unwind};

use bytes::Bytes;
use parquet::DecodeResult;
use parquet::errors::ParquetError as Fault;
use parquet::file::metadata::{
    ColumnChunkMask, PageIndexPolicy, ParquetMetaData, ParquetMetaDataOptions,
    ParquetMetaDataPushDecoder, ParquetStatisticsPolicy,
};
use pinfeed::BoxError;
use pinfeed::store::{Object, Store};

use crate::error::{Cause, ParquetError};

/// How much of a file's end is read at first: most footers are shorter, so that one request brings them.
const TAIL: u64 = 64 << 10;

/// What stands at both ends of a file.
const MAGIC: &[u8] = b"PAR1";

/// Reads a footer. Statistics of row groups are kept if they are wanted, for they take most of its memory.
pub(crate) fn read(
    store: &dyn Store,
    object: &Object,
    with_statistics: bool,
) -> Result<ParquetMetaData, BoxError> {
    let place = store.locate(&object.key);
    let bytes = object.bytes;
    if bytes == 0 {
        return Err(ParquetError::new(&place, Cause::Empty).into());
    }
    let tail = bytes.saturating_sub(TAIL)..bytes;
    let read = store.read(object, tail.clone());
    let read = read.map_err(|error| ParquetError::of_store(&place, object, error))?;
    check_end(store, object, &place, &read)?;
    let statistics = match with_statistics {
        true => ParquetStatisticsPolicy::KeepAll,
        false => ParquetStatisticsPolicy::SkipAll,
    };
    let options = ParquetMetaDataOptions::new()
        .with_column_stats_policy(statistics)
        .with_encoding_stats_policy(ParquetStatisticsPolicy::SkipAll)
        .with_size_stats_policy(ParquetStatisticsPolicy::SkipAll);
    let decoder = ParquetMetaDataPushDecoder::try_new(bytes).and_then(|decoder| {
        let mut decoder = decoder
            .with_page_index_policy(PageIndexPolicy::Skip)
            .with_metadata_options(Some(options.into()));
        decoder.push_range(tail, Bytes::from(read))?;
        Ok(decoder)
    });
    let decoder = decoder.map_err(|fault| damaged(&place, &fault))?;
    decode(decoder, store, object, &place)
}

/// Adds where the pages of these columns lie, in these row groups.
pub(crate) fn with_pages(
    store: &dyn Store,
    object: &Object,
    metadata: ParquetMetaData,
    row_groups: &[usize],
    leaves: &[usize],
) -> Result<ParquetMetaData, BoxError> {
    let place = store.locate(&object.key);
    let mask =
        ColumnChunkMask::row_groups_and_columns(row_groups.iter().copied(), leaves.iter().copied());
    let decoder = ParquetMetaDataPushDecoder::try_new_with_metadata(object.bytes, metadata);
    let decoder = decoder.map_err(|fault| damaged(&place, &fault))?;
    let decoder = decoder
        .with_column_index_policy(PageIndexPolicy::Skip)
        .with_offset_index_policy(PageIndexPolicy::Optional)
        .with_offset_index_mask(mask);
    decode(decoder, store, object, &place)
}

fn decode(
    mut decoder: ParquetMetaDataPushDecoder,
    store: &dyn Store,
    object: &Object,
    place: &str,
) -> Result<ParquetMetaData, BoxError> {
    loop {
        let step = guarded(|| decoder.try_decode());
        match step.map_err(|fault| damaged(place, &fault))? {
            DecodeResult::Data(metadata) => {
                check(&metadata, object, place)?;
                return Ok(metadata);
            }
            DecodeResult::NeedsData(ranges) => {
                if let Some(beyond) = ranges.iter().find(|range| range.end > object.bytes) {
                    let what = format!("it names bytes {beyond:?}, of {}", object.bytes);
                    return Err(ParquetError::new(place, Cause::Footer(what)).into());
                }
                let parts = store.read_many(object, &ranges);
                let parts = parts.map_err(|error| ParquetError::of_store(place, object, error))?;
                let parts = parts.into_iter().map(Bytes::from).collect();
                let pushed = decoder.push_ranges(ranges, parts);
                pushed.map_err(|fault| damaged(place, &fault))?;
            }
            DecodeResult::Finished => {
                let what = "it ends early".to_owned();
                return Err(ParquetError::new(place, Cause::Footer(what)).into());
            }
        }
    }
}

/// Looks for numbers that cannot be: what is behind takes them for granted.
fn check(metadata: &ParquetMetaData, object: &Object, place: &str) -> Result<(), BoxError> {
    let wrong = |what: String| Err(ParquetError::new(place, Cause::Footer(what)).into());
    let mut rows = 0i64;
    for (at, row_group) in metadata.row_groups().iter().enumerate() {
        if row_group.num_rows() < 0 {
            return wrong(format!("row group {at} has {} rows", row_group.num_rows()));
        }
        rows = rows.saturating_add(row_group.num_rows());
        for column in row_group.columns() {
            let begin = column
                .dictionary_page_offset()
                .unwrap_or_else(|| column.data_page_offset());
            let end = begin.checked_add(column.compressed_size());
            let is_within = begin >= 0
                && column.compressed_size() >= 0
                && end
                    .and_then(|end| u64::try_from(end).ok())
                    .is_some_and(|end| end <= object.bytes);
            if !is_within || column.num_values() < 0 || column.uncompressed_size() < 0 {
                let path = column.column_path().string();
                return wrong(format!(
                    "column {path:?} of row group {at} lies at byte {begin}, with {} bytes and {} values, in a file of {} bytes",
                    column.compressed_size(),
                    column.num_values(),
                    object.bytes
                ));
            }
        }
    }
    let said = metadata.file_metadata().num_rows();
    if rows != said {
        return wrong(format!(
            "it says that there are {said} rows, and its row groups have {rows}"
        ));
    }
    Ok(())
}

fn damaged(place: &str, fault: &Fault) -> BoxError {
    ParquetError::new(place, Cause::Footer(said(fault))).into()
}

/// Does a step of arrow's decoders. Of damaged bytes, they may panic: that is an error of the file.
pub(crate) fn guarded<T>(step: impl FnOnce() -> Result<T, Fault>) -> Result<T, Fault> {
    // (What the step has changed is not used any more if it panics.)
    catch_unwind(AssertUnwindSafe(step)).unwrap_or_else(|panic| {
        let message = panic.downcast_ref::<String>().map(String::as_str);
        let message = message.or_else(|| panic.downcast_ref::<&str>().copied());
        let message = message.unwrap_or("without a message");
        Err(Fault::General(format!("its decoder panicked: {message}")))
    })
}

/// What the decoder says, without its own prefix.
pub(crate) fn said(fault: &Fault) -> String {
    let text = fault.to_string();
    let text = text.strip_prefix("Parquet error: ").unwrap_or(&text);
    text.to_owned()
}

/// Says what is wrong with a file that does not end as it should.
fn check_end(store: &dyn Store, object: &Object, place: &str, tail: &[u8]) -> Result<(), BoxError> {
    let fault = |cause| Err(ParquetError::new(place, cause).into());
    if tail.ends_with(MAGIC) && object.bytes >= 12 {
        return Ok(());
    }
    if tail.ends_with(b"PARE") {
        return fault(Cause::Encrypted);
    }
    let first = match object.bytes <= TAIL {
        true => tail.to_vec(),
        false => {
            let read = store.read(object, 0..8);
            read.map_err(|error| ParquetError::of_store(place, object, error))?
        }
    };
    let first = &first[..first.len().min(8)];
    fault(match first {
        first if first.starts_with(MAGIC) => Cause::CutOff,
        [0x1f, 0x8b, ..] => Cause::NotParquet("it is compressed by gzip; decompress it"),
        first if first.starts_with(b"ARROW1") => {
            Cause::NotParquet("it is an Arrow file; write it by pyarrow.parquet.write_table")
        }
        first if first.starts_with(b"version ") => Cause::NotParquet(
            "it is a pointer of Git LFS, in place of the file; run `git lfs pull` where it was cloned",
        ),
        first if first.starts_with(b"PK") => Cause::NotParquet("it is a zip archive"),
        first if first.starts_with(b"<") => {
            Cause::NotParquet("it begins as a web page, so a server has sent that in its place")
        }
        _ => Cause::NotParquet("it does not begin and end with the four letters PAR1"),
    })
}
