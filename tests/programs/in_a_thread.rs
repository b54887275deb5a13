//! A loader in a struct, with the epoch that it is at, which is moved to a thread of its own.

use std::error::Error;
use std::ops::Range;
use std::sync::{Arc, mpsc};
use std::thread;

use pinfeed::loader::Epochs;
use pinfeed::{DataLoader, Result, Tensor, from_fn};

type Batch = (Tensor<f32>, Tensor<i64>);

/// A training run that goes on where it stopped.
struct Run {
    loader: Arc<DataLoader<Batch>>,
    epochs: Epochs<'static, Batch, Range<u64>>,
    samples: usize,
}

impl Run {
    fn new(first_epoch: u64) -> Result<Run> {
        let samples = from_fn(60, |index, rng| Ok(([rng.f32(); 4], index as i64)));
        let loader = DataLoader::builder(samples)
            .batch_size(16)
            .shuffle(true)
            .num_workers(2)
            .build()?;
        let loader = Arc::new(loader);
        Ok(Run {
            epochs: loader.owned_epochs(first_epoch..5),
            loader,
            samples: 0,
        })
    }

    /// Trains for one epoch; says which, or `None` behind the last.
    fn epoch(&mut self) -> Result<Option<u64>> {
        let Some(epoch) = self.epochs.next() else {
            return Ok(None);
        };
        let number = epoch.number();
        for batch in epoch {
            let (_x, y) = batch?;
            self.samples += y.len();
        }
        Ok(Some(number))
    }
}

pub fn main() -> Result<(), Box<dyn Error>> {
    let mut run = Run::new(2)?;
    let (sender, receiver) = mpsc::channel();
    let trainer = thread::Builder::new()
        .name("trainer".into())
        .spawn(move || -> Result<Run> {
            while let Some(number) = run.epoch()? {
                if sender.send(number).is_err() {
                    break;
                }
            }
            drop(sender);
            Ok(run)
        })?;
    assert_eq!(receiver.iter().collect::<Vec<_>>(), [2, 3, 4]);
    let run = trainer.join().map_err(|_| "the trainer panicked")??;
    assert_eq!(run.samples, 3 * 60);
    assert_eq!(run.loader.stats().epoch, 4);
    Ok(())
}
