use pinfeed::{Batch, Device, Result, Tensor};

fn main() -> Result<()> {
    let device = Device::cpu();
    let weights = Tensor::<f32>::zeros(&[4]).to_device(&device, true)?;
    std::thread::scope(|scope| {
        scope.spawn(|| -> Result<()> {
            let stream = device.stream()?;
            drop(weights.on(&stream)?);
            Ok(())
        });
    });
    Ok(())
}
