//! Shows the effect of each operation of an `ImageTransform` on a photo: a PNG file with one row per operation, and one
//! random draw per column.
//!
//!     cargo run --release --example contact_sheet -- photo.jpg --out sheet.png
//!
//! Without a photo, it draws a picture. The last row has a mask and a box, which follow the picture through the same
//! geometry.

#[allow(unreachable_pub)] // a module of a program: it is `pub` for the rest of the program
mod args;

use std::fs;
use std::process::ExitCode;

use image::{ImageFormat, Rgb, RgbImage};
use pinfeed::image::{
    ColorJitter, ImageTransform, Interpolation, LazyImage, LazyMask, RandAugment, RandomErasing,
    RandomResizedCrop, RandomRotation,
};
use pinfeed::ops::Normalize;
use pinfeed::rng::RngKey;
use pinfeed::{BoxError, SampleRng, Tensor};

use args::Options;

const HELP: &str = "\
Shows the effect of each operation of an ImageTransform on a photo: one row per operation, one random draw per column.

cargo run --release --example contact_sheet -- [PHOTO] --out SHEET

  PHOTO               a picture: JPEG, PNG, GIF, WebP, TIFF, BMP or PNM (default: one is drawn)
  --out SHEET         the PNG file to write
  --help              this text";

const SIDE: usize = 160;
const COLUMNS: u64 = 8;
const GAP: usize = 6;
const GREY: [u8; 3] = [128; 3];
/// The object that the mask and the box of the last row surround: left, top, right and bottom, as shares of the
/// picture.
const OBJECT: [f32; 4] = [0.14, 0.3, 0.42, 0.84];

fn main() -> ExitCode {
    args::start(HELP, run)
}

fn run(mut options: Options) -> Result<(), BoxError> {
    let target = options.path("--out")?;
    let photo = options.argument();
    options.finish()?;
    let target =
        target.ok_or_else(|| args::misuse("--out SHEET names the PNG file to write".into()))?;
    let photo = match photo {
        Some(path) => fs::read(&path).map_err(|error| format!("{}: {error}", path.display()))?,
        None => drawn()?,
    };

    let rows = rows();
    let step = SIDE + GAP;
    let mut sheet = RgbImage::from_pixel(
        (COLUMNS as usize * step + GAP) as u32,
        ((rows.len() + 1) * step + GAP) as u32,
        Rgb([255; 3]),
    );
    for (row, (name, transform)) in rows.iter().enumerate() {
        println!("row {:2}: {name}", row + 1);
        for column in 0..COLUMNS {
            let picture = LazyImage::encoded(photo.clone())
                .transform(
                    transform,
                    &mut SampleRng::for_sample(RngKey {
                        seed: 17,
                        epoch: 0,
                        position: column,
                    }),
                )
                .decode()?;
            let (left, top) = (GAP + column as usize * step, GAP + row * step);
            paste(&mut sheet, &picture, left, top);
        }
    }
    println!(
        "row {:2}: a mask and a box beside the picture",
        rows.len() + 1
    );
    for column in 0..COLUMNS {
        let picture = annotated(
            &photo,
            &mut SampleRng::for_sample(RngKey {
                seed: 17,
                epoch: 0,
                position: column,
            }),
        )?;
        let (left, top) = (GAP + column as usize * step, GAP + rows.len() * step);
        paste(&mut sheet, &picture, left, top);
    }
    sheet.save_with_format(&target, ImageFormat::Png)?;
    println!("{}", target.display());
    Ok(())
}

/// The operations one by one, and recipes made of them.
fn rows() -> Vec<(&'static str, ImageTransform)> {
    let new = ImageTransform::new;
    let jitter = ColorJitter::new;
    let whole = || new().resize(SIDE).center_crop(SIDE);
    vec![
        ("resize, center_crop", whole()),
        ("resize_exact", new().resize_exact(SIDE, SIDE)),
        ("random_crop", new().resize(2 * SIDE).random_crop(SIDE)),
        ("random_resized_crop", new().random_resized_crop(SIDE)),
        (
            "random_horizontal_flip",
            whole().random_horizontal_flip(0.5),
        ),
        ("random_vertical_flip", whole().random_vertical_flip(0.5)),
        (
            "pad, random_crop",
            whole().pad(SIDE as u16 / 8).random_crop(SIDE),
        ),
        (
            "brightness 0.5",
            whole().color_jitter(jitter().with_brightness(0.5)),
        ),
        (
            "contrast 0.5",
            whole().color_jitter(jitter().with_contrast(0.5)),
        ),
        (
            "saturation 0.8",
            whole().color_jitter(jitter().with_saturation(0.8)),
        ),
        ("hue 0.2", whole().color_jitter(jitter().with_hue(0.2))),
        ("random_grayscale 0.5", whole().random_grayscale(0.5)),
        ("random_rotation 30", whole().random_rotation(30.0)),
        (
            "random_rotation 30, bilinear, with fill",
            whole()
                .random_rotation(
                    RandomRotation::from(30.0).with_interpolation(Interpolation::Bilinear),
                )
                .with_fill(GREY),
        ),
        (
            "pad, random_crop, with fill",
            whole()
                .pad(SIDE as u16 / 8)
                .random_crop(SIDE)
                .with_fill(GREY),
        ),
        ("rand_augment", whole().rand_augment(RandAugment::new())),
        (
            "rand_augment 25, with fill",
            whole()
                .rand_augment(RandAugment::new().with_magnitude(25))
                .with_fill(GREY),
        ),
        (
            "random_erasing 0.5",
            whole().random_erasing(RandomErasing::new()),
        ),
        ("ImageTransform::train", ImageTransform::train(SIDE)),
        (
            "ImageTransform::train, all colours",
            ImageTransform::train(SIDE)
                .color_jitter(
                    jitter()
                        .with_brightness(0.4)
                        .with_contrast(0.4)
                        .with_saturation(0.4)
                        .with_hue(0.1),
                )
                .random_grayscale(0.2),
        ),
        (
            "ImageTransform::train, rand_augment, random_erasing",
            ImageTransform::train(SIDE)
                .rand_augment(RandAugment::new())
                .random_erasing(RandomErasing::new().with_value(Normalize::IMAGENET.mean_color())),
        ),
    ]
}

