//! Statistics and timelines, while threads count and record.

use std::sync::Arc;

use pinfeed::Batch;
use shuttle::thread;

use crate::explore::explore;
use crate::support::{How, below, check_all_back, coin, device};

/// Whatever is asked for when, each batch that was given out is in the total once.
#[test]
fn epochs_are_counted_once() {
    explore("epochs_are_counted_once", || {
        let how = How::any();
        let device = device();
        let loader = Arc::new(how.loader(&device));
        let recording = coin().then(|| loader.record());
        let consumer = {
            let (loader, device) = (Arc::clone(&loader), device.clone());
            thread::spawn(move || {
                let mut given = 0;
                for epoch in 0..1 + below(3) {
                    let some = below(how.batches() + 1);
                    for batch in loader.epoch(epoch as u64).take(some) {
                        let batch = batch.unwrap();
                        given += 1;
                        if coin() {
                            // (Its copy counts when the epoch is over.)
                            drop(batch.to_device(&device, true).unwrap());
                        }
                    }
                }
                given
            })
        };
        let mut seen = 0;
        for _ in 0..below(4) {
            let given = loader.total_stats().consumer_wait.each.count();
            assert!(given >= seen, "{given} after {seen}");
            seen = given;
            if coin() {
                drop(loader.record());
            }
        }
        let given = consumer.join().unwrap();
        let total = loader.total_stats();
        assert_eq!(total.consumer_wait.each.count(), given);
        assert!(total.batches >= given);
        recording.map(|recording| recording.finish().to_html());
        drop(loader);
        check_all_back(&device);
    });
}
