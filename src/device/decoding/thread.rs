//! The thread that drives a device's decoder: it takes what was handed over, the oldest first, and fills chunks across batches.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::engine::{Engine, Outcome};
use super::job::{Job, works};
use super::memory::Taken;
use super::waiting::{Origin, in_turn};
use super::{NotDecoded, Undecoded, WhenDecoded};
use crate::driver::{Driver, RawEvent};
use crate::error::{Error, Result, panic_message};
use crate::sync::log;
use crate::sync::{Arc, AtomicBool, Condvar, Instant, Mutex, Ordering, mark_own_thread, thread};

/// A device's decoder. When it is dropped, what was handed over is decoded, and then its thread ends.
pub(crate) struct Decoder {
    shared: Arc<Shared>,
    thread: Option<thread::JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    queue: Mutex<Queue>,
    /// Something was handed over, or will be, or nothing more will be.
    news: Condvar,
    /// A hint: what is handed over finds the decoder open.
    is_open: AtomicBool,
    /// And so: it was tried to open it.
    was_tried: AtomicBool,
    /// When the thread was done with anything last: a chunk was begun or ended, or the decoder opened. `None`: it has not begun.
    moved: Mutex<Option<Instant>>,
    /// What the decoder has of the device.
    taken: Arc<Taken>,
}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    /// The decoder is to be open when jobs come.
    is_expected: bool,
    is_closed: bool,
}

/// Closes the queue when the thread ends, however it does: a thread that hands something over later is told so.
struct Closing<'a>(&'a Shared);

impl Drop for Closing<'_> {
    fn drop(&mut self) {
        let left = {
            let mut queue = self.0.queue.lock();
            queue.is_closed = true;
            std::mem::take(&mut queue.jobs)
        };
        drop(left); // without the lock: each tells its sender
    }
}

/// A decoder that was opened anew and fails again, without having decoded anything, is not opened for other batches.
const MOST_FAULTS: u32 = 2;

/// The chunk that is decoded next, and the one behind it.
const MOST_PREPARED: usize = 2;

impl Decoder {
    /// Starts the thread, which opens the decoder when it has something to decode, or is [told to](Decoder::open).
    pub(crate) fn start(driver: &Driver) -> Result<Decoder> {
        let shared = Arc::<Shared>::default();
        let name = "pinfeed-decoder".to_owned();
        let work = {
            let (driver, shared) = (driver.clone(), Arc::clone(&shared));
            move || {
                mark_own_thread();
                run(&driver, &shared);
            }
        };
        let started = thread::Builder::new().name(name.clone()).spawn(work);
        let thread = started.map_err(|source| Error::Thread { name, source })?;
        Ok(Decoder {
            shared,
            thread: Some(thread),
        })
    }

    /// Has the thread open the decoder, if it is not open, before anything is handed over.
    pub(crate) fn open(&self) {
        if !self.is_open() {
            self.shared.queue.lock().is_expected = true;
            self.shared.news.notify_one();
        }
    }

    pub(crate) fn is_open(&self) -> bool {
        self.shared.is_open.load(Ordering::Relaxed)
    }

    /// Whether it was opened, or could not be.
    pub(crate) fn was_tried(&self) -> bool {
        self.shared.was_tried.load(Ordering::Relaxed)
    }

    /// When the thread was done with anything last.
    pub(crate) fn moved(&self) -> Option<Instant> {
        *self.shared.moved.lock()
    }

    /// How many bytes it has: of the device, and page-locked.
    pub(crate) fn bytes(&self) -> [usize; 2] {
        self.shared.taken.bytes()
    }

    /// Hands rows over.
    pub(crate) fn decode(&self, undecoded: Undecoded, when_decoded: WhenDecoded) {
        let job = Job::new(undecoded.into_rows(), when_decoded);
        let refused = {
            let mut queue = self.shared.queue.lock();
            match queue.is_closed {
                false => {
                    queue.jobs.push_back(job);
                    None
                }
                true => Some(job),
            }
        };
        self.shared.news.notify_one();
        drop(refused); // which tells its sender
    }
}

impl Drop for Decoder {
    fn drop(&mut self) {
        self.shared.queue.lock().is_closed = true;
        self.shared.news.notify_one();
        // The last rows may keep the device, and drop it on the decoder's own thread.
        if let Some(thread) = self.thread.take()
            && thread.thread().id() != thread::current().id()
        {
            let _ = thread.join(); // it catches panics
        }
    }
}

/// Runs until the decoder is dropped.
fn run(driver: &Driver, shared: &Shared) {
    let _closing = Closing(shared); // after the station: what that has is told first
    let mut station = Station {
        driver,
        shared,
        engine: None,
        by_kernels: false,
        jobs: VecDeque::new(),
        prepared: VecDeque::new(),
        decoded: VecDeque::new(),
        faults: 0,
    };
    while station.takes_on() {
        station.step();
    }
}

