//! Downloads: device memory comes to the host, and cannot be read before it is there.

use std::fmt;

use super::block::Uses;
use super::flights::{Flight, Lane};
use super::staging::{CopyOutcome, Staging};
use super::stream::Stream;
use super::tensor::DeviceTensor;
use super::{Device, DeviceInner};
use crate::driver::{RawCopy, RawEvent};
use crate::error::{Error, Result, ShapeError};
use crate::sync::Arc;
use crate::tensor::{Element, Shape, Storage, Tensor};

/// A tensor on its way to the host. [`wait`](Download::wait) gives it out once it is there; dropping the download
/// before is safe: its memory stays reserved until the copy is done.
///
/// # Examples
///
/// ```
/// use pinfeed::{Batch, Device, Tensor};
///
/// let device = Device::cpu();
/// let loss = Tensor::from(vec![0.5f32]).to_device(&device, true)?; // a kernel's, say
/// let coming = loss.to_host(true)?; // returns at once
/// // The next step is enqueued here.
/// assert_eq!(coming.wait()?.as_slice(), [0.5]);
/// # Ok::<(), pinfeed::Error>(())
/// ```
#[must_use = "a download that is dropped is a copy for nothing"]
pub struct Download<T: Element> {
    tensor: Tensor<T>,
    done: Option<RawEvent>,
    device: Arc<DeviceInner>,
}

impl<T: Element> Download<T> {
    /// Whether the tensor is there, without blocking.
    ///
    /// # Errors
    ///
    /// [`Error::Device`] if the device failed.
    pub fn is_ready(&self) -> Result<bool> {
        self.done.as_ref().map_or(Ok(true), RawEvent::is_complete)
    }

    /// Blocks the calling thread until the tensor is there.
    ///
    /// # Errors
    ///
    /// [`Error::Device`] if the device failed.
    pub fn synchronize(&self) -> Result<()> {
        self.done.as_ref().map_or(Ok(()), RawEvent::synchronize)
    }

    /// Makes the stream's later work wait for the copy: what it copies from may then be written or freed on it.
    #[cfg(any(feature = "cuda", test))]
    fn hold(&self, stream: &Stream) -> Result<()> {
        match &self.done {
            Some(done) => self.device.driver.stream_wait(stream.raw(), done),
            None => Ok(()),
        }
    }

    /// Blocks the calling thread until the tensor is there, and gives it out.
    ///
    /// # Errors
    ///
    /// [`Error::Device`] if the device failed; the memory is then never used again.
    pub fn wait(self) -> Result<Tensor<T>> {
        self.synchronize()?;
        // Lets go of the copy's own hold, so that the caller's is the only one, and may write.
        self.device.flights.reap();
        Ok(self.tensor)
    }
}

impl<T: Element> fmt::Debug for Download<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Download")
            .field("shape", self.tensor.shape())
            .finish_non_exhaustive()
    }
}

impl<T: Element> DeviceTensor<T> {
    /// Copies the tensor to the host, into page-locked memory of the device's ring that counts in its budget (where
    /// the budget is used up: into pageable memory, which is counted as missed).
    ///
    /// # Synchronization
    ///
    /// The copy waits, on the device, for the tensor's last write. With `non_blocking` the call returns at once;
    /// without, it blocks until the tensor is there. Into pageable memory the call blocks either way, also for the
    /// kernels that come before the copy.
    ///
    /// # Errors
    ///
    /// [`Error::Device`] if the device failed.
    pub fn to_host(&self, non_blocking: bool) -> Result<Download<T>> {
        let target = self.inner().host_tensor(self.shape().clone());
        self.download(target, non_blocking)
    }

    /// Copies the tensor into an existing host tensor, which comes back by [`Download::wait`].
    ///
    /// # Synchronization
    ///
    /// As [`to_host`](DeviceTensor::to_host): only into page-locked memory ([`Tensor::is_pinned`]) does the copy
    /// overlap with the host. Into pageable memory large tensors come through page-locked slabs of the device's ring, from
    /// which several threads copy them, and are there when the call returns; small ones are the driver's.
    ///
    /// # Errors
    ///
    /// [`Error::Shape`] if the shapes differ, [`Error::Shared`] if a view or a transfer shares the target,
    /// [`Error::Device`] if the device failed.
    pub fn copy_to_host(&self, target: Tensor<T>, non_blocking: bool) -> Result<Download<T>> {
        check_shape(self.len(), self.shape(), target.shape())?;
        self.download(unshared(target)?, non_blocking)
    }

    fn download(&self, target: Tensor<T>, non_blocking: bool) -> Result<Download<T>> {
        let source = DownloadSource {
            address: self.address(),
            behind: self.uses().last_write()?,
            reader: Some(self.uses()),
        };
        // SAFETY: the tensor's memory is in bounds, and `reader` keeps it from being used again before the copy ends.
        unsafe { download(self.inner(), source, target, non_blocking) }
    }

