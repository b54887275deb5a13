//! The loader and its iterators, as Python sees them.

use std::mem::ManuallyDrop;
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use pinfeed::Device;
use pinfeed::device::MemoryStats;
use pinfeed::loader::{Stats, TryNext};
use pyo3::exceptions::{PyRuntimeError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::advice;
use crate::device::{TorchDevice, device_object};
use crate::dlpack::{PyCaptureGuard, Ring};
use crate::erased::{AnyEpoch, AnyEpochs, AnyLoader, Handed, RunState};
use crate::errors::{OrRaise, exception, interruptible, say};
use crate::iterable::PyIterable;
use crate::options::Options;
use crate::outgoing::{Output, host_object};
use crate::source::{PySource, collated};
use crate::thread::{self, lock};

/// How long a wait for a batch goes on before the program's signals are looked at.
const TICK: Duration = Duration::from_millis(50);
/// How long the end of a loader waits for its workers, before it leaves them to a thread of its own.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long the end of the interpreter waits for all of them.
const LAST_PATIENCE: Duration = Duration::from_secs(5);

/// The loaders that are alive, for the end of the interpreter.
static LIVING: Mutex<Vec<Weak<Shared>>> = Mutex::new(Vec::new());

/// What a loader and its iterators share.
pub(crate) struct Shared {
    state: Mutex<State>,
    output: Output,
    /// Where batches go.
    device: Option<Place>,
    /// The device itself.
    handle: Option<Device>,
    /// What copies a batch to page-locked memory of torch's.
    pins: Option<Py<PyAny>>,
    has_workers: bool,
    /// The next epoch is prepared while the last batches of one are used.
    prepares: bool,
    /// The process that made it. Its threads are in no other.
    process: u32,
}

/// A device, and whose memory its batches are in.
enum Place {
    Torch(TorchDevice),
    /// The library's own.
    Ring {
        ring: Arc<Ring>,
        sweeps: bool,
    },
}

struct State {
    /// `None`: closed.
    loader: Option<Arc<Box<dyn AnyLoader>>>,
    /// The epochs to come.
    epochs: Option<Box<dyn AnyEpochs>>,
    /// The number of the next one.
    next: u64,
    iterators: Vec<Weak<Slot>>,
}

/// Where an iterator's epoch is, which is with one thread at a time.
pub(crate) struct Slot(Mutex<Stage>);

enum Stage {
    Here(Box<dyn AnyEpoch>),
    /// A thread waits for its next batch.
    Busy,
    Over(Box<Last>),
    Closed,
}

/// Why an epoch cannot be taken.
enum Refused {
    Busy,
    Closed,
}

/// What is known of an epoch that is over.
#[derive(Clone)]
struct Last {
    state: Option<RunState>,
    stats: Option<Stats>,
}

/// A loader that is asked for something. It may be closed meanwhile, and this be its last holder.
struct Held(Option<Arc<Box<dyn AnyLoader>>>);

impl std::ops::Deref for Held {
    type Target = dyn AnyLoader;

    fn deref(&self) -> &(dyn AnyLoader + 'static) {
        match &self.0 {
            Some(loader) => &***loader,
            None => unreachable!("it is taken by `drop` only"),
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // (The end of a loader waits for workers, and they for the interpreter, which the caller has.)
        if let Some(last) = self.0.take().and_then(Arc::into_inner) {
            dispose(last);
        }
    }
}

/// Drops what may wait for workers: on a thread of its own, which says when it is done. (Workers may wait for the interpreter meanwhile.)
fn dispose(things: impl Send + 'static) -> Receiver<()> {
    let (done, is_done) = channel();
    let things = ManuallyDrop::new(things);
    let thread = std::thread::Builder::new().name("pinfeed-drop".into());
    // (If no thread can be started, the things leak: their workers go on.)
    let _ = thread.spawn(move || {
        drop(ManuallyDrop::into_inner(things));
        drop(done);
    });
    is_done
}

/// Waits for that, a second at most. The caller is detached.
fn wait_for(disposed: Option<Receiver<()>>) {
    if let Some(disposed) = disposed {
        let _ = disposed.recv_timeout(PATIENCE);
    }
}

impl Shared {
    fn is_forked(&self) -> bool {
        self.process != std::process::id()
    }

    fn check_process(&self, py: Python<'_>) -> PyResult<()> {
        if !self.is_forked() {
            return Ok(());
        }
        Err(say(
            py,
            "ForkError",
            "this process was forked from the one that made the loader, and has none of its threads: make data set and loader in the process \
             that uses them, or start processes by \"spawn\" (multiprocessing.set_start_method(\"spawn\"))",
        ))
    }

    fn loader(&self, py: Python<'_>) -> PyResult<Held> {
        self.check_process(py)?;
        let loader = lock(&self.state).loader.clone();
        match loader {
            Some(loader) => Ok(Held(Some(loader))),
            None => Err(closed(py)),
        }
    }

    /// Ends it, and its iterators.
    fn close(&self) -> Option<Receiver<()>> {
        let (loader, epochs, iterators) = {
            let mut state = lock(&self.state);
            (
                state.loader.take(),
                state.epochs.take(),
                std::mem::take(&mut state.iterators),
            )
        };
        let slots = iterators.iter().filter_map(Weak::upgrade);
        let taken: Vec<Stage> = slots.map(|slot| slot.close()).collect();
        if self.is_forked() {
            // Their threads are in another process, and their locks may be held for ever.
            let _ = ManuallyDrop::new((loader, epochs, taken));
            return None;
        }
        loader.map(|loader| dispose((taken, epochs, loader)))
    }
}

fn closed(py: Python<'_>) -> PyErr {
    say(
        py,
        "ClosedError",
        "the loader is closed: `with` has ended, close() was called, or the interpreter is exiting",
    )
}

impl Drop for Shared {
    fn drop(&mut self) {
        if lock(&self.state).loader.is_none() {
            return;
        }
        if thread::is_exiting() {
            let mut state = lock(&self.state);
            let _ = ManuallyDrop::new((state.loader.take(), state.epochs.take()));
            return;
        }
        // It is dropped by a thread that is attached: an object's last reference went.
        let detached = thread::attached(|py| py.detach(|| wait_for(self.close())));
        if detached.is_err() {
            self.close();
        }
    }
}

impl Slot {
    fn new(epoch: Box<dyn AnyEpoch>) -> Slot {
        Slot(Mutex::new(Stage::Here(epoch)))
    }

    /// Takes the epoch. `None`: it is over.
    fn take(&self, py: Python<'_>) -> PyResult<Option<Box<dyn AnyEpoch>>> {
        let refused = {
            let mut place = lock(&self.0);
            match std::mem::replace(&mut *place, Stage::Busy) {
                Stage::Here(epoch) => return Ok(Some(epoch)),
                Stage::Over(last) => {
                    *place = Stage::Over(last);
                    return Ok(None);
                }
                Stage::Busy => Refused::Busy,
                Stage::Closed => {
                    *place = Stage::Closed;
                    Refused::Closed
                }
            }
        };
        // (An exception is made of Python's code, which runs under no lock: the thread that another one waits for may have to stop there.)
        Err(match refused {
            Refused::Closed => closed(py),
            Refused::Busy => PyRuntimeError::new_err(
                "another thread waits for this iterator's next batch: give each thread an iterator of its own, or take turns",
            ),
        })
    }

    /// What is known of an epoch that is over.
    fn last(&self) -> Option<Last> {
        match &*lock(&self.0) {
            Stage::Over(last) => Some(Last::clone(last)),
            _ => None,
        }
    }

    /// Puts it back, or what is known of it. Returns what was closed meanwhile.
    fn put(&self, back: Stage) -> Option<Stage> {
        let mut place = lock(&self.0);
        match *place {
            Stage::Closed => Some(back),
            _ => {
                *place = back;
                None
            }
        }
    }

    fn close(&self) -> Stage {
        let mut place = lock(&self.0);
        match &*place {
            Stage::Over(_) => Stage::Closed, // it stays over
            _ => std::mem::replace(&mut *place, Stage::Closed),
        }
    }
}

/// What a loader loads.
#[derive(FromPyObject)]
enum Data<'py> {
    Source(Bound<'py, PySource>),
    Iterable(Bound<'py, PyIterable>),
}

/// A loader.
#[pyclass(frozen, weakref, module = "pinfeed._pinfeed", name = "_Loader")]
pub(crate) struct PyLoader(Arc<Shared>);

#[pymethods]
impl PyLoader {
    #[new]
    fn new(py: Python<'_>, source: Data<'_>, options: &Bound<'_, PyDict>) -> PyResult<PyLoader> {
        let prepares = match options.get_item("prepare_next")? {
            Some(prepares) => prepares.extract()?,
            None => true,
        };
        let options = Options::new(options)?;
        let device = match &options.device {
            None => None,
            Some(device) if options.output == Output::Torch => Some(Place::Torch(
                TorchDevice::new(py, device.clone(), options.ordinal)?,
            )),
            Some(device) => Some(Place::Ring {
                ring: Ring::of(py, device, options.ordinal)?,
                sweeps: options.sweeps,
            }),
        };
        let pins = match options.pins && device.is_none() {
            false => None,
            true if options.output != Output::Torch => {
                return Err(say(
                    py,
                    "OptionError",
                    "pin_memory: page-locked memory is torch's, so it needs torch, and output=\"torch\"",
                ));
            }
            true => {
                let pin = py.import("torch.utils.data._utils.pin_memory")?;
                Some(pin.getattr("pin_memory")?.unbind())
            }
        };
        let function = options
            .collate_fn
            .as_ref()
            .map(|function| function.clone_ref(py));
        let of_samples = options.output.of_samples(py)?;
        // Workers may need the interpreter while they start.
        let loader = match source {
            Data::Iterable(iterable) => {
                let iterable = iterable.get();
                py.detach(|| iterable.build(function, &options))
            }
            Data::Source(source) => {
                let source = Arc::clone(&source.get().0);
                py.detach(|| match function {
                    Some(function) => collated(source.objects(of_samples), function, &options),
                    None => source.build(&options),
                })
            }
        };
        let shared = Arc::new(Shared {
            state: Mutex::new(State {
                loader: Some(Arc::new(loader.or_raise(py)?)),
                epochs: None,
                next: 0,
                iterators: Vec::new(),
            }),
            output: options.output,
            device,
            handle: options.device,
            pins,
            has_workers: options.num_workers != Some(0),
            prepares,
            process: std::process::id(),
        });
        let mut living = lock(&LIVING);
        living.retain(|other| other.strong_count() > 0);
        living.push(Arc::downgrade(&shared));
        drop(living);
        Ok(PyLoader(shared))
    }

    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        let loader = self.0.loader(py)?;
        let len = py.detach(|| loader.len());
        len.ok_or_else(|| PyTypeError::new_err("an iterable does not say how many batches it has"))
    }

    #[getter]
    fn batch_size(&self, py: Python<'_>) -> PyResult<usize> {
        let loader = self.0.loader(py)?;
        Ok(py.detach(|| loader.batch_size()))
    }

    fn __iter__(&self, py: Python<'_>) -> PyResult<PyEpoch> {
        let loader = self.0.loader(py)?;
        let (epochs, number) = {
            let mut state = lock(&self.0.state);
            let number = state.next;
            state.next += 1;
            (state.epochs.take(), number)
        };
        let prepares = self.0.prepares;
        let (epoch, epochs) = py.detach(|| {
            let mut epochs = match epochs {
                Some(epochs) => epochs,
                None if prepares => loader.epochs(number),
                None => return (Some(loader.epoch(number)), None),
            };
            let epoch = epochs.next();
            (epoch, prepares.then_some(epochs))
        });
        let Some(epoch) = epoch else {
            return Err(say(py, "Error", "the loader has no more epochs"));
        };
        let slot = Arc::new(Slot::new(epoch));
        let mut epochs = epochs;
        let mut state = lock(&self.0.state);
        let is_open = state.loader.is_some();
        if is_open {
            if state.epochs.is_none() && state.next == number + 1 {
                state.epochs = epochs.take();
            }
            state
                .iterators
                .retain(|iterator| iterator.strong_count() > 0);
            state.iterators.push(Arc::downgrade(&slot));
        }
        drop(state);
        if !is_open {
            dispose((slot.close(), epochs));
            return Err(closed(py));
        }
        py.detach(|| drop(epochs)); // (another thread began or chose one meanwhile)
        Ok(PyEpoch {
            slot,
            shared: Arc::clone(&self.0),
        })
    }

    /// The next iterator is that of epoch `epoch`.
    fn set_epoch(&self, py: Python<'_>, epoch: u64) -> PyResult<()> {
        self.0.check_process(py)?;
        let before = {
            let mut state = lock(&self.0.state);
            if state.next == epoch {
                return Ok(()); // where the run goes on anyway, in mid-epoch perhaps
            }
            state.next = epoch;
            state.epochs.take()
        };
        py.detach(|| drop(before));
        Ok(())
    }

    /// Where the run stands, in a line of text.
    fn state(&self, py: Python<'_>) -> PyResult<(String, u64, u64)> {
        let loader = self.0.loader(py)?;
        Ok(shown(&py.detach(|| loader.state())))
    }

    fn load_state(&self, py: Python<'_>, state: &str) -> PyResult<()> {
        let loader = self.0.loader(py)?;
        let state = loader.read_state(state).or_raise(py)?;
        let prepares = self.0.prepares;
        let epochs = py.detach(|| loader.resume(&state, prepares)).or_raise(py)?;
        let mut before = Some(epochs);
        let is_open = {
            let mut shared = lock(&self.0.state);
            let is_open = shared.loader.is_some();
            if is_open {
                shared.next = state.epoch();
                std::mem::swap(&mut shared.epochs, &mut before);
            }
            is_open
        };
        if !is_open {
            dispose(before);
            return Err(closed(py));
        }
        py.detach(|| drop(before));
        Ok(())
    }

    fn stats(&self, py: Python<'_>) -> PyResult<PyStats> {
        let loader = self.0.loader(py)?;
        Ok(PyStats(py.detach(|| loader.stats())))
    }

    fn total_stats(&self, py: Python<'_>) -> PyResult<PyStats> {
        let loader = self.0.loader(py)?;
        Ok(PyStats(py.detach(|| loader.total_stats())))
    }

    /// What the device's ring and pool hold, in bytes, by name.
    fn memory<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        self.0.check_process(py)?;
        let handle = self.0.handle.as_ref();
        let memory = py.detach(|| handle.map(Device::memory));
        let held = |bytes: fn(&MemoryStats) -> usize| memory.as_ref().map_or(0, bytes);
        let named = PyDict::new(py);
        named.set_item("pinned_bytes", held(|memory| memory.pinned_bytes))?;
        named.set_item("pinned_idle_bytes", held(|memory| memory.pinned_idle_bytes))?;
        named.set_item("device_bytes", held(|memory| memory.device_bytes))?;
        named.set_item("device_held_bytes", held(|memory| memory.device_held_bytes))?;
        named.set_item("adrift_bytes", held(|memory| memory.adrift_bytes))?;
        Ok(named)
    }

    /// Lets memory be used again that batches were in. Returns the number of bytes.
    fn sweep(&self, py: Python<'_>) -> PyResult<usize> {
        self.0.check_process(py)?;
        match &self.0.device {
            Some(Place::Ring { ring, .. }) => ring.sweep(py),
            _ => Ok(0),
        }
    }

    /// Nothing is swept while it lives.
    fn capture_guard(&self, py: Python<'_>) -> PyResult<PyCaptureGuard> {
        self.0.check_process(py)?;
        Ok(match &self.0.device {
            Some(Place::Ring { ring, .. }) => ring.capture_guard(py),
            _ => PyCaptureGuard::of_nothing(),
        })
    }

    /// Ends the loader, its iterators and its threads.
    fn close(&self, py: Python<'_>) {
        let shared = &self.0;
        py.detach(|| wait_for(shared.close()));
    }

    #[getter]
    fn is_closed(&self) -> bool {
        lock(&self.0.state).loader.is_none()
    }
}

fn shown(state: &RunState) -> (String, u64, u64) {
    (state.to_string(), state.epoch(), state.position())
}

/// An iterator over the batches of an epoch.
#[pyclass(frozen, weakref, module = "pinfeed._pinfeed", name = "_Epoch")]
pub(crate) struct PyEpoch {
    // (Dropped first: the loader's end would wait for it.)
    slot: Arc<Slot>,
    shared: Arc<Shared>,
}

impl PyEpoch {
    /// Asks the epoch, if no other thread has it.
    fn ask<T: Send>(
        &self,
        py: Python<'_>,
        of: impl FnOnce(&dyn AnyEpoch) -> T + Send,
        over: impl FnOnce(Last) -> Option<T>,
    ) -> PyResult<T> {
        self.shared.check_process(py)?;
        let Some(epoch) = self.slot.take(py)? else {
            return self.slot.last().and_then(over).ok_or_else(|| closed(py));
        };
        let (asked, epoch) = py.detach(move || (of(&*epoch), epoch));
        self.put(py, Stage::Here(epoch));
        Ok(asked)
    }

    /// The epoch from where it stood.
    fn again(
        &self,
        py: Python<'_>,
        epoch: Box<dyn AnyEpoch>,
        before: &RunState,
    ) -> Box<dyn AnyEpoch> {
        let Ok(loader) = self.shared.loader(py) else {
            return epoch;
        };
        py.detach(
            || match loader.resume(before, false).map(|mut epochs| epochs.next()) {
                Ok(Some(again)) => again,
                _ => epoch,
            },
        )
    }

    /// The batch as Python has it.
    fn object(&self, py: Python<'_>, batch: Handed) -> PyResult<Py<PyAny>> {
        let shared = &self.shared;
        let batch = match (batch, &shared.device) {
            (Handed::Host(tree), _) => host_object(py, tree, shared.output)?,
            (Handed::Device(tree), Some(Place::Torch(device))) => device_object(py, tree, device)?,
            (Handed::Device(tree), Some(Place::Ring { ring, .. })) => {
                ring.object(py, tree, shared.output)?
            }
            (Handed::Device(_), None) => {
                return Err(say(
                    py,
                    "Error",
                    "a batch came from a device that the loader has not",
                ));
            }
        };
        match &shared.pins {
            Some(pin) => pin.call1(py, (batch,)),
            None => Ok(batch.unbind()),
        }
    }

    /// Behind the hand-over: a worker that is woken calls the driver, which serves one thread at a time.
    fn wake_workers(&self, py: Python<'_>) {
        // (A thread that has the epoch meanwhile wakes them.)
        if self.shared.device.is_some()
            && let Ok(Some(epoch)) = self.slot.take(py)
        {
            epoch.wake_workers();
            self.put(py, Stage::Here(epoch));
        }
    }

    fn put(&self, py: Python<'_>, place: Stage) {
        if let Some(closed) = self.slot.put(place) {
            py.detach(|| wait_for(Some(dispose(closed))));
        }
    }
}

#[pymethods]
impl PyEpoch {
    fn __iter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        self.shared.check_process(py)?;
        // (Before a batch is taken, so that none is lost if this fails.)
        if let Some(Place::Ring { ring, sweeps: true }) = &self.shared.device {
            ring.sweep(py)?;
        }
        let Some(mut epoch) = self.slot.take(py)? else {
            return Ok(None);
        };
        // (Without workers, Ctrl-C interrupts the program's own `__getitem__`: the batch is made again when it is asked for.)
        let before = match self.shared.has_workers {
            true => None,
            false => Some(epoch.state()),
        };
        // A batch that is ready costs no turn of the interpreter's. (Without workers, it would be made attached; and for a device, copies
        // are enqueued.)
        let mut next = match self.shared.has_workers && self.shared.device.is_none() {
            true => epoch.next(Duration::ZERO),
            false => TryNext::NotYet,
        };
        loop {
            match next {
                TryNext::NotYet => {}
                TryNext::Batch(Ok(batch)) => {
                    self.put(py, Stage::Here(epoch));
                    let object = self.object(py, batch);
                    self.wake_workers(py);
                    return object.map(Some);
                }
                TryNext::Batch(Err(error)) => {
                    self.put(py, Stage::Here(epoch));
                    self.wake_workers(py);
                    return Err(exception(py, &error));
                }
                TryNext::End => {
                    let last = Last {
                        state: Some(epoch.state()),
                        stats: Some(epoch.stats()),
                    };
                    py.detach(|| drop(epoch));
                    self.put(py, Stage::Over(Box::new(last)));
                    return Ok(None);
                }
            }
            if let Err(signal) = py.check_signals() {
                self.put(py, Stage::Here(epoch));
                return Err(signal);
            }
            if thread::is_exiting() {
                self.put(py, Stage::Here(epoch));
                return Err(closed(py));
            }
            let interrupt;
            ((next, interrupt), epoch) =
                py.detach(move || (interruptible(|| epoch.next(TICK)), epoch));
            if let Some(interrupt) = interrupt {
                if let Some(before) = &before {
                    epoch = self.again(py, epoch, before);
                }
                self.put(py, Stage::Here(epoch));
                return Err(interrupt);
            }
        }
    }

    /// Which epoch it is.
    #[getter]
    fn epoch(&self, py: Python<'_>) -> PyResult<u64> {
        self.ask(
            py,
            |epoch| epoch.number(),
            |last| Some(last.state?.epoch().saturating_sub(1)),
        )
    }

    /// Where the run stands in this epoch.
    fn state(&self, py: Python<'_>) -> PyResult<(String, u64, u64)> {
        self.ask(
            py,
            |epoch| shown(&epoch.state()),
            |last| Some(shown(&last.state?)),
        )
    }

    fn stats(&self, py: Python<'_>) -> PyResult<PyStats> {
        self.ask(
            py,
            |epoch| PyStats(epoch.stats()),
            |last| Some(PyStats(last.stats?)),
        )
    }
}

