//! The results of Pillow and torchvision for a small picture and a small mask: tests/fixtures/operations.py.

use serde_json::Value;

use super::geometry::Geometry;
use super::mask::LazyMask;
use super::pixels::{Look, Rgb, Scratch, carry_out, render};
use super::plan::Interpolation;
use super::size::Size;
use crate::Tensor;

pub(super) struct Fixture {
    pub(super) size: Size,
    pub(super) picture: Tensor<u8>,
    mask: Tensor<u8>,
    pub(super) json: Value,
}

pub(super) struct Case<'a> {
    pub(super) is_mask: bool,
    pub(super) operation: &'a str,
    pub(super) arguments: &'a [Value],
    pub(super) size: Size,
    pub(super) expected: Vec<u8>,
}

pub(super) fn bytes(hex: &Value) -> Vec<u8> {
    let hex = hex.as_str().unwrap().as_bytes();
    let pairs = hex
        .chunks_exact(2)
        .map(|pair| std::str::from_utf8(pair).unwrap());
    pairs
        .map(|pair| u8::from_str_radix(pair, 16).unwrap())
        .collect()
}

fn size(value: &Value) -> Size {
    let side = |name: &str| value[name].as_u64().unwrap() as u32;
    Size {
        width: side("width"),
        height: side("height"),
    }
}

impl Fixture {
    pub(super) fn read() -> Fixture {
        let json = include_str!("../../tests/fixtures/operations.json");
        let json: Value = serde_json::from_str(json).unwrap();
        let size = size(&json);
        let (height, width) = (size.height as usize, size.width as usize);
        Fixture {
            size,
            picture: Tensor::from_vec(bytes(&json["picture"]), &[height, width, 3]).unwrap(),
            mask: Tensor::from_vec(bytes(&json["mask"]), &[height, width]).unwrap(),
            json,
        }
    }

    pub(super) fn cases(&self) -> impl Iterator<Item = Case<'_>> {
        self.json["cases"]
            .as_array()
            .unwrap()
            .iter()
            .map(|case| Case {
                is_mask: case["image"] == "mask",
                operation: case["operation"].as_str().unwrap(),
                arguments: case["arguments"].as_array().unwrap(),
                size: size(case),
                expected: bytes(&case["pixels"]),
            })
    }

    /// Applies a geometry to the picture.
    pub(super) fn draw(&self, geometry: &Geometry, interpolation: Interpolation) -> Vec<u8> {
        let look = Look {
            interpolation,
            fill: [0; 3],
        };
        let size = geometry.size();
        let mut out = vec![0x55; size.width as usize * size.height as usize * 3];
        Scratch::with(|scratch| {
            carry_out::<Rgb, 3>(geometry, look, scratch, &mut out, |frame, scratch, out| {
                let pixels = self.picture.as_slice();
                render::<Rgb, 3>(&mut scratch.resampler, pixels, self.size, frame, look, out)
            })
        })
        .unwrap();
        out
    }

    /// Applies a geometry to the mask.
    pub(super) fn draw_mask(&self, geometry: &Geometry) -> Vec<u8> {
        let mask = LazyMask::labels(self.mask.view()).unwrap();
        let shown = mask.with_geometry(geometry.clone()).decode().unwrap();
        shown.as_slice().to_vec()
    }
}

impl Case<'_> {
    pub(super) fn number(&self, at: usize) -> f64 {
        self.arguments[at].as_f64().unwrap()
    }

    /// Compares our result: no byte may differ by more than `tolerance`.
    pub(super) fn check(&self, made: (Size, Vec<u8>), tolerance: u8) {
        let said = format!("{} {:?}", self.operation, self.arguments);
        assert_eq!(made.0, self.size, "{said}");
        assert_eq!(made.1.len(), self.expected.len(), "{said}");
        let both = made.1.iter().zip(&self.expected);
        let wrong = both
            .enumerate()
            .find(|(_, (made, expected))| made.abs_diff(**expected) > tolerance);
        assert_eq!(wrong, None, "{said}: (byte, (made, expected))");
    }
}
