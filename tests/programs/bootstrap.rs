//! How sure is a mean? Each epoch is a bootstrap: as many samples as there are, drawn with replacement.

use std::error::Error;

use pinfeed::DataLoader;
use pinfeed::sampler::RandomSampler;

pub fn main() -> Result<(), Box<dyn Error>> {
    let measured: Vec<f32> = (0..200).map(|n| ((n * 37 % 200) as f32) / 100.0).collect();
    let mean = measured.iter().sum::<f32>() / 200.0;
    let loader = DataLoader::builder(measured)
        .batch_size(200)
        .sampler(RandomSampler::with_seed(200, 5).with_replacement())
        .build()?;

    let mut means = Vec::new();
    for epoch in loader.epochs(0..500) {
        for batch in epoch {
            means.push(batch?.as_slice().iter().sum::<f32>() / 200.0);
        }
    }
    means.sort_by(f32::total_cmp);
    let (low, high) = (means[12], means[487]);
    println!("the mean is {mean:.3}, and between {low:.3} and {high:.3} with 95 % confidence");
    // Uniform from 0 to 2: a standard deviation of 0.577, and of 0.041 for the mean.
    assert!(low < mean && mean < high && (0.12..0.20).contains(&(high - low)));
    Ok(())
}
