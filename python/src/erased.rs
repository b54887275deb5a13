//! Loaders and epochs whatever their batches' types are.

use std::sync::Arc;
use std::time::Duration;

use pinfeed::loader::{DeviceEpoch, DeviceEpochs, Epoch, Epochs, LoaderState, Stats, TryNext};
use pinfeed::{DataLoader, Device, Result};

use crate::options::Options;
use crate::picture::Finish;
use crate::tree::{DeviceLeaf, HostLeaf, IntoTree, Tree};

/// The numbers of epochs.
type Numbers = std::ops::RangeFrom<u64>;

/// A batch, on its way to Python.
pub(crate) enum Handed {
    Host(Tree<HostLeaf>),
    Device(Tree<DeviceLeaf>),
}

/// A loader.
pub(crate) trait AnyLoader: Send + Sync {
    fn len(&self) -> usize;

    fn batch_size(&self) -> usize;

    /// Epochs from this one on.
    fn epochs(&self, first: u64) -> Box<dyn AnyEpochs>;

    /// One epoch, of which none follows.
    fn epoch(&self, number: u64) -> Box<dyn AnyEpoch>;

    /// Epochs from where a run stood.
    fn resume(&self, state: &LoaderState) -> Result<Box<dyn AnyEpochs>>;

    fn state(&self) -> LoaderState;

    fn stats(&self) -> Stats;

    fn total_stats(&self) -> Stats;
}

/// Epochs that follow each other.
pub(crate) trait AnyEpochs: Send {
    fn next(&mut self) -> Option<Box<dyn AnyEpoch>>;
}

/// An epoch.
pub(crate) trait AnyEpoch: Send {
    fn next(&mut self, timeout: Duration) -> TryNext<Result<Handed>>;

    fn number(&self) -> u64;

    fn state(&self) -> LoaderState;

    fn stats(&self) -> Stats;
}

/// A loader of a data set with an index.
pub(crate) struct Indexed<B: IntoTree> {
    loader: Arc<DataLoader<B>>,
    device: Option<Device>,
    depth: usize,
    /// What the device makes of the first tensor of a batch, which is pictures.
    finish: Option<Arc<Finish>>,
}

impl<B: IntoTree> Indexed<B> {
    pub(crate) fn new(loader: Arc<DataLoader<B>>, options: &Options) -> Indexed<B> {
        Indexed {
            loader,
            device: options.device.clone(),
            depth: options.depth,
            finish: None,
        }
    }

    /// The first tensor of each batch is pictures, of which the device makes this.
    pub(crate) fn finished_by(mut self, finish: Option<Arc<Finish>>) -> Indexed<B> {
        self.finish = finish;
        self
    }

    fn sent(&self, epochs: Epochs<'static, B, Numbers>) -> Box<dyn AnyEpochs> {
        match &self.device {
            Some(device) => Box::new(Sent {
                inner: epochs.prefetch_to_device(device, self.depth),
                finish: self.finish.clone(),
            }),
            None => Box::new(epochs),
        }
    }
}

impl<B: IntoTree> AnyLoader for Indexed<B> {
    fn len(&self) -> usize {
        self.loader.len()
    }

    fn batch_size(&self) -> usize {
        self.loader.batch_size()
    }

    fn epochs(&self, first: u64) -> Box<dyn AnyEpochs> {
        self.sent(self.loader.owned_epochs(first..))
    }

    fn epoch(&self, number: u64) -> Box<dyn AnyEpoch> {
        let epoch = self.loader.owned_epoch(number);
        match &self.device {
            Some(device) => Box::new(Sent {
                inner: epoch.prefetch_to_device(device, self.depth),
                finish: self.finish.clone(),
            }),
            None => Box::new(epoch),
        }
    }

    fn resume(&self, state: &LoaderState) -> Result<Box<dyn AnyEpochs>> {
        let epochs = self.loader.owned_resume(state.epoch().., state)?;
        Ok(self.sent(epochs))
    }

    fn state(&self) -> LoaderState {
        self.loader.state()
    }

    fn stats(&self) -> Stats {
        self.loader.stats()
    }

    fn total_stats(&self) -> Stats {
        self.loader.total_stats()
    }
}

impl<B: IntoTree> AnyEpochs for Epochs<'static, B, Numbers> {
    fn next(&mut self) -> Option<Box<dyn AnyEpoch>> {
        let epoch = Iterator::next(self)?;
        Some(Box::new(epoch))
    }
}

/// Epochs, or one, whose batches go to a device.
struct Sent<E> {
    inner: E,
    finish: Option<Arc<Finish>>,
}

impl<B: IntoTree> AnyEpochs for Sent<DeviceEpochs<'static, B, Numbers>> {
    fn next(&mut self) -> Option<Box<dyn AnyEpoch>> {
        let inner = self.inner.next()?;
        let finish = self.finish.clone();
        Some(Box::new(Sent { inner, finish }))
    }
}

fn map<T, U>(next: TryNext<Result<T>>, f: impl FnOnce(T) -> U) -> TryNext<Result<U>> {
    match next {
        TryNext::Batch(batch) => TryNext::Batch(batch.map(f)),
        TryNext::NotYet => TryNext::NotYet,
        TryNext::End => TryNext::End,
    }
}

impl<B: IntoTree> AnyEpoch for Epoch<'static, B> {
    fn next(&mut self, timeout: Duration) -> TryNext<Result<Handed>> {
        map(self.next_timeout(timeout), |batch| {
            Handed::Host(batch.into_tree())
        })
    }

    fn number(&self) -> u64 {
        Epoch::number(self)
    }

    fn state(&self) -> LoaderState {
        Epoch::state(self)
    }

    fn stats(&self) -> Stats {
        Epoch::stats(self)
    }
}

impl<B: IntoTree> AnyEpoch for Sent<DeviceEpoch<'static, B>> {
    fn next(&mut self, timeout: Duration) -> TryNext<Result<Handed>> {
        map(self.inner.next_timeout(timeout), |batch| {
            let mut finish = self.finish.clone();
            let tree = B::device_tree(batch);
            Handed::Device(tree.map(&mut |leaf: DeviceLeaf| DeviceLeaf {
                finish: leaf.finish.or_else(|| finish.take()),
                ..leaf
            }))
        })
    }

    fn number(&self) -> u64 {
        self.inner.number()
    }

    fn state(&self) -> LoaderState {
        self.inner.state()
    }

    fn stats(&self) -> Stats {
        self.inner.stats()
    }
}
