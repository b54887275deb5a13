//! Random programs under memory pressure: several threads, many streams, kernels that take their time, loans that are
//! forgotten, tensors and downloads that are dropped early. Each thread knows what every tensor must hold.

use std::time::Duration;

use pinfeed::device::Download;
use pinfeed::rng::RngKey;
use pinfeed::{Batch, DataLoader, Device, DeviceTensor, Error, SampleRng, Stream, Tensor};

use crate::Test;
use crate::backend::Backend;

pub const TESTS: &[Test] = &[
    (
        "random_programs_keep_every_byte",
        random_programs_keep_every_byte,
    ),
    (
        "a_loader_beside_random_programs",
        a_loader_beside_random_programs,
    ),
];

const THREADS: u64 = 6;
const STEPS: u64 = 250;

fn seed() -> u64 {
    std::env::var("PINFEED_SEED")
        .ok()
        .and_then(|seed| seed.parse().ok())
        .unwrap_or(7)
}

fn random_programs_keep_every_byte(backend: &Backend) {
    backend.device.set_device_budget_bytes(6 << 20);
    backend.device.set_pinned_budget_bytes(6 << 20);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            scope.spawn(move || Program::new(backend, thread).run(STEPS));
        }
    });
    assert_eq!(backend.device.memory().leaked, 0);
}

fn a_loader_beside_random_programs(backend: &Backend) {
    let device = &backend.device;
    device.cut_batches_at(90_000, 10_000);
    let dataset = pinfeed::from_fn(4_000, |index, _| Ok([index as u32; 500]));
    let loader = pinfeed::DataLoader::builder(dataset)
        .batch_size(40)
        .shuffle(true)
        .num_workers(3)
        .pin_memory(device)
        .build()
        .unwrap();
    std::thread::scope(|scope| {
        for thread in 0..2 {
            scope.spawn(move || Program::new(backend, 100 + thread).run(STEPS / 2));
        }
        // The second epoch's batches are cut into parts, for then the size of samples is known.
        scope.spawn(|| (3..5).for_each(|epoch| feed(&loader, device, epoch)));
    });
}

fn feed(loader: &DataLoader<Tensor<u32>>, device: &Device, epoch: u64) {
    let mut seen = vec![false; 4_000];
    for batch in loader.epoch(epoch).prefetch_to_device(device, 2) {
        let back = batch.unwrap().to_host(true).unwrap().wait().unwrap();
        for row in back.as_slice().chunks_exact(500) {
            let number = row[0];
            assert!(
                row.iter().all(|word| *word == number),
                "a row of {number} is torn"
            );
            let before = std::mem::replace(&mut seen[number as usize], true);
            assert!(!before, "sample {number} came twice");
        }
    }
    assert!(seen.iter().all(|seen| *seen));
}

/// One thread's program, and what its tensors must hold.
struct Program<'a> {
    backend: &'a Backend,
    rng: SampleRng,
    name: String,
    streams: Vec<Stream>,
    tensors: Vec<(DeviceTensor<u32>, u32)>,
    downloads: Vec<(Download<u32>, u32)>,
    host: Vec<Tensor<u32>>,
}

