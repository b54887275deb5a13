//! Pictures and labels are mixed on the device: the same numbers on every backend, which are torchvision's and PyTorch's.

use std::time::Duration;

use half::{bf16, f16};
use pinfeed::ops::{Mixup, MixupDraw, Normalize};
use pinfeed::rng::RngKey;
use pinfeed::tensor::Float;
use pinfeed::{Batch, DataLoader, DeviceTensor, Error, SampleRng, Tensor, TensorDataset};

use crate::Test;
use crate::backend::Backend;

pub const TESTS: &[Test] = &[
    (
        "pictures_are_mixed_to_any_type_and_order",
        pictures_are_mixed_to_any_type_and_order,
    ),
    (
        "many_pictures_are_mixed_by_many_threads",
        many_pictures_are_mixed_by_many_threads,
    ),
    (
        "labels_are_mixed_and_smoothed",
        labels_are_mixed_and_smoothed,
    ),
    (
        "labels_that_are_no_class_are_not_numbers",
        labels_that_are_no_class_are_not_numbers,
    ),
    (
        "labels_are_behind_the_last_write",
        labels_are_behind_the_last_write,
    ),
    (
        "batches_of_a_loader_are_mixed",
        batches_of_a_loader_are_mixed,
    ),
    (
        "what_does_not_fit_is_not_mixed",
        what_does_not_fit_is_not_mixed,
    ),
];

const MEAN: [f64; 3] = [0.485, 0.456, 0.406];
const STD: [f64; 3] = [0.229, 0.224, 0.225];

fn byte(index: usize) -> u8 {
    (index * 37 + index / 251) as u8
}

/// What the documentation says of one value: normalised, and mixed as `f32`s.
fn expected(
    bytes: &[u8],
    shape: [usize; 4],
    [image, y, x, channel]: [usize; 4],
    mix: &MixupDraw,
) -> f32 {
    let [images, height, width, _] = shape;
    let normal = |image: usize| {
        let (mean, std) = (
            f64::from(MEAN[channel] as f32),
            f64::from(STD[channel] as f32),
        );
        let (scale, bias) = ((1.0 / (255.0 * std)) as f32, (-mean / std) as f32);
        let byte = bytes[((image * height + y) * width + x) * 3 + channel];
        f32::from(byte) * scale + bias
    };
    let (own, before) = (normal(image), normal((image + images - 1) % images));
    match mix.cut() {
        Some((rows, columns)) if rows.contains(&y) && columns.contains(&x) => before,
        Some(_) => own,
        None if mix.is_none() => own,
        None => own * mix.lambda() as f32 + before * (1.0 - mix.lambda()) as f32,
    }
}

fn check<F: Float>(
    mixed: &DeviceTensor<F>,
    bytes: &[u8],
    shape: [usize; 4],
    channels_last: bool,
    mix: &MixupDraw,
) {
    let there = mixed.to_host(true).unwrap().wait().unwrap();
    let [images, height, width, _] = shape;
    let order = match channels_last {
        true => shape,
        false => [images, 3, height, width],
    };
    assert_eq!(there.shape()[..], order);
    let mut values = there.as_slice().iter();
    let mut check = |image, y, x, channel| {
        let value = F::from_f32(expected(bytes, shape, [image, y, x, channel], mix));
        let place = [image, y, x, channel];
        let found = values.next().unwrap().bits();
        assert_eq!(found, value.bits(), "{place:?} of {shape:?}, {mix:?}");
    };
    for image in 0..images {
        if channels_last {
            (0..height * width * 3).for_each(|i| check(image, i / 3 / width, i / 3 % width, i % 3));
        } else {
            let area = height * width;
            (0..area * 3).for_each(|i| check(image, i % area / width, i % width, i / area));
        }
    }
}

fn mix<F: Float>(backend: &Backend, shape: [usize; 4], mix: &MixupDraw) {
    let bytes: Vec<u8> = (0..shape.iter().product()).map(byte).collect();
    for channels_last in [false, true] {
        let there = Tensor::from_vec(bytes.clone(), &shape).unwrap();
        let there = there.to_device(&backend.device, true).unwrap();
        let normalize = Normalize::IMAGENET.with_channels_last(channels_last);
        let there: DeviceTensor<F> = there.normalize_mixed(&normalize, mix).unwrap();
        check(&there, &bytes, shape, channels_last, mix);
    }
}

