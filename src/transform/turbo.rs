//! Decoding JPEG files by libjpeg-turbo: of a picture that is cropped, only the box that the crop needs.

use std::cell::RefCell;
use std::ffi::{CStr, c_int, c_void};

use turbojpeg_sys as tj;

use super::error::{Cause, MOST_SCANS};
use super::size::{Rect, Size};

/// What a header says.
#[derive(Debug, Clone, Copy)]
pub(super) struct Header {
    pub(super) size: Size,
    /// The width of a block of columns that is decoded as one; `None` if the picture can only be decoded as a whole.
    columns: Option<u32>,
}

impl Header {
    /// Whether the picture may be decoded at a part of its size.
    pub(super) fn shrinks(&self) -> bool {
        self.columns.is_some()
    }
}

/// Reads the header of a JPEG file; `None` if it is one for the other decoder: of another colour space than grey, YCbCr and
/// RGB, of 12 bits, lossless, or broken.
pub(super) fn header(bytes: &[u8]) -> Option<Header> {
    with(|decompressor| decompressor.header(bytes)).ok()?
}

/// The box that is decoded so that `needed` is what it would be if the whole picture were: whole blocks of columns, and one
/// more on each side, for chroma is interpolated from its neighbours. Both are of the picture as it is shrunk.
pub(super) fn region(header: Header, needed: Rect<u32>, shrunk: u32) -> Rect<u32> {
    let Some(columns) = header.columns else {
        return Rect::whole(header.size);
    };
    let columns = columns / shrunk;
    let left = (needed.left / columns).saturating_sub(1) * columns;
    let right = (needed.left + needed.width).div_ceil(columns);
    let right = right.saturating_add(1).saturating_mul(columns);
    let right = right.min(header.size.width.div_ceil(shrunk));
    Rect {
        left,
        width: right - left,
        ..needed
    }
}

/// Decodes such a box into `rgb`, which has three bytes for each of its pixels.
pub(super) fn decode(
    bytes: &[u8],
    region: Rect<u32>,
    shrunk: u32,
    rgb: &mut [u8],
) -> Result<(), Cause> {
    with(|decompressor| decompressor.decode(bytes, region, shrunk, rgb))?
}

thread_local! {
    static DECOMPRESSOR: RefCell<Option<Decompressor>> = const { RefCell::new(None) };
}

/// Lends this thread's decompressor.
fn with<R>(f: impl FnOnce(&mut Decompressor) -> R) -> Result<R, Cause> {
    DECOMPRESSOR.with_borrow_mut(|decompressor| match decompressor {
        Some(decompressor) => Ok(f(decompressor)),
        None => Ok(f(decompressor.insert(Decompressor::new()?))),
    })
}

/// A decompressor of the library's. It is used by the thread that made it.
struct Decompressor(*mut c_void);

impl Decompressor {
    fn new() -> Result<Decompressor, Cause> {
        // SAFETY: it takes a number, and gives a handle or null.
        let handle = unsafe { tj::tj3Init(tj::TJINIT_TJINIT_DECOMPRESS as c_int) };
        if handle.is_null() {
            return Err(Cause::Turbo("no memory for a decompressor".to_owned()));
        }
        let decompressor = Decompressor(handle);
        decompressor.set(tj::TJPARAM_TJPARAM_SCANLIMIT, MOST_SCANS as c_int);
        Ok(decompressor)
    }

    fn set(&self, parameter: tj::TJPARAM, value: c_int) {
        // SAFETY: the handle is alive; the call checks the numbers.
        let code = unsafe { tj::tj3Set(self.0, parameter as c_int, value) };
        debug_assert_eq!(code, 0, "{parameter} cannot be {value}");
    }

    fn get(&self, parameter: tj::TJPARAM) -> c_int {
        // SAFETY: the handle is alive; the call checks the number.
        unsafe { tj::tj3Get(self.0, parameter as c_int) }
    }

