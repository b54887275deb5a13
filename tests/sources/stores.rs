//! Files of a folder as a [`Store`]: [`LocalFiles`], and what [`store::open`] names.

use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime};

use pinfeed::store::{self, LocalFiles, Object, Store, StoreError, StoreErrorKind};
use pinfeed::{BoxError, DataLoader, from_fn};

fn folder(files: &[(&str, &[u8])]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (key, bytes) in files {
        let path = folder.path().join(key);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }
    folder
}

fn keys(objects: &[Object]) -> Vec<&str> {
    objects.iter().map(|object| &*object.key).collect()
}

fn kind(error: &BoxError) -> StoreErrorKind {
    error.downcast_ref::<StoreError>().unwrap().kind()
}

#[test]
fn files_are_listed_by_key_and_read_in_ranges() {
    let folder = folder(&[
        ("b.bin", b"bbbb"),
        ("a/b.bin", b"0123456789"),
        ("a-b.bin", b""),
        ("a/c/Ä ö.bin", b"x"),
        ("a2/c.bin", b"yz"),
    ]);
    let files = LocalFiles::open(folder.path()).unwrap();
    let all = files.list("").unwrap();
    // In the order of their bytes: `-` is before `/`, which is before `2`.
    let sorted = ["a-b.bin", "a/b.bin", "a/c/Ä ö.bin", "a2/c.bin", "b.bin"];
    assert_eq!(keys(&all), sorted);
    for prefix in ["a", "a/"] {
        assert_eq!(keys(&files.list(prefix).unwrap()), sorted[1..3]);
    }
    let object = &all[1];
    assert_eq!(*object, files.object("a/b.bin").unwrap());
    assert_eq!(object.bytes, 10);
    assert_eq!(files.read(object, 0..10).unwrap(), b"0123456789");
    assert_eq!(files.read(object, 3..5).unwrap(), b"34");
    assert_eq!(files.read(object, 10..10).unwrap(), b"");
    let parts = files.read_many(object, &[8..10, 0..1, 4..4, 0..3]);
    assert_eq!(parts.unwrap(), [&b"89"[..], b"0", b"", b"012"]);
    for range in [9..11, 11..12, 5..u64::MAX] {
        for error in [
            files.read(object, range.clone()).unwrap_err(),
            files.read_many(object, &[0..1, range.clone()]).unwrap_err(),
        ] {
            let error = error.to_string();
            assert!(error.contains("b.bin: it has 10 bytes"), "{error}");
        }
    }
}

#[test]
fn a_file_that_changes_between_two_reads_is_an_error_that_says_so() {
    let folder = folder(&[("a.tar", &[7; 100])]);
    let path = folder.path().join("a.tar");
    let files = LocalFiles::open(folder.path()).unwrap();
    let object = files.object("a.tar").unwrap();
    files.read(&object, 0..50).unwrap();

    fs::write(&path, [8; 60]).unwrap();
    let error = files.read(&object, 0..50).unwrap_err();
    assert_eq!(kind(&error), StoreErrorKind::Changed);
    let error = error.to_string();
    assert!(
        error.contains("a.tar: it had 100 bytes and has 60"),
        "{error}"
    );

    // The same size at another time.
    fs::write(&path, [8; 100]).unwrap();
    let file = fs::File::options().write(true).open(&path).unwrap();
    let earlier = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    file.set_modified(earlier).unwrap();
    let error = files.read(&object, 0..50).unwrap_err();
    assert_eq!(kind(&error), StoreErrorKind::Changed);
    let error = error.to_string();
    assert!(error.contains("1000000000.000000000"), "{error}");

    // What is asked for anew is the new file.
    let object = files.object("a.tar").unwrap();
    assert_eq!(files.read(&object, 99..100).unwrap(), [8]);
    fs::remove_file(&path).unwrap();
    let error = files.read(&object, 0..1).unwrap_err().to_string();
    assert!(error.contains("a.tar"), "{error}");
}

