//! The first frame of a GIF file, as Pillow shows it.
//!
//! Pixels that the frame does not cover have its transparent colour, or else the first colour of its palette. A frame larger than
//! the screen enlarges the screen. Transparent pixels keep their colour, as in other formats.

use super::Cause;
use crate::image::pixels::Buffer;
use crate::image::size::{Rect, Size};

/// A file opened at its first frame.
pub(super) struct Gif<'a> {
    decoder: gif::Decoder<&'a [u8]>,
    size: Size,
    /// The frame's position.
    place: Rect<u32>,
    /// The colours. If there are none, decoding the frame fails.
    palette: Vec<u8>,
    /// The index of the colour around the frame.
    outside: u8,
}

impl<'a> Gif<'a> {
    pub(super) fn open(bytes: &'a [u8]) -> Result<Gif<'a>, Cause> {
        // By default, it gives indices and decodes into our memory.
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
