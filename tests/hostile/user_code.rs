//! Errors and panics wherever the user's code runs: they cost their batch's place, and nothing else.

use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use pinfeed::collate::{Arena, Collate};
use pinfeed::error::CollateError;
use pinfeed::loader::Builder;
use pinfeed::sample::{Field, Filled, Layout, Row};
use pinfeed::{Batch, BoxError, DataLoader, Dataset, Device, Error, Sample, SampleRng, Tensor};

use crate::support::{expected, late_device, rng, watched};
use crate::traps::{
    BATCH, COLLATED, MENDED, Mine, Order, Own, Place, SAMPLES, STACKED, Trap, Trapped,
};

const BATCHES: usize = 6;

/// How a loader is built.
#[derive(Debug, Clone, Copy)]
struct How {
    workers: usize,
    pin: bool,
    by_copy: bool,
    late: bool,
}

impl How {
    fn draw(rng: &mut SampleRng) -> How {
        let pin = rng.bool(0.7);
        How {
            workers: [0, 1, 3][rng.below(3) as usize],
            pin,
            by_copy: pin && rng.bool(0.4),
            late: rng.bool(0.5),
        }
    }

    fn build<D: Dataset, C: Collate<D::Sample, Batch = Own>>(
        self,
        builder: Builder<D, C>,
        device: &Device,
    ) -> DataLoader<Own> {
        let builder = builder.batch_size(BATCH).num_workers(self.workers);
        let builder = match self.pin {
            true => builder.pin_memory(device).pin_by_copy(self.by_copy),
            false => builder,
        };
        builder.build().unwrap()
    }

    /// Whether the place is one that the loader comes to.
    fn reaches(self, place: Place) -> bool {
        match place {
            Place::TensorsPanics => self.pin,
            Place::RelocatePanics => self.by_copy,
            _ => true,
        }
    }
}

fn device(seed: u64, how: How) -> Device {
    if how.late {
        late_device(seed)
    } else {
        Device::cpu()
    }
}

/// Iterates an epoch in which the batch with `index` fails, and one after it in which none does.
fn run(loader: &DataLoader<Own>, trap: &Trap, fails: bool, device: &Device, context: &str) {
    let index = trap.index.load(Ordering::Relaxed);
    for epoch in 0..2 {
        let bad = (epoch == 0 && fails).then_some(index as usize / BATCH);
        let mut seen = 0;
        for (number, batch) in loader.epoch(epoch).enumerate() {
            seen += 1;
            match batch {
                Err(error) => {
                    assert_eq!(Some(number), bad, "{context}: {error}");
                    check_error(&error, trap.place, index, context);
                }
                Ok(batch) => {
                    assert_ne!(Some(number), bad, "{context}: no error");
                    // Where the loader has no need to call what panics, the program does.
                    let sent = AssertUnwindSafe(|| batch.to_device(device, true).unwrap());
                    let Ok(there) = std::panic::catch_unwind(sent) else {
                        assert_eq!(trap.place, Place::TensorsPanics, "{context}");
                        continue;
                    };
                    let back = there.to_host(true).unwrap().wait().unwrap();
                    let samples = expected(number, BATCH, SAMPLES);
                    let numbers: Vec<i64> = samples.flat_map(|i| [i as i64, -(i as i64)]).collect();
                    assert_eq!(back.as_slice(), numbers, "{context}: batch {number}");
                }
            }
        }
        assert_eq!(seen, BATCHES, "{context}: epoch {epoch}");
        trap.index.store(MENDED, Ordering::Relaxed);
    }
}

