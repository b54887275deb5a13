//! Samples from a stream: one worker at a time pulls a batch's items, and then all workers load them.
//!
//! A unit is opened for whoever pulls its items. When they are there, it has its rows, and is loaded as any unit is, by the same
//! [`Work`]: from a small data set of its own, which has just these items. If there are none left, the unit is gone again, and the epoch's
//! end is known. So pulling is serial, and the order is the stream's; a unit that is loaded never turns out to be shorter.
//!
//! The stream lies in its epoch's slot while nobody pulls. Whoever pulls has taken it out, so no lock is held meanwhile.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::Pipeline;
use super::announcer::EpochSamples;
use super::cut::{EpochOrder, Place};
use super::desk::{Desk, Doing};
use super::guard::drop_each;
use super::line::Pass;
use super::outbox::Sends;
use super::plan::Hints;
use super::recovery::{Changes, OnError, Retry};
use super::schedule::Unit;
use super::work::{DatasetRecipe, Learned, MadeAlone, Recipe, Work};
use crate::batch::{Batch, Collate};
use crate::dataset::Dataset;
use crate::device::Slab;
use crate::error::{BoxError, CollateError, Error, Result, SampleId, is_temporary, panic_message};
use crate::meter::Meter;
use crate::rng::SampleRng;
use crate::sampler::Sampler;
use crate::stream::{ItemStream, Shard, StreamSource};
use crate::sync::{Arc, Instant, Mutex, planted};
use crate::tensor::Backend;
use crate::trace::span;

/// How many samples the order of a stream has: more than any can give.
pub(crate) const ENDLESS: u64 = 1 << 62;

/// Where a stream's epoch begins.
pub(crate) struct StreamStart {
    pub(crate) epoch: u64,
    /// How many items this rank was given before, in the same epoch.
    pub(crate) items: u64,
    /// Where the stream stood then, if it could say so.
    pub(crate) state: Option<Vec<u8>>,
}

/// The stream of an epoch, with its type erased.
pub(crate) trait Pull<B>: Send {
    /// Pulls the items of the unit at a place; fewer, or none, if the stream ends.
    fn pull(
        &mut self,
        place: Place,
        order: &EpochOrder,
        gathered_by: Option<Backend>,
        meter: &Arc<Meter>,
        at: &Desk,
    ) -> Result<Pulled<B>>;
}

/// What was pulled for a unit.
pub(crate) struct Pulled<B> {
    /// `None`: the stream has ended before it.
    pub(super) unit: Option<PulledUnit<B>>,
    /// The stream has ended.
    pub(super) is_last: bool,
}

/// A unit whose items were pulled.
pub(super) struct PulledUnit<B> {
    pub(super) work: Arc<dyn Work<B>>,
    pub(super) own: Box<OwnItems<B>>,
}

/// The items that were pulled for a unit.
pub(crate) struct OwnItems<B> {
    /// Makes the unit again, if a sample is left out.
    recipe: Arc<dyn Recipe<B>>,
    /// With its real number of rows, which the plan does not know.
    pub(super) place: Place,
    reached: Reached,
}

/// Where a stream stands behind a unit.
#[derive(Debug, Clone, Default)]
pub(crate) struct Reached {
    /// How many items the rank was given.
    pub(crate) items: u64,
    /// Where the stream stands, if it can say so.
    pub(crate) state: Option<Vec<u8>>,
    /// How many rows the unit has.
    pub(crate) rows: usize,
    /// The epoch's end was given out.
    pub(crate) is_over: bool,
}

/// What makes a unit again, of items that were pulled for it.
pub(super) struct Remade<B> {
    pub(super) recipe: Arc<dyn Recipe<B>>,
    pub(super) place: Place,
}

impl<B: 'static> OwnItems<B> {
    pub(super) fn again(&self) -> Remade<B> {
        Remade {
            recipe: Arc::clone(&self.recipe),
            place: self.place,
        }
    }

    /// Drops what is left of the items. (They are the user's.)
    pub(crate) fn into_reached(self) -> Reached {
        drop_each([self.recipe]);
        self.reached
    }
}

/// Makes batches of the items of streams.
pub(crate) struct StreamRecipe<S, C>(pub(crate) Arc<StreamParts<S, C>>);

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

