//! What Python's `datasets` wrote, and the cache of the hub's programs.

use std::fs;
use std::path::Path;
use std::process::Command;

use pinfeed::image::ImageTransform;
use pinfeed::{DataLoader, Tensor};
use pinfeed_parquet::Parquet;

use crate::common::{all, fixture, open};

#[test]
fn pictures_as_the_hub_has_them() {
    let data = open("hub/images.parquet")
        .columns(["image", "label"])
        .build(|row, rng| {
            let picture = row
                .image("image")?
                .transform(&ImageTransform::eval(10), rng);
            Ok((picture, row.get::<i64>("label")?))
        });
    let loader = DataLoader::builder(data.unwrap())
        .batch_size(12)
        .num_workers(2)
        .build()
        .unwrap();
    let (pictures, labels) = loader.epoch(0).next().unwrap().unwrap();
    assert_eq!(pictures.shape()[..], [12, 10, 10, 3]);
    for at in 0..12 {
        let pixel = &pictures.as_slice()[at * 300..][..3];
        assert_eq!(
            pixel,
            [10 * at as u8, 20, 255 - 10 * at as u8],
            "picture {at}"
        );
        assert_eq!(labels.as_slice()[at], at as i64 % 2);
    }
}

/// Of a picture that was not packed, the error says so; another that is null is an error, too.
#[test]
fn pictures_that_are_not_there() {
    let data = open("hub/unpacked.parquet").build(|row, _| {
        Ok((
            row.image("image").map_err(|error| error.to_string()).err(),
            row.is_null("image.bytes")?,
        ))
    });
    let found = all(data.unwrap()).unwrap();
    assert_eq!(found[0], (None, false));
    let (error, is_null) = &found[1];
    assert!(is_null & error.as_ref().unwrap().contains("row 1, column \"image.bytes\": it is null, and beside it is the path \"photos/1.png\""), "{error:?}");
    assert!(
        found[2]
            .0
            .as_ref()
            .unwrap()
            .contains("row 2, column \"image.bytes\": it is null: take it as an Option"),
        "{:?}",
        found[2]
    );
}

#[test]
fn features_of_datasets() {
    let data = open("hub/features.parquet").build(|row, _| {
        let boxes: Vec<[f32; 4]> = row.get("objects.bbox")?;
        let grid: Tensor<i32> = row.get("grid")?;
        Ok((
            boxes,
            row.list::<i64>("objects.category")?,
            grid,
            row.str("translation.de")?.to_owned(),
            row.str("text")?.to_owned(),
        ))
    });
    for (at, (boxes, categories, grid, german, text)) in
        all(data.unwrap()).unwrap().into_iter().enumerate()
    {
        assert_eq!(boxes, vec![[0.0, 1.0, 2.0, at as f32]; at % 3]);
        assert!(categories.into_iter().eq(0..at as i64 % 3));
        assert_eq!(
            (&grid.shape()[..], grid.as_slice()),
            (&[2, 3][..], &[at as i32; 6][..])
        );
        assert_eq!((german, text), (format!("eins {at}"), format!("text {at}")));
    }
}

/// A cache as `hf download` leaves it: files are links to what they are called by their contents.
#[cfg(unix)]
fn cache(root: &Path, files: &[&str]) {
    let folder = root.join("hub/datasets--org--numbers");
    let snapshot = folder.join("snapshots/0123456789abcdef0123456789abcdef01234567");
    for at in [
        folder.join("refs/refs/convert"),
        folder.join("blobs"),
        snapshot.clone(),
    ] {
        fs::create_dir_all(at).unwrap();
    }
    fs::write(
        folder.join("refs/main"),
        "0123456789abcdef0123456789abcdef01234567",
    )
    .unwrap();
    fs::write(
        folder.join("refs/refs/convert/parquet"),
        "0123456789abcdef0123456789abcdef01234567\n",
    )
    .unwrap();
    for (at, file) in files.iter().enumerate() {
        let blob = folder.join(format!("blobs/{at}"));
        fs::write(&blob, fixture("codecs/zstd.parquet")).unwrap();
        fs::create_dir_all(snapshot.join(file).parent().unwrap()).unwrap();
        std::os::unix::fs::symlink(&blob, snapshot.join(file)).unwrap();
    }
}

/// What a process finds whose `HF_HOME` is a folder. (Variables belong to a process, so it is one of its own.)
fn in_home(home: &Path, name: &str, config: &str, split: &str) -> Result<u64, String> {
    let test = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "hub::found_in_a_process",
            "--nocapture",
            "--include-ignored",
        ])
        .env_remove("HF_HUB_CACHE")
        .env("HF_HOME", home)
        .env("PINFEED_FIND", format!("{name} {config} {split}"))
        .output()
        .unwrap();
    let text = String::from_utf8(test.stdout).unwrap();
    let line = text
        .lines()
        .find_map(|line| line.split_once("found: "))
        .unwrap_or_else(|| panic!("{text}"))
        .1;
    line.parse().map_err(|_| line.to_owned())
}

#[test]
#[ignore = "it is a part of the next"]
fn found_in_a_process() {
    let Ok(asked) = std::env::var("PINFEED_FIND") else {
        return;
    };
    let [name, config, split] = asked.split(' ').collect::<Vec<_>>()[..] else {
        panic!("{asked}")
    };
    let builder = match config {
        "-" => Parquet::hub(name, split),
        config => Parquet::hub_config(name, config, split),
    };
    match builder.and_then(|builder| builder.build(|row, _| Ok(row.get::<i64>("x")?))) {
        Ok(data) => println!("found: {}", data.len()),
        Err(error) => println!("found: {error}"),
    }
}

#[test]
#[cfg(unix)]
fn the_cache_of_the_hub() {
    let folder = tempfile::tempdir().unwrap();
    let home = folder.path();
    let error = in_home(home, "org/numbers", "-", "train").unwrap_err();
    assert!(
        error.contains("org/numbers is not in the hub's cache")
            && error.contains("`hf download org/numbers --repo-type dataset`"),
        "{error}"
    );
    cache(
        home,
        &[
            "data/train-00000-of-00002.parquet",
            "data/train-00001-of-00002.parquet",
            "data/test-00000-of-00003.parquet",
            "README.md",
            "more/train/0000.parquet",
        ],
    );
    assert_eq!(in_home(home, "org/numbers", "-", "train"), Ok(100));
    assert_eq!(in_home(home, "org/numbers", "more", "train"), Ok(50));
    assert_eq!(
        in_home(home, "org/numbers@refs/convert/parquet", "-", "train"),
        Ok(100)
    );
    assert_eq!(in_home(home, "org/numbers@0123456", "-", "train"), Ok(100));
    let error = in_home(home, "org/numbers", "-", "test").unwrap_err();
    assert!(error.contains("has 1 of 3 files data/test-*-of-00003: number 1 is missing. Run `hf download org/numbers --repo-type dataset --include \"data/test-*\"`"), "{error}");
    let error = in_home(home, "org/numbers@v2", "-", "train").unwrap_err();
    assert!(
        error.contains("the revision v2 of org/numbers is not in the hub's cache")
            && error.contains("--revision v2"),
        "{error}"
    );
    let error = in_home(home, "org/numbers", "-", "validation").unwrap_err();
    assert!(
        error.contains("no file of the split \"validation\""),
        "{error}"
    );
    let error = in_home(home, "numbers/of/org", "-", "train").unwrap_err();
    assert!(error.contains("names no data set of the hub"), "{error}");
}
