//! Numbers and sentences that the text and the page share.

use crate::report::{
    Bus, Container, DeviceReport, GpuDecode, Host, Memlock, Memory, PageLocking, Report, Way,
};

/// Three digits or so: `0.052`, `0.52`, `5.2`, `52`, `520`.
pub fn number(value: f64) -> String {
    match value.abs() {
        ..0.095 => format!("{value:.3}"),
        ..1.0 => format!("{value:.2}"),
        ..100.0 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

/// A count with its thousands apart, to three digits: `366,000`.
pub fn count(value: f64) -> String {
    let digits = value.max(1.0).log10().floor() as i32;
    let unit = 10f64.powi((digits - 2).max(0));
    let text = format!("{:.0}", (value / unit).round() * unit);
    let mut with_commas = String::new();
    for (index, digit) in text.chars().enumerate() {
        if index > 0 && (text.len() - index).is_multiple_of(3) {
            with_commas.push(',');
        }
        with_commas.push(digit);
    }
    with_commas
}

/// A size of copies, which are powers of two: `4 KiB`.
pub fn size(bytes: usize) -> String {
    match bytes {
        ..=0xF_FFFF => format!("{} KiB", bytes >> 10),
        0x10_0000..=0x3FFF_FFFF => format!("{} MiB", bytes >> 20),
        _ => format!("{} GiB", bytes >> 30),
    }
}

/// Any amount of memory: `36.8 MiB`.
pub fn mib(bytes: usize) -> String {
    match bytes as f64 / (1 << 20) as f64 {
        mib @ ..1024.0 => format!("{} MiB", number(mib)),
        mib => format!("{} GiB", number(mib / 1024.0)),
    }
}

pub fn of_memory(memory: Memory) -> &'static str {
    match memory {
        Memory::Pinned => "pinned",
        Memory::Pageable => "pageable",
        Memory::Staged => "pageable, by pinfeed",
    }
}

pub fn of_way(way: Way) -> &'static str {
    match way {
        Way::ToDevice => "to the device",
        Way::Back => "back",
        Way::Both => "both, summed",
    }
}

/// What is said of settings that were derived without a GPU.
pub const AGAIN: &str =
    "These are for the CPU device. Where there is a GPU, run it again: its link is another one.";

/// What was measured, and how.
pub fn method(report: &Report) -> String {
    let repeats = report.devices.iter().flat_map(|device| &device.copies);
    let repeats = repeats
        .flat_map(|copies| &copies.points)
        .map(|point| point.gb_s.repeats)
        .max();
    let windows = report.memcpy.points.first().map(|point| point.gb_s.repeats);
    format!(
        "Each number is a median: copies of up to {} measurements, all else of up to {} (fewer where one takes long), after one that does not count. Copies \
         below 16 MiB are enqueued several in a row, up to 64, before they are waited for. GB/s are 10^9 bytes a second. \
         The run took {} s{}.",
        repeats.unwrap_or(0),
        windows.unwrap_or(0),
        number(report.seconds),
        if report.quick {
            " (--quick: fewer sizes, and fewer and shorter measurements)"
        } else {
            ""
        }
    )
}

/// Cores and the limits on them.
pub fn cores(host: &Host) -> String {
    let allowed = host
        .allowed_cores
        .as_deref()
        .unwrap_or("which the system does not list");
    let quota = match host.container.cpus {
        Some(cpus) => format!("; the container's quota is {} cores' time", number(cpus)),
        None => "; no container limits their time".to_owned(),
    };
    format!("{} usable (cores {allowed}{quota})", host.usable_cores)
}

/// Whether others were busy when the run began.
pub fn load(host: &Host) -> String {
    let Some(load) = host.load else {
        return "unknown".to_owned();
    };
    let busy = load > host.usable_cores as f64 / 4.0;
    let what = match busy {
        true => {
            "Other programs are busy, so what is measured here is lower than what the machine can do"
        }
        false => "The machine is quiet",
    };
    format!("{} over the last minute. {what}.", number(load))
}

