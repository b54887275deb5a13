//! Sending: units of an epoch that goes to a device, by whoever made them or by the consumer.

use super::queue::Outbox;
use crate::batch::Batch;
use crate::error::Result;
use crate::pipeline::epoch::Pass;
use crate::pipeline::schedule::Unit;
use crate::pipeline::shared::data::Delivered;
use crate::pipeline::shared::data::Made;
use crate::pipeline::threads::consumer::Taken;
use crate::pipeline::threads::decoded::Sender;
use crate::pipeline::threads::pipeline::Pipeline;
use crate::pipeline::traits::{Each, Seat, SendOutcome, Sends};
use crate::sync::{Arc, planted};
use crate::trace::span;

/// Takes out of these what was taken in advance, and may be sent together with the first.
fn take_with<'a, B: Batch>(
    pass: &Pass,
    first: Unit,
    taken: impl Iterator<Item = &'a mut Delivered<B>>,
    outbox: &Outbox<B>,
) -> Each<B> {
    let mut units = Vec::new();
    if pass.is_sent_alone(first) {
        return units;
    }
    let permits = outbox.permits();
    let others = permits.together.saturating_sub(1);
    for (next, number) in taken.zip(first.0 + 1..).take(others) {
        let unit = next.unit;
        let goes_too =
            unit.0 == number && pass.batch(unit) < permits.allowed && !pass.is_sent_alone(unit);
        match goes_too.then(|| next.take_here()).flatten() {
            Some(made) => units.push((unit, made)),
            None => break,
        }
    }
    units
}

impl<B: Batch> Pipeline<B> {
    /// Sends a page-locked unit to its device, if that is possible now, and makes it ready.
    pub(crate) fn hand_over(&self, pass: &Pass, unit: Unit, made: B) {
        let outbox = {
            let mut board = self.lock();
            let line = board.line_of(pass, unit);
            line.and_then(|(line, _)| line.outbox(pass.segment))
        };
        match outbox {
            Some(outbox) => {
                let progress = outbox.permits().progress;
                let outcome = self.send(&*outbox, pass, (unit, made), Sender::Thread, false);
                if !matches!(outcome, Ok(Made::Decoding(_))) {
                    self.publish(pass, unit, outcome);
                }
                // Batches are sent in order: a later one may have been ready first, or its turn may have come since.
                let is_later = outbox.permits().progress != progress;
                if is_later && !planted("who sends does not look behind") {
                    self.send_behind(pass, &*outbox);
                }
            }
            None => self.keep(pass, unit, made),
        }
    }

