//! Announcements, and requests beside the workers.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pinfeed::dataset::{Pass, Staged, StagedDataset};
use pinfeed::{BoxError, DataLoader, Dataset, Error, SampleRng, Tensor};
use shuttle::thread;

use crate::explore::explore;
use crate::hanging::Gate;
use crate::support::{
    BYTES, How, Pair, below, check, check_all_back, check_there, coin, device, sample,
};

const EPOCHS: u64 = 3;

/// Remembers what it is told. (Nothing is chosen while its lock is held.)
#[derive(Default)]
struct Told {
    /// How often each sample was announced, and not got.
    ahead: HashMap<u64, i64>,
    /// The passes that were announced, and whether they have ended.
    passes: HashMap<u64, bool>,
}

struct Telling {
    len: u64,
    /// No epoch is left. (Of one that was, a worker may get what was not announced any more.)
    is_whole: bool,
    lookahead: usize,
    told: Arc<Mutex<Told>>,
}

impl Dataset for Telling {
    type Sample = (Tensor<u8>, i64);

    fn len(&self) -> u64 {
        self.len
    }

    fn get(&self, index: u64, _: &mut SampleRng) -> Result<(Tensor<u8>, i64), BoxError> {
        let mut told = self.told.lock().unwrap();
        let ahead = told.ahead.entry(index).or_default();
        *ahead -= 1;
        assert!(
            *ahead >= 0 || !self.is_whole,
            "sample {index} was not announced"
        );
        drop(told);
        Ok(sample(index)?)
    }

    fn lookahead(&self) -> usize {
        self.lookahead
    }

    fn will_need(&self, indices: &[u64], pass: Pass) {
        for index in indices {
            if coin() {
                thread::yield_now();
            }
            let mut told = self.told.lock().unwrap();
            *told.ahead.entry(*index).or_default() += 1;
            let has_ended = told.passes.entry(pass.id()).or_default();
            assert!(!*has_ended, "the pass has ended");
        }
    }

    fn pass_ended(&self, pass: Pass) {
        let ended = self.told.lock().unwrap().passes.insert(pass.id(), true);
        assert_eq!(ended, Some(false), "once, and behind announcements");
    }
}

/// Loads some epochs, some of which are left unless they are to be whole; all of what comes is checked.
fn load(how: How, dataset: impl Dataset<Sample = (Tensor<u8>, i64)>, is_whole: bool) {
    let device = device();
    let loader = how.loader_of(dataset, &device);
    let most = || match is_whole {
        true => how.batches(),
        false => below(2 * how.batches()),
    };
    if coin() {
        for epoch in loader.epochs(0..EPOCHS) {
            let batches = epoch.take(most());
            for (number, batch) in batches.enumerate() {
                let pair: Pair = batch.unwrap();
                check(&pair, how.samples_of(number));
            }
        }
    } else {
        for epoch in loader.epochs(0..EPOCHS).prefetch_to_device(&device, 1) {
            let batches = epoch.take(most());
            for (number, batch) in batches.enumerate() {
                check_there(&batch.unwrap(), how.samples_of(number));
            }
        }
    }
    drop(loader);
    check_all_back(&device);
}

/// Each sample is announced before it is got, and nothing behind the end of its pass.
#[test]
fn samples_are_announced_before_they_are_got() {
    explore("samples_are_announced_before_they_are_got", || {
        let how = How::any();
        let told = Arc::<Mutex<Told>>::default();
        let is_whole = coin();
        let telling = Telling {
            len: how.len,
            is_whole,
            lookahead: 1 + below(2 * how.len as usize),
            told: Arc::clone(&told),
        };
        load(how, telling, is_whole);
        let told = told.lock().unwrap();
        assert!(told.passes.values().all(|has_ended| *has_ended));
        if is_whole && told.passes.len() as u64 == EPOCHS {
            assert!(told.ahead.values().all(|ahead| *ahead == 0));
        }
    });
}

/// A source that takes its time.
struct Far {
    len: u64,
    fetched: Arc<Mutex<HashMap<u64, u64>>>,
}

impl StagedDataset for Far {
    type Raw = u64;
    type Sample = (Tensor<u8>, i64);

    fn len(&self) -> u64 {
        self.len
    }

    fn fetch(&self, index: u64) -> Result<u64, BoxError> {
        for _ in 0..below(4) {
            thread::yield_now();
        }
        *self.fetched.lock().unwrap().entry(index).or_default() += 1;
        Ok(index)
    }

