//! A shard that a thread reads, decompresses and cuts into samples, ahead of the stream: [`ShardReader`].

use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::ahead::{Giver, Taker, ahead};
use super::front::Front;
use super::sample::StreamedSample;
use super::{Shards, StreamedShard};
use crate::error::{BoxError, is_temporary, panic_message};
use crate::sync::log;
use crate::sync::{Arc, thread};
use crate::webdataset::error::{Cause, ShardError};
use crate::webdataset::members::{Member, Members};
use crate::webdataset::names;

/// What a reader has ahead, in bytes.
const AHEAD: usize = 8 << 20;

/// What comes of a shard.
pub(super) enum Step {
    /// A sample, or what is wrong with it; and what comes behind it.
    Sample(Result<StreamedSample, BoxError>, Behind),
    /// What is wrong with the shard: nothing else comes of it.
    Failed(BoxError),
    /// Why its store does not give it for now.
    Unread(BoxError),
    /// Nothing yet: what is before the first sample is decompressed.
    Reads,
}

/// What is behind a sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Behind {
    /// The next one, at this byte of the archive.
    Next(u64),
    /// Nothing: it was the last.
    Nothing,
}

/// An open shard. Dropping it waits for nothing: its threads end with what they are just reading.
pub(super) struct ShardReader(Taker<Step>);

impl ShardReader {
    /// Opens a shard at byte `from` of its archive, where a sample begins, or at 0.
    pub(super) fn start(shards: &Arc<Shards>, shard: usize, from: u64) -> ShardReader {
        let (giver, taker) = ahead(AHEAD);
        let (shards, giver) = (Arc::clone(shards), Arc::new(giver));
        let also = Arc::clone(&giver);
        let named = thread::Builder::new().name("pinfeed-shard".to_owned());
        let started = named.spawn(move || {
            // Unwind safety: what it works on is its own, but for the shards, which nothing changes.
            let cuts = AssertUnwindSafe(|| cut(&shards, &shards.list[shard], from, &giver));
            let failure = catch_unwind(cuts).unwrap_or_else(|payload| {
                Err(format!(
                    "the thread that reads it panicked: {}",
                    panic_message(payload)
                )
                .into())
            });
            if let Err(failure) = failure {
                let step = match is_temporary(&failure) {
                    true => Step::Unread(failure),
                    false => Step::Failed(failure),
                };
                giver.give(step, 0);
            }
        });
        if let Err(error) = started {
            also.give(Step::Failed(error.into()), 0);
        }
        ShardReader(taker)
    }

    /// Waits for what comes next. `None`: the shard has no more.
    pub(super) fn next(&self) -> Option<Step> {
        self.0.take()
    }
}

/// A sample of which not all members were read.
struct Open {
    key: String,
    fields: Vec<(String, Vec<u8>)>,
    /// What all its fields' members are called.
    members: Vec<(String, String)>,
    fault: Option<Cause>,
}

/// Gives the samples of a shard, as long as they are wanted.
fn cut(
    shards: &Shards,
    shard: &StreamedShard,
    from: u64,
    giver: &Giver<Step>,
) -> Result<(), BoxError> {
    let of_shard = |cause| ShardError::of(&shard.place, &shard.object, cause);
    let front = Front::open(&shards.store, &shard.object, from, shards.range_bytes);
    let mut front = front.map_err(of_shard)?;
    while !front.advance(from).map_err(of_shard)? {
        giver.give(Step::Reads, 0);
        if !giver.has_room() {
            return Ok(());
        }
    }
    let mut members = Members::new(front, from);
    let mut cutter = Cutter {
        shards,
        shard,
        giver,
        seen: HashSet::new(),
        incomplete: (0, None),
    };
    let mut open: Option<Open> = None;
    loop {
        let start = members.at();
        let of_sample = |cause: Cause, open: &Option<Open>| match open {
            Some(open) if !matches!(cause, Cause::Store(_)) => {
                ShardError::new(&shard.place, Some(&open.key), cause).into()
            }
            _ => of_shard(cause),
        };
        let member = members.next().map_err(|cause| of_sample(cause, &open))?;
        let Some(member) = member else { break };
        let Some((key, field)) = names::split(&member.name) else {
            continue;
        };
        if open.as_ref().is_none_or(|open| open.key != key) {
            let before = open.replace(cutter.begin(key));
            if !cutter.give(before, Behind::Next(start)) {
                return Ok(());
            }
        }
        let Some(sample) = &mut open else { continue };
        let is_wanted = cutter.takes(sample, &member, &field);
        if is_wanted {
            let contents = members.archive();
            let contents = contents.contents(member.at, member.bytes, &member.name);
            let contents = contents.map_err(|cause| of_sample(cause, &open))?;
            if let Some(sample) = &mut open {
                sample.fields.push((field, contents));
            }
        }
    }
    if let (count @ 1.., Some(first)) = members.links() {
        log::warn!(
            "{}: {count} of its members are links, the first of them {first:?}; they are skipped, as webdataset skips them",
            shard.place
        );
    }
    let finished = members.archive().finish();
    let finished = finished.and_then(|()| cutter.compare(from));
    if let Some(last) = cutter.complete(open) {
        // (If the end is wrong, that error comes behind the last sample.)
        let behind = match finished.is_ok() {
            true => Behind::Nothing,
            false => Behind::Next(members.at()),
        };
        giver.give(Step::Sample(last, behind), 0);
    }
    cutter.report(from);
    finished.map_err(of_shard)
}

