//! Operations on colours, bit for bit as in Pillow.

/// One operation on colours.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Colour {
    /// All channels become the luma.
    Grey,
    /// Blends with black.
    Brightness(f32),
    /// Blends with the mean luma.
    Contrast(f32),
    /// Blends with the luma.
    Saturation(f32),
    /// How far the hue turns, in 256ths of the circle: [`Colour::hue`].
    Hue(u8),
    /// Blends with a smoothed picture.
    Sharpness(f32),
    /// How many bits of each channel are kept.
    Posterize(u8),
    /// The value from which channels are inverted.
    Solarize(f32),
    /// Stretches each channel's range of values.
    AutoContrast,
    /// Makes all values of a channel about equally frequent.
    Equalize,
}

impl Colour {
    /// Turns the hue by a share of the circle.
    pub fn hue(share: f64) -> Colour {
        // Rounded towards zero, then modulo 256.
        Colour::Hue((share * 255.0) as i32 as u8)
    }

    /// Applies the operation to RGB pixels in rows of `width`.
    pub fn apply(self, pixels: &mut [u8], width: usize) {
        let (pixels, _) = pixels.as_chunks_mut::<3>();
        match self {
            Colour::Grey => pixels
                .iter_mut()
                .for_each(|pixel| *pixel = [grey(*pixel); 3]),
            Colour::Brightness(factor) => {
                let blended = std::array::from_fn(|value| blend(0, value as u8, factor));
                look_up(pixels, &blended);
            }
            Colour::Contrast(factor) => {
                let sum: u64 = pixels.iter().map(|pixel| u64::from(grey(*pixel))).sum();
                let mean = sum as f64 / pixels.len().max(1) as f64;
                let mean = (mean + 0.5) as u8;
                let blended = std::array::from_fn(|value| blend(mean, value as u8, factor));
                look_up(pixels, &blended);
            }
            Colour::Saturation(factor) => pixels.iter_mut().for_each(|pixel| {
                let grey = grey(*pixel);
                *pixel = pixel.map(|value| blend(grey, value, factor));
            }),
            Colour::Hue(turn) => pixels.iter_mut().for_each(|pixel| {
                let [hue, saturation, value] = to_hsv(*pixel);
                *pixel = to_rgb([hue.wrapping_add(turn), saturation, value]);
            }),
            Colour::Sharpness(factor) => sharpen(pixels, width, factor),
            Colour::Posterize(bits) => {
                let mask = !(0xFF_u16 >> bits.min(8)) as u8;
                look_up(pixels, &std::array::from_fn(|value| value as u8 & mask));
            }
            Colour::Solarize(threshold) => {
                let inverted = |value: u8| match f32::from(value) < threshold {
                    true => value,
                    false => 255 - value,
                };
                look_up(pixels, &std::array::from_fn(|value| inverted(value as u8)));
            }
            Colour::AutoContrast => look_up_each(pixels, stretched),
            Colour::Equalize => look_up_each(pixels, equalized),
        }
    }
}

/// Pillow's `ImageEnhance.Sharpness`: blends away from a smoothed picture, or towards it. The border is not smoothed.
fn sharpen(pixels: &mut [[u8; 3]], width: usize, factor: f32) {
    let height = pixels.len() / width.max(1);
    // The previous and the current row, before the change.
    let mut above = pixels[..width].to_vec();
    let mut here = above.clone();
    for y in 1..height.saturating_sub(1) {
        here.copy_from_slice(&pixels[y * width..][..width]);
        for x in 1..width.saturating_sub(1) {
            let below = &pixels[(y + 1) * width..];
            let smooth = std::array::from_fn(|channel| {
                let sum_of = |row: &[[u8; 3]]| -> u32 {
                    row[x - 1..=x + 1]
                        .iter()
                        .map(|pixel| u32::from(pixel[channel]))
                        .sum()
                };
                let sum = sum_of(&above)
                    + sum_of(&here)
                    + sum_of(below)
                    + 4 * u32::from(here[x][channel]);
                ((2 * sum + 13) / 26) as u8 // sum / 13, rounded
            });
            let smooth: [u8; 3] = smooth;
            let sharp = here[x];
            pixels[y * width + x] =
                std::array::from_fn(|channel| blend(smooth[channel], sharp[channel], factor));
        }
        std::mem::swap(&mut above, &mut here);
    }
}

