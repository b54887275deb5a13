//! Point clouds of a few hundred or many thousand points, on their way to a device through little page-locked memory.

use std::error::Error;

use pinfeed::{DataLoader, Device, Ragged, SampleRng, from_fn};

pub fn main() -> Result<(), Box<dyn Error>> {
    let device = Device::cpu();
    let clouds = from_fn(120, |_, rng: &mut SampleRng| {
        let points = if rng.range(0..10) == 0 { 20_000 } else { 300 };
        let cloud: Vec<[f32; 3]> = (0..points).map(|_| [rng.f32(), rng.f32(), rng.f32()]).collect();
        Ok(Ragged::from(cloud))
    });
    let loader = DataLoader::builder(clouds)
        .batch_size(4)
        .num_workers(2)
        .prefetch(16)
        .max_bytes_in_flight(2 << 20)
        .pin_memory(&device)
        .build()?;
    for epoch in loader.epochs(0..2).prefetch_to_device(&device, 2) {
        let mut points = 0;
        for batch in epoch {
            points += batch?.values.shape()[0];
        }
        println!("{points} points");
    }
    // Slabs are as large as the largest batch. There are as many as may be in flight, and two.
    let (memory, most) = (device.memory(), loader.stats().most_bytes_in_flight);
    println!("{} bytes in flight at most, {} page-locked", most, memory.pinned_bytes);
    assert!(most <= (2 << 20) + 4 * 20_000 * 12 + 4096);
    assert!(memory.pinned_bytes <= (2 << 20) + 3 * (4 * 20_000 * 12 + 4096));
    Ok(())
}
