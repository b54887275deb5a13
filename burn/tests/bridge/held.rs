//! What burn's CUDA backend does with memory, without a GPU: [`DropQueue`] keeps sources as cubecl's queue does.

use std::time::Duration;

use burn::tensor::TensorData;
use pinfeed::{DataLoader, Device, from_fn};
use pinfeed_burn::{IntoBurn, RING_ROOM};

/// cubecl's `PendingDropQueue`: a source that was pushed is dropped by the second flush after that.
#[derive(Default)]
struct DropQueue {
    staged: Vec<TensorData>,
    pending: Vec<TensorData>,
}

impl DropQueue {
    fn flush(&mut self) {
        self.pending = std::mem::take(&mut self.staged);
    }

    fn held(&self) -> usize {
        self.staged.len() + self.pending.len()
    }
}

fn loader(batches: u64, prefetch: usize, device: &Device) -> DataLoader<pinfeed::Tensor<f32>> {
    // Rows of 100 KB: batches of 1 MB, which share no slab.
    let samples = from_fn(batches * 10, |index, _| Ok(vec![index as f32; 25_000]));
    DataLoader::builder(samples)
        .batch_size(10)
        .num_workers(2)
        .prefetch(prefetch)
        .pin_memory(device)
        .strict_pinning(true) // a batch for which there is no room is an error
        .build()
        .unwrap()
}

#[test]
fn the_ring_has_room_for_what_burn_holds() {
    for prefetch in [1, 2, 4] {
        let device = Device::cpu();
        let loader = loader(30, prefetch, &device);
        let mut queue = DropQueue::default();
        let mut most = 0;
        for epoch in loader.epochs(0..2) {
            for batch in epoch {
                let data = batch.unwrap().into_data();
                queue.staged.push(data);
                most = most.max(queue.held());
                queue.flush(); // with each batch, as `Loader` does
                std::thread::sleep(Duration::from_millis(1)); // a step
            }
        }
        assert_eq!(most, 2); // what the documentation says
        assert!(most < RING_ROOM);
    }
}

/// Burn alone would hold up to 128 small tensors: then the ring has no room, and the loader says so, in time and not in silence.
#[test]
fn a_loop_that_never_flushes_is_told_so() {
    let device = Device::cpu();
    let loader = loader(30, 2, &device);
    let mut queue = DropQueue::default();
    let mut error = None;
    for batch in loader.epoch(0) {
        match batch {
            Ok(batch) => queue.staged.push(batch.into_data()),
            Err(refused) => {
                error = Some(refused);
                break;
            }
        }
    }
    let error = error.expect("the ring has room for five batches, and not for thirty");
    assert!(matches!(error, pinfeed::Error::Pinned { .. }), "{error}");
    assert!((3..=6).contains(&queue.held()), "{}", queue.held());

    // And the same loader goes on, once they are let go.
    queue.flush();
    queue.flush();
    assert_eq!(loader.epoch(1).filter(Result::is_ok).count(), 30);
}
