//! Which requests run, wait to run, or are done and wait to be taken: the state that all threads share, under one lock. Nothing of the
//! program's is called, or dropped, while it is held.
//!
//! What a request fetches follows from its index alone, so of several requests of an index that were made for a pass, any will do. The
//! pass counts, because it says when they are not needed any more.
//!
//! A request that hangs must not hold others up for good. So what it takes (a place among those in flight, and the one
//! that is allowed beyond `max_bytes`) is its own for half of its loader's `timeout`: see [`State::expire`]. Half, so that a sample
//! that was not announced, and waits for a place, still has the other half.

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::time::Duration;

use super::StagedStats;
use crate::dataset::Pass;
use crate::error::BoxError;
use crate::sync::{Arc, Condvar, Instant, planted};

/// What became of a request. The outer error: it panicked.
pub(super) type Outcome<R> = Result<Result<R, BoxError>, Box<dyn Any + Send>>;

#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    pub(super) in_flight: usize,
    pub(super) ahead: Option<usize>,
    pub(super) max_bytes: usize,
}

impl Limits {
    pub(super) fn ahead(&self) -> usize {
        let twice = self.in_flight.saturating_mul(2);
        self.ahead.unwrap_or(twice).max(1)
    }
}

/// What is to be dropped, and stopped, without the lock.
pub(super) struct Gone<R> {
    pub(super) outcomes: Vec<Outcome<R>>,
    pub(super) aborts: Vec<Abort>,
}

impl<R> Default for Gone<R> {
    fn default() -> Gone<R> {
        Gone {
            outcomes: Vec::new(),
            aborts: Vec::new(),
        }
    }
}

/// Stops a request that runs, if that is possible.
pub(super) type Abort = Box<dyn FnOnce() + Send>;

/// The requests, by their numbers: those made later have higher ones.
pub(super) struct State<R> {
    requests: BTreeMap<u64, Request<R>>,
    made: u64,
    /// The requests of each index that no `get` has taken on, in order.
    of_index: HashMap<u64, VecDeque<u64>>,
    /// Those that wait to run, and that no `get` waits for.
    queued: BTreeSet<u64>,
    /// Those that wait to run while a `get` waits for them.
    urgent: VecDeque<u64>,
    /// Those that run. Some may not be wanted any more.
    runs: BTreeMap<u64, Run>,
    /// How many of them have no place in flight any more: they run for too long.
    overdue: usize,
    /// Those that run while a `get` waits for them, or are done and not yet decoded by the `get` that waited for them; and until when
    /// that counts.
    awaited: BTreeMap<u64, Option<Instant>>,
    /// When the first of these is to be [expired](State::expire), or earlier.
    first_due: Option<Instant>,
    /// What was fetched and is not decoded. A source may say anything of how much that is, and no sum of it overflows.
    held_bytes: u128,
    /// The largest that was fetched so far.
    largest: Option<usize>,
    stats: StagedStats,
    pub(super) is_closed: bool,
    /// The threads that fetch, and how many of them sleep.
    pub(super) threads: usize,
    pub(super) idle: usize,
    /// The system did not start a thread.
    pub(super) is_lacking: bool,
    /// It was said that [`MOST_OVERDUE`] hang.
    has_said_most: bool,
    /// When what runs requests was asked for a sign of life, if it has not given it.
    pub(super) asked_for_sign: Option<Instant>,
}

struct Request<R> {
    index: u64,
    /// The pass that it was made for; `None`: for a `get` that waits.
    pass: Option<Pass>,
    /// How long the sample may take.
    timeout: Option<Duration>,
    stage: Stage<R>,
    /// Those of the `get`s that wait for it: one at most, unless it is kept.
    waiters: Vec<Arc<Condvar>>,
    /// Its result is not taken, but stays until the request is [forgotten](State::forget).
    is_kept: bool,
    abort: Option<Abort>,
}

/// A request that runs.
#[derive(Clone, Copy)]
struct Run {
    /// When it has no place any more, and when its thread is not waited for any more; `None`: never.
    gives_way: Option<Instant>,
    is_late: Option<Instant>,
    has_place: bool,
}

enum Stage<R> {
    Queued,
    Running,
    Done(Outcome<R>, usize),
}

