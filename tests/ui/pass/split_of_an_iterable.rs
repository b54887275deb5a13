use pinfeed::{DataLoader, Device, from_fn};

fn main() -> pinfeed::Result<()> {
    let devices = [Device::cpu(), Device::cpu()];
    let lines = from_fn(100, |index, _| Ok(index as i64));
    let loader = DataLoader::builder(lines).batch_size(4).build()?;
    let _ = loader.epoch(0).split(&devices, 2);
    let _ = loader.epochs(0..3).split(&devices, 2);
    Ok(())
}
