//! Attention that stays within documents: packed rows give what each document gives alone.

use std::error::Error;

use pinfeed::dataset::{PackedDataset, PackingStrategy};
use pinfeed::packed::PackedBatch;
use pinfeed::{DataLoader, Tensor};

/// Causal attention that looks at all tokens alike: each token's result is the mean of those up to it.
fn attend(tokens: &[f32]) -> Vec<f32> {
    let mut sum = 0.0;
    let counted = (1u8..).zip(tokens);
    counted.map(|(count, token)| { sum += token; sum / f32::from(count) }).collect()
}

/// By `cu_seqlens`: over all rows at once, one segment after the other.
fn by_places(batch: &PackedBatch<f32>) -> Vec<f32> {
    let places = batch.cu_seqlens.as_slice().windows(2);
    places.flat_map(|pair| attend(&batch.tokens.as_slice()[pair[0] as usize..pair[1] as usize])).collect()
}

/// By `segment_ids`, as a mask of `n * n` for each row.
fn by_mask(tokens: &Tensor<f32>, ids: &Tensor<i32>) -> Vec<f32> {
    let (tokens, ids, n) = (tokens.as_slice(), ids.as_slice(), tokens.len());
    let query = |at: usize| {
        let attended: Vec<f32> = (0..=at).filter(|key| ids[*key] == ids[at]).map(|key| tokens[key]).collect();
        attended.iter().sum::<f32>() / attended.len() as f32
    };
    (0..n).map(query).collect()
}

pub fn main() -> Result<(), Box<dyn Error>> {
    let lengths: Vec<u64> = (0..30).map(|index| index * index % 17).collect();
    let documents: Vec<Vec<f32>> = lengths
        .iter()
        .map(|length| (0..*length).map(|token| (token * 3 % 7) as f32 + 1.0).collect())
        .collect();
    let mut alone: Vec<Vec<f32>> = documents.iter().map(|tokens| attend(tokens)).filter(|result| !result.is_empty()).collect();

    let packed = PackedDataset::new(documents, &lengths, 20, PackingStrategy::BestFit)?;
    let loader = DataLoader::builder(packed).batch_size(4).shuffle(true).build()?;
    let mut together = Vec::new();
    for batch in &loader {
        let batch = batch?;
        let results = by_places(&batch);
        for (row, results) in results.chunks(20).enumerate() {
            assert_eq!(by_mask(&batch.tokens.row(row), &batch.segment_ids.row(row)), results);
        }
        let documents = batch.cu_seqlens.as_slice().windows(2).map(|pair| pair[0] as usize..pair[1] as usize);
        let documents = documents.filter(|places| batch.mask.as_slice()[places.start] == 1);
        together.extend(documents.map(|places| results[places].to_vec()));
    }
    alone.sort_by(|a, b| a.partial_cmp(b).unwrap_or(std::cmp::Ordering::Equal));
    together.sort_by(|a, b| a.partial_cmp(b).unwrap_or(std::cmp::Ordering::Equal));
    assert_eq!(together, alone);
    Ok(())
}
