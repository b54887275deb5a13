//! Ends: epochs and loaders that are dropped at any point, in any order, on any thread.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, mpsc};
use std::time::Duration;

use pinfeed::collate::{Arena, Relocation, Tensors, Upload};
use pinfeed::{Batch, DataLoader, Device, DeviceTensor, Tensor, from_fn};

use crate::support::{
    Pair, PairOnDevice, check, check_on_device, expected, late_device, rng, sample, samples,
    watched,
};

const LEN: u64 = 33;
const BATCH: usize = 4;
const BATCHES: usize = 9;

fn loader(device: &Device, workers: usize, by_copy: bool) -> DataLoader<Pair> {
    DataLoader::builder(samples(LEN))
        .batch_size(BATCH)
        .num_workers(workers)
        .pin_memory(device)
        .pin_by_copy(by_copy)
        .build()
        .unwrap()
}

/// After every number of batches, with workers that are at it; the next epoch is whole.
#[test]
fn an_epoch_may_end_at_every_point() {
    watched("an_epoch_may_end_at_every_point", |seed| {
        let mut rng = rng(seed, 7);
        for workers in [0, 1, 3] {
            let device = late_device(seed);
            let loader = loader(&device, workers, rng.bool(0.3));
            for taken in 0..=BATCHES {
                let mut epoch = loader.epoch(taken as u64);
                let kept: Vec<Pair> = epoch.by_ref().take(taken).map(Result::unwrap).collect();
                assert_eq!(epoch.len(), BATCHES - taken);
                if rng.bool(0.5) {
                    std::thread::sleep(Duration::from_micros(rng.below(300)));
                }
                drop(epoch);
                for (number, batch) in kept.iter().enumerate() {
                    check(batch, expected(number, BATCH, LEN));
                }
                drop(kept);
                let sent = loader
                    .epoch(0)
                    .prefetch_to_device(&device, taken % 3)
                    .take(taken);
                for (number, there) in sent.enumerate() {
                    check_on_device(&there.unwrap(), expected(number, BATCH, LEN));
                }
            }
            assert_eq!(loader.epoch(0).count(), BATCHES);
        }
    });
}

