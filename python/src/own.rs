//! Data sets that the program wrote in Python, and functions that change samples.

use std::cell::Cell;
use std::sync::Arc;

use pinfeed::dataset::{Fingerprint, Pass};
use pinfeed::sampler::{Blocks, Openings};
use pinfeed::{BoxError, Dataset, SampleRng};
use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};

use crate::errors::{Raised, run};
use crate::incoming::value_of;
use crate::outgoing::Output;
use crate::source::{Objects, PySource, Source, Values};
use crate::thread;
use crate::value::Value;

thread_local! {
    /// The seed of the sample that this thread loads.
    static SEED: Cell<Option<u64>> = const { Cell::new(None) };
}

/// A number of the sample that is being loaded, for generators of the program's own: it follows from the loader's seed, the epoch and the
/// sample's position, whatever the number of workers. `None` outside of a sample.
#[pyfunction]
pub(crate) fn sample_seed() -> Option<u64> {
    SEED.get()
}

/// Runs a sample's code, which may ask for its seed.
fn seeded<R>(rng: &mut SampleRng, f: impl FnOnce() -> R) -> R {
    struct Back(Option<u64>);
    impl Drop for Back {
        fn drop(&mut self) {
            SEED.set(self.0);
        }
    }
    let _back = Back(SEED.replace(Some(rng.next_u64())));
    f()
}

/// An object with `__len__` and `__getitem__`, and perhaps `__getitems__`.
pub(crate) struct Own {
    object: Py<PyAny>,
    len: u64,
    /// How many samples `__getitems__` is asked for at once.
    at_once: usize,
    name: String,
}

