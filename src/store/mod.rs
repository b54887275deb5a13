//! Where objects are: files of a folder, or objects of a bucket, listed once and read in ranges.
//!
//! A data set that reads shards, arrays or pictures takes a [`Store`] instead of paths. [`open`] makes one from a URL or a path.
//!
//! | URL | what it names | credentials |
//! | --- | --- | --- |
//! | `/data/train`, `data/train`, `C:\data` | a folder: [`LocalFiles`] | |
//! | `file:///data/train` | the same, with `%20` for a space | |
//! | `s3://bucket/train` | a bucket of S3, or a folder in it | `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`, `AWS_SESSION_TOKEN`, `AWS_REGION`, or those of the instance, task or pod; `AWS_ENDPOINT_URL` for another server (with `http://`: `AWS_ALLOW_HTTP=true`); `AWS_SKIP_SIGNATURE=true` for public buckets. Profiles of `~/.aws` are not read |
//! | `gs://bucket/train` | of Google Cloud Storage | `GOOGLE_APPLICATION_CREDENTIALS`, those of `gcloud auth application-default login`, or of the machine |
//! | `az://container/train` | of Azure | `AZURE_STORAGE_ACCOUNT_NAME`, and `AZURE_STORAGE_ACCOUNT_KEY`, `AZURE_STORAGE_SAS_TOKEN` or those of an identity |
//! | `https://host/train`, `http://` | a folder of a web server. It lists with WebDAV only; any other takes [`Store::object`] by key | none |
//!
//! A [`DiskCache`] keeps what is read of any of them on a disk of this machine.
//!
//! All but folders take the feature `object-store`, and are a `RemoteStore`, which says how requests are limited and made again. Credentials
//! are found as the crate [object_store](https://docs.rs/object_store) finds them, and are in no error, log or `Debug`.

mod cache;
mod coalesce;
mod error;
mod local;
mod next_use;
#[cfg(feature = "object-store")]
mod remote;
mod url;

pub use cache::{DiskCache, DiskCacheStats};
pub use error::{StoreError, StoreErrorKind};
pub use local::LocalFiles;
pub(crate) use next_use::{AskNextUse, NextUse, Rest, with_next_use};
#[cfg(feature = "object-store")]
pub use remote::{RemoteStats, RemoteStore};

use std::fmt;
use std::ops::Range;

use self::url::Place;
use crate::error::BoxError;
use crate::sync::Arc;

/// An object of a [`Store`], as it was listed.
///
/// # Examples
///
/// ```
/// use pinfeed::store::{LocalFiles, Store};
///
/// # let folder = tempfile::tempdir()?;
/// # std::fs::create_dir(folder.path().join("train"))?;
/// # std::fs::write(folder.path().join("train/a.bin"), [1, 2, 3])?;
/// let store = LocalFiles::open(folder.path())?;
/// let objects = store.list("")?;
/// assert_eq!((&*objects[0].key, objects[0].bytes), ("train/a.bin", 3));
/// # Ok::<(), pinfeed::BoxError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Object {
    /// Its name in the store: `train/a.tar`, with `/` on every system.
    pub key: String,
    /// Its length.
    pub bytes: u64,
    /// What tells this content from that of another time: a server's ETag, or size and time of change of a file. `None`: the store
    /// does not say, and only the length is compared.
    pub version: Option<String>,
}

