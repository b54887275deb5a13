//! Loans that own their tensor: kept, moved between streams, dropped on other threads; and memory whose users no loan names.

use std::thread;
use std::time::Duration;

use pinfeed::device::{Adrift, DeviceBuffers, OwnedLoan};
use pinfeed::{Batch, DataLoader, Device, DeviceTensor, Error, Stream, Tensor, from_fn};

use crate::Test;
use crate::backend::{Backend, Foreign};

pub const TESTS: &[Test] = &[
    (
        "an_owned_loan_ends_on_each_of_its_streams",
        an_owned_loan_ends_on_each_of_its_streams,
    ),
    (
        "an_owned_loan_that_moves_leaves_an_event_behind",
        an_owned_loan_that_moves_leaves_an_event_behind,
    ),
    (
        "an_owned_writer_is_waited_for_where_it_moves",
        an_owned_writer_is_waited_for_where_it_moves,
    ),
    (
        "a_tensor_that_comes_back_waits_for_its_readers",
        a_tensor_that_comes_back_waits_for_its_readers,
    ),
    (
        "a_forgotten_owned_loan_holds_its_memory",
        a_forgotten_owned_loan_holds_its_memory,
    ),
    (
        "owned_loans_outlive_loader_and_device",
        owned_loans_outlive_loader_and_device,
    ),
    (
        "adrift_memory_is_free_behind_all_streams",
        adrift_memory_is_free_behind_all_streams,
    ),
    (
        "adrift_memory_is_swept_with_batches",
        adrift_memory_is_swept_with_batches,
    ),
    (
        "one_tensor_of_a_batch_is_adrift",
        one_tensor_of_a_batch_is_adrift,
    ),
    (
        "adrift_buffers_come_back_by_a_sweep",
        adrift_buffers_come_back_by_a_sweep,
    ),
    ("a_guard_holds_sweeps_off", a_guard_holds_sweeps_off),
    (
        "the_last_holder_may_be_a_callback",
        the_last_holder_may_be_a_callback,
    ),
    (
        "a_stream_of_another_device_takes_no_owned_loan",
        a_stream_of_another_device_takes_no_owned_loan,
    ),
];

const WORDS: usize = 2048;
const BYTES: usize = WORDS * 4;
const LATE: Duration = Duration::from_millis(15);

fn upload(device: &Device, value: u32) -> DeviceTensor<u32> {
    let tensor = Tensor::from(vec![value; WORDS]).pin(device).unwrap();
    tensor.to_device(device, true).unwrap()
}

/// Sums that kernels write one after the other, in memory of another allocator.
struct Sums {
    memory: Foreign,
    count: usize,
}

impl Sums {
    fn new(backend: &Backend, most: usize) -> Sums {
        Sums {
            memory: Foreign::new(backend, most * 4),
            count: 0,
        }
    }

    /// Where the next one goes.
    fn next(&mut self) -> u64 {
        self.count += 1;
        self.memory.address + 4 * (self.count as u64 - 1)
    }

    /// All of them; the streams that wrote them are done.
    fn read(&self, device: &Device) -> Vec<u32> {
        let stream = device.stream().unwrap();
        // SAFETY: as many were written, and the kernels are done.
        let sums = unsafe {
            device.download_raw::<u32>(self.memory.address, &[self.count], &stream, false)
        };
        sums.unwrap().wait().unwrap().to_vec()
    }
}

/// Uploads of other values, which reuse what is free, and would be seen by a kernel that reads too late.
fn overwrite(device: &Device, rounds: usize) {
    for round in 0..rounds {
        drop(upload(device, 0xDEAD_0000 + round as u32));
    }
}

fn streams(device: &Device) -> [Stream; 3] {
    [(); 3].map(|()| device.stream().unwrap())
}

fn an_owned_loan_ends_on_each_of_its_streams(backend: &Backend) {
    let device = &backend.device;
    device.set_device_budget_bytes(2 * BYTES);
    let streams = streams(device);
    let mut sums = Sums::new(backend, 30);
    for round in 1..=5 {
        let mut loan = upload(device, round).lend(&streams[0]).unwrap();
        loan.also_on(&streams[1]).unwrap();
        loan.also_on(&streams[2]).unwrap();
        for stream in &streams {
            backend.sum_slowly(stream, loan.address(), WORDS, sums.next(), LATE);
        }
        thread::spawn(move || drop(loan)).join().unwrap();
        overwrite(device, 3);
    }
    streams.each(|stream| stream.synchronize().unwrap());
    let expected = (1..=5).flat_map(|round| [round * WORDS as u32; 3]);
    assert!(sums.read(device).into_iter().eq(expected));
    assert_eq!(device.memory().leaked, 0);
}

