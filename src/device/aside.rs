//! A thread for what waits for kernels, and what nobody else should wait for: page-locked memory that is given back.
//!
//! Unlocking pages waits for the kernels that run (docs/gpu.md). What falls idle beyond the budget, or was registered and is
//! let go of by a copy that ended, would be unlocked by whoever looked after finished copies: a `to_device` that is not to
//! block, say. The thread is there while there is something to do.

use std::collections::VecDeque;
use std::panic::AssertUnwindSafe;
use std::thread::ThreadId;

use crate::error::panic_message;
use crate::sync::{Arc, Condvar, Mutex, mark_own_thread};

/// What is done aside, one after the other. Cloning it clones a reference.
#[derive(Clone, Default)]
pub(super) struct Aside(Arc<Inner>);

#[derive(Default)]
struct Inner {
    state: Mutex<State>,
    /// Notified when the thread finds nothing more to do.
    idle: Condvar,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    /// Somebody is at the jobs, or about to be.
    is_running: bool,
    thread: Option<ThreadId>,
}

type Job = Box<dyn FnOnce() + Send>;

impl Aside {
    /// Has a job done. It returns at once, unless the system gives no thread: then the caller does it.
    pub(super) fn run(&self, job: impl FnOnce() + Send + 'static) {
        {
            let mut state = self.0.state.lock();
            state.jobs.push_back(Box::new(job));
            if state.is_running {
                return;
            }
            state.is_running = true;
        }
        let inner = Arc::clone(&self.0);
        let thread = std::thread::Builder::new().name("pinfeed-unlock".to_owned());
        let spawned = thread.spawn(move || {
            mark_own_thread();
            inner.work();
        });
        if spawned.is_err() {
            self.0.work();
        }
    }

    /// Waits until everything is done. `false`: the caller is at it itself, and waits for nothing.
    pub(super) fn wait(&self) -> bool {
        let mut state = self.0.state.lock();
        while state.is_running {
            if state.thread == Some(std::thread::current().id()) {
                return false;
            }
            self.0.idle.wait(&mut state);
        }
        true
    }
}

impl Inner {
    fn work(&self) {
        self.state.lock().thread = Some(std::thread::current().id());
        loop {
            let job = {
                let mut state = self.state.lock();
                let Some(job) = state.jobs.pop_front() else {
                    state.is_running = false;
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
}
