//! `.npz` files: zip archives of `.npy` files.
//!
//! The format is PKWARE's APPNOTE 6.3.10, as far as Python's `zipfile` writes it: no encryption, one disk, methods 0 (stored) and 8
//! (deflated), and ZIP64.

use std::ops::Range;

use super::array::{Array, Arrays, Content};
use super::cursor::Cursor;
use super::file::{FileBytes, IntoFileBytes};
use super::inflate;
use super::npy::Header;
use super::shown::shown;
use crate::error::Result;
use crate::sync::Arc;

const END: &[u8] = b"PK\x05\x06";
const END_BYTES: usize = 22;
const LONGEST_COMMENT: usize = 65_535;
const END_64: &[u8] = b"PK\x06\x06";
const LOCATOR_64: &[u8] = b"PK\x06\x07";
const LOCATOR_64_BYTES: usize = 20;
const MEMBER: &[u8] = b"PK\x01\x02";
const LOCAL: &[u8] = b"PK\x03\x04";

/// What a field of 32 bits says if the number is in the ZIP64 field.
const SEE_64: u64 = u32::MAX as u64;
const FIELD_64: u16 = 1;

/// Opens the arrays that `numpy.savez` or `numpy.savez_compressed` wrote.
///
/// Only headers are read (of compressed arrays, they are decompressed). Arrays are named as they were given to `savez`; `arr_0`, `arr_1`,
/// .. without names. Those of types that tensors do not have are an error when they are asked for; the others can be used.
///
/// An array of an `.npz` file lies anywhere in it, so most are copied ([`Array::is_in_place`]), and each is compared with its checksum. To
/// map or register large ones, save them as `.npy` or safetensors.
///
/// # Errors
///
/// [`Error::DataSet`](crate::Error::DataSet) if it is no zip archive, or is cut off; if it is encrypted, or compressed by another method;
/// if a member is not where the archive says, or two have one name. Those of [`FileBytes::read`], if the file is a path.
///
/// # Examples
///
/// ```
/// use pinfeed::{TensorDataset, arrays};
///
/// # fn show() -> pinfeed::Result<()> {
/// let file = arrays::npz("table.npz")?; // numpy.savez("table.npz", x=x, y=y)
/// for name in file.names() {
///     println!("{name}: {} of {}", file.array(name)?.shape(), file.array(name)?.dtype());
/// }
/// let table = TensorDataset::new((file.tensor::<f32>("x")?, file.tensor::<i64>("y")?))?;
/// # drop(table);
/// # Ok(())
/// # }
/// # assert!(show().is_err());
/// let error = arrays::npz("table.npz").unwrap_err();
/// assert!(error.to_string().contains("table.npz"));
/// ```
pub fn npz(file: impl IntoFileBytes) -> Result<Arrays> {
    let file = file.into_file_bytes()?;
    let members = members(file.as_slice()).map_err(|reason| file.refused(reason))?;
    let mut arrays = Arrays::new(file.clone());
    for member in members {
        let name: Arc<str> = Arc::from(member.name.strip_suffix(".npy").unwrap_or(member.name));
        let array = member.array(&file, &name);
        arrays.add(name, array)?;
    }
    Ok(arrays)
}

/// A file in the archive.
struct Member<'a> {
    name: &'a str,
    is_deflated: bool,
    content: Range<usize>,
    /// How many bytes it has when it is decompressed.
    length: u64,
    crc: u32,
}

impl Member<'_> {
    fn array(&self, file: &FileBytes, name: &Arc<str>) -> Result<Array, String> {
        let content = &file.as_slice()[self.content.clone()];
        let header = match self.is_deflated {
            // Most headers have 128 bytes in all; one that needs more says so.
            true => match Header::read(&inflate::first_deflated(content, 256)?, self.length) {
                Ok(header) => header,
                Err(_) => Header::read(
                    &inflate::first_deflated(content, Header::MOST_BYTES)?,
                    self.length,
                )?,
            },
            false => Header::read(content, self.length)?,
        };
        Ok(Array {
            file: file.clone(),
            name: Some(Arc::clone(name)),
            dtype: header.dtype,
            shape: header.shape,
            is_swapped: header.is_swapped,
            content: match self.is_deflated {
                true => Content::Deflated {
                    compressed: self.content.clone(),
                    length: self.length,
                    before: header.begin,
                    crc: self.crc,
                },
                false => Content::Stored {
                    elements: self.content.start + header.begin..self.content.end,
                    checked: Some((self.content.clone(), self.crc)),
                },
            },
        })
    }
}

/// Lists what is in an archive.
fn members(all: &[u8]) -> Result<Vec<Member<'_>>, String> {
    let (count, directory) = directory(all)?;
    let mut cursor = Cursor::at(directory, 0).ok_or_else(damaged)?;
    let mut members = Vec::new(); // as long as it becomes: the count is only said
    while !cursor.rest().is_empty() {
        members.push(member(all, &mut cursor)?);
    }
    match members.len() as u64 == count {
        true => Ok(members),
        false => Err(format!(
            "it is to have {count} members, and lists {}",
            members.len()
        )),
    }
}

fn damaged() -> String {
    "it is a damaged zip archive: its directory is not where it says".to_owned()
}

