use super::*;
use crate::SampleRng;
use crate::image::LazyImage;
use crate::image::plan::ImageTransform;
use crate::rng::RngKey;

/// A PNG file whose values are labels, of the given kind.
fn png(color: png::ColorType, depth: png::BitDepth, packed: &[u8], size: (u32, u32)) -> Vec<u8> {
    let mut file = Vec::new();
    let mut encoder = png::Encoder::new(&mut file, size.0, size.1);
    encoder.set_color(color);
    encoder.set_depth(depth);
    if color == png::ColorType::Indexed {
        // Colours that have nothing to do with the labels.
        encoder.set_palette((0..48).map(|at| 255 - 5 * at).collect::<Vec<u8>>());
        encoder.set_trns(vec![0; 3]);
    }
    let mut writer = encoder.write_header().unwrap();
    writer.write_image_data(packed).unwrap();
    writer.finish().unwrap();
    file
}

fn read(file: Vec<u8>) -> Result<Vec<u8>, String> {
    let mask = LazyMask::encoded(file).with_path("masks/7.png").decode();
    mask.map(|labels| labels.as_slice().to_vec())
        .map_err(|error| error.to_string())
}

#[test]
fn a_palette_is_not_looked_up() {
    use png::{BitDepth, ColorType};
    let size = (5, 2);
    let labels = [0, 1, 2, 3, 0, 3, 2, 1, 0, 3];
    let two_bits = [0b00_01_10_11, 0b00_000000, 0b11_10_01_00, 0b11_000000];
    let four_bits = [0x01, 0x23, 0x00, 0x32, 0x10, 0x30];
    for color in [ColorType::Indexed, ColorType::Grayscale] {
        for (depth, packed) in [
            (BitDepth::Two, &two_bits[..]),
            (BitDepth::Four, &four_bits),
            (BitDepth::Eight, &labels),
        ] {
            assert_eq!(
                read(png(color, depth, packed, size)).unwrap(),
                labels,
                "{color:?} {depth:?}"
            );
        }
    }
    let one_bit = png(
        ColorType::Grayscale,
        BitDepth::One,
        &[0b0100_1000, 0b1000_1000],
        size,
    );
    assert_eq!(read(one_bit).unwrap(), [0, 1, 0, 0, 1, 1, 0, 0, 0, 1]);
}

#[test]
fn other_files_of_grey_are_masks_too() {
    let labels = [9, 8, 7, 6, 5, 200];
    for format in [ImageFormat::Pnm, ImageFormat::Bmp] {
        let mut file = Cursor::new(Vec::new());
        let grey = image::GrayImage::from_vec(3, 2, labels.to_vec()).unwrap();
        grey.write_to(&mut file, format).unwrap();
        match read(file.into_inner()) {
            Ok(read) => assert_eq!(read, labels, "{format:?}"),
            // BMP keeps grey as a palette, which its decoder looks up.
            Err(said) => assert!(
                format == ImageFormat::Bmp && said.contains("Rgb8"),
                "{said}"
            ),
        }
    }
}

fn fixture(name: &str) -> Vec<u8> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/pictures/");
    std::fs::read(format!("{folder}{name}")).unwrap()
}

/// Values are not stretched to 0..=255, as they are where the same file is a picture. (Pillow stretches 2 and 4 bits in either
/// case.) Those of a palette are not looked up.
#[test]
fn labels_of_tiff_are_the_values_in_the_file() {
    let shown = |name: &str| {
        let image = LazyImage::encoded(fixture(name)).decode().unwrap();
        image
            .as_slice()
            .iter()
            .copied()
            .step_by(3)
            .collect::<Vec<_>>()
    };
    for (name, most) in [
        ("grey-2.tif", 3),
        ("grey-4.tif", 15),
        ("grey.tif", 255),
        ("tiles-lzw-grey.tif", 255),
        // Black is 0, also where the file has it otherwise.
        ("white-is-zero-2.tif", 3),
        ("white-is-zero-4.tif", 15),
        ("white-is-zero.tif", 255),
    ] {
        let stretched = shown(name).into_iter().map(|grey| grey / (255 / most));
        assert_eq!(
            read(fixture(name)).unwrap(),
            stretched.collect::<Vec<_>>(),
            "{name}"
        );
    }
    // Pillow's palette of greys has each value's own grey.
    assert_eq!(read(fixture("palette.tif")).unwrap(), shown("palette.tif"));
    for (name, what) in [
        ("grey-alpha.tif", "grey of 8 bits beside other channels"),
        ("grey-16.tif", "grey of 16 bits"),
        ("rgb-raw.tif", "RGB of 8 bits"),
        ("cmyk.tif", "CMYK of 8 bits"),
    ] {
        let said = read(fixture(name)).unwrap_err();
        let expected = format!("its pixels are {what}, and those of a mask are labels");
        assert!(said.contains(&expected), "{said}");
    }
}

