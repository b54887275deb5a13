//! Workers: each claims something to do, and does it.

use super::pipeline::Pipeline;
use crate::batch::Batch;
use crate::pipeline::shared::lock::Locked;
use crate::pipeline::shared::session::Job;
use crate::pipeline::shared::workers::Assignment;
use crate::pipeline::worker_status::WorkerStatus;
use crate::sync::planted;

impl<B: Batch> Pipeline<B> {
    /// Runs a worker until the loader is dropped, or the worker is given up.
    pub(crate) fn run_worker(&self, status: &WorkerStatus) {
        let mut next = None;
        while let Some(job) = next.or_else(|| self.next_job(status)) {
            next = self.perform(job, status);
        }
    }

    /// Waits for something to do; `None` when the loader is dropped, or another thread has the worker's place.
    fn next_job(&self, status: &WorkerStatus) -> Option<Job<B>> {
        let mut state = self.lock();
        let group = state.group(status.number());
        let mut was_on = true;
        loop {
            if state.is_closed || status.is_given_up() {
                return None;
            }
            if !state.active_workers.is_on(status.number()) {
                // It may have been woken for something to do: before it sleeps, another worker is woken for that.
                state.deferred.wake_workers |=
                    was_on && !planted("a worker that goes off duty wakes no other");
                was_on = false;
                state.idle_inactive += 1;
                state.wait(&self.shared.inactive);
                state.idle_inactive -= 1;
                continue;
            }
            was_on = true;
            if let Some(job) = self.claim(&mut state, status) {
                return Some(job);
            }
            state.idle[group] += 1;
            state.wait(&self.shared.workers[group]);
            state.idle[group] -= 1;
        }
    }

    /// Claims something for a worker to do, if there is anything.
    pub(crate) fn claim(&self, state: &mut Locked<'_, B>, status: &WorkerStatus) -> Option<Job<B>> {
        if !state.active_workers.is_on(status.number()) {
            return None;
        }
        let group = state.group(status.number());
        let job = state.claim(&*self.factory, group)?;
        state.takes_on(status, Assignment::of(&job));
        // Each worker that is woken wakes the next, as long as there is work: no worker is woken for nothing.
        state.deferred.wake_workers = !planted("a claim wakes no worker");
        Some(job)
    }

    /// Does a job. A worker that has reported may have claimed its next one under the same lock, which is returned.
    pub(crate) fn perform(&self, job: Job<B>, status: &WorkerStatus) -> Option<Job<B>> {
        match job {
            Job::Plan {
                session,
                epoch_entry,
            } => self.plan_early(session, epoch_entry),
            Job::Load {
                context,
                task,
                claimed,
                build,
            } => {
                let load = || self.load(status, &context, task, claimed, build);
                return self.attend(status, &context, task, load).flatten();
            }
            Job::Finish { context, task } => {
                self.attend(status, &context, task, || {
                    self.finish(status, &context, task)
                });
            }
            Job::Rebuild {
                context,
                task,
                changes,
                own,
            } => {
                self.attend(status, &context, task, || {
                    self.rebuild(status, &context, task, changes, own);
                });
            }
            Job::Solo {
                context,
                tasks,
                run,
            } => self.make_run(status, &context, tasks, run),
            Job::Grant {
                context,
                task,
                bytes,
                build,
                permit,
            } => {
                let memory = &self.memory;
                let then = memory.grant_held(&context, task, build, bytes, permit);
                self.follow_alone(&context, task, then);
            }
            Job::Pull {
                context,
                task,
                stream,
                offload,
            } => self.pull(status, &context, task, stream, offload),
            Job::Send { of, queue } => self.send_made(of, &*queue, false),
        }
        None
    }
}
