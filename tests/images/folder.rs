//! `ImageFolder`: what it finds, in which order, and what it says of what it cannot use.

use std::fs;
use std::path::{Path, PathBuf};

use image::{ExtendedColorType, ImageEncoder};
use pinfeed::dataset::Pass;
use pinfeed::image::{ImageFolder, ImageTransform};
use pinfeed::rng::RngKey;
use pinfeed::{BoxError, DataLoader, Dataset, Device, Error, SampleRng, Tensor};

pub(crate) fn png(height: u32, width: u32, color: [u8; 3]) -> Vec<u8> {
    let pixels = color.repeat((height * width) as usize);
    let mut file = Vec::new();
    image::codecs::png::PngEncoder::new(&mut file)
        .write_image(&pixels, width, height, ExtendedColorType::Rgb8)
        .unwrap();
    file
}

/// A folder with these files, each a small picture.
fn folder(files: &[&str]) -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    for file in files {
        put(root.path(), file, &png(2, 2, [1, 2, 3]));
    }
    root
}

pub(crate) fn put(root: &Path, file: &str, content: &[u8]) -> PathBuf {
    let path = root.join(file);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(&path, content).unwrap();
    path
}

fn names(data: &ImageFolder, root: &Path) -> Vec<String> {
    let relative = |path: PathBuf| {
        path.strip_prefix(root)
            .unwrap()
            .to_str()
            .unwrap()
            .replace('\\', "/")
    };
    data.paths().map(relative).collect()
}

fn load(data: &ImageFolder, index: u64) -> Result<(Tensor<u8>, i64), BoxError> {
    let (image, label) = data.get(
        index,
        &mut SampleRng::for_sample(RngKey {
            seed: 17,
            epoch: 0,
            position: index,
        }),
    )?;
    Ok((image.decode()?, label))
}

#[test]
fn classes_and_pictures_come_in_code_point_order() {
    let root = folder(&[
        "zebra/2.png",
        "zebra/10.png",
        "Zebra/a.JPEG",
        "ant/b.webp",
        "ant/B.Png",
        "émeu/x.tif",
        "ant/deep/er/1.bmp",
        "ant/deep-1/2.pgm",
        "ant/deep/3.ppm",
        "zebra/3.GIF",
    ]);
    let data = ImageFolder::open(root.path()).unwrap();
    assert_eq!(data.classes(), ["Zebra", "ant", "zebra", "émeu"]);
    let expected = [
        "Zebra/a.JPEG",
        "ant/B.Png",
        "ant/b.webp",
        // torchvision's order: whole paths of folders, of which `-` comes before `/`.
        "ant/deep/3.ppm",
        "ant/deep-1/2.pgm",
        "ant/deep/er/1.bmp",
        "zebra/10.png",
        "zebra/2.png",
        "zebra/3.GIF",
        "émeu/x.tif",
    ];
    assert_eq!(names(&data, root.path()), expected);
    assert_eq!(data.labels(), [0, 1, 1, 1, 1, 1, 2, 2, 2, 3]);
    assert_eq!((data.len(), data.is_empty()), (10, false));
    assert_eq!(data.class_to_idx("zebra"), Some(2));
    assert_eq!(data.class_to_idx("horse"), None);
    let described = data.describe(0).unwrap();
    assert!(described.ends_with("a.JPEG"), "{described}");
    assert_eq!((data.describe(10), data.path(10)), (None, None));
}

#[test]
fn many_classes_keep_their_order_whatever_thread_lists_them() {
    let root = tempfile::tempdir().unwrap();
    for class in 0..100 {
        for picture in 0..=class % 3 {
            put(root.path(), &format!("{class:03}/{picture}.png"), b"");
        }
    }
    let data = ImageFolder::open(root.path()).unwrap();
    let expected = (0..100)
        .flat_map(|class| (0..=class % 3).map(move |picture| format!("{class:03}/{picture}.png")));
    assert_eq!(names(&data, root.path()), expected.collect::<Vec<_>>());
    assert!(data.labels().is_sorted());
}

