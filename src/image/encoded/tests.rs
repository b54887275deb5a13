use std::fs;
use std::path::PathBuf;

use proptest::prelude::*;

use super::*;
use crate::SampleRng;
use crate::Tensor;
use crate::image::{
    ColorJitter, LazyImage, Padding, RandAugment, RandomErasing, RandomResizedCrop, RandomRotation,
};
use crate::picture::{Planes, Sampling};

const LIMITS: DecoderLimits = DecoderLimits {
    least_side: 1,
    most_side: 16_384,
    picture_bytes: 1 << 22,
};

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
                    .brightness(brightness)
                    .contrast(contrast)
                    .saturation(saturation)
                    .hue(hue),
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
        let augment = RandAugment::new().num_ops(ops).magnitude(magnitude);
        Added::Augment(augment.interpolation(filter))
    });
    let rotation = (0.0..180.0, filter).prop_map(|(degrees, filter)| {
        Added::Rotation(RandomRotation::from(degrees).interpolation(filter))
    });
    let erasing = any::<[u8; 3]>()
        .prop_map(|value| Added::Erasing(RandomErasing::new().probability(0.8).value(value)));
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
                .scale(0.02..=1.0)
                .ratio(0.3..=3.0);
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
        plan.interpolation(filter).fill(fill)
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
    let mut rng = SampleRng::new(seed, 0, 0);
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

        let mut rng = SampleRng::new(seed, 0, 0);
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
        let file = super::super::decode::compressed_as(sampling, width, height);
        let image = LazyImage::encoded(file).transform(&plan, &mut SampleRng::new(seed, 0, 0));
        let encoded = image.for_device(LIMITS).unwrap();
        let drawing = *encoded.drawing();
        let canonical = written(&encoded);
        prop_assert_eq!(drawing.sampling, sampling);
        let (planes, pitch) = super::super::decode::planes(&canonical, drawing.source, sampling);
        let changes = encoded.changes().to_vec();
        prop_assert!(drawn(&drawing, &changes, &planes, pitch) == image.decode().unwrap().as_slice(), "{:?}, {:?}", drawing, changes);
    }
}

/// The file as the decoder is given it. Nothing is written beside it.
fn written(encoded: &Encoded<'_>) -> Vec<u8> {
    let bytes = encoded.bytes();
    let mut cell = vec![0xC3; bytes + 64];
    assert_eq!(encoded.write(&mut cell[..bytes - 1]), None);
    assert!(cell.iter().all(|byte| *byte == 0xC3));
    assert_eq!(encoded.write(&mut cell), Some(bytes));
    assert!(cell[bytes..].iter().all(|byte| *byte == 0xC3));
    cell.truncate(bytes);
    cell
}

fn fixtures() -> Vec<(String, Vec<u8>)> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/pictures");
    let mut files: Vec<_> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap())
        .map(|entry| {
            let name = entry.file_name().into_string().unwrap();
            (name, fs::read(entry.path()).unwrap())
        })
        .collect();
    files.sort();
    files
}

fn read(bytes: &[u8]) -> Result<Encoded<'_>, OnCpu> {
    Encoded::read(bytes, DecodeOptions::default(), None, 0, LIMITS)
}

fn decoded(bytes: &[u8]) -> Result<Tensor<u8>, String> {
    let image = LazyImage::encoded(bytes.to_vec()).decode();
    image.map_err(|error| error.to_string())
}

