//! The first page of a TIFF file.
//!
//! The page is cut into parts, which are strips or tiles. A part has all channels, or, in planar files, one. Parts are decompressed
//! one by one (`compression.rs`), and their samples become RGB or labels (`pixels.rs`). The `tiff` crate, which `image` would use,
//! panics at planar tiles, takes LZW's tiles to be cut off, and gives wrong pixels where colours have extra channels.

mod compression;
mod group4;
mod pixels;
mod tags;

use image::metadata::Orientation;

use self::compression::{Compression, ENDS, Packed, Tools};
use self::pixels::Pixels;
pub(super) use self::tags::is_big;
use self::tags::{Tags, Values};
use super::{Cause, DecodeOptions, check_size, max_bytes};
use crate::image::error::Advice;
use crate::image::pixels::Buffer;
use crate::image::size::Size;

const WIDTH: u16 = 256;
const HEIGHT: u16 = 257;
const COMPRESSION: u16 = 259;
const BIT_ORDER: u16 = 266;
const STRIPS: u16 = 273;
const ORIENTATION: u16 = 274;
const STRIP_HEIGHT: u16 = 278;
const STRIP_BYTES: u16 = 279;
const PLANAR: u16 = 284;
const PREDICTOR: u16 = 317;
const TILE_WIDTH: u16 = 322;
const TILE_HEIGHT: u16 = 323;
const TILES: u16 = 324;
const TILE_BYTES: u16 = 325;
const JPEG_TABLES: u16 = 347;

/// How many times as many pixels and bytes as a picture may have its parts may have together: those at the edges reach beyond it. Tiles as
/// large as the largest picture need four, unless they are more than four times as wide as theirs, and it is higher than they.
const BEYOND: u64 = 4;

/// How many times as many bytes as the file has its parts may have together, beside those that they become: blank ones may be the same.
const SHARED: u64 = 4;

/// This many bytes are read soon, however small the file and its picture are.
const SOON_READ: u64 = 1 << 20;

/// A file whose tags were read.
pub(super) struct Tiff<'a> {
    bytes: &'a [u8],
    size: Size,
    orientation: Orientation,
    pixels: Pixels,
    /// Whether each channel has parts of its own.
    is_planar: bool,
    /// The size of a part. Those at the right and the lower edge may reach beyond the picture.
    part: Size,
    /// How many rows a JPEG file within may have.
    jpeg_rows: u64,
    offsets: Values<'a>,
    lengths: Values<'a>,
    compression: Compression,
    jpeg_tables: Option<&'a [u8]>,
    predictor: Predictor,
    is_little: bool,
    /// Whether the first bit of a byte is its lowest.
    is_reversed: bool,
    max_pixels: u64,
}

/// What each part uses again.
#[derive(Default)]
struct Reused {
    tools: Tools,
    /// Data whose bits were in reverse order.
    reversed: Vec<u8>,
    /// A line of floating point as it was compressed.
    line: Vec<u8>,
}

/// What was subtracted from the samples before they were compressed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Predictor {
    No,
    /// The sample to the left.
    Left,
    /// The byte to the left, in lines of all first bytes of their numbers, all second ones and so on.
    Float,
}

/// The error for a kind of TIFF that is not decoded.
fn refused(what: String) -> Cause {
    Cause::NotDecoded(format!("TIFF {what}").into(), Advice::Convert)
}

