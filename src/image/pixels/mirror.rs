//! Reverses the order of RGB pixels: a mirrored picture is reversed row by row.
//!
//! An ordinary loop moves each pixel byte by byte, and takes as long as a tenth of the resampling. SSSE3 moves 16 at once.

/// Reverses the order of the pixels.
pub(super) fn reverse(pixels: &mut [[u8; 3]]) {
    #[cfg(target_arch = "x86_64")]
    if std::is_x86_feature_detected!("ssse3") {
        // SAFETY: the processor has SSSE3.
        return unsafe { x86::reverse(pixels) };
    }
    pixels.reverse();
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::{
        __m128i, _mm_loadu_si128, _mm_or_si128, _mm_shuffle_epi8, _mm_storeu_si128,
    };
    use std::mem::take;

    /// How many pixels are reversed at once.
    const PIXELS: usize = 16;

    /// How many registers of 16 bytes they fill.
    const WORDS: usize = 3;

    /// For each word of the result and each word that it is made from: which of its bytes go where. The others become 0.
    const MOVES: [[[u8; 16]; WORDS]; WORDS] = moves();

    const fn moves() -> [[[u8; 16]; WORDS]; WORDS] {
        const ZERO: u8 = 0x80;
        let mut moves = [[[ZERO; 16]; WORDS]; WORDS];
        let mut to = 0;
        while to < WORDS * 16 {
            let from = (PIXELS - 1 - to / 3) * 3 + to % 3;
            moves[to / 16][from / 16][to % 16] = (from % 16) as u8;
            to += 1;
        }
        moves
    }

    /// Swaps 16 pixels of each end, as long as there are so many.
    #[target_feature(enable = "ssse3")]
    pub(super) fn reverse(mut rest: &mut [[u8; 3]]) {
        while rest.len() >= 2 * PIXELS
            && let Some((left, behind)) = take(&mut rest).split_first_chunk_mut::<PIXELS>()
            && let Some((middle, right)) = behind.split_last_chunk_mut::<PIXELS>()
        {
            (*left, *right) = (reversed(right), reversed(left));
            rest = middle;
        }
        rest.reverse();
    }

    #[target_feature(enable = "ssse3")]
    fn reversed(pixels: &[[u8; 3]; PIXELS]) -> [[u8; 3]; PIXELS] {
        let (from, _) = pixels.as_flattened().as_chunks::<16>();
        let mut result = [[0; 3]; PIXELS];
        let (to, _) = result.as_flattened_mut().as_chunks_mut::<16>();
        for (to, moves) in to.iter_mut().zip(&MOVES) {
            let mut word = load(&[0; 16]);
            for (from, moves) in from.iter().zip(moves) {
                word = _mm_or_si128(word, _mm_shuffle_epi8(load(from), load(moves)));
            }
            // SAFETY: there are 16 bytes, of any alignment.
            unsafe { _mm_storeu_si128(to.as_mut_ptr().cast(), word) };
        }
        result
    }

    #[target_feature(enable = "ssse3")]
    fn load(bytes: &[u8; 16]) -> __m128i {
        // SAFETY: there are 16 bytes, of any alignment.
        unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn pixels_of_any_number_are_reversed() {
        for pixels in 0..150 {
            let mut ours: Vec<[u8; 3]> = (0..pixels)
                .map(|pixel: u8| [pixel, pixel ^ 0xAA, !pixel])
                .collect();
            let mut plain = ours.clone();
            super::reverse(&mut ours);
            plain.reverse();
            assert_eq!(ours, plain);
        }
    }
}
