//! Tensors are handed over into memory of another allocator, on the program's stream.

use std::time::Duration;

use half::{bf16, f16};
use pinfeed::interop::raw;
use pinfeed::ops::{MixupDraw, Normalize};
use pinfeed::tensor::{Element, Float};
use pinfeed::{Batch, Device, DeviceTensor, Error, Stream, Tensor};

use crate::Test;
use crate::backend::{Backend, Foreign};

pub const TESTS: &[Test] = &[
    (
        "tensors_are_copied_into_memory_of_another_allocator",
        tensors_are_copied_into_memory_of_another_allocator,
    ),
    (
        "a_copy_at_hand_over_is_behind_the_last_write",
        a_copy_at_hand_over_is_behind_the_last_write,
    ),
    (
        "memory_is_reused_behind_the_copy_at_hand_over",
        memory_is_reused_behind_the_copy_at_hand_over,
    ),
    (
        "pictures_are_normalized_into_memory_of_another_allocator",
        pictures_are_normalized_into_memory_of_another_allocator,
    ),
    (
        "what_cannot_be_handed_over_is_refused",
        what_cannot_be_handed_over_is_refused,
    ),
];

/// What lies at an address, behind the stream's work.
fn read<T: Element>(device: &Device, address: u64, count: usize, stream: &Stream) -> Vec<T> {
    // SAFETY: the tests name memory that has as many elements, and is alive; the call waits for the copy.
    let there = unsafe { device.download_raw::<T>(address, &[count], stream, false) }.unwrap();
    there.wait().unwrap().to_vec()
}

fn copy<T: Element>(tensor: &DeviceTensor<T>, to: u64, stream: &Stream) {
    // SAFETY: the tests hand over memory that has as many bytes, and use it on this stream only.
    unsafe { raw::copy_to(tensor, to, stream) }.unwrap();
}

fn tensors_are_copied_into_memory_of_another_allocator(backend: &Backend) {
    fn check<T: Element + PartialEq>(backend: &Backend, make: impl Fn(usize) -> T) {
        let device = &backend.device;
        let stream = device.stream().unwrap();
        for count in [0, 1, 3, 64, 1000, 70_001] {
            let elements: Vec<T> = (0..count).map(&make).collect();
            let there = Tensor::from(elements.clone())
                .to_device(device, true)
                .unwrap();
            let memory = Foreign::new(backend, there.size_bytes() + 2);
            // At an address of any alignment; and nothing beside it is touched.
            copy(&there, memory.address + 1, &stream);
            drop(there);
            let bytes = read::<u8>(device, memory.address, count * size_of::<T>() + 2, &stream);
            let (first, last) = (bytes[0], bytes[bytes.len() - 1]);
            assert_eq!((first, last), (0xEE, 0xEE), "{count}");
            let aligned = Foreign::new(backend, count * size_of::<T>());
            let there = Tensor::from(elements.clone())
                .to_device(device, true)
                .unwrap();
            copy(&there, aligned.address, &stream);
            drop(there);
            let arrived = read::<T>(device, aligned.address, count, &stream);
            assert!(arrived == elements, "{count}");
            let same = read::<u8>(device, aligned.address, count * size_of::<T>(), &stream);
            assert!(bytes[1..bytes.len() - 1] == same, "{count}");
        }
    }
    check(backend, |index| (index * 37) as u8);
    check(backend, |index| index as f32 * 0.5);
    check(backend, |index| index as i64 - 9);
    check(backend, |index| bf16::from_f32(index as f32));
    // A tensor with no elements is handed over to no memory at all.
    let nothing = Tensor::<f32>::zeros(&[4, 0])
        .to_device(&backend.device, true)
        .unwrap();
    copy(&nothing, 0, &backend.device.stream().unwrap());
}

/// The bytes that a kernel writes on one stream, late, are those that are copied on another.
fn a_copy_at_hand_over_is_behind_the_last_write(backend: &Backend) {
    let device = &backend.device;
    let [writing, theirs] = [(); 2].map(|()| device.stream().unwrap());
    let mut there = Tensor::from(vec![1u32; 5000])
        .to_device(device, true)
        .unwrap();
    let loan = there.on_mut(&writing).unwrap();
    backend.fill_slowly(&writing, loan.address(), 5000, 7, Duration::from_millis(30));
    drop(loan);
    let memory = Foreign::new(backend, 20_000);
    copy(&there, memory.address, &theirs);
    drop(there);
    assert_eq!(
        read::<u32>(device, memory.address, 5000, &theirs),
        [7; 5000]
    );
}

