use pinfeed::{Batch, Device, Result, Tensor};

#[derive(Batch)]
#[pinfeed(on_device = "PaddedThere")]
struct Padded {
    tokens: Tensor<i64>,
}

fn main() -> Result<()> {
    let tokens = Tensor::zeros(&[2]);
    let _: PaddedThere = Padded { tokens }.to_device(&Device::cpu(), true)?;
    Ok(())
}
