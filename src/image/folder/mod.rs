//! Pictures in class folders, or in a list: [`ImageFolder`]. In a store: [`StoredFolder`].
//!
//! File names are found by [`walk`], or read from a [`text`] file or an [`index`], and kept in a list ([`files`]) that takes a few
//! dozen bytes each. A sample is the bytes of a file and its label. [`LazyImage`] decodes it into its batch.

mod files;
mod index;
mod progress;
mod stored;
mod text;
mod walk;

pub use progress::ListingProgress;
pub use stored::StoredFolder;

use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use self::files::FileList;
use self::progress::Pace;
use super::decode::DecodeOptions;
use super::error::{Cause, ImageError};
use super::file::{Buffers, ReadFault};
use super::lazy::{LazyImage, OnDevice};
use super::plan::ImageTransform;
use crate::dataset::{Fingerprint, Pass, read_ahead};
use crate::{BoxError, Dataset, Error, Result, SampleRng};

/// Pictures in class folders: `root/class/picture.jpg`. A sample is a picture and its class's index.
///
/// This is torchvision's `ImageFolder`: the classes are the names of the folders, in code-point order. The pictures of a class
/// are in code-point order too, including those in nested folders. Files with the extensions jpg, jpeg, png, ppm, bmp, pgm, tif,
/// tiff, webp and gif count as pictures, in any case. The decoder goes by their content. Unlike torchvision, this takes GIF, and
/// skips hidden files and folders (whose name begins with a dot) and dangling links.
///
/// Opening lists the folders with several threads and opens no file. If even that takes too long, keep the list
/// ([`save_index`](ImageFolder::save_index), [`open_index`](ImageFolder::open_index)), or bring your own
/// ([`open_list`](ImageFolder::open_list), [`from_list`](ImageFolder::from_list)). Clones share the list, so one folder can be
/// read with several transforms.
///
/// `get` reads a sample's file. The file is decoded when its batch has memory, straight into its row. Batches are
/// `(Tensor<u8>, Tensor<i64>)` of shapes `[n, height, width, 3]` and `[n]`. Buffers of files that are decoded are kept for others, at most
/// 64 MiB, until the last clone is dropped.
///
/// # Examples
///
/// ```no_run
/// use pinfeed::Dataset;
/// use pinfeed::image::{ImageFolder, ImageTransform};
///
/// let train = ImageFolder::open("imagenet/train")?.with_transform(ImageTransform::train(224));
/// // The same labels, even if a class is missing in this folder:
/// let val = ImageFolder::open("imagenet/val")?
///     .with_classes(train.classes())?
///     .with_transform(ImageTransform::eval(224));
/// println!("{} pictures of {} classes", train.len(), train.classes().len());
/// assert_eq!(train.class_to_idx("n01440764"), Some(0));
/// # Ok::<(), pinfeed::Error>(())
/// ```
#[derive(Clone)]
pub struct ImageFolder {
    files: Arc<FileList>,
    transform: ImageTransform,
    decoding: DecodeOptions,
    on_device: Option<OnDevice>,
    max_file_bytes: u64,
    read_ahead: usize,
    buffers: Arc<Buffers>,
}

/// How many files are read ahead by default. (Measured with workers that take 1.7 ms for a picture, on a disk that reads a file of
/// 110 KB in half a millisecond: 256 was no faster than 64.)
const READ_AHEAD: usize = 64;

/// How large a file may be by default: half as much again as the largest picture of RGBA takes uncompressed.
const MAX_FILE_BYTES: u64 = 1 << 30;

impl ImageFolder {
    /// Lists the class folders in `root`, and the pictures in them. If that takes longer than two seconds, it logs its progress
    /// once a second, at the level `info`.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if a folder (or `root` itself) cannot be read; [`Error::DataSet`] if there are no class folders, or a class
    /// folder holds no picture or has a name that is not Unicode. All of them name the folder.
    pub fn open(root: impl AsRef<Path>) -> Result<ImageFolder> {
        ImageFolder::open_with_progress(root, |_| ())
    }

