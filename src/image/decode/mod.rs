//! From the bytes of a file to RGB pixels.
//!
//! It first checks what a file claims, because the decoders would trust it: see [`jpeg`], [`container`] and [`tiff`].

mod container;
mod foreign;
mod gif;
mod jpeg;
mod panics;
mod tiff;
#[cfg(feature = "turbojpeg")]
#[expect(unsafe_code, reason = "it calls libjpeg-turbo")]
mod turbo;

#[cfg(feature = "nvjpeg")]
pub(in crate::image) use jpeg::baseline::Baseline;
#[cfg(feature = "nvjpeg")]
pub use jpeg::baseline::OnCpu;

#[cfg(all(test, feature = "nvjpeg", feature = "turbojpeg"))]
pub(in crate::image) use turbo::tests::{compressed_as, planes};

pub(in crate::image) use panics::caught;

use std::io::Cursor;

use image::metadata::Orientation;
use image::{
    ColorType, DynamicImage, ExtendedColorType, ImageDecoder, ImageFormat, ImageReader, Limits,
    RgbImage,
};

use super::error::Cause;
use super::pixels::Buffer;
use super::size::{Rect, Size};

/// The default of `max_pixels`: Pillow's limit against decompression bombs.
const MAX_PIXELS: u64 = 178_956_970;

/// Options for decoding a file.
#[derive(Debug, Clone, Copy)]
pub(in crate::image) struct DecodeOptions {
    pub(in crate::image) exif_orientation: bool,
    pub(in crate::image) max_pixels: u64,
}

impl Default for DecodeOptions {
    fn default() -> DecodeOptions {
        DecodeOptions {
            exif_orientation: false,
            max_pixels: MAX_PIXELS,
        }
    }
}

/// A picture whose header was read.
pub(in crate::image) struct Picture<'a> {
    decoder: Decoder<'a>,
    /// The size in the file, before the orientation is applied.
    stored: Size,
    orientation: Orientation,
}

