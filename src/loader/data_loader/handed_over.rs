//! How the run of an iterable goes on with other ranks.

use super::DataLoader;
use crate::batch::Batch;
use crate::error::Result;
use crate::iterable::{Left, Shard, behind};
use crate::loader::iterable_state::{IterableOwner, IterableState};
use crate::loader::kind::{Iterable, owner};
use crate::loader::state::wrong;

impl<B: Batch> DataLoader<B, Iterable> {
    /// Returns the state of this rank, of a run that goes on with another number of ranks. `states` are those of *all* ranks of the run
    /// before, in any order, which they saved at the same step. [`resume`](DataLoader::resume) goes on from it.
    ///
    /// Each sample that no rank was given comes once in what is left of the epoch, on one rank, in another order. Each rank comes to the
    /// same, without a message to another. Some ranks may have more left than others, and near the epoch's end some nothing at all. The
    /// epochs behind it are those of a run that was never interrupted.
    ///
    /// On as many ranks as before, it is this rank's own state, from which the order is the same.
    ///
    /// The source must be one that deals what is left to others ([`IterableDataset::hand_over`]): a stream of shards
    /// (`webdataset::WebStream`) with `shuffle`, `filter` and `map` behind it.
    ///
    /// # Errors
    ///
    /// [`Error::State`](crate::Error::State) if a state is missing or comes twice, or is of another source, seed or epoch than the others or the loader; if a source
    /// could not say where it stood, or is bound to its ranks. It says what to do.
    ///
    /// [`IterableDataset::hand_over`]: crate::iterable::IterableDataset::hand_over
    ///
    /// # Examples
    ///
    /// Two ranks become one:
    ///
    /// ```
    /// # #[cfg(feature = "webdataset")] {
    /// use pinfeed::iterable::IterableDataset;
    /// use pinfeed::loader::{IterableState, World};
    /// use pinfeed::webdataset::WebDataset;
    /// use pinfeed::DataLoader;
    ///
    /// # let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/shards");
    /// let samples = WebDataset::open(&format!("{folder}/train-{{000000..000002}}.tar"))?
    ///     .stream(|sample, _| Ok(sample.key().to_owned()))?
    ///     .shuffle(2);
    /// let loader = |rank, ranks| DataLoader::iterable(samples.clone()).batch_size(1).world(World::new(rank, ranks)?).build();
    ///
    /// let (mut keys, mut states) = (Vec::new(), Vec::new());
    /// for rank in 0..2 {
    ///     let loader = loader(rank, 2)?;
    ///     for batch in loader.epoch(0).take(2) {
    ///         keys.extend(batch?);
    ///     }
    ///     states.push(loader.state().to_string()); // into the checkpoint
    /// }
    ///
    /// let states: Vec<IterableState> = states.iter().map(|state| state.parse()).collect::<pinfeed::Result<_>>()?;
    /// let alone = loader(0, 1)?;
    /// let state = alone.hand_over(&states)?;
    /// for epoch in alone.resume(0..1, &state)? {
    ///     for batch in epoch {
    ///         keys.extend(batch?);
    ///     }
    /// }
    /// keys.sort();
    /// assert!(keys.into_iter().eq((0..8).map(|sample| format!("{sample:05}"))));
    /// # }
    /// # Ok::<(), pinfeed::BoxError>(())
    /// ```
    pub fn hand_over(&self, states: &[IterableState]) -> Result<IterableState> {
        let loader = owner(&self.inner);
        let saved = ranks(states)?;
        for state in states {
            let differences = state.differences(loader);
            if !differences.is_empty() {
                return Err(wrong(format!(
                    "it is another run's: {}",
                    differences.join("; ")
                )));
            }
        }
        let epoch = states.iter().map(IterableState::epoch).min().unwrap_or(0);
        let Some((_, IterableOwner { ranks, .. })) = saved.first().copied() else {
            return Ok(IterableState::default());
        };
        if ranks == loader.ranks {
            let own = saved.iter().find(|(_, owner)| owner.rank == loader.rank);
            return own
                .map(|(state, _)| (*state).clone())
                .ok_or_else(|| wrong("no state is this rank's"));
        }
        let mut left = Vec::new();
        for (state, owner) in &saved {
            let rank = owner.rank;
            if state.epoch() > epoch {
                if state.epoch() == epoch + 1 && state.items() == 0 {
                    continue; // it has nothing left
                }
                return Err(wrong(format!(
                    "rank {rank} is in epoch {}, where it was given items, and another one is in epoch {epoch}: only what is left of one epoch is handed \
                     over. Save the states where all ranks are in one epoch, and let them end it together",
                    state.epoch()
                )));
            }
            if state.items() > 0 && state.source().is_none() {
                return Err(wrong(format!(
                    "that of rank {rank} does not say where its source stands (`ItemIter::state` is None), so it is not known what is left"
                )));
            }
            left.push(Left::new(
                Shard::new(rank, ranks, loader.seed),
                state.source(),
            ));
        }
        let is_begun = |(state, _): &(&IterableState, IterableOwner)| {
            state.items() > 0 || state.source().is_some() || state.epoch() > epoch
        };
        if !saved.iter().any(is_begun) {
            return Ok(IterableState::new(epoch, 0, None, loader));
        }
        let to: Vec<Shard> = (0..loader.ranks)
            .map(|rank| Shard::new(rank, loader.ranks, loader.seed))
            .collect();
        let dealt = self
            .inner
            .hand_over(epoch, &left, &to)
            .map_err(|error| wrong(error.to_string()))?;
        let dealt = dealt.into_iter().nth(loader.rank as usize);
        let dealt =
            dealt.ok_or_else(|| wrong("the source has dealt what is left to too few ranks"))?;
        // Items are numbered on behind all of the ranks before, so that no two samples of an epoch draw the same random numbers.
        // (One that has ended the epoch does not say any more how many it had.)
        let given = states.iter().filter(|state| state.epoch() == epoch);
        let most = behind(given.map(IterableState::items).max().unwrap_or(0), &left);
        let items = (u128::from(most) * u128::from(ranks)).div_ceil(u128::from(loader.ranks));
        let items =
            u64::try_from(items).map_err(|_| wrong("it counts more items than there can be"))?;
        Ok(IterableState::new(epoch, items, Some(dealt), loader))
    }
}

