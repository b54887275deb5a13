//! The program's own loop has the first core that the process may use for itself; workers have the others, if there are any.

use std::error::Error;
use std::fs;

use pinfeed::loader::{Affinity, Workers};
use pinfeed::{DataLoader, from_fn};

/// The cores that the process may use, as Linux lists them (`0-3,8`); empty elsewhere.
fn cores() -> Result<Vec<usize>, Box<dyn Error>> {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    let mut cores = Vec::new();
    for part in line.unwrap_or_default().trim().split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        cores.extend(first.parse::<usize>()?..=last.parse()?);
    }
    Ok(cores)
}

pub fn main() -> Result<(), Box<dyn Error>> {
    let cores = cores()?;
    let affinity = match cores.as_slice() {
        [_own, others @ ..] if !others.is_empty() => Affinity::Cores(others.to_vec()),
        _ => Affinity::Anywhere,
    };
    let loader = DataLoader::builder(from_fn(300, |index, _| Ok(index as i64)))
        .batch_size(10)
        .num_workers(Workers::Auto)
        .affinity(affinity.clone())
        .build()?;
    println!("workers run on {}", loader.placement());
    let mut sum = 0;
    for batch in loader.epoch(0) {
        sum += batch?.as_slice().iter().sum::<i64>();
    }
    assert_eq!(sum, 299 * 150);
    if let Affinity::Cores(others) = affinity {
        assert_eq!(loader.placement().cores, Some(others.clone()));
        assert!(loader.stats().workers <= others.len());
    }
    Ok(())
}
