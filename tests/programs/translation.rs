//! Pairs of sentences: labels are padded with -100, which the loss leaves out, and pairs that are too long are left out themselves.

use std::error::Error;

use pinfeed::loader::OnError;
use pinfeed::{DataLoader, Padded, Sample, from_fn};

const LONGEST: usize = 24;
const BEGIN: i64 = 1;
const END: i64 = 2;

#[derive(Sample)]
struct Pair {
    source: Padded<i64>,
    /// What the decoder is given: the target, one place later.
    decoder_input: Padded<i64>,
    labels: Padded<i64>,
}

pub fn main() -> Result<(), Box<dyn Error>> {
    let pairs = from_fn(100, |index, _| {
        let source: Vec<i64> = (0..1 + index as i64 % 30).map(|word| 3 + word).collect();
        let target: Vec<i64> = source.iter().rev().map(|word| 100 + word).collect();
        Ok(Pair {
            source: Padded::from(source).at_most(LONGEST)?,
            decoder_input: Padded::from([&[BEGIN], &target[..]].concat()),
            labels: Padded::from([&target[..], &[END]].concat()).with_value(-100),
        })
    });
    let loader = DataLoader::builder(pairs)
        .batch_size(16)
        .num_workers(2)
        .on_error(OnError::Skip { at_most: 50 })
        .build()?;

    for epoch in loader.epochs(0..2) {
        let (mut pairs, mut learned) = (0, 0);
        for batch in epoch {
            let batch: PairBatch = batch?;
            assert_eq!(batch.labels.values.shape(), batch.decoder_input.values.shape());
            for (target, labels) in batch.decoder_input.rows().zip(batch.labels.rows()) {
                assert_eq!((target[0], labels.last()), (BEGIN, Some(&END)));
                assert_eq!(target[1..], labels[..labels.len() - 1]);
            }
            // What cross entropy with `ignore_index=-100` averages over.
            learned += batch.labels.values.as_slice().iter().filter(|label| **label != -100).count();
            pairs += batch.source.len();
            assert!(batch.source.padded_len() <= LONGEST);
        }
        println!("{pairs} pairs, {learned} words; {} were too long", loader.stats().bad.skipped);
        assert_eq!(pairs as u64 + loader.stats().bad.skipped, 100);
        assert_eq!(loader.stats().bad.skipped, 18);
        assert_eq!(learned, 3 * (1..=24).map(|length| length + 1).sum::<usize>() + (1..=10).map(|length| length + 1).sum::<usize>());
    }
    Ok(())
}
