//! Samples that hang: they cost their batch, and nobody waits for them for ever. (The clock jumps where somebody waits with an end, so
//! any sample may be late; one that hangs is.)

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use pinfeed::error::CollateError;
use pinfeed::loader::TryNext;
use pinfeed::sample::{Field, Filled, Layout, Row};
use pinfeed::{BoxError, DataLoader, Dataset, Device, Error, Result, Sample, SampleRng, Tensor};
use shuttle::sync::{Condvar, Mutex};
use shuttle::thread;

use crate::explore::explore;
use crate::support::{How, Pin, SLAB, below, check_all_back, coin, device};

/// What hangs waits here until it is opened.
#[derive(Default)]
pub struct Gate {
    is_open: Mutex<bool>,
    changed: Condvar,
}

impl Gate {
    pub fn pass(&self) {
        let mut is_open = self.is_open.lock().unwrap();
        while !*is_open {
            is_open = self.changed.wait(is_open).unwrap();
        }
    }

    pub fn open(&self) {
        *self.is_open.lock().unwrap() = true;
        self.changed.notify_all();
    }
}

/// Samples of which some hang while the gate is closed.
struct Hanging {
    len: u64,
    hang: Vec<u64>,
    gate: Arc<Gate>,
    /// They hang while they are filled, and not in `get`.
    in_fill: bool,
    describes: bool,
    /// Counts data sets.
    alive: Arc<AtomicUsize>,
}

impl Drop for Hanging {
    fn drop(&mut self) {
        self.alive.fetch_sub(1, Ordering::SeqCst);
    }
}

struct Number {
    index: u64,
    gate: Option<Arc<Gate>>,
}

impl Dataset for Hanging {
    type Sample = Number;

    fn len(&self) -> u64 {
        self.len
    }

    fn get(&self, index: u64, _: &mut SampleRng) -> Result<Number, BoxError> {
        let hangs = self.hang.contains(&index);
        if hangs && !self.in_fill {
            self.gate.pass();
        }
        let gate = (hangs && self.in_fill).then(|| Arc::clone(&self.gate));
        Ok(Number { index, gate })
    }

    fn sample_bytes(&self) -> Option<usize> {
        Some(8)
    }

    fn describe(&self, _: u64) -> Option<String> {
        if self.describes {
            self.gate.pass();
        }
        None
    }
}

impl Sample for Number {
    type Batch = Tensor<i64>;
    type Plan = Field<i64>;
    type Rest = ();
    const DENSE: bool = true;

    fn plan<'a>(
        _: impl Iterator<Item = &'a Self> + Clone,
        layout: &mut Layout,
    ) -> Result<Field<i64>, CollateError> {
        layout.field(&[])
    }

    fn fill(self, plan: &Field<i64>, row: &mut Row<'_>) -> Result<(), CollateError> {
        self.gate.iter().for_each(|gate| gate.pass());
        row.write(plan, &[self.index as i64])
    }

    fn finish(plan: Field<i64>, _: Vec<()>, filled: &mut Filled) -> Tensor<i64> {
        filled.take(plan)
    }
}

/// A loader some of whose samples hang.
struct Scene {
    how: How,
    hang: Vec<u64>,
    gate: Arc<Gate>,
    alive: Arc<AtomicUsize>,
    device: Device,
}

impl Scene {
    fn new(how: How, hang: Vec<u64>) -> (Scene, DataLoader<Tensor<i64>>) {
        let (gate, alive) = (Arc::<Gate>::default(), Arc::new(AtomicUsize::new(1)));
        let device = device();
        if below(4) == 0 {
            device.set_pinned_budget_bytes((1 + below(4)) * SLAB);
        }
        if below(3) == 0 {
            device.cut_batches_at(1, 16); // into parts of two samples
        }
        let dataset = Hanging {
            len: how.len,
            hang: hang.clone(),
            gate: Arc::clone(&gate),
            in_fill: coin(),
            describes: below(3) == 0,
            alive: Arc::clone(&alive),
        };
        let timeout = Duration::from_millis([5, 50][below(2)]);
        let loader = how.build(DataLoader::builder(dataset).timeout(timeout), &device);
        let scene = Scene {
            how,
            hang,
            gate,
            alive,
            device,
        };
        (scene, loader)
    }

    /// Any loader of workers, with one to three samples that hang.
    fn any() -> (Scene, DataLoader<Tensor<i64>>) {
        let how = any();
        let hang = (0..1 + below(3)).map(|_| below(how.len as usize) as u64);
        Scene::new(how, hang.collect())
    }

