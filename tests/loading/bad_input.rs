//! What programs get wrong: each is refused in plain words, or handled as documented; no thread panics, and nothing hangs. (What only
//! one part of the library can be given, such as weights, is tested with that part.)

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use pinfeed::collate::{Relocation, Tensors, Upload};
use pinfeed::dataset::{
    Cacheable, Fingerprint, PackedDataset, PackingStrategy, Staged, StagedDataset, Subset,
    document_lengths, random_split,
};
use pinfeed::device::DeviceBuffers;
use pinfeed::error::CollateError;
use pinfeed::iterable::{self, IterableDataset, Shard};
use pinfeed::loader::{Builder, Iterable, IterableState, LastBatch, LoaderState, World};
use pinfeed::sample::{Field, Filled, Layout, Row};
use pinfeed::sampler::{
    FixedBatchSampler, GroupedBatchSampler, RandomSampler, Sampler, SequentialSampler,
    SubsetRandomSampler, TokenBatchSampler, WeightedRandomSampler,
};
use pinfeed::{
    Batch, BoxError, DataLoader, Dataset, Device, DeviceTensor, Error, Result, Sample, SampleRng,
    Tensor, from_fn,
};

const WORKERS: [usize; 3] = [0, 1, 3];

fn numbers(len: u64) -> impl Dataset<Sample = i64> {
    from_fn(len, |index, _| Ok(index as i64))
}

fn streamed(len: u64) -> impl IterableDataset<Sample = i64> {
    iterable::from_fn(move |_, shard: Shard| {
        let own = (0..len).filter(move |number| shard.keeps(*number));
        Ok(own.map(|number| Ok(number as i64)))
    })
}

/// What each batch is, or says.
fn outcomes(batches: impl Iterator<Item = Result<Tensor<i64>>>) -> Vec<Result<Vec<i64>, String>> {
    let shown = |batch: Tensor<i64>| batch.as_slice().to_vec();
    let batches = batches.map(|batch| batch.map(shown).map_err(|error| error.to_string()));
    batches.collect()
}

#[test]
fn nothing_is_an_epoch_without_batches() {
    let device = Device::cpu();
    for workers in WORKERS {
        for (rank, last) in [
            (0, LastBatch::Partial),
            (3, LastBatch::Fill),
            (1, LastBatch::Drop),
        ] {
            let world = World::new(rank, 4).unwrap();
            let loader = DataLoader::builder(numbers(0))
                .batch_size(2)
                .shuffle(true)
                .num_workers(workers)
                .last_batch(last)
                .world(world)
                .pin_memory(&device)
                .build()
                .unwrap();
            assert!(loader.is_empty());
            assert_eq!(loader.epochs(0..3).map(Iterator::count).sum::<usize>(), 0);
            let there = loader.epochs(0..3).prefetch_to_device(&device, 2);
            assert_eq!(there.map(Iterator::count).sum::<usize>(), 0);
            assert_eq!(loader.state().epoch(), 3);
            let resumed = loader.resume(0..5, &loader.state()).unwrap();
            assert_eq!(
                resumed.map(|epoch| epoch.number()).collect::<Vec<_>>(),
                [3, 4]
            );

            let loader = DataLoader::iterable(streamed(0).shuffle(5))
                .batch_size(2)
                .drop_last(last == LastBatch::Drop)
                .num_workers(workers)
                .world(world)
                .pin_memory(&device)
                .build()
                .unwrap();
            assert_eq!(loader.epochs(0..3).map(Iterator::count).sum::<usize>(), 0);
            let there = loader.epochs(0..3).prefetch_to_device(&device, 2);
            assert_eq!(there.map(Iterator::count).sum::<usize>(), 0);
            assert_eq!(loader.state().epoch(), 3);
            let resumed = loader.resume(0..5, &loader.state()).unwrap();
            assert_eq!(
                resumed.map(|epoch| epoch.number()).collect::<Vec<_>>(),
                [3, 4]
            );
        }
    }
}

