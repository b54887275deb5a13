//! One batch again and again.

#![cfg(feature = "derive")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use pinfeed::loader::OnError;
use pinfeed::{DataLoader, Device, Ragged, from_fn, iterable};

#[test]
fn nothing_is_loaded_but_the_first_batch() {
    let loaded = Arc::new(AtomicU64::new(0));
    let counter = Arc::clone(&loaded);
    let samples = from_fn(100, move |index, rng| {
        counter.fetch_add(1, Ordering::Relaxed);
        Ok((
            index as f32 + rng.f32(),
            vec![index as i64; 3],
            index.to_string(),
        ))
    });
    let loader = DataLoader::builder(samples)
        .batch_size(10)
        .shuffle(true)
        .seed(5)
        .build()
        .unwrap();
    let (x, y, names) = loader.epoch(3).next().unwrap().unwrap();
    loaded.store(0, Ordering::Relaxed);
    let replay = loader.replay(3).unwrap();
    assert_eq!(replay.len(), 10);
    let mut steps = 0;
    for batch in replay {
        let (again, y2, names2) = batch.unwrap();
        assert_eq!(again.as_slice(), x.as_slice());
        assert_eq!((y2.as_slice(), &names2), (y.as_slice(), &names));
        steps += 1;
    }
    assert_eq!((steps, loaded.load(Ordering::Relaxed)), (10, 10));
}

/// It is no part of the run, whatever was done before and is done after.
#[test]
fn the_run_does_not_notice() {
    let loader = DataLoader::builder(from_fn(40, |index, _| Ok(index as i64)))
        .batch_size(4)
        .num_workers(2)
        .build()
        .unwrap();
    let beginning = loader.state();
    loader
        .replay(0)
        .unwrap()
        .for_each(|batch| drop(batch.unwrap()));
    assert_eq!(loader.state(), beginning);
    assert_eq!(loader.stats().batches, 0);

    let mut epoch = loader.epoch(1);
    epoch
        .by_ref()
        .take(3)
        .for_each(|batch| drop(batch.unwrap()));
    let middle = loader.state();
    assert_eq!(loader.replay(0).unwrap().count(), 10);
    assert_eq!(loader.state(), middle);
    assert_eq!(loader.stats().epoch, 1);
    assert_eq!(loader.total_stats().epochs, 1);
    assert_eq!(epoch.next().unwrap().unwrap().as_slice()[0], 12);
    let mut epochs = loader.resume(0..3, &middle).unwrap();
    assert_eq!(
        epochs.next().unwrap().next().unwrap().unwrap().as_slice()[0],
        12
    );
    // The first epoch is what it would have been.
    assert_eq!(
        loader.epoch(0).next().unwrap().unwrap().as_slice(),
        [0, 1, 2, 3]
    );
}

#[derive(pinfeed::Sample)]
struct Example {
    image: Vec<u8>,
    boxes: Ragged<f32>,
    #[pinfeed(host)]
    name: String,
}

#[test]
fn a_derived_batch_is_copied_for_each_step() {
    let device = Device::cpu();
    let examples = from_fn(12, |index, _| {
        Ok(Example {
            image: vec![index as u8; 4096],
            boxes: Ragged::new(vec![index as f32; 1 + index as usize % 3].into()).unwrap(),
            name: format!("{index}.jpg"),
        })
    });
    let loader = DataLoader::builder(examples)
        .batch_size(3)
        .num_workers(2)
        .pin_memory(&device)
        .build()
        .unwrap();
    let mut replay = loader.replay(0).unwrap().prefetch_to_device(&device, 2);
    assert_eq!(replay.len(), 4);
    let mut held = Vec::new(); // as a program may that looks back
    for batch in replay.by_ref() {
        held.push(batch.unwrap());
    }
    assert!(replay.next().is_none());
    assert_eq!(held.len(), 4);
    for batch in held {
        let image = batch.image.to_host(true).unwrap().wait().unwrap();
        assert_eq!((image.as_slice()[0], image.as_slice()[2 * 4096]), (0, 2));
        let boxes = batch.boxes.values.to_host(true).unwrap().wait().unwrap();
        assert_eq!(boxes.as_slice(), [0.0, 1.0, 1.0, 2.0, 2.0, 2.0]);
        assert_eq!(batch.name, ["0.jpg", "1.jpg", "2.jpg"]);
    }
}

/// Nobody can change what the next step gets.
#[test]
fn what_is_shared_cannot_be_written() {
    let loader = DataLoader::builder(from_fn(8, |index, _| Ok(index as i64)))
        .batch_size(4)
        .build()
        .unwrap();
    for batch in loader.replay(0).unwrap() {
        assert!(batch.unwrap().as_mut_slice().is_none());
    }
}

#[test]
fn it_fails_as_the_batch_does_and_ends_where_there_is_none() {
    let samples = from_fn(8, |index, _| match index {
        2 => Err("broken".into()),
        _ => Ok(index as i64),
    });
    let loader = DataLoader::builder(samples).batch_size(4).build().unwrap();
    let error = loader.replay(0).unwrap_err().to_string();
    assert!(
        error.contains("sample 2, row 2 of batch 0 in epoch 0"),
        "{error}"
    );

    let samples = from_fn(8, |index, _| match index {
        2 => Err("broken".into()),
        _ => Ok(index as i64),
    });
    let loader = DataLoader::builder(samples)
        .batch_size(4)
        .on_error(OnError::Skip { at_most: 1 })
        .build()
        .unwrap();
    let mut replay = loader.replay(0).unwrap();
    assert_eq!(replay.next().unwrap().unwrap().as_slice(), [0, 1, 3]);

    let none = DataLoader::builder(from_fn(0, |_, _| Ok(0i64)))
        .batch_size(4)
        .build();
    assert_eq!(none.unwrap().replay(0).unwrap().count(), 0);
    let none = iterable::from_fn(|_, _| Ok(std::iter::empty::<Result<i64, _>>()));
    let none = DataLoader::iterable(none).batch_size(4).build().unwrap();
    assert_eq!(none.replay(0).unwrap().take(3).count(), 0);
    let some = iterable::from_fn(|_, _| Ok((0..3i64).map(Ok)));
    let some = DataLoader::iterable(some).batch_size(4).build().unwrap();
    assert_eq!(some.replay(0).unwrap().take(30).count(), 30);
}
