//! What each holds alone holds together: bad samples, ranks, replicas, padded rows, and runs that stop and go on.

use proptest::prelude::*;

use pinfeed::loader::{LastBatch, LoaderState, OnError, World};
use pinfeed::padded::{Padded, PaddedTensor};
use pinfeed::rng::RngKey;
use pinfeed::sampler::WeightedRandomSampler;
use pinfeed::{DataLoader, Error, SampleRng, Tensor, from_fn};

type Batch = (Tensor<i64>, Tensor<i64>, PaddedTensor<i64>);
/// A row: its sample, and what that drew.
type Row = (u64, i64);

#[derive(Debug, Clone, Copy)]
struct Job {
    samples: u64,
    on_error: OnError,
    last: LastBatch,
    /// Drawn by weight, instead of shuffled.
    is_weighted: bool,
    seed: u64,
}

/// One of several runs, each of which goes on where the one before stopped.
#[derive(Debug, Clone, Copy)]
struct Run {
    ranks: usize,
    /// How many see the same batches as each of them.
    replicas: usize,
    workers: usize,
    most: usize,
}

const GLOBAL_BATCH: usize = 6;
const EPOCH: u64 = 3;

fn is_bad(job: Job, index: u64) -> bool {
    job.on_error != OnError::Fail
        && SampleRng::for_sample(RngKey {
            seed: job.seed,
            epoch: 9,
            position: index,
        })
        .below(5)
            == 0
}

/// As long as it is, and all of one number.
fn padded(index: u64) -> Vec<i64> {
    vec![index as i64; 1 + (index * 7 % 5) as usize]
}

fn loader(job: Job, run: Run, rank: usize) -> DataLoader<Batch> {
    let samples = from_fn(job.samples, move |index, rng: &mut SampleRng| {
        if is_bad(job, index) {
            return Err("it is bad".into());
        }
        let drawn = rng.range(0..1_000_000i64);
        Ok((
            index as i64,
            drawn,
            Padded::from(padded(index)).with_value(-1),
        ))
    });
    let world = World::new(rank, run.ranks * run.replicas).unwrap();
    let builder = DataLoader::builder(samples)
        .global_batch_size(GLOBAL_BATCH)
        .seed(job.seed)
        .num_workers(run.workers)
        .last_batch(job.last)
        .on_error(job.on_error)
        .world(world.replicated(run.replicas).unwrap());
    match job.is_weighted {
        false => builder.shuffle(true).build().unwrap(),
        true => {
            let weights: Vec<f64> = (0..job.samples).map(|index| 1.0 + index as f64).collect();
            let sampler = WeightedRandomSampler::new(&weights, 2 * job.samples, job.seed);
            builder.sampler(sampler.unwrap()).build().unwrap()
        }
    }
}

/// The real rows of a batch, every field of which is looked at. A batch of which all samples were left out has none.
fn rows(batch: pinfeed::Result<(Batch, pinfeed::loader::BatchInfo)>) -> Vec<Row> {
    let ((indices, drawn, values), info) = match batch {
        Err(Error::Sample { .. }) => return Vec::new(),
        batch => batch.unwrap(),
    };
    let found = indices.as_slice().iter().map(|index| *index as u64);
    assert!(found.eq(info.indices()), "{info:?}");
    let longest = info.indices().into_iter().map(|index| padded(index).len());
    assert_eq!(values.padded_len(), longest.max().unwrap());
    for (row, index) in values.rows().zip(info.indices()) {
        assert_eq!(row, padded(index), "{info:?}");
    }
    let rows = info.indices().into_iter().zip(drawn.to_vec());
    rows.take(info.real_rows()).collect()
}

/// What all ranks see from a state on, in the global order, and where they stand then.
fn seen(job: Job, run: Run, state: &LoaderState) -> (Vec<Row>, LoaderState) {
    let mut ranks: Vec<Vec<Vec<Row>>> = Vec::new();
    let mut states = Vec::new();
    for rank in 0..run.ranks * run.replicas {
        let loader = loader(job, run, rank);
        let epoch = loader.resume(EPOCH..EPOCH + 1, state).unwrap().next();
        let batches = epoch.unwrap().with_info().take(run.most);
        ranks.push(batches.map(rows).collect());
        states.push(loader.state());
    }
    assert!(states.iter().all(|state| *state == states[0]), "{states:?}");
    for same in ranks.chunks(run.replicas) {
        assert!(same.iter().all(|rank| *rank == same[0]), "{run:?}");
    }
    let ranks: Vec<_> = ranks.into_iter().step_by(run.replicas).collect();
    let steps = ranks[0].len();
    assert!(ranks.iter().all(|rank| rank.len() == steps), "{run:?}");
    let global = (0..steps).flat_map(|step| ranks.iter().flat_map(move |rank| rank[step].clone()));
    (global.collect(), states[0])
}

fn job() -> impl Strategy<Value = Job> {
    use {LastBatch::*, OnError::*};
    let at_most = 1_000;
    (
        8u64..50,
        prop::sample::select(vec![Fail, Replace { at_most }, Skip { at_most }]),
        prop::sample::select(vec![Partial, Fill]),
        any::<bool>(),
        any::<u64>(),
    )
        .prop_map(|(samples, on_error, last, is_weighted, seed)| Job {
            samples,
            on_error,
            last,
            is_weighted,
            seed,
        })
}

fn run() -> impl Strategy<Value = Run> {
    (1usize..4, 1usize..3, 0usize..3, 1usize..4).prop_map(|(ranks, replicas, workers, most)| Run {
        ranks,
        replicas,
        workers,
        most,
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn bad_samples_ranks_and_resumed_runs(job in job(), runs in prop::collection::vec(run(), 1..4)) {
        let alone = Run { ranks: 1, replicas: 1, workers: 0, most: usize::MAX };
        let begins = loader(job, alone, 0).state_at(EPOCH, 0);
        let (whole, end) = seen(job, alone, &begins);
        prop_assert!(whole.iter().all(|row| !is_bad(job, row.0)));
        if !matches!(job.on_error, OnError::Skip { .. }) {
            let positions = if job.is_weighted { 2 * job.samples } else { job.samples };
            prop_assert_eq!(whole.len() as u64, positions);
        }

        let (mut state, mut all) = (begins, Vec::new());
        for (number, run) in runs.iter().enumerate() {
            if state.epoch() > EPOCH {
                break;
            }
            let most = if number + 1 == runs.len() { usize::MAX } else { run.most };
            let (some, left) = seen(job, Run { most, ..*run }, &state);
            all.extend(some);
            state = left.to_string().parse().unwrap();
        }
        prop_assert_eq!(all, whole);
        prop_assert_eq!((state.epoch(), state.position()), (end.epoch(), end.position()));
    }
}
