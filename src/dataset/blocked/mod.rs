//! Sources that are read in blocks: each block is fetched once in an epoch, ahead of the workers, and its samples are taken out of it.

mod get;
mod open;
mod pieces;
mod requests;
mod room;
mod source;
mod tables;

pub use source::BlockSource;

use std::fmt;
use std::num::NonZeroU64;

use self::pieces::Gone;
use self::requests::Requests;
use self::tables::ROWS_AHEAD;
use super::staged::Inner;
use super::{Dataset, Pass, Staged};
use crate::error::{BoxError, Result};
use crate::rng::SampleRng;
use crate::sampler::{Blocks, Openings};
use crate::sync::Arc;
use crate::tensor::Column;

/// A data set that reads blocks: each once in an epoch, beside the workers, which only decode.
///
/// A [`BlockSampler`](crate::sampler::BlockSampler) says in which order samples come, and so which blocks are open at a time; a loader takes
/// one by default ([`Dataset::blocks`]). Of several ranks, each reads the blocks of its own tracks. In that order, blocks are fetched ahead:
/// [`with_in_flight`](Blocked::with_in_flight) at a time, [`with_blocks_ahead`](Blocked::with_blocks_ahead) beyond those that are open,
/// across the boundaries of epochs too, and of [`with_max_bytes`](Blocked::with_max_bytes) together. A block that a track has only a part of
/// is fetched in pieces, each once. A worker that needs a sample whose block is not there waits for it; the wait counts in the
/// loader's [`timeout`](crate::loader::Builder::timeout). A block is kept until its samples were decoded that the rank needs of it, and all
/// samples before these.
///
/// In a resumed epoch, the blocks that are open where it begins are read again, once.
///
/// Whatever the order is, the samples are right. A sample that is in no open block is fetched alone, by a request for
/// one sample: one that takes the place of a bad one, that is loaded again after its block is done with, or that a sampler without
/// blocks gives (a [`Subset`](crate::dataset::Subset), a [`RandomSampler`](crate::sampler::RandomSampler)). That is slow where reading a block
/// takes as long; [`BlockedStats::singles`] counts them.
///
/// # Blocks that fail
///
/// A block that is not fetched is an error of each of its samples: one error, which they share, and which names the block. If it is
/// [`Temporary`](crate::error::Temporary), [`retry`](crate::loader::Builder::retry) fetches the block once more for all of them. One that
/// panics is a panic of each.
///
/// One that hangs costs its samples, with a [`timeout`](crate::loader::Builder::timeout): the first that waits for it waits for so long, and
/// then none does. Its place in flight is given to another after half of that time, as in [`Staged`], and the next epoch requests it anew. Give `fetch`
/// a time limit of its own.
///
/// # Two loaders, and two epochs at a time
///
/// Passes that need the same piece at the same time share it. All of them share the bound, and the room goes to the one that
/// comes first. One for which there is none left fetches its samples alone, one at a time: make the bound large enough for both.
///
/// # Dropping
///
/// As with [`Staged`], for threads and for forked processes.
///
/// # Examples
///
/// In [`BlockSource`]. Put it into an `Arc` to read its [`stats`](Blocked::stats) beside the loader:
///
/// ```
/// # use std::ops::Range;
/// use std::sync::Arc;
///
/// use pinfeed::dataset::{BlockSource, Blocked};
/// use pinfeed::sampler::Blocks;
/// # use pinfeed::{BoxError, DataLoader, SampleRng};
/// # struct Squares;
/// # impl BlockSource for Squares {
/// #     type Block = Range<u64>;
/// #     type Sample = i64;
/// #     fn blocks(&self) -> Arc<Blocks> { Arc::new(Blocks::even(1_000, 50).unwrap()) }
/// #     fn block_bytes(&self, _: u64, samples: Range<u64>) -> usize { 8 * (samples.end - samples.start) as usize }
/// #     fn fetch(&self, _: u64, samples: Range<u64>) -> Result<Range<u64>, BoxError> { Ok(samples) }
/// #     fn decode(&self, _: &Range<u64>, index: u64, _: &mut SampleRng) -> Result<i64, BoxError> { Ok((index * index) as i64) }
/// # }
///
/// let data = Arc::new(Blocked::new(Squares).with_in_flight(8).with_max_bytes(64 << 20));
/// let loader = DataLoader::builder(Arc::clone(&data)).batch_size(100).num_workers(2).build()?;
/// for batch in loader.epoch(0) {
///     batch?;
/// }
/// println!("{} blocks, {} waits", data.stats().fetched, data.stats().waited);
/// # Ok::<(), pinfeed::Error>(())
/// ```
pub struct Blocked<S: BlockSource> {
    staged: Staged<Requests<S>>,
}

