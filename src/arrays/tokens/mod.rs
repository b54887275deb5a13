//! Files of tokens: what nanoGPT, llm.c and Megatron train from.

mod documents;
mod megatron;
mod windows;

use std::fmt;
use std::ops::Range;
use std::path::Path;

use super::array::{Array, Content};
use super::cursor::Cursor;
use super::file::{FileBytes, IntoFileBytes};
use crate::error::{BoxError, Error, Result};
use crate::fingerprint::{Fingerprint, spread};
use crate::shape::DType;
use crate::sync::Arc;
use crate::system::room;
use crate::tensor::{Element, Tensor};

pub use documents::TokenDocuments;
pub use windows::{WideWindows, Windows};

/// The header of llm.c's files: 256 numbers of 32 bits, of which three say something.
const LLM_C_BYTES: u64 = 1_024;

/// What begins such a file: the tokenizer of GPT-2, or of Llama 3.
const LLM_C: [(u32, u32, DType); 2] = [(20_240_520, 1, DType::U16), (20_240_801, 7, DType::U32)];

/// A file of tokens, one behind the other: `T` is the type that they have in the file. Clones share it.
///
/// - [`raw`](TokenFile::raw): nothing but tokens, as nanoGPT's `prepare.py` writes `train.bin` (`u16`).
/// - [`llm_c`](TokenFile::llm_c): behind a header, as llm.c and modded-nanogpt have them.
/// - [`megatron`](TokenFile::megatron): Megatron's `.bin`, and the `.idx` beside it, which says where documents are.
///
/// They become *windows* of one length ([`windows`](TokenFile::windows)), wherever documents begin, or *documents*
/// ([`documents`](TokenFile::documents)), which [`pack`](TokenDocuments::pack) puts into rows. Both are views of the file: nothing is
/// copied before the batch is made.
///
/// A file that is read as another type is tokens, too, and wrong ones. Say how many the tokenizer has
/// ([`with_vocabulary`](TokenFile::with_vocabulary)), and those that it does not have are errors.
///
/// # Examples
///
/// nanoGPT's `get_batch`, which takes windows that begin anywhere:
///
/// ```
/// use pinfeed::arrays::TokenFile;
/// use pinfeed::{DataLoader, Dataset};
/// use pinfeed::sampler::RandomSampler;
///
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("train.bin");
/// # std::fs::write(&path, (0..1_000u16).flat_map(u16::to_le_bytes).collect::<Vec<u8>>())?;
/// let tokens = TokenFile::<u16>::raw(path)?.with_vocabulary(50_257);
/// let windows = tokens.windows(64)?.with_stride(1)?.to_i64(); // i64, which embeddings take
/// let anywhere = RandomSampler::new(windows.len()).with_replacement().with_num_samples(12 * 100u64);
/// let loader = DataLoader::builder(windows).batch_size(12).sampler(anywhere).build()?;
/// for batch in &loader {
///     let (x, y) = batch?; // y is x, one token later
///     assert_eq!((&x.shape()[..], &y.shape()[..]), (&[12, 64][..], &[12, 64][..]));
///     assert_eq!(x.row(3).as_slice()[1..], y.row(3).as_slice()[..63]);
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct TokenFile<T: Token> {
    inner: Arc<Inner<T>>,
    vocabulary: Option<u64>,
    /// Where each document ends.
    ends: Option<Arc<[u64]>>,
}

struct Inner<T: Token> {
    file: FileBytes,
    tokens: Tensor<T>,
}

