mod gpu;

use std::sync::OnceLock;

use libloading::Symbol;
use proptest::prelude::*;

use super::super::tests::{Emulated, Fenced};
use super::*;
use crate::picture::Sampling;
use crate::picture::weights::Axis;

/// The CUDA source, compiled for the CPU.
fn emulated() -> &'static Emulated {
    static EMULATED: OnceLock<Emulated> = OnceLock::new();
    EMULATED.get_or_init(|| Emulated::new("picture"))
}

/// Runs a kernel with this many blocks.
fn run(step: &Drawn, blocks: u32) {
    type Prepare = unsafe extern "C" fn(u32, *const Picture, u64);
    type Draw = unsafe extern "C" fn(u32, *const Picture, u64, u64);
    emulated().run(|library| match step.is_prepared {
        false => {
            // SAFETY: the signature is that of picture.cpp.
            let prepare: Symbol<'_, Prepare> = unsafe { library.get(b"prepare") }.unwrap();
            // SAFETY: the pictures' memory is the test's.
            unsafe { prepare(blocks, step.list, step.count) };
        }
        true => {
            // SAFETY: the signature is that of picture.cpp.
            let draw: Symbol<'_, Draw> = unsafe { library.get(b"draw") }.unwrap();
            // SAFETY: the pictures' memory is the test's.
            unsafe { draw(blocks, step.list, step.count, step.tiles) };
        }
    });
}

/// The memory of one picture, each part with a fence behind it.
struct Memory {
    drawing: Drawing,
    planes: [Fenced; 3],
    weights: Fenced,
    row: Fenced,
    status: Fenced,
}

impl Memory {
    fn new(drawing: Drawing) -> Memory {
        let layout = PlaneLayout::new(drawing.sampling, drawing.source);
        let sizes = drawing.sampling.sizes(drawing.source);
        let plane = |plane: usize| {
            let [_, height] = sizes[plane];
            Fenced::new(layout.pitch[plane] * height as usize, 1)
        };
        Memory {
            drawing,
            planes: [plane(0), plane(1), plane(2)],
            weights: Fenced::new(drawing.axes().iter().map(Axis::table_bytes).sum(), 16),
            row: Fenced::new(drawing.row_bytes(), 1),
            status: Fenced::new(4, 4),
        }
    }

    fn picture(&self) -> Picture {
        let places = Places {
            planes: 0,
            weights: self.weights.address(),
            drawn: self.row.address(),
            status: self.status.address(),
        };
        Picture {
            planes: self.planes.each_ref().map(Fenced::address),
            ..Picture::new(&self.drawing, places)
        }
    }

    /// As the decoder does, into some planes.
    fn decode(&mut self, mut noise: u32, planes: [bool; 3]) {
        for (plane, _) in self
            .planes
            .iter_mut()
            .zip(planes)
            .filter(|(_, written)| *written)
        {
            for byte in plane.slice() {
                noise = noise.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                *byte = (noise >> 24) as u8;
            }
        }
    }

    /// Compares what was prepared with the weights of the plain code.
    fn check_weights(&mut self) {
        if !self.drawing.shows() {
            return;
        }
        let mut rest = &*self.weights.slice();
        for axis in self.drawing.axes() {
            let number = |bytes: &[u8]| u32::from_ne_bytes(bytes.try_into().unwrap());
            let expected = axis.weights();
            let (table, behind) = rest.split_at(axis.table_bytes());
            let (head, table) = table.split_at(Axis::HEAD_BYTES);
            let (spans, table) = table.split_at(8 * axis.out as usize);
            let spans = spans
                .chunks_exact(8)
                .map(|span| (number(&span[..4]), number(&span[4..])));
            assert_eq!(number(&head[..4]), expected.precision, "{axis:?}");
            assert!(spans.eq(expected.spans.iter().copied()), "{axis:?}");
            let weights = table.as_chunks::<2>().0.chunks_exact(axis.taps());
            let right = expected.weights.chunks_exact(axis.taps());
            for ((found, right), (_, count)) in weights.zip(right).zip(&expected.spans) {
                let found = found.iter().map(|weight| i16::from_ne_bytes(*weight));
                let count = *count as usize;
                assert!(
                    found.take(count).eq(right[..count].iter().copied()),
                    "{axis:?}"
                );
            }
            rest = behind;
        }
        assert!(rest.is_empty());
    }

