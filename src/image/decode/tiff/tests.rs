//! Every layout that a writer may choose shows the same picture.

use std::io::Write;

use super::*;
use crate::image::decode::DecodeOptions;

/// How a file is laid out.
#[derive(Debug, Clone, Copy)]
struct Layout {
    size: [usize; 2],
    samples: usize,
    /// Bytes of a sample.
    bytes: usize,
    colours: u32,
    part: Option<[usize; 2]>,
    is_planar: bool,
    compression: u32,
    predicts: bool,
    is_little: bool,
}

/// A sample: its upper byte is the picture.
fn sample(x: usize, y: usize, channel: usize) -> u16 {
    let shade = (x * 7 + y * 5 + channel * 60) as u16;
    shade << 8 | (x + y) as u16 & 0xFF
}

impl Layout {
    fn part(&self) -> [usize; 2] {
        self.part.unwrap_or([self.size[0], 7])
    }

    fn number(&self, value: u64, bytes: usize) -> Vec<u8> {
        match self.is_little {
            true => value.to_le_bytes()[..bytes].to_vec(),
            false => value.to_be_bytes()[8 - bytes..].to_vec(),
        }
    }

    /// The bytes of one part, before compression.
    fn samples_of(&self, left: usize, top: usize, rows: usize, channels: &[usize]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for y in top..top + rows {
            let mut left_of = vec![0_u16; channels.len()];
            for x in left..left + self.part()[0] {
                for (at, channel) in channels.iter().enumerate() {
                    // The padding is noise.
                    let value = match x < self.size[0] && y < self.size[1] {
                        true => sample(x, y, *channel),
                        false => 0x5A5A,
                    };
                    let value = if self.bytes == 1 { value >> 8 } else { value };
                    let before = std::mem::replace(&mut left_of[at], value);
                    let value = match self.predicts {
                        true => value.wrapping_sub(before),
                        false => value,
                    };
                    bytes.extend(self.number(value.into(), self.bytes));
                }
            }
        }
        bytes
    }

    fn file(&self) -> Vec<u8> {
        let mut file = match self.is_little {
            true => b"II*\0\0\0\0\0".to_vec(),
            false => b"MM\0*\0\0\0\0".to_vec(),
        };
        let channels: Vec<usize> = (0..self.samples).collect();
        let planes: Vec<&[usize]> = match self.is_planar {
            true => channels.chunks(1).collect(),
            false => vec![&channels],
        };
        let [part_width, part_height] = self.part();
        let (mut offsets, mut lengths) = (Vec::new(), Vec::new());
        for plane in planes {
            for top in (0..self.size[1]).step_by(part_height) {
                for left in (0..self.size[0]).step_by(part_width) {
                    let rows = match self.part {
                        Some(_) => part_height,
                        None => part_height.min(self.size[1] - top),
                    };
                    let part = packed(self.compression, &self.samples_of(left, top, rows, plane));
                    offsets.push(file.len() as u64);
                    lengths.push(part.len() as u64);
                    file.extend(part);
                }
            }
        }
        let one = |tag: u16, value: usize| (tag, vec![value as u64]);
        let mut tags = vec![
            one(WIDTH, self.size[0]),
            one(HEIGHT, self.size[1]),
            (258, vec![8 * self.bytes as u64; self.samples]),
            one(COMPRESSION, self.compression as usize),
            one(262, self.colours as usize),
            one(277, self.samples),
            one(PLANAR, 1 + usize::from(self.is_planar)),
            one(PREDICTOR, 1 + usize::from(self.predicts)),
        ];
        match self.part {
            Some(_) => tags.extend([
                one(TILE_WIDTH, part_width),
                one(TILE_HEIGHT, part_height),
                (TILES, offsets),
                (TILE_BYTES, lengths),
            ]),
            None => tags.extend([
                one(STRIP_HEIGHT, part_height),
                (STRIPS, offsets),
                (STRIP_BYTES, lengths),
            ]),
        }
        let page = file.len() as u64;
        file.splice(4..8, self.number(page, 4));
        let mut behind = file.len() + 2 + 12 * tags.len();
        let (mut entries, mut values) = (self.number(tags.len() as u64, 2), Vec::new());
        for (tag, numbers) in tags {
            entries.extend(self.number(tag.into(), 2));
            entries.extend(self.number(4, 2));
            entries.extend(self.number(numbers.len() as u64, 4));
            let bytes: Vec<u8> = numbers.iter().flat_map(|n| self.number(*n, 4)).collect();
            match bytes.len() {
                4 => entries.extend(bytes),
                len => {
                    entries.extend(self.number(behind as u64, 4));
                    values.extend(bytes);
                    behind += len;
                }
            }
        }
        [file, entries, values].concat()
    }

