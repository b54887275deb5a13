//! Files that numpy, safetensors and others wrote (tests/fixtures/arrays.py) become the numbers that they had; and files that are damaged,
//! or lie, are errors that say so.

use std::path::PathBuf;
use std::sync::LazyLock;

use pinfeed::arrays::{self, Array, Arrays, FileBytes, TokenFile};
use pinfeed::dataset::PackingStrategy;
use pinfeed::sampler::RandomSampler;
use pinfeed::tensor::{DType, Element};
use pinfeed::{DataLoader, Dataset, Device, Error, Result, SampleRng, Tensor, TensorDataset};
use proptest::prelude::*;
use serde_json::Value;

fn path(name: &str) -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    folder.join("tests/fixtures/arrays").join(name)
}

fn answers() -> Vec<Value> {
    serde_json::from_str(include_str!("../fixtures/arrays.json")).unwrap()
}

/// The numbers' bytes in little-endian order, as the answers have them.
fn hex<T: Element>(tensor: &Tensor<T>, bytes_of: impl Fn(&T) -> Vec<u8>) -> String {
    let bytes = tensor.as_slice().iter().flat_map(bytes_of);
    bytes.map(|byte| format!("{byte:02x}")).collect()
}

/// Calls a function that is generic over the type whose name is given, with what makes little-endian bytes of it.
macro_rules! with_type {
    ($name:expr, |$bytes:ident, $type:ident| $body:expr) => {
        with_type!(@ $name, $bytes, $type, $body, "u8" u8, "i8" i8, "u16" u16, "i16" i16, "u32" u32, "i32" i32, "i64" i64,
            "f16" half::f16, "bf16" half::bf16, "f32" f32, "f64" f64)
    };
    (@ $name:expr, $bytes:ident, $type:ident, $body:expr, $($known:literal $known_type:ty),*) => {
        match $name {
            $($known => {
                type $type = $known_type;
                let $bytes = |number: &$known_type| number.to_le_bytes().to_vec();
                $body
            })*
            other => panic!("{other}"),
        }
    };
}

/// The type's name, the shape and the bytes that an answer has.
fn told(answer: &Value) -> (&str, Vec<usize>, &str) {
    let shape = answer["shape"].as_array().unwrap().iter();
    let shape = shape.map(|length| length.as_u64().unwrap() as usize);
    (
        answer["dtype"].as_str().unwrap(),
        shape.collect(),
        answer["bytes"].as_str().unwrap(),
    )
}

fn compare<T: Element>(
    tensor: &Tensor<T>,
    answer: &Value,
    bytes_of: impl Fn(&T) -> Vec<u8>,
    what: &str,
) {
    let (dtype, shape, bytes) = told(answer);
    assert_eq!(
        (T::DTYPE.to_string().as_str(), &tensor.shape()[..]),
        (dtype, &shape[..]),
        "{what}"
    );
    // (Of zeros only, there is nothing to compare with.)
    let found = hex(tensor, bytes_of);
    let zeros = found.bytes().all(|digit| digit == b'0');
    assert!(found == bytes || (bytes.is_empty() && zeros), "{what}");
}

fn check_array(array: &Array, answer: &Value, what: &str) {
    let (dtype, shape, _) = told(answer);
    assert_eq!(
        (array.dtype().to_string().as_str(), &array.shape()[..]),
        (dtype, &shape[..]),
        "{what}"
    );
    with_type!(dtype, |bytes, T| {
        compare(&array.tensor::<T>().unwrap(), answer, bytes, what)
    });
}

