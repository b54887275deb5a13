//! Memory of the program's that the device reads from where it lies, and owners that do things when they are dropped.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use pinfeed::collate::{Relocation, Tensors, Upload};
use pinfeed::device::Hostile;
use pinfeed::error::CollateError;
use pinfeed::sample::{Field, Filled, Layout, Row};
use pinfeed::{Batch, DataLoader, Dataset, Device, DeviceTensor, Sample, Tensor, TensorDataset};

use crate::support::{expected, late, late_device, rng, samples, watched};

/// Long enough to be gathered.
const ROW: usize = 17_003;
const LEN: u64 = 27;
const BATCH: usize = 4;
const BATCHES: usize = 7;

fn bytes() -> &'static [u8] {
    static BYTES: LazyLock<Vec<u8>> = LazyLock::new(|| {
        (0..LEN as usize * ROW)
            .map(|at| (at / ROW * 37 + at % ROW * 11 + at % ROW / 256) as u8)
            .collect()
    });
    &BYTES
}

/// Owns bytes, and asks the device for something when it goes.
struct Asking {
    bytes: Vec<u8>,
    device: Device,
    dropped: Arc<AtomicUsize>,
    panics: bool,
}

impl AsRef<[u8]> for Asking {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        let _ = self.device.memory();
        self.dropped.fetch_add(1, Ordering::SeqCst);
        assert!(!self.panics, "an owner that panics when it is dropped");
    }
}

fn asking(device: &Device, dropped: &Arc<AtomicUsize>, panics: bool) -> Tensor<u8> {
    let owner = Asking {
        bytes: bytes().to_vec(),
        device: device.clone(),
        dropped: Arc::clone(dropped),
        panics,
    };
    Tensor::from_owner(owner, &[LEN as usize, ROW]).unwrap()
}

/// Looks after what is over, and asks for registered memory, until the owner went.
fn settle(device: &Device, dropped: &AtomicUsize) {
    while dropped.load(Ordering::SeqCst) == 0 {
        let _ = device.release_pinned();
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The last holder of the owner is a copy in flight: it goes when somebody looks after what is over.
#[test]
fn an_owner_may_ask_the_device_when_it_goes() {
    watched("an_owner_may_ask_the_device_when_it_goes", |seed| {
        for registered in [false, true] {
            let device = late_device(seed);
            let dropped = Arc::default();
            let mut tensor = asking(&device, &dropped, false);
            if registered {
                tensor = tensor.register(&device).unwrap();
            }
            // A view, small enough for the driver to copy it.
            let row = tensor.row(3);
            let there = row.to_device(&device, true).unwrap();
            drop(tensor);
            settle(&device, &dropped);
            drop(there);
        }
        // Rows that are gathered are held by their batches' copies.
        for workers in [0, 2] {
            let device = late_device(seed);
            let dropped = Arc::default();
            let tensor = asking(&device, &dropped, false).register(&device).unwrap();
            let loader = DataLoader::builder(TensorDataset::new(tensor).unwrap())
                .batch_size(BATCH)
                .num_workers(workers)
                .pin_memory(&device)
                .build()
                .unwrap();
            let mut epoch = loader.epoch(0).prefetch_to_device(&device, 2);
            let batch = epoch.next().unwrap().unwrap();
            drop(epoch);
            drop(loader);
            settle(&device, &dropped);
            drop(batch);
        }
    });
}

/// What a failed copy used is kept for good, also if an owner panics that goes at the same time.
#[test]
fn an_owner_that_panics_frees_nothing_else() {
    watched("an_owner_that_panics_frees_nothing_else", |seed| {
        let device = Device::hostile(late(seed, Duration::from_micros(50))).unwrap();
        let dropped = Arc::default();
        let tensor = asking(&device, &dropped, true);
        let there = tensor.row(1).to_device(&device, true).unwrap();
        drop(tensor);
        while dropped.load(Ordering::SeqCst) == 0 {
            let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| device.memory()));
        }
        // The device still serves.
        let back = there.to_host(true).unwrap().wait().unwrap();
        assert!(back.as_slice() == &bytes()[ROW..2 * ROW]);
    });
}

fn check(there: &DeviceTensor<u8>, number: usize) -> pinfeed::Result<()> {
    let back = there.to_host(true)?.wait()?;
    let samples = expected(number, BATCH, LEN);
    assert!(back.as_slice() == &bytes()[samples.start as usize * ROW..samples.end as usize * ROW]);
    Ok(())
}

fn gathered_epochs(options: Hostile, workers: usize) -> usize {
    let sticky = options.sticky;
    let context = format!("{options:?}, {workers} workers");
    let Ok(device) = Device::hostile(options) else {
        return 1;
    };
    let tensor = Tensor::from_vec(bytes().to_vec(), &[LEN as usize, ROW]).unwrap();
    let Ok(tensor) = tensor.register(&device) else {
        return 1;
    };
    let loader = DataLoader::builder(TensorDataset::new(tensor).unwrap())
        .batch_size(BATCH)
        .num_workers(workers)
        .pin_memory(&device)
        .build()
        .unwrap();
    let mut errors = 0;
    for epoch in 0..2 {
        let mut seen = 0;
        for (number, batch) in loader
            .epoch(epoch)
            .prefetch_to_device(&device, 2)
            .enumerate()
        {
            seen += 1;
            let outcome = batch.and_then(|batch| check(&batch, number));
            errors += usize::from(outcome.is_err());
        }
        assert_eq!(seen, BATCHES, "{context}: a short epoch");
    }
    assert!(sticky || errors <= 1, "{context}: {errors} errors");
    errors
}

