//! Pictures: transforms, and folders of them.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Arc;

use half::{bf16, f16};
use pinfeed::dataset::IntoDataset;
use pinfeed::image::{
    ColorJitter, ImageFolder, ImageTransform, Interpolation, LazyImage, RandAugment, RandomErasing,
    RandomResizedCrop, RandomRotation, StoredFolder,
};
use pinfeed::{Dataset, Error, store};
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::erased::AnyLoader;
use crate::errors::{OrRaise, say};
use crate::options::Options;
use crate::picture::{Finish, FinishedImage, Pixel, PixelTable, PixelType};
use crate::source::{Adapted, PySource, Source, Values, loader_of};
use crate::value::{Finishing, Value};

/// What is done to each picture.
#[pyclass(frozen, module = "pinfeed._pinfeed", name = "_Transform")]
pub(crate) struct PyTransform {
    pub(crate) plan: ImageTransform,
    pub(crate) finish: Option<Finish>,
}

/// An operation: its name, and its numbers.
fn add(
    plan: ImageTransform,
    name: &str,
    operation: &Bound<'_, PyTuple>,
) -> PyResult<ImageTransform> {
    let number = |place: usize| operation.get_item(place)?.extract::<f64>();
    let size = |place: usize| operation.get_item(place)?.extract::<usize>();
    Ok(match name {
        "resize" => plan.resize(size(1)?),
        "resize_exact" => plan.resize_exact(size(1)?, size(2)?),
        "center_crop" => plan.center_crop((size(1)?, size(2)?)),
        "random_crop" => plan.random_crop((size(1)?, size(2)?)),
        "random_resized_crop" => plan.random_resized_crop(
            RandomResizedCrop::new((size(1)?, size(2)?))
                .with_scale(number(3)?..=number(4)?)
                .with_ratio(number(5)?..=number(6)?),
        ),
        "random_horizontal_flip" => plan.random_horizontal_flip(number(1)?),
        "random_vertical_flip" => plan.random_vertical_flip(number(1)?),
        "pad" => {
            let side = |place: usize| operation.get_item(place)?.extract::<u16>();
            plan.pad((side(1)?, side(2)?, side(3)?, side(4)?))
        }
        "color_jitter" => plan.color_jitter(
            ColorJitter::new()
                .with_brightness(number(1)?)
                .with_contrast(number(2)?)
                .with_saturation(number(3)?)
                .with_hue(number(4)?),
        ),
        "random_grayscale" => plan.random_grayscale(number(1)?),
        "random_rotation" => plan.random_rotation(RandomRotation::new(number(1)?..=number(2)?)),
        "rand_augment" => plan.rand_augment(
            RandAugment::new()
                .with_num_ops(size(1)?)
                .with_magnitude(size(2)?)
                .with_num_magnitude_bins(size(3)?),
        ),
        "random_erasing" => plan.random_erasing(
            RandomErasing::new()
                .with_probability(number(1)?)
                .with_scale(number(2)?..=number(3)?)
                .with_ratio(number(4)?..=number(5)?)
                .with_value(operation.get_item(6)?.extract()?),
        ),
        other => {
            return Err(say(
                operation.py(),
                "Error",
                &format!("there is no operation {other}"),
            ));
        }
    })
}

#[pymethods]
impl PyTransform {
    #[new]
    #[pyo3(signature = (operations, interpolation, fill, scaled_decoding, finish))]
    fn new(
        py: Python<'_>,
        operations: Vec<Bound<'_, PyTuple>>,
        interpolation: Option<&str>,
        fill: [u8; 3],
        scaled_decoding: bool,
        finish: Option<([f32; 3], [f32; 3], String, bool)>,
    ) -> PyResult<PyTransform> {
        let interpolation = match interpolation {
            None | Some("bilinear") => Interpolation::Bilinear,
            Some("nearest") => Interpolation::Nearest,
            Some("bicubic") => Interpolation::Bicubic,
            Some("lanczos") => Interpolation::Lanczos,
            Some(other) => {
                return Err(say(
                    py,
                    "OptionError",
                    &format!(
                        "interpolation={other:?}: it is \"nearest\", \"bilinear\", \"bicubic\" or \"lanczos\""
                    ),
                ));
            }
        };
        let mut plan = ImageTransform::new()
            .with_interpolation(interpolation)
            .with_fill(fill)
            .with_scaled_decoding(scaled_decoding);
        for operation in operations {
            let name: String = operation.get_item(0)?.extract()?;
            let before = plan.clone();
            // Unwind safety: the plan is a copy.
            let added = catch_unwind(AssertUnwindSafe(|| add(before, &name, &operation)));
            plan = match added {
                Ok(added) => added?,
                Err(panic) => {
                    let reason = panic
                        .downcast_ref::<String>()
                        .map_or("it is out of range", String::as_str);
                    return Err(say(py, "OptionError", &format!("{name}: {reason}")));
                }
            };
        }
        let finish = match finish {
            None => None,
            Some((mean, std, pixel_type, channels_last)) => Some(Finish {
                mean,
                std,
                pixel_type: match pixel_type.as_str() {
                    "float32" => PixelType::F32,
                    "float16" => PixelType::F16,
                    "bfloat16" => PixelType::Bf16,
                    other => {
                        return Err(say(
                            py,
                            "OptionError",
                            &format!(
                                "dtype={other:?}: pixels become \"float32\", \"float16\" or \"bfloat16\", or stay \"uint8\""
                            ),
                        ));
                    }
                },
                channels_last,
            }),
        };
        Ok(PyTransform { plan, finish })
    }

