//! Fine-tuning that does not forget: each batch of 20 has two samples of what the network knew before.

use std::error::Error;

use pinfeed::dataset::ConcatDataset;
use pinfeed::sampler::MixtureSampler;
use pinfeed::{DataLoader, Dataset, Tensor, TensorDataset};

pub fn main() -> Result<(), Box<dyn Error>> {
    let data = |value: f32, rows: usize| -> Result<_, pinfeed::Error> {
        let features = Tensor::from_vec(vec![value; rows * 4], &[rows, 4])?;
        let ids = Tensor::from_vec((0..rows as i64).collect(), &[rows])?;
        TensorDataset::new((features, ids))
    };
    let both = ConcatDataset::new(vec![data(1.0, 900)?, data(-1.0, 50_000)?])?;
    let epoch_len = 1_000; // the new data once, and what goes with it
    let mixture = MixtureSampler::new(&both.lengths(), &[0.9, 0.1], 3)?.with_num_samples(epoch_len);
    assert_eq!(both.len(), 50_900);
    let loader = DataLoader::builder(both).batch_size(20).sampler(mixture).build()?;

    let mut old_ones = Vec::new();
    for epoch in loader.epochs(0..4) {
        let mut new_ones = vec![false; 900];
        for batch in epoch {
            let (features, ids) = batch?;
            let known: Vec<bool> = features.as_slice().chunks(4).map(|row| row[0] < 0.0).collect();
            assert_eq!(known.iter().filter(|known| **known).count(), 2);
            for (known, id) in known.iter().zip(ids.as_slice()) {
                match known {
                    true => old_ones.push(*id),
                    false => new_ones[*id as usize] = true,
                }
            }
        }
        assert!(new_ones.iter().all(|seen| *seen));
    }
    // The old data were gone through without coming to the same one twice.
    old_ones.sort_unstable();
    old_ones.dedup();
    println!("{} different old samples", old_ones.len());
    assert_eq!(old_ones.len(), 400);
    Ok(())
}
