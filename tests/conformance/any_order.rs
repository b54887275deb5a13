//! Batches as soon as they are ready, of many sizes, on their way to the device: across epochs, with failures, and resumed with gaps.

use std::collections::BTreeMap;

use pinfeed::loader::LoaderState;
use pinfeed::{BoxError, DataLoader, SampleRng, Tensor, from_fn};

use crate::Test;
use crate::backend::Backend;

pub const TESTS: &[Test] = &[
    ("batches_arrive_in_any_order", batches_arrive_in_any_order),
    (
        "little_device_memory_is_enough_in_any_order",
        little_device_memory_is_enough_in_any_order,
    ),
];

const LEN: u64 = 90;
const BATCH: usize = 3;

fn bytes(index: u64) -> Vec<u8> {
    (0..4_000)
        .map(|place| (index * 29 + place * 3) as u8)
        .collect()
}

/// Some samples take longer than others, and one is broken.
fn loader(
    backend: &Backend,
    (workers, prefetch, pins): (usize, usize, bool),
    broken: Option<u64>,
) -> DataLoader<(Tensor<u8>, Tensor<i64>)> {
    let samples = from_fn(LEN, move |index, rng: &mut SampleRng| {
        if broken == Some(index) {
            return Err::<_, BoxError>("broken".into());
        }
        if rng.range(0..7) == 0 {
            std::thread::sleep(std::time::Duration::from_micros(rng.range(0..3_000)));
        }
        let bytes = Tensor::from_vec(bytes(index), &[4_000])?;
        Ok((bytes, index as i64))
    });
    let builder = DataLoader::builder(samples)
        .batch_size(BATCH)
        .shuffle(true)
        .num_workers(workers)
        .prefetch(prefetch)
        .in_order(false);
    match pins {
        true => builder.pin_memory(&backend.device).build().unwrap(),
        false => builder.build().unwrap(),
    }
}

/// Two runs that stop, and a last one, each from the state of the one before; and then one more epoch, across the boundary.
fn batches_arrive_in_any_order(backend: &Backend) {
    for (pins, depth) in [(true, 0), (true, 1), (true, 4), (false, 2)] {
        let mut state = LoaderState::default();
        let mut seen = BTreeMap::new();
        let broken = (depth == 4).then_some(41);
        let mut failed = 0;
        for (workers, prefetch, stops_after) in [(2, 3, 5), (3, 6, 11), (4, 4, usize::MAX)] {
            let loader = loader(backend, (workers, prefetch, pins), broken);
            let epochs = loader.resume(0..2, &state).unwrap();
            let mut epochs = epochs.prefetch_to_device(&backend.device, depth);
            let mut epoch = epochs.next().unwrap().with_info();
            for batch in epoch.by_ref().take(stops_after) {
                let Ok(((rows, numbers), info)) = batch else {
                    failed += 1;
                    continue;
                };
                let rows = rows.to_host(true).unwrap().wait().unwrap();
                let numbers = numbers.to_host(true).unwrap().wait().unwrap();
                let indices: Vec<u64> = numbers.as_slice().iter().map(|n| *n as u64).collect();
                assert_eq!(indices, info.indices(), "{info:?}");
                assert_eq!(
                    rows.as_slice(),
                    indices.iter().flat_map(|n| bytes(*n)).collect::<Vec<_>>()
                );
                assert!(
                    seen.insert(info.position(), indices).is_none(),
                    "{info:?} came twice"
                );
            }
            state = epoch.state().to_string().parse().unwrap();
            drop(epoch);
            if stops_after == usize::MAX {
                let next = epochs.next().unwrap();
                assert_eq!(next.filter(Result::is_ok).count(), 30 - failed);
            }
        }
        assert_eq!(failed, usize::from(broken.is_some()));
        assert_eq!((state.epoch(), state.position()), (1, 0));
        assert_eq!(seen.len() + failed, 30);
    }
}

/// There is device memory for fewer batches than may be sent: those that were made first have it, and all of them come.
fn little_device_memory_is_enough_in_any_order(backend: &Backend) {
    backend.device.set_device_budget_bytes(40_000);
    let loader = loader(backend, (3, 5, true), None);
    let mut seen = Vec::new();
    for epoch in loader.epochs(0..2).prefetch_to_device(&backend.device, 4) {
        for batch in epoch {
            let (_, numbers) = batch.unwrap();
            seen.extend_from_slice(numbers.to_host(true).unwrap().wait().unwrap().as_slice());
        }
    }
    seen.sort_unstable();
    let expected: Vec<i64> = (0..2 * LEN as i64).map(|number| number / 2).collect();
    assert_eq!(seen, expected);
}
