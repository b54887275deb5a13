//! Errors as Python's exceptions. The classes are in `pinfeed/_errors.py`.

use std::cell::{Cell, RefCell};
use std::error::Error as StdError;
use std::fmt;

use pinfeed::{BoxError, Error};
use pyo3::exceptions::{PyException, PyRuntimeError, PyStopIteration};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyModule;

use crate::thread::{self, Exiting};

/// An exception of the program's own code, on its way through the library.
pub(crate) struct Raised {
    error: PyErr,
    /// What it says, so that nothing needs the interpreter to print it.
    text: String,
}

impl Raised {
    pub(crate) fn new(py: Python<'_>, error: PyErr) -> Raised {
        let name = error
            .get_type(py)
            .name()
            .map_or_else(|_| "an exception".to_owned(), |name| name.to_string());
        let text = match error.value(py).str() {
            Ok(text) if text.is_empty().unwrap_or(true) => name,
            Ok(text) => format!("{name}: {text}"),
            Err(_) => name,
        };
        Raised { error, text }
    }
}

impl fmt::Display for Raised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Debug for Raised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl StdError for Raised {}

thread_local! {
    /// This thread asks for a batch, which it may have to make.
    static ASKS: Cell<bool> = const { Cell::new(false) };
    /// Ctrl-C, or another exception that is no `Exception`, came while it made one.
    static INTERRUPT: RefCell<Option<PyErr>> = const { RefCell::new(None) };
}

/// Runs `f`, which asks for a batch. The second is what interrupted the program's own code meanwhile: that is no bad sample, whatever
/// `on_error` says.
pub(crate) fn interruptible<R>(f: impl FnOnce() -> R) -> (R, Option<PyErr>) {
    let before = ASKS.replace(true);
    let done = f();
    ASKS.set(before);
    (done, INTERRUPT.take())
}

