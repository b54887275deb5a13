use image::{ExtendedColorType, ImageEncoder};

use super::*;
use crate::SampleRng;
use crate::image::pixels::Scratch;
use crate::rng::RngKey;

fn decode(bytes: &[u8], decoding: DecodeOptions) -> Result<(Size, Vec<u8>), Cause> {
    let picture = open(bytes, decoding)?;
    let size = picture.size();
    let mut rgb = vec![0; size.width as usize * size.height as usize * 3];
    picture.decode_into(Rect::whole(size), 1, &mut rgb, &mut Buffer::default())?;
    Ok((size, rgb))
}

fn rgb(bytes: &[u8]) -> Vec<u8> {
    decode(bytes, DecodeOptions::default()).unwrap().1
}

fn png(pixels: &[u8], width: u32, height: u32, color: ExtendedColorType) -> Vec<u8> {
    let mut file = Vec::new();
    image::codecs::png::PngEncoder::new(&mut file)
        .write_image(pixels, width, height, color)
        .unwrap();
    file
}

fn jpeg(pixels: &[u8], width: u32, height: u32, color: ExtendedColorType) -> Vec<u8> {
    let mut file = Vec::new();
    image::codecs::jpeg::JpegEncoder::new_with_quality(&mut file, 100)
        .write_image(pixels, width, height, color)
        .unwrap();
    file
}

/// A JPEG of 32 x 16 pixels in four quarters: white, red, green, blue.
fn quarters() -> Vec<u8> {
    let color = |x, y| match (x < 16, y < 8) {
        (true, true) => [255, 255, 255],
        (false, true) => [255, 0, 0],
        (true, false) => [0, 255, 0],
        (false, false) => [0, 0, 255],
    };
    let pixels: Vec<u8> = (0..16)
        .flat_map(|y| (0..32).flat_map(move |x| color(x, y)))
        .collect();
    jpeg(&pixels, 32, 16, ExtendedColorType::Rgb8)
}

/// Inserts a segment after a JPEG's first two bytes.
fn with_segment(jpeg: &[u8], marker: u8, content: &[u8]) -> Vec<u8> {
    let length = (content.len() as u16 + 2).to_be_bytes();
    let segment = [&[0xFF, marker], &length[..], content].concat();
    [&jpeg[..2], &segment, &jpeg[2..]].concat()
}

/// EXIF data with only an orientation.
fn exif(orientation: u8) -> Vec<u8> {
    let header = b"Exif\0\0MM\0\x2A\0\0\0\x08\0\x01";
    let entry = [0x01, 0x12, 0, 3, 0, 0, 0, 1, 0, orientation, 0, 0];
    [&header[..], &entry, &[0; 4]].concat()
}

#[test]
fn any_colour_type_becomes_rgb() {
    let wide = |values: [u16; 4]| values.map(u16::to_ne_bytes).concat();
    let values = [0x1234, 0xABCD, 0xFF00, 0x00FF];
    let cases = [
        (
            png(&[7, 9], 2, 1, ExtendedColorType::L8),
            [7, 7, 7, 9, 9, 9],
        ),
        (
            png(&[7, 0, 9, 255], 2, 1, ExtendedColorType::La8),
            [7, 7, 7, 9, 9, 9],
        ),
        (
            png(&[1, 2, 3, 4, 5, 6], 2, 1, ExtendedColorType::Rgb8),
            [1, 2, 3, 4, 5, 6],
        ),
        (
            png(&[1, 2, 3, 0, 4, 5, 6, 255], 2, 1, ExtendedColorType::Rgba8),
            [1, 2, 3, 4, 5, 6],
        ),
        (
            png(&wide(values)[..4], 2, 1, ExtendedColorType::L16),
            [0x12, 0x12, 0x12, 0xAB, 0xAB, 0xAB],
        ),
        (
            png(&wide(values), 2, 1, ExtendedColorType::La16),
            [0x12, 0x12, 0x12, 0xFF, 0xFF, 0xFF],
        ),
        (
            png(
                &[wide(values), wide(values)].concat()[..12],
                2,
                1,
                ExtendedColorType::Rgb16,
            ),
            [0x12, 0xAB, 0xFF, 0x00, 0x12, 0xAB],
        ),
        (
            png(
                &[wide(values), wide(values)].concat(),
                2,
                1,
                ExtendedColorType::Rgba16,
            ),
            [0x12, 0xAB, 0xFF, 0x12, 0xAB, 0xFF],
        ),
    ];
    for (file, expected) in cases {
        assert_eq!(rgb(&file), expected);
    }
    let floats = [0.0f32, 0.5, 1.0, -3.0, 7.0, f32::NAN]
        .map(f32::to_ne_bytes)
        .concat();
    let mut converted = [1; 6];
    to_rgb(ColorType::Rgb32F, &floats, &mut converted).unwrap();
    assert_eq!(converted, [0, 128, 255, 0, 255, 0]);
}

