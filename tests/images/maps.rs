//! Maps of ids and depth: files of other writers hold the values that these say, and the values follow their pictures as Pillow moves them.

#![cfg(not(miri))] // it reads files

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::fs;
use std::path::PathBuf;

use pinfeed::image::{
    ImageError, ImageTransform, Interpolation, LazyImage, LazyMap, LazyMask, MapValue, panoptic_id,
};
use pinfeed::loader::OnError;
use pinfeed::rng::RngKey;
use pinfeed::{DataLoader, Device, SampleRng, Tensor, from_fn};
use proptest::prelude::*;
use serde_json::Value;

fn fixtures() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures")
}

fn file(name: &str) -> Vec<u8> {
    fs::read(fixtures().join("masks").join(name)).unwrap()
}

/// What tests/fixtures/masks.py knows.
fn known() -> Value {
    serde_json::from_str(&fs::read_to_string(fixtures().join("masks.json")).unwrap()).unwrap()
}

fn values(case: &Value) -> (Vec<i32>, Vec<usize>) {
    let side = |name: &str| case[name].as_u64().unwrap() as usize;
    let values = serde_json::from_value(case["values"].clone()).unwrap();
    (values, vec![side("height"), side("width")])
}

/// The values of a file of numbers in one of the types, or what is said instead.
fn numbers<T: MapValue>(name: &str) -> Result<(Vec<T>, Vec<usize>), String> {
    let map = LazyMap::<T>::encoded(file(name)).with_path(name);
    let values = map.decode().map_err(|error| error.to_string())?;
    Ok((values.to_vec(), values.shape().to_vec()))
}

#[test]
fn files_hold_what_their_writers_say() {
    fn check<T: MapValue + Debug>(name: &str, known: &(Vec<i32>, Vec<usize>), as_t: fn(i32) -> T) {
        let expected = known.0.iter().map(|value| as_t(*value)).collect();
        assert_eq!(
            numbers::<T>(name),
            Ok((expected, known.1.clone())),
            "{name}"
        );
    }
    let known = known();
    let files = known["files"].as_object().unwrap();
    assert_eq!(files.len(), 11);
    for (name, case) in files {
        let expected = values(case);
        if case["kind"] == "numbers" {
            check::<u16>(name, &expected, |value| value as u16);
            check::<u32>(name, &expected, |value| value as u32);
            check::<i32>(name, &expected, |value| value);
            check::<f32>(name, &expected, |value| value as f32);
            match expected.0.iter().max() {
                Some(0..256) => check::<u8>(name, &expected, |value| value as u8),
                _ => {
                    let said = numbers::<u8>(name).unwrap_err();
                    assert!(
                        said.starts_with(name) && said.contains("more than a u8 holds"),
                        "{said}"
                    );
                }
            }
            continue;
        }
        let segments = LazyMap::coloured(file(name), panoptic_id).decode().unwrap();
        assert_eq!(
            (segments.to_vec(), segments.shape().to_vec()),
            expected,
            "{name}"
        );
    }
}

/// Its own examples: each segment of the annotations is there, and has as many pixels as they say.
#[test]
fn segments_are_those_of_cocos_annotations() {
    let known = known();
    let files = known["coco"].as_object().unwrap();
    assert_eq!(files.len(), 2);
    for (name, segments) in files {
        let map = LazyMap::coloured(file(name), panoptic_id).decode().unwrap();
        let mut areas = BTreeMap::<i32, u64>::new();
        map.as_slice()
            .iter()
            .for_each(|id| *areas.entry(*id).or_default() += 1);
        areas.remove(&0); // without a label
        let segments: BTreeMap<String, u64> = serde_json::from_value(segments.clone()).unwrap();
        let segments = segments
            .into_iter()
            .map(|(id, area)| (id.parse().unwrap(), area));
        assert_eq!(areas, segments.collect(), "{name}");
    }
}

