//! Pictures in class folders of a store: [`StoredFolder`].

use std::ffi::OsStr;
use std::fmt;
use std::sync::Arc;

use super::files::relabel;
use super::refused;
use super::walk::{EXTENSIONS, is_picture};
use crate::dataset::{Fingerprint, IntoDataset, Staged, StagedDataset};
use crate::image::decode::DecodeOptions;
use crate::image::error::{Cause, ImageError};
use crate::image::lazy::{LazyImage, OnDevice};
use crate::image::plan::ImageTransform;
use crate::store::{Object, Store};
use crate::{BoxError, Error, Result, SampleRng};

/// Pictures in class folders of a bucket, or of any [`Store`]: what [`ImageFolder`](super::ImageFolder) is of a disk. A sample is a picture and its
/// class's index.
///
/// Classes, and the order of pictures in them, are those that [`ImageFolder`](super::ImageFolder) has of the same files. The store is listed
/// once, when this is opened: make it before the loader's workers and ranks, not in them. With the keys and versions of 1.28 million pictures, the list
/// takes some 200 MB.
///
/// Each picture is a request of its own. A loader makes a [`Staged`] of it, which fetches pictures ahead of the workers: as many at a time as the
/// store says ([`Store::in_flight`]; a bucket 256). Where a request takes 50 ms, that is 5,000 pictures a second at most. If that is too few, or requests
/// cost money, pack the pictures into tar shards (`webdataset::WebDataset`): a shard's extent has dozens of them.
///
/// # Examples
///
/// ```no_run
/// use pinfeed::DataLoader;
/// use pinfeed::image::{ImageTransform, StoredFolder};
/// use pinfeed::store;
///
/// let bucket = store::open("s3://bucket/imagenet")?; // with the feature `object-store`
/// let train = StoredFolder::open(bucket, "train")?.with_transform(ImageTransform::train(224));
/// println!("{} pictures of {} classes", train.len(), train.classes().len());
/// let loader = DataLoader::builder(train).batch_size(256).shuffle(true).num_workers(16).build()?;
/// # Ok::<(), pinfeed::BoxError>(())
/// ```
#[derive(Clone)]
pub struct StoredFolder {
    pictures: Arc<Pictures>,
    labels: Arc<[i64]>,
    classes: Arc<[String]>,
    transform: ImageTransform,
    decoding: DecodeOptions,
    on_device: Option<OnDevice>,
    max_file_bytes: u64,
}

struct Pictures {
    store: Box<dyn Store>,
    objects: Vec<Object>,
    /// The folder's name, with a slash behind it, or nothing.
    root: String,
}

impl StoredFolder {
    /// Lists the class folders in a folder of a store, and the pictures in them. `""` is all of the store.
    ///
    /// # Errors
    ///
    /// [`Error::Source`] if the store cannot be listed, or the folder has no class folders with pictures in them. It names the folder.
    pub fn open(store: impl Store, folder: &str) -> Result<StoredFolder> {
        let root = match folder.trim_end_matches('/') {
            "" => String::new(),
            folder => format!("{folder}/"),
        };
        let listed = store.list(&root).map_err(Error::Source)?;
        let mut found: Vec<(Place, Object)> = Vec::new();
        for object in listed {
            let place = object.key.strip_prefix(&*root).and_then(Place::of);
            found.extend(place.map(|place| (place, object)));
        }
        // (Keys come in another order: `a.b/` before `a/`.)
        found.sort_by(|(one, _), (other, _)| one.cmp(other));
        if found.is_empty() {
            let what = format!(
                "{}: there are no class folders with pictures in them, such as `{root}cat/1.jpg`: files with the endings {} are expected",
                store.locate(&root),
                EXTENSIONS.join(", ")
            );
            return Err(Error::Source(what.into()));
        }
        let mut classes: Vec<String> = Vec::new();
        let mut labels = Vec::with_capacity(found.len());
        for (place, _) in &found {
            if classes.last() != Some(&place.class) {
                classes.push(place.class.clone());
            }
            labels.push(classes.len() as i64 - 1);
        }
        Ok(StoredFolder {
            pictures: Arc::new(Pictures {
                store: Box::new(store),
                objects: found.into_iter().map(|(_, object)| object).collect(),
                root,
            }),
            labels: labels.into(),
            classes: classes.into(),
            transform: ImageTransform::new(),
            decoding: DecodeOptions::default(),
            on_device: None,
            max_file_bytes: super::MAX_FILE_BYTES,
        })
    }

