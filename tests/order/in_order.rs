//! Batches as soon as they are ready: the order in which they come changes, what they hold does not; and who stops and resumes gets
//! each of them once.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use proptest::prelude::*;

use pinfeed::loader::{BatchInfo, Builder, LastBatch, LoaderState, TryNext, World};
use pinfeed::{
    BoxError, DataLoader, Dataset, Device, DeviceTensor, Error, SampleRng, Tensor, from_fn,
};

type Pair = (Tensor<i64>, Tensor<i64>);

/// Holds samples back until they may come.
#[derive(Default)]
struct Gate {
    is_open: Mutex<bool>,
    changed: Condvar,
}

impl Gate {
    fn pass(&self) {
        let mut is_open = self.is_open.lock().unwrap();
        while !*is_open {
            is_open = self.changed.wait(is_open).unwrap();
        }
    }

    fn open(&self) {
        *self.is_open.lock().unwrap() = true;
        self.changed.notify_all();
    }
}

/// Opens the gate at the end of a test that fails, so that the loader's threads end.
struct Opens(Arc<Gate>);

impl Drop for Opens {
    fn drop(&mut self) {
        self.0.open();
    }
}

/// Each sample is its index, and a number that it draws. Those of `slow` wait at a gate.
fn gated(len: u64, slow: &'static [u64]) -> (impl Dataset<Sample = (i64, i64)>, Opens) {
    let gate = Arc::new(Gate::default());
    let opens = Opens(Arc::clone(&gate));
    let samples = from_fn(len, move |index, rng: &mut SampleRng| {
        if slow.contains(&index) {
            gate.pass();
        }
        Ok((index as i64, rng.range(0..1_000_000i64)))
    });
    (samples, opens)
}

fn rows((indices, drawn): &Pair) -> Vec<(i64, i64)> {
    let indices = indices.as_slice().iter().copied();
    indices.zip(drawn.as_slice().iter().copied()).collect()
}

fn on_host((indices, drawn): (DeviceTensor<i64>, DeviceTensor<i64>)) -> Vec<(i64, i64)> {
    let back = |tensor: DeviceTensor<i64>| tensor.to_host(false).unwrap().wait().unwrap();
    rows(&(back(indices), back(drawn)))
}

/// What each batch of an ordered epoch holds, by its position.
fn ordered(len: u64, batch_size: usize, epoch: u64) -> BTreeMap<u64, Vec<(i64, i64)>> {
    let (samples, _opens) = gated(len, &[]);
    let loader = DataLoader::builder(samples)
        .batch_size(batch_size)
        .build()
        .unwrap();
    let batches = loader.epoch(epoch).with_info().map(|batch| batch.unwrap());
    batches
        .map(|(batch, info)| (info.position(), rows(&batch)))
        .collect()
}

fn build<D>(
    builder: Builder<D, pinfeed::collate::Stack>,
    device: Option<&Device>,
) -> DataLoader<Pair>
where
    D: Dataset<Sample = (i64, i64)>,
{
    match device {
        None => builder.build().unwrap(),
        Some(device) => builder.pin_memory(device).build().unwrap(),
    }
}

fn hosts() -> [Option<Device>; 2] {
    [None, Some(Device::cpu())]
}

/// One slow batch: all others of the epoch come before it, and then it comes, with what it holds in order.
#[test]
fn a_slow_batch_holds_nobody_up() {
    for device in hosts() {
        let (samples, opens) = gated(40, &[0]);
        let builder = DataLoader::builder(samples)
            .batch_size(4)
            .num_workers(2)
            .prefetch(3);
        let loader = build(builder.in_order(false), device.as_ref());
        let expected = ordered(40, 4, 2);
        let mut epoch = loader.epoch(2).with_info();
        let mut came = Vec::new();
        for left in (0..10).rev() {
            if left == 0 {
                assert!(matches!(epoch.try_next(), TryNext::NotYet));
                let wait = Duration::from_millis(1);
                assert!(matches!(epoch.next_timeout(wait), TryNext::NotYet));
                opens.0.open();
            }
            let (batch, info) = epoch.next().unwrap().unwrap();
            assert_eq!(rows(&batch), expected[&info.position()]);
            assert_eq!(info.position(), 4 * info.batch());
            assert_eq!(info.indices()[0], info.position());
            assert_eq!(epoch.size_hint(), (left, Some(left)));
            came.push(info.batch());
        }
        assert_eq!(came[9], 0);
        assert!(epoch.next().is_none() && epoch.next().is_none());
        came.sort_unstable();
        assert_eq!(came, (0..10).collect::<Vec<_>>());
    }
}

