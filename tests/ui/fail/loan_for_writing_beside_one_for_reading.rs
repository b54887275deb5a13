//~ ERROR E0502
//~ says: cannot borrow `weights` as mutable because it is also borrowed as immutable

use pinfeed::{Batch, Device, Result, Tensor};

fn main() -> Result<()> {
    let device = Device::cpu();
    let (first, second) = (device.stream()?, device.stream()?);
    let mut weights = Tensor::<f32>::zeros(&[4]).to_device(&device, true)?;
    let reading = weights.on(&first)?;
    let writing = weights.on_mut(&second)?; //~ HERE
    drop((reading, writing));
    Ok(())
}
