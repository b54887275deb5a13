//! What a unit goes through whose pictures are at a device's decoder: who waits for it, who makes it again, and what its batch sees.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::thread::{self, ThreadId};
use std::time::Duration;

use pinfeed::collate::{Relocation, Tensors, Upload};
use pinfeed::device::{DeviceBuffers, Hostile};
use pinfeed::loader::{OnError, TryNext};
use pinfeed::{Batch, DataLoader, Device, DeviceTensor, Error, Tensor};

use crate::painted::{How, OfPixels, Open, ROW_BYTES, Script, builder, colour, sent, stream};

/// A batch of the program's own, whose `upload` looks at what is on the device.
struct Own(Tensor<u8>);

struct OnDevice {
    pixels: DeviceTensor<u8>,
    seen: Vec<u8>,
    by: ThreadId,
}

impl OfPixels for Own {
    fn of(pixels: Tensor<u8>) -> Own {
        Own(pixels)
    }
}

impl Batch for Own {
    type OnDevice = OnDevice;

    fn tensors(&self, visit: &mut Tensors<'_>) {
        visit.add(&self.0);
    }

    fn relocate(self, slab: &mut Relocation) -> Own {
        Own(slab.tensor(self.0))
    }

    fn upload(self, upload: &mut Upload) -> OnDevice {
        let pixels = upload.tensor(self.0);
        let seen = there(&pixels);
        assert!(!seen.contains(&colour(PANICS)), "upload panics");
        OnDevice {
            pixels,
            seen,
            by: thread::current().id(),
        }
    }
}

/// A batch with this picture panics.
const PANICS: u64 = 99;

/// The bytes of a tensor on the device.
fn there(pixels: &DeviceTensor<u8>) -> Vec<u8> {
    pixels.to_host(true).unwrap().wait().unwrap().to_vec()
}

/// The pixels of pictures.
fn pixels(numbers: impl IntoIterator<Item = u64>) -> Vec<u8> {
    let rows = numbers
        .into_iter()
        .map(|number| [colour(number); ROW_BYTES]);
    rows.flatten().collect()
}

/// An epoch that teaches the loader that its samples are pictures: then nothing is loaded before it is known where batches go.
fn learn<B: OfPixels>(loader: &DataLoader<B>, device: &Device) {
    loader.epoch(0).prefetch_to_device(device, 2).for_each(drop);
}

/// A program's `upload` may read device tensors: it runs when their pictures are decoded, on the thread that asks.
#[test]
fn upload_sees_what_was_decoded() {
    let script = Arc::<Script>::default();
    (0..40).filter(|number| number % 4 == 3).for_each(|number| {
        script.set(number, How::OnCpu);
    });
    for (parts, workers, depth, in_order) in [
        (0, 0, 0, true),
        (0, 0, 2, true),
        (0, 1, 0, true),
        (0, 3, 3, true),
        (0, 3, 3, false),
        (1, 1, 1, true),
        (2, 3, 2, true),
    ] {
        let mut late = Hostile::default();
        late.max_delay = Duration::from_micros(200);
        let device = Device::hostile(late).unwrap();
        if parts > 0 {
            device.cut_batches_at(1, parts * ROW_BYTES);
        }
        let loader = builder::<Own>(&script, 40, &device).batch_size(4);
        let loader = loader.num_workers(workers).in_order(in_order);
        let loader = loader.build().unwrap();
        learn(&loader, &device);
        for epoch in loader.epochs(1..4).prefetch_to_device(&device, depth) {
            let mut all: Vec<Vec<u8>> = Vec::new();
            for batch in epoch {
                let batch = batch.unwrap();
                assert_eq!(batch.seen, there(&batch.pixels));
                assert_eq!(batch.by, thread::current().id());
                all.push(batch.seen);
            }
            all.sort(); // by their first colour
            let expected = (0..10).map(|batch| pixels(4 * batch..4 * batch + 4));
            assert!(
                all == expected.collect::<Vec<_>>(),
                "parts of {parts}, {workers} workers, {depth} ahead, in order: {in_order}"
            );
        }
        assert!(loader.total_stats().decoder.decoded >= 90);
        drop(loader);
        assert_eq!(device.memory().device_held_bytes, 0);
    }
}