    /// Like [`open`](ImageFolder::open), and reports its progress: first after two seconds, then about once a second. The function
    /// is called on the caller's thread, while other threads list.
    ///
    /// # Errors
    ///
    /// As [`open`](ImageFolder::open).
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use pinfeed::image::ImageFolder;
    /// let train = ImageFolder::open_with_progress("imagenet/train", |at| {
    ///     eprintln!("{} of {} folders, {} pictures", at.folders_done, at.folders, at.files);
    /// })?;
    /// # Ok::<(), pinfeed::Error>(())
    /// ```
    pub fn open_with_progress(
        root: impl AsRef<Path>,
        mut progress: impl FnMut(ListingProgress),
    ) -> Result<ImageFolder> {
        walk::list(root.as_ref(), Pace::USUAL, &mut progress).map(ImageFolder::new)
    }

    /// Opens the folder `root` from an index that [`save_index`](ImageFolder::save_index) wrote. It lists no folder and opens no
    /// picture.
    ///
    /// The pictures are those that existed when the index was written, in the same order and with the same labels. A picture that
    /// was added later is not among them, and one that was removed is an error when it is loaded. The folder may have moved, even
    /// to another machine. An index of [`from_list`](ImageFolder::from_list) has the paths that were given: open it with the root
    /// `""`.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if the index cannot be read; [`Error::DataSet`] if it is not an index, is damaged or cut off, or has another
    /// version. Both name the index.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use std::path::Path;
    /// # use pinfeed::image::ImageFolder;
    /// let (root, index) = ("imagenet/train", Path::new("train.index"));
    /// let train = if index.exists() {
    ///     ImageFolder::open_index(root, index)?
    /// } else {
    ///     let train = ImageFolder::open(root)?;
    ///     train.save_index(index)?;
    ///     train
    /// };
    /// # Ok::<(), pinfeed::Error>(())
    /// ```
    pub fn open_index(root: impl AsRef<Path>, index: impl AsRef<Path>) -> Result<ImageFolder> {
        index::read(root.as_ref(), index.as_ref()).map(ImageFolder::new)
    }

    /// Writes the list of pictures to the file `index`: their paths relative to the root, labels and classes, but no pixels and no
    /// transform. [`open_index`](ImageFolder::open_index) reads it.
    ///
    /// The file is replaced in one step when it is complete: a concurrent reader sees either the old one or the new one.
    ///
    /// # Errors
    ///
    /// [`Error::Write`], which names the file.
    pub fn save_index(&self, index: impl AsRef<Path>) -> Result<()> {
        index::write(&self.files, index.as_ref())
    }

    /// Reads a list of pictures from a text file: a path, a tab and a class on each line. It opens no picture.
    ///
    /// Relative paths are relative to the folder of the list. Without tab and class, the class is the name of the picture's
    /// folder, so the output of `find train -name '*.JPEG'` is a list of an ImageNet folder. Empty lines, blanks around path and
    /// class, and a byte order mark are skipped. (A path that begins or ends with a blank, or has a tab, needs
    /// [`from_list`](ImageFolder::from_list).) Lists of Caffe and others, with a blank or a comma between path and class, are refused.
    /// Classes and labels are as in [`from_list`](ImageFolder::from_list). The samples keep the list's order.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if the list cannot be read; [`Error::DataSet`] if it is empty, a line is malformed, not UTF-8 or longer than 64
    /// KiB, the first line seems to be a heading, or some classes are numbers and not all are integers. Both name the list, and the
    /// latter the line.
    pub fn open_list(list: impl AsRef<Path>) -> Result<ImageFolder> {
        text::read(list.as_ref()).map(ImageFolder::new)
    }