pub fn memory(host: &Host) -> String {
    let amount = |bytes: Option<u64>| bytes.map(|bytes| mib(bytes as usize));
    let Container { memory_bytes, .. } = host.container;
    let machine = amount(host.memory_bytes).unwrap_or_else(|| "unknown".to_owned());
    match amount(memory_bytes) {
        Some(limit) => format!("{machine} in the machine; the container's limit is {limit}"),
        None => format!("{machine} in the machine; no container limits it"),
    }
}

pub fn nodes(host: &Host) -> String {
    let nodes = host.nodes.iter().map(|node| {
        let memory = node
            .memory_bytes
            .map(|bytes| format!(", {}", mib(bytes as usize)));
        format!(
            "node {}: cores {}{}",
            node.number,
            node.cores,
            memory.unwrap_or_default()
        )
    });
    let nodes: Vec<String> = nodes.collect();
    match nodes.as_slice() {
        [] => "the system lists none".to_owned(),
        nodes => nodes.join("; "),
    }
}

pub fn memlock(limit: Memlock) -> String {
    let limit = match limit {
        Memlock::Unlimited => return "unlimited".to_owned(),
        Memlock::Unknown => "unknown".to_owned(),
        Memlock::Bytes(bytes) => mib(bytes as usize),
    };
    format!(
        "{limit}. It limits mlock, by which the CPU device locks its slabs, unless the process has CAP_IPC_LOCK, as root does. CUDA's page-locked memory is not bound by it: the driver's \
         cuMemHostAlloc and cuMemHostRegister lock pages in the kernel, and count nothing here."
    )
}

/// How the device is attached, line by line.
pub fn link(device: &DeviceReport) -> Vec<(&'static str, String)> {
    let Some(bus) = &device.bus else {
        let why = if device.is_cpu {
            "none: its memory is the host's"
        } else {
            "the system does not describe the device (no Linux, or a container without /sys)"
        };
        return vec![("link", why.to_owned())];
    };
    let mut lines = Vec::new();
    let text = |link: Option<crate::report::PcieLink>| match link {
        Some(link) => format!("PCIe {} x{}", link.generation, link.lanes),
        None => "unknown (virtual machines may hide it)".to_owned(),
    };
    let (now, most) = (text(bus.current), text(bus.possible));
    lines.push((
        "link",
        format!("{now} as negotiated; the device could do {most}"),
    ));
    if let (Some(current), Some(possible)) = (bus.current, bus.possible)
        && current.gb_s < possible.gb_s
    {
        let slower = format!(
            "{} times slower than the device could be: look at the slot, the riser and the firmware's settings",
            number(possible.gb_s / current.gb_s)
        );
        lines.push(("", slower));
    }
    if let Some((address, link)) = &bus.bottleneck {
        let slower = format!(
            "above it, at {address}, PCIe {} x{}: that is what all copies pass",
            link.generation, link.lanes
        );
        lines.push(("", slower));
    }
    if let Some(link) = bus.limit() {
        lines.push(("allows", format!("{} each way", link.arithmetic())));
        lines.push((
            "",
            format!(
                "less what packets add: 24 bytes to each 128 or 256 leave {} to {} GB/s",
                number(link.in_packets_gb_s(128)),
                number(link.in_packets_gb_s(256))
            ),
        ));
    }
    if let Some(share) = device.link_share {
        let hint = if share > 1.0 {
            ": more than this link carries, so the system describes another one (a virtual machine's, or beside NVLink-C2C)"
        } else {
            " of what the link allows, to the device from page-locked memory"
        };
        lines.push(("reached", format!("{:.0} %{hint}", share * 100.0)));
    }
    lines.push(("NUMA node", node(bus)));
    lines
}

fn node(bus: &Bus) -> String {
    let cores = bus
        .near_cores
        .as_deref()
        .map(|cores| format!(", near cores {cores}"));
    match bus.node {
        Some(node) => format!("{node}{}", cores.unwrap_or_default()),
        None => format!("the system does not say{}", cores.unwrap_or_default()),
    }
}

