//! A step that is captured as a graph reads its input where it was when it was captured. So batches lie in two buffers in turn, and there
//! are two graphs.

use std::collections::HashMap;
use std::error::Error;

use pinfeed::device::DeviceBuffers;
use pinfeed::{DataLoader, Device, from_fn};

/// Stands for a captured graph.
struct Graph {
    reads: u64,
    launched: usize,
}

pub fn main() -> Result<(), Box<dyn Error>> {
    let device = Device::cpu(); // Device::cuda(0)?
    let stream = device.stream()?;
    let loader = DataLoader::builder(from_fn(1_000, |index, _| Ok(([index as f32; 16], index as i64))))
        .batch_size(64)
        .shuffle(true)
        .drop_last(true)
        .num_workers(2)
        .pin_memory(&device)
        .build()?;

    let buffers = DeviceBuffers::new(&device, 2)?;
    let mut graphs: HashMap<u64, Graph> = HashMap::new();
    for epoch in loader.epochs(0..4).prefetch_to_device(&buffers, 1) {
        for batch in epoch {
            let (x, _labels) = batch?;
            let x = x.on(&stream)?;
            let graph = graphs.entry(x.address()).or_insert_with(|| Graph {
                reads: x.address(),
                launched: 0,
            });
            assert_eq!(graph.reads, x.address());
            graph.launched += 1; // cudaGraphLaunch, on `stream`
        }
    }
    let launched: Vec<usize> = graphs.values().map(|graph| graph.launched).collect();
    println!("two graphs, launched {launched:?} times");
    assert_eq!(launched, [30, 30]); // 4 epochs of 15 batches
    Ok(())
}
