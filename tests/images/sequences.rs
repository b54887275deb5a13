//! What a picture becomes does not depend on what its thread decoded before.

#![cfg(not(miri))] // it reads files

use std::fs;
use std::path::PathBuf;
use std::thread;

use pinfeed::SampleRng;
use pinfeed::image::{ImageTransform, LazyImage};
use pinfeed::rng::RngKey;

/// The pixels, or what is said instead.
type Outcome = Result<Vec<u8>, String>;

fn decode(bytes: &[u8]) -> Outcome {
    let image = LazyImage::encoded(bytes.to_vec()).with_max_pixels(1 << 20);
    match image.decode() {
        Ok(pixels) => Ok(pixels.as_slice().to_vec()),
        Err(error) => Err(error.to_string()),
    }
}

/// The same, cropped first.
fn cropped(bytes: &[u8]) -> Outcome {
    let image = LazyImage::encoded(bytes.to_vec()).with_max_pixels(1 << 20);
    let image = image.transform(
        &ImageTransform::train(9),
        &mut SampleRng::for_sample(RngKey {
            seed: 3,
            epoch: 0,
            position: 0,
        }),
    );
    match image.decode() {
        Ok(pixels) => Ok(pixels.as_slice().to_vec()),
        Err(error) => Err(error.to_string()),
    }
}

/// What comes of it on a thread that decoded nothing before.
fn alone<R: Send>(f: impl FnOnce() -> R + Send) -> R {
    thread::scope(|scope| {
        let thread = thread::Builder::new().name("alone".to_owned());
        thread.spawn_scoped(scope, f).unwrap().join().unwrap()
    })
}

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/pictures")
}

fn fixture(name: &str) -> Vec<u8> {
    fs::read(folder().join(name)).unwrap()
}

/// All files of the fixtures, with what they are alone: as a whole, and cropped.
fn fixtures() -> Vec<(String, Vec<u8>, Outcome, Outcome)> {
    let files = fs::read_dir(folder()).unwrap();
    let mut names: Vec<_> = files
        .map(|file| file.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort_unstable();
    let read = |name: String| {
        let bytes = fixture(&name);
        let whole = alone(|| decode(&bytes));
        let part = alone(|| cropped(&bytes));
        (name, bytes, whole, part)
    };
    names.into_iter().map(read).collect()
}

/// Where a marker of JPEG is.
fn find(bytes: &[u8], marker: [u8; 2]) -> usize {
    bytes.windows(2).position(|pair| pair == marker).unwrap()
}

/// A JPEG file without its segments of one kind.
fn without(bytes: &[u8], kind: u8) -> Vec<u8> {
    let mut file = bytes[..2].to_vec();
    let mut rest = &bytes[2..];
    while rest[1] != 0xDA {
        let length = 2 + usize::from(u16::from_be_bytes([rest[2], rest[3]]));
        if rest[1] != kind {
            file.extend(&rest[..length]);
        }
        rest = &rest[length..];
    }
    file.extend(rest);
    file
}

/// JPEG files that are broken in ways of which decoders say little.
fn broken() -> Vec<(String, Vec<u8>)> {
    let mut broken = Vec::new();
    for name in [
        "444-37x11.jpg",
        "420-37x11.jpg",
        "grey.jpg",
        "progressive.jpg",
    ] {
        let file = fixture(name);
        let frame = find(
            &file,
            [0xFF, 0xC0 + 2 * u8::from(name == "progressive.jpg")],
        );
        let scan = find(&file, [0xFF, 0xDA]);
        let end = [0xFF, 0xD9];
        broken.extend([
            (
                format!("{name}, tables only"),
                [&file[..frame], &end].concat(),
            ),
            (
                format!("{name}, header only"),
                [&file[..scan], &end].concat(),
            ),
            (
                format!("{name}, no scan"),
                [&file[..scan + 14], &end].concat(),
            ),
            (format!("{name}, half"), file[..file.len() / 2].to_vec()),
            (
                format!("{name}, half and an end"),
                [&file[..(scan + file.len()) / 2], &end].concat(),
            ),
            (
                format!("{name}, no frame"),
                [&file[..frame], &file[scan..]].concat(),
            ),
            (format!("{name}, no Huffman tables"), without(&file, 0xC4)),
            (format!("{name}, no quantization"), without(&file, 0xDB)),
            (format!("{name}, nothing else"), [&file[..2], &end].concat()),
            (
                format!("{name}, tables in front"),
                [&file[..frame], &end, &file[..]].concat(),
            ),
        ]);
    }
    broken
}

fn is_jpeg(name: &str) -> bool {
    name.ends_with(".jpg") || name.ends_with(".mpo")
}

/// Any file, whatever came of it, and then any other: what that is alone.
#[test]
fn a_picture_is_what_it_is_alone() {
    let fixtures = fixtures();
    let mut before: Vec<_> = broken();
    before.extend(
        fixtures
            .iter()
            .map(|(name, bytes, ..)| (name.clone(), bytes.clone())),
    );
    let mut complaints = Vec::new();
    for (broken, first) in &before {
        let before_all = alone(|| decode(first));
        complaints.extend(alone(|| {
            let mut complaints = Vec::new();
            for (name, bytes, whole, part) in fixtures.iter().filter(|(name, ..)| is_jpeg(name)) {
                if decode(first) != before_all {
                    complaints.push(format!("{name}, then {broken}"));
                }
                if decode(bytes) != *whole || cropped(bytes) != *part {
                    complaints.push(format!("{broken}, then {name}"));
                }
            }
            complaints
        }));
    }
    let count = complaints.len();
    complaints.truncate(20);
    assert!(count == 0, "{count} pairs:\n{}", complaints.join("\n"));
}

/// One damaged byte of a header, wherever it is, leaves no trace in the pictures that follow on its thread.
#[test]
fn a_damaged_header_spoils_nothing_but_its_picture() {
    let good = ["420-37x11.jpg", "grey.jpg", "444-1x21.jpg", "410-37x11.jpg"];
    let good: Vec<_> = good
        .map(|name| (name, fixture(name)))
        .map(|(name, bytes)| (name, alone(|| decode(&bytes)), bytes))
        .into();
    let file = fixture("422-37x11.jpg");
    let header = find(&file, [0xFF, 0xDA]) + 14;
    let complaints: Vec<_> = alone(|| {
        let mut complaints = Vec::new();
        for at in 0..header {
            for value in [
                0,
                0xFF,
                file[at] ^ 1,
                file[at] ^ 0x10,
                file[at].wrapping_add(7),
            ] {
                let mut damaged = file.clone();
                damaged[at] = value;
                let _ = decode(&damaged);
                let (name, expected, bytes) = &good[at % good.len()];
                if decode(bytes) != *expected {
                    complaints.push(format!("{value} at {at}, then {name}"));
                }
            }
        }
        complaints
    });
    assert!(complaints.is_empty(), "\n{}", complaints.join("\n"));
}