/// The decoder would panic at it.
#[test]
fn a_palette_of_49_bytes_is_an_error() {
    let file = include_bytes!("../../../tests/data/odd-palette.png").to_vec();
    let error = crate::image::LazyImage::encoded(file)
        .decode()
        .unwrap_err()
        .to_string();
    assert!(error.contains("palette"), "{error}");
}

#[test]
fn grey_jpegs_palettes_and_cmyk_become_rgb() {
    let grey = rgb(&jpeg(&[99; 64], 8, 8, ExtendedColorType::L8));
    assert_eq!(grey, [99; 192]);
    let palette = include_bytes!("../../../tests/data/palette.png");
    assert_eq!(rgb(palette), [255, 0, 0, 0, 255, 0, 0, 0, 255, 9, 8, 7]);
    let cmyk = rgb(include_bytes!("../../../tests/data/cmyk.jpg"));
    let at = |x: usize, y: usize| &cmyk[(y * 16 + x) * 3..][..3];
    let close = |found: &[u8], expected: [u8; 3]| {
        let near = found
            .iter()
            .zip(expected)
            .all(|(found, expected)| found.abs_diff(expected) < 3);
        assert!(near, "{found:?} {expected:?}");
    };
    close(at(4, 4), [255, 0, 0]);
    close(at(12, 4), [0, 255, 0]);
    close(at(4, 12), [0, 0, 255]);
    close(at(12, 12), [127, 127, 127]);
}

/// EXIF's eight orientations: where the picture's first row and first column belong.
#[test]
fn exif_orientation_turns_the_picture_only_where_asked() {
    // w(hite), r(ed), g(reen) and b(lue) of the upright picture, row by row.
    let upright = [
        "wrgb", "rwbg", "bgrw", "gbwr", "wgrb", "gwbr", "brgw", "rbwg",
    ];
    for (index, expected) in upright.iter().enumerate() {
        let file = with_segment(&quarters(), 0xE1, &exif(index as u8 + 1));
        let decoding = DecodeOptions {
            exif_orientation: true,
            ..DecodeOptions::default()
        };
        let (size, pixels) = decode(&file, decoding).unwrap();
        let turned = index >= 4;
        assert_eq!(
            (size.width, size.height),
            if turned { (16, 32) } else { (32, 16) }
        );
        let name = |x: u32, y: u32| {
            let at = (y * size.width + x) as usize * 3;
            match [pixels[at], pixels[at + 1], pixels[at + 2]].map(|channel| channel > 127) {
                [true, true, true] => 'w',
                [true, false, false] => 'r',
                [false, true, false] => 'g',
                [false, false, true] => 'b',
                _ => '?',
            }
        };
        let (x, y) = (size.width / 4, size.height / 4);
        let corners = [
            name(x, y),
            name(3 * x, y),
            name(x, 3 * y),
            name(3 * x, 3 * y),
        ];
        assert_eq!(
            String::from_iter(corners),
            *expected,
            "orientation {}",
            index + 1
        );

        let (size, pixels) = decode(&file, DecodeOptions::default()).unwrap();
        assert_eq!((size.width, size.height), (32, 16));
        assert_eq!(pixels, rgb(&quarters()));
    }
}

