//! Arrays in memory, or in mapped files, as data sets: row `i` of each is sample `i`.

use std::path::PathBuf;
use std::sync::Arc;

use pinfeed::arrays::{self, Array};
use pinfeed::dataset::Fingerprint;
use pinfeed::error::CollateError;
use pinfeed::sample::{Filled, Layout, Row};
use pinfeed::tensor::{DType, Element};
use pinfeed::{BoxError, Dataset, Sample, SampleRng, Tensor};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;

use crate::dlpack::read_only_tensor;
use crate::erased::AnyLoader;
use crate::errors::{OrRaise, say};
use crate::incoming::tensor_of;
use crate::kind::{AnyField, HostTensor, Kind, each};
use crate::options::Options;
use crate::outgoing::{Output, array_of};
use crate::source::{Adapted, PySource, Source, Values, loader_of};
use crate::tree::{HostLeaf, Tree};
use crate::value::Value;

/// Arrays of as many rows.
struct Table {
    columns: Vec<(HostTensor, Kind)>,
    rows: u64,
}

/// A row of each.
struct TableRow {
    table: Arc<Table>,
    index: usize,
}

/// The data set.
#[derive(Clone)]
struct Rows(Arc<Table>);

impl Dataset for Rows {
    type Sample = TableRow;

    fn len(&self) -> u64 {
        self.0.rows
    }

    fn get(&self, index: u64, _: &mut SampleRng) -> Result<TableRow, BoxError> {
        Ok(TableRow {
            table: Arc::clone(&self.0),
            index: index as usize,
        })
    }

    fn sample_bytes(&self) -> Option<usize> {
        let bytes = self
            .0
            .columns
            .iter()
            .map(|(tensor, _)| tensor.size_bytes())
            .sum::<usize>();
        bytes.checked_div(self.0.rows as usize)
    }

    /// Of the arrays' types, shapes, and some of their bytes.
    fn fingerprint(&self) -> u32 {
        let mut print = Fingerprint::new();
        for (tensor, kind) in &self.0.columns {
            print.add(kind.name().as_bytes());
            tensor
                .shape()
                .iter()
                .for_each(|length| print.add_number(*length as u64));
        }
        print.finish()
    }
}

fn row_of<T: Element>(tensor: &Tensor<T>, index: usize) -> &[T] {
    let elements = tensor.shape()[1..].iter().product::<usize>();
    &tensor.as_slice()[index * elements..(index + 1) * elements]
}

impl Sample for TableRow {
    type Batch = Tree<HostLeaf>;
    type Plan = Vec<(AnyField, Kind)>;
    type Rest = ();
    const DENSE: bool = true;

