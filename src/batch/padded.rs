//! Padded batches on a device.

use super::{Batch, Relocation};
use crate::device::{DeviceTensor, Tensors, Upload};
use crate::tensor::{Element, PaddedTensor};

/// A [`PaddedTensor`] on a device.
///
/// # Examples
///
/// ```
/// use pinfeed::{Batch, DataLoader, Device, Padded};
///
/// let device = Device::cpu();
/// let texts = vec![vec![5i64, 6, 7], vec![8]];
/// let texts = pinfeed::from_fn(2, move |index, _| Ok(Padded::from(texts[index as usize].clone())));
/// let loader = DataLoader::builder(texts).batch_size(2).build()?;
/// for batch in &loader {
///     let tokens = batch?.to_device(&device, true)?;
///     assert_eq!((tokens.len(), tokens.padded_len()), (2, 3));
///     assert_eq!(tokens.lengths.to_host(false)?.wait()?.as_slice(), [3, 1]);
/// }
/// # Ok::<(), pinfeed::Error>(())
/// ```
#[derive(Debug)]
pub struct PaddedDeviceTensor<T: Element> {
    /// The samples' rows, each sample's followed by padding: `[n, longest, row_shape..]`.
    pub values: DeviceTensor<T>,
    /// How many rows are each sample's own: `[n]`.
    pub lengths: DeviceTensor<i64>,
}

impl<T: Element> PaddedDeviceTensor<T> {
    /// The number of samples: `n`.
    pub fn len(&self) -> usize {
        self.lengths.len()
    }

    /// Whether there are no samples.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The number of rows that each sample has, with its padding: the longest sample's, or the next multiple.
    pub fn padded_len(&self) -> usize {
        self.values.shape().get(1).copied().unwrap_or(0)
    }
}

impl<T: Element> Batch for PaddedTensor<T> {
    type OnDevice = PaddedDeviceTensor<T>;

    fn tensors(&self, visit: &mut Tensors<'_>) {
        self.values.tensors(visit);
        self.lengths.tensors(visit);
    }

    fn relocate(self, slab: &mut Relocation) -> Self {
        PaddedTensor {
            values: self.values.relocate(slab),
            lengths: self.lengths.relocate(slab),
        }
    }

    fn upload(self, upload: &mut Upload) -> PaddedDeviceTensor<T> {
        PaddedDeviceTensor {
            values: self.values.upload(upload),
            lengths: self.lengths.upload(upload),
        }
    }
}
