//! The memory that decoding and resampling need on the way.

use std::cell::RefCell;

use fast_image_resize::Resizer;

/// What a thread keeps for the next picture, of each kind of memory: enough for 22 million pixels.
const KEEP_BYTES: usize = 64 << 20;

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// The memory that a thread reuses from picture to picture.
#[derive(Default)]
pub(super) struct Scratch {
    /// Pixels as the decoder gives them, where they are not RGB.
    pub(super) raw: Buffer,
    /// The whole picture.
    pub(super) rgb: Buffer,
    pub(super) resampler: Resampler,
    /// What a step made that is followed by another, and what that one makes.
    pub(super) made: [Buffer; 2],
    /// A picture that is being moved.
    pub(super) moved: Buffer,
}

impl Scratch {
    /// Lends this thread's scratch memory.
    pub(super) fn with<R>(f: impl FnOnce(&mut Scratch) -> R) -> R {
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

/// What resampling needs.
#[derive(Default)]
pub(super) struct Resampler {
    pub(super) resizer: Resizer,
    /// A picture between two passes.
    pub(super) between: Buffer,
}

impl Resampler {
    fn shrink(&mut self) {
        self.between.shrink();
        if self.resizer.size_of_internal_buffers() > KEEP_BYTES {
            self.resizer.reset_internal_buffers();
        }
    }
}

/// Bytes that are allocated once and used again.
#[derive(Default)]
pub(super) struct Buffer(Vec<u8>);

impl Buffer {
    /// Lends `len` bytes. They are zero, so that nothing of an earlier picture shows where a decoder leaves gaps.
    pub(super) fn zeroed(&mut self, len: usize) -> &mut [u8] {
        if self.0.len() < len {
            self.0 = Vec::new(); // freed first: both together might be too much
            self.0 = vec![0; len];
        } else {
            self.0[..len].fill(0);
        }
        &mut self.0[..len]
    }

    /// What was written into the first `len` bytes, which were lent before.
    pub(super) fn filled(&self, len: usize) -> &[u8] {
        &self.0[..len]
    }

    fn shrink(&mut self) {
        if self.0.len() > KEEP_BYTES {
            self.0 = Vec::new();
        }
    }
}
