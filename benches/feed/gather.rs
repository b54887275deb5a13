//! The bare loop that a loader is held against: threads gather shuffled rows into a few slabs, and each slab that is full
//! goes on over a link. No samples, no batches, no order, no errors: what the memory and the cores give.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use pinfeed::sampler::{RandomSampler, Sampler};

use crate::Outcome;

/// Which way bytes travel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    ToDevice,
    ToHost,
}

impl Direction {
    pub fn name(self) -> &'static str {
        match self {
            Direction::ToDevice => "h2d",
            Direction::ToHost => "d2h",
        }
    }
}

/// Where full slabs go.
pub trait Link {
    /// Begins to copy a slab, or copies it.
    fn start(&mut self, slab: usize) -> Outcome;

    /// Waits until the slab's copy is over.
    fn finish(&mut self, slab: usize) -> Outcome;

    /// How many copies may be under way while the next slab is waited for.
    fn ahead(&self) -> u64;
}

/// Copies to ordinary memory, as the CPU device does: on one thread.
pub struct Memcpy<'a> {
    slabs: &'a [Slab],
    targets: Vec<Vec<u8>>,
}

impl<'a> Memcpy<'a> {
    pub fn new(slabs: &'a [Slab]) -> Memcpy<'a> {
        Memcpy {
            slabs,
            targets: slabs.iter().map(|slab| vec![1; slab.bytes]).collect(),
        }
    }
}

impl Link for Memcpy<'_> {
    fn start(&mut self, slab: usize) -> Outcome {
        let Slab { base, bytes } = self.slabs[slab];
        // SAFETY: the slab is full, so nobody writes it until `finish`.
        let source = unsafe { std::slice::from_raw_parts(base, bytes) };
        self.targets[slab].copy_from_slice(source);
        std::hint::black_box(&mut self.targets[slab]);
        Ok(())
    }

    fn finish(&mut self, _: usize) -> Outcome {
        Ok(())
    }

    fn ahead(&self) -> u64 {
        0
    }
}

/// A slab's memory. Whoever makes it keeps the memory alive.
#[derive(Clone, Copy)]
pub struct Slab {
    pub base: *mut u8,
    pub bytes: usize,
}

// SAFETY: it is an address; who may write when is the loop's matter.
unsafe impl Send for Slab {}
// SAFETY: as above.
unsafe impl Sync for Slab {}

/// What is gathered.
#[derive(Clone, Copy)]
pub struct Rows<'a> {
    pub bytes: &'a [u8],
    pub row_bytes: usize,
    /// Rows per slab.
    pub batch: usize,
}

struct Shared {
    /// Rows that were claimed, from the first batch on.
    claimed: AtomicU64,
    /// Rows written, of each slab.
    written: Vec<AtomicUsize>,
    /// Batches whose slab is free again.
    freed: Mutex<u64>,
    change: Condvar,
    stop: AtomicBool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, u64> {
        self.freed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until `ready`, which is looked at under the lock; false if the loop stops.
    fn wait(&self, ready: impl Fn(u64) -> bool) -> bool {
        let mut freed = self.lock();
        while !ready(*freed) && !self.stop.load(Ordering::Relaxed) {
            freed = self
                .change
                .wait(freed)
                .unwrap_or_else(PoisonError::into_inner);
        }
        !self.stop.load(Ordering::Relaxed)
    }

    fn stop(&self) {
        let freed = self.lock();
        self.stop.store(true, Ordering::Relaxed);
        self.change.notify_all();
        drop(freed);
    }
}

/// GB/s of gathering by so many threads and sending on the calling thread, for about so long.
pub fn rate(
    rows: Rows<'_>,
    threads: usize,
    duration: Duration,
    slabs: &[Slab],
    link: &mut dyn Link,
) -> Outcome<f64> {
    let shared = Shared {
        claimed: AtomicU64::new(0),
        written: slabs.iter().map(|_| AtomicUsize::new(0)).collect(),
        freed: Mutex::new(0),
        change: Condvar::new(),
        stop: AtomicBool::new(false),
    };
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| gather(rows, slabs, &shared));
        }
        let rate = send(rows, duration, slabs.len() as u64, &shared, link);
        shared.stop();
        rate
    })
}

