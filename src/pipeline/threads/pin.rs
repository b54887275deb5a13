//! The pin thread of a device: it grants slabs that were not there when they were asked for, in the order of the batches. Without workers, the
//! consumer does that for itself.

use super::pipeline::Pipeline;
use crate::batch::Batch;
use crate::device::{Coming, HeldOff};
use crate::driver::RawEvent;
use crate::pipeline::epoch::EpochContext;
use crate::pipeline::memory::early::Early;
use crate::pipeline::memory::pinned::Served;
use crate::pipeline::plan::options::Pinning;
use crate::pipeline::schedule::TaskId;

impl<B: Batch> Pipeline<B> {
    /// Runs a device's pin thread, if there is one, until the loader is dropped. `early`: slabs to make before an epoch asks.
    pub(crate) fn run_pin_thread(&self, device: usize, mut early: Option<Early>) {
        let Some(pinning) = &self.options[device].pinning else {
            return;
        };
        let news = pinning.ring().news();
        let mut held_off: Option<HeldOff> = None;
        loop {
            // The ticket first, so as not to sleep through what happens while we look.
            let ticket = news.ticket();
            let waiting = {
                let mut state = self.lock();
                if state.is_closed {
                    return;
                }
                state.sessions.waiting(device)
            };
            // With nothing to serve, it does not matter which slabs come and go.
            let _interest = (!waiting.is_empty()).then(|| news.interest());
            let mut awaited = None;
            let mut staged = None;
            let mut progress = false;
            for (context, task) in waiting {
                match self.serve(pinning, &context, task) {
                    Served::Done(()) => progress = true,
                    Served::WaitForCopy(coming) => {
                        staged = staged.or_else(|| hold_off(pinning, &coming));
                        awaited = awaited.or(event_of(coming));
                    }
                    Served::Sleep => {}
                }
            }
            if progress {
                continue;
            }
            drop(std::mem::replace(&mut held_off, staged));
            match awaited {
                // A failed copy counts as finished: it leaves the list with its memory leaked, and the rule applies again.
                Some(event) => drop(event.sleep()),
                None if held_off.is_none()
                    && self.memory.make_ahead(pinning.ring(), &mut early) => {}
                None => news.wait(ticket),
            }
        }
    }

    /// Without workers, the consumer tries to get its task a slab, and waits if that helps. `held_off` lasts until the next try and no
    /// longer: loading the task may take long, and may copy to the device itself.
    pub(crate) fn serve_here(
        &self,
        pinning: &Pinning,
        context: &EpochContext,
        task: TaskId,
        held_off: &mut Option<HeldOff>,
    ) {
        let news = pinning.ring().news();
        // Until the wait is over, so as not to miss news between the look and the wait.
        let _interest = news.interest();
        let ticket = news.ticket();
        let Served::WaitForCopy(coming) = self.serve(pinning, context, task) else {
            return *held_off = None;
        };
        *held_off = hold_off(pinning, &coming);
        match event_of(coming) {
            // A failed copy counts as finished: the next round finds nothing in flight.
            Some(event) => drop(event.synchronize()),
            None => news.wait(ticket),
        }
    }

    /// Tries to grant a waiting task its slab, and does what follows from that.
    fn serve(&self, pinning: &Pinning, context: &EpochContext, task: TaskId) -> Served<()> {
        let serve = || match self.memory.serve(pinning, context, task) {
            Served::Done(then) => {
                self.follow_alone(context, task, then);
                Served::Done(())
            }
            Served::WaitForCopy(coming) => Served::WaitForCopy(coming),
            Served::Sleep => Served::Sleep,
        };
        let served = self.catch_panics(context, &[task], serve);
        served.unwrap_or(Served::Done(())) // its error is ready
    }
}

/// The event to wait for. `None`: there is none, and the ring notifies when it is over.
fn event_of(coming: Coming) -> Option<RawEvent> {
    match coming {
        Coming::Batch(event) | Coming::Other(event) => Some(event),
        Coming::Staged | Coming::Decoding | Coming::Nothing => None,
    }
}

/// While a task waits for slabs of staged uploads, no other upload is staged, so that the wait ends.
fn hold_off(pinning: &Pinning, coming: &Coming) -> Option<HeldOff> {
    let staged = &pinning.device.inner.staged;
    matches!(coming, Coming::Other(_) | Coming::Staged).then(|| staged.hold_off())
}
