//! What the samplers promise: which samples an epoch has, how often, and that any worker may ask for any position.

use std::collections::HashMap;
use std::sync::Arc;

use proptest::prelude::*;

use pinfeed::collate::Stack;
use pinfeed::loader::Builder;
use pinfeed::sampler::{
    FixedBatchSampler, MixtureSampler, RandomSampler, Sampler, SubsetRandomSampler,
    WeightedRandomSampler,
};
use pinfeed::{DataLoader, Dataset, Error, from_fn};

fn order(sampler: &dyn Sampler, epoch: u64) -> Vec<u64> {
    let mut order = vec![0; sampler.len() as usize];
    sampler.indices(epoch, 0, &mut order);
    order
}

fn sorted(mut indices: Vec<u64>) -> Vec<u64> {
    indices.sort_unstable();
    indices
}

fn counts(indices: &[u64], len: usize) -> Vec<u64> {
    let mut counts = vec![0; len];
    for index in indices {
        counts[*index as usize] += 1;
    }
    counts
}

/// How many standard deviations chi-square is above its mean.
fn deviations(counts: &[u64], shares: &[f64]) -> f64 {
    let (all, sum) = (
        counts.iter().sum::<u64>() as f64,
        shares.iter().sum::<f64>(),
    );
    let expected = shares.iter().map(|share| share / sum * all);
    let chi: f64 = counts
        .iter()
        .zip(expected)
        .map(|(&count, expected)| (count as f64 - expected).powi(2) / expected)
        .sum();
    let degrees = (counts.len() - 1) as f64;
    (chi - degrees) / (2.0 * degrees).sqrt()
}

/// All random samplers, of a few sizes.
fn samplers() -> impl Strategy<Value = Box<dyn Sampler>> {
    let weights = prop::collection::vec(prop_oneof![Just(0.0), 0.01..1.0f64], 1..60)
        .prop_filter("one weight must not be 0", |weights| {
            weights.iter().any(|weight| *weight > 0.0)
        });
    let mixture = (
        prop::collection::vec((1u64..90, 0.01..1.0f64), 1..8),
        any::<u64>(),
    );
    prop_oneof![
        (1u64..200, any::<u64>(), 0u64..500, any::<bool>()).prop_map(
            |(len, seed, num_samples, replacement)| {
                let sampler = RandomSampler::with_seed(len, seed).with_num_samples(num_samples);
                Box::new(if replacement {
                    sampler.with_replacement()
                } else {
                    sampler
                }) as Box<dyn Sampler>
            }
        ),
        (prop::collection::vec(any::<u64>(), 0..200), any::<u64>()).prop_map(|(indices, seed)| {
            Box::new(SubsetRandomSampler::new(indices, seed).unwrap()) as Box<dyn Sampler>
        }),
        (weights, 0u64..200, any::<u64>(), any::<bool>()).prop_map(
            |(weights, num_samples, seed, replacement)| {
                let positive = weights.iter().filter(|weight| **weight > 0.0).count() as u64;
                let drawn = if replacement {
                    num_samples
                } else {
                    num_samples.min(positive)
                };
                let sampler = WeightedRandomSampler::new(&weights, drawn, seed).unwrap();
                Box::new(match replacement {
                    true => sampler,
                    false => sampler.without_replacement().unwrap(),
                }) as Box<dyn Sampler>
            }
        ),
        (mixture, 0u64..300).prop_map(|((sets, seed), num_samples)| {
            let (lengths, weights): (Vec<u64>, Vec<f64>) = sets.into_iter().unzip();
            let mixture = MixtureSampler::new(&lengths, &weights, seed).unwrap();
            Box::new(mixture.with_num_samples(num_samples)) as Box<dyn Sampler>
        }),
    ]
}