#[test]
fn what_is_no_picture_or_hidden_is_passed_over() {
    let root = folder(&[
        "cat/a.png",
        "cat/.hidden.png",
        "cat/._a.png",
        "cat/.cache/b.png",
        "cat/readme.txt",
        "cat/png",
        ".git/c.png",
        "loose.png",
    ]);
    fs::create_dir(root.path().join("cat/folder.png")).unwrap();
    let data = ImageFolder::open(root.path()).unwrap();
    assert_eq!(data.classes(), ["cat"]);
    assert_eq!(names(&data, root.path()), ["cat/a.png"]);
}

#[cfg(unix)]
#[test]
fn links_are_followed_where_they_lead_somewhere_else() {
    use std::os::unix::fs::symlink;
    let elsewhere = folder(&["pictures/x.png", "pictures/more/y.png"]);
    let root = folder(&["cat/a.png", "cat/inner/b.png"]);
    let cat = root.path().join("cat");
    symlink("gone.png", cat.join("dangling.png")).unwrap();
    symlink("self.png", cat.join("self.png")).unwrap();
    symlink("a.png", cat.join("z.png")).unwrap();
    symlink("../..", cat.join("inner/loop")).unwrap();
    symlink(&cat, cat.join("again")).unwrap();
    symlink(elsewhere.path().join("pictures"), root.path().join("dog")).unwrap();
    symlink(&cat, elsewhere.path().join("pictures/back")).unwrap();
    let data = ImageFolder::open(root.path()).unwrap();
    assert_eq!(data.classes(), ["cat", "dog"]);
    let expected = [
        "cat/a.png",
        "cat/z.png",
        "cat/inner/b.png",
        "dog/x.png",
        "dog/back/a.png",
        "dog/back/z.png",
        "dog/back/inner/b.png",
        "dog/more/y.png",
    ];
    assert_eq!(names(&data, root.path()), expected);
}

#[cfg(unix)]
#[test]
fn names_of_pictures_need_not_be_unicode() {
    use std::os::unix::ffi::OsStrExt;
    let root = folder(&["cat/a.png"]);
    let name = std::ffi::OsStr::from_bytes(b"\xFF\xFE.png");
    let path = root.path().join("cat").join(name);
    // Some file systems take no such names.
    if fs::write(&path, png(2, 2, [7; 3])).is_ok() {
        let data = ImageFolder::open(root.path()).unwrap();
        assert_eq!(data.path(1), Some(path));
        assert_eq!(load(&data, 1).unwrap().0.as_slice(), [7; 12]);
    }
}

#[test]
fn folders_that_are_no_data_set_are_errors_that_name_them() {
    let root = folder(&[]);
    let missing = root.path().join("missing");
    let error = ImageFolder::open(&missing).unwrap_err();
    assert!(
        matches!(&error, Error::Io { path, .. } if *path == missing),
        "{error}"
    );

    let said = |root: &Path| match ImageFolder::open(root).unwrap_err() {
        Error::DataSet { path, reason } => (path, reason),
        other => panic!("{other}"),
    };
    let (path, reason) = said(root.path());
    assert!(
        path == root.path() && reason.contains("root/class/picture.jpg"),
        "{reason}"
    );
    put(root.path(), "a.png", b"");
    let (_, reason) = said(root.path());
    assert!(
        reason.contains("1 pictures") && reason.contains("from_list"),
        "{reason}"
    );

    for class in ["bird", "cat", "dog"] {
        fs::create_dir(root.path().join(class)).unwrap();
    }
    put(root.path(), "bird/a.png", b"");
    let (path, reason) = said(root.path());
    assert_eq!(path, root.path().join("cat"));
    assert!(reason.contains("holds no picture (1 other"), "{reason}");

    let file = ImageFolder::open(root.path().join("a.png")).unwrap_err();
    assert!(matches!(file, Error::Io { .. }), "{file}");
}

