//! Six kinds of shapes, painted on noisy backgrounds.

use std::f32::consts::{PI, TAU};
use std::fs;
use std::path::Path;

use image::codecs::jpeg::JpegEncoder;
use image::{GrayImage, Luma, Rgb, RgbImage};

use crate::rng::Rng;
use crate::{Result, at};

/// Pictures have `SIDE` x `SIDE` pixels.
pub const SIDE: u32 = 96;
const JPEG_QUALITY: u8 = 85;

pub struct Kind {
    pub name: &'static str,
    /// The kind's own colour, for shapes that are coloured by kind.
    colour: [f32; 3],
    /// The distance of a point from the shape, which fits the unit circle. Negative inside.
    distance: fn(f32, f32) -> f32,
}

pub const KINDS: [Kind; 6] = [
    Kind {
        name: "circle",
        colour: [220.0, 60.0, 50.0],
        distance: |x, y| x.hypot(y) - 1.0,
    },
    Kind {
        name: "cross",
        colour: [60.0, 180.0, 75.0],
        distance: |x, y| rectangle(x, y, 1.0, 0.3).min(rectangle(x, y, 0.3, 1.0)),
    },
    Kind {
        name: "ring",
        colour: [60.0, 90.0, 220.0],
        distance: |x, y| (x.hypot(y) - 0.8).abs() - 0.2,
    },
    Kind {
        name: "square",
        colour: [240.0, 200.0, 40.0],
        distance: |x, y| rectangle(x, y, 0.75, 0.75),
    },
    Kind {
        name: "star",
        colour: [150.0, 60.0, 180.0],
        distance: star,
    },
    Kind {
        name: "triangle",
        colour: [70.0, 200.0, 210.0],
        distance: triangle,
    },
];

impl Kind {
    fn a_colour(&self, rng: &mut Rng) -> [f32; 3] {
        self.colour.map(|c| c + rng.between(-30.0, 30.0))
    }
}

/// Paints one shape at a random position, size and angle on a background of one or two random colours. Its colour is
/// close to its kind's colour, or any colour that stands out from the background despite the noise.
pub fn paint(kind: &Kind, in_its_colour: bool, rng: &mut Rng) -> RgbImage {
    let background = [colour(rng), colour(rng)];
    let fill = match in_its_colour {
        true => kind.a_colour(rng),
        false => colour_unlike(&background, rng),
    };
    let side = SIDE as f32;
    let radius = rng.between(0.25, 0.42) * side;
    let centre = [0; 2].map(|_| rng.between(radius, side - radius));
    let (sin, cos) = rng.between(0.0, TAU).sin_cos();
    let noise = rng.between(10.0, 40.0);

    RgbImage::from_fn(SIDE, SIDE, |x, y| {
        let (x, y) = (x as f32 + 0.5, y as f32 + 0.5);
        let covered = coverage(kind, centre, radius, (sin, cos), x, y);
        let slope = (x * cos + y * sin) / (2.0 * side) + 0.5;
        Rgb([0, 1, 2].map(|c| {
            let behind = mix(background[0][c], background[1][c], slope.clamp(0.0, 1.0));
            (mix(behind, fill[c], covered) + rng.between(-noise, noise)) as u8
        }))
    })
}

/// A picture of a few shapes.
pub struct Scene {
    pub picture: RgbImage,
    /// For each pixel: 0, or within a shape its index among [`KINDS`] plus one.
    pub mask: GrayImage,
    /// Left, top, right and bottom of each shape, and its index among [`KINDS`].
    pub boxes: Vec<([u32; 4], usize)>,
}

