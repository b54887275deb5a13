//! Sizing: how many of a loader's workers load, and why.

use std::fmt;

use crate::meter::Meter;
use crate::system;
use crate::tuning::{BATCHES_WATCHED, WORKER_STACK_BYTES};

/// How many worker threads a loader has ([`Builder::num_workers`](crate::loader::Builder::num_workers)). A plain number is
/// [`Fixed`](Workers::Fixed).
///
/// # Examples
///
/// ```
/// use pinfeed::loader::Workers;
/// use pinfeed::{DataLoader, from_fn};
///
/// let samples = from_fn(1_000, |index, _| Ok(index as i64));
/// let loader = DataLoader::builder(samples).batch_size(100).num_workers(Workers::Auto).build()?;
/// for batch in &loader {
///     batch?;
/// }
/// let stats = loader.stats();
/// println!("{} workers: {}", stats.workers, stats.sizing);
/// assert!(stats.workers >= 1);
/// # Ok::<(), pinfeed::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Workers {
    /// One for each core that the process may use (`taskset`, a control group's set of cores and its quota), of which as many load as
    /// the first batches show to be of use. [`Stats::sizing`](crate::loader::Stats::sizing) says how many, and why. While several epochs are
    /// taken at once (by the devices of a [`split`](crate::loader::Epoch::split), or by a training and its evaluation), all of them load.
    Auto,
    /// That many; with 0, batches are loaded on the caller's thread, on demand.
    Fixed(usize),
}

impl From<usize> for Workers {
    fn from(count: usize) -> Workers {
        Workers::Fixed(count)
    }
}

impl Workers {
    /// How many are started. `cores`: how many there are for [`Auto`](Workers::Auto), if that is not to be asked of the system.
    pub(crate) fn started(self, cores: Option<usize>) -> usize {
        match self {
            Workers::Fixed(count) => count,
            Workers::Auto => {
                let cores = cores.unwrap_or_else(system::usable_cores);
                // The program did not ask for this number, so it must not be one that the system refuses.
                cores.min(system::most_threads(WORKER_STACK_BYTES)).max(1)
            }
        }
    }
}

/// How it was decided how many workers load ([`Stats::sizing`](crate::loader::Stats::sizing)). It prints as a few words.
///
/// # Examples
///
/// ```
/// use pinfeed::loader::{WorkerSizing, Workers};
/// use pinfeed::{DataLoader, from_fn};
///
/// let samples = from_fn(100, |index, _| Ok(index as i64));
/// let loader = DataLoader::builder(samples).num_workers(Workers::Auto).build()?;
/// for batch in &loader {
///     batch?;
/// }
/// match loader.stats().sizing {
///     WorkerSizing::AllCores => println!("the loop waits for samples: more cores would help"),
///     sizing => println!("{} workers: {sizing}", loader.stats().workers),
/// }
/// # Ok::<(), pinfeed::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub enum WorkerSizing {
    /// The program set the number.
    #[default]
    Fixed,
    /// All cores load: the first batches have not shown yet whether fewer would do.
    Starting,
    /// All cores load, because the loop waits for batches, or needs as many.
    AllCores,
    /// All cores load, because several epochs are taken at once: what one of them shows says nothing of the others.
    Several,
    /// So many keep up with the loop, with room for samples that take longer. If the loop has to wait, more load.
    Enough,
    /// Loading is copying. More workers would not copy faster, and would take memory bandwidth from the link.
    Copying,
    /// Batches take microseconds. More workers would wait for each other.
    Tiny,
}

impl WorkerSizing {
    /// Whether the number was left to the loader.
    pub fn is_auto(self) -> bool {
        self != WorkerSizing::Fixed
    }
}

impl fmt::Display for WorkerSizing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            WorkerSizing::Fixed => "as many as were asked for",
            WorkerSizing::Starting => "all cores, until the first batches show how many are needed",
            WorkerSizing::AllCores => "all cores",
            WorkerSizing::Several => "all cores, because several epochs are taken at once",
            WorkerSizing::Enough => "as many as keep up with the loop",
            WorkerSizing::Copying => "loading is copying, and more would slow the link",
            WorkerSizing::Tiny => "batches take microseconds, and more would wait for each other",
        })
    }
}

/// Which workers are on duty: those with the lowest numbers. The others sleep, until there are too few.
#[derive(Debug)]
pub(crate) struct ActiveWorkers {
    /// How many workers there are.
    all: usize,
    /// How many of them load.
    active: usize,
    sizing: WorkerSizing,
    /// Where the measurement of the first batches began.
    mark: Option<Mark>,
}

/// What the counters of an epoch had reached when one of its batches was asked for.
#[derive(Debug, Clone, Copy)]
struct Mark {
    /// Session and entry of the epoch.
    epoch: (u64, u64),
    given: u64,
    host_ns: u64,
    waited_ns: u64,
}

impl ActiveWorkers {
    pub(crate) fn new(all: usize, is_auto: bool) -> ActiveWorkers {
        ActiveWorkers {
            all,
            active: all,
            sizing: if is_auto {
                WorkerSizing::Starting
            } else {
                WorkerSizing::Fixed
            },
            mark: None,
        }
    }

