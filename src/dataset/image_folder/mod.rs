//! Pictures in class folders, or in a list: [`ImageFolder`].
//!
//! The names of the files are found by [`walk`], or read from a [`text`] file or an [`index`], and kept in a [`files`] list
//! of a few dozen bytes each. A sample is the bytes of a file and its label; [`LazyImage`] decodes it into its batch.

mod files;
mod index;
mod progress;
mod text;
mod walk;

pub use progress::ListingProgress;

use std::fmt;
use std::path::{Path, PathBuf};

use self::files::FileList;
use self::progress::Pace;
use super::Dataset;
use crate::error::{BoxError, Error, Result};
use crate::rng::SampleRng;
use crate::sync::Arc;
use crate::system;
use crate::transform::{Decoding, ImageTransform, LazyImage};

/// Pictures in class folders: `root/class/picture.jpg`. A sample is a picture and its class's index.
///
/// This is torchvision's `ImageFolder`: the classes are the names of the folders in code-point order, and so are the
/// pictures within each, those in nested folders included. Pictures are the files with the endings jpg, jpeg, png, ppm,
/// bmp, pgm, tif, tiff, webp and gif, in capitals or not; what they really are is told by their content. Beyond torchvision,
/// which leaves GIF out, hidden files and folders, whose name begins with a dot, and links that lead nowhere are passed over.
///
/// Opening lists the folders by several threads and touches no file. Where even that takes long, keep the list
/// ([`save_index`](ImageFolder::save_index), [`open_index`](ImageFolder::open_index)), or bring one of your own
/// ([`open_list`](ImageFolder::open_list), [`from_list`](ImageFolder::from_list)). Cloning shares the list, so that one
/// folder can be read with several transforms.
///
/// A sample's file is read by `get`; it is decoded when its row of the batch is there. Batches are
/// `(Tensor<u8>, Tensor<i64>)` of shapes `[n, height, width, 3]` and `[n]`.
///
/// # Examples
///
/// ```no_run
/// use pinfeed::{Dataset, ImageFolder, ImageTransform};
///
/// let train = ImageFolder::open("imagenet/train")?.transform(ImageTransform::train(224));
/// // A folder that lacks classes gets the same labels all the same:
/// let val = ImageFolder::open("imagenet/val")?
///     .with_classes(train.classes())?
///     .transform(ImageTransform::eval(224));
/// println!("{} pictures of {} classes", train.len(), train.classes().len());
/// assert_eq!(train.class_to_idx("n01440764"), Some(0));
/// # Ok::<(), pinfeed::Error>(())
/// ```
#[derive(Clone)]
pub struct ImageFolder {
    files: Arc<FileList>,
    transform: ImageTransform,
    decoding: Decoding,
    read_ahead: usize,
}

/// So many files are asked for ahead of their turn. (Measured with workers that take 1.7 ms for a picture, on a disk that
/// gives a file of 110 KB in half a millisecond: 256 were no faster than 64.)
const READ_AHEAD: usize = 64;

impl ImageFolder {
    /// Lists the class folders within `root`, and the pictures in them. What takes longer than two seconds says how far
    /// it is in the log, at the level `info`, once a second.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if a folder cannot be read, `root` itself for instance; [`Error::DataSet`] if there are no class
    /// folders, if one holds no picture, or if its name is not Unicode. All of them name the folder.
    pub fn open(root: impl AsRef<Path>) -> Result<ImageFolder> {
        ImageFolder::open_with_progress(root, |_| ())
    }

    /// [`open`](ImageFolder::open) that tells how far it is: for the first time after two seconds, and then about once a
    /// second. The function is called on the caller's thread, while others list.
    ///
    /// # Errors
    ///
    /// As [`open`](ImageFolder::open).
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use pinfeed::ImageFolder;
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

    /// Opens the folder `root` by an index that [`save_index`](ImageFolder::save_index) made. No folder is listed, and no
    /// picture touched.
    ///
    /// The pictures are those that were there when the index was made, in the same order and with the same labels: one
    /// that came since is not among them, and one that is gone is an error when its turn comes. The folder may have been
    /// moved, also to another machine. An index of [`from_list`](ImageFolder::from_list) has its paths as they were
    /// given: open it with the root `""`.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if the index cannot be read; [`Error::DataSet`] if it is none, is damaged or cut off, or is of
    /// another version. Both name the index.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use std::path::Path;
    /// # use pinfeed::ImageFolder;
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

    /// Writes the list of pictures to the file `index`: their paths relative to the root, labels and classes, but no
    /// pixels, and nothing of the transform. [`open_index`](ImageFolder::open_index) reads it.
    ///
    /// The file appears when it is complete, in the place of one that may be there: whoever reads at the same time sees the
    /// one or the other.
    ///
    /// # Errors
    ///
    /// [`Error::Write`], which names the file.
    pub fn save_index(&self, index: impl AsRef<Path>) -> Result<()> {
        index::write(&self.files, index.as_ref())
    }

