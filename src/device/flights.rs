//! Copies in flight: what they read or write on the host stays in place until their event fires.
//!
//! Dropping a batch, a download or a loader drops that holder's reference; the copy's own reference is in this list.
//! Nobody polls: the list is reaped by whoever needs a slab, submits a copy or waits for one.

use std::panic::AssertUnwindSafe;

use crate::driver::RawEvent;
use crate::error::{Result, panic_message};
use crate::meter::Meter;
use crate::sync::{Arc, Mutex, planted};
use crate::tensor::Storage;

#[derive(Default)]
pub(crate) struct Flights {
    list: Mutex<Vec<Flight>>,
    /// Held while finished copies let go of their memory, so that this is one step: a thread that finds no copy in flight
    /// finds the memory at home, and a thread that waited for a copy and then reaped is rid of the copy's hold.
    landing: Mutex<()>,
    /// How many copies failed, and keep their memory forever.
    leaked: crate::meter::Sum,
}

/// One copy, or a run of copies behind one event.
pub(crate) struct Flight {
    pub(crate) lane: Lane,
    pub(crate) done: RawEvent,
    /// The host memory that the copy uses.
    pub(crate) host: Vec<Arc<dyn Storage>>,
    pub(crate) timing: Option<Timing>,
}

/// The stream that a copy is on. On one stream, copies end in their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lane {
    Upload,
    Download,
    InPlace,
}

/// What will bring a slab home without any action of the program.
pub(crate) enum Coming {
    /// An upload that holds a batch's slab.
    Batch(RawEvent),
    /// An upload that holds other memory of the ring: slabs that stage it, or a tensor that the program pinned.
    Other(RawEvent),
    /// A staged upload that has slabs but no event yet. When it ends, the ring's news are notified.
    Staged,
    Nothing,
}

/// A span on a stream, and the sum that it is added to once it has ended.
pub(crate) struct Timing {
    pub(crate) start: RawEvent,
    pub(crate) end: RawEvent,
    pub(crate) meter: Arc<Meter>,
    pub(crate) sum: fn(&Meter, u64),
}

impl Timing {
    pub(super) fn settle(self) {
        if let Some(elapsed) = self.end.elapsed_ns(&self.start) {
            (self.sum)(&self.meter, elapsed);
        }
    }
}

impl Flights {
    pub(crate) fn push(&self, mut flight: Flight) {
        if planted("a copy holds nothing") {
            flight.host.clear();
        }
        self.list.lock().push(flight);
    }

    /// Lets go of what finished copies held. It waits for nothing: registered memory whose last holder was a copy stays
    /// locked ([`Parking`](super::registered::Parking)).
    pub(crate) fn reap(&self) {
        self.land().into_iter().for_each(drop_owner);
    }

    /// As `reap`, but returns what must not be dropped under the lock.
    fn land(&self) -> Vec<Arc<dyn Storage>> {
        let _landing = self.landing.lock();
        let mut finished = Vec::new();
        let mut failed = Vec::new();
        {
            let mut list = self.list.lock();
            let mut index = 0;
            // If one copy on a stream has not ended, the later ones have not either.
            let mut under_way = [false; 3];
            while index < list.len() {
                let lane = list[index].lane as usize;
                if under_way[lane] {
                    index += 1;
                    continue;
                }
                match list[index].done.is_complete() {
                    Ok(false) => {
                        under_way[lane] = true;
                        index += 1;
                    }
                    Ok(true) => finished.push(list.remove(index)),
                    Err(_) => failed.push(list.remove(index)),
                }
            }
        }
        for flight in failed {
            self.leak(flight.host);
        }
        // Without the list's lock: this sends slabs home while other threads submit copies.
        let mut last = Vec::new();
        for flight in finished {
            if let Some(timing) = flight.timing {
                timing.settle();
            }
            let host = flight.host.into_iter();
            host.for_each(|storage| storage.let_go(&mut last));
        }
        last
    }

    /// The event of the oldest copy in flight.
    fn oldest(&self) -> Option<RawEvent> {
        self.list.lock().first().map(|flight| flight.done.clone())
    }

    /// An upload in flight that will bring a slab of this ring home, usually the oldest: one of `account`, if given; if
    /// not, one of any batch, or else one that holds other memory of the ring.
    ///
    /// Only uploads count: they wait for nothing but each other. Downloads and copies into existing tensors may wait for
    /// kernels, and those for the program, whatever memory they use.
    pub(super) fn bringing_home(&self, ring: usize, account: Option<usize>) -> Coming {
        let _landing = (!planted("a look while copies let go")).then(|| self.landing.lock());
        let list = self.list.lock();
        let has = |flight: &Flight, wanted: &dyn Fn(Option<usize>) -> bool| {
            let mut homes = flight.host.iter().filter_map(|host| host.home());
            flight.lane == Lane::Upload
                && homes.any(|home| home.ring == ring && wanted(home.account))
        };
        let brings = |flight: &&Flight| match account {
            Some(_) => has(flight, &|other| other == account),
            None => has(flight, &|other| other.is_some()),
        };
        let Some(first) = list.iter().find(brings) else {
            let other = |flight: &&Flight| account.is_none() && has(flight, &|_| true);
            let other = list.iter().find(other);
            return other.map_or(Coming::Nothing, |flight| Coming::Other(flight.done.clone()));
        };
        // Batches whose rows the device gathers take next to no time to make, so the middle one of these copies is waited
        // for: its slab comes home together with those before.
        let gathers = first.host.iter().any(|host| host.scattered().is_some());
        let skip = match gathers {
            true => (list.iter().filter(brings).count() - 1) / 2,
            false => 0,
        };
        let awaited = list.iter().filter(brings).nth(skip).unwrap_or(first);
        Coming::Batch(awaited.done.clone())
    }

    /// Keeps memory forever: the device failed, and nobody can tell whether it still uses it.
    pub(crate) fn leak(&self, memory: Vec<Arc<dyn Storage>>) {
        if !memory.is_empty() {
            self.leaked.add(1);
            #[expect(
                clippy::mem_forget,
                reason = "a copy may still write what would be freed"
            )]
            std::mem::forget(memory);
        }
    }

    pub(crate) fn leaked(&self) -> u64 {
        self.leaked.get()
    }

    /// Waits for every copy in flight.
    pub(crate) fn drain(&self) -> Result<()> {
        let mut result = Ok(());
        while let Some(oldest) = self.oldest() {
            // A flight whose event failed leaves the list as well: `reap` leaks what it held.
            result = result.and(oldest.sleep());
            self.reap();
        }
        result
    }
}

/// Drops an owner of host memory. It may do anything, such as calling the library or panicking, so the caller holds no
/// lock.
pub(super) fn drop_owner(owner: Arc<dyn Storage>) {
    let gone = std::panic::catch_unwind(AssertUnwindSafe(|| drop(owner)));
    if let Err(payload) = gone {
        let message = panic_message(payload);
        log::error!("an owner of host memory panicked when it was dropped: {message}");
    }
}

impl Drop for Flights {
    /// The last holder of the device is gone, and nobody else can wait for its copies. A healthy device finishes them in
    /// milliseconds; on a failed one their memory is leaked.
    fn drop(&mut self) {
        let _ = self.drain();
    }
}
