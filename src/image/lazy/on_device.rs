//! Pictures that are left to the device that their batch goes to.

use std::path::PathBuf;

use super::{ImageSource, LazyImage};
use crate::BoxError;
use crate::error::CollateError;
use crate::picture::{Change, DecoderLimits, Drawing, EncodedPicture};
use crate::sample::{Field, Layout, Row};

use super::super::decode::DecodeOptions;
use super::super::file::FileBytes;
use super::super::plan::ImageTransform;
use super::super::{Decode, Encoded, OnCpu};

/// A picture is left to its device, if that decodes.
#[derive(Debug, Clone, Copy)]
pub(in crate::image) struct OnDevice {
    /// The CPU decodes some, too.
    shares: bool,
}

impl OnDevice {
    pub(in crate::image) fn of(decode: Decode) -> Option<OnDevice> {
        match decode {
            Decode::Cpu => None,
            Decode::Device => Some(OnDevice { shares: false }),
            Decode::Both => Some(OnDevice { shares: true }),
        }
    }

    /// The rows of such pictures.
    pub(super) fn field(
        self,
        shape: &[usize],
        layout: &mut Layout,
    ) -> Result<Field<u8>, CollateError> {
        layout.pictures(shape)
    }

    /// Leaves the picture to the device, unless the CPU is to decode it.
    pub(super) fn fill(
        self,
        mut image: LazyImage,
        field: &Field<u8>,
        row: &mut Row<'_>,
    ) -> Result<(), CollateError> {
        let Some(limits) = row.decoder(field, self.shares) else {
            return row.decoding(|row| image.draw_into(field, row));
        };
        let new = |limits| EncodedImage::take(&mut image, limits).map_err(OnCpu::name);
        let reason = match limits.and_then(new) {
            Ok((picture, file)) => return row.leave_encoded(field, Box::new(picture), file),
            Err(reason) => reason,
        };
        row.decoding(|row| image.draw_into(field, row))?;
        row.is_left_to_cpu(field, reason);
        Ok(())
    }
}

impl LazyImage {
    /// Sets where the picture is decoded. Default: on the CPU.
    pub fn with_decode(self, decode: Decode) -> LazyImage {
        self.on_device(OnDevice::of(decode))
    }

    /// The picture for a device that decodes it. `Err` says why the CPU does; whatever is wrong with the picture,
    /// [`decode`](LazyImage::decode) will say.
    #[doc(hidden)]
    pub fn for_device(&self, limits: DecoderLimits) -> Result<Encoded<'_>, OnCpu> {
        let file = self.source.encoded().map_err(|_| OnCpu::NotJpeg)?;
        let plan = self.transform.as_ref();
        Encoded::read(file, self.decoding, plan, self.seed, limits)
    }
}

/// A picture whose row the batch's device makes.
struct EncodedImage {
    drawing: Drawing,
    changes: Vec<Change>,
    path: Option<PathBuf>,
    transform: Option<ImageTransform>,
    seed: u64,
    decoding: DecodeOptions,
}

impl EncodedImage {
    /// Takes the picture's parts, unless the CPU is to decode it; and its file, as the decoder takes it, which has the same pixels.
    fn take(
        image: &mut LazyImage,
        limits: DecoderLimits,
    ) -> Result<(EncodedImage, FileBytes), OnCpu> {
        let encoded = image.for_device(limits)?;
        let (drawing, changes) = (*encoded.drawing(), encoded.changes().to_vec());
        let [before, behind] = encoded.frame();
        let data = encoded.data();
        let mut file = match &mut image.source {
            ImageSource::File(file) => std::mem::take(file),
            // A program's own bytes are not changed.
            other => FileBytes::from(other.encoded().map_err(|_| OnCpu::NotJpeg)?.to_vec()),
        };
        file.frame(&before, data, &behind);
        let picture = EncodedImage {
            drawing,
            changes,
            path: image.path.take(),
            transform: image.transform.take(),
            seed: image.seed,
            decoding: image.decoding,
        };
        Ok((picture, file))
    }
}

impl EncodedPicture for EncodedImage {
    fn drawing(&self) -> &Drawing {
        &self.drawing
    }

    fn changes(&self) -> &[Change] {
        &self.changes
    }

    fn draw(&self, file: &[u8], row: &mut [u8]) -> Result<(), BoxError> {
        let image = LazyImage {
            source: ImageSource::Encoded(Box::new(file.to_vec())),
            path: self.path.clone(),
            transform: self.transform.clone(),
            seed: self.seed,
            decoding: self.decoding,
            on_device: None,
        };
        let drawn = image.open().and_then(|opened| {
            let geometry = image.geometry_of(&opened)?;
            opened.draw(&geometry, image.look(), image.may_scale(), row)
        });
        drawn.map_err(|cause| image.error(cause).into())
    }
}
