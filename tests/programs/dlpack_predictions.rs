//! A model of another library makes predictions on the device, in memory of its own. They come in by DLPack, and are saved while the next
//! batch is loaded.

#![allow(unsafe_code)] // DLPack is a struct of pointers

use std::error::Error;

use pinfeed::interop::dlpack::{DLDevice, Exported, Imported};
use pinfeed::tensor::DType;
use pinfeed::{DataLoader, Device, from_fn};

pub fn main() -> Result<(), Box<dyn Error>> {
    let device = Device::cpu(); // Device::cuda(0)?
    let stream = device.stream()?; // on a GPU, the model's
    let samples = from_fn(500, |index, _| Ok([index as f32, 1.0]));
    let loader = DataLoader::builder(samples).batch_size(50).num_workers(2).pin_memory(&device).build()?;
    let mut saved: Vec<f32> = Vec::new();
    let mut last = None;
    for batch in loader.epoch(0).prefetch_to_device(&device, 1) {
        let batch = batch?.lend(&stream)?;
        // Stands for the model: on a GPU, a kernel that reads `batch.address()`.
        let rows = batch.host_slice()?.unwrap_or_default().chunks(2);
        let predictions: Box<Vec<f32>> = Box::new(rows.map(|row| 2.0 * row[0] + row[1]).collect());
        drop(batch);

        let (data, shape) = (predictions.as_ptr().cast_mut().cast(), [predictions.len()]);
        // SAFETY: as many numbers are there as long as the vector lives, in memory of this device. (This is the model's side.)
        let theirs = unsafe { Exported::from_raw_parts(data, DLDevice::CPU, DType::F32.into(), &shape, 0, predictions) }?;
        // SAFETY: it was just exported, and is used once.
        let theirs = unsafe { Imported::from_versioned(theirs.into_versioned()) }?;
        // SAFETY: the model writes them on this stream only, and is done with it.
        let there = unsafe { theirs.to_device::<f32>(&device, &stream) }?; // its deleter was called
        let download = there.to_host(true)?;
        if let Some(before) = last.replace(download) {
            saved.extend(pinfeed::device::Download::wait(before)?.as_slice());
        }
    }
    if let Some(last) = last {
        saved.extend(last.wait()?.as_slice());
    }
    assert!(saved.into_iter().eq((0..500).map(|index| 2.0 * index as f32 + 1.0)));
    Ok(())
}
