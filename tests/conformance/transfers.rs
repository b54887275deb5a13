//! Copies: what goes to the device comes back, nothing is read too early or used again too early.

use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use half::{bf16, f16};
use pinfeed::tensor::Element;
use pinfeed::{Batch, DeviceTensor, Error, Stream, Tensor};

use crate::Test;
use crate::backend::Backend;

pub const TESTS: &[Test] = &[
    ("all_element_types_come_back", all_element_types_come_back),
    (
        "fields_of_any_origin_travel_together",
        fields_of_any_origin_travel_together,
    ),
    (
        "a_read_behind_a_slow_kernel_sees_its_result",
        a_read_behind_a_slow_kernel_sees_its_result,
    ),
    (
        "a_kernel_on_another_stream_sees_the_copy",
        a_kernel_on_another_stream_sees_the_copy,
    ),
    (
        "dropped_memory_is_not_used_again_under_a_slow_reader",
        dropped_memory_is_not_used_again_under_a_slow_reader,
    ),
    (
        "forgotten_loans_keep_their_memory",
        forgotten_loans_keep_their_memory,
    ),
    (
        "a_forgotten_writer_is_waited_for",
        a_forgotten_writer_is_waited_for,
    ),
    (
        "dropped_downloads_and_batches_free_nothing_in_use",
        dropped_downloads_and_batches_free_nothing_in_use,
    ),
    (
        "existing_tensors_are_copied_into",
        existing_tensors_are_copied_into,
    ),
    ("a_shared_target_is_refused", a_shared_target_is_refused),
    (
        "a_copy_that_is_over_shares_nothing",
        a_copy_that_is_over_shares_nothing,
    ),
    (
        "who_waited_for_a_copy_may_write",
        who_waited_for_a_copy_may_write,
    ),
    (
        "copies_start_at_once_beside_a_slow_kernel",
        copies_start_at_once_beside_a_slow_kernel,
    ),
    (
        "many_streams_and_threads_keep_every_byte",
        many_streams_and_threads_keep_every_byte,
    ),
    ("empty_tensors_travel", empty_tensors_travel),
    (
        "registered_memory_is_pinned_where_it_lies",
        registered_memory_is_pinned_where_it_lies,
    ),
    (
        "overlapping_views_become_tensors_of_their_own",
        overlapping_views_become_tensors_of_their_own,
    ),
];

fn all_element_types_come_back(backend: &Backend) {
    fn check<T: Element>(backend: &Backend, elements: Vec<T>) {
        for pinned in [false, true] {
            for non_blocking in [false, true] {
                let mut tensor =
                    Tensor::from_vec(elements.clone(), &[elements.len() / 2, 2]).unwrap();
                if pinned {
                    tensor = tensor.pin(&backend.device).unwrap();
                    assert!(tensor.is_pinned());
                }
                let there = tensor.to_device(&backend.device, non_blocking).unwrap();
                assert_eq!(
                    (there.shape()[0], there.dtype()),
                    (elements.len() / 2, T::DTYPE)
                );
                let back = there.to_host(non_blocking).unwrap().wait().unwrap();
                assert_eq!(back.as_slice(), elements);
                assert!(back.is_pinned(), "results land in page-locked memory");
            }
        }
    }
    check::<u8>(backend, (0..=255).collect());
    check::<i8>(backend, (-128..=127).collect());
    check::<i16>(backend, vec![i16::MIN, -1, 0, i16::MAX]);
    check::<u16>(backend, vec![0, u16::MAX]);
    check::<i32>(backend, (-500..500).collect());
    check::<u32>(backend, vec![u32::MAX, 7]);
    check::<i64>(backend, vec![i64::MIN, i64::MAX]);
    check::<f16>(backend, vec![f16::ONE, f16::NEG_INFINITY]);
    check::<bf16>(backend, vec![bf16::PI, bf16::ZERO]);
    check::<f32>(backend, (0..100_000).map(|i| i as f32 * 0.5).collect());
    check::<f64>(backend, vec![f64::MIN_POSITIVE, 1e300]);
}