    /// The batch is right, or late. `hangs`: one with a sample that hangs is late.
    fn check(&self, number: usize, batch: Result<Vec<i64>>, hangs: bool) {
        let samples: Range<u64> = self.how.samples_of(number);
        match batch {
            Ok(numbers) => {
                assert!(!hangs || !samples.clone().any(|index| self.hang.contains(&index)));
                let numbers = numbers.into_iter().map(|number| number as u64);
                assert!(numbers.eq(samples));
            }
            Err(Error::TimedOut(late)) => {
                assert_eq!(late.batch, number as u64, "{late}");
                if let Some(sample) = late.sample {
                    assert!(samples.contains(&sample.index), "{sample}");
                    assert_eq!(sample.row as u64, sample.index - samples.start);
                }
            }
            Err(Error::Thread { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }

    /// Once the gate is open, all threads end, and all is given back.
    fn end(self) {
        self.gate.open();
        while self.alive.load(Ordering::SeqCst) > 0 {
            thread::yield_now();
        }
        check_all_back(&self.device);
    }
}

fn any() -> How {
    How {
        workers: 1 + below(3),
        prefetch: 1 + below(3),
        ..How::any()
    }
}

/// Waits for the next, in one of several ways.
fn next<T>(try_next: &mut dyn FnMut(Option<Duration>) -> TryNext<T>, wait: bool) -> TryNext<T> {
    match wait {
        true => try_next(Some(Duration::from_millis(below(20) as u64))),
        false => {
            thread::yield_now();
            try_next(None)
        }
    }
}

/// An epoch on the host, or on the device; `hangs` as in [`Scene::check`].
fn iterate(scene: &Scene, loader: &DataLoader<Tensor<i64>>, epoch: u64, take: usize, hangs: bool) {
    let way = below(4);
    if coin() {
        let mut batches = loader.epoch(epoch);
        for number in 0..take {
            let batch = loop {
                let asked = match way {
                    0 => next(
                        &mut |time| match time {
                            Some(time) => batches.next_timeout(time),
                            None => batches.try_next(),
                        },
                        coin(),
                    ),
                    _ => batches.next().map_or(TryNext::End, TryNext::Batch),
                };
                match asked {
                    TryNext::NotYet => {}
                    asked => break asked.batch().unwrap(),
                }
            };
            scene.check(number, batch.map(|batch| batch.to_vec()), hangs);
        }
        if take == scene.how.batches() {
            assert!(batches.next().is_none());
        }
    } else {
        let mut batches = loader
            .epoch(epoch)
            .prefetch_to_device(&scene.device, below(3));
        for number in 0..take {
            let there = loop {
                let asked = match way {
                    0 => next(
                        &mut |time| match time {
                            Some(time) => batches.next_timeout(time),
                            None => batches.try_next(),
                        },
                        coin(),
                    ),
                    _ => batches.next().map_or(TryNext::End, TryNext::Batch),
                };
                match asked {
                    TryNext::NotYet => {}
                    asked => break asked.batch().unwrap(),
                }
            };
            let back = there.and_then(|there| Ok(there.to_host(true)?.wait()?.to_vec()));
            scene.check(number, back, hangs);
        }
        if take == scene.how.batches() {
            assert!(batches.next().is_none());
        }
    }
}

/// Some hang for good: their batches are errors, and the others come, in this epoch and in the next.
#[test]
fn who_hangs_costs_a_batch() {
    explore("who_hangs_costs_a_batch", || {
        let (scene, loader) = Scene::any();
        for epoch in 0..2 {
            iterate(&scene, &loader, epoch, scene.how.batches(), true);
        }
        drop(loader);
        scene.end();
    });
}

/// All samples hang: so do all workers, and those that take their places.
#[test]
fn all_hang() {
    explore("all_hang", || {
        let how = any();
        let (scene, loader) = Scene::new(how, (0..how.len).collect());
        iterate(&scene, &loader, 0, how.batches(), true);
        drop(loader);
        scene.end();
    });
}

/// In a line of epochs, on the way to a device.
#[test]
fn epochs_follow_each_other() {
    explore("epochs_follow_each_other", || {
        let (scene, loader) = Scene::any();
        for epoch in loader
            .epochs(0..2)
            .prefetch_to_device(&scene.device, below(3))
        {
            let mut seen = 0;
            for (number, there) in epoch.enumerate() {
                seen += 1;
                let back = there.and_then(|there| Ok(there.to_host(true)?.wait()?.to_vec()));
                scene.check(number, back, true);
            }
            assert_eq!(seen, scene.how.batches());
        }
        drop(loader);
        scene.end();
    });
}

/// What hangs comes back at any time: before it is late, before its error is taken, after that, or while the loader is dropped.
#[test]
fn who_hangs_comes_back() {
    explore("who_hangs_comes_back", || {
        let (scene, loader) = Scene::any();
        let (gate, delay) = (Arc::clone(&scene.gate), below(40));
        let opener = thread::spawn(move || {
            (0..delay).for_each(|_| thread::yield_now());
            gate.open();
        });
        for epoch in 0..2 {
            iterate(&scene, &loader, epoch, scene.how.batches(), false);
        }
        drop(loader);
        opener.join().unwrap();
        scene.end();
    });
}

/// The consumer leaves while one hangs, and drops the loader.
#[test]
fn epochs_are_left_while_one_hangs() {
    explore("epochs_are_left_while_one_hangs", || {
        let (scene, loader) = Scene::any();
        for epoch in 0..below(4) as u64 {
            iterate(&scene, &loader, epoch, below(scene.how.batches() + 1), true);
        }
        drop(loader);
        scene.end();
    });
}

/// Batches that one worker makes, several in a row.
#[test]
fn runs_of_batches_hang() {
    explore("runs_of_batches_hang", || {
        let how = How {
            len: 8 + below(8) as u64,
            batch: 1,
            pin: Pin::No,
            workers: 1 + below(2),
            prefetch: 8,
            ..How::any()
        };
        let (scene, loader) = Scene::new(how, vec![below(how.len as usize) as u64]);
        for epoch in 0..3 {
            iterate(&scene, &loader, epoch, how.batches(), true);
        }
        drop(loader);
        scene.end();
    });
}