    /// (height, width) of the pictures, if all have the same.
    #[getter]
    fn output_size(&self) -> Option<(usize, usize)> {
        self.plan.output_size()
    }
}

/// The pictures of a folder, and their labels.
type Labelled = Arc<dyn Dataset<Sample = (LazyImage, i64)>>;

/// A folder of pictures.
struct Pictures {
    folder: Labelled,
    /// The same, for batches that go to a device, which may decode them.
    on_device: Labelled,
    finish: Option<Finish>,
}

/// Where the pictures of batches that go to a device are decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Decoding {
    Cpu,
    Device,
    Both,
}

impl Decoding {
    fn named(py: Python<'_>, name: &str) -> PyResult<Decoding> {
        let decode = match name {
            "cpu" => Decoding::Cpu,
            "device" => Decoding::Device,
            "both" => Decoding::Both,
            other => {
                let reason = format!("decode={other:?}: it is \"cpu\", \"device\" or \"both\"");
                return Err(say(py, "OptionError", &reason));
            }
        };
        match decode == Decoding::Cpu || cfg!(feature = "nvjpeg") {
            true => Ok(decode),
            false => Err(say(
                py,
                "OptionError",
                &format!("decode={name:?}: this wheel was built without the feature nvjpeg"),
            )),
        }
    }

    #[cfg(feature = "nvjpeg")]
    fn of(self, folder: Folder) -> Folder {
        use pinfeed::image::Decode;
        let decode = match self {
            Decoding::Cpu => Decode::Cpu,
            Decoding::Device => Decode::Device,
            Decoding::Both => Decode::Both,
        };
        match folder {
            Folder::Local(folder) => Folder::Local(folder.with_decode(decode)),
            Folder::Stored(folder) => Folder::Stored(folder.with_decode(decode)),
        }
    }

    #[cfg(not(feature = "nvjpeg"))]
    fn of(self, folder: Folder) -> Folder {
        folder
    }
}

/// Where a folder is.
#[derive(Clone)]
enum Folder {
    Local(ImageFolder),
    /// In a bucket, or on a web server.
    Stored(StoredFolder),
}

impl Folder {
    fn labelled(self) -> Labelled {
        match self {
            Folder::Local(folder) => Arc::new(folder),
            Folder::Stored(folder) => Arc::new(folder.into_dataset()),
        }
    }
}

impl Pictures {
    fn finished<P: Pixel>(
        &self,
        finish: &Finish,
    ) -> impl Dataset<Sample = (FinishedImage<P>, i64)> + use<P> {
        let table = Arc::new(PixelTable::<P>::new(finish));
        let mut adapted = Adapted::new(Arc::clone(&self.folder), move |(image, label)| {
            let table = Arc::clone(&table);
            (FinishedImage { image, table }, label)
        });
        let bytes = |bytes: usize| (bytes - size_of::<i64>()) * size_of::<P>() + size_of::<i64>();
        adapted.sample_bytes = self.folder.sample_bytes().map(bytes);
        adapted
    }
}

impl Source for Pictures {
    fn len(&self) -> u64 {
        self.folder.len()
    }

    fn values(&self, on_device: bool) -> Values {
        let finishing = Finishing::new(self.finish.as_ref(), on_device);
        Arc::new(Adapted::new(
            Arc::clone(&self.folder),
            move |(image, label)| {
                Value::Tuple(vec![
                    Value::Picture(image, finishing.clone()),
                    Value::Int(label),
                ])
            },
        ))
    }