fn check_arrays(arrays: &Arrays, answers: &Value, what: &str) {
    let answers = answers.as_object().unwrap();
    for (name, answer) in answers {
        let what = format!("{what}: {name}");
        let Some(says) = answer["says"].as_str() else {
            check_array(arrays.array(name).unwrap(), answer, &what);
            continue;
        };
        let error = arrays.tensor::<f32>(name).unwrap_err();
        check_error(&error, says, &what);
    }
    let there = answers.iter().filter(|(_, answer)| {
        !answer["says"]
            .as_str()
            .is_some_and(|says| says.contains("no array"))
    });
    let there: Vec<&str> = there.map(|(name, _)| name.as_str()).collect();
    let mut names: Vec<&str> = arrays.names().collect();
    names.sort_unstable();
    let mut sorted = there.clone();
    sorted.sort_unstable();
    assert_eq!((names, arrays.len()), (sorted, there.len()), "{what}");
}

/// It names the file, and says what is wrong with it.
fn check_error(error: &Error, says: &str, what: &str) {
    let error = error.to_string();
    let name = what.split(": ").next().unwrap();
    assert!(error.contains(says), "{what}: {error}\nshould say: {says}");
    assert!(
        error.contains(name) || what.contains("megatron-less"),
        "{what}: {error}"
    );
}

fn check_tokens(file: Result<TokenFile<u16>>, answer: &Value, what: &str) {
    if let Some(says) = answer["says"].as_str() {
        return check_error(&file.unwrap_err(), says, what);
    }
    let file = file.unwrap();
    if answer["dtype"].is_string() {
        compare(
            &file.tokens(),
            answer,
            |token| token.to_le_bytes().to_vec(),
            what,
        );
    }
    if let Some(documents) = answer["documents"].as_array() {
        let lengths: Vec<u64> = documents
            .iter()
            .map(|length| length.as_u64().unwrap())
            .collect();
        let file = match file.documents() {
            Ok(_) => file,
            Err(_) => file.split_after(50_256).unwrap(),
        };
        assert_eq!(file.documents().unwrap().lengths(), lengths, "{what}");
    }
}

/// `numpy.load`, `safetensors`, ... of the same files: tests/fixtures/arrays.py.
#[test]
fn arrays_are_what_their_writers_wrote() {
    let answers = answers();
    assert!(answers.len() > 120, "{}", answers.len());
    for answer in &answers {
        let (kind, name) = (
            answer["kind"].as_str().unwrap(),
            answer["file"].as_str().unwrap(),
        );
        let file = path(name);
        let says = answer["says"].as_str();
        match (kind, says) {
            ("npy", None) => check_array(&arrays::npy(file).unwrap(), answer, name),
            ("idx", None) => check_array(&arrays::idx(file).unwrap(), answer, name),
            ("npz", None) => check_arrays(&arrays::npz(file).unwrap(), &answer["arrays"], name),
            ("safetensors", None) => {
                check_arrays(&arrays::safetensors(file).unwrap(), &answer["arrays"], name);
            }
            ("npy", Some(says)) => check_error(&arrays::npy(file).unwrap_err(), says, name),
            ("idx", Some(says)) => check_error(&arrays::idx(file).unwrap_err(), says, name),
            ("npz", Some(says)) => check_error(&arrays::npz(file).unwrap_err(), says, name),
            ("safetensors", Some(says)) => {
                check_error(&arrays::safetensors(file).unwrap_err(), says, name);
            }
            ("cifar10" | "cifar100", None) => {
                let bytes = |label: &i64| label.to_le_bytes().to_vec();
                let told = answer["arrays"].as_array().unwrap();
                let (pictures, labels) = match kind {
                    "cifar10" => {
                        let (pictures, labels) = arrays::cifar10([file]).unwrap();
                        (pictures, vec![labels])
                    }
                    _ => {
                        let (pictures, coarse, fine) = arrays::cifar100([file]).unwrap();
                        (pictures, vec![coarse, fine])
                    }
                };
                compare(&pictures, &told[0], |byte| vec![*byte], name);
                assert_eq!(labels.len() + 1, told.len());
                for (labels, told) in labels.iter().zip(&told[1..]) {
                    compare(labels, told, bytes, name);
                }
            }
            ("cifar10", Some(says)) => {
                check_error(&arrays::cifar10([file]).unwrap_err(), says, name);
            }
            ("cifar100", Some(says)) => {
                check_error(&arrays::cifar100([file]).unwrap_err(), says, name);
            }
            ("csv", None) => {
                let table = arrays::csv(file).unwrap();
                for (column, answer) in answer["arrays"].as_object().unwrap() {
                    let what = format!("{name}: {column}");
                    if let Some(says) = answer["says"].as_str() {
                        check_error(&table.column::<f32>(column).unwrap_err(), says, &what);
                        continue;
                    }
                    with_type!(answer["dtype"].as_str().unwrap(), |bytes, T| {
                        compare(&table.column::<T>(column).unwrap(), answer, bytes, &what)
                    });
                }
            }
            ("csv", Some(says)) => check_error(&arrays::csv(file).unwrap_err(), says, name),
            ("raw", _) => check_tokens(TokenFile::raw(file), answer, name),
            ("llm_c", _) => check_tokens(TokenFile::llm_c(file), answer, name),
            ("megatron", _) => {
                check_tokens(TokenFile::megatron(path("corpus.bin"), file), answer, name);
            }
            (kind, _) => panic!("{kind}"),
        }
    }
}

