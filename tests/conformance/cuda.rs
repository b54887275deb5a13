//! What only a GPU can show: the embedder's own context and streams, faults that stay, and the end of the process.

use std::collections::HashMap;
use std::ffi::c_void;
use std::process::Command;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use cudarc::driver::{CudaContext, sys};
use pinfeed::device::{DeviceBuffers, Way};
use pinfeed::interop::{cudarc as interop, raw};
#[cfg(target_os = "linux")]
use pinfeed::loader::{Affinity, Placement};
use pinfeed::{Batch, DataLoader, Device, DeviceTensor, Error, Tensor, from_fn};

use crate::Test;
use crate::backend::Backend;
use crate::gathered;

pub const TESTS: &[Test] = &[
    (
        "slabs_lie_on_the_devices_node",
        slabs_lie_on_the_devices_node,
    ),
    (
        "per_thread_default_streams_know_their_thread",
        per_thread_default_streams_know_their_thread,
    ),
    (
        "a_forgotten_loan_on_another_threads_stream_leaks",
        a_forgotten_loan_on_another_threads_stream_leaks,
    ),
    (
        "the_embedders_context_stays_as_it_was",
        the_embedders_context_stays_as_it_was,
    ),
    (
        "cudarc_slices_come_to_the_host",
        cudarc_slices_come_to_the_host,
    ),
    (
        "a_raw_context_and_stream_serve",
        a_raw_context_and_stream_serve,
    ),
    (
        "a_graph_capture_is_not_disturbed",
        a_graph_capture_is_not_disturbed,
    ),
    (
        "owned_loans_take_no_per_thread_stream",
        owned_loans_take_no_per_thread_stream,
    ),
    (
        "a_sweep_beside_a_capture_waits",
        a_sweep_beside_a_capture_waits,
    ),
    (
        "a_sweep_beside_another_threads_capture_waits",
        a_sweep_beside_another_threads_capture_waits,
    ),
    (
        "a_capture_that_cannot_be_seen_is_reported",
        a_capture_that_cannot_be_seen_is_reported,
    ),
    (
        "nothing_is_handed_over_in_a_capture",
        nothing_is_handed_over_in_a_capture,
    ),
    (
        "a_captured_graph_reads_each_batch",
        a_captured_graph_reads_each_batch,
    ),
    ("rows_are_gathered_by_a_kernel", |backend| {
        assert!(backend.device.gather_by(Way::Kernel));
        gathered::rows_of_any_length_arrive(backend);
    }),
    ("rows_are_gathered_one_by_one", |backend| {
        assert!(backend.device.gather_by(Way::Rows));
        gathered::rows_of_any_length_arrive(backend);
    }),
    ("a_sticky_fault_is_an_error_everywhere", |_| child("sticky")),
    ("the_process_ends_with_copies_in_flight", |_| child("exit")),
];

const PER_THREAD: *mut c_void = 2 as *mut c_void;

fn upload(device: &Device, value: u32, words: usize) -> DeviceTensor<u32> {
    let tensor = Tensor::from_vec(vec![value; words], &[words]).unwrap();
    tensor.pin(device).unwrap().to_device(device, true).unwrap()
}

/// The driver names the device as the system does; where there are several nodes, slabs lie on the device's, or the loader says why not.
#[cfg(target_os = "linux")]
fn slabs_lie_on_the_devices_node(backend: &Backend) {
    let device = &backend.device;
    let address = device.info().unwrap().pci_address.unwrap();
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let folder = format!("/sys/bus/pci/devices/{}", address.to_ascii_lowercase());
    let node: Option<usize> = read(&format!("{folder}/numa_node")).trim().parse().ok();
    let nodes = read("/sys/devices/system/node/online");
    let node = node.filter(|_| nodes.trim().contains(['-', ',']));
    let samples = from_fn(40, |index, _| Ok(Tensor::from(vec![index as u8; 100_000])));
    let loader = DataLoader::builder(samples).batch_size(4).num_workers(2);
    let loader = loader.pin_memory(device).affinity(Affinity::Device);
    let loader = loader.strict_pinning(true).build().unwrap();
    let batch = loader.epoch(0).next().unwrap().unwrap();
    let placement = loader.placement();
    println!("{address}, node {node:?} of {}: {placement}", nodes.trim());
    if node.is_none() {
        return assert_eq!(placement, Placement::default());
    }
    if placement.problem.is_some() {
        return; // no core of that node may be used, or the system forbids it
    }
    assert_eq!(placement.node, node);
    let (mut status, none) = (-1, std::ptr::null::<libc::c_int>());
    let page = (batch.as_slice().as_ptr() as usize & !4095) as *const u8;
    // SAFETY: without target nodes it moves nothing, and writes one status.
    let asked =
        unsafe { libc::syscall(libc::SYS_move_pages, 0, 1usize, &page, none, &mut status, 0) };
    assert!(
        asked != 0 || usize::try_from(status).ok() == node,
        "{status}"
    );
}

