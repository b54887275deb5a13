//! Objects whose bytes follow from their names, and a store that counts its requests.

use std::ops::Range;

use super::Draws;
use super::world::World;
use crate::error::{BoxError, Temporary};
use crate::store::{Object, Store};
use crate::sync::plain::AtomicU64;
use crate::sync::{Arc, Ordering};

/// What there is.
pub(super) struct Objects {
    pub(super) all: Vec<Object>,
    pub(super) requests: AtomicU64,
    pub(super) bytes_requested: AtomicU64,
    /// One in so many requests fails.
    fails_once_in: Option<u64>,
}

impl Objects {
    pub(super) fn new(lengths: &[u64], fails_once_in: Option<u64>) -> Arc<Objects> {
        let object = |(number, bytes): (usize, &u64)| Object {
            key: format!("shard-{number}"),
            bytes: *bytes,
            version: Some("1".to_owned()),
        };
        Arc::new(Objects {
            all: lengths.iter().enumerate().map(object).collect(),
            requests: AtomicU64::new(0),
            bytes_requested: AtomicU64::new(0),
            fails_once_in,
        })
    }

    pub(super) fn of_process(self: &Arc<Self>, world: &Arc<World>, process: usize) -> Remote {
        Remote {
            objects: Arc::clone(self),
            world: Arc::clone(world),
            process,
        }
    }

    /// Its bytes, and those of its version.
    pub(super) fn bytes(object: &Object, range: Range<u64>) -> Vec<u8> {
        let text = format!("{} {:?}", object.key, object.version);
        let seed = text
            .bytes()
            .fold(7, |seed, byte| Draws(seed ^ u64::from(byte)).next());
        let byte = |at: u64| (Draws(seed ^ (at / 8)).next() >> (at % 8 * 8)) as u8;
        range.map(byte).collect()
    }
}

/// The store as a process has it: a request is an operation that it may die in.
pub(super) struct Remote {
    objects: Arc<Objects>,
    world: Arc<World>,
    process: usize,
}

impl Store for Remote {
    fn list(&self, _: &str) -> Result<Vec<Object>, BoxError> {
        Ok(self.objects.all.clone())
    }

    fn object(&self, key: &str) -> Result<Object, BoxError> {
        let mut all = self.objects.all.iter();
        let found = all.find(|object| object.key == key).cloned();
        found.ok_or_else(|| format!("there is no {key}").into())
    }

    fn read(&self, object: &Object, range: Range<u64>) -> Result<Vec<u8>, BoxError> {
        let draw = self.world.request(self.process);
        self.objects.requests.fetch_add(1, Ordering::Relaxed);
        if self
            .objects
            .fails_once_in
            .is_some_and(|times| draw.is_multiple_of(times))
        {
            return Err(Temporary::new("busy").into());
        }
        let bytes = range.end - range.start;
        self.objects
            .bytes_requested
            .fetch_add(bytes, Ordering::Relaxed);
        Ok(Objects::bytes(object, range))
    }

    fn locate(&self, key: &str) -> String {
        format!("simulated://{key}")
    }
}
