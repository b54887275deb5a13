//! A limit in bytes for what is loaded ahead: it holds for batches of any sizes, and nothing waits for good.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use proptest::prelude::*;

use pinfeed::collate::Arena;
use pinfeed::loader::Builder;
use pinfeed::{DataLoader, Dataset, Device, Error, Ragged, SampleRng, Tensor, from_fn};

const PAGE: usize = 1 << 12;

/// How many bytes of text each sample has: few have most of them.
fn len(index: u64, spread: u64) -> usize {
    let mixed = index.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
    match mixed % 10 {
        0 => (mixed % spread) as usize,
        _ => (mixed % 90) as usize,
    }
}

fn text(index: u64, spread: u64) -> Vec<u8> {
    vec![index as u8; len(index, spread)]
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Memory {
    Pageable,
    Pinned,
    ByCopy,
}

fn builder<D: Dataset, C>(
    builder: Builder<D, C>,
    memory: Memory,
    device: &Device,
) -> Builder<D, C> {
    match memory {
        Memory::Pageable => builder,
        Memory::Pinned => builder.pin_memory(device),
        Memory::ByCopy => builder.pin_memory(device).pin_by_copy(true),
    }
}

/// A slab for this many texts of so many bytes together, in whole pages: behind them come up to 32 places, and their numbers, each at a
/// multiple of 256 bytes.
fn slab(bytes: usize, texts: usize) -> usize {
    (bytes.next_multiple_of(256) + 256 + texts * size_of::<i64>()).next_multiple_of(PAGE)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    /// Texts of very different lengths, whatever else is set: all batches come, and never more than the limit and one batch is in flight.
    #[test]
    fn never_more_than_the_limit_and_one_batch(
        limit in 1usize..400_000, spread in 1u64..200_000, workers in 1usize..4, prefetch in 1usize..30, batch in 1usize..6,
        memory in prop::sample::select(vec![Memory::Pageable, Memory::Pinned, Memory::ByCopy]), depth in prop::option::of(0usize..4),
        in_order: bool, shuffle: bool
    ) {
        let device = Device::cpu();
        let texts = from_fn(100, move |index, _: &mut SampleRng| {
            Ok((Ragged::from(text(index, spread)), index as i64))
        });
        let loader = DataLoader::builder(texts)
            .batch_size(batch)
            .shuffle(shuffle)
            .num_workers(workers)
            .prefetch(prefetch)
            .in_order(in_order)
            .max_bytes_in_flight(limit);
        let loader = builder(loader, memory, &device).build().unwrap();
        let mut largest = 0; // slabs grow with the largest batch
        for epoch in 0..2 {
            let mut seen = Vec::new();
            let mut see = |texts: &[u8], numbers: &[i64]| {
                let expected: Vec<u8> = numbers.iter().flat_map(|index| text(*index as u64, spread)).collect();
                assert_eq!(texts, expected);
                seen.extend_from_slice(numbers);
                largest = largest.max(slab(texts.len(), numbers.len()));
            };
            match depth {
                None => {
                    for batch in loader.epoch(epoch) {
                        let (texts, numbers) = batch.unwrap();
                        see(texts.values.as_slice(), numbers.as_slice());
                    }
                }
                Some(depth) => {
                    for batch in loader.epoch(epoch).prefetch_to_device(&device, depth) {
                        let (texts, numbers) = batch.unwrap();
                        let texts = texts.values.to_host(false).unwrap().wait().unwrap();
                        let numbers = numbers.to_host(false).unwrap().wait().unwrap();
                        see(texts.as_slice(), numbers.as_slice());
                    }
                }
            }
            seen.sort_unstable();
            prop_assert!(seen.into_iter().eq(0..100));
            let stats = loader.stats();
            let most = stats.most_bytes_in_flight as usize;
            // By copy, a batch has memory twice: where it is made, and where it is sent from.
            let units = if memory == Memory::ByCopy { 2 } else { 1 };
            prop_assert!(most > 0 && most <= limit + units * largest, "{} of {} and {}", most, limit, largest);
            prop_assert_eq!(stats.unpinned.count, 0);
        }
    }
}

/// Counts the samples that were begun.
#[derive(Default)]
struct Begun {
    count: Mutex<usize>,
    changed: Condvar,
}

impl Begun {
    /// Whether it came to so many before a test is given up.
    fn reaches(&self, count: usize) -> bool {
        let begun = self.count.lock().unwrap();
        let wait = Duration::from_secs(20);
        let few = |begun: &mut usize| *begun < count;
        let (begun, _) = self.changed.wait_timeout_while(begun, wait, few).unwrap();
        *begun >= count
    }

    fn wait_for(&self, count: usize) {
        let mut begun = self.count.lock().unwrap();
        while *begun < count {
            begun = self.changed.wait(begun).unwrap();
        }
    }
}

fn counted(len: u64, bytes: usize) -> (impl Dataset<Sample = Tensor<u8>>, Arc<Begun>) {
    let begun = Arc::new(Begun::default());
    let counts = Arc::clone(&begun);
    let samples = from_fn(len, move |index, _: &mut SampleRng| {
        *counts.count.lock().unwrap() += 1;
        counts.changed.notify_all();
        Ok(Tensor::from_vec(vec![index as u8; bytes], &[bytes])?)
    });
    (samples, begun)
}

/// As many batches are ahead as there is room for, and no more, whatever `prefetch` says: before the first, and after each.
#[test]
fn as_many_are_ahead_as_there_is_room_for() {
    for memory in [Memory::Pageable, Memory::Pinned] {
        let (samples, begun) = counted(60, PAGE);
        let device = Device::cpu();
        let loader = DataLoader::builder(samples)
            .batch_size(2)
            .num_workers(2)
            .prefetch(20)
            .max_bytes_in_flight(5 * 2 * PAGE);
        let loader = builder(loader, memory, &device).build().unwrap();
        let mut epoch = loader.epoch(0);
        for taken in 0..10 {
            begun.wait_for(2 * (taken + 5));
            std::thread::sleep(Duration::from_millis(3));
            assert!(
                *begun.count.lock().unwrap() <= 2 * (taken + 5),
                "{memory:?}"
            );
            assert_eq!(epoch.next().unwrap().unwrap().shape()[0], 2);
        }
        drop(epoch);
        assert_eq!(loader.stats().most_bytes_in_flight as usize, 5 * 2 * PAGE);
        // (And two: one that cannot wait, and one with the program.)
        assert!(device.memory().slabs_made <= 7, "{:?}", device.memory());
    }
}

/// Two batches of `prefetch` at most, however much room there is.
#[test]
fn prefetch_stays_a_limit() {
    let (samples, begun) = counted(60, 100);
    let loader = DataLoader::builder(samples)
        .num_workers(2)
        .prefetch(2)
        .max_bytes_in_flight(1 << 30)
        .build()
        .unwrap();
    let mut epoch = loader.epoch(0);
    epoch.next().unwrap().unwrap();
    begun.wait_for(3);
    std::thread::sleep(Duration::from_millis(3));
    assert_eq!(*begun.count.lock().unwrap(), 3);
}

/// A batch that is larger than the limit is loaded alone, and so are others of its size; after a failure as well.
#[test]
fn what_is_too_large_is_loaded_alone() {
    for memory in [Memory::Pageable, Memory::Pinned, Memory::ByCopy] {
        let inside = Arc::new(AtomicUsize::new(0));
        let samples = {
            let inside = Arc::clone(&inside);
            from_fn(12, move |index, _: &mut SampleRng| {
                let others = inside.fetch_add(1, Ordering::SeqCst);
                std::thread::sleep(Duration::from_micros(300));
                inside.fetch_sub(1, Ordering::SeqCst);
                match (index, others) {
                    (3, _) => Err("broken".into()),
                    // Of the batch itself, others may be loaded.
                    (_, 0) => Ok(Tensor::from_vec(vec![index as u8; 3 * PAGE], &[3 * PAGE])?),
                    _ => Err("beside another".into()),
                }
            })
        };
        let loader = DataLoader::builder(samples)
            .num_workers(3)
            .prefetch(8)
            .max_bytes_in_flight(PAGE);
        let loader = builder(loader, memory, &Device::cpu()).build().unwrap();
        for epoch in loader.epochs(0..2) {
            let failed: Vec<String> = epoch
                .filter_map(|batch| Some(batch.err()?.to_string()))
                .collect();
            assert_eq!(failed.len(), 1, "{failed:?}");
            assert!(failed[0].contains("broken"), "{failed:?}");
        }
    }
}

/// Who keeps all batches gets all of them: what the program has does not count.
#[test]
fn what_the_program_has_does_not_count() {
    for memory in [Memory::Pageable, Memory::Pinned] {
        let (samples, _) = counted(30, 1_000);
        let loader = DataLoader::builder(samples)
            .batch_size(3)
            .num_workers(2)
            .prefetch(4)
            .max_bytes_in_flight(2 * PAGE);
        let loader = builder(loader, memory, &Device::cpu()).build().unwrap();
        let kept: Vec<Tensor<u8>> = loader.epoch(0).collect::<Result<_, _>>().unwrap();
        assert_eq!(kept.len(), 10);
        assert!(loader.stats().most_bytes_in_flight as usize <= 3 * PAGE);
    }
}

/// Many small batches are ahead, and then comes a large one: of such, few may be ahead. An earlier batch, which is made last, still gets
/// the slab that was left for it.
#[test]
fn what_was_left_for_a_batch_is_left_when_batches_grow() {
    let large_begins = Arc::new(Begun::default());
    let samples = {
        let large_begins = Arc::clone(&large_begins);
        from_fn(12, move |index, _: &mut SampleRng| {
            let bytes = if index == 8 { 30 * PAGE } else { PAGE };
            match index {
                // Its batch is laid out before this one's.
                9 => {
                    *large_begins.count.lock().unwrap() += 1;
                    large_begins.changed.notify_all();
                }
                1 => assert!(large_begins.reaches(1)),
                _ => {}
            }
            Ok(Ragged::from(vec![index as u8; bytes]))
        })
    };
    let device = Device::cpu();
    let loader = DataLoader::builder(samples)
        .num_workers(2)
        .prefetch(12)
        .max_bytes_in_flight(100 * PAGE);
    let loader = builder(loader, Memory::Pinned, &device).build().unwrap();
    let values = loader.epoch(0).map(|batch| batch.unwrap().values);
    let firsts: Vec<u8> = values.map(|values| values.as_slice()[0]).collect();
    assert!(firsts.into_iter().eq(0..12));
    let stats = loader.stats();
    assert_eq!(stats.unpinned.count, 0, "{stats}");
}

/// An epoch that is left gives back what it had, so that the next has all of the room.
#[test]
fn an_epoch_that_is_left_gives_its_room_back() {
    for memory in [Memory::Pageable, Memory::Pinned] {
        let device = Device::cpu();
        let (samples, begun) = counted(60, PAGE);
        let loader = DataLoader::builder(samples)
            .num_workers(2)
            .prefetch(20)
            .max_bytes_in_flight(4 * PAGE);
        let loader = builder(loader, memory, &device).build().unwrap();
        for number in 0..4 {
            let mut epoch = loader.epoch(number);
            epoch.next().unwrap().unwrap();
            let before = *begun.count.lock().unwrap();
            drop(epoch);
            // (Workers may have begun a sample of it.)
            let mut epoch = loader.epoch(9);
            begun.wait_for(before + 4);
            epoch.next().unwrap().unwrap();
            assert_eq!(epoch.count(), 59);
        }
    }
}

/// What a function collates, made in the arena or elsewhere.
#[test]
fn what_a_function_collates_is_moved_within_the_limit() {
    for memory in [Memory::Pageable, Memory::Pinned, Memory::ByCopy] {
        for own in [false, true] {
            let collate = move |samples: Vec<i64>, arena: &mut Arena| {
                let mut numbers = match own {
                    true => Tensor::zeros(&[samples.len(), 500]),
                    false => arena.zeros(&[samples.len(), 500])?,
                };
                let all = numbers.as_mut_slice().ok_or("shared")?;
                all.chunks_mut(500)
                    .zip(&samples)
                    .for_each(|(row, sample)| row.fill(*sample));
                Ok(numbers)
            };
            let loader = DataLoader::builder(from_fn(64, |index, _| Ok(index as i64)))
                .batch_size(4)
                .num_workers(2)
                .prefetch(10)
                .max_bytes_in_flight(60_000)
                .collate_fn(collate);
            let loader = builder(loader, memory, &Device::cpu()).build().unwrap();
            for (number, batch) in loader.epoch(0).enumerate() {
                let expected = 4 * number as i64..4 * (number as i64 + 1);
                let expected: Vec<i64> = expected.flat_map(|number| [number; 500]).collect();
                assert_eq!(batch.unwrap().as_slice(), expected);
            }
            assert!(loader.stats().most_bytes_in_flight <= 60_000 + 2 * 5 * PAGE as u64);
        }
    }
}

#[test]
fn what_makes_no_sense_is_refused() {
    let loader = || DataLoader::builder(from_fn(10, |index, _| Ok(index as i64)));
    let zero = loader()
        .num_workers(1)
        .max_bytes_in_flight(0)
        .build::<Tensor<i64>>();
    let alone = loader().max_bytes_in_flight(9).build::<Tensor<i64>>();
    for refused in [zero.unwrap_err(), alone.unwrap_err()] {
        assert!(matches!(refused, Error::InvalidOption { .. }), "{refused}");
        assert!(
            refused.to_string().contains("max_bytes_in_flight"),
            "{refused}"
        );
    }
}

/// Two devices share the limit of one batch: when the copy to one of them is over, the other is loaded ahead, although its program is busy
/// and that of the first does not ask for more.
#[test]
fn what_one_device_gives_back_is_room_for_another() {
    let devices = [Device::cpu(), Device::cpu()];
    // The first device gets samples 0 and 2, the second gets 1 and 3.
    let gates = Arc::new(Gates::default());
    let (samples, begun) = (Arc::clone(&gates), Arc::new(Begun::default()));
    let counts = Arc::clone(&begun);
    let samples = from_fn(4, move |index, _: &mut SampleRng| {
        if index == 0 || index == 2 {
            *counts.count.lock().unwrap() += 1;
            counts.changed.notify_all();
        }
        samples.pass(index);
        Ok(Tensor::from_vec(vec![index as u8; PAGE], &[PAGE])?)
    });
    let loader = DataLoader::builder(samples)
        .num_workers(4)
        .prefetch(2)
        .max_bytes_in_flight(PAGE)
        .pin_memory(&devices)
        .build()
        .unwrap();
    let _opens = Opens(Arc::clone(&gates));
    let mut epochs = loader.epoch(0).split(&devices, 2);
    gates.open(1);
    let batch = epochs[1].next().unwrap().unwrap(); // its slab counts until somebody finds that it is free
    gates.open(0);
    begun.wait_for(1);
    std::thread::sleep(Duration::from_millis(5)); // sample 0 waits for room, unless there is some already
    let back = batch.to_host(false).unwrap().wait().unwrap();
    assert_eq!(back.as_slice()[0], 1);
    assert!(begun.reaches(2), "the first device is not loaded ahead");
    gates.open(2);
    gates.open(3);
    assert_eq!(epochs[0].by_ref().filter(Result::is_ok).count(), 2);
    assert_eq!(epochs[1].by_ref().filter(Result::is_ok).count(), 1);
}

/// Samples that wait until they may come.
#[derive(Default)]
struct Gates {
    open: Mutex<Vec<u64>>,
    changed: Condvar,
}

impl Gates {
    fn pass(&self, index: u64) {
        let mut open = self.open.lock().unwrap();
        while !open.contains(&index) {
            open = self.changed.wait(open).unwrap();
        }
    }

    fn open(&self, index: u64) {
        self.open.lock().unwrap().push(index);
        self.changed.notify_all();
    }
}

/// Opens all gates at the end of a test that fails, so that the loader's threads end.
struct Opens(Arc<Gates>);

impl Drop for Opens {
    fn drop(&mut self) {
        (0..4).for_each(|index| self.0.open(index));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 20, ..ProptestConfig::default() })]

    /// Two or three devices, whose programs take batches in turn, all of one first, or each on a thread: all batches come, and no more than the
    /// limit and a batch of each device is in flight.
    #[test]
    fn devices_share_the_limit(
        limit in 1usize..200_000, spread in 1u64..100_000, workers in 1usize..4, prefetch in 1usize..12, batch in 1usize..5,
        count in 2usize..4, depth in 0usize..3, in_order: bool, how in 0usize..3
    ) {
        let devices: Vec<Device> = (0..count).map(|_| Device::cpu()).collect();
        let texts = from_fn(90, move |index, _: &mut SampleRng| {
            Ok((Ragged::from(text(index, spread)), index as i64))
        });
        let loader = DataLoader::builder(texts)
            .batch_size(batch)
            .num_workers(workers)
            .prefetch(prefetch)
            .in_order(in_order)
            .max_bytes_in_flight(limit)
            .pin_memory(&devices)
            .build()
            .unwrap();
        let (seen, largest) = (Mutex::new(Vec::new()), AtomicUsize::new(0));
        let see = |batch: pinfeed::Result<(pinfeed::ragged::RaggedDeviceTensor<u8>, pinfeed::DeviceTensor<i64>)>| {
            let (texts, numbers) = batch.unwrap();
            let texts = texts.values.to_host(false).unwrap().wait().unwrap();
            let numbers = numbers.to_host(false).unwrap().wait().unwrap();
            let expected: Vec<u8> = numbers.as_slice().iter().flat_map(|index| text(*index as u64, spread)).collect();
            assert_eq!(texts.as_slice(), expected);
            seen.lock().unwrap().extend_from_slice(numbers.as_slice());
            largest.fetch_max(slab(expected.len(), numbers.len()), Ordering::Relaxed);
        };
        let mut epochs = loader.epoch(0).split(&devices, depth);
        match how {
            0 => std::thread::scope(|scope| {
                for epoch in epochs {
                    scope.spawn(|| epoch.for_each(see));
                }
            }),
            1 => epochs.into_iter().flatten().for_each(see),
            _ => {
                while epochs[0].len() > 0 {
                    epochs.iter_mut().for_each(|epoch| see(epoch.next().unwrap()));
                }
            }
        }
        let mut seen = seen.into_inner().unwrap();
        seen.sort_unstable();
        seen.dedup();
        prop_assert!(seen.into_iter().eq(0..90));
        let most = loader.stats().most_bytes_in_flight as usize;
        prop_assert!(most <= limit + count * largest.into_inner(), "{} of {}", most, limit);
    }
}
