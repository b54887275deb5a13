//! A line of a log for each epoch: how long it took, what the loop waited for, and how slow single samples are.

use std::error::Error;
use std::fmt::Write;
use std::thread::sleep;
use std::time::Duration;

use pinfeed::{DataLoader, from_fn};

pub fn main() -> Result<(), Box<dyn Error>> {
    let samples = from_fn(60, |index, _| {
        sleep(Duration::from_micros(if index % 20 == 0 { 2_000 } else { 100 }));
        Ok(index as f32)
    });
    let loader = DataLoader::builder(samples)
        .batch_size(10)
        .shuffle(true)
        .num_workers(2)
        .build()?;

    let mut log = String::from("epoch,seconds,starvation,sample p50 us,sample p99 us,batches ready\n");
    for mut epoch in loader.epochs(0..3) {
        for batch in epoch.by_ref() {
            batch?;
        }
        let stats = epoch.stats();
        let seconds = stats.wall_time().as_secs_f64();
        let (sample, ready) = (&stats.loading.each, stats.ready_batches.mean());
        writeln!(
            log,
            "{},{seconds:.3},{:.3},{},{},{ready:.1}",
            stats.epoch,
            stats.starvation(),
            sample.p50().as_micros(),
            sample.p99().as_micros(),
        )?;
        assert_eq!((stats.batches, stats.samples), (6, 60));
        assert!(sample.p99() >= Duration::from_micros(1_900)); // one in twenty takes two milliseconds
    }
    print!("{log}");
    assert_eq!(log.lines().count(), 4);

    let total = loader.total_stats();
    println!("{total}");
    assert_eq!((total.epochs, total.samples), (3, 180));
    Ok(())
}