trait Each {
    fn each(&self, f: impl Fn(&Stream));
}

impl Each for [Stream; 3] {
    fn each(&self, f: impl Fn(&Stream)) {
        self.iter().for_each(f);
    }
}

fn an_owned_loan_that_moves_leaves_an_event_behind(backend: &Backend) {
    let device = &backend.device;
    device.set_device_budget_bytes(BYTES);
    let streams = streams(device);
    let mut sums = Sums::new(backend, 3);
    let mut loan = upload(device, 9).lend(&streams[0]).unwrap();
    backend.sum_slowly(&streams[0], loan.address(), WORDS, sums.next(), 2 * LATE);
    loan.move_to(&streams[1]).unwrap();
    backend.sum_slowly(&streams[1], loan.address(), WORDS, sums.next(), LATE);
    loan.move_to(&streams[2]).unwrap();
    backend.sum_slowly(
        &streams[2],
        loan.address(),
        WORDS,
        sums.next(),
        Duration::ZERO,
    );
    drop(loan);
    overwrite(device, 2); // into the same memory
    streams.each(|stream| stream.synchronize().unwrap());
    assert_eq!(sums.read(device), [9 * WORDS as u32; 3]);
}

fn an_owned_writer_is_waited_for_where_it_moves(backend: &Backend) {
    let device = &backend.device;
    let streams = streams(device);
    let mut sums = Sums::new(backend, 2);
    let mut loan = upload(device, 1).lend_mut(&streams[0]).unwrap();
    backend.fill_slowly(&streams[0], loan.address(), WORDS, 5, 2 * LATE);
    loan.move_to(&streams[1]).unwrap();
    backend.sum_slowly(
        &streams[1],
        loan.address(),
        WORDS,
        sums.next(),
        Duration::ZERO,
    );
    backend.fill_slowly(&streams[1], loan.address(), WORDS / 2, 7, LATE);
    let tensor = thread::spawn(move || loan.into_tensor()).join().unwrap();
    let mut loan = tensor.lend(&streams[2]).unwrap();
    backend.sum_slowly(
        &streams[2],
        loan.address(),
        WORDS,
        sums.next(),
        Duration::ZERO,
    );
    loan.also_on(&streams[2]).unwrap(); // twice on one stream is no mistake
    let there = loan.into_tensor().to_host(false).unwrap().wait().unwrap();
    let expected = [vec![7; WORDS / 2], vec![5; WORDS / 2]].concat();
    assert_eq!(there.as_slice(), expected);
    let words = WORDS as u32;
    streams.each(|stream| stream.synchronize().unwrap());
    assert_eq!(sums.read(device), [5 * words, 6 * words]);
}

fn a_tensor_that_comes_back_waits_for_its_readers(backend: &Backend) {
    let device = &backend.device;
    let streams = streams(device);
    let mut sums = Sums::new(backend, 3);
    let mut loan = upload(device, 3).lend(&streams[0]).unwrap();
    loan.also_on(&streams[1]).unwrap();
    for stream in &streams[..2] {
        backend.sum_slowly(stream, loan.address(), WORDS, sums.next(), LATE);
    }
    let mut tensor = loan.into_tensor();
    let other = Tensor::from(vec![4; WORDS]).pin(device).unwrap();
    tensor.copy_from_host(&other, true).unwrap(); // behind both
    let loan = tensor.on(&streams[2]).unwrap();
    backend.sum_slowly(
        &streams[2],
        loan.address(),
        WORDS,
        sums.next(),
        Duration::ZERO,
    );
    drop(loan);
    streams.each(|stream| stream.synchronize().unwrap());
    assert_eq!(
        sums.read(device),
        [3, 3, 4].map(|value| value * WORDS as u32)
    );
}

