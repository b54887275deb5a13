//! What decodes: the GPU's decoder, or on the CPU device a stand-in.

use std::panic::{AssertUnwindSafe, catch_unwind};

#[cfg(all(feature = "nvjpeg", target_os = "linux", not(miri)))]
mod nvjpeg;
#[cfg(not(all(feature = "nvjpeg", target_os = "linux", not(miri))))]
#[path = "engine/no_nvjpeg.rs"]
mod nvjpeg;

use self::nvjpeg::NvJpeg;
use super::memory::Taken;
use crate::driver::{Driver, RawCopy, RawEvent, RawStream};
use crate::error::{BoxError, Result, panic_message};
use crate::picture::{EncodedPicture, Steps};
use crate::sync::Arc;
use crate::tuning::HARDWARE_CHUNK;

/// A picture, what becomes of its pixels, its file, and the address of the row that is made of it.
#[derive(Clone, Copy)]
pub(super) struct Work<'a> {
    pub(super) steps: &'a Steps,
    pub(super) picture: &'a dyn EncodedPicture,
    pub(super) file: &'a [u8],
    pub(super) row: u64,
}

/// What became of a picture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    Drawn,
    /// The decoder did not make its row, which holds anything; and why, for the statistics.
    NotDrawn(&'static str),
}

/// Why the stand-in does not make a row.
const REFUSED: &str = "the decoder refused it";

/// Makes rows of pictures, a chunk at a time.
pub(super) struct Engine {
    driver: Driver,
    decoder: Decoder,
    /// For rows that are made on the host. Last: what the decoder frees waits for it, if no other thread could.
    stream: RawStream,
}

enum Decoder {
    /// It decodes as the CPU does, when it is called, as hardware does. What it has done, and was not asked for.
    StandIn(Option<Vec<Outcome>>),
    NvJpeg(NvJpeg),
}

impl Engine {
    /// Opens a device's decoder.
    ///
    /// # Errors
    ///
    /// If the device fails, or nvJPEG is missing or cannot be used; the error says what to do.
    pub(super) fn open(driver: &Driver, taken: &Arc<Taken>) -> Result<Engine> {
        let decoder = match NvJpeg::open(driver, taken)? {
            Some(nvjpeg) => Decoder::NvJpeg(nvjpeg),
            None => Decoder::StandIn(None),
        };
        Ok(Engine {
            stream: driver.create_stream()?,
            driver: driver.clone(),
            decoder,
        })
    }

    /// Whether kernels decode, for there is no hardware.
    pub(super) fn has_kernels_only(&self) -> bool {
        match &self.decoder {
            Decoder::StandIn(_) => false,
            Decoder::NvJpeg(nvjpeg) => nvjpeg.has_kernels_only(),
        }
    }

    /// The most pictures of a chunk.
    pub(super) fn most_pictures(&self) -> usize {
        match &self.decoder {
            Decoder::StandIn(_) => HARDWARE_CHUNK,
            Decoder::NvJpeg(nvjpeg) => nvjpeg.most_pictures(),
        }
    }

