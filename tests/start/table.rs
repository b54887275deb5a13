use pinfeed::{DataLoader, Device, TensorDataset, arrays}; // features = ["arrays"]

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let device = Device::available();
    let houses = arrays::csv("houses.csv")?;
    let features = houses.columns::<f32>(&["size", "rooms"])?;
    let table = TensorDataset::new((features, houses.column::<f32>("price")?))?;
    let loader = DataLoader::builder(table).batch_size(50).shuffle(true).pin_memory(&device).build()?;

    for batch in loader.epoch(0).prefetch_to_device(&device, 2) {
        let (features, prices) = batch?; // [50, 2] and [50]
        assert_eq!((&features.shape()[..], prices.len()), (&[50, 2][..], 50));
    }
    Ok(())
}
