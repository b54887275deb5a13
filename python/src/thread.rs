//! How the library's threads enter the interpreter, and how they stay out of it when it ends.
//!
//! A thread that Python does not know gets a thread state when it attaches, and loses it when it detaches, and with it its
//! `threading.local()`s. So a worker keeps one from its first sample on, until it ends.
//!
//! ```text
//! atexit:  EXITING = true . closes loaders, and interrupts threads that run Python, until none does, 5 s at most . interpreter ends
//! worker:  INSIDE + 1 . is EXITING? yes: INSIDE - 1, error . no: attach .. detach . INSIDE - 1
//! ```
//!
//! No thread that saw `EXITING` attaches again: before Python 3.14, the interpreter would end it by unwinding through Rust.

use std::cell::Cell;
use std::ffi::c_long;
use std::fmt;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pyo3::exceptions::PySystemExit;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyIterator, PyTuple};

/// The interpreter is about to end. (SeqCst, here and with `INSIDE`: of a thread that enters and one that ends the interpreter, at least
/// one sees the other.)
static EXITING: AtomicBool = AtomicBool::new(false);
/// How many threads of ours are attached, or about to be.
static INSIDE: AtomicUsize = AtomicUsize::new(0);
/// The threads that have a state of ours.
static THREADS: Mutex<Vec<Arc<Known>>> = Mutex::new(Vec::new());

/// A thread that has a state of ours.
struct Known {
    /// As `threading.get_ident()`.
    ident: c_long,
    /// It runs Python.
    is_inside: AtomicBool,
}

/// The interpreter ends: nothing of Python's runs any more.
#[derive(Debug)]
pub(crate) struct Exiting;

impl fmt::Display for Exiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the Python interpreter is exiting")
    }
}

impl std::error::Error for Exiting {}

/// Takes a lock that no panic can have left in a bad state: what is under it is replaced as a whole.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A place in `INSIDE`.
struct Inside(Option<Arc<Known>>);

impl Inside {
    fn enter() -> Result<Inside, Exiting> {
        INSIDE.fetch_add(1, Ordering::SeqCst);
        let inside = Inside(None);
        match EXITING.load(Ordering::SeqCst) {
            true => Err(Exiting),
            false => Ok(inside),
        }
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        if let Some(known) = &self.0 {
            known.is_inside.store(false, Ordering::SeqCst);
        }
        INSIDE.fetch_sub(1, Ordering::SeqCst);
    }
}

/// The state of a thread that Python does not know.
#[derive(Default)]
struct Kept {
    state: Cell<Option<NonNull<ffi::PyThreadState>>>,
    known: Cell<Option<Arc<Known>>>,
}

thread_local! {
    static KEPT: Kept = Kept::default();
}

impl Kept {
    /// Gives the thread a state that stays, unless it has one.
    fn keep(&self) -> Option<Arc<Known>> {
        if self.state.get().is_none() {
            // SAFETY: it may be called at any time, attached or not.
            if !unsafe { ffi::PyGILState_GetThisThreadState() }.is_null() {
                return None; // a thread of Python's
            }
            // SAFETY: the interpreter runs (`Inside`), and this thread is not attached.
            unsafe { ffi::PyGILState_Ensure() };
            // SAFETY: this thread is attached, and nothing refers to its token.
            let ident = unsafe { ffi::PyThread_get_thread_ident() } as c_long;
            // SAFETY: as above. The state stays, with one user more than `Python::attach` counts.
            self.state
                .set(NonNull::new(unsafe { ffi::PyEval_SaveThread() }));
            let known = Arc::new(Known {
                ident,
                is_inside: AtomicBool::new(false),
            });
            lock(&THREADS).push(Arc::clone(&known));
            self.known.set(Some(known));
        }
        let known = self.known.take();
        self.known.set(known.clone());
        known
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        if let Some(known) = self.known.take() {
            lock(&THREADS).retain(|other| !Arc::ptr_eq(other, &known));
        }
        let Some(state) = self.state.take() else {
            return;
        };
        let Ok(_inside) = Inside::enter() else {
            return; // the interpreter ends, and frees it
        };
        // SAFETY: it is this thread's state, which is not attached, and the interpreter runs (`Inside`).
        unsafe { ffi::PyEval_RestoreThread(state.as_ptr()) };
        // SAFETY: it ends what `keep` began: the state has no other user, and goes.
        unsafe { ffi::PyGILState_Release(ffi::PyGILState_STATE::PyGILState_UNLOCKED) };
    }
}

