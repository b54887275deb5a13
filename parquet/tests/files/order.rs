//! One order over all files: each row once, resumed on other ranks, whatever happens meanwhile; and what is read for it.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use arrow_array::{ArrayRef, Int64Array, RecordBatch};
use arrow_schema::{DataType, Field, Schema};
use parquet::arrow::ArrowWriter;
use parquet::basic::Compression;
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use pinfeed::dataset::{BlockSource, Blocked};
use pinfeed::loader::{LoaderState, OnError, World};
use pinfeed::store::{Object, Store};
use pinfeed::{BoxError, DataLoader, Dataset, Error, Host};
use pinfeed_parquet::{Parquet, ParquetBuilder, ParquetError};

use crate::common::{Memory, fixture, get, open};

/// Six files of 3,000 rows: with a page index and without.
fn files() -> Arc<Memory> {
    let keys = [
        "0.parquet",
        "1.parquet",
        "2.parquet",
        "3.parquet",
        "4.parquet",
        "5.parquet",
    ];
    let objects = keys.iter().enumerate().map(|(at, key)| {
        let name = if at % 2 == 0 {
            "paged.parquet"
        } else {
            "unpaged.parquet"
        };
        (*key, fixture(name))
    });
    Arc::new(Memory::of(objects))
}

type Sample = (String, i64, String, Vec<i32>);

fn build(builder: ParquetBuilder) -> Parquet<Sample> {
    let data = builder.build(|row, _| {
        let x: i64 = row.get("x")?;
        assert_eq!(row.number(), x as u64);
        Ok((
            row.file().to_owned(),
            x,
            row.get("text")?,
            row.list("list")?,
        ))
    });
    data.unwrap()
}

fn check(samples: &mut [Sample]) {
    samples.sort();
    for (at, (file, x, text, list)) in samples.iter().enumerate() {
        assert_eq!(
            (file.as_str(), *x),
            (format!("{}.parquet", at / 3000).as_str(), at as i64 % 3000)
        );
        assert_eq!(*text, format!("{x:06}").repeat(1 + *x as usize % 5));
        assert_eq!(*list, vec![*x as i32; *x as usize % 3]);
    }
}

#[test]
fn rows_lie_as_they_were_written() {
    let data = Blocked::new(build(Parquet::builder(files(), ""))).map(|sample, _| Ok(Host(sample)));
    let loader = DataLoader::builder(data)
        .batch_size(500)
        .num_workers(2)
        .build()
        .unwrap();
    let mut found: Vec<Sample> = loader.epoch(0).flat_map(|batch| batch.unwrap()).collect();
    assert!(found.len() == 18_000 && found.is_sorted());
    check(&mut found);
}

/// Large row groups are cut where pages begin, if that is known.
#[test]
fn blocks_are_row_groups_or_pages_of_them() {
    let blocks = |name: &'static str, bytes: u64| {
        let store = Memory::of([("a.parquet", fixture(name))]);
        let builder = Parquet::builder(store, "a.parquet").columns(["x"]);
        let data = builder.block_bytes(bytes).build(|row, _| Ok(row.number()));
        data.unwrap().blocks()
    };
    let whole = blocks("unpaged.parquet", 1_000);
    assert_eq!(
        (whole.len(), whole.range(0), whole.range(1)),
        (2, 0..2000, 2000..3000)
    );
    assert_eq!(blocks("paged.parquet", 1 << 20).len(), 2);
    let parts = blocks("paged.parquet", 2_000);
    assert!((8..=24).contains(&parts.len()), "{}", parts.len());
    assert!(
        (0..parts.len())
            .all(|block| (50..=600).contains(&(parts.range(block).end - parts.range(block).start)))
    );
    assert!(
        (0..parts.len()).any(|block| parts.range(block).start == 2000),
        "a block does not go beyond its row group"
    );
}

