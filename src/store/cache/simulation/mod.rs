//! The cache on a file system that is simulated, by a seed: processes die at each operation on a file, writes are partial, the disk is
//! full, and power is lost.
//!
//! Each process is a thread that runs the cache as it is. One of them goes on at a time, and at each operation the seed says which: so a
//! run depends on its seed alone. A test says which seeds it takes; with `PINFEED_SECONDS` it goes on with new ones, from `PINFEED_SEED`
//! on, for so long:
//!
//! ```text
//! cargo test --lib store::cache::simulation -- --nocapture
//! PINFEED_SECONDS=60 PINFEED_SEED=$RANDOM cargo test --lib store::cache::simulation -- --nocapture
//! ```

mod holding;
mod objects;
mod policy;
mod processes;
mod resumed;
mod world;

use std::time::Duration;

use self::objects::Objects;
use self::world::{SimulatedFiles, World};
use super::reading::Cache;
use crate::store::Store;
use crate::sync::{Arc, Instant};

/// Small pages, so that there are many. (A page's file is longer by its header.)
const PAGE: u64 = 64;
const PAGE_FILE: u64 = PAGE + super::page::HEADER as u64;

/// Numbers that follow from a seed: splitmix64.
#[derive(Debug, Clone)]
struct Draws(u64);

impl Draws {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end.max(1)
    }

    /// Once in so many times.
    fn once_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }
}

/// Calls `run` with the seeds of the gate, or with new ones.
fn each_seed(gate: std::ops::Range<u64>, mut run: impl FnMut(u64)) -> u64 {
    let number = |name| std::env::var(name).ok()?.parse::<u64>().ok();
    let Some(seconds) = number("PINFEED_SECONDS") else {
        gate.clone().for_each(run);
        return gate.end - gate.start;
    };
    let (began, mut seeds) = (Instant::now(), 0);
    let first = number("PINFEED_SEED").unwrap_or(1_000);
    while seeds == 0 || began.elapsed() < Duration::from_secs(seconds) {
        run(first + seeds);
        seeds += 1;
    }
    println!("seeds {first} to {}", first + seeds - 1);
    seeds
}

/// A process of a simulated machine opens its cache.
fn cache(
    world: &Arc<World>,
    process: usize,
    objects: &Arc<Objects>,
    pages: u64,
) -> Cache<SimulatedFiles> {
    let files = SimulatedFiles::new(world, process);
    let store: Arc<dyn Store> = Arc::new(objects.of_process(world, process));
    Cache::new(files, store, PAGE, pages * PAGE_FILE)
}
