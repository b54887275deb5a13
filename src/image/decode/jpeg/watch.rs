//! Runs zune-jpeg, and watches what it reads.
//!
//! The decoder does not report a scan with too few or too many data. So each scan is padded with ones, which are a code in no table,
//! and a read of the padding, or data left unread, raises doubt. A doubtful file is then checked code by code (`walk.rs`), which
//! decides. All others cost one copy of the file.

use std::cell::Cell;
use std::io::BufRead as _;

use zune_core::bytestream::{ZByteIoError, ZByteReaderTrait, ZSeekFrom};
use zune_core::colorspace::ColorSpace;
use zune_core::options::DecoderOptions;
use zune_jpeg::JpegDecoder;

use super::Channels;

/// The outcome of decoding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The decoder read all data, and no more.
    Nothing,
    /// It read too many data, or too few.
    Doubt,
    /// It failed. It is stricter than other decoders.
    Refusal,
}

/// Decodes a file.
pub(super) fn decode(
    bytes: &[u8],
    channels: Channels,
    progressive: bool,
    pixels: &mut [u8],
) -> Verdict {
    let stream = PaddedFile::new(bytes, progressive);
    let doubt = Cell::new(stream.doubt);
    let watched = Watched {
        stream: &stream,
        at: 0,
        run: 0,
        doubt: &doubt,
    };
    let options = DecoderOptions::default()
        .set_strict_mode(true)
        .set_max_width(usize::MAX)
        .set_max_height(usize::MAX);
    let mut decoder = JpegDecoder::new_with_options(watched, options);
    let color = match channels {
        Channels::Grey => Some(ColorSpace::Luma),
        Channels::Rgb => Some(ColorSpace::RGB),
        Channels::AsStored => match decoder.decode_headers() {
            Ok(()) => decoder.input_colorspace(),
            Err(_) => return Verdict::Refusal,
        },
    };
    if let Some(color) = color {
        decoder.set_options(options.jpeg_set_out_colorspace(color));
    }
    let decoded = decoder.decode_into(pixels);
    match (decoded, doubt.get()) {
        (Err(_), _) => Verdict::Refusal,
        (Ok(()), true) => Verdict::Doubt,
        (Ok(()), false) => Verdict::Nothing,
    }
}

/// The padding after each scan's data: bytes of 0xFF, each followed by the 0 that makes it no marker.
const FILLING: usize = 32;

/// All padding together may take this much more than the size of the file.
const MOST_FILLING: usize = 64 << 10;

/// How far the decoder may read ahead.
const AHEAD: usize = 24;

/// A copy of a file, with padding after the data of its scans.
struct PaddedFile {
    bytes: Vec<u8>,
    runs: Vec<CodedSegment>,
    /// Whether restart markers are out of order, which the decoder ignores, or too many.
    doubt: bool,
}

/// An entropy-coded segment: the data between two markers, and their padding.
#[derive(Clone, Copy)]
struct CodedSegment {
    start: usize,
    end: usize,
    filled: usize,
}

impl PaddedFile {
    fn new(file: &[u8], progressive: bool) -> PaddedFile {
        let mut bytes = Vec::with_capacity(file.len() + 4 * FILLING);
        let mut runs = Vec::new();
        let (mut rest, mut copied, mut scans) = (file, 0, 0);
        let (mut restarts, mut doubt) = (0u8, false);
        while let Some((marker, behind)) = super::next_marker(rest) {
            rest = behind;
            match marker {
                0xD9 => break,
                0xD0..=0xD7 if scans > 0 => {
                    doubt |= marker & 7 != restarts & 7;
                    restarts = restarts.wrapping_add(1);
                }
                marker if super::stands_alone(marker) => continue,
                _ => {
                    let length = rest.first_chunk().map(|length| u16::from_be_bytes(*length));
                    let segment = length.map(usize::from);
                    rest = segment
                        .and_then(|length| rest.get(length..))
                        .unwrap_or_default();
                    if marker != 0xDA {
                        continue;
                    }
                    scans += 1;
                    restarts = 0;
                }
            }
            let (start, data) = (file.len() - rest.len(), data(rest));
            rest = &rest[data..];
            bytes.extend_from_slice(&file[copied..start + data]);
            copied = start + data;
            let end = bytes.len();
            // Padding for millions of restart markers is not worth the memory.
            if bytes.len() - copied > file.len() + MOST_FILLING {
                doubt = true;
                break;
            }
            // After the first scan of a progressive picture, the decoder expects the marker at once.
            if !progressive || scans > 1 {
                bytes.extend([0xFF, 0].repeat(FILLING / 2));
            }
            runs.push(CodedSegment {
                start: end - data,
                end,
                filled: bytes.len(),
            });
        }
        bytes.extend_from_slice(&file[copied..]);
        PaddedFile { bytes, runs, doubt }
    }
}

