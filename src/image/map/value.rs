//! The types that the values of a map may have, and how their pixels are moved: as bytes, which are copied and never computed with.

use super::super::error::Cause;
use super::super::geometry::Geometry;
use super::super::pixels::{Labels, Look, PixelKind, Scratch, carry_out, render};
use super::super::plan::Interpolation;
use super::super::size::Size;
use crate::tensor::Element;

/// A type that the values of a [`LazyMap`](super::LazyMap) may have: `u8`, `u16`, `u32`, `i32` or `f32`.
pub trait MapValue: Element + sealed::Sealed {}

pub(super) mod sealed {
    use super::{Cause, Geometry, Size};

    /// (Public only in a private module: what maps need of their values.)
    pub trait Sealed: Sized {
        const NAME: &'static str;

        /// The number of the file, if it fits.
        #[doc(hidden)]
        fn of_number(number: u16) -> Option<Self>;

        /// Appends the value's bytes.
        #[doc(hidden)]
        fn push(self, bytes: &mut Vec<u8>);

        /// Writes values that are there as bytes.
        #[doc(hidden)]
        fn take(bytes: &[u8], out: &mut [Self]);

        /// Runs the steps of a geometry.
        #[doc(hidden)]
        #[allow(private_interfaces)]
        fn draw(
            geometry: &Geometry,
            fill: Self,
            size: Size,
            values: &[u8],
        ) -> Result<Vec<u8>, Cause>;
    }
}

macro_rules! map_values {
    ($($value:ident of $bytes:literal;)*) => {$(
        impl MapValue for $value {}

        #[allow(private_interfaces)]
        impl sealed::Sealed for $value {
            const NAME: &'static str = stringify!($value);

            fn of_number(number: u16) -> Option<$value> {
                exactly!($value, number)
            }

            fn push(self, bytes: &mut Vec<u8>) {
                bytes.extend_from_slice(&self.to_ne_bytes());
            }

            fn take(bytes: &[u8], out: &mut [$value]) {
                let (values, _) = bytes.as_chunks::<$bytes>();
                for (value, to) in values.iter().zip(out) {
                    *to = $value::from_ne_bytes(*value);
                }
            }

            fn draw(geometry: &Geometry, fill: $value, size: Size, values: &[u8]) -> Result<Vec<u8>, Cause> {
                draw::<$bytes>(geometry, fill.to_ne_bytes(), size, values)
            }
        }
    )*};
}

macro_rules! exactly {
    (f32, $number:ident) => {
        Some(f32::from($number))
    };
    ($value:ident, $number:ident) => {
        $value::try_from($number).ok()
    };
}

map_values! {
    u8 of 1;
    u16 of 2;
    u32 of 4;
    i32 of 4;
    f32 of 4;
}

fn draw<const N: usize>(
    geometry: &Geometry,
    fill: [u8; N],
    size: Size,
    values: &[u8],
) -> Result<Vec<u8>, Cause>
where
    Labels: PixelKind<N>,
{
    let look = Look {
        interpolation: Interpolation::Nearest,
        fill,
    };
    let shown = geometry.size();
    let mut out = vec![0; shown.width as usize * shown.height as usize * N];
    Scratch::with(|scratch| {
        carry_out::<Labels, N>(geometry, look, scratch, &mut out, |frame, scratch, out| {
            render::<Labels, N>(&mut scratch.resampler, values, size, frame, look, out)
        })
    })?;
    Ok(out)
}

/// The bytes of values.
pub(super) fn bytes<T: MapValue>(values: &[T]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(size_of_val(values));
    values.iter().for_each(|value| value.push(&mut bytes));
    bytes
}

/// Writes values that are there as bytes.
pub(super) fn put<T: MapValue>(bytes: &[u8], out: &mut [T]) {
    T::take(bytes, out);
}

/// The bytes of the values that the numbers of a file are.
pub(super) fn of_numbers<T: MapValue>(numbers: &[u16]) -> Result<Vec<u8>, Cause> {
    let mut bytes = Vec::with_capacity(numbers.len() * size_of::<T>());
    for number in numbers {
        let value = T::of_number(*number).ok_or(Cause::TooLargeFor {
            number: *number,
            kind: T::NAME,
        })?;
        value.push(&mut bytes);
    }
    Ok(bytes)
}

/// The bytes of the values that the colours of a file, in rows of `width`, stand for.
pub(super) fn of_colours<T: MapValue>(
    colours: &[u8],
    width: usize,
    code: impl Fn([u8; 3]) -> Option<T>,
) -> Result<Vec<u8>, Cause> {
    let (colours, _) = colours.as_chunks::<3>();
    let mut bytes = Vec::with_capacity(colours.len() * size_of::<T>());
    // Most pixels have the colour of the one before.
    let mut last = None;
    for (at, colour) in colours.iter().enumerate() {
        let value = match last {
            Some((before, value)) if before == *colour => value,
            _ => code(*colour).ok_or(Cause::NoCode {
                colour: *colour,
                column: at % width,
                row: at / width,
            })?,
        };
        last = Some((*colour, value));
        value.push(&mut bytes);
    }
    Ok(bytes)
}
