//! Translating a file fast: sentences of similar lengths go through the model together, and the answers are written in the file's order,
//! by the numbers of their lines.

use std::error::Error;
use std::fs;

use pinfeed::iterable::{self, IterableDataset, Line};
use pinfeed::{BoxError, DataLoader, Padded, SampleRng};

/// The number of a line, and its tokens.
fn tokens(line: Line, _: &mut SampleRng) -> Result<(i64, Padded<u8>), BoxError> {
    let (number, text) = line.split_once('\t').ok_or_else(|| line.error("it has no number"))?;
    Ok((number.parse()?, Padded::from(text.as_bytes().to_vec())))
}

pub fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let sentences: Vec<String> = (0..137usize).map(|number| "so ".repeat(number * number % 40) + "it is").collect();
    let path = folder.path().join("sentences.txt");
    let numbered = sentences.iter().enumerate().map(|(number, text)| format!("{number}\t{text}\n"));
    fs::write(&path, numbered.collect::<String>())?;

    let lines = iterable::lines([path]).bucket_by_length(8, |line| line.len())?.with_buffer(1_000);
    let loader = DataLoader::iterable(lines.map(tokens)).batch_size(8).num_workers(2).build()?;
    let mut answers = vec![String::new(); sentences.len()];
    let mut steps = 0;
    for batch in loader.epoch(0) {
        let (numbers, texts) = batch?;
        steps += texts.values.shape()[1];
        for (row, number) in numbers.as_slice().iter().enumerate() {
            let length = texts.lengths.as_slice()[row] as usize;
            let text = texts.values.row(row).as_slice()[..length].to_vec();
            answers[*number as usize] = String::from_utf8(text)?.to_uppercase(); // the model's answer
        }
    }
    assert!(answers.iter().zip(&sentences).all(|(answer, sentence)| *answer == sentence.to_uppercase()));
    let longest = sentences.iter().map(String::len).max().unwrap_or(0);
    assert!(steps < 18 * longest * 2 / 3, "{steps} steps"); // 18 batches that each have a long sentence would take all of them
    Ok(())
}
