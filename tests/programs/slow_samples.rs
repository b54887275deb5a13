//! A warning if few samples are much slower than the others, for then more workers would not help as much as more batches ahead.

use std::error::Error;
use std::thread::sleep;
use std::time::Duration;

use pinfeed::loader::Stats;
use pinfeed::{DataLoader, from_fn};

fn advice(stats: &Stats) -> Option<String> {
    let times = &stats.loading.each;
    let (usual, slow) = (times.p50(), times.p99());
    (slow > 10 * usual).then(|| format!("one sample in a hundred takes {slow:.0?}, and half of them {usual:.0?}: raise prefetch"))
}

pub fn main() -> Result<(), Box<dyn Error>> {
    let run = |slow: u64| -> Result<Stats, Box<dyn Error>> {
        let samples = from_fn(100, move |index, _| {
            sleep(Duration::from_micros(if index % 25 == 7 { slow } else { 50 }));
            Ok(index as i64)
        });
        let loader = DataLoader::builder(samples).batch_size(20).num_workers(2).build()?;
        let mut epoch = loader.epoch(0);
        epoch.by_ref().try_for_each(|batch| batch.map(drop))?;
        Ok(epoch.stats())
    };
    let advice = advice(&run(100_000)?).ok_or("the slow ones were not noticed")?;
    println!("{advice}");
    assert!(advice.ends_with("raise prefetch"));
    Ok(())
}
