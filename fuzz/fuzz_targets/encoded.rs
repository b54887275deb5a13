//! Bytes, whatever they are, are the CPU's, or a file in the one form that a device's decoder is given: in its place, of the length that
//! was promised, and with the same pixels.

#![no_main]

use libfuzzer_sys::fuzz_target;
use pinfeed::image::LazyImage;
use pinfeed::picture::DecoderLimits;

const MAX_PIXELS: u64 = 1 << 20;

const LIMITS: DecoderLimits = DecoderLimits {
    least_side: 1,
    most_side: 16_384,
    picture_bytes: 1 << 21,
};

/// What surrounds the place of the file.
const BESIDE: u8 = 0xC3;

fuzz_target!(|bytes: &[u8]| {
    let image = |bytes: &[u8]| LazyImage::encoded(bytes.to_vec()).max_pixels(MAX_PIXELS);
    let given = image(bytes);
    let Ok(encoded) = given.for_device(LIMITS) else {
        return;
    };
    let length = encoded.bytes();
    let mut cell = vec![BESIDE; length + 16];
    assert_eq!(encoded.write(&mut cell[..length - 1]), None);
    assert!(cell.iter().all(|byte| *byte == BESIDE));
    assert_eq!(encoded.write(&mut cell), Some(length));
    assert!(cell[length..].iter().all(|byte| *byte == BESIDE));
    cell.truncate(length);

    let again = image(&cell);
    let again = again.for_device(LIMITS).unwrap();
    assert_eq!(again.drawing(), encoded.drawing());
    let mut twice = vec![0; again.bytes()];
    assert_eq!(again.write(&mut twice), Some(length));
    assert!(twice == cell);
    // (libjpeg-turbo leaves files with an odd header to the default decoder, whose rounding differs.)
    if cfg!(not(feature = "turbojpeg"))
        && let (Ok(pixels), Ok(same)) = (image(bytes).decode(), image(&cell).decode())
    {
        assert!(pixels == same);
    }
});
