//! Buffers at fixed addresses: what lies in them and is not wanted any more gives its place back.

use pinfeed::DataLoader;
use pinfeed::device::DeviceBuffers;

use crate::explore::explore;
use crate::support::{How, below, check_all_back, check_there, coin, device, samples};

/// An epoch is left while a batch of it travels, so a worker may be in the middle of sending it. The next epoch takes the same buffers, and
/// waits for that worker.
#[test]
fn the_next_epoch_waits_for_a_batch_that_nobody_wants() {
    explore("the_next_epoch_waits_for_a_batch_that_nobody_wants", || {
        let how = How {
            workers: 1 + below(3),
            ..How::pinned()
        };
        let device = device();
        let in_order = coin();
        let builder = DataLoader::builder(samples(how.len)).in_order(in_order);
        let loader = how.build(builder, &device);
        let buffers = DeviceBuffers::new(&device, 2 + below(2)).unwrap();
        let depth = 1 + below(2);
        let check = |number: usize, batch: pinfeed::Result<_>| {
            let batch = batch.unwrap();
            if in_order {
                check_there(&batch, how.samples_of(number));
            }
        };
        for epoch in loader
            .epochs(0..2 + below(4) as u64)
            .prefetch_to_device(&buffers, depth)
        {
            let taken = epoch.take(below(3));
            taken
                .enumerate()
                .for_each(|(number, batch)| check(number, batch));
        }
        let last = loader.epoch(9).prefetch_to_device(&buffers, depth);
        last.enumerate()
            .for_each(|(number, batch)| check(number, batch));
        drop((loader, buffers));
        check_all_back(&device);
    });
}
