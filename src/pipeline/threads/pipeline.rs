//! What the threads of one loader share.

use super::start::Roster;
use crate::error::{Error, Result};
use crate::meter::Meters;
use crate::pipeline::lookahead::Announcing;
use crate::pipeline::memory::{Memory, room};
use crate::pipeline::plan::options::Options;
use crate::pipeline::shared::lock::{Locked, Shared};
use crate::pipeline::shared::sizing::{ActiveWorkers, WorkerSizing};
use crate::pipeline::shared::slab_size::SlabSizes;
use crate::pipeline::shared::state::State;
use crate::pipeline::traits::Factory;
use crate::pipeline::traits::Learned;
use crate::sync::{Arc, AtomicBool, Instant, Weak, is_within_code_of};
use crate::system::Process;

/// Why no batches are made in a forked process.
pub(crate) const FORKED: &str = "this process was forked from the one that built the loader, and has none of its threads: build the loader in the \
                      process that uses it, after the fork";

/// What the threads of one loader share.
pub(crate) struct Pipeline<B: 'static> {
    pub(crate) shared: Arc<Shared<B>>,
    pub(crate) memory: Memory<B>,
    pub(crate) factory: Box<dyn Factory<B>>,
    /// If the data set wants to know what comes.
    pub(crate) announcing: Option<Arc<Announcing>>,
    /// What statuses count from.
    pub(crate) began: Instant,
    pub(crate) roster: Arc<Roster>,
    /// For threads that are started later.
    pub(crate) me: Weak<Pipeline<B>>,
    /// One for each device that sessions are loaded for; a single one if no memory is page-locked. Sessions, epoch contexts and handles
    /// have its number: the program may leak them, and they must not keep the device alive.
    pub(crate) options: Arc<[Options]>,
    /// Those of all epochs.
    pub(crate) meters: Arc<Meters>,
    /// Where its threads are.
    pub(crate) process: Process,
    /// That there is no thread to take the place of one that hangs has been logged.
    pub(crate) has_lacked: AtomicBool,
}

impl<B: 'static> Pipeline<B> {
    pub(crate) fn new(factory: Box<dyn Factory<B>>, options: Vec<Options>) -> Arc<Pipeline<B>> {
        let listener = factory.listener();
        let active_workers = ActiveWorkers::new(options[0].workers, options[0].is_auto);
        let byte_budget = room::limited(&options);
        let slab_sizes = SlabSizes::new(byte_budget.as_ref().map(|budget| budget.limit()));
        let pinning = options.iter().map(|options| options.pinning.as_ref());
        let rings: Vec<_> = pinning
            .map(|pinning| pinning.map(|pinning| Arc::clone(pinning.ring())))
            .collect();
        let options: Arc<[Options]> = options.into();
        let state = State::new(rings.len() + 1, byte_budget.clone(), active_workers);
        let shared = Arc::new(Shared::new(state, rings, slab_sizes));
        Arc::new_cyclic(|me| Pipeline {
            announcing: listener.and_then(|listener| Announcing::new(listener, &options[0])),
            memory: Memory::new(&shared, &options, byte_budget),
            shared,
            factory,
            began: Instant::now(),
            roster: Arc::default(),
            me: Weak::clone(me),
            meters: Arc::default(),
            process: Process::this(),
            has_lacked: AtomicBool::new(false),
            options,
        })
    }

    /// What sessions for all devices have in common.
    pub(crate) fn options(&self) -> &Options {
        &self.options[0]
    }

    /// How many workers load now, and why.
    pub(crate) fn sizing(&self) -> (usize, WorkerSizing) {
        self.lock().active_workers.now()
    }

    /// What its samples are like.
    pub(crate) fn learned(&self) -> &Learned {
        self.factory.learned()
    }

    /// How many of 64 pictures devices decode, where the CPU decodes the others, once that is fixed.
    pub(crate) fn device_share(&self) -> Option<u8> {
        self.learned().share.fixed()
    }

    /// Whether this process was forked from that of the loader.
    pub(crate) fn is_forked(&self) -> bool {
        !self.process.is_this()
    }

    /// Whether threads of another process may hold the shared lock, or any other of the loader's. (This process was forked from that one,
    /// and has none of its threads, so the lock would never be released.)
    pub(crate) fn has_lost_threads(&self) -> bool {
        self.options().workers > 0 && self.is_forked()
    }

    /// Whether no call in this process can get a batch any more. `on_device`: from the device.
    pub(crate) fn is_lost(&self, on_device: bool) -> bool {
        self.has_lost_threads() || on_device && self.is_forked()
    }

    /// Why a batch must not be waited for here: it would never be made. `on_device`: it is to come from the device.
    #[inline]
    pub(crate) fn refuses_to_wait(&self, on_device: bool) -> Option<Error> {
        let is_lost = self.is_lost(on_device);
        (is_lost || is_within_code_of(self)).then(|| Self::cannot_wait(is_lost))
    }

    #[cold]
    fn cannot_wait(is_lost: bool) -> Error {
        let reason = match is_lost {
            true => FORKED,
            false => {
                "the call comes from one of the loader's own threads (a data set's `get`, a sampler, an iterable, a collate function or a logger, \
                 say), which would wait for itself: give this code a loader of its own, or num_workers(0)"
            }
        };
        Error::CannotWait {
            reason: reason.to_owned(),
        }
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

    pub(crate) fn lock(&self) -> Locked<'_, B> {
        self.shared.lock()
    }
}