    fn expected(&self) -> Vec<u8> {
        let channels = if self.samples < 3 { [0; 3] } else { [0, 1, 2] };
        let [width, height] = self.size;
        let pixels = (0..height).flat_map(|y| (0..width).map(move |x| (x, y)));
        let pixels = pixels.flat_map(|(x, y)| channels.map(|at| (sample(x, y, at) >> 8) as u8));
        pixels.collect()
    }
}

fn packed(compression: u32, bytes: &[u8]) -> Vec<u8> {
    match compression {
        5 => weezl::encode::Encoder::with_tiff_size_switch(weezl::BitOrder::Msb, 8)
            .encode(bytes)
            .unwrap(),
        8 => {
            let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), Default::default());
            encoder.write_all(bytes).unwrap();
            encoder.finish().unwrap()
        }
        // Pieces of at most 5, of which some are runs; and a length that says nothing.
        32773 => {
            let pieces = bytes.chunk_by(|a, b| a == b).flat_map(|run| run.chunks(5));
            let pieces = pieces.flat_map(|run| match run.len() {
                1 => vec![0, run[0]],
                len => vec![(1 - len as i16) as u8, run[0]],
            });
            [0x80].into_iter().chain(pieces).collect()
        }
        _ => bytes.to_vec(),
    }
}

fn decode(file: &[u8], max_pixels: u64) -> Result<Vec<u8>, Cause> {
    let decoding = DecodeOptions {
        max_pixels,
        ..DecodeOptions::default()
    };
    let tiff = Tiff::open(file, decoding)?;
    let Size { width, height } = tiff.size();
    let mut rgb = vec![0x55; width as usize * height as usize * 3];
    tiff.decode(&mut rgb, &mut Buffer::default())?;
    Ok(rgb)
}

/// All that a writer may choose, but for the rarest.
fn layouts() -> impl Iterator<Item = Layout> {
    let mut layouts = Vec::new();
    for size in [[16, 17], [35, 18], [3, 5]] {
        for (samples, colours) in [(1, 1), (2, 1), (3, 2), (5, 2)] {
            for part in [None, Some([16, 16]), Some([32, 16])] {
                for choice in 0..64 {
                    let is = |bit: u32| choice >> bit & 1 == 1;
                    let compression = [1, 5, 8, 32773][choice as usize & 3];
                    layouts.push(Layout {
                        size,
                        samples,
                        bytes: 1 + usize::from(is(2)),
                        colours,
                        part,
                        is_planar: is(3) && samples > 1,
                        compression,
                        predicts: is(4) && matches!(compression, 5 | 8),
                        is_little: is(5),
                    });
                }
            }
        }
    }
    layouts.into_iter()
}

#[test]
fn all_layouts_have_the_same_pixels() {
    for layout in layouts() {
        let file = layout.file();
        match decode(&file, 1 << 20) {
            Ok(pixels) => assert!(pixels == layout.expected(), "{layout:?}"),
            Err(error) => panic!("{layout:?}: {error}"),
        }
    }
}

/// However many bytes are missing, it is an error; and so is a part that lies beyond the file.
#[test]
fn a_file_that_is_cut_off_is_an_error() {
    for compression in [1, 5, 8, 32773] {
        let layout = Layout {
            size: [17, 18],
            samples: 3,
            bytes: 1,
            colours: 2,
            part: Some([16, 16]),
            is_planar: true,
            compression,
            predicts: false,
            is_little: true,
        };
        let file = layout.file();
        for len in 0..file.len() {
            assert!(decode(&file[..len], 1 << 20).is_err(), "{layout:?}: {len}");
        }
        let page = u32::from_le_bytes(*file[4..].first_chunk().unwrap()) as usize;
        // Without what lies between the header and the page: the parts' data are too short.
        for missing in [1, 100] {
            let mut short = file.clone();
            short.drain(page - missing..page);
            short[4..8].copy_from_slice(&((page - missing) as u32).to_le_bytes());
            assert!(decode(&short, 1 << 20).is_err(), "{layout:?}: {missing}");
        }
    }
}

