//! Samples that hang, and what a loader with a `timeout` makes of them; calls that do not wait, and what the log says of a long wait.
//!
//! Nothing here asserts a time. What hangs waits for a gate that the test opens when it is done, so no thread stays behind.

#![allow(clippy::disallowed_methods)] // threads of one line need no names

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::Duration;

use pinfeed::collate::Arena;
use pinfeed::error::{CollateError, Stage, TimedOut};
use pinfeed::loader::{Builder, OnError, TryNext};
use pinfeed::sample::{Field, Filled, Layout, Row};
use pinfeed::sampler::Sampler;
use pinfeed::{
    Batch, BoxError, DataLoader, Dataset, Device, Error, Result, Sample, SampleRng, Tensor, from_fn,
};

/// Short, for the tests' sake. A sample that is fast and late by chance would be an error where none is expected, so it is
/// not too short.
const TIMEOUT: Duration = Duration::from_millis(300);

/// What hangs waits here, until the gate is opened. Dropping its key opens it, and waits until all are out.
#[derive(Default)]
struct Gate {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    is_open: bool,
    inside: usize,
    came: usize,
}

impl Gate {
    fn new() -> (Key, Arc<Gate>) {
        let gate = Arc::<Gate>::default();
        (Key(Arc::clone(&gate)), gate)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn hang(&self) {
        let mut state = self.lock();
        state.inside += 1;
        state.came += 1;
        self.changed.notify_all();
        while !state.is_open {
            state = self.changed.wait(state).unwrap();
        }
        state.inside -= 1;
        self.changed.notify_all();
    }

    /// Waits until so many have come.
    fn wait_for(&self, came: usize) {
        let mut state = self.lock();
        while state.came < came {
            state = self.changed.wait(state).unwrap();
        }
    }

    fn came(&self) -> usize {
        self.lock().came
    }
}

struct Key(Arc<Gate>);

impl Key {
    fn open(&self) {
        self.0.lock().is_open = true;
        self.0.changed.notify_all();
    }
}

impl Drop for Key {
    fn drop(&mut self) {
        self.open();
        let mut state = self.0.lock();
        while state.inside > 0 {
            state = match self.0.changed.wait(state) {
                Ok(state) => state,
                Err(poisoned) => poisoned.into_inner(),
            };
        }
    }
}

/// How a loader is built.
#[derive(Debug, Clone, Copy)]
struct How {
    workers: usize,
    batch: usize,
    pin: bool,
}

/// All kinds.
fn all() -> impl Iterator<Item = How> {
    let of = |pin| {
        [(1, 4), (2, 3), (3, 1)].map(move |(workers, batch)| How {
            workers,
            batch,
            pin,
        })
    };
    [false, true].into_iter().flat_map(of)
}

impl How {
    fn build<D, C, B>(self, builder: Builder<D, C>, device: &Device) -> DataLoader<B>
    where
        D: Dataset,
        C: pinfeed::collate::Collate<D::Sample, Batch = B>,
        B: Batch,
    {
        let builder = builder
            .batch_size(self.batch)
            .num_workers(self.workers)
            .timeout(TIMEOUT);
        match self.pin {
            true => builder.pin_memory(device).build().unwrap(),
            false => builder.build().unwrap(),
        }
    }

    fn samples_of(self, number: usize) -> std::ops::Range<u64> {
        let start = (number * self.batch) as u64;
        start..(start + self.batch as u64).min(LEN)
    }

