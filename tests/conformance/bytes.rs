//! A limit in bytes for what is in flight, with batches of very different sizes on their way to the device.

use pinfeed::{DataLoader, Dataset, Padded, Ragged, SampleRng, from_fn};

use crate::Test;
use crate::backend::Backend;

pub const TESTS: &[Test] = &[(
    "bytes_in_flight_stay_within_their_limit",
    bytes_in_flight_stay_within_their_limit,
)];

const LEN: u64 = 48;

fn numbers(index: u64) -> Vec<i32> {
    let len = if index % 11 == 3 {
        9_000 + index * 40
    } else {
        1 + index % 50
    };
    vec![index as i32; len as usize]
}

type Sample = (Ragged<i32>, (Padded<i32>, i64));

fn samples() -> impl Dataset<Sample = Sample> {
    from_fn(LEN, |index, _: &mut SampleRng| {
        let numbers = numbers(index);
        let padded = Padded::from(numbers.clone());
        Ok((Ragged::from(numbers), (padded, index as i64)))
    })
}

fn bytes_in_flight_stay_within_their_limit(backend: &Backend) {
    for (limit, depth, pins, by_copy) in [
        (1, 2, true, false),
        (300_000, 1, true, false),
        (600_000, 4, true, true),
        (600_000, 3, false, false),
        (1 << 30, 2, true, false),
    ] {
        for in_order in [true, false] {
            let builder = DataLoader::builder(samples())
                .batch_size(3)
                .shuffle(true)
                .num_workers(3)
                .prefetch(9)
                .in_order(in_order)
                .max_bytes_in_flight(limit);
            let loader = match pins {
                true => {
                    let builder = builder.pin_memory(&backend.device).pin_by_copy(by_copy);
                    builder.build().unwrap()
                }
                false => builder.build().unwrap(),
            };
            let mut largest = 0;
            for epoch in loader
                .epochs(0..2)
                .prefetch_to_device(&backend.device, depth)
            {
                let mut seen = Vec::new();
                for batch in epoch {
                    let (ragged, (padded, indices)) = batch.unwrap();
                    let indices = indices.to_host(true).unwrap().wait().unwrap();
                    let values = ragged.values.to_host(true).unwrap().wait().unwrap();
                    let padded = padded.values.to_host(true).unwrap().wait().unwrap();
                    let expected = indices
                        .as_slice()
                        .iter()
                        .map(|index| numbers(*index as u64));
                    let expected: Vec<Vec<i32>> = expected.collect();
                    assert_eq!(values.as_slice(), expected.concat());
                    let width = padded.as_slice().len() / expected.len();
                    for (row, expected) in padded.as_slice().chunks(width).zip(&expected) {
                        assert_eq!(row[..expected.len()], expected[..]);
                    }
                    let bytes = 4 * (values.as_slice().len() + padded.as_slice().len());
                    largest = largest.max((bytes + 600).next_multiple_of(4096));
                    seen.extend_from_slice(indices.as_slice());
                }
                seen.sort_unstable();
                assert!(seen.into_iter().eq(0..LEN as i64));
                let stats = loader.stats();
                let most = stats.most_bytes_in_flight as usize;
                let units = if by_copy { 2 } else { 1 };
                assert!(
                    most > 0 && most <= limit + units * largest,
                    "{most} of {limit}"
                );
                assert_eq!(stats.unpinned.count, 0);
            }
        }
    }
}
