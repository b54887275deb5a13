//! What is the program's may do anything when it is dropped: ask its loader, begin an epoch, end the loader. Who dropped it under
//! a lock would be blocked for good.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};

use pinfeed::{Batch, BoxError, DataLoader, Dataset, Device, Error, Host, SampleRng, Tensor};

use crate::explore::explore;
use crate::support::{
    BLOCK, How, SLAB, below, check, check_all_back, check_error, coin, device, panic_quietly,
    sample,
};

type Loader = DataLoader<(Tensor<u8>, Tensor<i64>, Vec<Looker>)>;

/// What lookers look at. (Its lock and counters are no business of the schedule's: nothing happens in between.)
struct World {
    loader: Mutex<Weak<Loader>>,
    device: Device,
    alive: AtomicUsize,
    /// How many epochs lookers may begin yet, and whether they may look.
    epochs: AtomicUsize,
}

impl World {
    fn new(device: &Device) -> Arc<World> {
        Arc::new(World {
            loader: Mutex::default(),
            device: device.clone(),
            alive: AtomicUsize::new(0),
            epochs: AtomicUsize::new(below(8)),
        })
    }

    fn may_begin(&self) -> bool {
        let one_less = |left: usize| left.checked_sub(1);
        let update = self
            .epochs
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_less);
        update.is_ok()
    }
}

/// Something of the program's that looks at its loader when it is dropped.
struct Looker(Arc<World>);

impl Looker {
    fn new(world: &Arc<World>) -> Looker {
        world.alive.fetch_add(1, Ordering::SeqCst);
        Looker(Arc::clone(world))
    }
}

impl Drop for Looker {
    fn drop(&mut self) {
        let world = &self.0;
        let loader = world.loader.lock().unwrap().upgrade();
        // (If the program dropped its own meanwhile, this one is the last, and the loader ends here.)
        if let Some(loader) = loader {
            let _ = (loader.stats(), loader.len());
            if below(3) == 0 && world.may_begin() {
                let epoch = loader.owned_epoch(9);
                assert_eq!(epoch.len(), loader.len());
            }
        }
        let _ = world.device.memory();
        world.alive.fetch_sub(1, Ordering::SeqCst);
    }
}

impl fmt::Debug for Looker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a looker")
    }
}

impl fmt::Display for Looker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a looker")
    }
}

impl std::error::Error for Looker {}

/// Samples that hold lookers, errors (of two neighbours) that are some, and panics that unwind one.
struct Looking {
    len: u64,
    world: Arc<World>,
    fails: Option<u64>,
    panics: Option<u64>,
}

impl Dataset for Looking {
    type Sample = (Tensor<u8>, i64, Host<Looker>);

    fn len(&self) -> u64 {
        self.len
    }

    fn get(&self, index: u64, _: &mut SampleRng) -> Result<Self::Sample, BoxError> {
        if self.panics == Some(index) {
            let _unwound = Looker::new(&self.world);
            panic_quietly("no sample");
        }
        if self
            .fails
            .is_some_and(|first| first <= index && index <= first + 1)
        {
            return Err(Box::new(Looker::new(&self.world)));
        }
        let (bytes, index) = sample(index)?;
        Ok((bytes, index, Host(Looker::new(&self.world))))
    }
}

/// A loader of lookers that look at it.
fn looked_at(how: How, dataset: Looking, device: &Device) -> Arc<Loader> {
    let world = Arc::clone(&dataset.world);
    let loader = Arc::new(how.build(DataLoader::builder(dataset), device));
    *world.loader.lock().unwrap() = Arc::downgrade(&loader);
    loader
}

