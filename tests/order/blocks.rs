//! The order of blocks: each sample once, whatever the sizes, the tracks, the epoch, the lanes and where they begin; and what a lane is told
//! to open is what it needs, from when to when.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use proptest::prelude::*;

use pinfeed::loader::{LastBatch, LoaderState, OnError, Sharding, World};
use pinfeed::sampler::{BlockSampler, Blocks, Opening, Openings, RandomSampler, Sampler};
use pinfeed::{BoxError, DataLoader, Dataset, Device, Error, SampleRng, Tensor, from_fn};

/// A layout: blocks of any sizes, and tracks.
#[derive(Debug, Clone)]
struct Layout {
    sizes: Vec<u64>,
    tracks: u64,
    seed: u64,
    in_order: bool,
}

impl Layout {
    fn blocks(&self) -> Arc<Blocks> {
        Arc::new(Blocks::from_sizes(self.sizes.iter().copied()).unwrap())
    }

    fn sampler(&self) -> BlockSampler {
        match self.in_order {
            true => BlockSampler::in_order(self.blocks()),
            false => BlockSampler::new(self.blocks())
                .with_tracks(self.tracks)
                .unwrap()
                .with_seed(self.seed),
        }
    }
}

fn layout() -> impl Strategy<Value = Layout> {
    let sizes = prop_oneof![
        prop::collection::vec(0u64..40, 0..30),
        (1u64..30, 0usize..30).prop_map(|(size, count)| vec![size; count]),
        prop::collection::vec(prop_oneof![4 => 0u64..4, 1 => 100u64..300], 1..12),
    ];
    (sizes, 1u64..40, any::<u64>(), prop::bool::weighted(0.15)).prop_map(
        |(sizes, tracks, seed, in_order)| Layout {
            sizes,
            tracks,
            seed,
            in_order,
        },
    )
}

fn order(sampler: &impl Sampler, epoch: u64) -> Vec<u64> {
    (0..sampler.len())
        .map(|position| sampler.index(epoch, position))
        .collect()
}

fn openings(sampler: &BlockSampler, epoch: u64, from: u64, lane: u64, lanes: u64) -> Vec<Opening> {
    sampler
        .openings(epoch, from, lane, lanes)
        .unwrap()
        .collect()
}

