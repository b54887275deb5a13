//! Learns which letter follows which, from a file of tokens as nanoGPT has them, mapped into memory. Without arguments it writes the file
//! itself, from this repository's README; or give it a `train.bin` of yours, of the GPT-2 tokenizer's `u16`.
//!
//!     cargo run --release --features arrays --example tokens
//!     cargo run --release --features arrays --example tokens -- data/openwebtext/train.bin

#![expect(unsafe_code, reason = "it maps a file that nothing writes")]

use std::error::Error;
use std::path::PathBuf;
use std::time::Instant;

use pinfeed::Device;
use pinfeed::arrays::{FileBytes, TokenFile};
use pinfeed::prelude::*;
use pinfeed::sampler::RandomSampler;

const CONTEXT: usize = 64;
const BATCH: usize = 32;
const STEPS: usize = 600;
/// Tokens are counted in so many classes: letters are below it, and others share one.
const CLASSES: usize = 256;

fn main() -> Result<(), Box<dyn Error>> {
    let folder = std::env::temp_dir().join(format!("pinfeed-tokens-{}", std::process::id()));
    let given = std::env::args_os().nth(1).map(PathBuf::from);
    let path = match &given {
        Some(path) => path.clone(),
        None => {
            std::fs::create_dir_all(&folder)?;
            let path = folder.join("train.bin");
            let letters = include_bytes!("../README.md");
            let tokens = letters
                .iter()
                .flat_map(|letter| u16::from(*letter).to_le_bytes());
            std::fs::write(&path, tokens.collect::<Vec<u8>>())?; // what numpy.array(.., numpy.uint16).tofile(..) writes
            path
        }
    };
    let result = learn(&path);
    if given.is_none() {
        std::fs::remove_dir_all(&folder)?;
    }
    result
}

fn learn(path: &std::path::Path) -> Result<(), Box<dyn Error>> {
    // SAFETY: the file is complete, and nothing writes it.
    let file = unsafe { FileBytes::map(path) }?;
    let tokens = TokenFile::<u16>::raw(file)?.with_vocabulary(50_257);
    println!("{}: {} tokens", path.display(), tokens.len());

    let device = Device::available(); // the first CUDA device, or the CPU
    let windows = tokens.windows(CONTEXT)?.with_stride(1)?; // they begin anywhere, as nanoGPT's
    let anywhere = RandomSampler::new(windows.len()).with_replacement();
    let loader = DataLoader::builder(windows)
        .batch_size(BATCH)
        .sampler(anywhere.with_num_samples(BATCH * STEPS))
        .seed(17)
        .num_workers(2)
        .pin_memory(&device)
        .build()?;

    let begun = Instant::now();
    let mut follows = vec![[1.0f64; CLASSES]; CLASSES]; // how often each class followed each
    let (mut loss, mut seen) = (0.0, 0);
    for (step, batch) in loader.epoch(0).prefetch_to_device(&device, 2).enumerate() {
        let (x, y) = batch?; // [32, 64] each; a model of yours takes them where they are
        let (x, y) = (x.to_host(true)?.wait()?, y.to_host(true)?.wait()?);
        for (x, y) in x.as_slice().iter().zip(y.as_slice()) {
            let [x, y] = [x, y].map(|token| usize::from(*token).min(CLASSES - 1));
            let all: f64 = follows[x].iter().sum();
            loss -= (follows[x][y] / all).ln();
            follows[x][y] += 1.0;
            seen += 1;
        }
        if (step + 1) % (STEPS / 6) == 0 {
            println!("step {:3}: loss {:.3}", step + 1, loss / f64::from(seen));
            (loss, seen) = (0.0, 0);
        }
    }
    let tokens = (BATCH * CONTEXT * STEPS) as f64;
    println!(
        "{:.1} million tokens/s, of a model that is made of counts",
        tokens / begun.elapsed().as_secs_f64() / 1e6
    );
    Ok(())
}
