//! What the tests of several kernels share: their CUDA source runs on the CPU, in memory with a fence behind.
#![allow(clippy::expect_used, clippy::unwrap_used)] // a panic is how a test fails

use std::path::Path;
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use libloading::Library;

/// A kernel's CUDA source, compiled for the CPU: tests/drivers/cuda.h.
pub(super) struct Emulated {
    library: Library,
    /// One kernel runs at a time.
    turn: Mutex<()>,
    _folder: tempfile::TempDir,
}

impl Emulated {
    /// Compiles `tests/drivers/NAME.cpp`.
    pub(super) fn new(name: &str) -> Emulated {
        let folder = tempfile::tempdir().unwrap();
        let library = folder.path().join(name).with_extension("so");
        let drivers = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/drivers");
        let source = drivers.join(name).with_extension("cpp");
        let built = Command::new("c++")
            .args(["-std=c++17", "-O1", "-ffp-contract=off", "-shared", "-fPIC"])
            .args([
                "-fsanitize=undefined",
                "-fsanitize-undefined-trap-on-error",
                "-o",
            ])
            .args([&library, &source])
            .status()
            .expect("the kernel is compiled by a C++ compiler");
        assert!(built.success());
        Emulated {
            // SAFETY: it has no constructors.
            library: unsafe { Library::new(library) }.unwrap(),
            turn: Mutex::default(),
            _folder: folder,
        }
    }

    /// Calls a kernel.
    pub(super) fn run(&self, call: impl FnOnce(&Library)) {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        call(&self.library);
        // SAFETY: it is a number, and it is not written now.
        let diverged = unsafe { **self.library.get::<*const i32>(b"diverged").unwrap() };
        assert_eq!(diverged, 0, "threads of a block ended while others waited");
    }
}

/// Memory whose end is the end of what the process may read.
pub(super) struct Fenced {
    map: *mut u8,
    mapped: usize,
    pub(super) bytes: usize,
}

const PAGE: usize = 1 << 16; // a multiple of every page's size

impl Fenced {
    /// `bytes` is rounded up to `align`, so that the first byte is aligned too.
    pub(super) fn new(bytes: usize, align: usize) -> Fenced {
        let bytes = bytes.next_multiple_of(align);
        let usable = bytes.next_multiple_of(PAGE);
        let mapped = usable + PAGE;
        let (protection, flags) = (
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
        );
        // SAFETY: it maps new memory.
        let map = unsafe { libc::mmap(std::ptr::null_mut(), mapped, protection, flags, -1, 0) };
        assert_ne!(map, libc::MAP_FAILED);
        let map = map.cast::<u8>();
        // SAFETY: the page is within the map.
        let fenced = unsafe { libc::mprotect(map.add(usable).cast(), PAGE, libc::PROT_NONE) };
        assert_eq!(fenced, 0);
        Fenced {
            map: map.wrapping_add(usable - bytes),
            mapped,
            bytes,
        }
    }

    pub(super) fn address(&self) -> u64 {
        self.map as u64
    }

    pub(super) fn slice(&mut self) -> &mut [u8] {
        // SAFETY: the memory is mapped, initialized and ours.
        unsafe { std::slice::from_raw_parts_mut(self.map, self.bytes) }
    }
}

impl Drop for Fenced {
    fn drop(&mut self) {
        let usable = self.mapped - PAGE;
        let start = self.map.wrapping_sub(usable - self.bytes);
        // SAFETY: it is the whole map, and it is not used any more.
        unsafe { libc::munmap(start.cast(), self.mapped) };
    }
}
