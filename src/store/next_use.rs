//! When what the calling thread reads will be read again, if its order says so.
//!
//! [`Blocked`](crate::dataset::Blocked) offers it around the call of its source's `fetch`, and a cache below asks. So it goes through
//! formats and stores that know nothing of it, the program's own among them. A source that reads by threads of its own loses it: then
//! nothing is known. Without a cache it is not computed: that takes a look at the order of the next epoch.

use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;

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

/// What computes it, where it is asked for.
pub(crate) type AskNextUse = Rc<dyn Fn() -> NextUse>;

thread_local! {
    static ASK: RefCell<Option<AskNextUse>> = const { RefCell::new(None) };
}

/// Calls `f`, which reads what is used next as `ask` says.
pub(crate) fn with_next_use<T>(ask: Option<AskNextUse>, f: impl FnOnce() -> T) -> T {
    /// (`f` is the program's code, and may panic.)
    struct Before(Option<AskNextUse>);

    impl Drop for Before {
        fn drop(&mut self) {
            ASK.with(|of_thread| of_thread.replace(self.0.take()));
        }
    }

    let _before = Before(ASK.with(|of_thread| of_thread.replace(ask)));
    f()
}

/// What is known of the calling thread's reads.
pub(super) fn next_use() -> Option<NextUse> {
    let ask = ASK.with(|of_thread| of_thread.borrow().clone());
    ask.map(|ask| ask())
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    const ANY: NextUse = NextUse {
        run: 1,
        now: 2,
        next: 3,
        rest: None,
        lap: 4,
    };

    #[test]
    fn it_is_computed_only_where_it_is_asked_for() {
        let asked = Rc::new(RefCell::new(0));
        let count = Rc::clone(&asked);
        let ask: AskNextUse = Rc::new(move || {
            *count.borrow_mut() += 1;
            ANY
        });
        with_next_use(Some(Rc::clone(&ask)), || ());
        assert_eq!(*asked.borrow(), 0);
        assert_eq!(with_next_use(Some(ask), next_use), Some(ANY));
        assert_eq!(*asked.borrow(), 1);
        assert_eq!(next_use(), None);
    }
}