/// What the thread is at.
struct Station<'a> {
    driver: &'a Driver,
    shared: &'a Shared,
    engine: Option<Engine>,
    /// Kernels decode, as far as an engine was open.
    by_kernels: bool,
    /// In the order in which they came, until they are done.
    jobs: VecDeque<Job>,
    /// The chunks that are to be decoded, and those that were and have not ended: what they have in them. (Origins count jobs from `jobs`'
    /// first.)
    prepared: VecDeque<Vec<Origin>>,
    decoded: VecDeque<Vec<Origin>>,
    /// How often the decoder failed since a chunk was decoded.
    faults: u32,
}

impl Station<'_> {
    /// Takes what was handed over; waits for it if there is nothing else to do. `false`: nothing will come any more.
    fn takes_on(&mut self) -> bool {
        let mut queue = self.shared.queue.lock();
        loop {
            let is_expected = std::mem::take(&mut queue.is_expected);
            if !queue.jobs.is_empty() || !self.jobs.is_empty() {
                break;
            }
            if queue.is_closed {
                return false;
            }
            if is_expected && self.engine.is_none() {
                break;
            }
            self.shared.news.wait(&mut queue);
        }
        self.jobs.append(&mut queue.jobs);
        true
    }

    /// Prepares a chunk, decodes one, or ends one; and tells whose pictures are all decoded.
    fn step(&mut self) {
        let stepped = catch_unwind(AssertUnwindSafe(|| self.advance()));
        let failed = match stepped {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(error),
            Err(payload) => Some(Error::Decoder {
                device: self.driver.name(),
                reason: format!("the decoder's thread panicked: {}", panic_message(payload)),
            }),
        };
        if let Some(error) = failed {
            self.fail(&error);
        }
        *self.shared.moved.lock() = Some(Instant::now());
        self.tell();
    }

    /// What went wrong is the fault of the batches that are being decoded, as far as can be told: the others get a decoder that is
    /// opened anew. If there is none, or it decodes nothing either, all batches fail: opening takes most of a second, and must not be
    /// tried for each batch.
    fn fail(&mut self, error: &Error) {
        let is_open = self.engine.is_some();
        // Nothing runs behind it: dropping it waits.
        self.shared.is_open.store(false, Ordering::Relaxed);
        self.engine = None;
        self.decoded.clear();
        // What was only prepared will be prepared again.
        for origin in self.prepared.drain(..).flatten() {
            let job = &mut self.jobs[origin.0];
            job.waiting.put_back(job.sampling(origin)); // (all that were taken behind it are here, too)
            job.decoding -= 1;
        }
        self.faults += u32::from(is_open);
        let are_decoded = self.jobs.iter().any(|job| job.decoding > 0);
        let fails_all = !is_open || !are_decoded || self.faults >= MOST_FAULTS;
        if fails_all {
            // What came meanwhile has waited for the same.
            self.jobs.append(&mut self.shared.queue.lock().jobs);
            log::debug!("nothing is decoded on {}: {error}", self.driver.name());
        }
        for job in &mut self.jobs {
            if (fails_all || job.decoding > 0) && job.failed.is_none() {
                job.failed = Some(NotDecoded::Failed(same(self.driver, error)));
            }
            job.decoding = 0;
        }
    }

    fn advance(&mut self) -> Result<()> {
        let engine = match &mut self.engine {
            Some(engine) => engine,
            None => {
                let opened = Engine::open(self.driver, &self.shared.taken);
                // Requests to open it that came meanwhile are met by this.
                self.shared.queue.lock().is_expected = false;
                self.shared.was_tried.store(true, Ordering::Relaxed);
                let engine = self.engine.insert(opened?);
                self.by_kernels = engine.has_kernels_only();
                self.shared.is_open.store(true, Ordering::Relaxed);
                engine
            }
        };
        if engine.is_free() && self.prepared.len() < MOST_PREPARED {
            let origins = next_chunk(&mut self.jobs, engine, self.prepared.is_empty());
            if !origins.is_empty() {
                engine.prepare(&works(&self.jobs, &origins))?;
                self.prepared.push_back(origins);
                return Ok(());
            }
        }
        // (Kernels take long to decode a chunk, so what is decoded is not held back until they have decoded the next one, too.)
        if engine.is_drawn() || engine.has_kernels_only() && !self.decoded.is_empty() {
            return self.end();
        }
        match self.prepared.pop_front() {
            Some(origins) => self.decode(origins),
            None => self.end(),
        }
    }

    /// Decodes a chunk that was prepared.
    fn decode(&mut self, origins: Vec<Origin>) -> Result<()> {
        let Some(engine) = &mut self.engine else {
            return Ok(()); // a chunk was prepared by one
        };
        self.decoded.push_back(origins);
        let origins = self.decoded.back().map_or(&[][..], Vec::as_slice);
        let start = Instant::now();
        // (Batches may have been copied in another order than they came here.)
        let mut fields: Vec<(usize, usize)> =
            origins.iter().map(|origin| (origin.0, origin.1)).collect();
        fields.sort_unstable();
        fields.dedup();
        let copied = |(job, field): (usize, usize)| self.jobs[job].fields[field].copied.clone();
        let after: Vec<RawEvent> = fields.into_iter().filter_map(copied).collect();
        // SAFETY: these works were prepared. The rows are of the jobs' memory, which nothing uses until their batches are given out, but
        // for the copies before.
        unsafe { engine.decode(&works(&self.jobs, origins), &after) }?;
        // (How long drawing takes is left out: the next chunk is decoded meanwhile.)
        let elapsed_ns = start.elapsed().as_nanos() as u64;
        for origin in origins {
            self.jobs[origin.0].decoding_ns += elapsed_ns / origins.len() as u64;
        }
        Ok(())
    }

    /// Ends the chunk that was decoded first, if there is one.
    fn end(&mut self) -> Result<()> {
        let Some(engine) = &mut self.engine else {
            return Ok(()); // likewise
        };
        let Some(outcomes) = engine.end() else {
            return Ok(()); // nothing but failed jobs, or none yet
        };
        let (outcomes, origins) = (outcomes?, self.decoded.pop_front().unwrap_or_default());
        for (origin, outcome) in origins.into_iter().zip(outcomes) {
            let job = &mut self.jobs[origin.0];
            if let Outcome::NotDrawn(why) = outcome
                && job.failed.is_none()
            {
                let work = job.work(origin);
                // SAFETY: the row is of the job's memory, which nothing uses until its batch is given out; the decoder is done with it.
                match unsafe { engine.redraw(work) }? {
                    Ok(()) => job.by_cpu.push((origin.1, why)),
                    Err(error) => {
                        let row = job.picture(origin).row;
                        job.failed = Some(NotDecoded::Picture { row, error });
                    }
                }
            }
            job.decoding -= 1; // last: until then, it shares what goes wrong
        }
        self.faults = 0;
        Ok(())
    }

    /// Tells of the first jobs, as far as they are done.
    fn tell(&mut self) {
        while let Some(first) = self.jobs.front()
            && first.decoding == 0
            && (first.failed.is_some() || first.is_in_chunks())
        {
            let Some(mut job) = self.jobs.pop_front() else {
                return;
            };
            for chunk in self.prepared.iter_mut().chain(&mut self.decoded) {
                chunk.iter_mut().for_each(|origin| origin.0 -= 1);
            }
            let outcome = job.failed.take().map_or(Ok(()), Err);
            if outcome.is_ok() {
                job.count(self.by_kernels);
            }
            let when_decoded = job.when_decoded.take();
            job.fields
                .iter()
                .for_each(|field| field.held.of.comes_home());
            let told = catch_unwind(AssertUnwindSafe(|| {
                // First, so that the thread that is told finds its slab at home. (It may be the device's last holder.)
                drop(job);
                if let Some(when_decoded) = when_decoded {
                    when_decoded(outcome);
                }
            }));
            if let Err(payload) = told {
                log::error!(
                    "a batch panicked when it was decoded: {}",
                    panic_message(payload)
                );
            }
        }
    }
}

