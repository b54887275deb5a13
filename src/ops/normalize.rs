//! Normalising pictures on the device: they travel as bytes, become floating point numbers there, and can be mixed on the
//! way.

use super::mixing::MixupDraw;
use crate::device::{DeviceTensor, Stream};
use crate::driver::Normalizing;
use crate::error::{Error, Result};
use crate::tensor::Float;

/// Normalises pictures: each channel of 0 to 255 becomes `(x / 255 - mean) / std`, as torchvision's `ToDtype(scale=True)` and
/// `Normalize` do. The order is red, green, blue.
///
/// [`DeviceTensor::normalize`] does this on the device, so pictures travel as bytes: a quarter of the size of `f32`.
///
/// # Examples
///
/// ```
/// use pinfeed::ops::Normalize;
/// use pinfeed::{Batch, Device, Tensor};
///
/// let device = Device::cpu();
/// let images = Tensor::<u8>::zeros(&[8, 32, 32, 3]).to_device(&device, true)?; // a loader's
/// let images = images.normalize::<f32>(&Normalize::IMAGENET)?;
/// assert_eq!(images.shape()[..], [8, 3, 32, 32]);
/// # Ok::<(), pinfeed::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Normalize {
    mean: [f32; 3],
    std: [f32; 3],
    channels_last: bool,
}

impl Normalize {
    /// The means and standard deviations of ImageNet's channels, which most pretrained models expect.
    pub const IMAGENET: Normalize = Normalize {
        mean: [0.485, 0.456, 0.406],
        std: [0.229, 0.224, 0.225],
        channels_last: false,
    };

    /// Takes the mean and the standard deviation of each channel, of values from 0 to 1.
    ///
    /// # Panics
    ///
    /// If a number is not finite, or a deviation is not positive.
    pub fn new(mean: [f32; 3], std: [f32; 3]) -> Normalize {
        for (mean, std) in mean.into_iter().zip(std) {
            assert!(
                mean.is_finite() && std.is_finite() && std > 0.0,
                "Normalize::new: a mean of {mean} and a deviation of {std}"
            );
        }
        Normalize {
            mean,
            std,
            channels_last: false,
        }
    }

    /// Whether the result is `[n, height, width, 3]` (NHWC) instead of `[n, 3, height, width]` (NCHW). Default: no.
    pub fn with_channels_last(self, channels_last: bool) -> Normalize {
        Normalize {
            channels_last,
            ..self
        }
    }

    /// The mean colour in bytes, which becomes about 0. For [`RandomErasing`](crate::image::RandomErasing) and
    /// [`ImageTransform::with_fill`](crate::image::ImageTransform::with_fill).
    ///
    /// ```
    /// assert_eq!(pinfeed::ops::Normalize::IMAGENET.mean_color(), [124, 116, 104]);
    /// ```
    pub fn mean_color(&self) -> [u8; 3] {
        self.mean.map(|mean| (mean * 255.0).round() as u8)
    }

    /// The factor for a byte, and the bias added to the product.
    fn scale_and_bias(&self) -> ([f32; 3], [f32; 3]) {
        let std = self.std.map(f64::from);
        let scale = std.map(|std| (1.0 / (255.0 * std)) as f32);
        let bias = [0, 1, 2].map(|channel| (-f64::from(self.mean[channel]) / std[channel]) as f32);
        (scale, bias)
    }
}

impl DeviceTensor<u8> {
    /// Normalises pictures of shape `[n, height, width, 3]`, as a batch of [`LazyImage`](crate::image::LazyImage)s has
    /// it, to `f32`, `f16` or `bf16` of shape `[n, 3, height, width]` ([`Normalize::with_channels_last`] for the other
    /// order).
    ///
    /// The values are `x * scale + bias` in `f32` arithmetic, each operation rounded once: within 1e-6 of torchvision's,
    /// then rounded to the type. They are the same on the CPU device.
    ///
    /// # Synchronization
    ///
    /// Returns at once. The device does the work on a separate stream, after the tensor's last write and without
    /// delaying copies. An event guards the result, as with [`Batch::to_device`](crate::Batch::to_device). If the
    /// pool's budget is used up by tensors that were dropped but whose kernels have not finished, the call waits for
    /// the oldest of those.
    ///
    /// # Errors
    ///
    /// The tensor is consumed even on an error. [`Error::InvalidOption`] if it has another shape, [`Error::DeviceBudget`] if
    /// live device tensors leave no room for the result, [`Error::WrongThread`] if a write loan on another thread's
    /// default stream was forgotten, [`Error::ComputeCapability`] on a CUDA device below 7.0 (Pascal and older),
    /// [`Error::Device`] if the device failed.
    pub fn normalize<F: Float>(self, normalize: &Normalize) -> Result<DeviceTensor<F>> {
        self.normalize_by("normalize", normalize, &MixupDraw::none())
    }

