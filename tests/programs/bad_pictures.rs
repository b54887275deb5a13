//! A folder of pictures, some of which are broken: others take their places, and the training goes on. The statistics name them.

use std::error::Error;
use std::fs;

use pinfeed::image::{ImageFolder, ImageTransform};
use pinfeed::loader::OnError;
use pinfeed::{DataLoader, Device};

pub fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    for class in ["cats", "dogs"] {
        fs::create_dir(folder.path().join(class))?;
        for number in 0..10 {
            let picture = image::RgbImage::from_fn(40, 30, |x, y| image::Rgb([x as u8, y as u8, number]));
            let path = folder.path().join(class).join(format!("{number}.png"));
            picture.save(&path)?;
            let bytes = fs::read(&path)?;
            match (class, number) {
                ("cats", 3) => fs::write(&path, &bytes[..bytes.len() / 2])?, // a download that broke off
                ("dogs", 7) => fs::write(&path, "<html>404</html>")?,
                _ => {}
            }
        }
    }

    let device = Device::cpu();
    let pictures = ImageFolder::open(folder.path())?.with_transform(ImageTransform::train(16));
    let loader = DataLoader::builder(pictures)
        .batch_size(5)
        .shuffle(true)
        .num_workers(2)
        .on_error(OnError::Replace { at_most: 10 })
        .pin_memory(&device)
        .build()?;
    for epoch in loader.epochs(0..2).prefetch_to_device(&device, 2) {
        for batch in epoch {
            let (images, _labels) = batch?;
            assert_eq!(images.shape()[..], [5, 16, 16, 3]);
        }
        let stats = loader.stats();
        println!("{stats}");
        assert!(stats.bad.replaced >= 2);
        let named = |name: &str| stats.bad.listed.iter().any(|bad| bad.contains(name));
        assert!(named("3.png") && named("7.png"), "{stats}");
    }
    Ok(())
}
