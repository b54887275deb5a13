//! The builder: options under PyTorch's names. What makes no sense is refused.

mod ahead;
mod build;
mod check;
mod options;
mod order;
mod pictures;

use std::fmt;
use std::time::Duration;

use crate::device::Device;
use crate::loader::affinity::{Affinity, Machine};
use crate::loader::world::World;
use crate::pipeline::{BadShare, LastBatch, OnEmpty, OnError, Sharding, Workers};
use crate::sampler::{BatchSampler, Sampler};
use crate::sync::Arc;

/// Describes a loader. [`DataLoader::builder`](crate::DataLoader::builder) makes one; [`build`](Builder::build) makes the loader.
///
/// # Examples
///
/// ```
/// use pinfeed::{DataLoader, Device, from_fn};
///
/// let device = Device::cpu();
/// let loader = DataLoader::builder(from_fn(1_000, |index, _| Ok(index as f32)))
///     .batch_size(128)
///     .shuffle(true)
///     .seed(17)
///     .drop_last(true)
///     .num_workers(2)
///     .pin_memory(&device)
///     .build()?;
/// assert_eq!(loader.len(), 7); // the last 104 samples are left out
/// # Ok::<(), pinfeed::Error>(())
/// ```
#[must_use = "a builder does nothing until `build`"]
pub struct Builder<D, C> {
    pub(super) dataset: D,
    pub(super) collate: C,
    batch_size: Option<usize>,
    global_batch_size: Option<usize>,
    shuffle: bool,
    pub(super) seed: u64,
    sampler: Option<Arc<dyn Sampler>>,
    batch_sampler: Option<Arc<dyn BatchSampler>>,
    on_empty: Option<OnEmpty>,
    num_workers: Workers,
    cores: Option<usize>,
    affinity: Affinity,
    machine: Option<Machine>,
    prefetch: Option<usize>,
    in_order: bool,
    max_bytes: Option<usize>,
    pub(super) last_batch: LastBatch,
    pub(super) world: World,
    sharding: Option<Sharding>,
    pub(super) on_error: OnError,
    /// Attempts, the first wait, and how many attempts an epoch may have.
    pub(super) retry: (u32, Duration, u64),
    pub(super) bad_share: Option<BadShare>,
    pub(super) devices: Vec<Device>,
    /// `pin_memory` was called with an empty list.
    names_no_device: bool,
    strict: bool,
    by_copy: bool,
    min_slab_bytes: Option<usize>,
    timeout: Option<Duration>,
    patience: Option<Duration>,
    device_share: Option<f64>,
}

impl<D> Builder<D, crate::batch::Stack> {
    pub(super) fn new(dataset: D) -> Self {
        Builder {
            dataset,
            collate: crate::batch::Stack,
            batch_size: None,
            global_batch_size: None,
            shuffle: false,
            seed: 0,
            sampler: None,
            batch_sampler: None,
            on_empty: None,
            num_workers: Workers::Fixed(0),
            cores: None,
            affinity: Affinity::Anywhere,
            machine: None,
            prefetch: None,
            in_order: true,
            max_bytes: None,
            last_batch: LastBatch::Partial,
            world: World::single(),
            sharding: None,
            on_error: OnError::Fail,
            retry: (0, Duration::ZERO, u64::MAX),
            bad_share: None,
            devices: Vec::new(),
            names_no_device: false,
            strict: false,
            by_copy: false,
            min_slab_bytes: None,
            timeout: None,
            patience: crate::tuning::WATCHDOG,
            device_share: None,
        }
    }
}

impl<D, C> Builder<D, C> {
    /// Sets the number of samples per batch; 1 by default. With several ranks, it is the batch size of each rank.
    pub fn batch_size(mut self, batch_size: usize) -> Self {
        self.batch_size = Some(batch_size);
        self
    }

    /// Sets the number of samples in a global batch, which is that of all ranks together; excludes [`batch_size`](Builder::batch_size). The
    /// number of ranks must divide it. A run then sees the same batches on any number of ranks. If [`pin_memory`](Builder::pin_memory)
    /// names several devices, they count as ranks do, as in an epoch that is [split](crate::loader::Epoch::split).
    pub fn global_batch_size(mut self, batch_size: usize) -> Self {
        self.global_batch_size = Some(batch_size);
        self
    }

