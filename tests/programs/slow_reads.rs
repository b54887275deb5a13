//! Samples from a server of which some take fifty times as long as others: the training takes whatever is there.

use std::error::Error;
use std::thread;
use std::time::Duration;

use pinfeed::{DataLoader, Device, from_fn};

pub fn main() -> Result<(), Box<dyn Error>> {
    let device = Device::cpu();
    let stream = device.stream()?;
    let samples = from_fn(600, |index, _| {
        // A read that misses every cache.
        let millis = if index % 97 == 0 { 20 } else { 0 };
        thread::sleep(Duration::from_millis(millis));
        Ok(([index as f32; 16], (index % 10) as i64))
    });
    let loader = DataLoader::builder(samples)
        .batch_size(20)
        .shuffle(true)
        .num_workers(4)
        .prefetch(8) // more than are slow at once
        .in_order(false)
        .pin_memory(&device)
        .build()?;
    for epoch in loader.epochs(0..3).prefetch_to_device(&device, 2) {
        let (number, mut seen) = (epoch.number(), 0);
        for batch in epoch {
            let (inputs, labels) = batch?;
            let _inputs = inputs.on(&stream)?; // a step
            seen += labels.len();
        }
        println!("epoch {number}: {seen} samples");
        assert_eq!(seen, 600); // each of them, once
    }
    println!("{}", loader.stats());
    Ok(())
}
