//! Announcements: a data set that wants to know which samples come is told of each sample once, before that is got.
//!
//! A session has one announcer, with a cursor that is kept `lookahead` samples ahead of what is being loaded, in the order of the shard's
//! rows, and beyond the end of an epoch into the one that follows. A thread that is about to load rows moves the cursor under the
//! announcer's own lock, and then calls the data set without any. A pass ends when its epoch leaves the shared state.
//!
//! A data set that reads blocks is told when a pass begins, with the blocks that the pass needs, and then how far the pass has come, instead of
//! each sample: how far the cursor is, and before which position all samples were loaded, so that nothing that is read for these is needed any
//! more. It goes ahead in the list of blocks by itself, as it has room, so there is no second cursor here.

mod ahead;
mod announced;
mod listener;
mod loaded;

pub(crate) use self::announced::{Announced, EndsPass};
pub(crate) use self::listener::{Listener, check_room};

use std::collections::VecDeque;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use self::ahead::{Ahead, Run, Samples, find};
use super::plan::indices::Sampled;
use super::plan::options::Options;
use super::plan::partition::{Partition, Start};
use super::plan::shard::DeviceShard;
use crate::dataset::Pass;
use crate::error::panic_message;
use crate::sampler::Openings;
use crate::sync::log;
use crate::sync::{Arc, Condvar, Mutex, MutexGuard, Ordering, plain, planted};

/// What the announcers of a loader have in common.
pub(crate) struct Announcing {
    listener: Arc<dyn Listener>,
    lookahead: u64,
    /// It reads blocks.
    has_blocks: bool,
    /// To find out which samples an epoch has. (Without the device, because the program may leak a session.)
    options: Options,
}

impl Announcing {
    /// `None`: the data set does not want to know.
    pub(crate) fn new(listener: Arc<dyn Listener>, options: &Options) -> Option<Arc<Announcing>> {
        let lookahead = listener.lookahead() as u64;
        let options = Options {
            pinning: None,
            ..options.clone()
        };
        (lookahead > 0).then(|| {
            Arc::new(Announcing {
                has_blocks: listener.has_blocks(),
                listener,
                lookahead,
                options,
            })
        })
    }
}

/// The announcer of a session.
pub(crate) struct Announcer {
    shared: Arc<Announcing>,
    /// Which of this rank's batches the session has.
    share: DeviceShard,
    /// The number of the session, which all of its passes have.
    line: u64,
    passes: Mutex<VecDeque<Ahead>>,
    /// A call of the data set has returned, or it is known which samples a pass has.
    changed: Condvar,
}

/// What there is to do before rows are loaded.
enum Step {
    Announce(Vec<Run>),
    /// Find out which samples a pass has.
    Ask(u64, Start),
    /// Wait for other threads.
    Wait,
    Done,
}

impl Announcer {
    pub(crate) fn new(shared: &Arc<Announcing>, share: DeviceShard) -> Arc<Announcer> {
        static LINES: plain::AtomicU64 = plain::AtomicU64::new(1);
        Arc::new(Announcer {
            shared: Arc::clone(shared),
            share,
            line: LINES.fetch_add(1, Ordering::Relaxed),
            passes: Mutex::default(),
            changed: Condvar::new(),
        })
    }

    /// Appends a pass, which begins there. It ends when what is returned is dropped.
    pub(crate) fn append(self: &Arc<Announcer>, start: Start) -> EndsPass {
        static PASSES: plain::AtomicU64 = plain::AtomicU64::new(1);
        let id = PASSES.fetch_add(1, Ordering::Relaxed);
        let pass = Pass {
            timeout: self.shared.options.timeout,
            line: self.line,
            share: self.share.of,
            ..Pass::new(id, start.epoch)
        };
        self.passes.lock().push_back(Ahead::new(pass, start));
        EndsPass(Arc::new(Announced::new(self, id)))
    }

