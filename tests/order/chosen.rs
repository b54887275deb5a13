//! Orders and data sets that are chosen when the program runs, and what is drawn in them.

use std::sync::{Arc, Mutex};

use pinfeed::dataset::Pass;
use pinfeed::rng::RngKey;
use pinfeed::sampler::{RandomSampler, Sampler, SequentialSampler};
use pinfeed::{BoxError, DataLoader, Dataset, Error, SampleRng, Tensor, from_fn};

/// Class 0 or 1, drawn for each position.
struct Balanced(u64);

impl Sampler for Balanced {
    fn len(&self) -> u64 {
        4_000
    }

    fn index(&self, epoch: u64, position: u64) -> u64 {
        u64::from(
            SampleRng::for_sampler(RngKey {
                seed: self.0,
                epoch,
                position,
            })
            .bool(0.5),
        )
    }
}

#[test]
fn what_a_sampler_draws_says_nothing_about_what_its_samples_draw() {
    let dataset = from_fn(2, |class, rng| Ok((class as i64, rng.bool(0.5))));
    let loader = DataLoader::builder(dataset)
        .sampler(Balanced(7))
        .seed(7) // the sampler's
        .batch_size(4_000);
    let (classes, flips) = loader.build().unwrap().epoch(0).next().unwrap().unwrap();
    let mut counts = [[0; 2]; 2];
    for (class, flip) in classes.as_slice().iter().zip(flips.as_slice()) {
        counts[*class as usize][usize::from(*flip)] += 1;
    }
    let even = counts
        .as_flattened()
        .iter()
        .all(|count| (850..1_150).contains(count));
    assert!(even, "class and flip: {counts:?}");
}

fn order(sampler: impl Sampler) -> Vec<i64> {
    let dataset = from_fn(40, |index, _| Ok(index as i64));
    let loader = DataLoader::builder(dataset).sampler(sampler).batch_size(40);
    let loader = loader.num_workers(2).build().unwrap();
    loader.epoch(3).next().unwrap().unwrap().to_vec()
}

#[test]
fn an_order_is_chosen_when_the_program_runs() {
    let chosen = |name: &str| -> Box<dyn Sampler> {
        match name {
            "random" => Box::new(RandomSampler::with_seed(40, 9)),
            "few" => Box::new(vec![3, 1]),
            _ => Box::new(SequentialSampler::new(40)),
        }
    };
    assert_eq!(order(chosen("few")), [3, 1]);
    assert_eq!(order(chosen("")), order(SequentialSampler::new(40)));
    assert_eq!(
        order(chosen("random")),
        order(RandomSampler::with_seed(40, 9))
    );
    let shared: Arc<dyn Sampler> = Arc::new(RandomSampler::with_seed(40, 9));
    assert_eq!(
        order(Arc::clone(&shared)),
        order(RandomSampler::with_seed(40, 9))
    );
    assert_eq!(
        order(Box::new(shared)),
        order(RandomSampler::with_seed(40, 9))
    );
    assert!(!chosen("few").is_empty());
}

/// Says what it was asked for, by methods that have bodies of their own in the trait too.
#[derive(Default)]
struct Noted(Mutex<Vec<&'static str>>);

impl Noted {
    fn note(&self, what: &'static str) {
        let mut noted = self.0.lock().unwrap();
        if !noted.contains(&what) {
            noted.push(what);
        }
    }

    fn noted(&self) -> Vec<&'static str> {
        let mut noted = self.0.lock().unwrap().clone();
        noted.sort_unstable();
        noted
    }
}

impl Sampler for Noted {
    fn len(&self) -> u64 {
        20
    }

    fn is_empty(&self) -> bool {
        self.note("is_empty");
        false
    }

    fn index(&self, _: u64, position: u64) -> u64 {
        position
    }

    fn indices(&self, _: u64, start: u64, indices: &mut [u64]) {
        self.note("indices");
        for (index, position) in indices.iter_mut().zip(start..) {
            *index = position;
        }
    }
}

impl Dataset for Noted {
    type Sample = Tensor<u8>;

    fn len(&self) -> u64 {
        20
    }

    fn is_empty(&self) -> bool {
        self.note("is_empty");
        false
    }

    fn get(&self, index: u64, _: &mut SampleRng) -> Result<Tensor<u8>, BoxError> {
        match index {
            19 => Err("the last".into()),
            _ => Ok(Tensor::zeros(&[4])),
        }
    }

    fn describe(&self, index: u64) -> Option<String> {
        self.note("describe");
        Some(format!("the {index}th"))
    }

    fn lookahead(&self) -> usize {
        self.note("lookahead");
        3
    }

    fn will_need(&self, _: &[u64], _: Pass) {
        self.note("will_need");
    }

    fn pass_ended(&self, _: Pass) {
        self.note("pass_ended");
    }

    fn is_registered(&self) -> bool {
        self.note("is_registered");
        false
    }

    fn sample_bytes(&self) -> Option<usize> {
        self.note("sample_bytes");
        Some(4)
    }
}

#[test]
fn a_sampler_in_a_box_is_asked_what_it_answers_itself() {
    let noted = Arc::new(Noted::default());
    let boxed: Box<dyn Sampler> = Box::new(Arc::clone(&noted));
    assert_eq!(order(boxed), (0..20).collect::<Vec<_>>());
    assert!(noted.noted().contains(&"indices"));
    let boxed: Box<dyn Sampler> = Box::new(Arc::clone(&noted));
    assert!(!Sampler::is_empty(&boxed));
    assert!(noted.noted().contains(&"is_empty"));
}

/// All of an epoch; the last sample's error.
fn loaded<D: Dataset<Sample = Tensor<u8>>>(dataset: D) -> String {
    assert!(!dataset.is_empty());
    assert_eq!(dataset.sample_bytes(), Some(4));
    assert!(!dataset.is_registered());
    let loader = DataLoader::builder(dataset).batch_size(10).num_workers(1);
    let loader = loader.build().unwrap();
    let mut batches: Vec<_> = loader.epoch(0).collect();
    match batches.pop().unwrap() {
        Err(error @ Error::Sample(..)) => error.to_string(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_data_set_is_chosen_when_the_program_runs() {
    let all = [
        "describe",
        "is_empty",
        "is_registered",
        "lookahead",
        "pass_ended",
        "sample_bytes",
        "will_need",
    ];
    type Chosen = dyn Dataset<Sample = Tensor<u8>>;

    let noted = Arc::new(Noted::default());
    let boxed: Box<Chosen> = Box::new(Arc::clone(&noted));
    assert!(loaded(boxed).contains("the 19th"));
    assert_eq!(noted.noted(), all);

    let noted = Arc::new(Noted::default());
    let shared: Arc<Chosen> = Arc::clone(&noted) as _;
    assert!(loaded(shared).contains("the 19th"));
    assert_eq!(noted.noted(), all);

    let boxed: Box<Chosen> = Box::new(from_fn(1, |_, _| Ok(Tensor::zeros(&[2]))));
    let loader = DataLoader::builder(boxed.map(|sample, _| Ok((sample, 1i64))));
    let (_, labels) = loader.build().unwrap().epoch(0).next().unwrap().unwrap();
    assert_eq!(labels.as_slice(), [1]);
}
