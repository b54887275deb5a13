//! Samples whose types are known at run time only: what a Python data set returns, and what its batch looks like.
//!
//! As torch's `default_collate`: numbers and arrays are stacked, strings become a list, and tuples, lists, named tuples and dictionaries
//! become batches of the same structure.

use std::sync::Arc;

use half::{bf16, f16};
use pinfeed::error::CollateError;
use pinfeed::image::LazyImage;
use pinfeed::sample::{Field, Filled, Layout, Row};
use pinfeed::tensor::Element;
use pinfeed::{Sample, Tensor};
use pyo3::prelude::*;

use crate::kind::{AnyField, HostTensor, Kind, Scalar, each};
use crate::picture::{Finish, FinishedImage, PixelTable, PixelType};
use crate::tree::{HostLeaf, Key, Tree};

/// A sample.
pub(crate) enum Value {
    Tensor(HostTensor, Kind),
    /// A number of a type of its own, as a file has it.
    Scalar(Scalar, Kind),
    Int(i64),
    Float(f64),
    Bool(bool),
    Picture(LazyImage, Finishing),
    /// A string, or another value that stays on the host.
    Object(Py<PyAny>),
    Text(String),
    Bytes(Vec<u8>),
    List(Vec<Value>),
    /// What a tuple becomes: torch makes it a list, too.
    Tuple(Vec<Value>),
    Named(Py<PyAny>, Vec<Value>),
    Dict(Vec<(Key, Value)>),
    /// A list or a dict, of another class: that of this object, which is the sample.
    Like(Py<PyAny>, Box<Value>),
}

/// What becomes of a picture's pixels.
#[derive(Debug, Clone)]
pub(crate) enum Finishing {
    /// They stay bytes.
    Bytes,
    /// The device makes numbers of them.
    Later(Arc<Finish>),
    F32(Arc<PixelTable<f32>>),
    F16(Arc<PixelTable<f16>>),
    Bf16(Arc<PixelTable<bf16>>),
}

impl Finishing {
    /// `on_device`: batches go to a device, which can do it.
    pub(crate) fn new(finish: Option<&Finish>, on_device: bool) -> Finishing {
        let Some(finish) = finish else {
            return Finishing::Bytes;
        };
        match finish.pixel_type {
            _ if on_device => Finishing::Later(Arc::new(finish.clone())),
            PixelType::F32 => Finishing::F32(Arc::new(PixelTable::new(finish))),
            PixelType::F16 => Finishing::F16(Arc::new(PixelTable::new(finish))),
            PixelType::Bf16 => Finishing::Bf16(Arc::new(PixelTable::new(finish))),
        }
    }
}

/// The fields of a batch.
pub(crate) enum Plan {
    Tensor(AnyField, Kind),
    Picture(AnyField, Option<Arc<Finish>>),
    Object,
    Text,
    Bytes,
    List(Vec<Plan>),
    Tuple(Vec<Plan>),
    /// It is made of the class that the first sample has.
    Named(Vec<Plan>),
    Dict(Vec<(Key, Plan)>),
    /// As the first sample is.
    Like(Box<Plan>),
}

/// What remains of a sample whose row is filled.
pub(crate) enum Rest {
    Nothing,
    Object(Py<PyAny>),
    Text(String),
    Bytes(Vec<u8>),
    Many(Vec<Rest>),
    /// With its class.
    Named(Py<PyAny>, Vec<Rest>),
    /// With the sample.
    Like(Py<PyAny>, Box<Rest>),
}

