//! Pictures that a device decodes (`Decode::Device`): the CPU's rows, labels and errors. On the CPU device, whose stand-in decodes as the
//! CPU does, byte for byte; a GPU's inverse transform may round otherwise, within stated bounds. (An H200's gives libjpeg-turbo's bytes.)

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use pinfeed::image::{
    ColorJitter, Decode, ImageFolder, ImageTransform, Interpolation, LazyImage, Padding,
    RandAugment, RandomErasing, RandomRotation, StoredFolder,
};
use pinfeed::loader::{OnError, Stats};
use pinfeed::store::LocalFiles;
use pinfeed::{DataLoader, Dataset, Device, DeviceTensor, Error, SampleRng, Tensor, from_fn};

use crate::Test;
use crate::backend::Backend;

pub const TESTS: &[Test] = &[
    ("decoding_gives_the_cpus_rows", decoding_gives_the_cpus_rows),
    ("decoding_fails_as_on_the_cpu", decoding_fails_as_on_the_cpu),
    (
        "decoding_changes_as_the_cpu_does",
        decoding_changes_as_the_cpu_does,
    ),
    (
        "decoding_takes_pictures_of_a_store",
        decoding_takes_pictures_of_a_store,
    ),
    (
        "decoding_may_be_left_and_shared",
        decoding_may_be_left_and_shared,
    ),
    (
        "devices_decode_their_own_batches",
        devices_decode_their_own_batches,
    ),
];

/// By how much a byte of a picture, resized by the bilinear filter, may differ on a GPU; of 255.
const MOST_OFF: u8 = 12;
/// The same, in the mean over a picture's bytes.
const MEAN_OFF: f64 = 2.0;

/// How many of the [pictures] a device's decoder takes, at least: JPEG that is baseline, or extended and like it.
const DEVICES_OWN: u64 = 15;

type Host = (Tensor<u8>, Tensor<i64>);
type There = (DeviceTensor<u8>, DeviceTensor<i64>);
/// A batch on the host, or its error.
type Rows = Result<Host, Error>;

/// Whether the device's decoder can be used; on a GPU, nvJPEG may be missing, or the hardware.
pub fn ready(device: &Device) -> pinfeed::Result<()> {
    let list = [(fixture("444-37x11.jpg"), 0)];
    let pictures = ImageFolder::from_list(list)?.with_transform(ImageTransform::eval(8));
    let loader = loader(pictures.with_decode(Decode::Device), device, 1, 0);
    for batch in loader.epoch(0).prefetch_to_device(device, 1) {
        if let Err(error @ Error::Decoder { .. }) = batch {
            return Err(error); // others are the tests' to find
        }
    }
    Ok(())
}

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/pictures")
}

fn fixture(name: &str) -> PathBuf {
    fixtures().join(name)
}

/// All files that the CPU decodes; a label is a file's number. (What a decoder makes of a damaged file is its own.)
fn pictures() -> Vec<(PathBuf, i64)> {
    let files = std::fs::read_dir(fixtures()).unwrap();
    let mut paths: Vec<PathBuf> = files.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    let decodes = |path: &PathBuf| {
        let bytes = std::fs::read(path).unwrap();
        LazyImage::encoded(bytes).decode().is_ok()
    };
    paths.retain(|path| !path.to_string_lossy().contains("damaged") && decodes(path));
    paths.into_iter().zip(0..).collect()
}

fn folder(list: &[(PathBuf, i64)], side: usize) -> ImageFolder {
    let folder = ImageFolder::from_list(list.iter().cloned()).unwrap();
    folder.with_transform(ImageTransform::train(side))
}

fn loader(
    pictures: ImageFolder,
    device: &Device,
    batch: usize,
    workers: usize,
) -> DataLoader<Host> {
    let loader = DataLoader::builder(pictures).batch_size(batch).seed(9);
    let loader = loader.num_workers(workers).pin_memory(device);
    loader.build().unwrap()
}

fn fetched(there: Result<There, Error>) -> Rows {
    let (pixels, labels) = there?;
    Ok((pixels.to_host(true)?.wait()?, labels.to_host(true)?.wait()?))
}

