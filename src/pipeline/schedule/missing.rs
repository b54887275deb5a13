//! The rule for slabs that are missing.

/// What happens to a batch for which the ring has no slab now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Missing {
    /// A copy is in flight: its slab comes back without the user.
    WaitForCopy,
    /// The consumer has work to do, or batches to drop: something will change.
    Sleep,
    /// Nothing comes back unless the consumer, who is blocked on this batch, lets go: it goes without.
    Unpinned,
}

/// The rule when a slab is missing.
pub(crate) fn missing(copy_in_flight: bool, blocked: bool) -> Missing {
    match (copy_in_flight, blocked) {
        (true, _) => Missing::WaitForCopy,
        (false, true) => Missing::Unpinned,
        (false, false) => Missing::Sleep,
    }
}