/// If it panics then, its batch is an error, and others come.
#[test]
fn an_upload_that_panics_costs_its_batch() {
    let (script, device) = (Arc::<Script>::default(), Device::cpu());
    for workers in [0, 2] {
        let loader = builder::<Own>(&script, PANICS + 9, &device).batch_size(10);
        let loader = loader.num_workers(workers).build().unwrap();
        for epoch in 0..2 {
            let batches: Vec<_> = loader.epoch(epoch).prefetch_to_device(&device, 2).collect();
            assert_eq!(batches.len(), 11);
            for (number, batch) in batches.iter().enumerate() {
                match batch {
                    Ok(batch) => assert_eq!(batch.seen[0], colour(10 * number as u64)),
                    Err(Error::CollatePanicked {
                        batch: 9, message, ..
                    }) => {
                        assert!(message.contains("upload panics"), "{message}");
                    }
                    Err(error) => panic!("{error}"),
                }
                assert_eq!(batch.is_err(), number == 9);
            }
        }
        drop(loader);
        assert_eq!(device.memory().device_held_bytes, 0);
    }
}

/// A call that does not wait, or not for long, waits no longer for the decoder; what it did not get comes later, and the wait is counted.
#[test]
fn patience_ends_while_pictures_are_decoded() {
    let wait = Duration::from_millis(5);
    // (In any order, and with nothing ahead, the consumer sends each batch itself.)
    for (parts, workers, depth, in_order) in [
        (0, 0, 0, true),
        (0, 0, 2, true),
        (0, 1, 0, true),
        (0, 2, 2, true),
        (2, 0, 0, true),
        (1, 2, 1, true),
        (0, 0, 0, false),
        (0, 1, 0, false),
        (0, 2, 0, false),
        (0, 2, 2, false),
    ] {
        let (script, device) = (Arc::<Script>::default(), Device::cpu());
        let _open = Open(Arc::clone(&script));
        if parts > 0 {
            device.cut_batches_at(1, parts * ROW_BYTES);
        }
        let loader = builder::<Tensor<u8>>(&script, 12, &device).batch_size(4);
        let loader = loader.num_workers(workers).in_order(in_order);
        let loader = loader.build().unwrap();
        learn(&loader, &device);
        let mut epoch = loader.epoch(1).prefetch_to_device(&device, depth);
        script.hold_draws(true);
        for _ in 0..3 {
            assert!(matches!(epoch.next_timeout(wait), TryNext::NotYet));
            assert!(matches!(epoch.try_next(), TryNext::NotYet));
        }
        let waited = epoch.stats().consumer_wait.total;
        let how =
            format!("parts of {parts}, {workers} workers, {depth} ahead, in order: {in_order}");
        // (Where the consumer sends the batch, that is a part of its time, too.)
        assert!(waited >= wait, "{waited:?}, {how}");
        script.hold_draws(false);
        let mut all = vec![there(&epoch.next().unwrap().unwrap())];
        // In the middle of the epoch, too. (A batch that was decoded ahead may be there.)
        script.hold_draws(true);
        while all.len() < 3
            && let TryNext::Batch(batch) = epoch.next_timeout(wait)
        {
            all.push(there(&batch.unwrap()));
        }
        script.hold_draws(false);
        all.extend(epoch.by_ref().map(|batch| there(&batch.unwrap())));
        if !in_order {
            all.sort();
        }
        assert!(all == [pixels(0..4), pixels(4..8), pixels(8..12)], "{how}");
        let stats = epoch.stats();
        assert_eq!(stats.consumer_wait.each.count(), 3);
        assert_eq!((stats.batches, stats.samples), (3, 12));
        drop(epoch);
        drop(loader);
        assert_eq!(device.memory().device_held_bytes, 0);
    }
}

