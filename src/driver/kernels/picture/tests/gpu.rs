//! The same on a GPU: docs/gpu.md says how to run it.

use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

use super::*;
use crate::driver::cuda::Cuda;
use crate::driver::{Driver, RawCopy, RawStream};

struct Gpu {
    driver: Driver,
    stream: RawStream,
}

impl Gpu {
    fn upload(&self, to: u64, bytes: &[u8]) {
        let from = bytes.as_ptr();
        let copy = RawCopy::ToDevice {
            from,
            to,
            bytes: bytes.len(),
        };
        // SAFETY: the memory is the test's, and the copy is waited for.
        unsafe { self.driver.copy(&self.stream, copy) }.unwrap();
        self.driver.synchronize(&self.stream).unwrap();
    }

    fn download(&self, from: u64, bytes: usize) -> Vec<u8> {
        let mut found = vec![0; bytes];
        let copy = RawCopy::ToHost {
            from,
            to: found.as_mut_ptr(),
            bytes,
        };
        // SAFETY: as above.
        unsafe { self.driver.copy(&self.stream, copy) }.unwrap();
        self.driver.synchronize(&self.stream).unwrap();
        found
    }

    fn run(&self, step: Drawn) {
        // SAFETY: as above.
        unsafe { self.driver.launch(&self.stream, step) }.unwrap();
        self.driver.synchronize(&self.stream).unwrap();
    }
}

#[test]
#[ignore = "needs a GPU"]
fn the_gpu_draws_as_the_plain_code_does() {
    let driver = Driver::Cuda(Cuda::open(0).unwrap());
    let gpu = Gpu {
        stream: driver.create_stream().unwrap(),
        driver,
    };
    let mut runner = TestRunner::deterministic();
    let strategy = prop::collection::vec(drawing(), 1..65);
    for round in 0..100 {
        let drawings = strategy.new_tree(&mut runner).unwrap().current();
        // The plain code's answers, in the host's memory; the same on the device, one picture behind the other.
        let mut memory: Vec<Memory> = drawings.into_iter().map(Memory::new).collect();
        let sizes = memory.iter_mut().map(|memory| {
            let planes: Vec<usize> = memory.planes.iter().map(|plane| plane.bytes).collect();
            [
                planes[0],
                planes[1],
                planes[2],
                memory.weights.bytes,
                memory.row.bytes,
                4,
            ]
        });
        let sizes: Vec<[usize; 6]> = sizes.collect();
        let padded = |bytes: usize| bytes.next_multiple_of(256);
        let total: usize = sizes.iter().flatten().copied().map(padded).sum();
        let list_bytes = padded(memory.len() * size_of::<Picture>());
        let start = gpu.driver.alloc_device(total + list_bytes).unwrap();
        let mut at = start + list_bytes as u64;
        let mut pictures = Vec::new();
        for (memory, sizes) in memory.iter().zip(&sizes) {
            let places = sizes.map(|bytes| {
                let place = at;
                at += padded(bytes) as u64;
                place
            });
            let [blue, red] = [places[1], places[2]];
            let [_, _, _, weights, row, status] = places;
            let places = Places {
                planes: places[0],
                weights,
                drawn: row,
                status,
            };
            let picture = Picture::new(&memory.drawing, places);
            pictures.push(Picture {
                planes: [places.planes, blue, red],
                ..picture
            });
        }
        let list: Vec<u8> = pictures
            .iter()
            .flat_map(Picture::as_bytes)
            .copied()
            .collect();
        gpu.upload(start, &list);
        gpu.run(Drawn::prepare(start, &pictures));
        for (memory, picture) in memory.iter_mut().zip(&pictures) {
            let weights = gpu.download(picture.weights[0], memory.weights.bytes);
            memory.weights.slice().copy_from_slice(&weights);
            memory.check_weights();
            memory.decode(7 + round, [true; 3]);
            for (plane, address) in memory.planes.iter_mut().zip(picture.planes) {
                gpu.upload(address, plane.slice());
            }
        }
        gpu.run(Drawn::draw(start, &pictures));
        let own: Vec<Picture> = memory.iter().map(Memory::picture).collect();
        // SAFETY: the memory is the test's.
        unsafe { Drawn::draw(own.as_ptr() as u64, &own).run() };
        for (memory, picture) in memory.iter_mut().zip(&pictures) {
            let row = gpu.download(picture.to, memory.row.bytes);
            let status = gpu.download(picture.status, 4);
            assert!(
                memory.row.slice() == row,
                "round {round}: {:?}",
                memory.drawing
            );
            assert_eq!(memory.status.slice(), status, "round {round}");
        }
        // SAFETY: it was allocated with this size, and all work is done.
        unsafe { gpu.driver.free_device(start, total + list_bytes) }.unwrap();
    }
}
