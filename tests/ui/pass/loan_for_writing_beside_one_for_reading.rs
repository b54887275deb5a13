use pinfeed::{Batch, Device, Result, Tensor};

fn main() -> Result<()> {
    let device = Device::cpu();
    let (first, second) = (device.stream()?, device.stream()?);
    let mut weights = Tensor::<f32>::zeros(&[4]).to_device(&device, true)?;
    let reading = weights.on(&first)?;
    drop(reading);
    let writing = weights.on_mut(&second)?;
    drop(writing);
    Ok(())
}