    /// The row and the status, and clears both.
    fn taken(&mut self) -> (Vec<u8>, Status) {
        let status = Status::of(u32::from_ne_bytes(self.status.slice().try_into().unwrap()));
        let row = self.row.slice().to_vec();
        self.row.slice().fill(0x77);
        self.status.slice().fill(0);
        (row, status)
    }
}

fn drawing() -> impl Strategy<Value = Drawing> {
    let sides = |most: u32| [1..most, 1..most];
    let part = |whole: [u32; 2]| {
        let at = |whole: u32| (0..whole).prop_flat_map(move |at| (Just(at), 1..=whole - at));
        (at(whole[0]), at(whole[1])).prop_map(|((x, w), (y, h))| [x, y, w, h])
    };
    // Rarely large, and then far larger than the row.
    let source = prop_oneof![9 => sides(90), 1 => sides(700)];
    (source, sides(75), prop::sample::select(Sampling::ALL.to_vec()))
        .prop_flat_map(move |(source, size, sampling)| {
            let place = prop_oneof![3 => Just([0, 0, size[0], size[1]]), 1 => part(size), 1 => Just([0; 4])];
            let exact = (part(source), place, any::<[f64; 4]>(), any::<bool>());
            (Just((source, size, sampling)), exact, any::<[bool; 2]>(), any::<bool>(), any::<[u8; 3]>())
        })
        .prop_map(|((source, size, sampling), (bounds, place, parts, whole), flip, cubic, fill)| {
            let parts = parts.map(|part| part.to_bits() as f64 / u64::MAX as f64);
            let side = |axis: usize| {
                let inside = f64::from(bounds[2 + axis]);
                let start = parts[axis] * inside * 0.9;
                (start, (inside - start) * (0.1 + 0.9 * parts[2 + axis]))
            };
            let mut window = [side(0).0, side(1).0, side(0).1, side(1).1];
            if whole {
                window = [0.0, 0.0, bounds[2].into(), bounds[3].into()];
            }
            Drawing {
                source,
                sampling,
                bounds,
                window,
                place,
                size,
                filter: if cubic { Filter::Bicubic } else { Filter::Bilinear },
                flip,
                fill,
            }
        })
        .prop_filter("sound", Drawing::is_sound)
}

