//! Device memory that leaves by DLPack, and that of others which comes in.

use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use pinfeed::interop::dlpack::{
    DLDevice, DLManagedTensorVersioned, DLPackVersion, DLTensor, Exported, Imported,
};
use pinfeed::tensor::DType;
use pinfeed::{Batch, DataLoader, Device, DeviceTensor, Error, Stream, Tensor, from_fn};

use crate::Test;
use crate::backend::{Backend, Foreign};

pub const TESTS: &[Test] = &[
    (
        "a_deleter_tells_no_stream_and_need_not",
        a_deleter_tells_no_stream_and_need_not,
    ),
    (
        "exports_outlive_loader_and_device",
        exports_outlive_loader_and_device,
    ),
    (
        "the_last_of_several_exports_lets_go",
        the_last_of_several_exports_lets_go,
    ),
    (
        "an_import_is_copied_and_let_go_once",
        an_import_is_copied_and_let_go_once,
    ),
    (
        "an_import_that_fails_is_let_go_once",
        an_import_that_fails_is_let_go_once,
    ),
    (
        "page_locked_memory_never_leaves",
        page_locked_memory_never_leaves,
    ),
];

const WORDS: usize = 2048;
const BYTES: usize = WORDS * 4;
const LATE: Duration = Duration::from_millis(15);

fn upload(device: &Device, value: u32) -> DeviceTensor<u32> {
    let tensor = Tensor::from(vec![value; WORDS]).pin(device).unwrap();
    tensor.to_device(device, true).unwrap()
}

/// What a consumer has of a capsule.
struct Theirs(*mut DLManagedTensorVersioned);

// SAFETY: a consumer may be on any thread.
unsafe impl Send for Theirs {}

impl Theirs {
    fn of(exported: Exported) -> Theirs {
        Theirs(exported.into_versioned())
    }

    fn address(&self) -> u64 {
        // SAFETY: its deleter was not called.
        unsafe { (*self.0).dl_tensor.data as u64 }
    }

    fn device(&self) -> DLDevice {
        // SAFETY: as above.
        unsafe { (*self.0).dl_tensor.device }
    }

    fn delete(self) {
        // SAFETY: once, by value.
        unsafe { ((*self.0).deleter.unwrap())(self.0) };
    }
}

/// The sums of kernels that read late, each in a word of its own.
fn read(device: &Device, sums: &Foreign, count: usize) -> Vec<u32> {
    let stream = device.stream().unwrap();
    // SAFETY: as many were written, and the kernels are done.
    let read = unsafe { device.download_raw::<u32>(sums.address, &[count], &stream, false) };
    read.unwrap().wait().unwrap().to_vec()
}

/// Three streams that the export does not name read late, when the deleter was called long before, on another thread; and the memory is
/// wanted at once.
fn a_deleter_tells_no_stream_and_need_not(backend: &Backend) {
    let device = &backend.device;
    device.set_device_budget_bytes(BYTES);
    let named = device.stream().unwrap();
    let streams: [Stream; 3] = [(); 3].map(|()| device.stream().unwrap());
    let sums = Foreign::new(backend, 15 * 4);
    for round in 0..5 {
        let exported = Exported::device(upload(device, round + 1), &named).unwrap();
        assert!(!exported.is_read_only());
        let theirs = Theirs::of(exported);
        let expected = match backend.is_cuda() {
            true => DLDevice::cuda(0),
            false => DLDevice::CPU,
        };
        assert_eq!(theirs.device(), expected);
        for (place, stream) in streams.iter().enumerate() {
            stream.wait_for(&named).unwrap(); // as a consumer's does
            let sum = sums.address + 4 * (3 * u64::from(round) + place as u64);
            backend.sum_slowly(stream, theirs.address(), WORDS, sum, LATE);
        }
        thread::spawn(move || theirs.delete()).join().unwrap();
        let error = Tensor::from(vec![0u32; WORDS]).to_device(device, true);
        assert!(matches!(
            error.unwrap_err(),
            Error::DeviceBudget {
                adrift_bytes: BYTES,
                ..
            }
        ));
        assert_eq!(device.sweep().unwrap(), BYTES);
        drop(upload(device, 0xDEAD)); // into the same memory
    }
    streams
        .iter()
        .for_each(|stream| stream.synchronize().unwrap());
    let expected = (1..=5).flat_map(|value| [value * WORDS as u32; 3]);
    assert!(read(device, &sums, 15).into_iter().eq(expected));
    assert_eq!(device.memory().leaked, 0);
}

