//! A loss over three consecutive batches: three are held at once, so it takes four buffers for one more to travel meanwhile.

use std::collections::VecDeque;
use std::error::Error;

use pinfeed::device::DeviceBuffers;
use pinfeed::{DataLoader, Device, Error as LoadError, from_fn};

/// Returns how many triples there were, or the first error.
fn triples(buffers: usize) -> pinfeed::Result<usize> {
    let device = Device::cpu();
    let loader = DataLoader::builder(from_fn(100, |index, _| Ok(index as i64)))
        .batch_size(10)
        .num_workers(2)
        .pin_memory(&device)
        .build()?;
    let buffers = DeviceBuffers::new(&device, buffers)?;
    let (mut held, mut triples) = (VecDeque::new(), 0);
    for batch in loader.epoch(0).prefetch_to_device(&buffers, 1) {
        held.push_back(batch?);
        if held.len() == 3 {
            let firsts = held.iter().map(|batch| Ok(batch.to_host(true)?.wait()?.as_slice()[0]));
            let firsts = firsts.collect::<pinfeed::Result<Vec<i64>>>()?;
            assert!(firsts.windows(2).all(|pair| pair[1] == pair[0] + 10));
            triples += 1;
            held.pop_front();
        }
    }
    Ok(triples)
}

pub fn main() -> Result<(), Box<dyn Error>> {
    assert_eq!(triples(4)?, 8);
    assert_eq!(triples(3)?, 8); // nothing travels ahead
    match triples(2) {
        Err(error @ LoadError::Buffers { .. }) => println!("{error}"),
        other => panic!("{other:?}"),
    }
    Ok(())
}
