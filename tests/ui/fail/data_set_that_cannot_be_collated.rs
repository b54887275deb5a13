//~ ERROR E0277
//~ says: samples of type `HashMap<String, u64>` cannot be collated into a batch
//~ says: give the builder a collate_fn

use std::collections::HashMap;

use pinfeed::{DataLoader, Result, from_fn};

fn main() -> Result<()> {
    let maps = from_fn(8, |index, _| {
        Ok(HashMap::from([("index".to_owned(), index)]))
    });
    let loader = DataLoader::builder(maps).batch_size(4).build()?; //~ HERE
    for batch in &loader {
        batch?;
    }
    Ok(())
}
