//! What holds for every sampler and batch sampler: an epoch has the samples that it promises; neither workers nor ranks change which ones,
//! in which order, or what they draw; and a run that goes on from any position, twice, sees what is left.

use std::sync::Arc;

use proptest::prelude::*;

use pinfeed::loader::{LastBatch, LoaderState, World};
use pinfeed::rng::RngKey;
use pinfeed::sampler::{
    BatchSampler, FixedBatchSampler, GroupedBatchSampler, MixtureSampler, RandomSampler, Sampler,
    SequentialSampler, SubsetRandomSampler, TokenBatchSampler, WeightedRandomSampler,
};
use pinfeed::{DataLoader, SampleRng, Tensor, from_fn};

/// Of what a sampler is made.
#[derive(Debug, Clone, Copy)]
struct Made {
    /// How many samples the data set has.
    len: u64,
    /// How many an epoch has, if that is open.
    num: u64,
    seed: u64,
    /// Any of several options.
    option: u64,
}

impl Made {
    /// A number for each sample, below `end`.
    fn number(self, index: u64, end: u64) -> u64 {
        SampleRng::for_sample(RngKey {
            seed: self.seed,
            epoch: 0,
            position: index,
        })
        .range(0..end)
    }

    fn weight(self, index: u64) -> f64 {
        self.number(index, 4) as f64 / 3.0
    }

    /// One weight at least is not 0.
    fn weights(self) -> Vec<f64> {
        let mut weights: Vec<f64> = (0..self.len).map(|index| self.weight(index)).collect();
        weights[0] = 1.5;
        weights
    }
}

fn made() -> impl Strategy<Value = Made> {
    (1u64..25, 0u64..37, any::<u64>(), 0u64..12).prop_map(|(len, num, seed, option)| Made {
        len,
        num,
        seed,
        option,
    })
}

/// Which samples an epoch has.
#[derive(Clone)]
enum Order {
    Samples(Arc<dyn Sampler>),
    Lists(Arc<dyn BatchSampler>),
}

/// Whether these batches of an epoch are what the sampler promises.
type Promise = Box<dyn Fn(&[Vec<u64>]) -> bool>;

/// A sampler, and what it promises.
struct Case {
    made: Made,
    order: Order,
    promise: Promise,
}

fn samples(made: Made, order: impl Sampler, promise: impl Fn(&[u64]) -> bool + 'static) -> Case {
    Case {
        made,
        order: Order::Samples(Arc::new(order)),
        promise: Box::new(move |batches| promise(&batches.concat())),
    }
}

fn lists(
    made: Made,
    order: impl BatchSampler,
    promise: impl Fn(&[Vec<u64>]) -> bool + 'static,
) -> Case {
    Case {
        made,
        order: Order::Lists(Arc::new(order)),
        promise: Box::new(promise),
    }
}

fn sorted(indices: &[u64]) -> Vec<u64> {
    let mut indices = indices.to_vec();
    indices.sort_unstable();
    indices
}

fn is_all_once(indices: &[u64], len: u64) -> bool {
    sorted(indices).into_iter().eq(0..len)
}

fn are_different(indices: &[u64]) -> bool {
    sorted(indices).windows(2).all(|pair| pair[0] < pair[1])
}

fn sequential(made: Made) -> Case {
    samples(made, SequentialSampler::new(made.len), move |order| {
        order.iter().copied().eq(0..made.len)
    })
}

fn random(made: Made) -> Case {
    samples(
        made,
        RandomSampler::with_seed(made.len, made.seed),
        move |order| is_all_once(order, made.len),
    )
}

fn random_of_another_length(made: Made) -> Case {
    let sampler = RandomSampler::with_seed(made.len, made.seed).with_num_samples(made.num);
    samples(made, sampler, move |order| {
        order.len() as u64 == made.num
            && order
                .chunks(made.len as usize)
                .all(|pass| are_different(pass) && pass.iter().all(|index| *index < made.len))
    })
}

fn random_with_replacement(made: Made) -> Case {
    let sampler = RandomSampler::with_seed(made.len, made.seed);
    let sampler = sampler.with_replacement().with_num_samples(made.num);
    samples(made, sampler, move |order| {
        order.len() as u64 == made.num && order.iter().all(|index| *index < made.len)
    })
}

fn subset(made: Made) -> Case {
    let listed: Vec<u64> = (0..made.num).map(|at| made.number(at, made.len)).collect();
    let sampler = SubsetRandomSampler::new(listed.clone(), made.seed).unwrap();
    samples(made, sampler, move |order| sorted(order) == sorted(&listed))
}

fn weighted(made: Made) -> Case {
    let weights = made.weights();
    let sampler = WeightedRandomSampler::new(&weights, made.num, made.seed).unwrap();
    samples(made, sampler, move |order| {
        order.len() as u64 == made.num && order.iter().all(|index| weights[*index as usize] > 0.0)
    })
}

