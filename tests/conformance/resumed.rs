//! Epochs that are resumed in mid-epoch by some of several ranks: on their way to the device, whole, in parts, and gathered.

use pinfeed::loader::{LastBatch, LoaderState, Sharding, World};
use pinfeed::{DataLoader, Tensor, TensorDataset};

use crate::Test;
use crate::backend::Backend;

pub const TESTS: &[Test] = &[(
    "ranks_resume_on_their_way_to_the_device",
    ranks_resume_on_their_way_to_the_device,
)];

const LEN: usize = 103;
const GLOBAL_BATCH: usize = 24;

/// How the samples get to the device.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Way {
    Whole,
    Parts,
    Gathered,
}

/// Rows of this many bytes: those of registered memory are gathered from 16 KiB on.
fn row_bytes(way: Way) -> usize {
    match way {
        Way::Gathered => 16 << 10,
        _ => 1_000,
    }
}

fn byte(sample: usize, place: usize) -> u8 {
    (sample * 29 + place * 3 + place / 256) as u8
}

type Numbers = Tensor<u8>;

fn loader(
    backend: &Backend,
    (way, sharding): (Way, Sharding),
    world: World,
    workers: usize,
) -> DataLoader<(Numbers, Tensor<i64>)> {
    let row = row_bytes(way);
    let bytes = (0..LEN).flat_map(|sample| (0..row).map(move |place| byte(sample, place)));
    let mut rows = Tensor::from_vec(bytes.collect(), &[LEN, row]).unwrap();
    if way == Way::Gathered {
        rows = rows.register(&backend.device).unwrap();
    }
    let numbers = Tensor::from((0..LEN as i64).collect::<Vec<_>>());
    DataLoader::builder(TensorDataset::new((rows, numbers)).unwrap())
        .global_batch_size(GLOBAL_BATCH)
        .last_batch(LastBatch::Fill)
        .sharding(sharding)
        .num_workers(workers)
        .world(world)
        .pin_memory(&backend.device)
        .build()
        .unwrap()
}

/// Two runs that stop, and a last one, each on other ranks. Then one more epoch, across the boundary.
fn ranks_resume_on_their_way_to_the_device(backend: &Backend) {
    for way in [Way::Whole, Way::Parts, Way::Gathered] {
        if way == Way::Parts {
            backend.device.cut_batches_at(8_000, 2_000);
        }
        for sharding in [Sharding::Slices, Sharding::Strided { drop_last: false }] {
            let mut state = LoaderState::default();
            let mut seen = Vec::new();
            for (ranks, stops_after, workers) in [(2, 1, 2), (3, 2, 0), (1, usize::MAX, 3)] {
                let mut states = Vec::new();
                for rank in 0..ranks {
                    let world = World::new(rank, ranks).unwrap();
                    let loader = loader(backend, (way, sharding), world, workers);
                    let epochs = loader.resume(0..2, &state).unwrap();
                    let mut epochs = epochs.prefetch_to_device(&backend.device, 2);
                    let mut epoch = epochs.next().unwrap().with_info();
                    for batch in epoch.by_ref().take(stops_after) {
                        let ((rows, numbers), info) = batch.unwrap();
                        let rows = rows.to_host(true).unwrap().wait().unwrap();
                        let numbers = numbers.to_host(true).unwrap().wait().unwrap();
                        let what = format!("{way:?}, {sharding:?}, {info:?}");
                        let indices = info.indices();
                        assert_eq!(numbers.len(), GLOBAL_BATCH / ranks, "{what}");
                        assert!(
                            numbers
                                .as_slice()
                                .iter()
                                .map(|n| *n as u64)
                                .eq(indices.iter().copied()),
                            "{what}"
                        );
                        for (row, number) in rows.as_slice().chunks(row_bytes(way)).zip(&indices) {
                            let is_right = |(place, found): (usize, &u8)| {
                                *found == byte(*number as usize, place)
                            };
                            assert!(row.iter().enumerate().all(is_right), "{what}");
                        }
                        seen.extend_from_slice(&indices[..info.real_rows()]);
                    }
                    states.push(epoch.state());
                    drop(epoch);
                    if stops_after == usize::MAX {
                        assert_eq!(epochs.next().unwrap().count(), LEN.div_ceil(GLOBAL_BATCH));
                    }
                }
                assert!(states.iter().all(|other| other == &states[0]));
                state = states[0];
            }
            assert_eq!((state.epoch(), state.position()), (1, 0));
            seen.sort_unstable();
            assert!(
                seen.iter().copied().eq(0..LEN as u64),
                "{way:?}, {sharding:?}: {seen:?}"
            );
        }
    }
}
