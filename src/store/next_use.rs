//! When what the calling thread reads will be read again, if its order says so.
//!
//! [`Blocked`](crate::dataset::Blocked) says it around the call of its source's `fetch`, and a cache below listens. So it goes through formats and
//! stores that know nothing of it, the program's own among them. A source that reads by threads of its own loses it: then nothing is known.

use std::cell::Cell;

use crate::sync::thread_local;

/// A read of some samples, and the next one of the same. Both are positions of a run: of all its epochs together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NextUse {
    /// Which order it is. (Not 0.)
    pub(crate) run: u64,
    pub(crate) now: u64,
    pub(crate) next: u64,
    /// How many positions an epoch has; at least 1.
    pub(crate) lap: u64,
}

thread_local! {
    static NEXT_USE: Cell<Option<NextUse>> = const { Cell::new(None) };
}

/// Calls `f`, which reads what is used next as said.
pub(crate) fn with_next_use<T>(next_use: Option<NextUse>, f: impl FnOnce() -> T) -> T {
    /// (`f` is the program's code, and may panic.)
    struct Before(Option<NextUse>);

    impl Drop for Before {
        fn drop(&mut self) {
            NEXT_USE.with(|of_thread| of_thread.set(self.0));
        }
    }

    let _before = Before(NEXT_USE.with(|of_thread| of_thread.replace(next_use)));
    f()
}

/// What is known of the calling thread's reads.
pub(super) fn next_use() -> Option<NextUse> {
    NEXT_USE.with(Cell::get)
}
