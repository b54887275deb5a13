//! The loader: what it gives out, and what it tells. Its builders name it, and it names them, so they lie here, too.

mod builder;
mod builders;
mod handed_over;
mod indexed;
mod iterable;

use std::fmt;
use std::marker::PhantomData;

pub use self::builder::Builder;
pub use self::iterable::IterableBuilder;

use super::affinity::{Placed, Placement};
use super::epoch::Epoch;
use super::epochs::Epochs;
use super::inner::{Holds, Loader, LoaderInner, Order};
use super::kind::{GoesOn, Indexed, Kind, Stands};
use super::last::Last;
use super::replay::Replay;
use super::stats::Stats;
use super::timeline::Recording;
use crate::batch::{Batch, Share};
use crate::error::Result;
use crate::pipeline::{Beginning, DeviceShard, EpochHandle, Pipeline, Start, Threads};
use crate::sync::{Arc, AtomicU64, Ordering};

/// Loads batches of type `B`. The types of data set and collate are erased, so that a loader fits in a struct's field.
///
/// `K` says what the samples come from ([`Kind`]): a data set with a length and an index ([`Indexed`], the default), or an iterable
/// ([`Iterable`](super::Iterable)). Both kinds are iterated in the same way. A loader of an iterable has no [`len`](DataLoader::len), and a state of its own.
///
/// It is `Send + Sync`. Several epochs may be alive at once, and several loaders may share a device. Its workers are its own
/// named threads, which end when it is dropped.
///
/// A forked child process has none of these threads. In the child, an epoch of a loader with workers gives one error
/// ([`Error::CannotWait`](crate::Error::CannotWait)) and ends, and dropping the epoch or the loader does not wait. Fork while
/// no loader exists, and build the data set and the loader after it, in the process that uses them. A worker that iterates its own loader
/// (from a data set's `get`, say) gets the same error, because it would wait for itself.
///
/// # Examples
///
/// ```
/// use pinfeed::{Batch, DataLoader, Device, from_fn};
///
/// let device = Device::cpu(); // or Device::cuda(0)?
/// let stream = device.stream()?;
/// let samples = from_fn(1_000, |index, _rng| Ok(([index as f32; 16], index as i64)));
///
/// let loader = DataLoader::builder(samples)
///     .batch_size(64)
///     .shuffle(true)
///     .seed(17)
///     .num_workers(2)
///     .pin_memory(&device)
///     .build()?;
///
/// let mut seen = 0;
/// for epoch in 0..2 {
///     for batch in loader.epoch(epoch) {
///         let (x, y) = batch?.to_device(&device, true)?;
///         let (x, y) = (x.on(&stream)?, y.on(&stream)?); // launch kernels on `stream` here
///         seen += y.len();
///         # drop(x);
///     }
/// }
/// assert_eq!(seen, 2_000);
/// # Ok::<(), pinfeed::Error>(())
/// ```
///
/// An iterable without end, left after 100 steps:
///
/// ```
/// use pinfeed::DataLoader;
/// use pinfeed::iterable::{self, IterableDataset};
///
/// let numbers = iterable::from_fn(|_, _| Ok((0..1_000i64).map(Ok))).repeat();
/// let loader = DataLoader::iterable(numbers.shuffle(64)).batch_size(32).num_workers(2).build()?;
/// for (step, batch) in (0..100).zip(loader.epoch(0)) {
///     let numbers = batch?;
///     # assert_eq!((numbers.len(), step < 100), (32, true));
/// }
/// # Ok::<(), pinfeed::Error>(())
/// ```
pub struct DataLoader<B: Batch, K: Kind = Indexed> {
    inner: LoaderInner<B>,
    /// The epoch that `for batch in &loader` takes next.
    next_epoch: AtomicU64,
    placed: Placed,
    kind: PhantomData<K>,
}

impl<B: Batch, K: Kind> DataLoader<B, K> {
    fn start(threads: Threads<B>, order: Order, placed: Placed) -> DataLoader<B, K> {
        DataLoader {
            inner: LoaderInner::new(threads, order),
            next_epoch: AtomicU64::new(0),
            placed,
            kind: PhantomData,
        }
    }

    /// Returns the number of samples per batch of this rank (the last one of an epoch may have fewer). With a
    /// [batch sampler](crate::sampler::BatchSampler), that of the largest batch of epoch 0, on any rank.
    pub fn batch_size(&self) -> usize {
        self.pipeline().options().first_epoch().most_rows
    }

