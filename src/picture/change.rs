//! Changes to a picture behind its drawing, and in which order a device makes them.

use std::ops::Range;

use super::{Colour, PlaneLayout, Warp, erase};

/// A change to a drawn picture.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Change {
    /// Colours change.
    Colour(Colour),
    /// A part is painted over.
    Erase {
        /// Left, top, width, height. What is outside of the picture is not painted.
        place: [u32; 4],
        /// The colour.
        value: [u8; 3],
    },
    /// Each pixel comes from another place.
    Warp {
        /// Which.
        warp: Warp,
        /// The colour of what comes from outside.
        fill: [u8; 3],
    },
    /// Another picture is made, of a part.
    Cut(Cut),
}

/// A picture made of the pixels of another one as they are: a crop, a border, a mirror image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cut {
    /// The first pixel that is shown: left, top.
    pub start: [u32; 2],
    /// Where what is shown lies: left, top, width, height. The rest is filled.
    pub place: [u32; 4],
    /// The width and height of the result.
    pub size: [u32; 2],
    /// Whether left and right, and top and bottom, are swapped at the end.
    pub flip: [bool; 2],
    /// The colour of the rest.
    pub fill: [u8; 3],
}

/// What must be known of a whole picture before a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Counts {
    Nothing = 0,
    /// The sum of all pixels' luma.
    Luma = 1,
    /// How often each channel has which value.
    Values = 2,
}

impl Change {
    /// The most changes of a picture.
    pub const MOST: usize = 16;

    /// The most pixels of a picture that is changed: a kernel numbers them in 32 bits.
    pub const MOST_PIXELS: u64 = 1 << 28;

    /// Whether a device can make these changes to a picture of this size, and no pixel is read or written that is not its own.
    pub fn are_sound(changes: &[Change], mut size: [u32; 2]) -> bool {
        let fits = |[width, height]: [u32; 2]| {
            (1..=Change::MOST_PIXELS).contains(&(u64::from(width) * u64::from(height)))
        };
        let within = |at: u32, side: u32, whole: u32| at <= whole && side <= whole - at;
        changes.len() <= Change::MOST
            && (changes.is_empty() || fits(size))
            && changes.iter().all(|change| {
                let before = size;
                size = change.size(before);
                match change {
                    Change::Cut(cut) => {
                        let shows = cut.place[2] > 0 && cut.place[3] > 0;
                        let is_within = |axis: usize| {
                            let side = cut.place[2 + axis];
                            within(cut.place[axis], side, cut.size[axis])
                                && (!shows || within(cut.start[axis], side, before[axis]))
                        };
                        fits(size) && is_within(0) && is_within(1)
                    }
                    _ => true,
                }
            })
    }

    /// The bytes of a row that is drawn in this size and then changed.
    pub fn row_bytes(changes: &[Change], size: [u32; 2]) -> usize {
        bytes(Change::last_size(changes, size))
    }

    /// The size that a picture has behind these changes.
    pub(crate) fn last_size(changes: &[Change], size: [u32; 2]) -> [u32; 2] {
        changes.iter().fold(size, |size, change| change.size(size))
    }

    /// The size of the result, of a picture of this size.
    pub(crate) fn size(&self, before: [u32; 2]) -> [u32; 2] {
        match self {
            Change::Cut(cut) => cut.size,
            _ => before,
        }
    }

    /// Whether pixels are made of others. So the result cannot take their place.
    pub(crate) fn moves(&self) -> bool {
        match self {
            Change::Colour(colour) => matches!(colour, Colour::Sharpness(_)),
            Change::Erase { .. } => false,
            Change::Warp { .. } | Change::Cut(_) => true,
        }
    }

    pub(crate) fn needs(&self) -> Counts {
        match self {
            Change::Colour(Colour::Contrast(_)) => Counts::Luma,
            Change::Colour(Colour::AutoContrast | Colour::Equalize) => Counts::Values,
            _ => Counts::Nothing,
        }
    }

    /// Makes the change, in plain code.
    ///
    /// # Panics
    ///
    /// If the changes are not [sound](Change::are_sound), or the pixels have another size.
    pub fn apply(&self, pixels: &mut Vec<u8>, size: &mut [u32; 2]) {
        assert_eq!(pixels.len(), bytes(*size));
        let [width, height] = size.map(|side| side as usize);
        match *self {
            Change::Colour(colour) => colour.apply(pixels, width),
            Change::Erase { place, value } => {
                let [left, top, across, down] = place.map(|side| side as usize);
                let (left, top) = (left.min(width), top.min(height));
                let (across, down) = (across.min(width - left), down.min(height - top));
                let place = [left, top, across, down].map(|side| side as u32);
                erase(pixels, width, place, value);
            }
            Change::Warp { warp, fill } => {
                let before = pixels.clone();
                warp.apply(&before, pixels, *size, fill);
            }
            Change::Cut(cut) => {
                *pixels = cut.made_of(pixels, width);
                *size = cut.size;
            }
        }
    }
}

