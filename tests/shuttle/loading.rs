//! Every way to load: with and without workers, page-locked memory and a device; samples of all kinds.

use pinfeed::collate::Arena;
use pinfeed::ragged::RaggedTensor;
use pinfeed::{Batch, DataLoader, Ragged, Tensor, from_fn};

use crate::explore::explore;
use crate::support::{
    How, Pin, back, below, check, check_all_back, check_held, check_made, coin, device, next,
};

/// Who drops each batch before the next gets all of them page-locked, in no more slabs than the epoch has a share of.
#[test]
fn batches_come_in_order() {
    explore("batches_come_in_order", || {
        let how = How {
            strict: coin(),
            ..How::any()
        };
        let device = device();
        let loader = how.loader(&device);
        for epoch in 0..2 {
            let mut batches = loader.epoch(epoch);
            for number in 0..how.batches() {
                assert_eq!(batches.len(), how.batches() - number);
                let batch = batches.next().unwrap().unwrap();
                assert_eq!(batch.0.is_pinned(), how.pin != Pin::No);
                check(&batch, how.samples_of(number));
            }
            assert!(batches.next().is_none());
            assert_eq!(loader.stats().unpinned.count, 0);
        }
        if how.pin != Pin::No {
            check_made(&device, how.made(1));
        }
        drop(loader);
        check_all_back(&device);
    });
}

/// Sent to the device one by one, and read back later: what is read is what was sent, whichever batch has the memory by then.
#[test]
fn batches_go_there_and_back() {
    explore("batches_go_there_and_back", || {
        let how = How::any();
        let device = device();
        let loader = how.loader(&device);
        let mut downloads = Vec::new();
        for (number, batch) in loader.epoch(0).enumerate() {
            let (bytes, indices) = batch.unwrap().to_device(&device, coin()).unwrap();
            let bytes = bytes.to_host(true).unwrap();
            let indices = indices.to_host(true).unwrap();
            downloads.push((number, bytes, indices));
            if coin() {
                let (number, bytes, indices) = downloads.remove(below(downloads.len()));
                let batch = (bytes.wait().unwrap(), indices.wait().unwrap());
                check(&batch, how.samples_of(number));
            }
        }
        // Uploads bring slabs home, so no batch goes without.
        assert_eq!(loader.stats().unpinned.count, 0);
        for (number, bytes, indices) in downloads {
            let batch = (bytes.wait().unwrap(), indices.wait().unwrap());
            check(&batch, how.samples_of(number));
        }
        drop(loader);
        check_all_back(&device);
    });
}

/// The same by the loader itself.
#[test]
fn batches_are_sent_ahead() {
    explore("batches_are_sent_ahead", || {
        let how = How::any();
        let device = device();
        let loader = how.loader(&device);
        let depth = below(3);
        // Who reads nothing back begins an epoch while copies of the last are under way.
        let reads = coin();
        for epoch in 0..2 {
            let mut batches = loader.epoch(epoch).prefetch_to_device(&device, depth);
            for number in 0..how.batches() {
                assert_eq!(batches.len(), how.batches() - number);
                let there = next(&mut batches).unwrap().unwrap();
                check_held(&device, how.held(depth));
                if reads {
                    check(&back(&there).unwrap(), how.samples_of(number));
                }
            }
            assert!(batches.next().is_none());
            assert_eq!(loader.stats().unpinned.count, 0);
        }
        if how.pin != Pin::No {
            check_made(&device, how.made(depth) + 2); // and two downloads
        }
        drop(loader);
        check_all_back(&device);
    });
}