/// What a lane takes, from nothing but the order.
fn taken(order: &[u64], from: u64, lane: u64, lanes: u64) -> Vec<(u64, u64)> {
    let positions = (from..order.len() as u64).filter(|position| position % lanes == lane);
    positions
        .map(|position| (position, order[position as usize]))
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn each_sample_comes_once(layout in layout(), epoch in 0u64..5) {
        let sampler = layout.sampler();
        let samples: u64 = layout.sizes.iter().sum();
        prop_assert_eq!(sampler.len(), samples);
        let mut order = order(&sampler, epoch);
        order.sort_unstable();
        prop_assert!(order.into_iter().eq(0..samples));
    }

    /// Blocks stay in their tracks in all epochs, and so on their nodes.
    #[test]
    fn tracks_keep_their_samples(layout in layout(), one in 0u64..5, other in 5u64..10) {
        let sampler = layout.sampler();
        let tracks = sampler.tracks().unwrap().get() as usize;
        let of_track = |epoch, track| -> BTreeSet<u64> {
            order(&sampler, epoch).into_iter().skip(track).step_by(tracks).collect()
        };
        for track in 0..tracks {
            prop_assert_eq!(of_track(one, track), of_track(other, track));
        }
    }

    /// Whatever was asked for before, and by whichever clone.
    #[test]
    fn many_positions_are_as_each(layout in layout(), asked in prop::collection::vec((0u64..3, any::<u64>(), 0u64..700), 1..8)) {
        let (sampler, other) = (layout.sampler(), layout.sampler());
        let shared = sampler.clone();
        for (epoch, start, count) in asked {
            let start = start % (sampler.len() + 1);
            let mut indices = vec![0; count.min(sampler.len() - start) as usize];
            shared.indices(epoch, start, &mut indices);
            let each: Vec<u64> = (start..).take(indices.len()).map(|position| sampler.index(epoch, position)).collect();
            prop_assert_eq!(&indices, &each);
            let fresh: Vec<u64> = (start..).take(indices.len()).map(|position| other.index(epoch, position)).collect();
            prop_assert_eq!(indices, fresh);
        }
    }

    /// From anywhere, on any lane of any number: the first needs of what it takes, in order, each with its last need and their number.
    #[test]
    fn openings_are_what_a_lane_needs(layout in layout(), epoch in 0u64..3, from in 0u64..400, lane in 0u64..50, lanes in 1u64..50) {
        let (sampler, blocks, lane) = (layout.sampler(), layout.blocks(), lane % lanes);
        let order = order(&sampler, epoch);
        let found = openings(&sampler, epoch, from, lane, lanes);
        prop_assert!(found.windows(2).all(|pair| pair[0].first < pair[1].first));
        let taken = taken(&order, from, lane, lanes);
        let mut by_opening: BTreeMap<usize, Vec<u64>> = BTreeMap::new();
        for (position, index) in &taken {
            let of: Vec<usize> = (0..found.len()).filter(|at| found[*at].samples.contains(index)).collect();
            prop_assert_eq!(of.len(), 1, "sample {} is in {:?}", index, of);
            by_opening.entry(of[0]).or_default().push(*position);
        }
        prop_assert_eq!(by_opening.len(), found.len(), "what is opened is needed");
        for (at, positions) in by_opening {
            let opening = &found[at];
            prop_assert_eq!(opening.first, positions[0]);
            prop_assert_eq!(opening.until, positions[positions.len() - 1] + 1);
            prop_assert_eq!(opening.uses, positions.len() as u64);
            let block = blocks.range(opening.block);
            prop_assert!(block.start <= opening.samples.start && opening.samples.end <= block.end);
        }
        // No more blocks are open than there are tracks.
        let tracks = sampler.tracks().unwrap().get();
        for (position, _) in &taken {
            let open = found.iter().filter(|opening| opening.first <= *position && *position < opening.until);
            prop_assert!(open.count() as u64 <= tracks);
        }
    }

    /// Together they are all samples; and lanes that divide the tracks open nothing that another opens, wherever they begin.
    #[test]
    fn lanes_that_divide_the_tracks_share_nothing(mut layout in layout(), each in 1u64..6, lanes in 1u64..9, epoch in 0u64..3, from in 0u64..300) {
        layout.in_order = false;
        layout.tracks = each * lanes;
        prop_assume!(layout.sizes.iter().sum::<u64>() >= layout.tracks);
        let sampler = layout.sampler();
        let mut all: Vec<Opening> = (0..lanes).flat_map(|lane| openings(&sampler, epoch, from, lane, lanes)).collect();
        all.sort_unstable_by_key(|opening| opening.samples.start);
        prop_assert!(all.windows(2).all(|pair| pair[0].samples.end <= pair[1].samples.start));
        prop_assert_eq!(all.iter().map(|opening| opening.uses).sum::<u64>(), sampler.len().saturating_sub(from));
        if from == 0 {
            prop_assert_eq!(all.iter().map(|opening| opening.samples.end - opening.samples.start).sum::<u64>(), sampler.len());
            // Stretches cut blocks, and a track's first piece is cut.
            prop_assert!(all.len() as u64 <= layout.sizes.len() as u64 + 2 * layout.tracks);
        }
    }

    /// Another of the same piece first, and then of another track's: they follow from the position, and none is the one that failed.
    #[test]
    fn what_comes_instead_is_near(layout in layout(), epoch in 0u64..3, position: u64) {
        let sampler = layout.sampler();
        prop_assume!(sampler.len() > 0);
        let position = position % sampler.len();
        let failed = sampler.index(epoch, position);
        let pieces = openings(&sampler, epoch, 0, 0, 1);
        let piece = |index: u64| pieces.iter().find(|opening| opening.samples.contains(&index)).unwrap();
        let own = piece(failed);
        for attempt in 1..=16 {
            let instead = sampler.instead(epoch, position, attempt);
            prop_assert_eq!(instead, layout.sampler().instead(epoch, position, attempt));
            let Some(instead) = instead else {
                prop_assert!(sampler.tracks().unwrap().get() == 1);
                continue;
            };
            prop_assert!(instead < sampler.len() && instead != failed);
            let is_alone = own.samples.end - own.samples.start == 1;
            prop_assert_eq!(piece(instead) == own, attempt <= 2 && !is_alone);
            // It is open now, or was until now.
            prop_assert!(piece(instead).first < position + 2 * sampler.tracks().unwrap().get());
        }
    }
}

