//! Padded samples: each has its own length, and a batch is as long as its longest.

use super::{Element, Field, Filled, Layout, Ragged, Row, Sample, Tensor};
use crate::error::{CollateError, ShapeError};

/// A sample of `k` rows of one shape, where `k` differs between samples, which is padded to the longest of its batch: a
/// text's tokens, the frames of a spectrogram. `k` may be 0.
///
/// A batch of them is a [`PaddedTensor`]: the values, `[n, longest, row_shape..]`, and the `n` lengths. Rows that
/// follow a sample's own are filled with a value, 0 unless [`with_value`](Padded::with_value) gives another. Each worker
/// writes values and padding in place, once, into page-locked memory if the batch has that. How long a batch is depends
/// on its samples, so it is planned from all of them, and travels to a device in one piece.
///
/// [`Ragged`] wastes no memory on padding, and suits models that take sequences one behind the other.
///
/// # Masks
///
/// The lengths are what recurrent networks and the CTC loss take. For an attention mask that travels beside the
/// values, make [`mask`](Padded::mask) a part of the sample. [`PaddedTensor::mask`] makes one on the host.
///
/// # Examples
///
/// ```
/// use pinfeed::{DataLoader, Padded, from_fn};
///
/// let texts = [vec![5i64, 6, 7], vec![8], vec![9, 10]];
/// let texts = from_fn(3, move |index, _| {
///     let tokens = Padded::from(texts[index as usize].clone());
///     let (mask, labels) = (tokens.mask(), tokens.view().with_value(-100));
///     Ok((tokens, mask, labels))
/// });
/// let loader = DataLoader::builder(texts).batch_size(3).build()?;
/// for batch in &loader {
///     let (tokens, mask, labels) = batch?;
///     assert_eq!(tokens.values.shape()[..], [3, 3]);
///     assert_eq!(tokens.values.as_slice(), [5, 6, 7, 8, 0, 0, 9, 10, 0]);
///     assert_eq!(tokens.lengths.as_slice(), [3, 1, 2]);
///     assert_eq!(mask.values.as_slice(), [1, 1, 1, 1, 0, 0, 1, 1, 0]);
///     assert_eq!(labels.values.row(1).as_slice(), [8, -100, -100]);
/// }
/// # Ok::<(), pinfeed::Error>(())
/// ```
///
/// Spectrograms of 80 bands, with a number of frames that is a multiple of 8:
///
/// ```
/// use pinfeed::{DataLoader, Padded, from_fn};
///
/// let clips = from_fn(4, |index, _| {
///     let frames: Vec<[f32; 80]> = vec![[1.0; 80]; 10 + index as usize];
///     Ok(Padded::from(frames).with_value(-11.5).with_multiple_of(8)) // the logarithm of silence
/// });
/// let loader = DataLoader::builder(clips).batch_size(4).build()?;
/// let clips = loader.epoch(0).next().unwrap()?;
/// assert_eq!(clips.values.shape()[..], [4, 16, 80]);
/// assert_eq!(clips.lengths.as_slice(), [10, 11, 12, 13]);
/// # Ok::<(), pinfeed::Error>(())
/// ```
#[derive(Debug, PartialEq)]
pub struct Padded<T: Element> {
    rows: Tensor<T>,
    value: T,
    multiple: usize,
}

impl<T: Element> Padded<T> {
    /// Takes a tensor of shape `[k, row_shape..]`.
    ///
    /// # Errors
    ///
    /// [`ShapeError`] if it is a scalar, which has no rows.
    pub fn new(rows: Tensor<T>) -> Result<Padded<T>, ShapeError> {
        Ragged::new(rows).map(Padded::from)
    }

    /// Sets the padding's value. Default: 0. (Losses leave out labels of -100, by PyTorch's default.)
    ///
    /// All samples of a batch must have the same: another one is an error of the batch.
    pub fn with_value(self, value: T) -> Padded<T> {
        Padded { value, ..self }
    }

    /// Pads to a multiple of this length, such as 8 or 64, which suits tensor cores. Default: 1, to the longest. (0
    /// is the same.) With `truncate(512)`, `with_multiple_of(512)` makes all batches `[n, 512]`, unless all
    /// samples of one are empty.
    ///
    /// A [`TokenBatchSampler`](crate::sampler::TokenBatchSampler) counts rows to their longest sample: tell its
    /// [`with_multiple_of`](crate::sampler::TokenBatchSampler::with_multiple_of) the same length, or batches exceed its budget.
    ///
    /// All samples of a batch must have the same: another one is an error of the batch.
    pub fn with_multiple_of(self, length: usize) -> Padded<T> {
        Padded {
            multiple: length.max(1),
            ..self
        }
    }

    /// Keeps the first `length` rows, if there are more.
    pub fn truncate(self, length: usize) -> Padded<T> {
        match self.len() {
            all if all > length => Padded {
                rows: self.rows.slice(0..length),
                ..self
            },
            _ => self,
        }
    }

