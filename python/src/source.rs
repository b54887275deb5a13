//! Data sets of any kind, behind one face.

use std::sync::Arc;

use pinfeed::collate::{Arena, Collate, Stack};
use pinfeed::dataset::{ConcatDataset, Pass, Subset};
use pinfeed::rng::RngKey;
use pinfeed::sampler::{Blocks, Openings};
use pinfeed::{BoxError, DataLoader, Dataset, SampleRng};
use pyo3::exceptions::{PyIndexError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};

use crate::erased::{AnyLoader, Loaded};
use crate::errors::{OrRaise, exception, run};
use crate::incoming::value_of;
use crate::kind::{HostTensor, each};
use crate::options::Options;
use crate::outgoing::{Output, array_of, like};
use crate::thread;
use crate::tree::{HostLeaf, IntoTree, Tree};
use crate::value::Value;

/// Samples of run-time types.
pub(crate) type Values = Arc<dyn Dataset<Sample = Value>>;
/// Samples as Python has them.
pub(crate) type Objects = Arc<dyn Dataset<Sample = Py<PyAny>>>;

/// A data set.
pub(crate) trait Source: Send + Sync + 'static {
    fn len(&self) -> u64;

    /// Its samples. `on_device`: batches go to a device, which finishes their pictures.
    fn values(&self, on_device: bool) -> Values;

    /// Its samples as Python objects, for functions of the program's.
    fn objects(&self, output: Output) -> Objects {
        Arc::new(AsObjects {
            values: self.values(false),
            output,
        })
    }

    /// A loader of it. A data set whose batches have types that are known has its own, which is faster.
    fn build(&self, options: &Options) -> pinfeed::Result<Box<dyn AnyLoader>> {
        loader_of(self.values(options.device.is_some()), options)
    }
}

/// A loader of samples that are stacked.
pub(crate) fn loader_of<D: Dataset>(
    dataset: D,
    options: &Options,
) -> pinfeed::Result<Box<dyn AnyLoader>>
where
    Stack: Collate<D::Sample>,
    <Stack as Collate<D::Sample>>::Batch: IntoTree,
{
    let loader = options.build(dataset.blocks(), DataLoader::builder(dataset))?;
    Ok(Box::new(Loaded::new(loader, options)))
}

/// A loader whose batches are made by a function of the program's.
pub(crate) fn collated(
    objects: Objects,
    function: Py<PyAny>,
    options: &Options,
) -> pinfeed::Result<Box<dyn AnyLoader>> {
    let (collate, blocks) = (collate_by(function, options), objects.blocks());
    let builder = DataLoader::builder(objects).collate_fn::<Tree<HostLeaf>, _>(collate);
    let loader = options.build(blocks, builder)?;
    Ok(Box::new(Loaded::new(loader, options)))
}

/// What makes a batch of Python objects by a function of the program's.
pub(crate) fn collate_by(
    function: Py<PyAny>,
    options: &Options,
) -> impl Fn(Vec<Py<PyAny>>, &mut Arena) -> Result<Tree<HostLeaf>, BoxError> + Send + Sync + 'static
{
    let to_device = options.device.is_some();
    move |samples: Vec<Py<PyAny>>, arena: &mut Arena| {
        let made = run(|py| {
            let samples = PyList::new(py, samples)?;
            let made = thread::call(function.bind(py), &PyTuple::new(py, [samples])?)?;
            Ok(match to_device {
                true => Err(value_of(&made)?),
                false => Ok(made.unbind()),
            })
        })?;
        match made {
            Ok(whole) => Ok(Tree::Whole(whole)),
            Err(value) => placed(value, arena),
        }
    }
}