impl<T: Token> TokenFile<T> {
    /// Opens a file that has tokens and nothing else, as nanoGPT's `train.bin` (`u16`, in little-endian order).
    ///
    /// # Errors
    ///
    /// [`Error::DataSet`] if the file has a part of a token at its end (it is cut off, or of another type), or is one of those
    /// that the other functions open. Those of [`FileBytes::read`], if it is a path.
    pub fn raw(file: impl IntoFileBytes) -> Result<TokenFile<T>> {
        let file = file.into_file_bytes()?;
        if file.as_slice().starts_with(megatron::MAGIC) {
            return Err(file.refused(
                "it is the .idx of one of Megatron's files: TokenFile::megatron takes both",
            ));
        }
        let mut cursor = Cursor::at(file.as_slice(), 0).unwrap_or(Cursor::EMPTY);
        if cursor
            .u32()
            .is_some_and(|magic| LLM_C.iter().any(|known| known.0 == magic))
        {
            return Err(file.refused("it has the header of llm.c: TokenFile::llm_c opens it"));
        }
        TokenFile::at(file, 0)
    }

    /// Opens a file of llm.c's (`u16` for GPT-2's tokenizer, `u32` for Llama 3's), which has 1,024 bytes of header.
    ///
    /// # Errors
    ///
    /// As [`raw`](TokenFile::raw); and if the header is another, says another type, or another number of tokens than are there.
    pub fn llm_c(file: impl IntoFileBytes) -> Result<TokenFile<T>> {
        let file = file.into_file_bytes()?;
        let mut cursor = Cursor::at(file.as_slice(), 0).unwrap_or(Cursor::EMPTY);
        let mut number = || cursor.u32();
        let header = number().zip(number()).zip(number());
        let known = header.and_then(|((magic, version), count)| {
            let mut known = LLM_C.iter();
            let (.., dtype) = known.find(|known| (known.0, known.1) == (magic, version))?;
            Some((*dtype, u64::from(count)))
        });
        let (dtype, count) = known.ok_or_else(|| {
            file.refused("it does not begin with a header of llm.c's: TokenFile::raw opens files without one")
        })?;
        if dtype != T::DTYPE {
            return Err(other_type(&file, dtype, T::DTYPE));
        }
        if file.len() as u64 != LLM_C_BYTES + count * dtype.size_bytes() as u64 {
            return Err(file.refused(format!(
                "its header says that it has {count} tokens, and it has {} bytes: is it cut off?",
                file.len()
            )));
        }
        TokenFile::at(file, LLM_C_BYTES as usize)
    }

    /// Opens one of Megatron's files (`corpus_text_document.bin`, and the `.idx` that says where documents are), as its
    /// `preprocess_data.py` writes them.
    ///
    /// # Errors
    ///
    /// As [`raw`](TokenFile::raw); and if the index is of another version or another type, is cut off, or does not fit the tokens; or if
    /// it says which kind of input each sequence is (several modes), which cannot be told here.
    ///
    /// # Examples
    ///
    /// ```
    /// use pinfeed::arrays::{FileBytes, TokenFile};
    ///
    /// let bin = [5u16, 6, 7, 8, 9].map(u16::to_le_bytes).concat();
    /// let mut idx = b"MMIDIDX\0\0\x01\0\0\0\0\0\0\0\x08\x02\0\0\0\0\0\0\0\x03\0\0\0\0\0\0\0".to_vec();
    /// idx.extend([3i32, 2].map(i32::to_le_bytes).concat()); // tokens of each sequence
    /// idx.extend([0i64, 6].map(i64::to_le_bytes).concat()); // the byte where it begins
    /// idx.extend([0i64, 1, 2].map(i64::to_le_bytes).concat()); // the sequence where each document begins, and the end
    /// let corpus = TokenFile::<u16>::megatron(FileBytes::new("c.bin", bin)?, FileBytes::new("c.idx", idx)?)?; // or two paths
    /// assert_eq!(corpus.documents()?.lengths(), [3, 2]);
    /// # Ok::<(), pinfeed::Error>(())
    /// ```
    pub fn megatron(bin: impl IntoFileBytes, idx: impl IntoFileBytes) -> Result<TokenFile<T>> {
        let (bin, idx) = (bin.into_file_bytes()?, idx.into_file_bytes()?);
        if bin.as_slice().starts_with(megatron::MAGIC) {
            return Err(
                bin.refused("it is an .idx file, and was given as the .bin: the .bin comes first")
            );
        }
        let ends = megatron::ends::<T>(&idx)?;
        let file: TokenFile<T> = TokenFile::at(bin, 0)?;
        let (said, found) = (ends.last().copied().unwrap_or(0), file.len());
        if said != found {
            return Err(file.inner.file.refused(format!(
                "it has {found} tokens, and {} lists documents of {said}: is it cut off, or of another index?",
                idx.name().display()
            )));
        }
        Ok(TokenFile {
            ends: Some(ends.into()),
            ..file
        })
    }

