//! Recommended settings, each derived from what was measured, with the reason.

use crate::Language;
use crate::report::{Advice, GpuDecode, Memory, Report, Way};
use crate::words::{count, mib, number};

/// The batch that the advice is about: pictures of 224 x 224 x 3 bytes.
const BATCH: usize = 256;
const SAMPLE_BYTES: usize = 224 * 224 * 3;
const BATCH_BYTES: usize = BATCH * SAMPLE_BYTES;

/// What copies between pageable memory and a GPU take of a device's slabs (docs of `Device::set_pinned_budget_bytes`).
const STAGING_BYTES: usize = 128 << 20;

/// What the settings are called.
#[derive(Debug)]
struct Names {
    auto: &'static str,
    both: &'static str,
    depth: &'static str,
    /// What helps where the host's memory limits copies of rows.
    register: &'static str,
    affinity: &'static str,
    placement: &'static str,
}

const RUST: Names = Names {
    auto: "Workers::Auto",
    both: "Decode::Both",
    depth: "depth, the second argument of prefetch_to_device",
    register: " `Tensor::register` lets a GPU read rows where they lie.",
    affinity: "Affinity::Device",
    placement: "`cargo run --release --example placement` shows the difference.",
};

const PYTHON: Names = Names {
    auto: "\"auto\"",
    both: "decode=\"both\"",
    depth: "depth",
    register: "",
    affinity: "numactl --cpunodebind=N --membind=N",
    placement: "Start a rank on its GPU's node N.",
};

pub fn derive(report: &Report, language: Language) -> Vec<Advice> {
    let names = match language {
        Language::Rust => &RUST,
        Language::Python => &PYTHON,
    };
    let mut advice = Vec::new();
    let Some(link_gb_s) = link_gb_s(report) else {
        return advice; // no copy could be measured
    };
    let cores = report.host.usable_cores;
    let (one, all) = match report.decode.cpu.as_slice() {
        [one, .., all] => (one.images_s.median, all.images_s.median),
        [one] => (one.images_s.median, one.images_s.median),
        [] => return advice,
    };
    let carried = link_gb_s * 1e9 / SAMPLE_BYTES as f64;
    let decoding = decoding_workers(cores, one, all, carried);
    let limit = if all < carried {
        "so decoding is the limit, not the transfer"
    } else {
        "so fewer cores than all keep it busy"
    };
    let beside = match &report.decode.gpu {
        GpuDecode::Measured { images_s, .. } => format!(
            " The GPU's decoder makes {} more a second (`{}`).",
            count(images_s.median),
            names.both
        ),
        GpuDecode::NotMeasured { .. } => String::new(),
    };
    advice.push(Advice {
        setting: "num_workers, where pictures are decoded",
        value: decoding.to_string(),
        reason: format!(
            "One core decodes {} pictures a second, {} cores decode {}; the copies measured here carry {}, {limit}.{beside}",
            count(one),
            cores,
            count(all),
            count(carried)
        ),
    });

    let copying = report
        .memcpy
        .points
        .iter()
        .map(|point| (point.threads, point.gb_s.median));
    let copying: Vec<(usize, f64)> = copying.collect();
    let Some((copiers, copied_gb_s, is_enough)) = copying_workers(&copying, link_gb_s) else {
        return advice;
    };
    let why = match is_enough {
        true => format!(
            "{copiers} {} copy {} GB/s, which feeds copies to the device at {} GB/s; more would only wait.",
            threads(copiers),
            number(copied_gb_s),
            number(link_gb_s)
        ),
        false => format!(
            "{copiers} {} copy {} GB/s within the host's memory{}, and copies to the device could take {} GB/s.{}",
            threads(copiers),
            number(copied_gb_s),
            match copiers < cores {
                true => "; more add less than a tenth",
                false => ", and there are no more cores",
            },
            number(link_gb_s),
            names.register
        ),
    };
    advice.push(Advice {
        setting: "num_workers, where rows are only copied",
        value: format!("{copiers}, or {}", names.auto),
        reason: format!(
            "{why} `{}` watches the loop and finds the number by itself.",
            names.auto
        ),
    });

    // How long a batch takes for each device: to send, and to make in either way. Devices share the workers.
    let devices = report.devices.iter().filter(|device| !device.is_cpu);
    let devices = devices.count().max(1);
    let bytes = (devices * BATCH_BYTES) as f64;
    let send_ms = bytes / link_gb_s / 1e6;
    let decode_ms = (devices * BATCH) as f64 / all * 1e3;
    let gather_ms = bytes / copied_gb_s / 1e6;
    let (for_pictures, for_rows) = (depth(send_ms, decode_ms), depth(send_ms, gather_ms));
    let each = match devices {
        1 => String::new(),
        _ => format!("For each of {devices} devices, "),
    };
    let times = format!(
        "{each}{} batch of {BATCH} pictures of 224 x 224 ({}) is sent in {} ms. It is decoded in {} ms by all cores, or gathered in {} ms by \
         {copiers} {}.",
        if devices == 1 { "A" } else { "a" },
        mib(BATCH_BYTES),
        number(send_ms),
        number(decode_ms),
        number(gather_ms),
        threads(copiers)
    );
    advice.push(Advice {
        setting: names.depth,
        value: if for_pictures == for_rows {
            format!("{for_pictures}")
        } else {
            format!("{for_pictures} for pictures, {for_rows} for rows")
        },
        reason: format!(
            "{times} While a batch is in use, so many must be on their way that sending is not waited for: the first time divided by the \
             second, rounded up."
        ),
    });
    let ahead = for_pictures.max(for_rows) + 1;
    advice.push(Advice {
        setting: "prefetch",
        value: format!("{ahead}"),
        reason: format!(
            "As many as are on their way ({}), and one that is being made. Raise it only if some samples take much longer than others: by \
             as many batches as are made in the time of the slowest sample.",
            ahead - 1
        ),
    });

    let slabs = ahead + for_pictures.max(for_rows) + 2;
    let needed = (slabs * BATCH_BYTES + STAGING_BYTES).next_multiple_of(64 << 20);
    let usable = report.host.usable_memory_bytes();
    let room = match usable.map(|bytes| bytes as usize / 4) {
        None => "The system does not say how much memory there is.".to_owned(),
        Some(quarter) if quarter >= needed * devices => format!(
            "The default, a quarter of the usable memory ({}), has room for that{}.",
            mib(quarter),
            if devices > 1 { " on each device" } else { "" }
        ),
        Some(quarter) => format!(
            "A quarter of the usable memory ({}), which is the default, has no room for that: use smaller batches, or a smaller prefetch.",
            mib(quarter)
        ),
    };
    let locking = report
        .devices
        .first()
        .and_then(|device| device.page_locking.first())
        .map(|locking| {
            let ms = locking.lock_ms_per_gib.median * needed as f64 / (1u64 << 30) as f64;
            format!(" Page-locking it takes {} ms, once.", number(ms))
        });
    advice.push(Advice {
        setting: "slabs, and the budget of page-locked memory for each device",
        value: format!("{slabs} slabs, {}", mib(needed)),
        reason: format!(
            "prefetch + depth + 2 slabs of a batch each, and {} for copies from pageable memory. {room}{}",
            mib(STAGING_BYTES),
            locking.unwrap_or_default()
        ),
    });
    advice.extend(pinning(report));
    if report.host.nodes.len() > 1 {
        advice.push(Advice {
            setting: "affinity",
            value: names.affinity.to_owned(),
            reason: format!(
                "The machine has {} NUMA nodes, and a device is attached to one of them: its memory is nearer. {}",
                report.host.nodes.len(),
                names.placement
            ),
        });
    }
    advice
}

