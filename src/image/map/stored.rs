//! Reads the files of maps: numbers of up to 16 bits, or colours, as they are stored.

use image::ImageFormat;

use super::super::decode::{self, DecodeOptions, Picture};
use super::super::error::{Advice, Cause};
use super::super::mask::{Stored, decode_png};
use super::super::size::Size;

fn open(bytes: &[u8], max_pixels: u64) -> Result<Picture<'_>, Cause> {
    let decoding = DecodeOptions {
        max_pixels,
        ..DecodeOptions::default()
    };
    decode::open(bytes, decoding).map_err(|cause| cause.with_advice(Advice::Values))
}

fn format(bytes: &[u8]) -> Result<ImageFormat, Cause> {
    decode::format(bytes).map_err(|cause| cause.with_advice(Advice::Values))
}

fn pixels(size: Size) -> usize {
    size.width as usize * size.height as usize
}

/// The numbers of a file of grey, or with a palette.
pub(super) fn numbers(bytes: &[u8], max_pixels: u64) -> Result<(Size, Vec<u16>), Cause> {
    if bytes.is_empty() {
        return Err(Cause::Empty);
    }
    let not_numbers = |what: String| Cause::NotAMap {
        what,
        wanted: NUMBERS,
    };
    if format(bytes)? == ImageFormat::Png {
        let (size, stored) = decode::caught(|| decode_png(bytes, max_pixels))?;
        return match stored {
            Stored::Eight(numbers, _) => Ok((size, numbers.into_iter().map(u16::from).collect())),
            Stored::Sixteen(numbers) => Ok((size, numbers)),
            Stored::Colours { what, .. } => Err(not_numbers(what)),
        };
    }
    let picture = open(bytes, max_pixels)?;
    let size = picture.size();
    let mut numbers = vec![0; pixels(size)];
    match picture.decode_numbers(&mut numbers) {
        Err(Cause::NotAMask(what)) => Err(not_numbers(what)),
        read => read.map(|()| (size, numbers)),
    }
}

/// The colours of a file, three bytes for each pixel.
pub(super) fn colours(bytes: &[u8], max_pixels: u64) -> Result<(Size, Vec<u8>), Cause> {
    if bytes.is_empty() {
        return Err(Cause::Empty);
    }
    let not_colours = |what: String| Cause::NotAMap {
        what,
        wanted: COLOURS,
    };
    match format(bytes)? {
        ImageFormat::Png => match decode::caught(|| decode_png(bytes, max_pixels))? {
            (size, Stored::Colours { rgb: Some(rgb), .. }) => Ok((size, rgb)),
            (_, Stored::Colours { what, .. }) => Err(not_colours(what)),
            (size, Stored::Eight(indices, Some(palette))) => {
                looked_up(&palette, &indices).map(|rgb| (size, rgb))
            }
            (_, Stored::Eight(..)) => Err(not_colours("Grayscale".into())),
            (_, Stored::Sixteen(_)) => Err(not_colours("Grayscale of 16 bits".into())),
        },
        ImageFormat::Bmp | ImageFormat::Pnm => {
            let picture = open(bytes, max_pixels)?;
            let size = picture.size();
            let mut rgb = vec![0; pixels(size) * 3];
            match picture.decode_colours(&mut rgb) {
                Err(Cause::NotAMask(what)) => Err(not_colours(what)),
                read => read.map(|()| (size, rgb)),
            }
        }
        other => Err(not_colours(format!(
            "of a {} file",
            other.to_mime_type().trim_start_matches("image/")
        ))),
    }
}

fn looked_up(palette: &[u8], indices: &[u8]) -> Result<Vec<u8>, Cause> {
    let (palette, _) = palette.as_chunks::<3>();
    let mut rgb = Vec::with_capacity(indices.len() * 3);
    for index in indices {
        let colour = palette.get(usize::from(*index));
        let colour = colour.ok_or(Cause::Contradiction(
            "a pixel's index is behind the end of its palette",
        ))?;
        rgb.extend_from_slice(colour);
    }
    Ok(rgb)
}

const NUMBERS: &str = "grey of 1 to 16 bits, or indices into a palette, of PNG, TIFF or PGM. `LazyMap::coloured` takes colours that stand \
                       for values; or convert them, and pass the values to `LazyMap::values`";

const COLOURS: &str = "RGB of 8 bits, of PNG, BMP or PPM, or the colours of a PNG file's palette. `LazyMap::encoded` takes grey; or convert \
                       them, and pass the values to `LazyMap::values`";
