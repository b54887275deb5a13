//! What the iterators over an epoch share: waiting for its tasks, giving its batches, and the time that both take.

use std::task::Poll;

use super::Epoch;
use crate::batch::Batch;
use crate::error::{Error, Result, drop_each};
use crate::loader::kind::Kind;
use crate::meter::{Activity, More, Subject};
use crate::pipeline::{Asking, Changes, Made, NextTask, OwnItems, Patience, SendWindow, Sent};
use crate::sync::Instant;
use crate::trace::span;

impl<B: Batch, K: Kind> Epoch<'_, B, K> {
    /// The batch that is put together has these changes, too; its task begins with this row.
    pub(super) fn add_changes(&mut self, first_row: usize, changes: Option<Box<Changes>>) {
        if first_row == 0 {
            self.changes = changes;
        } else if let Some(mut changes) = changes {
            changes
                .replaced
                .iter_mut()
                .for_each(|replaced| replaced.row += first_row);
            self.changes.get_or_insert_default().append(*changes);
        }
    }

    /// The batch that is given out was made of these items of an iterable.
    pub(super) fn reaches(&mut self, own: Option<Box<OwnItems<B>>>) {
        if let (Some(own), Some(reached)) = (own, &self.handle.reached) {
            self.own = Some(own.place);
            let behind = own.into_reached(); // without the lock: items are the user's to drop
            *reached.lock() = behind;
        }
    }

    /// Counts the samples of the batch that is to be given out next, of so many rows if they are an iterable's own, and says if too many of
    /// them failed. The epoch ends then, and the batch is not given out.
    pub(super) fn has_too_many_bad(&mut self, batch: u64, rows: Option<usize>) -> Option<Error> {
        self.bad?;
        let rows = rows.unwrap_or_else(|| match self.handle.reached {
            None => self.partition.batch_rows(batch),
            Some(_) => 0, // an iterable that had no items for it
        });
        let bad = self.changes.as_ref().map_or(0, |changes| changes.bad());
        let is_last = self.left() <= 1;
        let too_many = self.bad.as_mut()?.add(rows, bad, is_last);
        too_many.then(|| self.ends_with_bad()).flatten()
    }

    /// The end of an iterable was found: says if too many of its items failed, which was not told while there were few.
    pub(super) fn had_too_many_bad(&mut self) -> Option<Error> {
        let too_many = self.bad.as_ref()?.are_too_many();
        (too_many && !self.has_ended)
            .then(|| self.ends_with_bad())
            .flatten()
    }

    fn ends_with_bad(&mut self) -> Option<Error> {
        let count = self.bad.as_ref()?;
        let error = Error::TooManyBad {
            epoch: self.handle.start.epoch,
            bad: count.bad,
            samples: count.samples,
            at_most: count.most(),
        };
        (self.has_ended, self.batches) = (true, self.given());
        Some(error)
    }

    /// Ends the host's own time, which began with the last batch. Returns the time now.
    pub(super) fn returned(&mut self) -> Instant {
        let now = Instant::now();
        if let Some(given_at) = self.given_at.take() {
            let host_ns = self.handle.meter.host_ns.add_between(given_at, now);
            self.goes_on(host_ns);
            if let Some(subject) = self.subject(0) {
                subject.add(Activity::Step, given_at, now, More::Nothing);
            }
        }
        now
    }

    /// What the consumer's events are recorded for: with the batch that it has, or, `beyond` it, waiting for the next.
    fn subject(&self, beyond: u64) -> Option<Subject<'_>> {
        let batch = || (self.given() + beyond).checked_sub(1);
        self.handle.meter.subject(batch)
    }

    /// The consumer has waited.
    pub(super) fn has_waited(&mut self, asked: Instant, came: Instant) {
        let waited = &self.handle.meter.consumer_wait_ns;
        let waited_ns = waited.add_between(asked, came);
        self.waited_ns += waited_ns;
        self.goes_on(waited_ns);
    }

    /// The consumer's time goes on.
    fn goes_on(&self, ns: u64) {
        if let Some(pace) = &self.pace {
            self.handle.meter.parallel_ns.add(pace.behind_ns(ns));
        }
    }

    /// Counts a batch that is given out, or (`is_made`: no) its error. What became of its samples is known.
    pub(super) fn gives(&mut self, batch: u64, is_made: bool) {
        self.last = batch;
        self.handle.progress.add(batch);
        let (meter, waited_ns) = (&self.handle.meter, std::mem::take(&mut self.waited_ns));
        meter.consumer_wait_times.count(waited_ns);
        if self.handle.progress.count() == 1 {
            meter.first_wait_ns.add(waited_ns);
            meter.first_waits.add(1);
        }
        if is_made {
            let rows = match self.own {
                Some(own) => own.rows,
                None => self.partition.batch_rows(batch),
            };
            let left_out = self.changes.as_ref();
            let left_out = left_out.map_or(0, |changes| changes.skipped.len());
            meter.given_batches.add(1);
            meter
                .given_samples
                .add(rows.saturating_sub(left_out) as u64);
        }
        if let Some(ready) = self.waiting.ready.take() {
            meter.ready_batches.count(ready);
        }
    }

    /// Starts the host's own time again.
    pub(super) fn resumes(&mut self) {
        self.given_at = Some(Instant::now());
    }

    /// Waits for the next task; `asked` is when the wait began. `sent`: what the caller was to send. `window`: of an epoch that goes to a
    /// device, what may be sent; the caller wakes the workers.
    pub(super) fn wait(
        &mut self,
        asked: Instant,
        sent: Option<Sent<B>>,
        patience: Patience,
        window: Option<SendWindow>,
    ) -> Poll<Option<NextTask<B>>> {
        let asking = Asking {
            at: asked,
            patience,
            window,
        };
        span!(
            "wait",
            epoch = self.handle.start.epoch,
            batch = self.given()
        );
        let pipeline = self.loader.pipeline();
        let next = pipeline.next(
            &self.handle,
            &mut self.taken,
            sent,
            asking,
            &mut self.waiting,
        );
        let came = Instant::now();
        self.has_waited(asked, came);
        if let Some(mut subject) = self.subject(1) {
            if matches!(next, Poll::Ready(None)) {
                subject.batch = None;
            }
            let ready = self.waiting.ready.map_or(More::Nothing, More::Ready);
            subject.add(Activity::Wait, asked, came, ready);
        }
        self.given_at = match &next {
            Poll::Ready(None) => {
                if let Some(reached) = &self.handle.reached {
                    reached.lock().is_over = true;
                }
                None
            }
            _ => Some(came),
        };
        next
    }

    /// What the epoch gives where no thread would make its batches: the error, and no more. But a thread of the loader's that does not wait
    /// may ask again, as others may. `on_device`: they would come from the device.
    pub(super) fn refuses<T>(
        &mut self,
        on_device: bool,
        patience: Patience,
    ) -> Option<Poll<Option<Result<T>>>> {
        if self.has_ended {
            return Some(Poll::Ready(None));
        }
        let error = self.pipeline().refuses_to_wait(on_device)?;
        if patience != Patience::None || self.pipeline().is_lost(on_device) {
            (self.has_ended, self.batches) = (true, self.given());
        }
        Some(Poll::Ready(Some(Err(error))))
    }

    pub(super) fn poll(&mut self, patience: Patience) -> Poll<Option<Result<B>>> {
        if let Some(refused) = self.refuses(false, patience) {
            return refused;
        }
        let asked = self.returned();
        let next = self.wait(asked, None, patience, None);
        next.map(|next| {
            let Some(next) = next else {
                return self.had_too_many_bad().map(Err);
            };
            let NextTask::Delivered(next) = next else {
                unreachable!("only a device epoch's batches are sent");
            };
            // (Asking for a place takes longer than counting.)
            let batch = self.handle.progress.next();
            self.changes = next.changes;
            let batch = batch.unwrap_or_else(|| next.context.place(next.task).batch);
            let rows = next.own.as_ref().map(|own| own.rows());
            if let Some(too_many) = self.has_too_many_bad(batch, rows) {
                drop_each([next.own]);
                drop_each([next.outcome]); // they may be the user's to drop
                return Some(Err(too_many));
            }
            self.reaches(next.own);
            self.gives(batch, next.outcome.is_ok());
            Some(next.outcome.map(|made| match made {
                Made::Here(batch) => batch,
                Made::Sent => unreachable!("only a device epoch's batches are sent"),
            }))
        })
    }
}
