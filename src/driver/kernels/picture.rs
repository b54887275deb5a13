//! Rows of a batch, made of the planes that a decoder wrote.

use std::ffi::CStr;

use super::{Argument, Kernel, Launch, ptx};
use crate::picture::drawing::tiles;
use crate::picture::{Drawing, Filter, PlaneLayout, Planes};
use crate::tuning::{BLOCK_THREADS, ITEMS_PER_THREAD};

/// A decoded picture and its row, in addresses. The kernel takes it as it is.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct Picture {
    planes: [u64; 3],
    to: u64,
    status: u64,
    /// Of the two axes, across and down.
    weights: [u64; 2],
    window: [f64; 4],
    pitch: [u32; 3],
    sampling: u32,
    source: [u32; 2],
    bounds: [u32; 4],
    place: [u32; 4],
    size: [u32; 2],
    taps: [u32; 2],
    filter: u32,
    flip: u32,
    fill: u32,
    unused: u32,
}

const _: () = assert!(size_of::<Picture>() == 7 * 8 + 4 * 8 + 22 * 4);

/// Where a picture's memory is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Places {
    /// Its planes, as [`PlaneLayout`] has them. The decoder writes them.
    pub(crate) planes: u64,
    /// The memory for the weights of its axes ([`Drawing::table_bytes`]), aligned to 16.
    pub(crate) weights: u64,
    /// What is drawn: the row, or what becomes of it by changes. [`Drawing::row_bytes`].
    pub(crate) drawn: u64,
    /// A `u32` that the host reads: [`Status`].
    pub(crate) status: u64,
}

/// What became of a picture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Status {
    /// Nothing yet.
    Pending,
    /// Its row is made.
    Drawn,
    /// The decoder did not write all of its planes. The row is made of what was there.
    Skipped,
}

impl Status {
    /// The status of a number that the kernel wrote. The host sets it to 0 before.
    pub(crate) fn of(number: u32) -> Status {
        match number {
            0 => Status::Pending,
            1 => Status::Drawn,
            _ => Status::Skipped,
        }
    }
}

/// How many bytes of each plane are set before it is decoded. If all of them are still there, it was not written.
const KNOWN: u32 = 16;

impl Picture {
    pub(crate) fn new(drawing: &Drawing, places: Places) -> Picture {
        let layout = PlaneLayout::new(drawing.sampling, drawing.source);
        let [across, _] = drawing.axes().map(|axis| axis.table_bytes() as u64);
        let [red, green, blue] = drawing.fill.map(u32::from);
        Picture {
            planes: layout.starts.map(|start| places.planes + start as u64),
            to: places.drawn,
            status: places.status,
            weights: [places.weights, places.weights + across],
            window: drawing.window,
            pitch: layout.pitch.map(|pitch| pitch as u32),
            sampling: drawing.sampling as u32,
            source: drawing.source,
            bounds: drawing.bounds,
            place: drawing.place,
            size: drawing.size,
            taps: drawing.axes().map(|axis| axis.taps() as u32),
            filter: drawing.filter as u32,
            flip: u32::from(drawing.flip[0]) | u32::from(drawing.flip[1]) << 1,
            fill: red | green << 8 | blue << 16,
            unused: 0,
        }
    }

    /// As the device reads it.
    pub(crate) fn as_bytes(&self) -> &[u8] {
        let bytes = std::ptr::from_ref(self).cast();
        // SAFETY: a picture consists of numbers, without padding (the assertion above).
        unsafe { std::slice::from_raw_parts(bytes, size_of::<Picture>()) }
    }

    fn drawing(&self) -> Drawing {
        let [red, green, blue, _] = self.fill.to_le_bytes();
        Drawing {
            source: self.source,
            sampling: crate::picture::Sampling::ALL[self.sampling as usize],
            bounds: self.bounds,
            window: self.window,
            place: self.place,
            size: self.size,
            filter: match self.filter {
                0 => Filter::Bilinear,
                _ => Filter::Bicubic,
            },
            flip: [self.flip & 1 != 0, self.flip & 2 != 0],
            fill: [red, green, blue],
        }
    }