    fn batches(self) -> usize {
        LEN.div_ceil(self.batch as u64) as usize
    }
}

const LEN: u64 = 40;

/// Samples that tell their index, and of which some hang, once each.
fn hanging(gate: &Arc<Gate>, hang: &[u64]) -> impl Dataset<Sample = i64> {
    let (gate, left) = (Arc::clone(gate), Mutex::new(hang.to_vec()));
    from_fn(LEN, move |index, _| {
        let hangs = {
            let mut left = left.lock().unwrap();
            let at = left.iter().position(|other| *other == index);
            at.map(|at| left.swap_remove(at)).is_some()
        };
        if hangs {
            gate.hang();
        }
        Ok(index as i64)
    })
    .describe(|index| format!("file {index}"))
}

fn late(error: &Error) -> &TimedOut {
    match error {
        Error::TimedOut(late) => late,
        other => panic!("{other}"),
    }
}

/// Checks an epoch: a batch with a sample that hangs is that sample's error, and all others are there.
fn check<B>(
    how: How,
    hang: &[u64],
    batches: impl ExactSizeIterator<Item = Result<B>>,
    numbers: impl Fn(&B) -> Vec<i64>,
) {
    assert_eq!(batches.len(), how.batches());
    let mut seen = 0;
    for (number, batch) in batches.enumerate() {
        seen += 1;
        let samples = how.samples_of(number);
        let hung: Vec<u64> = hang
            .iter()
            .copied()
            .filter(|i| samples.contains(i))
            .collect();
        match batch {
            Ok(batch) => {
                assert!(hung.is_empty(), "{how:?}: batch {number} is no error");
                let expected: Vec<i64> = samples.map(|index| index as i64).collect();
                assert_eq!(numbers(&batch), expected, "{how:?}");
            }
            Err(error) => {
                let late = late(&error);
                let sample = late.sample.as_ref().unwrap();
                assert!(hung.contains(&sample.index), "{how:?}: {error}");
                let row = (sample.index - samples.start) as usize;
                assert_eq!((sample.row, sample.batch), (row, number as u64), "{error}");
                let description = format!("file {}", sample.index);
                assert_eq!(sample.description, Some(description), "{error}");
                assert_eq!((late.batch, late.stage), (number as u64, Stage::Loading));
                assert!(late.worker.starts_with("pinfeed-worker-"), "{error}");
                assert!(late.elapsed >= TIMEOUT, "{error}");
            }
        }
    }
    assert_eq!(seen, how.batches(), "{how:?}");
}

/// One sample hangs: its batch is an error in its place, all others come, and the next epoch has them all.
#[test]
fn a_sample_that_hangs_is_an_error_in_its_place() {
    for how in all() {
        let (key, gate) = Gate::new();
        let device = Device::cpu();
        let loader = how.build(DataLoader::builder(hanging(&gate, &[13])), &device);
        check(how, &[13], loader.epoch(0), |batch: &Tensor<i64>| {
            batch.to_vec()
        });
        check(how, &[], loader.epoch(1), |batch: &Tensor<i64>| {
            batch.to_vec()
        });
        drop(loader); // while it hangs
        assert_eq!(gate.came(), 1);
        drop(key);
    }
}

#[test]
fn the_error_says_what_hangs_and_what_to_do() {
    let (key, gate) = Gate::new();
    let how = How {
        workers: 1,
        batch: 8,
        pin: false,
    };
    let loader = how.build(DataLoader::builder(hanging(&gate, &[13])), &Device::cpu());
    let error = loader.epoch(0).find_map(Result::err).unwrap();
    let text = error.to_string();
    for part in [
        "sample 13 (file 13), row 5 of batch 1 in epoch 0, was still being loaded after ",
        " by pinfeed-worker-0",
        "raise `timeout`",
    ] {
        assert!(text.contains(part), "{text}");
    }
    drop((loader, key));
}

/// Some hang at once: in one batch, in several, more than there are workers.
#[test]
fn any_number_may_hang() {
    for how in all() {
        for hang in [&[0, 8, 39][..], &[3, 4, 5, 6]] {
            let (key, gate) = Gate::new();
            let device = Device::cpu();
            let loader = how.build(DataLoader::builder(hanging(&gate, hang)), &device);
            check(how, hang, loader.epoch(0), |batch: &Tensor<i64>| {
                batch.to_vec()
            });
            drop((loader, key));
        }
    }
}

/// Once it is known that batches take microseconds, a worker makes several in a row: those after the one that hangs come as well.
#[test]
fn a_run_of_tiny_batches_outlives_its_worker() {
    for workers in [1, 2] {
        let (key, gate) = Gate::new();
        let armed = Arc::new(Mutex::new(None));
        let (of_get, of_gate) = (Arc::clone(&armed), Arc::clone(&gate));
        let samples = from_fn(LEN, move |index, _| {
            let hangs = of_get.lock().unwrap().take_if(|armed| *armed == index);
            if hangs.is_some() {
                of_gate.hang();
            }
            Ok(index as i64)
        });
        let how = How {
            workers,
            batch: 1,
            pin: false,
        };
        let samples = samples.describe(|index| format!("file {index}"));
        let loader = how.build(DataLoader::builder(samples), &Device::cpu());
        for epoch in 0..8 {
            check(how, &[], loader.epoch(epoch), |batch: &Tensor<i64>| {
                batch.to_vec()
            });
            let hang = 2 * epoch;
            *armed.lock().unwrap() = Some(hang);
            check(how, &[hang], loader.epoch(epoch), |batch: &Tensor<i64>| {
                batch.to_vec()
            });
        }
        drop((loader, key));
    }
}

/// On the way to a device, whole or in parts, in a line of epochs: what was sent of the batch is given back, and the others arrive.
#[test]
fn batches_on_their_way_to_a_device() {
    struct Known<D>(D);

    impl<D: Dataset<Sample = i64>> Dataset for Known<D> {
        type Sample = i64;

        fn len(&self) -> u64 {
            self.0.len()
        }

        fn get(&self, index: u64, rng: &mut SampleRng) -> Result<i64, BoxError> {
            self.0.get(index, rng)
        }

        fn describe(&self, index: u64) -> Option<String> {
            self.0.describe(index)
        }

        fn sample_bytes(&self) -> Option<usize> {
            Some(8)
        }
    }

    let back =
        |batch: &pinfeed::DeviceTensor<i64>| batch.to_host(true).unwrap().wait().unwrap().to_vec();
    for how in all().filter(|how| how.batch > 1) {
        for is_cut in [false, true] {
            let (key, gate) = Gate::new();
            let device = Device::cpu();
            if is_cut {
                device.cut_batches_at(1, 2 * 8);
            }
            let samples = Known(hanging(&gate, &[13]));
            let loader = how.build(DataLoader::builder(samples), &device);
            // (Another epoch's may come first: they are loaded ahead.)
            let mut late = Vec::new();
            for epoch in loader.epochs(0..3).prefetch_to_device(&device, 2) {
                let batches: Vec<_> = epoch.collect();
                let is_late = batches.iter().any(Result::is_err);
                let hang: &[u64] = if is_late { &[13] } else { &[] };
                check(how, hang, batches.into_iter(), back);
                late.push(is_late);
            }
            late.sort_unstable();
            assert_eq!(late, [false, false, true]);
            drop((loader, key));
        }
    }
}

/// Samples in which anything of the program's may hang.
#[derive(Clone)]
struct Trap {
    gate: Arc<Gate>,
    place: Place,
    left: Arc<AtomicUsize>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Sampler,
    Get,
    Fill,
    Plan,
    Finish,
    CollateFn,
    /// `get` hangs, and then the description does.
    Describe,
}

impl Trap {
    fn springs(&self, place: Place, index: u64) {
        let is_one = place == self.place && index == 13;
        let one_less = |left: usize| left.checked_sub(1);
        let (order, failed) = (Ordering::SeqCst, Ordering::SeqCst);
        if is_one && self.left.fetch_update(order, failed, one_less).is_ok() {
            self.gate.hang();
        }
    }
}

struct Trapped<const ALIKE: bool>(Trap);

struct Number<const ALIKE: bool>(u64, Trap);

impl<const ALIKE: bool> Dataset for Trapped<ALIKE> {
    type Sample = Number<ALIKE>;

