//! Lines of text files, tokenised and padded, without an index: an iterable. It reads this project's own documents, or yours.
//!
//!     cargo run --release --example text_lines [-- FILE..]

use std::path::{Path, PathBuf};

use pinfeed::iterable;
use pinfeed::iterable::Line;
use pinfeed::prelude::*;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut paths: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    if paths.is_empty() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        for file in ["README.md", "docs/ARCHITECTURE.md", "docs/SAFETY.md"] {
            paths.push(root.join(file));
        }
    }
    let texts = iterable::lines(paths).shuffle(500).map(|line: Line, _rng| {
        let tokens = line.split_whitespace().map(|word| word.len() as i64); // a tokenizer of yours
        Ok((Padded::from(tokens.collect::<Vec<_>>()), line.to_string()))
    });
    let loader = DataLoader::iterable(texts)
        .batch_size(32)
        .seed(1)
        .num_workers(2)
        .build()?;

    for epoch in 0..2 {
        let (mut batches, mut words, mut cells, mut shown) = (0, 0, 0, None);
        for batch in loader.epoch(epoch) {
            let (tokens, lines) = batch?; // [32, longest line of these]; the lengths are beside the tokens
            batches += 1;
            words += tokens.lengths.as_slice().iter().sum::<i64>();
            cells += tokens.values.len();
            shown.get_or_insert((tokens.values.shape().clone(), lines[0].clone()));
        }
        let padding = 100.0 * (1.0 - words as f64 / cells as f64);
        println!(
            "epoch {epoch}: {batches} batches, {words} words, {padding:.0} % of the cells are padding"
        );
        if let Some((shape, line)) = shown {
            println!("         the first batch is {shape}, and its first line: {line:?}");
        }
    }
    Ok(())
}