enum Decoder<'a> {
    /// A decoder of the `image` crate.
    Any(Box<dyn ImageDecoder + 'a>),
    /// A decoder of the `image` crate for a part of the picture. Black surrounds it.
    Inset(Box<dyn ImageDecoder + 'a>, Rect<u32>),
    Gif(Box<gif::Gif<'a>>),
    Tiff(Box<tiff::Tiff<'a>>),
    /// The default JPEG decoder, with the file.
    Jpeg(Box<dyn ImageDecoder + 'a>, &'a [u8], jpeg::FrameHeader),
    /// libjpeg-turbo, with the file.
    #[cfg(feature = "turbojpeg")]
    Turbo(&'a [u8], turbo::Header),
}

/// Reads a picture's header. The format is recognized by the content, because extensions lie.
pub(in crate::image) fn open(bytes: &[u8], decoding: DecodeOptions) -> Result<Picture<'_>, Cause> {
    caught(|| read_header(bytes, decoding))
}

fn read_header(bytes: &[u8], decoding: DecodeOptions) -> Result<Picture<'_>, Cause> {
    if bytes.is_empty() {
        return Err(Cause::Empty);
    }
    let format = format(bytes)?;
    if format == ImageFormat::Gif {
        let gif = Box::new(gif::Gif::open(bytes)?);
        let stored = gif.size();
        check_size(stored, 0, decoding)?;
        return Ok(Picture {
            decoder: Decoder::Gif(gif),
            stored,
            orientation: Orientation::NoTransforms,
        });
    }
    if format == ImageFormat::Tiff {
        let tiff = Box::new(tiff::Tiff::open(bytes, decoding)?);
        return Ok(Picture {
            stored: tiff.size(),
            orientation: match decoding.exif_orientation {
                true => tiff.orientation(),
                false => Orientation::NoTransforms,
            },
            decoder: Decoder::Tiff(tiff),
        });
    }
    let exif_orientation = decoding.exif_orientation;
    let mut orientation = Orientation::NoTransforms;
    let mut frame = None;
    if format == ImageFormat::Jpeg {
        if !jpeg::is_complete(bytes) {
            return Err(Cause::Truncated("JPEG"));
        }
        frame = jpeg::FrameHeader::read(bytes);
        frame.as_ref().map_or(Ok(()), jpeg::FrameHeader::check)?;
        if exif_orientation {
            orientation = jpeg::orientation(bytes);
        }
        #[cfg(feature = "turbojpeg")]
        if let Some(header) = frame.and_then(|frame| turbo::header(bytes, &frame)) {
            let stored = header.size;
            let size_bytes = u64::from(stored.width) * u64::from(stored.height) * 3;
            check_size(stored, size_bytes, decoding)?;
            return Ok(Picture {
                decoder: Decoder::Turbo(bytes, header),
                stored,
                orientation,
            });
        }
        if let Some(frame) = &frame {
            frame.check_for_default(bytes)?;
        }
    }
    if format == ImageFormat::Png {
        // The decoder may refuse a single row as too large, with a less helpful error.
        check_size(png_size(bytes)?, 0, decoding)?;
        container::check_png(bytes)?;
    }
    let mut decoder = decoder(bytes, format, decoding)?;
    let (width, height) = decoder.dimensions();
    let stored = Size { width, height };
    check_size(stored, decoder.total_bytes(), decoding)?;
    if format == ImageFormat::WebP {
        container::check_webp(bytes, stored)?;
    }
    if exif_orientation && format == ImageFormat::WebP {
        orientation = container::webp_orientation(decoder.exif_metadata()?);
    } else if exif_orientation && format != ImageFormat::Jpeg {
        orientation = decoder.orientation()?;
    }
    // The decoder would blend the first frame of an animation with an empty canvas, which loses the colour of transparent pixels.
    if format == ImageFormat::WebP
        && let Some((still, left, top)) = container::first_frame(bytes)
    {
        return inset(still, left, top, stored, orientation, decoding);
    }
    let decoder = Box::new(decoder);
    Ok(Picture {
        decoder: match frame {
            Some(frame) => Decoder::Jpeg(decoder, bytes, frame),
            None => Decoder::Any(decoder),
        },
        stored,
        orientation,
    })
}

/// Opens a WebP file as a part of a larger picture, at the given position.
fn inset<'a>(
    still: Vec<u8>,
    left: u32,
    top: u32,
    stored: Size,
    orientation: Orientation,
    decoding: DecodeOptions,
) -> Result<Picture<'a>, Cause> {
    let mut reader = ImageReader::with_format(Cursor::new(still), ImageFormat::WebP);
    reader.limits(limits(&[], ImageFormat::WebP, decoding.max_pixels)?);
    let decoder = reader.into_decoder()?;
    let (width, height) = decoder.dimensions();
    let fits =
        |at: u32, side: u32, whole: u32| at.checked_add(side).is_some_and(|end| end <= whole);
    if !fits(left, width, stored.width) || !fits(top, height, stored.height) {
        return Err(Cause::Contradiction(
            "a picture within is larger than the whole",
        ));
    }
    let place = Rect {
        left,
        top,
        width,
        height,
    };
    Ok(Picture {
        decoder: Decoder::Inset(Box::new(decoder), place),
        stored,
        orientation,
    })
}

/// The format of a file, if it can be decoded.
pub(in crate::image) fn format(bytes: &[u8]) -> Result<ImageFormat, Cause> {
    match image::guess_format(bytes) {
        Ok(format @ (ImageFormat::Gif | ImageFormat::Tiff)) => Ok(format),
        Ok(format) if format.reading_enabled() => Ok(format),
        Ok(format) => Err(foreign::disabled(bytes, format)),
        Err(_) if tiff::is_big(bytes) => Ok(ImageFormat::Tiff),
        Err(_) => Err(foreign::cause(bytes)),
    }
}

fn decoder(
    bytes: &[u8],
    format: ImageFormat,
    decoding: DecodeOptions,
) -> Result<impl ImageDecoder, Cause> {
    let mut reader = ImageReader::with_format(Cursor::new(bytes), format);
    reader.limits(limits(bytes, format, decoding.max_pixels)?);
    Ok(reader.into_decoder()?)
}

/// Refuses a picture that has no pixels, or too many.
pub(in crate::image) fn check_size(
    size: Size,
    size_bytes: u64,
    decoding: DecodeOptions,
) -> Result<(), Cause> {
    let Size { width, height } = size;
    if width == 0 || height == 0 {
        return Err(Cause::NoPixels { width, height });
    }
    if u64::from(width) * u64::from(height) > decoding.max_pixels
        || size_bytes > max_bytes(decoding.max_pixels)
    {
        return Err(Cause::TooLarge {
            width,
            height,
            size_bytes,
            max_pixels: decoding.max_pixels,
        });
    }
    Ok(())
}

