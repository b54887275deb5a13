//! Loaders and epochs whatever their batches' types are.

use std::sync::Arc;
use std::time::Duration;

use pinfeed::loader::{
    DeviceEpoch, DeviceEpochs, Epoch, Epochs, Indexed, Iterable, IterableState, Kind, LoaderState,
    Stats, TryNext,
};
use pinfeed::{DataLoader, Device, Result};

use crate::options::Options;
use crate::picture::Finish;
use crate::tree::{DeviceLeaf, HostLeaf, IntoTree, Tree};

/// The numbers of epochs.
type Numbers = std::ops::Range<u64>;

/// A batch, on its way to Python.
pub(crate) enum Handed {
    Host(Tree<HostLeaf>),
    Device(Tree<DeviceLeaf>),
}

/// Where a run stands.
#[derive(Clone)]
pub(crate) enum RunState {
    Indexed(LoaderState),
    Iterable(IterableState),
}

impl RunState {
    pub(crate) fn epoch(&self) -> u64 {
        match self {
            RunState::Indexed(state) => state.epoch(),
            RunState::Iterable(state) => state.epoch(),
        }
    }

    /// How many samples of that epoch were given, of all ranks; of an iterable, to this rank.
    pub(crate) fn position(&self) -> u64 {
        match self {
            RunState::Indexed(state) => state.position(),
            RunState::Iterable(state) => state.items(),
        }
    }
}

impl std::fmt::Display for RunState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            RunState::Indexed(state) => state.fmt(f),
            RunState::Iterable(state) => state.fmt(f),
        }
    }
}

/// What the kinds of loaders differ in.
pub(crate) trait AnyKind: Kind {
    /// The number of batches of an epoch, if it is known.
    fn len<B: IntoTree>(loader: &DataLoader<B, Self>) -> Option<usize>;

    fn wrapped(state: Self::State) -> RunState;

    /// The state, if it is of this kind.
    fn unwrapped(state: &RunState) -> Option<&Self::State>;
}

impl AnyKind for Indexed {
    fn len<B: IntoTree>(loader: &DataLoader<B>) -> Option<usize> {
        Some(loader.len())
    }

    fn wrapped(state: LoaderState) -> RunState {
        RunState::Indexed(state)
    }

    fn unwrapped(state: &RunState) -> Option<&LoaderState> {
        match state {
            RunState::Indexed(state) => Some(state),
            RunState::Iterable(_) => None,
        }
    }
}

impl AnyKind for Iterable {
    fn len<B: IntoTree>(_: &DataLoader<B, Iterable>) -> Option<usize> {
        None
    }

    fn wrapped(state: IterableState) -> RunState {
        RunState::Iterable(state)
    }

    fn unwrapped(state: &RunState) -> Option<&IterableState> {
        match state {
            RunState::Iterable(state) => Some(state),
            RunState::Indexed(_) => None,
        }
    }
}

/// A loader.
pub(crate) trait AnyLoader: Send + Sync {
    /// `None`: it is not known how many batches an epoch has.
    fn len(&self) -> Option<usize>;

    fn batch_size(&self) -> usize;

    /// Epochs from this one on.
    fn epochs(&self, first: u64) -> Box<dyn AnyEpochs>;

    /// One epoch, of which none follows.
    fn epoch(&self, number: u64) -> Box<dyn AnyEpoch>;

    /// Epochs from where a run stood.
    /// `prepares`: the epochs behind it follow, and are loaded ahead; otherwise there is this one.
    fn resume(&self, state: &RunState, prepares: bool) -> Result<Box<dyn AnyEpochs>>;

    fn state(&self) -> RunState;

    /// A state of this kind of loader's, from its text.
    fn read_state(&self, text: &str) -> Result<RunState>;

    fn stats(&self) -> Stats;

    fn total_stats(&self) -> Stats;
}

/// Epochs that follow each other.
pub(crate) trait AnyEpochs: Send {
    fn next(&mut self) -> Option<Box<dyn AnyEpoch>>;
}

/// An epoch.
pub(crate) trait AnyEpoch: Send {
    /// Of a device's batches, [`wake_workers`](AnyEpoch::wake_workers) is to follow, behind the hand-over.
    fn next(&mut self, timeout: Duration) -> TryNext<Result<Handed>>;

    fn wake_workers(&self) {}

    fn number(&self) -> u64;

