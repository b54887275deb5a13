//! Changes to rows that were drawn of decoded pictures.

use std::ffi::CStr;
use std::ops::Range;

use super::{Argument, Kernel, Launch, ptx};
use crate::picture::change::{ChangeMemory, Counts, passes};
use crate::picture::{Change, Colour, Cut, Warp};
use crate::tuning::{BLOCK_THREADS, ITEMS_PER_THREAD};

/// A change in numbers. The kernel takes it as it is.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct Record {
    kind: u32,
    /// The turn of the hue, the bits that are kept; or a colour, from the lowest byte.
    number: u32,
    /// Or the threshold.
    factor: f32,
    flip: u32,
    place: [u32; 4],
    /// Of a warp; of a cut, the first pixel that is shown.
    from: [f64; 6],
}

/// One pass over a picture, in addresses. The kernel takes it as it is.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct Pass {
    from: u64,
    to: u64,
    /// What the pass before has counted, and where this one does; 0 for neither.
    counted: u64,
    counts: u64,
    from_size: [u32; 2],
    to_size: [u32; 2],
    /// Its changes.
    first: u32,
    count: u32,
    moves: u32,
    counting: u32,
}

const _: () = assert!(size_of::<Record>() == 8 * 4 + 6 * 8);
const _: () = assert!(size_of::<Pass>() == 4 * 8 + 8 * 4);

const GREY: u32 = 0;
const BRIGHTNESS: u32 = 1;
const CONTRAST: u32 = 2;
const SATURATION: u32 = 3;
const HUE: u32 = 4;
const SHARPNESS: u32 = 5;
const POSTERIZE: u32 = 6;
const SOLARIZE: u32 = 7;
const AUTO_CONTRAST: u32 = 8;
const EQUALIZE: u32 = 9;
const ERASE: u32 = 10;
const SMOOTH_WARP: u32 = 11;
const FIXED_WARP: u32 = 12;
const NEAREST_WARP: u32 = 13;
const CUT: u32 = 14;

impl Record {
    /// A change to a picture of this size.
    fn new(change: &Change, size: [u32; 2]) -> Record {
        let plain = |kind| Record {
            kind,
            ..Record::default()
        };
        let by = |kind, factor| Record {
            factor,
            ..plain(kind)
        };
        let numbered = |kind, number| Record {
            number,
            ..plain(kind)
        };
        let colour = |[red, green, blue]: [u8; 3]| u32::from_le_bytes([red, green, blue, 0]);
        match *change {
            Change::Colour(Colour::Grey) => plain(GREY),
            Change::Colour(Colour::Brightness(factor)) => by(BRIGHTNESS, factor),
            Change::Colour(Colour::Contrast(factor)) => by(CONTRAST, factor),
            Change::Colour(Colour::Saturation(factor)) => by(SATURATION, factor),
            Change::Colour(Colour::Hue(turn)) => numbered(HUE, turn.into()),
            Change::Colour(Colour::Sharpness(factor)) => by(SHARPNESS, factor),
            Change::Colour(Colour::Posterize(bits)) => numbered(POSTERIZE, bits.min(8).into()),
            Change::Colour(Colour::Solarize(threshold)) => by(SOLARIZE, threshold),
            Change::Colour(Colour::AutoContrast) => plain(AUTO_CONTRAST),
            Change::Colour(Colour::Equalize) => plain(EQUALIZE),
            Change::Erase { place, value } => Record {
                place,
                ..numbered(ERASE, colour(value))
            },
            Change::Warp { warp, fill } => {
                let kind = match warp.smooth {
                    true => SMOOTH_WARP,
                    false if warp.fits_fixed_point(size) => FIXED_WARP,
                    false => NEAREST_WARP,
                };
                Record {
                    from: warp.from,
                    ..numbered(kind, colour(fill))
                }
            }
            Change::Cut(cut) => {
                let [left, top] = cut.start.map(f64::from);
                Record {
                    flip: u32::from(cut.flip[0]) | u32::from(cut.flip[1]) << 1,
                    place: cut.place,
                    from: [left, top, 0.0, 0.0, 0.0, 0.0],
                    ..numbered(CUT, colour(cut.fill))
                }
            }
        }
    }