impl<'a> Tiff<'a> {
    pub(super) fn open(bytes: &'a [u8], decoding: DecodeOptions) -> Result<Tiff<'a>, Cause> {
        let tags = Tags::read(bytes)?;
        let max_pixels = decoding.max_pixels;
        let size = Size {
            width: side(&tags, WIDTH)?,
            height: side(&tags, HEIGHT)?,
        };
        check_size(size, 0, decoding)?;
        let pixels = Pixels::read(&tags)?;
        let pixel_bits = u64::from(pixels.bits).saturating_mul(pixels.samples as u64);
        let line_bytes = u64::from(size.width).saturating_mul(pixel_bits).div_ceil(8);
        let size_bytes = line_bytes.saturating_mul(size.height.into());
        check_size(size, size_bytes, decoding)?;
        let compression = Compression::of(tags.value(COMPRESSION)?.unwrap_or(1))?;
        if compression == Compression::Group4 && (pixels.bits, pixels.samples) != (1, 1) {
            return Err(Cause::Contradiction("fax has one bit for each pixel"));
        }
        if compression == Compression::Jpeg && pixels.bits != 8 {
            return Err(Cause::Contradiction("its JPEG data have 8 bits a channel"));
        }
        let is_tiled = tags.has(TILE_WIDTH);
        let part = match is_tiled {
            true => Size {
                width: side(&tags, TILE_WIDTH)?,
                height: side(&tags, TILE_HEIGHT)?,
            },
            false => Size {
                width: size.width,
                height: match tags.value(STRIP_HEIGHT)? {
                    Some(rows) => rows.min(size.height.into()) as u32,
                    None => size.height,
                },
            },
        };
        let is_planar = tags.value(PLANAR)? == Some(2) && pixels.samples > 1;
        let tags_of_parts = match is_tiled {
            true => [TILES, TILE_BYTES],
            false => [STRIPS, STRIP_BYTES],
        };
        let [offsets, lengths] = tags_of_parts.map(|tag| {
            let values = tags.values(tag)?;
            values.ok_or(Cause::Contradiction("it does not say where its pixels are"))
        });
        let tiff = Tiff {
            bytes,
            size,
            orientation: tags
                .value(ORIENTATION)
                .unwrap_or_default()
                .and_then(|value| Orientation::from_exif(u8::try_from(value).ok()?))
                .unwrap_or(Orientation::NoTransforms),
            is_planar,
            predictor: predictor(&tags, compression, &pixels)?,
            jpeg_rows: match is_tiled || is_planar {
                true => part.height.into(),
                // Not all writers cut off the last strip, which may be the only one. libtiff takes those, too.
                false => tags.value(STRIP_HEIGHT)?.unwrap_or(u64::MAX),
            },
            pixels,
            part,
            offsets: offsets?,
            lengths: lengths?,
            compression,
            jpeg_tables: tags.bytes(JPEG_TABLES)?,
            is_little: tags.is_little,
            is_reversed: tags.value(BIT_ORDER)? == Some(2),
            max_pixels,
        };
        tiff.check_parts()?;
        Ok(tiff)
    }

    /// Refuses parts that are too large, or too few.
    fn check_parts(&self) -> Result<(), Cause> {
        let Size { width, height } = self.part;
        if width == 0 || height == 0 {
            return Err(Cause::Contradiction("its parts have no pixels"));
        }
        if u64::from(width) * u64::from(height) > self.max_pixels {
            return Err(Cause::PartTooLarge {
                width: width.into(),
                height: height.into(),
                max_pixels: self.max_pixels,
            });
        }
        let bits = u64::from(self.pixels.bits).saturating_mul(self.pixels.samples as u64);
        let line = u64::from(width).saturating_mul(bits).div_ceil(8);
        if line.saturating_mul(height.into()) > max_bytes(self.max_pixels) {
            return Err(Cause::Memory);
        }
        let planes = match self.is_planar {
            true => self.pixels.samples,
            false => 1,
        };
        let count = self
            .across()
            .saturating_mul(self.down())
            .saturating_mul(planes);
        if self.offsets.len().min(self.lengths.len()) < count {
            return Err(Cause::Contradiction(
                "it has fewer parts than its pixels need",
            ));
        }
        self.check_work()
    }

    /// Refuses parts that take too long together. Each may be as large as the largest picture, and any number may be the same few bytes.
    fn check_work(&self) -> Result<(), Cause> {
        let across = self.across() as u64;
        let columns = across.saturating_mul(self.part.width.into());
        let rows = match self.compression {
            // It is decoded as a whole, others as far as the picture reaches.
            Compression::Jpeg => (self.down() as u64).saturating_mul(self.part.height.into()),
            _ => self.size.height.into(),
        };
        let pixels = columns.saturating_mul(rows);
        if pixels > self.max_pixels.saturating_mul(BEYOND) {
            return Err(Cause::PartsTooLarge {
                pixels,
                max_pixels: self.max_pixels,
            });
        }
        let planes = match self.is_planar {
            true => self.pixels.used(),
            false => 1,
        };
        let line = across.saturating_mul(self.line_bytes() as u64);
        let bytes = line.saturating_mul(rows).saturating_mul(planes as u64);
        if bytes > max_bytes(self.max_pixels).saturating_mul(BEYOND) {
            return Err(Cause::Memory);
        }
        if self.compression == Compression::No {
            return Ok(());
        }
        let tables = match self.compression {
            Compression::Jpeg => self.jpeg_tables.map_or(0, <[u8]>::len),
            _ => 0,
        };
        let parts = 0..self.across() * self.down() * planes;
        let read = parts
            .filter_map(|index| self.data(index).ok())
            .fold(0_u64, |read, data| {
                read.saturating_add((data.len() + tables) as u64)
            });
        let file = (self.bytes.len() as u64).saturating_mul(SHARED);
        match read > bytes.saturating_add(file).saturating_add(SOON_READ) {
            true => Err(Cause::Contradiction(
                "its parts are the same bytes again and again",
            )),
            false => Ok(()),
        }
    }

    /// Samples of a pixel in a part.
    fn in_part(&self) -> usize {
        match self.is_planar {
            true => 1,
            false => self.pixels.samples,
        }
    }

    /// The bytes of a line of a part.
    fn line_bytes(&self) -> usize {
        let bits = u64::from(self.pixels.bits) * self.in_part() as u64;
        (u64::from(self.part.width) * bits).div_ceil(8) as usize
    }

    /// The data of a part, which may be more than it needs.
    fn data(&self, index: usize) -> Result<&'a [u8], Cause> {
        let place = |values: &Values<'_>| usize::try_from(values.get(index)?).ok();
        let (offset, length) = place(&self.offsets).zip(place(&self.lengths)).ok_or(ENDS)?;
        let data = self.bytes.get(offset..).ok_or(ENDS)?;
        Ok(&data[..length.min(data.len())])
    }

