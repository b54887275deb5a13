//! Ragged batches on a device.

use super::{Batch, Relocation};
use crate::device::{DeviceTensor, Tensors, Upload};
use crate::tensor::{Element, RaggedTensor};

/// A [`RaggedTensor`] on a device.
///
/// # Examples
///
/// ```
/// use pinfeed::{Batch, DataLoader, Device, Ragged};
///
/// let device = Device::cpu();
/// let texts = vec![vec![5i64, 6, 7], vec![8]];
/// let texts = pinfeed::from_fn(2, move |index, _| Ok(Ragged::from(texts[index as usize].clone())));
/// let loader = DataLoader::builder(texts).batch_size(2).build()?;
/// for batch in &loader {
///     let tokens = batch?.to_device(&device, true)?;
///     assert_eq!((tokens.len(), tokens.values.len()), (2, 4));
///     assert_eq!(tokens.offsets.to_host(false)?.wait()?.as_slice(), [0, 3, 4]);
/// }
/// # Ok::<(), pinfeed::Error>(())
/// ```
#[derive(Debug)]
pub struct RaggedDeviceTensor<T: Element> {
    /// The rows of all samples, consecutively: `[sum of k, row_shape..]`.
    pub values: DeviceTensor<T>,
    /// Where each sample's rows begin, and where the last sample's end: `[n + 1]`.
    pub offsets: DeviceTensor<i64>,
}

impl<T: Element> RaggedDeviceTensor<T> {
    /// The number of samples.
    pub fn len(&self) -> usize {
        self.offsets.len().saturating_sub(1)
    }

    /// Whether there are no samples.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<T: Element> Batch for RaggedTensor<T> {
    type OnDevice = RaggedDeviceTensor<T>;

    fn tensors(&self, visit: &mut Tensors<'_>) {
        self.values.tensors(visit);
        self.offsets.tensors(visit);
    }

    fn relocate(self, slab: &mut Relocation) -> Self {
        RaggedTensor {
            values: self.values.relocate(slab),
            offsets: self.offsets.relocate(slab),
        }
    }

    fn upload(self, upload: &mut Upload) -> RaggedDeviceTensor<T> {
        RaggedDeviceTensor {
            values: self.values.upload(upload),
            offsets: self.offsets.upload(upload),
        }
    }
}
