//! Decodes JPEG files with libjpeg-turbo, and only the box that a crop needs.

use std::cell::Cell;
use std::ffi::{CStr, c_int, c_void};

use turbojpeg_sys as tj;

use super::jpeg::{FrameHeader, TWO_FRAMES, has_two_frames};
use crate::image::error::{Cause, MOST_SCANS};
use crate::image::size::{Rect, Size};

/// What this module knows of a file after its header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) size: Size,
    /// The width of the columns of blocks that are decoded together. `None` if the picture can only be decoded as a whole.
    columns: Option<u32>,
    /// Whether the file defines all tables that it needs.
    is_self_contained: bool,
    /// How many blocks of luma lie side by side in a unit of the scan.
    blocks_across: u8,
}

impl Header {
    /// Whether the picture can be scaled down while it is decoded.
    pub(super) fn shrinks(&self) -> bool {
        self.columns.is_some()
    }
}

/// Reads the header of a JPEG file whose frame header we read as `frame`. `None` leaves the file to the default
/// decoder: its colour space is not grey, YCbCr or RGB; it has 12 bits; it is lossless; or it is broken.
pub(super) fn header(bytes: &[u8], frame: &FrameHeader) -> Option<Header> {
    let is_self_contained = frame.is_self_contained();
    with(is_self_contained, |decompressor| {
        let said = decompressor.header(bytes)?;
        let header = said.header(is_self_contained, frame.blocks_across())?;
        let agrees = said.is(frame);
        decompressor.failed |= !agrees;
        agrees.then_some(header)
    })
    .ok()?
}

/// The box to decode so that `needed` has the same pixels as in the whole picture. It begins with a column of blocks, as the library
/// asks. A pixel's chroma is interpolated with that of the next pixel or the one before, so one more is decoded on each side. It is
/// never empty, even if nothing is needed: the library takes a height of 0 for all rows. Both boxes are in pixels of the scaled picture.
pub(super) fn region(header: Header, needed: Rect<u32>, shrunk: u32) -> Rect<u32> {
    /// A box with one column of chroma is not interpolated.
    const FEWEST: u32 = 3;
    let Some(columns) = header.columns else {
        return Rect::whole(header.size);
    };
    let columns = columns / shrunk;
    let [width, height] = [header.size.width, header.size.height].map(|side| side.div_ceil(shrunk));
    let right = needed.left.saturating_add(needed.width).saturating_add(1);
    let right = right.max(FEWEST).min(width);
    let left = needed
        .left
        .saturating_sub(1)
        .min(right.saturating_sub(FEWEST));
    let left = left / columns * columns;
    let top = needed.top.min(height - 1);
    Rect {
        left,
        top,
        width: right - left,
        height: needed.height.clamp(1, height - top),
    }
}

/// Decodes a box (see [`region`]) into `rgb`, which has three bytes for each of its pixels, and writes all of them, or fails. `header`
/// must be that of `bytes`.
pub(super) fn decode(
    bytes: &[u8],
    header: Header,
    region: Rect<u32>,
    shrunk: u32,
    rgb: &mut [u8],
) -> Result<(), Cause> {
    let mut early = None;
    // Rows are written in their order, so the last pixel tells whether all were. If it keeps its mark, it may have that colour: then the
    // other mark decides.
    for mark in [[0; 3], [0xFF; 3]] {
        if let Some(last) = rgb.last_chunk_mut() {
            *last = mark;
        }
        let ending = with(header.is_self_contained, |decompressor| {
            decompressor.decode(bytes, header, region, shrunk, rgb)
        })??;
        match ending {
            Ending::Clean => return Ok(()),
            // The library sees the second only where rows that are needed end behind it.
            Ending::Warned(_) if has_two_frames(bytes) => return Err(TWO_FRAMES),
            Ending::Warned(message) if !is_warning(&message) => return Err(Cause::Turbo(message)),
            Ending::Warned(_) if rgb.last_chunk() != Some(&mark) => return Ok(()),
            Ending::Warned(message) => early = Some(message),
        }
    }
    let early = early.map(Cause::Turbo);
    Err(early.unwrap_or(Cause::Turbo("it ended early".to_owned())))
}

/// How decoding ended.
#[derive(Debug)]
enum Ending {
    /// All pixels were written.
    Clean,
    /// The file is damaged. If an error behind the warning ended decoding, the library does not tell, but its last message is the
    /// error's.
    Warned(String),
}

/// How the messages of libjpeg's warnings begin: `JWRN_...` in jerror.h.
const WARNINGS: [&str; 6] = [
    "Corrupt JPEG data",
    "Premature end of JPEG file",
    "Inconsistent progression sequence",
    "Invalid SOS parameters for sequential JPEG",
    "Unknown Adobe color transform code",
    "Warning:",
];

