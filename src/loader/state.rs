//! Where a run stands, and whether a loader can go on from there.

use std::fmt;
use std::str::FromStr;

use crate::error::{Error, Result};
use crate::fingerprint::Fingerprint;
use crate::pipeline::{Given, Start};

/// Where a run stands: how much of which epoch the program was given. A line of text, for a checkpoint.
///
/// [`DataLoader::state`](crate::DataLoader::state) makes it, and [`DataLoader::resume`](crate::DataLoader::resume) goes on from
/// there, on any number of workers and ranks. It counts the batches that the iterator gave out, not those that were loaded ahead.
/// It has about 150 bytes. Resuming from it takes no longer than beginning an epoch.
///
/// It is global: after equally many steps, the states of all ranks are equal. (If they are not, the ranks do not agree on data set,
/// seed, batch size, sampler or world.) So one rank's state is enough for all. (Except in any order, where each rank has
/// a state of its own: [`Builder::in_order`](crate::loader::Builder::in_order).)
///
/// # In any order
///
/// On several ranks of a loader with [`in_order(false)`](crate::loader::Builder::in_order), it is not global within an epoch: after equally
/// many steps, one rank may still miss a batch that comes before all that another has. So each rank saves a state of its own, and
/// the ranks can only go on together, from their own states, if each has the batches that it had:
///
/// - as many ranks, with the same batch size, each with the state of its own number: [`resume`](crate::DataLoader::resume) refuses others;
/// - as many devices on each rank. Which devices will share an epoch is known when it begins. If they are fewer or more, it has
///   one batch, which is the error ([`Error::State`]), and the state stays what it was.
///
/// Where one device has all batches of its rank, the state says which of them it was given, and each comes once. Where several devices
/// [share](crate::loader::Epoch::split) them, it says up to where all of them had all of theirs: what a device was given beyond comes
/// again.
///
/// To go on with other ranks or devices, save the state at an epoch's end; or resume all ranks from
/// [`state_at`](crate::DataLoader::state_at), at the smallest position of all their states: some batches come again then, and none is lost.
/// A single rank has no others to agree with: devices may share what is left of an epoch that one device began, and the other way
/// round.
///
/// # Format
///
/// [`Display`](fmt::Display) writes it, [`FromStr`] reads it; with the feature `serde`, it is this string in any format:
///
/// ```text
/// pinfeed-state-1 epoch=3 position=4096 samples=50000 data=5f0e1c77 order=0a1b2c3d seed=17 batch=64 ranks=8 check=e63f3ebc
/// ```
///
/// `position`: how many samples of the epoch's order all ranks have had together. Behind it is what the state belongs to: the data set's
/// length and [fingerprint](crate::Dataset::fingerprint), the [sampler's](crate::sampler::Sampler::fingerprint), the seed, the batch size
/// of each rank (0 with a [batch sampler](crate::sampler::BatchSampler)), and how many ranks load different batches. `check` is the
/// fingerprint of all before it. Later versions will read this one.
///
/// Where device and CPU share the pictures (`Decode::Both`, with the feature `nvjpeg`), and the share is fixed, `share` is how many of 64
/// the device is given.
///
/// Within an epoch of a loader with [`in_order(false)`](crate::loader::Builder::in_order), it begins with `pinfeed-state-2`, and has two
/// fields more before the check: `rank`, whose state it is, and `given`, a hexadecimal number whose bit `i` says that this rank was given
/// batch `i + 1`, counted from the one that begins at `position` and is missing. Where several devices share the rank's batches, `devices`
/// says how many; `ranks` then counts each device as one, and `rank` does not.
///
/// # Examples
///
/// ```
/// use pinfeed::loader::LoaderState;
/// use pinfeed::{DataLoader, from_fn};
///
/// let loader = DataLoader::builder(from_fn(100, |index, _| Ok(index as i64))).batch_size(10).shuffle(true).build()?;
/// let mut epoch = loader.epoch(0);
/// epoch.next();
/// let saved = loader.state().to_string(); // into a file
///
/// let state: LoaderState = saved.parse()?;
/// assert_eq!((state.epoch(), state.position()), (0, 10));
/// for resumed in loader.resume(0..1, &state)? {
///     for (batch, expected) in resumed.zip(&mut epoch) {
///         assert_eq!(batch?.as_slice(), expected?.as_slice());
///     }
/// }
/// assert_eq!(loader.state().epoch(), 1); // the next one is to begin
/// # Ok::<(), pinfeed::Error>(())
/// ```
///
/// With the feature `serde`, in the program's own checkpoint:
///
/// ```
/// # #[cfg(feature = "serde")] {
/// use pinfeed::loader::LoaderState;
/// use pinfeed::{DataLoader, from_fn};
///
/// #[derive(serde::Serialize, serde::Deserialize)]
/// struct Checkpoint {
///     step: u64,
///     loader: LoaderState,
/// }
///
/// let loader = DataLoader::builder(from_fn(100, |index, _| Ok(index as i64))).batch_size(10).build()?;
/// loader.epoch(0).next();
/// let saved = serde_json::to_string(&Checkpoint { step: 1, loader: loader.state() })?;
///
/// let checkpoint: Checkpoint = serde_json::from_str(&saved)?;
/// let mut epochs = loader.resume(0..90, &checkpoint.loader)?;
/// assert_eq!(epochs.next().unwrap().next().unwrap()?.as_slice()[0], 10);
/// # }
/// # Ok::<(), pinfeed::BoxError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct LoaderState {
    epoch: u64,
    position: u64,
    /// Which batches of which rank were given out behind the position, if they came in any order.
    gaps: Option<Gaps>,
    /// The share of pictures that a device decodes, of 64, if it was fixed.
    share: Option<u8>,
    /// What it belongs to. `None`: the beginning of any run.
    owner: Option<Owner>,
}

