use super::*;
use crate::image::plan::ImageTransform;
use crate::rng::RngKey;

const fn size(height: u32, width: u32) -> Size {
    Size { width, height }
}

fn frame(source: Size, plan: &ImageTransform, seed: u64) -> Frame {
    let (mut canvas, mut rng) = (
        Canvas::new(source),
        SampleRng::for_sample(RngKey {
            seed,
            epoch: 0,
            position: 0,
        }),
    );
    for op in plan.ops() {
        assert!(canvas.carry_out(op, &mut rng), "{op:?}");
    }
    canvas.finish()
}

fn plan() -> ImageTransform {
    ImageTransform::new()
}

/// The position of a random crop: the bounds of the picture before it is resampled.
fn random_crops(
    source: Size,
    crop: RandomResizedCrop,
    count: u64,
) -> impl Iterator<Item = Rect<u32>> {
    let plan = plan().random_resized_crop(crop);
    (0..count).map(move |seed| frame(source, &plan, seed).bounds)
}

#[test]
fn resizing_and_a_central_crop_are_one_window() {
    // torchvision: 375 x 500 becomes 256 x 341, and the crop begins at round(16.0), round(58.5).
    let result = frame(size(375, 500), &ImageTransform::eval(224), 0);
    assert_eq!(result.size, size(224, 224));
    let Rect {
        left,
        top,
        width,
        height,
    } = result.window;
    let expected = [
        (left, 58.0 * 500.0 / 341.0),
        (top, 16.0 * 375.0 / 256.0),
        (width, 224.0 * 500.0 / 341.0),
        (height, 224.0 * 375.0 / 256.0),
    ];
    for (found, expected) in expected {
        assert!((found - expected).abs() < 1e-9, "{found} {expected}");
    }
    // The crop comes after resizing, so the filter sees the pixels around it.
    assert_eq!((result.bounds.width, result.bounds.height), (500, 375));
    assert_eq!(result.flip, Flip::default());
}

#[test]
fn the_long_side_is_rounded_down_and_the_short_one_is_exact() {
    let resized = |height, width, short| {
        let result = frame(size(height, width), &plan().resize(short), 0);
        (result.size.height, result.size.width)
    };
    assert_eq!(resized(375, 500, 256), (256, 341));
    assert_eq!(resized(500, 375, 256), (341, 256));
    assert_eq!(resized(7, 7, 224), (224, 224));
    assert_eq!(resized(1, 60_000, 2), (2, 120_000));
}

#[test]
fn a_central_crop_rounds_halves_to_even_as_python_does() {
    let start = |whole, part| central(size(whole, whole), size(part, part)).top;
    assert_eq!((start(341, 224), start(343, 224)), (58, 60));
    assert_eq!((start(5, 8), start(5, 5), start(6, 5)), (-1, 0, 0));
}

#[test]
fn what_is_too_small_is_padded() {
    let result = frame(size(10, 20), &plan().center_crop((15, 12)), 0);
    assert_eq!(
        result.place,
        Rect {
            left: 0,
            top: 2,
            width: 12,
            height: 10
        }
    );
    assert_eq!((result.window.left, result.window.top), (4.0, 0.0));
    assert_eq!((result.window.width, result.window.height), (12.0, 10.0));
}

#[test]
fn a_crop_of_a_mirrored_picture_is_mirrored() {
    let crop = |plan: ImageTransform| frame(size(4, 9), &plan.center_crop((4, 4)), 0).window.left;
    // round(2.5) is 2: from the left of a picture as it is, from the right of a mirrored one.
    assert_eq!(crop(plan()), 2.0);
    assert_eq!(crop(plan().random_horizontal_flip(1.0)), 3.0);
    assert_eq!(
        crop(
            plan()
                .random_horizontal_flip(1.0)
                .random_horizontal_flip(1.0)
        ),
        2.0
    );
}

#[test]
fn a_crop_before_resampling_hides_what_it_cut_off() {
    let result = frame(
        size(100, 200),
        &plan().center_crop(50).resize_exact(10, 10),
        0,
    );
    let bounds = Rect {
        left: 75,
        top: 25,
        width: 50,
        height: 50,
    };
    assert_eq!(result.bounds, bounds);
    assert_eq!((result.window.left, result.window.width), (75.0, 50.0));
}

/// torchvision draws the area uniformly: squares always fit, so their share of a large picture shows it.
#[test]
fn areas_of_random_crops_are_uniform() {
    let crop = RandomResizedCrop::new(224).with_ratio(1.0..=1.0);
    let shares: Vec<f64> = random_crops(size(4000, 4000), crop, 20_000)
        .map(|crop| {
            assert_eq!(crop.width, crop.height);
            f64::from(crop.width).powi(2) / 4000f64.powi(2)
        })
        .collect();
    let count = shares.len() as f64;
    let mean = shares.iter().sum::<f64>() / count;
    let variance = shares
        .iter()
        .map(|share| (share - mean).powi(2))
        .sum::<f64>()
        / count;
    assert!((mean - 0.54).abs() < 0.01, "{mean}");
    assert!(
        (variance - 0.92f64.powi(2) / 12.0).abs() < 0.003,
        "{variance}"
    );
    let (min, max) = (
        shares.iter().fold(1.0, |a: f64, &b| a.min(b)),
        shares.iter().fold(0.0, |a: f64, &b| a.max(b)),
    );
    assert!(
        (0.0795..0.082).contains(&min) && (0.998..=1.0).contains(&max),
        "{min} {max}"
    );
}

