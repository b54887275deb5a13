//! What `Device::cuda` says of a driver that is missing, too old or broken, and that `Device::available` goes on without.
//!
//! Each driver is a small library of C (`drivers/libcuda.c`), built here and found first by a child process: this
//! program again, told by environment variables what to ask. No GPU is needed, and one that is there is not seen.
//!
//! Some have a device, of a compute capability that the machine's own has not, and count what is loaded and unloaded.

#![cfg(all(target_os = "linux", feature = "cuda", not(miri)))]
#![allow(clippy::unwrap_used)] // a panic is how a test fails
#![allow(unsafe_code)] // it loads the machine's own driver, to know whether there is one

#[macro_use]
extern crate watch;

use std::path::Path;
use std::process::Command;

use pinfeed::ops::{Mix, Normalize};
use pinfeed::{Batch, DataLoader, Device, Error, Tensor, TensorDataset};
use tempfile::TempDir;

/// What a child asks for: an ordinal, or `available`.
const ASK: &str = "PINFEED_TEST_ASK";

#[test]
fn a_driver_that_is_too_old_is_told_from_a_missing_one() {
    let driver = stub(&["-DVERSION=11080"]);
    let says = ask(&driver, "0");
    assert_eq!(says.variant, "DriverTooOld");
    assert!(says.words.contains("supports CUDA 11.8"), "{}", says.words);
    assert!(says.words.contains("needs 12.0 or newer"), "{}", says.words);
}

#[test]
fn the_toolkits_stub_is_named() {
    // The toolkit's stub says so wherever it is asked; which call that is first depends on its version.
    for answers in [
        &["-DVERSION_RESULT=34", "-DVERSION=0"][..],
        &["-DINIT_RESULT=34"],
    ] {
        let says = ask(&stub(answers), "0");
        assert_eq!(says.variant, "StubDriver");
        assert!(says.words.contains("`stubs` folder"), "{}", says.words);
    }
}

#[test]
fn a_driver_without_a_device_says_so() {
    for answers in [
        &["-DINIT_RESULT=100", "-DCOUNT_RESULT=3"][..],
        &["-DINIT_RESULT=100", "-DCOUNT_RESULT=100"],
        &["-DCOUNT=0"],
    ] {
        let says = ask(&stub(answers), "0");
        assert_eq!(says.variant, "NoDevice", "{answers:?}");
        assert!(
            says.words.contains("no CUDA device 0: the driver sees 0"),
            "{}",
            says.words
        );
    }
}

#[test]
fn an_ordinal_beyond_the_last_device_says_how_many_there_are() {
    let says = ask(&stub(&["-DCOUNT=1"]), "1");
    assert_eq!(says.variant, "NoDevice");
    assert!(
        says.words.contains("no CUDA device 1: the driver sees 1"),
        "{}",
        says.words
    );
}

#[test]
fn a_driver_that_does_not_start_gives_its_code() {
    let says = ask(&stub(&["-DINIT_RESULT=999"]), "0");
    assert_eq!(says.variant, "Device");
    assert!(says.words.contains("cuInit failed"), "{}", says.words);
    assert!(says.words.contains("(999)"), "{}", says.words);
}

#[test]
fn a_library_that_is_no_driver_is_told_from_none() {
    let says = ask(&stub(&["-DNO_DRIVER"]), "0");
    assert_eq!(says.variant, "NoDriver");
    for words in [
        "the library that was found is not a CUDA driver",
        "cuDriverGetVersion",
    ] {
        assert!(says.words.contains(words), "{}", says.words);
    }
}

#[test]
fn no_library_at_all_is_an_error_in_plain_words() {
    let folder = tempfile::tempdir().unwrap();
    // SAFETY: loading the driver's library runs its constructors, which is what every CUDA program does.
    let installed = ["libcuda.so.1", "libcuda.so"]
        .iter()
        .any(|name| unsafe { libloading::Library::new(*name) }.is_ok());
    if installed {
        // It cannot be hidden, but what is found before it can be unusable.
        for name in ["libcuda.so.1", "libcuda.so"] {
            std::fs::write(folder.path().join(name), "no library").unwrap();
        }
    }
    let says = ask(&folder, "0");
    assert_eq!(says.variant, "NoDriver");
    assert!(
        says.words.contains("no CUDA driver on this machine"),
        "{}",
        says.words
    );
    assert!(says.words.contains("libcuda.so"), "{}", says.words);
}

