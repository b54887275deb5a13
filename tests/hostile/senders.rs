//! Which thread sends a batch of the program's own type, and what if that panics.

use std::sync::{Arc, Condvar, Mutex};
use std::thread::{self, ThreadId};
use std::time::Duration;

use pinfeed::collate::{Arena, Relocation, Tensors, Upload};
use pinfeed::{Batch, BoxError, DataLoader, Device, DeviceTensor, Tensor, from_fn};

/// Which thread sent which batch.
type Sent = Arc<Mutex<Vec<(i64, ThreadId)>>>;

/// A batch that notes by which thread it is sent.
struct Noted {
    numbers: Tensor<i64>,
    sent: Sent,
    panics: bool,
}

impl Batch for Noted {
    type OnDevice = DeviceTensor<i64>;

    fn tensors(&self, visit: &mut Tensors<'_>) {
        visit.add(&self.numbers);
    }

    fn relocate(self, slab: &mut Relocation) -> Noted {
        let numbers = slab.tensor(self.numbers);
        Noted { numbers, ..self }
    }

    fn upload(self, upload: &mut Upload) -> DeviceTensor<i64> {
        let (number, by) = (self.numbers.as_slice()[0], thread::current().id());
        self.sent.lock().unwrap().push((number, by));
        if self.panics {
            watch::provoked("it cannot be sent");
        }
        upload.tensor(self.numbers)
    }
}

/// Without page-locked memory, sending takes as long as the copy: so no worker sends, also not what lies behind a batch that failed.
#[test]
fn pageable_batches_are_sent_by_their_consumer() {
    const BATCHES: i64 = 6;
    let device = Device::cpu();
    let made = Arc::new((Mutex::new(0), Condvar::new()));
    let (of_samples, of_collate) = (Arc::clone(&made), Arc::clone(&made));
    let samples = from_fn(BATCHES as u64, move |index, _| -> Result<i64, BoxError> {
        if index > 0 {
            return Ok(index as i64);
        }
        // The other worker begins its third batch, so the first two of them are ready; and the epoch has its device.
        let (made, changed) = &*of_samples;
        let mut made = made.lock().unwrap();
        while *made < 4 {
            made = changed.wait(made).unwrap();
        }
        Err("no sample".into())
    });
    let sent = Sent::default();
    let noted = Arc::clone(&sent);
    let collate = move |samples: Vec<i64>, _: &mut Arena| {
        let (made, changed) = &*of_collate;
        *made.lock().unwrap() += 1;
        changed.notify_all();
        Ok(Noted {
            numbers: Tensor::from(samples),
            sent: Arc::clone(&noted),
            panics: false,
        })
    };
    let loader = DataLoader::builder(samples)
        .batch_size(1)
        .num_workers(2)
        .collate_fn(collate)
        .build()
        .unwrap();
    let epoch = loader.epoch(0);
    let epoch = epoch.prefetch_to_device(&device, BATCHES as usize);
    *made.0.lock().unwrap() += 1;
    made.1.notify_all();
    // Long enough for a worker that would send. (There is nothing to wait for if none does.)
    thread::sleep(Duration::from_millis(100));
    let batches: Vec<_> = epoch.collect();
    assert_eq!(batches.iter().filter(|batch| batch.is_err()).count(), 1);
    let (here, sent) = (thread::current().id(), sent.lock().unwrap());
    assert_eq!(sent.len() as i64, BATCHES - 1);
    assert!(sent.iter().all(|(_, by)| *by == here), "{sent:?}");
}

/// What is ready when an epoch gets its device is sent at once. If the program's code panics there, its batch is the error, and an epoch that
/// is dropped then leaves nothing.
#[test]
fn what_is_sent_at_once_may_panic() {
    let device = Device::cpu();
    let sent = Sent::default();
    let noted = Arc::clone(&sent);
    let collate = move |samples: Vec<i64>, _: &mut Arena| {
        Ok(Noted {
            panics: samples[0] == 0,
            numbers: Tensor::from(samples),
            sent: Arc::clone(&noted),
        })
    };
    let loader = DataLoader::builder(from_fn(8, |index, _| Ok(index as i64)))
        .batch_size(2)
        .num_workers(2)
        .pin_memory(&device)
        .collate_fn(collate)
        .build()
        .unwrap();
    for number in 0..3 {
        let epoch = loader.epoch(number);
        while epoch.stats().made.batches < 2 {
            thread::yield_now();
        }
        let left = loader.epoch(10 + number).prefetch_to_device(&device, 4);
        let epoch = epoch.prefetch_to_device(&device, 4);
        drop(left);
        let batches: Vec<_> = epoch.collect();
        let errors = batches.iter().map(|batch| batch.is_err());
        assert!(errors.eq([true, false, false, false]), "{number}");
    }
    drop(loader);
    assert_eq!(device.memory().device_held_bytes, 0);
}
