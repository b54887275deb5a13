//! How long a call may wait.

use crate::sync::Instant;

/// How long the consumer waits for a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Patience {
    Forever,
    Until(Instant),
    /// It takes what is there.
    None,
}

impl Patience {
    /// Until when it may wait now: `Some(None)` is for ever. `None`: it waits no longer.
    pub(crate) fn end(self, now: Instant) -> Option<Option<Instant>> {
        match self {
            Patience::Forever => Some(None),
            Patience::Until(end) => (end > now).then_some(Some(end)),
            Patience::None => None,
        }
    }
}