/// Takes the pictures of the next chunk, from the oldest jobs that have any left. If there may be more soon, and something else can be done
/// meanwhile (unless `is_awaited`), a chunk is filled, or comes later.
fn next_chunk(jobs: &mut VecDeque<Job>, engine: &Engine, is_awaited: bool) -> Vec<Origin> {
    let all = &*jobs;
    let left = in_turn(all.iter().map(Job::waiting));
    let work_of = |origin: Origin| all[origin.0].work(origin);
    let count = engine.fits(left.clone().map(work_of));
    if !is_awaited && count < engine.most_pictures() && left.clone().nth(count).is_none() {
        return Vec::new();
    }
    let origins: Vec<Origin> = left.take(count).collect();
    for &origin in &origins {
        let job = &mut jobs[origin.0];
        job.waiting.take(job.sampling(origin));
        job.decoding += 1;
    }
    origins
}

/// The same error for another batch.
fn same(driver: &Driver, error: &Error) -> Error {
    match error {
        Error::Device {
            operation,
            device,
            cause,
        } => Error::Device {
            operation,
            device: device.clone(),
            cause: cause.clone(),
        },
        Error::Decoder { device, reason } => Error::Decoder {
            device: device.clone(),
            reason: reason.clone(),
        },
        other => Error::Decoder {
            device: driver.name(),
            reason: other.to_string(),
        },
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
