//! A data set that wants to know what comes is told, once and in time.
#![allow(clippy::unwrap_used)]

use std::sync::{Arc, Mutex};

use pinfeed::collate::Stack;
use pinfeed::loader::Builder;
use pinfeed::sampler::{RandomSampler, Sampler};
use pinfeed::{BoxError, DataLoader, Dataset, Device, Error, SampleRng};

const LEN: u64 = 100;
const AHEAD: usize = 7;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Event {
    Told(u64),
    Got(u64),
}

/// Remembers what it is told and asked.
#[derive(Default)]
struct Told {
    events: Mutex<Vec<Event>>,
    /// It panics when it is told of this one.
    dreads: Option<u64>,
}

impl Told {
    fn push(&self, event: Event) {
        self.events.lock().unwrap().push(event);
    }

    fn told(&self) -> Vec<u64> {
        let events = self.events.lock().unwrap();
        let told = events.iter().filter_map(|event| match event {
            Event::Told(index) => Some(*index),
            Event::Got(_) => None,
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
        self.push(Event::Got(index));
        Ok(index as i64)
    }

    fn lookahead(&self) -> usize {
        AHEAD
    }

    fn will_need(&self, indices: &[u64]) {
        for &index in indices {
            assert!(index < LEN && self.dreads != Some(index), "told of {index}");
            self.push(Event::Told(index));
        }
    }
}

fn order(epoch: u64) -> Vec<u64> {
    let sampler = RandomSampler::new(LEN, 17);
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
    let expected = (0..order.len()).flat_map(|at| {
        let told = order[at..].get(AHEAD).map(|&index| Event::Told(index));
        told.into_iter().chain([Event::Got(order[at])])
    });
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
            let mut announced = std::mem::take(&mut *told.events.lock().unwrap());
            announced.retain(|event| matches!(event, Event::Told(_)));
            let expected = order(epoch)[AHEAD..].to_vec();
            let mut expected: Vec<Event> = expected.into_iter().map(Event::Told).collect();
            for events in [&mut announced, &mut expected] {
                events.sort_unstable_by_key(|event| format!("{event:?}"));
            }
            assert_eq!(announced, expected, "epoch {epoch}, pinned: {pinned}");
        }
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
    assert_eq!(told.told(), (AHEAD as u64..15).collect::<Vec<_>>());
}
