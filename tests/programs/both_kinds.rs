//! One training loop for data with and without an index: a model is trained on a stream of numbers first, which a struct holds, and then on
//! a data set. Each run is interrupted, and goes on from a state of its own kind.

use std::error::Error;
use std::sync::Arc;

use pinfeed::loader::{Indexed, Iterable, IterableState, Kind, LoaderState};
use pinfeed::{DataLoader, Device, Tensor, from_fn, iterable};

/// Where the first training's numbers come from. Nobody knows how many there are.
struct Stream {
    loader: Arc<DataLoader<Tensor<i64>, Iterable>>,
    device: Device,
}

impl Stream {
    fn open(device: Device) -> pinfeed::Result<Stream> {
        let numbers = iterable::from_fn(|epoch, _| Ok((0..50).map(move |number| Ok(100 * epoch as i64 + number))));
        let loader = DataLoader::iterable(numbers).batch_size(4).num_workers(2).pin_memory(&device).build()?;
        Ok(Stream { loader: Arc::new(loader), device })
    }
}

fn data_set(device: &Device) -> pinfeed::Result<DataLoader<Tensor<i64>>> {
    let numbers = from_fn(50, |index, _| Ok(index as i64));
    DataLoader::builder(numbers).batch_size(4).shuffle(true).seed(5).num_workers(2).pin_memory(device).build()
}

/// Trains for two epochs, from a checkpoint on, but for so many steps at most. Returns what was seen, and the next checkpoint.
fn train<K: Kind>(loader: &DataLoader<Tensor<i64>, K>, device: &Device, checkpoint: &str, steps: usize) -> pinfeed::Result<(Vec<i64>, String)> {
    let state: K::State = match checkpoint {
        "" => K::State::default(),
        saved => saved.parse()?,
    };
    let mut seen = Vec::new();
    let mut left = steps;
    for mut epoch in loader.resume(0..2, &state)?.prefetch_to_device(device, 2) {
        while left > 0 {
            let Some(batch) = epoch.next() else { break };
            seen.extend(batch?.to_host(true)?.wait()?.to_vec());
            left -= 1;
        }
        if left == 0 {
            return Ok((seen, epoch.state().to_string()));
        }
    }
    Ok((seen, loader.state().to_string()))
}

/// What a loop says while it runs: of a data set, also how much is to come.
fn progress(loader: &DataLoader<Tensor<i64>>, step: usize) -> String {
    format!("{step} of {} steps", 2 * loader.len())
}

pub fn main() -> Result<(), Box<dyn Error>> {
    let stream = Stream::open(Device::cpu())?;
    let (whole, _) = train(&stream.loader, &stream.device, "", usize::MAX)?;
    assert!(whole.iter().copied().eq((0..50).chain(100..150)));
    let (mut seen, checkpoint) = train(&stream.loader, &stream.device, "", 16)?;
    let state: IterableState = checkpoint.parse()?;
    assert_eq!((state.epoch(), state.items()), (1, 12)); // 50 numbers are 13 batches
    seen.extend(train(&Stream::open(Device::cpu())?.loader, &stream.device, &checkpoint, usize::MAX)?.0);
    assert_eq!(seen, whole);

    let device = Device::cpu();
    let loader = data_set(&device)?;
    let (whole, _) = train(&loader, &device, "", usize::MAX)?;
    let (mut seen, checkpoint) = train::<Indexed>(&loader, &device, "", 16)?;
    assert_eq!(progress(&loader, 16), "16 of 26 steps");
    let state: LoaderState = checkpoint.parse()?;
    assert_eq!((state.epoch(), state.position()), (1, 12));
    seen.extend(train(&data_set(&device)?, &device, &checkpoint, usize::MAX)?.0);
    assert_eq!(seen, whole);

    // A thread of its own for a stream, as for a data set.
    let epoch = stream.loader.owned_epoch(3);
    let sum = move || epoch.map(|batch| Ok(batch?.to_vec().iter().sum::<i64>())).sum::<pinfeed::Result<i64>>();
    let sum = std::thread::Builder::new().name("sum".into()).spawn(sum)?;
    assert_eq!(sum.join().map_err(|_| "the thread panicked")??, (300..350).sum::<i64>());

    // A checkpoint of the other kind is refused.
    let Err(refused) = train(&stream.loader, &device, &checkpoint, 1) else {
        return Err("a data set's checkpoint was taken for a stream's".into());
    };
    println!("{refused}");
    assert!(refused.to_string().contains("it is no iterable's state"));
    Ok(())
}