/// What one rank was given beyond the position at which its first missing batch begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Gaps {
    rank: u64,
    /// How many devices shared its batches.
    devices: u64,
    given: Given,
}

/// What a state belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Owner {
    pub(super) samples: u64,
    pub(super) data: u32,
    pub(super) order: u32,
    pub(super) seed: u64,
    pub(super) batch_size: u64,
    pub(super) ranks: u64,
}

const FORMAT: &str = "pinfeed-state-";
/// The version of states, those of iterables too.
pub(super) const VERSION: u64 = 1;
/// That of states with gaps. A reader that knows version 1 only would resume them as if there were no gaps.
const VERSION_OF_GAPS: u64 = 2;

impl LoaderState {
    /// On this rank, of those that load different batches.
    pub(super) fn new(start: Start, rank: u64, owner: Owner) -> LoaderState {
        LoaderState {
            epoch: start.epoch,
            position: start.position,
            gaps: start.bound_to.map(|devices| Gaps {
                rank,
                devices,
                given: start.given,
            }),
            share: None,
            owner: Some(owner),
        }
    }

    /// With the share of pictures that a device decodes, of 64.
    pub(super) fn of_share(self, share: Option<u8>) -> LoaderState {
        LoaderState { share, ..self }
    }

    pub(super) fn share(&self) -> Option<u8> {
        self.share
    }

    /// Returns the epoch to go on with. After an epoch's last batch, that is the next one.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Returns how many samples of that epoch's order were given out, on all ranks together. With
    /// [`in_order(false)`](crate::loader::Builder::in_order): those before the first batch that this rank has not been given.
    pub fn position(&self) -> u64 {
        self.position
    }

    pub(super) fn start(&self) -> Start {
        Start {
            given: self.gaps.map_or(Given::default(), |gaps| gaps.given),
            bound_to: self.gaps.map(|gaps| gaps.devices),
            ..Start::at(self.epoch, self.position)
        }
    }

    /// Whether it says which batches were given out, and they were those of one of several ranks or devices.
    pub(super) fn names_batches_of_one_of_several(&self) -> bool {
        self.gaps.is_some() && self.owner.is_some_and(|owner| owner.ranks > 1)
    }