/// The states of all ranks of one run, each once, by rank: so what is dealt does not depend on the order in which they were given. None: all
/// are from before the first batch.
fn ranks(states: &[IterableState]) -> Result<Vec<(&IterableState, IterableOwner)>> {
    let owned = states
        .iter()
        .filter_map(|state| Some((state, state.owner()?)));
    let mut saved: Vec<_> = owned.collect();
    saved.sort_by_key(|(_, owner)| owner.rank);
    let Some((_, first)) = saved.first() else {
        return match states.is_empty() {
            true => Err(wrong("there is none: pass the states of all ranks")),
            false => Ok(saved),
        };
    };
    if saved.len() < states.len() {
        return Err(wrong(
            "one state is from before the first batch, the others are not: it was not saved by a rank of this run",
        ));
    }
    let ranks = first.ranks;
    if let Some((_, other)) = saved.iter().find(|(_, owner)| owner.ranks != ranks) {
        return Err(wrong(format!(
            "some are of {ranks} ranks and some of {}, so they are not of one run",
            other.ranks
        )));
    }
    let mut has = vec![false; usize::try_from(ranks).unwrap_or(0).min(states.len())];
    for (_, owner) in &saved {
        match has.get_mut(owner.rank as usize) {
            Some(true) => return Err(wrong(format!("that of rank {} is there twice", owner.rank))),
            Some(has) => *has = true,
            None => {
                return Err(wrong(format!(
                    "there are {} of {ranks} ranks: pass the states of all ranks",
                    states.len()
                )));
            }
        }
    }
    match has.len() as u64 == ranks {
        true => Ok(saved),
        false => Err(wrong(format!(
            "there are {} of {ranks} ranks: pass the states of all ranks",
            states.len()
        ))),
    }
}
