//~ ERROR E0382
//~ says: borrow of moved value: `weights`

use pinfeed::{Batch, Device, Result, Tensor};

fn main() -> Result<()> {
    let device = Device::cpu();
    let stream = device.stream()?;
    let weights = Tensor::<f32>::zeros(&[4]).to_device(&device, true)?;
    let loan = weights.lend(&stream)?;
    let host = weights.to_host(true)?; //~ HERE
    drop((loan, host));
    Ok(())
}