/// What counts is how much memory a part takes, and not how few bytes it is compressed to.
#[test]
fn compressed_row_groups_are_cut() {
    let data = open("dense.parquet").block_bytes(400_000);
    let data = data.build(|row, _| Ok(row.get::<i64>("x")?)).unwrap();
    let blocks = data.blocks();
    assert!((4..=6).contains(&blocks.len()), "{}", blocks.len());
    for block in 0..blocks.len() {
        let bytes = data.block_bytes(block, blocks.range(block));
        assert!((200_000..=600_000).contains(&bytes), "{block}: {bytes}");
    }
    let loader = DataLoader::builder(data)
        .batch_size(20_000)
        .build()
        .unwrap();
    let rows = loader.epoch(0).flat_map(|batch| batch.unwrap().to_vec());
    assert!(rows.eq((0..200_000).map(|at| at / 1000 * 1000)));
}

/// Each range by a request of its own, so that nothing between two of them is read.
struct Apart(Arc<Memory>);

impl Store for Apart {
    fn list(&self, prefix: &str) -> Result<Vec<Object>, BoxError> {
        self.0.list(prefix)
    }

    fn object(&self, key: &str) -> Result<Object, BoxError> {
        self.0.object(key)
    }

    fn read(&self, object: &Object, range: Range<u64>) -> Result<Vec<u8>, BoxError> {
        self.0.read(object, range)
    }

    fn read_many(&self, object: &Object, ranges: &[Range<u64>]) -> Result<Vec<Vec<u8>>, BoxError> {
        let ranges = ranges.iter().cloned();
        ranges.map(|range| self.read(object, range)).collect()
    }
}

/// A column of few long pages is not read again for each of many parts.
#[test]
fn pages_of_narrow_columns_are_not_read_many_times() {
    let store = Arc::new(Memory::of([("a.parquet", fixture("narrow.parquet"))]));
    let whole = fixture("narrow.parquet").len() as u64;
    for bytes in [500, 4_000, 16_000, 40_000] {
        let data = Parquet::builder(Apart(Arc::clone(&store)), "").block_bytes(bytes);
        let data = data.build(|row, _| Ok(row.get::<bool>("b7")?)).unwrap();
        store.restart();
        let blocks = data.blocks();
        for block in 0..blocks.len() {
            data.fetch(block, blocks.range(block)).unwrap();
        }
        let read = store.bytes.load(Ordering::SeqCst);
        assert!(
            read <= whole * 3 / 2 + 1_000,
            "{read} of {whole}, in {} blocks of {bytes}",
            blocks.len()
        );
    }
    // Alone, the wide column is cut as finely as is wanted.
    let data = Parquet::builder(store, "").columns(["text"]);
    let data = data.block_bytes(4_000).build(|_, _| Ok(())).unwrap();
    assert!(data.blocks().len() > 10, "{}", data.blocks().len());
}

/// Of a row group, only what was chosen; of a part of one, only its pages.
#[test]
fn only_what_is_needed_is_read() {
    let store = Arc::new(Memory::of([("a.parquet", fixture("paged.parquet"))]));
    let bytes = |builder: ParquetBuilder| {
        let data = Blocked::new(builder.build(|row, _| Ok(row.number())).unwrap());
        store.restart();
        let loader = DataLoader::builder(data)
            .batch_size(100)
            .shuffle(true)
            .build()
            .unwrap();
        assert_eq!(
            loader
                .epoch(0)
                .map(|batch| batch.unwrap().len())
                .sum::<usize>(),
            3000
        );
        (
            store.bytes.load(Ordering::SeqCst),
            store.reads.load(Ordering::SeqCst),
        )
    };
    let builder = || Parquet::builder(Arc::clone(&store), "a.parquet").block_bytes(1 << 20);
    let (of_all, requests) = bytes(builder());
    assert!(
        of_all <= fixture("paged.parquet").len() as u64 && requests <= 6,
        "{of_all} {requests}"
    );
    let (of_one, _) = bytes(builder().columns(["list"]));
    assert!(of_one < of_all / 2, "{of_one} of {of_all}");
    // (Parts share the page in which one ends and the other begins, and what lies between two columns is read with them.)
    let data = builder()
        .columns(["x"])
        .block_bytes(1_000)
        .build(|row, _| Ok(row.number()))
        .unwrap();
    let (first, all) = (data.blocks().range(0), data.blocks().len());
    store.restart();
    data.fetch(0, first.clone()).unwrap();
    let read = store.bytes.load(Ordering::SeqCst);
    assert!(
        all > 2 && read < of_all / 4,
        "{read} of {of_all}, {first:?}"
    );
    assert!(data.block_bytes(0, first.clone()) as u64 >= read);
    assert!(data.block_bytes(0, first.start..first.start + 1) <= data.block_bytes(0, first));
}

