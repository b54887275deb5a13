//! What `Device::cuda` says of a driver that is missing, too old or broken, and that `Device::available` goes on without.
//!
//! Each driver is a small library of C (`drivers/libcuda.c`), built here and found first by a child process: this
//! program again, told by environment variables what to ask. No GPU is needed, and one that is there is not seen.
//!
//! Some have devices, of a compute capability that the machine's own has not, and count what is loaded and unloaded, and
//! what is called in which context.

#![cfg(all(target_os = "linux", feature = "cuda", not(miri)))]
#![allow(clippy::unwrap_used)] // a panic is how a test fails
#![allow(unsafe_code)] // it loads the machine's own driver, to know whether there is one

#[macro_use]
extern crate watch;

use std::ffi::c_void;
use std::path::Path;
use std::process::Command;
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Duration;

use pinfeed::ops::{MixupDraw, Normalize};
use pinfeed::{Batch, DataLoader, Device, DeviceTensor, Error, Tensor, TensorDataset};
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

/// Whatever the program has made current on a thread, and whatever it captures, is as it was after each call; and each of the driver's
/// calls is made in the device's own context, in the relaxed mode.
#[test]
fn the_programs_context_is_put_back() {
    let driver = stub(&["-DMAJOR=9", "-DMINOR=0", "-DCOUNT=2"]);
    for order in [
        "devices in turn",
        "loans of two devices",
        "failures",
        "an owner that is dropped",
        "a loan that is forgotten",
    ] {
        assert_eq!(ask(&driver, order).variant, "passed", "{order}");
    }
}

/// The context is made current for all calls of an upload together.
#[test]
fn an_upload_and_its_loans_change_the_context_three_times() {
    let driver = stub(&["-DMAJOR=9", "-DMINOR=0"]);
    assert_eq!(ask(&driver, "calls").variant, "passed");
}

/// A stream waits for an upload once, whichever of its tensors it reads.
#[test]
fn a_stream_that_waits_for_a_batch_waits_for_all_of_it() {
    let driver = stub(&["-DMAJOR=9", "-DMINOR=0"]);
    assert_eq!(ask(&driver, "waits").variant, "passed");
}

/// However many batches the device is behind, an upload asks for one of them.
#[test]
fn an_upload_does_not_ask_for_all_batches_that_are_not_done() {
    let driver = stub(&["-DMAJOR=9", "-DMINOR=0"]);
    assert_eq!(ask(&driver, "far behind").variant, "passed");
}

/// Small batches that are ready at the same time cost little more than one of them.
#[test]
fn small_batches_are_sent_together() {
    let driver = stub(&["-DMAJOR=9", "-DMINOR=0"]);
    assert_eq!(ask(&driver, "together").variant, "passed");
}

/// What the first thread that asks finds out of a device holds for all, whichever context that thread has.
#[test]
fn a_table_that_is_first_read_on_the_host_is_gathered_by_one_kernel() {
    let driver = stub(&["-DMAJOR=9", "-DMINOR=0", "-DCOUNT=2"]);
    assert_eq!(ask(&driver, "a table that is read").variant, "passed");
}

/// The rows of each batch are those that its numbers name: by lists that the device reads or as arguments, of columns of all sizes, one batch
/// at a time and many.
#[test]
fn batches_of_a_table_are_its_rows() {
    let driver = stub(&["-DMAJOR=9", "-DMINOR=0"]);
    assert_eq!(ask(&driver, "tables").variant, "passed");
}

/// The handle that made the table has another stream for uploads than the one by which the batch was sent.
#[test]
fn a_table_is_not_free_before_the_kernels_of_another_handle() {
    let driver = stub(&["-DMAJOR=9", "-DMINOR=0"]);
    assert_eq!(ask(&driver, "a table of two handles").variant, "passed");
}

/// What is adrift calls no driver when it is dropped, on whichever thread; a sweep is one event of the context, and none beside a capture.
#[test]
fn memory_that_is_adrift_is_swept_by_one_event() {
    let driver = stub(&["-DMAJOR=9", "-DMINOR=0", "-DCOUNT=2"]);
    assert_eq!(ask(&driver, "adrift").variant, "passed");
}

/// A driver that has no event of a context: the sweep waits for all of it, and that is said once.
#[test]
fn an_older_driver_is_waited_for_by_a_sweep() {
    let says = ask(
        &stub(&["-DMAJOR=9", "-DMINOR=0", "-DVERSION=12040"]),
        "adrift and old",
    );
    let told = says.words.matches("older than CUDA 12.5").count();
    assert_eq!(told, 1, "{}", says.words);
    assert!(says.words.contains("passed"), "{}", says.words);
}