impl Value {
    /// What it is, for an error.
    fn name(&self) -> &'static str {
        match self {
            Value::Tensor(..) => "an array",
            Value::Scalar(_, kind) => kind.name(),
            Value::Int(_) => "an int",
            Value::Float(_) => "a float",
            Value::Bool(_) => "a bool",
            Value::Picture(..) => "a picture",
            Value::Object(_) => "an object",
            Value::Text(_) => "a string",
            Value::Bytes(_) => "bytes",
            Value::List(_) => "a list",
            Value::Tuple(_) => "a tuple",
            Value::Named(..) => "a named tuple",
            Value::Dict(_) => "a dict",
            Value::Like(_, value) => value.name(),
        }
    }

    fn layout(&self, layout: &mut Layout) -> Result<Plan, CollateError> {
        let all = |values: &[Value], layout: &mut Layout| {
            let plans = values.iter().map(|value| value.layout(layout));
            plans.collect::<Result<Vec<_>, _>>()
        };
        Ok(match self {
            Value::Tensor(tensor, kind) => {
                let field = each!(tensor, HostTensor, tensor => AnyField::from(
                    Sample::plan(std::iter::once(tensor), layout)?
                ));
                Plan::Tensor(field, *kind)
            }
            Value::Scalar(number, kind) => {
                let field = each!(number, Scalar, number => scalar_field(number, layout)?);
                Plan::Tensor(field, *kind)
            }
            Value::Int(_) => Plan::Tensor(layout.field::<i64>(&[])?.into(), Kind::I64),
            Value::Float(_) => Plan::Tensor(layout.field::<f64>(&[])?.into(), Kind::F64),
            Value::Bool(_) => Plan::Tensor(layout.field::<u8>(&[])?.into(), Kind::Bool),
            Value::Picture(image, finishing) => {
                let shape = || {
                    image
                        .shape()
                        .map_err(|error| CollateError::Load(error.into()))
                };
                match finishing {
                    Finishing::Bytes | Finishing::Later(_) => {
                        let field = LazyImage::plan(std::iter::once(image), layout)?;
                        let finish = match finishing {
                            Finishing::Later(finish) => Some(Arc::clone(finish)),
                            _ => None,
                        };
                        Plan::Picture(field.into(), finish)
                    }
                    Finishing::F32(table) => {
                        let field: Field<f32> = layout.field(&table.shape(&shape()?))?;
                        Plan::Picture(field.into(), None)
                    }
                    Finishing::F16(table) => {
                        let field: Field<f16> = layout.field(&table.shape(&shape()?))?;
                        Plan::Picture(field.into(), None)
                    }
                    Finishing::Bf16(table) => {
                        let field: Field<bf16> = layout.field(&table.shape(&shape()?))?;
                        Plan::Picture(field.into(), None)
                    }
                }
            }
            Value::Object(_) => Plan::Object,
            Value::Text(_) => Plan::Text,
            Value::Bytes(_) => Plan::Bytes,
            Value::List(values) => Plan::List(all(values, layout)?),
            Value::Tuple(values) => Plan::Tuple(all(values, layout)?),
            Value::Named(_, values) => Plan::Named(all(values, layout)?),
            Value::Dict(entries) => {
                let entries = entries.iter();
                let plans = entries.map(|(key, value)| Ok((key.clone(), value.layout(layout)?)));
                Plan::Dict(plans.collect::<Result<_, CollateError>>()?)
            }
            Value::Like(_, value) => Plan::Like(Box::new(value.layout(layout)?)),
        })
    }

    fn write(self, plan: &Plan, row: &mut Row<'_>) -> Result<Rest, CollateError> {
        match (self, plan) {
            (Value::Tensor(tensor, kind), Plan::Tensor(field, planned)) => {
                if kind != *planned {
                    return Err(other(kind.name(), planned.name()));
                }
                take(tensor, field, row)?;
                Ok(Rest::Nothing)
            }
            (Value::Scalar(number, kind), Plan::Tensor(field, planned)) => {
                if kind != *planned {
                    return Err(other(kind.name(), planned.name()));
                }
                write_scalar(number, field, row)?;
                Ok(Rest::Nothing)
            }
            (Value::Int(number), Plan::Tensor(AnyField::I64(field), Kind::I64)) => {
                number.fill(field, row)?;
                Ok(Rest::Nothing)
            }
            // (As NumPy and torch do with a batch of both, if the first is a float.)
            (Value::Int(number), Plan::Tensor(AnyField::F64(field), Kind::F64)) => {
                (number as f64).fill(field, row)?;
                Ok(Rest::Nothing)
            }
            (Value::Float(number), Plan::Tensor(AnyField::F64(field), Kind::F64)) => {
                number.fill(field, row)?;
                Ok(Rest::Nothing)
            }
            (Value::Bool(bool), Plan::Tensor(AnyField::U8(field), Kind::Bool)) => {
                u8::from(bool).fill(field, row)?;
                Ok(Rest::Nothing)
            }
            (Value::Picture(image, finishing), Plan::Picture(field, _)) => {
                match (finishing, field) {
                    (Finishing::Bytes | Finishing::Later(_), AnyField::U8(field)) => {
                        image.fill(field, row)?;
                    }
                    (Finishing::F32(table), AnyField::F32(field)) => {
                        FinishedImage { image, table }.fill(field, row)?;
                    }
                    (Finishing::F16(table), AnyField::F16(field)) => {
                        FinishedImage { image, table }.fill(field, row)?;
                    }
                    (Finishing::Bf16(table), AnyField::BF16(field)) => {
                        FinishedImage { image, table }.fill(field, row)?;
                    }
                    _ => return Err(other("a picture", "pictures of another type")),
                }
                Ok(Rest::Nothing)
            }
            (Value::Object(object), Plan::Object) => Ok(Rest::Object(object)),
            (Value::Text(text), Plan::Text) => Ok(Rest::Text(text)),
            (Value::Bytes(bytes), Plan::Bytes) => Ok(Rest::Bytes(bytes)),
            (Value::List(values), Plan::List(plans))
            | (Value::Tuple(values), Plan::Tuple(plans)) => {
                Ok(Rest::Many(write_all(values, plans, row)?))
            }
            (Value::Named(class, values), Plan::Named(plans)) => {
                Ok(Rest::Named(class, write_all(values, plans, row)?))
            }
            (Value::Dict(entries), Plan::Dict(plans)) => write_dict(entries, plans, row),
            (Value::Like(sample, value), Plan::Like(plan)) => {
                Ok(Rest::Like(sample, Box::new(value.write(plan, row)?)))
            }
            // (The first sample's class is the batch's.)
            (Value::Like(_, value), plan) => value.write(plan, row),
            (value, Plan::Like(plan)) => value.write(plan, row),
            (value, plan) => Err(other(value.name(), plan.name())),
        }
    }
}