/// An epoch that the device decodes, and its counts.
fn by_device(loader: &DataLoader<Host>, device: &Device, epoch: u64) -> (Vec<Rows>, Stats) {
    let mut sent = loader.epoch(epoch).prefetch_to_device(device, 2);
    let rows = sent.by_ref().map(fetched).collect();
    (rows, sent.stats())
}

/// The same on the host, where the CPU decodes, by a loader without workers.
fn by_cpu(pictures: &ImageFolder, device: &Device, batch: usize, epoch: u64) -> Vec<Rows> {
    let loader = loader(pictures.clone().with_decode(Decode::Cpu), device, batch, 0);
    loader.epoch(epoch).collect()
}

/// How far pictures were from the CPU's.
#[derive(Default)]
struct Off {
    bytes: u64,
    sum: u64,
    most: u8,
    /// How many pictures were off at all.
    pictures: u64,
}

/// Compares epochs: labels and shapes exactly, errors by their words, and pictures within the bounds (of a GPU) or exactly.
fn compare(backend: &Backend, there: &[Rows], here: &[Rows], off: &mut Off, how: &str) {
    assert_eq!(there.len(), here.len(), "{how}");
    let (most_off, mean_off) = match backend.is_cuda() {
        true => (MOST_OFF, MEAN_OFF),
        false => (0, 0.0),
    };
    for (number, (there, here)) in there.iter().zip(here).enumerate() {
        let (there, here) = match (there, here) {
            (Ok(there), Ok(here)) => (there, here),
            (Err(there), Err(here)) => {
                assert_eq!(there.to_string(), here.to_string(), "{how}");
                continue;
            }
            (there, here) => panic!(
                "{how}, batch {number}: {:?} on the device, {:?} on the CPU",
                there.as_ref().err(),
                here.as_ref().err()
            ),
        };
        assert_eq!(there.1, here.1, "labels: {how}, batch {number}");
        assert_eq!(there.0.shape(), here.0.shape(), "{how}, batch {number}");
        let row_bytes: usize = here.0.shape()[1..].iter().product();
        let rows = there.0.as_slice().chunks(row_bytes);
        let rows = rows.zip(here.0.as_slice().chunks(row_bytes));
        for ((there, here), label) in rows.zip(here.1.as_slice()) {
            let offs = there
                .iter()
                .zip(here)
                .map(|(one, other)| one.abs_diff(*other));
            let most = offs.clone().max().unwrap();
            let sum: u64 = offs.map(u64::from).sum();
            let mean = sum as f64 / row_bytes as f64;
            assert!(
                most <= most_off && mean <= mean_off,
                "{how}, picture {label}: off by {mean:.3} in the mean, by {most} at most"
            );
            off.bytes += row_bytes as u64;
            off.sum += sum;
            off.most = off.most.max(most);
            off.pictures += u64::from(most > 0);
        }
    }
}

/// Nothing is held any more; what the device still works at may take a moment.
fn assert_nothing_is_kept(device: &Device) {
    let patience = Instant::now() + Duration::from_secs(20);
    while device.memory().device_held_bytes > 0 && Instant::now() < patience {
        std::thread::sleep(Duration::from_millis(1));
    }
    let memory = device.memory();
    assert_eq!((memory.device_held_bytes, memory.leaked), (0, 0));
}

fn decoding_gives_the_cpus_rows(backend: &Backend) {
    let device = &backend.device;
    let list = pictures();
    let mut off = Off::default();
    for side in [16, 64] {
        let pictures = folder(&list, side);
        for (batch, workers) in [(1, 1), (8, 0), (8, 3), (200, 2)] {
            let encoded = pictures.clone().with_decode(Decode::Device);
            let loader = loader(encoded, device, batch, workers);
            for epoch in 0..2 {
                let how = format!("{side}, {batch} a batch, {workers} workers, epoch {epoch}");
                let (there, stats) = by_device(&loader, device, epoch);
                let here = by_cpu(&pictures, device, batch, epoch);
                let mut this = Off::default();
                compare(backend, &there, &here, &mut this, &how);
                // What workers decoded has the CPU's bytes.
                assert!(this.pictures <= stats.decoder.decoded, "{how}");
                off.bytes += this.bytes;
                off.sum += this.sum;
                off.most = off.most.max(this.most);
            }
        }
    }
    println!(
        "pictures that the device decoded, and others: off by {:.4} in the mean, by {} at most",
        off.sum as f64 / off.bytes as f64,
        off.most
    );
    assert_nothing_is_kept(device);
}

