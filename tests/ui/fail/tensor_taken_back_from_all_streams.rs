//~ ERROR E0599
//~ says: no method named `into_tensor` found for struct `Adrift<T>`

use pinfeed::{Batch, Device, Result, Tensor};

fn main() -> Result<()> {
    let device = Device::cpu();
    let stream = device.stream()?;
    let weights = Tensor::<f32>::zeros(&[4]).to_device(&device, true)?;
    let theirs = weights.lend(&stream)?.end_everywhere();
    let weights = theirs.into_tensor(); //~ HERE
    drop(weights);
    Ok(())
}
