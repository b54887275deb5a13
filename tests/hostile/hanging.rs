//! Samples that hang while they are filled, on a device that is late: a thread that was given up still writes to its slab when it comes
//! back, and nobody else may have that slab before.

use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use pinfeed::error::CollateError;
use pinfeed::sample::{Field, Filled, Layout, Row};
use pinfeed::{Batch, DataLoader, Device, Error, Result, Sample, Tensor, from_fn};

use crate::support::{expected, late_device, rng, watched};

const LEN: u64 = 60;
const WIDTH: usize = 32;

/// What hangs waits here, and is counted.
#[derive(Default)]
struct Gate {
    state: Mutex<(bool, usize)>,
    changed: Condvar,
}

impl Gate {
    fn hang(&self) {
        let mut state = self.state.lock().unwrap();
        state.1 += 1;
        while !state.0 {
            state = self.changed.wait(state).unwrap();
        }
        state.1 -= 1;
        self.changed.notify_all();
    }

    /// Lets all go, and waits until they are gone.
    fn open(&self) {
        let mut state = self.state.lock().unwrap();
        state.0 = true;
        self.changed.notify_all();
        while state.1 > 0 {
            state = self.changed.wait(state).unwrap();
        }
    }
}

/// Writes one half of its row, hangs, and writes the other.
struct Halves {
    index: u64,
    gate: Option<Arc<Gate>>,
}

impl Sample for Halves {
    type Batch = (Tensor<i64>, Tensor<i64>);
    type Plan = (Field<i64>, Field<i64>);
    type Rest = ();

    fn plan<'a>(
        _: impl Iterator<Item = &'a Self> + Clone,
        layout: &mut Layout,
    ) -> Result<Self::Plan, CollateError> {
        Ok((layout.field(&[WIDTH])?, layout.field(&[WIDTH])?))
    }

    fn fill(self, plan: &Self::Plan, row: &mut Row<'_>) -> Result<(), CollateError> {
        row.write(&plan.0, &[self.index as i64; WIDTH])?;
        self.gate.iter().for_each(|gate| gate.hang());
        row.write(&plan.1, &[!(self.index as i64); WIDTH])
    }

    fn finish((left, right): Self::Plan, _: Vec<()>, filled: &mut Filled) -> Self::Batch {
        (filled.take(left), filled.take(right))
    }
}

fn check((left, right): &(Tensor<i64>, Tensor<i64>), samples: std::ops::Range<u64>) {
    let rows = left.as_slice().chunks(WIDTH);
    let rows = rows.zip(right.as_slice().chunks(WIDTH));
    assert_eq!(left.shape()[0], (samples.end - samples.start) as usize);
    for ((left, right), index) in rows.zip(samples) {
        assert_eq!(left, [index as i64; WIDTH]);
        assert_eq!(right, [!(index as i64); WIDTH]);
    }
}

#[test]
fn who_was_given_up_writes_to_nobodys_slab() {
    watched("who_was_given_up_writes_to_nobodys_slab", |seed| {
        let mut rng = rng(seed, 21);
        for round in 0..12 {
            let device: Device = late_device(seed + round);
            let (workers, batch) = (1 + rng.below(3) as usize, 1 + rng.below(7) as usize);
            let hang: Vec<u64> = (0..1 + rng.below(2)).map(|_| rng.below(LEN)).collect();
            let gate = Arc::<Gate>::default();
            let (of_get, left) = (Arc::clone(&gate), Mutex::new(hang.clone()));
            let samples = from_fn(LEN, move |index, _| {
                let mut left = left.lock().unwrap();
                let at = left.iter().position(|other| *other == index);
                let hangs = at.map(|at| left.swap_remove(at)).is_some();
                Ok(Halves {
                    index,
                    gate: hangs.then(|| Arc::clone(&of_get)),
                })
            });
            let loader: DataLoader<(Tensor<i64>, Tensor<i64>)> = DataLoader::builder(samples)
                .batch_size(batch)
                .num_workers(workers)
                .pin_memory(&device)
                .pin_by_copy(rng.bool(0.2))
                .timeout(Duration::from_millis(250))
                .build()
                .unwrap();
            // (It may be that a sample that hangs is not come to before the next epoch: its batch had failed.)
            let late = |error: Error, number: usize| match error {
                Error::TimedOut(late) => {
                    let index = late.sample.as_ref().unwrap().index;
                    assert!(expected(number, batch, LEN).contains(&index), "{late}");
                    assert!(hang.contains(&index), "{late}");
                }
                error => panic!("{error}"),
            };
            let opens = rng.below(3);
            for epoch in 0..3 {
                if epoch == opens {
                    gate.open(); // they write now
                }
                let batches = match epoch == 2 && rng.bool(0.5) {
                    true => rng.below(5) as usize,
                    false => LEN as usize,
                };
                if rng.bool(0.5) {
                    for (number, made) in loader.epoch(epoch).take(batches).enumerate() {
                        match made {
                            Ok(made) => check(&made, expected(number, batch, LEN)),
                            Err(error) => late(error, number),
                        }
                    }
                } else {
                    let there = loader
                        .epoch(epoch)
                        .prefetch_to_device(&device, 2)
                        .take(batches);
                    for (number, there) in there.enumerate() {
                        let back = there.and_then(|(left, right)| {
                            let (left, right) = (left.to_host(true)?, right.to_host(true)?);
                            Ok((left.wait()?, right.wait()?))
                        });
                        match back {
                            Ok(back) => check(&back, expected(number, batch, LEN)),
                            Err(error) => late(error, number),
                        }
                    }
                }
            }
            drop(loader);
            gate.open();
            // A thread that came back drops what it has a moment later.
            while device.memory().pinned_idle_bytes < device.memory().pinned_bytes {
                Tensor::from(vec![1u8]).to_device(&device, false).unwrap(); // behind all copies
                std::thread::yield_now();
            }
            device.release_pinned();
            assert_eq!(device.memory().pinned_bytes, 0);
        }
    });
}
