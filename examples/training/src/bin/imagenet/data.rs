//! The pictures, and their transforms on the CPU.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use pinfeed::Dataset;
use pinfeed::image::{ImageFolder, ImageTransform, RandAugment, RandomErasing};
use pinfeed::ops::Normalize;

use training::args::Args;
use training::{Result, folders};

/// Without a validation folder, one picture in this many is held out.
const HELD_OUT: usize = 10;

pub struct Data {
    pub classes: usize,
    pub train: ImageFolder,
    pub val: ImageFolder,
}

/// Who decodes the pictures.
#[derive(Clone, Copy, PartialEq)]
pub enum Decoder {
    Cpu,
    Device,
    Both,
}

impl FromStr for Decoder {
    type Err = ();

    fn from_str(name: &str) -> Result<Self, ()> {
        match name {
            "cpu" => Ok(Decoder::Cpu),
            "device" => Ok(Decoder::Device),
            "both" => Ok(Decoder::Both),
            _ => Err(()),
        }
    }
}

impl Decoder {
    fn of(self, pictures: ImageFolder) -> Result<ImageFolder> {
        #[cfg(feature = "nvjpeg")]
        {
            use pinfeed::image::Decode;
            Ok(pictures.with_decode(match self {
                Decoder::Cpu => Decode::Cpu,
                Decoder::Device => Decode::Device,
                Decoder::Both => Decode::Both,
            }))
        }
        #[cfg(not(feature = "nvjpeg"))]
        match self {
            Decoder::Cpu => Ok(pictures),
            _ => Err("--decode device and both need the feature nvjpeg: \
                      cargo run --release -p training --features candle-cuda,nvjpeg,turbojpeg --bin imagenet -- ..."
                .into()),
        }
    }
}

impl Data {
    pub fn open(args: &Args, size: usize, decoder: Decoder) -> Result<Data> {
        let folder = match &args.data {
            Some(folder) => folder.clone(),
            None => folders::drawn(folders::COLOURED_SHAPES, args.quick)?,
        };
        let mut data = if folder.join("train").is_dir() {
            Data::of_two_folders(&folder)?
        } else {
            Data::of_one_folder(&folder)?
        };
        data.train = decoder.of(data.train.with_transform(for_training(size)))?;
        data.val = decoder.of(data.val.with_transform(for_validation(size)))?;
        Ok(data)
    }

    fn of_two_folders(folder: &Path) -> Result<Data> {
        let train = ImageFolder::open(folder.join("train"))?;
        Ok(Data {
            classes: train.classes().len(),
            val: ImageFolder::open(folder.join("val"))?.with_classes(train.classes())?,
            train,
        })
    }

    fn of_one_folder(folder: &Path) -> Result<Data> {
        let all = ImageFolder::open(folder)?;
        let labelled = all.paths().zip(all.labels().iter().copied()).enumerate();
        let (val, train): (Vec<_>, Vec<_>) = labelled.partition(|(index, _)| index % HELD_OUT == 0);
        let list = |part: Vec<(usize, (PathBuf, i64))>| {
            ImageFolder::from_list(part.into_iter().map(|(_, labelled)| labelled))
        };
        Ok(Data {
            classes: all.classes().len(),
            train: list(train)?,
            val: list(val)?,
        })
    }
}

/// torchvision's reference erases to 0 after normalising, which is the mean colour.
fn for_training(size: usize) -> ImageTransform {
    ImageTransform::new()
        .random_resized_crop(size)
        .random_horizontal_flip(0.5)
        .rand_augment(RandAugment::new())
        .random_erasing(
            RandomErasing::new()
                .with_probability(0.1)
                .with_value(Normalize::IMAGENET.mean_color()),
        )
}

/// For training with pictures of 176 pixels: the short side becomes 232, and the central 224 x 224 are kept.
fn for_validation(size: usize) -> ImageTransform {
    ImageTransform::new()
        .resize((size * 232).div_ceil(176))
        .center_crop((size * 224).div_ceil(176))
}

impl fmt::Display for Data {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} classes, {} training and {} validation images",
            self.classes,
            self.train.len(),
            self.val.len()
        )
    }
}
