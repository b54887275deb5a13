//! Documents of a file of tokens, as a data set.

use std::ops::Range;

use super::{Token, TokenFile};
use crate::dataset::{Dataset, PackedDataset, PackingStrategy};
use crate::error::{BoxError, Result};
use crate::rng::SampleRng;
use crate::sync::Arc;
use crate::tensor::Tensor;

/// The documents of a [`TokenFile`], as a data set: each is a view of its tokens. [`pack`](TokenDocuments::pack) puts them into rows.
///
/// # Examples
///
/// ```
/// use pinfeed::DataLoader;
/// use pinfeed::arrays::{FileBytes, TokenFile};
/// use pinfeed::dataset::PackingStrategy;
///
/// const END: u16 = 50_256;
/// let bytes = [5u16, 6, END, 7, END].map(u16::to_le_bytes).concat();
/// let tokens = TokenFile::<u16>::raw(FileBytes::new("train.bin", bytes)?)?; // or a path
/// let rows = tokens.split_after(END)?.documents()?.pack(5, PackingStrategy::Shuffled { seed: 17 })?;
/// let batch = DataLoader::builder(rows).build()?.epoch(0).next().unwrap()?;
/// assert_eq!(batch.cu_seqlens.len(), 3); // two documents in the row
/// # Ok::<(), pinfeed::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct TokenDocuments<T: Token> {
    file: TokenFile<T>,
    ends: Arc<[u64]>,
}

impl<T: Token> TokenDocuments<T> {
    pub(super) fn new(file: TokenFile<T>, ends: Arc<[u64]>) -> TokenDocuments<T> {
        TokenDocuments { file, ends }
    }

    /// The number of tokens of each document, in order.
    pub fn lengths(&self) -> Vec<u64> {
        (0..self.len())
            .map(|index| {
                let range = self.range(index);
                range.end - range.start
            })
            .collect()
    }

    /// Packs the documents into rows of `n` tokens: [`PackedDataset::new`] with their lengths.
    ///
    /// # Errors
    ///
    /// Those of [`PackedDataset::new`].
    pub fn pack(
        self,
        n: usize,
        packing: PackingStrategy,
    ) -> Result<PackedDataset<TokenDocuments<T>>> {
        let lengths = self.lengths();
        PackedDataset::new(self, &lengths, n, packing)
    }

    /// The file.
    pub fn file(&self) -> &TokenFile<T> {
        &self.file
    }

    fn range(&self, index: u64) -> Range<u64> {
        let index = index as usize;
        let begin = index.checked_sub(1).map_or(0, |before| self.ends[before]);
        begin..self.ends[index]
    }
}

impl<T: Token> Dataset for TokenDocuments<T> {
    type Sample = Tensor<T>;

    fn len(&self) -> u64 {
        self.ends.len() as u64
    }

    fn get(&self, index: u64, _: &mut SampleRng) -> Result<Tensor<T>, BoxError> {
        self.file.some(self.range(index))
    }

    fn describe(&self, index: u64) -> Option<String> {
        let range = (index < self.len()).then(|| self.range(index))?;
        let name = self.file.name().display();
        Some(format!("tokens {} to {} of {name}", range.start, range.end))
    }

    fn is_registered(&self) -> bool {
        self.file.is_registered()
    }

    /// Of the numbers of tokens and documents, and of 64 tokens.
    fn fingerprint(&self) -> u32 {
        let mut print = self.file.print();
        print.add_number(self.len());
        print.finish()
    }
}