/// A batch that a function made, in the memory of the loader's.
fn placed(value: Value, arena: &mut Arena) -> Result<Tree<HostLeaf>, BoxError> {
    let all = |values: Vec<Value>, arena: &mut Arena| {
        let values = values.into_iter();
        values
            .map(|value| placed(value, arena))
            .collect::<Result<Vec<_>, _>>()
    };
    Ok(match value {
        Value::Tensor(tensor, kind) => Tree::Leaf(HostLeaf {
            tensor: each!(tensor, HostTensor, tensor => {
                let mut own = arena.zeros(tensor.shape())?;
                let elements = own.as_mut_slice().ok_or("a new tensor is not shared")?;
                elements.copy_from_slice(tensor.as_slice());
                own.into()
            }),
            kind,
            finish: None,
        }),
        Value::Scalar(number, kind) => placed(Value::Tensor(number.tensor()?, kind), arena)?,
        Value::Text(text) => Tree::Texts(vec![text]),
        Value::Bytes(bytes) => Tree::Bytes(vec![bytes]),
        Value::Object(object) => Tree::Whole(object),
        Value::Int(number) => {
            Tree::Whole(run(|py| Ok(number.into_pyobject(py)?.into_any().unbind()))?)
        }
        Value::Float(number) => {
            Tree::Whole(run(|py| Ok(number.into_pyobject(py)?.into_any().unbind()))?)
        }
        Value::Bool(bool) => Tree::Whole(run(|py| {
            Ok(bool.into_pyobject(py)?.to_owned().into_any().unbind())
        })?),
        Value::List(values) => Tree::List(all(values, arena)?),
        Value::Tuple(values) => Tree::Tuple(all(values, arena)?),
        Value::Named(class, values) => Tree::Named(class, all(values, arena)?),
        Value::Dict(entries) => {
            let entries = entries.into_iter();
            let entries = entries.map(|(key, value)| Ok((key, placed(value, arena)?)));
            Tree::Dict(entries.collect::<Result<_, BoxError>>()?)
        }
        Value::Like(sample, value) => Tree::Like(sample, Box::new(placed(*value, arena)?)),
        Value::Picture(..) => return Err("a collate_fn returned a picture".into()),
    })
}

/// A data set's samples as Python objects.
struct AsObjects {
    values: Values,
    output: Output,
}

impl Dataset for AsObjects {
    type Sample = Py<PyAny>;

    fn len(&self) -> u64 {
        self.values.len()
    }

    fn get(&self, index: u64, rng: &mut SampleRng) -> Result<Py<PyAny>, BoxError> {
        let value = decoded(self.values.get(index, rng)?)?;
        run(|py| Ok(sample_object(py, value, self.output)?.unbind()))
    }

    fn describe(&self, index: u64) -> Option<String> {
        self.values.describe(index)
    }

    fn fingerprint(&self) -> u32 {
        self.values.fingerprint()
    }

    fn lookahead(&self) -> usize {
        self.values.lookahead()
    }

    fn will_need(&self, indices: &[u64], pass: Pass) {
        self.values.will_need(indices, pass);
    }

    fn pass_ended(&self, pass: Pass) {
        self.values.pass_ended(pass);
    }

    fn blocks(&self) -> Option<Arc<Blocks>> {
        self.values.blocks()
    }

    fn pass_began(&self, openings: Openings, pass: Pass) {
        self.values.pass_began(openings, pass);
    }
}

/// The sample with its pictures decoded, which nobody does attached.
pub(crate) fn decoded(value: Value) -> Result<Value, BoxError> {
    let all = |values: Vec<Value>| {
        values
            .into_iter()
            .map(decoded)
            .collect::<Result<Vec<_>, _>>()
    };
    Ok(match value {
        Value::Picture(image, finishing) => finishing.decoded(image)?,
        Value::List(values) => Value::List(all(values)?),
        Value::Tuple(values) => Value::Tuple(all(values)?),
        Value::Named(class, values) => Value::Named(class, all(values)?),
        Value::Dict(entries) => {
            let entries = entries.into_iter();
            let entries = entries.map(|(key, value)| Ok((key, decoded(value)?)));
            Value::Dict(entries.collect::<Result<_, BoxError>>()?)
        }
        Value::Like(sample, value) => Value::Like(sample, Box::new(decoded(*value)?)),
        value => value,
    })
}