#[test]
fn keys_stay_in_the_folder() {
    let folder = folder(&[("in/a", b"a"), ("b", b"b")]);
    let files = LocalFiles::open(folder.path().join("in")).unwrap();
    for key in ["../b", "a/../../b", "./a", "/a", "a/", "", "a//a"] {
        let error = files.object(key).unwrap_err().to_string();
        assert!(error.contains("is the key of no file"), "{key}: {error}");
    }
    let error = files.list("../in").unwrap_err().to_string();
    assert!(error.contains("is the key of no file"), "{error}");
    let error = files.list("nowhere").unwrap_err().to_string();
    assert!(error.contains("nowhere"), "{error}");
    assert!(files.object("nothing").is_err());
}

#[cfg(unix)]
#[test]
fn links_lead_to_files_and_one_around_itself_is_refused() {
    use std::os::unix::fs::symlink;

    // As the hub of Hugging Face keeps its files.
    let folder = folder(&[("blobs/1234", b"abc"), ("snapshots/x", b"")]);
    let root = folder.path();
    symlink("../blobs/1234", root.join("snapshots/a.parquet")).unwrap();
    symlink("../blobs", root.join("snapshots/more")).unwrap();
    let files = LocalFiles::open(root.join("snapshots")).unwrap();
    let all = files.list("").unwrap();
    assert_eq!(keys(&all), ["a.parquet", "more/1234", "x"]);
    assert_eq!(files.read(&all[0], 1..3).unwrap(), b"bc");

    symlink("..", root.join("blobs/up")).unwrap();
    let files = LocalFiles::open(root).unwrap();
    let error = files.list("").unwrap_err().to_string();
    assert!(error.contains("is a link to"), "{error}");

    symlink("nowhere", root.join("snapshots/broken")).unwrap();
    fs::remove_file(root.join("blobs/up")).unwrap();
    let error = files.list("").unwrap_err().to_string();
    assert!(error.contains("broken"), "{error}");
}

#[test]
fn a_url_or_a_path_opens_a_folder() {
    let folder = folder(&[("a b/c", b"abc")]);
    let root = folder.path().to_str().unwrap();
    let slash = if root.starts_with('/') { "" } else { "/" };
    let url = format!("file://{slash}{}/a%20b", root.replace('\\', "/"));
    for place in [format!("{root}/a b"), url] {
        let files = store::open(&place).unwrap();
        let objects = files.list("").unwrap();
        assert_eq!(keys(&objects), ["c"]);
        assert_eq!(files.read(&objects[0], 0..3).unwrap(), b"abc");
        assert!(files.locate("c").ends_with('c'));
        assert!(Path::new(&files.locate("c")).exists());
    }
    let error = store::open(&format!("{root}/a b/c")).unwrap_err();
    assert!(error.to_string().contains("it is a file"), "{error}");
    let error = store::open(&format!("{root}/nowhere")).unwrap_err();
    assert!(error.to_string().contains("nowhere"), "{error}");
}

#[cfg(not(feature = "object-store"))]
#[test]
fn a_bucket_needs_the_feature() {
    let error = store::open("s3://bucket/train").unwrap_err().to_string();
    assert!(error.contains("feature `object-store`"), "{error}");
}

#[test]
fn a_loader_reads_a_store_from_all_workers() {
    let folder = folder(&[("all.bin", &(0..=255).collect::<Vec<u8>>())]);
    let files = LocalFiles::open(folder.path()).unwrap();
    let all = files.object("all.bin").unwrap();
    let samples = from_fn(64, move |index, _| {
        let bytes = files.read(&all, index * 4..index * 4 + 4)?;
        Ok(u32::from_be_bytes(bytes[..].try_into()?))
    });
    let loader = DataLoader::builder(samples).batch_size(16).num_workers(3);
    let loader = loader.build().unwrap();
    drop(loader.epoch(0)); // and again
    for epoch in 0..2 {
        let batches: Vec<_> = loader.epoch(epoch).map(Result::unwrap).collect();
        assert_eq!(batches[3].as_slice()[15], 0xfcfd_feff);
    }
}