#[test]
fn truncated_files_are_errors() {
    let whole = quarters();
    for length in 1..whole.len() {
        assert!(
            decode(&whole[..length], DecodeOptions::default()).is_err(),
            "{length} bytes"
        );
    }
    // The end marker of a thumbnail does not end the picture.
    let thumbnail = with_segment(&whole, 0xE1, &whole);
    assert_eq!(rgb(&thumbnail), rgb(&whole));
    let cut = decode(&thumbnail[..thumbnail.len() - 2], DecodeOptions::default());
    assert!(matches!(cut, Err(Cause::Truncated("JPEG"))));
    // Bytes after the end marker are ignored.
    assert_eq!(rgb(&[&whole[..], b"trailer"].concat()), rgb(&whole));

    let noise: Vec<u8> = (0..3000u32)
        .map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8)
        .collect();
    let whole = png(&noise, 50, 20, ExtendedColorType::Rgb8);
    for length in [0, 1, 8, 20, 60, whole.len() / 2, whole.len() - 30] {
        assert!(
            decode(&whole[..length], DecodeOptions::default()).is_err(),
            "{length} bytes"
        );
    }
}

#[test]
fn what_is_no_picture_is_an_error_that_says_so() {
    let cases: [(&[u8], &str); 16] = [
        (b"", "the file is empty"),
        (b"404 not found", "not a picture in a known format"),
        (b"\n <!DOCTYPE html><html>", "an HTML page, not a picture"),
        (b"\xEF\xBB\xBF<html>not found</html>", "an HTML page"),
        (
            b"version https://git-lfs.github.com/spec/v1\n",
            "`git lfs pull`",
        ),
        (b"\x1F\x8B\x08\0", "gzip"),
        (b"GIF89a...", "its GIF data ends too soon"),
        (b"\0\0\0\x1CftypavifXXXX", "AVIF"),
        (
            b"\0\0\0\x18ftypheicXXXX",
            "HEIC, which is not decoded: convert it",
        ),
        (b"\0\0\0\x20ftypisomXXXX", "a video"),
        (b"\0\0\0\x0CJXL \r\n\x87\n", "JPEG XL"),
        (b"\xFF\x4F\xFF\x51\0", "JPEG 2000"),
        (b"8BPS\0\x01", "PSD"),
        (b"<svg xmlns=", "SVG"),
        (
            b"DDS |\0\0\0",
            "DDS, which is not decoded: enable its feature",
        ),
        (
            b"\xFF\xD8\xFF\xF7\0\x0B\x08\0\x01\0\x01\x01\x01\x11\0\xFF\xD9",
            "JPEG-LS",
        ),
    ];
    for (bytes, expected) in cases {
        let said = decode(bytes, DecodeOptions::default())
            .unwrap_err()
            .to_string();
        assert!(said.contains(expected), "`{said}` lacks `{expected}`");
    }
}

/// After a panic, the next picture can still use the thread's memory.
#[test]
fn a_panic_while_decoding_leaves_the_thread_usable() {
    let panics = || {
        Scratch::with(|scratch| {
            scratch.raw.zeroed(100).fill(9);
            panic!("as a decoder might")
        })
    };
    let panicked = std::panic::catch_unwind(panics);
    assert!(panicked.is_err());
    for file in [quarters(), png(&[7; 400], 10, 10, ExtendedColorType::Rgba8)] {
        let transform = crate::image::ImageTransform::eval(4);
        let image = crate::image::LazyImage::encoded(file);
        let image = image.transform(
            &transform,
            &mut SampleRng::for_sample(RngKey {
                seed: 0,
                epoch: 0,
                position: 0,
            }),
        );
        assert_eq!(image.decode().unwrap().shape()[..], [4, 4, 3]);
    }
}

/// A decoder with a bug.
struct Panicking(ColorType);

impl ImageDecoder for Panicking {
    fn dimensions(&self) -> (u32, u32) {
        (2, 2)
    }

    fn color_type(&self) -> ColorType {
        self.0
    }

    fn read_image(self, pixels: &mut [u8]) -> image::ImageResult<()> {
        pixels.fill(7);
        panic!("no such table: {}", 9)
    }

    fn read_image_boxed(self: Box<Self>, pixels: &mut [u8]) -> image::ImageResult<()> {
        (*self).read_image(pixels)
    }
}