/// Paints one to three shapes that do not touch, in about their kinds' colours, on grey.
pub fn paint_scene(rng: &mut Rng) -> Scene {
    let side = SIDE as f32;
    let grey = rng.between(40.0, 215.0) as u8;
    let noise = rng.between(5.0, 20.0);
    let mut placed: Vec<([f32; 2], f32)> = Vec::new();
    let mut scene = Scene {
        picture: RgbImage::from_pixel(SIDE, SIDE, Rgb([grey; 3])),
        mask: GrayImage::new(SIDE, SIDE),
        boxes: Vec::new(),
    };
    for _ in 0..1 + rng.next_u64() % 3 {
        let index = (rng.next_u64() % KINDS.len() as u64) as usize;
        let radius = rng.between(0.12, 0.25) * side;
        let [x, y] = [0; 2].map(|_| rng.between(radius, side - radius));
        let touches = |([other_x, other_y], other): &([f32; 2], f32)| {
            (x - other_x).hypot(y - other_y) < radius + other + 2.0
        };
        if !placed.iter().any(touches) {
            placed.push(([x, y], radius));
            let fill = KINDS[index].a_colour(rng);
            let turn = rng.between(0.0, TAU).sin_cos();
            scene.add(index, [x, y], radius, turn, fill);
        }
    }
    for pixel in scene.picture.pixels_mut() {
        pixel.0 = pixel
            .0
            .map(|c| (f32::from(c) + rng.between(-noise, noise)) as u8);
    }
    scene
}

impl Scene {
    fn add(
        &mut self,
        index: usize,
        centre: [f32; 2],
        radius: f32,
        turn: (f32, f32),
        fill: [f32; 3],
    ) {
        let [mut left, mut top, mut right, mut bottom] = [SIDE, SIDE, 0, 0];
        for (x, y, pixel) in self.picture.enumerate_pixels_mut() {
            let covered = coverage(
                &KINDS[index],
                centre,
                radius,
                turn,
                x as f32 + 0.5,
                y as f32 + 0.5,
            );
            for (c, fill) in pixel.0.iter_mut().zip(fill) {
                *c = mix(f32::from(*c), fill, covered) as u8;
            }
            if covered >= 0.5 {
                self.mask.put_pixel(x, y, Luma([1 + index as u8]));
                (left, top) = (left.min(x), top.min(y));
                (right, bottom) = (right.max(x + 1), bottom.max(y + 1));
            }
        }
        self.boxes.push(([left, top, right, bottom], index));
    }
}

pub fn save_jpeg(picture: &RgbImage, path: &Path) -> Result<()> {
    let mut jpeg = Vec::new();
    JpegEncoder::new_with_quality(&mut jpeg, JPEG_QUALITY).encode_image(picture)?;
    fs::write(path, jpeg).map_err(at(path))
}

/// The share of the pixel around a point that lies in a shape.
fn coverage(
    kind: &Kind,
    centre: [f32; 2],
    radius: f32,
    (sin, cos): (f32, f32),
    x: f32,
    y: f32,
) -> f32 {
    let (dx, dy) = ((x - centre[0]) / radius, (y - centre[1]) / radius);
    let outside = radius * (kind.distance)(cos * dx + sin * dy, cos * dy - sin * dx);
    // Clamping the distance to one pixel smooths the edge.
    (0.5 - outside).clamp(0.0, 1.0)
}

fn colour(rng: &mut Rng) -> [f32; 3] {
    [0; 3].map(|_| rng.between(0.0, 255.0))
}

fn colour_unlike(others: &[[f32; 3]], rng: &mut Rng) -> [f32; 3] {
    loop {
        let colour = colour(rng);
        if others.iter().all(|other| contrast(colour, *other) >= 100.0) {
            return colour;
        }
    }
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

/// Five points. Folded onto one half of a point, the edge is a line from the tip to the notch.
fn star(x: f32, y: f32) -> f32 {
    let step = PI / 5.0;
    let angle = ((y.atan2(x) + PI) % (2.0 * step) - step).abs();
    let (y, x) = (x.hypot(y) * angle.sin(), x.hypot(y) * angle.cos());
    let (edge_x, edge_y) = (0.45 * step.cos() - 1.0, 0.45 * step.sin());
    ((x - 1.0) * edge_y - y * edge_x) / edge_x.hypot(edge_y)
}