fn weighted_without_replacement(made: Made) -> Case {
    let weights = made.weights();
    let positive = weights.iter().filter(|weight| **weight > 0.0).count() as u64;
    let num = made.num.min(positive);
    let sampler = WeightedRandomSampler::new(&weights, num, made.seed).unwrap();
    samples(made, sampler.without_replacement().unwrap(), move |order| {
        order.len() as u64 == num
            && are_different(order)
            && order.iter().all(|index| weights[*index as usize] > 0.0)
    })
}

/// Two data sets: of each, no sample comes twice in a pass, and its share is what its weight says.
fn mixture(made: Made) -> Case {
    let (first, second) = (made.len.div_ceil(2), made.len / 2);
    let weights = [2.0, if second > 0 { 1.0 } else { 0.0 }];
    let sampler = MixtureSampler::new(&[first, second], &weights, made.seed).unwrap();
    samples(made, sampler.with_num_samples(made.num), move |order| {
        let share = if second > 0 { 2.0 / 3.0 } else { 1.0 };
        let own = order.iter().filter(|index| **index < first).count() as f64;
        order.len() as u64 == made.num
            && order.iter().all(|index| *index < made.len)
            && (own - share * made.num as f64).abs() < 3.4
    })
}

fn listed(made: Made) -> Case {
    let order: Vec<u64> = (0..made.num).map(|at| made.number(at, made.len)).collect();
    samples(made, order.clone(), move |found| found == order)
}

fn grouped(made: Made) -> Case {
    let group = move |index: u64| made.number(index, 3);
    let (most, drops) = (1 + made.num as usize % 7, made.option.is_multiple_of(3));
    let sampler = GroupedBatchSampler::new((0..made.len).map(group), most, made.seed).unwrap();
    let sampler = sampler
        .with_shuffle(made.option % 2 == 1)
        .with_drop_last(drops);
    lists(made, sampler, move |batches| {
        let all = batches.concat();
        let is_one_group = |batch: &Vec<u64>| {
            batch.iter().all(|index| group(*index) == group(batch[0]))
                && (batch.len() == most || !drops && batch.len() < most)
        };
        batches.iter().all(is_one_group)
            && are_different(&all)
            && (drops || is_all_once(&all, made.len))
    })
}

fn token(made: Made) -> Case {
    let length = move |index: u64| made.number(index, 9) as u32;
    let sampler = TokenBatchSampler::new((0..made.len).map(length), 24, made.seed).unwrap();
    let sampler = sampler.with_shuffle(made.option % 2 == 1);
    lists(made, sampler, move |batches| {
        let is_within = |batch: &Vec<u64>| {
            let longest = batch.iter().map(|index| length(*index)).max();
            batch.len() as u64 * u64::from(longest.unwrap()) <= 24
        };
        batches.iter().all(is_within) && is_all_once(&batches.concat(), made.len)
    })
}

fn fixed(made: Made) -> Case {
    let inner = RandomSampler::with_seed(made.len, made.seed).with_num_samples(made.num);
    let size = 1 + made.option as usize;
    let sampler = FixedBatchSampler::new(inner, size).unwrap();
    lists(made, sampler, move |batches| {
        let mut order = vec![0; made.num as usize];
        inner.indices(EPOCH, 0, &mut order);
        batches.iter().eq(order.chunks(size))
    })
}

fn listed_batches(made: Made) -> Case {
    let list = |list| {
        let count = 1 + made.number(list, 5);
        let rows = (0..count).map(|row| made.number(100 + 10 * list + row, made.len));
        rows.collect::<Vec<u64>>()
    };
    let all: Vec<Vec<u64>> = (0..made.num / 3).map(list).collect();
    lists(made, all.clone(), move |batches| batches == all)
}

const EPOCH: u64 = 1;
/// Ranks share it, if batches are not listed: it can be divided among one, two or three.
const GLOBAL_BATCH: usize = 6;

type Loader = DataLoader<(Tensor<i64>, Tensor<i64>)>;
/// A row: its sample, and what that drew.
type Row = (u64, i64);

/// How a run is loaded.
#[derive(Debug, Clone, Copy)]
struct Run {
    ranks: usize,
    workers: usize,
}

fn loader(case: &Case, run: Run, rank: usize) -> Loader {
    let data = from_fn(case.made.len, |index, rng: &mut SampleRng| {
        Ok((index as i64, rng.range(0..1_000_000i64)))
    });
    let last = match case.made.option % 4 {
        0 => LastBatch::Fill,
        _ => LastBatch::Partial,
    };
    let builder = DataLoader::builder(data)
        .seed(case.made.seed)
        .num_workers(run.workers)
        .last_batch(last)
        .world(World::new(rank, run.ranks).unwrap());
    match &case.order {
        Order::Samples(sampler) => builder
            .global_batch_size(GLOBAL_BATCH)
            .sampler(Arc::clone(sampler))
            .build(),
        Order::Lists(lists) => builder.batch_sampler(Arc::clone(lists)).build(),
    }
    .unwrap()
}

