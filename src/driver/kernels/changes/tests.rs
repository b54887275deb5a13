mod gpu;

use std::sync::OnceLock;

use libloading::Symbol;
use proptest::prelude::*;

use super::super::emulated::{Emulated, Fenced};
use super::*;

/// The CUDA source, compiled for the CPU.
fn emulated() -> &'static Emulated {
    static EMULATED: OnceLock<Emulated> = OnceLock::new();
    EMULATED.get_or_init(|| Emulated::new("changes"))
}

/// Runs a step with this many blocks.
fn run(step: &Changed, blocks: u32) {
    type Change = unsafe extern "C" fn(u32, *const Pass, *const Record, u64);
    emulated().run(|library| {
        // SAFETY: the signature is that of changes.cpp.
        let change: Symbol<'_, Change> = unsafe { library.get(b"change") }.unwrap();
        // SAFETY: the pictures' memory is the test's.
        unsafe { change(blocks, step.passes, step.records, step.count) };
    });
}

/// A picture and its changes.
#[derive(Debug, Clone)]
struct Case {
    size: [u32; 2],
    changes: Vec<Change>,
    pixels: Vec<u8>,
}

impl Case {
    /// What the plain code makes of it.
    fn expected(&self) -> Vec<u8> {
        let (mut pixels, mut size) = (self.pixels.clone(), self.size);
        for change in &self.changes {
            change.apply(&mut pixels, &mut size);
        }
        pixels
    }
}

/// The memory of a case, each part with a fence behind it.
struct Memory {
    case: Case,
    other: Fenced,
    row: Fenced,
}

impl Memory {
    fn new(case: Case) -> Memory {
        let other = ChangeMemory::new(&case.changes, case.size).bytes;
        let row = Change::row_bytes(&case.changes, case.size);
        Memory {
            other: Fenced::new(other.max(1), 16),
            row: Fenced::new(row, 1),
            case,
        }
    }

    fn places(&self) -> Places {
        Places {
            memory: self.other.address(),
            row: self.row.address(),
        }
    }

    /// Puts the drawn picture where it belongs. All else is stale.
    fn draw(&mut self) {
        self.other.slice().fill(0xB7);
        self.row.slice().fill(0x77);
        let drawn = self.places().drawn(&self.case.changes, self.case.size);
        let (start, at) = match drawn == self.row.address() {
            true => (self.row.slice(), 0),
            false => {
                let at = (drawn - self.other.address()) as usize;
                (self.other.slice(), at)
            }
        };
        start[at..][..self.case.pixels.len()].copy_from_slice(&self.case.pixels);
    }
}

/// Carries the changes out by the emulated kernel, and by the CPU device's own code, and compares both with the plain code.
fn check(cases: Vec<Case>, blocks: u32) {
    let mut memory: Vec<Memory> = cases.into_iter().map(Memory::new).collect();
    let mut passes = Passes::default();
    for memory in &memory {
        let case = &memory.case;
        assert!(
            Change::are_sound(&case.changes, case.size),
            "{:?}",
            case.changes
        );
        passes.add(&case.changes, case.size, memory.places());
    }
    let mut list = Fenced::new(memory.len() * Passes::MOST_BYTES, 16);
    let written = passes.write(list.slice());
    assert!(written <= list.bytes);
    for is_emulated in [true, false] {
        memory.iter_mut().for_each(Memory::draw);
        for step in passes.steps(list.address()) {
            match is_emulated {
                true => run(&step, blocks),
                // SAFETY: the memory is the test's.
                false => unsafe { step.run() },
            }
        }
        for memory in &mut memory {
            let expected = memory.case.expected();
            let found = memory.row.slice();
            let wrong = (0..expected.len()).find(|at| found[*at] != expected[*at]);
            let wrong = wrong.map(|at| {
                (
                    at,
                    memory.case.pixels.get(at / 3 * 3..at / 3 * 3 + 3),
                    found[at],
                    expected[at],
                )
            });
            assert_eq!(
                wrong, None,
                "{:?} of {:?}, emulated: {is_emulated}",
                memory.case.changes, memory.case.size
            );
        }
    }
}