/// Whoever leaves an epoch, or drops its loader, does not wait for the decoder.
#[test]
fn nobody_waits_for_a_decoder_that_hangs() {
    for (workers, depth, asks) in [(0, 0, true), (0, 2, true), (2, 2, true), (2, 2, false)] {
        let (script, device) = (Arc::<Script>::default(), Device::cpu());
        let _open = Open(Arc::clone(&script));
        let loader = builder::<Own>(&script, 12, &device).batch_size(4);
        let loader = loader.num_workers(workers).build().unwrap();
        learn(&loader, &device);
        script.hold_draws(true);
        let mut epoch = loader.epoch(1).prefetch_to_device(&device, depth);
        if asks {
            assert!(matches!(
                epoch.next_timeout(Duration::from_millis(1)),
                TryNext::NotYet
            ));
        }
        drop(epoch);
        let mut again = loader.epoch(2).prefetch_to_device(&device, depth);
        assert!(matches!(again.try_next(), TryNext::NotYet));
        drop(again);
        drop(loader);
        script.hold_draws(false);
        let loader = builder::<Own>(&script, 12, &device).batch_size(4);
        let loader = loader.build().unwrap();
        assert!(
            loader
                .epoch(0)
                .prefetch_to_device(&device, 0)
                .all(|batch| batch.is_ok())
        );
        drop(loader);
        assert_eq!(device.memory().device_held_bytes, 0);
    }
}

/// Without workers, each consumer makes its own batches again, and not those that another one waits for.
#[test]
fn a_consumer_makes_its_own_batches_again() {
    let (script, device) = (Arc::<Script>::default(), Device::cpu());
    let _open = Open(Arc::clone(&script));
    let loader = builder::<Tensor<u8>>(&script, 12, &device).batch_size(4);
    let loader = loader.build().unwrap();
    let mut one = loader.epoch(0).prefetch_to_device(&device, 1);
    script.set(5, How::DamagedOnce);
    // The first is given out, and the second loaded and sent by a call that does not get it.
    script.hold_draws_from(Some(4));
    assert_eq!(there(&one.next().unwrap().unwrap()), pixels(0..4));
    assert!(matches!(one.try_next(), TryNext::NotYet));
    script.hold_draws(false);
    // Decoded after it: so the other is known to have failed.
    let mut other = loader.epoch(1).prefetch_to_device(&device, 1);
    for batch in 0..3 {
        let rows = there(&other.next().unwrap().unwrap());
        assert_eq!(rows, pixels(4 * batch..4 * batch + 4));
    }
    assert_eq!(script.times_got(5), 2, "it is not this consumer's");
    assert!(other.next().is_none());
    assert_eq!(there(&one.next().unwrap().unwrap()), pixels(4..8));
    assert_eq!(script.times_got(5), 3);
    assert_eq!(there(&one.next().unwrap().unwrap()), pixels(8..12));
    assert!(one.next().is_none());
    for epoch in [&one, &other] {
        let stats = epoch.stats();
        assert_eq!((stats.batches, stats.samples), (3, 12));
    }
}

/// What the decoder refuses the CPU decodes, and it is not counted as the device's.
#[test]
fn what_the_decoder_refuses_is_the_cpus() {
    let script = Arc::<Script>::default();
    for (number, how) in [
        (5, How::Refused),
        (6, How::Refused),
        (8, How::OnCpu),
        (12, How::Refused),
    ] {
        script.set(number, how);
    }
    for (parts, workers, depth) in [(0, 0, 0), (0, 0, 2), (0, 2, 2), (2, 2, 2)] {
        let device = Device::cpu();
        if parts > 0 {
            device.cut_batches_at(1, parts * ROW_BYTES);
        }
        let loader = builder::<Tensor<u8>>(&script, 20, &device).batch_size(4);
        let loader = loader.num_workers(workers).build().unwrap();
        learn(&loader, &device);
        for epoch in 1..3 {
            let mut sent = loader.epoch(epoch).prefetch_to_device(&device, depth);
            let batches = sent.by_ref().map(|batch| there(&batch.unwrap()));
            assert!(batches.eq((0..5).map(|batch| pixels(4 * batch..4 * batch + 4))));
            let stats = sent.stats();
            assert_eq!(stats.decoder.decoded, 16);
            let why = [("the decoder refused it", 3), ("the test says so", 1)];
            assert_eq!(stats.decoder.left_to_cpu, why.into());
        }
    }
}