impl Plan {
    /// What the first sample is, for an error.
    fn name(&self) -> &'static str {
        match self {
            Plan::Tensor(field, kind) => match (
                kind,
                each!(field, AnyField, field => field.row_shape().is_empty()),
            ) {
                (Kind::I64, true) => "an int",
                (Kind::F64, true) => "a float",
                (Kind::Bool, true) => "a bool",
                _ => "an array",
            },
            Plan::Picture(..) => "a picture",
            Plan::Object => "an object",
            Plan::Text => "a string",
            Plan::Bytes => "bytes",
            Plan::List(_) => "a list",
            Plan::Tuple(_) => "a tuple",
            Plan::Named(_) => "a named tuple",
            Plan::Dict(_) => "a dict",
            Plan::Like(plan) => plan.name(),
        }
    }

    fn take(self, rests: Vec<Rest>, filled: &mut Filled) -> Tree<HostLeaf> {
        match self {
            Plan::Tensor(field, kind) => Tree::Leaf(HostLeaf {
                tensor: each!(field, AnyField, field => filled.take(field).into()),
                kind,
                finish: None,
            }),
            Plan::Picture(field, finish) => {
                let tensor: HostTensor = each!(field, AnyField, field => filled.take(field).into());
                let kind = tensor.kind();
                Tree::Leaf(HostLeaf {
                    tensor,
                    kind,
                    finish,
                })
            }
            Plan::Object => Tree::Objects(filter(rests, |rest| match rest {
                Rest::Object(object) => Some(object),
                _ => None,
            })),
            Plan::Text => Tree::Texts(filter(rests, |rest| match rest {
                Rest::Text(text) => Some(text),
                _ => None,
            })),
            Plan::Bytes => Tree::Bytes(filter(rests, |rest| match rest {
                Rest::Bytes(bytes) => Some(bytes),
                _ => None,
            })),
            Plan::List(plans) => Tree::List(take_all(plans, rests, filled).1),
            // (As torch.)
            Plan::Tuple(plans) => Tree::List(take_all(plans, rests, filled).1),
            Plan::Named(plans) => match take_all(plans, rests, filled) {
                (Some(class), trees) => Tree::Named(class, trees),
                (None, trees) => Tree::List(trees), // an empty batch, of no class
            },
            Plan::Dict(entries) => {
                let (keys, plans): (Vec<_>, Vec<_>) = entries.into_iter().unzip();
                let trees = take_all(plans, rests, filled).1;
                Tree::Dict(keys.into_iter().zip(trees).collect())
            }
            Plan::Like(plan) => {
                let mut first = None;
                let rests = rests.into_iter().map(|rest| match rest {
                    Rest::Like(sample, rest) => {
                        first.get_or_insert(sample);
                        *rest
                    }
                    rest => rest,
                });
                let rests = rests.collect();
                let tree = plan.take(rests, filled);
                match first {
                    Some(sample) => Tree::Like(sample, Box::new(tree)),
                    None => tree,
                }
            }
        }
    }
}

