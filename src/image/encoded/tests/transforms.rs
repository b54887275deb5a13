//! What becomes of pixels on the device is what becomes of them on the CPU.

use super::*;
use crate::image::{
    ColorJitter, Padding, RandAugment, RandomErasing, RandomResizedCrop, RandomRotation,
};
use crate::picture::Planes;
use crate::rng::RngKey;

/// Plans that resize once, of every kind.
fn plan() -> impl Strategy<Value = ImageTransform> {
    (frame(), prop::collection::vec(change(), 0..5))
        .prop_map(|(plan, changes)| changes.into_iter().fold(plan, Added::to))
}

/// What follows, or comes between.
#[derive(Debug, Clone)]
enum Added {
    Jitter([f64; 4]),
    Grey,
    Augment(RandAugment),
    Rotation(RandomRotation),
    Erasing(RandomErasing),
    Flip,
    Crop(usize, usize),
    Pad(u16),
}

impl Added {
    fn to(plan: ImageTransform, added: Added) -> ImageTransform {
        match added {
            Added::Jitter([brightness, contrast, saturation, hue]) => plan.color_jitter(
                ColorJitter::new()
                    .with_brightness(brightness)
                    .with_contrast(contrast)
                    .with_saturation(saturation)
                    .with_hue(hue),
            ),
            Added::Grey => plan.random_grayscale(0.5),
            Added::Augment(augment) => plan.rand_augment(augment),
            Added::Rotation(rotation) => plan.random_rotation(rotation),
            Added::Erasing(erasing) => plan.random_erasing(erasing),
            Added::Flip => plan.random_horizontal_flip(0.7).random_vertical_flip(0.3),
            Added::Crop(height, width) => plan.random_crop((height, width)),
            Added::Pad(border) => plan.pad(Padding::from((border, 1))),
        }
    }
}

fn change() -> impl Strategy<Value = Added> {
    let filter = prop_oneof![Just(Interpolation::Nearest), Just(Interpolation::Bilinear)];
    let augment = (0..3usize, 0..31usize, filter.clone()).prop_map(|(ops, magnitude, filter)| {
        let augment = RandAugment::new()
            .with_num_ops(ops)
            .with_magnitude(magnitude);
        Added::Augment(augment.with_interpolation(filter))
    });
    let rotation = (0.0..180.0, filter).prop_map(|(degrees, filter)| {
        Added::Rotation(RandomRotation::from(degrees).with_interpolation(filter))
    });
    let erasing = any::<[u8; 3]>().prop_map(|value| {
        Added::Erasing(RandomErasing::new().with_probability(0.8).with_value(value))
    });
    let jitter = (0.0..2.0, 0.0..2.0, 0.0..2.0, 0.0..0.5).prop_map(
        |(brightness, contrast, saturation, hue)| [brightness, contrast, saturation, hue],
    );
    prop_oneof![
        3 => jitter.prop_map(Added::Jitter),
        1 => Just(Added::Grey),
        3 => augment,
        2 => rotation,
        2 => erasing,
        1 => Just(Added::Flip),
        1 => (1..70usize, 1..70usize).prop_map(|(height, width)| Added::Crop(height, width)),
        1 => (0..9u16).prop_map(Added::Pad),
    ]
}

/// Plans of one step.
fn frame() -> impl Strategy<Value = ImageTransform> {
    let shape = prop_oneof![
        Just(ImageTransform::new()),
        (1..60usize).prop_map(ImageTransform::eval),
        (1..60usize, 1..60usize).prop_map(|(h, w)| ImageTransform::new().resize_exact(h, w)),
        (1..60usize).prop_map(|side| {
            let crop = RandomResizedCrop::new(side)
                .with_scale(0.02..=1.0)
                .with_ratio(0.3..=3.0);
            ImageTransform::new().random_resized_crop(crop)
        }),
        (1..90usize, 1..90usize).prop_map(|size| ImageTransform::new().random_crop(size)),
        (1..80usize, 1..40usize).prop_map(|(crop, short)| {
            ImageTransform::new()
                .center_crop(crop)
                .resize(short)
                .center_crop(short + 3)
        }),
        (0..9u16, 1..40usize, 1..30usize).prop_map(|(border, side, other)| {
            let border = Padding::from((border, 3));
            ImageTransform::new()
                .pad(border)
                .resize_exact(side, other)
                .random_crop((other, side))
        }),
    ];
    let flips = (any::<bool>(), any::<bool>());
    (shape, flips, any::<bool>(), any::<[u8; 3]>()).prop_map(|(plan, flips, cubic, fill)| {
        let plan = match flips.0 {
            true => plan.random_horizontal_flip(1.0),
            false => plan,
        };
        let plan = match flips.1 {
            true => plan.random_vertical_flip(1.0),
            false => plan,
        };
        let filter = match cubic {
            true => Interpolation::Bicubic,
            false => Interpolation::Bilinear,
        };
        plan.with_interpolation(filter).with_fill(fill)
    })
}

/// What the device makes of planes.
fn drawn(
    drawing: &Drawing,
    changes: &[Change],
    planes: &[Vec<u8>; 3],
    pitch: [usize; 3],
) -> Vec<u8> {
    let mut row = vec![0xA5; drawing.row_bytes()];
    let bytes = planes.each_ref().map(Vec::as_slice);
    drawing.render(Planes { bytes, pitch }, &mut row);
    let mut size = drawing.size;
    for change in changes {
        change.apply(&mut row, &mut size);
    }
    assert_eq!(row.len(), Change::row_bytes(changes, drawing.size));
    row
}