/// The most bytes that a decoded picture may have: four for each pixel of the limit, so that pictures with 16 bits a channel
/// count about twice.
fn max_bytes(max_pixels: u64) -> u64 {
    max_pixels.saturating_mul(4)
}

/// How much a decoder may allocate. Of the formats that are enabled by default, PNG respects it.
fn limits(bytes: &[u8], format: ImageFormat, max_pixels: u64) -> Result<Limits, Cause> {
    const DECODERS_OWN_BYTES: u64 = 64 << 20;
    let pixels = match format {
        // It decodes row by row. Beside the rows it keeps profiles, which may be bombs: a few KB that expand to GB.
        ImageFormat::Png => png_size(bytes)?.width.into(),
        _ => max_pixels,
    };
    let bytes = max_bytes(pixels).saturating_mul(2);
    let mut limits = Limits::no_limits();
    limits.max_alloc = Some(bytes.saturating_add(DECODERS_OWN_BYTES));
    Ok(limits)
}

/// The size in a PNG file's header.
pub(in crate::image) fn png_size(bytes: &[u8]) -> Result<Size, Cause> {
    match bytes.get(16..24) {
        Some(&[a, b, c, d, e, f, g, h]) => Ok(Size {
            width: u32::from_be_bytes([a, b, c, d]),
            height: u32::from_be_bytes([e, f, g, h]),
        }),
        _ => Err(Cause::Truncated("PNG")),
    }
}