    fn len(&self) -> u64 {
        LEN
    }

    fn get(&self, index: u64, _: &mut SampleRng) -> Result<Number<ALIKE>, BoxError> {
        self.0.springs(Place::Get, index);
        self.0.springs(Place::Describe, index);
        Ok(Number(index, self.0.clone()))
    }

    fn describe(&self, index: u64) -> Option<String> {
        self.0.springs(Place::Describe, index);
        Some(format!("file {index}"))
    }
}

impl<const ALIKE: bool> Sample for Number<ALIKE> {
    type Batch = Tensor<i64>;
    type Plan = Field<i64>;
    type Rest = Number<ALIKE>;
    const ALIKE: bool = ALIKE;

    fn plan<'a>(
        samples: impl Iterator<Item = &'a Self> + Clone,
        layout: &mut Layout,
    ) -> Result<Field<i64>, CollateError> {
        samples.for_each(|sample| sample.1.springs(Place::Plan, sample.0));
        layout.field(&[])
    }

    fn fill(self, plan: &Field<i64>, row: &mut Row<'_>) -> Result<Self, CollateError> {
        self.1.springs(Place::Fill, self.0);
        row.write(plan, &[self.0 as i64])?;
        Ok(self)
    }

    fn finish(plan: Field<i64>, rest: Vec<Self>, filled: &mut Filled) -> Tensor<i64> {
        rest.iter()
            .for_each(|sample| sample.1.springs(Place::Finish, sample.0));
        filled.take(plan)
    }
}