/// On the way to a device, batches are sent as they are made, `depth` at a time.
#[test]
fn a_slow_batch_holds_no_copy_up() {
    let device = Device::cpu();
    for (pins, depth) in [(true, 0), (true, 1), (true, 3), (false, 0), (false, 2)] {
        let (samples, opens) = gated(40, &[5]);
        let builder = DataLoader::builder(samples)
            .batch_size(4)
            .num_workers(3)
            .prefetch(4);
        let loader = build(builder.in_order(false), pins.then_some(&device));
        let expected = [ordered(40, 4, 0), ordered(40, 4, 1)];
        let mut seen = Vec::new();
        for epoch in loader.epochs(0..2).prefetch_to_device(&device, depth) {
            let (number, len) = (epoch.number(), epoch.len());
            for (at, batch) in epoch.with_info().enumerate() {
                let (batch, info) = batch.unwrap();
                assert_eq!(on_host(batch), expected[number as usize][&info.position()]);
                assert_eq!(info.epoch(), number);
                if number == 0 && at + 2 == len {
                    assert!(!seen.contains(&(0, 1)));
                    opens.0.open();
                }
                seen.push((number, info.batch()));
            }
        }
        assert_eq!(seen[9], (0, 1));
        seen.sort_unstable();
        let all = (0..2).flat_map(|epoch| (0..10).map(move |batch| (epoch, batch)));
        assert_eq!(seen, all.collect::<Vec<_>>());
    }
}

/// Batches are loaded up to 64 beyond the slow one, and no further.
#[test]
fn it_goes_so_far_beyond_a_slow_batch() {
    for device in hosts() {
        let (samples, opens) = gated(200, &[1]);
        let builder = DataLoader::builder(samples).num_workers(2).prefetch(90);
        let loader = build(builder.in_order(false), device.as_ref());
        let mut epoch = loader.epoch(0).with_info();
        let mut came: Vec<u64> = (0..64)
            .map(|_| epoch.next().unwrap().unwrap().1.batch())
            .collect();
        came.push(epoch.next().unwrap().unwrap().1.batch());
        assert!(matches!(
            epoch.next_timeout(Duration::from_millis(20)),
            TryNext::NotYet
        ));
        came.sort_unstable();
        assert_eq!(came, [0].into_iter().chain(2..66).collect::<Vec<_>>());
        let state = epoch.state();
        assert_eq!(state.position(), 1);
        opens.0.open();
        assert_eq!(epoch.count(), 135);
        // All of it is in the state.
        let (samples, _opens) = gated(200, &[]);
        let loader = DataLoader::builder(samples).build::<Pair>().unwrap();
        let resumed = loader.resume(0..1, &state).unwrap().next().unwrap();
        assert_eq!(resumed.len(), 135);
        let firsts: Vec<i64> = resumed
            .map(|batch| batch.unwrap().0.as_slice()[0])
            .collect();
        assert_eq!(firsts, [1].into_iter().chain(66..200).collect::<Vec<_>>());
    }
}

/// What fails comes when it fails, and epochs stay in order.
#[test]
fn a_batch_that_fails_is_not_waited_for_either() {
    for device in hosts() {
        let gate = Arc::new(Gate::default());
        let opens = Opens(Arc::clone(&gate));
        let samples = from_fn(12, move |index, _: &mut SampleRng| {
            match index {
                0 => gate.pass(),
                7 => return Err::<(i64, i64), BoxError>("broken".into()),
                _ => {}
            }
            Ok((index as i64, 0))
        });
        let builder = DataLoader::builder(samples)
            .batch_size(2)
            .num_workers(2)
            .prefetch(6);
        let loader = build(builder.in_order(false), device.as_ref());
        let mut epochs = loader.epochs(0..2);
        let mut epoch = epochs.next().unwrap();
        let (mut firsts, mut failed) = (Vec::new(), 0);
        for at in 0..6 {
            if at == 5 {
                assert!(matches!(epoch.try_next(), TryNext::NotYet));
                opens.0.open();
            }
            match epoch.next().unwrap() {
                Ok(batch) => firsts.push(batch.0.as_slice()[0]),
                Err(Error::Sample(id, _)) => {
                    assert_eq!((id.batch, id.index), (3, 7));
                    failed += 1;
                }
                Err(other) => panic!("{other}"),
            }
        }
        assert!(epoch.next().is_none());
        drop(epoch);
        assert_eq!(firsts.pop(), Some(0));
        firsts.sort_unstable();
        assert_eq!((firsts, failed), (vec![2, 4, 8, 10], 1));
        let next = epochs.next().unwrap();
        assert_eq!(next.filter(Result::is_ok).count(), 5);
    }
}

