//! Rows a second of Parquet files: by this library, and by arrow's own reader, which only decodes.
//!
//!     cargo bench -p pinfeed-parquet --bench rows -- /tmp/rows
//!
//! arrow's reader has two rows for numbers: one drops what it decodes, as the least that any reader must do, and one copies it into tensors, as
//! `tensor` does. A second argument is what to measure: `numbers`, `blocks`, `tensor` or `images`. `rows.py` beside this file writes the folder, says what is in it, and measures `datasets` and LitData. A line is the best of three epochs.

#![allow(clippy::unwrap_used, clippy::expect_used)] // a bench that cannot read its files ends

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Instant;

use arrow_array::cast::AsArray;
use arrow_array::types::{Float32Type, Int64Type};
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use pinfeed::collate::Stack;
use pinfeed::dataset::IntoDataset;
use pinfeed::loader::Builder;
use pinfeed::{Batch, DataLoader, Host, TensorDataset};
use pinfeed_parquet::{Numbers, Parquet};

const FEATURES: [&str; 8] = ["x0", "x1", "x2", "x3", "x4", "x5", "x6", "x7"];

fn main() {
    // (Cargo gives it arguments of its own.)
    let mut arguments = std::env::args()
        .skip(1)
        .filter(|argument| !argument.starts_with('-'));
    let Some(folder) = arguments
        .next()
        .map(PathBuf::from)
        .filter(|folder| folder.is_dir())
    else {
        println!("nothing is measured: give the folder that `rows.py write` has made");
        return;
    };
    let wanted = arguments.next();
    let is_wanted = |name: &str| wanted.as_deref().is_none_or(|wanted| wanted == name);
    if is_wanted("numbers") {
        numbers(&folder.join("numbers"));
    }
    if is_wanted("blocks") {
        blocks(&folder.join("numbers"));
    }
    if is_wanted("tensor") {
        table(&folder.join("numbers"));
    }
    if is_wanted("images") {
        pictures(&folder.join("images"));
    }
}

/// The best of three epochs: by the clock and, on Linux, by what the processor did for it, which other programs disturb less.
fn measure(name: &str, mut epoch: impl FnMut() -> u64) {
    let (mut best, mut best_by_processor) = (0f64, 0f64);
    for _ in 0..3 {
        let (began, busy) = (Instant::now(), processor_seconds());
        let rows = epoch() as f64;
        best = best.max(rows / began.elapsed().as_secs_f64());
        best_by_processor = best_by_processor.max(rows / (processor_seconds() - busy));
    }
    println!("{name:60} {best:12.0} rows/s, {best_by_processor:12.0} a second of one core");
}

/// How long this process has kept cores busy, in hundredths of a second (`man proc`: `utime` and `stime`).
fn processor_seconds() -> f64 {
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let behind_name = stat.rsplit(')').next().unwrap_or_default();
    let ticks = behind_name.split_whitespace().skip(11).take(2);
    ticks
        .filter_map(|ticks| ticks.parse::<f64>().ok())
        .sum::<f64>()
        / 100.0
}

/// The Parquet files of a folder, in order.
fn files(folder: &Path) -> Vec<PathBuf> {
    let files = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let mut files: Vec<PathBuf> = files
        .filter(|path| path.extension().is_some_and(|of| of == "parquet"))
        .collect();
    files.sort();
    files
}

/// How many threads read with arrow's reader, each a file.
fn threads() -> impl Iterator<Item = usize> {
    [1, 2, 4].into_iter().filter(|of| *of <= cores())
}

fn cores() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

/// Decodes all files, each by one of several threads, and drops what comes.
fn arrow(folder: &Path, threads: usize) -> u64 {
    let files = files(folder);
    let (files, rows) = (Mutex::new(files), Mutex::new(0));
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let Some(file) = files.lock().unwrap().pop() else {
                        break;
                    };
                    let reader =
                        ParquetRecordBatchReaderBuilder::try_new(File::open(file).unwrap())
                            .unwrap();
                    let reader = reader.with_batch_size(8192).build().unwrap();
                    let decoded: u64 = reader.map(|batch| batch.unwrap().num_rows() as u64).sum();
                    *rows.lock().unwrap() += decoded;
                }
            });
        }
    });
    rows.into_inner().unwrap()
}

/// Decodes all files, each by one of several threads, and copies what comes into two tensors: the eight features of a row beside each other, and
/// labels.
fn arrow_tensor(folder: &Path, threads: usize) -> u64 {
    let readers = files(folder)
        .into_iter()
        .map(|file| ParquetRecordBatchReaderBuilder::try_new(File::open(file).unwrap()).unwrap());
    let readers: Vec<_> = readers.collect();
    let rows_of = |of: &ParquetRecordBatchReaderBuilder<File>| {
        usize::try_from(of.metadata().file_metadata().num_rows()).unwrap()
    };
    let rows: usize = readers.iter().map(rows_of).sum();
    let (mut features, mut labels) = (vec![0f32; 8 * rows], vec![0i64; rows]);
    let (mut rest, mut rest_of_labels) = (&mut features[..], &mut labels[..]);
    let mut work = Vec::new();
    for reader in readers {
        let rows = rows_of(&reader);
        let (own, behind) = rest.split_at_mut(8 * rows);
        let (own_labels, labels_behind) = rest_of_labels.split_at_mut(rows);
        (rest, rest_of_labels) = (behind, labels_behind);
        work.push((reader, own, own_labels));
    }
    let work = Mutex::new(work);
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let Some((reader, mut features, mut labels)) = work.lock().unwrap().pop()
                    else {
                        break;
                    };
                    for batch in reader.with_batch_size(8192).build().unwrap() {
                        let batch = batch.unwrap();
                        let (own, behind) = features.split_at_mut(8 * batch.num_rows());
                        for (at, name) in FEATURES.into_iter().enumerate() {
                            let column = batch.column_by_name(name).unwrap();
                            let column = column.as_primitive::<Float32Type>().values();
                            let rows = own.chunks_exact_mut(8).zip(column);
                            rows.for_each(|(row, value)| row[at] = *value);
                        }
                        features = behind;
                        let (own, behind) = labels.split_at_mut(batch.num_rows());
                        let column = batch.column_by_name("y").unwrap();
                        own.copy_from_slice(column.as_primitive::<Int64Type>().values());
                        labels = behind;
                    }
                }
            });
        }
    });
    (features.len() / 8).min(labels.len()) as u64
}

