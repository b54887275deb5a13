//! Pictures are normalised on the device: the same numbers on every backend, and behind whatever wrote the bytes.

use std::time::Duration;

use half::{bf16, f16};
use pinfeed::ops::Normalize;
use pinfeed::tensor::Float;
use pinfeed::{Batch, DataLoader, DeviceTensor, Error, Tensor, TensorDataset};

use crate::Test;
use crate::backend::Backend;

pub const TESTS: &[Test] = &[
    (
        "pictures_are_normalized_to_any_type_and_order",
        pictures_are_normalized_to_any_type_and_order,
    ),
    (
        "normalizing_is_behind_the_last_write",
        normalizing_is_behind_the_last_write,
    ),
    (
        "batches_of_a_loader_are_normalized",
        batches_of_a_loader_are_normalized,
    ),
    (
        "what_is_no_picture_is_not_normalized",
        what_is_no_picture_is_not_normalized,
    ),
];

const MEAN: [f32; 3] = [0.485, 0.456, 0.406];
const STD: [f32; 3] = [0.229, 0.224, 0.225];

fn byte(index: usize) -> u8 {
    (index * 37 + index / 251) as u8
}

/// What the documentation says: `x * scale + bias`, each rounded once.
fn expected(byte: u8, channel: usize) -> f32 {
    let (mean, std) = (f64::from(MEAN[channel]), f64::from(STD[channel]));
    let (scale, bias) = ((1.0 / (255.0 * std)) as f32, (-mean / std) as f32);
    let value = f32::from(byte) * scale + bias;
    let torchvision = (f64::from(byte) / 255.0 - mean) / std;
    assert!((f64::from(value) - torchvision).abs() < 1e-6, "{value}");
    value
}

/// The bytes of pictures, and what they become.
fn check<F: Float>(pictures: &DeviceTensor<F>, bytes: &[u8], channels_last: bool) {
    let there = pictures.to_host(true).unwrap().wait().unwrap();
    let shape: Vec<usize> = pictures.shape().to_vec();
    let pixels = match channels_last {
        true => shape[1] * shape[2],
        false => shape[2] * shape[3],
    };
    assert_eq!(there.len(), bytes.len());
    for (index, &byte) in bytes.iter().enumerate() {
        let (pixel, channel) = (index / 3, index % 3);
        let place = match channels_last {
            true => index,
            false => (pixel / pixels * 3 + channel) * pixels + pixel % pixels,
        };
        let value = F::from_f32(expected(byte, channel));
        assert_eq!(there.as_slice()[place], value, "byte {index} of {shape:?}");
    }
}

fn pictures_are_normalized_to_any_type_and_order(backend: &Backend) {
    fn check_type<F: Float>(backend: &Backend, shape: [usize; 4]) {
        let bytes: Vec<u8> = (0..shape.iter().product()).map(byte).collect();
        for channels_last in [false, true] {
            let there = Tensor::from_vec(bytes.clone(), &shape).unwrap();
            let there = there.to_device(&backend.device, true).unwrap();
            let normalize = Normalize::IMAGENET.with_channels_last(channels_last);
            let there: DeviceTensor<F> = there.normalize(&normalize).unwrap();
            let [images, height, width, _] = shape;
            let order = match channels_last {
                true => [images, height, width, 3],
                false => [images, 3, height, width],
            };
            assert_eq!(there.shape()[..], order);
            if images > 0 {
                check(&there, &bytes, channels_last);
            }
        }
    }
    // Whole quads of pixels, none, one row that is none, and many.
    for shape in [
        [2, 4, 5, 3],
        [3, 3, 3, 3],
        [1, 1, 1, 3],
        [0, 4, 4, 3],
        [5, 224, 224, 3],
    ] {
        check_type::<f32>(backend, shape);
        check_type::<f16>(backend, shape);
        check_type::<bf16>(backend, shape);
    }
}

fn normalizing_is_behind_the_last_write(backend: &Backend) {
    let device = &backend.device;
    let stream = device.stream().unwrap();
    let words = 3 * 40 * 40 / 4;
    for round in 0..20 {
        let mut there = Tensor::<u8>::zeros(&[1, 40, 40, 3])
            .to_device(device, true)
            .unwrap();
        let loan = there.on_mut(&stream).unwrap();
        let value = round * 0x0305_0709;
        let pause = Duration::from_millis(2);
        backend.fill_slowly(&stream, loan.address(), words, value, pause);
        drop(loan);
        let normalized = there.normalize::<f32>(&Normalize::IMAGENET).unwrap();
        // Its bytes are gone: what comes next may have their memory.
        let other = Tensor::from_vec(vec![0xAB; 40 * 40 * 3], &[40 * 40 * 3]).unwrap();
        let other = other.to_device(device, true).unwrap();
        let bytes: Vec<u8> = value.to_le_bytes().repeat(words);
        check(&normalized, &bytes, false);
        drop(other);
    }
    assert_eq!(device.memory().leaked, 0);
}

fn batches_of_a_loader_are_normalized(backend: &Backend) {
    let device = &backend.device;
    device.cut_batches_at(20_000, 5_000);
    let shape = [50, 16, 12, 3];
    let bytes: Vec<u8> = (0..shape.iter().product()).map(byte).collect();
    let pictures = Tensor::from_vec(bytes.clone(), &shape).unwrap();
    let loader = DataLoader::builder(TensorDataset::new(pictures).unwrap())
        .batch_size(15)
        .num_workers(2)
        .pin_memory(device)
        .build()
        .unwrap();
    let normalize = Normalize::new(MEAN, STD);
    for epoch in 0..3 {
        let batches = loader.epoch(epoch).prefetch_to_device(device, 2);
        for (batch, bytes) in batches.zip(bytes.chunks(15 * 16 * 12 * 3)) {
            let normalized = batch.unwrap().normalize::<f32>(&normalize).unwrap();
            check(&normalized, bytes, false);
        }
    }
    assert_eq!(device.memory().leaked, 0);
}

fn what_is_no_picture_is_not_normalized(backend: &Backend) {
    for shape in [&[12][..], &[2, 2, 3], &[1, 3, 2, 2], &[1, 1, 1, 1, 3]] {
        let there = Tensor::<u8>::zeros(shape)
            .to_device(&backend.device, true)
            .unwrap();
        let error = there.normalize::<f32>(&Normalize::IMAGENET).unwrap_err();
        assert!(matches!(error, Error::InvalidOption { .. }), "{error}");
        assert!(error.to_string().contains("[n, height, width, 3]"));
    }
}
