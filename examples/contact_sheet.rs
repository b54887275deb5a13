//! Shows what each operation of an `ImageTransform` does to a photo: a PNG file with a row for each, of as many random draws
//! as there are columns.
//!
//!     cargo run --release --example contact_sheet -- photo.jpg sheet.png
//!
//! Without a photo, a picture is drawn.

use std::error::Error;
use std::path::PathBuf;
use std::{env, fs};

use image::{ImageFormat, Rgb, RgbImage};
use pinfeed::{ColorJitter, ImageTransform, LazyImage, SampleRng, Tensor};

const SIDE: usize = 160;
const COLUMNS: u64 = 8;
const GAP: usize = 6;

fn main() -> Result<(), Box<dyn Error>> {
    let mut paths = env::args().skip(1).map(PathBuf::from);
    let photo = match paths.next() {
        Some(path) => fs::read(path)?,
        None => drawn()?,
    };
    let target = paths.next().unwrap_or_else(|| "contact-sheet.png".into());

    let rows = rows();
    let step = SIDE + GAP;
    let mut sheet = RgbImage::from_pixel(
        (COLUMNS as usize * step + GAP) as u32,
        (rows.len() * step + GAP) as u32,
        Rgb([255; 3]),
    );
    for (row, (name, transform)) in rows.iter().enumerate() {
        println!("row {:2}: {name}", row + 1);
        for column in 0..COLUMNS {
            let picture = LazyImage::encoded(photo.clone())
                .transform(transform, &mut SampleRng::new(17, 0, column))
                .decode()?;
            let (left, top) = (GAP + column as usize * step, GAP + row * step);
            paste(&mut sheet, &picture, left, top);
        }
    }
    sheet.save_with_format(&target, ImageFormat::Png)?;
    println!("{}", target.display());
    Ok(())
}

/// The operations alone, and the recipes that are made of them.
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
            whole().color_jitter(jitter().brightness(0.5)),
        ),
        ("contrast 0.5", whole().color_jitter(jitter().contrast(0.5))),
        (
            "saturation 0.8",
            whole().color_jitter(jitter().saturation(0.8)),
        ),
        ("hue 0.2", whole().color_jitter(jitter().hue(0.2))),
        ("random_grayscale 0.5", whole().random_grayscale(0.5)),
        ("ImageTransform::train", ImageTransform::train(SIDE)),
        (
            "ImageTransform::train, all colours",
            ImageTransform::train(SIDE)
                .color_jitter(
                    jitter()
                        .brightness(0.4)
                        .contrast(0.4)
                        .saturation(0.4)
                        .hue(0.1),
                )
                .random_grayscale(0.2),
        ),
    ]
}

/// Puts a picture of at most `SIDE` x `SIDE` pixels into the sheet.
fn paste(sheet: &mut RgbImage, picture: &Tensor<u8>, left: usize, top: usize) {
    let width = picture.shape()[1];
    for (at, pixel) in picture.as_slice().chunks_exact(3).enumerate() {
        let (x, y) = (left + at % width, top + at / width);
        sheet.put_pixel(x as u32, y as u32, Rgb([pixel[0], pixel[1], pixel[2]]));
    }
}

/// A picture with an up and a down, a left and a right, and many colours: a landscape with a house.
fn drawn() -> Result<Vec<u8>, Box<dyn Error>> {
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
