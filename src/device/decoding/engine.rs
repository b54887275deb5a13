//! What decodes: the GPU's decoder, or on the CPU device a stand-in.

use std::panic::{AssertUnwindSafe, catch_unwind};
#[cfg(all(target_os = "linux", not(miri)))]
use std::path::Path;

use super::memory::Taken;
#[cfg(all(target_os = "linux", not(miri)))]
use super::memory::{Counted, Fixed};
use crate::driver::{Driver, RawCopy, RawEvent, RawStream};
use crate::error::{BoxError, Error, Result, panic_message};
use crate::picture::{EncodedPicture, Steps};
use crate::tuning::HARDWARE_CHUNK;

#[cfg(all(target_os = "linux", not(miri)))]
use crate::driver::nvjpeg::{self, Backend, DecoderFault, Library, Station};
use crate::sync::Arc;
use crate::sync::log;

/// Where nvJPEG is, if the system's loader is not to look for it: a file, or its folder.
#[cfg(all(target_os = "linux", not(miri)))]
const PATH: &str = "PINFEED_NVJPEG";

/// Which of the GPU's units decodes, if not the hardware where there is any: to try it. By nvJPEG's names.
#[cfg(all(target_os = "linux", not(miri)))]
const BACKEND: &str = "PINFEED_NVJPEG_BACKEND";

/// A picture, what becomes of its pixels, its file, and the address of the row that is made of it.
#[derive(Clone, Copy)]
pub(super) struct Work<'a> {
    pub(super) steps: &'a Steps,
    pub(super) picture: &'a dyn EncodedPicture,
    pub(super) file: &'a [u8],
    pub(super) row: u64,
}

impl<'a> Work<'a> {
    #[cfg(all(target_os = "linux", not(miri)))]
    fn coded(self) -> nvjpeg::Work<'a> {
        nvjpeg::Work {
            bytes: self.file,
            drawing: *self.steps.drawing(),
            changes: self.steps.changes(),
            row: self.row,
        }
    }
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
    #[cfg(all(target_os = "linux", not(miri)))]
    NvJpeg(
        Box<Station>,
        #[expect(dead_code, reason = "it counts")] Fixed,
    ),
}

impl Engine {
    /// Opens a device's decoder.
    ///
    /// # Errors
    ///
    /// If the device fails, or nvJPEG is missing or cannot be used; the error says what to do.
    pub(super) fn open(driver: &Driver, taken: &Arc<Taken>) -> Result<Engine> {
        #[cfg(all(target_os = "linux", not(miri)))]
        let nvjpeg = |path: Option<&Path>| -> Result<Decoder> {
            let decoder = decoder(driver, path, taken).map_err(|fault| error_of(driver, fault))?;
            let arena_bytes = Station::arena_bytes(&decoder);
            let own_bytes = Station::own_bytes(arena_bytes);
            let fixed = Fixed::new(taken, own_bytes);
            let station = Station::new(&decoder, driver, arena_bytes);
            let station = station.map_err(|fault| not_opened(driver, own_bytes[0], fault))?;
            Ok(Decoder::NvJpeg(Box::new(station), fixed))
        };
        let decoder = match driver {
            #[cfg(all(target_os = "linux", not(miri)))]
            Driver::Cpu(cpu) if cpu.nvjpeg().is_some() => nvjpeg(cpu.nvjpeg())?,
            Driver::Cpu(_) => Decoder::StandIn(None),
            #[cfg(all(target_os = "linux", not(miri)))]
            Driver::Cuda(_) => nvjpeg(nvjpeg::variable(PATH).as_deref().map(Path::new))?,
            #[cfg(not(all(target_os = "linux", not(miri))))]
            Driver::Cuda(_) => {
                let _ = taken;
                return Err(Error::Decoder {
                    device: driver.name(),
                    reason: "there is no nvJPEG for this system".to_owned(),
                });
            }
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
            #[cfg(all(target_os = "linux", not(miri)))]
            Decoder::NvJpeg(station, _) => station.has_kernels_only(),
        }
    }

    /// The most pictures of a chunk.
    pub(super) fn most_pictures(&self) -> usize {
        match &self.decoder {
            Decoder::StandIn(_) => HARDWARE_CHUNK,
            #[cfg(all(target_os = "linux", not(miri)))]
            Decoder::NvJpeg(station, _) => station.most_pictures(),
        }
    }

