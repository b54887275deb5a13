//~ ERROR E0599
//~ says: `split`

use pinfeed::{DataLoader, Device, iterable};

fn main() -> pinfeed::Result<()> {
    let devices = [Device::cpu(), Device::cpu()];
    let lines = iterable::from_fn(|_, _| Ok((0..100i64).map(Ok)));
    let loader = DataLoader::iterable(lines).batch_size(4).build()?;
    let _ = loader.epoch(0).split(&devices, 2); //~ HERE
    let _ = loader.epochs(0..3).split(&devices, 2); //~ HERE
    Ok(())
}
