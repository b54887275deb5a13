//! Documents of streams, packed: the rows are those of other libraries and of indexed documents, on any number of workers, and after
//! any interruption.
#![cfg(not(miri))] // it takes many loaders

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

use pinfeed::dataset::{PackedDataset, PackingStrategy};
use pinfeed::error::{DocumentError, Temporary};
use pinfeed::iterable::{self, ItemIter, IterableDataset, Shard};
use pinfeed::loader::{Iterable, IterableState, OnError, World};
use pinfeed::packed::{PackedBatch, PackedRow};
use pinfeed::{BoxError, DataLoader, Device, Error, Result, SampleRng, Tensor};
use proptest::prelude::*;
use serde_json::Value;

/// No token is 0, which is the padding.
fn document(index: u64, length: u64) -> Vec<u32> {
    let token = |place| (index * 10_000 + place + 1) as u32;
    (0..length).map(token).collect()
}

fn documents(lengths: &[u64]) -> Vec<Vec<u32>> {
    let lengths = (0..).zip(lengths);
    let documents = lengths.map(|(index, length)| document(index, *length));
    documents.collect()
}

fn streamed(lengths: &[u64]) -> impl IterableDataset<Sample = Vec<u32>> + use<> {
    let documents = documents(lengths);
    iterable::from_fn(move |_, shard: Shard| {
        let all = (0..).zip(documents.clone());
        let own = all.filter(move |(number, _)| shard.keeps(*number));
        Ok(own.map(|(_, document)| Ok(document)))
    })
}

fn loader_of<S>(
    rows: S,
    batch_size: usize,
    workers: usize,
) -> DataLoader<PackedBatch<u32>, Iterable>
where
    S: IterableDataset<Sample = PackedRow<u32>>,
{
    let builder = DataLoader::iterable(rows).batch_size(batch_size);
    builder.num_workers(workers).seed(5).build().unwrap()
}

/// The real tokens of each row, document by document.
fn rows_of(batch: &PackedBatch<u32>) -> Vec<Vec<Vec<u32>>> {
    let row = |row| {
        let mut documents = BTreeMap::<i32, Vec<u32>>::new();
        let tokens = batch.tokens.row(row).as_slice().to_vec();
        for (token, id) in tokens.iter().zip(batch.segment_ids.row(row).as_slice()) {
            documents.entry(*id).or_default().push(*token);
        }
        documents.remove(&0);
        documents.into_values().collect()
    };
    (0..batch.tokens.shape()[0]).map(row).collect()
}

fn rows<S: IterableDataset<Sample = PackedRow<u32>>>(rows: S) -> Vec<Vec<Vec<u32>>> {
    let loader = loader_of(rows, 3, 2);
    let batches = loader.epoch(0);
    batches.flat_map(|batch| rows_of(&batch.unwrap())).collect()
}