/// How one process of a run loads.
#[derive(Debug, Clone, Copy)]
struct Run {
    ranks: usize,
    devices: usize,
    workers: usize,
    /// After how many batches it is stopped.
    stops_after: usize,
}

fn run() -> impl Strategy<Value = Run> {
    let world = prop::sample::select(vec![
        (1, 1),
        (2, 1),
        (3, 1),
        (4, 1),
        (1, 2),
        (2, 2),
        (6, 1),
        (2, 3),
        (12, 1),
    ]);
    (world, 0usize..3, 0usize..7).prop_map(|((ranks, devices), workers, stops_after)| Run {
        ranks,
        devices,
        workers,
        stops_after,
    })
}

/// A data set with blocks: each sample is its index, and a number that it draws.
struct InBlocks(Arc<Blocks>);

impl Dataset for InBlocks {
    type Sample = (i64, i64);

    fn len(&self) -> u64 {
        self.0.samples()
    }

    fn get(&self, index: u64, rng: &mut SampleRng) -> Result<(i64, i64), BoxError> {
        Ok((index as i64, rng.range(0..1_000_000i64)))
    }

    fn blocks(&self) -> Option<Arc<Blocks>> {
        Some(Arc::clone(&self.0))
    }
}

const GLOBAL: usize = 24;

type Pair = (Tensor<i64>, Tensor<i64>);

/// With the builder's own choice of order and sharding.
fn loader(blocks: &Arc<Blocks>, run: Run, rank: usize, devices: &[Device]) -> DataLoader<Pair> {
    let builder = DataLoader::builder(InBlocks(Arc::clone(blocks)))
        .global_batch_size(GLOBAL)
        .shuffle(true)
        .seed(17)
        .num_workers(run.workers)
        .world(World::new(rank, run.ranks).unwrap());
    let builder = match devices {
        [] => builder,
        devices => builder.pin_memory(devices),
    };
    builder.build().unwrap()
}