    /// Gives the samples in a random order, a new one in each epoch ([`RandomSampler`](crate::sampler::RandomSampler)); off by default. If
    /// the data set is read by the block, the order is a [`BlockSampler`](crate::sampler::BlockSampler)'s.
    pub fn shuffle(mut self, shuffle: bool) -> Self {
        self.shuffle = shuffle;
        self
    }

    /// Seeds the order and the samples' generators; 0 by default. Equal seeds give equal epochs. A [`sampler`](Builder::sampler) is told it,
    /// too ([`Sampler::set_seed`]).
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Sets the order of the samples; excludes [`shuffle`](Builder::shuffle).
    pub fn sampler(mut self, sampler: impl Sampler) -> Self {
        self.sampler = Some(Arc::new(sampler));
        self
    }

    /// Sets which samples each batch has, batch by batch; excludes [`batch_size`](Builder::batch_size),
    /// [`global_batch_size`](Builder::global_batch_size), [`shuffle`](Builder::shuffle) and [`sampler`](Builder::sampler).
    /// `Vec<Vec<u64>>` is one; [`sampler`](crate::sampler) has others.
    ///
    /// Of `R` ranks, rank `r` gets lists `r`, `r + R`, `r + 2 R`, and so on. If `R` does not divide their number,
    /// [`last_batch`](Builder::last_batch) says what becomes of the last ones: [`Drop`](LastBatch::Drop) leaves them out; otherwise
    /// each rank without a list gets one filler row. The lists stay whole, whatever their sizes.
    ///
    /// # Examples
    ///
    /// ```
    /// use pinfeed::{DataLoader, from_fn};
    ///
    /// let samples = from_fn(10, |index, _| Ok(index as i64));
    /// let lists = vec![vec![0, 1, 2], vec![7], vec![9, 8]];
    /// let loader = DataLoader::builder(samples).batch_sampler(lists).build()?;
    /// let seen: Vec<_> = loader.epoch(0).map(|batch| Ok(batch?.to_vec())).collect::<pinfeed::Result<_>>()?;
    /// assert_eq!(seen, [&[0, 1, 2][..], &[7], &[9, 8]]);
    /// # Ok::<(), pinfeed::Error>(())
    /// ```
    pub fn batch_sampler(mut self, batch_sampler: impl BatchSampler) -> Self {
        self.batch_sampler = Some(Arc::new(batch_sampler));
        self
    }

    /// Sets what becomes of an empty list of the [`batch_sampler`](Builder::batch_sampler); by default, its batch is an error
    /// ([`OnEmpty::Fail`]). Needs a `batch_sampler`.
    pub fn on_empty(mut self, on_empty: OnEmpty) -> Self {
        self.on_empty = Some(on_empty);
        self
    }

    /// Sets the number of worker threads; 0 by default: batches are then loaded on the caller's thread, on demand.
    /// [`Workers::Auto`] leaves the number to the loader. Raise a number of your own if
    /// [`DataLoader::stats`](crate::DataLoader::stats) says that loading limits the loop.
    ///
    /// Neither the order nor the content of batches depends on it. On Linux, workers run five steps of `nice` behind the thread that
    /// builds the loader: where cores are few, the thread that launches the GPU's work comes first. (So do threads that your
    /// [`get`](crate::Dataset::get) starts.) Each worker takes 16 MiB of address space (not of memory) for its
    /// stack; [`build`](Builder::build) refuses more workers than the system has address space and mappings for.
    pub fn num_workers(mut self, num_workers: impl Into<Workers>) -> Self {
        self.num_workers = num_workers.into();
        self
    }

    /// Sets where the loader's threads run: by default, wherever the process may. They never run where the process may not
    /// (`taskset`, a control group's set of cores). [`DataLoader::placement`](crate::DataLoader::placement) says what became of it. Set it on
    /// machines with several sockets ([`Affinity::Device`]), or to leave cores to other programs ([`Affinity::Cores`]).
    pub fn affinity(mut self, affinity: Affinity) -> Self {
        self.affinity = affinity;
        self
    }