    fn plan<'a>(
        mut samples: impl Iterator<Item = &'a Self> + Clone,
        layout: &mut Layout,
    ) -> Result<Self::Plan, CollateError> {
        let Some(first) = samples.next() else {
            return Ok(Vec::new());
        };
        let columns = first.table.columns.iter();
        let fields = columns.map(|(tensor, kind)| {
            let field = each!(tensor, HostTensor, tensor => plan(tensor, layout)?);
            Ok((field, *kind))
        });
        fields.collect()
    }

    fn fill(self, plan: &Self::Plan, row: &mut Row<'_>) -> Result<(), CollateError> {
        for ((tensor, _), (field, _)) in self.table.columns.iter().zip(plan) {
            let at = self.index;
            match (tensor, field) {
                (HostTensor::U8(tensor), AnyField::U8(field)) => {
                    row.write(field, row_of(tensor, at))?
                }
                (HostTensor::I8(tensor), AnyField::I8(field)) => {
                    row.write(field, row_of(tensor, at))?
                }
                (HostTensor::I16(tensor), AnyField::I16(field)) => {
                    row.write(field, row_of(tensor, at))?
                }
                (HostTensor::U16(tensor), AnyField::U16(field)) => {
                    row.write(field, row_of(tensor, at))?
                }
                (HostTensor::I32(tensor), AnyField::I32(field)) => {
                    row.write(field, row_of(tensor, at))?
                }
                (HostTensor::U32(tensor), AnyField::U32(field)) => {
                    row.write(field, row_of(tensor, at))?
                }
                (HostTensor::I64(tensor), AnyField::I64(field)) => {
                    row.write(field, row_of(tensor, at))?
                }
                (HostTensor::F16(tensor), AnyField::F16(field)) => {
                    row.write(field, row_of(tensor, at))?
                }
                (HostTensor::BF16(tensor), AnyField::BF16(field)) => {
                    row.write(field, row_of(tensor, at))?
                }
                (HostTensor::F32(tensor), AnyField::F32(field)) => {
                    row.write(field, row_of(tensor, at))?
                }
                (HostTensor::F64(tensor), AnyField::F64(field)) => {
                    row.write(field, row_of(tensor, at))?
                }
                _ => return Err(CollateError::Other("a row of another table".into())),
            }
        }
        Ok(())
    }

    fn finish(plan: Self::Plan, _: Vec<()>, filled: &mut Filled) -> Tree<HostLeaf> {
        let fields = plan.into_iter().map(|(field, kind)| {
            Tree::Leaf(HostLeaf {
                tensor: each!(field, AnyField, field => filled.take(field).into()),
                kind,
                finish: None,
            })
        });
        Tree::List(fields.collect())
    }
}

fn plan<T: Element>(tensor: &Tensor<T>, layout: &mut Layout) -> Result<AnyField, CollateError>
where
    AnyField: From<pinfeed::sample::Field<T>>,
{
    layout.field::<T>(&tensor.shape()[1..]).map(AnyField::from)
}

impl Source for Rows {
    fn len(&self) -> u64 {
        self.0.rows
    }

    fn values(&self, _: bool) -> Values {
        Arc::new(Adapted::new(self.clone(), |row: TableRow| {
            let columns = row.table.columns.iter();
            let values = columns.map(|(tensor, kind)| Value::Tensor(tensor.row(row.index), *kind));
            Value::Tuple(values.collect())
        }))
    }

    fn build(&self, options: &Options) -> pinfeed::Result<Box<dyn AnyLoader>> {
        loader_of(self.clone(), options)
    }
}

/// An array of a file, which is mapped where it can be.
#[pyclass(frozen, module = "pinfeed", name = "Array")]
pub(crate) struct PyArray {
    array: Array,
}

impl PyArray {
    fn tensor(&self, py: Python<'_>) -> PyResult<HostTensor> {
        let array = &self.array;
        Ok(match array.dtype() {
            DType::U8 => array.tensor::<u8>().or_raise(py)?.into(),
            DType::I8 => array.tensor::<i8>().or_raise(py)?.into(),
            DType::I16 => array.tensor::<i16>().or_raise(py)?.into(),
            DType::U16 => array.tensor::<u16>().or_raise(py)?.into(),
            DType::I32 => array.tensor::<i32>().or_raise(py)?.into(),
            DType::U32 => array.tensor::<u32>().or_raise(py)?.into(),
            DType::I64 => array.tensor::<i64>().or_raise(py)?.into(),
            DType::F16 => array.tensor::<half::f16>().or_raise(py)?.into(),
            DType::BF16 => array.tensor::<half::bf16>().or_raise(py)?.into(),
            DType::F32 => array.tensor::<f32>().or_raise(py)?.into(),
            DType::F64 => array.tensor::<f64>().or_raise(py)?.into(),
            other => return Err(say(py, "DataSetError", &format!("an array of {other}"))),
        })
    }
}

#[pymethods]
impl PyArray {
    /// Its lengths.
    #[getter]
    fn shape(&self) -> Vec<usize> {
        self.array.shape().to_vec()
    }

