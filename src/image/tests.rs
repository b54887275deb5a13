//! Pictures as samples: decoded and transformed into the rows of a batch.

use std::sync::{Arc, Mutex};

use ::image::ImageEncoder;

use super::*;
use crate::error::CollateError;
use crate::rng::RngKey;
use crate::{Batch, BoxError, DataLoader, Dataset, Error, Sample, SampleRng, Tensor};

/// Samples that can each be taken once.
struct Once<S>(Vec<Mutex<Option<S>>>);

impl<S: Send + 'static> Dataset for Once<S> {
    type Sample = S;

    fn len(&self) -> u64 {
        self.0.len() as u64
    }

    fn get(&self, index: u64, _: &mut SampleRng) -> Result<S, BoxError> {
        let sample = self.0[index as usize].lock().unwrap().take();
        sample.ok_or_else(|| "it was given away".into())
    }
}

/// Collates samples with a loader. The error is that of the sample that does not fit or failed to load.
fn collate<S: Sample<Batch: Batch>>(samples: Vec<S>) -> Result<S::Batch, CollateError> {
    let rows = samples.len();
    let samples = Once(samples.into_iter().map(|s| Mutex::new(Some(s))).collect());
    let loader = DataLoader::builder(samples).batch_size(rows).build();
    let batch = loader.unwrap().epoch(0).next().unwrap();
    batch.map_err(|error| match error {
        Error::Collate(misfit) => misfit.source,
        Error::Sample(_, cause) => CollateError::Load(cause),
        error => panic!("{error}"),
    })
}

/// Pixels whose red is their column, and whose green is their row.
fn coordinates(height: usize, width: usize) -> Tensor<u8> {
    let pixel = |at: usize| [(at % width) as u8, (at / width) as u8, 99];
    let pixels = (0..height * width).flat_map(pixel).collect();
    Tensor::from_vec(pixels, &[height, width, 3]).unwrap()
}

fn solid(height: usize, width: usize, color: [u8; 3]) -> Tensor<u8> {
    Tensor::from_vec(color.repeat(height * width), &[height, width, 3]).unwrap()
}

fn png(pixels: &Tensor<u8>) -> Vec<u8> {
    let (height, width) = (pixels.shape()[0] as u32, pixels.shape()[1] as u32);
    let mut file = Vec::new();
    ::image::codecs::png::PngEncoder::new(&mut file)
        .write_image(
            pixels.as_slice(),
            width,
            height,
            ::image::ExtendedColorType::Rgb8,
        )
        .unwrap();
    file
}

fn apply(plan: &ImageTransform, pixels: &Tensor<u8>, position: u64) -> Tensor<u8> {
    let mut rng = SampleRng::for_sample(RngKey {
        seed: 17,
        epoch: 0,
        position,
    });
    let image = LazyImage::rgb(pixels.view()).unwrap();
    image.transform(plan, &mut rng).decode().unwrap()
}

#[test]
fn a_batch_of_pictures_is_one_tensor() {
    let samples: Vec<(LazyImage, i64)> = (0..5)
        .map(|index| {
            let pixels = solid(20 + index, 30, [index as u8, 50, 200]);
            let mut rng = SampleRng::for_sample(RngKey {
                seed: 1,
                epoch: 0,
                position: index as u64,
            });
            let image = match index % 2 {
                0 => LazyImage::encoded(png(&pixels)),
                _ => LazyImage::rgb(pixels).unwrap(),
            };
            (
                image.transform(&ImageTransform::train(8), &mut rng),
                index as i64,
            )
        })
        .collect();
    let (images, labels) = collate(samples).unwrap();
    assert_eq!(images.shape()[..], [5, 8, 8, 3]);
    assert_eq!(labels.as_slice(), [0, 1, 2, 3, 4]);
    for index in 0..5 {
        assert_eq!(images.row(index), solid(8, 8, [index as u8, 50, 200]));
    }
}

