//! A folder that keeps what was read of a store: [`DiskCache`], used by one process, by several, and by some that are killed.
#![cfg(all(unix, not(miri)))] // it locks files
#![allow(unsafe_code)] // it forks

use std::collections::BTreeMap;
use std::fs;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier, mpsc};
use std::time::Duration;
use std::{env, process, thread};

use pinfeed::error::Temporary;
use pinfeed::store::{DiskCache, LocalFiles, Object, Store, StoreErrorKind};
use pinfeed::{BoxError, DataLoader};
use tempfile::TempDir;

const MIB: u64 = 1 << 20;

/// What a page takes in the folder.
const PAGE: u64 = MIB + 4096;

/// The bytes of an object: they follow from its key, its version and their place.
fn content(key: &str, version: &str, range: Range<u64>) -> Vec<u8> {
    let name = key.bytes().chain(version.bytes());
    let seed = name.fold(17u64, |seed, byte| {
        (seed ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    });
    let word = |at: u64| {
        let z = (seed ^ at).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        (z ^ (z >> 29)).wrapping_mul(0xBF58_476D_1CE4_E5B9)
    };
    let words = range.start / 8..range.end.div_ceil(8);
    let mut bytes: Vec<u8> = words.flat_map(|at| word(at).to_le_bytes()).collect();
    bytes.drain(..(range.start % 8) as usize);
    bytes.truncate((range.end - range.start) as usize);
    bytes
}

/// A store whose objects change when it is told, and which counts what it is asked.
#[derive(Default)]
struct Bucket {
    lengths: BTreeMap<String, u64>,
    version: AtomicU64,
    has_no_versions: bool,
    reads: AtomicU64,
    bytes: AtomicU64,
    fails: AtomicBool,
    panics: AtomicBool,
    /// A read tells that it has begun, and waits for a word.
    waits: Option<(mpsc::Sender<()>, std::sync::Mutex<mpsc::Receiver<()>>)>,
}

impl Bucket {
    fn of(lengths: &[(&str, u64)]) -> Bucket {
        let lengths = lengths.iter();
        Bucket {
            lengths: lengths
                .map(|(key, bytes)| (key.to_string(), *bytes))
                .collect(),
            version: AtomicU64::new(1),
            ..Bucket::default()
        }
    }

    fn reads(&self) -> u64 {
        self.reads.load(Ordering::Relaxed)
    }
}

impl Store for Bucket {
    fn list(&self, prefix: &str) -> Result<Vec<Object>, BoxError> {
        let keys = self.lengths.keys().filter(|key| key.starts_with(prefix));
        keys.map(|key| self.object(key)).collect()
    }

    fn object(&self, key: &str) -> Result<Object, BoxError> {
        let version = self.version.load(Ordering::Relaxed).to_string();
        Ok(Object {
            key: key.to_owned(),
            bytes: *self.lengths.get(key).ok_or("there is no such key")?,
            version: (!self.has_no_versions).then_some(version),
        })
    }

    fn read(&self, object: &Object, range: Range<u64>) -> Result<Vec<u8>, BoxError> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.bytes
            .fetch_add(range.end - range.start, Ordering::Relaxed);
        if let Some((began, go_on)) = &self.waits {
            began.send(()).unwrap();
            go_on.lock().unwrap().recv().unwrap();
        }
        if self.fails.load(Ordering::Relaxed) {
            return Err(Temporary::new("the bucket is busy").into());
        }
        if self.panics.load(Ordering::Relaxed) {
            watch::provoked("the client panics");
        }
        let version = object.version.as_deref().unwrap_or("none");
        Ok(content(&object.key, version, range))
    }

    fn locate(&self, key: &str) -> String {
        format!("bucket://{key}")
    }
}

fn open(bucket: &Arc<Bucket>, folder: &Path, pages: u64) -> DiskCache {
    DiskCache::open(Arc::clone(bucket), folder, pages * PAGE).unwrap()
}

/// What the files of a folder take, and how many of them are pages, and parts.
fn used(folder: &Path) -> (u64, usize, usize) {
    let files = fs::read_dir(folder).unwrap().map(|file| file.unwrap());
    let files: Vec<_> = files
        .filter_map(|file| {
            let name = file.file_name().into_string().unwrap();
            // (It may have gone meanwhile.)
            Some((name, file.metadata().ok()?.len()))
        })
        .collect();
    let count = |end: &str| files.iter().filter(|(name, _)| name.ends_with(end)).count();
    let ours = files.iter().filter(|(name, _)| name != "pinfeed-cache");
    (
        ours.map(|(_, bytes)| bytes).sum(),
        count(".page"),
        count(".part"),
    )
}

