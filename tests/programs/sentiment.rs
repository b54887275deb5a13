//! Texts for a transformer: tokens padded to the longest of their batch, with the attention mask, on the device ahead of the step.

use std::error::Error;

use pinfeed::{DataLoader, Device, Padded, Sample, from_fn};

const TEXTS: [(&str, i64); 6] = [
    ("the film was good", 1),
    ("bad", 0),
    ("good acting and a good story", 1),
    ("the story was bad", 0),
    ("so bad", 0),
    ("good", 1),
];

#[derive(Sample)]
struct Text {
    input_ids: Padded<u32>,
    attention_mask: Padded<u8>,
    label: i64,
}

/// A word's number: a tokenizer does better. 0 is the padding.
fn token(word: &str) -> u32 {
    word.bytes().fold(7, |hash, byte| (hash * 31 + u32::from(byte)) % 1_000) + 1
}

pub fn main() -> Result<(), Box<dyn Error>> {
    let texts = from_fn(TEXTS.len(), |index, _| {
        let (text, label) = TEXTS[index as usize];
        let tokens: Vec<u32> = text.split(' ').map(token).collect();
        let input_ids = Padded::from(tokens).truncate(512).with_multiple_of(8);
        Ok(Text { attention_mask: input_ids.mask(), input_ids, label })
    });

    let device = Device::cpu();
    let loader = DataLoader::builder(texts)
        .batch_size(3)
        .shuffle(true)
        .num_workers(2)
        .pin_memory(&device)
        .build()?;
    for epoch in loader.epochs(0..2).prefetch_to_device(&device, 2) {
        let mut right = 0;
        for batch in epoch {
            let TextDeviceBatch { input_ids, attention_mask, label } = batch?;
            assert_eq!(input_ids.values.shape()[..], [3, 8]); // the longest text has 6 words
            // The "model": a text is good if a token that it attends to is.
            let tokens = input_ids.values.to_host(true)?.wait()?;
            let mask = attention_mask.values.to_host(true)?.wait()?;
            let labels = label.to_host(true)?.wait()?;
            for (row, label) in labels.as_slice().iter().enumerate() {
                let (tokens, mask) = (tokens.row(row), mask.row(row));
                let mut attended = tokens.as_slice().iter().zip(mask.as_slice()).filter(|(_, own)| **own == 1);
                right += usize::from(attended.any(|(word, _)| *word == token("good")) == (*label == 1));
            }
        }
        println!("{right} of {} are right", TEXTS.len());
        assert_eq!(right, TEXTS.len());
    }
    Ok(())
}
