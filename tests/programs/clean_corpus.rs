//! Pretraining on scraped text: lines that are too short, or mostly no letters, are left out before they are tokenised. What is left fills
//! rows of a fixed length, and an interrupted run goes on where it was.

use std::error::Error;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use pinfeed::DataLoader;
use pinfeed::iterable::{self, IterableDataset, Line};
use pinfeed::loader::{Iterable, IterableState};
use pinfeed::packed::PackedBatch;

const CONTEXT: usize = 64;
const END_OF_TEXT: u16 = 256;

/// What a reader would call text.
fn is_text(line: &Line) -> bool {
    let letters = line.chars().filter(|letter| letter.is_alphabetic()).count();
    line.len() >= 20 && letters * 10 >= line.len() * 6
}

fn loader(files: &[PathBuf], workers: usize, left_out: &Arc<AtomicU64>) -> pinfeed::Result<DataLoader<PackedBatch<u16>, Iterable>> {
    let left_out = Arc::clone(left_out);
    let texts = iterable::lines(files).filter(move |line, _| {
        let keeps = is_text(line);
        left_out.fetch_add(u64::from(!keeps), Ordering::Relaxed);
        Ok(keeps)
    });
    let tokens = texts.map(|line, _| Ok(line.bytes().map(u16::from).chain([END_OF_TEXT]).collect::<Vec<_>>()));
    DataLoader::iterable(tokens.shuffle(50).pack(CONTEXT)?).batch_size(4).num_workers(workers).seed(17).build()
}

fn tokens(batch: &PackedBatch<u16>) -> Vec<u16> {
    let real = batch.tokens.as_slice().iter().zip(batch.mask.as_slice());
    real.filter(|(_, is_real)| **is_real == 1).map(|(token, _)| *token).collect()
}

pub fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let mut files = Vec::new();
    for file in 0..3 {
        let line = |line: usize| match line % 4 {
            0 => "Home | About | Log in\n".repeat(line % 2) + "404\n",
            1 => "0x7f 0x45 0x4c 0x46 0x02 0x01 0x01\n".to_owned(),
            _ => format!("This is sentence {line} of page {file}, which somebody wrote.\n"),
        };
        let path = folder.path().join(format!("page-{file}.txt"));
        fs::write(&path, (0..100).map(line).collect::<String>())?;
        files.push(path);
    }
    let left_out = Arc::default();
    let mut whole = Vec::new();
    for batch in loader(&files, 2, &left_out)?.epoch(0) {
        whole.extend(tokens(&batch?));
    }
    let texts = whole.iter().filter(|token| **token == END_OF_TEXT).count();
    assert_eq!((texts, left_out.load(Ordering::Relaxed)), (150, 150));
    assert!(!whole.windows(2).any(|pair| pair == [u16::from(b'0'), u16::from(b'x')]));

    // The power goes off after each ten batches.
    let (mut seen, mut checkpoint) = (Vec::new(), IterableState::default().to_string());
    loop {
        let loader = loader(&files, 1, &left_out)?;
        let Some(mut epoch) = loader.resume(0..1, &checkpoint.parse()?)?.next() else { break };
        let before = seen.len();
        for batch in epoch.by_ref().take(10) {
            seen.extend(tokens(&batch?));
        }
        if seen.len() == before {
            break;
        }
        checkpoint = epoch.state().to_string();
    }
    assert_eq!(seen, whole);
    Ok(())
}
