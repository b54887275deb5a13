//! Extents: what is read of a shard at once.

use std::ops::Range;

use bytes::Bytes;

use super::error::{Cause, ShardError};
use super::index::{Field, ShardIndex};
use super::members::{BLOCK, is_header_of};
use super::sample::Lies;
use crate::error::BoxError;
use crate::store::{Object, Store};

/// Between fields that are read, what is not wanted is read, too, if it is no longer: a second request takes longer.
const GAP: u64 = 1 << 20;

/// A shard of a data set.
#[derive(Debug)]
pub(super) struct Shard {
    pub(super) object: Object,
    /// Where it is, for errors.
    pub(super) place: String,
    /// Of the samples and fields that the data set has.
    pub(super) index: ShardIndex,
    /// Where the index is from, for errors.
    pub(super) origin: String,
}

/// Samples of a shard, as they were read ([`WebDataset`](super::WebDataset) is a source of blocks of this type).
pub struct Extent {
    /// Where each part begins in the shard, and its bytes; in order.
    parts: Vec<(u64, Bytes)>,
}

impl std::fmt::Debug for Extent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let bytes: usize = self.parts.iter().map(|(_, bytes)| bytes.len()).sum();
        write!(f, "Extent({bytes} bytes)")
    }
}

impl Extent {
    /// The field's contents, if it was read.
    pub(super) fn contents(&self, field: Field) -> Option<&[u8]> {
        self.bytes(field.at, field.bytes)
    }

    fn bytes(&self, at: u64, count: u64) -> Option<&[u8]> {
        let (part, range) = self.find(at, count)?;
        part.get(range)
    }

    fn shared(&self, field: Field) -> Option<Bytes> {
        let (part, range) = self.find(field.at, field.bytes)?;
        (range.end <= part.len()).then(|| part.slice(range))
    }

    /// The part that some bytes of the shard are in, and where in it.
    fn find(&self, at: u64, count: u64) -> Option<(&Bytes, Range<usize>)> {
        let behind = self.parts.partition_point(|(start, _)| *start <= at);
        let (start, part) = self.parts.get(behind.checked_sub(1)?)?;
        let from = usize::try_from(at - start).ok()?;
        let end = from.checked_add(usize::try_from(count).ok()?)?;
        Some((part, from..end))
    }
}

impl Shard {
    /// What is read for some samples: each field, and the header before it.
    pub(super) fn ranges(&self, samples: Range<usize>) -> Vec<Range<u64>> {
        let mut ranges: Vec<Range<u64>> = Vec::new();
        for field in samples.flat_map(|sample| self.index.fields(sample)) {
            let start = field.at - BLOCK;
            match ranges.last_mut() {
                Some(last) if start <= last.end.saturating_add(GAP) => {
                    last.end = last.end.max(field.end())
                }
                _ => ranges.push(start..field.end()),
            }
        }
        ranges
    }

    /// Reads some samples.
    pub(super) fn fetch(
        &self,
        store: &dyn Store,
        samples: Range<usize>,
    ) -> Result<Extent, BoxError> {
        let mut parts = Vec::new();
        for range in self.ranges(samples) {
            let bytes = store
                .read(&self.object, range.clone())
                .map_err(|error| ShardError::of(&self.place, &self.object, Cause::Store(error)))?;
            if bytes.len() as u64 != range.end - range.start {
                let what = format!("its store gave {} bytes for {range:?}", bytes.len());
                return Err(self.fault(None, Cause::Other(what)).into());
            }
            parts.push((range.start, bytes.into()));
        }
        Ok(Extent { parts })
    }

    /// Looks whether a sample is what the index says: each field has its header before it.
    pub(super) fn check(&self, sample: usize, extent: &Extent) -> Result<(), ShardError> {
        for field in self.index.fields(sample) {
            let at = field.at - BLOCK;
            let header = extent.bytes(at, BLOCK).unwrap_or_default();
            is_header_of(header, field.bytes).map_err(|what| {
                let index = self.origin.clone();
                self.fault(Some(sample), Cause::Stale { at, what, index })
            })?;
        }
        Ok(())
    }

    /// An error of this shard, or of a sample of it.
    pub(super) fn fault(&self, sample: Option<usize>, cause: Cause) -> ShardError {
        ShardError::new(
            &self.place,
            sample.map(|sample| self.index.key(sample)),
            cause,
        )
    }
}

/// A sample of a shard, in the extent that was read.
pub(super) struct InExtent<'a> {
    pub(super) shard: &'a Shard,
    pub(super) sample: usize,
    pub(super) extent: &'a Extent,
}

impl Lies for InExtent<'_> {
    fn key(&self) -> &str {
        self.shard.index.key(self.sample)
    }

    fn shard(&self) -> &str {
        &self.shard.object.key
    }

    fn place(&self) -> &str {
        &self.shard.place
    }

    fn count(&self) -> usize {
        self.shard.index.fields(self.sample).len()
    }

    fn field(&self, at: usize) -> (&str, &[u8]) {
        let index = &self.shard.index;
        let field = index.fields(self.sample).nth(at);
        field.map_or(("", &[]), |field| {
            (
                index.name(field),
                self.extent.contents(field).unwrap_or_default(),
            )
        })
    }

    fn shared(&self, at: usize) -> Bytes {
        let field = self.shard.index.fields(self.sample).nth(at);
        let shared = field.and_then(|field| self.extent.shared(field));
        shared.unwrap_or_default()
    }
}

/// Cuts the samples of a shard into extents of about so many bytes: how many samples each has.
///
/// Where the cuts are follows from the shard, and from this number of bytes: not from the fields that are wanted, or the machine. All
/// extents of a shard are of about one size, half as large again as asked for or less, but for samples that are larger. None is empty.
pub(super) fn cut(index: &ShardIndex, wanted: &[usize], extent_bytes: u64) -> Vec<u64> {
    let start = |sample: usize| index.fields(sample).next().map(|field| field.at);
    let end = |sample: usize| index.fields(sample).last().map(|field| field.end());
    let (Some(first), Some(last)) = (wanted.first(), wanted.last()) else {
        return Vec::new();
    };
    let first = start(*first).unwrap_or(0);
    let bytes = end(*last).unwrap_or(first).saturating_sub(first).max(1);
    let extents = (bytes.saturating_add(extent_bytes / 2) / extent_bytes.max(1)).max(1);
    let mut sizes: Vec<u64> = Vec::new();
    let mut open = None;
    for sample in wanted {
        let at = start(*sample).unwrap_or(first).saturating_sub(first);
        let extent = u128::from(at) * u128::from(extents) / u128::from(bytes);
        match sizes.last_mut() {
            Some(size) if open == Some(extent) => *size += 1,
            _ => sizes.push(1),
        }
        open = Some(extent);
    }
    sizes
}
