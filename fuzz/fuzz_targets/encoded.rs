//! Bytes, whatever they are, are the CPU's, or a file in the one form that a device's decoder is given, with the same pixels.

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

fuzz_target!(|bytes: &[u8]| {
    let image = |bytes: &[u8]| LazyImage::encoded(bytes.to_vec()).with_max_pixels(MAX_PIXELS);
    let given = image(bytes);
    let Ok(encoded) = given.for_device(LIMITS) else {
        return;
    };
    let written = encoded.to_vec();
    let again = image(&written);
    let again = again.for_device(LIMITS).unwrap();
    assert_eq!(again.drawing(), encoded.drawing());
    assert!(again.to_vec() == written);
    // (libjpeg-turbo leaves files with an odd header to the default decoder, whose rounding differs.)
    if cfg!(not(feature = "turbojpeg"))
        && let (Ok(pixels), Ok(same)) = (image(bytes).decode(), image(&written).decode())
    {
        assert!(pixels == same);
    }
});