#[test]
fn samples_are_pictures_with_their_labels() {
    let root = tempfile::tempdir().unwrap();
    put(root.path(), "a/1.png", &png(30, 40, [255, 0, 0]));
    put(root.path(), "b/1.png", &png(50, 20, [0, 255, 0]));
    let data = ImageFolder::open(root.path()).unwrap();
    let eval = data.clone().with_transform(ImageTransform::eval(16));
    let (image, label) = load(&eval, 1).unwrap();
    assert_eq!((&image.shape()[..], label), (&[16, 16, 3][..], 1));
    assert_eq!(image.to_vec(), [0, 255, 0].repeat(256));
    let (image, label) = load(&data, 0).unwrap();
    assert_eq!((&image.shape()[..], label), (&[30, 40, 3][..], 0));
}

#[test]
fn the_content_tells_the_format_and_not_the_name() {
    let root = folder(&["cat/really-png.jpg", "cat/really-png.tiff"]);
    let data = ImageFolder::open(root.path()).unwrap();
    assert!((0..2).all(|index| load(&data, index).is_ok()));
}

#[test]
fn a_file_that_cannot_be_used_is_named() {
    let root = tempfile::tempdir().unwrap();
    let whole = png(9, 9, [5; 3]);
    put(root.path(), "a/1-empty.png", b"");
    put(root.path(), "a/2-text.jpg", b"404 not found");
    put(root.path(), "a/3-cut.png", &whole[..whole.len() - 20]);
    put(root.path(), "a/4-gone.png", &whole);
    put(root.path(), "a/5-large.png", &whole);
    let data = ImageFolder::open(root.path()).unwrap();
    fs::remove_file(root.path().join("a/4-gone.png")).unwrap();
    let fixed = data.clone().with_transform(ImageTransform::train(4));
    for data in [data.with_max_pixels(80), fixed.with_max_pixels(80)] {
        for index in 0..data.len() {
            let error = load(&data, index).unwrap_err().to_string();
            let path = data.describe(index).unwrap();
            assert!(error.starts_with(&path), "{error}");
        }
        assert!(
            data.get(
                5,
                &mut SampleRng::for_sample(RngKey {
                    seed: 0,
                    epoch: 0,
                    position: 0
                })
            )
            .is_err()
        );
    }
}

/// 20 GiB would take all memory. The file is sparse, and has no room on the disk.
#[test]
fn a_file_that_is_too_large_is_not_read() {
    let root = folder(&["a/1.png", "a/2.png"]);
    let file = fs::OpenOptions::new()
        .write(true)
        .open(root.path().join("a/2.png"))
        .unwrap();
    file.set_len(20 << 30).unwrap();
    let data = ImageFolder::open(root.path()).unwrap();
    assert!(load(&data, 0).is_ok());
    let error = load(&data, 1).unwrap_err().to_string();
    assert!(error.starts_with(&data.describe(1).unwrap()), "{error}");
    let says = "the file has 21474836480 bytes or more, and max_file_bytes is 1073741824";
    assert!(error.ends_with(says), "{error}");
    let error = load(&data.clone().with_max_file_bytes(10), 0).unwrap_err();
    assert!(
        error.to_string().ends_with("max_file_bytes is 10"),
        "{error}"
    );
    assert!(load(&data.with_max_file_bytes(1_000), 0).is_ok());
}