    fn decode(
        &self,
        index: u64,
        raw: u64,
        _: &mut SampleRng,
    ) -> Result<(Tensor<u8>, i64), BoxError> {
        assert_eq!(index, raw);
        Ok(sample(raw)?)
    }

    fn raw_bytes(&self, _: &u64) -> usize {
        BYTES
    }
}

/// Whatever the limits: all samples come, each is fetched once, and the bound is exceeded by one sample at most.
#[test]
fn requests_are_made_ahead() {
    explore("requests_are_made_ahead", || {
        let how = How::any();
        let fetched = Arc::<Mutex<HashMap<u64, u64>>>::default();
        let max_bytes = [1, 2 * BYTES, 100 * BYTES][below(3)];
        let staged = Staged::new(Far {
            len: how.len,
            fetched: Arc::clone(&fetched),
        });
        let staged = staged
            .with_in_flight(1 + below(3))
            .with_lookahead(1 + below(8));
        let staged = Arc::new(staged.with_max_bytes(max_bytes));
        let is_whole = coin();
        load(how, Arc::clone(&staged), is_whole);
        let stats = staged.stats();
        assert_eq!(stats.held_bytes, 0);
        assert!(
            stats.most_bytes <= max_bytes.max(BYTES) + BYTES,
            "{stats:?}"
        );
        drop(staged);
        if is_whole {
            // (An epoch that begins a line of its own is fetched for both, as far as it was.)
            assert!(stats.cancelled > 0 || stats.fetched == how.len * EPOCHS);
            let fetched = fetched.lock().unwrap();
            assert!(fetched.values().all(|count| *count >= EPOCHS));
        }
    });
}

/// A source some of whose requests hang while the gate is closed.
struct Stuck {
    len: u64,
    hang: Vec<u64>,
    gate: Arc<Gate>,
}

impl StagedDataset for Stuck {
    type Raw = u64;
    type Sample = (Tensor<u8>, i64);

    fn len(&self) -> u64 {
        self.len
    }

    fn fetch(&self, index: u64) -> Result<u64, BoxError> {
        if self.hang.contains(&index) {
            self.gate.pass();
        }
        Ok(index)
    }

    fn decode(
        &self,
        index: u64,
        raw: u64,
        _: &mut SampleRng,
    ) -> Result<(Tensor<u8>, i64), BoxError> {
        assert_eq!(index, raw);
        Ok(sample(raw)?)
    }

    fn raw_bytes(&self, _: &u64) -> usize {
        BYTES
    }
}

/// What hangs costs its batch, and nothing but its thread: workers come back, and other requests begin in its place.
#[test]
fn requests_hang() {
    explore("requests_hang", || {
        let how = How {
            workers: 1 + below(3),
            prefetch: 1 + below(3),
            ..How::any()
        };
        let gate = Arc::<Gate>::default();
        let hang: Vec<u64> = (0..1 + below(3))
            .map(|_| below(how.len as usize) as u64)
            .collect();
        let staged = Staged::new(Stuck {
            len: how.len,
            hang: hang.clone(),
            gate: Arc::clone(&gate),
        });
        let (in_flight, max_bytes) = (1 + below(3), [1, 2 * BYTES, 100 * BYTES][below(3)]);
        let staged = staged
            .with_in_flight(in_flight)
            .with_lookahead(1 + below(8));
        let staged = Arc::new(staged.with_max_bytes(max_bytes));
        let device = device();
        let builder = DataLoader::builder(Arc::clone(&staged));
        let timeout = Duration::from_millis([5, 50][below(2)]);
        let loader: DataLoader<Pair> = how.build(builder.timeout(timeout), &device);
        for epoch in loader.epochs(0..2) {
            let most = if coin() { how.batches() } else { below(3) };
            for (number, batch) in epoch.take(most).enumerate() {
                let samples = how.samples_of(number);
                match batch {
                    Ok(pair) => {
                        assert!(!hang.iter().any(|index| samples.contains(index)));
                        check(&pair, samples);
                    }
                    // (The clock jumps where somebody waits with an end, so any sample may be late.)
                    Err(Error::TimedOut(late)) => assert_eq!(late.batch, number as u64, "{late}"),
                    Err(error) => panic!("{error}"),
                }
            }
        }
        for epoch in 2.. {
            if staged.stats().fetched > in_flight as u64 {
                break;
            }
            drop(loader.epoch(epoch).next());
        }
        drop(loader);
        while Arc::strong_count(&staged) > 1 {
            thread::yield_now();
        }
        drop(staged);
        gate.open();
        while Arc::strong_count(&gate) > 1 {
            thread::yield_now();
        }
        check_all_back(&device);
    });
}
