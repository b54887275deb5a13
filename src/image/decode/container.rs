//! Checks the tags of TIFF files and the chunks of WebP and PNG files before a decoder sees them: the decoders allocate memory for values
//! and embedded pictures, whose sizes may differ from the picture's, and panic at palettes that are none.

use image::metadata::Orientation;

use super::{Cause, jpeg};
use crate::image::size::Size;

/// Whether a file is TIFF with 64-bit offsets (BigTIFF), which the `image` crate reads but does not recognize.
pub(super) fn is_big_tiff(bytes: &[u8]) -> bool {
    bytes.starts_with(b"II\x2B\0\x08\0\0\0") || bytes.starts_with(b"MM\0\x2B\0\x08\0\0")
}

/// Refuses a TIFF file if a tag has more values than the file has bytes, or if the first picture consists of tiles or JPEG
/// pictures with more than `max_pixels`.
pub(super) fn check_tiff(bytes: &[u8], max_pixels: u64) -> Result<(), Cause> {
    let Some(tags) = Tags::read(bytes) else {
        return Ok(()); // the decoder reports it
    };
    let len = bytes.len() as u64;
    let mut read = tags.tags().filter(|tag| tag.number < PRIVATE);
    if read.any(|tag| tag.size() > len) {
        return Err(Cause::Contradiction(
            "a tag of its first page has more values than the file has bytes",
        ));
    }
    let side = |tag| tags.values(tag).next().unwrap_or(0);
    let check = |width: u64, height: u64| match width.saturating_mul(height) > max_pixels {
        true => Err(Cause::PartTooLarge {
            width,
            height,
            max_pixels,
        }),
        false => Ok(()),
    };
    check(side(TILE_WIDTH), side(TILE_HEIGHT))?;
    if side(COMPRESSION) != JPEG {
        return Ok(());
    }
    for offset in tags.values(STRIPS).chain(tags.values(TILES)) {
        let part = usize::try_from(offset).ok().and_then(|at| bytes.get(at..));
        if let Some(frame) = part.and_then(jpeg::FrameHeader::read) {
            check(frame.size.width.into(), frame.size.height.into())?;
        }
    }
    Ok(())
}

/// Refuses a PNG file of colours from a palette that has not three bytes for each of 1 to 256 colours.
pub(super) fn check_png(bytes: &[u8]) -> Result<(), Cause> {
    const SIGNATURE_BYTES: usize = 8;
    const COLOR_TYPE: usize = 25;
    const PALETTE: u8 = 3;
    if bytes.get(COLOR_TYPE) != Some(&PALETTE) {
        return Ok(());
    }
    let mut rest = bytes.get(SIGNATURE_BYTES..).unwrap_or_default();
    // A chunk has a length, a name, its data and a checksum.
    while let Some((&[a, b, c, d, ref name @ ..], behind)) = rest.split_first_chunk::<8>() {
        let bytes = u32::from_be_bytes([a, b, c, d]) as usize;
        match name {
            b"PLTE" if !bytes.is_multiple_of(3) || !(3..=768).contains(&bytes) => {
                return Err(Cause::Contradiction(
                    "its palette has not three bytes for each of 1 to 256 colours",
                ));
            }
            b"PLTE" | b"IDAT" => break,
            _ => {}
        }
        let next = bytes.checked_add(4).and_then(|next| behind.get(next..));
        rest = next.unwrap_or_default(); // the decoder reports it
    }
    Ok(())
}

/// The first private tag. The decoder does not read private tags, so they may be cut off.
const PRIVATE: u16 = 0x8000;
const COMPRESSION: u16 = 259;
const JPEG: u64 = 7;
const STRIPS: u16 = 273;
const TILE_WIDTH: u16 = 322;
const TILE_HEIGHT: u16 = 323;
const TILES: u16 = 324;

/// The tags of a TIFF file's first page.
struct Tags<'a> {
    bytes: &'a [u8],
    little: bool,
    big: bool,
    /// The entries, back to back.
    entries: &'a [u8],
}

struct Tag<'a> {
    number: u16,
    kind: u64,
    count: u64,
    /// The values, or their offset.
    place: &'a [u8],
}

impl Tag<'_> {
    /// The size of its values in bytes.
    fn size(&self) -> u64 {
        self.count.saturating_mul(value_size(self.kind))
    }
}

fn value_size(kind: u64) -> u64 {
    match kind {
        3 | 8 => 2,
        4 | 9 | 11 | 13 => 4,
        5 | 10 | 12 | 16..=18 => 8,
        _ => 1,
    }
}

impl<'a> Tags<'a> {
    fn read(bytes: &'a [u8]) -> Option<Tags<'a>> {
        let mut tags = Tags {
            bytes,
            little: bytes.starts_with(b"II"),
            big: is_big_tiff(bytes),
            entries: &[],
        };
        let (place, width, entry) = if tags.big { (8, 8, 20) } else { (4, 2, 12) };
        let start = tags.number(bytes.get(place..)?.get(..if tags.big { 8 } else { 4 })?);
        let page = bytes.get(usize::try_from(start).ok()?..)?;
        let count = usize::try_from(tags.number(page.get(..width)?)).ok()?;
        let entries = &page[width..];
        tags.entries = &entries[..entries.len().min(count.saturating_mul(entry))];
        Some(tags)
    }

    fn tags(&self) -> impl Iterator<Item = Tag<'a>> + '_ {
        let wide = if self.big { 8 } else { 4 };
        let entries = self.entries.chunks_exact(4 + 2 * wide);
        entries.map(move |entry| Tag {
            number: self.number(&entry[..2]) as u16,
            kind: self.number(&entry[2..4]),
            count: self.number(&entry[4..4 + wide]),
            place: &entry[4 + wide..],
        })
    }

    /// The integers of a tag; none if the file does not hold all of them.
    fn values(&self, number: u16) -> impl Iterator<Item = u64> + '_ {
        let tag = self.tags().find(|tag| tag.number == number);
        let values = tag.and_then(|tag| {
            let size = usize::try_from(tag.size()).ok()?;
            let values = match tag.place.get(..size) {
                Some(values) => values,
                None => {
                    let at = usize::try_from(self.number(tag.place)).ok()?;
                    self.bytes.get(at..)?.get(..size)?
                }
            };
            Some(values.chunks_exact(value_size(tag.kind) as usize))
        });
        values.into_iter().flatten().map(|value| self.number(value))
    }