/// What a function collates is page-locked as well: its own tensors are copied, those of the arena are once it is known how
/// large batches are.
fn collate(how: How) {
    let device = device();
    let own = coin();
    let collate = move |samples: Vec<i64>, arena: &mut Arena| {
        let mut doubled = match own {
            true => Tensor::zeros(&[samples.len()]),
            false => arena.zeros(&[samples.len()])?,
        };
        let row = doubled.as_mut_slice().ok_or("shared")?;
        row.iter_mut().zip(&samples).for_each(|(to, n)| *to = n * 2);
        Ok((doubled, Tensor::from(samples)))
    };
    let dataset = from_fn(how.len, |index, _| Ok(index as i64));
    let builder = DataLoader::builder(dataset).collate_fn(collate);
    let loader = how.build(builder, &device);
    for (number, batch) in loader.epoch(0).enumerate() {
        let (doubled, numbers) = batch.unwrap();
        assert_eq!(doubled.is_pinned(), how.pin != Pin::No);
        assert_eq!(numbers.is_pinned(), how.pin != Pin::No);
        let expected = how.samples_of(number).map(|index| index as i64);
        assert!(numbers.as_slice().iter().copied().eq(expected.clone()));
        assert!(
            doubled
                .as_slice()
                .iter()
                .copied()
                .eq(expected.map(|n| n * 2))
        );
    }
    assert_eq!(loader.stats().unpinned.count, 0);
    drop(loader);
    check_all_back(&device);
}

#[test]
fn collated_batches_are_pinned() {
    explore("collated_batches_are_pinned", || {
        let how = How::any();
        collate(How {
            prefetch: how.prefetch.min(3),
            ..how
        });
    });
}

#[test]
fn collated_batches_are_pinned_far_ahead() {
    explore("collated_batches_are_pinned_far_ahead", || {
        collate(How {
            workers: 1 + below(3),
            prefetch: 6,
            ..How::pinned()
        });
    });
}

/// How long a ragged sample is: batches differ by more than a slab.
fn length_of(index: u64) -> usize {
    [0, 3, 700, 1, 0, 1500, 2, 40][index as usize % 8]
}

fn check_ragged(batch: &RaggedTensor<i64>, samples: impl Iterator<Item = u64>) {
    let rows = batch.rows().zip(samples);
    rows.for_each(|(row, index)| assert!(row == vec![index as i64; length_of(index)]));
}

/// Samples that are not alike: a batch is planned when all of them came, and is as large as it is.
#[test]
fn ragged_batches_come_in_order() {
    explore("ragged_batches_come_in_order", || {
        let how = How::any();
        let device = device();
        if coin() {
            device.set_pinned_budget_bytes(64 << 10);
        }
        let dataset = from_fn(how.len, |index, _| {
            Ok((
                Ragged::from(vec![index as i64; length_of(index)]),
                index as i64,
            ))
        });
        let loader: DataLoader<(RaggedTensor<i64>, Tensor<i64>)> =
            how.build(DataLoader::builder(dataset), &device);
        for epoch in 0..2 {
            for (number, batch) in loader.epoch(epoch).enumerate() {
                let (ragged, indices) = batch.unwrap();
                check_ragged(&ragged, how.samples_of(number));
                let found = indices.as_slice().iter().map(|&index| index as u64);
                assert!(found.eq(how.samples_of(number)));
            }
            assert_eq!(loader.stats().unpinned.count, 0);
        }
        assert!(device.memory().pinned_bytes <= device.memory().pinned_budget_bytes);
        drop(loader);
        check_all_back(&device);
    });
}

/// Two loaders on one device, each with a thread of its own.
#[test]
fn loaders_share_a_device() {
    explore("loaders_share_a_device", || {
        let device = device();
        if coin() {
            device.set_pinned_budget_bytes((1 + below(4)) * crate::support::SLAB);
        }
        let threads: Vec<_> = (0..2)
            .map(|_| {
                let how = How::any();
                let device = device.clone();
                shuttle::thread::spawn(move || {
                    let loader = how.loader(&device);
                    let sends = coin();
                    for (number, batch) in loader.epoch(0).enumerate() {
                        let batch = batch.unwrap();
                        check(&batch, how.samples_of(number));
                        if sends {
                            let there = batch.to_device(&device, true).unwrap();
                            check(&back(&there).unwrap(), how.samples_of(number));
                        }
                    }
                })
            })
            .collect();
        threads
            .into_iter()
            .for_each(|thread| thread.join().unwrap());
        let memory = device.memory();
        assert!(
            memory.pinned_bytes <= memory.pinned_budget_bytes,
            "{memory:?}"
        );
        check_all_back(&device);
    });
}
