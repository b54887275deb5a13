//! Data sets made of others: what they hold, what they pass on, and what they refuse.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use proptest::prelude::*;

use pinfeed::dataset::{ConcatDataset, Pass, Subset, VecDataset, random_split};
use pinfeed::iterable::{self, IterableDataset};
use pinfeed::loader::World;
use pinfeed::rng::RngKey;
use pinfeed::sampler::{
    MixtureSampler, RandomSampler, Sampler, SequentialSampler, WeightedRandomSampler,
};
use pinfeed::{BoxError, DataLoader, Dataset, Error, SampleRng, Tensor, TensorDataset, from_fn};

/// A data set of numbers that remembers what it was told, and may change its length.
#[derive(Debug)]
struct Spy {
    first: i64,
    len: AtomicU64,
    lookahead: usize,
    bytes: Option<usize>,
    told: Mutex<Vec<Vec<u64>>>,
}

impl Spy {
    fn new(first: i64, len: u64, lookahead: usize) -> Arc<Spy> {
        Arc::new(Spy {
            first,
            len: AtomicU64::new(len),
            lookahead,
            bytes: Some(8),
            told: Mutex::default(),
        })
    }

    fn told(&self) -> Vec<Vec<u64>> {
        std::mem::take(&mut self.told.lock().unwrap())
    }

    fn set_len(&self, len: u64) {
        self.len.store(len, Ordering::SeqCst);
    }
}

impl Dataset for Spy {
    type Sample = i64;

    fn len(&self) -> u64 {
        self.len.load(Ordering::SeqCst)
    }

    fn get(&self, index: u64, _: &mut SampleRng) -> Result<i64, BoxError> {
        assert!(index < self.len(), "asked for what it does not have");
        Ok(self.first + index as i64)
    }

    fn describe(&self, index: u64) -> Option<String> {
        assert!(index < self.len(), "asked for what it does not have");
        Some(format!("{}.txt", self.first + index as i64))
    }

    fn lookahead(&self) -> usize {
        self.lookahead
    }

    fn will_need(&self, indices: &[u64], _: Pass) {
        assert!(self.lookahead > 0, "it did not ask");
        assert!(indices.iter().all(|index| *index < self.len()));
        self.told.lock().unwrap().push(indices.to_vec());
    }

    fn sample_bytes(&self) -> Option<usize> {
        self.bytes
    }
}

fn get<D: Dataset>(dataset: &D, index: u64) -> Result<D::Sample, BoxError> {
    dataset.get(
        index,
        &mut SampleRng::for_sample(RngKey {
            seed: 0,
            epoch: 0,
            position: 0,
        }),
    )
}

fn all<D: Dataset>(dataset: &D) -> Vec<D::Sample> {
    (0..dataset.len())
        .map(|index| get(dataset, index).unwrap())
        .collect()
}

