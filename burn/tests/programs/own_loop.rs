//! A loop without a `Learner`: it is interrupted in the middle of an epoch, and goes on with the batches that are left.

use std::error::Error;

use burn::module::Module;
use burn::nn::loss::{MseLoss, Reduction};
use burn::nn::{Linear, LinearConfig};
use burn::optim::{GradientsParams, SgdConfig};
use burn::tensor::Device;
use pinfeed::loader::LoaderState;
use pinfeed::{DataLoader, from_fn};
use pinfeed_burn::IntoBurn;

#[derive(Module, Debug)]
struct Line {
    linear: Linear,
}

pub fn main() -> Result<(), Box<dyn Error>> {
    let device = Device::flex().autodiff();
    let ours = pinfeed::Device::cpu(); // beside burn's cuda(0): pinfeed::Device::cuda(0)?
    let samples = from_fn(1_000, |_, rng| {
        let x = [rng.f32(), rng.f32()];
        Ok((x, [3.0 * x[0] - 2.0 * x[1] + 0.5]))
    });
    let loader = DataLoader::builder(samples)
        .batch_size(50)
        .shuffle(true)
        .seed(3)
        .num_workers(2)
        .pin_memory(&ours)
        .strict_pinning(true)
        .build()?;

    device.seed(3);
    let mut line = Line {
        linear: LinearConfig::new(2, 1).init(&device),
    };
    let mut optimizer = SgdConfig::new().init();
    let (mut state, mut batches) = (LoaderState::default(), 0);
    for interrupted_after in [Some(27), None] {
        'run: for epoch in loader.resume(0..20, &state)? {
            for batch in epoch {
                let (x, y) = batch?;
                let x = x.into_burn::<2>(&device)?;
                let y = y.into_burn::<2>(&device)?;
                device.flush()?; // small batches: otherwise burn's GPU backends would hold up to 128 tensors
                let loss = MseLoss::new().forward(line.linear.forward(x), y, Reduction::Mean);
                let grads = GradientsParams::from_grads(loss.backward(), &line);
                line = optimizer.step(0.2, line, grads);
                batches += 1;
                if Some(batches) == interrupted_after {
                    state = loader.state(); // in the second epoch
                    break 'run;
                }
            }
        }
    }
    assert_eq!(batches, 20 * 20); // each batch once, in spite of the interruption

    let weights = line.linear.weight.val().into_data().try_to_vec::<f32>()?;
    println!("weights {weights:?}, and not [3.0, -2.0]");
    assert!((weights[0] - 3.0).abs() < 0.05 && (weights[1] + 2.0).abs() < 0.05);
    Ok(())
}
