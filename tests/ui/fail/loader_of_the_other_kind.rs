//~ ERROR E0308
//~ says: Iterable>`

use pinfeed::{DataLoader, Tensor, iterable};

struct Training {
    loader: DataLoader<Tensor<i64>>, // of a data set with an index
}

fn main() -> pinfeed::Result<()> {
    let lines = iterable::from_fn(|_, _| Ok((0..100i64).map(Ok)));
    let loader = DataLoader::iterable(lines).batch_size(4).build()?;
    let training = Training { loader }; //~ HERE
    training.loader.epoch(0).for_each(drop);
    Ok(())
}
