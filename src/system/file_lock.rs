//! Locks of files that end with their process, however that ends.
//!
//! They are `flock`'s: of an open file, so that two threads that open a file exclude each other, too. (`File::lock` of the standard library
//! is newer than the oldest Rust that this crate builds with.)
//!
//! A child that was forked has its parent's open files, and would keep their locks when the parent dies. So in a child, each file that may
//! be locked is made another one, `/dev/null`, before `fork` returns: its number stays taken, and the lock is the parent's alone.

use std::fs::File;
use std::io;

#[cfg(all(unix, not(miri)))]
use crate::sync::log;

/// A file that can be locked. Dropping it unlocks and closes it.
#[derive(Debug)]
pub(crate) struct LockFile {
    #[cfg(all(unix, not(miri)))]
    place: table::Place,
    // Last: its number is another's when it is closed.
    file: File,
}

impl LockFile {
    pub(crate) fn new(file: File) -> LockFile {
        LockFile {
            #[cfg(all(unix, not(miri)))]
            place: table::Place::none(),
            file,
        }
    }

    pub(crate) fn file(&self) -> &File {
        &self.file
    }
}

#[cfg(all(unix, not(miri)))]
impl LockFile {
    /// Locks it. Waits for who has it: the system wakes the thread when that unlocks it, closes it, or dies.
    ///
    /// # Errors
    ///
    /// If the file's system has no locks.
    pub(crate) fn lock(&self) -> io::Result<()> {
        self.place.take(&self.file);
        loop {
            match flock(&self.file, libc::LOCK_EX) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                result => return result,
            }
        }
    }

    /// Locks it, if nobody has it. Returns whether it is locked now.
    ///
    /// # Errors
    ///
    /// If the file's system has no locks.
    pub(crate) fn try_lock(&self) -> io::Result<bool> {
        self.place.take(&self.file);
        loop {
            match flock(&self.file, libc::LOCK_EX | libc::LOCK_NB) {
                Ok(()) => return Ok(true),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}

#[cfg(all(unix, not(miri)))]
impl Drop for LockFile {
    fn drop(&mut self) {
        if self.place.is_taken() {
            // (Before the place is free: a child that is forked between the two has a file without a lock.)
            let _ = flock(&self.file, libc::LOCK_UN);
            self.place.leave(&self.file);
        }
    }
}

#[cfg(all(unix, not(miri)))]
fn flock(file: &File, operation: libc::c_int) -> io::Result<()> {
    use std::os::fd::AsRawFd;
    // SAFETY: it touches no memory, and the file is open.
    match unsafe { libc::flock(file.as_raw_fd(), operation) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Elsewhere there are none that end with their process.
#[cfg(not(all(unix, not(miri))))]
impl LockFile {
    pub(crate) fn lock(&self) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(crate) fn try_lock(&self) -> io::Result<bool> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// Which files may be locked, for a child to know: numbers, which it reads without a lock.
#[cfg(all(unix, not(miri)))]
mod table {
    use std::fs::File;
    use std::io;
    use std::os::fd::AsRawFd;
    use std::sync::Once;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::log;

    /// (A process has 1,024 open files as a rule. What finds no place is locked all the same, and a child keeps its lock.)
    const PLACES: usize = 1_024;

    /// The number of a file, and 1. 0: the place is free.
    static NUMBERS: [AtomicUsize; PLACES] = [const { AtomicUsize::new(0) }; PLACES];

    fn written(file: &File) -> usize {
        file.as_raw_fd() as usize + 1
    }

    /// A file's place in the table.
    #[derive(Debug)]
    pub(super) struct Place(AtomicUsize);

    impl Place {
        const NONE: usize = usize::MAX;

        pub(super) fn none() -> Place {
            Place(AtomicUsize::new(Place::NONE))
        }

        pub(super) fn is_taken(&self) -> bool {
            self.0.load(Ordering::Relaxed) != Place::NONE
        }

        /// Notes a file, before it is locked.
        pub(super) fn take(&self, file: &File) {
            if self.is_taken() {
                return;
            }
            watch_forks();
            let number = written(file);
            let free = (0..PLACES).find(|place| {
                let place = &NUMBERS[*place];
                let is_free = place.load(Ordering::Relaxed) == 0;
                let taken =
                    || place.compare_exchange(0, number, Ordering::SeqCst, Ordering::Relaxed);
                is_free && taken().is_ok()
            });
            // (`PLACES`: it is in none, and will be unlocked.)
            self.0.store(free.unwrap_or(PLACES), Ordering::Relaxed);
        }

        /// The file is unlocked. (In a child, the place may have been another's since.)
        pub(super) fn leave(&self, file: &File) {
            if let Some(place) = NUMBERS.get(self.0.load(Ordering::Relaxed)) {
                let (number, order) = (written(file), Ordering::SeqCst);
                let _ = place.compare_exchange(number, 0, order, Ordering::Relaxed);
            }
        }
    }

    /// Lets go of the parent's files.
    extern "C" fn is_child() {
        let mut nothing = -1;
        for place in &NUMBERS {
            let number = place.swap(0, Ordering::SeqCst);
            if number == 0 {
                continue;
            }
            if nothing < 0 {
                let flags = libc::O_RDWR | libc::O_CLOEXEC;
                // SAFETY: the name is a string of C.
                nothing = unsafe { libc::open(c"/dev/null".as_ptr(), flags) };
                if nothing < 0 {
                    return; // no file is free: the locks stay
                }
            }
            let number = (number - 1) as libc::c_int;
            // SAFETY: it takes numbers. The file belongs to a `LockFile`, which owns what has its number from here on: all that it does then
            // is done to nothing.
            unsafe { libc::dup2(nothing, number) };
            // SAFETY: it takes numbers.
            unsafe { libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) };
        }
        if nothing >= 0 {
            // SAFETY: it was opened above, and is no one else's.
            unsafe { libc::close(nothing) };
        }
    }

    fn watch_forks() {
        static WATCHES: Once = Once::new();
        let mut failed = 0;
        // SAFETY: as in `system::forks`: the function stays, and does what may be done in a child of a process with threads. It takes no
        // lock and no memory, and calls what POSIX lists as safe in a signal handler.
        WATCHES.call_once(|| failed = unsafe { libc::pthread_atfork(None, None, Some(is_child)) });
        if failed != 0 {
            let error = io::Error::from_raw_os_error(failed);
            log::error!(
                "forks of this process will not be noticed: a forked child keeps the locks of a cache that its parent holds then ({error})"
            );
        }
    }
}

#[cfg(all(test, unix, not(miri)))]
mod tests {
    use std::ffi::CString;
    use std::fs::OpenOptions;
    use std::io::Read;
    use std::os::fd::{AsRawFd, FromRawFd};

    use super::*;

    /// A process locks a file, forks, and is killed. Its child lives on.
    #[test]
    fn a_forked_child_keeps_no_lock_of_its_parents() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ledger");
        let own = || {
            let mut options = OpenOptions::new();
            options.read(true).write(true).create(true).truncate(false);
            LockFile::new(options.open(&path).unwrap())
        };
        let free = own();
        assert!(free.try_lock().unwrap());
        drop(free);
        let name = CString::new(path.to_str().unwrap()).unwrap();
        let mut ends = [0; 2];
        // SAFETY: it writes two numbers.
        assert_eq!(unsafe { libc::pipe(ends.as_mut_ptr()) }, 0);
        // SAFETY: the child calls what may be called in one of a process with threads, and ends by itself.
        let parent = unsafe { libc::fork() };
        if parent == 0 {
            // SAFETY: all of these take numbers, or memory that is there.
            unsafe {
                libc::alarm(60);
                let file = libc::open(name.as_ptr(), libc::O_RDWR);
                let file = LockFile::new(File::from_raw_fd(file));
                let is_locked = matches!(file.try_lock(), Ok(true));
                let child = libc::fork();
                if child == 0 {
                    libc::alarm(60);
                    let number = file.file().as_raw_fd();
                    let is_open = libc::fcntl(number, libc::F_GETFD) == libc::FD_CLOEXEC;
                    let said = [u8::from(is_locked && is_open)];
                    libc::write(ends[1], said.as_ptr().cast(), 1);
                    let child = libc::getpid().to_ne_bytes();
                    libc::write(ends[1], child.as_ptr().cast(), child.len());
                }
                loop {
                    libc::pause();
                }
            }
        }
        // SAFETY: they were made above, and are closed nowhere else.
        let (mut said, _) = unsafe { (File::from_raw_fd(ends[0]), File::from_raw_fd(ends[1])) };
        let (mut is_right, mut child) = ([0], [0; 4]);
        said.read_exact(&mut is_right).unwrap();
        said.read_exact(&mut child).unwrap();
        assert_eq!(is_right, [1], "it was not locked, or is not open");
        let file = own();
        assert!(!file.try_lock().unwrap(), "the parent has it");
        // SAFETY: it takes numbers: of the process that was forked above.
        unsafe { libc::kill(parent, libc::SIGKILL) };
        let mut status = 0;
        // SAFETY: it writes one number.
        assert_eq!(unsafe { libc::waitpid(parent, &mut status, 0) }, parent);
        let is_free = file.try_lock().unwrap();
        // SAFETY: as above; the child waits until it is killed.
        unsafe { libc::kill(libc::pid_t::from_ne_bytes(child), libc::SIGKILL) };
        assert!(is_free, "the child has kept the lock");
    }
}
