//! A language model's input from a file of tokens that is mapped into memory: windows that begin anywhere for training, each token once
//! for validation, and documents packed into rows.

#![expect(unsafe_code, reason = "it maps a file that nothing writes")]

use std::error::Error;

use pinfeed::arrays::{FileBytes, TokenFile};
use pinfeed::dataset::PackingStrategy;
use pinfeed::sampler::RandomSampler;
use pinfeed::{DataLoader, Dataset, Device};

const END: u16 = 96;
const CONTEXT: usize = 32;
const STEPS: usize = 20;

pub fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("train.bin");
    // As nanoGPT's prepare.py writes it: numpy.array(ids, dtype=numpy.uint16).tofile("train.bin")
    let tokens: Vec<u16> = (0..5_000).map(|place| place % 97).collect(); // each is one more than the one before; 96 ends a document
    std::fs::write(&path, tokens.iter().flat_map(|token| token.to_le_bytes()).collect::<Vec<u8>>())?;

    // SAFETY: the file is complete, and nothing writes it.
    let file = unsafe { FileBytes::map(&path) }?;
    let tokens = TokenFile::<u16>::raw(file)?.with_vocabulary(97);

    let device = Device::cpu();
    let windows = tokens.windows(CONTEXT)?.with_stride(1)?;
    let anywhere = RandomSampler::new(windows.len()).with_replacement().with_num_samples(STEPS * 8);
    let train = DataLoader::builder(windows.to_i64()).batch_size(8).sampler(anywhere).seed(17).num_workers(2).pin_memory(&device).build()?;
    let mut steps = 0;
    for batch in train.epoch(0).prefetch_to_device(&device, 2) {
        let (x, y) = batch?; // [8, 32] and [8, 32], i64
        let (x, y) = (x.to_host(true)?.wait()?, y.to_host(true)?.wait()?);
        assert!(x.as_slice().iter().zip(y.as_slice()).all(|(x, y)| (x + 1) % 97 == *y));
        steps += 1;
    }
    assert_eq!(steps, STEPS);

    let validation = DataLoader::builder(tokens.windows(CONTEXT)?).batch_size(10).build()?;
    let mut targets = 0;
    for batch in &validation {
        targets += batch?.1.len(); // u16: half of what i32 takes on its way
    }
    assert_eq!(targets, 4_999 / CONTEXT * CONTEXT);

    let rows = tokens.split_after(END)?.documents()?.pack(CONTEXT * 4, PackingStrategy::BestFit)?.with_padding(END);
    assert_eq!(rows.real_tokens(), 5_000);
    let loader = DataLoader::builder(rows).batch_size(4).shuffle(true).num_workers(2).build()?;
    for batch in &loader {
        let batch = batch?;
        assert_eq!(batch.tokens.shape()[1], CONTEXT * 4);
        let firsts = batch.tokens.as_slice().chunks(CONTEXT * 4).map(|row| row[0]);
        assert!(firsts.into_iter().all(|first| first == 0)); // rows begin with a document
    }
    Ok(())
}
