use pinfeed::DataLoader;
use pinfeed::image::{ImageTransform, LazyImage};
use pinfeed::webdataset::WebDataset; // features = ["webdataset"]

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let train = ImageTransform::train(32);
    let pets = WebDataset::open("shards/pets-{000000..000003}.tar")?.field("jpg;png;ppm").field("cls");
    let pets = pets.build(move |sample, rng| {
        let picture = LazyImage::encoded(sample.shared("jpg;png;ppm")?).with_path(sample.key());
        Ok((picture.transform(&train, rng), sample.number::<i64>("cls")?))
    })?;
    let loader = DataLoader::builder(pets).batch_size(8).shuffle(true).num_workers(2).build()?;
    for batch in loader.epoch(0) {
        let (images, labels) = batch?; // [8, 32, 32, 3] and [8]
        assert_eq!(images.shape()[0], labels.len());
    }
    Ok(())
}
