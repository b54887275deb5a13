//! Texts of different lengths: their tokens as they are, one text behind the other, and padded to the longest of a batch.

use std::collections::HashMap;
use std::error::Error;

use pinfeed::collate::Arena;
use pinfeed::{BoxError, DataLoader, Ragged, Tensor, from_fn};

const TEXTS: [(&str, i64); 6] = [
    ("the film was good", 1),
    ("bad", 0),
    ("good acting and a good story", 1),
    ("the story was bad", 0),
    ("so bad", 0),
    ("good", 1),
];
const PADDING: i64 = 0;

pub fn main() -> Result<(), Box<dyn Error>> {
    let vocabulary = vocabulary();
    let words = vocabulary.len();
    let tokenized: Vec<(Vec<i64>, i64)> = TEXTS
        .iter()
        .map(|(text, label)| {
            let tokens = text.split(' ').map(|word| vocabulary[word]).collect();
            (tokens, *label)
        })
        .collect();

    // Not padded: what embedding bags and attention over packed sequences take.
    let texts = tokenized.clone();
    let ragged = from_fn(texts.len() as u64, move |index, _| {
        let (tokens, label) = &texts[index as usize];
        Ok((Ragged::from(tokens.clone()), *label))
    });
    let loader = DataLoader::builder(ragged).batch_size(4).build()?;
    let mut tokens_seen = 0;
    for batch in &loader {
        let (tokens, labels) = batch?;
        assert_eq!(tokens.len(), labels.len());
        for (text, label) in tokens.rows().zip(labels.as_slice()) {
            let word = if *label == 1 { "good" } else { "bad" };
            assert!(text.contains(&vocabulary[word]));
            tokens_seen += text.len();
        }
    }
    assert_eq!(tokens_seen, 18);

    // Padded: what most models take.
    let loader = DataLoader::builder(tokenized)
        .batch_size(4)
        .collate_fn(pad)
        .num_workers(2)
        .build()?;
    let shapes: Vec<Vec<usize>> = loader
        .epoch(0)
        .map(|batch| batch.map(|(tokens, _, _)| tokens.shape().to_vec()))
        .collect::<Result<_, _>>()?;
    assert_eq!(shapes, [[4, 6], [2, 2]]);
    for batch in loader.epoch(1) {
        let (tokens, lengths, _labels) = batch?;
        let longest = tokens.shape()[1];
        for (text, length) in tokens.as_slice().chunks(longest).zip(lengths.as_slice()) {
            let (words_of_it, padding) = text.split_at(*length as usize);
            assert!(words_of_it.iter().all(|word| (1..=words as i64).contains(word)));
            assert!(padding.iter().all(|token| *token == PADDING));
        }
    }
    Ok(())
}

/// Tokens, lengths and labels.
type Padded = (Tensor<i64>, Tensor<i64>, Tensor<i64>);

fn pad(samples: Vec<(Vec<i64>, i64)>, arena: &mut Arena) -> Result<Padded, BoxError> {
    let longest = samples.iter().map(|(tokens, _)| tokens.len()).max();
    let longest = longest.unwrap_or(0);
    let mut tokens = arena.zeros(&[samples.len(), longest])?;
    let rows = tokens.as_mut_slice().ok_or("it is new, and nobody's else")?;
    for (row, (tokens, _)) in rows.chunks_mut(longest).zip(&samples) {
        row[..tokens.len()].copy_from_slice(tokens);
    }
    let lengths: Vec<i64> = samples.iter().map(|(tokens, _)| tokens.len() as i64).collect();
    let labels: Vec<i64> = samples.iter().map(|(_, label)| *label).collect();
    Ok((tokens, lengths.into(), labels.into()))
}

fn vocabulary() -> HashMap<&'static str, i64> {
    let mut vocabulary = HashMap::new();
    for word in TEXTS.iter().flat_map(|(text, _)| text.split(' ')) {
        let next = vocabulary.len() as i64 + 1;
        vocabulary.entry(word).or_insert(next);
    }
    vocabulary
}
