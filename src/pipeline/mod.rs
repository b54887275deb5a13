//! The pipeline: workers load and collate tasks ahead of the consumer, the pin thread gets them slabs, and the consumer takes them in
//! order. `README.md` in this folder says which README explains what.

mod build;
mod epoch;
mod lookahead;
mod memory;
mod plan;
mod schedule;
mod shared;
mod threads;
mod traits;
mod transfer;
mod worker_status;

pub(crate) use self::build::factory::DatasetFactory;
pub(crate) use self::build::iterable::{ENDLESS, ItemNumbers, StreamFactory, StreamParts};
pub use self::build::on_error::OnError;
pub(crate) use self::build::on_error::Retry;
pub(crate) use self::lookahead::check_room;
pub(crate) use self::plan::bad_share::{BadCount, BadShare};
pub(crate) use self::plan::delivered::Given;
pub(crate) use self::plan::lister::{Batching, EvenBatching, Lister};
pub(crate) use self::plan::options::{Options, Pinning};
pub(crate) use self::plan::partition::{EpochOrder, Partition, Place, Start};
pub use self::plan::partition::{LastBatch, OnEmpty, Sharding};
pub(crate) use self::plan::shard::DeviceShard;
pub(crate) use self::shared::data::{Made, Taken};
pub(crate) use self::shared::session::Sent;
pub use self::shared::sizing::{WorkerSizing, Workers};
pub(crate) use self::threads::consumer::{Asking, NextTask, Waiting};
pub(crate) use self::threads::pipeline::Pipeline;
pub(crate) use self::threads::start::Threads;
pub(crate) use self::traits::{
    Beginning, Changes, EpochHandle, Learned, OwnItems, Patience, SendWindow, TransferQueue,
    Watched,
};
pub(crate) use self::transfer::queue::DeviceQueue;