fn a_forgotten_owned_loan_holds_its_memory(backend: &Backend) {
    let device = &backend.device;
    device.set_device_budget_bytes(2 * BYTES);
    let stream = device.stream().unwrap();
    let loan = upload(device, 1).lend(&stream).unwrap();
    let address = loan.address();
    // (It is kept until the test ends, which is the same for the library, and leaks no device.)
    let forgotten = loan;
    // What is left of the budget is used again and again, and what was forgotten never.
    for _ in 0..4 {
        let there = upload(device, 2);
        let loan = there.on(&stream).unwrap();
        assert_ne!(loan.address(), address);
    }
    let held = upload(device, 3);
    match Tensor::from(vec![4u32; WORDS]).to_device(device, true) {
        Err(Error::DeviceBudget { held_blocks, .. }) => assert_eq!(held_blocks, 2),
        other => panic!("{other:?}"),
    }
    drop(held);
    // In a buffer at a fixed address, its next turn is an error.
    let loader = numbers(device);
    device.set_device_budget_bytes(100 * BYTES);
    let buffers = DeviceBuffers::new(device, 2).unwrap();
    let mut batches = loader.epoch(0).prefetch_to_device(&buffers, 1);
    let also_forgotten = batches.next().unwrap().unwrap().lend(&stream).unwrap();
    drop(batches.next().unwrap().unwrap());
    let error = batches.next().unwrap().unwrap_err();
    assert!(matches!(error, Error::Buffers { .. }), "{error}");
    drop((forgotten, also_forgotten));
}

/// Batches of which number `n` holds `n`, everywhere.
fn numbers(device: &Device) -> DataLoader<Tensor<u32>> {
    DataLoader::builder(from_fn(80, |index, _| Ok([index as u32 / 4; WORDS / 4])))
        .batch_size(4)
        .num_workers(2)
        .pin_memory(device)
        .build()
        .unwrap()
}

fn owned_loans_outlive_loader_and_device(backend: &Backend) {
    let mut kept: Vec<(u32, OwnedLoan<u32>)> = Vec::new();
    let mut adrift: Vec<(u32, Adrift<u32>)> = Vec::new();
    {
        let device = backend.device.clone();
        let loader = numbers(&device);
        let stream = device.stream().unwrap();
        let batches = loader.epoch(0).prefetch_to_device(&device, 2);
        for (number, batch) in batches.take(7).enumerate() {
            let loan = batch.unwrap().lend(&stream).unwrap();
            match number % 2 {
                0 => kept.push((number as u32, loan)),
                _ => adrift.push((number as u32, loan.end_everywhere())),
            }
        }
        stream.synchronize().unwrap();
    }
    let stream = backend.device.stream().unwrap();
    let mut sums = Sums::new(backend, 7);
    for (_, loan) in &mut kept {
        loan.move_to(&stream).unwrap();
        backend.sum_slowly(&stream, loan.address(), WORDS, sums.next(), Duration::ZERO);
    }
    for (_, loan) in &adrift {
        backend.sum_slowly(&stream, loan.address(), WORDS, sums.next(), Duration::ZERO);
    }
    let numbers: Vec<u32> = kept
        .iter()
        .map(|(number, _)| *number)
        .chain(adrift.iter().map(|(number, _)| *number))
        .collect();
    thread::spawn(move || drop((kept, adrift))).join().unwrap();
    backend.device.sweep().unwrap();
    overwrite(&backend.device, 8);
    stream.synchronize().unwrap();
    let expected = numbers.into_iter().map(|number| number * WORDS as u32);
    assert!(sums.read(&backend.device).into_iter().eq(expected));
}

/// Three streams that the loan does not name read late. The holder lets go on another thread at once.
fn adrift_memory_is_free_behind_all_streams(backend: &Backend) {
    let device = &backend.device;
    device.set_device_budget_bytes(BYTES);
    let (named, streams) = (device.stream().unwrap(), streams(device));
    let mut sums = Sums::new(backend, 30);
    for round in 1..=5 {
        let loan = upload(device, round).lend(&named).unwrap();
        streams.each(|stream| stream.wait_for(&named).unwrap());
        let theirs = loan.end_everywhere();
        for stream in &streams {
            backend.sum_slowly(stream, theirs.address(), WORDS, sums.next(), LATE);
        }
        thread::spawn(move || drop(theirs)).join().unwrap();
        // Before a sweep it is in use, and the error says what to do.
        let memory = device.memory();
        assert_eq!((memory.adrift_bytes, memory.device_held_bytes), (BYTES, 0));
        let error = Tensor::from(vec![0u32; WORDS]).to_device(device, true);
        let error = error.unwrap_err();
        assert!(matches!(
            error,
            Error::DeviceBudget {
                adrift_bytes: BYTES,
                held_blocks: 0,
                ..
            }
        ));
        assert!(error.to_string().contains("Device::sweep"), "{error}");
        assert_eq!(device.sweep().unwrap(), BYTES);
        assert_eq!(
            (device.sweep().unwrap(), device.memory().adrift_bytes),
            (0, 0)
        );
        overwrite(device, 2); // into the same memory
    }
    streams.each(|stream| stream.synchronize().unwrap());
    let expected = (1..=5).flat_map(|round| [round * WORDS as u32; 3]);
    assert!(sums.read(device).into_iter().eq(expected));
    assert_eq!(device.memory().leaked, 0);
}