/// The real rows of what all ranks see from a state on, in the order of steps and ranks: batch by batch of `epochs`, until they have had
/// `most` steps. And where they then stand, which is the same for all.
fn seen(
    case: &Case,
    run: Run,
    epochs: std::ops::Range<u64>,
    (state, most): (&LoaderState, usize),
) -> (Vec<Vec<Row>>, LoaderState) {
    let mut states = Vec::new();
    let mut ranks: Vec<Vec<Vec<Row>>> = Vec::new();
    for rank in 0..run.ranks {
        let loader = loader(case, run, rank);
        let mut steps = Vec::new();
        'run: for epoch in loader.resume(epochs.clone(), state).unwrap() {
            for batch in epoch.with_info() {
                let ((indices, drawn), info) = batch.unwrap();
                assert!(
                    indices
                        .as_slice()
                        .iter()
                        .map(|index| *index as u64)
                        .eq(info.indices())
                );
                let rows = indices.as_slice().iter().zip(drawn.as_slice());
                let rows = rows.map(|(index, drawn)| (*index as u64, *drawn));
                steps.push(rows.take(info.real_rows()).collect());
                if steps.len() == most {
                    break 'run;
                }
            }
        }
        states.push(loader.state());
        ranks.push(steps);
    }
    assert!(states.iter().all(|state| *state == states[0]), "{states:?}");
    let steps = ranks[0].len();
    assert!(ranks.iter().all(|rank| rank.len() == steps), "{run:?}");
    let batches = (0..steps).flat_map(|step| ranks.iter().map(move |rank| rank[step].clone()));
    (batches.collect(), states[0])
}

/// Ranks and workers. (Most without: threads take longer to start than so few samples to load.)
fn run(number: usize) -> Run {
    Run {
        ranks: 1 + number % 3,
        workers: [0, 0, 1, 0, 0, 0, 3, 0][number % 8],
    }
}

fn check(case: &Case) {
    let alone = Run {
        ranks: 1,
        workers: 0,
    };
    let begins = LoaderState::default();
    let of_epoch = |epoch, run| {
        let begins = loader(case, run, 0).state_at(epoch, 0);
        seen(case, run, epoch..epoch + 1, (&begins, usize::MAX)).0
    };
    let batches = of_epoch(EPOCH, alone);
    let indices: Vec<Vec<u64>> = batches
        .iter()
        .map(|batch| batch.iter().map(|row| row.0).collect())
        .collect();
    assert!((case.promise)(&indices), "{indices:?}");
    let (whole, next) = (batches.concat(), of_epoch(EPOCH + 1, alone).concat());

    // Ranks and workers.
    for ranks in 1..=3 {
        for workers in [0, 1, 3] {
            let run = Run { ranks, workers };
            assert_eq!(of_epoch(EPOCH, run).concat(), whole, "{run:?}");
        }
    }
    // Two epochs, as one run.
    let (two, _) = seen(case, run(2), 0..EPOCH + 1, (&begins, usize::MAX));
    let first = of_epoch(0, alone).concat();
    assert_eq!(two.concat(), [&first[..], &whole].concat());

    // Every position at which a run may stand: any, or where a list begins.
    let positions: Vec<usize> = match &case.order {
        Order::Samples(_) => (0..whole.len()).collect(),
        Order::Lists(_) => batches
            .iter()
            .scan(0, |next, batch| {
                *next += batch.len();
                Some(*next - batch.len())
            })
            .collect(),
    };
    let any = loader(case, alone, 0);
    for (number, position) in positions.into_iter().enumerate() {
        let [once, twice] = [run(number), run(number / 2 + 1)];
        let state = any.state_at(EPOCH, position as u64);
        // To the end, and beyond.
        let (rest, _) = seen(case, once, EPOCH..EPOCH + 2, (&state, usize::MAX));
        let expected = [&whole[position..], &next].concat();
        assert_eq!(rest.concat(), expected, "from {position} on, {once:?}");
        // For a step or two, and then on other ranks from there.
        let (some, state) = seen(case, once, EPOCH..EPOCH + 2, (&state, 1 + number / 3 % 2));
        let saved: LoaderState = state.to_string().parse().unwrap();
        let (rest, _) = seen(case, twice, EPOCH..EPOCH + 2, (&saved, usize::MAX));
        assert_eq!(
            [some, rest].concat().concat(),
            expected,
            "from {position} and {saved} on, {once:?}, {twice:?}"
        );
    }
}

macro_rules! properties {
    ($($sampler:ident),*) => {
        mod keeps_its_promises {
            use super::*;

            proptest! {
                #![proptest_config(ProptestConfig::with_cases(4))]
                $(
                    #[test]
                    fn $sampler(made in made()) {
                        check(&super::$sampler(made));
                    }
                )*
            }
        }
    };
}

properties!(
    sequential,
    random,
    random_of_another_length,
    random_with_replacement,
    subset,
    weighted,
    weighted_without_replacement,
    mixture,
    listed,
    grouped,
    token,
    fixed,
    listed_batches
);
