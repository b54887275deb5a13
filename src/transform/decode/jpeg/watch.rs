//! Decoding by zune-jpeg, and watching it.
//!
//! It does not say whether the data of a scan were too few or too many. So ones are put behind them, which are no code in any
//! table, and what it reads of them, or leaves unread of the data, is noted. A file that looks damaged so is walked through, which
//! tells for sure; others cost nothing but a copy of the file.

use std::cell::Cell;
use std::io::BufRead as _;

use zune_core::bytestream::{ZByteIoError, ZByteReaderTrait, ZSeekFrom};
use zune_core::colorspace::ColorSpace;
use zune_core::options::DecoderOptions;
use zune_jpeg::JpegDecoder;

/// What came of decoding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Seen {
    /// All data were read, and no more.
    Nothing,
    /// Too many data, or too few.
    Doubt,
    /// An error, of a decoder that is stricter than others.
    Refusal,
}

/// Decodes a file as RGB, or as grey if it is.
pub(super) fn decode(bytes: &[u8], grey: bool, progressive: bool, pixels: &mut [u8]) -> Seen {
    let stream = Stream::new(bytes, progressive);
    let doubt = Cell::new(stream.doubt);
    let watched = Watched {
        stream: &stream,
        at: 0,
        run: 0,
        doubt: &doubt,
    };
    let color = if grey {
        ColorSpace::Luma
    } else {
        ColorSpace::RGB
    };
    let options = DecoderOptions::default()
        .set_strict_mode(true)
        .set_max_width(usize::MAX)
        .set_max_height(usize::MAX)
        .jpeg_set_out_colorspace(color);
    let decoded = JpegDecoder::new_with_options(watched, options).decode_into(pixels);
    match (decoded, doubt.get()) {
        (Err(_), _) => Seen::Refusal,
        (Ok(()), true) => Seen::Doubt,
        (Ok(()), false) => Seen::Nothing,
    }
}

/// So many bytes are put behind data: 0xFF, each with the 0 that makes it no marker.
const FILLING: usize = 32;

/// So many bytes may be put behind data beside as many as the file has.
const MOST_FILLING: usize = 64 << 10;

/// A decoder may have read so far ahead.
const AHEAD: usize = 24;

/// A file, with ones behind the data of its scans.
struct Stream {
    bytes: Vec<u8>,
    runs: Vec<Run>,
    /// Whether restart markers are out of their order, to which the decoder pays no heed, or too many.
    doubt: bool,
}

/// Data between two markers, and what was put behind them.
#[derive(Clone, Copy)]
struct Run {
    start: usize,
    end: usize,
    filled: usize,
}

impl Stream {
    fn new(file: &[u8], progressive: bool) -> Stream {
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
            // Millions of restart markers are not worth so much memory.
            if bytes.len() - copied > file.len() + MOST_FILLING {
                doubt = true;
                break;
            }
            // Behind the first scan of a progressive picture, the decoder wants to find the marker at once.
            if !progressive || scans > 1 {
                bytes.extend([0xFF, 0].repeat(FILLING / 2));
            }
            runs.push(Run {
                start: end - data,
                end,
                filled: bytes.len(),
            });
        }
        bytes.extend_from_slice(&file[copied..]);
        Stream { bytes, runs, doubt }
    }
}

/// How many bytes there are up to the next marker.
fn data(bytes: &[u8]) -> usize {
    let mut at = 0;
    loop {
        let mut rest = &bytes[at..];
        // This never fails, of bytes in memory.
        at += rest.skip_until(0xFF).unwrap_or_default();
        match (bytes[..at].last(), rest.first()) {
            (Some(0xFF), Some(0)) => {}
            (Some(0xFF), Some(_)) => return at - 1,
            _ => return bytes.len(),
        }
    }
}

/// The stream as it is read. The decoder takes the data of scans four bytes at once, or a byte that may fail to be there; byte by
/// byte it looks for markers.
struct Watched<'a> {
    stream: &'a Stream,
    at: usize,
    /// The run that is being read, or follows.
    run: usize,
    doubt: &'a Cell<bool>,
}

impl Watched<'_> {
    fn run(&mut self) -> Option<Run> {
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
