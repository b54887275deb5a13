//! What the scenarios share: samples whose bytes follow from their index, loaders of all kinds, and what must hold at the end.

use std::ops::Range;
use std::panic::resume_unwind;
use std::time::Duration;

use pinfeed::collate::Collate;
use pinfeed::device::Hostile;
use pinfeed::loader::{Builder, DeviceEpoch, TryNext};
use pinfeed::sampler::BatchSampler;
use pinfeed::{Batch, DataLoader, Dataset, Device, DeviceTensor, Error, Result, Tensor, from_fn};
use shuttle::rand::{RngCore, thread_rng};

pub type Pair = (Tensor<u8>, Tensor<i64>);
pub type PairOnDevice = (DeviceTensor<u8>, DeviceTensor<i64>);

/// How many bytes of its own a sample has, beside its index.
pub const BYTES: usize = 40;

/// How many bytes a sample has.
pub const SAMPLE_BYTES: usize = BYTES + 8;

/// How many bytes a slab has: no batch here needs more.
pub const SLAB: usize = 4096;

/// How many bytes of device memory a batch has: both of its tensors lie in one block.
pub const BLOCK: usize = 512;

/// A number below `end`, which follows from the schedule's seed.
pub fn below(end: usize) -> usize {
    (thread_rng().next_u64() % end as u64) as usize
}

pub fn coin() -> bool {
    below(2) == 0
}

/// Panics without a word: the library catches it, and the log stays readable.
pub fn panic_quietly(message: &str) -> ! {
    resume_unwind(Box::new(message.to_owned()))
}

fn bytes_of(index: u64) -> Vec<u8> {
    (0..BYTES as u64).map(|at| (index * 7 + at) as u8).collect()
}

pub fn sample(index: u64) -> Result<(Tensor<u8>, i64)> {
    Ok((Tensor::from_vec(bytes_of(index), &[BYTES])?, index as i64))
}

/// Samples that tell their index.
pub fn samples(len: u64) -> impl Dataset<Sample = (Tensor<u8>, i64)> {
    from_fn(len, |index, _| Ok(sample(index)?))
}

/// Checks every byte of a batch, whose samples must be these.
pub fn check((bytes, indices): &Pair, expected: Range<u64>) {
    let all: Vec<u8> = expected.clone().flat_map(bytes_of).collect();
    assert!(bytes.as_slice() == all, "samples {expected:?}");
    let found = indices.as_slice().iter().map(|&index| index as u64);
    assert!(found.eq(expected.clone()), "samples {expected:?}");
}

/// Brings a batch back from the device.
pub fn back((bytes, indices): &PairOnDevice) -> Result<Pair> {
    let (bytes, indices) = (bytes.to_host(true)?, indices.to_host(true)?);
    Ok((bytes.wait()?, indices.wait()?))
}

/// Brings a batch back from the device and checks every byte.
pub fn check_there(there: &PairOnDevice, expected: Range<u64>) {
    check(&back(there).unwrap(), expected);
}

/// How a loader makes batches of page-locked memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pin {
    No,
    InPlace,
    ByCopy,
}

/// How a loader is built.
#[derive(Debug, Clone, Copy)]
pub struct How {
    pub len: u64,
    pub batch: usize,
    pub workers: usize,
    pub prefetch: usize,
    pub pin: Pin,
    /// What cannot be page-locked is an error.
    pub strict: bool,
}

impl How {
    /// Any loader that pins.
    pub fn pinned() -> How {
        let workers = below(4);
        How {
            len: 4 + below(6) as u64,
            batch: 1 + below(3),
            workers,
            prefetch: match workers {
                0 => 1,
                _ => [1, 2, 3, 6][below(4)],
            },
            pin: [Pin::InPlace, Pin::InPlace, Pin::ByCopy][below(3)],
            strict: false,
        }
    }

    /// Any loader.
    pub fn any() -> How {
        let how = How::pinned();
        let pin = [Pin::No, how.pin, how.pin][below(3)];
        How { pin, ..how }
    }

    pub fn loader(self, device: &Device) -> DataLoader<Pair> {
        self.loader_of(samples(self.len), device)
    }

    pub fn loader_of<D>(self, dataset: D, device: &Device) -> DataLoader<Pair>
    where
        D: Dataset<Sample = (Tensor<u8>, i64)>,
    {
        self.build(DataLoader::builder(dataset), device)
    }

    pub fn build<D, C, B>(self, builder: Builder<D, C>, device: &Device) -> DataLoader<B>
    where
        D: Dataset,
        C: Collate<D::Sample, Batch = B>,
        B: Batch,
    {
        self.finish(builder.batch_size(self.batch), device)
    }

    /// A loader of the batches that are listed.
    pub fn listed(self, lists: impl BatchSampler, device: &Device) -> DataLoader<Pair> {
        let builder = DataLoader::builder(samples(self.len));
        self.finish(builder.batch_sampler(lists), device)
    }

    fn finish<D, C, B>(self, builder: Builder<D, C>, device: &Device) -> DataLoader<B>
    where
        D: Dataset,
        C: Collate<D::Sample, Batch = B>,
        B: Batch,
    {
        let mut builder = builder.num_workers(self.workers);
        // Where nobody sets the default, batches that take no time may be further ahead.
        if self.workers > 0 && (self.prefetch != 2 || coin()) {
            builder = builder.prefetch(self.prefetch);
        }
        if self.pin != Pin::No {
            let by_copy = self.pin == Pin::ByCopy;
            builder = builder.pin_memory(device).pin_by_copy(by_copy);
            builder = builder.strict_pinning(self.strict);
        }
        builder.build().unwrap()
    }

