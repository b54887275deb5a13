//! The rule for slabs that are missing.

/// What happens to a batch for which the ring has no slab now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Missing {
    /// An upload has a slab, which comes back without the user.
    WaitForCopy,
    /// The consumer has work to do, or batches to drop: something will change.
    Sleep,
    /// Nothing comes back unless the consumer, who is blocked on this batch, lets go: it goes without.
    Unpinned,
}

/// The rule when a slab is missing. `coming`: an upload that has one is on its way. Nothing else counts: a download, a copy
/// into a tensor that exists, and what the program holds may all wait for the program, which waits for this batch.
pub(crate) fn missing(coming: bool, blocked: bool) -> Missing {
    match (coming, blocked) {
        (true, _) => Missing::WaitForCopy,
        (false, true) => Missing::Unpinned,
        (false, false) => Missing::Sleep,
    }
}
