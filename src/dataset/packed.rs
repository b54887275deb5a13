//! Documents packed into rows of a fixed length, as a data set.

use std::fmt;
use std::ops::{Deref, Range};

use super::cached::TOO_FEW;
use super::packing::{Piece, Rows};
use super::{Dataset, IntoDataset, PackingStrategy, Pass, sample_is_gone};
use crate::error::{BoxError, DocumentError, Error, Result};
use crate::fingerprint::{Fingerprint, spread};
use crate::rng::{RngKey, SampleRng};
use crate::sync::Arc;
use crate::system::room;
use crate::tensor::{Element, PackedRow, Tensor};
use crate::tuning::INDICES_AT_ONCE;

/// Documents packed into rows of `n` tokens, as a data set of rows: [`PackedRow`]s, which make a
/// [`PackedBatch`](crate::packed::PackedBatch).
///
/// Which tokens are in which row follows from the documents' lengths, given when it is made, and the
/// [`PackingStrategy`]. Each token is in one row, once. Documents without tokens are in none. What separates documents (an end-of-text token)
/// belongs to them, and so to their lengths. A row's real tokens come first, and
/// the rest of it is [`with_padding`](PackedDataset::with_padding).
///
/// # Order
///
/// The sampler shuffles *rows*. What shares a row with what is the same in all epochs: neighbours of a document for
/// `Concatenated`, random documents for `Shuffled`. For other neighbours in each epoch, make a data set with another seed for each; a
/// [state](crate::loader::LoaderState) of one does not fit another. Packing is the same on all machines, so
/// data sets of equal lengths are packed alike: tokens and their labels are two of them, side by side
/// (the second example).
///
/// Documents without an index are packed by [`IterableDataset::pack`](crate::iterable::IterableDataset::pack).
///
/// A document that cannot be had is an error of each row that has a part of it ([`DocumentError`]), and
/// [`OnError`](crate::loader::OnError) leaves out or replaces rows.
///
/// # Cost
///
/// To find a row's documents takes a binary search for `Concatenated` and `Shuffled`, and none for `BestFit`. The lists take 8
/// bytes for each document; for `BestFit`, 24 for each document, 16 for each full row of a longer one, and 8 for each row (while it is
/// packed, about twice that).
///
/// A document is got once for each row that has a part of it, so one of a million tokens hundreds of times. That is cheap where it is a
/// view (a [`slice`](Tensor::slice) of a tensor over a mapped file, or an `Arc<[T]>`). It must be the same each time, so one that draws
/// random numbers is an error: draw them in a [`map`](Dataset::map) of the rows.
///
/// # Examples
///
/// ```
/// use pinfeed::dataset::{PackedDataset, PackingStrategy, document_lengths};
/// use pinfeed::{DataLoader, from_fn};
///
/// const END: u16 = 0;
/// let documents = from_fn(1_000, |index, _| {
///     let mut tokens: Vec<u16> = (0..index % 90).map(|token| 1 + token as u16).collect();
///     tokens.push(END);
///     Ok(tokens)
/// });
/// let lengths = document_lengths(&documents)?; // once; or known from an index
/// let rows = PackedDataset::new(documents, &lengths, 128, PackingStrategy::Shuffled { seed: 17 })?;
/// let loader = DataLoader::builder(rows).batch_size(8).shuffle(true).drop_last(true).build()?;
/// for batch in &loader {
///     let batch = batch?;
///     assert_eq!(batch.tokens.shape()[..], [8, 128]);
///     assert_eq!(batch.cu_seqlens.as_slice().last(), Some(&1024));
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Conversations for fine-tuning, whose prompts are not learned:
///
/// ```
/// use pinfeed::dataset::{PackedDataset, PackingStrategy};
/// use pinfeed::{DataLoader, Dataset};
///
/// let tokens = vec![vec![5i64, 6, 7], vec![8, 9], vec![10, 11, 12, 13]];
/// let labels = vec![vec![-100i64, 6, 7], vec![-100, 9], vec![-100, -100, 12, 13]];
/// let lengths = [3, 2, 4];
/// let tokens = PackedDataset::new(tokens, &lengths, 6, PackingStrategy::BestFit)?;
/// let labels = PackedDataset::new(labels, &lengths, 6, PackingStrategy::BestFit)?.with_padding(-100);
/// let rows = tokens.zip(labels.map(|row, _| Ok(row.tokens)))?;
///
/// let (rows, labels) = DataLoader::builder(rows).batch_size(2).build()?.epoch(0).next().unwrap()?;
/// assert_eq!(rows.tokens.as_slice(), [10, 11, 12, 13, 8, 9, 5, 6, 7, 0, 0, 0]);
/// assert_eq!(labels.as_slice(), [-100, -100, 12, 13, -100, 9, -100, 6, 7, -100, -100, -100]);
/// assert_eq!(rows.segment_ids.as_slice(), [1, 1, 1, 1, 2, 2, 1, 1, 1, 0, 0, 0]);
/// # Ok::<(), pinfeed::Error>(())
/// ```
pub struct PackedDataset<D: Dataset<Sample: Document>> {
    documents: D,
    rows: Rows,
    packing: PackingStrategy,
    /// The length of a row.
    n: u32,
    padding: <D::Sample as Document>::Token,
}

