//! The bytes of a file: read into memory, mapped, or the program's own.

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use crate::device::Device;
use crate::error::{Error, Result};
use crate::sync::Arc;
use crate::system::{prefer_huge_pages, room};
use crate::tensor::{Element, Tensor};

/// Where the bytes of a file begin that was read: any number can lie there, and a vector register's worth of them.
const ALIGNMENT: usize = 64;

/// The bytes of a file, which arrays and tokens are read from. Clones share them.
///
/// | | [`read`](FileBytes::read) (what a path means) | [`map`](FileBytes::map) |
/// | --- | --- | --- |
/// | when the file is read | at once, all of it | page by page, when a row is used for the first time |
/// | memory | as much as the file has | the system's page cache, which processes share and the system takes back |
/// | the file changes meanwhile | the program has what was read | other numbers; if it becomes shorter, the process ends (`SIGBUS`) |
/// | a disk that fails | an error | the process ends (`SIGBUS`) |
///
/// So read what fits into memory, and map what does not, or what several processes of a machine use.
///
/// # Examples
///
/// ```
/// use pinfeed::arrays::{self, FileBytes};
/// use pinfeed::Device;
///
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("x.npy");
/// # let mut file = b"\x93NUMPY\x01\x00\x76\x00{'descr': '<i4', 'fortran_order': False, 'shape': (3,)}".to_vec();
/// # file.resize(128, b' ');
/// # file.extend([7i32, 8, 9].map(i32::to_le_bytes).as_flattened());
/// # std::fs::write(&path, file)?;
/// // Safety: nothing writes the file while the program runs.
/// let file = unsafe { FileBytes::map(&path) }?;
/// let file = file.register(&Device::cpu())?; // page-locked: a device gathers rows of 16 KiB and more from it
/// let x = arrays::npy(file)?.tensor::<i32>()?;
/// assert_eq!((x.as_slice(), x.is_pinned()), (&[7, 8, 9][..], true));
///
/// let error = FileBytes::read("/nowhere/x.npy").unwrap_err();
/// assert!(error.to_string().contains("/nowhere/x.npy"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct FileBytes {
    name: Arc<Path>,
    bytes: Tensor<u8>,
}

impl FileBytes {
    /// Reads a file into memory. It is not looked at again.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if it cannot be read; [`Error::DataSet`] if it is no regular file, if its length changes meanwhile, or if it has more
    /// bytes than the process may use memory.
    pub fn read(path: impl AsRef<Path>) -> Result<FileBytes> {
        let path = path.as_ref();
        let (file, length) = open(path)?;
        let mut bytes = Aligned::with_room(length, 0).map_err(|no_room| {
            let reason = format!("reading it takes {no_room}: map it (`FileBytes::map`)");
            refused(path, reason)
        })?;
        // One more than there should be, which says whether it grew.
        let mut content = file.take(length.saturating_add(1));
        let read = content
            .read_to_end(&mut bytes.bytes)
            .map_err(failed(path))?;
        if read as u64 != length {
            let reason = format!(
                "its length changed while it was read (it had {length} bytes): have it written elsewhere, and renamed when it is complete"
            );
            return Err(refused(path, reason));
        }
        FileBytes::new(path, bytes)
    }

    /// Maps a file into memory, to be read only: nothing is read until it is used, and the system's page cache is all the memory that it
    /// takes.
    ///
    /// The mapping is a shared one, which CUDA page-locks ([`register`](FileBytes::register)). Closing, renaming and deleting the file do
    /// not disturb it.
    ///
    /// # Safety
    ///
    /// Nothing may write the file or make it shorter, in this process or another, while the bytes or a tensor over them live. Numbers that
    /// change would be read as others, at best; and a page that is gone ends the process by `SIGBUS`, which cannot be an error. Map files
    /// that are complete; write new ones beside them, and rename them.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if it cannot be opened or mapped (Linux: on a file system without `mmap`, as some FUSE ones are);
    /// [`Error::DataSet`] if it is no regular file.
    pub unsafe fn map(path: impl AsRef<Path>) -> Result<FileBytes> {
        let path = path.as_ref();
        let (file, _) = open(path)?;
        // SAFETY: the caller's contract: the file does not change while the mapping lives (*memory of another owner is never written*).
        let mapped = unsafe { memmap2::Mmap::map(&file) }.map_err(failed(path))?;
        FileBytes::new(path, mapped)
    }

    /// Takes bytes that the program has, such as an object of a store or a mapping of its own. `name` is what errors call them.
    ///
    /// They must not change while they are used.
    ///
    /// # Errors
    ///
    /// [`Error::OwnedBytes`] if the owner, which is asked twice, has fewer of them the second time.
    ///
    /// # Examples
    ///
    /// ```
    /// use pinfeed::arrays::{self, FileBytes};
    ///
    /// let labels = vec![0, 0, 8, 1, 0, 0, 0, 3, 7, 2, 1]; // had from a server: three labels of MNIST's
    /// let labels = FileBytes::new("https://example.com/labels", labels)?;
    /// assert_eq!(arrays::idx(labels)?.tensor::<u8>()?.as_slice(), [7, 2, 1]);
    ///
    /// let error = arrays::idx(FileBytes::new("https://example.com/page", b"<!DOCTYPE html>".to_vec())?).unwrap_err();
    /// assert!(error.to_string().starts_with("https://example.com/page: it is not an IDX file"));
    /// # Ok::<(), pinfeed::Error>(())
    /// ```
    pub fn new<O>(name: impl Into<PathBuf>, owner: O) -> Result<FileBytes>
    where
        O: AsRef<[u8]> + Send + Sync + 'static,
    {
        let owner = Arc::new(owner);
        let length = (*owner).as_ref().len();
        Ok(FileBytes {
            name: Arc::from(name.into()),
            bytes: Tensor::from_owner_at(Shared(owner), 0, &[length])?,
        })
    }

