//! What becomes of samples that fail to load: their batch fails, others take their places, or they are left out.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use crate::error::{BoxError, SampleId, panic_message};
use crate::meter::Meter;
use crate::pipeline::traits::Failed;
use crate::sync::log;
use crate::sync::{Condvar, Instant, Mutex};

/// What becomes of a sample that fails to load, or panics.
///
/// It is for samples that are bad themselves: `get` fails, or a lazy sample (a picture) cannot be decoded. What is wrong with a
/// whole batch (a `collate_fn` that fails, a sample of another shape, a sampler's index out of range) is an error in any case.
///
/// What was replaced or left out is counted and listed by [`Stats`](crate::loader::Stats), logged as a warning, and told by
/// [`BatchInfo`](crate::loader::BatchInfo).
///
/// # Quotas
///
/// The quota `at_most` is for each epoch, on each rank (and in each part of an epoch that is [split](crate::loader::Epoch::split)). When it
/// is used up, samples fail their batches. A quota guards against a data set that is mostly broken, and is not reproducible: workers load
/// at the same time, so if more samples are bad than it allows, *which* of them get its last places depends on timing, and may differ from
/// run to run, and on each rank. As long as it is not used up, batches are the same whatever the number of workers and ranks. A resumed
/// epoch begins with a full quota, whatever was used before.
///
/// A quota that is a *share* of the samples is [`bad_share_at_most`](crate::loader::Builder::bad_share_at_most). It counts batches as they
/// are given out, so it is reproducible, and it ends the epoch where it is exceeded.
///
/// # Examples
///
/// ```
/// use pinfeed::loader::OnError;
/// use pinfeed::{DataLoader, from_fn};
///
/// let samples = from_fn(100, |index, _| match index {
///     13 => Err("it is broken".into()),
///     index => Ok(index as i64),
/// });
/// let loader = DataLoader::builder(samples)
///     .batch_size(20)
///     .on_error(OnError::Replace { at_most: 10 })
///     .build()?;
/// for batch in &loader {
///     assert_eq!(batch?.len(), 20);
/// }
/// let stats = loader.stats();
/// assert_eq!(stats.bad.replaced, 1);
/// assert!(stats.bad.listed[0].contains("sample 13"));
/// # Ok::<(), pinfeed::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum OnError {
    /// Its batch is an error, in the batch's place. The default.
    #[default]
    Fail,
    /// Another sample of the epoch's order takes its row. Which one follows from seed, epoch, position and attempt, whatever the
    /// number of workers. (With a [batch sampler](crate::sampler::BatchSampler) it is another of the batch's own list, if the list has
    /// another: what goes together stays together. A sampler may name another one itself:
    /// [`Sampler::instead`](crate::sampler::Sampler::instead).) Batches keep their shapes. If sixteen others fail as well, the batch is an error.
    Replace {
        /// How many samples of an epoch may be replaced.
        at_most: u64,
    },
    /// It is left out, and the rows behind it move up: the batch has fewer rows. A batch of which nothing is left is an error.
    ///
    /// Such a batch is loaded again, by one worker, so bad samples should be rare. Batches do not travel in parts. Prefer
    /// [`Replace`](OnError::Replace).
    ///
    /// An iterable that has nothing for now, such as a stream of shards whose store does not answer, has lost no sample. It is asked again, at
    /// once, and that counts as one in the quota. After sixteen times without an item, there is an error in place of the batch.
    Skip {
        /// How many samples of an epoch may be left out.
        at_most: u64,
    },
}

/// Trying again where an error says that it may go away.
#[derive(Default)]
pub(crate) struct Retry {
    /// How many more times.
    attempts: u32,
    first_wait: Duration,
    /// How often in an epoch.
    at_most: u64,
    /// The loader is being dropped: no thread waits any more.
    is_over: Mutex<bool>,
    ends: Condvar,
}

/// The longest wait before another attempt.
const LONGEST_WAIT: Duration = Duration::from_secs(30);

impl Retry {
    pub(crate) fn new((attempts, first_wait, at_most): (u32, Duration, u64)) -> Retry {
        Retry {
            attempts,
            first_wait,
            at_most,
            ..Retry::default()
        }
    }

    pub(crate) fn attempts(&self) -> u32 {
        self.attempts
    }

    /// Counts an attempt, and lists its sample. `false`: there may be no more in this epoch.
    #[cold]
    pub(crate) fn begin(&self, what: &SampleId, error: &BoxError, meter: &Meter) -> bool {
        let (quota, most) = (&meter.retried, self.at_most);
        if !quota.add_up_to(most) {
            if meter.retries_used_up() {
                log::warn!(
                    "samples were tried again {most} times in this epoch, as often as `retry_at_most` allows: those that fail now fail at \
                     once"
                );
            }
            return false;
        }
        let say = AssertUnwindSafe(|| format!("{what} failed to load: {error}"));
        let said = catch_unwind(say).unwrap_or_else(panic_message);
        if meter.note_bad(&said) {
            log::warn!("{said} (it is tried again)");
        }
        true
    }

