use pinfeed::image::{ImageFolder, ImageTransform};
use pinfeed::{DataLoader, Device};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let device = Device::available(); // the first GPU, or the CPU
    let pets = ImageFolder::open("pets")?.with_transform(ImageTransform::train(32));
    let loader = DataLoader::builder(pets).batch_size(8).shuffle(true).num_workers(2);
    let loader = loader.pin_memory(&device).build()?;

    for epoch in loader.epochs(0..3).prefetch_to_device(&device, 2) {
        for batch in epoch {
            let (images, labels) = batch?; // [8, 32, 32, 3], bytes; and [8]
            assert_eq!(images.shape()[0], labels.len());
        }
    }
    Ok(())
}