/// Runs Python on this thread, which is a worker's or the program's. No lock of ours may be held.
///
/// # Errors
///
/// `Exiting` if the interpreter ends.
pub(crate) fn attached<R>(f: impl FnOnce(Python<'_>) -> R) -> Result<R, Exiting> {
    let mut inside = Inside::enter()?;
    if let Some(known) = KEPT.try_with(Kept::keep).ok().flatten() {
        known.is_inside.store(true, Ordering::SeqCst);
        inside.0 = Some(known);
    }
    // (It may have waited for the interpreter, which ends meanwhile.)
    let done = Python::attach(|py| match is_exiting() {
        true => Err(Exiting),
        false => Ok(f(py)),
    });
    drop(inside);
    done
}

type Call = unsafe extern "C-unwind" fn(
    *mut ffi::PyObject,
    *mut ffi::PyObject,
    *mut ffi::PyObject,
) -> *mut ffi::PyObject;
type Next = unsafe extern "C-unwind" fn(*mut ffi::PyObject) -> *mut ffi::PyObject;
type GetItem =
    unsafe extern "C-unwind" fn(*mut ffi::PyObject, *mut ffi::PyObject) -> *mut ffi::PyObject;

/// `PyObject_Call`, which may unwind where the interpreter ends while a thread is inside: see `Stays`. PyO3 declares that it never does,
/// and whatever the compiler knows to be that function is called without a place to stop at: hence a pointer that it knows nothing of.
fn call_function() -> Call {
    type Declared = unsafe extern "C" fn(
        *mut ffi::PyObject,
        *mut ffi::PyObject,
        *mut ffi::PyObject,
    ) -> *mut ffi::PyObject;
    // SAFETY: the two differ in what the caller is prepared for.
    std::hint::black_box(unsafe {
        std::mem::transmute::<Declared, Call>(ffi::PyObject_Call as Declared)
    })
}

/// `PyObject_GetItem`, in the same way.
fn get_item_function() -> GetItem {
    type Declared =
        unsafe extern "C" fn(*mut ffi::PyObject, *mut ffi::PyObject) -> *mut ffi::PyObject;
    // SAFETY: as above.
    std::hint::black_box(unsafe {
        std::mem::transmute::<Declared, GetItem>(ffi::PyObject_GetItem as Declared)
    })
}

/// `PyIter_Next`, in the same way.
fn next_function() -> Next {
    type Declared = unsafe extern "C" fn(*mut ffi::PyObject) -> *mut ffi::PyObject;
    // SAFETY: as above.
    std::hint::black_box(unsafe {
        std::mem::transmute::<Declared, Next>(ffi::PyIter_Next as Declared)
    })
}

/// Calls a function of the program's.
pub(crate) fn call<'py>(
    function: &Bound<'py, PyAny>,
    arguments: &Bound<'py, PyTuple>,
) -> PyResult<Bound<'py, PyAny>> {
    let call = call_function();
    let stays = Stays::begin();
    // SAFETY: both objects are alive, and this thread is attached.
    let result = unsafe { call(function.as_ptr(), arguments.as_ptr(), std::ptr::null_mut()) };
    stays.end();
    // SAFETY: it is a new reference, or null with an exception.
    unsafe { Bound::from_owned_ptr_or_err(function.py(), result) }
}

/// `object[key]`, of an object of the program's.
pub(crate) fn item<'py>(
    object: &Bound<'py, PyAny>,
    key: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyAny>> {
    let get_item = get_item_function();
    let stays = Stays::begin();
    // SAFETY: both objects are alive, and this thread is attached.
    let result = unsafe { get_item(object.as_ptr(), key.as_ptr()) };
    stays.end();
    // SAFETY: it is a new reference, or null with an exception.
    unsafe { Bound::from_owned_ptr_or_err(object.py(), result) }
}

/// The next item of an iterator of the program's; `None` at its end.
pub(crate) fn next<'py>(iterator: &Bound<'py, PyIterator>) -> PyResult<Option<Bound<'py, PyAny>>> {
    let next = next_function();
    let stays = Stays::begin();
    // SAFETY: it is an iterator, which is alive, and this thread is attached.
    let item = unsafe { next(iterator.as_ptr()) };
    stays.end();
    let py = iterator.py();
    if item.is_null() {
        return match PyErr::take(py) {
            Some(error) => Err(error),
            None => Ok(None),
        };
    }
    // SAFETY: it is a new reference.
    Ok(Some(unsafe { Bound::from_owned_ptr(py, item) }))
}

/// Before Python 3.14, a thread that comes back to Python while the interpreter ends (it slept, and caught the interruption) is ended by
/// `pthread_exit`, which unwinds through the frames of Rust below, and aborts the process there. This stops it at the first of them: the
/// thread stays until the process ends, as from 3.14 on.
struct Stays(bool);

impl Stays {
    fn begin() -> Stays {
        Stays(true)
    }

    fn end(mut self) {
        self.0 = false;
    }
}

impl Drop for Stays {
    fn drop(&mut self) {
        if self.0 {
            loop {
                std::thread::park();
            }
        }
    }
}

pub(crate) fn is_exiting() -> bool {
    EXITING.load(Ordering::SeqCst)
}

/// From here on, no thread of ours attaches any more.
pub(crate) fn exits() {
    EXITING.store(true, Ordering::SeqCst);
}

/// Interrupts the threads of ours that run Python code, at their next instruction. Returns whether there are any left inside.
pub(crate) fn interrupt(py: Python<'_>) -> bool {
    let exit = py.get_type::<PySystemExit>();
    let inside: Vec<c_long> = lock(&THREADS)
        .iter()
        .filter(|known| known.is_inside.load(Ordering::SeqCst))
        .map(|known| known.ident)
        .collect();
    for ident in inside {
        // SAFETY: this thread is attached; a thread that is gone is none of the interpreter's, and nothing happens.
        unsafe { ffi::PyThreadState_SetAsyncExc(ident as _, exit.as_ptr()) };
    }
    INSIDE.load(Ordering::SeqCst) > 0
}