impl Own {
    fn item<T>(
        self: &Arc<Self>,
        index: u64,
        rng: &mut SampleRng,
        f: fn(&Bound<'_, PyAny>) -> PyResult<T>,
    ) -> Result<T, BoxError> {
        seeded(rng, || {
            run(|py| {
                let index = index.into_pyobject(py)?.into_any();
                f(&thread::item(self.object.bind(py), &index)?)
            })
        })
    }

    fn items<T>(
        self: &Arc<Self>,
        indices: &[u64],
        rngs: &mut [SampleRng],
        f: fn(&Bound<'_, PyAny>) -> PyResult<T>,
    ) -> Vec<Result<T, BoxError>> {
        let Some(rng) = rngs.first_mut() else {
            return Vec::new();
        };
        let got = seeded(rng, || {
            run(|py| {
                let function = self
                    .object
                    .bind(py)
                    .getattr(pyo3::intern!(py, "__getitems__"))?;
                let asked = PyList::new(py, indices)?;
                let items = thread::call(&function, &PyTuple::new(py, [asked])?)?;
                let items: Vec<_> = items.try_iter()?.collect::<PyResult<_>>()?;
                if items.len() != indices.len() {
                    return Err(pyo3::exceptions::PyValueError::new_err(format!(
                        "{}.__getitems__ returned {} samples for {} indices",
                        self.name,
                        items.len(),
                        indices.len()
                    )));
                }
                Ok(items
                    .iter()
                    .map(|item| f(item).map_err(|error| Raised::new(py, error).into()))
                    .collect())
            })
        });
        match got {
            Ok(items) => items,
            // Which of them failed is not known: each alone says it.
            Err(_) if indices.len() > 1 => {
                let each = indices.iter().zip(rngs);
                each.flat_map(|(index, rng)| self.items(&[*index], std::slice::from_mut(rng), f))
                    .collect()
            }
            Err(error) => vec![Err(error)],
        }
    }

    fn fingerprint(&self) -> u32 {
        let mut print = Fingerprint::new();
        print.add_number(self.len);
        print.add(self.name.as_bytes());
        print.finish()
    }
}

/// What `f` makes of the items of an own data set.
struct Items<T> {
    own: Arc<Own>,
    f: fn(&Bound<'_, PyAny>) -> PyResult<T>,
}

impl<T: Send + 'static> Dataset for Items<T> {
    type Sample = T;

    fn len(&self) -> u64 {
        self.own.len
    }

    fn get(&self, index: u64, rng: &mut SampleRng) -> Result<T, BoxError> {
        self.own.item(index, rng, self.f)
    }

    fn get_many(&self, indices: &[u64], rngs: &mut [SampleRng]) -> Vec<Result<T, BoxError>> {
        self.own.items(indices, rngs, self.f)
    }

    fn at_once(&self) -> usize {
        self.own.at_once
    }

    fn describe(&self, index: u64) -> Option<String> {
        Some(format!("{}[{index}]", self.own.name))
    }

    fn fingerprint(&self) -> u32 {
        self.own.fingerprint()
    }
}

fn as_it_is(object: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
    Ok(object.clone().unbind())
}

/// An own data set.
struct OwnSource(Arc<Own>);

impl Source for OwnSource {
    fn len(&self) -> u64 {
        self.0.len
    }

    fn values(&self, _: bool) -> Values {
        Arc::new(Items {
            own: Arc::clone(&self.0),
            f: value_of,
        })
    }

    fn objects(&self, _: Output) -> Objects {
        Arc::new(Items {
            own: Arc::clone(&self.0),
            f: as_it_is,
        })
    }
}

/// A data set whose samples a function changes.
struct Changed {
    inside: Arc<dyn Source>,
    function: Arc<Py<PyAny>>,
    /// Of a tuple, only the first part is changed.
    first_only: bool,
    output: Output,
}

/// Its samples.
struct ChangedItems<T> {
    inside: Objects,
    function: Arc<Py<PyAny>>,
    first_only: bool,
    f: fn(&Bound<'_, PyAny>) -> PyResult<T>,
}

impl<T: Send + 'static> Dataset for ChangedItems<T> {
    type Sample = T;

    fn len(&self) -> u64 {
        self.inside.len()
    }

    fn get(&self, index: u64, rng: &mut SampleRng) -> Result<T, BoxError> {
        let sample = self.inside.get(index, rng)?;
        seeded(rng, || {
            run(|py| {
                let function = self.function.bind(py);
                let sample = sample.bind(py);
                if !self.first_only {
                    return (self.f)(&thread::call(function, &PyTuple::new(py, [sample])?)?);
                }
                let parts = sample.cast::<PyTuple>()?;
                let mut changed: Vec<Bound<'_, PyAny>> = parts.iter().collect();
                if let Some(first) = changed.first_mut() {
                    *first = thread::call(function, &PyTuple::new(py, [&*first])?)?;
                }
                (self.f)(PyTuple::new(py, changed)?.as_any())
            })
        })
    }

    fn describe(&self, index: u64) -> Option<String> {
        self.inside.describe(index)
    }

    fn fingerprint(&self) -> u32 {
        self.inside.fingerprint()
    }

    fn lookahead(&self) -> usize {
        self.inside.lookahead()
    }

    fn will_need(&self, indices: &[u64], pass: Pass) {
        self.inside.will_need(indices, pass);
    }

    fn pass_ended(&self, pass: Pass) {
        self.inside.pass_ended(pass);
    }

    fn blocks(&self) -> Option<Arc<Blocks>> {
        self.inside.blocks()
    }

    fn pass_began(&self, openings: Openings, pass: Pass) {
        self.inside.pass_began(openings, pass);
    }
}

impl Changed {
    fn items<T>(&self, f: fn(&Bound<'_, PyAny>) -> PyResult<T>) -> ChangedItems<T> {
        ChangedItems {
            inside: self.inside.objects(self.output),
            function: Arc::clone(&self.function),
            first_only: self.first_only,
            f,
        }
    }
}

impl Source for Changed {
    fn len(&self) -> u64 {
        self.inside.len()
    }

    fn values(&self, _: bool) -> Values {
        Arc::new(self.items::<Value>(value_of))
    }

    fn objects(&self, _: Output) -> Objects {
        Arc::new(self.items(as_it_is))
    }
}

/// A data set of the program's own.
#[pyfunction]
pub(crate) fn own_source(object: &Bound<'_, PyAny>, at_once: usize) -> PyResult<PySource> {
    let len = object.len()? as u64;
    Ok(PySource(Arc::new(OwnSource(Arc::new(Own {
        len,
        at_once: at_once.max(1),
        name: object.get_type().name()?.to_string(),
        object: object.clone().unbind(),
    })))))
}

/// A data set whose samples a function changes.
#[pyfunction]
pub(crate) fn changed_source(
    py: Python<'_>,
    source: &Bound<'_, PySource>,
    function: Py<PyAny>,
    first_only: bool,
    output: &str,
) -> PyResult<PySource> {
    Ok(PySource(Arc::new(Changed {
        inside: Arc::clone(&source.get().0),
        function: Arc::new(function),
        first_only,
        output: Output::named(py, output, false)?.of_samples(py)?,
    })))
}
