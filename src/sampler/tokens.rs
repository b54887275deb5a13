//! Batches of sequences under a budget of tokens.

use std::fmt;

use super::fixed::{check_lists, lists_exceed};
use super::grouped::{LISTS, in_windows, shuffled};
use super::{BatchSampler, Batches, RandomSampler};
use crate::error::{Error, Result};
use crate::fingerprint::{Fingerprint, spread};
use crate::sync::Arc;
use crate::system::room;

/// Batches of sequences of similar lengths, as many as a budget of tokens holds: no batch has more than `budget` tokens when all of its
/// rows are padded to its longest.
///
/// Short sequences so come in large batches, and long ones in small batches: all take about the same memory and time. Each sample
/// comes once in an epoch. The samples are shuffled, sorted by length within [windows](TokenBatchSampler::with_window), and cut into
/// batches; the batches are shuffled. So which samples share a batch changes from epoch to epoch. An epoch takes memory and time for all of
/// its samples.
///
/// The batches are as large as the budget only if they are padded: of [`Padded`](crate::Padded) samples, or by a
/// [`collate_fn`](crate::loader::Builder::collate_fn). Of [`Ragged`](crate::Ragged) samples, which need no padding, they have fewer
/// elements.
///
/// Samples that are padded to a multiple ([`Padded::with_multiple_of`](crate::Padded::with_multiple_of)) make longer rows than their
/// lengths say. Tell [`with_multiple_of`](TokenBatchSampler::with_multiple_of) the same multiple, or batches exceed the budget. Give the
/// lengths that samples have in a batch: what [`truncate`](crate::Padded::truncate) cuts off does not count.
///
/// # Examples
///
/// ```
/// use pinfeed::sampler::{BatchSampler, TokenBatchSampler};
///
/// let lengths: Vec<u32> = (0..1_000).map(|index| 10 + index * 7 % 90).collect();
/// let sampler = TokenBatchSampler::new(lengths.clone(), 4_096, 17)?;
/// let batches = sampler.batches(0);
/// for batch in batches.iter() {
///     let longest = batch.iter().map(|&index| lengths[index as usize]).max().unwrap_or(0);
///     assert!(batch.len() as u64 * u64::from(longest) <= 4_096);
/// }
/// assert_eq!(batches.samples(), 1_000);
/// assert!((13..20).contains(&batches.len())); // 54,500 tokens
/// # Ok::<(), pinfeed::Error>(())
/// ```
#[derive(Clone)]
pub struct TokenBatchSampler {
    lengths: Arc<Vec<u32>>,
    budget: u64,
    seed: u64,
    /// `None`: as many samples as `BATCHES_IN_WINDOW` have.
    window: Option<usize>,
    most_rows: usize,
    /// Rows are padded to a multiple of this.
    multiple: u64,
    shuffle: bool,
}

/// How many batches a window holds, if the program does not say how large it is. Each window has a batch that is not full, of half the size
/// on average: half a percent of all.
const BATCHES_IN_WINDOW: u64 = 100;

impl TokenBatchSampler {
    /// Makes batches of at most `budget` tokens, counted as rows times the longest of them. `lengths`: of each sample of the data set, in
    /// its order. A length of 0 counts as 1.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidOption`] if a single sample is longer than the budget (it says which), or if the lists of an epoch exceed the memory that
    /// the process may use.
    pub fn new(
        lengths: impl IntoIterator<Item = u32>,
        budget: u64,
        seed: u64,
    ) -> Result<TokenBatchSampler> {
        const NEW: &str = "TokenBatchSampler::new";
        let lengths = room::collect(lengths).map_err(|no_room| lists_exceed(NEW, no_room))?;
        check_lists(NEW, lengths.len() as u64, LISTS)?;
        let sampler = TokenBatchSampler {
            lengths: Arc::new(lengths),
            budget,
            seed,
            window: None,
            most_rows: usize::MAX,
            multiple: 1,
            shuffle: true,
        };
        sampler.check(NEW)
    }

    /// Refuses a sample that no batch holds.
    fn check(self, option: &'static str) -> Result<TokenBatchSampler> {
        let budget = self.budget;
        let is_too_long = |length: &u32| self.tokens(*length) > budget;
        let Some(index) = self.lengths.iter().position(is_too_long) else {
            return Ok(self);
        };
        let length = self.lengths[index];
        let counts = match self.multiple {
            1 => String::new(),
            multiple => format!(
                " ({} with padding to a multiple of {multiple})",
                self.tokens(length)
            ),
        };
        let reason = format!(
            "sample {index} has length {length}{counts}, and a batch may have {budget} tokens: raise the budget, or leave the sample out \
             (dataset::Subset)"
        );
        Err(Error::option(option, reason))
    }