impl Picture<'_> {
    /// The picture's size, after the orientation is applied.
    pub(in crate::image) fn size(&self) -> Size {
        let Size { width, height } = self.stored;
        match self.orientation {
            Orientation::Rotate90
            | Orientation::Rotate270
            | Orientation::Rotate90FlipH
            | Orientation::Rotate270FlipH => Size {
                width: height,
                height: width,
            },
            _ => self.stored,
        }
    }

    /// By how much the decoder will scale the picture down if it may scale it by `by`: 1 unless it can.
    #[cfg_attr(
        not(feature = "turbojpeg"),
        expect(unused_variables, reason = "only libjpeg-turbo can")
    )]
    pub(in crate::image) fn shrinks(&self, by: u32) -> u32 {
        #[cfg(feature = "turbojpeg")]
        if self.turbo().is_some_and(|header| header.shrinks()) {
            return by;
        }
        1
    }

    /// The part of the (scaled) picture that is decoded to get `needed`: all of it, unless the decoder can crop.
    #[cfg_attr(
        not(feature = "turbojpeg"),
        expect(unused_variables, reason = "only libjpeg-turbo can")
    )]
    pub(in crate::image) fn part(&self, needed: Rect<u32>, shrunk: u32) -> Rect<u32> {
        #[cfg(feature = "turbojpeg")]
        if let Some(header) = self.turbo() {
            return turbo::region(header, needed, shrunk);
        }
        Rect::whole(self.size())
    }

    /// The header, if libjpeg-turbo decodes and its pixels need not be turned.
    #[cfg(feature = "turbojpeg")]
    fn turbo(&self) -> Option<turbo::Header> {
        match self.decoder {
            Decoder::Turbo(_, header) if self.orientation == Orientation::NoTransforms => {
                Some(header)
            }
            _ => None,
        }
    }

    /// Decodes a part (see [`part`](Picture::part)) into `rgb`, which has three bytes for each pixel. Whatever they were, none of them
    /// remains. `raw` is for pixels that are not RGB yet.
    pub(in crate::image) fn decode_into(
        self,
        part: Rect<u32>,
        shrunk: u32,
        rgb: &mut [u8],
        raw: &mut Buffer,
    ) -> Result<(), Cause> {
        caught(|| self.decode_upright(part, shrunk, rgb, raw))
    }

    fn decode_upright(
        self,
        part: Rect<u32>,
        shrunk: u32,
        rgb: &mut [u8],
        raw: &mut Buffer,
    ) -> Result<(), Cause> {
        let (stored, orientation) = (self.stored, self.orientation);
        if orientation == Orientation::NoTransforms {
            if self.may_leave_gaps() {
                rgb.fill(0);
            }
            return self.decode_stored(part, shrunk, rgb, raw);
        }
        let mut upright = vec![0; rgb.len()];
        self.decode_stored(Rect::whole(stored), 1, &mut upright, raw)?;
        if let Some(image) = RgbImage::from_raw(stored.width, stored.height, upright) {
            let mut image = DynamicImage::ImageRgb8(image);
            image.apply_orientation(orientation);
            rgb.copy_from_slice(image.as_bytes());
        }
        Ok(())
    }

    /// Whether the decoder may leave pixels as they were.
    fn may_leave_gaps(&self) -> bool {
        match self.decoder {
            #[cfg(feature = "turbojpeg")]
            Decoder::Turbo(..) => false,
            Decoder::Tiff(_) => false,
            _ => true,
        }
    }

    /// Decodes grey values as labels: one byte for each pixel.
    pub(in crate::image) fn decode_labels(self, labels: &mut [u8]) -> Result<(), Cause> {
        let what = match self.decoder {
            Decoder::Any(decoder) => return caught(|| decode_labels(decoder, labels)),
            Decoder::Tiff(tiff) => {
                return caught(|| tiff.decode_labels(labels, &mut Buffer::default()));
            }
            Decoder::Inset(..) => "of a film",
            Decoder::Gif(..) => "of a GIF file",
            Decoder::Jpeg(..) => "of a JPEG file, which changes them",
            #[cfg(feature = "turbojpeg")]
            Decoder::Turbo(..) => "of a JPEG file, which changes them",
        };
        Err(Cause::NotAMask(what.into()))
    }

    /// Decodes grey values of up to 16 bits as they are: one number for each pixel.
    pub(in crate::image) fn decode_numbers(self, numbers: &mut [u16]) -> Result<(), Cause> {
        match self.decoder {
            Decoder::Any(decoder) if decoder.color_type() == ColorType::L16 => {
                let mut bytes = vec![0; numbers.len() * 2];
                caught(|| Ok(decoder.read_image(&mut bytes)?))?;
                let (values, _) = bytes.as_chunks::<2>();
                for (number, value) in numbers.iter_mut().zip(values) {
                    *number = u16::from_ne_bytes(*value);
                }
                Ok(())
            }
            Decoder::Tiff(tiff) if tiff.has_wide_grey() => {
                caught(|| tiff.decode_wide_grey(numbers, &mut Buffer::default()))
            }
            decoder => {
                let mut labels = vec![0; numbers.len()];
                Picture { decoder, ..self }.decode_labels(&mut labels)?;
                for (number, label) in numbers.iter_mut().zip(labels) {
                    *number = label.into();
                }
                Ok(())
            }
        }
    }

    /// Decodes colours as they are: RGB of 8 bits, without alpha.
    pub(in crate::image) fn decode_colours(self, rgb: &mut [u8]) -> Result<(), Cause> {
        let Decoder::Any(decoder) = self.decoder else {
            return Err(Cause::NotAMask("of another kind of file".into()));
        };
        let color = decoder.color_type();
        match color {
            ColorType::Rgb8 | ColorType::Rgba8 => {
                caught(|| decode_any(decoder, rgb, &mut Buffer::default()))
            }
            _ => Err(Cause::NotAMask(format!("{color:?}"))),
        }
    }

    fn decode_stored(
        self,
        part: Rect<u32>,
        shrunk: u32,
        rgb: &mut [u8],
        raw: &mut Buffer,
    ) -> Result<(), Cause> {
        match self.decoder {
            Decoder::Any(decoder) => {
                debug_assert_eq!((part, shrunk), (Rect::whole(self.stored), 1));
                decode_any(decoder, rgb, raw)
            }
            Decoder::Gif(gif) => gif.decode(rgb, raw),
            Decoder::Tiff(tiff) => tiff.decode(rgb, raw),
            Decoder::Inset(decoder, place) if place == Rect::whole(self.stored) => {
                decode_any(decoder, rgb, raw)
            }
            Decoder::Inset(decoder, place) => {
                let mut part = vec![0; place.width as usize * place.height as usize * 3];
                decode_any(decoder, &mut part, raw)?;
                rgb.fill(0);
                let rows = rgb.chunks_exact_mut(self.stored.width as usize * 3);
                let lines = part.chunks_exact(place.width as usize * 3);
                for (row, line) in rows.skip(place.top as usize).zip(lines) {
                    row[place.left as usize * 3..][..line.len()].copy_from_slice(line);
                }
                Ok(())
            }
            Decoder::Jpeg(decoder, bytes, frame) => {
                debug_assert_eq!((part, shrunk), (Rect::whole(self.stored), 1));
                let color = decoder.color_type();
                let decoded = match color {
                    ColorType::L8 => {
                        let grey = raw.zeroed(decoder.total_bytes() as usize);
                        frame.decode(bytes, jpeg::Channels::Grey, grey)? && {
                            to_rgb(color, grey, rgb)?;
                            true
                        }
                    }
                    _ => frame.decode(bytes, jpeg::Channels::Rgb, rgb)?,
                };
                match decoded {
                    true => Ok(()),
                    false => {
                        rgb.fill(0);
                        decode_any(decoder, rgb, raw)
                    }
                }
            }
            #[cfg(feature = "turbojpeg")]
            Decoder::Turbo(bytes, header) => turbo::decode(bytes, header, part, shrunk, rgb),
        }
    }
}

