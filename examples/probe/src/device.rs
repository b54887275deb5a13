//! Everything that is measured on one device.

use std::path::Path;

use pinfeed::Device;

use crate::Result;
use crate::copies::{self, Library};
use crate::driver::Bare;
use crate::effort::Effort;
use crate::page_locking::{self, pays_after};
use crate::pcie;
use crate::report::{Bus, DeviceMemory, DeviceReport, Memory, Way};

/// By plain calls of the driver, or by the CPU device.
const PLAIN: [(Memory, Way); 5] = [
    (Memory::Pinned, Way::ToDevice),
    (Memory::Pinned, Way::Back),
    (Memory::Pinned, Way::Both),
    (Memory::Pageable, Way::ToDevice),
    (Memory::Pageable, Way::Back),
];

/// By the library, to a GPU.
const STAGED: [(Memory, Way); 2] = [(Memory::Staged, Way::ToDevice), (Memory::Staged, Way::Back)];

/// A GPU, by its ordinal.
pub fn cuda(effort: &Effort, root: &Path, device: &Device, ordinal: usize) -> Result<DeviceReport> {
    let mut report = describe(device)?;
    let address = device.info()?.pci_address.unwrap_or_default();
    // While copies run, for an idle link slows down.
    let (measured, bus) = pcie::watch(root, &address, || by_driver(effort, ordinal, &mut report));
    report.note(measured);
    report.bus = bus;
    let staged =
        Library::new(device).and_then(|mut library| copies::measure(effort, &mut library, &STAGED));
    device.release_pinned();
    match staged {
        Ok(staged) => report.copies.extend(staged),
        Err(error) => report.problems.push(error.to_string()),
    }
    report.conclude();
    Ok(report)
}

/// The CPU device.
pub fn cpu(effort: &Effort, device: &Device) -> Result<DeviceReport> {
    let mut report = describe(device)?;
    let copied =
        Library::new(device).and_then(|mut library| copies::measure(effort, &mut library, &PLAIN));
    let copied = copied.map(|copies| report.copies = copies);
    report.note(copied);
    let locked =
        page_locking::by_library(effort, device).map(|locking| report.page_locking = locking);
    report.note(locked);
    report.conclude();
    Ok(report)
}

fn describe(device: &Device) -> Result<DeviceReport> {
    let info = device.info()?;
    Ok(DeviceReport {
        id: device.name(),
        is_cpu: device.is_cpu(),
        name: info.name,
        memory_bytes: info.total_memory_bytes as u64,
        compute_capability: info.compute_capability,
        driver_version: info.driver_version,
        copy_engines: info.copy_engines,
        bus: None,
        copies: Vec::new(),
        link_share: None,
        page_locking: Vec::new(),
        device_memory: None,
        problems: Vec::new(),
    })
}

/// What is measured by bare calls of the driver. What was measured before something failed stays.
fn by_driver(effort: &Effort, ordinal: usize, report: &mut DeviceReport) -> Result<()> {
    let bare = Bare::new(ordinal)?;
    let bytes = effort.sizes.last().copied().unwrap_or(4096);
    let mut buffers = bare.buffers(bytes)?;
    report.copies = copies::measure(effort, &mut buffers, &PLAIN)?;
    // Each byte is read and written.
    const TIMES: usize = 16;
    let moved = 2.0 * (bytes * TIMES) as f64;
    let copied = effort.repeat(effort.repeats, || {
        Ok(moved / buffers.within_seconds(TIMES)? / 1e9)
    });
    drop(buffers);
    report.device_memory = Some(DeviceMemory {
        nominal_gb_s: bare.nominal_gb_s(),
        copied_gb_s: Some(copied?),
    });
    report.page_locking = page_locking::by_driver(effort, &bare)?;
    Ok(())
}

impl DeviceReport {
    fn note(&mut self, measured: Result<()>) {
        if let Err(error) = measured {
            self.problems.push(error.to_string());
        }
    }

    /// What follows from the measurements.
    fn conclude(&mut self) {
        let pinned = self.best_gb_s(Memory::Pinned, Way::ToDevice);
        let link = self.bus.as_ref().and_then(Bus::limit);
        self.link_share = pinned.zip(link).map(|(rate, link)| rate / link.gb_s);
        let pageable = self.best_gb_s(Memory::Pageable, Way::ToDevice);
        let Some((pinned, pageable)) = pinned.zip(pageable) else {
            return;
        };
        for locking in &mut self.page_locking {
            let (lock, unlock) = (&locking.lock_ms_per_gib, locking.unlock_ms_per_gib.as_ref());
            locking.pays_after_copies = pays_after(lock, unlock, pinned, pageable);
        }
    }
}