    fn state(&self) -> RunState;

    fn stats(&self) -> Stats;
}

/// A loader of batches that become trees.
pub(crate) struct Loaded<B: IntoTree, K: Kind = Indexed> {
    loader: Arc<DataLoader<B, K>>,
    device: Option<Device>,
    depth: usize,
    /// What the device makes of the first tensor of a batch, which is pictures.
    finish: Option<Arc<Finish>>,
}

impl<B: IntoTree, K: AnyKind> Loaded<B, K> {
    pub(crate) fn new(loader: Arc<DataLoader<B, K>>, options: &Options) -> Loaded<B, K> {
        Loaded {
            loader,
            device: options.device.clone(),
            depth: options.depth,
            finish: None,
        }
    }

    /// The first tensor of each batch is pictures, of which the device makes this.
    pub(crate) fn finished_by(mut self, finish: Option<Arc<Finish>>) -> Loaded<B, K> {
        self.finish = finish;
        self
    }

    fn sent(&self, epochs: Epochs<'static, B, Numbers, K>) -> Box<dyn AnyEpochs> {
        match &self.device {
            Some(device) => Box::new(Sent {
                inner: epochs.prefetch_to_device(device, self.depth),
                finish: self.finish.clone(),
            }),
            None => Box::new(epochs),
        }
    }
}

impl<B: IntoTree, K: AnyKind> AnyLoader for Loaded<B, K> {
    fn len(&self) -> Option<usize> {
        K::len(&self.loader)
    }

    fn batch_size(&self) -> usize {
        self.loader.batch_size()
    }

    fn epochs(&self, first: u64) -> Box<dyn AnyEpochs> {
        self.sent(self.loader.owned_epochs(first..u64::MAX))
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

    fn resume(&self, state: &RunState, prepares: bool) -> Result<Box<dyn AnyEpochs>> {
        let first = state.epoch();
        let end = match prepares {
            true => u64::MAX,
            false => first.saturating_add(1),
        };
        let first = first..end;
        let epochs = match K::unwrapped(state) {
            Some(state) => self.loader.owned_resume(first, state)?,
            // (None of this kind's: `read_state` has refused it.)
            None => self
                .loader
                .owned_resume(first, &state.to_string().parse()?)?,
        };
        Ok(self.sent(epochs))
    }

    fn state(&self) -> RunState {
        K::wrapped(self.loader.state())
    }

    fn read_state(&self, text: &str) -> Result<RunState> {
        text.parse().map(K::wrapped)
    }

    fn stats(&self) -> Stats {
        self.loader.stats()
    }

    fn total_stats(&self) -> Stats {
        self.loader.total_stats()
    }
}

impl<B: IntoTree, K: AnyKind> AnyEpochs for Epochs<'static, B, Numbers, K> {
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

impl<B: IntoTree, K: AnyKind> AnyEpochs for Sent<DeviceEpochs<'static, B, Numbers, K>> {
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

impl<B: IntoTree, K: AnyKind> AnyEpoch for Epoch<'static, B, K> {
    fn next(&mut self, timeout: Duration) -> TryNext<Result<Handed>> {
        map(self.next_timeout(timeout), |batch| {
            Handed::Host(batch.into_tree())
        })
    }

    fn number(&self) -> u64 {
        Epoch::number(self)
    }

    fn state(&self) -> RunState {
        K::wrapped(Epoch::state(self))
    }

    fn stats(&self) -> Stats {
        Epoch::stats(self)
    }
}

impl<B: IntoTree, K: AnyKind> AnyEpoch for Sent<DeviceEpoch<'static, B, K>> {
    fn next(&mut self, timeout: Duration) -> TryNext<Result<Handed>> {
        map(self.inner.next_without_waking(timeout), |batch| {
            let mut finish = self.finish.clone();
            let tree = B::device_tree(batch);
            Handed::Device(tree.map(&mut |leaf: DeviceLeaf| DeviceLeaf {
                finish: leaf.finish.or_else(|| finish.take()),
                ..leaf
            }))
        })
    }

    fn wake_workers(&self) {
        self.inner.wake_workers();
    }

    fn number(&self) -> u64 {
        self.inner.number()
    }

    fn state(&self) -> RunState {
        K::wrapped(self.inner.state())
    }

    fn stats(&self) -> Stats {
        self.inner.stats()
    }
}