#[test]
fn what_was_read_is_not_requested_again() {
    let folder = TempDir::new().unwrap();
    let bucket = Arc::new(Bucket::of(&[("a", 5 * MIB + 100), ("b", 10), ("empty", 0)]));
    let cache = open(&bucket, folder.path(), 20);
    let objects = cache.list("").unwrap();
    let read = |cache: &DiskCache, at: usize, range: Range<u64>| {
        let object = &objects[at];
        let bytes = cache.read(object, range.clone()).unwrap();
        assert!(
            bytes == content(&object.key, "1", range.clone()),
            "{range:?}"
        );
    };
    read(&cache, 0, MIB + 5..3 * MIB + 7);
    assert_eq!(
        (bucket.reads(), cache.stats().misses),
        (1, 3),
        "pages 1 to 3, at once"
    );
    assert_eq!(cache.stats().fetched_bytes, 3 * MIB);
    for range in [MIB..4 * MIB, 2 * MIB..2 * MIB + 1, 2 * MIB - 1..2 * MIB + 1] {
        read(&cache, 0, range);
    }
    assert_eq!(bucket.reads(), 1);
    // Two runs are missing, around what is there.
    read(&cache, 0, 0..5 * MIB + 100);
    assert_eq!(bucket.reads(), 3);
    read(&cache, 1, 3..9);
    read(&cache, 1, 0..10);
    read(&cache, 2, 0..0);
    assert_eq!(bucket.reads(), 4);
    let stats = cache.stats();
    assert_eq!((stats.misses, stats.kept, stats.requests), (7, 7, 4));
    assert_eq!((stats.evicted, stats.failures, stats.damaged), (0, 0, 0));

    // Another process, or another run.
    let other = open(&bucket, folder.path(), 20);
    read(&other, 0, 0..5 * MIB + 100);
    assert_eq!((bucket.reads(), other.stats().hits), (4, 6));
    let (bytes, pages, parts) = used(folder.path());
    assert_eq!((pages, parts), (7, 0));
    assert_eq!(bytes, 5 * MIB + 110 + 7 * 4096);

    // A range that there is not is an error of the same words as without a cache.
    let error = other.read(&objects[1], 5..11).unwrap_err().to_string();
    assert!(
        error.contains("bucket://b: it has 10 bytes, and none at 5..11"),
        "{error}"
    );
}

#[test]
fn another_version_of_an_object_is_another_object() {
    let folder = TempDir::new().unwrap();
    let bucket = Arc::new(Bucket::of(&[("a", 3 * MIB)]));
    let cache = open(&bucket, folder.path(), 4);
    let first = cache.object("a").unwrap();
    assert!(cache.read(&first, 0..3 * MIB).unwrap() == content("a", "1", 0..3 * MIB));
    bucket.version.store(2, Ordering::Relaxed);
    let second = cache.object("a").unwrap();
    assert!(cache.read(&second, 0..3 * MIB).unwrap() == content("a", "2", 0..3 * MIB));
    // The first version is what was listed as such.
    assert!(cache.read(&first, 0..10).unwrap() == content("a", "1", 0..10));
}

#[test]
fn an_object_without_a_version_is_read_each_time() {
    let folder = TempDir::new().unwrap();
    let mut bucket = Bucket::of(&[("a", 3 * MIB)]);
    bucket.has_no_versions = true;
    let bucket = Arc::new(bucket);
    let cache = open(&bucket, folder.path(), 4);
    let object = cache.object("a").unwrap();
    for _ in 0..2 {
        assert!(cache.read(&object, 5..25).unwrap() == content("a", "none", 5..25));
    }
    assert_eq!((bucket.reads(), cache.stats().unversioned), (2, 2));
    assert_eq!(bucket.bytes.load(Ordering::Relaxed), 40);
    assert_eq!(used(folder.path()), (0, 0, 0));
}

