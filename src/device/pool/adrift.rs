//! Memory that is adrift: its last users are not known by their streams, and it came back without an event.
//!
//! It comes from threads that may call no driver (a deleter of another library, a host function of a stream), so nothing is done here but
//! to keep it. What is listed is reused only behind an event of the whole context that is recorded later
//! ([`Pool::sweep`](super::Pool::sweep)).

use super::Memory;
use crate::driver::RawEvent;
use crate::sync::{Mutex, Weak};

/// Where memory goes back to that is not the pool's own: a set of buffers at fixed addresses.
pub(in crate::device) trait Origin: Send + Sync {
    /// Takes back what has this number. It is free once all of the events have fired.
    fn take_back(&self, number: usize, memory: Memory, pending: Vec<RawEvent>);
}

/// A place outside the pool, and the memory's number there. It must not keep the place: that holds the device, which holds this.
pub(in crate::device) type Outside = (Weak<dyn Origin>, usize);

/// All memory of a device that is adrift. No call of the driver is made under the lock, because a host function may wait for it.
#[derive(Default)]
pub(super) struct Adrift(Mutex<Vec<Lost>>);

pub(super) struct Lost {
    pub(super) memory: Memory,
    pub(super) outside: Option<Outside>,
}

/// How much is adrift.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct AdriftBytes {
    pub(super) all: usize,
    /// Of the pool's own memory, and of how many blocks.
    pub(super) of_pool: usize,
    pub(super) blocks_of_pool: usize,
}

impl Adrift {
    pub(super) fn add(&self, lost: Lost) {
        self.0.lock().push(lost);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }

    pub(super) fn take(&self) -> Vec<Lost> {
        std::mem::take(&mut *self.0.lock())
    }

    /// Puts back what could not be swept.
    pub(super) fn put_back(&self, lost: Vec<Lost>) {
        self.0.lock().extend(lost);
    }

    /// Whether what has this number in that place is adrift.
    pub(super) fn has(&self, place: &Weak<dyn Origin>, number: usize) -> bool {
        let is_it = |lost: &Lost| {
            let outside = lost.outside.as_ref();
            outside.is_some_and(|(origin, index)| *index == number && origin.ptr_eq(place))
        };
        self.0.lock().iter().any(is_it)
    }

    pub(super) fn bytes(&self) -> AdriftBytes {
        let mut bytes = AdriftBytes::default();
        for lost in &*self.0.lock() {
            bytes.all += lost.memory.capacity;
            if lost.outside.is_none() {
                bytes.of_pool += lost.memory.capacity;
                bytes.blocks_of_pool += 1;
            }
        }
        bytes
    }
}