/// `pack_dataset(.., strategy="wrapped")` and `"bfd_split"`, see `fixtures/packing.py`.
#[test]
fn rows_are_those_of_trl() {
    let table: Value = serde_json::from_str(include_str!("../fixtures/packing.json")).unwrap();
    let cases = table["packed"].as_array().unwrap();
    assert_eq!(cases.len(), 18);
    for case in cases {
        let of = |name: &str| serde_json::from_value::<Vec<Vec<u32>>>(case[name].clone()).unwrap();
        let lengths: Vec<u64> = serde_json::from_value(case["lengths"].clone()).unwrap();
        let (n, buffer) = (
            case["n"].as_u64().unwrap(),
            case["buffer"].as_u64().unwrap(),
        );
        let packed = || streamed(&lengths).pack(n as usize).unwrap();

        let wrapped: Vec<_> = rows(packed()).iter().map(|row| row.concat()).collect();
        assert_eq!(wrapped, of("wrapped"), "{lengths:?}");

        // Which of two rows with equal space is filled is not the same, so how full the rows of each window are is compared.
        let fills = |rows: &[Vec<u32>]| {
            let mut fills = BTreeMap::<u64, Vec<usize>>::new();
            for row in rows {
                let window = u64::from(row[0] / 10_000) / buffer;
                assert!(
                    row.iter()
                        .all(|token| u64::from(token / 10_000) / buffer == window)
                );
                fills.entry(window).or_default().push(row.len());
            }
            fills.values_mut().for_each(|fills| fills.sort_unstable());
            fills
        };
        let whole = rows(packed().with_best_fit(buffer as usize));
        let whole: Vec<_> = whole.iter().map(|row| row.concat()).collect();
        assert_eq!(fills(&whole), fills(&of("bfd_split")), "{lengths:?}");
        let sorted = |rows: &[Vec<u32>]| {
            let mut tokens = rows.concat();
            tokens.sort_unstable();
            tokens
        };
        assert_eq!(sorted(&whole), documents(&lengths).concat());
        assert_eq!(sorted(&of("bfd_split")), documents(&lengths).concat());
    }
}

fn lengths() -> impl Strategy<Value = Vec<u64>> {
    let length = prop_oneof![3 => 0..12u64, 1 => Just(0), 1 => 0..70u64];
    prop::collection::vec(length, 0..50)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// One collate serves both: batches are equal, with all that they say of themselves.
    #[test]
    fn batches_are_those_of_indexed_documents(
        lengths in lengths(),
        n in 1..20usize,
        batch_size in 1..6usize,
        workers in prop::sample::select(vec![0, 1, 4]),
    ) {
        let indexed = PackedDataset::new(documents(&lengths), &lengths, n, PackingStrategy::Concatenated).unwrap();
        let indexed = DataLoader::builder(indexed.with_padding(7)).batch_size(batch_size).build().unwrap();
        let packed = streamed(&lengths).pack(n).unwrap().with_padding(7);
        let streamed = loader_of(packed, batch_size, workers);
        for epoch in 0..2 {
            let expected: Vec<_> = indexed.epoch(epoch).map(Result::unwrap).collect();
            let batches: Vec<_> = streamed.epoch(epoch).map(Result::unwrap).collect();
            prop_assert_eq!(batches, expected);
        }
    }

    /// A window that holds all documents has the rows that indexed documents have.
    #[test]
    fn a_window_is_packed_as_indexed_documents_are(
        lengths in lengths(),
        n in 1..20usize,
        windows in 1..4usize,
    ) {
        let size = lengths.len().div_ceil(windows).max(1);
        let mut expected = Vec::new();
        for (window, own) in lengths.chunks(size).enumerate() {
            let before = vec![0; window * size];
            let lengths = [&before, own].concat();
            let packed = PackedDataset::new(documents(&lengths), &lengths, n, PackingStrategy::BestFit).unwrap();
            let loader = DataLoader::builder(packed).build().unwrap();
            let mut rows: Vec<_> = loader.epoch(0).flat_map(|batch| rows_of(&batch.unwrap())).collect();
            rows.sort();
            expected.push(rows);
        }
        let mut rows = rows(streamed(&lengths).pack(n).unwrap().with_best_fit(size)).into_iter();
        for expected in expected {
            let mut own: Vec<_> = rows.by_ref().take(expected.len()).collect();
            own.sort();
            prop_assert_eq!(own, expected);
        }
        prop_assert!(rows.next().is_none());
    }
}