/// The rows that each lane is given of an epoch, from a state on; and the state in which all of them leave.
fn part(
    blocks: &Arc<Blocks>,
    run: Run,
    epoch: u64,
    from: &LoaderState,
) -> (Vec<Vec<(i64, i64)>>, LoaderState) {
    let (mut lanes, mut states) = (Vec::new(), BTreeSet::new());
    for rank in 0..run.ranks {
        let own: Vec<Device> = match run.devices {
            1 => Vec::new(),
            count => (0..count).map(|_| Device::cpu()).collect(),
        };
        let loader = loader(blocks, run, rank, &own);
        let mut epochs = loader.resume(epoch..epoch + 1, from).unwrap();
        let Some(epoch) = epochs.next() else {
            panic!("the epoch is not over")
        };
        let zipped = |indices: Vec<i64>, drawn: Vec<i64>| indices.into_iter().zip(drawn);
        if own.is_empty() {
            let mut rows = Vec::new();
            for batch in epoch.with_info().take(run.stops_after) {
                let ((indices, drawn), info) = batch.unwrap();
                rows.extend(zipped(indices.to_vec(), drawn.to_vec()).take(info.real_rows()));
            }
            lanes.push(rows);
        } else {
            for epoch in epoch.split(&own, 1) {
                let mut rows = Vec::new();
                for batch in epoch.with_info().take(run.stops_after) {
                    let ((indices, drawn), info) = batch.unwrap();
                    let host = |tensor: pinfeed::DeviceTensor<i64>| {
                        tensor.to_host(false).unwrap().wait().unwrap().to_vec()
                    };
                    rows.extend(zipped(host(indices), host(drawn)).take(info.real_rows()));
                }
                lanes.push(rows);
            }
        }
        states.insert(loader.state().to_string());
    }
    assert_eq!(states.len(), 1, "all ranks stand at the same place");
    (lanes, states.first().unwrap().parse().unwrap())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 25, ..ProptestConfig::default() })]

    /// A run is stopped anywhere, and goes on with other ranks and devices, any number of times: each sample comes once, with the numbers
    /// that it draws in a run of one rank; and a lane takes what its openings say.
    #[test]
    fn stopped_anywhere_and_resumed_on_other_lanes(
        sizes in prop::collection::vec(0u64..25, 24..60), runs in prop::collection::vec(run(), 1..5), number in 0u64..3
    ) {
        let blocks = Arc::new(Blocks::from_sizes(sizes).unwrap());
        let sampler = BlockSampler::new(Arc::clone(&blocks)).with_seed(17);
        let alone = Run { ranks: 1, devices: 1, workers: 0, stops_after: usize::MAX };
        let (expected, _) = part(&blocks, alone, number, &LoaderState::default());
        let (mut state, mut seen) = (LoaderState::default(), Vec::new());
        for (at, run) in runs.iter().enumerate() {
            let run = Run { stops_after: if at + 1 == runs.len() { usize::MAX } else { run.stops_after }, ..*run };
            let base = if state.epoch() == number { state.position() } else { 0 };
            let (lanes, left) = part(&blocks, run, number, &state);
            for (lane, rows) in lanes.iter().enumerate() {
                let mut needed = openings(&sampler, number, base, lane as u64, lanes.len() as u64);
                for (index, _) in rows {
                    let opening = needed.iter_mut().find(|opening| opening.samples.contains(&(*index as u64)));
                    let opening = opening.expect("the lane opens what it takes");
                    opening.uses = opening.uses.checked_sub(1).expect("no more often than it says");
                }
                if run.stops_after == usize::MAX {
                    prop_assert!(needed.iter().all(|opening| opening.uses == 0));
                }
            }
            seen.extend(lanes.concat());
            state = left;
            if state.epoch() > number {
                break;
            }
            prop_assert_eq!(state.position(), seen.len() as u64);
        }
        seen.sort_unstable();
        let mut expected = expected.concat();
        expected.sort_unstable();
        prop_assert_eq!(seen, expected);
    }
}

/// What a checkpoint of today finds tomorrow. The numbers are those of `tests/fixtures/block_order.py`, which has the order's definition
/// in another language.
#[test]
#[rustfmt::skip]
fn the_order_stays_what_it_is() {
    let of = |blocks: Blocks| BlockSampler::new(Arc::new(blocks)).with_tracks(3).unwrap().with_seed(17);
    let sizes = of(Blocks::from_sizes([5, 0, 3, 8, 2, 6]).unwrap());
    assert_eq!(order(&sizes, 0), [4, 17, 13, 3, 16, 14, 2, 20, 15, 0, 22, 8, 1, 21, 9, 7, 18, 10, 5, 19, 12, 6, 23, 11]);
    assert_eq!(order(&sizes, 1), [2, 23, 15, 1, 20, 14, 4, 21, 13, 0, 22, 9, 3, 17, 11, 5, 16, 10, 6, 19, 12, 7, 18, 8]);
    let even = of(Blocks::even(22, 5).unwrap());
    assert_eq!(order(&even, 0), [4, 14, 21, 3, 12, 7, 2, 13, 9, 0, 11, 6, 1, 19, 8, 17, 18, 5, 16, 10, 20, 15]);
    assert_eq!(order(&even, 1), [2, 19, 8, 1, 18, 9, 4, 13, 21, 0, 14, 20, 3, 12, 5, 16, 10, 6, 17, 11, 7, 15]);
    assert_eq!([sizes, even].map(|sampler| sampler.fingerprint()), [0xd006_7b23, 0x5077_dcf6]);
}

