//~ ERROR E0599
//~ says: no method named `clone` found for struct `OwnedLoan<T>`

use pinfeed::{Batch, Device, Result, Tensor};

fn main() -> Result<()> {
    let device = Device::cpu();
    let stream = device.stream()?;
    let weights = Tensor::<f32>::zeros(&[4]).to_device(&device, true)?;
    let loan = weights.lend(&stream)?;
    let other = loan.clone(); //~ HERE
    drop((loan, other));
    Ok(())
}