#[test]
fn limits_hold_for_tiles_and_for_channels() {
    let layout = Layout {
        size: [3, 5],
        samples: 3,
        bytes: 1,
        colours: 2,
        part: Some([64, 64]),
        is_planar: false,
        compression: 1,
        predicts: false,
        is_little: true,
    };
    assert!(decode(&layout.file(), 64 * 64).is_ok());
    let error = decode(&layout.file(), 64 * 64 - 1).unwrap_err();
    assert!(matches!(error, Cause::PartTooLarge { .. }), "{error}");
    // A tile of 6 channels has more than 4 bytes for each pixel of the limit.
    let many = Layout {
        samples: 6,
        ..layout
    };
    let error = decode(&many.file(), 64 * 64).unwrap_err();
    assert!(matches!(error, Cause::Memory), "{error}");
    assert!(decode(&many.file(), 64 * 96).is_ok());
}

/// Whatever its tags say, a file is a picture or an error, and what is not decoded has a name.
#[test]
fn any_value_of_a_tag_is_a_picture_or_an_error() {
    let layout = Layout {
        size: [17, 18],
        samples: 3,
        bytes: 1,
        colours: 2,
        part: Some([16, 16]),
        is_planar: true,
        compression: 5,
        predicts: true,
        is_little: true,
    };
    let file = layout.file();
    let page = u32::from_le_bytes(*file[4..].first_chunk().unwrap()) as usize;
    let count = usize::from(file[page]);
    let values = [0, 1, 2, 3, 4, 7, 9, 255, 65_535, 65_536, 1 << 30, u32::MAX];
    for entry in 0..count {
        for part in [0, 4, 8] {
            for value in values {
                let mut changed = file.clone();
                let at = page + 2 + 12 * entry + part;
                changed[at..at + 4].copy_from_slice(&value.to_le_bytes());
                if let Err(error) = decode(&changed, 1 << 16) {
                    let said = error.to_string();
                    assert!(!said.contains("Unknown("), "{said}");
                }
            }
        }
    }
}

/// A file of one page with these tags, of one integer each, behind these data.
fn page(tags: &[(u16, u32)], data: &[u8]) -> Vec<u8> {
    let mut file = b"II*\0".to_vec();
    file.extend((8 + data.len() as u32).to_le_bytes());
    file.extend(data);
    file.extend((tags.len() as u16).to_le_bytes());
    for (tag, value) in tags {
        file.extend(tag.to_le_bytes());
        file.extend([4, 0, 1, 0, 0, 0]);
        file.extend(value.to_le_bytes());
    }
    file.extend([0; 4]);
    file
}

/// A strip of a picture of one bit.
fn fax_page(width: u32, height: u32, data: &[u8]) -> Vec<u8> {
    let tags = [
        (WIDTH, width),
        (HEIGHT, height),
        (258, 1),
        (COMPRESSION, 4),
        (262, 0),
        (STRIPS, 8),
        (STRIP_BYTES, data.len() as u32),
    ];
    page(&tags, data)
}

/// A picture of one bit in Group 4 fax, and its pixels: noise in runs of about this length.
fn fax(width: u16, height: u16, run: u64) -> (Vec<u8>, Vec<u8>) {
    let mut rng = crate::SampleRng::for_sample(crate::rng::RngKey {
        seed: width.into(),
        epoch: height.into(),
        position: run,
    });
    let mut encoder = fax::encoder::Encoder::new(fax::VecWriter::new());
    let (mut line, mut pixels) = (vec![fax::Color::White; width.into()], Vec::new());
    for _ in 0..height {
        let mut color = fax::Color::White;
        for pixel in &mut line {
            if rng.below(run) == 0 {
                color = !color;
            }
            // Much is as it was in the line before.
            if rng.below(3) == 0 {
                *pixel = color;
            }
            let is_black = *pixel == fax::Color::Black;
            pixels.extend([if is_black { 0 } else { 255 }; 3]);
        }
        encoder.encode_line(line.iter().copied(), width).unwrap();
    }
    (encoder.finish().unwrap().finish(), pixels)
}

#[test]
fn fax_is_what_was_encoded() {
    for (width, height) in [
        (1, 9),
        (7, 30),
        (8, 8),
        (40, 30),
        (2561, 3),
        (9000, 3),
        (32_000, 2),
    ] {
        for run in [1, 2, 30, 10_000] {
            let (data, pixels) = fax(width, height, run);
            let file = fax_page(width.into(), height.into(), &data);
            let is_same = decode(&file, 1 << 20).unwrap() == pixels;
            assert!(is_same, "{width} x {height}, runs of {run}");
        }
    }
}

