//! Code, prose and a little mathematics, in fixed proportions, in rows for four ranks that take equally many steps.

use std::error::Error;

use pinfeed::DataLoader;
use pinfeed::loader::World;
use pinfeed::iterable::{self, Shard, IterableDataset};

const STEPS: u64 = 50;
const BATCH: usize = 4;
const CONTEXT: usize = 64;

/// Documents of one kind, of which each rank has every fourth. Their first token says what they are.
fn corpus(kind: u16, documents: u64, longest: u64) -> impl IterableDataset<Sample = Vec<u16>> {
    iterable::from_fn(move |pass, shard: Shard| {
        let own = (0..documents).filter(move |number| shard.keeps(*number));
        let document = move |number| [vec![kind], vec![100; ((number * 31 + pass) % longest) as usize]].concat();
        Ok(own.map(move |number| Ok(document(number))))
    })
}

pub fn main() -> Result<(), Box<dyn Error>> {
    let mut documents = [0; 4];
    for rank in 0..4 {
        // Each goes on with its next pass by itself, the smallest most often.
        let mixed = iterable::mix([
            (corpus(1, 900, 90).repeat().shuffle(32), 5.0),
            (corpus(2, 400, 50).repeat().shuffle(32), 4.0),
            (corpus(3, 60, 20).repeat().shuffle(8), 1.0),
        ])?;
        // Rows are shuffled, too: otherwise neighbours in a row would be neighbours in their batch. Their number ends all ranks together.
        let rows = mixed.pack(CONTEXT)?.shuffle(100).take(STEPS * BATCH as u64);
        let loader = DataLoader::iterable(rows)
            .batch_size(BATCH)
            .seed(17)
            .num_workers(2)
            .world(World::new(rank, 4)?)
            .build()?;
        let mut steps = 0;
        for batch in loader.epoch(0) {
            let batch = batch?;
            assert!(batch.mask.as_slice().iter().all(|real| *real == 1)); // no row is padded
            let kinds = batch.tokens.as_slice().iter().filter(|token| **token < 100);
            kinds.for_each(|kind| documents[usize::from(*kind)] += 1);
            steps += 1;
        }
        assert_eq!(steps, STEPS);
    }
    let all: usize = documents.iter().sum();
    println!("{documents:?} of {all} documents");
    for (kind, share) in [(1, 0.5), (2, 0.4), (3, 0.1)] {
        assert!((documents[kind] as f64 / all as f64 - share).abs() < 0.03);
    }
    Ok(())
}
