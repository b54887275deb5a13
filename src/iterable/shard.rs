//! What a rank has of an iterable.

/// Which items of an iterable a rank has, and what random choices of the iterable are keyed by.
///
/// # Examples
///
/// ```
/// use pinfeed::iterable::Shard;
///
/// let shard = Shard::new(1, 4, 17); // rank 1 of 4, seed 17
/// let files: Vec<u64> = (0..10).filter(|number| shard.keeps(*number)).collect();
/// assert_eq!(files, [1, 5, 9]);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shard {
    rank: u64,
    ranks: u64,
    seed: u64,
}

impl Shard {
    /// Makes a shard. The loader does; a test of a source can, too.
    ///
    /// # Panics
    ///
    /// If `rank` is not below `ranks`.
    pub fn new(rank: u64, ranks: u64, seed: u64) -> Shard {
        assert!(
            rank < ranks,
            "rank {rank} of {ranks}: ranks are counted from 0"
        );
        Shard { rank, ranks, seed }
    }

    /// Returns the number of this rank, among those that load different batches.
    pub fn rank(&self) -> u64 {
        self.rank
    }

    /// Returns how many ranks load different batches.
    pub fn ranks(&self) -> u64 {
        self.ranks
    }

    /// Returns the loader's seed, or what follows from it for a source that is mixed, chained, shuffled or packed: for a source that draws
    /// random numbers itself, such as its order of files.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Whether item, or file, number `number` is this rank's: of `R` ranks, each has every `R`-th.
    pub fn keeps(&self, number: u64) -> bool {
        number % self.ranks == self.rank
    }

    /// The shard of a source within a source: it draws other numbers than its neighbours, and than what is around it.
    pub(super) fn of_child(self, number: u64) -> Shard {
        Shard {
            seed: scramble(self.seed ^ scramble(number + 1)),
            ..self
        }
    }
}

/// Spreads a number over all bits: the finalizer of SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number
/// generators", OOPSLA 2014).
pub(super) fn scramble(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}