    /// The name of its type, as NumPy's and torch's.
    #[getter]
    fn dtype(&self, py: Python<'_>) -> PyResult<&'static str> {
        Ok(self.tensor(py)?.kind().name())
    }

    /// A copy of it, as a NumPy array.
    fn numpy(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let tensor = self.tensor(py)?;
        let kind = tensor.kind();
        Ok(array_of(py, tensor, kind, Output::Numpy)?.unbind())
    }

    /// Where it is, for a consumer: on the host.
    fn __dlpack_device__(&self) -> (i32, i32) {
        (1, 0)
    }

    /// A capsule of the file's own memory, which must not be written, as ``Tensor.__dlpack__`` makes one.
    #[pyo3(signature = (*, stream=None, max_version=None, dl_device=None, copy=None))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        stream: Option<i64>,
        max_version: Option<(i64, i64)>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let tensor = read_only_tensor(py, self.tensor(py)?)?;
        tensor
            .get()
            .__dlpack__(py, stream, max_version, dl_device, copy)
    }

    fn __len__(&self) -> usize {
        self.array.shape().first().copied().unwrap_or(0)
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        Ok(format!(
            "<pinfeed.Array of {} {}>",
            self.array.shape(),
            self.dtype(py)?
        ))
    }
}

/// Arrays as a data set.
#[pyfunction]
pub(crate) fn table_source(py: Python<'_>, columns: Vec<Bound<'_, PyAny>>) -> PyResult<PySource> {
    let mut tensors = Vec::with_capacity(columns.len());
    for (place, column) in columns.iter().enumerate() {
        if let Ok(array) = column.cast::<PyArray>() {
            let tensor = array.get().tensor(py)?;
            let kind = tensor.kind();
            tensors.push((tensor, kind));
            continue;
        }
        let Some(tensor) = tensor_of(column)? else {
            return Err(PyTypeError::new_err(format!(
                "TensorDataset: argument {place} is of type {}, and no array or tensor",
                column.get_type().fully_qualified_name()?
            )));
        };
        tensors.push(tensor);
    }
    let lengths: Vec<Option<usize>> = tensors
        .iter()
        .map(|(tensor, _)| tensor.shape().first().copied())
        .collect();
    let refused = |reason: String| Err(say(py, "OptionError", &reason));
    let Some(first) = lengths.first() else {
        return refused("TensorDataset: there is no array".into());
    };
    let Some(rows) = *first else {
        return refused("TensorDataset: array 0 is a scalar, which has no rows".into());
    };
    for (place, length) in lengths.iter().enumerate() {
        if *length != Some(rows) {
            let length = length.map_or("no".to_owned(), |length| length.to_string());
            return refused(format!(
                "TensorDataset: array 0 has {rows} rows, and array {place} has {length}"
            ));
        }
    }
    Ok(PySource(Arc::new(Rows(Arc::new(Table {
        columns: tensors,
        rows: rows as u64,
    })))))
}

/// The array of an `.npy` file.
#[pyfunction]
pub(crate) fn npy(py: Python<'_>, path: PathBuf) -> PyResult<PyArray> {
    let array = py.detach(|| arrays::npy(path)).or_raise(py)?;
    Ok(PyArray { array })
}

/// The arrays of an `.npz` or safetensors file, by name.
#[pyfunction]
pub(crate) fn named_arrays(
    py: Python<'_>,
    path: PathBuf,
    format: &str,
) -> PyResult<Vec<(String, PyArray)>> {
    let read = || match format {
        "npz" => arrays::npz(path),
        _ => arrays::safetensors(path),
    };
    let file = py.detach(read).or_raise(py)?;
    let names = file.names().map(str::to_owned).collect::<Vec<_>>();
    let named = names.into_iter().map(|name| {
        let array = file.array(&name).or_raise(py)?.clone();
        Ok((name, PyArray { array }))
    });
    named.collect()
}
