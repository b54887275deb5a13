//! Batches of an iterable's items: what pulls them, and what loads them.
//!
//! A task's items are a small data set of their own. So they are loaded by the same [`DatasetFactory`] as any samples, by all workers.

use super::factory::DatasetFactory;
use super::on_error::{OnError, Retry};
use crate::batch::Collate;
use crate::dataset::Dataset;
use crate::error::{Again, BoxError, CollateError, Error, Result, SampleId, is_temporary};
use crate::iterable::{ItemIter, IterableDataset, Shard, progress};
use crate::pipeline::epoch::EpochContext;
use crate::pipeline::plan::epoch_plan::Hints;
use crate::pipeline::plan::partition::Place;
use crate::pipeline::traits::{
    Build, Changes, Factory, Learned, MadeAlone, OwnItems, Pull, Pulled, Reached, StreamStart,
    TaskMemory,
};
use crate::pipeline::worker_status::WorkerStatus;
use crate::rng::SampleRng;
use crate::sampler::Sampler;
use crate::sync::{Arc, Mutex};
use crate::tensor::Offload;

/// How many samples the order of an iterable has: more than any can give.
pub(crate) const ENDLESS: u64 = 1 << 62;

/// Makes batches of the items of iterables.
pub(crate) struct StreamFactory<S, C>(pub(crate) Arc<StreamParts<S, C>>);

pub(crate) struct StreamParts<S, C> {
    pub(crate) source: S,
    pub(crate) collate: Arc<C>,
    pub(crate) shard: Shard,
    pub(crate) batch_size: usize,
    pub(crate) drop_last: bool,
    pub(crate) seed: u64,
    pub(crate) on_error: OnError,
    pub(crate) retry: Arc<Retry>,
    /// Items may be loaded more than once.
    pub(crate) keeps: bool,
    pub(crate) learned: Arc<Learned>,
}

/// The order of a rank's items, as a sampler: at the positions that are this rank's lie 0, 1, 2, ...
pub(crate) struct ItemNumbers {
    pub(crate) ranks: u64,
}

impl Sampler for ItemNumbers {
    fn len(&self) -> u64 {
        ENDLESS
    }

    fn index(&self, _epoch: u64, position: u64) -> u64 {
        position / self.ranks
    }

    fn fingerprint(&self) -> u32 {
        0
    }
}

impl<S, C> Factory<C::Batch> for StreamFactory<S, C>
where
    S: IterableDataset,
    C: Collate<S::Sample>,
{
    fn open(&self, _: &Arc<EpochContext>, _: Place, _: Offload) -> Arc<dyn Build<C::Batch>> {
        unreachable!("the tasks of a stream are opened by the thread that pulls their items")
    }

    fn make(
        &self,
        _: &EpochContext,
        _: Place,
        _: &TaskMemory<'_>,
        _: Changes,
        _: &WorkerStatus,
    ) -> MadeAlone<C::Batch> {
        unreachable!("the tasks of a stream have factories of their own")
    }

    fn sample_id(
        &self,
        context: &EpochContext,
        place: Place,
        row: usize,
        index: Option<u64>,
    ) -> SampleId {
        let number = || context.order.index(place.epoch, place.key(row));
        SampleId {
            index: index.unwrap_or_else(number),
            row: place.first_row + row,
            batch: place.batch,
            epoch: place.epoch,
            description: None,
        }
    }

    fn hints(&self) -> Hints {
        Hints {
            // Tasks are whole batches: it is not known how many rows the last has.
            sample_bytes: None,
            is_gatherable: self.0.learned.is_gatherable(),
            has_pictures: self.0.learned.has_pictures(),
            may_be_elsewhere: !C::IN_PLACE,
            is_dense: C::IS_DENSE,
            have_one_size: C::IN_PARTS,
        }
    }

    fn learned(&self) -> &Learned {
        &self.0.learned
    }

    fn stream(&self, from: StreamStart) -> Option<Box<dyn Pull<C::Batch>>> {
        Some(Box::new(Puller {
            parts: Arc::clone(&self.0),
            epoch: from.epoch,
            items: from.items,
            resumed: from.state,
            stream: None,
        }))
    }

    fn unlike(&self, _: &EpochContext, _: Place, _: Place, _: CollateError) -> Error {
        unreachable!("batches of streams are not cut into parts")
    }

    fn end(&self) {
        self.0.retry.end();
    }
}

/// An iterable, opened at the first pull.
struct Puller<S: IterableDataset, C> {
    parts: Arc<StreamParts<S, C>>,
    epoch: u64,
    /// How many items were pulled, in this run and before.
    items: u64,
    /// Where the iterable is to go when it is opened.
    resumed: Option<Vec<u8>>,
    stream: Option<S::Iter>,
}

