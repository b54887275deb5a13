//! Options together that other scenarios have alone: each batch comes, or its error, and all is given back.

use std::sync::Arc;

use pinfeed::collate::Arena;
use pinfeed::loader::{Builder, OnError};
use pinfeed::ragged::RaggedTensor;
use pinfeed::{Batch, BoxError, DataLoader, Dataset, Device, Ragged, Tensor, from_fn};
use shuttle::thread;

use crate::explore::explore;
use crate::support::{How, Pair, SLAB, below, check_all_back, coin, device, sample};

/// What a builder is told, beside [`How`].
#[derive(Clone, Copy)]
struct More {
    /// Samples that are bad, if there are any with these indices.
    faults: [u64; 2],
    on_error: OnError,
    in_order: bool,
    max_bytes: Option<usize>,
}

impl More {
    fn any(how: How) -> More {
        More {
            faults: [(); 2].map(|()| below(2 * how.len as usize) as u64),
            on_error: [
                OnError::Fail,
                OnError::Replace { at_most: 50 },
                OnError::Skip { at_most: 50 },
            ][below(3)],
            in_order: coin(),
            max_bytes: (how.workers > 0 && coin()).then(|| 1 + below(3 * SLAB)),
        }
    }

    /// A builder for these samples, of which some are bad.
    fn builder<S: Send + 'static>(
        self,
        len: u64,
        sample: impl Fn(u64) -> Result<S, BoxError> + Send + Sync + 'static,
    ) -> Builder<impl Dataset<Sample = S>, pinfeed::collate::Stack> {
        let dataset = from_fn(len, move |index, _| match self.faults.contains(&index) {
            true => Err("no sample".into()),
            false => sample(index),
        });
        let builder = DataLoader::builder(dataset).on_error(self.on_error);
        let builder = builder.in_order(self.in_order);
        match self.max_bytes {
            Some(bytes) => builder.max_bytes_in_flight(bytes),
            None => builder,
        }
    }
}

fn any_device() -> Device {
    let device = device();
    if coin() {
        device.set_pinned_budget_bytes((1 + below(4)) * SLAB);
    }
    if coin() {
        device.cut_batches_at(1, 100);
    }
    device
}

/// Counts batches, `most` of them. They may be held until the last one came.
fn count<T>(batches: impl ExactSizeIterator<Item = T>, most: usize) {
    let expected = batches.len().min(most);
    let (mut came, mut held) = (0, Vec::new());
    let holds = coin();
    for batch in batches.take(most) {
        came += 1;
        held.extend(holds.then_some(batch));
    }
    assert_eq!(came, expected);
}

/// Iterates two epochs, in one of several ways.
fn iterate<B: Batch>(loader: &DataLoader<B>, device: &Device) {
    let most = if coin() { usize::MAX } else { below(6) };
    let epochs = 0..2;
    match (coin(), coin().then(|| below(3))) {
        (true, None) => loader.epochs(epochs).for_each(|epoch| count(epoch, most)),
        (true, Some(depth)) => {
            let epochs = loader.epochs(epochs).prefetch_to_device(device, depth);
            epochs.for_each(|epoch| count(epoch, most));
        }
        (false, None) => epochs.for_each(|epoch| count(loader.epoch(epoch), most)),
        (false, Some(depth)) => {
            epochs.for_each(|epoch| {
                count(loader.epoch(epoch).prefetch_to_device(device, depth), most)
            });
        }
    }
}

#[test]
fn options_go_together() {
    explore("options_go_together", || {
        let how = How {
            len: 4 + below(9) as u64,
            strict: coin(),
            ..How::any()
        };
        let device = any_device();
        let more = More::any(how);
        match below(3) {
            0 => {
                let builder = more.builder(how.len, |index| Ok(sample(index)?));
                let loader: DataLoader<Pair> = how.build(builder, &device);
                iterate(&loader, &device);
            }
            1 => {
                let ragged = |index| Ok(Ragged::from(vec![index as i64; index as usize % 3]));
                let builder = more.builder(how.len, ragged);
                let loader: DataLoader<RaggedTensor<i64>> = how.build(builder, &device);
                iterate(&loader, &device);
            }
            _ => {
                let elsewhere = coin();
                let collate = move |samples: Vec<i64>, arena: &mut Arena| {
                    let len = samples.len();
                    if elsewhere {
                        return Ok::<Tensor<i64>, BoxError>(Tensor::from_vec(samples, &[len])?);
                    }
                    let mut batch = arena.zeros(&[len])?;
                    let rows = batch.as_mut_slice().ok_or("shared")?;
                    rows.copy_from_slice(&samples);
                    Ok(batch)
                };
                let builder = more.builder(how.len, |index| Ok(index as i64));
                let loader: DataLoader<Tensor<i64>> =
                    how.build(builder.collate_fn(collate), &device);
                iterate(&loader, &device);
            }
        }
        check_all_back(&device);
    });
}

/// The same, where two devices share epochs. The loader pins for both, for one, or for none.
#[test]
fn devices_go_together() {
    explore("devices_go_together", || {
        let how = How {
            len: 4 + below(9) as u64,
            ..How::any()
        };
        let devices = [any_device(), any_device()];
        let pinned = [&devices[..], &devices[..1], &[]][below(3)];
        let builder = More::any(how).builder(how.len, |index| Ok(sample(index)?));
        let mut builder = builder.batch_size(how.batch).num_workers(how.workers);
        if how.workers > 0 {
            builder = builder.prefetch(how.prefetch);
        }
        if !pinned.is_empty() {
            builder = builder.pin_memory(pinned).strict_pinning(coin());
            builder = builder.pin_by_copy(coin());
        }
        let loader: Arc<DataLoader<Pair>> = Arc::new(builder.build().unwrap());
        let depth = below(3);
        let most = if coin() { usize::MAX } else { below(6) };
        let mut threads = Vec::new();
        if coin() {
            for epochs in loader.owned_epochs(0..2).split(&devices, depth) {
                let iterate = move || epochs.into_iter().for_each(|epoch| count(epoch, most));
                threads.push(thread::spawn(iterate));
            }
        } else {
            for epoch in loader.owned_epoch(0).split(&devices, depth) {
                threads.push(thread::spawn(move || count(epoch, most)));
            }
        }
        for thread in threads {
            thread.join().unwrap();
        }
    });
}