/// nanoGPT's `get_batch`, for the same beginnings: tests/fixtures/arrays.py.
#[test]
fn windows_are_what_nanogpt_trains_from() {
    let answers = answers();
    let answer = answers
        .iter()
        .find(|answer| answer["file"] == "train.bin" && answer["ix"].is_array());
    let answer = answer.unwrap();
    let number = |value: &Value| value.as_u64().unwrap();
    let block = number(&answer["block"]) as usize;
    let tokens = TokenFile::<u16>::raw(path("train.bin"))
        .unwrap()
        .with_vocabulary(50_257);
    let windows = tokens.windows(block).unwrap().with_stride(1).unwrap();
    assert_eq!(windows.len(), number(&answer["starts"]));

    let starts: Vec<u64> = answer["ix"]
        .as_array()
        .unwrap()
        .iter()
        .map(number)
        .collect();
    let chosen = pinfeed::dataset::Subset::new(windows.to_i64(), starts).unwrap();
    let loader = DataLoader::builder(chosen)
        .batch_size(4)
        .num_workers(2)
        .build()
        .unwrap();
    let (x, y) = loader.epoch(0).next().unwrap().unwrap();
    let bytes = |token: &i64| token.to_le_bytes().to_vec();
    compare(&x, &answer["x"], bytes, "x");
    compare(&y, &answer["y"], bytes, "y");
}

#[test]
fn windows_of_any_stride_are_the_files_own_tokens() {
    let all = TokenFile::<u16>::raw(path("train.bin")).unwrap();
    let tokens = all.tokens().to_vec();
    assert_eq!((all.len(), all.is_empty()), (tokens.len() as u64, false));
    for (n, stride) in [(1, 1), (1, 7), (16, 16), (16, 1), (199, 1), (3, 500)] {
        let windows = all.windows(n).unwrap().with_stride(stride).unwrap();
        let starts = (0..tokens.len()).step_by(stride as usize);
        let starts: Vec<usize> = starts
            .take_while(|start| start + n < tokens.len())
            .collect();
        assert_eq!(windows.len(), starts.len() as u64, "{n} {stride}");
        let loader = DataLoader::builder(windows).batch_size(3).build().unwrap();
        let mut starts = starts.into_iter();
        for batch in &loader {
            let (x, y) = batch.unwrap();
            for (x, y) in x.as_slice().chunks(n).zip(y.as_slice().chunks(n)) {
                let start = starts.next().unwrap();
                assert_eq!(x, &tokens[start..start + n]);
                assert_eq!(y, &tokens[start + 1..start + n + 1]);
            }
        }
        assert_eq!(starts.next(), None);
    }
    let refused = [all.windows(0), all.windows(200), all.windows(usize::MAX)];
    for refused in refused {
        refused.unwrap_err();
    }
    let error = all.windows(4).unwrap().with_stride(0).unwrap_err();
    assert!(error.to_string().contains("with_stride"), "{error}");
}