/// Runs both steps on both: the emulated kernel, and the CPU device's own code.
fn both(drawings: Vec<Drawing>, blocks: u32, written: [bool; 3]) -> [Vec<(Vec<u8>, Status)>; 2] {
    let mut memory: Vec<Memory> = drawings.into_iter().map(Memory::new).collect();
    let pictures: Vec<Picture> = memory.iter().map(Memory::picture).collect();
    let list = pictures.as_ptr() as u64;
    let [prepare, draw] = [
        Drawn::prepare(list, &pictures),
        Drawn::draw(list, &pictures),
    ];
    [true, false].map(|emulated| {
        let run = |step: &Drawn| match emulated {
            true => run(step, blocks),
            // SAFETY: the memory is the test's.
            false => unsafe { step.run() },
        };
        memory.iter_mut().for_each(|memory| {
            memory.taken();
            memory.weights.slice().fill(0xEE);
        });
        run(&prepare);
        if emulated {
            memory.iter_mut().for_each(Memory::check_weights);
        }
        for (noise, memory) in (5..).zip(&mut memory) {
            memory.decode(noise, written);
        }
        run(&draw);
        memory.iter_mut().map(Memory::taken).collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    /// The kernel's rows are those of the plain code, byte for byte, and it reads and writes nothing else.
    #[test]
    fn the_kernel_draws_as_the_plain_code_does(
        drawings in prop::collection::vec(drawing(), 1..5), blocks in 1u32..9,
    ) {
        let [kernel, plain] = both(drawings.clone(), blocks, [true; 3]);
        for ((drawing, kernel), plain) in drawings.iter().zip(kernel).zip(plain) {
            prop_assert!(kernel.0 == plain.0, "{drawing:?}");
            prop_assert_eq!((kernel.1, plain.1), (Status::Drawn, Status::Drawn), "{:?}", drawing);
        }
    }
}

fn example(sampling: Sampling) -> Drawing {
    Drawing {
        source: [61, 40],
        sampling,
        bounds: [3, 2, 50, 38],
        window: [0.5, 0.0, 40.25, 38.0],
        place: [0, 0, 40, 20],
        size: [40, 20],
        filter: Filter::Bilinear,
        flip: [false; 2],
        fill: [0; 3],
    }
}

/// The decoder may leave out a picture without a word.
#[test]
fn planes_that_nobody_wrote_are_reported() {
    for sampling in Sampling::ALL {
        let drawings = vec![
            example(sampling),
            Drawing {
                source: [50, 38],
                bounds: [0, 0, 50, 38],
                ..example(sampling)
            },
        ];
        for (written, expected) in [
            ([true; 3], Status::Drawn),
            ([false; 3], Status::Skipped),
            ([false, true, true], Status::Skipped),
            ([true, true, false], Status::Skipped),
        ] {
            let expected = match (sampling, written[0]) {
                (Sampling::Grey, true) => Status::Drawn,
                _ => expected,
            };
            let [kernel, plain] = both(drawings.clone(), 3, written);
            for (_, status) in kernel.iter().chain(&plain) {
                assert_eq!(*status, expected, "{sampling:?} {written:?}");
            }
            assert!(
                kernel
                    .iter()
                    .map(|(row, _)| row)
                    .eq(plain.iter().map(|(row, _)| row))
            );
        }
    }
}

/// A picture of one pixel has one known byte in each plane; one of few has few.
#[test]
fn the_smallest_pictures_are_drawn() {
    for sampling in Sampling::ALL {
        for source in [[1, 1], [1, 20], [20, 1], [3, 3], [4, 5], [5, 4]] {
            let [width, height] = source;
            let drawing = Drawing {
                source,
                bounds: [0, 0, width, height],
                window: [0.0, 0.0, width.into(), height.into()],
                place: [1, 1, 5, 6],
                size: [7, 8],
                fill: [9, 8, 7],
                flip: [true, false],
                ..example(sampling)
            };
            let [kernel, plain] = both(vec![drawing], 2, [true; 3]);
            assert_eq!(kernel, plain, "{drawing:?}");
        }
    }
}

/// A column or row of what a tile reads fits the shared memory, or it is not sound.
#[test]
fn large_pictures_become_small() {
    let shrunk = |filter, source: [u32; 2], size: [u32; 2]| Drawing {
        source,
        bounds: [0, 0, source[0], source[1]],
        window: [0.0, 0.0, source[0].into(), source[1].into()],
        place: [0, 0, size[0], size[1]],
        size,
        filter,
        ..example(Sampling::Both)
    };
    for (filter, long) in [(Filter::Bilinear, 1), (Filter::Bicubic, 0)] {
        // Which side is long, which is the one that is filtered first.
        let sides = |side: u32, short: u32, axis: usize| match axis {
            0 => [side, short],
            _ => [short, side],
        };
        for (from, to) in [(4_096, 2), (4_096, 33), (9_000, 90), (3_000, 3)] {
            for axis in [0, 1] {
                let drawing = shrunk(filter, sides(from, 5, axis), sides(to, 3, axis));
                let [kernel, plain] = both(vec![drawing], 1, [true; 3]);
                assert_eq!(kernel, plain, "{drawing:?}");
            }
        }
        let sound = |axis| shrunk(filter, sides(9_000, 5, axis), sides(2, 3, axis)).is_sound();
        assert_eq!([sound(long), sound(1 - long)], [false, true], "{filter:?}");
    }
}

/// Older drivers do not read newer PTX, and older devices do not run code for newer ones.
#[test]
fn the_kernels_are_made_for_the_oldest_that_are_served() {
    let text = PTX.to_str().unwrap();
    assert!(text.contains("\n.version 7.0\n.target sm_70\n"));
    for name in ["pinfeed_prepare_pictures", "pinfeed_draw_pictures"] {
        assert!(text.contains(&format!(".visible .entry {name}(")));
    }
    // Each product is rounded, as on the CPU.
    assert!(!text.contains("fma.rn.f64"));
}
