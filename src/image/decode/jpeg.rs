//! Reads the segments of a JPEG file before any decoder sees it.

#[cfg(feature = "nvjpeg")]
pub(in crate::image) mod baseline;
mod bits;
mod blocks;
mod walk;
mod watch;

use image::metadata::Orientation;

use crate::image::error::{Advice, Cause, MOST_SCANS};
use crate::image::size::Size;

/// The frame header: how the picture is coded.
#[derive(Debug, Clone, Copy)]
pub(super) struct FrameHeader {
    pub(super) size: Size,
    /// The marker of the frame.
    kind: u8,
    /// Bits per channel.
    precision: u8,
    channels: usize,
    /// Whether some channels are subsampled.
    sampled: bool,
    /// Whether a channel is sampled three times in a unit, or four times down where another is sampled twice.
    is_sampled_oddly: bool,
    /// Whether no channel is finer than the first, luma.
    luma_is_finest: bool,
    /// How often luma is sampled in a unit, across.
    #[cfg_attr(
        not(feature = "turbojpeg"),
        expect(dead_code, reason = "only libjpeg-turbo needs it")
    )]
    across: u8,
    /// How many times finer luma is than chroma, across and down. `None` if the chroma channels differ, or it is not an integer.
    finer: Option<(u8, u8)>,
    /// How many channels the first scan has; 0 if there is no scan.
    in_first_scan: usize,
    /// Whether the first scan has all channels, and the file defines all tables that it needs before it.
    #[cfg_attr(
        not(feature = "turbojpeg"),
        expect(dead_code, reason = "only libjpeg-turbo needs it")
    )]
    is_self_contained: bool,
}

impl FrameHeader {
    /// Reads the segments before the first scan. `None` if they are malformed, which the decoder will report.
    pub(super) fn read(bytes: &[u8]) -> Option<FrameHeader> {
        let mut frame: Option<FrameHeader> = None;
        let mut tables = Tables::default();
        for (marker, content) in segments(bytes) {
            match marker {
                0xC4 => tables.add_huffman(content),
                0xDB => tables.add_quantization(content),
                // These are not frames: a reserved marker, and tables for arithmetic coding.
                0xC8 | 0xCC => {}
                0xC0..=0xCF | 0xF7 if frame.is_none() => {
                    frame = Some(FrameHeader::new(marker, content)?);
                    tables.need_quantization(content);
                }
                0xDA => {
                    let in_first_scan = usize::from(*content.first()?);
                    tables.need_huffman(content);
                    return frame.map(|frame| FrameHeader {
                        in_first_scan,
                        is_self_contained: in_first_scan == frame.channels
                            && matches!(frame.kind, 0xC0 | 0xC1)
                            && tables.are_there(),
                        ..frame
                    });
                }
                _ => {}
            }
        }
        frame
    }

    fn new(kind: u8, content: &[u8]) -> Option<FrameHeader> {
        let [precision, top, bottom, left, right, channels, rest @ ..] = content else {
            return None;
        };
        let (channels, _) = rest.get(..3 * usize::from(*channels))?.as_chunks::<3>();
        let factors = |[_, factors, _]: &[u8; 3]| (factors >> 4, factors & 15);
        let (across, down) = factors(channels.first()?);
        let chroma = channels.get(1).map_or((across, down), factors);
        let alike = channels[1..]
            .iter()
            .all(|channel| factors(channel) == chroma);
        let whole = |of: u8, by: u8| (by > 0 && of.is_multiple_of(by)).then(|| of / by);
        Some(FrameHeader {
            size: Size {
                width: u32::from(u16::from_be_bytes([*left, *right])),
                height: u32::from(u16::from_be_bytes([*top, *bottom])),
            },
            kind,
            precision: *precision,
            across,
            channels: channels.len(),
            sampled: channels
                .iter()
                .any(|channel| factors(channel) != (across, down)),
            is_sampled_oddly: channels
                .iter()
                .map(factors)
                .any(|factors| matches!(factors, (3, _) | (_, 3)) || (down, factors.1) == (4, 2)),
            luma_is_finest: channels
                .iter()
                .map(factors)
                .all(|(a, d)| a <= across && d <= down),
            finer: whole(across, chroma.0)
                .zip(whole(down, chroma.1))
                .filter(|_| alike),
            in_first_scan: 0,
            is_self_contained: false,
        })
    }

