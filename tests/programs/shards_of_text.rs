//! Pretraining from files of text, too many to count their documents: tokenised as they are read, shuffled, packed into rows, and
//! resumed where an interrupted run stopped.

use std::error::Error;
use std::fs;
use std::path::Path;

use pinfeed::loader::IterableState;
use pinfeed::iterable::{self, Line, IterableDataset};
use pinfeed::{BoxError, DataLoader, Device, SampleRng};

const CONTEXT: usize = 32;
const END_OF_TEXT: u16 = 256;

/// Each line is a text. (A model's tokeniser stands here.)
fn tokenise(text: Line, _: &mut SampleRng) -> Result<Vec<u16>, BoxError> {
    Ok(text.bytes().map(u16::from).chain([END_OF_TEXT]).collect())
}

/// Trains until the epoch ends, or the power goes off after `steps` steps. Returns what the model has seen.
fn train(folder: &Path, checkpoint: &Path, workers: usize, steps: usize) -> Result<Vec<u16>, Box<dyn Error>> {
    let files = (0..6).map(|file| folder.join(format!("{file}.txt")));
    let device = Device::cpu();
    let rows = iterable::lines(files).map(tokenise).shuffle(100).pack(CONTEXT)?;
    let loader = DataLoader::iterable(rows)
        .batch_size(4)
        .seed(17)
        .num_workers(workers)
        .pin_memory(&device)
        .build()?;
    let state = match fs::read_to_string(checkpoint) {
        Ok(saved) => saved.parse()?,
        Err(_) => IterableState::default(),
    };
    let (mut seen, mut step) = (Vec::new(), 0);
    for mut epoch in loader.resume(0..1, &state)?.prefetch_to_device(&device, 2) {
        while let Some(batch) = epoch.next() {
            let batch = batch?;
            assert!(batch.max_seqlen <= CONTEXT); // with `cu_seqlens`, what attention within documents takes
            let (tokens, mask) = (batch.tokens.to_host(true)?.wait()?, batch.mask.to_host(true)?.wait()?);
            let real = tokens.as_slice().iter().zip(mask.as_slice()).filter(|(_, real)| **real == 1);
            seen.extend(real.map(|(token, _)| *token));
            fs::write(checkpoint, epoch.state().to_string())?;
            step += 1;
            if step == steps {
                return Ok(seen);
            }
        }
    }
    Ok(seen)
}

pub fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let mut bytes = 0;
    for file in 0..6usize {
        let texts: String = (0..40).map(|line| "lorem ipsum ".repeat((file + line) % 7) + "dolor\n").collect();
        bytes += texts.len();
        fs::write(folder.path().join(format!("{file}.txt")), texts)?;
    }
    let run = |name: &str, workers, steps| train(folder.path(), &folder.path().join(name), workers, steps);
    let whole = run("whole", 2, usize::MAX)?;
    assert_eq!(whole.len(), bytes); // a token for each byte; the end of a line is the end of a text
    assert_eq!(whole.iter().filter(|token| **token == END_OF_TEXT).count(), 240);
    let mut seen = Vec::new();
    for (workers, steps) in [(3, 5), (0, 1), (1, 30), (2, usize::MAX)] {
        seen.extend(run("parts", workers, steps)?);
    }
    assert_eq!(seen, whole);
    Ok(())
}
