//! A folder of this machine that keeps what was read of a store: [`DiskCache`]. `README.md` beside this file has the protocol.

mod files;
mod index;
mod keeping;
mod ledger;
mod page;
mod reading;
mod shared;
#[cfg(test)]
mod simulation;
mod sum;

#[cfg(feature = "object-store")]
pub(super) use self::sum::sum;

use std::fmt;
use std::io::{self, ErrorKind};
use std::ops::Range;
use std::path::{Path, PathBuf};

use self::files::Disk;
use self::page::{HEADER, MOST_BYTES};
use self::reading::Cache;
use super::{Object, Store, StoreError, StoreErrorKind};
use crate::error::BoxError;
use crate::sync::plain::AtomicU64;
use crate::sync::{Arc, Ordering};

/// A [`Store`] that keeps what it reads of another in a folder, within a number of bytes: on a disk of this machine, for all of its
/// processes.
///
/// Objects are kept in *pages* of 1 MiB. What is there is read from the folder; what is missing is requested of the store, each run of
/// pages by one request, and kept. Once the folder holds all that an epoch reads, the next one makes no request. [`list`](Store::list) and
/// [`object`](Store::object) always ask the store.
///
/// It goes between a store and whatever reads it: shards, arrays, pictures, or a data set of the program's own.
///
/// # Which pages go
///
/// Where there is not room for all, the page that is used last goes first, or is not kept at all. Under
/// [`Blocked`](crate::dataset::Blocked) with a [`BlockSampler`](crate::sampler::BlockSampler) (tar shards, row groups), the order of the
/// next epoch says when that is, and ranks of one machine share what they know. For any other order, what is there stays. Either way, of
/// data that is read once in an epoch, the part is a hit that there is room for, which is near the optimum. (To evict what was used least
/// recently would leave a tenth to a half of that.) Pages of objects that this process has neither listed nor read are the first to go: so
/// jobs with different data should have a folder each. (Caches of one process that have one folder know each other's objects.)
///
/// # Several processes
///
/// Any number of processes of one user may use a folder at a time: the ranks of a machine, jobs one after the other, a job that is resumed. `max_bytes`
/// is for all of them together. If two want a page at the same time, one requests it, and the other waits; if the first fails or dies, the
/// other requests it by itself. A process may be killed at any moment: pages appear when they are complete, and what a dead process was
/// fetching is removed when a cache is opened there, at the latest. A forked child uses its parent's cache as another process does.
///
/// Files are locked (`flock`), so the folder must be on a disk of this machine: on NFS, locks may take long or be lost. Only systems of the
/// kind of Unix have such locks.
///
/// # When the folder fails
///
/// A disk that is full, a folder that has become read-only or has vanished, a page that was torn by a loss of power (each 64 KiB have a
/// checksum, XXH64): no read fails, and none returns other bytes. What is damaged is removed, and what the disk does not give now stays.
/// What cannot be kept is read from the store. The first failure is a
/// warning in the log, and [`stats`](DiskCache::stats) counts all.
///
/// # Versions
///
/// A page belongs to a version of an object ([`Object::version`], its ETag). If the object is written again, and listed again, it has other
/// pages, and the old ones are the first to go. *An object without a version is never kept*: each read goes to the store, with a warning
/// for the first. Neither is one whose version may be that of two contents, as a weak ETag is (`W/"…"`; RFC 9110, 8.8.1); of a web server
/// without ETags, that is one that was changed less than a minute before it was listed.
///
/// Objects of two servers or accounts are never mistaken, if the stores say which they are ([`Store::locate`], [`Store::origin`]).
///
/// # Memory
///
/// What is read, and, while it is fetched, the pages that it lies in. With a full folder, some 100 bytes a page in each process: 100 MB
/// for 1 TiB. While pages are fetched, each has a file open, 256 at most in a process.
///
/// # Examples
///
/// The second store stands for another process, or for the next epoch:
///
/// ```
/// use pinfeed::store::{DiskCache, LocalFiles, Store};
///
/// # let folders = tempfile::tempdir()?;
/// # let (shards, folder) = (folders.path().join("shards"), folders.path().join("cache"));
/// # std::fs::create_dir(&shards)?;
/// # std::fs::write(shards.join("a.tar"), vec![1; 3 << 20])?;
/// let bucket = || LocalFiles::open(&shards); // or RemoteStore::open("s3://bucket/train")
/// # if cfg!(unix) {
/// let cache = DiskCache::open(bucket()?, &folder, 50 << 30)?; // 50 GiB
/// let object = cache.object("a.tar")?;
/// cache.read(&object, 1 << 20..3 << 20)?;
/// assert_eq!((cache.stats().hits, cache.stats().requests), (0, 1));
///
/// let other = DiskCache::open(bucket()?, &folder, 50 << 30)?;
/// other.read(&object, 1 << 20..2 << 20)?;
/// assert_eq!((other.stats().hits, other.stats().requests), (1, 0));
/// # }
/// # Ok::<(), pinfeed::BoxError>(())
/// ```
///
/// A folder that has something else in it is refused, because the cache removes files:
///
/// ```
/// # if !cfg!(unix) { return Ok::<(), pinfeed::BoxError>(()); }
/// use pinfeed::store::{DiskCache, LocalFiles};
///
/// # let home = tempfile::tempdir()?;
/// # let home = home.path();
/// std::fs::write(home.join("thesis.tex"), "..")?;
/// let error = DiskCache::open(LocalFiles::open(home)?, home, 50 << 30).unwrap_err();
/// assert!(error.to_string().contains("name a folder of the cache's own"), "{error}");
/// # Ok::<(), pinfeed::BoxError>(())
/// ```
pub struct DiskCache {
    cache: Cache<Disk>,
}

