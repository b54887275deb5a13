//! What a hardware decoder takes of a JPEG file, and the file without the rest.
//!
//! Such a decoder is given the simplest files only, in one form: no application data, no comments, no tables that are not needed, and
//! nothing behind the end. So it meets nothing that its own parser may stumble over, and a file that is accepted here decodes to the
//! same pixels as before. Everything else is the CPU's, for a reason that can be counted.

use std::fmt;
use std::ops::Range;

use image::metadata::Orientation;

use super::{next_marker, orientation, stands_alone};
use crate::picture::Sampling;

/// Why the CPU decodes a picture.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[repr(u8)]
pub enum OnCpu {
    /// It is no JPEG file.
    NotJpeg,
    /// Its header is damaged, or says what no encoder says.
    Header,
    /// The file ends before the picture does, or has what does not belong into its data.
    Data,
    /// Its scans are progressive.
    Progressive,
    /// It has arithmetic coding.
    Arithmetic,
    /// It is lossless, hierarchical, or JPEG-LS.
    OtherProcess,
    /// It does not have 8 bits a channel.
    Bits,
    /// It has neither one channel nor three: CMYK, for example.
    Channels,
    /// Its three channels are red, green and blue.
    Rgb,
    /// Its channels are subsampled in a way that the decoder does not know.
    Subsampling,
    /// Its channels lie in several scans.
    Scans,
    /// Its number of lines follows behind the picture.
    Lines,
    /// It uses tables as only extended files may, or lacks one.
    Tables,
    /// It is larger than the decoder's memory, or than `max_pixels`.
    TooLarge,
    /// The decoder does not take pictures as small.
    TooSmall,
    /// Its EXIF orientation turns it.
    Turned,
    /// Its transform resizes it again behind a rotation, an erasure or the like, or shows a part that rounding has moved out of it.
    Transform,
    /// Its transform has a filter that only the CPU has.
    Filter,
    /// It may be scaled down while it is decoded, which is the CPU's.
    Scaled,
    /// Its transform changes it more often than a device does.
    Changes,
}

impl OnCpu {
    /// All of them, in order: `reason as usize` is its place.
    pub const ALL: [OnCpu; 20] = [
        OnCpu::NotJpeg,
        OnCpu::Header,
        OnCpu::Data,
        OnCpu::Progressive,
        OnCpu::Arithmetic,
        OnCpu::OtherProcess,
        OnCpu::Bits,
        OnCpu::Channels,
        OnCpu::Rgb,
        OnCpu::Subsampling,
        OnCpu::Scans,
        OnCpu::Lines,
        OnCpu::Tables,
        OnCpu::TooLarge,
        OnCpu::TooSmall,
        OnCpu::Turned,
        OnCpu::Transform,
        OnCpu::Filter,
        OnCpu::Scaled,
        OnCpu::Changes,
    ];
}

impl OnCpu {
    /// The reason in words.
    pub fn name(self) -> &'static str {
        match self {
            OnCpu::NotJpeg => "not JPEG",
            OnCpu::Header => "JPEG with an odd header",
            OnCpu::Data => "JPEG that is cut off or has odd data",
            OnCpu::Progressive => "progressive JPEG",
            OnCpu::Arithmetic => "JPEG with arithmetic coding",
            OnCpu::OtherProcess => "lossless or hierarchical JPEG",
            OnCpu::Bits => "JPEG that has not 8 bits a channel",
            OnCpu::Channels => "JPEG with neither one channel nor three (CMYK)",
            OnCpu::Rgb => "JPEG in RGB",
            OnCpu::Subsampling => "JPEG with rare subsampling",
            OnCpu::Scans => "JPEG with several scans",
            OnCpu::Lines => "JPEG whose height follows its data",
            OnCpu::Tables => "JPEG with tables of extended files",
            OnCpu::TooLarge => "too large for the decoder",
            OnCpu::TooSmall => "too small for the decoder",
            OnCpu::Turned => "turned by its EXIF orientation",
            OnCpu::Transform => "resized twice, or in a way that only the CPU does",
            OnCpu::Filter => "a filter that only the CPU has",
            OnCpu::Scaled => "scaled while it is decoded",
            OnCpu::Changes => "changed more often than the device does",
        }
    }
}

