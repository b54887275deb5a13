//! Five folds: each sample validates once, and trains four times.

use std::error::Error;
use std::sync::Arc;

use pinfeed::dataset::Subset;
use pinfeed::{DataLoader, Dataset, from_fn};

const FOLDS: u64 = 5;

pub fn main() -> Result<(), Box<dyn Error>> {
    let samples = Arc::new(from_fn(103, |index, _| Ok((vec![index as f32; 3], index as i64))));
    let mut validated = vec![0; 103];
    for fold in 0..FOLDS {
        let (held_out, rest): (Vec<u64>, Vec<u64>) = (0..samples.len()).partition(|index| index % FOLDS == fold);
        let train = Subset::new(Arc::clone(&samples), rest)?;
        let validate = Subset::new(Arc::clone(&samples), held_out)?;
        assert_eq!(train.len() + validate.len(), 103);

        let train = DataLoader::builder(train).batch_size(16).shuffle(true).seed(fold).num_workers(2).build()?;
        let validate = DataLoader::builder(validate).batch_size(16).build()?;
        for epoch in train.epochs(0..2) {
            for batch in epoch {
                let (_, ids) = batch?;
                assert!(ids.as_slice().iter().all(|id| *id as u64 % FOLDS != fold));
            }
        }
        for batch in &validate {
            let (features, ids) = batch?;
            assert_eq!(features.shape()[..], [ids.len(), 3]);
            ids.as_slice().iter().for_each(|id| validated[*id as usize] += 1);
        }
    }
    assert_eq!(validated, vec![1; 103]);
    Ok(())
}
