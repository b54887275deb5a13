//! The library's own threads for large copies in memory. They are private to the device; rayon's global pool is never
//! used.

use std::time::Duration;

use crate::memory::copy_streaming;
use crate::sync::{
    Arc, AtomicUsize, Condvar, Instant, Mutex, OnceLock, Ordering, ThreadPool, ThreadPoolBuilder,
    spin_loop,
};
use crate::system::PAGE_BYTES;
use crate::tuning::{
    COPY_SPIN_MS, COPY_THREADS, PARTS_PER_COPY_THREAD, SPLIT_COPY_BYTES, STREAMED_COPY_BYTES,
};

/// A pool of threads that is created when it is first needed.
#[derive(Default)]
pub(crate) struct Helpers {
    threads: OnceLock<Option<ThreadPool>>,
}

impl Helpers {
    /// Writes zeros to memory that the caller just allocated, on several cores at once, so its pages exist.
    pub(super) fn zero(&self, pointer: *mut u8, bytes: usize) {
        let address = pointer as usize;
        self.split(bytes, move |start, bytes| {
            // SAFETY: the caller allocated the range, and only this call knows of it; the parts do not overlap.
            unsafe { std::ptr::write_bytes((address + start) as *mut u8, 0, bytes) };
        });
    }

    /// Copies bytes with several threads and non-temporal stores, where that pays.
    pub(crate) fn copy<T: Copy + Sync>(&self, from: &[T], to: &mut [T]) {
        assert_eq!(from.len(), to.len(), "source and target are of one length");
        let (source, target) = (from.as_ptr() as usize, to.as_mut_ptr() as usize);
        let around_the_cache = size_of_val(from) >= STREAMED_COPY_BYTES;
        self.split(size_of_val(from), move |start, bytes| {
            let (from, to) = ((source + start) as *const u8, (target + start) as *mut u8);
            // SAFETY: both ranges are borrowed for this call and equally long, and the parts do not overlap.
            unsafe {
                if around_the_cache {
                    copy_streaming(from, to, bytes);
                } else {
                    std::ptr::copy_nonoverlapping(from, to, bytes);
                }
            };
        });
    }

    /// Calls `work` on parts (start, length) of `bytes`, on several threads if there is enough work, and returns when all
    /// of them are done.
    fn split(&self, bytes: usize, work: impl Fn(usize, usize) + Send + Sync + 'static) {
        if bytes < SPLIT_COPY_BYTES {
            return work(0, bytes);
        }
        let part = bytes
            .div_ceil(COPY_THREADS * PARTS_PER_COPY_THREAD)
            .next_multiple_of(PAGE_BYTES);
        let next = AtomicUsize::new(0);
        self.together(COPY_THREADS, move || {
            loop {
                let start = next.fetch_add(part, Ordering::Relaxed);
                if start >= bytes {
                    break;
                }
                work(start, part.min(bytes - start));
            }
        });
    }

    /// Has up to `threads` threads call `work` at the same time, the caller among them, and returns when none of them is
    /// inside it any more. So `work` must take its share from something that the callers have in common, until nothing is
    /// left.
    ///
    /// A pool thread that is busy elsewhere until then never calls it and is not waited for: the caller alone is enough.
    /// So a copy in memory never waits for other work that waits for a device.
    ///
    /// This is not rayon's `scope`: while it waits, a thread of the program's own rayon pool would run other tasks of the
    /// program, in the middle of its caller and under its caller's locks. Here the caller does its own share, and then
    /// sleeps.
    pub(super) fn together<W: Fn() + Send + Sync + 'static>(&self, threads: usize, work: W) {
        let work = Arc::new(work);
        let crew = Arc::new(Crew {
            state: Mutex::new(CrewState {
                work: Some(Arc::clone(&work)),
                working: 0,
            }),
            last_left: Condvar::new(),
        });
        let others = threads.saturating_sub(1);
        if others > 0
            && let Some(pool) = self.pool()
        {
            for _ in 0..others.min(pool.current_num_threads()) {
                let crew = Arc::clone(&crew);
                pool.spawn(move || crew.join());
            }
        }
        let _closed_in_the_end = Closing(&crew);
        work();
    }

    /// `None` if the system refuses threads: then the caller does all of the work.
    fn pool(&self) -> Option<&ThreadPool> {
        let make = || {
            let threads = std::thread::available_parallelism()
                .map_or(1, usize::from)
                .min(COPY_THREADS);
            let named = |index| format!("pinfeed-helper-{index}");
            ThreadPoolBuilder::new()
                .num_threads(threads)
                .thread_name(named)
                .build()
                .ok()
        };
        self.threads.get_or_init(make).as_ref()
    }
}

