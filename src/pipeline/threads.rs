//! The threads of a loader. They have names, and are joined when the loader is dropped, unless that happens on one of the library's threads.

use std::io;

use super::{Options, Pipeline};
use crate::batch::Batch;
use crate::error::{Error, Result};
use crate::sync::{Arc, is_own_thread, mark_own_thread, thread};
use crate::system;
use crate::tuning::WORKER_STACK_BYTES as STACK_BYTES;

pub(crate) struct Threads<B: Batch> {
    pipeline: Arc<Pipeline<B>>,
    handles: Vec<thread::JoinHandle<()>>,
}

impl<B: Batch> Threads<B> {
    /// Starts the workers, and a pin thread for each device that the loader pins for.
    pub(crate) fn start(pipeline: Pipeline<B>) -> Result<Threads<B>> {
        let mut threads = Threads {
            pipeline: Arc::new(pipeline),
            handles: Vec::new(),
        };
        let workers = threads.pipeline.options().workers;
        let most = match workers {
            0 => 0,
            _ => system::most_threads(STACK_BYTES),
        };
        if workers > most {
            return Err(Error::option(
                "num_workers",
                format!(
                    "is {workers}, and the system lets this process have {most} at most: each worker takes 16 MiB of addresses for \
                     its stack (ulimit -v, vm.max_map_count)"
                ),
            ));
        }
        for number in 0..workers {
            threads.spawn(format!("pinfeed-worker-{number}"), move |pipeline| {
                pipeline.run_worker(number)
            })?;
        }
        for device in 0..threads.pipeline.options.len() {
            // Without workers, the caller gets slabs itself.
            if threads.pipeline.options[device].pinning.is_some() && workers > 0 {
                threads.spawn("pinfeed-pin".to_owned(), move |pipeline| {
                    pipeline.run_pin_thread(device)
                })?;
            }
        }
        Ok(threads)
    }

    /// If this fails, `Drop` ends the threads that were started before.
    fn spawn(
        &mut self,
        name: String,
        run: impl FnOnce(&Pipeline<B>) + Send + 'static,
    ) -> Result<()> {
        let pipeline = Arc::clone(&self.pipeline);
        let handle = thread::Builder::new()
            .name(name.clone())
            .stack_size(STACK_BYTES)
            .spawn(move || {
                mark_own_thread();
                run(&pipeline);
            })
            .map_err(|source| {
                not_started(name, &source, self.handles.len(), self.pipeline.options())
            })?;
        self.handles.push(handle);
        Ok(())
    }

    pub(crate) fn pipeline(&self) -> &Arc<Pipeline<B>> {
        &self.pipeline
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
    /// A data set may hold a loader and drop it on a worker, even a worker of the same loader. Then nobody waits: the threads may be
    /// waiting for that worker, or be dropping its loader. They end by themselves, because each holds all that it uses.
    fn drop(&mut self) {
        self.pipeline.close();
        if is_own_thread() {
            return;
        }
        for handle in self.handles.drain(..) {
            // Threads catch panics, and there is nobody left to tell of an error.
            let _ = handle.join();
        }
    }
}

impl<B: Batch> Pipeline<B> {
    /// Tells the threads to end: workers after their current run. Epochs that were leaked end as well.
    fn close(&self) {
        // All threads, before anything of leaked epochs is dropped: that may wait for a thread.
        self.lock().is_closed = true;
        self.recipe.end();
        let wakeups = &self.worker_wakeups;
        wakeups.iter().for_each(|wakeup| _ = wakeup.notify_all());
        (0..self.options.len()).for_each(|device| self.tell_pin_thread(device));
        let mut board = self.lock();
        let (board, bin) = board.split();
        board.clear(bin);
    }
}
