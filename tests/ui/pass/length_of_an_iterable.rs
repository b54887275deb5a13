use pinfeed::{DataLoader, from_fn};

fn main() -> pinfeed::Result<()> {
    let lines = from_fn(100, |index, _| Ok(index as i64));
    let loader = DataLoader::builder(lines).batch_size(4).build()?;
    println!("{} steps", loader.len());
    println!("{} steps are left", loader.epoch(0).len());
    Ok(())
}