impl<R> Default for State<R> {
    fn default() -> State<R> {
        State {
            requests: BTreeMap::new(),
            made: 0,
            of_index: HashMap::new(),
            queued: BTreeSet::new(),
            urgent: VecDeque::new(),
            runs: BTreeMap::new(),
            overdue: 0,
            awaited: BTreeMap::new(),
            first_due: None,
            held_bytes: 0,
            largest: None,
            stats: StagedStats::default(),
            is_closed: false,
            threads: 0,
            idle: 0,
            is_lacking: false,
            has_said_most: false,
            asked_for_sign: None,
        }
    }
}

/// How many requests that hang are left running beside those in flight, at most. Each may keep a thread (2 MiB of addresses).
pub(super) const MOST_OVERDUE: usize = 1024;

pub(super) fn is_past(end: Option<Instant>, now: Instant) -> bool {
    end.is_some_and(|end| end <= now)
}

/// A sum of bytes, as statistics have it.
fn shown(bytes: u128) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

/// How something that was fetched counts.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Counted {
    number: u64,
    bytes: usize,
}

/// What a `get` finds.
pub(super) enum Found<R> {
    /// It was fetched, and counts as held until it is [`released`](State::release).
    Done(Outcome<R>, Counted),
    /// No thread could fetch it: the caller must.
    Nobody,
    Wait,
}

/// What there is of a request.
pub(super) enum Seen {
    Done,
    /// No thread could fetch it: the caller must.
    Nobody,
    /// There is no such request, or no longer.
    Gone,
    Wait,
}

impl<R> State<R> {
    pub(super) fn stats(&self) -> StagedStats {
        StagedStats {
            running: self.runs.len(),
            overdue: self.overdue,
            held_bytes: shown(self.held_bytes),
            ..self.stats
        }
    }

    fn make(&mut self, index: u64, pass: Option<Pass>, timeout: Option<Duration>) -> u64 {
        self.made += 1;
        let request = Request {
            index,
            pass,
            timeout,
            stage: Stage::Queued,
            waiters: Vec::new(),
            is_kept: false,
            abort: None,
        };
        self.requests.insert(self.made, request);
        self.made
    }

    /// Queues requests for samples that will be needed, and drops those that will not be.
    pub(super) fn announce(&mut self, indices: &[u64], pass: Pass) -> Gone<R> {
        let mut gone = Gone::default();
        self.drop_settled(pass, &mut gone);
        for &index in indices {
            let number = self.make(index, Some(pass), pass.timeout);
            self.of_index.entry(index).or_default().push_back(number);
            self.queued.insert(number);
        }
        gone
    }

    /// Drops the requests for the rest of a batch that failed: these samples were not got, and will not be.
    fn drop_settled(&mut self, pass: Pass, gone: &mut Gone<R>) {
        // When so many samples of the pass are done with as were announced with this one, it is.
        let of_pass = self.of_pass(pass.id());
        let settled = of_pass.take_while(|(_, of)| of.announced <= pass.settled);
        let settled: Vec<u64> = settled.map(|(number, _)| number).collect();
        settled
            .into_iter()
            .for_each(|number| self.cancel(number, gone));
    }

    /// A pass is over: what was requested for it is not needed.
    pub(super) fn end(&mut self, pass: u64) -> Gone<R> {
        let mut gone = Gone::default();
        let of_pass: Vec<u64> = self.of_pass(pass).map(|(number, _)| number).collect();
        for number in of_pass {
            self.cancel(number, &mut gone);
        }
        gone
    }

    /// The requests that were made for a pass, in order.
    fn of_pass(&self, pass: u64) -> impl Iterator<Item = (u64, Pass)> {
        let all = self.requests.iter();
        let all = all.filter_map(|(number, request)| Some((*number, request.pass?)));
        all.filter(move |(_, of)| of.id() == pass)
    }

    /// Everything is over.
    pub(super) fn close(&mut self) -> Gone<R> {
        self.is_closed = true;
        let mut gone = Gone::default();
        let all: Vec<u64> = self.requests.keys().copied().collect();
        all.into_iter()
            .for_each(|number| self.cancel(number, &mut gone));
        gone
    }

