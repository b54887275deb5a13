//! Street scenes whose labels are colours, as CamVid has them: a table says which class a colour is. A colour that is none (an editor
//! smoothed an edge) is an error that says where, and another scene takes its place.

use std::collections::HashMap;
use std::error::Error;
use std::io::Cursor;
use std::sync::Arc;

use image::{ImageFormat, Rgb, RgbImage};
use pinfeed::image::{ImageTransform, LazyImage, LazyMap};
use pinfeed::loader::OnError;
use pinfeed::{DataLoader, Tensor, from_fn};

const CLASSES: [([u8; 3], &str); 3] = [([128, 128, 128], "sky"), ([128, 64, 128], "road"), ([64, 0, 128], "car")];

/// What an annotator drew.
fn labels(number: u64) -> Result<Vec<u8>, image::ImageError> {
    let mut drawn = RgbImage::from_fn(40, 30, |x, y| Rgb(CLASSES[if y < 12 { 0 } else if x < 9 { 2 } else { 1 }].0));
    if number == 7 {
        drawn.put_pixel(9, 20, Rgb([96, 32, 128]));
    }
    let mut file = Cursor::new(Vec::new());
    drawn.write_to(&mut file, ImageFormat::Png)?;
    Ok(file.into_inner())
}

pub fn main() -> Result<(), Box<dyn Error>> {
    let table: HashMap<[u8; 3], u8> = (0..).zip(CLASSES).map(|(class, (colour, _))| (colour, class)).collect();
    let (table, transform) = (Arc::new(table), ImageTransform::new().random_crop(24).random_horizontal_flip(0.5));
    let scenes = from_fn(32, move |index, rng| {
        let image = LazyImage::rgb(Tensor::zeros(&[30, 40, 3]))?.transform(&transform, rng);
        let table = Arc::clone(&table);
        let classes = LazyMap::<u8>::coloured(labels(index)?, move |colour| table.get(&colour).copied());
        let classes = classes.with_path(format!("scene-{index}_L.png")).with_fill(255);
        let classes = classes.with_geometry(image.geometry()?);
        Ok((image, classes))
    });
    let loader = DataLoader::builder(scenes)
        .batch_size(8)
        .num_workers(2)
        .on_error(OnError::Replace { at_most: u64::MAX })
        .bad_share_at_most(0.05, 32)
        .build()?;
    let mut counts = [0; 3];
    for batch in &loader {
        let (_, classes) = batch?;
        assert_eq!(classes.shape()[..], [8, 24, 24]);
        classes.as_slice().iter().for_each(|class| counts[*class as usize] += 1);
    }
    assert!(counts.iter().all(|count| *count > 500), "{counts:?}");
    let bad = loader.stats().bad.listed.join("\n");
    assert!(bad.contains("scene-7_L.png: the colour [96, 32, 128], in column 9, row 20, stands for nothing"), "{bad}");
    Ok(())
}
