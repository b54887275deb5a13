//! Order and content: whatever the workers, the prefetch and the memory, an epoch is the same.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use pinfeed::rng::RngKey;
use pinfeed::sampler::Sampler;
use pinfeed::{DataLoader, Dataset, Device, SampleRng, from_fn};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngSeed, TestRunner};

use crate::support::{late_device, watched};

/// What a sample is: its index, and what it drew from its generator.
fn drawing(len: u64) -> impl Dataset<Sample = (i64, [u32; 3])> {
    from_fn(len, |index, rng: &mut SampleRng| {
        Ok((
            index as i64,
            [rng.next_u32(), rng.next_u32(), rng.next_u32()],
        ))
    })
}

/// How an epoch is loaded; none of this may show.
#[derive(Debug, Clone)]
struct How {
    workers: usize,
    prefetch: usize,
    pin: Option<bool>,
    ahead: Option<usize>,
    slabs: usize,
}

/// What is loaded; all of this shows.
#[derive(Debug, Clone)]
struct What {
    len: u64,
    batch_size: usize,
    drop_last: bool,
    shuffle: bool,
    seed: u64,
    epoch: u64,
}

type Epoch = Vec<(Vec<i64>, Vec<u32>)>;

fn load(what: &What, how: &How, device: &Device) -> Epoch {
    let mut builder = DataLoader::builder(drawing(what.len))
        .batch_size(what.batch_size)
        .drop_last(what.drop_last)
        .shuffle(what.shuffle)
        .seed(what.seed)
        .num_workers(how.workers);
    if how.workers > 0 {
        builder = builder.prefetch(how.prefetch);
    }
    if let Some(by_copy) = how.pin {
        device.set_pinned_budget_bytes(4096 * how.slabs);
        builder = builder.pin_memory(device).pin_by_copy(by_copy);
    }
    let loader = builder.build().unwrap();
    let mut epoch = loader.epoch(what.epoch);
    let mut batches = Vec::new();
    let mut left = loader.len();
    match how.ahead {
        None => loop {
            assert_eq!((epoch.len(), epoch.size_hint()), (left, (left, Some(left))));
            let Some(batch) = epoch.next() else { break };
            let (indices, draws) = batch.unwrap();
            batches.push((indices.to_vec(), draws.to_vec()));
            left -= 1;
        },
        Some(depth) => {
            let mut epoch = epoch.prefetch_to_device(device, depth);
            loop {
                assert_eq!((epoch.len(), epoch.size_hint()), (left, (left, Some(left))));
                let Some(batch) = epoch.next() else { break };
                let (indices, draws) = batch.unwrap();
                let (indices, draws) =
                    (indices.to_host(true).unwrap(), draws.to_host(true).unwrap());
                batches.push((
                    indices.wait().unwrap().to_vec(),
                    draws.wait().unwrap().to_vec(),
                ));
                left -= 1;
            }
            assert!(epoch.next().is_none());
        }
    }
    assert_eq!(left, 0);
    batches
}

/// What must come out, by the definition: sampler and generator alone.
fn definition(what: &What) -> Epoch {
    use pinfeed::sampler::{RandomSampler, Sampler};
    let order = RandomSampler::with_seed(what.len, what.seed);
    let samples: Vec<(i64, [u32; 3])> = (0..what.len)
        .map(|position| {
            let mut rng = SampleRng::for_sample(RngKey {
                seed: what.seed,
                epoch: what.epoch,
                position,
            });
            let index = match what.shuffle {
                true => order.index(what.epoch, position),
                false => position,
            };
            (
                index as i64,
                [rng.next_u32(), rng.next_u32(), rng.next_u32()],
            )
        })
        .collect();
    samples
        .chunks(what.batch_size)
        .filter(|batch| !what.drop_last || batch.len() == what.batch_size)
        .map(|batch| {
            let indices = batch.iter().map(|(index, _)| *index).collect();
            (
                indices,
                batch.iter().flat_map(|(_, draws)| *draws).collect(),
            )
        })
        .collect()
}

#[test]
fn how_it_is_loaded_does_not_show() {
    watched("how_it_is_loaded_does_not_show", |seed| {
        let what = (
            0u64..70,
            1usize..20,
            any::<bool>(),
            any::<bool>(),
            any::<u64>(),
            0u64..4,
        );
        let what = what.prop_map(|(len, batch_size, drop_last, shuffle, seed, epoch)| What {
            len,
            batch_size,
            drop_last,
            shuffle,
            seed,
            epoch,
        });
        let workers = prop::sample::select(vec![0usize, 1, 2, 5]);
        let pin = prop::option::of(any::<bool>());
        let ahead = prop::option::of(0usize..4);
        let how = (workers, 1usize..6, pin, ahead, 0usize..9);
        let how = how.prop_map(|(workers, prefetch, pin, ahead, slabs)| How {
            workers,
            prefetch,
            pin,
            ahead,
            slabs,
        });
        let mut runner = TestRunner::new(Config {
            cases: 150,
            rng_seed: RngSeed::Fixed(seed),
            failure_persistence: None,
            ..Config::default()
        });
        let tested = runner.run(&(what, prop::collection::vec(how, 3)), |(what, hows)| {
            let expected = definition(&what);
            let device = late_device(seed);
            for how in &hows {
                prop_assert_eq!(&load(&what, how, &device), &expected, "{:?}", how);
            }
            Ok(())
        });
        tested.unwrap();
    });
}