/// What a plan of these steps makes of a map.
fn moved(source: &(Vec<i32>, Vec<usize>), steps: &[(&str, Vec<f64>)]) -> (Vec<i32>, Vec<usize>) {
    let mut plan = ImageTransform::new();
    for (operation, arguments) in steps {
        plan = match (*operation, &arguments[..]) {
            ("resize_exact", [height, width]) => {
                plan.resize_exact(*height as usize, *width as usize)
            }
            ("center_crop", [height, width]) => {
                plan.center_crop((*height as usize, *width as usize))
            }
            ("flip_across", []) => plan.random_horizontal_flip(1.0),
            ("flip_down", []) => plan.random_vertical_flip(1.0),
            ("pad", [by]) => plan.pad(*by as u16),
            ("rotate", [degrees]) => plan.random_rotation(*degrees..=*degrees),
            other => panic!("{other:?}"),
        };
    }
    let (values, shape) = source;
    let picture = LazyImage::rgb(Tensor::zeros(&[shape[0], shape[1], 3])).unwrap();
    let mut rng = SampleRng::for_sample(RngKey::default());
    let geometry = picture.transform(&plan, &mut rng).geometry().unwrap();
    let map = LazyMap::values(Tensor::from_vec(values.clone(), shape).unwrap()).unwrap();
    let map = map.with_fill(7).with_geometry(geometry).decode().unwrap();
    (map.to_vec(), map.shape().to_vec())
}

#[test]
fn values_follow_the_picture_as_pillow_moves_them() {
    let known = known();
    let source = values(&known["moved"]);
    let mut cases = 0;
    for (operation, results) in known["moved"]["results"].as_object().unwrap() {
        for result in results.as_array().unwrap() {
            let arguments: Vec<f64> = serde_json::from_value(result["arguments"].clone()).unwrap();
            let steps = [(operation.as_str(), arguments)];
            assert_eq!(moved(&source, &steps), values(result), "{steps:?}");
            cases += 1;
        }
    }
    assert_eq!(cases, 12);
}

/// What tests/fixtures/maps.py knows.
fn known_of_others() -> Value {
    serde_json::from_str(&fs::read_to_string(fixtures().join("maps.json")).unwrap()).unwrap()
}

fn expanded(runs: &Value) -> Vec<i32> {
    let runs: Vec<(usize, i32)> = serde_json::from_value(runs.clone()).unwrap();
    let values = |(count, value)| std::iter::repeat_n(value, count);
    runs.into_iter().flat_map(values).collect()
}

/// Of OpenCV, imageio, tifffile and Pillow: the values that Pillow and OpenCV read out of them.
#[test]
fn files_of_other_writers_hold_what_other_readers_read() {
    let known = known_of_others();
    let files = known["files"].as_object().unwrap();
    assert_eq!(files.len(), 29);
    let read = |name: &str| fs::read(fixtures().join("maps").join(name)).unwrap();
    for (name, case) in files {
        let expected = expanded(&case["values"]);
        let map = match case["kind"] == "numbers" {
            true => LazyMap::<i32>::encoded(read(name)),
            false => LazyMap::coloured(read(name), panoptic_id),
        };
        let map = map.decode().unwrap();
        assert_eq!(map.shape()[..], [48, 64]);
        assert_eq!(map.as_slice(), expected, "{name}");
        // A mask has the same labels, or says who takes it.
        match LazyMask::encoded(read(name)).decode() {
            Ok(mask) => {
                let labels = mask.as_slice().iter().map(|label| i32::from(*label));
                let is_palette = name == "pillow-panoptic-palette.png";
                assert!(is_palette || labels.eq(expected), "{name}");
            }
            Err(error) => {
                assert!(error.to_string().contains("`LazyMap`"), "{name}: {error}");
                assert!(name.contains("panoptic") || expected.iter().any(|value| *value > 255));
            }
        }
    }
}

