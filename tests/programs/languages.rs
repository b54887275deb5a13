//! Texts in three languages, of which one has few: mixed by the square roots of their numbers, as language models are trained.

use std::error::Error;

use pinfeed::dataset::ConcatDataset;
use pinfeed::sampler::MixtureSampler;
use pinfeed::{DataLoader, Ragged, from_fn};

pub fn main() -> Result<(), Box<dyn Error>> {
    let texts = |language: i64, number: u64| {
        from_fn(number, move |index, _| {
            let tokens: Vec<i64> = (0..1 + index as i64 % 7).collect();
            Ok((Ragged::from(tokens), language))
        })
    };
    let corpus = ConcatDataset::new(vec![texts(0, 10_000), texts(1, 2_500), texts(2, 100)])?;
    let weights: Vec<f64> = corpus.lengths().iter().map(|&texts| (texts as f64).sqrt()).collect(); // 100 : 50 : 10

    let mixture = MixtureSampler::new(&corpus.lengths(), &weights, 17)?.with_num_samples(1_600);
    let loader = DataLoader::builder(corpus).batch_size(32).sampler(mixture).num_workers(2).build()?;
    for epoch in loader.epochs(0..2) {
        let mut counts = [0; 3];
        for batch in epoch {
            let (tokens, languages) = batch?;
            assert_eq!(tokens.len(), languages.len());
            languages.as_slice().iter().for_each(|language| counts[*language as usize] += 1);
        }
        println!("texts of each language: {counts:?}");
        assert_eq!(counts, [1_000, 500, 100]);
    }
    Ok(())
}
