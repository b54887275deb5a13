//! The index of Megatron's files, `.idx`.
//!
//! The format is that of `megatron/core/datasets/indexed_dataset.py`, version 1: the magic bytes, the version, the type's code, the
//! numbers of sequences and of document boundaries; then the sequences' lengths in tokens (`i32`), the bytes where they begin (`i64`), and
//! the sequences where documents begin, with the end (`i64`). All in little-endian order.

use super::super::cursor::Cursor;
use super::super::file::FileBytes;
use super::{Token, other_type};
use crate::error::Result;
use crate::shape::DType;
use crate::system::room;

pub(super) const MAGIC: &[u8] = b"MMIDIDX\x00\x00";

/// Returns the token where each document ends.
pub(super) fn ends<T: Token>(idx: &FileBytes) -> Result<Vec<u64>> {
    let index = Index::read(idx.as_slice()).map_err(|reason| idx.refused(reason))?;
    if index.dtype != T::DTYPE {
        return Err(other_type(idx, index.dtype, T::DTYPE));
    }
    index.ends().map_err(|reason| idx.refused(reason))
}

struct Index<'a> {
    dtype: DType,
    lengths: &'a [u8],
    pointers: &'a [u8],
    documents: &'a [u8],
}

impl<'a> Index<'a> {
    fn read(all: &'a [u8]) -> Result<Index<'a>, String> {
        if !all.starts_with(MAGIC) {
            return Err("it is not an index of Megatron's, which begins with MMIDIDX".to_owned());
        }
        let cut = || "it is cut off".to_owned();
        let mut cursor = Cursor::at(all, MAGIC.len() as u64).ok_or_else(cut)?;
        let version = cursor.u64().ok_or_else(cut)?;
        if version != 1 {
            return Err(format!("it is of version {version}, and only 1 is known"));
        }
        let dtype = match cursor.u8().ok_or_else(cut)? {
            1 => DType::U8,
            2 => DType::I8,
            3 => DType::I16,
            4 => DType::I32,
            5 => DType::I64,
            8 => DType::U16,
            6 | 7 => return Err("its tokens are floating-point numbers".to_owned()),
            code => return Err(format!("the type of its tokens is unknown: {code}")),
        };
        let (sequences, boundaries) = cursor.u64().zip(cursor.u64()).ok_or_else(cut)?;
        let mut list = |count: u64, size: u64| {
            let bytes = count
                .checked_mul(size)
                .and_then(|bytes| usize::try_from(bytes).ok());
            let list = bytes.and_then(|bytes| cursor.take(bytes));
            list.ok_or_else(|| format!("it is cut off: it is to list {sequences} sequences and {boundaries} boundaries of documents"))
        };
        let index = Index {
            dtype,
            lengths: list(sequences, 4)?,
            pointers: list(sequences, 8)?,
            documents: list(boundaries, 8)?,
        };
        match cursor.rest().len() as u64 {
            0 => Ok(index),
            rest if rest == sequences => Err(
                "it is of several modes (text and others), which cannot be told here".to_owned(),
            ),
            rest => Err(format!("{rest} bytes follow its lists")),
        }
    }

    /// The documents: each is one or several sequences, which must lie one behind the other.
    fn ends(&self) -> Result<Vec<u64>, String> {
        let size = self.dtype.size_bytes() as u64;
        let sequences = self.lengths.len() as u64 / 4;
        let mut documents = numbers(self.documents, i64::from_le_bytes);
        if documents.next() != Some(0) {
            return Err("its first document does not begin with the first sequence".to_owned());
        }
        let room = room::room_for(documents.len() as u64);
        let mut ends =
            room.map_err(|no_room| format!("the list of its documents takes {no_room}"))?;
        let lengths = numbers(self.lengths, i32::from_le_bytes);
        let mut each = lengths.zip(numbers(self.pointers, i64::from_le_bytes));
        let (mut done, mut tokens) = (0u64, 0u64);
        for (document, until) in documents.enumerate() {
            let until = u64::try_from(until)
                .ok()
                .filter(|until| (done..=sequences).contains(until));
            let until = until.ok_or_else(|| {
                format!("the end of document {document} is not among its {sequences} sequences")
            })?;
            for (sequence, (length, pointer)) in (done..until).zip(&mut each) {
                let begin = tokens.checked_mul(size);
                let length = u64::try_from(length)
                    .map_err(|_| format!("sequence {sequence} has {length} tokens"))?;
                if begin.is_none() || u64::try_from(pointer).ok() != begin {
                    return Err(format!(
                        "sequence {sequence} begins at byte {pointer}, and not where the one before it ends, byte {}",
                        u128::from(tokens) * u128::from(size)
                    ));
                }
                tokens = tokens
                    .checked_add(length)
                    .ok_or("its sequences have more tokens than can be counted")?;
            }
            done = until;
            ends.push(tokens); // there is room for as many
        }
        match done == sequences {
            true => Ok(ends),
            false => Err(format!(
                "its documents have {done} sequences, and it lists {sequences}"
            )),
        }
    }
}

fn numbers<const N: usize, T>(
    bytes: &[u8],
    number: impl Fn([u8; N]) -> T,
) -> impl ExactSizeIterator<Item = T> {
    bytes.as_chunks().0.iter().map(move |bytes| number(*bytes))
}