proptest! {
    /// However an epoch is cut into questions, in whichever order they come: the answers are the same.
    #[test]
    fn any_cut_gives_the_same_order(sampler in samplers(), epoch in 0u64..1_000, cuts in prop::collection::vec(1usize..100, 1..10)) {
        let whole = order(&*sampler, epoch);
        let (mut pieces, mut start) = (Vec::new(), 0);
        for count in cuts.iter().cycle() {
            let count = (*count).min(whole.len() - start);
            if count == 0 {
                break;
            }
            pieces.push((start, count));
            start += count;
        }
        for (start, count) in pieces.into_iter().rev() {
            let mut piece = vec![u64::MAX; count];
            sampler.indices(epoch, start as u64, &mut piece);
            prop_assert_eq!(&piece, &whole[start..start + count]);
        }
        for (position, index) in whole.iter().enumerate() {
            prop_assert_eq!(sampler.index(epoch, position as u64), *index);
        }
    }

    #[test]
    fn positions_beyond_the_end_are_refused(sampler in samplers(), epoch: u64) {
        let len = sampler.len();
        let asked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| sampler.index(epoch, len)));
        prop_assert!(asked.is_err());
    }

    #[test]
    fn long_epochs_are_whole_permutations_and_a_part_of_one(len in 1u64..70, num_samples in 0u64..300, seed: u64, epoch: u64) {
        let order = order(&RandomSampler::with_seed(len, seed).with_num_samples(num_samples), epoch);
        for pass in order.chunks(len as usize) {
            let mut seen = sorted(pass.to_vec());
            seen.dedup();
            prop_assert_eq!(seen.len(), pass.len());
            prop_assert!(seen.into_iter().all(|index| index < len));
        }
    }

    #[test]
    fn short_epochs_begin_as_long_ones(len in 1u64..200, num_samples in 0u64..200, seed: u64, epoch: u64) {
        let (all, some) = (RandomSampler::with_seed(len, seed), RandomSampler::with_seed(len, seed).with_num_samples(num_samples));
        let common = len.min(num_samples) as usize;
        prop_assert_eq!(&order(&all, epoch)[..common], &order(&some, epoch)[..common]);
    }

    #[test]
    fn a_subset_comes_up_as_it_was_listed(indices in prop::collection::vec(0u64..50, 0..100), seed: u64, epoch: u64) {
        let sampler = SubsetRandomSampler::new(indices.clone(), seed).unwrap();
        prop_assert_eq!(sorted(order(&sampler, epoch)), sorted(indices));
    }

    #[test]
    fn weighted_without_replacement_draws_no_sample_twice(weights in prop::collection::vec(prop_oneof![Just(0.0), 1e-300..1.0f64], 1..100), seed: u64, epoch: u64) {
        let positive: Vec<u64> = (0..weights.len() as u64).filter(|at| weights[*at as usize] > 0.0).collect();
        prop_assume!(!positive.is_empty());
        let all = WeightedRandomSampler::new(&weights, positive.len() as u64, seed).unwrap().without_replacement().unwrap();
        prop_assert_eq!(sorted(order(&all, epoch)), positive.clone());
        // Fewer draws are the first ones.
        let half = positive.len() / 2;
        let some = WeightedRandomSampler::new(&weights, half as u64, seed).unwrap().without_replacement().unwrap();
        prop_assert_eq!(&order(&all, epoch)[..half], &order(&some, epoch)[..]);
    }

    /// The promise of `MixtureSampler`, at every position: less than 1.7 from the start, less than 3.4 in any run.
    #[test]
    fn mixtures_are_proportional_everywhere(
        sets in prop::collection::vec((1u64..60, prop_oneof![0.0..1.0f64, 0.0..0.01]), 1..12),
        seed: u64, num_samples in 1u64..400, first in 0u64..1_000,
    ) {
        let (lengths, weights): (Vec<u64>, Vec<f64>) = sets.into_iter().unzip();
        let sum: f64 = weights.iter().sum();
        prop_assume!(sum > 0.0);
        let mixture = MixtureSampler::new(&lengths, &weights, seed).unwrap().with_num_samples(num_samples);
        let ends: Vec<u64> = lengths.iter().scan(0, |end, len| { *end += len; Some(*end) }).collect();
        for (start, allowed) in [(0, 1.7), (first, 3.4)] {
            let mut counts = vec![0u64; lengths.len()];
            let run = (start..start + 3).flat_map(|epoch| order(&mixture, epoch));
            for (n, index) in (1u64..).zip(run) {
                counts[ends.partition_point(|end| *end <= index)] += 1;
                for (count, weight) in counts.iter().zip(&weights) {
                    let expected = n as f64 * weight / sum;
                    prop_assert!((*count as f64 - expected).abs() < allowed, "{count} instead of {expected} of {n}");
                }
            }
        }
    }

    /// Each data set is gone through pass by pass, and epochs continue each other.
    #[test]
    fn mixtures_go_through_each_data_set(sets in prop::collection::vec((1u64..30, 0.05..1.0f64), 1..6), seed: u64, num_samples in 1u64..50) {
        let (lengths, weights): (Vec<u64>, Vec<f64>) = sets.into_iter().unzip();
        let mixture = MixtureSampler::new(&lengths, &weights, seed).unwrap();
        let whole = order(&mixture.clone().with_num_samples(20 * num_samples), 0);
        let short = mixture.with_num_samples(num_samples);
        let run: Vec<u64> = (0..20).flat_map(|epoch| order(&short, epoch)).collect();
        prop_assert_eq!(&run, &whole);
        let mut offset = 0;
        for len in lengths {
            let own: Vec<u64> = run.iter().copied().filter(|index| (offset..offset + len).contains(index)).collect();
            for pass in own.chunks(len as usize) {
                let mut seen = sorted(pass.to_vec());
                seen.dedup();
                prop_assert_eq!(seen.len(), pass.len());
            }
            offset += len;
        }
    }
}