#[test]
fn any_call_may_fail_where_rows_are_gathered() {
    watched("any_call_may_fail_where_rows_are_gathered", |seed| {
        let mut rng = rng(seed, 3);
        let mut errors = 0;
        for call in 0..100 {
            for sticky in [false, true] {
                let mut options = late(seed, Duration::from_micros(30));
                options.fail_call = Some(call);
                options.sticky = sticky;
                errors += gathered_epochs(options, rng.below(3) as usize);
            }
        }
        assert!(errors > 50, "only {errors} errors");
    });
}

/// A batch of its own that is read on its way, so that its rows are gathered on the host.
struct Read(Tensor<u8>);

struct ReadSample(Tensor<u8>);

impl Sample for ReadSample {
    type Batch = Read;
    type Plan = Field<u8>;
    type Rest = ();

    fn plan<'a>(
        samples: impl Iterator<Item = &'a Self> + Clone,
        layout: &mut Layout,
    ) -> Result<Field<u8>, CollateError> {
        Tensor::plan(samples.map(|sample| &sample.0), layout)
    }

    fn fill(self, plan: &Field<u8>, row: &mut Row<'_>) -> Result<(), CollateError> {
        row.take(plan, self.0)
    }

    fn finish(plan: Field<u8>, _: Vec<()>, filled: &mut Filled) -> Read {
        let mut images = filled.take(plan);
        assert!(images.is_pinned());
        images.as_mut_slice().unwrap()[0] ^= 0xFF;
        Read(images)
    }
}

impl Batch for Read {
    type OnDevice = (DeviceTensor<u8>, bool);

    fn tensors(&self, visit: &mut Tensors<'_>) {
        visit.add(&self.0);
    }

    fn relocate(self, slab: &mut Relocation) -> Self {
        Read(slab.tensor(self.0))
    }

    fn upload(self, upload: &mut Upload) -> Self::OnDevice {
        let is_pinned = self.0.is_pinned();
        (upload.tensor(self.0), is_pinned)
    }
}

/// Rows that were gathered on the host, and written there, arrive as they are there. They lie in pageable memory then.
#[test]
fn what_is_written_in_a_gathered_tensor_arrives() {
    watched("what_is_written_in_a_gathered_tensor_arrives", |seed| {
        for workers in [0, 2] {
            let device = late_device(seed);
            let tensor = Tensor::from_vec(bytes().to_vec(), &[LEN as usize, ROW]).unwrap();
            let tensor = tensor.register(&device).unwrap();
            let source = tensor.view();
            let dataset = TensorDataset::new(tensor).unwrap();
            let loader: DataLoader<Read> =
                DataLoader::builder(dataset.map(|image, _| Ok(ReadSample(image))))
                    .batch_size(BATCH)
                    .num_workers(workers)
                    .pin_memory(&device)
                    .build()
                    .unwrap();
            let mut gathered = 0;
            for epoch in 0..2 {
                for (number, batch) in loader
                    .epoch(epoch)
                    .prefetch_to_device(&device, 1)
                    .enumerate()
                {
                    let (there, is_pinned) = batch.unwrap();
                    let back = there.to_host(true).unwrap().wait().unwrap();
                    let samples = expected(number, BATCH, LEN);
                    let mut right =
                        bytes()[samples.start as usize * ROW..samples.end as usize * ROW].to_vec();
                    right[0] ^= 0xFF;
                    assert!(back.as_slice() == right, "batch {number}");
                    gathered += usize::from(!is_pinned);
                }
            }
            assert_eq!(gathered, 2 * BATCHES);
            assert!(source.as_slice() == bytes());
            assert_eq!(loader.stats().unpinned.count, 0);
        }
    });
}

/// An epoch of two batches needs two slabs, however far ahead it might go.
#[test]
fn a_short_epoch_page_locks_little() {
    watched("a_short_epoch_page_locks_little", |_| {
        let device = Device::cpu();
        let loader = DataLoader::builder(samples(20))
            .batch_size(10)
            .num_workers(2)
            .prefetch(50)
            .pin_memory(&device)
            .build()
            .unwrap();
        for epoch in 0..3 {
            let mut epoch = loader.epoch(epoch).prefetch_to_device(&device, 100);
            let batches: Vec<_> = epoch.by_ref().map(Result::unwrap).collect();
            std::thread::sleep(Duration::from_millis(100));
            drop(batches);
        }
        let made = device.memory().slabs_made;
        assert!(made <= 4, "{made} slabs");
    });
}