    /// How many of these works, from the first on, make a chunk.
    pub(super) fn fits<'a>(&self, works: impl Iterator<Item = Work<'a>>) -> usize {
        match &self.decoder {
            Decoder::StandIn(_) => works.take(HARDWARE_CHUNK).count(),
            Decoder::NvJpeg(nvjpeg) => nvjpeg.fits(works),
        }
    }

    /// Whether another chunk can be prepared.
    pub(super) fn is_free(&self) -> bool {
        match &self.decoder {
            Decoder::StandIn(done) => done.is_none(),
            Decoder::NvJpeg(nvjpeg) => nvjpeg.is_free(),
        }
    }

    /// Prepares a chunk that [fits](Engine::fits), which will be decoded in its turn. It does not wait.
    ///
    /// # Errors
    ///
    /// If the device fails.
    pub(super) fn prepare(&mut self, works: &[Work<'_>]) -> Result<()> {
        match &mut self.decoder {
            Decoder::StandIn(_) => Ok(()),
            Decoder::NvJpeg(nvjpeg) => nvjpeg.prepare(works),
        }
    }

    /// Decodes the chunk that was prepared first, and writes its rows behind these events. It blocks meanwhile.
    ///
    /// # Errors
    ///
    /// If the device or the decoder fails. Then nothing of the chunk is running, or the device is lost.
    ///
    /// # Safety
    ///
    /// The works must be those that were prepared. The rows must be device memory of the size of what is drawn and changed. They and the
    /// files must stay until [`end`](Engine::end), and until then nothing else may use the rows but what `after` waits for.
    pub(super) unsafe fn decode(&mut self, works: &[Work<'_>], after: &[RawEvent]) -> Result<()> {
        match &mut self.decoder {
            Decoder::StandIn(_) => {
                after.iter().try_for_each(RawEvent::sleep)?;
                let mut done = Vec::with_capacity(works.len());
                for work in works {
                    // SAFETY: the caller's contract.
                    let drawn = unsafe { self.redraw(*work) }?;
                    done.push(match drawn {
                        Ok(()) => Outcome::Drawn,
                        Err(_) => Outcome::NotDrawn(REFUSED),
                    });
                }
                self.decoder = Decoder::StandIn(Some(done));
                Ok(())
            }
            // SAFETY: the caller's contract.
            Decoder::NvJpeg(nvjpeg) => unsafe { nvjpeg.decode(works, after) },
        }
    }

    /// Whether the chunk that was decoded first is drawn, so that [`end`](Engine::end) does not wait.
    pub(super) fn is_drawn(&self) -> bool {
        match &self.decoder {
            Decoder::StandIn(done) => done.is_some(),
            Decoder::NvJpeg(nvjpeg) => nvjpeg.is_drawn(),
        }
    }

    /// Waits for the chunk that was decoded first, and says what became of its pictures. `None` if there is none.
    pub(super) fn end(&mut self) -> Option<Result<Vec<Outcome>>> {
        match &mut self.decoder {
            Decoder::StandIn(done) => done.take().map(Ok),
            Decoder::NvJpeg(nvjpeg) => nvjpeg.end(),
        }
    }

    /// Decodes a picture on this thread, and waits until its row is written. The inner error: it cannot be decoded.
    ///
    /// # Safety
    ///
    /// The row must be device memory of the size of what is drawn and changed, and nothing else may use it meanwhile.
    pub(super) unsafe fn redraw(&self, work: Work<'_>) -> Result<Result<(), BoxError>> {
        let [width, height] = work.steps.size().map(|side| side as usize);
        let mut row = vec![0; width * height * 3];
        // Unwind safety: a row that is not made is not copied. (A panic is the picture's own, and costs no other batch anything.)
        let draw = AssertUnwindSafe(|| work.picture.draw(work.file, &mut row));
        let drawn = catch_unwind(draw).unwrap_or_else(|payload| {
            let message = panic_message(payload);
            Err(format!("its decoder panicked: {message}").into())
        });
        if let Err(error) = drawn {
            return Ok(Err(error));
        }
        let copy = RawCopy::ToDevice {
            from: row.as_ptr(),
            to: work.row,
            bytes: row.len(),
        };
        // SAFETY: the caller's contract for the row; the pixels stay until the copy is done.
        let copied = unsafe { self.driver.copy(&self.stream, copy) };
        // What was enqueued must not run on behind an error. If this fails too, the device is lost.
        let done = self.driver.synchronize(&self.stream);
        // (The call may have failed for itself. Others may get the row's memory behind the error, so the copy must be over.)
        if done.is_err() && self.driver.synchronize(&self.stream).is_err() {
            row.leak(); // there is no way to tell when it was read
        }
        copied.and(done).map(Ok)
    }
}