/// The threads that work together on one call.
struct Crew<W> {
    state: Mutex<CrewState<W>>,
    last_left: Condvar,
}

struct CrewState<W> {
    /// Taken away when the caller is done, so a late thread finds nothing to hold.
    work: Option<Arc<W>>,
    working: usize,
}

impl<W: Fn()> Crew<W> {
    fn join(&self) {
        let work = {
            let mut state = self.state.lock();
            let Some(work) = state.work.clone() else {
                return;
            };
            state.working += 1;
            work
        };
        work();
        drop(work); // before the caller is told, so that no helper holds what the work uses any more
        let mut state = self.state.lock();
        state.working -= 1;
        if state.working == 0 {
            self.last_left.notify_all();
        }
    }
}

impl<W> Crew<W> {
    /// Lets no more threads in, and waits for those that are.
    fn close(&self) {
        let work = self.state.lock().work.take();
        drop(work);
        let start = Instant::now();
        while start.elapsed() < Duration::from_millis(COPY_SPIN_MS) {
            if self.state.lock().working == 0 {
                return;
            }
            (0..100).for_each(|_| spin_loop());
        }
        let mut state = self.state.lock();
        while state.working > 0 {
            self.last_left.wait(&mut state);
        }
    }
}

/// Closes the crew in any case: the other threads work on what the caller borrowed.
struct Closing<'a, W>(&'a Crew<W>);

impl<W> Drop for Closing<'_, W> {
    fn drop(&mut self) {
        self.0.close();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn copied(helpers: &Helpers, bytes: usize) {
        let from: Vec<u8> = (0..bytes).map(|at| (at ^ at >> 9) as u8).collect();
        let mut to = vec![0; bytes];
        helpers.copy(&from, &mut to);
        assert!(from == to, "{bytes} bytes");
    }

    #[test]
    fn every_byte_is_copied() {
        let helpers = Helpers::default();
        for bytes in [0, 1, STREAMED_COPY_BYTES + 1, SPLIT_COPY_BYTES, 9_876_543] {
            copied(&helpers, bytes);
        }
    }

    #[test]
    fn threads_that_are_busy_elsewhere_are_not_waited_for() {
        let helpers = Helpers::default();
        let (busy, until) = crossbeam_channel::bounded::<()>(0);
        for _ in 0..COPY_THREADS {
            let until = until.clone();
            helpers.pool().unwrap().spawn(move || {
                let _ = until.recv();
            });
        }
        copied(&helpers, 9_876_543);
        drop(busy);
        copied(&helpers, 9_876_543);
    }

    #[test]
    fn nobody_is_at_work_when_the_caller_goes_on() {
        let helpers = Helpers::default();
        for threads in (0..200).map(|round| round % 6) {
            let shared = Arc::new((AtomicUsize::new(0), AtomicUsize::new(0)));
            let in_work = Arc::clone(&shared);
            helpers.together(threads, move || {
                let (inside, calls) = &*in_work;
                inside.fetch_add(1, Ordering::Relaxed);
                calls.fetch_add(1, Ordering::Relaxed);
                (0..1000).for_each(|_| spin_loop());
                inside.fetch_sub(1, Ordering::Relaxed);
            });
            let (inside, calls) = Arc::into_inner(shared).expect("nobody holds the work any more");
            assert_eq!(inside.into_inner(), 0);
            assert!((1..=threads.max(1)).contains(&calls.into_inner()));
        }
    }
}
