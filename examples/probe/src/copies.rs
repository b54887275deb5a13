//! Copies to a device and back: page-locked and pageable, one way and both at once, by size.

use std::time::Instant;

use pinfeed::{Batch, Device, DeviceTensor, Stream, Tensor};

use crate::Result;
use crate::effort::Effort;
use crate::report::{Copies, CopyPoint, Memory, Way};

/// What carries the bytes.
pub trait Link {
    /// How many seconds so many copies take, enqueued one behind the other, until the last one is done.
    fn seconds(&mut self, memory: Memory, way: Way, bytes: usize, times: usize) -> Result<f64>;
}

/// Every kind of copy of these, at every size.
pub fn measure(
    effort: &Effort,
    link: &mut dyn Link,
    kinds: &[(Memory, Way)],
) -> Result<Vec<Copies>> {
    let mut all = Vec::new();
    for &(memory, way) in kinds {
        let mut points = Vec::new();
        for &bytes in &effort.sizes {
            let in_a_row = in_a_row(bytes);
            points.push(CopyPoint {
                bytes,
                in_a_row,
                gb_s: effort.repeat(effort.repeats, || {
                    let seconds = link.seconds(memory, way, bytes, in_a_row)?;
                    Ok(moved(way, bytes * in_a_row) / seconds / 1e9)
                })?,
            });
        }
        all.push(Copies {
            memory,
            way,
            points,
        });
    }
    Ok(all)
}

/// How many bytes travel if each way has so many.
pub fn moved(way: Way, bytes: usize) -> f64 {
    match way {
        Way::Both => 2.0 * bytes as f64,
        Way::ToDevice | Way::Back => bytes as f64,
    }
}

/// How many copies of a size one measurement has: so many that its clock is exact, and none too long.
fn in_a_row(bytes: usize) -> usize {
    ((16 << 20) / bytes).clamp(1, 64)
}

/// Copies by this library, to any device. To a GPU, pageable memory goes through the page-locked slabs of the device's ring.
pub struct Library {
    device: Device,
    stream: Stream,
    prepared: Option<Prepared>,
}

/// The memory of copies of one size. All of it was written before, as memory that is used again.
struct Prepared {
    memory: Memory,
    bytes: usize,
    source: Tensor<u8>,
    there: DeviceTensor<u8>,
    target: Tensor<u8>,
}

impl Library {
    pub fn new(device: &Device) -> Result<Library> {
        Ok(Library {
            device: device.clone(),
            stream: device.stream()?,
            prepared: None,
        })
    }

    fn prepare(&mut self, memory: Memory, bytes: usize) -> Result<Prepared> {
        let fits = |prepared: &Prepared| prepared.memory == memory && prepared.bytes == bytes;
        if let Some(prepared) = self.prepared.take().filter(fits) {
            return Ok(prepared);
        }
        let source = Tensor::from_vec(vec![1u8; bytes], &[bytes])?;
        let source = match memory {
            Memory::Pinned => source.pin(&self.device)?,
            Memory::Pageable | Memory::Staged => source,
        };
        let there = source.view().to_device(&self.device, false)?;
        let target = match memory {
            Memory::Pinned => there.to_host(false)?.wait()?,
            Memory::Pageable | Memory::Staged => Tensor::from_vec(vec![2u8; bytes], &[bytes])?,
        };
        Ok(Prepared {
            memory,
            bytes,
            source,
            there,
            target,
        })
    }
}

impl Link for Library {
    fn seconds(&mut self, memory: Memory, way: Way, bytes: usize, times: usize) -> Result<f64> {
        let mut prepared = self.prepare(memory, bytes)?;
        let begun = Instant::now();
        for _ in 0..times {
            let is_both = way == Way::Both;
            let sent = match way {
                Way::Back => None,
                _ => Some(prepared.source.view().to_device(&self.device, is_both)?),
            };
            if way != Way::ToDevice {
                let back = prepared.there.copy_to_host(prepared.target, is_both)?;
                prepared.target = back.wait()?;
            }
            if let Some(sent) = sent.filter(|_| is_both) {
                drop(sent.on(&self.stream)?);
                self.stream.synchronize()?;
            }
        }
        let seconds = begun.elapsed().as_secs_f64();
        self.prepared = Some(prepared);
        Ok(seconds)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// A link of 2 GB/s each way.
    struct Even;

    impl Link for Even {
        fn seconds(&mut self, _: Memory, _: Way, bytes: usize, times: usize) -> Result<f64> {
            Ok((bytes * times) as f64 / 2e9)
        }
    }

    #[test]
    fn both_ways_carry_twice_as_much() {
        let effort = Effort::new(true, None);
        let kinds = [(Memory::Pinned, Way::ToDevice), (Memory::Pinned, Way::Both)];
        let copies = measure(&effort, &mut Even, &kinds).unwrap();
        for (copies, rate) in copies.iter().zip([2.0, 4.0]) {
            assert_eq!(copies.points.len(), effort.sizes.len());
            assert!(
                copies
                    .points
                    .iter()
                    .all(|point| (point.gb_s.median - rate).abs() < 1e-9)
            );
        }
    }

    #[test]
    fn a_measurement_has_more_small_copies_than_large_ones() {
        assert_eq!([4 << 10, 1 << 20, 256 << 20].map(in_a_row), [64, 16, 1]);
    }

    #[test]
    fn the_cpu_device_copies_in_every_way() {
        let mut library = Library::new(&Device::cpu()).unwrap();
        for memory in [Memory::Pinned, Memory::Pageable] {
            for way in [Way::ToDevice, Way::Back, Way::Both] {
                assert!(library.seconds(memory, way, 1 << 16, 3).unwrap() > 0.0);
            }
        }
    }
}
