//! When what the calling thread reads will be read again, if its order says so.
//!
//! [`Blocked`](crate::dataset::Blocked) says it around the call of its source's `fetch`, and a cache below listens. So it goes through
//! formats and stores that know nothing of it, the program's own among them. A source that reads by threads of its own loses it: then
//! nothing is known.

use std::cell::Cell;
use std::ops::Range;

use crate::sync::thread_local;

/// A read of some samples, and the next one of the same. Both are positions of a run: of all its epochs together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NextUse {
    /// Which order it is. (Not 0.)
    pub(crate) run: u64,
    pub(crate) now: u64,
    pub(crate) next: u64,
    /// The next reading is cut in two: a part at the end of what is read has another next use.
    pub(crate) rest: Option<Rest>,
    /// How many positions an epoch has; at least 1.
    pub(crate) lap: u64,
}

/// The part of a read that is read at another time than what comes before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Rest {
    /// How many samples come before it, of how many. (Of bytes, it is about that share.)
    pub(crate) behind: (u64, u64),
    pub(crate) next: u64,
}

impl NextUse {
    /// When some of the bytes that are read are used next, as places in them, of so many: the first of them that is.
    pub(super) fn of_part(self, part: Range<u64>, all: u64) -> NextUse {
        let Some(Rest { behind, next }) = self.rest else {
            return self;
        };
        let cut = u128::from(all) * u128::from(behind.0) / u128::from(behind.1.max(1));
        let is_before = u128::from(part.end) <= cut;
        let is_behind = u128::from(part.start) >= cut;
        let next = match (is_before, is_behind) {
            (true, _) => self.next,
            (_, true) => next,
            _ => next.min(self.next),
        };
        NextUse {
            next,
            rest: None,
            ..self
        }
    }
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