#[test]
fn what_comes_depends_on_seed_epoch_and_rank_and_not_on_workers() {
    let order = |seed, epoch, rank, workers| {
        let same =
            iterable::from_fn(|_, _| Ok((0..200).map(|index| Ok(document(index, 1 + index % 7)))));
        let loader = DataLoader::iterable(same.pack(8).unwrap().with_best_fit(50))
            .batch_size(4)
            .seed(seed)
            .world(World::new(rank, 2).unwrap())
            .num_workers(workers)
            .build()
            .unwrap();
        let batches = loader.epoch(epoch);
        let rows: Vec<_> = batches.flat_map(|batch| rows_of(&batch.unwrap())).collect();
        rows
    };
    let orders = [
        order(1, 0, 0, 0),
        order(2, 0, 0, 0),
        order(1, 1, 0, 0),
        order(1, 0, 1, 0),
    ];
    for (number, one) in orders.iter().enumerate() {
        assert!(orders[..number].iter().all(|other| other != one));
        let (mut one, mut first) = (one.clone(), orders[0].clone());
        one.sort();
        first.sort();
        assert_eq!(one, first, "the same rows, in another order");
    }
    for workers in [1, 2, 4] {
        assert_eq!(order(1, 0, 0, workers), orders[0]);
    }
}

/// Rows that are full of one document do not come before all others.
#[test]
fn rows_with_long_documents_are_spread_over_the_window() {
    let lengths: Vec<u64> = (0..200)
        .map(|index| if index % 2 == 0 { 8 } else { 2 })
        .collect();
    let rows = rows(streamed(&lengths).pack(8).unwrap().with_best_fit(200));
    assert_eq!(rows.len(), 125);
    let early = rows[..25].iter().filter(|row| row.len() > 1).count();
    assert!((1..=15).contains(&early), "{early} of the first 25"); // 5 on average
}

#[test]
fn ranks_pack_what_is_theirs() {
    let lengths: Vec<u64> = (0..61).map(|index| index * 7 % 13).collect();
    for buffer in [None, Some(10)] {
        let mut seen = Vec::new();
        for rank in 0..3 {
            let packed = streamed(&lengths).pack(16).unwrap();
            let packed = match buffer {
                Some(size) => packed.with_best_fit(size),
                None => packed,
            };
            let loader = DataLoader::iterable(packed)
                .world(World::new(rank, 3).unwrap())
                .num_workers(2)
                .build()
                .unwrap();
            for batch in loader.epoch(0) {
                let tokens = rows_of(&batch.unwrap()).concat().concat();
                assert!(tokens.iter().all(|token| token / 10_000 % 3 == rank as u32));
                seen.extend(tokens);
            }
        }
        seen.sort_unstable();
        assert_eq!(seen, documents(&lengths).concat());
    }
}

/// Ranks with different data take equally many steps: the source is repeated before it is packed, and rows are counted behind.
#[test]
fn passes_are_packed_across_and_rows_are_counted() {
    let rows = rows(streamed(&[3, 5, 2]).repeat().pack(4).unwrap().take(7));
    let pass = documents(&[3, 5, 2]).concat();
    let expected: Vec<u32> = pass.iter().copied().cycle().take(28).collect();
    assert_eq!(rows.concat().concat(), expected);
    assert_eq!(rows.len(), 7);
    let padded = self::rows(streamed(&[3, 5, 2]).pack(4).unwrap().repeat_n(2));
    let sizes: Vec<_> = padded.iter().map(|row| row.concat().len()).collect();
    assert_eq!(sizes, [4, 4, 2, 4, 4, 2]);
}

#[test]
fn few_documents_are_packed_too() {
    for buffer in [None, Some(0), Some(1), Some(2), Some(100)] {
        let rows = |lengths: &[u64]| {
            let packed = streamed(lengths).pack(4).unwrap();
            let mut rows = rows(match buffer {
                Some(size) => packed.with_best_fit(size),
                None => packed,
            });
            rows.sort();
            rows
        };
        assert_eq!(rows(&[]), Vec::<Vec<Vec<u32>>>::new());
        assert_eq!(rows(&[0; 7]), Vec::<Vec<Vec<u32>>>::new());
        assert_eq!(rows(&[1]), [[[1]]]);
        assert_eq!(rows(&[4]), [[[1, 2, 3, 4]]]);
        assert_eq!(rows(&[0, 0, 0, 3, 0, 0, 0]), [[document(3, 3)]]);
        assert_eq!(
            rows(&[9]),
            [[vec![1, 2, 3, 4]], [vec![5, 6, 7, 8]], [vec![9]]]
        );
    }
}

