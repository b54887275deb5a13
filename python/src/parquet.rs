//! Parquet files. `package/pinfeed/_parquet.py` says what columns become, from the types that they have; this does it.

use std::ops::Bound as End;
use std::sync::Arc;

use half::{bf16, f16};
use pinfeed::dataset::{Blocked, IntoDataset};
use pinfeed::image::ImageTransform;
use pinfeed::tensor::Element;
use pinfeed::{BoxError, Dataset, SampleRng, Tensor};
use pinfeed_parquet::{Filter, Parquet, ParquetBuilder, ParquetError, Row, Scalar as Compared};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyFloat, PyInt, PyString};

use crate::erased::AnyLoader;
use crate::errors::{OrRaise, say};
use crate::images::PyTransform;
use crate::kind::{HostTensor, Kind, OfScalar, Scalar};
use crate::numbers::{NumberField, NumberFields, NumberRow};
use crate::options::Options;
use crate::outgoing::{Output, array_of};
use crate::picture::Finish;
use crate::source::{Adapted, PySource, Source, Values, loader_of};
use crate::tree::Key;
use crate::value::{Finishing, Value};

/// A field of the samples.
struct Field {
    key: Key,
    /// The columns that it is made of. One, but for a group.
    columns: Vec<String>,
    becomes: Becomes,
    /// What is taken where there is no value, for each column.
    nulls: Vec<Option<Instead>>,
}

/// What the values of columns become.
#[derive(Debug, Clone, Copy)]
enum Becomes {
    Number(Kind),
    /// The numbers of several columns, in one array.
    Group(Kind),
    Text,
    Bytes,
    Picture,
    /// An array, of so many dimensions.
    List(Kind, usize),
    Texts,
    ManyBytes,
    /// What the name of a folder says: a number or a text.
    Folder,
}

/// What is taken in place of a null.
enum Instead {
    Number(Scalar),
    Text(String),
    Bytes(Vec<u8>),
    /// An empty list.
    Empty,
}

/// Runs a generic function for whichever element type it is: the type in the tensor, the type that the column's value is taken for, and what makes
/// one of the other.
macro_rules! by_kind {
    ($kind:expr, $f:ident($($argument:expr),*)) => {
        match $kind {
            Kind::Bool | Kind::U8 => $f::<u8, u8>($($argument,)* |value| value),
            Kind::I8 => $f::<i8, i8>($($argument,)* |value| value),
            Kind::I16 => $f::<i16, i16>($($argument,)* |value| value),
            Kind::U16 => $f::<u16, u16>($($argument,)* |value| value),
            Kind::I32 => $f::<i32, i32>($($argument,)* |value| value),
            Kind::U32 => $f::<u32, u32>($($argument,)* |value| value),
            Kind::I64 => $f::<i64, i64>($($argument,)* |value| value),
            Kind::U64 => $f::<i64, u64>($($argument,)* u64::cast_signed),
            Kind::F16 => $f::<f16, f16>($($argument,)* |value| value),
            Kind::BF16 => $f::<bf16, f32>($($argument,)* bf16::from_f32),
            Kind::F32 => $f::<f32, f32>($($argument,)* |value| value),
            Kind::F64 => $f::<f64, f64>($($argument,)* |value| value),
        }
    };
}

/// An error of a value, in our words: file, row and column are those of the library's.
fn misfit(error: &ParquetError, what: &str) -> BoxError {
    let (file, row) = (error.file(), error.row().unwrap_or_default());
    let column = error.column().unwrap_or_default();
    format!("{file}, row {row}, column {column:?}: {what}").into()
}

/// There is no value, and nothing to take instead.
fn null<T: pinfeed_parquet::Value>(row: &Row<'_>, column: &str) -> BoxError {
    match row.get::<T>(column) {
        Err(error) => misfit(
            &error,
            &format!(
                "it is null: nulls={{{column:?}: ..}} says what is taken instead, filters=[({column:?}, \"is not\", None)] leaves such rows out"
            ),
        ),
        Ok(_) => "it is null".into(), // (cannot be)
    }
}