/// Where the time went.
#[pyclass(frozen, module = "pinfeed", name = "Stats")]
pub(crate) struct PyStats(Stats);

#[pymethods]
impl PyStats {
    fn __str__(&self) -> String {
        advice::shown(&self.0)
    }

    fn __repr__(&self) -> String {
        format!(
            "<pinfeed.Stats of {} samples in {} batches>",
            self.0.samples, self.0.batches
        )
    }

    /// How many epochs it counts.
    #[getter]
    fn epochs(&self) -> u64 {
        self.0.epochs
    }

    /// How many samples the program was given.
    #[getter]
    fn samples(&self) -> u64 {
        self.0.samples
    }

    /// How many batches the program was given.
    #[getter]
    fn batches(&self) -> u64 {
        self.0.batches
    }

    /// Samples per second.
    #[getter]
    fn samples_per_second(&self) -> f64 {
        self.0.samples_per_second()
    }

    /// The share of the time that the program waited for batches: 0 to 1.
    #[getter]
    fn starvation(&self) -> f64 {
        self.0.starvation()
    }

    /// What limits the loop.
    #[getter]
    fn limit(&self) -> String {
        format!("{:?}", self.0.limit())
    }

    /// Seconds from the first batch that was asked for to the last that was given.
    #[getter]
    fn wall_time(&self) -> f64 {
        self.0.wall_time().as_secs_f64()
    }