    /// Copies a host tensor into this one.
    ///
    /// # Synchronization
    ///
    /// The copy waits, on the device, for all users of this tensor. With `non_blocking` the call returns at once, and
    /// the source stays shared (readable, not writable) until the copy is done; without, it blocks until then. From
    /// pageable memory the call blocks until the source is read, whatever `non_blocking` says, and for a large source also
    /// for the users of this tensor; that source is not shared any more when the call returns.
    ///
    /// # Errors
    ///
    /// [`Error::Shape`] if the shapes differ, [`Error::Device`] if the device failed.
    pub fn copy_from_host(&mut self, source: &Tensor<T>, non_blocking: bool) -> Result<()> {
        check_shape(source.len(), source.shape(), self.shape())?;
        let device = Arc::clone(self.inner());
        if self.is_empty() {
            return Ok(());
        }
        device.settle();
        let (driver, stream) = (&device.driver, device.in_place()?);
        for event in self.uses_mut().all_events()? {
            driver.stream_wait(stream, &event)?;
        }
        let copy = RawCopy::ToDevice {
            from: source.as_ptr().cast(),
            to: self.address(),
            bytes: self.size_bytes(),
        };
        let mut staging = Staging::new(&device, stream);
        // SAFETY: the source is kept by the flight below, or was read when the call returns, and is not written meanwhile
        // (*no access while in flight*); the target's users so far are waited for, and later ones wait for the event.
        let copied = unsafe { staging.copy(copy, source.is_pinned()) };
        let mut host: Vec<Arc<dyn Storage>> = staging.hold().collect();
        if !matches!(copied, Ok(CopyOutcome::Staged)) {
            host.push(Arc::clone(source.storage()));
        }
        let done = match driver.record(stream, false) {
            Ok(done) => done,
            Err(error) => {
                // The tensor lives on, so the copy must not: without an event, only waiting tells that it ended.
                if driver.synchronize(stream).is_err() {
                    device.flights.leak(host);
                    self.uses().block().leak();
                }
                return Err(copied.err().unwrap_or(error));
            }
        };
        self.uses_mut().written_behind(done.clone());
        device.submitted(Flight {
            lane: Lane::InPlace,
            done: done.clone(),
            host,
            timing: None,
        });
        copied?;
        if !non_blocking {
            done.synchronize()?;
            device.flights.reap();
        }
        Ok(())
    }
}

impl Device {
    /// Copies any memory of this device to the host: what another library made.
    ///
    /// # Synchronization
    ///
    /// The copy waits, on the device, for all work that `stream` holds now. With `non_blocking` the call returns at
    /// once; without, or where the ring has no room and the tensor comes to pageable memory, it blocks until the tensor
    /// is there.
    ///
    /// # Errors
    ///
    /// [`Error::WrongDevice`] if the stream is of another device, [`Error::Shape`] if the shape has too many elements
    /// for memory, [`Error::Device`] if the device failed. A copy that was under way then is waited for, so that nothing reads
    /// the memory any more (a device that does not even answer that is lost).
    ///
    /// # Safety
    ///
    /// From `address` on, as many initialized elements as the shape has must lie in memory of this device; until the
    /// download is ready they must stay allocated, and nothing but `stream`'s work of before may write them.
    pub unsafe fn download_raw<T: Element>(
        &self,
        address: u64,
        shape: &[usize],
        stream: &Stream,
        non_blocking: bool,
    ) -> Result<Download<T>> {
        stream.check(&self.inner, "the stream")?;
        Shape::elements(shape)
            .filter(|&n| n <= isize::MAX as usize / size_of::<T>())
            .ok_or_else(|| ShapeError {
                elements: 0,
                shape: shape.into(),
            })?;
        let source = DownloadSource {
            address,
            behind: Some(self.inner.driver.record(stream.raw(), false)?),
            reader: None,
        };
        let target = self.inner.host_tensor(shape.into());
        // SAFETY: the caller's contract.
        unsafe { download(&self.inner, source, target, non_blocking) }
    }

    /// As [`download_raw`](Device::download_raw), without blocking; and the stream's later work waits for the copy. If that
    /// cannot be had, the copy is waited for, before the error is returned.
    ///
    /// # Safety
    ///
    /// From `address` on, as many initialized elements as the shape has must lie in memory of this device. Nothing but work of
    /// `stream` may write or free them.
    #[cfg(any(feature = "cuda", test))]
    pub(crate) unsafe fn download_ahead_of<T: Element>(
        &self,
        address: u64,
        shape: &[usize],
        stream: &Stream,
    ) -> Result<Download<T>> {
        // SAFETY: the caller's contract; the stream's later work is behind the copy, or the copy is over, when this returns.
        let download = unsafe { self.download_raw(address, shape, stream, true) }?;
        download.hold(stream).inspect_err(|_| {
            // If it fails, so did the device, and the copy's own memory is leaked, and counted, when the list is looked through.
            let _ = download.synchronize();
        })?;
        Ok(download)
    }
}

