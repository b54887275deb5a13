//! The threads of a loader. They have names, and are joined when the loader is dropped, unless that happens on one of the library's
//! threads, or they hang for longer than the loader's `timeout`.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use super::pipeline::Pipeline;
use crate::batch::Batch;
use crate::error::{Error, Result, panic_message};
use crate::pipeline::plan::options::Options;
use crate::pipeline::shared::workers::WorkerSlot;
use crate::pipeline::worker_status::WorkerStatus;
use crate::sync::log;
use crate::sync::{
    Arc, Condvar, Instant, Mutex, Within, is_own_thread, mark_own_thread, set_sample_timeout,
    thread,
};
use crate::system;
use crate::tuning::{WORKER_NICE, WORKER_STACK_BYTES as STACK_BYTES};

pub(crate) struct Threads<B: Batch> {
    pipeline: Arc<Pipeline<B>>,
}

/// The threads that are waited for when the loader is dropped. Those that were given up are not among them.
#[derive(Default)]
pub(crate) struct Roster {
    threads: Mutex<Vec<Entry>>,
    /// One of them has ended.
    ended: Condvar,
}

struct Entry {
    status: Arc<WorkerStatus>,
    /// `None` for an instant, while it is being started.
    handle: Option<thread::JoinHandle<()>>,
    has_ended: bool,
}

/// A thread's place in the roster, until it ends.
struct Attendance {
    roster: Arc<Roster>,
    status: Arc<WorkerStatus>,
}

impl Drop for Attendance {
    fn drop(&mut self) {
        let mut threads = self.roster.threads.lock();
        let mut own = threads.iter_mut();
        if let Some(own) = own.find(|entry| Arc::ptr_eq(&entry.status, &self.status)) {
            own.has_ended = true;
            self.roster.ended.notify_all();
        }
    }
}

impl Roster {
    /// Starts a thread. What it holds is dropped before it counts as ended.
    fn start(
        self: &Arc<Roster>,
        name: String,
        status: &Arc<WorkerStatus>,
        run: impl FnOnce() + Send + 'static,
    ) -> io::Result<()> {
        {
            let mut threads = self.threads.lock();
            // Threads that were started for a single job, and have ended.
            threads.retain(|entry| !entry.has_ended);
            threads.push(Entry {
                status: Arc::clone(status),
                handle: None,
                has_ended: false,
            });
        }
        let attendance = Attendance {
            roster: Arc::clone(self),
            status: Arc::clone(status),
        };
        let builder = thread::Builder::new().name(name).stack_size(STACK_BYTES);
        let started = system::has_room_for_thread(STACK_BYTES).and_then(|()| {
            builder.spawn(move || {
                let _attendance = attendance;
                mark_own_thread();
                run();
            })
        });
        let mut threads = self.threads.lock();
        let own = threads
            .iter()
            .position(|entry| Arc::ptr_eq(&entry.status, status));
        match (started, own) {
            (Ok(handle), Some(own)) => threads[own].handle = Some(handle),
            (Ok(_), None) => {} // it was given up already
            (Err(error), own) => {
                own.map(|own| threads.swap_remove(own));
                return Err(error);
            }
        }
        Ok(())
    }

    /// A thread that hangs is not waited for.
    pub(crate) fn give_up(&self, status: &Arc<WorkerStatus>) {
        let mut threads = self.threads.lock();
        threads.retain(|entry| !Arc::ptr_eq(&entry.status, status));
    }

    /// Waits for all threads to end. With a timeout, no longer for each of them than what it is doing may take; those that take longer
    /// are left alone.
    fn join(&self, timeout: Option<Duration>) {
        let mut threads = self.threads.lock();
        if let Some(timeout) = timeout {
            let closed = Instant::now();
            loop {
                let now = Instant::now();
                let left = threads.iter().filter(|entry| !entry.has_ended);
                let ends = left.filter_map(|entry| {
                    let began = entry.status.began(timeout);
                    let (began, timeout) = began.unwrap_or((closed, timeout));
                    // (`None` is for ever.)
                    let end = began.checked_add(timeout);
                    end.is_none_or(|end| end > now).then_some(end)
                });
                let ends: Vec<_> = ends.collect();
                if ends.is_empty() {
                    break;
                }
                match ends.into_iter().flatten().min() {
                    Some(end) => _ = self.ended.wait_until(&mut threads, end),
                    None => self.ended.wait(&mut threads),
                }
            }
        }
        let left = std::mem::take(&mut *threads);
        drop(threads);
        for entry in left {
            if timeout.is_some() && !entry.has_ended {
                let (name, worker) = ("a thread of the library", entry.status.name());
                let is_worker = entry.status.is_timed();
                let name = if is_worker { &worker } else { name };
                log::warn!(
                    "a loader is dropped while {name} hangs: the thread is left alone, and keeps the data set until it comes back"
                );
                continue;
            }
            // Threads catch panics, and there is no caller left to report an error to.
            entry.handle.map(thread::JoinHandle::join);
        }
    }
}