#[test]
fn available_falls_back_to_the_cpu_and_logs_why() {
    let says = ask(&stub(&["-DVERSION=11080"]), "available");
    assert_eq!(says.variant, "cpu");
    assert!(says.words.contains("using the CPU: "), "{}", says.words);
    assert!(says.words.contains("CUDA 11.8"), "{}", says.words);
}

/// Pascal is older than what the kernels are made for: all else works there.
#[test]
fn a_device_that_is_too_old_for_the_kernels_still_copies() {
    let says = ask(&stub(&["-DMAJOR=6", "-DMINOR=1"]), "old device");
    for words in [
        "cuda:0 has compute capability 6.1, and normalizing is a kernel that needs 7.0 or newer",
        "and making soft labels is a kernel",
        "copies are right",
        "0 loaded, 0 unloaded",
    ] {
        assert!(says.words.contains(words), "{words}: {}", says.words);
    }
    // It is known before, and nothing to warn of.
    assert!(!says.words.contains("WARN"), "{}", says.words);
}

/// Kernels that the driver does not load for another reason: rows are gathered without, and the reason is told.
#[test]
fn kernels_that_do_not_load_are_done_without_where_that_can_be() {
    let says = ask(
        &stub(&["-DMAJOR=7", "-DMINOR=0", "-DLOAD_RESULT=218"]),
        "old device",
    );
    for words in [
        "cuModuleLoadData failed on cuda:0: STUB: STUB (218)",
        "WARN cuda:0: rows of registered memory are copied one by one",
        "copies are right",
        "0 loaded, 0 unloaded",
    ] {
        assert!(says.words.contains(words), "{words}: {}", says.words);
    }
}

/// Kernels go with the last handle of their device, in its context.
#[test]
fn kernels_are_unloaded_with_their_device() {
    let says = ask(&stub(&["-DMAJOR=7", "-DMINOR=0"]), "devices");
    assert!(
        says.words.contains("9 loaded, 9 unloaded"),
        "{}",
        says.words
    );
}

/// What the child does; by itself it is no test.
#[test]
#[ignore = "the other tests run it, in processes of its own"]
fn child() {
    let Ok(asked) = std::env::var(ASK) else {
        return;
    };
    if asked == "available" {
        log::set_logger(&Printer).unwrap();
        log::set_max_level(log::LevelFilter::Warn);
        let device = Device::available();
        println!("{SAYS}{}", device.name());
        let there = Tensor::from_vec(vec![1u8, 2], &[2])
            .unwrap()
            .to_device(&device, true)
            .unwrap();
        let back = there.to_host(false).unwrap().wait().unwrap();
        assert_eq!(back.as_slice(), [1, 2]);
    } else if asked == "old device" {
        log::set_logger(&Printer).unwrap();
        log::set_max_level(log::LevelFilter::Warn);
        use_an_old_device();
        say_what_was_loaded();
    } else if asked == "devices" {
        for _ in 0..3 {
            use_kernels();
        }
        say_what_was_loaded();
    } else {
        let error = Device::cuda(asked.parse().unwrap()).err().unwrap();
        let variant = match &error {
            Error::DriverTooOld { .. } => "DriverTooOld",
            Error::StubDriver => "StubDriver",
            Error::NoDevice { .. } => "NoDevice",
            Error::NoDriver { .. } => "NoDriver",
            Error::Device { .. } => "Device",
            _ => "another",
        };
        println!("{SAYS}{variant}");
        println!("{SAYS}{error}");
    }
}

fn pictures(device: &Device) -> pinfeed::DeviceTensor<u8> {
    let pictures = Tensor::from_vec(vec![9u8; 2 * 4 * 4 * 3], &[2, 4, 4, 3]).unwrap();
    pictures.to_device(device, true).unwrap()
}

