//! tch: batches become PyTorch's tensors, and a model learns the weights that the samples were made with. It wants libtorch: of Python's
//! torch with LIBTORCH_USE_PYTORCH=1, for example.
//!
//!     cargo run --release --manifest-path frameworks/Cargo.toml --features tch --example tch             on the CPU
//!     cargo run --release --manifest-path frameworks/Cargo.toml --features tch --example tch -- cuda     on the first GPU
//!
//! On a GPU, PyTorch's allocator owns what the model reads: a batch is copied into a tensor of its own on PyTorch's stream, where it lies. The host
//! waits for nothing, and the batch's memory is used again behind that copy.

use std::process::ExitCode;

use pinfeed::device::Stream;
use pinfeed::{BoxError, DataLoader, Device, DeviceTensor, from_fn, interop};
use tch::nn::{Module, OptimizerConfig};
use tch::{Kind, Tensor, nn};

const FEATURES: usize = 16;
const SAMPLES: u64 = 20_000;

/// A sample follows from its index: its target is the sum of its numbers, each times its place.
fn sample(index: u64, numbers: &mut [f32]) -> f32 {
    for (place, number) in numbers.iter_mut().enumerate() {
        *number = ((index * 31 + place as u64 * 17) % 101) as f32 / 50.0 - 1.0;
    }
    let weighted = numbers.iter().zip(0u16..);
    weighted
        .map(|(number, place)| number * f32::from(place))
        .sum()
}

/// A batch as a tensor of PyTorch's, which its allocator owns.
fn on_device(
    batch: &DeviceTensor<f32>,
    ordinal: usize,
    stream: &Stream,
) -> Result<Tensor, BoxError> {
    let shape: Vec<i64> = batch.shape().iter().map(|length| *length as i64).collect();
    let own = Tensor::empty(shape, (Kind::Float, tch::Device::Cuda(ordinal)));
    // SAFETY: it has as many bytes, nothing else has it, and it is free in the order of the stream, which is PyTorch's current one.
    unsafe { interop::raw::copy_to(batch, own.data_ptr() as u64, stream) }?;
    Ok(own)
}

fn main() -> ExitCode {
    let answer = match std::env::args().nth(1).as_deref() {
        None => run(None),
        Some("cuda") => run(Some(0)),
        Some(other) => {
            Err(format!("there is no device {other:?}: leave it out, or say cuda").into())
        }
    };
    match answer {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(gpu: Option<usize>) -> Result<(), BoxError> {
    let samples = from_fn(SAMPLES, |index, _| {
        let mut numbers = [0.0; FEATURES];
        let target = sample(index, &mut numbers);
        Ok((numbers, target))
    });
    let builder = DataLoader::builder(samples)
        .batch_size(250)
        .shuffle(true)
        .seed(17)
        .num_workers(2);

    let variables = nn::VarStore::new(gpu.map_or(tch::Device::Cpu, tch::Device::Cuda));
    let model = nn::linear(
        variables.root(),
        FEATURES as i64,
        1,
        nn::LinearConfig::default(),
    );
    let mut optimizer = nn::Sgd::default().build(&variables, 0.1)?;
    let mut last = f64::INFINITY;
    let mut step = |x: &Tensor, target: &Tensor| {
        let loss = (model.forward(x).squeeze_dim(1) - target)
            .square()
            .mean(Kind::Float);
        optimizer.backward_step(&loss);
        loss
    };

    match gpu {
        None => {
            let loader = builder.build()?;
            for epoch in loader.epochs(0..5) {
                for batch in epoch {
                    let (x, target) = batch?;
                    let rows = target.len() as i64;
                    let x = Tensor::from_slice(x.as_slice()).reshape([rows, FEATURES as i64]);
                    last = step(&x, &Tensor::from_slice(target.as_slice())).double_value(&[]);
                }
                println!("loss {last:.6}");
            }
        }
        Some(ordinal) => {
            let device = Device::cuda(ordinal)?; // PyTorch's context is the same: the GPU's primary one
            // SAFETY: PyTorch's current stream is the legacy default stream unless the program sets another one, and is there as long as
            // the context.
            let stream = unsafe { interop::raw::stream_from_handle(&device, std::ptr::null_mut()) };
            let loader = builder.pin_memory(&device).build()?;
            for epoch in loader.epochs(0..5).prefetch_to_device(&device, 2) {
                let mut loss = None;
                for batch in epoch {
                    let (x, target) = batch?;
                    let (x, target) = (
                        on_device(&x, ordinal, &stream)?,
                        on_device(&target, ordinal, &stream)?,
                    );
                    loss = Some(step(&x, &target));
                }
                last = loss.map_or(last, |loss| loss.double_value(&[])); // here the host waits
                println!("loss {last:.6}");
            }
        }
    }
    if last.is_nan() || last > 1e-3 {
        return Err(format!("the model has not learned: its loss is {last}").into());
    }
    Ok(())
}
