//! Draws the data set: six kinds of shapes on noisy backgrounds, as JPEG files in a cache folder.

use std::env;
use std::f32::consts::{PI, TAU};
use std::fs;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::SystemTime;

use image::codecs::jpeg::JpegEncoder;
use image::{Rgb, RgbImage};
use indicatif::ProgressBar;

use crate::rng::Rng;
use crate::{Result, at};

const SIDE: u32 = 96;
const JPEG_QUALITY: u8 = 85;

/// How far a point lies outside of a shape that fits into the unit circle (negative: inside).
type Distance = fn(f32, f32) -> f32;

const CLASSES: [(&str, Distance); 6] = [
    ("circle", |x, y| x.hypot(y) - 1.0),
    ("cross", |x, y| {
        rectangle(x, y, 1.0, 0.3).min(rectangle(x, y, 0.3, 1.0))
    }),
    ("ring", |x, y| (x.hypot(y) - 0.8).abs() - 0.2),
    ("square", |x, y| rectangle(x, y, 0.75, 0.75)),
    ("star", star),
    ("triangle", triangle),
];

/// How many images of each class a data set has.
#[derive(Clone, Copy)]
pub struct Size {
    pub train: u64,
    pub val: u64,
}

/// Returns the folder of the data set, with `train` and `val` in it, and draws it the first time.
pub fn cached(name: &str, size: Size) -> Result<PathBuf> {
    let cache = cache_folder();
    let folder = cache.join(name);
    if folder.is_dir() {
        return Ok(folder);
    }
    fs::create_dir_all(&cache).map_err(at(&cache))?;
    // An interrupted run must not leave half a data set behind, and a second run must not read
    // what the first is still drawing: it appears under its name only when it is complete.
    let nanos = SystemTime::UNIX_EPOCH.elapsed()?.as_nanos();
    let draft = cache.join(format!(".{name}-{}-{nanos}", process::id()));
    println!("Drawing shapes into {}", folder.display());
    let drawn = draw(&draft, size).and_then(|()| fs::rename(&draft, &folder).map_err(at(&folder)));
    if drawn.is_err() {
        // That the draft stays behind as well would hide why.
        let _ = fs::remove_dir_all(&draft);
    }
    // Where another run was first, its images are the same.
    if folder.is_dir() {
        Ok(folder)
    } else {
        drawn.map(|()| folder)
    }
}

fn cache_folder() -> PathBuf {
    let absolute = |name| {
        env::var_os(name)
            .map(PathBuf::from)
            .filter(|path| path.is_absolute())
    };
    absolute("XDG_CACHE_HOME")
        .or_else(|| absolute("HOME").map(|home| home.join(".cache")))
        .unwrap_or_else(env::temp_dir)
}

fn draw(folder: &Path, size: Size) -> Result<()> {
    for split in ["train", "val"] {
        for (class, _) in CLASSES {
            let folder = folder.join(split).join(class);
            fs::create_dir_all(&folder).map_err(at(&folder))?;
        }
    }
    let per_class = size.train + size.val;
    let count = per_class * CLASSES.len() as u64;
    let bar = ProgressBar::new(count);
    let next = AtomicU64::new(0);
    let draw_some = || -> Result<()> {
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            if index >= count {
                return Ok(());
            }
            let (class, shape) = CLASSES[(index / per_class) as usize];
            let number = index % per_class;
            let (split, number) = match number.checked_sub(size.train) {
                None => ("train", number),
                Some(number) => ("val", number),
            };
            let path = folder.join(format!("{split}/{class}/{number:04}.jpg"));
            let mut jpeg = Vec::new();
            JpegEncoder::new_with_quality(&mut jpeg, JPEG_QUALITY)
                .encode_image(&paint(shape, &mut Rng::new([index, 0, 0])))?;
            fs::write(&path, jpeg).map_err(at(&path))?;
            bar.inc(1);
        }
    };
    let threads = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(draw_some)).collect();
        threads.into_iter().try_for_each(|thread| {
            thread
                .join()
                .unwrap_or_else(|_| Err("drawing panicked".into()))
        })
    })?;
    bar.finish_and_clear();
    Ok(())
}

/// Paints one shape, anywhere, of any size, turned by any angle, in any two or three colours that
/// differ enough to be told apart through the noise.
fn paint(shape: Distance, rng: &mut Rng) -> RgbImage {
    let background = [colour(rng), colour(rng)];
    let mut fill = colour(rng);
    while background
        .iter()
        .any(|other| contrast(fill, *other) < 100.0)
    {
        fill = colour(rng);
    }
    let side = SIDE as f32;
    let radius = rng.between(0.25, 0.42) * side;
    let [centre_x, centre_y] = [0; 2].map(|_| rng.between(radius, side - radius));
    let (sin, cos) = rng.between(0.0, TAU).sin_cos();
    let noise = rng.between(10.0, 40.0);

    RgbImage::from_fn(SIDE, SIDE, |x, y| {
        let (x, y) = (x as f32 + 0.5, y as f32 + 0.5);
        let (dx, dy) = ((x - centre_x) / radius, (y - centre_y) / radius);
        let outside = radius * shape(cos * dx + sin * dy, cos * dy - sin * dx);
        // The distance in pixels, cut to one pixel, smooths the edge.
        let coverage = (0.5 - outside).clamp(0.0, 1.0);
        let slope = (x * cos + y * sin) / (2.0 * side) + 0.5;
        Rgb([0, 1, 2].map(|c| {
            let behind = mix(background[0][c], background[1][c], slope.clamp(0.0, 1.0));
            (mix(behind, fill[c], coverage) + rng.between(-noise, noise)) as u8
        }))
    })
}

fn colour(rng: &mut Rng) -> [f32; 3] {
    [0; 3].map(|_| rng.between(0.0, 255.0))
}

fn contrast(a: [f32; 3], b: [f32; 3]) -> f32 {
    (0..3).map(|c| (a[c] - b[c]).abs()).fold(0.0, f32::max)
}

fn mix(a: f32, b: f32, share: f32) -> f32 {
    a + (b - a) * share
}

fn rectangle(x: f32, y: f32, half_width: f32, half_height: f32) -> f32 {
    (x.abs() - half_width).max(y.abs() - half_height)
}

fn triangle(x: f32, y: f32) -> f32 {
    let sides = [0.0, TAU / 3.0, 2.0 * TAU / 3.0];
    sides
        .map(|angle| x * angle.cos() + y * angle.sin() - 0.5)
        .into_iter()
        .fold(f32::MIN, f32::max)
}

/// Five points. Folded onto one half of one point, the edge is a line from the tip to the notch.
fn star(x: f32, y: f32) -> f32 {
    let step = PI / 5.0;
    let angle = ((y.atan2(x) + PI) % (2.0 * step) - step).abs();
    let (y, x) = (x.hypot(y) * angle.sin(), x.hypot(y) * angle.cos());
    let (edge_x, edge_y) = (0.45 * step.cos() - 1.0, 0.45 * step.sin());
    ((x - 1.0) * edge_y - y * edge_x) / edge_x.hypot(edge_y)
}