    fn number(&self, bytes: &[u8]) -> u64 {
        match self.little {
            true => little(bytes),
            false => bytes
                .iter()
                .fold(0, |sum, byte| sum << 8 | u64::from(*byte)),
        }
    }
}

/// Refuses a WebP file that is cut off, or that contains a picture larger than its canvas.
pub(super) fn check_webp(bytes: &[u8], canvas: Size) -> Result<(), Cause> {
    let (mut extended, mut animated) = (false, false);
    for (kind, content) in chunks(bytes.get(12..).unwrap_or_default()) {
        // The decoder skips all others, and what follows the picture.
        if !CHUNKS.contains(&&kind) {
            continue;
        }
        let content = content?;
        check_frame(&kind, content, canvas)?;
        if kind == *b"ANMF" {
            // The frame's position and duration come first. Later frames are not decoded.
            let mut has_picture = false;
            for (kind, content) in chunks(content.get(16..).unwrap_or_default()) {
                check_frame(&kind, content?, canvas)?;
                has_picture |= matches!(&kind, b"VP8 " | b"VP8L");
            }
            // Behind alpha, the decoder takes a chunk of any name for the picture, and does not look at its size.
            if animated && !has_picture {
                return Err(Cause::Contradiction("it has a frame without a picture"));
            }
            break;
        }
        if kind == *b"VP8X" {
            extended = true;
            animated = content.first().is_some_and(|flags| flags & ANIMATED != 0);
        }
        if !extended {
            break;
        }
    }
    Ok(())
}

/// The flag of animations in the header of an extended file.
const ANIMATED: u8 = 2;

/// The first frame of an animation as a separate file, and its position. A lossy frame loses its alpha.
pub(super) fn first_frame(bytes: &[u8]) -> Option<(Vec<u8>, u32, u32)> {
    let mut chunks_of_file = chunks(bytes.get(12..)?);
    let (kind, header) = chunks_of_file.next()?;
    if kind != *b"VP8X" || header.ok()?.first()? & ANIMATED == 0 {
        return None;
    }
    let (_, frame) = chunks_of_file.find(|(kind, _)| kind == b"ANMF")?;
    let (header, within) = frame.ok()?.split_at_checked(16)?;
    let mut within = chunks(within);
    let (kind, picture) = within.find(|(kind, _)| matches!(kind, b"VP8 " | b"VP8L"))?;
    let picture = picture.ok()?;
    let size = picture.len() as u32;
    let padded = size + size % 2;
    let mut still = b"RIFF".to_vec();
    still.extend((4 + 8 + padded).to_le_bytes());
    still.extend(b"WEBP");
    still.extend(kind);
    still.extend(size.to_le_bytes());
    still.extend(picture);
    still.resize(20 + padded as usize, 0);
    // Positions are even, and stored halved.
    let place = |at: usize| 2 * little(&header[at..at + 3]) as u32;
    Some((still, place(0), place(3)))
}

/// The orientation in the EXIF data of a WebP file. They may begin with JPEG's prefix.
pub(super) fn webp_orientation(exif: Option<Vec<u8>>) -> Orientation {
    exif.as_deref()
        .map(|exif| exif.strip_prefix(b"Exif\0\0").unwrap_or(exif))
        .and_then(Orientation::from_exif_chunk)
        .unwrap_or(Orientation::NoTransforms)
}

const CHUNKS: [&[u8; 4]; 9] = [
    b"VP8X", b"VP8 ", b"VP8L", b"ALPH", b"ANIM", b"ANMF", b"ICCP", b"EXIF", b"XMP ",
];

/// The chunks of a WebP file.
fn chunks(bytes: &[u8]) -> impl Iterator<Item = ([u8; 4], Result<&[u8], Cause>)> {
    let mut rest = bytes;
    std::iter::from_fn(move || {
        let (kind, behind) = rest.split_first_chunk::<4>()?;
        let (size, behind) = behind.split_first_chunk::<4>()?;
        let size = u32::from_le_bytes(*size) as usize;
        let content = behind.get(..size).ok_or(Cause::Truncated("WebP"));
        // Chunks are padded to even sizes.
        rest = behind.get(size + size % 2..).unwrap_or_default();
        Some((*kind, content))
    })
}

/// Refuses a lossy picture that is larger than the canvas.
fn check_frame(kind: &[u8; 4], content: &[u8], canvas: Size) -> Result<(), Cause> {
    if kind != b"VP8 " {
        return Ok(());
    }
    let side = |at: usize| content.get(at..at + 2).map_or(0, little) as u32 & 0x3FFF;
    match side(6) > canvas.width || side(8) > canvas.height {
        true => Err(Cause::Contradiction(
            "a picture within is larger than the whole",
        )),
        false => Ok(()),
    }
}

fn little(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .rev()
        .fold(0, |sum, byte| sum << 8 | u64::from(*byte))
}