    /// The tokens that begin at a byte.
    fn at(file: FileBytes, begin: usize) -> Result<TokenFile<T>> {
        let bytes = file.len() - begin;
        if !bytes.is_multiple_of(size_of::<T>()) {
            return Err(file.refused(format!(
                "it has {bytes} bytes of tokens, and each {} takes {}: is it cut off, or of another type?",
                T::DTYPE,
                size_of::<T>()
            )));
        }
        let array = Array {
            name: None,
            dtype: T::DTYPE,
            shape: [bytes / size_of::<T>()].as_slice().into(),
            content: Content::Stored {
                elements: begin..file.len(),
                checked: None,
            },
            is_swapped: cfg!(target_endian = "big") && size_of::<T>() > 1,
            file,
        };
        let tokens = array.tensor()?;
        let inner = Inner {
            file: array.file,
            tokens,
        };
        Ok(TokenFile {
            inner: Arc::new(inner),
            vocabulary: None,
            ends: None,
        })
    }

    /// Says how many tokens the tokenizer has: one that is not below is an error of each window or document that has it. Default: any.
    ///
    /// It takes a pass over the tokens of each window, and of a document each time it is asked for.
    pub fn with_vocabulary(self, tokens: u64) -> TokenFile<T> {
        TokenFile {
            vocabulary: Some(tokens),
            ..self
        }
    }

    /// Finds the documents: each ends with this token (end of text; GPT-2's is 50,256), which belongs to it. Tokens behind the last one
    /// are a document, too. It reads the file once.
    ///
    /// # Errors
    ///
    /// [`Error::DataSet`] if their list does not fit into memory: 8 bytes for each document.
    ///
    /// # Examples
    ///
    /// ```
    /// use pinfeed::DataLoader;
    /// use pinfeed::arrays::{FileBytes, TokenFile};
    /// use pinfeed::dataset::PackingStrategy;
    ///
    /// let bytes = [5u16, 6, 0, 7, 0, 8, 9].map(u16::to_le_bytes).concat();
    /// let tokens = TokenFile::<u16>::raw(FileBytes::new("train.bin", bytes)?)?.split_after(0)?;
    /// assert_eq!(tokens.documents()?.lengths(), [3, 2, 2]);
    ///
    /// let rows = tokens.documents()?.pack(4, PackingStrategy::BestFit)?;
    /// let batch = DataLoader::builder(rows).batch_size(2).build()?.epoch(0).next().unwrap()?;
    /// assert_eq!(batch.tokens.as_slice(), [5, 6, 0, 0, 7, 0, 8, 9]); // the fourth is padding
    /// # Ok::<(), pinfeed::Error>(())
    /// ```
    pub fn split_after(self, end: T) -> Result<TokenFile<T>> {
        let tokens = self.inner.tokens.as_slice();
        let mut ends = Vec::new();
        let last = tokens.len() as u64;
        let found = tokens
            .iter()
            .zip(1u64..)
            .filter(|(token, _)| **token == end);
        let found = found.map(|(_, place)| place).chain([last]);
        for place in found {
            if ends.last().copied().unwrap_or(0) < place {
                room::push(&mut ends, place).map_err(|no_room| {
                    self.inner
                        .file
                        .refused(format!("the list of its documents takes {no_room}"))
                })?;
            }
        }
        Ok(TokenFile {
            ends: Some(ends.into()),
            ..self
        })
    }