/// How often each sample comes up, sorted; `None` where it is left to chance.
///
/// From the documented behaviour of `torch.utils.data` (PyTorch 2).
#[test]
fn epochs_have_what_pytorchs_have() {
    let subset = |indices: &[u64]| SubsetRandomSampler::new(indices.iter().copied(), 7).unwrap();
    let weighted = |weights: &[f64], count| WeightedRandomSampler::new(weights, count, 7).unwrap();
    type Row<'a> = (Box<dyn Sampler>, usize, Option<&'a [u64]>);
    #[rustfmt::skip]
    let table: Vec<Row<'_>> = vec![
        // RandomSampler(range(5))
        (Box::new(RandomSampler::with_seed(5, 7)), 5, Some(&[1, 1, 1, 1, 1])),
        // RandomSampler(range(5), num_samples=3)
        (Box::new(RandomSampler::with_seed(5, 7).with_num_samples(3)), 3, Some(&[0, 0, 1, 1, 1])),
        // RandomSampler(range(5), num_samples=10)
        (Box::new(RandomSampler::with_seed(5, 7).with_num_samples(10)), 10, Some(&[2, 2, 2, 2, 2])),
        // RandomSampler(range(5), num_samples=12)
        (Box::new(RandomSampler::with_seed(5, 7).with_num_samples(12)), 12, Some(&[2, 2, 2, 3, 3])),
        // RandomSampler(range(5), replacement=True)
        (Box::new(RandomSampler::with_seed(5, 7).with_replacement()), 5, None),
        // RandomSampler(range(5), replacement=True, num_samples=12)
        (Box::new(RandomSampler::with_seed(5, 7).with_replacement().with_num_samples(12)), 12, None),
        // RandomSampler(range(1), replacement=True, num_samples=3)
        (Box::new(RandomSampler::with_seed(1, 7).with_replacement().with_num_samples(3)), 3, Some(&[0, 0, 0, 0, 3])),
        // SubsetRandomSampler([4, 2])
        (Box::new(subset(&[4, 2])), 2, Some(&[0, 0, 0, 1, 1])),
        // SubsetRandomSampler([3, 3, 1])
        (Box::new(subset(&[3, 3, 1])), 3, Some(&[0, 0, 0, 1, 2])),
        // SubsetRandomSampler([])
        (Box::new(subset(&[])), 0, Some(&[0, 0, 0, 0, 0])),
        // WeightedRandomSampler([0, 0, 2.5, 0, 0], 4)
        (Box::new(weighted(&[0.0, 0.0, 2.5, 0.0, 0.0], 4)), 4, Some(&[0, 0, 0, 0, 4])),
        // WeightedRandomSampler([1, 2, 3, 4, 5], 9)
        (Box::new(weighted(&[1.0, 2.0, 3.0, 4.0, 5.0], 9)), 9, None),
        // WeightedRandomSampler([0, 1, 0, 3, 0], 2, replacement=False)
        (Box::new(weighted(&[0.0, 1.0, 0.0, 3.0, 0.0], 2).without_replacement().unwrap()), 2, Some(&[0, 0, 0, 1, 1])),
        // WeightedRandomSampler([1, 2, 3, 4, 5], 5, replacement=False)
        (Box::new(weighted(&[1.0, 2.0, 3.0, 4.0, 5.0], 5).without_replacement().unwrap()), 5, Some(&[1, 1, 1, 1, 1])),
    ];
    for (row, (sampler, len, expected)) in table.into_iter().enumerate() {
        for epoch in 0..20 {
            let order = order(&*sampler, epoch);
            assert_eq!(order.len(), len, "row {row}");
            let counts = sorted(counts(&order, 5));
            assert!(
                expected.is_none_or(|expected| expected == counts),
                "row {row}: {counts:?}"
            );
        }
    }
}

