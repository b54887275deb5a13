//! Files of a folder.

use std::fmt;
use std::fs::{self, File, Metadata};
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use super::error::{StoreError, StoreErrorKind};
use super::{Object, Store};
use crate::error::{BoxError, Error};

/// The files of a folder and of the folders in it, as a [`Store`].
///
/// Keys are paths relative to the folder, with `/` on every system. The version of a file is its size and the time of its last change, which
/// a reader compares before and after it reads: a file that is written meanwhile is an error, and not a mixture of two contents. (A file
/// system that keeps whole seconds does not show a second change within one.)
///
/// Each read opens its file, and keeps nothing open. A link leads to what it names; a link to a folder around itself is an error. What is
/// neither file nor folder (a socket, a device) is left out.
///
/// # Examples
///
/// ```
/// use pinfeed::store::{LocalFiles, Store};
///
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("a.bin");
/// # std::fs::write(&path, [1, 2, 3])?;
/// let files = LocalFiles::open(folder.path())?;
/// let object = files.object("a.bin")?;
/// assert_eq!(files.read(&object, 1..3)?, [2, 3]);
///
/// std::fs::write(&path, [1])?;
/// let error = files.read(&object, 0..1).unwrap_err();
/// assert!(error.to_string().contains("a.bin: it had 3 bytes and has 1"), "{error}");
/// # Ok::<(), pinfeed::BoxError>(())
/// ```
#[derive(Clone)]
pub struct LocalFiles {
    root: PathBuf,
}

impl LocalFiles {
    /// Opens a folder. A relative path is one of the folder that the program is in now.
    ///
    /// # Errors
    ///
    /// If there is none of that path, or it is a file.
    pub fn open(root: impl Into<PathBuf>) -> Result<LocalFiles, StoreError> {
        let given: PathBuf = root.into();
        let absolute = std::path::absolute(&given);
        let root = absolute.map_err(|error| StoreError::of_file(&given, &error))?;
        let metadata = fs::metadata(&root);
        let metadata = metadata.map_err(|error| StoreError::of_file(&root, &error))?;
        if !metadata.is_dir() {
            let what =
                "it is a file, and no folder: open its folder, and ask for the object by its name";
            return Err(StoreError::new(
                root.display().to_string(),
                StoreErrorKind::Other,
                what,
            ));
        }
        Ok(LocalFiles { root })
    }

    /// Returns the folder.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The path of a key.
    fn path(&self, key: &str) -> Result<PathBuf, BoxError> {
        let is_name = |name: &str| {
            !name.is_empty()
                && name != "."
                && name != ".."
                && !(cfg!(windows) && name.contains(['\\', ':']))
        };
        if !key.split('/').all(is_name) {
            return Err(format!(
                "{key:?} is the key of no file in {}: names are separated by single slashes, and none is `.` or `..`",
                self.root.display()
            )
            .into());
        }
        Ok(self.root.join(key))
    }

    /// Adds what is in a folder. `above` are the folders around it, without links.
    fn walk(
        &self,
        folder: &Path,
        above: &mut Vec<PathBuf>,
        objects: &mut Vec<Object>,
    ) -> Result<(), BoxError> {
        let failed = |source| of_file(folder, source);
        let real = fs::canonicalize(folder).map_err(failed)?;
        if above.contains(&real) {
            return Err(format!(
                "{} is a link to {}, which is around it: take it out, or open a folder inside",
                folder.display(),
                real.display()
            )
            .into());
        }
        above.push(real);
        for entry in fs::read_dir(folder).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            let metadata = fs::metadata(&path).map_err(|source| of_file(&path, source))?;
            if metadata.is_dir() {
                self.walk(&path, above, objects)?;
            } else if metadata.is_file() {
                let key = self.key(&path)?;
                objects.push(object(key, &path, &metadata)?);
            }
        }
        above.pop();
        Ok(())
    }

    fn key(&self, path: &Path) -> Result<String, BoxError> {
        let names = path.strip_prefix(&self.root)?.iter();
        let names: Option<Vec<&str>> = names.map(|name| name.to_str()).collect();
        let names = names
            .ok_or_else(|| format!("the name of {path:?} is not UTF-8, so it cannot be a key"))?;
        Ok(names.join("/"))
    }
}