/// A sample that hangs costs its batch, whenever that is noticed, and holds nobody up before.
#[test]
fn a_sample_that_hangs_is_an_error_in_the_end() {
    let (samples, _opens) = gated(40, &[0]);
    let loader = DataLoader::builder(samples)
        .batch_size(4)
        .num_workers(2)
        .prefetch(3)
        .in_order(false)
        .timeout(Duration::from_millis(100))
        .build::<Pair>()
        .unwrap();
    let batches: Vec<_> = loader.epoch(0).collect();
    let late: Vec<_> = batches
        .iter()
        .filter_map(|batch| batch.as_ref().err())
        .collect();
    assert_eq!((batches.len(), late.len()), (10, 1));
    assert!(matches!(late[0], Error::TimedOut(_)), "{}", late[0]);
    assert!(loader.epoch(1).take(3).all(|batch| batch.is_ok()));
}

/// Who keeps every batch gets every batch, although there are not slabs for all of them.
#[test]
fn who_keeps_all_batches_gets_them() {
    let device = Device::cpu();
    let (samples, opens) = gated(40, &[13]);
    let builder = DataLoader::builder(samples)
        .batch_size(2)
        .num_workers(2)
        .prefetch(3);
    let loader = build(builder.in_order(false), Some(&device));
    let mut epoch = loader.epoch(0);
    // As many as there are slabs beside that of the slow one.
    let mut kept: Vec<Pair> = epoch.by_ref().take(5).map(|batch| batch.unwrap()).collect();
    opens.0.open();
    kept.extend(epoch.map(|batch| batch.unwrap()));
    let mut seen: Vec<i64> = kept.iter().flat_map(|batch| batch.0.to_vec()).collect();
    seen.sort_unstable();
    assert_eq!(seen, (0..40).collect::<Vec<_>>());
}

/// Dropped midway with gaps, the next epoch is whole.
#[test]
fn an_epoch_that_is_left_leaves_nothing_behind() {
    for device in hosts() {
        let (samples, opens) = gated(40, &[2]);
        let builder = DataLoader::builder(samples)
            .batch_size(2)
            .num_workers(2)
            .prefetch(4);
        let loader = build(builder.in_order(false), device.as_ref());
        let mut epochs = loader.epochs(0..3);
        assert_eq!(epochs.next().unwrap().take(9).count(), 9);
        opens.0.open();
        for number in 1..3 {
            let epoch = epochs.next().unwrap();
            assert_eq!((epoch.number(), epoch.len()), (number, 20));
            let mut seen: Vec<i64> = epoch.flat_map(|batch| batch.unwrap().0.to_vec()).collect();
            seen.sort_unstable();
            assert_eq!(seen, (0..40).collect::<Vec<_>>());
        }
    }
}

/// How one process loads.
#[derive(Debug, Clone, Copy)]
struct Run {
    workers: usize,
    prefetch: usize,
    in_order: bool,
    depth: Option<usize>,
    /// After how many batches it is stopped.
    stops_after: usize,
    /// Which samples take long.
    slow: u64,
}

#[derive(Debug, Clone, Copy)]
struct Job {
    samples: u64,
    batch: usize,
    ranks: usize,
    last: LastBatch,
    is_listed: bool,
}

fn loader(job: Job, run: Run, rank: usize) -> DataLoader<Pair> {
    let samples = from_fn(job.samples, move |index, rng: &mut SampleRng| {
        if run.slow > 1 && index % run.slow == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok((index as i64, rng.range(0..1_000_000i64)))
    });
    let mut builder = DataLoader::builder(samples)
        .seed(17)
        .num_workers(run.workers)
        .in_order(run.in_order)
        .last_batch(job.last)
        .world(World::new(rank, job.ranks).unwrap());
    builder = match job.is_listed {
        true => {
            let all: Vec<u64> = (0..job.samples)
                .map(|at| (at * 7 + 3) % job.samples)
                .collect();
            let lists: Vec<Vec<u64>> = all.chunks(job.batch).map(<[u64]>::to_vec).collect();
            builder.batch_sampler(lists)
        }
        false => builder.batch_size(job.batch).shuffle(true),
    };
    if run.workers > 0 {
        builder = builder.prefetch(run.prefetch);
    }
    if run.depth.is_some() {
        builder = builder.pin_memory(&Device::cpu());
    }
    builder.build().unwrap()
}

