//! Listed batches: what a batch sampler says.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::empty::OnEmpty;
use super::place::Place;
use crate::error::{Error, Result, panic_message};
use crate::sampler::{BatchSampler, Batches};
use crate::sync::Arc;

/// The lists of one epoch, shared by all threads that load it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Lists {
    batches: Batches,
    /// Which of them are empty, and have a pattern in the place of their samples.
    empty: Vec<usize>,
    on_empty: OnEmpty,
    most_rows: usize,
    /// Why there is nothing to load. Then there is one list of one row, whose batch is that error.
    refused: Option<Refused>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Refused {
    /// The batch sampler gave no lists, or none that can be loaded.
    Lists(String),
    /// The epoch cannot go on from its state.
    State(String),
}

impl Lists {
    /// Asks the batch sampler, which is the program's: not under the shared lock.
    pub(crate) fn of(sampler: &dyn BatchSampler, epoch: u64, on_empty: OnEmpty) -> Lists {
        match catch_unwind(AssertUnwindSafe(|| sampler.batches(epoch))) {
            Ok(batches) => Lists::new(batches, on_empty, None),
            Err(payload) => Lists::refused(Refused::Lists(format!(
                "it panicked: {}",
                panic_message(payload)
            ))),
        }
    }

    /// Of an epoch that cannot go on from its state.
    pub(super) fn not_resumed(reason: String) -> Lists {
        Lists::refused(Refused::State(reason))
    }

    fn refused(reason: Refused) -> Lists {
        Lists::new(Batches::from(vec![vec![0]]), OnEmpty::Fail, Some(reason))
    }

    fn new(batches: Batches, on_empty: OnEmpty, refused: Option<Refused>) -> Lists {
        let most_rows = batches.iter().map(<[u64]>::len).max().unwrap_or(0);
        let (batches, empty) = on_empty.settle(batches);
        Lists {
            batches,
            empty,
            on_empty,
            most_rows,
            refused,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.batches.is_empty()
    }

    /// How many samples all lists have together.
    pub(crate) fn samples(&self) -> u64 {
        self.batches.start(self.batches.len())
    }

    /// The samples of a list.
    fn get(&self, number: usize) -> Option<&[u64]> {
        let list = self.batches.get(number)?;
        Some(if self.is_empty_list(number) {
            &[]
        } else {
            list
        })
    }

    fn is_empty_list(&self, number: usize) -> bool {
        !self.empty.is_empty() && self.empty.binary_search(&number).is_ok()
    }

    /// Whether a list begins at a position.
    pub(crate) fn begins_at(&self, position: u64) -> bool {
        let before = self.batches.ending_by(position);
        before < self.batches.len() && self.batches.start(before) == position
    }

    /// The error of the epoch's only batch, if the lists were refused.
    pub(crate) fn check(&self, epoch: u64) -> Result<()> {
        match &self.refused {
            None => Ok(()),
            Some(Refused::Lists(reason)) => Err(Error::BatchSampler {
                epoch,
                reason: reason.clone(),
            }),
            Some(Refused::State(reason)) => Err(Error::State {
                reason: reason.clone(),
            }),
        }
    }
}

/// The lists of one epoch that one shard gets: of so many shards, shard `l` gets list `l`, `l + shards`, and so on, from a first one on. A
/// position is counted through all lists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Listed {
    lists: Arc<Lists>,
    /// How many lists come before those of the first batch of each shard.
    first: usize,
    shard: usize,
    shards: usize,
    /// How many batches each shard has.
    count: usize,
    mean_rows: usize,
}

impl Listed {
    /// From a position on, where a list begins. `drops_last`: if there are not as many lists as shards in the end, they are left out.
    pub(crate) fn new(
        lists: Arc<Lists>,
        position: u64,
        (shard, shards): (u64, u64),
        drops_last: bool,
    ) -> Listed {
        let [shard, shards] =
            [shard, shards].map(|number| usize::try_from(number).unwrap_or(usize::MAX));
        let (len, samples) = (lists.batches.len(), lists.batches.samples());
        let first = lists.batches.ending_by(position);
        let left = len - first;
        let count = match drops_last {
            // (What was refused is an error on all shards.)
            true if lists.refused.is_none() => left / shards,
            _ => left.div_ceil(shards),
        };
        let mean_rows = samples.div_ceil(len.max(1) as u64).max(1);
        Listed {
            lists,
            first,
            shard,
            shards,
            count,
            mean_rows: usize::try_from(mean_rows).unwrap_or(usize::MAX),
        }
    }

    pub(crate) fn batches(&self) -> u64 {
        self.count as u64
    }

    pub(super) fn mean_rows(&self) -> usize {
        self.mean_rows
    }

