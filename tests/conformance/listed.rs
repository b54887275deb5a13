//! Batches that a batch sampler lists: of many sizes, on their way to the device, across epochs, on ranks, and resumed.

use pinfeed::loader::{BatchInfo, LoaderState, World};
use pinfeed::sampler::{BatchSampler, Batches, TokenBatchSampler};

use pinfeed::{Batch, DataLoader, DeviceTensor, Error, Tensor, TensorDataset};

use crate::Test;
use crate::backend::Backend;

pub const TESTS: &[Test] = &[
    (
        "listed_batches_arrive_across_epochs",
        listed_batches_arrive_across_epochs,
    ),
    (
        "listed_batches_resume_on_other_ranks",
        listed_batches_resume_on_other_ranks,
    ),
    (
        "an_epoch_whose_lists_fail_is_in_nobodys_way",
        an_epoch_whose_lists_fail_is_in_nobodys_way,
    ),
];

const LEN: usize = 60;

/// Batches of 3 to 15 samples.
fn sampler() -> TokenBatchSampler {
    let lengths = (0..LEN as u32).map(|index| 20 + index * 37 % 80);
    TokenBatchSampler::new(lengths, 300, 17)
        .unwrap()
        .with_window(20)
        .unwrap()
}

fn byte(sample: usize, place: usize) -> u8 {
    (sample * 29 + place * 3 + place / 256) as u8
}

/// Rows of registered memory are gathered from 16 KiB on.
fn row_bytes(is_gathered: bool) -> usize {
    if is_gathered { 16 << 10 } else { 1_000 }
}

type Numbers = (Tensor<u8>, Tensor<i64>);

fn loader(
    backend: &Backend,
    (lists, is_gathered): (impl BatchSampler, bool),
    workers: usize,
    world: World,
) -> DataLoader<Numbers> {
    let row = row_bytes(is_gathered);
    let bytes = (0..LEN).flat_map(|sample| (0..row).map(move |place| byte(sample, place)));
    let mut rows = Tensor::from_vec(bytes.collect(), &[LEN, row]).unwrap();
    if is_gathered {
        rows = rows.register(&backend.device).unwrap();
    }
    let numbers = Tensor::from((0..LEN as i64).collect::<Vec<_>>());
    DataLoader::builder(TensorDataset::new((rows, numbers)).unwrap())
        .batch_sampler(lists)
        .num_workers(workers)
        .world(world)
        .pin_memory(&backend.device)
        .build()
        .unwrap()
}

/// Holds a batch against its indices, and returns the real ones.
fn check(
    (rows, numbers): (DeviceTensor<u8>, DeviceTensor<i64>),
    info: &BatchInfo,
    row: usize,
) -> Vec<u64> {
    let rows = rows.to_host(true).unwrap().wait().unwrap();
    let numbers = numbers.to_host(true).unwrap().wait().unwrap();
    let mut indices = info.indices();
    let found = numbers.as_slice().iter().map(|number| *number as u64);
    assert!(found.eq(indices.iter().copied()), "{info:?}");
    for (row, index) in rows.as_slice().chunks(row).zip(&indices) {
        let mut places = row.iter().enumerate();
        assert!(places.all(|(place, found)| *found == byte(*index as usize, place)));
    }
    indices.truncate(info.real_rows());
    indices
}

/// The batches are the lists, in any way and at any depth; each epoch has its own.
fn listed_batches_arrive_across_epochs(backend: &Backend) {
    // Even batches would travel in parts.
    backend.device.cut_batches_at(8_000, 2_000);
    let lens: Vec<usize> = (0..3).map(|epoch| sampler().batches(epoch).len()).collect();
    for (is_gathered, workers, depth) in [
        (false, 0, 1),
        (false, 2, 0),
        (false, 3, 3),
        (true, 0, 2),
        (true, 2, 1),
    ] {
        let lists = (sampler(), is_gathered);
        let loader = loader(backend, lists, workers, World::single());
        let epochs = loader
            .epochs(0..3)
            .prefetch_to_device(&backend.device, depth);
        for (epoch, batches) in epochs.enumerate() {
            assert_eq!(batches.len(), lens[epoch]);
            let seen = batches.with_info().map(|batch| {
                let (batch, info) = batch.unwrap();
                check(batch, &info, row_bytes(is_gathered))
            });
            let seen: Batches = seen.collect::<Vec<_>>().into();
            assert_eq!(seen, sampler().batches(epoch as u64));
        }
        // And on the host.
        let seen = loader.epoch(7).map(|batch| {
            let numbers = batch.unwrap().1;
            let numbers = numbers.as_slice().iter().map(|number| *number as u64);
            numbers.collect::<Vec<_>>()
        });
        assert_eq!(seen.collect::<Batches>(), sampler().batches(7));
    }
}

/// Two runs that stop, and a last one, each on other ranks. Then one more epoch, across the boundary.
fn listed_batches_resume_on_other_ranks(backend: &Backend) {
    for is_gathered in [false, true] {
        let mut state = LoaderState::default();
        let mut seen = Vec::new();
        for (ranks, stops_after, workers) in [(2, 1, 2), (3, 1, 0), (2, usize::MAX, 3)] {
            let mut states = Vec::new();
            for rank in 0..ranks {
                let world = World::new(rank, ranks).unwrap();
                let loader = loader(backend, (sampler(), is_gathered), workers, world);
                let epochs = loader.resume(0..2, &state).unwrap();
                let mut epochs = epochs.prefetch_to_device(&backend.device, 2);
                let mut epoch = epochs.next().unwrap().with_info();
                for batch in epoch.by_ref().take(stops_after) {
                    let (batch, info) = batch.unwrap();
                    seen.extend(check(batch, &info, row_bytes(is_gathered)));
                }
                states.push(epoch.state());
                drop(epoch);
                if stops_after == usize::MAX {
                    let lists = sampler().batches(1).len();
                    assert_eq!(epochs.next().unwrap().count(), lists.div_ceil(ranks));
                }
            }
            assert!(states.iter().all(|other| other == &states[0]));
            state = states[0];
        }
        assert_eq!((state.epoch(), state.position()), (1, 0));
        seen.sort_unstable();
        assert!(seen.iter().copied().eq(0..LEN as u64), "{seen:?}");
    }
}

/// Its one batch is an error; the epochs before and after it come as they would.
fn an_epoch_whose_lists_fail_is_in_nobodys_way(backend: &Backend) {
    struct Fails;

    impl BatchSampler for Fails {
        fn batches(&self, epoch: u64) -> Batches {
            if epoch == 1 {
                watch::provoked("no lists for this one");
            }
            sampler().batches(epoch)
        }
    }

    for (is_gathered, workers) in [(false, 0), (false, 2), (true, 2)] {
        let loader = loader(backend, (Fails, is_gathered), workers, World::single());
        let epochs = loader.epochs(0..3).prefetch_to_device(&backend.device, 2);
        let outcomes: Vec<Vec<bool>> = epochs
            .map(|epoch| {
                let is_sent = |batch| match batch {
                    Ok(_) => true,
                    Err(Error::BatchSampler { epoch: 1, .. }) => false,
                    Err(error) => panic!("{error}"),
                };
                epoch.map(is_sent).collect()
            })
            .collect();
        let good = |epoch| vec![true; sampler().batches(epoch).len()];
        assert_eq!(outcomes, [good(0), vec![false], good(2)]);
    }
    // What was pinned before can still be used.
    let batch = Tensor::from(vec![1u8; 10]).to_device(&backend.device, true);
    assert!(batch.is_ok());
}
