//! The same on a GPU: docs/gpu.md says how to run it.

use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

use super::*;
use crate::driver::cuda::Cuda;
use crate::driver::{Driver, RawCopy, RawStream};

/// Copies between the host and the device, and waits.
fn copied(driver: &Driver, stream: &RawStream, copy: RawCopy) {
    // SAFETY: the memory is the test's, and the copy is waited for.
    unsafe { driver.copy(stream, copy) }.unwrap();
    driver.synchronize(stream).unwrap();
}

#[test]
#[ignore = "needs a GPU"]
fn the_gpu_changes_as_the_plain_code_does() {
    let driver = Driver::Cuda(Cuda::open(0).unwrap());
    let stream = driver.create_stream().unwrap();
    let upload = |to: u64, bytes: &[u8]| {
        let (from, bytes) = (bytes.as_ptr(), bytes.len());
        copied(&driver, &stream, RawCopy::ToDevice { from, to, bytes });
    };
    let mut runner = TestRunner::deterministic();
    let strategy = prop::collection::vec(case(), 1..65);
    for round in 0..100 {
        let cases = strategy.new_tree(&mut runner).unwrap().current();
        // The list, and then each case's memory and row.
        let padded = |bytes: usize| bytes.next_multiple_of(256);
        let list_bytes = padded(cases.len() * Passes::MOST_BYTES);
        let mut total = list_bytes;
        let offsets = cases.iter().map(|case| {
            let memory = total;
            let row = memory + padded(ChangeMemory::new(&case.changes, case.size).bytes);
            total = row + padded(Change::row_bytes(&case.changes, case.size));
            (memory as u64, row as u64)
        });
        let offsets: Vec<(u64, u64)> = offsets.collect();
        let start = driver.alloc_device(total).unwrap();
        upload(start, &vec![0xB7; total]);
        let places = offsets.iter().map(|(memory, row)| Places {
            memory: start + memory,
            row: start + row,
        });
        let places: Vec<Places> = places.collect();
        let mut passes = Passes::default();
        for (case, places) in cases.iter().zip(&places) {
            upload(places.drawn(&case.changes, case.size), &case.pixels);
            passes.add(&case.changes, case.size, *places);
        }
        let mut list = vec![0; list_bytes];
        let written = passes.write(&mut list);
        upload(start, &list[..written]);
        for step in passes.steps(start) {
            // SAFETY: the memory is the test's.
            unsafe { driver.launch(&stream, step) }.unwrap();
        }
        for (case, places) in cases.iter().zip(&places) {
            let expected = case.expected();
            let mut found = vec![0; expected.len()];
            let (from, to, bytes) = (places.row, found.as_mut_ptr(), found.len());
            copied(&driver, &stream, RawCopy::ToHost { from, to, bytes });
            assert!(
                found == expected,
                "round {round}: {:?} of {:?}",
                case.changes,
                case.size
            );
        }
        // SAFETY: it was allocated with this size, and all work is done.
        unsafe { driver.free_device(start, total) }.unwrap();
    }
}
