//! Pictures with boxes, in COCO's layout.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use pinfeed::image::{ImageTransform, LazyImage};
use pinfeed::{BoxError, Dataset, Ragged, SampleRng};
use serde_json::{Value, json};

use training::cache::{cached, on_all_cores};
use training::rng::Rng;
use training::shapes::{KINDS, paint_scene, save_jpeg};
use training::{Result, at};

/// `root` has a folder with the pictures of each part, such as `train2017`, and their annotations in
/// `annotations/instances_train2017.json`.
pub struct CocoDetection {
    pictures: Vec<Picture>,
    /// COCO's category numbers, which have gaps. A label is an index into them.
    pub categories: Vec<u64>,
    transform: ImageTransform,
}

struct Picture {
    path: PathBuf,
    boxes: Vec<[f32; 4]>,
    labels: Vec<i64>,
}

impl CocoDetection {
    pub fn open(root: &Path, part: &str, transform: ImageTransform) -> Result<Self> {
        let path = root.join(format!("annotations/instances_{part}.json"));
        let file: Value = serde_json::from_slice(&fs::read(&path).map_err(at(&path))?)?;
        read(&file, &root.join(part), transform)
            .ok_or_else(|| format!("{}: not COCO's annotations", path.display()).into())
    }
}

/// Returns `None` if something is missing.
fn read(file: &Value, folder: &Path, transform: ImageTransform) -> Option<CocoDetection> {
    let categories = file["categories"].as_array()?.iter();
    let categories: Vec<u64> = categories
        .map(|category| category["id"].as_u64())
        .collect::<Option<_>>()?;
    let mut pictures = Vec::new();
    let mut place_of = HashMap::new();
    for image in file["images"].as_array()? {
        place_of.insert(image["id"].as_u64()?, pictures.len());
        pictures.push(Picture {
            path: folder.join(image["file_name"].as_str()?),
            boxes: Vec::new(),
            labels: Vec::new(),
        });
    }
    for annotation in file["annotations"].as_array()? {
        // A crowd is one box around many objects.
        if annotation["iscrowd"].as_u64() == Some(1) {
            continue;
        }
        let picture = &mut pictures[*place_of.get(&annotation["image_id"].as_u64()?)?];
        let category = annotation["category_id"].as_u64()?;
        let label = categories.iter().position(|id| *id == category)?;
        let number = |index: usize| Some(annotation["bbox"][index].as_f64()? as f32);
        // COCO has left, top, width and height.
        let [x, y, width, height] = [number(0)?, number(1)?, number(2)?, number(3)?];
        picture.boxes.push([x, y, x + width, y + height]);
        picture.labels.push(label as i64);
    }
    Some(CocoDetection {
        pictures,
        categories,
        transform,
    })
}

impl Dataset for CocoDetection {
    /// A picture with its boxes and labels, which vary in number.
    type Sample = (LazyImage, Ragged<f32>, Ragged<i64>);

    fn len(&self) -> u64 {
        self.pictures.len() as u64
    }

    fn get(&self, index: u64, rng: &mut SampleRng) -> Result<Self::Sample, BoxError> {
        let picture = &self.pictures[index as usize];
        let image = LazyImage::encoded(fs::read(&picture.path).map_err(at(&picture.path))?)
            .with_path(&picture.path)
            .transform(&self.transform, rng);
        // The boxes follow the same crop and flip. Boxes that the crop removes lose their labels too.
        let boxes = image.geometry()?.boxes(&picture.boxes);
        let labels = boxes.keep(picture.labels.iter().copied());
        Ok((image, boxes.kept().into(), labels.into()))
    }

    fn describe(&self, index: u64) -> Option<String> {
        let path = &self.pictures[index as usize].path;
        Some(path.display().to_string())
    }
}

/// Returns a folder with generated pictures, this many for training and for validation.
pub fn drawn(name: &str, [train, val]: [u64; 2]) -> Result<PathBuf> {
    cached(name, |root| {
        fs::create_dir_all(root.join("annotations")).map_err(at(root))?;
        draw(root, "train2017", 0, train)?;
        draw(root, "val2017", train, val)
    })
}

fn draw(root: &Path, part: &str, first: u64, count: u64) -> Result<()> {
    let folder = root.join(part);
    fs::create_dir_all(&folder).map_err(at(&folder))?;
    let boxes = Mutex::new(Vec::new());
    on_all_cores(count, |index| {
        let id = first + index;
        let scene = paint_scene(&mut Rng::new([id, 1, 0]));
        let annotations = scene
            .boxes
            .iter()
            .map(|([left, top, right, bottom], kind)| {
                json!({
                    "image_id": id,
                    "category_id": 1 + kind,
                    "bbox": [left, top, right - left, bottom - top],
                    "iscrowd": 0,
                })
            });
        boxes
            .lock()
            .map_err(|_| "drawing panicked")?
            .extend(annotations);
        save_jpeg(&scene.picture, &folder.join(format!("{id:012}.jpg")))
    })?;
    let images: Vec<_> = (first..first + count)
        .map(|id| json!({"id": id, "file_name": format!("{id:012}.jpg")}))
        .collect();
    let kinds = KINDS.iter().enumerate();
    let categories: Vec<_> = kinds
        .map(|(index, kind)| json!({"id": 1 + index, "name": kind.name}))
        .collect();
    let annotations = boxes.into_inner().map_err(|_| "drawing panicked")?;
    let file = json!({"images": images, "annotations": annotations, "categories": categories});
    let path = root.join(format!("annotations/instances_{part}.json"));
    fs::write(&path, file.to_string()).map_err(at(&path))
}
