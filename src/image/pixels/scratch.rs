//! Temporary memory for decoding and resampling, which each thread reuses.

use std::cell::RefCell;

use fast_image_resize::Resizer;

/// How much of each buffer a thread keeps for the next picture: enough for 22 million pixels.
const KEEP_BYTES: usize = 64 << 20;

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// The memory that a thread reuses from picture to picture.
#[derive(Default)]
pub(in crate::image) struct Scratch {
    /// The decoder's pixels, if they are not RGB.
    pub(in crate::image) raw: Buffer,
    /// The decoded part of the picture.
    pub(in crate::image) rgb: Buffer,
    pub(in crate::image) resampler: Resampler,
    /// The results of the previous and the current step, where there are several.
    pub(in crate::image) made: [Buffer; 2],
    /// A copy of the pixels that a warp reads from.
    pub(in crate::image) moved: Buffer,
}

impl Scratch {
    /// Lends this thread's scratch memory.
    pub(in crate::image) fn with<R>(f: impl FnOnce(&mut Scratch) -> R) -> R {
        SCRATCH.with_borrow_mut(|scratch| {
            let result = f(scratch);
            let Scratch {
                raw,
                rgb,
                made: [made, next],
                moved,
                ..
            } = scratch;
            for buffer in [raw, rgb, made, next, moved] {
                buffer.shrink();
            }
            scratch.resampler.shrink();
            result
        })
    }
}

/// The state of the resampler.
#[derive(Default)]
pub(in crate::image) struct Resampler {
    pub(in crate::image) resizer: Resizer,
    /// The picture between two passes.
    pub(in crate::image) between: Buffer,
}

impl Resampler {
    fn shrink(&mut self) {
        self.between.shrink();
        if self.resizer.size_of_internal_buffers() > KEEP_BYTES {
            self.resizer.reset_internal_buffers();
        }
    }
}

/// Bytes that are allocated once and reused.
#[derive(Default)]
pub(in crate::image) struct Buffer(Vec<u8>);

impl Buffer {
    /// Lends `len` bytes. They are zero, so that an earlier picture does not show where a decoder leaves gaps.
    pub(in crate::image) fn zeroed(&mut self, len: usize) -> &mut [u8] {
        let is_new = self.0.len() < len;
        let bytes = self.stale(len);
        if !is_new {
            bytes.fill(0);
        }
        bytes
    }

    /// Lends `len` bytes, which may be an earlier picture's: for callers that write all of them.
    pub(in crate::image) fn stale(&mut self, len: usize) -> &mut [u8] {
        if self.0.len() < len {
            self.0 = Vec::new(); // freed first, so that the two never exist at the same time
            self.0 = vec![0; len];
        }
        &mut self.0[..len]
    }

    /// The first `len` bytes, which were lent and written before.
    pub(in crate::image) fn filled(&self, len: usize) -> &[u8] {
        &self.0[..len]
    }

    fn shrink(&mut self) {
        if self.0.len() > KEEP_BYTES {
            self.0 = Vec::new();
        }
    }
}
