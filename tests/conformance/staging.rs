//! Staging: large copies from and into pageable memory go through slabs of the ring, in pieces, by several threads. (The
//! plain CPU device does not stage: what is promised holds there as well.)

use std::time::{Duration, Instant};

use pinfeed::device::Hostile;
use pinfeed::{Batch, Device, DeviceTensor, Tensor};

use crate::Test;
use crate::backend::Backend;

pub const TESTS: &[Test] = &[
    (
        "staged_copies_of_any_size_and_alignment_arrive",
        staged_copies_of_any_size_and_alignment_arrive,
    ),
    (
        "a_staged_source_can_be_changed_at_once",
        a_staged_source_can_be_changed_at_once,
    ),
    (
        "staged_copies_wait_for_slow_kernels",
        staged_copies_wait_for_slow_kernels,
    ),
    (
        "tensors_of_one_batch_share_staging_slabs",
        tensors_of_one_batch_share_staging_slabs,
    ),
    (
        "copies_beyond_the_budget_are_not_staged",
        copies_beyond_the_budget_are_not_staged,
    ),
    (
        "staging_page_locks_nothing_after_warm_up",
        staging_page_locks_nothing_after_warm_up,
    ),
    (
        "many_small_copies_page_lock_little",
        many_small_copies_page_lock_little,
    ),
    ("many_threads_stage_at_once", many_threads_stage_at_once),
];

/// What only a hostile device can show: it fails where it is told to.
pub const HOSTILE: &[Test] = &[
    (
        "a_few_staged_pieces_come_back",
        a_few_staged_pieces_come_back,
    ),
    ("a_failed_upload_is_an_error", |_| failures(upload)),
    ("a_failed_copy_from_the_host_is_an_error", |_| {
        failures(copy_from_host)
    }),
    ("a_failed_download_is_an_error", |_| failures(download)),
    (
        "a_device_that_breaks_while_staging_hangs_nobody",
        a_device_that_breaks_while_staging_hangs_nobody,
    ),
    (
        "what_cannot_be_page_locked_is_not_staged",
        what_cannot_be_page_locked_is_not_staged,
    ),
];

/// The size of a piece on a hostile device.
const SMALL: usize = 16 << 10;

/// The size of a piece.
pub fn piece(backend: &Backend) -> usize {
    if backend.is_cuda() { 2 << 20 } else { SMALL }
}

