//! What `worker.rs` does, and `ask` of `pin.rs`.

use super::*;

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Worker {
    Awake,
    Asleep,
    Loading { batch: u64, rows: Range<usize> },
    AtRing { batch: u64, want: Want, then: Then },
    Granted { batch: u64, then: Then },
    NotGranted { batch: u64, then: Then },
    Notify { then: Then },
    Report(Then),
    Plan { batch: u64 },
    Planning { batch: u64 },
    PlanFailed { batch: u64 },
    Finish { batch: u64 },
    Making { batch: u64 },
    Sent { batch: u64 },
    GiveUp { batch: u64 },
    Whole { batches: Range<u64> },
}

/// What a worker does when it has asked for a slab.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Then {
    Loaded {
        batch: u64,
        rows: usize,
        failed: bool,
    },
    Planned {
        batch: u64,
    },
    Nothing,
}

impl World {
    pub(super) fn work(&mut self, worker: Worker, spare: bool) -> Worker {
        match worker {
            Worker::Asleep => unreachable!(),
            Worker::Awake => self.claim(spare),
            Worker::Loading { batch, rows } => self.load(batch, rows),
            Worker::AtRing { batch, want, then } => {
                self.settle();
                if self.take(want, self.copies.is_empty()) {
                    let work = self.work_of(batch);
                    work.slabs += 1;
                    return Worker::Granted { batch, then };
                }
                Worker::NotGranted { batch, then }
            }
            Worker::Granted { batch, then } => {
                self.granted(batch);
                Worker::Report(then)
            }
            Worker::NotGranted { batch, then } => {
                self.not_granted(batch);
                Worker::Notify { then }
            }
            Worker::Notify { then } => {
                self.ring.news += 1;
                Worker::Report(then)
            }
            Worker::Report(then) => self.report(then),
            Worker::Plan { batch } if !self.is_open(batch) => Worker::Awake,
            Worker::Plan { batch } => {
                let work = self.work_of(batch);
                if !work.on_board {
                    return Worker::Awake;
                }
                work.holders += 1;
                Worker::Planning { batch }
            }
            Worker::Planning { batch } => {
                let work = self.work_of(batch);
                if work.fault == Fault::Plan {
                    work.holders -= 1;
                    self.forget(batch);
                    return Worker::PlanFailed { batch };
                }
                work.planned = true;
                self.ask(batch, Then::Planned { batch })
            }
            Worker::PlanFailed { batch } => {
                self.work_of(batch).failed = true;
                match self.schedule.failed(batch) {
                    true => Worker::GiveUp { batch },
                    false => Worker::Awake,
                }
            }
            Worker::Finish { batch } => {
                let work = self.work_of(batch);
                assert!(work.on_board && !work.failed && work.has_slab);
                assert!(work.claimed.iter().all(|claimed| *claimed));
                assert_eq!(work.holders, 0, "who finishes a batch is its only holder");
                work.on_board = false;
                Worker::Making { batch }
            }
            Worker::Making { batch } => {
                let (kind, fault) = (self.work_of(batch).kind, self.work_of(batch).fault);
                if fault == Fault::Finish {
                    let slabs = std::mem::take(&mut self.work_of(batch).slabs);
                    self.come_home(slabs);
                }
                let pinned = self.options.whole.is_none();
                if pinned
                    && self.options.sends
                    && fault != Fault::Finish
                    && !self.draw().is_multiple_of(3)
                {
                    return self.send(batch);
                }
                if fault == Fault::Finish || kind != Kind::Elsewhere || !pinned {
                    self.publish(batch, fault != Fault::Finish);
                    return Worker::Awake;
                }
                self.schedule.want_relocation(batch, 1);
                let work = self.work_of(batch);
                (work.wants, work.has_slab) = (true, false);
                let then = Then::Nothing;
                Worker::Notify { then }
            }
            Worker::Sent { batch } => {
                self.work_of(batch).sent = true;
                self.publish(batch, true);
                Worker::Awake
            }
            Worker::GiveUp { batch } => {
                self.publish(batch, false);
                Worker::Awake
            }
            Worker::Whole { batches } if batches.is_empty() => Worker::Awake,
            Worker::Whole { batches } => {
                let (batch, elapsed_ns) = (batches.start, u64::from(self.draw()) % 60_000);
                let work = self.work_of(batch);
                assert_eq!((work.outcome, work.holders), (None, 0));
                work.outcome = Some(work.fault == Fault::None);
                work.on_board = false;
                self.schedule.made(batch, elapsed_ns);
                self.notify(batch);
                Worker::Whole {
                    batches: batch + 1..batches.end,
                }
            }
        }
    }

    /// Wakes the consumer, if it is blocked on this batch.
    fn notify(&mut self, batch: u64) {
        if batch == self.schedule.first()
            && let Consumer::Blocked { notified } = &mut self.consumer
        {
            *notified = true;
        }
    }

    pub(super) fn claim(&mut self, spare: bool) -> Worker {
        let had = self.schedule.has_claim(spare);
        let claim = self.schedule.claim(spare);
        assert_eq!(had, claim.is_some());
        let next = match claim {
            None => return Worker::Asleep,
            Some(Claim::Finish { batch }) => Worker::Finish { batch },
            Some(Claim::Rows { batch, rows }) => {
                if batch == self.opened {
                    self.open(batch);
                }
                let work = self.work_of(batch);
                assert!(!rows.is_empty() && work.on_board && !work.failed);
                for row in rows.clone() {
                    assert!(!work.claimed[row], "row {row} of batch {batch} comes twice");
                    work.claimed[row] = true;
                }
                work.holders += 1;
                Worker::Loading { batch, rows }
            }
            Some(Claim::Whole { batches }) => {
                assert!(self.options.whole.is_some() && !batches.is_empty());
                for batch in batches.clone() {
                    assert_eq!(batch, self.opened);
                    self.open(batch);
                    self.seen.whole += 1;
                }
                Worker::Whole { batches }
            }
        };
        self.wake();
        next
    }