fn pictures_are_mixed_to_any_type_and_order(backend: &Backend) {
    // Pixels in fours or not, and rows that end within four or not; one picture is mixed with itself.
    for shape in [
        [3, 5, 8, 3],
        [2, 6, 10, 3],
        [4, 3, 3, 3],
        [3, 5, 7, 3],
        [2, 1, 1, 3],
        [1, 4, 4, 3],
        [1, 3, 5, 3],
        [0, 4, 4, 3],
        [2, 9, 12, 3],
    ] {
        let [_, height, width, _] = shape;
        let size = [height, width];
        let (middle, third) = (height / 2, width / 3);
        for how in [
            MixupDraw::none(),
            MixupDraw::mixup(0.3),
            MixupDraw::mixup(0.0),
            MixupDraw::mixup(1.0),
            MixupDraw::cutmix(size, 0..height, 0..width),
            MixupDraw::cutmix(size, middle..height, third..width),
            MixupDraw::cutmix(size, 0..middle + 1, 0..third + 1),
            MixupDraw::cutmix(size, middle..middle + 1, third..third + 1),
            MixupDraw::cutmix(size, middle..middle, 0..width),
        ] {
            mix::<f32>(backend, shape, &how);
            mix::<f16>(backend, shape, &how);
            mix::<bf16>(backend, shape, &how);
        }
    }
}

/// More than the threads of a device take at once, so that each goes on with others: of 4,194,304 pixels and more.
fn many_pictures_are_mixed_by_many_threads(backend: &Backend) {
    mix::<f32>(backend, [9, 224, 220, 3], &MixupDraw::mixup(0.7));
    let cut = MixupDraw::cutmix([223, 221], 20..190, 33..66);
    mix::<bf16>(backend, [9, 223, 221, 3], &cut);
    if backend.is_cuda() {
        mix::<f16>(backend, [90, 224, 224, 3], &MixupDraw::mixup(0.7));
        mix::<f32>(backend, [90, 223, 223, 3], &MixupDraw::none());
        let cut = MixupDraw::cutmix([224, 224], 20..190, 33..66);
        mix::<f32>(backend, [90, 224, 224, 3], &cut);
    }
}

/// Row by row what PyTorch does: one-hot, rolled by one, mixed, smoothed.
fn rows(labels: &[i64], classes: usize, mix: &MixupDraw, smoothing: f64) -> Vec<f32> {
    let hot = |label: i64, class: usize| f32::from(u8::from(label == class as i64));
    let lambda = mix.lambda();
    let mut rows = Vec::new();
    for (row, &own) in labels.iter().enumerate() {
        let other = labels[(row + labels.len() - 1) % labels.len()];
        for class in 0..classes {
            let mixed = hot(other, class) * (1.0 - lambda) as f32 + hot(own, class) * lambda as f32;
            rows.push(mixed * (1.0 - smoothing) as f32 + (smoothing / classes as f64) as f32);
        }
    }
    rows
}