#[test]
fn options_of_streams_that_make_no_sense_are_refused_by_name() {
    let said = |built: Result<_>| match built {
        Err(Error::InvalidOption { option, reason }) => format!("{option} {reason}"),
        Err(error) => panic!("{error}"),
        Ok::<DataLoader<Tensor<i64>, Iterable>, _>(_) => "it was built".into(),
    };
    let stream = || DataLoader::iterable(streamed(9));
    let told = [
        said(stream().batch_size(0).build()),
        said(stream().num_workers(2).prefetch(0).build()),
        said(stream().prefetch(3).build()),
        said(stream().num_workers(2).timeout(Duration::ZERO).build()),
        said(stream().timeout(Duration::from_secs(1)).build()),
        said(stream().strict_pinning(true).build()),
        said(stream().min_slab_bytes(1).build()),
        said(stream().pin_memory(&[]).build()),
    ];
    let expected = [
        "batch_size is 0: a batch has at least one sample",
        "prefetch is 0: ",
        "prefetch needs workers: ",
        "timeout is 0: ",
        "timeout needs workers: ",
        "strict_pinning needs pin_memory(&device)",
        "min_slab_bytes needs pin_memory(&device)",
        "pin_memory names no device",
    ];
    for (told, expected) in told.iter().zip(expected) {
        assert!(told.starts_with(expected), "{told}");
    }
}

/// Each rank has equally many batches, of which some have no rows of their own; a stream's ranks have what their shard has.
#[test]
fn ranks_may_be_more_than_samples() {
    for workers in WORKERS {
        for last in [LastBatch::Partial, LastBatch::Fill, LastBatch::Drop] {
            let (mut seen, mut lens, mut streamed_seen) = (Vec::new(), Vec::new(), Vec::new());
            for rank in 0..7 {
                let world = World::new(rank, 7).unwrap();
                let loader = DataLoader::builder(numbers(3))
                    .batch_size(2)
                    .last_batch(last)
                    .num_workers(workers)
                    .world(world)
                    .build()
                    .unwrap();
                lens.push(loader.len());
                for batch in loader.epoch(0).with_info() {
                    let (batch, info) = batch.unwrap();
                    seen.extend_from_slice(&batch.as_slice()[..info.real_rows()]);
                }
                let loader = DataLoader::iterable(streamed(3))
                    .batch_size(2)
                    .num_workers(workers)
                    .world(world)
                    .build()
                    .unwrap();
                for batch in loader.epoch(0) {
                    streamed_seen.extend_from_slice(batch.unwrap().as_slice());
                }
                // A rank without items does not repeat nothing for ever.
                let loader = DataLoader::iterable(streamed(3).repeat().take(4))
                    .num_workers(workers)
                    .world(world)
                    .build()
                    .unwrap();
                let expected = if rank < 3 { 4 } else { 0 };
                assert_eq!(loader.epoch(0).count(), expected);
            }
            seen.sort_unstable();
            let (expected, len) = match last {
                LastBatch::Drop => (vec![], 0),
                _ => (vec![0, 1, 2], 1),
            };
            assert_eq!((seen, lens), (expected, vec![len; 7]), "{last:?}");
            assert_eq!(streamed_seen, [0, 1, 2]);
        }
    }
}

/// A data set whose length is another from one moment to the next.
struct Growing(Arc<AtomicU64>);

impl Dataset for Growing {
    type Sample = i64;

