//! What can go wrong with a device's decoder: each batch is right, or an error that says what to do; nothing hangs; and what comes after it, of the
//! same loader or another, is right.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use pinfeed::loader::{OnError, TryNext};
use pinfeed::{DataLoader, Device, Error, Tensor};

use crate::library::{GoesOn, Library, comes, learn, pixels, there, whole};
use crate::painted::{How, Script, builder};

const MIB: usize = 1 << 20;

fn loader(script: &Arc<Script>, device: &Device, workers: usize) -> DataLoader<Tensor<u8>> {
    let loader = builder::<Tensor<u8>>(script, 24, device).batch_size(4);
    whole(loader, workers).build().unwrap()
}

/// All batches fail that are to be decoded, in words that say this.
#[track_caller]
fn fails(loader: &DataLoader<Tensor<u8>>, device: &Device, epoch: u64, words: &[&str]) {
    let batches: Vec<_> = loader.epoch(epoch).prefetch_to_device(device, 2).collect();
    assert_eq!(batches.len(), 6);
    for batch in batches {
        let error = batch.unwrap_err();
        assert!(matches!(error, Error::Decoder { .. }), "{error:?}");
        let said = error.to_string();
        for words in words {
            assert!(said.contains(words), "`{said}` lacks `{words}`");
        }
    }
}

/// A library that cannot be used is every batch's error. Once there is one that can, it is used.
#[test]
fn a_library_may_come_later() {
    let script = Arc::<Script>::default();
    let cases: [(Option<&[&str]>, &[&str]); 4] = [
        (None, &["nvJPEG was not found", "LD_LIBRARY_PATH"]),
        (
            Some(&["-DLACKS_DECODE"]),
            &["lacks `nvjpegDecodeBatched`", "CUDA 12 or 13"],
        ),
        (
            Some(&["-DMAJOR=11"]),
            &["is nvJPEG 11.0", "12.0 or newer is needed: install"],
        ),
        (
            Some(&["-DCREATE_RESULT=6"]),
            &["nvjpegCreateExV2 failed on cpu: EXECUTION_FAILED"],
        ),
    ];
    for (workers, (defines, words)) in (0..3).cycle().zip(cases) {
        let library = Library::missing();
        if let Some(defines) = defines {
            library.build(defines);
        }
        let device = library.device();
        let (one, other) = (
            loader(&script, &device, workers),
            loader(&script, &device, 1),
        );
        assert_eq!(one.epoch(0).count(), 6); // on the host, it takes none
        for epoch in 1..3 {
            fails(&one, &device, epoch, words);
        }
        assert_eq!(device.memory().decoder_bytes, 0);
        library.build(&[]);
        comes(&one, &device, 3, 24, 4);
        comes(&other, &device, 0, 24, 4);
        assert_eq!(one.epoch(4).count(), 6);
    }
}

/// A decoder takes memory beside the pool's, which is known; and no more than it may.
#[test]
fn a_decoder_says_how_much_memory_it_has() {
    let script = Arc::<Script>::default();
    let each = 4 * MIB; // for a chunk of 64, more than it may have
    let library = Library::new(&[&format!("-DEACH={each}")]);
    let device = library.device();
    device.cut_batches_at(1 << 30, 1 << 30); // not at all
    let loader = builder::<Tensor<u8>>(&script, 192, &device).batch_size(64);
    let loader = loader.num_workers(1).build().unwrap();
    assert_eq!(device.memory().decoder_bytes, 0);
    for epoch in 0..3 {
        comes(&loader, &device, epoch, 192, 64);
        let memory = device.memory();
        assert!(
            (320 * MIB..=512 * MIB).contains(&memory.decoder_bytes),
            "{memory:?}"
        );
        assert!(memory.decoder_pinned_bytes > 0);
        assert!(memory.device_bytes < MIB);
    }
    assert!(loader.stats().decoder.decoded > 0);
    // What stands in for a decoder on the CPU device has none.
    let device = Device::cpu();
    let loader = self::loader(&script, &device, 1);
    comes(&loader, &device, 0, 24, 4);
    assert_eq!(device.memory().decoder_bytes, 0);
}

/// The device has no memory for a decoder, or none for what it decodes.
#[test]
fn there_is_no_memory_for_a_decoder() {
    let script = Arc::<Script>::default();
    for workers in [0, 2] {
        let library = Library::new(&[]);
        let mut options = library.options();
        options.device_capacity_bytes = Some(200 * MIB);
        let device = Device::hostile(options).unwrap();
        let one = loader(&script, &device, workers);
        assert_eq!(one.epoch(0).count(), 6);
        for epoch in 1..3 {
            fails(
                &one,
                &device,
                epoch,
                &[
                    "needs 338 MiB",
                    "Device::set_device_budget_bytes",
                    "Decode::Cpu",
                ],
            );
        }
        assert_eq!(device.memory().decoder_bytes, 0);
        assert_eq!(one.epoch(3).count(), 6);
    }
    // None for any picture: the CPU decodes them, and says why.
    let library = Library::new(&["-DEACH=(1 << 30)"]);
    let device = library.device();
    let one = loader(&script, &device, 2);
    for epoch in 0..2 {
        comes(&one, &device, epoch, 24, 4);
    }
    let stats = one.total_stats();
    assert_eq!(stats.decoder.decoded, 0, "{stats:?}");
    assert!(stats.decoder.left_to_cpu["the decoder had no memory for it"] >= 24);
}

