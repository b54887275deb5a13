use std::collections::HashMap;

use pinfeed::{DataLoader, Host, Result, from_fn};

fn main() -> Result<()> {
    let maps = from_fn(8, |index, _| {
        Ok(Host(HashMap::from([("index".to_owned(), index)])))
    });
    let loader = DataLoader::builder(maps).batch_size(4).build()?;
    for batch in &loader {
        batch?;
    }
    Ok(())
}
