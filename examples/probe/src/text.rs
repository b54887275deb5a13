//! The report as text for a terminal.

use std::fmt::{self, Display, Formatter, Write as _};

use crate::report::{Copies, DeviceReport, Report, Together};
use crate::words;

/// A report that is written as text.
pub struct Text<'a>(pub &'a Report);

/// How wide paragraphs are.
const WIDTH: usize = 110;

impl Display for Text<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let report = self.0;
        writeln!(f, "pinfeed {}: what this machine can do\n", report.version)?;
        paragraph(f, "", &words::method(report))?;
        for problem in &report.problems {
            let what = if report.has_gpu() {
                "not measured"
            } else {
                "no GPU"
            };
            paragraph(f, "", &format!("{what}: {problem}"))?;
        }
        if !report.has_gpu() {
            paragraph(
                f,
                "",
                "So only the host's part is measured, and copies by the CPU device, which stands in for a GPU.",
            )?;
        }

        heading(f, "The host")?;
        row(f, "cores", &words::cores(&report.host))?;
        row(f, "load", &words::load(&report.host))?;
        row(f, "memory", &words::memory(&report.host))?;
        row(f, "NUMA", &words::nodes(&report.host))?;
        row(f, "memlock", &words::memlock(report.host.memlock))?;

        for device in &report.devices {
            write_device(f, device)?;
        }
        if let Some(together) = &report.together {
            write_together(f, together)?;
        }

        heading(f, "Copies within the host's memory")?;
        writeln!(f, "  {:>8}{:>12}", "threads", "GB/s")?;
        for point in &report.memcpy.points {
            writeln!(
                f,
                "  {:>8}{:>12}",
                point.threads,
                words::number(point.gb_s.median)
            )?;
        }
        let bytes = words::mib(report.memcpy.bytes_per_thread);
        paragraph(
            f,
            "  ",
            &format!(
                "(Each thread copies {bytes}, between buffers of its own. Bytes copied count once.)"
            ),
        )?;

        let decode = &report.decode;
        heading(f, "Decoding of JPEG files")?;
        for point in &decode.cpu {
            let cores = if point.threads == 1 { "core" } else { "cores" };
            let rate = words::count(point.images_s.median);
            row(
                f,
                &format!("{} {cores}", point.threads),
                &format!("{rate} pictures a second"),
            )?;
        }
        row(f, "GPU", &words::gpu_decode(&decode.gpu))?;
        let side = decode.side;
        let what = format!(
            "(Drawn files of {} and {} pixels in memory, each cropped at random and resized to {side} x {side}.)",
            words::mib(decode.mean_file_bytes),
            words::count(decode.mean_pixels as f64)
        );
        paragraph(f, "  ", &what)?;

        heading(f, "Recommended settings")?;
        if !report.has_gpu() {
            paragraph(f, "  ", words::AGAIN)?;
        }
        for advice in &report.advice {
            writeln!(f, "  {}: {}", advice.setting, advice.value)?;
            paragraph(f, "      ", &advice.reason)?;
        }
        Ok(())
    }
}

fn write_device(f: &mut Formatter<'_>, device: &DeviceReport) -> fmt::Result {
    heading(f, &format!("{}: {}", device.id, device.name))?;
    let memory = words::mib(device.memory_bytes as usize);
    row(f, "memory", &memory)?;
    if let Some((major, minor)) = device.compute_capability {
        let driver = device.driver_version.map(|version| {
            format!(
                ", driver for CUDA {}.{}",
                version / 1000,
                version % 1000 / 10
            )
        });
        let engines = device.copy_engines;
        let text = format!(
            "compute capability {major}.{minor}, {engines} copy engines{}",
            driver.unwrap_or_default()
        );
        row(f, "device", &text)?;
    }
    for (name, text) in words::link(device) {
        row(f, name, &text)?;
    }
    for locking in &device.page_locking {
        row(f, "locking", &words::page_locking(locking, device))?;
    }
    if let Some(why) = words::why_not_the_card(device) {
        row(f, "why", &why)?;
    }
    for problem in &device.problems {
        row(f, "problem", &format!("not measured: {problem}"))?;
    }
    if !device.copies.is_empty() {
        writeln!(f)?;
        write_copies(f, &device.copies)?;
    }
    Ok(())
}