    fn len(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    fn get(&self, index: u64, _: &mut SampleRng) -> Result<i64, BoxError> {
        assert!(index < self.len(), "it is asked for what it has");
        Ok(index as i64)
    }
}

/// The length is that of when the loader was built. What is gone is an error of its batch; what is new does not come.
#[test]
fn a_data_set_may_change_its_length() {
    let device = Device::cpu();
    for workers in WORKERS {
        let len = Arc::new(AtomicU64::new(8));
        let builder = DataLoader::builder(Growing(Arc::clone(&len))).batch_size(2);
        let loader = builder
            .num_workers(workers)
            .pin_memory(&device)
            .build()
            .unwrap();
        let whole: Vec<_> = (0..8i64).collect();
        let whole: Vec<_> = whole.chunks(2).map(|two| Ok(two.to_vec())).collect();
        assert_eq!(outcomes(loader.epoch(0)), whole);
        let saved = loader.state();

        len.store(5, Ordering::Relaxed);
        for on_device in [false, true] {
            let batches = match on_device {
                false => outcomes(loader.epoch(1)),
                true => {
                    let back =
                        |batch: Result<pinfeed::DeviceTensor<i64>>| batch?.to_host(true)?.wait();
                    outcomes(loader.epoch(1).prefetch_to_device(&device, 2).map(back))
                }
            };
            assert_eq!(batches[..2], whole[..2]);
            for (batch, gone) in batches[2..].iter().zip([5, 6]) {
                let said = batch.as_ref().unwrap_err();
                let expected = format!("gave index {gone}, and the data set has 5 samples");
                assert!(said.contains(&expected), "{said}");
            }
            assert_eq!(batches.len(), 4);
        }

        len.store(20, Ordering::Relaxed);
        assert_eq!(outcomes(loader.epoch(2)), whole);
        let grown = DataLoader::builder(Growing(len)).batch_size(2);
        let grown = grown.build::<Tensor<i64>>().unwrap();
        let refused = grown.resume(0..9, &saved).err().unwrap().to_string();
        assert!(refused.contains("8 samples, the loader's 20"), "{refused}");
    }
}

/// An order of its own, which does not know the data set.
struct Off(Vec<u64>);

impl Sampler for Off {
    fn len(&self) -> u64 {
        self.0.len() as u64
    }

