//! The whole way with a library in place of nvJPEG: tests/drivers/libnvjpeg.c, which does what a test tells it.
#![allow(unsafe_code)] // it reads and sets the library's own numbers

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use pinfeed::collate::Arena;
use pinfeed::dataset::{ConcatDataset, Subset};
use pinfeed::device::Hostile;
use pinfeed::error::Stage;
use pinfeed::image::{Decode, ImageFolder, LazyImage};
use pinfeed::loader::{Builder, TryNext};
use pinfeed::{DataLoader, Dataset, Device, DeviceTensor, Error, Tensor, from_fn};
use tempfile::TempDir;

use crate::painted::{How, Open, ROW_BYTES, Script, builder, colour, sent};

/// The library, built with these macros. Each has its own folder, and so its own counts.
pub struct Library {
    folder: TempDir,
    counts: Option<libloading::Library>,
}

const NAME: &str = "libnvjpeg.so.13";

impl Library {
    pub fn new(defines: &[&str]) -> Library {
        let mut library = Library::missing();
        library.build(defines);
        // SAFETY: it has no constructors.
        let counts = unsafe { libloading::Library::new(library.folder.path().join(NAME)) };
        library.counts = Some(counts.unwrap());
        library
    }

    /// Puts a library there, built with these macros. (Without a C compiler, this is where it ends.)
    pub fn build(&self, defines: &[&str]) {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/drivers/libnvjpeg.c");
        let path = self.folder.path().join(NAME);
        let mut cc = Command::new("cc");
        cc.args([
            "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o",
        ]);
        let built = cc.arg(&path).arg(source).args(defines).status();
        assert!(built.unwrap().success());
    }

    /// No library at all.
    pub fn missing() -> Library {
        Library {
            folder: tempfile::tempdir().unwrap(),
            counts: None,
        }
    }

    /// What a device is told that decodes by it.
    pub fn options(&self) -> Hostile {
        let mut options = Hostile::default();
        options.nvjpeg = Some(self.folder.path().to_owned());
        options
    }

    pub fn device(&self) -> Device {
        Device::hostile(self.options()).unwrap()
    }

    fn number(&self, name: &str) -> &AtomicI32 {
        let counts = self.counts.as_ref().unwrap();
        // SAFETY: the stand-in has these, as integers, for as long as it is loaded.
        unsafe { AtomicI32::from_ptr(*counts.get::<*mut i32>(name.as_bytes()).unwrap()) }
    }

    pub fn count(&self, name: &str) -> i32 {
        self.number(name).load(Ordering::SeqCst)
    }

    pub fn set(&self, name: &str, value: i32) {
        self.number(name).store(value, Ordering::SeqCst);
    }
}

/// When a test ends, or fails, decodes do not hang any more.
pub struct GoesOn<'a>(pub &'a Library);

impl Drop for GoesOn<'_> {
    fn drop(&mut self) {
        self.0.set("stub_held", 0);
    }
}

/// Batches are not made in runs. (Of those, some may find no page-locked memory, and the CPU decodes them.)
pub fn whole<D: Dataset, C>(loader: Builder<D, C>, workers: usize) -> Builder<D, C> {
    match workers {
        0 => loader.num_workers(0), // which makes none
        _ => loader.num_workers(workers).max_bytes_in_flight(1 << 30),
    }
}

/// Teaches loaders that their samples are pictures: then nothing is loaded before it is known where batches go.
pub fn learn<'a>(loaders: impl IntoIterator<Item = &'a DataLoader<Tensor<u8>>>, device: &Device) {
    let all = loaders.into_iter();
    all.for_each(|loader| loader.epoch(0).prefetch_to_device(device, 2).for_each(drop));
}

/// Waits until this is so, which takes another thread a moment.
#[track_caller]
pub fn until(mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < Duration::from_secs(30), "it never is");
        thread::sleep(Duration::from_millis(1));
    }
}

