//! Iterables that the program wrote in Python: torch's `IterableDataset`, Hugging Face's, or any class with `__iter__`.
//!
//! One worker at a time pulls items, as many as a batch has in one turn of the interpreter's, and makes samples of them: all of that is Python, which
//! runs on one thread at a time anyway.
//!
//! ```text
//! open:  nothing yet . first pull: set_epoch, __iter__, or behind a state load_state_dict
//! pull:  __next__ .. until a batch has its items . state_dict, if there is one
//! error of __next__:  is there an item behind it? yes: the item's error . no: the iterable's, and the epoch ends
//! ```

use std::cell::RefCell;
use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use pinfeed::dataset::Fingerprint;
use pinfeed::iterable::{ItemIter, IterableDataset, Shard, fatal, progress};
use pinfeed::rng::RngKey;
use pinfeed::{BoxError, DataLoader, SampleRng};
use pyo3::exceptions::{PyException, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyIterator;

use crate::erased::{AnyLoader, Loaded};
use crate::errors::{Raised, run};
use crate::incoming::value_of;
use crate::options::Options;
use crate::source::collate_by;
use crate::thread::{self, lock};
use crate::tree::{HostLeaf, Tree};
use crate::value::Value;

/// Which part of an iterable is asked for, and for which epoch.
#[derive(Debug, Clone, Copy)]
struct Part {
    epoch: u64,
    shard: Shard,
}

/// What the iterable of a thread's pull may ask for.
struct Asked {
    part: Part,
    own: Arc<Own>,
}

thread_local! {
    static ASKED: RefCell<Option<Asked>> = const { RefCell::new(None) };
}

/// Of the iterable that is pulled on this thread: rank, number of ranks, epoch, a seed, and the iterable itself. `None` outside of one.
#[pyfunction]
pub(crate) fn worker_info(py: Python<'_>) -> Option<(u64, u64, u64, u64, Py<PyAny>)> {
    ASKED.with_borrow(|asked| {
        let Asked { part, own } = asked.as_ref()?;
        own.was_asked.store(true, Ordering::Relaxed);
        let (rank, ranks) = (part.shard.rank(), part.shard.ranks());
        let mut rng = SampleRng::for_sample(RngKey {
            seed: part.shard.seed(),
            epoch: part.epoch,
            position: rank,
        });
        let seed = rng.next_u64() >> 1; // (torch's generators take 63 bits)
        Some((rank, ranks, part.epoch, seed, own.object.clone_ref(py)))
    })
}

/// Runs the iterable's code, which may ask for its part.
fn asking<R>(part: Part, own: &Arc<Own>, f: impl FnOnce() -> R) -> R {
    struct Back(Option<Asked>);
    impl Drop for Back {
        fn drop(&mut self) {
            ASKED.set(self.0.take());
        }
    }
    let asked = Asked {
        part,
        own: Arc::clone(own),
    };
    let _back = Back(ASKED.replace(Some(asked)));
    f()
}

/// An object with `__iter__`.
struct Own {
    object: Py<PyAny>,
    name: String,
    /// It has asked which rank it is of.
    was_asked: AtomicBool,
    /// It was said that it has not.
    is_warned: AtomicBool,
}

/// The iterable, whose items become samples by a function of ours.
struct OwnIterable<T> {
    own: Arc<Own>,
    of: fn(&Bound<'_, PyAny>) -> PyResult<T>,
    /// How many items are pulled in one turn.
    batch_size: usize,
}

/// An item, and the sample that was made of it when it was pulled.
struct Item<T> {
    object: Py<PyAny>,
    sample: Mutex<Option<T>>,
}

impl<T: Send + 'static> IterableDataset for OwnIterable<T> {
    type Item = Arc<Item<T>>;
    type Sample = T;
    type Iter = OwnIter<T>;

    fn open(&self, epoch: u64, shard: Shard) -> Result<OwnIter<T>, BoxError> {
        Ok(OwnIter {
            own: Arc::clone(&self.own),
            of: self.of,
            part: Part { epoch, shard },
            batch_size: self.batch_size,
            resumed: None,
            open: None,
            pulled: Some(0),
            ready: VecDeque::new(),
            is_over: false,
            state: None,
            broken: None,
        })
    }

    fn load(&self, item: Arc<Item<T>>, _: &mut SampleRng) -> Result<T, BoxError> {
        let made = lock(&item.sample).take();
        match made {
            Some(sample) => Ok(sample),
            // (It is loaded once more, as where another sample of its batch was left out.)
            None => run(|py| (self.of)(item.object.bind(py))),
        }
    }

    fn fingerprint(&self) -> u32 {
        let mut print = Fingerprint::new();
        print.add(self.own.name.as_bytes());
        print.finish()
    }
}

/// Whose `state_dict` says where the iterable stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum States {
    OfIterator,
    OfDataset,
    /// It does not say: items are counted.
    Nobodys,
}

