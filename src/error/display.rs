//! The texts of errors: where, what, why, and what to do about it.
//!
//! An error's `{}` ends with its cause, and its `source()` begins after that cause, as with `std::io::Error`. So one
//! printed line includes the reason, and a printed chain repeats nothing.

use std::error::Error as StdError;
use std::fmt;

use super::{Error, Interrupted, Misfit, Refused, SampleId, Stage, TimedOut};

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::InvalidOption { option, reason } => write!(f, "`{option}`: {reason}"),
            Error::Sample(sample, cause) => {
                sample.say(f, &cause.to_string())?;
                f.write_str(" failed to load")
            }
            Error::SamplePanicked(sample, message) => {
                write!(f, "{sample} panicked while loading: {message}")
            }
            Error::SamplerPanicked {
                epoch,
                batch,
                position,
                message,
            } => write!(
                f,
                "the sampler panicked at position {position} of epoch {epoch}, in batch {batch}: {message}"
            ),
            Error::Iterable { epoch, source } if source.is::<Interrupted>() => {
                write!(f, "the iterable of epoch {epoch} was interrupted")
            }
            Error::Iterable { epoch, source } if source.is::<Refused>() => {
                write!(f, "the iterable of epoch {epoch} cannot go on")
            }
            Error::Iterable { epoch, .. } => write!(f, "the iterable of epoch {epoch} did not open"),
            Error::IterablePanicked {
                epoch,
                batch,
                message,
            } => write!(
                f,
                "the iterable of epoch {epoch} panicked in batch {batch}, and has ended: {message}"
            ),
            Error::TimedOut(late) => write!(f, "{late}"),
            Error::TooManyBad {
                epoch,
                bad,
                samples,
                at_most,
            } => write!(
                f,
                "{bad} of {samples} samples of epoch {epoch} failed to load, more than a share of {at_most} (`bad_share_at_most`): \
                 `Stats::bad` lists them; mend the data, or allow more, and resume before this batch"
            ),
            Error::BatchSampler { epoch, reason } => write!(
                f,
                "the batch sampler gave nothing to load in epoch {epoch}: {reason}"
            ),
            Error::Collate(misfit) => misfit.say(f),
            Error::Stack(misfit) => write!(f, "{misfit}"),
            Error::CollateFn { epoch, batch, .. } => {
                write!(f, "collate_fn failed on batch {batch} of epoch {epoch}")
            }
            Error::CollatePanicked {
                epoch,
                batch,
                message,
            } => write!(f, "collating batch {batch} of epoch {epoch} panicked: {message}"),
            Error::Shape(error) => write!(f, "{error}"),
            Error::OwnedBytes {
                dtype,
                shape,
                reason,
            } => write!(
                f,
                "these bytes do not hold a tensor of {dtype} of shape {shape}: {reason}"
            ),
            Error::Io { path, .. } => write!(f, "{} cannot be read", path.display()),
            Error::Write { path, .. } => write!(f, "{} cannot be written", path.display()),
            Error::DataSet { path, reason } => write!(f, "{}: {reason}", path.display()),
            Error::Source(_) => f.write_str("the data cannot be opened"),
            Error::State { reason } => write!(f, "the loader's state cannot be resumed: {reason}"),
            Error::FeatureMissing { feature } => write!(
                f,
                "pinfeed was built without the feature `{feature}`: add it to the dependency in Cargo.toml"
            ),
            Error::Decoder { device, reason } => {
                write!(f, "pictures cannot be decoded on {device}: {reason}")
            }
            Error::NoDriver { detail } => write!(
                f,
                "no CUDA driver on this machine ({detail}): install NVIDIA's driver, or use Device::cpu()"
            ),
            Error::DriverTooOld { found, required } => write!(
                f,
                "the CUDA driver supports CUDA {}.{}, and pinfeed needs {}.{} or newer: update NVIDIA's driver",
                found / 1000,
                found % 1000 / 10,
                required / 1000,
                required % 1000 / 10
            ),
            Error::StubDriver => f.write_str(
                "the CUDA driver library found first is the toolkit's stub, which is for linking only: \
                 remove the toolkit's `stubs` folder from the library path",
            ),
            Error::NoDevice { ordinal, count } => write!(
                f,
                "there is no CUDA device {ordinal}: the driver sees {count} (CUDA_VISIBLE_DEVICES can hide devices)"
            ),
            Error::Device {
                operation,
                device,
                cause,
            } => write!(f, "{operation} failed on {device}: {cause}"),
            Error::Buffers { reason } => write!(f, "the device buffer whose turn it is: {reason}"),
            Error::DeviceBudget {
                requested_bytes,
                budget_bytes,
                held_bytes,
                held_blocks,
                adrift_bytes,
            } => {
                write!(
                    f,
                    "device memory: {requested_bytes} bytes do not fit into the budget of {budget_bytes}"
                )?;
                match held_blocks {
                    0 => f.write_str(", none of which is held. Lower batch_size")?,
                    _ => write!(
                        f,
                        ": {held_blocks} live blocks hold {held_bytes}. Drop batches that you are done with"
                    )?,
                }
                if *adrift_bytes > 0 {
                    write!(
                        f,
                        ", have the {adrift_bytes} bytes swept that are adrift (Device::sweep)"
                    )?;
                }
                f.write_str(", or raise the budget (Device::set_device_budget_bytes)")
            }
            Error::Pinned { bytes, reason } => write!(
                f,
                "page-locked memory: {bytes} bytes are not available: {reason}"
            ),
            Error::HostMemory { bytes } => write!(
                f,
                "host memory: a batch of {bytes} bytes exceeds what this process may use: lower batch_size or \
                 prefetch, or look at the shape of its samples"
            ),
            Error::WrongDevice {
                what,
                found,
                expected,
            } => write!(
                f,
                "{what} belongs to {found}, and the call is for {expected}: copy through the host, or open one device \
                 and clone it"
            ),
            Error::ComputeCapability {
                what,
                device,
                found,
                required,
            } => write!(
                f,
                "{device} has compute capability {}.{}, and {what} is a kernel that needs {}.{} or newer. Loading, pinning and \
                 copies work on this device: do this step on the host, or in kernels of your own",
                found.0, found.1, required.0, required.1
            ),
            Error::WrongThread => f.write_str(
                "this per-thread default stream belongs to another thread: its handle names a different stream here. \
                 Use it on the thread that made it, or use a stream of your own (Device::stream)",
            ),
            Error::Shared { sharers } => write!(
                f,
                "the tensor is shared by {sharers} views or transfers: drop them, or write into another tensor"
            ),
            Error::CannotWait { reason } => write!(f, "the batch cannot be waited for: {reason}"),
            Error::Thread { name, .. } => write!(f, "could not start the thread `{name}`"),
        }?;
        match self.cause() {
            Some(cause) => because(f, cause),
            None => Ok(()),
        }
    }
}

