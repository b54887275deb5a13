//! Batches of packed documents on a device.

use super::{Batch, Relocation};
use crate::device::{DeviceTensor, Tensors, Upload};
use crate::tensor::{Element, PackedBatch};

/// A [`PackedBatch`] on a device.
///
/// # Examples
///
/// ```
/// use pinfeed::dataset::{PackedDataset, PackingStrategy};
/// use pinfeed::{DataLoader, Device};
///
/// let device = Device::cpu();
/// let documents = vec![vec![5u32, 6, 7], vec![8], vec![9, 10, 11, 12]];
/// let packed = PackedDataset::new(documents, &[3, 1, 4], 4, PackingStrategy::BestFit)?;
/// let loader = DataLoader::builder(packed).batch_size(2).pin_memory(&device).build()?;
/// for batch in loader.epoch(0).prefetch_to_device(&device, 1) {
///     let batch = batch?;
///     assert_eq!((&batch.tokens.shape()[..], batch.max_seqlen), (&[2, 4][..], 4));
///     assert_eq!(batch.cu_seqlens.to_host(false)?.wait()?.as_slice(), [0, 4, 7, 8]);
/// }
/// # Ok::<(), pinfeed::Error>(())
/// ```
#[derive(Debug)]
pub struct PackedDeviceBatch<T: Element> {
    /// The tokens: `[r, n]`.
    pub tokens: DeviceTensor<T>,
    /// Each token's place in its segment, from 0: `[r, n]`.
    pub position_ids: DeviceTensor<i64>,
    /// Which of its row's documents a token belongs to, from 1; 0 is padding: `[r, n]`.
    pub segment_ids: DeviceTensor<i32>,
    /// 1 for a document's token, 0 for padding: `[r, n]`.
    pub mask: DeviceTensor<u8>,
    /// Where each segment begins among the `r * n` tokens of all rows, and where the last one ends: `[segments + 1]`.
    pub cu_seqlens: DeviceTensor<i32>,
    /// The length of the longest segment. It is on the host, where FlashAttention takes it from.
    pub max_seqlen: usize,
}

impl<T: Element> Batch for PackedBatch<T> {
    type OnDevice = PackedDeviceBatch<T>;

    fn tensors(&self, visit: &mut Tensors<'_>) {
        self.tokens.tensors(visit);
        self.position_ids.tensors(visit);
        self.segment_ids.tensors(visit);
        self.mask.tensors(visit);
        self.cu_seqlens.tensors(visit);
    }

    fn relocate(self, slab: &mut Relocation) -> Self {
        PackedBatch {
            tokens: self.tokens.relocate(slab),
            position_ids: self.position_ids.relocate(slab),
            segment_ids: self.segment_ids.relocate(slab),
            mask: self.mask.relocate(slab),
            cu_seqlens: self.cu_seqlens.relocate(slab),
            max_seqlen: self.max_seqlen,
        }
    }

    fn upload(self, upload: &mut Upload) -> PackedDeviceBatch<T> {
        PackedDeviceBatch {
            tokens: self.tokens.upload(upload),
            position_ids: self.position_ids.upload(upload),
            segment_ids: self.segment_ids.upload(upload),
            mask: self.mask.upload(upload),
            cu_seqlens: self.cu_seqlens.upload(upload),
            max_seqlen: self.max_seqlen,
        }
    }
}