/// A batch is dropped while its copy waits on a busy stream. Its memory has the next batches only when it was copied.
fn memory_is_reused_behind_the_copy_at_hand_over(backend: &Backend) {
    let device = &backend.device;
    let theirs = device.stream().unwrap();
    let words = 4096;
    device.set_device_budget_bytes(3 * words * 4);
    let busy = Foreign::new(backend, 4);
    let copies: Vec<Foreign> = (0..6).map(|_| Foreign::new(backend, words * 4)).collect();
    for (number, memory) in copies.iter().enumerate() {
        // (The stream is free to write this word whenever it likes.)
        backend.fill_slowly(&theirs, busy.address, 1, 0, Duration::from_millis(10));
        let batch = Tensor::from(vec![number as u32; words])
            .to_device(device, true)
            .unwrap();
        copy(&batch, memory.address, &theirs);
    }
    for (number, memory) in copies.iter().enumerate() {
        let arrived = read::<u32>(device, memory.address, words, &theirs);
        assert_eq!(arrived, vec![number as u32; words], "batch {number}");
    }
    assert_eq!(device.memory().leaked, 0);
}

fn pictures_are_normalized_into_memory_of_another_allocator(backend: &Backend) {
    fn check<F: Float>(backend: &Backend, shape: [usize; 4], channels_last: bool, mix: &MixupDraw) {
        let device = &backend.device;
        let stream = device.stream().unwrap();
        let count = shape.iter().product();
        let bytes: Vec<u8> = (0..count)
            .map(|index: usize| (index * 37 + index / 251) as u8)
            .collect();
        let upload = || {
            let pictures = Tensor::from_vec(bytes.clone(), &shape).unwrap();
            pictures.to_device(device, true).unwrap()
        };
        let normalize = Normalize::IMAGENET.with_channels_last(channels_last);
        let expected = upload().normalize_mixed::<F>(&normalize, mix).unwrap();
        let expected = expected.to_host(false).unwrap().wait().unwrap().to_vec();
        let memory = Foreign::new(backend, count * size_of::<F>());
        let pictures = upload();
        // SAFETY: there are as many elements, and they are used on this stream only.
        unsafe { raw::normalize_to::<F>(&pictures, &normalize, mix, memory.address, &stream) }
            .unwrap();
        drop(pictures);
        let arrived = read::<F>(device, memory.address, count, &stream);
        assert!(arrived == expected, "{shape:?} {channels_last}");
    }
    let mixes = [MixupDraw::none(), MixupDraw::mixup(0.25)];
    for (channels_last, mix) in [false, true].into_iter().zip(&mixes) {
        for shape in [[1, 1, 1, 3], [2, 5, 7, 3], [3, 16, 16, 3], [0, 4, 4, 3]] {
            check::<f32>(backend, shape, channels_last, mix);
            check::<f16>(backend, shape, channels_last, mix);
            check::<bf16>(backend, shape, channels_last, mix);
        }
    }
}

fn what_cannot_be_handed_over_is_refused(backend: &Backend) {
    let device = &backend.device;
    let stream = device.stream().unwrap();
    let batch = Tensor::<u8>::zeros(&[2, 4, 4, 3])
        .to_device(device, true)
        .unwrap();
    let memory = Foreign::new(backend, 1000);
    let to = |address: u64, stream: &Stream| {
        // SAFETY: it is refused.
        unsafe { raw::copy_to(&batch, address, stream) }.unwrap_err()
    };
    let elsewhere = Device::cpu().stream().unwrap();
    let error = to(memory.address, &elsewhere);
    assert!(matches!(error, Error::WrongDevice { .. }), "{error}");
    let error = to(0, &stream);
    assert!(matches!(error, Error::InvalidOption { .. }), "{error}");
    let normalize = |tensor: &DeviceTensor<u8>, address: u64| {
        let (normalize, mix) = (Normalize::IMAGENET, MixupDraw::none());
        // SAFETY: it is refused.
        unsafe { raw::normalize_to::<f32>(tensor, &normalize, &mix, address, &stream) }.unwrap_err()
    };
    let error = normalize(&batch, memory.address / 16 * 16 + 8);
    assert!(error.to_string().contains("multiples of 16"), "{error}");
    let flat = Tensor::<u8>::zeros(&[96]).to_device(device, true).unwrap();
    let error = normalize(&flat, memory.address);
    assert!(
        error.to_string().contains("[n, height, width, 3]"),
        "{error}"
    );
    // Nothing was written, and the tensor is as it was.
    assert_eq!(
        read::<u8>(device, memory.address, 1000, &stream),
        [0xEE; 1000]
    );
    assert_eq!(
        batch.to_host(false).unwrap().wait().unwrap().as_slice(),
        [0; 96]
    );
}