    pub(super) fn open(&mut self, batch: u64) {
        let (kind, fault) = self.options.batches[batch as usize];
        let rows = self.schedule.rows_of(batch);
        // Where the first sample plans the batch, it is a row that fails.
        let fault = match (kind, fault) {
            (Kind::Alike, Fault::Plan) => Fault::Row(0),
            (_, Fault::Row(row)) => Fault::Row(row % rows),
            (_, fault) => fault,
        };
        let work = Work {
            kind,
            fault,
            holders: 0,
            on_board: true,
            claimed: vec![false; rows],
            planned: false,
            wants: false,
            has_slab: false,
            slabs: 0,
            failed: false,
            outcome: None,
            sent: false,
        };
        self.works.insert(batch, work);
        self.opened += 1;
    }

    pub(super) fn load(&mut self, batch: u64, rows: Range<usize>) -> Worker {
        let work = self.work_of(batch);
        let failed = matches!(work.fault, Fault::Row(row) if rows.contains(&row));
        let then = Then::Loaded {
            batch,
            rows: rows.len(),
            failed,
        };
        let fails_first = matches!(work.fault, Fault::Row(row) if row == rows.start);
        if work.kind == Kind::Alike && !work.planned && !fails_first {
            work.planned = true;
            return self.ask(batch, then);
        }
        Worker::Report(then)
    }

    /// `ask` of pin.rs, up to its way to the ring.
    pub(super) fn ask(&mut self, batch: u64, then: Then) -> Worker {
        let work = self.work_of(batch);
        work.wants = true;
        if work.kind == Kind::Elsewhere || self.options.whole.is_some() {
            self.schedule.want(batch, 1);
            self.granted(batch);
            return Worker::Report(then);
        }
        self.schedule.want(batch, 1);
        let bytes = if self.options.streams { 1 << 40 } else { 0 };
        self.schedule.streams(batch, bytes);
        match self.schedule.want_of(batch) {
            Some(want) => {
                self.check_want(want);
                self.schedule.granting(batch);
                Worker::AtRing { batch, want, then }
            }
            None => {
                self.seen.parked += 1;
                Worker::Notify { then }
            }
        }
    }

    pub(super) fn report(&mut self, then: Then) -> Worker {
        match then {
            Then::Nothing => Worker::Awake,
            Then::Loaded {
                batch,
                rows,
                failed,
            } => {
                let elapsed_ns = u64::from(self.draw()) % 60_000 * rows as u64;
                let work = self.work_of(batch);
                work.holders -= 1;
                work.failed |= failed;
                match self.schedule.loaded(batch, rows, elapsed_ns, failed) {
                    Loaded::Wait => Worker::Awake,
                    Loaded::Plan => Worker::Plan { batch },
                    Loaded::Finish => Worker::Finish { batch },
                    Loaded::Failed => Worker::GiveUp { batch },
                }
            }
            Then::Planned { batch } => {
                self.work_of(batch).holders -= 1;
                self.forget(batch);
                match self.is_open(batch) && self.schedule.planned(batch) {
                    true => Worker::Finish { batch },
                    false => Worker::Awake,
                }
            }
        }
    }

    pub(super) fn granted(&mut self, batch: u64) {
        if self.is_open(batch) {
            self.schedule.granted(batch);
            let work = self.work_of(batch);
            (work.wants, work.has_slab) = (false, true);
            self.wake();
        }
    }

    pub(super) fn not_granted(&mut self, batch: u64) {
        if self.is_open(batch) {
            self.schedule.not_granted(batch);
        }
    }

    pub(super) fn publish(&mut self, batch: u64, ok: bool) {
        assert!(
            self.is_open(batch),
            "batch {batch} is published after it was delivered"
        );
        if self.schedule.is_done(batch) {
            return;
        }
        let work = self.work_of(batch);
        assert_eq!(work.outcome, None);
        work.outcome = Some(ok);
        work.wants = false;
        work.on_board = false;
        let free = if !ok && work.holders == 0 {
            std::mem::take(&mut work.slabs)
        } else {
            0
        };
        match self.work_of(batch).sent {
            true => self.schedule.sent(batch),
            false => self.schedule.done(batch),
        }
        self.notify(batch);
        self.wake();
        self.come_home(free);
    }

    /// Enqueues the copy of a batch that was made; its slab comes home behind it.
    fn send(&mut self, batch: u64) -> Worker {
        self.seen.sent += 1;
        self.settle();
        self.sent += 1;
        let slabs = std::mem::take(&mut self.work_of(batch).slabs);
        let (id, done) = (self.sent, false);
        self.copies.push(Flying { id, slabs, done });
        self.tell_interested();
        Worker::Sent { batch }
    }

    /// Whoever lets go of a batch that failed may be its last holder.
    pub(super) fn forget(&mut self, batch: u64) {
        let delivered = !self.is_open(batch);
        let work = self.work_of(batch);
        if work.holders == 0 && !work.on_board && work.outcome != Some(true) && work.failed {
            let slabs = std::mem::take(&mut work.slabs);
            if delivered {
                self.works.remove(&batch);
            }
            self.come_home(slabs);
        }
    }

    /// One sleeping worker is woken, if there is work for it; it wakes the next. The first one comes first.
    pub(super) fn wake(&mut self) {
        for index in 0..self.workers.len() {
            let spare = self.options.streams && index > 0;
            if self.workers[index] == Worker::Asleep && self.schedule.has_claim(spare) {
                self.workers[index] = Worker::Awake;
                return;
            }
        }
    }
}
