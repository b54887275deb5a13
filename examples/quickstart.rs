//! A whole program, as small as they get: samples become batches on a device. It needs no data and no GPU.
//!
//!     cargo run --release --example quickstart

use pinfeed::Device;
use pinfeed::prelude::*;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let device = Device::available(); // the first CUDA device, or the CPU
    let samples = from_fn(100_000, |index, rng| {
        let x: Vec<f32> = (0..64).map(|_| rng.f32()).collect(); // read a file here, decode it, augment it
        Ok((x, index as i64))
    });
    let loader = DataLoader::builder(samples)
        .batch_size(250)
        .shuffle(true)
        .seed(17)
        .num_workers(2)
        .pin_memory(&device)
        .build()?;

    for epoch in loader.epochs(0..3).prefetch_to_device(&device, 2) {
        let (number, mut times, mut order) = (epoch.number(), vec![0; 100_000], Vec::new());
        for batch in epoch {
            let (x, y) = batch?; // on the device: [250, 64] and [250]
            assert_eq!(
                (&x.shape()[..], &y.shape()[..]),
                (&[250, 64][..], &[250][..])
            );
            order.extend_from_slice(y.to_host(true)?.wait()?.as_slice()); // and back, to see which came
        }
        order.iter().for_each(|index| times[*index as usize] += 1);
        let once = times.iter().filter(|times| **times == 1).count();
        println!(
            "epoch {number} on {}: {once} samples came once each, first {:?}",
            device.name(),
            &order[..4]
        );
    }
    println!("\n{}", loader.stats()); // where the time went, and which knob to turn
    Ok(())
}
