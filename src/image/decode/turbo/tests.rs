use std::ptr;

use proptest::prelude::*;

use super::*;
use crate::image::{ImageTransform, LazyImage};

/// A picture with edges, slopes and noise in all channels.
fn pixels(width: usize, height: usize) -> Vec<u8> {
    let mut noise = 1u32;
    let mut pixels = Vec::with_capacity(width * height * 3);
    for y in 0..height {
        for x in 0..width {
            noise = noise.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let edge = if (x / 13 + y / 7) % 2 == 0 { 90 } else { 0 };
            pixels.push((x * 255 / width) as u8);
            pixels.push((y * 160 / height) as u8 + edge);
            pixels.push((noise >> 26) as u8 + edge);
        }
    }
    pixels
}

/// A JPEG file of such a picture.
fn file(width: usize, height: usize, subsampling: tj::TJSAMP, progressive: bool) -> Vec<u8> {
    compressed(
        &pixels(width, height),
        width,
        height,
        subsampling,
        progressive,
    )
}

fn compressed(
    pixels: &[u8],
    width: usize,
    height: usize,
    subsampling: tj::TJSAMP,
    progressive: bool,
) -> Vec<u8> {
    // SAFETY: the handle is checked, and destroyed once; the pixels have the size passed to the call; the library's
    // buffer is copied and freed.
    unsafe {
        let handle = tj::tj3Init(tj::TJINIT_TJINIT_COMPRESS as c_int);
        assert!(!handle.is_null());
        let set = |parameter: tj::TJPARAM, value| {
            assert_eq!(tj::tj3Set(handle, parameter as c_int, value), 0);
        };
        set(tj::TJPARAM_TJPARAM_QUALITY, 90);
        set(tj::TJPARAM_TJPARAM_SUBSAMP, subsampling);
        set(tj::TJPARAM_TJPARAM_PROGRESSIVE, c_int::from(progressive));
        let (mut bytes, mut size) = (ptr::null_mut(), 0);
        let code = tj::tj3Compress8(
            handle,
            pixels.as_ptr(),
            width as c_int,
            0,
            height as c_int,
            tj::TJPF_TJPF_RGB,
            &mut bytes,
            &mut size,
        );
        assert_eq!(code, 0);
        let file = std::slice::from_raw_parts(bytes, size as usize).to_vec();
        tj::tj3Free(bytes.cast());
        tj::tj3Destroy(handle);
        file
    }
}

/// Reads a file's header.
fn header(file: &[u8]) -> Option<Header> {
    super::header(file, &FrameHeader::read(file)?)
}

fn decoded(file: &[u8], part: Rect<u32>, shrunk: u32) -> Vec<u8> {
    let mut rgb = vec![0; part.width as usize * part.height as usize * 3];
    decode(file, header(file).unwrap(), part, shrunk, &mut rgb).unwrap();
    rgb
}

fn whole(width: u32, height: u32) -> Rect<u32> {
    Rect {
        left: 0,
        top: 0,
        width,
        height,
    }
}

/// Cuts a rectangle out of the pixels of a larger one.
fn cut(rgb: &[u8], from: Rect<u32>, part: Rect<u32>) -> Vec<u8> {
    let rows = part.top - from.top..part.top - from.top + part.height;
    let row = |row: u32| {
        let start = (row * from.width + part.left - from.left) as usize * 3;
        rgb[start..start + part.width as usize * 3].iter().copied()
    };
    rows.flat_map(row).collect()
}

const KINDS: [tj::TJSAMP; 7] = [
    tj::TJSAMP_TJSAMP_444,
    tj::TJSAMP_TJSAMP_422,
    tj::TJSAMP_TJSAMP_420,
    tj::TJSAMP_TJSAMP_GRAY,
    tj::TJSAMP_TJSAMP_440,
    tj::TJSAMP_TJSAMP_411,
    tj::TJSAMP_TJSAMP_441,
];

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, failure_persistence: None, ..ProptestConfig::default() })]

    /// A crop's pixels do not depend on how much of the picture was decoded.
    #[test]
    fn a_box_has_the_pixels_of_the_whole(
        (width, height) in (1..200u32, 1..150u32),
        kind in prop::sample::select(KINDS.to_vec()), progressive: bool, at: [u16; 4],
        shrunk in prop::sample::select(vec![1, 1, 2, 4, 8]),
    ) {
        let file = file(width as usize, height as usize, kind, progressive);
        let header = header(&file).unwrap();
        prop_assert_eq!(header.size, Size { width, height });
        let (width, height) = (width.div_ceil(shrunk), height.div_ceil(shrunk));
        let [left, top, right, bottom] = at.map(u32::from);
        let (left, top) = (left % width, top % height);
        let needed = Rect {
            left,
            top,
            width: 1 + right % (width - left),
            height: 1 + bottom % (height - top),
        };
        let part = region(header, needed, shrunk);
        prop_assert!(part.left + part.width <= width);
        let all = whole(width, height);
        let of_part = cut(&decoded(&file, part, shrunk), part, needed);
        let of_whole = cut(&decoded(&file, all, shrunk), all, needed);
        prop_assert!(of_part == of_whole, "{:?} of {}x{}, decoded {:?}", needed, width, height, part);
    }
}

