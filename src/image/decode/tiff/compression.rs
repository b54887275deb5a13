//! Decompresses a part of a TIFF file: a strip or a tile.

use flate2::{Decompress, FlushDecompress};
use weezl::{BitOrder, LzwStatus, decode};

use super::{group4, refused};
use crate::image::decode::jpeg::{Channels, FrameHeader};
use crate::image::error::Cause;
use crate::image::pixels::Buffer;
use crate::image::size::Size;

/// How the parts are compressed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Compression {
    No,
    Group4,
    Lzw,
    Jpeg,
    Deflate,
    PackBits,
}

impl Compression {
    /// That of the number in the tag.
    pub(super) fn of(number: u64) -> Result<Compression, Cause> {
        let what = match number {
            1 => return Ok(Compression::No),
            4 => return Ok(Compression::Group4),
            5 => return Ok(Compression::Lzw),
            7 => return Ok(Compression::Jpeg),
            8 | 32946 => return Ok(Compression::Deflate),
            32773 => return Ok(Compression::PackBits),
            2 => "Huffman codes of fax",
            3 => "Group 3 fax",
            6 => "JPEG of the old style",
            33003 | 33005 | 34712 => "JPEG 2000",
            34887 => "LERC",
            34892 => "lossy JPEG of DNG",
            34925 => "LZMA",
            50000 => "Zstandard",
            50001 => "WebP",
            50002 | 52546 => "JPEG XL",
            other => return Err(refused(format!("with compression {other}"))),
        };
        Err(refused(format!("compressed by {what}")))
    }

    /// Whether a predictor belongs to it. libtiff ignores the tag elsewhere.
    pub(super) fn predicts(self) -> bool {
        matches!(self, Compression::Lzw | Compression::Deflate)
    }
}

/// The data of a part, and what is known of them.
pub(super) struct Packed<'a> {
    pub(super) data: &'a [u8],
    pub(super) compression: Compression,
    /// JPEG's tables, which all parts share.
    pub(super) tables: Option<&'a [u8]>,
    /// The size of a whole part, which the last strip need not have.
    pub(super) part: Size,
    /// How many rows a JPEG file may have.
    pub(super) jpeg_rows: u64,
    /// Samples of a pixel.
    pub(super) samples: usize,
    pub(super) max_pixels: u64,
}

/// What the parts of a picture are decompressed with, one after the other.
#[derive(Default)]
pub(super) struct Tools {
    inflater: Option<Decompress>,
    /// A JPEG file with its tables.
    joined: Vec<u8>,
    /// Its pixels, if there are more than the picture needs.
    whole: Buffer,
}

