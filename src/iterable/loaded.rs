//! Items that are loaded while they are pulled, because what comes next depends on what they are.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::ask::{NoItem, ask};
use super::left::behind;
use super::state::{Reader, Tag, Writer};
use super::{ItemIter, IterableDataset, Left, Shard, progress, scramble};
use crate::error::{BoxError, panic_message};
use crate::rng::{RngKey, SampleRng};
use crate::sync::Arc;

/// An open iterable whose items are loaded by the thread that pulls them.
pub(super) struct Loaded<S: IterableDataset> {
    source: Arc<S>,
    inner: S::Iter,
    /// Of what items draw. It follows from the rank, too, and is another one than that of the samples that come of them.
    seed: u64,
    epoch: u64,
    /// The number of the next one, on this rank.
    next: u64,
}

/// An item's number, and what it came to; `None` at the end.
pub(super) type Numbered<R> = Option<(u64, Result<R, BoxError>)>;

impl<S: IterableDataset> Loaded<S> {
    pub(super) fn open(source: &Arc<S>, epoch: u64, shard: Shard) -> Result<Loaded<S>, BoxError> {
        Ok(Loaded {
            inner: source.open(epoch, shard.of_child(0))?,
            source: Arc::clone(source),
            seed: scramble(scramble(shard.seed()) ^ shard.rank()),
            epoch,
            next: 0,
        })
    }

    /// The seed that items draw by.
    pub(super) fn seed(&self) -> u64 {
        self.seed
    }

    /// Pulls the next item, loads it, and asks `use_it` what it comes to. Returns the item's number with that. If the program's code
    /// panics while the item is loaded or used, the item has failed, and the iterable goes on: as with a sample that panics.
    pub(super) fn next<R>(
        &mut self,
        use_it: impl FnOnce(S::Sample, &mut SampleRng) -> Result<R, BoxError>,
    ) -> Result<Numbered<R>, NoItem> {
        let Some(item) = ask(&mut self.inner)? else {
            return Ok(None);
        };
        let number = self.next;
        self.next += 1;
        // (Loading has a timeout of its own.)
        progress()?;
        let used = item.and_then(|item| {
            let mut rng = SampleRng::for_sample(RngKey {
                seed: self.seed,
                epoch: self.epoch,
                position: number,
            });
            caught("while loading", || {
                let sample = self.source.load(item, &mut rng)?;
                use_it(sample, &mut rng)
            })
        });
        Ok(Some((number, used)))
    }

    /// Where it stands, if the iterable inside can say so.
    pub(super) fn state(&self, tag: Tag) -> Option<Vec<u8>> {
        let inner = self.inner.state()?;
        Some(Writer::new(tag).number(self.next).inner(&inner).finish())
    }

    pub(super) fn seek(&mut self, tag: Tag, state: &[u8]) -> Result<(), BoxError> {
        let mut state = Reader::new(tag, state)?;
        self.next = state.number()?;
        self.inner.seek(state.inner()?)?;
        state.end()
    }
}

/// Deals what is left of the source of some [`Loaded`]s to other ranks. Their items are numbered on behind all that were loaded, so that no
/// two of a rank draw the same random numbers.
pub(super) fn hand_over<S: IterableDataset>(
    source: &S,
    tag: Tag,
    epoch: u64,
    left: &[Left],
    to: &[Shard],
) -> Result<Vec<Vec<u8>>, BoxError> {
    let (mut next, mut within) = (0, Vec::new());
    for rank in left {
        let inner = match rank.state() {
            None => None,
            Some(state) => {
                let mut state = Reader::new(tag, state)?;
                next = state.number()?.max(next);
                let inner = state.inner()?.to_vec();
                state.end()?;
                Some(inner)
            }
        };
        within.push(rank.of_child(0, inner));
    }
    let next = behind(next, left);
    let children: Vec<Shard> = to.iter().map(|shard| shard.of_child(0)).collect();
    let dealt = source.hand_over(epoch, &within, &children)?.into_iter();
    let state = |inner: Vec<u8>| Writer::new(tag).number(next).inner(&inner).finish();
    Ok(dealt.map(state).collect())
}

/// Runs the program's code. What it panics with is an error, which says when.
pub(super) fn caught<R>(
    when: &str,
    run: impl FnOnce() -> Result<R, BoxError>,
) -> Result<R, BoxError> {
    // Unwind safety: sources and functions are shared, and run on several threads anyway; the item is gone.
    let run = catch_unwind(AssertUnwindSafe(run));
    run.unwrap_or_else(|payload| {
        Err(format!("it panicked {when}: {}", panic_message(payload)).into())
    })
}
