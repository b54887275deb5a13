//! Conversion of tensors to candle's.

use candle_core::Device as CandleDevice;
use pinfeed::{Batch, Device, Tensor};

#[test]
fn tensors_become_candles_with_shape_and_elements() {
    let tensor = Tensor::from_vec((0..6u32).collect(), &[2, 3]).unwrap();
    let candle = tensor.to_candle(&CandleDevice::Cpu).unwrap();
    assert_eq!(candle.to_vec2::<u32>().unwrap(), [[0, 1, 2], [3, 4, 5]]);

    let there = tensor.to_device(&Device::cpu(), true).unwrap();
    let candle = there.to_candle(&CandleDevice::Cpu).unwrap();
    assert_eq!(candle.to_vec2::<u32>().unwrap(), [[0, 1, 2], [3, 4, 5]]);
}