    /// `rows`: of the batch, those that are loaded next.
    fn announce(&self, pass: &Announced, batch: u64, rows: Range<u64>, sampled: &Sampled) {
        let mut passes = self.passes.lock();
        loop {
            match self.next_step(&mut passes, pass, batch, &rows) {
                Step::Announce(runs) => {
                    drop(passes);
                    self.tell(runs, sampled);
                    passes = self.passes.lock();
                }
                Step::Ask(of, start) => {
                    drop(passes);
                    self.ask(of, start);
                    passes = self.passes.lock();
                }
                Step::Wait => self.changed.wait(&mut passes),
                Step::Done if self.shared.has_blocks => {
                    return self.tell_done(passes, pass.id, |_| {});
                }
                Step::Done => return,
            }
        }
    }

    /// Finds out which samples a pass has. A data set that reads blocks is told that it begins.
    fn ask(&self, of: u64, start: Start) {
        let options = &self.shared.options;
        let partition = options.partition(start, self.share);
        let order = options.order(&partition);
        // The program's code, both: other threads wait for this one, also if it panics.
        let begins = || {
            let Some(openings) = self.openings(start, &partition) else {
                return false;
            };
            if let Some(call) = self.call(of, |ahead| ahead.has_begun = true) {
                self.shared.listener.pass_began(openings, call.pass);
            }
            true
        };
        let begun = catch_unwind(AssertUnwindSafe(begins));
        let mut passes = self.passes.lock();
        if let Some(ahead) = find(&mut passes, of) {
            ahead.has_openings = matches!(begun, Ok(true));
            ahead.samples = Samples::new(partition, order, start.epoch);
        }
        drop(passes);
        self.changed.notify_all();
        if let Err(payload) = begun {
            resume_unwind(payload);
        }
    }

    /// Which blocks a pass needs that has these batches.
    fn openings(&self, start: Start, partition: &Partition) -> Option<Openings> {
        let shared = &self.shared;
        let openings = shared
            .has_blocks
            .then(|| shared.options.openings(start, self.share));
        // Of samples that are left out at the end, none is needed.
        let end = partition.position_after(partition.batches());
        Some(openings??.before(end))
    }

