//! Memory that is given back: that waits for kernels, and nobody else does. (The hostile device unlocks and frees as a GPU does:
//! when all that its streams hold is done.)

use std::sync::mpsc;
use std::time::Duration;

use pinfeed::{Batch, DataLoader, Device, Stream, Tensor, TensorDataset};

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

/// Waits until as little is page-locked.
fn settle(device: &Device, bytes: usize) {
    while device.memory().pinned_bytes > bytes {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A slab beyond a budget that was lowered meanwhile.
#[test]
fn nobody_waits_for_slabs_beyond_the_budget() {
    watched("nobody_waits_for_slabs_beyond_the_budget", |seed| {
        let device = late_device(seed);
        let stream = device.stream().unwrap();
        let release = hold_up(&stream);
        let own = tensor(1).pin(&device).unwrap();
        let before = device.memory().pinned_bytes;
        device.set_pinned_budget_bytes(0);
        let there = own.to_device(&device, true).unwrap();
        there.synchronize().unwrap();
        go_on(&device);
        assert_eq!(device.memory().pinned_bytes, before, "it is locked yet");
        release.send(()).unwrap();
        settle(&device, 0);
        // There is room again as soon as the budget has it.
        device.set_pinned_budget_bytes(2 * BYTES);
        assert!(tensor(2).pin(&device).unwrap().is_pinned());
    });
}

/// Memory of the program's that was registered, and whose last holder is a copy; alone, and as rows that were gathered.
#[test]
fn nobody_waits_for_registered_memory() {
    watched("nobody_waits_for_registered_memory", |seed| {
        for gathered in [false, true] {
            let device = late_device(seed);
            let stream = device.stream().unwrap();
            let mut options = None;
            let own = Tensor::from_vec(vec![3u8; 4 * BYTES], &[4, BYTES]).unwrap();
            let own = own.register(&device).unwrap();
            let release;
            if gathered {
                let dataset = TensorDataset::new(own).unwrap();
                let loader = DataLoader::builder(dataset).pin_memory(&device);
                let loader = loader.build().unwrap();
                let mut epoch = loader.epoch(0).to_device(&device, 1);
                release = hold_up(&stream);
                options = Some(epoch.next().unwrap().unwrap());
                drop(epoch);
                drop(loader);
            } else {
                release = hold_up(&stream);
                drop(own.to_device(&device, true).unwrap());
            }
            go_on(&device);
            release.send(()).unwrap();
            drop(options);
        }
    });
}

/// What is on its way out is waited for by who needs its room, and by who asks for it to go.
#[test]
fn memory_on_its_way_out_is_room() {
    watched("memory_on_its_way_out_is_room", |seed| {
        for delay in [0, 2] {
            let device = Device::hostile(late(seed, Duration::from_millis(delay))).unwrap();
            for round in 0..20 {
                device.set_pinned_budget_bytes(4 * BYTES);
                let own = [tensor(1), tensor(2), tensor(3)];
                let own = own.map(|own| own.pin(&device).unwrap());
                device.set_pinned_budget_bytes(BYTES);
                drop(own);
                match round % 3 {
                    0 => assert!(tensor(4).pin(&device).unwrap().is_pinned()),
                    1 => assert!(device.release_pinned() >= BYTES),
                    _ => drop(tensor(5).register(&device).unwrap()),
                }
                settle(&device, BYTES);
            }
            // And the device may go at once.
            device.set_pinned_budget_bytes(BYTES);
            let own = tensor(1).pin(&device).unwrap();
            device.set_pinned_budget_bytes(0);
            drop(own);
        }
    });
}