#[cfg(not(target_os = "linux"))]
fn slabs_lie_on_the_devices_node(_: &Backend) {}

fn per_thread_default_streams_know_their_thread(backend: &Backend) {
    let device = &backend.device;
    // SAFETY: the per-thread default stream of this thread lives as long as it.
    let stream = unsafe { raw::stream_from_handle(device, PER_THREAD) };
    let mut there = upload(device, 1, 1000);
    let loan = there.on_mut(&stream).unwrap();
    backend.fill_slowly(&stream, loan.address(), 1000, 5, Duration::from_millis(30));
    drop(loan);
    std::thread::scope(|scope| {
        scope.spawn(|| assert!(matches!(there.on(&stream), Err(Error::WrongThread))));
    });
    // Dropped on another thread: the loan ended on its own, so its event says when the memory is free.
    let download = there.to_host(true).unwrap();
    std::thread::spawn(move || drop(there)).join().unwrap();
    assert_eq!(download.wait().unwrap().as_slice(), [5; 1000]);
    assert_eq!(device.memory().leaked, 0);
}

fn a_forgotten_loan_on_another_threads_stream_leaks(backend: &Backend) {
    let device = &backend.device;
    let there = std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            // SAFETY: as above; the tensor outlives the thread, and says so by leaking.
            let stream = unsafe { raw::stream_from_handle(device, PER_THREAD) };
            let there = upload(device, 1, 1000);
            std::mem::forget(there.on(&stream).unwrap());
            there
        });
        thread.join().unwrap()
    });
    drop(there);
    assert_eq!(device.memory().leaked, 1);
}

fn the_embedders_context_stays_as_it_was(_: &Backend) {
    let context = CudaContext::new(0).unwrap();
    let default = context.default_stream();
    assert!(!context.is_in_multi_stream_mode());
    let device = interop::device(&context).unwrap();
    let stream = interop::stream(&device, &default).unwrap();
    let there = upload(&device, 3, 100);
    drop(there.on(&stream).unwrap());
    assert_eq!(
        there.to_host(false).unwrap().wait().unwrap().as_slice(),
        [3; 100]
    );
    assert!(
        !context.is_in_multi_stream_mode(),
        "no event tracking was switched on in the program's own object"
    );
    // What was current on this thread stays current: here, nothing.
    std::thread::scope(|scope| {
        scope.spawn(|| {
            drop(upload(&Device::cuda(0).unwrap(), 1, 10));
            let mut current = std::ptr::null_mut();
            // SAFETY: it writes one handle.
            unsafe { sys::cuCtxGetCurrent(&mut current) }
                .result()
                .unwrap();
            assert!(current.is_null(), "the thread had no current context");
        });
    });
}

fn cudarc_slices_come_to_the_host(backend: &Backend) {
    let context = CudaContext::new(0).unwrap();
    for stream in [context.default_stream(), context.new_stream().unwrap()] {
        let slice = stream
            .clone_htod(&(0..10_000u32).collect::<Vec<_>>())
            .unwrap();
        let download = interop::to_host(&backend.device, &slice, &[100, 100], true).unwrap();
        drop(slice); // freed on its stream, behind the copy
        let zeros = stream.alloc_zeros::<u32>(10_000).unwrap();
        let back = download.wait().unwrap();
        assert_eq!(back.as_slice(), (0..10_000).collect::<Vec<_>>());
        let view = zeros.slice(10..20);
        let back = interop::to_host(&backend.device, &view, &[10], false)
            .unwrap()
            .wait()
            .unwrap();
        assert_eq!(back.as_slice(), [0; 10]);
        assert!(matches!(
            interop::to_host(&backend.device, &zeros, &[3], true),
            Err(Error::Shape(_))
        ));
    }
}