impl<S, C> Recipe<C::Batch> for StreamRecipe<S, C>
where
    S: StreamSource,
    C: Collate<S::Sample>,
{
    fn open(
        &self,
        _: Place,
        _: EpochSamples<'_>,
        _: Option<Backend>,
        _: Arc<Meter>,
    ) -> Arc<dyn Work<C::Batch>> {
        unreachable!("the units of a stream are opened by who pulls their items")
    }

    fn make(
        &self,
        _: Place,
        _: EpochSamples<'_>,
        _: &Meter,
        _: &dyn Fn(usize) -> Option<Slab>,
        _: Changes,
        _: &Desk,
    ) -> MadeAlone<C::Batch> {
        unreachable!("the units of a stream have recipes of their own")
    }

    fn sample_id(
        &self,
        place: Place,
        order: &EpochOrder,
        row: usize,
        index: Option<u64>,
    ) -> SampleId {
        let number = || order.index(place.epoch, place.key(row));
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
            // Units are whole batches: nobody knows how many rows the last has.
            sample_bytes: None,
            is_gatherable: self.0.learned.is_gatherable(),
            may_be_elsewhere: !C::IN_PLACE,
        }
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

    fn unlike(&self, _: Place, _: Place, _: &EpochOrder, _: CollateError) -> Error {
        unreachable!("batches of streams are not cut into parts")
    }

    fn end(&self) {
        self.0.retry.end();
    }
}

/// A stream, opened when somebody pulls first.
struct Puller<S: StreamSource, C> {
    parts: Arc<StreamParts<S, C>>,
    epoch: u64,
    /// How many items were pulled, in this run and before.
    items: u64,
    /// Where the stream is to go when it is opened.
    resumed: Option<Vec<u8>>,
    stream: Option<S::Stream>,
}