#[test]
fn draws_with_replacement_are_even_and_independent() {
    let sampler = RandomSampler::with_seed(20, 3)
        .with_replacement()
        .with_num_samples(50_000);
    let order = order(&sampler, 5);
    assert!(deviations(&counts(&order, 20), &[1.0; 20]) < 4.0);
    let pairs: Vec<u64> = order
        .windows(2)
        .map(|pair| pair[0] * 20 + pair[1])
        .collect();
    assert!(deviations(&counts(&pairs, 400), &[1.0; 400]) < 4.0);
    // Epochs are independent, too.
    let columns: Vec<u64> = (0..20_000).map(|epoch| sampler.index(epoch, 0)).collect();
    assert!(deviations(&counts(&columns, 20), &[1.0; 20]) < 4.0);
}

#[test]
fn the_part_of_a_permutation_is_evenly_drawn() {
    // The last 3 of 10 positions, of 7 samples, in many epochs; and all pairs of them with what came first.
    let sampler = RandomSampler::with_seed(7, 3).with_num_samples(10);
    let orders: Vec<Vec<u64>> = (0..20_000).map(|epoch| order(&sampler, epoch)).collect();
    let last: Vec<u64> = orders
        .iter()
        .flat_map(|order| order[7..].to_vec())
        .collect();
    assert!(deviations(&counts(&last, 7), &[1.0; 7]) < 4.0);
    let pairs: Vec<u64> = orders.iter().map(|order| order[0] * 7 + order[7]).collect();
    assert!(deviations(&counts(&pairs, 49), &[1.0; 49]) < 4.0);
}

#[test]
fn a_subsets_orders_are_evenly_drawn() {
    let sampler = SubsetRandomSampler::new([0, 1, 2, 3], 5).unwrap();
    let orders = (0..24_000).map(|epoch| {
        let order = order(&sampler, epoch);
        order.iter().fold(0, |number, index| number * 4 + index)
    });
    let mut counts = HashMap::new();
    orders.for_each(|order| *counts.entry(order).or_insert(0u64) += 1);
    let counts: Vec<u64> = counts.into_values().collect();
    assert_eq!(counts.len(), 24);
    assert!(deviations(&counts, &[1.0; 24]) < 4.0, "{counts:?}");
}

