use pinfeed::{DataLoader, Result, from_fn};

fn main() -> Result<()> {
    let words = from_fn(8, |index, _| Ok(format!("word {index}")));
    let loader = DataLoader::builder(words)
        .batch_size(4)
        .collate_fn(|words, _| Ok(words))
        .build()?;
    for batch in &loader {
        batch?;
    }
    Ok(())
}
