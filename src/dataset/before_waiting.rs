//! What a worker says before it waits: which rows of its task it has loaded. What was read for these may hold the room that it waits for.

use std::cell::RefCell;
use std::rc::Rc;

use crate::sync::{planted, thread_local};

/// How far a thread is with its task.
pub(crate) trait Progress {
    /// Says so to those that need to know. It may call the data set. Returns whether that is all that the thread has loaded.
    fn report(&self) -> bool;
}

thread_local! {
    static PROGRESS: RefCell<Option<Rc<dyn Progress>>> = const { RefCell::new(None) };
}

/// Calls `f`, which loads rows. Where it waits, it says how far it is.
pub(crate) fn with_progress<T>(progress: Option<Rc<dyn Progress>>, f: impl FnOnce() -> T) -> T {
    /// (`f` may panic. A data set may have a loader of its own.)
    struct Before(Option<Rc<dyn Progress>>);

    impl Drop for Before {
        fn drop(&mut self) {
            PROGRESS.with(|of_thread| of_thread.replace(self.0.take()));
        }
    }

    let _before = Before(PROGRESS.with(|of_thread| of_thread.replace(progress)));
    f()
}

/// The calling thread is about to wait. (Without a lock.) Returns whether all is said that it has loaded: otherwise it may hold room that it
/// waits for itself.
pub(super) fn report_progress() -> bool {
    let progress = PROGRESS.with(|of_thread| of_thread.borrow().clone());
    let progress =
        progress.filter(|_| !planted("a worker waits before it says what it has loaded"));
    progress.is_some_and(|progress| progress.report())
}