#[test]
fn draws_are_as_frequent_as_their_weights() {
    let weights: Vec<f64> = (0..50).map(|at| [0.5, 1.0, 7.0, 0.03][at % 4]).collect();
    let sampler = WeightedRandomSampler::new(&weights, 200_000, 11).unwrap();
    let drawn = order(&sampler, 2);
    let seen = counts(&drawn, 50);
    assert!(deviations(&seen, &weights) < 4.0, "{seen:?}");
    assert!(deviations(&seen, &[1.0; 50]) > 100.0); // so it would notice others
    // Independent of the position before: by the class of weights.
    let classes: Vec<u64> = drawn
        .windows(2)
        .map(|pair| pair[0] % 4 * 4 + pair[1] % 4)
        .collect();
    let share = |class: usize| weights.iter().skip(class).step_by(4).sum::<f64>();
    let shares: Vec<f64> = (0..16)
        .map(|pair| share(pair / 4) * share(pair % 4))
        .collect();
    assert!(deviations(&counts(&classes, 16), &shares) < 4.0);
}

/// Each order's probability is the product of what successive draws have.
#[test]
fn draws_without_replacement_are_successive_draws() {
    let weights = [1.0, 2.0, 0.0, 4.0, 9.0];
    for num_samples in [1, 2, 4] {
        let sampler = WeightedRandomSampler::new(&weights, num_samples, 13).unwrap();
        let sampler = sampler.without_replacement().unwrap();
        let mut seen: HashMap<Vec<u64>, u64> = HashMap::new();
        for epoch in 0..100_000 {
            *seen.entry(order(&sampler, epoch)).or_default() += 1;
        }
        let probability = |order: &[u64]| {
            let mut left: f64 = weights.iter().sum();
            order.iter().fold(1.0, |product, index| {
                let weight = weights[*index as usize];
                let product = product * weight / left;
                left -= weight;
                product
            })
        };
        let (shares, counts): (Vec<f64>, Vec<u64>) = seen
            .iter()
            .map(|(order, count)| (probability(order), *count))
            .unzip();
        assert_eq!(counts.len(), [4, 12, 24][num_samples as usize / 2]);
        assert!((shares.iter().sum::<f64>() - 1.0).abs() < 1e-9);
        let off = deviations(&counts, &shares);
        assert!(off < 4.0, "{num_samples} of 4: {off}");
    }
}

#[test]
fn a_mixtures_passes_are_evenly_drawn_and_independent() {
    // Three samples among many others: the orders of all passes, and of one pass and the next.
    let sampler = MixtureSampler::new(&[1_000, 3], &[0.5, 0.5], 3)
        .unwrap()
        .with_num_samples(60_000);
    let own: Vec<u64> = order(&sampler, 4)
        .into_iter()
        .filter_map(|index| index.checked_sub(1_000))
        .collect();
    let passes: Vec<u64> = own
        .chunks_exact(3)
        .map(|pass| pass[0] * 3 + pass[1])
        .collect();
    let mut seen = counts(&passes, 9);
    seen.retain(|count| *count > 0);
    assert_eq!(seen.len(), 6);
    assert!(deviations(&seen, &[1.0; 6]) < 4.0, "{seen:?}");
    let pairs: Vec<u64> = own
        .chunks_exact(3)
        .zip(own.chunks_exact(3).skip(1))
        .map(|(one, next)| one[0] * 3 + next[0])
        .collect();
    assert!(deviations(&counts(&pairs, 9), &[1.0; 9]) < 4.0);
    // Data sets of one length have different orders, and so do seeds.
    let twins = MixtureSampler::new(&[50, 50], &[1.0, 1.0], 3).unwrap();
    let (first, second): (Vec<u64>, Vec<u64>) =
        order(&twins, 0).into_iter().partition(|index| *index < 50);
    assert_ne!(
        first,
        second
            .into_iter()
            .map(|index| index - 50)
            .collect::<Vec<_>>()
    );
    let other = MixtureSampler::new(&[50, 50], &[1.0, 1.0], 4).unwrap();
    assert_ne!(order(&twins, 0), order(&other, 0));
}