#[test]
fn without_a_transform_pictures_are_as_they_are_and_must_be_alike() {
    let pixels = coordinates(7, 5);
    let encoded = || LazyImage::encoded(png(&pixels));
    let rgb = || LazyImage::rgb(pixels.view()).unwrap();
    let batch = collate(vec![encoded(), rgb(), encoded()]).unwrap();
    assert_eq!(batch.shape()[..], [3, 7, 5, 3]);
    assert!((0..3).all(|row| batch.row(row) == pixels));

    let other = || LazyImage::encoded(png(&coordinates(7, 6)));
    let error = collate(vec![(rgb(), 0u8), (other(), 1)]).unwrap_err();
    let said = error.to_string();
    assert!(
        said.contains("[7, 6, 3]") && said.contains("[7, 5, 3]"),
        "{said}"
    );
    assert!(matches!(error, CollateError::Shape { field: "0", .. }));
}

#[test]
fn a_broken_picture_fails_as_its_sample_and_names_its_file() {
    let plan = ImageTransform::train(8);
    let broken = |transform: Option<&ImageTransform>| {
        let image = LazyImage::encoded(*b"\x89PNG\r\n\x1a\n...").with_path("cats/17.png");
        match transform {
            Some(plan) => image.transform(
                plan,
                &mut SampleRng::for_sample(RngKey {
                    seed: 0,
                    epoch: 0,
                    position: 0,
                }),
            ),
            None => image,
        }
    };
    for transform in [Some(&plan), None] {
        let error = collate(vec![broken(transform)]).unwrap_err();
        let CollateError::Load(source) = error else {
            panic!("{error}");
        };
        assert!(source.to_string().starts_with("cats/17.png: "), "{source}");
        let source = source.downcast::<ImageError>().unwrap();
        assert_eq!(source.path(), Some(std::path::Path::new("cats/17.png")));
    }
    let error = LazyImage::rgb(Tensor::zeros(&[3, 8, 8])).unwrap_err();
    assert!(error.to_string().contains("[3, 8, 8]"), "{error}");
    assert!(LazyImage::rgb(Tensor::zeros(&[0, 8, 3])).is_err());
}

#[test]
fn a_central_crop_takes_exactly_the_central_pixels() {
    let crop = apply(
        &ImageTransform::new().center_crop((4, 6)),
        &coordinates(10, 21),
        0,
    );
    // (10 - 4) / 2 is 3, and round(7.5) is 8.
    let expected = (3..7).flat_map(|y| (8..14).flat_map(move |x| [x, y, 99]));
    assert_eq!(crop.to_vec(), expected.collect::<Vec<u8>>());
}

#[test]
fn a_crop_larger_than_the_picture_is_black_around_it() {
    let plan = ImageTransform::new().center_crop((4, 5));
    let crop = apply(&plan, &solid(2, 2, [9; 3]), 0);
    let expected = (0..4).flat_map(|y| {
        (0..5).flat_map(move |x| {
            [if (1..3).contains(&y) && (1..3).contains(&x) {
                9
            } else {
                0
            }; 3]
        })
    });
    assert_eq!(crop.to_vec(), expected.collect::<Vec<u8>>());
    // Far outside the picture everything is black.
    let plan = ImageTransform::new()
        .center_crop(100)
        .random_resized_crop(RandomResizedCrop::new(4).with_scale(0.001..=0.001));
    let black = (0..20)
        .filter(|&position| apply(&plan, &solid(1, 1, [9; 3]), position) == solid(4, 4, [0; 3]));
    assert!(black.count() > 10);
}

#[test]
fn shrinking_averages_and_growing_interpolates() {
    // The filter is symmetric: away from the edges, a slope is unchanged.
    let slope = coordinates(8, 256);
    let half = apply(&ImageTransform::new().resize_exact(8, 128), &slope, 0);
    for x in 2..126 {
        let found = f64::from(half.as_slice()[x * 3]);
        assert!(
            (found - (2.0 * x as f64 + 0.5)).abs() <= 1.0,
            "{x}: {found}"
        );
    }
    let twice = apply(&ImageTransform::new().resize_exact(16, 512), &slope, 0);
    for x in 2..510 {
        let found = f64::from(twice.as_slice()[x * 3]);
        assert!(
            (found - (x as f64 / 2.0 - 0.25)).abs() <= 1.0,
            "{x}: {found}"
        );
    }
    let nearest = ImageTransform::new()
        .resize_exact(8, 128)
        .with_interpolation(Interpolation::Nearest);
    let nearest = apply(&nearest, &slope, 0);
    assert!((0..128).all(|x| nearest.as_slice()[x * 3] as usize / 2 == x));
}

