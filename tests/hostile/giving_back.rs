//! Page-locked memory is given back where the program asks for it, and nowhere else: that waits for kernels. (The hostile
//! device unlocks and frees as a GPU does: when all that its streams hold is done.)

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use pinfeed::{Batch, DataLoader, Device, Stream, Tensor, TensorDataset, from_fn};

use crate::support::{late, late_device, watched};

const BYTES: usize = 5 * 4096;

/// A kernel that waits for the program.
fn hold_up(stream: &Stream) -> mpsc::Sender<()> {
    let (release, held) = mpsc::channel::<()>();
    stream.host_fn(move || held.recv().unwrap()).unwrap();
    release
}

fn tensor(value: u8) -> Tensor<u8> {
    Tensor::from(vec![value; BYTES])
}

/// Submits copies, and looks after those that are over.
fn go_on(device: &Device) {
    for value in 0..20 {
        let there = tensor(value).to_device(device, true).unwrap();
        there.synchronize().unwrap();
        let back = there.to_host(true).unwrap().wait().unwrap();
        assert!(back.as_slice().iter().all(|&byte| byte == value));
    }
}

/// A slab that is beyond a budget that was lowered while it was in use: it stays locked, and nobody waits for the kernel.
#[test]
fn surplus_is_locked_until_somebody_asks() {
    watched("surplus_is_locked_until_somebody_asks", |seed| {
        let device = late_device(seed);
        let stream = device.stream().unwrap();
        let release = hold_up(&stream);
        let own = tensor(1).pin(&device).unwrap();
        let before = device.memory().pinned_bytes;
        device.set_pinned_budget_bytes(0); // all of it is in use
        let there = own.to_device(&device, true).unwrap();
        there.synchronize().unwrap();
        go_on(&device);
        let memory = device.memory();
        assert_eq!(
            (memory.pinned_bytes, memory.pinned_idle_bytes),
            (before, before)
        );
        release.send(()).unwrap();
        go_on(&device);
        assert_eq!(device.memory().pinned_bytes, before, "nobody asked for it");
        assert_eq!(device.release_pinned(), before);
        assert_eq!(device.memory().pinned_bytes, 0);
        // There is room again as soon as the budget has it.
        device.set_pinned_budget_bytes(2 * BYTES);
        assert!(tensor(2).pin(&device).unwrap().is_pinned());
    });
}

/// Whoever drops slabs beyond the budget waits for nothing, and whoever takes one is served by them, as far as the budget goes.
#[test]
fn surplus_is_used_again() {
    watched("surplus_is_used_again", |seed| {
        let device = late_device(seed);
        let stream = device.stream().unwrap();
        let release = hold_up(&stream);
        let own = [1, 2, 3].map(|value| tensor(value).pin(&device).unwrap());
        device.set_pinned_budget_bytes(2 * BYTES);
        drop(own);
        let made = device.memory().slabs_made;
        let own = [4, 5].map(|value| tensor(value).pin(&device).unwrap());
        assert!(
            tensor(6).pin(&device).is_err(),
            "two are as many as the budget has"
        );
        assert_eq!(device.memory().slabs_made, made);
        assert_eq!(device.memory().pinned_bytes, 3 * BYTES);
        drop(own);
        release.send(()).unwrap();
        // To lower the budget is to ask.
        device.set_pinned_budget_bytes(BYTES);
        assert_eq!(device.memory().pinned_bytes, BYTES);
    });
}

/// Who needs the room of idle slabs unlocks them, and has no more than the budget meanwhile.
#[test]
fn surplus_is_room() {
    watched("surplus_is_room", |seed| {
        for delay in [0, 2] {
            let device = Device::hostile(late(seed, Duration::from_millis(delay))).unwrap();
            for round in 0..20 {
                device.set_pinned_budget_bytes(4 * BYTES);
                let own = [tensor(1), tensor(2), tensor(3)];
                let own = own.map(|own| own.pin(&device).unwrap());
                device.set_pinned_budget_bytes(2 * BYTES);
                drop(own);
                match round % 3 {
                    0 => {
                        let large = Tensor::from(vec![4u8; BYTES + 1]);
                        assert!(large.pin(&device).unwrap().is_pinned());
                    }
                    1 => assert_eq!(device.release_pinned(), 3 * BYTES),
                    _ => device.set_pinned_budget_bytes(BYTES),
                }
                assert!(device.memory().pinned_bytes <= 2 * BYTES);
                device.release_pinned();
            }
            // And the device may go at once.
            device.set_pinned_budget_bytes(BYTES);
            let own = tensor(1).pin(&device).unwrap();
            device.set_pinned_budget_bytes(0);
            drop(own);
        }
    });
}

