//! Which pixels of a decoded picture become which of its row.

use std::error::Error;
use std::fmt;

use super::change::ChangeMemory;
use super::weights::Axis;
use super::{Change, PlaneLayout, Sampling};

/// Which pixels of a decoded picture become which of a row of `size` pixels, RGB.
///
/// It travels beside the encoded picture as [`words`](Drawing::words).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Drawing {
    /// The width and height of the decoded picture.
    pub source: [u32; 2],
    /// How many times coarser chroma is.
    pub sampling: Sampling,
    /// The pixels that a filter may read: left, top, width, height.
    pub bounds: [u32; 4],
    /// The part that is shown, to fractions of a pixel, from the bounds' corner: left, top, width, height.
    pub window: [f64; 4],
    /// Where it lies in the row: left, top, width, height. The rest is filled.
    pub place: [u32; 4],
    /// The width and height of the row's picture.
    pub size: [u32; 2],
    /// How pixels are resampled.
    pub filter: Filter,
    /// Whether left and right, and top and bottom, are swapped at the end.
    pub flip: [bool; 2],
    /// The colour of the rest.
    pub fill: [u8; 3],
}

/// What a device's decoder takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DecoderLimits {
    /// The shortest side that a picture may have.
    pub least_side: u32,
    /// The longest one.
    pub most_side: u32,
    /// How much of the decoder's memory a picture may take ([`Drawing::decoder_bytes`]).
    pub picture_bytes: usize,
}

/// A picture that has a row of a batch, and is not decoded yet: what becomes of its file, which the row keeps. (Public in name only.)
///
/// What becomes of its pixels is asked once, when the picture is left to a device.
pub trait EncodedPicture: Send + Sync {
    /// What becomes of its pixels.
    fn drawing(&self) -> &Drawing;

    /// How they are changed then. At most [`Change::MOST`].
    fn changes(&self) -> &[Change] {
        &[]
    }

    /// Decodes its file on this thread, into its row: the same pixels, but for the decoder's rounding.
    ///
    /// # Errors
    ///
    /// If it cannot be decoded.
    fn draw(&self, file: &[u8], row: &mut [u8]) -> Result<(), Box<dyn Error + Send + Sync>>;
}

impl fmt::Debug for dyn EncodedPicture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EncodedPicture").finish_non_exhaustive()
    }
}

/// What becomes of a picture's pixels, as it said once: both are sound. Memory is allocated for it by this, and written by this.
#[derive(Debug, PartialEq)]
pub(crate) struct Steps {
    drawing: Drawing,
    changes: Box<[Change]>,
}

impl Steps {
    /// Asks the picture. `None`: what it says is not [sound](Drawing::is_sound).
    pub(crate) fn of(picture: &dyn EncodedPicture) -> Option<Steps> {
        let drawing = *picture.drawing();
        let changes: Box<[Change]> = picture.changes().into();
        let is_sound = drawing.is_sound() && Change::are_sound(&changes, drawing.size);
        is_sound.then_some(Steps { drawing, changes })
    }

    pub(crate) fn drawing(&self) -> &Drawing {
        &self.drawing
    }

    pub(crate) fn changes(&self) -> &[Change] {
        &self.changes
    }

    /// The width and height of the row's picture.
    pub(crate) fn size(&self) -> [u32; 2] {
        Change::last_size(self.changes(), self.drawing.size)
    }
}

/// How pixels are resampled. (The other filters of pictures are the CPU's: one needs the sine, one adds up its steps.)
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Filter {
    /// The triangle filter.
    Bilinear = 0,
    /// The cubic filter with a = -0.5.
    Bicubic = 1,
}

/// The longest side of a picture in a JPEG file.
const MOST_SOURCE_SIDE: u32 = 65_535;

/// The longest side of a row's picture. (Larger ones are the CPU's.)
const MOST_SIDE: u32 = 1 << 20;

/// A block of the device's kernel makes a tile of so many pixels, across and down.
const TILE: [u32; 2] = [32, 16];

/// The most tiles of a row. (The kernel counts those of all pictures of a chunk, at most 64, in 32 bits.)
const MOST_TILES: u64 = 1 << 24;

/// The most pixels that a tile may read along the axis that is filtered first: a column or row of them fits the kernel's shared memory. (So
/// what is longer, and shrunk more than a hundredfold, is the CPU's.)
const MOST_DEPTH: f64 = 4096.0;

/// How many tiles a row of that size has.
pub(crate) fn tiles(size: [u32; 2]) -> u64 {
    let [across, down] = [0, 1].map(|axis| u64::from(size[axis].div_ceil(TILE[axis])));
    across * down
}

impl Drawing {
    /// How many words a drawing has.
    pub const WORDS: usize = 11;

