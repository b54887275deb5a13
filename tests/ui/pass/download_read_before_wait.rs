use pinfeed::{Batch, Device, Result, Tensor};

fn main() -> Result<()> {
    let device = Device::cpu();
    let losses = Tensor::<f32>::zeros(&[4]).to_device(&device, true)?;
    let download = losses.to_host(true)?;
    assert_eq!(download.wait()?.as_slice()[0], 0.0);
    Ok(())
}