#[test]
fn a_decoder_that_panics_is_an_error_of_its_picture() {
    let panicking = |color, orientation| Picture {
        decoder: Decoder::Any(Box::new(Panicking(color))),
        stored: Size {
            width: 2,
            height: 2,
        },
        orientation,
    };
    let says = "its decoder panicked, which is a bug of the decoder: no such table: 9";
    for color in [ColorType::Rgb8, ColorType::L8, ColorType::Rgba16] {
        for orientation in [Orientation::NoTransforms, Orientation::Rotate90] {
            let picture = panicking(color, orientation);
            let whole = Rect::whole(picture.size());
            let decoded = picture.decode_into(whole, 1, &mut [0; 12], &mut Buffer::default());
            assert_eq!(decoded.unwrap_err().to_string(), says);
        }
    }
    let mask = panicking(ColorType::L8, Orientation::NoTransforms);
    let error = mask.decode_labels(&mut [0; 4]).unwrap_err();
    assert_eq!(error.to_string(), says);
    let error = caught::<()>(|| std::panic::panic_any(7)).unwrap_err();
    assert!(error.to_string().ends_with("no message"), "{error}");
}

#[test]
fn what_looks_like_a_frame_is_one_only_where_a_segment_begins() {
    let file = with_segment(&quarters(), 0xFE, b"\xFF\xC3\0\x0B no frame");
    let filled = [&file[..2], &[0xFF; 3], &file[2..]].concat();
    assert_eq!(rgb(&filled), rgb(&quarters()));
    let frame = filled
        .windows(2)
        .position(|pair| pair == [0xFF, 0xC0])
        .unwrap();
    let mut lossless = filled;
    lossless[frame + 1] = 0xC3;
    let said = decode(&lossless, DecodeOptions::default())
        .unwrap_err()
        .to_string();
    assert!(said.contains("lossless JPEG"), "{said}");
}

#[test]
fn a_header_is_not_believed_beyond_the_limit() {
    // A PNG's width and height are its bytes 16 to 24, and their checksum the bytes 29 to 33.
    let mut file = png(&[0; 3], 1, 1, ExtendedColorType::Rgb8);
    file[16..24].copy_from_slice(&[0, 0, 0xEA, 0x60, 0, 0, 0xEA, 0x60]);
    let crc = crc32(&file[12..29]);
    file[29..33].copy_from_slice(&crc.to_be_bytes());
    let error = decode(&file, DecodeOptions::default())
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("60000 x 60000") && error.contains("178956970"),
        "{error}"
    );

    let limited = |file: &[u8], max_pixels| {
        let decoding = DecodeOptions {
            max_pixels,
            ..DecodeOptions::default()
        };
        decode(file, decoding).is_ok()
    };
    assert!(limited(&quarters(), 512) && !limited(&quarters(), 511));
    // 8 bytes a pixel count twice.
    let wide = png(&[0; 80], 10, 1, ExtendedColorType::Rgba16);
    assert!(limited(&wide, 20) && !limited(&wide, 19));
}

fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |crc, &byte| {
        (0..8).fold(crc ^ u32::from(byte), |crc, _| {
            (crc >> 1) ^ (0xEDB8_8320 * (crc & 1))
        })
    })
}

/// Damaged files decode to something or fail; they do not panic.
#[test]
fn damage_is_an_error_or_shows() {
    let mut rng = SampleRng::for_sample(RngKey {
        seed: 3,
        epoch: 0,
        position: 0,
    });
    let noise: Vec<u8> = (0..3072).map(|_| rng.below(256) as u8).collect();
    let files = [
        jpeg(&noise, 32, 32, ExtendedColorType::Rgb8),
        png(&noise, 32, 32, ExtendedColorType::Rgb8),
        include_bytes!("../../../tests/data/cmyk.jpg").to_vec(),
    ];
    for file in files {
        for _ in 0..300 {
            let mut damaged = file.clone();
            for _ in 0..=rng.below(4) {
                let at = rng.below(file.len() as u64) as usize;
                damaged[at] = rng.below(256) as u8;
            }
            let decoding = DecodeOptions {
                exif_orientation: true,
                max_pixels: 1 << 20,
            };
            let _ = decode(&damaged, decoding);
        }
    }
}