    /// The change again; a cut makes a picture of this size.
    fn change(&self, size: [u32; 2]) -> Change {
        let [red, green, blue, _] = self.number.to_le_bytes();
        let colour = [red, green, blue];
        match self.kind {
            GREY => Change::Colour(Colour::Grey),
            BRIGHTNESS => Change::Colour(Colour::Brightness(self.factor)),
            CONTRAST => Change::Colour(Colour::Contrast(self.factor)),
            SATURATION => Change::Colour(Colour::Saturation(self.factor)),
            HUE => Change::Colour(Colour::Hue(red)),
            SHARPNESS => Change::Colour(Colour::Sharpness(self.factor)),
            POSTERIZE => Change::Colour(Colour::Posterize(red)),
            SOLARIZE => Change::Colour(Colour::Solarize(self.factor)),
            AUTO_CONTRAST => Change::Colour(Colour::AutoContrast),
            EQUALIZE => Change::Colour(Colour::Equalize),
            ERASE => Change::Erase {
                place: self.place,
                value: colour,
            },
            SMOOTH_WARP | FIXED_WARP | NEAREST_WARP => Change::Warp {
                warp: Warp {
                    from: self.from,
                    smooth: self.kind == SMOOTH_WARP,
                },
                fill: colour,
            },
            _ => Change::Cut(Cut {
                start: [self.from[0] as u32, self.from[1] as u32],
                place: self.place,
                size,
                flip: [self.flip & 1 != 0, self.flip & 2 != 0],
                fill: colour,
            }),
        }
    }
}

/// Where a changed picture's memory is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Places {
    /// [`ChangeMemory`], aligned to 16.
    pub(crate) memory: u64,
    /// The row, of the last size.
    pub(crate) row: u64,
}

impl Places {
    /// Where the picture is drawn: in its row, or elsewhere if changes move its pixels.
    pub(crate) fn drawn(&self, changes: &[Change], size: [u32; 2]) -> u64 {
        self.after(&ChangeMemory::new(changes, size), 0)
    }

    fn after(&self, memory: &ChangeMemory, moved: usize) -> u64 {
        let place = memory.place(moved);
        place.map_or(self.row, |place| self.memory + place as u64)
    }
}

impl ChangeMemory {
    /// Where the picture is when pixels have moved so many times, from the memory's beginning; `None` if that is the row.
    fn place(&self, moved: usize) -> Option<usize> {
        let is_second = (self.moves - moved).is_multiple_of(2);
        (moved < self.moves).then_some(if is_second { self.between } else { 0 })
    }

    /// Where a pass, by its number, puts its counts.
    fn counts_of(&self, pass: usize) -> usize {
        self.moves.min(2) * self.between + pass % 2 * self.counts
    }
}

/// All passes over the pictures of a chunk. Those that are made together are neighbours.
#[derive(Debug, Default)]
pub(crate) struct Passes {
    records: Vec<Record>,
    /// Each with its number among those of its picture.
    passes: Vec<(usize, Pass)>,
}

impl Passes {
    /// The most bytes that the records and passes of a picture take on the device.
    pub(crate) const MOST_BYTES: usize =
        Change::MOST * size_of::<Record>() + (Change::MOST + 1) * size_of::<Pass>();

    /// Adds the changes of a picture that is drawn in this size.
    pub(crate) fn add(&mut self, changes: &[Change], size: [u32; 2], places: Places) {
        let memory = ChangeMemory::new(changes, size);
        let first = self.records.len();
        let mut moved = 0;
        let mut counted = 0;
        for (number, pass) in passes(changes, size).into_iter().enumerate() {
            let from = places.after(&memory, moved);
            moved += usize::from(pass.moves);
            let counts = match pass.counts {
                Counts::Nothing => 0,
                _ => places.memory + memory.counts_of(number) as u64,
            };
            let own = Pass {
                from,
                to: places.after(&memory, moved),
                counted,
                counts,
                from_size: pass.sizes[0],
                to_size: pass.sizes[1],
                first: (first + pass.changes.start) as u32,
                count: pass.changes.len() as u32,
                moves: pass.moves.into(),
                counting: pass.counts as u32,
            };
            counted = counts;
            self.passes.push((number, own));
        }
        let mut size = size;
        for change in changes {
            self.records.push(Record::new(change, size));
            size = change.size(size);
        }
    }

