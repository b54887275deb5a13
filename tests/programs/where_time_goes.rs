//! Where did the time go? What an epoch's statistics say, one by one, as a program logs them.

use std::error::Error;
use std::thread::sleep;
use std::time::Duration;

use pinfeed::loader::{Limit, Stats};
use pinfeed::{DataLoader, Device, from_fn};

/// The share of the workers' time that each of their stages took.
fn shares(stats: &Stats) -> Vec<(&'static str, f64)> {
    let stages = [
        ("sampling", stats.sampling),
        ("loading", stats.loading.total),
        ("decoding", stats.decoding.total),
        ("collating", stats.collating.total),
        ("pinning", stats.pinning),
    ];
    let all: Duration = stages.iter().map(|(_, time)| time).sum();
    stages.map(|(name, time)| (name, time.div_duration_f64(all))).into()
}

/// How many of the batches that were made are in page-locked memory.
fn pinned_share(stats: &Stats) -> f64 {
    1.0 - stats.unpinned.count as f64 / stats.made.batches as f64
}

pub fn main() -> Result<(), Box<dyn Error>> {
    let device = Device::available();
    let samples = from_fn(120, |index, _| {
        sleep(Duration::from_millis(if index % 40 == 0 { 20 } else { 1 })); // a few files are far away
        Ok([index as f32; 16_384])
    });
    let loader = DataLoader::builder(samples).batch_size(10).num_workers(2).pin_memory(&device).build()?;
    let mut epoch = loader.epoch(0).prefetch_to_device(&device, 2);
    for batch in epoch.by_ref() {
        batch?.synchronize()?; // the training step
    }
    let stats = epoch.stats();

    println!("{:.2?}, of which the loop waited for {:.2?}", stats.wall_time(), stats.consumer_wait.total);
    println!("starting took {:.2?}; since then it starved {:.0} % of the time", stats.first_wait.total, 100.0 * stats.starvation());
    for (stage, share) in shares(&stats) {
        println!("{stage}: {:.1} % of the workers' time", 100.0 * share);
    }
    let sample = &stats.loading.each;
    println!("most samples load in {:.1?}, one in a hundred takes {:.1?}", sample.p50(), sample.p99());
    println!("{:.0} % of the batches were pinned", 100.0 * pinned_share(&stats));
    if stats.unpinned.over_budget > 0 {
        println!("the budget was too small for one of {} bytes", stats.unpinned.over_budget_bytes);
    }
    let transfers = &stats.transfers;
    println!("{} MB in {} copies: {:.1} GB/s", transfers.bytes / 1_000_000, transfers.count, transfers.bytes_per_second() / 1e9);

    assert_eq!((stats.epochs, stats.batches, stats.made.batches), (1, 12, 12));
    assert!(stats.first_wait.total <= stats.consumer_wait.total && stats.consumer_wait.total <= stats.wall_time());
    assert_eq!(stats.consumer_wait.total + stats.step - stats.parallel, stats.wall_time());
    assert!(shares(&stats)[1].1 > 0.5 && stats.limit() == Limit::Loading, "{stats}");
    assert!(sample.p50() < sample.p99() && sample.p99() >= Duration::from_millis(18));
    assert_eq!(pinned_share(&stats), 1.0);
    assert_eq!(transfers.bytes, 120 * 16_384 * 4);
    let seconds = transfers.total.as_secs_f64();
    assert_eq!(transfers.bytes_per_second(), transfers.bytes as f64 / seconds);
    Ok(())
}
