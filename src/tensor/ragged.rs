//! Ragged samples: each has its own number of rows.

use super::{Element, Field, Filled, Layout, Row, Sample, Tensor};
use crate::error::{CollateError, ShapeError};
use crate::sync::Arc;

/// A sample of `k` rows of one shape, where `k` differs between samples: an image's boxes, a text's tokens. `k` may be
/// 0.
///
/// A batch of them is a [`RaggedTensor`]: nothing is padded ([`Padded`](crate::Padded) samples are). A batch with ragged fields is planned
/// from all of its samples, and travels to a device in one piece.
///
/// # Examples
///
/// ```
/// use pinfeed::{DataLoader, Ragged, Tensor, from_fn};
///
/// let samples = from_fn(3, |index, _| {
///     let boxes: Vec<[f32; 4]> = vec![[index as f32; 4]; index as usize];
///     Ok((Tensor::<u8>::zeros(&[8, 8, 3]), Ragged::from(boxes)))
/// });
/// let loader = DataLoader::builder(samples).batch_size(3).build()?;
/// for batch in &loader {
///     let (images, boxes) = batch?;
///     assert_eq!(images.shape()[..], [3, 8, 8, 3]);
///     assert_eq!(boxes.values.shape()[..], [3, 4]); // of the second picture one, of the third two
///     assert_eq!(boxes.offsets.as_slice(), [0, 0, 1, 3]);
///     assert_eq!(boxes.row(2), [2.0; 8]);
/// }
/// # Ok::<(), pinfeed::Error>(())
/// ```
#[derive(Debug, PartialEq)]
pub struct Ragged<T: Element>(Tensor<T>);

impl<T: Element> Ragged<T> {
    /// Takes a tensor of shape `[k, row_shape..]`.
    ///
    /// # Errors
    ///
    /// [`ShapeError`] if it is a scalar, which has no rows.
    pub fn new(rows: Tensor<T>) -> Result<Ragged<T>, ShapeError> {
        if rows.shape().is_empty() {
            return Err(ShapeError {
                elements: rows.len(),
                shape: rows.shape().clone(),
            });
        }
        Ok(Ragged(rows))
    }

    /// The number of rows: `k`.
    pub fn len(&self) -> usize {
        self.0.shape().first().copied().unwrap_or(0)
    }

    /// Whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(crate) fn rows(&self) -> &Tensor<T> {
        &self.0
    }

    pub(super) fn into_rows(self) -> Tensor<T> {
        self.0
    }

    /// Shares the memory, as [`Tensor::view`] does.
    pub(crate) fn view(&self) -> Ragged<T> {
        Ragged(self.0.view())
    }

    fn row_shape(&self) -> &[usize] {
        self.0.shape().get(1..).unwrap_or_default()
    }
}

impl<T: Element> From<Vec<T>> for Ragged<T> {
    /// Takes rows of one number each.
    fn from(rows: Vec<T>) -> Ragged<T> {
        Ragged(Tensor::from(rows))
    }
}

impl<T: Element, const N: usize> From<Vec<[T; N]>> for Ragged<T> {
    /// Takes rows of `N` numbers each.
    fn from(rows: Vec<[T; N]>) -> Ragged<T> {
        let shape = [rows.len(), N];
        match Tensor::from_vec(rows.into_flattened(), &shape) {
            Ok(rows) => Ragged(rows),
            Err(_) => unreachable!("arrays have as many elements as their shape"),
        }
    }
}

/// A batch of [`Ragged`] samples: all of their rows, consecutively, and where each sample's rows begin.
///
/// On a device, it is a [`RaggedDeviceTensor`](crate::ragged::RaggedDeviceTensor). PyTorch's jagged nested tensors and
/// TensorFlow's ragged tensors hold the same data.
///
/// # Examples
///
/// ```
/// use pinfeed::{DataLoader, Ragged, from_fn};
///
/// let texts = vec![vec![5i64, 6, 7], vec![], vec![8]];
/// let texts = from_fn(3, move |index, _| Ok(Ragged::from(texts[index as usize].clone())));
/// let loader = DataLoader::builder(texts).batch_size(3).build()?;
/// for batch in &loader {
///     let tokens = batch?;
///     assert_eq!(tokens.offsets.as_slice(), [0, 3, 3, 4]);
///     let lengths: Vec<usize> = tokens.rows().map(<[i64]>::len).collect();
///     assert_eq!(lengths, [3, 0, 1]);
/// }
/// # Ok::<(), pinfeed::Error>(())
/// ```
#[derive(Debug, PartialEq)]
pub struct RaggedTensor<T: Element> {
    /// The rows of all samples, consecutively: `[sum of k, row_shape..]`. (Without samples: `[0, row_shape..]`, or `[0]` if no sample tells
    /// the row's shape, as in [`Arena::collate`](crate::collate::Arena::collate).)
    pub values: Tensor<T>,
    /// Where each sample's rows begin, and where the last sample's end: `[n + 1]`, from 0 to the number of rows.
    pub offsets: Tensor<i64>,
}