#[test]
fn rows_that_cannot_be_are_refused() {
    for n in [0, 1 << 31, usize::MAX] {
        let error = streamed(&[1]).pack(n).unwrap_err();
        assert!(matches!(error, Error::InvalidOption { option: "pack", .. }));
        assert!(error.to_string().contains("1 to 2³¹ - 1 tokens"), "{error}");
    }
    assert!(streamed(&[1]).pack((1 << 31) - 1).is_ok());
}

#[test]
fn documents_may_be_shared_tensors_and_bytes() {
    fn tokens<S>(documents: S) -> Vec<i64>
    where
        S: IterableDataset,
        S::Sample: pinfeed::dataset::Document<Token = i64>,
    {
        let rows = documents.pack(4).unwrap().with_padding(-1);
        let loader = DataLoader::iterable(rows).batch_size(9).build().unwrap();
        let batch = loader.epoch(0).next().unwrap().unwrap();
        batch.tokens.as_slice().to_vec()
    }
    let all = [vec![1i64, 2, 3], vec![4, 5]];
    let vectors = all.clone();
    let vectors = iterable::from_fn(move |_, _| Ok(vectors.clone().into_iter().map(Ok)));
    let shared: Vec<Arc<[i64]>> = all.iter().map(|one| one.clone().into()).collect();
    let shared = iterable::from_fn(move |_, _| Ok(shared.clone().into_iter().map(Ok)));
    // (Items are cloned, and tensors are not: they are loaded from items.)
    let numbers = iterable::from_fn(move |_, _| Ok((0..2usize).map(Ok)));
    let tensors = numbers.map(move |number, _| Ok(Tensor::from(all[number].clone())));
    let expected = [1, 2, 3, 4, 5, -1, -1, -1];
    assert_eq!(tokens(vectors), expected);
    assert_eq!(tokens(shared), expected);
    assert_eq!(tokens(tensors), expected);
}

#[test]
fn rows_travel_to_a_device_and_may_be_mapped() {
    let device = Device::cpu();
    // The sign says which tokens are learned.
    let chats = iterable::from_fn(|_, _| Ok((0..4).map(|_| Ok(vec![-1i32, -2, 3, 4, 5]))));
    let rows = chats.pack(8).unwrap().map(|row, _| {
        let labels = row
            .tokens
            .iter()
            .map(|token| if *token > 0 { i64::from(*token) } else { -100 });
        let labels: Vec<i64> = labels.collect();
        let tokens = row.tokens.iter().map(|token| token.abs()).collect();
        Ok((PackedRow { tokens, ..row }, labels))
    });
    let loader = DataLoader::iterable(rows)
        .batch_size(3)
        .num_workers(2)
        .pin_memory(&device)
        .build()
        .unwrap();
    let (rows, labels) = loader
        .epoch(0)
        .prefetch_to_device(&device, 2)
        .next()
        .unwrap()
        .unwrap();
    let tokens = rows.tokens.to_host(true).unwrap().wait().unwrap();
    let labels = labels.to_host(true).unwrap().wait().unwrap();
    assert_eq!(tokens.as_slice()[..8], [1, 2, 3, 4, 5, 1, 2, 3]);
    assert_eq!(labels.as_slice()[..8], [-100, -100, 3, 4, 5, -100, -100, 3]);
    assert_eq!(labels.as_slice()[20..], [-100; 4]);
}

