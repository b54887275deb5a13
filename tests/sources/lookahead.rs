//! A data set that wants to know what comes is told, once and in time.
#![allow(clippy::expect_used)]

use std::sync::{Arc, Mutex};
use std::thread::sleep;
use std::time::Duration;

use pinfeed::collate::Stack;
use pinfeed::dataset::{ConcatDataset, Pass, Subset, VecDataset};
use pinfeed::loader::Builder;
use pinfeed::sampler::{BatchSampler, Batches, RandomSampler, Sampler};
use pinfeed::{BoxError, DataLoader, Dataset, Device, Error, SampleRng};

const LEN: u64 = 100;
const AHEAD: usize = 7;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Event {
    Told(u64),
    Got(u64),
    /// The pass of this epoch is over.
    Ended(u64),
}

/// Remembers what it is told and asked.
#[derive(Default)]
struct Told {
    events: Mutex<Vec<Event>>,
    /// The pass of each event, if it has one.
    passes: Mutex<Vec<(Event, u64)>>,
    /// It panics when it is told of this one.
    dreads: Option<u64>,
    /// How long it takes to get one.
    takes: Duration,
}

impl Told {
    fn push(&self, event: Event) {
        self.events.lock().unwrap().push(event);
    }

    fn note(&self, event: Event, pass: Pass) {
        self.passes.lock().unwrap().push((event, pass.id()));
    }

    /// What each pass was told of, sorted, in the order of the passes. Each has ended, and nothing came behind that.
    fn passes(&self) -> Vec<(u64, Vec<u64>)> {
        let mut passes = std::collections::BTreeMap::<u64, (Option<u64>, Vec<u64>)>::new();
        for (event, pass) in self.passes.lock().unwrap().iter() {
            let (ended, told) = passes.entry(*pass).or_default();
            assert_eq!(*ended, None, "the pass had ended");
            match event {
                Event::Ended(epoch) => *ended = Some(*epoch),
                Event::Told(index) | Event::Got(index) => told.push(*index),
            }
        }
        let sorted = passes.into_values().map(|(ended, mut told)| {
            told.sort_unstable();
            (ended.expect("it has ended"), told)
        });
        sorted.collect()
    }

    fn told(&self) -> Vec<u64> {
        let events = self.events.lock().unwrap();
        let told = events.iter().filter_map(|event| match event {
            Event::Told(index) => Some(*index),
            Event::Got(_) | Event::Ended(_) => None,
        });
        told.collect()
    }
}

impl Dataset for Told {
    type Sample = i64;

    fn len(&self) -> u64 {
        LEN
    }

    fn get(&self, index: u64, _: &mut SampleRng) -> Result<i64, BoxError> {
        sleep(self.takes);
        self.push(Event::Got(index));
        Ok(index as i64)
    }

    fn lookahead(&self) -> usize {
        AHEAD
    }

    fn will_need(&self, indices: &[u64], pass: Pass) {
        assert!(!indices.is_empty());
        for &index in indices {
            assert!(index < LEN && self.dreads != Some(index), "told of {index}");
            self.push(Event::Told(index));
            self.note(Event::Told(index), pass);
        }
    }

    fn pass_ended(&self, pass: Pass) {
        self.push(Event::Ended(pass.epoch()));
        self.note(Event::Ended(pass.epoch()), pass);
    }
}

fn order(epoch: u64) -> Vec<u64> {
    let sampler = RandomSampler::with_seed(LEN, 17);
    (0..LEN).map(|at| sampler.index(epoch, at)).collect()
}

fn builder<D: Dataset<Sample = i64>>(dataset: D) -> Builder<D, Stack> {
    DataLoader::builder(dataset)
        .batch_size(8)
        .shuffle(true)
        .seed(17)
}

