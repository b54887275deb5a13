//! Rows of packed documents: tokens of several documents, one behind the other, in rows of one length.

use super::{Element, Field, Filled, Layout, Row, Sample, Tensor};
use crate::error::CollateError;
use crate::sync::Arc;

/// A row of packed documents: what [`dataset::PackedDataset`](crate::dataset::PackedDataset) and
/// [`iterable::Packed`](crate::iterable::Packed) give, or what a program packs itself.
///
/// A batch of them is a [`PackedBatch`]. To leave out what you do not need, use a `map`: `packed.map(|row, _| Ok(row.tokens))` is a batch
/// of tokens alone.
///
/// # Examples
///
/// Packed by hand:
///
/// ```
/// use pinfeed::DataLoader;
/// use pinfeed::packed::PackedRow;
///
/// let rows = vec![
///     PackedRow { tokens: vec![5u32, 6, 7, 8, 9, 0], lengths: vec![3, 2] },
///     PackedRow { tokens: vec![10, 11, 12, 13, 14, 15], lengths: vec![6] },
/// ];
/// let batch = DataLoader::builder(rows).batch_size(2).build()?.epoch(0).next().unwrap()?;
/// assert_eq!(batch.segment_ids.as_slice(), [1, 1, 1, 2, 2, 0, 1, 1, 1, 1, 1, 1]);
/// # Ok::<(), pinfeed::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PackedRow<T> {
    /// The tokens, with padding behind them: as many in each row of a batch.
    pub tokens: Vec<T>,
    /// How many tokens each document has in this row, in order. What is left of the row is padding.
    pub lengths: Vec<usize>,
}

impl<T> PackedRow<T> {
    /// The number of tokens that are not padding.
    pub fn real_tokens(&self) -> usize {
        self.lengths
            .iter()
            .fold(0, |sum, length| sum.saturating_add(*length))
    }

    /// The lengths of all segments: the documents', and the padding's.
    fn segments(&self) -> impl Iterator<Item = usize> + Clone {
        let padding = self.tokens.len().saturating_sub(self.real_tokens());
        let segments = self.lengths.iter().copied().chain([padding]);
        segments.filter(|length| *length > 0)
    }
}

/// A batch of [`PackedRow`]s: `r` rows of `n` tokens, and where each document begins.
///
/// A *segment* is what a document has in a row: all of it, or a part. The padding behind the last document of a row is a segment too,
/// so that segments cover all tokens. Attention must stay within them, by `cu_seqlens` or by `segment_ids`.
///
/// On a device, it is a [`PackedDeviceBatch`](crate::packed::PackedDeviceBatch).
///
/// # Examples
///
/// ```
/// use pinfeed::dataset::{PackedDataset, PackingStrategy};
/// use pinfeed::DataLoader;
///
/// let documents = vec![vec![5u32, 6, 7], vec![8], vec![9, 10, 11]];
/// let packed = PackedDataset::new(documents, &[3, 1, 3], 5, PackingStrategy::Concatenated)?;
/// let batch = DataLoader::builder(packed).batch_size(2).build()?.epoch(0).next().unwrap()?;
///
/// assert_eq!(batch.tokens.row(0).as_slice(), [5, 6, 7, 8, 9]);
/// assert_eq!(batch.tokens.row(1).as_slice(), [10, 11, 0, 0, 0]);
/// assert_eq!(batch.position_ids.as_slice(), [0, 1, 2, 0, 0, 0, 1, 0, 1, 2]);
/// assert_eq!(batch.segment_ids.as_slice(), [1, 1, 1, 2, 3, 1, 1, 0, 0, 0]);
/// assert_eq!(batch.mask.as_slice(), [1, 1, 1, 1, 1, 1, 1, 0, 0, 0]);
/// assert_eq!(batch.cu_seqlens.as_slice(), [0, 3, 4, 5, 7, 10]);
/// assert_eq!(batch.max_seqlen, 3);
/// # Ok::<(), pinfeed::Error>(())
/// ```
#[derive(Debug, PartialEq)]
pub struct PackedBatch<T: Element> {
    /// The tokens: `[r, n]`.
    pub tokens: Tensor<T>,
    /// Each token's place in its segment, from 0: `[r, n]`. A document that goes on from the row before begins at 0 again, so
    /// no place reaches `n`.
    pub position_ids: Tensor<i64>,
    /// Which of its row's documents a token belongs to, from 1; 0 is padding: `[r, n]`. Tokens may attend to each other
    /// where these are the same. (The convention of T5X and Grain.)
    pub segment_ids: Tensor<i32>,
    /// 1 for a document's token, 0 for padding: `[r, n]`.
    pub mask: Tensor<u8>,
    /// Where each segment begins among the `r * n` tokens of all rows, and where the last one ends: `[segments + 1]`. It is what
    /// FlashAttention's functions for sequences of several lengths take, with the tokens as `[r * n]`.
    pub cu_seqlens: Tensor<i32>,
    /// The length of the longest segment.
    pub max_seqlen: usize,
}