    /// Refuses a sample of more than `length` rows.
    ///
    /// It is an error of the sample, so [`OnError`](crate::loader::OnError) can replace it or leave it out.
    ///
    /// # Errors
    ///
    /// [`CollateError::TooLong`].
    ///
    /// # Examples
    ///
    /// ```
    /// use pinfeed::loader::OnError;
    /// use pinfeed::{DataLoader, Padded, from_fn};
    ///
    /// let texts = from_fn(4, |index, _| Ok(Padded::from(vec![1i64; 10 << index]).at_most(64)?));
    /// let loader = DataLoader::builder(texts).batch_size(4).on_error(OnError::Skip { at_most: 1 }).build()?;
    /// let texts = loader.epoch(0).next().unwrap()?;
    /// assert_eq!(texts.lengths.as_slice(), [10, 20, 40]);
    /// assert!(loader.stats().bad.listed[0].contains("its length is 80, and at most 64 is allowed"));
    /// # Ok::<(), pinfeed::Error>(())
    /// ```
    pub fn at_most(self, length: usize) -> Result<Padded<T>, CollateError> {
        match self.len() {
            found if found > length => Err(CollateError::TooLong {
                found,
                at_most: length,
            }),
            _ => Ok(self),
        }
    }

    /// Makes the attention mask: a sample of as many ones, padded with 0 to the same length. It is `u8`, as `bool` travels.
    pub fn mask(&self) -> Padded<u8> {
        Padded {
            rows: Tensor::from(vec![1; self.len()]),
            value: 0,
            multiple: self.multiple,
        }
    }

    /// Shares the memory, as [`Tensor::view`] does: labels that are the tokens themselves need no copy.
    pub fn view(&self) -> Padded<T> {
        Padded {
            rows: self.rows.view(),
            ..*self
        }
    }

    /// The number of rows: `k`.
    pub fn len(&self) -> usize {
        self.rows.shape().first().copied().unwrap_or(0)
    }

    /// Whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(crate) fn rows(&self) -> &Tensor<T> {
        &self.rows
    }

    fn row_shape(&self) -> &[usize] {
        self.rows.shape().get(1..).unwrap_or_default()
    }

    fn padding(&self) -> Padding<T> {
        Padding {
            value: self.value,
            multiple: self.multiple,
        }
    }
}

impl<T: Element> From<Vec<T>> for Padded<T> {
    /// Takes rows of one number each.
    fn from(rows: Vec<T>) -> Padded<T> {
        Padded::from(Ragged::from(rows))
    }
}

impl<T: Element, const N: usize> From<Vec<[T; N]>> for Padded<T> {
    /// Takes rows of `N` numbers each.
    fn from(rows: Vec<[T; N]>) -> Padded<T> {
        Padded::from(Ragged::from(rows))
    }
}

impl<T: Element> From<Ragged<T>> for Padded<T> {
    /// Takes the same rows.
    fn from(ragged: Ragged<T>) -> Padded<T> {
        Padded {
            rows: ragged.into_rows(),
            value: T::default(),
            multiple: 1,
        }
    }
}

/// A batch of [`Padded`] samples: their rows, the padding behind them, and how many are each sample's own.
///
/// On a device, it is a [`PaddedDeviceTensor`](crate::padded::PaddedDeviceTensor). `values` are what PyTorch's
/// `pad_sequence` makes with `batch_first=True`.
///
/// # Examples
///
/// ```
/// use pinfeed::{DataLoader, Padded, from_fn};
///
/// let texts = [vec![5i64, 6, 7], vec![], vec![8]];
/// let texts = from_fn(3, move |index, _| Ok(Padded::from(texts[index as usize].clone())));
/// let loader = DataLoader::builder(texts).batch_size(3).build()?;
/// let tokens = loader.epoch(0).next().unwrap()?;
/// assert_eq!((tokens.len(), tokens.padded_len()), (3, 3));
/// assert_eq!((tokens.row(0), tokens.row(2)), (&[5, 6, 7][..], &[8][..]));
/// assert_eq!(tokens.mask().as_slice(), [1, 1, 1, 0, 0, 0, 1, 0, 0]);
/// # Ok::<(), pinfeed::Error>(())
/// ```
#[derive(Debug, PartialEq)]
pub struct PaddedTensor<T: Element> {
    /// The samples' rows, each sample's followed by padding: `[n, longest, row_shape..]`. (Without samples: `[0, 0, row_shape..]`, or
    /// `[0, 0]` if no sample tells the row's shape, as in [`Arena::collate`](crate::collate::Arena::collate).)
    pub values: Tensor<T>,
    /// How many rows are each sample's own: `[n]`.
    pub lengths: Tensor<i64>,
}

impl<T: Element> PaddedTensor<T> {
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

