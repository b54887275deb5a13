//! Reads the blocks of a scan, and checks that their coefficients are possible.

use super::bits::{Bits, HuffmanTable};

/// Twice the largest coefficient of a picture with 8 bits, which is 1024 plus half a quantization step.
const LARGEST: u32 = 2048;

/// One channel of a scan.
pub(super) struct Part<'a> {
    pub(super) channel: usize,
    pub(super) dc: Option<&'a HuffmanTable>,
    pub(super) ac: Option<&'a HuffmanTable>,
    pub(super) predicted: i32,
    /// The quantization of the first coefficient.
    pub(super) step: i32,
    /// The most bits that each coefficient may have.
    pub(super) most: [u8; 64],
}

/// Which bits of which coefficients a scan holds.
#[derive(Clone, Copy)]
pub(super) struct Band {
    pub(super) first: usize,
    pub(super) last: usize,
    pub(super) refines: bool,
    pub(super) low: u8,
}

/// The most bits that a coefficient may have after division by `step`.
pub(super) fn most_bits(step: u32) -> u8 {
    // Even the smallest number with this many bits must be in range.
    let largest = LARGEST / step.max(1);
    (u32::BITS - largest.leading_zeros()) as u8
}

impl Part<'_> {
    /// The first coefficient of a block, or its first bits in a progressive picture.
    #[inline(always)]
    pub(super) fn first(&mut self, bits: &mut Bits<'_>) -> Option<()> {
        let size = u32::from(bits.symbol(self.dc?)?);
        if size > 15 {
            return None;
        }
        let number = bits.number(size) as i32;
        let half = 1 << size >> 1;
        self.predicted += match number < half {
            true => number + 1 - (1 << size),
            false => number,
        };
        let value = i64::from(self.predicted) * i64::from(self.step);
        (value.unsigned_abs() <= u64::from(2 * LARGEST)).then_some(())
    }

    /// A whole block.
    #[inline(always)]
    pub(super) fn block(&mut self, bits: &mut Bits<'_>) -> Option<()> {
        self.first(bits)?;
        let table = self.ac?;
        let mut at = 0;
        let mut wrong = false;
        while at < 63 {
            bits.refill();
            for _ in 0..2 {
                let symbol = bits.symbol_and_number(table)?;
                let size = symbol & 15;
                if size == 0 && symbol != 0xF0 {
                    return (at < 64 && !wrong).then_some(());
                }
                at += usize::from(symbol >> 4) + 1;
                wrong |= size > self.most[at & 63];
                if at >= 63 {
                    break;
                }
            }
        }
        (at == 63 && !wrong).then_some(())
    }

    /// The first bits of a block's coefficients in a band.
    #[inline(always)]
    pub(super) fn band(
        &mut self,
        bits: &mut Bits<'_>,
        band: Band,
        nonzero: &mut u64,
        run: &mut u32,
    ) -> Option<()> {
        if *run > 0 {
            *run -= 1;
            return Some(());
        }
        let table = self.ac?;
        let mut at = band.first;
        while at <= band.last {
            let symbol = bits.symbol(table)?;
            let (zeros, size) = (symbol >> 4, symbol & 15);
            if size == 0 && zeros < 15 {
                *run = (1 << zeros) - 1 + bits.number(u32::from(zeros));
                return Some(());
            }
            at += usize::from(zeros) + 1;
            if size > 0 {
                bits.number(u32::from(size));
                let place = at - 1;
                if place > band.last || size > self.most[place] {
                    return None;
                }
                *nonzero |= 1 << place;
            }
        }
        (at == band.last + 1).then_some(())
    }

    /// One more bit of a block's coefficients in a band: of those that are not zero, and of those that become nonzero.
    #[inline(always)]
    pub(super) fn refine(
        &mut self,
        bits: &mut Bits<'_>,
        band: Band,
        nonzero: &mut u64,
        run: &mut u32,
    ) -> Option<()> {
        let table = self.ac?;
        let mut at = band.first;
        let before = *nonzero;
        if *run == 0 {
            while at <= band.last {
                let symbol = bits.symbol(table)?;
                let (mut zeros, size) = (symbol >> 4, symbol & 15);
                match size {
                    0 if zeros < 15 => {
                        *run = (1 << zeros) + bits.number(u32::from(zeros));
                        break;
                    }
                    0 | 1 => {}
                    _ => return None,
                }
                // Its sign.
                bits.number(u32::from(size));
                while at <= band.last {
                    if before >> at & 1 != 0 {
                        bits.skip(1);
                    } else if zeros == 0 {
                        break;
                    } else {
                        zeros -= 1;
                    }
                    at += 1;
                }
                if size == 1 {
                    if at > band.last {
                        return None;
                    }
                    *nonzero |= 1 << at;
                }
                at += 1;
            }
        }
        if *run > 0 {
            if at <= band.last {
                let these = u64::MAX << at & u64::MAX >> (63 - band.last);
                bits.skip((before & these).count_ones());
            }
            *run -= 1;
        }
        Some(())
    }
}
