//! Calls to the operating system (page-locking, memory sizes, reading ahead), each with a portable fallback.

pub(crate) mod file_lock;
pub(crate) mod numa;
pub(crate) mod room;

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

#[cfg(all(unix, not(miri)))]
use crate::sync::log;

/// A process, as a call from a child that was forked from it finds out: a child has none of its parent's threads, and waiting for
/// one there never ends. (A system that cannot fork, and a child that was not made by the C library's `fork`, are not noticed.)
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Process {
    /// How many forks lie between the process and the first of its forefathers that asked.
    forks: usize,
}

impl Process {
    pub(crate) fn this() -> Process {
        Process {
            forks: forks::count(),
        }
    }

    /// Whether the calling process is this one. It takes as long as a look at a flag.
    pub(crate) fn is_this(self) -> bool {
        self == Process::this()
    }
}

/// The process that used something first, and so has the threads that were started for it. One that was forked from it before that may be
/// the first itself.
#[derive(Debug)]
pub(crate) struct FirstUser(AtomicUsize);

impl FirstUser {
    /// More than there are forks.
    const NOBODY: usize = usize::MAX;

    pub(crate) const fn nobody() -> FirstUser {
        FirstUser(AtomicUsize::new(FirstUser::NOBODY))
    }

    /// The calling process uses it. Returns whether it is the one that does, and no other before.
    pub(crate) fn is_this(&self) -> bool {
        let this = Process::this().forks;
        if self.0.load(Ordering::Relaxed) == FirstUser::NOBODY {
            self.0.store(this, Ordering::Relaxed); // by another thread meanwhile: the same
        }
        self.0.load(Ordering::Relaxed) == this
    }

    /// Whether another process has used it, and this one was forked from that.
    pub(crate) fn is_another(&self) -> bool {
        let first = self.0.load(Ordering::Relaxed);
        first != FirstUser::NOBODY && first != Process::this().forks
    }
}

#[cfg(all(unix, not(miri)))]
mod forks {
    use std::io;
    use std::sync::Once;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::log;

    static FORKS: AtomicUsize = AtomicUsize::new(0);

    extern "C" fn is_child() {
        FORKS.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn count() -> usize {
        static WATCHES: Once = Once::new();
        let mut failed = 0;
        // SAFETY: the function is called as long as its code is there: glibc enters it for the library that has it (by the library's own
        // `__dso_handle`), and takes it out at `dlclose`; musl never unloads a library. It does what may be done in a child of a process
        // with threads: it takes no lock and no memory.
        WATCHES.call_once(|| failed = unsafe { libc::pthread_atfork(None, None, Some(is_child)) });
        if failed != 0 {
            let error = io::Error::from_raw_os_error(failed);
            log::error!(
                "forks of this process will not be noticed: a forked child that uses a loader of its parent's may wait for ever ({error})"
            );
        }
        FORKS.load(Ordering::Relaxed)
    }
}

#[cfg(not(all(unix, not(miri))))]
mod forks {
    pub(super) fn count() -> usize {
        0
    }
}

/// The size of a page. Page-locked memory is rounded up to pages.
pub(crate) const PAGE_BYTES: usize = 4096;

/// The size of a huge page, on systems that have them.
pub(crate) const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Asks for huge pages under untouched memory, which is then faster to touch, to page-lock, and for the device to
/// access. It is only a hint; memory too small for a huge page is left alone.
pub(crate) fn prefer_huge_pages(pointer: *mut u8, bytes: usize) {
    #[cfg(all(target_os = "linux", not(miri)))]
    if bytes >= 2 * HUGE_PAGE_BYTES {
        // From the first whole huge page to the last.
        let start = pointer.align_offset(HUGE_PAGE_BYTES);
        let whole = (bytes - start) / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES;
        // SAFETY: it is only a hint; for pages that are not mapped it returns an error.
        unsafe {
            libc::madvise(
                pointer.wrapping_add(start).cast(),
                whole,
                libc::MADV_HUGEPAGE,
            )
        };
    }
    #[cfg(not(all(target_os = "linux", not(miri))))]
    let _ = (pointer, bytes);
}

/// Asks the system to keep the pages in memory. Returns whether it does.
pub(crate) fn lock_pages(pointer: *mut u8, bytes: usize) -> bool {
    #[cfg(all(unix, not(miri)))]
    {
        // SAFETY: `mlock` reads nothing; for pages that are not mapped it returns an error.
        let result = unsafe { libc::mlock(pointer.cast(), bytes) };
        result == 0
    }
    #[cfg(not(all(unix, not(miri))))]
    {
        let _ = (pointer, bytes);
        false
    }
}

/// Undoes [`lock_pages`]. Does nothing if that did nothing.
pub(crate) fn unlock_pages(pointer: *mut u8, bytes: usize) {
    #[cfg(all(unix, not(miri)))]
    {
        // SAFETY: `munlock` reads nothing; for pages that are not mapped it returns an error.
        unsafe { libc::munlock(pointer.cast(), bytes) };
    }
    #[cfg(not(all(unix, not(miri))))]
    let _ = (pointer, bytes);
}

/// Whether some of the bytes lie in a private mapping that the process must not write: a file mapped that way, or the
/// program's constants.
#[cfg_attr(not(feature = "cuda"), allow(dead_code))]
pub(crate) fn is_private_and_read_only(pointer: *const u8, bytes: usize) -> bool {
    #[cfg(target_os = "linux")]
    {
        let (start, end) = (pointer as usize, pointer as usize + bytes);
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
        maps.lines().any(|line| {
            private_and_read_only(line).is_some_and(|(from, to)| from < end && start < to)
        })
    }
    #[cfg(not(target_os = "linux"))]
    {
        let _ = (pointer, bytes);
        false
    }
}

/// The range of such a mapping, from its line in `/proc/self/maps`; `None` for any other.
#[cfg(target_os = "linux")]
fn private_and_read_only(line: &str) -> Option<(usize, usize)> {
    let mut words = line.split_ascii_whitespace();
    let (range, flags) = (words.next()?, words.next()?);
    let (from, to) = range.split_once('-')?;
    let number = |text| usize::from_str_radix(text, 16).ok();
    let matches = flags.ends_with('p') && !flags.contains('w');
    matches.then_some((number(from)?, number(to)?))
}

/// Asks the system to read the file at `path` into its cache. It is only a hint, and does not wait for the content.
pub(crate) fn read_ahead(path: &std::path::Path) {
    #[cfg(all(target_os = "linux", not(miri)))]
    if let Ok(file) = std::fs::File::open(path) {
        use std::os::fd::AsRawFd;
        // SAFETY: it touches no memory; for a file that it cannot read ahead it returns an error.
        unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_WILLNEED) };
    }
    #[cfg(not(all(target_os = "linux", not(miri))))]
    let _ = path;
}