struct Order(Trap);

impl Sampler for Order {
    fn len(&self) -> u64 {
        LEN
    }

    fn index(&self, _: u64, position: u64) -> u64 {
        self.0.springs(Place::Sampler, position);
        position
    }
}

/// Wherever it is that something hangs, it costs its batch, and the error says where.
#[test]
fn whatever_hangs_costs_its_batch() {
    let places = [
        (Place::Sampler, Stage::Sampling),
        (Place::Get, Stage::Loading),
        (Place::Fill, Stage::Filling),
        (Place::Plan, Stage::Planning),
        (Place::Finish, Stage::Collating),
        (Place::CollateFn, Stage::Collating),
        (Place::Describe, Stage::Loading),
    ];
    for (place, stage) in places {
        for pin in [false, true] {
            let how = How {
                workers: 2,
                batch: 4,
                pin,
            };
            let (key, gate) = Gate::new();
            let trap = Trap {
                gate,
                place,
                left: Arc::new(AtomicUsize::new(1 + usize::from(place == Place::Describe))),
            };
            // (Of samples that are alike, a batch is laid out from one.)
            let samples = Trapped::<false>(trap.clone());
            let builder = DataLoader::builder(samples).sampler(Order(trap.clone()));
            let device = Device::cpu();
            let loader: DataLoader<Tensor<i64>> = match place {
                Place::CollateFn => how.build(
                    builder.collate_fn(|samples: Vec<Number<false>>, arena: &mut Arena| {
                        let mut numbers = arena.zeros(&[samples.len()])?;
                        let all = numbers.as_mut_slice().ok_or("shared")?;
                        for (number, sample) in all.iter_mut().zip(samples) {
                            sample.1.springs(Place::CollateFn, sample.0);
                            *number = sample.0 as i64;
                        }
                        Ok(numbers)
                    }),
                    &device,
                ),
                _ => how.build(builder, &device),
            };
            let mut errors = 0;
            for (number, batch) in loader.epoch(0).enumerate() {
                match batch {
                    Ok(batch) => {
                        let expected = how.samples_of(number).map(|index| index as i64);
                        assert!(batch.to_vec().into_iter().eq(expected), "{place:?}");
                    }
                    Err(error) => {
                        let late = late(&error);
                        let found = (number, late.batch, late.epoch, late.stage);
                        assert_eq!(found, (3, 3, 0, stage), "{place:?}: {error}");
                        let of_sample = matches!(stage, Stage::Loading | Stage::Filling);
                        let index = late.sample.as_ref().map(|sample| sample.index);
                        assert_eq!(index, of_sample.then_some(13), "{place:?}: {error}");
                        let described = late.sample.as_ref();
                        let described = described.and_then(|one| one.description.as_ref());
                        let is_told = of_sample && place != Place::Describe;
                        assert_eq!(described.is_some(), is_told, "{place:?}: {error}");
                        errors += 1;
                    }
                }
            }
            assert_eq!(errors, 1, "{place:?}");
            assert_eq!(
                loader.epoch(1).filter(Result::is_ok).count(),
                10,
                "{place:?}"
            );
            drop((loader, key));
        }
    }
}

/// A sample that hangs while it is filled into its row.
struct Stuck(u64, Option<Arc<Gate>>);

impl Sample for Stuck {
    type Batch = Tensor<i64>;
    type Plan = Field<i64>;
    type Rest = ();
    const ALIKE: bool = false; // all samples wait for their slab

    fn plan<'a>(
        _: impl Iterator<Item = &'a Self> + Clone,
        layout: &mut Layout,
    ) -> Result<Field<i64>, CollateError> {
        layout.field(&[])
    }

    fn fill(self, plan: &Field<i64>, row: &mut Row<'_>) -> Result<(), CollateError> {
        if let Some(gate) = &self.1 {
            gate.hang();
        }
        row.write(plan, &[self.0 as i64])
    }

    fn finish(plan: Field<i64>, _: Vec<()>, filled: &mut Filled) -> Tensor<i64> {
        filled.take(plan)
    }
}