/// The same for every crop of narrow pictures, and those whose last column of blocks is narrow.
#[test]
fn every_narrow_box_has_the_pixels_of_the_whole() {
    let widths = [1, 2, 3, 4, 5, 6, 15, 16, 17, 18, 20, 21, 33, 36];
    for (kind, width) in KINDS
        .iter()
        .flat_map(|kind| widths.map(|width| (kind, width)))
    {
        let file = file(width as usize, 7, *kind, false);
        let all = whole(width, 7);
        let pixels = decoded(&file, all, 1);
        let boxes = (0..width).flat_map(|left| (1..=width - left).map(move |wide| (left, wide)));
        for (left, wide) in boxes {
            let needed = Rect {
                left,
                top: 2,
                width: wide,
                height: 3,
            };
            let part = region(header(&file).unwrap(), needed, 1);
            let same = cut(&decoded(&file, part, 1), part, needed) == cut(&pixels, all, needed);
            assert!(same, "{needed:?} of {width} columns, kind {kind}");
        }
    }
}

/// A damaged file's pixels are its own, whatever was in the memory before, and however much of it is decoded.
#[test]
fn damage_shows_nothing_of_an_earlier_picture() {
    const SIZE: Size = Size {
        width: 61,
        height: 47,
    };
    let mut seed = 1u32;
    let mut random = |below: usize| {
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (seed >> 8) as usize % below
    };
    let mut damaged = 0;
    for round in 0..4_000 {
        let kind = KINDS[round % KINDS.len()];
        let mut file = file(61, 47, kind, round % 2 == 1);
        for _ in 0..1 + random(6) {
            let at = file.len() / 4 + random(file.len() * 3 / 4);
            file[at] = random(256) as u8;
        }
        if random(4) == 0 {
            file.truncate(file.len() / 2 + random(file.len() / 2));
            file.extend([0xFF, 0xD9]);
        }
        let Some(header) = header(&file).filter(|header| header.size == SIZE) else {
            continue;
        };
        let shrunk = [1, 1, 2, 4, 8][random(5)];
        let part = match random(2) {
            0 => whole(61u32.div_ceil(shrunk), 47u32.div_ceil(shrunk)),
            _ => {
                let [width, height] = [61, 47].map(|side: usize| side.div_ceil(shrunk as usize));
                let (left, top) = (random(width), random(height));
                let needed = [
                    left,
                    top,
                    1 + random(width - left),
                    1 + random(height - top),
                ];
                let [left, top, width, height] = needed.map(|side| side as u32);
                let needed = Rect {
                    left,
                    top,
                    width,
                    height,
                };
                region(header, needed, shrunk)
            }
        };
        let shown = |before: u8| {
            let mut rgb = vec![before; part.width as usize * part.height as usize * 3];
            let decoded = decode(&file, header, part, shrunk, &mut rgb);
            decoded.is_ok().then_some(rgb)
        };
        let (black, bright) = (shown(0), shown(0xAA));
        damaged += usize::from(black.is_some());
        assert!(black == bright, "round {round}");
    }
    assert!(damaged > 1_500, "{damaged}");
}

