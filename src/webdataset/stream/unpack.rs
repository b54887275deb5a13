//! What a shard is compressed by, and its bytes without that.

use std::io::{self, BufRead, Read};

use flate2::bufread::MultiGzDecoder;
use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};

use super::chunks::Chunks;

/// How a shard is compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Packing {
    Plain,
    Gzip,
    Zstd,
    /// In a way that is not read.
    Other(&'static str),
}

/// How many bytes tell it.
pub(super) const MAGIC: u64 = 6;

impl Packing {
    /// By its first bytes, as Python's `tarfile` tells: not by its name.
    pub(super) fn of(start: &[u8]) -> Packing {
        // A frame that is skipped may come before the first (RFC 8878, 3.1.2).
        let is_skipped = matches!(start, [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..]);
        match start {
            [0x1f, 0x8b, ..] => Packing::Gzip,
            [0x28, 0xb5, 0x2f, 0xfd, ..] => Packing::Zstd,
            _ if is_skipped => Packing::Zstd,
            [b'B', b'Z', b'h', ..] => Packing::Other("bzip2"),
            [0xfd, b'7', b'z', b'X', b'Z', 0, ..] => Packing::Other("xz"),
            _ => Packing::Plain,
        }
    }

    pub(super) fn name(self) -> Option<&'static str> {
        match self {
            Packing::Plain => None,
            Packing::Gzip => Some("gzip"),
            Packing::Zstd => Some("zstd"),
            Packing::Other(name) => Some(name),
        }
    }
}

/// A shard's bytes, decompressed.
pub(super) enum Unpacked {
    Plain(Chunks),
    /// (Of several members, one behind the other.)
    Gzip(Box<MultiGzDecoder<Chunks>>),
    Zstd(Box<Frames>),
}

impl Unpacked {
    pub(super) fn new(chunks: Chunks, packing: Packing) -> Unpacked {
        match packing {
            Packing::Gzip => Unpacked::Gzip(Box::new(MultiGzDecoder::new(chunks))),
            Packing::Zstd => Unpacked::Zstd(Box::new(Frames {
                source: chunks,
                decoder: FrameDecoder::new(),
                is_open: false,
            })),
            Packing::Plain | Packing::Other(_) => Unpacked::Plain(chunks),
        }
    }
}

impl Read for Unpacked {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Unpacked::Plain(chunks) => chunks.read(into),
            Unpacked::Gzip(decoder) => decoder.read(into),
            Unpacked::Zstd(frames) => frames.read(into),
        }
    }
}

/// Frames of Zstandard (RFC 8878), one behind the other.
pub(super) struct Frames {
    source: Chunks,
    decoder: FrameDecoder,
    /// Whether a frame has begun.
    is_open: bool,
}

/// How much is decoded at once.
const AT_ONCE: usize = 128 << 10;

impl Read for Frames {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        loop {
            if !self.is_open {
                if self.source.fill_buf()?.is_empty() {
                    return Ok(0);
                }
                match self.decoder.reset(&mut self.source) {
                    Ok(()) => self.is_open = true,
                    Err(FrameDecoderError::ReadFrameHeaderError(
                        ReadFrameHeaderError::SkipFrame { length, .. },
                    )) => {
                        let length = u64::from(length);
                        let skipped =
                            io::copy(&mut self.source.by_ref().take(length), &mut io::sink())?;
                        if skipped < length {
                            return Err(io::ErrorKind::UnexpectedEof.into());
                        }
                        continue;
                    }
                    Err(error) => return Err(failed(error)),
                }
            }
            while self.decoder.can_collect() == 0 && !self.decoder.is_finished() {
                let strategy = BlockDecodingStrategy::UptoBytes(AT_ONCE);
                let decoded = self.decoder.decode_blocks(&mut self.source, strategy);
                decoded.map_err(failed)?;
            }
            let count = self.decoder.read(into)?;
            if count > 0 || into.is_empty() {
                return Ok(count);
            }
            let said = self.decoder.get_checksum_from_data();
            if said.is_some() && said != self.decoder.get_calculated_checksum() {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidData,
                    "a frame's checksum is wrong",
                ));
            }
            self.is_open = false;
        }
    }
}

/// The decoder's error; if the data have ended, it says that.
fn failed(error: FrameDecoderError) -> io::Error {
    let mut link: Option<&(dyn std::error::Error + 'static)> = Some(&error);
    while let Some(error) = link {
        let io = error.downcast_ref::<io::Error>();
        if io.is_some_and(|error| error.kind() == io::ErrorKind::UnexpectedEof) {
            return io::ErrorKind::UnexpectedEof.into();
        }
        link = error.source();
    }
    io::Error::new(io::ErrorKind::InvalidData, error.to_string())
}
