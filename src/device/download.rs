//! Downloads: device memory comes to the host, and cannot be read before it has arrived.

use std::fmt;

use super::block::Uses;
use super::flights::Lane;
use super::handle::Device;
use super::inner::DeviceInner;
use super::staging::{CopyOutcome, Staging};
use super::stream::Stream;
use super::tensor::DeviceTensor;
use crate::driver::{RawCopy, RawEvent};
use crate::error::{Error, Result, ShapeError};
use crate::sync::Arc;
use crate::tensor::{Element, Gathered, Shape, Storage, Tensor};

/// A tensor on its way to the host. [`wait`](Download::wait) returns it once it has arrived. Dropping the download
/// earlier is safe: its memory stays reserved until the copy is done.
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
    /// Whether the tensor has arrived. Does not block.
    ///
    /// # Errors
    ///
    /// [`Error::Device`] if the device failed.
    pub fn is_ready(&self) -> Result<bool> {
        self.done.as_ref().map_or(Ok(true), RawEvent::is_complete)
    }

    /// Blocks the calling thread until the tensor has arrived.
    ///
    /// # Errors
    ///
    /// [`Error::Device`] if the device failed.
    pub fn synchronize(&self) -> Result<()> {
        self.done.as_ref().map_or(Ok(()), RawEvent::synchronize)
    }

    /// Makes the stream's later work wait for the copy, so that it may write or free the source.
    #[cfg(any(feature = "cuda", test))]
    fn hold(&self, stream: &Stream) -> Result<()> {
        match &self.done {
            Some(done) => self.device.driver.stream_wait(stream.raw(), done),
            None => Ok(()),
        }
    }

    /// Blocks the calling thread until the tensor has arrived, and returns it.
    ///
    /// # Errors
    ///
    /// [`Error::Device`] if the device failed; the memory is then never used again.
    pub fn wait(self) -> Result<Tensor<T>> {
        self.synchronize()?;
        // Drops the copy's own hold, so the caller is the only holder and may write.
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
    /// Copies the tensor to the host, into page-locked memory of the device's ring, which counts against its budget. If
    /// the budget is used up, the target is pageable memory, and counted as missed.
    ///
    /// # Synchronization
    ///
    /// The copy waits, on the device, for the tensor's last write. With `non_blocking` the call returns at once; without,
    /// it blocks until the tensor has arrived. Into pageable memory the call always blocks, also for the kernels that
    /// come before the copy.
    ///
    /// # Errors
    ///
    /// [`Error::Device`] if the device failed.
    pub fn to_host(&self, non_blocking: bool) -> Result<Download<T>> {
        let target = self.inner().host_tensor(self.shape().clone());
        self.download(target, non_blocking)
    }

    /// Copies the tensor into an existing host tensor, which [`Download::wait`] returns.
    ///
    /// # Synchronization
    ///
    /// As [`to_host`](DeviceTensor::to_host): the copy overlaps with the host only if the target is page-locked
    /// ([`Tensor::is_pinned`]). Large tensors reach pageable memory through page-locked slabs of the device's ring, which
    /// several threads empty, and have arrived when the call returns; small ones are left to the driver.
    ///
    /// # Errors
    ///
    /// [`Error::Shape`] if the shapes differ, [`Error::Shared`] if a view or a transfer shares the target,
    /// [`Error::Device`] if the device failed.
    pub fn copy_to_host(&self, target: Tensor<T>, non_blocking: bool) -> Result<Download<T>> {
        check_shape(self.len(), self.shape(), target.shape())?;
        self.inner().flights.reap();
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
    /// The copy waits, on the device, for all users of this tensor. With `non_blocking` the call returns at once, and the
    /// source stays shared (readable, not writable) until the copy is done, as [`synchronize`](DeviceTensor::synchronize) or
    /// the device's next transfer finds out; without, it blocks until then. From pageable
    /// memory the call always blocks until the source has been read; for a large source also until the users of this
    /// tensor are done, and then the source is not shared any more when the call returns.
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
        let (driver, stream) = (&device.driver, device.stream_of(Lane::InPlace)?);
        for event in self.uses_mut().all_events()? {
            driver.stream_wait(stream, &event)?;
        }
        let copy = RawCopy::ToDevice {
            from: source.as_ptr().cast(),
            to: self.address(),
            bytes: self.size_bytes(),
        };
        let mut staging = Staging::new(&device, stream);
        // SAFETY: the flight below keeps the source, or it has been read when the call returns, and it is not written
        // meanwhile (*no access while in flight*); the target's users so far are waited for, and later ones wait for the
        // event.
        let copied = unsafe { staging.copy(copy, source.is_pinned()) };
        let mut host: Vec<Arc<dyn Storage>> = staging.hold().collect();
        if !matches!(copied, Ok(CopyOutcome::Staged)) {
            // (Its rows were gathered, if they lay elsewhere.)
            host.push(Arc::clone(source.copied_from().1));
        }
        let done = match device.add_flight(Lane::InPlace, host, None) {
            Ok(done) => done,
            Err((error, host)) => {
                // The tensor lives on, so the copy must have ended: without an event, only waiting tells.
                if driver.synchronize(stream).is_err() {
                    device.flights.leak(host);
                    self.uses().block().leak();
                }
                return Err(copied.err().unwrap_or(error));
            }
        };
        self.uses_mut().written_behind(done.clone());
        copied?;
        if !non_blocking {
            done.synchronize()?;
            device.flights.reap();
        }
        Ok(())
    }
}

