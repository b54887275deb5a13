//! Draws JPEGs that cost a decoder about what photographs cost: smooth gradients, some edges, and noise.

use std::f32::consts::TAU;
use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::{env, fs, process, thread};

use image::codecs::jpeg::JpegEncoder;
use image::{Rgb, RgbImage};

use crate::args::cores;
use crate::data::SplitMix;
use crate::{BoxError, Outcome};

const WIDTH: u32 = 476;
const HEIGHT: u32 = 404;
const QUALITY: u8 = 90;
const CLASSES: usize = 10;

/// The amplitude of the noise: with it, files of 109 KB come out on average.
const NOISE: f32 = 57.0;

/// A class folder of so many images in the system's temporary folder, drawn if it is not there yet.
pub fn folder(images: usize) -> Outcome<PathBuf> {
    let folder = env::temp_dir().join(format!("pinfeed-feed-jpegs-v1-{images}"));
    if folder.is_dir() {
        return Ok(folder);
    }
    eprintln!("drawing {images} images into {}", folder.display());
    let draft = folder.with_extension(format!("draft-{}", process::id()));
    let drawn =
        draw(&draft, images).and_then(|()| fs::rename(&draft, &folder).map_err(at(&folder)));
    if drawn.is_err() {
        // That the draft stays behind as well would hide why.
        let _ = fs::remove_dir_all(&draft);
    }
    // Where another run was first, its images are the same.
    match folder.is_dir() {
        true => Ok(folder),
        false => drawn.map(|()| folder),
    }
}

fn draw(folder: &Path, images: usize) -> Outcome {
    for class in 0..CLASSES {
        let class = folder.join(format!("class-{class}"));
        fs::create_dir_all(&class).map_err(at(&class))?;
    }
    let next = AtomicUsize::new(0);
    let draw_some = || -> Outcome {
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            if index >= images {
                return Ok(());
            }
            let path = folder.join(format!("class-{}/{index:06}.jpg", index % CLASSES));
            let mut jpeg = Vec::new();
            JpegEncoder::new_with_quality(&mut jpeg, QUALITY).encode_image(&paint(index))?;
            fs::write(&path, jpeg).map_err(at(&path))?;
        }
    };
    thread::scope(|scope| {
        let threads: Vec<_> = (0..cores()).map(|_| scope.spawn(draw_some)).collect();
        threads.into_iter().try_for_each(|thread| {
            thread
                .join()
                .unwrap_or_else(|_| Err("drawing panicked".into()))
        })
    })
}

/// Paints waves of light, a few of them cut off sharply, under noise.
fn paint(index: usize) -> RgbImage {
    let mut words = SplitMix(index as u64 + 1);
    let mut unit = move || (words.next() >> 40) as f32 / (1 << 24) as f32;
    let width = WIDTH + (unit() * 48.0) as u32 - 24;
    let height = HEIGHT + (unit() * 48.0) as u32 - 24;
    // Each wave: its direction and frequency, its phase, its colour, and whether it has an edge.
    let waves: Vec<_> = (0..6)
        .map(|wave| {
            let (angle, frequency) = (unit() * TAU, 1.0 + unit() * 6.0);
            let colour = [0; 3].map(|_| unit() * 60.0 - 30.0);
            let (sin, cos) = angle.sin_cos();
            (
                [sin * frequency, cos * frequency],
                unit() * TAU,
                colour,
                wave < 2,
            )
        })
        .collect();
    RgbImage::from_fn(width, height, |x, y| {
        let (x, y) = (x as f32 / WIDTH as f32, y as f32 / WIDTH as f32);
        let mut pixel = [128.0; 3];
        for ([by_x, by_y], phase, colour, edge) in &waves {
            let wave = (by_x * x + by_y * y + phase).sin();
            let height = if *edge { wave.signum() } else { wave };
            for (channel, colour) in pixel.iter_mut().zip(colour) {
                *channel += height * colour;
            }
        }
        // Grey for the most part, as a camera's noise is.
        let grey = (unit() - 0.5) * NOISE;
        Rgb(pixel.map(|channel| (channel + grey + (unit() - 0.5) * NOISE * 0.3) as u8))
    })
}

/// Makes an error say which file or folder it is about.
fn at<E: Display>(path: &Path) -> impl FnOnce(E) -> BoxError {
    move |error| format!("{}: {error}", path.display()).into()
}