    /// Sets how many batches are loaded ahead of the consumer, by all workers together. Default: 2, and up to 64 small ones if they are
    /// made faster than the program takes them one by one. Needs workers.
    ///
    /// Raise it if some samples take much longer than others. While one sample is slow, workers load all others of these batches, and then
    /// wait for it: if some samples take as long as `n` batches do otherwise, `n + 1` batches ahead keep the loop going. Each batch ahead
    /// takes memory, page-locked with [`pin_memory`](Builder::pin_memory); [`max_bytes_in_flight`](Builder::max_bytes_in_flight) limits
    /// that in bytes, and then the default is 2.
    ///
    /// (PyTorch's `prefetch_factor` counts per worker; here workers share batches.)
    pub fn prefetch(mut self, prefetch: usize) -> Self {
        self.prefetch = Some(prefetch);
        self
    }

    /// Leaves out the last batch of an epoch if it has fewer samples than the others; off by default.
    ///
    /// If there are fewer samples than one batch has, epochs are empty, and the log warns when the loader is built.
    pub fn drop_last(mut self, drop_last: bool) -> Self {
        self.last_batch = match drop_last {
            true => LastBatch::Drop,
            false => LastBatch::Partial,
        };
        self
    }

    /// Sets what becomes of the last batch of an epoch if there are not enough samples to fill it:
    /// [`Partial`](LastBatch::Partial) by default. [`drop_last`](Builder::drop_last) chooses between two of them; of several calls, the
    /// last counts.
    pub fn last_batch(mut self, last_batch: LastBatch) -> Self {
        self.last_batch = last_batch;
        self
    }

    /// Loads this rank's share of each global batch; by default, this process is the only one.
    ///
    /// All ranks share one order: of each `data_ranks * batch_size` samples, rank 0 gets the first `batch_size`, rank 1 the next, and so
    /// on ([`Sharding`]). So all ranks together see what one rank would see with batches as large, and each sample has the same random
    /// numbers. All of them must be given the same data set, seed, batch size and sampler, and then have equally many batches
    /// ([`DataLoader::len`](crate::DataLoader::len)), whatever becomes of the last ([`LastBatch`]).
    ///
    /// # Examples
    ///
    /// ```
    /// use pinfeed::loader::World;
    /// use pinfeed::{DataLoader, from_fn};
    ///
    /// let world = World::new(1, 2)?; // or World::from_env()?
    /// let loader = DataLoader::builder(from_fn(20, |index, _| Ok(index as i64)))
    ///     .batch_size(3)
    ///     .drop_last(true)
    ///     .world(world)
    ///     .build()?;
    /// let seen: Vec<_> = loader.epoch(0).map(|batch| Ok(batch?.as_slice().to_vec())).collect::<pinfeed::Result<_>>()?;
    /// assert_eq!(seen, [[3, 4, 5], [9, 10, 11], [15, 16, 17]]);
    /// # Ok::<(), pinfeed::Error>(())
    /// ```
    pub fn world(mut self, world: World) -> Self {
        self.world = world;
        self
    }

    /// Sets how ranks share the samples of a global batch: [`Slices`](Sharding::Slices) by default, and
    /// [`Interleaved`](Sharding::Interleaved) where the order has [tracks](Sampler::tracks), as that of a data set's blocks has.
    pub fn sharding(mut self, sharding: Sharding) -> Self {
        self.sharding = Some(sharding);
        self
    }

    /// Sets what becomes of a sample that fails to load; by default its batch is an error.
    pub fn on_error(mut self, on_error: OnError) -> Self {
        self.on_error = on_error;
        self
    }

