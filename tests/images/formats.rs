//! Pictures of every kind that a decoder meets become the pixels that they should, or an error that says what to do.

#![cfg(not(miri))] // it reads files

use std::fs;
use std::path::PathBuf;

use pinfeed::Tensor;
use pinfeed::image::{ImageError, LazyImage};
use serde_json::Value;

/// The decoder of JPEG files.
const DECODER: &str = if cfg!(feature = "turbojpeg") {
    "turbojpeg"
} else {
    "default"
};

fn fixtures() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures")
}

/// The files of tests/fixtures/pictures.py, and what is known of each.
fn pictures() -> Vec<(String, Vec<u8>, Value)> {
    let text = fs::read_to_string(fixtures().join("pictures.json")).unwrap();
    let Value::Object(pictures) = serde_json::from_str(&text).unwrap() else {
        panic!("pictures.json is no object")
    };
    let read = |(name, known): (String, Value)| {
        let bytes = fs::read(fixtures().join("pictures").join(&name)).unwrap();
        (name, bytes, known)
    };
    pictures.into_iter().map(read).collect()
}

fn decode(bytes: &[u8], exif_orientation: bool) -> Result<Tensor<u8>, ImageError> {
    LazyImage::encoded(bytes.to_vec())
        .with_exif_orientation(exif_orientation)
        .decode()
}

fn unhex(text: &str) -> Vec<u8> {
    let digit = |byte: u8| (byte as char).to_digit(16).unwrap() as u8;
    let bytes = text.as_bytes().chunks_exact(2);
    bytes
        .map(|pair| 16 * digit(pair[0]) + digit(pair[1]))
        .collect()
}

/// What is wrong with a picture, if anything is.
fn compare(decoded: Result<Tensor<u8>, ImageError>, known: &Value, pixels: &str) -> Option<String> {
    let decoded = match decoded {
        Ok(decoded) => decoded,
        Err(error) => return Some(error.to_string()),
    };
    let expected = unhex(known[pixels].as_str().unwrap());
    if decoded.len() != expected.len() {
        return Some(format!("its shape is {}", decoded.shape()));
    }
    let far = decoded.as_slice().iter().zip(&expected);
    let far = far.map(|(a, b)| a.abs_diff(*b)).max().unwrap();
    let tolerance = known["tolerance"].as_u64().unwrap();
    (u64::from(far) > tolerance).then(|| format!("it is {far} off, and may be {tolerance}"))
}

#[test]
fn every_kind_of_picture_becomes_the_pixels_that_it_should() {
    let mut complaints = Vec::new();
    let mut complain = |name: &str, complaint: Option<String>| {
        complaints.extend(complaint.map(|complaint| format!("{name}: {complaint}")));
    };
    for (name, bytes, known) in pictures() {
        let decoded = decode(&bytes, false);
        let refused = known.get("says").or_else(|| known.get(DECODER));
        if let Some(refused) = refused {
            let refused = refused.as_str().unwrap();
            complain(
                &name,
                match decoded {
                    Ok(_) => Some("it was decoded".to_owned()),
                    Err(error) => {
                        let said = error.to_string();
                        (!said.contains(refused)).then(|| format!("`{said}` lacks `{refused}`"))
                    }
                },
            );
            continue;
        }
        if let Ok(decoded) = &decoded {
            let side = |side: &str| known[side].as_u64().unwrap() as usize;
            assert_eq!(
                decoded.shape()[..],
                [side("height"), side("width"), 3],
                "{name}"
            );
        }
        complain(&name, compare(decoded, &known, "pixels"));
        let turned = if known.get("exif").is_some() {
            "exif"
        } else {
            "pixels"
        };
        complain(
            &format!("{name}, upright"),
            compare(decode(&bytes, true), &known, turned),
        );
    }
    assert!(complaints.is_empty(), "\n{}", complaints.join("\n"));
}

