//! Downloads: device memory comes to the host, and cannot be read before it has arrived.

use std::fmt;

use super::block::Uses;
use super::flights::Lane;
use super::inner::DeviceInner;
use super::staging::{CopyOutcome, Staging};
#[cfg(any(feature = "cuda", test))]
use crate::driver::RawStream;
use crate::driver::{RawCopy, RawEvent};
use crate::error::Result;
use crate::sync::Arc;
use crate::tensor::{Element, Gathered, Storage, Tensor};

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
    /// [`Error::Device`](crate::Error::Device) if the device failed.
    pub fn is_ready(&self) -> Result<bool> {
        self.done.as_ref().map_or(Ok(true), RawEvent::is_complete)
    }

    /// Blocks the calling thread until the tensor has arrived.
    ///
    /// # Errors
    ///
    /// [`Error::Device`](crate::Error::Device) if the device failed.
    pub fn synchronize(&self) -> Result<()> {
        self.done.as_ref().map_or(Ok(()), RawEvent::synchronize)
    }

    /// Makes the stream's later work wait for the copy, so that it may write or free the source.
    #[cfg(any(feature = "cuda", test))]
    pub(super) fn hold(&self, stream: &RawStream) -> Result<()> {
        match &self.done {
            Some(done) => self.device.driver.stream_wait(stream, done),
            None => Ok(()),
        }
    }

    /// Blocks the calling thread until the tensor has arrived, and returns it.
    ///
    /// # Errors
    ///
    /// [`Error::Device`](crate::Error::Device) if the device failed; the memory is then never used again.
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

/// What a download reads.
pub(super) struct DownloadSource<'a> {
    pub(super) address: u64,
    /// The event after which the bytes are there.
    pub(super) behind: Option<RawEvent>,
    /// The list of uses that must have an entry for the read.
    pub(super) reader: Option<&'a Uses>,
}

/// Enqueues the copy.
///
/// # Safety
///
/// The source must be valid for the target's bytes until the copy is done; there must be no other holder of the target.
pub(super) unsafe fn download<T: Element>(
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
