//! Copies in flight: what they read or write on the host stays put until their event fires.
//!
//! Whoever drops a batch, a download or a loader drops a reference; the copy's own is here. Nobody polls: the list is
//! looked through ("reaped") by whoever needs a slab, submits a copy or waits for one.

use std::panic::AssertUnwindSafe;

use super::aside::Aside;
use crate::driver::RawEvent;
use crate::error::{Result, panic_message};
use crate::meter::Meter;
use crate::sync::{Arc, Mutex, planted};
use crate::tensor::Storage;

pub(crate) struct Flights {
    aside: Aside,
    list: Mutex<Vec<Flight>>,
    /// Held while finished copies let go of their memory, so that it is never nowhere: who looks for copies in flight
    /// and finds none finds the memory at home; who waited for a copy and reaped is rid of its hold.
    landing: Mutex<()>,
    /// How many copies failed, and keep their memory for good.
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

/// What is on its way to bring a slab home without the program's doing.
pub(crate) enum Coming {
    /// An upload that has a batch's slab.
    Batch(RawEvent),
    /// An upload that has other memory of the ring's: slabs that staged it, or a tensor that the program pinned.
    Other(RawEvent),
    /// The call of a staged upload, which has slabs and no event yet. Its end is news of the ring's.
    Staged,
    Nothing,
}

/// A span on a stream, and whose sum it counts to once it is over.
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
    pub(super) fn new(aside: Aside) -> Flights {
        Flights {
            aside,
            list: Mutex::default(),
            landing: Mutex::default(),
            leaked: crate::meter::Sum::default(),
        }
    }

    pub(crate) fn push(&self, mut flight: Flight) {
        if planted("a copy holds nothing") {
            flight.host.clear();
        }
        self.list.lock().push(flight);
    }

    /// Lets go of what finished copies held. It waits for nothing: what has to be unlocked is unlocked aside.
    pub(crate) fn reap(&self) {
        for owner in self.land() {
            if owner.registered().is_some() {
                self.aside.run(move || drop(owner));
                continue;
            }
            // It may do anything, also come back here, or panic.
            let gone = std::panic::catch_unwind(AssertUnwindSafe(|| drop(owner)));
            if let Err(payload) = gone {
                let message = panic_message(payload);
                log::error!("an owner of host memory panicked when it was dropped: {message}");
            }
        }
    }

    /// As `reap`, but for what must not be dropped under the lock: it is returned.
    fn land(&self) -> Vec<Arc<dyn Storage>> {
        let _landing = self.landing.lock();
        let mut finished = Vec::new();
        let mut failed = Vec::new();
        {
            let mut list = self.list.lock();
            let mut index = 0;
            // Behind the first that is under way on a stream, all others are too.
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
        // Not under the list's lock: this sends slabs home while others submit copies.
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

    /// The event of the copy that was submitted first, of those in flight.
    fn oldest(&self) -> Option<RawEvent> {
        self.list.lock().first().map(|flight| flight.done.clone())
    }

    /// The upload in flight, most often the first, that will bring a slab of this ring home: one of `account`, if it is named;
    /// if not, one of any batch, or else one that has other memory of the ring's.
    ///
    /// Uploads alone: they wait for nothing but each other. Downloads and copies into existing tensors may wait for kernels,
    /// and those for the program, whatever memory they use.
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
        // Batches whose rows the device gathers are made in no time: of many copies the middle one is waited for, and its
        // slab comes home together with those before.
        let gathers = first.host.iter().any(|host| host.scattered().is_some());
        let skip = match gathers {
            true => (list.iter().filter(brings).count() - 1) / 2,
            false => 0,
        };
        let awaited = list.iter().filter(brings).nth(skip).unwrap_or(first);
        Coming::Batch(awaited.done.clone())
    }

    /// Keeps memory for good: the device failed, and nobody can say whether it still uses it.
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
            // A failed event leaves the list as well: `reap` leaks what it held.
            result = result.and(oldest.sleep());
            self.reap();
        }
        result
    }
}

impl Drop for Flights {
    /// The last holder of the device is gone: nobody else can wait for its copies. A healthy device ends them in
    /// milliseconds; on a failed one their memory is leaked.
    fn drop(&mut self) {
        let _ = self.drain();
    }
}