fn colour() -> impl Strategy<Value = Colour> {
    let factor =
        prop_oneof![8 => -0.5..3.0f32, 1 => Just(1.0f32), 1 => Just(0.0f32), 1 => -1e9..1e9f32];
    prop_oneof![
        Just(Colour::Grey),
        factor.clone().prop_map(Colour::Brightness),
        factor.clone().prop_map(Colour::Contrast),
        factor.clone().prop_map(Colour::Saturation),
        any::<u8>().prop_map(Colour::Hue),
        factor.prop_map(Colour::Sharpness),
        (0..10u8).prop_map(Colour::Posterize),
        (-10.0..300.0f32).prop_map(Colour::Solarize),
        Just(Colour::AutoContrast),
        Just(Colour::Equalize),
    ]
}

fn warp() -> impl Strategy<Value = Warp> {
    let near = -0.5..0.5f64;
    let turn = (0.0..7.0f64, -60.0..60.0f64, -60.0..60.0f64).prop_map(|(angle, c, f)| {
        let (sin, cos) = angle.sin_cos();
        [cos, sin, c, -sin, cos, f]
    });
    let shear = (near.clone(), near).prop_map(|(x, y)| [1.0, x, 0.0, y, 1.0, 0.0]);
    let shift = (-70..70i32, -70..70i32)
        .prop_map(|(x, y)| [1.0, 0.0, f64::from(x) / 2.0, 0.0, 1.0, f64::from(y) / 2.0]);
    // Too far for the fixed point.
    let far = (0.5..3.0f64, -9e4..9e4f64).prop_map(|(a, c)| [a, 600.0, c, 0.0, a, 0.25]);
    let from = prop_oneof![3 => turn, 2 => shear, 2 => shift, 1 => far];
    (from, any::<bool>()).prop_map(|(from, smooth)| Warp { from, smooth })
}

/// A change, of which a cut makes a picture of any size.
#[derive(Debug, Clone)]
enum Drawn {
    Change(Change),
    Cut([f64; 8], [u32; 2], [bool; 2]),
}

fn drawn() -> impl Strategy<Value = Drawn> {
    let side = || 0..90u32;
    let erase = ([side(), side(), side(), side()], any::<[u8; 3]>())
        .prop_map(|(place, value)| Change::Erase { place, value });
    let warp = (warp(), any::<[u8; 3]>()).prop_map(|(warp, fill)| Change::Warp { warp, fill });
    let cut = (
        prop::array::uniform8(0.0..1.0f64),
        [1..90u32, 1..90u32],
        any::<[bool; 2]>(),
    )
        .prop_map(|(parts, size, flip)| Drawn::Cut(parts, size, flip));
    prop_oneof![
        6 => colour().prop_map(|colour| Drawn::Change(Change::Colour(colour))),
        1 => erase.prop_map(Drawn::Change),
        3 => warp.prop_map(Drawn::Change),
        1 => cut,
    ]
}

fn changes(mut size: [u32; 2], drawn: Vec<Drawn>) -> Vec<Change> {
    let change = |drawn| {
        let change = match drawn {
            Drawn::Change(change) => change,
            Drawn::Cut(parts, to, flip) => {
                let axis = |axis: usize| {
                    let of = |part: usize, most: u32| {
                        (parts[4 * axis + part] * f64::from(most + 1)) as u32
                    };
                    let place = of(0, to[axis]);
                    let start = of(1, size[axis]);
                    let side = of(2, (to[axis] - place).min(size[axis] - start));
                    (start, place, side)
                };
                let (x, y) = (axis(0), axis(1));
                Change::Cut(Cut {
                    start: [x.0, y.0],
                    place: [x.1, y.1, x.2, y.2],
                    size: to,
                    flip,
                    fill: [9, 200, 77],
                })
            }
        };
        size = change.size(size);
        change
    };
    drawn.into_iter().map(change).collect()
}

/// Pixels of several kinds: noise, few values, a narrow range, grey, one colour, smooth.
fn pixels([width, height]: [u32; 2], seed: u32, kind: u8) -> Vec<u8> {
    let mut noise = seed;
    let mut next = || {
        noise = noise.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (noise >> 24) as u8
    };
    let (few, low) = (next() % 7 + 1, next());
    let pixel = |at: u32| match kind % 6 {
        0 => [next(), next(), next()],
        1 => [
            next() % few,
            low.saturating_add(next() % few),
            255 - next() % few,
        ],
        2 => [
            low / 2 + next() / 4,
            next() / 3,
            low.saturating_add(next() / 8),
        ],
        3 => [next(); 3],
        4 => [low, few, seed as u8],
        _ => [
            (at % width * 3) as u8,
            (at / width * 5) as u8,
            ((at + seed) / 7) as u8,
        ],
    };
    (0..width * height).flat_map(pixel).collect()
}