/// All pictures of a batch are damaged.
#[test]
fn a_batch_may_have_damaged_pictures_only() {
    let library = Library::new(&[]);
    for (workers, by_library) in [(0, true), (2, true), (2, false)] {
        let device = match by_library {
            true => library.device(),
            false => Device::cpu(),
        };
        for on_error in [
            OnError::Fail,
            OnError::Skip { at_most: 100 },
            OnError::Replace { at_most: 100 },
        ] {
            let script = Arc::<Script>::default();
            let loader = builder::<Tensor<u8>>(&script, 24, &device).batch_size(4);
            let loader = loader.num_workers(workers).on_error(on_error);
            let loader = loader.build().unwrap();
            learn([&loader], &device);
            (8..12).for_each(|number| script.set(number, How::Damaged));
            for epoch in 1..3 {
                let mut sent = loader.epoch(epoch).prefetch_to_device(&device, 2);
                let batches: Vec<_> = sent.by_ref().collect();
                assert_eq!(batches.len(), 6);
                for (number, batch) in (0..).zip(batches) {
                    match (batch, on_error) {
                        (Ok(batch), _) if number != 2 => {
                            assert_eq!(there(&batch), pixels(4 * number..4 * number + 4));
                        }
                        // Others take their places, all of which are good.
                        (Ok(batch), OnError::Replace { .. }) => {
                            let rows = there(&batch);
                            assert_eq!(rows.len(), pixels(0..4).len());
                            assert!(rows.iter().all(|byte| !pixels(8..12).contains(byte)));
                        }
                        (Err(Error::Sample(id, cause)), _) if number == 2 => {
                            assert_eq!(id.index, 8 + id.row as u64);
                            assert!(cause.to_string().ends_with("is damaged"), "{cause}");
                        }
                        (other, _) => panic!("{on_error:?}, batch {number}: {:?}", other.err()),
                    }
                }
                assert_eq!(sent.stats().unpinned.count, 0);
            }
            (8..12).for_each(|number| script.set(number, How::Well));
            comes(&loader, &device, 3, 24, 4);
        }
        assert_eq!(device.memory().device_held_bytes, 0);
    }
}

/// A device that is lost while it decodes: each batch is right, or an error, and what it has can be dropped.
#[test]
fn a_device_may_be_lost_while_it_decodes() {
    let (script, library) = (Arc::<Script>::default(), Library::new(&[]));
    let (mut failed, mut right) = (0, 0);
    for call in (0..160).step_by(14) {
        for (workers, sticky) in [(0, true), (2, true), (2, false)] {
            let mut options = library.options();
            (options.fail_call, options.sticky) = (Some(call), sticky);
            let Ok(device) = Device::hostile(options) else {
                continue;
            };
            let loader = builder::<Tensor<u8>>(&script, 24, &device).batch_size(4);
            let Ok(loader) = loader.num_workers(workers).build() else {
                continue;
            };
            for epoch in 0..2 {
                let batches = loader.epoch(epoch).prefetch_to_device(&device, 2);
                for (number, batch) in (0..).zip(batches) {
                    let rows = batch.and_then(|batch| batch.to_host(true)?.wait());
                    match rows {
                        Ok(rows) => {
                            assert!(*rows.as_slice() == *pixels(4 * number..4 * number + 4));
                            right += 1;
                        }
                        Err(_) => failed += 1,
                    }
                }
            }
            // In either order.
            match workers {
                0 => drop((device, loader)),
                _ => drop((loader, device)),
            }
        }
    }
    assert!(
        failed > 50 && right > 50,
        "{failed} failed, {right} were right"
    );
    crate::library::until(|| library.count("stub_handles") == 0);
}