/// A row for each size, a column for each kind of copy.
fn write_copies(f: &mut Formatter<'_>, copies: &[Copies]) -> fmt::Result {
    const COLUMN: usize = 15;
    let mut heads = [String::new(), String::new()];
    for kind in copies {
        let memory = match kind.memory {
            crate::report::Memory::Staged => "by pinfeed",
            memory => words::of_memory(memory),
        };
        write!(heads[0], "{memory:>COLUMN$}")?;
        write!(heads[1], "{:>COLUMN$}", words::of_way(kind.way))?;
    }
    writeln!(f, "  {:<10}{}", "GB/s", heads[0])?;
    writeln!(f, "  {:<10}{}", "", heads[1])?;
    let sizes = copies
        .first()
        .map(|kind| kind.points.as_slice())
        .unwrap_or_default();
    for (index, point) in sizes.iter().enumerate() {
        write!(f, "  {:<10}", words::size(point.bytes))?;
        for kind in copies {
            let rate = kind
                .points
                .get(index)
                .map(|point| words::number(point.gb_s.median));
            write!(f, "{:>COLUMN$}", rate.unwrap_or_default())?;
        }
        writeln!(f)?;
    }
    Ok(())
}

fn write_together(f: &mut Formatter<'_>, together: &Together) -> fmt::Result {
    heading(f, "All GPUs at once, from page-locked memory")?;
    writeln!(
        f,
        "  {:<10}{:<16}{:>12}{:>12}",
        "GB/s", "", "alone", "together"
    )?;
    for way in &together.ways {
        for device in &way.devices {
            let (alone, rate) = (
                words::number(device.alone_gb_s),
                words::number(device.gb_s.median),
            );
            writeln!(
                f,
                "  {:<10}{:<16}{alone:>12}{rate:>12}",
                device.id,
                words::of_way(way.way)
            )?;
        }
        let (alone, rate) = (
            words::number(way.sum_alone_gb_s),
            words::number(way.sum_gb_s.median),
        );
        let share = 100.0 * way.sum_gb_s.median / way.sum_alone_gb_s;
        writeln!(
            f,
            "  {:<10}{:<16}{alone:>12}{rate:>12}  ({share:.0} %)",
            "all",
            words::of_way(way.way)
        )?;
    }
    paragraph(
        f,
        "  ",
        &format!(
            "(Copies of {}, two in a row on each device. Alone: the fastest of 16 MiB and more, as above.)",
            words::size(together.bytes)
        ),
    )
}

fn heading(f: &mut Formatter<'_>, text: &str) -> fmt::Result {
    writeln!(f, "\n{text}\n{}", "-".repeat(text.chars().count()))
}

/// A name, and what belongs to it beside it.
fn row(f: &mut Formatter<'_>, name: &str, text: &str) -> fmt::Result {
    let lines = wrapped(text, WIDTH - 12);
    for (index, line) in lines.iter().enumerate() {
        let name = if index == 0 { name } else { "" };
        writeln!(f, "  {name:<10}{line}")?;
    }
    Ok(())
}

fn paragraph(f: &mut Formatter<'_>, indent: &str, text: &str) -> fmt::Result {
    let lines = wrapped(text, WIDTH - indent.len());
    lines
        .iter()
        .try_for_each(|line| writeln!(f, "{indent}{line}"))
}

/// Breaks a text into lines between words.
fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let last = lines.len() - 1;
        let line = &mut lines[last];
        if line.is_empty() {
            line.push_str(word);
        } else if line.chars().count() + 1 + word.chars().count() <= width {
            line.push(' ');
            line.push_str(word);
        } else {
            lines.push(word.to_owned());
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_break_between_words() {
        assert_eq!(wrapped("one two  three", 7), ["one two", "three"]);
        assert_eq!(wrapped("incomprehensible", 3), ["incomprehensible"]);
        assert_eq!(wrapped("", 3), [""]);
    }

    #[test]
    fn a_report_says_what_was_asked() {
        let text = Text(&crate::sample::two_gpus()).to_string();
        for part in [
            "cuda:0",
            "cuda:1",
            "256 MiB",
            "PCIe 5 x16",
            "both, summed",
            "All GPUs at once",
            "memlock",
            "per GiB",
            "num_workers",
        ] {
            assert!(text.contains(part), "{part}:\n{text}");
        }
        assert!(!text.contains("NaN"), "{text}");
        let text = Text(&crate::sample::cpu_only()).to_string();
        assert!(
            text.contains("no GPU: ") && text.contains("only the host's part"),
            "{text}"
        );
        assert!(
            text.lines().all(|line| line.chars().count() <= 130),
            "{text}"
        );
    }
}
