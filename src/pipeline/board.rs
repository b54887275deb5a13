//! The board: the state of all live epochs of a loader, under one lock.

use std::collections::VecDeque;

use super::arrivals::Sends;
use super::schedule::{Behind, Claim, Schedule, Want};
use super::source::{BatchId, Failed};
use super::work::{Recipe, Work};
use super::{Options, Parts};
use crate::device::Account;
use crate::error::{Error, Result};
use crate::meter::Meter;
use crate::sync::{Arc, AtomicU64, Condvar, Instant, Ordering};
use crate::tensor::Backend;

pub(super) struct Board<B> {
    epochs: Vec<State<B>>,
    entered: u64,
    /// Counts claims, so that epochs take turns.
    turn: u64,
    /// Workers that sleep: the first few, and the spare ones.
    pub(super) idle: [usize; 2],
    /// The loader is going: threads end.
    pub(super) closed: bool,
}

/// One live epoch, as everybody who works for it holds it.
#[derive(Clone)]
pub(crate) struct Live(Arc<LiveEpoch>);

pub(crate) struct LiveEpoch {
    key: u64,
    pub(crate) epoch: u64,
    pub(crate) meter: Arc<Meter>,
    /// Its share of the device's ring, if the loader pins.
    pub(crate) account: Option<Arc<Account>>,
    /// Its consumer sleeps here.
    pub(super) ready: Condvar,
    /// It is one of several that follow each other: its slabs are those of the next as well.
    pub(super) goes_on: bool,
    /// How many parts its batches are cut into. (Written before the first is opened, under the board's lock.)
    parts: AtomicU64,
}

/// An epoch to be entered.
pub(super) struct Entering {
    pub(super) epoch: u64,
    pub(super) account: Option<Arc<Account>>,
    pub(super) destination: Option<Destination>,
    /// The epoch that it is loaded behind.
    pub(super) after: Option<Live>,
    pub(super) goes_on: bool,
}

/// What an epoch's batches are for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Destination {
    /// The program gets them on the host.
    Host,
    /// They go to a device without the program seeing them, so that rows which the device can gather stay where they are.
    Device(Backend),
}

impl std::ops::Deref for Live {
    type Target = LiveEpoch;

    fn deref(&self) -> &LiveEpoch {
        &self.0
    }
}

/// What the board knows of one epoch.
pub(super) struct State<B> {
    pub(super) live: Live,
    pub(super) schedule: Schedule,
    /// One for each open batch of the schedule.
    slots: VecDeque<Slot<B>>,
    /// What its batches are for. Until it is known, nothing is loaded.
    pub(super) destination: Option<Destination>,
    /// The turn at which a job of its was claimed last.
    served: u64,
    /// The epoch that it is loaded behind, until its consumer comes to it.
    after: Option<Live>,
    /// Who sends the parts of its batches, where they are cut.
    pub(super) sends: Option<Arc<dyn Sends<B>>>,
    /// How many slabs it may have from now on, which its account is yet to be told.
    pub(super) widened: Option<usize>,
    /// How its batches are cut, and whether it is to find out if more slabs are better.
    parts: Option<Parts>,
    pub(super) widens: bool,
}

/// A batch, or a part of one, that was made.
pub(crate) enum Made<B> {
    Here(B),
    /// It was sent to the device.
    Sent,
}

/// What the board holds of one open batch.
pub(super) struct Slot<B> {
    /// Until somebody finishes it.
    pub(super) work: Option<Arc<dyn Work<B>>>,
    /// The batch, made.
    pub(super) outcome: Option<Result<Made<B>>>,
    /// Why it failed: the first row's reason.
    pub(super) failure: Option<Failed>,
    /// When it began to wait for its slab.
    pub(super) wanted: Option<Instant>,
    /// It goes without a page-locked slab.
    pub(super) unpinned: bool,
}

/// Batches that the consumer took together with one before.
pub(crate) type Taken<B> = VecDeque<Result<Made<B>>>;

/// What the board has no more use for. It is the user's, and is dropped without the lock.
pub(super) type LeftOver<B> = (
    Option<Result<Made<B>>>,
    Option<Arc<dyn Work<B>>>,
    Option<Failed>,
);

/// Something to do, with what it takes.
pub(super) enum Job<B> {
    Rows {
        live: Live,
        batch: u64,
        rows: std::ops::Range<usize>,
        work: Arc<dyn Work<B>>,
    },
    Finish {
        live: Live,
        batch: u64,
    },
    Whole {
        live: Live,
        batches: std::ops::Range<u64>,
        /// The first of them.
        id: BatchId,
    },
}

impl<B> Board<B> {
    pub(super) fn new() -> Board<B> {
        Board {
            epochs: Vec::new(),
            entered: 0,
            turn: 0,
            idle: [0; 2],
            closed: false,
        }
    }

