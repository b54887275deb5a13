//! Lines of text files, as a stream.

#![cfg(not(miri))] // it reads files

use std::fs::{self, File};
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use pinfeed::iterable::{self, ItemIter, IterableDataset, Line, Shard};
use pinfeed::loader::{Iterable, IterableState, OnError, World};
use pinfeed::{DataLoader, Error, Tensor};
use proptest::prelude::*;

fn files<T: AsRef<[u8]>>(folder: &Path, texts: &[T]) -> Vec<PathBuf> {
    let paths = (0..texts.len()).map(|number| folder.join(format!("{number}.txt")));
    let paths: Vec<PathBuf> = paths.collect();
    for (path, text) in paths.iter().zip(texts) {
        fs::write(path, text).unwrap();
    }
    paths
}

fn open(paths: &[PathBuf]) -> iterable::LinesIter {
    iterable::lines(paths).open(0, Shard::new(0, 1, 0)).unwrap()
}

/// What a stream gives, without the folder's name: text with where it is from, or what went wrong.
fn rest(stream: &mut iterable::LinesIter) -> Vec<String> {
    let show = |item: Result<Line, pinfeed::BoxError>| match item {
        Ok(line) => {
            let file = line.path().file_name().unwrap().display();
            format!("{file}:{} {}", line.number(), &*line)
        }
        Err(error) => {
            let error = error.to_string();
            let name = error.split_once(',').unwrap().0;
            let folder = Path::new(name).parent().unwrap().display().to_string();
            error.replace(&format!("{folder}/"), "")
        }
    };
    std::iter::from_fn(|| stream.next()).map(show).collect()
}

fn texts(paths: &[PathBuf]) -> Vec<String> {
    let mut stream = open(paths);
    let lines = std::iter::from_fn(|| stream.next());
    lines.map(|line| line.unwrap().into_string()).collect()
}