impl<D: Dataset<Sample: Document>> PackedDataset<D> {
    /// Packs documents of the given lengths, in tokens, into rows of `n` tokens.
    ///
    /// It takes time in proportion to the number of documents (for `BestFit`, to sort them by length), and gets none of them. If their
    /// lengths are not known, [`document_lengths`] finds them out.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidOption`] if there are not as many lengths as documents, if `n` is 0 or above 2³¹ - 1, or if the lengths'
    /// sum exceeds 2⁶⁴ - 1. A document that has another length than was given is an error of the rows that it is in.
    pub fn new(
        documents: impl IntoDataset<Dataset = D>,
        lengths: &[u64],
        n: usize,
        packing: PackingStrategy,
    ) -> Result<PackedDataset<D>> {
        let documents = documents.into_dataset();
        let refused = |reason: String| Error::option("PackedDataset::new", reason);
        let n = u32::try_from(n)
            .ok()
            .filter(|n| (1..=i32::MAX as u32).contains(n));
        let n = n.ok_or_else(|| refused("a row has 1 to 2³¹ - 1 tokens".into()))?;
        if lengths.len() as u64 != documents.len() {
            return Err(refused(format!(
                "there are {} lengths for {} documents",
                lengths.len(),
                documents.len()
            )));
        }
        let total: u128 = lengths.iter().map(|length| u128::from(*length)).sum();
        if u64::try_from(total).is_err() {
            return Err(refused(format!(
                "the documents have {total} tokens, more than 2⁶⁴ - 1"
            )));
        }
        let token_bytes = size_of::<<D::Sample as Document>::Token>();
        room::check_room(u64::from(n), token_bytes)
            .map_err(|no_room| refused(format!("a row of {n} tokens takes {no_room}")))?;
        let rows = Rows::new(lengths, n, packing).map_err(refused)?;
        Ok(PackedDataset {
            documents,
            rows,
            packing,
            n,
            padding: Default::default(),
        })
    }

    /// Sets the token that rows are filled with. Default: 0.
    pub fn with_padding(self, token: <D::Sample as Document>::Token) -> PackedDataset<D> {
        PackedDataset {
            padding: token,
            ..self
        }
    }

    /// The documents.
    pub fn documents(&self) -> &D {
        &self.documents
    }

    /// The number of tokens of all documents: what is more in `len() * n` is padding.
    pub fn real_tokens(&self) -> u64 {
        self.rows.tokens()
    }

    /// Which tokens of which documents are in a row, in order. (Of a row that does not exist, none.)
    pub fn pieces(&self, row: u64) -> Vec<(u64, Range<u64>)> {
        let pieces = self.rows.pieces(row, self.n).into_iter();
        pieces
            .map(|(piece, _)| (piece.document, piece.tokens))
            .collect()
    }
}

impl<D: Dataset<Sample: Document>> Dataset for PackedDataset<D> {
    type Sample = PackedRow<<D::Sample as Document>::Token>;

