//! The loader is built first: while the program makes its model, page-locked memory is made for sentences of up to 64 tokens.

use std::error::Error;

use pinfeed::collate::Arena;
use pinfeed::loader::Affinity;
use pinfeed::{BoxError, DataLoader, Device, Tensor, from_fn};

const BATCH: usize = 8;
const LONGEST: usize = 64;

fn pad(sentences: Vec<Vec<i64>>, arena: &mut Arena) -> Result<Tensor<i64>, BoxError> {
    let longest = sentences.iter().map(Vec::len).max().unwrap_or(0);
    let mut padded = arena.zeros(&[sentences.len(), longest])?;
    let rows = padded.as_mut_slice().ok_or("it is new")?.chunks_mut(longest.max(1));
    for (row, sentence) in rows.zip(&sentences) {
        row[..sentence.len()].copy_from_slice(sentence);
    }
    Ok(padded)
}

pub fn main() -> Result<(), Box<dyn Error>> {
    let device = Device::cpu(); // or Device::cuda(0)?
    let sentences = from_fn(200, |index, rng| {
        let len = 1 + rng.below(LONGEST as u64) as usize;
        Ok(vec![index as i64; len])
    });
    let loader = DataLoader::builder(sentences)
        .batch_size(BATCH)
        .collate_fn(pad)
        .num_workers(2)
        .pin_memory(&device)
        .min_slab_bytes(BATCH * LONGEST * 8)
        .affinity(Affinity::Device)
        .build()?;
    // The model would be made here. Meanwhile:
    while device.memory().slabs_made < 5 {
        std::thread::yield_now();
    }
    for epoch in loader.epochs(0..3).prefetch_to_device(&device, 1) {
        for batch in epoch {
            let tokens = batch?;
            assert!(tokens.shape()[1] <= LONGEST);
        }
    }
    let memory = device.memory();
    println!("{} slabs, {} bytes each", memory.slabs_made, memory.pinned_bytes / 5);
    assert_eq!((memory.slabs_made, memory.slabs_missed), (5, 0));
    Ok(())
}