/// The error is of the right kind, and names what it can: the sample, or at least the batch.
fn check_error(error: &Error, place: Place, index: u64, context: &str) {
    let batch = index / BATCH as u64;
    let text = error.to_string();
    let id = match (place, error) {
        (Place::Get | Place::Describe, Error::Sample(id, _)) => id,
        (Place::SamplerLeaves, Error::Sample(id, _)) => {
            assert_eq!((id.batch, id.index), (batch, SAMPLES + 7), "{context}");
            return;
        }
        (
            Place::SamplerPanics,
            Error::SamplerPanicked {
                batch: found,
                position,
                ..
            },
        ) => {
            assert_eq!((*found, *position), (batch, index), "{context}");
            return;
        }
        (
            Place::GetPanics
            | Place::GetPanicsOddly
            | Place::MapPanics
            | Place::FillPanics
            | Place::PlanPanics
            | Place::SampleDrop,
            Error::SamplePanicked(id, _),
        ) => id,
        (Place::Plan | Place::Fill | Place::FillForgets, Error::Collate(misfit)) => &misfit.sample,
        (
            Place::Collate,
            Error::CollateFn {
                batch: found,
                epoch: 0,
                ..
            },
        )
        | (
            Place::FinishPanics
            | Place::PlanPanics
            | Place::SampleDrop
            | Place::TensorsPanics
            | Place::RelocatePanics
            | Place::CollatePanics,
            Error::CollatePanicked {
                batch: found,
                epoch: 0,
                ..
            },
        ) => return assert_eq!(*found, batch, "{context}: {text}"),
        _ => panic!("{context}: {error:?}"),
    };
    assert_eq!((id.epoch, id.batch), (0, batch), "{context}: {text}");
    if !matches!(place, Place::Plan | Place::PlanPanics) {
        assert_eq!((id.index, id.row as u64), (index, index % 4), "{context}");
    }
    let described = (place != Place::Describe).then(|| format!("number {}", id.index));
    assert_eq!(id.description, described, "{context}");
}

fn stacked<const ALIKE: bool>(place: Place, index: u64, how: How, seed: u64) {
    let context = format!("{place:?} at {index}, alike {ALIKE}, {how:?}");
    let trap = Trap::new(place, index);
    let of_map = Arc::clone(&trap);
    let dataset = Trapped::<ALIKE>(Arc::clone(&trap)).map(move |sample, _| {
        assert!(
            !of_map.strikes(Place::MapPanics, sample.index),
            "map panics"
        );
        Ok(sample)
    });
    let device = device(seed, how);
    let builder = DataLoader::builder(dataset).sampler(Order(Arc::clone(&trap)));
    let loader = how.build(builder, &device);
    run(&loader, &trap, how.reaches(place), &device, &context);
}

fn collated(place: Place, index: u64, how: How, seed: u64) {
    let context = format!("{place:?} at {index}, collate_fn, {how:?}");
    let trap = Trap::new(place, index);
    let collate = |samples: Vec<Mine<true>>, arena: &mut Arena| -> Result<Own, BoxError> {
        let strikes = |place| samples.iter().any(|sample| sample.strikes(place));
        if strikes(Place::Collate) {
            return Err("no batch".into());
        }
        assert!(!strikes(Place::CollatePanics), "collate_fn panics");
        let mut numbers = arena.zeros(&[samples.len(), 2])?;
        let rows = numbers.as_mut_slice().ok_or("shared")?.chunks_mut(2);
        for (row, sample) in rows.zip(&samples) {
            row.copy_from_slice(&[sample.index as i64, -(sample.index as i64)]);
        }
        let trap = samples.iter().find_map(|sample| {
            let struck = sample.trap.index.load(Ordering::Relaxed) == sample.index;
            struck.then_some(sample.trap.place)
        });
        Ok(Own { numbers, trap })
    };
    let device = device(seed, how);
    let builder = DataLoader::builder(Trapped(Arc::clone(&trap))).collate_fn(collate);
    let loader = how.build(builder, &device);
    run(&loader, &trap, how.reaches(place), &device, &context);
}

#[test]
fn whatever_fails_takes_its_batchs_place() {
    watched("whatever_fails_takes_its_batchs_place", |seed| {
        let mut rng = rng(seed, 1);
        for &place in STACKED {
            for _ in 0..8 {
                let (index, how) = (rng.below(SAMPLES), How::draw(&mut rng));
                stacked::<true>(place, index, how, seed);
                stacked::<false>(place, index, how, seed);
            }
        }
        for &place in COLLATED {
            for _ in 0..8 {
                // Without `by_copy`, a batch is copied or not by whether its size was known.
                let (index, how) = (rng.below(SAMPLES), How::draw(&mut rng));
                if place != Place::RelocatePanics || how.by_copy || !how.pin {
                    collated(place, index, how, seed);
                }
            }
        }
    });
}

