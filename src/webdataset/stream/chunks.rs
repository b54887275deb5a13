//! An object's bytes from some place on, as a thread reads them: one range ahead of what is used.

use std::io::{self, BufRead, Read};
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::ahead::{Giver, Taker, ahead};
use crate::error::{BoxError, panic_message};
use crate::store::{Object, Store};
use crate::sync::{Arc, Mutex, thread};

/// The least that is asked for: what tells how it is compressed is in the first range.
const SMALLEST: u64 = 512;

/// The bytes. What the store says is kept apart from what a decoder makes of it.
pub(super) struct Chunks {
    taker: Taker<Result<Vec<u8>, BoxError>>,
    chunk: Vec<u8>,
    used: usize,
    failure: Failure,
}

/// Why a store gave no more.
#[derive(Clone, Default)]
pub(super) struct Failure(Arc<Mutex<Option<BoxError>>>);

impl Failure {
    pub(super) fn take(&self) -> Option<BoxError> {
        self.0.lock().take()
    }
}

impl Chunks {
    /// Begins to read the object from byte `from` on, by ranges of `range` bytes.
    pub(super) fn start(
        store: Arc<dyn Store>,
        object: Object,
        from: u64,
        range: u64,
    ) -> io::Result<Chunks> {
        let (giver, taker) = ahead(1);
        let named = thread::Builder::new().name("pinfeed-shard-read".to_owned());
        named.spawn(move || {
            // Unwind safety: the store is shared, and others call it anyway.
            let reads = AssertUnwindSafe(|| read(&*store, &object, from, range, &giver));
            if let Err(payload) = catch_unwind(reads) {
                let what = format!("its store panicked: {}", panic_message(payload));
                giver.give(Err(what.into()), 1);
            }
        })?;
        Ok(Chunks {
            taker,
            chunk: Vec::new(),
            used: 0,
            failure: Failure::default(),
        })
    }

    /// Where an error of the store is to be found, once a read has failed.
    pub(super) fn failure(&self) -> Failure {
        self.failure.clone()
    }
}

/// Reads ranges, as long as they are used.
fn read(
    store: &dyn Store,
    object: &Object,
    from: u64,
    range: u64,
    giver: &Giver<Result<Vec<u8>, BoxError>>,
) {
    let mut at = from;
    while at < object.bytes && giver.has_room() {
        let end = object.bytes.min(at.saturating_add(range.max(SMALLEST)));
        let bytes = store.read(object, at..end).and_then(|bytes| {
            match bytes.len() as u64 == end - at {
                true => Ok(bytes),
                false => Err(format!(
                    "its store gave {} bytes for {at}..{end}: if the store is yours, `read` must give the whole range or an error",
                    bytes.len()
                )
                .into()),
            }
        });
        let is_over = bytes.is_err();
        giver.give(bytes, 1);
        if is_over {
            break;
        }
        at = end;
    }
}

impl BufRead for Chunks {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        while self.used == self.chunk.len() {
            self.chunk = Vec::new(); // before the next one takes memory
            self.used = 0;
            match self.taker.take() {
                Some(Ok(chunk)) => self.chunk = chunk,
                Some(Err(error)) => {
                    *self.failure.0.lock() = Some(error);
                    return Err(io::Error::other("its store failed"));
                }
                None => break,
            }
        }
        Ok(&self.chunk[self.used..])
    }

    fn consume(&mut self, count: usize) {
        self.used += count;
    }
}

impl Read for Chunks {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let bytes = self.fill_buf()?;
        let count = bytes.len().min(into.len());
        into[..count].copy_from_slice(&bytes[..count]);
        self.consume(count);
        Ok(count)
    }
}