/// Numbers that a value does not hold are never read as others.
#[test]
fn files_of_signed_numbers_and_floats_say_what_to_do() {
    let known = known_of_others();
    let names: Vec<String> = serde_json::from_value(known["refused"].clone()).unwrap();
    assert_eq!(names.len(), 6);
    for name in names {
        let bytes = || fs::read(fixtures().join("maps").join(&name)).unwrap();
        let map = said(LazyMap::<f32>::encoded(bytes()));
        let mask = LazyMask::encoded(bytes()).decode().unwrap_err().to_string();
        for (said, instead) in [(map, "`LazyMap::values`"), (mask, "`LazyMask::labels`")] {
            assert!(
                said.contains("TIFF in grey in") || said.contains("TIFF in grey of 32 bits"),
                "{said}"
            );
            assert!(said.contains(instead) && !said.contains("JPEG"), "{said}");
        }
    }
}

/// torchvision's masks are moved alike, but where they are resized: theirs are shifted by up to a pixel against their picture.
#[test]
fn values_follow_the_picture_as_torchvision_moves_masks() {
    let known = known_of_others();
    let source = (expanded(&known["source"]), vec![48, 64]);
    let cases = known["moved"].as_array().unwrap();
    assert_eq!(cases.len(), 18);
    for case in cases {
        let side = |name: &str| case[name].as_u64().unwrap() as usize;
        let steps: Vec<Vec<Value>> = serde_json::from_value(case["steps"].clone()).unwrap();
        let step = |step: &'_ [Value]| -> (String, Vec<f64>) {
            let arguments = step[1..].iter().map(|value| value.as_f64().unwrap());
            (step[0].as_str().unwrap().to_owned(), arguments.collect())
        };
        let steps: Vec<_> = steps.iter().map(|own| step(own)).collect();
        let named: Vec<_> = steps
            .iter()
            .map(|(name, of)| (name.as_str(), of.clone()))
            .collect();
        let (found, shape) = moved(&source, &named);
        assert_eq!(shape, [side("height"), side("width")], "{steps:?}");
        let theirs = expanded(&case["values"]);
        let differ = found
            .iter()
            .zip(&theirs)
            .filter(|(our, their)| our != their);
        let (differ, wanted) = (differ.count(), side("differ"));
        // (Where the middle of a pixel lies between two of the source's, rounding decides, as it does in Pillow.)
        let rounded = if named[0].0 == "resize_exact" { 5 } else { 0 };
        assert!(
            differ.abs_diff(wanted) <= rounded,
            "{steps:?}: {differ}, not {wanted}"
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever becomes of the picture: each byte of a value is where a mask of that byte says.
    #[test]
    fn a_map_is_moved_as_the_masks_of_its_bytes(seed in any::<u64>(), height in 1usize..40, width in 1usize..40) {
        let mut rng = SampleRng::for_sample(RngKey { seed, epoch: 0, position: 0 });
        let source: Vec<u32> = (0..height * width).map(|_| rng.next_u32()).collect();
        let plan = ImageTransform::new()
            .random_resized_crop((13, 18))
            .random_horizontal_flip(0.5)
            .random_rotation(60.0)
            .pad(2)
            .color_jitter(pinfeed::image::ColorJitter::new().with_brightness(0.4).with_hue(0.1))
            .random_vertical_flip(0.5)
            .random_crop(15)
            .with_interpolation(Interpolation::Bilinear);
        let picture = LazyImage::rgb(Tensor::zeros(&[height, width, 3])).unwrap();
        let picture = picture.transform(&plan, &mut rng);
        let geometry = || picture.geometry().unwrap();
        let fill = 0xAABB_CCDDu32;
        let mut expected = vec![0u32; 15 * 15];
        for byte in 0..4 {
            let of = |value: &u32| (value >> (8 * byte)) as u8;
            let labels = Tensor::from_vec(source.iter().map(of).collect(), &[height, width]).unwrap();
            let mask = LazyMask::labels(labels).unwrap().with_fill(of(&fill));
            let mask = mask.with_geometry(geometry()).decode().unwrap();
            for (value, label) in expected.iter_mut().zip(mask.as_slice()) {
                *value |= u32::from(*label) << (8 * byte);
            }
        }
        fn moved<T: MapValue>(values: Vec<T>, size: (usize, usize), fill: T, geometry: pinfeed::image::Geometry) -> Vec<T> {
            let map = LazyMap::values(Tensor::from_vec(values, &[size.0, size.1]).unwrap()).unwrap();
            map.with_fill(fill).with_geometry(geometry).decode().unwrap().to_vec()
        }
        let size = (height, width);
        prop_assert_eq!(&moved(source.clone(), size, fill, geometry()), &expected);
        let signed = source.iter().map(|value| *value as i32).collect();
        let signed = moved(signed, size, fill as i32, geometry());
        prop_assert!(signed.iter().map(|value| *value as u32).eq(expected.iter().copied()));
        let floats = source.iter().map(|value| f32::from_bits(*value)).collect();
        let floats = moved(floats, size, f32::from_bits(fill), geometry());
        prop_assert!(floats.iter().map(|value| value.to_bits()).eq(expected.iter().copied()));
        let upper = source.iter().map(|value| (value >> 16) as u16).collect();
        let upper = moved(upper, size, (fill >> 16) as u16, geometry());
        prop_assert!(upper.into_iter().eq(expected.iter().map(|value| (value >> 16) as u16)));
    }
}

fn said<T: MapValue>(map: LazyMap<T>) -> String {
    let said: Result<Tensor<T>, ImageError> = map.with_path("maps/7.png").decode();
    said.unwrap_err().to_string()
}

#[test]
fn what_is_no_map_says_what_to_do() {
    let numbers = |bytes: Vec<u8>| said(LazyMap::<i32>::encoded(bytes));
    let colours = |bytes: Vec<u8>| said(LazyMap::coloured(bytes, panoptic_id));
    let picture = |name: &str| fs::read(fixtures().join("pictures").join(name)).unwrap();
    for (told, what, instead) in [
        (
            numbers(file("panoptic.png")),
            "Rgb of 8 bits",
            "`LazyMap::coloured`",
        ),
        (
            numbers(file("panoptic-alpha.png")),
            "Rgba of 8 bits",
            "`LazyMap::coloured`",
        ),
        (
            numbers(picture("rgb-16.png")),
            "Rgb of 16 bits",
            "`LazyMap::values`",
        ),
        (
            numbers(picture("grey-alpha.png")),
            "GrayscaleAlpha of 8 bits",
            "`LazyMap::values`",
        ),
        (
            numbers(picture("grey-alpha.tif")),
            "grey of 8 bits beside other channels",
            "`LazyMap::values`",
        ),
        (
            numbers(picture("grey.jpg")),
            "of a JPEG file, which changes them",
            "`LazyMap::values`",
        ),
        (
            numbers(picture("grey.gif")),
            "of a GIF file",
            "`LazyMap::values`",
        ),
        (
            colours(file("ids-16.png")),
            "Grayscale of 16 bits",
            "`LazyMap::encoded`",
        ),
        (
            colours(file("grey-8.png")),
            "Grayscale",
            "`LazyMap::encoded`",
        ),
        (
            colours(picture("rgb-16.png")),
            "Rgb of 16 bits",
            "`LazyMap::values`",
        ),
        (
            colours(picture("rgb.jpg")),
            "of a jpeg file",
            "`LazyMap::values`",
        ),
        (
            colours(picture("lossless.webp")),
            "of a webp file",
            "`LazyMap::values`",
        ),
        (
            colours(picture("rgb-raw.tif")),
            "of a tiff file",
            "`LazyMap::values`",
        ),
    ] {
        assert!(told.starts_with("maps/7.png: its pixels are "), "{told}");
        assert!(
            told.contains(what) && told.contains(instead),
            "{what}: {told}"
        );
    }
    assert!(numbers(Vec::new()).contains("empty") && colours(Vec::new()).contains("empty"));
    for name in [
        "ids-16.png",
        "ids-16.tif",
        "ids-16.pgm",
        "panoptic.png",
        "panoptic.bmp",
        "panoptic.ppm",
    ] {
        let whole = file(name);
        for end in 0..whole.len() {
            let (cut, other) = (whole[..end].to_vec(), whole[..end].to_vec());
            // (A TIFF file's tags come last.)
            if name.starts_with("ids") {
                let cut = LazyMap::<u16>::encoded(cut).decode();
                assert!(
                    cut.is_err() || name.ends_with("png") && end > whole.len() - 17,
                    "{name} {end}"
                );
            } else {
                let cut = LazyMap::coloured(other, panoptic_id).decode();
                assert!(
                    cut.is_err() || name.ends_with("png") && end > whole.len() - 17,
                    "{name} {end}"
                );
            }
        }
    }
    let huge = LazyMap::<u16>::encoded(file("ids-16.png")).with_max_pixels(100);
    assert!(said(huge).contains("max_pixels is 100"));
    let huge = LazyMap::coloured(file("panoptic.png"), panoptic_id).with_max_pixels(100);
    assert!(said(huge).contains("max_pixels is 100"));
    let error = LazyMap::values(Tensor::<i32>::zeros(&[3, 2, 1])).unwrap_err();
    assert!(error.to_string().contains("[3, 2, 1]"), "{error}");
    let other = LazyImage::rgb(Tensor::zeros(&[4, 4, 3])).unwrap();
    let other =
        LazyMap::<u16>::encoded(file("ids-16.png")).with_geometry(other.geometry().unwrap());
    assert!(said(other).contains("23 x 17 pixels and its picture 4 x 4"));
    // A mask says who takes it.
    let mask = LazyMask::encoded(file("ids-16.png")).decode().unwrap_err();
    assert!(mask.to_string().contains("`LazyMap`"), "{mask}");
}

/// Batches of pictures with their maps, some of which are bad, on any workers and to a device.
#[test]
fn pictures_and_maps_are_samples() {
    let device = Device::cpu();
    let plan = ImageTransform::train(12);
    for workers in [0, 2] {
        let plan = plan.clone();
        let samples = from_fn(12u64, move |index, rng| {
            let picture = LazyImage::rgb(Tensor::from_vec(
                vec![index as u8; 17 * 23 * 3],
                &[17, 23, 3],
            )?)?;
            let picture = picture.transform(&plan, rng);
            let bytes = match index {
                5 => file("panoptic.png"),
                _ => file("ids-16.png"),
            };
            let ids = LazyMap::<u16>::encoded(bytes).with_path(format!("{index}.png"));
            let segments = LazyMap::coloured(file("panoptic.png"), panoptic_id);
            let geometry = picture.geometry()?;
            let ids = ids.with_geometry(geometry.clone());
            Ok((picture, ids, segments.with_geometry(geometry)))
        });
        let builder = DataLoader::builder(samples)
            .batch_size(4)
            .num_workers(workers);
        let builder = builder
            .pin_memory(&device)
            .on_error(OnError::Skip { at_most: 1 });
        let loader = builder.build().unwrap();
        let mut rows = 0;
        for batch in loader.epoch(0).prefetch_to_device(&device, 2) {
            let (pictures, ids, segments) = batch.unwrap();
            let n = pictures.shape()[0];
            assert_eq!(
                (&ids.shape()[..], &segments.shape()[..]),
                (&[n, 12, 12][..], &[n, 12, 12][..])
            );
            let ids = ids.to_host(true).unwrap().wait().unwrap();
            assert!(ids.is_pinned() || ids.as_slice().iter().any(|id| *id > 255));
            rows += n;
        }
        assert_eq!(rows, 11);
        let bad = loader.stats().bad.listed.join("\n");
        assert!(bad.contains("5.png: its pixels are Rgb of 8 bits"), "{bad}");
    }
}