/// A file of other tokens is an error, where the vocabulary is known; and a run goes on with the rest of it.
#[test]
fn a_token_beyond_the_vocabulary_is_an_error_that_says_where() {
    let tokens = [1u16, 2, 3, 4, 60_000, 5, 6, 7, 8]
        .map(u16::to_le_bytes)
        .concat();
    let tokens = FileBytes::new("train.bin", tokens).unwrap();
    let file = TokenFile::<u16>::raw(tokens).unwrap();
    assert_eq!(file.windows(4).unwrap().len(), 2);
    let file = file.with_vocabulary(50_257);
    let windows = file.windows(2).unwrap();
    let loader = DataLoader::builder(windows).build().unwrap();
    let batches: Vec<_> = loader.epoch(0).collect();
    let errors: Vec<String> = batches
        .iter()
        .flat_map(|batch| batch.as_ref().err())
        .map(Error::to_string)
        .collect();
    assert_eq!((batches.len(), errors.len()), (4, 2));
    for (error, place) in errors.iter().zip(["2 to 4", "4 to 6"]) {
        let says =
            "token 4 is 60000, and the vocabulary has 50257: is the file of another type than u16?";
        assert!(
            error.contains(says) && error.contains(&format!("(tokens {place} of train.bin)")),
            "{error}"
        );
    }
    // Negative numbers are in no vocabulary.
    let tokens = FileBytes::new("train.bin", vec![255u8, 0]).unwrap();
    let file = TokenFile::<i8>::raw(tokens).unwrap().with_vocabulary(200);
    let error = DataLoader::builder(file.windows(1).unwrap())
        .build()
        .unwrap()
        .epoch(0)
        .next()
        .unwrap();
    assert!(error.unwrap_err().to_string().contains("token 0 is -1"));
}

#[test]
fn documents_are_packed_from_where_they_lie() {
    let corpus = TokenFile::<u16>::megatron(path("corpus.bin"), path("corpus.idx")).unwrap();
    let tokens = corpus.tokens().to_vec();
    let rows = corpus
        .documents()
        .unwrap()
        .pack(60, PackingStrategy::Concatenated)
        .unwrap();
    assert_eq!((rows.real_tokens(), rows.len()), (200, 4));
    let mut seen = Vec::new();
    for row in &DataLoader::builder(rows).build().unwrap() {
        seen.extend(row.unwrap().tokens.to_vec());
    }
    assert_eq!(seen[..200], tokens);

    let raw = TokenFile::<u16>::raw(path("train.bin")).unwrap();
    let error = raw.documents().unwrap_err().to_string();
    assert!(error.contains("split_after"), "{error}");
    // Without the token in it, it is one document; an empty file has none.
    assert_eq!(
        raw.split_after(50_300)
            .unwrap()
            .documents()
            .unwrap()
            .lengths(),
        [200]
    );
    let nothing = TokenFile::<u16>::raw(FileBytes::new("empty.bin", Vec::new()).unwrap()).unwrap();
    let nothing = nothing.split_after(0).unwrap();
    assert_eq!(
        (nothing.is_empty(), nothing.documents().unwrap().len()),
        (true, 0)
    );
}