/// Everything that a program can hold, dropped in a random order.
#[test]
fn things_may_end_in_any_order() {
    #[allow(clippy::large_enum_variant)] // there are a few dozen
    enum Thing {
        Device,
        Stream(#[allow(dead_code)] pinfeed::Stream),
        Loader(#[allow(dead_code)] Arc<DataLoader<Pair>>),
        Epoch(#[allow(dead_code)] pinfeed::loader::Epoch<'static, Pair>),
        Sending(#[allow(dead_code)] pinfeed::loader::DeviceEpoch<'static, Pair>),
        Batch(usize, Pair),
        View(usize, Tensor<i64>),
        There(usize, PairOnDevice),
        Coming(usize, pinfeed::device::Download<i64>),
    }

    watched("things_may_end_in_any_order", |seed| {
        let mut rng = rng(seed, 8);
        for round in 0..60 {
            let device = late_device(seed + round);
            let loader = Arc::new(loader(&device, rng.below(3) as usize, rng.bool(0.3)));
            let mut epoch = loader.owned_epoch(0);
            let mut things = Vec::new();
            for number in 0..rng.below(BATCHES as u64) as usize {
                let batch = epoch.next().unwrap().unwrap();
                if rng.bool(0.3) {
                    things.push(Thing::View(number, batch.1.view()));
                }
                if rng.bool(0.4) {
                    things.push(Thing::Batch(number, batch));
                    continue;
                }
                let there = batch.to_device(&device, true).unwrap();
                if rng.bool(0.5) {
                    let stream = device.stream().unwrap();
                    drop(there.0.on(&stream).unwrap());
                    things.push(Thing::Stream(stream));
                }
                if rng.bool(0.5) {
                    let download = there.1.to_host(true).unwrap();
                    things.push(Thing::Coming(number, download));
                }
                things.push(Thing::There(number, there));
            }
            let mut sending = loader.owned_epoch(1).prefetch_to_device(&device, 2);
            drop(sending.next());
            things.push(Thing::Sending(sending));
            things.push(Thing::Epoch(epoch));
            things.push(Thing::Loader(loader));
            things.push(Thing::Device);
            let mut device = Some(device);
            let late = rng.bool(0.5);
            while !things.is_empty() {
                let index = rng.below(things.len() as u64) as usize;
                let samples = |number| expected(number, BATCH, LEN);
                match things.swap_remove(index) {
                    Thing::Device => drop(device.take()),
                    Thing::Batch(number, batch) => check(&batch, samples(number)),
                    Thing::View(number, view) => {
                        assert_eq!(view.as_slice()[0], samples(number).start as i64);
                    }
                    Thing::There(number, there) if late => check_on_device(&there, samples(number)),
                    Thing::Coming(number, download) if late => {
                        let labels = download.wait().unwrap();
                        assert_eq!(labels.as_slice()[0], samples(number).start as i64);
                    }
                    other => drop(other),
                }
            }
        }
    });
}

/// An epoch that holds its loader goes to another thread, and is the last to hold it.
#[test]
fn an_owned_epoch_moves_to_another_thread() {
    watched("an_owned_epoch_moves_to_another_thread", |seed| {
        for workers in [0, 2] {
            let device = late_device(seed);
            let loader = Arc::new(loader(&device, workers, false));
            let mut epoch = loader.owned_epoch(0);
            check(&epoch.next().unwrap().unwrap(), 0..4);
            drop(loader);
            let rest = std::thread::spawn(move || {
                let numbers = 1..BATCHES;
                for (number, batch) in numbers.zip(epoch.by_ref()) {
                    check(&batch.unwrap(), expected(number, BATCH, LEN));
                }
                assert!(epoch.next().is_none());
                epoch.prefetch_to_device(&device, 1).count()
            });
            assert_eq!(rest.join().unwrap(), 0);
        }
    });
}

/// A data set that holds its own loader lets go of it on a worker, which cannot wait for itself.
#[test]
fn a_loader_may_end_on_its_own_worker() {
    type Held = Arc<Mutex<Option<Arc<DataLoader<Tensor<i64>>>>>>;

    watched("a_loader_may_end_on_its_own_worker", |_| {
        for _ in 0..20 {
            let held: Held = Arc::default();
            let (ended, end) = mpsc::channel();
            let of_dataset = Arc::clone(&held);
            let dataset = from_fn(100, move |index, _| {
                if index == 50 {
                    // Once the epoch is gone, this is the last.
                    while of_dataset
                        .lock()
                        .unwrap()
                        .as_ref()
                        .is_some_and(|loader| Arc::strong_count(loader) > 1)
                    {
                        std::thread::yield_now();
                    }
                    let last = of_dataset.lock().unwrap().take();
                    drop(last);
                    let _ = ended.send(());
                }
                Ok(index as i64)
            });
            let builder = DataLoader::builder(dataset).batch_size(10).num_workers(2);
            let loader = Arc::new(builder.prefetch(8).build().unwrap());
            *held.lock().unwrap() = Some(Arc::clone(&loader));
            let mut epoch = loader.owned_epoch(0);
            drop(loader);
            epoch.next().unwrap().unwrap();
            drop(epoch);
            // The worker may have been too late to claim sample 50: then the loader is dropped here.
            let last = held.lock().unwrap().take();
            drop(last);
            let _ = end.recv();
        }
    });
}

/// Two data sets hold each other's loader, and let go of it on their workers at the same time: neither waits for the other. Their
/// threads end all the same, and all that they held is free.
#[test]
fn loaders_may_end_on_each_others_workers() {
    type Held = Arc<Mutex<Option<Arc<DataLoader<Tensor<i64>>>>>>;

    watched("loaders_may_end_on_each_others_workers", |seed| {
        for pinned in [false, true] {
            for _ in 0..10 {
                let device = late_device(seed);
                let held: [Held; 2] = Default::default();
                let ready = Arc::new(std::sync::Barrier::new(2));
                let ((begins, begun), (ends, ended)) = (mpsc::channel(), mpsc::channel());
                let loaders = [0, 1].map(|own| {
                    let (other, ready) = (Arc::clone(&held[1 - own]), Arc::clone(&ready));
                    let (begins, ends) = (begins.clone(), ends.clone());
                    let dataset = from_fn(1, move |index, _| {
                        let other = other.lock().unwrap().take().unwrap();
                        begins.send(()).unwrap();
                        while Arc::strong_count(&other) > 1 {
                            std::thread::yield_now();
                        }
                        ready.wait();
                        drop(other);
                        ends.send(()).unwrap();
                        Ok(index as i64)
                    });
                    let builder = DataLoader::builder(dataset).num_workers(2);
                    let builder = match pinned {
                        true => builder.pin_memory(&device),
                        false => builder,
                    };
                    Arc::new(builder.build().unwrap())
                });
                for (held, loader) in held.iter().zip(&loaders) {
                    *held.lock().unwrap() = Some(Arc::clone(loader));
                }
                let epochs = loaders.each_ref().map(|loader| loader.owned_epoch(0));
                // Both workers are at their sample; from then on each has the last hold on the other's loader.
                begun.iter().take(2).for_each(drop);
                drop(epochs);
                drop(loaders);
                ended.iter().take(2).for_each(drop);
                // The data sets go with the last thread of each.
                drop((begins, ends));
                assert!(ended.recv().is_err() && begun.recv().is_err());
            }
        }
    });
}

/// A loader that ends on a thread of the program's has ended its threads when that goes on.
#[test]
fn a_loader_that_ends_has_joined_its_threads() {
    watched("a_loader_that_ends_has_joined_its_threads", |seed| {
        for pinned in [false, true] {
            let device = late_device(seed);
            let token = Arc::new(());
            let of_dataset = Arc::clone(&token);
            let dataset = from_fn(100, move |index, _| {
                let _ = &of_dataset;
                Ok(index as i64)
            });
            let builder = DataLoader::builder(dataset).num_workers(3);
            let builder = match pinned {
                true => builder.pin_memory(&device),
                false => builder,
            };
            let loader = builder.build().unwrap();
            drop(loader.epoch(0));
            drop(loader);
            assert_eq!(Arc::strong_count(&token), 1);
        }
    });
}

/// The user's `drop` runs without a lock of the loader's, also where a worker holds the last of a dropped epoch.
#[test]
fn samples_are_dropped_without_a_lock() {
    /// Its drop waits until the test could use the loader.
    struct Waits {
        armed: Arc<AtomicBool>,
        dropping: mpsc::Sender<()>,
        used: Arc<OnceLock<()>>,
    }

    impl Drop for Waits {
        fn drop(&mut self) {
            if self.armed.load(Ordering::SeqCst) {
                let _ = self.dropping.send(());
                self.used.wait();
            }
        }
    }

    watched("samples_are_dropped_without_a_lock", |seed| {
        for pinned in [false, true] {
            let (armed, used) = (Arc::new(AtomicBool::new(false)), Arc::new(OnceLock::new()));
            let (dropping, is_dropping) = mpsc::channel();
            let (entered, is_entered) = mpsc::channel();
            let (go, may_go) = mpsc::channel::<()>();
            let may_go = Mutex::new(may_go);
            let (of_get, of_used) = (Arc::clone(&armed), Arc::clone(&used));
            let dataset = from_fn(4, move |index, _| {
                if index == 0 {
                    let _ = entered.send(());
                    let _ = may_go.lock().unwrap().recv();
                }
                Ok(Waits {
                    armed: Arc::clone(&of_get),
                    dropping: dropping.clone(),
                    used: Arc::clone(&of_used),
                })
            });
            let builder = DataLoader::builder(dataset).num_workers(1).batch_size(2);
            let device = late_device(seed);
            let builder = match pinned {
                true => builder.pin_memory(&device),
                false => builder,
            };
            let loader: DataLoader<Vec<u8>> = builder
                .collate_fn(|samples, _| Ok(vec![samples.len() as u8]))
                .build()
                .unwrap();
            let epoch = loader.epoch(0);
            is_entered.recv().unwrap();
            drop(epoch); // does not wait for the worker
            armed.store(true, Ordering::SeqCst);
            go.send(()).unwrap();
            is_dropping.recv().unwrap();
            // The worker is in the user's `drop`; nobody waits for it.
            assert_eq!(loader.epoch(1).len(), 2);
            armed.store(false, Ordering::SeqCst);
            used.set(()).unwrap();
            drop(go);
            assert_eq!(loader.epoch(2).count(), 2);
        }
    });
}

/// Errors of the user's are dropped without a lock as well: of several in a batch, one is reported.
#[test]
fn errors_are_dropped_without_a_lock() {
    type Held = Arc<OnceLock<std::sync::Weak<DataLoader<Tensor<i64>>>>>;

    /// Its drop asks the loader something.
    #[derive(Debug)]
    struct Asks(Held, Arc<AtomicU64>);

    impl Drop for Asks {
        fn drop(&mut self) {
            let loader = self.0.get().and_then(std::sync::Weak::upgrade);
            if let Some(loader) = loader {
                self.1
                    .fetch_add(loader.owned_epoch(9).len() as u64, Ordering::SeqCst);
            }
        }
    }

    impl std::fmt::Display for Asks {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("asks")
        }
    }

    impl std::error::Error for Asks {}

    watched("errors_are_dropped_without_a_lock", |_| {
        let (held, asked): (Held, Arc<AtomicU64>) = Default::default();
        let (of_get, of_error) = (Arc::clone(&held), Arc::clone(&asked));
        let (gate, calls) = (std::sync::Barrier::new(3), AtomicU64::new(0));
        let dataset = from_fn(12, move |index, _| {
            if calls.fetch_add(1, Ordering::SeqCst) < 3 {
                gate.wait(); // three workers fail in one batch
                return Err(Box::new(Asks(Arc::clone(&of_get), Arc::clone(&of_error))).into());
            }
            Ok(index as i64)
        });
        let builder = DataLoader::builder(dataset).batch_size(6).num_workers(3);
        let loader = Arc::new(builder.prefetch(1).build().unwrap());
        held.set(Arc::downgrade(&loader)).unwrap();
        let mut epoch = loader.epoch(0);
        assert!(epoch.next().unwrap().is_err());
        assert_eq!(epoch.next().unwrap().unwrap().len(), 6);
        // Each of the three errors asked, and was told of two batches.
        while asked.load(Ordering::SeqCst) != 3 * 2 {
            std::thread::yield_now();
        }
    });
}

/// A sample whose `drop` panics on the pin thread must not end it.
#[test]
fn the_pin_thread_survives_a_sample_that_panics() {
    struct Bomb(Arc<AtomicBool>, i64);

    impl Drop for Bomb {
        fn drop(&mut self) {
            // One for each batch: a second panic while a first unwinds would end the program.
            let strikes = self.1 % 4 == 0 && self.0.load(Ordering::SeqCst);
            assert!(!strikes, "a sample's drop panics");
        }
    }

    impl pinfeed::Sample for Bomb {
        type Batch = Tensor<i64>;
        type Plan = pinfeed::sample::Field<i64>;
        type Rest = ();

        fn plan<'a>(
            _: impl Iterator<Item = &'a Self> + Clone,
            layout: &mut pinfeed::sample::Layout,
        ) -> Result<pinfeed::sample::Field<i64>, pinfeed::error::CollateError> {
            layout.field(&[])
        }

        fn fill(
            self,
            plan: &pinfeed::sample::Field<i64>,
            row: &mut pinfeed::sample::Row<'_>,
        ) -> Result<(), pinfeed::error::CollateError> {
            row.write(plan, &[self.1])
        }

        fn finish(
            plan: pinfeed::sample::Field<i64>,
            _: Vec<()>,
            filled: &mut pinfeed::sample::Filled,
        ) -> Tensor<i64> {
            filled.take(plan)
        }
    }

    watched("the_pin_thread_survives_a_sample_that_panics", |seed| {
        for workers in [0, 1, 2] {
            let device = late_device(seed);
            let armed = Arc::new(AtomicBool::new(true));
            let of_get = Arc::clone(&armed);
            let dataset = from_fn(40, move |index, _| {
                Ok(Bomb(Arc::clone(&of_get), index as i64))
            });
            // Strict, and no slab: the pin thread gives each batch up, and drops its parked samples.
            device.set_pinned_budget_bytes(0);
            let loader = DataLoader::builder(dataset)
                .batch_size(4)
                .num_workers(workers)
                .pin_memory(&device)
                .strict_pinning(true)
                .build()
                .unwrap();
            let errors = loader.epoch(0).filter(Result::is_err).count();
            assert_eq!(errors, 10, "{workers} workers");
            armed.store(false, Ordering::SeqCst);
            device.set_pinned_budget_bytes(1 << 20);
            let numbers: Vec<i64> = loader
                .epoch(1)
                .flat_map(|batch| batch.unwrap().to_vec())
                .collect();
            assert_eq!(numbers, (0..40).collect::<Vec<_>>(), "{workers} workers");
        }
    });
}

/// An owned epoch in a struct, dropped by a panic: nothing is left behind that would hang.
#[test]
fn a_consumer_that_panics_ends_its_epoch() {
    watched("a_consumer_that_panics_ends_its_epoch", |seed| {
        let device = late_device(seed);
        let loader = loader(&device, 2, false);
        for round in 0..BATCHES {
            let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                for (number, batch) in loader.epoch(0).enumerate() {
                    let _there = batch.unwrap().to_device(&device, true).unwrap();
                    assert!(number < round, "the training step panics");
                }
            }));
            assert!(outcome.is_err());
        }
        assert_eq!(loader.epoch(0).count(), BATCHES);
        assert_eq!(sample(3).unwrap().1, 3);
    });
}