/// An iterator of the program's.
struct Open {
    iterator: Py<PyIterator>,
    states: States,
}

/// What an epoch pulls.
struct OwnIter<T> {
    own: Arc<Own>,
    of: fn(&Bound<'_, PyAny>) -> PyResult<T>,
    part: Part,
    batch_size: usize,
    /// Where it goes when it is opened.
    resumed: Option<Vec<u8>>,
    open: Option<Open>,
    /// How many items came since its beginning. `None`: it went to a state.
    pulled: Option<u64>,
    ready: VecDeque<Result<Arc<Item<T>>, BoxError>>,
    is_over: bool,
    /// Where it stands behind what is ready.
    state: Option<Vec<u8>>,
    /// Why it does not say where it stands.
    broken: Option<BoxError>,
}

/// The object has both of the field's methods by which an iterable says where it stands, and goes there.
fn has_states(object: &Bound<'_, PyAny>) -> PyResult<bool> {
    Ok(object.hasattr("state_dict")? && object.hasattr("load_state_dict")?)
}

impl Open {
    fn new(py: Python<'_>, own: &Own, epoch: u64, resumed: Option<&[u8]>) -> PyResult<Open> {
        let object = own.object.bind(py);
        if object.hasattr("set_epoch")? {
            object.call_method1("set_epoch", (epoch,))?;
        }
        let state = match resumed {
            Some(state) => Some(py.import("json")?.call_method1("loads", (state,))?),
            None => None,
        };
        let of_dataset = has_states(object)?;
        if let (Some(state), true) = (&state, of_dataset) {
            // (An iterator's own state goes to the iterator: it says so.)
            if state.get_item("of")?.eq("dataset")? {
                object.call_method1("load_state_dict", (state.get_item("state")?,))?;
            }
        }
        let iterator = object.try_iter()?;
        let states = match (has_states(iterator.as_any())?, of_dataset) {
            (true, _) => States::OfIterator,
            (false, true) => States::OfDataset,
            (false, false) => States::Nobodys,
        };
        if let Some(state) = state {
            let of: String = state.get_item("of")?.extract()?;
            match (of.as_str(), states) {
                ("iterator", States::OfIterator) => {
                    iterator.call_method1("load_state_dict", (state.get_item("state")?,))?;
                }
                ("dataset", States::OfDataset) => {}
                _ => {
                    return Err(PyValueError::new_err(format!(
                        "the state has a state_dict of the {of} of {}, which has none now: it is of another program's",
                        own.name
                    )));
                }
            }
        }
        Ok(Open {
            iterator: iterator.unbind(),
            states,
        })
    }

    /// Where it stands, as JSON.
    fn state(&self, py: Python<'_>, own: &Own) -> PyResult<Vec<u8>> {
        let (of, object) = match self.states {
            States::OfDataset => ("dataset", own.object.bind(py)),
            _ => ("iterator", self.iterator.bind(py).as_any()),
        };
        let state = object.call_method0("state_dict")?;
        let json = py.import("json")?;
        let plain = |state: &Bound<'_, PyAny>| {
            let text = json.call_method1("dumps", (state,))?;
            let again = json.call_method1("loads", (&text,))?;
            again.eq(state)
        };
        match plain(&state) {
            Ok(true) => {}
            told => {
                let error = PyValueError::new_err(format!(
                    "the state_dict of {}'s {of} is no plain data, of dicts with str keys, lists, numbers, strings, bools and None, as a state is \
                     that can be saved anywhere: {state}",
                    own.name
                ));
                error.set_cause(py, told.err());
                return Err(error);
            }
        }
        let whole = pyo3::types::PyDict::new(py);
        whole.set_item("of", of)?;
        whole.set_item("state", state)?;
        let text: String = json.call_method1("dumps", (whole,))?.extract()?;
        Ok(text.into_bytes())
    }
}

