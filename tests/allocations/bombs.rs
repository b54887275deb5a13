//! Small files that ask for much memory or time, and files that are damaged: each is an error soon and cheaply, or a picture.

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::Ordering;

use pinfeed::SampleRng;
use pinfeed::image::{ImageTransform, LazyImage};
use pinfeed::rng::RngKey;

use super::{LIVE, PEAK, TOTAL, alone};

/// More than any small picture takes: a decoder's tables, and what this test allocates itself.
const LITTLE: usize = 4 << 20;

/// Decodes a file of at most 2^20 pixels: what came of it, and how much memory that took at once, the file aside.
fn decode(bytes: Vec<u8>) -> (Result<(), String>, usize) {
    let image = LazyImage::encoded(bytes)
        .with_max_pixels(1 << 20)
        .with_exif_orientation(true);
    let before = LIVE.load(Ordering::Relaxed);
    PEAK.store(before, Ordering::Relaxed);
    let decoded = image.decode().map(drop).map_err(|error| error.to_string());
    (decoded, PEAK.load(Ordering::Relaxed) - before)
}

fn fixture(name: &str) -> Vec<u8> {
    fs::read(folder().join(name)).unwrap()
}

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/pictures")
}

/// Where a marker of JPEG is.
fn find(bytes: &[u8], marker: [u8; 2]) -> usize {
    bytes.windows(2).position(|pair| pair == marker).unwrap()
}

/// Puts bytes where some stand.
fn put(mut file: Vec<u8>, at: usize, bytes: &[u8]) -> Vec<u8> {
    file[at..at + bytes.len()].copy_from_slice(bytes);
    file
}

/// A chunk of PNG.
fn chunk(kind: &[u8; 4], content: &[u8]) -> Vec<u8> {
    let length = (content.len() as u32).to_be_bytes();
    let named = [&kind[..], content].concat();
    let crc = !named.iter().fold(!0, |crc: u32, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
            (crc >> 1) ^ (0xEDB8_8320 * (crc & 1))
        })
    });
    [&length[..], &named, &crc.to_be_bytes()].concat()
}

/// `len` zeros, compressed: one, and then copies of 258 at a time.
fn deflated_zeros(len: usize) -> Vec<u8> {
    let (mut bytes, mut bits, mut count) = (vec![0x78, 0x9C], 0u64, 0);
    // Fixed codes, whose first bit is the lowest: the last block, a zero, copies, and the end.
    let copies = std::iter::repeat_n((0b00000_10100011, 13), len / 258);
    let codes = [(0b011, 3), (0b00001100, 8)].into_iter().chain(copies);
    for (code, length) in codes.chain([(0, 7)]) {
        bits |= code << count;
        count += length;
        while count >= 8 {
            bytes.push(bits as u8);
            bits >>= 8;
            count -= 8;
        }
    }
    bytes.push(bits as u8);
    bytes
}

/// A PNG file with a chunk more, behind its header.
fn with_chunk(kind: &[u8; 4], content: &[u8]) -> Vec<u8> {
    let file = fixture("rgb.png");
    [&file[..33], &chunk(kind, content), &file[33..]].concat()
}

/// A TIFF file of one page with these tags: number, kind, count and value. Behind them comes `rest`, at `8 + 2 + 12 * tags + 4`.
fn tiff(tags: &[(u16, u16, u32, u32)], rest: &[u8]) -> Vec<u8> {
    let mut file = b"II*\0\x08\0\0\0".to_vec();
    file.extend((tags.len() as u16).to_le_bytes());
    for (number, kind, count, value) in tags {
        file.extend(number.to_le_bytes());
        file.extend(kind.to_le_bytes());
        file.extend(count.to_le_bytes());
        file.extend(value.to_le_bytes());
    }
    file.extend([0; 4]);
    file.extend(rest);
    file
}

/// A grey picture of 8 x 8 pixels, but for some tags.
fn grey_tiff(others: &[(u16, u16, u32, u32)]) -> Vec<u8> {
    let mut tags = vec![
        (256, 4, 1, 8),
        (257, 4, 1, 8),
        (258, 3, 1, 8),
        (259, 3, 1, 1),
        (262, 3, 1, 1),
        (277, 3, 1, 1),
    ];
    tags.extend(others);
    tags.sort_unstable();
    tiff(&tags, &[7; 2000])
}