/// The size of the last-level cache; a common size if the system does not tell.
pub(crate) fn cache_bytes() -> usize {
    static BYTES: OnceLock<usize> = OnceLock::new();
    *BYTES.get_or_init(|| last_cache_bytes().unwrap_or(32 << 20))
}

/// The largest cache that the system lists for the first processor.
#[cfg(target_os = "linux")]
fn last_cache_bytes() -> Option<usize> {
    let caches =
        (0..8).map(|index| format!("/sys/devices/system/cpu/cpu0/cache/index{index}/size"));
    let sizes = caches.filter_map(|path| std::fs::read_to_string(path).ok());
    let bytes = sizes.filter_map(|text| text.trim().strip_suffix('K')?.parse::<usize>().ok());
    bytes.max().map(|kib| kib << 10)
}

#[cfg(not(target_os = "linux"))]
fn last_cache_bytes() -> Option<usize> {
    None
}

/// The memory that this process may use: the machine's, or the control group's limit if that is less.
pub(crate) fn usable_memory_bytes() -> usize {
    static BYTES: OnceLock<usize> = OnceLock::new();
    *BYTES.get_or_init(|| {
        let machine = machine_memory_bytes().unwrap_or(FALLBACK_BYTES);
        group_limit_bytes().map_or(machine, |limit| machine.min(limit))
    })
}

