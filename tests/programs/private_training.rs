//! Training with differential privacy: each sample is drawn for each step by itself, with a probability of 4 %, so a batch may have any number of
//! samples, or none. A step without samples is one of noise alone, and counts as any. On two ranks, stopped in the middle, and resumed.

use std::error::Error;

use pinfeed::loader::{LoaderState, OnEmpty, World};
use pinfeed::sampler::{BatchSampler, Batches};
use pinfeed::rng::RngKey;
use pinfeed::{DataLoader, Device, SampleRng, Tensor, from_fn};

const SAMPLES: u64 = 60;
const STEPS: usize = 50;

/// Opacus' `UniformWithReplacementSampler`.
struct Poisson {
    samples: u64,
    probability: f64,
    steps: usize,
    seed: u64,
}

impl BatchSampler for Poisson {
    fn batches(&self, epoch: u64) -> Batches {
        let mut rng = SampleRng::for_sampler(RngKey { seed: self.seed, epoch, position: 0 });
        let mut batches = Batches::new();
        for _ in 0..self.steps {
            batches.push((0..self.samples).filter(|_| rng.bool(self.probability)));
        }
        batches
    }
}

type Pair = (Tensor<f32>, Tensor<i64>);

fn loader(world: World, device: &Device) -> pinfeed::Result<DataLoader<Pair>> {
    let samples = from_fn(SAMPLES, |index, _| Ok(([index as f32 / 60.0; 3], (index % 2) as i64)));
    DataLoader::builder(samples)
        .batch_sampler(Poisson { samples: SAMPLES, probability: 0.04, steps: STEPS, seed: 7 })
        .on_empty(OnEmpty::Keep)
        .num_workers(2)
        .pin_memory(device)
        .world(world)
        .build()
}

/// Adds the gradients of a batch's samples, each clipped to a norm of 1, and noise; the expected batch size divides, and not the batch's.
fn step(weights: &mut [f32; 3], x: &Tensor<f32>, y: &Tensor<i64>, rng: &mut SampleRng) {
    let mut sum = [0.0f32; 3];
    for (x, y) in x.as_slice().chunks_exact(3).zip(y.as_slice()) {
        let error = x.iter().zip(&*weights).map(|(x, w)| x * w).sum::<f32>() - *y as f32;
        let norm = x.iter().map(|x| (error * x).powi(2)).sum::<f32>().sqrt();
        sum.iter_mut().zip(x).for_each(|(sum, x)| *sum += error * x / norm.max(1.0));
    }
    let expected = 0.04 * SAMPLES as f32;
    weights.iter_mut().zip(sum).for_each(|(w, sum)| *w -= 0.1 * (sum + 0.1 * (rng.f32() - 0.5)) / expected);
}

pub fn main() -> Result<(), Box<dyn Error>> {
    let device = Device::cpu();
    let (mut weights, mut rng) = ([0.0; 3], SampleRng::for_sample(RngKey { seed: 7, epoch: 0, position: 0 }));
    let (mut sizes, mut state) = (Vec::new(), LoaderState::default());
    for run in [STEPS / 2, STEPS] {
        let loader = loader(World::single(), &device)?;
        assert_eq!(loader.len(), STEPS);
        for epoch in loader.resume(0..1, &state)? {
            for batch in epoch.take(run) {
                let (x, y) = batch?;
                assert_eq!(x.shape()[..], [y.len(), 3]); // [0, 3] of none
                sizes.push(y.len());
                step(&mut weights, &x, &y, &mut rng);
            }
        }
        state = loader.state().to_string().parse()?;
    }
    assert_eq!((sizes.len(), state.epoch()), (STEPS, 1));
    let without = sizes.iter().filter(|size| **size == 0).count();
    println!("{without} of {STEPS} steps had no samples; weights: {weights:?}");
    assert!(without > 0 && sizes.iter().any(|size| *size > 1));
    assert!(weights.iter().all(|weight| weight.is_finite()));

    // Two ranks take as many steps each, on their devices, and share the samples.
    let mut of_ranks = Vec::new();
    for rank in 0..2 {
        let loader = loader(World::new(rank, 2)?, &device)?;
        let mut of_rank = Vec::new();
        for batch in loader.epoch(0).prefetch_to_device(&device, 2) {
            let (x, y) = batch?;
            assert_eq!(x.shape()[..], [y.len(), 3]);
            of_rank.push(y.to_host(false)?.wait()?.len());
        }
        of_ranks.push(of_rank);
    }
    let [first, second] = &of_ranks[..] else { unreachable!("there are two") };
    let both: Vec<usize> = first.iter().zip(second).flat_map(|(a, b)| [*a, *b]).collect();
    assert_eq!(both, sizes);
    Ok(())
}