/// A sample as a Python object; its pictures are decoded.
pub(crate) fn sample_object<'py>(
    py: Python<'py>,
    value: Value,
    output: Output,
) -> PyResult<Bound<'py, PyAny>> {
    let all = |values: Vec<Value>| {
        let values = values.into_iter();
        values
            .map(|value| sample_object(py, value, output))
            .collect::<PyResult<Vec<_>>>()
    };
    Ok(match value {
        Value::Tensor(tensor, kind) => array_of(py, tensor, kind, output)?,
        Value::Scalar(number, kind) => {
            let tensor = number.tensor();
            let tensor = tensor.map_err(|error| PyValueError::new_err(error.to_string()))?;
            array_of(py, tensor, kind, output)?
        }
        Value::Int(number) => number.into_pyobject(py)?.into_any(),
        Value::Float(number) => number.into_pyobject(py)?.into_any(),
        Value::Bool(bool) => bool.into_pyobject(py)?.to_owned().into_any(),
        Value::Picture(..) => {
            return Err(crate::errors::say(
                py,
                "Error",
                "a picture that is not decoded",
            ));
        }
        Value::Object(object) => object.into_bound(py),
        Value::Text(text) => text.into_pyobject(py)?.into_any(),
        Value::Bytes(bytes) => pyo3::types::PyBytes::new(py, &bytes).into_any(),
        Value::List(values) => PyList::new(py, all(values)?)?.into_any(),
        Value::Tuple(values) => PyTuple::new(py, all(values)?)?.into_any(),
        Value::Named(class, values) => {
            let parts = PyTuple::new(py, all(values)?)?;
            class.bind(py).call1(parts)?
        }
        Value::Dict(entries) => {
            let dict = pyo3::types::PyDict::new(py);
            for (key, value) in entries {
                let value = sample_object(py, value, output)?;
                match key {
                    crate::tree::Key::Name(name) => dict.set_item(&*name, value)?,
                    crate::tree::Key::Number(number) => dict.set_item(number, value)?,
                }
            }
            dict.into_any()
        }
        Value::Like(sample, value) => {
            like(&sample.into_bound(py), sample_object(py, *value, output)?)?
        }
    })
}

/// A data set whose samples are changed by a function of ours, which cannot fail.
pub(crate) struct Adapted<D, S, F> {
    inside: D,
    f: F,
    /// As `Dataset::sample_bytes`.
    pub(crate) sample_bytes: Option<usize>,
    sample: std::marker::PhantomData<fn() -> S>,
}

impl<D: Dataset, S, F: Fn(D::Sample) -> S> Adapted<D, S, F> {
    pub(crate) fn new(inside: D, f: F) -> Adapted<D, S, F> {
        Adapted {
            inside,
            f,
            sample_bytes: None,
            sample: std::marker::PhantomData,
        }
    }
}

impl<D, S, F> Dataset for Adapted<D, S, F>
where
    D: Dataset,
    S: Send + 'static,
    F: Fn(D::Sample) -> S + Send + Sync + 'static,
{
    type Sample = S;

    fn len(&self) -> u64 {
        self.inside.len()
    }

    fn get(&self, index: u64, rng: &mut SampleRng) -> Result<S, BoxError> {
        self.inside.get(index, rng).map(&self.f)
    }

    fn get_many(&self, indices: &[u64], rngs: &mut [SampleRng]) -> Vec<Result<S, BoxError>> {
        let got = self.inside.get_many(indices, rngs).into_iter();
        got.map(|sample| sample.map(&self.f)).collect()
    }

    fn at_once(&self) -> usize {
        self.inside.at_once()
    }

    fn describe(&self, index: u64) -> Option<String> {
        self.inside.describe(index)
    }

    fn lookahead(&self) -> usize {
        self.inside.lookahead()
    }

    fn will_need(&self, indices: &[u64], pass: Pass) {
        self.inside.will_need(indices, pass);
    }

    fn pass_began(&self, openings: Openings, pass: Pass) {
        self.inside.pass_began(openings, pass);
    }

    fn pass_ended(&self, pass: Pass) {
        self.inside.pass_ended(pass);
    }

    fn blocks(&self) -> Option<Arc<Blocks>> {
        self.inside.blocks()
    }

    fn sample_bytes(&self) -> Option<usize> {
        self.sample_bytes
    }

    fn fingerprint(&self) -> u32 {
        self.inside.fingerprint()
    }
}

/// A data set whose samples have types that are known.
pub(crate) struct Native<D: Dataset> {
    dataset: Arc<D>,
    value: fn(D::Sample) -> Value,
}

impl<D: Dataset> Native<D> {
    pub(crate) fn new(dataset: D, value: fn(D::Sample) -> Value) -> Native<D> {
        Native {
            dataset: Arc::new(dataset),
            value,
        }
    }
}

impl<D: Dataset> Source for Native<D>
where
    Stack: Collate<D::Sample>,
    <Stack as Collate<D::Sample>>::Batch: IntoTree,
{
    fn len(&self) -> u64 {
        self.dataset.len()
    }

    fn values(&self, _: bool) -> Values {
        Arc::new(Adapted::new(Arc::clone(&self.dataset), self.value))
    }

    fn build(&self, options: &Options) -> pinfeed::Result<Box<dyn AnyLoader>> {
        loader_of(Arc::clone(&self.dataset), options)
    }
}