/// Where a download reads.
struct DownloadSource<'a> {
    address: u64,
    /// The event that the bytes are behind.
    behind: Option<RawEvent>,
    /// Who must know that the memory is being read.
    reader: Option<&'a Uses>,
}

/// # Safety
///
/// The source must be valid for the target's bytes until the copy is done; nobody else may hold the target.
unsafe fn download<T: Element>(
    device: &Arc<DeviceInner>,
    source: DownloadSource<'_>,
    target: Tensor<T>,
    non_blocking: bool,
) -> Result<Download<T>> {
    let mut download = Download {
        tensor: target,
        done: None,
        device: Arc::clone(device),
    };
    if download.tensor.is_empty() {
        return Ok(download);
    }
    device.settle();
    let (driver, stream) = (&device.driver, &device.d2h);
    if let Some(event) = &source.behind {
        driver.stream_wait(stream, event)?;
    }
    let copy = RawCopy::ToHost {
        from: source.address,
        to: download.tensor.as_ptr().cast(),
        bytes: download.tensor.size_bytes(),
    };
    let mut staging = Staging::new(device, stream);
    // SAFETY: the caller's contract for the source; the target is this download's alone, which gives it out behind
    // the event only, and the flight below keeps it until then (*no access while in flight*).
    let copied = unsafe { staging.copy(copy, download.tensor.is_pinned()) };
    if let Ok(CopyOutcome::Staged) = copied {
        return Ok(download); // the bytes are there, and nothing is in flight
    }
    let mut host: Vec<Arc<dyn Storage>> = staging.hold().collect();
    host.push(Arc::clone(download.tensor.storage()));
    match driver.record(stream, false) {
        Ok(done) => {
            if let Some(reader) = source.reader {
                reader.read_behind(done.clone());
            }
            device.submitted(Flight {
                lane: Lane::Download,
                done: done.clone(),
                host,
                timing: None,
            });
            download.done = Some(done);
        }
        // The source is not ours to leak, so there must be an end to its use.
        Err(error) if source.reader.is_none() && driver.synchronize(stream).is_ok() => {
            return Err(copied.err().unwrap_or(error));
        }
        Err(error) => {
            device.flights.leak(host);
            if let Some(reader) = source.reader {
                reader.block().leak();
            }
            return Err(copied.err().unwrap_or(error));
        }
    }
    if copied.is_err() && source.reader.is_none() {
        let _ = download.synchronize(); // pieces may be under way
    }
    copied?;
    if !non_blocking {
        download.synchronize()?;
    }
    Ok(download)
}

/// A tensor that nothing shares any more, once finished copies have let go of it.
fn unshared<T: Element>(mut tensor: Tensor<T>) -> Result<Tensor<T>> {
    match tensor.as_mut_slice() {
        Some(_) => Ok(tensor),
        None => Err(Error::Shared {
            sharers: tensor.sharers(),
        }),
    }
}

fn check_shape(elements: usize, from: &Shape, to: &Shape) -> Result<()> {
    if from == to {
        return Ok(());
    }
    Err(Error::Shape(ShapeError {
        elements,
        shape: to.clone(),
    }))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::driver::{Driver, cpu};

    /// A device that is late, and fails the `call`th operation of this name.
    fn failing(seed: u64, operation: &'static str, call: u64) -> Device {
        let options = cpu::Hostile {
            seed,
            max_delay: Duration::from_millis(3),
            fail_operation: Some(operation),
            fail_call: Some(call),
            ..cpu::Hostile::default()
        };
        Device::open(Driver::Cpu(cpu::Cpu::new(Some(options)))).unwrap()
    }

    /// Whoever owns what a raw download reads may free it when the call fails: nothing is under way then.
    #[test]
    fn a_raw_download_that_fails_leaves_nothing_under_way() {
        // The wait for the stream, and its wait for the copy; the event behind the stream, and the one behind the copy.
        for (operation, calls) in [("stream_wait_event", 2), ("record_event", 2), ("copy", 1)] {
            for (call, seed) in (0..calls).flat_map(|call| (0..10).map(move |seed| (call, seed))) {
                let device = failing(seed, operation, call);
                let stream = device.stream().unwrap();
                let source = vec![7i64; 1000];
                let address = source.as_ptr() as u64;
                // SAFETY: on the CPU device, any memory is the device's; it is freed behind the call, which has ended.
                let error = unsafe { device.download_ahead_of::<i64>(address, &[1000], &stream) };
                assert!(error.is_err(), "{operation} {call}");
                drop(source);
                let memory = device.memory();
                assert_eq!(
                    memory.pinned_bytes, memory.pinned_idle_bytes,
                    "{operation} {call}"
                );
                assert_eq!(memory.leaked, 0, "{operation} {call}");
            }
        }
    }
}
