//! Values of the program's that panic when they are dropped: in a batch that is sent, or that nobody wants any more, and in samples.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};

use pinfeed::collate::{Relocation, Tensors, Upload};
use pinfeed::error::CollateError;
use pinfeed::sample::{Field, Filled, Layout, Row};
use pinfeed::{
    Batch, DataLoader, Dataset, Device, DeviceTensor, Error, Host, Result, Sample, Tensor, from_fn,
};

use crate::support::{expected, late_device, watched};

const SAMPLES: u64 = 23;
const BATCH: usize = 4;
const BATCHES: usize = 6;

/// How many values that panic there are, and how many did.
#[derive(Default)]
struct Counts {
    /// Whether values are made that panic.
    is_armed: AtomicBool,
    made: AtomicU64,
    dropped: AtomicU64,
}

impl Counts {
    fn arm(&self, is_armed: bool) {
        self.is_armed.store(is_armed, Ordering::SeqCst);
    }

    /// Every value that was to panic when it is dropped was dropped, once.
    fn check(&self, at_least: u64) {
        let counts = [&self.made, &self.dropped].map(|count| count.load(Ordering::SeqCst));
        assert_eq!(counts[0], counts[1], "made and dropped");
        assert!(counts[0] >= at_least, "only {} panicked", counts[0]);
    }
}

/// Panics when it is dropped, if it was made to.
struct Touchy(Option<Arc<Counts>>);

impl Touchy {
    fn new(counts: &Arc<Counts>, may_panic: bool) -> Touchy {
        if !may_panic || !counts.is_armed.load(Ordering::SeqCst) {
            return Touchy(None);
        }
        counts.made.fetch_add(1, Ordering::SeqCst);
        Touchy(Some(Arc::clone(counts)))
    }
}

impl Drop for Touchy {
    fn drop(&mut self) {
        if let Some(counts) = &self.0 {
            counts.dropped.fetch_add(1, Ordering::SeqCst);
            watch::provoked("it panics when it is dropped");
        }
    }
}

/// A batch that may panic when it is dropped, here and on the device.
struct TouchyBatch {
    numbers: Tensor<i64>,
    touchy: Touchy,
    /// It is dropped in part when it is sent.
    stays: bool,
}

struct TouchyThere {
    numbers: DeviceTensor<i64>,
    _touchy: Option<Touchy>,
}

impl Batch for TouchyBatch {
    type OnDevice = TouchyThere;

    fn tensors(&self, visit: &mut Tensors<'_>) {
        visit.add(&self.numbers);
    }

    fn relocate(self, slab: &mut Relocation) -> TouchyBatch {
        let numbers = slab.tensor(self.numbers);
        TouchyBatch { numbers, ..self }
    }

    fn upload(self, upload: &mut Upload) -> TouchyThere {
        let numbers = upload.tensor(self.numbers);
        let touchy = match self.stays {
            true => {
                drop(self.touchy);
                None
            }
            false => Some(self.touchy),
        };
        TouchyThere {
            numbers,
            _touchy: touchy,
        }
    }
}

/// How a loader is built.
#[derive(Debug, Clone, Copy)]
struct How {
    workers: usize,
    pin: bool,
    by_copy: bool,
}

impl How {
    fn all() -> impl Iterator<Item = How> {
        let ways = [(false, false), (true, false), (true, true)];
        [0, 1, 3].into_iter().flat_map(move |workers| {
            ways.map(|(pin, by_copy)| How {
                workers,
                pin,
                by_copy,
            })
        })
    }

    /// A loader of batches of which those for whom `may_panic` says so panic, and what tells which one is being made.
    fn batches(
        self,
        device: &Device,
        counts: &Arc<Counts>,
        stays: bool,
        may_panic: impl Fn(u64) -> bool + Send + Sync + 'static,
    ) -> (DataLoader<TouchyBatch>, mpsc::Receiver<u64>) {
        let (made, receiver) = mpsc::channel();
        let counts = Arc::clone(counts);
        let mut builder = DataLoader::builder((0..SAMPLES as i64).collect::<Vec<_>>())
            .batch_size(BATCH)
            .num_workers(self.workers);
        if self.workers > 0 {
            builder = builder.prefetch(3);
        }
        let builder = builder.collate_fn(move |samples: Vec<i64>, arena| {
            let number = samples[0] as u64 / BATCH as u64;
            let mut numbers = arena.zeros(&[samples.len()])?;
            numbers.as_mut_slice().unwrap().copy_from_slice(&samples);
            let touchy = Touchy::new(&counts, may_panic(number));
            let _ = made.send(number);
            Ok(TouchyBatch {
                numbers,
                touchy,
                stays,
            })
        });
        let builder = match self.pin {
            true => builder.pin_memory(device).pin_by_copy(self.by_copy),
            false => builder,
        };
        (builder.build().unwrap(), receiver)
    }
}