    /// The elements of one sample without its padding, row-major.
    ///
    /// # Panics
    ///
    /// If `index` is not below the number of samples, or if the lengths were overwritten with invalid ones.
    pub fn row(&self, index: usize) -> &[T] {
        assert!(
            index < self.len(),
            "row {index} of a padded tensor of {} rows",
            self.len()
        );
        let row_elements = self.values.len() / (self.len() * self.padded_len()).max(1);
        let first = index * self.padded_len() * row_elements;
        let length = self.lengths.as_slice()[index] as usize;
        assert!(
            length <= self.padded_len(),
            "a length is beyond the padding's"
        );
        &self.values.as_slice()[first..first + length * row_elements]
    }

    /// The elements of each sample without its padding, in order.
    pub fn rows(&self) -> impl ExactSizeIterator<Item = &[T]> {
        (0..self.len()).map(|index| self.row(index))
    }

    /// Makes the attention mask, on the host: `[n, longest]`, 1 for a sample's own rows and 0 for padding. PyTorch's
    /// `key_padding_mask` is the opposite.
    ///
    /// For a mask on a device, see [`Padded::mask`].
    pub fn mask(&self) -> Tensor<u8> {
        let longest = self.padded_len();
        let lengths = self.lengths.as_slice().iter().copied();
        let mask: Vec<u8> = lengths
            .flat_map(|length| (0..longest as i64).map(move |place| u8::from(place < length)))
            .collect();
        match Tensor::from_vec(mask, &[self.len(), longest]) {
            Ok(mask) => mask,
            Err(_) => unreachable!("there is one for each place"),
        }
    }
}

/// What the rows behind a sample's own are filled with, and how many there are.
#[derive(Debug, Clone, Copy)]
struct Padding<T> {
    value: T,
    multiple: usize,
}

impl<T: Element> Padding<T> {
    /// A number that is none is the same as another.
    #[expect(clippy::eq_op, reason = "a number that is none differs from itself")]
    fn is(&self, other: &Padding<T>) -> bool {
        let (a, b) = (self.value, other.value);
        self.multiple == other.multiple && (a == b || (a != a && b != b))
    }

    fn say(&self) -> String {
        match self.multiple {
            1 => format!("{:?}", self.value),
            multiple => format!("{:?} to a multiple of {multiple}", self.value),
        }
    }
}

/// Where a batch's rows lie.
#[doc(hidden)]
#[derive(Debug)]
pub struct Plan<T> {
    values: Field<T>,
    lengths: Field<i64>,
    /// The first sample's.
    padding: Padding<T>,
}

impl<T: Element> Sample for Padded<T> {
    type Batch = PaddedTensor<T>;
    type Plan = Plan<T>;
    type Rest = ();
    const ALIKE: bool = false;

    fn plan<'a>(
        samples: impl Iterator<Item = &'a Self> + Clone,
        layout: &mut Layout,
    ) -> Result<Plan<T>, CollateError> {
        // (An empty batch is planned from a sample that it has not.)
        let rows = layout.rows();
        if samples.clone().count() != rows && rows > 0 {
            return Err(CollateError::Other(
                "a batch of `Padded` samples is planned from all of them: `Sample::ALIKE` of what holds them must be false".into(),
            ));
        }
        let first = samples.clone().next();
        let padding = first.map_or(
            Padding {
                value: T::default(),
                multiple: 1,
            },
            Padded::padding,
        );
        let longest = samples.take(rows).map(Padded::len).max().unwrap_or(0);
        let longest = longest.checked_next_multiple_of(padding.multiple);
        let mut shape = vec![longest.ok_or(CollateError::TooLarge)?];
        shape.extend(first.map_or(&[][..], Padded::row_shape));
        Ok(Plan {
            values: layout.field(&shape)?,
            lengths: layout.field(&[])?,
            padding,
        })
    }

    fn fill(self, plan: &Plan<T>, row: &mut Row<'_>) -> Result<(), CollateError> {
        if !self.padding().is(&plan.padding) {
            return Err(CollateError::Padding {
                field: row.name(&plan.values),
                expected: plan.padding.say(),
                found: self.padding().say(),
            });
        }
        if plan.values.row_shape().get(1..) != Some(self.row_shape()) {
            return Err(row.mismatch(&plan.values, self.rows.shape().clone()));
        }
        row.write(&plan.lengths, &[self.len() as i64])?;
        match row.write_padded(&plan.values, self.rows.as_slice(), self.value)? {
            Some(()) => Ok(()),
            None => Err(row.mismatch(&plan.values, self.rows.shape().clone())),
        }
    }

    fn finish(plan: Plan<T>, _: Vec<()>, filled: &mut Filled) -> PaddedTensor<T> {
        PaddedTensor {
            values: filled.take(plan.values),
            lengths: filled.take(plan.lengths),
        }
    }
}