/// Pictures that come from a store, as a bucket's do, decode on the device as those of a folder: in an epoch that is left, and in whole ones.
fn decoding_takes_pictures_of_a_store(backend: &Backend) {
    let device = &backend.device;
    let root = tempfile::tempdir().unwrap();
    for (path, number) in pictures() {
        let class = root.path().join(format!("train/{}", number % 3));
        std::fs::create_dir_all(&class).unwrap();
        std::fs::copy(&path, class.join(path.file_name().unwrap())).unwrap();
    }
    let store = LocalFiles::open(root.path()).unwrap();
    let stored = StoredFolder::open(store, "train").unwrap();
    let stored = stored.with_transform(ImageTransform::train(32));
    let loader = |decode| {
        let loader = DataLoader::builder(stored.clone().with_decode(decode)).batch_size(8);
        let loader = loader.shuffle(true).seed(9).num_workers(3);
        loader.pin_memory(device).build().unwrap()
    };
    let (encoded, decoded): (DataLoader<Host>, DataLoader<Host>) =
        (loader(Decode::Device), loader(Decode::Cpu));
    drop(encoded.epoch(0).prefetch_to_device(device, 2).next());
    for epoch in 0..2 {
        let how = format!("epoch {epoch}");
        let (there, stats) = by_device(&encoded, device, epoch);
        let here: Vec<Rows> = decoded.epoch(epoch).collect();
        compare(backend, &there, &here, &mut Off::default(), &how);
        assert!(stats.decoder.decoded > 0, "{how}: {stats:?}");
    }
    assert_nothing_is_kept(device);
}

/// A broken file is its own sample's error with its path, or another sample takes its row.
fn decoding_fails_as_on_the_cpu(backend: &Backend) {
    let device = &backend.device;
    let broken = tempfile::tempdir().unwrap();
    let good = fixture("420-37x11.jpg");
    let bytes = std::fs::read(&good).unwrap();
    let progressive = std::fs::read(fixture("progressive.jpg")).unwrap();
    let written = |name: &str, bytes: &[u8]| {
        let path = broken.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        path
    };
    let bad = [
        written("cut-off.jpg", &bytes[..bytes.len() - 40]),
        written("empty.jpg", &[]),
        written("text.jpg", b"this is no picture"),
        written("gone.jpg", &bytes),
        written("progressive-cut-off.jpg", &progressive[..100]),
        fixture("no-frame.gif"),
    ];
    // One broken file in each batch of three, at each of its rows, and whole batches between them.
    let mut list = Vec::new();
    for (number, path) in bad.iter().enumerate() {
        let mut three = vec![good.clone(), fixture("444-37x11.jpg")];
        three.insert(number % 3, path.clone());
        list.extend(three);
        list.extend([fixture("422-37x11.jpg"), good.clone(), fixture("rgb.png")]);
    }
    let list: Vec<(PathBuf, i64)> = list.into_iter().zip(0..).collect();
    let pictures = folder(&list, 24);
    std::fs::remove_file(&bad[3]).unwrap();
    for on_error in [OnError::Fail, OnError::Replace { at_most: 1_000 }] {
        for workers in [0, 1, 3] {
            let how = format!("{on_error:?}, {workers} workers");
            let of = |decode| {
                let loader = DataLoader::builder(pictures.clone().with_decode(decode));
                let loader = loader.batch_size(3).seed(3).num_workers(workers);
                let loader = loader.on_error(on_error).pin_memory(device);
                loader.build::<Host>().unwrap()
            };
            let (encoded, plain) = (of(Decode::Device), of(Decode::Cpu));
            for epoch in 0..2 {
                let (there, stats) = by_device(&encoded, device, epoch);
                let mut sent = plain.epoch(epoch).prefetch_to_device(device, 2);
                let here: Vec<Rows> = sent.by_ref().map(fetched).collect();
                compare(backend, &there, &here, &mut Off::default(), &how);
                assert!(stats.decoder.decoded > 0, "{how}");
                let cpu = sent.stats();
                assert_eq!(
                    (stats.samples, stats.batches, stats.bad.replaced),
                    (cpu.samples, cpu.batches, cpu.bad.replaced),
                    "{how}"
                );
                for (number, batch) in there.iter().enumerate() {
                    if on_error != OnError::Fail || number % 2 == 1 {
                        assert_eq!(batch.as_ref().unwrap().0.shape()[..], [3, 24, 24, 3]);
                        continue;
                    }
                    let path = &bad[number / 2];
                    let Err(Error::Sample(id, cause)) = batch else {
                        panic!("{how}: {} is no sample's error", path.display());
                    };
                    assert_eq!(id.row, number / 2 % 3, "{how}");
                    let said = format!("{id} {cause}");
                    assert!(said.contains(&*path.to_string_lossy()), "{how}: {said}");
                }
            }
        }
    }
    // Damage within a scan is seen by the CPU's decoders; a hardware decoder makes something of it. No other sample is touched.
    let names = ["grey.jpg", "damaged-long-interval.jpg", "444-37x11.jpg"];
    let list: Vec<_> = names.iter().map(|name| fixture(name)).zip(0..).collect();
    let pictures = folder(&list, 24);
    let loader = loader(pictures.clone().with_decode(Decode::Device), device, 1, 2);
    for epoch in 0..2 {
        let mut there = by_device(&loader, device, epoch).0;
        let mut here = by_cpu(&pictures, device, 1, epoch);
        let (there_damaged, here_damaged) = (there.remove(1), here.remove(1));
        compare(backend, &there, &here, &mut Off::default(), "damaged");
        // (libjpeg-turbo makes something of it.)
        assert!(here_damaged.is_err() || cfg!(feature = "turbojpeg"));
        match there_damaged {
            Err(error) => assert!(error.to_string().contains(names[1]), "{error}"),
            Ok(_) => assert!(
                backend.is_cuda() || here_damaged.is_ok(),
                "the damage was not seen"
            ),
        }
    }
    drop(loader);
    assert_nothing_is_kept(device);
}