    /// Writes them as the device reads them, and returns how many bytes that takes: at most [`MOST_BYTES`](Passes::MOST_BYTES) for each
    /// picture.
    ///
    /// # Panics
    ///
    /// If `to` is smaller.
    pub(crate) fn write(&mut self, to: &mut [u8]) -> usize {
        self.passes.sort_by_key(|(number, _)| *number); // (stable)
        let mut written = 0;
        let mut put = |bytes: &[u8]| {
            to[written..][..bytes.len()].copy_from_slice(bytes);
            written += bytes.len();
        };
        for record in &self.records {
            put(bytes_of(record));
        }
        for (_, pass) in &self.passes {
            put(bytes_of(pass));
        }
        written
    }

    /// What is to be done behind the drawing, one after the other, when what was [written](Passes::write) is at the address `list`.
    pub(crate) fn steps(&self, list: u64) -> impl Iterator<Item = Changed> {
        let passes = list + (self.records.len() * size_of::<Record>()) as u64;
        self.rounds().map(move |round| Changed {
            passes: (passes + (round.start * size_of::<Pass>()) as u64) as *const Pass,
            records: list as *const Record,
            count: round.len() as u64,
        })
    }

    /// The passes of each launch.
    fn rounds(&self) -> impl Iterator<Item = Range<usize>> {
        let mut start = 0;
        self.passes
            .chunk_by(|(one, _), (other, _)| one == other)
            .map(move |round| {
                let range = start..start + round.len();
                start = range.end;
                range
            })
    }
}

/// A type whose values consist of numbers, without padding.
trait Plain {}
impl Plain for Record {}
impl Plain for Pass {}

fn bytes_of<T: Plain>(value: &T) -> &[u8] {
    // SAFETY: it consists of numbers, without padding (the assertions above).
    unsafe { std::slice::from_raw_parts(std::ptr::from_ref(value).cast(), size_of::<T>()) }
}

/// One pass over pictures of a chunk.
#[derive(Debug)]
pub(crate) struct Changed {
    passes: *const Pass,
    records: *const Record,
    count: u64,
}

// SAFETY: the lists are only read, and the creator's contract keeps them until then.
unsafe impl Send for Changed {}

impl Kernel for Changed {
    unsafe fn run(&self) {
        for at in 0..self.count as usize {
            // SAFETY: the caller's contract: there are as many passes.
            let pass = unsafe { self.passes.add(at).read() };
            let bytes = |[width, height]: [u32; 2]| width as usize * height as usize * 3;
            let mut size = pass.from_size;
            // SAFETY: the caller's contract: the picture of the pass before.
            let from = unsafe { std::slice::from_raw_parts(pass.from as *const u8, bytes(size)) };
            let mut pixels = from.to_vec();
            for change in pass.first..pass.first + pass.count {
                // SAFETY: the caller's contract, for the records.
                let record = unsafe { self.records.add(change as usize).read() };
                record.change(pass.to_size).apply(&mut pixels, &mut size);
            }
            debug_assert_eq!(size, pass.to_size);
            // SAFETY: the caller's contract, for the row or what is between; `from` is no longer read.
            let to = unsafe { std::slice::from_raw_parts_mut(pass.to as *mut u8, bytes(size)) };
            to.copy_from_slice(&pixels);
        }
    }

    fn launch(&self) -> Launch<'_> {
        let blocks = self.count * ChangeMemory::PARTS as u64;
        Launch {
            purpose: "changing decoded pictures",
            ptx: PTX,
            function: c"pinfeed_change_pictures",
            items: blocks.saturating_mul(u64::from(BLOCK_THREADS) * ITEMS_PER_THREAD),
            arguments: vec![
                Argument::new(&self.passes),
                Argument::new(&self.records),
                Argument::new(&self.count),
            ],
        }
    }
}

/// The kernel, made from changes.cu by `nvcc -ptx`.
const PTX: &CStr = ptx(concat!(include_str!("../cuda/changes.ptx"), "\0"));

#[cfg(test)]
mod tests;
