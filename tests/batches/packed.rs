//! Packed documents: each token is in one row, once, and the batch says where each document begins.
#![cfg(not(miri))] // it takes many loaders

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pinfeed::dataset::{PackedDataset, PackingStrategy, Pass, VecDataset, document_lengths};
use pinfeed::error::{DocumentError, Temporary};
use pinfeed::loader::OnError;
use pinfeed::packed::{PackedBatch, PackedRow};
use pinfeed::rng::RngKey;
use pinfeed::{BoxError, DataLoader, Dataset, Device, Error, SampleRng, Tensor, from_fn};
use proptest::prelude::*;

/// Which document a token is of, and which of its tokens it is. No token is 0, which is the padding.
fn token(document: u64, place: u64) -> u32 {
    (document * 10_000 + place + 1) as u32
}

fn document(index: u64, length: u64) -> Vec<u32> {
    (0..length).map(|place| token(index, place)).collect()
}

fn documents(lengths: &[u64]) -> Vec<Vec<u32>> {
    let lengths = (0..).zip(lengths);
    lengths
        .map(|(index, length)| document(index, *length))
        .collect()
}

fn packed(
    lengths: &[u64],
    n: usize,
    packing: PackingStrategy,
) -> PackedDataset<VecDataset<Vec<u32>>> {
    PackedDataset::new(documents(lengths), lengths, n, packing).unwrap()
}

/// A batch's segments, row by row: the tokens of each. Checks all that a batch says of itself.
fn segments(batch: &PackedBatch<u32>, n: usize) -> Vec<Vec<Vec<u32>>> {
    let rows = batch.tokens.shape()[0];
    for shape in [
        batch.tokens.shape(),
        batch.position_ids.shape(),
        batch.segment_ids.shape(),
        batch.mask.shape(),
    ] {
        assert_eq!(shape[..], [rows, n]);
    }
    let (tokens, places) = (batch.tokens.as_slice(), batch.cu_seqlens.as_slice());
    assert_eq!((places[0], *places.last().unwrap() as usize), (0, rows * n));
    let mut by_row = vec![Vec::new(); rows];
    let (mut row, mut id, mut longest) = (usize::MAX, 0, 0);
    for bounds in places.windows(2) {
        let (from, to) = (bounds[0] as usize, bounds[1] as usize);
        assert!(from < to, "a segment has tokens");
        assert_eq!(from / n, (to - 1) / n, "a segment lies in a row");
        longest = longest.max(to - from);
        id = if from / n == row { id + 1 } else { 1 };
        row = from / n;
        let positions: Vec<i64> = (0..(to - from) as i64).collect();
        assert_eq!(batch.position_ids.as_slice()[from..to], positions);
        let is_padding = tokens[from] == 0;
        let (mask, expected) = if is_padding { (0, 0) } else { (1, id) };
        assert!(batch.mask.as_slice()[from..to].iter().all(|x| *x == mask));
        assert!(
            batch.segment_ids.as_slice()[from..to]
                .iter()
                .all(|x| *x == expected)
        );
        if is_padding {
            assert_eq!(to, (row + 1) * n, "padding is behind the documents");
            assert!(tokens[from..to].iter().all(|token| *token == 0));
        } else {
            assert!(
                tokens[from..to]
                    .windows(2)
                    .all(|pair| pair[0] + 1 == pair[1])
            );
            by_row[row].push(tokens[from..to].to_vec());
        }
    }
    assert_eq!(batch.max_seqlen, longest);
    by_row
}

/// The segments of all rows, as a loader gives them.
fn rows_of(
    packed: PackedDataset<VecDataset<Vec<u32>>>,
    n: usize,
    batch_size: usize,
    workers: usize,
    pin: bool,
) -> Vec<Vec<Vec<u32>>> {
    let expected: Vec<Vec<(u64, std::ops::Range<u64>)>> =
        (0..packed.len()).map(|row| packed.pieces(row)).collect();
    let mut builder = DataLoader::builder(packed)
        .batch_size(batch_size)
        .num_workers(workers);
    if pin {
        builder = builder.pin_memory(&Device::cpu());
    }
    let loader = builder.build().unwrap();
    let epoch = |epoch| -> Vec<_> {
        let batches = loader.epoch(epoch);
        batches
            .flat_map(|batch| segments(&batch.unwrap(), n))
            .collect()
    };
    let rows = epoch(0);
    assert_eq!(rows, epoch(1));
    let pieces = |pieces: &Vec<(u64, std::ops::Range<u64>)>| -> Vec<Vec<u32>> {
        let pieces = pieces.iter().cloned();
        pieces
            .map(|(index, range)| range.map(|place| token(index, place)).collect())
            .collect()
    };
    assert_eq!(rows, expected.iter().map(pieces).collect::<Vec<_>>());
    rows
}

