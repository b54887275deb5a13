use pinfeed::{Batch, Device, Result, Tensor};

fn main() -> Result<()> {
    let device = Device::cpu();
    let stream = device.stream()?;
    let weights = Tensor::<f32>::zeros(&[4]).to_device(&device, true)?;
    let loan = weights.lend(&stream)?;
    println!("{}", loan.address());
    let weights = loan.into_tensor();
    drop(weights);
    Ok(())
}
