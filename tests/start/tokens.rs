use pinfeed::arrays::{FileBytes, TokenFile}; // features = ["arrays"]
use pinfeed::{DataLoader, Device};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let device = Device::available();
    // SAFETY: nothing writes the file meanwhile.
    let file = unsafe { FileBytes::map("train.bin") }?;
    let windows = TokenFile::<u16>::raw(file)?.windows(64)?;
    let loader = DataLoader::builder(windows).batch_size(8).shuffle(true).num_workers(1);
    let loader = loader.pin_memory(&device).build()?;

    for batch in loader.epoch(0).prefetch_to_device(&device, 2) {
        let (inputs, targets) = batch?; // [8, 64] each, u16; `.to_i64()` on the windows widens them
        assert_eq!(inputs.shape(), targets.shape());
    }
    Ok(())
}