/// What a [`Blocked`] has done, and what it is doing: [`Blocked::stats`].
///
/// # Examples
///
/// ```
/// use pinfeed::dataset::{BlockSource, Blocked};
///
/// fn report<S: BlockSource>(data: &Blocked<S>) {
///     let stats = data.stats();
///     println!("{} requests, {} for one sample, {} of which a worker waited for", stats.fetched, stats.singles, stats.waited);
/// }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct BlockedStats {
    /// How many requests were begun: for blocks, pieces of blocks, and samples.
    pub fetched: u64,
    /// How many samples were requested by themselves, because they were in no open block. If they are many, the order is not that of a
    /// [`BlockSampler`](crate::sampler::BlockSampler), or another loader has the room; or a data set around this one gets several samples in a
    /// call ([`at_once`](Dataset::at_once)), whose blocks have the room until it returns: raise [`with_max_bytes`](Blocked::with_max_bytes).
    pub singles: u64,
    /// How often a worker needed a block that was not there yet. If that is often, fetching is what limits: raise
    /// [`with_in_flight`](Blocked::with_in_flight) and [`with_blocks_ahead`](Blocked::with_blocks_ahead), unless the source is at its limit.
    pub waited: u64,
    /// How many requests were given up, before or after they were begun, because they were no longer needed. (One whose samples were all
    /// taken is not counted.)
    pub cancelled: u64,
    /// How many times a worker waited for a request in vain: the sample is an error, because of the loader's
    /// [`timeout`](crate::loader::Builder::timeout).
    pub given_up: u64,
    /// How many requests run.
    pub running: usize,
    /// How many of those run for more than half of the `timeout`, and no longer count in [`with_in_flight`](Blocked::with_in_flight).
    pub overdue: usize,
    /// How many blocks, or pieces of blocks, are there or are being fetched.
    pub open: usize,
    /// How much memory these have, as [`BlockSource::block_bytes`] says.
    pub held_bytes: usize,
    /// The highest value of `held_bytes` so far.
    pub most_bytes: usize,
}

impl<S: BlockSource> Blocked<S> {
    /// Makes a data set of a source: as many requests at a time as [the source says](BlockSource::in_flight), 4 GiB. Nothing is started before
    /// the first sample is needed.
    pub fn new(source: S) -> Blocked<S> {
        let in_flight = source.in_flight();
        let staged = Staged::new(Requests::new(source)).with_max_bytes(usize::MAX); // pieces are counted here
        Blocked { staged }.with_in_flight(in_flight)
    }

    /// The source.
    pub fn source(&self) -> &S {
        &self.requests().source
    }

    /// Sets how many requests may run at a time; by default as many as the source says ([`BlockSource::in_flight`]), and at least 1. Each takes
    /// a thread (2 MiB of addresses, and a few pages of memory).
    pub fn with_in_flight(mut self, requests: usize) -> Blocked<S> {
        self.staged.set_in_flight(requests.max(1));
        self.limited(|limits| limits.in_flight = requests.max(1))
    }

    /// Sets how many blocks are fetched ahead of those whose samples are being loaded; as many as
    /// [`with_in_flight`](Blocked::with_in_flight) by default.
    ///
    /// With 0, a block is fetched when its first sample is announced, twice `with_in_flight` samples before it is loaded; 4,096 before, at least,
    /// where blocks are [tables](BlockSource::table).
    pub fn with_blocks_ahead(self, blocks: usize) -> Blocked<S> {
        self.limited(|limits| limits.ahead = Some(blocks))
    }

    /// Sets how much memory blocks may have that are fetched, or are being fetched, until their last sample is decoded, and all before it; 4 GiB by
    /// default.
    ///
    /// It must have room for the blocks that are open at a time, on this rank, and for one more, or
    /// [`build`](crate::loader::Builder::build) refuses it: with 384 tracks of 8 MiB on 8 ranks, these are 49 blocks, or 392 MiB. Beyond that
    /// it limits how far ahead blocks are fetched. It is exceeded only by samples that are fetched alone while others have the room, one at
    /// a time, by what workers decode of a block that is done with, and by requests that are given up while they
    /// run, because their batch has failed or their epoch was left. `usize::MAX` is no bound.
    pub fn with_max_bytes(self, bytes: usize) -> Blocked<S> {
        self.limited(|limits| limits.max_bytes = bytes)
    }

    /// Returns what has been done so far. In a process that was forked from the one that fetches, all zeros.
    pub fn stats(&self) -> BlockedStats {
        if self.inner().is_elsewhere() {
            return BlockedStats::default(); // one of its threads may hold the lock
        }
        let of_requests = self.staged.stats();
        let shown = |bytes| usize::try_from(bytes).unwrap_or(usize::MAX);
        let pieces = self.requests().pieces.read();
        BlockedStats {
            fetched: of_requests.fetched,
            singles: pieces.singles,
            waited: of_requests.waited,
            cancelled: pieces.cancelled,
            given_up: of_requests.given_up,
            running: of_requests.running,
            overdue: of_requests.overdue,
            open: pieces.open,
            held_bytes: shown(pieces.held_bytes),
            most_bytes: shown(pieces.most_bytes),
        }
    }