    /// Reads a list of pictures from a text file: on each line a path, a tab and a class. No picture is touched.
    ///
    /// Relative paths count from the list's own folder. Without tab and class, the class is the name of the folder
    /// that the picture lies in, so a list of an ImageNet folder is what `find train -name '*.JPEG'` prints. Empty
    /// lines are passed over. The classes are as in [`from_list`](ImageFolder::from_list), but the samples keep the
    /// list's order.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if the list cannot be read; [`Error::DataSet`] if it is empty, or a line makes no sense. Both
    /// name the list, and the latter the line.
    pub fn open_list(list: impl AsRef<Path>) -> Result<ImageFolder> {
        text::read(list.as_ref()).map(ImageFolder::new)
    }

    /// Takes a list of pictures: path and class of each, in the order of the samples. No picture is touched.
    ///
    /// A class is a name, or a number. Names are the [`classes`](ImageFolder::classes) in code-point order, as of
    /// folders, and a sample's label is the index of its name. If all classes are whole numbers (as text or as
    /// integers), they are the labels themselves, and there are no names.
    ///
    /// # Errors
    ///
    /// [`Error::Option`] if the list is empty; [`Error::DataSet`] if a path cannot be kept: on systems other than Unix,
    /// one that is not Unicode.
    ///
    /// # Examples
    ///
    /// ```
    /// use pinfeed::{Dataset, ImageFolder};
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
        let mut files = files::Builder::default();
        for (path, class) in list {
            files.push(path.as_ref(), &class.to_string())?;
        }
        if files.is_empty() {
            return Err(Error::option("ImageFolder::from_list", "the list is empty"));
        }
        Ok(ImageFolder::new(files.finish(Path::new(""), true)))
    }

    fn new(files: FileList) -> ImageFolder {
        ImageFolder {
            files: Arc::new(files),
            transform: ImageTransform::new(),
            decoding: Decoding::default(),
            read_ahead: READ_AHEAD,
        }
    }

    /// Sets what is done with each picture. Default: nothing, and then all pictures must be of one size.
    pub fn transform(self, transform: ImageTransform) -> ImageFolder {
        ImageFolder { transform, ..self }
    }

    /// Whether to turn pictures as their EXIF orientation says. Default: no, as in torchvision.
    pub fn exif_orientation(mut self, apply: bool) -> ImageFolder {
        self.decoding.exif_orientation = apply;
        self
    }

    /// The most pixels that a picture may have. Default: 178,956,970, Pillow's limit.
    ///
    /// A file whose header says more is an error, before any memory is taken for it: see
    /// [`LazyImage::max_pixels`].
    pub fn max_pixels(mut self, pixels: u64) -> ImageFolder {
        self.decoding.max_pixels = pixels;
        self
    }

    /// How many files the system is asked to read ahead of the samples that are being loaded, so that workers that
    /// decode do not wait for the disk as well. Default: 64; 0 turns it off.
    ///
    /// Each file is then opened twice: a few microseconds where it is in memory already, and a question more where a file
    /// server answers. Linux only; elsewhere nothing is read ahead.
    pub fn read_ahead(self, files: usize) -> ImageFolder {
        ImageFolder {
            read_ahead: files,
            ..self
        }
    }

    /// Sets the classes, and so what the labels are: a sample's label becomes the index of its class's name among
    /// `classes`. For a validation folder that lacks classes, or a list whose classes have an order of their own.
    ///
    /// # Errors
    ///
    /// [`Error::Option`] if a sample's class is not among `classes`, or a name comes twice.
    pub fn with_classes<C: Into<String>>(
        self,
        classes: impl IntoIterator<Item = C>,
    ) -> Result<ImageFolder> {
        let classes = classes.into_iter().map(C::into).collect();
        let files = self.files.with_classes(classes);
        let files = files.map_err(|reason| Error::option("ImageFolder::with_classes", reason))?;
        Ok(ImageFolder {
            files: Arc::new(files),
            ..self
        })
    }

    /// The names of the classes: a label is an index into them. Empty where labels were given as numbers.
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

    /// The path of the sample at `index`, if there is one.
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
        let bytes = match std::fs::read(&path) {
            Ok(bytes) => bytes,
            Err(source) => return Err(Error::Io { path, source }.into()),
        };
        let image = LazyImage::encoded(bytes)
            .path(path)
            .decoding(self.decoding)
            .transform(&self.transform, rng);
        if self.transform.output_size().is_none() {
            // Batches are planned from the size that the header tells. A header that is broken fails here, as the fault
            // of this sample, and not as that of the batch.
            image.shape()?;
        }
        Ok((image, label))
    }

    fn describe(&self, index: u64) -> Option<String> {
        Some(self.path(index)?.display().to_string())
    }

    fn lookahead(&self) -> usize {
        match system::READS_AHEAD {
            true => self.read_ahead,
            false => 0,
        }
    }

    fn will_need(&self, indices: &[u64]) {
        for path in indices.iter().filter_map(|&index| self.path(index)) {
            system::will_need(&path);
        }
    }

    /// A picture of three bytes a pixel, and its label.
    fn sample_bytes(&self) -> Option<usize> {
        let (height, width) = self.transform.output_size()?;
        let pixels = height.checked_mul(width)?;
        pixels.checked_mul(3)?.checked_add(size_of::<i64>())
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