/// Where objects are listed and read: a folder, a bucket, or a store of the program's own.
///
/// All calls block. Any number of threads may call at once.
///
/// *One listing a job*: [`list`](Store::list) is one call for each 1,000 objects of a bucket, and costs money there. A data set calls it
/// once, when it is made, keeps the objects, and gives them to [`read`](Store::read).
///
/// # Examples
///
/// A store of the program's own:
///
/// ```
/// use std::collections::BTreeMap;
/// use std::ops::Range;
///
/// use pinfeed::BoxError;
/// use pinfeed::store::{Object, Store};
///
/// struct InMemory(BTreeMap<String, Vec<u8>>);
///
/// impl Store for InMemory {
///     fn list(&self, prefix: &str) -> Result<Vec<Object>, BoxError> {
///         let keys = self.0.keys().filter(|key| key.starts_with(prefix));
///         keys.map(|key| self.object(key)).collect()
///     }
///
///     fn object(&self, key: &str) -> Result<Object, BoxError> {
///         let bytes = self.0.get(key).ok_or_else(|| format!("there is no {key}"))?;
///         Ok(Object { key: key.to_owned(), bytes: bytes.len() as u64, version: None })
///     }
///
///     fn read(&self, object: &Object, range: Range<u64>) -> Result<Vec<u8>, BoxError> {
///         let part = self.0[&object.key].get(range.start as usize..range.end as usize);
///         Ok(part.ok_or_else(|| format!("{} has no bytes {range:?}", object.key))?.to_vec())
///     }
/// }
///
/// let store = InMemory([("a".to_owned(), vec![1, 2, 3])].into());
/// let objects = store.list("")?;
/// assert_eq!(store.read(&objects[0], 1..3)?, [2, 3]);
/// # Ok::<(), BoxError>(())
/// ```
pub trait Store: Send + Sync + 'static {
    /// Lists all objects below a folder, and below its folders, sorted by key (as bytes). `""` is all of the store. `train` and `train/`
    /// are the same, and have no `train2/a.tar`.
    ///
    /// # Errors
    ///
    /// If the folder cannot be listed, or something in it has no key. An empty folder is no error, and in a bucket a folder that is not
    /// there is an empty one.
    fn list(&self, prefix: &str) -> Result<Vec<Object>, BoxError>;

    /// Asks for one object, whose key is known: for stores that cannot list, and where it is the only one.
    ///
    /// # Errors
    ///
    /// If there is none of that key, or it must not be read.
    fn object(&self, key: &str) -> Result<Object, BoxError>;

    /// Reads a range of an object: exactly these bytes, of the version that was listed.
    ///
    /// # Errors
    ///
    /// If the object is another one meanwhile, is shorter than it was, or the range ends beyond it. What may go away by itself is
    /// [`Temporary`](crate::error::Temporary), or one of the system's errors that come and go.
    fn read(&self, object: &Object, range: Range<u64>) -> Result<Vec<u8>, BoxError>;

    /// Reads several ranges of an object, in any order: what lies near each other comes by one request. Ranges with less than 1 MiB between
    /// them are read together, in requests of 16 MiB at most (a longer range is one request), one after the other. Beside what it returns, it
    /// holds one of them.
    ///
    /// # Errors
    ///
    /// Those of [`read`](Store::read).
    fn read_many(&self, object: &Object, ranges: &[Range<u64>]) -> Result<Vec<Vec<u8>>, BoxError> {
        for range in ranges {
            length_of(object, range, || self.locate(&object.key))?; // before any is read
        }
        let mut parts = vec![Vec::new(); ranges.len()];
        for run in coalesce::runs(ranges) {
            let bytes = self.read(object, run.range.clone())?;
            match run.members[..] {
                [only] => parts[only] = bytes,
                _ => {
                    for at in run.members {
                        let (from, to) = (ranges[at].start, ranges[at].end);
                        let part =
                            (from - run.range.start) as usize..(to - run.range.start) as usize;
                        let short =
                            || format!("{} has given too few bytes", self.locate(&object.key));
                        parts[at] = bytes.get(part).ok_or_else(short)?.to_vec();
                    }
                }
            }
        }
        Ok(parts)
    }

    /// How many requests of about so many bytes should run at a time, if the program does not say. Default: 32, which keeps a disk busy. A
    /// store that takes long to begin an answer wants more of small ones.
    fn in_flight(&self, bytes: u64) -> usize {
        let _ = bytes;
        32
    }

    /// Says where an object is, for messages: `s3://bucket/train/a.tar`. By default, its key.
    fn locate(&self, key: &str) -> String {
        key.to_owned()
    }

    /// Says of which server and account the objects are, where [`locate`](Store::locate) does not: two objects are the same if both are, and
    /// the version. It is for what keeps objects ([`DiskCache`]), not for messages: it may be a hash. By default it is empty. A store that
    /// wraps another one returns the other's.
    fn origin(&self) -> String {
        String::new()
    }
}

impl<S: Store + ?Sized> Store for Arc<S> {
    fn list(&self, prefix: &str) -> Result<Vec<Object>, BoxError> {
        (**self).list(prefix)
    }

    fn object(&self, key: &str) -> Result<Object, BoxError> {
        (**self).object(key)
    }

    fn read(&self, object: &Object, range: Range<u64>) -> Result<Vec<u8>, BoxError> {
        (**self).read(object, range)
    }

    fn read_many(&self, object: &Object, ranges: &[Range<u64>]) -> Result<Vec<Vec<u8>>, BoxError> {
        (**self).read_many(object, ranges)
    }

    fn in_flight(&self, bytes: u64) -> usize {
        (**self).in_flight(bytes)
    }

    fn locate(&self, key: &str) -> String {
        (**self).locate(key)
    }

    fn origin(&self) -> String {
        (**self).origin()
    }
}

impl fmt::Debug for dyn Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Store({:?})", self.locate(""))
    }
}

/// Opens what a URL or a path names. The [module](self) lists them.
///
/// # Errors
///
/// If there is no such folder, the URL is of an unknown kind, or this program was built without the feature that it needs. No server is asked
/// yet.
///
/// # Examples
///
/// ```
/// use pinfeed::store;
///
/// # let folder = tempfile::tempdir()?;
/// # std::fs::write(folder.path().join("a.bin"), [1, 2, 3])?;
/// # let url = folder.path().to_str().unwrap();
/// let files = store::open(url)?; // "/data/train", or "s3://bucket/train"
/// let objects = files.list("")?;
/// assert_eq!(files.read(&objects[0], 0..2)?, [1, 2]);
///
/// let error = store::open("ftp://example.org/train").unwrap_err();
/// assert!(error.to_string().contains("ftp://"), "{error}");
/// # Ok::<(), pinfeed::BoxError>(())
/// ```
pub fn open(url: &str) -> Result<Arc<dyn Store>, StoreError> {
    match Place::of(url)? {
        Place::Folder(path) => Ok(Arc::new(LocalFiles::open(path)?)),
        #[cfg(feature = "object-store")]
        Place::Remote { scheme, rest } => {
            Ok(Arc::new(RemoteStore::of_place(scheme, &rest, Vec::new())?))
        }
        #[cfg(not(feature = "object-store"))]
        Place::Remote { scheme, .. } => {
            let what = "it needs the feature `object-store` of pinfeed, which this program was built without";
            Err(StoreError::new(
                format!("{scheme}://"),
                StoreErrorKind::Other,
                what,
            ))
        }
    }
}

/// The length of a range of an object, if the object has it.
fn length_of(
    object: &Object,
    range: &Range<u64>,
    place: impl Fn() -> String,
) -> Result<usize, BoxError> {
    if range.start > range.end || range.end > object.bytes {
        let (bytes, from, to) = (object.bytes, range.start, range.end);
        let what = format!("it has {bytes} bytes, and none at {from}..{to}");
        return Err(StoreError::new(place(), StoreErrorKind::Other, what).into());
    }
    Ok(usize::try_from(range.end - range.start)?)
}
