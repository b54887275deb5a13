//! Announcements: a data set that wants to know which samples come is told of each sample once, before that is got.
//!
//! A session has one announcer, with a cursor that is kept `lookahead` samples ahead of what is being loaded, in the order of the shard's
//! rows, and beyond the end of an epoch into the one that follows. A thread that is about to load rows moves the cursor under the
//! announcer's own lock, and then calls the data set without any. A pass ends when its epoch leaves the shared state.
//!
//! A data set that reads blocks is told when a pass begins, with the blocks that the pass needs, and then how far the pass has come, instead of
//! each sample: how far the cursor is, and before which position all samples were loaded, so that nothing that is read for these is needed any
//! more. It goes ahead in the list of blocks by itself, as it has room, so there is no second cursor here.

mod loaded;

use std::collections::VecDeque;
use std::num::NonZeroU64;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use self::loaded::Loaded;
use super::plan::indices::{Indices, Sampled};
use super::plan::lister::Batching;
use super::plan::options::Options;
use super::plan::partition::{EpochOrder, Partition, Place, Start};
use super::plan::shard::DeviceShard;
use crate::dataset::{Dataset, Pass};
use crate::error::{Result, panic_message};
use crate::sampler::Openings;
use crate::sync::log;
use crate::sync::{Arc, Condvar, Mutex, MutexGuard, Ordering, plain, planted};
use crate::tuning::ROWS_AT_ONCE;

/// What is told: a data set, with its samples' type erased.
pub(crate) trait Listener: Send + Sync {
    fn samples(&self) -> u64;
    fn lookahead(&self) -> usize;
    fn has_blocks(&self) -> bool;
    fn check_room(&self, openings: Openings, tracks: NonZeroU64, share: usize) -> Result<()>;
    fn pass_began(&self, openings: Openings, pass: Pass);
    fn will_need(&self, indices: &[u64], pass: Pass);
    fn pass_ended(&self, pass: Pass);
}

impl<D: Dataset> Listener for D {
    fn samples(&self) -> u64 {
        self.len()
    }

    fn lookahead(&self) -> usize {
        Dataset::lookahead(self)
    }

    fn has_blocks(&self) -> bool {
        Dataset::blocks(self).is_some()
    }

    fn check_room(&self, openings: Openings, tracks: NonZeroU64, share: usize) -> Result<()> {
        Dataset::check_room(self, openings, tracks, share)
    }

    fn pass_began(&self, openings: Openings, pass: Pass) {
        Dataset::pass_began(self, openings, pass);
    }

    fn will_need(&self, indices: &[u64], pass: Pass) {
        Dataset::will_need(self, indices, pass);
    }

    fn pass_ended(&self, pass: Pass) {
        Dataset::pass_ended(self, pass);
    }
}

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

