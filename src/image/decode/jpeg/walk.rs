//! Detects damage in JPEG files.
//!
//! The default decoder also decodes damaged files, often to grey, and does not report it. So all codes are read here, without
//! making pixels. Damage shows as a code that is in no table, an impossible coefficient, data that end too soon, or a restart marker
//! that is missing or superfluous. Damage that decodes to a possible picture goes unnoticed, as in libjpeg.

use super::bits::{Bits, HuffmanTable};
use super::blocks::{Band, Part, most_bits};
use crate::image::error::MOST_SCANS;

/// What is wrong with a file.
pub(super) type Damage = &'static str;

/// Reads all scans of a picture, up to the end marker. A file without Huffman codes, or with implied tables, is not checked.
pub(super) fn check(bytes: &[u8]) -> Result<(), Damage> {
    walk(bytes, usize::MAX)
}

/// As [`check`], for the first scan only.
pub(super) fn check_first_scan(bytes: &[u8]) -> Result<(), Damage> {
    walk(bytes, 1)
}

fn walk(bytes: &[u8], most: usize) -> Result<(), Damage> {
    let mut walk = Walk::default();
    let mut scans = 0;
    let mut rest = bytes;
    loop {
        let Some((marker, behind)) = super::next_marker(rest) else {
            return Err("its end marker is missing");
        };
        rest = behind;
        match marker {
            0xD9 => return walk.finish(),
            // A restart marker may also follow the last interval.
            marker if super::stands_alone(marker) => continue,
            _ => {}
        }
        let length = rest.first_chunk().map(|length| u16::from_be_bytes(*length));
        let length = length.map_or(0, usize::from);
        let content = rest.get(2..length).ok_or("a segment is cut off")?;
        rest = &rest[length..];
        match marker {
            0xC4 => walk.add_codes(content)?,
            0xDB => walk.add_steps(content)?,
            0xDD => walk.interval = content.first_chunk().map_or(0, |n| u16::from_be_bytes(*n)),
            0xC0..=0xC2 if walk.channels.is_empty() => walk.begin(marker, content)?,
            0xC0..=0xC3 | 0xC5..=0xCB | 0xCD..=0xCF => return Err("it has two frames"),
            0xDA => {
                if !walk.has_codes {
                    return Ok(()); // frames of Motion JPEG imply them
                }
                // The headers of the others still tell whether all scans are there.
                match scans < most {
                    true => rest = walk.scan(content, rest)?,
                    false => drop(walk.header(content)?),
                }
                scans += 1;
                if scans > MOST_SCANS {
                    return Err("it has too many scans");
                }
                // The decoder stops here, too.
                if !walk.progressive && walk.channels.iter().all(|channel| channel.seen) {
                    return Ok(());
                }
            }
            _ => {}
        }
    }
}

const WRONG_SCAN: Damage = "the header of a scan makes no sense";

#[derive(Default)]
struct Walk {
    progressive: bool,
    channels: Vec<Channel>,
    /// The most blocks that a unit of interleaved channels (MCU) has, across and down; and how many units the picture has.
    largest: (usize, usize),
    units: (usize, usize),
    has_codes: bool,
    dc: [Option<Box<HuffmanTable>>; 4],
    ac: [Option<Box<HuffmanTable>>; 4],
    /// The quantization step of each coefficient, by table.
    steps: [Option<[u16; 64]>; 4],
    interval: u16,
}

struct Channel {
    name: u8,
    across: usize,
    down: usize,
    table: u8,
    /// How many blocks the channel has, and how many a row has with the padding of its last unit.
    blocks: (usize, usize),
    row: usize,
    seen: bool,
    /// In a progressive picture, which coefficients of each block are not zero: one bit each.
    nonzero: Vec<u64>,
    /// How many of the lowest bits of each coefficient are still missing.
    missing: [u8; 64],
}

impl Walk {
    fn add_codes(&mut self, mut content: &[u8]) -> Result<(), Damage> {
        const WRONG: Damage = "a table of Huffman codes makes no sense";
        while let [place, behind @ ..] = content {
            let (counts, behind) = behind.split_first_chunk::<16>().ok_or(WRONG)?;
            let symbols: usize = counts.iter().copied().map(usize::from).sum();
            let symbols = behind.get(..symbols).ok_or(WRONG)?;
            content = &behind[symbols.len()..];
            let tables = match place >> 4 {
                0 => &mut self.dc,
                1 => &mut self.ac,
                _ => return Err(WRONG),
            };
            let table = tables.get_mut(usize::from(place & 15)).ok_or(WRONG)?;
            *table = Some(HuffmanTable::new(counts, symbols).ok_or(WRONG)?);
            self.has_codes = true;
        }
        Ok(())
    }

