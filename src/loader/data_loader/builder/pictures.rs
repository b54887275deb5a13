//! What the builder is told of pictures that a device decodes.

use super::Builder;
use crate::error::{Error, Result};
use crate::tensor::WHOLE_SHARE;

impl<D, C> Builder<D, C> {
    /// Sets the share of the pictures that the device decodes where both it and the workers do
    /// ([`Decode::Both`](crate::image::Decode::Both)), from 0 to 1, rounded to 64ths. By default, it is measured in the first batches.
    ///
    /// A share that is given holds from the first batch on, which then waits until the device's decoder is open. (If a data set of the
    /// program's own hides the [`ImageFolder`](crate::image::ImageFolder), the first batches of a loader's first epoch may still be decoded
    /// by the CPU.) It overrides that of a state that is [resumed](crate::DataLoader::resume).
    ///
    /// # Errors
    ///
    /// [`build`](Builder::build) returns [`Error::InvalidOption`] if it is not from 0 to 1.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use pinfeed::image::{Decode, ImageFolder, ImageTransform};
    /// use pinfeed::{DataLoader, Device};
    ///
    /// let device = Device::cuda(0)?;
    /// let train = ImageFolder::open("imagenet/train")?
    ///     .with_transform(ImageTransform::train(224))
    ///     .with_decode(Decode::Both);
    /// let loader = DataLoader::builder(train)
    ///     .batch_size(256)
    ///     .num_workers(8)
    ///     .pin_memory(&device)
    ///     .device_share(0.7)
    ///     .build()?;
    /// # Ok::<(), pinfeed::Error>(())
    /// ```
    #[cfg(feature = "nvjpeg")]
    pub fn device_share(mut self, share: f64) -> Self {
        self.device_share = Some(share);
        self
    }

    /// How many of 64 pictures the device decodes, if the program says so.
    pub(in crate::loader) fn device_share_of_64(&self) -> Result<Option<u8>> {
        let Some(share) = self.device_share else {
            return Ok(None);
        };
        if !(0.0..=1.0).contains(&share) {
            return Err(Error::option(
                "device_share",
                format!("is {share}: it is the device's share of the pictures, from 0.0 to 1.0"),
            ));
        }
        Ok(Some((share * f64::from(WHOLE_SHARE)).round() as u8))
    }
}
