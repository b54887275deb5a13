//! Pictures that a device decodes: the same batches as the CPU's, whatever else has a hand in it. (On the CPU device a stand-in decodes, with the
//! CPU's own pixels; it writes its rows as a hardware decoder does.)
#![allow(clippy::unwrap_used)] // a panic is how a test fails
#![allow(clippy::disallowed_methods)] // threads of one line need no names
#![allow(unreachable_pub)] // a binary has no public items

#[macro_use]
extern crate watch;

mod changed;
#[cfg(target_os = "linux")]
mod faults;
#[cfg(target_os = "linux")]
mod library;
mod painted;
mod protocol;
mod shared;

use std::path::{Path, PathBuf};
use std::time::Duration;

use pinfeed::collate::{Relocation, Tensors, Upload};
use pinfeed::device::Hostile;
use pinfeed::error::CollateError;
use pinfeed::image::{Decode, ImageFolder, ImageTransform, LazyImage};
use pinfeed::loader::{OnError, Stats};
use pinfeed::rng::RngKey;
use pinfeed::sample::{Field, Filled, Layout, Row};
use pinfeed::{DataLoader, Device, DeviceTensor, Error, Sample, SampleRng, Tensor, from_fn};

type Batch = (Tensor<u8>, Tensor<i64>);
type There = (DeviceTensor<u8>, DeviceTensor<i64>);
type Rows = Vec<Result<(Vec<u8>, Vec<i64>), String>>;

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/pictures")
}

fn names() -> Vec<PathBuf> {
    let files = std::fs::read_dir(fixtures()).unwrap();
    let mut names: Vec<PathBuf> = files.map(|entry| entry.unwrap().path()).collect();
    names.sort();
    names
}

/// All files that the CPU decodes.
fn pictures() -> ImageFolder {
    let mut names = names();
    let transform = ImageTransform::train(16);
    let decodes = |path: &PathBuf| {
        let bytes = std::fs::read(path).unwrap();
        pinfeed::image::LazyImage::encoded(bytes).decode().is_ok()
    };
    names.retain(decodes);
    let labels = 0..names.len() as i64;
    ImageFolder::from_list(
        names
            .iter()
            .zip(labels)
            .map(|(path, label)| (path.clone(), label)),
    )
    .unwrap()
    .with_transform(transform)
}

fn loader(
    pictures: ImageFolder,
    device: &Device,
    batch: usize,
    workers: usize,
) -> DataLoader<Batch> {
    DataLoader::builder(pictures)
        .batch_size(batch)
        .shuffle(true)
        .seed(9)
        .num_workers(workers)
        .pin_memory(device)
        .build()
        .unwrap()
}

fn fetched(there: Result<There, Error>) -> Result<(Vec<u8>, Vec<i64>), String> {
    let (pixels, labels) = there.map_err(|error| error.to_string())?;
    let pixels = pixels.to_host(true).unwrap().wait().unwrap();
    let labels = labels.to_host(true).unwrap().wait().unwrap();
    Ok((pixels.to_vec(), labels.to_vec()))
}

/// An epoch as it comes on the host, decoded by the CPU.
fn expected(pictures: &ImageFolder, device: &Device, batch: usize, epoch: u64) -> Rows {
    let loader = loader(pictures.clone().with_decode(Decode::Cpu), device, batch, 0);
    let batches = loader.epoch(epoch);
    let rows = batches.map(|batch| {
        let (pixels, labels) = batch.map_err(|error| error.to_string())?;
        Ok((pixels.to_vec(), labels.to_vec()))
    });
    rows.collect()
}

#[test]
fn a_device_decodes_what_the_cpu_would() {
    let device = Device::cpu();
    let pictures = pictures();
    for (batch, workers) in [(1, 1), (8, 0), (8, 1), (8, 3), (50, 2)] {
        let loader = loader(
            pictures.clone().with_decode(Decode::Device),
            &device,
            batch,
            workers,
        );
        for epoch in 0..2 {
            let mut sent = loader.epoch(epoch).prefetch_to_device(&device, 2);
            let rows: Rows = sent.by_ref().map(fetched).collect();
            assert!(
                rows == expected(&pictures, &device, batch, epoch),
                "{batch} a batch, {workers} workers, epoch {epoch}"
            );
            let stats = sent.stats();
            let left: u64 = stats.decoder.left_to_cpu.values().sum();
            assert_eq!(stats.unpinned.count, 0);
            let all = stats.decoder.decoded + left;
            assert_eq!(all, pictures.labels().len() as u64);
            // libjpeg-turbo makes pictures of six damaged files, too.
            let decoded = if cfg!(feature = "turbojpeg") { 26 } else { 20 };
            assert_eq!(stats.decoder.decoded, decoded, "{stats:?}");
            for reason in ["progressive JPEG", "not JPEG"] {
                let counted = stats.decoder.left_to_cpu.contains_key(reason);
                assert!(
                    counted,
                    "{batch} a batch, {workers} workers, epoch {epoch}: {stats:?}"
                );
            }
        }
    }
    assert_eq!(device.memory().device_held_bytes, 0);
}

