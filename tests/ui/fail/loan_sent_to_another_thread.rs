//~ ERROR E0277
//~ says: cannot be sent between threads safely

use pinfeed::{Batch, Device, Result, Tensor};

fn main() -> Result<()> {
    let device = Device::cpu();
    let stream = device.stream()?;
    let weights = Tensor::<f32>::zeros(&[4]).to_device(&device, true)?;
    let loan = weights.on(&stream)?;
    std::thread::scope(|scope| {
        scope.spawn(move || drop(loan)); //~ HERE
    });
    Ok(())
}