impl Cut {
    fn made_of(&self, pixels: &[u8], width: usize) -> Vec<u8> {
        let (from, _) = pixels.as_chunks::<3>();
        let mut made = vec![0; bytes(self.size)];
        let (to, _) = made.as_chunks_mut::<3>();
        let [start_x, start_y] = self.start.map(|at| at as usize);
        let [left, top, across, down] = self.place.map(|side| side as usize);
        let [to_width, to_height] = self.size.map(|side| side as usize);
        for (at, to) in to.iter_mut().enumerate() {
            let mirrored =
                |at: usize, side: usize, flip: bool| if flip { side - 1 - at } else { at };
            let x = mirrored(at % to_width, to_width, self.flip[0]);
            let y = mirrored(at / to_width, to_height, self.flip[1]);
            let shows = (left..left + across).contains(&x) && (top..top + down).contains(&y);
            *to = match shows {
                true => from[(start_y + y - top) * width + start_x + x - left],
                false => self.fill,
            };
        }
        made
    }
}

fn bytes([width, height]: [u32; 2]) -> usize {
    width as usize * height as usize * 3
}

/// Changes that a device makes in one go over the picture: the first may need a count of what was there before, or move pixels; each of
/// the others changes a pixel by itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Pass {
    /// Which of the changes. There may be none, before a change that needs a count.
    pub(crate) changes: Range<usize>,
    /// The sizes before and behind it.
    pub(crate) sizes: [[u32; 2]; 2],
    pub(crate) moves: bool,
    /// What it counts for the next.
    pub(crate) counts: Counts,
}

/// The passes of some changes to a picture of this size.
pub(crate) fn passes(changes: &[Change], size: [u32; 2]) -> Vec<Pass> {
    let mut passes: Vec<Pass> = Vec::new();
    let open = |at: usize, size, moves| Pass {
        changes: at..at,
        sizes: [size; 2],
        moves,
        counts: Counts::Nothing,
    };
    for (at, change) in changes.iter().enumerate() {
        let needs = change.needs();
        if passes.is_empty() && (needs != Counts::Nothing || !change.moves()) {
            passes.push(open(at, size, false));
        }
        let before = passes.last().map_or(size, |pass| pass.sizes[1]);
        if let Some(last) = passes.last_mut() {
            last.counts = needs;
        }
        if needs != Counts::Nothing || change.moves() {
            passes.push(open(at, before, change.moves()));
        }
        if let Some(last) = passes.last_mut() {
            last.changes.end = at + 1;
            last.sizes[1] = change.size(before);
        }
    }
    passes
}

/// The memory that changes need on a device, beside the row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ChangeMemory {
    /// How many times pixels move.
    pub(crate) moves: usize,
    /// The bytes of each picture between two moves, of which there are two in turn; or one, if there is one move.
    pub(crate) between: usize,
    /// The bytes of each of the two places for counts, in turn.
    pub(crate) counts: usize,
    /// All of it.
    pub(crate) bytes: usize,
}

impl ChangeMemory {
    /// In how many parts a picture is counted.
    pub(crate) const PARTS: usize = 8;

    /// The counts of a part: 256 for each channel. (A sum of luma takes less.)
    pub(crate) const PART_BYTES: usize = 3 * 256 * size_of::<u32>();

    pub(crate) fn new(changes: &[Change], size: [u32; 2]) -> ChangeMemory {
        let passes = passes(changes, size);
        let moves = passes.iter().filter(|pass| pass.moves);
        let most = moves.clone().map(|pass| bytes(pass.sizes[0])).max();
        let moves = moves.count();
        let between = most.unwrap_or(0).next_multiple_of(PlaneLayout::ALIGN);
        let counts = match passes.iter().any(|pass| pass.counts != Counts::Nothing) {
            true => ChangeMemory::PARTS * ChangeMemory::PART_BYTES,
            false => 0,
        };
        ChangeMemory {
            moves,
            between,
            counts,
            bytes: moves.min(2) * between + 2 * counts,
        }
    }
}

const _: () = assert!(ChangeMemory::PART_BYTES.is_multiple_of(PlaneLayout::ALIGN));