/// Files that are damaged, or none, are errors of their own samples, as on the CPU; and others take their rows, if the program says so. The
/// device may take batches in parts.
#[test]
fn what_fails_on_the_cpu_fails_there() {
    let device = Device::cpu();
    let names: Vec<PathBuf> = names();
    for on_error in [
        OnError::Fail,
        OnError::Replace { at_most: 1_000 },
        OnError::Skip { at_most: 1_000 },
    ] {
        let all = ImageFolder::from_list(names.iter().map(|name| (name, 0))).unwrap();
        let all = all.with_transform(ImageTransform::eval(24));
        for rows_of_a_part in [0, 3] {
            let device = match rows_of_a_part {
                0 => Device::cpu(),
                rows => {
                    device.cut_batches_at(1, rows * 24 * 24 * 3);
                    device.clone()
                }
            };
            for workers in [0, 1, 3] {
                let rows = |decode| -> (Rows, Stats) {
                    let loader = DataLoader::builder(all.clone().with_decode(decode));
                    let loader = loader.batch_size(7).seed(3).num_workers(workers);
                    let loader = loader.on_error(on_error).pin_memory(&device);
                    let loader = loader.build::<Batch>().unwrap();
                    let rows = loader.epochs(0..2).prefetch_to_device(&device, 3).flatten();
                    let rows = rows.map(fetched).collect();
                    (rows, loader.total_stats())
                };
                let how = format!("{on_error:?}, {workers} workers, parts of {rows_of_a_part}");
                let ((there, by_device), (here, by_cpu)) =
                    (rows(Decode::Device), rows(Decode::Cpu));
                assert_eq!(there.len(), here.len(), "{how}");
                for (number, (there, here)) in there.iter().zip(&here).enumerate() {
                    // (Of several bad ones in a batch, any may be the first that is found.)
                    let errors = [there, here].map(|rows| rows.as_ref().err());
                    let are_errors = there.is_err() && here.is_err();
                    assert!(
                        there == here || are_errors,
                        "{how}, batch {number}: {errors:?}"
                    );
                }
                let failed = here.iter().find_map(|rows| rows.as_ref().err());
                assert_eq!(failed.is_some(), on_error == OnError::Fail, "{failed:?}");
                assert_eq!(by_device.batches, by_cpu.batches, "{how}");
                if on_error != OnError::Fail {
                    assert_eq!(by_device.samples, by_cpu.samples, "{how}");
                }
            }
        }
    }
}

/// Damage that only a decoder finds is an error of its own sample, too, and costs no other batch anything.
#[test]
#[cfg_attr(feature = "turbojpeg", ignore = "libjpeg-turbo makes a picture of it")]
fn damage_that_a_decoder_finds_is_a_samples_error() {
    let device = Device::cpu();
    let names = [
        "grey.jpg",
        "damaged-long-interval.jpg",
        "444-37x11.jpg",
        "420-37x11.jpg",
    ];
    let list = names.map(|name| (fixtures().join(name), 0));
    let all = ImageFolder::from_list(list)
        .unwrap()
        .with_transform(ImageTransform::eval(24));
    let encoded = all.clone().with_decode(Decode::Device);
    for workers in [0, 1, 2] {
        let loader = DataLoader::builder(encoded.clone())
            .batch_size(2)
            .num_workers(workers);
        let loader = loader.pin_memory(&device).build::<Batch>().unwrap();
        for epoch in loader.epochs(0..3).prefetch_to_device(&device, 3) {
            let batches: Vec<_> = epoch.collect();
            let [Err(Error::Sample(id, cause)), Ok(_)] = &batches[..] else {
                panic!(
                    "{:?}",
                    batches.iter().map(Result::is_ok).collect::<Vec<_>>()
                );
            };
            assert_eq!((id.index, id.row), (1, 1));
            let said = format!("{id} {cause}");
            assert!(said.contains("damaged-long-interval.jpg"), "{said}");
        }
        assert_eq!(device.memory().device_held_bytes, 0);
    }
}