fn check_numbers(numbers: &Tensor<i64>, number: usize) {
    let samples = expected(number, BATCH, SAMPLES).map(|index| index as i64);
    assert!(numbers.as_slice().iter().copied().eq(samples), "{number}");
}

fn check_there(there: &TouchyThere, number: usize) {
    check_numbers(
        &there.numbers.to_host(true).unwrap().wait().unwrap(),
        number,
    );
}

/// Nothing panics any more: all batches come, on the host and on the device, from this loader and from another.
fn check_works(loader: DataLoader<TouchyBatch>, device: &Device, counts: &Arc<Counts>) {
    counts.arm(false);
    let how = How {
        workers: 2,
        pin: true,
        by_copy: false,
    };
    let other = how.batches(device, counts, false, |_| true).0;
    for loader in [loader, other] {
        assert_eq!(loader.epoch(7).len(), BATCHES);
        for (number, batch) in loader.epoch(7).enumerate() {
            check_numbers(&batch.unwrap().numbers, number);
        }
        for (number, there) in loader.epoch(8).prefetch_to_device(device, 2).enumerate() {
            check_there(&there.unwrap(), number);
        }
    }
    let memory = device.memory();
    assert_eq!(
        (memory.device_held_bytes, memory.leaked),
        (0, 0),
        "{memory:?}"
    );
}

/// What is left of a batch when it is sent panics: that is its batch's error, and no other's.
#[test]
fn a_batch_may_panic_while_it_is_sent() {
    watched("a_batch_may_panic_while_it_is_sent", |seed| {
        for how in How::all() {
            for (depth, step) in [(0, 2), (1, 1), (3, 2), (3, 3)] {
                let context = format!("{how:?}, depth {depth}, each {step}.");
                let (device, counts) = (late_device(seed), Arc::default());
                let bad = move |number: u64| number.is_multiple_of(step);
                let (loader, _made) = how.batches(&device, &counts, true, bad);
                counts.arm(true);
                let epochs = loader.epochs(0..2).prefetch_to_device(&device, depth);
                for (epoch, mut batches) in (0..).zip(epochs) {
                    for number in 0..BATCHES {
                        assert_eq!(batches.len(), BATCHES - number, "{context}");
                        match batches.next().unwrap() {
                            Ok(there) if !bad(number as u64) => check_there(&there, number),
                            Err(Error::CollatePanicked {
                                epoch: in_epoch,
                                batch,
                                ..
                            }) if bad(number as u64) => {
                                assert_eq!((in_epoch, batch), (epoch, number as u64), "{context}");
                            }
                            Ok(_) => panic!("{context}: batch {number} was sent"),
                            Err(error) => panic!("{context}: batch {number}: {error}"),
                        }
                    }
                    assert!(batches.next().is_none());
                }
                check_works(loader, &device, &counts);
                counts.check(2 * (BATCHES as u64).div_ceil(step));
            }
        }
    });
}

