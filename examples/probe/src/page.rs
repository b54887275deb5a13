//! The report as a page: one file without anything beside it.

use std::fmt::Write as _;

use crate::plot::{Bar, Line, Plot, bars, escaped};
use crate::report::{Bus, Copies, DeviceReport, GpuDecode, Report, Together, Way};
use crate::words::{self, count, number};

pub fn render(report: &Report) -> String {
    let mut page = String::new();
    page.push_str("<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n");
    page.push_str("<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n");
    _ = writeln!(
        page,
        "<title>What this machine can do</title>\n<style>\n{}</style>",
        include_str!("page.css")
    );
    _ = writeln!(
        page,
        "<h1>What this machine can do</h1>\n<p class=\"faint\">pinfeed {}. {}</p>",
        escaped(report.version),
        escaped(&words::method(report))
    );
    for problem in &report.problems {
        let what = if report.has_gpu() {
            "Not measured"
        } else {
            "No GPU"
        };
        _ = writeln!(
            page,
            "<p class=\"note problem\"><b>{what}:</b> {}</p>",
            escaped(problem)
        );
    }
    if !report.has_gpu() {
        page.push_str("<p>So only the host's part is measured, and copies by the CPU device, which stands in for a GPU.</p>\n");
    }
    let first = report.devices.first();
    if let Some(why) = first.and_then(words::why_not_the_card) {
        _ = writeln!(page, "<p class=\"note\">{}</p>", escaped(&why));
    }

    page.push_str(
        "<h2>Recommended settings</h2>\n<div class=\"scroll\"><table class=\"advice\">\n",
    );
    page.push_str("<tr><th>Setting<th>Value<th>Why\n");
    for advice in &report.advice {
        let [setting, value, reason] = [advice.setting, &advice.value, &advice.reason].map(escaped);
        _ = writeln!(page, "<tr><td>{setting}<td>{value}<td>{}", code(&reason));
    }
    page.push_str("</table></div>\n");
    if !report.has_gpu() {
        _ = writeln!(page, "<p class=\"faint\">{}</p>", words::AGAIN);
    }

    page.push_str("<h2>The host</h2>\n");
    let host = &report.host;
    list(
        &mut page,
        [
            ("cores", words::cores(host)),
            ("load", words::load(host)),
            ("memory", words::memory(host)),
            ("NUMA", words::nodes(host)),
            ("memlock", words::memlock(host.memlock)),
        ],
    );
    for device in &report.devices {
        write_device(&mut page, device);
    }
    if let Some(together) = &report.together {
        write_together(&mut page, together);
    }

    page.push_str("<h2>Copies within the host's memory</h2>\n");
    let points = report.memcpy.points.iter();
    let plot = Plot {
        title: "Copies within the host's memory, by threads",
        x_label: "threads",
        y_label: "GB/s copied",
        x_ticks: points
            .clone()
            .map(|point| (point.threads as f64, point.threads.to_string()))
            .collect(),
        lines: vec![Line {
            name: "memcpy, each thread between buffers of its own".to_owned(),
            points: points
                .clone()
                .map(|point| (point.threads as f64, point.gb_s.median))
                .collect(),
        }],
        limit: None,
    };
    page.push_str(&plot.to_html());
    page.push_str("<div class=\"scroll\"><table><tr><th>threads<th>GB/s<th>slowest<th>fastest\n");
    for point in points {
        let [median, least, most] =
            [point.gb_s.median, point.gb_s.least, point.gb_s.most].map(number);
        _ = writeln!(
            page,
            "<tr><td>{}<td>{median}<td>{least}<td>{most}",
            point.threads
        );
    }
    page.push_str("</table></div>\n");

    write_decode(&mut page, report);
    page
}