/// What was counted of a batch that is made again would be counted twice.
#[test]
fn a_batch_that_is_made_again_is_not_counted_as_decoded() {
    for (workers, depth) in [(0, 0), (0, 2), (2, 2)] {
        let (script, device) = (Arc::<Script>::default(), Device::cpu());
        let loader = builder::<Tensor<u8>>(&script, 12, &device).batch_size(4);
        let loader = loader.num_workers(workers).build().unwrap();
        learn(&loader, &device);
        for (number, how) in [
            (4, How::Refused),
            (5, How::DamagedOnce),
            (6, How::OnCpu),
            (9, How::OnCpu),
        ] {
            script.set(number, how);
        }
        let mut sent = loader.epoch(1).prefetch_to_device(&device, depth);
        let batches = sent.by_ref().map(|batch| there(&batch.unwrap()));
        assert!(batches.eq((0..3).map(|batch| pixels(4 * batch..4 * batch + 4))));
        let stats = sent.stats();
        assert_eq!((stats.samples, stats.decoder.decoded), (12, 7));
        assert_eq!(stats.decoder.left_to_cpu, [("the test says so", 1)].into());
    }
}

/// A file that fits lies in its picture's row until that is decoded, and nowhere else.
#[test]
fn files_wait_in_their_rows() {
    let (script, device) = (Arc::<Script>::default(), Device::cpu());
    for workers in [0, 2] {
        let loader = builder::<Tensor<u8>>(&script, 12, &device).batch_size(12);
        let loader = loader.num_workers(workers).build().unwrap();
        learn(&loader, &device);
        for epoch in 1..3 {
            script.hold_draws(true);
            let open = Open(Arc::clone(&script));
            thread::scope(|scope| {
                let batch =
                    scope.spawn(|| loader.epoch(epoch).prefetch_to_device(&device, 1).next());
                script.wait_for_draw(0);
                assert_eq!(script.files(), 4, "one of three does not fit");
                drop(open);
                let batch = batch.join().unwrap().unwrap().unwrap();
                assert_eq!(there(&batch), pixels(0..12));
            });
            assert_eq!(script.files(), 0);
        }
    }
}

/// Only what the CPU made is copied, wherever it lies in the batch; and all rows are where they belong.
#[test]
fn what_the_device_makes_is_not_copied() {
    let (side, batch) = (210, 6); // rows of 132 KB: none is copied for its neighbours
    let row_bytes = (side * side * 3) as u64;
    for (parts, workers, depth) in [(0, 0, 0), (0, 2, 2), (2, 2, 2)] {
        let (script, device) = (Arc::<Script>::default(), Device::cpu());
        if parts > 0 {
            device.cut_batches_at(1, parts * row_bytes as usize);
        }
        (0..24).for_each(|number| script.set_side(number, side));
        let of_cpu = [1, 6, 11, 14, 15, 18, 20, 22];
        of_cpu
            .iter()
            .for_each(|number| script.set(*number, How::OnCpu));
        let loader = builder::<Tensor<u8>>(&script, 24, &device).batch_size(batch);
        let loader = loader.num_workers(workers).build().unwrap();
        learn(&loader, &device);
        for epoch in 1..4 {
            let mut sent = loader.epoch(epoch).prefetch_to_device(&device, depth);
            let all = sent.by_ref().flat_map(|batch| there(&batch.unwrap()));
            let expected = (0..24).flat_map(|number| vec![colour(number); side * side * 3]);
            assert!(all.eq(expected), "parts of {parts}, epoch {epoch}");
            let stats = sent.stats();
            assert_eq!(stats.decoder.decoded, 16);
            assert_eq!(stats.transfers.bytes, of_cpu.len() as u64 * row_bytes);
        }
    }
}