/// The program leaves its epoch. What was made ahead of it is dropped, wherever it is, and panics.
#[test]
fn batches_that_are_left_over_may_panic() {
    watched("batches_that_are_left_over_may_panic", |seed| {
        for how in How::all() {
            for way in 0..4 {
                let (device, counts) = (late_device(seed), Arc::default());
                let (loader, made) = how.batches(&device, &counts, false, |number| number > 0);
                let loader = Arc::new(loader);
                counts.arm(true);
                // Until batches are ahead.
                let wait = || {
                    let ahead = |number: &u64| *number == 2;
                    assert!(how.workers == 0 || made.iter().any(|number| ahead(&number)));
                };
                match way {
                    0 => {
                        let mut epoch = loader.epoch(0);
                        check_numbers(&epoch.next().unwrap().unwrap().numbers, 0);
                        wait();
                    }
                    1 => {
                        let mut epoch = loader.epoch(0).prefetch_to_device(&device, 2);
                        check_there(&epoch.next().unwrap().unwrap(), 0);
                        wait();
                    }
                    2 => {
                        let mut epochs = loader.epochs(0..3).prefetch_to_device(&device, 3);
                        let mut epoch = epochs.next().unwrap();
                        check_there(&epoch.next().unwrap().unwrap(), 0);
                        wait();
                        drop(epoch);
                        // The next one was begun, or not.
                        let mut epoch = epochs.next().unwrap();
                        check_there(&epoch.next().unwrap().unwrap(), 0);
                    }
                    _ => {
                        let mut epoch = Arc::clone(&loader).owned_epoch(0);
                        drop(loader);
                        check_numbers(&epoch.next().unwrap().unwrap().numbers, 0);
                        wait();
                        drop(epoch); // and the loader with it
                        counts.check(how.workers.min(1) as u64);
                        let (loader, _made) = how.batches(&device, &counts, false, |_| true);
                        check_works(loader, &device, &counts);
                        continue;
                    }
                }
                let loader = Arc::into_inner(loader).unwrap();
                check_works(loader, &device, &counts);
                counts.check(how.workers.min(1) as u64);
            }
        }
    });
}

/// A batch that cannot be sent is given up, and panics then: that is an error in its place too, whoever was to send it.
#[test]
fn a_batch_that_cannot_be_sent_may_panic() {
    watched("a_batch_that_cannot_be_sent_may_panic", |seed| {
        for how in How::all() {
            for depth in [0, 1, 3] {
                let context = format!("{how:?}, depth {depth}");
                let (device, counts) = (late_device(seed), Arc::default());
                // The program keeps the first two.
                device.set_device_budget_bytes(2 * 512);
                let (loader, _made) = how.batches(&device, &counts, false, |number| number > 1);
                counts.arm(true);
                let mut kept = Vec::new();
                let mut epoch = loader.epoch(0).prefetch_to_device(&device, depth);
                for number in 0..BATCHES {
                    assert_eq!(epoch.len(), BATCHES - number, "{context}");
                    match epoch.next().unwrap() {
                        Ok(there) => kept.push(there),
                        Err(error) => assert!(number > 1, "{context}, batch {number}: {error}"),
                    }
                }
                assert!(epoch.next().is_none());
                drop(epoch);
                assert_eq!(kept.len(), 2, "{context}");
                drop(kept);
                check_works(loader, &device, &counts);
                counts.check(1);
            }
        }
    });
}

/// Batches that take no time are taken several at once. If the program leaves, those that it did not come to panic.
#[test]
fn batches_that_were_taken_may_panic() {
    watched("batches_that_were_taken_may_panic", |_| {
        for _ in 0..20 {
            let counts = Arc::<Counts>::default();
            let of_batches = Arc::clone(&counts);
            let dataset = from_fn(100_000, |index, _| Ok(index as i64));
            let loader = DataLoader::builder(dataset)
                .num_workers(2)
                .collate_fn(move |samples: Vec<i64>, _| {
                    Ok(TouchyBatch {
                        touchy: Touchy::new(&of_batches, samples[0] >= 100),
                        numbers: Tensor::from(samples),
                        stays: false,
                    })
                })
                .build()
                .unwrap();
            counts.arm(true);
            let mut epoch = loader.epoch(0);
            assert!(epoch.by_ref().take(100).all(|batch| batch.is_ok()));
            drop(epoch);
            drop(loader);
            counts.check(0);
        }
    });
}

/// A batch is being made when the program leaves. Its worker, who finds that nobody wants it, lives on.
#[test]
fn a_batch_that_nobody_waits_for_may_panic() {
    watched("a_batch_that_nobody_waits_for_may_panic", |_| {
        let counts = Arc::<Counts>::default();
        let (reached, last) = mpsc::channel();
        let (open, gate) = mpsc::channel::<()>();
        let (of_samples, gate) = (Arc::clone(&counts), Mutex::new(gate));
        let dataset = from_fn(1000, move |index, _| {
            let touchy = Touchy::new(&of_samples, index == 500);
            if index == 500 {
                let _ = reached.send(());
                let _ = gate.lock().unwrap().recv();
            }
            Ok((index as i64, Host(touchy)))
        });
        let builder = DataLoader::builder(dataset).batch_size(2).num_workers(1);
        let loader = builder.build().unwrap();
        counts.arm(true);
        let mut epoch = loader.epoch(0);
        assert!(epoch.by_ref().take(250).all(|batch| batch.is_ok()));
        last.recv().unwrap();
        counts.arm(false);
        drop(epoch);
        drop(open);
        // The one worker makes these when it is done with the other.
        assert_eq!(loader.epoch(1).filter(Result::is_err).count(), 0);
        drop(loader);
        counts.check(1);
    });
}

