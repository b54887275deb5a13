//! The libraries' calls alone: libjpeg-turbo decodes the box of a random resized crop, fast_image_resize shrinks it into a row of
//! 64 in turn. It decodes up to the crop's edges, where interpolated chroma is not quite that of the whole picture, reads no
//! file, flips nothing and checks nothing: what no loader with these libraries exceeds.

use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

use fast_image_resize::images::{Image, ImageRef};
use fast_image_resize::{FilterType, PixelType, ResizeAlg, ResizeOptions, Resizer};
use pinfeed::SampleRng;
use pinfeed::rng::RngKey;
use turbojpeg_sys as tj;

use crate::Outcome;
use crate::jpeg::SIDE;

const ROW_BYTES: usize = SIDE * SIDE * 3;
const ROWS: usize = 64;

/// The width of a column of blocks with chroma of half the width.
const COLUMN: i32 = 16;

/// Images a second that so many threads decode until then. Files that these calls do not decode without a warning (damaged, CMYK,
/// rare layouts of chroma) are passed over and not counted.
pub fn rate(files: &[Arc<[u8]>], threads: usize, end: Instant) -> Outcome<f64> {
    let next = AtomicU64::new(0);
    let decode = || -> Outcome<u64> {
        let mut calls = Calls::new()?;
        let mut rows = vec![0; ROWS * ROW_BYTES];
        let mut decoded = 0;
        while Instant::now() < end {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let row = &mut rows[decoded as usize % ROWS * ROW_BYTES..][..ROW_BYTES];
            let file = &files[number as usize % files.len()];
            let done = calls.decode(
                file,
                &mut SampleRng::for_sample(RngKey {
                    seed: 0,
                    epoch: 0,
                    position: number,
                }),
                row,
            );
            decoded += u64::from(done.is_ok());
        }
        Ok(decoded)
    };
    let begun = Instant::now();
    let decoded = thread::scope(|scope| -> Outcome<u64> {
        let threads: Vec<_> = (0..threads.max(1)).map(|_| scope.spawn(decode)).collect();
        let mut sum = 0;
        for thread in threads {
            sum += thread.join().map_err(|_| "the bare calls panicked")??;
        }
        Ok(sum)
    })?;
    match decoded {
        0 => Err("libjpeg-turbo crops none of the files".into()),
        _ => Ok(decoded as f64 / begun.elapsed().as_secs_f64()),
    }
}

struct Calls {
    handle: *mut c_void,
    pixels: Vec<u8>,
    resizer: Resizer,
}

impl Calls {
    fn new() -> Outcome<Calls> {
        // SAFETY: it takes a number, and returns a handle or null.
        let handle = unsafe { tj::tj3Init(tj::TJINIT_TJINIT_DECOMPRESS as c_int) };
        if handle.is_null() {
            return Err("no memory for a decompressor".into());
        }
        Ok(Calls {
            handle,
            pixels: Vec::new(),
            resizer: Resizer::new(),
        })
    }

    fn decode(&mut self, file: &[u8], rng: &mut SampleRng, row: &mut [u8]) -> Outcome {
        let (bytes, size) = (file.as_ptr(), file.len() as tj::size_t);
        // SAFETY: the handle is alive, and the file is read during the call only.
        check(unsafe { tj::tj3DecompressHeader(self.handle, bytes, size) })?;
        // SAFETY: the handle is alive.
        let get = |side: tj::TJPARAM| unsafe { tj::tj3Get(self.handle, side as c_int) };
        let width = get(tj::TJPARAM_TJPARAM_JPEGWIDTH);
        let height = get(tj::TJPARAM_TJPARAM_JPEGHEIGHT);
        let [x, y, w, h] = crop(width, height, rng);
        let left = x / COLUMN * COLUMN;
        let wide = x + w - left;
        self.pixels.resize(wide as usize * h as usize * 3, 0);
        let region = tj::tjregion {
            x: left,
            y,
            w: wide,
            h,
        };
        // SAFETY: the handle is alive; the call checks the region.
        check(unsafe { tj::tj3SetCroppingRegion(self.handle, region) })?;
        let pixels = self.pixels.as_mut_ptr();
        // SAFETY: the handle is alive, the file is the one whose header was read, and the pixels are as many as the region's.
        check(unsafe {
            tj::tj3Decompress8(self.handle, bytes, size, pixels, 0, tj::TJPF_TJPF_RGB)
        })?;
        let decoded = ImageRef::new(wide as u32, h as u32, &self.pixels, PixelType::U8x3)?;
        let side = SIDE as u32;
        let mut shown = Image::from_slice_u8(side, side, row, PixelType::U8x3)?;
        let options = ResizeOptions::new()
            .resize_alg(ResizeAlg::Convolution(FilterType::Bilinear))
            .crop((x - left).into(), 0.0, w.into(), h.into());
        Ok(self.resizer.resize(&decoded, &mut shown, &options)?)
    }
}

impl Drop for Calls {
    fn drop(&mut self) {
        // SAFETY: the handle is alive, and nothing uses it after this.
        unsafe { tj::tj3Destroy(self.handle) };
    }
}

fn check(code: c_int) -> Outcome {
    match code {
        0 => Ok(()),
        _ => Err("libjpeg-turbo failed or warned".into()),
    }
}

/// torchvision's random resized crop: x, y, width, height.
fn crop(width: i32, height: i32, rng: &mut SampleRng) -> [i32; 4] {
    let (whole_w, whole_h) = (f64::from(width), f64::from(height));
    for _ in 0..10 {
        let area = whole_w * whole_h * rng.range(0.08..1.0);
        let ratio = rng.range((3.0f64 / 4.0).ln()..(4.0f64 / 3.0).ln()).exp();
        let (w, h) = ((area * ratio).sqrt().round(), (area / ratio).sqrt().round());
        if (1.0..=whole_w).contains(&w) && (1.0..=whole_h).contains(&h) {
            let (w, h) = (w as i32, h as i32);
            let mut start = |spare: i32| rng.below(spare as u64 + 1) as i32;
            return [start(width - w), start(height - h), w, h];
        }
    }
    [0, 0, width, height]
}
