//! Work on several threads: as many as wait for a disk or a network, of which as many decode as there are cores, within a number of bytes.

use std::panic::resume_unwind;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use pinfeed::BoxError;

/// How many files are looked at at once: more than there are cores, because it waits for a disk or a network.
pub(crate) const AT_ONCE: usize = 16;

/// What row groups, or parts of them, may take together that are read and decoded at once. One that is larger is alone.
pub(crate) const AT_ONCE_BYTES: u64 = 1 << 30;

/// Does something to all, several at once, and returns the results in their order, or the first error in that order that came.
pub(crate) fn in_parallel<I: Sync, T: Send>(
    items: &[I],
    make: impl Fn(&I) -> Result<T, BoxError> + Sync,
) -> Result<Vec<T>, BoxError> {
    within(items, AT_ONCE, u64::MAX, |_| 0, make)
}

/// Reads and decodes all: at most so many bytes of them at once, or one. `make` is given what says when it may decode.
pub(crate) fn decode_in_parallel<I: Sync, T: Send>(
    items: &[I],
    bytes_of: impl Fn(&I) -> u64 + Sync,
    make: impl Fn(&I, &Cores) -> Result<T, BoxError> + Sync,
) -> Result<Vec<T>, BoxError> {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let free = Cores::new(cores);
    let threads = cores.max(AT_ONCE);
    within(items, threads, AT_ONCE_BYTES, bytes_of, |item| {
        make(item, &free)
    })
}

/// What is begun, and what that takes.
#[derive(Default)]
struct Begun {
    next: usize,
    bytes: u64,
    failed: bool,
}

/// Gives back what an item takes, also if it panics.
struct Taken<'a> {
    begun: &'a Mutex<Begun>,
    room: &'a Condvar,
    bytes: u64,
    failed: bool,
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        let mut begun = lock(self.begun);
        begun.bytes -= self.bytes;
        begun.failed |= self.failed;
        drop(begun);
        self.room.notify_all();
    }
}

fn within<I: Sync, T: Send>(
    items: &[I],
    threads: usize,
    max_bytes: u64,
    bytes_of: impl Fn(&I) -> u64 + Sync,
    make: impl Fn(&I) -> Result<T, BoxError> + Sync,
) -> Result<Vec<T>, BoxError> {
    let (begun, room) = (Mutex::new(Begun::default()), Condvar::new());
    let results: Vec<Mutex<Option<Result<T, BoxError>>>> =
        items.iter().map(|_| Mutex::new(None)).collect();
    let take = || {
        let mut now = lock(&begun);
        loop {
            let at = now.next;
            let item = items.get(at).filter(|_| !now.failed)?;
            let bytes = bytes_of(item).min(max_bytes);
            if now.bytes == 0 || now.bytes.saturating_add(bytes) <= max_bytes {
                (now.next, now.bytes) = (at + 1, now.bytes + bytes);
                let taken = Taken {
                    begun: &begun,
                    room: &room,
                    bytes,
                    failed: true,
                };
                return Some((at, item, taken));
            }
            now = room.wait(now).unwrap_or_else(PoisonError::into_inner);
        }
    };
    let work = || {
        while let Some((at, item, mut taken)) = take() {
            let made = make(item);
            taken.failed = made.is_err();
            drop(taken);
            *lock(&results[at]) = Some(made);
        }
    };
    thread::scope(|scope| {
        let others = (1..threads.min(items.len())).map_while(|at| {
            // (Where there can be no more threads, those there are do it.)
            let named = thread::Builder::new().name(format!("pinfeed-parquet-{at}"));
            named.spawn_scoped(scope, work).ok()
        });
        let others: Vec<_> = others.collect();
        work();
        for other in others {
            if let Err(panic) = other.join() {
                resume_unwind(panic);
            }
        }
    });
    // (One that was not looked at comes behind one that failed, which ends the collection; or none failed.)
    let made = results
        .into_iter()
        .filter_map(|result| result.into_inner().unwrap_or_else(PoisonError::into_inner));
    made.collect()
}

/// So many threads decode at a time; more of them read.
pub(crate) struct Cores {
    free: Mutex<usize>,
    freed: Condvar,
}

impl Cores {
    fn new(cores: usize) -> Cores {
        Cores {
            free: Mutex::new(cores),
            freed: Condvar::new(),
        }
    }

    /// Waits for a core. It is given back when what is returned is dropped.
    pub(crate) fn take(&self) -> Core<'_> {
        let mut free = lock(&self.free);
        while *free == 0 {
            free = self
                .freed
                .wait(free)
                .unwrap_or_else(PoisonError::into_inner);
        }
        *free -= 1;
        Core(self)
    }
}

/// A core that a thread decodes on.
pub(crate) struct Core<'a>(&'a Cores);

impl Drop for Core<'_> {
    fn drop(&mut self) {
        *lock(&self.0.free) += 1;
        self.0.freed.notify_one();
    }
}

/// (What a lock guards here is whole at any time.)
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    /// The most that was held of these, in bytes and in number.
    fn most(sizes: &[u64], max_bytes: u64, threads: usize) -> (u64, u64) {
        let (bytes, count) = (AtomicU64::new(0), AtomicU64::new(0));
        let (most_bytes, most_count) = (AtomicU64::new(0), AtomicU64::new(0));
        let made = within(
            sizes,
            threads,
            max_bytes,
            |size| *size,
            |size| {
                let now = bytes.fetch_add(*size, Ordering::SeqCst) + size;
                most_bytes.fetch_max(now, Ordering::SeqCst);
                let now = count.fetch_add(1, Ordering::SeqCst) + 1;
                most_count.fetch_max(now, Ordering::SeqCst);
                thread::yield_now();
                count.fetch_sub(1, Ordering::SeqCst);
                bytes.fetch_sub(*size, Ordering::SeqCst);
                Ok(*size)
            },
        );
        assert_eq!(made.ok().as_deref(), Some(sizes));
        (most_bytes.into_inner(), most_count.into_inner())
    }

    #[test]
    fn what_is_held_is_bounded() {
        let sizes: Vec<u64> = (0..400).map(|at| 1 + at % 7).collect();
        let (bytes, count) = most(&sizes, 10, 16);
        assert!(bytes <= 10 && count <= 10, "{bytes} {count}");
        // One that is larger than the bound is alone.
        let (bytes, count) = most(&[50, 60, 40], 10, 16);
        assert_eq!((bytes, count), (60, 1));
    }

    #[test]
    fn a_failure_or_a_panic_wakes_those_that_wait() {
        let sizes = [6u64; 40];
        let of = |panics: bool| {
            within(
                &sizes,
                8,
                10,
                |size| *size,
                |_| -> Result<(), BoxError> {
                    match panics {
                        true => resume_unwind(Box::new("provoked")),
                        false => Err("no".into()),
                    }
                },
            )
        };
        assert!(of(false).is_err());
        assert!(std::panic::catch_unwind(|| of(true).map(|_| ())).is_err());
    }

    #[test]
    fn as_many_decode_as_there_are_cores() {
        let cores = Cores::new(2);
        let (now, most) = (AtomicU64::new(0), AtomicU64::new(0));
        let made = in_parallel(&[(); 64], |()| {
            let _core = cores.take();
            most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            thread::yield_now();
            now.fetch_sub(1, Ordering::SeqCst);
            Ok(())
        });
        assert!(made.is_ok() && most.into_inner() <= 2);
        assert_eq!(*lock(&cores.free), 2);
    }
}