    fn index(&self, _: u64, position: u64) -> u64 {
        self.0[position as usize]
    }
}

#[test]
fn an_index_out_of_range_is_an_error_of_its_batch() {
    let device = Device::cpu();
    let order = || Off(vec![0, 1, 2, 3, 4, u64::MAX, 4, 0]);
    for workers in WORKERS {
        for pinned in [false, true] {
            let builder = DataLoader::builder(numbers(5))
                .batch_size(2)
                .sampler(order());
            let builder = builder.num_workers(workers);
            let loader = match pinned {
                true => builder.pin_memory(&device),
                false => builder,
            }
            .build()
            .unwrap();
            for epoch in loader.epochs(0..2) {
                let batches = outcomes(epoch);
                let (good, bad): (Vec<_>, Vec<_>) = batches.into_iter().partition(Result::is_ok);
                assert_eq!(good, [Ok(vec![0, 1]), Ok(vec![2, 3]), Ok(vec![4, 0])]);
                let said = bad[0].as_ref().unwrap_err();
                assert!(
                    said.contains("row 1 of batch 2")
                        && said.contains("the data set has 5 samples"),
                    "{said}"
                );
            }
        }
    }
    // More weights than samples.
    let weights = WeightedRandomSampler::new(&[0.0, 0.0, 0.0, 1.0], 2, 7).unwrap();
    let loader = DataLoader::builder(numbers(3))
        .sampler(weights)
        .build()
        .unwrap();
    let said = outcomes(loader.epoch(0));
    assert!(
        said.iter()
            .all(|batch| batch.as_ref().unwrap_err().contains("gave index 3"))
    );
}

#[test]
fn states_that_are_none_are_refused() {
    let indexed = DataLoader::builder(numbers(9))
        .build::<Tensor<i64>>()
        .unwrap();
    let streaming = DataLoader::iterable(streamed(9))
        .build::<Tensor<i64>>()
        .unwrap();
    drop((indexed.epoch(0).next(), streaming.epoch(0).next()));
    let (indexed, streaming) = (indexed.state().to_string(), streaming.state().to_string());
    let said = |text: &str| {
        let refused = [
            text.parse::<LoaderState>().map(drop).unwrap_err(),
            text.parse::<IterableState>().map(drop).unwrap_err(),
        ];
        assert!(
            refused
                .iter()
                .all(|error| matches!(error, Error::State { .. }))
        );
        refused.map(|error| error.to_string())
    };
    for text in ["", "state", "{}", "pinfeed", "\0", "ü"] {
        let [loader, stream] = said(text);
        assert!(loader.contains("it is no loader's state"), "{loader}");
        assert!(stream.contains("it is no iterable's state"), "{stream}");
    }
    // One is not the other, even if it is whole.
    assert!(indexed.parse::<IterableState>().is_err() && streaming.parse::<LoaderState>().is_err());
    for text in [&indexed, &streaming] {
        (0..text.len()).for_each(|end| drop(said(&text[..end])));
        let newer = text.replace("-1 ", "-9 ");
        assert!(
            said(&newer)
                .iter()
                .any(|said| said.contains("update pinfeed"))
        );
        for (at, _) in text.char_indices() {
            let mut changed = text.clone();
            let other = if &text[at..=at] == "7" { "8" } else { "7" };
            changed.replace_range(at..=at, other);
            said(&changed);
        }
    }
}

/// After equally many steps, the states of ranks that agree are equal. So ranks can compare them, and no rank goes on from that of one
/// that does not agree.
#[test]
fn ranks_that_disagree_have_other_states() {
    let all = || from_fn(64, |index, _| Ok(index as i64));
    let named = |name: &'static str| all().describe(move |_| name.to_owned());
    let rank = |rank| World::new(rank, 2).unwrap();
    fn ready<D: Dataset<Sample = i64>>(
        builder: Builder<D, pinfeed::collate::Stack>,
    ) -> DataLoader<Tensor<i64>> {
        builder.build().unwrap()
    }
    let builder = |name, number| {
        DataLoader::builder(named(name))
            .world(rank(number))
            .batch_size(4)
    };
    let own = ready(builder("a", 0).shuffle(true).seed(3));
    let same = ready(builder("a", 1).shuffle(true).seed(3).num_workers(2));
    let others = [
        ready(builder("a", 1).shuffle(true).seed(4)),
        ready(builder("b", 1).shuffle(true).seed(3)),
        ready(builder("a", 1).seed(3)),
        ready(builder("a", 1).shuffle(true).seed(3).batch_size(8)),
        ready(
            builder("a", 1)
                .sampler(RandomSampler::with_seed(63, 3))
                .seed(3),
        ),
        ready(builder("a", 1).sampler(SequentialSampler::new(64)).seed(3)),
    ];
    let after_two = |loader: &DataLoader<Tensor<i64>>| {
        let mut epoch = loader.epoch(0);
        epoch
            .by_ref()
            .take(2)
            .for_each(|batch| drop(batch.unwrap()));
        epoch.state()
    };
    let state = after_two(&own);
    assert_eq!(after_two(&same), state);
    assert!(same.resume(0..1, &state).is_ok());
    for other in &others {
        assert_ne!(after_two(other), state);
        assert!(matches!(
            other.resume(0..1, &state),
            Err(Error::State { .. })
        ));
    }
    for (rank, size) in [(2, 2), (0, 0), (usize::MAX, 1)] {
        let error = World::new(rank, size).unwrap_err();
        assert!(
            matches!(
                error,
                Error::InvalidOption {
                    option: "world",
                    ..
                }
            ),
            "{error}"
        );
    }
}

/// A source that cannot seek, and has fewer items than the run had already.
#[test]
fn a_stream_may_have_become_shorter() {
    let len = Arc::new(AtomicU64::new(9));
    for workers in WORKERS {
        len.store(9, Ordering::Relaxed);
        let own = Arc::clone(&len);
        let items = iterable::from_fn(move |_, _| {
            let len = own.load(Ordering::Relaxed) as i64;
            Ok((0..len).map(Ok))
        });
        let loader = DataLoader::iterable(items)
            .batch_size(2)
            .num_workers(workers);
        let loader = loader.build().unwrap();
        assert_eq!(loader.epoch(0).take(3).count(), 3);
        let state = loader.state();
        len.store(5, Ordering::Relaxed);
        let epochs: Vec<_> = loader.resume(0..2, &state).unwrap().map(outcomes).collect();
        let [Err(said)] = &epochs[0][..] else {
            panic!("{epochs:?}");
        };
        assert!(
            said.contains("the run that is resumed had 6 items of it, and it has fewer now"),
            "{said}"
        );
        assert_eq!(epochs[1], [Ok(vec![0, 1]), Ok(vec![2, 3]), Ok(vec![4])]);
        // Just as many: what is left is nothing.
        len.store(6, Ordering::Relaxed);
        let rest = loader.resume(0..1, &state).unwrap().map(outcomes);
        assert_eq!(rest.collect::<Vec<_>>(), [vec![]]);
    }
}

/// A source may say that it has changed, where nothing else would tell.
#[test]
fn a_stream_of_other_files_is_refused() {
    struct Files(Vec<&'static str>);

    impl IterableDataset for Files {
        type Item = i64;
        type Sample = i64;
        type Iter = std::vec::IntoIter<Result<i64, BoxError>>;

        fn open(&self, _: u64, _: Shard) -> Result<Self::Iter, BoxError> {
            Ok(vec![Ok(1), Ok(2), Ok(3)].into_iter())
        }

        fn load(&self, item: i64, _: &mut SampleRng) -> Result<i64, BoxError> {
            Ok(item)
        }

        fn fingerprint(&self) -> u32 {
            let mut print = Fingerprint::new();
            self.0.iter().for_each(|name| print.add(name.as_bytes()));
            print.finish()
        }
    }

    let loader = |names: &[&'static str]| {
        let files = Files(names.to_vec()).map(|number, _| Ok(-number));
        DataLoader::iterable(files).build::<Tensor<i64>>().unwrap()
    };
    let first = loader(&["a", "b"]);
    first.epoch(0).next();
    assert!(loader(&["a", "b"]).resume(0..1, &first.state()).is_ok());
    let other = loader(&["a", "c"]);
    let refused = other.resume(0..1, &first.state()).err().unwrap();
    assert!(
        refused.to_string().contains("its source is another one"),
        "{refused}"
    );
    // Refused, a loader stands where it stood.
    assert_eq!((other.state().epoch(), other.state().items()), (0, 0));
}

/// Eight bytes for each of 64 rows, aligned for any element.
#[repr(align(8))]
struct Page([u8; 512]);

#[derive(Clone)]
struct Shared(Arc<Page>);

impl AsRef<[u8]> for Shared {
    fn as_ref(&self) -> &[u8] {
        &self.0.0
    }
}

/// A batch that shows a tensor of bytes, and gives another one over the same memory.
struct Recast {
    shown: Tensor<u8>,
    given: Tensor<f64>,
}

impl Recast {
    fn of(rows: usize) -> Recast {
        let memory = Shared(Arc::new(Page([1; 512])));
        Recast {
            shown: Tensor::from_owner_at(memory.clone(), 0, &[rows, 8]).unwrap(),
            given: Tensor::from_owner_at(memory, 0, &[rows, 1]).unwrap(),
        }
    }
}

impl Batch for Recast {
    type OnDevice = DeviceTensor<f64>;

    fn tensors(&self, visit: &mut Tensors<'_>) {
        visit.add(&self.shown);
    }

    fn relocate(self, _: &mut Relocation) -> Recast {
        self
    }

    fn upload(self, upload: &mut Upload) -> DeviceTensor<f64> {
        upload.tensor(self.given)
    }
}

/// A sample whose batches are such, and which says that they are nothing but its rows.
struct Recasting;

impl Sample for Recasting {
    type Batch = Recast;
    type Plan = Field<u8>;
    type Rest = u8;
    const DENSE: bool = true;

    fn plan<'a>(
        _: impl Iterator<Item = &'a Self> + Clone,
        layout: &mut Layout,
    ) -> Result<Field<u8>, CollateError> {
        layout.field(&[8])
    }

    fn fill(self, field: &Field<u8>, row: &mut Row<'_>) -> Result<u8, CollateError> {
        row.slice_mut(field)?.fill(1);
        Ok(0)
    }

    fn finish(_: Field<u8>, rows: Vec<u8>, _: &mut Filled) -> Recast {
        Recast::of(rows.len())
    }
}

/// The device's memory was laid out by what the batch showed: eight times as many elements do not fit, nor does one element of
/// eight bytes at an address of bytes. (In parts, the shape that was shown is that of the whole batch.)
#[test]
fn a_batch_gives_the_elements_that_it_showed() {
    let device = Device::cpu();
    let sent = std::panic::catch_unwind(|| Recast::of(4).to_device(&Device::cpu(), true));
    let message = sent.unwrap_err().downcast::<String>().unwrap();
    assert!(message.contains("elements of f64"), "{message}");
    assert!(message.contains("showed it with u8"), "{message}");

    device.cut_batches_at(128, 64);
    for workers in [0, 2] {
        let loader = DataLoader::builder(from_fn(64, |_, _| Ok(Recasting)))
            .batch_size(32)
            .num_workers(workers)
            .pin_memory(&device)
            .build()
            .unwrap();
        for epoch in 0..3 {
            for batch in loader.epoch(epoch).prefetch_to_device(&device, 2) {
                let error = batch.unwrap_err().to_string();
                assert!(error.contains("showed it with u8"), "{error}");
            }
        }
    }
    assert_eq!(device.memory().device_held_bytes, 0);
}

/// A data set may say any size, and be wrong: of its samples, of what they take, and of how far ahead it looks.
struct Boastful;

impl Dataset for Boastful {
    type Sample = i64;