/// An owner that counts how many of its kind went.
struct Counted(Vec<u8>, Arc<AtomicUsize>);

impl AsRef<[u8]> for Counted {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.1.fetch_add(1, Ordering::SeqCst);
    }
}

/// Registered memory of as many rows, and how many of its owners went.
fn registered(device: &Device, gone: &Arc<AtomicUsize>, rows: usize) -> Tensor<u8> {
    let owner = Counted(vec![3; rows * BYTES], Arc::clone(gone));
    let own = Tensor::from_owner(owner, &[rows, BYTES]).unwrap();
    own.register(device).unwrap()
}

/// How the program asks for what is parked.
const ASKS: [fn(Device); 3] = [
    |device| assert!(device.release_pinned() > 0),
    |device| drop(registered(&device, &Arc::default(), 1)),
    drop,
];

/// The last holder is a copy: what it held stays locked until somebody asks, and nobody waits for the kernel.
#[test]
fn registered_memory_is_parked_behind_its_last_copy() {
    watched("registered_memory_is_parked_behind_its_last_copy", |seed| {
        for ask in ASKS {
            let device = late_device(seed);
            let gone = Arc::default();
            let own = registered(&device, &gone, 4);
            let zeros = Tensor::<u8>::zeros(&[4, BYTES]);
            let mut there = zeros.to_device(&device, false).unwrap();
            // The copy waits for one kernel, and another runs on.
            let stream = device.stream().unwrap();
            let loan = there.on_mut(&stream).unwrap();
            let release_copy = hold_up(&stream);
            drop(loan);
            there.copy_from_host(&own, true).unwrap();
            drop(own);
            let other = device.stream().unwrap();
            let release = hold_up(&other);
            release_copy.send(()).unwrap();
            there.synchronize().unwrap();
            go_on(&device);
            assert_eq!(device.memory().parked_bytes, 4 * BYTES);
            assert_eq!(gone.load(Ordering::SeqCst), 0);
            release.send(()).unwrap();
            drop((there, stream, other));
            ask(device);
            assert_eq!(gone.load(Ordering::SeqCst), 1);
        }
    });
}

/// The same of rows that were gathered, where a batch's copy or the loader is the last holder.
#[test]
fn rows_that_were_gathered_are_parked_too() {
    watched("rows_that_were_gathered_are_parked_too", |seed| {
        for ask in ASKS {
            let device = late_device(seed);
            let gone = Arc::default();
            let dataset = TensorDataset::new(registered(&device, &gone, 4)).unwrap();
            let loader = DataLoader::builder(dataset).pin_memory(&device);
            let loader = loader.build().unwrap();
            let mut epoch = loader.epoch(0).prefetch_to_device(&device, 1);
            let batch = epoch.next().unwrap().unwrap();
            drop(epoch);
            drop(loader);
            let stream = device.stream().unwrap();
            let release = hold_up(&stream);
            go_on(&device);
            release.send(()).unwrap();
            drop((batch, stream));
            ask(device);
            assert_eq!(gone.load(Ordering::SeqCst), 1);
        }
    });
}

/// A thread of the library's is the last holder: its batches do not wait for the kernel.
#[test]
fn registered_memory_is_parked_by_workers() {
    watched("registered_memory_is_parked_by_workers", |seed| {
        for ask in ASKS {
            let device = late_device(seed);
            let gone = Arc::default();
            let own = Mutex::new(Some(registered(&device, &gone, 4)));
            let dataset = from_fn(8, move |index, _| {
                drop(own.lock().unwrap().take());
                Ok(index as i64)
            });
            let loader = DataLoader::builder(dataset).num_workers(1);
            let loader = loader.pin_memory(&device).build().unwrap();
            let stream = device.stream().unwrap();
            let release = hold_up(&stream);
            assert_eq!(loader.epoch(0).map(Result::unwrap).count(), 8);
            assert_eq!(device.memory().parked_bytes, 4 * BYTES);
            assert_eq!(gone.load(Ordering::SeqCst), 0);
            release.send(()).unwrap();
            drop((loader, stream));
            ask(device);
            assert_eq!(gone.load(Ordering::SeqCst), 1);
        }
    });
}

/// To drop the last holder is to ask: the memory is gone when the call returns.
#[test]
fn the_programs_own_drop_unlocks() {
    watched("the_programs_own_drop_unlocks", |seed| {
        let device = late_device(seed);
        let gone = Arc::default();
        let own = registered(&device, &gone, 2);
        let view = own.view();
        drop(own);
        assert_eq!(gone.load(Ordering::SeqCst), 0);
        drop(view);
        assert_eq!(gone.load(Ordering::SeqCst), 1);
        assert_eq!(device.memory().parked_bytes, 0);
    });
}
