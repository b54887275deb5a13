//! A model that learns to write, letter by letter: text files without end, packed into rows, for as many steps as there is time.

use std::error::Error;
use std::fs;

use pinfeed::iterable::{self, IterableDataset};
use pinfeed::{DataLoader, Device};

const CONTEXT: usize = 64;
const STEPS: usize = 25;

pub fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let mut files = Vec::new();
    for (name, verse) in [("a.txt", "Tyger Tyger, burning bright,\nIn the forests of the night;\n"), ("b.txt", "O Rose thou art sick.\n\n")] {
        let path = folder.path().join(name);
        fs::write(&path, verse.repeat(20))?;
        files.push(path);
    }

    // Each line is a document, and ends as lines do. Rows go on where the files begin again.
    let letters = iterable::lines(files).map(|line, _| Ok([line.as_bytes(), b"\n"].concat()));
    let rows = letters.repeat().pack(CONTEXT + 1)?;
    let pairs = rows.map(|row, _| {
        let letters: Vec<i64> = row.tokens.into_iter().map(i64::from).collect();
        Ok((letters[..CONTEXT].to_vec(), letters[1..].to_vec()))
    });
    let device = Device::cpu();
    let loader = DataLoader::iterable(pairs).batch_size(8).num_workers(2).pin_memory(&device).build()?;
    let mut text = String::new();
    for batch in loader.epoch(0).prefetch_to_device(&device, 2).take(STEPS) {
        let (input, target) = batch?; // for the model
        assert_eq!((&input.shape()[..], &target.shape()[..]), (&[8, CONTEXT][..], &[8, CONTEXT][..]));
        let (input, target) = (input.to_host(true)?.wait()?, target.to_host(true)?.wait()?);
        for row in 0..8 {
            let (input, target) = (&input.as_slice()[row * CONTEXT..][..CONTEXT], &target.as_slice()[row * CONTEXT..][..CONTEXT]);
            assert_eq!(input[1..], target[..CONTEXT - 1]);
            text.extend(input.iter().chain(&target[CONTEXT - 1..]).map(|letter| *letter as u8 as char));
        }
    }
    assert_eq!(text.len(), STEPS * 8 * (CONTEXT + 1));
    assert!(text.starts_with("Tyger Tyger, burning bright,\nIn"));
    assert!(text.contains("sick.\n\nTyger")); // the files begin again
    Ok(())
}