/// A TIFF file whose parts all name the same bytes. `tags` have one integer each; those in `parts` are for offsets and lengths.
fn same_parts(tags: &[(u16, u32)], parts: [u16; 2], count: usize, data: &[u8]) -> Vec<u8> {
    let mut tags: Vec<_> = tags
        .iter()
        .map(|(tag, value)| (*tag, 4, 1, *value))
        .collect();
    let lists = 8 + 2 + 12 * (tags.len() + 2) + 4;
    let (start, length) = ((lists + 8 * count) as u32, data.len() as u32);
    // A single number stands in its tag.
    let [offsets, lengths] = match count {
        1 => [start, length],
        _ => [lists as u32, (lists + 4 * count) as u32],
    };
    tags.push((parts[0], 4, count as u32, offsets));
    tags.push((parts[1], 4, count as u32, lengths));
    tags.sort_unstable();
    let lists = [start, length].map(|number| number.to_le_bytes().repeat(count));
    tiff(&tags, &[&lists.concat()[..], data].concat())
}

const STRIPS: [u16; 2] = [273, 279];
const TILES: [u16; 2] = [324, 325];

/// A grey picture of this size, in as many strips as it has rows, which all name the same data.
fn same_strips(width: u32, rows: u32, others: &[(u16, u32)], data: &[u8]) -> Vec<u8> {
    let mut tags = vec![(256, width), (257, rows), (258, 8), (262, 1), (278, 1)];
    tags.retain(|(tag, _)| others.iter().all(|(other, _)| other != tag));
    tags.extend(others);
    same_parts(&tags, STRIPS, rows as usize, data)
}

/// A JPEG file whose first scan is there so many times.
fn with_scans(name: &str, count: usize) -> Vec<u8> {
    let file = fixture(name);
    let start = find(&file, [0xFF, 0xDA]);
    let more = file[start + 2..].windows(2);
    let mut ends = more.map(|pair| pair[0] == 0xFF && pair[1] > 0);
    let end = start + 2 + ends.position(|ends| ends).unwrap();
    let (head, scan, tail) = (&file[..start], &file[start..end], &file[end..]);
    [head, &scan.repeat(count), tail].concat()
}

/// A JPEG file with so many bytes of restart markers in its scan.
fn with_restarts(bytes: usize) -> Vec<u8> {
    let file = fixture("444-37x11.jpg");
    let middle = file.len() - 60;
    let restarts: Vec<u8> = (0..bytes as u32 / 2)
        .flat_map(|index| [0xFF, 0xD0 | (index % 8) as u8])
        .collect();
    [&file[..middle], &restarts, &file[middle..]].concat()
}

/// A TIFF file may end within what is nobody's business.
#[test]
fn private_tags_may_be_cut_off() {
    let _alone = alone();
    let mut tags = vec![(273, 4, 1, 200), (279, 4, 1, 64), (50_000, 4, 1 << 28, 8)];
    let (decoded, peak) = decode(grey_tiff(&tags));
    assert_eq!(decoded, Ok(()));
    assert!(peak < LITTLE, "{peak} bytes");
    // The same of a tag that the decoder reads.
    tags[2].0 = 274;
    assert!(decode(grey_tiff(&tags)).0.is_err());
}

