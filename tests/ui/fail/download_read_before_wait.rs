//~ ERROR E0599
//~ says: no method named `as_slice` found for struct `Download

use pinfeed::{Batch, Device, Result, Tensor};

fn main() -> Result<()> {
    let device = Device::cpu();
    let losses = Tensor::<f32>::zeros(&[4]).to_device(&device, true)?;
    let download = losses.to_host(true)?;
    assert_eq!(download.as_slice()[0], 0.0); //~ HERE
    Ok(())
}