/// What copies from page-locked memory reach on all devices together.
fn link_gb_s(report: &Report) -> Option<f64> {
    let together = report.together.as_ref().and_then(|together| {
        let mut ways = together.ways.iter();
        Some(ways.find(|way| way.way == Way::ToDevice)?.sum_gb_s.median)
    });
    let alone = report.devices.iter();
    let alone = alone.filter_map(|device| device.best_gb_s(Memory::Pinned, Way::ToDevice));
    together.or_else(|| alone.reduce(|sum, rate| sum + rate))
}

fn pinning(report: &Report) -> Option<Advice> {
    let device = report.devices.first()?;
    let pinned = device.best_gb_s(Memory::Pinned, Way::ToDevice)?;
    let pageable = device.best_gb_s(Memory::Pageable, Way::ToDevice)?;
    let after = device
        .page_locking
        .iter()
        .filter_map(|locking| locking.pays_after_copies)
        .min();
    let (value, reason) = match after {
        _ if device.is_cpu => (
            "no difference",
            "On the CPU device a copy is a memcpy, whether the pages are locked or not. With a GPU it decides the rate.".to_owned(),
        ),
        Some(after) => (
            "on",
            format!(
                "Page-locked memory is copied at {} GB/s, pageable memory by the driver at {}. Memory that is used again {after} times has \
                 paid for its locking; a loader reuses its slabs for the whole run.",
                number(pinned),
                number(pageable)
            ),
        ),
        None => (
            "on",
            format!(
                "Page-locked memory is copied at {} GB/s and pageable memory at {}, no slower. But only a copy from page-locked memory \
                 runs while the program goes on.",
                number(pinned),
                number(pageable)
            ),
        ),
    };
    Some(Advice {
        setting: "pin_memory",
        value: value.to_owned(),
        reason,
    })
}

