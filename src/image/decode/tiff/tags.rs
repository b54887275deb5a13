//! The tags of a TIFF file's first page.

use super::{Cause, ENDS};

/// Whether a file is TIFF with 64-bit offsets (BigTIFF), which the `image` crate does not recognize.
pub(in crate::image::decode) fn is_big(bytes: &[u8]) -> bool {
    bytes.starts_with(b"II\x2B\0\x08\0\0\0") || bytes.starts_with(b"MM\0\x2B\0\x08\0\0")
}

/// Private tags begin here. None of them is read, so they may be cut off.
const PRIVATE: u16 = 0x8000;

/// The tags of the first page.
pub(super) struct Tags<'a> {
    bytes: &'a [u8],
    pub(super) is_little: bool,
    is_big: bool,
    /// The entries, back to back.
    entries: &'a [u8],
}

struct Tag<'a> {
    number: u16,
    kind: u64,
    count: u64,
    /// The values, or their offset.
    place: &'a [u8],
}

impl Tag<'_> {
    /// The size of its values in bytes.
    fn size(&self) -> u64 {
        self.count.saturating_mul(value_size(self.kind))
    }
}

fn value_size(kind: u64) -> u64 {
    match kind {
        3 | 8 => 2,
        4 | 9 | 11 | 13 => 4,
        5 | 10 | 12 | 16..=18 => 8,
        _ => 1,
    }
}

/// Whether values of this kind are integers.
fn is_integer(kind: u64) -> bool {
    matches!(kind, 1 | 3 | 4 | 6 | 8 | 9 | 13 | 16..=18)
}

/// The integers of a tag. They stay in the file.
#[derive(Clone, Copy, Default)]
pub(super) struct Values<'a> {
    bytes: &'a [u8],
    /// Of each, in bytes.
    size: usize,
    is_little: bool,
}

impl Values<'_> {
    pub(super) fn len(&self) -> usize {
        self.bytes.len().checked_div(self.size).unwrap_or(0)
    }

    pub(super) fn get(&self, index: usize) -> Option<u64> {
        let at = index.checked_mul(self.size)?;
        let value = self.bytes.get(at..at.checked_add(self.size)?)?;
        (!value.is_empty()).then(|| number(value, self.is_little))
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = u64> + '_ {
        (0..self.len()).filter_map(|index| self.get(index))
    }
}

impl<'a> Tags<'a> {
    /// Finds the tags. Fails if one of them claims more values than the file has bytes.
    pub(super) fn read(bytes: &'a [u8]) -> Result<Tags<'a>, Cause> {
        let tags = Tags::find(bytes).ok_or(ENDS)?;
        let len = bytes.len() as u64;
        if tags
            .iter()
            .any(|tag| tag.number < PRIVATE && tag.size() > len)
        {
            return Err(Cause::Contradiction(
                "a tag of its first page has more values than the file has bytes",
            ));
        }
        Ok(tags)
    }

    fn find(bytes: &'a [u8]) -> Option<Tags<'a>> {
        let is_little = bytes.starts_with(b"II");
        let is_big = is_big(bytes);
        // Where the page's offset is; and the bytes of its number of entries and of each entry.
        let (start, width, entry) = if is_big {
            (8..16, 8, 20)
        } else {
            (4..8, 2, 12)
        };
        let start = number(bytes.get(start)?, is_little);
        let page = bytes.get(usize::try_from(start).ok()?..)?;
        let count = usize::try_from(number(page.get(..width)?, is_little)).ok()?;
        Some(Tags {
            bytes,
            is_little,
            is_big,
            entries: page[width..].get(..count.checked_mul(entry)?)?,
        })
    }

    fn iter(&self) -> impl Iterator<Item = Tag<'a>> + '_ {
        let wide = if self.is_big { 8 } else { 4 };
        let entries = self.entries.chunks_exact(4 + 2 * wide);
        entries.map(move |entry| Tag {
            number: number(&entry[..2], self.is_little) as u16,
            kind: number(&entry[2..4], self.is_little),
            count: number(&entry[4..4 + wide], self.is_little),
            place: &entry[4 + wide..],
        })
    }

    /// The integers of a tag. `None` if the page lacks it. Fails if it has other values, or the file ends before them.
    pub(super) fn values(&self, wanted: u16) -> Result<Option<Values<'a>>, Cause> {
        let Some(tag) = self.tag(wanted) else {
            return Ok(None);
        };
        if !is_integer(tag.kind) {
            return Err(Cause::Contradiction(
                "a tag whose values are integers has others",
            ));
        }
        Ok(Some(Values {
            bytes: self.content(&tag).ok_or(ENDS)?,
            size: value_size(tag.kind) as usize,
            is_little: self.is_little,
        }))
    }

    /// The first integer of a tag. `None` if the page lacks it, or it is empty.
    pub(super) fn value(&self, wanted: u16) -> Result<Option<u64>, Cause> {
        Ok(self.values(wanted)?.and_then(|values| values.get(0)))
    }

    /// Whether the page has a tag, whatever its values are.
    pub(super) fn has(&self, wanted: u16) -> bool {
        self.tag(wanted).is_some()
    }

    /// The bytes of a tag. `None` if the page lacks it. Fails if the file ends before them.
    pub(super) fn bytes(&self, wanted: u16) -> Result<Option<&'a [u8]>, Cause> {
        let tag = self.tag(wanted);
        tag.map(|tag| self.content(&tag).ok_or(ENDS)).transpose()
    }

    fn tag(&self, wanted: u16) -> Option<Tag<'a>> {
        self.iter().find(|tag| tag.number == wanted)
    }

    fn content(&self, tag: &Tag<'a>) -> Option<&'a [u8]> {
        let size = usize::try_from(tag.size()).ok()?;
        if let Some(content) = tag.place.get(..size) {
            return Some(content);
        }
        let at = usize::try_from(number(tag.place, self.is_little)).ok()?;
        self.bytes.get(at..)?.get(..size)
    }
}

fn number(bytes: &[u8], is_little: bool) -> u64 {
    let add = |sum: u64, byte: &u8| sum << 8 | u64::from(*byte);
    match is_little {
        true => bytes.iter().rev().fold(0, add),
        false => bytes.iter().fold(0, add),
    }
}
