//! A thread for what waits for kernels, and what nobody else should wait for: page-locked memory that is given back.
//!
//! Unlocking pages waits for the kernels that run. What falls idle beyond the budget, or was registered and is let go of by a
//! copy that ended, would be unlocked by whoever looks after finished copies, under the lock that each of these takes. So it is
//! unlocked here, by a thread that is there while there is something to do. (CUDA's driver holds up other calls meanwhile all
//! the same: docs/gpu.md.)

use std::collections::VecDeque;
use std::panic::AssertUnwindSafe;

use crate::error::panic_message;
use crate::sync::{Arc, Condvar, Mutex, mark_own_thread, thread};

/// What is done aside, one after the other. Cloning it clones a reference.
#[derive(Clone, Default)]
pub(super) struct Aside(Arc<Inner>);

#[derive(Default)]
struct Inner {
    state: Mutex<State>,
    /// Notified when nobody is at the jobs any more.
    idle: Condvar,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    at: At,
    thread: Option<thread::ThreadId>,
    /// As a test has it, the system gives no threads.
    #[cfg(test)]
    no_threads: bool,
}

/// Who is at the jobs.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum At {
    /// Nobody. If there are jobs all the same, no thread was to be had for them.
    #[default]
    Nobody,
    /// Nobody yet: who entered the first is about to start a thread.
    Starting,
    Somebody,
}

type Job = Box<dyn FnOnce() + Send>;

impl Aside {
    /// Has a job done. It returns at once, unless the system gives no thread: then the caller does it, and so must hold no lock.
    pub(super) fn run(&self, job: impl FnOnce() + Send + 'static) {
        self.enter(job);
        if !self.start() {
            self.wait();
        }
    }

    /// Enters a job. From now on [`wait`](Aside::wait) waits for it, and the caller is to [`start`](Aside::start) it, once it
    /// holds no lock that a job takes.
    pub(super) fn enter(&self, job: impl FnOnce() + Send + 'static) {
        let mut state = self.0.state.lock();
        state.jobs.push_back(Box::new(job));
        if state.at == At::Nobody {
            state.at = At::Starting;
        }
    }

    /// Sees to it that there is a thread for what was entered. `false`: the system gives none, and the jobs are left to who
    /// waits for them, or starts them later.
    pub(super) fn start(&self) -> bool {
        {
            let mut state = self.0.state.lock();
            if state.at == At::Somebody || state.jobs.is_empty() {
                return true;
            }
            state.at = At::Somebody;
        }
        let started = self.spawn();
        if !started {
            self.0.state.lock().at = At::Nobody;
            self.0.idle.notify_all();
        }
        started
    }

    fn spawn(&self) -> bool {
        #[cfg(test)]
        if self.0.state.lock().no_threads {
            return false;
        }
        let inner = Arc::clone(&self.0);
        let thread = thread::Builder::new().name("pinfeed-unlock".to_owned());
        let spawned = thread.spawn(move || {
            mark_own_thread();
            inner.work();
        });
        spawned.is_ok()
    }

    /// Waits until everything is done; does it, if there is no thread for it. `false`: the caller is at it already, and waits for
    /// nothing.
    pub(super) fn wait(&self) -> bool {
        let mut state = self.0.state.lock();
        loop {
            match state.at {
                At::Nobody if state.jobs.is_empty() => return true,
                At::Nobody => {
                    state.at = At::Somebody;
                    drop(state);
                    self.0.work();
                    state = self.0.state.lock();
                }
                At::Somebody if state.thread == Some(thread::current().id()) => return false,
                At::Starting | At::Somebody => self.0.idle.wait(&mut state),
            }
        }
    }

    #[cfg(test)]
    pub(super) fn is_idle(&self) -> bool {
        self.0.state.lock().at == At::Nobody
    }
}

impl Inner {
    fn work(&self) {
        self.state.lock().thread = Some(thread::current().id());
        loop {
            let job = {
                let mut state = self.state.lock();
                let Some(job) = state.jobs.pop_front() else {
                    state.at = At::Nobody;
                    state.thread = None;
                    self.idle.notify_all();
                    return;
                };
                job
            };
            // The owner of registered memory is the program's, and its `drop` may panic.
            if let Err(payload) = std::panic::catch_unwind(AssertUnwindSafe(job)) {
                let message = panic_message(payload);
                log::error!("an owner of host memory panicked when it was dropped: {message}");
            }
        }
    }
}

/// Waits for what is done aside when the device goes: behind all that goes with it, which may leave something to do.
pub(super) struct Finish(pub(super) Aside);

impl Drop for Finish {
    fn drop(&mut self) {
        self.0.wait();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn jobs_are_done_in_turn_and_waited_for() {
        let aside = Aside::default();
        let (release, held) = mpsc::channel::<()>();
        let (done, order) = mpsc::channel();
        let last = done.clone();
        aside.run(move || held.recv().unwrap());
        aside.run(|| panic!("a job that panics"));
        let again = aside.clone();
        aside.run(move || {
            assert!(!again.wait(), "a job does not wait for itself");
            done.send(1).unwrap();
        });
        aside.run(move || last.send(2).unwrap());
        assert!(order.try_recv().is_err());
        release.send(()).unwrap();
        assert!(aside.wait());
        assert_eq!(order.try_iter().collect::<Vec<_>>(), [1, 2]);
        // And once more, when the thread is gone.
        let (done, order) = mpsc::channel();
        aside.run(move || done.send(3).unwrap());
        assert!(aside.wait());
        assert_eq!(order.try_recv(), Ok(3));
    }

    /// Who enters a job may hold a lock that the job takes, or the program's `drop` in it: it never does the job itself.
    #[test]
    fn without_a_thread_jobs_are_left_to_who_waits() {
        let aside = Aside::default();
        aside.0.state.lock().no_threads = true;
        let (done, order) = mpsc::channel();
        for number in [1, 2] {
            let done = done.clone();
            aside.enter(move || done.send(number).unwrap());
            assert!(!aside.start());
        }
        assert!(order.try_recv().is_err());
        assert!(aside.wait());
        assert_eq!(order.try_iter().collect::<Vec<_>>(), [1, 2]);
        // Who holds no lock does it at once.
        let again = done.clone();
        aside.run(move || again.send(3).unwrap());
        assert_eq!(order.try_recv(), Ok(3));
        // And what was left is done when there are threads again.
        let again = done.clone();
        aside.enter(move || again.send(4).unwrap());
        assert!(!aside.start());
        aside.0.state.lock().no_threads = false;
        aside.run(move || done.send(5).unwrap());
        assert!(aside.wait());
        assert_eq!(order.try_iter().collect::<Vec<_>>(), [4, 5]);
    }
}
