//! One loader, several devices: each has an epoch of its own, and a share of the batches.

use super::Epoch;
use super::device::DeviceEpoch;
use crate::batch::Batch;
use crate::device::Target;
use crate::loader::inner::Loader;
use crate::loader::pace::{Lead, Pace};
use crate::pipeline::{Beginning, DeviceShard, Options};
use crate::sync::{Arc, Ordering};

impl<'a, B: Batch> Epoch<'a, B> {
    /// Shares the epoch's batches that are to come among devices: gives an epoch for each, to be iterated on a thread of its own.
    ///
    /// All have equally many batches, each of [`batch_size`](crate::loader::Builder::batch_size) samples: the loader shares an epoch among
    /// devices as it does among [ranks](crate::loader::World). Device `d` of `D` on rank `r` has what a process of its own would have as
    /// rank `r * D + d`, order and random numbers included, and [`last_batch`](crate::loader::Builder::last_batch) says what becomes of the
    /// last ones.
    ///
    /// With [`in_order(false)`](crate::loader::Builder::in_order), each device gets its batches in any order; a state then says only which
    /// batches all devices have had, and others that were given out come again. On several ranks, it holds within the epoch for as many
    /// devices ([what it says in any order](crate::loader::LoaderState#in-any-order)).
    ///
    /// Batches are sent to their device as [`prefetch_to_device`](Epoch::prefetch_to_device) does, up to `depth` ahead. Name all of the
    /// devices in [`pin_memory`](crate::loader::Builder::pin_memory): then each has page-locked memory of its own, and nothing is loaded
    /// before this call. Workers serve all of them, first those that are waited for.
    ///
    /// [`DataLoader::state`](crate::DataLoader::state) is that of the device that is furthest behind. It is exact where all have taken
    /// equally many batches; otherwise, what others took beyond that comes again in a resumed run.
    /// [`DataLoader::stats`](crate::DataLoader::stats) covers all of them.
    ///
    /// # Synchronization
    ///
    /// Returns at once. The epochs do not wait for each other; what limits how far one may fall behind is the program. Dropping one stops
    /// its loading alone. Without workers, each thread loads what it asks for.
    ///
    /// # Examples
    ///
    /// ```
    /// use pinfeed::{DataLoader, Device, from_fn};
    ///
    /// let devices = [Device::cpu(), Device::cpu()]; // or Device::cuda(0)?, Device::cuda(1)?
    /// let loader = DataLoader::builder(from_fn(1_000, |index, _| Ok(index as i64)))
    ///     .batch_size(50) // on each device
    ///     .shuffle(true)
    ///     .num_workers(2)
    ///     .pin_memory(&devices)
    ///     .build()?;
    ///
    /// let steps = std::thread::scope(|scope| {
    ///     let epochs = loader.epoch(0).split(&devices, 2).into_iter();
    ///     let trained: Vec<_> = epochs
    ///         .map(|epoch| {
    ///             scope.spawn(move || -> pinfeed::Result<usize> {
    ///                 let mut steps = 0;
    ///                 for batch in epoch {
    ///                     let _numbers = batch?; // on this thread's device
    ///                     steps += 1;
    ///                 }
    ///                 Ok(steps)
    ///             })
    ///         })
    ///         .collect();
    ///     trained.into_iter().map(|thread| thread.join().unwrap()).collect::<pinfeed::Result<Vec<_>>>()
    /// })?;
    /// assert_eq!(steps, [10, 10]);
    /// # Ok::<(), pinfeed::Error>(())
    /// ```
    pub fn split<T>(self, targets: &[T], depth: usize) -> Vec<DeviceEpoch<'a, B>>
    where
        for<'t> &'t T: Into<Target>,
    {
        let (loader, start) = (self.reference().clone(), self.reached());
        let start = start.shared(targets.len(), loader.pipeline().options().shards);
        let lead = Lead::new(self.gives_way());
        drop(self);
        let shares = shares(&loader, targets).into_iter();
        let epochs = shares.map(|(share, target)| {
            let beginning = Beginning {
                start,
                state: None,
                is_followed: false,
                share,
                is_apart: false,
            };
            let pace = Some(Pace::of(&lead));
            Epoch::begin(loader.clone(), beginning, pace).prefetch_to_device(target, depth)
        });
        epochs.collect()
    }
}

/// The share of each device.
pub(in crate::loader) fn shares<T, B: Batch>(
    loader: &Loader<'_, B>,
    targets: &[T],
) -> Vec<(DeviceShard, Target)>
where
    for<'t> &'t T: Into<Target>,
{
    let split = loader.get().splits.fetch_add(1, Ordering::Relaxed) + 1;
    let targets: Vec<Target> = targets.iter().map(Into::into).collect();
    let of = targets.len() as u64;
    let options = &loader.pipeline().options;
    let is = |own: &Options, target: &Target| {
        let own = own.pinning.as_ref();
        own.is_some_and(|own| Arc::ptr_eq(&own.device.inner, &target.device().inner))
    };
    let share = |(index, target): (usize, Target)| {
        let device = options.iter().position(|own| is(own, &target));
        let share = DeviceShard {
            // One that the loader does not pin for gets its batches from the first one's ring.
            device: device.unwrap_or(0),
            index: index as u64,
            of,
            split,
        };
        (share, target)
    };
    targets.into_iter().enumerate().map(share).collect()
}