impl fmt::Display for OnCpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A file that a hardware decoder takes. Its parts are places in the file.
#[derive(Debug, Clone)]
pub(in crate::image) struct Baseline<'a> {
    bytes: &'a [u8],
    pub(in crate::image) size: [u32; 2],
    pub(in crate::image) sampling: Sampling,
    /// As many as there are planes.
    channels: [Channel; 3],
    /// The steps, and the codes for DC and AC, where they are needed.
    steps: [Option<&'a [u8]>; 4],
    codes: [[Option<&'a [u8]>; 2]; 2],
    interval: u16,
    pub(in crate::image) data: Range<usize>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Channel {
    name: u8,
    /// How often it is sampled in a unit, across and down.
    factors: u8,
    /// The numbers of its tables: of quantization, and of codes, for DC and AC.
    steps: u8,
    codes: u8,
}

impl<'a> Baseline<'a> {
    /// Whether a file's EXIF orientation turns it.
    pub(in crate::image) fn is_turned(bytes: &[u8]) -> bool {
        orientation(bytes) != Orientation::NoTransforms
    }

    /// Reads a file.
    pub(in crate::image) fn read(bytes: &'a [u8]) -> Result<Baseline<'a>, OnCpu> {
        let rest = match bytes {
            [0xFF, 0xD8, 0xFF, ..] => &bytes[2..],
            _ => return Err(OnCpu::NotJpeg),
        };
        let mut reader = Reader {
            bytes,
            rest,
            frame: None,
            steps: [None; 4],
            codes: [[None; 2]; 2],
            interval: 0,
            transform: None,
            has_odd_tables: false,
        };
        let scan = reader.header()?;
        reader.picture(scan)
    }

    fn channels(&self) -> &[Channel] {
        &self.channels[..self.sampling.planes()]
    }

    /// What stands before the data, in the file's one form.
    pub(in crate::image) fn header(&self) -> Vec<u8> {
        let mut header = Header(Vec::with_capacity(1 << 10));
        header.put(&[0xFF, 0xD8]);
        for (number, steps) in (0u8..).zip(&self.steps) {
            if let Some(steps) = steps {
                header.segment(0xDB, 1 + steps.len());
                header.put(&[number]);
                header.put(steps);
            }
        }
        let channels = self.channels();
        let count = channels.len() as u8;
        let [width, height] = self.size.map(|side| (side as u16).to_be_bytes());
        header.segment(0xC0, 6 + 3 * channels.len());
        header.put(&[8, height[0], height[1], width[0], width[1], count]);
        for (name, channel) in (1..).zip(channels) {
            header.put(&[name, channel.factors, channel.steps]);
        }
        for (class, tables) in (0u8..).zip(&self.codes) {
            for (number, codes) in (0u8..).zip(tables) {
                if let Some(codes) = codes {
                    header.segment(0xC4, 1 + codes.len());
                    header.put(&[class << 4 | number]);
                    header.put(codes);
                }
            }
        }
        if self.interval > 0 {
            header.segment(0xDD, 2);
            header.put(&self.interval.to_be_bytes());
        }
        header.segment(0xDA, 4 + 2 * channels.len());
        header.put(&[count]);
        for (name, channel) in (1..).zip(channels) {
            header.put(&[name, channel.codes]);
        }
        header.put(&[0, 63, 0]);
        header.0
    }

    /// What stands behind the data.
    pub(in crate::image) const END: [u8; 2] = [0xFF, 0xD9];

    /// The file in its one form.
    pub(in crate::image) fn to_vec(&self) -> Vec<u8> {
        [&self.header(), &self.bytes[self.data.clone()], &Self::END].concat()
    }
}

struct Header(Vec<u8>);

impl Header {
    fn put(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    fn segment(&mut self, marker: u8, content: usize) {
        let [high, low] = (2 + content as u16).to_be_bytes();
        self.put(&[0xFF, marker, high, low]);
    }
}

struct Reader<'a> {
    bytes: &'a [u8],
    rest: &'a [u8],
    frame: Option<Frame>,
    steps: [Option<&'a [u8]>; 4],
    codes: [[Option<&'a [u8]>; 2]; 2],
    interval: u16,
    /// What Adobe's segment says of the colours.
    transform: Option<u8>,
    /// Whether there are tables that only extended files have.
    has_odd_tables: bool,
}

#[derive(Debug, Clone, Copy)]
struct Frame {
    size: [u32; 2],
    count: usize,
    channels: [Channel; 3],
}

impl<'a> Reader<'a> {
    /// Reads up to the scan, and returns the scan's own header.
    fn header(&mut self) -> Result<&'a [u8], OnCpu> {
        loop {
            let (marker, behind) = next_marker(self.rest).ok_or(OnCpu::Data)?;
            if self.rest[0] != 0xFF || stands_alone(marker) && marker != 0xD9 {
                return Err(OnCpu::Header);
            }
            self.rest = behind;
            if marker == 0xD9 {
                return Err(OnCpu::Data);
            }
            let length = self.rest.first_chunk().ok_or(OnCpu::Data)?;
            let length = usize::from(u16::from_be_bytes(*length));
            if length < 2 {
                return Err(OnCpu::Header);
            }
            let content = self.rest.get(2..length).ok_or(OnCpu::Data)?;
            self.rest = &self.rest[length..];
            match marker {
                0xC0 | 0xC1 if self.frame.is_none() => self.frame = Some(frame(content)?),
                0xC2 => return Err(OnCpu::Progressive),
                0xC9 | 0xCA | 0xCC => return Err(OnCpu::Arithmetic),
                0xC4 => self.add_codes(content)?,
                0xDB => self.add_steps(content)?,
                0xDD => {
                    let interval = <[u8; 2]>::try_from(content).map_err(|_| OnCpu::Header)?;
                    self.interval = u16::from_be_bytes(interval);
                }
                0xDA => return Ok(content),
                0xDC => return Err(OnCpu::Lines),
                0xEE => {
                    if let [
                        b'A',
                        b'd',
                        b'o',
                        b'b',
                        b'e',
                        _,
                        _,
                        _,
                        _,
                        _,
                        _,
                        transform,
                        ..,
                    ] = content
                    {
                        self.transform = Some(*transform);
                    }
                }
                0xE0..=0xEF | 0xFE => {}
                0xC0 | 0xC1 => return Err(OnCpu::Header),
                0xC3..=0xCF | 0xF7 => return Err(OnCpu::OtherProcess),
                _ => return Err(OnCpu::Header),
            }
        }
    }

    fn add_codes(&mut self, mut content: &'a [u8]) -> Result<(), OnCpu> {
        while let [place, behind @ ..] = content {
            let counts = behind.first_chunk::<16>().ok_or(OnCpu::Header)?;
            let symbols: usize = counts.iter().copied().map(usize::from).sum();
            let table = behind.get(..16 + symbols).ok_or(OnCpu::Header)?;
            content = &behind[table.len()..];
            let tables = self.codes.get_mut(usize::from(place >> 4));
            let tables = tables.ok_or(OnCpu::Header)?;
            match tables.get_mut(usize::from(place & 15)) {
                Some(kept) => *kept = Some(table),
                None if place & 15 < 4 => self.has_odd_tables = true,
                None => return Err(OnCpu::Header),
            }
        }
        Ok(())
    }

    fn add_steps(&mut self, mut content: &'a [u8]) -> Result<(), OnCpu> {
        while let [place, behind @ ..] = content {
            let table = match place >> 4 {
                0 => behind.get(..64),
                1 => behind.get(..128),
                _ => None,
            };
            let table = table.ok_or(OnCpu::Header)?;
            content = &behind[table.len()..];
            let kept = self.steps.get_mut(usize::from(place & 15));
            *kept.ok_or(OnCpu::Header)? = Some(table);
        }
        Ok(())
    }

    /// Puts together what was read, with the scan that begins here.
    fn picture(mut self, scan: &[u8]) -> Result<Baseline<'a>, OnCpu> {
        let mut frame = self.frame.ok_or(OnCpu::Header)?;
        let names = frame.channels.map(|channel| channel.name);
        let sampling = match (frame.count, frame.channels.map(|channel| channel.factors)) {
            // With a single channel, a unit is one block, whatever the factors are.
            (1, _) => {
                frame.channels[0].factors = 0x11;
                Sampling::Grey
            }
            (_, [0x11, 0x11, 0x11]) => Sampling::None,
            (_, [0x21, 0x11, 0x11]) => Sampling::Columns,
            (_, [0x22, 0x11, 0x11]) => Sampling::Both,
            (_, [0x12, 0x11, 0x11]) => Sampling::Rows,
            _ => return Err(OnCpu::Subsampling),
        };
        if frame.count == 3 {
            // Decoders take these for red, green and blue, or do not agree on what they are.
            let says_other = self.transform.is_some_and(|transform| transform != 1);
            if says_other || names == *b"RGB" {
                return Err(OnCpu::Rgb);
            }
            if names[0] == names[1] || names[1] == names[2] || names[0] == names[2] {
                return Err(OnCpu::Header);
            }
        }
        self.add_scan(scan, &mut frame)?;
        let channels = &frame.channels[..frame.count];
        let is_used = |used: &dyn Fn(&Channel) -> bool| channels.iter().any(used);
        for (number, steps) in (0u8..).zip(&mut self.steps) {
            if !is_used(&|channel| channel.steps == number) {
                *steps = None;
                continue;
            }
            match steps {
                Some(steps) if steps.len() == 64 && !steps.contains(&0) => {}
                _ => return Err(OnCpu::Tables),
            }
        }
        for (class, tables) in (0..).zip(&mut self.codes) {
            for (number, table) in (0u8..).zip(tables) {
                if !is_used(&|channel| [channel.codes >> 4, channel.codes & 15][class] == number) {
                    *table = None;
                    continue;
                }
                match table {
                    Some(table) if makes_sense(table, class) => {}
                    _ => return Err(OnCpu::Tables),
                }
            }
        }
        let data = self.data(frame, sampling)?;
        Ok(Baseline {
            bytes: self.bytes,
            size: frame.size,
            sampling,
            channels: frame.channels,
            steps: self.steps,
            codes: self.codes,
            interval: self.interval,
            data,
        })
    }

    /// Reads the scan's header: it has all channels, in their order.
    fn add_scan(&self, scan: &[u8], frame: &mut Frame) -> Result<(), OnCpu> {
        let (count, behind) = scan.split_first().ok_or(OnCpu::Header)?;
        if usize::from(*count) < frame.count {
            return Err(OnCpu::Scans);
        }
        let (chosen, behind) = behind
            .split_at_checked(2 * frame.count)
            .ok_or(OnCpu::Header)?;
        if usize::from(*count) != frame.count || behind != [0, 63, 0] {
            return Err(OnCpu::Header);
        }
        for (channel, [name, codes]) in frame.channels.iter_mut().zip(chosen.as_chunks::<2>().0) {
            if channel.name != *name {
                return Err(OnCpu::Header);
            }
            if codes >> 4 > 1 || codes & 15 > 1 || channel.steps > 3 {
                return Err(if self.has_odd_tables {
                    OnCpu::Tables
                } else {
                    OnCpu::Header
                });
            }
            channel.codes = *codes;
        }
        Ok(())
    }

    /// Finds the end of the data. In between are restart markers, in their order.
    fn data(&self, frame: Frame, sampling: Sampling) -> Result<Range<usize>, OnCpu> {
        let start = self.bytes.len() - self.rest.len();
        let [across, down] = sampling.halves().map(|half| if half { 16 } else { 8 });
        let units =
            u64::from(frame.size[0].div_ceil(across)) * u64::from(frame.size[1].div_ceil(down));
        let restarts = match self.interval {
            0 => 0,
            interval => (units - 1) / u64::from(interval),
        };
        let mut seen = 0;
        let mut at = 0;
        loop {
            at += next_in_data(&self.rest[at..]).ok_or(OnCpu::Data)?;
            match self.rest.get(at + 1).ok_or(OnCpu::Data)? {
                marker @ 0xD0..=0xD7 if u64::from(marker & 7) == seen % 8 && seen < restarts => {
                    seen += 1;
                }
                // One may also follow the last interval, and bytes may fill up before a marker.
                0xD0..=0xD7 | 0xFF if seen == restarts && self.ends(at) => break,
                0xD9 if seen == restarts => break,
                0xDC => return Err(OnCpu::Lines),
                0xC4 | 0xDA | 0xDB | 0xDD => return Err(OnCpu::Scans),
                _ => return Err(OnCpu::Data),
            }
            at += 2;
        }
        match at {
            0 => Err(OnCpu::Data),
            _ => Ok(start..start + at),
        }
    }

    /// Whether nothing but the end marker follows, behind at most one restart marker.
    fn ends(&self, at: usize) -> bool {
        match next_marker(&self.rest[at..]) {
            Some((0xD0..=0xD7, behind)) if behind.first() == Some(&0xFF) => {
                matches!(next_marker(behind), Some((0xD9, _)))
            }
            Some((marker, _)) => marker == 0xD9,
            None => false,
        }
    }
}

fn frame(content: &[u8]) -> Result<Frame, OnCpu> {
    let [precision, top, bottom, left, right, count, rest @ ..] = content else {
        return Err(OnCpu::Header);
    };
    if *precision != 8 {
        return Err(OnCpu::Bits);
    }
    if !matches!(count, 1 | 3) {
        return Err(OnCpu::Channels);
    }
    if rest.len() != 3 * usize::from(*count) {
        return Err(OnCpu::Header);
    }
    let side = |high: &u8, low: &u8| u32::from(u16::from_be_bytes([*high, *low]));
    let size = [side(left, right), side(top, bottom)];
    match size {
        [_, 0] => return Err(OnCpu::Lines),
        [0, _] => return Err(OnCpu::Header),
        _ => {}
    }
    let mut channels = [Channel::default(); 3];
    for (channel, [name, factors, steps]) in channels.iter_mut().zip(rest.as_chunks::<3>().0) {
        let is_factor = |factor: u8| (1..=4).contains(&factor);
        if !is_factor(factors >> 4) || !is_factor(factors & 15) {
            return Err(OnCpu::Header);
        }
        *channel = Channel {
            name: *name,
            factors: *factors,
            steps: *steps,
            codes: 0,
        };
    }
    Ok(Frame {
        size,
        count: usize::from(*count),
        channels,
    })
}

/// Whether a table of codes is one of baseline files: the codes fit, and each symbol is a possible one. `class` is 0 for DC.
fn makes_sense(table: &[u8], class: usize) -> bool {
    let Some((counts, symbols)) = table.split_first_chunk::<16>() else {
        return false;
    };
    // A DC coefficient's difference has at most 11 bits, and an AC coefficient 10. Without a coefficient, there are the block's end and a
    // run of 16; other runs are progressive files', and decoders do not agree on what they are here.
    let is_possible = |symbol: &u8| match (class, symbol >> 4, symbol & 15) {
        (0, ..) => *symbol <= 11,
        (_, run, 0) => matches!(run, 0 | 15),
        (_, _, bits) => bits <= 10,
    };
    // Each code takes its share of all bits, and that of ones only is left free.
    let lengths = (0u32..).zip(counts);
    let taken: u32 = lengths
        .map(|(shorter, count)| u32::from(*count) << (15 - shorter))
        .sum();
    (1..=256).contains(&symbols.len()) && taken < 1 << 16 && symbols.iter().all(is_possible)
}

/// The place of the next byte 0xFF that is not followed by 0, as it is where it is the data's own.
fn next_in_data(bytes: &[u8]) -> Option<usize> {
    // All but the last block have none, which the compiler finds out for many bytes at once.
    const BLOCK: usize = 64;
    let behind = bytes.get(1..)?;
    let is_there = |(block, behind): &(&[u8; BLOCK], &[u8; BLOCK])| {
        let pairs = block.iter().zip(*behind);
        pairs.fold(false, |seen, (byte, next)| {
            seen | ((*byte == 0xFF) & (*next != 0))
        })
    };
    let blocks = bytes.as_chunks::<BLOCK>().0.iter();
    let blocks = blocks.zip(behind.as_chunks::<BLOCK>().0);
    let without = BLOCK * blocks.take_while(|block| !is_there(block)).count();
    let mut pairs = bytes[without..].windows(2);
    let place = pairs.position(|pair| pair[0] == 0xFF && pair[1] != 0)?;
    Some(without + place)
}