fn sorted(rows: &[Vec<Vec<u32>>]) -> Vec<u32> {
    let mut tokens = rows.concat().concat();
    tokens.sort_unstable();
    tokens
}

/// The space that best-fit decreasing leaves in each row, by its definition.
fn spaces_left(lengths: &[u64], n: u64) -> Vec<u64> {
    let mut spaces: Vec<u64> = lengths
        .iter()
        .flat_map(|length| vec![0; (length / n) as usize])
        .collect();
    let mut rests: Vec<u64> = lengths
        .iter()
        .map(|length| length % n)
        .filter(|rest| *rest > 0)
        .collect();
    rests.sort_unstable_by(|a, b| b.cmp(a));
    for rest in rests {
        match spaces.iter_mut().filter(|space| **space >= rest).min() {
            Some(space) => *space -= rest,
            None => spaces.push(n - rest),
        }
    }
    spaces.sort_unstable();
    spaces
}

fn lengths() -> impl Strategy<Value = Vec<u64>> {
    prop::collection::vec(
        prop_oneof![3 => 0..12u64, 1 => Just(0), 1 => 0..70u64],
        0..50,
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn concatenated_documents_are_a_stream(
        lengths in lengths(),
        n in 1..20usize,
        batch_size in 1..6usize,
        workers in prop::sample::select(vec![0, 1, 4]),
        pin: bool,
    ) {
        let rows = rows_of(packed(&lengths, n, PackingStrategy::Concatenated), n, batch_size, workers, pin);
        prop_assert_eq!(rows.concat().concat(), documents(&lengths).concat());
        for row in rows.iter().rev().skip(1) {
            prop_assert_eq!(row.concat().len(), n, "all rows but the last are full");
        }
    }

    #[test]
    fn shuffled_documents_are_a_stream_in_another_order(
        lengths in lengths(),
        n in 1..20usize,
        batch_size in 1..6usize,
        seed: u64,
    ) {
        let of = |seed| rows_of(packed(&lengths, n, PackingStrategy::Shuffled { seed }), n, batch_size, 0, false);
        let rows = of(seed);
        prop_assert_eq!(sorted(&rows), documents(&lengths).concat());
        prop_assert_eq!(&rows, &of(seed));
        // A document's parts are one behind the other in the stream.
        let stream = rows.concat().concat();
        let mut starts: Vec<u32> = stream.iter().copied().filter(|token| token % 10_000 == 1).collect();
        let joined: Vec<u32> = starts.iter().flat_map(|start| {
            let index = u64::from(start / 10_000);
            document(index, lengths[index as usize])
        }).collect();
        prop_assert_eq!(stream, joined);
        starts.sort_unstable();
        prop_assert_eq!(starts.len(), lengths.iter().filter(|length| **length > 0).count());
    }

    #[test]
    fn best_fit_keeps_documents_whole_and_wastes_little(
        lengths in lengths(),
        n in 1..20usize,
        batch_size in 1..6usize,
        workers in prop::sample::select(vec![0, 4]),
    ) {
        let packed = packed(&lengths, n, PackingStrategy::BestFit);
        prop_assert_eq!(packed.real_tokens(), lengths.iter().sum::<u64>());
        let rows = rows_of(packed, n, batch_size, workers, false);
        prop_assert_eq!(sorted(&rows), documents(&lengths).concat());
        let segments = rows.concat();
        for (index, length) in (0..).zip(&lengths) {
            let parts: Vec<_> = segments.iter().filter(|part| u64::from(part[0] / 10_000) == index).collect();
            prop_assert_eq!(parts.len() as u64, length.div_ceil(n as u64), "it is cut where it must be only");
        }
        let mut spaces: Vec<u64> = rows.iter().map(|row| (n - row.concat().len()) as u64).collect();
        spaces.sort_unstable();
        prop_assert_eq!(spaces, spaces_left(&lengths, n as u64));
    }
}

const PACKINGS: [PackingStrategy; 3] = [
    PackingStrategy::Concatenated,
    PackingStrategy::Shuffled { seed: 3 },
    PackingStrategy::BestFit,
];

#[test]
fn few_documents_are_packed_too() {
    for packing in PACKINGS {
        let rows = |lengths: &[u64]| rows_of(packed(lengths, 4, packing), 4, 3, 2, true);
        assert_eq!(rows(&[]), Vec::<Vec<Vec<u32>>>::new());
        assert_eq!(rows(&[0, 0, 0]), Vec::<Vec<Vec<u32>>>::new());
        assert_eq!(rows(&[1]), [[[1]]]);
        assert_eq!(rows(&[4]), [[[1, 2, 3, 4]]]);
        assert_eq!(rows(&[0, 3, 0, 0]), [[[10_001, 10_002, 10_003]]]);
        let long = rows(&[9]);
        assert_eq!(
            long,
            [
                vec![vec![1, 2, 3, 4]],
                vec![vec![5, 6, 7, 8]],
                vec![vec![9]]
            ]
        );
        assert!(packed(&[], 4, packing).is_empty());
        assert_eq!(packed(&[2], 4, packing).pieces(1), []);
        assert_eq!(packed(&[2], 4, packing).pieces(u64::MAX), []);
    }
    let loader = DataLoader::builder(packed(&[], 4, PackingStrategy::BestFit));
    assert_eq!(loader.build().unwrap().epoch(0).count(), 0);
}

/// An order that was published must stay: a state of today fits the loader of tomorrow.
#[test]
fn a_seed_gives_the_same_order_for_ever() {
    let shuffled = |seed| {
        let packed = packed(&[1; 8], 8, PackingStrategy::Shuffled { seed });
        let pieces = packed.pieces(0).into_iter();
        pieces.map(|(document, _)| document).collect::<Vec<_>>()
    };
    assert_eq!(shuffled(0), [7, 6, 2, 3, 0, 5, 1, 4]);
    assert_eq!(shuffled(17), [0, 1, 7, 5, 4, 6, 2, 3]);
}

#[test]
fn what_cannot_be_packed_is_refused() {
    let refusal = |lengths: &[u64], n| {
        let error = PackedDataset::new(documents(&[1, 2]), lengths, n, PackingStrategy::BestFit)
            .unwrap_err();
        error.to_string()
    };
    assert!(refusal(&[1], 4).contains("1 lengths for 2 documents"));
    assert!(refusal(&[1, 2], 0).contains("1 to 2³¹ - 1 tokens"));
    assert!(refusal(&[1, 2], 1 << 31).contains("1 to 2³¹ - 1 tokens"));
    for packing in PACKINGS {
        let error = PackedDataset::new(documents(&[1, 2]), &[u64::MAX, 2], 4, packing).unwrap_err();
        assert!(error.to_string().contains("more than 2⁶⁴ - 1"), "{error}");
    }
}

/// Documents of which one is broken and one has another length than it had.
fn spoilt() -> impl Dataset<Sample = Vec<u32>> {
    let documents = from_fn(20, |index, _| match index {
        7 => Err::<Vec<u32>, BoxError>(std::io::Error::other("the disk is gone").into()),
        11 => Ok(document(index, 5)),
        _ => Ok(document(index, 4)),
    });
    documents.describe(|index| format!("{index}.txt"))
}

#[test]
fn a_broken_document_is_named_in_its_rows_error() {
    for packing in [PackingStrategy::Concatenated, PackingStrategy::BestFit] {
        for workers in [0, 3] {
            let rows = PackedDataset::new(spoilt(), &[4; 20], 8, packing).unwrap();
            let loader = DataLoader::builder(rows)
                .num_workers(workers)
                .build()
                .unwrap();
            for epoch in 0..2 {
                let rows: Vec<_> = loader.epoch(epoch).collect();
                let failed: Vec<_> = rows.iter().filter_map(|row| row.as_ref().err()).collect();
                assert_eq!((rows.len(), failed.len()), (10, 2));
                let [Error::Sample(_, broken), Error::Sample(_, grown)] = failed[..] else {
                    panic!("{failed:?}");
                };
                let broken = broken.downcast_ref::<DocumentError>().unwrap();
                assert_eq!(broken.document, 7);
                assert!(broken.cause.is::<std::io::Error>());
                assert_eq!(
                    failed[0].to_string(),
                    "sample 3 (document 6 (6.txt) and 1 more), row 0 of batch 3 in epoch "
                        .to_string()
                        + &format!("{epoch}, failed to load: document 7 (7.txt): the disk is gone")
                );
                assert_eq!(
                    grown.to_string(),
                    "document 11 (11.txt): it has 5 tokens, and was packed as one of 4"
                );
            }
        }
    }
    let error = document_lengths(&spoilt()).unwrap_err();
    assert_eq!(error.to_string(), "document 7 (7.txt): the disk is gone");
}

/// Rows with a broken document are left out, or others come: the batch's segments are those of what it has.
#[test]
fn rows_with_a_broken_document_can_be_left_out() {
    for (on_error, rows) in [
        (OnError::Skip { at_most: 9 }, 8),
        (OnError::Replace { at_most: 9 }, 10),
    ] {
        for workers in [0, 1, 4] {
            for pin in [false, true] {
                let packed =
                    PackedDataset::new(spoilt(), &[4; 20], 8, PackingStrategy::Concatenated)
                        .unwrap();
                let mut builder = DataLoader::builder(packed)
                    .batch_size(5)
                    .shuffle(true)
                    .num_workers(workers)
                    .on_error(on_error);
                if pin {
                    builder = builder.pin_memory(&Device::cpu());
                }
                let loader = builder.build().unwrap();
                for epoch in 0..3 {
                    let batches = loader.epoch(epoch);
                    let segments: Vec<_> = batches
                        .flat_map(|batch| segments(&batch.unwrap(), 8))
                        .collect();
                    assert_eq!(segments.len(), rows);
                    for row in segments {
                        assert_eq!((row.len(), row[0].len(), row[1].len()), (2, 4, 4));
                    }
                }
            }
        }
    }
}

type Answers = Vec<Result<Vec<u32>, BoxError>>;

/// Documents that come from a server: several in a call, of which now and then one fails.
struct Server {
    /// How many documents each call asked for.
    calls: Mutex<Vec<usize>>,
    len: AtomicU64,
    answers: fn(&[u64]) -> Answers,
}

impl Server {
    fn packed(answers: fn(&[u64]) -> Answers) -> PackedDataset<Arc<Server>> {
        let server = Server {
            calls: Mutex::default(),
            len: AtomicU64::new(12),
            answers,
        };
        PackedDataset::new(
            Arc::new(server),
            &[4; 12],
            20,
            PackingStrategy::Concatenated,
        )
        .unwrap()
    }

    fn calls(&self) -> Vec<usize> {
        std::mem::take(&mut self.calls.lock().unwrap())
    }
}

impl Dataset for Server {
    type Sample = Vec<u32>;

    fn len(&self) -> u64 {
        self.len.load(Ordering::SeqCst)
    }

    fn get(&self, _: u64, _: &mut SampleRng) -> Result<Vec<u32>, BoxError> {
        panic!("one query for one document")
    }

    fn get_many(&self, indices: &[u64], _: &mut [SampleRng]) -> Vec<Result<Vec<u32>, BoxError>> {
        self.calls.lock().unwrap().push(indices.len());
        (self.answers)(indices)
    }

    fn at_once(&self) -> usize {
        3
    }

    fn describe(&self, index: u64) -> Option<String> {
        assert!(index < self.len(), "asked for what it does not have");
        None
    }
}

fn answered(indices: &[u64]) -> Answers {
    indices
        .iter()
        .map(|index| Ok(document(*index, 4)))
        .collect()
}

#[test]
fn documents_come_several_in_a_call() {
    let rows = Server::packed(answered);
    let server = Arc::clone(rows.documents());
    assert_eq!(document_lengths(&server).unwrap(), [4; 12]);
    assert_eq!(server.calls(), [3, 3, 3, 3]);
    let loader = DataLoader::builder(rows).build().unwrap();
    let rows: Vec<_> = loader.epoch(0).map(Result::unwrap).collect();
    assert_eq!(server.calls(), [3, 2, 3, 2, 2]);
    let tokens: Vec<u32> = rows.iter().flat_map(|row| row.tokens.to_vec()).collect();
    assert_eq!(tokens[..48], documents(&[4; 12]).concat());

    // Of what is gone, the data set is not asked.
    server.len.store(7, Ordering::SeqCst);
    let rows: Vec<_> = loader.epoch(1).collect();
    assert!(rows[0].is_ok());
    let error = rows[1].as_ref().unwrap_err().to_string();
    assert!(error.contains("has only 7 samples now"), "{error}");

    let rows = Server::packed(|indices| answered(&indices[1..]));
    let loader = DataLoader::builder(rows).build().unwrap();
    let error = loader.epoch(0).next().unwrap().unwrap_err().to_string();
    assert!(
        error.ends_with("document 2: `get_many` returned fewer samples than it was asked for"),
        "{error}"
    );
}

/// What says that it may go away is tried again, with its row.
#[test]
fn a_document_that_fails_for_a_while_is_tried_again() {
    static CALLS: AtomicU64 = AtomicU64::new(0);
    let rows = Server::packed(|indices| {
        let mut answers = answered(indices);
        if CALLS.fetch_add(1, Ordering::SeqCst) % 3 == 1 {
            answers[1] = Err(Temporary::new("503 Service Unavailable").into());
        }
        answers
    });
    let loader = DataLoader::builder(rows)
        .retry(3, Duration::from_millis(1))
        .build()
        .unwrap();
    for epoch in 0..2 {
        let rows: Vec<_> = loader
            .epoch(epoch)
            .map(|row| row.unwrap().tokens.to_vec())
            .collect();
        assert_eq!(rows.concat()[..48], documents(&[4; 12]).concat());
        assert!(loader.stats().bad.retried > 0);
    }
}

/// A document may be in several rows, and has the length that it was packed with: it cannot be random.
#[test]
fn random_documents_are_refused() {
    let documents = from_fn(3, |index, rng| match index {
        1 => Ok(vec![rng.next_u32(); 4]),
        _ => Ok(document(index, 4)),
    });
    let error = document_lengths(&documents).unwrap_err().to_string();
    assert!(
        error.starts_with("document 1: it drew random numbers"),
        "{error}"
    );
    let rows = PackedDataset::new(documents, &[4; 3], 4, PackingStrategy::BestFit).unwrap();
    let loader = DataLoader::builder(rows).build().unwrap();
    let rows: Vec<_> = loader.epoch(0).collect();
    assert!(rows[0].is_ok() && rows[2].is_ok());
    let error = rows[1].as_ref().unwrap_err().to_string();
    assert!(
        error.contains("draw them in a `map` of the rows"),
        "{error}"
    );
}

/// A run goes on within an epoch; a state of other neighbours is refused.
#[test]
fn a_run_of_packed_rows_can_be_resumed() {
    let lengths: Vec<u64> = (0..40).map(|index| index % 7).collect();
    let loader = |n, packing| {
        let loader = DataLoader::builder(packed(&lengths, n, packing));
        loader.batch_size(3).shuffle(true).build().unwrap()
    };
    let first = loader(10, PackingStrategy::Shuffled { seed: 1 });
    let all: Vec<_> = first
        .epoch(0)
        .map(|batch| batch.unwrap().tokens.to_vec())
        .collect();
    let mut epoch = first.epochs(0..1).next().unwrap();
    epoch.next().unwrap().unwrap();
    let state = first.state();
    drop(epoch);
    let again = loader(10, PackingStrategy::Shuffled { seed: 1 });
    let rest: Vec<_> = again
        .resume(0..1, &state)
        .unwrap()
        .flat_map(|epoch| epoch.map(|batch| batch.unwrap().tokens.to_vec()))
        .collect();
    assert_eq!(rest, all[1..]);
    for other in [
        loader(10, PackingStrategy::Shuffled { seed: 2 }),
        loader(10, PackingStrategy::Concatenated),
        loader(10, PackingStrategy::BestFit),
        loader(9, PackingStrategy::Shuffled { seed: 1 }),
    ] {
        assert!(other.resume(0..1, &state).is_err());
    }
}

/// Documents of several kinds, and padding of one's own.
#[test]
fn documents_may_be_shared_and_padded_with_anything() {
    fn tokens<D>(documents: D) -> Vec<i64>
    where
        D: Dataset<Sample: pinfeed::dataset::Document<Token = i64>>,
    {
        let packed =
            PackedDataset::new(documents, &[3, 1], 5, PackingStrategy::Concatenated).unwrap();
        packed
            .with_padding(-1)
            .get(
                0,
                &mut SampleRng::for_sample(RngKey {
                    seed: 0,
                    epoch: 0,
                    position: 0,
                }),
            )
            .unwrap()
            .tokens
    }
    let documents = [vec![1i64, 2, 3], vec![4]];
    assert_eq!(
        tokens(VecDataset::new(documents.to_vec())),
        [1, 2, 3, 4, -1]
    );
    let shared: Vec<Arc<[i64]>> = documents
        .iter()
        .map(|tokens| tokens.as_slice().into())
        .collect();
    assert_eq!(tokens(VecDataset::new(shared)), [1, 2, 3, 4, -1]);
    let tensors = from_fn(2, move |index, _| {
        Ok(Tensor::from(documents[index as usize].clone()))
    });
    assert_eq!(tokens(tensors), [1, 2, 3, 4, -1]);
}

/// A data set that remembers which documents it was told of.
struct Told {
    lookahead: usize,
    told: Mutex<Vec<u64>>,
}

impl Dataset for Told {
    type Sample = Vec<u32>;

    fn len(&self) -> u64 {
        12
    }

    fn get(&self, index: u64, _: &mut SampleRng) -> Result<Vec<u32>, BoxError> {
        Ok(document(index, 4))
    }

    fn lookahead(&self) -> usize {
        self.lookahead
    }

    fn will_need(&self, indices: &[u64], _: Pass) {
        self.told.lock().unwrap().extend(indices);
    }

    fn pass_ended(&self, _: Pass) {
        self.told.lock().unwrap().clear();
    }
}

#[test]
fn documents_are_told_of_the_rows_to_come() {
    let rows = |lookahead| {
        let documents = Told {
            lookahead,
            told: Mutex::default(),
        };
        PackedDataset::new(documents, &[4; 12], 6, PackingStrategy::Concatenated).unwrap()
    };
    assert_eq!(
        (
            rows(0).lookahead(),
            rows(3).lookahead(),
            rows(12).lookahead()
        ),
        (0, 2, 8)
    );
    let rows = rows(3);
    rows.will_need(&[4, 5, 0], Pass::new(1, 0));
    assert_eq!(*rows.documents().told.lock().unwrap(), [6, 7, 8, 0, 1]);
    rows.pass_ended(Pass::new(1, 0));
    assert!(rows.documents().told.lock().unwrap().is_empty());
}

#[test]
fn rows_packed_by_hand_are_checked() {
    let row = |tokens: usize, lengths: &[usize]| PackedRow {
        tokens: vec![7u32; tokens],
        lengths: lengths.to_vec(),
    };
    let batch = |rows: Vec<PackedRow<u32>>| {
        let rows = DataLoader::builder(rows).batch_size(4).build().unwrap();
        rows.epoch(0).next().unwrap()
    };
    let made = batch(vec![row(4, &[1, 0, 2]), row(4, &[]), row(4, &[0, 4])]).unwrap();
    assert_eq!(made.cu_seqlens.as_slice(), [0, 1, 3, 4, 8, 12]);
    assert_eq!(
        made.segment_ids.as_slice(),
        [1, 2, 2, 0, 0, 0, 0, 0, 1, 1, 1, 1]
    );
    assert_eq!(made.max_seqlen, 4);

    let error = batch(vec![row(4, &[4]), row(4, &[3, 2])])
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("sample 1") && error.ends_with("its documents have 5 tokens, and it has 4"),
        "{error}"
    );
    let error = batch(vec![row(4, &[4]), row(3, &[3])])
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("its shape is [3], and the batch's rows are [4]"),
        "{error}"
    );
    let error = batch(vec![row(4, &[4]), row(4, &[usize::MAX, usize::MAX])]).unwrap_err();
    assert!(error.to_string().contains("and it has 4"), "{error}");
}

/// (The memory is reserved, and never touched.)
#[test]
fn more_tokens_than_an_i32_counts_are_refused() {
    let rows = from_fn(2, |_, _| {
        Ok(PackedRow {
            tokens: vec![0u8; 1 << 30],
            lengths: vec![1],
        })
    });
    let loader = DataLoader::builder(rows).batch_size(2).build().unwrap();
    let error = loader.epoch(0).next().unwrap().unwrap_err().to_string();
    assert!(error.contains("which are i32"), "{error}");
}