#[test]
fn each_sample_is_announced_so_many_places_ahead() {
    let told = Arc::new(Told::default());
    // What wraps a data set passes it on.
    let wrapped = Arc::clone(&told).map(|x, _| Ok(x));
    let loader = builder(wrapped).num_workers(0).build().unwrap();
    assert!(loader.epoch(3).all(|batch| batch.is_ok()));
    let order = order(3);
    // The first, and what is told before them.
    let first = order[..AHEAD].iter().map(|&index| Event::Told(index));
    let expected = first.chain((0..order.len()).flat_map(|at| {
        let told = order[at..].get(AHEAD).map(|&index| Event::Told(index));
        told.into_iter().chain([Event::Got(order[at])])
    }));
    let expected = expected.chain([Event::Ended(3)]);
    assert_eq!(*told.events.lock().unwrap(), expected.collect::<Vec<_>>());
}

#[test]
fn workers_announce_each_sample_once() {
    let device = Device::cpu();
    for pinned in [false, true] {
        let told = Arc::new(Told::default());
        let mut builder = builder(Arc::clone(&told)).num_workers(3);
        if pinned {
            builder = builder.pin_memory(&device);
        }
        let loader = builder.build().unwrap();
        for epoch in 0..2 {
            assert!(loader.epoch(epoch).all(|batch| batch.is_ok()));
            let events = std::mem::take(&mut *told.events.lock().unwrap());
            assert_eq!(events.len(), 2 * LEN as usize + 1);
            // Before it is got.
            for index in 0..LEN {
                let at = |event| events.iter().position(|other| *other == event).unwrap();
                assert!(at(Event::Told(index)) < at(Event::Got(index)));
            }
            assert_eq!(events.last(), Some(&Event::Ended(epoch)));
        }
    }
}

fn everything() -> Vec<u64> {
    (0..LEN).collect()
}

#[test]
fn announcements_go_on_across_the_boundary_of_epochs() {
    let device = Device::cpu();
    for (workers, pinned, to_device) in [
        (1, false, false),
        (3, false, false),
        (3, true, false),
        (3, true, true),
    ] {
        // Batches that take microseconds may be so far ahead that a whole epoch is loaded before the loop comes to it, and the one
        // behind it is not known yet.
        let told = Arc::new(Told {
            takes: Duration::from_micros(100),
            ..Told::default()
        });
        let mut builder = builder(Arc::clone(&told)).num_workers(workers);
        if pinned {
            builder = builder.pin_memory(&device);
        }
        let loader = builder.build().unwrap();
        match to_device {
            false => {
                let epochs = loader.epochs(4..7);
                epochs.for_each(|epoch| assert!(epoch.into_iter().all(|batch| batch.is_ok())));
            }
            true => {
                let epochs = loader.epochs(4..7).prefetch_to_device(&device, 1);
                epochs.for_each(|epoch| assert!(epoch.into_iter().all(|batch| batch.is_ok())));
            }
        }
        let expected = [4, 5, 6].map(|epoch| (epoch, everything()));
        assert_eq!(told.passes(), expected, "{workers}, {pinned}");
        // The next epoch's first samples were told before the last of the epoch before was got.
        let events = told.events.lock().unwrap();
        let count = |until: usize, told: bool| {
            let is_it = |event: &&Event| matches!(event, Event::Told(_)) == told;
            let events = events[..until].iter();
            let events = events.filter(|event| !matches!(event, Event::Ended(_)));
            events.filter(is_it).count()
        };
        for epoch in 1..3 {
            let last_of_epoch = (0..events.len())
                .find(|at| count(*at, false) == epoch * LEN as usize)
                .unwrap();
            assert!(count(last_of_epoch, true) > epoch * LEN as usize);
        }
    }
}

/// Of a batch sampler, each epoch's own lists: those that are refused have no samples.
#[test]
fn listed_batches_are_announced_across_the_boundary() {
    struct Growing;
    impl BatchSampler for Growing {
        fn batches(&self, epoch: u64) -> Batches {
            assert!(epoch != 2, "no lists");
            let lists = (0..10).map(|list| vec![list; (list + epoch) as usize % 4 + 1]);
            lists.collect::<Vec<_>>().into()
        }
    }

    for workers in [1, 3] {
        let told = Arc::new(Told::default());
        let loader = DataLoader::builder(Arc::clone(&told))
            .batch_sampler(Growing)
            .num_workers(workers)
            .build()
            .unwrap();
        for epoch in loader.epochs(0..4) {
            let number = epoch.number();
            let failed = epoch.filter(|batch| batch.is_err()).count();
            assert_eq!(failed, usize::from(number == 2));
        }
        let expected = |epoch| {
            let mut all: Vec<u64> = Growing.batches(epoch).iter().flatten().copied().collect();
            all.sort_unstable();
            (epoch, all)
        };
        assert_eq!(told.passes(), [0, 1, 3].map(expected), "{workers}");
    }
}