/// What a [`DiskCache`] of this process has done: [`DiskCache::stats`].
///
/// # Examples
///
/// ```
/// use pinfeed::store::DiskCache;
///
/// fn report(cache: &DiskCache) {
///     let stats = cache.stats();
///     let pages = stats.hits + stats.misses;
///     println!("{} of {pages} pages were there, {} bytes were fetched, {} failures", stats.hits, stats.fetched_bytes, stats.failures);
/// }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct DiskCacheStats {
    /// How many times a page was there, or came by another's request while this process waited for it.
    pub hits: u64,
    /// How many times one was not.
    pub misses: u64,
    /// How many bytes were read from the folder.
    pub hit_bytes: u64,
    /// How many requests were made, each for a run of pages, and not counting objects without a version.
    pub requests: u64,
    /// How many bytes these brought. At the edges of what is read, pages are fetched whole.
    pub fetched_bytes: u64,
    /// How many pages were kept, of those that were fetched. The others had no room, or the folder failed.
    pub kept: u64,
    /// How many pages this process has evicted.
    pub evicted: u64,
    /// How often it waited for a page that another process, or another thread, was fetching.
    pub waits: u64,
    /// How many pages were damaged, and removed. More than a few mean that the disk fails.
    pub damaged: u64,
    /// How often the folder could not be read or written: a full disk, most often.
    pub failures: u64,
    /// How many reads were of objects without a version, or with one that is not certain, which are not kept.
    pub unversioned: u64,
}

impl DiskCache {
    /// Opens a folder as a cache of a store, with at most so many bytes in it (of pages and their headers, all processes together). The
    /// folder is made if there is none.
    ///
    /// What dead processes have left is removed, and pages beyond `max_bytes` are. The folder is listed, which takes about a second for a
    /// million pages. Others go on meanwhile, unless the machine has begun anew since, or that cannot be told (not on Linux).
    ///
    /// What is read may be private, so a folder that is made is for its user alone (0700), and all files are (0600).
    ///
    /// # Errors
    ///
    /// If the folder cannot be made, listed, written or locked, has files and is no cache, or is one of another version; if `max_bytes` has
    /// no room for a page; or if the store does not say what it is ([`Store::locate`] of `""` is empty), so that its objects could be
    /// mistaken for another's.
    pub fn open(
        store: impl Store,
        folder: impl Into<PathBuf>,
        max_bytes: u64,
    ) -> Result<DiskCache, StoreError> {
        DiskCache::of_pages(Arc::new(store), folder.into(), max_bytes, MOST_BYTES)
    }

