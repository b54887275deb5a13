//! `StoredFolder`: the same classes, pictures and batches as `ImageFolder` of the same files, and what becomes of those that cannot be had.

use std::collections::HashMap;
use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pinfeed::error::Temporary;
use pinfeed::image::{ImageError, ImageFolder, ImageTransform, StoredFolder};
use pinfeed::loader::OnError;
use pinfeed::store::{LocalFiles, Object, Store};
use pinfeed::{BoxError, DataLoader, Error, Tensor};

use crate::folder::{png, put};

/// The root of a data set whose keys and paths have other orders, with much that is no picture of a class.
fn tree() -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    let pictures = [
        "train/a/2.png",
        "train/a/10.PNG",
        "train/a/z/0.png",
        "train/a/b.png",
        "train/a.b/1.png",
        "train/a-b/1.png",
        "train/\u{e4}/1.png",
        "train/Z/1.png",
        "val/a/1.png",
        "train.old/c/1.png",
    ];
    for (shade, name) in pictures.iter().enumerate() {
        put(root.path(), name, &png(3, 2, [10 * shade as u8, 0, 200]));
    }
    for name in [
        "train/loose.png",
        "train/a/.hidden.png",
        "train/.git/a/1.png",
        "train/a/notes.txt",
    ] {
        put(root.path(), name, b"none");
    }
    root
}

fn local(root: &Path) -> LocalFiles {
    LocalFiles::open(root).unwrap()
}

type Batches = Vec<(Vec<u8>, Vec<i64>)>;

fn batches(loader: &DataLoader<(Tensor<u8>, Tensor<i64>)>, epoch: u64) -> Batches {
    let batches = loader.epoch(epoch).map(|batch| {
        let (pictures, labels) = batch.unwrap();
        (pictures.to_vec(), labels.to_vec())
    });
    batches.collect()
}

#[test]
fn it_finds_what_a_folder_finds() {
    let root = tree();
    let folder = ImageFolder::open(root.path().join("train")).unwrap();
    for name in ["train", "train/"] {
        let stored = StoredFolder::open(local(root.path()), name).unwrap();
        assert_eq!(stored.classes(), folder.classes());
        assert_eq!(stored.labels(), folder.labels());
        let paths = folder
            .paths()
            .map(|path| path.strip_prefix(root.path()).unwrap().to_owned());
        assert!(stored.keys().map(Path::new).eq(paths));
        assert_eq!(stored.class_to_idx("a.b"), folder.class_to_idx("a.b"));
    }
    let whole = StoredFolder::open(local(&root.path().join("train")), "").unwrap();
    assert_eq!(whole.classes(), folder.classes());
    assert_eq!(whole.keys().next(), Some("Z/1.png"));
}

#[test]
fn batches_are_those_of_the_folder() {
    let root = tree();
    let train = ImageTransform::train(8);
    let folder = ImageFolder::open(root.path().join("train"))
        .unwrap()
        .with_transform(train.clone());
    let folder = DataLoader::builder(folder)
        .batch_size(3)
        .shuffle(true)
        .seed(5)
        .build()
        .unwrap();
    for workers in [0, 2] {
        let stored = StoredFolder::open(local(root.path()), "train")
            .unwrap()
            .with_transform(train.clone());
        let stored = DataLoader::builder(stored)
            .batch_size(3)
            .shuffle(true)
            .seed(5)
            .num_workers(workers);
        let stored = stored.build().unwrap();
        // Left in the middle, and then whole, twice.
        assert!(stored.epoch(0).next().unwrap().is_ok());
        for epoch in [0, 1] {
            assert_eq!(batches(&stored, epoch), batches(&folder, epoch));
        }
    }
}

#[test]
fn labels_follow_the_classes_that_are_given() {
    let root = tree();
    let train = StoredFolder::open(local(root.path()), "train").unwrap();
    let val = || StoredFolder::open(local(root.path()), "val").unwrap();
    assert_eq!(val().labels(), [0]);
    let same = val().with_classes(train.classes()).unwrap();
    assert_eq!(same.labels(), [train.class_to_idx("a").unwrap()]);
    assert_eq!(same.classes(), train.classes());
    let missing = val().with_classes(["b"]).unwrap_err().to_string();
    assert!(
        missing.contains("class `a`, which is not among the classes given"),
        "{missing}"
    );
    let twice = val().with_classes(["a", "b", "a"]).unwrap_err().to_string();
    assert!(twice.contains("class `a` comes twice"), "{twice}");
}

#[test]
fn a_folder_without_classes_is_refused() {
    let root = tree();
    for (folder, place) in [("train/a/z", "z"), ("nowhere", "nowhere")] {
        let error = StoredFolder::open(local(root.path()), folder).unwrap_err();
        assert!(matches!(error, Error::Source(_)));
        let said = said_of(&error);
        assert!(said.contains(place), "{said}");
    }
}

