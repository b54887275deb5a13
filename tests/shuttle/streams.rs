//! Samples from streams: items are pulled by one worker at a time, and loaded by all.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use pinfeed::iterable::{self, IterableDataset};
use pinfeed::loader::Iterable;
use pinfeed::{BoxError, DataLoader, Device, Error, Tensor};
use shuttle::thread;

use crate::explore::explore;
use crate::hanging::Gate;
use crate::support::{
    BLOCK, How, Pair, Pin, below, check, check_all_back, check_error, check_there, coin, device,
    panic_quietly, sample,
};

const EPOCHS: u64 = 3;

/// A stream of so many items. Nobody else pulls from it meanwhile; each item may take a while, and so may finding the end.
fn items(len: u64) -> impl IterableDataset<Sample = (Tensor<u8>, i64)> {
    let numbers = iterable::from_fn(move |_, _| {
        let pulling = Arc::new(AtomicUsize::new(0));
        Ok((0..=len).map_while(move |number| {
            assert_eq!(pulling.fetch_add(1, Ordering::Relaxed), 0);
            if coin() {
                thread::yield_now();
            }
            pulling.fetch_sub(1, Ordering::Relaxed);
            (number < len).then_some(Ok(number))
        }))
    });
    numbers.map(|number, _| Ok(sample(number)?))
}

fn loader<S>(how: How, source: S, device: &Device) -> DataLoader<Pair, Iterable>
where
    S: IterableDataset<Sample = (Tensor<u8>, i64)>,
{
    let builder = DataLoader::iterable(source).batch_size(how.batch);
    let mut builder = builder.num_workers(how.workers);
    if how.workers > 0 {
        builder = builder.prefetch(how.prefetch);
    }
    if how.pin != Pin::No {
        let by_copy = how.pin == Pin::ByCopy;
        builder = builder.pin_memory(device).pin_by_copy(by_copy);
        builder = builder.strict_pinning(how.strict);
    }
    builder.build().unwrap()
}

/// Any loader; its streams may be empty.
fn any() -> How {
    let how = How::any();
    let len = [0, how.len, how.len][below(3)];
    How { len, ..how }
}

/// All batches come, in order, on the host or on the device, and then the end, whichever worker finds it; epochs follow each other, and some are
/// left.
#[test]
fn batches_come_until_the_end() {
    explore("batches_come_until_the_end", || {
        let how = any();
        let device = device();
        let loader = loader(how, items(how.len), &device);
        let most = |coin| {
            if coin {
                how.batches() + 1
            } else {
                below(how.batches() + 1)
            }
        };
        let epochs = loader.epochs(0..EPOCHS);
        if coin() {
            for mut epoch in epochs {
                let most = most(coin());
                for number in 0..most.min(how.batches()) {
                    check(&epoch.next().unwrap().unwrap(), how.samples_of(number));
                }
                assert!(most <= how.batches() || epoch.next().is_none());
            }
        } else {
            for mut epoch in epochs.prefetch_to_device(&device, below(4)) {
                let most = most(coin());
                for number in 0..most.min(how.batches()) {
                    check_there(&epoch.next().unwrap().unwrap(), how.samples_of(number));
                }
                assert!(most <= how.batches() || epoch.next().is_none());
            }
        }
        drop(loader);
        check_all_back(&device);
    });
}

/// Of streams as of data sets: `depth` batches travel while the program asks for nothing, and at the boundary of two epochs as well.
#[test]
fn batches_of_streams_travel_across_the_boundary() {
    explore("batches_of_streams_travel_across_the_boundary", || {
        let how = How {
            workers: 1 + below(3),
            ..How::pinned()
        };
        let (device, depth) = (device(), 1 + below(3));
        let loader = loader(how, items(how.len), &device);
        let all = 2 * how.batches();
        let mut batches = loader
            .epochs(0..2)
            .prefetch_to_device(&device, depth)
            .flatten();
        for at in 0..all {
            let there = batches.next().unwrap().unwrap();
            let held = (at..all.min(at + depth + 1)).count() * BLOCK;
            while device.memory().device_held_bytes < held {
                thread::yield_now();
            }
            check_there(&there, how.samples_of(at % how.batches()));
        }
        assert!(batches.next().is_none());
        drop(batches);
        drop(loader);
        check_all_back(&device);
    });
}

