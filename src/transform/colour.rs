//! Operations on colours: what they do to a pixel does not depend on where it lies, so they are carried out on the result.

use super::operation::{ColorJitter, Op};
use super::plan::ImageTransform;
use crate::rng::SampleRng;

/// One operation, with its random numbers drawn.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Colour {
    Grey,
    Brightness(f32),
    Contrast(f32),
    Saturation(f32),
    /// How far the hue turns, of a whole circle.
    Hue(f64),
}

/// Draws the plan's operations on colours from `rng`, in their order.
pub(super) fn draw(plan: &ImageTransform, rng: &mut SampleRng) -> Vec<Colour> {
    let mut colours = Vec::new();
    for op in plan.ops() {
        match op {
            Op::RandomGrayscale { probability } => {
                colours.extend(rng.bool(*probability).then_some(Colour::Grey));
            }
            Op::ColorJitter(jitter) => colours.extend(jittered(jitter, rng)),
            _ => {}
        }
    }
    colours
}

/// torchvision's `ColorJitter.get_params`: the four in a random order, each with a random factor.
fn jittered(jitter: &ColorJitter, rng: &mut SampleRng) -> impl Iterator<Item = Colour> + use<> {
    let mut order = [0, 1, 2, 3];
    for left in (1..order.len()).rev() {
        order.swap(left, rng.below(left as u64 + 1) as usize);
    }
    let around_one = |by: f64, rng: &mut SampleRng| {
        (by > 0.0).then(|| rng.range((1.0 - by).max(0.0)..1.0 + by) as f32)
    };
    let hue = |by: f64, rng: &mut SampleRng| (by > 0.0).then(|| rng.range(-by..by));
    let drawn = [
        around_one(jitter.brightness, rng).map(Colour::Brightness),
        around_one(jitter.contrast, rng).map(Colour::Contrast),
        around_one(jitter.saturation, rng).map(Colour::Saturation),
        hue(jitter.hue, rng).map(Colour::Hue),
    ];
    order.into_iter().filter_map(move |index| drawn[index])
}

impl Colour {
    /// Carries the operation out on RGB pixels, as Pillow does.
    pub(super) fn apply(self, pixels: &mut [u8]) {
        let (pixels, _) = pixels.as_chunks_mut::<3>();
        match self {
            Colour::Grey => pixels
                .iter_mut()
                .for_each(|pixel| *pixel = [grey(*pixel); 3]),
            Colour::Brightness(factor) => {
                let blended = std::array::from_fn(|value| blend(0, value as u8, factor));
                look_up(pixels, &blended);
            }
            Colour::Contrast(factor) => {
                let sum: u64 = pixels.iter().map(|pixel| u64::from(grey(*pixel))).sum();
                let mean = sum as f64 / pixels.len().max(1) as f64;
                let mean = (mean + 0.5) as u8;
                let blended = std::array::from_fn(|value| blend(mean, value as u8, factor));
                look_up(pixels, &blended);
            }
            Colour::Saturation(factor) => pixels.iter_mut().for_each(|pixel| {
                let grey = grey(*pixel);
                *pixel = pixel.map(|value| blend(grey, value, factor));
            }),
            Colour::Hue(turn) => {
                // Towards zero, and then around the circle of 256.
                let turn = (turn * 255.0) as i32 as u8;
                pixels.iter_mut().for_each(|pixel| {
                    let [hue, saturation, value] = to_hsv(*pixel);
                    *pixel = to_rgb([hue.wrapping_add(turn), saturation, value]);
                });
            }
        }
    }
}

fn look_up(pixels: &mut [[u8; 3]], table: &[u8; 256]) {
    for pixel in pixels {
        *pixel = pixel.map(|value| table[usize::from(value)]);
    }
}

/// The luma of ITU-R BT.601, in integers as Pillow computes it.
fn grey([red, green, blue]: [u8; 3]) -> u8 {
    ((u32::from(red) * 19_595 + u32::from(green) * 38_470 + u32::from(blue) * 7_471 + 0x8000) >> 16)
        as u8
}

/// Between two values, or beyond the second: Pillow's `Image.blend`, which cuts off what is behind the point.
fn blend(from: u8, to: u8, factor: f32) -> u8 {
    let (from, to) = (f32::from(from), f32::from(to));
    (from + factor * (to - from)) as u8
}