    /// Begins epoch `epoch`: its order and its random numbers follow from the seed and this number alone. A worker opens an iterable with
    /// this number.
    ///
    /// # Synchronization
    ///
    /// Returns at once; workers begin to load, `prefetch` batches ahead. (If samples lie in registered memory, or batches are so
    /// large that they would travel to the device in parts, loading depends on where they go, and begins with the first `next` or
    /// `prefetch_to_device`.) Dropping the epoch does not wait for workers.
    ///
    /// With a [batch sampler](crate::sampler::BatchSampler), the call takes as long as this epoch's lists do.
    pub fn epoch(&self, epoch: u64) -> Epoch<'_, B, K> {
        let start = Start::of(epoch);
        let beginning = Beginning::whole(start, None, false);
        Epoch::begin(Loader::Borrowed(&self.inner), beginning, None)
    }

    /// Begins an epoch that owns a reference to its loader, for threads and structs that outlive the caller.
    pub fn owned_epoch(self: &Arc<Self>, epoch: u64) -> Epoch<'static, B, K> {
        let start = Start::of(epoch);
        let beginning = Beginning::whole(start, None, false);
        Epoch::begin(self.shared(), beginning, None)
    }

    /// Gives the epochs of these numbers one after the other, and loads across their boundaries: after the last batches of one epoch,
    /// workers go on with the first of the next, as they do within an epoch. What a batch holds is the same as with
    /// [`epoch`](DataLoader::epoch), which knows of no next one.
    ///
    /// At a boundary, two epochs together are no further ahead than one, and take no more page-locked memory. Without workers,
    /// nothing is loaded ahead. `numbers` is advanced one epoch ahead.
    ///
    /// Nothing is loaded across a boundary if the next epoch is loaded in another way: after a first epoch that had to find out how
    /// large samples are, if later ones travel to the device in parts. And if the program takes an epoch while the one before has
    /// batches to come, the new one begins only then, as with [`epoch`](DataLoader::epoch).
    ///
    /// A worker makes the lists of a [batch sampler](crate::sampler::BatchSampler) for the next epoch, while the others load. An iterable
    /// is opened for the next epoch when the end of the one before was found.
    ///
    /// # Examples
    ///
    /// ```
    /// use pinfeed::{DataLoader, Device, from_fn};
    ///
    /// let device = Device::cpu();
    /// let loader = DataLoader::builder(from_fn(100, |index, _| Ok(index as i64)))
    ///     .batch_size(10)
    ///     .num_workers(2)
    ///     .pin_memory(&device)
    ///     .build()?;
    ///
    /// for epoch in loader.epochs(0..3).prefetch_to_device(&device, 2) {
    ///     for batch in epoch {
    ///         let numbers = batch?; // on the device
    ///         # assert_eq!(numbers.len(), 10);
    ///     }
    ///     println!("{}", loader.stats()); // of the epoch that was given out last
    /// }
    /// # Ok::<(), pinfeed::Error>(())
    /// ```
    ///
    /// # Synchronization
    ///
    /// As with [`epoch`](DataLoader::epoch); neither dropping an epoch nor dropping the iterator waits for workers.
    pub fn epochs<I>(&self, numbers: I) -> Epochs<'_, B, I::IntoIter, K>
    where
        I: IntoIterator<Item = u64>,
    {
        Epochs::new(Loader::Borrowed(&self.inner), numbers.into_iter())
    }

    /// The same, with epochs that own a reference to their loader.
    pub fn owned_epochs<I>(self: &Arc<Self>, numbers: I) -> Epochs<'static, B, I::IntoIter, K>
    where
        I: IntoIterator<Item = u64>,
    {
        Epochs::new(self.shared(), numbers.into_iter())
    }

    /// Loads the first batch of epoch `epoch`, and gives it again and again, as often as the epoch has batches: the loop runs as fast as it
    /// would if loading cost nothing. (The epoch of an iterable has no length: the batch comes without end, so [`take`](Iterator::take)
    /// some.)
    ///
    /// Replace `loader.epoch(n)` by `loader.replay(n)?`, and measure. If the loop is no faster, loading was hidden already, and what
    /// limits it is the step, or the copy to the device, which [`prefetch_to_device`](Replay::prefetch_to_device) does for each step as
    /// ever. To leave out the copy as well, keep one device batch and run the step on it.
    ///
    /// Only batches that can be given out several times have this function ([`Share`]); they share their memory, and so cannot be
    /// written on the host. The batch travels whole, even where an epoch's batches travel in parts or have their rows gathered by the
    /// device. It is no part of the run: [`state`](DataLoader::state) and [`stats`](DataLoader::stats) are those of the epochs.
    ///
    /// # Synchronization
    ///
    /// Blocks until the batch is loaded.
    ///
    /// # Errors
    ///
    /// The batch's own error.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::{Duration, Instant};
    ///
    /// use pinfeed::{DataLoader, from_fn};
    ///
    /// let samples = from_fn(50, |index, _| {
    ///     std::thread::sleep(Duration::from_millis(1)); // a slow source
    ///     Ok(index as i64)
    /// });
    /// let loader = DataLoader::builder(samples).batch_size(5).build()?;
    ///
    /// let (start, mut loss) = (Instant::now(), 0);
    /// for batch in loader.replay(0)? {
    ///     loss += batch?.as_slice()[4]; // the training step
    /// }
    /// println!("at best, {:.0} batches/s", 10.0 / start.elapsed().as_secs_f64());
    /// # assert_eq!(loss, 40);
    /// # Ok::<(), pinfeed::Error>(())
    /// ```
    pub fn replay(&self, epoch: u64) -> Result<Replay<B, K>>
    where
        B: Share,
    {
        let loader = Loader::Borrowed(&self.inner);
        let beginning = Beginning {
            is_apart: true,
            ..Beginning::whole(Start::of(epoch), None, false)
        };
        let handle = loader.pipeline().begin(beginning);
        let mut epoch: Epoch<'_, B, K> = Epoch::unnoted(loader, handle);
        let batches = epoch.batches();
        Replay::new(epoch.next(), batches)
    }

    /// Gives the epochs of these rising numbers from where a run stands: earlier ones are left out, and the one that was begun goes
    /// on with the batches that were not given out. Otherwise it is like [`epochs`](DataLoader::epochs). The state is a [`LoaderState`](super::LoaderState),
    /// or for an iterable an [`IterableState`](super::IterableState); the default of each is where every run begins.
    ///
    /// On the same ranks, the batches are those that would have come without the interruption, on any number of workers.
    ///
    /// - With a [`LoaderState`](super::LoaderState), on another number of ranks, each of the samples that are left comes once, in the same order. Resuming takes
    ///   no longer than beginning an epoch. The state may be from any rank. (Not within an epoch with
    ///   [`in_order(false)`](Builder::in_order): [what it says in any order](super::LoaderState#in-any-order).)
    /// - With an [`IterableState`](super::IterableState), each rank goes on from its own state, on as many ranks; on another number, from the one
    ///   that [`hand_over`](DataLoader::hand_over) makes. If the source said where it stood, it goes there
    ///   at once ([`ItemIter::seek`](crate::iterable::ItemIter::seek)). Otherwise, as many items as were given out are pulled again and
    ///   dropped: none of them is loaded, but reading them takes as long as reading does.
    ///
    /// # Errors
    ///
    /// [`Error::State`](crate::Error::State), which says what differs, if the state was saved with another data set, seed, sampler or
    /// batch size. (One of the batch sizes must be the same: that of each rank, or that of all together.)
    ///
    /// With a [batch sampler](crate::sampler::BatchSampler), also if none of its lists begins where the state stands, and
    /// [`Error::BatchSampler`](crate::Error::BatchSampler) if it fails to make them.
    ///
    /// For an iterable, [`Error::State`](crate::Error::State) if the state was saved with another source, as far as its
    /// [fingerprint](crate::iterable::IterableDataset::fingerprint) tells, with another seed, on another rank, or on another number of ranks. (A source that
    /// cannot go to its state makes the epoch's first batch an error, for it is opened later.)
    ///
    /// # Examples
    ///
    /// A training that goes on after each interruption:
    ///
    /// ```
    /// use std::fs;
    ///
    /// use pinfeed::loader::LoaderState;
    /// use pinfeed::{BoxError, DataLoader, from_fn};
    ///
    /// fn train(checkpoint: &str) -> Result<(), BoxError> {
    ///     let loader = DataLoader::builder(from_fn(1_000, |index, _| Ok(index as f32)))
    ///         .batch_size(100)
    ///         .shuffle(true)
    ///         .build()?;
    ///     let state = match fs::read_to_string(checkpoint) {
    ///         Ok(saved) => saved.parse()?,
    ///         Err(_) => LoaderState::default(),
    ///     };
    ///     for epoch in loader.resume(0..90, &state)? {
    ///         for batch in epoch {
    ///             let batch = batch?; // a step, and now and then:
    ///             fs::write(checkpoint, loader.state().to_string())?;
    /// #           drop(batch);
    ///         }
    /// #       break;
    ///     }
    ///     Ok(())
    /// }
    /// # let folder = tempfile::tempdir()?;
    /// # let file = folder.path().join("loader.state");
    /// # train(file.to_str().unwrap())?;
    /// # train(file.to_str().unwrap())?;
    /// # assert!(fs::read_to_string(file)?.contains("epoch=2 position=0"));
    /// # Ok::<(), BoxError>(())
    /// ```
    pub fn resume<I>(&self, numbers: I, state: &K::State) -> Result<Epochs<'_, B, I::IntoIter, K>>
    where
        I: IntoIterator<Item = u64>,
    {
        let (start, iterable) = self.resumed(state)?;
        Ok(self.epochs(numbers).resumed(start, iterable))
    }

    /// The same, with epochs that own a reference to their loader.
    ///
    /// # Errors
    ///
    /// As [`resume`](DataLoader::resume).
    pub fn owned_resume<I>(
        self: &Arc<Self>,
        numbers: I,
        state: &K::State,
    ) -> Result<Epochs<'static, B, I::IntoIter, K>>
    where
        I: IntoIterator<Item = u64>,
    {
        let (start, iterable) = self.resumed(state)?;
        Ok(self.owned_epochs(numbers).resumed(start, iterable))
    }

    /// Where the state says to go on, and the state of its iterable.
    fn resumed(&self, state: &K::State) -> Result<(Start, Option<Vec<u8>>)> {
        let pipeline = self.pipeline();
        pipeline.check_process()?;
        let GoesOn {
            mut start,
            iterable,
        } = state.go_on(&self.inner)?;
        *self.inner.last() = Last::at(start, iterable.clone());
        if !start.given.has_no_gap() {
            // (Of the last ones, this loader may leave some out.)
            let partition = pipeline.options().partition(start, DeviceShard::WHOLE);
            start.given = start.given.of(partition.batches());
        }
        Ok((start, iterable))
    }

    /// Returns where the run stands, in the epoch that was begun last: after the batches that were given out, whatever was loaded
    /// ahead. After the last batch of an epoch, that is the beginning of the next. [`resume`](DataLoader::resume) goes on from there.
    ///
    /// It is a [`LoaderState`](super::LoaderState), or for an iterable the [`IterableState`](super::IterableState) of this rank. (An iterable's epoch has ended when its iterator
    /// returned `None`.)
    ///
    /// The first call looks at some samples' descriptions and positions ([`Dataset::fingerprint`](crate::dataset::Dataset::fingerprint),
    /// [`Sampler::fingerprint`](crate::sampler::Sampler::fingerprint)), or at the lists of two epochs
    /// ([`BatchSampler::fingerprint`](crate::sampler::BatchSampler::fingerprint)), or asks an iterable
    /// ([`IterableDataset::fingerprint`](crate::iterable::IterableDataset::fingerprint)).
    ///
    /// # Panics
    ///
    /// In a process that was forked from the one that built the loader, at the moment when another thread of that began an epoch or asked
    /// for the state: it is not known in the child where the run stands. Ask before the fork.
    pub fn state(&self) -> K::State {
        K::State::of_run(&self.inner)
    }

    /// Returns statistics of the epoch that was begun last: where its time went; all zeros before the first. [`Epoch::stats`] returns those
    /// of an epoch that you hold, and [`total_stats`](DataLoader::total_stats) those of all. If several devices share the epoch, they are
    /// of all of them.
    ///
    /// Copies and kernels that have not finished are not counted yet. In a forked child of a loader with workers, all are zeros: what is
    /// counted is the parent's.
    pub fn stats(&self) -> Stats {
        if self.pipeline().has_lost_threads() {
            return Stats::default();
        }
        let handles: Vec<EpochHandle> = self.inner.last().handles().cloned().collect();
        let of_each: Vec<Stats> = handles
            .iter()
            .map(|handle| self.inner.stats_of(handle))
            .collect();
        Stats::side_by_side(&of_each)
    }

    /// Returns statistics of all epochs of this loader so far: those that are over, those that were left midway, and those that run. The
    /// time for what was loaded ahead counts as well, even for an epoch that was never iterated. Memory does not grow with the number of
    /// epochs. In a forked child, as [`stats`](DataLoader::stats).
    ///
    /// # Examples
    ///
    /// ```
    /// use pinfeed::{DataLoader, from_fn};
    ///
    /// let loader = DataLoader::builder(from_fn(100, |index, _| Ok(index as i64))).batch_size(10).build()?;
    /// for epoch in loader.epochs(0..3) {
    ///     for batch in epoch {
    ///         batch?;
    ///     }
    /// }
    /// let stats = loader.total_stats();
    /// assert_eq!((stats.epochs, stats.batches), (3, 30));
    /// println!("{stats}");
    /// # Ok::<(), pinfeed::Error>(())
    /// ```
    pub fn total_stats(&self) -> Stats {
        let pipeline = self.pipeline();
        if pipeline.has_lost_threads() {
            return Stats::default();
        }
        Stats::of(
            &pipeline.meters.total(),
            pipeline.options(),
            pipeline.sizing(),
            pipeline.device_share(),
        )
    }

    /// Begins to record what each thread does when, for a [`Timeline`](super::Timeline): of all epochs, until
    /// [`finish`](Recording::finish). It may begin at any time, such as after a first epoch.
    ///
    /// A recording takes about 10 MB at most, and each event a microsecond. An event is a run of samples (a batch, where these take
    /// microseconds), a copy, or a wait. A loader that does not record only checks a flag. If another recording of this loader is running,
    /// it ends, and keeps what it has. In a forked child of a loader with workers, nothing is recorded.
    ///
    /// # Examples
    ///
    /// One epoch after a first one:
    ///
    /// ```
    /// use pinfeed::{DataLoader, from_fn};
    ///
    /// let loader = DataLoader::builder(from_fn(100, |index, _| Ok(index as i64))).batch_size(10).num_workers(2).build()?;
    /// let mut recording = None;
    /// for epoch in loader.epochs(0..3) {
    ///     if epoch.number() == 1 {
    ///         recording = Some(loader.record());
    ///     }
    ///     for batch in epoch {
    ///         batch?;
    ///     }
    ///     if let Some(recording) = recording.take() {
    ///         let page = recording.finish().to_html();
    ///         println!("a page of {} bytes", page.len());
    ///     }
    /// }
    /// # Ok::<(), pinfeed::Error>(())
    /// ```
    pub fn record(&self) -> Recording {
        let pipeline = self.pipeline();
        match pipeline.has_lost_threads() {
            true => Recording::start(&Arc::default(), false),
            false => Recording::start(&pipeline.meters, pipeline.options().workers > 0),
        }
    }

    /// Returns where the loader's threads run, and where its slabs lie ([`Builder::affinity`]).
    pub fn placement(&self) -> Placement {
        self.placed.report()
    }

    pub(crate) fn pipeline(&self) -> &Pipeline<B> {
        self.inner.pipeline()
    }

    /// A reference for an epoch that owns it.
    fn shared(self: &Arc<Self>) -> Loader<'static, B> {
        let loader = Arc::clone(self);
        Loader::Owned(loader)
    }

    fn next_epoch(&self) -> u64 {
        self.next_epoch.fetch_add(1, Ordering::Relaxed)
    }
}