/// As those of a PNG file of one bit, and of Pillow's mode "1".
#[test]
fn labels_of_one_bit_are_0_and_1() {
    for name in ["bits.tif", "bits-group4.tif"] {
        let file = fixture(name);
        let shown = LazyImage::encoded(file.clone()).decode().unwrap();
        let white = shown.as_slice().iter().step_by(3).map(|grey| grey / 255);
        let labels = read(file).unwrap();
        assert!(labels.contains(&0) && labels.contains(&1), "{labels:?}");
        assert!(labels.iter().copied().eq(white), "{name}: {labels:?}");
    }
    // Ones are black there.
    assert_eq!(
        read(b"P4 3 2 \x40\xA0".to_vec()).unwrap(),
        [1, 0, 1, 0, 1, 0]
    );
    assert_eq!(
        read(b"P1 3 2 0 1 0 1 0 1".to_vec()).unwrap(),
        [1, 0, 1, 0, 1, 0]
    );
}

#[test]
fn what_has_no_labels_says_what_to_do() {
    use png::{BitDepth, ColorType};
    let mut jpeg = Cursor::new(Vec::new());
    let grey = image::GrayImage::new(3, 2);
    grey.write_to(&mut jpeg, ImageFormat::Jpeg).unwrap();
    let rgb = png(ColorType::Rgb, BitDepth::Eight, &[7; 18], (3, 2));
    let deep = png(ColorType::Grayscale, BitDepth::Sixteen, &[7; 12], (3, 2));
    for (file, what) in [
        (rgb, "Rgb of 8 bits"),
        (deep, "Grayscale of 16 bits"),
        (jpeg.into_inner(), "JPEG"),
    ] {
        let said = read(file).unwrap_err();
        assert!(said.starts_with("masks/7.png: "), "{said}");
        assert!(
            said.contains(what) && said.contains("LazyMask::labels"),
            "{said}"
        );
    }
    assert!(read(Vec::new()).unwrap_err().contains("empty"));
    let cut = png(ColorType::Grayscale, BitDepth::Eight, &[7; 900], (30, 30));
    assert!(read(cut[..cut.len() / 2].to_vec()).is_err());
    let huge = png(ColorType::Grayscale, BitDepth::Eight, &[7; 900], (30, 30));
    let error = LazyMask::encoded(huge)
        .with_max_pixels(899)
        .decode()
        .unwrap_err();
    assert!(error.to_string().contains("max_pixels is 899"), "{error}");
    let error = LazyMask::labels(Tensor::zeros(&[2, 3, 1])).unwrap_err();
    assert!(error.to_string().contains("[2, 3, 1]"), "{error}");
}

/// Each label is where its picture's pixel is, and what is outside has the label that was asked for.
#[test]
fn a_mask_follows_its_picture() {
    let value = |index: usize| 1 + (index % 64 / 16 + 4 * (index / 64 / 12)) as u8;
    let labels: Vec<u8> = (0..64 * 48).map(value).collect();
    let pixels = labels.iter().flat_map(|label| [label * 9; 3]).collect();
    let pixels = Tensor::from_vec(pixels, &[48, 64, 3]).unwrap();
    let labels = Tensor::from_vec(labels, &[48, 64]).unwrap();
    let plan = ImageTransform::new()
        .random_resized_crop((31, 40))
        .random_horizontal_flip(0.5)
        .random_rotation(40.0)
        .pad(3)
        .random_vertical_flip(0.5)
        .with_interpolation(Interpolation::Nearest);
    let (mut outside, mut seen) = (0, std::collections::HashSet::new());
    for seed in 0..50 {
        let image = LazyImage::rgb(pixels.view()).unwrap();
        let image = image.transform(
            &plan,
            &mut SampleRng::for_sample(RngKey {
                seed,
                epoch: 0,
                position: 0,
            }),
        );
        let mask = LazyMask::labels(labels.view()).unwrap().with_fill(255);
        let mask = mask
            .with_geometry(image.geometry().unwrap())
            .decode()
            .unwrap();
        let image = image.decode().unwrap();
        assert_eq!(mask.shape()[..], [37, 46]);
        for (label, pixel) in mask.as_slice().iter().zip(image.as_slice().chunks_exact(3)) {
            match label {
                255 => outside += usize::from(pixel == [0; 3]),
                label => assert_eq!(pixel, [label * 9; 3], "seed {seed}"),
            }
            seen.insert(*label);
        }
    }
    assert!(outside > 50 * (37 * 46 - 31 * 40), "{outside}");
    assert_eq!(seen.len(), 17);
}

#[test]
fn a_mask_of_another_size_is_refused() {
    let image = LazyImage::rgb(Tensor::zeros(&[48, 64, 3])).unwrap();
    let mask = LazyMask::labels(Tensor::zeros(&[64, 48])).unwrap();
    let error = mask
        .with_geometry(image.geometry().unwrap())
        .decode()
        .unwrap_err();
    assert!(
        error
            .to_string()
            .contains("48 x 64 pixels and its picture 64 x 48"),
        "{error}"
    );
}