fn labels_are_mixed_and_smoothed(backend: &Backend) {
    fn check<F: Float>(
        backend: &Backend,
        labels: &[i64],
        classes: usize,
        mix: &MixupDraw,
        smoothing: f64,
    ) {
        let there = Tensor::from_slice(labels, &[labels.len()]).unwrap();
        let there = there.to_device(&backend.device, true).unwrap();
        let targets: DeviceTensor<F> = there.soft_labels(classes, mix, smoothing).unwrap();
        assert_eq!(targets.shape()[..], [labels.len(), classes]);
        let targets = targets.to_host(true).unwrap().wait().unwrap();
        let expected = rows(labels, classes, mix, smoothing);
        let expected: Vec<u32> = expected.iter().map(|x| F::from_f32(*x).bits()).collect();
        let found: Vec<u32> = targets.as_slice().iter().map(|x| x.bits()).collect();
        assert_eq!(
            found, expected,
            "{labels:?} of {classes}, {mix:?}, {smoothing}"
        );
        let sums = targets.as_slice().chunks(classes).map(|row| {
            let row = row.iter().map(|x| f64::from(f32::from_bits(widened(*x))));
            row.sum::<f64>()
        });
        for sum in sums {
            assert!(
                (sum - 1.0).abs() < 0.02,
                "a row of probabilities makes {sum}"
            );
        }
        // They are still there.
        assert_eq!(
            there.to_host(true).unwrap().wait().unwrap().as_slice(),
            labels
        );
    }
    fn widened<F: Float>(x: F) -> u32 {
        match size_of::<F>() {
            4 => x.bits(),
            _ if F::DTYPE == pinfeed::tensor::DType::F16 => {
                f16::from_bits(x.bits() as u16).to_f32().to_bits()
            }
            _ => bf16::from_bits(x.bits() as u16).to_f32().to_bits(),
        }
    }
    let many: Vec<i64> = (0..300).map(|row| row * 131 % 1_000).collect();
    let cases: [(&[i64], usize); 5] = [
        (&[3, 0, 0, 2, 3], 4),
        (&[1], 3),
        (&[0, 0], 1),
        (&[], 5),
        (&many, 1_000),
    ];
    for (labels, classes) in cases {
        let cut = MixupDraw::cutmix([7, 9], 1..4, 2..9);
        for mix in [
            MixupDraw::none(),
            MixupDraw::mixup(0.37),
            MixupDraw::mixup(1.0),
            cut,
        ] {
            for smoothing in [0.0, 0.1] {
                check::<f32>(backend, labels, classes, &mix, smoothing);
                check::<f16>(backend, labels, classes, &mix, smoothing);
                check::<bf16>(backend, labels, classes, &mix, smoothing);
            }
        }
    }
}

fn labels_that_are_no_class_are_not_numbers(backend: &Backend) {
    fn check<F: Float>(backend: &Backend, is_nan: fn(F) -> bool) {
        let labels = vec![0, -1, 1, 4, 2, 3, i64::MIN, 1, i64::MAX];
        let there = Tensor::from_vec(labels.clone(), &[9]).unwrap();
        let there = there.to_device(&backend.device, true).unwrap();
        for mix in [MixupDraw::none(), MixupDraw::mixup(0.5)] {
            let targets = there.soft_labels::<F>(4, &mix, 0.1).unwrap();
            let targets = targets.to_host(true).unwrap().wait().unwrap();
            for (row, targets) in targets.as_slice().chunks(4).enumerate() {
                let bad = |row: usize| !(0..4).contains(&labels[row % 9]);
                let expected = bad(row) || !mix.is_none() && bad(row + 8);
                assert!(
                    targets.iter().all(|x| is_nan(*x) == expected),
                    "row {row}: {targets:?}"
                );
            }
        }
    }
    check::<f32>(backend, f32::is_nan);
    check::<f16>(backend, f16::is_nan);
    check::<bf16>(backend, bf16::is_nan);
}

fn labels_are_behind_the_last_write(backend: &Backend) {
    let device = &backend.device;
    let stream = device.stream().unwrap();
    for _ in 0..20 {
        let labels = Tensor::from_vec(vec![1i64; 500], &[500]).unwrap();
        let mut there = labels.to_device(device, true).unwrap();
        let loan = there.on_mut(&stream).unwrap();
        let pause = Duration::from_millis(2);
        backend.fill_slowly(&stream, loan.address(), 1_000, 0, pause);
        drop(loan);
        let targets = there
            .soft_labels::<f32>(2, &MixupDraw::none(), 0.0)
            .unwrap();
        // Who writes them next waits for the targets.
        let loan = there.on_mut(&stream).unwrap();
        backend.fill_slowly(&stream, loan.address(), 1_000, 1, Duration::ZERO);
        drop(loan);
        drop(there);
        let other = Tensor::from_vec(vec![1i64; 500], &[500]).unwrap();
        let other = other.to_device(device, true).unwrap();
        let targets = targets.to_host(true).unwrap().wait().unwrap();
        assert_eq!(targets.as_slice(), [1.0, 0.0].repeat(500));
        drop(other);
    }
    assert_eq!(device.memory().leaked, 0);
}

