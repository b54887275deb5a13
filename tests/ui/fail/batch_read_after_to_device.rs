//~ ERROR E0382
//~ says: borrow of moved value: `images`

use pinfeed::{Batch, Device, Result, Tensor};

fn main() -> Result<()> {
    let device = Device::cpu();
    let images = Tensor::<u8>::zeros(&[4, 3]);
    let on_device = images.to_device(&device, true)?;
    assert_eq!(images.as_slice()[0], 0); //~ HERE
    drop(on_device);
    Ok(())
}