    fn build(&self, options: &Options) -> pinfeed::Result<Box<dyn AnyLoader>> {
        if options.device.is_some() {
            let finish = self.finish.clone().map(Arc::new);
            let data = Arc::clone(&self.on_device);
            let loader = options.build(data.blocks(), pinfeed::DataLoader::builder(data))?;
            return Ok(Box::new(
                crate::erased::Loaded::new(loader, options).finished_by(finish),
            ));
        }
        match &self.finish {
            None => loader_of(Arc::clone(&self.folder), options),
            Some(finish) => match finish.pixel_type {
                PixelType::F32 => loader_of(self.finished::<f32>(finish), options),
                PixelType::F16 => loader_of(self.finished::<f16>(finish), options),
                PixelType::Bf16 => loader_of(self.finished::<bf16>(finish), options),
            },
        }
    }
}

/// What is known of a folder's pictures.
#[pyclass(frozen, module = "pinfeed._pinfeed", name = "_Folder")]
pub(crate) struct PyFolder(Folder);

#[pymethods]
impl PyFolder {
    /// Class folders in `root`: a path, or a URL.
    #[staticmethod]
    fn open(py: Python<'_>, root: PathBuf) -> PyResult<PyFolder> {
        let open = || match root.to_str().filter(|root| root.contains("://")) {
            None => ImageFolder::open(&root).map(Folder::Local),
            Some(url) => {
                let store = store::open(url).map_err(|error| Error::Source(error.into()))?;
                StoredFolder::open(store, "").map(Folder::Stored)
            }
        };
        py.detach(open).or_raise(py).map(PyFolder)
    }

    /// A list in a text file.
    #[staticmethod]
    fn open_list(py: Python<'_>, list: PathBuf) -> PyResult<PyFolder> {
        let opened = py.detach(|| ImageFolder::open_list(list)).or_raise(py)?;
        Ok(PyFolder(Folder::Local(opened)))
    }

    /// Paths and classes.
    #[staticmethod]
    fn from_list(py: Python<'_>, list: Vec<(PathBuf, String)>) -> PyResult<PyFolder> {
        let folder = ImageFolder::from_list(list).or_raise(py)?;
        Ok(PyFolder(Folder::Local(folder)))
    }

    fn with_classes(&self, py: Python<'_>, classes: Vec<String>) -> PyResult<PyFolder> {
        let folder = match self.0.clone() {
            Folder::Local(folder) => folder.with_classes(classes).map(Folder::Local),
            Folder::Stored(folder) => folder.with_classes(classes).map(Folder::Stored),
        };
        folder.or_raise(py).map(PyFolder)
    }

    fn classes(&self) -> Vec<String> {
        match &self.0 {
            Folder::Local(folder) => folder.classes().to_vec(),
            Folder::Stored(folder) => folder.classes().to_vec(),
        }
    }

    fn labels(&self) -> Vec<i64> {
        match &self.0 {
            Folder::Local(folder) => folder.labels().to_vec(),
            Folder::Stored(folder) => folder.labels().to_vec(),
        }
    }

    /// Where each picture is: paths; or their keys below the URL.
    fn paths(&self) -> Vec<PathBuf> {
        match &self.0 {
            Folder::Local(folder) => {
                let indices = 0..folder.labels().len() as u64;
                indices.filter_map(|index| folder.path(index)).collect()
            }
            Folder::Stored(folder) => folder.keys().map(PathBuf::from).collect(),
        }
    }

    fn __len__(&self) -> usize {
        match &self.0 {
            Folder::Local(folder) => folder.labels().len(),
            Folder::Stored(folder) => folder.labels().len(),
        }
    }

    /// The data set of its pictures.
    #[pyo3(signature = (transform, exif_orientation, decode))]
    fn source(
        &self,
        py: Python<'_>,
        transform: Option<&Bound<'_, PyTransform>>,
        exif_orientation: bool,
        decode: &str,
    ) -> PyResult<PySource> {
        let transform = transform.map(Bound::get);
        let plan = transform.map_or_else(ImageTransform::new, |transform| transform.plan.clone());
        let folder = match self.0.clone() {
            Folder::Local(folder) => {
                let folder = folder.with_transform(plan);
                Folder::Local(folder.with_exif_orientation(exif_orientation))
            }
            Folder::Stored(folder) => {
                let folder = folder.with_transform(plan);
                Folder::Stored(folder.with_exif_orientation(exif_orientation))
            }
        };
        let decode = Decoding::named(py, decode)?;
        Ok(PySource(Arc::new(Pictures {
            on_device: decode.of(folder.clone()).labelled(),
            folder: folder.labelled(),
            finish: transform.and_then(|transform| transform.finish.clone()),
        })))
    }
}
