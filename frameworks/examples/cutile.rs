//! cutile: a kernel in Rust reads each batch where it lies on the device. It wants a GPU, CUDA's toolkit 13 and libclang.
//!
//!     cargo run --release --manifest-path frameworks/Cargo.toml --features cutile --example cutile
//!
//! A batch is lent to cutile, which keeps it until nothing of its own uses it any more. cutile chooses its streams by itself, so it is not known
//! which has read the batch last: the loan ends *everywhere*, and the memory is used again behind all work that the context had at the next
//! sweep.

use std::process::ExitCode;
use std::sync::Arc;

use cuda_core::{Context, DeviceAllocation};
use cutile::prelude::*;
use pinfeed::device::Adrift;
use pinfeed::{BoxError, DataLoader, from_fn};

const ROWS: usize = 64;
const COLUMNS: usize = 128;
const SAMPLES: u64 = 64_000;

#[cutile::module]
mod kernels {
    use cutile::core::*;

    /// Twice each number.
    #[cutile::entry()]
    fn twice<const S: [i32; 2]>(z: &mut Tensor<f32, S>, x: &Tensor<f32, { [-1, -1] }>) {
        let tile = load_tile_like(x, z);
        z.store(tile + tile);
    }
}

/// A batch of the loader's that cutile reads.
struct Lent {
    batch: Adrift<f32>,
    context: Arc<Context>,
}

// SAFETY: the loan keeps the memory, at its address and of that size, on the context's device, until it is dropped.
unsafe impl DeviceAllocation for Lent {
    fn device_ptr(&self) -> u64 {
        self.batch.address()
    }

    fn len_bytes(&self) -> usize {
        self.batch.size_bytes()
    }

    fn context(&self) -> Arc<Context> {
        Arc::clone(&self.context)
    }
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), BoxError> {
    let device = pinfeed::Device::cuda(0)?;
    let stream = device.stream()?;
    let context = cuda_core::Device::new(0)?.primary_context()?; // the context is the same: the GPU's primary one
    let theirs = context.new_stream()?;
    device.sweep_with_batches(true); // batches that cutile let go of are free behind all of its streams

    let samples = from_fn(SAMPLES, |index, _| Ok([index as f32; COLUMNS]));
    let loader = DataLoader::builder(samples)
        .batch_size(ROWS)
        .shuffle(true)
        .num_workers(2)
        .pin_memory(&device)
        .build()?;
    let mut sum = 0.0;
    for batch in loader.epoch(0).prefetch_to_device(&device, 2) {
        let loan = batch?.lend(&stream)?;
        stream.synchronize()?; // the copy is done, so streams of cutile's need not wait for it
        let owner = Lent {
            batch: loan.end_everywhere(),
            context: Arc::clone(&context),
        };
        let (shape, strides) = (
            [ROWS, COLUMNS].map(|length| length as i32),
            [COLUMNS as i32, 1],
        );
        // SAFETY: nothing writes a batch that was lent, and nothing else has it; numbers may have any bits.
        let x = unsafe {
            Tensor::<f32>::from_foreign(Arc::new(owner), shape.to_vec(), strides.to_vec())
        };
        let z = api::zeros::<f32>(&[ROWS, COLUMNS]).partition([16, 16]);
        let (z, _x) = kernels::twice(z, Arc::new(x)).sync_on(&theirs)?;
        let z = z.unpartition().to_host_vec().sync_on(&theirs)?;
        sum += z.iter().map(|number| f64::from(*number)).sum::<f64>();
    }
    let expected = (SAMPLES * (SAMPLES - 1)) as f64 * COLUMNS as f64; // twice the sum of all indices
    if sum != expected {
        return Err(format!("the sum is {sum}, and should be {expected}").into());
    }
    println!("{SAMPLES} samples, and each was doubled");
    Ok(())
}