/// Where a batch's fields lie.
#[doc(hidden)]
#[derive(Debug)]
pub struct Plan<T> {
    tokens: Field<T>,
    position_ids: Field<i64>,
    segment_ids: Field<i32>,
    mask: Field<u8>,
    cu_seqlens: Field<i32>,
}

impl<T: Element> Sample for PackedRow<T> {
    type Batch = PackedBatch<T>;
    type Plan = Plan<T>;
    /// The length of the longest segment.
    type Rest = usize;
    const ALIKE: bool = false;

    fn plan<'a>(
        samples: impl Iterator<Item = &'a Self> + Clone,
        layout: &mut Layout,
    ) -> Result<Plan<T>, CollateError> {
        let first = samples.clone().next();
        let width = first.map_or(0, |sample| sample.tokens.len());
        let all = layout.rows().checked_mul(width);
        if all.is_none_or(|all| i32::try_from(all).is_err()) {
            return Err(CollateError::Other(
                "a batch has more tokens than `cu_seqlens`, which are i32, can count: make it smaller, or take the tokens \
                 alone in a `map`"
                    .into(),
            ));
        }
        // Each sample writes the ends of its segments. No sample owns the first place; `finish` writes it.
        // (An empty batch is planned from a sample that it has not.)
        let ends = samples.take(layout.rows()).scan(1, |end, sample| {
            *end += sample.segments().count();
            Some(*end)
        });
        let places: Arc<[usize]> = std::iter::once(1).chain(ends).collect();
        Ok(Plan {
            tokens: layout.field(&[width])?,
            position_ids: layout.field(&[width])?,
            segment_ids: layout.field(&[width])?,
            mask: layout.field(&[width])?,
            cu_seqlens: layout.ragged_field(&[], places)?,
        })
    }

    fn fill(self, plan: &Plan<T>, row: &mut Row<'_>) -> Result<usize, CollateError> {
        let (width, real) = (self.tokens.len(), self.real_tokens());
        row.write(&plan.tokens, &self.tokens)?;
        if real > width {
            let reason = format!("its documents have {real} tokens, and it has {width}");
            return Err(CollateError::Other(reason.into()));
        }

        let mask = row.slice_mut(&plan.mask)?;
        mask[..real].fill(1);
        mask[real..].fill(0);

        let mut ids = row.slice_mut(&plan.segment_ids)?;
        let documents = self.lengths.iter().filter(|length| **length > 0);
        for (id, length) in (1..).zip(documents) {
            ids.split_off_mut(..*length).unwrap_or_default().fill(id);
        }
        ids.fill(0);

        let mut positions = row.slice_mut(&plan.position_ids)?.iter_mut();
        for length in self.segments() {
            for (place, position) in (0..length as i64).zip(positions.by_ref()) {
                *position = place;
            }
        }

        let first = row.place(&plan.tokens)?.start * width;
        let ends = row.slice_mut(&plan.cu_seqlens)?;
        let segments = self.segments().scan(first, |end, length| {
            *end += length;
            Some(*end as i32)
        });
        ends.iter_mut()
            .zip(segments)
            .for_each(|(place, end)| *place = end);
        Ok(self.segments().max().unwrap_or(0))
    }

    fn finish(plan: Plan<T>, longest: Vec<usize>, filled: &mut Filled) -> PackedBatch<T> {
        let mut cu_seqlens = filled.take(plan.cu_seqlens);
        match cu_seqlens.as_mut_slice() {
            Some(places) => places[0] = 0,
            None => unreachable!("a field that was just taken is shared by nobody"),
        }
        PackedBatch {
            tokens: filled.take(plan.tokens),
            position_ids: filled.take(plan.position_ids),
            segment_ids: filled.take(plan.segment_ids),
            mask: filled.take(plan.mask),
            cu_seqlens,
            max_seqlen: longest.into_iter().max().unwrap_or(0),
        }
    }
}