#[test]
fn a_folder_that_cannot_be_used_is_refused_and_the_error_says_what_to_do() {
    let home = TempDir::new().unwrap();
    let bucket = Arc::new(Bucket::of(&[("a", 3 * MIB)]));
    let refused = |folder: &Path, bytes: u64| {
        let error = DiskCache::open(Arc::clone(&bucket), folder, bytes).unwrap_err();
        assert!(
            error.to_string().starts_with(&*folder.to_string_lossy()),
            "{error}"
        );
        (error.kind(), error.to_string())
    };
    let says = |(_, error): (StoreErrorKind, String), words: &str| {
        assert!(error.contains(words), "{error}")
    };

    let used = home.path().join("home");
    fs::create_dir(&used).unwrap();
    fs::write(used.join("thesis.tex"), "..").unwrap();
    says(
        refused(&used, 100 * PAGE),
        "it has thesis.tex in it and is no cache",
    );
    assert_eq!(
        fs::read_dir(&used).unwrap().count(),
        1,
        "nothing was written"
    );

    let file = home.path().join("file");
    fs::write(&file, "..").unwrap();
    says(refused(&file, 100 * PAGE), "a cache cannot be made there");
    says(
        refused(&file.join("below"), 100 * PAGE),
        "name another folder",
    );

    says(
        refused(&home.path().join("small"), MIB),
        "one page takes 1052672",
    );

    let old = home.path().join("old");
    fs::create_dir(&old).unwrap();
    let format = format!("{:<99}", "pinfeed cache 7, pages of 64 bytes\n");
    fs::write(old.join("pinfeed-cache"), &format).unwrap();
    says(
        refused(&old, 100 * PAGE),
        "it is the cache of another version of pinfeed",
    );
    assert_eq!(
        fs::read_to_string(old.join("pinfeed-cache")).unwrap(),
        format
    );

    struct Nameless;
    impl Store for Nameless {
        fn list(&self, _: &str) -> Result<Vec<Object>, BoxError> {
            Ok(Vec::new())
        }
        fn object(&self, _: &str) -> Result<Object, BoxError> {
            Err("none".into())
        }
        fn read(&self, _: &Object, _: Range<u64>) -> Result<Vec<u8>, BoxError> {
            Err("none".into())
        }
    }
    let error = DiskCache::open(Nameless, home.path().join("new"), 100 * PAGE).unwrap_err();
    assert!(
        error.to_string().contains("implement `Store::locate`"),
        "{error}"
    );

    // A user that may write anywhere is not refused.
    // SAFETY: it takes nothing.
    if unsafe { libc::geteuid() } != 0 {
        use std::os::unix::fs::PermissionsExt;
        let denied = home.path().join("denied");
        fs::create_dir(&denied).unwrap();
        fs::set_permissions(&denied, fs::Permissions::from_mode(0o555)).unwrap();
        let (kind, error) = refused(&denied, 100 * PAGE);
        assert_eq!(kind, StoreErrorKind::Denied);
        says((kind, error), "that this user may write");
    }
}

#[test]
fn a_folder_that_vanishes_or_is_damaged_costs_requests_and_nothing_else() {
    let folder = TempDir::new().unwrap();
    let bucket = Arc::new(Bucket::of(&[("a", 4 * MIB + 9)]));
    let cache = open(&bucket, folder.path(), 20);
    let object = cache.object("a").unwrap();
    let read = || {
        assert!(cache.read(&object, 0..object.bytes).unwrap() == content("a", "1", 0..object.bytes))
    };
    read();
    // A byte is altered, a page is cut off, and one is empty.
    let files = fs::read_dir(folder.path()).unwrap();
    let mut pages: Vec<_> = files
        .map(|file| file.unwrap().path())
        .filter(|path| path.extension().is_some_and(|end| end == "page"))
        .collect();
    pages.sort();
    let mut bytes = fs::read(&pages[0]).unwrap();
    bytes[700_000] ^= 1;
    fs::write(&pages[0], &bytes).unwrap();
    fs::write(&pages[1], &bytes[..5_000]).unwrap();
    fs::write(&pages[3], "").unwrap();
    read();
    assert_eq!((cache.stats().damaged, cache.stats().kept), (3, 8));
    read();
    assert_eq!((cache.stats().damaged, cache.stats().failures), (3, 0));

    fs::remove_dir_all(folder.path()).unwrap();
    let before = bucket.reads();
    for _ in 0..3 {
        read();
    }
    assert!(bucket.reads() >= before + 3 && cache.stats().failures > 0);
    // It is there again, and after a while it is used.
    fs::create_dir(folder.path()).unwrap();
    for _ in 0..20 {
        read();
    }
    let before = bucket.reads();
    read();
    assert_eq!(bucket.reads(), before);
}

/// Threads read anything of a cache that is much too small, while another cache removes its pages.
#[test]
fn what_is_evicted_while_it_is_read_is_right() {
    let folder = TempDir::new().unwrap();
    let bucket = Arc::new(Bucket::of(&[("a", 9 * MIB + 77), ("b", 6 * MIB)]));
    let caches = [(); 2].map(|()| open(&bucket, folder.path(), 5));
    let (most, done) = (AtomicU64::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        let watcher = scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                most.fetch_max(used(folder.path()).0, Ordering::Relaxed);
            }
        });
        let readers = [0, 1, 2, 3].map(|thread: u64| {
            let (cache, bucket) = (&caches[thread as usize % 2], &bucket);
            scope.spawn(move || {
                let mut draw = thread + 1;
                let mut below = |end: u64| {
                    draw = draw
                        .wrapping_mul(6_364_136_223_846_793_005)
                        .wrapping_add(99);
                    (draw >> 33) % end
                };
                for _ in 0..40 {
                    let object = bucket.object(["a", "b"][below(2) as usize]).unwrap();
                    if below(4) == 0 {
                        cache.list("").unwrap();
                    }
                    let start = below(object.bytes);
                    let end = start + 1 + below((object.bytes - start).min(3 * MIB));
                    let bytes = cache.read(&object, start..end).unwrap();
                    assert!(bytes == content(&object.key, "1", start..end));
                }
            })
        });
        let read: Vec<_> = readers.into_iter().map(|reader| reader.join()).collect();
        done.store(true, Ordering::Relaxed);
        watcher.join().unwrap();
        assert!(read.iter().all(Result::is_ok));
    });
    // (A listing may have a part and the page that it became meanwhile.)
    assert!(most.load(Ordering::Relaxed) <= 7 * PAGE);
    assert!(used(folder.path()).0 <= 5 * PAGE);
    for cache in &caches {
        assert_eq!((cache.stats().failures, cache.stats().damaged), (0, 0));
    }
}

