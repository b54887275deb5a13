//! Texts of different lengths: their tokens as they are, one text behind the other, and padded to the longest of a batch.

use std::collections::HashMap;
use std::error::Error;

use pinfeed::{DataLoader, Padded, Ragged, from_fn};

const TEXTS: [(&str, i64); 6] = [
    ("the film was good", 1),
    ("bad", 0),
    ("good acting and a good story", 1),
    ("the story was bad", 0),
    ("so bad", 0),
    ("good", 1),
];

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
    let ragged = from_fn(texts.len(), move |index, _| {
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
    let padded = from_fn(tokenized.len(), move |index, _| {
        let (tokens, label) = &tokenized[index as usize];
        Ok((Padded::from(tokens.clone()), *label))
    });
    let loader = DataLoader::builder(padded).batch_size(4).num_workers(2).build()?;
    let shapes: Vec<Vec<usize>> = loader
        .epoch(0)
        .map(|batch| batch.map(|(tokens, _)| tokens.values.shape().to_vec()))
        .collect::<Result<_, _>>()?;
    assert_eq!(shapes, [[4, 6], [2, 2]]);
    for batch in loader.epoch(1) {
        let (tokens, _labels) = batch?;
        for (row, text) in tokens.rows().enumerate() {
            assert!(text.iter().all(|word| (1..=words as i64).contains(word)));
            let padding = &tokens.values.row(row).to_vec()[text.len()..];
            assert!(padding.iter().all(|token| *token == 0));
        }
    }
    Ok(())
}

fn vocabulary() -> HashMap<&'static str, i64> {
    let mut vocabulary = HashMap::new();
    for word in TEXTS.iter().flat_map(|(text, _)| text.split(' ')) {
        let next = vocabulary.len() as i64 + 1;
        vocabulary.entry(word).or_insert(next);
    }
    vocabulary
}