    pub(super) fn size(&self) -> Size {
        self.size
    }

    pub(super) fn orientation(&self) -> Orientation {
        self.orientation
    }

    /// How many parts lie side by side.
    fn across(&self) -> usize {
        self.size.width.div_ceil(self.part.width) as usize
    }

    fn down(&self) -> usize {
        self.size.height.div_ceil(self.part.height) as usize
    }

    /// Writes all pixels as RGB.
    pub(super) fn decode(&self, rgb: &mut [u8], raw: &mut Buffer) -> Result<(), Cause> {
        self.each_line(raw, |line, samples, at, pixels| {
            let out = &mut rgb[3 * at..3 * (at + pixels)];
            self.pixels.rgb(line, samples, out);
        })
    }

    /// Writes all pixels as labels.
    pub(super) fn decode_labels(&self, labels: &mut [u8], raw: &mut Buffer) -> Result<(), Cause> {
        self.pixels.check_labels()?;
        self.each_line(raw, |line, _, at, pixels| {
            self.pixels.labels(line, &mut labels[at..at + pixels]);
        })
    }

    /// Whether the samples are grey of 16 bits, and nothing beside it.
    pub(super) fn has_wide_grey(&self) -> bool {
        self.pixels.is_wide_grey()
    }

    /// Writes all pixels of grey of 16 bits.
    pub(super) fn decode_wide_grey(
        &self,
        numbers: &mut [u16],
        raw: &mut Buffer,
    ) -> Result<(), Cause> {
        self.each_line(raw, |line, _, at, pixels| {
            self.pixels.wide_grey(line, &mut numbers[at..at + pixels]);
        })
    }

    /// Calls `show` with each line of each part: its bytes, the samples of a pixel, the first pixel's place in the picture, and the
    /// number of pixels that are in the picture.
    fn each_line(
        &self,
        raw: &mut Buffer,
        mut show: impl FnMut(&[u8], usize, usize, usize),
    ) -> Result<(), Cause> {
        let used = self.pixels.used();
        let sample_bytes = self.pixels.bits as usize / 8;
        let (in_part, line_bytes) = (self.in_part(), self.line_bytes());
        let (samples, whole_bytes, plane_bytes) = match self.is_planar {
            true => (used, line_bytes * used, line_bytes),
            false => (in_part, line_bytes, 0),
        };
        let [width, height] = [self.size.width, self.size.height].map(|side| side as usize);
        let [part_width, part_height] =
            [self.part.width, self.part.height].map(|side| side as usize);
        let (across, down) = (self.across(), self.down());
        let mut reused = Reused::default();
        for index in 0..across * down {
            let (left, top) = (index % across * part_width, index / across * part_height);
            let rows = part_height.min(height - top);
            let columns = part_width.min(width - left);
            let bytes = raw.stale((whole_bytes + plane_bytes) * rows);
            let (whole, plane) = bytes.split_at_mut(whole_bytes * rows);
            match self.is_planar {
                false => self.read_part(index, in_part, line_bytes, whole, &mut reused)?,
                true => {
                    for sample in 0..used {
                        let index = sample * across * down + index;
                        self.read_part(index, 1, line_bytes, plane, &mut reused)?;
                        match sample_bytes {
                            1 => interleave::<1>(plane, sample, used, whole),
                            2 => interleave::<2>(plane, sample, used, whole),
                            _ => interleave::<4>(plane, sample, used, whole),
                        }
                    }
                }
            }
            for (row, line) in whole.chunks_exact(whole_bytes).enumerate() {
                show(line, samples, (top + row) * width + left, columns);
            }
        }
        Ok(())
    }

