//! Slabs that are made from `build` on, while the program begins an epoch, gives memory back, or drops the loader.

use pinfeed::DataLoader;

use crate::explore::explore;
use crate::support::{
    How, Pin, SLAB, below, check, check_all_back, check_made, coin, device, samples,
};

fn make_early() {
    let how = How {
        workers: 1 + below(3),
        prefetch: 1 + below(3),
        pin: Pin::InPlace,
        strict: false,
        ..How::pinned()
    };
    let device = device();
    if coin() {
        device.set_pinned_budget_bytes((1 + below(4)) * SLAB);
    }
    let builder = DataLoader::builder(samples(how.len)).batch_size(how.batch);
    let builder = builder.num_workers(how.workers).prefetch(how.prefetch);
    let loader = builder
        .pin_memory(&device)
        .min_slab_bytes(SLAB)
        .build()
        .unwrap();
    let mut given_back = 0;
    for epoch in 0..below(3) as u64 {
        if coin() {
            given_back += device.release_pinned() / SLAB;
        }
        for (number, batch) in loader.epoch(epoch).enumerate() {
            check(&batch.unwrap(), how.samples_of(number));
        }
    }
    drop(loader);
    check_made(&device, how.made(1) + given_back);
    check_all_back(&device);
}

#[test]
fn slabs_are_made_while_the_program_goes_on() {
    explore(
        "early::slabs_are_made_while_the_program_goes_on",
        make_early,
    );
}
