//! Batches as soon as they are ready: a sample that waits until the consumer has all other batches holds nobody up.

use std::sync::Arc;

use pinfeed::loader::LoaderState;
use pinfeed::{BoxError, DataLoader, Dataset, from_fn};
use shuttle::sync::{Condvar, Mutex};

use crate::explore::explore;
use crate::support::{
    How, Pair, Pin, back, below, check, check_all_back, check_held, check_made, coin, device,
    sample,
};

/// How many more batches must have come before a sample does.
#[derive(Default)]
struct Gate {
    missing: Mutex<usize>,
    changed: Condvar,
}

impl Gate {
    fn close(&self, missing: usize) {
        *self.missing.lock().unwrap() = missing;
    }

    fn came(&self) {
        let mut missing = self.missing.lock().unwrap();
        *missing = missing.saturating_sub(1);
        self.changed.notify_all();
    }

    fn pass(&self) {
        let mut missing = self.missing.lock().unwrap();
        while *missing > 0 {
            missing = self.changed.wait(missing).unwrap();
        }
    }
}

fn samples(
    how: How,
    slow: u64,
    gate: &Arc<Gate>,
) -> impl Dataset<Sample = (pinfeed::Tensor<u8>, i64)> {
    let gate = Arc::clone(gate);
    from_fn(how.len, move |index, _| {
        if index == slow {
            gate.pass();
        }
        Ok::<_, BoxError>(sample(index)?)
    })
}

fn how() -> How {
    How {
        workers: 2 + below(2),
        prefetch: 2 + below(3),
        strict: coin(),
        ..How::any()
    }
}

fn loader(how: How, slow: u64, gate: &Arc<Gate>, device: &pinfeed::Device) -> DataLoader<Pair> {
    let builder = DataLoader::builder(samples(how, slow, gate));
    how.build(builder.in_order(false), device)
}

/// In two epochs, one after the other, the slow batch is the last, and each holds what it does in order.
#[test]
fn a_slow_batch_is_the_last() {
    explore("a_slow_batch_is_the_last", || {
        let (how, device, gate) = (how(), device(), Arc::new(Gate::default()));
        let slow = below(how.len as usize) as u64;
        let loader = loader(how, slow, &gate, &device);
        let depth = coin().then(|| below(3));
        // (Nothing of an epoch is loaded before the one before it is over.)
        for epoch in 0..2 {
            gate.close(how.batches() - 1);
            let mut came = Vec::new();
            let epoch = loader.epoch(epoch);
            match depth {
                None => {
                    for batch in epoch.with_info() {
                        let (batch, info) = batch.unwrap();
                        check(&batch, how.samples_of(info.batch() as usize));
                        came.push(info.batch());
                        gate.came();
                    }
                }
                Some(depth) => {
                    for there in epoch.prefetch_to_device(&device, depth).with_info() {
                        let (there, info) = there.unwrap();
                        check_held(&device, 1 + depth);
                        check(
                            &back(&there).unwrap(),
                            how.samples_of(info.batch() as usize),
                        );
                        came.push(info.batch());
                        gate.came();
                    }
                }
            }
            assert_eq!(came.last(), Some(&(slow / how.batch as u64)));
            came.sort_unstable();
            assert!(came.into_iter().eq(0..how.batches() as u64));
            assert_eq!(loader.stats().unpinned.count, 0);
        }
        if how.pin != Pin::No {
            check_made(&device, how.made(depth.unwrap_or(1)) + 2); // and two downloads
        }
        drop(loader);
        check_all_back(&device);
    });
}

/// Left with gaps, twice, and resumed: each batch comes once.
#[test]
fn who_leaves_with_gaps_gets_the_rest() {
    explore("who_leaves_with_gaps_gets_the_rest", || {
        let (how, device, gate) = (how(), device(), Arc::new(Gate::default()));
        let slow = below(how.len as usize) as u64;
        let depth = below(3);
        let (mut came, mut state) = (Vec::new(), LoaderState::default());
        for run in 0..3 {
            let missing = how.batches() - 1 - came.len().min(how.batches() - 1);
            let most = if run < 2 {
                below(missing + 1)
            } else {
                how.batches()
            };
            // In the first two runs, only what is there without it.
            gate.close(missing);
            let loader = loader(how, slow, &gate, &device);
            let Some(epoch) = loader.resume(0..1, &state).unwrap().next() else {
                break;
            };
            assert_eq!(epoch.len(), how.batches() - came.len());
            for there in epoch
                .prefetch_to_device(&device, depth)
                .with_info()
                .take(most)
            {
                let (there, info) = there.unwrap();
                check(&back(&there).unwrap(), {
                    let batch = info.position() as usize / how.batch;
                    how.samples_of(batch)
                });
                came.push(info.position());
                gate.came();
            }
            gate.close(0);
            gate.came(); // so that the loader can end
            state = loader.state();
        }
        came.sort_unstable();
        assert!(came.into_iter().eq((0..how.len).step_by(how.batch)));
        check_all_back(&device);
    });
}
