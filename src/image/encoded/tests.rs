mod transforms;

use std::fs;
use std::path::PathBuf;

use proptest::prelude::*;

use super::*;
use crate::SampleRng;
use crate::Tensor;
use crate::image::LazyImage;
use crate::image::file::FileBytes;
use crate::picture::Sampling;
use crate::rng::RngKey;

const LIMITS: DecoderLimits = DecoderLimits {
    least_side: 1,
    most_side: 16_384,
    picture_bytes: 1 << 22,
};

/// The file as the decoder is given it, in a buffer of its own and where it was read.
fn written(file: &[u8], encoded: &Encoded<'_>) -> Vec<u8> {
    let written = encoded.to_vec();
    let [before, behind] = encoded.frame();
    let mut in_place = FileBytes::from(file.to_vec());
    in_place.frame(&before, encoded.data(), &behind);
    assert!(in_place.as_ref() == written);
    written
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
        ("many-scans.jpg", Progressive),
        ("progressive-grey.jpg", Progressive),
        ("progressive.jpg", Progressive),
        ("rgb.jpg", Rgb),
        ("sampled-1x4-1x2.jpg", Subsampling),
        ("sampled-3x1.jpg", Subsampling),
        ("three-scans-420.jpg", Scans),
        ("three-scans.jpg", Scans),
        ("two-frames.jpg", Data),
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
            written(&bytes, &read(&bytes).unwrap()),
            written(&file, &read(&file).unwrap()),
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
fn pictures_that_exif_turns_are_left_to_the_cpu() {
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
        let image = LazyImage::encoded(exif(orientation)).with_exif_orientation(applied);
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
        let canonical = written(&bytes, &encoded);
        assert_eq!(decoded(&canonical), decoded(&bytes), "{name}");
        // Once more changes nothing.
        let again = read(&canonical).unwrap();
        assert_eq!(written(&canonical, &again), canonical, "{name}");
    }
}

/// Whatever the bytes are, the answer is one of two, and what is written has a file's form, in its place.
#[test]
fn damage_of_any_kind_is_survived() {
    let mut rng = SampleRng::for_sample(RngKey {
        seed: 5,
        epoch: 0,
        position: 0,
    });
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
            let canonical = written(&damaged, &encoded);
            let again = read(&canonical).unwrap();
            assert_eq!(again.drawing(), encoded.drawing());
            assert_eq!(written(&canonical, &again), canonical, "{name}");
        }
    }
    assert!(accepted > 2_000, "{accepted}");
}