#[test]
fn bombs_are_errors_before_they_go_off() {
    let _alone = alone();
    let side = 60_000u16.to_be_bytes();
    let frame = |name: &str| find(&fixture(name), [0xFF, 0xC0]) + 5;
    let lossy = fixture("lossy-alpha.webp");
    let inner = lossy.windows(4).position(|kind| kind == b"VP8 ").unwrap() + 8 + 6;
    let exif = [&b"EXIF"[..], &0xFFFF_FFF0u32.to_le_bytes(), b"MM\0*"].concat();
    let webp = [&lossy[..], &exif].concat();
    let webp = put(
        put(webp.clone(), 4, &(webp.len() as u32 - 8).to_le_bytes()),
        20,
        &[lossy[20] | 8],
    );
    let header = |width: u32, height: u32| {
        let sides = [width.to_be_bytes(), height.to_be_bytes()].concat();
        [
            &fixture("rgb.png")[..8],
            &chunk(b"IHDR", &[&sides[..], &[8, 2, 0, 0, 0]].concat()),
            &fixture("rgb.png")[33..],
        ]
        .concat()
    };
    let jpeg = |height: [u8; 2]| {
        put(
            put(fixture("444-37x11.jpg"), frame("444-37x11.jpg"), &height),
            frame("444-37x11.jpg") + 2,
            &side,
        )
    };
    let bmp = put(
        fixture("rgb.bmp"),
        18,
        &[0x60, 0xEA, 0, 0, 0x60, 0xEA, 0, 0],
    );
    let strip = put(
        fixture("jpeg.tif"),
        frame("jpeg.tif"),
        &[0x3E, 0x80, 0x3E, 0x80],
    );
    let sides = 4_294_967_295u32;
    let pam = format!("P7\nWIDTH {sides}\nHEIGHT {sides}\nDEPTH 1\nMAXVAL 1\nENDHDR\n");
    let strips = [(273, 4, 1 << 28, 8), (279, 4, 1 << 28, 8), (278, 4, 1, 1)];
    let colours = [(273, 4, 1, 200), (279, 4, 1, 64), (320, 3, 1 << 27, 8)];
    let tiles = [
        (322, 4, 1, 1 << 30),
        (323, 4, 1, 16),
        (324, 4, 1, 200),
        (325, 4, 1, 64),
    ];
    let within = put(lossy, inner, &[0xFF, 0x3F, 0xFF, 0x3F]);
    // Behind plain alpha of 3 x 11, in a frame of that size. The picture is larger.
    let unnamed = put(fixture("animated-hidden-lossy.webp"), 0x6E, b"VT8 ");
    let unnamed = put(put(unnamed, 0x4C, &[0]), 0x3A, &[2, 0, 0, 10]);
    let bombs = [
        ("PNG", header(60_000, 60_000), "max_pixels"),
        ("PNG of one row", header(u32::MAX / 4, 1), "max_pixels"),
        ("JPEG", jpeg(side), "max_pixels"),
        ("BMP", bmp, "max_pixels"),
        (
            "GIF",
            put(fixture("palette.gif"), 6, &[0xFF; 4]),
            "max_pixels",
        ),
        ("PNM", b"P6 60000 60000 255\n...".to_vec(), "max_pixels"),
        ("PAM", pam.into_bytes(), "max_pixels"),
        ("strips", grey_tiff(&strips), "contradicts itself"),
        ("colours", grey_tiff(&colours), "contradicts itself"),
        ("tiles", grey_tiff(&tiles), "max_pixels"),
        ("JPEG in TIFF", strip, "16000 x 16000"),
        ("WebP within WebP", within, "contradicts itself"),
        ("chunk of WebP", webp, "truncated"),
        ("picture of another name", unnamed, "contradicts itself"),
        ("progression", with_scans("progressive.jpg", 5_000), "scan"),
        ("scans", with_scans("three-scans.jpg", 5_000), "scan"),
        ("restarts", with_restarts(250_000), "damaged"),
    ];
    let turbo = cfg!(feature = "turbojpeg");
    let bombs = bombs.into_iter();
    // libjpeg passes over restart markers.
    let bombs = bombs.filter(|(name, ..)| !turbo || *name != "restarts");
    for (name, bomb, says) in bombs {
        let (decoded, peak) = decode(bomb);
        let said = decoded.expect_err(name).to_lowercase();
        assert!(said.contains(says), "{name}: `{said}` lacks `{says}`");
        assert!(peak < LITTLE, "{name}: {peak} bytes");
    }
}