type Seen = Vec<(Vec<(i64, i64)>, BatchInfo)>;

/// What a rank sees of an epoch from a state on, and the state in which it leaves.
fn part(job: Job, run: Run, rank: usize, number: u64, state: &LoaderState) -> (Seen, LoaderState) {
    let loader = loader(job, run, rank);
    let mut epochs = loader.resume(number..number + 1, state).unwrap();
    // (A checkpoint before the first step.)
    assert_eq!(&loader.state().position(), &state.position());
    let seen: Seen = match run.depth {
        None => {
            let epoch = epochs.next().unwrap().with_info().take(run.stops_after);
            let batches = epoch.map(|batch| batch.unwrap());
            batches.map(|(batch, info)| (rows(&batch), info)).collect()
        }
        Some(depth) => {
            let mut epochs = epochs.prefetch_to_device(&Device::cpu(), depth);
            let epoch = epochs.next().unwrap().with_info().take(run.stops_after);
            let batches = epoch.map(|batch| batch.unwrap());
            batches
                .map(|(batch, info)| (on_host(batch), info))
                .collect()
        }
    };
    (seen, loader.state())
}

fn run() -> impl Strategy<Value = Run> {
    let depth = prop::option::of(0usize..4);
    (
        0usize..4,
        1usize..8,
        any::<bool>(),
        depth,
        0usize..30,
        0u64..9,
    )
        .prop_map(
            |(workers, prefetch, in_order, depth, stops_after, slow)| Run {
                workers,
                prefetch,
                in_order,
                depth,
                stops_after,
                slow,
            },
        )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    /// Stopped anywhere, any number of times: each batch comes once, with what it holds in the ordered run; and then the next epoch.
    #[test]
    fn stopped_anywhere_each_batch_comes_once(
        samples in 1u64..300, batch in 1usize..6, ranks in 1usize..4, runs in prop::collection::vec(run(), 1..6),
        number in 0u64..3, is_listed: bool, drops: bool
    ) {
        let last = if drops { LastBatch::Drop } else { LastBatch::Partial };
        let job = Job { samples, batch, ranks, last, is_listed };
        let alone = Run {
            workers: 0, prefetch: 1, in_order: true, depth: None, stops_after: usize::MAX, slow: 0,
        };
        for rank in 0..ranks {
            let (expected, done) = part(job, alone, rank, number, &LoaderState::default());
            let mut expected: BTreeMap<u64, Vec<(i64, i64)>> =
                expected.into_iter().map(|(rows, info)| (info.position(), rows)).collect();
            let mut state = LoaderState::default();
            for at in 0..=runs.len() {
                let run = match runs[..].get(at) {
                    Some(run) => *run,
                    None => Run { stops_after: usize::MAX, ..runs[0] },
                };
                let (seen, left) = part(job, run, rank, number, &state);
                for (rows, info) in seen {
                    // Missing: it came twice, or is none of the epoch's.
                    prop_assert_eq!(Some(rows), expected.remove(&info.position()));
                }
                state = left.to_string().parse().unwrap();
                prop_assert_eq!(state, left);
                if state.epoch() > number {
                    break;
                }
            }
            prop_assert!(expected.is_empty(), "{:?}", expected.keys());
            prop_assert_eq!(state, done);
        }
    }
}

fn of_rank(rank: usize, ranks: usize, batch: usize, in_order: bool) -> (DataLoader<Pair>, Opens) {
    let (samples, opens) = gated(64, &[0]);
    let builder = DataLoader::builder(samples)
        .batch_size(batch)
        .num_workers(2)
        .prefetch(4);
    let world = World::new(rank, ranks).unwrap();
    (
        builder.in_order(in_order).world(world).build().unwrap(),
        opens,
    )
}