/// However they were made.
#[test]
fn equal_sizes_are_equal_blocks() {
    let even = Blocks::even(22, 5).unwrap();
    assert_eq!(even, Blocks::from_sizes([5, 5, 5, 5, 2]).unwrap());
    assert_ne!(even, Blocks::from_sizes([5, 5, 5, 2, 5]).unwrap());
    assert_ne!(even, Blocks::from_sizes([5, 5, 5, 5, 2, 0]).unwrap());
    assert_eq!(Blocks::even(0, 5).unwrap().len(), 0);
    let none = Blocks::from_sizes([]).unwrap();
    assert_eq!(
        (none.len(), none.samples(), none.range(0), none.block_of(0)),
        (0, 0, 0..0, None)
    );
    let empty = Blocks::from_sizes([0, 0, 3, 0]).unwrap();
    assert_eq!((empty.len(), empty.samples()), (4, 3));
    assert_eq!(
        (empty.block_of(0), empty.block_of(2), empty.block_of(3)),
        (Some(2), Some(2), None)
    );
    assert_eq!((empty.range(3), empty.range(9)), (3..3, 3..3));
    assert!(Blocks::even(5, 0).is_err());
    let error = Blocks::from_sizes([1, u64::MAX]).unwrap_err();
    assert!(error.to_string().contains("2^64"), "{error}");
}

/// Nothing is listed that is not asked for.
#[test]
fn an_epoch_of_a_billion_blocks_takes_no_time() {
    let blocks = Arc::new(Blocks::even(1u64 << 43, 1 << 13).unwrap());
    let sampler = BlockSampler::new(blocks).with_tracks(1 << 20).unwrap();
    let opened: Vec<Opening> = sampler
        .openings(0, 1 << 42, 3, 1 << 18)
        .unwrap()
        .take(4)
        .collect();
    assert!(opened.iter().all(|opening| opening.first % (1 << 18) == 3));
    let index = sampler.index(0, opened[0].first);
    assert!(opened[0].samples.contains(&index));
}

#[test]
fn other_orders_have_other_fingerprints() {
    let of = |sizes: &[u64], tracks, seed| {
        let blocks = Blocks::from_sizes(sizes.iter().copied()).unwrap();
        let sampler = BlockSampler::new(Arc::new(blocks))
            .with_tracks(tracks)
            .unwrap();
        sampler.with_seed(seed).fingerprint()
    };
    let prints = [
        of(&[4, 5, 6], 2, 1),
        of(&[4, 6, 5], 2, 1),
        of(&[4, 5, 6, 0], 2, 1),
        of(&[4, 5, 6], 3, 1),
        of(&[4, 5, 6], 2, 2),
        BlockSampler::in_order(Arc::new(Blocks::from_sizes([4, 5, 6]).unwrap())).fingerprint(),
    ];
    assert_eq!(prints.iter().collect::<BTreeSet<_>>().len(), prints.len());
    assert_eq!(prints[0], of(&[4, 5, 6], 2, 1));
}

#[test]
fn few_blocks_have_few_tracks() {
    let of = |blocks: u64| {
        let sampler = BlockSampler::new(Arc::new(Blocks::even(blocks * 100, 100).unwrap()));
        sampler.tracks().unwrap().get()
    };
    assert_eq!(
        [0, 1, 2, 10, 23, 24, 191, 192, 400, 3_071, 3_072].map(of),
        [1, 1, 1, 6, 12, 24, 24, 24, 48, 192, 384]
    );
}

/// The builder takes the order that suits the data set.
#[test]
fn a_data_set_of_blocks_is_read_by_the_block() {
    let blocks = Arc::new(Blocks::even(300, 10).unwrap());
    let run = Run {
        ranks: 1,
        devices: 1,
        workers: 0,
        stops_after: usize::MAX,
    };
    let shuffled = loader(&blocks, run, 0, &[]);
    let sampler = BlockSampler::new(Arc::clone(&blocks)).with_seed(17);
    let (rows, _) = part(&blocks, run, 2, &LoaderState::default());
    let indices: Vec<u64> = rows.concat().iter().map(|row| row.0 as u64).collect();
    assert_eq!(indices, order(&sampler, 2));
    // The program's own sampler stays, and a state knows one from the other.
    let own = DataLoader::builder(InBlocks(Arc::clone(&blocks)))
        .batch_size(GLOBAL)
        .seed(17)
        .sampler(RandomSampler::new(300))
        .build::<Pair>()
        .unwrap();
    assert!(matches!(
        own.resume(0..1, &shuffled.state_at(0, 24)),
        Err(Error::State { .. })
    ));
    // Without shuffling, it is the data set's own order, and ranks take turns.
    for rank in 0..2 {
        let plain = DataLoader::builder(InBlocks(Arc::clone(&blocks)))
            .batch_size(3)
            .world(World::new(rank, 2).unwrap())
            .build::<Pair>()
            .unwrap();
        let rank = rank as i64;
        let first = plain.epoch(0).next().unwrap().unwrap();
        assert_eq!(first.0.as_slice(), [rank, rank + 2, rank + 4]);
    }
}