    /// Refuses to go on with what the state does not belong to, and says which of it. `rank`: the loader's. `devices`: how many of this
    /// rank may share its epochs.
    pub(super) fn check(&self, loader: Owner, rank: u64, devices: u64) -> Result<()> {
        let Some(saved) = self.owner else {
            return Ok(());
        };
        let mut differences = Vec::new();
        let is_other_data = (saved.samples, saved.data) != (loader.samples, loader.data);
        if saved.samples != loader.samples {
            differences.push(format!(
                "its data set has {} samples, the loader's {}",
                saved.samples, loader.samples
            ));
        } else if is_other_data {
            differences.push(
                "its data set is another one, with as many samples (their fingerprints differ)"
                    .to_owned(),
            );
        }
        if saved.seed != loader.seed {
            differences.push(format!(
                "its seed is {}, the loader's {}",
                saved.seed, loader.seed
            ));
        }
        let global = |owner: Owner| owner.batch_size.saturating_mul(owner.ranks);
        if (saved.batch_size == 0) != (loader.batch_size == 0) {
            let [was, is] = match loader.batch_size {
                0 => ["of one size", "those of a batch sampler"],
                _ => ["those of a batch sampler", "of one size"],
            };
            differences.push(format!("its batches were {was}, the loader's are {is}"));
        } else if saved.batch_size != loader.batch_size
            && ![1, devices]
                .map(|devices| global(loader).saturating_mul(devices))
                .contains(&global(saved))
        {
            differences.push(format!(
                "its batch size is {} on each of {} ranks, the loader's {} on each of {}: keep that of a rank, or that of all together",
                saved.batch_size, saved.ranks, loader.batch_size, loader.ranks
            ));
        }
        // Another seed or another number of samples gives another order anyway.
        if differences.is_empty() && saved.order != loader.order {
            let gives = match loader.batch_size {
                0 => "its batch sampler gives other batches",
                _ if self.names_batches_of_one_of_several() => {
                    "its sampler gives another order, or its ranks shared batches in another way (Builder::sharding)"
                }
                _ => "its sampler gives another order",
            };
            differences.push(gives.to_owned());
        }
        if differences.is_empty() {
            return self.check_gaps(saved, loader, rank);
        }
        Err(Error::State {
            reason: format!("it is another run's: {}", differences.join("; ")),
        })
    }
}

impl LoaderState {
    /// What was given out in any order, batch by batch, belongs to one rank.
    fn check_gaps(&self, saved: Owner, loader: Owner, rank: u64) -> Result<()> {
        let Some(gaps) = self.gaps else {
            return Ok(());
        };
        let ranks = saved.ranks / gaps.devices.max(1);
        let reason = if (saved.batch_size, ranks) != (loader.batch_size, loader.ranks) {
            let of = |batch_size, devices, ranks| {
                let ranks = match devices {
                    1 => format!("{ranks} ranks"),
                    _ => format!("{devices} devices of {ranks} ranks"),
                };
                match batch_size {
                    0 => format!("those of a batch sampler on {ranks}"),
                    size => format!("{size} samples on each of {ranks}"),
                }
            };
            format!(
                "within an epoch of a loader with in_order(false), it says which batches were given out, and these were {}, the loader's \
                 are {}: resume with the same, or at an epoch's end; or, where batches may come again, from DataLoader::state_at, at the \
                 smallest position of all ranks' states",
                of(saved.batch_size, gaps.devices, ranks),
                of(loader.batch_size, 1, loader.ranks)
            )
        } else if gaps.rank != rank {
            format!(
                "within an epoch of a loader with in_order(false), each rank has a state of its own: this is that of rank {}, and the \
                 loader's is rank {rank} of {}",
                gaps.rank, loader.ranks
            )
        } else {
            return Ok(());
        };
        Err(wrong(reason))
    }
}

impl fmt::Display for LoaderState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let version = match self.gaps {
            None => VERSION,
            Some(_) => VERSION_OF_GAPS,
        };
        let mut text = format!(
            "{FORMAT}{version} epoch={} position={}",
            self.epoch, self.position
        );
        if let Some(owner) = self.owner {
            let Owner {
                samples,
                data,
                order,
                seed,
                batch_size,
                ranks,
            } = owner;
            text += &format!(
                " samples={samples} data={data:08x} order={order:08x} seed={seed} batch={batch_size} ranks={ranks}"
            );
        }
        if let Some(gaps) = self.gaps {
            text += &format!(" rank={} given={:x}", gaps.rank, gaps.given.behind());
            if gaps.devices > 1 {
                text += &format!(" devices={}", gaps.devices);
            }
        }
        if let Some(share) = self.share {
            text += &format!(" share={share}");
        }
        f.write_str(&with_check(&text))
    }
}

/// What is said of a text that is no state any more.
pub(super) const DAMAGED: &str = "it was cut off or changed: its check does not match";

pub(super) fn wrong(reason: impl Into<String>) -> Error {
    Error::State {
        reason: reason.into(),
    }
}

/// Adds the check to the text of a state.
pub(super) fn with_check(text: &str) -> String {
    format!("{text} check={:08x}", check(text))
}