/// A picture with an elliptic mask and its box, which stay on their object whatever the transform does. The masked
/// pixels are red, and those outside the picture blue.
fn annotated(photo: &[u8], rng: &mut SampleRng) -> Result<Tensor<u8>, BoxError> {
    const OUTSIDE: u8 = 255;
    let transform = ImageTransform::new()
        .random_rotation(20.0)
        .random_resized_crop(RandomResizedCrop::new(SIDE).with_scale(0.3..=1.0))
        .random_horizontal_flip(0.5);
    let image = LazyImage::encoded(photo.to_vec()).transform(&transform, rng);
    let geometry = image.geometry()?;
    let (height, width) = geometry.source_size();
    let [left, top, right, bottom] = OBJECT;

    let labels = (0..height * width).map(|at| {
        let x = (at % width) as f32 / width as f32;
        let y = (at / width) as f32 / height as f32;
        let across = (2.0 * x - left - right) / (right - left);
        let down = (2.0 * y - top - bottom) / (bottom - top);
        u8::from(across.hypot(down) < 1.0)
    });
    let labels = Tensor::from_vec(labels.collect(), &[height, width])?;
    let object = [0, 1, 2, 3].map(|i| OBJECT[i] * [width, height][i % 2] as f32);
    let boxes = geometry.boxes(&[object]).kept();
    let mask = LazyMask::labels(labels)?
        .with_geometry(geometry)
        .with_fill(OUTSIDE);

    let (picture, mask) = (image.decode()?, mask.decode()?);
    let shape = picture.shape().clone();
    let mut pixels = picture.to_vec();
    for (at, (pixel, label)) in pixels
        .as_chunks_mut::<3>()
        .0
        .iter_mut()
        .zip(mask.as_slice())
        .enumerate()
    {
        let (x, y) = ((at % SIDE) as f32, (at / SIDE) as f32);
        let on_a_box = boxes.iter().any(|[left, top, right, bottom]| {
            let near = |a: f32, b: f32| (a + 0.5 - b).abs() < 1.5;
            let within =
                (left - 1.0..*right + 1.0).contains(&x) && (top - 1.0..*bottom + 1.0).contains(&y);
            within && (near(x, *left) || near(x, *right) || near(y, *top) || near(y, *bottom))
        });
        match label {
            _ if on_a_box => *pixel = [255, 255, 0],
            0 => {}
            &OUTSIDE => *pixel = [60, 60, 160],
            _ => *pixel = [pixel[0] / 2 + 127, pixel[1] / 2, pixel[2] / 2],
        }
    }
    Ok(Tensor::from_vec(pixels, &shape)?)
}

/// Puts a picture of at most `SIDE` x `SIDE` pixels into the sheet.
fn paste(sheet: &mut RgbImage, picture: &Tensor<u8>, left: usize, top: usize) {
    let width = picture.shape()[1];
    for (at, pixel) in picture.as_slice().chunks_exact(3).enumerate() {
        let (x, y) = (left + at % width, top + at / width);
        sheet.put_pixel(x as u32, y as u32, Rgb([pixel[0], pixel[1], pixel[2]]));
    }
}

/// A picture with a distinct top and bottom, left and right, and many colours: a landscape with a house.
fn drawn() -> Result<Vec<u8>, BoxError> {
    const WIDTH: u32 = 480;
    const HEIGHT: u32 = 360;
    let picture = RgbImage::from_fn(WIDTH, HEIGHT, |x, y| {
        let (across, down) = (x as f32 / WIDTH as f32, y as f32 / HEIGHT as f32);
        let hills = 0.55 + 0.08 * (across * 9.0).sin();
        let sun = (across - 0.78).hypot((down - 0.2) * 0.75) < 0.09;
        let (wall, roof) = (
            (0.18..0.38).contains(&across) && (0.5..0.8).contains(&down),
            (0.28 - across).abs() < (down - 0.34) * 0.8 && down < 0.5,
        );
        let door = (0.21..0.26).contains(&across) && (0.64..0.8).contains(&down);
        Rgb(match (sun, door, wall, roof, down > hills) {
            (true, ..) => [255, 220, 80],
            (_, true, ..) => [90, 50, 20],
            (_, _, true, ..) => [230, 215, 190],
            (_, _, _, true, _) => [190, 60, 40],
            (.., true) => [60, (170.0 - 90.0 * (down - hills)) as u8, 60],
            _ => [
                (90.0 + 120.0 * down) as u8,
                (150.0 + 80.0 * down) as u8,
                240,
            ],
        })
    });
    let mut file = std::io::Cursor::new(Vec::new());
    picture.write_to(&mut file, ImageFormat::Png)?;
    Ok(file.into_inner())
}
