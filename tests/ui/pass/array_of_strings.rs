use pinfeed::{DataLoader, Result, from_fn};

fn main() -> Result<()> {
    let names = from_fn(8, |index, _| Ok(vec![index.to_string(), String::new()]));
    let loader = DataLoader::builder(names).batch_size(4).build()?;
    for batch in &loader {
        batch?;
    }
    Ok(())
}
