//! Decoding: units that were sent, and some of whose rows the device's decoder makes.
//!
//! A unit that a thread of the loader sends is not ready before its rows are made: the decoder's thread publishes it then. What the consumer
//! sends itself, it has taken already: it waits for that when it comes to it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use super::consumer::{Patience, Taken};
use super::pipeline::Pipeline;
use crate::batch::Batch;
use crate::device::{Device, NotDecoded, Undecoded};
use crate::error::drop_each;
use crate::error::{Error, Stage, TimedOut, panic_message};
use crate::pipeline::epoch::Pass;
use crate::pipeline::schedule::Unit;
use crate::pipeline::shared::data::{Delivered, Made};
use crate::pipeline::shared::session::Line;
use crate::pipeline::shared::state::Orphans;
use crate::pipeline::traits::{Changes, OwnItems, Sends};
use crate::pipeline::transfer::queue::Outbox;
use crate::pipeline::worker_status::Desk;
use crate::sync::{Arc, Condvar, Instant, Mutex, Weak};

/// Who sends a unit, and is to know when its rows are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sender {
    /// Whoever has it from the board: the board is told.
    Thread,
    /// The consumer, who took it.
    Consumer,
}

/// Whether a unit's rows are made.
pub(crate) struct Decoding {
    since: Instant,
    /// What came of it, once that is known.
    outcome: Mutex<Option<Result<(), NotDecoded>>>,
    known: Condvar,
}

/// A unit at a device's decoder, whose pictures are to be decoded by an instant.
pub(crate) struct Awaited<B> {
    pass: Arc<Pass>,
    unit: Unit,
    outbox: Arc<dyn Sends<B>>,
    /// It was handed over, or the decoder was done with something before it.
    since: Instant,
    pub(crate) due: Instant,
}

/// Since when a device has been at what was handed to its decoder then: what lies before it in the queue does not count.
fn begun(device: &Device, handed_over: Instant) -> Instant {
    let moved = device.inner.decoder_moved();
    moved.map_or(handed_over, |moved| moved.max(handed_over))
}

impl Decoding {
    fn ends(&self, outcome: Result<(), NotDecoded>) {
        *self.outcome.lock() = Some(outcome);
        self.known.notify_all();
    }

    /// Waits for it, as long as patience lasts, and the device takes no longer for it than `timeout`. Returns what came of it, as far as that is
    /// known; the error: for how long the device has been at it.
    fn wait(
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

impl<B: Batch> Line<B> {
    /// The unit of the line that is at a device's decoder for longest, if that has a time limit.
    pub(crate) fn awaits_decoder(&mut self, timeout: Option<Duration>) -> Option<Awaited<B>> {
        let timeout = timeout?;
        let sent = self.schedule.units_being_sent();
        let decoded = sent.filter_map(|(unit, slot)| Some((unit, slot, slot.decoding_since?)));
        let first = decoded.min_by_key(|(.., handed_over)| *handed_over);
        let (unit, pass, handed_over) =
            first.map(|(unit, slot, handed_over)| (unit, Arc::clone(&slot.pass), handed_over))?;
        let outbox = self.outbox(pass.segment)?;
        let since = begun(outbox.device(), handed_over);
        Some(Awaited {
            due: since.checked_add(timeout)?,
            pass,
            unit,
            outbox,
            since,
        })
    }
}

/// The error of a unit whose device takes too long to decode its pictures.
fn not_in_time(pass: &Pass, unit: Unit, device: &Device, elapsed: Duration) -> Error {
    Error::TimedOut(Box::new(TimedOut {
        sample: None,
        count: 1,
        others: Vec::new(),
        epoch: pass.epoch,
        batch: pass.batch(unit),
        stage: Stage::Decoding,
        elapsed,
        worker: format!("the decoder of {}", device.name()),
    }))
}

/// Whether a unit can be made again.
pub(crate) fn can_make_again<B: 'static>(pass: &Pass, own: Option<&OwnItems<B>>) -> bool {
    match pass.plan().pulls {
        None => true,
        // Its items may be used up. (Then no policy asks for others, either: the picture's error is the batch's.)
        Some(_) => own.is_some_and(|own| own.keeps),
    }
}

/// Takes a unit's samples out of the statistics: it is made again.
fn uncount<B>(pass: &Pass, unit: Unit, own: Option<&OwnItems<B>>, changes: Option<&Changes>) {
    let rows = own.map_or_else(|| pass.place(unit).rows, |own| own.place.rows);
    let left_out = changes.map_or(0, |changes| changes.skipped.len());
    pass.meter.samples.take_back((rows - left_out) as u64);
}

impl<B: Batch> Pipeline<B> {
    /// Has the rows of a unit decoded that was sent. Returns what its sender has of it: for a thread, nothing more is to be done.
    pub(crate) fn decode(
        &self,
        outbox: &dyn Sends<B>,
        (pass, unit): (&Pass, Unit),
        undecoded: Undecoded,
        sender: Sender,
    ) -> Made<B> {
        match sender {
            Sender::Consumer => {
                let decoding = Arc::new(Decoding {
                    since: Instant::now(),
                    outcome: Mutex::default(),
                    known: Condvar::default(),
                });
                let told = Arc::clone(&decoding);
                outbox.decode(undecoded, Box::new(move |outcome| told.ends(outcome)));
                Made::Decoding(Some(decoding))
            }
            Sender::Thread => {
                let pass = {
                    let mut board = self.lock();
                    board.line_of(pass, unit).map(|(line, bin)| {
                        line.schedule.decoding(unit);
                        line.slot(unit).decoding_since = Some(Instant::now());
                        bin.wake_workers = true; // it is out of the window
                        line.pass(unit)
                    })
                };
                // (If it is gone, nobody wants it.)
                if let Some(pass) = pass {
                    let pipeline = Weak::clone(&self.me);
                    let tell = move |outcome| {
                        if let Some(pipeline) = pipeline.upgrade() {
                            pipeline.is_decoded(&pass, unit, outcome);
                        }
                    };
                    outbox.decode(undecoded, Box::new(tell));
                }
                Made::Decoding(None)
            }
        }
    }

