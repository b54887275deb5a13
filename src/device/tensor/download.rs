//! Copies between tensors of a device and existing or new ones of the host.

use super::DeviceTensor;
use crate::device::download::{Download, DownloadSource, download};
use crate::device::flights::Lane;
use crate::device::staging::{CopyOutcome, Staging};
use crate::driver::RawCopy;
use crate::error::{Error, Result, ShapeError};
use crate::sync::Arc;
use crate::tensor::{Element, Shape, Storage, Tensor};

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