impl<S: StreamSource, C> Puller<S, C> {
    /// Opens the stream, and goes to where it begins.
    fn open(&mut self, at: &Desk) -> Result<S::Stream, BoxError> {
        let mut stream = self.parts.source.open(self.epoch, self.parts.shard)?;
        if let Some(state) = self.resumed.take() {
            at.begins(Doing::Pulling);
            stream.seek(&state)?;
            return Ok(stream);
        }
        for _ in 0..self.items {
            at.begins(Doing::Pulling);
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
    S: StreamSource,
    C: Collate<S::Sample>,
{
    fn pull(
        &mut self,
        place: Place,
        order: &EpochOrder,
        gathered_by: Option<Backend>,
        meter: &Arc<Meter>,
        at: &Desk,
    ) -> Result<Pulled<C::Batch>> {
        let mut stream = match self.stream.take() {
            Some(stream) => stream,
            None => self.open(at).map_err(|source| Error::Stream {
                epoch: self.epoch,
                source,
            })?,
        };
        let first = self.items;
        let (mut slots, mut is_last) = (Vec::new(), false);
        while slots.len() < self.parts.batch_size && !is_last {
            at.begins(Doing::Pulling);
            match stream.next() {
                Some(Ok(item)) => slots.push(Mutex::new(Slot::Item(item))),
                Some(Err(error)) => slots.push(Mutex::new(Slot::Failed(error))),
                None => is_last = true,
            }
        }
        let is_short = slots.len() < self.parts.batch_size;
        if slots.is_empty() || is_short && self.parts.drop_last {
            return Ok(Pulled {
                unit: None,
                is_last,
            });
        }
        self.items += slots.len() as u64;
        let rows = slots.len();
        let place = Place {
            rows,
            batch_rows: rows,
            ..place
        };
        let reached = Reached {
            items: self.items,
            state: stream.state(),
            rows,
            is_over: false,
        };
        self.stream = Some(stream);
        let parts = &self.parts;
        let items = Items {
            parts: Arc::clone(parts),
            first,
            slots,
        };
        let recipe = Arc::new(DatasetRecipe {
            dataset: Arc::new(items),
            collate: Arc::clone(&parts.collate),
            seed: parts.seed,
            on_error: parts.on_error,
            retry: Arc::clone(&parts.retry),
            learned: Arc::clone(&parts.learned),
        });
        let work = recipe.open(
            place,
            EpochSamples::of(order),
            gathered_by,
            Arc::clone(meter),
        );
        let own = Box::new(OwnItems {
            recipe,
            place,
            reached,
        });
        Ok(Pulled {
            unit: Some(PulledUnit { work, own }),
            is_last,
        })
    }
}

/// The items of one unit, as a data set: an index is the number of the item on this rank.
struct Items<S: StreamSource, C> {
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
    S: StreamSource,
    C: Send + Sync + 'static,
{
    type Sample = S::Sample;

    fn len(&self) -> u64 {
        self.first + self.slots.len() as u64
    }

    fn get(&self, index: u64, rng: &mut SampleRng) -> Result<S::Sample, BoxError> {
        let slot = index.checked_sub(self.first);
        let slot = slot.and_then(|slot| self.slots.get(slot as usize));
        let slot = slot.ok_or("the batch has no such item")?;
        let taken = std::mem::replace(&mut *slot.lock(), Slot::Gone);
        let item = match taken {
            Slot::Item(item) => {
                if self.parts.keeps {
                    // (One thread at a time loads a row, and nobody else looks.)
                    let kept = item.clone();
                    *slot.lock() = Slot::Item(kept);
                }
                item
            }
            Slot::Failed(error) => {
                if !self.parts.keeps {
                    return Err(error);
                }
                // Whoever asks again gets it again, in its words. (Errors cannot be cloned, and a stream cannot be asked for
                // the item once more, so this one does not go away.)
                let said = error.to_string();
                *slot.lock() = Slot::Failed(said.clone().into());
                return Err(if is_temporary(&error) {
                    said.into()
                } else {
                    error
                });
            }
            Slot::Gone => return Err("the stream's item is used up".into()),
        };
        self.parts.source.load(item, rng)
    }
}

impl<B: Batch> Pipeline<B> {
    /// Pulls the items of a unit, and lets others load them.
    pub(super) fn pull(
        &self,
        desk: &Desk,
        pass: &Pass,
        unit: Unit,
        mut stream: Box<dyn Pull<B>>,
        gathered_by: Option<Backend>,
    ) {
        span!("pull", epoch = pass.epoch, unit = unit.0);
        desk.enter(Doing::Pulling, 0);
        desk.since(Instant::now());
        let place = pass.place(unit);
        // Unwind safety: a stream that panicked is not asked again.
        let pull =
            AssertUnwindSafe(|| stream.pull(place, &pass.order, gathered_by, &pass.meter, desk));
        let pulled = catch_unwind(pull).unwrap_or_else(|payload| {
            Err(Error::StreamPanicked {
                epoch: pass.epoch,
                batch: place.batch,
                message: panic_message(payload),
            })
        });
        let has_left = desk.leave();
        let pulled = match pulled {
            Ok(pulled) if has_left => pulled,
            pulled => {
                drop_each([stream]);
                match pulled {
                    Err(error) if has_left => self.fail_pull(pass, unit, error),
                    pulled => drop_each([pulled]),
                }
                return;
            }
        };
        let (is_last, mut stream) = (pulled.is_last, Some(stream));
        let mut board = self.lock();
        let Some((line, bin)) = board.line_of(pass, unit) else {
            board.bin.drop_later((pulled.unit, stream));
            return;
        };
        // (If the consumer is just leaving the epoch, its end is known, and its units are about to go.)
        let count = match pulled.unit {
            Some(PulledUnit { work, own }) => {
                line.schedule.pulled(unit, own.place.rows);
                let slot = line.slot(unit);
                slot.work = Some(work);
                slot.own = Some(own);
                if is_last {
                    line.schedule.close_end(pass.segment)
                } else {
                    if let Some(epoch) = line.schedule.epoch(pass.segment) {
                        epoch.stream = stream.take();
                    }
                    None
                }
            }
            None => {
                let schedule = &mut line.schedule;
                let count = schedule.close_end_before(unit, pass.segment, bin.removed());
                if !planted("the end of a stream is found in silence") {
                    line.tell_consumer(unit);
                }
                count
            }
        };
        bin.wake_workers = true;
        bin.drop_later(stream);
        let outbox = line.outbox(pass.segment);
        drop(board);
        if let Some(batches) = count {
            self.tell_end(pass, outbox.as_deref(), batches);
        }
    }

    /// A stream did not give the items of a unit: the unit is an error, and the epoch's last.
    pub(super) fn fail_pull(&self, pass: &Pass, unit: Unit, error: Error) {
        let (count, outbox) = {
            let mut board = self.lock();
            let Some((line, _)) = board.line_of(pass, unit) else {
                return board.bin.drop_later(error);
            };
            let count = line.schedule.close_end(pass.segment);
            (count, line.outbox(pass.segment))
        };
        self.publish(pass, unit, Err(error));
        if let Some(batches) = count {
            self.tell_end(pass, outbox.as_deref(), batches);
        }
        self.wake_workers(); // for the epoch after it
    }

    /// It is known how many batches an epoch has. What may be sent beyond them is of the epoch after it.
    fn tell_end(&self, pass: &Pass, outbox: Option<&dyn Sends<B>>, batches: u64) {
        let Some(outbox) = outbox.filter(|_| !planted("an outbox is not told of the end")) else {
            return;
        };
        let beyond = outbox.ends(batches);
        let following = {
            let mut board = self.lock();
            let line = board.line(pass.line);
            line.and_then(|(line, _)| {
                let segment = line.schedule.id_after(pass.segment)?;
                line.outbox(segment)
            })
        };
        if let Some(following) = following {
            following.allow_first(beyond);
            self.send_following(pass);
        }
    }
}
