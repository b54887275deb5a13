use super::*;
use crate::image::fixture::{Case, Fixture};
use crate::image::plan::Interpolation;

const EVERYTHING: u64 = u64::MAX;

fn size(height: u32, width: u32) -> Size {
    Size { width, height }
}

/// One step: what is shown, and what is changed.
fn step(source: Size, show: impl FnOnce(&mut Canvas), changes: Vec<Change>) -> Geometry {
    let mut canvas = Canvas::new(source);
    show(&mut canvas);
    let frame = canvas.finish();
    let stages = vec![GeometryStep { frame, changes }];
    Geometry { source, stages }
}

fn drawn(source: Size, plan: &ImageTransform) -> Geometry {
    Geometry::draw(source, Some(plan), 17, EVERYTHING).unwrap()
}

fn filter(name: &str) -> Interpolation {
    match name {
        "nearest" => Interpolation::Nearest,
        "bilinear" => Interpolation::Bilinear,
        "bicubic" => Interpolation::Bicubic,
        "lanczos" => Interpolation::Lanczos,
        other => panic!("{other}"),
    }
}

/// The result of torchvision's operation of that name on the fixture's picture; `None` if the operation is part of
/// `RandAugment`.
fn geometry_of(case: &Case<'_>, source: Size) -> Option<Geometry> {
    let number = |at: usize| case.number(at) as usize;
    let side = |at: usize| case.number(at) as u32;
    let plan = ImageTransform::new();
    let part = |at: usize| Rect {
        top: case.number(at) as i64,
        left: case.number(at + 1) as i64,
        height: case.number(at + 2) as i64,
        width: case.number(at + 3) as i64,
    };
    Some(match case.operation {
        "resize" => drawn(source, &plan.resize(number(1))),
        "resize_exact" => drawn(source, &plan.resize_exact(number(1), number(2))),
        "center_crop" => drawn(source, &plan.center_crop((number(0), number(1)))),
        "pad" => {
            let [left, top, right, bottom] = [0, 1, 2, 3].map(|at| number(at) as u16);
            drawn(source, &plan.pad((left, top, right, bottom)))
        }
        "crop" => step(source, |canvas| canvas.crop(part(0)), vec![]),
        "resized_crop" => {
            let show = |canvas: &mut Canvas| {
                canvas.crop(part(1));
                canvas.resize(size(side(5), side(5)));
            };
            step(source, show, vec![])
        }
        "hflip" => drawn(source, &plan.random_horizontal_flip(1.0)),
        "vflip" => drawn(source, &plan.random_vertical_flip(1.0)),
        "rotate" => {
            let smooth = case.arguments[0] == "bilinear";
            let rotation = Warp::rotation(case.number(1), source, smooth);
            step(source, |_| {}, vec![Change::Warp(rotation)])
        }
        _ => return None,
    })
}

/// Pixels that are only moved are identical; resampled ones differ by one or two of 255.
#[test]
fn pictures_and_masks_are_torchvisions() {
    let fixture = Fixture::read();
    let mut compared = 0;
    for case in fixture.cases() {
        let Some(geometry) = geometry_of(&case, fixture.size) else {
            continue;
        };
        compared += 1;
        if case.is_mask {
            case.check((geometry.size(), fixture.draw_mask(&geometry)), 0);
            continue;
        }
        let resampled = case.operation.contains("resize");
        let filter = match resampled {
            true => filter(case.arguments[0].as_str().unwrap()),
            false => Interpolation::default(),
        };
        let made = fixture.draw(&geometry, filter);
        let tolerance = match filter {
            _ if !resampled => 0,
            Interpolation::Nearest => 0,
            Interpolation::Bilinear | Interpolation::Bicubic => 1,
            Interpolation::Lanczos => 2,
        };
        case.check((geometry.size(), made), tolerance);
    }
    assert_eq!(compared, 64);
}