/// An error, and all that it is because of.
fn said_of(error: &dyn std::error::Error) -> String {
    let mut said = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        said += &format!(": {error}");
        cause = error.source();
    }
    said
}

type Fails = Box<dyn Fn(&str) -> Option<BoxError> + Send + Sync>;

/// A store that fails as it is told to.
struct Failing {
    files: LocalFiles,
    fails: Fails,
    read: Mutex<Vec<String>>,
}

impl Store for Failing {
    fn list(&self, prefix: &str) -> Result<Vec<Object>, BoxError> {
        self.files.list(prefix)
    }

    fn object(&self, key: &str) -> Result<Object, BoxError> {
        self.files.object(key)
    }

    fn read(&self, object: &Object, range: Range<u64>) -> Result<Vec<u8>, BoxError> {
        self.read.lock().unwrap().push(object.key.clone());
        match (self.fails)(&object.key) {
            Some(error) => Err(error),
            None => self.files.read(object, range),
        }
    }
}

fn failing(
    root: &Path,
    fails: impl Fn(&str) -> Option<BoxError> + Send + Sync + 'static,
) -> Arc<Failing> {
    Arc::new(Failing {
        files: local(root),
        fails: Box::new(fails),
        read: Mutex::default(),
    })
}

#[test]
fn what_cannot_be_had_is_its_samples_error() {
    let root = tree();
    put(root.path(), "train/a/large.png", &vec![0; 5_000]);
    let store = failing(root.path(), |key| {
        key.ends_with("a.b/1.png").then(|| "404 Not Found".into())
    });
    let stored = StoredFolder::open(Arc::clone(&store), "train").unwrap();
    let stored = stored
        .with_transform(ImageTransform::eval(4))
        .with_max_file_bytes(4_000);
    let loader = DataLoader::builder(stored.clone())
        .num_workers(1)
        .build()
        .unwrap();
    let errors = loader.epoch(0).filter_map(Result::err);
    let errors: Vec<String> = errors.map(|error| said_of(&error)).collect();
    assert_eq!(errors.len(), 2, "{errors:?}");
    assert!(
        errors[0].contains("train/a/large.png") && errors[0].contains("max_file_bytes is 4000"),
        "{errors:?}"
    );
    assert!(
        errors[1].contains("train/a.b/1.png") && errors[1].contains("404 Not Found"),
        "{errors:?}"
    );
    let is_read = |key: &str| store.read.lock().unwrap().iter().any(|read| read == key);
    assert!(is_read("train/a.b/1.png") && !is_read("train/a/large.png"));

    // And the epoch goes on without them.
    let loader = DataLoader::builder(stored).batch_size(4).num_workers(2);
    let loader = loader
        .on_error(OnError::Skip { at_most: 2 })
        .build()
        .unwrap();
    let found = batches(&loader, 0)
        .into_iter()
        .map(|(_, labels)| labels.len());
    assert_eq!(found.sum::<usize>(), 7);
}

#[test]
fn a_picture_that_comes_later_is_asked_for_again() {
    let root = tree();
    let tries = Mutex::new(HashMap::<String, u32>::new());
    let store = failing(root.path(), move |key| {
        let mut tries = tries.lock().unwrap();
        let of_key = tries.entry(key.to_owned()).or_default();
        *of_key += 1;
        (!of_key.is_multiple_of(3)).then(|| Temporary::new("503 Slow Down").into())
    });
    let stored = StoredFolder::open(store, "train").unwrap();
    let labels = stored.labels().to_vec();
    let loader = DataLoader::builder(stored).batch_size(4).num_workers(2);
    let loader = loader.retry(3, Duration::ZERO).build().unwrap();
    for epoch in [0, 1] {
        let found = batches(&loader, epoch)
            .into_iter()
            .flat_map(|(_, labels)| labels);
        assert!(found.eq(labels.iter().copied()));
    }
    assert_eq!(loader.stats().bad.retried, 2 * labels.len() as u64);
}

#[test]
fn a_picture_that_is_none_is_named() {
    let root = tree();
    put(root.path(), "train/Z/0.png", b"<html>not found</html>");
    let stored = StoredFolder::open(local(root.path()), "train").unwrap();
    let loader = DataLoader::builder(stored).build().unwrap();
    let error = loader.epoch(0).next().unwrap().unwrap_err();
    let Error::Sample(_, cause) = &error else {
        panic!("{error}")
    };
    let cause = cause.downcast_ref::<ImageError>().unwrap();
    assert_eq!(cause.path(), Some(Path::new("train/Z/0.png")));
}