#[test]
fn an_epoch_has_each_row_once() {
    let store = files();
    let data = build(Parquet::builder(Arc::clone(&store), "").block_bytes(1_000));
    let data = Blocked::new(data).map(|(file, x, text, list), _| Ok((file, x, text, Host(list))));
    let loader = DataLoader::builder(data)
        .batch_size(64)
        .shuffle(true)
        .seed(3)
        .num_workers(2)
        .build()
        .unwrap();
    let mut before = Vec::new();
    for epoch in loader.epochs(0..2) {
        let mut found: Vec<Sample> = Vec::new();
        for batch in epoch {
            let (file, x, text, lists) = batch.unwrap();
            for (at, (file, text)) in file.into_iter().zip(text).enumerate() {
                found.push((file, x.as_slice()[at], text, lists[at].clone()));
            }
        }
        assert_ne!(found, before, "in another order");
        assert!(!found.is_sorted());
        before = found.clone();
        assert_eq!(found.len(), 18_000);
        check(&mut found);
    }
    assert_eq!(store.lists.load(Ordering::SeqCst), 1);
}

#[test]
fn resumed_on_other_ranks() {
    let store = files();
    let loader = |rank: usize, ranks: usize| {
        let data = Parquet::builder(Arc::clone(&store), "")
            .columns(["x"])
            .block_bytes(2_000);
        let data = data
            .build(|row, _| Ok(format!("{} {}", row.file(), row.get::<i64>("x")?)))
            .unwrap();
        let builder = DataLoader::builder(data)
            .global_batch_size(120)
            .shuffle(true)
            .seed(5)
            .num_workers(2);
        builder
            .world(World::new(rank, ranks).unwrap())
            .build()
            .unwrap()
    };
    let run = |ranks: usize, state: &LoaderState, batches: usize| {
        let (mut seen, mut states) = (Vec::new(), Vec::new());
        for rank in 0..ranks {
            let loader = loader(rank, ranks);
            let mut epoch = loader.resume(0..1, state).unwrap().next().unwrap();
            for _ in 0..batches {
                let Some(batch) = epoch.next() else { break };
                seen.extend(batch.unwrap());
            }
            drop(epoch);
            states.push(loader.state());
        }
        (seen, states.swap_remove(0))
    };
    for plan in [[4, 1, 2], [1, 3, 4]] {
        let state = loader(0, 1).state();
        let (mut seen, state) = run(plan[0], &state, 30);
        let (more, state) = run(plan[1], &state, 50);
        seen.extend(more);
        seen.extend(run(plan[2], &state, usize::MAX).0);
        seen.sort();
        let mut expected: Vec<String> = (0..18_000)
            .map(|at| format!("{}.parquet {}", at / 3000, at % 3000))
            .collect();
        expected.sort();
        assert!(seen == expected, "{plan:?} ranks: {} rows", seen.len());
    }
}