/// Batches of a loader go to a library that reads them on streams of its own and lets go in a callback, behind its kernels.
fn adrift_memory_is_swept_with_batches(backend: &Backend) {
    let device = &backend.device;
    device.sweep_with_batches(true);
    device.set_device_budget_bytes(9 * BYTES);
    let loader = numbers(device);
    let (named, streams) = (device.stream().unwrap(), streams(device));
    let mut sums = Sums::new(backend, 40);
    for epoch in 0..2 {
        let batches = loader.epoch(epoch).prefetch_to_device(device, 2);
        for (number, batch) in batches.enumerate() {
            let loan = batch.unwrap().lend(&named).unwrap();
            let stream = &streams[number % 3];
            stream.wait_for(&named).unwrap();
            let theirs = loan.end_everywhere();
            let late = Duration::from_millis(number as u64 % 4);
            backend.sum_slowly(stream, theirs.address(), WORDS, sums.next(), late);
            // Either at once, with the kernel queued, or when it is done.
            match number % 2 {
                0 => drop(theirs),
                _ => stream.host_fn(move || drop(theirs)).unwrap(),
            }
            if number % 5 == 4 {
                streams.each(|stream| stream.synchronize().unwrap()); // their callbacks ran
            }
        }
    }
    streams.each(|stream| stream.synchronize().unwrap());
    let expected = (0..40).map(|number| number % 20 * WORDS as u32);
    assert!(sums.read(device).into_iter().eq(expected));
    let memory = device.memory();
    assert_eq!((memory.leaked, memory.device_held_bytes), (0, 0));
}

/// Both tensors of a batch lie in one block. It is adrift if one of them was, whichever goes last.
fn one_tensor_of_a_batch_is_adrift(backend: &Backend) {
    let device = &backend.device;
    let (named, theirs) = (device.stream().unwrap(), device.stream().unwrap());
    let mut sums = Sums::new(backend, 12);
    device.set_device_budget_bytes(2 * BYTES);
    let pairs = from_fn(24, |index, _| {
        let number = index as u32 / 4;
        Ok(([number; WORDS / 4], [number + 1; WORDS / 4]))
    });
    let loader = DataLoader::builder(pairs)
        .batch_size(4)
        .pin_memory(device)
        .build()
        .unwrap();
    for (number, batch) in loader.epoch(0).enumerate() {
        let (x, y) = batch.unwrap().to_device(device, true).unwrap();
        let x = x.lend(&named).unwrap();
        theirs.wait_for(&named).unwrap();
        let x = x.end_everywhere();
        let y = y.lend(&named).unwrap();
        backend.sum_slowly(&theirs, x.address(), WORDS, sums.next(), LATE);
        backend.sum_slowly(&named, y.address(), WORDS, sums.next(), LATE);
        match number % 2 {
            0 => drop((x, y)),
            _ => drop((y, x)),
        }
        assert_eq!(device.memory().adrift_bytes, 2 * BYTES);
        assert_eq!(device.sweep().unwrap(), 2 * BYTES);
    }
    drop(Tensor::from(vec![77u32; 2 * WORDS]).to_device(device, true)); // over the last one
    for stream in [&named, &theirs] {
        stream.synchronize().unwrap();
    }
    let expected = (0..6).flat_map(|number| [number, number + 1].map(|value| value * WORDS as u32));
    assert!(sums.read(device).into_iter().eq(expected));
}

