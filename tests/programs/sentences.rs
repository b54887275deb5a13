//! A sentence encoder is trained on articles: each article is cut into its sentences, which are shuffled and padded. A checkpoint in the
//! middle of an article goes on there.

use std::error::Error;

use pinfeed::iterable::{self, IterableDataset};
use pinfeed::loader::{Iterable, IterableState};
use pinfeed::padded::PaddedTensor;
use pinfeed::{DataLoader, Padded};

/// An article has some sentences, or none.
fn article(number: usize) -> String {
    (0..number % 5).map(|sentence| format!("Sentence {sentence} of {number} is{} short. ", " very".repeat(sentence))).collect()
}

fn loader(workers: usize) -> pinfeed::Result<DataLoader<PaddedTensor<u8>, Iterable>> {
    let articles = iterable::from_fn(|_epoch, shard| {
        let own = (0..90usize).filter(move |number| shard.keeps(*number as u64));
        Ok(own.map(|number| Ok(article(number))))
    });
    let sentences = articles.flat_map(|article, _| {
        let sentences: Vec<_> = article.split(". ").filter(|text| !text.is_empty()).map(|text| Ok(text.to_owned())).collect();
        Ok(sentences)
    });
    // (A model's tokeniser stands here: all workers run it.)
    let tokens = sentences.map(|sentence, _| Ok(Padded::from(sentence.into_bytes())));
    DataLoader::iterable(tokens).batch_size(7).num_workers(workers).build()
}

/// Reads until the end, or some batches; returns the sentences, and where the run stands.
fn read(loader: &DataLoader<PaddedTensor<u8>, Iterable>, state: &IterableState, steps: usize) -> Result<(Vec<String>, String), Box<dyn Error>> {
    let mut epoch = loader.resume(0..1, state)?.next().ok_or("the epoch was read")?;
    let mut sentences = Vec::new();
    for batch in epoch.by_ref().take(steps) {
        let batch = batch?;
        for (row, length) in batch.lengths.as_slice().iter().enumerate() {
            let bytes = batch.values.row(row).as_slice()[..*length as usize].to_vec();
            sentences.push(String::from_utf8(bytes)?);
        }
    }
    Ok((sentences, epoch.state().to_string()))
}

pub fn main() -> Result<(), Box<dyn Error>> {
    let (whole, _) = read(&loader(2)?, &IterableState::default(), usize::MAX)?;
    assert_eq!(whole.len(), 18 * (1 + 2 + 3 + 4));
    assert_eq!(whole[..3], ["Sentence 0 of 1 is short", "Sentence 0 of 2 is short", "Sentence 1 of 2 is very short"]);
    for steps in 1..9 {
        let (mut seen, checkpoint) = read(&loader(3)?, &IterableState::default(), steps)?;
        let (rest, _) = read(&loader(0)?, &checkpoint.parse()?, usize::MAX)?;
        seen.extend(rest);
        assert_eq!(seen, whole, "{steps}");
    }
    Ok(())
}
