//! Decoding: pictures of a batch that is on the device, whose files are on the host.
//!
//! One thread for each device drives its decoder (`decoding/thread.rs`). What sends a batch hands it the rows that are to be decoded, and
//! is told when they are made. Where it is known that there will be pictures, the decoder is opened in advance.

use super::ring::Ring;
use crate::driver::{Driver, RawEvent};
use crate::error::{BoxError, Error};
use crate::sync::{Arc, Mutex};
use crate::tensor::{Home, Storage};

mod engine;
mod job;
mod memory;
mod thread;
mod waiting;

pub(super) use thread::Decoder;

/// Rows of a batch, or of a part of one, that were sent and whose pictures are not decoded yet.
#[derive(Default)]
pub(crate) struct Undecoded(Vec<EncodedRows>);

/// Those of one field.
pub(super) struct EncodedRows {
    /// It has the pictures. Behind it is the batch's slab, which stays out until they are decoded.
    pub(super) storage: Arc<dyn Storage>,
    /// Where the first row is.
    pub(super) to: u64,
    /// What keeps the rows' memory: its block, and behind it, that it is passing. (No more is known of it here.)
    pub(super) _block: Box<dyn Send + Sync>,
    /// The copy of all rows, which the pictures' are written behind.
    pub(super) copied: Option<RawEvent>,
    /// Last: the slab is home before it counts no more.
    pub(super) held: Held,
}

impl EncodedRows {
    /// The name of their device.
    fn device(&self) -> String {
        self.held.of.driver.name()
    }
}

/// Rows that are to be decoded hold their slab until then. It counts as one that comes home without any action of the program.
pub(super) struct Held {
    of: Arc<HeldSlabs>,
    /// Whose slab it is.
    home: Option<Home>,
}

/// The slabs whose pictures a device decodes, by where they belong: one for each field.
pub(super) struct HeldSlabs {
    ring: Arc<Ring>,
    driver: Driver,
    slabs: Mutex<Slabs>,
}

#[derive(Default)]
struct Slabs {
    slabs: Vec<Home>,
    /// The decoder hangs, so these slabs are not to be waited for.
    is_late: bool,
}

impl HeldSlabs {
    pub(super) fn new(ring: &Arc<Ring>, driver: &Driver) -> Arc<HeldSlabs> {
        Arc::new(HeldSlabs {
            ring: Arc::clone(ring),
            driver: driver.clone(),
            slabs: Mutex::default(),
        })
    }

    /// Whether a slab of this ring is among them, and will come home: of `quota`, if given.
    pub(super) fn has(&self, ring: usize, quota: Option<usize>) -> bool {
        let held = self.slabs.lock();
        let mut slabs = held.slabs.iter().filter(|home| home.ring == ring);
        !held.is_late && slabs.any(|home| quota.is_none() || home.quota == quota)
    }

    /// Whether the decoder hangs, so that what it holds is not to be waited for.
    pub(super) fn is_late(&self) -> bool {
        self.slabs.lock().is_late
    }

    /// The decoder goes on.
    fn comes_home(&self) {
        self.slabs.lock().is_late = false;
    }

    /// The decoder is not waited for any more, and until it goes on, these slabs are not either.
    pub(super) fn are_late(&self) {
        self.slabs.lock().is_late = true;
        self.ring.news().notify();
    }
}

impl Held {
    /// Before the copy is in the list of flights, so that a thread that looks for the slab finds it there or here.
    pub(super) fn new(of: &Arc<HeldSlabs>, home: Option<Home>) -> Held {
        of.slabs.lock().slabs.extend(home);
        Held {
            of: Arc::clone(of),
            home,
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut held = self.of.slabs.lock();
        let own = held.slabs.iter().position(|home| Some(*home) == self.home);
        own.map(|own| held.slabs.swap_remove(own));
        drop(held);
        // The slab itself may not have come home, if the program keeps a view of its batch. A thread that waits for it must look again.
        self.of.ring.news().notify_interested();
    }
}

/// Why the rows of a batch are not made.
pub(crate) enum NotDecoded {
    /// A picture is at fault, of this row of the batch or part: the CPU cannot decode it either.
    Picture {
        row: usize,
        error: BoxError,
    },
    Failed(Error),
}

impl NotDecoded {
    pub(crate) fn is_of_picture(&self) -> bool {
        matches!(self, NotDecoded::Picture { .. })
    }
}

/// What is told when the rows are made, or will not be. It runs on the decoder's thread.
pub(crate) type WhenDecoded = Box<dyn FnOnce(Result<(), NotDecoded>) + Send>;

impl Undecoded {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn add(&mut self, rows: EncodedRows) {
        self.0.push(rows);
    }

    pub(super) fn into_rows(self) -> Vec<EncodedRows> {
        self.0
    }

    /// They are copied behind this event.
    pub(super) fn copied_behind(&mut self, done: Option<&RawEvent>) {
        for rows in &mut self.0 {
            rows.copied = done.cloned();
        }
    }
}
