//! Pictures that device and CPU share: the same batches, whatever the share; who decodes follows from the place in the order; a share that was
//! found stays, also where the run goes on.

use std::thread;
use std::time::Duration;

use pinfeed::loader::{LoaderState, OnError};
use pinfeed::{DataLoader, Device, Error, from_fn};

use super::{
    Batch, Decode, ImageFolder, ImageTransform, LazyImage, Rows, expected, fetched, pictures,
};

/// The loader that a program makes who reads the documentation of `Decode::Both`.
fn loader(
    pictures: &ImageFolder,
    device: &Device,
    workers: usize,
    share: Option<f64>,
) -> DataLoader<Batch> {
    let builder = DataLoader::builder(pictures.clone().with_decode(Decode::Both))
        .batch_size(8)
        .shuffle(true)
        .seed(9)
        .num_workers(workers)
        .pin_memory(device);
    match share {
        Some(share) => builder.device_share(share).build().unwrap(),
        None => builder.build().unwrap(),
    }
}

#[test]
fn both_make_what_the_cpu_would() {
    let device = Device::cpu();
    let pictures = pictures();
    for share in [None, Some(0.0), Some(0.4), Some(1.0)] {
        for workers in [0, 1, 3] {
            let loader = loader(&pictures, &device, workers, share);
            for epoch in 0..2 {
                let mut sent = loader.epoch(epoch).prefetch_to_device(&device, 2);
                let rows: Rows = sent.by_ref().map(fetched).collect();
                assert!(
                    rows == expected(&pictures, &device, 8, epoch),
                    "{share:?}, {workers} workers, epoch {epoch}"
                );
                let stats = sent.stats();
                let fixed = share.map(|share| (share * 64.0).round() as u8);
                assert_eq!(
                    stats.decoder.device_share.filter(|_| fixed.is_some()),
                    fixed
                );
                let left: u64 = stats.decoder.left_to_cpu.values().sum();
                match share {
                    Some(0.0) => assert_eq!((stats.decoder.decoded, left), (0, 0)),
                    Some(0.4) if epoch > 0 => {
                        assert!((2..19).contains(&stats.decoder.decoded), "{stats:?}")
                    }
                    Some(1.0) if epoch > 0 => {
                        assert_eq!(stats.decoder.decoded + left, stats.samples)
                    }
                    _ => {}
                }
                assert!(stats.decoder.decoded == 0 || !stats.decoder.decoding.is_zero());
            }
        }
    }
    assert_eq!(device.memory().device_held_bytes, 0);
}

/// On the host, the CPU decodes all.
#[test]
fn on_the_host_the_cpu_decodes() {
    let device = Device::cpu();
    let pictures = pictures();
    let loader = loader(&pictures, &device, 2, Some(0.5));
    let batches = loader.epoch(3).map(|batch| {
        let (pixels, labels) = batch.map_err(|error| error.to_string())?;
        Ok((pixels.to_vec(), labels.to_vec()))
    });
    let rows: Rows = batches.collect();
    assert!(rows == expected(&pictures, &device, 8, 3));
    let stats = loader.stats();
    assert_eq!(
        (stats.decoder.decoded, stats.decoder.left_to_cpu.len()),
        (0, 0)
    );
}

/// A picture of which the loop can tell who decoded it: the CPU's take longer. The number in the sample's label is its index.
fn pictures_without_end(len: u64) -> impl pinfeed::Dataset<Sample = (LazyImage, i64)> {
    let bytes = std::fs::read(super::fixtures().join("420-37x11.jpg")).unwrap();
    let transform = ImageTransform::train(8);
    from_fn(len, move |index, rng| {
        let image = LazyImage::encoded(bytes.clone()).with_decode(Decode::Both);
        Ok((image.transform(&transform, rng), index as i64))
    })
}