/// A document that fails, or panics, is an error of its own, and none of the others is lost, in every epoch.
#[test]
fn a_broken_document_is_an_error_of_its_own() {
    let source = || {
        let lines = iterable::from_fn(|_, _| {
            Ok((0..12u64).map(|number| match number {
                4 => Err("line 4 is no text".into()),
                number => Ok(number),
            }))
        });
        lines.map(|number, _| match number {
            5 => Err(Temporary::new("503").into()),
            10 => watch::provoked("no tokeniser"),
            number => Ok(document(number, 3)),
        })
    };
    let good: Vec<u32> = (0..12)
        .filter(|number| ![4, 5, 10].contains(number))
        .flat_map(|number| document(number, 3))
        .collect();
    for (buffer, workers) in [(None, 0), (None, 3), (Some(5), 0), (Some(5), 3)] {
        let packed = || match buffer {
            Some(size) => source().pack(4).unwrap().with_best_fit(size),
            None => source().pack(4).unwrap(),
        };
        let loader = loader_of(packed(), 1, workers);
        for epoch in 0..2 {
            let (mut tokens, mut failed) = (Vec::new(), Vec::new());
            for batch in loader.epoch(epoch) {
                match batch {
                    Ok(batch) => tokens.extend(rows_of(&batch).concat().concat()),
                    Err(Error::Sample(_, cause)) => {
                        failed.push(cause.to_string());
                        assert!(cause.is::<DocumentError>());
                    }
                    Err(error) => panic!("{error}"),
                }
            }
            if buffer.is_none() {
                // They are told where they are found, in the middle of a row.
                assert_eq!(tokens, good);
            }
            tokens.sort_unstable();
            failed.sort();
            assert_eq!(tokens, good);
            assert_eq!(
                failed,
                [
                    "document 10: it panicked while loading: no tokeniser",
                    "document 4: line 4 is no text",
                    "document 5: 503",
                ]
            );
        }
        let loader = DataLoader::iterable(packed())
            .on_error(OnError::Skip { at_most: 3 })
            .retry(3, std::time::Duration::from_millis(1))
            .batch_size(2)
            .num_workers(workers)
            .build()
            .unwrap();
        let batches = loader.epoch(0).map(Result::unwrap);
        let mut tokens: Vec<u32> = batches
            .flat_map(|batch| rows_of(&batch).concat().concat())
            .collect();
        tokens.sort_unstable();
        assert_eq!((tokens, loader.stats().bad.skipped), (good.clone(), 3));
    }
}

/// Documents of a stream that can go where it was, and counts what it was asked for.
#[derive(Clone, Default)]
struct Corpus {
    lengths: Vec<u64>,
    pulled: Arc<AtomicU64>,
    held: Arc<Mutex<Vec<Weak<[u32]>>>>,
}

struct Reading {
    corpus: Corpus,
    at: u64,
    first: u64,
}

impl IterableDataset for Corpus {
    type Item = u64;
    type Sample = Arc<[u32]>;
    type Iter = Reading;

    fn open(&self, epoch: u64, _: Shard) -> Result<Reading, BoxError> {
        Ok(Reading {
            corpus: self.clone(),
            at: 0,
            first: 1_000 * epoch,
        })
    }

    /// Each document begins with a token that is drawn, and a few cannot be had, or panic.
    fn load(&self, item: u64, rng: &mut SampleRng) -> Result<Arc<[u32]>, BoxError> {
        let index = item % 1_000;
        match index % 22 {
            8 => return Err(format!("no {index}").into()),
            19 => watch::provoked(format!("no {index}")),
            _ => {}
        }
        let mut document = document(item, self.lengths[index as usize]);
        if let Some(first) = document.first_mut() {
            *first = rng.range(1..u32::MAX);
        }
        let document: Arc<[u32]> = document.into();
        self.held.lock().unwrap().push(Arc::downgrade(&document));
        Ok(document)
    }
}

impl ItemIter for Reading {
    type Item = u64;