    fn add_steps(&mut self, mut content: &[u8]) -> Result<(), Damage> {
        const WRONG: Damage = "a table of quantization makes no sense";
        while let [place, behind @ ..] = content {
            let mut steps = [0; 64];
            let wide = place >> 4 != 0;
            let size = if wide { 128 } else { 64 };
            let values = behind.get(..size).ok_or(WRONG)?;
            for (at, step) in steps.iter_mut().enumerate() {
                *step = match wide {
                    true => u16::from_be_bytes([values[2 * at], values[2 * at + 1]]),
                    false => u16::from(values[at]),
                };
            }
            *self.steps.get_mut(usize::from(place & 15)).ok_or(WRONG)? = Some(steps);
            content = &behind[size..];
        }
        Ok(())
    }

    fn begin(&mut self, marker: u8, content: &[u8]) -> Result<(), Damage> {
        const WRONG: Damage = "its frame makes no sense";
        let [_, top, bottom, left, right, count, channels @ ..] = content else {
            return Err(WRONG);
        };
        let height = usize::from(u16::from_be_bytes([*top, *bottom]));
        let width = usize::from(u16::from_be_bytes([*left, *right]));
        let channels = channels.get(..3 * usize::from(*count)).ok_or(WRONG)?;
        let (channels, _) = channels.as_chunks::<3>();
        // With a single channel, a unit is one block, whatever the factors are.
        let factors = |factors: u8| match channels.len() {
            1 => (1, 1),
            _ => (usize::from(factors >> 4), usize::from(factors & 15)),
        };
        let all = || channels.iter().map(|channel| factors(channel[1]));
        if all().any(|(across, down)| !(1..=4).contains(&across) || !(1..=4).contains(&down)) {
            return Err(WRONG);
        }
        let most = |of: fn((usize, usize)) -> usize| all().map(of).max();
        let (Some(across), Some(down)) = (most(|(across, _)| across), most(|(_, down)| down))
        else {
            return Err(WRONG);
        };
        self.progressive = marker == 0xC2;
        self.largest = (across, down);
        self.units = (width.div_ceil(8 * across), height.div_ceil(8 * down));
        for [name, sampling, table] in channels {
            let (h, v) = factors(*sampling);
            let row = self.units.0 * h;
            let padded = row * self.units.1 * v;
            self.channels.push(Channel {
                name: *name,
                across: h,
                down: v,
                table: *table,
                blocks: (
                    (width * h).div_ceil(8 * across),
                    (height * v).div_ceil(8 * down),
                ),
                row,
                seen: false,
                nonzero: vec![0; if self.progressive { padded } else { 0 }],
                missing: [u8::MAX; 64],
            });
        }
        Ok(())
    }

    /// Reads the header of a scan: its band, and its channels with the numbers of their tables.
    fn header(&mut self, content: &[u8]) -> Result<(Band, Vec<(usize, u8)>), Damage> {
        let (count, behind) = content.split_first().ok_or(WRONG_SCAN)?;
        let (chosen, behind) = behind
            .split_at_checked(2 * usize::from(*count))
            .ok_or(WRONG_SCAN)?;
        let band = match (self.progressive, behind) {
            (false, _) => Band {
                first: 0,
                last: 63,
                refines: false,
                low: 0,
            },
            (true, [first, last, bits, ..]) => Band {
                first: usize::from(*first),
                last: usize::from(*last),
                refines: bits >> 4 != 0,
                low: bits & 15,
            },
            (true, _) => return Err(WRONG_SCAN),
        };
        let of_dc = band.first == 0;
        let mixed = of_dc != (band.last == 0) || !of_dc && *count != 1;
        if band.last > 63 || band.first > band.last || band.low > 13 || self.progressive && mixed {
            return Err(WRONG_SCAN);
        }
        let mut channels = Vec::new();
        for [name, tables] in chosen.as_chunks::<2>().0 {
            let at = self
                .channels
                .iter()
                .position(|channel| channel.name == *name);
            let at = at.ok_or(WRONG_SCAN)?;
            if channels.iter().any(|(other, _)| *other == at) {
                return Err(WRONG_SCAN);
            }
            channels.push((at, *tables));
            let channel = &mut self.channels[at];
            channel.seen = true;
            channel.missing[band.first..=band.last].fill(band.low);
        }
        match channels.is_empty() {
            true => Err(WRONG_SCAN),
            false => Ok((band, channels)),
        }
    }

