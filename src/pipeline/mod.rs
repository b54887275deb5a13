//! The pipeline: workers load and collate units ahead of the consumer, the pin thread gets them slabs, and the consumer takes them in
//! order. `README.md` in this folder explains the protocol.

mod batching;
mod board;
mod consumer;
mod crew;
mod cut;
mod desk;
mod early;
mod guard;
mod late;
mod line;
mod outbox;
mod pin;
mod plan;
mod pull;
mod recovery;
mod schedule;
mod seat;
mod sending;
mod source;
mod stopwatch;
mod threads;
mod watchdog;
mod work;
mod worker;

pub(crate) use batching::{Batching, EvenBatching, Lister};
pub(crate) use consumer::{Asking, Patience, Taken, Waiting};
pub use crew::{Crew, Workers};
pub(crate) use cut::{Cut, EpochOrder, Place, Start};
pub use cut::{LastBatch, Sharding};
pub(crate) use guard::drop_each;
pub(crate) use line::{Delivered, Made};
pub(crate) use outbox::Outbox;
pub(crate) use plan::{Options, Pinning};
pub(crate) use pull::{ENDLESS, ItemNumbers, OwnItems, StreamParts, StreamRecipe};
pub use recovery::OnError;
pub(crate) use recovery::{Changes, Retry};
pub(crate) use seat::Seat;
pub(crate) use threads::Threads;
pub(crate) use work::{DatasetRecipe, Learned};

use self::board::Board;
use self::crew::Duty;
use self::guard::Guard;
use self::threads::Roster;
use self::work::Recipe;
use crate::device::Ring;
use crate::sync::{Arc, AtomicBool, AtomicUsize, Condvar, Instant, Mutex, OnceLock, Weak};

/// What the threads of one loader share.
pub(crate) struct Pipeline<B> {
    board: Mutex<Board<B>>,
    /// Workers sleep here: the first few; the spare ones, which are woken only if none of the others sleeps; and those that are off duty.
    worker_wakeups: [Condvar; 3],
    recipe: Box<dyn Recipe<B>>,
    /// What desks count from.
    began: Instant,
    roster: Arc<Roster>,
    /// For threads that are started later.
    me: OnceLock<Weak<Pipeline<B>>>,
    /// One for each device that lines are loaded for; so far, the program can set only one. Lines, passes and seats have its number: the
    /// program may leak them, and they must not keep the device alive.
    pub(crate) options: Vec<Options>,
    /// Slabs for batches that need not be page-locked, or cannot be.
    pageable: Arc<Ring>,
    /// The largest slab so far of each [`Kind`](crate::device::Kind). Relaxed: it is a hint.
    largest_bytes: [AtomicUsize; 2],
    /// Whether the slabs of parts need not stay in the last-level cache, because loading takes much longer than copying. The first epoch
    /// whose batches are cut finds out for all that follow, so that no more slabs are made.
    is_wide: OnceLock<bool>,
    /// That batches are not page-locked has been logged.
    has_warned: AtomicBool,
    /// That there is no thread to take the place of one that hangs has been logged.
    has_lacked: AtomicBool,
}

impl<B: 'static> Pipeline<B> {
    pub(crate) fn new(recipe: Box<dyn Recipe<B>>, options: Options) -> Pipeline<B> {
        Pipeline {
            board: Mutex::new(Board::new(Duty::new(options.workers, options.is_auto))),
            worker_wakeups: Default::default(),
            recipe,
            began: Instant::now(),
            roster: Arc::default(),
            me: OnceLock::new(),
            pageable: Ring::pageable(options.slabs(0)),
            largest_bytes: Default::default(),
            is_wide: OnceLock::new(),
            has_warned: AtomicBool::new(false),
            has_lacked: AtomicBool::new(false),
            options: vec![options],
        }
    }

    /// What lines for all devices have in common.
    pub(crate) fn options(&self) -> &Options {
        &self.options[0]
    }

    /// How many workers load now, and why.
    pub(crate) fn crew(&self) -> (usize, Crew) {
        self.lock().duty.now()
    }

    /// Tells the device's pin thread to look again.
    fn tell_pin_thread(&self, device: usize) {
        if let Some(pinning) = &self.options[device].pinning {
            pinning.ring().news().notify();
        }
    }

    fn lock(&self) -> Guard<'_, B> {
        Guard::new(self)
    }
}