fn write_device(page: &mut String, device: &DeviceReport) {
    _ = writeln!(
        page,
        "<h2>{}: {}</h2>",
        escaped(&device.id),
        escaped(&device.name)
    );
    let mut lines = vec![("memory", words::mib(device.memory_bytes as usize))];
    if let Some((major, minor)) = device.compute_capability {
        let driver = device.driver_version.map(|version| {
            format!(
                ", driver for CUDA {}.{}",
                version / 1000,
                version % 1000 / 10
            )
        });
        let engines = device.copy_engines;
        lines.push((
            "device",
            format!(
                "compute capability {major}.{minor}, {engines} copy engines{}",
                driver.unwrap_or_default()
            ),
        ));
    }
    lines.extend(words::link(device));
    lines.extend(
        device
            .page_locking
            .iter()
            .map(|locking| ("locking", words::page_locking(locking, device))),
    );
    lines.extend(words::why_not_the_card(device).map(|why| ("why", why)));
    list(page, lines);
    for problem in &device.problems {
        _ = writeln!(
            page,
            "<p class=\"note problem\"><b>Not measured:</b> {}</p>",
            escaped(problem)
        );
    }
    if device.copies.is_empty() {
        return;
    }
    let title = format!("Copies between the host and {}, by size", device.id);
    let sizes = device
        .copies
        .first()
        .map(|copies| copies.points.as_slice())
        .unwrap_or_default();
    let plot = Plot {
        title: &title,
        x_label: "size of a copy",
        y_label: "GB/s",
        x_ticks: sizes
            .iter()
            .map(|point| (point.bytes as f64, words::size(point.bytes)))
            .collect(),
        lines: device.copies.iter().map(line).collect(),
        limit: device.bus.as_ref().and_then(Bus::limit).map(|link| {
            (
                format!(
                    "PCIe {} x{} allows {} GB/s each way",
                    link.generation,
                    link.lanes,
                    number(link.gb_s)
                ),
                link.gb_s,
            )
        }),
    };
    page.push_str(&plot.to_html());
    write_copies(page, &device.copies);
}

fn line(copies: &Copies) -> Line {
    Line {
        name: format!(
            "{}, {}",
            words::of_memory(copies.memory),
            words::of_way(copies.way)
        ),
        points: copies
            .points
            .iter()
            .map(|point| (point.bytes as f64, point.gb_s.median))
            .collect(),
    }
}

/// A row for each size, a column for each kind of copy.
fn write_copies(page: &mut String, copies: &[Copies]) {
    page.push_str("<div class=\"scroll\"><table><tr><th>GB/s");
    for kind in copies {
        let (memory, way) = (words::of_memory(kind.memory), words::of_way(kind.way));
        _ = write!(page, "<th>{memory}<br>{way}");
    }
    page.push('\n');
    let sizes = copies
        .first()
        .map(|kind| kind.points.as_slice())
        .unwrap_or_default();
    for (index, point) in sizes.iter().enumerate() {
        _ = write!(page, "<tr><td>{}", words::size(point.bytes));
        for kind in copies {
            let rate = kind
                .points
                .get(index)
                .map(|point| number(point.gb_s.median));
            _ = write!(page, "<td>{}", rate.unwrap_or_default());
        }
        page.push('\n');
    }
    page.push_str("</table></div>\n");
}

fn write_together(page: &mut String, together: &Together) {
    page.push_str("<h2>All GPUs at once</h2>\n");
    _ = writeln!(
        page,
        "<p class=\"faint\">From and to page-locked memory, in copies of {}, two in a row on each device. Alone: the fastest of 16 MiB and more, as above.</p>",
        words::size(together.bytes)
    );
    for way in &together.ways {
        let name = match way.way {
            Way::ToDevice => "To the devices",
            Way::Back => "Back",
            Way::Both => "Both ways, summed",
        };
        _ = writeln!(page, "<h3>{name}</h3>");
        let mut rows = Vec::new();
        let mut add = |name: String, value: f64, is_reference: bool| {
            rows.push(Bar {
                name,
                value,
                is_reference,
            });
        };
        for device in &way.devices {
            add(format!("{}, alone", device.id), device.alone_gb_s, true);
            let beside = format!("{}, beside the others", device.id);
            add(beside, device.gb_s.median, false);
        }
        add("sum, each alone".to_owned(), way.sum_alone_gb_s, true);
        add("sum, all at once".to_owned(), way.sum_gb_s.median, false);
        page.push_str(&bars(&format!("All GPUs, {name}"), "GB/s", &rows));
    }
}