fn a_raw_context_and_stream_serve(_: &Backend) {
    let context = CudaContext::new(0).unwrap();
    let theirs = context.new_stream().unwrap();
    // SAFETY: context and stream outlive everything below.
    let device = unsafe { raw::device_from_context(0, context.cu_ctx().cast()) }.unwrap();
    // SAFETY: likewise.
    let stream = unsafe { raw::stream_from_handle(&device, theirs.cu_stream().cast()) };
    let there = upload(&device, 9, 100);
    drop(there.on(&stream).unwrap());
    let memory = theirs.clone_htod(&[7u32; 50]).unwrap();
    let (address, guard) = cudarc::driver::DevicePtr::device_ptr(&memory, &theirs);
    // SAFETY: the slice holds 50 elements, and is kept until the copy is done.
    let download = unsafe { device.download_raw::<u32>(address, &[50], &stream, true) }.unwrap();
    assert_eq!(download.wait().unwrap().as_slice(), [7; 50]);
    drop(guard);
    assert_eq!(
        there.to_host(true).unwrap().wait().unwrap().as_slice(),
        [9; 100]
    );
}

/// While a program captures a graph in the strict (global) mode, a loader goes on beside it.
fn a_graph_capture_is_not_disturbed(backend: &Backend) {
    let context = CudaContext::new(0).unwrap();
    context.bind_to_thread().unwrap();
    let theirs = context.new_stream().unwrap();
    let loader = DataLoader::builder(from_fn(400, |index, _| Ok([index as u32; 1000])))
        .batch_size(10)
        .num_workers(2)
        .pin_memory(&backend.device)
        .build()
        .unwrap();
    let stream = theirs.cu_stream();
    let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL;
    // SAFETY: a capture of a stream of this test, ended below.
    unsafe { sys::cuStreamBeginCapture_v2(stream, mode) }
        .result()
        .unwrap();
    for batch in loader.epoch(0) {
        let there = batch.unwrap().to_device(&backend.device, true).unwrap();
        there.synchronize().unwrap();
    }
    let mut graph = std::ptr::null_mut();
    // SAFETY: it ends the capture above.
    unsafe { sys::cuStreamEndCapture(stream, &mut graph) }
        .result()
        .expect("the capture was not invalidated");
    // SAFETY: the graph is this test's.
    unsafe { sys::cuGraphDestroy(graph) }.result().unwrap();
}

/// The handle of a per-thread default stream names another stream on the thread where the loan may end.
fn owned_loans_take_no_per_thread_stream(backend: &Backend) {
    let device = &backend.device;
    // SAFETY: the stream is always there.
    let own = unsafe { raw::stream_from_handle(device, PER_THREAD) };
    let error = upload(device, 1, 100).lend(&own).unwrap_err();
    assert!(error.to_string().contains("DeviceTensor::on"), "{error}");
    let error = upload(device, 1, 100).lend_mut(&own).unwrap_err();
    assert!(matches!(error, Error::InvalidOption { .. }), "{error}");
    let mut loan = upload(device, 1, 100)
        .lend(&device.stream().unwrap())
        .unwrap();
    assert!(loan.also_on(&own).is_err() && loan.move_to(&own).is_err());
    assert_eq!((device.memory().leaked, loan.len()), (0, 100));
}

const MODES: [sys::CUstreamCaptureMode; 3] = [
    sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL,
    sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
    sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED,
];

/// A stream of the driver's, which the device does not know.
struct Theirs(sys::CUstream);

// SAFETY: a stream's handle may be used from any thread.
unsafe impl Send for Theirs {}

impl Theirs {
    fn new(flags: sys::CUstream_flags) -> Theirs {
        let context = CudaContext::new(0).unwrap();
        context.bind_to_thread().unwrap();
        let mut stream = std::ptr::null_mut();
        // SAFETY: it writes one handle.
        unsafe { sys::cuStreamCreate(&mut stream, flags as u32) }
            .result()
            .unwrap();
        Theirs(stream)
    }

    fn begin(&self, mode: sys::CUstreamCaptureMode) {
        CudaContext::new(0).unwrap().bind_to_thread().unwrap();
        // SAFETY: a capture of a stream of this test, which ends it.
        unsafe { sys::cuStreamBeginCapture_v2(self.0, mode) }
            .result()
            .unwrap();
    }