    fn len(&self) -> u64 {
        self.rows.len(self.n)
    }

    fn get(&self, index: u64, _: &mut SampleRng) -> Result<Self::Sample, BoxError> {
        let pieces = self.rows.pieces(index, self.n);
        let mut row = PackedRow {
            tokens: Vec::with_capacity(self.n as usize),
            lengths: Vec::with_capacity(pieces.len()),
        };
        for pieces in pieces.chunks(self.documents.at_once().max(1)) {
            let indices: Vec<u64> = pieces.iter().map(|(piece, _)| piece.document).collect();
            let found = get_documents(&self.documents, &indices)?;
            for (found, (Piece { document, tokens }, length)) in found.iter().zip(pieces) {
                let all = found.tokens();
                if all.len() as u64 != *length {
                    let cause = format!(
                        "it has {} tokens, and was packed as one of {length}",
                        all.len()
                    );
                    return Err(failed(&self.documents, *document, cause.into()).into());
                }
                let tokens = &all[tokens.start as usize..tokens.end as usize];
                row.tokens.extend_from_slice(tokens);
                row.lengths.push(tokens.len());
            }
        }
        row.tokens.resize(self.n as usize, self.padding);
        Ok(row)
    }

    /// Names the row's first document.
    fn describe(&self, index: u64) -> Option<String> {
        let pieces = self.pieces(index);
        let (document, _) = pieces.first()?;
        let is_there = *document < self.documents.len();
        let description = is_there.then(|| self.documents.describe(*document));
        let name = match description.flatten() {
            Some(description) => format!("document {document} ({description})"),
            None => format!("document {document}"),
        };
        Some(match pieces.len() - 1 {
            0 => name,
            others => format!("{name} and {others} more"),
        })
    }

    /// As many rows as have so many documents, on average.
    fn lookahead(&self) -> usize {
        let documents = u128::from(self.documents.len().max(1));
        let ahead = self.documents.lookahead() as u128 * u128::from(self.len());
        ahead.div_ceil(documents) as usize
    }

    fn will_need(&self, indices: &[u64], pass: Pass) {
        if self.documents.lookahead() == 0 {
            return;
        }
        if indices.is_empty() {
            return self.documents.will_need(&[], pass);
        }
        let len = self.documents.len();
        let rows = indices.iter().flat_map(|row| self.pieces(*row));
        let mut documents: Vec<u64> = rows.map(|(document, _)| document).collect();
        documents.retain(|document| *document < len);
        documents.dedup();
        let chunks = documents.chunks(INDICES_AT_ONCE);
        chunks.for_each(|chunk| self.documents.will_need(chunk, pass));
    }

    fn pass_ended(&self, pass: Pass) {
        self.documents.pass_ended(pass);
    }

    /// Of the documents, and of what is in 64 rows.
    fn fingerprint(&self) -> u32 {
        let mut print = Fingerprint::new();
        print.add_number(u64::from(self.documents.fingerprint()));
        print.add_number(u64::from(self.n));
        print.add_number(self.len());
        for row in spread(self.len(), 64) {
            for (document, tokens) in self.pieces(row) {
                [document, tokens.start, tokens.end]
                    .into_iter()
                    .for_each(|number| print.add_number(number));
            }
        }
        print.finish()
    }
}

impl<D: Dataset<Sample: Document>> fmt::Debug for PackedDataset<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PackedDataset")
            .field("packing", &self.packing)
            .field("n", &self.n)
            .field("rows", &self.len())
            .field("real_tokens", &self.real_tokens())
            .finish_non_exhaustive()
    }
}