impl Device {
    /// Copies any memory of this device to the host, such as what another library allocated.
    ///
    /// # Synchronization
    ///
    /// The copy waits, on the device, for all work that `stream` holds now. With `non_blocking` the call returns at once.
    /// It blocks until the tensor has arrived without it, or if the ring has no room and the target is pageable.
    ///
    /// # Errors
    ///
    /// [`Error::WrongDevice`] if the stream is of another device, [`Error::Shape`] if the shape has too many elements for
    /// memory, [`Error::Device`] if the device failed. In that case a copy in progress is waited for, so nothing reads
    /// the memory any more (unless the device does not even answer that).
    ///
    /// # Safety
    ///
    /// From `address` on, memory of this device must hold as many initialized elements as the shape has. Until the
    /// download is ready it must stay allocated, and nothing may write it but work that `stream` holds already.
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

    /// As [`download_raw`](Device::download_raw), without blocking, and the stream's later work waits for the copy. If
    /// the stream cannot be made to wait, the copy is waited for before the error is returned.
    ///
    /// # Safety
    ///
    /// From `address` on, memory of this device must hold as many initialized elements as the shape has. Nothing but work
    /// of `stream` may write or free it.
    #[cfg(any(feature = "cuda", test))]
    pub(crate) unsafe fn download_ahead_of<T: Element>(
        &self,
        address: u64,
        shape: &[usize],
        stream: &Stream,
    ) -> Result<Download<T>> {
        // SAFETY: the caller's contract. When this returns, the stream's later work waits for the copy, or the copy is
        // over.
        let download = unsafe { self.download_raw(address, shape, stream, true) }?;
        download.hold(stream).inspect_err(|_| {
            // If this fails, so did the device: the copy's own memory is leaked, and counted, at the next reap.
            let _ = download.synchronize();
        })?;
        Ok(download)
    }
}

/// What a download reads.
struct DownloadSource<'a> {
    address: u64,
    /// The event after which the bytes are there.
    behind: Option<RawEvent>,
    /// The list of uses that must have an entry for the read.
    reader: Option<&'a Uses>,
}

/// # Safety
///
/// The source must be valid for the target's bytes until the copy is done; there must be no other holder of the target.
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
    // SAFETY: the caller's contract for the source. The target belongs to this download alone, which returns it only
    // after the event, and the flight below keeps it until then (*no access while in flight*).
    let copied = unsafe { staging.copy(copy, download.tensor.is_pinned()) };
    if let Ok(CopyOutcome::Staged) = copied {
        return Ok(download); // everything has arrived, and nothing is in flight
    }
    let mut host: Vec<Arc<dyn Storage>> = staging.hold().collect();
    host.push(Arc::clone(download.tensor.storage()));
    match device.add_flight(Lane::Download, host, None) {
        Ok(done) => {
            if let Some(reader) = source.reader {
                reader.read_behind(done.clone());
            }
            download.done = Some(done);
        }
        // The source is not ours to leak, so its use must end here.
        Err((error, _)) if source.reader.is_none() && driver.synchronize(stream).is_ok() => {
            return Err(copied.err().unwrap_or(error));
        }
        Err((error, host)) => {
            device.flights.leak(host);
            if let Some(reader) = source.reader {
                reader.block().leak();
            }
            return Err(copied.err().unwrap_or(error));
        }
    }
    if copied.is_err() && source.reader.is_none() {
        let _ = download.synchronize(); // pieces may be in flight
    }
    copied?;
    if !non_blocking {
        download.synchronize()?;
    }
    Ok(download)
}

/// Copies bytes of device memory to the host, behind this event, and waits for that.
///
/// # Safety
///
/// As [`download`], for this many bytes.
pub(super) unsafe fn read_raw(
    device: &Arc<DeviceInner>,
    address: u64,
    bytes: usize,
    behind: RawEvent,
) -> Result<Gathered> {
    let words = bytes.div_ceil(size_of::<i64>());
    let target = device.host_tensor::<i64>([words].as_slice().into());
    let source = DownloadSource {
        address,
        behind: Some(behind),
        reader: None,
    };
    // SAFETY: the caller's contract: a block has whole words.
    let tensor = unsafe { download(device, source, target, false) }?.wait()?;
    Ok(Gathered {
        base: tensor.identity(),
        owner: Arc::clone(tensor.storage()),
    })
}

/// The tensor, if nothing shares it. Finished copies have let go of it.
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

    /// A device that is late, and on which the `call`th operation of this name fails.
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

    /// The owner of what a raw download reads may free it when the call fails: nothing is in flight then.
    #[test]
    fn a_raw_download_that_fails_leaves_nothing_under_way() {
        // The wait for the stream, and the stream's wait for the copy; the event after the stream, and the one after the
        // copy.
        for (operation, calls) in [("stream_wait_event", 2), ("record_event", 2), ("copy", 1)] {
            for (call, seed) in (0..calls).flat_map(|call| (0..10).map(move |seed| (call, seed))) {
                let device = failing(seed, operation, call);
                let stream = device.stream().unwrap();
                let source = vec![7i64; 1000];
                let address = source.as_ptr() as u64;
                // SAFETY: on the CPU device, any memory is the device's; it is freed after the call, when the copy has
                // ended.
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