fn case() -> impl Strategy<Value = Case> {
    let size = prop_oneof![
        8 => [1..80u32, 1..80u32],
        1 => [Just(1..2u32), Just(1..300u32)].prop_flat_map(|[one, many]| [one, many]),
        1 => [Just(1..300u32), Just(1..2u32)].prop_flat_map(|[many, one]| [many, one]),
    ];
    let drawn = prop_oneof![
        5 => prop::collection::vec(drawn(), 0..6),
        1 => prop::collection::vec(drawn(), Change::MOST),
    ];
    (size, drawn, any::<u32>(), any::<u8>()).prop_map(|(size, drawn, seed, kind)| Case {
        size,
        changes: changes(size, drawn),
        pixels: pixels(size, seed, kind),
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, failure_persistence: None, ..ProptestConfig::default() })]

    /// The kernel's rows are those of the plain code, byte for byte, and it reads and writes nothing else.
    #[test]
    fn the_kernel_changes_as_the_plain_code_does(
        cases in prop::collection::vec(case(), 1..6), blocks in 1u32..20,
    ) {
        check(cases, blocks);
    }
}

/// Every colour of some steps, each change alone.
#[test]
fn colours_are_changed_alike() {
    let steps = || (0..=255u8).step_by(15);
    let all: Vec<u8> = steps()
        .flat_map(|red| steps().flat_map(move |green| steps().map(move |blue| [red, green, blue])))
        .flatten()
        .collect();
    let size = [18, 18 * 18];
    let hues = (0..=255).step_by(5).map(Colour::Hue);
    let factors = [0.0, 0.1, 0.55, 0.999, 1.0, 1.3, 1.9, 17.0];
    let others = [
        Colour::Brightness,
        Colour::Contrast,
        Colour::Saturation,
        Colour::Sharpness,
    ];
    let others = others.iter().flat_map(|colour| factors.map(colour));
    let cases = hues.chain(others).map(|colour| Case {
        size,
        changes: vec![Change::Colour(colour)],
        pixels: all.clone(),
    });
    check(cases.collect(), 50);
}

/// What is counted, moved and cut takes the passes and the memory that it needs, and no more.
#[test]
fn changes_share_passes_where_they_can() {
    let colour = Change::Colour;
    let jitter = [
        colour(Colour::Brightness(1.1)),
        colour(Colour::Saturation(1.1)),
        colour(Colour::Hue(3)),
        colour(Colour::Grey),
        Change::Erase {
            place: [1, 2, 3, 4],
            value: [0; 3],
        },
    ];
    let contrast = colour(Colour::Contrast(1.2));
    let warp = Change::Warp {
        warp: Warp {
            from: [1.0, 0.0, 3.0, 0.0, 1.0, 0.0],
            smooth: false,
        },
        fill: [0; 3],
    };
    let of = |changes: &[Change]| {
        let memory = ChangeMemory::new(changes, [100, 50]);
        let between = if memory.moves > 0 { memory.between } else { 0 };
        (
            passes(changes, [100, 50]).len(),
            memory.moves,
            between,
            memory.bytes,
        )
    };
    let counts = 2 * ChangeMemory::PARTS * ChangeMemory::PART_BYTES;
    assert_eq!(of(&[]), (0, 0, 0, 0));
    assert_eq!(of(&jitter), (1, 0, 0, 0));
    assert_eq!(of(&[contrast]), (2, 0, 0, counts));
    assert_eq!(of(&[jitter[0], contrast, jitter[1]]), (2, 0, 0, counts));
    let between = 15_104; // 100 x 50 x 3, aligned
    assert_eq!(of(&[warp, jitter[0]]), (1, 1, between, between));
    assert_eq!(of(&[jitter[0], warp]), (2, 1, between, between));
    assert_eq!(
        of(&[warp, contrast, warp, warp]),
        (4, 3, between, 2 * between + counts)
    );
}

/// Older drivers do not read newer PTX, and older devices do not run code for newer ones.
#[test]
fn the_kernel_is_made_for_the_oldest_that_are_served() {
    let text = PTX.to_str().unwrap();
    assert!(text.contains("\n.version 7.0\n.target sm_70\n"));
    assert!(text.contains(".visible .entry pinfeed_change_pictures("));
    // Each product is rounded, as on the CPU.
    assert!(!text.contains("fma.rn"));
}