    /// The number of tokens.
    pub fn len(&self) -> u64 {
        self.inner.tokens.len() as u64
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All tokens, as a tensor over the file.
    pub fn tokens(&self) -> Tensor<T> {
        self.inner.tokens.view()
    }

    /// The file's path, or the name that it was given.
    pub fn name(&self) -> &Path {
        self.inner.file.name()
    }

    /// Makes a data set of windows of `n` tokens: see [`Windows`].
    ///
    /// # Errors
    ///
    /// [`Error::InvalidOption`] if `n` is 0; [`Error::DataSet`] if the file has no more than `n` tokens.
    pub fn windows(&self, n: usize) -> Result<Windows<T>> {
        Windows::new(self.clone(), n)
    }

    /// Makes a data set of the documents, for [`PackedDataset`](crate::dataset::PackedDataset).
    ///
    /// # Errors
    ///
    /// [`Error::DataSet`] if it is not known where they are: by [`megatron`](TokenFile::megatron), or
    /// [`split_after`](TokenFile::split_after).
    pub fn documents(&self) -> Result<TokenDocuments<T>> {
        match &self.ends {
            Some(ends) => Ok(TokenDocuments::new(self.clone(), Arc::clone(ends))),
            None => Err(self.inner.file.refused(
                "where its documents are is unknown: say which token ends them (TokenFile::split_after), or have an index (TokenFile::megatron)",
            )),
        }
    }

    /// Shares some tokens.
    ///
    /// # Errors
    ///
    /// If one is not of the vocabulary.
    fn some(&self, range: Range<u64>) -> Result<Tensor<T>, BoxError> {
        let some = self
            .inner
            .tokens
            .slice(range.start as usize..range.end as usize);
        let Some(vocabulary) = self.vocabulary else {
            return Ok(some);
        };
        let is_known =
            |token: &T| u64::try_from(token.number()).is_ok_and(|token| token < vocabulary);
        match some.as_slice().iter().position(|token| !is_known(token)) {
            None => Ok(some),
            Some(place) => Err(format!(
                "token {} is {}, and the vocabulary has {vocabulary}: is the file of another type than {}?",
                range.start + place as u64,
                some.as_slice()[place].number(),
                T::DTYPE
            )
            .into()),
        }
    }

    fn is_registered(&self) -> bool {
        self.inner.tokens.storage().registered().is_some()
    }

    /// A fingerprint of the number of tokens and of 64 of them; not of where the file is.
    fn print(&self) -> Fingerprint {
        let mut print = Fingerprint::new();
        print.add_number(self.len());
        print.add_number(size_of::<T>() as u64);
        for place in spread(self.len(), 64) {
            print.add_number(self.inner.tokens.as_slice()[place as usize].number() as u64);
        }
        print
    }
}

impl<T: Token> fmt::Debug for TokenFile<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokenFile")
            .field("name", &self.name())
            .field("dtype", &T::DTYPE)
            .field("tokens", &self.len())
            .field("documents", &self.ends.as_ref().map(|ends| ends.len()))
            .field("is_registered", &self.is_registered())
            .finish()
    }
}

fn other_type(file: &FileBytes, found: DType, asked: DType) -> Error {
    file.refused(format!(
        "its tokens are {found}, and were asked for as {asked}"
    ))
}

/// What a token can be: `u8`, `i8`, `i16`, `u16`, `i32`, `u32` or `i64`. The trait is sealed.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a type of tokens",
    note = "tokens are u8, i8, i16, u16, i32, u32 or i64: the type that the file has them in"
)]
pub trait Token: Element + sealed::Sealed {
    /// Its number.
    #[doc(hidden)]
    fn number(self) -> i64;
}

mod sealed {
    pub trait Sealed {}
}

macro_rules! tokens {
    ($($token:ty),*) => {$(
        impl sealed::Sealed for $token {}

        impl Token for $token {
            fn number(self) -> i64 {
                i64::from(self)
            }
        }
    )*};
}

tokens! { u8, i8, i16, u16, i32, u32, i64 }