    fn next(&mut self) -> Option<Result<u64, BoxError>> {
        self.corpus.pulled.fetch_add(1, Ordering::Relaxed);
        (self.at < self.corpus.lengths.len() as u64).then(|| {
            self.at += 1;
            Ok(self.first + self.at - 1)
        })
    }

    fn state(&self) -> Option<Vec<u8>> {
        Some(self.at.to_le_bytes().to_vec())
    }

    fn seek(&mut self, state: &[u8]) -> Result<(), BoxError> {
        self.at = u64::from_le_bytes(state.try_into()?);
        Ok(())
    }
}

/// The same, from a stream that cannot seek.
#[derive(Clone)]
struct Blind(Corpus);

impl IterableDataset for Blind {
    type Item = u64;
    type Sample = Arc<[u32]>;
    type Iter = std::vec::IntoIter<Result<u64, BoxError>>;

    fn open(&self, epoch: u64, _: Shard) -> Result<Self::Iter, BoxError> {
        let all: Vec<_> = (0..self.0.lengths.len() as u64)
            .map(|at| Ok(1_000 * epoch + at))
            .collect();
        Ok(all.into_iter())
    }

    fn load(&self, item: u64, rng: &mut SampleRng) -> Result<Arc<[u32]>, BoxError> {
        self.0.load(item, rng)
    }
}

/// How a stream is packed, with other adapters before and behind.
#[derive(Debug, Clone, Copy)]
struct Way {
    n: usize,
    buffer: Option<usize>,
    before: usize,
    behind: usize,
    kind: usize,
}

type Rows = Box<dyn Fn(usize, IterableState, Option<usize>) -> (Vec<Seen>, IterableState)>;

/// What a batch was: its rows with what they drew, or which document failed.
type Seen = std::result::Result<(Vec<u32>, Vec<u32>), u64>;