    /// The data set is going to be told of a pass, but of no samples. `None`: the pass is over.
    fn call(&self, id: u64, noted: impl FnOnce(&mut Ahead)) -> Option<Call<'_>> {
        let mut passes = self.passes.lock();
        let ahead = find(&mut passes, id).filter(|ahead| !ahead.is_over)?;
        noted(ahead);
        ahead.calls.push(NO_SAMPLE);
        Some(Call {
            announcer: self,
            pass: ahead.pass,
            range: NO_SAMPLE,
        })
    }

    /// Notes what is done with, and tells the data set, if it is more than that was told of.
    fn tell_done(
        &self,
        mut passes: MutexGuard<'_, VecDeque<Ahead>>,
        id: u64,
        note: impl FnOnce(&mut Ahead),
    ) {
        let Some(ahead) = find(&mut passes, id).filter(|ahead| !ahead.is_over) else {
            return;
        };
        note(ahead);
        if let Some(pass) = ahead.take_news() {
            ahead.calls.push(NO_SAMPLE);
            drop(passes);
            let _call = Call {
                announcer: self,
                pass,
                range: NO_SAMPLE,
            };
            self.shared.listener.will_need(&[], pass);
        }
    }

    fn next_step(
        &self,
        passes: &mut VecDeque<Ahead>,
        pass: &Announced,
        batch: u64,
        rows: &Range<u64>,
    ) -> Step {
        let (id, settled) = (pass.id, pass.settled());
        let Some(own) = find(passes, id).filter(|own| !own.is_over) else {
            return Step::Done; // the epoch was left
        };
        match own.samples {
            Samples::Known { .. } => {}
            Samples::Unknown => {
                own.samples = Samples::Asking;
                return Step::Ask(id, own.start);
            }
            Samples::Asking => return Step::Wait,
        }
        own.settle(settled);
        let mut runs = Vec::new();
        // First what is loaded now, whatever else is ahead.
        while own.is_before(batch, rows.end) {
            let most = match own.batch == batch {
                true => rows.end - own.row,
                false => u64::MAX,
            };
            match own.next_run(most) {
                Some(run) => runs.push(run),
                None => break,
            }
        }
        let begun = own.number(batch, rows.end);
        own.begun = own.begun.max(begun.unwrap_or(0)).min(own.announced);
        let own_rows = own.number(batch, rows.start).zip(begun);
        let ahead: u64 = passes.iter().map(Ahead::ahead).sum();
        let mut left = self.shared.lookahead.saturating_sub(ahead);
        for ahead in passes.iter_mut().filter(|ahead| !ahead.is_over) {
            while left > 0
                && let Some(run) = ahead.next_run(left)
            {
                left -= run.rows.len() as u64;
                runs.push(run);
            }
            match ahead.samples {
                _ if left == 0 => break,
                Samples::Known { .. } => {}
                // What was found so far is announced first.
                Samples::Unknown if runs.is_empty() => {
                    ahead.samples = Samples::Asking;
                    return Step::Ask(ahead.pass.id(), ahead.start);
                }
                Samples::Unknown | Samples::Asking => break,
            }
        }
        if !runs.is_empty() {
            return Step::Announce(runs);
        }
        // Blocks are read ahead into the pass that follows, further than its samples are announced.
        let is_unknown =
            |ahead: &&mut Ahead| !ahead.is_over && matches!(ahead.samples, Samples::Unknown);
        if self.shared.has_blocks
            && let Some(ahead) = passes.iter_mut().find(is_unknown)
        {
            ahead.samples = Samples::Asking;
            return Step::Ask(ahead.pass.id(), ahead.start);
        }
        // Other threads may be announcing these rows at this moment.
        let is_told = own_rows.is_none_or(|(start, end)| {
            let own = find(passes, id);
            own.is_none_or(|own| {
                let mut calls = own.calls.iter();
                !calls.any(|call| call.start < end && start < call.end)
            })
        });
        match is_told || planted("a sample is got before it is announced") {
            true => Step::Done,
            false => Step::Wait,
        }
    }

    /// Tells the data set, without a lock.
    fn tell(&self, runs: Vec<Run>, sampled: &Sampled) {
        // All of them return in the end, even if the data set panics at the first.
        let calls: Vec<(Call<'_>, Run)> = runs
            .into_iter()
            .map(|run| {
                let range = run.pass.announced - run.rows.len() as u64..run.pass.announced;
                let (announcer, pass) = (self, run.pass);
                (
                    Call {
                        announcer,
                        pass,
                        range,
                    },
                    run,
                )
            })
            .collect();
        for (call, run) in calls {
            run.tell(&*self.shared.listener, sampled);
            drop(call);
        }
    }

    /// The pass is over. The data set is told so when no other call about the pass is running.
    fn end(&self, id: u64) {
        let mut passes = self.passes.lock();
        if let Some(ahead) = find(&mut passes, id) {
            ahead.is_over = true;
        }
        self.end_if_over(passes, id);
    }

    fn end_if_over(&self, mut passes: MutexGuard<'_, VecDeque<Ahead>>, id: u64) {
        let is_over = |ahead: &Ahead| {
            let is_told = ahead.calls.is_empty() || planted("a pass ends while it is announced");
            ahead.pass.id() == id && ahead.is_over && is_told
        };
        let at = passes.iter().position(is_over);
        let ended = at.and_then(|at| passes.remove(at));
        self.changed.notify_all();
        drop(passes);
        let is_known = |ended: &Ahead| ended.announced > 0 || ended.has_begun;
        if let Some(ended) = ended.filter(is_known) {
            // It is the program's code, and may panic where there is no caller to report that to.
            let tell = AssertUnwindSafe(|| self.shared.listener.pass_ended(ended.pass));
            if let Err(payload) = catch_unwind(tell) {
                let message = panic_message(payload);
                log::warn!("`Dataset::pass_ended` panicked: {message}");
            }
        }
    }
}

/// What a call is about that tells of no sample.
const NO_SAMPLE: Range<u64> = u64::MAX..u64::MAX;

/// The data set is being told.
struct Call<'a> {
    announcer: &'a Announcer,
    pass: Pass,
    range: Range<u64>,
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        let mut passes = self.announcer.passes.lock();
        if let Some(ahead) = find(&mut passes, self.pass.id()) {
            let at = ahead.calls.iter().position(|call| *call == self.range);
            at.map(|at| ahead.calls.swap_remove(at));
        }
        self.announcer.end_if_over(passes, self.pass.id());
    }
}