    /// Takes a list of pictures, with the path and the class of each, in the order of the samples. It opens no picture.
    ///
    /// A class is a name or a number. Names become the [`classes`](ImageFolder::classes), in code-point order as with folders, and
    /// a sample's label is the index of its name. If all classes are integers (also as text), they are the labels themselves, and
    /// there are no names. Integers are those in their usual spelling: `1.0`, `+1` and `01` are none. Where all classes are digits
    /// of one length (`01` to `12`), they are names.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidOption`] if the list is empty, or some classes are numbers and not all are integers (sorted as names, `10` would come
    /// before `2`); [`Error::DataSet`] if a path is not Unicode, on systems other than Unix.
    ///
    /// # Examples
    ///
    /// ```
    /// use pinfeed::Dataset;
    /// use pinfeed::image::ImageFolder;
    ///
    /// let animals = ImageFolder::from_list([("a.jpg", "dog"), ("b.jpg", "cat")])?;
    /// assert_eq!((animals.classes(), animals.labels()), (&["cat".into(), "dog".into()][..], &[1, 0][..]));
    /// let digits = ImageFolder::from_list([("a.png", 7), ("b.png", 10)])?;
    /// assert_eq!(digits.labels(), [7, 10]);
    /// # Ok::<(), pinfeed::Error>(())
    /// ```
    pub fn from_list<P, C>(list: impl IntoIterator<Item = (P, C)>) -> Result<ImageFolder>
    where
        P: AsRef<Path>,
        C: fmt::Display,
    {
        let mut files = files::FileListBuilder::default();
        for (index, (path, class)) in list.into_iter().enumerate() {
            files.push(path.as_ref(), &class.to_string(), index as u64)?;
        }
        let refused = |reason| refused("ImageFolder::from_list", reason);
        if files.is_empty() {
            return Err(refused("the list is empty".to_owned()));
        }
        let files = files.finish(Path::new(""), true);
        let files = files.map_err(|mixed| refused(mixed.say("sample")))?;
        Ok(ImageFolder::new(files))
    }

    fn new(files: FileList) -> ImageFolder {
        ImageFolder {
            files: Arc::new(files),
            transform: ImageTransform::new(),
            decoding: DecodeOptions::default(),
            on_device: None,
            max_file_bytes: MAX_FILE_BYTES,
            read_ahead: READ_AHEAD,
            buffers: Arc::default(),
        }
    }

    /// Sets the transform. Default: none; then all pictures must have the same size.
    pub fn with_transform(self, transform: ImageTransform) -> ImageFolder {
        ImageFolder { transform, ..self }
    }

    /// Whether to turn pictures by their EXIF orientation. Default: no, as in torchvision.
    pub fn with_exif_orientation(mut self, apply: bool) -> ImageFolder {
        self.decoding.exif_orientation = apply;
        self
    }

    /// The most pixels that a picture may have. Default: 178,956,970, Pillow's limit.
    ///
    /// A file whose header says more is an error before any memory is allocated for it: see
    /// [`LazyImage::with_max_pixels`].
    pub fn with_max_pixels(mut self, pixels: u64) -> ImageFolder {
        self.decoding.max_pixels = pixels;
        self
    }

    /// The most bytes that a picture's file may have. Default: 1 GiB.
    ///
    /// A larger file is an [`ImageError`] of its sample, before it is read.
    pub fn with_max_file_bytes(mut self, bytes: u64) -> ImageFolder {
        self.max_file_bytes = bytes;
        self
    }

    /// Sets where the pictures are decoded, in epochs that go to a device. Default: [`Decode::Cpu`](super::Decode::Cpu).
    #[cfg(feature = "nvjpeg")]
    pub fn with_decode(self, decode: super::Decode) -> ImageFolder {
        ImageFolder {
            on_device: OnDevice::of(decode),
            ..self
        }
    }

    /// How many files ahead of the current samples the system is asked to read, so that workers that decode do not also wait for
    /// the disk. Default: 64; 0 turns it off.
    ///
    /// Each file is then opened twice. That costs a few microseconds if it is in memory, and one more request on a network file
    /// system. Linux only; elsewhere nothing is read ahead.
    pub fn with_read_ahead(self, files: usize) -> ImageFolder {
        ImageFolder {
            read_ahead: files,
            ..self
        }
    }

    /// Sets the classes, and with them the labels: a sample's label becomes the index of its class's name in `classes`. Use it for
    /// a validation folder that lacks some classes, or for a list whose classes have their own order.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidOption`] if a sample's class is not in `classes`, or a name appears twice.
    pub fn with_classes<C: Into<String>>(
        self,
        classes: impl IntoIterator<Item = C>,
    ) -> Result<ImageFolder> {
        let classes = classes.into_iter().map(C::into).collect();
        let files = self.files.with_classes(classes);
        let files = files.map_err(|reason| refused("ImageFolder::with_classes", reason))?;
        Ok(ImageFolder {
            files: Arc::new(files),
            ..self
        })
    }