/// Which of the awkward pictures the CPU decodes, and why. All other JPEG files are the device's.
#[test]
fn each_awkward_picture_goes_where_it_can_be_decoded() {
    use OnCpu::*;
    let expected = [
        ("12-bits.jpg", Bits),
        ("410-37x11.jpg", Subsampling),
        ("411-1x1.jpg", Subsampling),
        ("411-1x21.jpg", Subsampling),
        ("411-37x1.jpg", Subsampling),
        ("411-37x11.jpg", Subsampling),
        ("441-37x11.jpg", Subsampling),
        ("arithmetic-progressive.jpg", Arithmetic),
        ("arithmetic.jpg", Arithmetic),
        ("bytes-between-segments.jpg", Header),
        ("cmyk-plain.jpg", Channels),
        ("cmyk.jpg", Channels),
        ("coarse-luma.jpg", Subsampling),
        ("damaged-lost-interval.jpg", Data),
        ("damaged-marker.jpg", Data),
        ("damaged-progressive-end.jpg", Progressive),
        ("damaged-progressive-last.jpg", Progressive),
        ("fill-bytes.jpg", Data),
        ("lossless.jpg", OtherProcess),
        ("progressive-grey.jpg", Progressive),
        ("progressive.jpg", Progressive),
        ("rgb.jpg", Rgb),
        ("three-scans-420.jpg", Scans),
        ("three-scans.jpg", Scans),
        ("ycck.jpg", Channels),
    ];
    let mut seen = 0;
    for (name, bytes) in fixtures() {
        let known = expected.iter().find(|(known, _)| *known == name);
        let reason = match known {
            Some((_, reason)) => Some(*reason),
            None if name.ends_with(".jpg") || name.ends_with(".mpo") => None,
            None => Some(NotJpeg),
        };
        assert_eq!(read(&bytes).err(), reason, "{name}");
        seen += usize::from(known.is_some());
    }
    assert_eq!(seen, expected.len());
}

#[test]
fn reasons_are_numbered_in_order() {
    for (number, reason) in OnCpu::ALL.into_iter().enumerate() {
        assert_eq!(reason as usize, number);
        assert!(!reason.to_string().is_empty());
    }
}

/// A picture of 37 x 11 pixels, in 4:2:0.
fn file() -> Vec<u8> {
    let fixtures = fixtures();
    let file = fixtures.iter().find(|(name, _)| name == "420-37x11.jpg");
    file.unwrap().1.clone()
}

/// Replaces the only occurrence of some bytes.
fn replaced(file: &[u8], from: &[u8], to: &[u8]) -> Vec<u8> {
    let places: Vec<_> = file
        .windows(from.len())
        .enumerate()
        .filter(|(_, seen)| *seen == from)
        .collect();
    let [(at, _)] = places[..] else {
        panic!("{} places of {from:x?}", places.len())
    };
    [&file[..at], to, &file[at + from.len()..]].concat()
}