#[test]
fn an_epoch_that_is_left_ends_its_pass() {
    for workers in [0, 1, 3] {
        let told = Arc::new(Told::default());
        let loader = builder(Arc::clone(&told))
            .num_workers(workers)
            .build()
            .unwrap();
        // Midway, twice, and with two epochs at once.
        let mut first = loader.epoch(0);
        let mut second = loader.epoch(0);
        assert!(first.next().is_some() && second.next().is_some());
        drop(first);
        assert!(second.by_ref().all(|batch| batch.is_ok()));
        drop(second);
        // The epoch that would follow is never come to.
        let mut epochs = loader.epochs(1..9);
        for _ in 0..2 {
            let mut epoch = epochs.next().unwrap();
            assert!((0..12).all(|_| epoch.next().is_some()));
        }
        drop(epochs);
        drop(loader);
        let passes = told.passes();
        let epochs: Vec<u64> = passes.iter().map(|(epoch, _)| *epoch).collect();
        assert!(epochs.starts_with(&[0, 0, 1, 2]), "{epochs:?}");
        assert_eq!(passes[1].1, everything(), "{workers} workers");
        for (_, told) in passes {
            let mut once = told.clone();
            once.dedup();
            assert_eq!(once, told, "each once");
        }
    }
}

/// Whatever is not got is announced no more: an error in a batch neither stops announcements nor repeats them.
#[test]
fn batches_that_fail_do_not_hold_announcements_up() {
    struct Failing(Arc<Told>);
    impl Dataset for Failing {
        type Sample = i64;
        fn len(&self) -> u64 {
            LEN
        }
        fn get(&self, index: u64, _: &mut SampleRng) -> Result<i64, BoxError> {
            match index % 3 {
                0 => Err("broken".into()),
                _ => Ok(index as i64),
            }
        }
        fn lookahead(&self) -> usize {
            AHEAD
        }
        fn will_need(&self, indices: &[u64], pass: Pass) {
            self.0.will_need(indices, pass);
        }
        fn pass_ended(&self, pass: Pass) {
            self.0.pass_ended(pass);
        }
    }

    use pinfeed::loader::OnError;
    for on_error in [
        OnError::Fail,
        OnError::Skip { at_most: LEN },
        OnError::Replace { at_most: LEN },
    ] {
        for workers in [0, 3] {
            let told = Arc::new(Told::default());
            let loader = builder(Failing(Arc::clone(&told)))
                .on_error(on_error)
                .num_workers(workers)
                .build()
                .unwrap();
            for epoch in loader.epochs(0..2) {
                epoch.for_each(drop);
            }
            let passes = told.passes();
            assert_eq!(passes.len(), 2);
            for (_, told) in passes {
                // (Of a batch that fails, those behind the bad sample need not be announced.)
                let mut once = told.clone();
                once.dedup();
                assert!(once == told && once.len() >= LEN as usize / 2, "{told:?}");
                if on_error != OnError::Fail {
                    assert_eq!(once, everything());
                }
            }
        }
    }
}

/// What a resumed epoch does not load is not announced; the epoch behind it is whole.
#[test]
fn a_resumed_epoch_announces_what_is_left() {
    for workers in [0, 2] {
        let told = Arc::new(Told::default());
        let loader = || {
            let builder = builder(Arc::clone(&told)).num_workers(workers);
            builder.build().unwrap()
        };
        let first = loader();
        let mut epoch = first.epoch(0);
        assert!((0..5).all(|_| epoch.next().is_some()));
        let state = epoch.state();
        drop(epoch);
        drop(first);
        told.passes.lock().unwrap().clear();
        let second = loader();
        for epoch in second.resume(0..2, &state).unwrap() {
            assert!(epoch.into_iter().all(|batch| batch.is_ok()));
        }
        let mut left = order(0)[40..].to_vec();
        left.sort_unstable();
        assert_eq!(told.passes(), [(0, left), (1, everything())]);
    }
}

