//! Features that take long to compute, kept as tensors: the cache hands out views, and no copies.

use std::error::Error;
use std::sync::Arc;

use pinfeed::{BoxError, DataLoader, Dataset, Device, Tensor, from_fn};

/// The spectrum of a tone: a discrete Fourier transform, the slow way.
fn spectrum(tone: u64) -> Result<Tensor<f32>, BoxError> {
    let signal = |time: usize| (time as f32 * tone as f32 * std::f32::consts::TAU / 64.0).sin();
    let power = (0..32).map(|bin| {
        let (mut re, mut im) = (0.0, 0.0);
        for time in 0..64 {
            let angle = (time * bin) as f32 * std::f32::consts::TAU / 64.0;
            re += signal(time) * angle.cos();
            im += signal(time) * angle.sin();
        }
        re.hypot(im)
    });
    Ok(Tensor::from_vec(power.collect(), &[32])?)
}

pub fn main() -> Result<(), Box<dyn Error>> {
    let spectra = from_fn(30, |index, _| Ok((spectrum(1 + index % 30)?, index as i64)));
    let cached = Arc::new(spectra.cached(1 << 20));
    let device = Device::cpu();
    let loader = DataLoader::builder(Arc::clone(&cached))
        .batch_size(10)
        .shuffle(true)
        .num_workers(2)
        .pin_memory(&device)
        .build()?;
    for epoch in 0..4 {
        for batch in loader.epoch(epoch) {
            let (spectra, tones) = batch?;
            for (row, tone) in tones.as_slice().iter().enumerate() {
                let row = spectra.row(row);
                let loudest = (0..32).max_by(|one, other| row.as_slice()[*one].total_cmp(&row.as_slice()[*other]));
                assert_eq!(loudest, Some(1 + *tone as usize));
            }
        }
    }
    let stats = cached.stats();
    println!("{} spectra in {} bytes: {} computed, {} reused", stats.samples, stats.bytes, stats.misses, stats.hits);
    assert_eq!((stats.samples, stats.misses, stats.hits), (30, 30, 90));
    Ok(())
}
