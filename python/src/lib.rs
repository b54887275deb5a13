//! `pinfeed` for Python: the native part, `pinfeed._pinfeed`. What programs import is in `package/pinfeed`.
//!
//! A data set is a [`source::Source`], whatever its samples are; a loader is an [`erased::AnyLoader`]. Python's objects become samples in
//! `incoming`, and batches become Python's in `outgoing`. `thread` says how threads of the library enter the interpreter, and how they
//! stay out of it when it ends; `loader` how a program waits.
//!
//! One law: the program's Python runs on whichever thread loads a sample, attached, and with no lock of ours held.

mod advice;
#[expect(unsafe_code, reason = "it copies into memory of torch's")]
mod device;
#[expect(unsafe_code, reason = "it makes capsules of DLPack")]
mod dlpack;
mod erased;
mod errors;
mod images;
#[expect(unsafe_code, reason = "it reads the memory of Python's buffers")]
mod incoming;
mod iterable;
mod kind;
mod loader;
mod logger;
mod machine;
mod numbers;
mod options;
#[expect(unsafe_code, reason = "it exports buffers to Python")]
mod outgoing;
mod own;
mod parquet;
mod picture;
mod sampler;
mod shards;
mod source;
mod table;
#[expect(unsafe_code, reason = "it keeps thread states of the interpreter's")]
mod thread;
mod tokens;
mod tree;
mod value;
mod world;

use pyo3::pymodule;

#[pymodule(gil_used = false)]
mod _pinfeed {
    use pyo3::prelude::*;

    #[pymodule_export]
    use super::dlpack::{PyCaptureGuard, PyTensor};
    #[pymodule_export]
    use super::images::{PyFolder, PyTransform};
    #[pymodule_export]
    use super::iterable::{PyIterable, worker_info};
    #[pymodule_export]
    use super::loader::{PyEpoch, PyLoader, PyStats, at_exit};
    #[pymodule_export]
    use super::machine::{PyProbe, machine};
    #[pymodule_export]
    use super::own::{changed_source, own_source, sample_seed};
    #[pymodule_export]
    use super::parquet::PyParquet;
    #[pymodule_export]
    use super::sampler::PySampler;
    #[pymodule_export]
    use super::shards::shard_source;
    #[pymodule_export]
    use super::source::PySource;
    #[pymodule_export]
    use super::table::{PyArray, named_arrays, npy, table_source};
    #[pymodule_export]
    use super::tokens::token_windows;
    #[pymodule_export]
    use super::world::world_from_env;

    #[pymodule_init]
    fn begin(_module: &Bound<'_, PyModule>) -> PyResult<()> {
        super::logger::begin();
        Ok(())
    }

    #[pymodule_export]
    #[expect(non_upper_case_globals, reason = "Python's name")]
    const __version__: &str = env!("CARGO_PKG_VERSION");
}