/// Runs the program's Python on this thread.
pub(crate) fn run<R>(f: impl FnOnce(Python<'_>) -> PyResult<R>) -> Result<R, BoxError> {
    if INTERRUPT.with_borrow(Option::is_some) {
        return Err("interrupted".into()); // the rest of the batch is not made
    }
    let done = thread::attached(|py| {
        f(py).map_err(|error| {
            if ASKS.get() && !error.is_instance_of::<PyException>(py) {
                INTERRUPT.set(Some(error.clone_ref(py)));
            }
            Raised::new(py, error)
        })
    });
    match done {
        Ok(Ok(done)) => Ok(done),
        Ok(Err(raised)) => Err(raised.into()),
        Err(Exiting) => Err(Exiting.into()),
    }
}

fn module(py: Python<'_>) -> PyResult<&Bound<'_, PyModule>> {
    static MODULE: PyOnceLock<Py<PyModule>> = PyOnceLock::new();
    let module = MODULE.get_or_try_init(py, || {
        Ok::<_, PyErr>(py.import("pinfeed._errors")?.unbind())
    })?;
    Ok(module.bind(py))
}

/// An exception of ours, of the class with that name.
pub(crate) fn say(py: Python<'_>, class: &str, message: &str) -> PyErr {
    let error = module(py)
        .and_then(|module| module.getattr(class))
        .and_then(|class| class.call1((message,)));
    match error {
        Ok(error) => PyErr::from_value(error),
        Err(error) => error,
    }
}

/// The exception in a chain of errors that the program's own code raised.
fn raised<'e>(error: &'e (dyn StdError + 'static)) -> Option<&'e Raised> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(raised) = error.downcast_ref() {
            return Some(raised);
        }
        if let Some(ours) = error.downcast_ref::<Error>()
            && let Some(cause) = cause_of(ours)
            && let Some(raised) = raised(cause)
        {
            return Some(raised);
        }
        next = error.source();
    }
    None
}

/// What the data set or the function returned.
fn cause_of(error: &Error) -> Option<&(dyn StdError + 'static)> {
    match error {
        Error::Sample(_, cause) | Error::Source(cause) => Some(&**cause),
        Error::CollateFn { source, .. } | Error::Iterable { source, .. } => Some(&**source),
        _ => None,
    }
}

/// What messages advise in Rust, and in Python. (python/tests/test_words.py looks at what becomes of them.)
const ADVICE: &[(&str, &str)] = &[
    (
        "or where lengths differ use pinfeed::Padded or pinfeed::Ragged",
        "or give the loader a collate_fn, which may pad them",
    ),
    (
        "sequences whose lengths differ can be pinfeed::Padded or pinfeed::Ragged",
        "sequences whose lengths differ are for a collate_fn, which may pad them",
    ),
    (
        " (pinfeed::Padded and pinfeed::Ragged are for samples that differ in their first dimension only)",
        ", or give the loader a collate_fn",
    ),
    (
        "give the ImageFolder a `.with_transform(..)`, or the LazyImage a `.transform(..)`, that makes",
        "give the data set a transform that makes",
    ),
    (
        "ImageTransform::eval(224) or ImageTransform::new().resize_exact(height, width)",
        "pinfeed.transforms.eval(224)",
    ),
    ("ImageTransform::eval(224)", "pinfeed.transforms.eval(224)"),
    (", or use Device::cpu()", ", or leave out device="),
    ("ImageFolder::from_list", "pinfeed.ImageFolder.from_list"),
    (
        ", or raise the budget (Device::set_device_budget_bytes)",
        "",
    ),
    (" (Device::set_pinned_budget_bytes)", ""),
    (
        "use shuffle(true), or give BlockSampler::with_tracks",
        "give shuffle=True, and tracks, for instance",
    ),
    ("BlockSampler::with_tracks", "tracks"),
    (
        "TokenFile::megatron takes both",
        "format=\"megatron\" takes both",
    ),
    ("TokenFile::llm_c opens it", "format=\"llm.c\" opens it"),
    (
        "TokenFile::raw opens files without one",
        "format=\"raw\" opens files without one",
    ),
    (
        "leave such samples out with OnError::Skip",
        "leave such samples out with on_error=\"skip\"",
    ),
    (
        "that are adrift (Device::sweep)",
        "that are adrift (loader.sweep())",
    ),
];

/// A message with the names that Python has.
pub(crate) fn in_python(message: String) -> String {
    match message.contains("::") {
        false => message,
        true => ADVICE.iter().fold(message, |message, (rust, python)| {
            message.replace(rust, python)
        }),
    }
}

/// An error of the library's as an exception. What the program's own code raised comes out as it is, with a note that says where.
pub(crate) fn exception(py: Python<'_>, error: &Error) -> PyErr {
    if let Some(raised) = raised(error) {
        let note = error.to_string();
        let note = note.strip_suffix(&raised.text).unwrap_or(&note);
        let note = note.trim_end_matches([':', ' ']);
        let own = raised.error.clone_ref(py);
        let _ = own
            .value(py)
            .call_method1(pyo3::intern!(py, "add_note"), (format!("pinfeed: {note}"),));
        // (It would end the program's `for` loop, as if there were no more batches.)
        if own.is_instance_of::<PyStopIteration>(py) {
            let error =
                PyRuntimeError::new_err(format!("pinfeed: {note}: it raised StopIteration"));
            error.set_cause(py, Some(own));
            return error;
        }
        return own;
    }
    let message = in_python(format!("{error:#}"));
    let not_found = |source: &std::io::Error| source.kind() == std::io::ErrorKind::NotFound;
    let class = match error {
        Error::InvalidOption { .. } => "OptionError",
        Error::Sample(..) | Error::SamplePanicked(..) | Error::TooManyBad { .. } => "SampleError",
        Error::TimedOut(_) => "SampleTimeout",
        Error::Collate(_)
        | Error::CollateFn { .. }
        | Error::CollatePanicked { .. }
        | Error::Stack(_)
        | Error::Shape(_)
        | Error::OwnedBytes { .. } => "CollateError",
        Error::Io { source, .. } if not_found(source) => "NotFoundError",
        Error::Io { .. } | Error::Write { .. } => "FileError",
        Error::DataSet { .. }
        | Error::Source(_)
        | Error::Iterable { .. }
        | Error::IterablePanicked { .. } => "DataSetError",
        Error::State { .. } => "StateError",
        Error::CannotWait { .. } => "ForkError",
        Error::NoDriver { .. }
        | Error::DriverTooOld { .. }
        | Error::StubDriver
        | Error::NoDevice { .. }
        | Error::Device { .. }
        | Error::DeviceBudget { .. }
        | Error::Buffers { .. }
        | Error::Pinned { .. }
        | Error::WrongDevice { .. }
        | Error::ComputeCapability { .. }
        | Error::Decoder { .. } => "DeviceError",
        Error::HostMemory { .. } => "HostMemoryError",
        _ => "Error",
    };
    let exception = say(py, class, &message);
    if let Error::Sample(sample, _) | Error::SamplePanicked(sample, _) = error {
        let value = exception.value(py);
        let _ = value.setattr("index", sample.index);
        let _ = value.setattr("epoch", sample.epoch);
        let _ = value.setattr("batch", sample.batch);
    }
    exception
}

/// A result of the library's as one of Python's.
pub(crate) trait OrRaise<T> {
    fn or_raise(self, py: Python<'_>) -> PyResult<T>;
}

impl<T> OrRaise<T> for Result<T, Error> {
    fn or_raise(self, py: Python<'_>) -> PyResult<T> {
        self.map_err(|error| exception(py, &error))
    }
}