impl<B: Batch> Threads<B> {
    /// Starts the workers, and a pin thread for each device that the loader pins for.
    pub(crate) fn start(pipeline: Arc<Pipeline<B>>) -> Result<Threads<B>> {
        let threads = Threads { pipeline };
        let pipeline = &threads.pipeline;
        let workers = pipeline.options().workers;
        let most = match workers {
            0 => 0,
            _ => system::most_threads(STACK_BYTES),
        };
        // (Since the number was chosen for `Auto`, less address space may be left.)
        let is_auto = pipeline.options().is_auto && most > 0;
        if workers > most && !is_auto {
            return Err(Error::option(
                "num_workers",
                format!(
                    "is {workers}, and the system lets this process have {most} at most: each worker takes 16 MiB of addresses for \
                     its stack (ulimit -v, vm.max_map_count)"
                ),
            ));
        }
        let is_timed = pipeline.options().timeout.is_some();
        let status = |number| WorkerStatus::new(number, pipeline.began, is_timed);
        pipeline
            .lock()
            .slots
            .extend((0..workers).map(|number| WorkerSlot {
                status: status(number),
                assignment: None,
                is_vacant: false,
            }));
        let mut started = 0;
        for number in 0..workers {
            let status = Arc::clone(&pipeline.lock().slots[number].status);
            let hired = match number < most {
                true => pipeline.hire(&status, false),
                false => Err(io::ErrorKind::OutOfMemory.into()),
            };
            match hired {
                Ok(()) => started += 1,
                // The program did not ask for that many.
                Err(error) if pipeline.options().is_auto && started > 0 => {
                    log::warn!("the system starts no more than {started} workers: {error}");
                    let mut state = pipeline.lock();
                    state.slots.truncate(started);
                    state.active_workers.limit(started);
                    break;
                }
                Err(error) => {
                    let options = pipeline.options();
                    return Err(not_started(status.name(), &error, started, options));
                }
            }
        }
        for device in 0..pipeline.options.len() {
            // Without workers, the caller gets slabs itself.
            if pipeline.options[device].pinning.is_some() && workers > 0 {
                let name = match pipeline.options.len() {
                    1 => "pinfeed-pin".to_owned(),
                    _ => format!("pinfeed-pin-{device}"),
                };
                // Here, not on the thread: an epoch may come first, and change what is known of samples.
                let early = pipeline.early(device);
                let run = move |pipeline: &Pipeline<B>| {
                    pipeline.run_thread(|| {
                        pipeline.take_cores();
                        pipeline.run_pin_thread(device, early);
                    });
                };
                let run = pipeline.start(name.clone(), run);
                run.map_err(|source| not_started(name, &source, started, pipeline.options()))?;
                started += 1;
            }
        }
        Ok(threads)
    }

    pub(crate) fn pipeline(&self) -> &Arc<Pipeline<B>> {
        &self.pipeline
    }
}

impl<B: Batch> Pipeline<B> {
    /// Starts a worker at this status. `has_first_job`: it takes the place of one that was given up, and reports for it.
    pub(crate) fn hire(&self, status: &Arc<WorkerStatus>, has_first_job: bool) -> io::Result<()> {
        let pipeline = self.myself()?;
        let own = Arc::clone(status);
        self.roster.start(status.name(), status, move || {
            pipeline.run_thread(|| {
                pipeline.take_cores();
                system::lower_priority(WORKER_NICE);
                set_sample_timeout(pipeline.options().timeout);
                if has_first_job {
                    pipeline.run_first_job(&own);
                }
                pipeline.run_worker(&own);
            });
        })
    }

    /// Starts another thread of the library's.
    pub(crate) fn start(
        &self,
        name: String,
        run: impl FnOnce(&Pipeline<B>) + Send + 'static,
    ) -> io::Result<()> {
        let pipeline = self.myself()?;
        let status = Arc::new(WorkerStatus::of_caller(self.began));
        self.roster.start(name, &status, move || run(&pipeline))
    }

    /// What a thread does whose work consumers wait for. Panics of the program's code are caught where it is called; one of ours must not
    /// be waited for in silence.
    fn run_thread(&self, run: impl FnOnce()) {
        let _within = Within::code_of(self);
        if let Err(payload) = catch_unwind(AssertUnwindSafe(run)) {
            self.lock().breaks(panic_message(payload));
        }
    }

    /// The calling thread runs where the program wants it.
    fn take_cores(&self) {
        if let Some(cores) = &self.options().cores {
            cores.take();
        }
    }

    fn myself(&self) -> io::Result<Arc<Pipeline<B>>> {
        let me = self.me.upgrade();
        me.ok_or_else(|| io::Error::other("the loader is being dropped"))
    }
}

/// The error of a thread that the system did not start, after `started` others.
fn not_started(name: String, source: &io::Error, started: usize, options: &Options) -> Error {
    let text = format!(
        "{source}; {started} threads were started for num_workers({}), and ended again: lower it, or raise the limit of \
         threads (ulimit -u, or the control group's pids.max)",
        options.workers
    );
    let source = io::Error::new(source.kind(), text);
    Error::Thread { name, source }
}

impl<B: Batch> Drop for Threads<B> {
    /// Ends the threads and waits for them, so that whatever the data set holds is free afterwards.
    ///
    /// A data set may hold a loader and drop it on a worker, even a worker of the same loader. Then no thread is waited for: they may be
    /// waiting for that worker, or be dropping its loader. They end by themselves, because each holds all that it uses.
    ///
    /// With a timeout, a thread that hangs is not waited for, either. Nor are threads that another process has, from which this one was
    /// forked: they hold what they use, here, for ever.
    fn drop(&mut self) {
        if self.pipeline.has_lost_threads() {
            return;
        }
        self.pipeline.close();
        if !is_own_thread() {
            let timeout = self.pipeline.options().timeout;
            self.pipeline.roster.join(timeout);
        }
    }
}

impl<B: Batch> Pipeline<B> {
    /// Tells the threads to end: workers after their current run. Epochs that were leaked end as well.
    fn close(&self) {
        // All threads, before anything of leaked epochs is dropped: that may wait for a thread.
        self.lock().is_closed = true;
        self.factory.end();
        let wakeups = self.shared.workers.iter().chain([&self.shared.inactive]);
        wakeups.for_each(|wakeup| _ = wakeup.notify_all());
        (0..self.options.len()).for_each(|device| self.shared.tell_pin_thread(device));
        let mut state = self.lock();
        let (state, deferred) = state.split();
        state.clear(deferred);
    }
}
