//! Indexes that are kept in a folder, so that the next run need not read the shards' headers.
//!
//! A file begins with its format's name and version and ends with a checksum. It says of which object it is, of which length and version.
//! Numbers are little-endian.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use super::index::ShardIndex;
use crate::error::{BoxError, Error};
use crate::fingerprint::Fingerprint;
use crate::store::Object;
use crate::sync::Ordering;
use crate::sync::log;
use crate::sync::plain::AtomicU64;

const MAGIC: &[u8] = b"pinfeed tar index 1\n";

/// Where the index of an object is kept.
pub(super) fn path(folder: &Path, object: &Object) -> PathBuf {
    let mut name = String::new();
    for byte in object.key.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'.' | b'_' | b'-' => {
                name.push(char::from(byte));
            }
            other => name.push_str(&format!("%{other:02X}")),
        }
    }
    if name.len() > 200 {
        let mut print = Fingerprint::new();
        print.add(name.as_bytes());
        name.truncate(180);
        name.push_str(&format!("-{:08x}", print.finish()));
    }
    folder.join(name + ".index")
}

/// The kept index of this version of the object; `Ok(None)` if there is none, which is logged if there is something else.
///
/// # Errors
///
/// If the file is there and cannot be read.
pub(super) fn load(folder: &Path, object: &Object) -> Result<Option<ShardIndex>, BoxError> {
    let path = path(folder, object);
    let bytes = match fs::read(&path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(Error::Io { path, source }.into()),
    };
    match decode(&bytes, object) {
        Ok(index) => Ok(Some(index)),
        Err(why) => {
            let path = path.display();
            log::warn!(
                "{}: its kept index {path} {why}; it is made again",
                object.key
            );
            Ok(None)
        }
    }
}

/// Keeps an index. Another process may do so at the same time: each writes a file of its own, and puts it in place when it is whole.
///
/// # Errors
///
/// If it cannot be written.
pub(super) fn save(folder: &Path, object: &Object, index: &ShardIndex) -> Result<(), Error> {
    static WRITTEN: AtomicU64 = AtomicU64::new(0);
    let path = path(folder, object);
    let number = WRITTEN.fetch_add(1, Ordering::Relaxed);
    let unfinished = path.with_extension(format!("{}-{number}.unfinished", std::process::id()));
    let written = fs::create_dir_all(folder)
        .and_then(|()| fs::write(&unfinished, encode(object, index)))
        .and_then(|()| fs::rename(&unfinished, &path));
    written.map_err(|source| {
        let _ = fs::remove_file(&unfinished);
        Error::Io { path, source }
    })
}

pub(super) fn encode(object: &Object, index: &ShardIndex) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    put_text(&mut bytes, &object.key);
    bytes.extend(object.bytes.to_le_bytes());
    bytes.push(u8::from(object.version.is_some()));
    put_text(&mut bytes, object.version.as_deref().unwrap_or_default());
    index.write(&mut bytes);
    bytes.extend(sum(&bytes).to_le_bytes());
    bytes
}

fn sum(bytes: &[u8]) -> u32 {
    let mut print = Fingerprint::new();
    print.add(bytes);
    print.finish()
}

/// The index in these bytes, if it is of this object; or why it is not.
pub(super) fn decode(bytes: &[u8], object: &Object) -> Result<ShardIndex, &'static str> {
    if !bytes.starts_with(MAGIC) {
        return Err("is of another version of pinfeed, or no index");
    }
    let Some((body, end)) = bytes.split_last_chunk::<4>() else {
        return Err("is damaged");
    };
    if u32::from_le_bytes(*end) != sum(body) {
        return Err("is damaged");
    }
    let mut rest = Rest(&body[MAGIC.len()..]);
    let damaged = "is damaged, though its checksum is right";
    let key = rest.text().ok_or(damaged)?;
    let size = rest.number().ok_or(damaged)?;
    let has_version = rest.take(1).ok_or(damaged)? == [1];
    let version = rest.text().ok_or(damaged)?;
    let version = has_version.then_some(version);
    if (key, size, version) != (&object.key, object.bytes, object.version.as_deref()) {
        return Err("is of another shard, or of another version of it");
    }
    let index = ShardIndex::parse(&mut rest, object.bytes).ok_or(damaged)?;
    match rest.0.is_empty() {
        true => Ok(index),
        false => Err(damaged),
    }
}

/// Writes a text and its length.
pub(super) fn put_text(bytes: &mut Vec<u8>, text: &str) {
    bytes.extend((text.len() as u64).to_le_bytes());
    bytes.extend(text.as_bytes());
}

/// What is still to be read.
pub(super) struct Rest<'a>(&'a [u8]);

impl<'a> Rest<'a> {
    pub(super) fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    pub(super) fn number(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(self.take(8)?.try_into().ok()?))
    }

    pub(super) fn text(&mut self) -> Option<&'a str> {
        let length = usize::try_from(self.number()?).ok()?;
        std::str::from_utf8(self.take(length)?).ok()
    }

    /// A list of numbers of `N` bytes each, behind how many there are.
    pub(super) fn list<const N: usize, T>(&mut self, number: fn([u8; N]) -> T) -> Option<Vec<T>> {
        let count = usize::try_from(self.number()?).ok()?;
        let bytes = self.take(count.checked_mul(N)?)?;
        let (numbers, _) = bytes.as_chunks::<N>();
        Some(numbers.iter().map(|bytes| number(*bytes)).collect())
    }
}