/// Boxes and points move with the pixels: a box around a pixel of a distinct colour, and the point in its middle.
#[test]
fn boxes_and_points_go_where_their_pixels_go() {
    let source = size(40, 60);
    let plans = [
        ImageTransform::new(),
        ImageTransform::new().random_horizontal_flip(1.0),
        ImageTransform::new()
            .random_vertical_flip(1.0)
            .pad((3, 5, 7, 2)),
        ImageTransform::new()
            .pad(4)
            .random_horizontal_flip(1.0)
            .center_crop((40, 50)),
        ImageTransform::new()
            .center_crop((90, 90))
            .random_vertical_flip(1.0),
        ImageTransform::new().random_crop((30, 40)),
        ImageTransform::new()
            .random_rotation(90.0..=90.0)
            .pad((0, 5)),
        ImageTransform::new().random_rotation(30.0).random_crop(38),
        ImageTransform::new()
            .random_horizontal_flip(0.5)
            .random_rotation(180.0)
            .random_vertical_flip(0.5)
            .random_rotation(45.0),
    ];
    let mut found = 0;
    for (number, plan) in plans.iter().enumerate() {
        for seed in 0..40_u64 {
            let at = (3 + seed * 7 % 50, 3 + seed * 11 % 33); // column, row
            let labels = (0..40 * 60).map(|index: u64| {
                let near = (index % 60).abs_diff(at.0) <= 1 && (index / 60).abs_diff(at.1) <= 1;
                u8::from(near)
            });
            let labels = crate::Tensor::from_vec(labels.collect(), &[40, 60]).unwrap();
            let geometry = Geometry::draw(source, Some(plan), seed, EVERYTHING).unwrap();
            let mask = crate::image::LazyMask::labels(labels).unwrap();
            let mask = mask.with_geometry(geometry.clone()).decode().unwrap();
            let (height, width) = geometry.output_size();
            assert_eq!(mask.shape()[..], [height, width]);
            let lit = |(index, label): (usize, &u8)| {
                (*label == 1)
                    .then_some(((index % width) as f32 + 0.5, (index / width) as f32 + 0.5))
            };
            let lit: Vec<_> = mask.as_slice().iter().enumerate().filter_map(lit).collect();
            let (x, y) = (at.0 as f32, at.1 as f32);
            let points = geometry.points(&[[x + 0.5, y + 0.5]]);
            let boxes = geometry.boxes(&[[x - 1.0, y - 1.0, x + 2.0, y + 2.0]]);
            let said = format!("plan {number}, seed {seed}: {points:?} {boxes:?} {lit:?}");
            let [left, top, right, bottom] = boxes.boxes[0];
            assert!(0.0 <= left && right <= width as f32, "{said}");
            assert!(0.0 <= top && bottom <= height as f32, "{said}");
            for (x, y) in &lit {
                let hair = if number < 6 { 0.0 } else { 0.75 }; // a rotated pixel's middle
                assert!(left - hair <= *x && *x <= right + hair, "{said}");
                assert!(top - hair <= *y && *y <= bottom + hair, "{said}");
            }
            if lit.len() == 9 {
                found += 1;
                let middle = lit
                    .iter()
                    .fold((0.0, 0.0), |sum, at| (sum.0 + at.0, sum.1 + at.1));
                let [x, y] = points.points[0];
                assert!(points.remaining[0] && boxes.remaining[0], "{said}");
                let off = (middle.0 / 9.0 - x).abs().max((middle.1 / 9.0 - y).abs());
                assert!(off < if number < 6 { 1e-3 } else { 0.9 }, "{said}");
            }
            if lit.is_empty() && number < 6 {
                assert!(!boxes.remaining[0] && !points.remaining[0], "{said}");
            }
        }
    }
    assert!(found > 150, "{found}");
}

#[test]
fn boxes_are_scaled_and_clipped() {
    let plan = ImageTransform::new().center_crop(40).resize_exact(20, 80);
    let geometry = drawn(size(40, 60), &plan);
    assert_eq!(
        (geometry.source_size(), geometry.output_size()),
        ((40, 60), (20, 80))
    );
    let boxes = geometry.boxes(&[
        [20.0, 10.0, 30.0, 20.0],
        [0.0, 0.0, 15.0, 40.0],
        [0.0, 0.0, 9.0, 40.0],
        [55.0, 0.0, 60.0, 5.0],
        [30.0, 20.0, 20.0, 10.0],
        [f32::NAN, 0.0, 30.0, 30.0],
    ]);
    assert_eq!(boxes.boxes[0], [20.0, 5.0, 40.0, 10.0]);
    assert_eq!(boxes.boxes[1], [0.0, 0.0, 10.0, 20.0]);
    assert_eq!(boxes.boxes[2], [0.0, 0.0, 0.0, 20.0]);
    assert_eq!(boxes.boxes[3][0], 80.0);
    assert_eq!(boxes.remaining, [true, true, false, false, false, false]);
    assert_eq!(boxes.keep(["a", "b", "c", "d", "e", "f"]), ["a", "b"]);
    assert_eq!(boxes.kept(), boxes.boxes[..2]);
    let points = geometry.points(&[[20.0, 10.0], [5.0, 10.0]]);
    assert_eq!(points.points, [[20.0, 5.0], [-10.0, 5.0]]);
    assert_eq!(points.remaining, [true, false]);
}

/// A change that depends on positions is not moved after a later crop; a change of colours is.
#[test]
fn operations_with_a_place_keep_their_order() {
    let erased = crate::image::RandomErasing::new().with_probability(1.0);
    let stages = |plan: ImageTransform| drawn(size(40, 60), &plan).stages.len();
    let new = ImageTransform::new;
    assert_eq!(stages(new()), 1);
    assert_eq!(stages(new().random_grayscale(1.0).center_crop(9)), 1);
    assert_eq!(stages(new().center_crop(9).random_rotation(20.0)), 1);
    assert_eq!(stages(new().random_rotation(20.0).center_crop(9)), 2);
    assert_eq!(
        stages(
            new()
                .random_erasing(erased)
                .random_grayscale(1.0)
                .pad(1)
                .resize(9)
        ),
        2
    );
}

#[test]
fn no_step_may_be_too_large() {
    let plan = ImageTransform::new()
        .resize(1000)
        .random_rotation(20.0)
        .center_crop(9);
    let error = Geometry::draw(size(40, 40), Some(&plan), 17, 10_000).unwrap_err();
    assert!(error.to_string().contains("1000 x 1000"), "{error}");
    // A picture that is folded away does not count.
    let plan = ImageTransform::new().resize(1000).center_crop(9);
    assert!(Geometry::draw(size(40, 40), Some(&plan), 17, 10_000).is_ok());
}