    /// Drops a request, unless a `get` waits for it.
    fn cancel(&mut self, number: u64, gone: &mut Gone<R>) {
        let Some(request) = self.requests.get_mut(&number) else {
            return;
        };
        if !request.waiters.is_empty() {
            request.pass = None;
            return;
        }
        let index = request.index;
        if let Some(of_index) = self.of_index.get_mut(&index) {
            of_index.retain(|other| *other != number);
            if of_index.is_empty() {
                self.of_index.remove(&index);
            }
        }
        self.queued.remove(&number);
        let Some(request) = self.requests.remove(&number) else {
            return;
        };
        self.stats.cancelled += 1;
        gone.aborts.extend(request.abort);
        if let Stage::Done(outcome, bytes) = request.stage {
            self.held_bytes -= bytes as u128;
            gone.outcomes.push(outcome);
        }
    }

    /// A `get` for a pass takes the request of its index on that was announced first for this pass, or makes one. `pass`: as in the
    /// sample's generator. If that is 0, any will do, for what is fetched depends on the index alone. `timeout`: of a new one.
    pub(super) fn take_on(&mut self, index: u64, pass: u32, timeout: Option<Duration>) -> u64 {
        if let Some(of_index) = self.of_index.get_mut(&index) {
            let requests = &self.requests;
            // (Workers that announce at the same time may be heard in another order. The one that is left must not be settled first.)
            let own = of_index.iter().enumerate().filter_map(|(at, number)| {
                let of = requests.get(number)?.pass?;
                (pass == 0 || of.short_id() == pass).then_some((of.announced, at))
            });
            let number = own.min().and_then(|(_, at)| of_index.remove(at));
            if of_index.is_empty() {
                self.of_index.remove(&index);
            }
            if let Some(number) = number {
                return number;
            }
        }
        let number = self.make(index, None, timeout);
        self.queued.insert(number);
        number
    }

    /// Makes a request that is kept: several may wait for it, until it is [forgotten](State::forget).
    pub(super) fn queue(&mut self, index: u64, timeout: Option<Duration>) -> u64 {
        let number = self.make(index, None, timeout);
        if let Some(request) = self.requests.get_mut(&number) {
            request.is_kept = true;
        }
        self.queued.insert(number);
        number
    }

    /// Drops a request that is kept. Those that wait for it find that it is gone. If it runs, it runs on.
    pub(super) fn forget(&mut self, number: u64, gone: &mut Gone<R>) {
        self.urgent.retain(|other| *other != number);
        self.awaited.remove(&number);
        if let Some(request) = self.requests.get_mut(&number) {
            let waiters = std::mem::take(&mut request.waiters);
            waiters.iter().for_each(|waiter| _ = waiter.notify_one());
        }
        self.cancel(number, gone);
    }

    /// Whether a request has run for as long as a sample may take, and has brought nothing.
    pub(super) fn is_late(&self, number: u64, now: Instant) -> bool {
        let run = self.runs.get(&number);
        run.is_some_and(|run| is_past(run.is_late, now))
    }

    /// How long a request's sample may take.
    pub(super) fn timeout(&self, number: u64) -> Option<Duration> {
        self.requests.get(&number)?.timeout
    }

    /// Gives a request that was taken on, if it is done. If not, `waiter` is told when to look again.
    pub(super) fn find(&mut self, number: u64, waiter: &Arc<Condvar>, now: Instant) -> Found<R> {
        match self.look(number, waiter, now) {
            Seen::Done => {}
            Seen::Wait => return Found::Wait,
            // (It cannot be gone: the `get` that waits keeps it.)
            Seen::Nobody | Seen::Gone => {
                self.queued.remove(&number);
                self.urgent.retain(|other| *other != number);
                self.requests.remove(&number);
                return Found::Nobody;
            }
        }
        let Some(request) = self.requests.get(&number) else {
            return Found::Nobody;
        };
        // Decoding has its own time.
        let half = request.timeout.map(|timeout| timeout / 2);
        if self.awaited.contains_key(&number) {
            let until = self.expires(now, half);
            self.awaited.insert(number, until);
        }
        match self.requests.remove(&number).map(|request| request.stage) {
            Some(Stage::Done(outcome, bytes)) => Found::Done(outcome, Counted { number, bytes }),
            _ => unreachable!("it is done"),
        }
    }