#[test]
fn of_two_that_want_a_page_one_requests_it_and_the_other_waits() {
    for outcome in ["comes", "fails", "panics"] {
        let folder = TempDir::new().unwrap();
        let (began, has_begun) = mpsc::channel();
        let (let_go, go_on) = mpsc::channel();
        let mut bucket = Bucket::of(&[("a", 2 * MIB)]);
        bucket.waits = Some((began, std::sync::Mutex::new(go_on)));
        let bucket = Arc::new(bucket);
        let caches = [(); 2].map(|()| open(&bucket, folder.path(), 5));
        let object = caches[0].object("a").unwrap();
        let own = content("a", "1", 0..2 * MIB);
        thread::scope(|scope| {
            let first = scope.spawn(|| {
                let read = AssertUnwindSafe(|| caches[0].read(&object, 0..2 * MIB));
                catch_unwind(read).map(|bytes| bytes.is_ok_and(|bytes| bytes == own))
            });
            has_begun.recv().unwrap();
            let second = scope.spawn(|| caches[1].read(&object, MIB..2 * MIB).unwrap());
            while caches[1].stats().waits == 0 {
                thread::sleep(Duration::from_millis(1)); // until it waits
            }
            bucket.fails.store(outcome == "fails", Ordering::Relaxed);
            bucket.panics.store(outcome == "panics", Ordering::Relaxed);
            let_go.send(()).unwrap();
            match first.join().unwrap() {
                Ok(is_right) => assert_eq!(is_right, outcome == "comes"),
                Err(_) => assert_eq!(outcome, "panics"),
            }
            if outcome != "comes" {
                has_begun.recv().unwrap(); // the second goes on by itself
                bucket.fails.store(false, Ordering::Relaxed);
                bucket.panics.store(false, Ordering::Relaxed);
                let_go.send(()).unwrap();
            }
            assert!(second.join().unwrap() == own[MIB as usize..]);
        });
        assert_eq!(bucket.reads(), if outcome == "comes" { 1 } else { 2 });
        assert_eq!(used(folder.path()).2, 0, "{outcome}: parts are left");
        // It can be used as before.
        let_go.send(()).unwrap();
        let_go.send(()).unwrap();
        assert!(caches[0].read(&object, 0..2 * MIB).unwrap() == own);
    }
}

/// Samples that are kept would hold the pages that they came in.
#[test]
fn what_a_read_returns_is_as_large_as_what_was_asked_for() {
    let folder = TempDir::new().unwrap();
    let bucket = Arc::new(Bucket::of(&[("a", 3 * MIB)]));
    let cache = open(&bucket, folder.path(), 5);
    let object = cache.object("a").unwrap();
    for range in [5..1_029, 5..2_053, MIB - 9..MIB + 9, 0..3 * MIB] {
        let bytes = cache.read(&object, range.clone()).unwrap();
        assert!(bytes == content("a", "1", range.clone()));
        let (length, capacity) = (bytes.len(), bytes.capacity());
        assert!(capacity <= length + length / 7, "{range:?}: {capacity}");
    }
}

/// Who waits has no file open for each page that it waits for.
#[cfg(target_os = "linux")]
#[test]
fn a_page_that_another_fetches_takes_no_open_file() {
    let folder = TempDir::new().unwrap();
    let (began, has_begun) = mpsc::channel();
    let (let_go, go_on) = mpsc::channel();
    let mut bucket = Bucket::of(&[("a", 20 * MIB)]);
    bucket.waits = Some((began, std::sync::Mutex::new(go_on)));
    let bucket = Arc::new(bucket);
    let caches = [(); 2].map(|()| open(&bucket, folder.path(), 25));
    let object = caches[0].object("a").unwrap();
    let place = fs::canonicalize(folder.path()).unwrap();
    let open_parts = || {
        let files = fs::read_dir("/proc/self/fd").unwrap();
        let paths = files.filter_map(|file| fs::read_link(file.ok()?.path()).ok());
        let parts = paths.filter(|path| path.starts_with(&place));
        let parts = parts.filter(|path| path.to_string_lossy().ends_with(".part"));
        parts.count()
    };
    let of_both = thread::scope(|scope| {
        let first = scope.spawn(|| caches[0].read(&object, 0..20 * MIB).unwrap());
        has_begun.recv().unwrap();
        let of_first = open_parts();
        let second = scope.spawn(|| caches[1].read(&object, 0..20 * MIB).unwrap());
        while caches[1].stats().waits == 0 {
            thread::sleep(Duration::from_millis(1)); // until it waits
        }
        let of_both = (of_first, open_parts());
        let_go.send(()).unwrap();
        assert!(first.join().unwrap() == second.join().unwrap());
        of_both
    });
    assert_eq!(of_both, (20, 21));
    assert_eq!((caches[1].stats().hits, bucket.reads()), (20, 1));
}