/// With the answers of Python 3: `open(path, encoding="utf-8-sig", newline="\n")` gives these lines, less the `\n` or `\r\n` at their ends.
#[test]
fn lines_are_those_of_python() {
    let folder = tempfile::tempdir().unwrap();
    for (text, expected) in [
        ("", &[][..]),
        ("a", &["a"]),
        ("a\n", &["a"]),
        ("a\r\n", &["a"]),
        ("a\r\nb", &["a", "b"]),
        ("a\n\nb\n\n", &["a", "", "b", ""]),
        ("\n", &[""]),
        ("\r\n\r\n", &["", ""]),
        ("a\r", &["a\r"]),
        ("a\rb\r\r\n", &["a\rb\r"]),
        (
            "a\u{2028}b\u{85}c\u{b}d\u{c}e\0\n",
            &["a\u{2028}b\u{85}c\u{b}d\u{c}e\0"],
        ),
        ("\u{feff}", &[]),
        ("\u{feff}\n", &[""]),
        ("\u{feff}a\n\u{feff}b", &["a", "\u{feff}b"]),
        ("\u{feff}\u{feff}a", &["\u{feff}a"]),
        ("größe\t😀\n", &["größe\t😀"]),
    ] {
        let paths = files(folder.path(), &[text]);
        assert_eq!(texts(&paths), expected, "{text:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// As the standard library's, whatever the text; and from any place on.
    #[test]
    fn lines_are_those_of_the_standard_library(
        contents in prop::collection::vec("[ab\r\n\u{feff}é]{0,12}", 1..5),
    ) {
        let folder = tempfile::tempdir().unwrap();
        let paths = files(folder.path(), &contents);
        let without_mark = contents.iter().map(|text| text.strip_prefix('\u{feff}').unwrap_or(text));
        let expected: Vec<&str> = without_mark.flat_map(str::lines).collect();
        prop_assert_eq!(texts(&paths), &*expected);
        let whole = rest(&mut open(&paths));
        let mut stream = open(&paths);
        for given in 0..=whole.len() {
            let mut resumed = open(&paths);
            resumed.seek(&stream.state().unwrap()).unwrap();
            prop_assert_eq!(resumed.state(), stream.state());
            prop_assert_eq!(rest(&mut resumed), &whole[given..]);
            stream.next();
        }
    }
}

/// What cannot be had is an error that names the file and the line, and the others come.
#[test]
fn errors_name_the_file_and_the_line() {
    let folder = tempfile::tempdir().unwrap();
    let contents: [&[u8]; 5] = [
        b"one\nt\xffwo\n\xc3\r\nfour",
        b"missing",
        b"",
        b"\xff\xfeo\0n\0e\0\n",
        b"last\n",
    ];
    let mut paths = files(folder.path(), &contents);
    fs::remove_file(&paths[1]).unwrap();
    fs::remove_file(&paths[2]).unwrap();
    fs::create_dir(&paths[2]).unwrap();
    paths.swap(1, 3);
    let missing = File::open(&paths[3]).unwrap_err();
    let is_directory = fs::read(&paths[2]).unwrap_err();
    let mut seen = Vec::new();
    let mut stream = open(&paths);
    while let Some(item) = stream.next() {
        let text = match item {
            Ok(line) => line.to_string(),
            Err(error) => error.to_string(),
        };
        seen.push(text.replace(&format!("{}/", folder.path().display()), ""));
    }
    let expected = [
        "one".to_owned(),
        "0.txt, line 2: it is not UTF-8: invalid utf-8 sequence of 1 bytes from index 1".to_owned(),
        "0.txt, line 3: it is not UTF-8: incomplete utf-8 byte sequence from index 0".to_owned(),
        "four".to_owned(),
        "3.txt, line 1: the file seems to be UTF-16: convert it to UTF-8".to_owned(),
        format!("2.txt, line 1: {is_directory}"),
        format!("1.txt: {missing}"),
        "last".to_owned(),
    ];
    assert_eq!(seen, expected);
    // As a loader tells it, and leaves it out.
    let lengths = || iterable::lines(&paths).map(|line, _| Ok(line.len() as i64));
    let loader = DataLoader::iterable(lengths())
        .batch_size(2)
        .build()
        .unwrap();
    let errors = loader.epoch(0).filter_map(Result::err);
    let errors: Vec<String> = errors.map(|error| error.to_string()).collect();
    assert!(
        errors[0].contains("0.txt, line 2: it is not UTF-8"),
        "{errors:?}"
    );
    let loader: DataLoader<Tensor<i64>, Iterable> = DataLoader::iterable(lengths())
        .batch_size(9)
        .on_error(OnError::Skip { at_most: 5 })
        .build()
        .unwrap();
    let seen: Vec<i64> = loader
        .epoch(0)
        .flat_map(|batch| batch.unwrap().to_vec())
        .collect();
    assert_eq!((seen, loader.stats().bad.skipped), (vec![3, 4, 4], 5));
}

/// A file without lines is not read into memory, and only so much of it is read.
#[test]
fn a_line_has_a_limit() {
    let folder = tempfile::tempdir().unwrap();
    let paths = files(folder.path(), &["a\n", "b\n"]);
    let mut zeros = fs::OpenOptions::new().append(true).open(&paths[0]).unwrap();
    zeros.set_len(20 << 30).unwrap();
    zeros.seek(SeekFrom::End(0)).unwrap();
    zeros.write_all(b"\nc\n").unwrap();
    assert_eq!(
        rest(&mut open(&paths)),
        [
            "0.txt:1 a",
            "0.txt, line 2: it has more than 256 MiB, and the file is hardly text",
            "1.txt:1 b",
        ]
    );
}

/// Each file goes to one rank, and to each rank a file.
#[test]
fn files_are_split_among_ranks() {
    let folder = tempfile::tempdir().unwrap();
    let contents: Vec<String> = (0..7)
        .map(|file| format!("{file}\n{}\n", 10 * file))
        .collect();
    let paths = files(folder.path(), &contents);
    let numbers = || {
        iterable::lines(paths.clone())
            .map(|line, _| line.parse::<i64>().map_err(|error| line.error(error)))
    };
    for ranks in 1..=7 {
        for workers in [0, 2] {
            let mut all = Vec::new();
            for rank in 0..ranks {
                let loader = DataLoader::iterable(numbers())
                    .batch_size(3)
                    .num_workers(workers)
                    .world(World::new(rank, ranks).unwrap())
                    .build()
                    .unwrap();
                let own = loader.epoch(0).flat_map(|batch| batch.unwrap().to_vec());
                let own: Vec<i64> = own.collect();
                let expected = (0..7).filter(|file| file % ranks == rank);
                let expected = expected.flat_map(|file| [file as i64, 10 * file as i64]);
                assert!(expected.eq(own.iter().copied()), "{own:?}");
                all.extend(own);
            }
            assert_eq!(all.len(), 14);
        }
    }
    for rank in [0, 7] {
        let builder = DataLoader::iterable(numbers()).world(World::new(rank, 8).unwrap());
        let loader = builder.build().unwrap();
        let error = loader.epoch(0).next().unwrap().unwrap_err();
        assert!(matches!(error, Error::Iterable { .. }));
        assert!(error.to_string().contains("7 files for 8 ranks"), "{error}");
    }
    let none: [&str; 0] = [];
    let lengths = iterable::lines(none).map(|line, _| Ok(line.len() as i64));
    let loader = DataLoader::iterable(lengths).build().unwrap();
    let error = loader.epoch(0).next().unwrap().unwrap_err().to_string();
    assert!(error.contains("0 files for 1 ranks"), "{error}");
}

/// A run goes on where it was, in another folder too; and not in other files.
#[test]
fn a_run_is_resumed_in_the_same_files_only() {
    let folder = tempfile::tempdir().unwrap();
    let contents: Vec<String> = (0..4)
        .map(|file| {
            (0..30)
                .map(|line| format!("{}\r\n", 100 * file + line))
                .collect()
        })
        .collect();
    let paths = files(folder.path(), &contents);
    let loader_of = |paths: &[PathBuf]| -> DataLoader<Tensor<i64>, Iterable> {
        let lines = iterable::lines(paths).map(|line, _| Ok(line.parse::<i64>()?));
        let builder = DataLoader::iterable(lines.shuffle(9)).batch_size(4).seed(5);
        builder.num_workers(2).build().unwrap()
    };
    let values = |batch: Result<Tensor<i64>, Error>| batch.unwrap().to_vec();
    let loader = loader_of(&paths);
    let whole: Vec<i64> = loader.epoch(0).flat_map(values).collect();
    let (mut seen, mut state) = (Vec::new(), IterableState::default());
    let elsewhere = tempfile::tempdir().unwrap();
    let moved = files(elsewhere.path(), &contents);
    for (paths, stop) in [(&paths, 1), (&moved, 9), (&paths, 2), (&moved, usize::MAX)] {
        let loader = loader_of(paths);
        let mut epoch = loader.resume(0..1, &state).unwrap().next().unwrap();
        seen.extend(epoch.by_ref().take(stop).flat_map(values));
        state = epoch.state().to_string().parse().unwrap();
    }
    assert_eq!(seen, whole);

    let mut epoch = loader.epoch(0);
    epoch.by_ref().take(11).for_each(|batch| _ = values(batch));
    let state = epoch.state(); // within the second file
    let fewer = loader_of(&paths[..3]).resume(0..1, &state).unwrap_err();
    assert!(matches!(fewer, Error::State { .. }), "{fewer}");
    for changed in ["0\r\n".repeat(5), contents[1].replace("\r\n", "  ")] {
        fs::write(&moved[1], changed).unwrap();
        let loader = loader_of(&moved);
        let mut epoch = loader.resume(0..1, &state).unwrap().next().unwrap();
        let error = epoch.next().unwrap().unwrap_err().to_string();
        assert!(
            error.contains("1.txt, line ") && error.contains("it is not what it was"),
            "{error}"
        );
        assert!(epoch.next().is_none());
    }
    fs::remove_file(&moved[1]).unwrap();
    let loader = loader_of(&moved);
    let mut epoch = loader.resume(0..1, &state).unwrap().next().unwrap();
    let error = epoch.next().unwrap().unwrap_err().to_string();
    assert!(error.contains("1.txt"), "{error}");
}

/// The heading of each file is left out, whatever it is, and a run that is resumed behind it goes on.
#[test]
fn the_first_lines_of_each_file_are_left_out() {
    let folder = tempfile::tempdir().unwrap();
    let contents: [&[u8]; 4] = [
        b"\xef\xbb\xbfid\xff\n-\n1\n2\n",
        b"id",
        b"id\n-\n",
        b"id\n-\n3",
    ];
    let paths = files(folder.path(), &contents);
    let source = iterable::lines(&paths).skip_lines(2);
    let open = || source.open(0, Shard::new(0, 1, 0)).unwrap();
    assert_eq!(rest(&mut open()), ["0.txt:3 1", "0.txt:4 2", "3.txt:3 3"]);
    let mut stream = open();
    stream.next();
    let mut resumed = open();
    resumed.seek(&stream.state().unwrap()).unwrap();
    assert_eq!(rest(&mut resumed), ["0.txt:4 2", "3.txt:3 3"]);
    assert_ne!(source.fingerprint(), iterable::lines(&paths).fingerprint());
}
