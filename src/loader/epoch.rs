//! Epochs: iterators over the batches of one pass.

mod consume;
mod device;
mod informed;
mod split;
mod with_info;

use std::fmt;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::time::Duration;

pub use self::device::DeviceEpoch;
pub(super) use self::split::shares;
pub use self::with_info::WithInfo;

use super::info::BatchInfo;
use super::inner::{Loader, LoaderInner};
use super::kind::{Begun, Indexed, Kind, Stands};
use super::last;
use super::pace::Pace;
use super::stats::Stats;
use super::try_next::{TryNext, until, waited};
use crate::batch::Batch;
use crate::device::Target;
use crate::error::Result;
use crate::error::drop_each;
use crate::pipeline::{
    BadCount, Beginning, Changes, EpochHandle, Partition, Patience, Pipeline, Place, Start, Taken,
    Waiting,
};
use crate::sync::{Arc, Instant};

/// One pass over the data set: gives its batches in order, unless the loader was told [otherwise](crate::loader::Builder::in_order).
/// That over an [`Iterable`](crate::loader::Iterable) ends when the iterable does, and has no length.
///
/// A batch that failed gives its error in its place, and the iteration can go on. Dropping the epoch stops its loading, and
/// does not wait.
///
/// # Examples
///
/// ```
/// use pinfeed::{DataLoader, from_fn};
///
/// let loader = DataLoader::builder(from_fn(10, |index, _| Ok(index as i64)))
///     .batch_size(4)
///     .build()?;
/// let epoch = loader.epoch(3);
/// assert_eq!((epoch.number(), epoch.len()), (3, 3)); // three batches are to come
/// for (step, numbers) in epoch.enumerate() {
///     let numbers = numbers?;
///     println!("step {step}: {} samples", numbers.len());
/// }
/// # Ok::<(), pinfeed::Error>(())
/// ```
///
/// Of an iterable:
///
/// ```
/// use pinfeed::{DataLoader, iterable};
///
/// let numbers = iterable::from_fn(|_, _| Ok((0..10i64).map(Ok)));
/// let loader = DataLoader::iterable(numbers).batch_size(4).build()?;
/// let sizes: Vec<_> = loader.epoch(3).map(|batch| Ok(batch?.len())).collect::<pinfeed::Result<_>>()?;
/// assert_eq!(sizes, [4, 4, 2]);
/// # Ok::<(), pinfeed::Error>(())
/// ```
#[must_use = "an epoch does nothing unless it is iterated"]
pub struct Epoch<'a, B: Batch, K: Kind = Indexed> {
    loader: Loader<'a, B>,
    handle: EpochHandle,
    /// Tasks that were taken in advance.
    taken: Taken<B>,
    partition: Partition,
    /// How many batches it has, without those that were given out before it was resumed.
    batches: u64,
    /// The number of the batch that was given out last.
    last: u64,
    /// How the batch that was given out last differs from what its place says.
    changes: Option<Box<Changes>>,
    /// Where it lies, if it is of an iterable: the plan does not know how many rows batches have.
    own: Option<Place>,
    /// When the last batch was given out: the host's own time starts here.
    given_at: Option<Instant>,
    /// For how long the next task has been waited for.
    waiting: Waiting,
    /// For how long the next batch has been waited for, in nanoseconds.
    waited_ns: u64,
    /// How far its device has come, of several that share the batches.
    pace: Option<Arc<Pace>>,
    /// It was waited for where it cannot be, and ended with that error.
    has_ended: bool,
    /// Its bad samples, if there may not be too many.
    bad: Option<BadCount>,
    kind: PhantomData<K>,
}