/// One of two loaders fails, or is dropped, in the midst of decoding: that costs the other nothing.
#[test]
fn loaders_on_one_device_do_not_disturb_each_other() {
    let library = Library::new(&[]);
    let device = library.device();
    let (good, bad) = (Arc::<Script>::default(), Arc::<Script>::default());
    (0..24).for_each(|number| {
        bad.set(
            number,
            [How::RefusedByLibrary, How::Damaged][number as usize % 2],
        )
    });
    thread::scope(|scope| {
        for workers in [1, 2] {
            let (good, device) = (&good, &device);
            scope.spawn(move || {
                let loader = loader(good, device, workers);
                for epoch in 0..40 {
                    comes(&loader, device, epoch, 24, 4);
                }
            });
        }
        for (workers, taken) in [(1, 0), (2, 1), (1, 6)] {
            let (bad, device) = (&bad, &device);
            scope.spawn(move || {
                for _ in 0..20 {
                    let loader = loader(bad, device, workers);
                    let batches = loader.epoch(0).prefetch_to_device(device, 3).take(taken);
                    assert!(batches.into_iter().all(|batch| batch.is_err()));
                }
            });
        }
    });
    assert_eq!(device.memory().device_held_bytes, 0);
}

/// Whatever is dropped first, with pictures at the decoder, under load.
#[test]
fn everything_may_be_dropped_in_any_order() {
    let (script, library) = (Arc::<Script>::default(), Library::new(&[]));
    let all = thread::available_parallelism()
        .map_or(2, usize::from)
        .min(4);
    thread::scope(|scope| {
        for number in 0..all {
            let (script, library) = (&script, &library);
            scope.spawn(move || {
                for round in number..number + 12 {
                    let mut options = library.options();
                    options.seed = round as u64;
                    options.max_delay = Duration::from_micros(500);
                    let device = Device::hostile(options).unwrap();
                    let loader = loader(script, &device, round % 3);
                    let mut epoch = loader.epoch(0).prefetch_to_device(&device, 1 + round % 4);
                    let kept: Vec<_> = epoch.by_ref().take(round % 5).collect();
                    match round % 4 {
                        0 => {
                            drop(epoch);
                            drop(loader);
                            drop(device);
                        }
                        1 => {
                            drop(device);
                            drop(epoch);
                            drop(loader);
                        }
                        2 => {
                            let rest = epoch.count();
                            assert_eq!(rest + kept.len(), 6);
                            drop(device);
                        }
                        _ => {
                            drop(epoch);
                            drop(device);
                            comes(&loader, &device_of(&kept, library), 1, 24, 4);
                        }
                    }
                    for (number, batch) in (0..).zip(kept) {
                        let rows = there(&batch.unwrap());
                        assert_eq!(rows, pixels(4 * number..4 * number + 4));
                    }
                }
            });
        }
    });
    crate::library::until(|| library.count("stub_handles") == 0);
}

/// Another device, for which nothing is pinned: there the CPU decodes.
fn device_of<T>(_: &[T], library: &Library) -> Device {
    library.device()
}

/// Devices that share a loader decode each its own batches; one that cannot costs the other nothing.
#[test]
fn two_devices_share_a_loader() {
    let script = Arc::<Script>::default();
    let (library, missing) = (Library::new(&[]), Library::missing());
    for breaks in [false, true] {
        let second = match breaks {
            false => library.device(),
            true => missing.device(),
        };
        let devices = [library.device(), second];
        let loader = builder::<Tensor<u8>>(&script, 48, &devices[0]);
        let loader = whole(loader, 2).pin_memory(&devices).batch_size(4);
        let loader = loader.build().unwrap();
        for epoch in 0..3 {
            let parts = loader.epoch(epoch).split(&devices, 2);
            thread::scope(|scope| {
                for (number, part) in (0..).zip(parts) {
                    scope.spawn(move || {
                        let (mut count, mut failed) = (0, 0);
                        for (at, batch) in (0..).zip(part) {
                            count += 1;
                            let first = 4 * (2 * at + number);
                            match batch {
                                Err(Error::Decoder { .. }) => failed += 1,
                                batch => {
                                    assert_eq!(there(&batch.unwrap()), pixels(first..first + 4));
                                }
                            }
                        }
                        let fails = breaks && number == 1;
                        assert_eq!((count, failed), (6, if fails { 6 } else { 0 }));
                    });
                }
            });
        }
    }
}

/// Whoever drops a device waits for its decoder, and not whoever drops a loader or an epoch.
#[test]
fn a_loader_goes_while_the_decoder_hangs() {
    let (script, library) = (Arc::<Script>::default(), Library::new(&[]));
    let device = library.device();
    let one = loader(&script, &device, 2);
    learn([&one], &device);
    let _goes_on = GoesOn(&library);
    library.set("stub_held", 1);
    let mut epoch = one.epoch(1).prefetch_to_device(&device, 2);
    while library.count("stub_hanging") == 0 {
        assert!(matches!(
            epoch.next_timeout(Duration::from_millis(1)),
            TryNext::NotYet
        ));
    }
    drop(epoch);
    drop(one);
    assert_eq!(library.count("stub_hanging"), 1);
    library.set("stub_held", 0);
    let one = loader(&script, &device, 2);
    comes(&one, &device, 0, 24, 4);
}
