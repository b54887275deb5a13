//! Orders of one's own, chosen when the program runs: classes as often as each other, and shards that are read one behind the other.

use std::error::Error;

use pinfeed::dataset::VecDataset;
use pinfeed::sampler::{RandomSampler, Sampler};
use pinfeed::rng::RngKey;
use pinfeed::{DataLoader, Dataset, Device, SampleRng, from_fn};

/// Each class comes up as often as the others, however many samples it has.
struct Balanced {
    seed: u64,
    len: u64,
    /// The samples of each class.
    classes: Vec<Vec<u64>>,
}

impl Sampler for Balanced {
    fn len(&self) -> u64 {
        self.len
    }

    fn index(&self, epoch: u64, position: u64) -> u64 {
        let mut rng = SampleRng::for_sampler(RngKey { seed: self.seed, epoch, position });
        let class = &self.classes[rng.range(0..self.classes.len())];
        class[rng.range(0..class.len())]
    }
}

/// The shards in random order, the samples of each in their own.
struct Shards {
    order: RandomSampler,
    samples: u64,
}

impl Sampler for Shards {
    fn len(&self) -> u64 {
        self.order.len() * self.samples
    }

    fn index(&self, epoch: u64, position: u64) -> u64 {
        self.order.index(epoch, position / self.samples) * self.samples + position % self.samples
    }
}

/// 100 samples, of which the last ten are of class 1.
fn samples(noisy: bool) -> Box<dyn Dataset<Sample = (f32, i64)>> {
    let class = |index: u64| i64::from(index >= 90);
    if noisy {
        return Box::new(from_fn(100, move |index, rng| {
            Ok((index as f32 + rng.range(-0.5..0.5), class(index)))
        }));
    }
    Box::new(VecDataset::new((0..100).map(|index| (index as f32, class(index))).collect()))
}

fn sampler(name: &str) -> Result<Box<dyn Sampler>, String> {
    Ok(match name {
        "balanced" => Box::new(Balanced {
            seed: 17,
            len: 400,
            classes: vec![(0..90).collect(), (90..100).collect()],
        }),
        "shards" => Box::new(Shards { order: RandomSampler::with_seed(5, 17), samples: 20 }),
        other => return Err(format!("there is no sampler {other:?}")),
    })
}

pub fn main() -> Result<(), Box<dyn Error>> {
    let device = Device::cpu();
    for (name, noisy) in [("balanced", true), ("balanced", false), ("shards", false)] {
        let mut runs = Vec::new();
        for workers in [0, 3] {
            let loader = DataLoader::builder(samples(noisy))
                .batch_size(10)
                .seed(17) // of the samples' own draws
                .sampler(sampler(name)?)
                .num_workers(workers)
                .pin_memory(&device)
                .build()?;
            let mut run = Vec::new();
            for epoch in loader.epochs(0..2) {
                let (mut ones, mut all) = (0, 0);
                for batch in epoch {
                    let (x, y) = batch?;
                    ones += y.as_slice().iter().sum::<i64>();
                    all += y.len();
                    if name == "shards" {
                        assert!(x.as_slice().windows(2).all(|pair| pair[1] == pair[0] + 1.0));
                    }
                    run.extend(x.to_vec());
                }
                let share = ones as f64 / all as f64;
                let expected = if name == "balanced" { 0.5 } else { 0.1 };
                assert!((share - expected).abs() < 0.1, "{name}: {share}");
            }
            runs.push(run);
        }
        assert_eq!(runs[0], runs[1]); // whatever the number of workers
    }
    assert!(sampler("mixed").is_err());
    Ok(())
}