/// And as one run of epochs, across their boundaries.
#[test]
fn epochs_follow_each_other() {
    let device = Device::cpu();
    let pictures = pictures();
    let loader = loader(pictures.clone().with_decode(Decode::Device), &device, 8, 2);
    for (number, epoch) in loader
        .epochs(0..3)
        .prefetch_to_device(&device, 4)
        .enumerate()
    {
        let rows: Rows = epoch.map(fetched).collect();
        assert!(
            rows == expected(&pictures, &device, 8, number as u64),
            "epoch {number}"
        );
    }
}

/// On the host, the CPU decodes.
#[test]
fn batches_on_the_host_are_decoded() {
    let device = Device::cpu();
    let pictures = pictures();
    for workers in [0, 2] {
        let loader = loader(
            pictures.clone().with_decode(Decode::Device),
            &device,
            8,
            workers,
        );
        let mut epoch = loader.epoch(0);
        let rows: Rows = epoch
            .by_ref()
            .map(|batch| {
                let (pixels, labels) = batch.unwrap();
                Ok((pixels.to_vec(), labels.to_vec()))
            })
            .collect();
        assert!(rows == expected(&pictures, &device, 8, 0));
        assert_eq!(epoch.stats().decoder.decoded, 0);
        // A batch of the host may still be sent.
        let batch = loader.epoch(0).next().unwrap().unwrap();
        let there = pinfeed::Batch::to_device(batch, &device, true);
        assert!(fetched(there) == rows[0]);
        // And after it, an epoch that goes there.
        let rows: Rows = loader
            .epoch(1)
            .prefetch_to_device(&device, 1)
            .map(fetched)
            .collect();
        assert!(rows == expected(&pictures, &device, 8, 1));
    }
}

/// Epochs are left while pictures are being decoded, in any way; what comes after is whole, and nothing is kept.
#[test]
fn epochs_may_end_while_pictures_are_decoded() {
    let pictures = pictures();
    for workers in [0, 1, 3] {
        for seed in 0..6 {
            let mut late = Hostile::default();
            (late.seed, late.max_delay) = (seed, Duration::from_millis(1));
            let device = Device::hostile(late).unwrap();
            let loader = loader(
                pictures.clone().with_decode(Decode::Device),
                &device,
                4,
                workers,
            );
            let whole = expected(&pictures, &Device::cpu(), 4, 7);
            for taken in [0, 1, 2, 5, 9] {
                let mut epochs = loader
                    .epochs(7..10)
                    .prefetch_to_device(&device, 1 + taken % 3);
                let mut epoch = epochs.next().unwrap();
                let kept: Vec<_> = epoch.by_ref().take(taken).collect();
                match seed % 3 {
                    0 => drop(epochs),
                    1 => drop(epoch),
                    _ => {}
                }
                let kept: Rows = kept.into_iter().map(fetched).collect();
                assert!(kept == whole[..taken], "{workers} workers, {taken} taken");
            }
            let rows: Rows = loader
                .epoch(7)
                .prefetch_to_device(&device, 2)
                .map(fetched)
                .collect();
            assert!(rows == whole, "{workers} workers");
            drop(loader);
            assert_eq!(device.memory().device_held_bytes, 0);
        }
    }
}

/// Two loaders share a device's decoder; each has its own batches.
#[test]
fn loaders_share_a_decoder() {
    let device = Device::cpu();
    let pictures = pictures();
    let loaders = [2, 1].map(|workers| {
        loader(
            pictures.clone().with_decode(Decode::Device),
            &device,
            8,
            workers,
        )
    });
    let expected = [0, 1].map(|epoch| expected(&pictures, &device, 8, epoch));
    std::thread::scope(|scope| {
        for (number, loader) in loaders.iter().enumerate() {
            let (device, expected) = (&device, &expected[number]);
            scope.spawn(move || {
                for _ in 0..3 {
                    let sent = loader.epoch(number as u64).prefetch_to_device(device, 2);
                    let rows: Rows = sent.map(fetched).collect();
                    assert!(rows == *expected, "loader {number}");
                }
            });
        }
    });
}