impl<T: Element> RaggedTensor<T> {
    /// The number of samples.
    pub fn len(&self) -> usize {
        self.offsets.len().saturating_sub(1)
    }

    /// Whether there are no samples.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The elements of one sample, row-major. (`as_chunks::<4>()` splits them into boxes.)
    ///
    /// # Panics
    ///
    /// If `index` is not below the number of samples, or if the offsets were overwritten with invalid ones.
    pub fn row(&self, index: usize) -> &[T] {
        assert!(
            index < self.len(),
            "row {index} of a ragged tensor of {} rows",
            self.len()
        );
        let row_elements: usize = self.values.shape().iter().skip(1).product();
        let at = |index: usize| self.offsets.as_slice()[index] as usize * row_elements;
        &self.values.as_slice()[at(index)..at(index + 1)]
    }

    /// The elements of each sample, in order.
    pub fn rows(&self) -> impl ExactSizeIterator<Item = &[T]> {
        (0..self.len()).map(|index| self.row(index))
    }
}

/// Where a batch's rows lie.
#[doc(hidden)]
#[derive(Debug)]
pub struct Plan<T> {
    values: Field<T>,
    offsets: Field<i64>,
}

impl<T: Element> Sample for Ragged<T> {
    type Batch = RaggedTensor<T>;
    type Plan = Plan<T>;
    type Rest = ();
    const ALIKE: bool = false;

    fn plan<'a>(
        samples: impl Iterator<Item = &'a Self> + Clone,
        layout: &mut Layout,
    ) -> Result<Plan<T>, CollateError> {
        let row_shape = samples.clone().next().map_or(&[][..], Ragged::row_shape);
        let mut places = vec![0usize];
        let mut end = 0usize;
        // (An empty batch is planned from a sample that it has not.)
        for sample in samples.take(layout.rows()) {
            let next = end.checked_add(sample.len());
            // Rows without elements take no memory, however many there are.
            end = next
                .filter(|end| i64::try_from(*end).is_ok())
                .ok_or(CollateError::TooLarge)?;
            places.push(end);
        }
        // Each sample writes the end of its rows. No sample owns the first offset; `finish` writes it.
        let ends: Arc<[usize]> = (1..=places.len()).collect();
        Ok(Plan {
            values: layout.ragged_field(row_shape, places.into())?,
            offsets: layout.ragged_field(&[], ends)?,
        })
    }

    fn fill(self, plan: &Plan<T>, row: &mut Row<'_>) -> Result<(), CollateError> {
        if self.row_shape() != &plan.values.row_shape[..] {
            return Err(row.mismatch(&plan.values, self.row_shape().into()));
        }
        let end = row.place(&plan.values)?.end as i64;
        row.slice_mut(&plan.offsets)?.fill(end);
        row.write(&plan.values, self.0.as_slice())
    }

    fn finish(plan: Plan<T>, _: Vec<()>, filled: &mut Filled) -> RaggedTensor<T> {
        let values = filled.take(plan.values);
        let mut offsets = filled.take(plan.offsets);
        match offsets.as_mut_slice() {
            Some(offsets) => offsets[0] = 0,
            None => unreachable!("a field that was just taken is shared by nobody"),
        }
        RaggedTensor { values, offsets }
    }
}

#[cfg(test)]
#[expect(unsafe_code, reason = "it has memory of its own to fill")]
mod tests {
    use std::alloc::Layout as Allocation;
    use std::ptr::NonNull;

    use super::*;
    use crate::tensor::{ALIGNMENT, Storage};

    /// Memory like a batch's slab: aligned, and full of what an earlier batch left.
    struct Slab(NonNull<u8>, Allocation);

    impl Slab {
        fn new(bytes: usize) -> Slab {
            let allocation = Allocation::from_size_align(bytes.max(1), ALIGNMENT).unwrap();
            // SAFETY: the size is not zero.
            let pointer = NonNull::new(unsafe { std::alloc::alloc(allocation) }).unwrap();
            // SAFETY: the memory was just allocated with this size.
            unsafe { pointer.write_bytes(0xA5, allocation.size()) };
            Slab(pointer, allocation)
        }
    }

    impl Drop for Slab {
        fn drop(&mut self) {
            // SAFETY: `new` allocated it with the same layout.
            unsafe { std::alloc::dealloc(self.0.as_ptr(), self.1) };
        }
    }

    // SAFETY: plain memory that is not accessed through the `Slab`.
    unsafe impl Send for Slab {}
    // SAFETY: as above.
    unsafe impl Sync for Slab {}

    impl Storage for Slab {
        fn is_pinned(&self) -> bool {
            false
        }
    }

