//! The pipeline: workers load and collate units ahead of the consumer, the pin thread gets them slabs, and the consumer takes them in
//! order. `README.md` in this folder explains the protocol.

mod announcer;
mod batching;
mod board;
mod consumer;
mod crew;
mod cut;
mod decoding;
mod desk;
mod early;
mod given;
mod guard;
mod indices;
mod late;
mod line;
mod lines;
mod making;
mod options;
mod outbox;
mod pageable;
mod pass;
mod pin;
mod plan;
mod pull;
mod recipe;
mod recovery;
mod room;
mod schedule;
mod seat;
mod sending;
mod slab_size;
mod slots;
mod solo;
mod source;
mod station;
mod stopwatch;
mod stream;
mod threads;
mod traits;
mod watchdog;
mod worker;

pub(crate) use batching::{Batching, EvenBatching, Lister};
pub(crate) use consumer::{Asking, Patience, Taken, Waiting};
pub use crew::{Crew, Workers};
pub(crate) use cut::{Cut, EpochOrder, Place, Start};
pub use cut::{LastBatch, OnEmpty, Sharding};
pub(crate) use given::Given;
pub(crate) use options::{Options, Pinning, Portion};
pub(crate) use outbox::Outbox;
pub(crate) use recipe::DatasetRecipe;
pub use recovery::OnError;
pub(crate) use recovery::Retry;
pub(crate) use slots::{Delivered, Made};
pub(crate) use stream::{ENDLESS, ItemNumbers, StreamParts, StreamRecipe};
pub(crate) use threads::Threads;
#[cfg(feature = "nvjpeg")]
pub(crate) use traits::Watched;
pub(crate) use traits::{Beginning, Changes, Learned, OwnItems, Seat};

use self::announcer::Announcing;
use self::board::Board;
use self::crew::Duty;
use self::guard::Guard;
use self::slab_size::SlabSize;
use self::threads::Roster;
use self::traits::Recipe;
use crate::device::{InFlight, Kind, Ring, block_bytes};
use crate::error::{Error, Result};
use crate::meter::Meters;
use crate::sync::{Arc, AtomicBool, Condvar, Instant, Mutex, OnceLock, Weak, is_within_code_of};
use crate::system::Process;

/// Why nobody makes batches in a forked process.
const FORKED: &str = "this process was forked from the one that built the loader, and has none of its threads: build the loader in the \
                      process that uses it, after the fork";

/// How many pageable slabs are kept for later, where bytes in flight are limited.
const FEWEST_KEPT: usize = 2;

/// What the threads of one loader share.
pub(crate) struct Pipeline<B> {
    board: Mutex<Board<B>>,
    /// Workers sleep here: those of each group, which are woken only if none of the groups before sleeps. There is a group for each device,
    /// and one for the workers beyond.
    worker_wakeups: Vec<Condvar>,
    /// Those that are off duty sleep here.
    off_duty: Condvar,
    recipe: Box<dyn Recipe<B>>,
    /// If the data set wants to know what comes.
    announcing: Option<Arc<Announcing>>,
    /// What desks count from.
    began: Instant,
    roster: Arc<Roster>,
    /// For threads that are started later.
    me: Weak<Pipeline<B>>,
    /// One for each device that lines are loaded for; a single one if no memory is page-locked. Lines, passes and seats have its number:
    /// the program may leak them, and they must not keep the device alive.
    pub(crate) options: Vec<Options>,
    /// Slabs for batches that need not be page-locked, or cannot be.
    pageable: Arc<Ring>,
    /// The bytes of slabs ahead of the program, if they are limited.
    in_flight: Option<Arc<InFlight>>,
    /// How large slabs of each [`Kind`] are made, and those of runs.
    slab_sizes: [SlabSize; 2],
    run_size: SlabSize,
    /// Whether the slabs of parts need not stay in the last-level cache, because loading takes much longer than copying. The first epoch
    /// whose batches are cut finds out for all that follow, so that no more slabs are made.
    is_wide: OnceLock<bool>,
    /// Those of all epochs.
    pub(crate) meters: Arc<Meters>,
    /// Where its threads are.
    process: Process,
    /// That batches are not page-locked has been logged.
    has_warned: AtomicBool,
    /// That there is no thread to take the place of one that hangs has been logged.
    has_lacked: AtomicBool,
}

