//! Pretraining: a file of tokens, with an index of where its documents begin, in rows of a fixed length, shuffled, on the device.

use std::error::Error;
use std::fs;
use std::path::Path;

use pinfeed::dataset::{PackedDataset, PackingStrategy};
use pinfeed::{DataLoader, Device, Tensor, from_fn};

const CONTEXT: usize = 64;
const END_OF_TEXT: u16 = 50_256;

pub fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("tokens.bin");
    let lengths = write_corpus(&path)?;
    let tokens = read_tokens(&path)?;
    let (total, all) = (lengths.iter().sum(), lengths.len());

    // A document is a view: nothing is copied but what a row needs.
    let ends: Vec<usize> = lengths.iter().scan(0, |end, length| { *end += *length as usize; Some(*end) }).collect();
    let documents = from_fn(all as u64, move |index, _| {
        let index = index as usize;
        let start = if index == 0 { 0 } else { ends[index - 1] };
        Ok(tokens.slice(start..ends[index]))
    });
    let rows = PackedDataset::new(documents, &lengths, CONTEXT, PackingStrategy::Shuffled { seed: 17 })?;

    let device = Device::cpu();
    let loader = DataLoader::builder(rows)
        .batch_size(16)
        .shuffle(true)
        .seed(17)
        .num_workers(2)
        .pin_memory(&device)
        .build()?;
    for epoch in loader.epochs(0..2).prefetch_to_device(&device, 2) {
        let (mut seen, mut ends) = (0, 0);
        for batch in epoch {
            let batch = batch?;
            assert_eq!(batch.tokens.shape(), batch.position_ids.shape());
            assert!(batch.max_seqlen <= CONTEXT);
            // The model's loss of each token is multiplied by this.
            let mask = batch.mask.to_host(true)?.wait()?;
            seen += mask.as_slice().iter().map(|real| u64::from(*real)).sum::<u64>();
            let tokens = batch.tokens.to_host(true)?.wait()?;
            ends += tokens.as_slice().iter().filter(|token| **token == END_OF_TEXT).count();
        }
        println!("{seen} tokens of {ends} documents");
        assert_eq!((seen, ends), (total, all));
    }
    Ok(())
}

/// Writes texts as GPT-2's tokens lie in files: 16 bits each, with a token behind each text.
fn write_corpus(path: &Path) -> std::io::Result<Vec<u64>> {
    let (mut bytes, mut lengths) = (Vec::new(), Vec::new());
    for document in 0..500u64 {
        let words = document * document % 211;
        let tokens = (0..words).map(|word| (word * 7 % 50_000) as u16).chain([END_OF_TEXT]);
        tokens.for_each(|token| bytes.extend(token.to_le_bytes()));
        lengths.push(words + 1);
    }
    fs::write(path, bytes)?;
    Ok(lengths)
}

/// (A `memmap2::Mmap` is read as far as it is used: `Tensor::from_owner` makes a tensor of it.)
fn read_tokens(path: &Path) -> std::io::Result<Tensor<u16>> {
    let bytes = fs::read(path)?;
    let words = bytes.as_chunks().0.iter();
    Ok(words.map(|word| u16::from_le_bytes(*word)).collect::<Vec<_>>().into())
}