    fn len(&self) -> u64 {
        40
    }

    fn get(&self, index: u64, _: &mut SampleRng) -> Result<i64, BoxError> {
        Ok(index as i64)
    }

    fn at_once(&self) -> usize {
        usize::MAX
    }

    fn lookahead(&self) -> usize {
        usize::MAX
    }

    fn sample_bytes(&self) -> Option<usize> {
        Some(usize::MAX)
    }
}

/// A number that counts as more memory than there is.
#[derive(Clone)]
struct Heavy(i64);

impl Cacheable for Heavy {
    fn share(&self) -> Heavy {
        Heavy(self.0)
    }

    fn heap_bytes(&self) -> usize {
        usize::MAX
    }
}

/// A source whose answers are said to be that large.
struct HeavySource(usize);

impl StagedDataset for HeavySource {
    type Raw = u64;
    type Sample = i64;

    fn len(&self) -> u64 {
        40
    }

    fn fetch(&self, index: u64) -> Result<u64, BoxError> {
        Ok(index)
    }

    fn decode(&self, _: u64, raw: u64, _: &mut SampleRng) -> Result<i64, BoxError> {
        Ok(raw as i64)
    }

    fn raw_bytes(&self, _: &u64) -> usize {
        self.0
    }
}

#[test]
fn sizes_that_are_made_up_cost_nothing() {
    let staged = |raw_bytes, max_bytes| {
        let staged = Staged::new(HeavySource(raw_bytes)).with_in_flight(usize::MAX);
        staged.with_lookahead(usize::MAX).with_max_bytes(max_bytes)
    };
    let heavy = || numbers(40).map(|number, _| Ok((Heavy(number), Heavy(number), vec![Heavy(0)])));
    type Numbers = Box<dyn Dataset<Sample = i64>>;
    let sets: Vec<Box<dyn Fn() -> Numbers>> = vec![
        Box::new(|| Box::new(Boastful)),
        Box::new(move || Box::new(staged(usize::MAX, 1 << 30))),
        Box::new(move || Box::new(staged(usize::MAX, usize::MAX))),
        Box::new(move || Box::new(staged(usize::MAX / 2 + 1, usize::MAX - 1))),
        Box::new(move || Box::new(staged(1, usize::MAX))),
        Box::new(move || Box::new(heavy().cached(1 << 20).map(|(number, ..), _| Ok(number.0)))),
    ];
    let device = Device::cpu();
    for (number, set) in sets.iter().enumerate() {
        for workers in WORKERS {
            let loader = DataLoader::builder(set())
                .batch_size(4)
                .num_workers(workers);
            let loader = loader.pin_memory(&device).build().unwrap();
            for epoch in 0..2 {
                let batches = outcomes(loader.epoch(epoch)).into_iter();
                let seen: Vec<i64> = batches.flat_map(Result::unwrap).collect();
                assert!(
                    seen.into_iter().eq(0..40),
                    "set {number}, {workers} workers"
                );
            }
        }
    }
}

/// Lists are as long as the program says. Those that do not fit are refused before they are made, whoever would make them; the error says
/// how much they take.
#[test]
fn lists_that_do_not_fit_are_refused() {
    const MANY: u64 = 1 << 50;
    let (device, backwards) = (Device::cpu(), || (0..MANY).rev());
    let documents = || vec![vec![1u32]];
    let with_slabs = |bytes| {
        let loader = DataLoader::builder(numbers(8)).min_slab_bytes(bytes);
        loader.pin_memory(&device).build().err()
    };
    let streamed_with_slabs = |bytes| {
        let loader = DataLoader::iterable(streamed(8)).min_slab_bytes(bytes);
        loader.pin_memory(&device).build().err()
    };
    assert!(with_slabs(4096).is_none() && streamed_with_slabs(4096).is_none());
    let refused: [(&str, Option<Error>); 14] = [
        (
            "9007199254740992 bytes",
            random_split(numbers(MANY), [0.8, 0.2], 1).err(),
        ),
        (
            "random_split",
            random_split(numbers(MANY), &[1, MANY - 1], 1).err(),
        ),
        ("Subset::new", Subset::new(numbers(MANY), backwards()).err()),
        (
            "SubsetRandomSampler",
            SubsetRandomSampler::new(backwards(), 1).err(),
        ),
        (
            "FixedBatchSampler",
            FixedBatchSampler::new(RandomSampler::with_seed(MANY, 1), 8).err(),
        ),
        (
            "GroupedBatchSampler",
            GroupedBatchSampler::new(backwards(), 8, 1).err(),
        ),
        (
            "TokenBatchSampler",
            TokenBatchSampler::new(backwards().map(|_| 1), 8, 1).err(),
        ),
        (
            "PackedDataset::new",
            PackedDataset::new(documents(), &[MANY], 1, PackingStrategy::BestFit).err(),
        ),
        ("buffers", DeviceBuffers::new(&device, 1 << 40).err()),
        ("buffers", DeviceBuffers::new(&device, 1 << 59).err()),
        ("buffers", DeviceBuffers::new(&device, usize::MAX).err()),
        ("min_slab_bytes", with_slabs(1 << 45)),
        ("min_slab_bytes", with_slabs(usize::MAX)),
        ("min_slab_bytes", streamed_with_slabs(usize::MAX)),
    ];
    for (says, error) in refused {
        let error = error.unwrap();
        let text = error.to_string();
        assert!(matches!(error, Error::InvalidOption { .. }), "{text}");
        assert!(text.contains(says) && text.contains("bytes"), "{text}");
    }
}

/// A sampler may say one length when its batches are planned, and another when they are listed.
#[test]
fn an_order_that_outgrows_memory_is_its_epochs_error() {
    struct Growing(AtomicU64);

    impl Sampler for Growing {
        fn len(&self) -> u64 {
            self.0.fetch_add(1 << 50, Ordering::Relaxed)
        }

        fn index(&self, _: u64, position: u64) -> u64 {
            position
        }
    }

    let sampler = FixedBatchSampler::new(Growing(AtomicU64::new(8)), 4).unwrap();
    for workers in [0, 2] {
        let loader = DataLoader::builder(numbers(8)).batch_sampler(sampler.clone());
        let loader = loader.num_workers(workers).build().unwrap();
        let batches = outcomes(loader.epoch(0));
        let [Err(error)] = &batches[..] else {
            panic!("{batches:?}");
        };
        assert!(error.contains("the indices of an epoch take"), "{error}");
    }
}

/// The lengths of documents are a list that grows with those that are there.
#[test]
fn documents_are_counted_however_many_are_said_to_be_there() {
    let documents = from_fn(1u64 << 50, |index, _| match index {
        0..100 => Ok(vec![1u32; index as usize]),
        _ => Err("it is not there".into()),
    });
    let error = document_lengths(&documents).unwrap_err();
    assert_eq!(error.document, 100);
}