/// How many pictures of an epoch the device's decoder takes. (In runs of small batches without page-locked memory, it takes none.)
fn devices_own(stats: &Stats) -> Option<u64> {
    let all_had_memory = !stats
        .decoder
        .left_to_cpu
        .contains_key("no page-locked memory");
    all_had_memory.then_some(stats.decoder.decoded)
}

/// Epochs are left in mid-decode; two loaders have one device's decoder; each epoch's counts are its own.
fn decoding_may_be_left_and_shared(backend: &Backend) {
    let device = &backend.device;
    let list = pictures();
    let pictures = folder(&list, 16);
    let encoded = pictures.clone().with_decode(Decode::Device);
    let mut own = None;
    for (batch, workers) in [(1, 1), (4, 0), (4, 1), (7, 3), (64, 2)] {
        let how = format!("{batch} a batch, {workers} workers");
        let loader = loader(encoded.clone(), device, batch, workers);
        let whole = by_cpu(&pictures, device, batch, 7);
        for taken in [0, 1, 2, 5] {
            let taken = taken.min(whole.len());
            let mut epochs = loader
                .epochs(7..10)
                .prefetch_to_device(device, 1 + taken % 3);
            let mut epoch = epochs.next().unwrap();
            let kept: Vec<_> = epoch.by_ref().take(taken).collect();
            match taken % 2 {
                0 => drop((epochs, epoch)),
                _ => drop((epoch, epochs)),
            }
            // What was delivered stays whole.
            let kept: Vec<Rows> = kept.into_iter().map(fetched).collect();
            compare(backend, &kept, &whole[..taken], &mut Off::default(), &how);
        }
        let (rows, stats) = by_device(&loader, device, 7);
        compare(backend, &rows, &whole, &mut Off::default(), &how);
        let left: u64 = stats.decoder.left_to_cpu.values().sum();
        assert_eq!(stats.decoder.decoded + left, list.len() as u64, "{how}");
        if let Some(all) = devices_own(&stats) {
            assert!(all >= DEVICES_OWN, "{how}: {:?}", stats.decoder.left_to_cpu);
            assert_eq!(*own.get_or_insert(all), all, "{how}");
            // (Who has no page-locked memory is counted for that, whatever the picture.)
            assert!(stats.decoder.left_to_cpu["progressive JPEG"] > 0, "{how}");
            assert!(stats.decoder.left_to_cpu["not JPEG"] > 0, "{how}");
        }
        drop((rows, loader));
        assert_nothing_is_kept(device);
    }
    assert!(own.is_some());
    let loaders = [(8, 2), (5, 1)].map(|(batch, workers)| {
        let whole = by_cpu(&pictures, device, batch, 1);
        (loader(encoded.clone(), device, batch, workers), whole)
    });
    std::thread::scope(|scope| {
        for (loader, whole) in &loaders {
            scope.spawn(move || {
                for _ in 0..3 {
                    let (rows, _) = by_device(loader, device, 1);
                    compare(backend, &rows, whole, &mut Off::default(), "two loaders");
                }
                let (_, stats) = by_device(loader, device, 1);
                assert!(devices_own(&stats).is_none_or(|all| Some(all) == own));
            });
        }
    });
    drop(loaders);
    assert_nothing_is_kept(device);
}