/// A sample that may panic when it is dropped. `ALIKE`: its batch is planned from one sample, or from all.
struct TouchySample<const ALIKE: bool> {
    index: u64,
    _touchy: Touchy,
}

impl<const ALIKE: bool> Sample for TouchySample<ALIKE> {
    type Batch = Tensor<i64>;
    type Plan = Field<i64>;
    type Rest = ();
    const ALIKE: bool = ALIKE;

    fn plan<'a>(
        _: impl Iterator<Item = &'a Self> + Clone,
        layout: &mut Layout,
    ) -> Result<Field<i64>, CollateError> {
        layout.field(&[])
    }

    fn fill(self, plan: &Field<i64>, row: &mut Row<'_>) -> Result<(), CollateError> {
        row.write(plan, &[self.index as i64])
    }

    fn finish(plan: Field<i64>, _: Vec<()>, filled: &mut Filled) -> Tensor<i64> {
        filled.take(plan)
    }
}

/// The second sample of each batch panics when it is dropped, and the last one cannot be loaded. `begun` hears of each.
fn touchy_samples<const ALIKE: bool>(
    counts: &Arc<Counts>,
    begun: mpsc::Sender<u64>,
) -> impl Dataset<Sample = TouchySample<ALIKE>> + use<ALIKE> {
    let counts = Arc::clone(counts);
    from_fn(SAMPLES, move |index, _| {
        let row = index as usize % BATCH;
        if row + 1 == BATCH && counts.is_armed.load(Ordering::SeqCst) {
            let _ = begun.send(index);
            return Err("no sample".into());
        }
        let _touchy = Touchy::new(&counts, row == 1);
        let _ = begun.send(index);
        Ok(TouchySample { index, _touchy })
    })
}

fn samples_panic<const ALIKE: bool>(how: How, device: &Device) {
    let context = format!("{how:?}, alike {ALIKE}");
    let counts = Arc::default();
    let (sender, begun) = mpsc::channel();
    let builder = DataLoader::builder(touchy_samples::<ALIKE>(&counts, sender))
        .batch_size(BATCH)
        .num_workers(how.workers);
    let builder = match how.pin {
        true => builder.pin_memory(device).pin_by_copy(how.by_copy),
        false => builder,
    };
    let loader = builder.build().unwrap();

    counts.arm(true);
    let mut seen = 0;
    for (number, batch) in loader.epoch(0).enumerate() {
        seen += 1;
        let first = number as u64 * BATCH as u64;
        match batch {
            // Dropped by `fill`, or where the last sample failed.
            Err(Error::SamplePanicked(id, _)) => assert_eq!(id.index, first + 1, "{context}"),
            Err(Error::Sample(id, _)) => assert_eq!(id.index, first + 3, "{context}"),
            Err(Error::CollatePanicked { batch, .. }) => assert_eq!(batch, number as u64),
            Err(error) => panic!("{context}: {error}"),
            Ok(_) => panic!("{context}: batch {number} was made"),
        }
    }
    assert_eq!(seen, BATCHES, "{context}");
    // Some are on their way, or parked, when the program leaves.
    begun.try_iter().for_each(drop);
    let epoch = loader.epoch(1);
    assert!(how.workers == 0 || begun.iter().any(|index| index == 1));
    drop(epoch);
    counts.arm(false);
    for epoch in 2..4 {
        for (number, batch) in loader.epoch(epoch).enumerate() {
            check_numbers(&batch.unwrap(), number);
        }
    }
    drop(loader);
    counts.check(1);
}

/// A sample that panics when it is dropped: where it is written, where another one of its batch failed, and where nobody wants it
/// any more.
#[test]
fn a_sample_may_panic_when_it_is_dropped() {
    watched("a_sample_may_panic_when_it_is_dropped", |seed| {
        for how in How::all() {
            let device = late_device(seed);
            samples_panic::<true>(how, &device);
            samples_panic::<false>(how, &device);
            let counts = Arc::default();
            let (loader, _made) = how.batches(&device, &counts, false, |_| false);
            check_works(loader, &device, &counts);
        }
    });
}