    /// The drawing as numbers.
    pub fn words(&self) -> [u64; Drawing::WORDS] {
        let pair = |[low, high]: [u32; 2]| u64::from(low) | u64::from(high) << 32;
        let [left, top, width, height] = self.bounds;
        let [place_left, place_top, place_width, place_height] = self.place;
        let [red, green, blue] = self.fill;
        let flip = u8::from(self.flip[0]) | u8::from(self.flip[1]) << 1;
        let small = [
            self.sampling as u8,
            self.filter as u8,
            flip,
            red,
            green,
            blue,
            0,
            0,
        ];
        let [at, above, across, down] = self.window.map(f64::to_bits);
        [
            pair(self.source),
            pair([left, top]),
            pair([width, height]),
            at,
            above,
            across,
            down,
            pair([place_left, place_top]),
            pair([place_width, place_height]),
            pair(self.size),
            u64::from_le_bytes(small),
        ]
    }

    /// The drawing of these numbers, if it reads and writes nothing but its own picture and row.
    pub fn from_words(words: &[u64; Drawing::WORDS]) -> Option<Drawing> {
        let pair = |word: u64| [word as u32, (word >> 32) as u32];
        let four = |one: u64, other: u64| {
            let ([a, b], [c, d]) = (pair(one), pair(other));
            [a, b, c, d]
        };
        let [source, at, of, window @ .., place_at, place_of, size, small] = *words;
        let [sampling, filter, flip, red, green, blue, 0, 0] = small.to_le_bytes() else {
            return None;
        };
        let drawing = Drawing {
            source: pair(source),
            sampling: Sampling::of(sampling)?,
            bounds: four(at, of),
            window: window.map(f64::from_bits),
            place: four(place_at, place_of),
            size: pair(size),
            filter: match filter {
                0 => Filter::Bilinear,
                1 => Filter::Bicubic,
                _ => return None,
            },
            flip: match flip {
                0..4 => [flip & 1 != 0, flip & 2 != 0],
                _ => return None,
            },
            fill: [red, green, blue],
        };
        drawing.is_sound().then_some(drawing)
    }

    /// Whether it reads and writes nothing but its own picture and row, and the kernel's tiles can make it.
    pub fn is_sound(&self) -> bool {
        let within = |at: u32, side: u32, whole: u32| at <= whole && side <= whole - at;
        let inside = |[left, top, width, height]: [u32; 4],
                      [whole_width, whole_height]: [u32; 2]| {
            within(left, width, whole_width) && within(top, height, whole_height)
        };
        let sides = |sides: [u32; 2], most: u32| sides.iter().all(|side| (1..=most).contains(side));
        // What shows nothing needs no window; but one that makes pixels of an axis has weights, and they take memory.
        let is_empty = !self.shows();
        let shown = |axis: usize| {
            let (at, side) = (self.window[axis], self.window[2 + axis]);
            let whole = f64::from(self.bounds[2 + axis]);
            let is_within = at >= 0.0 && side >= 0.0 && at + side <= whole;
            let has_pixels = side > 0.0 && at < whole;
            self.place[2 + axis] == 0 || is_within && (is_empty || has_pixels)
        };
        sides(self.source, MOST_SOURCE_SIDE)
            && sides(self.size, MOST_SIDE)
            && tiles(self.size) <= MOST_TILES
            && inside(self.bounds, self.source)
            && inside(self.place, self.size)
            && shown(0)
            && shown(1)
            && (is_empty || self.depth() <= MOST_DEPTH)
    }

    /// The most pixels that a tile of the kernel's reads along the axis that is filtered first, or more.
    fn depth(&self) -> f64 {
        let (axis, lines) = match self.filter {
            Filter::Bicubic => (0, TILE[0]),
            Filter::Bilinear => (1, TILE[1]),
        };
        let whole = f64::from(self.bounds[2 + axis]);
        let axis = &self.axes()[axis];
        let read = (f64::from(lines) * axis.scale()).ceil() + axis.taps() as f64 + 1.0;
        read.min(whole)
    }

    /// The bytes that are drawn: of its row, if no change makes it another size.
    pub fn row_bytes(&self) -> usize {
        self.size[0] as usize * self.size[1] as usize * 3
    }

    /// The memory that a decoder needs for the picture: its planes ([`PlaneLayout`]), behind them the weights of both axes, and then
    /// what the changes need.
    pub fn decoder_bytes(&self, changes: &[Change]) -> usize {
        let planes = PlaneLayout::new(self.sampling, self.source).bytes;
        planes + self.table_bytes() + ChangeMemory::new(changes, self.size).bytes
    }

    /// The memory of the weights of both axes.
    pub(crate) fn table_bytes(&self) -> usize {
        let tables = self.axes().iter().map(Axis::table_bytes).sum::<usize>();
        tables.next_multiple_of(PlaneLayout::ALIGN)
    }

    /// Whether the row has pixels of the picture.
    pub(crate) fn shows(&self) -> bool {
        self.place[2] > 0 && self.place[3] > 0
    }

    /// The two axes: across and down.
    pub(crate) fn axes(&self) -> [Axis; 2] {
        [0, 1].map(|at| Axis {
            start: self.window[at],
            length: self.window[2 + at],
            inside: self.bounds[2 + at],
            out: self.place[2 + at],
            filter: self.filter,
        })
    }
}