/// The number of bytes before the next marker.
fn data(bytes: &[u8]) -> usize {
    let mut at = 0;
    loop {
        let mut rest = &bytes[at..];
        // Reading from memory never fails.
        at += rest.skip_until(0xFF).unwrap_or_default();
        match (bytes[..at].last(), rest.first()) {
            (Some(0xFF), Some(0)) => {}
            (Some(0xFF), Some(_)) => return at - 1,
            _ => return bytes.len(),
        }
    }
}

/// The reader for the decoder. It reads the data of scans four bytes at a time, or by single bytes that may be missing
/// (`read_byte_no_error`). By `read_exact_bytes` of one byte, it searches for markers.
struct Watched<'a> {
    stream: &'a PaddedFile,
    at: usize,
    /// The segment that is being read, or the next one.
    run: usize,
    doubt: &'a Cell<bool>,
}

impl Watched<'_> {
    fn run(&mut self) -> Option<CodedSegment> {
        while self.stream.runs.get(self.run)?.filled <= self.at {
            self.run += 1;
        }
        self.stream.runs.get(self.run).copied()
    }

    fn rest(&self) -> &[u8] {
        self.stream.bytes.get(self.at..).unwrap_or_default()
    }
}

impl ZByteReaderTrait for Watched<'_> {
    fn read_byte_no_error(&mut self) -> u8 {
        if self.run().is_some_and(|run| self.at > run.end + AHEAD) {
            self.doubt.set(true);
        }
        let byte = self.rest().first().copied().unwrap_or_default();
        self.at += 1;
        byte
    }

    #[inline(always)]
    fn read_exact_bytes(&mut self, to: &mut [u8]) -> Result<(), ZByteIoError> {
        let len = to.len();
        match self.stream.bytes.get(self.at..self.at + len) {
            Some(bytes) => to.copy_from_slice(bytes),
            None => return Err(ZByteIoError::NotEnoughBytes(self.rest().len(), len)),
        }
        if len == 1
            && self
                .run()
                .is_some_and(|run| (run.start..run.end).contains(&self.at))
        {
            self.doubt.set(true);
        }
        self.at += len;
        Ok(())
    }

    fn read_bytes(&mut self, to: &mut [u8]) -> Result<usize, ZByteIoError> {
        let len = self.peek_bytes(to)?;
        self.at += len;
        Ok(len)
    }

    fn peek_bytes(&mut self, to: &mut [u8]) -> Result<usize, ZByteIoError> {
        let rest = self.rest();
        let len = rest.len().min(to.len());
        to[..len].copy_from_slice(&rest[..len]);
        Ok(len)
    }

    fn peek_exact_bytes(&mut self, to: &mut [u8]) -> Result<(), ZByteIoError> {
        match self.peek_bytes(to)? {
            len if len == to.len() => Ok(()),
            len => Err(ZByteIoError::NotEnoughBytes(len, to.len())),
        }
    }

    fn z_seek(&mut self, from: ZSeekFrom) -> Result<u64, ZByteIoError> {
        let at = match from {
            ZSeekFrom::Start(at) => usize::try_from(at).ok(),
            ZSeekFrom::End(by) => self.stream.bytes.len().checked_add_signed(by as isize),
            ZSeekFrom::Current(by) => self.at.checked_add_signed(by as isize),
        };
        self.at = at.ok_or(ZByteIoError::SeekError("outside of memory"))?;
        Ok(self.at as u64)
    }

    fn is_eof(&mut self) -> Result<bool, ZByteIoError> {
        Ok(self.at >= self.stream.bytes.len())
    }

    fn z_position(&mut self) -> Result<u64, ZByteIoError> {
        Ok(self.at as u64)
    }

    fn read_remaining(&mut self, sink: &mut Vec<u8>) -> Result<usize, ZByteIoError> {
        let len = self.rest().len();
        sink.extend_from_slice(self.rest());
        self.at += len;
        Ok(len)
    }
}