impl Store for LocalFiles {
    fn list(&self, prefix: &str) -> Result<Vec<Object>, BoxError> {
        let prefix = prefix.strip_suffix('/').unwrap_or(prefix);
        let folder = match prefix {
            "" => self.root.clone(),
            _ => self.path(prefix)?,
        };
        let mut objects = Vec::new();
        self.walk(&folder, &mut Vec::new(), &mut objects)?;
        objects.sort_unstable_by(|a, b| a.key.cmp(&b.key));
        Ok(objects)
    }

    fn object(&self, key: &str) -> Result<Object, BoxError> {
        let path = self.path(key)?;
        let metadata = fs::metadata(&path).map_err(|source| of_file(&path, source))?;
        if !metadata.is_file() {
            return Err(format!("{} is no file", path.display()).into());
        }
        object(key.to_owned(), &path, &metadata)
    }

    fn read(&self, object: &Object, range: Range<u64>) -> Result<Vec<u8>, BoxError> {
        let path = self.path(&object.key)?;
        let length = super::length_of(object, &range, || path.display().to_string())?;
        let failed = |source| of_file(&path, source);
        let file = File::open(&path).map_err(failed)?;
        let mut bytes = vec![0; length];
        let compare = || compare(object, &path, &file.metadata().map_err(failed)?);
        compare()?;
        read_exact_at(&file, &mut bytes, range.start).map_err(failed)?;
        compare()?;
        Ok(bytes)
    }

    fn locate(&self, key: &str) -> String {
        self.root.join(key).display().to_string()
    }
}

impl fmt::Debug for LocalFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LocalFiles({:?})", self.root)
    }
}

fn of_file(path: &Path, source: io::Error) -> BoxError {
    let path = path.to_owned();
    Error::Io { path, source }.into()
}

fn object(key: String, path: &Path, metadata: &Metadata) -> Result<Object, BoxError> {
    Ok(Object {
        key,
        bytes: metadata.len(),
        version: Some(version(metadata).map_err(|source| of_file(path, source))?),
    })
}

/// Size and time of the last change, to the nanosecond.
fn version(metadata: &Metadata) -> io::Result<String> {
    let changed = metadata.modified()?;
    let (sign, time) = match changed.duration_since(UNIX_EPOCH) {
        Ok(time) => ("", time),
        Err(before) => ("-", before.duration()),
    };
    Ok(format!(
        "{}-{sign}{}.{:09}",
        metadata.len(),
        time.as_secs(),
        time.subsec_nanos()
    ))
}

/// Whether the file is the one that was listed.
fn compare(object: &Object, path: &Path, metadata: &Metadata) -> Result<(), BoxError> {
    let changed = |what: String| -> BoxError {
        let what = format!(
            "{what}: the file was changed after it was listed, and what was read of it before does not belong to what would be read now"
        );
        StoreError::new(path.display().to_string(), StoreErrorKind::Changed, what).into()
    };
    if metadata.len() != object.bytes {
        let (had, has) = (object.bytes, metadata.len());
        return Err(changed(format!("it had {had} bytes and has {has}")));
    }
    let Some(listed) = &object.version else {
        return Ok(());
    };
    let now = version(metadata).map_err(|source| of_file(path, source))?;
    if now != *listed {
        return Err(changed(format!(
            "size and time were {listed}, and are {now}"
        )));
    }
    Ok(())
}

#[cfg(unix)]
pub(super) fn read_exact_at(file: &File, bytes: &mut [u8], at: u64) -> io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, bytes, at)
}

/// (Windows moves the handle's place too; the handle is the reader's own.)
#[cfg(windows)]
pub(super) fn read_exact_at(file: &File, mut bytes: &mut [u8], mut at: u64) -> io::Result<()> {
    while !bytes.is_empty() {
        match std::os::windows::fs::FileExt::seek_read(file, bytes, at) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(read) => {
                bytes = &mut bytes[read..];
                at += read as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(not(any(unix, windows)))]
pub(super) fn read_exact_at(mut file: &File, bytes: &mut [u8], at: u64) -> io::Result<()> {
    use std::io::{Read, Seek};
    file.seek(io::SeekFrom::Start(at))?;
    file.read_exact(bytes)
}