    /// How many of these works, from the first on, make a chunk.
    pub(super) fn fits<'a>(&self, works: impl Iterator<Item = Work<'a>>) -> usize {
        match &self.decoder {
            Decoder::StandIn(_) => works.take(HARDWARE_CHUNK).count(),
            #[cfg(all(target_os = "linux", not(miri)))]
            Decoder::NvJpeg(station, _) => station.fits(works.map(Work::coded)),
        }
    }

    /// Whether another chunk can be prepared.
    pub(super) fn is_free(&self) -> bool {
        match &self.decoder {
            Decoder::StandIn(done) => done.is_none(),
            #[cfg(all(target_os = "linux", not(miri)))]
            Decoder::NvJpeg(station, _) => station.is_free(),
        }
    }

    /// Prepares a chunk that [fits](Engine::fits), which will be decoded in its turn. It does not wait.
    ///
    /// # Errors
    ///
    /// If the device fails.
    pub(super) fn prepare(&mut self, works: &[Work<'_>]) -> Result<()> {
        match &mut self.decoder {
            Decoder::StandIn(_) => {
                let _ = works;
                Ok(())
            }
            #[cfg(all(target_os = "linux", not(miri)))]
            Decoder::NvJpeg(station, _) => {
                let works: Vec<nvjpeg::Work<'_>> = works.iter().copied().map(Work::coded).collect();
                let prepared = station.prepare(&works);
                prepared.map_err(|fault| error_of(&self.driver, fault))
            }
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
            #[cfg(all(target_os = "linux", not(miri)))]
            Decoder::NvJpeg(station, _) => {
                let works: Vec<nvjpeg::Work<'_>> = works.iter().copied().map(Work::coded).collect();
                // SAFETY: the caller's contract.
                let decoded = unsafe { station.decode(&works, after) };
                decoded.map_err(|fault| error_of(&self.driver, fault))
            }
        }
    }

    /// Whether the chunk that was decoded first is drawn, so that [`end`](Engine::end) does not wait.
    pub(super) fn is_drawn(&self) -> bool {
        match &self.decoder {
            Decoder::StandIn(done) => done.is_some(),
            #[cfg(all(target_os = "linux", not(miri)))]
            Decoder::NvJpeg(station, _) => station.is_drawn(),
        }
    }

    /// Waits for the chunk that was decoded first, and says what became of its pictures. `None` if there is none.
    pub(super) fn end(&mut self) -> Option<Result<Vec<Outcome>>> {
        match &mut self.decoder {
            Decoder::StandIn(done) => done.take().map(Ok),
            #[cfg(all(target_os = "linux", not(miri)))]
            Decoder::NvJpeg(station, _) => {
                let outcome = |outcome: nvjpeg::Outcome| {
                    if let nvjpeg::Outcome::Refused(status) = outcome {
                        log::debug!("nvJPEG refuses a picture: {status}");
                    }
                    let why = outcome.why_not_drawn();
                    why.map_or(Outcome::Drawn, Outcome::NotDrawn)
                };
                let ended = station.end()?;
                let ended = ended.map(|outcomes| outcomes.into_iter().map(outcome).collect());
                Some(ended.map_err(|fault| error_of(&self.driver, fault)))
            }
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

/// nvJPEG on a GPU.
#[cfg(all(target_os = "linux", not(miri)))]
fn decoder(
    driver: &Driver,
    path: Option<&Path>,
    taken: &Arc<Taken>,
) -> Result<nvjpeg::Decoder, DecoderFault> {
    let version = driver.info().map_err(DecoderFault::Device)?.driver_version;
    let library = Arc::new(Library::open(path, version)?);
    let counted = Counted {
        driver: driver.clone(),
        taken: Arc::clone(taken),
    };
    let memory = || Box::new(counted.clone());
    let open = |backend| {
        let library = Arc::clone(&library);
        nvjpeg::Decoder::open(library, driver, backend, memory(), memory())
    };
    let asked = nvjpeg::variable(BACKEND);
    let asked = asked.as_deref().map(Backend::named).transpose()?;
    let decoder = match (asked, open(asked.unwrap_or(Backend::Hardware))) {
        (None, Err(fault @ DecoderFault::NoEngine { .. })) => {
            log::warn!(
                "{fault}. Kernels decode instead: that is slower, and takes time from what else the GPU does"
            );
            open(Backend::Gpu)?
        }
        (_, opened) => opened?,
    };
    log::info!(
        "{} decodes pictures with {}, by nvJPEG {:?} at {}",
        driver.name(),
        match decoder.engines() {
            0 => "kernels".to_owned(),
            engines => format!("{engines} engines"),
        },
        decoder.library().version(),
        decoder.library().path().display()
    );
    if matches!(driver, Driver::Cuda(_))
        && decoder.engines() > 0
        && nvjpeg::variable(nvjpeg::CONNECTIONS).is_none()
    {
        // (Training a ResNet-50 beside the decoder loses 1.2 to 2.3 % of the time with 32, and 2 to 10 % with eight:
        // docs/performance.md.)
        log::warn!(
            "nvJPEG has 20 streams of its own, and this process eight connections to the device: a training step that shares one with \
             them waits for them now and then. Open the device before there are other threads, or set {}=32 before the program starts (or 8, to \
             keep it)",
            nvjpeg::CONNECTIONS
        );
    }
    Ok(decoder)
}

/// The error of a decoder that does not open, and takes so many bytes of the device's memory.
#[cfg(all(target_os = "linux", not(miri)))]
fn not_opened(driver: &Driver, bytes: usize, fault: DecoderFault) -> Error {
    const OUT_OF_MEMORY: i32 = 2;
    match fault {
        DecoderFault::Device(Error::Device { cause, .. }) if cause.code == OUT_OF_MEMORY => {
            Error::Decoder {
                device: driver.name(),
                reason: format!(
                    "the decoder needs {} MiB of the device's memory, and there are not so many: leave it more \
                     (Device::set_device_budget_bytes, Device::release_device_memory), or decode on the CPU (Decode::Cpu)",
                    bytes.div_ceil(1 << 20)
                ),
            }
        }
        fault => error_of(driver, fault),
    }
}

#[cfg(all(target_os = "linux", not(miri)))]
fn error_of(driver: &Driver, fault: DecoderFault) -> Error {
    match fault {
        DecoderFault::Device(error) => error,
        fault => Error::Decoder {
            device: driver.name(),
            reason: fault.to_string(),
        },
    }
}