/// What is known of a shard while it is cut.
struct Cutter<'a> {
    shards: &'a Shards,
    shard: &'a StreamedShard,
    giver: &'a Giver<Step>,
    seen: HashSet<String>,
    /// How many were left out, and what the first lacks.
    incomplete: (u64, Option<ShardError>),
}

impl Cutter<'_> {
    fn begin(&mut self, key: &str) -> Open {
        let is_new = self.seen.insert(key.to_owned());
        Open {
            key: key.to_owned(),
            fields: Vec::new(),
            members: Vec::new(),
            fault: (!is_new).then_some(Cause::TwoSamples),
        }
    }

    /// Notes a member of the sample. Whether its contents are read.
    fn takes(&self, sample: &mut Open, member: &Member, field: &str) -> bool {
        let first = sample.members.iter().find(|(known, _)| known == field);
        if let Some((_, first)) = first {
            let (first, second) = (first.clone(), member.name.clone());
            sample
                .fault
                .get_or_insert(Cause::TwoFields { first, second });
        }
        sample.members.push((field.to_owned(), member.name.clone()));
        if !self.shards.wanted.takes(field) {
            return false;
        }
        if member.bytes > u64::from(u32::MAX) {
            sample.fault.get_or_insert(Cause::TooLarge {
                field: field.to_owned(),
                bytes: member.bytes,
            });
        }
        sample.fault.is_none()
    }

    /// What becomes of a sample; `None` if there is none, or it is left out.
    fn complete(&mut self, open: Option<Open>) -> Option<Result<StreamedSample, BoxError>> {
        let open = open?;
        let has = |name: &str| open.members.iter().any(|(field, _)| field == name);
        let lacks = || {
            let wanted = self.shards.wanted.lacks(has)?;
            let has = open
                .members
                .iter()
                .map(|(field, _)| field.clone())
                .collect();
            Some(Cause::Lacks { wanted, has })
        };
        let fault = |cause| ShardError::new(&self.shard.place, Some(&open.key), cause);
        let completed = match open.fault {
            Some(cause) => Err(fault(cause).into()),
            None => match lacks().map(fault) {
                Some(lack) if self.shards.wanted.skip_incomplete => {
                    self.incomplete.0 += 1;
                    self.incomplete.1.get_or_insert(lack);
                    return None;
                }
                Some(lack) => Err(lack.into()),
                None => {
                    let (key, place) = (&self.shard.key, &self.shard.place);
                    Ok(StreamedSample::new(key, place, open.key, open.fields))
                }
            },
        };
        Some(completed)
    }

    /// Gives a sample, once there is room. `false`: none is wanted any more.
    fn give(&mut self, open: Option<Open>, behind: Behind) -> bool {
        let Some(sample) = self.complete(open) else {
            return true;
        };
        let bytes = sample.as_ref().map_or(0, StreamedSample::bytes);
        self.giver.give(Step::Sample(sample, behind), bytes);
        self.giver.has_room()
    }

    /// That an index has not said another number of samples.
    fn compare(&self, from: u64) -> Result<(), Cause> {
        let found = self.seen.len() as u64;
        match &self.shard.expected {
            Some((index, expected)) if from == 0 && found != *expected => Err(Cause::Count {
                index: index.clone(),
                expected: *expected,
                found,
            }),
            _ => Ok(()),
        }
    }

    fn report(&self, from: u64) {
        if let (count @ 1.., Some(first)) = &self.incomplete {
            log::warn!(
                "{}: {count} samples lack a field and are left out; the first: {first}",
                self.shard.place
            );
        }
        if from == 0 && self.seen.is_empty() {
            log::warn!(
                "{}: it has no samples: no member's name has a dot behind its key",
                self.shard.place
            );
        }
    }
}