/// The library reports an error behind a warning as a warning. The picture is refused, and not shown in black.
#[test]
fn an_error_behind_a_warning_is_an_error() {
    let mut file = file(61, 47, tj::TJSAMP_TJSAMP_420, true);
    let marker = |file: &[u8], marker: u8, from: usize| {
        let mut pairs = file[from..].windows(2);
        from + pairs.position(|pair| pair == [0xFF, marker]).unwrap()
    };
    let codes = marker(&file, 0xC4, marker(&file, 0xDA, 0));
    // Bytes that belong to no scan are worth a warning.
    file.splice(codes..codes, [0x12, 0x34]);
    let decoded = |file: &[u8]| {
        let mut rgb = vec![0xAA; 61 * 47 * 3];
        decode(file, header(file).unwrap(), whole(61, 47), 1, &mut rgb)
    };
    decoded(&file).unwrap();
    // There is no such table.
    file[codes + 2 + 4] = 0x7F;
    let error = decoded(&file).unwrap_err();
    assert!(error.to_string().contains("DHT"), "{error}");
    let opened = LazyImage::encoded(file).decode();
    assert!(opened.is_err());
}

/// The default decoder gives the same pixels up to rounding: at most 4 of 255 where chroma is not subsampled, and a
/// mean difference of at most 1 everywhere.
#[test]
fn both_decoders_agree() {
    for kind in KINDS {
        for progressive in [false, true] {
            let (width, height) = (203, 149);
            let file = file(width, height, kind, progressive);
            let ours = decoded(&file, whole(width as u32, height as u32), 1);
            let image = image::load_from_memory(&file).unwrap().into_rgb8();
            let far = ours.iter().zip(image.as_raw()).map(|(a, b)| a.abs_diff(*b));
            let most = far.clone().max().unwrap();
            let mean = far.map(f64::from).sum::<f64>() / ours.len() as f64;
            assert!(mean < 1.0, "kind {kind}: {mean} on average");
            let fine = [tj::TJSAMP_TJSAMP_444, tj::TJSAMP_TJSAMP_GRAY].contains(&kind);
            assert!(!fine || most <= 4, "kind {kind}: {most} at most");
        }
    }
}

/// A lazy picture uses this decoder, and its pixels do not depend on how much is decoded.
#[test]
fn a_crop_is_what_it_would_be_of_the_whole() {
    let file = file(300, 200, tj::TJSAMP_TJSAMP_420, false);
    let rgb = decoded(&file, whole(300, 200), 1);
    let rgb = crate::Tensor::from_vec(rgb, &[200, 300, 3]).unwrap();
    let transform = ImageTransform::train(64);
    for seed in 0..40 {
        let mut rng = crate::SampleRng::for_sample(crate::rng::RngKey {
            seed,
            epoch: 0,
            position: 0,
        });
        let of_file = LazyImage::encoded(file.clone()).transform(&transform, &mut rng.clone());
        let of_pixels = LazyImage::rgb(rgb.view())
            .unwrap()
            .transform(&transform, &mut rng);
        let (of_file, of_pixels) = (of_file.decode().unwrap(), of_pixels.decode().unwrap());
        assert!(of_file.as_slice() == of_pixels.as_slice(), "seed {seed}");
    }
}

/// All channels may be sampled twice in a unit, which is 4:4:4 with units of 16 columns. The library would crop it by 8.
#[test]
fn units_wider_than_their_name_says_are_decoded_as_a_whole() {
    let mut file = file(33, 7, tj::TJSAMP_TJSAMP_444, false);
    let marker = |file: &[u8], marker: u8| {
        let mut pairs = file.windows(2);
        pairs.position(|pair| pair == [0xFF, marker]).unwrap()
    };
    let frame = marker(&file, 0xC0);
    for channel in 0..3 {
        file[frame + 11 + 3 * channel] = 0x21;
    }
    // Three units without any coefficients: two blocks of each channel, by the usual codes.
    let unit = "001010_001010_0000_0000_0000_0000".replace('_', "");
    let bits = format!("{}{}", unit.repeat(3), "1".repeat(4));
    let data = bits.as_bytes().chunks(8);
    let data = data.map(|bits| u8::from_str_radix(str::from_utf8(bits).unwrap(), 2).unwrap());
    let scan = marker(&file, 0xDA);
    file.truncate(scan + 2 + 12);
    file.extend(data.chain([0xFF, 0xD9]));
    for left in 0..33 {
        let needed = Rect {
            left,
            top: 2,
            width: 33 - left,
            height: 3,
        };
        let part = region(header(&file).unwrap(), needed, 1);
        assert_eq!(part, whole(33, 7));
    }
    assert_eq!(decoded(&file, whole(33, 7), 1), [128; 33 * 7 * 3]);
    let plan = ImageTransform::new().random_crop((5, 9));
    for seed in 0..20 {
        let image = LazyImage::encoded(file.clone());
        let image = image.transform(
            &plan,
            &mut crate::SampleRng::for_sample(crate::rng::RngKey {
                seed,
                epoch: 0,
                position: 0,
            }),
        );
        assert_eq!(image.decode().unwrap().as_slice(), [128; 5 * 9 * 3]);
    }
}

