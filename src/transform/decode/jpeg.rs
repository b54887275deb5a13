//! What a JPEG file's segments say, before a decoder is asked.

use image::metadata::Orientation;

use crate::transform::error::{Advice, Cause, MOST_SCANS};
use crate::transform::size::Size;

/// How a picture is coded.
#[derive(Debug, Clone, Copy)]
pub(super) struct Frame {
    pub(super) size: Size,
    /// The marker that the frame began with.
    kind: u8,
    /// Bits of a channel.
    precision: u8,
    channels: usize,
    /// Whether channels differ in how finely they are sampled.
    sampled: bool,
    /// Whether the first channel, luma, is the finest.
    luma_is_finest: bool,
    /// How many channels the first scan has.
    in_first_scan: usize,
}

impl Frame {
    /// Reads the segments in front of the first scan; `None` if they make no sense, as the decoder will say.
    pub(super) fn read(bytes: &[u8]) -> Option<Frame> {
        let mut frame: Option<Frame> = None;
        for (marker, content) in segments(bytes) {
            match marker {
                // These are no frames: Huffman tables, a marker that is reserved, and tables for arithmetic coding.
                0xC4 | 0xC8 | 0xCC => {}
                0xC0..=0xCF | 0xF7 if frame.is_none() => frame = Some(Frame::new(marker, content)?),
                0xDA => {
                    let in_first_scan = usize::from(*content.first()?);
                    return frame.map(|frame| Frame {
                        in_first_scan,
                        ..frame
                    });
                }
                _ => {}
            }
        }
        frame
    }

    fn new(kind: u8, content: &[u8]) -> Option<Frame> {
        let [precision, top, bottom, left, right, channels, rest @ ..] = content else {
            return None;
        };
        let (channels, _) = rest.get(..3 * usize::from(*channels))?.as_chunks::<3>();
        let factors = |[_, factors, _]: &[u8; 3]| (factors >> 4, factors & 15);
        let (across, down) = factors(channels.first()?);
        Some(Frame {
            size: Size {
                width: u32::from(u16::from_be_bytes([*left, *right])),
                height: u32::from(u16::from_be_bytes([*top, *bottom])),
            },
            kind,
            precision: *precision,
            channels: channels.len(),
            sampled: channels
                .iter()
                .any(|channel| factors(channel) != (across, down)),
            luma_is_finest: channels
                .iter()
                .map(factors)
                .all(|(a, d)| a <= across && d <= down),
            in_first_scan: channels.len(),
        })
    }

    /// Refuses what none of the decoders reads.
    pub(super) fn check(&self) -> Result<(), Cause> {
        let what = match self.kind {
            0xF7 => "JPEG-LS".to_owned(),
            0xC3 | 0xCB => "lossless JPEG".to_owned(),
            0xC5..=0xC7 | 0xCD..=0xCF => "hierarchical JPEG".to_owned(),
            _ if self.precision != 8 => format!("JPEG of {} bits a channel", self.precision),
            _ => return Ok(()),
        };
        Err(Cause::NotDecoded(what.into(), Advice::Convert))
    }

    /// Refuses what the `image` crate's decoder does not read, or gets wrong.
    pub(super) fn check_for_default(&self, bytes: &[u8]) -> Result<(), Cause> {
        let what = match self.kind {
            0xC9 | 0xCA => "JPEG with arithmetic coding",
            _ if !self.luma_is_finest => "JPEG whose luma is coarser than its chroma",
            // Where the channels of such a file are sampled alike, they are put together rightly.
            0xC0 | 0xC1 if self.in_first_scan < self.channels && self.sampled => {
                "JPEG without progression whose channels lie one behind the other, subsampled"
            }
            0xC0 | 0xC1 if self.in_first_scan < self.channels => {
                let scans = scans(bytes);
                return match scans > MOST_SCANS {
                    true => Err(Cause::TooManyScans(scans)),
                    false => Ok(()),
                };
            }
            _ => return Ok(()),
        };
        let advice = match cfg!(feature = "turbojpeg") {
            true => Advice::Convert, // it declined: the picture is CMYK
            false => Advice::Turbo,
        };
        Err(Cause::NotDecoded(what.into(), advice))
    }
}

/// The orientation that a file's EXIF data ask for.
pub(super) fn orientation(bytes: &[u8]) -> Orientation {
    segments(bytes)
        .filter(|(marker, _)| *marker == 0xE1)
        .find_map(|(_, content)| content.strip_prefix(b"Exif\0\0"))
        .and_then(Orientation::from_exif_chunk)
        .unwrap_or(Orientation::NoTransforms)
}

/// The markers up to the first scan's, each with its segment's content.
fn segments(bytes: &[u8]) -> impl Iterator<Item = (u8, &[u8])> {
    let mut rest = bytes;
    let mut in_header = true;
    std::iter::from_fn(move || {
        while in_header {
            let (marker, behind) = next_marker(rest)?;
            rest = behind;
            if stands_alone(marker) {
                continue;
            }
            let length = usize::from(u16::from_be_bytes(*rest.first_chunk()?));
            let content = rest.get(2..length)?;
            rest = &rest[length..];
            in_header = marker != 0xDA;
            return Some((marker, content));
        }
        None
    })
}

/// How many scans a file has.
fn scans(bytes: &[u8]) -> usize {
    markers(bytes).filter(|marker| *marker == 0xDA).count()
}

/// Whether the end marker is there. Without it the file is cut off, and the decoder would make up the rest.
pub(super) fn is_complete(bytes: &[u8]) -> bool {
    // Else something follows the end marker, or there is none. It is looked for marker by marker, because a thumbnail within
    // a segment has an end marker of its own.
    bytes.ends_with(&[0xFF, 0xD9]) || markers(bytes).any(|marker| marker == 0xD9)
}

/// All markers, up to the end marker; not those within segments.
fn markers(bytes: &[u8]) -> impl Iterator<Item = u8> {
    let mut rest = bytes;
    let mut ended = false;
    std::iter::from_fn(move || {
        if ended {
            return None;
        }
        let (marker, behind) = next_marker(rest)?;
        rest = behind;
        ended = marker == 0xD9;
        if !ended && !stands_alone(marker) {
            let length = usize::from(u16::from_be_bytes(*rest.first_chunk()?));
            rest = rest.get(length..).unwrap_or_default();
        }
        Some(marker)
    })
}

/// The next marker, and what is behind it. Bytes of 0xFF in front of it only fill.
fn next_marker(bytes: &[u8]) -> Option<(u8, &[u8])> {
    let start = bytes.iter().position(|byte| *byte == 0xFF)?;
    let bytes = &bytes[start..];
    let at = bytes.iter().position(|byte| *byte != 0xFF)?;
    Some((bytes[at], &bytes[at + 1..]))
}

/// Whether no segment follows a marker: stuffed bytes, restarts, the start and the end.
fn stands_alone(marker: u8) -> bool {
    matches!(marker, 0x00 | 0x01 | 0xD0..=0xD9)
}