/// An exception of the iterable's, and where it came.
#[derive(Debug)]
struct InItem {
    place: String,
    cause: Raised,
}

impl fmt::Display for InItem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.cause)
    }
}

impl std::error::Error for InItem {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.cause)
    }
}

impl<T> OwnIter<T> {
    /// Pulls what a batch has, in one turn of the interpreter's. (A batch begins with each turn, unless a run is resumed by counting.)
    fn pull(&mut self) -> Result<(), BoxError> {
        let (part, own) = (self.part, Arc::clone(&self.own));
        match asking(part, &own, || run(|py| self.pull_attached(py))) {
            Ok(pulled) => pulled?,
            // Ctrl-C, or the end of the interpreter: no item's error.
            Err(error) => return Err(fatal(error)),
        }
        if part.shard.ranks() > 1
            && !own.was_asked.load(Ordering::Relaxed)
            && !own.is_warned.swap(true, Ordering::Relaxed)
        {
            log::warn!(
                target: "pinfeed",
                "{} has not asked pinfeed.get_worker_info() which of {} ranks it is of: unless it splits itself in another way, each of them gets all items",
                own.name,
                part.shard.ranks()
            );
        }
        Ok(())
    }

    /// An error of the item that was asked for last.
    fn error(&self, py: Python<'_>, error: PyErr) -> BoxError {
        let name = &self.own.name;
        let place = match (&self.open, self.pulled) {
            (None, _) => format!("opening {name}"),
            (_, Some(number)) => format!("item {number} of {name}"),
            (_, None) => format!("an item of {name}"),
        };
        let cause = Raised::new(py, error);
        InItem { place, cause }.into()
    }

    /// The outer error is an exception that is no `Exception`.
    fn pull_attached(&mut self, py: Python<'_>) -> PyResult<Result<(), BoxError>> {
        let (iterator, states) = match &self.open {
            Some(open) => (open.iterator.bind(py).clone(), open.states),
            None => {
                let resumed = self.resumed.take();
                match Open::new(py, &self.own, self.part.epoch, resumed.as_deref()) {
                    Ok(open) => {
                        let open = self.open.insert(open);
                        (open.iterator.bind(py).clone(), open.states)
                    }
                    Err(error) => return self.ends(py, error),
                }
            }
        };
        // The error of the item before, if it is not known yet whether anything is behind it.
        let mut failed: Option<PyErr> = None;
        let mut asked = 0;
        while asked < self.batch_size || failed.is_some() {
            if let Err(interrupted) = progress() {
                return Ok(Err(interrupted.into()));
            }
            let item = thread::next(&iterator);
            if let Some(error) = failed.take() {
                if matches!(item, Ok(None)) {
                    return self.ends(py, error);
                }
                let error = self.error(py, error);
                self.push(Err(error));
            }
            match item {
                Ok(Some(object)) => {
                    let sample = match (self.of)(&object) {
                        Ok(sample) => Ok(Arc::new(Item {
                            object: object.unbind(),
                            sample: Mutex::new(Some(sample)),
                        })),
                        Err(error) => Err(self.error(py, error)),
                    };
                    self.push(sample);
                }
                Ok(None) => {
                    self.is_over = true;
                    break;
                }
                Err(error) if !error.is_instance_of::<PyException>(py) => return Err(error),
                // (Where a state says where it stands, nothing is asked for beyond the batch.)
                Err(error) if states != States::Nobodys && asked + 1 >= self.batch_size => {
                    let error = self.error(py, error);
                    self.push(Err(error));
                }
                Err(error) => failed = Some(error),
            }
            asked += 1;
        }
        if let (Some(open), false) = (&self.open, states == States::Nobodys) {
            match open.state(py, &self.own) {
                Ok(state) => self.state = Some(state),
                Err(error) => {
                    self.state = None;
                    self.broken = Some(Raised::new(py, error).into());
                }
            }
        }
        Ok(Ok(()))
    }

