//! Reviews in JSON Lines, a file for each rank at least: parsed by all workers, padded to the longest of a batch, and resumed in the middle
//! of a file.

use std::error::Error;
use std::fs;
use std::path::PathBuf;

use pinfeed::loader::{Iterable, IterableState, World};
use pinfeed::padded::PaddedTensor;
use pinfeed::iterable::{self, Line, IterableDataset};
use pinfeed::{BoxError, DataLoader, Padded, SampleRng, Tensor};

type Reviews = (PaddedTensor<u16>, Tensor<i64>);

/// (A model's tokeniser stands here.)
fn parse(line: Line, _: &mut SampleRng) -> Result<(Padded<u16>, i64), BoxError> {
    let review: serde_json::Value = serde_json::from_str(&line).map_err(|cause| line.error(cause))?;
    let text = review["text"].as_str().ok_or_else(|| line.error("it has no text"))?;
    let stars = review["stars"].as_i64().ok_or_else(|| line.error("it has no stars"))?;
    Ok((Padded::from(text.bytes().map(u16::from).collect::<Vec<_>>()), stars))
}

fn loader(files: &[PathBuf], rank: usize) -> pinfeed::Result<DataLoader<Reviews, Iterable>> {
    DataLoader::iterable(iterable::lines(files).shuffle(16).map(parse))
        .batch_size(8)
        .seed(17)
        .num_workers(2)
        .world(World::new(rank, 2)?)
        .build()
}

/// Reads to the end, or stops after some batches; returns the stars.
fn read(loader: &DataLoader<Reviews, Iterable>, state: &IterableState, steps: usize) -> Result<(Vec<i64>, String), Box<dyn Error>> {
    let mut stars = Vec::new();
    let mut epoch = loader.resume(0..1, state)?.next().ok_or("the epoch was read")?;
    for batch in epoch.by_ref().take(steps) {
        let (texts, of_texts) = batch?;
        assert_eq!(texts.lengths.len(), of_texts.len());
        stars.extend_from_slice(of_texts.as_slice());
    }
    Ok((stars, epoch.state().to_string()))
}

pub fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let mut files = Vec::new();
    for file in 0..4 {
        let review = |line: usize| format!("{{\"text\": \"{}\", \"stars\": {}}}\n", "very ".repeat(line % 5) + "good", 50 * file + line);
        let path = folder.path().join(format!("reviews-{file}.jsonl"));
        fs::write(&path, (0..50).map(review).collect::<String>())?;
        files.push(path);
    }
    let mut all = Vec::new();
    for rank in 0..2 {
        let (whole, _) = read(&loader(&files, rank)?, &IterableState::default(), usize::MAX)?;
        // Interrupted after 5 steps, and resumed by another process.
        let (mut seen, checkpoint) = read(&loader(&files, rank)?, &IterableState::default(), 5)?;
        let (rest, _) = read(&loader(&files, rank)?, &checkpoint.parse()?, usize::MAX)?;
        seen.extend(rest);
        assert_eq!(seen, whole);
        all.extend(whole);
    }
    all.sort_unstable();
    assert!(all.into_iter().eq(0..200)); // each rank has two files
    Ok(())
}