/// Bytes that are another at each place, and other ones for each seed.
fn bytes(seed: u64, len: usize) -> Tensor<u8> {
    let byte = |at: u64| ((at + seed * 7919).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8;
    Tensor::from_vec((0..len as u64).map(byte).collect(), &[len]).unwrap()
}

/// Bytes of the host that were used before, pageable.
fn used(len: usize) -> Tensor<u8> {
    Tensor::from_vec(vec![0x11; len], &[len]).unwrap()
}

fn fetch(there: &DeviceTensor<u8>) -> pinfeed::Result<Tensor<u8>> {
    there.copy_to_host(used(there.len()), true)?.wait()
}

/// Compares without printing megabytes.
fn assert_same(found: &[u8], expected: &[u8], what: &str) {
    let differs = found.iter().zip(expected).position(|(a, b)| a != b);
    assert_eq!(found.len(), expected.len(), "{what}");
    assert!(differs.is_none(), "{what}: byte {differs:?} is wrong");
}

fn staged_copies_of_any_size_and_alignment_arrive(backend: &Backend) {
    let device = &backend.device;
    let piece = piece(backend);
    for (seed, len) in [
        2 * piece - 1,
        2 * piece,
        2 * piece + 1,
        3 * piece - 7,
        19 * piece + 333,
    ]
    .into_iter()
    .enumerate()
    {
        // A row of odd length lies at any address.
        let rows = bytes(seed as u64, 3 * len);
        let rows = Tensor::from_vec(rows.to_vec(), &[3, len]).unwrap();
        let there = rows.row(1).to_device(device, seed % 2 == 0).unwrap();
        let back = fetch(&there).unwrap();
        assert_same(back.as_slice(), rows.row(1).as_slice(), "a row");
        let download = there.copy_to_host(back, true).unwrap();
        assert!(download.is_ready().unwrap() || device.is_cpu());
        let whole = rows.view().to_device(device, true).unwrap();
        drop(there);
        let back = whole.copy_to_host(rows_of(3, len), false).unwrap();
        assert_same(back.wait().unwrap().as_slice(), rows.as_slice(), "all rows");
    }
}

fn rows_of(rows: usize, len: usize) -> Tensor<u8> {
    Tensor::from_vec(vec![0x22; rows * len], &[rows, len]).unwrap()
}

fn a_staged_source_can_be_changed_at_once(backend: &Backend) {
    let len = 20 * piece(backend) + 5;
    let mut there = used(len).to_device(&backend.device, false).unwrap();
    let stages = backend.device.memory().slabs_made > 0;
    for round in 0..4 {
        let mut source = bytes(round, len);
        there.copy_from_host(&source, true).unwrap();
        match source.as_mut_slice() {
            Some(bytes) => bytes.fill(0xAA),
            None => assert!(!stages, "a staged source was read when the call returns"),
        }
        let expected = bytes(round, len);
        assert_same(
            fetch(&there).unwrap().as_slice(),
            expected.as_slice(),
            "copied in",
        );
    }
}

fn staged_copies_wait_for_slow_kernels(backend: &Backend) {
    let stream = backend.device.stream().unwrap();
    let words = 5 * piece(backend) / 4;
    let pause = Duration::from_millis(30);
    let mut there = Tensor::from_vec(vec![1u32; words], &[words])
        .unwrap()
        .to_device(&backend.device, true)
        .unwrap();
    for round in 2..5u32 {
        let loan = there.on_mut(&stream).unwrap();
        backend.fill_slowly(&stream, loan.address(), words, round, pause);
        drop(loan);
        let target = Tensor::zeros(&[words]);
        let written = there.copy_to_host(target, true).unwrap().wait().unwrap();
        assert!(written.as_slice().iter().all(|word| *word == round));
        let loan = there.on_mut(&stream).unwrap();
        backend.fill_slowly(&stream, loan.address(), words, round, pause);
        drop(loan);
        let source = Tensor::from_vec(vec![round + 100; words], &[words]).unwrap();
        there.copy_from_host(&source, true).unwrap();
        let target = Tensor::zeros(&[words]);
        let copied = there.copy_to_host(target, true).unwrap().wait().unwrap();
        assert!(copied.as_slice().iter().all(|word| *word == round + 100));
    }
}

fn tensors_of_one_batch_share_staging_slabs(backend: &Backend) {
    let device = &backend.device;
    let len = 6 * piece(backend) + 9;
    let tensor = |seed| bytes(seed, len);
    let batch = (tensor(0), (tensor(1), tensor(2)), tensor(3), tensor(4));
    let (a, (b, c), d, e) = batch.to_device(device, true).unwrap();
    let stages = device.memory().slabs_made > 0;
    if stages {
        assert!(device.memory().pinned_bytes <= 16 * piece(backend));
    }
    for (seed, there) in (0..).zip([&a, &b, &c, &d, &e]) {
        let back = fetch(there).unwrap();
        assert_same(back.as_slice(), bytes(seed, len).as_slice(), "a tensor");
    }
}

fn copies_beyond_the_budget_are_not_staged(backend: &Backend) {
    let device = &backend.device;
    let len = 20 * piece(backend) + 1;
    let stages = {
        drop(used(len).to_device(device, false).unwrap());
        device.memory().slabs_made > 0
    };
    device.release_pinned();
    for (round, budget) in (1..).zip([0, piece(backend)]) {
        device.set_pinned_budget_bytes(budget);
        let there = bytes(round, len).to_device(device, true).unwrap();
        let back = fetch(&there).unwrap();
        assert_same(back.as_slice(), bytes(round, len).as_slice(), "unstaged");
        let memory = device.memory();
        assert_eq!(memory.unstaged, if stages { 2 * round } else { 0 });
        assert!(memory.pinned_bytes <= budget);
    }
    // Two slabs are enough.
    device.set_pinned_budget_bytes(2 * piece(backend));
    let there = bytes(9, len).to_device(device, false).unwrap();
    let back = fetch(&there).unwrap();
    assert_same(back.as_slice(), bytes(9, len).as_slice(), "by two slabs");
    assert_eq!(device.memory().unstaged, if stages { 4 } else { 0 });
}

fn staging_page_locks_nothing_after_warm_up(backend: &Backend) {
    let device = &backend.device;
    let len = 20 * piece(backend) + 17;
    let (source, mut target) = (bytes(3, len), Some(used(len)));
    let mut round_trip = || {
        let there = source.view().to_device(device, false).unwrap();
        let download = there.copy_to_host(target.take().unwrap(), false).unwrap();
        let back = download.wait().unwrap();
        assert_same(back.as_slice(), source.as_slice(), "a round trip");
        assert!(!back.is_pinned());
        target = Some(back);
        device.memory()
    };
    let warm = round_trip();
    for _ in 0..5 {
        let memory = round_trip();
        assert_eq!(memory.slabs_made, warm.slabs_made);
        assert_eq!(memory.pinned_bytes, memory.pinned_idle_bytes);
        assert_eq!((memory.unstaged, memory.slabs_missed), (0, 0));
    }
}

/// Copies in a row, faster than they end, each with slabs of its own: they make do with fewer instead of page-locking more.
fn many_small_copies_page_lock_little(backend: &Backend) {
    let device = &backend.device;
    let len = 8 * piece(backend);
    device.set_device_budget_bytes(usize::MAX);
    let there: Vec<_> = (0..30)
        .map(|seed| bytes(seed, len).to_device(device, true).unwrap())
        .collect();
    let slabs = device.memory().pinned_bytes / piece(backend);
    assert!(slabs <= 48 + 2 * 30, "{slabs} slabs");
    for (seed, there) in (0..).zip(&there) {
        let back = fetch(there).unwrap();
        assert_same(back.as_slice(), bytes(seed, len).as_slice(), "one of many");
    }
}

fn many_threads_stage_at_once(backend: &Backend) {
    let device = &backend.device;
    let piece = piece(backend);
    std::thread::scope(|scope| {
        for thread in 0..6u64 {
            scope.spawn(move || {
                for round in 0..4 {
                    let seed = thread * 10 + round;
                    let source = bytes(seed, (3 + 9 * round as usize) * piece + thread as usize);
                    let pinned = round == 2;
                    let sent = if pinned {
                        source.view().pin(device).unwrap()
                    } else {
                        source.view()
                    };
                    let mut there = sent.to_device(device, round % 2 == 0).unwrap();
                    if round == 3 {
                        there.copy_from_host(&source, true).unwrap();
                    }
                    let back = fetch(&there).unwrap();
                    assert_same(back.as_slice(), source.as_slice(), "a thread's");
                }
            });
        }
    });
    let memory = device.memory();
    assert_eq!((memory.leaked, memory.unstaged), (0, 0));
}

/// What a failing device is asked for: `Err` if it failed there, and bytes that were checked if it did not.
type Attempt = fn(&Device) -> pinfeed::Result<()>;

const FAILING: usize = 11 * SMALL + 3;

fn upload(device: &Device) -> pinfeed::Result<()> {
    let there = bytes(1, FAILING).to_device(device, true)?;
    assert_same(
        read(&there)?.as_slice(),
        bytes(1, FAILING).as_slice(),
        "sent",
    );
    Ok(())
}

fn copy_from_host(device: &Device) -> pinfeed::Result<()> {
    let mut there = Tensor::<u8>::zeros(&[FAILING])
        .pin(device)?
        .to_device(device, true)?;
    if let Err(error) = there.copy_from_host(&bytes(2, FAILING), true) {
        // The tensor lives on, and takes the next copy: one call alone fails.
        there.copy_from_host(&bytes(2, FAILING), true)?;
        assert_same(
            read(&there)?.as_slice(),
            bytes(2, FAILING).as_slice(),
            "again",
        );
        return Err(error);
    }
    assert_same(
        read(&there)?.as_slice(),
        bytes(2, FAILING).as_slice(),
        "copied",
    );
    Ok(())
}

fn download(device: &Device) -> pinfeed::Result<()> {
    let there = bytes(3, FAILING).pin(device)?.to_device(device, true)?;
    assert_same(
        fetch(&there)?.as_slice(),
        bytes(3, FAILING).as_slice(),
        "fetched",
    );
    Ok(())
}

/// Reads the CPU device's memory where it lies: no copy that could fail.
fn read(there: &DeviceTensor<u8>) -> pinfeed::Result<Tensor<u8>> {
    there.synchronize()?;
    let stream = there.device().stream()?;
    let loan = there.on(&stream)?;
    let found = loan.host_slice()?.unwrap();
    Ok(Tensor::from_vec(found.to_vec(), &[found.len()]).unwrap())
}

/// Fails each call once, one after the other, until an attempt makes fewer calls than that.
fn failures(attempt: Attempt) {
    for operation in ["copy", "record_event", "stream_wait_event", "lock_pages"] {
        let (mut failed, mut passed, mut calls) = (0, 0, 0..);
        // So many in a row: the call that was to fail was not made.
        while passed < 8 {
            let call = calls.next().unwrap();
            let mut options = Hostile::default();
            options.seed = call;
            options.max_delay = Duration::from_micros(100);
            options.fail_operation = Some(operation);
            options.fail_call = Some(call);
            let device = Device::hostile(options).unwrap();
            let outcome = attempt(&device);
            if outcome.is_err() {
                (failed, passed) = (failed + 1, 0);
            } else {
                passed += 1;
            }
            check_memory(&device, &format!("{operation} {call}: {outcome:?}"));
        }
        if ["copy", "record_event"].contains(&operation) {
            assert!(failed >= 12, "{operation} failed {failed} times only");
        }
    }
}

/// In the end all memory is idle, or counted as leaked.
fn check_memory(device: &Device, what: &str) {
    let start = Instant::now();
    loop {
        let memory = device.memory();
        let all_idle = memory.pinned_bytes == memory.pinned_idle_bytes;
        assert_eq!(memory.device_held_bytes, 0, "{what}");
        if all_idle || memory.leaked > 0 {
            return;
        }
        assert!(
            start.elapsed() < Duration::from_secs(10),
            "{what}: {memory:?}"
        );
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Small enough for Miri, which sees every thread's accesses to slabs and tensors.
fn a_few_staged_pieces_come_back(_: &Backend) {
    let device = Device::hostile(Hostile::default()).unwrap();
    // Fewer slabs than pieces: they are used again while others are in flight.
    device.set_pinned_budget_bytes(3 * SMALL);
    let source = Tensor::from_vec(vec![7u8; 5 * SMALL + 3], &[5 * SMALL + 3]).unwrap();
    let mut there = source.view().to_device(&device, false).unwrap();
    let back = fetch(&there).unwrap();
    assert!(back.as_slice() == source.as_slice());
    drop(source);
    there.copy_from_host(&used(back.len()), false).unwrap();
    let download = there.copy_to_host(back, true).unwrap();
    assert!(download.is_ready().unwrap());
    assert!(download.wait().unwrap().as_slice() == used(there.len()).as_slice());
    assert_eq!(device.memory().unstaged, 0);
}

fn a_device_that_breaks_while_staging_hangs_nobody(_: &Backend) {
    for call in [0, 1, 7, 15, 22] {
        let mut options = Hostile::default();
        options.max_delay = Duration::from_millis(1);
        options.fail_operation = Some("copy");
        options.fail_call = Some(call);
        options.sticky = true;
        let device = Device::hostile(options).unwrap();
        std::thread::scope(|scope| {
            for seed in 0..4 {
                let device = &device;
                scope.spawn(move || {
                    let sent = bytes(seed, FAILING).to_device(device, true);
                    let Ok(back) = sent.and_then(|there| fetch(&there)) else {
                        return;
                    };
                    assert_same(back.as_slice(), bytes(seed, FAILING).as_slice(), "in time");
                });
            }
        });
        bytes(1, FAILING).to_device(&device, true).unwrap_err();
    }
}

fn what_cannot_be_page_locked_is_not_staged(_: &Backend) {
    let mut options = Hostile::default();
    options.pinned_capacity_bytes = Some(0);
    let device = Device::hostile(options).unwrap();
    for round in 0..3 {
        let there = bytes(round, FAILING).to_device(&device, true).unwrap();
        let back = fetch(&there).unwrap();
        assert_same(
            back.as_slice(),
            bytes(round, FAILING).as_slice(),
            "unstaged",
        );
    }
    let memory = device.memory();
    assert_eq!((memory.unstaged, memory.pinned_bytes), (6, 0));
    assert_eq!(memory.slabs_made, 1, "what is pageable is not made again");
}
