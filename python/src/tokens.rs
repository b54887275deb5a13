//! Files of tokens, mapped into memory: windows of them, for language models.

use std::path::PathBuf;
use std::sync::Arc;

use pinfeed::Tensor;
use pinfeed::arrays::{Token, TokenFile};
use pyo3::prelude::*;

use crate::errors::{OrRaise, say};
use crate::kind::Kind;
use crate::source::{Native, PySource, Source};
use crate::value::Value;

/// Windows of `length` tokens and those that follow each, as `int64`.
#[pyfunction]
pub(crate) fn token_windows(
    py: Python<'_>,
    path: PathBuf,
    format: &str,
    dtype: &str,
    length: usize,
    stride: Option<u64>,
) -> PyResult<PySource> {
    fn windows<T: Token>(
        path: PathBuf,
        format: &str,
        length: usize,
        stride: Option<u64>,
    ) -> pinfeed::Result<Arc<dyn Source>> {
        let file: TokenFile<T> = match format {
            "llm.c" => TokenFile::llm_c(path)?,
            "megatron" => {
                TokenFile::megatron(path.with_extension("bin"), path.with_extension("idx"))?
            }
            _ => TokenFile::raw(path)?,
        };
        let mut windows = file.windows(length)?;
        if let Some(stride) = stride {
            windows = windows.with_stride(stride)?;
        }
        Ok(Arc::new(Native::new(windows.to_i64(), both)))
    }
    if !["raw", "llm.c", "megatron"].contains(&format) {
        return Err(say(
            py,
            "OptionError",
            &format!("format={format:?}: it is \"raw\" (nanoGPT's), \"llm.c\" or \"megatron\""),
        ));
    }
    let source = py.detach(|| match dtype {
        "uint16" => Some(windows::<u16>(path, format, length, stride)),
        "uint32" => Some(windows::<u32>(path, format, length, stride)),
        "int32" => Some(windows::<i32>(path, format, length, stride)),
        _ => None,
    });
    match source {
        Some(source) => Ok(PySource(source.or_raise(py)?)),
        None => Err(say(
            py,
            "OptionError",
            &format!("dtype={dtype:?}: tokens are \"uint16\", \"uint32\" or \"int32\""),
        )),
    }
}

fn both((inputs, targets): (Vec<i64>, Vec<i64>)) -> Value {
    Value::Tuple(vec![tokens(inputs), tokens(targets)])
}

fn tokens(tokens: Vec<i64>) -> Value {
    Value::Tensor(Tensor::from(tokens).into(), Kind::I64)
}