/// The bytes of a tensor on the device.
pub fn there(pixels: &DeviceTensor<u8>) -> Vec<u8> {
    pixels.to_host(true).unwrap().wait().unwrap().to_vec()
}

/// The pixels of pictures.
pub fn pixels(numbers: impl IntoIterator<Item = u64>) -> Vec<u8> {
    let rows = numbers
        .into_iter()
        .map(|number| [colour(number); ROW_BYTES]);
    rows.flatten().collect()
}

/// An epoch comes whole.
#[track_caller]
pub fn comes(loader: &DataLoader<Tensor<u8>>, device: &Device, epoch: u64, len: u64, batch: u64) {
    let batches = loader.epoch(epoch).prefetch_to_device(device, 2);
    let batches: Vec<Vec<u8>> = batches.map(|batch| there(&batch.unwrap())).collect();
    let expected = (0..len).step_by(batch as usize);
    let expected: Vec<Vec<u8>> = expected
        .map(|first| pixels(first..len.min(first + batch)))
        .collect();
    assert!(batches == expected);
}

#[test]
fn a_library_decodes() {
    let (script, library) = (Arc::<Script>::default(), Library::new(&[]));
    for number in [3, 10] {
        script.set(number, How::RefusedByLibrary);
    }
    for (parts, workers) in [(0, 0), (0, 2), (2, 2)] {
        let device = library.device();
        device.cut_batches_at(1 << 20, 1 << 20);
        if parts > 0 {
            device.cut_batches_at(1, parts * ROW_BYTES);
        }
        let loader = builder::<Tensor<u8>>(&script, 22, &device).batch_size(4);
        let loader = loader.num_workers(workers).build().unwrap();
        for epoch in 0..3 {
            comes(&loader, &device, epoch, 22, 4);
        }
        let stats = loader.total_stats();
        assert!(stats.decoder.decoded >= 40, "{stats:?}");
        assert!(stats.decoder.left_to_cpu["the decoder refused it"] >= 4);
        drop(loader);
        assert_eq!(device.memory().device_held_bytes, 0);
        drop(device);
        // (The decoder's thread may be the last that holds it.)
        until(|| ["stub_handles", "stub_states"].map(|name| library.count(name)) == [0, 0]);
    }
}

/// A GPU without hardware for it decodes by kernels, and the statistics say so.
#[test]
fn without_hardware_kernels_decode() {
    for defines in ["-DENGINES=0", "-DHARDWARE_RESULT=7"] {
        let (script, library) = (Arc::<Script>::default(), Library::new(&[defines]));
        script.set(3, How::RefusedByLibrary);
        let device = library.device();
        let loader = builder::<Tensor<u8>>(&script, 22, &device).batch_size(4);
        let loader = whole(loader, 2).build().unwrap();
        learn([&loader], &device);
        for epoch in 1..3 {
            comes(&loader, &device, epoch, 22, 4);
            let stats = loader.stats();
            assert_eq!((stats.decoder.decoded, stats.decoder.by_kernels), (21, 21));
            let said = "decoder: 21 of 22 pictures were decoded by the device (by kernels), 1 left to the CPU";
            assert!(stats.to_string().contains(said), "{stats}");
        }
    }
    // They are given as many at once as there is memory for, some 180: two calls for a batch, and one for the last. (Hardware has 64.)
    let (script, library) = (Arc::<Script>::default(), Library::new(&["-DENGINES=0"]));
    let device = library.device();
    device.cut_batches_at(1 << 30, 1 << 30); // not at all
    let loader = builder::<Tensor<u8>>(&script, 600, &device).batch_size(256);
    let loader = whole(loader, 2).build().unwrap();
    for epoch in 0..3 {
        let before = library.count("stub_calls");
        comes(&loader, &device, epoch, 600, 256);
        let calls = library.count("stub_calls") - before;
        assert!(calls <= 5, "{calls}");
    }
    // Where kernels do not decode either, their error is told.
    let (script, library) = (
        Arc::<Script>::default(),
        Library::new(&["-DCREATE_RESULT=7"]),
    );
    let device = library.device();
    let loader = builder::<Tensor<u8>>(&script, 4, &device)
        .batch_size(4)
        .build()
        .unwrap();
    let error = loader
        .epoch(0)
        .prefetch_to_device(&device, 0)
        .find_map(Result::err)
        .unwrap();
    let said = error.to_string();
    assert!(
        matches!(error, Error::Decoder { .. }) && said.contains("ARCH_MISMATCH"),
        "{said}"
    );
}