    /// Waits before attempt `attempt`, counted from 0: twice as long each time. `false`: the loader is being dropped.
    pub(crate) fn wait(&self, attempt: u32) -> bool {
        let factor = 1u32.checked_shl(attempt).unwrap_or(u32::MAX);
        let wait = self.first_wait.saturating_mul(factor).min(LONGEST_WAIT);
        let end = Instant::now().checked_add(wait);
        let mut is_over = self.is_over.lock();
        while let Some(end) = end.filter(|end| !*is_over && Instant::now() < *end) {
            self.ends.wait_until(&mut is_over, end);
        }
        !*is_over
    }

    /// Ends all waits.
    pub(crate) fn end(&self) {
        *self.is_over.lock() = true;
        self.ends.notify_all();
    }
}

/// How many others are tried for a sample. (It defines results: with another number, other batches fail.)
const MOST_ATTEMPTS: u32 = 16;

/// What to do about a sample that failed.
pub(crate) enum Settled {
    /// Give the task up.
    Fail(Failed),
    /// Go on without it.
    Skip(Failed),
    /// Load another one into its row. `rebuild`: all rows are to be made again, because the layout has no room for another one.
    Replace { rebuild: Option<Failed> },
}

/// How many threads load a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Loading {
    /// One thread makes it alone, and can begin again.
    Solo,
    /// Several share it.
    Shared,
}

impl OnError {
    /// Settles a sample's failure. `attempt`: how many others failed in its row before. `takes_any`: another sample fits the row.
    pub(crate) fn settle(
        self,
        failed: Failed,
        attempt: u32,
        loading: Loading,
        takes_any: bool,
        meter: &Meter,
    ) -> Settled {
        let can_rebuild = |failed, can_rebuild| Failed {
            can_rebuild,
            ..failed
        };
        match (self, loading) {
            _ if !failed.is_samples_own => Settled::Fail(failed),
            (OnError::Fail, _) => Settled::Fail(failed),
            (OnError::Replace { .. }, _) if attempt == MOST_ATTEMPTS => Settled::Fail(failed),
            (OnError::Replace { at_most }, Loading::Shared) if !takes_any => {
                Settled::Fail(can_rebuild(failed, meter.replaced.get() < at_most))
            }
            (OnError::Replace { at_most }, _) if meter.replaced.add_up_to(at_most) => {
                note(&failed.error, "replaced", meter);
                Settled::Replace {
                    rebuild: (!takes_any).then(|| can_rebuild(failed, true)),
                }
            }
            (OnError::Skip { at_most }, _) if meter.skipped.add_up_to(at_most) => {
                note(&failed.error, "left out", meter);
                Settled::Skip(failed)
            }
            _ => {
                note_used_up(self, meter);
                Settled::Fail(failed)
            }
        }
    }

    /// An iterable has no item for now, which costs none: whether it is asked again at once, and that is counted as a sample that is left out.
    /// `in_vain`: how often it was.
    #[cold]
    pub(crate) fn asks_again(self, in_vain: u32, error: &BoxError, meter: &Meter) -> bool {
        let OnError::Skip { at_most } = self else {
            return false;
        };
        if in_vain == MOST_ATTEMPTS {
            return false;
        }
        if !meter.skipped.add_up_to(at_most) {
            note_used_up(self, meter);
            return false;
        }
        note(error, "asked for again", meter);
        true
    }

    /// What becomes of a sample that only tells what the rows of an empty batch would be like: it cannot be left out, for there is no
    /// other.
    pub(crate) fn of_pattern(self) -> OnError {
        match self {
            OnError::Skip { at_most } => OnError::Replace { at_most },
            other => other,
        }
    }

    /// Whether batches may have fewer rows than their places say.
    pub(crate) fn skips(self) -> bool {
        matches!(self, OnError::Skip { .. })
    }
}

/// Lists a sample that failed. (Its error is the user's, and may panic when it is asked what it is.)
fn note(failed: &dyn fmt::Display, becomes: &str, meter: &Meter) {
    let say = AssertUnwindSafe(|| failed.to_string());
    let said = catch_unwind(say).unwrap_or_else(panic_message);
    if meter.note_bad(&said) {
        log::warn!("{said} (it is {becomes})");
    }
}

fn note_used_up(on_error: OnError, meter: &Meter) {
    if meter.quota_used_up() {
        log::warn!(
            "the quota of {on_error:?} is used up in this epoch: samples that fail now fail their batches"
        );
    }
}
