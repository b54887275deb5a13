//! An object that is read from front to back, by requests for what is looked at: [`Window`].

use std::time::Duration;

use super::error::Cause;
use super::members::Archive;
use crate::store::{Object, Store};
use crate::sync::Instant;

/// The part of an object that was read last. Headers are far from each other where members are large, so what lies between is not read:
/// a request begins at what is needed.
pub(super) struct Window<'a> {
    store: &'a dyn Store,
    object: &'a Object,
    start: u64,
    bytes: Vec<u8>,
    /// How much a request asks for.
    ahead: u64,
    /// What the last request was used for.
    used: u64,
    /// How long the fastest request took: one that is answered at once tells a disk, which others may keep busy.
    fastest: Duration,
}

/// What a request asks for at least and at most, if it is answered at once. One page holds the headers of a few small members.
const NEAR: std::ops::RangeInclusive<u64> = 4 << 10..=256 << 10;

/// What it asks for from a store that takes [`FAR_AFTER`] to answer: a store takes about as long to begin as to send this much.
const FAR: u64 = 4 << 20;
const FAR_AFTER: Duration = Duration::from_millis(5);

impl<'a> Window<'a> {
    pub(super) fn new(store: &'a dyn Store, object: &'a Object) -> Window<'a> {
        Window {
            store,
            object,
            start: 0,
            bytes: Vec::new(),
            ahead: 64 << 10,
            used: 0,
            fastest: Duration::MAX,
        }
    }

    fn read(&mut self, at: u64, count: u64) -> Result<(), Cause> {
        let end = self.start + self.bytes.len() as u64;
        let is_far = self.fastest > FAR_AFTER && self.fastest < Duration::MAX;
        if !is_far {
            self.ahead = self.ahead.min(*NEAR.end());
        }
        self.ahead = match at >= end && at < end + self.ahead {
            _ if is_far => FAR,
            // It goes on where the last one ended: members are small.
            true => (self.ahead * 2).min(*NEAR.end()),
            // It was used for its beginning: members are large.
            false if self.used * 4 < self.bytes.len() as u64 => (self.ahead / 4).max(*NEAR.start()),
            false => self.ahead,
        };
        let until = self.object.bytes.min(at + count.max(self.ahead));
        let began = Instant::now();
        self.bytes = self
            .store
            .read(self.object, at..until)
            .map_err(Cause::Store)?;
        self.fastest = self.fastest.min(began.elapsed());
        (self.start, self.used) = (at, 0);
        if self.bytes.len() as u64 != until - at {
            return Err(short(self.object, at));
        }
        Ok(())
    }
}

impl Archive for Window<'_> {
    fn bytes(&mut self, at: u64, count: u64) -> Result<&[u8], Cause> {
        let count = count.min(self.object.bytes.saturating_sub(at));
        if count == 0 {
            return Ok(&[]);
        }
        let end = self.start + self.bytes.len() as u64;
        if at < self.start || at + count > end {
            self.read(at, count)?;
        }
        self.used = self.used.max(at + count - self.start);
        let from = (at - self.start) as usize;
        self.bytes
            .get(from..from + count as usize)
            .ok_or_else(|| short(self.object, at))
    }

    fn len(&self) -> Option<u64> {
        Some(self.object.bytes)
    }
}

/// A store that breaks its promise.
fn short(object: &Object, at: u64) -> Cause {
    Cause::Other(format!(
        "its store gave other bytes at {at} than it was asked for, though it listed {}: if the store is yours, `read` must give the whole range or an error",
        object.bytes
    ))
}
