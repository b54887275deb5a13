use std::sync::Arc;

use pinfeed::{Batch, Device, Result, Tensor};

fn main() -> Result<()> {
    let device = Device::cpu();
    let stream = device.stream()?;
    let weights = Tensor::<f32>::zeros(&[4]).to_device(&device, true)?;
    let loan = Arc::new(weights.lend(&stream)?);
    let other = loan.clone();
    drop((loan, other));
    Ok(())
}
