//! Data sets of both libraries together: items of burn's, augmented and shuffled by pinfeed; and a data set of pinfeed's in burn's own
//! loader.

use std::error::Error;

use burn::data::dataloader::DataLoaderBuilder;
use burn::data::dataloader::batcher::Batcher;
use burn::data::dataset::InMemDataset;
use burn::data::dataset::transform::PartialDataset;
use burn::tensor::{Device, Tensor, TensorData};
use pinfeed::{DataLoader, Dataset};
use pinfeed_burn::{FromBurn, IntoBurn, ToBurn};

#[derive(Clone, Debug)]
struct Reading {
    sensor: i64,
    values: Vec<f32>,
}

#[derive(Clone)]
struct Stack;

impl Batcher<Vec<f32>, Tensor<2>> for Stack {
    fn batch(&self, rows: Vec<Vec<f32>>, device: &Device) -> Tensor<2> {
        let shape = [rows.len(), rows[0].len()];
        Tensor::from_data(TensorData::new(rows.concat(), shape), device)
    }
}

pub fn main() -> Result<(), Box<dyn Error>> {
    let device = Device::flex();
    let readings = (0..100).map(|at| Reading {
        sensor: at % 4,
        values: vec![at as f32; 8],
    });
    let readings = PartialDataset::new(InMemDataset::new(readings.collect()), 0, 80); // burn's, with its transforms

    let noisy = FromBurn::new(readings).map(|reading: Reading, rng| {
        let noise = rng.range(-0.1..0.1) as f32;
        Ok((reading.values.iter().map(|value| value + noise).collect::<Vec<_>>(), reading.sensor))
    });
    let loader = DataLoader::builder(noisy).batch_size(20).shuffle(true).num_workers(2).build()?;
    let mut seen = [0; 4];
    for batch in loader.epoch(0) {
        let (values, sensors) = batch?;
        sensors.as_slice().iter().for_each(|sensor| seen[*sensor as usize] += 1);
        let values = values.into_burn::<2>(&device)?;
        assert_eq!(values.dims(), [20, 8]);
    }
    assert_eq!(seen, [20; 4]);

    let ours = pinfeed::from_fn(30, |index, rng| Ok(vec![index as f32 + rng.f32(); 8]));
    let theirs = DataLoaderBuilder::new(Stack).batch_size(10).num_workers(2).build(ToBurn::new(ours));
    let mut sum = 0.0;
    for batch in theirs.iter() {
        sum += batch?.sum().into_scalar::<f32>();
    }
    assert!((8.0 * 435.0..8.0 * 465.0).contains(&sum)); // 0 + 1 + .. + 29, and noise
    Ok(())
}