fn number<T, V>(
    row: &Row<'_>,
    column: &str,
    instead: Option<&Instead>,
    cast: fn(V) -> T,
) -> Result<Scalar, BoxError>
where
    T: Element,
    V: pinfeed_parquet::Value,
    Scalar: From<T>,
{
    match (row.get::<Option<V>>(column)?, instead) {
        (Some(value), _) => Ok(cast(value).into()),
        (None, Some(Instead::Number(number))) => Ok(*number),
        (None, _) => Err(null::<V>(row, column)),
    }
}

fn group<T, V>(row: &Row<'_>, field: &Field, cast: fn(V) -> T) -> Result<HostTensor, BoxError>
where
    T: OfScalar,
    V: pinfeed_parquet::Value,
    HostTensor: From<Tensor<T>>,
{
    let columns = field.columns.iter().zip(&field.nulls);
    let numbers = columns.map(
        |(column, instead)| match (row.get::<Option<V>>(column)?, instead) {
            (Some(value), _) => Ok(cast(value)),
            (None, Some(Instead::Number(number))) => {
                T::of(*number).ok_or_else(|| "a number of another type".into()) // (cannot be)
            }
            (None, _) => Err(null::<V>(row, column)),
        },
    );
    let numbers = numbers.collect::<Result<Vec<T>, BoxError>>()?;
    let count = numbers.len();
    Ok(Tensor::from_vec(numbers, &[count])?.into())
}

fn list<T, V>(row: &Row<'_>, column: &str, cast: fn(V) -> T) -> Result<HostTensor, BoxError>
where
    T: Element,
    V: pinfeed_parquet::Value,
    HostTensor: From<Tensor<T>>,
{
    let values = row.get::<Vec<V>>(column).map_err(in_list)?;
    let count = values.len();
    let values = values.into_iter().map(cast).collect();
    Ok(Tensor::<T>::from_vec(values, &[count])?.into())
}

/// Lists of lists, whose inner ones have the same lengths.
fn lists(row: &Row<'_>, column: &str, kind: Kind) -> Result<HostTensor, BoxError> {
    fn read<T: Element + pinfeed_parquet::Value>(
        row: &Row<'_>,
        column: &str,
    ) -> Result<HostTensor, BoxError>
    where
        HostTensor: From<Tensor<T>>,
    {
        Ok(row.get::<Tensor<T>>(column).map_err(in_list)?.into())
    }
    match kind {
        Kind::Bool | Kind::U8 => read::<u8>(row, column),
        Kind::I8 => read::<i8>(row, column),
        Kind::I16 => read::<i16>(row, column),
        Kind::U16 => read::<u16>(row, column),
        Kind::I32 => read::<i32>(row, column),
        Kind::U32 => read::<u32>(row, column),
        Kind::I64 => read::<i64>(row, column),
        Kind::F16 => read::<f16>(row, column),
        Kind::F32 => read::<f32>(row, column),
        Kind::F64 => read::<f64>(row, column),
        Kind::U64 | Kind::BF16 => Err("(refused when it was opened)".into()),
    }
}

fn in_list(error: ParquetError) -> BoxError {
    let said = error.to_string();
    let what = match said {
        said if said.contains("it is null") => {
            "a value in its list is null, and an array has none: fill or drop it where the file is written"
        }
        said if said.contains("values where") => {
            "its lists differ in length, and an array has one length: make them equal, or one list, where the file is written"
        }
        _ => return error.into(),
    };
    misfit(&error, what)
}

impl Field {
    /// The numbers of its columns, one behind the other.
    fn numbers(&self, row: &Row<'_>, numbers: &mut Vec<Scalar>) -> Result<(), BoxError> {
        let (Becomes::Number(kind) | Becomes::Group(kind)) = self.becomes else {
            return Err("a field of other values".into()); // (cannot be)
        };
        for (column, instead) in self.columns.iter().zip(&self.nulls) {
            numbers.push(by_kind!(kind, number(row, column, instead.as_ref()))?);
        }
        Ok(())
    }

    fn value(
        &self,
        row: &Row<'_>,
        plan: &ImageTransform,
        rng: &mut SampleRng,
    ) -> Result<Value, BoxError> {
        let (Some(column), Some(instead)) = (self.columns.first(), self.nulls.first()) else {
            return Err("a field without columns".into()); // (cannot be)
        };
        let instead = instead.as_ref();
        Ok(match self.becomes {
            Becomes::Number(kind) => {
                Value::Scalar(by_kind!(kind, number(row, column, instead))?, kind)
            }
            Becomes::Group(kind) => Value::Tensor(by_kind!(kind, group(row, self))?, kind),
            Becomes::Picture => {
                let image = row.image(column)?.transform(plan, rng);
                if plan.output_size().is_none() {
                    image.shape()?; // a broken header is its sample's error, and not its batch's
                }
                Value::Picture(image, Finishing::Bytes)
            }
            Becomes::Folder => match row.get::<Option<String>>(column) {
                Ok(Some(text)) => Value::Text(text),
                Ok(None) => match instead {
                    Some(Instead::Text(text)) => Value::Text(text.clone()),
                    Some(Instead::Number(number)) => Value::Scalar(*number, Kind::I64),
                    _ => return Err(null::<String>(row, column)),
                },
                Err(_) => Value::Scalar(row.get::<i64>(column)?.into(), Kind::I64),
            },
            _ if row.is_null(column)? => match (self.becomes, instead) {
                (Becomes::Text, Some(Instead::Text(text))) => Value::Text(text.clone()),
                (Becomes::Bytes, Some(Instead::Bytes(bytes))) => Value::Bytes(bytes.clone()),
                (Becomes::Texts | Becomes::ManyBytes, Some(Instead::Empty)) => {
                    Value::List(Vec::new())
                }
                (Becomes::List(kind, 1), Some(Instead::Empty)) => {
                    Value::Tensor(by_kind!(kind, empty())?, kind)
                }
                _ => return Err(null::<String>(row, column)),
            },
            Becomes::Text => Value::Text(row.str(column)?.to_owned()),
            Becomes::Bytes => Value::Bytes(row.bytes(column)?.to_vec()),
            Becomes::List(kind, 1) => Value::Tensor(by_kind!(kind, list(row, column))?, kind),
            Becomes::List(kind, _) => Value::Tensor(lists(row, column, kind)?, kind),
            Becomes::Texts => {
                let texts = row.get::<Vec<String>>(column).map_err(in_list)?;
                Value::List(texts.into_iter().map(Value::Text).collect())
            }
            Becomes::ManyBytes => {
                let all = row.get::<Vec<Vec<u8>>>(column).map_err(in_list)?;
                Value::List(all.into_iter().map(Value::Bytes).collect())
            }
        })
    }
}

fn empty<T: Element, V>(_: fn(V) -> T) -> Result<HostTensor, BoxError>
where
    HostTensor: From<Tensor<T>>,
{
    Ok(Tensor::<T>::from_vec(Vec::new(), &[0])?.into())
}

/// A Python value that a column is compared with.
fn compared(value: &Bound<'_, PyAny>) -> PyResult<Compared> {
    if value.is_instance_of::<PyBool>() {
        return Ok(Compared::Bool(value.extract()?));
    }
    if value.is_instance_of::<PyInt>() {
        return Ok(Compared::Integer(value.extract()?));
    }
    if value.is_instance_of::<PyFloat>() {
        return Ok(Compared::Float(value.extract()?));
    }
    Ok(Compared::Text(value.extract::<String>()?.into()))
}

/// A condition: a column, an operator, and values.
fn filter(column: &str, operator: &str, values: &[Bound<'_, PyAny>]) -> PyResult<Option<Filter>> {
    let values = values
        .iter()
        .map(compared)
        .collect::<PyResult<Vec<Compared>>>()?;
    let within = |from, to| Filter::within::<Compared>(column, (from, to));
    Ok(match (operator, &values[..]) {
        ("in", values) => Some(Filter::one_of(column, values.to_vec())),
        ("is not", []) => Some(Filter::present(column)),
        ("==", [value]) => Some(Filter::equals(column, value.clone())),
        (">", [value]) => Some(within(End::Excluded(value.clone()), End::Unbounded)),
        (">=", [value]) => Some(within(End::Included(value.clone()), End::Unbounded)),
        ("<", [value]) => Some(within(End::Unbounded, End::Excluded(value.clone()))),
        ("<=", [value]) => Some(within(End::Unbounded, End::Included(value.clone()))),
        _ => None,
    })
}

/// What is opened, and which rows are taken.
struct Opening {
    url: String,
    /// A split of a data set of the hub's, and perhaps a configuration.
    hub: Option<(String, Option<String>)>,
    conditions: Vec<Filter>,
    block_bytes: Option<u64>,
}

impl Opening {
    fn builder(&self) -> pinfeed::Result<ParquetBuilder> {
        let mut builder = match &self.hub {
            None => Parquet::open(&self.url)?,
            Some((split, None)) => Parquet::hub(&self.url, split)?,
            Some((split, Some(config))) => Parquet::hub_config(&self.url, config, split)?,
        };
        if let Some(bytes) = self.block_bytes {
            builder = builder.block_bytes(bytes);
        }
        for filter in &self.conditions {
            builder = builder.filter(filter.clone());
        }
        Ok(builder)
    }
}

/// A field, as `_parquet.py` tells it.
type Told<'py> = (
    String,
    Vec<String>,
    String,
    Option<String>,
    usize,
    Vec<Option<Bound<'py, PyAny>>>,
);

/// Parquet files that were opened.
#[pyclass(frozen, module = "pinfeed._pinfeed", name = "_Parquet")]
pub(crate) struct PyParquet {
    rows: Parquet<()>,
    opening: Opening,
}

#[pymethods]
impl PyParquet {
    /// Opens what a path or URL names; or, with a split, what the hub's cache has of a data set. Conditions are (column, operator, values).
    #[staticmethod]
    #[pyo3(signature = (url, columns, filters, block_bytes, hub))]
    fn open(
        py: Python<'_>,
        url: String,
        columns: Option<Vec<String>>,
        filters: Vec<(String, String, Vec<Bound<'_, PyAny>>)>,
        block_bytes: Option<u64>,
        hub: Option<(String, Option<String>)>,
    ) -> PyResult<PyParquet> {
        let mut conditions = Vec::with_capacity(filters.len());
        for (column, operator, values) in filters {
            match filter(&column, &operator, &values)? {
                Some(filter) => conditions.push(filter),
                None => {
                    let reason = format!("filters: there is no operator {operator:?}");
                    return Err(say(py, "OptionError", &reason));
                }
            }
        }
        let opening = Opening {
            url,
            hub,
            conditions,
            block_bytes,
        };
        let open = || {
            let mut builder = opening.builder()?;
            if let Some(columns) = columns {
                builder = builder.columns(columns);
            }
            builder.build(|_, _| Ok(()))
        };
        let rows = py.detach(open).or_raise(py)?;
        Ok(PyParquet { rows, opening })
    }

    /// All rows of these columns of numbers, in memory, as one array of this type.
    fn tensor(
        &self,
        py: Python<'_>,
        columns: Vec<String>,
        dtype: &str,
        output: &str,
    ) -> PyResult<Py<PyAny>> {
        fn read<T: Element + pinfeed_parquet::Value>(
            builder: ParquetBuilder,
        ) -> pinfeed::Result<HostTensor>
        where
            HostTensor: From<Tensor<T>>,
        {
            Ok(builder.tensor::<T>()?.into())
        }
        let kind = Kind::named(dtype).filter(|kind| !matches!(kind, Kind::U64 | Kind::BF16));
        let Some(kind) = kind else {
            let reason = format!("dtype {dtype}: rows in memory have another type");
            return Err(say(py, "OptionError", &reason));
        };
        let read = || {
            let builder = self.opening.builder()?.columns(columns);
            match kind {
                Kind::Bool | Kind::U8 => read::<u8>(builder),
                Kind::I8 => read::<i8>(builder),
                Kind::I16 => read::<i16>(builder),
                Kind::U16 => read::<u16>(builder),
                Kind::I32 => read::<i32>(builder),
                Kind::U32 => read::<u32>(builder),
                Kind::I64 | Kind::U64 => read::<i64>(builder),
                Kind::F16 => read::<f16>(builder),
                Kind::F32 | Kind::BF16 => read::<f32>(builder),
                Kind::F64 => read::<f64>(builder),
            }
        };
        let tensor = py.detach(read).or_raise(py)?;
        let output = Output::named(py, output, false)?;
        Ok(array_of(py, tensor, kind, output)?.unbind())
    }

    /// The columns that are read, and their types as pyarrow names them.
    fn columns(&self) -> Vec<(String, String)> {
        let columns = self.rows.columns();
        columns
            .map(|(name, kind)| (name.to_owned(), kind))
            .collect()
    }

    /// The files, and how many rows of each are samples.
    fn files(&self) -> Vec<(String, u64)> {
        let files = self.rows.files();
        files.map(|(key, rows)| (key.to_owned(), rows)).collect()
    }

    /// What the first file's footer says under a key.
    fn metadata(&self, key: &str) -> Option<&str> {
        self.rows.metadata(key)
    }

    fn __len__(&self) -> PyResult<usize> {
        Ok(usize::try_from(self.rows.len())?)
    }

    /// The data set whose samples are made of these fields: (key, columns, what they become, type, dimensions, what is taken instead of
    /// nulls).
    #[pyo3(signature = (fields, as_tuple, transform))]
    fn source(
        &self,
        py: Python<'_>,
        fields: Vec<Told<'_>>,
        as_tuple: bool,
        transform: Option<&Bound<'_, PyTransform>>,
    ) -> PyResult<PySource> {
        let mut made = Vec::with_capacity(fields.len());
        for (key, columns, becomes, kind, depth, nulls) in fields {
            let kind = kind.as_deref().map_or(Some(Kind::I64), Kind::named);
            let Some(kind) = kind else {
                return Err(say(
                    py,
                    "OptionError",
                    &format!("dtype of {key:?}: there is no such type"),
                ));
            };
            let becomes = match becomes.as_str() {
                "number" => Becomes::Number(kind),
                "group" => Becomes::Group(kind),
                "text" => Becomes::Text,
                "bytes" => Becomes::Bytes,
                "picture" => Becomes::Picture,
                "list" => Becomes::List(kind, depth),
                "texts" => Becomes::Texts,
                "many bytes" => Becomes::ManyBytes,
                _ => Becomes::Folder,
            };
            let columns_and_nulls = columns.iter().zip(&nulls);
            let nulls = columns_and_nulls.map(|(column, value)| match value {
                None => Ok(None),
                Some(value) => instead(value, becomes, kind).map(Some).map_err(|reason| {
                    let shown = value
                        .repr()
                        .map_or_else(|_| "?".to_owned(), |text| text.to_string());
                    say(
                        py,
                        "OptionError",
                        &format!("nulls={{{column:?}: {shown}}}: {reason}"),
                    )
                }),
            });
            let nulls = nulls.collect::<PyResult<Vec<_>>>()?;
            made.push(Field {
                key: Key::Name(key.into()),
                columns,
                becomes,
                nulls,
            });
        }
        let transform = transform.map(Bound::get);
        let plan = transform.map_or_else(ImageTransform::new, |transform| transform.plan.clone());
        let finish = transform.and_then(|transform| transform.finish.clone());
        let made = Arc::new(made);
        let numbers = NumberFields::of(&made, as_tuple).map(|of| {
            let (of, fields) = (Arc::new(of), Arc::clone(&made));
            let rows = self.rows.with_read(move |row, _| {
                let mut numbers = Vec::with_capacity(fields.len());
                for field in &*fields {
                    field.numbers(&row, &mut numbers)?;
                }
                let of = Arc::clone(&of);
                Ok(NumberRow { of, numbers })
            });
            Arc::new(rows.into_dataset())
        });
        let rows = self.rows.with_read(move |row, rng| {
            let values = made.iter().map(|field| field.value(&row, &plan, rng));
            Ok(match as_tuple {
                true => Value::Tuple(values.collect::<Result<_, BoxError>>()?),
                false => {
                    let keys = made.iter().map(|field| field.key.clone());
                    let entries = keys.zip(values).map(|(key, value)| Ok((key, value?)));
                    Value::Dict(entries.collect::<Result<_, BoxError>>()?)
                }
            })
        });
        Ok(PySource(Arc::new(Rows {
            rows: Arc::new(rows.into_dataset()),
            numbers,
            finish,
        })))
    }
}

/// What is taken in place of a null, or why that cannot be.
fn instead(value: &Bound<'_, PyAny>, becomes: Becomes, kind: Kind) -> Result<Instead, String> {
    let wrong = |wanted: &str| format!("it is to be {wanted}, as the column is");
    let is_text = value.is_instance_of::<PyString>();
    match becomes {
        Becomes::Text if is_text => value
            .extract()
            .map(Instead::Text)
            .map_err(|error| error.to_string()),
        Becomes::Text => Err(wrong("a str")),
        Becomes::Bytes => match value.cast::<PyBytes>() {
            Ok(bytes) => Ok(Instead::Bytes(bytes.as_bytes().to_vec())),
            Err(_) => Err(wrong("bytes")),
        },
        Becomes::Picture => Err(
            "a picture has no replacement: filters=[(.., \"is not\", None)] leaves such rows out"
                .to_owned(),
        ),
        Becomes::List(_, 1) | Becomes::Texts | Becomes::ManyBytes => match value.len() {
            Ok(0) if !is_text => Ok(Instead::Empty),
            _ => Err("in place of a list, there is only []".to_owned()),
        },
        Becomes::List(..) => Err("lists of lists have no replacement".to_owned()),
        Becomes::Folder if is_text => value
            .extract()
            .map(Instead::Text)
            .map_err(|error| error.to_string()),
        Becomes::Number(_) | Becomes::Group(_) | Becomes::Folder => {
            let number = scalar(value, kind);
            match number {
                Some(number) => Ok(Instead::Number(number)),
                None => Err(wrong(kind.name())),
            }
        }
    }
}

/// A Python number, as one of this type.
fn scalar(value: &Bound<'_, PyAny>, kind: Kind) -> Option<Scalar> {
    Some(match kind {
        Kind::Bool => u8::from(value.extract::<bool>().ok()?).into(),
        Kind::U8 => value.extract::<u8>().ok()?.into(),
        Kind::I8 => value.extract::<i8>().ok()?.into(),
        Kind::I16 => value.extract::<i16>().ok()?.into(),
        Kind::U16 => value.extract::<u16>().ok()?.into(),
        Kind::I32 => value.extract::<i32>().ok()?.into(),
        Kind::U32 => value.extract::<u32>().ok()?.into(),
        Kind::I64 => value.extract::<i64>().ok()?.into(),
        Kind::U64 => value.extract::<u64>().ok()?.cast_signed().into(),
        Kind::F16 => f16::from_f64(value.extract().ok()?).into(),
        Kind::BF16 => bf16::from_f64(value.extract().ok()?).into(),
        Kind::F32 => value.extract::<f32>().ok()?.into(),
        Kind::F64 => value.extract::<f64>().ok()?.into(),
    })
}

/// Rows of files.
struct Rows {
    rows: Arc<Blocked<Parquet<Value>>>,
    /// The same rows, if they have numbers alone: then they are no values of types that are found out for each.
    numbers: Option<Arc<Blocked<Parquet<NumberRow>>>>,
    finish: Option<Finish>,
}

impl NumberFields {
    fn of(fields: &[Field], as_tuple: bool) -> Option<NumberFields> {
        let fields = fields.iter().map(|field| {
            let (kind, width) = match field.becomes {
                Becomes::Number(kind) => (kind, None),
                Becomes::Group(kind) => (kind, Some(field.columns.len())),
                _ => return None,
            };
            let key = field.key.clone();
            Some(NumberField { key, kind, width })
        });
        let fields = fields.collect::<Option<Vec<_>>>()?;
        Some(NumberFields { fields, as_tuple })
    }
}

impl Source for Rows {
    fn len(&self) -> u64 {
        self.rows.len()
    }

    fn build(&self, options: &Options) -> pinfeed::Result<Box<dyn AnyLoader>> {
        match &self.numbers {
            Some(numbers) => loader_of(Arc::clone(numbers), options),
            None => loader_of(self.values(options.device.is_some()), options),
        }
    }

    fn values(&self, on_device: bool) -> Values {
        let finishing = Finishing::new(self.finish.as_ref(), on_device);
        let finished = move |value| match value {
            Value::Picture(image, _) => Value::Picture(image, finishing.clone()),
            value => value,
        };
        Arc::new(Adapted::new(
            Arc::clone(&self.rows),
            move |value| match value {
                Value::Tuple(values) => Value::Tuple(values.into_iter().map(&finished).collect()),
                Value::Dict(entries) => {
                    let entries = entries.into_iter();
                    Value::Dict(entries.map(|(key, value)| (key, finished(value))).collect())
                }
                value => value,
            },
        ))
    }
}