fn epochs<B: Batch>(
    name: &str,
    loader: impl Fn(bool, usize) -> DataLoader<B>,
    count: impl Fn(B) -> u64,
) {
    for (order, shuffle) in [("", true), (", in order", false)] {
        for workers in [1, 2, 4, 8, 16].into_iter().filter(|of| *of <= cores()) {
            let loader = loader(shuffle, workers);
            let mut epoch = 0;
            measure(&format!("{name}, {workers} workers{order}"), || {
                epoch += 1;
                loader.epoch(epoch).map(|batch| count(batch.unwrap())).sum()
            });
        }
    }
}

fn loader<D: IntoDataset>(
    data: D,
    batch: usize,
    shuffle: bool,
    workers: usize,
) -> Builder<D::Dataset, Stack> {
    DataLoader::builder(data)
        .batch_size(batch)
        .shuffle(shuffle)
        .seed(1)
        .num_workers(workers)
}

fn numbers(folder: &Path) {
    for threads in threads() {
        measure(
            &format!("arrow's reader, numbers, {threads} threads"),
            || arrow(folder, threads),
        );
    }
    let place = folder.display().to_string();
    let columns = || FEATURES.into_iter().chain(["y"]);
    let data = Parquet::open(&place).unwrap().columns(columns());
    let data = data.build(|row, _| {
        let mut features = [0f32; 8];
        for (feature, name) in features.iter_mut().zip(FEATURES) {
            *feature = row.get(name)?;
        }
        Ok((features, row.get::<i64>("y")?))
    });
    let data = data.unwrap();
    println!("{data:?}");
    epochs(
        "pinfeed, numbers, rows",
        |shuffle, workers| {
            loader(data.clone(), 1024, shuffle, workers)
                .build()
                .unwrap()
        },
        |(_, labels)| labels.len() as u64,
    );
}

/// Numbers as rows of tensors.
fn blocks(folder: &Path) {
    let place = folder.display().to_string();
    let fields = (Numbers::<f32>::of(FEATURES), Numbers::<i64>::of(["y"]));
    let data = Parquet::open(&place)
        .unwrap()
        .build_numbers(fields)
        .unwrap();
    println!("{data:?}");
    epochs(
        "pinfeed, numbers, `build_numbers`",
        |shuffle, workers| {
            loader(data.clone(), 1024, shuffle, workers)
                .build()
                .unwrap()
        },
        |(_, labels)| labels.len() as u64,
    );
}

/// Reading all numbers, and epochs of what was read.
fn table(folder: &Path) {
    for threads in threads() {
        let name = format!("arrow's reader, numbers, {threads} threads");
        measure(&name, || arrow(folder, threads));
        let name = format!("arrow's reader, numbers, into tensors, {threads} threads");
        measure(&name, || arrow_tensor(folder, threads));
    }
    let place = folder.display().to_string();
    let read = |columns: &[&'static str]| {
        Parquet::open(&place)
            .unwrap()
            .columns(columns.iter().copied())
    };
    let mut table = None;
    measure("pinfeed, numbers, `tensor`: read once", || {
        let features = read(&FEATURES).tensor::<f32>().unwrap();
        let labels = read(&["y"]).tensor::<i64>().unwrap();
        let rows = labels.len() as u64;
        table = Some((features, labels));
        rows
    });
    let (features, labels) = table.unwrap();
    let data = Arc::new(TensorDataset::new((features, labels)).unwrap());
    for workers in [1, 2, 4, 8, 16].into_iter().filter(|of| *of <= cores()) {
        let loader = DataLoader::builder(Arc::clone(&data))
            .batch_size(1024)
            .shuffle(true)
            .seed(1)
            .num_workers(workers)
            .build()
            .unwrap();
        let mut epoch = 0;
        measure(
            &format!("pinfeed, numbers, `tensor`: each epoch, {workers} workers"),
            || {
                epoch += 1;
                loader
                    .epoch(epoch)
                    .map(|batch| batch.unwrap().1.len() as u64)
                    .sum()
            },
        );
    }
}

fn pictures(folder: &Path) {
    for threads in threads() {
        measure(
            &format!("arrow's reader, images, {threads} threads"),
            || arrow(folder, threads),
        );
    }
    let place = folder.display().to_string();
    let data = Parquet::open(&place)
        .unwrap()
        .columns(["image.bytes", "label"]);
    let data = data
        .build(|row, _| {
            Ok((
                Host(row.bytes("image.bytes")?.to_vec()),
                row.get::<i64>("label")?,
            ))
        })
        .unwrap();
    println!("{data:?}");
    epochs(
        "pinfeed, images, bytes",
        |shuffle, workers| loader(data.clone(), 64, shuffle, workers).build().unwrap(),
        |(_, labels)| labels.len() as u64,
    );
}