impl<S: IterableDataset, C> Puller<S, C> {
    /// Opens the iterable, and goes to where it begins.
    fn open(&mut self) -> Result<S::Iter, BoxError> {
        let mut stream = self.parts.source.open(self.epoch, self.parts.shard)?;
        if let Some(state) = self.resumed.take() {
            progress()?;
            stream.seek(&state)?;
            return Ok(stream);
        }
        for _ in 0..self.items {
            progress()?;
            if stream.next().is_none() {
                return Err(format!(
                    "the run that is resumed had {} items of it, and it has fewer now",
                    self.items
                )
                .into());
            }
        }
        Ok(stream)
    }
}

impl<S, C> Pull<C::Batch> for Puller<S, C>
where
    S: IterableDataset,
    C: Collate<S::Sample>,
{
    fn pull(
        &mut self,
        context: &Arc<EpochContext>,
        place: Place,
        offload: Offload,
    ) -> Result<Option<Pulled<C::Batch>>> {
        let epoch = self.epoch;
        let failed = |source| Error::Iterable { epoch, source };
        let mut stream = match self.stream.take() {
            Some(stream) => stream,
            None => self.open().map_err(failed)?,
        };
        let first = self.items;
        let (mut slots, mut is_last) = (Vec::new(), false);
        while slots.len() < self.parts.batch_size && !is_last {
            progress().map_err(|interrupted| failed(interrupted.into()))?;
            match stream.next() {
                Some(Ok(item)) => slots.push(Mutex::new(Slot::Item(item))),
                Some(Err(error)) => match error.downcast::<Again>() {
                    Ok(again) => {
                        // (The next batch asks again. This one has what it has.)
                        slots.push(Mutex::new(Slot::Failed(again.0)));
                        break;
                    }
                    Err(error) => slots.push(Mutex::new(Slot::Failed(error))),
                },
                None => is_last = true,
            }
        }
        let is_short = is_last && slots.len() < self.parts.batch_size;
        if slots.is_empty() || is_short && self.parts.drop_last {
            return Ok(None);
        }
        // (Where the batch behind it begins was planned before it was known that this one is short.)
        self.items += match is_last {
            true => slots.len() as u64,
            false => self.parts.batch_size as u64,
        };
        let rows = slots.len();
        let place = Place {
            rows,
            batch_rows: rows,
            ..place
        };
        let reached = Reached {
            items: self.items,
            state: stream.state(),
            is_over: false,
        };
        self.stream = Some(stream);
        let parts = &self.parts;
        let items = Items {
            parts: Arc::clone(parts),
            first,
            slots,
        };
        let factory = Arc::new(DatasetFactory {
            dataset: Arc::new(items),
            collate: Arc::clone(&parts.collate),
            seed: parts.seed,
            on_error: parts.on_error,
            retry: Arc::clone(&parts.retry),
            learned: Arc::clone(&parts.learned),
        });
        let build = factory.open(context, place, offload);
        let own = Box::new(OwnItems {
            factory,
            place,
            reached,
            keeps: parts.keeps,
        });
        Ok(Some(Pulled {
            build,
            own,
            is_last,
        }))
    }
}

/// The items of one task, as a data set: an index is the number of the item on this rank.
struct Items<S: IterableDataset, C> {
    parts: Arc<StreamParts<S, C>>,
    first: u64,
    slots: Vec<Mutex<Slot<S::Item>>>,
}

enum Slot<I> {
    Item(I),
    Failed(BoxError),
    Gone,
}

impl<S, C> Dataset for Items<S, C>
where
    S: IterableDataset,
    C: Send + Sync + 'static,
{
    type Sample = S::Sample;

    fn len(&self) -> u64 {
        self.first + self.slots.len() as u64
    }

    fn get(&self, index: u64, rng: &mut SampleRng) -> Result<S::Sample, BoxError> {
        let slot = index.checked_sub(self.first);
        let slot = slot.and_then(|index| self.slots.get(index as usize));
        let slot = slot.ok_or("the batch has no such item")?;
        let taken = std::mem::replace(&mut *slot.lock(), Slot::Gone);
        let item = match taken {
            Slot::Item(item) => {
                if self.parts.keeps {
                    // (One thread at a time loads a row, and no other looks.)
                    let kept = item.clone();
                    *slot.lock() = Slot::Item(kept);
                }
                item
            }
            Slot::Failed(error) => {
                if !self.parts.keeps {
                    return Err(error);
                }
                // If the item is got again, its error is given again, in its words. (Errors cannot be cloned, and an iterable cannot be
                // asked for the item once more, so this one does not go away.)
                let said = error.to_string();
                *slot.lock() = Slot::Failed(said.clone().into());
                return Err(if is_temporary(&error) {
                    said.into()
                } else {
                    error
                });
            }
            Slot::Gone => return Err("the iterable's item is used up".into()),
        };
        self.parts.source.load(item, rng)
    }
}