/// Refuses a data set that has no room for the blocks that are open at the same time.
pub(crate) fn check_room(listener: &dyn Listener, options: &Options, devices: u64) -> Result<()> {
    if !listener.has_blocks() {
        return Ok(());
    }
    let Batching::Even(even) = &options.batching else {
        return Ok(());
    };
    let Some(tracks) = even.sampler.tracks() else {
        return Ok(());
    };
    // A rank may have its batches for itself, or share them among its devices, which then share the room.
    let of_devices = (0..devices).filter(|_| devices > 1);
    let shares = of_devices.map(|index| DeviceShard {
        index,
        of: devices,
        ..DeviceShard::WHOLE
    });
    for share in std::iter::once(DeviceShard::WHOLE).chain(shares) {
        if let Some(openings) = options.openings(Start::of(0), share) {
            listener.check_room(openings, tracks, share.of as usize)?;
        }
    }
    Ok(())
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

/// How far a pass has been announced.
struct Ahead {
    pass: Pass,
    start: Start,
    samples: Samples,
    /// The batch and the row that are announced next.
    batch: u64,
    row: u64,
    announced: u64,
    /// How many samples there are, in order, up to the last whose loading has begun.
    begun: u64,
    /// How many samples lie before each batch, from the first that is not settled to the one that is announced next.
    starts: VecDeque<u64>,
    /// The number of the first of these batches.
    first: u64,
    /// Those that workers are done with, by their numbers.
    loaded: Loaded,
    /// The data set has the blocks that the pass needs, and is not told of their samples.
    has_openings: bool,
    /// The data set was told that samples before this position are done with.
    told: u64,
    /// What the data set is being told at this moment, as ranges of samples.
    calls: Vec<Range<u64>>,
    /// The data set is told that the pass begins, or was.
    has_begun: bool,
    is_over: bool,
}

/// Which samples a pass has.
enum Samples {
    /// The batch sampler was not asked yet.
    Unknown,
    Asking,
    Known {
        partition: Partition,
        order: EpochOrder,
        batches: u64,
    },
}

/// A pass, as the threads that load its samples hold it.
pub(crate) struct Announced {
    announcer: Arc<Announcer>,
    id: u64,
    /// How many batches were delivered. Relaxed: it is a hint.
    settled: plain::AtomicU64,
}

/// Ends its pass when it is dropped, which must be without the shared lock: the data set is told.
pub(crate) struct EndsPass(pub(crate) Arc<Announced>);

impl Drop for EndsPass {
    fn drop(&mut self) {
        self.0.announcer.end(self.0.id);
    }
}

impl Announced {
    /// Announces what comes, up to `lookahead` behind these rows of a task, which are loaded next. They themselves were announced when
    /// it returns. Returns how long the sampler took, in nanoseconds.
    pub(crate) fn announce(&self, place: &Place, rows: Range<usize>) -> u64 {
        let sampled = Sampled::default();
        let rows = rows_of_batch(place, rows);
        self.announcer.announce(self, place.batch, rows, &sampled);
        sampled.ns()
    }

    /// These rows of a task were loaded: nothing is needed for them any more.
    pub(crate) fn loaded(&self, place: &Place, rows: Range<usize>) {
        if planted("rows that were loaded keep their block") {
            return;
        }
        let rows = rows_of_batch(place, rows);
        let passes = self.announcer.passes.lock();
        self.announcer.tell_done(passes, self.id, |ahead| {
            if let (Some(start), Some(end)) = (
                ahead.number(place.batch, rows.start),
                ahead.number(place.batch, rows.end),
            ) {
                ahead.loaded.add(start..end);
            }
        });
    }

    /// How many samples ahead the data set is told what comes.
    pub(crate) fn lookahead(&self) -> usize {
        usize::try_from(self.announcer.shared.lookahead).unwrap_or(usize::MAX)
    }

    /// The pass's number, as the samples' generators have it: never 0, and unique as far as passes live at the same time.
    pub(crate) fn short_id(&self) -> u32 {
        Pass::new(self.id, 0).short_id()
    }

    /// The consumer has taken a task, and all before it: none of their rows is loaded any more.
    pub(crate) fn settle(&self, place: &Place) {
        if place.ends_batch() {
            self.settle_before(place.batch + 1);
        }
    }

    /// Whether the data set wants to know that batches were taken.
    pub(crate) fn wants_to_know(&self) -> bool {
        self.announcer.shared.has_blocks
    }

    /// Tells the data set that batches were taken. Without the shared lock.
    pub(crate) fn tell_settled(&self) {
        let tell = || {
            let passes = self.announcer.passes.lock();
            self.announcer
                .tell_done(passes, self.id, |ahead| ahead.settle(self.settled()));
        };
        // The consumer's own thread, whose batch has come.
        if let Err(payload) = catch_unwind(AssertUnwindSafe(tell)) {
            let message = panic_message(payload);
            log::warn!("`Dataset::will_need` panicked: {message}");
        }
    }

    /// How many batches are settled. Asked with the announcer's lock, for a batch that is settled before it was announced is so after that.
    fn settled(&self) -> u64 {
        self.settled.load(Ordering::Relaxed)
    }

    /// The consumer has taken all batches before this one.
    pub(crate) fn settle_before(&self, batch: u64) {
        self.settled.fetch_max(batch, Ordering::Relaxed);
    }
}

/// Rows of a task, as those of its whole batch.
fn rows_of_batch(place: &Place, rows: Range<usize>) -> Range<u64> {
    let first = place.first_row as u64;
    first + rows.start as u64..first + rows.end as u64
}

/// Samples of one batch that are to be announced.
struct Run {
    has_openings: bool,
    pass: Pass,
    order: EpochOrder,
    /// The whole batch.
    place: Place,
    rows: Range<usize>,
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
        self.passes.lock().push_back(Ahead {
            pass: Pass {
                timeout: self.shared.options.timeout,
                line: self.line,
                share: self.share.of,
                ..Pass::new(id, start.epoch)
            },
            start,
            samples: Samples::Unknown,
            batch: 0,
            row: 0,
            announced: 0,
            begun: 0,
            starts: VecDeque::from([0]),
            first: 0,
            loaded: Loaded::default(),
            has_openings: false,
            told: 0,
            calls: Vec::new(),
            has_begun: false,
            is_over: false,
        });
        EndsPass(Arc::new(Announced {
            announcer: Arc::clone(self),
            id,
            settled: plain::AtomicU64::new(0),
        }))
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

fn find(passes: &mut VecDeque<Ahead>, id: u64) -> Option<&mut Ahead> {
    passes.iter_mut().find(|ahead| ahead.pass.id() == id)
}

impl Samples {
    fn new(partition: Partition, order: EpochOrder, epoch: u64) -> Samples {
        let is_refused =
            matches!(&order, EpochOrder::Listed(listed) if listed.check(epoch).is_err());
        Samples::Known {
            batches: if is_refused { 0 } else { partition.batches() },
            partition,
            order,
        }
    }
}

impl Ahead {
    /// How many samples are announced whose loading has not begun.
    fn ahead(&self) -> u64 {
        match self.is_over {
            true => 0,
            false => self.announced - self.begun,
        }
    }

    /// Whether a row is announced later.
    fn is_before(&self, batch: u64, row: u64) -> bool {
        (self.batch, self.row) < (batch, row)
    }

    /// How many samples there are up to a row that was announced; `None` if that is not known any more.
    fn number(&self, batch: u64, row: u64) -> Option<u64> {
        let start = self
            .starts
            .get(usize::try_from(batch.checked_sub(self.first)?).ok()?)?;
        Some(start + row)
    }

    /// These batches are done with.
    fn settle(&mut self, batches: u64) {
        while self.first < batches.min(self.batch) {
            self.first += 1;
            self.starts.pop_front();
        }
        self.pass.settled = self.starts.front().copied().unwrap_or(0);
        // Of a batch that failed, the last rows may never have been begun.
        self.begun = self.begun.max(self.pass.settled);
        self.loaded.settle(self.pass.settled);
    }

    /// The position before which all samples are done with: they were loaded, or their batches are settled.
    fn done(&self) -> u64 {
        let Samples::Known { partition, .. } = &self.samples else {
            return 0;
        };
        let number = self.loaded.all_before();
        // The last of the batches that begin there: those before it are empty, or were given out before.
        let batch = self.starts.partition_point(|start| *start <= number);
        let Some(batch) = batch.checked_sub(1) else {
            return 0;
        };
        let row = number - self.starts[batch];
        partition.position_before(self.start.epoch, self.first + batch as u64, row)
    }

    /// The pass, if the data set is to be told that more of it is done with.
    fn take_news(&mut self) -> Option<Pass> {
        self.pass.done = self.done();
        let is_more = self.pass.done > self.told;
        self.told = self.pass.done;
        is_more.then_some(self.pass)
    }

    /// What is announced next: `most` samples of one batch at most.
    fn next_run(&mut self, most: u64) -> Option<Run> {
        let Samples::Known {
            partition,
            order,
            batches,
        } = &self.samples
        else {
            return None;
        };
        // What was given out before, in any order, is not loaded again.
        while self.start.given.contains(self.batch) {
            self.batch += 1;
            self.starts.push_back(self.announced);
        }
        if self.batch >= *batches {
            return None;
        }
        let place = partition.batch_place(self.start.epoch, self.batch);
        self.pass.reached = partition.position_after(self.batch + 1);
        let count = (place.rows as u64 - self.row).min(most);
        let rows = self.row as usize..(self.row + count) as usize;
        self.announced += count;
        self.row += count;
        if self.row == place.rows as u64 {
            (self.batch, self.row) = (self.batch + 1, 0);
            self.starts.push_back(self.announced);
        }
        self.pass.announced = self.announced;
        self.calls.push(self.announced - count..self.announced);
        Some(Run {
            has_openings: self.has_openings,
            pass: self.pass,
            order: order.clone(),
            place,
            rows,
        })
    }
}

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

impl Run {
    fn tell(self, listener: &dyn Listener, sampled: &Sampled) {
        let mut indices = Indices::new(&self.order, self.place, self.rows.end, sampled);
        let (mut coming, mut count) = ([0; ROWS_AT_ONCE], 0);
        let mut row = match self.has_openings {
            // Filler repeats samples whose blocks may be done with.
            true => self.rows.start.max(self.place.real_rows()),
            false => self.rows.start,
        };
        if row >= self.rows.end {
            listener.will_need(&[], self.pass);
        }
        // If the order is wrong, that is an error when these samples are loaded.
        while row < self.rows.end {
            let found = indices.look_up(row);
            if found.is_empty() {
                break;
            }
            row += found.len();
            let len = listener.samples();
            for index in found.iter().filter(|index| **index < len) {
                coming[count] = *index;
                count += 1;
                if count == coming.len() {
                    listener.will_need(&coming, self.pass);
                    count = 0;
                }
            }
        }
        if count > 0 {
            listener.will_need(&coming[..count], self.pass);
        }
    }
}