/// A data set of pictures that a device is to decode says so, also from within another: the decoder opens while the program does something else.
#[test]
fn the_decoder_opens_when_the_loader_is_built() {
    type Pictures = Box<dyn Dataset<Sample = (LazyImage, i64)>>;
    let all: [fn(ImageFolder) -> Pictures; 7] = [
        |pictures| Box::new(pictures),
        |pictures| Box::new(Arc::new(pictures)),
        |pictures| Box::new(Subset::new(pictures, [3, 1]).unwrap()),
        |pictures| Box::new(ConcatDataset::new(vec![pictures.clone(), pictures]).unwrap()),
        |pictures| Box::new(pictures.map(|(image, label), _| Ok((image, label + 1)))),
        |pictures| {
            let mapped = pictures.map(|sample, _| Ok(sample));
            Box::new(mapped.describe(|index| index.to_string()))
        },
        |pictures| {
            let more = vec![1; pictures.labels().len()];
            let both = pictures.zip(more).unwrap();
            Box::new(both.map(|((image, label), more), _| Ok((image, label + more))))
        },
    ];
    for of in all {
        let library = Library::new(&[]);
        let device = library.device();
        let pictures = of(crate::pictures().with_decode(Decode::Both));
        let loader = DataLoader::builder(pictures)
            .batch_size(4)
            .pin_memory(&device);
        let _loader = loader.build::<crate::Batch>().unwrap();
        until(|| library.count("stub_states") == 1);
    }
}

/// It does not where no device is to decode, or none can: without page-locked memory that batches are made in, or where the program collates
/// samples on the host.
#[test]
fn no_decoder_opens_when_a_loader_of_the_cpus_is_built() {
    let library = Library::new(&[]);
    let device = library.device();
    let of = |decode| DataLoader::builder(crate::pictures().with_decode(decode)).batch_size(4);
    let by_cpu = of(Decode::Cpu).pin_memory(&device).build::<crate::Batch>();
    let pageable = of(Decode::Device).build::<crate::Batch>();
    let copied = of(Decode::Device).pin_memory(&device).pin_by_copy(true);
    let copied = copied.build::<crate::Batch>();
    let count = |samples: Vec<(LazyImage, i64)>, _: &mut Arena| {
        Ok(Tensor::from(vec![samples.len() as i64]))
    };
    let collated = of(Decode::Device).pin_memory(&device).collate_fn(count);
    let collated = collated.build::<Tensor<i64>>();
    drop((by_cpu.unwrap(), pageable.unwrap(), copied.unwrap()));
    drop(collated.unwrap());
    drop(device); // whose thread has ended then
    assert_eq!(library.count("stub_created"), 0);
}

