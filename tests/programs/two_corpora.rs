//! A language model is trained on two corpora, three parts of one and one of the other, for so many steps: texts are cut into tokens by
//! all workers, and padded by a `collate_fn`.

use std::error::Error;

use pinfeed::collate::Arena;
use pinfeed::iterable::{self, IterableDataset};
use pinfeed::{BoxError, DataLoader, Device, Tensor};

const STEPS: usize = 50;

/// Which corpus a text is of, and its tokens.
type Tokens = (i64, Vec<i64>);

fn corpus(number: i64, texts: &'static [&'static str]) -> impl IterableDataset<Item = (i64, &'static str), Sample = Tokens> {
    let texts = iterable::from_fn(move |_, _| Ok(texts.iter().map(move |text| Ok((number, *text)))));
    texts.map(|(number, text), _| {
        let tokens = text.split(' ').map(|word| word.len() as i64).collect();
        Ok((number, tokens))
    })
}

/// A source of either corpus: `mix` takes sources of one type.
fn mixture() -> pinfeed::Result<impl IterableDataset<Sample = Tokens>> {
    let books: &[_] = &["it was the best of times", "call me Ishmael", "all happy families are alike"];
    let code: &[_] = &["let x = 3", "fn main"];
    let sources = [(0, books, 3.0), (1, code, 1.0)];
    // Each begins again when it ends, and so the mixture has no end.
    iterable::mix(sources.map(|(number, texts, weight)| (corpus(number, texts).repeat().shuffle(16), weight)))
}

fn pad(texts: Vec<Tokens>, arena: &mut Arena) -> Result<(Tensor<i64>, Tensor<i64>), BoxError> {
    let longest = texts.iter().map(|(_, tokens)| tokens.len()).max().unwrap_or(0);
    let (corpora, tokens): (Vec<i64>, Vec<_>) = texts.into_iter().unzip();
    let padded = tokens.into_iter().map(|mut tokens: Vec<i64>| {
        tokens.resize(longest, 0);
        tokens
    });
    Ok((arena.collate(padded.collect())?, arena.collate(corpora)?))
}

pub fn main() -> Result<(), Box<dyn Error>> {
    let device = Device::cpu();
    let loader = DataLoader::iterable(mixture()?)
        .batch_size(8)
        .seed(17)
        .num_workers(2)
        .pin_memory(&device)
        .collate_fn(pad)
        .build()?;
    let mut epoch = loader.epoch(0).prefetch_to_device(&device, 2);
    for _step in 0..STEPS {
        let (tokens, corpora) = epoch.next().ok_or("there is always more")??;
        assert_eq!((tokens.shape()[0], corpora.len()), (8, 8));
        // Each batch is mixed alike.
        let code: i64 = corpora.to_host(false)?.wait()?.as_slice().iter().sum();
        assert_eq!(code, 2);
    }
    Ok(())
}