/// `cuMemHostAlloc: 250 ms per GiB, and 80 to give it back. ..`
pub fn page_locking(locking: &PageLocking, device: &DeviceReport) -> String {
    let unlock = locking
        .unlock_ms_per_gib
        .map(|unlock| format!(", and {} to give it back", number(unlock.median)));
    let pays = match locking.pays_after_copies {
        _ if device.is_cpu => " No copy on the CPU device is faster for it.".to_owned(),
        Some(1) => " It has paid with the first copy.".to_owned(),
        Some(copies) => format!(
            " It has paid when the memory was copied {copies} times. If it is locked anew for each copy, it never pays."
        ),
        None => " Copies are not faster for it here.".to_owned(),
    };
    format!(
        "{}: {} ms per GiB{} (measured with {}).{pays}",
        locking.by,
        number(locking.lock_ms_per_gib.median),
        unlock.unwrap_or_default(),
        size(locking.bytes)
    )
}

pub fn gpu_decode(decode: &GpuDecode) -> String {
    match decode {
        GpuDecode::Measured {
            images_s,
            by_kernels,
        } => {
            let how = if *by_kernels {
                "kernels, for want of a hardware decoder"
            } else {
                "its hardware decoder"
            };
            format!("{} pictures a second, by {how}", count(images_s.median))
        }
        GpuDecode::NotMeasured { why } => format!("not measured: {why}"),
    }
}

/// Why copies to a device are slower than the bandwidth that its data sheet names.
pub fn why_not_the_card(device: &DeviceReport) -> Option<String> {
    let memory = device.device_memory?;
    let copied = memory.copied_gb_s.map(|figure| figure.median);
    let card = match (memory.nominal_gb_s, copied) {
        (Some(nominal), Some(copied)) => format!(
            "{} GB/s by its clock and width, of which copies within the card read and wrote {}",
            number(nominal),
            number(copied)
        ),
        (Some(one), None) | (None, Some(one)) => format!("{} GB/s", number(one)),
        (None, None) => return None,
    };
    let link = match (
        device.bus.as_ref().and_then(Bus::limit),
        device.best_gb_s(Memory::Pinned, Way::ToDevice),
    ) {
        (Some(link), Some(rate)) if rate <= link.gb_s => format!(
            "allows {} GB/s and reached {}",
            number(link.gb_s),
            number(rate)
        ),
        (_, Some(rate)) => format!("reached {} GB/s", number(rate)),
        _ => return None,
    };
    Some(format!(
        "The bandwidth on the data sheet is that of the card's own memory to the card's own processors ({card}); a copy from the host \
         passes the link between them, which {link}."
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_as_many_digits_as_they_deserve() {
        assert_eq!(
            [0.0523, 0.523, 5.23, 52.3, 523.4].map(number),
            ["0.052", "0.52", "5.2", "52.3", "523"]
        );
        assert_eq!(
            [0.0, 7.4, 999.6, 1234.0, 366_123.0].map(count),
            ["0", "7", "1,000", "1,230", "366,000"]
        );
        assert_eq!(
            [4 << 10, 1 << 20, 256 << 20, 1 << 30].map(size),
            ["4 KiB", "1 MiB", "256 MiB", "1 GiB"]
        );
        assert_eq!([1 << 19, 3 << 30].map(mib), ["0.50 MiB", "3.0 GiB"]);
    }

    #[test]
    fn a_link_that_is_slower_than_it_could_be_is_named() {
        let [first, second] = &crate::sample::two_gpus().devices[..] else {
            panic!("two devices");
        };
        let lines = |device| {
            let lines = link(device).into_iter().map(|(_, line)| line);
            lines.collect::<Vec<_>>().join("\n")
        };
        assert!(!lines(first).contains("slower than the device could be"));
        let second = lines(second);
        assert!(
            second.contains("PCIe 4 x16 as negotiated; the device could do PCIe 5 x16"),
            "{second}"
        );
        assert!(second.contains("2.0 times slower"), "{second}");
    }

    #[test]
    fn the_two_bandwidths_stand_in_one_sentence() {
        let report = crate::sample::two_gpus();
        let why = why_not_the_card(&report.devices[0]).unwrap_or_default();
        assert!(
            why.contains("4917 GB/s") && why.contains("63.0 GB/s"),
            "{why}"
        );
        assert_eq!(
            why_not_the_card(&crate::sample::cpu_only().devices[0]),
            None
        );
    }
}