    /// Seconds a batch that workers were busy with it, all of them together: loading, decoding and collating.
    #[getter]
    fn loading(&self) -> f64 {
        let stages = [&self.0.loading, &self.0.decoding, &self.0.collating];
        let busy = stages.into_iter().map(|stage| stage.total).sum();
        share(busy, self.0.made.batches)
    }

    /// Seconds a batch of copies to the device, measured there, of all its parts; 0 where none was.
    #[getter]
    fn transfer(&self) -> f64 {
        share(self.0.transfers.total, self.0.batches)
    }

    /// With `decode="both"`: the share of the pictures that the GPU decodes, once that is fixed.
    #[getter]
    fn device_share(&self) -> Option<f64> {
        self.0
            .decoder
            .device_share
            .map(|of_64| f64::from(of_64) / 64.0)
    }

    /// Seconds a batch that the program waited for it.
    #[getter]
    fn waiting(&self) -> f64 {
        share(self.0.consumer_wait.total, self.0.batches)
    }

    /// How many samples failed, and were replaced or left out.
    #[getter]
    fn bad_samples(&self) -> u64 {
        self.0.bad.replaced + self.0.bad.skipped
    }
}

/// The mean in seconds of so many.
fn share(total: Duration, count: u64) -> f64 {
    total.as_secs_f64() / count.max(1) as f64
}

/// The interpreter ends: no thread of ours runs Python from here on. Closes the loaders that are alive.
#[pyfunction]
pub(crate) fn at_exit(py: Python<'_>) {
    thread::exits();
    let deadline = Instant::now() + LAST_PATIENCE;
    let living = std::mem::take(&mut *lock(&LIVING));
    let living = living.iter().filter_map(Weak::upgrade);
    let mut disposed: Vec<Receiver<()>> = living.filter_map(|shared| shared.close()).collect();
    loop {
        let is_inside = thread::interrupt(py);
        disposed.retain(|disposed| matches!(disposed.try_recv(), Err(TryRecvError::Empty)));
        if !is_inside && disposed.is_empty() || Instant::now() >= deadline {
            return;
        }
        py.detach(|| std::thread::sleep(Duration::from_millis(2))); // (only while the interpreter ends)
    }
}
