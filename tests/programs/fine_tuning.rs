//! Fine-tuning on conversations: whole ones packed into rows with little padding, learning the answers and not the questions.

use std::error::Error;

use pinfeed::dataset::{PackedDataset, PackingStrategy, document_lengths};
use pinfeed::{DataLoader, Dataset, Device, from_fn};

const CONTEXT: usize = 128;
/// What the loss leaves out.
const IGNORED: i64 = -100;
const END: i64 = 2;

/// A question's tokens and an answer's, as a tokenizer gives them.
fn conversation(index: u64) -> (Vec<i64>, Vec<i64>) {
    let question = (0..3 + index as i64 * 7 % 20).map(|token| 10 + token).collect();
    let answer = (0..5 + index as i64 * 13 % 70).map(|token| 100 + token).chain([END]).collect();
    (question, answer)
}

pub fn main() -> Result<(), Box<dyn Error>> {
    let tokens = from_fn(400, |index, _| {
        let (question, answer) = conversation(index);
        Ok([question, answer].concat())
    });
    let labels = from_fn(400, |index, _| {
        let (question, answer) = conversation(index);
        Ok([vec![IGNORED; question.len()], answer].concat())
    });

    // Packing follows from the lengths, so tokens and labels are packed alike.
    let lengths = document_lengths(&tokens)?;
    let tokens = PackedDataset::new(tokens, &lengths, CONTEXT, PackingStrategy::BestFit)?;
    let labels = PackedDataset::new(labels, &lengths, CONTEXT, PackingStrategy::BestFit)?.with_padding(IGNORED);
    let padding = 1.0 - tokens.real_tokens() as f64 / (tokens.len() * CONTEXT as u64) as f64;
    println!("{} rows, of which {:.2} % are padding", tokens.len(), 100.0 * padding);
    assert!(padding < 0.03);
    let rows = tokens.zip(labels.map(|row, _| Ok(row.tokens)))?;

    let device = Device::cpu();
    let loader = DataLoader::builder(rows)
        .batch_size(8)
        .shuffle(true)
        .num_workers(2)
        .pin_memory(&device)
        .build()?;
    for epoch in loader.epochs(0..2).prefetch_to_device(&device, 2) {
        let (mut answers, mut learned) = (0, 0);
        for batch in epoch {
            let (rows, labels) = batch?;
            // `flash_attn_varlen_func(q, k, v, cu_seqlens, cu_seqlens, max_seqlen, max_seqlen, causal=True)`
            let places = rows.cu_seqlens.to_host(true)?.wait()?;
            assert!(places.as_slice().windows(2).all(|pair| (pair[1] - pair[0]) as usize <= rows.max_seqlen));
            let (tokens, labels) = (rows.tokens.to_host(true)?.wait()?, labels.to_host(true)?.wait()?);
            for (token, label) in tokens.as_slice().iter().zip(labels.as_slice()) {
                assert!(*label == IGNORED || label == token);
                learned += usize::from(*label != IGNORED);
                answers += usize::from(*label == END);
            }
        }
        assert_eq!(answers, 400);
        assert_eq!(learned, (0..400).map(|index| conversation(index).1.len()).sum::<usize>());
    }
    Ok(())
}
