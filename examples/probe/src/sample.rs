//! Made-up reports for the tests of what renders them. No machine gave these numbers.

use crate::advice;
use crate::report::*;

fn figure(median: f64) -> Figure {
    Figure {
        median,
        least: median * 0.97,
        most: median * 1.02,
        repeats: 7,
    }
}

/// Copies that reach `best`, and half of it at `half` bytes.
fn copies(memory: Memory, way: Way, best: f64, half: f64) -> Copies {
    let sizes = (12..).step_by(2).map(|power| 1usize << power).take(9);
    let points = sizes.map(|bytes| CopyPoint {
        bytes,
        in_a_row: 1,
        gb_s: figure(best * bytes as f64 / (bytes as f64 + half)),
    });
    Copies {
        memory,
        way,
        points: points.collect(),
    }
}

fn gpu(ordinal: usize, gt_s: f64, best: f64) -> DeviceReport {
    let current = PcieLink::new(gt_s, 16);
    DeviceReport {
        id: format!("cuda:{ordinal}"),
        is_cpu: false,
        name: "A GPU of no maker".to_owned(),
        memory_bytes: 140 << 30,
        compute_capability: Some((9, 0)),
        driver_version: Some(13_000),
        copy_engines: 3,
        bus: Some(Bus {
            address: format!("0000:{ordinal}b:00.0"),
            current,
            possible: PcieLink::new(32.0, 16),
            bottleneck: None,
            node: Some(ordinal),
            near_cores: Some(format!("{}-{}", ordinal * 16, ordinal * 16 + 15)),
        }),
        copies: vec![
            copies(Memory::Pinned, Way::ToDevice, best, 80e3),
            copies(Memory::Pinned, Way::Back, best * 0.98, 85e3),
            copies(Memory::Pinned, Way::Both, best * 1.7, 150e3),
            copies(Memory::Pageable, Way::ToDevice, best * 0.2, 20e3),
            copies(Memory::Pageable, Way::Back, best * 0.3, 20e3),
            copies(Memory::Staged, Way::ToDevice, best * 0.85, 700e3),
            copies(Memory::Staged, Way::Back, best * 0.9, 700e3),
        ],
        link_share: current.map(|link| best / link.gb_s),
        page_locking: vec![PageLocking {
            by: "cuMemHostAlloc",
            bytes: 256 << 20,
            lock_ms_per_gib: figure(260.0),
            unlock_ms_per_gib: Some(figure(90.0)),
            pays_after_copies: Some(5),
        }],
        device_memory: Some(DeviceMemory {
            nominal_gb_s: Some(4917.0),
            copied_gb_s: Some(figure(3900.0)),
        }),
        problems: Vec::new(),
    }
}

fn host() -> Host {
    let node = |number: usize| Node {
        number,
        cores: format!("{}-{}", number * 16, number * 16 + 15),
        memory_bytes: Some(256 << 30),
    };
    Host {
        usable_cores: 32,
        allowed_cores: Some("0-31".to_owned()),
        memory_bytes: Some(512 << 30),
        load: Some(0.5),
        nodes: vec![node(0), node(1)],
        memlock: Memlock::Bytes(8 << 20),
        container: Container {
            cpus: None,
            memory_bytes: Some(128 << 30),
        },
    }
}

pub fn two_gpus() -> Report {
    let ways = [(Way::ToDevice, 55.0), (Way::Back, 54.0), (Way::Both, 93.0)];
    let ways = ways.map(|(way, rate)| TogetherWay {
        way,
        devices: vec![
            TogetherDevice {
                id: "cuda:0".to_owned(),
                alone_gb_s: rate,
                gb_s: figure(rate * 0.9),
            },
            TogetherDevice {
                id: "cuda:1".to_owned(),
                alone_gb_s: rate / 2.0,
                gb_s: figure(rate * 0.48),
            },
        ],
        sum_gb_s: figure(rate * 1.38),
        sum_alone_gb_s: rate * 1.5,
    });
    let memcpy = [
        (1, 12.0),
        (2, 23.0),
        (4, 42.0),
        (8, 68.0),
        (16, 90.0),
        (32, 94.0),
    ];
    let mut report = Report {
        version: "0.0.0",
        quick: false,
        seconds: 21.0,
        host: host(),
        problems: Vec::new(),
        devices: vec![gpu(0, 32.0, 55.2), gpu(1, 16.0, 26.0)],
        together: Some(Together {
            bytes: 64 << 20,
            ways: ways.into(),
        }),
        memcpy: Memcpy {
            bytes_per_thread: 32 << 20,
            points: memcpy
                .map(|(threads, rate)| ThreadsPoint {
                    threads,
                    gb_s: figure(rate),
                })
                .into(),
        },
        decode: Decode {
            side: 224,
            mean_file_bytes: 110_000,
            mean_pixels: 187_500,
            cpu: [(1, 480.0), (32, 11_000.0)]
                .map(|(threads, rate)| DecodePoint {
                    threads,
                    images_s: figure(rate),
                })
                .into(),
            gpu: GpuDecode::Measured {
                images_s: figure(20_000.0),
                by_kernels: false,
            },
        },
        advice: Vec::new(),
    };
    report.advice = advice::derive(&report, crate::Language::Rust);
    report
}

pub fn cpu_only() -> Report {
    let mut cpu = gpu(0, 32.0, 9.0);
    cpu.id = "cpu".to_owned();
    cpu.is_cpu = true;
    (cpu.bus, cpu.compute_capability, cpu.driver_version) = (None, None, None);
    (cpu.device_memory, cpu.link_share) = (None, None);
    cpu.copies.retain(|copies| copies.memory != Memory::Staged);
    let mut report = Report {
        devices: vec![cpu],
        together: None,
        problems: vec!["no CUDA driver was found".to_owned()],
        ..two_gpus()
    };
    report.host.nodes.truncate(1);
    report.decode.gpu = GpuDecode::NotMeasured {
        why: "there is no GPU".to_owned(),
    };
    report.advice = advice::derive(&report, crate::Language::Rust);
    report
}