/// A batch that is sent only when it may be.
struct Gated {
    numbers: Tensor<i64>,
    gate: Option<Gate>,
}

/// Says that somebody is at it, and lets them pass once its other end is gone.
#[derive(Clone)]
struct Gate(mpsc::Sender<()>, Arc<Mutex<mpsc::Receiver<()>>>);

impl Batch for Gated {
    type OnDevice = DeviceTensor<i64>;

    fn tensors(&self, visit: &mut Tensors<'_>) {
        visit.add(&self.numbers);
    }

    fn relocate(self, slab: &mut Relocation) -> Gated {
        let numbers = slab.tensor(self.numbers);
        Gated { numbers, ..self }
    }

    fn upload(self, upload: &mut Upload) -> DeviceTensor<i64> {
        if let Some(gate) = &self.gate {
            gate.0.send(()).unwrap();
            let _ = gate.1.lock().unwrap().recv();
        }
        upload.tensor(self.numbers)
    }
}

/// Batches that were sent ahead of an epoch that nobody comes to are given back, while a worker is busy with the next of them.
#[test]
fn an_epoch_that_nobody_comes_to_keeps_no_device_memory() {
    const BATCH: usize = 4;
    let device = Device::cpu();
    let (entered, is_entered) = mpsc::channel();
    let (go, may_go) = mpsc::channel::<()>();
    let gate = Mutex::new(Gate(entered, Arc::new(Mutex::new(may_go))));
    let times = AtomicU64::new(0);
    // (What is ready before the epoch begins is sent by this thread, which is not to be held up at the gate.)
    let has_begun = Arc::new(OnceLock::new());
    let waits = Arc::clone(&has_begun);
    let samples = from_fn(4 * BATCH as u64, move |index, _| {
        waits.wait();
        Ok(index as i64)
    });
    let collate = move |samples: Vec<i64>, _: &mut Arena| {
        // The third batch of the second epoch.
        let is_third = samples[0] == 2 * BATCH as i64;
        let is_gated = is_third && times.fetch_add(1, Ordering::SeqCst) == 1;
        Ok(Gated {
            numbers: Tensor::from(vec![samples[0]; 1 << 18]), // too large to be sent with others
            gate: is_gated.then(|| gate.lock().unwrap().clone()),
        })
    };
    let loader = DataLoader::builder(samples)
        .batch_size(BATCH)
        .num_workers(2)
        .pin_memory(&device)
        .collate_fn(collate)
        .build()
        .unwrap();
    let mut epochs = loader.epochs(0..3).prefetch_to_device(&device, 16);
    let epoch = epochs.next().unwrap();
    has_begun.set(()).unwrap();
    is_entered.recv().unwrap();
    drop(epoch);
    let batches = device.memory().device_held_bytes;
    drop(epochs);
    let held = device.memory().device_held_bytes;
    drop(go);
    assert!(
        held <= batches / 3,
        "{held} of {batches} are the one's that is being sent"
    );
    drop(loader);
    assert_eq!(device.memory().device_held_bytes, 0);
}
