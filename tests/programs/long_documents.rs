//! Documents of very different lengths: many batches ahead while they are short, few while they are long.

use std::error::Error;

use pinfeed::{DataLoader, Padded, SampleRng, from_fn};

const LIMIT: usize = 4 << 20;

pub fn main() -> Result<(), Box<dyn Error>> {
    let documents = from_fn(500, |index, rng: &mut SampleRng| {
        let len = match rng.range(0..40) {
            0 => rng.range(10_000..60_000usize),
            _ => rng.range(10..200usize),
        };
        Ok((Padded::from(vec![index as i64; len]), len as i64))
    });
    let loader = DataLoader::builder(documents)
        .batch_size(8)
        .shuffle(true)
        .num_workers(3)
        .prefetch(32) // for the short ones
        .max_bytes_in_flight(LIMIT) // for the long ones
        .build()?;
    let mut tokens = 0;
    for batch in loader.epoch(0) {
        let (documents, lengths) = batch?;
        assert_eq!(documents.len(), lengths.len());
        tokens += lengths.as_slice().iter().sum::<i64>();
    }
    let stats = loader.stats();
    println!("{tokens} tokens, {} bytes in flight at most", stats.most_bytes_in_flight);
    let longest = 8 * 60_000 * 8 + 4096; // a batch of them
    assert!(stats.most_bytes_in_flight <= (LIMIT + longest) as u64);
    Ok(())
}
