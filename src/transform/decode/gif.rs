//! The first frame of a GIF file, as Pillow shows it.
//!
//! What the frame leaves uncovered has its transparent colour, or the first one of its palette, and a frame that is larger than
//! the screen enlarges it. Transparent pixels keep their colour, as in other formats.

use super::Cause;
use crate::transform::scratch::Buffer;
use crate::transform::size::{Rect, Size};

/// A file whose first frame was found.
pub(super) struct Gif<'a> {
    decoder: gif::Decoder<&'a [u8]>,
    size: Size,
    /// Where the frame is.
    place: Rect<u32>,
    /// The colours. Without any, its frame is an error of the decoder's.
    palette: Vec<u8>,
    /// The index of what is around the frame.
    outside: u8,
}

impl<'a> Gif<'a> {
    pub(super) fn open(bytes: &'a [u8]) -> Result<Gif<'a>, Cause> {
        // Indices, and no more memory than we give it: that is the default.
        let mut decoder = gif::DecodeOptions::new().read_info(bytes)?;
        let screen = (decoder.width(), decoder.height());
        let global = decoder.global_palette().map(<[u8]>::to_vec);
        let frame = decoder.next_frame_info()?.ok_or(Cause::NoFrame)?;
        let place = Rect {
            left: u32::from(frame.left),
            top: u32::from(frame.top),
            width: u32::from(frame.width),
            height: u32::from(frame.height),
        };
        Ok(Gif {
            size: Size {
                width: u32::from(screen.0).max(place.left + place.width),
                height: u32::from(screen.1).max(place.top + place.height),
            },
            place,
            palette: frame.palette.clone().or(global).unwrap_or_default(),
            outside: frame.transparent.unwrap_or(0),
            decoder,
        })
    }

    pub(super) fn size(&self) -> Size {
        self.size
    }

    pub(super) fn decode(mut self, rgb: &mut [u8], indices: &mut Buffer) -> Result<(), Cause> {
        let (palette, _) = self.palette.as_chunks::<3>();
        let color = |index: u8| palette.get(usize::from(index)).copied().unwrap_or_default();
        let Rect {
            left,
            top,
            width,
            height,
        } = self.place;
        let indices = indices.zeroed(width as usize * height as usize);
        if !indices.is_empty() {
            self.decoder.read_into_buffer(indices)?;
        }
        let (rgb, _) = rgb.as_chunks_mut::<3>();
        rgb.fill(color(self.outside));
        let rows = rgb.chunks_exact_mut(self.size.width as usize);
        let lines = indices.chunks_exact(width.max(1) as usize);
        for (row, line) in rows.skip(top as usize).zip(lines) {
            for (pixel, index) in row.iter_mut().skip(left as usize).zip(line) {
                *pixel = color(*index);
            }
        }
        Ok(())
    }
}