    /// Sets the transform. Default: none; then all pictures must have the same size.
    pub fn with_transform(self, transform: ImageTransform) -> StoredFolder {
        StoredFolder { transform, ..self }
    }

    /// Whether to turn pictures by their EXIF orientation. Default: no, as in torchvision.
    pub fn with_exif_orientation(mut self, apply: bool) -> StoredFolder {
        self.decoding.exif_orientation = apply;
        self
    }

    /// The most pixels that a picture may have, as [`LazyImage::with_max_pixels`]. Default: 178,956,970, Pillow's limit.
    pub fn with_max_pixels(mut self, pixels: u64) -> StoredFolder {
        self.decoding.max_pixels = pixels;
        self
    }

    /// The most bytes that a picture's file may have. Default: 1 GiB. A larger file is an [`ImageError`] of its sample, and is not requested.
    pub fn with_max_file_bytes(mut self, bytes: u64) -> StoredFolder {
        self.max_file_bytes = bytes;
        self
    }

    /// Sets where the pictures are decoded, in epochs that go to a device. Default: [`Decode::Cpu`](crate::image::Decode::Cpu).
    #[cfg(feature = "nvjpeg")]
    pub fn with_decode(self, decode: crate::image::Decode) -> StoredFolder {
        StoredFolder {
            on_device: OnDevice::of(decode),
            ..self
        }
    }

    /// Sets the classes, and with them the labels: a sample's label becomes the index of its class's name in `classes`. Use it for a
    /// validation folder that lacks some classes.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidOption`] if a sample's class is not in `classes`, or a name appears twice.
    pub fn with_classes<C: Into<String>>(
        self,
        classes: impl IntoIterator<Item = C>,
    ) -> Result<StoredFolder> {
        let refused = |reason| refused("StoredFolder::with_classes", reason);
        let classes: Vec<String> = classes.into_iter().map(C::into).collect();
        let class_of = |label: i64| self.classes[label as usize].clone();
        let labels = relabel(&self.labels, class_of, &classes).map_err(refused)?;
        Ok(StoredFolder {
            labels: labels.into(),
            classes: classes.into(),
            ..self
        })
    }

    /// The number of pictures.
    pub fn len(&self) -> u64 {
        self.pictures.objects.len() as u64
    }

    /// Whether there are none: never, as [`open`](StoredFolder::open) refuses that.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The names of the classes, which the labels index.
    pub fn classes(&self) -> &[String] {
        &self.classes
    }

    /// The label of the class of that name: torchvision's `class_to_idx[name]`.
    pub fn class_to_idx(&self, class: &str) -> Option<i64> {
        let index = self.classes.iter().position(|name| name == class)?;
        Some(index as i64)
    }

    /// The labels of all samples, in their order: torchvision's `targets`.
    pub fn labels(&self) -> &[i64] {
        &self.labels
    }

    /// The keys of all pictures in their store, in the samples' order.
    pub fn keys(&self) -> impl ExactSizeIterator<Item = &str> {
        let objects = self.pictures.objects.iter();
        objects.map(|object| object.key.as_str())
    }

    fn object(&self, index: u64) -> Option<&Object> {
        self.pictures.objects.get(usize::try_from(index).ok()?)
    }
}