fn reason<T: std::fmt::Debug>(refused: Result<T, Error>) -> String {
    match refused {
        Err(Error::InvalidOption { option, reason }) => format!("{option}: {reason}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_subset_is_its_indices() {
    let spy = Spy::new(100, 10, 4);
    let subset = Subset::new(Arc::clone(&spy), [7, 2, 2]).unwrap();
    assert_eq!(all(&subset), [107, 102, 102]);
    assert_eq!(subset.describe(0), Some("107.txt".into()));
    assert_eq!((subset.lookahead(), subset.sample_bytes()), (4, Some(8)));
    subset.will_need(&[0, 2], Pass::new(1, 0));
    assert_eq!(spy.told(), [[7, 2]]);

    let empty = Subset::new(Spy::new(0, 0, 0), []).unwrap();
    assert_eq!((empty.len(), empty.is_empty()), (0, true));
    empty.will_need(&[], Pass::new(1, 0));
    let refused = Subset::new(spy, [3, 9, 10, 11]);
    let expected =
        "Subset::new: index 10 is not below 10, the number of samples (it is the list's number 2)";
    assert_eq!(reason(refused), expected);
}

#[test]
fn concatenated_data_sets_follow_each_other() {
    let spies = [
        Spy::new(0, 3, 2),
        Spy::new(10, 0, 0),
        Spy::new(20, 2, 5),
        Spy::new(30, 1, 0),
    ];
    let all_of = ConcatDataset::new(spies.to_vec()).unwrap();
    assert_eq!(all(&all_of), [0, 1, 2, 20, 21, 30]);
    assert_eq!(all_of.lengths(), [3, 0, 2, 1]);
    assert_eq!(all_of.describe(4), Some("21.txt".into()));
    assert_eq!((all_of.lookahead(), all_of.sample_bytes()), (5, Some(8)));
    // Each is told once, of its own, and only if it wants to know.
    all_of.will_need(&[4, 0, 5, 3, 2], Pass::new(1, 0));
    assert_eq!(spies[0].told(), [[0, 2]]);
    assert_eq!(spies[2].told(), [[1, 0]]);
    assert!(spies[1].told().is_empty() && spies[3].told().is_empty());

    assert_eq!(
        reason(ConcatDataset::<Spy>::new(Vec::new())),
        "ConcatDataset::new: there are no data sets"
    );
    let long = |len| from_fn(len, |_, _| Ok(0i64));
    let refused = ConcatDataset::new(vec![
        Box::new(long(u64::MAX)) as Box<dyn Dataset<Sample = i64>>,
        Box::new(long(1)),
    ]);
    assert!(reason(refused).contains("more than 2⁶⁴ samples"));
    let empty = ConcatDataset::new(vec![Spy::new(0, 0, 0)]).unwrap();
    assert!(empty.is_empty() && get(&empty, 0).is_err());
}

#[test]
fn samples_of_one_size_are_of_one_size_together() {
    let rows = |len, width| TensorDataset::new(Tensor::<f32>::zeros(&[len, width])).unwrap();
    let sized =
        |sets: Vec<TensorDataset<Tensor<f32>>>| ConcatDataset::new(sets).unwrap().sample_bytes();
    assert_eq!(sized(vec![rows(3, 4), rows(0, 9), rows(2, 4)]), Some(16));
    assert_eq!(sized(vec![rows(3, 4), rows(2, 5)]), None);
    assert_eq!(sized(vec![rows(0, 4)]), None);
    assert_eq!(rows(3, 4).zip(rows(3, 2)).unwrap().sample_bytes(), Some(24));
    assert_eq!(rows(3, 4).zip(vec![0i64; 3]).unwrap().sample_bytes(), None);
}

#[test]
fn zipped_data_sets_are_side_by_side() {
    let (one, other) = (Spy::new(0, 3, 2), Spy::new(10, 3, 0));
    let pairs = Arc::clone(&one).zip(Arc::clone(&other)).unwrap();
    assert_eq!(all(&pairs), [(0, 10), (1, 11), (2, 12)]);
    assert_eq!(pairs.describe(1), Some("1.txt, 11.txt".into()));
    assert_eq!((pairs.lookahead(), pairs.sample_bytes()), (2, Some(16)));
    pairs.will_need(&[2, 0], Pass::new(1, 0));
    assert_eq!((one.told(), other.told()), (vec![vec![2, 0]], vec![]));
    // Names that only one has, or both the same.
    let named = Arc::clone(&one).zip(vec![0i64; 3]).unwrap();
    assert_eq!(named.describe(1), Some("1.txt".into()));
    assert_eq!(
        Arc::clone(&one).zip(one).unwrap().describe(1),
        Some("1.txt".into())
    );

    let refused = VecDataset::new(vec![0u8; 3]).zip(vec![0u8; 4]);
    assert!(reason(refused).starts_with("Dataset::zip: the data sets have 3 and 4 samples"));
    assert!(
        VecDataset::new(vec![0u8; 0])
            .zip(vec![0u8; 0])
            .unwrap()
            .is_empty()
    );
}

/// More indices at once than a worker asks for: none is lost, whatever the pieces they are passed on in.
#[test]
fn many_indices_are_all_passed_on() {
    let (one, other) = (Spy::new(0, 500, 3), Spy::new(500, 500, 3));
    let both = ConcatDataset::new(vec![Arc::clone(&one), Arc::clone(&other)]).unwrap();
    let subset = Subset::new(both, (0..1_000).rev()).unwrap();
    let indices: Vec<u64> = (0..1_000).map(|at| at * 7 % 1_000).collect();
    subset.will_need(&indices, Pass::new(1, 0));
    for (spy, first) in [(&one, 0), (&other, 500)] {
        let told = spy.told().concat();
        let mut expected: Vec<u64> = indices.iter().map(|index| 999 - index).collect();
        expected.retain(|index| (first..first + 500).contains(index));
        expected.iter_mut().for_each(|index| *index -= first);
        assert_eq!(told, expected);
    }
}

/// A data set that became shorter: what is gone is an error, and nobody asks for it.
#[test]
fn what_is_gone_is_an_error_of_its_sample() {
    let spy = Spy::new(0, 10, 3);
    let shared = || Arc::clone(&spy);
    let subset = Subset::new(shared(), 0..10).unwrap();
    let concat = ConcatDataset::new(vec![shared(), shared()]).unwrap();
    let pairs = shared().zip(vec![0i64; 10]).unwrap();
    spy.set_len(5);
    for (dataset, gone, still) in [
        (&subset as &dyn Dataset<Sample = i64>, 7, 4),
        (&concat, 17, 14),
        (&concat, 7, 4),
    ] {
        let mut rng = SampleRng::for_sample(RngKey {
            seed: 0,
            epoch: 0,
            position: 0,
        });
        let error = dataset.get(gone, &mut rng).unwrap_err().to_string();
        assert_eq!(error, "the data set that it is from has only 5 samples now");
        assert_eq!(dataset.get(still, &mut rng).unwrap(), 4);
        assert_eq!(dataset.describe(gone), None);
        dataset.will_need(&[gone, still], Pass::new(1, 0));
        assert_eq!(spy.told().concat(), [4]);
    }
    assert_eq!(pairs.len(), 5);
    assert!(get(&pairs, 7).is_err());
    // In a loader: the batch is an error, and the epoch goes on.
    let loader = DataLoader::builder(subset).batch_size(2).build().unwrap();
    let batches: Vec<_> = loader.epoch(0).collect();
    assert_eq!(batches.iter().filter(|batch| batch.is_ok()).count(), 2);
    // Longer again, and more than before: what is new does not show.
    spy.set_len(20);
    assert_eq!((concat.len(), get(&concat, 10).unwrap()), (20, 0));
}

/// Whatever is registered says so, through any adapter.
#[test]
fn registered_memory_shows_through() {
    struct Registered;
    impl Dataset for Registered {
        type Sample = i64;

        fn len(&self) -> u64 {
            2
        }

        fn get(&self, _: u64, _: &mut SampleRng) -> Result<i64, BoxError> {
            Ok(0)
        }

        fn is_registered(&self) -> bool {
            true
        }
    }
    assert!(Subset::new(Registered, [0]).unwrap().is_registered());
    assert!(Registered.zip(vec![0i64; 2]).unwrap().is_registered());
    assert!(
        VecDataset::new(vec![0i64; 2])
            .zip(Registered)
            .unwrap()
            .is_registered()
    );
    let mixed = vec![
        Box::new(VecDataset::new(vec![0i64])) as Box<dyn Dataset<Sample = i64>>,
        Box::new(Registered),
    ];
    assert!(ConcatDataset::new(mixed).unwrap().is_registered());
    assert!(!Subset::new(vec![0i64], [0]).unwrap().is_registered());
}

/// The parts' lengths, from the documented behaviour of `torch.utils.data.random_split` (PyTorch 2):
/// `[len(part) for part in random_split(range(n), sizes)]`.
#[test]
fn parts_are_as_long_as_pytorchs() {
    let fractions: [(u64, &[f64], &[u64]); 8] = [
        (100, &[0.8, 0.2], &[80, 20]),
        (10, &[0.3, 0.3, 0.4], &[3, 3, 4]),
        (103, &[0.8, 0.1, 0.1], &[83, 10, 10]),
        (7, &[0.5, 0.5], &[4, 3]),
        (5, &[0.25, 0.25, 0.25, 0.25], &[2, 1, 1, 1]),
        (2, &[0.1, 0.9], &[1, 1]),
        (30, &[1.0 / 3.0, 1.0 / 3.0, 1.0 / 3.0], &[10, 10, 10]),
        (0, &[0.5, 0.5], &[0, 0]),
    ];
    for (len, sizes, expected) in fractions {
        let parts = random_split(vec![0u8; len as usize], sizes, 7).unwrap();
        let lengths: Vec<u64> = parts.iter().map(|part| part.len()).collect();
        assert_eq!(lengths, expected, "{len} in {sizes:?}");
    }
    let parts = random_split(vec![0u8; 10], &[3, 7, 0], 7).unwrap();
    assert_eq!(
        parts.iter().map(|part| part.len()).collect::<Vec<_>>(),
        [3, 7, 0]
    );
    // Sums that are 1 up to rounding, to either side.
    for sizes in [
        &[0.1; 10][..],
        &[0.7, 0.2, 0.1],
        &[0.15, 0.35, 0.3, 0.2],
        &[1.0 - 1e-10, 1e-10 + 1e-12],
    ] {
        let parts = random_split(vec![0u8; 1_000], sizes, 7).unwrap();
        assert_eq!(parts.iter().map(|part| part.len()).sum::<u64>(), 1_000);
    }
}

/// Of as many sizes as the program's text says, there are as many parts; otherwise it is a list of them.
#[test]
fn parts_come_as_their_sizes_do() {
    let data = || Arc::new(VecDataset::new((0..10i64).collect()));
    let [one, other] = random_split(data(), [0.7, 0.3], 7).unwrap();
    assert_eq!((one.len(), other.len()), (7, 3));
    let [first] = random_split(data(), &[10], 7).unwrap();
    assert_eq!(first.len(), 10);
    let lengths = vec![7u64, 3];
    let lists: [Vec<Subset<_>>; 3] = [
        random_split(data(), &lengths, 7).unwrap(),
        random_split(data(), &lengths[..], 7).unwrap(),
        random_split(data(), lengths, 7).unwrap(),
    ];
    for parts in lists {
        assert!(parts[0].indices().eq(one.indices()));
        assert!(parts[1].indices().eq(other.indices()) && parts.len() == 2);
    }
}

#[test]
fn parts_that_do_not_make_a_whole_are_refused() {
    let lengths = |sizes: &[u64]| reason(random_split(vec![0u8; 10], sizes, 7));
    assert_eq!(
        lengths(&[3, 6]),
        "random_split: the lengths sum to 9, and the data set has 10 samples"
    );
    assert!(lengths(&[u64::MAX, u64::MAX]).contains("sum to 36893488147419103230"));
    let fractions = |sizes: &[f64]| reason(random_split(vec![0u8; 10], sizes, 7));
    assert!(fractions(&[0.5, 0.4]).contains("the fractions sum to 0.9, not to 1"));
    assert!(fractions(&[1.2, -0.2]).contains("fraction 0 is 1.2"));
    assert!(fractions(&[0.5, f64::NAN]).contains("fraction 1 is NaN"));
    assert!(fractions(&[]).contains("sum to 0"));
    assert!(fractions(&[8.0, 2.0]).contains("fractions are between 0 and 1, lengths are u64"));
}

proptest! {
    #[test]
    fn each_sample_is_in_one_part(cuts in prop::collection::vec(0u64..40, 1..8), seed: u64) {
        let len: u64 = cuts.iter().sum();
        let parts = random_split((0..len as i64).collect::<Vec<_>>(), &cuts, seed).unwrap();
        let mut seen: Vec<i64> = parts.iter().flat_map(all).collect();
        seen.sort_unstable();
        prop_assert!(seen.into_iter().eq(0..len as i64));
        let again = random_split((0..len as i64).collect::<Vec<_>>(), &cuts, seed).unwrap();
        prop_assert!(parts.iter().zip(&again).all(|(one, other)| one.indices().eq(other.indices())));
    }
}

#[test]
fn splits_are_random() {
    let first = |seed| {
        random_split(vec![0u8; 10], &[4, 6], seed).unwrap()[0]
            .indices()
            .collect::<Vec<_>>()
    };
    // Each sample is in the first part of 4 of 10 splits: 2,000 of 5,000, with a standard deviation of 35.
    let mut counts = [0u64; 10];
    (0..5_000)
        .flat_map(first)
        .for_each(|index| counts[index as usize] += 1);
    assert!(
        counts.iter().all(|count| (1_830..2_170).contains(count)),
        "{counts:?}"
    );
    // A loader with the same seed shuffles otherwise.
    let loader = DataLoader::builder((0..10i64).collect::<Vec<_>>())
        .batch_size(10)
        .shuffle(true)
        .seed(3);
    let shuffled = loader
        .build()
        .unwrap()
        .epoch(0)
        .next()
        .unwrap()
        .unwrap()
        .to_vec();
    let split = all(&random_split((0..10i64).collect::<Vec<_>>(), &[10], 3).unwrap()[0]);
    assert_ne!(shuffled, split);
}

/// A mixture of data sets in ranks: each global batch has its proportions, and each rank what it should.
#[test]
fn a_mixture_does_not_depend_on_ranks_or_workers() {
    let dataset = || {
        let numbers = |first: i64, len: u64| from_fn(len, move |index, _| Ok(first + index as i64));
        ConcatDataset::new(vec![numbers(0, 100), numbers(1_000, 10)]).unwrap()
    };
    let epochs = |rank: usize, ranks: usize, workers, batch_size| -> Vec<Vec<i64>> {
        let mixture = MixtureSampler::new(&dataset().lengths(), &[0.75, 0.25], 7).unwrap();
        let loader = DataLoader::builder(dataset())
            .batch_size(batch_size)
            .sampler(mixture.with_num_samples(96))
            .drop_last(true)
            .num_workers(workers)
            .world(World::new(rank, ranks).unwrap())
            .build()
            .unwrap();
        let epochs = loader.epochs(0..3);
        epochs
            .flatten()
            .map(|batch| batch.unwrap().to_vec())
            .collect()
    };
    let whole = epochs(0, 1, 0, 16);
    for batch in &whole {
        assert_eq!(batch.iter().filter(|number| **number >= 1_000).count(), 4);
    }
    let halves: Vec<_> = (0..2).map(|rank| epochs(rank, 2, 2, 8)).collect();
    let joined: Vec<Vec<i64>> = halves[0]
        .iter()
        .zip(&halves[1])
        .map(|(one, other)| [&one[..], other].concat())
        .collect();
    assert_eq!(joined, whole);
}

/// Counts what is loaded from it.
fn counted(len: u64, loaded: &Arc<AtomicU64>) -> impl Dataset<Sample = Vec<u8>> + use<> {
    let loaded = Arc::clone(loaded);
    from_fn(len, move |index, _| {
        loaded.fetch_add(1, Ordering::SeqCst);
        Ok(vec![index as u8; 1_000])
    })
    .describe(|index| format!("{index}.bin"))
}

#[test]
fn cached_samples_are_loaded_once() {
    let loaded = Arc::default();
    let cached = Arc::new(counted(50, &loaded).cached(1 << 20));
    assert_eq!(cached.describe(7), Some("7.bin".into()));
    let loader = DataLoader::builder(Arc::clone(&cached))
        .batch_size(7)
        .shuffle(true)
        .num_workers(2);
    let loader = loader.build().unwrap();
    for epoch in 0..3 {
        let rows = loader.epoch(epoch).flat_map(|batch| {
            let batch = batch.unwrap();
            (0..batch.shape()[0])
                .map(|row| batch.row(row).to_vec())
                .collect::<Vec<_>>()
        });
        let mut first: Vec<u8> = rows
            .map(|row| {
                assert!(row.iter().all(|byte| *byte == row[0]) && row.len() == 1_000);
                row[0]
            })
            .collect();
        first.sort_unstable();
        assert!(first.into_iter().eq(0..50));
        assert_eq!(loaded.load(Ordering::SeqCst), 50);
    }
    let stats = cached.stats();
    assert_eq!((stats.hits, stats.misses, stats.samples), (100, 50, 50));
    assert!((50_000..60_000).contains(&stats.bytes), "{stats:?}");
}

/// A budget for about half of the samples: these stay, the others are loaded each time, and the budget holds.
#[test]
fn what_does_not_fit_is_loaded_each_time() {
    let loaded = Arc::default();
    let cached = counted(50, &loaded).cached(25_000);
    for _ in 0..3 {
        for (index, sample) in (0u64..).zip(all(&cached)) {
            assert_eq!(sample, [index as u8; 1_000]);
        }
    }
    let stats = cached.stats();
    assert!(
        stats.bytes <= 25_000 && stats.budget_bytes == 25_000,
        "{stats:?}"
    );
    assert!((20..25).contains(&stats.samples), "{stats:?}");
    assert_eq!(stats.hits, 2 * stats.samples);
    assert_eq!(stats.misses, 150 - stats.hits);
    assert_eq!(loaded.load(Ordering::SeqCst), stats.misses);

    // A small sample is kept where a large one does not fit; without a budget, none is.
    let sizes = from_fn(3, |index, _| {
        Ok(vec![0u8; [900, 9_000, 50][index as usize]])
    });
    let cached = sizes.cached(2_000);
    all(&cached);
    assert_eq!(cached.stats().samples, 2);
    let nothing = VecDataset::new(vec![1i64, 2]).cached(0);
    assert_eq!((all(&nothing), all(&nothing)), (vec![1, 2], vec![1, 2]));
    assert_eq!(
        (
            nothing.stats().samples,
            nothing.stats().bytes,
            nothing.stats().hits
        ),
        (0, 0, 0)
    );
}

/// A sample counts with what it keeps allocated, whatever its length says.
#[test]
fn samples_are_measured_by_their_memory() {
    fn bytes<D: Dataset>(dataset: D) -> usize
    where
        D::Sample: pinfeed::dataset::Cacheable,
    {
        let cached = dataset.cached(usize::MAX);
        get(&cached, 0).unwrap();
        cached.stats().bytes
    }
    fn roomy() -> Vec<u8> {
        let mut roomy = Vec::with_capacity(5_000);
        roomy.push(1);
        roomy
    }
    let around = |bytes: usize, expected: usize| {
        assert!((expected..expected + 300).contains(&bytes), "{bytes}")
    };
    around(bytes(VecDataset::new(vec![7i64])), 8);
    around(bytes(from_fn(1, |_, _| Ok(roomy()))), 5_000);
    around(
        bytes(from_fn(1, |_, _| Ok(String::from_utf8(roomy())?))),
        5_000,
    );
    around(bytes(from_fn(1, |_, _| Ok(Tensor::from(roomy())))), 5_000);
    around(
        bytes(from_fn(1, |_, _| Ok(pinfeed::Ragged::from(roomy())))),
        5_000,
    );
    around(
        bytes(from_fn(1, |_, _| {
            Ok((Some(roomy()), [roomy(), roomy()], 1u8))
        })),
        15_000,
    );
    around(
        bytes(from_fn(1, |_, _| Ok(vec!["x".repeat(1_000); 3]))),
        3_000,
    );
    around(
        bytes(from_fn(1, |_, _| {
            Ok(pinfeed::Host(Arc::<[u64]>::from(vec![0; 100])))
        })),
        800,
    );
    // A row is what it shows, unless it is the last to hold its tensor.
    let matrix = Tensor::<f32>::zeros(&[100, 250]);
    around(bytes(TensorDataset::new(matrix).unwrap()), 1_000);
    around(
        bytes(from_fn(1, |_, _| {
            Ok(Tensor::<f32>::zeros(&[100, 250]).row(3))
        })),
        100_000,
    );
}

/// What the cache keeps, nobody can write: not through the tensor that it was given, nor through those it gives.
#[test]
fn kept_tensors_are_read_only() {
    let given = Arc::new(Mutex::new(Vec::new()));
    let kept = Arc::clone(&given);
    let tensors = from_fn(2, move |index, _| {
        let tensor = Tensor::from_vec(vec![index as u8; 100], &[100])?;
        kept.lock().unwrap().push(tensor.view());
        Ok((tensor, index as i64))
    });
    let cached = tensors.cached(1 << 20);
    for _ in 0..2 {
        let (mut tensor, _) = get(&cached, 1).unwrap();
        assert!(tensor.as_mut_slice().is_none());
        let mut first = given.lock().unwrap().remove(0);
        assert!(first.as_mut_slice().is_none());
        given.lock().unwrap().push(first);
    }
    assert_eq!(get(&cached, 1).unwrap().0.as_slice(), [1; 100]);
    // A vector is a copy, to be changed at will.
    let cached = VecDataset::new(vec![vec![1u8, 2]]).cached(1 << 20);
    for _ in 0..2 {
        let mut sample = get(&cached, 0).unwrap();
        assert_eq!(sample, [1, 2]);
        sample[0] = 9;
    }
}

/// Random numbers before the cache are an error; behind it, they are what they would be without it.
#[test]
fn a_cache_does_not_freeze_randomness() {
    let noise = from_fn(4, |index, rng| match index {
        1 => Ok(rng.f32()),
        _ => Ok(0.0),
    });
    let cached = noise
        .describe(|index| format!("noise {index}"))
        .cached(1 << 20);
    let loader = DataLoader::builder(cached).build().unwrap();
    for epoch in 0..2 {
        let batches: Vec<_> = loader.epoch(epoch).collect();
        assert_eq!(batches.iter().filter(|batch| batch.is_ok()).count(), 3);
        let error = batches[1].as_ref().unwrap_err().to_string();
        assert!(
            error.starts_with("sample 1 (noise 1)") && error.contains("after `cached`"),
            "{error}"
        );
    }

    let augment = |number: i64, rng: &mut SampleRng| Ok(number as f32 + rng.f32());
    let numbers = VecDataset::new((0..20i64).collect());
    let run = |dataset: Box<dyn Dataset<Sample = f32>>| -> Vec<f32> {
        let loader = DataLoader::builder(dataset)
            .shuffle(true)
            .seed(3)
            .num_workers(2)
            .build()
            .unwrap();
        loader
            .epochs(0..3)
            .flatten()
            .flat_map(|batch| batch.unwrap().to_vec())
            .collect()
    };
    let cached = run(Box::new(numbers.clone().cached(600).map(augment)));
    assert_eq!(cached, run(Box::new(numbers.map(augment))));
}

/// Failures are not kept; nor are panics, and neither leaves anything locked.
#[test]
fn what_fails_is_tried_again() {
    let tries = AtomicU64::new(0);
    let flaky = from_fn(2, move |index, _| {
        match tries.fetch_add(1, Ordering::SeqCst) {
            0 => Err("the disk was busy".into()),
            1 => panic!("the decoder broke"),
            _ => Ok(index as i64),
        }
    });
    let cached = Arc::new(flaky.cached(1 << 20));
    let loader = DataLoader::builder(Arc::clone(&cached))
        .batch_size(2)
        .build()
        .unwrap();
    for expected in ["the disk was busy", "the decoder broke"] {
        let error = loader.epoch(0).next().unwrap().unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
    assert_eq!(loader.epoch(0).next().unwrap().unwrap().as_slice(), [0, 1]);
    assert_eq!((cached.stats().samples, cached.stats().misses), (2, 4));
}

/// Two workers in the same sample at once: both load it, neither waits, and it is kept once.
#[test]
fn a_sample_may_be_loaded_by_two_at_once() {
    let both = Arc::new(std::sync::Barrier::new(2));
    let meeting = Arc::clone(&both);
    // It would never end if the second waited for the first.
    let slow = from_fn(1, move |_, _| {
        meeting.wait();
        Ok(vec![7u8; 100])
    });
    let cached = slow.cached(1 << 20);
    std::thread::scope(|scope| {
        let threads = [(); 2].map(|()| scope.spawn(|| get(&cached, 0).unwrap()));
        threads
            .into_iter()
            .for_each(|thread| assert_eq!(thread.join().unwrap(), [7; 100]));
    });
    let stats = cached.stats();
    assert_eq!((stats.hits, stats.misses, stats.samples), (0, 2, 1));
    assert!(stats.bytes < 300, "{stats:?}"); // counted once
    assert_eq!(get(&cached, 0).unwrap(), [7; 100]); // the barrier would wait forever
}

/// A user's own code may use the cache it is called from.
#[test]
fn no_lock_is_held_while_a_sample_is_copied() {
    use pinfeed::dataset::{Cacheable, Cached};
    type Inner = Arc<std::sync::OnceLock<Box<dyn Fn() + Send + Sync>>>;

    struct Curious(Inner);
    impl Cacheable for Curious {
        fn share(&self) -> Curious {
            self.0.get().unwrap()();
            Curious(Arc::clone(&self.0))
        }

        fn heap_bytes(&self) -> usize {
            self.0.get().unwrap()();
            100
        }
    }
    let hook = Inner::default();
    let sample = Arc::clone(&hook);
    type Samples = Box<dyn Dataset<Sample = Curious>>;
    let samples: Samples = Box::new(from_fn(1, move |_, _| Ok(Curious(Arc::clone(&sample)))));
    let cached: Arc<Cached<Samples>> = Arc::new(samples.cached(1 << 20));
    let weak = Arc::downgrade(&cached);
    let look = move || assert!(weak.upgrade().unwrap().stats().hits <= 1);
    assert!(hook.set(Box::new(look)).is_ok());
    for _ in 0..2 {
        get(&cached, 0).unwrap();
    }
    assert_eq!(cached.stats().hits, 1);
}

#[test]
fn a_cache_announces_only_what_it_has_not() {
    let spy = Spy::new(0, 200, 9);
    let cached = Arc::clone(&spy).cached(1 << 20);
    assert_eq!(
        (cached.lookahead(), cached.sample_bytes(), cached.len()),
        (9, Some(8), 200)
    );
    for index in [3, 5, 199] {
        get(&cached, index).unwrap();
    }
    cached.will_need(&[3, 4, 5], Pass::new(1, 0));
    assert_eq!(spy.told(), [[4]]);
    cached.will_need(&[3, 5], Pass::new(1, 0));
    assert!(spy.told().is_empty());
    let everything: Vec<u64> = (0..200).collect();
    cached.will_need(&everything, Pass::new(1, 0));
    assert_eq!(spy.told().concat().len(), 197);
}

/// A run that is resumed is told that its data are others, however they are wrapped.
#[test]
fn fingerprints_tell_data_sets_apart() {
    let spy = |first| Spy::new(first, 10, 0);
    let subset = |first, indices: std::ops::Range<u64>| {
        Subset::new(spy(first), indices).unwrap().fingerprint()
    };
    let concat = |first, len| {
        ConcatDataset::new(vec![spy(first), Spy::new(50, len, 0)])
            .unwrap()
            .fingerprint()
    };
    let zip = |first, other| spy(first).zip(spy(other)).unwrap().fingerprint();
    let cached = |first| spy(first).cached(100).fingerprint();
    assert_eq!(
        (subset(0, 0..5), concat(0, 5), zip(0, 3)),
        (subset(0, 0..5), concat(0, 5), zip(0, 3))
    );
    assert_eq!(cached(3), spy(3).fingerprint()); // a run may be resumed with a cache, or without
    let mut prints = vec![
        subset(0, 0..5),
        subset(1, 0..5),
        subset(0, 1..6),
        subset(0, 0..6),
        concat(0, 5),
        concat(1, 5),
        concat(0, 6),
        zip(0, 3),
        zip(3, 0),
        zip(0, 4),
        cached(0),
        cached(1),
    ];
    let all = prints.len();
    prints.sort_unstable();
    prints.dedup();
    assert_eq!(prints.len(), all);
}

#[test]
fn numbers_of_samples_are_what_the_program_has() {
    let paths = ["a", "b", "c"];
    assert_eq!(from_fn(paths.len(), |_, _| Ok(0i64)).len(), 3);
    assert_eq!(from_fn(3, |_, _| Ok(0i64)).len(), 3);
    assert_eq!(from_fn(3u32, |_, _| Ok(0i64)).len(), 3);
    assert_eq!(from_fn(u64::MAX, |_, _| Ok(0i64)).len(), u64::MAX);
    let random = RandomSampler::with_seed(paths.len(), 1).with_num_samples(paths.len() * 2);
    assert_eq!(
        (random.len(), SequentialSampler::new(paths.len()).len()),
        (6, 3)
    );
    let weighted = WeightedRandomSampler::new(&[1.0; 3], paths.len(), 1).unwrap();
    let mixture = MixtureSampler::new(&[paths.len(), 2], &[0.5, 0.5], 1).unwrap();
    assert_eq!((weighted.len(), mixture.len()), (3, 5));
    let stream = iterable::from_fn(|_, _| Ok((0..9i64).map(Ok)))
        .skip(paths.len())
        .take(paths.len());
    let batch = DataLoader::iterable(stream)
        .batch_size(9)
        .build()
        .unwrap()
        .epoch(0)
        .next()
        .unwrap()
        .unwrap();
    assert_eq!(batch.as_slice(), [3, 4, 5]);
}

#[test]
#[should_panic(expected = "there cannot be -1 samples")]
fn a_negative_number_of_samples_is_refused() {
    let _ = from_fn(-1, |_, _| Ok(0i64));
}