/// Within an epoch a state with gaps is one rank's, for batches of its size; at the epoch's end it is everybody's.
#[test]
fn a_state_with_gaps_belongs_to_one_rank() {
    let (loader, opens) = of_rank(0, 2, 4, false);
    let mut epoch = loader.epoch(0);
    epoch
        .by_ref()
        .take(3)
        .for_each(|batch| drop(batch.unwrap()));
    let state = loader.state();
    let text = state.to_string();
    assert!(
        text.starts_with("pinfeed-state-2 epoch=0 position=0 "),
        "{text}"
    );
    assert!(text.contains(" ranks=2 rank=0 given=7 check="), "{text}");
    let resume = |rank, ranks, batch| {
        let (loader, opens) = of_rank(rank, ranks, batch, true);
        opens.0.open();
        let resumed = loader.resume(0..1, &state);
        resumed
            .map(|mut epochs| epochs.next().unwrap().len())
            .map_err(|error| error.to_string())
    };
    assert_eq!(resume(0, 2, 4), Ok(5));
    let refused = |rank, ranks, batch| resume(rank, ranks, batch).unwrap_err();
    let other_rank = refused(1, 2, 4);
    assert!(other_rank.contains("each rank has a state of its own: this is that of rank 0, and the loader's is rank 1 of 2"), "{other_rank}");
    for other in [refused(0, 1, 4), refused(0, 1, 8), refused(0, 4, 2)] {
        assert!(
            other.contains("in_order(false)") && other.contains("4 samples on each of 2 ranks"),
            "{other}"
        );
    }
    // Without gaps, too: other ranks may have some.
    opens.0.open();
    epoch
        .by_ref()
        .take(3)
        .for_each(|batch| drop(batch.unwrap()));
    assert!(loader.state().to_string().contains(" rank=0 given="));
    assert_eq!(epoch.count(), 2);
    let done = loader.state().to_string();
    assert!(
        done.starts_with("pinfeed-state-1 epoch=1 position=0 "),
        "{done}"
    );
    let (other, _opens) = of_rank(0, 1, 8, true);
    assert!(other.resume(0..2, &done.parse().unwrap()).is_ok());
}

/// A text of gaps that was cut off, or changed, is refused like any.
#[test]
fn a_damaged_state_with_gaps_is_refused() {
    let (loader, _opens) = of_rank(0, 1, 4, false);
    loader
        .epoch(0)
        .take(3)
        .for_each(|batch| drop(batch.unwrap()));
    let text = loader.state().to_string();
    assert!(text.parse::<LoaderState>().is_ok());
    for end in 0..text.len() {
        assert!(text[..end].parse::<LoaderState>().is_err(), "{end}");
    }
    assert!(
        text.replace("given=7", "given=3")
            .parse::<LoaderState>()
            .is_err()
    );
}

/// Without workers nothing changes, and ranks that must see the same batches are refused.
#[test]
fn where_it_does_not_apply() {
    let loader = DataLoader::builder(from_fn(10, |index, _| Ok(index as i64)))
        .batch_size(3)
        .in_order(false)
        .build()
        .unwrap();
    let seen: Vec<i64> = loader
        .epoch(0)
        .flat_map(|batch: Result<Tensor<i64>, _>| batch.unwrap().to_vec())
        .collect();
    assert_eq!(seen, (0..10).collect::<Vec<_>>());
    let world = World::new(1, 4).unwrap().replicated(2).unwrap();
    let refused = DataLoader::builder(from_fn(10, |index, _| Ok(index as i64)))
        .num_workers(1)
        .in_order(false)
        .world(world)
        .build()
        .unwrap_err();
    assert!(refused.to_string().contains("in_order"), "{refused}");
}

/// Asked without patience, nothing is missed.
#[test]
fn who_only_asks_gets_all() {
    let (samples, opens) = gated(60, &[7]);
    let builder = DataLoader::builder(samples)
        .batch_size(3)
        .num_workers(3)
        .prefetch(5);
    let loader = build(builder.in_order(false), Some(&Device::cpu()));
    let mut epoch = loader.epoch(0);
    let mut seen = Vec::new();
    loop {
        match epoch.try_next() {
            TryNext::Batch(batch) => seen.extend(batch.unwrap().0.to_vec()),
            TryNext::End => break,
            TryNext::NotYet => std::thread::yield_now(),
        }
        if seen.len() == 57 {
            opens.0.open();
        }
    }
    assert_eq!(seen[57..], [6, 7, 8]);
}