    /// Ends the capture. Whether it was left alone.
    fn end(&self) -> bool {
        let mut graph = std::ptr::null_mut();
        // SAFETY: it ends the capture that was begun.
        let ended = unsafe { sys::cuStreamEndCapture(self.0, &mut graph) }.result();
        if !graph.is_null() {
            // SAFETY: the graph is this test's.
            unsafe { sys::cuGraphDestroy(graph) }.result().unwrap();
        }
        ended.is_ok()
    }
}

impl Drop for Theirs {
    fn drop(&mut self) {
        // SAFETY: it was made here, and nothing else holds it.
        unsafe { sys::cuStreamDestroy_v2(self.0) }.result().unwrap();
    }
}

/// Some memory goes adrift.
fn set_adrift(device: &Device) {
    let stream = device.stream().unwrap();
    drop(
        upload(device, 1, 100)
            .lend(&stream)
            .unwrap()
            .end_everywhere(),
    );
}

/// On a stream that the device knows, and on one that waits for the legacy default stream, a capture is seen: whatever its mode is, it goes
/// on, a loader goes on beside it, and memory that is adrift waits.
fn a_sweep_beside_a_capture_waits(backend: &Backend) {
    let device = &backend.device;
    device.sweep_with_batches(true);
    let known = Theirs::new(sys::CUstream_flags::CU_STREAM_NON_BLOCKING);
    // SAFETY: it lives as long as this.
    let _known = unsafe { raw::stream_from_handle(device, known.0.cast()) };
    let unknown = Theirs::new(sys::CUstream_flags::CU_STREAM_DEFAULT);
    let loader = DataLoader::builder(from_fn(40, |index, _| Ok([index as u32; 1000])))
        .batch_size(10)
        .num_workers(2)
        .pin_memory(device)
        .build()
        .unwrap();
    loader.epoch(0).prefetch_to_device(device, 1).for_each(drop); // memory is there
    for (captured, name) in [(&known, "known"), (&unknown, "blocking")] {
        for mode in MODES {
            set_adrift(device);
            captured.begin(mode);
            assert_eq!(device.sweep().unwrap(), 0, "{name}, {mode:?}");
            for batch in loader.epoch(0).prefetch_to_device(device, 1) {
                batch.unwrap().synchronize().unwrap();
            }
            assert!(captured.end(), "{name}, {mode:?}");
            assert!(device.memory().adrift_bytes > 0);
            assert!(device.sweep().unwrap() > 0, "{name}, {mode:?}");
            assert_eq!(device.memory().adrift_bytes, 0);
        }
    }
}

/// A thread captures again and again, on a stream that cannot be seen, under a guard. Another one sweeps all the time.
fn a_sweep_beside_another_threads_capture_waits(backend: &Backend) {
    let device = backend.device.clone();
    let (over, is_over) = std::sync::mpsc::channel::<()>();
    let capturing = std::thread::spawn(move || {
        let stream = Theirs::new(sys::CUstream_flags::CU_STREAM_NON_BLOCKING);
        for round in 0..60 {
            let _guard = device.capture_guard();
            stream.begin(MODES[round % 3]);
            std::thread::sleep(Duration::from_millis(1));
            assert!(stream.end(), "round {round}");
        }
        drop(over);
    });
    let mut swept = 0;
    while is_over.try_recv() != Err(std::sync::mpsc::TryRecvError::Disconnected) {
        set_adrift(&backend.device);
        swept += backend.device.sweep().unwrap();
    }
    capturing.join().unwrap();
    swept += backend.device.sweep().unwrap();
    assert!(swept > 0);
    assert_eq!(backend.device.memory().adrift_bytes, 0);
}

/// Without a guard, such a capture fails. The sweep says so, with what to do, and the next one works.
fn a_capture_that_cannot_be_seen_is_reported(backend: &Backend) {
    let device = &backend.device;
    if device.info().unwrap().driver_version < Some(12_050) {
        return; // such a driver has no event of the context
    }
    let stream = Theirs::new(sys::CUstream_flags::CU_STREAM_NON_BLOCKING);
    for mode in MODES {
        set_adrift(device);
        stream.begin(mode);
        let error = device.sweep().unwrap_err();
        assert!(
            error.to_string().contains("Device::capture_guard"),
            "{error}"
        );
        assert!(!stream.end());
        assert!(device.memory().adrift_bytes > 0);
        assert!(device.sweep().unwrap() > 0);
    }
    assert_eq!(device.memory().leaked, 0);
}

