//! The threads that make a store's requests, and the connections that belong to them.

use std::future::Future;
use std::io;

use tokio::runtime::{Builder, Runtime};

use super::client::Client;
use super::pace::Pace;
use crate::store::error::StoreError;
use crate::sync::{Arc, Mutex, OnceLock, channel};
use crate::system::Process;

/// How many threads make requests: they wait most of the time, decrypt, and copy what arrives (0.7 cores for 0.56 GB/s that are not
/// encrypted).
const THREADS: usize = 4;

/// The runtime and the connections of one process.
///
/// A process that was forked has neither its parent's threads nor, of its own, the parent's connections. So it makes itself another
/// one, as the `next` of its parent's, whose own it neither uses nor drops.
pub(super) struct Engine {
    process: Process,
    client: OnceLock<Client>,
    runtime: OnceLock<Runtime>,
    /// The callers' turns at requests that are made again.
    pace: Arc<Mutex<Pace>>,
    next: OnceLock<Box<Engine>>,
}

impl Engine {
    /// The engine of this process. It has no threads yet.
    pub(super) fn new() -> Engine {
        Engine {
            process: Process::this(),
            client: OnceLock::new(),
            runtime: OnceLock::new(),
            pace: Arc::default(),
            next: OnceLock::new(),
        }
    }

    /// The engine of the calling process. (The locks of one are used by the threads of its process only, or, of `next`, by those of a
    /// process forked from it. So none is found that a thread of another process has.)
    fn of_this_process(&self) -> &Engine {
        let mut engine = self;
        while !engine.process.is_this() {
            engine = engine.next.get_or_init(|| Box::new(Engine::new()));
        }
        engine
    }

    /// The connections of this process.
    ///
    /// # Errors
    ///
    /// Those of `make`, which is called if there are none.
    pub(super) fn client(
        &self,
        make: impl FnOnce() -> Result<Client, StoreError>,
    ) -> Result<Client, StoreError> {
        let engine = self.of_this_process();
        if let Some(client) = engine.client.get() {
            return Ok(client.clone());
        }
        let client = make()?; // without a lock: of two, one stays
        let _ = engine.client.set(client.clone());
        Ok(client)
    }

    pub(super) fn pace(&self) -> Arc<Mutex<Pace>> {
        Arc::clone(&self.of_this_process().pace)
    }

    /// Runs a future on threads of the engine, and waits for it. The calling thread may be a runtime's own.
    ///
    /// # Errors
    ///
    /// If the system has no thread for it.
    pub(super) fn run<T: Send + 'static>(
        &self,
        future: impl Future<Output = T> + Send + 'static,
    ) -> Result<T, io::Error> {
        let runtime = self.of_this_process().runtime()?;
        let (send, receive) = channel::bounded(1);
        runtime.spawn(async move {
            let _ = send.send(future.await); // nobody waits: the caller's thread has ended
        });
        let ended = |_| io::Error::other("the thread of a request has panicked");
        receive.recv().map_err(ended)
    }

    fn runtime(&self) -> Result<&Runtime, io::Error> {
        if self.runtime.get().is_none() {
            let mut builder = Builder::new_multi_thread();
            builder.worker_threads(THREADS).enable_all();
            let runtime = builder.thread_name("pinfeed-store").build()?;
            if let Err(other) = self.runtime.set(runtime) {
                other.shutdown_background();
            }
        }
        let lost = || io::Error::other("the runtime of a store is gone");
        self.runtime.get().ok_or_else(lost)
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        let (client, runtime) = (self.client.take(), self.runtime.take());
        if !self.process.is_this() {
            // Its threads are in another process, and a lock of theirs may be taken here for ever.
            Box::leak(Box::new((client, runtime)));
            return;
        }
        drop(client);
        if let Some(runtime) = runtime {
            runtime.shutdown_background(); // requests that hang are not waited for
        }
    }
}
