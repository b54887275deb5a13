//~ ERROR E0599
//~ says: `len`

use pinfeed::{DataLoader, iterable};

fn main() -> pinfeed::Result<()> {
    let lines = iterable::from_fn(|_, _| Ok((0..100i64).map(Ok)));
    let loader = DataLoader::iterable(lines).batch_size(4).build()?;
    println!("{} steps", loader.len()); //~ HERE
    println!("{} steps are left", loader.epoch(0).len()); //~ HERE
    Ok(())
}
