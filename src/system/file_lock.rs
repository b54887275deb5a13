//! Locks of files that end with their process, however that ends.
//!
//! They are `flock`'s: of an open file, so that two threads that open a file exclude each other, too. (`File::lock` of the standard library
//! is newer than the oldest Rust that this crate builds with.)

use std::fs::File;
use std::io;

/// Locks a file. Waits for who has it: the system wakes the thread when that unlocks it, closes it, or dies.
///
/// # Errors
///
/// If the file's system has no locks.
#[cfg(all(unix, not(miri)))]
pub(crate) fn lock(file: &File) -> io::Result<()> {
    loop {
        match flock(file, libc::LOCK_EX) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}

/// Locks a file, if nobody has it. Returns whether it is locked now.
///
/// # Errors
///
/// If the file's system has no locks.
#[cfg(all(unix, not(miri)))]
pub(crate) fn try_lock(file: &File) -> io::Result<bool> {
    loop {
        match flock(file, libc::LOCK_EX | libc::LOCK_NB) {
            Ok(()) => return Ok(true),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Unlocks a file, also if a process that was forked from this one has it open.
#[cfg(all(unix, not(miri)))]
pub(crate) fn unlock(file: &File) {
    let _ = flock(file, libc::LOCK_UN); // (of an open file, it cannot fail)
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
pub(crate) fn lock(_: &File) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

#[cfg(not(all(unix, not(miri))))]
pub(crate) fn try_lock(_: &File) -> io::Result<bool> {
    Err(io::ErrorKind::Unsupported.into())
}

#[cfg(not(all(unix, not(miri))))]
pub(crate) fn unlock(_: &File) {}