/// A stream breaks, in one way or another: what was pulled before comes, and then its error, and then the next epoch.
#[test]
fn streams_that_break_end_their_epoch() {
    explore("streams_that_break_end_their_epoch", || {
        let how = How::any();
        let device = device();
        let broken = below(how.len as usize) as u64;
        let (panics, fails_to_load) = (coin(), coin());
        let numbers = iterable::from_fn(move |epoch, _| {
            Ok(
                (0..how.len).map(move |number| match (epoch, number == broken) {
                    (1, true) if !fails_to_load && panics => panic_quietly("no item"),
                    _ => Ok((epoch, number)),
                }),
            )
        });
        let source = numbers.map(move |(epoch, number), _| -> Result<_, BoxError> {
            match (epoch, number == broken) {
                (1, true) if fails_to_load && panics => panic_quietly("no sample"),
                (1, true) if fails_to_load => Err("no sample".into()),
                _ => Ok(sample(number)?),
            }
        });
        let loader = loader(how, source, &device);
        for epoch in loader.epochs(0..EPOCHS) {
            let number = epoch.number();
            let mut came = 0;
            for (at, batch) in epoch.enumerate() {
                let is_broken = number == 1 && how.samples_of(at).contains(&broken);
                match batch {
                    Ok(batch) => check(&batch, how.samples_of(at)),
                    Err(error) if fails_to_load => check_error(&error, broken),
                    Err(_) => assert!(is_broken && panics),
                }
                came += 1;
            }
            let ends = number == 1 && panics && !fails_to_load;
            let expected = match ends {
                true => broken as usize / how.batch + 1,
                false => how.batches(),
            };
            assert_eq!(came, expected);
        }
        drop(loader);
        check_all_back(&device);
    });
}

/// A stream of so many items, behind which others are skipped without end.
fn endless(len: u64) -> impl IterableDataset<Sample = (Tensor<u8>, i64)> {
    let numbers = iterable::from_fn(|_, _| {
        Ok((0u64..).map(|number| {
            thread::yield_now();
            Ok(number)
        }))
    });
    let skipped = numbers.skip(u64::MAX);
    let skipped = skipped.map(|number, _| Ok(sample(number)?));
    items(len).chain(skipped)
}

/// A stream that gives nothing for ever is left: by its epoch and the next one, and by the loader.
#[test]
fn streams_are_left_while_they_are_pulled() {
    explore("streams_are_left_while_they_are_pulled", || {
        let how = any();
        let how = How {
            workers: 1 + below(3),
            ..how
        };
        let device = device();
        let loader = loader(how, endless(how.len), &device);
        let whole = how.len as usize / how.batch;
        let epochs = loader.epochs(0..EPOCHS);
        if coin() {
            for mut epoch in epochs {
                for number in 0..below(whole + 1) {
                    check(&epoch.next().unwrap().unwrap(), how.samples_of(number));
                }
            }
        } else {
            for mut epoch in epochs.prefetch_to_device(&device, below(4)) {
                for number in 0..below(whole + 1) {
                    check_there(&epoch.next().unwrap().unwrap(), how.samples_of(number));
                }
            }
        }
        drop(loader);
        check_all_back(&device);
    });
}

/// A worker that was given up, because an item hung, pulls no other when it comes back.
#[test]
fn who_is_given_up_pulls_no_more() {
    explore("who_is_given_up_pulls_no_more", || {
        struct Counted(Arc<AtomicUsize>);
        impl Drop for Counted {
            fn drop(&mut self) {
                self.0.fetch_sub(1, Ordering::SeqCst);
            }
        }

        let (gate, alive) = (Arc::<Gate>::default(), Arc::new(AtomicUsize::new(0)));
        let (closed, opened, hangs_at) = (Arc::clone(&gate), Arc::clone(&alive), below(4) as i64);
        let numbers = iterable::from_fn(move |_, _| {
            opened.fetch_add(1, Ordering::SeqCst);
            let (counted, closed) = (Counted(Arc::clone(&opened)), Arc::clone(&closed));
            Ok((0i64..).map(move |number| {
                let _counted = &counted;
                if number == hangs_at {
                    closed.pass();
                }
                thread::yield_now();
                Ok(number)
            }))
        });
        let loader: DataLoader<Tensor<i64>, Iterable> =
            DataLoader::iterable(numbers.skip(u64::MAX))
                .num_workers(1 + below(2))
                .timeout(Duration::from_millis(5))
                .build()
                .unwrap();
        let all_end = || {
            gate.open();
            while alive.load(Ordering::SeqCst) > 0 {
                thread::yield_now();
            }
        };
        let waits = coin();
        for (number, mut epoch) in loader.epochs(0..2).enumerate() {
            let error = epoch.next().unwrap().unwrap_err();
            assert!(matches!(error, Error::TimedOut(_)), "{error}");
            assert!(epoch.next().is_none());
            // The epoch is still there.
            if number == 1 && waits {
                all_end();
            }
        }
        drop(loader);
        all_end();
    });
}
