//~ ERROR E0277
//~ once
//~ says: samples that are arrays or Vecs of `String` cannot be collated into a batch
//~ says: a Vec holds strings and paths too, which stay on the host

use pinfeed::{DataLoader, Result, from_fn};

fn main() -> Result<()> {
    let names = from_fn(8, |index, _| Ok([index.to_string(), String::new()]));
    let loader = DataLoader::builder(names).batch_size(4).build()?; //~ HERE
    for batch in &loader {
        batch?;
    }
    Ok(())
}