#[test]
fn windows_and_documents_are_resumed_and_other_files_are_refused() {
    let loader = |name: &str, stride| {
        let windows = TokenFile::<u16>::raw(path(name))
            .unwrap()
            .windows(8)
            .unwrap();
        let windows = windows.with_stride(stride).unwrap();
        DataLoader::builder(windows)
            .batch_size(5)
            .shuffle(true)
            .seed(17)
            .num_workers(2)
            .build()
            .unwrap()
    };
    let all: Vec<_> = loader("train.bin", 3)
        .epoch(0)
        .map(|batch| batch.unwrap().0.to_vec())
        .collect();
    let first = loader("train.bin", 3);
    let mut epoch = first.epoch(0);
    let begun: Vec<_> = epoch
        .by_ref()
        .take(4)
        .map(|batch| batch.unwrap().0.to_vec())
        .collect();
    let state = epoch.state();
    drop(epoch);
    let rest = loader("train.bin", 3);
    let mut epochs = rest.resume(0..1, &state).unwrap();
    let rest: Vec<_> = epochs
        .next()
        .unwrap()
        .map(|batch| batch.unwrap().0.to_vec())
        .collect();
    assert_eq!([begun, rest].concat(), all);
    // Windows of another stride, and another file of as many tokens.
    assert!(loader("train.bin", 2).resume(0..1, &state).is_err());
    let folder = tempfile::tempdir().unwrap();
    let other = folder.path().join("train.bin");
    let mut bytes = std::fs::read(path("train.bin")).unwrap();
    bytes.rotate_left(2);
    std::fs::write(&other, &bytes).unwrap();
    assert!(
        loader(other.to_str().unwrap(), 3)
            .resume(0..1, &state)
            .is_err()
    );
}

/// The numbers of a mapped file, and of one that is registered, are those of one that is read.
#[test]
#[expect(unsafe_code, reason = "it maps files")]
fn a_file_may_be_mapped_and_registered() {
    let device = Device::cpu();
    // SAFETY: nothing writes the fixtures.
    let map = |name: &str| unsafe { FileBytes::map(path(name)) }.unwrap();
    for name in [
        "type-lf4.npy",
        "shape-empty.npy",
        "shape-scalar.npy",
        "type-bf4.npy",
        "type-lf8.npy",
    ] {
        let read = arrays::npy(path(name)).unwrap();
        let mapped = arrays::npy(map(name)).unwrap();
        let registered = arrays::npy(map(name).register(&device).unwrap()).unwrap();
        assert_eq!(read.is_in_place(), !name.contains('b'), "{name}");
        with_type!(read.dtype().to_string().as_str(), |bytes, T| {
            let expected = hex(&read.tensor::<T>().unwrap(), bytes);
            assert_eq!(
                hex(&mapped.tensor::<T>().unwrap(), bytes),
                expected,
                "{name}"
            );
            match registered.tensor::<T>() {
                Ok(tensor) => {
                    assert_eq!(hex(&tensor, bytes), expected, "{name}");
                    assert!(tensor.is_pinned() || tensor.is_empty(), "{name}");
                }
                Err(error) => {
                    assert!(!registered.is_in_place(), "{name}");
                    assert!(error.to_string().contains("register its tensor"), "{error}");
                }
            }
            // One tensor of a file can be registered by itself, a copy as well.
            let alone = mapped.tensor::<T>().unwrap().register(&device).unwrap();
            assert_eq!(hex(&alone, bytes), expected, "{name}");
        });
    }
    // Several arrays of one file are page-locked by one call.
    let all = arrays::safetensors(map("all.safetensors").register(&device).unwrap()).unwrap();
    let (x, y) = (
        all.tensor::<f32>("float32").unwrap(),
        all.tensor::<i64>("int64").unwrap(),
    );
    assert!(x.is_pinned() && y.is_pinned());
    let table = TensorDataset::new((x, y)).unwrap();
    drop(all); // the tensors hold the file
    let loader = DataLoader::builder(table)
        .batch_size(2)
        .num_workers(2)
        .pin_memory(&device)
        .build()
        .unwrap();
    for batch in loader.epoch(0).prefetch_to_device(&device, 2) {
        let (x, y) = batch.unwrap();
        assert_eq!((&x.shape()[..], &y.shape()[..]), (&[2, 3][..], &[2, 3][..]));
    }
    let file = map("train.bin");
    let shared = file.clone();
    assert!(matches!(file.register(&device), Err(Error::Shared { .. })));
    assert_eq!(
        (shared.len(), shared.is_empty(), shared.is_registered()),
        (400, false, false)
    );
    let windows = TokenFile::<u16>::raw(shared.register(&device).unwrap())
        .unwrap()
        .windows(8)
        .unwrap();
    let mut rng = SampleRng::for_sample(pinfeed::rng::RngKey {
        seed: 0,
        epoch: 0,
        position: 0,
    });
    assert!(windows.get(3, &mut rng).unwrap().1.is_pinned());
}

