//! A server with little device memory left: two buffers for batches, and never more, through training and evaluation.

use std::error::Error;

use pinfeed::device::DeviceBuffers;
use pinfeed::{DataLoader, Device, from_fn};

const BATCH_BYTES: usize = 32 * 1_000 * 4;

pub fn main() -> Result<(), Box<dyn Error>> {
    let device = Device::cpu();
    device.set_device_budget_bytes(2 * BATCH_BYTES + 1_024);
    let loader = |samples| {
        DataLoader::builder(from_fn(samples, |index, _| Ok([index as f32; 1_000])))
            .batch_size(32)
            .num_workers(2)
            .pin_memory(&device)
            .build()
    };
    let (training, validation) = (loader(1_000)?, loader(100)?);

    let buffers = DeviceBuffers::new(&device, 2)?;
    let mut samples = 0;
    for epoch in 0..3 {
        // (`epochs(0..3)` would send the next epoch's first batch into a buffer that the validation needs.)
        for batch in training.epoch(epoch).prefetch_to_device(&buffers, 1) {
            samples += batch?.shape()[0];
        }
        for batch in validation.epoch(0).prefetch_to_device(&buffers, 1) {
            samples += batch?.shape()[0];
        }
        assert!(device.memory().device_bytes <= 2 * BATCH_BYTES);
    }
    assert_eq!(samples, 3 * 1_100);
    Ok(())
}
