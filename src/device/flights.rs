//! Copies in flight: what they read or write on the host stays in place until their event fires.
//!
//! Dropping a batch, a download or a loader drops that holder's reference; the copy's own reference is in this list.
//! No thread polls: the list is reaped by threads that need a slab, submit a copy or wait for one.

use std::collections::VecDeque;
use std::panic::AssertUnwindSafe;

use crate::driver::{Entered, RawEvent};
use crate::error::{Result, panic_message};
use crate::meter::{Enqueued, Meter};
use crate::sync::log;
use crate::sync::{Arc, Mutex, planted};
use crate::tensor::{Scattered, Storage};

#[derive(Default)]
pub(crate) struct Flights {
    /// One for each [`Lane`].
    queues: [Queue; 3],
    /// Held while finished copies let go of their memory, so that this is one step: a thread that finds no copy in flight
    /// finds the memory at home, and a thread that waited for a copy and then reaped is rid of the copy's hold.
    landing: Mutex<()>,
    /// How many copies failed, and keep their memory forever.
    leaked: crate::meter::Sum,
}

/// The copies in flight on one stream.
#[derive(Default)]
struct Queue {
    /// In the order of their events on the stream: if one has not fired, none behind it has.
    flights: Mutex<VecDeque<Flight>>,
    /// Held while an event is recorded and its flight enters the queue. As two steps, two threads could record in one order
    /// and enter in the other; then a finished copy would keep its memory until a later one ends.
    ///
    /// Not `flights` itself: the driver may block while it records on a full stream, and others must be able to reap.
    recording: Mutex<()>,
}

impl Queue {
    /// Takes the first flight, if it has ended, and whether its copies are done: if not, there is no way to tell. The device is made
    /// current for all that are asked for.
    fn take_ended(&self, entered: &mut Option<Entered>) -> Option<(Flight, bool)> {
        let mut flights = self.flights.lock();
        let first = &flights.front()?.done;
        if entered.is_none() && !first.has_fired() {
            *entered = first.enter();
        }
        let is_over = match first.is_complete() {
            Ok(false) => return None,
            Ok(true) => true,
            Err(_) => false,
        };
        Some((flights.pop_front()?, is_over))
    }
}

/// One copy, or a run of copies behind one event.
pub(crate) struct Flight {
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
    /// A decoder that has a batch's slab. When it is done, the ring's news are notified.
    Decoding,
    Nothing,
}

/// A span on a stream, and the sum that it is added to once it has ended.
pub(crate) struct Timing {
    pub(crate) start: RawEvent,
    pub(crate) end: RawEvent,
    pub(crate) meter: Arc<Meter>,
    /// Adds the span, which stands for so many like it.
    pub(crate) sum: fn(&Meter, u64, u64),
    pub(crate) stands_for: u64,
    /// Copies that are recorded.
    pub(crate) enqueued: Option<Enqueued>,
}

impl Timing {
    pub(super) fn settle(self) {
        if let Some(elapsed) = self.end.elapsed_ns(&self.start) {
            (self.sum)(&self.meter, elapsed, self.stands_for);
            if let (Some(copy), Some(subject)) = (self.enqueued, self.meter.subject(|| None)) {
                subject.copied(copy, elapsed);
            }
        }
    }
}

impl Flights {
    fn queue(&self, lane: Lane) -> &Queue {
        &self.queues[lane as usize]
    }

    /// Adds a flight to a lane. `record` records its event on the lane's stream; if that fails, nothing is added.
    pub(super) fn add<E>(
        &self,
        lane: Lane,
        record: impl FnOnce() -> Result<Flight, E>,
    ) -> Result<RawEvent, E> {
        let queue = self.queue(lane);
        let together = !planted("a copy enters the list behind a later one");
        let _recording = together.then(|| queue.recording.lock());
        let mut flight = record()?;
        let done = flight.done.clone();
        if planted("a copy holds nothing") {
            flight.host.clear();
        }
        queue.flights.lock().push_back(flight);
        Ok(done)
    }

    /// Lets go of what finished copies held. It waits for nothing: registered memory whose last holder was a copy stays
    /// locked ([`Parking`](super::registered::Parking)).
    pub(crate) fn reap(&self) {
        self.land().into_iter().for_each(drop_owner);
    }

    /// As `reap`, but returns what must not be dropped under the lock.
    pub(super) fn land(&self) -> Vec<Arc<dyn Storage>> {
        let _landing = self.landing.lock();
        let mut last = Vec::new();
        let mut entered = None;
        for queue in &self.queues {
            // Without the queue's lock: this sends slabs home while other threads submit copies.
            while let Some((flight, is_over)) = queue.take_ended(&mut entered) {
                if !is_over {
                    self.leak(flight.host);
                    continue;
                }
                if let Some(timing) = flight.timing {
                    timing.settle();
                }
                let host = flight.host.into_iter();
                host.for_each(|storage| storage.let_go(&mut last));
            }
        }
        last
    }

    /// The event of a copy in flight: the first of its lane to fire.
    fn first(&self) -> Option<RawEvent> {
        let mut queues = self.queues.iter();
        queues.find_map(|queue| Some(queue.flights.lock().front()?.done.clone()))
    }

    /// An upload in flight that will bring a slab of this ring home, usually the oldest: one of `quota`, if given; if
    /// not, one of any batch, or else one that holds other memory of the ring.
    ///
    /// Only uploads count: they wait for nothing but each other. Downloads and copies into existing tensors may wait for
    /// kernels, and those for the program, whatever memory they use.
    pub(super) fn bringing_home(&self, ring: usize, quota: Option<usize>) -> Coming {
        let _landing = (!planted("a look while copies let go")).then(|| self.landing.lock());
        let flights = self.queue(Lane::Upload).flights.lock();
        let has = |flight: &Flight, wanted: &dyn Fn(Option<usize>) -> bool| {
            let mut homes = flight.host.iter().filter_map(|host| host.home());
            homes.any(|home| home.ring == ring && wanted(home.quota))
        };
        let brings = |flight: &&Flight| match quota {
            Some(_) => has(flight, &|other| other == quota),
            None => has(flight, &|other| other.is_some()),
        };
        let Some(first) = flights.iter().find(brings) else {
            let other = |flight: &&Flight| quota.is_none() && has(flight, &|_| true);
            let other = flights.iter().find(other);
            return other.map_or(Coming::Nothing, |flight| Coming::Other(flight.done.clone()));
        };
        // Batches whose rows the device gathers take next to no time to make, so the middle one of these copies is waited
        // for: its slab comes home together with those before.
        let gathers = |host: &Arc<dyn Storage>| host.scattered().is_some_and(Scattered::is_list);
        let gathers = first.host.iter().any(gathers);
        let skip = match gathers {
            true => (flights.iter().filter(brings).count() - 1) / 2,
            false => 0,
        };
        let awaited = flights.iter().filter(brings).nth(skip).unwrap_or(first);
        Coming::Batch(awaited.done.clone())
    }

    /// Keeps memory forever: the device failed, and there is no way to tell whether it still uses it.
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
        while let Some(first) = self.first() {
            // A flight whose event failed leaves the list as well: `reap` leaks what it held.
            result = result.and(first.sleep());
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
    /// The last holder of the device is gone, and no other thread can wait for its copies. A healthy device finishes them in
    /// milliseconds; on a failed one their memory is leaked.
    fn drop(&mut self) {
        let _ = self.drain();
    }
}