/// A data set, as `pinfeed`'s classes hold it.
#[pyclass(frozen, module = "pinfeed._pinfeed", name = "_Source")]
pub(crate) struct PySource(pub(crate) Arc<dyn Source>);

#[pymethods]
impl PySource {
    fn __len__(&self) -> PyResult<usize> {
        Ok(usize::try_from(self.0.len())?)
    }

    /// One sample, as Python has it.
    #[pyo3(signature = (index, *, epoch=0, seed=0, output="auto"))]
    fn get(
        &self,
        py: Python<'_>,
        index: i64,
        epoch: u64,
        seed: u64,
        output: &str,
    ) -> PyResult<Py<PyAny>> {
        let len = self.0.len();
        let place = match index {
            0.. => index as u64,
            _ => len.wrapping_add_signed(index),
        };
        if place >= len {
            return Err(PyIndexError::new_err(format!(
                "index {index} of a data set of {len} samples"
            )));
        }
        let objects = self.0.objects(Output::named(py, output, false)?);
        let key = RngKey {
            seed,
            epoch,
            position: place,
        };
        let got = py.detach(|| objects.get(place, &mut SampleRng::for_sample(key)));
        got.map_err(|error| {
            let id = pinfeed::Error::Source(error);
            exception(py, &id)
        })
    }

    /// What errors call a sample.
    fn describe(&self, index: u64) -> Option<String> {
        self.0.values(false).describe(index)
    }

    /// Those samples of it.
    fn subset(&self, py: Python<'_>, indices: Vec<u64>) -> PyResult<PySource> {
        let len = self.0.len();
        if let Some(beyond) = indices.iter().find(|index| **index >= len) {
            return Err(PyIndexError::new_err(format!(
                "index {beyond} of a data set of {len} samples"
            )));
        }
        let _ = py;
        Ok(PySource(Arc::new(Part {
            whole: Arc::clone(&self.0),
            indices,
        })))
    }

    /// Several, one after the other.
    #[staticmethod]
    fn concat(py: Python<'_>, sources: Vec<Bound<'_, PySource>>) -> PyResult<PySource> {
        let parts: Vec<_> = sources
            .iter()
            .map(|source| Arc::clone(&source.get().0))
            .collect();
        let whole = Chain { parts };
        whole.joined(false).or_raise(py)?;
        Ok(PySource(Arc::new(whole)))
    }
}

/// Samples of another data set.
struct Part {
    whole: Arc<dyn Source>,
    indices: Vec<u64>,
}

impl Source for Part {
    fn len(&self) -> u64 {
        self.indices.len() as u64
    }

    fn values(&self, on_device: bool) -> Values {
        let whole = self.whole.values(on_device);
        match Subset::new(Arc::clone(&whole), self.indices.iter().copied()) {
            Ok(part) => Arc::new(part),
            Err(_) => whole, // (checked by `PySource::subset`)
        }
    }

    fn objects(&self, output: Output) -> Objects {
        let whole = self.whole.objects(output);
        match Subset::new(Arc::clone(&whole), self.indices.iter().copied()) {
            Ok(part) => Arc::new(part),
            Err(_) => whole,
        }
    }
}

/// Several data sets.
struct Chain {
    parts: Vec<Arc<dyn Source>>,
}

impl Chain {
    fn joined(&self, on_device: bool) -> pinfeed::Result<ConcatDataset<Values>> {
        let parts = self.parts.iter().map(|part| part.values(on_device));
        ConcatDataset::new(parts.collect())
    }
}

impl Source for Chain {
    fn len(&self) -> u64 {
        self.parts.iter().map(|part| part.len()).sum()
    }

    fn values(&self, on_device: bool) -> Values {
        match self.joined(on_device) {
            Ok(joined) => Arc::new(joined),
            Err(_) => self.parts[0].values(on_device), // (checked by `PySource::concat`)
        }
    }

    fn objects(&self, output: Output) -> Objects {
        let parts: Vec<_> = self.parts.iter().map(|part| part.objects(output)).collect();
        let first = Arc::clone(&parts[0]);
        match ConcatDataset::new(parts) {
            Ok(joined) => Arc::new(joined),
            Err(_) => first,
        }
    }
}
