//! ndarray, with the feature of that name: matrices as samples, a batch that is changed in place, and results as an array.

use std::error::Error;

use ndarray::{Array1, Array2, Axis, Ix2, Ix3, s};
use pinfeed::{DataLoader, Dataset, Tensor, from_fn};

pub fn main() -> Result<(), Box<dyn Error>> {
    // Spectrograms, of which each sample is a window: columns of a larger matrix, which do not lie one behind the other.
    let recording = Array2::from_shape_fn((8, 400), |(band, time)| (band * 1_000 + time + 1) as f32);
    let windows = from_fn(40, move |index, _| {
        let begin = 10 * index as usize;
        Ok(recording.slice(s![.., begin..begin + 10]).as_standard_layout().into_owned())
    });
    let samples = windows.map(|window, rng| {
        let mut window = window;
        window.row_mut(rng.range(0..8)).fill(0.0); // SpecAugment's
        Ok(Tensor::from_array(window)?) // no copy
    });
    let loader = DataLoader::builder(samples).batch_size(8).num_workers(2).build()?;

    let mut means = Vec::new();
    for batch in loader.epoch(0) {
        let mut batch = batch?;
        let view = batch.array_view::<Ix3>()?;
        let masked = view.map_axis(Axis(2), |band| u32::from(band.iter().all(|x| *x == 0.0)));
        assert!(masked.sum_axis(Axis(1)).iter().all(|count| *count == 1));
        // Centred in place: the batch's own memory.
        let mut array = batch.array_view_mut::<Ix3>()?;
        let mean = array.mean().ok_or("there are elements")?;
        array -= mean;
        means.push(mean);
        assert!(batch.array_view::<Ix3>()?.sum().abs() < 10.0);
    }
    let means = Array1::from(means);
    assert!((2_000.0..4_000.0).contains(&means.mean().ok_or("there are batches")?));

    let table = Tensor::from_vec(vec![1.0f64, 2.0, 3.0, 4.0, 5.0, 6.0], &[3, 2])?;
    let product = table.array_view::<Ix2>()?.t().dot(&table.array_view::<Ix2>()?);
    assert_eq!(product, ndarray::array![[35.0, 44.0], [44.0, 56.0]]);
    Ok(())
}