    /// Whether the picture needs no tables that a decoder kept from an earlier file.
    #[cfg(feature = "turbojpeg")]
    pub(super) fn is_self_contained(&self) -> bool {
        self.is_self_contained
    }

    /// How many blocks of luma lie side by side in a unit of the scan.
    #[cfg(feature = "turbojpeg")]
    pub(super) fn blocks_across(&self) -> u8 {
        self.across
    }

    /// Whether another reader found the same: a picture of this size, with this number of channels, and luma that is finer than
    /// chroma by these factors, across and down.
    #[cfg(feature = "turbojpeg")]
    pub(super) fn is(&self, size: Size, channels: usize, finer: Option<(u8, u8)>) -> bool {
        self.in_first_scan > 0
            && (self.size, self.channels) == (size, channels)
            && (finer.is_none() || finer == self.finer)
    }

    /// The number of channels.
    pub(super) fn channels(&self) -> usize {
        self.channels
    }

    /// Refuses what no decoder here reads.
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

    /// Whether there are at most two columns of chroma. libjpeg does not smooth those, and the default decoder does.
    fn is_narrow(&self) -> bool {
        let Size { width, height } = self.size;
        let one = |by: u8| width == 1 && (by == 1 || height <= 2);
        matches!(self.finer, Some((2, by @ (1 | 2))) if width <= 4 && !one(by))
    }

    /// Refuses what the default decoder does not read, or decodes to wrong pixels.
    pub(super) fn check_for_default(&self, bytes: &[u8]) -> Result<(), Cause> {
        let what = match self.kind {
            0xC9 | 0xCA => "JPEG with arithmetic coding",
            _ if self.is_narrow() => {
                "JPEG of at most four columns, whose chroma has fewer columns than its luma"
            }
            _ if self.is_sampled_oddly => "JPEG with rare sampling factors",
            _ if !self.luma_is_finest => "JPEG whose luma is coarser than its chroma",
            // Without subsampling, the decoder combines the channels of such a file correctly.
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
            true => Advice::Convert, // libjpeg-turbo declined: the picture is CMYK
            false => Advice::Turbo,
        };
        Err(Cause::NotDecoded(what.into(), advice))
    }
}

impl FrameHeader {
    /// Decodes a file with Huffman codes by the default decoder. Fails if the file is damaged such that the decoder
    /// would make up pixels. Returns false if it declined: a few rare layouts are left to the `image` crate, which runs the same
    /// decoder less strictly.
    pub(super) fn decode(
        &self,
        bytes: &[u8],
        channels: Channels,
        pixels: &mut [u8],
    ) -> Result<bool, Cause> {
        let damaged = |what| self.damaged(bytes, what);
        let progressive = self.kind == 0xC2;
        if self.in_first_scan < self.channels && !progressive {
            walk::check(bytes).map_err(damaged)?;
            return Ok(false);
        }
        if progressive {
            walk::check_first_scan(bytes).map_err(damaged)?;
        }
        let seen = watch::decode(bytes, channels, progressive, pixels);
        if seen != watch::Verdict::Nothing {
            walk::check(bytes).map_err(damaged)?;
        }
        Ok(seen != watch::Verdict::Refusal)
    }

    /// The error for damage that the default decoder refuses.
    fn damaged(&self, bytes: &[u8], what: &'static str) -> Cause {
        match scans(bytes) {
            scans if scans > MOST_SCANS => Cause::TooManyScans(scans),
            _ if has_two_frames(bytes) => TWO_FRAMES,
            _ => Cause::Damaged {
                what,
                // It leaves CMYK to the default decoder.
                turbo: !cfg!(feature = "turbojpeg") && matches!(self.channels, 1 | 3),
            },
        }
    }
}

/// What the default decoder makes of the channels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Channels {
    Grey,
    Rgb,
    /// Nothing.
    AsStored,
}

/// The tables that a file has, and those that it needs: one bit each.
#[derive(Debug, Default)]
struct Tables {
    huffman: u8,
    needs_huffman: u8,
    quantization: u8,
    needs_quantization: u8,
}