/// Finds out how many tokens each document has, for [`PackedDataset::new`]: gets each of them once, in order, on this thread
/// ([`at_once`](Dataset::at_once) says how many in a call).
///
/// # Errors
///
/// The first document that cannot be had.
///
/// # Examples
///
/// ```
/// use pinfeed::dataset::{VecDataset, document_lengths};
/// use pinfeed::from_fn;
///
/// assert_eq!(document_lengths(&VecDataset::new(vec![vec![1u32, 2], vec![], vec![3]]))?, [2, 0, 1]);
///
/// let broken = from_fn(2, |index, _| match index {
///     0 => Ok(vec![1u32]),
///     _ => Err("it is not text".into()),
/// });
/// let error = document_lengths(&broken).unwrap_err();
/// assert_eq!(error.document, 1);
/// assert_eq!(error.to_string(), "document 1: it is not text");
/// # Ok::<(), pinfeed::error::DocumentError>(())
/// ```
pub fn document_lengths<D: Dataset<Sample: Document>>(
    documents: &D,
) -> Result<Vec<u64>, DocumentError> {
    let (len, at_once) = (documents.len(), documents.at_once().max(1));
    let mut lengths = Vec::new(); // as long as it becomes: a data set may say any length
    for from in (0..len).step_by(at_once) {
        let indices: Vec<u64> = (from..len).take(at_once).collect();
        let found = get_documents(documents, &indices)?;
        for (document, found) in (from..).zip(&found) {
            let length = found.tokens().len() as u64;
            room::push(&mut lengths, length).map_err(|no_room| {
                let cause = format!("the list of lengths takes {no_room}");
                failed(documents, document, cause.into())
            })?;
        }
    }
    Ok(lengths)
}

/// Gets documents, whose indices must not repeat, in one call. Each must be the same at any time: it may be in several rows, and
/// has the length that it was packed with. So its generator is a function of its index, and must come back unused.
fn get_documents<D: Dataset<Sample: Document>>(
    documents: &D,
    indices: &[u64],
) -> Result<Vec<D::Sample>, DocumentError> {
    let unused = |index: &u64| {
        SampleRng::for_sample(RngKey {
            seed: 0,
            epoch: 0,
            position: *index,
        })
    };
    let mut rngs: Vec<_> = indices.iter().map(unused).collect();
    let len = documents.len();
    let mut found = match indices.iter().any(|index| *index >= len) {
        true => indices.iter().map(|_| Err(sample_is_gone(len))).collect(),
        false => documents.get_many(indices, &mut rngs),
    }
    .into_iter();
    let each = indices.iter().zip(rngs);
    each.map(|(index, mut given)| {
        let found = found.next().unwrap_or_else(|| Err(TOO_FEW.into()));
        match found {
            // A generator that was drawn from goes on with another number.
            Ok(_) if given.next_u64() != unused(index).next_u64() => Err(DREW.into()),
            found => found,
        }
        .map_err(|cause| failed(documents, *index, cause))
    })
    .collect()
}

const DREW: &str = "it drew random numbers, and a document must be the same in each row and epoch: draw them in a `map` of the rows";

fn failed<D: Dataset>(documents: &D, document: u64, cause: BoxError) -> DocumentError {
    let description = (document < documents.len()).then(|| documents.describe(document));
    DocumentError::new(document, description.flatten(), cause)
}

/// What a document can be: a `Vec`, an `Arc` of a slice, or a [`Tensor`] of tokens. The trait is sealed.
///
/// # Examples
///
/// In [`PackedDataset`], and in [`IterableDataset::pack`](crate::iterable::IterableDataset::pack).
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a document of tokens",
    note = "documents are Vec<T>, Arc<[T]> or Tensor<T>, where T is u8, u16, u32, i32, i64 or another element of tensors; take what else a sample has away with Dataset::map"
)]
pub trait Document: Send + Sync + 'static + sealed::Sealed {
    /// The type of a token.
    type Token: Element;

    /// Its tokens.
    #[doc(hidden)]
    fn tokens(&self) -> &[Self::Token];
}

mod sealed {
    pub trait Sealed {}
}

macro_rules! documents {
    ($($document:ty, $tokens:expr;)*) => {$(
        impl<T: Element> sealed::Sealed for $document {}

        impl<T: Element> Document for $document {
            type Token = T;

            fn tokens(&self) -> &[T] {
                $tokens(self)
            }
        }
    )*};
}

documents! {
    Vec<T>, Vec::as_slice;
    Arc<[T]>, Deref::deref;
    Tensor<T>, Tensor::as_slice;
}
