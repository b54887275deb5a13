//! Random operations on colours.

use crate::SampleRng;
use crate::image::plan::ColorJitter;
use crate::picture::Colour;

/// torchvision's `ColorJitter.get_params`: the four in a random order, each with a random factor.
pub(in crate::image) fn jittered(
    jitter: &ColorJitter,
    rng: &mut SampleRng,
) -> impl Iterator<Item = Colour> + use<> {
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
        hue(jitter.hue, rng).map(Colour::hue),
    ];
    order.into_iter().filter_map(move |index| drawn[index])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::fixture::bytes;
    use crate::rng::RngKey;

    /// Bit for bit as Pillow: tests/fixtures/colours.py.
    #[test]
    fn colours_are_pillows() {
        let fixture = include_str!("../../../tests/fixtures/colours.json");
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
                "hue" => Colour::hue(factor),
                other => panic!("{other}"),
            };
            let mut ours = pixels.clone();
            colour.apply(&mut ours, 16);
            let expected = bytes(&case["pixels"]);
            let wrong = (0..ours.len()).find(|&at| ours[at] != expected[at]);
            let wrong = wrong.map(|at| (at, &pixels[at / 3 * 3..][..3], ours[at], expected[at]));
            assert_eq!(wrong, None, "{colour:?}");
        }
    }

    /// Factors lie in their ranges, the order varies, and operations that were not requested are not done.
    #[test]
    fn jitter_is_drawn_as_asked() {
        let jitter = ColorJitter::new()
            .with_brightness(0.4)
            .with_saturation(2.0)
            .with_hue(0.1);
        let mut first = std::collections::HashMap::new();
        for seed in 0..20_000 {
            let jitter: Vec<_> = jittered(
                &jitter,
                &mut SampleRng::for_sample(RngKey {
                    seed,
                    epoch: 0,
                    position: 0,
                }),
            )
            .collect();
            assert_eq!(jitter.len(), 3);
            for colour in &jitter {
                match colour {
                    Colour::Brightness(factor) => assert!((0.6..=1.4).contains(factor)),
                    Colour::Saturation(factor) => assert!((0.0..=3.0).contains(factor)),
                    Colour::Hue(turn) => assert!((-25..=25).contains(&(*turn as i8))),
                    other => panic!("{other:?}"),
                }
            }
            *first.entry(std::mem::discriminant(&jitter[0])).or_insert(0) += 1;
        }
        // Four standard deviations.
        let thirds = first.values().all(|count| (6_400..=6_934).contains(count));
        assert!(thirds, "{first:?}");
    }
}