impl<B: 'static> Pipeline<B> {
    pub(crate) fn new(recipe: Box<dyn Recipe<B>>, options: Vec<Options>) -> Arc<Pipeline<B>> {
        let listener = recipe.listener();
        let groups = options.len() + 1;
        let duty = Duty::new(options[0].workers, options[0].is_auto);
        let in_flight = room::limited(&options);
        let kept = match &in_flight {
            None => options.iter().map(|options| options.slabs(0)).sum(),
            Some(_) => FEWEST_KEPT,
        };
        Arc::new_cyclic(|me| Pipeline {
            announcing: listener.and_then(|listener| Announcing::new(listener, &options[0])),
            board: Mutex::new(Board::new(groups, in_flight.clone(), duty)),
            in_flight,
            off_duty: Condvar::new(),
            worker_wakeups: (0..groups).map(|_| Condvar::new()).collect(),
            recipe,
            began: Instant::now(),
            roster: Arc::default(),
            me: Weak::clone(me),
            pageable: Ring::pageable(kept),
            slab_sizes: Default::default(),
            run_size: SlabSize::default(),
            is_wide: OnceLock::new(),
            meters: Arc::default(),
            process: Process::this(),
            has_warned: AtomicBool::new(false),
            has_lacked: AtomicBool::new(false),
            options,
        })
    }

    /// What lines for all devices have in common.
    pub(crate) fn options(&self) -> &Options {
        &self.options[0]
    }

    /// How many workers load now, and why.
    pub(crate) fn crew(&self) -> (usize, Crew) {
        self.lock().duty.now()
    }

    /// What its samples are like.
    #[cfg(feature = "nvjpeg")]
    pub(crate) fn learned(&self) -> &Learned {
        self.recipe.learned()
    }

    /// How many of 64 pictures devices decode, where the CPU decodes the others, once that is fixed.
    pub(crate) fn device_share(&self) -> Option<u8> {
        #[cfg(feature = "nvjpeg")]
        return self.learned().share.fixed();
        #[cfg(not(feature = "nvjpeg"))]
        None
    }

    /// Whether this process was forked from that of the loader.
    fn is_forked(&self) -> bool {
        !self.process.is_this()
    }

    /// Whether threads of another process may hold the board's lock, or any other of the loader's. (This one was forked from it, and has
    /// none of them, so nobody would release it.)
    pub(crate) fn has_lost_threads(&self) -> bool {
        self.options().workers > 0 && self.is_forked()
    }

    /// Whether no call in this process can get a batch any more. `on_device`: from the device.
    pub(crate) fn is_lost(&self, on_device: bool) -> bool {
        self.has_lost_threads() || on_device && self.is_forked()
    }

    /// Why a batch must not be waited for here: nobody would make it. `on_device`: it is to come from the device.
    pub(crate) fn refuses_to_wait(&self, on_device: bool) -> Option<Error> {
        let reason = if self.is_lost(on_device) {
            FORKED
        } else if is_within_code_of(self) {
            "the call comes from one of the loader's own threads (a data set's `get`, a sampler, a stream, a collate function or a logger, say), \
             which would wait for itself: give this code a loader of its own, or num_workers(0)"
        } else {
            return None;
        };
        let reason = reason.to_owned();
        Some(Error::CannotWait { reason })
    }

    /// Refuses what goes on with the run in a process that has none of the threads.
    pub(crate) fn check_process(&self) -> Result<()> {
        match self.has_lost_threads() {
            true => Err(Error::CannotWait {
                reason: FORKED.to_owned(),
            }),
            false => Ok(()),
        }
    }

    /// Tells the device's pin thread to look again.
    fn tell_pin_thread(&self, device: usize) {
        if let Some(pinning) = &self.options[device].pinning {
            pinning.ring().news().notify();
        }
    }

    /// How many slabs there are to be: as many as bytes in flight have room for, one that cannot wait, and one with the program.
    fn slabs_within(&self, kind: Kind) -> usize {
        let bytes = self.slab_sizes[kind as usize].bytes();
        match &self.in_flight {
            Some(in_flight) if bytes > 0 => {
                let bytes = block_bytes(bytes).unwrap_or(bytes);
                (in_flight.limit() / bytes).max(1).saturating_add(2)
            }
            _ => usize::MAX,
        }
    }

    fn lock(&self) -> Guard<'_, B> {
        Guard::new(self)
    }
}