#[test]
fn blocks_of_another_data_set_are_refused() {
    struct Wrong;
    impl Dataset for Wrong {
        type Sample = i64;

        fn len(&self) -> u64 {
            10
        }

        fn get(&self, index: u64, _: &mut SampleRng) -> Result<i64, BoxError> {
            Ok(index as i64)
        }

        fn blocks(&self) -> Option<Arc<Blocks>> {
            Blocks::even(9, 3).ok().map(Arc::new)
        }
    }
    for shuffle in [false, true] {
        let built = DataLoader::builder(Wrong)
            .shuffle(shuffle)
            .build::<Tensor<i64>>();
        let error = built.unwrap_err().to_string();
        assert!(
            error.contains("10 samples") && error.contains('9'),
            "{error}"
        );
    }
    let own = DataLoader::builder(Wrong).sampler(RandomSampler::new(10));
    own.build::<Tensor<i64>>().unwrap();
}

/// A sample that fails is replaced by one of a block that is open, on whichever rank.
#[test]
fn bad_samples_are_replaced_by_neighbours() {
    let blocks = Arc::new(Blocks::even(480, 10).unwrap());
    let sampler = BlockSampler::new(Arc::clone(&blocks))
        .with_tracks(8)
        .unwrap();
    for workers in [0, 3] {
        let mut replaced = HashMap::new();
        for rank in 0..2 {
            let samples = from_fn(480, |index, _| match index % 48 {
                7 => Err("it is broken".into()),
                _ => Ok(index as i64),
            });
            let loader = DataLoader::builder(samples)
                .batch_size(16)
                .seed(5)
                .sampler(sampler.clone())
                .num_workers(workers)
                .on_error(OnError::Replace { at_most: 100 })
                .world(World::new(rank, 2).unwrap())
                .build::<Tensor<i64>>()
                .unwrap();
            let seeded = sampler.clone().with_seed(5);
            for batch in loader.epoch(1).with_info() {
                let (batch, info) = batch.unwrap();
                for (row, index) in batch.as_slice().iter().enumerate() {
                    let position = info.position() + 2 * row as u64;
                    let sampled = seeded.index(1, position);
                    assert_eq!(info.indices()[row], *index as u64);
                    if sampled != *index as u64 {
                        assert_eq!(sampled % 48, 7);
                        replaced.insert(sampled, *index as u64);
                    }
                }
            }
        }
        assert_eq!(replaced.len(), 10);
        assert!(
            replaced
                .iter()
                .all(|(bad, other)| blocks.block_of(*bad) == blocks.block_of(*other))
        );
    }
}

/// A state that names batches which came before their turn belongs to the way in which ranks share them.
#[test]
fn a_state_with_gaps_belongs_to_a_sharding() {
    let of = |sharding: Option<Sharding>, ranks, in_order| {
        let builder = DataLoader::builder(from_fn(96, |index, _| Ok(index as i64)))
            .batch_size(4)
            .shuffle(true)
            .num_workers(1)
            .in_order(in_order)
            .world(World::new(0, ranks).unwrap());
        let builder = match sharding {
            Some(sharding) => builder.sharding(sharding),
            None => builder,
        };
        builder.build::<Tensor<i64>>().unwrap()
    };
    let state = |loader: &DataLoader<Tensor<i64>>| {
        let mut epoch = loader.epoch(0);
        epoch.next().unwrap().unwrap();
        epoch.state()
    };
    let strided = Some(Sharding::Strided { drop_last: true });
    let all = [
        None,
        Some(Sharding::Slices),
        strided,
        Some(Sharding::Interleaved),
    ];
    for (at, one) in all.into_iter().enumerate() {
        for (other_at, other) in all.into_iter().enumerate() {
            let found = of(other, 2, false)
                .resume(0..1, &state(&of(one, 2, false)))
                .map(drop);
            match at.max(1) == other_at.max(1) {
                true => found.unwrap(),
                false => {
                    let error = found.unwrap_err().to_string();
                    assert!(error.contains("Builder::sharding"), "{error}");
                }
            }
            // In order, all ranks have had the same samples; and one rank has all batches.
            of(other, 2, true)
                .resume(0..1, &state(&of(one, 2, true)))
                .map(drop)
                .unwrap();
            of(other, 1, false)
                .resume(0..1, &state(&of(one, 1, false)))
                .map(drop)
                .unwrap();
        }
    }
}