/// Each bad file is an error in its batch's place, with its path; whatever it is, the files beside it are loaded by the same
/// threads.
#[test]
fn a_loader_gets_past_files_of_all_sorts() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/pictures");
    let root = tempfile::tempdir().unwrap();
    let kinds = [
        "12-bits.jpg",
        "lossless.jpg",
        "ycbcr.tif",
        "no-frame.gif",
        "picture.jp2",
    ];
    for name in kinds {
        let content = fs::read(fixtures.join(name)).unwrap();
        put(root.path(), &format!("a/bad-{name}.png"), &content);
    }
    let whole = fs::read(fixtures.join("lossy.webp")).unwrap();
    put(root.path(), "a/bad-half.webp", &whole[..whole.len() / 2]);
    put(root.path(), "a/bad-page.jpg", b"<html>404</html>");
    put(root.path(), "a/bad-empty.jpg", b"");
    for good in 0..8 {
        put(
            root.path(),
            &format!("a/good-{good}.png"),
            &png(9, 9, [good; 3]),
        );
    }
    let data = ImageFolder::open(root.path()).unwrap();
    let loader = DataLoader::builder(data.with_transform(ImageTransform::eval(4)))
        .shuffle(true)
        .num_workers(2)
        .build()
        .unwrap();
    let (mut good, mut said) = (0, Vec::new());
    for batch in loader.epoch(0) {
        match batch {
            Ok(_) => good += 1,
            Err(error) => said.push(error.to_string()),
        }
    }
    assert_eq!((good, said.len()), (8, kinds.len() + 3));
    for said in said {
        assert!(said.contains("bad-"), "{said}");
    }
}

#[test]
fn reading_ahead_is_a_wish() {
    let root = folder(&["cat/a.png", "cat/b.png"]);
    let data = ImageFolder::open(root.path()).unwrap();
    assert_eq!(data.lookahead() > 0, cfg!(target_os = "linux"));
    fs::remove_file(root.path().join("cat/a.png")).unwrap();
    data.will_need(&[0, 1, 2], Pass::new(1, 0)); // gone, there, and beyond
    assert!(load(&data, 1).is_ok());
    assert_eq!(data.with_read_ahead(0).lookahead(), 0);
}

#[test]
fn a_broken_header_fails_in_get_where_the_size_depends_on_it() {
    let root = tempfile::tempdir().unwrap();
    put(root.path(), "a/1.png", b"\x89PNG\r\n\x1a\n");
    let data = ImageFolder::open(root.path()).unwrap();
    let rng = &mut SampleRng::for_sample(RngKey {
        seed: 0,
        epoch: 0,
        position: 0,
    });
    assert!(data.get(0, rng).is_err());
    assert!(
        data.with_transform(ImageTransform::eval(8))
            .get(0, rng)
            .is_ok()
    );
}

#[test]
fn a_list_of_files_keeps_its_order() {
    let root = folder(&["x/1.png", "y/2.png"]);
    let at = |name: &str| root.path().join(name);
    let list = [
        (at("y/2.png"), "dog"),
        (at("x/1.png"), "cat"),
        (at("y/2.png"), "cat"),
    ];
    let data = ImageFolder::from_list(list).unwrap();
    assert_eq!(data.classes(), ["cat", "dog"]);
    assert_eq!(data.labels(), [1, 0, 0]);
    assert_eq!(names(&data, root.path()), ["y/2.png", "x/1.png", "y/2.png"]);
    assert_eq!(load(&data, 1).unwrap().0.as_slice(), [1, 2, 3].repeat(4));

    let numbers = ImageFolder::from_list([("a.png", 10), ("b.png", 2)]).unwrap();
    assert_eq!(
        (numbers.labels(), numbers.classes().len()),
        (&[10, 2][..], 0)
    );
    let mixed = ImageFolder::from_list([("a.png", "10"), ("b.png", "2"), ("c.png", "nan")]);
    let said = mixed.unwrap_err().to_string();
    assert!(
        said.starts_with("`ImageFolder::from_list`: sample 2: its class `nan` is no integer"),
        "{said}"
    );
    let none: [(&str, &str); 0] = [];
    let error = ImageFolder::from_list(none).unwrap_err();
    assert!(error.to_string().contains("empty"), "{error}");
}

