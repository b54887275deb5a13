use super::*;
use crate::image::fixture::{Case, Fixture};
use crate::rng::RngKey;

fn named(name: &str) -> Option<AugmentOp> {
    let found = OPERATIONS
        .iter()
        .find(|operation| format!("{operation:?}") == name);
    found.copied()
}

/// Applies one change to the fixture's picture.
fn changed(fixture: &Fixture, pixels: &[u8], change: Option<Change>) -> Vec<u8> {
    let mut pixels = pixels.to_vec();
    match change {
        None => {}
        Some(Change::Colour(colour)) => colour.apply(&mut pixels, fixture.size.width as usize),
        Some(Change::Warp(warp)) => {
            let before = pixels.clone();
            warp.apply(&before, &mut pixels, fixture.size, [0; 3]);
        }
        Some(other) => panic!("{other:?}"),
    }
    pixels
}

/// Bit for bit, for every operation.
#[test]
fn operations_are_torchvisions() {
    let fixture = Fixture::read();
    let mut seen = Vec::new();
    for case in fixture.cases() {
        let Case {
            operation, size, ..
        } = case;
        let (name, dim) = match operation.split_once(" of ") {
            Some((name, _)) => (name, true),
            None => (operation, false),
        };
        let Some(operation) = named(name) else {
            continue;
        };
        seen.push(name);
        let mut pixels = fixture.picture.as_slice().to_vec();
        if dim {
            pixels.iter_mut().for_each(|value| *value = *value / 3 + 40);
        }
        let change = operation.change(case.number(0) as f32, size, false);
        case.check((size, changed(&fixture, &pixels, change)), 0);
    }
    assert_eq!(seen.len(), 31, "{seen:?}");
    seen.dedup();
    assert_eq!(seen.len(), OPERATIONS.len());
}

#[test]
fn strengths_are_torchvisions() {
    let fixture = Fixture::read();
    for space in fixture.json["spaces"].as_array().unwrap() {
        let side = |name: &str| space[name].as_u64().unwrap() as u32;
        let size = Size {
            width: side("width"),
            height: side("height"),
        };
        let operations = space["operations"].as_array().unwrap();
        assert_eq!(operations.len(), OPERATIONS.len());
        for (expected, operation) in operations.iter().zip(OPERATIONS) {
            assert_eq!(expected["name"], format!("{operation:?}"));
            let magnitudes = expected["magnitudes"].as_array().unwrap();
            for bin in 0..31 {
                let (strength, signed) = operation.strength(bin, 31, size);
                let theirs = magnitudes[bin.min(magnitudes.len() - 1)].as_f64().unwrap() as f32;
                assert_eq!(expected["signed"], signed);
                assert_eq!(
                    strength.to_bits(),
                    theirs.to_bits(),
                    "{operation:?} {bin}: {strength} {theirs}"
                );
            }
        }
    }
}

/// As many operations as requested, each equally often, with either sign.
#[test]
fn rand_augment_draws_evenly() {
    let size = Size {
        width: 100,
        height: 100,
    };
    let (mut drawn, mut up) = (0, 0);
    let mut kinds = std::collections::HashMap::new();
    for seed in 0..14_000 {
        let mut changes = Vec::new();
        RandAugment::new().draw(
            size,
            &mut SampleRng::for_sample(RngKey {
                seed,
                epoch: 0,
                position: 0,
            }),
            &mut changes,
        );
        assert!(changes.len() <= 2);
        drawn += changes.len();
        for change in &changes {
            if let Change::Colour(colour) = change {
                *kinds.entry(std::mem::discriminant(colour)).or_insert(0) += 1;
                if let Colour::Brightness(factor) = colour {
                    assert!((factor - 1.27).abs() < 1e-6 || (factor - 0.73).abs() < 1e-6);
                    up += usize::from(*factor > 1.0);
                }
            }
        }
    }
    // 28,000 operations are drawn; one of the fourteen, 2,000 give or take four deviations of 43, does nothing.
    assert!((25_828..=26_172).contains(&drawn), "{drawn}");
    assert_eq!(kinds.len(), 8);
    let even = kinds.values().all(|count| (1_828..=2_172).contains(count));
    assert!(even, "{kinds:?}");
    assert!((900..=1_100).contains(&up), "{up}");
}

/// The painted rectangle has the requested area and proportions, lies inside the picture, and is as frequent as
/// requested.
#[test]
fn erasing_is_drawn_as_asked() {
    let size = Size {
        width: 120,
        height: 100,
    };
    let erasing = RandomErasing::new()
        .with_probability(0.25)
        .with_scale(0.1..=0.2)
        .with_ratio(0.5..=2.0);
    let erasing = erasing.with_value([1, 2, 3]);
    let mut count = 0;
    for seed in 0..20_000 {
        let drawn = erasing.draw(
            size,
            &mut SampleRng::for_sample(RngKey {
                seed,
                epoch: 0,
                position: 0,
            }),
        );
        let Some(Change::Erase { place, value }) = drawn else {
            assert_eq!(drawn, None);
            continue;
        };
        count += 1;
        assert_eq!(value, [1, 2, 3]);
        assert!(place.left + place.width <= 120 && place.top + place.height <= 100);
        let (width, height) = (f64::from(place.width), f64::from(place.height));
        let share = width * height / 12_000.0;
        assert!((0.095..=0.205).contains(&share), "{place:?}");
        assert!((0.48..=2.08).contains(&(height / width)), "{place:?}");
    }
    assert!((4_755..=5_245).contains(&count), "{count}");
    // A rectangle that does not fit is not painted.
    let huge = RandomErasing::new()
        .with_probability(1.0)
        .with_scale(1.0..=1.0);
    assert_eq!(
        huge.draw(
            size,
            &mut SampleRng::for_sample(RngKey {
                seed: 1,
                epoch: 0,
                position: 0
            })
        ),
        None
    );
}

#[test]
#[should_panic(expected = "the magnitude 31 is not among 31 bins")]
fn a_magnitude_beyond_the_bins_is_refused() {
    let _ = RandAugment::new().with_magnitude(31);
}

#[test]
#[should_panic(expected = "RandomRotation::with_interpolation: Lanczos")]
fn rotations_do_not_take_any_filter() {
    let _ = RandomRotation::from(3.0).with_interpolation(Interpolation::Lanczos);
}