/// The batches of an epoch by whom the pictures were decoded: how many were the device's, batch by batch.
fn by_device(loader: &DataLoader<Batch>, device: &Device, epoch: u64) -> Vec<u64> {
    let mut sent = loader.epoch(epoch).prefetch_to_device(device, 0);
    let mut before = 0;
    let mut all = Vec::new();
    while let Some(batch) = sent.next() {
        batch.unwrap();
        let now = sent.stats().decoder.decoded;
        all.push(now - before);
        before = now;
    }
    all
}

#[test]
fn each_batch_has_its_share() {
    let device = Device::cpu();
    for batch in [64, 128] {
        let loader = DataLoader::builder(pictures_without_end(512))
            .batch_size(batch)
            .pin_memory(&device);
        let loader = loader.device_share(0.25).build().unwrap();
        by_device(&loader, &device, 0); // where no slab is there yet, the CPU decodes
        assert_eq!(
            by_device(&loader, &device, 1),
            vec![batch as u64 / 4; 512 / batch]
        );
    }
}

/// A share that is found in the first batches is in the statistics and in the state, and whoever goes on with the state begins with it.
#[test]
fn a_share_that_was_found_stays() {
    let device = Device::cpu();
    let build = || {
        let loader = DataLoader::builder(pictures_without_end(64 * 100)).batch_size(64);
        let loader = loader.num_workers(2).pin_memory(&device);
        loader.build::<Batch>().unwrap()
    };
    let loader = build();
    let mut saved = Vec::new();
    let mut epoch = loader.epoch(0).prefetch_to_device(&device, 2);
    for batch in epoch.by_ref() {
        drop(batch.unwrap());
        saved.push(loader.state());
    }
    let share = loader
        .stats()
        .decoder
        .device_share
        .expect("100 batches are enough");
    assert_eq!(loader.total_stats().decoder.device_share, Some(share));
    // A state from before it was fixed has none, and all later ones have it.
    let of = |state: &LoaderState| {
        let text = state.to_string();
        assert_eq!(text.parse::<LoaderState>().unwrap(), *state);
        let field = text
            .split(' ')
            .find_map(|field| field.strip_prefix("share="));
        field.map(|share| share.parse::<u8>().unwrap())
    };
    let shares: Vec<Option<u8>> = saved.iter().map(of).collect();
    assert_eq!(shares[0], None);
    let known = shares.iter().position(Option::is_some).unwrap();
    assert!(
        shares[known..].iter().all(|of| *of == Some(share)),
        "{shares:?}"
    );
    // The second resume is as good as the first.
    let mut state = saved[known];
    for _ in 0..2 {
        let resumed = build();
        let mut epochs = resumed.resume(0..2, &state).unwrap();
        assert_eq!(
            resumed.stats().decoder.device_share,
            None,
            "nothing has begun"
        );
        let mut first = epochs.next().unwrap().prefetch_to_device(&device, 2);
        drop(first.next().unwrap().unwrap());
        assert_eq!(first.stats().decoder.device_share, Some(share));
        assert_eq!(of(&first.state()), Some(share));
        state = first.state();
    }
    // A loader that was told another goes by that.
    let told = DataLoader::builder(pictures_without_end(64 * 100))
        .batch_size(64)
        .pin_memory(&device);
    let told = told.device_share(0.5).build::<Batch>().unwrap();
    let mut epochs = told.resume(0..1, &state).unwrap();
    assert_eq!(of(&told.state()), Some(32));
    drop(
        epochs
            .next()
            .unwrap()
            .prefetch_to_device(&device, 1)
            .next()
            .unwrap()
            .unwrap(),
    );
    assert_eq!(told.stats().decoder.device_share, Some(32));
}

