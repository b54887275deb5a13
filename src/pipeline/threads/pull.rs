//! How one worker at a time pulls the items of a stream's units.
//!
//! A unit is opened for whoever pulls its items. When they are there, it has its rows, and is loaded as any unit is. If there are none
//! left, the unit is gone again, and the epoch's end is known. So pulling is serial, and the order is the stream's; a unit that is loaded
//! never turns out to be shorter.
//!
//! The stream lies in its epoch's slot while nobody pulls. Whoever pulls has taken it out, so no lock is held meanwhile. Between two items,
//! streams ask whether to go on ([`progress`](crate::stream::progress)): not if the epoch has left the board, or the worker was given up. What
//! comes of the pull then is dropped, as anything is that is made for a unit that is gone.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::pipeline::Pipeline;
use crate::batch::Batch;
use crate::error::drop_each;
use crate::error::{Error, panic_message};
use crate::meter::Activity;
use crate::pipeline::epoch::Pass;
use crate::pipeline::schedule::Unit;
use crate::pipeline::traits::{Pull, Pulled, Sends};
use crate::pipeline::worker_status::{Desk, Doing};
use crate::stream::{Watcher, watched};
use crate::sync::{Arc, Instant, planted};
use crate::tensor::Offload;
use crate::trace::span;

/// What a worker is told between two items: the next one has a timeout of its own, if somebody still waits. `None`: the caller pulls, on
/// its own thread, and cannot leave the epoch meanwhile.
fn watcher(desk: &Desk, pass: &Arc<Pass>) -> Option<Watcher> {
    let (desk, pass) = (desk.shared()?, Arc::clone(pass));
    Some(Arc::new(move || {
        desk.begins(Doing::Pulling);
        !pass.has_left() && (!desk.is_given_up() || planted("who was given up pulls on"))
    }))
}

impl<B: Batch> Pipeline<B> {
    /// Pulls the items of a unit, and lets others load them.
    pub(crate) fn pull(
        &self,
        desk: &Desk,
        pass: &Arc<Pass>,
        unit: Unit,
        mut stream: Box<dyn Pull<B>>,
        offload: Offload,
    ) {
        span!("pull", epoch = pass.epoch, unit = unit.0);
        desk.enter(Doing::Pulling, 0);
        let start = Instant::now();
        desk.since(start);
        let place = pass.place(unit);
        // Unwind safety: a stream that panicked is not asked again.
        let pull = AssertUnwindSafe(|| stream.pull(pass, place, offload));
        let bar = pass.bar(Activity::Pull, unit);
        let pulled = watched(watcher(desk, pass), || catch_unwind(pull));
        let pulled = pulled.unwrap_or_else(|payload| {
            Err(Error::StreamPanicked {
                epoch: pass.epoch,
                batch: place.batch,
                message: panic_message(payload),
            })
        });
        drop(bar);
        let has_left = desk.leave();
        if has_left {
            pass.meter.pulling_ns.add_since(start);
        }
        let pulled = match pulled {
            Ok(pulled) if has_left => pulled,
            pulled => {
                drop_each([stream]);
                match pulled {
                    Err(error) if has_left => self.fail_pull(pass, unit, error),
                    pulled => drop_each([pulled]),
                }
                return;
            }
        };
        let mut stream = Some(stream);
        let mut board = self.lock();
        let Some((line, bin)) = board.line_of(pass, unit) else {
            board.bin.drop_later((pulled, stream));
            return;
        };
        // (If the consumer is just leaving the epoch, its end is known, and its units are about to go.)
        let count = match pulled {
            Some(Pulled { work, own, is_last }) => {
                line.schedule.pulled(unit, own.place.rows);
                let slot = line.slot(unit);
                slot.work = Some(work);
                slot.own = Some(own);
                if is_last {
                    line.schedule.close_end(pass.segment)
                } else {
                    if let Some(epoch) = line.schedule.epoch(pass.segment) {
                        epoch.stream = stream.take();
                    }
                    None
                }
            }
            None => {
                let schedule = &mut line.schedule;
                let count = schedule.close_end_before(unit, pass.segment, bin.removed());
                if !planted("the end of a stream is found in silence") {
                    line.tell_consumer(unit);
                }
                count
            }
        };
        bin.wake_workers = true;
        bin.drop_later(stream);
        let outbox = line.outbox(pass.segment);
        drop(board);
        if let Some(batches) = count {
            self.tell_end(pass, outbox.as_deref(), batches);
        }
    }

    /// A stream did not give the items of a unit: the unit is an error, and the epoch's last.
    pub(crate) fn fail_pull(&self, pass: &Pass, unit: Unit, error: Error) {
        let (count, outbox) = {
            let mut board = self.lock();
            let Some((line, _)) = board.line_of(pass, unit) else {
                return board.bin.drop_later(error);
            };
            let count = line.schedule.close_end(pass.segment);
            (count, line.outbox(pass.segment))
        };
        self.publish(pass, unit, Err(error));
        if let Some(batches) = count {
            self.tell_end(pass, outbox.as_deref(), batches);
        }
        self.wake_workers(); // for the epoch after it
    }

    /// It is known how many batches an epoch has. What may be sent beyond them is of the epoch after it.
    fn tell_end(&self, pass: &Pass, outbox: Option<&dyn Sends<B>>, batches: u64) {
        let Some(outbox) = outbox.filter(|_| !planted("an outbox is not told of the end")) else {
            return;
        };
        let beyond = outbox.ends(batches);
        let following = {
            let mut board = self.lock();
            let line = board.line(pass.line);
            line.and_then(|(line, _)| {
                let segment = line.schedule.id_after(pass.segment)?;
                line.outbox(segment)
            })
        };
        if let Some(following) = following {
            following.allow_first(beyond);
            self.send_following(pass);
        }
    }
}