/// A stream's items are used up when they are loaded, unless a policy may ask for them again. In any case, the error is the picture's.
#[test]
fn a_streams_batch_is_made_again_if_its_items_are_kept() {
    let script = Arc::<Script>::default();
    script.set(5, How::Damaged);
    script.set(9, How::Damaged);
    for (workers, depth) in [(0, 0), (0, 2), (1, 2), (3, 2)] {
        for skips in [false, true] {
            let device = Device::cpu();
            let loader = DataLoader::iterable(stream::<Tensor<u8>>(&script, 10)).batch_size(4);
            let loader = loader.num_workers(workers).pin_memory(&device);
            let loader = match skips {
                true => loader.on_error(OnError::Skip { at_most: 10 }),
                false => loader,
            };
            let loader = loader.build::<Tensor<u8>>().unwrap();
            for epoch in 0..3 {
                let mut sent = loader.epoch(epoch).prefetch_to_device(&device, depth);
                let batches: Vec<_> = sent.by_ref().collect();
                let [first, second, third] = &batches[..] else {
                    panic!("{} batches", batches.len());
                };
                assert_eq!(there(first.as_ref().unwrap()), pixels(0..4));
                let stats = sent.stats();
                if skips {
                    assert_eq!(there(second.as_ref().unwrap()), pixels([4, 6, 7]));
                    assert_eq!(there(third.as_ref().unwrap()), pixels([8]));
                    assert_eq!((stats.bad.skipped, stats.samples, stats.batches), (2, 8, 3));
                    continue;
                }
                for (failed, number, row) in [(second, 5, 1), (third, 9, 1)] {
                    let Err(Error::Sample(id, cause)) = failed else {
                        panic!("{workers} workers, picture {number}");
                    };
                    assert_eq!((id.index, id.row), (number, row));
                    assert_eq!(cause.to_string(), format!("picture {number} is damaged"));
                }
            }
        }
    }
}

/// A picture whose decoder panics is its own sample's error, wherever it panics.
#[test]
fn a_panic_costs_its_own_batch() {
    let (script, device) = (Arc::<Script>::default(), Device::cpu());
    let _open = Open(Arc::clone(&script));
    script.set(6, How::Panics);
    for workers in [0, 2] {
        let loader = builder::<Tensor<u8>>(&script, 16, &device).batch_size(4);
        let loader = loader.num_workers(workers).build().unwrap();
        learn(&loader, &device);
        // So that all are decoded in one chunk.
        script.hold_draws(workers > 0);
        let mut epoch = loader.epoch(1).prefetch_to_device(&device, 4);
        if workers > 0 {
            while sent(&device, 4 * ROW_BYTES) < 4 {
                assert!(matches!(
                    epoch.next_timeout(Duration::from_millis(1)),
                    TryNext::NotYet
                ));
            }
            script.hold_draws(false);
        }
        let batches: Vec<_> = epoch.by_ref().collect();
        let [Ok(_), Err(error), Ok(_), Ok(_)] = &batches[..] else {
            panic!(
                "{:?}",
                batches.iter().map(Result::is_ok).collect::<Vec<_>>()
            );
        };
        let Error::SamplePanicked(id, message) = error else {
            panic!("{error}");
        };
        assert_eq!((id.index, id.row), (6, 2));
        assert!(message.contains("makes its decoder panic"), "{message}");
        assert!(epoch.stats().decoder.decoded >= 12);
    }
}

