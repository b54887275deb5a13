//! Bytes, whatever they are, become a picture of the size that was promised, or an error; nothing else happens.
//!
//! The last bytes choose what is done with the picture. They are a part of the file all the same: what follows a
//! picture's end is nobody's, so that files as they are can be the corpus.

#![no_main]

use libfuzzer_sys::fuzz_target;
use pinfeed::SampleRng;
use pinfeed::image::{ImageTransform, LazyImage};
use pinfeed::rng::RngKey;

const MAX_PIXELS: u64 = 1 << 20;

fuzz_target!(|bytes: &[u8]| {
    let mut choices = bytes.iter().rev().copied();
    let mut choose = |of: u8| choices.next().unwrap_or_default() % of;
    let exif = choose(2) == 1;
    let side = 1 + usize::from(choose(40));
    let transform = match choose(6) {
        0 => ImageTransform::new(),
        1 => ImageTransform::train(side),
        2 => ImageTransform::eval(side),
        3 => ImageTransform::new().resize_exact(side, 7),
        4 => ImageTransform::new().pad(5).random_crop((side, 9)),
        _ => ImageTransform::new()
            .random_vertical_flip(1.0)
            .center_crop((9, side)),
    };
    let mut rng = SampleRng::for_sample(RngKey {
        seed: u64::from(choose(255)),
        epoch: 0,
        position: 0,
    });
    let image = LazyImage::encoded(bytes.to_vec())
        .with_exif_orientation(exif)
        .with_max_pixels(MAX_PIXELS)
        .transform(&transform, &mut rng);
    let shape = image.shape();
    match image.decode() {
        Ok(pixels) => {
            assert_eq!(shape.unwrap(), *pixels.shape());
            assert!(pixels.len() as u64 <= 3 * MAX_PIXELS);
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
});
