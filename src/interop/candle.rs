//! candle's tensors: a batch is copied from our device memory to candle's, on the device, ordered by events.

use candle_core::{
    Device as CandleDevice, Error as CandleError, Result as CandleResult, Tensor as CandleTensor,
};

use crate::device::DeviceTensor;
use crate::tensor::{Element, Tensor};

/// An element type that candle supports too: `u8`, `i16`, `u32`, `i32`, `i64`, `f16`, `bf16`, `f32`, `f64`.
#[cfg(not(feature = "candle-cuda"))]
pub trait CandleElement: Element + candle_core::WithDType {}

/// An element type that candle supports too: `u8`, `i16`, `u32`, `i32`, `i64`, `f16`, `bf16`, `f32`, `f64`.
#[cfg(feature = "candle-cuda")]
pub trait CandleElement:
    Element + candle_core::WithDType + candle_core::cuda_backend::CudaDType + cudarc::driver::DeviceRepr
{
}

macro_rules! candle_elements {
    ($($type:ty),*) => {$(impl CandleElement for $type {})*};
}

candle_elements!(u8, i16, u32, i32, i64, half::f16, half::bf16, f32, f64);

impl<T: CandleElement> Tensor<T> {
    /// Copies the tensor to a candle tensor on `device`, which may be any of candle's devices.
    ///
    /// # Synchronization
    ///
    /// The call returns when the tensor has been read, so it waits for a copy to a GPU. For batches, use
    /// [`Batch::to_device`](crate::Batch::to_device) and [`DeviceTensor::to_candle`], which do not wait.
    ///
    /// # Errors
    ///
    /// candle's errors.
    ///
    /// # Examples
    ///
    /// ```
    /// use candle_core::Device;
    /// use pinfeed::Tensor;
    ///
    /// let tensor = Tensor::from_vec(vec![1u32, 2, 3, 4], &[2, 2])?;
    /// let candle = tensor.to_candle(&Device::Cpu)?;
    /// assert_eq!(candle.to_vec2::<u32>()?, [[1, 2], [3, 4]]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn to_candle(&self, device: &CandleDevice) -> CandleResult<CandleTensor> {
        let tensor = CandleTensor::from_slice(self.as_slice(), &self.shape()[..], device)?;
        if !device.is_cpu() {
            // candle returns before a copy from page-locked memory is done, and the memory may be reused.
            device.synchronize()?;
        }
        Ok(tensor)
    }
}

impl<T: CandleElement> DeviceTensor<T> {
    /// Copies the tensor to a candle tensor on `device`: a tensor of [`Device::cpu`](crate::Device::cpu) to candle's
    /// CPU device, one of a CUDA device to candle's device on the same GPU (with the feature `candle-cuda`).
    ///
    /// # Synchronization
    ///
    /// On a GPU the host does not wait, and no data passes through it: candle's stream waits for the upload, and then
    /// copies from device memory to device memory (about 20 us for 38 MB on an H200). The tensor may be dropped at
    /// once. candle's default stream is the calling thread's, so use the result on the thread that made this call. On
    /// the CPU the call waits for the upload.
    ///
    /// # Errors
    ///
    /// candle's errors; this crate's, wrapped, if the devices do not match or a device failed.
    pub fn to_candle(&self, device: &CandleDevice) -> CandleResult<CandleTensor> {
        match device {
            CandleDevice::Cpu if self.device().is_cpu() => {
                let elements = self
                    .host_slice()
                    .map_err(CandleError::wrap)?
                    .unwrap_or_default();
                CandleTensor::from_slice(elements, &self.shape()[..], device)
            }
            #[cfg(feature = "candle-cuda")]
            CandleDevice::Cuda(cuda) => self.to_candle_cuda(cuda),
            _ => Err(CandleError::msg(format!(
                "a pinfeed tensor on {} does not go to candle's {:?}: use candle's device on the same GPU, with \
                 pinfeed's feature `candle-cuda`, or copy through the host (`to_host`)",
                self.device().name(),
                device.location()
            ))),
        }
    }

    #[cfg(feature = "candle-cuda")]
    fn to_candle_cuda(&self, cuda: &candle_core::CudaDevice) -> CandleResult<CandleTensor> {
        use candle_core::op::BackpropOp;
        use cudarc::driver::{DevicePtrMut, result};

        let theirs = cuda.cuda_stream();
        let stream = super::cudarc::stream(&self.device(), &theirs).map_err(CandleError::wrap)?;
        let loan = self.on(&stream).map_err(CandleError::wrap)?;
        // SAFETY: every element is written by the copy below, on the stream that candle uses the slice on.
        let mut slice = unsafe { cuda.alloc::<T>(self.len()) }?;
        if !self.is_empty() {
            let (target, written) = slice.device_ptr_mut(&theirs);
            // SAFETY: both ranges have that length; the loan keeps the source for this stream, after its upload.
            unsafe {
                result::memcpy_dtod_async(
                    target,
                    loan.address(),
                    self.size_bytes(),
                    theirs.cu_stream(),
                )
            }
            .map_err(CandleError::wrap)?;
            drop(written);
        }
        drop(loan);
        let storage = candle_core::CudaStorage::wrap_cuda_slice(slice, cuda.clone());
        let storage = candle_core::Storage::Cuda(storage);
        Ok(CandleTensor::from_storage(
            storage,
            &self.shape()[..],
            BackpropOp::none(),
            false,
        ))
    }
}