/// ... and the logarithm of the proportions uniformly, and then the place.
#[test]
fn proportions_of_random_crops_are_log_uniform_and_places_uniform() {
    let crop = RandomResizedCrop::new(224).with_scale(0.1..=0.1);
    let crops: Vec<Rect<u32>> = random_crops(size(3000, 5000), crop, 20_000).collect();
    let count = crops.len() as f64;
    let mean = |of: &dyn Fn(&Rect<u32>) -> f64| crops.iter().map(of).sum::<f64>() / count;
    let log = |crop: &Rect<u32>| (f64::from(crop.width) / f64::from(crop.height)).ln();
    let bound = (4.0f64 / 3.0).ln();
    assert!(crops.iter().all(|crop| log(crop).abs() <= bound + 1e-3));
    assert!(mean(&log).abs() < 0.01);
    let variance = mean(&|crop| log(crop).powi(2));
    assert!(
        (variance - (2.0 * bound).powi(2) / 12.0).abs() < 0.001,
        "{variance}"
    );
    let across = mean(&|crop| f64::from(crop.left) / f64::from(5000 - crop.width));
    let down = mean(&|crop| f64::from(crop.top) / f64::from(3000 - crop.height));
    assert!(
        (across - 0.5).abs() < 0.01 && (down - 0.5).abs() < 0.01,
        "{across} {down}"
    );
}

#[test]
fn where_no_crop_fits_the_largest_central_one_is_taken() {
    let crop = |height, width| {
        let crop = RandomResizedCrop::new(8).with_scale(1.0..=1.0);
        let bounds = random_crops(size(height, width), crop, 1).next().unwrap();
        [bounds.left, bounds.top, bounds.width, bounds.height]
    };
    // height 90, ratio at most 4/3: width 120, from (1000 - 120) / 2.
    assert_eq!(crop(90, 1000), [440, 0, 120, 90]);
    // width 90, ratio at least 3/4: height 120.
    assert_eq!(crop(1000, 90), [0, 440, 90, 120]);
    assert_eq!(crop(1, 60_000), [29_999, 0, 1, 1]);
    assert_eq!(crop(1, 1), [0, 0, 1, 1]);
}

#[test]
fn whatever_the_plan_and_the_picture_nothing_is_read_or_written_outside() {
    let mut rng = SampleRng::for_sample(RngKey {
        seed: 11,
        epoch: 0,
        position: 0,
    });
    for round in 0..20_000 {
        let mut side = |bound| 1 + rng.below(bound) as usize;
        let source = size(side(300) as u32, side(300) as u32);
        let mut plan = plan();
        for _ in 0..side(4) {
            plan = match side(5) {
                1 => plan.resize(side(300)),
                2 => plan.resize_exact(side(300), side(300)),
                3 => plan.center_crop((side(300), side(300))),
                4 => plan.random_resized_crop((side(300), side(300))),
                _ => plan.random_horizontal_flip(0.5),
            };
        }
        let Frame {
            bounds,
            window,
            place,
            size,
            ..
        } = frame(source, &plan, round);
        let said = format!("{source:?} {plan:?} {bounds:?} {window:?} {place:?} {size:?}");
        if place.width > 0 && place.height > 0 {
            let hair = 1e-6;
            assert!(bounds.left + bounds.width <= source.width, "{said}");
            assert!(bounds.top + bounds.height <= source.height, "{said}");
            assert!(place.left + place.width <= size.width, "{said}");
            assert!(place.top + place.height <= size.height, "{said}");
            assert!(window.width > 0.0 && window.height > 0.0, "{said}");
            assert!(window.left >= f64::from(bounds.left) - hair, "{said}");
            assert!(window.top >= f64::from(bounds.top) - hair, "{said}");
            let right = f64::from(bounds.left + bounds.width);
            let bottom = f64::from(bounds.top + bounds.height);
            assert!(window.left + window.width <= right + hair, "{said}");
            assert!(window.top + window.height <= bottom + hair, "{said}");
        }
        if let Some((height, width)) = plan.output_size() {
            assert_eq!((size.height as usize, size.width as usize), (height, width));
        }
    }
}

#[test]
fn a_padded_picture_has_a_border() {
    let result = frame(size(10, 20), &plan().pad((1, 2, 3, 4)), 0);
    assert_eq!(result.size, size(16, 24));
    let expected = Rect {
        left: 1,
        top: 2,
        width: 20,
        height: 10,
    };
    assert_eq!(result.place, expected);
    assert!(!result.is_whole(size(10, 20)));
    assert!(frame(size(10, 20), &plan().pad(0), 0).is_whole(size(10, 20)));
}

/// Each position of a random crop occurs, and no other: CIFAR's recipe, `RandomCrop(32, padding=4)`.
#[test]
fn a_random_crop_is_anywhere() {
    let mut seen = std::collections::BTreeSet::new();
    for seed in 0..3_000 {
        let result = frame(size(32, 32), &plan().pad(4).random_crop(32), seed);
        assert_eq!(result.size, size(32, 32));
        let Rect { left, top, .. } = result.place;
        let shown = (result.place.width, result.place.height);
        assert!(shown.0 >= 28 && shown.1 >= 28);
        seen.insert((left, top, result.bounds.left, result.bounds.top));
    }
    assert_eq!(seen.len(), 9 * 9);
}

#[test]
fn what_is_too_small_for_a_random_crop_is_anywhere_in_it() {
    let mut lefts = std::collections::BTreeSet::new();
    for seed in 0..500 {
        let result = frame(size(10, 7), &plan().random_crop(10), seed);
        assert_eq!((result.place.width, result.place.height), (7, 10));
        assert_eq!(result.place.top, 0);
        lefts.insert(result.place.left);
    }
    assert_eq!(lefts.into_iter().collect::<Vec<_>>(), [0, 1, 2, 3]);
}