/// 10¹² indices, of which nothing could hold a list.
#[test]
fn a_million_millions_cost_nothing() {
    const HUGE: u64 = 1_000_000_000_000;
    let samplers: [Box<dyn Sampler>; 4] = [
        Box::new(RandomSampler::with_seed(HUGE, 3).with_num_samples(3 * HUGE)),
        Box::new(RandomSampler::with_seed(HUGE, 3).with_replacement()),
        Box::new(RandomSampler::with_seed(3, 3).with_num_samples(HUGE)),
        Box::new(MixtureSampler::new(&[HUGE, HUGE / 7, 5], &[0.6, 0.4, 0.001], 3).unwrap()),
    ];
    for sampler in samplers {
        let len = sampler.len();
        let mut seen = Vec::new();
        for start in [0, HUGE / 2 - 50, len - 100] {
            let mut indices = [u64::MAX; 100];
            sampler.indices(1, start, &mut indices);
            assert!(indices.iter().all(|index| *index < 2 * HUGE));
            seen.extend(indices);
        }
        assert!(seen.iter().max() > seen.iter().min());
    }
}

#[test]
fn epochs_and_seeds_have_their_own_orders() {
    let weights = [1.0; 40];
    let random = |seed| RandomSampler::with_seed(40, seed);
    let weighted = move |seed| WeightedRandomSampler::new(&weights, 40, seed).unwrap();
    type Make = Box<dyn Fn(u64) -> Box<dyn Sampler>>;
    let makers: [Make; 5] = [
        Box::new(move |seed| Box::new(random(seed))),
        Box::new(move |seed| Box::new(random(seed).with_replacement())),
        Box::new(|seed| Box::new(SubsetRandomSampler::new(0..40, seed).unwrap())),
        Box::new(move |seed| Box::new(weighted(seed))),
        Box::new(move |seed| Box::new(weighted(seed).without_replacement().unwrap())),
    ];
    for make in makers {
        let sampler = make(1);
        assert_eq!(order(&*sampler, 0), order(&*make(1), 0));
        assert_ne!(order(&*sampler, 0), order(&*sampler, 1));
        assert_ne!(order(&*sampler, 0), order(&*make(2), 0));
    }
    // One permutation behind the other, each its own.
    let long = order(&random(1).with_num_samples(80), 0);
    assert_ne!(long[..40], long[40..]);
    assert_eq!(long[..40], order(&random(1), 0)[..]);
}

#[test]
fn weights_that_nothing_can_be_drawn_by_are_refused() {
    let refused = |weights: &[f64]| match WeightedRandomSampler::new(weights, 3, 7) {
        Err(Error::InvalidOption { option, reason }) => {
            assert_eq!(option, "WeightedRandomSampler::new");
            reason
        }
        other => panic!("{other:?}"),
    };
    let begins = |weights: &[f64], with: &str| {
        let reason = refused(weights);
        assert!(reason.starts_with(with), "{reason}");
    };
    begins(&[1.0, -0.5, f64::NAN], "weight 1 is -0.5: ");
    begins(&[1.0, 0.5, f64::NAN], "weight 2 is NaN: ");
    begins(&[f64::INFINITY], "weight 0 is inf: ");
    begins(&[1.0, f64::NEG_INFINITY], "weight 1 is -inf: ");
    begins(&[], "there are no weights");
    begins(&[0.0, -0.0], "all weights (2) are 0");

    let sampler = WeightedRandomSampler::new(&[1.0, 0.0, 2.0], 3, 7).unwrap();
    let error = sampler.without_replacement().unwrap_err().to_string();
    assert!(
        error.contains("3 samples would take as many positive weights, and 2 of 3 are"),
        "{error}"
    );
}

