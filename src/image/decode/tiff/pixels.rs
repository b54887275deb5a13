//! The samples of a TIFF file as RGB, or as labels.

use super::refused;
use super::tags::Tags;
use crate::image::error::Cause;

const BITS: u16 = 258;
const COLOURS: u16 = 262;
const SAMPLES: u16 = 277;
const PALETTE: u16 = 320;
const INKS: u16 = 332;
const EXTRA_SAMPLES: u16 = 338;
const FORMAT: u16 = 339;

/// Alpha that the colours were multiplied by, in the tag of the extra samples.
const PREMULTIPLIED: u64 = 1;

/// The inks in their tag, and where it is missing.
const CMYK: u64 = 1;

/// What the samples of a pixel are.
pub(super) struct Pixels {
    kind: Kind,
    pub(super) bits: u32,
    pub(super) is_float: bool,
    /// Samples of a pixel in the file.
    pub(super) samples: usize,
    /// The sample that the colours were multiplied by.
    alpha: Option<usize>,
}

enum Kind {
    /// Grey of at most 8 bits, or a palette: the colour of each value.
    Table {
        table: Box<[[u8; 3]]>,
        is_palette: bool,
        white_is_zero: bool,
    },
    Grey16 {
        white_is_zero: bool,
    },
    Rgb,
    Cmyk,
}

impl Pixels {
    /// Reads the tags. Names what is not decoded.
    pub(super) fn read(tags: &Tags<'_>) -> Result<Pixels, Cause> {
        let samples = match tags.value(SAMPLES)? {
            None => 1,
            Some(samples @ 0..=65_535) => samples as usize,
            Some(_) => {
                return Err(Cause::Contradiction(
                    "its pixels have more samples than the 65,535 that TIFF allows",
                ));
            }
        };
        let bits = same(tags, BITS, 1, "different numbers of bits")?;
        let format = same(tags, FORMAT, 1, "different kinds of numbers")?;
        let Some(colours) = tags.value(COLOURS)? else {
            return Err(Cause::Contradiction("it does not say what its colours are"));
        };
        let (name, channels) = match colours {
            0 | 1 => ("grey", 1),
            2 => ("RGB", 3),
            3 => ("colours of a palette", 1),
            5 if tags.value(INKS)?.is_none_or(|inks| inks == CMYK) => ("CMYK", 4),
            5 => return Err(refused("in other inks than CMYK".into())),
            4 => return Err(refused("that is a transparency mask".into())),
            6 => return Err(refused("in YCbCr colours".into())),
            8..=10 => return Err(refused("in L*a*b* colours".into())),
            32803 => return Err(refused("of a camera's raw samples".into())),
            32844 | 32845 => return Err(refused("in logarithmic colours".into())),
            other => return Err(refused(format!("in colours of kind {other}"))),
        };
        let numbers = match format {
            1 => "",
            2 => " in signed integers",
            3 => " in floating point",
            _ => " in numbers of another kind",
        };
        let white_is_zero = colours == 0;
        let kind = match (name, format, bits) {
            ("grey", 1, 1 | 2 | 4 | 8) => Kind::Table {
                table: greys(bits as u32, white_is_zero),
                is_palette: false,
                white_is_zero,
            },
            ("colours of a palette", 1, 1 | 2 | 4 | 8) => Kind::Table {
                table: palette(tags, bits as u32)?,
                is_palette: true,
                white_is_zero: false,
            },
            ("grey", 1, 16) => Kind::Grey16 { white_is_zero },
            ("RGB", 1, 8 | 16) | ("RGB", 3, 32) => Kind::Rgb,
            ("CMYK", 1, 8 | 16) => Kind::Cmyk,
            _ => {
                return Err(refused(format!("in {name}{numbers} of {bits} bits")));
            }
        };
        if samples < channels {
            return Err(Cause::Contradiction(
                "its pixels have fewer samples than its colours have channels",
            ));
        }
        // One extra is alpha. More are bands of which grey is one.
        if channels == 1 && samples > 2 {
            return Err(refused(format!("of {samples} channels of {name}")));
        }
        if bits < 8 && samples > 1 {
            return Err(refused(format!(
                "in {name} of {bits} bits beside other channels"
            )));
        }
        let extra = tags.values(EXTRA_SAMPLES)?.unwrap_or_default();
        let alpha = extra.iter().position(|extra| extra == PREMULTIPLIED);
        let alpha = alpha.map(|at| channels + at).filter(|at| *at < samples);
        Ok(Pixels {
            alpha: alpha.filter(|_| !matches!(kind, Kind::Cmyk) && colours != 3),
            kind,
            bits: bits as u32,
            is_float: format == 3,
            samples,
        })
    }