impl<B: Batch, K: Kind> Holds<B> for DataLoader<B, K> {
    fn inner(&self) -> &LoaderInner<B> {
        &self.inner
    }
}

impl<'a, B: Batch, K: Kind> IntoIterator for &'a DataLoader<B, K> {
    type Item = Result<B>;
    type IntoIter = Epoch<'a, B, K>;

    /// Begins the next epoch: 0 the first time, then 1, and so on.
    fn into_iter(self) -> Epoch<'a, B, K> {
        self.epoch(self.next_epoch())
    }
}

impl<B: Batch, K: Kind> fmt::Debug for DataLoader<B, K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.inner, f)
    }
}

#[cfg(test)]
const _: () = {
    use super::{DeviceEpoch, Iterable};

    const fn assert_send_sync<T: Send + Sync>() {}
    const fn assert_send<T: Send>() {}
    const fn of_kind<K: Kind>() {
        assert_send_sync::<DataLoader<crate::tensor::Tensor<f32>, K>>();
        assert_send_sync::<Epochs<'static, crate::tensor::Tensor<f32>, std::ops::Range<u64>, K>>();
        assert_send::<Epoch<'static, crate::tensor::Tensor<f32>, K>>();
        assert_send::<DeviceEpoch<'static, crate::tensor::Tensor<f32>, K>>();
    }
    of_kind::<Indexed>();
    of_kind::<Iterable>();
    // An epoch that owns its loader can be used where one that borrows it can.
    const fn shorten<'a, B: Batch, K: Kind>(
        epoch: DeviceEpoch<'static, B, K>,
    ) -> DeviceEpoch<'a, B, K> {
        epoch
    }
    _ = shorten::<crate::tensor::Tensor<f32>, Iterable>;
    assert_send_sync::<crate::device::DeviceTensor<f32>>();
    assert_send_sync::<crate::device::Device>();
    assert_send_sync::<crate::device::Stream>();
};