/// A tensor is handed over by one copy on the program's stream.
#[test]
fn a_tensor_is_handed_over_by_one_copy() {
    let driver = stub(&["-DMAJOR=9", "-DMINOR=0", "-DCOUNT=2"]);
    assert_eq!(ask(&driver, "hand over").variant, "passed");
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
    } else if let Some((_, order)) = ORDERS.iter().find(|(name, _)| *name == asked) {
        order(&Stub::find());
        println!("{SAYS}passed");
    } else {
        let error = Device::cuda(asked.parse().unwrap()).err().unwrap();
        // A driver that can be asked says how many it has; of another one, both say the same.
        match (Device::cuda_count(), &error) {
            (Ok(counted), Error::NoDevice { count, .. }) => assert_eq!(counted, *count),
            (Ok(counted), other) => panic!("{counted} devices, and {other}"),
            (Err(other), error) => assert_eq!(other.to_string(), error.to_string()),
        }
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
        for there in loader.epoch(0).prefetch_to_device(&device, 1) {
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
    let error = labels
        .soft_labels::<f32>(3, &MixupDraw::none(), 0.0)
        .unwrap_err();
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
    drop(
        labels
            .soft_labels::<f32>(3, &MixupDraw::none(), 0.0)
            .unwrap(),
    );
    let rows = Tensor::from_vec(vec![1u8; 4 << 14], &[4, 1 << 14]).unwrap();
    let rows = rows.register(&other).unwrap();
    let loader = DataLoader::builder(TensorDataset::new(rows).unwrap());
    let loader = loader.batch_size(4).pin_memory(&other).build().unwrap();
    assert_eq!(loader.epoch(0).prefetch_to_device(&other, 1).count(), 1);
}

/// What the stub counted.
fn say_what_was_loaded() {
    let stub = Stub::find();
    let (loaded, unloaded) = (stub.count("stub_loaded"), stub.count("stub_unloaded"));
    println!("{SAYS}{loaded} loaded, {unloaded} unloaded");
}

/// The driver that the child runs with.
struct Stub(libloading::Library);

/// What a thread sees of the driver: the current context, how many lie below it, and the capture mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Seen(usize, i32, i32);

/// Capture modes of cuda.h.
const GLOBAL: i32 = 0;
const THREAD_LOCAL: i32 = 1;

impl Stub {
    fn find() -> Stub {
        // SAFETY: it is loaded already, or is about to be; it has no constructors.
        Stub(unsafe { libloading::Library::new("libcuda.so.1") }.unwrap())
    }

    fn integer(&self, name: &str) -> &AtomicI32 {
        // SAFETY: the stub has these, as integers, for as long as it is loaded, and this thread runs.
        unsafe { AtomicI32::from_ptr(*self.0.get::<*mut i32>(name.as_bytes()).unwrap()) }
    }

    fn count(&self, name: &str) -> i32 {
        self.integer(name).load(Ordering::SeqCst)
    }

    fn set(&self, name: &str, value: bool) {
        self.integer(name).store(value.into(), Ordering::SeqCst);
    }

    /// Calls a function of one pointer.
    fn call(&self, name: &str, argument: *mut c_void) {
        type Call = unsafe extern "C" fn(*mut c_void) -> i32;
        // SAFETY: the callers below name functions that take one.
        let code = unsafe { self.0.get::<Call>(name.as_bytes()).unwrap()(argument) };
        assert_eq!(code, 0, "{name}");
    }

    fn exchange_mode(&self, mut mode: i32) -> i32 {
        let to = (&raw mut mode).cast();
        self.call("cuThreadExchangeStreamCaptureMode", to);
        mode
    }

    /// What this thread sees.
    fn seen(&self) -> Seen {
        let mut context: *mut c_void = null_mut();
        self.call("cuCtxGetCurrent", (&raw mut context).cast());
        // SAFETY: the stub has it.
        let depth = unsafe {
            let depth = self.0.get::<extern "C" fn() -> i32>(b"stub_depth");
            depth.unwrap()()
        };
        let mode = self.exchange_mode(GLOBAL);
        self.exchange_mode(mode);
        Seen(context as usize, depth, mode)
    }

    /// Runs the order on threads that have no context, the first device's, the second's, and one of the program's.
    fn on_threads(&self, order: impl Fn() + Sync) {
        let devices = [0, 1].map(|ordinal| {
            let mut context: *mut c_void = null_mut();
            type Retain = unsafe extern "C" fn(*mut *mut c_void, i32) -> i32;
            // SAFETY: as in cuda.h.
            let retain = unsafe { self.0.get::<Retain>(b"cuDevicePrimaryCtxRetain") };
            // SAFETY: likewise.
            assert_eq!(unsafe { retain.unwrap()(&mut context, ordinal) }, 0);
            context as usize
        });
        let own = &raw const *self as usize; // the stub only compares it
        for context in [0, devices[0], devices[1], own] {
            for mode in [GLOBAL, THREAD_LOCAL] {
                let run = || {
                    if context != 0 {
                        self.call("cuCtxPushCurrent_v2", context as *mut c_void);
                    }
                    self.exchange_mode(mode);
                    order();
                };
                std::thread::scope(|scope| scope.spawn(run).join()).unwrap();
            }
        }
        assert_eq!(self.count("stub_astray"), 0);
        assert!(self.count("stub_works") > 0);
    }

    /// Runs a call while a function of the driver fails. It leaves the thread as it was.
    fn failing<T>(&self, name: &str, call: impl FnOnce() -> T) -> T {
        self.set(name, true);
        let result = self.leaves(name, call);
        self.set(name, false);
        result
    }

    /// How many of the driver's calls the call made for the context and the capture mode, on this thread: others may make slabs
    /// meanwhile.
    fn turns<T>(&self, call: impl FnOnce() -> T) -> (i32, T) {
        let before = self.count("stub_turns");
        let result = call();
        (self.count("stub_turns") - before, result)
    }

    /// Runs a call after which the thread sees what it saw before.
    fn leaves<T>(&self, what: &str, call: impl FnOnce() -> T) -> T {
        let before = self.seen();
        let result = call();
        assert_eq!(self.seen(), before, "{what}");
        result
    }
}

/// What a child does with the library, and its name.
type Order = (&'static str, fn(&Stub));

const ORDERS: &[Order] = &[
    ("devices in turn", devices_in_turn),
    ("loans of two devices", loans_of_two_devices),
    ("failures", failures),
    ("an owner that is dropped", an_owner_that_is_dropped),
    ("a loan that is forgotten", a_loan_that_is_forgotten),
    ("calls", calls),
    ("waits", waits),
    ("far behind", far_behind),
    ("together", together),
    ("a table that is read", a_table_that_is_read),
    ("a table of two handles", a_table_of_two_handles),
    ("tables", tables),
    ("adrift", adrift),
    ("adrift and old", adrift_and_old),
    ("hand over", hand_over),
];

/// A batch of two tensors in one page-locked slab.
fn slab_of(device: &Device) -> (Tensor<f32>, Tensor<i64>) {
    let x = Tensor::from_vec((0..64).map(|at| at as f32).collect(), &[8, 8]).unwrap();
    let samples = TensorDataset::new((x, Tensor::from((0..8).collect::<Vec<i64>>()))).unwrap();
    let loader = DataLoader::builder(samples).batch_size(8);
    let loader = loader.pin_memory(device).build().unwrap();
    let batch = loader.epoch(0).next().unwrap().unwrap();
    assert!(batch.0.is_pinned());
    batch
}

fn is_right((x, y): &(DeviceTensor<f32>, DeviceTensor<i64>)) -> bool {
    let x = x.to_host(false).unwrap().wait().unwrap();
    let y = y.to_host(false).unwrap().wait().unwrap();
    x.as_slice()
        .iter()
        .enumerate()
        .all(|(at, x)| *x == at as f32)
        && y.as_slice() == [0, 1, 2, 3, 4, 5, 6, 7]
}

fn devices_in_turn(stub: &Stub) {
    stub.on_threads(|| {
        let devices = stub.leaves("opening", || [0, 1].map(|at| Device::cuda(at).unwrap()));
        let streams = [0, 1].map(|at| devices[at].stream().unwrap());
        for held in [false, true] {
            for at in [0, 1, 1, 0, 0] {
                let batch = stub.leaves("loading", || slab_of(&devices[at]));
                stub.set("stub_holds", held); // the copies do not end
                let upload = || batch.to_device(&devices[at], true).unwrap();
                let there = stub.leaves("an upload", upload);
                let x = stub.leaves("a loan", || there.0.on(&streams[at]).unwrap());
                let y = stub.leaves("another", || there.1.on(&streams[at]).unwrap());
                stub.leaves("its end", || drop(x));
                stub.leaves("the other's", || drop(y));
                stub.set("stub_holds", false);
                assert!(stub.leaves("downloads", || is_right(&there)));
                stub.leaves("dropping tensors", || drop(there));
                stub.leaves("settling", || _ = devices[at].memory());
            }
        }
        // A batch that is page-locked for one device goes to the other.
        let there = slab_of(&devices[0]).to_device(&devices[1], true).unwrap();
        assert!(stub.leaves("downloads", || is_right(&there)));
        drop(there);
        // And is the last of its device: its memory is unlocked while calls of the other are made.
        let [one, other] = devices;
        let batch = slab_of(&one);
        drop((streams, one));
        stub.set("stub_holds", true);
        let there = batch.to_device(&other, true).unwrap();
        let next = slab_of(&other);
        stub.set("stub_holds", false);
        let unlocked = stub.count("stub_unlocked");
        stub.leaves("closing", || drop(next.to_device(&other, true).unwrap()));
        assert!(stub.count("stub_unlocked") > unlocked);
        drop(there);
        stub.leaves("closing", || drop(other));
    });
}

/// Loans that are made in one order, and end in another.
fn loans_of_two_devices(stub: &Stub) {
    stub.on_threads(|| {
        let devices = [0, 1].map(|at| Device::cuda(at).unwrap());
        let streams = [0, 1].map(|at| devices[at].stream().unwrap());
        let mut there =
            [0, 1].map(|at| slab_of(&devices[at]).to_device(&devices[at], true).unwrap());
        for written in [false, true] {
            let [one, other] = &mut there;
            let x = stub.leaves("a loan", || one.0.on(&streams[0]).unwrap());
            let y = stub.leaves("of the other", || other.0.on_mut(&streams[1]).unwrap());
            let z = stub.leaves("for writing", || one.1.on_mut(&streams[0]).unwrap());
            stub.set("stub_holds", written);
            stub.leaves("an end", || drop(x));
            stub.leaves("the other's", || drop(y));
            stub.leaves("the last", || drop(z));
        }
        // With events that have not fired, of a stream of another device: refused, and nothing is left behind.
        let wrong = stub.leaves("a loan", || there[0].0.on(&streams[1]).err());
        assert!(
            matches!(wrong, Some(Error::WrongDevice { .. })),
            "{wrong:?}"
        );
        stub.set("stub_holds", false);
        assert!(there.iter().all(is_right));
    });
}

fn failures(stub: &Stub) {
    stub.on_threads(|| {
        let device = Device::cuda(0).unwrap();
        let stream = device.stream().unwrap();
        for (name, call) in [
            ("stub_fails_copy", "cuMemcpyHtoDAsync"),
            ("stub_fails_record", "cuEventRecord"),
        ] {
            let batch = slab_of(&device);
            let sent = stub.failing(name, || batch.to_device(&device, true));
            let error = sent.err().unwrap().to_string();
            assert!(error.contains(call), "{error}");
        }
        let there = slab_of(&device).to_device(&device, true).unwrap();
        let leaked = device.memory().leaked;
        let loan = there.0.on(&stream).unwrap();
        stub.failing("stub_fails_record", || drop(loan));
        assert!(is_right(&there));
        // Its end is tried again, and is known then.
        drop(there);
        assert_eq!(device.memory().leaked, leaked);
        // Without a context there is nothing that could be done.
        if stub.seen().0 == 0 {
            let there = slab_of(&device).to_device(&device, true).unwrap();
            let (batch, loan) = (slab_of(&device), there.0.on(&stream).unwrap());
            stub.failing("stub_fails_push", || {
                let error = batch.to_device(&device, true).err().unwrap().to_string();
                assert!(error.contains("cuCtxPushCurrent"), "{error}");
                drop(loan);
            });
            assert!(is_right(&there));
        }
        let there = slab_of(&device).to_device(&device, true).unwrap();
        assert!(is_right(&there));
    });
}

fn adrift(stub: &Stub) {
    stub.on_threads(|| {
        let device = Device::cuda(0).unwrap();
        let [one, other] = [(); 2].map(|()| device.stream().unwrap());
        let number = stub.count("stub_streams"); // of the other
        let set_adrift = || {
            let (x, y) = slab_of(&device).to_device(&device, true).unwrap();
            let x = stub.leaves("lending", || x.lend(&one).unwrap());
            let y = stub.leaves("for writing", || y.lend_mut(&other).unwrap());
            let x = stub.leaves("to all streams", || x.end_everywhere());
            let y = y.end_everywhere();
            let calls = || ["stub_turns", "stub_works"].map(|name| stub.count(name));
            let before = calls();
            drop((x, y));
            assert_eq!(calls(), before, "a drop calls no driver");
        };
        let sweep = || stub.leaves("a sweep", || device.sweep());
        let recorded = stub.count("stub_everywhere");
        // Beside captures that are seen, it records nothing.
        set_adrift();
        let adrift = device.memory().adrift_bytes;
        assert!(adrift > 0);
        for (capture, value) in [("stub_captures", number), ("stub_captures_by_default", 1)] {
            stub.integer(capture).store(value, Ordering::SeqCst);
            assert_eq!(sweep().unwrap(), 0, "{capture}");
            stub.set(capture, false);
        }
        let guard = device.capture_guard();
        assert_eq!(sweep().unwrap(), 0);
        drop(guard);
        assert_eq!(stub.count("stub_everywhere"), recorded);
        // One that is not seen is an error, and the next sweep works.
        stub.set("stub_captures_unseen", true);
        let error = sweep().unwrap_err().to_string();
        assert!(error.contains("Device::capture_guard"), "{error}");
        stub.set("stub_captures_unseen", false);
        assert_eq!(device.memory().adrift_bytes, adrift);
        assert_eq!(sweep().unwrap(), adrift);
        assert_eq!(stub.count("stub_everywhere"), recorded + 2);
        // Nothing is adrift: nothing is asked.
        let works = stub.count("stub_works");
        assert_eq!(sweep().unwrap(), 0);
        assert_eq!(stub.count("stub_works"), works);
        // With batches, one event each.
        device.sweep_with_batches(true);
        for _ in 0..4 {
            set_adrift();
        }
        assert_eq!(stub.count("stub_everywhere"), recorded + 5);
        // Memory is not used again before the event has fired.
        stub.set("stub_holds", true);
        let lend = || {
            let (x, _) = slab_of(&device).to_device(&device, true).unwrap();
            let x = x.lend(&one).unwrap().end_everywhere();
            (x.address(), x)
        };
        let (address, theirs) = lend();
        drop(theirs);
        let (next, kept) = lend(); // and a sweep
        assert_ne!(next, address);
        stub.set("stub_holds", false);
        // The last holder calls no driver, either.
        let (x, y) = slab_of(&device).to_device(&device, true).unwrap();
        let x = x.lend(&one).unwrap().end_everywhere();
        drop((y, one, other, kept));
        drop(device);
        let [turns, swept] = ["stub_turns", "stub_everywhere"].map(|name| stub.count(name));
        drop(x);
        assert_eq!(stub.count("stub_turns"), turns, "on this thread");
        while stub.count("stub_everywhere") == swept {
            std::thread::yield_now(); // a thread of its own closes the device, and sweeps
        }
    });
}

fn adrift_and_old(stub: &Stub) {
    log::set_logger(&Printer).unwrap();
    log::set_max_level(log::LevelFilter::Warn);
    let device = Device::cuda(0).unwrap();
    let stream = device.stream().unwrap();
    for waits in 1..=2 {
        let (x, _) = slab_of(&device).to_device(&device, true).unwrap();
        drop(x.lend(&stream).unwrap().end_everywhere());
        assert!(stub.leaves("a sweep", || device.sweep()).unwrap() > 0);
        assert_eq!(stub.count("stub_synchronized"), waits);
    }
    device.release_device_memory().unwrap();
    assert_eq!(device.memory().device_bytes, 0);
}

fn hand_over(stub: &Stub) {
    use pinfeed::interop::raw;
    stub.on_threads(|| {
        let device = Device::cuda(0).unwrap();
        let stream = device.stream().unwrap();
        let number = stub.count("stub_streams");
        let (x, _) = slab_of(&device).to_device(&device, true).unwrap();
        let mut theirs = [0f32; 64];
        let to = theirs.as_mut_ptr() as u64;
        // SAFETY: the stub's device memory is the host's, and what is enqueued is done at once.
        let copy = |to| stub.leaves("a copy", || unsafe { raw::copy_to(&x, to, &stream) });
        stub.integer("stub_captures")
            .store(number, Ordering::SeqCst);
        let error = copy(to).unwrap_err().to_string();
        assert!(error.contains("before the capture"), "{error}");
        stub.set("stub_captures", false);
        stub.set("stub_fails_copy", true);
        assert!(
            copy(to)
                .unwrap_err()
                .to_string()
                .contains("cuMemcpyDtoDAsync")
        );
        stub.set("stub_fails_copy", false);
        assert_eq!(theirs, [0.0; 64]);
        copy(to).unwrap();
        assert!(theirs.iter().enumerate().all(|(at, x)| *x == at as f32));
        // A batch of a loop costs one event, behind which its memory is free: its processing is not measured, which goes on elsewhere.
        let samples = TensorDataset::new(Tensor::from(vec![1.0f32; 64])).unwrap();
        let loader = DataLoader::builder(samples).batch_size(64);
        let loader = loader.pin_memory(&device).build().unwrap();
        let mut epoch = loader.epoch(0).prefetch_to_device(&device, 1);
        let batch = epoch.next().unwrap().unwrap();
        let recorded = stub.count("stub_recorded");
        // SAFETY: as above.
        unsafe { raw::copy_to(&batch, to, &stream) }.unwrap();
        drop(batch);
        assert_eq!(stub.count("stub_recorded") - recorded, 1);
        assert_eq!(epoch.stats().processing.count, 0);
    });
}

/// Bytes whose owner looks at the driver when it is dropped, and then panics.
struct Owner(Vec<u8>, Arc<dyn Fn() + Send + Sync>);

impl AsRef<[u8]> for Owner {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        (self.1)();
        panic!("an owner panics");
    }
}

/// It is the program's code: it runs in the program's context.
fn an_owner_that_is_dropped(stub: &Stub) {
    let dropped = Arc::new(AtomicI32::new(0));
    let order = |by_upload: bool| {
        let (mine, seen) = (stub.seen(), Arc::new(std::sync::Mutex::new(Vec::new())));
        let device = Device::cuda(0).unwrap();
        let look = {
            let (seen, dropped) = (Arc::clone(&seen), Arc::clone(&dropped));
            Arc::new(move || {
                dropped.fetch_add(1, Ordering::SeqCst);
                seen.lock().unwrap().push(Stub::find().seen());
            })
        };
        stub.set("stub_holds", true); // so that the copies are the last to hold them
        let other = slab_of(&device);
        let there = [(); 3].map(|()| {
            let tensor = Tensor::<u8>::from_owner(Owner(vec![7; 64], look.clone()), &[64]);
            tensor.unwrap().to_device(&device, true).unwrap()
        });
        stub.set("stub_holds", false);
        match by_upload {
            true => stub.leaves("an upload", || drop(other.to_device(&device, true))),
            false => stub.leaves("settling", || _ = device.memory()),
        }
        assert!(there.iter().all(|there| {
            let back = there.to_host(false).unwrap().wait().unwrap();
            back.as_slice() == [7; 64]
        }));
        assert_eq!(*seen.lock().unwrap(), [mine; 3]);
    };
    stub.on_threads(|| [false, true].into_iter().for_each(order));
    assert_eq!(dropped.load(Ordering::SeqCst), 2 * 8 * 3);
}

fn a_loan_that_is_forgotten(stub: &Stub) {
    stub.on_threads(|| {
        let device = Device::cuda(0).unwrap();
        let stream = device.stream().unwrap();
        let mut there = slab_of(&device).to_device(&device, true).unwrap();
        #[allow(clippy::mem_forget)] // that is what is tested
        std::mem::forget(there.0.on(&stream).unwrap());
        stub.leaves("the next loan", || drop(there.0.on_mut(&stream).unwrap()));
        #[allow(clippy::mem_forget)]
        std::mem::forget(there.1.on_mut(&stream).unwrap());
        assert!(is_right(&there));
        stub.leaves("dropping tensors", || drop(there));
        assert_eq!(device.memory().leaked, 0);
    });
}

/// On a thread that has no context, it is asked for, pushed and popped, and the capture mode is set and put back: five calls for an
/// upload, for the begin of a loan, and for its end.
fn calls(stub: &Stub) {
    let device = Device::cuda(0).unwrap();
    let stream = device.stream().unwrap();
    for _ in 0..5 {
        let batch = slab_of(&device);
        stub.set("stub_holds", true);
        let (upload, there) = stub.turns(|| batch.to_device(&device, true).unwrap());
        let (begin, loan) = stub.turns(|| there.0.on(&stream).unwrap());
        let (end, ()) = stub.turns(|| drop(loan));
        assert!(
            upload <= 5 && begin <= 5 && end <= 5,
            "{upload}, {begin}, {end}"
        );
        stub.set("stub_holds", false);
    }
}

fn waits(stub: &Stub) {
    let device = Device::cuda(0).unwrap();
    let streams = [(); 2].map(|()| device.stream().unwrap());
    let [batch, next] = [(); 2].map(|()| slab_of(&device));
    stub.set("stub_holds", true);
    let (mut x, y) = batch.to_device(&device, true).unwrap();
    let waits = |call: &mut dyn FnMut()| {
        let before = stub.count("stub_waits");
        call();
        stub.count("stub_waits") - before
    };
    let reads = |tensor: &DeviceTensor<f32>, stream: &_| waits(&mut || drop(tensor.on(stream)));
    let y_reads = |stream: &_| waits(&mut || drop(y.on(stream)));
    let [one, other] = &streams;
    assert_eq!((reads(&x, one), reads(&x, one), y_reads(one)), (1, 0, 0));
    assert_eq!((y_reads(other), reads(&x, other)), (1, 0));
    assert_eq!(
        (reads(&x, one), y_reads(one)),
        (1, 0),
        "the last one is known"
    );
    assert_eq!(reads(&x, &one.clone()), 0);
    // What is written later is waited for, by its own stream too.
    let writes = waits(&mut || drop(x.on_mut(other)));
    assert!(writes > 0);
    assert_eq!((reads(&x, one), reads(&x, one), y_reads(one)), (1, 1, 0));
    assert_eq!(reads(&x, other), 1);
    x.copy_from_host(&Tensor::zeros(&[8, 8]), true).unwrap();
    assert_eq!((reads(&x, one), y_reads(one)), (1, 0));
    // A stream that comes to lie where another one did.
    for _ in 0..8 {
        let new = device.stream().unwrap();
        assert_eq!((y_reads(&new), y_reads(&new)), (1, 0));
    }
    // Another batch is another upload.
    let next = next.to_device(&device, true).unwrap();
    assert_eq!((y_reads(one), reads(&next.0, one), y_reads(one)), (1, 1, 0));
    // Once it is done, nobody waits.
    stub.set("stub_holds", false);
    next.0.synchronize().unwrap();
    assert_eq!(reads(&next.0, other), 0);
}

fn far_behind(stub: &Stub) {
    const BATCHES: usize = 100;
    let device = Device::cuda(0).unwrap();
    let stream = device.stream().unwrap();
    let batches: Vec<_> = (0..BATCHES).map(|_| slab_of(&device)).collect();
    stub.set("stub_holds", true); // all of them
    for (number, batch) in batches.into_iter().enumerate() {
        let before = stub.count("stub_queries");
        let there = batch.to_device(&device, true).unwrap();
        let asked = stub.count("stub_queries") - before;
        // The first of the copies, of the batches that were dropped, and of those whose processing is measured.
        assert!(asked <= 3, "{asked} with {number} batches behind");
        drop(there.0.on(&stream).unwrap());
    }
    assert_eq!(device.memory().device_held_bytes, 0);
    let bytes = device.memory().device_bytes;
    stub.set("stub_holds", false);
    assert!(is_right(
        &slab_of(&device).to_device(&device, true).unwrap()
    ));
    assert_eq!(device.memory().device_bytes, bytes, "it is used again");
}

fn together(stub: &Stub) {
    const BATCHES: u64 = 40;
    let device = Device::cuda(0).unwrap();
    let rows = Tensor::from((0..8 * BATCHES as i64).collect::<Vec<_>>());
    let loader = DataLoader::builder(TensorDataset::new(rows).unwrap())
        .batch_size(8)
        .num_workers(2)
        .prefetch(BATCHES as usize)
        .pin_memory(&device)
        .build::<Tensor<i64>>()
        .unwrap();
    for epoch in 0..3 {
        let batches = loader.epoch(epoch);
        while batches.stats().made.batches < BATCHES {
            std::thread::sleep(Duration::from_millis(1));
        }
        let mut there = batches.prefetch_to_device(&device, BATCHES as usize);
        let (turns, first) = stub.turns(|| there.next().unwrap().unwrap());
        // Five for each submission: of the first batch, which tells how large they are, and of 16 at a time of the others. One by one,
        // they would be 200.
        assert!(turns <= 40, "{turns}");
        let batches = std::iter::once(first).chain(there.map(Result::unwrap));
        for (batch, first) in batches.zip((0..).step_by(8)) {
            let batch = batch.to_host(false).unwrap().wait().unwrap();
            assert!(batch.as_slice().iter().copied().eq(first..first + 8));
        }
    }
    assert_eq!(device.memory().device_held_bytes, 0);
}

/// A loader over 300 rows that are on a device: more numbers than a kernel takes as arguments.
fn in_one_batch(table: DeviceTensor<i64>, device: &Device) -> DataLoader<Tensor<i64>> {
    let loader = DataLoader::builder(TensorDataset::new(table).unwrap()).batch_size(300);
    loader.pin_memory(device).build().unwrap()
}

fn rows_on(device: &Device) -> DeviceTensor<i64> {
    let rows = Tensor::from((0..300).collect::<Vec<i64>>());
    rows.to_device(device, true).unwrap()
}

fn a_table_that_is_read(stub: &Stub) {
    stub.on_threads(|| {
        let device = Device::cuda(0).unwrap();
        let loader = in_one_batch(rows_on(&device), &device);
        let launches = |call: &dyn Fn()| {
            let before = stub.count("stub_launches");
            stub.leaves("a batch", call);
            stub.count("stub_launches") - before
        };
        let batch = || loader.epoch(0).next().unwrap().unwrap();
        assert_eq!(launches(&|| _ = batch().as_slice()), 1);
        assert_eq!(
            launches(&|| _ = batch().to_device(&device, true).unwrap()),
            1
        );
    });
}

fn tables(stub: &Stub) {
    const ROWS: usize = 900;
    let device = Device::cuda(0).unwrap();
    let bytes = |width: usize| {
        let bytes = (0..ROWS * width).map(|at| (at * 31 % 251) as u8);
        Tensor::from_vec(bytes.collect(), &[ROWS, width]).unwrap()
    };
    // The widest row takes several pieces.
    let table = || {
        let narrow = (bytes(1), bytes(2), bytes(3), bytes(16), bytes(84));
        TensorDataset::new((
            narrow.0,
            narrow.1,
            narrow.2,
            narrow.3,
            narrow.4,
            bytes(4_099),
        ))
        .unwrap()
    };
    type Rows = (
        Tensor<u8>,
        Tensor<u8>,
        Tensor<u8>,
        Tensor<u8>,
        Tensor<u8>,
        Tensor<u8>,
    );
    let contents = |(a, b, c, d, e, f): Rows| [a, b, c, d, e, f].map(|x| x.to_vec());
    for (batch_size, pins) in [(1, true), (7, true), (7, false), (300, true), (300, false)] {
        macro_rules! loader {
            ($table:expr) => {{
                let builder = DataLoader::builder($table)
                    .batch_size(batch_size)
                    .shuffle(true);
                let builder = builder.num_workers(2).prefetch(50);
                let builder = if pins {
                    builder.pin_memory(&device)
                } else {
                    builder
                };
                builder.build::<Rows>().unwrap()
            }};
        }
        let (here, there) = (
            loader!(table()),
            loader!(table().to_device(&device).unwrap()),
        );
        let before = stub.count("stub_launches");
        let mut batches = 0;
        for epoch in there.epochs(0..2).prefetch_to_device(&device, 40) {
            let expected = here.epoch(epoch.number());
            for (found, expected) in epoch.zip(expected) {
                let (a, b, c, d, e, f) = found.unwrap();
                let found = [a, b, c, d, e, f].map(|x| x.to_host(true).unwrap().wait().unwrap());
                let found = found.map(|x| x.to_vec());
                assert!(
                    found == contents(expected.unwrap()),
                    "batch {batches} of {batch_size}"
                );
                batches += 1;
            }
        }
        assert_eq!(batches, 2 * ROWS.div_ceil(batch_size));
        assert!(stub.count("stub_launches") - before >= batches as i32 / 16);
    }
}

fn a_table_of_two_handles(stub: &Stub) {
    let maker = Device::cuda(0).unwrap();
    let stream = maker.stream().unwrap();
    let before = stub.count("stub_streams");
    let sender = Device::cuda(0).unwrap();
    let uploads = before + 1; // the first that a handle makes
    let table = rows_on(&maker);
    let address = table.on(&stream).unwrap().address();
    let loader = in_one_batch(table, &sender);
    let batch = loader.epoch(0).next().unwrap().unwrap();
    drop(loader);
    stub.integer("stub_holds_stream")
        .store(uploads, Ordering::SeqCst);
    let there = batch.to_device(&sender, true).unwrap();
    // Nobody has the table any more, but for the kernel.
    let next = rows_on(&maker);
    assert_ne!(next.on(&stream).unwrap().address(), address);
    stub.integer("stub_holds_stream").store(0, Ordering::SeqCst);
    let next = rows_on(&maker);
    assert_eq!(next.on(&stream).unwrap().address(), address);
    drop(there);
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
