//! Sentences of very different lengths, padded, at most 512 tokens in a batch: on two ranks, stopped in the middle, and resumed on one.

use std::error::Error;

use pinfeed::collate::Arena;
use pinfeed::loader::{LoaderState, World};
use pinfeed::sampler::TokenBatchSampler;
use pinfeed::{BoxError, DataLoader, Tensor, from_fn};

const BUDGET: usize = 512;

/// A sentence of 3 to 80 words; the first is its number.
fn sentence(index: u64) -> Vec<i64> {
    let words = 3 + (index * index) % 78;
    (0..words).map(|word| (index * 100 + word) as i64).collect()
}

/// Pads with -1.
fn pad(sentences: Vec<Vec<i64>>, arena: &mut Arena) -> Result<Tensor<i64>, BoxError> {
    let longest = sentences.iter().map(Vec::len).max().unwrap_or(0);
    let mut padded = arena.zeros(&[sentences.len(), longest])?;
    let all = padded.as_mut_slice().ok_or("new tensors are not shared")?;
    all.fill(-1);
    for (row, words) in all.chunks_mut(longest).zip(&sentences) {
        row[..words.len()].copy_from_slice(words);
    }
    Ok(padded)
}

fn loader(world: World) -> pinfeed::Result<DataLoader<Tensor<i64>>> {
    let lengths = (0..1_000).map(|index| sentence(index).len() as u32);
    DataLoader::builder(from_fn(1_000, |index, _| Ok(sentence(index))))
        .batch_sampler(TokenBatchSampler::new(lengths, BUDGET as u64, 17)?)
        .collate_fn(pad)
        .num_workers(2)
        .world(world)
        .build()
}

pub fn main() -> Result<(), Box<dyn Error>> {
    let mut seen = Vec::new();
    let mut padding = 0;
    let mut look = |batch: &Tensor<i64>, real_rows: usize| {
        assert!(batch.len() <= BUDGET);
        let rows = batch.as_slice().chunks(batch.shape()[1]).take(real_rows);
        seen.extend(rows.map(|row| row[0] / 100));
        padding += batch.as_slice().iter().filter(|word| **word == -1).count();
    };

    let mut saved = Vec::new();
    for rank in 0..2 {
        let loader = loader(World::new(rank, 2)?)?;
        println!("rank {rank}: {} batches", loader.len());
        for batch in loader.epoch(0).with_info().take(20) {
            let (batch, info) = batch?;
            look(&batch, info.real_rows());
        }
        saved.push(loader.state().to_string());
    }
    assert_eq!(saved[0], saved[1]);

    let state: LoaderState = saved[0].parse()?;
    let loader = loader(World::single())?;
    for epoch in loader.resume(0..1, &state)? {
        for batch in epoch.with_info() {
            let (batch, info) = batch?;
            look(&batch, info.real_rows());
        }
    }
    seen.sort();
    assert!(seen.into_iter().eq(0..1_000));
    println!("{padding} of 41,000 words are padding");
    assert!(padding < 2_000);
    Ok(())
}