    pub fn batches(self) -> usize {
        self.len.div_ceil(self.batch as u64) as usize
    }

    /// The samples of a batch.
    pub fn samples_of(self, number: usize) -> Range<u64> {
        let first = (number * self.batch) as u64;
        first..self.len.min(first + self.batch as u64)
    }

    /// How many slabs an epoch may have, that stands alone, and is sent so many batches ahead.
    pub fn share(self, depth: usize) -> usize {
        self.slabs(depth).min(2 * self.batches())
    }

    /// How many slabs epochs may have that follow each other.
    pub fn slabs(self, depth: usize) -> usize {
        self.prefetch + depth + 2
    }

    /// Whether several batches that take no time may lie in one slab.
    pub fn may_share_slabs(self) -> bool {
        let ahead = if self.may_grow() { 64 } else { self.prefetch };
        self.pin == Pin::InPlace && self.workers > 0 && ahead >= 4 * self.workers
    }

    /// Whether such batches may be further ahead than `prefetch` says.
    fn may_grow(self) -> bool {
        self.workers > 0 && self.prefetch == 2
    }

    /// For how many batches there is device memory in use at most, with that many of them ahead. What was sent together is held as long as one
    /// of it is, and a batch that is sent alone may get such memory. Where batches may be further ahead, so they may be here.
    pub fn held(self, depth: usize) -> usize {
        match self.pin == Pin::InPlace && self.may_grow() {
            true => (1 + depth + 2 * 16) * 16,
            false => (1 + depth) * depth.max(1),
        }
    }

    /// How many slabs may be made for an epoch that stands alone. If slabs are shared, those that were made before may be too small.
    pub fn made(self, depth: usize) -> usize {
        match self.pin == Pin::InPlace && self.may_grow() {
            true => self.share(depth) + self.made_for_runs(depth).min(2 * self.batches()),
            false => self.share(depth),
        }
    }

    /// The same for epochs that follow each other.
    pub fn made_for_all(self, depth: usize) -> usize {
        match self.pin == Pin::InPlace && self.may_grow() {
            true => self.slabs(depth) + self.made_for_runs(depth),
            false => self.slabs(depth),
        }
    }

    fn made_for_runs(self, depth: usize) -> usize {
        4 * self.workers + depth + 2
    }
}

/// A device that is late, now and then.
pub fn device() -> Device {
    Device::hostile(hostile()).unwrap()
}

pub fn hostile() -> Hostile {
    let mut options = Hostile::default();
    options.seed = below(1 << 16) as u64;
    if coin() {
        options.max_delay = std::time::Duration::from_micros(10);
    }
    options
}

/// What must hold when all is dropped: slabs are home, nobody has device memory, and all of it can be given back.
pub fn check_all_back(device: &Device) {
    // Behind all copies on their streams.
    let last = Tensor::from(vec![7u8]).to_device(device, false).unwrap();
    let back = last.to_host(false).unwrap().wait().unwrap();
    assert_eq!(back.as_slice(), [7]);
    drop((last, back));
    let memory = device.memory();
    assert_eq!(memory.pinned_idle_bytes, memory.pinned_bytes, "{memory:?}");
    assert_eq!(
        (memory.device_held_bytes, memory.leaked),
        (0, 0),
        "{memory:?}"
    );
    device.release_pinned();
    device.release_device_memory().unwrap();
    let memory = device.memory();
    assert_eq!(
        (memory.pinned_bytes, memory.device_bytes),
        (0, 0),
        "{memory:?}"
    );
}

/// No more batches hold device memory than these.
pub fn check_held(device: &Device, most: usize) {
    let memory = device.memory();
    assert!(
        memory.device_held_bytes <= most * BLOCK,
        "{most}: {memory:?}"
    );
}

/// No more slabs were made than these.
pub fn check_made(device: &Device, most: usize) {
    let memory = device.memory();
    assert!(memory.slabs_made <= most as u64, "{most}: {memory:?}");
}

/// The batch at a place where one sample is broken is the error of that sample, by its index.
pub fn check_error(error: &Error, index: u64) {
    match error {
        Error::Sample(id, _) | Error::SamplePanicked(id, _) => assert_eq!(id.index, index),
        other => panic!("sample {index}: {other}"),
    }
}

/// The next batch, behind which the epoch wakes workers, or the loop does, or none of them.
pub fn next<B: Batch>(batches: &mut DeviceEpoch<'_, B>) -> Option<Result<B::OnDevice>> {
    match coin() {
        true => next_and_wake(batches),
        false => next_without_waking(batches),
    }
}

/// The same, where workers are woken: by the epoch or by the loop.
pub fn next_and_wake<B: Batch>(batches: &mut DeviceEpoch<'_, B>) -> Option<Result<B::OnDevice>> {
    if coin() {
        return batches.next();
    }
    let next = next_without_waking(batches);
    batches.wake_workers();
    next
}

fn next_without_waking<B: Batch>(batches: &mut DeviceEpoch<'_, B>) -> Option<Result<B::OnDevice>> {
    match batches.next_without_waking(Duration::MAX) {
        TryNext::Batch(batch) => Some(batch),
        TryNext::End => None,
        TryNext::NotYet => panic!("it waits for ever"),
    }
}