/// Every batch fails, more often than there are workers; then none does.
#[test]
fn workers_survive_any_number_of_panics() {
    watched("workers_survive_any_number_of_panics", |seed| {
        let broken = Arc::new(AtomicBool::new(true));
        let flag = Arc::clone(&broken);
        let dataset = pinfeed::from_fn(200, move |index, _| {
            assert!(!flag.load(Ordering::Relaxed), "sample {index} panics");
            Ok(index as i64)
        });
        let loader = DataLoader::builder(dataset)
            .batch_size(3)
            .num_workers(2)
            .pin_memory(&late_device(seed))
            .build()
            .unwrap();
        let errors = loader.epoch(0).filter(Result::is_err).count();
        assert_eq!(errors, loader.len());
        broken.store(false, Ordering::Relaxed);
        let numbers: Vec<i64> = loader
            .epoch(1)
            .flat_map(|batch| batch.unwrap().to_vec())
            .collect();
        assert_eq!(numbers, (0..200).collect::<Vec<_>>());
    });
}

/// A batch of several broken samples reports the first of them, whoever finds which when.
#[test]
fn of_several_failures_the_first_is_reported() {
    watched("of_several_failures_the_first_is_reported", |seed| {
        let mut rng = rng(seed, 2);
        for round in 0..30 {
            let bad: Vec<u64> = (0..4).map(|_| rng.below(40)).collect();
            let broken = bad.clone();
            let dataset = pinfeed::from_fn(40, move |index, rng| {
                let wait = rng.below(300);
                std::thread::sleep(std::time::Duration::from_micros(wait));
                match broken.contains(&index) {
                    true => Err(format!("sample {index}").into()),
                    false => Ok(index as i64),
                }
            });
            let builder = DataLoader::builder(dataset).batch_size(20).num_workers(3);
            let loader = builder.seed(round).build().unwrap();
            for (number, batch) in loader.epoch(0).enumerate() {
                let range = expected(number, 20, 40);
                match (bad.iter().filter(|i| range.contains(i)).min(), batch) {
                    (None, Ok(batch)) => assert_eq!(batch.len(), 20),
                    (Some(first), Err(Error::Sample(id, _))) => assert_eq!(id.index, *first),
                    (first, batch) => panic!("{first:?}: {batch:?}"),
                }
            }
        }
    });
}

/// A layout cannot leave its batch (tests/ui/fail/layout_kept_for_another_batch.rs), but a field can: no row of another size is written.
#[test]
fn a_field_of_another_layout_is_refused() {
    struct Exchanged;

    /// A field whose rows are longer.
    static LONG: Mutex<Option<Arc<Field<f64>>>> = Mutex::new(None);

    impl Sample for Exchanged {
        type Batch = Tensor<f64>;
        type Plan = Arc<Field<f64>>;
        type Rest = ();

        fn plan<'a>(
            _: impl Iterator<Item = &'a Self> + Clone,
            layout: &mut Layout,
        ) -> Result<Arc<Field<f64>>, CollateError> {
            let mut long = LONG.lock().unwrap();
            match &*long {
                Some(long) if layout.rows() == 1_000 => {
                    layout.field::<f64>(&[4])?;
                    Ok(Arc::clone(long))
                }
                _ => {
                    let field = Arc::new(layout.field(&[8])?);
                    *long = Some(Arc::clone(&field));
                    Ok(field)
                }
            }
        }

        fn fill(self, plan: &Arc<Field<f64>>, row: &mut Row<'_>) -> Result<(), CollateError> {
            row.write(plan, &[1.0; 8])
        }

        fn finish(_: Arc<Field<f64>>, _: Vec<()>, _: &mut Filled) -> Tensor<f64> {
            Tensor::zeros(&[0])
        }
    }

    watched("a_field_of_another_layout_is_refused", |_| {
        for workers in [0, 2] {
            let dataset = pinfeed::from_fn(2_500, |_, _| Ok(Exchanged));
            let builder = DataLoader::builder(dataset).batch_size(1_000);
            let loader = builder.num_workers(workers).build().unwrap();
            loader.epoch(0).for_each(drop); // some of its batches have the long rows
            for batch in loader.epoch(1).take(2) {
                let error = batch.unwrap_err();
                assert!(
                    error.to_string().contains("whose layout does not hold it"),
                    "{error}"
                );
            }
        }
    });
}