/// An epoch that is left in its middle, twice, and then a whole one.
#[test]
fn dropped_in_the_middle() {
    let data = Arc::new(
        Blocked::new(build(Parquet::builder(files(), "").block_bytes(1_000))).with_in_flight(4),
    );
    let loader = DataLoader::builder(Arc::clone(&data).map(|(_, x, ..), _| Ok(x)))
        .batch_size(50)
        .shuffle(true)
        .num_workers(2)
        .build()
        .unwrap();
    for taken in [7, 1] {
        assert_eq!(
            loader
                .epoch(0)
                .take(taken)
                .filter(|batch| batch.is_ok())
                .count(),
            taken
        );
    }
    let mut seen: Vec<i64> = loader
        .epoch(1)
        .flat_map(|batch| batch.unwrap().to_vec())
        .collect();
    seen.sort_unstable();
    assert!(seen.into_iter().eq((0..18_000).map(|at| at / 6)));
    drop(loader);
    assert_eq!(data.stats().held_bytes, 0);
}

/// What is open is bounded, and `build` says what it takes.
#[test]
fn memory_is_bounded() {
    let data = || build(Parquet::builder(files(), "").block_bytes(4_000));
    let refused = Blocked::new(data()).with_max_bytes(10_000);
    let error = DataLoader::builder(refused)
        .batch_size(50)
        .shuffle(true)
        .build()
        .unwrap_err()
        .to_string();
    assert!(error.contains("with_max_bytes"), "{error}");
    let bound = 2 << 20;
    let data = Arc::new(Blocked::new(data()).with_max_bytes(bound));
    let loader = DataLoader::builder(Arc::clone(&data).map(|(_, x, ..), _| Ok(x)))
        .batch_size(50)
        .shuffle(true)
        .num_workers(2)
        .build()
        .unwrap();
    assert_eq!(
        loader
            .epoch(0)
            .map(|batch| batch.unwrap().len())
            .sum::<usize>(),
        18_000
    );
    let most = data.stats().most_bytes;
    assert!(0 < most && most <= bound, "{most}");
}

/// One file under many keys: as much data as is wanted, of which only footers are read.
struct Copies {
    bytes: Vec<u8>,
    count: usize,
}

impl Store for Copies {
    fn list(&self, _: &str) -> Result<Vec<Object>, BoxError> {
        (0..self.count)
            .map(|at| self.object(&format!("{at:05}.parquet")))
            .collect()
    }

    fn object(&self, key: &str) -> Result<Object, BoxError> {
        Ok(Object {
            key: key.to_owned(),
            bytes: self.bytes.len() as u64,
            version: None,
        })
    }

    fn read(&self, _: &Object, range: Range<u64>) -> Result<Vec<u8>, BoxError> {
        Ok(self.bytes[range.start as usize..range.end as usize].to_vec())
    }

    fn in_flight(&self, bytes: u64) -> usize {
        (bytes / 1_000) as usize
    }
}

/// A file of so many numbers, which are compressed or not.
fn of_numbers(rows: i64, compression: Compression) -> Vec<u8> {
    let schema = Schema::new(vec![Field::new("x", DataType::Int64, false)]);
    let numbers =
        (0..rows).map(|at| at.wrapping_mul(0x9E37_79B9_7F4A_7C15_u64.cast_signed()) >> 40);
    let numbers: ArrayRef = Arc::new(Int64Array::from_iter_values(numbers));
    let batch = RecordBatch::try_new(Arc::new(schema), vec![numbers]).unwrap();
    let properties = WriterProperties::builder()
        .set_dictionary_enabled(false)
        .set_statistics_enabled(EnabledStatistics::None)
        .set_compression(compression)
        .build();
    let mut writer = ArrowWriter::try_new(Vec::new(), batch.schema(), Some(properties)).unwrap();
    writer.write(&batch).unwrap();
    writer.into_inner().unwrap()
}