/// Returns the fields of a state's text, without its check, which is right. `newest`: the version up to which it can be read.
pub(super) fn verified<'a>(
    text: &'a str,
    format: &str,
    newest: u64,
    what: &str,
) -> Result<&'a str> {
    let text = text.trim();
    let version = text.strip_prefix(format);
    let version =
        version.ok_or_else(|| wrong(format!("it is no {what}: these begin with \"{format}\"")))?;
    let version = version.split(' ').next().unwrap_or_default();
    match version.parse::<u64>() {
        Ok(version) if (1..=newest).contains(&version) => {}
        Ok(newer) if newer > newest => {
            return Err(wrong(format!(
                "its format is version {newer}, and this version of pinfeed reads up to {newest}: update pinfeed"
            )));
        }
        _ => return Err(wrong("its format has no version")),
    }
    let (content, sum) = text.rsplit_once(" check=").ok_or_else(|| wrong(DAMAGED))?;
    match sum == format!("{:08x}", check(content)) {
        true => Ok(content),
        false => Err(wrong(DAMAGED)),
    }
}

/// The value of a field of a state's text.
pub(super) fn field<'a>(content: &'a str, name: &str) -> Option<&'a str> {
    let mut fields = content.split(' ').filter_map(|field| field.split_once('='));
    fields.find(|(key, _)| *key == name).map(|(_, value)| value)
}

fn check(text: &str) -> u32 {
    let mut check = Fingerprint::new();
    check.add(text.as_bytes());
    check.finish()
}

impl FromStr for LoaderState {
    type Err = Error;

    /// Reads what [`Display`](fmt::Display) writes; white space around it is ignored.
    ///
    /// # Errors
    ///
    /// [`Error::State`] if the text is no loader's state, was cut off or changed, or comes from a newer version.
    fn from_str(text: &str) -> Result<LoaderState> {
        let content = verified(text, FORMAT, VERSION_OF_GAPS, "loader's state")?;
        let damaged = || wrong(DAMAGED);
        let field = |name| field(content, name);
        let number = |name| field(name)?.parse::<u64>().ok();
        let print = |name| u32::from_str_radix(field(name)?, 16).ok();
        let owner = || {
            Some(Owner {
                samples: number("samples")?,
                data: print("data")?,
                order: print("order")?,
                seed: number("seed")?,
                batch_size: number("batch")?,
                ranks: number("ranks")?,
            })
        };
        let gaps = || {
            let behind = u64::from_str_radix(field("given")?, 16).ok()?;
            Some(Gaps {
                rank: number("rank")?,
                devices: match field("devices") {
                    None => 1,
                    Some(_) => number("devices")?,
                },
                given: Given::behind_first(behind),
            })
        };
        let state = LoaderState {
            epoch: number("epoch").ok_or_else(damaged)?,
            position: number("position").ok_or_else(damaged)?,
            gaps: match content.starts_with("pinfeed-state-2 ") {
                true => Some(gaps().ok_or_else(damaged)?),
                false => None,
            },
            share: match field("share") {
                None => None,
                Some(share) => Some(share.parse().map_err(|_| damaged())?),
            },
            owner: owner(),
        };
        match (state.owner, state.epoch, state.position) {
            (None, 0, 0) | (Some(_), ..) => Ok(state),
            // Only the beginning belongs to any run.
            (None, ..) => Err(damaged()),
        }
    }
}

#[cfg(feature = "serde")]
impl serde::Serialize for LoaderState {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(feature = "serde")]
impl<'de> serde::Deserialize<'de> for LoaderState {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<LoaderState, D::Error> {
        let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const OWNER: Owner = Owner {
        samples: 50_000,
        data: 0x5f0e_1c77,
        order: 0x0a1b_2c3d,
        seed: 17,
        batch_size: 64,
        ranks: 8,
    };

    fn state() -> LoaderState {
        LoaderState::new(Start::at(3, 4096), 0, OWNER)
    }

    /// What an earlier version wrote can be read.
    #[test]
    fn the_format_stays_what_it_is() {
        let text = "pinfeed-state-1 epoch=3 position=4096 samples=50000 data=5f0e1c77 order=0a1b2c3d seed=17 batch=64 ranks=8 check=e63f3ebc";
        assert_eq!(state().to_string(), text);
        assert_eq!(text.parse::<LoaderState>().unwrap(), state());
        assert_eq!(
            format!("\n {text}\r\n").parse::<LoaderState>().unwrap(),
            state()
        );
        let beginning = LoaderState::default();
        assert_eq!(
            beginning.to_string().parse::<LoaderState>().unwrap(),
            beginning
        );
    }