#[test]
fn what_was_cut_off_does_not_shine_in() {
    let mut pixels = vec![255; 10 * 10 * 3];
    for at in 0..100 {
        if (3..7).contains(&(at / 10)) && (3..7).contains(&(at % 10)) {
            pixels[at * 3..][..3].fill(0);
        }
    }
    let pixels = Tensor::from_vec(pixels, &[10, 10, 3]).unwrap();
    for side in [2, 9] {
        let plan = ImageTransform::new()
            .center_crop(4)
            .resize_exact(side, side);
        assert_eq!(apply(&plan, &pixels, 0), solid(side, side, [0; 3]));
    }
}

#[test]
fn a_flip_mirrors_and_two_do_nothing() {
    let flip = ImageTransform::new().random_horizontal_flip(1.0);
    let pixels = coordinates(3, 5);
    let mirrored = apply(&flip, &pixels, 0);
    let expected = (0..3).flat_map(|y| (0..5).rev().flat_map(move |x| [x, y, 99]));
    assert_eq!(mirrored.to_vec(), expected.collect::<Vec<u8>>());
    assert_eq!(apply(&flip, &mirrored, 0), pixels);
    assert_eq!(
        apply(&flip.clone().random_horizontal_flip(1.0), &pixels, 0),
        pixels
    );
    let encoded = LazyImage::encoded(png(&pixels)).transform(
        &flip,
        &mut SampleRng::for_sample(RngKey {
            seed: 0,
            epoch: 0,
            position: 0,
        }),
    );
    assert_eq!(encoded.decode().unwrap(), mirrored);

    let half = ImageTransform::new().random_horizontal_flip(0.5);
    let flipped = (0..2_000).filter(|&position| apply(&half, &pixels, position) == mirrored);
    assert!((900..1_100).contains(&flipped.count()));
}

#[test]
fn the_result_depends_on_the_generator_alone() {
    let plan = ImageTransform::train(16);
    let pixels = coordinates(200, 180);
    let file: Arc<[u8]> = png(&pixels).into();
    let mut results = Vec::new();
    for position in 0..50 {
        let drawn = apply(&plan, &pixels, position);
        let mut rng = SampleRng::for_sample(RngKey {
            seed: 17,
            epoch: 0,
            position,
        });
        let encoded = LazyImage::encoded(Arc::clone(&file)).transform(&plan, &mut rng);
        let elsewhere = std::thread::scope(|scope| {
            let thread = scope.spawn(|| encoded.decode().unwrap());
            thread.join().unwrap()
        });
        assert_eq!(elsewhere, drawn);
        results.push(drawn.to_vec());
    }
    results.sort_unstable();
    results.dedup();
    assert_eq!(results.len(), 50);
}

#[test]
fn a_mask_follows_its_picture() {
    let plan = ImageTransform::train(16).with_interpolation(Interpolation::Nearest);
    let pixels = coordinates(60, 80);
    let mut rng = SampleRng::for_sample(RngKey {
        seed: 4,
        epoch: 0,
        position: 0,
    });
    let mut twin = rng.clone();
    let image = LazyImage::rgb(pixels.view())
        .unwrap()
        .transform(&plan, &mut rng);
    let mask = LazyImage::rgb(pixels).unwrap().transform(&plan, &mut twin);
    assert_eq!(image.decode().unwrap(), mask.decode().unwrap());
}

#[test]
fn a_huge_result_is_refused() {
    let plan = ImageTransform::new().resize(100);
    let image = LazyImage::rgb(solid(1, 1000, [1; 3])).unwrap();
    let image = image
        .transform(
            &plan,
            &mut SampleRng::for_sample(RngKey {
                seed: 0,
                epoch: 0,
                position: 0,
            }),
        )
        .with_max_pixels(9_999_999);
    let error = image.shape().unwrap_err();
    assert!(error.to_string().contains("100000 x 100"), "{error}");
}