fn fields_of_any_origin_travel_together(backend: &Backend) {
    let device = &backend.device;
    let pageable = Tensor::from_vec((0..999).collect::<Vec<i32>>(), &[999]).unwrap();
    let pinned = Tensor::from_vec(vec![1.5f32; 77], &[7, 11])
        .unwrap()
        .pin(device)
        .unwrap();
    let names = vec!["stays".to_owned(), "on the host".to_owned()];
    let row = Tensor::from_vec((0..60).collect::<Vec<i64>>(), &[3, 20])
        .unwrap()
        .row(1);
    let (a, (b, c), d) = (pageable, (pinned, names.clone()), row)
        .to_device(device, true)
        .unwrap();
    assert_eq!(c, names);
    assert_eq!(
        a.to_host(true).unwrap().wait().unwrap().as_slice(),
        (0..999).collect::<Vec<_>>()
    );
    assert_eq!(
        b.to_host(true).unwrap().wait().unwrap().as_slice(),
        [1.5; 77]
    );
    assert_eq!(
        d.to_host(true).unwrap().wait().unwrap().as_slice(),
        (20..40).collect::<Vec<_>>()
    );
}

/// The classic corruption experiment: a long kernel writes, the host reads at once.
fn a_read_behind_a_slow_kernel_sees_its_result(backend: &Backend) {
    let stream = backend.device.stream().unwrap();
    let mut there = Tensor::from_vec(vec![1u32; 4096], &[4096])
        .unwrap()
        .to_device(&backend.device, true)
        .unwrap();
    let (open, gate) = channel();
    {
        let loan = there.on_mut(&stream).unwrap();
        let duration = Duration::from_millis(60);
        backend.fill_behind(gate, duration, &stream, loan.address(), 4096, 7);
    }
    let download = there.to_host(true).unwrap();
    assert!(!download.is_ready().unwrap(), "the kernel still runs");
    drop(open);
    assert_eq!(download.wait().unwrap().as_slice(), [7; 4096]);
}

fn a_kernel_on_another_stream_sees_the_copy(backend: &Backend) {
    let (one, other) = (
        backend.device.stream().unwrap(),
        backend.device.stream().unwrap(),
    );
    let mut sum = zeros(backend, 2);
    for round in 0..30u32 {
        let there = Tensor::from_vec(vec![round; 1000], &[1000])
            .unwrap()
            .pin(&backend.device)
            .unwrap();
        let there = there.to_device(&backend.device, true).unwrap();
        for (stream, slot) in [(&one, 0), (&other, 1)] {
            let (words, target) = (there.on(stream).unwrap(), sum.on_mut(stream).unwrap());
            backend.sum_slowly(
                stream,
                words.address(),
                1000,
                target.address() + 4 * slot,
                Duration::ZERO,
            );
        }
        let sums = sum.to_host(true).unwrap().wait().unwrap();
        assert_eq!(sums.as_slice(), [1000 * round; 2]);
    }
}

/// A tensor is dropped while a slow kernel reads it, and others of its size are uploaded meanwhile.
fn dropped_memory_is_not_used_again_under_a_slow_reader(backend: &Backend) {
    let stream = backend.device.stream().unwrap();
    let mut sum = zeros(backend, 1);
    let there = upload(backend, 5, 50_000);
    let (words, target) = (there.on(&stream).unwrap(), sum.on_mut(&stream).unwrap());
    backend.sum_slowly(
        &stream,
        words.address(),
        50_000,
        target.address(),
        Duration::from_millis(40),
    );
    drop((words, target));
    drop(there);
    let others: Vec<_> = (0..6).map(|_| upload(backend, 9, 50_000)).collect();
    assert_eq!(
        sum.to_host(true).unwrap().wait().unwrap().as_slice(),
        [250_000]
    );
    drop(others);
}

fn forgotten_loans_keep_their_memory(backend: &Backend) {
    let stream = backend.device.stream().unwrap();
    let mut sum = zeros(backend, 1);
    let there = upload(backend, 3, 50_000);
    let target = sum.on_mut(&stream).unwrap();
    let words = there.on(&stream).unwrap();
    backend.sum_slowly(
        &stream,
        words.address(),
        50_000,
        target.address(),
        Duration::from_millis(40),
    );
    std::mem::forget(words);
    drop(target);
    drop(there); // the loan was forgotten: an event is recorded now
    let others: Vec<_> = (0..6).map(|_| upload(backend, 9, 50_000)).collect();
    assert_eq!(
        sum.to_host(true).unwrap().wait().unwrap().as_slice(),
        [150_000]
    );
    drop(others);
}

fn a_forgotten_writer_is_waited_for(backend: &Backend) {
    let stream = backend.device.stream().unwrap();
    let mut there = upload(backend, 1, 100);
    let loan = there.on_mut(&stream).unwrap();
    backend.fill_slowly(&stream, loan.address(), 100, 8, Duration::from_millis(30));
    std::mem::forget(loan);
    assert_eq!(
        there.to_host(true).unwrap().wait().unwrap().as_slice(),
        [8; 100]
    );
}

