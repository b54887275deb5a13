//! cudarc, 2: predictions are saved while the next batch computes. It wants a GPU, and NVRTC (see `cudarc_01_kernel`).
//!
//!     cargo run --release --example cudarc_02_predictions -- predictions.csv
//!
//! A download is enqueued behind the kernel that makes the predictions, into page-locked memory, and the host goes on to launch the next
//! batch's kernel. Only then it waits for the download, and writes the file. So copies up, kernels, copies down and the disk run side by
//! side:
//!
//! ```text
//! copies up    1 2 3 4 5
//! kernels        1 2 3 4 5
//! copies down      1 2 3 4 5
//! the file           1 2 3 4 5
//! ```

#![allow(unsafe_code)] // it launches a kernel

use std::fs::File;
use std::io::{BufWriter, Write};
use std::process::ExitCode;

use cudarc::driver::{CudaContext, LaunchConfig, PushKernelArg};
use cudarc::nvrtc;
use pinfeed::device::Download;
use pinfeed::loader::BatchInfo;
use pinfeed::{BoxError, DataLoader, Device, interop};

/// A model: the mean of a row's squares, and their sum.
const KERNEL: &str = r#"
extern "C" __global__ void predict(const float *x, float *predictions, unsigned rows, unsigned columns)
{
    unsigned row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows)
        return;
    float sum = 0.0f;
    for (unsigned column = 0; column < columns; ++column)
        sum += x[row * columns + column] * x[row * columns + column];
    predictions[2 * row] = sum / columns;
    predictions[2 * row + 1] = sum;
}
"#;

const COLUMNS: usize = 512;
const SAMPLES: u64 = 20_000;

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
    let mut arguments = std::env::args().skip(1);
    let (Some(path), None) = (arguments.next(), arguments.next()) else {
        return Err(
            "usage: cargo run --release --example cudarc_02_predictions -- FILE.csv".into(),
        );
    };
    drop(Device::cuda(0)?); // it says in plain words if there is no driver, or no GPU; cudarc panics without a driver
    // SAFETY: it looks for the library, and calls nothing of it.
    if !unsafe { nvrtc::sys::is_culib_present() } {
        return Err(
            "NVRTC is not found, which compiles the kernel: see the example cudarc_01_kernel"
                .into(),
        );
    }

    let context = CudaContext::new(0)?;
    let device = interop::cudarc::device(&context)?;
    let compute = context.new_stream()?;
    let stream = interop::cudarc::stream(&device, &compute)?;
    let kernel = context
        .load_module(nvrtc::compile_ptx(KERNEL)?)?
        .load_function("predict")?;

    let samples = pinfeed::from_fn(SAMPLES, |index, _| Ok(vec![(index % 100) as f32; COLUMNS]));
    let loader = DataLoader::builder(samples)
        .batch_size(256)
        .num_workers(2)
        .pin_memory(&device)
        .build()?;

    let mut file = BufWriter::new(File::create(&path).map_err(|error| format!("{path}: {error}"))?);
    writeln!(file, "sample,mean,sum")?;
    let mut before: Option<(Download<f32>, BatchInfo)> = None;
    for batch in loader.epoch(0).prefetch_to_device(&device, 2).with_info() {
        let (x, info) = batch?;
        let (rows, columns) = (info.rows() as u32, COLUMNS as u32);
        let mut predictions = compute.alloc_zeros::<f32>(2 * info.rows())?;
        let loan = x.on(&stream)?;
        let address = loan.address();
        let mut launch = compute.launch_builder(&kernel);
        launch
            .arg(&address)
            .arg(&mut predictions)
            .arg(&rows)
            .arg(&columns);
        // SAFETY: the kernel reads as many rows and columns as the batch has, writes two numbers for each row, and is on the loan's stream.
        unsafe { launch.launch(LaunchConfig::for_num_elems(rows)) }?;
        drop(loan); // behind the kernel

        // Behind the kernel, too. The predictions' memory may be dropped at once: cudarc frees it in the order of its stream, which waits.
        let shape = [info.rows(), 2];
        let download = interop::cudarc::to_host(&device, &predictions, &shape, true)?;
        // This batch computes while the one before is written.
        if let Some(before) = before.replace((download, info)) {
            save(before, &mut file)?;
        }
    }
    if let Some(last) = before {
        save(last, &mut file)?;
    }
    file.flush()?;

    let lines = std::fs::read_to_string(&path)?.lines().count();
    println!("{} predictions in {path}\n\n{}", lines - 1, loader.stats());
    if lines as u64 != SAMPLES + 1 {
        return Err(format!("{path} has {lines} lines, and not {}", SAMPLES + 1).into());
    }
    Ok(())
}

/// Waits for the predictions of one batch, and writes them.
fn save(
    (download, info): (Download<f32>, BatchInfo),
    file: &mut impl Write,
) -> Result<(), BoxError> {
    let predictions = download.wait()?;
    let pairs = predictions.as_slice().chunks_exact(2);
    for (index, pair) in info.indices().into_iter().zip(pairs) {
        let expected = ((index % 100) * (index % 100)) as f32;
        if pair[0] != expected {
            return Err(format!("sample {index}: {}, and not {expected}", pair[0]).into());
        }
        writeln!(file, "{index},{},{}", pair[0], pair[1])?;
    }
    Ok(())
}