/// Whatever the size of a data set is: by default, what is open fits into what `Blocked` has by default.
#[test]
fn blocks_of_the_usual_size_fit_into_the_usual_memory() {
    // (A row group has a million rows: 8 MB.)
    for compression in [Compression::UNCOMPRESSED, Compression::SNAPPY] {
        let bytes = of_numbers(1 << 20, compression);
        for count in [100, 500, 1_000, 1_500, 2_000, 3_000, 4_500] {
            let bytes = bytes.clone();
            let data = Parquet::builder(Copies { bytes, count }, "");
            let data = data.build(|row, _| Ok(row.number())).unwrap();
            let blocks = data.blocks();
            let loader = DataLoader::builder(data).batch_size(64).shuffle(true);
            let refused = loader.build().err().map(|error| error.to_string());
            assert_eq!(refused, None, "{count} files, {compression}");
            assert!(blocks.len() > 8 * 192, "{}", blocks.len());
        }
    }
}

/// As many requests at a time as the store wants of blocks of that size.
#[test]
fn the_store_says_how_many_requests_run() {
    let bytes = fixture("unpaged.parquet");
    let data = Parquet::builder(Copies { bytes, count: 3 }, "");
    let data = data.columns(["x"]).build(|_, _| Ok(())).unwrap();
    // (Six blocks, of the bytes that are read of them.)
    let read = data.block_bytes(0, 0..2_000) as u64 / 1_000;
    let found = data.in_flight() as u64;
    assert!(0 < found && found <= read, "{found} of {read}");
}

#[test]
fn reads_are_tried_again() {
    let store = files();
    let data = build(Parquet::builder(Arc::clone(&store), "").block_bytes(2_000)).clone();
    store.failing.store(3, Ordering::SeqCst);
    let loader = DataLoader::builder(Blocked::new(data).map(|(_, x, ..), _| Ok(x)))
        .batch_size(100)
        .shuffle(true)
        .num_workers(2);
    let loader = loader.retry(5, Duration::from_millis(1)).build().unwrap();
    assert_eq!(
        loader
            .epoch(0)
            .map(|batch| batch.unwrap().len())
            .sum::<usize>(),
        18_000
    );
}

/// A store whose errors do not name the object: they are named, and stay temporary.
#[test]
fn errors_of_a_store_that_names_nothing() {
    let store = Arc::new(Memory {
        says: Some("our server"),
        ..Memory::of([("a.parquet", fixture("unpaged.parquet"))])
    });
    let data = || build(Parquet::builder(Arc::clone(&store), "")).into_only_x();
    let loader = DataLoader::builder(data()).batch_size(100).num_workers(1);
    let loader = loader.retry(5, Duration::from_millis(1)).build().unwrap();
    store.failing.store(2, Ordering::SeqCst);
    let rows = loader.epoch(0).map(|batch| batch.unwrap().len());
    assert_eq!(rows.sum::<usize>(), 3_000);
    let data = data();
    store.failing.store(1, Ordering::SeqCst);
    let error = get(&data, 0).unwrap_err();
    let said = error.to_string();
    assert!(
        said.ends_with("a.parquet: our server: 503 Service Unavailable"),
        "{said}"
    );
    assert_eq!(ParquetError::of(&*error).unwrap().file(), "a.parquet");
    store.failing.store(1, Ordering::SeqCst);
    let error = Parquet::builder(Arc::clone(&store), "").build(|_, _| Ok(()));
    let error = error.unwrap_err();
    assert_eq!(ParquetError::of(&error).unwrap().file(), "a.parquet");
}

