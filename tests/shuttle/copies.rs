//! Copies of several threads on one device: each has its memory back when it is over, whatever the others do.

use pinfeed::{Batch, Tensor};
use shuttle::thread;

use crate::explore::explore;
use crate::support::{below, check_all_back, coin, device};

/// Who waited for a copy holds the host memory alone, and may write it: in whatever order the threads' copies were entered.
#[test]
fn who_waited_for_a_copy_may_write() {
    explore("who_waited_for_a_copy_may_write", || {
        let device = device();
        let copies = |number: u8| {
            let device = device.clone();
            move || {
                let mut host = Tensor::from(vec![number; 50]);
                if coin() {
                    host = host.pin(&device).unwrap();
                }
                for _ in 0..3 {
                    let mut there = host.view().to_device(&device, false).unwrap();
                    assert!(host.as_mut_slice().is_some(), "an upload");
                    if coin() {
                        there.copy_from_host(&host, false).unwrap();
                        assert!(host.as_mut_slice().is_some(), "a copy into a tensor");
                    }
                    let mut back = there.to_host(true).unwrap().wait().unwrap();
                    assert!(back.as_slice() == [number; 50]);
                    assert!(back.as_mut_slice().is_some(), "a download");
                }
            }
        };
        let threads: Vec<_> = (0..2 + below(2) as u8)
            .map(|number| thread::spawn(copies(number)))
            .collect();
        threads
            .into_iter()
            .for_each(|thread| thread.join().unwrap());
        check_all_back(&device);
    });
}