#[test]
fn mixtures_of_nothing_are_refused() {
    let refused = |lengths: &[u64], weights: &[f64], with: &str| {
        let error = MixtureSampler::new(lengths, weights, 7)
            .unwrap_err()
            .to_string();
        assert!(error.contains(with), "{error}");
    };
    refused(&[], &[], "there are no weights");
    refused(&[5, 5], &[1.0], "2 lengths and 1 weights");
    refused(&[5, 5], &[1.0, -1.0], "weight 1 is -1");
    refused(&[5, 5], &[0.0, 0.0], "all weights (2) are 0");
    refused(
        &[5, 0],
        &[1.0, 0.5],
        "data set 1 has no samples, and a weight of 0.5",
    );
    refused(&[u64::MAX, 1], &[1.0, 1.0], "more than 2⁶⁴");
    let one = MixtureSampler::new(&[5, 0], &[1.0, 0.0], 7).unwrap();
    assert_eq!(sorted(order(&one, 3)), [0, 1, 2, 3, 4]);
}

#[test]
fn an_order_that_does_not_fit_the_data_set_is_an_error_of_its_batch() {
    let numbers = || DataLoader::builder(vec![0i64, 1, 2]).batch_size(1);
    let loader = numbers()
        .sampler(SubsetRandomSampler::new([1, 3], 7).unwrap())
        .build()
        .unwrap();
    let batches: Vec<_> = loader.epoch(0).collect();
    let errors: Vec<String> = batches
        .into_iter()
        .filter_map(Result::err)
        .map(|error| error.to_string())
        .collect();
    assert_eq!(errors.len(), 1);
    assert!(
        errors[0].contains("the sampler gave index 3, and the data set has 3 samples"),
        "{errors:?}"
    );

    let nothing: Vec<i64> = Vec::new();
    let loader = DataLoader::builder(nothing)
        .sampler(RandomSampler::with_seed(0, 7).with_num_samples(2))
        .build()
        .unwrap();
    let error = loader.epoch(0).next().unwrap().unwrap_err().to_string();
    assert!(
        error.contains("the sampler gave index 0, and the data set has 0 samples"),
        "{error}"
    );
}

/// Orders are the same whatever the number of workers, also where the first to ask computes them.
#[test]
fn workers_change_nothing() {
    let weights: Vec<f64> = (0..500).map(|at| 1.0 + at as f64).collect();
    let weighted = WeightedRandomSampler::new(&weights, 400, 7).unwrap();
    let mixture = MixtureSampler::new(&[450, 50], &[0.7, 0.3], 7).unwrap();
    let samplers: [Box<dyn Fn() -> Box<dyn Sampler>>; 3] = [
        Box::new(|| Box::new(RandomSampler::with_seed(500, 7).with_num_samples(1_100))),
        Box::new(move || Box::new(weighted.clone().without_replacement().unwrap())),
        Box::new(move || Box::new(mixture.clone())),
    ];
    for sampler in samplers {
        let runs = [0, 1, 4].map(|workers| {
            let numbers: Vec<i64> = (0..500).collect();
            let loader = DataLoader::builder(numbers)
                .batch_size(7)
                .sampler(sampler())
                .num_workers(workers);
            let loader = loader.build().unwrap();
            let mut run = Vec::new();
            for epoch in loader.epochs(0..6) {
                epoch.for_each(|batch| run.extend(batch.unwrap().to_vec()));
            }
            run
        });
        assert_eq!(runs[0], runs[1]);
        assert_eq!(runs[0], runs[2]);
    }
}

