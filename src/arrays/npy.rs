//! `.npy` files: a dictionary in Python's notation, and the numbers.
//!
//! The format is that of numpy.lib.format, <https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html>.

use super::array::{Array, Content};
use super::cursor::Cursor;
use super::file::IntoFileBytes;
use super::shown::shown;
use crate::error::Result;
use crate::shape::{DType, Shape};

const MAGIC: &[u8] = b"\x93NUMPY";

/// The most bytes of a header. Only the description of a structure is long, and that is refused.
const LONGEST_HEADER: u32 = 1 << 20;

/// Opens an array that `numpy.save` wrote: versions 1 to 3, in rows (not `fortran_order`), of booleans, integers and floating-point numbers
/// of either byte order.
///
/// # Errors
///
/// [`Error::DataSet`](crate::Error::DataSet) if it is no such file, if it is cut off, or if something follows the array (`numpy.save` to
/// an open file, twice: use `numpy.savez`); if the array is in columns, or of a type that tensors do not have: structures, text, dates,
/// Python's objects, complex numbers and `u64`, all by name. Those of [`FileBytes::read`](super::FileBytes::read), if the file is a path.
///
/// # Examples
///
/// ```
/// use pinfeed::{DataLoader, TensorDataset, arrays};
///
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("x.npy");
/// # let mut file = b"\x93NUMPY\x01\x00\x76\x00{'descr': '<i4', 'fortran_order': False, 'shape': (2, 2)}".to_vec();
/// # file.resize(128, b' ');
/// # file.extend([7i32, 8, 9, 10].map(i32::to_le_bytes).as_flattened());
/// # std::fs::write(&path, &file)?;
/// let table = TensorDataset::new(arrays::npy(&path)?.tensor::<i32>()?)?;
/// let batch = DataLoader::builder(table).batch_size(2).build()?.epoch(0).next().unwrap()?;
/// assert_eq!((&batch.shape()[..], batch.as_slice()), (&[2, 2][..], &[7, 8, 9, 10][..]));
///
/// # std::fs::write(&path, &file[..134])?;
/// let error = arrays::npy(&path).unwrap_err(); // a download that was interrupted
/// assert!(error.to_string().ends_with("x.npy: it is cut off: [2, 2] of i32 takes 16 bytes, and 6 are there"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn npy(file: impl IntoFileBytes) -> Result<Array> {
    let file = file.into_file_bytes()?;
    let all = file.as_slice();
    let header = Header::read(all, all.len() as u64).map_err(|reason| file.refused(reason))?;
    Ok(Array {
        name: None,
        dtype: header.dtype,
        shape: header.shape,
        content: Content::Stored {
            elements: header.begin..all.len(),
            checked: None,
        },
        is_swapped: header.is_swapped,
        file,
    })
}

/// What the header says.
pub(super) struct Header {
    pub(super) dtype: DType,
    pub(super) is_swapped: bool,
    pub(super) shape: Shape,
    /// The first byte of the numbers, which go on to the end.
    pub(super) begin: usize,
}

impl Header {
    /// Reads the header of an array with so many bytes in all, of which the first are there.
    pub(super) fn read(first: &[u8], length: u64) -> Result<Header, String> {
        let (begin, text) = text(first)?;
        let fields = Fields::parse(text).ok_or_else(|| {
            format!(
                "its header cannot be understood: {}",
                shown(text.trim_end())
            )
        })?;
        let (dtype, is_swapped) = element_type(fields.descr)?;
        let shape = shape(fields.shape)?;
        if fields.is_fortran && shape.len() > 1 {
            return Err(format!(
                "it is {shape} in columns (fortran_order), and batches take rows: save numpy.ascontiguousarray(..) of it"
            ));
        }
        let elements = Shape::elements(&shape);
        let bytes = elements.and_then(|elements| elements.checked_mul(dtype.size_bytes()));
        let there = length.saturating_sub(begin as u64);
        let bytes = bytes.ok_or_else(|| {
            format!("{shape} of {dtype} is more than memory can be, and {there} bytes are there")
        })? as u64;
        match bytes {
            _ if bytes > there => Err(format!(
                "it is cut off: {shape} of {dtype} takes {bytes} bytes, and {there} are there"
            )),
            _ if bytes < there => Err(format!(
                "{} bytes follow its array, {shape} of {dtype}: several arrays belong into an .npz file",
                there - bytes
            )),
            _ => Ok(Header {
                dtype,
                is_swapped,
                shape,
                begin,
            }),
        }
    }