fn threads(threads: usize) -> &'static str {
    if threads == 1 { "thread" } else { "threads" }
}

/// How many workers decode: all cores, unless fewer feed what copies carry.
fn decoding_workers(cores: usize, one: f64, all: f64, carried: f64) -> usize {
    if all <= carried {
        return cores;
    }
    // As if the rate grew evenly from one core to all.
    let each = (all - one) / (cores.max(2) - 1) as f64;
    let needed = 1.0 + ((carried - one) / each).max(0.0).ceil();
    (needed as usize).clamp(1, cores)
}

/// The fewest threads that copy as fast as the link, and `true`; if none do, the fewest that come within a tenth of the fastest, and
/// `false`. With them, what they copy.
fn copying_workers(points: &[(usize, f64)], link_gb_s: f64) -> Option<(usize, f64, bool)> {
    let enough = points.iter().find(|(_, rate)| *rate >= link_gb_s);
    if let Some((threads, rate)) = enough {
        return Some((*threads, *rate, true));
    }
    let best = points
        .iter()
        .map(|(_, rate)| *rate)
        .max_by(f64::total_cmp)?;
    let near = points.iter().find(|(_, rate)| *rate >= 0.9 * best)?;
    Some((near.0, near.1, false))
}

/// How many batches must be on their way.
fn depth(send_ms: f64, make_ms: f64) -> usize {
    ((send_ms / make_ms).ceil() as usize).clamp(1, 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_cores_decode_unless_fewer_feed_the_link() {
        assert_eq!(decoding_workers(16, 500.0, 8_000.0, 300_000.0), 16);
        assert_eq!(decoding_workers(16, 500.0, 8_000.0, 4_000.0), 8);
        assert_eq!(decoding_workers(16, 500.0, 8_000.0, 100.0), 1);
        assert_eq!(decoding_workers(1, 500.0, 500.0, 100.0), 1);
    }

    #[test]
    fn the_fewest_threads_that_feed_the_link_copy() {
        let points = [(1, 12.0), (2, 23.0), (4, 42.0), (8, 78.0), (16, 80.0)];
        assert_eq!(copying_workers(&points, 50.0), Some((8, 78.0, true)));
        assert_eq!(copying_workers(&points, 10.0), Some((1, 12.0, true)));
        // None feeds it: 8 threads come within a tenth of 16.
        assert_eq!(copying_workers(&points, 200.0), Some((8, 78.0, false)));
        assert_eq!(copying_workers(&[], 200.0), None);
    }

    #[test]
    fn as_many_batches_are_on_their_way_as_are_made_while_one_is_sent() {
        assert_eq!(depth(0.7, 30.0), 1);
        assert_eq!(depth(3.0, 2.0), 2);
        assert_eq!(depth(100.0, 1.0), 4);
    }

    #[test]
    fn settings_follow_from_the_figures() {
        let advice = derive(&crate::sample::two_gpus(), Language::Rust);
        let values = advice.iter().map(|advice| advice.value.as_str());
        let expected = [
            "32",
            "16, or Workers::Auto",
            "1 for pictures, 2 for rows",
            "3",
            "7 slabs, 448 MiB",
            "on",
            "Affinity::Device",
        ];
        assert_eq!(values.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn python_is_told_names_that_it_has() {
        for report in [crate::sample::two_gpus(), crate::sample::cpu_only()] {
            let advice = derive(&report, Language::Python);
            assert_eq!(advice.len(), derive(&report, Language::Rust).len());
            let words = advice.iter().flat_map(|advice| {
                [
                    advice.setting,
                    advice.value.as_str(),
                    advice.reason.as_str(),
                ]
            });
            for words in words {
                let is_rust = words.contains("::") || words.contains("cargo");
                assert!(!is_rust, "{words}");
            }
        }
    }

    #[test]
    fn each_setting_has_a_reason_with_figures() {
        for report in [crate::sample::two_gpus(), crate::sample::cpu_only()] {
            let advice = derive(&report, Language::Rust);
            assert!(advice.len() >= 6, "{advice:?}");
            for advice in &advice {
                let has_figures = advice.reason.contains(char::is_numeric);
                assert!(has_figures || advice.value == "no difference", "{advice:?}");
                let is_finite = !advice.reason.contains("NaN") && !advice.reason.contains("inf ");
                assert!(is_finite, "{advice:?}");
            }
        }
    }
}