#[test]
fn what_no_decoder_should_be_given_is_left_to_the_cpu() {
    let file = file();
    assert_eq!(read(&file).err(), None);
    let adobe = |transform| [&[0xFF, 0xEE, 0, 14], &b"Adobe\0d\0\0\0\0"[..], &[transform]].concat();
    let with = |segment: &[u8]| [&file[..2], segment, &file[2..]].concat();
    let frame = [0xFF, 0xC0, 0, 17, 8, 0, 11, 0, 37, 3, 1, 0x22, 0];
    let put = |at: usize, byte: u8| {
        let mut other = frame;
        other[at] = byte;
        replaced(&file, &frame, &other)
    };
    let scan = [0xFF, 0xDA, 0, 12, 3, 1, 0, 2, 0x11, 3, 0x11, 0, 63, 0];
    let scan_put = |at: usize, byte: u8| {
        let mut other = scan;
        other[at] = byte;
        replaced(&file, &scan, &other)
    };
    let dc = [0xFF, 0xC4, 0, 0x1F, 0, 0, 1, 5, 1];
    // The last symbols of the table for AC of luma.
    let ac_put = |symbol: u8| {
        let ac = [0xFF, 0xC4, 0, 0xB5, 0x10];
        let at = file.windows(ac.len()).position(|seen| seen == ac).unwrap();
        let mut other = file.clone();
        other[at + 2 + 0xB5 - 1] = symbol;
        other
    };
    for both_have in [0x00, 0xF0] {
        assert_eq!(read(&ac_put(both_have)).err(), None);
    }
    let cases = [
        ("adobe says RGB", with(&adobe(0)), OnCpu::Rgb),
        ("adobe says YCCK", with(&adobe(2)), OnCpu::Rgb),
        ("no lines", put(6, 0), OnCpu::Lines),
        ("no columns", put(8, 0), OnCpu::Header),
        ("two channels", put(9, 2), OnCpu::Channels),
        ("factor 0", put(11, 0x20), OnCpu::Header),
        (
            "a table of quantization that is not there",
            put(12, 3),
            OnCpu::Tables,
        ),
        (
            "a table of codes that is not there",
            scan_put(6, 0x22),
            OnCpu::Header,
        ),
        ("a scan of another channel", scan_put(5, 9), OnCpu::Header),
        ("a part of the spectrum", scan_put(12, 62), OnCpu::Header),
        ("a scan of four", scan_put(4, 4), OnCpu::Header),
        (
            "no codes",
            replaced(&file, &dc, &[0xFF, 0xFE, 0, 0x1F, 0, 0, 1, 5, 1]),
            OnCpu::Tables,
        ),
        ("a run without size", ac_put(0x10), OnCpu::Tables),
        ("a longer run without size", ac_put(0xE0), OnCpu::Tables),
        ("a coefficient of 11 bits", ac_put(0x0B), OnCpu::Tables),
        (
            "too many short codes",
            replaced(&file, &dc, &[0xFF, 0xC4, 0, 0x1F, 0, 2, 1, 5, 1]),
            OnCpu::Header,
        ),
        ("no end", file[..file.len() - 2].to_vec(), OnCpu::Data),
        ("nothing", Vec::new(), OnCpu::NotJpeg),
        ("no scan", [&file[..2], &[0xFF, 0xD9]].concat(), OnCpu::Data),
        (
            "lines behind the picture",
            replaced(&file, &[0xFF, 0xD9], &[0xFF, 0xDC, 0, 4, 0, 11, 0xFF, 0xD9]),
            OnCpu::Lines,
        ),
        (
            "another scan",
            replaced(&file, &[0xFF, 0xD9], &[&scan[..], &[0xFF, 0xD9]].concat()),
            OnCpu::Scans,
        ),
        (
            "an interval without restarts",
            with(&[0xFF, 0xDD, 0, 4, 0, 1]),
            OnCpu::Data,
        ),
        ("no interval", with(&[0xFF, 0xDD, 0, 3, 0]), OnCpu::Header),
    ];
    for (name, bytes, reason) in cases {
        assert_eq!(read(&bytes).err(), Some(reason), "{name}");
    }
    // Segments that say nothing of the pixels are left out.
    for (name, bytes) in [
        ("YCbCr as ever", with(&adobe(1))),
        (
            "a thumbnail",
            with(&[&[0xFF, 0xE1, 2, 0], &file[..510]].concat()),
        ),
        (
            "a comment, after bytes that fill",
            with(&[&[0xFF, 0xFF, 0xFF, 0xFE, 0, 5], &b"hello"[..3]].concat()),
        ),
        ("what is said twice", with(&[0xFF, 0xDD, 0, 4, 0, 0])),
        ("a trailer", [&file[..], &[0xFF, 0xD8, 0xFF]].concat()),
    ] {
        assert_eq!(
            written(&read(&bytes).unwrap()),
            written(&read(&file).unwrap()),
            "{name}"
        );
    }
}

#[test]
fn what_the_decoder_or_the_program_bounds_is_left_to_the_cpu() {
    let file = file();
    let limited = |limits: DecoderLimits, most: u64| {
        let decoding = DecodeOptions {
            max_pixels: most,
            ..DecodeOptions::default()
        };
        Encoded::read(&file, decoding, None, 0, limits).err()
    };
    assert_eq!(limited(LIMITS, 407), None);
    assert_eq!(limited(LIMITS, 406), Some(OnCpu::TooLarge));
    assert_eq!(
        limited(
            DecoderLimits {
                most_side: 36,
                ..LIMITS
            },
            407
        ),
        Some(OnCpu::TooLarge)
    );
    assert_eq!(
        limited(
            DecoderLimits {
                least_side: 12,
                ..LIMITS
            },
            407
        ),
        Some(OnCpu::TooSmall)
    );
    // 512 for luma, twice 256 for chroma, and the weights of pixels as they are: 16 + 10 * 37, and 16 + 10 * 11.
    assert_eq!(
        limited(
            DecoderLimits {
                picture_bytes: 1_024 + 768,
                ..LIMITS
            },
            407
        ),
        None
    );
    assert_eq!(
        limited(
            DecoderLimits {
                picture_bytes: 1_023 + 768,
                ..LIMITS
            },
            407
        ),
        Some(OnCpu::TooLarge)
    );
}