fn exports_outlive_loader_and_device(backend: &Backend) {
    let sums = Foreign::new(backend, 6 * 4);
    let mut kept = Vec::new();
    {
        let device = backend.device.clone();
        let samples = from_fn(24, |index, _| Ok([index as u32 / 4; WORDS / 4]));
        let loader = DataLoader::builder(samples).batch_size(4).num_workers(2);
        let loader = loader.pin_memory(&device).build().unwrap();
        let stream = device.stream().unwrap();
        for batch in loader.epoch(0).prefetch_to_device(&device, 2) {
            kept.push(Theirs::of(
                Exported::device(batch.unwrap(), &stream).unwrap(),
            ));
        }
        stream.synchronize().unwrap();
    }
    let stream = backend.device.stream().unwrap();
    for (number, theirs) in kept.iter().enumerate() {
        let sum = sums.address + 4 * number as u64;
        backend.sum_slowly(
            &stream,
            theirs.address(),
            WORDS,
            sum,
            Duration::from_millis(2),
        );
    }
    // In a callback, or on a thread.
    let (odd, even): (Vec<_>, Vec<_>) = kept
        .into_iter()
        .enumerate()
        .partition(|(number, _)| number % 2 == 1);
    thread::spawn(move || even.into_iter().for_each(|(_, theirs)| theirs.delete()))
        .join()
        .unwrap();
    for (_, theirs) in odd {
        stream
            .host_fn(move || {
                let theirs = theirs;
                theirs.delete();
            })
            .unwrap();
    }
    backend.device.sweep().unwrap();
    for _ in 0..8 {
        drop(upload(&backend.device, 0xDEAD));
    }
    stream.synchronize().unwrap();
    let expected = (0..6).map(|number| number * WORDS as u32);
    assert!(read(&backend.device, &sums, 6).into_iter().eq(expected));
}

fn the_last_of_several_exports_lets_go(backend: &Backend) {
    let device = &backend.device;
    let stream = device.stream().unwrap();
    let shared = Arc::new(upload(device, 3).lend(&stream).unwrap().end_everywhere());
    stream.synchronize().unwrap();
    let adrift = || device.memory().adrift_bytes;
    let all: Vec<Exported> = (0..4)
        .map(|_| Exported::adrift(Arc::clone(&shared)).unwrap())
        .collect();
    drop(shared);
    for (place, exported) in all.into_iter().enumerate() {
        assert_eq!(adrift(), 0);
        match place % 2 {
            0 => drop(exported), // which no consumer took
            _ => Theirs::of(exported).delete(),
        }
    }
    assert_eq!(adrift(), BYTES);
    assert_eq!(device.sweep().unwrap(), BYTES);
}

/// A tensor of another allocator's, whose deleter counts.
fn foreign(
    backend: &Backend,
    memory: &Foreign,
    shape: &mut [i64],
    deleted: &Arc<AtomicUsize>,
) -> *mut DLManagedTensorVersioned {
    unsafe extern "C" fn delete(managed: *mut DLManagedTensorVersioned) {
        // SAFETY: both were made below.
        unsafe {
            let deleted = Arc::from_raw((*managed).manager_ctx.cast::<AtomicUsize>().cast_const());
            deleted.fetch_add(1, Ordering::SeqCst);
            drop(Box::from_raw(managed));
        }
    }
    Box::into_raw(Box::new(DLManagedTensorVersioned {
        version: DLPackVersion { major: 1, minor: 1 },
        manager_ctx: Arc::into_raw(Arc::clone(deleted)).cast_mut().cast(),
        deleter: Some(delete),
        flags: 0,
        dl_tensor: DLTensor {
            data: memory.address as *mut c_void,
            device: match backend.is_cuda() {
                true => DLDevice::cuda(0),
                false => DLDevice::CPU,
            },
            ndim: shape.len() as i32,
            dtype: DType::U32.into(),
            shape: shape.as_mut_ptr(),
            strides: std::ptr::null_mut(),
            byte_offset: 16,
        },
    }))
}