    /// How many of the samples become RGB, counted from the first.
    pub(super) fn used(&self) -> usize {
        let channels = match self.kind {
            Kind::Table { .. } | Kind::Grey16 { .. } => 1,
            Kind::Rgb => 3,
            Kind::Cmyk => 4,
        };
        self.alpha.map_or(channels, |alpha| channels.max(alpha + 1))
    }

    /// In words.
    fn name(&self) -> String {
        let name = match self.kind {
            Kind::Table {
                is_palette: true, ..
            } => "colours of a palette",
            Kind::Table { .. } | Kind::Grey16 { .. } => "grey",
            Kind::Rgb => "RGB",
            Kind::Cmyk => "CMYK",
        };
        let beside = match self.samples > self.used() || self.alpha.is_some() {
            true => " beside other channels",
            false => "",
        };
        format!("{name} of {} bits{beside}", self.bits)
    }

    /// Writes a line as RGB. Its pixels have `samples` samples, whose bytes are in native order.
    pub(super) fn rgb(&self, line: &[u8], samples: usize, out: &mut [u8]) {
        let stride = samples * self.bits as usize / 8;
        if matches!(self.kind, Kind::Rgb) && self.bits == 8 && stride == 3 {
            out.copy_from_slice(&line[..out.len()]);
            return;
        }
        let (out, _) = out.as_chunks_mut::<3>();
        match (&self.kind, self.bits, self.alpha) {
            (Kind::Table { table, .. }, 8, None) => {
                convert(line, stride, out, |pixel| table[usize::from(pixel[0])]);
            }
            // What was multiplied is the value in the file, of which the table may be the reverse.
            (Kind::Table { table, .. }, 8, Some(alpha)) => {
                convert(line, stride, out, |pixel| match pixel[alpha] {
                    0 => [0; 3],
                    alpha => table[usize::from(divide_8(pixel[0], alpha))],
                })
            }
            (Kind::Table { table, .. }, bits, _) => {
                for (at, pixel) in out.iter_mut().enumerate() {
                    *pixel = table[usize::from(few_bits(line, at, bits))];
                }
            }
            (Kind::Grey16 { white_is_zero }, ..) => {
                let flip = if *white_is_zero { u8::MAX } else { 0 };
                convert(line, stride, out, |pixel| {
                    match self.alpha.map(|alpha| wide(pixel, alpha)) {
                        Some(0) => [0; 3],
                        _ => [self.upper(wide(pixel, 0), pixel) ^ flip; 3],
                    }
                });
            }
            (Kind::Rgb, 8, alpha) => convert(line, stride, out, |pixel| {
                let rgb = [pixel[0], pixel[1], pixel[2]];
                match alpha {
                    Some(alpha) => rgb.map(|value| divide_8(value, pixel[alpha])),
                    None => rgb,
                }
            }),
            (Kind::Rgb, 16, _) => convert(line, stride, out, |pixel| {
                [0, 1, 2].map(|channel| self.upper(wide(pixel, channel), pixel))
            }),
            (Kind::Rgb, ..) => convert(line, stride, out, |pixel| {
                let alpha = self.alpha.map_or(1.0, |alpha| float(pixel, alpha));
                [0, 1, 2].map(|channel| match alpha > 0.0 {
                    true => from_unit(float(pixel, channel) / alpha),
                    false => 0,
                })
            }),
            (Kind::Cmyk, 8, _) => convert(line, stride, out, |pixel| {
                let ink = [0, 1, 2, 3].map(|channel| f32::from(pixel[channel]));
                without_ink(ink, 255.0).map(|value| value as u8)
            }),
            (Kind::Cmyk, ..) => convert(line, stride, out, |pixel| {
                let ink = [0, 1, 2, 3].map(|channel| f32::from(wide(pixel, channel)));
                without_ink(ink, 65535.0).map(|value| (value as u16 >> 8) as u8)
            }),
        }
    }

    /// The upper 8 bits, where the colours were multiplied by alpha of the colour itself.
    fn upper(&self, value: u16, pixel: &[u8]) -> u8 {
        let value = match self.alpha.map(|alpha| wide(pixel, alpha)) {
            None => value,
            Some(0) => 0,
            Some(alpha) => {
                let whole = u32::from(value) * 65535 / u32::from(alpha);
                whole.min(65535) as u16
            }
        };
        (value >> 8) as u8
    }

    /// Fails unless the samples are labels.
    pub(super) fn check_labels(&self) -> Result<(), Cause> {
        match self.kind {
            Kind::Table { .. } if self.samples == 1 => Ok(()),
            _ => Err(Cause::NotAMask(self.name())),
        }
    }

    /// Whether the samples are grey of 16 bits, and nothing beside it.
    pub(super) fn is_wide_grey(&self) -> bool {
        matches!(self.kind, Kind::Grey16 { .. }) && self.samples == 1
    }

