use pinfeed::{Batch, Device, Result, Tensor};

fn main() -> Result<()> {
    let device = Device::cpu();
    let stream = device.stream()?;
    let weights = Tensor::<f32>::zeros(&[4]).to_device(&device, true)?;
    let ours = weights.lend(&stream)?;
    let weights = ours.into_tensor();
    drop(weights);
    Ok(())
}