    /// Reads the first rows of a part. Afterwards the samples' bytes are in native order.
    fn read_part(
        &self,
        index: usize,
        samples: usize,
        line_bytes: usize,
        out: &mut [u8],
        reused: &mut Reused,
    ) -> Result<(), Cause> {
        let Reused {
            tools,
            reversed,
            line: packed_line,
        } = reused;
        let data = self.data(index)?;
        let data = match self.compression {
            // The length may be any.
            Compression::No => data.get(..out.len()).ok_or(ENDS)?,
            _ => data,
        };
        let data = match self.is_reversed && self.compression != Compression::Jpeg {
            true => {
                reversed.clear();
                reversed.extend(data.iter().map(|byte| byte.reverse_bits()));
                reversed
            }
            false => data,
        };
        let packed = Packed {
            data,
            compression: self.compression,
            tables: self.jpeg_tables,
            part: self.part,
            jpeg_rows: self.jpeg_rows,
            samples,
            max_pixels: self.max_pixels,
        };
        packed.unpack(out, tools)?;
        let bytes = self.pixels.bits as usize / 8;
        match self.predictor {
            // The lines of this one have the highest byte first, in any file.
            Predictor::Float => {
                packed_line.resize(line_bytes, 0);
                for line in out.chunks_exact_mut(line_bytes) {
                    add_left::<1>(line, samples, |[a], [b]| [a.wrapping_add(b)]);
                    packed_line.copy_from_slice(line);
                    let numbers = line_bytes / bytes;
                    for (at, number) in line.chunks_exact_mut(bytes).enumerate() {
                        for (byte, to) in number.iter_mut().enumerate() {
                            let from = match cfg!(target_endian = "big") {
                                true => byte,
                                false => bytes - 1 - byte,
                            };
                            *to = packed_line[from * numbers + at];
                        }
                    }
                }
                return Ok(());
            }
            _ if bytes > 1 && self.is_little == cfg!(target_endian = "big") => {
                out.chunks_exact_mut(bytes).for_each(<[u8]>::reverse);
            }
            _ => {}
        }
        if self.predictor == Predictor::Left {
            for line in out.chunks_exact_mut(line_bytes) {
                match bytes {
                    1 => add_left::<1>(line, samples, |[a], [b]| [a.wrapping_add(b)]),
                    2 => add_left::<2>(line, samples, |a, b| {
                        let [a, b] = [a, b].map(u16::from_ne_bytes);
                        a.wrapping_add(b).to_ne_bytes()
                    }),
                    _ => add_left::<4>(line, samples, |a, b| {
                        let [a, b] = [a, b].map(u32::from_ne_bytes);
                        a.wrapping_add(b).to_ne_bytes()
                    }),
                }
            }
        }
        Ok(())
    }
}

/// Writes the samples of a plane, of `N` bytes each, to their place in pixels of `samples`.
fn interleave<const N: usize>(plane: &[u8], sample: usize, samples: usize, whole: &mut [u8]) {
    let pixels = whole.as_chunks_mut::<N>().0.chunks_exact_mut(samples);
    for (pixel, value) in pixels.zip(plane.as_chunks::<N>().0) {
        pixel[sample] = *value;
    }
}

/// Adds to each sample the same channel's of the pixel to the left.
fn add_left<const N: usize>(
    line: &mut [u8],
    samples: usize,
    add: impl Fn([u8; N], [u8; N]) -> [u8; N],
) {
    let (line, _) = line.as_chunks_mut::<N>();
    for at in samples..line.len() {
        line[at] = add(line[at], line[at - samples]);
    }
}

fn side(tags: &Tags<'_>, tag: u16) -> Result<u32, Cause> {
    let side = tags.value(tag)?.and_then(|side| u32::try_from(side).ok());
    side.ok_or(Cause::Contradiction("it does not say how large it is"))
}

fn predictor(
    tags: &Tags<'_>,
    compression: Compression,
    pixels: &Pixels,
) -> Result<Predictor, Cause> {
    let predictor = match tags.value(PREDICTOR)?.unwrap_or(1) {
        _ if !compression.predicts() => Predictor::No,
        1 => Predictor::No,
        2 => Predictor::Left,
        3 => Predictor::Float,
        other => return Err(refused(format!("with predictor {other}"))),
    };
    match predictor {
        Predictor::Float if !pixels.is_float => Err(Cause::Contradiction(
            "its predictor is for floating point, and its samples are integers",
        )),
        Predictor::Left if pixels.bits < 8 => Err(refused(format!(
            "with a predictor for samples of {} bits",
            pixels.bits
        ))),
        predictor => Ok(predictor),
    }
}

#[cfg(test)]
mod tests;