fn dropped_downloads_and_batches_free_nothing_in_use(backend: &Backend) {
    let stream = backend.device.stream().unwrap();
    for round in 0..20 {
        let mut there = upload(backend, round, 20_000);
        let loan = there.on_mut(&stream).unwrap();
        backend.fill_slowly(
            &stream,
            loan.address(),
            20_000,
            round + 1,
            Duration::from_millis(2),
        );
        drop(loan);
        drop(there.to_host(true).unwrap()); // never waited for: its slab must not serve the next
        let kept = there.to_host(true).unwrap();
        drop(there);
        let next = upload(backend, 77, 20_000);
        assert_eq!(kept.wait().unwrap().as_slice(), vec![round + 1; 20_000]);
        assert_eq!(
            next.to_host(true).unwrap().wait().unwrap().as_slice(),
            vec![77; 20_000]
        );
    }
}

fn existing_tensors_are_copied_into(backend: &Backend) {
    let stream = backend.device.stream().unwrap();
    let mut there = upload(backend, 1, 5_000);
    let mut host = Some(Tensor::<u32>::zeros(&[5_000]).pin(&backend.device).unwrap());
    for round in 2..30u32 {
        let source = Tensor::from_vec(vec![round; 5_000], &[5_000])
            .unwrap()
            .pin(&backend.device)
            .unwrap();
        {
            let loan = there.on_mut(&stream).unwrap();
            backend.fill_slowly(&stream, loan.address(), 5_000, 1, Duration::from_millis(1));
        }
        there.copy_from_host(&source, round % 2 == 0).unwrap();
        drop(source); // its slab stays reserved until the copy is done
        let back = there
            .copy_to_host(host.take().unwrap(), true)
            .unwrap()
            .wait()
            .unwrap();
        assert_eq!(back.as_slice(), vec![round; 5_000]);
        host = Some(back);
    }
    let wrong = Tensor::<u32>::zeros(&[5_001]);
    assert!(matches!(
        there.copy_from_host(&wrong, false),
        Err(Error::Shape(_))
    ));
}

fn a_shared_target_is_refused(backend: &Backend) {
    let there = upload(backend, 1, 10);
    let target = Tensor::<u32>::zeros(&[10]);
    let view = target.view();
    assert!(matches!(
        there.copy_to_host(target, true),
        Err(Error::Shared { sharers: 1 })
    ));
    drop(view);
}

/// What a copy read is its holder's alone once the copy is over, and may be the target of another.
fn a_copy_that_is_over_shares_nothing(backend: &Backend) {
    let stream = backend.device.stream().unwrap();
    for round in 0..10u32 {
        let source = Tensor::from(vec![round; 5_000]);
        let mut source = source.pin(&backend.device).unwrap();
        let mut there = source.view().to_device(&backend.device, true).unwrap();
        there.synchronize().unwrap();
        assert!(source.as_mut_slice().is_some(), "an upload");

        there.copy_from_host(&source, true).unwrap();
        there.synchronize().unwrap();
        assert!(source.as_mut_slice().is_some(), "a copy into a tensor");

        // Only a stream of the program's was waited for.
        there.copy_from_host(&source, true).unwrap();
        drop(there.on(&stream).unwrap());
        stream.synchronize().unwrap();
        let back = there.copy_to_host(source, true).unwrap().wait().unwrap();
        assert_eq!(back.as_slice(), [round; 5_000]);
    }
}

/// Several threads copy at once. Who waited for its own copy holds the host memory alone, whatever the others do.
fn who_waited_for_a_copy_may_write(backend: &Backend) {
    std::thread::scope(|scope| {
        for thread in 0..6u32 {
            scope.spawn(move || {
                let host = Tensor::from(vec![thread; 100]);
                let mut host = host.pin(&backend.device).unwrap();
                for round in 0..200 {
                    let context = format!("thread {thread}, round {round}");
                    let mut there = host.view().to_device(&backend.device, false).unwrap();
                    assert!(host.as_mut_slice().is_some(), "{context}: an upload");
                    there.copy_from_host(&host, false).unwrap();
                    assert!(host.as_mut_slice().is_some(), "{context}: in place");
                    host = there.copy_to_host(host, true).unwrap().wait().unwrap();
                    assert!(host.as_mut_slice().is_some(), "{context}: a download");
                    assert_eq!(host.as_slice(), [thread; 100]);
                }
            });
        }
    });
}