#[test]
fn a_panic_is_an_error_of_its_batch_and_the_epoch_goes_on() {
    for workers in [0, 2] {
        let told = Told {
            dreads: Some(order(0)[50]),
            ..Told::default()
        };
        let loader = builder(told).num_workers(workers).build().unwrap();
        let batches: Vec<_> = loader.epoch(0).collect();
        let failed: Vec<_> = batches
            .iter()
            .filter_map(|batch| batch.as_ref().err())
            .collect();
        assert_eq!((batches.len(), failed.len()), (13, 1));
        let Error::SamplePanicked(_, message) = failed[0] else {
            panic!("{}", failed[0]);
        };
        assert!(message.contains("told of"), "{message}");
    }
}

#[test]
fn what_is_no_sample_is_not_announced() {
    /// Ends in an index that the data set does not have.
    struct Beyond;

    impl Sampler for Beyond {
        fn len(&self) -> u64 {
            16
        }

        fn index(&self, _: u64, position: u64) -> u64 {
            if position == 15 { LEN } else { position }
        }
    }

    let told = Arc::new(Told::default());
    let loader = DataLoader::builder(Arc::clone(&told))
        .batch_size(8)
        .sampler(Beyond)
        .num_workers(0)
        .build()
        .unwrap();
    let outcomes: Vec<bool> = loader.epoch(0).map(|batch| batch.is_ok()).collect();
    assert_eq!(outcomes, [true, false]);
    assert_eq!(told.told(), (0..15).collect::<Vec<_>>());
}

#[test]
fn what_wraps_a_data_set_passes_on_that_a_pass_is_over() {
    type Wrapped = Box<dyn Dataset<Sample = i64>>;
    let told = Arc::new(Told::default());
    let own = || Arc::clone(&told);
    let others = vec![0i64; LEN as usize];
    let wrapped: Vec<Wrapped> = vec![
        Box::new(own()),
        Box::new(Arc::new(own())),
        Box::new(own().map(|x, _| Ok(x))),
        Box::new(own().map(|x, _| Ok(x)).describe(|index| index.to_string())),
        Box::new(Subset::new(own(), 0..LEN).unwrap()),
        Box::new(ConcatDataset::new(vec![own()]).unwrap()),
        Box::new(own().zip(others.clone()).unwrap().map(|(x, _), _| Ok(x))),
        Box::new(
            VecDataset::new(others)
                .zip(own())
                .unwrap()
                .map(|(_, x), _| Ok(x)),
        ),
        Box::new(own().cached(1 << 20)),
    ];
    for (at, dataset) in wrapped.iter().enumerate() {
        let pass = Pass::new(at as u64 + 1, 7);
        dataset.will_need(&[3], pass);
        dataset.pass_ended(pass);
        assert_eq!(told.passes().len(), at + 1, "number {at}");
    }
    assert!(told.passes().iter().all(|pass| *pass == (7, vec![3])));
}

/// Where batches travel in parts, and later epochs are cut into other units than the first.
#[test]
fn parts_are_announced_in_the_same_way() {
    let device = Device::cpu();
    device.cut_batches_at(600, 100);
    for workers in [0, 3] {
        let told = Arc::new(Told::default());
        let loader = DataLoader::builder(Arc::clone(&told))
            .batch_size(40)
            .shuffle(true)
            .seed(17)
            .num_workers(workers)
            .pin_memory(&device)
            .build()
            .unwrap();
        for epoch in loader.epochs(0..3).prefetch_to_device(&device, 1) {
            let batches: Vec<_> = epoch.map(|batch| batch.unwrap().shape()[0]).collect();
            assert_eq!(batches, [40, 40, 20]);
        }
        let mut passes = told.passes();
        // (A pass that begins anew where plans do not join was announced in part before.)
        passes.retain(|(_, told)| told.len() == LEN as usize);
        assert_eq!(passes, [0, 1, 2].map(|epoch| (epoch, everything())));
    }
}
