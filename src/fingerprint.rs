//! Fingerprints: short hashes that are the same on every machine and in every version.

/// A hash of 32 bits that tells one data set or order from another by mistake, not by malice.
///
/// It is FNV-1a (Fowler, Noll and Vo), and stays so: a checkpoint of today must fit the loader of tomorrow.
/// ([`std::hash`]'s may change with each release.)
///
/// # Examples
///
/// ```
/// use pinfeed::dataset::Fingerprint;
///
/// let mut print = Fingerprint::new();
/// print.add(b"train.bin");
/// print.add_number(50_000);
/// assert_eq!(print.finish(), 0xd8a0_9ef3);
/// ```
#[derive(Debug, Clone)]
pub struct Fingerprint(u32);

impl Fingerprint {
    /// Makes the fingerprint of nothing.
    pub fn new() -> Fingerprint {
        Fingerprint(0x811c_9dc5)
    }

    /// Adds some bytes.
    pub fn add(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u32::from(*byte)).wrapping_mul(0x0100_0193);
        }
    }

    /// Adds a number, as eight bytes, the lowest first.
    pub fn add_number(&mut self, number: u64) {
        self.add(&number.to_le_bytes());
    }

    /// Returns the fingerprint of all that was added.
    pub fn finish(&self) -> u32 {
        self.0
    }
}

impl Default for Fingerprint {
    fn default() -> Fingerprint {
        Fingerprint::new()
    }
}

/// At most `count` numbers below `len`, evenly spread; all of them if there are no more.
pub(crate) fn spread(len: u64, count: u64) -> impl Iterator<Item = u64> {
    let count = count.min(len);
    (0..count).map(move |at| (u128::from(at) * u128::from(len) / u128::from(count)) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The answers of the authors' own test vectors (`test_fnv.c`, FNV-1a of 32 bits).
    #[test]
    fn fnv_gives_its_authors_answers() {
        let of = |text: &str| {
            let mut print = Fingerprint::new();
            print.add(text.as_bytes());
            print.finish()
        };
        assert_eq!(of(""), 0x811c_9dc5);
        assert_eq!(of("a"), 0xe40c_292c);
        assert_eq!(of("foobar"), 0xbf9c_f968);
    }

    #[test]
    fn what_is_spread_stays_below_the_end() {
        assert!(spread(3, 8).eq(0..3));
        assert!(spread(0, 8).eq(0..0));
        assert!(spread(80, 8).eq([0, 10, 20, 30, 40, 50, 60, 70]));
        assert!(spread(u64::MAX, 64).all(|number| number < u64::MAX));
    }
}