/// Little memory, of either kind.
#[test]
fn there_is_little_memory() {
    let pictures = pictures();
    let expected = expected(&pictures, &Device::cpu(), 4, 0);
    for workers in [0, 1, 3] {
        for (pinned, there) in [(1 << 20, 1 << 13), (1 << 14, 1 << 20), (0, 1 << 13)] {
            let device = Device::cpu();
            device.set_pinned_budget_bytes(pinned);
            device.set_device_budget_bytes(there);
            let loader = loader(
                pictures.clone().with_decode(Decode::Device),
                &device,
                4,
                workers,
            );
            for depth in [0, 1, 20] {
                let rows: Rows = loader
                    .epoch(0)
                    .prefetch_to_device(&device, depth)
                    .map(fetched)
                    .collect();
                assert!(
                    rows == expected,
                    "{workers} workers, {pinned} and {there} bytes"
                );
            }
        }
    }
}

/// In the order in which they are ready.
#[test]
fn batches_come_in_any_order() {
    let device = Device::cpu();
    let pictures = pictures();
    let builder = DataLoader::builder(pictures.clone().with_decode(Decode::Device));
    let builder = builder.batch_size(4).num_workers(3).in_order(false);
    let loader = builder.pin_memory(&device).build::<Batch>().unwrap();
    let mut expected: Rows = {
        let loader = DataLoader::builder(pictures.with_decode(Decode::Cpu)).batch_size(4);
        let loader = loader.pin_memory(&device).build::<Batch>().unwrap();
        loader
            .epoch(0)
            .prefetch_to_device(&device, 0)
            .map(fetched)
            .collect()
    };
    expected.sort();
    for epoch in 0..5 {
        let mut rows: Rows = loader
            .epoch(epoch)
            .prefetch_to_device(&device, 3)
            .map(fetched)
            .collect();
        rows.sort();
        assert!(rows.len() == expected.len());
    }
}

/// A batch of the program's own that reads its pictures on the host gets pixels.
#[test]
fn a_batch_may_be_read_before_it_is_sent() {
    struct Bright {
        pixels: Tensor<u8>,
        sums: Tensor<i64>,
    }
    impl pinfeed::Batch for Bright {
        type OnDevice = There;

        fn tensors(&self, visit: &mut Tensors<'_>) {
            visit.add(&self.pixels);
            visit.add(&self.sums);
        }

        fn relocate(self, slab: &mut Relocation) -> Bright {
            Bright {
                pixels: slab.tensor(self.pixels),
                sums: slab.tensor(self.sums),
            }
        }

        fn upload(self, upload: &mut Upload) -> There {
            (upload.tensor(self.pixels), upload.tensor(self.sums))
        }
    }
    struct Picture(LazyImage);
    impl Sample for Picture {
        type Batch = Bright;
        type Plan = Field<u8>;
        type Rest = ();

        fn plan<'a>(
            samples: impl Iterator<Item = &'a Picture> + Clone,
            layout: &mut Layout,
        ) -> Result<Field<u8>, CollateError> {
            LazyImage::plan(samples.map(|picture| &picture.0), layout)
        }

        fn fill(self, field: &Field<u8>, row: &mut Row<'_>) -> Result<(), CollateError> {
            self.0.fill(field, row)
        }

        fn finish(field: Field<u8>, _: Vec<()>, filled: &mut Filled) -> Bright {
            let pixels: Tensor<u8> = filled.take(field);
            let sum = |row: usize| {
                pixels
                    .row(row)
                    .as_slice()
                    .iter()
                    .map(|byte| i64::from(*byte))
                    .sum()
            };
            let sums: Vec<i64> = (0..pixels.shape()[0]).map(sum).collect();
            let sums = Tensor::from(sums);
            Bright { pixels, sums }
        }
    }
    let device = Device::cpu();
    let all = pictures();
    let expected: Vec<_> = all
        .paths()
        .map(|path| {
            let image = LazyImage::encoded(std::fs::read(path).unwrap());
            image
                .transform(
                    &ImageTransform::eval(16),
                    &mut SampleRng::for_sample(RngKey {
                        seed: 0,
                        epoch: 0,
                        position: 0,
                    }),
                )
                .decode()
                .unwrap()
                .to_vec()
        })
        .collect();
    let samples = from_fn(expected.len(), move |index, rng| {
        let image = LazyImage::encoded(std::fs::read(all.path(index).unwrap())?);
        let image = image.transform(&ImageTransform::eval(16), rng);
        Ok(Picture(image.with_decode(Decode::Device)))
    });
    let loader = DataLoader::builder(samples).batch_size(6).num_workers(2);
    let loader = loader.pin_memory(&device).build::<Bright>().unwrap();
    for epoch in 0..2 {
        let mut at = 0;
        for there in loader.epoch(epoch).prefetch_to_device(&device, 2) {
            let (pixels, sums) = fetched(there).unwrap();
            for (row, sum) in pixels.chunks(16 * 16 * 3).zip(sums) {
                assert!(row == expected[at]);
                assert_eq!(sum, row.iter().map(|byte| i64::from(*byte)).sum::<i64>());
                at += 1;
            }
        }
        assert_eq!(at, expected.len());
    }
}

