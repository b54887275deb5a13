//! cudarc, 1: a kernel of the program's own computes on each batch, where it lies on the device. It wants a GPU, and NVRTC, which compiles
//! the kernel (`apt install cuda-nvrtc-13-0`, or `pip install nvidia-cuda-nvrtc`, with its folder in LD_LIBRARY_PATH).
//!
//!     cargo run --release --example cudarc_01_kernel
//!
//! Batches are copied two ahead, on the loader's stream; the program's stream waits for a copy only where it uses the batch, and the host
//! waits for nothing. A loan that ends records an event behind the kernel, so the batch's memory is used again after that.

#![allow(unsafe_code)] // it launches a kernel

use std::process::ExitCode;

use cudarc::driver::{CudaContext, LaunchConfig, PushKernelArg};
use cudarc::nvrtc;
use pinfeed::{BoxError, DataLoader, Device, interop};

/// Each row's greatest value, summed up by classes.
const KERNEL: &str = r#"
extern "C" __global__ void sum_of_greatest(const float *x, const long long *classes, float *sums, unsigned rows, unsigned columns)
{
    unsigned row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows)
        return;
    float greatest = x[row * columns];
    for (unsigned column = 1; column < columns; ++column)
        greatest = fmaxf(greatest, x[row * columns + column]);
    atomicAdd(&sums[classes[row]], greatest);
}
"#;

const CLASSES: usize = 4;
const COLUMNS: usize = 256;
const SAMPLES: u64 = 50_000;

/// A sample follows from its index: no file is needed, and the sums are known.
fn sample(index: u64) -> (Vec<f32>, i64) {
    let peak = (index * 37 % COLUMNS as u64) as usize;
    let mut x = vec![0.0; COLUMNS];
    x[peak] = (index % 100) as f32;
    (x, (index % CLASSES as u64) as i64)
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
    drop(Device::cuda(0)?); // it says in plain words if there is no driver, or no GPU; cudarc panics without a driver
    // SAFETY: it looks for the library, and calls nothing of it.
    if !unsafe { nvrtc::sys::is_culib_present() } {
        return Err(
            "NVRTC is not found, which compiles the kernel: `apt install cuda-nvrtc-13-0`, or `pip install nvidia-cuda-nvrtc` with its folder in \
             LD_LIBRARY_PATH"
                .into(),
        );
    }

    // The program's own context and stream; the loader uses the same.
    let context = CudaContext::new(0)?;
    let device = interop::cudarc::device(&context)?;
    let compute = context.new_stream()?;
    let stream = interop::cudarc::stream(&device, &compute)?;
    let kernel = context
        .load_module(nvrtc::compile_ptx(KERNEL)?)?
        .load_function("sum_of_greatest")?;

    let samples = pinfeed::from_fn(SAMPLES, |index, _| Ok(sample(index)));
    let loader = DataLoader::builder(samples)
        .batch_size(512)
        .shuffle(true)
        .num_workers(2)
        .pin_memory(&device)
        .build()?;

    for epoch in loader.epochs(0..3).prefetch_to_device(&device, 2) {
        let number = epoch.number();
        let mut sums = compute.alloc_zeros::<f32>(CLASSES)?;
        for batch in epoch {
            let (x, classes) = batch?;
            let (x, classes) = (x.on(&stream)?, classes.on(&stream)?); // `compute` waits for the copy; the host does not
            let (x_at, classes_at) = (x.address(), classes.address());
            let (rows, columns) = (classes.len() as u32, COLUMNS as u32);
            let mut launch = compute.launch_builder(&kernel);
            launch
                .arg(&x_at)
                .arg(&classes_at)
                .arg(&mut sums)
                .arg(&rows)
                .arg(&columns);
            // SAFETY: the kernel reads as many rows and columns as the batch has, writes to the classes that samples have, and is on the
            // loans' stream.
            unsafe { launch.launch(LaunchConfig::for_num_elems(rows)) }?;
        } // the loans end here, behind the kernel
        let sums = compute.clone_dtoh(&sums)?;
        compute.synchronize()?;
        println!("epoch {number}: sums by class {sums:?}");
        let mut expected = [0.0; CLASSES];
        for index in 0..SAMPLES {
            expected[(index % CLASSES as u64) as usize] += (index % 100) as f64;
        }
        for (sum, expected) in sums.iter().zip(expected) {
            if (f64::from(*sum) - expected).abs() > 1e-3 * expected {
                return Err(format!("a sum is {sum}, and should be {expected}").into());
            }
        }
    }
    println!("\n{}", loader.stats());
    Ok(())
}
