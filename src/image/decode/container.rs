//! Checks the chunks of WebP and PNG files before a decoder sees them: the decoders allocate memory for embedded pictures, whose
//! sizes may differ from the picture's, and panic at palettes that are none.

use image::metadata::Orientation;

use super::Cause;
use crate::image::size::Size;

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