/// A row has the size that its picture said first, whatever it says to whoever writes there.
#[test]
fn a_picture_is_asked_once_what_becomes_of_it() {
    let (script, device) = (Arc::<Script>::default(), Device::cpu());
    script.set(5, How::Lies);
    let loader = builder::<Tensor<u8>>(&script, 8, &device).batch_size(4);
    let loader = loader.num_workers(2).build().unwrap();
    for epoch in 0..2 {
        let mut batches = loader.epoch(epoch).prefetch_to_device(&device, 2);
        for (first, batch) in (0..).step_by(4).zip(batches.by_ref()) {
            let pixels = batch.unwrap().to_host(false).unwrap().wait().unwrap();
            let colours = pixels.as_slice().chunks(ROW_BYTES).map(|row| row[0]);
            assert!(colours.eq((first..first + 4).map(colour)), "epoch {epoch}");
        }
        assert!(epoch == 0 || batches.stats().decoder.decoded == 8);
    }
}

/// Batches that fail together say why, each of them.
#[test]
fn what_fails_together_says_why() {
    let script = Arc::<Script>::default();
    let _open = Open(Arc::clone(&script));
    // The first is copied, and the second's row; then, in one chunk, those of the others.
    let mut options = Hostile::default();
    (options.fail_operation, options.fail_call) = (Some("copy"), Some(2));
    let device = Device::hostile(options).unwrap();
    // Nothing is loaded before it is known where it goes, but for the first batch, which is on the host then.
    script.hold_loads_from(Some(0));
    let loader = builder::<Tensor<u8>>(&script, 5, &device).batch_size(1);
    let loader = loader.num_workers(1).prefetch(1).build().unwrap();
    let epoch = loader.epoch(0);
    script.wait_for_loads(1);
    let mut epoch = epoch.prefetch_to_device(&device, 5);
    script.hold_draws(true);
    script.hold_loads_from(Some(2));
    let first = epoch.next().unwrap().unwrap();
    script.wait_for_draw(1);
    script.hold_loads_from(None);
    while sent(&device, ROW_BYTES) < 5 {
        assert!(matches!(
            epoch.next_timeout(Duration::from_millis(1)),
            TryNext::NotYet
        ));
    }
    script.hold_draws(false);
    let rest: Vec<_> = epoch.by_ref().collect();
    let [Ok(second), failed @ ..] = &rest[..] else {
        panic!("{rest:?}");
    };
    assert_eq!(failed.len(), 3);
    for error in failed {
        let Err(Error::Device {
            operation: "copy", ..
        }) = error
        else {
            panic!("{error:?}");
        };
    }
    assert_eq!([there(&first), there(second)], [pixels([0]), pixels([1])]);
    // The decoder is opened anew for what comes.
    let again = loader.epoch(1).prefetch_to_device(&device, 2);
    assert!(
        again
            .map(|batch| there(&batch.unwrap()))
            .eq((0..5).map(|number| pixels([number])))
    );
}

/// What is at the decoder is out of the loader's window, so loading goes on.
#[test]
fn loading_goes_on_while_pictures_are_decoded() {
    let (script, device) = (Arc::<Script>::default(), Device::cpu());
    let _open = Open(Arc::clone(&script));
    let loader = builder::<Tensor<u8>>(&script, 20, &device).batch_size(1);
    let loader = loader.num_workers(1).prefetch(1).build().unwrap();
    learn(&loader, &device);
    script.hold_draws(true);
    let mut epoch = loader.epoch(1).prefetch_to_device(&device, 4);
    // Those that may be sent, and one that is ready behind them.
    while script.loads() < 20 + 5 {
        assert!(matches!(
            epoch.next_timeout(Duration::from_millis(1)),
            TryNext::NotYet
        ));
    }
    script.hold_draws(false);
    let all = epoch.by_ref().map(|batch| there(&batch.unwrap()));
    assert!(all.eq((0..20).map(|number| pixels([number]))));
}