/// torchvision's `hflip` and `vflip`, alone, together, and before a crop.
#[test]
fn flips_swap_sides() {
    let pixels = coordinates(4, 6);
    let at = |picture: &Tensor<u8>, row: usize, column: usize| {
        let start = (row * picture.shape()[1] + column) * 3;
        (picture.as_slice()[start], picture.as_slice()[start + 1])
    };
    for (across, down) in [(0.0, 1.0), (1.0, 0.0), (1.0, 1.0)] {
        let plan = ImageTransform::new()
            .random_horizontal_flip(across)
            .random_vertical_flip(down);
        let flipped = apply(&plan, &pixels, 0);
        let cropped = apply(&plan.center_crop((2, 4)), &pixels, 0);
        for row in 0..4 {
            for column in 0..6 {
                let from_column = if across > 0.0 { 5 - column } else { column } as u8;
                let from_row = if down > 0.0 { 3 - row } else { row } as u8;
                assert_eq!(at(&flipped, row, column), (from_column, from_row));
                if (1..3).contains(&row) && (1..5).contains(&column) {
                    assert_eq!(at(&cropped, row - 1, column - 1), (from_column, from_row));
                }
            }
        }
    }
}

/// A border is black and does not change the pixels inside it, even if the picture was flipped before.
#[test]
fn a_border_is_black() {
    let pixels = coordinates(3, 5);
    let plan = ImageTransform::new()
        .random_vertical_flip(1.0)
        .pad((1, 2, 3, 4));
    let padded = apply(&plan, &pixels, 0);
    assert_eq!(padded.shape()[..], [9, 9, 3]);
    for (at, pixel) in padded.as_slice().chunks_exact(3).enumerate() {
        let (row, column) = (at / 9, at % 9);
        let inside = (2..5).contains(&row) && (1..6).contains(&column);
        let expected = match inside {
            true => [column as u8 - 1, 4 - row as u8, 99],
            false => [0; 3],
        };
        assert_eq!(pixel, expected, "row {row}, column {column}");
    }
}

/// Colours are changed in the same step, reproducibly; a mask whose plan has no colours is cropped like its picture.
#[test]
fn colours_leave_the_geometry_alone() {
    let pixels = coordinates(60, 80);
    let plain = ImageTransform::train(24);
    let grey = ImageTransform::new()
        .random_grayscale(1.0)
        .random_resized_crop(24)
        .color_jitter(ColorJitter::new())
        .random_horizontal_flip(0.5);
    for position in 0..20 {
        let (plain, grey) = (
            apply(&plain, &pixels, position),
            apply(&grey, &pixels, position),
        );
        for (pixel, grey) in plain.as_slice().chunks(3).zip(grey.as_slice().chunks(3)) {
            let [red, green, blue] = [0, 1, 2].map(|channel| u32::from(pixel[channel]));
            let luma = (red * 19_595 + green * 38_470 + blue * 7_471 + 0x8000) >> 16;
            assert_eq!(grey, [luma as u8; 3]);
        }
    }
}

/// The border that a crop, padding and a rotation show has the requested colour.
#[test]
fn what_is_outside_is_filled() {
    let color = [124, 116, 104];
    let plan = ImageTransform::new().with_fill(color);
    let picture = solid(10, 10, [9; 3]);
    for plan in [
        plan.clone().pad(2),
        plan.clone().center_crop(14),
        plan.clone().random_crop(14),
        plan.random_rotation(45.0..=45.0),
    ] {
        let shown = apply(&plan, &picture, 0);
        let outside = |pixel: &&[u8]| **pixel == color;
        let count = shown.as_slice().chunks_exact(3).filter(outside).count();
        let rest = shown.len() / 3 - count;
        assert!(count >= 12 && rest >= 80, "{plan:?}: {count}");
    }
}

/// The whole recipe of an ImageNet training: a sample's result depends on the sample alone.
#[test]
fn a_recipe_of_everything_is_repeatable() {
    let plan = ImageTransform::train(24)
        .rand_augment(RandAugment::new())
        .color_jitter(ColorJitter::new().with_brightness(0.4).with_hue(0.1))
        .random_rotation(15.0)
        .random_erasing(RandomErasing::new());
    assert_eq!(plan.output_size(), Some((24, 24)));
    let picture = coordinates(60, 80);
    let mut different = std::collections::HashSet::new();
    for position in 0..100 {
        let first = apply(&plan, &picture, position);
        assert_eq!(first, apply(&plan, &picture, position));
        different.insert(first.to_vec());
    }
    assert_eq!(different.len(), 100);
}
