//! Half-supervised learning: all samples have features, one in ten has a label, and some of these a mask besides.

use std::error::Error;

use pinfeed::{DataLoader, Device, Sample, Tensor, from_fn};

#[derive(Sample)]
struct Example {
    features: [f32; 16],
    label: Option<i64>,
    /// An array, whose type tells its shape: there may be none in a batch.
    mask: Option<[[u8; 4]; 4]>,
}

pub fn main() -> Result<(), Box<dyn Error>> {
    let examples = from_fn(1_000, |index, rng| {
        let is_labelled = index % 10 == 0;
        Ok(Example {
            features: [rng.f32(); 16],
            label: is_labelled.then_some((index % 3) as i64),
            mask: (index % 100 == 0).then_some([[1; 4]; 4]),
        })
    });
    let device = Device::cpu();
    let loader = DataLoader::builder(examples)
        .batch_size(50)
        .shuffle(true)
        .num_workers(2)
        .pin_memory(&device)
        .build()?;
    for epoch in loader.epochs(0..2).prefetch_to_device(&device, 2) {
        let (mut labelled, mut masked) = (0, 0);
        for batch in epoch {
            let ExampleDeviceBatch { features, label: (labels, has_label), mask: (masks, has_mask) } = batch?;
            assert_eq!(features.shape()[..], [50, 16]);
            assert_eq!(masks.shape()[..], [50, 4, 4]);
            // The loss of each row, times what says whether it has one.
            let (labels, has_label) = (labels.to_host(true)?.wait()?, has_label.to_host(true)?.wait()?);
            let losses: Tensor<f32> = vec![1.0; labels.len()].into();
            let loss: f32 = losses.as_slice().iter().zip(has_label.as_slice()).map(|(loss, has)| loss * f32::from(*has)).sum();
            labelled += loss as u64;
            let has_mask = has_mask.to_host(true)?.wait()?;
            masked += has_mask.as_slice().iter().map(|has| u64::from(*has)).sum::<u64>();
        }
        println!("{labelled} labels and {masked} masks");
        assert_eq!((labelled, masked), (100, 10));
    }
    Ok(())
}