#[test]
fn fax_that_is_cut_off_is_told_from_fax_that_is_damaged() {
    let (data, pixels) = fax(40, 30, 3);
    let decode = |data: &[u8]| decode(&fax_page(40, 30, data), 1 << 20);
    // The mark at the end has three bytes, of which the first may have bits of the last line.
    assert!(decode(&data[..data.len() - 2]).unwrap() == pixels);
    for len in 0..data.len() - 4 {
        let error = decode(&data[..len]).unwrap_err();
        assert!(matches!(error, Cause::Truncated(_)), "{len}: {error}");
    }
    let damaged = [
        0b0000_0010, // an extension
        0b0110_0000, // beyond the last pixel
        0b0011_1011, // a run of 64 white pixels
        0b0010_0000, // no run
    ];
    for first in damaged {
        let error = decode(&[&[first, 0b0001_0000][..], &data].concat()).unwrap_err();
        assert!(matches!(error, Cause::DamagedTiff(_)), "{first:b}: {error}");
    }
}

/// Nothing is added up beyond what a number holds: not the longest runs, and not in the widest picture.
#[test]
fn fax_of_any_bytes_is_a_picture_or_an_error() {
    let mut rng = crate::SampleRng::for_sample(crate::rng::RngKey {
        seed: 3,
        epoch: 0,
        position: 0,
    });
    // Runs of 2560 white pixels, again and again.
    let runs = [0b0010_0000, 0b0001_1111].repeat(64);
    let mut files = vec![runs, vec![0; 64], vec![0xFF; 64]];
    for _ in 0..60 {
        files.push((0..64).map(|_| rng.below(256) as u8).collect());
    }
    for width in [1, 40, 32_767, 32_768, 65_535] {
        for data in &files {
            if let Err(error) = decode(&fax_page(width, 3, data), 1 << 20) {
                let known = matches!(error, Cause::Truncated(_) | Cause::DamagedTiff(_));
                assert!(known, "{width}: {error}");
            }
        }
    }
}

/// A line may have any number of codes, if they lead nowhere. The next one does not go through them again and again: that took minutes.
#[test]
fn fax_takes_no_longer_than_its_data() {
    let codes = |codes: &str, count: usize| codes.repeat(count);
    // Changes two pixels before the end, and then before and behind these, in turn.
    let bits = codes("000010", 200_000) + "1" + &codes("00000101", 100_000);
    let bits: Vec<u8> = bits.bytes().map(|bit| bit - b'0').collect();
    let data: Vec<u8> = bits
        .chunks(8)
        .map(|bits| {
            bits.iter()
                .enumerate()
                .map(|(at, bit)| bit << (7 - at))
                .sum()
        })
        .collect();
    assert!(decode(&fax_page(1000, 3, &data), 1 << 20).is_err());
}

#[test]
fn a_tag_of_another_type_is_a_contradiction() {
    let layout = Layout {
        size: [17, 18],
        samples: 3,
        bytes: 1,
        colours: 2,
        part: None,
        is_planar: false,
        compression: 5,
        predicts: true,
        is_little: true,
    };
    let file = layout.file();
    let page = u32::from_le_bytes(*file[4..].first_chunk().unwrap()) as usize;
    for entry in 0..usize::from(file[page]) {
        let at = page + 2 + 12 * entry;
        let tag = u16::from_le_bytes([file[at], file[at + 1]]);
        // Text, a fraction, and floating point.
        for kind in [2, 5, 11] {
            let mut changed = file.clone();
            changed[at + 2] = kind;
            let error = decode(&changed, 1 << 20).unwrap_err();
            let said = matches!(error, Cause::Contradiction(_));
            assert!(said, "tag {tag} of type {kind}: {error}");
        }
    }
}

/// `SamplesPerPixel` has 16 bits. Where it has more, products would not fit.
#[test]
fn samples_beyond_16_bits_are_a_contradiction() {
    let tags: [(u16, u64); 8] = [
        (WIDTH, 1),
        (HEIGHT, 1),
        (258, 8),
        (262, 2),
        (STRIPS, 16),
        (277, 0),
        (STRIP_BYTES, 8),
        (PLANAR, 1),
    ];
    for samples in [65_536, 1 << 32, 1 << 61, u64::MAX] {
        let mut file = b"II\x2B\0\x08\0\0\0".to_vec();
        file.extend(16_u64.to_le_bytes());
        file.extend((tags.len() as u64).to_le_bytes());
        for (tag, value) in tags {
            let value = if tag == 277 { samples } else { value };
            file.extend(tag.to_le_bytes());
            file.extend(16_u16.to_le_bytes());
            file.extend(1_u64.to_le_bytes());
            file.extend(value.to_le_bytes());
        }
        for max_pixels in [1 << 20, u64::MAX] {
            let error = decode(&file, max_pixels).unwrap_err().to_string();
            assert!(error.contains("more samples than"), "{samples}: {error}");
        }
    }
}
