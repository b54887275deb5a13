//! Captures of graphs in a device's context: an event of the whole context must not be recorded beside one.
//!
//! The driver refuses such an event (`cuCtxRecordEvent`) while any stream of the context is being captured, and *fails that capture*,
//! whichever thread it is on and whatever its mode is. So it is asked beforehand. It tells of one stream at a time, by its handle, and
//! (asked about the legacy default stream) of all streams that wait for that. It does not list a context's streams. So a capture on a
//! stream that waits for no other, and that the device does not know, cannot be seen; nor can one that another thread begins between
//! question and event. For these there is the guard.

use std::fmt;

use crate::driver::{Driver, RawStream};
use crate::error::Result;
use crate::sync::{Arc, Mutex, Weak};

/// What is known of captures in a device's context.
#[derive(Default)]
pub(super) struct Captures {
    /// How many guards there are. Held while an event of the whole context is recorded, so a guard that was made is not overtaken by one.
    guards: Mutex<usize>,
    /// The streams that the library or the program holds.
    streams: Mutex<Vec<Weak<RawStream>>>,
}

/// While it lives, the device records no event that would make a capture fail ([`Device::sweep`](crate::Device::sweep)).
///
/// A program that captures graphs (CUDA graphs) holds one from before a capture begins until it has ended, if the capture may be beside a
/// sweep on another thread, or is on a stream that the device does not know: one that no [`Stream`](crate::Stream) names at that time.
/// Memory that is adrift stays so meanwhile.
///
/// # Examples
///
/// ```
/// use pinfeed::device::CaptureGuard;
/// use pinfeed::{Batch, Device, Tensor};
///
/// let device = Device::cpu();
/// let stream = device.stream()?;
/// let batch = Tensor::from(vec![1.0f32, 2.0]).to_device(&device, true)?;
/// drop(batch.lend(&stream)?.end_everywhere()); // adrift
///
/// let capturing: CaptureGuard = device.capture_guard();
/// // cuStreamBeginCapture … cuStreamEndCapture, on any stream; threads beside this one may sweep
/// assert_eq!(device.sweep()?, 0); // nothing happens
/// drop(capturing);
/// assert_eq!(device.sweep()?, 512); // a block of the pool
/// # Ok::<(), pinfeed::Error>(())
/// ```
#[must_use = "the guard ends when it is dropped: keep it until the capture has ended"]
pub struct CaptureGuard(Arc<Captures>);

impl Captures {
    /// Adds a stream to those that are asked about.
    pub(super) fn know(&self, stream: &Arc<RawStream>) {
        let mut streams = self.streams.lock();
        streams.retain(|known| known.strong_count() > 0);
        streams.push(Arc::downgrade(stream));
    }

    pub(super) fn hold(self: &Arc<Self>) -> CaptureGuard {
        *self.guards.lock() += 1;
        CaptureGuard(Arc::clone(self))
    }

    /// Calls `record` if there is no guard, and no capture is seen. It must not make one.
    pub(super) fn unless_capturing<T>(
        &self,
        driver: &Driver,
        record: impl FnOnce() -> Result<T>,
    ) -> Result<Option<T>> {
        let guards = self.guards.lock();
        if *guards > 0 || driver.is_capturing_by_default()? {
            return Ok(None);
        }
        let known: Vec<_> = {
            let streams = self.streams.lock();
            streams.iter().filter_map(Weak::upgrade).collect()
        };
        for stream in &known {
            if driver.is_capturing(stream)? {
                return Ok(None);
            }
        }
        record().map(Some)
    }
}

impl Drop for CaptureGuard {
    fn drop(&mut self) {
        *self.0.guards.lock() -= 1;
    }
}

impl fmt::Debug for CaptureGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CaptureGuard").finish_non_exhaustive()
    }
}