/// A sample whose header lies asks for more memory than there is: an error of its batch, not the end of the process.
#[test]
fn a_batch_larger_than_memory_is_an_error() {
    struct Huge;

    impl Sample for Huge {
        type Batch = Tensor<u8>;
        type Plan = Field<u8>;
        type Rest = ();

        fn plan<'a>(
            _: impl Iterator<Item = &'a Self> + Clone,
            layout: &mut Layout,
        ) -> Result<Field<u8>, CollateError> {
            layout.field(&[1 << 45])
        }

        fn fill(self, _: &Field<u8>, _: &mut Row<'_>) -> Result<(), CollateError> {
            unreachable!("there is no slab to fill")
        }

        fn finish(plan: Field<u8>, _: Vec<()>, filled: &mut Filled) -> Tensor<u8> {
            filled.take(plan)
        }
    }

    watched("a_batch_larger_than_memory_is_an_error", |seed| {
        let device = late_device(seed);
        for workers in [0, 2] {
            for pin in [false, true] {
                let builder = DataLoader::builder(pinfeed::from_fn(6, |_, _| Ok(Huge)));
                let mut builder = builder.batch_size(2).num_workers(workers);
                if pin {
                    builder = builder.pin_memory(&device);
                }
                let loader = builder.build().unwrap();
                let errors: Vec<_> = loader.epoch(0).map(Result::unwrap_err).collect();
                assert_eq!(errors.len(), 3);
                for error in errors {
                    assert!(matches!(error, Error::HostMemory { .. }), "{error}");
                }
            }
        }
        assert_eq!(device.memory().pinned_bytes, 0);
    });
}

/// Numbers, of which one batch cannot be sent.
struct Unsendable {
    numbers: Tensor<i64>,
    panics: bool,
}

impl Batch for Unsendable {
    type OnDevice = pinfeed::DeviceTensor<i64>;

    fn tensors(&self, visit: &mut pinfeed::collate::Tensors<'_>) {
        visit.add(&self.numbers);
    }

    fn relocate(self, slab: &mut pinfeed::collate::Relocation) -> Unsendable {
        let numbers = slab.tensor(self.numbers);
        Unsendable { numbers, ..self }
    }

    fn upload(self, upload: &mut pinfeed::collate::Upload) -> Self::OnDevice {
        assert!(!self.panics, "upload panics");
        upload.tensor(self.numbers)
    }
}

/// A batch whose `upload` panics is the error of its own place, also where it is sent while another is given out: in the
/// middle of an epoch, at its end, and across the boundary to the next.
#[test]
fn a_batch_that_cannot_be_sent_costs_no_other() {
    for (workers, depth) in [(0, 0), (0, 2), (2, 0), (2, 1), (2, 3)] {
        for bad in 0..BATCHES as u64 {
            let device = Device::cpu();
            let loader = DataLoader::builder((0..SAMPLES as i64).collect::<Vec<_>>())
                .batch_size(BATCH)
                .num_workers(workers)
                .collate_fn(move |samples, arena| {
                    let panics = samples[0] as u64 / BATCH as u64 == bad;
                    let mut numbers = arena.zeros(&[samples.len()])?;
                    numbers.as_mut_slice().unwrap().copy_from_slice(&samples);
                    Ok(Unsendable { numbers, panics })
                })
                .pin_memory(&device)
                .build()
                .unwrap();
            for (number, mut epoch) in loader
                .epochs(0..3)
                .prefetch_to_device(&device, depth)
                .enumerate()
            {
                for batch in 0..BATCHES {
                    let context = format!("{workers}, {depth}, epoch {number}, batch {batch}");
                    assert_eq!(epoch.len(), BATCHES - batch, "{context}");
                    match epoch.next().unwrap() {
                        Ok(there) => {
                            let back = there.to_host(true).unwrap().wait().unwrap();
                            let samples = expected(batch, BATCH, SAMPLES);
                            assert!(back.to_vec().into_iter().eq(samples.map(|i| i as i64)));
                            assert_ne!(batch as u64, bad, "{context}");
                        }
                        Err(error) => {
                            assert_eq!(batch as u64, bad, "{context}: {error}");
                            assert!(
                                matches!(&error, Error::CollatePanicked { epoch, batch, .. }
                                    if (*epoch, *batch) == (number as u64, bad)),
                                "{context}: {error}"
                            );
                        }
                    }
                }
                assert_eq!(epoch.len(), 0);
                assert!(epoch.next().is_none());
            }
        }
    }
}
