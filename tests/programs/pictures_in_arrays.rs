//! MNIST as it is published, compressed IDX files, and CIFAR-100's binary version: a step of each on its way to the device.

use std::error::Error;
use std::path::Path;

use pinfeed::ops::Normalize;
use pinfeed::{DataLoader, Dataset, Device, TensorDataset, arrays};

pub fn main() -> Result<(), Box<dyn Error>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/arrays");
    let device = Device::cpu();

    let images = arrays::idx(folder.join("images-idx3-ubyte.gz"))?.tensor::<u8>()?; // train-images-idx3-ubyte.gz
    let labels = arrays::idx(folder.join("labels-idx1-ubyte"))?.tensor::<u8>()?;
    // Digits between 0 and 1, in the order that a convolution takes: one channel.
    let digits = TensorDataset::new((images, labels))?.map(|(image, label), _| {
        let pixels: Vec<f32> = image.as_slice().iter().map(|byte| f32::from(*byte) / 255.0).collect();
        Ok((pinfeed::Tensor::from_vec(pixels, &[1, 28, 28])?, i64::from(label.as_slice()[0])))
    });
    let loader = DataLoader::builder(digits).batch_size(2).shuffle(true).num_workers(2).pin_memory(&device).build()?;
    let mut seen = Vec::new();
    for batch in loader.epoch(0).prefetch_to_device(&device, 2) {
        let (images, labels) = batch?;
        assert_eq!(images.shape()[..], [2, 1, 28, 28]);
        seen.extend(labels.to_host(true)?.wait()?.to_vec());
    }
    seen.sort_unstable();
    assert_eq!(seen, [0, 1, 2, 7]);

    let (images, _coarse, fine) = arrays::cifar100([folder.join("cifar-100.bin")])?; // train.bin
    let pictures = TensorDataset::new((images, fine))?;
    let loader = DataLoader::builder(pictures).batch_size(3).shuffle(true).pin_memory(&device).build()?;
    for batch in loader.epoch(0).prefetch_to_device(&device, 2) {
        let (images, labels) = batch?;
        assert_eq!((&images.shape()[..], labels.len()), (&[3, 32, 32, 3][..], 3));
        let images = images.normalize::<f32>(&Normalize::IMAGENET)?; // on the device
        assert_eq!(images.shape()[..], [3, 3, 32, 32]);
    }
    Ok(())
}