    /// Limits the share of an epoch's samples that [`on_error`](Builder::on_error) may replace or leave out; no limit by default.
    ///
    /// From the batch on with which `after` samples were counted, and with an epoch's last batch in any case, at most `share` of the
    /// samples so far may be bad. The batch that exceeds it is an error in its place ([`Error::TooManyBad`](crate::Error::TooManyBad)), and
    /// ends the epoch. The run stands before that batch ([`state`](crate::DataLoader::state)), so that nothing of it is lost when the data
    /// is mended, or the limit. (Of an iterable whose end is found with too many, the error comes behind its last batch.)
    ///
    /// `after` is for the beginning of an epoch, where one bad sample of a batch of ten is a tenth: some hundred for 1 %.
    ///
    /// Samples are counted as their batches are given out, so the same batch ends the epoch whatever the number of workers, unless
    /// [`in_order`](Builder::in_order) is off. They are counted for each epoch and each rank (and for each part of an epoch that is
    /// [split](crate::loader::Epoch::split)), and anew in an epoch that is resumed. A sample that was replaced counts once, however many
    /// others failed in its place. [`OnError`]'s own quota `at_most` holds as well: `u64::MAX` leaves it to this one.
    ///
    /// # Examples
    ///
    /// ```
    /// use pinfeed::loader::OnError;
    /// use pinfeed::{DataLoader, Error, from_fn};
    ///
    /// let samples = from_fn(10_000, |index, _| match index {
    ///     4_000.. if index % 2 == 0 => Err("the disk is gone".into()), // from here on, half of them
    ///     index => Ok(index as i64),
    /// });
    /// let loader = DataLoader::builder(samples)
    ///     .batch_size(100)
    ///     .on_error(OnError::Skip { at_most: u64::MAX })
    ///     .bad_share_at_most(0.01, 1_000)
    ///     .build()?;
    /// let mut epoch = loader.epoch(0);
    /// assert!(epoch.by_ref().take(40).all(|batch| batch.is_ok()));
    /// let error = epoch.next().unwrap().unwrap_err();
    /// assert!(matches!(error, Error::TooManyBad { bad: 50, samples: 4_100, .. }));
    /// assert!(epoch.next().is_none());
    /// # Ok::<(), pinfeed::Error>(())
    /// ```
    pub fn bad_share_at_most(mut self, share: f64, after: u64) -> Self {
        self.bad_share = Some(BadShare { most: share, after });
        self
    }

    /// Retries a sample whose error is temporary, up to `attempts` more times. The first retry comes after `first_wait`, each further one
    /// after twice as long as the one before, but at most 30 s. Off by default.
    ///
    /// An error is temporary if it is marked so ([`Temporary`](crate::error::Temporary)), or if it is one of the system's errors of
    /// networks and network file systems ([`io::ErrorKind`](std::io::ErrorKind): `TimedOut`, `ConnectionReset`, `StaleNetworkFileHandle`,
    /// ...); an error's causes count as well. The sample draws the same random numbers each time. If the last attempt fails, too,
    /// [`on_error`](Builder::on_error) applies. [`BadSampleStats::retried`](crate::loader::BadSampleStats::retried) counts the retries.
    ///
    /// The worker sleeps between attempts, which counts in the sample's [`timeout`](Builder::timeout). Dropping the loader ends the sleep.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::sync::atomic::{AtomicU64, Ordering};
    /// use std::time::Duration;
    ///
    /// use pinfeed::error::Temporary;
    /// use pinfeed::{DataLoader, from_fn};
    ///
    /// let calls = AtomicU64::new(0);
    /// let samples = from_fn(8, move |index, _| match calls.fetch_add(1, Ordering::Relaxed) {
    ///     3 => Err(Temporary::new("503 Service Unavailable").into()),
    ///     _ => Ok(index as i64),
    /// });
    /// let loader = DataLoader::builder(samples).batch_size(4).retry(3, Duration::from_millis(1)).build()?;
    /// assert!(loader.epoch(0).all(|batch| batch.is_ok()));
    /// assert_eq!(loader.stats().bad.retried, 1);
    /// # Ok::<(), pinfeed::Error>(())
    /// ```
    pub fn retry(mut self, attempts: u32, first_wait: Duration) -> Self {
        (self.retry.0, self.retry.1) = (attempts, first_wait);
        self
    }

    /// Limits the number of retries in an epoch, over all samples; no limit by default.
    ///
    /// Use it if a server may be gone: otherwise each of its samples waits for all of its attempts. When the quota is used up, the log says
    /// so, and a sample that fails is not retried. As with [`OnError`]'s quotas, it is for each epoch, on each rank, and which samples were
    /// retried when it is used up may differ from run to run.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use pinfeed::error::Temporary;
    /// use pinfeed::{DataLoader, from_fn};
    ///
    /// let samples = from_fn(1_000, |_, _| Err::<i64, _>(Temporary::new("503 Service Unavailable").into()));
    /// let loader = DataLoader::builder(samples)
    ///     .batch_size(100)
    ///     .retry(5, Duration::from_millis(1))
    ///     .retry_at_most(8)
    ///     .build()?;
    /// assert!(loader.epoch(0).all(|batch| batch.is_err()));
    /// assert_eq!(loader.stats().bad.retried, 8);
    /// # Ok::<(), pinfeed::Error>(())
    /// ```
    pub fn retry_at_most(mut self, in_an_epoch: u64) -> Self {
        self.retry.2 = in_an_epoch;
        self
    }