/// A graph would read the tensor's memory at each launch.
fn nothing_is_handed_over_in_a_capture(backend: &Backend) {
    let device = &backend.device;
    let captured = Theirs::new(sys::CUstream_flags::CU_STREAM_NON_BLOCKING);
    // SAFETY: it lives as long as this.
    let stream = unsafe { raw::stream_from_handle(device, captured.0.cast()) };
    let batch = upload(device, 5, 100);
    let memory = crate::backend::Foreign::new(backend, 400);
    batch.synchronize().unwrap();
    captured.begin(MODES[0]);
    // SAFETY: it is refused.
    let error = unsafe { raw::copy_to(&batch, memory.address, &stream) }.unwrap_err();
    assert!(error.to_string().contains("before the capture"), "{error}");
    assert!(captured.end());
    // SAFETY: there are as many bytes, which are used on this stream only.
    unsafe { raw::copy_to(&batch, memory.address, &stream) }.unwrap();
    // SAFETY: likewise.
    let there = unsafe { device.download_raw::<u32>(memory.address, &[100], &stream, false) };
    assert_eq!(there.unwrap().wait().unwrap().as_slice(), [5; 100]);
    assert_eq!(device.memory().leaked, 0);
}

/// A step is captured once for each buffer, and launched for every batch that comes to lie there, through several epochs. It begins late,
/// so a batch that was written too early would be seen.
fn a_captured_graph_reads_each_batch(backend: &Backend) {
    const WORDS: usize = 50_000;
    let device = &backend.device;
    let loader = DataLoader::builder(from_fn(40, |index, _| Ok([index as u32 + 1; WORDS / 4])))
        .batch_size(4)
        .num_workers(2)
        .pin_memory(device)
        .build()
        .unwrap();
    let context = CudaContext::new(0).unwrap();
    context.bind_to_thread().unwrap();
    let theirs = context.new_stream().unwrap();
    let stream = interop::stream(device, &theirs).unwrap();
    let raw = theirs.cu_stream();
    for count in [1, 2, 3] {
        let buffers = DeviceBuffers::new(device, count).unwrap();
        let mut output = Tensor::<u32>::zeros(&[WORDS])
            .to_device(device, false)
            .unwrap();
        let mut late = Tensor::<u32>::zeros(&[1]).to_device(device, false).unwrap();
        let mut sums = Tensor::<u32>::zeros(&[30])
            .to_device(device, false)
            .unwrap();
        let mut graphs: HashMap<u64, sys::CUgraphExec> = HashMap::new();
        for (number, batch) in loader
            .epochs(0..3)
            .prefetch_to_device(&buffers, 2)
            .flatten()
            .enumerate()
        {
            let batch = batch.unwrap();
            {
                let input = batch.on(&stream).unwrap();
                let output = output.on_mut(&stream).unwrap();
                let (from, to) = (input.address(), output.address());
                let graph = *graphs.entry(from).or_insert_with(|| {
                    // SAFETY: a copy between memory that loans keep for this stream is captured, and not run; what is captured is ended
                    // and instantiated here.
                    unsafe {
                        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL;
                        sys::cuStreamBeginCapture_v2(raw, mode).result().unwrap();
                        sys::cuMemcpyDtoDAsync_v2(to, from, WORDS * 4, raw)
                            .result()
                            .unwrap();
                        let (mut graph, mut exec) = (std::ptr::null_mut(), std::ptr::null_mut());
                        sys::cuStreamEndCapture(raw, &mut graph).result().unwrap();
                        sys::cuGraphInstantiateWithFlags(&mut exec, graph, 0)
                            .result()
                            .unwrap();
                        sys::cuGraphDestroy(graph).result().unwrap();
                        exec
                    }
                });
                let wait = late.on_mut(&stream).unwrap();
                let time = Duration::from_millis(if number % 4 == 0 { 3 } else { 0 });
                backend.sum_slowly(&stream, wait.address(), 1, wait.address(), time); // zero, again
                // SAFETY: the graph reads the batch and writes the output, both of which are lent to this stream.
                unsafe { sys::cuGraphLaunch(graph, raw) }.result().unwrap();
                let sums = sums.on_mut(&stream).unwrap();
                let sum = sums.address() + 4 * number as u64;
                backend.sum_slowly(&stream, to, WORDS, sum, Duration::ZERO);
            }
            // The batch goes, and its kernels have not run.
        }
        let sums = sums.to_host(true).unwrap().wait().unwrap();
        for (number, sum) in sums.as_slice().iter().enumerate() {
            let first = number as u32 % 10 * 4;
            let expected = (first + 1..=first + 4).sum::<u32>() * (WORDS as u32 / 4);
            assert_eq!(*sum, expected, "batch {number}, {count} buffers");
        }
        assert_eq!(graphs.len(), count);
        for graph in graphs.into_values() {
            // SAFETY: its last launch is done: its output was read.
            unsafe { sys::cuGraphExecDestroy(graph) }.result().unwrap();
        }
    }
}

