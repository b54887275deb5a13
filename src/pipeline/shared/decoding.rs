//! What the consumer sent itself, and is at a device's decoder.

use std::time::Duration;

use crate::device::{Device, NotDecoded};
use crate::pipeline::traits::Patience;
use crate::sync::{Condvar, Instant, Mutex};

/// Whether a task's rows are made.
pub(crate) struct Decoding {
    since: Instant,
    /// What came of it, once that is known.
    outcome: Mutex<Option<Result<(), NotDecoded>>>,
    known: Condvar,
}

/// Since when a device has been at what was handed to its decoder at this instant. Time that it spent on earlier work does not count.
pub(crate) fn begun(device: &Device, handed_over: Instant) -> Instant {
    let moved = device.inner.decoder_moved();
    moved.map_or(handed_over, |moved| moved.max(handed_over))
}

impl Decoding {
    pub(crate) fn new() -> Decoding {
        Decoding {
            since: Instant::now(),
            outcome: Mutex::default(),
            known: Condvar::default(),
        }
    }

    pub(crate) fn ends(&self, outcome: Result<(), NotDecoded>) {
        *self.outcome.lock() = Some(outcome);
        self.known.notify_all();
    }

    /// Waits for it, as long as patience lasts, and the device takes no longer for it than `timeout`. Returns what came of it, as far as
    /// that is known; the error: for how long the device has been at it.
    pub(crate) fn wait(
        &self,
        device: &Device,
        timeout: Option<Duration>,
        patience: Patience,
    ) -> Result<Option<Result<(), NotDecoded>>, Duration> {
        let mut outcome = self.outcome.lock();
        loop {
            if let Some(known) = outcome.take() {
                return Ok(Some(known));
            }
            let (now, begun) = (Instant::now(), begun(device, self.since));
            let due = timeout.and_then(|timeout| begun.checked_add(timeout));
            if due.is_some_and(|due| due <= now) {
                return Err(now.saturating_duration_since(begun));
            }
            let Some(end) = patience.end(now) else {
                return Ok(None);
            };
            match [end, due].into_iter().flatten().min() {
                None => self.known.wait(&mut outcome),
                Some(end) => _ = self.known.wait_until(&mut outcome, end),
            }
        }
    }
}
