//! Streams in batches of similar lengths: `bucket_by_length`, as a program uses it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use pinfeed::iterable::{self, ItemIter, IterableDataset, Shard};
use pinfeed::loader::{IterableState, OnError, TryNext, World};
use pinfeed::padded::PaddedTensor;
use pinfeed::{DataLoader, Error, Padded, SampleRng};
use proptest::prelude::*;

use super::streams::{Seekable, WORKERS, all, interrupted, numbers, values};

/// As different as lengths of texts are: most are short, and a few are long.
fn length(number: &i64) -> usize {
    let spread = (*number as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
    let uniform = spread as f64 / f64::from(u32::MAX);
    1 + (400.0 * uniform.powi(4)) as usize
}

/// What a window's batches are, by the definition: cut out of the sorted items.
fn groups(window: &[i64], size: usize) -> BTreeSet<Vec<usize>> {
    let mut lengths: Vec<usize> = window.iter().map(length).collect();
    lengths.sort_unstable();
    lengths.chunks(size).map(<[usize]>::to_vec).collect()
}

#[test]
fn each_batch_is_a_slice_of_its_windows_lengths() {
    for workers in WORKERS {
        for (len, size, buffer) in [(240u64, 4, 6), (96, 8, 12), (7, 1, 3), (64, 16, 1)] {
            let source = numbers(len).bucket_by_length(size, length).unwrap();
            let loader = DataLoader::iterable(source.with_buffer(buffer)).batch_size(size);
            let loader = loader.num_workers(workers).seed(3).build().unwrap();
            let batches = all(loader.epoch(0));
            assert_eq!(batches.len() as u64, len.div_ceil(size as u64));
            let in_order: Vec<i64> = (0..len as i64).collect();
            let windows = in_order.chunks(size * buffer);
            for (window, batches) in windows.zip(batches.chunks(buffer)) {
                let found = batches.iter().map(|batch| {
                    let mut lengths: Vec<usize> = batch.iter().map(length).collect();
                    lengths.sort_unstable();
                    lengths
                });
                assert_eq!(found.collect::<BTreeSet<_>>(), groups(window, size));
                let mut items = batches.concat();
                items.sort_unstable();
                assert_eq!(items, window);
            }
        }
    }
}

/// The last window has a batch that is smaller. It is the epoch's last, and none of the others is smaller.
#[test]
fn the_rest_is_given_out_at_the_end() {
    for len in 0..30 {
        for buffer in [1, 2, 5] {
            let source = || {
                numbers(len)
                    .bucket_by_length(4, length)
                    .unwrap()
                    .with_buffer(buffer)
            };
            let loader = DataLoader::iterable(source())
                .batch_size(4)
                .num_workers(2)
                .build()
                .unwrap();
            let batches = all(loader.epoch(1));
            let sizes: Vec<usize> = batches.iter().map(Vec::len).collect();
            let expected = vec![4; len as usize];
            let expected: Vec<usize> = expected.chunks(4).map(<[usize]>::len).collect();
            assert_eq!(sizes, expected, "{len} items");
            let mut items = batches.concat();
            items.sort_unstable();
            assert!(items.into_iter().eq(0..len as i64));
        }
    }
    // `drop_last` does not always leave out the longest, or the shortest.
    let left_out = |seed| {
        let source = iterable::from_fn(|_, _| Ok((0..9i64).map(Ok)));
        let source = source
            .bucket_by_length(4, |number| *number as usize)
            .unwrap();
        let loader = DataLoader::iterable(source)
            .batch_size(4)
            .drop_last(true)
            .seed(seed);
        let seen = all(loader.build().unwrap().epoch(0)).concat();
        let left_out = (0..9).filter(|number| !seen.contains(number));
        left_out.collect::<Vec<i64>>()
    };
    let left_out: BTreeSet<Vec<i64>> = (0..32).map(left_out).collect();
    assert_eq!(left_out, BTreeSet::from([vec![0], vec![4], vec![8]]));
}

#[test]
fn the_order_is_that_of_seed_epoch_and_rank() {
    let order = |seed, epoch, rank, workers| {
        let source = iterable::from_fn(|_, _| Ok((0..320i64).map(Ok)));
        let source = source.bucket_by_length(8, length).unwrap().with_buffer(10);
        let loader = DataLoader::iterable(source)
            .batch_size(8)
            .seed(seed)
            .num_workers(workers);
        let loader = loader.world(World::new(rank, 2).unwrap()).build().unwrap();
        all(loader.epoch(epoch))
    };
    let first = order(1, 0, 0, 0);
    assert_eq!(order(1, 0, 0, 3), first);
    for other in [order(2, 0, 0, 0), order(1, 1, 0, 0), order(1, 0, 1, 0)] {
        assert_ne!(other, first);
    }
    // Short batches and long ones come mixed.
    let longest = first.iter().map(|batch| batch.iter().map(length).max());
    assert!(!longest.take(10).is_sorted());
    // Those of one length have other company in each epoch.
    let company = |epoch| {
        let source = iterable::from_fn(|_, _| Ok((0..64i64).map(Ok)));
        let source = source.bucket_by_length(8, |_| 7).unwrap();
        let loader = DataLoader::iterable(source).batch_size(8).build().unwrap();
        let batches = all(loader.epoch(epoch)).into_iter();
        batches.map(BTreeSet::from_iter).collect::<BTreeSet<_>>()
    };
    assert_ne!(company(0), company(1));
}

/// What it is for: of batches that are padded, hardly anything is padding.
#[test]
fn batches_are_padded_little() {
    let padding = |is_bucketed: bool| {
        let numbers = numbers(3_200).shuffle(500);
        let padded = |number: i64, _: &mut SampleRng| Ok(Padded::from(vec![1u8; length(&number)]));
        let count = |batches: Vec<pinfeed::Result<PaddedTensor<u8>>>| {
            let (mut real, mut all) = (0, 0);
            for batch in batches {
                let batch = batch.unwrap();
                real += batch.lengths.as_slice().iter().sum::<i64>() as usize;
                all += batch.values.len();
            }
            1.0 - real as f64 / all as f64
        };
        match is_bucketed {
            false => {
                let loader = DataLoader::iterable(numbers.map(padded)).batch_size(32);
                count(loader.build().unwrap().epoch(0).collect())
            }
            true => {
                let bucketed = numbers.bucket_by_length(32, length).unwrap();
                let loader = DataLoader::iterable(bucketed.map(padded)).batch_size(32);
                count(loader.build().unwrap().epoch(0).collect())
            }
        }
    };
    let (without, with) = (padding(false), padding(true));
    assert!(without > 0.7 && with < 0.03, "{without} {with}");
}

#[test]
fn what_fails_is_a_bad_sample_in_one_of_the_batches() {
    for workers in WORKERS {
        let source = numbers(40).map(|number, _| match number {
            7 => Err("seven".into()),
            number => Ok(number),
        });
        let source = source.bucket_by_length(4, |number| match number {
            9 => watch::provoked("nine"),
            number => length(number),
        });
        let source = source.unwrap().with_buffer(5);
        let loader = DataLoader::iterable(source)
            .batch_size(4)
            .num_workers(workers);
        let loader = loader
            .on_error(OnError::Skip { at_most: 2 })
            .build()
            .unwrap();
        let mut items = all(loader.epoch(0)).concat();
        items.sort_unstable();
        assert!(
            items
                .into_iter()
                .eq((0..40).filter(|number| ![7, 9].contains(number)))
        );
        let bad = loader.stats().bad.listed.join("\n");
        assert!(bad.contains("item 7 of the source: seven"), "{bad}");
        assert!(
            bad.contains("item 9 of the source: it panicked while loading: nine"),
            "{bad}"
        );
    }
    let refused = numbers(3).bucket_by_length(0, length).err().unwrap();
    assert!(matches!(
        refused,
        Error::InvalidOption {
            option: "bucket_by_length",
            ..
        }
    ));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// Interrupted anywhere, any number of times, a run sees what it would have seen.
    #[test]
    fn a_run_that_is_resumed_sees_the_same(
        len in 0u64..40,
        size in 1usize..5,
        buffer in 0usize..5,
        batch in 1usize..6,
        workers in prop::sample::select(vec![0, 1, 3]),
        stops in prop::collection::vec(1usize..9, 0..6),
        seeks in any::<bool>(),
    ) {
        fn bucketed(
            own: impl IterableDataset<Sample = i64>,
            (size, buffer): (usize, usize),
        ) -> impl IterableDataset<Sample = (i64, u32)> {
            let kept = own.map(|number, rng: &mut SampleRng| Ok(10 * number + rng.range(0..10)));
            let kept = kept.filter(|_, rng| Ok(rng.bool(0.9))).repeat_n(2);
            let arranged = kept.bucket_by_length(size, length).unwrap().with_buffer(buffer);
            arranged.map(|number, rng: &mut SampleRng| Ok((number, rng.next_u32())))
        }
        let (whole, resumed) = if seeks {
            let own = Seekable { len, ..Seekable::default() };
            let source = || bucketed(own.clone(), (size, buffer));
            (interrupted(source, 0, batch, &[]), interrupted(source, workers, batch, &stops))
        } else {
            let own = Arc::new(numbers(len));
            let source = || bucketed(Arc::clone(&own), (size, buffer));
            (interrupted(source, 0, batch, &[]), interrupted(source, workers, batch, &stops))
        };
        prop_assert_eq!(whole, resumed);
    }
}

#[test]
fn resuming_reads_two_buffers_at_most() {
    let own = Seekable {
        len: 200,
        ..Seekable::default()
    };
    let source = || {
        own.clone()
            .bucket_by_length(5, length)
            .unwrap()
            .with_buffer(4)
    };
    let loader = DataLoader::iterable(source())
        .batch_size(5)
        .build()
        .unwrap();
    let mut epoch = loader.epoch(0);
    assert_eq!(epoch.by_ref().take(31).count(), 31);
    let state: IterableState = epoch.state().to_string().parse().unwrap();
    let next = values(&epoch.next().unwrap().unwrap());
    own.pulled.store(0, Ordering::Relaxed);
    let resumed = loader.resume(0..1, &state).unwrap().next().unwrap().next();
    assert_eq!(values(&resumed.unwrap().unwrap()), next);
    assert!(own.pulled.load(Ordering::Relaxed) <= 2 * 20 + 5);

    // Another size, or another buffer, is another run's.
    for (size, buffer) in [(4, 5), (5, 3)] {
        let source = own
            .clone()
            .bucket_by_length(size, length)
            .unwrap()
            .with_buffer(buffer);
        let other = DataLoader::iterable(source).batch_size(5).build().unwrap();
        let error = other.resume(0..1, &state).unwrap_err().to_string();
        assert!(error.contains("its source is another one"), "{error}");
    }
    let shard = Shard::new(0, 1, 0);
    let mut arranged = source().open(0, shard).unwrap();
    arranged.next();
    let state = arranged.state().unwrap();
    for end in 0..state.len() {
        assert!(
            source()
                .open(0, shard)
                .unwrap()
                .seek(&state[..end])
                .is_err(),
            "{end}"
        );
    }
    let other = own
        .clone()
        .bucket_by_length(4, length)
        .unwrap()
        .with_buffer(5);
    let error = other
        .open(0, shard)
        .unwrap()
        .seek(&state)
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("the state is that of another source"),
        "{error}"
    );
}

/// The buffer is filled while a program waits for the first batch: it can leave then.
#[test]
fn an_epoch_is_left_while_the_buffer_is_filled() {
    let endless = iterable::from_fn(|_, _| {
        Ok((0i64..).map(|number| {
            std::thread::sleep(std::time::Duration::from_millis(1));
            Ok(number)
        }))
    });
    let source = endless
        .bucket_by_length(10, length)
        .unwrap()
        .with_buffer(1_000_000);
    let loader = DataLoader::iterable(source)
        .batch_size(10)
        .num_workers(2)
        .build()
        .unwrap();
    for epoch in 0..2 {
        let mut epoch = loader.epoch(epoch);
        assert!(matches!(epoch.try_next(), TryNext::NotYet));
    }
}
