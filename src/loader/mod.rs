//! The loader: what users build and iterate.
#![doc = include_str!("pytorch.md")]

mod affinity;
mod data_loader;
mod epoch;
mod epochs;
mod histogram;
mod info;
mod inner;
mod iterable_state;
mod kind;
mod last;
mod pace;
mod replay;
mod state;
mod stats;
mod timeline;
mod try_next;
mod world;

pub use affinity::{Affinity, Placement};
pub use data_loader::{Builder, DataLoader, IterableBuilder};
pub use epoch::{DeviceEpoch, Epoch, WithInfo};
pub use epochs::{DeviceEpochs, Epochs};
pub use histogram::Histogram;
pub use info::BatchInfo;
pub use iterable_state::IterableState;
pub use kind::{Indexed, Iterable, Kind};
pub use replay::{DeviceReplay, Replay};
pub use state::LoaderState;
pub use stats::{
    BadSampleStats, DecoderStats, Limit, MadeStats, Stats, Tally, Timed, TransferStats,
    UnpinnedStats,
};
pub use timeline::{Recording, Timeline};
pub use try_next::TryNext;
pub use world::World;

pub use crate::pipeline::{LastBatch, OnEmpty, OnError, Sharding, WorkerSizing, Workers};
