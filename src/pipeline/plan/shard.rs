//! Which part of a rank's batches a session has.

/// Which of how many consumers of this rank a session is for, and on which device. Each has batches of its own, as if it were a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DeviceShard {
    /// The number of the loader's device that the session is loaded for.
    pub(crate) device: usize,
    pub(crate) index: u64,
    pub(crate) of: u64,
    /// Tells one split from another.
    pub(crate) split: u64,
}

impl DeviceShard {
    /// A single consumer has all batches of this rank, for the first of the loader's devices.
    pub(crate) const WHOLE: DeviceShard = DeviceShard {
        device: 0,
        index: 0,
        of: 1,
        split: 0,
    };
}