    /// Collates batches in page-locked memory, from which copies to the device run while the program goes on. Off by default; switch it on
    /// wherever batches go to a GPU.
    ///
    /// Batches are built in place, so it costs no copy. (Only what a `collate_fn` builds elsewhere is copied, by a thread of the loader's.)
    /// The block of memory that a batch is built in, its *slab*, is used again when the batch was copied and dropped; small batches may
    /// share one. An epoch holds the memory of `prefetch` + 3 batches at most, or of `prefetch` + `depth` + 2 if it is sent ahead
    /// ([`Epoch::prefetch_to_device`](crate::loader::Epoch::prefetch_to_device)), or 9 MiB if that is more and `prefetch` is not set.
    /// All loaders of a device share its budget ([`Device::set_pinned_budget_bytes`]).
    ///
    /// If the program holds all slabs and waits for one more batch, that batch is in pageable memory:
    /// [`Tensor::is_pinned`](crate::Tensor::is_pinned) says so, the statistics count it, and the log warns once.
    /// [`strict_pinning`](Builder::strict_pinning) makes it an error instead.
    ///
    /// # Several devices
    ///
    /// `&[first, second]` or a `Vec` names several: batches are page-locked for the device that they go to, and
    /// [`Epoch::split`](crate::loader::Epoch::split) gives each device its part of an epoch. Loading waits until it is known where the
    /// batches go.
    ///
    /// # Errors
    ///
    /// [`build`](Builder::build) returns [`Error::InvalidOption`](crate::Error::InvalidOption) if the list is empty, as a list of a
    /// machine's GPUs may be. For batches in pageable memory, leave the call out; [`Device::available`] is the CPU where there is no GPU.
    pub fn pin_memory(mut self, devices: &(impl AsRef<[Device]> + ?Sized)) -> Self {
        self.devices = devices.as_ref().to_vec();
        self.names_no_device = self.devices.is_empty();
        self
    }

    /// Makes a batch that cannot be page-locked an error ([`Error::Pinned`](crate::Error::Pinned)); off by default, and the batch is in
    /// pageable memory, from which copies are slower. Switch it on to be told that the program holds too many batches, or that the budget
    /// is too small. Needs [`pin_memory`](Builder::pin_memory).
    pub fn strict_pinning(mut self, strict: bool) -> Self {
        self.strict = strict;
        self
    }

    /// Builds batches in pageable memory and copies them to page-locked memory, by a thread of the loader's, instead of building them in
    /// place; off by default. The result is the same, but comes later: it shows what building in place is worth. Needs
    /// [`pin_memory`](Builder::pin_memory).
    pub fn pin_by_copy(mut self, by_copy: bool) -> Self {
        self.by_copy = by_copy;
        self
    }

    /// Sets the least size, in bytes, of the blocks of page-locked memory that batches are built in (slabs). Default: that of the largest
    /// batch so far, or somewhat more. Needs [`pin_memory`](Builder::pin_memory).
    ///
    /// Set it to the size of the largest batch where batches differ in size: page-locking memory takes long, and then none is page-locked
    /// any more after the first batches, however large later ones are. It also begins earlier, when the loader is built.
    ///
    /// # Errors
    ///
    /// [`build`](Builder::build) refuses more than the memory that the process may use.
    pub fn min_slab_bytes(mut self, bytes: usize) -> Self {
        self.min_slab_bytes = Some(bytes);
        self
    }

