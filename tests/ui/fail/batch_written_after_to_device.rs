//~ ERROR E0382
//~ says: borrow of moved value: `batch.0`

use pinfeed::{Batch, DataLoader, Device, Result, from_fn};

fn main() -> Result<()> {
    let device = Device::cpu();
    let squares = from_fn(8, |index, _| Ok((index as i64, (index * index) as f32)));
    let loader = DataLoader::builder(squares).batch_size(4).build()?;
    for batch in &loader {
        let mut batch = batch?;
        let indices = batch.0.to_device(&device, true)?;
        if let Some(indices) = batch.0.as_mut_slice() {
            //~ HERE
            indices[0] = 7;
        }
        drop(indices);
    }
    Ok(())
}