fn adrift_buffers_come_back_by_a_sweep(backend: &Backend) {
    let device = &backend.device;
    let loader = numbers(device);
    let (named, theirs) = (device.stream().unwrap(), device.stream().unwrap());
    let buffers = DeviceBuffers::new(device, 2).unwrap();
    let mut sums = Sums::new(backend, 20);
    let mut batches = loader.epoch(0).prefetch_to_device(&buffers, 1);
    for number in 0..4 {
        let loan = batches.next().unwrap().unwrap().lend(&named).unwrap();
        theirs.wait_for(&named).unwrap();
        let loan = loan.end_everywhere();
        backend.sum_slowly(&theirs, loan.address(), WORDS, sums.next(), LATE);
        theirs.host_fn(move || drop(loan)).unwrap();
        theirs.synchronize().unwrap();
        if number < 3 {
            assert!(device.sweep().unwrap() >= BYTES);
        }
    }
    // The fourth batch's buffer was not swept; the fifth lies in the other one.
    drop(batches.next().unwrap().unwrap());
    let error = batches.next().unwrap().unwrap_err();
    assert!(error.to_string().contains("Device::sweep"), "{error}");
    drop(batches);
    device.sweep().unwrap();
    for (number, batch) in loader.epoch(1).prefetch_to_device(&buffers, 1).enumerate() {
        let there = batch.unwrap().to_host(false).unwrap().wait().unwrap();
        assert_eq!(there.as_slice(), [number as u32; WORDS]);
    }
    assert_eq!(
        sums.read(device),
        [0, 1, 2, 3].map(|number| number * WORDS as u32)
    );
    // Buffers that are gone by the sweep: their memory is the pool's.
    let mut batches = loader.epoch(2).prefetch_to_device(&buffers, 1);
    let loan = batches
        .next()
        .unwrap()
        .unwrap()
        .lend(&named)
        .unwrap()
        .end_everywhere();
    drop((batches, loan));
    drop(buffers);
    assert!(device.sweep().unwrap() >= BYTES);
    drop(loader);
    while device.memory().device_bytes > 0 {
        // (A worker may have been sending the next batch.)
        device.release_device_memory().unwrap();
        thread::yield_now();
    }
    assert_eq!(device.memory().leaked, 0);
}

fn a_guard_holds_sweeps_off(backend: &Backend) {
    let device = &backend.device;
    device.sweep_with_batches(true);
    let stream = device.stream().unwrap();
    let guards = [device.capture_guard(), device.capture_guard()];
    for round in 1..=4 {
        drop(
            upload(device, round)
                .lend(&stream)
                .unwrap()
                .end_everywhere(),
        );
        assert_eq!(device.sweep().unwrap(), 0);
        assert_eq!(device.memory().adrift_bytes, round as usize * BYTES);
    }
    let [first, second] = guards;
    drop(first);
    assert_eq!(device.sweep().unwrap(), 0);
    thread::spawn(move || drop(second)).join().unwrap();
    drop(upload(device, 5)); // with this batch
    assert_eq!(device.memory().adrift_bytes, 0);
}

/// A callback that may call no driver has the last hold on a whole device.
fn the_last_holder_may_be_a_callback(backend: &Backend) {
    let device = match backend.is_cuda() {
        true => Device::cuda(0).unwrap(),
        false => Device::cpu(),
    };
    let stream = backend.device.stream().unwrap(); // of another handle
    let buffers = DeviceBuffers::new(&device, 2).unwrap();
    let loader = numbers(&device);
    let named = device.stream().unwrap();
    let mut batches = loader.epoch(0).prefetch_to_device(&buffers, 1);
    let in_buffer = batches.next().unwrap().unwrap().lend(&named).unwrap();
    let in_buffer = in_buffer.end_everywhere();
    let in_pool = upload(&device, 3).lend(&named).unwrap().end_everywhere();
    drop(batches);
    drop((loader, buffers));
    named.synchronize().unwrap();
    drop((named, device));
    stream.host_fn(move || drop((in_buffer, in_pool))).unwrap();
    stream.synchronize().unwrap();
}

fn a_stream_of_another_device_takes_no_owned_loan(backend: &Backend) {
    let device = &backend.device;
    let ours = device.stream().unwrap();
    let elsewhere = Device::cpu().stream().unwrap();
    let error = upload(device, 1).lend(&elsewhere).unwrap_err();
    assert!(matches!(error, Error::WrongDevice { .. }), "{error}");
    let error = upload(device, 1).lend_mut(&elsewhere).unwrap_err();
    assert!(matches!(error, Error::WrongDevice { .. }), "{error}");
    let mut loan = upload(device, 6).lend(&ours).unwrap();
    for refused in [loan.also_on(&elsewhere), loan.move_to(&elsewhere)] {
        assert!(matches!(refused, Err(Error::WrongDevice { .. })));
    }
    // The loan is as it was.
    assert_eq!(
        (&loan.shape()[..], &loan.strides()[..]),
        (&[WORDS][..], &[1][..])
    );
    assert_eq!((loan.len(), loan.size_bytes()), (WORDS, BYTES));
    let there = loan.into_tensor().to_host(false).unwrap().wait().unwrap();
    assert_eq!(there.as_slice(), [6; WORDS]);
    assert_eq!(device.memory().device_held_bytes, 0);
}
