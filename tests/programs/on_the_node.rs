//! One process for each GPU of a machine with two sockets: each stays on the socket of its GPU.

use std::error::Error;

use pinfeed::loader::{Affinity, Workers, World};
use pinfeed::{DataLoader, Device, from_fn};

pub fn main() -> Result<(), Box<dyn Error>> {
    let world = World::from_env()?; // torchrun, srun, mpirun
    let device = Device::cuda(world.local_rank()).unwrap_or_else(|_| Device::cpu());
    let loader = DataLoader::builder(from_fn(200, |index, _| Ok(([index as f32; 64], index as i64))))
        .global_batch_size(20 * world.data_ranks())
        .shuffle(true)
        .world(world)
        .num_workers(Workers::Auto)
        .pin_memory(&device)
        .affinity(Affinity::Device)
        .build()?;
    let placement = loader.placement();
    println!("rank {}: {placement}", world.rank());
    if let Some(problem) = &placement.problem {
        println!("slower than it could be: {problem}");
    }
    let stream = device.stream()?;
    let mut seen = 0;
    for epoch in loader.epochs(0..2).prefetch_to_device(&device, 2) {
        for batch in epoch {
            let (x, y) = batch?;
            let (_x, y) = (x.on(&stream)?, y.on(&stream)?);
            seen += y.len();
        }
    }
    assert!(seen > 0);
    Ok(())
}
