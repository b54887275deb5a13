//! Batches that travel in parts: the worker that makes a part sends it, while the consumer is elsewhere.

use pinfeed::{BoxError, DataLoader, Dataset, Device, Error, SampleRng, Tensor};
use shuttle::thread;

use crate::explore::explore;
use crate::support::{
    BLOCK, How, Pair, PairOnDevice, Pin, SAMPLE_BYTES, below, check_all_back, check_error,
    check_held, check_made, check_there, coin, device, next, panic_quietly, sample,
};

/// Samples whose size is known before one is loaded; one of them is broken.
struct Known {
    len: u64,
    broken: Option<u64>,
}

impl Dataset for Known {
    type Sample = (Tensor<u8>, i64);

    fn len(&self) -> u64 {
        self.len
    }

    fn get(&self, index: u64, _: &mut SampleRng) -> Result<(Tensor<u8>, i64), BoxError> {
        match self.broken == Some(index) {
            true if index.is_multiple_of(2) => panic_quietly("no sample"),
            true => Err("no sample".into()),
            false => Ok(sample(index)?),
        }
    }

    fn sample_bytes(&self) -> Option<usize> {
        Some(SAMPLE_BYTES)
    }
}

const PART_ROWS: usize = 2;

/// A loader whose batches are cut on a device of ours.
fn in_parts() -> How {
    let how = How::pinned();
    How {
        len: 5 + below(9) as u64,
        batch: 3 + below(4),
        pin: Pin::InPlace,
        ..how
    }
}

fn parts_of(how: How) -> usize {
    how.batch.div_ceil(PART_ROWS)
}

fn cut(device: &Device) {
    device.cut_batches_at(1, PART_ROWS * SAMPLE_BYTES);
}

/// How many slabs an epoch may have: those that are filled in turn, or one for each part of what is open.
fn share(how: How) -> usize {
    (parts_of(how) * (how.prefetch + 1)).max(4)
}

fn loader(how: How, broken: Option<u64>, device: &Device) -> DataLoader<Pair> {
    let len = how.len;
    how.loader_of(Known { len, broken }, device)
}

#[test]
fn parts_make_up_their_batches() {
    explore("parts_make_up_their_batches", || {
        let how = in_parts();
        let device = device();
        cut(&device);
        let loader = loader(how, None, &device);
        for epoch in 0..2 {
            let depth = below(4);
            let mut batches = loader.epoch(epoch).prefetch_to_device(&device, depth);
            for number in 0..how.batches() {
                assert_eq!(batches.len(), how.batches() - number);
                let there = next(&mut batches).unwrap().unwrap();
                check_held(&device, 1 + depth);
                check_there(&there, how.samples_of(number));
            }
            assert!(batches.next().is_none());
            let stats = loader.stats();
            assert_eq!(stats.unpinned.count, 0);
            assert!(stats.transfers.count >= 2 * how.batches() as u64, "not cut");
        }
        check_made(&device, share(how) + 2); // and two downloads
        drop(loader);
        check_all_back(&device);
    });
}

/// The budget holds few slabs, and the device few batches: both come home, so all batches come.
#[test]
fn parts_wait_for_memory() {
    explore("parts_wait_for_memory", || {
        let how = How {
            strict: coin(),
            ..in_parts()
        };
        let device = device();
        cut(&device);
        device.set_pinned_budget_bytes((2 + below(4)) * crate::support::SLAB);
        device.set_device_budget_bytes((1 + below(3)) * BLOCK);
        let loader = loader(how, None, &device);
        let batches = loader.epoch(0).prefetch_to_device(&device, below(3));
        for (number, there) in batches.enumerate() {
            check_there(&there.unwrap(), how.samples_of(number));
        }
        assert_eq!(loader.stats().unpinned.count, 0);
        drop(loader);
        check_all_back(&device);
    });
}

/// The program holds the device's memory, and gives it back: an error is told only by what was asked for.
#[test]
fn parts_stop_where_the_memory_ends() {
    explore("parts_stop_where_the_memory_ends", || {
        let how = in_parts();
        let device = device();
        if coin() {
            cut(&device);
        }
        let room = 1 + below(3);
        device.set_device_budget_bytes(room * BLOCK);
        let loader = loader(how, None, &device);
        let mut held: Vec<(usize, PairOnDevice)> = Vec::new();
        let batches = loader.epoch(0).prefetch_to_device(&device, below(3));
        let mut seen = 0;
        for (number, there) in batches.enumerate() {
            seen += 1;
            match there {
                Ok(there) => held.push((number, there)),
                Err(Error::DeviceBudget { .. }) => {
                    assert!(!held.is_empty(), "nobody has any");
                    held.clear();
                }
                Err(error) => panic!("{error}"),
            }
            if coin() && !held.is_empty() {
                let (number, there) = held.swap_remove(below(held.len()));
                check_there(&there, how.samples_of(number));
            }
        }
        assert_eq!(seen, how.batches());
        for (number, there) in held {
            check_there(&there, how.samples_of(number));
        }
        drop(loader);
        check_all_back(&device);
    });
}

/// A broken sample costs its batch, whose other parts are on their way; another thread drops what arrives.
#[test]
fn a_part_that_fails_fails_its_batch() {
    explore("a_part_that_fails_fails_its_batch", || {
        let how = in_parts();
        let device = device();
        cut(&device);
        let broken = below(how.len as usize) as u64;
        let loader = loader(how, Some(broken), &device);
        let (sender, received) = shuttle::sync::mpsc::channel();
        let checker = thread::spawn(move || {
            for (samples, there) in received {
                check_there(&there, samples);
            }
        });
        for epoch in 0..2 {
            let mut batches = loader.epoch(epoch).prefetch_to_device(&device, below(3));
            for number in 0..how.batches() {
                let samples = how.samples_of(number);
                match next(&mut batches).unwrap() {
                    Ok(there) => {
                        assert!(!samples.contains(&broken));
                        sender.send((samples, there)).unwrap();
                    }
                    Err(error) => {
                        assert!(samples.contains(&broken), "{error}");
                        check_error(&error, broken);
                    }
                }
            }
        }
        drop(sender);
        checker.join().unwrap();
        drop(loader);
        check_all_back(&device);
    });
}

/// An epoch is left with parts on their way.
#[test]
fn epochs_in_parts_are_left() {
    explore("epochs_in_parts_are_left", || {
        let how = in_parts();
        let device = device();
        cut(&device);
        let loader = loader(how, None, &device);
        let mut kept = Vec::new();
        for epoch in 0..3 {
            let mut batches = loader.epoch(epoch).prefetch_to_device(&device, below(3));
            for number in 0..below(how.batches() + 1) {
                let there = next(&mut batches).unwrap().unwrap();
                match coin() {
                    true => kept.push((number, there)),
                    false => drop(there),
                }
            }
        }
        let loader = coin().then_some(loader);
        for (number, there) in kept {
            check_there(&there, how.samples_of(number));
        }
        drop(loader);
        check_all_back(&device);
    });
}
