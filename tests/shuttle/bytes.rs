//! A limit in bytes for what is in flight: it holds, and nothing waits for room that does not come.

use pinfeed::DataLoader;

use crate::explore::explore;
use crate::support::{How, Pair, Pin, back, below, check, check_all_back, coin, device, samples};

/// How many bytes a batch counts: whole pages.
const UNIT: usize = 4096;

fn loader(how: How, limit: usize, device: &pinfeed::Device) -> DataLoader<Pair> {
    let builder = DataLoader::builder(samples(how.len));
    let builder = builder.in_order(coin()).max_bytes_in_flight(limit);
    how.build(builder, device)
}

/// On the host and on their way to a device, beside another epoch that has taken what room there was.
#[test]
fn never_more_than_the_limit_and_one_batch() {
    explore("never_more_than_the_limit_and_one_batch", || {
        let how = How {
            workers: 1 + below(3),
            prefetch: 1 + below(5),
            ..How::any()
        };
        let limit = 1 + below(3 * UNIT);
        let device = device();
        let loader = loader(how, limit, &device);
        // Nobody iterates it. It may have a batch of its own beyond the limit.
        let other = coin().then(|| {
            let mut other = loader.epoch(7);
            drop(other.next().unwrap().unwrap());
            other
        });
        let depth = coin().then(|| below(3));
        let mut lines = 1 + usize::from(other.is_some());
        for epoch in 0..2 {
            let epoch = loader.epoch(epoch);
            let mut came = 0;
            let most = if coin() { how.batches() } else { 1 };
            match depth {
                None => {
                    for batch in epoch.with_info().take(most) {
                        let (batch, info) = batch.unwrap();
                        check(&batch, how.samples_of(info.batch() as usize));
                        came += 1;
                    }
                }
                Some(depth) => {
                    for there in epoch
                        .prefetch_to_device(&device, depth)
                        .with_info()
                        .take(most)
                    {
                        let (there, info) = there.unwrap();
                        check(
                            &back(&there).unwrap(),
                            how.samples_of(info.batch() as usize),
                        );
                        came += 1;
                    }
                }
            }
            assert_eq!(came, most);
            let units = if how.pin == Pin::ByCopy { 2 } else { 1 };
            let flown = loader.stats().most_bytes_in_flight as usize;
            assert!(
                flown <= limit + units * lines * UNIT,
                "{flown} of {limit}, {how:?} {depth:?} {lines} {most}"
            );
            // Workers may be at an epoch that was left.
            lines += usize::from(most < how.batches());
        }
        drop(other);
        drop(loader);
        check_all_back(&device);
    });
}