#[test]
fn a_list_can_be_a_text_file() {
    let root = folder(&["cat/a b.png", "dog/c.png"]);
    let list = put(
        root.path(),
        "list.txt",
        b"dog/c.png\tbarks\r\n\ncat/a b.png\tmeows\n",
    );
    let data = ImageFolder::open_list(&list).unwrap();
    assert_eq!(names(&data, root.path()), ["dog/c.png", "cat/a b.png"]);
    assert_eq!(
        (data.classes(), data.labels()),
        (&["barks".into(), "meows".into()][..], &[0, 1][..])
    );
    assert!((0..2).all(|index| load(&data, index).is_ok()));

    // As others write them: with a byte order mark, and blanks around path and class.
    let list = put(
        root.path(),
        "list.txt",
        b"\xEF\xBB\xBFdog/c.png \t 10\r\n  cat/a b.png\t2 \n",
    );
    let data = ImageFolder::open_list(&list).unwrap();
    assert_eq!(names(&data, root.path()), ["dog/c.png", "cat/a b.png"]);
    assert_eq!((data.labels(), data.classes().len()), (&[10, 2][..], 0));
    let list = put(root.path(), "list.txt", b"\xEF\xBB\xBFdog/c.png\n");
    let data = ImageFolder::open_list(&list).unwrap();
    assert_eq!(names(&data, root.path()), ["dog/c.png"]);
    // Files without endings have no heading.
    let list = put(root.path(), "list.txt", b"a\tx\nb\ty\n");
    assert_eq!(ImageFolder::open_list(&list).unwrap().len(), 2);

    // Without classes, they are the folders: the same labels as when the folder is opened.
    let list = put(root.path(), "list.txt", b"dog/c.png\ncat/a b.png");
    let data = ImageFolder::open_list(&list).unwrap();
    assert_eq!(data.classes(), ["cat", "dog"]);
    assert_eq!(data.labels(), [1, 0]);

    let list = put(root.path(), "list.txt", b"a.png\t10\nb.png\t9\n");
    assert_eq!(ImageFolder::open_list(&list).unwrap().labels(), [10, 9]);
    // Folders named by numbers stay names, as in `open`.
    let list = put(root.path(), "list.txt", b"10/a.png\n9/b.png\n");
    let data = ImageFolder::open_list(&list).unwrap();
    assert_eq!(
        (data.classes(), data.labels()),
        (&["10".into(), "9".into()][..], &[0, 1][..])
    );
}

#[test]
fn a_list_that_makes_no_sense_is_an_error_with_the_line() {
    let root = folder(&[]);
    let said = |content: &[u8]| {
        let list = put(root.path(), "list.txt", content);
        match ImageFolder::open_list(&list).unwrap_err() {
            Error::DataSet { path, reason } => {
                assert_eq!(path, list);
                reason
            }
            other => panic!("{other}"),
        }
    };
    assert!(said(b"\n\n").contains("empty"));
    assert!(said(b"cat/a.png\ncat/b.png 3\n").starts_with("line 2 (`cat/b.png 3`)"));
    assert!(said(b"a.png\n").starts_with("line 1"));
    assert!(said(b"a.png\t \n").starts_with("line 1"));
    // A list as Caffe has them, more columns, and no path.
    for line in ["a/b.jpg 3", "a/b.jpg,3", "a.jpg\t3\ttrain", "\t3", " \t3"] {
        let expected = format!("line 1 (`{line}`) is neither path, tab and class");
        assert!(said(line.as_bytes()).starts_with(&expected));
    }
    assert!(
        said(b"a.jpg\t1\nb.jpg\tnan\nc.jpg\t10\n")
            .starts_with("line 2: its class `nan` is no integer")
    );
    assert!(said(b"\npath\tlabel\na.jpg\t1\n").contains("(`path\tlabel`) seems to be a heading"));
    assert!(said(b"path\tlabel\na.jpg\tcat\n").contains("seems to be a heading"));
    assert!(
        said(b"a\tlabel\nb\t10\nc\t2\n").starts_with("line 1: its class `label` is no integer")
    );
    assert!(said(b"a.jpg\t1.0\nb.jpg\t10.0\n").starts_with("line 1: its class `1.0` is a number"));
    assert!(said(b"\xFF\xFEa\0\t\0").starts_with("line 1 is UTF-16"));
    assert!(said(b"a.jpg\tx\nb\xE9.jpg\tx\n").starts_with("line 2 is not UTF-8"));
    // Sparse: as large as no memory is.
    let list = put(root.path(), "list.txt", b"a.jpg\tcat\n");
    let file = fs::OpenOptions::new().write(true).open(&list).unwrap();
    file.set_len(20 << 30).unwrap();
    let error = ImageFolder::open_list(&list).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("line 2 has more than 65,536 bytes")
    );
    let error = ImageFolder::open_index(root.path(), &list).unwrap_err();
    assert!(error.to_string().contains("it is not an index"));
    let error = ImageFolder::open_list(root.path().join("none.txt")).unwrap_err();
    assert!(
        matches!(error, Error::Io { .. }) && error.to_string().contains("none.txt"),
        "{error}"
    );
}