/// A training set and a validation set, each a store of its own, in one folder that has room for one and a half of them.
#[test]
fn the_caches_of_a_process_do_not_evict_each_others_pages_first() {
    let folder = TempDir::new().unwrap();
    let buckets = ["train", "val"].map(|key| Arc::new(Bucket::of(&[(key, 4 * MIB)])));
    let [train, val] = buckets.map(|bucket| open(&bucket, folder.path(), 6));
    let read = |cache: &DiskCache| {
        let object = &cache.list("").unwrap()[0];
        cache.read(object, 0..4 * MIB).unwrap();
    };
    read(&train);
    read(&val);
    assert_eq!((val.stats().kept, val.stats().evicted), (2, 0));
    read(&train);
    read(&val);
    assert_eq!((train.stats().hits, val.stats().hits), (4, 2));
}

/// What was read with one user's credentials is for no other user of the machine.
#[test]
fn the_folder_and_its_files_are_for_their_user_alone() {
    use std::os::unix::fs::PermissionsExt;

    let home = TempDir::new().unwrap();
    let folder = home.path().join("of/a/cache");
    let bucket = Arc::new(Bucket::of(&[("a", 3 * MIB)]));
    let cache = open(&bucket, &folder, 5);
    cache.read(&cache.object("a").unwrap(), 0..3 * MIB).unwrap();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&folder), 0o700);
    let files = fs::read_dir(&folder).unwrap();
    let modes: Vec<u32> = files.map(|file| mode(&file.unwrap().path())).collect();
    assert_eq!(modes, [0o600; 4]);
    // One that is there stays as its owner made it.
    let shared = home.path().join("shared");
    fs::create_dir(&shared).unwrap();
    fs::set_permissions(&shared, fs::Permissions::from_mode(0o770)).unwrap();
    open(&bucket, &shared, 5);
    assert_eq!(mode(&shared), 0o770);
}

#[test]
fn a_smaller_budget_shrinks_a_folder_when_it_is_opened() {
    let folder = TempDir::new().unwrap();
    let bucket = Arc::new(Bucket::of(&[("a", 9 * MIB)]));
    let cache = open(&bucket, folder.path(), 20);
    let object = cache.object("a").unwrap();
    cache.read(&object, 0..9 * MIB).unwrap();
    let smaller = open(&bucket, folder.path(), 4);
    assert_eq!(used(folder.path()), (4 * PAGE, 4, 0));
    assert_eq!(smaller.stats().evicted, 5);
    assert!(smaller.read(&object, 0..9 * MIB).unwrap() == content("a", "1", 0..9 * MIB));
    assert!(cache.read(&object, 0..9 * MIB).unwrap() == content("a", "1", 0..9 * MIB));
}

/// Keys that are read once each, in any order, with room for half of them: what is there stays.
#[test]
fn without_an_order_of_blocks_there_are_as_many_hits_as_there_is_room() {
    let folder = TempDir::new().unwrap();
    let keys: Vec<String> = (0..20).map(|key| format!("{key:02}.jpg")).collect();
    let lengths: Vec<(&str, u64)> = keys.iter().map(|key| (&**key, 1_000)).collect();
    let bucket = Arc::new(Bucket::of(&lengths));
    let cache = DiskCache::open(Arc::clone(&bucket), folder.path(), PAGE).unwrap();
    let cache = Arc::new(cache);
    let objects = cache.list("").unwrap();
    // A page of 1,000 bytes and its header.
    let room = PAGE / 5_096;
    assert!(room >= 20);
    let data = {
        let cache = Arc::clone(&cache);
        pinfeed::from_fn(20, move |index, _| {
            Ok(cache.read(&objects[index as usize], 0..1_000)?.len() as i64)
        })
    };
    let loader = DataLoader::builder(data)
        .batch_size(5)
        .shuffle(true)
        .build()
        .unwrap();
    for epoch in loader.epochs(0..3) {
        assert_eq!(epoch.map(|batch| batch.unwrap().len()).sum::<usize>(), 20);
    }
    assert_eq!((bucket.reads(), cache.stats().hits), (20, 40));
}