    /// Normalises pictures as [`normalize`](DeviceTensor::normalize) does, and mixes each with the one before (the first
    /// one with the last), as torchvision's `MixUp` and `CutMix` do with a normalised batch.
    ///
    /// With MixUp, each value is `lambda * x + (1 - lambda) * before`, of normalised values. With CutMix, the inside of
    /// the box is the picture before. Products and sums are each rounded once, as `f32`, and the result to the type:
    /// nothing is rounded to bytes, and all devices give the same numbers. It is one pass over the bytes.
    /// [`soft_labels`](DeviceTensor::soft_labels) mixes the labels.
    ///
    /// # Synchronization
    ///
    /// As [`normalize`](DeviceTensor::normalize).
    ///
    /// # Errors
    ///
    /// As [`normalize`](DeviceTensor::normalize), and [`Error::InvalidOption`] if `mix` is CutMix for pictures of another size.
    ///
    /// # Examples
    ///
    /// ```
    /// use pinfeed::ops::{MixupDraw, Mixup, Normalize};
    /// use pinfeed::{DataLoader, Device, Tensor, from_fn};
    ///
    /// let device = Device::cpu();
    /// let mixing = Mixup::new().with_mixup(0.2).with_cutmix(1.0);
    /// let pictures = from_fn(32, |index, _| Ok((Tensor::<u8>::zeros(&[32, 32, 3]), index as i64 % 10)));
    /// let loader = DataLoader::builder(pictures).batch_size(8).shuffle(true).build()?;
    /// for batch in loader.epoch(0).prefetch_to_device(&device, 2).with_info() {
    ///     let ((images, labels), info) = batch?;
    ///     let mix: MixupDraw = mixing.draw(&mut info.rng(), 32, 32);
    ///     let images = images.normalize_mixed::<f32>(&Normalize::IMAGENET, &mix)?;
    ///     let targets = labels.soft_labels::<f32>(10, &mix, 0.1)?;
    ///     assert_eq!((&images.shape()[..], &targets.shape()[..]), (&[8, 3, 32, 32][..], &[8, 10][..]));
    /// }
    /// # Ok::<(), pinfeed::Error>(())
    /// ```
    pub fn normalize_mixed<F: Float>(
        self,
        normalize: &Normalize,
        mix: &MixupDraw,
    ) -> Result<DeviceTensor<F>> {
        self.normalize_by("normalize_mixed", normalize, mix)
    }

    fn normalize_by<F: Float>(
        self,
        call: &'static str,
        normalize: &Normalize,
        mix: &MixupDraw,
    ) -> Result<DeviceTensor<F>> {
        let (shape, kernel) = self.normalizing::<F>(call, normalize, mix)?;
        // SAFETY: the kernel reads the bytes of that many pictures, and writes as many elements as the shape has.
        unsafe { self.launch(&shape, kernel) }
    }

    /// As [`normalize_mixed`](DeviceTensor::normalize_mixed), into memory of another allocator: `interop::raw::normalize_to`.
    ///
    /// # Safety
    ///
    /// As `DeviceTensor::launch_into`, for as many elements of `F` as the tensor has bytes.
    pub(crate) unsafe fn normalize_into<F: Float>(
        &self,
        normalize: &Normalize,
        mix: &MixupDraw,
        to: u64,
        stream: &Stream,
    ) -> Result<()> {
        let (_, kernel) = self.normalizing::<F>("normalize_to", normalize, mix)?;
        // SAFETY: the kernel reads the bytes of that many pictures, and writes an element for each of them; the rest is the caller's contract.
        unsafe { self.launch_into("normalize_to", to, stream, kernel) }
    }

    /// The shape of the result, and the kernel that makes it, of two addresses: it reads as many bytes as this tensor has, and writes as many
    /// elements of `F`.
    fn normalizing<F: Float>(
        &self,
        call: &'static str,
        normalize: &Normalize,
        mix: &MixupDraw,
    ) -> Result<([usize; 4], impl FnOnce(u64, u64) -> Normalizing + use<F>)> {
        let [images, height, width, 3] = self.shape()[..] else {
            let reason = format!(
                "takes pictures of shape [n, height, width, 3], and this tensor has {}",
                self.shape()
            );
            return Err(Error::option(call, reason));
        };
        let mixture = mix
            .mixture(height, width)
            .map_err(|reason| Error::option(call, reason))?;
        let channels_last = normalize.channels_last;
        let shape = match channels_last {
            true => [images, height, width, 3],
            false => [images, 3, height, width],
        };
        let (scale, bias) = normalize.scale_and_bias();
        let kernel = move |from, to| Normalizing {
            from,
            to,
            images: images as u64,
            pixels: (height * width) as u64,
            dtype: F::DTYPE,
            channels_last,
            scale,
            bias,
            mixture,
        };
        Ok((shape, kernel))
    }
}