    /// Counts rows as if they were padded to a multiple of this length: that of
    /// [`Padded::with_multiple_of`](crate::Padded::with_multiple_of), if the samples have one. Default: 1, to the longest. (0 is the same.)
    ///
    /// # Errors
    ///
    /// [`Error::InvalidOption`] if a single sample is longer than the budget then; it says which.
    ///
    /// # Examples
    ///
    /// ```
    /// use pinfeed::sampler::TokenBatchSampler;
    /// use pinfeed::{DataLoader, Padded, from_fn};
    ///
    /// let length = |index: u64| 10 + index as usize * 7 % 90;
    /// let lengths = (0..1_000).map(|index| length(index) as u32);
    /// let texts = from_fn(1_000, move |index, _| Ok(Padded::from(vec![1i64; length(index)]).with_multiple_of(8)));
    /// let loader = DataLoader::builder(texts)
    ///     .batch_sampler(TokenBatchSampler::new(lengths, 4_096, 17)?.with_multiple_of(8)?)
    ///     .build()?;
    /// for batch in &loader {
    ///     let batch = batch?;
    ///     assert!(batch.len() * batch.padded_len() <= 4_096);
    /// }
    /// # Ok::<(), pinfeed::Error>(())
    /// ```
    pub fn with_multiple_of(self, length: usize) -> Result<TokenBatchSampler> {
        let multiple = length.max(1) as u64;
        TokenBatchSampler { multiple, ..self }.check("TokenBatchSampler::with_multiple_of")
    }

    /// Sets how many samples are sorted by length together; as many as 100 batches have, by default.
    ///
    /// Larger windows pad less; smaller ones mix short and long samples more. `usize::MAX`: all samples are.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidOption`] if it is 0.
    pub fn with_window(self, samples: usize) -> Result<TokenBatchSampler> {
        at_least_one("TokenBatchSampler::with_window", samples)?;
        Ok(TokenBatchSampler {
            window: Some(samples),
            ..self
        })
    }

    /// Sets how many samples a batch may have, however short they are; by default as many as the budget holds.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidOption`] if it is 0.
    pub fn with_max_rows(self, rows: usize) -> Result<TokenBatchSampler> {
        at_least_one("TokenBatchSampler::with_max_rows", rows)?;
        Ok(TokenBatchSampler {
            most_rows: rows,
            ..self
        })
    }

    /// Whether samples and batches are shuffled; on by default. Otherwise windows are parts of the data set, and batches come in the
    /// order of lengths within each.
    pub fn with_shuffle(self, shuffle: bool) -> TokenBatchSampler {
        TokenBatchSampler { shuffle, ..self }
    }

    /// How many tokens a sample counts as. (Of those that have none, a batch would have no end.)
    fn tokens(&self, length: u32) -> u64 {
        let length = u64::from(length).max(1);
        length
            .checked_next_multiple_of(self.multiple)
            .unwrap_or(u64::MAX)
    }

    fn tokens_of(&self, index: u64) -> u64 {
        self.tokens(self.lengths[index as usize])
    }

    /// How many samples are sorted by length together.
    fn samples_in_window(&self) -> usize {
        self.window.unwrap_or_else(|| {
            let each = self.lengths.iter().map(|length| self.tokens(*length));
            let total = each.fold(0, u64::saturating_add).max(1);
            let rows = self.budget.saturating_mul(self.lengths.len() as u64) / total;
            let window = rows.saturating_mul(BATCHES_IN_WINDOW);
            usize::try_from(window).unwrap_or(usize::MAX).max(1)
        })
    }

    /// Adds the batches of samples that are sorted by length.
    fn cut(&self, mut sorted: &[u64], batches: &mut Batches) {
        while !sorted.is_empty() {
            // The longest so far is the last.
            let fits = |(before, index): &(usize, &u64)| {
                let rows = before + 1;
                rows <= self.most_rows
                    && (rows as u64).saturating_mul(self.tokens_of(**index)) <= self.budget
            };
            let rows = sorted.iter().enumerate().take_while(fits).count();
            let (batch, rest) = sorted.split_at(rows.max(1));
            batches.push(batch.iter().copied());
            sorted = rest;
        }
    }
}

impl BatchSampler for TokenBatchSampler {
    fn batches(&self, epoch: u64) -> Batches {
        let samples = self.lengths.len();
        let random = self
            .shuffle
            .then(|| RandomSampler::with_seed(samples as u64, self.seed));
        let mut batches = Batches::with_capacity(samples, 0);
        in_windows(samples, self.samples_in_window(), random, epoch, |window| {
            // Those of equal lengths stay in random order.
            window.sort_by_key(|index| self.lengths[*index as usize].max(1));
            self.cut(window, &mut batches);
        });
        match self.shuffle {
            true => shuffled(&batches, self.seed, epoch),
            false => batches,
        }
    }

    fn fingerprint(&self) -> u32 {
        let mut print = Fingerprint::new();
        let samples = self.lengths.len() as u64;
        let sizes = [self.samples_in_window(), self.most_rows].map(|size| size as u64);
        let numbers = [samples, self.budget, self.seed, u64::from(self.shuffle)];
        let numbers = numbers.into_iter().chain(sizes);
        numbers.for_each(|number| print.add_number(number));
        spread(samples, 64).for_each(|at| print.add_number(self.tokens_of(at)));
        if self.multiple > 1 {
            print.add_number(self.multiple);
        }
        print.finish()
    }
}

impl fmt::Debug for TokenBatchSampler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokenBatchSampler")
            .field("samples", &self.lengths.len())
            .field("budget", &self.budget)
            .field("seed", &self.seed)
            .field("window", &self.samples_in_window())
            .field("most_rows", &self.most_rows)
            .field("multiple", &self.multiple)
            .field("shuffle", &self.shuffle)
            .finish()
    }
}

fn at_least_one(option: &'static str, count: usize) -> Result<()> {
    match count {
        0 => Err(Error::option(option, "is 0: it must be at least 1")),
        _ => Ok(()),
    }
}