impl Program<'_> {
    fn new(backend: &Backend, thread: u64) -> Program<'_> {
        Program {
            backend,
            rng: SampleRng::for_sample(RngKey {
                seed: seed(),
                epoch: thread,
                position: 0,
            }),
            name: format!("seed {}, thread {thread}", seed()),
            streams: (0..3).map(|_| backend.device.stream().unwrap()).collect(),
            tensors: Vec::new(),
            downloads: Vec::new(),
            host: Vec::new(),
        }
    }

    fn run(mut self, steps: u64) {
        for _ in 0..steps {
            match self.rng.below(12) {
                0..=2 => self.upload(),
                3 | 4 => self.write(),
                5 => self.read(),
                6 | 7 => self.download(),
                8 => self.receive(),
                9 => self.copy_in(),
                10 => drop(self.pick().map(|index| self.tensors.swap_remove(index))),
                _ => drop(self.backend.device.release_pinned()),
            }
        }
        while !self.downloads.is_empty() {
            self.receive();
        }
        for (tensor, expected) in std::mem::take(&mut self.tensors) {
            let back = tensor.to_host(false).unwrap().wait().unwrap();
            self.check(&back, expected);
        }
    }

    fn check(&self, back: &Tensor<u32>, expected: u32) {
        let wrong = back.as_slice().iter().position(|word| *word != expected);
        assert!(
            wrong.is_none(),
            "{}: element {wrong:?} of {} is not {expected}",
            self.name,
            back.len()
        );
    }

    fn pick(&mut self) -> Option<usize> {
        let len = self.tensors.len() as u64;
        (len > 0).then(|| self.rng.below(len) as usize)
    }

    fn stream(&mut self) -> Stream {
        let index = self.rng.below(self.streams.len() as u64) as usize;
        self.streams[index].clone()
    }

    fn pause(&mut self) -> Duration {
        Duration::from_micros(if self.rng.bool(0.5) {
            self.rng.below(1_500)
        } else {
            0
        })
    }

    fn source(&mut self, value: u32, words: usize) -> Tensor<u32> {
        let tensor = Tensor::from_vec(vec![value; words], &[words]).unwrap();
        let pinned = self.rng.bool(0.7);
        match pinned.then(|| tensor.view().pin(&self.backend.device)) {
            Some(Ok(pinned)) => pinned,
            _ => tensor, // the budget is used up, or it was not asked for
        }
    }

    fn upload(&mut self) {
        let (value, words) = (self.rng.next_u32(), 1 + self.rng.below(60_000) as usize);
        let source = self.source(value, words);
        let non_blocking = self.rng.bool(0.8);
        match source.to_device(&self.backend.device, non_blocking) {
            Ok(tensor) => self.tensors.push((tensor, value)),
            Err(Error::DeviceBudget { .. }) => self.tensors.clear(),
            Err(error) => panic!("{}: {error}", self.name),
        }
    }

    fn write(&mut self) {
        let Some(index) = self.pick() else { return };
        let (stream, value, pause) = (self.stream(), self.rng.next_u32(), self.pause());
        let forget = self.rng.bool(0.2);
        let (tensor, expected) = &mut self.tensors[index];
        let words = tensor.len();
        let loan = tensor.on_mut(&stream).unwrap();
        self.backend
            .fill_slowly(&stream, loan.address(), words, value, pause);
        if forget {
            std::mem::forget(loan);
        }
        *expected = value;
    }

    /// A slow reader, whose tensor may be dropped at once.
    fn read(&mut self) {
        let Some(index) = self.pick() else { return };
        let (stream, pause) = (self.stream(), self.pause());
        let (forget, gone) = (self.rng.bool(0.3), self.rng.bool(0.5));
        let Ok(mut sum) = Tensor::<u32>::zeros(&[1]).to_device(&self.backend.device, true) else {
            return;
        };
        let (tensor, expected) = &self.tensors[index];
        let total = expected.wrapping_mul(tensor.len() as u32);
        let (words, target) = (tensor.on(&stream).unwrap(), sum.on_mut(&stream).unwrap());
        self.backend.sum_slowly(
            &stream,
            words.address(),
            tensor.len(),
            target.address(),
            pause,
        );
        if forget {
            std::mem::forget(words);
        } else {
            drop(words);
        }
        drop(target);
        if gone {
            self.tensors.swap_remove(index);
        }
        self.tensors.push((sum, total));
    }

    fn download(&mut self) {
        let Some(index) = self.pick() else { return };
        let non_blocking = self.rng.bool(0.8);
        let (tensor, expected) = &self.tensors[index];
        let fitting = self
            .host
            .iter()
            .position(|host| host.shape() == tensor.shape());
        let download = match fitting {
            Some(index) => tensor
                .copy_to_host(self.host.swap_remove(index), non_blocking)
                .unwrap(),
            None => tensor.to_host(non_blocking).unwrap(),
        };
        if self.rng.bool(0.8) {
            self.downloads.push((download, *expected));
        } // else it is dropped under way
    }

    fn receive(&mut self) {
        if self.downloads.is_empty() {
            return;
        }
        let index = self.rng.below(self.downloads.len() as u64) as usize;
        let (download, expected) = self.downloads.swap_remove(index);
        let back = download.wait().unwrap();
        self.check(&back, expected);
        if self.rng.bool(0.3) {
            self.host.push(back);
        }
    }

    fn copy_in(&mut self) {
        let Some(index) = self.pick() else { return };
        let (value, words) = (self.rng.next_u32(), self.tensors[index].0.len());
        let source = self.source(value, words);
        let non_blocking = self.rng.bool(0.8);
        let (tensor, expected) = &mut self.tensors[index];
        tensor.copy_from_host(&source, non_blocking).unwrap();
        *expected = value;
    }
}
