//! Transforms that change pictures behind their crop: colours, erasing, rotation, RandAugment.

use pinfeed::image::{
    ColorJitter, Decode, ImageTransform, LazyImage, LazyMask, RandAugment, RandomErasing,
    RandomRotation,
};
use pinfeed::{DataLoader, Device, DeviceTensor, Tensor, from_fn};

use super::{Rows, expected, fetched, fixtures, loader, pictures};

/// How many of the pictures a device decodes, if no transform is in the way.
fn devices_own(device: &Device) -> u64 {
    let loader = loader(pictures().with_decode(Decode::Device), device, 8, 2);
    let mut last = 0;
    for epoch in 0..2 {
        let mut sent = loader.epoch(epoch).prefetch_to_device(device, 2);
        assert!(sent.by_ref().all(|batch| batch.is_ok()));
        last = sent.stats().decoder.decoded;
    }
    assert!(last >= 15, "{last}");
    last
}

fn jitter() -> ColorJitter {
    let jitter = ColorJitter::new().with_brightness(0.4).with_contrast(0.4);
    jitter.with_saturation(0.4).with_hue(0.1)
}

/// What programs do: the usual recipe; RandAugment, and a flip behind it; a rotation that is cropped.
fn transforms() -> [ImageTransform; 3] {
    let usual = ImageTransform::train(16)
        .color_jitter(jitter())
        .random_grayscale(0.3)
        .random_erasing(RandomErasing::new());
    let augmented = ImageTransform::train(16)
        .rand_augment(RandAugment::new())
        .random_horizontal_flip(0.5)
        .random_erasing(RandomErasing::new().with_value([124, 116, 104]));
    let turned = ImageTransform::new()
        .resize_exact(24, 30)
        .random_rotation(RandomRotation::from(20.0))
        .random_crop(16)
        .color_jitter(jitter());
    [usual, augmented, turned]
}

#[test]
fn changed_pictures_are_the_cpus() {
    let device = Device::cpu();
    let all = devices_own(&device);
    for (number, transform) in transforms().into_iter().enumerate() {
        let pictures = pictures().with_transform(transform);
        for (batch, workers) in [(1, 1), (8, 0), (8, 3), (50, 2)] {
            let encoded = pictures.clone().with_decode(Decode::Device);
            let loader = loader(encoded, &device, batch, workers);
            for epoch in 0..2 {
                let mut sent = loader.epoch(epoch).prefetch_to_device(&device, 2);
                let rows: Rows = sent.by_ref().map(fetched).collect();
                let how = format!("{number}, {batch} a batch, {workers} workers, epoch {epoch}");
                let here = expected(&pictures, &device, batch, epoch);
                assert!(rows == here, "{how}");
                if epoch > 0 {
                    assert_eq!(sent.stats().decoder.decoded, all, "{how}");
                }
            }
        }
    }
    assert_eq!(device.memory().device_held_bytes, 0);
}

/// What a device does not do is the CPU's, and counted by what it is.
#[test]
fn what_is_left_to_the_cpu_is_counted() {
    let device = Device::cpu();
    let all = devices_own(&device);
    let twice = ImageTransform::new().resize(20).random_rotation(9.0);
    let twice = twice.resize_exact(16, 16);
    let often = (0..17).fold(ImageTransform::eval(16), |plan, _| {
        plan.random_grayscale(1.0)
    });
    let erased = RandomErasing::new()
        .with_probability(0.5)
        .with_scale(0.1..=0.2)
        .with_ratio(0.8..=1.2);
    let sometimes = ImageTransform::train(20).random_erasing(erased);
    let sometimes = sometimes.resize_exact(16, 16);
    let resized = "resized twice, or in a way that only the CPU does";
    for (transform, reason, least, most) in [
        (twice, resized, all, all),
        (often, "changed more often than the device does", all, all),
        // Only where an erasure is drawn.
        (sometimes, resized, 1, all - 1),
    ] {
        let pictures = pictures().with_transform(transform);
        let loader = loader(pictures.clone().with_decode(Decode::Device), &device, 8, 2);
        for epoch in 0..3 {
            let mut sent = loader.epoch(epoch).prefetch_to_device(&device, 2);
            let rows: Rows = sent.by_ref().map(fetched).collect();
            assert!(rows == expected(&pictures, &device, 8, epoch), "{reason}");
            let stats = sent.stats();
            let left = stats.decoder.left_to_cpu.get(reason).copied().unwrap_or(0);
            assert!((least..=most).contains(&left), "{reason}: {stats:?}");
            assert_eq!(stats.decoder.decoded, all - left, "{reason}");
        }
    }
}

/// Masks and boxes follow a picture that the device decodes and changes as one of the CPU.
#[test]
fn masks_and_boxes_follow() {
    type Host = (Tensor<u8>, Tensor<u8>, Tensor<f32>);
    type There = (DeviceTensor<u8>, DeviceTensor<u8>, DeviceTensor<f32>);
    let device = Device::cpu();
    let [_, augmented, turned] = transforms();
    let file = std::fs::read(fixtures().join("420-37x11.jpg")).unwrap();
    let labels: Vec<u8> = (0..37 * 11).map(|at| at as u8).collect();
    for transform in [augmented, turned] {
        let batches = |decode| {
            let (file, labels, transform) = (file.clone(), labels.clone(), transform.clone());
            let data = from_fn(40, move |_, rng| {
                let image = LazyImage::encoded(file.clone()).with_decode(decode);
                let image = image.transform(&transform, rng);
                let geometry = image.geometry()?;
                let boxes = geometry.boxes(&[[3.0, 2.0, 20.0, 9.0]]);
                let boxes = Tensor::from_vec(boxes.boxes.concat(), &[4])?;
                let mask = LazyMask::labels(Tensor::from_vec(labels.clone(), &[11, 37])?)?;
                let mask = mask.with_geometry(geometry);
                Ok((image, mask, boxes))
            });
            let loader = DataLoader::builder(data).batch_size(8).num_workers(2);
            let loader = loader.pin_memory(&device).build::<Host>().unwrap();
            let mut rows = Vec::new();
            for epoch in 0..2 {
                let mut sent = loader.epoch(epoch).prefetch_to_device(&device, 2);
                for batch in sent.by_ref() {
                    let (pixels, masks, boxes): There = batch.unwrap();
                    let pixels = pixels.to_host(true).unwrap().wait().unwrap();
                    let masks = masks.to_host(true).unwrap().wait().unwrap();
                    let boxes = boxes.to_host(true).unwrap().wait().unwrap();
                    rows.push((pixels.to_vec(), masks.to_vec(), boxes.to_vec()));
                }
                if epoch > 0 && decode == Decode::Device {
                    assert_eq!(sent.stats().decoder.decoded, 40);
                }
            }
            rows
        };
        assert!(batches(Decode::Device) == batches(Decode::Cpu));
    }
}