/// Options as large as they go are options like others.
#[test]
fn options_may_be_huge() {
    watched("options_may_be_huge", |seed| {
        let device = late_device(seed);
        for pin in [false, true] {
            let builder = DataLoader::builder(drawing(40)).batch_size(usize::MAX);
            let builder = builder.num_workers(2).prefetch(usize::MAX);
            let builder = match pin {
                true => builder.pin_memory(&device),
                false => builder,
            };
            let loader = builder.build().unwrap();
            assert_eq!((loader.len(), loader.epoch(0).count()), (1, 1));
            let sent = loader.epoch(0).prefetch_to_device(&device, usize::MAX);
            assert_eq!(sent.count(), 1);
        }
        // A data set without end, collated by a function, in batches that no memory holds.
        let loader = DataLoader::builder(from_fn(u64::MAX, |index, _| Ok(index as i64)))
            .batch_size(usize::MAX)
            .num_workers(1)
            .collate_fn(|samples: Vec<i64>, _| Ok(samples))
            .build()
            .unwrap();
        assert_eq!(loader.epoch(0).len(), 1);
        let there = loader.epoch(1).prefetch_to_device(&device, 1);
        drop(there);
    });
}

/// Counts how often it is asked.
struct Asked(u64, Arc<AtomicU64>);

impl Sampler for Asked {
    fn len(&self) -> u64 {
        self.0
    }

    fn index(&self, _: u64, position: u64) -> u64 {
        self.1.fetch_add(1, Ordering::Relaxed);
        position
    }
}

/// A sampler may be dear: it is asked for each position once, by the worker that loads it.
#[test]
fn a_sampler_is_asked_once_for_each_position() {
    watched("a_sampler_is_asked_once_for_each_position", |seed| {
        for (workers, pin) in [(0, false), (0, true), (2, false), (2, true)] {
            let asked = Arc::default();
            let dataset = from_fn(60, |index, _| {
                std::thread::sleep(Duration::from_micros(150));
                Ok(index as i64)
            });
            let builder = DataLoader::builder(dataset)
                .sampler(Asked(60, Arc::clone(&asked)))
                .batch_size(30)
                .num_workers(workers);
            let loader = match pin {
                true => builder.pin_memory(&late_device(seed)).build().unwrap(),
                false => builder.build().unwrap(),
            };
            for batch in loader.epoch(0) {
                assert_eq!(batch.unwrap().len(), 30);
            }
            assert_eq!(
                asked.load(Ordering::Relaxed),
                60,
                "{workers} workers, pin {pin}"
            );
        }
    });
}

/// While one sample takes its time, workers load all others that `prefetch` allows: whichever it is. The order is kept.
#[test]
fn a_stuck_sample_keeps_no_worker_idle() {
    const BATCH: u64 = 5;
    const LEN: u64 = 60;

    watched("a_stuck_sample_keeps_no_worker_idle", |seed| {
        for (workers, prefetch) in [(2, 1), (2, 2), (4, 3), (3, 6)] {
            for pin in [None, Some(false), Some(true)] {
                for stuck in [0, 4, 13, 25, LEN - 1] {
                    let context = format!("{workers} workers, {prefetch} ahead, {pin:?}, {stuck}");
                    // The consumer waits for the stuck batch, so those behind it are ahead.
                    let first = stuck / BATCH;
                    let window = ((first + prefetch) * BATCH).min(LEN);
                    let loaded = (Mutex::new(0), Condvar::new());
                    let of_get = context.clone();
                    let dataset = from_fn(LEN, move |index, _| {
                        let (loaded, change) = &loaded;
                        if index != stuck {
                            // As long as it takes that workers claim samples one by one.
                            std::thread::sleep(Duration::from_micros(200));
                            *loaded.lock().unwrap() += 1;
                            change.notify_all();
                            return Ok(index as i64);
                        }
                        let wait = change.wait_timeout_while(
                            loaded.lock().unwrap(),
                            Duration::from_secs(20),
                            |loaded| *loaded < window - 1,
                        );
                        let (loaded, _) = wait.unwrap();
                        assert_eq!(*loaded, window - 1, "{of_get}: workers are idle");
                        Ok(index as i64)
                    });
                    let builder = DataLoader::builder(dataset)
                        .batch_size(BATCH as usize)
                        .num_workers(workers)
                        .prefetch(prefetch as usize);
                    let loader = match pin {
                        None => builder.build().unwrap(),
                        Some(by_copy) => builder
                            .pin_memory(&late_device(seed))
                            .pin_by_copy(by_copy)
                            .build()
                            .unwrap(),
                    };
                    let indices: Vec<i64> = loader
                        .epoch(0)
                        .flat_map(|batch| batch.unwrap().to_vec())
                        .collect();
                    assert!(indices.into_iter().eq(0..LEN as i64), "{context}");
                }
            }
        }
    });
}