fn filter<T>(rests: Vec<Rest>, f: impl FnMut(Rest) -> Option<T>) -> Vec<T> {
    rests.into_iter().filter_map(f).collect()
}

/// The parts' trees, and the class of the first sample, if it has one.
fn take_all(
    plans: Vec<Plan>,
    rests: Vec<Rest>,
    filled: &mut Filled,
) -> (Option<Py<PyAny>>, Vec<Tree<HostLeaf>>) {
    let mut class = None;
    let mut parts: Vec<Vec<Rest>> = plans.iter().map(|_| Vec::new()).collect();
    for rest in rests {
        let rests = match rest {
            Rest::Many(rests) => rests,
            Rest::Named(its_class, rests) => {
                class.get_or_insert(its_class);
                rests
            }
            _ => continue,
        };
        for (part, rest) in parts.iter_mut().zip(rests) {
            part.push(rest);
        }
    }
    let trees = plans.into_iter().zip(parts);
    let trees = trees.map(|(plan, rests)| plan.take(rests, filled));
    (class, trees.collect())
}

fn write_all(
    values: Vec<Value>,
    plans: &[Plan],
    row: &mut Row<'_>,
) -> Result<Vec<Rest>, CollateError> {
    if values.len() != plans.len() {
        return Err(say(format!(
            "it has {} parts, and the first sample of its batch has {}: give the loader a collate_fn, or samples of one structure",
            values.len(),
            plans.len()
        )));
    }
    let both = values.into_iter().zip(plans);
    both.map(|(value, plan)| value.write(plan, row)).collect()
}

fn write_dict(
    mut entries: Vec<(Key, Value)>,
    plans: &[(Key, Plan)],
    row: &mut Row<'_>,
) -> Result<Rest, CollateError> {
    let mut rests = Vec::with_capacity(plans.len());
    for (place, (key, plan)) in plans.iter().enumerate() {
        // (Nearly always, the keys are in one order.)
        let found = match entries.get(place) {
            Some((own, _)) if own == key => Some(place),
            _ => entries.iter().position(|(own, _)| own == key),
        };
        let Some(found) = found.filter(|found| *found >= place) else {
            return Err(say(format!(
                "it has no key {key}, which the first sample of its batch has"
            )));
        };
        entries.swap(place, found);
        let value = std::mem::replace(&mut entries[place].1, Value::Int(0));
        rests.push(value.write(plan, row)?);
    }
    match entries.get(plans.len()) {
        Some((key, _)) => Err(say(format!(
            "it has the key {key}, which the first sample of its batch has not"
        ))),
        None => Ok(Rest::Many(rests)),
    }
}

fn scalar_field<T: Element>(_: &T, layout: &mut Layout) -> Result<AnyField, CollateError>
where
    AnyField: From<Field<T>>,
{
    layout.field::<T>(&[]).map(AnyField::from)
}

fn write_scalar(number: Scalar, field: &AnyField, row: &mut Row<'_>) -> Result<(), CollateError> {
    match (number, field) {
        (Scalar::U8(number), AnyField::U8(field)) => row.write(field, &[number]),
        (Scalar::I8(number), AnyField::I8(field)) => row.write(field, &[number]),
        (Scalar::I16(number), AnyField::I16(field)) => row.write(field, &[number]),
        (Scalar::U16(number), AnyField::U16(field)) => row.write(field, &[number]),
        (Scalar::I32(number), AnyField::I32(field)) => row.write(field, &[number]),
        (Scalar::U32(number), AnyField::U32(field)) => row.write(field, &[number]),
        (Scalar::I64(number), AnyField::I64(field)) => row.write(field, &[number]),
        (Scalar::F16(number), AnyField::F16(field)) => row.write(field, &[number]),
        (Scalar::BF16(number), AnyField::BF16(field)) => row.write(field, &[number]),
        (Scalar::F32(number), AnyField::F32(field)) => row.write(field, &[number]),
        (Scalar::F64(number), AnyField::F64(field)) => row.write(field, &[number]),
        _ => Err(other("a number", "of another type")),
    }
}