    /// Makes a sample that takes longer than this an error ([`Error::TimedOut`](crate::Error::TimedOut)): one that reads from a server that
    /// is gone, or is in a deadlock. The error takes the batch's place, and later batches come. By default, a sample may take any time, and
    /// only the log says after 30 seconds what the program waits for. Needs workers.
    ///
    /// The time is that of one sample, from asking the sampler to its filled row (decoding too). Making a batch of its rows, or the
    /// `collate_fn`, may take as long once more, and so may laying out a batch whose samples differ. Waiting for memory does not count.
    /// Choose a time well above that of the slowest good sample.
    ///
    /// A call of [`Dataset::get_many`](crate::Dataset::get_many) may take as long as all of its samples together, with those that are retried
    /// ([`retry`](Builder::retry)), because the loader cannot see which sample it is at. If it hangs, the error comes after that time, and
    /// names all of its samples. So with [`at_once`](crate::Dataset::at_once) of 100 and a timeout of 10 seconds, a query that hangs is noticed
    /// after 1,000 seconds: give it a time limit of its own.
    ///
    /// # What becomes of the thread
    ///
    /// A thread cannot be stopped from outside. A worker that hangs is abandoned, and a new one takes its place at once. (If the system
    /// starts none, the log says so; with no worker left, all batches are errors, so an epoch always ends.) The abandoned thread keeps what
    /// it uses until its call returns, and then ends: the data set, the loader's device, and the batch's memory. If many hang, later
    /// batches may therefore be unpinned, as if the program held theirs.
    ///
    /// # A device that decodes
    ///
    /// The time also limits a device's decoder (`Decode::Device` of pictures, with the feature `nvjpeg`): a batch that was sent there is an
    /// error ([`Stage::Decoding`](crate::error::Stage::Decoding)) if the decoder takes longer than this for one step, which is a chunk of
    /// up to 256 pictures, or opening it (nvJPEG takes up to a second). For a batch that waits behind others, the time begins when these
    /// are decoded. The decoder cannot be stopped: it keeps what it has of such a batch (its memory here and on the device, and the files),
    /// and batches that are sent later wait for it, each for as long. When it comes back, they are decoded. Dropping the loader does not
    /// wait for it, but dropping the last handle of the [`Device`] does.
    ///
    /// # Dropping the loader
    ///
    /// Dropping the loader waits for no sample longer than the timeout. Without one it waits for each worker's current run, however long
    /// that takes.
    ///
    /// # Synchronization
    ///
    /// Late samples are detected by the call that waits for a batch, when the first of them is due; no thread polls. With a timeout, the
    /// clock is read for each sample.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::sync::mpsc;
    /// use std::sync::Mutex;
    /// use std::time::Duration;
    ///
    /// use pinfeed::{DataLoader, Error, from_fn};
    ///
    /// let (answer, server) = mpsc::channel::<()>();
    /// let server = Mutex::new(server);
    /// let samples = from_fn(6, move |index, _| {
    ///     if index == 2 {
    ///         let _ = server.lock().map(|server| server.recv()); // no answer comes
    ///     }
    ///     Ok(index as i64)
    /// });
    /// let loader = DataLoader::builder(samples)
    ///     .batch_size(2)
    ///     .num_workers(2)
    ///     .timeout(Duration::from_millis(50))
    ///     .build()?;
    /// let batches: Vec<_> = loader.epoch(0).collect();
    /// assert_eq!(batches.len(), 3);
    /// match &batches[1] {
    ///     Err(Error::TimedOut(late)) => println!("{}", batches[1].as_ref().unwrap_err()),
    ///     other => panic!("{other:?}"),
    /// }
    /// assert_eq!(batches[2].as_ref().unwrap().as_slice(), [4, 5]);
    /// drop(loader); // does not wait for it
    /// drop(answer);
    /// # Ok::<(), pinfeed::Error>(())
    /// ```
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// The machine's files are in this folder, and the loader's device has this address: for [`Affinity::Device`].
    #[cfg(feature = "testing")]
    #[doc(hidden)]
    pub fn machine(mut self, root: &std::path::Path, pci_address: &str) -> Self {
        self.machine = Some(Machine {
            root: root.to_owned(),
            pci_address: pci_address.to_owned(),
        });
        self
    }

    /// How many cores [`Workers::Auto`] finds.
    #[cfg(feature = "testing")]
    #[doc(hidden)]
    pub fn cores(mut self, cores: usize) -> Self {
        self.cores = Some(cores);
        self
    }

    /// How long the program waits for a batch before the log says for what.
    #[cfg(feature = "testing")]
    #[doc(hidden)]
    pub fn watchdog(mut self, patience: Duration) -> Self {
        self.patience = Some(patience);
        self
    }
}

impl<D, C> fmt::Debug for Builder<D, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("batch_size", &self.batch_size)
            .field("shuffle", &self.shuffle)
            .field("num_workers", &self.num_workers)
            .field("pin_memory", &self.devices)
            .finish_non_exhaustive()
    }
}