/// Samples 0 and 8 are bad, and this one hangs.
fn stuck(hangs: Option<(u64, Arc<Gate>)>) -> impl Dataset<Sample = Stuck> {
    from_fn(12, move |index, _| match index {
        0 | 8 => Err("it is bad".into()),
        _ => {
            let is_one = hangs.as_ref().filter(|(one, _)| *one == index);
            Ok(Stuck(index, is_one.map(|(_, gate)| Arc::clone(gate))))
        }
    })
}

/// The sample that hangs is named, and not the one whose row it has, or a row that it had if none were left out.
#[test]
fn who_took_anothers_row_is_named() {
    let how = |pin| How {
        workers: 2,
        batch: 1,
        pin,
    };
    let device = Device::cpu();
    let replaced = OnError::Replace { at_most: 9 };
    // Who takes the row of sample 0?
    let builder = DataLoader::builder(stuck(None)).on_error(replaced);
    let loader: DataLoader<Tensor<i64>> = how(false).build(builder, &device);
    let (_, info) = loader.epoch(0).with_info().next().unwrap().unwrap();
    let other = info.indices()[0];
    assert_ne!(other, 0);
    for pin in [false, true] {
        let (key, gate) = Gate::new();
        let builder = DataLoader::builder(stuck(Some((other, gate)))).on_error(replaced);
        let loader: DataLoader<Tensor<i64>> = how(pin).build(builder, &device);
        let error = loader.epoch(0).next().unwrap().unwrap_err();
        let late = late(&error);
        let sample = late.sample.as_ref().unwrap();
        assert_eq!((late.stage, late.batch), (Stage::Filling, 0), "{error}");
        assert_eq!((sample.index, sample.row), (other, 0), "{error}");
        drop((loader, key));

        // Sample 8 is left out of rows 6 to 11.
        let (key, gate) = Gate::new();
        let builder = DataLoader::builder(stuck(Some((10, gate))));
        let builder = builder.on_error(OnError::Skip { at_most: 9 });
        let loader: DataLoader<Tensor<i64>> = How {
            batch: 6,
            ..how(pin)
        }
        .build(builder, &device);
        let error = loader.epoch(0).nth(1).unwrap().unwrap_err();
        let sample = self::late(&error).sample.as_ref().unwrap();
        assert_eq!((sample.index, sample.row), (10, 4), "{error}");
        drop((loader, key));
    }
}

/// The consumer leaves the epoch while a sample of it hangs. Later epochs have their workers.
#[test]
fn an_epoch_is_left_while_a_sample_hangs() {
    for how in all() {
        let (key, gate) = Gate::new();
        let loader = how.build(DataLoader::builder(hanging(&gate, &[0, 1])), &Device::cpu());
        let epoch = loader.epoch(0);
        gate.wait_for(1);
        drop(epoch);
        // (The second may hang in this one.)
        let errors = loader.epoch(1).filter(Result::is_err).count();
        assert!(errors <= 1, "{how:?}");
        check(how, &[], loader.epoch(2), |batch: &Tensor<i64>| {
            batch.to_vec()
        });
        drop((loader, key));
    }
}

/// What hangs comes back: before its error is taken, or after. It brings nothing, takes nothing, and all is given back.
#[test]
fn what_hangs_comes_back() {
    for how in all() {
        for early in [false, true] {
            let (key, gate) = Gate::new();
            let device = Device::cpu();
            let loader = how.build(DataLoader::builder(hanging(&gate, &[13])), &device);
            let mut epoch = loader.epoch(0);
            let number = 13 / how.batch;
            assert!(epoch.by_ref().take(number).all(|batch| batch.is_ok()));
            match early {
                // In time, or not: both are right.
                true => {
                    gate.wait_for(1);
                    key.open();
                    let _ = epoch.next().unwrap();
                }
                false => {
                    assert!(epoch.next().unwrap().is_err());
                    key.open();
                }
            }
            assert!(epoch.all(|batch| batch.is_ok()));
            drop(epoch);
            check(how, &[], loader.epoch(1), |batch: &Tensor<i64>| {
                batch.to_vec()
            });
            drop(key);
            drop(loader);
            // Its slab comes home with its thread.
            while device.memory().pinned_idle_bytes < device.memory().pinned_bytes {
                std::thread::yield_now();
            }
        }
    }
}