#[cfg(feature = "webdataset")]
mod shards {
    use super::*;
    use pinfeed::Dataset;
    use pinfeed::dataset::Blocked;
    use pinfeed::webdataset::WebDataset;

    /// A store of tar shards, which counts what it is asked.
    pub(super) struct Counted {
        pub(super) files: LocalFiles,
        pub(super) reads: AtomicU64,
    }

    impl Store for Counted {
        fn list(&self, prefix: &str) -> Result<Vec<Object>, BoxError> {
            self.files.list(prefix)
        }

        fn object(&self, key: &str) -> Result<Object, BoxError> {
            self.files.object(key)
        }

        fn read(&self, object: &Object, range: Range<u64>) -> Result<Vec<u8>, BoxError> {
            self.reads.fetch_add(1, Ordering::Relaxed);
            self.files.read(object, range)
        }

        fn locate(&self, key: &str) -> String {
            self.files.locate(key)
        }
    }

    pub(super) fn write(folder: &Path, shards: u64, samples: u64) {
        for shard in 0..shards {
            let file = fs::File::create(folder.join(format!("{shard:02}.tar"))).unwrap();
            let mut archive = tar::Builder::new(file);
            for sample in 0..samples {
                let bytes = content(&format!("{shard}/{sample}"), "", 0..7_000 + sample * 100);
                let mut header = tar::Header::new_gnu();
                header.set_size(bytes.len() as u64);
                header.set_mode(0o644);
                let name = format!("{shard}/{sample:03}.bin");
                archive.append_data(&mut header, name, &*bytes).unwrap();
            }
            archive.into_inner().unwrap();
        }
    }

    /// With room for all, the second epoch makes no request, whatever the order; with room for half, there are about as many hits.
    #[test]
    fn a_second_epoch_of_shards_makes_no_request() {
        let home = TempDir::new().unwrap();
        let shards = home.path().join("shards");
        fs::create_dir(&shards).unwrap();
        write(&shards, 12, 100);
        for percent in [100, 50] {
            let store = Arc::new(Counted {
                files: LocalFiles::open(&shards).unwrap(),
                reads: AtomicU64::new(0),
            });
            let bytes: u64 = store
                .list("")
                .unwrap()
                .iter()
                .map(|object| object.bytes)
                .sum();
            let pages = bytes.div_ceil(MIB) + 12;
            let folder = home.path().join(format!("cache-{percent}"));
            let cache = DiskCache::open(Arc::clone(&store), folder, pages * PAGE * percent / 100);
            let cache = Arc::new(cache.unwrap());
            let builder = WebDataset::builder(Arc::clone(&cache), "{00..11}.tar");
            let data = builder
                .build(|sample, _| Ok(sample.field("bin")?.len() as i64))
                .unwrap();
            let samples = data.len();
            let data = Blocked::new(data).with_in_flight(4);
            assert!(data.blocks().unwrap().len() > 24);
            let builder = DataLoader::builder(data)
                .batch_size(64)
                .shuffle(true)
                .seed(7);
            let loader = builder.num_workers(2).build().unwrap();
            let (mut reads, mut hits) = (Vec::new(), Vec::new());
            for epoch in loader.epochs(0..4) {
                let count: usize = epoch.map(|batch| batch.unwrap().len()).sum();
                assert_eq!(count as u64, samples);
                reads.push(store.reads.load(Ordering::Relaxed));
                hits.push(cache.stats().hits);
            }
            let stats = cache.stats();
            assert_eq!((stats.failures, stats.damaged), (0, 0), "{stats:?}");
            if percent == 100 {
                assert_eq!(reads[0], reads[3], "{reads:?}: {stats:?}");
            } else {
                let share = (hits[3] - hits[0]) as f64 / (3 * pages) as f64;
                assert!(share > 0.4, "{share}: {stats:?}");
            }
        }
    }
}

// ---- several processes ----

const FOLDER: &str = "PINFEED_TEST_CACHE";
const SEED: &str = "PINFEED_TEST_SEED";
const ALONE: &str = "PINFEED_TEST_ALONE";
const FILES: u64 = 6;
const FILE_BYTES: u64 = 2 * MIB + 300_000;

/// What the processes of the tests below do: they read all there is, in an order of their own, and compare.
#[test]
#[ignore = "the tests below start it, in processes of its own"]
fn child() {
    let home = env::var(FOLDER).unwrap();
    let seed: u64 = env::var(SEED).unwrap().parse().unwrap();
    let home = Path::new(&home);
    let files = LocalFiles::open(home.join("files")).unwrap();
    let cache = DiskCache::open(files, home.join("cache"), 9 * PAGE).unwrap();
    let objects = cache.list("").unwrap();
    let mut draw = seed;
    for _ in 0..3 * FILES {
        draw = draw
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(99);
        let object = &objects[(draw >> 33) as usize % objects.len()];
        let start = (draw >> 20) % object.bytes;
        let bytes = cache.read(object, start..object.bytes).unwrap();
        assert!(
            bytes == content(&object.key, "", start..object.bytes),
            "{}",
            object.key
        );
    }
    println!("STATS {:?}", cache.stats());
}