    /// How many rows the largest batch has, of all shards.
    pub(crate) fn most_rows(&self) -> usize {
        self.lists.most_rows
    }

    /// How many positions there are.
    pub(super) fn samples(&self) -> u64 {
        self.lists.batches.samples()
    }

    pub(super) fn is_not_resumed(&self) -> bool {
        matches!(self.lists.refused, Some(Refused::State(_)))
    }

    /// Why there is nothing to load, if that is so.
    pub(crate) fn check(&self, epoch: u64) -> Result<()> {
        self.lists.check(epoch)
    }

    /// The error of a batch, or of the epoch's only one.
    pub(crate) fn check_batch(&self, place: &Place) -> Result<()> {
        self.check(place.epoch)?;
        let number = self.number(place.batch as usize);
        match self.lists.on_empty {
            OnEmpty::Fail if self.lists.is_empty_list(number) => Err(Error::BatchSampler {
                epoch: place.epoch,
                reason: format!(
                    "its list {number} (counted from 0) is empty: say by `on_empty` what becomes of empty lists (OnEmpty::Keep gives an empty \
                     batch, OnEmpty::Skip leaves it out)"
                ),
            }),
            _ => Ok(()),
        }
    }

    pub(super) fn index(&self, position: u64) -> u64 {
        self.lists.batches.indices()[position as usize]
    }

    pub(super) fn indices(&self, start: u64, indices: &mut [u64]) {
        let from = &self.lists.batches.indices()[start as usize..];
        indices.copy_from_slice(&from[..indices.len()]);
    }

    /// The number of the shard's list. There may be none in the last batch.
    fn number(&self, batch: usize) -> usize {
        batch
            .saturating_mul(self.shards)
            .saturating_add(self.first)
            .saturating_add(self.shard)
    }

    pub(super) fn place(&self, epoch: u64, batch: u64) -> Place {
        let (number, samples) = (self.number(batch as usize), self.samples());
        let (start, rows) = match self.lists.get(number) {
            Some(list) => (self.lists.batches.start(number), list.len()),
            // One filler row, with a position of its own.
            None => {
                let rows = usize::from(self.lists.on_empty != OnEmpty::Keep);
                (samples.saturating_add(self.shard as u64), rows)
            }
        };
        Place {
            epoch,
            batch,
            start,
            step: 1,
            rows,
            first_row: 0,
            batch_rows: rows,
            samples,
        }
    }

