//! Sending: units of an epoch that goes to a device, by whoever made them or by the consumer.

use super::Pipeline;
use super::consumer::Taken;
use super::outbox::{Outbox, SendOutcome, Sends};
use super::pass::Pass;
use super::schedule::Unit;
use super::seat::Seat;
use super::slots::Made;
use crate::batch::Batch;
use crate::error::Result;
use crate::sync::planted;
use crate::trace::span;

impl<B: Batch> Pipeline<B> {
    /// Sends a page-locked unit to its device, if that is possible now, and makes it ready.
    pub(super) fn hand_over(&self, pass: &Pass, unit: Unit, made: B) {
        let outbox = {
            let mut board = self.lock();
            let line = board.line_of(pass, unit);
            line.and_then(|(line, _)| line.outbox(pass.segment))
        };
        let Some(outbox) = outbox else {
            return self.keep(pass, unit, made);
        };
        let progress = outbox.progress();
        let outcome = self.send(&*outbox, pass, unit, made, false);
        self.publish(pass, unit, outcome);
        // Batches are sent in order: a later one may have been ready first, or its turn may have come since.
        if outbox.progress() != progress && !planted("who sends does not look behind") {
            self.send_behind(pass, &*outbox);
        }
    }

    /// Sends what is ready and may have its turn now, in this epoch and in the one after it.
    pub(super) fn send_behind(&self, pass: &Pass, outbox: &dyn Sends<B>) {
        self.send_ready(pass.line, pass.segment, outbox, false);
        self.send_following(pass);
    }

    /// Makes a unit ready that goes to no device, as far as is known.
    fn keep(&self, pass: &Pass, unit: Unit, made: B) {
        let outbox = {
            let mut board = self.lock();
            let Some((line, bin)) = board.line_of(pass, unit) else {
                return board.bin.drop_later(made);
            };
            line.publish(unit, Ok(Made::Here(made)), bin);
            line.outbox(pass.segment)
        };
        // The program may have said so meanwhile, and found that the unit was not ready.
        if let Some(outbox) = outbox.filter(|_| !planted("who keeps does not look again")) {
            self.send_behind(pass, &*outbox);
        }
    }

    /// Sends what the epoch after this one has ready: it may have waited for this one's last batch to begin.
    pub(super) fn send_following(&self, pass: &Pass) {
        let following = {
            let mut board = self.lock();
            board.line(pass.line).and_then(|(line, _)| {
                let segment = line.schedule.id_after(pass.segment)?;
                Some((segment, line.outbox(segment)?))
            })
        };
        if let Some((segment, outbox)) = following
            && outbox.allowed() > 0
            && !planted("who sends does not look beyond the epoch")
        {
            self.send_ready(pass.line, segment, &*outbox, false);
        }
    }

    /// Sends the units of an epoch that are ready and may be sent. `pageable`: those that are not page-locked as well, which takes as long
    /// as their copy.
    pub(super) fn send_ready(
        &self,
        line: u64,
        segment: u64,
        outbox: &dyn Sends<B>,
        pageable: bool,
    ) {
        loop {
            let (progress, allowed) = (outbox.progress(), outbox.allowed());
            let next = {
                let mut board = self.lock();
                let line = board.line(line);
                line.and_then(|(line, _)| line.take_to_send(segment, allowed, pageable))
            };
            let Some((pass, unit, made)) = next else {
                return;
            };
            let send = || self.send(outbox, &pass, unit, made, false);
            let Some(outcome) = self.catch_panics(&pass, unit, send) else {
                continue; // its error is ready
            };
            let is_here = matches!(outcome, Ok(Made::Here(_)));
            let mut board = self.lock();
            match board.line_of(&pass, unit) {
                Some((line, bin)) => line.publish(unit, outcome, bin),
                None => board.bin.drop_later(outcome),
            }
            drop(board);
            if is_here && outbox.progress() == progress {
                return;
            }
        }
    }

    /// Sends what may be sent of the seat's epoch: first the units that the consumer took in advance, then those that are ready. It stops
    /// if the device has no memory without waiting: sending ahead must not fail for lack of memory that will be free by the time the
    /// batch is asked for.
    pub(crate) fn send_ahead(&self, seat: &Seat, taken: &mut Taken<B>, outbox: &Outbox<B>) {
        let allowed = outbox.allowed();
        for next in taken.iter_mut() {
            if next.pass.place(next.unit).batch >= allowed {
                return;
            }
            let outcome = match std::mem::replace(&mut next.outcome, Ok(Made::Sent)) {
                Ok(Made::Here(made)) => self.send(outbox, &next.pass, next.unit, made, false),
                outcome => outcome,
            };
            let is_here = matches!(outcome, Ok(Made::Here(_)));
            next.outcome = outcome;
            if is_here {
                return;
            }
            next.charges.end();
        }
        self.send_ready(seat.line, seat.segment, outbox, true);
    }

    /// Sends a unit; `Made::Here` if that is not possible now. `waits`: the consumer has come to it, and waits for device memory.
    pub(crate) fn send(
        &self,
        outbox: &dyn Sends<B>,
        pass: &Pass,
        unit: Unit,
        made: B,
        waits: bool,
    ) -> Result<Made<B>> {
        span!("send", epoch = pass.epoch, unit = unit.0);
        let send = || outbox.send(pass, unit, made, waits);
        let outcome = match pass.subject(unit) {
            None => send(),
            Some(subject) => subject.sends(send),
        };
        match outcome {
            SendOutcome::Sent => {
                self.makes_room();
                Ok(Made::Sent)
            }
            SendOutcome::NotNow(made) => Ok(Made::Here(made)),
            SendOutcome::Failed(error) => Err(error),
            SendOutcome::Unlike(like, error) => {
                let [part, like] = [unit, like].map(|unit| pass.place(unit));
                Err(self.recipe.unlike(pass, part, like, error))
            }
        }
    }
}