/// A damaged JPEG file is what libjpeg makes of it, or an error: never something else, such as grey, without a word.
#[test]
fn damage_is_an_error_or_what_libjpeg_makes_of_it() {
    let text = fs::read_to_string(fixtures().join("damaged.json")).unwrap();
    let Value::Array(cases) = serde_json::from_str(&text).unwrap() else {
        panic!("damaged.json is no list")
    };
    let (mut complaints, mut refused, mut decoded) = (Vec::new(), 0, 0);
    for (index, case) in cases.iter().enumerate() {
        let number = |name: &str| case[name].as_u64().unwrap() as usize;
        let name = case["name"].as_str().unwrap();
        let mut file = fs::read(fixtures().join("pictures").join(name)).unwrap();
        let (at, put) = (number("at"), unhex(case["put"].as_str().unwrap()));
        file.splice(at..at + number("length"), put);
        let pixels = match decode(&file, false) {
            Ok(pixels) => pixels,
            Err(error) => {
                refused += 1;
                assert!(!error.to_string().is_empty());
                continue;
            }
        };
        decoded += 1;
        // What Pillow refuses, libjpeg decodes as far as it can.
        let Some(expected) = case["pixels"].as_str().map(unhex) else {
            continue;
        };
        let far = pixels.as_slice().iter().zip(&expected);
        let far: Vec<_> = far.map(|(a, b)| a.abs_diff(*b)).collect();
        let mean = far.iter().copied().map(f64::from).sum::<f64>() / far.len() as f64;
        let most = far.iter().max().unwrap();
        // Damage has sharp edges, where interpolated chroma differs more.
        if mean > 1.5 || *most > 48 || far.len() != pixels.len() {
            complaints.push(format!(
                "{index}, {name} at {at}: {mean:.2} off, {most} at most"
            ));
        }
    }
    assert!(complaints.is_empty(), "\n{}", complaints.join("\n"));
    assert!(decoded > 15, "{decoded}");
    assert_eq!(refused > 15, !cfg!(feature = "turbojpeg"), "{refused}");
}

/// Advice is given where it helps: libjpeg-turbo takes no more scans than the default decoder, and leaves CMYK to it.
#[test]
fn the_feature_is_advised_where_it_decodes() {
    let said = |file: Vec<u8>| match decode(&file, false) {
        Ok(_) => String::new(),
        Err(error) => error.to_string(),
    };
    let read = |name: &str| fs::read(fixtures().join("pictures").join(name)).unwrap();
    let damaged = |name: &str| {
        let mut file = read(name);
        let end = file.len() - 2;
        file.drain(end - 60..end);
        said(file)
    };
    let advised = |said: String| {
        assert_eq!(said.contains("turbojpeg"), DECODER == "default", "{said}");
    };
    advised(said(read("sampled-3x1.jpg")));
    advised(said(read("sampled-1x4-1x2.jpg")));
    advised(said(read("arithmetic.jpg")));
    advised(damaged("444-37x11.jpg"));
    for never in [
        said(read("many-scans.jpg")),
        said(read("12-bits.jpg")),
        said(read("ycbcr.tif")),
        damaged("cmyk.jpg"),
    ] {
        assert!(!never.is_empty() && !never.contains("feature"), "{never}");
    }
}

/// Whatever the format, and not in its decoder's words ("failed to fill whole buffer").
#[test]
fn files_that_are_cut_off_are_said_to_be() {
    for name in [
        "grey.jpg",
        "palette-8.png",
        "interlaced.gif",
        "old.bmp",
        "lossy.webp",
        "grey.tif",
    ] {
        let path = format!("tests/fixtures/pictures/{name}");
        let whole = std::fs::read(&path).unwrap();
        let cut = &whole[..whole.len() * 9 / 10];
        check_cut(cut.to_vec(), name);
    }
    check_cut(b"P6 2 2 255\n123456789".to_vec(), "rest.ppm");
}

fn check_cut(cut: Vec<u8>, name: &str) {
    let error = LazyImage::encoded(cut)
        .with_path(name)
        .decode()
        .unwrap_err();
    let said = error.to_string();
    assert!(
        said.starts_with(&format!("{name}: the file is truncated: ")),
        "{said}"
    );
}
