//! Group 4 fax, with the tables of codes that the crate `fax` has.
//!
//! Its decoder is not used. A line takes it as long as the square of the line's data, which may be any number, and before 0.2.7 sums of
//! runs overflow. Where a code leads beyond the line, it goes on without a word.

use std::cell::Cell;
use std::convert::Infallible;

use fax::maps::{Mode, black, mode, white};
use fax::{BitReader, ByteReader};

use super::compression::ENDS;
use crate::image::error::Cause;

const DAMAGED: Cause = Cause::DamagedTiff("a code of Group 4 fax makes no sense");

/// No code has more bits.
const LONGEST: u64 = 13;

/// Writes lines of one bit a pixel. Black is 1, whatever the tags say.
pub(super) fn decode(data: &[u8], width: u16, out: &mut [u8]) -> Result<(), Cause> {
    let read = Cell::new(0_u64);
    // The reader is two bytes ahead, so that it needs some behind the data. A code to which they belong ends too late.
    let bytes = data.iter().copied().chain(std::iter::repeat(0));
    let bytes = bytes.inspect(|_| read.set(read.get() + 1));
    let mut reader = ByteReader::new(bytes.map(Ok::<u8, Infallible>)).map_err(|_| DAMAGED)?;
    let bits = 8 * data.len() as u64;
    let (mut before, mut line) = (Vec::new(), Vec::new());
    out.fill(0);
    for row in out.chunks_exact_mut(usize::from(width).div_ceil(8)) {
        let made = next_line(&mut reader, width, &before, &mut line);
        let used = 8 * read.get() - 16 - u64::from(reader.bits_to_byte_boundary());
        match made {
            Ok(()) if used <= bits => {}
            Err(cause) if used + LONGEST <= bits => return Err(cause),
            _ => return Err(ENDS),
        }
        for run in line.chunks(2) {
            blacken(row, run[0], run.get(1).copied().unwrap_or(width));
        }
        std::mem::swap(&mut before, &mut line);
    }
    Ok(())
}

/// Reads where the colour changes in a line, which begins white, from where it does in the line before.
fn next_line(
    reader: &mut impl BitReader,
    width: u16,
    before: &[u16],
    line: &mut Vec<u16>,
) -> Result<(), Cause> {
    line.clear();
    // The next pixel without a colour, which is in front of the first one at first. It never goes back, and so nor does `passed`, the
    // number of changes up to it in the line before.
    let (width, mut at, mut passed) = (i32::from(width), -1, 0);
    while at < width {
        let is_black = line.len() % 2 == 1;
        while before.get(passed).is_some_and(|x| i32::from(*x) <= at) {
            passed += 1;
        }
        // The next change to the other colour.
        let next = passed + usize::from((passed % 2 == 1) != is_black);
        let change = |index: usize| before.get(index).map_or(width, |x| i32::from(*x));
        let mut push = |x: i32| {
            if x < width {
                line.push(x as u16);
            }
        };
        match mode::decode(reader).ok_or(DAMAGED)? {
            Mode::Pass => at = change(next + 1),
            Mode::Vertical(by) => {
                let to = change(next) + i32::from(by);
                if to < at.max(0) || to > width {
                    return Err(DAMAGED);
                }
                push(to);
                at = to;
            }
            Mode::Horizontal => {
                let middle = at.max(0) + run(reader, is_black)?;
                let to = middle + run(reader, !is_black)?;
                if to > width {
                    return Err(DAMAGED);
                }
                push(middle);
                push(to);
                at = to;
            }
            Mode::Extension => return Err(DAMAGED),
            Mode::EOF => return Err(ENDS),
        }
    }
    Ok(())
}

/// The length of a run. Those of more than 63 pixels are sums.
fn run(reader: &mut impl BitReader, is_black: bool) -> Result<i32, Cause> {
    let mut sum = 0;
    while sum <= i32::from(u16::MAX) {
        let length = match is_black {
            true => black::decode(reader),
            false => white::decode(reader),
        };
        let length = length.ok_or(DAMAGED)?;
        sum += i32::from(length);
        if length < 64 {
            return Ok(sum);
        }
    }
    Err(DAMAGED)
}

/// Sets the bits from one pixel up to another.
fn blacken(row: &mut [u8], from: u16, to: u16) {
    let [first, last] = [from, to].map(|x| usize::from(x / 8));
    let (head, tail) = (u8::MAX >> (from % 8), !(u8::MAX >> (to % 8)));
    if first == last {
        row[first] |= head & tail;
        return;
    }
    row[first] |= head;
    row[first + 1..last].fill(u8::MAX);
    if tail > 0 {
        row[last] |= tail;
    }
}