    /// Makes a unit ready whose rows are made, or gives it to whoever makes it again. (On the decoder's thread.)
    fn is_decoded(&self, pass: &Pass, unit: Unit, outcome: Result<(), NotDecoded>) {
        let publish = || match outcome {
            Ok(()) => self.publish(pass, unit, Ok(Made::Sent)),
            Err(why) if why.is_of_picture() && self.makes_again(pass, unit) => {}
            Err(why) => {
                let error = self.not_decoded(pass, unit, why);
                self.publish(pass, unit, Err(error));
            }
        };
        if let Err(payload) = catch_unwind(AssertUnwindSafe(publish)) {
            self.lock().breaks(panic_message(payload));
        }
    }

    /// Waits until the rows of a unit are made that the consumer has sent; `false` if that is not known when patience ends. If a picture of it
    /// cannot be decoded, it is made again, without the device, and sent.
    pub(crate) fn wait_for_decoder(
        &self,
        next: &mut Delivered<B>,
        taken: &mut Taken<B>,
        outbox: &Outbox<B>,
        patience: Patience,
    ) -> bool {
        let Ok(Made::Decoding(Some(decoding))) = &next.outcome else {
            return true;
        };
        let device = outbox.device();
        let decoded = match decoding.wait(device, self.options().timeout, patience) {
            Ok(Some(decoded)) => decoded,
            Ok(None) => return false,
            Err(elapsed) => {
                device.inner.decoder_is_late();
                next.outcome = Err(not_in_time(&next.pass, next.unit, device, elapsed));
                return true;
            }
        };
        let (pass, unit) = (Arc::clone(&next.pass), next.unit);
        let own = next.own.as_deref();
        next.outcome = match decoded {
            Ok(()) => Ok(Made::Sent),
            Err(why) if why.is_of_picture() && can_make_again(&pass, own) => {
                uncount(&pass, unit, own, next.changes.as_deref());
                outbox.take_back(&pass, unit);
                let changes = next.changes.take().map(|changes| *changes);
                let own = own.map(OwnItems::again);
                let desk = Desk::of_caller(self.began);
                let again = self.make(
                    &pass,
                    unit,
                    own.as_ref(),
                    changes.unwrap_or_default(),
                    &desk,
                );
                drop_each([own]); // its items are the user's
                next.changes = Some(Box::new(again.changes));
                let send = |made| self.send_next(&pass, (unit, made), taken, outbox);
                again.made.and_then(send)
            }
            Err(why) => Err(self.not_decoded(&pass, unit, why)),
        };
        true
    }

    /// A unit that the consumer waits for, or another of its line, is at a decoder that hangs: it fails. What the decoder has of it stays there.
    pub(crate) fn give_up_decoding(&self, late: Awaited<B>) {
        let Awaited {
            pass,
            unit,
            outbox,
            since,
            ..
        } = late;
        let elapsed = Instant::now().saturating_duration_since(since);
        let device = outbox.device();
        device.inner.decoder_is_late();
        let error = not_in_time(&pass, unit, device, elapsed);
        self.publish(&pass, unit, Err(error));
    }

    /// A unit has a picture that nobody can decode, and the policy for such samples is the workers' to carry out: one makes it again, without
    /// the device. `false`: it cannot be made again.
    fn makes_again(&self, pass: &Pass, unit: Unit) -> bool {
        let outbox = {
            let mut board = self.lock();
            let Some((line, _)) = board.line_of(pass, unit) else {
                return true; // nobody wants it
            };
            if !line.schedule.is_being_sent(unit) {
                return true; // it has failed otherwise
            }
            let slot = line.slot(unit);
            let own = slot.own.as_deref();
            if !can_make_again(pass, own) {
                return false;
            }
            uncount(pass, unit, own, slot.changes.as_deref());
            slot.decoding_since = None;
            line.outbox(pass.segment)
        };
        if let Some(outbox) = outbox {
            outbox.take_back(pass, unit);
        }
        let mut board = self.lock();
        let (lines, bin) = board.split();
        let line = lines.line(pass.line);
        if let Some(line) = line.filter(|line| line.schedule.holds(unit)) {
            // Without workers, the consumer does it.
            line.unit_ready.notify_one();
            bin.wake_workers = true;
            let orphan = (pass.line, Orphans::NotDecoded(unit));
            lines.orphans.push_back(orphan);
        } // if not, its epoch was left meanwhile
        true
    }

    fn not_decoded(&self, pass: &Pass, unit: Unit, why: NotDecoded) -> Error {
        match why {
            NotDecoded::Failed(error) => error,
            NotDecoded::Picture { row, error } => {
                let place = pass.place(unit);
                Error::Sample(self.recipe.sample_id(pass, place, row, None), error)
            }
        }
    }
}
