//! What single pieces of the library cost, on the CPU alone: to see what a change does to them.
//!
//!     cargo bench                     all of them
//!     cargo bench -- collate          some
//!
//! The library's own bench `feed` measures the whole.

use std::hint::black_box;
use std::time::{Duration, Instant};

use criterion::{Bencher, Criterion, Throughput, criterion_group, criterion_main};
use pinfeed::sampler::{RandomSampler, Sampler};
use pinfeed::{Batch, DataLoader, Dataset, Device, Sample, Tensor, from_fn};

/// An image of 3x224x224 bytes: 150 KB.
const IMAGE: usize = 3 * 224 * 224;

criterion_main!(pieces);
criterion_group!(
    name = pieces;
    config = Criterion::default().measurement_time(Duration::from_secs(3));
    targets = permutation, collate, ring, transfer, schedule
);

/// Which sample stands at a position of a shuffled epoch.
fn permutation(c: &mut Criterion) {
    let mut group = c.benchmark_group("permutation");
    for (name, samples) in [
        ("1e3", 1_000),
        ("1e6", 1_000_000),
        ("1e12", 1_000_000_000_000),
    ] {
        let sampler = RandomSampler::with_seed(samples, 17);
        // Positions far apart would cost the same: nothing is stored.
        let mut position = 0;
        let mut advance = |by| {
            position = (position + by) % (samples - 32);
            black_box(position)
        };
        group.bench_function(format!("one of {name}"), |b| {
            b.iter(|| sampler.index(3, advance(1)));
        });
        group.bench_function(format!("batch of 32 of {name}"), |b| {
            b.iter(|| {
                let begin = advance(32);
                (begin..begin + 32).fold(0, |all, position| all ^ sampler.index(3, position))
            });
        });
    }
}

/// A batch of 32 on the caller's own thread: its samples, and the memory that they are written to.
fn collate(c: &mut Criterion) {
    let images = (0..256 * IMAGE).map(|at| (at % 251) as u8).collect();
    let images = Tensor::<u8>::from_vec(images, &[256, IMAGE]).expect("the shape fits");
    let many = 1 << 30;
    for memory in [Memory::Heap, Memory::Ring] {
        let mut group = c.benchmark_group(format!("collate, {memory:?}"));
        group.throughput(Throughput::Elements(32));
        group.bench_function("32 scalars", |b| {
            each_batch(b, from_fn(many, |index, _| Ok(index as f32)), memory);
        });
        group.bench_function("32 of [f32; 64]", |b| {
            each_batch(b, from_fn(many, |index, _| Ok([index as f32; 64])), memory);
        });
        group.throughput(Throughput::Bytes(32 * IMAGE as u64));
        group.bench_function("32 rows of 150 KB", |b| {
            let images = images.view();
            let rows = from_fn(many, move |index, _| Ok(images.row(index as usize % 256)));
            each_batch(b, rows, memory);
        });
    }
}

/// Where batches lie.
#[derive(Debug, Clone, Copy)]
enum Memory {
    Heap,
    Ring,
}

fn each_batch<D>(b: &mut Bencher<'_>, samples: D, memory: Memory)
where
    D: Dataset<Sample: Sample<Batch: Batch>>,
{
    let builder = DataLoader::builder(samples).batch_size(32);
    let loader = match memory {
        Memory::Heap => builder.build(),
        Memory::Ring => builder.pin_memory(&Device::cpu()).build(),
    };
    let loader = loader.expect("the options make sense");
    let mut epoch = loader.epoch(0);
    b.iter(|| epoch.next().expect("the epoch is long").is_ok());
}

/// A slab of the ring: taken, written, and given back.
fn ring(c: &mut Criterion) {
    let device = Device::cpu();
    let mut group = c.benchmark_group("ring");
    for (name, bytes) in [("4 KB", 4 << 10), ("1 MB", 1 << 20)] {
        let source = Tensor::<u8>::zeros(&[bytes]);
        group.throughput(Throughput::Bytes(bytes as u64));
        group.bench_function(format!("pin {name}"), |b| {
            b.iter(|| source.view().pin(&device).expect("the ring has room"));
        });
    }
}

/// A copy to the device: what the caller pays for submitting it, and the whole way.
fn transfer(c: &mut Criterion) {
    let device = Device::cpu();
    let stream = device.stream().expect("the CPU has streams");
    let mut group = c.benchmark_group("transfer");
    for (name, bytes) in [("4 KB", 4 << 10), ("1 MB", 1 << 20)] {
        let source = Tensor::<u8>::zeros(&[bytes]);
        let source = source.pin(&device).expect("the ring has room");
        group.bench_function(format!("submit {name}, and drop"), |b| {
            b.iter_custom(|rounds| submit(&source, &device, rounds));
        });
        group.bench_function(format!("copy {name}, and drop"), |b| {
            b.iter(|| source.view().to_device(&device, false).expect("it copies"));
        });
        group.bench_function(format!("copy {name}, and use it on a stream"), |b| {
            b.iter(|| {
                let there = source.view().to_device(&device, true).expect("it copies");
                let address = there.on(&stream).expect("it is lent").address();
                stream.synchronize().expect("the stream works");
                address
            });
        });
    }
}

/// A few copies at a time, as a queue that grows without end is nobody's case; waiting for them is not counted.
fn submit(source: &Tensor<u8>, device: &Device, rounds: u64) -> Duration {
    let mut spent = Duration::ZERO;
    let mut left = rounds;
    while left > 0 {
        let now = left.min(16);
        let start = Instant::now();
        for _ in 0..now {
            black_box(source.view().to_device(device, true).expect("it copies"));
        }
        spent += start.elapsed();
        let last = source.view().to_device(device, false);
        black_box(last.expect("it copies"));
        left -= now;
    }
    spent
}

/// Ten thousand batches of one number: what it costs to open, hand over and deliver a batch.
fn schedule(c: &mut Criterion) {
    let batches = 10_000;
    let mut group = c.benchmark_group("schedule");
    group
        .throughput(Throughput::Elements(batches))
        .sample_size(20);
    for workers in [0, 2] {
        let loader = DataLoader::builder(from_fn(batches, |index, _| Ok(index as i64)))
            .num_workers(workers)
            .build()
            .expect("the options make sense");
        let mut number = 0;
        group.bench_function(format!("an epoch, {workers} workers"), |b| {
            b.iter(|| {
                number += 1;
                loader.epoch(number).filter(Result::is_ok).count()
            });
        });
    }
}