fn write_decode(page: &mut String, report: &Report) {
    let decode = &report.decode;
    page.push_str("<h2>Decoding of JPEG files</h2>\n");
    let bar = |name: String, value: f64| Bar {
        name,
        value,
        is_reference: false,
    };
    let mut rows: Vec<Bar> = Vec::new();
    for point in &decode.cpu {
        let cores = if point.threads == 1 { "core" } else { "cores" };
        let name = format!("{} {cores}", point.threads);
        rows.push(bar(name, point.images_s.median));
    }
    if let GpuDecode::Measured {
        images_s,
        by_kernels,
    } = &decode.gpu
    {
        let how = match by_kernels {
            true => "the GPU's kernels",
            false => "the GPU's decoder",
        };
        rows.push(bar(how.to_owned(), images_s.median));
    }
    page.push_str(&bars("Pictures decoded a second", "pictures/s", &rows));
    _ = writeln!(
        page,
        "<p class=\"faint\">Drawn files of {} and {} pixels in memory, each cropped at random and resized to {side} x {side}. By the GPU: {}.</p>",
        words::mib(decode.mean_file_bytes),
        count(decode.mean_pixels as f64),
        escaped(&words::gpu_decode(&decode.gpu)),
        side = decode.side
    );
}

fn list(page: &mut String, lines: impl IntoIterator<Item = (&'static str, String)>) {
    page.push_str("<dl>\n");
    for (name, text) in lines {
        _ = writeln!(page, "<dt>{}<dd>{}", escaped(name), code(&escaped(&text)));
    }
    page.push_str("</dl>\n");
}

/// What stands between backticks is code.
fn code(text: &str) -> String {
    let parts = text.split('`').enumerate();
    let parts = parts.map(|(index, part)| match index % 2 {
        0 => part.to_owned(),
        _ => format!("<code>{part}</code>"),
    });
    parts.collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_page_stands_alone_and_has_what_was_measured() {
        for report in [crate::sample::two_gpus(), crate::sample::cpu_only()] {
            let page = render(&report);
            for part in [
                "<svg",
                "GB/s",
                "prefers-color-scheme: dark",
                "num_workers",
                "memlock",
            ] {
                assert!(page.contains(part), "{part}");
            }
            for part in ["http:", "https:", "src=", "href=", "NaN", "`"] {
                assert!(!page.contains(part), "{part}");
            }
            assert_eq!(page.contains("All GPUs at once"), report.has_gpu());
        }
    }

    #[test]
    fn names_are_escaped() {
        let mut report = crate::sample::cpu_only();
        report.devices[0].name = "a <script> & \"more\"".to_owned();
        let page = render(&report);
        assert!(
            page.contains("a &lt;script&gt; &amp; &quot;more&quot;") && !page.contains("<script>")
        );
        assert_eq!(code("a `b` c"), "a <code>b</code> c");
    }

    /// `cargo test --package probe -- --ignored` writes pages into the system's temporary folder, to be looked at in a browser.
    #[test]
    #[ignore = "it writes files"]
    fn pages_to_look_at() {
        for (name, report) in [
            ("two-gpus", crate::sample::two_gpus()),
            ("cpu-only", crate::sample::cpu_only()),
        ] {
            let file = std::env::temp_dir().join(format!("pinfeed-probe-{name}.html"));
            std::fs::write(&file, render(&report)).unwrap();
            println!("{}", file.display());
        }
    }
}