/// `main` and `unwrap` print this: the same text as `{:#}`.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:#}")
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.cause()?.source()
    }
}

impl Error {
    /// The error that caused this one.
    pub(super) fn cause(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            Error::Sample(_, cause)
            | Error::Source(cause)
            | Error::CollateFn { source: cause, .. }
            | Error::Iterable { source: cause, .. } => Some(&**cause),
            Error::Collate(misfit) => Some(&misfit.source),
            Error::Stack(misfit) => StdError::source(&**misfit),
            Error::Io { source, .. }
            | Error::Write { source, .. }
            | Error::Thread { source, .. } => Some(source),
            _ => None,
        }
    }
}

/// Adds the cause; with `{:#}`, also that cause's own chain.
fn because(f: &mut fmt::Formatter<'_>, cause: &dyn StdError) -> fmt::Result {
    let mut said = cause.to_string();
    write!(f, ": {said}")?;
    let mut deeper = cause.source().filter(|_| f.alternate());
    while let Some(cause) = deeper {
        let text = cause.to_string();
        // Some errors already include their cause in their text.
        if !said.ends_with(&text) {
            write!(f, ": {text}")?;
        }
        said = text;
        deeper = cause.source();
    }
    Ok(())
}

/// Whether a cause says what it happened to, as the error of a file begins with its path. (`32 bytes` does not begin with `3`.)
pub(super) fn begins_with(cause: &str, description: &str) -> bool {
    let rest = cause.strip_prefix(description);
    rest.is_some_and(|rest| description.is_empty() || !rest.starts_with(char::is_alphanumeric))
}

impl fmt::Display for SampleId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.say(f, "")
    }
}

impl SampleId {
    /// Writes all but a description with which `cause` begins, as the error of a file begins with its path.
    fn say(&self, f: &mut fmt::Formatter<'_>, cause: &str) -> fmt::Result {
        write!(f, "sample {}", self.index)?;
        if let Some(description) = &self.description
            && !begins_with(cause, description)
        {
            write!(f, " ({description})")?;
        }
        write!(
            f,
            ", row {} of batch {} in epoch {},",
            self.row, self.batch, self.epoch
        )
    }
}