impl<'a, B: Batch, K: Kind> Epoch<'a, B, K> {
    /// `pace`: that of its device, of several that share the batches.
    pub(super) fn begin(
        loader: Loader<'a, B>,
        beginning: Beginning,
        pace: Option<Arc<Pace>>,
    ) -> Epoch<'a, B, K> {
        let asked = Instant::now();
        let handle = loader.pipeline().begin(beginning);
        Epoch::at(loader, handle, pace, asked)
    }

    /// The epoch of a handle that the consumer has come to, which asked for it at this time. (A batch sampler may take long to list its
    /// batches.)
    pub(super) fn at(
        loader: Loader<'a, B>,
        handle: EpochHandle,
        pace: Option<Arc<Pace>>,
        asked: Instant,
    ) -> Epoch<'a, B, K> {
        let mut epoch = Epoch::unnoted(loader, handle);
        epoch.pace = pace;
        epoch.has_waited(asked, Instant::now());
        let (loader, handle) = (epoch.loader(), &epoch.handle);
        let is_first = epoch.pace.as_ref().is_none_or(|pace| pace.begins());
        handle.meter.epochs.add(u64::from(is_first));
        handle.meter.epoch.see(handle.start.epoch);
        let batching = &epoch.pipeline().options().batching;
        handle.meter.sampling_ns.add(batching.take_listing_ns());
        // (The run stays where it is if it cannot go on.)
        if !epoch.partition.is_refused() && !epoch.pipeline().has_lost_threads() {
            loader.last().begun(handle, &epoch.partition);
        }
        epoch
    }

    /// An epoch that is not part of the run.
    pub(super) fn unnoted(loader: Loader<'a, B>, handle: EpochHandle) -> Epoch<'a, B, K> {
        let partition = loader.pipeline().partition(&handle);
        let batches = partition
            .batches()
            .saturating_sub(handle.start.given.count());
        let options = &loader.pipeline().options[handle.share.device];
        let bad = options.bad_share.map(BadCount::new);
        Epoch {
            loader,
            handle,
            taken: Taken::new(),
            batches,
            partition,
            last: 0,
            changes: None,
            own: None,
            given_at: None,
            waiting: Waiting::default(),
            waited_ns: 0,
            pace: None,
            has_ended: false,
            bad,
            kind: PhantomData,
        }
    }

    /// Returns the number of this epoch.
    pub fn number(&self) -> u64 {
        self.handle.start.epoch
    }

    /// Returns where the run stands in this epoch: after the batches that were given out.
    /// [`DataLoader::state`](crate::DataLoader::state) says the same of the epoch that was begun last. It is a
    /// [`LoaderState`](crate::loader::LoaderState), or for an iterable the [`IterableState`](crate::loader::IterableState) of this rank.
    ///
    /// # Examples
    ///
    /// ```
    /// use pinfeed::{DataLoader, from_fn};
    ///
    /// let loader = DataLoader::builder(from_fn(100, |index, _| Ok(index as i64))).batch_size(10).build()?;
    /// let mut epoch = loader.epoch(0);
    /// while let Some(batch) = epoch.next() {
    ///     let numbers = batch?;
    ///     if epoch.state().position() == 50 {
    ///         break; // half of it is done
    ///     }
    /// #   drop(numbers);
    /// }
    /// # Ok::<(), pinfeed::Error>(())
    /// ```
    pub fn state(&self) -> K::State {
        let epoch = Begun {
            handle: &self.handle,
            partition: &self.partition,
        };
        K::State::of_epoch(self.loader(), epoch)
    }

    /// Returns statistics of this epoch so far, whatever other epochs the loader has.
    ///
    /// Copies and kernels that have not finished are not counted yet. The time for what is loaded ahead is. If several devices share an
    /// epoch, these are of one device; [`DataLoader::stats`](crate::DataLoader::stats) adds them up.
    ///
    /// # Examples
    ///
    /// ```
    /// use pinfeed::{DataLoader, from_fn};
    ///
    /// let loader = DataLoader::builder(from_fn(100, |index, _| Ok(index as i64))).batch_size(10).num_workers(2).build()?;
    /// let (mut train, mut check) = (loader.epoch(0), loader.epoch(1));
    /// train.by_ref().take(5).try_for_each(|batch| batch.map(drop))?;
    /// check.by_ref().try_for_each(|batch| batch.map(drop))?;
    /// println!("{}", train.stats());
    /// assert_eq!(train.stats().consumer_wait.each.count(), 5);
    /// let both = train.stats() + check.stats();
    /// assert_eq!((both.epochs, both.consumer_wait.each.count()), (2, 15));
    /// # Ok::<(), pinfeed::Error>(())
    /// ```
    pub fn stats(&self) -> Stats {
        self.loader().stats_of(&self.handle)
    }

    /// Gives with each batch what it is: its samples' indices, its place in the epoch, and which of its rows are real. Of an iterable, the
    /// indices are the numbers of this rank's items, counted from 0 in each epoch.
    pub fn with_info(self) -> WithInfo<Epoch<'a, B, K>> {
        WithInfo::new(self)
    }

    /// What the batch is that was given out last.
    pub(super) fn info(&self) -> BatchInfo {
        let mut place = self.partition.batch_place(self.number(), self.last);
        if let Some(own) = self.own {
            place = Place {
                batch: place.batch,
                ..own
            };
        }
        let order = self.pipeline().options[self.handle.share.device].order(&self.partition);
        let seed = self.loader().seed();
        BatchInfo::new(place, seed, order, self.changes.as_deref())
    }

    /// Where the run stands after the batches that were given out.
    pub(super) fn reached(&self) -> Start {
        let options = &self.pipeline().options[self.handle.share.device];
        last::reached(&self.handle, &self.partition, options)
    }

    /// It gives way to the epochs of several devices, which are counted in its place unless some of it was given out.
    /// Returns whether that is so.
    pub(super) fn gives_way(&self) -> bool {
        let gives_way = self.given() == 0;
        if gives_way {
            self.handle.meter.epochs.take_back(1);
        }
        gives_way
    }

    pub(super) fn reference(&self) -> &Loader<'a, B> {
        &self.loader
    }

    /// The loader.
    pub(super) fn loader(&self) -> &LoaderInner<B> {
        self.loader.get()
    }

    /// Sends batches to the device ahead of the consumer, up to `depth` beyond the one that is given out. With
    /// [`pin_memory`](crate::loader::Builder::pin_memory), the worker that made a batch sends it, even while the program is busy; pageable
    /// batches that are ready are sent when the iterator is asked for the next one, and small batches that are made while it waits are sent
    /// by it. So from this call on, up to `depth` batches hold device memory. (If the batch is of your own type, [`Batch::upload`] then runs
    /// on a worker, in this call, or in the one that asks for a batch. But if the device decodes pictures of it, it runs when they are
    /// decoded, on the thread that asks for the batch.)
    ///
    /// If the loader pins for the same device, large batches travel in parts, so that the page-locked memory in use stays in the last-level
    /// cache; that is less than `prefetch` batches take. If a part fails, its batch is an error. What arrives is the same. (Those of an
    /// iterable travel whole.)
    ///
    /// Small batches that are ready at the same time travel together, and share device memory of 1 MiB at most, which is free again when
    /// all of them were dropped. If they take microseconds to make, and [`prefetch`](crate::loader::Builder::prefetch) is not set, up to 32
    /// batches beyond `depth` may be on their way.
    ///
    /// If the loader pins for the same device, rows of 16 KiB and more in registered memory ([`Tensor::register`](crate::Tensor::register))
    /// are not copied on the host: the device gathers them from where they lie. What arrives is the same.
    ///
    /// [`DeviceBuffers`](crate::device::DeviceBuffers) in place of the device keep the batches at fixed addresses; then `depth` is at most
    /// one less than there are buffers.
    ///
    /// # Synchronization
    ///
    /// Enqueues the copies of page-locked batches that are ready already, as [`Batch::to_device`] with `non_blocking`, and waits neither for
    /// them nor for memory. The device tensors are guarded by their copy's event.
    pub fn prefetch_to_device(
        mut self,
        target: impl Into<Target>,
        depth: usize,
    ) -> DeviceEpoch<'a, B, K> {
        let target = target.into();
        let depth = target.depth(depth);
        let (pipeline, handle, taken) = self.fields();
        let queue = pipeline.send_to(handle, &target, depth, taken);
        DeviceEpoch::new(self, queue, depth, None)
    }

    /// Gives the next batch if it is there, and says whether the epoch is over if there is none.
    ///
    /// It may be mixed with [`next`](Iterator::next) and [`next_timeout`](Epoch::next_timeout) in any order, and misses nothing.
    ///
    /// # Synchronization
    ///
    /// Does not wait, with one exception: with `num_workers(0)`, this call loads the batch itself. (On one of the loader's own threads, it
    /// gives [`Error::CannotWait`](crate::Error::CannotWait), and the epoch goes on elsewhere.)
    ///
    /// The call counts as waiting: if the program holds all slabs that it may have, the batch that it asks for is not page-locked
    /// ([`pin_memory`](crate::loader::Builder::pin_memory)). If the loader has a [`timeout`](crate::loader::Builder::timeout), late samples
    /// are detected by this call.
    ///
    /// # Examples
    ///
    /// ```
    /// use pinfeed::loader::TryNext;
    /// use pinfeed::{DataLoader, from_fn};
    ///
    /// let loader = DataLoader::builder(from_fn(8, |index, _| Ok(index as i64)))
    ///     .batch_size(4)
    ///     .num_workers(2)
    ///     .build()?;
    /// let mut epoch = loader.epoch(0);
    /// let mut batches = 0;
    /// loop {
    ///     match epoch.try_next() {
    ///         TryNext::Batch(batch) => batches += usize::from(batch?.len() == 4),
    ///         TryNext::NotYet => std::thread::yield_now(), // other work
    ///         TryNext::End => break,
    ///     }
    /// }
    /// assert_eq!(batches, 2);
    /// # Ok::<(), pinfeed::Error>(())
    /// ```
    pub fn try_next(&mut self) -> TryNext<Result<B>> {
        TryNext::of(self.poll(Patience::None))
    }

    /// Waits for the next batch for at most `timeout`, and says whether the epoch is over if none has come.
    ///
    /// A batch that has not come is not lost; a later call gives it. To make a sample that hangs an error, set a
    /// [`timeout`](crate::loader::Builder::timeout).
    ///
    /// # Synchronization
    ///
    /// Blocks for at most `timeout`, or, with `num_workers(0)`, until it has loaded the batch itself. The rest is as with
    /// [`try_next`](Epoch::try_next).
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use pinfeed::loader::TryNext;
    /// use pinfeed::{DataLoader, from_fn};
    ///
    /// let loader = DataLoader::builder(from_fn(8, |index, _| Ok(index as i64))).batch_size(8).num_workers(2).build()?;
    /// let mut epoch = loader.epoch(0);
    /// let batch = loop {
    ///     match epoch.next_timeout(Duration::from_millis(100)) {
    ///         TryNext::NotYet => println!("still waiting"), // or look whether the user has had enough
    ///         next => break next.batch(),
    ///     }
    /// };
    /// assert_eq!(batch.unwrap()?.len(), 8);
    /// # Ok::<(), pinfeed::Error>(())
    /// ```
    pub fn next_timeout(&mut self, timeout: Duration) -> TryNext<Result<B>> {
        TryNext::of(self.poll(until(timeout)))
    }

    pub(super) fn pipeline(&self) -> &Pipeline<B> {
        self.loader.pipeline()
    }

    pub(super) fn handle(&self) -> &EpochHandle {
        &self.handle
    }

    /// The pipeline, the epoch handle, and the tasks that were taken in advance.
    pub(super) fn fields(&mut self) -> (&Pipeline<B>, &EpochHandle, &mut Taken<B>) {
        (self.loader.pipeline(), &self.handle, &mut self.taken)
    }

    /// Whether it is not known which batch comes next.
    pub(super) fn is_any_order(&self) -> bool {
        self.handle.progress.next().is_none()
    }

    /// How many batches its cut has.
    pub(super) fn batches(&self) -> u64 {
        self.partition.batches()
    }

    /// How many batches are to come.
    pub(super) fn left(&self) -> u64 {
        self.batches - self.given()
    }

    /// How many batches were given out.
    pub(super) fn given(&self) -> u64 {
        self.handle.progress.count()
    }
}

impl<B: Batch, K: Kind> Iterator for Epoch<'_, B, K> {
    type Item = Result<B>;

    fn next(&mut self) -> Option<Result<B>> {
        waited(self.poll(Patience::Forever))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        K::size_hint(self.left())
    }
}

impl<B: Batch> ExactSizeIterator for Epoch<'_, B> {}
impl<B: Batch, K: Kind> std::iter::FusedIterator for Epoch<'_, B, K> {}

impl<B: Batch, K: Kind> Drop for Epoch<'_, B, K> {
    fn drop(&mut self) {
        if self.pipeline().has_lost_threads() {
            // What it holds goes back under locks that may never be released.
            _ = ManuallyDrop::new(std::mem::take(&mut self.taken));
            return;
        }
        self.returned();
        self.pipeline().leave(&self.handle);
        drop_each(self.taken.drain(..)); // they may be the user's to drop
    }
}

impl<B: Batch, K: Kind> fmt::Debug for Epoch<'_, B, K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut f = f.debug_struct("Epoch");
        f.field("number", &self.number());
        match self.size_hint() {
            (_, Some(left)) => f.field("remaining", &left).finish(),
            (_, None) => f.finish_non_exhaustive(),
        }
    }
}
