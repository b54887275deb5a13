//! Pictures of many sizes, each in a batch of pictures of its own size: nothing is cropped, resized or padded.

use std::collections::HashSet;
use std::error::Error;

use pinfeed::sampler::GroupedBatchSampler;
use pinfeed::{DataLoader, Device, Tensor, from_fn};

const PICTURES: u64 = 200;

/// Height and width: portrait, landscape or square.
fn size(index: u64) -> (usize, usize) {
    [(6, 4), (4, 6), (5, 5)][(index % 7 % 3) as usize]
}

pub fn main() -> Result<(), Box<dyn Error>> {
    let device = Device::cpu();
    let pictures = from_fn(PICTURES, |index, _| {
        let (height, width) = size(index);
        let pixels = vec![index as u8; height * width * 3];
        Ok((Tensor::from_vec(pixels, &[height, width, 3])?, index as i64))
    });
    let loader = DataLoader::builder(pictures)
        .batch_sampler(GroupedBatchSampler::new((0..PICTURES).map(size), 16, 17)?)
        .num_workers(2)
        .pin_memory(&device)
        .build()?;

    let mut orders = HashSet::new();
    for epoch in loader.epochs(0..2).prefetch_to_device(&device, 1) {
        let (mut shapes, mut seen) = (HashSet::new(), Vec::new());
        for batch in epoch {
            let (pictures, numbers) = batch?;
            assert!(pictures.shape()[0] <= 16);
            shapes.insert(pictures.shape()[1..].to_vec());
            seen.extend(numbers.to_host(false)?.wait()?.to_vec());
        }
        println!("sizes: {shapes:?}");
        assert_eq!(shapes.len(), 3);
        orders.insert(seen.clone());
        seen.sort();
        assert!(seen.into_iter().eq(0..PICTURES as i64));
    }
    assert_eq!(orders.len(), 2, "each epoch has its own order");
    Ok(())
}