impl Packed<'_> {
    /// Writes the first rows of the part, and all of `out`.
    pub(super) fn unpack(&self, out: &mut [u8], tools: &mut Tools) -> Result<(), Cause> {
        match self.compression {
            Compression::No => {
                let data = self.data.get(..out.len()).ok_or(ENDS)?;
                out.copy_from_slice(data);
                Ok(())
            }
            Compression::Group4 => match u16::try_from(self.part.width) {
                Ok(width) => group4::decode(self.data, width, out),
                Err(_) => Err(refused("of more than 65,535 columns in Group 4 fax".into())),
            },
            Compression::Lzw => lzw(self.data, out),
            Compression::Jpeg => self.jpeg(out, tools),
            Compression::Deflate => inflate(self.data, out, &mut tools.inflater),
            Compression::PackBits => pack_bits(self.data, out),
        }
    }

    /// A whole JPEG file, but for the tables.
    fn jpeg(&self, out: &mut [u8], tools: &mut Tools) -> Result<(), Cause> {
        let Tools { joined, whole, .. } = tools;
        let file = match self.tables {
            None => self.data,
            // Both begin with a marker of the start, and the tables end with one of the end.
            Some(tables) => {
                let tables = tables.get(..tables.len().saturating_sub(2));
                joined.clear();
                joined.extend_from_slice(tables.ok_or(ENDS)?);
                joined.extend_from_slice(self.data.get(2..).ok_or(ENDS)?);
                joined
            }
        };
        let frame = FrameHeader::read(file).ok_or(ENDS)?;
        let Size { width, height } = frame.size;
        if u64::from(width) * u64::from(height) > self.max_pixels {
            return Err(Cause::PartTooLarge {
                width: width.into(),
                height: height.into(),
                max_pixels: self.max_pixels,
            });
        }
        let line = width as usize * self.samples;
        let pixels = line * height as usize;
        if width != self.part.width
            || u64::from(height) > self.jpeg_rows
            || frame.channels() != self.samples
            || pixels < out.len()
        {
            return Err(Cause::Contradiction(
                "a JPEG picture within it has another size or number of channels than its part",
            ));
        }
        frame.check()?;
        frame.check_for_default(file).map_err(|cause| match cause {
            Cause::NotDecoded(what, _) => refused(format!("that holds {what}")),
            cause => cause,
        })?;
        let decode = |pixels: &mut [u8]| match frame.decode(file, Channels::AsStored, pixels) {
            Ok(true) => Ok(()),
            Ok(false) => Err(refused("that holds JPEG in a rare layout".into())),
            Err(Cause::Damaged { what, .. }) => Err(Cause::DamagedTiff(what)),
            Err(cause) => Err(cause),
        };
        // The decoder may leave gaps.
        if pixels == out.len() {
            out.fill(0);
            return decode(out);
        }
        let whole = whole.zeroed(pixels);
        decode(whole)?;
        out.copy_from_slice(&whole[..out.len()]);
        Ok(())
    }
}

/// The data end before the part's pixels do.
pub(super) const ENDS: Cause = Cause::Truncated("TIFF");

fn inflate(data: &[u8], out: &mut [u8], inflater: &mut Option<Decompress>) -> Result<(), Cause> {
    let inflater = match inflater {
        Some(inflater) => {
            inflater.reset(true);
            inflater
        }
        none => none.insert(Decompress::new(true)),
    };
    // The first call being the last, it writes where it is told, and not into a window of its own. That it has more to write is no error.
    let inflated = inflater.decompress(data, out, FlushDecompress::Finish);
    inflated.map_err(|_| Cause::DamagedTiff("a code of deflate makes no sense"))?;
    match inflater.total_out() == out.len() as u64 {
        true => Ok(()),
        false => Err(ENDS),
    }
}

fn lzw(mut data: &[u8], mut out: &mut [u8]) -> Result<(), Cause> {
    // What follows the last pixel need not be a code.
    let configuration = decode::Configuration::with_tiff_size_switch(BitOrder::Msb, 8)
        .with_yield_on_full_buffer(true);
    // (Making one is faster than resetting one.)
    let mut decoder = configuration.build();
    while !out.is_empty() {
        let step = decoder.decode_bytes(data, out);
        data = &data[step.consumed_in..];
        out = &mut out[step.consumed_out..];
        match step.status {
            Ok(LzwStatus::Ok) if step.consumed_in + step.consumed_out > 0 => {}
            Ok(_) => break,
            Err(_) => return Err(Cause::DamagedTiff("a code of LZW makes no sense")),
        }
    }
    match out.is_empty() {
        true => Ok(()),
        false => Err(ENDS),
    }
}

/// Runs of one byte, and bytes as they are, each behind its length.
fn pack_bits(mut data: &[u8], mut out: &mut [u8]) -> Result<(), Cause> {
    while !out.is_empty() {
        let (length, behind) = data.split_first().ok_or(ENDS)?;
        data = behind;
        let length = *length as i8;
        if length == i8::MIN {
            continue;
        }
        let count = 1 + usize::from(length.unsigned_abs());
        let written = count.min(out.len());
        let (now, later) = out.split_at_mut(written);
        out = later;
        if length < 0 {
            let (value, behind) = data.split_first().ok_or(ENDS)?;
            now.fill(*value);
            data = behind;
        } else {
            now.copy_from_slice(data.get(..written).ok_or(ENDS)?);
            data = data.get(count..).unwrap_or_default();
        }
    }
    Ok(())
}