    fn of_pages(
        store: Arc<dyn Store>,
        folder: PathBuf,
        max_bytes: u64,
        page_bytes: u64,
    ) -> Result<DiskCache, StoreError> {
        let refused = |what: String| {
            StoreError::new(folder.display().to_string(), StoreErrorKind::Other, what)
        };
        if store.locate("").is_empty() {
            let what = "the store that it is to be a cache of does not say what it is, so its objects could be mistaken for another's: implement \
                        `Store::locate`, with a name that no other store has (\"ours://bucket/key\")";
            return Err(refused(what.to_owned()));
        }
        let page = HEADER as u64 + page_bytes;
        if max_bytes < page {
            return Err(refused(format!(
                "max_bytes is {max_bytes}, and one page takes {page}: give it more"
            )));
        }
        let disk = std::path::absolute(&folder).map(|folder| Disk { folder });
        let made = disk.and_then(|disk| disk.make().map(|()| disk));
        let disk = made.map_err(|error| match error.kind() {
            ErrorKind::AlreadyExists => of_folder(&folder, &ErrorKind::NotADirectory.into()),
            _ => of_folder(&folder, &error),
        })?;
        let cache = Cache::new(disk, store, page_bytes, max_bytes);
        cache.enter().map_err(|error| of_folder(&folder, &error))?;
        Ok(DiskCache { cache })
    }

    /// Returns the folder.
    pub fn folder(&self) -> &Path {
        &self.cache.files.folder
    }

    /// Returns what this cache has done so far. (Those of other processes count for themselves.)
    pub fn stats(&self) -> DiskCacheStats {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let counters = &self.cache.counters;
        DiskCacheStats {
            hits: count(&counters.hits),
            misses: count(&counters.misses),
            hit_bytes: count(&counters.hit_bytes),
            requests: count(&counters.requests),
            fetched_bytes: count(&counters.fetched_bytes),
            kept: count(&counters.kept),
            evicted: count(&counters.evicted),
            waits: count(&counters.waits),
            damaged: count(&counters.damaged),
            failures: count(&counters.failures),
            unversioned: count(&counters.unversioned),
        }
    }
}

/// Why a folder cannot be a cache, and what to do.
fn of_folder(folder: &Path, error: &io::Error) -> StoreError {
    let (kind, what) = match error.kind() {
        ErrorKind::AlreadyExists => (
            StoreErrorKind::Other,
            format!(
                "it has {error} in it and is no cache, which removes files: name a folder of the cache's own"
            ),
        ),
        ErrorKind::InvalidData => (
            StoreErrorKind::Other,
            format!(
                "it is the cache of another version of pinfeed ({error}): remove it, or name another folder"
            ),
        ),
        ErrorKind::Unsupported => (
            StoreErrorKind::Other,
            format!(
                "its files cannot be locked ({error}): name a folder on a disk of this machine; a cache needs the locks of Unix"
            ),
        ),
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => (
            StoreErrorKind::Denied,
            format!(
                "a cache cannot be written there ({error}): name a folder that this user may write"
            ),
        ),
        _ => (
            StoreErrorKind::Other,
            format!(
                "a cache cannot be made there ({error}): name another folder, or make room on its disk"
            ),
        ),
    };
    StoreError::new(folder.display().to_string(), kind, what)
}

impl Store for DiskCache {
    fn list(&self, prefix: &str) -> Result<Vec<Object>, BoxError> {
        let objects = self.cache.inner.list(prefix)?;
        self.cache.know(&objects);
        Ok(objects)
    }

    fn object(&self, key: &str) -> Result<Object, BoxError> {
        let object = self.cache.inner.object(key)?;
        self.cache.know(std::slice::from_ref(&object));
        Ok(object)
    }

    fn read(&self, object: &Object, range: Range<u64>) -> Result<Vec<u8>, BoxError> {
        self.cache.read(object, range)
    }

    /// As the store behind it wants.
    fn in_flight(&self, bytes: u64) -> usize {
        self.cache.inner.in_flight(bytes)
    }

    fn locate(&self, key: &str) -> String {
        self.cache.inner.locate(key)
    }

    fn origin(&self) -> String {
        self.cache.inner.origin()
    }
}

impl fmt::Debug for DiskCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DiskCache")
            .field("store", &self.cache.inner)
            .field("folder", &self.cache.files.folder)
            .field("max_bytes", &self.cache.max_bytes)
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}
