//! Windows of tokens, as a data set.

use super::{Token, TokenFile};
use crate::dataset::Dataset;
use crate::error::{BoxError, Error, Result};
use crate::rng::SampleRng;
use crate::tensor::Tensor;

/// Windows of a [`TokenFile`], as a data set. A sample is a pair of `n` tokens each: the input, and the target, which is one token later.
///
/// Window `i` begins at token `i * stride`. By default, the stride is `n`: each token is a target once in an epoch, but for the first one
/// and those behind the last whole window, of which there are fewer than `n`. With a stride of 1, windows begin anywhere, and there are
/// about as many as tokens: nanoGPT's choice, for which [`TokenFile`] has an example. Documents are not looked at: for windows that keep
/// them apart, there is [`TokenDocuments::pack`](super::TokenDocuments::pack).
///
/// Samples are views of the file, so a window costs its copy into the batch, and of a mapped file the reading of its pages. Windows of 16
/// KiB and more (`n` of 8,192 for `u16`) of a [registered](super::FileBytes::register) file are gathered by the device.
///
/// Several files are a [`ConcatDataset`](crate::dataset::ConcatDataset) of their windows.
///
/// # Examples
///
/// ```
/// use pinfeed::arrays::{FileBytes, TokenFile};
/// use pinfeed::{DataLoader, Dataset};
///
/// let bytes = (0..10u16).flat_map(u16::to_le_bytes).collect::<Vec<u8>>();
/// let tokens = TokenFile::<u16>::raw(FileBytes::new("train.bin", bytes)?)?; // or a path
/// let windows = tokens.windows(4)?;
/// assert_eq!((windows.len(), tokens.windows(4)?.with_stride(1)?.len()), (2, 6));
///
/// let loader = DataLoader::builder(windows).batch_size(2).build()?;
/// let (x, y) = loader.epoch(0).next().unwrap()?;
/// assert_eq!(x.as_slice(), [0, 1, 2, 3, 4, 5, 6, 7]);
/// assert_eq!(y.as_slice(), [1, 2, 3, 4, 5, 6, 7, 8]);
///
/// let error = tokens.windows(10).unwrap_err();
/// assert!(error.to_string().contains("train.bin: it has 10 tokens, and a window of 10 and its target take 11"));
/// # Ok::<(), pinfeed::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Windows<T: Token> {
    file: TokenFile<T>,
    n: u64,
    stride: u64,
}

impl<T: Token> Windows<T> {
    pub(super) fn new(file: TokenFile<T>, n: usize) -> Result<Windows<T>> {
        let n = n as u64;
        if n == 0 {
            return Err(Error::option("windows", "a window has 1 token at least"));
        }
        if file.len() <= n {
            return Err(file.inner.file.refused(format!(
                "it has {} tokens, and a window of {n} and its target take {}",
                file.len(),
                u128::from(n) + 1
            )));
        }
        Ok(Windows { file, n, stride: n })
    }

    /// Sets how many tokens later the next window begins. Default: a window's length.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidOption`] if it is 0.
    pub fn with_stride(self, stride: u64) -> Result<Windows<T>> {
        match stride {
            0 => Err(Error::option(
                "with_stride",
                "the next window begins 1 token later at least",
            )),
            _ => Ok(Windows { stride, ..self }),
        }
    }

    /// Makes numbers of 64 bits of the tokens, which candle's and PyTorch's embeddings take. (They cross the link as such: four times as
    /// many bytes as `u16`. A program that has a kernel to widen them sends them as they are.)
    pub fn to_i64(self) -> WideWindows<T> {
        WideWindows { windows: self }
    }

    /// The file.
    pub fn file(&self) -> &TokenFile<T> {
        &self.file
    }

    fn begin(&self, index: u64) -> u64 {
        index * self.stride
    }
}

impl<T: Token> Dataset for Windows<T> {
    type Sample = (Tensor<T>, Tensor<T>);

    fn len(&self) -> u64 {
        (self.file.len() - self.n - 1) / self.stride + 1
    }

    fn get(&self, index: u64, _: &mut SampleRng) -> Result<Self::Sample, BoxError> {
        let begin = self.begin(index);
        let both = self.file.some(begin..begin + self.n + 1)?;
        let n = self.n as usize;
        Ok((both.slice(0..n), both.slice(1..n + 1)))
    }

    fn describe(&self, index: u64) -> Option<String> {
        let begin = (index < self.len()).then(|| self.begin(index))?;
        let name = self.file.name().display();
        Some(format!("tokens {begin} to {} of {name}", begin + self.n))
    }

    fn is_registered(&self) -> bool {
        self.file.is_registered()
    }

    fn sample_bytes(&self) -> Option<usize> {
        Some(2 * self.n as usize * size_of::<T>())
    }

    /// Of the number of tokens, of 64 of them, and of how they are cut.
    fn fingerprint(&self) -> u32 {
        let mut print = self.file.print();
        print.add_number(self.n);
        print.add_number(self.stride);
        print.finish()
    }
}

/// [`Windows`] whose tokens are numbers of 64 bits: [`Windows::to_i64`] makes it.
#[derive(Debug, Clone)]
pub struct WideWindows<T: Token> {
    windows: Windows<T>,
}

impl<T: Token> Dataset for WideWindows<T> {
    type Sample = (Vec<i64>, Vec<i64>);

    fn len(&self) -> u64 {
        self.windows.len()
    }

    fn get(&self, index: u64, rng: &mut SampleRng) -> Result<Self::Sample, BoxError> {
        let (x, y) = self.windows.get(index, rng)?;
        let widen = |tokens: Tensor<T>| {
            tokens
                .as_slice()
                .iter()
                .map(|token| token.number())
                .collect()
        };
        Ok((widen(x), widen(y)))
    }

    fn describe(&self, index: u64) -> Option<String> {
        self.windows.describe(index)
    }

    fn sample_bytes(&self) -> Option<usize> {
        Some(2 * self.windows.n as usize * size_of::<i64>())
    }

    fn fingerprint(&self) -> u32 {
        self.windows.fingerprint()
    }
}