    fn limited(mut self, limit: impl FnOnce(&mut Requests<S>)) -> Blocked<S> {
        // Nothing has been started before it is in a loader, so it is not shared yet.
        self.staged.source_mut().map(limit);
        self
    }

    fn inner(&self) -> &Arc<Inner<Requests<S>>> {
        self.staged.shared()
    }

    fn requests(&self) -> &Requests<S> {
        self.inner().source()
    }
}

impl<S: BlockSource> Dataset for Blocked<S> {
    type Sample = S::Sample;

    fn len(&self) -> u64 {
        self.requests().blocks.samples()
    }

    fn get(&self, index: u64, rng: &mut SampleRng) -> Result<S::Sample, BoxError> {
        if !self.inner().is_here() {
            return self.decode(self.fetch_here(index), index, rng);
        }
        let (fetched, _using) = self.find(index, rng.pass())?;
        self.decode(fetched, index, rng)
    }

    fn describe(&self, index: u64) -> Option<String> {
        self.requests().source.describe(index)
    }

    fn lookahead(&self) -> usize {
        let lookahead = self.staged.lookahead();
        match self.requests().source.has_tables() {
            true => lookahead.max(ROWS_AHEAD),
            false => lookahead,
        }
    }

    fn will_need(&self, indices: &[u64], pass: Pass) {
        if !self.inner().is_here() {
            return;
        }
        let (requests, own) = (self.requests(), pass.short_id());
        let is_news = || requests.pieces.read().is_news(&pass, requests.max_bytes);
        if indices.is_empty() && !is_news() {
            return;
        }
        let mut gone = Gone::default();
        let mut pieces = requests.pieces.write();
        if indices.is_empty() && !pieces.knows(own) {
            return;
        }
        let goes_ahead = pieces.comes_to(pass, &mut gone);
        // (What another thread has just opened may be what the caller needs.)
        let has_room = goes_ahead || pieces.has_room(own, requests.max_bytes);
        let _room = has_room.then(|| self.gives_room());
        match gone.is_empty() {
            true => drop(pieces),
            false => self.unlock(pieces, gone),
        }
        if goes_ahead {
            self.open(own);
        }
        if indices.is_empty() {
            return;
        }
        let singles = requests.pieces.read().without_piece(indices, own);
        if singles.is_empty() {
            return;
        }
        let singles = singles.into_iter().map(|index| (index, self.single(index)));
        let singles: Vec<(u64, (u64, usize))> = singles.collect();
        let mut pieces = requests.pieces.write();
        for (index, (block, bytes)) in singles {
            pieces.add_single(index, block, bytes, pass);
        }
    }

    fn give_rows(
        &self,
        indices: &[u64],
        pass: u32,
        give: &mut dyn FnMut(&[Column], &[u64]) -> bool,
    ) -> Option<usize> {
        let has_tables = self.requests().source.has_tables() && self.inner().is_here();
        has_tables.then(|| self.give_rows_of(indices, pass, give))
    }

    fn pass_ended(&self, pass: Pass) {
        if self.inner().is_elsewhere() {
            return;
        }
        let mut gone = Gone::default();
        let mut pieces = self.requests().pieces.write();
        pieces.end(pass.short_id(), &mut gone);
        self.unlock(pieces, gone);
    }

    fn blocks(&self) -> Option<Arc<Blocks>> {
        Some(Arc::clone(&self.requests().blocks))
    }

    fn pass_began(&self, openings: Openings, pass: Pass) {
        if !self.inner().is_here() {
            return;
        }
        self.requests().pieces.write().begin(pass, Some(openings));
        let _room = self.gives_room();
        self.open(pass.short_id());
    }

    fn check_room(&self, openings: Openings, tracks: NonZeroU64, share: usize) -> Result<()> {
        let requests = self.requests();
        requests.check_room(openings, tracks, share)
    }

    fn sample_bytes(&self) -> Option<usize> {
        self.requests().source.sample_bytes()
    }

    fn fingerprint(&self) -> u32 {
        self.requests().source.fingerprint()
    }
}

impl<S: BlockSource> Drop for Blocked<S> {
    fn drop(&mut self) {
        if self.inner().is_elsewhere() {
            return; // one of its threads may hold the lock
        }
        // (A thread whose request hangs keeps what it shares with others.)
        let mut gone = self.requests().pieces.write().close();
        Requests::<S>::drop_all(&mut gone);
    }
}

impl<S: BlockSource + fmt::Debug> fmt::Debug for Blocked<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Blocked")
            .field("source", self.source())
            .field("max_bytes", &self.requests().max_bytes)
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}