    fn push(&mut self, item: Result<Arc<Item<T>>, BoxError>) {
        self.pulled = self.pulled.map(|pulled| pulled + 1);
        self.ready.push_back(item);
    }

    /// Nothing follows this error.
    fn ends(&mut self, py: Python<'_>, error: PyErr) -> PyResult<Result<(), BoxError>> {
        if !error.is_instance_of::<PyException>(py) {
            return Err(error);
        }
        self.is_over = true;
        Ok(Err(fatal(self.error(py, error))))
    }
}

impl<T: Send> ItemIter for OwnIter<T> {
    type Item = Arc<Item<T>>;

    fn next(&mut self) -> Option<Result<Arc<Item<T>>, BoxError>> {
        if let Some(ready) = self.ready.pop_front() {
            return Some(ready);
        }
        if let Some(error) = self.broken.take() {
            self.is_over = true;
            return Some(Err(fatal(error)));
        }
        if !self.is_over
            && let Err(error) = self.pull()
        {
            return Some(Err(error)); // (what was pulled of the batch goes with it)
        }
        self.ready.pop_front()
    }

    fn state(&self) -> Option<Vec<u8>> {
        // (Where a batch ends within a turn, items are counted.)
        let is_there = self.ready.is_empty() && self.broken.is_none();
        self.state.clone().filter(|_| is_there)
    }

    fn seek(&mut self, state: &[u8]) -> Result<(), BoxError> {
        (self.resumed, self.pulled) = (Some(state.to_vec()), None);
        Ok(())
    }
}

/// A generator that is left runs its `finally` now, and not when the interpreter comes to it.
impl<T> Drop for OwnIter<T> {
    fn drop(&mut self) {
        let (open, ready) = (self.open.take(), std::mem::take(&mut self.ready));
        if open.is_some() || !ready.is_empty() {
            // (If the interpreter ends, they stay.)
            let _ = thread::attached(|py| {
                drop(ready);
                if let Some(open) = open {
                    drop(open.iterator.into_bound(py));
                }
            });
        }
    }
}

/// An iterable, as `pinfeed.DataLoader` holds it.
#[pyclass(frozen, module = "pinfeed._pinfeed", name = "_Iterable")]
pub(crate) struct PyIterable(Arc<Own>);

#[pymethods]
impl PyIterable {
    #[new]
    fn new(object: &Bound<'_, PyAny>) -> PyResult<PyIterable> {
        Ok(PyIterable(Arc::new(Own {
            name: object.get_type().name()?.to_string(),
            object: object.clone().unbind(),
            was_asked: AtomicBool::new(false),
            is_warned: AtomicBool::new(false),
        })))
    }
}

impl PyIterable {
    pub(crate) fn build(
        &self,
        collate_fn: Option<Py<PyAny>>,
        options: &Options,
    ) -> pinfeed::Result<Box<dyn AnyLoader>> {
        let (own, batch_size) = (Arc::clone(&self.0), options.batch_size);
        match collate_fn {
            None => {
                let of = value_of;
                let source = OwnIterable::<Value> {
                    own,
                    of,
                    batch_size,
                };
                let loader = options.build_iterable(DataLoader::iterable(source))?;
                Ok(Box::new(Loaded::new(loader, options)))
            }
            Some(function) => {
                let of = |item: &Bound<'_, PyAny>| Ok(item.clone().unbind());
                let source = OwnIterable::<Py<PyAny>> {
                    own,
                    of,
                    batch_size,
                };
                let builder = DataLoader::iterable(source);
                let builder =
                    builder.collate_fn::<Tree<HostLeaf>, _>(collate_by(function, options));
                let loader = options.build_iterable(builder)?;
                Ok(Box::new(Loaded::new(loader, options)))
            }
        }
    }
}