    /// Writes a line of grey of 16 bits: the values as they are in the file, whichever of them is white, as Pillow, OpenCV and tifffile have them.
    pub(super) fn wide_grey(&self, line: &[u8], out: &mut [u16]) {
        for (at, number) in out.iter_mut().enumerate() {
            *number = wide(line, at);
        }
    }

    /// Writes a line of labels: the values as they are in the file, but that black is 0, as Pillow and OpenCV have them.
    pub(super) fn labels(&self, line: &[u8], out: &mut [u8]) {
        let flip = match self.kind {
            Kind::Table {
                white_is_zero: true,
                ..
            } => u8::MAX >> (8 - self.bits),
            _ => 0,
        };
        for (at, label) in out.iter_mut().enumerate() {
            *label = few_bits(line, at, self.bits) ^ flip;
        }
    }
}

/// The value of a tag that has one for each channel, all of them alike; `default` if the tag is missing.
fn same(tags: &Tags<'_>, tag: u16, default: u64, others: &str) -> Result<u64, Cause> {
    let Some(values) = tags.values(tag)? else {
        return Ok(default);
    };
    let first = values.get(0).unwrap_or(default);
    match values.iter().all(|value| value == first) {
        true => Ok(first),
        false => Err(refused(format!("whose channels have {others}"))),
    }
}

fn greys(bits: u32, white_is_zero: bool) -> Box<[[u8; 3]]> {
    let most = (1_u32 << bits) - 1;
    let grey = |value: u32| if white_is_zero { most - value } else { value };
    (0..=most)
        .map(|value| [(grey(value) * 255 / most) as u8; 3])
        .collect()
}

/// The upper halves of the 16 bits that a palette has for each channel: all red ones first.
fn palette(tags: &Tags<'_>, bits: u32) -> Result<Box<[[u8; 3]]>, Cause> {
    let values = tags.values(PALETTE)?.unwrap_or_default();
    let colours = 1_usize << bits;
    let colour = |at: usize| {
        let [red, green, blue] = [0, 1, 2].map(|channel| values.get(channel * colours + at));
        Some([red?, green?, blue?].map(|value| (value >> 8) as u8))
    };
    let table: Option<Box<[[u8; 3]]>> = (0..colours).map(colour).collect();
    table.ok_or(Cause::Contradiction(
        "its palette has fewer colours than its pixels can name",
    ))
}

/// Converts each pixel. The usual sizes are known when it is compiled, and several times as fast for it.
fn convert(line: &[u8], stride: usize, out: &mut [[u8; 3]], pixel: impl Fn(&[u8]) -> [u8; 3]) {
    match stride {
        1 => convert_sized::<1>(line, out, pixel),
        2 => convert_sized::<2>(line, out, pixel),
        3 => convert_sized::<3>(line, out, pixel),
        4 => convert_sized::<4>(line, out, pixel),
        6 => convert_sized::<6>(line, out, pixel),
        8 => convert_sized::<8>(line, out, pixel),
        _ => {
            for (to, from) in out.iter_mut().zip(line.chunks_exact(stride)) {
                *to = pixel(from);
            }
        }
    }
}

fn convert_sized<const N: usize>(
    line: &[u8],
    out: &mut [[u8; 3]],
    pixel: impl Fn(&[u8]) -> [u8; 3],
) {
    for (to, from) in out.iter_mut().zip(line.as_chunks::<N>().0) {
        *to = pixel(from);
    }
}

/// A value of 1, 2, 4 or 8 bits. The first of a byte is in its upper bits.
fn few_bits(line: &[u8], at: usize, bits: u32) -> u8 {
    let per_byte = 8 / bits as usize;
    let shift = 8 - bits * (1 + (at % per_byte) as u32);
    line[at / per_byte] >> shift & (u8::MAX >> (8 - bits))
}

/// A colour of 8 bits that was multiplied by alpha; black where nothing is left of it. This is Pillow's rounding.
fn divide_8(value: u8, alpha: u8) -> u8 {
    match alpha {
        0 => 0,
        alpha => (u16::from(value) * 255 / u16::from(alpha)).min(255) as u8,
    }
}

fn wide(pixel: &[u8], sample: usize) -> u16 {
    u16::from_ne_bytes([pixel[2 * sample], pixel[2 * sample + 1]])
}

fn float(pixel: &[u8], sample: usize) -> f32 {
    let bytes = [0, 1, 2, 3].map(|at| pixel[4 * sample + at]);
    f32::from_ne_bytes(bytes)
}

fn from_unit(value: f32) -> u8 {
    (value.clamp(0.0, 1.0) * 255.0).round() as u8
}

/// RGB of what the inks leave, without a colour profile.
fn without_ink([cyan, magenta, yellow, black]: [f32; 4], most: f32) -> [f32; 3] {
    let light = 1.0 - black / most;
    [cyan, magenta, yellow].map(|ink| (most - ink) * light)
}