/// A run that is resumed is told that its order is another one.
#[test]
fn fingerprints_tell_orders_apart() {
    let weighted =
        |weights: &[f64], count, seed| WeightedRandomSampler::new(weights, count, seed).unwrap();
    let mixture = |weights: &[f64], seed| MixtureSampler::new(&[60, 40], weights, seed).unwrap();
    let many: [Box<dyn Sampler>; 14] = [
        Box::new(RandomSampler::with_seed(100, 7)),
        Box::new(RandomSampler::with_seed(100, 8)),
        Box::new(RandomSampler::with_seed(100, 7).with_num_samples(90)),
        Box::new(RandomSampler::with_seed(100, 7).with_replacement()),
        Box::new(SubsetRandomSampler::new(0..50, 7).unwrap()),
        Box::new(SubsetRandomSampler::new(1..51, 7).unwrap()),
        Box::new(weighted(&[1.0, 2.0, 3.0], 3, 7)),
        Box::new(weighted(&[1.0, 2.0, 3.0], 3, 8)),
        Box::new(weighted(&[1.0, 2.0, 4.0], 3, 7)),
        Box::new(weighted(&[1.0, 2.0, 3.0], 2, 7)),
        Box::new(
            weighted(&[1.0, 2.0, 3.0], 3, 7)
                .without_replacement()
                .unwrap(),
        ),
        Box::new(mixture(&[0.5, 0.5], 7)),
        Box::new(mixture(&[0.5, 0.5], 8)),
        Box::new(mixture(&[0.5, 0.6], 7)),
    ];
    let mut prints: Vec<u32> = many.iter().map(|sampler| sampler.fingerprint()).collect();
    prints.sort_unstable();
    prints.dedup();
    assert_eq!(prints.len(), many.len());
    let again = weighted(&[1.0, 2.0, 3.0], 3, 7);
    assert_eq!(again.fingerprint(), again.clone().fingerprint());
    assert_eq!(
        again.fingerprint(),
        weighted(&[1.0, 2.0, 3.0], 3, 7).fingerprint()
    );
}

/// `RandomSampler::new` has the loader's seed, wherever it lies, and one with a seed of its own keeps it.
#[test]
fn samplers_take_the_loaders_seed() {
    fn order<D: Dataset<Sample = i64>>(builder: Builder<D, Stack>) -> Vec<i64> {
        let loader = builder.seed(17).build().unwrap();
        let epoch = loader.epoch(3);
        epoch.flat_map(|batch| batch.unwrap().to_vec()).collect()
    }
    let numbers = || DataLoader::builder(from_fn(40, |index, _| Ok(index as i64)));
    let listed = |sampler: FixedBatchSampler| order(numbers().batch_sampler(sampler));
    let shuffled = order(numbers().shuffle(true));
    let random = || RandomSampler::new(40);
    assert_eq!(order(numbers().sampler(random())), shuffled);
    assert_eq!(
        order(numbers().sampler(Box::new(random()) as Box<dyn Sampler>)),
        shuffled
    );
    assert_eq!(
        order(numbers().sampler(Arc::new(random()) as Arc<dyn Sampler>)),
        shuffled
    );
    assert_eq!(
        listed(FixedBatchSampler::new(random(), 7).unwrap()),
        shuffled
    );
    // The seed of a sampler's own is the sampler's, and so is the order of one that is shared.
    let own = order(numbers().sampler(RandomSampler::with_seed(40, 5)));
    assert_eq!(
        own,
        order(numbers().sampler(Arc::new(RandomSampler::with_seed(40, 5))))
    );
    assert_eq!(
        listed(FixedBatchSampler::new(RandomSampler::with_seed(40, 5), 7).unwrap()),
        own
    );
    assert_ne!(own, shuffled);
    let shared: Arc<dyn Sampler> = Arc::new(random());
    let unseeded = order(numbers().sampler(Arc::clone(&shared)));
    assert_eq!(
        unseeded,
        order(numbers().sampler(RandomSampler::with_seed(40, 0)))
    );
    drop(shared);
}