/// A program that always says `epoch(0)`, of fewer batches than a measurement takes.
/// Where the device decodes all, nothing is measured, shown or kept: a run that shares its pictures later measures then.
#[test]
fn a_device_that_decodes_all_has_no_share() {
    let device = Device::cpu();
    let pictures = pictures();
    let all = super::loader(pictures.clone().with_decode(Decode::Device), &device, 1, 2);
    for epoch in all.epochs(0..4).prefetch_to_device(&device, 2) {
        epoch.for_each(drop);
    }
    let stats = all.total_stats();
    assert!(
        stats.batches >= 100 && stats.decoder.decoded > 50,
        "{stats:?}"
    );
    assert_eq!(stats.decoder.device_share, None);
    assert!(
        !all.state().to_string().contains("share"),
        "{}",
        all.state()
    );
    // The same batches, shared: it measures.
    let shared = super::loader(pictures.with_decode(Decode::Both), &device, 1, 2);
    for epoch in shared
        .resume(0..8, &all.state())
        .unwrap()
        .prefetch_to_device(&device, 2)
    {
        epoch.for_each(drop);
    }
    assert!(shared.total_stats().decoder.device_share.is_some());
}

#[test]
fn the_same_epoch_again_and_again() {
    let device = Device::cpu();
    let loader = DataLoader::builder(pictures_without_end(64 * 20)).batch_size(64);
    let loader = loader.num_workers(2).pin_memory(&device);
    let loader = loader.build::<Batch>().unwrap();
    let decoded: Vec<u64> = (0..6)
        .map(|_| by_device(&loader, &device, 0).iter().sum())
        .collect();
    let share = loader
        .stats()
        .decoder
        .device_share
        .expect("120 batches are enough");
    assert_eq!(decoded[5], 20 * u64::from(share), "{decoded:?}");
    assert!(
        decoded[1..].iter().all(|decoded| *decoded > 0),
        "{decoded:?}"
    );
}

/// A program that takes its time for each batch is fed by the CPU.
#[test]
fn a_slow_program_leaves_the_device_alone() {
    let device = Device::cpu();
    let loader = DataLoader::builder(pictures_without_end(8 * 200))
        .batch_size(8)
        .num_workers(2);
    let loader = loader.pin_memory(&device).build::<Batch>().unwrap();
    for batch in loader.epoch(0).prefetch_to_device(&device, 2) {
        drop(batch.unwrap());
        thread::sleep(Duration::from_millis(10)); // stands for a step; workers need one for a batch
        if loader.stats().decoder.device_share.is_some() {
            break;
        }
    }
    let stats = loader.stats();
    assert!(
        stats.decoder.device_share.is_some_and(|share| share <= 4),
        "{stats}"
    );
}

#[test]
fn what_is_no_share_is_refused() {
    let device = Device::cpu();
    for wrong in [-0.1, 1.1, f64::NAN, f64::INFINITY] {
        let loader = DataLoader::builder(pictures_without_end(8)).pin_memory(&device);
        match loader.device_share(wrong).build::<Batch>() {
            Err(error @ Error::InvalidOption { .. }) => {
                assert!(error.to_string().contains("from 0.0 to 1.0"), "{error}")
            }
            other => panic!("{wrong}: {other:?}"),
        }
    }
}

/// Bad pictures among both sides' are left out, and the good ones are the CPU's.
#[test]
fn bad_pictures_are_left_out_of_both() {
    let device = Device::cpu();
    let names = super::names();
    let all = ImageFolder::from_list(names.iter().map(|name| (name, 0))).unwrap();
    let all = all.with_transform(ImageTransform::eval(24));
    for workers in [0, 2] {
        let rows = |decode| -> Rows {
            let loader = DataLoader::builder(all.clone().with_decode(decode));
            let loader = loader
                .batch_size(7)
                .seed(3)
                .num_workers(workers)
                .pin_memory(&device);
            let loader = loader
                .on_error(OnError::Skip { at_most: 1_000 })
                .device_share(0.5);
            let loader = loader.build::<Batch>().unwrap();
            let mut rows = Rows::new();
            for epoch in 0..2 {
                rows.extend(
                    loader
                        .epoch(epoch)
                        .prefetch_to_device(&device, 1)
                        .map(fetched),
                );
            }
            rows
        };
        assert!(rows(Decode::Both) == rows(Decode::Cpu), "{workers} workers");
    }
}
