//! Ragged batches are what a vector of vectors would be.

#![cfg(not(miri))] // it takes many loaders

use pinfeed::{DataLoader, Device, Ragged, from_fn};
use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_ragged_batch_is_a_vector_of_vectors(
        samples in prop::collection::vec(prop::collection::vec(any::<[i16; 2]>(), 0..9), 0..40),
        batch_size in 1..12usize,
        workers in 0..3usize,
        pin: bool,
    ) {
        let expected = samples.clone();
        let dataset = from_fn(samples.len(), move |index, _| {
            Ok((index as i64, Ragged::from(samples[index as usize].clone())))
        });
        let mut builder = DataLoader::builder(dataset)
            .batch_size(batch_size)
            .num_workers(workers);
        if pin {
            builder = builder.pin_memory(&Device::cpu());
        }
        let loader = builder.build().unwrap();
        let mut batches = 0;
        for (batch, expected) in (&loader).into_iter().zip(expected.chunks(batch_size)) {
            let (numbers, batch) = batch.unwrap();
            prop_assert_eq!((batch.len(), numbers.len()), (expected.len(), expected.len()));
            let rows: Vec<Vec<[i16; 2]>> = batch
                .rows()
                .map(|row| row.as_chunks().0.to_vec())
                .collect();
            prop_assert_eq!(&rows, expected);
            let offsets: Vec<usize> = batch.offsets.as_slice().iter().map(|x| *x as usize).collect();
            let lengths: Vec<usize> = offsets.windows(2).map(|pair| pair[1] - pair[0]).collect();
            let expected_lengths: Vec<usize> = expected.iter().map(Vec::len).collect();
            prop_assert_eq!(lengths, expected_lengths);
            prop_assert_eq!(offsets[0], 0);
            prop_assert_eq!(&batch.values.shape()[..], [offsets[expected.len()], 2]);
            batches += 1;
        }
        prop_assert_eq!(batches, expected.len().div_ceil(batch_size));
    }
}