/// Pillow's conversion to a hue, a saturation and a value of 8 bits each.
fn to_hsv([red, green, blue]: [u8; 3]) -> [u8; 3] {
    let (most, least) = (red.max(green).max(blue), red.min(green).min(blue));
    if most == least {
        return [0, 0, most];
    }
    let range = f32::from(most - least);
    let saturation = range / f32::from(most);
    let [rc, gc, bc] = [red, green, blue].map(|value| f32::from(most - value) / range);
    let hue = if red == most {
        bc - gc
    } else if green == most {
        (2.0 + f64::from(rc) - f64::from(bc)) as f32
    } else {
        (4.0 + f64::from(gc) - f64::from(rc)) as f32
    };
    let hue = ((f64::from(hue) / 6.0 + 1.0) % 1.0) as f32;
    let byte = |share: f32| (f64::from(share) * 255.0) as u8;
    [byte(hue), byte(saturation), most]
}

/// And back.
fn to_rgb([hue, saturation, value]: [u8; 3]) -> [u8; 3] {
    if saturation == 0 {
        return [value; 3];
    }
    let turned = f64::from(hue) * 6.0 / 255.0;
    let sixth = turned.floor();
    let rest = f64::from((turned - sixth) as f32);
    let saturation = f64::from((f64::from(saturation) / 255.0) as f32);
    let part = |share: f64| (f64::from(value) * (1.0 - share)).round() as u8;
    let low = part(saturation);
    let falling = part(saturation * rest);
    let rising = part(saturation * (1.0 - rest));
    match sixth as u8 % 6 {
        0 => [value, rising, low],
        1 => [falling, value, low],
        2 => [low, value, rising],
        3 => [low, falling, value],
        4 => [rising, low, value],
        _ => [value, low, falling],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(hex: &serde_json::Value) -> Vec<u8> {
        let hex = hex.as_str().unwrap().as_bytes();
        let pairs = hex
            .chunks_exact(2)
            .map(|pair| std::str::from_utf8(pair).unwrap());
        pairs
            .map(|pair| u8::from_str_radix(pair, 16).unwrap())
            .collect()
    }

    /// Bit for bit what Pillow makes: tests/fixtures/colours.py.
    #[test]
    fn colours_are_pillows() {
        let fixture = include_str!("../../tests/fixtures/colours.json");
        let fixture: serde_json::Value = serde_json::from_str(fixture).unwrap();
        let pixels = bytes(&fixture["pixels"]);
        let cases = fixture["cases"].as_array().unwrap();
        assert_eq!(cases.len(), 26);
        for case in cases {
            let factor = case["factor"].as_f64().unwrap();
            let colour = match case["operation"].as_str().unwrap() {
                "grey" => Colour::Grey,
                "brightness" => Colour::Brightness(factor as f32),
                "contrast" => Colour::Contrast(factor as f32),
                "saturation" => Colour::Saturation(factor as f32),
                "hue" => Colour::Hue(factor),
                other => panic!("{other}"),
            };
            let mut ours = pixels.clone();
            colour.apply(&mut ours);
            let expected = bytes(&case["pixels"]);
            let wrong = (0..ours.len()).find(|&at| ours[at] != expected[at]);
            let wrong = wrong.map(|at| (at, &pixels[at / 3 * 3..][..3], ours[at], expected[at]));
            assert_eq!(wrong, None, "{colour:?}");
        }
    }

    /// Factors lie in their ranges, the order varies, and what is not asked for is not done.
    #[test]
    fn jitter_is_drawn_as_asked() {
        let plan = ImageTransform::new()
            .color_jitter(ColorJitter::new().brightness(0.4).saturation(2.0).hue(0.1))
            .random_grayscale(0.25);
        let (mut first, mut grey) = (std::collections::HashMap::new(), 0);
        for seed in 0..20_000 {
            let colours = draw(&plan, &mut SampleRng::new(seed, 0, 0));
            grey += usize::from(colours.last() == Some(&Colour::Grey));
            let jitter: Vec<_> = colours
                .iter()
                .filter(|colour| **colour != Colour::Grey)
                .collect();
            assert_eq!(jitter.len(), 3);
            for colour in &jitter {
                match colour {
                    Colour::Brightness(factor) => assert!((0.6..=1.4).contains(factor)),
                    Colour::Saturation(factor) => assert!((0.0..=3.0).contains(factor)),
                    Colour::Hue(turn) => assert!((-0.1..=0.1).contains(turn)),
                    other => panic!("{other:?}"),
                }
            }
            *first.entry(std::mem::discriminant(jitter[0])).or_insert(0) += 1;
        }
        // Four standard deviations.
        assert!((4_755..=5_245).contains(&grey), "{grey}");
        let thirds = first.values().all(|count| (6_400..=6_934).contains(count));
        assert!(thirds, "{first:?}");
    }
}