    pub(super) fn enter(&mut self, entering: Entering, options: &Options) -> Live {
        self.entered += 1;
        let live = Live(Arc::new(LiveEpoch {
            key: self.entered,
            epoch: entering.epoch,
            meter: Arc::default(),
            account: entering.account,
            ready: Condvar::new(),
            goes_on: entering.goes_on,
            parts: AtomicU64::new(1),
        }));
        self.epochs.push(State {
            live: live.clone(),
            schedule: Schedule::new(options.cut(), options.prefetch, options.whole()),
            slots: VecDeque::new(),
            destination: entering.destination,
            served: 0,
            after: entering.after,
            sends: None,
            widened: None,
            parts: None,
            widens: false,
        });
        live
    }

    /// Takes an epoch out. The caller drops it without the lock: it may hold what the user made.
    pub(super) fn leave(&mut self, live: &Live) -> Option<State<B>> {
        let index = self.position(live)?;
        Some(self.epochs.swap_remove(index))
    }

    /// The accounts of all live epochs.
    pub(super) fn accounts(&self) -> Vec<Arc<Account>> {
        let accounts = self.epochs.iter();
        accounts
            .filter_map(|state| state.live.account.clone())
            .collect()
    }

    /// The epoch, unless its consumer dropped it.
    pub(super) fn epoch(&mut self, live: &Live) -> Option<&mut State<B>> {
        let index = self.position(live)?;
        self.look_behind(index);
        Some(&mut self.epochs[index])
    }

    fn position(&self, live: &Live) -> Option<usize> {
        let mut epochs = self.epochs.iter();
        epochs.position(|state| state.live.key == live.key)
    }

    /// Tells an epoch what is left of the one that it is loaded behind.
    fn look_behind(&mut self, index: usize) {
        if let Some(before) = &self.epochs[index].after {
            let before = self.position(before);
            let left = before.map(|before| self.epochs[before].schedule.left());
            let behind = left.unwrap_or_default();
            self.epochs[index].schedule.stand_behind(behind);
        }
    }

    /// The consumer comes to an epoch, which is loaded for itself from now on. `false`: the one that it was loaded behind
    /// has batches to come, so that the slabs of one are not enough for both.
    pub(super) fn come_to(&mut self, live: &Live) -> bool {
        let Some(index) = self.position(live) else {
            return false;
        };
        let Some(before) = self.epochs[index].after.take() else {
            return true;
        };
        self.epochs[index].schedule.stand_behind(Behind::default());
        let before = self.position(&before);
        before.is_none_or(|before| self.epochs[before].schedule.remaining() == 0)
    }

    /// Something to do: for an epoch whose consumer is blocked, if there is one, else for any.
    pub(super) fn claim(&mut self, recipe: &dyn Recipe<B>, spare: bool) -> Option<Job<B>> {
        self.turn += 1;
        let turn = self.turn;
        self.urgent_first().find_map(|state| {
            let job = state.claim(recipe, spare)?;
            state.served = turn;
            Some(job)
        })
    }

    pub(super) fn has_claim(&mut self, spare: bool) -> bool {
        (0..self.epochs.len()).for_each(|index| self.look_behind(index));
        self.epochs
            .iter()
            .any(|state| state.destination.is_some() && state.schedule.has_claim(spare))
    }

    /// The slabs that are waited for: of each epoch the first, in the epochs' turn.
    pub(super) fn wants(&mut self) -> Vec<(Live, Want)> {
        self.urgent_first()
            .filter_map(|state| Some((state.live.clone(), state.schedule.next_want()?)))
            .collect()
    }

    /// The accounts that may have more slabs from now on.
    pub(super) fn widened(&mut self) -> Vec<(Arc<Account>, usize)> {
        let epochs = self.epochs.iter_mut();
        epochs
            .filter_map(|state| Some((state.live.account.clone()?, state.widened.take()?)))
            .collect()
    }

    /// Epochs whose consumer is blocked come first, and of several the one that had to wait for longest: an epoch that
    /// always has work would else keep the workers, and the slabs that come home, from another for good. Those that no
    /// consumer has come to are last.
    fn urgent_first(&mut self) -> impl Iterator<Item = &mut State<B>> {
        self.epochs.sort_unstable_by_key(|state| {
            let is_early = state.after.is_some();
            (is_early, !state.schedule.is_blocked(), state.served)
        });
        (0..self.epochs.len()).for_each(|index| self.look_behind(index));
        self.epochs.iter_mut()
    }
}

impl LiveEpoch {
    /// Whether its batches are cut into parts.
    pub(super) fn is_cut(&self) -> bool {
        self.parts() > 1
    }

    pub(super) fn parts(&self) -> u64 {
        self.parts.load(Ordering::Relaxed)
    }

    /// `part`: the batch, or the part of one, as the schedule counts them.
    pub(crate) fn collate_panicked(&self, part: u64, message: String) -> Error {
        Error::CollatePanicked {
            epoch: self.epoch,
            batch: part / self.parts.load(Ordering::Relaxed),
            message,
        }
    }
}

impl<B> Slot<B> {
    fn new(work: Option<Arc<dyn Work<B>>>) -> Slot<B> {
        Slot {
            work,
            outcome: None,
            failure: None,
            wanted: None,
            unpinned: false,
        }
    }

