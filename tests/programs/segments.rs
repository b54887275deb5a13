//! Pictures with masks and boxes, which go through the same crop and flip, in a batch that is a struct of one's own. One file is broken.

use std::error::Error;

use pinfeed::collate::Arena;
use pinfeed::image::{ImageTransform, LazyImage, LazyMask};
use pinfeed::ragged::RaggedTensor;
use pinfeed::{Batch, BoxError, DataLoader, Device, Ragged, Sample, Tensor, from_fn};

const SIZE: usize = 24;
const BROKEN: u64 = 6;

#[derive(Sample)]
struct Scene {
    image: LazyImage,
    mask: LazyMask,
    boxes: Ragged<f32>,
    label: i64,
}

#[derive(Batch)]
#[pinfeed(on_device = "ScenesOnGpu")]
struct Scenes {
    images: Tensor<u8>,
    masks: Tensor<u8>,
    boxes: RaggedTensor<f32>,
    /// One-hot.
    labels: Tensor<f32>,
    /// The most boxes that a picture of the batch has: a plain number, which no device needs.
    #[pinfeed(host)]
    most: usize,
}

fn collate(scenes: Vec<Scene>, arena: &mut Arena) -> Result<Scenes, BoxError> {
    let mut labels = arena.zeros(&[scenes.len(), 4])?;
    let row = labels.as_mut_slice().ok_or("a new tensor is not shared")?;
    for (row, scene) in row.chunks_mut(4).zip(&scenes) {
        row[scene.label as usize] = 1.0;
    }
    let most = scenes.iter().map(|scene| scene.boxes.len()).max().unwrap_or(0);
    // What is left is stacked as it would be without a function: pictures and masks are decoded here.
    let SceneBatch { image, mask, boxes, label: _ } = arena.collate(scenes)?;
    Ok(Scenes { images: image, masks: mask, boxes, labels, most })
}

pub fn main() -> Result<(), Box<dyn Error>> {
    let transform = ImageTransform::train(SIZE);
    let scenes = from_fn(10, move |index, rng| {
        let image = picture(index)?.with_path(format!("{index}.jpg")).transform(&transform, rng);
        // The transform comes first: the geometry is that of what it shows.
        let geometry = image.geometry()?;
        let boxes = geometry.boxes(&[[0.0, 0.0, 60.0, 40.0], [0.0, 0.0, 1.0, 1.0]]);
        let mask = Tensor::from_vec(vec![index as u8; 40 * 60], &[40, 60])?;
        Ok(Scene {
            image,
            mask: LazyMask::labels(mask)?.with_geometry(geometry),
            boxes: Ragged::from(boxes.kept()), // the small one is cropped away, often
            label: (index % 4) as i64,
        })
    });

    let device = Device::cpu();
    let loader = DataLoader::builder(scenes)
        .batch_size(2)
        .collate_fn(collate)
        .num_workers(2)
        .pin_memory(&device)
        .build()?;
    for epoch in loader.epochs(0..2).prefetch_to_device(&device, 2) {
        let (mut seen, mut broken) = (0, 0);
        for batch in epoch {
            match batch {
                Ok(ScenesOnGpu { images, masks, boxes, labels, most }) => {
                    assert_eq!(images.shape()[..], [2, SIZE, SIZE, 3]);
                    assert_eq!(labels.shape()[..], [2, 4]);
                    assert!(boxes.len() == 2 && (1..=2).contains(&most));
                    // Each pixel of the mask is where that of its picture is.
                    let (images, masks) = (images.to_host(true)?.wait()?, masks.to_host(true)?.wait()?);
                    assert!(images.as_slice().chunks(3).zip(masks.as_slice()).all(|(image, mask)| image[0] == *mask));
                    seen += 2;
                }
                // A batch that cannot be had is left out; the epoch goes on.
                Err(error) => {
                    println!("{error}");
                    assert!(error.to_string().contains("6.jpg"), "{error}");
                    broken += 1;
                }
            }
        }
        assert_eq!((seen, broken), (8, 1));
    }
    Ok(())
}

fn picture(index: u64) -> Result<LazyImage, BoxError> {
    if index == BROKEN {
        // Its header can be read, and says how large it is. The pixels are missing.
        return Ok(LazyImage::encoded(*b"P6 60 40 255\n"));
    }
    Ok(LazyImage::rgb(Tensor::from_vec(vec![index as u8; 40 * 60 * 3], &[40, 60, 3])?)?)
}