/// The first picture is there, or known to come: the decoder opens before anything is handed to it.
#[test]
fn the_decoder_opens_while_files_are_read() {
    for (workers, is_known) in [(1, false), (3, false), (1, true)] {
        let (script, library) = (Arc::<Script>::default(), Library::new(&[]));
        let device = library.device();
        let loader = builder::<Tensor<u8>>(&script, 12, &device).batch_size(4);
        let loader = loader.num_workers(workers).build().unwrap();
        let _open = Open(Arc::clone(&script));
        if is_known {
            assert_eq!(loader.epoch(0).count(), 3); // on the host
            assert_eq!(library.count("stub_created"), 0);
        }
        script.hold_loads_from(Some(0));
        let mut epoch = loader.epoch(1).prefetch_to_device(&device, 2);
        if !is_known {
            script.hold_loads_from(Some(1));
        }
        until(|| {
            assert!(matches!(epoch.try_next(), TryNext::NotYet));
            library.count("stub_states") == 1
        });
        script.hold_loads_from(None);
        let batches = epoch.by_ref().map(|batch| there(&batch.unwrap()));
        assert!(batches.eq((0..3).map(|batch| pixels(4 * batch..4 * batch + 4))));
        comes(&loader, &device, 2, 12, 4);
        assert_eq!(library.count("stub_created"), 1);
    }
}

/// If that fails, no batch suffers from it: it is tried again with the first pictures.
#[test]
fn a_decoder_that_does_not_open_early_is_opened_later() {
    let (script, library) = (Arc::<Script>::default(), Library::new(&[]));
    let mut options = library.options();
    // The device has two streams; the third is the decoder's.
    (options.fail_operation, options.fail_call) = (Some("create_stream"), Some(2));
    let device = Device::hostile(options).unwrap();
    let loader = builder::<Tensor<u8>>(&script, 12, &device).batch_size(4);
    let loader = loader.num_workers(1).build().unwrap();
    let _open = Open(Arc::clone(&script));
    script.hold_loads_from(Some(0));
    let mut epoch = loader.epoch(0).prefetch_to_device(&device, 2);
    script.hold_loads_from(Some(1));
    until(|| {
        assert!(matches!(epoch.try_next(), TryNext::NotYet));
        library.count("stub_created") == 1 && library.count("stub_handles") == 0
    });
    script.hold_loads_from(None);
    let batches = epoch.by_ref().map(|batch| there(&batch.unwrap()));
    assert!(batches.eq((0..3).map(|batch| pixels(4 * batch..4 * batch + 4))));
    comes(&loader, &device, 1, 12, 4);
    assert_eq!(library.count("stub_created"), 2);
}

/// Who has no pictures for the device, or sends none there, needs no library.
#[test]
fn without_pictures_no_decoder_is_opened() {
    let (script, library) = (Arc::<Script>::default(), Library::new(&[]));
    let (device, other) = (library.device(), library.device());
    let numbers = from_fn(20, |index, _| Ok(index as i64));
    let numbers = DataLoader::builder(numbers).batch_size(4).num_workers(2);
    let numbers = numbers.pin_memory(&device).build::<Tensor<i64>>().unwrap();
    let photos = builder::<Tensor<u8>>(&script, 12, &device).batch_size(4);
    let photos = photos.num_workers(2).build().unwrap();
    for epoch in 0..2 {
        assert_eq!(
            numbers.epoch(epoch).prefetch_to_device(&device, 2).count(),
            5
        );
        assert_eq!(photos.epoch(epoch).count(), 3);
        // Not the device that the loader pins for: the CPU decodes.
        assert_eq!(photos.epoch(epoch).prefetch_to_device(&other, 2).count(), 3);
    }
    drop((numbers, photos, device, other)); // whose threads have ended then
    assert_eq!(library.count("stub_created"), 0);
}