fn is_warning(message: &str) -> bool {
    WARNINGS.iter().any(|warning| message.starts_with(warning))
}

thread_local! {
    static DECOMPRESSOR: Cell<Option<Decompressor>> = const { Cell::new(None) };
}

/// Lends this thread's decompressor. A file that does not define all of its tables gets a new one, or it would be decoded with those
/// of an earlier file. After anything but success (also a panic or a warning), the decompressor is dropped, because its state is
/// unknown.
fn with<R>(is_self_contained: bool, f: impl FnOnce(&mut Decompressor) -> R) -> Result<R, Cause> {
    let kept = DECOMPRESSOR.take().filter(|_| is_self_contained);
    let mut decompressor = match kept {
        Some(decompressor) => decompressor,
        None => Decompressor::new()?,
    };
    decompressor.failed = false;
    let result = f(&mut decompressor);
    if !decompressor.failed {
        DECOMPRESSOR.set(Some(decompressor));
    }
    Ok(result)
}

/// A decompressor of libjpeg-turbo. Only the thread that made it uses it.
struct Decompressor {
    handle: *mut c_void,
    /// Whether a call failed or warned.
    failed: bool,
}

/// What libjpeg-turbo reports about a file.
#[derive(Debug, Clone, Copy)]
struct Said {
    size: Size,
    colors: c_int,
    subsampling: c_int,
    /// Whether it is lossy, with 8 bits a channel.
    usual: bool,
}

impl Said {
    /// `None` leaves the file to the default decoder.
    fn header(&self, is_self_contained: bool, blocks_across: u8) -> Option<Header> {
        (self.usual && self.channels().is_some()).then_some(Header {
            size: self.size,
            columns: columns(self.subsampling, blocks_across),
            is_self_contained,
            blocks_across,
        })
    }

    fn channels(&self) -> Option<usize> {
        const GREY: c_int = tj::TJCS_TJCS_GRAY as c_int;
        const YCBCR: c_int = tj::TJCS_TJCS_YCbCr as c_int;
        const RGB: c_int = tj::TJCS_TJCS_RGB as c_int;
        match self.colors {
            GREY => Some(1),
            YCBCR | RGB => Some(3),
            _ => None,
        }
    }

    /// Whether it agrees with what we read ourselves. Success alone does not mean that the library read a header.
    fn is(&self, frame: &FrameHeader) -> bool {
        let channels = self.channels();
        channels.is_some_and(|channels| frame.is(self.size, channels, finer(self.subsampling)))
    }
}

impl Decompressor {
    fn new() -> Result<Decompressor, Cause> {
        // SAFETY: it takes a number, and returns a handle or null.
        let handle = unsafe { tj::tj3Init(tj::TJINIT_TJINIT_DECOMPRESS as c_int) };
        if handle.is_null() {
            return Err(Cause::Turbo("no memory for a decompressor".to_owned()));
        }
        let decompressor = Decompressor {
            handle,
            failed: false,
        };
        decompressor.set(tj::TJPARAM_TJPARAM_SCANLIMIT, MOST_SCANS as c_int);
        Ok(decompressor)
    }

    fn set(&self, parameter: tj::TJPARAM, value: c_int) {
        // SAFETY: the handle is alive; the call checks the numbers.
        let code = unsafe { tj::tj3Set(self.handle, parameter as c_int, value) };
        debug_assert_eq!(code, 0, "{parameter} cannot be {value}");
    }

    fn get(&self, parameter: tj::TJPARAM) -> c_int {
        // SAFETY: the handle is alive; the call checks the number.
        unsafe { tj::tj3Get(self.handle, parameter as c_int) }
    }

    /// Reads a header. `None` if that failed.
    fn header(&mut self, bytes: &[u8]) -> Option<Said> {
        // SAFETY: the handle is alive, and the bytes are read only during the call.
        let code = unsafe {
            tj::tj3DecompressHeader(self.handle, bytes.as_ptr(), bytes.len() as tj::size_t)
        };
        if code != 0 {
            self.failed = true;
            return None;
        }
        let side = |parameter| u32::try_from(self.get(parameter)).ok();
        Some(Said {
            size: Size {
                width: side(tj::TJPARAM_TJPARAM_JPEGWIDTH)?,
                height: side(tj::TJPARAM_TJPARAM_JPEGHEIGHT)?,
            },
            colors: self.get(tj::TJPARAM_TJPARAM_COLORSPACE),
            subsampling: self.get(tj::TJPARAM_TJPARAM_SUBSAMP),
            usual: self.get(tj::TJPARAM_TJPARAM_PRECISION) == 8
                && self.get(tj::TJPARAM_TJPARAM_LOSSLESS) == 0,
        })
    }

