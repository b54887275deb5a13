//! The models: each thread is a state machine whose steps are what the real one does between two looks at the board.

mod pin;
mod seen;
mod workers;

use std::collections::BTreeMap;

use self::pin::Pin;
pub use self::seen::Seen;
use self::workers::Worker;
use super::*;

#[derive(Debug, Clone)]
pub struct Options {
    pub samples: u64,
    pub batch_size: usize,
    pub drop_last: bool,
    pub prefetch: usize,
    pub workers: usize,
    /// Batches need no slab of the ring, and may be made from end to end.
    pub whole: Option<Whole>,
    /// All workers but the first are spare ones, and loading is copying.
    pub streams: bool,
    /// Who makes a batch sends it, now and then.
    pub sends: bool,
    /// How many slabs there may be, as the memory's budget has it.
    pub budget: usize,
    pub strict: bool,
    pub batches: Vec<(Kind, Fault)>,
}

/// When a batch knows how large a slab it needs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Kind {
    /// With its first sample.
    Alike,
    /// With its last sample.
    Late,
    /// It is built in pageable memory, and copied.
    Elsewhere,
}

/// What goes wrong with a batch.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Fault {
    None,
    Row(usize),
    Plan,
    Finish,
}

/// A batch's work, and what is known of it without asking the schedule.
#[derive(Debug)]
struct Work {
    kind: Kind,
    fault: Fault,
    /// Threads that hold it; the board is not counted.
    holders: usize,
    on_board: bool,
    claimed: Vec<bool>,
    planned: bool,
    /// It waits for a slab that it asked for.
    wants: bool,
    /// It has its slab, or goes without.
    has_slab: bool,
    /// How many of the ring's slabs it holds.
    slabs: usize,
    failed: bool,
    /// Published: whether it is a batch or an error.
    outcome: Option<bool>,
    /// It was sent to where it goes.
    sent: bool,
}

impl Work {
    fn needs_slab(&self) -> bool {
        !self.failed && !self.has_slab && self.outcome.is_none()
    }
}

#[derive(Debug, PartialEq)]
enum Consumer {
    Runs,
    /// Something came home, or was sent, and is yet to be told of.
    Tells,
    Blocked {
        notified: bool,
    },
}

/// The slabs, which are all of one size.
#[derive(Debug, Default)]
struct Ring {
    free: usize,
    blocks: usize,
    out: usize,
    news: u64,
    /// The pin thread wants to hear of slabs that come home and copies that are sent.
    interested: bool,
}

#[derive(Debug)]
struct Flying {
    id: u64,
    slabs: usize,
    done: bool,
}

pub struct World {
    options: Options,
    schedule: Schedule,
    /// How many slabs an epoch may have.
    limit: usize,
    works: BTreeMap<u64, Work>,
    workers: Vec<Worker>,
    pin: Pin,
    consumer: Consumer,
    ring: Ring,
    copies: Vec<Flying>,
    sent: u64,
    /// The slabs of the batches that the consumer holds.
    held: Vec<usize>,
    delivered: u64,
    /// Of the delivered ones, how many the consumer has not come to.
    taken: usize,
    opened: u64,
    random: u64,
    favourite: usize,
    pub seen: Seen,
}

/// Who takes a step.
#[derive(Debug, Clone, Copy)]
enum Step {
    Worker(usize),
    Pin,
    Next,
    Drop(usize),
    Upload(usize),
    Tell,
    /// A copy ends.
    Land(usize),
}

impl Step {
    /// A number for each who takes steps.
    fn who(self) -> usize {
        match self {
            Step::Pin => 0,
            Step::Next | Step::Drop(_) | Step::Upload(_) | Step::Tell => 1,
            Step::Land(_) => 2,
            Step::Worker(index) => 3 + index,
        }
    }
}

impl World {
    pub fn new(options: Options) -> World {
        World {
            schedule: Schedule::new(
                Cut::whole(options.samples, options.batch_size, options.drop_last),
                options.prefetch,
                options.whole,
            ),
            limit: options.prefetch + 3,
            works: BTreeMap::new(),
            workers: vec![Worker::Awake; options.workers],
            pin: Pin::Look,
            consumer: Consumer::Runs,
            ring: Ring::default(),
            copies: Vec::new(),
            sent: 0,
            held: Vec::new(),
            delivered: 0,
            taken: 0,
            opened: 0,
            random: 0,
            favourite: 0,
            seen: Seen::default(),
            options,
        }
    }

