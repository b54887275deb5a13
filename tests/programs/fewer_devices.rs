//! A training on two devices is stopped, and goes on with one: every sample of the epoch comes once.
#![allow(clippy::unwrap_used)] // a panic of one thread ends the program

use std::collections::BTreeSet;
use std::error::Error;
use std::sync::{Barrier, Mutex};
use std::thread;

use pinfeed::{DataLoader, Device, Tensor, from_fn};

fn loader(devices: &[Device]) -> pinfeed::Result<DataLoader<Tensor<i64>>> {
    DataLoader::builder(from_fn(240, |index, _| Ok(index as i64)))
        .batch_size(10) // on each device
        .shuffle(true)
        .num_workers(2)
        .pin_memory(devices)
        .build()
}

pub fn main() -> Result<(), Box<dyn Error>> {
    let seen = Mutex::new(Vec::new());
    let see = |batch: &pinfeed::DeviceTensor<i64>| -> pinfeed::Result<()> {
        let numbers = batch.to_host(true)?.wait()?;
        seen.lock().unwrap().extend_from_slice(numbers.as_slice());
        Ok(())
    };

    let devices = [Device::cpu(), Device::cpu()];
    let two = loader(&devices)?;
    let (together, checkpoint) = (Barrier::new(2), Mutex::new(String::new()));
    thread::scope(|scope| {
        for epoch in two.epoch(0).split(&devices, 2) {
            let (see, together, checkpoint, two) = (&see, &together, &checkpoint, &two);
            scope.spawn(move || {
                for (step, batch) in epoch.enumerate() {
                    see(&batch.unwrap()).unwrap();
                    if together.wait().is_leader() {
                        // Both have taken this step, and neither the next one.
                        *checkpoint.lock().unwrap() = two.state().to_string();
                    }
                    together.wait();
                    if step == 4 {
                        break; // the machine is needed elsewhere
                    }
                }
            });
        }
    });

    let device = [Device::cpu()];
    let one = loader(&device)?;
    let state = checkpoint.into_inner()?.parse()?;
    for epoch in one.resume(0..1, &state)?.prefetch_to_device(&device[0], 2) {
        for batch in epoch {
            see(&batch?)?;
        }
    }
    let seen = seen.into_inner()?;
    let different: BTreeSet<_> = seen.iter().collect();
    println!("{} samples, {} of them different", seen.len(), different.len());
    assert_eq!((seen.len(), different.len()), (240, 240));
    Ok(())
}