/// A page whose checksum is wrong: rows of its row group are bad, and no others; each is named.
#[test]
fn a_damaged_page_costs_no_more_than_its_row_group() {
    let store = files();
    store.objects.lock().unwrap().get_mut("1.parquet").unwrap()[3_000] ^= 0x10;
    let data = || build(Parquet::builder(Arc::clone(&store), "")).into_only_x();
    let loader = DataLoader::builder(data())
        .batch_size(100)
        .shuffle(true)
        .num_workers(2)
        .build()
        .unwrap();
    let error = loader.epoch(0).find_map(Result::err).unwrap();
    assert!(matches!(&error, Error::Sample(..)), "{error}");
    let said = error.to_string();
    assert!(
        said.contains("1.parquet: row group 0 cannot be decoded"),
        "{said}"
    );
    let fault = ParquetError::of(&error).unwrap();
    assert_eq!((fault.file(), fault.row()), ("1.parquet", None));
    let skipping = DataLoader::builder(data())
        .batch_size(100)
        .shuffle(true)
        .num_workers(2)
        .on_error(OnError::Skip { at_most: 2_000 })
        .build()
        .unwrap();
    let mut seen: Vec<i64> = skipping
        .epoch(0)
        .flat_map(|batch| batch.unwrap().to_vec())
        .collect();
    seen.sort_unstable();
    let expected: Vec<i64> = (0..18_000).map(|at| at / 6).collect();
    // (A part of a row group, where another track has the rest, is read without the pages that it does not need.)
    assert!((16_000..18_000).contains(&seen.len()), "{}", seen.len());
    assert!(
        seen.iter()
            .filter(|x| **x >= 2_000)
            .eq(expected.iter().filter(|x| **x >= 2_000))
    );
}

/// A file that is written again while the run reads it.
#[test]
fn a_file_that_changes_is_named() {
    let store = files();
    let data = Blocked::new(build(Parquet::builder(Arc::clone(&store), "")));
    store
        .objects
        .lock()
        .unwrap()
        .insert("2.parquet".to_owned(), fixture("unpaged.parquet"));
    assert!(get(&data, 0).is_ok());
    let error = get(&data, 2 * 3_000).unwrap_err().to_string();
    assert!(
        error.contains("2.parquet: it was changed after it was listed"),
        "{error}"
    );
    let error = DataLoader::builder(data.map(|(_, x, ..), _| Ok(x)))
        .batch_size(9_000)
        .build()
        .unwrap()
        .epoch(0)
        .find_map(Result::err)
        .unwrap();
    assert!(error.to_string().contains("2.parquet: row 0"), "{error}");
    assert_eq!(
        ParquetError::of(&error).map(ParquetError::file),
        Some("2.parquet")
    );
}

/// Files, filters and the size of blocks decide an order: a state of others is refused.
#[test]
fn a_state_belongs_to_its_files() {
    let store = files();
    let builder = || Parquet::builder(Arc::clone(&store), "").block_bytes(1 << 20);
    let loader = |builder: ParquetBuilder| {
        let data = builder.build(|row, _| Ok(row.number())).unwrap();
        DataLoader::builder(data)
            .batch_size(100)
            .shuffle(true)
            .build()
            .unwrap()
    };
    let first = loader(builder());
    first.epoch(0).take(2).for_each(drop);
    let state = first.state();
    assert!(loader(builder()).resume(0..1, &state).is_ok());
    assert!(
        loader(builder().columns(["x"]))
            .resume(0..1, &state)
            .is_ok(),
        "other columns, the same rows"
    );
    assert!(
        loader(builder().block_bytes(1_000))
            .resume(0..1, &state)
            .is_err()
    );
    let filter = pinfeed_parquet::Filter::within("x", ..2_999);
    assert!(
        loader(builder().filter(filter))
            .resume(0..1, &state)
            .is_err()
    );
    store.objects.lock().unwrap().remove("3.parquet");
    assert!(loader(builder()).resume(0..1, &state).is_err());
}

trait OnlyX {
    /// The same rows, with nothing but their numbers.
    fn into_only_x(self) -> impl Dataset<Sample = i64>;
}

impl OnlyX for Parquet<Sample> {
    fn into_only_x(self) -> impl Dataset<Sample = i64> {
        Blocked::new(self).map(|(_, x, ..), _| Ok(x))
    }
}