/// Pillow's `ImageOps.autocontrast` for a channel: stretches its range of values to 0 to 255.
fn stretched(counts: &[u32; 256]) -> [u8; 256] {
    let used = |value: &usize| counts[*value] > 0;
    let (least, most) = ((0..256).find(used), (0..256).rfind(used));
    let (least, most) = (least.unwrap_or(0), most.unwrap_or(0));
    if most <= least {
        return identity();
    }
    let scale = 255.0 / (most - least) as f64;
    let offset = -(least as f64) * scale;
    // (`as` saturates.)
    std::array::from_fn(|value| (value as f64 * scale + offset) as u8)
}

/// Pillow's `ImageOps.equalize` for a channel: makes all values about equally frequent.
fn equalized(counts: &[u32; 256]) -> [u8; 256] {
    let used = counts.iter().filter(|count| **count > 0).count();
    let last = counts.iter().rev().find(|count| **count > 0);
    let step = (counts.iter().sum::<u32>() - last.copied().unwrap_or(0)) / 255;
    if used <= 1 || step == 0 {
        return identity();
    }
    let mut sum = step / 2;
    counts.map(|count| {
        let value = (sum / step).min(255) as u8;
        sum += count;
        value
    })
}

fn identity() -> [u8; 256] {
    std::array::from_fn(|value| value as u8)
}

/// Maps each channel by a table that is made from the channel's histogram.
fn look_up_each(pixels: &mut [[u8; 3]], table_of: impl Fn(&[u32; 256]) -> [u8; 256]) {
    let mut counts = [[0; 256]; 3];
    for pixel in &*pixels {
        for (counts, value) in counts.iter_mut().zip(pixel) {
            counts[usize::from(*value)] += 1;
        }
    }
    let tables = counts.each_ref().map(table_of);
    for pixel in pixels {
        *pixel = std::array::from_fn(|channel| tables[channel][usize::from(pixel[channel])]);
    }
}

fn look_up(pixels: &mut [[u8; 3]], table: &[u8; 256]) {
    for pixel in pixels {
        *pixel = pixel.map(|value| table[usize::from(value)]);
    }
}

/// The luma of ITU-R BT.601, in integers as Pillow computes it.
fn grey([red, green, blue]: [u8; 3]) -> u8 {
    ((u32::from(red) * 19_595 + u32::from(green) * 38_470 + u32::from(blue) * 7_471 + 0x8000) >> 16)
        as u8
}

/// Interpolates between two values, or extrapolates beyond the second: Pillow's `Image.blend`, which truncates.
fn blend(from: u8, to: u8, factor: f32) -> u8 {
    let (from, to) = (f32::from(from), f32::from(to));
    (from + factor * (to - from)) as u8
}

/// Pillow's conversion from RGB to HSV, 8 bits each.
fn to_hsv([red, green, blue]: [u8; 3]) -> [u8; 3] {
    let (most, least) = (red.max(green).max(blue), red.min(green).min(blue));
    if most == least {
        return [0, 0, most];
    }
    let range = f32::from(most - least);
    let saturation = range / f32::from(most);
    let [rc, gc, bc] = [red, green, blue].map(|value| f32::from(most - value) / range);
    let hue = if red == most {
        bc - gc
    } else if green == most {
        (2.0 + f64::from(rc) - f64::from(bc)) as f32
    } else {
        (4.0 + f64::from(gc) - f64::from(rc)) as f32
    };
    let hue = ((f64::from(hue) / 6.0 + 1.0) % 1.0) as f32;
    let byte = |share: f32| (f64::from(share) * 255.0) as u8;
    [byte(hue), byte(saturation), most]
}

/// Pillow's conversion from HSV to RGB.
fn to_rgb([hue, saturation, value]: [u8; 3]) -> [u8; 3] {
    if saturation == 0 {
        return [value; 3];
    }
    let turned = f64::from(hue) * 6.0 / 255.0;
    let sixth = turned.floor();
    let rest = f64::from((turned - sixth) as f32);
    let saturation = f64::from((f64::from(saturation) / 255.0) as f32);
    let part = |share: f64| (f64::from(value) * (1.0 - share)).round() as u8;
    let low = part(saturation);
    let falling = part(saturation * rest);
    let rising = part(saturation * (1.0 - rest));
    match sixth as u8 % 6 {
        0 => [value, rising, low],
        1 => [falling, value, low],
        2 => [low, value, rising],
        3 => [low, falling, value],
        4 => [rising, low, value],
        _ => [value, low, falling],
    }
}
