//! Which code of the program's the calling thread is in, so that a call from there that would wait for that very code is refused.

use std::cell::{Cell, RefCell};

super::thread_local! {
    static WITHIN: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
    /// How many they are: each batch asks, and nearly always there are none.
    static DEPTH: Cell<usize> = const { Cell::new(0) };
}

/// The calling thread is in code that belongs to something, as long as this lives.
pub(crate) struct Within(());

impl Within {
    pub(crate) fn code_of<T>(of: &T) -> Within {
        let name = std::ptr::from_ref(of).addr();
        WITHIN.with(|within| within.borrow_mut().push(name));
        DEPTH.with(|depth| depth.set(depth.get() + 1));
        Within(())
    }
}

impl Drop for Within {
    fn drop(&mut self) {
        DEPTH.with(|depth| depth.set(depth.get() - 1));
        WITHIN.with(|within| within.borrow_mut().pop());
    }
}

/// Whether the calling thread is in code that belongs to this.
#[inline]
pub(crate) fn is_within_code_of<T>(of: &T) -> bool {
    let name = std::ptr::from_ref(of).addr();
    DEPTH.with(Cell::get) > 0 && WITHIN.with(|within| within.borrow().contains(&name))
}
