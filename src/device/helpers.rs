//! Threads of our own for large pieces of work on memory: private to the device, never rayon's global pool.

use crate::memory::copy_streaming;
use crate::sync::OnceLock;
use crate::system::PAGE_BYTES;

/// A pool of threads that is made when it is first needed.
#[derive(Default)]
pub(crate) struct Helpers {
    threads: OnceLock<Option<rayon::ThreadPool>>,
}

/// Below this, handing over costs more than it gains.
const WORTH_SPLITTING: usize = 4 << 20;

/// What is smaller stays in the cache, where its reader finds it.
const WORTH_STREAMING: usize = 1 << 20;

/// More threads do not copy faster: 8 reach 50 GB/s where one reaches 12.7.
const MOST_THREADS: usize = 8;

impl Helpers {
    /// Writes zeros to memory that the caller just allocated: its pages come into being on several cores at once.
    pub(super) fn zero(&self, pointer: *mut u8, bytes: usize) {
        let address = pointer as usize;
        self.split(bytes, move |start, bytes| {
            // SAFETY: the caller allocated the range, and only this call knows of it; the parts do not overlap.
            unsafe { std::ptr::write_bytes((address + start) as *mut u8, 0, bytes) };
        });
    }

    /// Copies bytes, by several threads and around the cache where that pays.
    pub(crate) fn copy<T: Copy + Sync>(&self, from: &[T], to: &mut [T]) {
        assert_eq!(from.len(), to.len(), "source and target are of one length");
        let (source, target) = (from.as_ptr() as usize, to.as_mut_ptr() as usize);
        self.split(size_of_val(from), move |start, bytes| {
            // SAFETY: both ranges are borrowed for this call, as long as each other, and the parts do not overlap.
            unsafe {
                let (from, to) = ((source + start) as *const u8, (target + start) as *mut u8);
                if bytes >= WORTH_STREAMING {
                    copy_streaming(from, to, bytes);
                } else {
                    std::ptr::copy_nonoverlapping(from, to, bytes);
                }
            };
        });
    }

    /// Calls `work` on parts of so many bytes (start, length), at once where there are enough of them, and returns when
    /// all of them are done.
    ///
    /// Not rayon's `scope`: a thread of the program's own rayon pool would run other tasks of the program while it
    /// waits, in the middle of whatever called us and under its locks. It sleeps instead.
    fn split(&self, bytes: usize, work: impl Fn(usize, usize) + Copy + Send + 'static) {
        let pool = if bytes < WORTH_SPLITTING {
            None
        } else {
            self.pool()
        };
        let Some(pool) = pool else {
            return work(0, bytes);
        };
        let part = bytes
            .div_ceil(pool.current_num_threads())
            .next_multiple_of(PAGE_BYTES);
        let (working, done) = crossbeam_channel::bounded::<()>(0);
        for start in (0..bytes).step_by(part) {
            let working = working.clone();
            pool.spawn(move || {
                work(start, part.min(bytes - start));
                drop(working);
            });
        }
        drop(working);
        let _ = done.recv(); // nothing is ever sent: it ends when the last sender is gone
    }

    /// `None` where the system gives no threads: then the caller does the work.
    fn pool(&self) -> Option<&rayon::ThreadPool> {
        let make = || {
            let threads = std::thread::available_parallelism()
                .map_or(1, usize::from)
                .min(MOST_THREADS);
            let named = |index| format!("pinfeed-helper-{index}");
            rayon::ThreadPoolBuilder::new()
                .num_threads(threads)
                .thread_name(named)
                .build()
                .ok()
        };
        self.threads.get_or_init(make).as_ref()
    }
}