    /// With gaps, it is a later version's, and says whose they are.
    #[test]
    fn the_format_of_gaps_stays_what_it_is() {
        let start = Start {
            given: Given::behind_first(0x8000_0000_0000_0005),
            bound_to: Some(1),
            ..Start::at(3, 4096)
        };
        let state = LoaderState::new(start, 5, OWNER);
        let text = "pinfeed-state-2 epoch=3 position=4096 samples=50000 data=5f0e1c77 order=0a1b2c3d seed=17 batch=64 ranks=8 rank=5 given=8000000000000005 check=e494f712";
        assert_eq!(state.to_string(), text);
        let read: LoaderState = text.parse().unwrap();
        assert_eq!((read, read.start()), (state, start));
        // Without them, it was cut.
        let content = text.split(" rank=").next().unwrap();
        assert!(with_check(content).parse::<LoaderState>().is_err());
        let without = with_check(&content.replace("state-2", "state-1"));
        assert!(without.parse::<LoaderState>().is_ok());
        // Of a rank whose batches several devices share.
        let start = Start {
            bound_to: Some(2),
            ..Start::at(3, 4096)
        };
        let state = LoaderState::new(start, 3, OWNER);
        let text = "pinfeed-state-2 epoch=3 position=4096 samples=50000 data=5f0e1c77 order=0a1b2c3d seed=17 batch=64 ranks=8 rank=3 given=0 devices=2 check=";
        assert!(state.to_string().starts_with(text), "{state}");
        let read: LoaderState = state.to_string().parse().unwrap();
        assert_eq!((read, read.start()), (state, start));
    }

    #[test]
    fn a_text_that_was_cut_off_or_changed_is_refused() {
        let text = state().to_string();
        for end in 0..text.len() {
            assert!(text[..end].parse::<LoaderState>().is_err(), "{end}");
        }
        for (at, digit) in text
            .char_indices()
            .filter(|(_, char)| char.is_ascii_digit())
        {
            let other = if digit == '1' { "2" } else { "1" };
            let changed = format!("{}{other}{}", &text[..at], &text[at + 1..]);
            assert!(changed.parse::<LoaderState>().is_err(), "{changed}");
        }
        let said = |text: &str| text.parse::<LoaderState>().unwrap_err().to_string();
        assert!(said("").contains("no loader's state"));
        assert!(said("{\"epoch\": 3}").contains("no loader's state"));
        assert!(said(&text[..60]).contains("cut off"));
        let newer = text.replace("state-1", "state-3");
        assert!(said(&newer).contains("version 3") && said(&newer).contains("update pinfeed"));
        assert!(said(&text.replace("state-1", "state-x")).contains("no version"));
        // A position that belongs to no run.
        let lost = "pinfeed-state-1 epoch=3 position=64";
        let lost = format!("{lost} check={:08x}", check(lost));
        assert!(said(&lost).contains("cut off"));
    }

    #[test]
    fn another_run_is_told_by_what_differs() {
        let said = |loader: Owner| state().check(loader, 0, 1).unwrap_err().to_string();
        assert!(state().check(OWNER, 0, 1).is_ok());
        assert!(LoaderState::default().check(OWNER, 0, 1).is_ok());
        let longer = Owner {
            samples: 50_001,
            order: 1,
            ..OWNER
        };
        assert!(said(longer).contains("its data set has 50000 samples, the loader's 50001"));
        assert!(!said(longer).contains("sampler"));
        assert!(said(Owner { data: 1, ..OWNER }).contains("its data set is another one"));
        assert!(said(Owner { order: 1, ..OWNER }).contains("its sampler gives another order"));
        let seed = Owner {
            seed: 18,
            order: 1,
            ..OWNER
        };
        assert!(said(seed).contains("its seed is 17, the loader's 18"));
        let both = said(Owner {
            batch_size: 32,
            ..seed
        });
        assert!(
            both.contains("seed")
                && both.contains("batch size is 64 on each of 8 ranks, the loader's 32")
        );
        // The batch size of a rank, or that of all together.
        assert!(state().check(Owner { ranks: 2, ..OWNER }, 0, 1).is_ok());
        assert!(
            state()
                .check(
                    Owner {
                        ranks: 2,
                        batch_size: 256,
                        ..OWNER
                    },
                    0,
                    1
                )
                .is_ok()
        );
        assert!(
            state()
                .check(
                    Owner {
                        ranks: 2,
                        batch_size: 128,
                        ..OWNER
                    },
                    0,
                    1
                )
                .is_err()
        );
    }
}