fn files() -> TempDir {
    let home = TempDir::new().unwrap();
    fs::create_dir(home.path().join("files")).unwrap();
    for file in 0..FILES {
        let name = format!("{file}.bin");
        fs::write(
            home.path().join("files").join(&name),
            content(&name, "", 0..FILE_BYTES),
        )
        .unwrap();
    }
    home
}

/// The command of a child: this program again, with some words before it.
fn start(home: &Path, seed: u64, shell: Option<&str>) -> process::Child {
    let program = env::current_exe().unwrap();
    let mut command = match shell {
        Some(words) => {
            let mut command = process::Command::new("sh");
            command
                .arg("-c")
                .arg(format!("{words}; exec \"$0\" \"$@\""))
                .arg(program);
            command
        }
        None => process::Command::new(program),
    };
    command
        .args(["--ignored", "--exact", "disk_cache::child", "--nocapture"])
        .env(FOLDER, home)
        .env(SEED, seed.to_string())
        .stdout(process::Stdio::piped())
        .stderr(process::Stdio::piped());
    command.spawn().unwrap()
}

/// What a child said. It was killed, or has found all to be right.
fn ended(child: process::Child) -> Option<String> {
    use std::os::unix::process::ExitStatusExt;
    let output = child.wait_with_output().unwrap();
    if output.status.signal() == Some(libc::SIGKILL) {
        return None;
    }
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let failed = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && said.contains("STATS"),
        "{said}{failed}"
    );
    Some(said)
}

#[test]
fn processes_share_a_folder_and_any_of_them_may_be_killed() {
    let home = files();
    let cache = home.path().join("cache");
    let (mut killed, mut draw) = (0, 5u64);
    for round in 0..8 {
        let mut children: Vec<_> = (0..3)
            .map(|rank| start(home.path(), 10 * round + rank, None))
            .collect();
        draw = draw
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(99);
        thread::sleep(Duration::from_micros(3_000 + (draw >> 33) % 120_000));
        children[0].kill().unwrap(); // (or it has ended)
        if round % 3 == 0 {
            children[1].kill().unwrap();
        }
        killed += children
            .into_iter()
            .map(ended)
            .filter(Option::is_none)
            .count();
        if cache.exists() {
            let (bytes, ..) = used(&cache);
            assert!(bytes <= 9 * PAGE, "{bytes}");
        }
    }
    println!("{killed} processes killed");
    ended(start(home.path(), 999, None)).unwrap();
    let (bytes, pages, parts) = used(&cache);
    assert!(
        bytes <= 9 * PAGE && pages > 0,
        "{bytes} bytes, {pages} pages"
    );
    assert_eq!(parts, 0, "what dead processes have left");
}

/// The system refuses files of more than 256 KiB, as a full disk refuses more bytes.
#[test]
fn a_process_whose_files_cannot_grow_reads_on() {
    let home = files();
    // (`ulimit -f` counts blocks of 512 bytes in some shells, and of 1,024 in others.)
    let said = ended(start(home.path(), 1, Some("trap '' XFSZ; ulimit -f 256"))).unwrap();
    assert!(
        said.contains("kept: 0, ") && !said.contains("failures: 0"),
        "{said}"
    );
    assert_eq!(used(&home.path().join("cache")), (0, 0, 0));
    // One that may write goes on from there.
    let said = ended(start(home.path(), 1, None)).unwrap();
    assert!(
        !said.contains("kept: 0, ") && said.contains("failures: 0"),
        "{said}"
    );
}

/// A forked child has the parent's cache, which may be in use.
#[test]
fn a_forked_child_reads_too() {
    // In a process that has no other test: a child finds the locks of the whole process as they were.
    if env::var_os(ALONE).is_none() {
        let mut alone = process::Command::new(env::current_exe().unwrap());
        let test = "disk_cache::a_forked_child_reads_too";
        let ended = alone
            .args(["--exact", test, "--nocapture"])
            .env(ALONE, "1")
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&ended.stdout).into_owned()
            + &String::from_utf8_lossy(&ended.stderr);
        assert!(
            ended.status.success() && said.contains("1 passed"),
            "{said}"
        );
        return;
    }
    let folder = TempDir::new().unwrap();
    let bucket = Arc::new(Bucket::of(&[("a", 3 * MIB)]));
    let cache = open(&bucket, folder.path(), 5);
    let object = cache.object("a").unwrap();
    cache.read(&object, 0..MIB).unwrap();
    // SAFETY: the child ends by itself, and runs none of the parent's code after that.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: it takes a number.
        unsafe { libc::alarm(60) };
        let read = || {
            cache
                .read(&object, 0..2 * MIB)
                .is_ok_and(|bytes| bytes == content("a", "1", 0..2 * MIB))
        };
        let is_right = catch_unwind(AssertUnwindSafe(read)).unwrap_or(false);
        // SAFETY: it takes a number.
        unsafe { libc::_exit(i32::from(!is_right)) }
    }
    let mut status = 0;
    // SAFETY: it writes one number.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!(status, 0);
    cache.read(&object, 0..2 * MIB).unwrap();
    assert_eq!(cache.stats().hits, 2, "the child has kept the second");
}