/// The loader is dropped while samples hang, taken or not: that does not wait for them, and they keep the data set until they
/// come back.
#[test]
fn a_loader_is_dropped_while_samples_hang() {
    struct Told(mpsc::Sender<()>);

    impl Drop for Told {
        fn drop(&mut self) {
            let _ = self.0.send(());
        }
    }

    for how in all() {
        for takes in [0, 3] {
            let (key, gate) = Gate::new();
            let (sender, dropped) = mpsc::channel();
            let (told, of_gate) = (Told(sender), Arc::clone(&gate));
            let samples = from_fn(LEN, move |index, _| {
                let _ = &told;
                if index < 2 {
                    of_gate.hang();
                }
                Ok(index as i64)
            });
            let loader = how.build(DataLoader::builder(samples), &Device::cpu());
            let mut epoch = loader.epoch(0);
            gate.wait_for(1);
            epoch.by_ref().take(takes).for_each(drop);
            drop(epoch);
            drop(loader);
            assert!(dropped.try_recv().is_err(), "{how:?}: it is still used");
            drop(key);
            dropped.recv().unwrap();
        }
    }
}

/// Slabs that hang are missing: batches go without, or wait for those that are left, and all come.
#[test]
fn slabs_that_hang_are_missed() {
    let how = How {
        workers: 2,
        batch: 4,
        pin: true,
    };
    let (key, gate) = Gate::new();
    let device = Device::cpu();
    let hang = [1, 5, 9, 13, 17, 21];
    let trap = |index: u64| hang.contains(&index);
    let (of_gate, left) = (Arc::clone(&gate), Arc::new(Mutex::new(hang.to_vec())));
    // They hang while they are filled, so each has a slab.
    struct Slow(u64, Option<Arc<Gate>>);
    impl Sample for Slow {
        type Batch = Tensor<i64>;
        type Plan = Field<i64>;
        type Rest = ();

        fn plan<'a>(
            _: impl Iterator<Item = &'a Self> + Clone,
            layout: &mut Layout,
        ) -> Result<Field<i64>, CollateError> {
            layout.field(&[])
        }

        fn fill(self, plan: &Field<i64>, row: &mut Row<'_>) -> Result<(), CollateError> {
            self.1.iter().for_each(|gate| gate.hang());
            row.write(plan, &[self.0 as i64])
        }

        fn finish(plan: Field<i64>, _: Vec<()>, filled: &mut Filled) -> Tensor<i64> {
            filled.take(plan)
        }
    }
    let samples = from_fn(LEN, move |index, _| {
        let mut left = left.lock().unwrap();
        let at = left.iter().position(|other| *other == index);
        let hangs = at.map(|at| left.swap_remove(at)).is_some();
        Ok(Slow(index, hangs.then(|| Arc::clone(&of_gate))))
    });
    let loader = how.build(DataLoader::builder(samples), &device);
    for (number, batch) in loader.epoch(0).enumerate() {
        let mut samples = how.samples_of(number);
        match batch {
            Ok(batch) => assert!(batch.to_vec().into_iter().eq(samples.map(|i| i as i64))),
            Err(error) => {
                assert_eq!(late(&error).stage, Stage::Filling);
                assert!(samples.any(trap), "{error}");
            }
        }
    }
    assert_eq!(gate.came(), hang.len());
    drop(key);
    let pinned = loader.epoch(1).map(|batch| batch.unwrap().is_pinned());
    assert!(pinned.into_iter().all(|is_pinned| is_pinned));
    drop(loader);
}

fn option_of(error: Error) -> String {
    match error {
        Error::InvalidOption { option, reason } => format!("{option} {reason}"),
        other => panic!("{other}"),
    }
}

#[test]
fn a_timeout_needs_workers_and_time() {
    let builder = || DataLoader::builder(vec![1.0f32]);
    let error = builder().timeout(TIMEOUT).build().unwrap_err();
    assert!(option_of(error).starts_with("timeout needs workers"));
    let none = builder().num_workers(1).timeout(Duration::ZERO);
    assert!(option_of(none.build().unwrap_err()).starts_with("timeout is 0"));
    let long = builder().num_workers(1).timeout(Duration::MAX);
    assert_eq!(long.build().unwrap().epoch(0).count(), 1);
}