/// One loader for two devices: each decodes the batches that it trains on, and has the CPU's rows.
fn devices_decode_their_own_batches(backend: &Backend) {
    const BATCH: usize = 4;
    let (list, devices) = (pictures(), backend.devices());
    let pictures = folder(&list, 32);
    for decode in [Decode::Device, Decode::Both] {
        let loader = DataLoader::builder(pictures.clone().with_decode(decode));
        let loader = loader.batch_size(BATCH).drop_last(true).seed(9);
        let loader = loader.num_workers(3).pin_memory(&devices);
        let loader = match decode {
            Decode::Both => loader.device_share(0.5),
            _ => loader,
        };
        let loader: DataLoader<Host> = loader.build().unwrap();
        for number in 0..4 {
            let mut whole = by_cpu(&pictures, &backend.device, BATCH, number);
            whole.truncate(list.len() / BATCH);
            let epochs = loader.epoch(number).split(&devices, 2);
            std::thread::scope(|scope| {
                for (device, epoch) in epochs.into_iter().enumerate() {
                    let (whole, how) = (
                        &whole,
                        format!("{decode:?}, device {device}, epoch {number}"),
                    );
                    scope.spawn(move || {
                        let there: Vec<Rows> = epoch.map(fetched).collect();
                        let own = whole.chunks_exact(2).map(|step| &step[device]);
                        assert_eq!(there.len(), own.len(), "{how}");
                        for (there, here) in there.chunks(1).zip(own) {
                            let here = std::slice::from_ref(here);
                            compare(backend, there, here, &mut Off::default(), &how);
                        }
                    });
                }
            });
        }
        let stats = loader.total_stats();
        assert!(
            stats.decoder.decoded > 0,
            "{decode:?}: {:?}",
            stats.decoder.left_to_cpu
        );
        drop(loader);
        devices.iter().for_each(assert_nothing_is_kept);
    }
}

/// A data set of one file over and over, or of its pixels, each with the same random numbers.
fn repeated(
    image: impl Fn() -> LazyImage + Send + Sync + 'static,
    transform: &ImageTransform,
) -> impl Dataset<Sample = LazyImage> + 'static {
    let transform = transform.clone();
    from_fn(REPEATED as u64, move |_, rng: &mut SampleRng| {
        Ok(image().transform(&transform, rng))
    })
}

/// How often a file is decoded and changed.
const REPEATED: usize = 64;

