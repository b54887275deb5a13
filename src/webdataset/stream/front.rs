//! An archive that is read from its front: [`Front`].

use std::io::{self, Read};

use super::chunks::{Chunks, Failure};
use super::unpack::{MAGIC, Packing, Unpacked};
use crate::error::BoxError;
use crate::store::{Object, Store};
use crate::sync::Arc;
use crate::webdataset::error::Cause;
use crate::webdataset::members::Archive;

/// What of an archive was read last, and what follows.
pub(super) struct Front<'a> {
    source: Unpacked,
    packing: Packing,
    failure: Failure,
    /// Where `block` begins in the archive, and what was read of it. What follows it is read next.
    start: u64,
    block: Vec<u8>,
    /// Where the archive ended, once that was seen.
    end: Option<u64>,
    /// Is told each time that so many bytes more were read; and how many were since. `false`: no more are wanted.
    goes_on: &'a dyn Fn() -> bool,
    untold: u64,
}

/// How much is read at once that is not wanted.
const SKIPPED_AT_ONCE: u64 = 64 << 10;

/// How much is read, or decompressed, before the stream hears of it: a tenth of a second.
const UNTOLD: u64 = 16 << 20;

/// How much memory a field has before its bytes are there. (A damaged header may say anything.)
const TRUSTED: u64 = 1 << 20;

impl<'a> Front<'a> {
    /// Begins to read the archive in an object, by ranges of that many bytes. What is before byte `from` of it is not needed: it is not
    /// read, unless the object is compressed. `goes_on` is told now and then that bytes were read; if it returns `false`, nothing more is read.
    pub(super) fn open(
        store: &Arc<dyn Store>,
        object: &Object,
        from: u64,
        range: u64,
        goes_on: &'a dyn Fn() -> bool,
    ) -> Result<Front<'a>, Cause> {
        if object.bytes == 0 {
            return Err(Cause::Empty);
        }
        let magic = 0..object.bytes.min(MAGIC);
        let start = |at| {
            let chunks = Chunks::start(Arc::clone(store), object.clone(), at, range);
            chunks.map_err(Cause::Thread)
        };
        let (packing, chunks) = match from {
            0 => {
                let mut chunks = start(0)?;
                let packing = Packing::of(peek(&mut chunks)?);
                (packing, chunks)
            }
            from => {
                let magic = store.read(object, magic).map_err(Cause::Store)?;
                match Packing::of(&magic) {
                    Packing::Plain => (Packing::Plain, start(from)?),
                    packing => (packing, start(0)?),
                }
            }
        };
        if let Packing::Other(name) = packing {
            return Err(Cause::Packed(name));
        }
        let is_plain = packing == Packing::Plain;
        Ok(Front {
            failure: chunks.failure(),
            source: Unpacked::new(chunks, packing),
            packing,
            start: if is_plain { from } else { 0 },
            block: Vec::new(),
            end: None,
            goes_on,
            untold: 0,
        })
    }

    /// Where what was not read yet begins.
    fn at(&self) -> u64 {
        self.start + self.block.len() as u64
    }

    /// Adds bytes to the block, until it has so many or the archive ends.
    fn fill(&mut self, count: u64) -> Result<(), Cause> {
        while self.end.is_none() && (self.block.len() as u64) < count {
            let wanted = (count - self.block.len() as u64).min(UNTOLD);
            self.block.reserve(wanted.min(TRUSTED) as usize);
            let mut some = self.source.by_ref().take(wanted);
            let read = match some.read_to_end(&mut self.block) {
                Ok(read) => read as u64,
                Err(error) => return Err(self.failed(&error)),
            };
            if read < wanted {
                self.end = Some(self.at());
            }
            self.untold += read;
            if self.untold >= UNTOLD {
                self.untold = 0;
                if !(self.goes_on)() {
                    return Err(Cause::Left);
                }
            }
        }
        Ok(())
    }

    /// Goes to byte `at`, which is not before what was read last, or as far as the archive goes.
    fn go_to(&mut self, at: u64) -> Result<(), Cause> {
        let known = at.saturating_sub(self.start).min(self.block.len() as u64);
        self.block.drain(..known as usize);
        self.start += known;
        while self.start < at && self.end.is_none() {
            self.fill((at - self.start).min(SKIPPED_AT_ONCE))?;
            self.start += self.block.len() as u64;
            self.block.clear();
        }
        Ok(())
    }

    /// The contents of a member.
    pub(super) fn contents(&mut self, at: u64, count: u64, name: &str) -> Result<Vec<u8>, Cause> {
        self.go_to(at)?;
        self.fill(count)?;
        if (self.block.len() as u64) < count || self.start < at {
            return Err(Cause::CutOff {
                bytes: self.at(),
                what: format!("its member {name:?}"),
            });
        }
        let rest = self.block.split_off(count as usize);
        self.start += count;
        let mut contents = std::mem::replace(&mut self.block, rest);
        // (It may have had room for what was skipped before it, or twice as much as it needs; and a window keeps many.)
        if contents.capacity() - contents.len() > contents.len() / 8 + 64 {
            contents.shrink_to_fit();
        }
        Ok(contents)
    }

    /// Reads what follows the archive's end, if its compression has a checksum that is known only then.
    pub(super) fn finish(&mut self) -> Result<(), Cause> {
        match self.packing {
            Packing::Plain | Packing::Other(_) => Ok(()),
            Packing::Gzip | Packing::Zstd => self.go_to(u64::MAX),
        }
    }

    /// Why no more could be read.
    fn failed(&self, error: &io::Error) -> Cause {
        if let Some(error) = self.failure.take() {
            return Cause::Store(error);
        }
        let (how, at) = (self.packing.name().unwrap_or("no"), self.at());
        match error.kind() {
            io::ErrorKind::UnexpectedEof => Cause::EndsEarly { how, at },
            _ => Cause::Damaged {
                how,
                at,
                why: error.to_string(),
            },
        }
    }
}

/// The first bytes.
fn peek(chunks: &mut Chunks) -> Result<&[u8], Cause> {
    let failure = chunks.failure();
    io::BufRead::fill_buf(chunks).map_err(|error| {
        let error: BoxError = failure.take().unwrap_or_else(|| error.into());
        Cause::Store(error)
    })
}

impl Archive for Front<'_> {
    fn bytes(&mut self, at: u64, count: u64) -> Result<&[u8], Cause> {
        self.go_to(at)?;
        if self.start < at {
            return Ok(&[]);
        }
        self.fill(count)?;
        Ok(&self.block[..self.block.len().min(count as usize)])
    }

    fn len(&self) -> Option<u64> {
        self.end
    }
}