/// A batch that has not come is pending, as often as one asks, and comes when it is there.
#[test]
fn who_cannot_wait_asks_again() {
    for workers in [1, 2] {
        for to_device in [false, true] {
            let (key, gate) = Gate::new();
            let device = Device::cpu();
            let loader = DataLoader::builder(hanging(&gate, &[0, 7]))
                .batch_size(4)
                .num_workers(workers)
                .pin_memory(&device)
                .build()
                .unwrap();
            let short = Duration::from_millis(5);
            let seen = match to_device {
                false => {
                    let mut epoch = loader.epoch(0).with_info();
                    gate.wait_for(1);
                    for _ in 0..3 {
                        assert!(matches!(epoch.try_next(), TryNext::NotYet));
                        assert!(matches!(epoch.next_timeout(short), TryNext::NotYet));
                        assert_eq!(epoch.len(), 10);
                    }
                    key.open();
                    let mut seen = Vec::new();
                    loop {
                        let next = match seen.len() % 3 {
                            0 => epoch.try_next(),
                            1 => epoch.next_timeout(short),
                            _ => epoch.next().map_or(TryNext::End, TryNext::Batch),
                        };
                        match next {
                            TryNext::Batch(batch) => {
                                let (batch, info) = batch.unwrap();
                                assert_eq!(info.batch() as usize, seen.len());
                                seen.push(batch.to_vec());
                            }
                            TryNext::End => break,
                            TryNext::NotYet => std::thread::yield_now(),
                        }
                    }
                    assert!(matches!(epoch.try_next(), TryNext::End));
                    seen
                }
                true => {
                    let mut epoch = loader.epoch(0).prefetch_to_device(&device, 1).with_info();
                    gate.wait_for(1);
                    for _ in 0..3 {
                        assert!(matches!(epoch.try_next(), TryNext::NotYet));
                        assert!(matches!(epoch.next_timeout(short), TryNext::NotYet));
                    }
                    key.open();
                    let mut seen = Vec::new();
                    loop {
                        let next = match seen.len() % 3 {
                            0 => epoch.try_next(),
                            1 => epoch.next_timeout(short),
                            _ => epoch.next().map_or(TryNext::End, TryNext::Batch),
                        };
                        match next {
                            TryNext::Batch(batch) => {
                                let (batch, info) = batch.unwrap();
                                assert_eq!(info.batch() as usize, seen.len());
                                seen.push(batch.to_host(true).unwrap().wait().unwrap().to_vec());
                            }
                            TryNext::End => break,
                            TryNext::NotYet => std::thread::yield_now(),
                        }
                    }
                    seen
                }
            };
            let expected: Vec<i64> = (0..LEN as i64).collect();
            assert_eq!(seen.concat(), expected);
            drop(key);
        }
    }
}

/// Without workers, who asks loads.
#[test]
fn without_workers_asking_is_loading() {
    let loader = DataLoader::builder(from_fn(5, |index, _| Ok(index as i64)))
        .batch_size(2)
        .build()
        .unwrap();
    let mut epoch = loader.epoch(0);
    for expected in [&[0i64, 1][..], &[2, 3], &[4]] {
        let TryNext::Batch(batch) = epoch.try_next() else {
            panic!("it is loaded by this call");
        };
        assert_eq!(batch.unwrap().as_slice(), expected);
    }
    assert!(matches!(epoch.try_next(), TryNext::End));
    assert!(matches!(epoch.next_timeout(TIMEOUT), TryNext::End));
}

/// A program that only asks, and keeps all batches, gets all of them, as one that waits does.
#[test]
fn who_asks_and_keeps_all_gets_all() {
    let device = Device::cpu();
    let loader = DataLoader::builder(from_fn(LEN, |index, _| Ok(index as i64)))
        .num_workers(2)
        .pin_memory(&device)
        .build()
        .unwrap();
    let (mut epoch, mut kept) = (loader.epoch(0), Vec::new());
    loop {
        match epoch.try_next() {
            TryNext::Batch(batch) => kept.push(batch.unwrap()),
            TryNext::End => break,
            TryNext::NotYet => std::thread::yield_now(),
        }
    }
    let numbers: Vec<i64> = kept.iter().flat_map(|batch| batch.to_vec()).collect();
    assert_eq!(numbers, (0..LEN as i64).collect::<Vec<_>>());
}

