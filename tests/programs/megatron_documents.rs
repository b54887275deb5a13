//! Documents as Megatron's `preprocess_data.py` has them, packed into rows: two ranks, one of which is lost, and the other goes on alone. Each token
//! is learned once.

use std::error::Error;
use std::fs;
use std::path::Path;

use pinfeed::arrays::TokenFile;
use pinfeed::dataset::PackingStrategy;
use pinfeed::loader::World;
use pinfeed::DataLoader;
use pinfeed::packed::PackedBatch;

const CONTEXT: usize = 64;
/// Each token is another one, so that they can be counted.
const TOKENS: usize = 6_000;

fn write(folder: &Path) -> Result<(), Box<dyn Error>> {
    let tokens = (1..=TOKENS as i32).flat_map(i32::to_le_bytes);
    fs::write(folder.join("corpus_text_document.bin"), tokens.collect::<Vec<u8>>())?;
    let (mut lengths, mut rest) = (Vec::new(), TOKENS);
    while rest > 0 {
        let length = (5 + rest * 7 % 50).min(rest);
        lengths.push(length);
        rest -= length;
    }
    let mut index = b"MMIDIDX\0\0".to_vec();
    index.extend(1u64.to_le_bytes());
    index.push(4); // int32
    index.extend((lengths.len() as u64).to_le_bytes());
    index.extend((lengths.len() as u64 + 1).to_le_bytes());
    index.extend(lengths.iter().flat_map(|length| (*length as i32).to_le_bytes()));
    let mut place = 0i64;
    for length in &lengths {
        index.extend(place.to_le_bytes());
        place += 4 * *length as i64;
    }
    index.extend((0..=lengths.len() as i64).flat_map(i64::to_le_bytes));
    fs::write(folder.join("corpus_text_document.idx"), index)?;
    Ok(())
}

/// The loader of a rank; eight rows are a step of all ranks together.
fn loader(folder: &Path, world: World) -> Result<DataLoader<PackedBatch<i32>>, Box<dyn Error>> {
    let corpus = folder.join("corpus_text_document");
    let corpus = TokenFile::<i32>::megatron(corpus.with_extension("bin"), corpus.with_extension("idx"))?;
    let rows = corpus.documents()?.pack(CONTEXT, PackingStrategy::BestFit)?;
    Ok(DataLoader::builder(rows).global_batch_size(8).shuffle(true).seed(3).world(world).num_workers(2).build()?)
}

fn learn(batch: &PackedBatch<i32>, seen: &mut Vec<i32>) {
    let tokens = batch.tokens.as_slice().iter().zip(batch.mask.as_slice());
    seen.extend(tokens.filter(|(_, is_real)| **is_real == 1).map(|(token, _)| *token));
}

pub fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    write(folder.path())?;
    let mut seen = Vec::new();
    let mut checkpoint = String::new();
    for rank in 0..2 {
        let loader = loader(folder.path(), World::new(rank, 2)?)?;
        for batch in loader.epoch(0).take(4) {
            let batch = batch?;
            assert_eq!(batch.tokens.shape()[..], [4, CONTEXT]);
            learn(&batch, &mut seen);
        }
        checkpoint = loader.state().to_string();
    }
    let alone = loader(folder.path(), World::new(0, 1)?)?;
    for epoch in alone.resume(0..1, &checkpoint.parse()?)? {
        for batch in epoch {
            learn(&batch?, &mut seen);
        }
    }
    seen.sort_unstable();
    assert!(seen.into_iter().eq(1..=TOKENS as i32), "each token once");
    Ok(())
}