fn noise(seed: u64, bytes: usize) -> Vec<u8> {
    let mut rng = SampleRng::for_sample(RngKey {
        seed,
        epoch: 0,
        position: 0,
    });
    (0..bytes).map(|_| rng.next_u64() as u8).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    /// Cropped, resampled and flipped as on the CPU, whatever the picture and the plan.
    #[test]
    fn a_drawing_of_pixels_is_what_the_cpu_makes_of_them(
        (width, height) in (1..150u32, 1..120u32), plan in plan(), seed: u64, grey: bool,
    ) {
        let sampling = if grey { Sampling::Grey } else { Sampling::None };
        let bytes = (width * height) as usize;
        let planes = [1, 2, 3].map(|plane| noise(seed ^ plane, bytes));
        let pitch = [width as usize; 3];
        // The picture as it is, by the drawing of an empty plan.
        let size = Size { width, height };
        let whole = Geometry::draw(size, None, 0, u64::MAX).unwrap();
        let (whole, changes) = draw(&whole, None, sampling).unwrap();
        let rgb = drawn(&whole, &changes, &planes, pitch);
        let rgb = Tensor::from_vec(rgb, &[height as usize, width as usize, 3]).unwrap();

        let mut rng = SampleRng::for_sample(RngKey { seed, epoch: 0, position: 0 });
        let image = LazyImage::rgb(rgb).unwrap().transform(&plan, &mut rng);
        let geometry = image.geometry().unwrap();
        let (drawing, changes) = draw(&geometry, Some(&plan), sampling).unwrap();
        let expected = image.decode().unwrap();
        prop_assert!(drawn(&drawing, &changes, &planes, pitch) == expected.as_slice(), "{:?}, {:?}", drawing, changes);
        prop_assert_eq!(Drawing::from_words(&drawing.words()), Some(drawing));
    }
}

#[cfg(feature = "turbojpeg")]
proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    /// From the file to the row: as libjpeg-turbo and the CPU's resampler, byte for byte.
    #[test]
    fn a_file_that_the_device_draws_has_the_pixels_of_the_cpu(
        (width, height) in (1..150usize, 1..120usize),
        sampling in prop::sample::select(Sampling::ALL.to_vec()), plan in plan(), seed: u64,
    ) {
        let file = super::super::super::decode::compressed_as(sampling, width, height);
        let image = LazyImage::encoded(file).transform(&plan, &mut SampleRng::for_sample(RngKey { seed, epoch: 0, position: 0 }));
        let encoded = image.for_device(LIMITS).unwrap();
        let drawing = *encoded.drawing();
        let canonical = encoded.to_vec();
        prop_assert_eq!(drawing.sampling, sampling);
        let (planes, pitch) = super::super::super::decode::planes(&canonical, drawing.source, sampling);
        let changes = encoded.changes().to_vec();
        prop_assert!(drawn(&drawing, &changes, &planes, pitch) == image.decode().unwrap().as_slice(), "{:?}, {:?}", drawing, changes);
    }
}

#[test]
fn what_the_device_cannot_draw_is_left_to_the_cpu() {
    let on_cpu = |plan: ImageTransform| {
        let image = LazyImage::encoded(file()).transform(
            &plan,
            &mut SampleRng::for_sample(RngKey {
                seed: 1,
                epoch: 0,
                position: 0,
            }),
        );
        image.for_device(LIMITS).err()
    };
    let plan = ImageTransform::new().resize(20);
    assert_eq!(on_cpu(plan.clone()), None);
    assert_eq!(
        on_cpu(plan.clone().with_interpolation(Interpolation::Nearest)),
        Some(OnCpu::Filter)
    );
    assert_eq!(
        on_cpu(plan.clone().with_interpolation(Interpolation::Lanczos)),
        Some(OnCpu::Filter)
    );
    // A picture is resampled once; what follows takes pixels as they are.
    let turned = plan.clone().random_rotation(9.0);
    assert_eq!(on_cpu(turned.clone().center_crop(5)), None);
    assert_eq!(on_cpu(turned.clone().resize(5)), Some(OnCpu::Transform));
    let erased = plan
        .clone()
        .random_erasing(RandomErasing::new().with_probability(1.0));
    assert_eq!(
        on_cpu(erased.random_resized_crop(8)),
        Some(OnCpu::Transform)
    );
    let greys = |count| (0..count).fold(plan.clone(), |plan, _| plan.random_grayscale(1.0));
    assert_eq!(on_cpu(greys(Change::MOST)), None);
    assert_eq!(on_cpu(greys(Change::MOST + 1)), Some(OnCpu::Changes));
    // What is between takes the decoder's memory, too.
    let large = ImageTransform::new().resize_exact(1_000, 1_000);
    assert_eq!(on_cpu(large.clone().random_grayscale(1.0)), None);
    assert_eq!(
        on_cpu(large.random_rotation(9.0).random_rotation(9.0)),
        Some(OnCpu::TooLarge)
    );
    let small = ImageTransform::new()
        .resize_exact(4, 4)
        .with_scaled_decoding(true);
    assert_eq!(on_cpu(small), Some(OnCpu::Scaled));
    let large = ImageTransform::new()
        .resize_exact(10, 30)
        .with_scaled_decoding(true);
    assert_eq!(on_cpu(large), None);
}