/// A decoder that fails fails those batches that it has begun. Others, of this loader or another, are decoded when it is open again.
#[test]
fn a_fault_costs_the_batches_that_are_being_decoded() {
    let (script, library) = (Arc::<Script>::default(), Library::new(&[]));
    let device = library.device();
    let loader = |workers| {
        let loader = builder::<Tensor<u8>>(&script, 12, &device).batch_size(4);
        loader.num_workers(workers).build().unwrap()
    };
    for workers in [1, 2] {
        let (one, other) = (loader(workers), loader(workers));
        learn([&one, &other], &device);
        (0..4).for_each(|number| script.set(number, How::Breaks));
        let _goes_on = GoesOn(&library);
        let before = library.count("stub_created");
        library.set("stub_held", 1);
        let hanging = || library.count("stub_hanging") == 1;
        // (Its second batch comes later, or both could be decoded together.)
        let _open = Open(Arc::clone(&script));
        script.hold_loads_from(Some(4));
        let mut failing = one.epoch(1).prefetch_to_device(&device, 1);
        while !hanging() {
            assert!(matches!(
                failing.next_timeout(Duration::from_millis(1)),
                TryNext::NotYet
            ));
        }
        script.hold_loads_from(None);
        let sent = || sent(&device, 4 * ROW_BYTES);
        assert_eq!(sent(), 1);
        let mut whole = other.epoch(1).prefetch_to_device(&device, 2);
        // (The pictures of its first batch break, too. But others are decoded with them, so it is not the decoder's fault.)
        while sent() < 3 {
            assert!(matches!(
                whole.next_timeout(Duration::from_millis(1)),
                TryNext::NotYet
            ));
        }
        library.set("stub_held", 0);
        let failed = failing.next().unwrap().unwrap_err();
        let Error::Decoder {
            device: name,
            reason,
        } = &failed
        else {
            panic!("{failed:?}");
        };
        assert_eq!(name, "cpu");
        assert!(reason.contains("EXECUTION_FAILED (6)"), "{reason}");
        let rest: Vec<_> = whole.by_ref().map(|batch| there(&batch.unwrap())).collect();
        assert!(rest == [pixels(0..4), pixels(4..8), pixels(8..12)]);
        let rest = failing.by_ref().map(|batch| there(&batch.unwrap()));
        assert!(rest.eq([pixels(4..8), pixels(8..12)]));
        assert_eq!(library.count("stub_created"), before + 1);
        (0..4).for_each(|number| script.set(number, How::Well));
    }
}

/// A decoder that fails at everything is not opened again for each batch.
#[test]
fn a_decoder_that_never_decodes_is_not_opened_for_each_batch() {
    let (script, library) = (Arc::<Script>::default(), Library::new(&[]));
    let device = library.device();
    let (batches, rows) = (20, 64);
    device.cut_batches_at(1 << 30, 1 << 30); // not at all
    let loader = builder::<Tensor<u8>>(&script, batches * rows, &device);
    let loader = whole(loader.batch_size(rows as usize), 2);
    let loader = loader.build().unwrap();
    learn([&loader], &device);
    (0..batches * rows).for_each(|number| script.set(number, How::Breaks));
    let _goes_on = GoesOn(&library);
    for epoch in 1..3 {
        library.set("stub_held", 1);
        let before = library.count("stub_created");
        let mut epoch = loader
            .epoch(epoch)
            .prefetch_to_device(&device, batches as usize);
        while sent(&device, rows as usize * ROW_BYTES) < batches as usize - 2 {
            assert!(matches!(
                epoch.next_timeout(Duration::from_millis(1)),
                TryNext::NotYet
            ));
        }
        library.set("stub_held", 0);
        let failed = epoch
            .by_ref()
            .filter(|batch| matches!(batch, Err(Error::Decoder { .. })));
        assert_eq!(failed.count() as u64, batches);
        // The first, once more, and perhaps for those that were sent last.
        let opened = library.count("stub_created") - before;
        assert!(opened <= 5, "opened {opened} times");
    }
    // Nothing of it stays.
    (0..batches * rows).for_each(|number| script.set(number, How::Well));
    let expected = (0..batches).map(|batch| pixels(rows * batch..rows * (batch + 1)));
    let there = loader
        .epoch(3)
        .prefetch_to_device(&device, 2)
        .map(|batch| there(&batch.unwrap()));
    assert!(there.eq(expected));
}