    /// Runs by the script, then at random, until all batches came and everybody sleeps.
    pub fn run(&mut self, script: &[u32], seed: u64) {
        self.random = seed;
        let batches = self.schedule.remaining();
        for number in 0..100_000 {
            let steps = self.steps();
            if self.delivered == batches && self.taken == 0 && steps.is_empty() {
                self.settle();
                let slabs = self.held.iter().sum::<usize>();
                assert_eq!((self.ring.out, self.opened), (slabs, batches));
                assert!(self.works.is_empty(), "{self:?}");
                return;
            }
            assert!(!steps.is_empty(), "a standstill: {self:?}");
            let choice = script.get(number).copied().unwrap_or_else(|| self.draw());
            // Most often the same as before goes on: who is fast, and who is stopped midway, is more than chance.
            let same = steps.iter().find(|step| step.who() == self.favourite);
            let step = match same {
                Some(step) if choice % 4 != 0 => *step,
                _ => steps[choice as usize / 4 % steps.len()],
            };
            self.favourite = step.who();
            self.step(step);
            self.check();
        }
        panic!("no end: {self:?}");
    }

    fn draw(&mut self) -> u32 {
        self.random = self
            .random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (self.random >> 33) as u32
    }

    /// Every step that somebody can take.
    fn steps(&self) -> Vec<Step> {
        let mut steps: Vec<Step> = (0..self.workers.len())
            .filter(|&index| self.workers[index] != Worker::Asleep)
            .map(Step::Worker)
            .collect();
        let pin_runs = match &self.pin {
            Pin::Sleep { ticket } => *ticket != self.ring.news,
            Pin::WaitForCopy { copy } => !self.flies(*copy),
            _ => true,
        };
        if pin_runs {
            steps.push(Step::Pin);
        }
        match self.consumer {
            Consumer::Runs if self.schedule.remaining() > 0 || self.taken > 0 => {
                steps.push(Step::Next);
                steps.extend((0..self.held.len()).flat_map(|i| [Step::Drop(i), Step::Upload(i)]));
            }
            Consumer::Blocked { notified: true } => steps.push(Step::Next),
            Consumer::Tells => steps.push(Step::Tell),
            _ => {}
        }
        let flying = (0..self.copies.len()).filter(|&index| !self.copies[index].done);
        steps.extend(flying.map(Step::Land));
        steps
    }

