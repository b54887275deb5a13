//! `limits`: what the machine gives, without the library. All other figures are shares of these.
//!
//! On CUDA: copies by size, from and to page-locked memory with one and four of them under way, pageable memory, and both
//! ways at once; what page-locking costs. On any device: memcpy by threads, each between buffers of its own.

use std::time::Duration;

use crate::Outcome;
use crate::args::{Args, cores};
use crate::gather;
use crate::report::{Record, Report};
use crate::target::Target;

/// What each thread copies: more than a core's cache holds.
const MEMCPY_BYTES: usize = 64 << 20;

pub fn run(args: &Args, report: &mut Report) -> Outcome {
    let duration = args.seconds(0.2);
    for &name in &args.devices {
        let target = Target::open(name)?;
        #[cfg(feature = "cuda")]
        if let Some(bare) = &target.bare {
            cuda::copies(args, &target, bare, duration, report)?;
            cuda::page_locking(args, &target, bare, report)?;
        }
        memcpy(args, &target, duration, report);
    }
    Ok(())
}

fn memcpy(args: &Args, target: &Target, duration: Duration, report: &mut Report) {
    let powers = (0..).map(|power| 1 << power);
    let mut threads: Vec<usize> = powers.take_while(|&threads| threads < cores()).collect();
    threads.push(cores());
    for threads in args.workers(&threads) {
        let mut record = Record::new("limits", target.name);
        record.workers = Some(threads);
        record.gb_s = Some(gather::memcpy_rate(MEMCPY_BYTES, threads.max(1), duration));
        let record = record
            .with("variant", "memcpy")
            .with("size_bytes", MEMCPY_BYTES);
        report.print(&record);
    }
}

#[cfg(feature = "cuda")]
mod cuda {
    use std::time::Duration;

    use crate::Outcome;
    use crate::args::Args;
    use crate::bare::Bare;
    use crate::drive::ms;
    use crate::gather::Direction;
    use crate::report::{Record, Report};
    use crate::target::{SLABS, Target};
    use crate::window::median;

    pub fn copies(
        args: &Args,
        target: &Target,
        bare: &Bare,
        duration: Duration,
        report: &mut Report,
    ) -> Outcome {
        let mut print = |bytes: usize, direction: Direction, memory, in_flight: usize, gb_s| {
            let mut record = Record::new("limits", target.name);
            record.gb_s = Some(gb_s);
            let record = record
                .with("variant", memory)
                .with("direction", direction.name())
                .with("in_flight", in_flight)
                .with("size_bytes", bytes);
            report.print(&record);
        };
        let sizes = (0..8).map(|step| (64 << 10) << (2 * step));
        for bytes in sizes.filter(|bytes| *bytes <= args.max_mb << 20) {
            for direction in [Direction::ToDevice, Direction::ToHost] {
                for slots in [1, SLABS] {
                    let rate = bare.pinned_rate(direction, bytes, slots, duration)?;
                    print(bytes, direction, "pinned", slots, rate);
                }
                let rate = bare.pageable_rate(direction, bytes, duration)?;
                print(bytes, direction, "pageable", 1, rate);
            }
            let (to, back) = bare.both_ways(bytes, duration)?;
            print(bytes, Direction::ToDevice, "pinned, both at once", 2, to);
            print(bytes, Direction::ToHost, "pinned, both at once", 2, back);
        }
        Ok(())
    }

    pub fn page_locking(args: &Args, target: &Target, bare: &Bare, report: &mut Report) -> Outcome {
        for bytes in [64 << 20, 1 << 30] {
            if bytes > args.max_mb << 20 {
                continue;
            }
            let mut memory = vec![1u8; bytes];
            for variant in ["register touched memory", "cuMemHostAlloc"] {
                let (mut locking, mut unlocking) = (Vec::new(), Vec::new());
                for _ in 0..3 {
                    let (lock, unlock) = match variant {
                        "cuMemHostAlloc" => bare.host_alloc_time(bytes)?,
                        _ => bare.register_time(&mut memory)?,
                    };
                    locking.push(ms(lock));
                    unlocking.push(ms(unlock));
                }
                let (lock, unlock) = (median(locking), median(unlocking));
                let gigabytes = bytes as f64 / 1e9;
                let record = Record::new("limits", target.name)
                    .with("variant", variant)
                    .with("size_bytes", bytes)
                    .with_number("lock_ms", lock)
                    .with_number("lock_ms_per_gb", lock / gigabytes)
                    .with_number("unlock_ms", unlock);
                report.print(&record);
            }
        }
        Ok(())
    }
}
