//! Numbers as rows of tensors: the same values, in the same order, as a function gets row by row, and the same errors.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use pinfeed::dataset::{Blocked, IntoDataset};
use pinfeed::loader::{LoaderState, OnError, World};
use pinfeed::{DataLoader, Dataset, Tensor};
use pinfeed_parquet::{Filter, Numbers, Parquet, ParquetError};

use crate::common::{Memory, all, fixture, open};

type Pair = (Tensor<f64>, Tensor<i64>);

/// Batches as lists.
fn lists(batch: Pair) -> (Vec<usize>, Vec<f64>, Vec<i64>) {
    let (features, ids) = batch;
    (features.shape().to_vec(), features.to_vec(), ids.to_vec())
}

fn paged() -> pinfeed_parquet::ParquetBuilder {
    let store = Memory::of([
        ("year=2023/0.parquet", fixture("paged.parquet")),
        ("year=2024/0.parquet", fixture("paged.parquet")),
    ]);
    Parquet::builder(store, "").block_bytes(1_000)
}

fn numbers() -> impl IntoDataset<Dataset = impl Dataset<Sample = (Tensor<f64>, Tensor<i64>)>> {
    let fields = (Numbers::<f64>::of(["x", "year"]), Numbers::<i64>::of(["x"]));
    paged().build_numbers(fields).unwrap()
}

fn rows() -> Parquet<(Vec<f64>, i64)> {
    let rows = paged().columns(["x", "year"]).build(|row, _| {
        let features = row.all::<f64>(&["x", "year"])?;
        Ok((features, row.get("x")?))
    });
    rows.unwrap()
}

fn loader<D: IntoDataset>(data: D, workers: usize, shuffle: bool) -> DataLoader<Pair>
where
    <D::Dataset as Dataset>::Sample: pinfeed::Sample<Batch = Pair>,
{
    let builder = DataLoader::builder(data).batch_size(64).seed(3);
    let builder = builder.shuffle(shuffle).num_workers(workers);
    builder.build().unwrap()
}

/// Batches are those of the same rows, read by a function: in any order, by any number of workers, in several epochs, and after an
/// epoch that was left.
#[test]
fn batches_are_those_of_rows() {
    for (workers, shuffle) in [(0, false), (0, true), (1, true), (3, true), (3, false)] {
        let (numbers, rows) = (
            loader(numbers(), workers, shuffle),
            loader(rows(), workers, shuffle),
        );
        let of = |loader: &DataLoader<Pair>, epoch| -> Vec<_> {
            let batches = loader.epoch(epoch);
            batches.map(|batch| lists(batch.unwrap())).collect()
        };
        for epoch in 0..2 {
            let found = of(&numbers, epoch);
            assert_eq!(found[0].0, [64, 2]);
            assert_eq!(found, of(&rows, epoch));
        }
        assert!(numbers.epoch(2).take(5).all(|batch| batch.is_ok()));
        assert_eq!(of(&numbers, 2), of(&rows, 2));
    }
}

/// One field is a tensor, of which a row is a number if it has one column. Filters, folders and structures are as they are for rows.
#[test]
fn fields_and_columns() {
    let one = open("types.parquet").build_numbers(Numbers::<u16>::of(["id"]));
    let batch = DataLoader::builder(one.unwrap()).batch_size(20);
    let batch = batch.build().unwrap().epoch(0).next().unwrap().unwrap();
    assert_eq!(batch.shape()[..], [20]);
    assert!(batch.as_slice().iter().copied().eq(100..120));
    let german = open("partitioned").filter(Filter::equals("lang", "de"));
    let german = german
        .build_numbers((Numbers::<i64>::of(["year", "x"]),))
        .unwrap();
    assert_eq!(german.len(), 30);
    let samples = all(german).unwrap();
    assert!(
        samples
            .iter()
            .all(|(row,)| row.as_slice()[0] == 2022 + row.as_slice()[1] / 20)
    );
    // A column may be in several fields, of several types.
    let twice = (Numbers::<f32>::of(["a", "id"]), Numbers::<i32>::of(["id"]));
    let twice = all(open("types.parquet").build_numbers(twice).unwrap()).unwrap();
    assert!(
        twice
            .iter()
            .all(|(features, id)| features.as_slice()[1] == id.as_slice()[0] as f32)
    );
}

