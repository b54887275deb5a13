//! Where a run of an iterable stands, on one rank.

use std::fmt;
use std::str::FromStr;

use super::state::{DAMAGED, VERSION, field, verified, with_check, wrong};
use crate::error::{Error, Result};
use crate::pipeline::Start;

/// Where a run of an iterable stands, on one rank: how many items of which epoch it was given, and where its source stands. A line of text,
/// for a checkpoint.
///
/// [`DataLoader::state`](crate::DataLoader::state) makes it, and [`DataLoader::resume`](crate::DataLoader::resume) goes on
/// from there, on any number of workers, with any batch size. It counts what the iterator gave out, not what was pulled ahead.
///
/// *Each rank has its own*, so save one for each rank: an iterable is split by its source, and the loader does not know how. So a run is
/// resumed on as many ranks as before. A source that can be dealt to others ([`IterableDataset::hand_over`]) goes on with any number of
/// them: by
/// [`DataLoader::hand_over`](crate::DataLoader::hand_over), of the states of all.
///
/// [`IterableDataset::hand_over`]: crate::iterable::IterableDataset::hand_over
///
/// # Format
///
/// [`Display`](fmt::Display) writes it, [`FromStr`] reads it; with the feature `serde`, it is this string in any format:
///
/// ```text
/// pinfeed-stream-1 epoch=3 items=4096 data=5f0e1c77 seed=17 rank=0 ranks=8 source=00100000 check=b2c1b377
/// ```
///
/// `data` is the source's [fingerprint](crate::iterable::IterableDataset::fingerprint). `source` is the source's own state
/// ([`ItemIter::state`](crate::iterable::ItemIter::state)) in hexadecimal, or missing: then resuming pulls `items` items again, and drops
/// them.
///
/// # Examples
///
/// ```
/// use pinfeed::loader::IterableState;
/// use pinfeed::{DataLoader, iterable};
///
/// let numbers = iterable::from_fn(|_, _| Ok((0..100i64).map(Ok)));
/// let loader = DataLoader::iterable(numbers).batch_size(10).build()?;
/// let mut epoch = loader.epoch(0);
/// epoch.next();
/// let saved = epoch.state().to_string(); // into a file
///
/// let state: IterableState = saved.parse()?;
/// assert_eq!((state.epoch(), state.items()), (0, 10));
/// for resumed in loader.resume(0..1, &state)? {
///     assert_eq!(resumed.map(|batch| batch.unwrap().as_slice()[0]).next(), Some(10));
/// }
/// # Ok::<(), pinfeed::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct IterableState {
    epoch: u64,
    items: u64,
    source: Option<Vec<u8>>,
    /// What it belongs to. `None`: the beginning of any run.
    owner: Option<IterableOwner>,
}

/// What an iterable's state belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct IterableOwner {
    /// The source's fingerprint. `None`: the text does not say.
    pub(super) data: Option<u32>,
    pub(super) seed: u64,
    pub(super) rank: u64,
    pub(super) ranks: u64,
}

const FORMAT: &str = "pinfeed-stream-";

impl IterableState {
    pub(super) fn new(
        epoch: u64,
        items: u64,
        source: Option<Vec<u8>>,
        owner: IterableOwner,
    ) -> IterableState {
        IterableState {
            epoch,
            items,
            source,
            owner: Some(owner),
        }
    }

    /// Returns the epoch to go on with. When an epoch's iterator has returned `None`, that is the next one.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Returns how many items of that epoch this rank was given.
    pub fn items(&self) -> u64 {
        self.items
    }

    pub(super) fn start(&self, ranks: u64) -> Start {
        Start::at(self.epoch, self.items.saturating_mul(ranks))
    }

    pub(super) fn source(&self) -> Option<Vec<u8>> {
        self.source.clone()
    }

    /// What it belongs to. `None`: the beginning of any run.
    pub(super) fn owner(&self) -> Option<IterableOwner> {
        self.owner
    }

    /// What of the run differs, but for its ranks.
    pub(super) fn differences(&self, loader: IterableOwner) -> Vec<String> {
        let Some(saved) = self.owner else {
            return Vec::new();
        };
        let mut differences = Vec::new();
        if saved.data.is_some_and(|data| Some(data) != loader.data) {
            differences.push(
                "its source is another one, or is shuffled, mixed, packed, repeated or cut in another way (their fingerprints differ)"
                    .to_owned(),
            );
        }
        if saved.seed != loader.seed {
            differences.push(format!(
                "its seed is {}, the loader's {}",
                saved.seed, loader.seed
            ));
        }
        differences
    }

    /// Refuses to go on with what the state does not belong to, and says which of it.
    pub(super) fn check(&self, loader: IterableOwner) -> Result<()> {
        let Some(saved) = self.owner else {
            return Ok(());
        };
        let mut differences = self.differences(loader);
        if saved.ranks != loader.ranks {
            differences.push(format!(
                "it is of {} ranks, and there are {}: an iterable is split by its source, and goes on with as many ranks only, or from the states of all of them (DataLoader::hand_over)",
                saved.ranks, loader.ranks
            ));
        } else if saved.rank != loader.rank {
            differences.push(format!(
                "it is that of rank {}, and this is rank {}: each goes on from its own",
                saved.rank, loader.rank
            ));
        }
        match differences.is_empty() {
            true => Ok(()),
            false => Err(wrong(format!(
                "it is another run's: {}",
                differences.join("; ")
            ))),
        }
    }
}

