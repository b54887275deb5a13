//! IDX files, as MNIST, Fashion-MNIST and EMNIST have them.
//!
//! The format is that of <https://yann.lecun.com/exdb/mnist/>: two zeros, a byte for the type, one for the number of dimensions, their
//! lengths as 32 bits each, and the numbers; all in big-endian order.

use super::array::{Array, Content};
use super::cursor::Cursor;
use super::file::{FileBytes, IntoFileBytes};
use super::inflate;
use crate::error::Result;
use crate::shape::{DType, Shape};

const GZIP: &[u8] = b"\x1f\x8b";

/// Opens an IDX file, such as MNIST's `train-images-idx3-ubyte` (`u8`, `[60000, 28, 28]`) and `train-labels-idx1-ubyte` (`u8`, `[60000]`),
/// also compressed as they are published, `.gz`, whatever they are called.
///
/// A compressed file is decompressed into memory at once. Numbers of more than one byte are in the order that few machines have, so they
/// are copied ([`Array::is_in_place`]).
///
/// # Errors
///
/// [`Error::DataSet`](crate::Error::DataSet) if it is no such file, is cut off, or has bytes behind its numbers; or if it cannot be
/// decompressed. Those of [`FileBytes::read`], if the file is a path.
///
/// # Examples
///
/// ```
/// use pinfeed::arrays::FileBytes;
/// use pinfeed::{DataLoader, TensorDataset, arrays};
///
/// # let images: Vec<u8> = [[0, 0, 8, 3].as_slice(), &[0, 0, 0, 3, 0, 0, 0, 28, 0, 0, 0, 28], &[7; 3 * 28 * 28]].concat();
/// # let labels = vec![0, 0, 8, 1, 0, 0, 0, 3, 7, 2, 1];
/// # let (images, labels) = (FileBytes::new("train-images", images)?, FileBytes::new("train-labels", labels)?);
/// // Two paths, such as "train-images-idx3-ubyte.gz" and "train-labels-idx1-ubyte.gz":
/// let (images, labels) = (arrays::idx(images)?.tensor::<u8>()?, arrays::idx(labels)?.tensor::<u8>()?);
/// let mnist = TensorDataset::new((images, labels))?;
/// let (images, labels) = DataLoader::builder(mnist).batch_size(3).build()?.epoch(0).next().unwrap()?;
/// assert_eq!(images.shape()[..], [3, 28, 28]);
/// assert_eq!(labels.as_slice(), [7, 2, 1]);
/// # Ok::<(), pinfeed::Error>(())
/// ```
pub fn idx(file: impl IntoFileBytes) -> Result<Array> {
    let file = file.into_file_bytes()?;
    let file = match file.as_slice().starts_with(GZIP) {
        true => decompressed(&file)?,
        false => file,
    };
    let length = file.len();
    let (header, bytes) = Header::read(file.as_slice()).map_err(|reason| file.refused(reason))?;
    if bytes != length as u64 {
        let shape = &header.shape;
        let reason = match bytes > length as u64 {
            true => format!(
                "it is cut off: {shape} of {} makes a file of {bytes} bytes, and it has {length}",
                header.dtype
            ),
            false => format!(
                "{} bytes follow its array, {shape} of {}",
                length as u64 - bytes,
                header.dtype
            ),
        };
        return Err(file.refused(reason));
    }
    Ok(Array {
        name: None,
        dtype: header.dtype,
        shape: header.shape,
        content: Content::Stored {
            elements: header.begin..length,
            checked: None,
        },
        is_swapped: header.dtype.size_bytes() > 1 && cfg!(target_endian = "little"),
        file,
    })
}

/// The file that is compressed in it: its header says how long it is.
fn decompressed(file: &FileBytes) -> Result<FileBytes> {
    let compressed = file.as_slice();
    let inflated = inflate::first_gzip(compressed, Header::MOST_BYTES).and_then(|first| {
        let (_, bytes) = Header::read(&first)?;
        inflate::gzip(compressed, bytes)
    });
    let inflated = inflated.map_err(|reason| file.refused(reason))?;
    FileBytes::new(file.name(), inflated)
}

struct Header {
    dtype: DType,
    shape: Shape,
    begin: usize,
}

impl Header {
    const MOST_BYTES: usize = 4 + 4 * u8::MAX as usize;

    /// Reads it, and returns the length of the file as well.
    fn read(first: &[u8]) -> Result<(Header, u64), String> {
        let mut cursor = Cursor::at(first, 0).unwrap_or(Cursor::EMPTY);
        if !first.is_empty() && cursor.take(2) != Some(&[0, 0]) {
            return Err("it is not an IDX file, which begins with two zeros".to_owned());
        }
        let cut = || "it is cut off within its header".to_owned();
        let (code, dimensions) = cursor.u8().zip(cursor.u8()).ok_or_else(cut)?;
        let dtype = match code {
            0x08 => DType::U8,
            0x09 => DType::I8,
            0x0b => DType::I16,
            0x0c => DType::I32,
            0x0d => DType::F32,
            0x0e => DType::F64,
            _ => return Err(format!("the type of its elements is unknown: {code:#04x}")),
        };
        let lengths: Option<Vec<u32>> = (0..dimensions).map(|_| cursor.u32_be()).collect();
        let lengths = lengths.ok_or_else(cut)?;
        let begin = 4 + 4 * lengths.len();
        let bytes = lengths
            .iter()
            .try_fold(dtype.size_bytes() as u64, |bytes, length| {
                bytes.checked_mul(u64::from(*length))
            });
        let bytes = bytes.and_then(|bytes| bytes.checked_add(begin as u64));
        let shape: Shape = lengths.iter().map(|length| *length as usize).collect();
        let bytes =
            bytes.ok_or_else(|| format!("{shape} of {dtype} is more than memory can be"))?;
        Ok((
            Header {
                dtype,
                shape,
                begin,
            },
            bytes,
        ))
    }
}