impl fmt::Display for TimedOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (epoch, batch) = (self.epoch, self.batch);
        match &self.sample {
            Some(sample) if self.count > 1 => self.say_several(f, sample)?,
            Some(sample) => write!(f, "{sample}")?,
            None if self.stage == Stage::Sampling => write!(
                f,
                "a position of the sampler, in batch {batch} of epoch {epoch},"
            )?,
            None if self.stage == Stage::Pulling => write!(
                f,
                "an item of the iterable, for batch {batch} of epoch {epoch},"
            )?,
            None => write!(f, "batch {batch} of epoch {epoch}")?,
        }
        let (elapsed, worker) = (self.elapsed, &self.worker);
        write!(
            f,
            " was still being {} after {elapsed:.1?} by {worker}: if this is slow and does not hang, raise `timeout`. ",
            self.stage
        )?;
        f.write_str(match self.stage {
            Stage::Decoding => "The decoder keeps what it uses until it comes back, and what is sent there waits for it",
            _ => "The thread is left alone, keeps what it uses, and ends when it comes back",
        })
    }
}

impl TimedOut {
    /// Which samples were got in one call, from this one on.
    fn say_several(&self, f: &mut fmt::Formatter<'_>, first: &SampleId) -> fmt::Result {
        const MOST: usize = 8;
        let (count, row) = (self.count, first.row);
        write!(f, "one of {count} samples that are got in one call (")?;
        let is_range =
            |(at, index): (usize, &u64)| first.index.checked_add(at as u64 + 1) == Some(*index);
        match self.others.last() {
            None => write!(f, "from sample {} on", first.index)?,
            Some(last) if self.others.iter().enumerate().all(is_range) => {
                write!(f, "samples {} to {last}", first.index)?;
            }
            Some(_) => {
                write!(f, "samples {}", first.index)?;
                for index in self.others.iter().take(MOST - 1) {
                    write!(f, ", {index}")?;
                }
                if count > MOST {
                    f.write_str(", ...")?;
                }
            }
        }
        if let Some(description) = &first.description {
            write!(f, "; the first is {description}")?;
        }
        let last = row + count - 1;
        let (batch, epoch) = (first.batch, first.epoch);
        write!(
            f,
            "), rows {row} to {last} of batch {batch} in epoch {epoch},"
        )
    }
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Stage::Sampling => "looked up",
            Stage::Pulling => "pulled",
            Stage::Loading => "loaded",
            Stage::Filling => "filled into its row",
            Stage::Planning => "laid out",
            Stage::Collating => "collated",
            Stage::Decoding => "decoded",
        })
    }
}

impl Misfit {
    /// Writes everything except the cause.
    fn say(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} does not fit into its batch", self.sample)?;
        let Some(sample) = &self.planned_from else {
            return Ok(());
        };
        write!(f, ", which was planned from sample {}", sample.index)?;
        match &sample.description {
            Some(description) => write!(f, " ({description})"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Misfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.say(f)?;
        because(f, &self.source)
    }
}

impl StdError for Misfit {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.source.source()
    }
}

/// A field's name, as the start of a sentence.
pub(super) struct FieldName<'a>(pub(super) &'a &'static str);

impl fmt::Display for FieldName<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            Ok(())
        } else {
            write!(f, "field `{}`: ", self.0)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::CollateError;
    use super::*;

    fn sample(index: u64, row: usize) -> SampleId {
        SampleId {
            index,
            row,
            batch: 4,
            epoch: 1,
            description: Some(format!("train/cat/{index}.jpg")),
        }
    }

    #[test]
    fn errors_say_where_what_and_what_to_do() {
        let error = Error::Collate(Box::new(Misfit {
            sample: sample(17, 3),
            planned_from: Some(sample(9, 0)),
            source: CollateError::Shape {
                field: "image",
                expected: [224, 224, 3].as_slice().into(),
                found: [200, 224, 3].as_slice().into(),
            },
        }));
        assert_eq!(
            error.to_string(),
            "sample 17 (train/cat/17.jpg), row 3 of batch 4 in epoch 1, does not fit into its batch, \
             which was planned from sample 9 (train/cat/9.jpg): \
             field `image`: its shape is [200, 224, 3], and the batch's rows are [224, 224, 3]: \
             if these are pictures, give the ImageFolder a `.with_transform(..)`, or the LazyImage a `.transform(..)`, that makes them one size, such as \
             ImageTransform::eval(224); sequences whose lengths differ can be pinfeed::Padded or pinfeed::Ragged"
        );
        let error = Error::DriverTooOld {
            found: 11080,
            required: 12000,
        };
        assert!(
            error
                .to_string()
                .starts_with("the CUDA driver supports CUDA 11.8, and pinfeed needs 12.0")
        );
    }

    /// A cause that includes its own cause in its text, as many do.
    #[derive(Debug, thiserror::Error)]
    #[error("reading the header: {0}")]
    struct Twice(#[source] std::fmt::Error);

    #[test]
    fn what_a_cause_says_itself_is_not_said_again() {
        let error = Error::Sample(sample(17, 3), Box::new(Twice(std::fmt::Error)));
        let said = format!("{error:#}");
        assert!(said.ends_with(&format!("failed to load: {}", Twice(std::fmt::Error))));
    }
}
