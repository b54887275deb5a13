//! What to do about samples of unlike shapes.

/// The advice for rows of these shapes in one batch.
pub(super) fn what_fits(expected: &[usize], found: &[usize]) -> &'static str {
    // All but the first dimension.
    let differ_in_length =
        expected.len() == found.len() && !found.is_empty() && expected[1..] == found[1..];
    match (may_be_pictures(expected, found), differ_in_length) {
        (true, false) => {
            "pictures need one size: give the ImageFolder a `.with_transform(..)`, or the LazyImage a `.transform(..)`, that makes one, such as \
             ImageTransform::eval(224) or ImageTransform::new().resize_exact(height, width)"
        }
        (true, true) => {
            "if these are pictures, give the ImageFolder a `.with_transform(..)`, or the LazyImage a `.transform(..)`, that makes them one size, such as \
             ImageTransform::eval(224); sequences whose lengths differ can be pinfeed::Padded or pinfeed::Ragged"
        }
        (false, true) => {
            "make all samples of one shape, or where lengths differ use pinfeed::Padded or pinfeed::Ragged"
        }
        (false, false) => {
            "make all samples of one shape (pinfeed::Padded and pinfeed::Ragged are for samples that differ in their first dimension \
             only)"
        }
    }
}

/// Both have three dimensions, and the same number of channels, first or last.
fn may_be_pictures(expected: &[usize], found: &[usize]) -> bool {
    const CHANNELS: [usize; 3] = [1, 3, 4];
    let (&[first, _, last], &[found_first, _, found_last]) = (expected, found) else {
        return false;
    };
    let are_channels = |a: usize, b: usize| a == b && CHANNELS.contains(&a);
    are_channels(first, found_first) || are_channels(last, found_last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_advice_is_for_the_shapes_at_hand() {
        let (transform, padded) = (".transform(..)", "use pinfeed::Padded");
        let cases: [(&[usize], &[usize], &str); 9] = [
            (&[480, 640, 3], &[427, 640, 3], transform),
            (&[480, 640, 3], &[427, 600, 3], transform),
            (&[3, 480, 640], &[3, 427, 640], transform),
            (&[480, 640, 1], &[480, 600, 1], transform),
            (&[3], &[2], padded),
            (&[10, 80], &[12, 80], padded),
            (&[10, 80], &[10, 40], "first dimension"),
            (&[480, 640, 3], &[480, 640, 1], "first dimension"),
            (&[], &[2], "first dimension"),
        ];
        for (expected, found, says) in cases {
            for said in [what_fits(expected, found), what_fits(found, expected)] {
                assert!(said.contains(says), "{expected:?}, {found:?}: {said}");
                assert_eq!(said.contains(transform), says == transform, "{said}");
            }
        }
        // Where only the first dimension differs, they may be sequences, too.
        assert!(what_fits(&[480, 640, 3], &[427, 640, 3]).contains("pinfeed::Padded"));
        assert!(!what_fits(&[480, 640, 3], &[427, 600, 3]).contains("Padded"));
    }
}
