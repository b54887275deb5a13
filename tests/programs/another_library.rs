//! Batches go to a library that takes an address and a deleter, as C libraries do. It reads on streams of its own, and calls the deleter
//! when it likes, on a thread of its own.

use std::error::Error;
use std::sync::mpsc::{Sender, channel};
use std::thread::{self, JoinHandle};

use pinfeed::{DataLoader, Device, from_fn};

/// What a library keeps of an array that is not its own.
struct Array {
    _address: u64,
    deleter: Box<dyn FnOnce() + Send>,
}

/// Stands for the library.
struct Library {
    arrays: Sender<Array>,
    thread: JoinHandle<usize>,
}

impl Library {
    fn new() -> std::io::Result<Library> {
        let (arrays, given) = channel::<Array>();
        let thread = thread::Builder::new().name("library".to_owned());
        let thread = thread.spawn(move || {
            let mut deleted = 0;
            for array in given {
                (array.deleter)(); // its kernels are launched, on some streams, and perhaps not done
                deleted += 1;
            }
            deleted
        })?;
        Ok(Library { arrays, thread })
    }
}

pub fn main() -> Result<(), Box<dyn Error>> {
    let device = Device::cpu(); // Device::cuda(0)?
    device.set_device_budget_bytes(1 << 20);
    device.sweep_with_batches(true); // nothing here captures graphs
    let stream = device.stream()?;
    let loader = DataLoader::builder(from_fn(4_000, |index, _| Ok([index as f32; 64])))
        .batch_size(100)
        .num_workers(2)
        .pin_memory(&device)
        .build()?;

    let library = Library::new()?;
    for epoch in loader.epochs(0..3).prefetch_to_device(&device, 2) {
        for batch in epoch {
            let loan = batch?.lend(&stream)?; // the library's streams come after this one
            let theirs = loan.end_everywhere();
            library.arrays.send(Array {
                _address: theirs.address(),
                deleter: Box::new(move || drop(theirs)), // calls no driver
            })?;
        }
    }
    let Library { arrays, thread } = library;
    drop(arrays);
    let deleted = thread.join().map_err(|_| "the library panicked")?;
    device.sweep()?;
    let memory = device.memory();
    println!("{deleted} batches in {} bytes of device memory", memory.device_bytes);
    assert_eq!((deleted, memory.adrift_bytes, memory.device_held_bytes), (120, 0, 0));
    assert!(memory.device_bytes <= 1 << 20); // 3 MB went through it
    Ok(())
}
