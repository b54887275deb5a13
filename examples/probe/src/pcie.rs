//! How a device is attached: what Linux says of its PCIe link, and what such a link allows.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crate::report::{Bus, PcieLink};

impl PcieLink {
    /// What a link of so many lanes carries each way, at this rate.
    ///
    /// Up to 5 GT/s, 10 bits on the line carry 8 bits of data; up to 32 GT/s, 130 carry 128. From 64 GT/s on, 256 bytes on the line (a
    /// FLIT) carry 236.
    pub fn new(gt_s: f64, lanes: u32) -> Option<PcieLink> {
        let generation = match gt_s {
            2.5 => 1,
            5.0 => 2,
            8.0 => 3,
            16.0 => 4,
            32.0 => 5,
            64.0 => 6,
            128.0 => 7,
            _ => return None,
        };
        let link = PcieLink {
            gt_s,
            lanes,
            generation,
            gb_s: 0.0,
        };
        let (data, line) = link.encoding();
        let gb_s = gt_s * f64::from(lanes) / 8.0 * f64::from(data) / f64::from(line);
        (lanes > 0).then_some(PcieLink { gb_s, ..link })
    }

    /// So much data in so much on the line.
    pub fn encoding(self) -> (u32, u32) {
        match self.generation {
            1 | 2 => (8, 10),
            3..=5 => (128, 130),
            _ => (236, 256),
        }
    }

    /// The arithmetic in one line: `32 GT/s x 16 lanes / 8 bits x 128/130 = 63.0 GB/s`.
    pub fn arithmetic(self) -> String {
        let (data, line) = self.encoding();
        format!(
            "{} GT/s x {} lanes / 8 bits x {data}/{line} = {:.1} GB/s",
            self.gt_s, self.lanes, self.gb_s
        )
    }

    /// What is left for data if each packet carries so many bytes, and 24 of its own: a token of 4, a header of 16, a checksum of 4.
    pub fn in_packets_gb_s(self, payload: u32) -> f64 {
        self.gb_s * f64::from(payload) / f64::from(payload + 24)
    }
}

/// Reads what the system says of the device at this address, while `work` keeps the link busy.
pub fn watch<T>(root: &Path, address: &str, work: impl FnOnce() -> T) -> (T, Option<Bus>) {
    let Some(folder) = folder(root, address) else {
        return (work(), None);
    };
    let done = AtomicBool::new(false);
    let (result, fastest) = thread::scope(|scope| {
        let reading = scope.spawn(|| {
            let mut fastest = link(&folder, "current");
            while !done.load(Ordering::Relaxed) {
                thread::sleep(Duration::from_millis(2));
                fastest = faster(fastest, link(&folder, "current"));
            }
            fastest
        });
        let result = work();
        done.store(true, Ordering::Relaxed);
        (result, reading.join().ok().flatten())
    });
    let read = |file: &str| {
        Some(
            fs::read_to_string(folder.join(file))
                .ok()?
                .trim()
                .to_owned(),
        )
    };
    let bus = Bus {
        address: address.to_ascii_lowercase(),
        current: fastest,
        possible: link(&folder, "max"),
        bottleneck: fastest.and_then(|own| bottleneck(&folder, own)),
        // (-1: the firmware does not say.)
        node: read("numa_node").and_then(|text| text.parse().ok()),
        near_cores: read("local_cpulist").filter(|text| !text.is_empty()),
    };
    (result, Some(bus))
}

/// Where the system describes the device.
fn folder(root: &Path, address: &str) -> Option<PathBuf> {
    // Drivers may write a domain of eight digits; here, it has four.
    let lower = address.to_ascii_lowercase();
    let (domain, rest) = lower.split_once(':')?;
    let domain = u32::from_str_radix(domain, 16).ok()?;
    let folder = root.join(format!("sys/bus/pci/devices/{domain:04x}:{rest}"));
    fs::canonicalize(folder).ok()
}

/// The `current` or `max` link of a device.
fn link(folder: &Path, which: &str) -> Option<PcieLink> {
    let read = |what: &str| fs::read_to_string(folder.join(format!("{which}_link_{what}"))).ok();
    let speed = read("speed")?; // "32.0 GT/s PCIe", or "Unknown"
    let lanes = read("width")?;
    let gt_s = speed.split_whitespace().next()?.parse().ok()?;
    PcieLink::new(gt_s, lanes.trim().parse().ok()?)
}

