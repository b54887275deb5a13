//! A picture between its header and its pixels.

use super::decode::Picture;
use super::error::Cause;
use super::geometry::Geometry;
use super::operation::{Interpolation, Size};
use super::render::{Scratch, render, swap};
use crate::tensor::Tensor;

/// A picture whose size is known.
pub(super) enum Opened<'a> {
    Encoded(Picture<'a>),
    Rgb(&'a Tensor<u8>),
}

impl Opened<'_> {
    pub(super) fn size(&self) -> Size {
        match self {
            Opened::Encoded(picture) => picture.size(),
            // `LazyImage::rgb` checked that both fit.
            Opened::Rgb(pixels) => Size {
                height: pixels.shape()[0] as u32,
                width: pixels.shape()[1] as u32,
            },
        }
    }

    /// Writes the picture into `out`, as `geometry` shows it.
    pub(super) fn draw(
        self,
        geometry: &Geometry,
        interpolation: Interpolation,
        out: &mut [u8],
    ) -> Result<(), Cause> {
        let size = self.size();
        Scratch::with(|scratch| {
            let picture = match self {
                Opened::Rgb(pixels) => {
                    let pixels = pixels.as_slice();
                    return render(
                        &mut scratch.resizer,
                        pixels,
                        size,
                        geometry,
                        interpolation,
                        out,
                    );
                }
                Opened::Encoded(picture) => picture,
            };
            if geometry.is_whole(size) {
                out.fill(0); // as for scratch memory: a decoder may leave gaps
                let whole = picture.part(geometry.bounds);
                picture.decode_into(whole, out, &mut scratch.raw)?;
                swap(out, size.width as usize, geometry.flip);
                return Ok(());
            }
            let part = picture.part(geometry.bounds);
            let size = Size {
                width: part.width,
                height: part.height,
            };
            let pixels = scratch
                .rgb
                .zeroed(size.width as usize * size.height as usize * 3);
            picture.decode_into(part, pixels, &mut scratch.raw)?;
            render(
                &mut scratch.resizer,
                pixels,
                size,
                &geometry.within(part),
                interpolation,
                out,
            )
        })
    }
}