/// Slabs at the decoder come home by themselves: who needs one waits for them, even if the program waits for that unit.
#[test]
fn slabs_at_the_decoder_come_home() {
    let (script, device) = (Arc::<Script>::default(), Device::cpu());
    let _open = Open(Arc::clone(&script));
    // Rows that take as long to copy as to make: as few parts as may be have slabs, which are four.
    let (side, rows) = (256, 12);
    (0..rows).for_each(|number| script.set_side(number, side));
    device.cut_batches_at(1, side * side * 3);
    let loader = builder::<Tensor<u8>>(&script, rows, &device).batch_size(rows as usize);
    let loader = loader.num_workers(2).build().unwrap();
    learn(&loader, &device);
    // The first part is decoded by itself; the others have all slabs by the time that it turns out to be bad, and hang.
    script.set(0, How::DamagedOnce);
    script.hold_draws(true);
    script.hold_loads_from(Some(1));
    let mut epoch = loader.epoch(1).prefetch_to_device(&device, 1);
    while !script.draws(0) {
        assert!(matches!(
            epoch.next_timeout(Duration::from_millis(1)),
            TryNext::NotYet
        ));
    }
    script.hold_loads_from(None);
    let slabs_out = || {
        let memory = device.memory();
        (memory.pinned_bytes - memory.pinned_idle_bytes) / (side * side * 3)
    };
    while slabs_out() < 4 {
        assert!(matches!(
            epoch.next_timeout(Duration::from_millis(1)),
            TryNext::NotYet
        ));
    }
    script.hold_draws_from(Some(1));
    for _ in 0..5 {
        assert!(matches!(
            epoch.next_timeout(Duration::from_millis(10)),
            TryNext::NotYet
        ));
    }
    script.hold_draws(false);
    let batch = there(&epoch.next().unwrap().unwrap());
    let expected = (0..rows).flat_map(|number| vec![colour(number); side * side * 3]);
    assert!(batch.into_iter().eq(expected));
    assert_eq!(epoch.stats().unpinned.count, 0);
}

/// A batch that reads its pictures on the host while it is made.
struct Read(Tensor<u8>);

impl OfPixels for Read {
    fn of(pixels: Tensor<u8>) -> Read {
        let rows = pixels.as_slice().chunks(ROW_BYTES);
        rows.for_each(|row| assert!(row.iter().all(|byte| *byte == row[0])));
        Read(pixels)
    }
}

impl Batch for Read {
    type OnDevice = DeviceTensor<u8>;

    fn tensors(&self, visit: &mut Tensors<'_>) {
        visit.add(&self.0);
    }

    fn relocate(self, slab: &mut Relocation) -> Read {
        Read(slab.tensor(self.0))
    }

    fn upload(self, upload: &mut Upload) -> DeviceTensor<u8> {
        upload.tensor(self.0)
    }
}

/// A bad picture that a batch reads on the host is its sample's error, and a policy's, as any.
#[test]
fn a_bad_picture_that_is_read_is_its_samples_error() {
    let script = Arc::<Script>::default();
    (5..40)
        .step_by(12)
        .for_each(|number| script.set(number, How::Damaged));
    let skip = OnError::Skip { at_most: 20 };
    for (workers, on_error) in [(0, OnError::Fail), (2, OnError::Fail), (0, skip), (2, skip)] {
        for batch_size in [1, 4] {
            let device = Device::cpu();
            let loader = builder::<Read>(&script, 40, &device).batch_size(batch_size);
            let loader = loader.num_workers(workers).on_error(on_error);
            let loader = loader.build().unwrap();
            for epoch in 0..3 {
                let mut sent = loader.epoch(epoch).prefetch_to_device(&device, 2);
                let mut failed = Vec::new();
                for (number, batch) in sent.by_ref().enumerate() {
                    let first = (number * batch_size) as u64;
                    let all = first..first + batch_size as u64;
                    match batch {
                        Ok(batch) => {
                            let good = all.filter(|number| number % 12 != 5);
                            assert!(there(&batch) == pixels(good));
                        }
                        Err(Error::Sample(id, cause)) => {
                            assert_eq!(
                                cause.to_string(),
                                format!("picture {} is damaged", id.index)
                            );
                            assert_eq!(id.row as u64, id.index - first);
                            failed.push(id.index);
                        }
                        Err(error) => panic!("{workers} workers, {on_error:?}: {error:?}"),
                    }
                }
                let (bad, stats) = ([5, 17, 29], sent.stats());
                // (Batches that were made again count for nothing. Of the first epoch, some were made before it was known where they go.)
                assert_eq!(stats.decoder.decoded, 0);
                let read = stats.decoder.left_to_cpu.get("read on the host").copied();
                assert!(epoch == 0 || read == Some(40 - 3 * batch_size as u64));
                match (on_error, batch_size) {
                    (OnError::Fail, size) => {
                        assert_eq!(failed, bad);
                        assert_eq!(stats.samples, 40 - 3 * size as u64);
                    }
                    (_, 1) => assert_eq!(failed, bad), // nothing is left of it
                    _ => assert_eq!((failed.len(), stats.bad.skipped, stats.samples), (0, 3, 37)),
                }
            }
        }
    }
}

