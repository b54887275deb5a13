//! Batches that come to a device are copied into the program's own memory at once, as an engine does that owns its inputs. Workers are woken behind the copy.

use std::error::Error;
use std::time::Duration;

use pinfeed::loader::TryNext;
use pinfeed::{DataLoader, Device, from_fn};

const WIDTH: usize = 65_536;

/// An engine with two inputs of its own, which take turns.
struct Engine {
    inputs: [Vec<f32>; 2],
    steps: usize,
    /// Of the epoch.
    sum: f64,
}

impl Engine {
    fn step(&mut self) {
        let input = &self.inputs[self.steps % 2];
        self.sum += input.iter().map(|value| f64::from(*value)).sum::<f64>();
        self.steps += 1;
    }
}

pub fn main() -> Result<(), Box<dyn Error>> {
    let device = Device::cpu(); // or Device::cuda(0)?
    let rows = from_fn(200, |index, _| Ok(vec![index as f32; WIDTH])); // 256 KiB each
    let loader = DataLoader::builder(rows)
        .batch_size(20)
        .shuffle(true)
        .seed(5)
        .num_workers(2)
        .pin_memory(&device)
        .build()?;
    let mut engine = Engine {
        inputs: [Vec::new(), Vec::new()],
        steps: 0,
        sum: 0.0,
    };
    let whole = 199.0 * 200.0 / 2.0 * WIDTH as f64;
    for number in 0..3 {
        engine.sum = 0.0;
        let mut epoch = loader.epoch(number).prefetch_to_device(&device, 2);
        loop {
            let batch = match epoch.next_without_waking(Duration::from_secs(5)) {
                TryNext::Batch(batch) => batch?,
                TryNext::NotYet => return Err("no batch in five seconds".into()),
                TryNext::End => break,
            };
            let input = &mut engine.inputs[engine.steps % 2];
            input.clear();
            input.extend_from_slice(batch.to_host(true)?.wait()?.as_slice());
            drop(batch);
            epoch.wake_workers();
            engine.step();
            if number == 1 && engine.steps == 14 {
                break; // the second epoch is left
            }
        }
        assert_eq!(engine.sum == whole, number != 1);
    }
    assert_eq!(engine.steps, 10 + 4 + 10);
    println!("{}", loader.total_stats());
    Ok(())
}
