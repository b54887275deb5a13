//! Recognizes content that is not decoded here, and says what to do about it.

use image::ImageFormat;

use crate::image::error::{Advice, Cause};

/// The error for content in no supported format.
pub(super) fn cause(bytes: &[u8]) -> Cause {
    if let Some((_, name)) = NO_PICTURES.iter().find(|(start, _)| begins(bytes, start)) {
        return Cause::NoPicture(name);
    }
    let advice = match image::guess_format(bytes) {
        Ok(_) => Advice::Feature,
        Err(_) => Advice::Convert,
    };
    match PICTURES.iter().find(|(start, _)| bytes.starts_with(start)) {
        Some((_, name)) => Cause::NotDecoded((*name).into(), advice),
        None => match (bytes.get(4..8), bytes.get(8..12)) {
            (Some(b"ftyp"), Some(brand)) => Cause::NotDecoded(boxed(brand).into(), advice),
            _ => Cause::UnknownFormat,
        },
    }
}

/// As [`cause`], for a format that the `image` crate knows.
pub(super) fn disabled(bytes: &[u8], format: ImageFormat) -> Cause {
    match cause(bytes) {
        Cause::UnknownFormat => {
            Cause::NotDecoded(format.to_mime_type().to_owned().into(), Advice::Feature)
        }
        cause => cause,
    }
}

/// Content that is commonly saved in place of a picture.
const NO_PICTURES: &[(&[u8], &str)] = &[
    (b"<!doctype html", "an HTML page"),
    (b"<html", "an HTML page"),
    (
        b"version https://git-lfs",
        "a pointer of Git LFS (`git lfs pull` fetches the file)",
    ),
    (b"%PDF", "a PDF document"),
    (b"\x1F\x8B", "gzip"),
    (b"PK\x03\x04", "a zip archive"),
    (b"\x93NUMPY", "a NumPy array"),
];

const PICTURES: &[(&[u8], &str)] = &[
    (b"\0\0\0\x0CjP  \r\n\x87\n", "JPEG 2000"),
    (b"\xFF\x4F\xFF\x51", "JPEG 2000"),
    (b"\0\0\0\x0CJXL ", "JPEG XL"),
    (b"\xFF\x0A", "JPEG XL"),
    (b"II\xBC", "JPEG XR"),
    (b"8BPS", "Photoshop's PSD"),
    (b"<svg", "SVG"),
    (b"<?xml", "XML, perhaps SVG"),
    (b"\0\0\x01\0", "ICO"),
    (b"qoif", "QOI"),
    (b"\x76\x2F\x31\x01", "OpenEXR"),
    (b"#?RADIANCE", "Radiance HDR"),
    (b"DDS ", "DDS"),
    (b"farbfeld", "farbfeld"),
];

/// What an ISO media file holds, by its brand.
fn boxed(brand: &[u8]) -> &'static str {
    match brand {
        b"avif" | b"avis" => "AVIF",
        b"heic" | b"heix" | b"heim" | b"heis" | b"hevc" | b"hevx" | b"mif1" | b"msf1" => "HEIC",
        _ => "a video",
    }
}

/// Whether a file begins with `start`, ignoring case, white space and a byte order mark.
fn begins(bytes: &[u8], start: &[u8]) -> bool {
    let bytes = bytes
        .strip_prefix(b"\xEF\xBB\xBF")
        .unwrap_or(bytes)
        .trim_ascii_start();
    let head = bytes.get(..start.len());
    head.is_some_and(|head| head.eq_ignore_ascii_case(start))
}
