//! Batches go to a library that takes DLPack's struct, as NumPy, PyTorch, CuPy and JAX do: where they lie, and kept as long as it likes.

#![allow(unsafe_code)] // DLPack is a struct of pointers

use std::error::Error;
use std::sync::mpsc::channel;
use std::thread;

use pinfeed::interop::dlpack::{DLManagedTensorVersioned, Exported};
use pinfeed::{DataLoader, Device, from_fn};

/// What the library keeps of a tensor.
struct Array(*mut DLManagedTensorVersioned);

// SAFETY: the library uses it on one thread at a time.
unsafe impl Send for Array {}

impl Drop for Array {
    fn drop(&mut self) {
        // SAFETY: it owns the struct.
        unsafe {
            if let Some(deleter) = (*self.0).deleter {
                deleter(self.0);
            }
        }
    }
}

impl Array {
    fn sum(&self) -> f32 {
        // SAFETY: the struct says what is there; this library knows dense host memory of f32 only.
        unsafe {
            let tensor = &(*self.0).dl_tensor;
            assert_eq!((tensor.device.device_type, tensor.dtype.code, tensor.dtype.bits), (1, 2, 32));
            let shape = std::slice::from_raw_parts(tensor.shape, tensor.ndim as usize);
            let elements = shape.iter().product::<i64>() as usize;
            std::slice::from_raw_parts(tensor.data.cast::<f32>(), elements).iter().sum()
        }
    }
}

pub fn main() -> Result<(), Box<dyn Error>> {
    let device = Device::cpu(); // Device::cuda(0)?
    device.sweep_with_batches(true); // nothing here captures graphs
    let stream = device.stream()?; // on a GPU, the library's own: interop::dlpack::consumer_stream
    let samples = || from_fn(1_000, |index, _| Ok([index as f32; 64]));
    let (arrays, given) = channel::<Array>();
    let library = thread::Builder::new().name("library".to_owned());
    let library = library.spawn(move || given.into_iter().map(|array| array.sum()).sum::<f32>())?;

    // Of a loader without a device: in host memory, which the library may write.
    for batch in &DataLoader::builder(samples()).batch_size(50).num_workers(2).build()? {
        arrays.send(Array(Exported::host(batch?)?.into_versioned()))?;
    }
    // Of one with a device: in that device's memory.
    let loader = DataLoader::builder(samples()).batch_size(50).num_workers(2).pin_memory(&device).build()?;
    for batch in loader.epoch(0).prefetch_to_device(&device, 2) {
        arrays.send(Array(Exported::device(batch?, &stream)?.into_versioned()))?;
    }
    drop((arrays, loader));
    let sum = library.join().map_err(|_| "the library panicked")?;
    assert_eq!(sum, 2.0 * 64.0 * 999.0 * 1_000.0 / 2.0);
    device.sweep()?;
    assert_eq!(device.memory().adrift_bytes, 0);
    Ok(())
}