#[test]
fn classes_of_another_folder_give_the_same_labels() {
    let train = folder(&["ant/1.png", "bee/1.png", "cat/1.png"]);
    let val = folder(&["ant/2.png", "cat/2.png"]);
    let train = ImageFolder::open(train.path()).unwrap();
    let val = ImageFolder::open(val.path()).unwrap();
    assert_eq!(val.labels(), [0, 1]);
    let val = val.with_classes(train.classes()).unwrap();
    assert_eq!(
        (val.labels(), val.class_to_idx("bee")),
        (&[0, 2][..], Some(1))
    );
    let error = train.with_classes(["ant", "cat"]).unwrap_err();
    assert!(error.to_string().contains("`bee`"), "{error}");
}

#[test]
fn a_folder_that_opens_at_once_tells_no_progress() {
    let root = folder(&["cat/a.png"]);
    let data = ImageFolder::open_with_progress(root.path(), |at| panic!("{at:?}")).unwrap();
    assert_eq!(names(&data, root.path()), ["cat/a.png"]);
}

#[test]
fn an_index_gives_the_same_data_set_without_listing() {
    let root = folder(&["cat/a b.png", "cat/deep/c.png", "dog/é.png"]);
    let place = tempfile::tempdir().unwrap();
    let index = place.path().join("train.index");
    let data = ImageFolder::open(root.path()).unwrap();
    data.save_index(&index).unwrap();
    let again = ImageFolder::open_index(root.path(), &index).unwrap();
    assert!(again.paths().eq(data.paths()));
    assert_eq!(again.labels(), data.labels());
    assert_eq!(again.classes(), data.classes());
    assert!((0..3).all(|index| load(&again, index).is_ok()));

    // Nothing is looked at: a class that came is not seen, and a folder that moved is where the caller says.
    put(root.path(), "bird/d.png", b"");
    let moved = place.path().join("moved");
    fs::rename(root.path().join("cat"), {
        fs::create_dir(&moved).unwrap();
        moved.join("cat")
    })
    .unwrap();
    let there = ImageFolder::open_index(&moved, &index).unwrap();
    assert_eq!(there.classes(), ["cat", "dog"]);
    assert!(load(&there, 1).is_ok());
    let gone = load(&there, 2).unwrap_err().to_string();
    assert!(gone.contains("dog"), "{gone}");

    // A later one takes its place, and nothing else stays behind.
    let numbers = [(moved.join("cat/a b.png"), 7), ("b.png".into(), 1)];
    let list = ImageFolder::from_list(numbers).unwrap();
    list.save_index(&index).unwrap();
    let again = ImageFolder::open_index("", &index).unwrap();
    assert_eq!((again.labels(), again.classes().len()), (&[7, 1][..], 0));
    assert!(again.paths().eq(list.paths()) && load(&again, 0).is_ok());
    let left = fs::read_dir(place.path()).unwrap();
    assert_eq!(left.count(), 2, "the index and `moved`");
}

