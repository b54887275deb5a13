//! A picture between its header and its pixels.

use super::decode::Picture;
use super::error::Cause;
use super::geometry::{Frame, Geometry};
use super::pixels::{Look, Rgb, Scratch, carry_out, render, swap};
use super::size::Size;
use crate::Tensor;

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

    /// Writes the picture into `out`, as `geometry` shows it. With `may_scale`, the decoder may scale the picture down
    /// first if it is resampled anyway.
    pub(super) fn draw(
        self,
        geometry: &Geometry,
        look: Look<3>,
        may_scale: bool,
        out: &mut [u8],
    ) -> Result<(), Cause> {
        Scratch::with(|scratch| {
            carry_out::<Rgb, 3>(geometry, look, scratch, out, |frame, scratch, out| {
                self.show(frame, look, may_scale, scratch, out)
            })
        })
    }

    /// Decodes the part that `frame` shows, and resamples it.
    fn show(
        self,
        frame: &Frame,
        look: Look<3>,
        may_scale: bool,
        scratch: &mut Scratch,
        out: &mut [u8],
    ) -> Result<(), Cause> {
        let size = self.size();
        let resampler = &mut scratch.resampler;
        let picture = match self {
            Opened::Rgb(pixels) => {
                return render::<Rgb, 3>(resampler, pixels.as_slice(), size, frame, look, out);
            }
            Opened::Encoded(picture) => picture,
        };
        if frame.is_whole(size) {
            let whole = picture.part(frame.bounds, 1);
            picture.decode_into(whole, 1, out, &mut scratch.raw)?;
            swap::<3>(out, size.width as usize, frame.flip);
            return Ok(());
        }
        let shrunk = match may_scale {
            true => picture.shrinks(frame.slack()),
            false => 1,
        };
        let frame = frame.of_shrunk(shrunk);
        let part = picture.part(frame.bounds, shrunk);
        let size = Size {
            width: part.width,
            height: part.height,
        };
        let pixels = scratch
            .rgb
            .stale(size.width as usize * size.height as usize * 3);
        picture.decode_into(part, shrunk, pixels, &mut scratch.raw)?;
        render::<Rgb, 3>(resampler, pixels, size, &frame.within(part), look, out)
    }
}