fn faster(one: Option<PcieLink>, other: Option<PcieLink>) -> Option<PcieLink> {
    let both = [one, other].into_iter().flatten();
    both.max_by(|a, b| a.gb_s.total_cmp(&b.gb_s))
}

/// The slowest link of the bridges above the device, if it is slower than the device's own.
fn bottleneck(folder: &Path, own: PcieLink) -> Option<(String, PcieLink)> {
    let above = folder.ancestors().skip(1);
    let links = above.filter_map(|folder| {
        let name = folder.file_name()?.to_str()?;
        Some((name.to_owned(), link(folder, "current")?))
    });
    let slowest = links.min_by(|(_, a), (_, b)| a.gb_s.total_cmp(&b.gb_s))?;
    (slowest.1.gb_s < own.gb_s).then_some(slowest)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_link_carries_what_its_encoding_leaves() {
        // (As PCI-SIG's tables have it, each way.)
        for (gt_s, lanes, gb_s) in [
            (2.5, 1, 0.25),
            (5.0, 16, 8.0),
            (8.0, 16, 15.754),
            (16.0, 16, 31.508),
            (32.0, 16, 63.015),
            (32.0, 8, 31.508),
            (64.0, 16, 118.0),
        ] {
            let link = PcieLink::new(gt_s, lanes).unwrap();
            assert!((link.gb_s - gb_s).abs() < 0.001, "{link:?}");
        }
        assert_eq!(PcieLink::new(0.0, 16), None);
        assert_eq!(PcieLink::new(32.0, 0), None);
        assert_eq!(
            PcieLink::new(32.0, 16).unwrap().arithmetic(),
            "32 GT/s x 16 lanes / 8 bits x 128/130 = 63.0 GB/s"
        );
    }

    #[cfg(unix)]
    #[test]
    fn a_link_is_read_with_the_slowest_one_above_it() {
        let root = tempfile::tempdir().unwrap();
        let bridge = root.path().join("sys/devices/pci0000:3a/0000:3a:00.0");
        let card = bridge.join("0000:3b:00.0");
        fs::create_dir_all(&card).unwrap();
        let devices = root.path().join("sys/bus/pci/devices");
        fs::create_dir_all(&devices).unwrap();
        std::os::unix::fs::symlink(&card, devices.join("0000:3b:00.0")).unwrap();
        for (folder, file, text) in [
            (&card, "current_link_speed", "16.0 GT/s PCIe\n"),
            (&card, "current_link_width", "16\n"),
            (&card, "max_link_speed", "32.0 GT/s PCIe\n"),
            (&card, "max_link_width", "16\n"),
            (&card, "numa_node", "1\n"),
            (&card, "local_cpulist", "8-15\n"),
            (&bridge, "current_link_speed", "16.0 GT/s PCIe\n"),
            (&bridge, "current_link_width", "8\n"),
        ] {
            fs::write(folder.join(file), text).unwrap();
        }
        let (result, bus) = watch(root.path(), "00000000:3B:00.0", || 7);
        let bus = bus.unwrap();
        assert_eq!(result, 7);
        assert_eq!(bus.current, PcieLink::new(16.0, 16));
        assert_eq!(bus.possible, PcieLink::new(32.0, 16));
        let slowest = ("0000:3a:00.0".to_owned(), PcieLink::new(16.0, 8).unwrap());
        assert_eq!(bus.bottleneck, Some(slowest));
        assert_eq!(bus.limit(), PcieLink::new(16.0, 8));
        assert_eq!(
            (bus.node, bus.near_cores.as_deref()),
            (Some(1), Some("8-15"))
        );

        // A virtual machine may not know, and a node may be unknown.
        fs::write(card.join("current_link_speed"), "Unknown\n").unwrap();
        fs::write(card.join("numa_node"), "-1\n").unwrap();
        let bus = watch(root.path(), "0000:3b:00.0", || ()).1.unwrap();
        assert_eq!((bus.current, bus.bottleneck, bus.node), (None, None, None));
        assert!(watch(root.path(), "0000:4b:00.0", || ()).1.is_none());
    }
}