#[test]
fn what_is_no_file_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let error = FileBytes::read(folder.path()).unwrap_err().to_string();
    assert!(error.ends_with("it is not a regular file"), "{error}");
    let missing = folder.path().join("missing.npy");
    let error = arrays::npy(&missing).unwrap_err();
    assert!(
        matches!(&error, Error::Io { path, .. } if *path == missing),
        "{error}"
    );
    let none: [&str; 0] = [];
    assert!(matches!(
        arrays::cifar10(none),
        Err(Error::InvalidOption { .. })
    ));
}

/// A FIFO without a writer would wait for ever.
#[cfg(unix)]
#[test]
fn a_fifo_is_not_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let fifo = folder.path().join("x.npy");
    let made = std::process::Command::new("mkfifo")
        .arg(&fifo)
        .status()
        .unwrap();
    assert!(made.success());
    let error = arrays::npy(&fifo).unwrap_err().to_string();
    assert!(error.ends_with("it is not a regular file"), "{error}");
}

#[test]
fn windows_that_begin_anywhere_are_drawn_as_nanogpt_does() {
    let windows = TokenFile::<u16>::raw(path("train.bin"))
        .unwrap()
        .windows(16)
        .unwrap();
    let windows = windows.with_stride(1).unwrap();
    let anywhere = RandomSampler::new(windows.len())
        .with_replacement()
        .with_num_samples(1_000u64);
    let loader = DataLoader::builder(windows)
        .batch_size(50)
        .sampler(anywhere)
        .seed(17)
        .build()
        .unwrap();
    let first = |epoch| -> Vec<u16> {
        let batches = loader.epoch(epoch);
        batches
            .flat_map(|batch| {
                batch
                    .unwrap()
                    .0
                    .as_slice()
                    .chunks(16)
                    .map(|x| x[0])
                    .collect::<Vec<_>>()
            })
            .collect()
    };
    assert_eq!(first(0).len(), 1_000);
    assert_ne!(first(0), first(1));
}

/// Every file of the fixtures, by every function; each is an error or numbers, and nothing else.
fn open_as_everything(bytes: &[u8]) -> Vec<String> {
    let file = || FileBytes::new("some/file", bytes.to_vec()).unwrap();
    let mut errors = Vec::new();
    let mut note = |error: Error| errors.push(error.to_string());
    for array in [arrays::npy(file()), arrays::idx(file())] {
        match array.and_then(|array| read(&array)) {
            Ok(()) => {}
            Err(error) => note(error),
        }
    }
    for arrays in [arrays::npz(file()), arrays::safetensors(file())] {
        match arrays {
            Ok(arrays) => {
                for name in arrays.names() {
                    if let Err(error) = arrays.array(name).and_then(read) {
                        note(error);
                    }
                }
            }
            Err(error) => note(error),
        }
    }
    match arrays::csv(file()) {
        Ok(table) => {
            for name in table.names() {
                if let Err(error) = table.column::<f32>(name) {
                    note(error);
                }
            }
        }
        Err(error) => note(error),
    }
    let tokens = FileBytes::read(path("corpus.bin")).unwrap();
    for tokens in [
        TokenFile::<u16>::raw(file()),
        TokenFile::llm_c(file()),
        TokenFile::megatron(tokens, file()),
    ] {
        if let Err(error) = tokens {
            note(error);
        }
    }
    errors
}

