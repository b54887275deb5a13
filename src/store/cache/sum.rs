//! XXH64, as [its specification](https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md) has it.

const PRIMES: [u64; 5] = [
    0x9E37_79B1_85EB_CA87,
    0xC2B2_AE3D_27D4_EB4F,
    0x1656_67B1_9E37_79F9,
    0x85EB_CA77_C2B2_AE63,
    0x27D4_EB2F_1656_67C5,
];

/// The hash of some bytes, with the seed 0.
pub(in crate::store) fn sum(bytes: &[u8]) -> u64 {
    let (stripes, rest) = bytes.as_chunks::<32>();
    let mut hash = match stripes.is_empty() {
        true => PRIMES[4],
        false => {
            let mut lanes = [
                PRIMES[0].wrapping_add(PRIMES[1]),
                PRIMES[1],
                0,
                PRIMES[0].wrapping_neg(),
            ];
            for stripe in stripes {
                let (words, _) = stripe.as_chunks::<8>();
                for (lane, word) in lanes.iter_mut().zip(words) {
                    *lane = round(*lane, u64::from_le_bytes(*word));
                }
            }
            let turns = [1, 7, 12, 18];
            let mixed = lanes.iter().zip(turns);
            let mixed = mixed.fold(0u64, |hash, (lane, turn)| {
                hash.wrapping_add(lane.rotate_left(turn))
            });
            lanes.iter().fold(mixed, |hash, lane| {
                (hash ^ round(0, *lane))
                    .wrapping_mul(PRIMES[0])
                    .wrapping_add(PRIMES[3])
            })
        }
    };
    hash = hash.wrapping_add(bytes.len() as u64);
    let (words, rest) = rest.as_chunks::<8>();
    for word in words {
        hash ^= round(0, u64::from_le_bytes(*word));
        hash = hash
            .rotate_left(27)
            .wrapping_mul(PRIMES[0])
            .wrapping_add(PRIMES[3]);
    }
    let (halves, rest) = rest.as_chunks::<4>();
    for half in halves {
        hash ^= u64::from(u32::from_le_bytes(*half)).wrapping_mul(PRIMES[0]);
        hash = hash
            .rotate_left(23)
            .wrapping_mul(PRIMES[1])
            .wrapping_add(PRIMES[2]);
    }
    for byte in rest {
        hash ^= u64::from(*byte).wrapping_mul(PRIMES[4]);
        hash = hash.rotate_left(11).wrapping_mul(PRIMES[0]);
    }
    hash = (hash ^ (hash >> 33)).wrapping_mul(PRIMES[1]);
    hash = (hash ^ (hash >> 29)).wrapping_mul(PRIMES[2]);
    hash ^ (hash >> 32)
}

#[inline]
fn round(lane: u64, word: u64) -> u64 {
    lane.wrapping_add(word.wrapping_mul(PRIMES[1]))
        .rotate_left(31)
        .wrapping_mul(PRIMES[0])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As Python's xxhash 4.1 gives them.
    #[test]
    fn it_is_xxh64() {
        assert_eq!(sum(b""), 0xEF46_DB37_51D8_E999);
        assert_eq!(sum(b"a"), 0xD24E_C4F1_A98C_6E5B);
        assert_eq!(sum(b"abc"), 0x44BC_2CF5_AD77_0999);
        let text = b"Nobody inspects the spammish repetition";
        assert_eq!(sum(text), 0xFBCE_A83C_8A37_8BF1);
    }
}