/// What a `Box` or an `Arc` holds is asked, and a sampler without blocks knows none.
#[test]
fn holders_pass_on_what_a_sampler_knows() {
    let sampler = BlockSampler::new(Arc::new(Blocks::even(100, 5).unwrap()))
        .with_tracks(4)
        .unwrap();
    let boxed: Box<dyn Sampler> = Box::new(sampler.clone());
    let shared: Arc<dyn Sampler> = Arc::new(sampler.clone());
    for other in [&boxed as &dyn Sampler, &shared] {
        assert_eq!(other.tracks(), sampler.tracks());
        assert_eq!(other.instead(0, 7, 1), sampler.instead(0, 7, 1));
        let openings = other.openings(0, 9, 1, 2).unwrap();
        assert!(openings.eq(sampler.openings(0, 9, 1, 2).unwrap()));
    }
    let random = RandomSampler::new(100);
    assert!(
        random.tracks().is_none()
            && random.openings(0, 0, 0, 1).is_none()
            && random.instead(0, 0, 1).is_none()
    );
}

/// It outlives its sampler, and may go to another thread.
#[test]
fn openings_own_what_they_need() {
    let sampler = BlockSampler::new(Arc::new(Blocks::even(100, 5).unwrap()))
        .with_tracks(4)
        .unwrap();
    let expected = openings(&sampler, 0, 0, 0, 1);
    let own: Openings = sampler.openings(0, 0, 0, 1).unwrap();
    drop(sampler);
    let found = std::thread::Builder::new()
        .name("other".to_owned())
        .spawn(move || own.collect::<Vec<_>>())
        .unwrap()
        .join()
        .unwrap();
    assert_eq!(found, expected);
}

/// Several threads ask for several epochs at once.
#[test]
fn threads_find_the_same_order() {
    let sampler = BlockSampler::new(Arc::new(Blocks::even(3_000, 7).unwrap()))
        .with_tracks(5)
        .unwrap();
    let expected: Vec<Vec<u64>> = (0..4).map(|epoch| order(&sampler, epoch)).collect();
    let fresh = BlockSampler::new(Arc::new(Blocks::even(3_000, 7).unwrap()))
        .with_tracks(5)
        .unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4usize {
            let (fresh, expected) = (&fresh, &expected);
            scope.spawn(move || {
                for at in 0..4 {
                    let epoch = (thread + at) % 4;
                    assert_eq!(order(fresh, epoch as u64), expected[epoch]);
                }
            });
        }
    });
}

/// `LastBatch` means what it means elsewhere: as many rows as there are samples, filler, or none.
#[test]
fn the_last_batch_of_interleaved_ranks() {
    let of = |rank, last| -> Vec<Vec<i64>> {
        let loader = DataLoader::builder(from_fn(10, |index, _| Ok(index as i64)))
            .batch_size(3)
            .world(World::new(rank, 2).unwrap())
            .sharding(Sharding::Interleaved)
            .last_batch(last)
            .build()
            .unwrap();
        let batches = loader.epoch(0);
        batches
            .map(|batch: pinfeed::Result<Tensor<i64>>| batch.unwrap().to_vec())
            .collect()
    };
    assert_eq!(of(0, LastBatch::Drop), [[0, 2, 4]]);
    assert_eq!(of(1, LastBatch::Drop), [[1, 3, 5]]);
    assert_eq!(of(0, LastBatch::Partial), [&[0, 2, 4][..], &[6, 8]]);
    assert_eq!(of(1, LastBatch::Partial), [&[1, 3, 5][..], &[7, 9]]);
    assert_eq!(of(0, LastBatch::Fill), [[0, 2, 4], [6, 8, 0]]);
    assert_eq!(of(1, LastBatch::Fill), [[1, 3, 5], [7, 9, 1]]);
}
