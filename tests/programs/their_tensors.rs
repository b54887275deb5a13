//! A framework has its own allocator and its own stream. Each batch is copied into a tensor of the framework's, which knows nothing of this
//! library, and the pictures are normalised on the way.

#![allow(unsafe_code)] // the framework's memory is known by its address

use std::error::Error;

use pinfeed::interop::raw;
use pinfeed::ops::{MixupDraw, Normalize};
use pinfeed::{DataLoader, Device, Tensor, from_fn};

/// Stands for `torch.empty(…)` on the framework's stream. (A real one may be freed at once, too: its allocator goes by the stream's order.)
struct Theirs<T> {
    elements: Vec<T>,
    first: usize,
}

impl<T: Clone + Default> Theirs<T> {
    fn empty(elements: usize) -> Theirs<T> {
        let elements = vec![T::default(); elements + 16];
        // Frameworks align it to more than the 16 bytes that the kernel asks for.
        let first = elements.as_ptr().align_offset(16);
        Theirs { elements, first }
    }

    fn data_ptr(&mut self) -> u64 {
        self.elements[self.first..].as_mut_ptr() as u64
    }

    fn item(&self) -> &T {
        &self.elements[self.first]
    }
}

pub fn main() -> Result<(), Box<dyn Error>> {
    let device = Device::cpu(); // Device::cuda(0)?
    let stream = device.stream()?; // the framework's current one: raw::stream_from_handle
    let pictures = from_fn(60, |index, _| {
        Ok((Tensor::from_vec(vec![index as u8; 8 * 8 * 3], &[8, 8, 3])?, index as i64))
    });
    let loader = DataLoader::builder(pictures)
        .batch_size(20)
        .num_workers(2)
        .pin_memory(&device)
        .build()?;

    for (number, batch) in loader.epoch(0).prefetch_to_device(&device, 2).enumerate() {
        let (pictures, labels) = batch?;
        let (mut x, mut y) = (Theirs::<f32>::empty(pictures.len()), Theirs::<i64>::empty(labels.len()));
        let mix = MixupDraw::none();
        // SAFETY: both have as many elements, on this device, and are used in the stream's order.
        unsafe {
            raw::normalize_to::<f32>(&pictures, &Normalize::IMAGENET, &mix, x.data_ptr(), &stream)?;
            raw::copy_to(&labels, y.data_ptr(), &stream)?;
        }
        drop((pictures, labels)); // the ring has its memory back behind the copies
        stream.synchronize()?; // (only because the host reads it here)
        let first = number * 20;
        let red = (first as f32 / 255.0 - 0.485) / 0.229;
        assert!((x.item() - red).abs() < 1e-5 && *y.item() == first as i64);
    }
    Ok(())
}