    /// The system started no more than `all` workers.
    pub(crate) fn limit(&mut self, all: usize) {
        self.all = all;
        self.active = all;
    }

    /// Whether the worker with this number loads.
    pub(crate) fn is_on(&self, worker: usize) -> bool {
        self.active == self.all || worker < self.active
    }

    /// How many do not.
    pub(crate) fn off(&self) -> usize {
        self.all - self.active
    }

    /// How many load, and why.
    pub(crate) fn now(&self) -> (usize, WorkerSizing) {
        (self.active, self.sizing)
    }

    /// A consumer begins a session: all load, so that its first batch comes as soon as it can. Returns whether some have to be woken.
    pub(crate) fn begin(&mut self) -> bool {
        if !self.sizing.is_auto() {
            return false;
        }
        self.mark = None;
        self.sizing = WorkerSizing::Starting;
        std::mem::replace(&mut self.active, self.all) < self.all
    }

    /// A consumer gets a batch. `is_alone`: there is no other.
    pub(crate) fn serves(&mut self, is_alone: bool) {
        match (self.sizing, is_alone) {
            (WorkerSizing::Starting, false) => self.sizing = WorkerSizing::Several,
            (WorkerSizing::Several, true) => {
                (self.sizing, self.mark) = (WorkerSizing::Starting, None)
            }
            _ => {}
        }
    }

    /// The consumer gets a batch of an epoch, named by its session and entry, of which it was `given` so many. Some batches after the
    /// first one, it is decided how many workers go on. `most`: more than so many would be slower, and why.
    pub(crate) fn watch(
        &mut self,
        epoch: (u64, u64),
        given: u64,
        meter: &Meter,
        most: impl FnOnce() -> Option<(usize, WorkerSizing)>,
    ) {
        if self.sizing != WorkerSizing::Starting {
            return;
        }
        let now = Mark {
            epoch,
            given,
            host_ns: meter.host_ns.get(),
            waited_ns: meter.consumer_wait_ns.get(),
        };
        let Some(mark) = self.mark.filter(|mark| mark.epoch == now.epoch) else {
            // The first batch was waited for in any case.
            self.mark = (now.given > 0).then_some(now);
            return;
        };
        let batches = now.given - mark.given;
        if batches < BATCHES_WATCHED {
            return;
        }
        let build = [
            &meter.sampling_ns,
            &meter.pulling_ns,
            &meter.loading_ns,
            &meter.decoding_ns,
            &meter.collating_ns,
        ];
        let work_ns: u64 = build.iter().map(|sum| sum.get()).sum();
        let seen = Seen {
            work_ns: work_ns / meter.batches.get().max(1),
            host_ns: (now.host_ns - mark.host_ns) / batches,
            waited_ns: (now.waited_ns - mark.waited_ns) / batches,
        };
        let (most, why) = most()
            .filter(|(most, _)| *most < self.all)
            .unwrap_or((self.all, WorkerSizing::AllCores));
        (self.active, self.sizing) = match seen.needed() {
            Some(needed) if needed < most => (needed, WorkerSizing::Enough),
            _ => (most, why),
        };
    }

    /// A consumer is blocked, and all workers on duty are busy, while there is more to do: twice as many load from now on. `false`: all do.
    pub(crate) fn grow(&mut self) -> bool {
        if self.active >= self.all {
            return false;
        }
        self.active = (2 * self.active).min(self.all);
        self.sizing = match self.active == self.all {
            true => WorkerSizing::AllCores,
            false => WorkerSizing::Enough,
        };
        true
    }
}

/// What the first batches showed, per batch.
#[derive(Debug, Clone, Copy)]
struct Seen {
    /// How long workers were busy with it, all together.
    work_ns: u64,
    /// The consumer's own time between two batches.
    host_ns: u64,
    waited_ns: u64,
}

