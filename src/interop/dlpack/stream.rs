//! The streams that consumers name.

use std::ffi::c_void;

use crate::device::{Device, Stream};
use crate::driver::Driver;
use crate::error::{Error, Result};
use crate::interop::raw;

/// The stream that a consumer names by a number: the `stream` of Python's `__dlpack__`, as the array API standard has it for CUDA.
///
/// `None` and 1 are the legacy default stream, 2 the calling thread's default stream; -1 is none, because the consumer takes care of the order
/// itself. Other numbers are handles. On the CPU device there is none.
///
/// # Errors
///
/// [`Error::InvalidOption`] if the number is 0, which may mean either default stream, or another negative one, or the stream is
/// being captured into a graph; [`Error::WrongDevice`] if the
/// stream is of another context than the device's; [`Error::Device`] if the driver does not answer.
///
/// # Safety
///
/// A number above 2 must be the handle of a CUDA stream, which outlives the returned one.
///
/// # Examples
///
/// ```
/// use pinfeed::Device;
/// use pinfeed::interop::dlpack::consumer_stream;
///
/// // SAFETY: it is no handle.
/// let none = unsafe { consumer_stream(&Device::cpu(), Some(-1)) }?;
/// assert!(none.is_none());
/// # Ok::<(), pinfeed::Error>(())
/// ```
pub unsafe fn consumer_stream(device: &Device, stream: Option<i64>) -> Result<Option<Stream>> {
    let refused = |reason: &str| {
        Err(Error::option(
            "consumer_stream",
            format!(
                "was given the stream {}: {reason}",
                stream.unwrap_or_default()
            ),
        ))
    };
    let Driver::Cuda(driver) = &device.inner.driver else {
        return match stream {
            None | Some(-1) => Ok(None),
            _ => refused("host memory has none"),
        };
    };
    let handle = match stream {
        Some(-1) => return Ok(None),
        None | Some(1) => std::ptr::null_mut(),
        Some(0) => {
            return refused(
                "it may mean the legacy default stream, which is 1, or the thread's, which is 2",
            );
        }
        Some(number @ 2..) => number as usize as *mut c_void,
        Some(_) => return refused("-1 means none, and other streams are positive"),
    };
    if stream.is_some_and(|number| number > 2) {
        // SAFETY: the caller's contract.
        let is_ours = unsafe { driver.has_stream(handle) }?;
        if !is_ours {
            return Err(Error::WrongDevice {
                what: "the consumer's stream",
                found: "another context".to_owned(),
                expected: device.name(),
            });
        }
    }
    // SAFETY: a default stream, or a stream of the device's context, by the check above and the caller's contract.
    let consumer = unsafe { raw::stream_from_handle(device, handle) };
    if device.inner.driver.is_capturing(consumer.raw())? {
        return refused(
            "it is being captured into a graph, which would read the memory at each launch, when other batches lie there. Copy the batch into \
             memory that the graph reads, before the capture",
        );
    }
    Ok(Some(consumer))
}