fn batches_of_a_loader_are_mixed(backend: &Backend) {
    let device = &backend.device;
    let shape = [50, 16, 12, 3];
    let bytes: Vec<u8> = (0..shape.iter().product()).map(byte).collect();
    let pictures = Tensor::from_vec(bytes.clone(), &shape).unwrap();
    let labels = Tensor::from_vec((0..50).collect::<Vec<i64>>(), &[50]).unwrap();
    let loader = DataLoader::builder(TensorDataset::new((pictures, labels)).unwrap())
        .batch_size(15)
        .num_workers(2)
        .pin_memory(device)
        .build()
        .unwrap();
    let mixing = Mixup::new().with_mixup(0.4).with_cutmix(1.0);
    let (mut cut, mut blended) = (0, 0);
    for epoch in 0..6 {
        let batches = loader.epoch(epoch).prefetch_to_device(device, 2);
        let expected = bytes.chunks(15 * 16 * 12 * 3);
        for (number, (batch, bytes)) in (0..).zip(batches.zip(expected)) {
            let (pictures, labels) = batch.unwrap();
            let mix = mixing.draw(
                &mut SampleRng::for_batch(RngKey {
                    seed: 7,
                    epoch,
                    position: number,
                }),
                16,
                12,
            );
            let targets = labels.soft_labels::<f32>(50, &mix, 0.0).unwrap();
            let mixed = pictures
                .normalize_mixed::<f32>(&Normalize::IMAGENET, &mix)
                .unwrap();
            let count = labels.len();
            check(&mixed, bytes, [count, 16, 12, 3], false, &mix);
            let targets = targets.to_host(true).unwrap().wait().unwrap();
            let first = number as i64 * 15;
            let labels: Vec<i64> = (first..first + count as i64).collect();
            assert_eq!(targets.as_slice(), rows(&labels, 50, &mix, 0.0));
            cut += usize::from(mix.cut().is_some());
            blended += usize::from(mix.cut().is_none());
        }
    }
    assert!(cut > 3 && blended > 3, "{cut} and {blended}");
    assert_eq!(device.memory().leaked, 0);
}

fn what_does_not_fit_is_not_mixed(backend: &Backend) {
    let device = &backend.device;
    let refused = |error: Error, what: &str| {
        assert!(matches!(error, Error::InvalidOption { .. }), "{error}");
        assert!(error.to_string().contains(what), "{error}");
    };
    let pictures = |shape: &[usize]| Tensor::<u8>::zeros(shape).to_device(device, true).unwrap();
    let normalize = Normalize::IMAGENET;
    let cut = MixupDraw::cutmix([8, 6], 1..4, 2..5);
    let turned = pictures(&[2, 6, 8, 3]).normalize_mixed::<f32>(&normalize, &cut);
    refused(turned.unwrap_err(), "[8, 6], and these are of [6, 8]");
    let flat = pictures(&[2, 6, 8]).normalize_mixed::<f32>(&normalize, &cut);
    refused(flat.unwrap_err(), "`normalize_mixed`: takes pictures");

    let labels = |shape: &[usize]| Tensor::<i64>::zeros(shape).to_device(device, true).unwrap();
    let soft = |shape: &[usize], classes, smoothing| {
        let made = labels(shape).soft_labels::<f32>(classes, &cut, smoothing);
        made.unwrap_err()
    };
    refused(soft(&[2, 2], 3, 0.0), "[2, 2]");
    refused(soft(&[2], 0, 0.0), "classes");
    refused(soft(&[2], 3, 1.5), "1.5");
    refused(soft(&[2], 3, f64::NAN), "NaN");
    let much = soft(&[2], usize::MAX / 2, 0.0);
    assert!(matches!(much, Error::DeviceBudget { .. }), "{much}");
}