impl Tables {
    fn add_huffman(&mut self, mut content: &[u8]) {
        while let Some((table, counts)) = content
            .split_first()
            .and_then(|(table, behind)| Some((table, behind.first_chunk::<16>()?)))
        {
            self.huffman |= huffman_bit(*table);
            let values: usize = counts.iter().copied().map(usize::from).sum();
            content = content.get(17 + values..).unwrap_or_default();
        }
    }

    fn add_quantization(&mut self, mut content: &[u8]) {
        while let Some(table) = content.first() {
            self.quantization |= 1 << (table & 3);
            let bytes = if *table < 16 { 65 } else { 129 };
            content = content.get(bytes..).unwrap_or_default();
        }
    }

    /// Adds what the channels of a frame need.
    fn need_quantization(&mut self, frame: &[u8]) {
        for [.., table] in frame.get(6..).unwrap_or_default().as_chunks::<3>().0 {
            self.needs_quantization |= 1 << (table & 3);
        }
    }

    /// Adds what the channels of a scan need.
    fn need_huffman(&mut self, scan: &[u8]) {
        let channels = scan.first().map_or(0, |channels| usize::from(*channels));
        let channels = scan.get(1..1 + 2 * channels).unwrap_or_default();
        for [_, tables] in channels.as_chunks::<2>().0 {
            self.needs_huffman |= huffman_bit(tables >> 4) | huffman_bit(0x10 | tables & 15);
        }
    }

    fn are_there(&self) -> bool {
        self.needs_huffman & !self.huffman == 0 && self.needs_quantization & !self.quantization == 0
    }
}

/// The bit of a Huffman table: 0 to 3 are for DC, 16 to 19 for AC.
fn huffman_bit(table: u8) -> u8 {
    1 << (table >> 2 & 4 | table & 3)
}

/// The orientation in a file's EXIF data.
pub(super) fn orientation(bytes: &[u8]) -> Orientation {
    segments(bytes)
        .filter(|(marker, _)| *marker == 0xE1)
        .find_map(|(_, content)| content.strip_prefix(b"Exif\0\0"))
        .and_then(Orientation::from_exif_chunk)
        .unwrap_or(Orientation::NoTransforms)
}

/// The markers with their segments' content, up to and including the first scan.
fn segments(bytes: &[u8]) -> impl Iterator<Item = (u8, &[u8])> {
    let mut rest = bytes;
    let mut in_header = true;
    std::iter::from_fn(move || {
        while in_header {
            let (marker, behind) = next_marker(rest)?;
            rest = behind;
            if marker == 0xD9 {
                return None;
            }
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

/// The number of scans in a file.
fn scans(bytes: &[u8]) -> usize {
    markers(bytes).filter(|marker| *marker == 0xDA).count()
}

/// The error for several frames, at the second of which libjpeg stops, too.
pub(super) const TWO_FRAMES: Cause = Cause::Damaged {
    what: "it has two frames",
    turbo: false,
};

/// Whether there are several frames.
pub(super) fn has_two_frames(bytes: &[u8]) -> bool {
    let is_frame =
        |marker: &u8| matches!(marker, 0xC0..=0xC3 | 0xC5..=0xC7 | 0xC9..=0xCB | 0xCD..=0xCF);
    markers(bytes).filter(is_frame).nth(1).is_some()
}

/// Whether the file has its end marker. Without it, the file is cut off, and the decoder would make up the rest.
pub(super) fn is_complete(bytes: &[u8]) -> bool {
    // If the marker is not at the very end, search marker by marker: a thumbnail inside a segment has an end marker of its own.
    bytes.ends_with(&[0xFF, 0xD9]) || markers(bytes).any(|marker| marker == 0xD9)
}

/// All markers up to the end marker, without those inside segments.
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

/// The next marker, and the bytes after it. Any number of 0xFF may precede a marker.
fn next_marker(bytes: &[u8]) -> Option<(u8, &[u8])> {
    let start = bytes.iter().position(|byte| *byte == 0xFF)?;
    let bytes = &bytes[start..];
    let at = bytes.iter().position(|byte| *byte != 0xFF)?;
    Some((bytes[at], &bytes[at + 1..]))
}

/// Whether a marker has no segment: stuffed bytes, restarts, start and end.
fn stands_alone(marker: u8) -> bool {
    matches!(marker, 0x00 | 0x01 | 0xD0..=0xD9)
}