impl Seen {
    /// How many workers keep up with the consumer; `None`: it waits for all that there are.
    fn needed(self) -> Option<usize> {
        if self.waited_ns * 10 >= self.waited_ns + self.host_ns {
            return None;
        }
        // Half as many again, for samples that take longer than most.
        let needed = (self.work_ns * 3).div_ceil(self.host_ns.max(1) * 2);
        Some(usize::try_from(needed).unwrap_or(usize::MAX).max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Workers are busy for `work_ns` with each batch, and the loop takes `host_ns` for one, and waits `waited_ns` for it; the first batch
    /// takes long. Returns how many workers load then, and why.
    fn after_an_epoch(
        active_workers: &mut ActiveWorkers,
        of: [u64; 3],
        batches: u64,
        most: Option<(usize, WorkerSizing)>,
    ) -> (usize, WorkerSizing) {
        let [work_ns, host_ns, waited_ns] = of;
        let meter = Meter::default();
        meter.consumer_wait_ns.add(1_000_000_000);
        for given in 0..batches {
            meter.loading_ns.add(work_ns / 2);
            meter.collating_ns.add(work_ns - work_ns / 2);
            meter.batches.add(1);
            active_workers.watch((1, 0), given, &meter, || most);
            meter.host_ns.add(host_ns);
            meter.consumer_wait_ns.add(waited_ns);
        }
        active_workers.now()
    }

    #[test]
    fn as_many_load_as_keep_up() {
        for (of, expected) in [
            // Half as many again as the loop needs, and one at least.
            ([40_000, 10_000, 0], (6, WorkerSizing::Enough)),
            ([41_000, 10_000, 0], (7, WorkerSizing::Enough)),
            ([10, 10_000, 0], (1, WorkerSizing::Enough)),
            ([0, 10_000, 0], (1, WorkerSizing::Enough)),
            ([110_000, 10_000, 0], (16, WorkerSizing::AllCores)),
            // A loop that waits now and then has enough; one that waits for more than a tenth of the time has not.
            ([40_000, 10_000, 1_000], (6, WorkerSizing::Enough)),
            ([40_000, 10_000, 2_000], (16, WorkerSizing::AllCores)),
            ([40_000, 0, 0], (16, WorkerSizing::AllCores)),
            ([40_000, 0, 10_000], (16, WorkerSizing::AllCores)),
        ] {
            let mut active_workers = ActiveWorkers::new(16, true);
            assert_eq!(
                after_an_epoch(&mut active_workers, of, 20, None),
                expected,
                "{of:?}"
            );
            let (active, _) = expected;
            assert!(
                active_workers.is_on(active - 1) && (active == 16 || !active_workers.is_on(active))
            );
            assert_eq!(active_workers.off(), 16 - active);
        }
    }

    #[test]
    fn it_takes_some_batches_of_one_epoch() {
        let of = [10_000, 10_000, 0];
        let mut active_workers = ActiveWorkers::new(4, true);
        for _ in 0..5 {
            // (Of an epoch before, only the marks are left; that of a short one is of no use to the next.)
            let short = after_an_epoch(&mut active_workers, of, BATCHES_WATCHED, None);
            assert_eq!(short, (4, WorkerSizing::Starting));
            assert!(!active_workers.begin()); // all are on duty
        }
        let long = after_an_epoch(&mut active_workers, of, BATCHES_WATCHED + 2, None);
        assert_eq!(long, (2, WorkerSizing::Enough));
        assert!(active_workers.begin());
        assert_eq!(active_workers.now(), (4, WorkerSizing::Starting));
    }

    #[test]
    fn few_load_where_more_would_be_slower() {
        for why in [WorkerSizing::Copying, WorkerSizing::Tiny] {
            for (all, of, expected) in [
                (64, [40_000, 0, 10_000], (10, why)),
                (10, [40_000, 0, 10_000], (10, WorkerSizing::AllCores)),
                // The loop needs even fewer.
                (64, [40_000, 10_000, 0], (6, WorkerSizing::Enough)),
            ] {
                let mut active_workers = ActiveWorkers::new(all, true);
                let most = Some((10, why));
                assert_eq!(after_an_epoch(&mut active_workers, of, 20, most), expected);
            }
        }
    }

    #[test]
    fn their_number_doubles_until_all_load() {
        let mut active_workers = ActiveWorkers::new(7, true);
        after_an_epoch(&mut active_workers, [10, 10_000, 0], 20, None);
        let seen: Vec<_> =
            std::iter::from_fn(|| active_workers.grow().then(|| active_workers.now())).collect();
        assert_eq!(
            seen,
            [
                (2, WorkerSizing::Enough),
                (4, WorkerSizing::Enough),
                (7, WorkerSizing::AllCores)
            ]
        );
        // What was decided stands for the session.
        assert_eq!(
            after_an_epoch(&mut active_workers, [10, 10_000, 0], 20, None),
            (7, WorkerSizing::AllCores)
        );
    }

    #[test]
    fn several_consumers_have_all() {
        let mut active_workers = ActiveWorkers::new(4, true);
        active_workers.serves(true);
        assert_eq!(active_workers.now(), (4, WorkerSizing::Starting));
        active_workers.serves(false);
        assert_eq!(active_workers.now(), (4, WorkerSizing::Several));
        // The one that is left shows how many it needs.
        active_workers.serves(true);
        let now = after_an_epoch(&mut active_workers, [10_000, 10_000, 0], 20, None);
        assert_eq!(now, (2, WorkerSizing::Enough));
        active_workers.serves(false);
        assert_eq!(active_workers.now(), (2, WorkerSizing::Enough));
        assert!(active_workers.begin());
        active_workers.serves(false);
        assert_eq!(active_workers.now(), (4, WorkerSizing::Several));
    }

    #[test]
    fn a_fixed_number_stays() {
        let mut active_workers = ActiveWorkers::new(7, false);
        active_workers.serves(false);
        let now = after_an_epoch(&mut active_workers, [10, 10_000, 0], 20, None);
        assert_eq!(now, (7, WorkerSizing::Fixed));
        assert!(!active_workers.begin() && !active_workers.grow());
        assert_eq!(active_workers.now(), (7, WorkerSizing::Fixed));
    }
}
