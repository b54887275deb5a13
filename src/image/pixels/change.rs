//! Changes to pixels in place, after a frame has shown them.

use super::warp::Warp;
use crate::image::size::Rect;
use crate::picture::Colour;

/// An operation on pixels, in place.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(in crate::image) enum Change {
    Colour(Colour),
    Warp(Warp),
    Erase { place: Rect<u32>, value: [u8; 3] },
}

impl Change {
    /// Whether the result depends on where a pixel is.
    pub(in crate::image) fn has_a_place(&self) -> bool {
        !matches!(self, Change::Colour(_))
    }
}