    fn decode(
        &mut self,
        bytes: &[u8],
        header: Header,
        region: Rect<u32>,
        shrunk: u32,
        rgb: &mut [u8],
    ) -> Result<Ending, Cause> {
        // The library takes a side of 0 for one up to the picture's edge.
        assert!(region.width > 0 && region.height > 0);
        assert_eq!(
            rgb.len(),
            region.width as usize * region.height as usize * 3
        );
        // The library checks the region against the header that it read last.
        let Some(said) = self.header(bytes) else {
            return Err(self.error());
        };
        if said.header(header.is_self_contained, header.blocks_across) != Some(header) {
            self.failed = true;
            return Err(Cause::Turbo(
                "it read another header than before".to_owned(),
            ));
        }
        let scale = tj::tjscalingfactor {
            num: 1,
            denom: shrunk as c_int,
        };
        // SAFETY: the handle is alive; the call checks the numbers.
        if unsafe { tj::tj3SetScalingFactor(self.handle, scale) } != 0 {
            return Err(self.error());
        }
        let side = |pixels: u32| c_int::try_from(pixels).unwrap_or(c_int::MAX);
        let cropped = match header.columns {
            Some(_) => tj::tjregion {
                x: side(region.left),
                y: side(region.top),
                w: side(region.width),
                h: side(region.height),
            },
            // A picture that cannot be cropped is decoded as a whole, which the library takes as zeros.
            None => {
                assert_eq!((region, shrunk), (Rect::whole(header.size), 1));
                tj::tjregion {
                    x: 0,
                    y: 0,
                    w: 0,
                    h: 0,
                }
            }
        };
        // SAFETY: the handle is alive; the call checks the region.
        if unsafe { tj::tj3SetCroppingRegion(self.handle, cropped) } != 0 {
            return Err(self.error());
        }
        // SAFETY: the handle is alive, and the bytes are read during the call only. It writes the region's rows back to back, with
        // three bytes a pixel: `rgb` has that size (the assertion above).
        let code = unsafe {
            tj::tj3Decompress8(
                self.handle,
                bytes.as_ptr(),
                bytes.len() as tj::size_t,
                rgb.as_mut_ptr(),
                0,
                tj::TJPF_TJPF_RGB,
            )
        };
        // SAFETY: the handle is alive.
        let warned =
            || unsafe { tj::tj3GetErrorCode(self.handle) } == tj::TJERR_TJERR_WARNING as c_int;
        self.failed = code != 0;
        match code {
            0 => Ok(Ending::Clean),
            // Damage within a complete file shows as damaged pixels.
            _ if warned() => Ok(Ending::Warned(self.message())),
            _ => Err(self.error()),
        }
    }

    fn error(&mut self) -> Cause {
        Cause::Turbo(self.message())
    }

    fn message(&mut self) -> String {
        self.failed = true;
        // SAFETY: the handle is alive, and its message is a string that is valid until the next call with it.
        let message = unsafe { CStr::from_ptr(tj::tj3GetErrorStr(self.handle)) };
        message.to_string_lossy().into_owned()
    }
}

impl Drop for Decompressor {
    fn drop(&mut self) {
        // SAFETY: the handle is alive, and nothing uses it after this.
        unsafe { tj::tj3Destroy(self.handle) };
    }
}

/// The width of a column of blocks in pixels, by the kind of subsampling. `None` for kinds that the library cannot
/// crop: also those that have a name, but units of another width (4:4:4 in which all channels are sampled twice).
fn columns(subsampling: c_int, blocks_across: u8) -> Option<u32> {
    let blocks = match subsampling {
        // With a single channel, a unit is one block, whatever the header says.
        tj::TJSAMP_TJSAMP_GRAY => return Some(8),
        tj::TJSAMP_TJSAMP_444 | tj::TJSAMP_TJSAMP_440 | tj::TJSAMP_TJSAMP_441 => 1,
        tj::TJSAMP_TJSAMP_422 | tj::TJSAMP_TJSAMP_420 => 2,
        tj::TJSAMP_TJSAMP_411 => 4,
        _ => return None,
    };
    (blocks == blocks_across).then_some(8 * u32::from(blocks))
}

/// How many times finer luma is than chroma, across and down. `None` for kinds that the library has no name for.
fn finer(subsampling: c_int) -> Option<(u8, u8)> {
    match subsampling {
        tj::TJSAMP_TJSAMP_444 | tj::TJSAMP_TJSAMP_GRAY => Some((1, 1)),
        tj::TJSAMP_TJSAMP_422 => Some((2, 1)),
        tj::TJSAMP_TJSAMP_420 => Some((2, 2)),
        tj::TJSAMP_TJSAMP_440 => Some((1, 2)),
        tj::TJSAMP_TJSAMP_411 => Some((4, 1)),
        tj::TJSAMP_TJSAMP_441 => Some((1, 4)),
        _ => None,
    }
}

#[cfg(test)]
pub(super) mod tests;