/// Small batches that are made in runs: what has no page-locked memory there is decoded by the CPU, and moves; a bad picture of it is an error
/// as any.
#[test]
fn the_cpu_decodes_what_moves() {
    let (small, large, bad) = (200, 64, 150);
    for (budget, workers) in [(1 << 30, 1), (1 << 30, 2), (3 << 12, 1), (3 << 12, 2)] {
        let (script, device) = (Arc::<Script>::default(), Device::cpu());
        device.set_pinned_budget_bytes(budget);
        script.set(bad, How::Damaged);
        if budget == 1 << 30 {
            // Larger than what is left of a run's slab.
            (bad - 20..bad + 20).for_each(|number| script.set_side(number, large));
        }
        let loader = builder::<Tensor<u8>>(&script, small, &device).batch_size(1);
        let loader = loader.num_workers(workers).build().unwrap();
        learn(&loader, &device);
        let mut moved = 0;
        for epoch in loader.epochs(1..6).prefetch_to_device(&device, 1) {
            let mut epoch = epoch;
            for (number, batch) in epoch.by_ref().enumerate() {
                match batch {
                    Ok(batch) => {
                        let pixels = there(&batch);
                        assert!(pixels.iter().all(|byte| *byte == colour(number as u64)));
                    }
                    Err(Error::Sample(id, _)) => assert_eq!((id.index, id.row), (bad, 0)),
                    Err(error) => panic!("{error:?}"),
                }
            }
            let stats = epoch.stats();
            let left = stats
                .decoder
                .left_to_cpu
                .get("no page-locked memory")
                .copied();
            moved += left.unwrap_or(0);
            assert_eq!(stats.samples, small - 1, "{stats:?}");
        }
        // (On a machine that is busy, samples may take too long for runs.)
        println!("{moved} moved, of a budget of {budget}, {workers} workers");
    }
}

/// Batches in buffers that were sent and are made again lie in one of them, too.
#[test]
fn batches_that_are_made_again_lie_in_buffers() {
    for (workers, count) in [(0, 1), (0, 2), (1, 2), (2, 3)] {
        for in_order in [true, false] {
            let (script, device) = (Arc::<Script>::default(), Device::cpu());
            let loader = builder::<Tensor<u8>>(&script, 80, &device).batch_size(4);
            let loader = loader.num_workers(workers).in_order(in_order);
            let loader = loader.build().unwrap();
            learn(&loader, &device);
            let buffers = DeviceBuffers::new(&device, count).unwrap();
            let mut addresses = BTreeSet::new();
            let stream = device.stream().unwrap();
            for epoch in 1..5 {
                (0..80)
                    .step_by(7)
                    .for_each(|number| script.set(number, How::DamagedOnce));
                let mut seen = Vec::new();
                for batch in loader.epoch(epoch).prefetch_to_device(&buffers, count) {
                    let batch = batch.unwrap();
                    addresses.insert(batch.on(&stream).unwrap().address());
                    seen.push(there(&batch));
                }
                seen.sort();
                let expected = (0..20).map(|batch| pixels(4 * batch..4 * batch + 4));
                assert!(
                    seen.into_iter().eq(expected),
                    "{workers} workers, {count} buffers"
                );
            }
            assert_eq!(
                addresses.len(),
                count,
                "{workers} workers, in order: {in_order}"
            );
        }
    }
}