#[test]
fn what_the_device_cannot_draw_is_left_to_the_cpu() {
    let on_cpu = |plan: ImageTransform| {
        let image = LazyImage::encoded(file()).transform(&plan, &mut SampleRng::new(1, 0, 0));
        image.for_device(LIMITS).err()
    };
    let plan = ImageTransform::new().resize(20);
    assert_eq!(on_cpu(plan.clone()), None);
    assert_eq!(
        on_cpu(plan.clone().interpolation(Interpolation::Nearest)),
        Some(OnCpu::Filter)
    );
    assert_eq!(
        on_cpu(plan.clone().interpolation(Interpolation::Lanczos)),
        Some(OnCpu::Filter)
    );
    // A picture is resampled once; what follows takes pixels as they are.
    let turned = plan.clone().random_rotation(9.0);
    assert_eq!(on_cpu(turned.clone().center_crop(5)), None);
    assert_eq!(on_cpu(turned.clone().resize(5)), Some(OnCpu::Transform));
    let erased = plan
        .clone()
        .random_erasing(RandomErasing::new().probability(1.0));
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
        .scaled_decoding(true);
    assert_eq!(on_cpu(small), Some(OnCpu::Scaled));
    let large = ImageTransform::new()
        .resize_exact(10, 30)
        .scaled_decoding(true);
    assert_eq!(on_cpu(large), None);

    let exif = |orientation| {
        let content = [
            b"Exif\0\0MM\0\x2A\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0",
            &[orientation][..],
            &[0; 6],
        ]
        .concat();
        let segment = [&[0xFF, 0xE1, 0, 2 + content.len() as u8], &content[..]].concat();
        let file = file();
        [&file[..2], &segment, &file[2..]].concat()
    };
    for (orientation, applied, reason) in [
        (6, true, Some(OnCpu::Turned)),
        (6, false, None),
        (1, true, None),
    ] {
        let image = LazyImage::encoded(exif(orientation)).exif_orientation(applied);
        assert_eq!(
            image.for_device(LIMITS).err(),
            reason,
            "{orientation} {applied}"
        );
    }
}

/// The one form of a file has the pixels of the file, for the decoder that is built in.
#[test]
fn what_is_left_out_of_a_file_does_not_change_its_pixels() {
    for (name, bytes) in fixtures() {
        let Ok(encoded) = read(&bytes) else { continue };
        let canonical = written(&encoded);
        assert_eq!(decoded(&canonical), decoded(&bytes), "{name}");
        // Once more changes nothing.
        assert_eq!(written(&read(&canonical).unwrap()), canonical, "{name}");
    }
}

/// Whatever the bytes are, the answer is one of two, and what is written has a file's form, in its place.
#[test]
fn damage_of_any_kind_is_survived() {
    let mut rng = SampleRng::new(5, 0, 0);
    let mut accepted = 0;
    for (name, file) in fixtures() {
        if !name.ends_with(".jpg") {
            continue;
        }
        for _ in 0..300 {
            let mut damaged = file.clone();
            match rng.below(3) {
                0 => damaged.truncate(rng.below(file.len() as u64) as usize),
                1 => {
                    let at = rng.below(file.len() as u64) as usize;
                    damaged[at] ^= 1 << rng.below(8);
                }
                _ => {
                    // The header is where it matters.
                    for _ in 0..=rng.below(4) {
                        let at = rng.below(file.len().min(700) as u64) as usize;
                        damaged[at] = [0, 0xFF, rng.below(256) as u8][rng.below(3) as usize];
                    }
                }
            }
            let Ok(encoded) = read(&damaged) else {
                continue;
            };
            accepted += 1;
            let canonical = written(&encoded);
            let again = read(&canonical).unwrap();
            assert_eq!(again.drawing(), encoded.drawing());
            assert_eq!(written(&again), canonical, "{name}");
        }
    }
    assert!(accepted > 2_000, "{accepted}");
}
