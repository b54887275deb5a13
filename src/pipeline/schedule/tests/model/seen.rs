//! What a run of the models came to.

/// How often something happened that the tests are there for.
#[derive(Debug, Clone, Copy, Default)]
pub struct Seen {
    pub unpinned: u64,
    pub refused: u64,
    pub waited: u64,
    pub looked_again: u64,
    pub relocated: u64,
    pub failed: u64,
    pub parked: u64,
    pub whole: u64,
    pub several: u64,
    pub sent: u64,
}

impl std::ops::Add for Seen {
    type Output = Seen;

    fn add(self, other: Seen) -> Seen {
        Seen {
            unpinned: self.unpinned + other.unpinned,
            refused: self.refused + other.refused,
            waited: self.waited + other.waited,
            looked_again: self.looked_again + other.looked_again,
            relocated: self.relocated + other.relocated,
            failed: self.failed + other.failed,
            parked: self.parked + other.parked,
            whole: self.whole + other.whole,
            several: self.several + other.several,
            sent: self.sent + other.sent,
        }
    }
}
