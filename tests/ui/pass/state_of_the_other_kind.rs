use pinfeed::loader::IterableState;
use pinfeed::{DataLoader, iterable};

fn main() -> pinfeed::Result<()> {
    let lines = iterable::from_fn(|_, _| Ok((0..100i64).map(Ok)));
    let loader = DataLoader::iterable(lines).batch_size(4).build()?;
    let _ = loader.resume(0..3, &IterableState::default())?;
    Ok(())
}