#[cfg(unix)]
#[test]
fn an_index_keeps_names_that_are_not_unicode() {
    use std::os::unix::ffi::OsStrExt;
    let name = std::ffi::OsStr::from_bytes(b"cat/\xFF\xFE.png");
    let place = tempfile::tempdir().unwrap();
    let index = place.path().join("index");
    let data = ImageFolder::from_list([(name, "cat")]).unwrap();
    data.save_index(&index).unwrap();
    let again = ImageFolder::open_index("root", &index).unwrap();
    assert_eq!(again.path(0), Some(Path::new("root").join(name)));
}

#[test]
fn an_index_that_cannot_be_used_or_made_is_an_error_that_names_it() {
    let root = folder(&["cat/a.png"]);
    let data = ImageFolder::open(root.path()).unwrap();
    let index = root.path().join("cat/a.png");
    match ImageFolder::open_index(root.path(), &index).unwrap_err() {
        Error::DataSet { path, reason } => {
            assert_eq!(path, index);
            assert!(reason.starts_with("it is not an index"), "{reason}");
        }
        other => panic!("{other}"),
    }
    let missing = root.path().join("missing/index");
    let error = ImageFolder::open_index(root.path(), &missing).unwrap_err();
    assert!(matches!(&error, Error::Io { path, .. } if *path == missing));
    // A folder that is not there, and one that is in the way.
    for place in [missing, root.path().join("cat")] {
        let error = data.save_index(&place).unwrap_err();
        assert!(matches!(&error, Error::Write { path, .. } if *path == place));
    }
    let left = fs::read_dir(root.path()).unwrap();
    assert_eq!(left.count(), 1, "no draft stays behind");
}

#[test]
fn exif_orientation_is_an_option() {
    let mut jpeg = Vec::new();
    image::codecs::jpeg::JpegEncoder::new(&mut jpeg)
        .write_image(&[9; 8 * 16 * 3], 16, 8, ExtendedColorType::Rgb8)
        .unwrap();
    let exif =
        b"\xFF\xE1\0\x22Exif\0\0MM\0\x2A\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x06\0\0\0\0\0\0";
    let turned = [&jpeg[..2], exif, &jpeg[2..]].concat();
    let root = tempfile::tempdir().unwrap();
    put(root.path(), "a/1.jpg", &turned);
    let data = ImageFolder::open(root.path()).unwrap();
    assert_eq!(load(&data, 0).unwrap().0.shape()[..], [8, 16, 3]);
    assert_eq!(
        load(&data.with_exif_orientation(true), 0)
            .unwrap()
            .0
            .shape()[..],
        [16, 8, 3]
    );
}

/// A transform that tells the size of its pictures tells how large samples are: large batches travel in parts from the first
/// epoch on.
#[test]
fn the_first_epoch_is_cut_as_later_ones_are() {
    let root = tempfile::tempdir().unwrap();
    for index in 0..12u8 {
        put(
            root.path(),
            &format!("class/{index:02}.png"),
            &png(20, 20, [index; 3]),
        );
    }
    let device = Device::cpu();
    device.cut_batches_at(2_000, 500);
    let plan = ImageTransform::new().center_crop(16);
    let data = ImageFolder::open(root.path()).unwrap().with_transform(plan);
    let loader = DataLoader::builder(data)
        .batch_size(6)
        .num_workers(2)
        .pin_memory(&device)
        .build()
        .unwrap();
    for epoch in 0..2 {
        for (number, batch) in loader
            .epoch(epoch)
            .prefetch_to_device(&device, 1)
            .enumerate()
        {
            let (images, _) = batch.unwrap();
            let images = images.to_host(true).unwrap().wait().unwrap();
            assert_eq!(images.shape()[..], [6, 16, 16, 3]);
            for (row, pixels) in images.as_slice().chunks_exact(16 * 16 * 3).enumerate() {
                let color = (6 * number + row) as u8;
                assert!(pixels.iter().all(|value| *value == color));
            }
        }
        // Of two batches six parts each, of a picture and a label.
        assert_eq!(loader.stats().transfers.count, 2 * 6 * 2, "epoch {epoch}");
    }
}
