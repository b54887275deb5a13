//! Batches on a device, as torch's tensors: in memory of torch's own, on its current stream.
//!
//! ```text
//! h2d:   copy -e1
//! torch: wait e1 . copy, or normalize, ring -> torch.empty -e2 . step      the ring's block is free behind e2
//! ```
//!
//! Memory of the library's never leaves: PyTorch drops a tensor whose kernel is queued on another stream, and tells no event of that.
//! What `torch.empty` gives on the current stream is free in that stream's order, so no event is needed there. The tensors are ordinary
//! ones: what other streams do with them is `record_stream`'s, as ever.

use std::ffi::c_void;

use half::{bf16, f16};
use pinfeed::Device;
use pinfeed::interop::raw;
use pinfeed::ops::MixupDraw;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

use crate::errors::{exception, say};
use crate::kind::{AnyDeviceTensor, Kind, each};
use crate::outgoing::{object_of, torch};
use crate::picture::PixelType;
use crate::tree::{DeviceLeaf, Tree};

/// A device, as torch knows it.
pub(crate) struct TorchDevice {
    device: Device,
    ordinal: usize,
    /// `torch.device("cuda:0")`.
    name: Py<PyAny>,
}

impl TorchDevice {
    pub(crate) fn new(py: Python<'_>, device: Device, ordinal: usize) -> PyResult<TorchDevice> {
        let name = py
            .import("torch")?
            .call_method1("device", (format!("cuda:{ordinal}"),))?;
        Ok(TorchDevice {
            device,
            ordinal,
            name: name.unbind(),
        })
    }

    /// The handle of torch's current stream on this device.
    fn current_stream(&self, py: Python<'_>) -> PyResult<usize> {
        static CURRENT: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let current = CURRENT.import(py, "torch.cuda", "current_stream")?;
        current
            .call1((self.ordinal,))?
            .getattr(pyo3::intern!(py, "cuda_stream"))?
            .extract()
    }
}

/// A batch as torch tensors on the device.
pub(crate) fn device_object<'py>(
    py: Python<'py>,
    tree: Tree<DeviceLeaf>,
    device: &TorchDevice,
) -> PyResult<Bound<'py, PyAny>> {
    let stream = device.current_stream(py)?;
    // SAFETY: it is the stream that torch uses now, of the device's primary context. torch ends none of its own streams, and a program that gave
    // torch another one keeps it while torch's work is there. Only this thread uses it here, in case it is a thread's default stream.
    let stream = unsafe { raw::stream_from_handle(&device.device, stream as *mut c_void) };
    object_of(py, tree, &mut |leaf| {
        let finish = leaf.finish;
        let (shape, kind) = match &finish {
            None => (
                each!(&leaf.tensor, AnyDeviceTensor, tensor => tensor.shape().to_vec()),
                leaf.kind,
            ),
            Some(finish) => {
                let shape = each!(&leaf.tensor, AnyDeviceTensor, tensor => tensor.shape().to_vec());
                let kind = match finish.pixel_type {
                    PixelType::F32 => Kind::F32,
                    PixelType::F16 => Kind::F16,
                    PixelType::Bf16 => Kind::BF16,
                };
                match (finish.channels_last, &shape[..]) {
                    (false, &[images, height, width, channels]) => {
                        (vec![images, channels, height, width], kind)
                    }
                    _ => (shape, kind),
                }
            }
        };
        let theirs = torch(py)?.empty(
            py,
            &shape,
            kind,
            &[("device", device.name.bind(py).clone())],
        )?;
        let to: u64 = theirs
            .call_method0(pyo3::intern!(py, "data_ptr"))?
            .extract()?;
        let done = match (&finish, &leaf.tensor) {
            (None, tensor) => each!(tensor, AnyDeviceTensor, tensor => {
                // SAFETY: torch just made the memory, for as many elements of this size, on this device and in this stream's order, where
                // no other use is enqueued before the copy.
                unsafe { raw::copy_to(tensor, to, &stream) }
            }),
            (Some(finish), AnyDeviceTensor::U8(pictures)) => {
                let (normalize, mix) = (finish.on_device(), MixupDraw::none());
                match finish.pixel_type {
                    // SAFETY: as above, for as many numbers as there are bytes.
                    PixelType::F32 => unsafe {
                        raw::normalize_to::<f32>(pictures, &normalize, &mix, to, &stream)
                    },
                    // SAFETY: as above.
                    PixelType::F16 => unsafe {
                        raw::normalize_to::<f16>(pictures, &normalize, &mix, to, &stream)
                    },
                    // SAFETY: as above.
                    PixelType::Bf16 => unsafe {
                        raw::normalize_to::<bf16>(pictures, &normalize, &mix, to, &stream)
                    },
                }
            }
            (Some(_), _) => {
                return Err(say(
                    py,
                    "Error",
                    "pictures that are no bytes are normalized",
                ));
            }
        };
        match done {
            Ok(()) => Ok(theirs),
            Err(error) => Err(exception(py, &error)),
        }
    })
}
