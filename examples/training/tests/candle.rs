//! Conversion of tensors to candle's.

use candle_core::Device as CandleDevice;
use pinfeed::{Batch, DataLoader, Device, Tensor, from_fn};

#[test]
fn tensors_become_candles_with_shape_and_elements() {
    let tensor = Tensor::from_vec((0..6u32).collect(), &[2, 3]).unwrap();
    let candle = tensor.to_candle(&CandleDevice::Cpu).unwrap();
    assert_eq!(candle.to_vec2::<u32>().unwrap(), [[0, 1, 2], [3, 4, 5]]);

    let there = tensor.to_device(&Device::cpu(), true).unwrap();
    let candle = there.to_candle(&CandleDevice::Cpu).unwrap();
    assert_eq!(candle.to_vec2::<u32>().unwrap(), [[0, 1, 2], [3, 4, 5]]);
}

/// The README's block on candle, between what it leaves out.
#[test]
#[rustfmt::skip]
fn the_readmes_lines_train() -> Result<(), Box<dyn std::error::Error>> {
    let samples = from_fn(40, |index, _| Ok(([index as f32; 3], index as i64)));
    let loader = DataLoader::builder(samples).batch_size(10).build()?;
    let mut seen = 0;
    let mut train = |x: &candle_core::Tensor, y: &candle_core::Tensor| -> candle_core::Result<()> {
        assert_eq!((x.dims(), y.dims()), (&[10, 3][..], &[10][..]));
        seen += 1;
        Ok(())
    };

    let (device, candle) = (Device::cpu(), CandleDevice::Cpu);
    for batch in loader.epoch(0).prefetch_to_device(&device, 2) {
        let (x, y) = batch?;
        let (x, y) = (x.to_candle(&candle)?, y.to_candle(&candle)?); // candle's tensors: the loader's memory can be reused
        train(&x, &y)?;
    }
    assert_eq!(seen, 4);
    Ok(())
}

#[test]
fn the_readme_shows_these_lines() {
    let blocks = include_str!("../../../README.md").split("\n```rust\n");
    let block = blocks.skip(1).find(|block| block.contains("candle_core"));
    let block = block.unwrap().split("\n```\n").next().unwrap();
    let mut program = include_str!("candle.rs").lines().map(str::trim);
    for line in block.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let is_there = program.any(|other| other == line);
        assert!(is_there, "not in candle.rs, or not there: {line}");
    }
}
