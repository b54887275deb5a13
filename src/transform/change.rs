//! What is done to the pixels of a picture behind what is shown of it.

use super::colour::Colour;
use super::size::Rect;
use super::warp::Warp;

/// What is done to pixels in place.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Change {
    Colour(Colour),
    Warp(Warp),
    Erase { place: Rect<u32>, value: [u8; 3] },
}

impl Change {
    /// Whether it matters where in the picture a pixel is.
    pub(super) fn has_a_place(&self) -> bool {
        !matches!(self, Change::Colour(_))
    }
}