fn take(tensor: HostTensor, field: &AnyField, row: &mut Row<'_>) -> Result<(), CollateError> {
    match (tensor, field) {
        (HostTensor::U8(tensor), AnyField::U8(field)) => row.take(field, tensor),
        (HostTensor::I8(tensor), AnyField::I8(field)) => row.take(field, tensor),
        (HostTensor::I16(tensor), AnyField::I16(field)) => row.take(field, tensor),
        (HostTensor::U16(tensor), AnyField::U16(field)) => row.take(field, tensor),
        (HostTensor::I32(tensor), AnyField::I32(field)) => row.take(field, tensor),
        (HostTensor::U32(tensor), AnyField::U32(field)) => row.take(field, tensor),
        (HostTensor::I64(tensor), AnyField::I64(field)) => row.take(field, tensor),
        (HostTensor::F16(tensor), AnyField::F16(field)) => row.take(field, tensor),
        (HostTensor::BF16(tensor), AnyField::BF16(field)) => row.take(field, tensor),
        (HostTensor::F32(tensor), AnyField::F32(field)) => row.take(field, tensor),
        (HostTensor::F64(tensor), AnyField::F64(field)) => row.take(field, tensor),
        (tensor, _) => Err(other(tensor.kind().name(), "of another type")),
    }
}

fn other(found: &str, expected: &str) -> CollateError {
    say(format!(
        "it is {found}, and the first sample of its batch is {expected}: give the loader a collate_fn, or samples of one type"
    ))
}

fn say(reason: String) -> CollateError {
    CollateError::Other(reason.into())
}

impl Sample for Value {
    type Batch = Tree<HostLeaf>;
    type Plan = Plan;
    type Rest = Rest;

    fn plan<'a>(
        mut samples: impl Iterator<Item = &'a Self> + Clone,
        layout: &mut Layout,
    ) -> Result<Plan, CollateError> {
        match samples.next() {
            Some(first) => first.layout(layout),
            None => Ok(Plan::List(Vec::new())),
        }
    }

    fn fill(self, plan: &Plan, row: &mut Row<'_>) -> Result<Rest, CollateError> {
        self.write(plan, row)
    }

    fn finish(plan: Plan, rests: Vec<Rest>, filled: &mut Filled) -> Tree<HostLeaf> {
        plan.take(rests, filled)
    }
}

impl From<Tensor<u8>> for Value {
    fn from(tensor: Tensor<u8>) -> Value {
        Value::Tensor(tensor.into(), Kind::U8)
    }
}

impl Finishing {
    /// The finished picture, as an array.
    pub(crate) fn decoded(&self, image: LazyImage) -> Result<Value, pinfeed::BoxError> {
        fn finished<P: crate::picture::Pixel>(
            pixels: &Tensor<u8>,
            table: &PixelTable<P>,
        ) -> Result<Value, pinfeed::BoxError>
        where
            HostTensor: From<Tensor<P>>,
        {
            let mut finished = Tensor::<P>::zeros(&table.shape(pixels.shape()));
            let elements = finished
                .as_mut_slice()
                .ok_or("a new tensor is not shared")?;
            table.finish(pixels.as_slice(), elements);
            let finished = HostTensor::from(finished);
            let kind = finished.kind();
            Ok(Value::Tensor(finished, kind))
        }
        let pixels = image.decode()?;
        match self {
            Finishing::Bytes | Finishing::Later(_) => Ok(pixels.into()),
            Finishing::F32(table) => finished(&pixels, table),
            Finishing::F16(table) => finished(&pixels, table),
            Finishing::Bf16(table) => finished(&pixels, table),
        }
    }
}
