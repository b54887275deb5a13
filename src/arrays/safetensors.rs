//! safetensors files. The header is read by the crate of the format's authors.

use safetensors::{Dtype, SafeTensorError, SafeTensors};

use super::array::{Array, Arrays, Content};
use super::file::IntoFileBytes;
use crate::error::Result;
use crate::shape::DType;
use crate::sync::Arc;

/// The bytes before the header: its length.
const LENGTH_BYTES: usize = 8;

/// Opens the arrays of a safetensors file: `BOOL` (as `u8`), `U8` to `I64`, `F16`, `BF16`, `F32` and `F64`.
///
/// Only the header is read. The format's writers put arrays where they can be used, so a mapped file of any size takes no memory, and can
/// be [registered](super::FileBytes::register). Arrays of types that tensors do not have (`U64`, 8 bits of floating point, complex) are an
/// error when they are asked for.
///
/// # Errors
///
/// [`Error::DataSet`](crate::Error::DataSet) if it is no such file: cut off, with bytes that belong to no array, or with a header of more
/// than 100 MB, that is not JSON, or whose offsets, shapes and types do not fit each other. Those of
/// [`FileBytes::read`](super::FileBytes::read), if the file is a path.
///
/// # Examples
///
/// ```
/// use pinfeed::arrays;
/// use pinfeed::arrays::FileBytes;
///
/// let header = r#"{"x":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]}}       "#;
/// let mut file = (header.len() as u64).to_le_bytes().to_vec();
/// file.extend(header.bytes());
/// file.extend([1f32, 2.0, 3.0, 4.0].map(f32::to_le_bytes).as_flattened());
/// let arrays = arrays::safetensors(FileBytes::new("x.safetensors", file)?)?; // or a path
/// assert_eq!(arrays.tensor::<f32>("x")?.as_slice(), [1.0, 2.0, 3.0, 4.0]);
///
/// let error = arrays.tensor::<f32>("y").unwrap_err();
/// assert_eq!(error.to_string(), "x.safetensors: it has no array `y`, but `x`");
/// # Ok::<(), pinfeed::Error>(())
/// ```
pub fn safetensors(file: impl IntoFileBytes) -> Result<Arrays> {
    let file = file.into_file_bytes()?;
    let refused = |error: SafeTensorError| file.refused(reason(&error));
    let (header, metadata) = SafeTensors::read_metadata(file.as_slice()).map_err(refused)?;
    let begin = LENGTH_BYTES + header;
    let mut arrays = Arrays::new(file.clone());
    for (name, info) in metadata.tensors() {
        let name: Arc<str> = Arc::from(name);
        let (from, to) = info.data_offsets;
        let array = element_type(info.dtype).map(|dtype| Array {
            file: file.clone(),
            name: Some(Arc::clone(&name)),
            dtype,
            shape: info.shape.as_slice().into(),
            // The header was checked against the file's length, and each shape against its bytes.
            content: Content::Stored {
                elements: begin + from..begin + to,
                checked: None,
            },
            is_swapped: cfg!(target_endian = "big") && dtype.size_bytes() > 1,
        });
        arrays.add(name, array)?;
    }
    Ok(arrays)
}

fn element_type(dtype: Dtype) -> Result<DType, String> {
    Ok(match dtype {
        Dtype::BOOL | Dtype::U8 => DType::U8,
        Dtype::I8 => DType::I8,
        Dtype::U16 => DType::U16,
        Dtype::I16 => DType::I16,
        Dtype::U32 => DType::U32,
        Dtype::I32 => DType::I32,
        Dtype::I64 => DType::I64,
        Dtype::F16 => DType::F16,
        Dtype::BF16 => DType::BF16,
        Dtype::F32 => DType::F32,
        Dtype::F64 => DType::F64,
        other => {
            let advice = match other {
                Dtype::U64 => "save them as I64",
                _ => "save them as U8, BOOL, I8 to I64, F16, BF16, F32 or F64",
            };
            return Err(format!(
                "its elements are {other:?}, which tensors do not have: {advice}"
            ));
        }
    })
}

fn reason(error: &SafeTensorError) -> String {
    let what = match error {
        SafeTensorError::HeaderTooSmall => "it has no header: is it empty, or cut off?",
        SafeTensorError::HeaderTooLarge => {
            "its first 8 bytes are no header's length (more than 100 MB)"
        }
        SafeTensorError::InvalidHeaderLength => "it is cut off within its header",
        SafeTensorError::MetadataIncompleteBuffer => {
            "the arrays of its header do not fill the file: it is cut off, or something follows them"
        }
        _ => return format!("it is not a safetensors file: {error}"),
    };
    what.to_owned()
}