/// Everything that a device does which runs none of the kernels; and what is said where they are asked for.
fn use_an_old_device() {
    let device = Device::cuda(0).unwrap();
    let bytes: Vec<u8> = (0..4 << 14).map(|at: u32| (at / 7 % 251) as u8).collect();
    // Rows that the device gathers, and rows in slabs.
    for registered in [true, false] {
        let rows = Tensor::from_vec(bytes.clone(), &[4, 1 << 14]).unwrap();
        let rows = match registered {
            true => rows.register(&device).unwrap(),
            false => rows,
        };
        let loader = DataLoader::builder(TensorDataset::new(rows).unwrap());
        let loader = loader.batch_size(4).pin_memory(&device).build().unwrap();
        for there in loader.epoch(0).to_device(&device, 1) {
            let back = there.unwrap().to_host(false).unwrap().wait().unwrap();
            assert!(back.as_slice() == bytes);
        }
    }
    println!("{SAYS}copies are right");
    let error = pictures(&device)
        .normalize::<f32>(&Normalize::IMAGENET)
        .unwrap_err();
    println!("{SAYS}{error}");
    let labels = Tensor::from_vec(vec![1i64, 2], &[2]).unwrap();
    let labels = labels.to_device(&device, true).unwrap();
    let error = labels.soft_labels::<f32>(3, &Mix::none(), 0.0).unwrap_err();
    println!("{SAYS}{error}");
    let is_told = matches!(error, Error::ComputeCapability { found: (6, 1), .. });
    assert_eq!(
        is_told,
        device.info().unwrap().compute_capability == Some((6, 1))
    );
}

/// All three of them, by two handles of one device.
fn use_kernels() {
    let device = Device::cuda(0).unwrap();
    let other = device.clone();
    drop(
        pictures(&device)
            .normalize::<f32>(&Normalize::IMAGENET)
            .unwrap(),
    );
    drop(
        pictures(&other)
            .normalize::<f32>(&Normalize::IMAGENET)
            .unwrap(),
    );
    drop(device);
    let labels = Tensor::from_vec(vec![1i64, 2], &[2]).unwrap();
    let labels = labels.to_device(&other, true).unwrap();
    drop(labels.soft_labels::<f32>(3, &Mix::none(), 0.0).unwrap());
    let rows = Tensor::from_vec(vec![1u8; 4 << 14], &[4, 1 << 14]).unwrap();
    let rows = rows.register(&other).unwrap();
    let loader = DataLoader::builder(TensorDataset::new(rows).unwrap());
    let loader = loader.batch_size(4).pin_memory(&other).build().unwrap();
    assert_eq!(loader.epoch(0).to_device(&other, 1).count(), 1);
}

/// What the stub counted.
fn say_what_was_loaded() {
    // SAFETY: it is loaded already.
    let library = unsafe { libloading::Library::new("libcuda.so.1") }.unwrap();
    let count = |name: &[u8]| {
        // SAFETY: the stub has these, as integers.
        unsafe { **library.get::<*const i32>(name).unwrap() }
    };
    let (loaded, unloaded) = (count(b"stub_loaded"), count(b"stub_unloaded"));
    println!("{SAYS}{loaded} loaded, {unloaded} unloaded");
}

/// Begins each line that the parent reads.
const SAYS: &str = "child says: ";

/// Prints what is logged, as the parent reads it.
struct Printer;

impl log::Log for Printer {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        println!("{SAYS}{} {}", record.level(), record.args());
    }

    fn flush(&self) {}
}

/// What a child said.
struct Says {
    /// The error's variant, or the device's name.
    variant: String,
    /// Everything.
    words: String,
}

/// Has a child ask for a device, with this folder's libraries found first.
fn ask(folder: &TempDir, what: &str) -> Says {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "child", "--nocapture"])
        .env(ASK, what)
        .env("LD_LIBRARY_PATH", folder.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}{stderr}");
    let lines: Vec<_> = said
        .lines()
        .filter_map(|line| Some(line.split_once(SAYS)?.1))
        .collect();
    let name = |line: &&&str| line.split(' ').next() != Some("WARN");
    let variant = lines.iter().find(name).unwrap_or(&"");
    let end = |c: char| !c.is_alphanumeric();
    Says {
        variant: variant.split(end).next().unwrap().to_owned(),
        words: lines.join("\n"),
    }
}

/// Builds a driver that answers so, in a folder of its own.
fn stub(answers: &[&str]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/drivers/libcuda.c");
    let named = std::env::var("CC").ok();
    let compilers = named.as_deref().into_iter().chain(["cc", "gcc", "clang"]);
    for compiler in compilers {
        let built = Command::new(compiler)
            .args(["-shared", "-fPIC", "-o"])
            .arg(folder.path().join("libcuda.so.1"))
            .args(answers)
            .arg(&source)
            .output();
        if let Ok(built) = built {
            let stderr = String::from_utf8_lossy(&built.stderr);
            assert!(built.status.success(), "{compiler}: {stderr}");
            return folder;
        }
    }
    panic!(
        "no C compiler (cc, gcc, clang, or what CC names), which these tests build their drivers with: install one"
    );
}