fn gather(rows: Rows<'_>, slabs: &[Slab], shared: &Shared) {
    let order = RandomSampler::with_seed((rows.bytes.len() / rows.row_bytes) as u64, 1);
    // Several rows at a time, so that claiming costs nothing.
    let run = [8, 4, 2, 1]
        .into_iter()
        .find(|run| rows.batch.is_multiple_of(*run))
        .unwrap_or(1);
    loop {
        let first = shared.claimed.fetch_add(run as u64, Ordering::Relaxed);
        let batch = first / rows.batch as u64;
        let index = (batch % slabs.len() as u64) as usize;
        if !shared.wait(|freed| batch < freed + slabs.len() as u64) {
            return;
        }
        for row in first..first + run as u64 {
            let from = order.index(row / order.len(), row % order.len()) as usize * rows.row_bytes;
            let source = &rows.bytes[from..from + rows.row_bytes];
            let offset = (row % rows.batch as u64) as usize * rows.row_bytes;
            // SAFETY: the row lies in the slab, which holds `rows.batch` of them; it was claimed by this thread alone,
            // and the slab's last copy is over.
            unsafe {
                let target = slabs[index].base.add(offset);
                std::ptr::copy_nonoverlapping(source.as_ptr(), target, rows.row_bytes);
            }
        }
        if shared.written[index].fetch_add(run, Ordering::AcqRel) + run == rows.batch {
            drop(shared.lock());
            shared.change.notify_all();
        }
    }
}

/// Sends slabs as they get full. The clock runs from when each slab was used once.
fn send(
    rows: Rows<'_>,
    duration: Duration,
    slabs: u64,
    shared: &Shared,
    link: &mut dyn Link,
) -> Outcome<f64> {
    let ahead = link.ahead();
    let slab = |batch: u64| (batch % slabs) as usize;
    let mut begun = Instant::now();
    for batch in 0.. {
        let written = &shared.written[slab(batch)];
        shared.wait(|_| written.load(Ordering::Acquire) == rows.batch);
        link.start(slab(batch))?;
        let Some(over) = batch.checked_sub(ahead) else {
            continue;
        };
        link.finish(slab(over))?;
        shared.written[slab(over)].store(0, Ordering::Relaxed);
        *shared.lock() = over + 1;
        shared.change.notify_all();
        if over + 1 == slabs {
            begun = Instant::now();
        } else if over >= slabs && begun.elapsed() >= duration {
            let seconds = begun.elapsed().as_secs_f64();
            for late in over + 1..=batch {
                link.finish(slab(late))?;
            }
            let bytes = (over + 1 - slabs) as f64 * (rows.batch * rows.row_bytes) as f64;
            return Ok(bytes / seconds / 1e9);
        }
    }
    Ok(f64::NAN)
}

/// The two ends of something that runs beside something else.
#[derive(Default)]
pub struct Ends {
    /// It has warmed up.
    pub ready: AtomicBool,
    /// It should come to an end.
    pub stop: AtomicBool,
}

/// GB/s of copying memory to memory by so many threads, for about so long.
pub fn memcpy_rate(bytes: usize, threads: usize, duration: Duration) -> f64 {
    let ends = Ends::default();
    thread::scope(|scope| {
        let copying = scope.spawn(|| memcpy_until(bytes, threads, &ends));
        thread::sleep(duration);
        ends.stop.store(true, Ordering::Relaxed);
        copying.join().unwrap_or(f64::NAN)
    })
}

/// The same, until it is told to stop.
pub fn memcpy_until(bytes: usize, threads: usize, ends: &Ends) -> f64 {
    thread::scope(|scope| {
        let copy = || {
            let (source, mut target) = (vec![1u8; bytes], vec![2u8; bytes]);
            let (mut copies, begun) = (0u64, Instant::now());
            while copies == 0 || !ends.stop.load(Ordering::Relaxed) {
                target.copy_from_slice(&source);
                std::hint::black_box(&mut target);
                copies += 1;
                ends.ready.store(true, Ordering::Relaxed);
            }
            copies as f64 * bytes as f64 / begun.elapsed().as_secs_f64() / 1e9
        };
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(copy)).collect();
        let rates = threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or(f64::NAN));
        rates.sum()
    })
}