    /// Collates samples as a loader does, last sample first; other kinds of fields may be present.
    fn collate<S: Sample<Rest = R>, R: Default>(samples: Vec<S>) -> Result<S::Batch, CollateError> {
        let mut layout = Layout::new(samples.len());
        let plan = S::plan(samples.iter(), &mut layout)?;
        let slab = Slab::new(layout.size_bytes());
        let base = slab.0;
        let mut rest = Vec::new();
        for (index, sample) in samples.into_iter().enumerate().rev() {
            // SAFETY: the slab has the layout's size, is initialized, and only this row is written now.
            let mut row = unsafe { Row::new(&layout, base, index, None, false) };
            rest.push(sample.fill(&plan, &mut row)?);
            row.complete()?;
        }
        // SAFETY: as above; the slab lives as long as its `Arc`, and nothing else reaches its bytes.
        let mut filled = unsafe { Filled::new(layout, base, Arc::new(slab), None) };
        rest.reverse();
        Ok(S::finish(plan, rest, &mut filled))
    }

    #[test]
    fn rows_lie_one_behind_the_other() {
        let boxes = |count: usize| vec![[count as f32, 1.0, 2.0, 3.0]; count];
        for counts in [
            &[2, 0, 3, 1][..],
            &[0, 0, 2],
            &[3, 0, 0],
            &[1],
            &[0],
            &[0, 0],
            &[],
        ] {
            let samples = counts
                .iter()
                .map(|count| (Ragged::from(boxes(*count)), *count as i64));
            let (batch, labels) = collate(samples.collect()).unwrap();
            assert_eq!(
                (batch.len(), batch.is_empty()),
                (counts.len(), counts.is_empty())
            );
            let rows: Vec<Vec<f32>> = counts.iter().map(|count| boxes(*count).concat()).collect();
            assert!(
                batch.rows().eq(rows.iter().map(Vec::as_slice)),
                "{counts:?}"
            );
            assert_eq!(batch.values.as_slice(), rows.concat());
            let ends = counts.iter().scan(0, |end, count| {
                *end += *count as i64;
                Some(*end)
            });
            let offsets: Vec<i64> = std::iter::once(0).chain(ends).collect();
            assert_eq!(batch.offsets.as_slice(), offsets);
            let counts: Vec<i64> = counts.iter().map(|count| *count as i64).collect();
            assert_eq!(labels.as_slice(), counts);
            match counts.is_empty() {
                true => assert_eq!(batch.values.shape()[..], [0]),
                false => assert_eq!(batch.values.shape()[..], [rows.concat().len() / 4, 4]),
            }
        }
    }

    #[test]
    fn rows_of_any_shape_are_ragged() {
        let words = collate(vec![Ragged::from(vec![7i64, 8]), Ragged::from(vec![9])]).unwrap();
        assert_eq!(words.values, Tensor::from(vec![7, 8, 9]));
        assert_eq!((words.row(0), words.row(1)), (&[7, 8][..], &[9][..]));

        let masks = |count| Ragged::new(Tensor::<u8>::zeros(&[count, 2, 3])).unwrap();
        let masks = collate(vec![masks(0), masks(2)]).unwrap();
        assert_eq!(masks.values.shape()[..], [2, 2, 3]);
        assert_eq!((masks.row(0).len(), masks.row(1).len()), (0, 12));

        let nothing = collate(vec![
            Ragged::from(vec![[0u8; 0]; 5]),
            Ragged::from(vec![[]; 2]),
        ]);
        let nothing = nothing.unwrap();
        assert_eq!(nothing.values.shape()[..], [7, 0]);
        assert_eq!(nothing.offsets.as_slice(), [0, 5, 7]);
        assert!(Ragged::new(Tensor::<u8>::zeros(&[])).is_err());
    }

    #[test]
    fn rows_of_another_shape_are_refused() {
        let masks = |shape: &[usize]| (0u8, Ragged::new(Tensor::<u8>::zeros(shape)).unwrap());
        let error = collate(vec![masks(&[0, 4]), masks(&[2, 3])]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "field `1`: its shape is [3], and the batch's rows are [4]: make all samples of one shape, or where lengths differ use pinfeed::Padded or pinfeed::Ragged"
        );
        let error = collate(vec![
            Ragged::from(vec![[0u8; 0]; usize::MAX]),
            Ragged::from(vec![[]]),
        ]);
        assert!(matches!(error, Err(CollateError::TooLarge)));
    }

    /// A sample with ragged fields must say that its samples are not alike.
    #[test]
    fn a_plan_of_one_sample_is_refused() {
        let mut layout = Layout::new(2);
        let error = Ragged::plan([Ragged::from(vec![1u8])].iter(), &mut layout).unwrap_err();
        assert!(error.to_string().contains("ALIKE"), "{error}");
        let const_alike = <(i64, Ragged<u8>)>::ALIKE || <(i64, Ragged<u8>)>::DENSE;
        assert!(!const_alike);
    }
}