/// Where a picture is: torchvision's order is that of folders by their whole path, then of files by name.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    class: String,
    folder: String,
    file: String,
}

impl Place {
    /// `None`: it is in no class folder, hidden, or no picture.
    fn of(path: &str) -> Option<Place> {
        let (folder, file) = path.rsplit_once('/')?;
        let is_hidden = |name: &str| name.is_empty() || name.starts_with('.');
        if path.split('/').any(is_hidden) || !is_picture(OsStr::new(file)) {
            return None;
        }
        let class = folder.split('/').next()?;
        Some(Place {
            class: class.to_owned(),
            folder: folder.to_owned(),
            file: file.to_owned(),
        })
    }
}

impl StagedDataset for StoredFolder {
    type Raw = Vec<u8>;
    type Sample = (LazyImage, i64);

    fn len(&self) -> u64 {
        self.len()
    }

    fn fetch(&self, index: u64) -> Result<Vec<u8>, BoxError> {
        let Some(object) = self.object(index) else {
            return Err(format!("sample {index} of {} pictures", self.len()).into());
        };
        if object.bytes > self.max_file_bytes {
            let cause = Cause::FileTooLarge {
                bytes: object.bytes,
                max_file_bytes: self.max_file_bytes,
            };
            return Err(ImageError::new(Some(object.key.clone().into()), cause).into());
        }
        self.pictures.store.read(object, 0..object.bytes)
    }

    fn decode(
        &self,
        index: u64,
        raw: Vec<u8>,
        rng: &mut SampleRng,
    ) -> Result<(LazyImage, i64), BoxError> {
        let (Some(object), Some(&label)) = (self.object(index), self.labels.get(index as usize))
        else {
            return Err(format!("sample {index} of {} pictures", self.len()).into());
        };
        let image = LazyImage::encoded(raw)
            .with_path(&object.key)
            .decoding(self.decoding)
            .transform(&self.transform, rng)
            .on_device(self.on_device);
        if self.transform.output_size().is_none() {
            image.shape()?; // (a broken header is this sample's error, and not its batch's)
        }
        Ok((image, label))
    }

    fn raw_bytes(&self, raw: &Vec<u8>) -> usize {
        raw.len()
    }

    fn describe(&self, index: u64) -> Option<String> {
        Some(self.object(index)?.key.clone())
    }

    /// Three bytes a pixel, and the label.
    fn sample_bytes(&self) -> Option<usize> {
        let (height, width) = self.transform.output_size()?;
        let pixels = height.checked_mul(width)?;
        pixels.checked_mul(3)?.checked_add(size_of::<i64>())
    }

    /// Of the classes, and of the names of some pictures within the folder: it may be in another bucket in the next run.
    fn fingerprint(&self) -> u32 {
        let mut print = Fingerprint::new();
        print.add_number(self.len());
        let classes = self.classes.iter();
        classes.for_each(|class| print.add(class.as_bytes()));
        let pictures = self.pictures.objects.iter();
        for object in pictures.step_by(usize::max(self.pictures.objects.len() / 64, 1)) {
            print.add(&object.key.as_bytes()[self.pictures.root.len()..]);
        }
        print.finish()
    }
}

impl IntoDataset for StoredFolder {
    type Dataset = Staged<StoredFolder>;

    fn into_dataset(self) -> Staged<StoredFolder> {
        let Pictures { store, objects, .. } = &*self.pictures;
        let bytes: u64 = objects.iter().map(|object| object.bytes).sum();
        let requests = store.in_flight(bytes / objects.len().max(1) as u64);
        Staged::new(self).with_in_flight(requests)
    }
}

impl fmt::Debug for StoredFolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoredFolder")
            .field("place", &self.pictures.store.locate(&self.pictures.root))
            .field("pictures", &self.len())
            .field("classes", &self.classes.len())
            .field("transform", &self.transform)
            .finish_non_exhaustive()
    }
}