impl fmt::Display for IterableState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = format!(
            "{FORMAT}{VERSION} epoch={} items={}",
            self.epoch, self.items
        );
        if let Some(owner) = self.owner {
            let IterableOwner {
                data,
                seed,
                rank,
                ranks,
            } = owner;
            if let Some(data) = data {
                text += &format!(" data={data:08x}");
            }
            text += &format!(" seed={seed} rank={rank} ranks={ranks}");
        }
        if let Some(source) = &self.source {
            text += " source=";
            source
                .iter()
                .for_each(|byte| text += &format!("{byte:02x}"));
        }
        f.write_str(&with_check(&text))
    }
}

/// Bytes from their hexadecimal digits.
fn bytes(digits: &str) -> Option<Vec<u8>> {
    let pairs = digits.as_bytes().chunks(2);
    let byte = |pair: &[u8]| match pair.len() {
        2 => u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok(),
        _ => None,
    };
    pairs.map(byte).collect()
}

impl FromStr for IterableState {
    type Err = Error;

    /// Reads what [`Display`](fmt::Display) writes; white space around it is ignored.
    ///
    /// # Errors
    ///
    /// [`Error::State`] if the text is no iterable's state, was cut off or changed, or comes from a newer version.
    fn from_str(text: &str) -> Result<IterableState> {
        let content = verified(text, FORMAT, VERSION, "iterable's state")?;
        let number = |name| field(content, name)?.parse::<u64>().ok();
        let damaged = || wrong(DAMAGED);
        let owner = || {
            let data = |digits| u32::from_str_radix(digits, 16).ok();
            Some(IterableOwner {
                data: match field(content, "data") {
                    Some(digits) => Some(data(digits)?),
                    None => None,
                },
                seed: number("seed")?,
                rank: number("rank")?,
                ranks: number("ranks")?,
            })
        };
        let state = IterableState {
            epoch: number("epoch").ok_or_else(damaged)?,
            items: number("items").ok_or_else(damaged)?,
            source: match field(content, "source") {
                Some(digits) => Some(bytes(digits).ok_or_else(damaged)?),
                None => None,
            },
            owner: owner(),
        };
        // Only the beginning belongs to any run.
        match state.owner.is_some() || state == IterableState::default() {
            true => Ok(state),
            false => Err(damaged()),
        }
    }
}

#[cfg(feature = "serde")]
impl serde::Serialize for IterableState {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(feature = "serde")]
impl<'de> serde::Deserialize<'de> for IterableState {
    fn deserialize<D: serde::Deserializer<'de>>(
        deserializer: D,
    ) -> Result<IterableState, D::Error> {
        let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// What an earlier version wrote can be read.
    #[test]
    fn the_format_stays_what_it_is() {
        let owner = IterableOwner {
            data: Some(0x5f0e_1c77),
            seed: 17,
            rank: 0,
            ranks: 8,
        };
        let state = IterableState::new(3, 4096, Some(vec![0, 16, 0, 0]), owner);
        let text = "pinfeed-stream-1 epoch=3 items=4096 data=5f0e1c77 seed=17 rank=0 ranks=8 source=00100000 check=b2c1b377";
        assert_eq!(state.to_string(), text);
        assert_eq!(text.parse::<IterableState>().unwrap(), state);
        // Without a fingerprint, none is compared.
        let text = "pinfeed-stream-1 epoch=3 items=4096 seed=17 rank=0 ranks=8 source=00100000 check=98e3aa1c";
        let earlier = IterableOwner {
            data: None,
            ..owner
        };
        let state = text.parse::<IterableState>().unwrap();
        assert_eq!(
            (state.owner, state.to_string()),
            (Some(earlier), text.into())
        );
        assert!(state.check(owner).is_ok());
        let unknown = IterableState::new(3, 4096, None, owner);
        assert_eq!(
            unknown.to_string().parse::<IterableState>().unwrap(),
            unknown
        );
        let beginning = IterableState::default();
        assert_eq!(
            beginning.to_string().parse::<IterableState>().unwrap(),
            beginning
        );
    }

    #[test]
    fn a_text_that_was_changed_is_refused() {
        let said = |text: &str| {
            with_check(text)
                .parse::<IterableState>()
                .unwrap_err()
                .to_string()
        };
        // Not even with a check that is right.
        for text in [
            "pinfeed-stream-1 epoch=3 items=4096",
            "pinfeed-stream-1 epoch=3 items=x seed=1 rank=0 ranks=1",
            "pinfeed-stream-1 epoch=3 items=0 seed=1 rank=0 ranks=1 source=0",
            "pinfeed-stream-1 epoch=3 items=0 data=x seed=1 rank=0 ranks=1",
            "pinfeed-stream-1 epoch=3 items=0 seed=1 rank=0 ranks=1 source=zz",
        ] {
            assert!(said(text).contains("cut off or changed"), "{text}");
        }
        assert!(said("pinfeed-stream-2 epoch=0").contains("update pinfeed"));
        assert!(said("pinfeed-state-1 epoch=0").contains("no iterable's state"));
    }
}