    /// Reads one scan, and returns what follows it.
    fn scan<'a>(&mut self, content: &[u8], data: &'a [u8]) -> Result<&'a [u8], Damage> {
        let (band, chosen) = self.header(content)?;
        // Taken out, so that the tables can be borrowed at the same time.
        let mut channels = std::mem::take(&mut self.channels);
        let needs_dc = band.first == 0 && !band.refines;
        let needs_ac = band.last > 0;
        let mut parts = Vec::new();
        for (channel, tables) in chosen {
            let steps = self.steps.get(usize::from(channels[channel].table));
            let steps = steps.copied().flatten();
            let steps = steps.ok_or("a table of quantization is missing")?;
            let codes = |tables: &'_ [Option<Box<HuffmanTable>>; 4], at: u8| {
                tables.get(usize::from(at)).is_some_and(Option::is_some)
            };
            if needs_dc && !codes(&self.dc, tables >> 4)
                || needs_ac && !codes(&self.ac, tables & 15)
            {
                return Err("a table of Huffman codes is missing");
            }
            let at = |tables: u8| usize::from(tables & 3);
            parts.push(Part {
                channel,
                dc: self.dc[at(tables >> 4)].as_deref().filter(|_| needs_dc),
                ac: self.ac[at(tables & 15)].as_deref().filter(|_| needs_ac),
                predicted: 0,
                step: i32::from(steps[0]) << band.low,
                most: steps.map(|step| most_bits(u32::from(step) << band.low)),
            });
        }
        let rest = match (&mut parts[..], band) {
            (
                parts,
                Band {
                    first: 0,
                    last: 0,
                    refines: true,
                    ..
                },
            ) => {
                // One bit per block.
                self.units(parts, &channels, data, |_, bits, _, _| {
                    bits.skip(1);
                    Some(())
                })
            }
            (
                parts,
                Band {
                    first: 0, last: 0, ..
                },
            ) => self.units(parts, &channels, data, |part, bits, _, _| part.first(bits)),
            (parts, Band { first: 0, .. }) => {
                self.units(parts, &channels, data, |part, bits, _, _| part.block(bits))
            }
            ([part], band) => {
                let mut nonzero = std::mem::take(&mut channels[part.channel].nonzero);
                let rest = self.units(
                    std::slice::from_mut(part),
                    &channels,
                    data,
                    |part, bits, at, run| {
                        let nonzero = nonzero.get_mut(at)?;
                        match band.refines {
                            false => part.band(bits, band, nonzero, run),
                            true => part.refine(bits, band, nonzero, run),
                        }
                    },
                );
                channels[part.channel].nonzero = nonzero;
                rest
            }
            _ => return Err(WRONG_SCAN),
        }?;
        drop(parts);
        self.channels = channels;
        Ok(rest)
    }

    /// Reads a scan's blocks in order. `block` gets the channel's part, the index of the block in its channel, and the number of
    /// following blocks that are empty (the end-of-band run). It returns `None` for damage.
    fn units<'a>(
        &self,
        parts: &mut [Part<'_>],
        channels: &[Channel],
        data: &'a [u8],
        mut block: impl FnMut(&mut Part<'_>, &mut Bits<'a>, usize, &mut u32) -> Option<()>,
    ) -> Result<&'a [u8], Damage> {
        const WRONG: Damage = "its data are no picture";
        const ENDS: Damage = "its data end too soon";
        let interleaved = parts.len() > 1;
        let (across, down) = match parts {
            [part] => channels[part.channel].blocks,
            _ => self.units,
        };
        let mut bits = Bits::new(data);
        let mut run = 0;
        let mut left = usize::from(self.interval);
        let mut restarts = 0u8;
        for y in 0..down {
            for x in 0..across {
                if left == 0 && self.interval > 0 {
                    bits = restart(&bits, &mut restarts)?;
                    left = usize::from(self.interval);
                    run = 0;
                    parts.iter_mut().for_each(|part| part.predicted = 0);
                }
                left = left.wrapping_sub(1);
                if interleaved {
                    for part in parts.iter_mut() {
                        let channel = &channels[part.channel];
                        for _ in 0..channel.across * channel.down {
                            block(part, &mut bits, 0, &mut run).ok_or(WRONG)?;
                        }
                    }
                } else {
                    let at = y * channels[parts[0].channel].row + x;
                    block(&mut parts[0], &mut bits, at, &mut run).ok_or(WRONG)?;
                }
            }
            if bits.ended() {
                return Err(ENDS);
            }
        }
        Ok(bits.behind())
    }

    /// Checks at the end marker that a progressive picture is complete. (For others, the walk ends after the last channel.)
    fn finish(&self) -> Result<(), Damage> {
        // libjpeg smooths a picture whose first coefficients are incomplete.
        const SMOOTHED: usize = 10;
        match self
            .channels
            .iter()
            .all(|channel| channel.missing[..SMOOTHED] == [0; SMOOTHED])
        {
            true if !self.channels.is_empty() => Ok(()),
            _ => Err("a scan is missing"),
        }
    }
}

/// Skips a restart marker, which must be the next in order.
fn restart<'a>(bits: &Bits<'a>, restarts: &mut u8) -> Result<Bits<'a>, Damage> {
    if bits.ended() {
        return Err("its data end too soon");
    }
    if bits.unread() > 0 {
        return Err("an interval between restart markers has too much data");
    }
    match super::next_marker(bits.behind()) {
        Some((marker, behind)) if marker == 0xD0 | *restarts & 7 => {
            *restarts = restarts.wrapping_add(1);
            Ok(Bits::new(behind))
        }
        _ => Err("a restart marker is missing"),
    }
}