    /// Of several failures, the first row's is reported; gives back the other.
    #[must_use = "it is the user's, and is dropped without the lock"]
    pub(super) fn keep_first(&mut self, failure: Failed) -> Option<Failed> {
        match &self.failure {
            Some(kept) if kept.row <= failure.row => Some(failure),
            _ => self.failure.replace(failure),
        }
    }

    /// Lets go of a hold on the batch's work, if the board has another. If not, the caller's may be the last: it is
    /// given back.
    #[must_use = "it is the user's, and is dropped without the lock"]
    pub(super) fn let_go(&self, work: Arc<dyn Work<B>>) -> Option<Arc<dyn Work<B>>> {
        self.work.is_none().then_some(work)
    }
}

impl<B> State<B> {
    pub(super) fn slot(&mut self, batch: u64) -> &mut Slot<B> {
        &mut self.slots[(batch - self.schedule.first()) as usize]
    }

    pub(super) fn claim(&mut self, recipe: &dyn Recipe<B>, spare: bool) -> Option<Job<B>> {
        self.destination?;
        let claim = self.schedule.claim(spare)?;
        let live = self.live.clone();
        match claim {
            Claim::Finish { batch } => Some(Job::Finish { live, batch }),
            Claim::Whole { batches } => {
                let id = self.id(batches.start);
                self.slots.extend(batches.clone().map(|_| Slot::new(None)));
                Some(Job::Whole { live, batches, id })
            }
            Claim::Rows { batch, rows } => {
                if batch == self.schedule.first() + self.slots.len() as u64 {
                    self.open(batch, recipe);
                }
                let work = self.slot(batch).work.clone()?;
                Some(Job::Rows {
                    live,
                    batch,
                    rows,
                    work,
                })
            }
        }
    }

    /// Cuts the batches into parts, before the first is opened.
    pub(super) fn cut_into(&mut self, parts: &Parts, wide: Option<bool>) {
        self.parts = Some(*parts);
        let resident = (wide != Some(true)).then_some(parts.resident);
        self.widens = wide.is_none();
        self.schedule
            .cut_into(parts.count, resident, parts.sample_bytes);
        let count = self.schedule.cut().parts();
        self.live.parts.store(count, Ordering::Relaxed);
    }

    fn open(&mut self, batch: u64, recipe: &dyn Recipe<B>) {
        let work = recipe.open(self.id(batch), Arc::clone(&self.live.meter));
        self.slots.push_back(Slot::new(Some(work)));
    }

    fn id(&self, batch: u64) -> BatchId {
        let gathered_by = match self.destination {
            Some(Destination::Device(backend)) => Some(backend),
            _ => None,
        };
        BatchId::of(self.live.epoch, &self.schedule.cut(), batch, gathered_by)
    }

    /// The next batches, as many as are ready and the consumer may take: the first is returned, and the others go to
    /// `taken`.
    pub(super) fn deliver(&mut self, taken: &mut Taken<B>) -> Option<Slot<B>> {
        self.schedule.used_up();
        let count = self.schedule.ready();
        if count == 0 {
            return None;
        }
        self.schedule.deliver(count);
        if self.widens && self.schedule.widens() {
            self.widened = self.parts.map(|parts| parts.most);
        }
        let first = self.slots.pop_front();
        let others = self.slots.drain(..count - 1);
        taken.extend(others.filter_map(|slot| slot.outcome));
        first
    }

    /// Enters a batch that was made from end to end, or its error.
    #[must_use = "it is the user's, and is dropped without the lock"]
    pub(super) fn made(&mut self, batch: u64, outcome: Result<B>, elapsed_ns: u64) -> LeftOver<B> {
        self.schedule.made(batch, elapsed_ns);
        let outcome = self.slot(batch).outcome.replace(outcome.map(Made::Here));
        if batch == self.schedule.first() {
            self.live.ready.notify_one();
        }
        (outcome, None, None)
    }

    /// Enters the batch or its error, and wakes the consumer. What was entered first stays.
    #[must_use = "it is the user's, and is dropped without the lock"]
    pub(super) fn publish(&mut self, batch: u64, outcome: Result<Made<B>>) -> LeftOver<B> {
        if self.schedule.is_done(batch) {
            return (Some(outcome), None, None);
        }
        let sent = matches!(outcome, Ok(Made::Sent));
        let slot = self.slot(batch);
        let outcome = slot.outcome.replace(outcome);
        let left_over = (outcome, slot.work.take(), slot.failure.take());
        match sent {
            true => self.schedule.sent(batch),
            false => self.schedule.done(batch),
        }
        if batch == self.schedule.first() {
            self.live.ready.notify_one();
        }
        left_over
    }

    /// Whether the batch is still open, and not delivered.
    pub(super) fn holds(&self, batch: u64) -> bool {
        batch >= self.schedule.first() && batch - self.schedule.first() < self.slots.len() as u64
    }
}
