//! Pictures with masks, in PASCAL VOC's layout.

use std::fs;
use std::path::{Path, PathBuf};

use pinfeed::image::{ImageTransform, LazyImage, LazyMask};
use pinfeed::{BoxError, Dataset, SampleRng};

use training::cache::{cached, on_all_cores};
use training::rng::Rng;
use training::shapes::{paint_scene, save_jpeg};
use training::{Result, at};

/// The label outside the picture, and of pixels that the annotators left open: the loss ignores it.
pub const IGNORED: u8 = 255;

/// `root` has the pictures in `JPEGImages`, the masks in `SegmentationClass`, and lists of names in
/// `ImageSets/Segmentation`.
pub struct VocSegmentation {
    root: PathBuf,
    names: Vec<String>,
    transform: ImageTransform,
}

impl VocSegmentation {
    /// Reads the list of names of a part: `train` or `val`.
    pub fn open(root: &Path, part: &str, transform: ImageTransform) -> Result<Self> {
        let list = root.join(format!("ImageSets/Segmentation/{part}.txt"));
        let names = fs::read_to_string(&list).map_err(at(&list))?;
        Ok(Self {
            root: root.to_owned(),
            names: names.lines().map(|name| name.trim().to_owned()).collect(),
            transform,
        })
    }
}

impl Dataset for VocSegmentation {
    type Sample = (LazyImage, LazyMask);

    fn len(&self) -> u64 {
        self.names.len() as u64
    }

    fn get(&self, index: u64, rng: &mut SampleRng) -> Result<Self::Sample, BoxError> {
        let name = &self.names[index as usize];
        let picture = self.root.join(format!("JPEGImages/{name}.jpg"));
        let mask = self.root.join(format!("SegmentationClass/{name}.png"));
        let image = LazyImage::encoded(fs::read(&picture).map_err(at(&picture))?)
            .with_path(picture)
            .transform(&self.transform, rng);
        // The same crop, flip and rotation as the picture. Both are decoded later, when the batch has memory for their
        // rows.
        let mask = LazyMask::encoded(fs::read(&mask).map_err(at(&mask))?)
            .with_path(mask)
            .with_geometry(image.geometry()?)
            .with_fill(IGNORED);
        Ok((image, mask))
    }

    fn describe(&self, index: u64) -> Option<String> {
        Some(self.names[index as usize].clone())
    }
}

/// Returns a folder with generated pictures, this many for training and for validation.
pub fn drawn(name: &str, [train, val]: [u64; 2]) -> Result<PathBuf> {
    cached(name, |root| {
        for folder in ["JPEGImages", "SegmentationClass", "ImageSets/Segmentation"] {
            let folder = root.join(folder);
            fs::create_dir_all(&folder).map_err(at(&folder))?;
        }
        on_all_cores(train + val, |index| {
            let scene = paint_scene(&mut Rng::new([index, 1, 0]));
            save_jpeg(
                &scene.picture,
                &root.join(format!("JPEGImages/{index:05}.jpg")),
            )?;
            let mask = root.join(format!("SegmentationClass/{index:05}.png"));
            scene.mask.save(&mask).map_err(at(&mask))
        })?;
        for (part, numbers) in [("train", 0..train), ("val", train..train + val)] {
            let names: String = numbers.map(|index| format!("{index:05}\n")).collect();
            let list = root.join(format!("ImageSets/Segmentation/{part}.txt"));
            fs::write(&list, names).map_err(at(&list))?;
        }
        Ok(())
    })
}