/// Runs a scenario in a process of its own, for it ends badly for the whole process.
fn child(scenario: &str) {
    let output = Command::new(std::env::current_exe().unwrap())
        .env("PINFEED_CHILD", scenario)
        .output()
        .unwrap();
    let (out, errors) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(
        output.status.success() && out.contains("survived"),
        "{:?}\n{out}\n{errors}",
        output.status
    );
}

/// The scenarios of [`child`].
pub fn run_child(scenario: &str) {
    let backend = Backend::cuda().unwrap();
    match scenario {
        "sticky" => sticky(&backend),
        "exit" => exit_in_flight(backend),
        other => panic!("unknown scenario {other}"),
    }
    println!("survived");
}

/// A kernel writes where nothing is: from then on the context answers every call with that fault.
fn sticky(backend: &Backend) {
    let device = &backend.device;
    let stream = device.stream().unwrap();
    let loader = DataLoader::builder(from_fn(400, |index, _| Ok([index as u32; 1000])))
        .batch_size(10)
        .num_workers(2)
        .pin_memory(device)
        .build()
        .unwrap();
    let mut epoch = loader.epoch(0);
    let first = epoch
        .next()
        .unwrap()
        .unwrap()
        .to_device(device, true)
        .unwrap();
    let loan = first.on(&stream).unwrap();
    let download = first.to_host(true).unwrap();
    backend.fill_slowly(&stream, 64, 1, 1, Duration::from_millis(1));
    assert!(matches!(stream.synchronize(), Err(Error::Device { .. })));
    drop(loan);
    assert!(matches!(first.to_host(true), Err(Error::Device { .. })));
    let mut refused = 0;
    for batch in epoch {
        // Never a short epoch: either a batch that the device then refuses, or an error in its place.
        refused += usize::from(
            batch
                .and_then(|batch| batch.to_device(device, true))
                .is_err(),
        );
    }
    assert_eq!(refused, 39);
    drop((first, download));
    drop(loader);
    assert!(
        device.memory().leaked > 0,
        "memory that the device may still use is given up"
    );
}

type Kept = (Device, DeviceTensor<u32>, Arc<DataLoader<Tensor<u32>>>);

static KEPT: OnceLock<Kept> = OnceLock::new();

fn exit_in_flight(backend: Backend) {
    let device = backend.device.clone();
    let stream = device.stream().unwrap();
    let dataset = from_fn(400, |index, _| Ok(vec![index as u32; 100_000]));
    let loader = DataLoader::builder(dataset)
        .batch_size(10)
        .num_workers(2)
        .pin_memory(&device)
        .build()
        .unwrap();
    let loader = Arc::new(loader);
    let mut epoch = loader.owned_epoch(0);
    let mut there = epoch
        .next()
        .unwrap()
        .unwrap()
        .to_device(&device, true)
        .unwrap();
    let loan = there.on_mut(&stream).unwrap();
    backend.fill_slowly(&stream, loan.address(), 1000, 1, Duration::from_millis(200));
    drop(loan);
    drop(there.to_host(true).unwrap());
    std::thread::spawn(move || {
        for batch in epoch {
            drop(batch.unwrap());
            std::thread::sleep(Duration::from_millis(5));
        }
    });
    let _ = KEPT.set((device, there, loader));
}