#[test]
fn samples_look_when_they_are_dropped() {
    explore("samples_look_when_they_are_dropped", || {
        let how = How::any();
        let device = device();
        if coin() {
            device.set_pinned_budget_bytes(below(6) * SLAB);
        }
        let world = World::new(&device);
        let fault = || (below(3) == 0).then(|| below(how.len as usize) as u64);
        let (fails, panics) = (fault(), fault());
        let dataset = Looking {
            len: how.len,
            world: Arc::clone(&world),
            fails,
            panics,
        };
        let loader = looked_at(how, dataset, &device);
        let mut kept = Vec::new();
        for epoch in 0..2 {
            let batches = loader.epoch(epoch).take(below(how.batches() + 2));
            for (number, batch) in batches.enumerate() {
                match batch {
                    Ok(batch) => {
                        kept.push((number, batch));
                        if coin() {
                            let (number, batch) = kept.swap_remove(below(kept.len()));
                            let batch = (batch.0, batch.1);
                            check(&batch, how.samples_of(number));
                        }
                    }
                    Err(error) => match (fails, panics) {
                        (None, Some(index)) => check_error(&error, index),
                        (None, None) => panic!("{error}"),
                        _ => assert!(matches!(
                            error,
                            Error::Sample(..) | Error::SamplePanicked(..)
                        )),
                    },
                }
            }
        }
        drop(loader);
        drop(kept);
        settle(&world, &device);
    });
}

/// The same on the way to the device, with parts or not: what stays on the host looks as well.
#[test]
fn batches_look_on_their_way() {
    explore("batches_look_on_their_way", || {
        let how = How::any();
        let (device, depth) = (device(), below(3));
        if coin() {
            device.set_device_budget_bytes((1 + depth + below(2)) * BLOCK);
        }
        let world = World::new(&device);
        let dataset = Looking {
            len: how.len,
            world: Arc::clone(&world),
            fails: None,
            panics: None,
        };
        let loader = looked_at(how, dataset, &device);
        for epoch in loader.epochs(0..2).prefetch_to_device(&device, depth) {
            for (number, there) in epoch.take(below(how.batches() + 2)).enumerate() {
                let (bytes, indices, lookers) = there.unwrap();
                assert_eq!(lookers.len(), how.samples_of(number).count());
                crate::support::check_there(&(bytes, indices), how.samples_of(number));
            }
        }
        drop(loader);
        settle(&world, &device);
    });
}

/// Owns bytes that a copy reads, and looks when the copy is done.
struct Owner {
    bytes: Vec<u8>,
    _looker: Looker,
}

impl AsRef<[u8]> for Owner {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// The last holder of the program's memory is a copy: it is dropped by the thread that looks after copies, a worker or the pin thread.
#[test]
fn owners_of_memory_look_when_their_copy_is_done() {
    explore("owners_of_memory_look_when_their_copy_is_done", || {
        let how = How::any();
        let device = device();
        let world = World::new(&device);
        let dataset = Looking {
            len: how.len,
            world: Arc::clone(&world),
            fails: None,
            panics: None,
        };
        let loader = looked_at(how, dataset, &device);
        let registers = coin();
        for batch in loader.epoch(0) {
            let owner = Owner {
                bytes: vec![5; 64],
                _looker: Looker::new(&world),
            };
            let tensor = Tensor::<u8>::from_owner(owner, &[64]).unwrap();
            let tensor = match registers {
                true => tensor.register(&device).unwrap(),
                false => tensor,
            };
            let there = tensor.to_device(&device, true).unwrap();
            drop(batch.unwrap());
            let back = there.to_host(true).unwrap().wait().unwrap();
            assert_eq!(back.as_slice(), [5; 64]);
        }
        drop(loader);
        settle(&world, &device);
    });
}

/// All lookers are gone, those of threads that go on by themselves as well; and so is what they held.
fn settle(world: &Arc<World>, device: &Device) {
    while world.alive.load(Ordering::SeqCst) > 0 {
        device.release_pinned(); // and registered memory that a copy held last
        shuttle::thread::yield_now();
    }
    // A looker holds the device beside its world.
    check_all_back(device);
}