    fn flies(&self, copy: u64) -> bool {
        self.copies
            .iter()
            .any(|flying| flying.id == copy && !flying.done)
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Worker(index) => {
                let worker = self.workers[index].clone();
                self.workers[index] = self.work(worker, self.options.streams && index > 0);
            }
            Step::Pin => self.pin = self.pin_step(self.pin.clone()),
            Step::Next => self.next(),
            Step::Drop(index) => {
                let slabs = self.held.swap_remove(index);
                self.put(slabs);
                self.consumer = Consumer::Tells;
            }
            Step::Upload(index) => {
                let slabs = self.held.swap_remove(index);
                self.settle();
                self.sent += 1;
                let (id, done) = (self.sent, false);
                self.copies.push(Flying { id, slabs, done });
                self.consumer = Consumer::Tells;
            }
            Step::Tell => {
                self.tell_interested();
                self.consumer = Consumer::Runs;
            }
            Step::Land(index) => self.copies[index].done = true,
        }
    }

    /// What holds between any two steps.
    fn check(&self) {
        let open = self
            .works
            .values()
            .filter(|work| work.outcome.is_none())
            .count();
        let grows = self.options.whole.is_some_and(|whole| whole.grows);
        let most = match grows {
            true => self.options.prefetch.max(MOST_AHEAD),
            false => self.options.prefetch,
        };
        assert!(open <= most, "{open} batches are open");
        let sent = self.works.iter().filter(|(_, work)| work.sent).count() as u64;
        assert!(self.opened - self.delivered - sent + self.taken as u64 <= most as u64);
        assert!(self.ring.out <= self.limit, "{:?}", self.ring);
        assert!(self.ring.blocks <= self.options.budget, "{:?}", self.ring);
    }

    fn work_of(&mut self, batch: u64) -> &mut Work {
        self.works.get_mut(&batch).expect("the batch is open")
    }

    fn is_open(&self, batch: u64) -> bool {
        batch >= self.delivered
    }

    // What the ring does.

    /// Lets go of what finished copies hold. Nobody sees a slab between the copy and the ring.
    fn settle(&mut self) {
        let done = self.copies.iter().filter(|copy| copy.done);
        let slabs: usize = done.map(|copy| copy.slabs).sum();
        self.copies.retain(|copy| !copy.done);
        self.come_home(slabs);
    }

    fn come_home(&mut self, slabs: usize) {
        self.put(slabs);
        if slabs > 0 {
            self.tell_interested();
        }
    }

    fn put(&mut self, slabs: usize) {
        self.ring.out -= slabs;
        self.ring.free += slabs;
    }

    fn tell_interested(&mut self) {
        self.ring.news += u64::from(self.ring.interested);
    }

    fn take(&mut self, want: Want, grow: bool) -> bool {
        let (blocks, free) = (self.ring.blocks, self.ring.free);
        let charged = self.ring.out + want.reserve < self.limit;
        let room = free > 0 || blocks < self.options.budget && (grow || blocks < self.limit);
        if charged && room {
            self.ring.free = free.saturating_sub(1);
            self.ring.blocks += usize::from(free == 0);
            self.ring.out += 1;
        }
        // A batch that is copied takes a slab late, which nobody could know of.
        let kinds = self.options.batches.iter();
        if self.is_open(want.batch) && kinds.clone().all(|(kind, _)| *kind != Kind::Elsewhere) {
            let needing = self.needing_before(want.batch);
            let others = self.works.values().map(|work| work.slabs).sum::<usize>();
            if charged && room {
                assert!(
                    self.ring.out + needing <= self.limit,
                    "{needing} are left without"
                );
            } else if !charged && needing == 0 {
                // Those that are open have one each: it is the program that holds too many.
                assert!(self.ring.out - others > self.limit - self.options.prefetch);
            }
        }
        charged && room
    }

    /// How many batches before this one are open and need a slab.
    fn needing_before(&self, batch: u64) -> usize {
        let before = self.works.range(..batch);
        before
            .filter(|(number, work)| **number >= self.delivered && work.needs_slab())
            .count()
    }

    fn check_want(&self, want: Want) {
        let before = self
            .works
            .range(self.delivered..want.batch.max(self.delivered));
        // Who is at the ring already does not wait any more, as the schedule sees it; who waits is in front.
        for (batch, work) in before {
            let at_ring = self.is_at_ring(*batch);
            assert!(
                !work.wants || work.failed || at_ring,
                "batch {} is served before {batch}",
                want.batch
            );
        }
        assert!(!self.works[&want.batch].failed, "{want:?} is of no use");
        assert_eq!(want.reserve, self.needing_before(want.batch));
        let is_blocked = matches!(self.consumer, Consumer::Blocked { .. });
        assert_eq!(want.blocked, is_blocked && want.batch == self.delivered);
    }

    fn is_at_ring(&self, batch: u64) -> bool {
        let worker = self.workers.iter().any(|worker| match worker {
            Worker::AtRing { batch: b, .. }
            | Worker::Granted { batch: b, .. }
            | Worker::NotGranted { batch: b, .. } => *b == batch,
            _ => false,
        });
        let pin = match &self.pin {
            Pin::Fly { want, .. }
            | Pin::Take { want, .. }
            | Pin::Decide { want, .. }
            | Pin::Give { want, .. }
            | Pin::Fill { want, .. }
            | Pin::Granted { want } => want.batch == batch,
            _ => false,
        };
        worker || pin
    }

    // What the consumer does.

    fn next(&mut self) {
        if self.taken > 0 {
            self.taken -= 1;
            return;
        }
        self.schedule.used_up();
        let ready = self.schedule.ready();
        if ready > 0 {
            self.seen.several += u64::from(ready > 1);
            let first = self.schedule.first();
            assert_eq!(first, self.delivered, "batches come in order");
            self.schedule.deliver(ready);
            self.consumer = Consumer::Runs;
            self.taken = 0;
            for batch in first..first + ready as u64 {
                self.delivered += 1;
                // Those that were sent are in nobody's way.
                let here = !self.work_of(batch).sent && batch > first;
                self.taken += usize::from(here);
                self.came(batch);
            }
        } else if self.consumer == Consumer::Runs {
            self.schedule.block();
            self.ring.news += u64::from(self.schedule.waits_for_slab());
            self.consumer = Consumer::Blocked { notified: false };
        } else {
            self.consumer = Consumer::Blocked { notified: false };
        }
        self.wake();
    }

    fn came(&mut self, batch: u64) {
        let strict = self.options.strict;
        let work = self.work_of(batch);
        let Some(ok) = work.outcome else {
            panic!("batch {batch} is delivered before it is there")
        };
        assert!(
            ok == (work.fault == Fault::None) || strict && !ok,
            "{work:?}"
        );
        if ok {
            let slabs = std::mem::take(&mut work.slabs);
            assert_eq!(work.holders, 0);
            self.works.remove(&batch);
            self.held.push(slabs);
        } else {
            if work.holders == 0 {
                assert_eq!(work.slabs, 0);
                self.works.remove(&batch);
            }
            self.seen.failed += 1;
        }
    }
}

impl std::fmt::Debug for World {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("World")
            .field("schedule", &self.schedule)
            .field("works", &self.works)
            .field("workers", &self.workers)
            .field("pin", &self.pin)
            .field("consumer", &self.consumer)
            .field("ring", &self.ring)
            .field("copies", &self.copies)
            .field("held", &self.held)
            .field("delivered", &self.delivered)
            .finish()
    }
}
