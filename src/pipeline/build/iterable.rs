//! Batches of an iterable's items: what pulls them, and what loads them.
//!
//! A task's items are a small data set of their own. So they are loaded by the same [`DatasetFactory`] as any samples, by all workers.

use super::factory::DatasetFactory;
use super::on_error::{OnError, Retry};
use crate::batch::Collate;
use crate::dataset::Dataset;
use crate::error::{Again, BoxError, CollateError, Error, Result, SampleId, is_temporary};
use crate::iterable::{ItemIter, IterableDataset, Shard, ask, progress};
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
use crate::sync::{Arc, Mutex, planted};
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
            are_rows: false,
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
            begun: Vec::new(),
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
    /// How many items batches were given, in this run and before.
    items: u64,
    /// Where the iterable is to go when it is opened.
    resumed: Option<Vec<u8>>,
    stream: Option<S::Iter>,
    /// Items that were pulled for a batch, behind which there were none for now: the next one begins with them.
    begun: Vec<Slot<S::Item>>,
}

impl<S: IterableDataset, C> Puller<S, C> {
    /// Opens the iterable, and goes to where it begins.
    fn open(&self) -> Result<S::Iter, BoxError> {
        let mut stream = self.parts.source.open(self.epoch, self.parts.shard)?;
        if let Some(state) = &self.resumed {
            progress()?;
            stream.seek(state)?;
            return Ok(stream);
        }
        for _ in 0..self.items {
            progress()?;
            if ask(&mut stream)?.is_none() {
                return Err(format!(
                    "the run that is resumed had {} items of it, and it has fewer now",
                    self.items
                )
                .into());
            }
        }
        Ok(stream)
    }

    /// Pulls until there are the items of a batch. Returns whether the iterable has ended, and where it stands.
    fn fill(&mut self) -> Result<(bool, Option<Vec<u8>>), BoxError> {
        if self.stream.is_none() {
            // (From its beginning or the state again, if it could not be read to there.)
            self.stream = Some(self.open()?);
            self.resumed = None;
        }
        let Some(stream) = &mut self.stream else {
            return Ok((true, None));
        };
        while self.begun.len() < self.parts.batch_size {
            progress()?;
            match ask(stream)? {
                Some(Ok(item)) => self.begun.push(Slot::Item(item)),
                Some(Err(error)) => self.begun.push(Slot::Failed(error)),
                None => return Ok((true, stream.state())),
            }
        }
        Ok((false, stream.state()))
    }

    /// Why a batch is not there for now.
    fn not_now(&self, place: Place, cause: BoxError) -> Error {
        let row = self.begun.len();
        let sample = SampleId {
            index: self.items + row as u64,
            row,
            batch: place.batch,
            epoch: self.epoch,
            description: None,
        };
        Error::Sample(sample, cause)
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
    ) -> Result<Pulled<C::Batch>> {
        // (How often it was asked in vain, since it had so many items.)
        let (mut in_vain, mut had) = (0, self.begun.len());
        let (is_last, state) = loop {
            let error = match self.fill() {
                Ok(filled) => break filled,
                Err(error) => error,
            };
            if self.begun.len() > had {
                (in_vain, had) = (0, self.begun.len());
            }
            let (on_error, meter) = (self.parts.on_error, &context.meter);
            match error.downcast::<Again>() {
                Ok(again) if on_error.asks_again(in_vain, &again.0, meter) => in_vain += 1,
                Ok(again) => {
                    if planted("items of a batch are lost where there are none for now") {
                        self.begun.clear();
                    }
                    return Ok(Pulled::NotNow(self.not_now(place, again.0)));
                }
                Err(source) => {
                    let epoch = self.epoch;
                    return Err(Error::Iterable { epoch, source });
                }
            }
        };
        let slots = std::mem::take(&mut self.begun);
        let rows = slots.len();
        let is_short = is_last && rows < self.parts.batch_size;
        if rows == 0 || is_short && self.parts.drop_last {
            return Ok(Pulled::Nothing);
        }
        let first = self.items;
        self.items += rows as u64;
        let place = Place {
            rows,
            batch_rows: rows,
            // Batches were planned before it was known that there would be no items for one of them, or fewer. What an item draws follows
            // from its number, whatever batch it is in.
            start: first
                .saturating_mul(place.step)
                .saturating_add(place.start % place.step),
            ..place
        };
        let reached = Reached {
            items: self.items,
            state,
            is_over: false,
        };
        let parts = &self.parts;
        let items = Items {
            parts: Arc::clone(parts),
            first,
            slots: slots.into_iter().map(Mutex::new).collect(),
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
        Ok(Pulled::Items {
            build,
            own,
            is_last,
        })
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