    pub(super) fn position_after(&self, batches: u64) -> u64 {
        let lists = (batches as usize).saturating_mul(self.shards);
        let lists = self.first.saturating_add(lists);
        self.lists
            .batches
            .start(lists.min(self.lists.batches.len()))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use proptest::prelude::*;

    use super::super::LastBatch;
    use super::*;

    fn lists_of(sizes: &[usize]) -> (Arc<Lists>, Vec<Vec<u64>>) {
        let mut start = 0;
        let lists: Vec<Vec<u64>> = sizes
            .iter()
            .map(|size| {
                start += *size as u64;
                (start - *size as u64..start)
                    .map(|at| at * 7 % 1_009)
                    .collect()
            })
            .collect();
        (Arc::new(Lists::of(&lists, 0, OnEmpty::Fail)), lists)
    }

    /// Which list each of a shard's batches is; `None`: it has a filler row.
    fn dealt(
        (first, lists): (usize, usize),
        (shard, shards): (usize, usize),
        last: LastBatch,
    ) -> Vec<Option<usize>> {
        let numbers: Vec<usize> = (first..lists).collect();
        let steps = numbers.chunks(shards);
        let steps = steps.filter(|step| last != LastBatch::Drop || step.len() == shards);
        steps.map(|step| step.get(shard).copied()).collect()
    }

    proptest! {
        /// A shard's batches are every so many-th list, from any of them on.
        #[test]
        fn lists_are_dealt_out_whole(
            sizes in prop::collection::vec(1usize..9, 0..40), shard in 0..6usize, shards in 1..6usize, first in 0..40usize, drops: bool
        ) {
            let (shard, first) = (shard % shards, first.min(sizes.len()));
            let (lists, all) = lists_of(&sizes);
            let position = all[..first].concat().len() as u64;
            prop_assert_eq!(lists.begins_at(position), first < all.len());
            let last = if drops { LastBatch::Drop } else { LastBatch::Fill };
            let listed = Listed::new(Arc::clone(&lists), position, (shard as u64, shards as u64), drops);
            let expected = dealt((first, all.len()), (shard, shards), last);
            prop_assert_eq!(listed.batches(), expected.len() as u64);
            let samples = all.concat().len() as u64;
            for (batch, number) in expected.iter().enumerate() {
                let place = listed.place(3, batch as u64);
                prop_assert_eq!((place.epoch, place.batch), (3, batch as u64));
                prop_assert!(place.ends_batch());
                match number {
                    Some(number) => {
                        let indices: Vec<u64> = (0..place.rows).map(|row| listed.index(place.position(row))).collect();
                        prop_assert_eq!(&indices, &all[*number]);
                        prop_assert_eq!(place.start, all[..*number].concat().len() as u64);
                        prop_assert_eq!(place.real_rows(), place.rows);
                    }
                    None => {
                        prop_assert_eq!((place.rows, place.real_rows()), (1, 0));
                        prop_assert_eq!(place.start, samples + shard as u64);
                        prop_assert!(place.position(0) < samples);
                    }
                }
                let before = (first + batch * shards).min(all.len());
                prop_assert_eq!(listed.position_after(batch as u64), all[..before].concat().len() as u64);
            }
        }
    }

    #[test]
    fn lists_that_cannot_be_loaded_are_one_batch_on_every_shard() {
        struct Panics;
        impl BatchSampler for Panics {
            fn batches(&self, epoch: u64) -> Batches {
                panic!("no lists for {epoch}")
            }
        }
        let refused = [
            (
                Lists::of(&Panics, 3, OnEmpty::Keep),
                "it panicked: no lists for 3",
            ),
            (Lists::not_resumed("epoch 3 is gone".into()), "is gone"),
        ];
        for (lists, reason) in refused {
            let error = lists.check(3).unwrap_err().to_string();
            assert!(
                error.contains(reason) && error.contains("epoch 3"),
                "{error}"
            );
            let lists = Arc::new(lists);
            for shard in 0..3 {
                let listed = Listed::new(Arc::clone(&lists), 0, (shard, 3), true);
                assert_eq!(listed.batches(), 1);
                assert!(listed.check(3).is_err());
            }
        }
        let none = Lists::of(&Vec::new(), 0, OnEmpty::Fail);
        assert!(none.check(0).is_ok() && none.is_empty());
        let listed = Listed::new(Arc::new(none), 0, (0, 1), false);
        assert_eq!((listed.batches(), listed.most_rows()), (0, 0));
    }

    /// An empty list has a position of its own, so a run that stands before it does not stand behind it.
    #[test]
    fn empty_lists_have_positions() {
        let lists = vec![vec![], vec![7, 8], vec![], vec![], vec![9]];
        for on_empty in [OnEmpty::Fail, OnEmpty::Keep] {
            let all = Arc::new(Lists::of(&lists, 0, on_empty));
            let listed = Listed::new(Arc::clone(&all), 0, (0, 1), false);
            let places: Vec<Place> = (0..5).map(|batch| listed.place(0, batch)).collect();
            let of_each = places.iter().map(|place| (place.start, place.rows));
            assert!(of_each.eq([(0, 0), (1, 2), (3, 0), (4, 0), (5, 1)]));
            assert_eq!((listed.samples(), listed.most_rows()), (6, 2));
            for (place, batch) in places.iter().zip(0..) {
                assert_eq!(listed.position_after(batch), place.start);
                assert!(all.begins_at(place.start) && place.ends_batch());
                assert_eq!(place.real_rows(), place.rows);
                let rest = Listed::new(Arc::clone(&all), place.start, (0, 1), false);
                assert_eq!(rest.batches(), 5 - batch);
                // What rows would be like is told by the first sample that there is.
                let pattern = listed.index(place.position(0));
                assert!(!place.is_empty() || pattern == 7);
                let fails = place.is_empty() && on_empty == OnEmpty::Fail;
                assert_eq!(listed.check_batch(place).is_err(), fails);
            }
            // On two ranks, the last of them has no list.
            let second = Listed::new(Arc::clone(&all), 0, (1, 2), false);
            let last = second.place(0, 2);
            let filler = usize::from(on_empty == OnEmpty::Fail);
            assert_eq!(
                (second.batches(), last.rows, last.real_rows()),
                (3, filler, 0)
            );
            assert!(second.check_batch(&last).is_ok());
        }
        let skips = Lists::of(&lists, 0, OnEmpty::Skip);
        assert_eq!(skips.batches, Batches::from(vec![vec![7, 8], vec![9]]));
        let nothing = Lists::of(&vec![vec![], vec![]], 0, OnEmpty::Keep);
        assert_eq!((nothing.samples(), nothing.most_rows), (2, 0));
        assert_eq!(nothing.batches, Batches::from(vec![vec![0], vec![0]]));
        assert!(Lists::of(&vec![vec![]], 0, OnEmpty::Skip).is_empty());
    }
}