    /// Page-locks all of the bytes, as [`Tensor::register`] does: tensors over them are registered, and the device gathers their rows of
    /// 16 KiB and more. A mapped file is read by this, and stays in memory.
    ///
    /// Register the file if it has several arrays, for they share pages; a tensor that has its file for itself can be registered as well.
    ///
    /// # Errors
    ///
    /// [`Error::Shared`] if there is a clone, or a tensor over the bytes; [`Error::Device`] if the system refuses to lock that much.
    pub fn register(self, device: &Device) -> Result<FileBytes> {
        let FileBytes { name, bytes } = self;
        let bytes = bytes.register(device)?;
        Ok(FileBytes { name, bytes })
    }

    /// The file's path, or the name that the bytes were given.
    pub fn name(&self) -> &Path {
        &self.name
    }

    /// The number of bytes.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Whether [`register`](FileBytes::register) page-locked them.
    pub fn is_registered(&self) -> bool {
        self.bytes.is_pinned()
    }

    pub(super) fn as_slice(&self) -> &[u8] {
        self.bytes.as_slice()
    }

    /// The elements from an offset on, where they lie. Of registered bytes the tensor is registered, too, and shares their storage.
    /// Otherwise it has one of its own, so that it can be registered by itself.
    pub(super) fn tensor<T: Element>(&self, offset: usize, shape: &[usize]) -> Result<Tensor<T>> {
        match self.is_registered() {
            true => self.bytes.view_as(offset, shape),
            false => Tensor::from_owner_at(self.clone(), offset, shape),
        }
    }

    /// An error that names the file.
    pub(super) fn refused(&self, reason: impl Into<String>) -> Error {
        refused(&self.name, reason)
    }
}

impl Clone for FileBytes {
    fn clone(&self) -> FileBytes {
        FileBytes {
            name: Arc::clone(&self.name),
            bytes: self.bytes.view(),
        }
    }
}

impl AsRef<[u8]> for FileBytes {
    fn as_ref(&self) -> &[u8] {
        self.bytes.as_slice()
    }
}

impl fmt::Debug for FileBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileBytes")
            .field("name", &self.name)
            .field("bytes", &self.len())
            .field("is_registered", &self.is_registered())
            .finish()
    }
}

/// A file to read arrays from: a path, whose file is read into memory, or [`FileBytes`]. The trait is sealed.
pub trait IntoFileBytes: sealed::Sealed {
    /// Reads the file, if it is a path.
    #[doc(hidden)]
    fn into_file_bytes(self) -> Result<FileBytes>;
}

mod sealed {
    pub trait Sealed {}
}

impl sealed::Sealed for FileBytes {}
impl<P: AsRef<Path>> sealed::Sealed for P {}

impl IntoFileBytes for FileBytes {
    fn into_file_bytes(self) -> Result<FileBytes> {
        Ok(self)
    }
}

impl<P: AsRef<Path>> IntoFileBytes for P {
    fn into_file_bytes(self) -> Result<FileBytes> {
        FileBytes::read(self)
    }
}

fn open(path: &Path) -> Result<(File, u64)> {
    // A FIFO is asked before it is opened, which would wait for its writer.
    let is_file = std::fs::metadata(path).map_err(failed(path))?.is_file();
    if !is_file {
        return Err(refused(path, "it is not a regular file"));
    }
    let file = File::open(path).map_err(failed(path))?;
    let length = file.metadata().map_err(failed(path))?.len();
    Ok((file, length))
}

fn failed(path: &Path) -> impl Fn(std::io::Error) -> Error {
    move |source| Error::Io {
        path: path.to_owned(),
        source,
    }
}

fn refused(path: &Path, reason: impl Into<String>) -> Error {
    Error::DataSet {
        path: path.to_owned(),
        reason: reason.into(),
    }
}

/// An owner of bytes that was asked for their number.
struct Shared<O>(Arc<O>);

impl<O: AsRef<[u8]>> AsRef<[u8]> for Shared<O> {
    fn as_ref(&self) -> &[u8] {
        (*self.0).as_ref()
    }
}

/// Bytes that begin where any number may.
pub(super) struct Aligned {
    pub(super) bytes: Vec<u8>,
    begin: usize,
}

impl Aligned {
    /// Makes room for so many bytes, of which the one at `place` is to be aligned. They are to be added to `bytes`.
    pub(super) fn with_room(length: u64, place: usize) -> Result<Aligned, room::NoRoom> {
        let length = length.saturating_add(2 * ALIGNMENT as u64);
        let mut bytes: Vec<u8> = room::room_for(length)?;
        prefer_huge_pages(bytes.as_mut_ptr(), bytes.capacity());
        let past = (bytes.as_ptr().addr() + place % ALIGNMENT) % ALIGNMENT;
        let begin = (ALIGNMENT - past) % ALIGNMENT;
        bytes.resize(begin, 0);
        Ok(Aligned { bytes, begin })
    }

    pub(super) fn added_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.begin..]
    }
}

impl AsRef<[u8]> for Aligned {
    fn as_ref(&self) -> &[u8] {
        &self.bytes[self.begin..]
    }
}