fn an_import_is_copied_and_let_go_once(backend: &Backend) {
    let device = &backend.device;
    let stream = device.stream().unwrap();
    let memory = Foreign::new(backend, BYTES + 16);
    let mut shape = [2, WORDS as i64 / 2];
    for round in 1..=3 {
        let deleted = Arc::default();
        // Its producer's stream is this one, too, and is not done.
        backend.fill_slowly(&stream, memory.address + 16, WORDS, round, LATE);
        let managed = foreign(backend, &memory, &mut shape, &deleted);
        // SAFETY: it is made as an exporter makes it, and used once.
        let imported = unsafe { Imported::from_versioned(managed) }.unwrap();
        // SAFETY: nobody writes the memory behind the stream's work so far.
        let there = unsafe { imported.to_device::<u32>(device, &stream) }.unwrap();
        assert_eq!(deleted.load(Ordering::SeqCst), 1);
        backend.fill_slowly(&stream, memory.address, WORDS, 0xDEAD, Duration::ZERO);
        assert_eq!(there.shape()[..], [2, WORDS / 2]);
        let back = there.to_host(false).unwrap().wait().unwrap();
        assert_eq!(back.as_slice(), [round; WORDS]);
    }
    let mut empty = [0, 7];
    let deleted = Arc::default();
    // SAFETY: as above.
    let none = unsafe {
        let imported = Imported::from_versioned(foreign(backend, &memory, &mut empty, &deleted));
        imported.unwrap().to_device::<u32>(device, &stream)
    };
    assert!(none.unwrap().is_empty() && deleted.load(Ordering::SeqCst) == 1);
    stream.synchronize().unwrap();
}

fn an_import_that_fails_is_let_go_once(backend: &Backend) {
    let device = &backend.device;
    let stream = device.stream().unwrap();
    let other = Device::cpu();
    let of_other = other.stream().unwrap();
    let memory = Foreign::new(backend, BYTES + 16);
    let mut shape = [WORDS as i64];
    let deleted: Arc<AtomicUsize> = Arc::default();
    let mut import = || {
        let managed = foreign(backend, &memory, &mut shape, &deleted);
        // SAFETY: it is made as an exporter makes it, and used once.
        unsafe { Imported::from_versioned(managed) }.unwrap()
    };
    // SAFETY: nobody writes the memory.
    let errors = unsafe {
        [
            import().to_device::<f32>(device, &stream).unwrap_err(),
            import().to_device::<u32>(device, &of_other).unwrap_err(),
        ]
    };
    assert!(matches!(errors[0], Error::InvalidOption { .. }));
    assert!(matches!(errors[1], Error::WrongDevice { .. }));
    // SAFETY: as above.
    let place = unsafe { import().to_device::<u32>(&other, &of_other) };
    assert_eq!(place.is_err(), backend.is_cuda()); // memory of a GPU is no host memory
    device.set_device_budget_bytes(0);
    // SAFETY: as above.
    let full = unsafe { import().to_device::<u32>(device, &stream) }.unwrap_err();
    assert!(matches!(full, Error::DeviceBudget { .. }));
    assert_eq!(deleted.load(Ordering::SeqCst), 4);
}

/// Neither memory that the program page-locked, nor a loader's for a device. An ordinary batch goes where it lies.
fn page_locked_memory_never_leaves(backend: &Backend) {
    let device = &backend.device;
    let refused = |tensor: Tensor<u32>| {
        let copy = Exported::host_copy(&tensor).unwrap();
        let (values, address) = (tensor.to_vec(), tensor.as_slice().as_ptr());
        let error = Exported::host(tensor).unwrap_err().to_string();
        assert!(
            error.contains("page-locked") && error.contains("host_copy"),
            "{error}"
        );
        // SAFETY: it was just exported, and is used once.
        let copy = unsafe { Imported::from_versioned(copy.into_versioned()) }.unwrap();
        let copy = copy.into_host::<u32>().unwrap();
        assert_eq!(copy.as_slice(), values);
        assert!(!copy.is_pinned() && copy.as_slice().as_ptr() != address);
    };
    refused(Tensor::from(vec![7; WORDS]).pin(device).unwrap());
    refused(Tensor::from(vec![7; WORDS]).register(device).unwrap());
    let samples = || from_fn(8, |index, _| Ok([index as u32; 16]));
    let loader = |pins: bool| {
        let builder = DataLoader::builder(samples()).batch_size(4);
        match pins {
            true => builder.pin_memory(device).build().unwrap(),
            false => builder.build().unwrap(),
        }
    };
    for batch in &loader(true) {
        let batch = batch.unwrap();
        refused(batch.row(1));
        refused(batch);
    }
    // Where the budget is used up, batches are in ordinary memory.
    device.set_pinned_budget_bytes(0);
    for batch in &loader(true) {
        let batch = batch.unwrap();
        let is_pinned = batch.is_pinned();
        assert_eq!(Exported::host(batch).is_err(), is_pinned);
    }
    for batch in &loader(false) {
        let batch = batch.unwrap();
        let address = batch.as_slice().as_ptr() as u64;
        let theirs = Theirs::of(Exported::host(batch).unwrap());
        assert_eq!(
            (theirs.address(), theirs.device()),
            (address, DLDevice::CPU)
        );
        theirs.delete();
    }
}
