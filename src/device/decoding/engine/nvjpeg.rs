//! nvJPEG as a device's decoder.

mod memory;

use std::path::Path;

use self::memory::{Counted, Fixed};
use super::super::memory::Taken;
use super::{Outcome, Work};
use crate::driver::nvjpeg::{
    self, Backend, CONNECTIONS, Decoder, DecoderFault, Library, Station, variable,
};
use crate::driver::{Driver, RawEvent};
use crate::error::{Error, Result};
use crate::sync::Arc;
use crate::sync::log;

/// Where nvJPEG is, if the system's loader is not to look for it: a file, or its folder.
const PATH: &str = "PINFEED_NVJPEG";

/// Which of the GPU's units decodes, if not the hardware where there is any: to try it. By nvJPEG's names.
const BACKEND: &str = "PINFEED_NVJPEG_BACKEND";

/// A decoder that is open. Its methods are [`Engine`](super::Engine)'s.
pub(super) struct NvJpeg {
    station: Box<Station>,
    driver: Driver,
    /// It counts what the station has, so it is dropped behind that.
    _own: Fixed,
}

impl NvJpeg {
    /// Opens a device's decoder. `None`: a stand-in decodes.
    pub(super) fn open(driver: &Driver, taken: &Arc<Taken>) -> Result<Option<NvJpeg>> {
        let variable = variable(PATH);
        let path = match driver {
            Driver::Cpu(cpu) => match cpu.nvjpeg() {
                Some(path) => Some(path),
                None => return Ok(None),
            },
            Driver::Cuda(_) => variable.as_deref().map(Path::new),
        };
        let decoder = decoder(driver, path, taken).map_err(|fault| error_of(driver, fault))?;
        let arena_bytes = Station::arena_bytes(&decoder);
        let own_bytes = Station::own_bytes(arena_bytes);
        let own = Fixed::new(taken, own_bytes);
        let station = Station::new(&decoder, driver, arena_bytes);
        let station = station.map_err(|fault| not_opened(driver, own_bytes[0], fault))?;
        Ok(Some(NvJpeg {
            station: Box::new(station),
            driver: driver.clone(),
            _own: own,
        }))
    }

    pub(super) fn has_kernels_only(&self) -> bool {
        self.station.has_kernels_only()
    }

    pub(super) fn most_pictures(&self) -> usize {
        self.station.most_pictures()
    }

    pub(super) fn fits<'a>(&self, works: impl Iterator<Item = Work<'a>>) -> usize {
        self.station.fits(works.map(coded))
    }

    pub(super) fn is_free(&self) -> bool {
        self.station.is_free()
    }

    pub(super) fn prepare(&mut self, works: &[Work<'_>]) -> Result<()> {
        let works: Vec<nvjpeg::Work<'_>> = works.iter().copied().map(coded).collect();
        let prepared = self.station.prepare(&works);
        prepared.map_err(|fault| error_of(&self.driver, fault))
    }

    /// # Safety
    ///
    /// As for [`Engine::decode`](super::Engine::decode).
    pub(super) unsafe fn decode(&mut self, works: &[Work<'_>], after: &[RawEvent]) -> Result<()> {
        let works: Vec<nvjpeg::Work<'_>> = works.iter().copied().map(coded).collect();
        // SAFETY: the caller's contract.
        let decoded = unsafe { self.station.decode(&works, after) };
        decoded.map_err(|fault| error_of(&self.driver, fault))
    }

    pub(super) fn is_drawn(&self) -> bool {
        self.station.is_drawn()
    }

    pub(super) fn end(&mut self) -> Option<Result<Vec<Outcome>>> {
        let outcome = |outcome: nvjpeg::Outcome| {
            if let nvjpeg::Outcome::Refused(status) = outcome {
                log::debug!("nvJPEG refuses a picture: {status}");
            }
            let why = outcome.why_not_drawn();
            why.map_or(Outcome::Drawn, Outcome::NotDrawn)
        };
        let ended = self.station.end()?;
        let ended = ended.map(|outcomes| outcomes.into_iter().map(outcome).collect());
        Some(ended.map_err(|fault| error_of(&self.driver, fault)))
    }
}

fn coded(work: Work<'_>) -> nvjpeg::Work<'_> {
    nvjpeg::Work {
        bytes: work.file,
        drawing: *work.steps.drawing(),
        changes: work.steps.changes(),
        row: work.row,
    }
}

/// nvJPEG on a GPU.
fn decoder(
    driver: &Driver,
    path: Option<&Path>,
    taken: &Arc<Taken>,
) -> Result<Decoder, DecoderFault> {
    let version = driver.info().map_err(DecoderFault::Device)?.driver_version;
    let library = Arc::new(Library::open(path, version)?);
    let counted = Counted {
        driver: driver.clone(),
        taken: Arc::clone(taken),
    };
    let memory = || Box::new(counted.clone());
    let open = |backend| {
        let library = Arc::clone(&library);
        Decoder::open(library, driver, backend, memory(), memory())
    };
    let asked = variable(BACKEND);
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
    log::say!(
        Info,
        "{} decodes pictures with {}, by nvJPEG {:?} at {}",
        driver.name(),
        match decoder.engines() {
            0 => "kernels".to_owned(),
            engines => format!("{engines} engines"),
        },
        decoder.library().version(),
        decoder.library().path().display()
    );
    if matches!(driver, Driver::Cuda(_)) && decoder.engines() > 0 && variable(CONNECTIONS).is_none()
    {
        // (Training a ResNet-50 beside the decoder loses 1.2 to 2.3 % of the time with 32, and 2 to 10 % with eight:
        // docs/performance.md.)
        log::warn!(
            "nvJPEG has 20 streams of its own, and this process eight connections to the device: a training step that shares one with \
             them waits for them now and then. Open the device before there are other threads, or set {}=32 before the program starts (or 8, to \
             keep it)",
            CONNECTIONS
        );
    }
    Ok(decoder)
}

/// The error of a decoder that does not open, and takes so many bytes of the device's memory.
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

fn error_of(driver: &Driver, fault: DecoderFault) -> Error {
    match fault {
        DecoderFault::Device(error) => error,
        fault => Error::Decoder {
            device: driver.name(),
            reason: fault.to_string(),
        },
    }
}