    /// What there is of a request. If it is not done, `waiter` is told when to look again.
    pub(super) fn look(&mut self, number: u64, waiter: &Arc<Condvar>, now: Instant) -> Seen {
        // (Or all that there are hang.)
        let has_nobody = self.is_lacking && self.threads <= self.overdue;
        let Some(request) = self.requests.get_mut(&number) else {
            return Seen::Gone;
        };
        match request.stage {
            Stage::Done(..) => return Seen::Done,
            Stage::Queued if has_nobody => return Seen::Nobody,
            Stage::Queued | Stage::Running => {}
        }
        let mut waiters = request.waiters.iter();
        if waiters.any(|other| Arc::ptr_eq(other, waiter)) {
            return Seen::Wait;
        }
        request.waiters.push(Arc::clone(waiter));
        if request.waiters.len() > 1 {
            return Seen::Wait;
        }
        self.stats.waited += 1;
        if matches!(request.stage, Stage::Queued) {
            self.queued.remove(&number);
            if !self.urgent.contains(&number) {
                self.urgent.push_back(number);
            }
        } else {
            let half = request.timeout.map(|timeout| timeout / 2);
            let until = self.expires(now, half);
            self.awaited.insert(number, until);
        }
        Seen::Wait
    }

    /// What was taken is decoded.
    pub(super) fn release(&mut self, counted: Counted) {
        self.held_bytes -= counted.bytes as u128;
        self.awaited.remove(&counted.number);
    }

    /// A `get` gives up waiting for its request. If the request runs, it runs on, unless it can be stopped.
    pub(super) fn give_up(&mut self, number: u64, waiter: &Arc<Condvar>) -> Option<Abort> {
        self.stats.given_up += 1;
        let request = self.requests.get_mut(&number);
        if let Some(request) = request.filter(|request| request.is_kept) {
            request.waiters.retain(|other| !Arc::ptr_eq(other, waiter));
            if request.waiters.is_empty() {
                self.awaited.remove(&number);
            }
            return None;
        }
        self.queued.remove(&number);
        self.urgent.retain(|other| *other != number);
        self.awaited.remove(&number);
        self.requests.remove(&number)?.abort
    }

    /// What has lasted too long gives its place to others. Returns whether there was something.
    pub(super) fn expire(&mut self, now: Instant) -> bool {
        if !is_past(self.first_due, now) || planted("a request that hangs keeps its place") {
            return false;
        }
        self.awaited.retain(|_, until| !is_past(*until, now));
        let late = self.runs.values_mut();
        let late = late.filter(|run| run.has_place && is_past(run.gives_way, now));
        for run in late.take(MOST_OVERDUE - self.overdue) {
            run.has_place = false;
            self.overdue += 1;
        }
        self.find_first_due();
        true
    }

    fn find_first_due(&mut self) {
        let runs = self.runs.values();
        let runs = runs.filter(|run| run.has_place && self.overdue < MOST_OVERDUE);
        let awaited = self.awaited.values().copied();
        self.first_due = runs.map(|run| run.gives_way).chain(awaited).flatten().min();
    }

    /// Something is to be expired, for a sample may take so long. Returns when.
    fn expires(&mut self, now: Instant, timeout: Option<Duration>) -> Option<Instant> {
        let due = now.checked_add(timeout?);
        self.first_due = self.first_due.into_iter().chain(due).min();
        due
    }

    /// When something may be expired that holds up what waits to run.
    pub(super) fn next_expiry(&self) -> Option<Instant> {
        let is_in_the_way = !self.urgent.is_empty() || !self.queued.is_empty();
        self.first_due.filter(|_| is_in_the_way)
    }

    /// Whether no more requests may begin in the place of others. `true` once.
    pub(super) fn is_news_of_most(&mut self) -> bool {
        self.overdue == MOST_OVERDUE && !std::mem::replace(&mut self.has_said_most, true)
    }

    /// How many requests are not waited for when everything is over, and when there may be more.
    pub(super) fn hanging(&self, now: Instant) -> (usize, Option<Instant>) {
        let ends = self.runs.values().filter_map(|run| run.is_late);
        let (past, to_come): (Vec<_>, Vec<_>) = ends.partition(|end| *end <= now);
        (past.len(), to_come.into_iter().min())
    }