/// Decodes grey values as labels. With one bit, the labels are 0 and 1, as in PNG and Pillow's mode "1": the decoder gives 0 and 255.
fn decode_labels(decoder: Box<dyn ImageDecoder + '_>, labels: &mut [u8]) -> Result<(), Cause> {
    let color = decoder.color_type();
    if color != ColorType::L8 {
        return Err(Cause::NotAMask(format!("{color:?}")));
    }
    let one_bit = decoder.original_color_type() == ExtendedColorType::L1;
    decoder.read_image(labels)?;
    if one_bit {
        labels
            .iter_mut()
            .for_each(|label| *label = (*label != 0).into());
    }
    Ok(())
}

fn decode_any(
    decoder: Box<dyn ImageDecoder + '_>,
    rgb: &mut [u8],
    raw: &mut Buffer,
) -> Result<(), Cause> {
    let color = decoder.color_type();
    if color == ColorType::Rgb8 {
        return Ok(decoder.read_image(rgb)?);
    }
    let raw = raw.zeroed(decoder.total_bytes() as usize);
    decoder.read_image(raw)?;
    to_rgb(color, raw, rgb)
}

/// Turns any colour type into RGB with 8 bits: repeats grey, drops alpha, keeps the upper 8 of 16 bits, and takes floating
/// point from 0 to 1.
fn to_rgb(color: ColorType, raw: &[u8], rgb: &mut [u8]) -> Result<(), Cause> {
    match color {
        ColorType::L8 => convert(raw, rgb, |[grey]: [u8; 1]| [grey; 3]),
        ColorType::La8 => convert(raw, rgb, |[grey, _]: [u8; 2]| [grey; 3]),
        ColorType::Rgb8 => rgb.copy_from_slice(raw),
        ColorType::Rgba8 => convert(raw, rgb, |[r, g, b, _]: [u8; 4]| [r, g, b]),
        ColorType::L16 => convert(raw, rgb, |[a, b]: [u8; 2]| [high(a, b); 3]),
        ColorType::La16 => convert(raw, rgb, |[a, b, ..]: [u8; 4]| [high(a, b); 3]),
        ColorType::Rgb16 => convert(raw, rgb, |p: [u8; 6]| {
            [high(p[0], p[1]), high(p[2], p[3]), high(p[4], p[5])]
        }),
        ColorType::Rgba16 => convert(raw, rgb, |p: [u8; 8]| {
            [high(p[0], p[1]), high(p[2], p[3]), high(p[4], p[5])]
        }),
        ColorType::Rgb32F => convert(raw, rgb, float_to_rgb::<12>),
        ColorType::Rgba32F => convert(raw, rgb, float_to_rgb::<16>),
        other => return Err(Cause::Color(other)),
    }
    Ok(())
}

fn convert<const N: usize>(raw: &[u8], rgb: &mut [u8], pixel: impl Fn([u8; N]) -> [u8; 3]) {
    let (pixels, _) = raw.as_chunks::<N>();
    let (rgb, _) = rgb.as_chunks_mut::<3>();
    for (to, from) in rgb.iter_mut().zip(pixels) {
        *to = pixel(*from);
    }
}

/// The upper half of 16 bits. Decoders give them in native byte order.
fn high(first: u8, second: u8) -> u8 {
    (u16::from_ne_bytes([first, second]) >> 8) as u8
}

fn float_to_rgb<const N: usize>(pixel: [u8; N]) -> [u8; 3] {
    let channel = |at: usize| {
        let value = f32::from_ne_bytes([pixel[at], pixel[at + 1], pixel[at + 2], pixel[at + 3]]);
        (value.clamp(0.0, 1.0) * 255.0).round() as u8
    };
    [channel(0), channel(4), channel(8)]
}

#[cfg(test)]
mod tests;