/// A part may have as many pixels as the whole picture. All of them together may not, and the same bytes may not be read again
/// and again.
#[test]
fn parts_are_no_bombs_together() {
    let _alone = alone();
    let tiles = |width, height, others: &[(u16, u32)]| {
        let mut tags = vec![
            (256, 1),
            (257, 1000),
            (258, 8),
            (259, 8),
            (322, width),
            (323, height),
        ];
        tags.extend(others);
        same_parts(&tags, TILES, 1000, &deflated_zeros(1 << 22))
    };
    let jpeg = fixture("grey.jpg"); // of 11 rows
    let rows = same_strips(21, 11, &[(259, 7)], &jpeg);
    let many = [&deflated_zeros(258)[..], &[0; 100_000]].concat();
    let bombs = [
        (
            "wide tiles",
            tiles(1 << 20, 1, &[(262, 1)]),
            "max_pixels is 1048576",
        ),
        (
            "many channels",
            tiles(1 << 11, 1, &[(262, 2), (277, 1000)]),
            "memory",
        ),
        ("rows of JPEG", rows, "another size"),
        (
            "the same bytes",
            same_strips(258, 200, &[(259, 8)], &many),
            "the same bytes",
        ),
        (
            "the same bytes backwards",
            same_strips(258, 200, &[(259, 8), (266, 2)], &backwards(&many)),
            "the same bytes",
        ),
    ];
    for (name, bomb, says) in bombs {
        let (decoded, peak) = decode(bomb);
        let said = decoded.expect_err(name);
        assert!(said.contains(says), "{name}: `{said}` lacks `{says}`");
        assert!(peak < LITTLE, "{name}: {peak} bytes");
    }
}

/// Tiles reach beyond small pictures, blank parts may be one and the same, and not all writers cut off the last strip of JPEG.
#[test]
fn parts_that_writers_make_are_no_bombs() {
    let _alone = alone();
    let tile = |width, height, side: u32| {
        let tags = [(256, width), (257, height), (258, 8), (259, 8), (262, 1)];
        let tags = [&tags[..], &[(322, side), (323, side)]].concat();
        let count = width.div_ceil(side) * height.div_ceil(side);
        let blank = deflated_zeros((side * side) as usize + 258);
        same_parts(&tags, TILES, count as usize, &blank)
    };
    let jpeg = fixture("grey.jpg");
    let last = [(259, 7), (278, 11)];
    let no_bombs = [
        ("a pixel", tile(1, 1, 512)),
        ("a column", tile(1, 8000, 512)),
        ("a row", tile(8000, 1, 512)),
        ("a pixel more than a tile", tile(257, 257, 256)),
        ("blank tiles", tile(1024, 1024, 16)),
        (
            "blank strips",
            same_strips(258, 1000, &[(259, 8)], &deflated_zeros(258)),
        ),
        ("a last strip", one_strip(21, 5, &last, &jpeg)),
        (
            "a last strip of any height",
            one_strip(21, 5, &last[..1], &jpeg),
        ),
    ];
    for (name, file) in no_bombs {
        assert_eq!(decode(file).0, Ok(()), "{name}");
    }
}

/// A grey picture in one strip.
fn one_strip(width: u32, height: u32, others: &[(u16, u32)], jpeg: &[u8]) -> Vec<u8> {
    let tags = [(256, width), (257, height), (258, 8), (262, 1)];
    same_parts(&[&tags[..], others].concat(), STRIPS, 1, jpeg)
}

/// Decoding a part takes memory that the next one uses again.
#[test]
fn parts_share_the_memory_that_decoding_takes() {
    let _alone = alone();
    let zeros = deflated_zeros(258 * 64);
    let mut jpeg = Vec::new();
    let flat = vec![99; 1 << 18];
    image::codecs::jpeg::JpegEncoder::new(&mut jpeg)
        .encode(&flat, 2048, 128, image::ExtendedColorType::L8)
        .unwrap();
    let strips = |rows, height, others: &[(u16, u32)], data: &[u8]| {
        let tags = [
            (256, 2048),
            (257, rows * height),
            (258, 8),
            (262, 1),
            (278, height),
        ];
        let mut tags = tags.to_vec();
        tags.retain(|(tag, _)| others.iter().all(|(other, _)| other != tag));
        tags.extend(others);
        same_parts(&tags, STRIPS, rows as usize, data)
    };
    let float = [(259, 8), (258, 32), (262, 2), (277, 3), (317, 3), (339, 3)];
    let files = [
        ("deflate", strips(100, 1, &[(259, 8)], &zeros)),
        (
            "backwards",
            strips(100, 1, &[(259, 8), (266, 2)], &backwards(&zeros)),
        ),
        ("JPEG", strips(3, 128, &[(259, 7)], &jpeg)),
        (
            "floating point",
            strips(100, 1, &float, &deflated_zeros(258 * 100)),
        ),
    ];
    for (name, file) in files {
        // What a thread keeps from picture to picture is not counted.
        assert_eq!(decode(file.clone()).0, Ok(()), "{name}");
        let before = TOTAL.load(Ordering::Relaxed);
        let image = LazyImage::encoded(file).decode().unwrap();
        let total = TOTAL.load(Ordering::Relaxed) - before - image.len();
        assert!(total < 200 << 10, "{name}: {total} bytes");
    }
}

