//! WebDataset tar shards.

use std::path::PathBuf;
use std::sync::Arc;

use pinfeed::arrays::{self, FileBytes};
use pinfeed::dataset::{Blocked, IntoDataset};
use pinfeed::image::{ImageTransform, LazyImage};
use pinfeed::tensor::DType;
use pinfeed::webdataset::{WebDataset, WebSample};
use pinfeed::{BoxError, Dataset, SampleRng};
use pyo3::prelude::*;

use crate::errors::{OrRaise, run};
use crate::images::PyTransform;
use crate::incoming::value_of;
use crate::kind::HostTensor;
use crate::picture::Finish;
use crate::source::{Adapted, PySource, Source, Values};
use crate::value::{Finishing, Value};

/// A field of the samples, and what it becomes.
#[derive(Clone)]
struct Field {
    names: String,
    becomes: Becomes,
}

#[derive(Clone, Copy)]
enum Becomes {
    Picture,
    Number,
    Text,
    Json,
    Array,
    Bytes,
    Key,
}

impl Field {
    fn new(names: &str) -> Field {
        // ("seg.png" is a picture, too.)
        let first = names.split(';').next().unwrap_or_default();
        let last = first.rsplit('.').next().unwrap_or_default();
        let becomes = match last {
            "__key__" => Becomes::Key,
            "jpg" | "jpeg" | "png" | "webp" | "ppm" | "pgm" | "pnm" | "gif" | "bmp" | "tif"
            | "tiff" => Becomes::Picture,
            "cls" | "cls2" | "index" | "inx" | "id" => Becomes::Number,
            "txt" | "text" | "transcript" | "caption" => Becomes::Text,
            "json" => Becomes::Json,
            "npy" => Becomes::Array,
            _ => Becomes::Bytes,
        };
        Field {
            names: names.to_owned(),
            becomes,
        }
    }

    fn value(
        &self,
        sample: WebSample<'_>,
        plan: &ImageTransform,
        rng: &mut SampleRng,
    ) -> Result<Value, BoxError> {
        let names = &self.names;
        Ok(match self.becomes {
            Becomes::Key => Value::Text(sample.key().to_owned()),
            Becomes::Picture => {
                let image = LazyImage::encoded(sample.shared(names)?)
                    .with_path(format!("{}/{}", sample.shard(), sample.key()))
                    .transform(plan, rng);
                if plan.output_size().is_none() {
                    image.shape()?; // a broken header is its sample's error, and not its batch's
                }
                Value::Picture(image, Finishing::Bytes)
            }
            Becomes::Number => Value::Int(sample.number(names)?),
            Becomes::Text => Value::Text(sample.text(names)?.to_owned()),
            Becomes::Json => {
                let text = sample.text(names)?;
                run(|py| value_of(&py.import("json")?.call_method1("loads", (text,))?))?
            }
            Becomes::Array => {
                let file = FileBytes::new(
                    format!("{}/{}.npy", sample.shard(), sample.key()),
                    sample.shared(names)?,
                )?;
                let array = arrays::npy(file)?;
                let tensor: HostTensor = match array.dtype() {
                    DType::U8 => array.tensor::<u8>()?.into(),
                    DType::I8 => array.tensor::<i8>()?.into(),
                    DType::I16 => array.tensor::<i16>()?.into(),
                    DType::U16 => array.tensor::<u16>()?.into(),
                    DType::I32 => array.tensor::<i32>()?.into(),
                    DType::U32 => array.tensor::<u32>()?.into(),
                    DType::I64 => array.tensor::<i64>()?.into(),
                    DType::F16 => array.tensor::<half::f16>()?.into(),
                    DType::BF16 => array.tensor::<half::bf16>()?.into(),
                    DType::F32 => array.tensor::<f32>()?.into(),
                    DType::F64 => array.tensor::<f64>()?.into(),
                    other => return Err(format!("an array of {other}").into()),
                };
                let kind = tensor.kind();
                Value::Tensor(tensor, kind)
            }
            Becomes::Bytes => Value::Bytes(sample.field(names)?.to_vec()),
        })
    }
}

/// Shards with an index.
struct Shards {
    shards: Arc<Blocked<WebDataset<Value>>>,
    finish: Option<Finish>,
}

impl Source for Shards {
    fn len(&self) -> u64 {
        self.shards.len()
    }

    fn values(&self, on_device: bool) -> Values {
        let finishing = Finishing::new(self.finish.as_ref(), on_device);
        Arc::new(Adapted::new(
            Arc::clone(&self.shards),
            move |value| match value {
                Value::Tuple(values) => Value::Tuple(
                    values
                        .into_iter()
                        .map(|value| match value {
                            Value::Picture(image, _) => Value::Picture(image, finishing.clone()),
                            value => value,
                        })
                        .collect(),
                ),
                value => value,
            },
        ))
    }
}

/// A data set of tar shards, whose samples are tuples of these fields.
#[pyfunction]
pub(crate) fn shard_source(
    py: Python<'_>,
    url: String,
    fields: Vec<String>,
    transform: Option<&Bound<'_, PyTransform>>,
    keep_index: Option<PathBuf>,
    skip_incomplete: bool,
) -> PyResult<PySource> {
    let transform = transform.map(Bound::get);
    let plan = transform.map_or_else(ImageTransform::new, |transform| transform.plan.clone());
    let finish = transform.and_then(|transform| transform.finish.clone());
    let fields: Vec<Field> = fields.iter().map(|names| Field::new(names)).collect();
    let open = || {
        let mut builder = WebDataset::open(&url)?.skip_incomplete(skip_incomplete);
        for field in &fields {
            if !matches!(field.becomes, Becomes::Key) {
                builder = builder.field(&field.names);
            }
        }
        if let Some(folder) = keep_index {
            builder = builder.keep_index(folder);
        }
        builder.build(move |sample: WebSample<'_>, rng: &mut SampleRng| {
            let values = fields.iter().map(|field| field.value(sample, &plan, rng));
            Ok(Value::Tuple(values.collect::<Result<_, BoxError>>()?))
        })
    };
    let shards = py.detach(open).or_raise(py)?;
    Ok(PySource(Arc::new(Shards {
        shards: Arc::new(shards.into_dataset()),
        finish,
    })))
}
