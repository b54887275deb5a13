//! Huffman codes, and the bits of a scan.

/// How many bits are looked up at once. Longer codes are searched.
const LOOKUP: u32 = 10;

/// A Huffman table.
pub(super) struct HuffmanTable {
    /// For each value of the next bits, the code that they begin with (see `entry`). 0: a longer code, or none.
    short: [u32; 1 << LOOKUP],
    /// For each length of a code: the end of the codes of this length, left-aligned in 16 bits; and what to add to a code to get
    /// its symbol's index.
    ends: [u32; 17],
    places: [i32; 17],
    symbols: [u8; 256],
}

impl HuffmanTable {
    /// `None` if the codes overflow.
    pub(super) fn new(counts: &[u8; 16], given: &[u8]) -> Option<Box<HuffmanTable>> {
        let mut table = Box::new(HuffmanTable {
            short: [0; 1 << LOOKUP],
            ends: [0; 17],
            places: [0; 17],
            symbols: [0; 256],
        });
        table.symbols.get_mut(..given.len())?.copy_from_slice(given);
        let (mut code, mut place) = (0u32, 0usize);
        for (length, count) in (1u32..).zip(counts) {
            table.places[length as usize] = place as i32 - code as i32;
            for symbol in given.get(place..place + usize::from(*count))? {
                if length <= LOOKUP {
                    let first = (code << (LOOKUP - length)) as usize;
                    let entry = entry(*symbol, length);
                    let entries = table
                        .short
                        .get_mut(first..first + (1 << (LOOKUP - length)))?;
                    entries.fill(entry);
                }
                code += 1;
            }
            place += usize::from(*count);
            if code > 1 << length {
                return None;
            }
            table.ends[length as usize] = code << (16 - length);
            code <<= 1;
        }
        Some(table)
    }
}

/// Packs a code. From the lowest byte: its length plus that of the number after it, its length, its symbol.
fn entry(symbol: u8, length: u32) -> u32 {
    (length + u32::from(symbol & 15)) | length << 8 | u32::from(symbol) << 16
}

/// The bits of a scan up to the next marker, followed by zeros.
pub(super) struct Bits<'a> {
    rest: &'a [u8],
    /// The next bits, from the highest.
    bits: u64,
    /// How many of them are valid.
    count: u32,
    /// How many bits were padding, after the marker.
    made_up: u32,
}

impl<'a> Bits<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Bits<'a> {
        Bits {
            rest: bytes,
            bits: 0,
            count: 0,
            made_up: 0,
        }
    }

    /// Makes at least 48 bits available.
    #[inline(always)]
    pub(super) fn refill(&mut self) {
        if let Some(next) = self.rest.first_chunk::<8>() {
            let next = u64::from_be_bytes(*next);
            if !has_marker(next) {
                let bytes = (63 - self.count) / 8;
                // Bits beyond `count` are read again by the next refill, which then changes nothing.
                self.bits |= next >> self.count;
                self.count += 8 * bytes;
                self.rest = &self.rest[bytes as usize..];
                return;
            }
        }
        self.refill_slowly();
    }

    #[cold]
    #[inline(never)]
    fn refill_slowly(&mut self) {
        while self.count < 56 {
            let byte = match self.rest {
                [0xFF, 0, rest @ ..] => {
                    self.rest = rest;
                    0xFF
                }
                [byte, rest @ ..] if *byte != 0xFF => {
                    self.rest = rest;
                    *byte
                }
                _ => {
                    self.made_up += 8;
                    0
                }
            };
            self.bits |= u64::from(byte) << (56 - self.count);
            self.count += 8;
        }
    }

    /// Drops bits, at most `self.count`.
    #[inline(always)]
    fn drop(&mut self, count: u32) {
        self.bits <<= count;
        self.count -= count;
    }

    /// The next symbol. At least 32 bits remain available after it. `None` if there is no such code.
    #[inline(always)]
    pub(super) fn symbol(&mut self, table: &HuffmanTable) -> Option<u8> {
        self.refill();
        let entry = table.short[(self.bits >> (64 - LOOKUP)) as usize];
        if entry != 0 {
            self.drop(entry >> 8 & 0xFF);
            return Some((entry >> 16) as u8);
        }
        self.long_symbol(table)
    }

    /// The next symbol; skips the number after it, whose length is the lower half of the symbol. One refill is enough for two
    /// calls.
    #[inline(always)]
    pub(super) fn symbol_and_number(&mut self, table: &HuffmanTable) -> Option<u8> {
        let entry = table.short[(self.bits >> (64 - LOOKUP)) as usize];
        if entry != 0 {
            self.drop(entry & 0xFF);
            return Some((entry >> 16) as u8);
        }
        self.refill();
        let symbol = self.long_symbol(table)?;
        self.drop(u32::from(symbol & 15));
        self.refill();
        Some(symbol)
    }

    #[cold]
    #[inline(never)]
    fn long_symbol(&mut self, table: &HuffmanTable) -> Option<u8> {
        let next = (self.bits >> 48) as u32;
        let length = (LOOKUP + 1..=16).find(|length| next < table.ends[*length as usize])?;
        let place = (next >> (16 - length)) as i32 + table.places[length as usize];
        self.drop(length);
        table.symbols.get(usize::try_from(place).ok()?).copied()
    }

    /// The next bits, at most 16, as a number. Call it after `symbol`, which refills.
    #[inline(always)]
    pub(super) fn number(&mut self, count: u32) -> u32 {
        let number = (self.bits >> 1 >> (63 - count)) as u32;
        self.drop(count);
        number
    }

    /// Skips any number of bits.
    pub(super) fn skip(&mut self, mut count: u32) {
        while count > 0 {
            self.refill();
            let now = count.min(self.count);
            self.bits = self.bits.checked_shl(now).unwrap_or(0);
            self.count -= now;
            count -= now;
        }
    }

    /// Whether more bits were read than the scan has.
    #[inline]
    pub(super) fn ended(&self) -> bool {
        self.made_up > self.count
    }

    /// How many whole bytes of the scan were not read.
    pub(super) fn unread(&self) -> usize {
        let mut rest = self.rest;
        let mut count = (self.count.saturating_sub(self.made_up) / 8) as usize;
        loop {
            rest = match rest {
                [0xFF, 0, rest @ ..] => rest,
                [byte, rest @ ..] if *byte != 0xFF => rest,
                _ => return count,
            };
            count += 1;
        }
    }

    /// What follows the bits that were fetched: at the end of a scan, the marker.
    pub(super) fn behind(&self) -> &'a [u8] {
        self.rest
    }
}

/// Whether one of eight bytes is 0xFF.
#[inline(always)]
fn has_marker(bytes: u64) -> bool {
    const ONES: u64 = u64::MAX / 255;
    (!bytes).wrapping_sub(ONES) & bytes & (0x80 * ONES) != 0
}
