//~ ERROR E0382
//~ says: borrow of moved value: `loan`

use pinfeed::{Batch, Device, Result, Tensor};

fn main() -> Result<()> {
    let device = Device::cpu();
    let stream = device.stream()?;
    let weights = Tensor::<f32>::zeros(&[4]).to_device(&device, true)?;
    let loan = weights.lend(&stream)?;
    let weights = loan.into_tensor();
    println!("{}", loan.address()); //~ HERE
    drop(weights);
    Ok(())
}