fn read(array: &Array) -> Result<()> {
    fn some<T: Element>(array: &Array) -> Result<()> {
        let tensor = array.tensor::<T>()?;
        assert_eq!(tensor.shape(), array.shape());
        Ok(())
    }
    match array.dtype() {
        DType::U8 => some::<u8>(array),
        DType::F32 => some::<f32>(array),
        DType::F64 => some::<f64>(array),
        DType::I64 => some::<i64>(array),
        _ => Ok(()),
    }
}

/// Files that are small enough to be cut at each byte.
fn small() -> Vec<Vec<u8>> {
    let mut files = Vec::new();
    for answer in answers() {
        let file = path(answer["file"].as_str().unwrap());
        let bytes = std::fs::read(file).unwrap();
        if bytes.len() < 700 && answer["says"].is_null() {
            files.push(bytes);
        }
    }
    assert!(files.len() > 30, "{}", files.len());
    files
}

/// A download that stopped is an error wherever it did, which names the file.
#[test]
fn a_file_that_is_cut_off_is_an_error() {
    for answer in answers() {
        let (kind, name) = (
            answer["kind"].as_str().unwrap(),
            answer["file"].as_str().unwrap(),
        );
        let whole = std::fs::read(path(name)).unwrap();
        if !answer["says"].is_null() || whole.len() > 4_000 {
            continue;
        }
        for length in 0..whole.len() {
            let cut = FileBytes::new("some/file", whole[..length].to_vec()).unwrap();
            let error = match kind {
                "npy" => arrays::npy(cut).map(drop),
                "idx" => arrays::idx(cut).map(drop),
                "npz" => arrays::npz(cut).map(drop),
                "safetensors" => arrays::safetensors(cut).map(drop),
                "llm_c" => TokenFile::<u16>::llm_c(cut).map(drop),
                "megatron" => TokenFile::<u16>::megatron(path("corpus.bin"), cut).map(drop),
                // Tokens without a header end anywhere, and so do lines.
                "raw" if length % 2 == 1 => TokenFile::<u16>::raw(cut).map(drop),
                _ => continue,
            };
            let Err(error) = error else {
                panic!("{name}: nobody notices that it ends at byte {length}");
            };
            let error = error.to_string();
            assert!(error.contains("some/file"), "{name}, {length}: {error}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    /// Bytes of a file that are changed, left out or doubled make another array or an error, and never a panic.
    #[test]
    fn a_damaged_file_is_an_error_or_an_array(
        which in any::<prop::sample::Index>(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0..4u8), 1..6),
    ) {
        static FILES: LazyLock<Vec<Vec<u8>>> = LazyLock::new(small);
        let mut bytes = which.get(&FILES).clone();
        for (place, value, how) in changes {
            if bytes.is_empty() {
                break;
            }
            let place = place.index(bytes.len());
            match how {
                0 => bytes.truncate(place),
                1 => bytes.insert(place, value),
                2 => bytes[place] = 0xff,
                _ => bytes[place] = value,
            }
        }
        for error in open_as_everything(&bytes) {
            prop_assert!(error.contains("some/file") || error.contains("corpus.bin"), "{}", error);
        }
    }

    #[test]
    fn text_is_a_table_or_an_error(text in "[a,\"0-2\r\n;é ]{0,60}") {
        let file = FileBytes::new("some/file", text.clone().into_bytes()).unwrap();
        match arrays::csv(file) {
            Ok(table) => {
                let lines = text.lines().count();
                prop_assert!(table.rows() < lines.max(1));
                let classes = table.names().first().map(|name| table.classes(name, &[]));
                prop_assert!(classes.is_some_and(|classes| classes.is_err() || table.rows() == 0));
            }
            Err(error) => prop_assert!(error.to_string().contains("some/file"), "{}", error),
        }
    }
}