/// Its parent's threads were fetching as many pages as a process may: they are none of the child's.
#[test]
fn a_child_keeps_pages_that_was_forked_while_its_parent_fetched() {
    if env::var_os(ALONE).is_none() {
        let mut alone = process::Command::new(env::current_exe().unwrap());
        let test = "disk_cache::a_child_keeps_pages_that_was_forked_while_its_parent_fetched";
        let ended = alone
            .args(["--exact", test, "--nocapture"])
            .env(ALONE, "1")
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&ended.stdout).into_owned()
            + &String::from_utf8_lossy(&ended.stderr);
        assert!(
            ended.status.success() && said.contains("1 passed"),
            "{said}"
        );
        return;
    }
    /// Its large object takes until the test lets it go, and fails then.
    struct Slow(mpsc::Sender<()>, std::sync::Mutex<mpsc::Receiver<()>>);

    impl Store for Slow {
        fn list(&self, _: &str) -> Result<Vec<Object>, BoxError> {
            Ok(Vec::new())
        }

        fn object(&self, key: &str) -> Result<Object, BoxError> {
            Ok(Object {
                key: key.to_owned(),
                bytes: if key == "large" { 300 * MIB } else { 4 * MIB },
                version: Some("1".to_owned()),
            })
        }

        fn read(&self, object: &Object, range: Range<u64>) -> Result<Vec<u8>, BoxError> {
            if object.key == "large" {
                self.0.send(()).unwrap();
                self.1.lock().unwrap().recv().unwrap();
                return Err(Temporary::new("the bucket is busy").into());
            }
            Ok(content(&object.key, "1", range))
        }

        fn locate(&self, key: &str) -> String {
            format!("slow://{key}")
        }
    }

    let folder = TempDir::new().unwrap();
    let (began, has_begun) = mpsc::channel();
    let (let_go, go_on) = mpsc::channel();
    let slow = Slow(began, std::sync::Mutex::new(go_on));
    let cache = DiskCache::open(slow, folder.path(), 400 * PAGE).unwrap();
    let [large, small] = ["large", "small"].map(|key| cache.object(key).unwrap());
    thread::scope(|scope| {
        let fetches = scope.spawn(|| cache.read(&large, 0..300 * MIB).is_err());
        has_begun.recv().unwrap();
        assert_eq!(used(folder.path()).2, 256, "parts");
        // SAFETY: the child ends by itself, and runs none of the parent's code after that.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: it takes a number.
            unsafe { libc::alarm(60) };
            let read = || {
                let all = 0..4 * MIB;
                let reads = [(); 2].map(|()| cache.read(&small, all.clone()));
                let own = content("small", "1", all);
                let is_right = |read: Result<Vec<u8>, BoxError>| read.is_ok_and(|read| read == own);
                reads.into_iter().all(is_right) && cache.stats().hits == 4
            };
            let is_right = catch_unwind(AssertUnwindSafe(read)).unwrap_or(false);
            // SAFETY: it takes a number.
            unsafe { libc::_exit(i32::from(!is_right)) }
        }
        let mut status = 0;
        // SAFETY: it writes one number.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        let_go.send(()).unwrap();
        assert!(fetches.join().unwrap());
        assert_eq!(status, 0, "the child has read wrong bytes, or kept none");
    });
    assert_eq!(used(folder.path()), (4 * PAGE, 4, 0));
}

/// All begin at once, with an empty folder.
#[test]
fn caches_that_are_opened_at_once_agree() {
    let folder = TempDir::new().unwrap();
    let bucket = Arc::new(Bucket::of(&[("a", 3 * MIB)]));
    let barrier = Barrier::new(8);
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                barrier.wait();
                let cache = open(&bucket, folder.path(), 5);
                let object = cache.object("a").unwrap();
                assert!(cache.read(&object, 0..3 * MIB).unwrap() == content("a", "1", 0..3 * MIB));
            });
        }
    });
    assert_eq!(
        bucket.bytes.load(Ordering::Relaxed),
        3 * MIB,
        "each page once"
    );
}