/// Uploads of memory whose users are done do not stand behind a kernel on another stream.
fn copies_start_at_once_beside_a_slow_kernel(backend: &Backend) {
    let stream = backend.device.stream().unwrap();
    for _ in 0..4 {
        drop(upload(backend, 1, 1 << 16)); // the pool and the ring are warm
    }
    let mut busy = zeros(backend, 1);
    let loan = busy.on_mut(&stream).unwrap();
    let start = Instant::now();
    backend.fill_slowly(&stream, loan.address(), 1, 1, Duration::from_millis(300));
    drop(loan);
    for round in 0..8 {
        let there = upload(backend, round, 1 << 16);
        there.synchronize().unwrap();
        drop(there);
    }
    assert!(
        start.elapsed() < Duration::from_millis(250),
        "copies waited for a kernel: {:?}",
        start.elapsed()
    );
    assert_eq!(busy.to_host(true).unwrap().wait().unwrap().as_slice(), [1]);
}

fn many_streams_and_threads_keep_every_byte(backend: &Backend) {
    std::thread::scope(|scope| {
        for thread in 0..6u32 {
            scope.spawn(move || {
                let stream: Stream = backend.device.stream().unwrap();
                for round in 0..25u32 {
                    let value = thread * 1_000 + round;
                    let words = 1_000 + 3_777 * (round as usize % 5);
                    let mut there = upload(backend, value, words);
                    if round % 3 == 0 {
                        let loan = there.on_mut(&stream).unwrap();
                        backend.fill_slowly(
                            &stream,
                            loan.address(),
                            words,
                            value + 1,
                            Duration::from_micros(300),
                        );
                    }
                    let expected = value + u32::from(round % 3 == 0);
                    let back = there.to_host(round % 2 == 0).unwrap();
                    drop(there);
                    let back = back.wait().unwrap();
                    assert!(
                        back.as_slice().iter().all(|word| *word == expected),
                        "thread {thread}, round {round}"
                    );
                }
            });
        }
    });
}

fn empty_tensors_travel(backend: &Backend) {
    let there = Tensor::<f32>::zeros(&[0, 4])
        .to_device(&backend.device, true)
        .unwrap();
    assert_eq!(there.shape()[..], [0, 4]);
    assert!(there.to_host(false).unwrap().wait().unwrap().is_empty());
    Vec::<String>::new()
        .to_device(&backend.device, true)
        .unwrap();
}

fn registered_memory_is_pinned_where_it_lies(backend: &Backend) {
    let tensor = Tensor::from_vec((0..300_000).collect::<Vec<u32>>(), &[300, 1000]).unwrap();
    let address = tensor.as_slice().as_ptr();
    let tensor = tensor.register(&backend.device).unwrap();
    assert!(tensor.is_pinned());
    assert_eq!(tensor.as_slice().as_ptr(), address, "nothing was copied");
    let row = tensor.row(17);
    drop(tensor);
    let there = row.to_device(&backend.device, true).unwrap(); // unregistered when the copy is done, not before
    assert_eq!(
        there.to_host(true).unwrap().wait().unwrap().as_slice(),
        (17_000..18_000).collect::<Vec<_>>()
    );
}

fn overlapping_views_become_tensors_of_their_own(backend: &Backend) {
    let stream = backend.device.stream().unwrap();
    let tensor = Tensor::from_vec(vec![1u32; 1024], &[4, 256])
        .unwrap()
        .pin(&backend.device)
        .unwrap();
    let (mut whole, row) = (tensor.view(), tensor.row(2))
        .to_device(&backend.device, true)
        .unwrap();
    let loan = whole.on_mut(&stream).unwrap();
    backend.fill_slowly(&stream, loan.address(), 1024, 5, Duration::ZERO);
    drop(loan);
    stream.synchronize().unwrap();
    assert_eq!(
        row.to_host(false).unwrap().wait().unwrap().as_slice(),
        [1; 256]
    );
}

/// A tensor on the device with `words` times `value`, from page-locked memory, under way.
fn upload(backend: &Backend, value: u32, words: usize) -> DeviceTensor<u32> {
    let tensor = Tensor::from_vec(vec![value; words], &[words])
        .unwrap()
        .pin(&backend.device)
        .unwrap();
    tensor.to_device(&backend.device, true).unwrap()
}

fn zeros(backend: &Backend, words: usize) -> DeviceTensor<u32> {
    Tensor::<u32>::zeros(&[words])
        .to_device(&backend.device, false)
        .unwrap()
}