/// How many threads of this process can run at once: the cores that it may run on, or its control groups' quota of them if that is less.
pub(crate) fn usable_cores() -> usize {
    // (It reads the calling thread's affinity, and on Linux the quotas of all groups from the process's own to the root.)
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Lowers the calling thread's priority by so many steps of `nice`, relative to the thread that started it. Elsewhere than on Linux, where
/// `nice` is of whole processes, it does nothing.
pub(crate) fn lower_priority(steps: i32) {
    #[cfg(all(target_os = "linux", not(miri)))]
    // SAFETY: it takes a number. Lowering is always allowed; what fails, leaves the priority as it was.
    unsafe {
        libc::nice(steps);
    }
    #[cfg(not(all(target_os = "linux", not(miri))))]
    let _ = steps;
}

/// How many more threads with stacks of this size the process can start, given its limits on address space and
/// mappings. The thread that uses up the last of either may start and then abort the process, because it gets no signal
/// stack.
pub(crate) fn most_threads(stack_bytes: usize) -> usize {
    let by_addresses = free_address_bytes().map(|bytes| bytes / (stack_bytes + THREAD_EXTRA_BYTES));
    let by_mappings = free_mappings().map(|mappings| mappings / THREAD_MAPPINGS);
    [by_addresses, by_mappings]
        .into_iter()
        .flatten()
        .fold(usize::MAX, usize::min)
}

/// Whether the process can map a stack of this size, and what its thread maps when it runs. An estimate
/// ([`most_threads`]) does not tell what the allocator maps for other threads meanwhile.
///
/// # Errors
///
/// If it cannot.
#[cfg(all(target_os = "linux", not(miri)))]
pub(crate) fn has_room_for_thread(stack_bytes: usize) -> std::io::Result<()> {
    let bytes = stack_bytes + STARTING_THREADS_BYTES;
    let (access, flags) = (libc::PROT_NONE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: it maps new addresses, which nothing can access.
    let room = unsafe { libc::mmap(std::ptr::null_mut(), bytes, access, flags, -1, 0) };
    if room == libc::MAP_FAILED {
        return Err(std::io::Error::last_os_error());
    }
    // SAFETY: the mapping was made above, and nothing refers to it.
    unsafe { libc::munmap(room, bytes) };
    Ok(())
}

#[cfg(not(all(target_os = "linux", not(miri))))]
pub(crate) fn has_room_for_thread(_: usize) -> std::io::Result<()> {
    Ok(()) // (elsewhere, few limit their addresses)
}

/// What threads that were started just now may map yet.
#[cfg(all(target_os = "linux", not(miri)))]
const STARTING_THREADS_BYTES: usize = 8 << 20;

/// What a thread maps besides its stack: the signal stack, and the allocator's arena.
const THREAD_EXTRA_BYTES: usize = 1 << 20;

/// The stack, the signal stack, their guard pages, and the allocator's arena.
const THREAD_MAPPINGS: usize = 6;

/// How many more bytes of address space the process may map; `None` if there is no limit.
#[cfg(all(target_os = "linux", not(miri)))]
fn free_address_bytes() -> Option<usize> {
    let mut limit = libc::rlimit {
        rlim_cur: libc::RLIM_INFINITY,
        rlim_max: libc::RLIM_INFINITY,
    };
    // SAFETY: it writes the given structure.
    let result = unsafe { libc::getrlimit(libc::RLIMIT_AS, &mut limit) };
    if result != 0 || limit.rlim_cur == libc::RLIM_INFINITY {
        return None;
    }
    let text = std::fs::read_to_string("/proc/self/statm").ok()?;
    let pages: usize = text.split_ascii_whitespace().next()?.parse().ok()?;
    let limit = usize::try_from(limit.rlim_cur).unwrap_or(usize::MAX);
    // SAFETY: `sysconf` only returns a value; -1 means "unknown".
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    let page = usize::try_from(page).unwrap_or(PAGE_BYTES);
    Some(limit.saturating_sub(pages.saturating_mul(page)))
}

/// How many more mappings the process may make.
#[cfg(all(target_os = "linux", not(miri)))]
fn free_mappings() -> Option<usize> {
    let most = std::fs::read_to_string("/proc/sys/vm/max_map_count").ok()?;
    let used = std::fs::read_to_string("/proc/self/maps").ok()?;
    let most: usize = most.trim().parse().ok()?;
    Some(most.saturating_sub(used.lines().count()))
}

#[cfg(not(all(target_os = "linux", not(miri))))]
fn free_address_bytes() -> Option<usize> {
    None
}

#[cfg(not(all(target_os = "linux", not(miri))))]
fn free_mappings() -> Option<usize> {
    None
}

/// Assumed if the system does not tell. Any machine used for training has at least this much.
const FALLBACK_BYTES: usize = 4 << 30;

#[cfg(target_os = "linux")]
fn machine_memory_bytes() -> Option<usize> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: usize = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(all(unix, not(target_os = "linux")))]
fn machine_memory_bytes() -> Option<usize> {
    // SAFETY: `sysconf` only returns a value; -1 means "unknown".
    let pages = unsafe { libc::sysconf(libc::_SC_PHYS_PAGES) };
    // SAFETY: likewise.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(pages)
        .ok()?
        .checked_mul(usize::try_from(page).ok()?)
}

#[cfg(not(unix))]
fn machine_memory_bytes() -> Option<usize> {
    None
}

/// The limit of the control group (version 2, then 1) that the process runs in.
#[cfg(target_os = "linux")]
fn group_limit_bytes() -> Option<usize> {
    [
        "/sys/fs/cgroup/memory.max",
        "/sys/fs/cgroup/memory/memory.limit_in_bytes",
    ]
    .iter()
    .find_map(|path| std::fs::read_to_string(path).ok()?.trim().parse().ok())
}

#[cfg(not(target_os = "linux"))]
fn group_limit_bytes() -> Option<usize> {
    None
}

#[cfg(all(test, target_os = "linux", not(miri)))]
mod tests {
    use super::*;

    #[test]
    fn constants_are_private_and_read_only_and_the_heap_is_not() {
        static CONSTANTS: [u8; 64] = [1; 64];
        assert!(is_private_and_read_only(CONSTANTS.as_ptr(), 64));
        let heap = vec![1u8; 1 << 20];
        assert!(!is_private_and_read_only(heap.as_ptr(), heap.len()));
    }
}