    /// The known bytes of a plane: their places, and what they are.
    fn known(&self, plane: usize) -> impl Iterator<Item = (*mut u8, u8)> {
        let drawing = self.drawing();
        let [width, height] = drawing.sampling.sizes(self.source)[plane];
        let count = (u64::from(width) * u64::from(height)).min(KNOWN.into()) as u32;
        (0..count).map(move |number| {
            let (row, column) = (number / width, number % width);
            let place = u64::from(row) * u64::from(self.pitch[plane]) + u64::from(column);
            let mixed = (number + 16 * plane as u32 + 1).wrapping_mul(0x9E37_79B1);
            ((self.planes[plane] + place) as *mut u8, (mixed >> 24) as u8)
        })
    }
}

/// A step of pictures that are decoded together.
#[derive(Debug)]
pub(crate) struct Drawn {
    list: *const Picture,
    count: u64,
    /// The most tiles that one of them has.
    tiles: u64,
    is_prepared: bool,
}

// SAFETY: the list is only read, and the creator's contract keeps it until then.
unsafe impl Send for Drawn {}

impl Drawn {
    /// What is to be done before the pictures are decoded: their weights, and the known bytes in their planes. A decoder may write before
    /// the stream reaches it, so this must be *complete* when the decoder is called.
    ///
    /// `pictures` are at the address `list`, where the device reads them.
    pub(crate) fn prepare(list: u64, pictures: &[Picture]) -> Drawn {
        Drawn {
            list: list as *const Picture,
            count: pictures.len() as u64,
            tiles: pictures
                .iter()
                .map(|picture| tiles(picture.size))
                .max()
                .unwrap_or(0),
            is_prepared: false,
        }
    }

    /// What is to be done behind the decoder's work on the stream: the rows and the statuses.
    pub(crate) fn draw(list: u64, pictures: &[Picture]) -> Drawn {
        Drawn {
            is_prepared: true,
            ..Drawn::prepare(list, pictures)
        }
    }
}

impl Kernel for Drawn {
    unsafe fn run(&self) {
        for at in 0..self.count as usize {
            // SAFETY: the caller's contract: there are as many pictures.
            let picture = unsafe { self.list.add(at).read() };
            let drawing = picture.drawing();
            let planes = drawing.sampling.planes();
            if !self.is_prepared {
                for (place, byte) in (0..planes).flat_map(|plane| picture.known(plane)) {
                    // SAFETY: the caller's contract, for the planes.
                    unsafe { place.write(byte) };
                }
                continue;
            }
            // SAFETY: likewise.
            let is_there = |(place, byte): (*mut u8, u8)| unsafe { place.read() } == byte;
            let skipped = (0..planes).filter(|plane| picture.known(*plane).all(is_there));
            let status = skipped.fold(1u32, |status, plane| status | 2 << plane);
            let mut bytes = [&[][..]; 3];
            let sizes = drawing.sampling.sizes(drawing.source);
            for (plane, [width, height]) in sizes.into_iter().enumerate().take(planes) {
                let rows = (height as usize - 1) * picture.pitch[plane] as usize;
                let from = picture.planes[plane] as *const u8;
                // SAFETY: likewise; nothing writes the planes now.
                bytes[plane] = unsafe { std::slice::from_raw_parts(from, rows + width as usize) };
            }
            let to = picture.to as *mut u8;
            // SAFETY: the caller's contract, for the row: nothing else uses it now.
            let row = unsafe { std::slice::from_raw_parts_mut(to, drawing.row_bytes()) };
            let pitch = picture.pitch.map(|pitch| pitch as usize);
            drawing.render(Planes { bytes, pitch }, row);
            // SAFETY: the caller's contract, for the status.
            unsafe { (picture.status as *mut u32).write(status) };
        }
    }

    fn launch(&self) -> Launch<'_> {
        // Each block takes an axis, or tiles in turn.
        let (function, blocks) = match self.is_prepared {
            false => (c"pinfeed_prepare_pictures", 2 * self.count),
            true => (c"pinfeed_draw_pictures", self.count * self.tiles),
        };
        let mut arguments = vec![Argument::new(&self.list), Argument::new(&self.count)];
        if self.is_prepared {
            arguments.push(Argument::new(&self.tiles));
        }
        Launch {
            purpose: "drawing decoded pictures",
            ptx: PTX,
            function,
            items: blocks.saturating_mul(u64::from(BLOCK_THREADS) * ITEMS_PER_THREAD),
            arguments,
        }
    }
}

/// The kernels, made from picture.cu by `nvcc -ptx`.
const PTX: &CStr = ptx(concat!(include_str!("../cuda/picture.ptx"), "\0"));

#[cfg(test)]
mod tests;