/// What an epoch of the data set comes to on the device, when its decoder has made every row, or refused them all. (While it opens, the CPU
/// decodes.)
fn all_by_device(
    data: impl Dataset<Sample = LazyImage> + 'static,
    device: &Device,
    batch: usize,
) -> Vec<u8> {
    let loader = DataLoader::builder(data).batch_size(batch).seed(4);
    let loader = loader.num_workers(2).pin_memory(device);
    let loader: DataLoader<Tensor<u8>> = loader.build().unwrap();
    let patience = Instant::now() + Duration::from_secs(60);
    loop {
        // (Always the same epoch: its random numbers are compared.)
        let mut sent = loader.epoch(1).prefetch_to_device(device, 2);
        let mut rows = Vec::new();
        for pixels in sent.by_ref() {
            let pixels = pixels.unwrap().to_host(true).unwrap().wait().unwrap();
            rows.extend_from_slice(pixels.as_slice());
        }
        let stats = sent.stats();
        let left = &stats.decoder.left_to_cpu;
        let refused = left.get("the decoder refused it").copied().unwrap_or(0);
        if stats.decoder.decoded.max(refused) == stats.samples {
            return rows;
        }
        assert!(Instant::now() < patience, "left to the CPU: {left:?}");
    }
}

/// Colours, erasing, rotation and RandAugment have exactly the CPU's results. So that only they are compared, the CPU is given the very
/// pixels that the device's decoder makes of the file.
fn decoding_changes_as_the_cpu_does(backend: &Backend) {
    let device = &backend.device;
    let jitter = ColorJitter::new().with_brightness(0.6).with_contrast(0.6);
    let jitter = jitter.with_saturation(0.8).with_hue(0.5);
    let erasing = RandomErasing::new().with_value([124, 116, 104]);
    let smooth = RandomRotation::from(40.0).with_interpolation(Interpolation::Bilinear);
    let augment = RandAugment::new().with_num_ops(3).with_magnitude(20);
    let transforms = [
        ImageTransform::train(48)
            .color_jitter(jitter)
            .random_grayscale(0.2)
            .random_erasing(erasing),
        ImageTransform::train(48).rand_augment(augment),
        ImageTransform::train(33)
            .with_interpolation(Interpolation::Bicubic)
            .rand_augment(augment.with_interpolation(Interpolation::Bilinear))
            .random_horizontal_flip(0.5)
            .color_jitter(jitter),
        ImageTransform::new()
            .resize_exact(40, 52)
            .random_rotation(smooth)
            .pad(Padding::from(3))
            .random_crop((39, 35))
            .random_rotation(15.0)
            .random_vertical_flip(0.5)
            .random_erasing(erasing),
    ];
    // A row that is larger than one block's share, by far.
    let large = ImageTransform::new()
        .resize_exact(160, 224)
        .color_jitter(jitter)
        .rand_augment(augment);
    let names = ["420-37x11.jpg", "440-4x9.jpg", "grey.jpg", "444-37x1.jpg"];
    for (at, name) in names.into_iter().enumerate() {
        let file = std::fs::read(fixture(name)).unwrap();
        let encoded = move || LazyImage::encoded(file.clone()).with_decode(Decode::Device);
        let as_it_is = ImageTransform::new();
        let shape = encoded().shape().unwrap();
        let pixels = all_by_device(repeated(encoded.clone(), &as_it_is), device, 32);
        let pixels = pixels[..shape.iter().product()].to_vec();
        let large = (at == 0).then_some(&large);
        for (number, transform) in transforms.iter().chain(large).enumerate() {
            let (pixels, shape) = (pixels.clone(), shape.clone());
            let decoded = move || {
                let pixels = Tensor::from_vec(pixels.clone(), &shape).unwrap();
                LazyImage::rgb(pixels).unwrap()
            };
            let here = repeated(decoded, transform);
            let here = DataLoader::builder(here).batch_size(32).seed(4);
            let here: DataLoader<Tensor<u8>> = here.build().unwrap();
            let expected: Vec<u8> = here
                .epoch(1)
                .flat_map(|pixels| pixels.unwrap().to_vec())
                .collect();
            let found = all_by_device(repeated(encoded.clone(), transform), device, 32);
            assert_eq!(found.len(), expected.len());
            let row_bytes = expected.len() / REPEATED;
            let wrong = (0..found.len()).find(|at| found[*at] != expected[*at]);
            let wrong = wrong.map(|at| (at / row_bytes, at % row_bytes, found[at], expected[at]));
            assert_eq!(wrong, None, "{name}, transform {number}");
        }
    }
    assert_nothing_is_kept(device);
}