/// Whatever call of the device fails: each batch is right, or an error, and nothing hangs.
#[test]
fn any_call_of_the_device_may_fail() {
    let pictures = pictures();
    let whole = expected(&pictures, &Device::cpu(), 8, 0);
    let (mut failed, mut right) = (0, 0);
    for call in (0..240).step_by(8) {
        for (workers, sticky) in [(0, false), (2, false), (2, true)] {
            let mut options = Hostile::default();
            (options.fail_call, options.sticky) = (Some(call), sticky);
            let Ok(device) = Device::hostile(options) else {
                continue;
            };
            let encoded = pictures.clone().with_decode(Decode::Device);
            let loader = DataLoader::builder(encoded)
                .batch_size(8)
                .shuffle(true)
                .seed(9);
            let loader = loader
                .num_workers(workers)
                .pin_memory(&device)
                .build::<Batch>();
            let Ok(loader) = loader else { continue };
            for (number, there) in loader.epoch(0).prefetch_to_device(&device, 2).enumerate() {
                let fetched = there.and_then(|(pixels, labels)| {
                    let pixels = pixels.to_host(true)?.wait()?;
                    Ok((pixels.to_vec(), labels.to_host(true)?.wait()?.to_vec()))
                });
                match fetched {
                    Ok(rows) => {
                        assert!(Ok(rows) == whole[number], "call {call}, batch {number}");
                        right += 1;
                    }
                    Err(_) => failed += 1,
                }
            }
        }
    }
    assert!(
        failed > 10 && right > 50,
        "{failed} failed, {right} were right"
    );
}

/// A header may say anything: the CPU refuses what is too large, whoever is to decode it, and no decoder gets it.
#[test]
fn a_picture_that_says_that_it_is_huge_is_its_samples_error() {
    let device = Device::cpu();
    let mut huge = std::fs::read(fixtures().join("420-37x11.jpg")).unwrap();
    let frame = huge.windows(2).position(|two| two == [0xFF, 0xC0]).unwrap();
    let side = 60_000u16.to_be_bytes();
    huge[frame + 5..frame + 7].copy_from_slice(&side);
    huge[frame + 7..frame + 9].copy_from_slice(&side);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("huge.jpg");
    std::fs::write(&path, huge).unwrap();
    let good = ["444-37x11.jpg", "420-37x11.jpg", "grey.jpg"];
    let mut list = good.map(|name| (fixtures().join(name), 0)).to_vec();
    list.insert(2, (path, 0));
    let all = ImageFolder::from_list(list).unwrap();
    let all = all.with_transform(ImageTransform::eval(24));
    for workers in [0, 2] {
        let said = [Decode::Cpu, Decode::Device].map(|decode| {
            let loader = DataLoader::builder(all.clone().with_decode(decode)).batch_size(2);
            let loader = loader.num_workers(workers).pin_memory(&device);
            let loader = loader.build::<Batch>().unwrap();
            let mut said = Vec::new();
            for _ in 0..2 {
                let batches: Vec<_> = loader.epoch(0).prefetch_to_device(&device, 2).collect();
                let [Ok(_), Err(error @ Error::Sample(id, _))] = &batches[..] else {
                    panic!(
                        "{:?}",
                        batches.iter().map(Result::is_ok).collect::<Vec<_>>()
                    );
                };
                assert_eq!((id.index, id.row), (2, 0));
                said.push(error.to_string());
            }
            assert!(
                said[0].contains("60000 x 60000") && said[0].contains("huge.jpg"),
                "{said:?}"
            );
            said
        });
        assert_eq!(said[0], said[1]);
    }
}
