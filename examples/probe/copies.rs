//! Copies to a device and back: page-locked and pageable, one way and both at once, by size.

use std::time::Instant;

use pinfeed::{Batch, Device, Tensor};

use crate::args::Result;
use crate::effort::{Effort, repeat};
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
                gb_s: repeat(effort.repeats, || {
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
    stream: pinfeed::Stream,
}

impl Library {
    pub fn new(device: &Device) -> Result<Library> {
        Ok(Library {
            device: device.clone(),
            stream: device.stream()?,
        })
    }
}

impl Link for Library {
    fn seconds(&mut self, memory: Memory, way: Way, bytes: usize, times: usize) -> Result<f64> {
        let device = &self.device;
        let is_pinned = memory == Memory::Pinned;
        let source = Tensor::from_vec(vec![1u8; bytes], &[bytes])?;
        let source = if is_pinned {
            source.pin(device)?
        } else {
            source
        };
        let there = source.view().to_device(device, false)?;
        // Written once, as memory that is used again.
        let mut target = Some(Tensor::from_vec(vec![2u8; bytes], &[bytes])?);
        let mut seconds = 0.0;
        for _ in 0..times {
            let begun = Instant::now();
            let sent = match way {
                Way::Back => None,
                Way::ToDevice => Some(source.view().to_device(device, false)?),
                Way::Both => Some(source.view().to_device(device, true)?),
            };
            let back = match way {
                Way::ToDevice => None,
                _ if is_pinned => Some(there.to_host(true)?.wait()?),
                _ => {
                    let into = target.take().ok_or("the target is gone")?;
                    Some(there.copy_to_host(into, false)?.wait()?)
                }
            };
            if let Some(sent) = &sent {
                drop(sent.on(&self.stream)?);
                self.stream.synchronize()?;
            }
            seconds += begun.elapsed().as_secs_f64();
            if !is_pinned && back.is_some() {
                target = back;
            }
        }
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