/// How many members there are, and the list of them.
fn directory(all: &[u8]) -> Result<(u64, &[u8]), String> {
    let end = end(all)?;
    let mut cursor = Cursor::at(all, end as u64 + 4).ok_or_else(damaged)?;
    let mut read = || {
        let disks = (cursor.u16()?, cursor.u16()?);
        let counts = (u64::from(cursor.u16()?), u64::from(cursor.u16()?));
        Some((
            disks,
            counts,
            u64::from(cursor.u32()?),
            u64::from(cursor.u32()?),
        ))
    };
    let (disks, (here, mut count), mut bytes, mut place) = read().ok_or_else(damaged)?;
    if count == u64::from(u16::MAX) || bytes == SEE_64 || place == SEE_64 {
        (count, bytes, place) = directory_64(all, end).ok_or_else(damaged)?;
    } else if disks != (0, 0) || here != count {
        return Err("it is a part of a zip archive in several".to_owned());
    }
    let mut cursor = Cursor::at(all, place).ok_or_else(damaged)?;
    let directory = usize::try_from(bytes)
        .ok()
        .and_then(|bytes| cursor.take(bytes));
    Ok((count, directory.ok_or_else(damaged)?))
}

/// Where the record at the end begins, which a comment of any length follows.
fn end(all: &[u8]) -> Result<usize, String> {
    let first = all.len().saturating_sub(END_BYTES + LONGEST_COMMENT);
    let last = all.len().saturating_sub(END_BYTES);
    let is_end = |place: &usize| {
        let record = &all[*place..];
        let comment = record
            .get(20..22)
            .map(|length| u16::from_le_bytes([length[0], length[1]]));
        record.starts_with(END)
            && comment.is_some_and(|length| usize::from(length) == record.len() - END_BYTES)
    };
    let found = (first..=last).rev().find(is_end);
    found.ok_or_else(|| match all.starts_with(b"PK") {
        true => {
            "it is a zip archive that is cut off: its directory, at its end, is missing".to_owned()
        }
        false => "it is not an .npz file, which is a zip archive".to_owned(),
    })
}

/// The same from the larger record: number of members, bytes and place.
fn directory_64(all: &[u8], end: usize) -> Option<(u64, u64, u64)> {
    let mut locator = Cursor::at(all, end.checked_sub(LOCATOR_64_BYTES)? as u64)?;
    let is_locator = locator.take(4)? == LOCATOR_64 && locator.u32()? == 0;
    let mut record = Cursor::at(all, locator.u64()?)?;
    let is_record = is_locator && record.take(4)? == END_64;
    record.take(20)?; // its length, versions and disks
    let (here, count) = (record.u64()?, record.u64()?);
    (is_record && here == count).then_some((count, record.u64()?, record.u64()?))
}

/// Reads a member from the list.
fn member<'a>(all: &'a [u8], cursor: &mut Cursor<'a>) -> Result<Member<'a>, String> {
    let entry = entry(cursor).ok_or_else(damaged)?;
    let name = str::from_utf8(entry.name).map_err(|_| "a member's name is not UTF-8".to_owned())?;
    let refused = |reason: &str| format!("`{}`: {reason}", shown(name));
    if entry.flags & 1 != 0 {
        return Err(refused("it is encrypted: save it without a password"));
    }
    let is_deflated = match entry.method {
        0 => false,
        8 => true,
        other => {
            return Err(refused(&format!(
                "it is compressed by method {other}: numpy.savez and numpy.savez_compressed use 0 and 8"
            )));
        }
    };
    let content = content(all, &entry).ok_or_else(|| {
        refused("it is not where the archive says: the file is damaged or cut off")
    })?;
    if !is_deflated && entry.length != entry.compressed {
        return Err(refused("its two lengths differ, and it is not compressed"));
    }
    Ok(Member {
        name,
        is_deflated,
        content,
        length: entry.length,
        crc: entry.crc,
    })
}

/// What the list says of a member.
struct Entry<'a> {
    name: &'a [u8],
    flags: u16,
    method: u16,
    crc: u32,
    compressed: u64,
    length: u64,
    local: u64,
}

fn entry<'a>(cursor: &mut Cursor<'a>) -> Option<Entry<'a>> {
    let is_member = cursor.take(4)? == MEMBER;
    cursor.take(4)?; // versions
    let (flags, method) = (cursor.u16()?, cursor.u16()?);
    cursor.take(4)?; // time and date
    let crc = cursor.u32()?;
    let (mut compressed, mut length) = (u64::from(cursor.u32()?), u64::from(cursor.u32()?));
    let [name, extra, comment] = [cursor.u16()?, cursor.u16()?, cursor.u16()?].map(usize::from);
    cursor.take(8)?; // disk and attributes
    let mut local = u64::from(cursor.u32()?);
    let name = cursor.take(name)?;
    let mut extra = Cursor::at(cursor.take(extra)?, 0)?;
    cursor.take(comment)?;
    while let Some((kind, bytes)) = extra.u16().zip(extra.u16()) {
        let mut field = Cursor::at(extra.take(usize::from(bytes))?, 0)?;
        if kind == FIELD_64 {
            for number in [&mut length, &mut compressed, &mut local] {
                if *number == SEE_64 {
                    *number = field.u64()?;
                }
            }
        }
    }
    is_member.then_some(Entry {
        name,
        flags,
        method,
        crc,
        compressed,
        length,
        local,
    })
}

/// Where a member's bytes are. Its name stands before them a second time.
fn content(all: &[u8], entry: &Entry<'_>) -> Option<Range<usize>> {
    let mut cursor = Cursor::at(all, entry.local)?;
    let is_local = cursor.take(4)? == LOCAL;
    cursor.take(22)?; // what the list says as well
    let [name, extra] = [cursor.u16()?, cursor.u16()?].map(usize::from);
    let is_named = cursor.take(name)? == entry.name;
    cursor.take(extra)?;
    let begin = all.len() - cursor.rest().len();
    cursor.take(usize::try_from(entry.compressed).ok()?)?;
    (is_local && is_named).then(|| begin..all.len() - cursor.rest().len())
}