    /// Sends what is ready and may have its turn now, in this epoch and in the one after it.
    pub(crate) fn send_behind(&self, pass: &Pass, outbox: &dyn Sends<B>) {
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
    pub(crate) fn send_following(&self, pass: &Pass) {
        let following = {
            let mut board = self.lock();
            board.line(pass.line).and_then(|(line, _)| {
                let segment = line.schedule.id_after(pass.segment)?;
                Some((segment, line.outbox(segment)?))
            })
        };
        if let Some((segment, outbox)) = following
            && outbox.permits().allowed > 0
            && !planted("who sends does not look beyond the epoch")
        {
            self.send_ready(pass.line, segment, &*outbox, false);
        }
    }

    /// Sends the units of an epoch that are ready and may be sent. `pageable`: those that are not page-locked as well, which takes as long
    /// as their copy.
    pub(crate) fn send_ready(
        &self,
        line: u64,
        segment: u64,
        outbox: &dyn Sends<B>,
        pageable: bool,
    ) {
        loop {
            let permits = outbox.permits();
            let next = {
                let mut board = self.lock();
                let line = board.line(line);
                line.and_then(|(line, _)| line.take_to_send(segment, permits, pageable))
            };
            let Some((pass, units)) = next else {
                return;
            };
            let numbers: Vec<Unit> = units.iter().map(|(unit, _)| *unit).collect();
            let send = || self.send_together(outbox, &pass, units, Sender::Thread);
            let Some(outcomes) = self.catch_panics(&pass, &numbers, send) else {
                continue; // their errors are ready
            };
            let is_here =
                |(_, outcome): &(Unit, Result<Made<B>>)| matches!(outcome, Ok(Made::Here(_)));
            let is_one_here = outcomes.iter().any(is_here);
            let mut board = self.lock();
            for (unit, outcome) in outcomes {
                if let Ok(Made::Decoding(_)) = outcome {
                    continue; // the decoder's thread publishes it
                }
                match board.line_of(&pass, unit) {
                    Some((line, bin)) => line.publish(unit, outcome, bin),
                    None => board.bin.drop_later(outcome),
                }
            }
            drop(board);
            if is_one_here && outbox.permits().progress == permits.progress {
                return;
            }
        }
    }

    /// Sends what may be sent of the seat's epoch: first the units that the consumer took in advance, then those that are ready. It stops
    /// if the device has no memory without waiting: sending ahead must not fail for lack of memory that will be free by the time the
    /// batch is asked for.
    pub(crate) fn send_ahead(&self, seat: &Seat, taken: &mut Taken<B>, outbox: &Outbox<B>) {
        let permits = outbox.permits();
        let mut index = 0;
        loop {
            let behind = taken.iter().skip(index).take(permits.together);
            let here = behind.take_while(|next| next.is_here()).count();
            let Some(next) = taken.get_mut(index) else {
                break;
            };
            let (unit, batch) = (next.unit, next.pass.batch(next.unit));
            if here > 0 && (batch >= permits.allowed || !permits.lets(batch, here)) {
                return;
            }
            let Some(made) = next.take_here() else {
                next.charges.end();
                index += 1;
                continue;
            };
            let pass = Arc::clone(&next.pass);
            let mut units = vec![(unit, made)];
            let behind = taken.iter_mut().skip(index + 1);
            units.extend(take_with(&pass, unit, behind, outbox));
            let mut are_gone = true;
            for (_, outcome) in self.send_together(outbox, &pass, units, Sender::Consumer) {
                are_gone &= taken[index].comes_back(outcome);
                index += 1;
            }
            if !are_gone {
                return;
            }
        }
        self.send_ready(seat.line, seat.segment, outbox, true);
    }

    /// Sends a unit that the consumer has come to and that was not sent ahead, as [`send_next`](Pipeline::send_next).
    pub(crate) fn send_taken(
        &self,
        next: &mut Delivered<B>,
        taken: &mut Taken<B>,
        outbox: &Outbox<B>,
    ) {
        if let Some(made) = next.take_here() {
            let pass = Arc::clone(&next.pass);
            let outcome = self.send_next(&pass, (next.unit, made), taken, outbox);
            next.comes_back(outcome);
        }
    }

    /// Sends the unit that the consumer has come to, for which it waits for device memory if need be; and with it those that it took in advance
    /// and that may be sent together with it.
    pub(crate) fn send_next(
        &self,
        pass: &Arc<Pass>,
        (unit, made): (Unit, B),
        taken: &mut Taken<B>,
        outbox: &Outbox<B>,
    ) -> Result<Made<B>> {
        let others = take_with(pass, unit, taken.iter_mut(), outbox);
        if others.is_empty() {
            return self.send(outbox, pass, (unit, made), Sender::Consumer, true);
        }
        let mut units = vec![(unit, made)];
        units.extend(others);
        let outcomes = self.send_together(outbox, pass, units, Sender::Consumer);
        let mut outcomes = outcomes.into_iter();
        let Some((_, first)) = outcomes.next() else {
            unreachable!("each unit that is sent has an outcome");
        };
        for (next, (_, outcome)) in taken.iter_mut().zip(outcomes) {
            next.comes_back(outcome);
        }
        match first {
            Ok(Made::Here(made)) => self.send(outbox, pass, (unit, made), Sender::Consumer, true),
            outcome => outcome,
        }
    }

    /// Sends units that follow each other, as [`send`](Pipeline::send), which does not wait.
    fn send_together(
        &self,
        outbox: &dyn Sends<B>,
        pass: &Pass,
        mut units: Each<B>,
        sender: Sender,
    ) -> Each<Result<Made<B>>> {
        if units.len() == 1 {
            let send = |(unit, made)| (unit, self.send(outbox, pass, (unit, made), sender, false));
            return units.pop().map(send).into_iter().collect();
        }
        span!(
            "send",
            epoch = pass.epoch,
            unit = units[0].0.0,
            count = units.len()
        );
        let outcomes = outbox.send_together(pass, units).into_iter();
        let sent = |(unit, outcome)| (unit, self.sent(outbox, pass, unit, outcome, sender));
        outcomes.map(sent).collect()
    }

    /// Sends a unit; `Made::Here` if that is not possible now. `waits`: the consumer has come to it, and waits for device memory.
    fn send(
        &self,
        outbox: &dyn Sends<B>,
        pass: &Pass,
        (unit, made): (Unit, B),
        sender: Sender,
        waits: bool,
    ) -> Result<Made<B>> {
        span!("send", epoch = pass.epoch, unit = unit.0);
        let send = || outbox.send(pass, unit, made, waits);
        let outcome = match pass.subject(unit) {
            None => send(),
            Some(subject) => subject.sends(send),
        };
        self.sent(outbox, pass, unit, outcome, sender)
    }

    fn sent(
        &self,
        outbox: &dyn Sends<B>,
        pass: &Pass,
        unit: Unit,
        outcome: SendOutcome<B>,
        sender: Sender,
    ) -> Result<Made<B>> {
        match outcome {
            SendOutcome::Sent => {
                self.makes_room();
                Ok(Made::Sent)
            }
            SendOutcome::Decodes(undecoded) => {
                self.makes_room();
                Ok(self.decode(outbox, (pass, unit), undecoded, sender))
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