fn backwards(bytes: &[u8]) -> Vec<u8> {
    bytes.iter().map(|byte| byte.reverse_bits()).collect()
}

/// Pixels as they are need no more than their own bytes, whatever a strip claims.
#[test]
fn a_strip_that_claims_the_whole_file_is_not_copied_as_a_whole() {
    let _alone = alone();
    let file = same_strips(8, 100, &[(266, 2)], &vec![7; 2 * LITTLE]);
    let (decoded, peak) = decode(file);
    assert_eq!(decoded, Ok(()));
    assert!(peak < LITTLE, "{peak} bytes");
}

/// Of a profile of 256 MB the decoder keeps 64 MB at most, which it grows to by doubling; and the picture is a picture.
#[test]
fn large_profiles_and_texts_are_left_alone() {
    let _alone = alone();
    let profile = |len| [&b"p\0\0"[..], &deflated_zeros(len)].concat();
    let (decoded, peak) = decode(with_chunk(b"iCCP", &profile(16 << 20)));
    assert_eq!(decoded, Ok(()));
    assert!(peak > 16 << 20, "{peak} bytes: this is no bomb");
    let (decoded, peak) = decode(with_chunk(b"iCCP", &profile(1 << 28)));
    assert_eq!(decoded, Ok(()));
    assert!(peak < 200 << 20, "{peak} bytes");
    // Nobody asks for texts, and so they are not decompressed.
    let (decoded, peak) = decode(with_chunk(b"zTXt", &profile(1 << 26)));
    assert_eq!(decoded, Ok(()));
    assert!(peak < 16 << 20, "{peak} bytes");
}

/// The names of the files that are decoded when nothing is wrong with them.
fn decoded() -> Vec<String> {
    let files = fs::read_dir(folder()).unwrap();
    let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<_> = names
        .filter(|name| decode(fixture(name)).0.is_ok())
        .collect();
    names.sort_unstable(); // what is damaged below is the same everywhere
    names
}

#[test]
fn half_a_file_is_an_error() {
    let _alone = alone();
    let names = decoded();
    assert!(names.len() > 80, "{names:?}");
    // A second page may be missing.
    let second = ["two-pages.tif", "animated.gif"];
    for name in names.iter().filter(|name| !second.contains(&&name[..])) {
        let file = fixture(name);
        let half = file[..file.len() / 2].to_vec();
        assert!(decode(half).0.is_err(), "{name}");
        assert!(decode(file[..10].to_vec()).0.is_err(), "{name}");
    }
}

/// Damaged files of all kinds are pictures with damage or errors, and take little memory.
#[test]
fn damage_is_an_error_or_shows() {
    let _alone = alone();
    let mut rng = SampleRng::for_sample(RngKey {
        seed: 5,
        epoch: 0,
        position: 0,
    });
    let transform = ImageTransform::train(9);
    for name in decoded() {
        let file = fixture(&name);
        for round in 0..100 {
            let mut damaged = file.clone();
            for _ in 0..=rng.below(5) {
                // Headers make up little of a file, and most of what can go wrong.
                let reach = if rng.bool(0.5) {
                    file.len().min(120)
                } else {
                    file.len()
                };
                let at = rng.below(reach as u64) as usize;
                damaged[at] = [0, 0xFF, rng.below(256) as u8][rng.below(3) as usize];
            }
            let (_, peak) = decode(damaged.clone());
            // 2^20 pixels take 3 MB, or twice that upright, or 4 bytes each and a few more as the decoder has them.
            assert!(peak < 64 << 20, "{name}, round {round}: {peak} bytes");
            let _ = LazyImage::encoded(damaged)
                .with_max_pixels(1 << 20)
                .transform(&transform, &mut rng)
                .decode();
        }
    }
}
