//! A thread of its own trains, and gets its batches over a channel: a loan that owns its batch goes where a scope cannot.

use std::error::Error;
use std::sync::mpsc::sync_channel;
use std::thread;

use pinfeed::device::OwnedLoan;
use pinfeed::{DataLoader, Device, from_fn};

pub fn main() -> Result<(), Box<dyn Error>> {
    let device = Device::cpu(); // Device::cuda(0)?
    let stream = device.stream()?;
    let loader = DataLoader::builder(from_fn(1_000, |index, _| Ok([index as f32; 4])))
        .batch_size(50)
        .num_workers(2)
        .pin_memory(&device)
        .build()?;

    let (to_trainer, batches) = sync_channel::<OwnedLoan<f32>>(1);
    let trainer = thread::Builder::new().name("trainer".to_owned());
    let trainer = trainer.spawn(move || {
        let mut steps = 0;
        let mut before: Option<OwnedLoan<f32>> = None; // a loss over two consecutive batches
        for batch in batches {
            assert_eq!((&batch.shape()[..], &batch.strides()[..]), (&[50, 4][..], &[4, 1][..]));
            if let Some(before) = &before {
                assert_ne!(before.address(), batch.address());
                steps += 1; // kernels that read both are launched here, on the stream that they were lent for
            }
            before = Some(batch); // the one before that ends here: an event on its stream
        }
        steps
    })?;
    for batch in loader.epoch(0).prefetch_to_device(&device, 2) {
        to_trainer.send(batch?.lend(&stream)?)?;
    }
    drop((to_trainer, loader, stream, device)); // the loans keep what they need
    let steps = trainer.join().map_err(|_| "the trainer panicked")?;
    println!("{steps} steps");
    assert_eq!(steps, 19);
    Ok(())
}