/// A value that is no such number is an error of its row, which says the same as where a function takes it. The other rows of its block come.
#[test]
fn a_value_that_does_not_fit() {
    let fields = || (Numbers::<i64>::of(["id"]), Numbers::<f32>::of(["score"]));
    let by_row = open("types.parquet").columns(["id", "score"]);
    let by_row = by_row.build(|row, _| Ok((row.get::<i64>("id")?, row.get::<f32>("score")?)));
    let by_row = DataLoader::builder(by_row.unwrap()).batch_size(1);
    let by_row = by_row.build().unwrap();
    let wanted = by_row.epoch(0).map(|batch| match batch {
        Ok((id, score)) => Ok((id.to_vec(), score.to_vec())),
        Err(error) => Err((
            ParquetError::of(&error).map(|error| error.row()),
            error.to_string(),
        )),
    });
    let wanted: Vec<_> = wanted.collect();
    assert!(wanted.iter().any(Result::is_err) && wanted.iter().any(Result::is_ok));
    let data = Arc::new(Blocked::new(
        open("types.parquet").build_numbers(fields()).unwrap(),
    ));
    for epoch in 0..2 {
        let loader = DataLoader::builder(Arc::clone(&data)).batch_size(1);
        let loader = loader.build().unwrap();
        let found = loader.epoch(epoch).map(|batch| match batch {
            Ok((id, score)) => Ok((id.to_vec(), score.to_vec())),
            Err(error) => Err((
                ParquetError::of(&error).map(|error| error.row()),
                error.to_string().replace("epoch 1", "epoch 0"),
            )),
        });
        assert_eq!(found.collect::<Vec<_>>(), wanted);
    }
    // Left out, with several workers.
    let good = wanted.iter().filter(|row| row.is_ok()).count();
    let loader = DataLoader::builder(Arc::clone(&data))
        .batch_size(20)
        .num_workers(2)
        .on_error(OnError::Skip { at_most: 20 })
        .build()
        .unwrap();
    let batch = loader.epoch(0).next().unwrap().unwrap();
    assert_eq!(batch.0.len(), good);
}

/// What cannot be: it is said when the data set is made.
#[test]
fn what_is_refused() {
    let of = |names: &[&str]| Numbers::<f32>::of(names.iter().copied());
    let refused = |builder: pinfeed_parquet::ParquetBuilder, names: &[&str]| {
        let error = builder.build_numbers((of(&["id"]), of(names)));
        error.unwrap_err().to_string()
    };
    for (names, said) in [
        (&[][..], "field 1 names no column"),
        (&["text"], "column \"text\" is string, and has no numbers"),
        (&["tokens"], "column \"tokens\" is list<"),
        (&["none"], "column \"none\": there is no such column"),
    ] {
        let error = refused(open("types.parquet"), names);
        assert!(error.contains(said), "{error}");
    }
    let error = refused(open("types.parquet").columns(["a"]), &["b"]);
    assert!(error.contains("`columns`"), "{error}");
}

/// An epoch is resumed in its middle, on another number of ranks: each row comes once.
#[test]
fn resumed_on_other_ranks() {
    let run = |ranks: usize, state: &LoaderState, batches: usize| {
        let (mut seen, mut states) = (Vec::new(), Vec::new());
        for rank in 0..ranks {
            let builder = DataLoader::builder(numbers()).global_batch_size(64).seed(5);
            let builder = builder.shuffle(true).num_workers(2);
            let builder = builder.world(World::new(rank, ranks).unwrap());
            let loader = builder.build().unwrap();
            let mut epochs = loader.resume(0..1, state).unwrap();
            for batch in epochs.next().unwrap().take(batches) {
                seen.extend(lists(batch.unwrap()).1);
            }
            states.push(loader.state());
        }
        (seen, states.swap_remove(0))
    };
    let first = DataLoader::builder(numbers()).global_batch_size(64).seed(5);
    let state = first.shuffle(true).build().unwrap().state();
    let (mut seen, state) = run(4, &state, 20);
    let (more, _) = run(2, &state, usize::MAX);
    seen.extend(more);
    let mut rows: Vec<[i64; 2]> = seen
        .chunks(2)
        .map(|row| [row[0] as i64, row[1] as i64])
        .collect();
    rows.sort_unstable();
    let wanted = (0..3_000).flat_map(|x| [[x, 2023], [x, 2024]]);
    assert!(rows.into_iter().eq(wanted));
}

/// A store that fails for a while is asked again: each row comes once.
#[test]
fn a_store_that_fails_for_a_while() {
    let store = Arc::new(Memory::of([("0.parquet", fixture("paged.parquet"))]));
    let data = Parquet::builder(Arc::clone(&store), "").block_bytes(1_000);
    let data = data.build_numbers(Numbers::<i64>::of(["x"])).unwrap();
    let loader = DataLoader::builder(data).batch_size(50).shuffle(true);
    let loader = loader
        .num_workers(2)
        .retry(5, Duration::from_millis(1))
        .build()
        .unwrap();
    for epoch in 0..2 {
        store.failing.store(3, Ordering::SeqCst);
        let batches = loader.epoch(epoch).map(|batch| batch.unwrap().to_vec());
        let mut seen: Vec<i64> = batches.flatten().collect();
        seen.sort_unstable();
        assert!(seen.into_iter().eq(0..3_000));
    }
}