    /// How many bytes a header has that begins so, at most: with fewer, it is cut off.
    pub(super) const MOST_BYTES: usize = LONGEST_HEADER as usize + 12;
}

/// The dictionary, and where the numbers begin.
fn text(first: &[u8]) -> Result<(usize, &str), String> {
    let Some(rest) = first.strip_prefix(MAGIC) else {
        return Err("it is not an .npy file, which begins with \\x93NUMPY".to_owned());
    };
    let cut = || "it is cut off within its header".to_owned();
    let mut cursor = Cursor::at(rest, 0).ok_or_else(cut)?;
    let (major, minor) = cursor.u8().zip(cursor.u8()).ok_or_else(cut)?;
    let (length, preamble) = match (major, minor) {
        (1, 0) => (cursor.u16().map(u32::from), 10),
        (2 | 3, 0) => (cursor.u32(), 12),
        _ => {
            return Err(format!(
                "it is of version {major}.{minor}, and 1.0, 2.0 and 3.0 are known"
            ));
        }
    };
    let length = length.ok_or_else(cut)?;
    if length > LONGEST_HEADER {
        return Err(format!(
            "its header is to have {length} bytes, and no array takes more than {LONGEST_HEADER}"
        ));
    }
    let text = cursor.take(length as usize).ok_or_else(cut)?;
    let text = str::from_utf8(text).map_err(|_| "its header is not text".to_owned())?;
    Ok((preamble + length as usize, text))
}

/// The values of the dictionary, as they are written.
struct Fields<'a> {
    descr: &'a str,
    is_fortran: bool,
    shape: &'a str,
}

