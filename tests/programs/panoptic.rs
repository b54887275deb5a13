//! Panoptic segmentation, as COCO keeps it: the colours of a PNG file are ids of segments, which follow the crop and the flip of their
//! picture. (The files are COCO's own examples.)

use std::collections::BTreeSet;
use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};

use pinfeed::image::{ImageTransform, LazyImage, LazyMap, panoptic_id};
use pinfeed::{DataLoader, Device, Tensor, from_fn};

pub fn main() -> Result<(), Box<dyn Error>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/masks");
    let files: Vec<PathBuf> = ["000000142238", "000000439180"].iter().map(|name| folder.join(format!("coco-{name}.png"))).collect();
    let known: BTreeSet<i32> = {
        let whole = files.iter().map(|path| Ok(LazyMap::coloured(fs::read(path)?, panoptic_id).with_path(path).decode()?));
        let whole = whole.collect::<Result<Vec<_>, Box<dyn Error>>>()?;
        whole.iter().flat_map(|ids| ids.as_slice().to_vec()).collect()
    };

    let transform = ImageTransform::train(64);
    let scenes = from_fn(20, move |index, rng| {
        let path = &files[index as usize % files.len()];
        let segments = LazyMap::coloured(fs::read(path)?, panoptic_id).with_path(path);
        // (The photograph stands here. This one has the size of its segments.)
        let [height, width] = if index % 2 == 0 { [427, 640] } else { [360, 640] };
        let photo = LazyImage::rgb(Tensor::zeros(&[height, width, 3]))?.transform(&transform, rng);
        let segments = segments.with_geometry(photo.geometry()?);
        Ok((photo, segments))
    });
    let device = Device::cpu();
    let loader = DataLoader::builder(scenes).batch_size(5).shuffle(true).num_workers(2).pin_memory(&device).build()?;
    let mut seen = BTreeSet::new();
    for epoch in loader.epochs(0..2).prefetch_to_device(&device, 2) {
        for batch in epoch {
            let (photos, segments) = batch?;
            assert_eq!((&photos.shape()[..], &segments.shape()[..]), (&[5, 64, 64, 3][..], &[5, 64, 64][..]));
            seen.extend(segments.to_host(true)?.wait()?.to_vec());
        }
    }
    // No id is mixed of two others.
    assert!(seen.len() > 10 && seen.is_subset(&known), "{seen:?}");
    Ok(())
}