    fn header(&mut self, bytes: &[u8]) -> Option<Header> {
        // SAFETY: the handle is alive, and the bytes are read for the length of the call.
        let code =
            unsafe { tj::tj3DecompressHeader(self.0, bytes.as_ptr(), bytes.len() as tj::size_t) };
        if code != 0 {
            return None;
        }
        let colors = self.get(tj::TJPARAM_TJPARAM_COLORSPACE);
        let plain = [tj::TJCS_TJCS_YCbCr, tj::TJCS_TJCS_GRAY, tj::TJCS_TJCS_RGB]
            .into_iter()
            .any(|plain| colors == plain as c_int)
            && self.get(tj::TJPARAM_TJPARAM_PRECISION) == 8
            && self.get(tj::TJPARAM_TJPARAM_LOSSLESS) == 0;
        let side = |parameter| u32::try_from(self.get(parameter)).ok();
        let size = Size {
            width: side(tj::TJPARAM_TJPARAM_JPEGWIDTH)?,
            height: side(tj::TJPARAM_TJPARAM_JPEGHEIGHT)?,
        };
        let columns = columns(self.get(tj::TJPARAM_TJPARAM_SUBSAMP));
        plain.then_some(Header { size, columns })
    }

    fn decode(
        &mut self,
        bytes: &[u8],
        region: Rect<u32>,
        shrunk: u32,
        rgb: &mut [u8],
    ) -> Result<(), Cause> {
        assert_eq!(
            rgb.len(),
            region.width as usize * region.height as usize * 3
        );
        // The region is checked against the header that was read last.
        let Some(header) = self.header(bytes) else {
            return Err(self.error());
        };
        let scale = tj::tjscalingfactor {
            num: 1,
            denom: shrunk as c_int,
        };
        // SAFETY: the handle is alive; the call checks the numbers.
        if unsafe { tj::tj3SetScalingFactor(self.0, scale) } != 0 {
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
            // What cannot be cropped is decoded as a whole, which zeros stand for.
            None => {
                assert_eq!(region, Rect::whole(header.size));
                tj::tjregion {
                    x: 0,
                    y: 0,
                    w: 0,
                    h: 0,
                }
            }
        };
        // SAFETY: the handle is alive; the call checks the region.
        if unsafe { tj::tj3SetCroppingRegion(self.0, cropped) } != 0 {
            return Err(self.error());
        }
        // SAFETY: the handle is alive, the bytes are read for the length of the call, and it writes the region's rows, of three
        // bytes a pixel and one behind the other: `rgb` has as many.
        let code = unsafe {
            tj::tj3Decompress8(
                self.0,
                bytes.as_ptr(),
                bytes.len() as tj::size_t,
                rgb.as_mut_ptr(),
                0,
                tj::TJPF_TJPF_RGB,
            )
        };
        // SAFETY: the handle is alive.
        let warned = || unsafe { tj::tj3GetErrorCode(self.0) } == tj::TJERR_TJERR_WARNING as c_int;
        match code {
            0 => Ok(()),
            // Damage within a complete file shows as damaged pixels.
            _ if warned() => Ok(()),
            _ => Err(self.error()),
        }
    }

    fn error(&self) -> Cause {
        // SAFETY: the handle is alive, and its message is a string that stays until the next call with it.
        let message = unsafe { CStr::from_ptr(tj::tj3GetErrorStr(self.0)) };
        Cause::Turbo(message.to_string_lossy().into_owned())
    }
}

impl Drop for Decompressor {
    fn drop(&mut self) {
        // SAFETY: the handle is alive, and nobody uses it after this.
        unsafe { tj::tj3Destroy(self.0) };
    }
}

/// How many columns of pixels one block of columns has, by the kind of subsampling; `None` for kinds that the library cannot
/// crop.
fn columns(subsampling: c_int) -> Option<u32> {
    match subsampling {
        tj::TJSAMP_TJSAMP_444
        | tj::TJSAMP_TJSAMP_GRAY
        | tj::TJSAMP_TJSAMP_440
        | tj::TJSAMP_TJSAMP_441 => Some(8),
        tj::TJSAMP_TJSAMP_422 | tj::TJSAMP_TJSAMP_420 => Some(16),
        tj::TJSAMP_TJSAMP_411 => Some(32),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