/// Who only asks finds out as well that a sample hangs.
#[test]
fn who_asks_finds_what_hangs() {
    for how in all() {
        let (key, gate) = Gate::new();
        let loader = how.build(DataLoader::builder(hanging(&gate, &[13])), &Device::cpu());
        let mut epoch = loader.epoch(0);
        let batches = std::iter::from_fn(|| {
            loop {
                match epoch.try_next() {
                    TryNext::NotYet => std::thread::yield_now(),
                    next => return next.batch(),
                }
            }
        });
        let batches: Vec<_> = batches.collect();
        check(how, &[13], batches.into_iter(), |batch: &Tensor<i64>| {
            batch.to_vec()
        });
        drop(epoch);
        drop((loader, key));
    }
}

/// A batch in parts of which one failed and one is not there: the caller is told when all are, and of the first.
#[test]
fn a_batch_half_of_which_came() {
    struct Halves(Arc<Gate>);

    impl Dataset for Halves {
        type Sample = i64;

        fn len(&self) -> u64 {
            12
        }

        fn get(&self, index: u64, _: &mut SampleRng) -> Result<i64, BoxError> {
            match index {
                0 => Err("no sample".into()),
                3 => {
                    self.0.hang();
                    Err("this one, too".into())
                }
                index => Ok(index as i64),
            }
        }

        fn sample_bytes(&self) -> Option<usize> {
            Some(8)
        }
    }

    let (key, gate) = Gate::new();
    let device = Device::cpu();
    device.cut_batches_at(1, 2 * 8);
    let loader = DataLoader::builder(Halves(Arc::clone(&gate)))
        .batch_size(4)
        .num_workers(2)
        .pin_memory(&device)
        .build()
        .unwrap();
    let mut epoch = loader.epoch(0).prefetch_to_device(&device, 1);
    gate.wait_for(1);
    for _ in 0..100 {
        assert!(matches!(epoch.try_next(), TryNext::NotYet));
    }
    assert!(matches!(
        epoch.next_timeout(Duration::from_millis(5)),
        TryNext::NotYet
    ));
    assert_eq!(epoch.len(), 3);
    key.open();
    let Some(Err(Error::Sample(id, _))) = epoch.next() else {
        panic!("the first batch has broken samples");
    };
    assert_eq!(id.index, 0);
    for expected in [[4i64, 5, 6, 7], [8, 9, 10, 11]] {
        let there = epoch.next().unwrap().unwrap();
        assert_eq!(
            there.to_host(true).unwrap().wait().unwrap().as_slice(),
            expected
        );
    }
    assert!(epoch.next().is_none());
    drop(key);
}

/// Keeps what is logged of this kind.
struct Log(mpsc::SyncSender<String>);

impl log::Log for Log {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        let text = record.args().to_string();
        if text.contains("the program has waited") {
            let _ = self.0.try_send(text);
        }
    }

    fn flush(&self) {}
}

/// If the consumer waits for long, the log says for what.
#[test]
fn the_log_says_what_is_waited_for() {
    let (sender, lines) = mpsc::sync_channel(100);
    log::set_logger(Box::leak(Box::new(Log(sender)))).unwrap();
    log::set_max_level(log::LevelFilter::Warn);
    let (key, gate) = Gate::new();
    let loader = DataLoader::builder(hanging(&gate, &[13]))
        .batch_size(4)
        .num_workers(2)
        .watchdog(Duration::from_millis(20))
        .build()
        .unwrap();
    let consumer = std::thread::spawn(move || loader.epoch(0).filter(Result::is_ok).count());
    for _ in 0..2 {
        let line = lines.recv().unwrap();
        for part in [
            "batch 3 of epoch 0 is being loaded; the program has waited for it for ",
            "sample 13 (file 13), row 1 of batch 3 in epoch 0, is being loaded",
            "pinfeed-worker-",
            "1 workers have nothing to do",
            "`timeout`",
        ] {
            assert!(line.contains(part), "{line}");
        }
    }
    drop(key);
    assert_eq!(consumer.join().unwrap(), 10);
}