fn ways<S>(own: S, way: Way, batch_size: usize) -> Rows
where
    S: IterableDataset<Sample = Arc<[u32]>> + Clone,
{
    fn packed<S: IterableDataset<Sample = Arc<[u32]>>>(
        source: S,
        way: Way,
    ) -> pinfeed::iterable::Packed<S> {
        let packed = source.pack(way.n).unwrap();
        match way.buffer {
            Some(size) => packed.with_best_fit(size),
            None => packed,
        }
    }
    fn run<S>(
        source: S,
        batch_size: usize,
        workers: usize,
        state: &IterableState,
        stop: Option<usize>,
    ) -> (Vec<Seen>, IterableState)
    where
        S: IterableDataset<Sample = PackedRow<u32>>,
    {
        let noisy = source.map(|row, rng| Ok((row.tokens, rng.next_u32())));
        let loader = DataLoader::iterable(noisy)
            .batch_size(batch_size)
            .num_workers(workers)
            .seed(5)
            .build()
            .unwrap();
        let mut seen = Vec::new();
        'run: for epoch in loader.resume(0..2, state).unwrap() {
            for batch in epoch {
                seen.push(match batch {
                    Ok((tokens, noise)) => {
                        Ok((tokens.as_slice().to_vec(), noise.as_slice().to_vec()))
                    }
                    Err(Error::Sample(_, cause)) => {
                        Err(cause.downcast_ref::<DocumentError>().unwrap().document)
                    }
                    Err(error) => panic!("{error}"),
                });
                if stop == Some(seen.len()) {
                    break 'run;
                }
            }
        }
        (seen, loader.state())
    }
    Box::new(move |workers, state, stop| {
        let own = || own.clone();
        match way.kind {
            0 => run(packed(own(), way), batch_size, workers, &state, stop),
            1 => {
                let rows = packed(own().shuffle(way.before), way).shuffle(way.behind);
                run(rows, batch_size, workers, &state, stop)
            }
            2 => {
                let mixed =
                    iterable::mix([(own().shuffle(way.before), 2.0), (own().shuffle(3), 1.0)])
                        .unwrap();
                let rows = packed(mixed.repeat_n(2), way)
                    .skip(1)
                    .take(25)
                    .shuffle(way.behind);
                run(rows, batch_size, workers, &state, stop)
            }
            _ => {
                let rows = packed(own().shuffle(way.before), way)
                    .chain(packed(own().take(9), way))
                    .repeat_n(2);
                run(rows, batch_size, workers, &state, stop)
            }
        }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    /// Interrupted anywhere, any number of times, a run sees what it would have seen: rows, random numbers, and errors.
    #[test]
    fn a_run_that_is_resumed_sees_the_same(
        lengths in prop::collection::vec(prop_oneof![2 => 0..9u64, 1 => Just(0), 1 => 0..40u64], 0..30),
        n in 1..12usize,
        buffer in prop::option::of(1..9usize),
        before in 1..9usize,
        behind in 1..9usize,
        kind in 0..4usize,
        batch_size in 1..4usize,
        stops in prop::collection::vec((1..9usize, prop::sample::select(vec![0, 1, 3])), 0..7),
        seeks in any::<bool>(),
    ) {
        let way = Way { n, buffer, before, behind, kind };
        let own = Corpus { lengths, ..Corpus::default() };
        let run = match seeks {
            true => ways(own, way, batch_size),
            false => ways(Blind(own), way, batch_size),
        };
        let (whole, end) = run(0, IterableState::default(), None);
        let (mut seen, mut state) = (Vec::new(), IterableState::default());
        for (stop, workers) in stops.into_iter().map(|(stop, workers)| (Some(stop), workers)).chain([(None, 2)]) {
            let (more, reached) = run(workers, state, stop);
            seen.extend(more);
            state = reached.to_string().parse().unwrap(); // through a file
        }
        prop_assert_eq!(seen, whole);
        prop_assert_eq!((state.epoch(), state.items()), (end.epoch(), end.items()));
    }
}

/// The state is where the first document begins that is still needed: what came before is not read again.
#[test]
fn seeking_reads_what_is_needed_only() {
    let own = Corpus {
        lengths: (0..900).map(|index| index * 5 % 17).collect(),
        ..Corpus::default()
    };
    for (buffer, at_most) in [(None, 40), (Some(30), 60 + 40)] {
        let packed = own.clone().pack(32).unwrap();
        let packed = match buffer {
            Some(size) => packed.with_best_fit(size),
            None => packed,
        };
        let loader = loader_of(packed, 2, 0);
        let mut epoch = loader.epoch(0);
        assert_eq!(epoch.by_ref().take(80).count(), 80);
        let state = epoch.state();
        let shown = |batch: Result<PackedBatch<u32>>| match batch {
            Err(Error::Sample(_, cause)) => Err(cause.to_string()),
            batch => Ok(rows_of(&batch.unwrap())),
        };
        let next = shown(epoch.next().unwrap());
        own.pulled.store(0, Ordering::Relaxed);
        let resumed = loader.resume(0..1, &state).unwrap().next().unwrap().next();
        assert_eq!(shown(resumed.unwrap()), next);
        let pulled = own.pulled.load(Ordering::Relaxed);
        assert!(pulled <= at_most, "{buffer:?}: {pulled}");
        // A few numbers, however far the run is.
        assert!(state.to_string().len() < 400, "{state}");
    }
}

/// No more than two windows of documents are held, and no row waits for a whole window but the first.
#[test]
fn memory_and_waiting_are_bounded() {
    let own = Corpus {
        lengths: vec![8; 1_000],
        ..Corpus::default()
    };
    let loader = loader_of(own.clone().pack(32).unwrap().with_best_fit(100), 1, 0);
    let mut pulled = 0;
    for (number, batch) in loader.epoch(0).enumerate() {
        drop(batch);
        let now = own.pulled.load(Ordering::Relaxed);
        let more = now - std::mem::replace(&mut pulled, now);
        assert!(
            number == 0 || more <= 5,
            "{more} documents were pulled for row {number}"
        );
        let held = own.held.lock().unwrap();
        let held = held
            .iter()
            .filter(|document| document.strong_count() > 0)
            .count();
        assert!(held <= 200, "{held} documents are held");
    }
    assert_eq!(pulled, 1_001);

    own.held.lock().unwrap().clear();
    let loader = loader_of(own.clone().pack(32).unwrap(), 1, 0);
    for batch in loader.epoch(0) {
        drop(batch);
        let held = own.held.lock().unwrap();
        let held = held
            .iter()
            .filter(|document| document.strong_count() > 0)
            .count();
        assert!(held <= 5, "{held} documents are held");
    }
}

#[test]
fn a_state_of_other_rows_is_refused() {
    let own = || Corpus {
        lengths: vec![5; 40],
        ..Corpus::default()
    };
    let packed = |n, buffer: Option<usize>| match buffer {
        Some(size) => own().pack(n).unwrap().with_best_fit(size),
        None => own().pack(n).unwrap(),
    };
    let others = |buffer: Option<usize>| {
        let other = match buffer {
            Some(_) => None,
            None => Some(10),
        };
        [(9, buffer), (8, Some(11)), (8, other)]
    };
    for buffer in [None, Some(10)] {
        let loader = loader_of(packed(8, buffer), 1, 0);
        let mut epoch = loader.epoch(0);
        assert_eq!(epoch.by_ref().take(5).count(), 5);
        let state = epoch.state();
        assert!(loader.resume(0..1, &state).is_ok());
        for (n, other) in others(buffer) {
            let refused = loader_of(packed(n, other), 1, 0)
                .resume(0..1, &state)
                .err()
                .unwrap();
            assert!(matches!(refused, Error::State { .. }), "{refused}");
        }

        // Streams look themselves, too.
        let open = |n, buffer| packed(n, buffer).open(0, Shard::new(0, 1, 0)).unwrap();
        let mut stream = open(8, buffer);
        (0..5).for_each(|_| drop(stream.next()));
        let state = stream.state().unwrap();
        assert!(open(8, buffer).seek(&state).is_ok());
        for (n, other) in others(buffer) {
            let said = open(n, other).seek(&state).unwrap_err().to_string();
            assert!(said.contains("the state is that of "), "{said}");
        }
        for end in 0..state.len() {
            assert!(open(8, buffer).seek(&state[..end]).is_err(), "{end}");
        }
    }
}

/// A source that has changed is found out, where it does not give as much as was given out.
#[test]
fn a_state_of_other_documents_is_refused() {
    let loader = |lengths: Vec<u64>, buffer: Option<usize>| {
        let own = Corpus {
            lengths,
            ..Corpus::default()
        };
        let packed = own.pack(10).unwrap();
        match buffer {
            Some(size) => loader_of(packed.with_best_fit(size), 1, 0),
            None => loader_of(packed, 1, 0),
        }
    };
    // (After three rows, the third document is needed further; of five documents that fill a row each, three were used.)
    for (buffer, before, now) in [
        (None, vec![7, 8, 90], vec![7, 8, 3]),
        (Some(5), vec![10; 40], vec![2; 40]),
    ] {
        let first = loader(before, buffer);
        let mut epoch = first.epoch(0);
        assert_eq!(epoch.by_ref().take(3).count(), 3);
        let other = loader(now, buffer);
        let mut resumed = other.resume(0..1, &epoch.state()).unwrap().next().unwrap();
        let error = resumed.next().unwrap().unwrap_err();
        assert!(matches!(error, Error::Iterable { epoch: 0, .. }), "{error}");
        let says = match buffer {
            None => "the state is that of another source",
            Some(_) => "go on from an earlier state",
        };
        assert!(error.to_string().contains(says), "{error}");
        assert!(resumed.next().is_none());
    }
}