/// A decoder that hangs costs each batch that is sent there, after the loader's `timeout`; and what comes when it is back is right.
#[test]
fn a_decoder_that_hangs_is_not_waited_for() {
    let timeout = Duration::from_millis(300);
    // (With nothing ahead, the consumer sends each batch itself.)
    for (workers, depth, in_order) in [(2, 2, true), (1, 0, true), (2, 2, false)] {
        let (script, library) = (Arc::<Script>::default(), Library::new(&[]));
        let device = library.device();
        device.cut_batches_at(1 << 30, 1 << 30); // not at all
        let loader = || {
            let loader = builder::<Tensor<u8>>(&script, 48, &device).batch_size(4);
            let loader = whole(loader, workers).in_order(in_order);
            loader.timeout(timeout).build().unwrap()
        };
        let (one, other) = (loader(), loader());
        learn([&one, &other], &device);
        let _goes_on = GoesOn(&library);
        library.set("stub_held", 1);
        let start = Instant::now();
        // More batches than there are slabs, which the decoder keeps.
        let (mut batches, mut first) = (Vec::new(), None);
        for batch in one.epoch(1).prefetch_to_device(&device, depth) {
            let Err(Error::TimedOut(late)) = &batch else {
                panic!("{:?}", batch.map(drop));
            };
            assert_eq!((late.stage, late.epoch), (Stage::Decoding, 1));
            assert!(late.elapsed >= timeout && late.sample.is_none());
            let said = batch.as_ref().unwrap_err().to_string();
            let words = "was still being decoded after";
            assert!(
                said.contains(words) && said.contains("decoder of cpu"),
                "{said}"
            );
            first.get_or_insert(start.elapsed());
            batches.push(late.batch);
        }
        if !in_order {
            batches.sort_unstable();
        }
        assert!(
            batches.into_iter().eq(0..12),
            "{workers} workers, {depth} ahead"
        );
        assert!(first.unwrap() >= timeout);
        drop(one.epoch(2).prefetch_to_device(&device, depth).next());
        drop(one); // which does not wait for it
        assert_eq!(library.count("stub_hanging"), 1);
        library.set("stub_held", 0);
        let mut all: Vec<Vec<u8>> = other
            .epoch(2)
            .prefetch_to_device(&device, depth)
            .map(|batch| there(&batch.unwrap()))
            .collect();
        all.sort();
        assert!(
            all.into_iter()
                .eq((0..12).map(|batch| pixels(4 * batch..4 * batch + 4)))
        );
        drop(other);
        assert_eq!(device.memory().device_held_bytes, 0);
    }
}

/// It is back in the middle of an epoch.
#[test]
fn batches_come_when_a_decoder_that_hung_is_back() {
    let (script, library) = (Arc::<Script>::default(), Library::new(&[]));
    let device = library.device();
    let batches = 100;
    let loader = builder::<Tensor<u8>>(&script, 4 * batches, &device).batch_size(4);
    let loader = loader.num_workers(2).timeout(Duration::from_millis(500));
    let loader = loader.build().unwrap();
    learn([&loader], &device);
    let _goes_on = GoesOn(&library);
    for epoch in 1..3 {
        let mut epoch = loader.epoch(epoch).prefetch_to_device(&device, 1);
        assert_eq!(there(&epoch.next().unwrap().unwrap()), pixels(0..4));
        library.set("stub_held", 1);
        let mut came = 1;
        let late = loop {
            came += 1;
            match epoch.next().unwrap() {
                Ok(batch) => assert_eq!(there(&batch), pixels(4 * came - 4..4 * came)),
                Err(late) => break late,
            }
        };
        assert!(matches!(late, Error::TimedOut(_)), "{late:?}");
        library.set("stub_held", 0);
        for batch in epoch {
            came += 1;
            // (Those that were sent meanwhile may be late, too.)
            match batch {
                Ok(batch) => assert_eq!(there(&batch), pixels(4 * came - 4..4 * came)),
                Err(late) => assert!(
                    matches!(late, Error::TimedOut(_)) && came < batches - 10,
                    "{late:?}"
                ),
            }
        }
        assert_eq!(came, batches);
    }
}