    /// The request that may run now: first those that a `get` waits for, then in order.
    fn next(&self, limits: &Limits) -> Option<u64> {
        let running = self.runs.len() - self.overdue;
        if self.is_closed || running >= limits.in_flight {
            return None;
        }
        let urgent = self.urgent.front().copied();
        let number = urgent.or_else(|| self.queued.first().copied())?;
        // What runs may become as large as the largest so far. Before anything came, one tells how large they are.
        let each = self.largest.unwrap_or(limits.max_bytes);
        let more = each as u128 * (running as u128 + 1);
        let is_unlimited = limits.max_bytes == usize::MAX;
        let fits = is_unlimited || self.held_bytes + more <= limits.max_bytes as u128;
        // One is always allowed: if nothing else is there, or a `get` waits and none of the requests that run is waited for.
        let is_alone = running == 0 && self.held_bytes == 0;
        let is_awaited = urgent.is_some() && self.awaited.is_empty();
        (fits || is_alone || is_awaited && !planted("a request that is waited for has no room"))
            .then_some(number)
    }

    pub(super) fn can_start(&mut self, limits: &Limits, now: Instant) -> bool {
        self.expire(now);
        self.next(limits).is_some()
    }

    /// How many threads there may be: one for each request.
    pub(super) fn most_threads(&self, limits: &Limits) -> usize {
        limits.in_flight.saturating_add(self.overdue)
    }

    /// Starts a request, if one may run. Returns its number and index.
    pub(super) fn start(&mut self, limits: &Limits, now: Instant) -> Option<(u64, u64)> {
        self.expire(now);
        let number = self.next(limits)?;
        let timeout = self.requests.get(&number)?.timeout;
        let run = Run {
            gives_way: self.expires(now, timeout.map(|timeout| timeout / 2)),
            is_late: timeout.and_then(|timeout| now.checked_add(timeout)),
            has_place: true,
        };
        if self.urgent.front() == Some(&number) {
            self.urgent.pop_front();
            self.awaited.insert(number, run.gives_way);
        }
        self.queued.remove(&number);
        let request = self.requests.get_mut(&number)?;
        request.stage = Stage::Running;
        self.runs.insert(number, run);
        self.stats.fetched += 1;
        Some((number, request.index))
    }

    /// Notes how a request that runs can be stopped. If it is not wanted any more, that is given back.
    #[cfg(feature = "tokio")]
    pub(super) fn note_abort(&mut self, number: u64, abort: Abort) -> Option<Abort> {
        match self.requests.get_mut(&number) {
            Some(request) => {
                request.abort = Some(abort);
                None
            }
            None => Some(abort),
        }
    }

    /// A request has run. Gives back what is not wanted any more: it still runs until that is dropped.
    pub(super) fn finish(
        &mut self,
        number: u64,
        outcome: Outcome<R>,
        bytes: usize,
    ) -> Option<Outcome<R>> {
        if matches!(outcome, Ok(Ok(_))) {
            self.largest = self.largest.max(Some(bytes));
        }
        let Some(request) = self.requests.get_mut(&number) else {
            return Some(outcome);
        };
        request.stage = Stage::Done(outcome, bytes);
        self.held_bytes += bytes as u128;
        self.stats.most_bytes = self.stats.most_bytes.max(shown(self.held_bytes));
        if request.is_kept {
            self.awaited.remove(&number); // what it takes is counted elsewhere
        }
        if !planted("the thread that waits for a request is not told") {
            request
                .waiters
                .iter()
                .for_each(|waiter| _ = waiter.notify_one());
        }
        self.ended(number);
        None
    }

    /// A request runs no longer.
    pub(super) fn ended(&mut self, number: u64) {
        let run = self.runs.remove(&number);
        if run.is_some_and(|run| !run.has_place) {
            self.overdue -= 1;
            self.find_first_due(); // there may be one more again
        }
    }

    /// No thread can be started: each `get` that waits must fetch its sample itself.
    pub(super) fn tell_waiting(&self) {
        for request in self.requests.values() {
            request
                .waiters
                .iter()
                .for_each(|waiter| _ = waiter.notify_one());
        }
    }
}

#[cfg(test)]
mod tests;