    /// The names of the classes, which the labels index. Empty if the labels were given as numbers.
    pub fn classes(&self) -> &[String] {
        self.files.classes()
    }

    /// The label of the class of that name: torchvision's `class_to_idx[name]`.
    pub fn class_to_idx(&self, class: &str) -> Option<i64> {
        let index = self.classes().iter().position(|name| name == class)?;
        Some(index as i64)
    }

    /// The labels of all samples, in their order: torchvision's `targets`.
    pub fn labels(&self) -> &[i64] {
        self.files.labels()
    }

    /// The path of the sample at `index`; `None` if it is out of range.
    pub fn path(&self, index: u64) -> Option<PathBuf> {
        self.files.path(usize::try_from(index).ok()?)
    }

    /// The paths of all samples, in their order.
    pub fn paths(&self) -> impl Iterator<Item = PathBuf> + '_ {
        (0..self.files.len()).filter_map(|index| self.files.path(index))
    }
}

impl Dataset for ImageFolder {
    type Sample = (LazyImage, i64);

    fn len(&self) -> u64 {
        self.files.len() as u64
    }

    fn get(&self, index: u64, rng: &mut SampleRng) -> Result<(LazyImage, i64), BoxError> {
        let (Some(path), Some(&label)) = (self.path(index), self.labels().get(index as usize))
        else {
            return Err(format!("sample {index} of {} pictures", self.files.len()).into());
        };
        let file = match self.buffers.read(&path, self.max_file_bytes) {
            Ok(file) => file,
            Err(ReadFault::Io(source)) => return Err(Error::Io { path, source }.into()),
            Err(ReadFault::TooLarge(bytes)) => {
                let max_file_bytes = self.max_file_bytes;
                let cause = Cause::FileTooLarge {
                    bytes,
                    max_file_bytes,
                };
                return Err(ImageError::new(Some(path), cause).into());
            }
        };
        let image = LazyImage::of_file(file)
            .with_path(path)
            .decoding(self.decoding)
            .transform(&self.transform, rng)
            .on_device(self.on_device);
        if self.transform.output_size().is_none() {
            // A batch is planned from the size in one header. A broken header fails here, as an error of this sample,
            // instead of failing the batch's plan.
            image.shape()?;
        }
        Ok((image, label))
    }

    fn describe(&self, index: u64) -> Option<String> {
        Some(self.path(index)?.display().to_string())
    }

    fn lookahead(&self) -> usize {
        match cfg!(target_os = "linux") {
            true => self.read_ahead,
            false => 0, // `read_ahead` does nothing there
        }
    }

    fn will_need(&self, indices: &[u64], _: Pass) {
        for path in indices.iter().filter_map(|&index| self.path(index)) {
            read_ahead(&path);
        }
    }

    fn has_encoded_pictures(&self) -> bool {
        !self.is_empty() && self.on_device.is_some()
    }

    /// Three bytes a pixel, and the label.
    fn sample_bytes(&self) -> Option<usize> {
        let (height, width) = self.transform.output_size()?;
        let pixels = height.checked_mul(width)?;
        pixels.checked_mul(3)?.checked_add(size_of::<i64>())
    }

    /// Of the classes, and of the names of some files: the folder may be somewhere else in the next run.
    fn fingerprint(&self) -> u32 {
        let mut print = Fingerprint::new();
        print.add_number(self.len());
        self.classes()
            .iter()
            .for_each(|class| print.add(class.as_bytes()));
        let pictures = (0..self.len()).step_by(usize::max(self.files.len() / 64, 1));
        for name in pictures.filter_map(|index| self.path(index)?.file_name().map(OsString::from)) {
            print.add(name.as_encoded_bytes());
        }
        print.finish()
    }
}

fn refused(option: &'static str, reason: impl Into<String>) -> Error {
    Error::InvalidOption {
        option,
        reason: reason.into(),
    }
}

impl fmt::Debug for ImageFolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ImageFolder")
            .field("root", &self.files.root())
            .field("pictures", &self.files.len())
            .field("classes", &self.classes().len())
            .field("transform", &self.transform)
            .finish_non_exhaustive()
    }
}