/// A crop beside the picture, in its padding, is filled. Nothing of the picture is needed for it.
#[test]
fn a_crop_beside_the_picture_is_filled() {
    let file = file(40, 30, tj::TJSAMP_TJSAMP_420, false);
    let plan = ImageTransform::new()
        .pad(50)
        .random_crop(9)
        .with_fill([1, 2, 3]);
    let mut filled = 0;
    for seed in 0..200 {
        let image = LazyImage::encoded(file.clone());
        let image = image.transform(
            &plan,
            &mut crate::SampleRng::for_sample(crate::rng::RngKey {
                seed,
                epoch: 0,
                position: 0,
            }),
        );
        let pixels = image.decode().unwrap();
        let (pixels, _) = pixels.as_slice().as_chunks::<3>();
        filled += usize::from(pixels.iter().all(|pixel| *pixel == [1, 2, 3]));
    }
    assert!((100..200).contains(&filled), "{filled}");
}

/// If a large photo is shrunk, decoding it at a smaller size gives the same picture, only softer; otherwise exactly the
/// same.
#[test]
fn scaled_decoding_softens_and_moves_nothing() {
    let (width, height) = (803, 597);
    let pixels: Vec<u8> = (0..width * height)
        .flat_map(|at| {
            let wave = |at: usize, length: f32| 128.0 + 100.0 * (at as f32 / length).sin();
            [
                wave(at % width, 31.0) as u8,
                wave(at / width, 47.0) as u8,
                90,
            ]
        })
        .collect();
    let file = compressed(&pixels, width, height, tj::TJSAMP_TJSAMP_420, false);
    let exact = ImageTransform::new();
    for (plan, softer) in [
        (exact.clone().resize(60), true),
        (
            exact
                .clone()
                .random_resized_crop(64)
                .random_horizontal_flip(0.5),
            true,
        ),
        (exact.clone().center_crop(600).resize_exact(301, 300), false),
        (exact.clone().center_crop(600).resize_exact(300, 300), true),
        (exact.random_vertical_flip(1.0), false),
    ] {
        let shown = |plan: &ImageTransform| {
            let image = LazyImage::encoded(file.clone());
            let image = image.transform(
                plan,
                &mut crate::SampleRng::for_sample(crate::rng::RngKey {
                    seed: 3,
                    epoch: 0,
                    position: 0,
                }),
            );
            image.decode().unwrap()
        };
        let (exact, scaled) = (
            shown(&plan),
            shown(&plan.clone().with_scaled_decoding(true)),
        );
        assert_eq!(exact == scaled, !softer, "{plan:?}");
        let far = exact
            .as_slice()
            .iter()
            .zip(scaled.as_slice())
            .map(|(a, b)| a.abs_diff(*b));
        let mean = far.clone().map(f64::from).sum::<f64>() / exact.len() as f64;
        let most = far.max().unwrap();
        assert!(mean < 1.5 && most <= 12, "{plan:?}: {mean}, {most} at most");
    }
}

/// A picture that the library cannot crop is decoded as a whole, even after one that was cropped.
#[test]
fn a_rare_subsampling_is_decoded_as_a_whole() {
    let rare = include_bytes!("../../../../tests/fixtures/pictures/410-37x11.jpg");
    let rare_header = header(rare).unwrap();
    let needed = Rect {
        left: 20,
        top: 3,
        width: 5,
        height: 5,
    };
    assert_eq!(region(rare_header, needed, 1), whole(37, 11));
    let before = decoded(rare, whole(37, 11), 1);
    let cropped = file(100, 50, tj::TJSAMP_TJSAMP_420, false);
    let part = region(header(&cropped).unwrap(), needed, 1);
    assert!(part.width < 100);
    decoded(&cropped, part, 1);
    assert!(decoded(rare, whole(37, 11), 1) == before);
}