impl<'a> Fields<'a> {
    /// Python's literal `{'descr': .., 'fortran_order': .., 'shape': ..}`: each key once, in any order.
    fn parse(text: &'a str) -> Option<Fields<'a>> {
        let mut rest = text.trim().strip_prefix('{')?.strip_suffix('}')?.trim();
        let (mut descr, mut order, mut shape) = (None, None, None);
        while !rest.is_empty() {
            let (key, after) = quoted(rest)?;
            let after = after.trim_start().strip_prefix(':')?.trim_start();
            let (value, after) = after.split_at(value_end(after)?);
            let field = match key {
                "descr" => &mut descr,
                "fortran_order" => &mut order,
                "shape" => &mut shape,
                _ => return None,
            };
            if field.replace(value.trim_end()).is_some() {
                return None;
            }
            rest = after.strip_prefix(',').unwrap_or(after).trim_start();
        }
        let is_fortran = match order? {
            "True" => true,
            "False" => false,
            _ => return None,
        };
        Some(Fields {
            descr: descr?,
            is_fortran,
            shape: shape?,
        })
    }
}

/// A string at the beginning, and what follows it.
fn quoted(text: &str) -> Option<(&str, &str)> {
    let quote = text.chars().next().filter(|c| ['\'', '"'].contains(c))?;
    let (inside, rest) = text[1..].split_once(quote)?;
    (!inside.contains('\\')).then_some((inside, rest))
}

/// Where a value ends: at a comma outside brackets and quotes, or where the text does.
fn value_end(text: &str) -> Option<usize> {
    let (mut depth, mut quote) = (0usize, None);
    for (place, c) in text.char_indices() {
        match (quote, c) {
            (Some(open), _) if open == c => quote = None,
            (Some(_), _) => {}
            (None, '\'' | '"') => quote = Some(c),
            (None, '(' | '[') => depth += 1,
            (None, ')' | ']') => depth = depth.checked_sub(1)?,
            (None, ',') if depth == 0 => return Some(place),
            _ => {}
        }
    }
    (depth == 0 && quote.is_none()).then_some(text.len())
}

/// The element type, and whether its bytes are in the other order than this machine's.
fn element_type(descr: &str) -> Result<(DType, bool), String> {
    if descr.starts_with('[') || descr.starts_with('(') {
        return Err(format!(
            "its elements are structures, {}: save each field as an array of its own (numpy.savez(.., x=array['x']))",
            shown(descr)
        ));
    }
    let unknown = || format!("the type of its elements is unknown: {}", shown(descr));
    let (name, "") = quoted(descr).ok_or_else(unknown)? else {
        return Err(unknown());
    };
    let mut order = name.chars();
    let is_big = match order.next() {
        Some('<') => false,
        Some('>') => true,
        Some('|' | '=') => cfg!(target_endian = "big"),
        _ => return Err(unknown()),
    };
    let code = order.as_str();
    let dtype = match code {
        "b1" | "u1" => DType::U8,
        "i1" => DType::I8,
        "u2" => DType::U16,
        "i2" => DType::I16,
        "u4" => DType::U32,
        "i4" => DType::I32,
        "i8" => DType::I64,
        "f2" => DType::F16,
        "f4" => DType::F32,
        "f8" => DType::F64,
        _ => return Err(refused_type(name, code).unwrap_or_else(unknown)),
    };
    let is_swapped = dtype.size_bytes() > 1 && is_big != cfg!(target_endian = "big");
    Ok((dtype, is_swapped))
}

/// Why tensors have no such elements, and what to save instead.
fn refused_type(name: &str, code: &str) -> Option<String> {
    let (what, advice) = match code.chars().next()? {
        'u' if code == "u8" => (
            "integers of 64 bits without a sign",
            "save array.astype(numpy.int64)",
        ),
        'f' => (
            "floating-point numbers of another length",
            "save array.astype(numpy.float64)",
        ),
        'c' => (
            "complex numbers",
            "save their parts, array.view(numpy.float32) or float64",
        ),
        'O' => ("Python's objects (pickled)", "save arrays of numbers"),
        'U' | 'S' | 'a' => (
            "text",
            "save numbers, such as numpy.unique(array, return_inverse=True)[1]",
        ),
        'M' | 'm' => ("dates or durations", "save array.astype(numpy.int64)"),
        'V' => (
            "bytes without a type, as of bfloat16",
            "save array.view(numpy.uint16) or astype(numpy.float32)",
        ),
        _ => return None,
    };
    Some(format!(
        "its elements ('{}') are {what}, which tensors do not have: {advice}",
        shown(name)
    ))
}

/// Python's tuple of lengths.
fn shape(text: &str) -> Result<Shape, String> {
    let unknown = || format!("its shape cannot be understood: {}", shown(text));
    let inside = text
        .strip_prefix('(')
        .and_then(|text| text.strip_suffix(')'))
        .ok_or_else(unknown)?
        .trim();
    let inside = inside.strip_suffix(',').unwrap_or(inside);
    if inside.is_empty() {
        return Ok(Shape::default());
    }
    // (Python 2 wrote an L behind some numbers.)
    let length = |text: &str| {
        let digits = text.trim().trim_end_matches('L');
        let is_number = !digits.is_empty() && digits.bytes().all(|digit| digit.is_ascii_digit());
        is_number.then(|| digits.parse::<usize>().ok()).flatten()
    };
    let lengths: Option<Shape> = inside.split(',').map(length).collect();
    lengths.ok_or_else(unknown)
}
