//! Copies within the host's memory, by one thread and by more. This bounds every loader that copies samples into batches.

use std::hint::black_box;
use std::sync::Barrier;
use std::thread;
use std::time::Instant;

use crate::Result;
use crate::effort::{Effort, figure};
use crate::report::{Memcpy, ThreadsPoint};

/// What each thread copies: more than its share of the caches, where memory has room.
const BYTES: usize = 32 << 20;

pub fn measure(effort: &Effort, cores: usize, usable_bytes: Option<u64>) -> Result<Memcpy> {
    // A source and a target for each thread, in a quarter of the memory.
    let share = usable_bytes.map_or(usize::MAX, |bytes| bytes as usize / 4 / (2 * cores));
    let bytes = BYTES.min(share).max(1 << 20);
    let points = steps(cores).into_iter().map(|threads| {
        Ok(ThreadsPoint {
            threads,
            gb_s: by_threads(effort, threads, bytes)?,
        })
    });
    Ok(Memcpy {
        bytes_per_thread: bytes,
        points: points.collect::<Result<_>>()?,
    })
}

/// 1, 2, 4 and so on, and all cores.
pub fn steps(cores: usize) -> Vec<usize> {
    let powers = (0..).map(|power| 1 << power);
    let mut steps: Vec<usize> = powers.take_while(|threads| *threads < cores).collect();
    steps.push(cores.max(1));
    steps
}

fn by_threads(effort: &Effort, threads: usize, bytes: usize) -> Result<crate::report::Figure> {
    let begins = Barrier::new(threads);
    // The rates of one thread, round by round; in each, all threads begin at once.
    let copy = || -> Vec<f64> {
        let (source, mut target) = (vec![1u8; bytes], vec![2u8; bytes]);
        let round = |_| {
            begins.wait();
            let (mut copied, begun) = (0u64, Instant::now());
            while copied == 0 || begun.elapsed() < effort.window / 2 {
                target.copy_from_slice(black_box(&source));
                black_box(&mut target);
                copied += bytes as u64;
            }
            copied as f64 / begun.elapsed().as_secs_f64() / 1e9
        };
        (0..effort.windows).map(round).collect()
    };
    let rates: Vec<Vec<f64>> = thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(copy)).collect();
        let joined = threads.into_iter().map(|thread| thread.join());
        joined
            .collect::<Result<_, _>>()
            .map_err(|_| "a copying thread panicked")
    })?;
    let sums = (0..effort.windows).map(|round| rates.iter().map(|rates| rates[round]).sum());
    figure(sums.collect()).ok_or_else(|| "nothing was measured".into())
}

#[cfg(test)]
mod tests {
    use super::steps;

    #[test]
    fn threads_double_up_to_all_cores() {
        assert_eq!(steps(0), [1]);
        assert_eq!(steps(1), [1]);
        assert_eq!(steps(6), [1, 2, 4, 6]);
        assert_eq!(steps(8), [1, 2, 4, 8]);
    }
}