#[test]
fn what_it_does_not_decode_is_left_to_the_other() {
    assert!(header(b"no picture").is_none());
    assert!(header(&[0xFF, 0xD8, 0xFF, 0xD9]).is_none());
    let file = file(40, 30, tj::TJSAMP_TJSAMP_420, false);
    assert!(header(&file[..100]).is_none());
    // `open` checks files before they are decoded; the decoder itself must survive any of them.
    for cut in [200, file.len() / 2, file.len() - 10] {
        let mut rgb = vec![0; 40 * 30 * 3];
        let header = header(&file).unwrap();
        let _ = decode(&file[..cut], header, whole(40, 30), 1, &mut rgb);
    }
    assert_eq!(decoded(&file, whole(40, 30), 1).len(), 40 * 30 * 3);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_500, failure_persistence: None, ..ProptestConfig::default() })]

    /// Damaged files give pictures with damage, or errors, whatever size their header claims, and nothing worse.
    #[test]
    fn damage_is_survived(
        kind in prop::sample::select(KINDS.to_vec()), progressive: bool, crops: bool,
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..12),
        cut in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let mut file = file(61, 47, kind, progressive);
        for (at, byte) in damage {
            let at = at.index(file.len());
            file[at] = byte;
        }
        if let Some(cut) = cut {
            file.truncate(cut.index(file.len()));
            file.extend([0xFF, 0xD9]);
        }
        let transform = match crops {
            true => ImageTransform::train(16),
            false => ImageTransform::new(),
        };
        let image = LazyImage::encoded(file).with_max_pixels(1_000_000);
        match image.transform(&transform, &mut crate::SampleRng::for_sample(crate::rng::RngKey { seed: 1, epoch: 0, position: 0 })).decode() {
            Ok(pixels) => prop_assert!(pixels.len() <= 3_000_000),
            Err(error) => prop_assert!(!error.to_string().is_empty()),
        }
    }
}

/// A JPEG file of a picture with edges, slopes and noise.
#[cfg(feature = "nvjpeg")]
pub(in crate::image) fn compressed_as(
    sampling: crate::picture::Sampling,
    width: usize,
    height: usize,
) -> Vec<u8> {
    use crate::picture::Sampling;
    let kind = match sampling {
        Sampling::Grey => tj::TJSAMP_TJSAMP_GRAY,
        Sampling::None => tj::TJSAMP_TJSAMP_444,
        Sampling::Columns => tj::TJSAMP_TJSAMP_422,
        Sampling::Both => tj::TJSAMP_TJSAMP_420,
        Sampling::Rows => tj::TJSAMP_TJSAMP_440,
    };
    file(width, height, kind, false)
}

/// What the library decodes to planes, as a hardware decoder does.
#[cfg(feature = "nvjpeg")]
pub(in crate::image) fn planes(
    bytes: &[u8],
    size: [u32; 2],
    sampling: crate::picture::Sampling,
) -> ([Vec<u8>; 3], [usize; 3]) {
    with(true, |decompressor| {
        let said = decompressor.header(bytes).unwrap();
        assert_eq!([said.size.width, said.size.height], size);
        let mut planes = [const { Vec::new() }; 3];
        let mut strides = [0; 3];
        for (component, plane) in planes.iter_mut().enumerate().take(sampling.planes()) {
            let component = component as c_int;
            let [width, height] = size.map(|side| side as c_int);
            let kind = said.subsampling;
            // SAFETY: these compute numbers.
            let (stride, bytes) = unsafe {
                let stride = tj::tj3YUVPlaneWidth(component, width, kind);
                (
                    stride,
                    tj::tj3YUVPlaneSize(component, width, stride, height, kind),
                )
            };
            strides[component as usize] = stride;
            *plane = vec![0; bytes as usize];
        }
        let mut starts = planes.each_mut().map(|plane| plane.as_mut_ptr());
        let one = tj::tjscalingfactor { num: 1, denom: 1 };
        let all = tj::tjregion {
            x: 0,
            y: 0,
            w: 0,
            h: 0,
        };
        // SAFETY: the handle is alive, and each plane has the size that the library asks for.
        let code = unsafe {
            assert_eq!(tj::tj3SetScalingFactor(decompressor.handle, one), 0);
            assert_eq!(tj::tj3SetCroppingRegion(decompressor.handle, all), 0);
            tj::tj3DecompressToYUVPlanes8(
                decompressor.handle,
                bytes.as_ptr(),
                bytes.len() as tj::size_t,
                starts.as_mut_ptr(),
                strides.as_mut_ptr(),
            )
        };
        assert_eq!(code, 0);
        (planes, strides.map(|stride| stride as usize))
    })
    .unwrap()
}
