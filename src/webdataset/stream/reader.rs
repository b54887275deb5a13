//! A shard that a thread reads, decompresses and cuts into samples, ahead of the stream: [`ShardReader`].

use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::ahead::{Giver, Taker, ahead};
use super::front::Front;
use super::sample::StreamedSample;
use super::standing::Begun;
use super::{Shards, StreamedShard};
use crate::error::{BoxError, is_temporary, panic_message};
use crate::sync::log;
use crate::sync::{Arc, thread};
use crate::webdataset::error::{Cause, ShardError};
use crate::webdataset::members::{Member, Members};
use crate::webdataset::names;

/// What a reader has ahead, in bytes.
const AHEAD: usize = 8 << 20;

/// What an error weighs there; and that bytes were read of which nothing came, of which so many may be ahead as are a few GiB.
const FAULT: usize = 4 << 10;
const READS: usize = 64 << 10;

/// What comes of a shard.
pub(super) enum Step {
    /// A sample, or what is wrong with it; and what comes behind it.
    Sample(Result<StreamedSample, BoxError>, Behind),
    /// What is wrong with the shard: nothing else comes of it.
    Failed(BoxError),
    /// Why its store does not give it for now.
    Unread(BoxError),
    /// Nothing yet: what is before the next sample is decompressed.
    Reads,
}

/// What is behind a sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Behind {
    /// The next one, at this byte of the archive; so many begin before it.
    Next { samples: u64, offset: u64 },
    /// Nothing: it was the last.
    Nothing,
}

/// An open shard. Dropping it waits for nothing: its threads end with what they are just reading.
pub(super) struct ShardReader(Taker<Step>);

impl ShardReader {
    /// Opens a shard at its beginning, or where a sample begins.
    pub(super) fn start(shards: &Arc<Shards>, shard: usize, from: Begun) -> ShardReader {
        let (giver, taker) = ahead(AHEAD);
        let (shards, giver) = (Arc::clone(shards), Arc::new(giver));
        let (own, also) = (Arc::clone(&shards), Arc::clone(&giver));
        let named = thread::Builder::new().name("pinfeed-shard".to_owned());
        let started = named.spawn(move || {
            let shard = &shards.list[shard];
            // Unwind safety: what it works on is its own, but for the shards, which nothing changes.
            let cuts = AssertUnwindSafe(|| cut(&shards, shard, from, &giver));
            let failure = catch_unwind(cuts).unwrap_or_else(|payload| {
                let what = panic_message(payload);
                let what = format!("the thread that reads it panicked: {what}");
                Err(shard.error(Cause::Other(what)))
            });
            if let Err(failure) = failure {
                giver.give(ended(failure), FAULT);
            }
        });
        if let Err(error) = started {
            let failure = own.list[shard].error(Cause::Thread(error));
            also.give(ended(failure), FAULT);
        }
        ShardReader(taker)
    }

    /// Whether its threads are in the calling process.
    pub(super) fn is_here(&self) -> bool {
        self.0.is_here()
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

/// A shard of which no more comes: for now, or at all.
fn ended(failure: BoxError) -> Step {
    match is_temporary(&failure) {
        true => Step::Unread(failure),
        false => Step::Failed(failure),
    }
}

impl StreamedShard {
    /// What is wrong with it.
    fn error(&self, cause: Cause) -> BoxError {
        ShardError::of(&self.place, &self.object, cause)
    }
}

/// Gives the samples of a shard, as long as they are wanted.
fn cut(
    shards: &Shards,
    shard: &StreamedShard,
    from: Begun,
    giver: &Giver<Step>,
) -> Result<(), BoxError> {
    let goes_on = || {
        giver.give(Step::Reads, READS);
        giver.has_room()
    };
    let (object, range) = (&shard.object, shards.range_bytes);
    let front = Front::open(&shards.store, object, from.offset, range, &goes_on);
    let front = front.map_err(|cause| shard.error(cause))?;
    let mut members = Members::new(front, from.offset);
    let mut cutter = Cutter {
        shards,
        shard,
        giver,
        seen: HashSet::new(),
        samples: from.samples,
        incomplete: (0, None, 0),
    };
    let mut open: Option<Open> = None;
    loop {
        let start = members.at();
        let of_sample = |cause: Cause, open: &Option<Open>| match open {
            Some(open) if !matches!(cause, Cause::Store(_) | Cause::Left) => {
                ShardError::new(&shard.place, Some(&open.key), cause).into()
            }
            _ => shard.error(cause),
        };
        let member = members.next().map_err(|cause| of_sample(cause, &open))?;
        let Some(member) = member else { break };
        let Some((key, field)) = names::split(&member.name) else {
            continue;
        };
        if open.as_ref().is_none_or(|open| open.key != key) {
            let behind = Behind::Next {
                samples: cutter.samples,
                offset: start,
            };
            let before = open.replace(cutter.begin(key));
            if !cutter.give(before, behind) {
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
    // What is wrong with the end is an error behind the last sample, which is whole.
    let finished = members.end();
    let finished = finished.and_then(|()| members.archive().finish());
    let finished = finished.and_then(|()| cutter.compare());
    let behind = match finished.is_ok() {
        true => Behind::Nothing,
        false => Behind::Next {
            samples: cutter.samples,
            offset: members.at(),
        },
    };
    cutter.give(open, behind);
    cutter.report(from);
    finished.map_err(|cause| shard.error(cause))
}

/// What is known of a shard while it is cut.
struct Cutter<'a> {
    shards: &'a Shards,
    shard: &'a StreamedShard,
    giver: &'a Giver<Step>,
    /// The keys since it was opened.
    seen: HashSet<String>,
    /// How many samples have begun.
    samples: u64,
    /// How many were left out, what the first lacks, and how many of them have the key of another one before.
    incomplete: (u64, Option<ShardError>, u64),
}

impl Cutter<'_> {
    fn begin(&mut self, key: &str) -> Open {
        self.samples += 1;
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
        if member.is_sparse {
            let name = member.name.clone();
            sample.fault.get_or_insert(Cause::Sparse { name });
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
        let fault = |key: &str, cause| ShardError::new(&self.shard.place, Some(key), cause);
        // (What is left out does not depend on the keys before it, which are not all known where a run goes on in the middle of a shard.)
        let is_first = !matches!(open.fault, Some(Cause::TwoSamples));
        if self.shards.wanted.skip_incomplete
            && (open.fault.is_none() || !is_first)
            && let Some(lack) = lacks()
        {
            self.incomplete.0 += 1;
            self.incomplete.2 += u64::from(!is_first);
            self.incomplete
                .1
                .get_or_insert_with(|| fault(&open.key, lack));
            return None;
        }
        let cause = open.fault.or_else(lacks);
        Some(match cause {
            Some(cause) => Err(fault(&open.key, cause).into()),
            None => {
                let (key, place) = (&self.shard.key, &self.shard.place);
                Ok(StreamedSample::new(key, place, open.key, open.fields))
            }
        })
    }

    /// Gives a sample, once there is room. `false`: none is wanted any more.
    fn give(&mut self, open: Option<Open>, behind: Behind) -> bool {
        if let Some(sample) = self.complete(open) {
            let bytes = sample.as_ref().map_or(FAULT, StreamedSample::bytes);
            self.giver.give(Step::Sample(sample, behind), bytes);
        }
        self.giver.has_room()
    }

    /// That an index has not said another number of samples.
    fn compare(&self) -> Result<(), Cause> {
        match &self.shard.expected {
            Some((index, expected)) if self.samples != *expected => Err(Cause::Count {
                index: index.clone(),
                expected: *expected,
                found: self.samples,
            }),
            _ => Ok(()),
        }
    }

    fn report(&self, from: Begun) {
        let place = &self.shard.place;
        if let (count @ 1.., Some(first), again) = &self.incomplete {
            log::warn!(
                "{place}: {count} samples lack a field and are left out; the first: {first}"
            );
            if *again > 0 {
                log::warn!(
                    "{place}: {again} of these have the key of another sample before them: its members do not follow each other. Pack the shard with \
                     its members sorted by name (`tar --sort=name`)"
                );
            }
        }
        if from.offset == 0 && self.samples == 0 {
            log::warn!(
                "{}: it has no samples: no member's name has a dot behind its key",
                self.shard.place
            );
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::ops::Range;

    use super::*;
    use crate::store::{Object, Store};
    use crate::sync::{AtomicU64, Ordering};
    use crate::webdataset::fields::Fields;

    const MIB: u64 = 1 << 20;

    /// A member of zeros that is not wanted, and one that is. Zeros are made when they are asked for.
    struct Sparse {
        zeros: u64,
        read: AtomicU64,
    }

    fn header(name: &str, bytes: u64) -> Vec<u8> {
        let mut header = tar::Header::new_ustar();
        header.set_path(name).unwrap();
        header.set_size(bytes);
        header.set_entry_type(tar::EntryType::Regular);
        header.set_cksum();
        header.as_bytes().to_vec()
    }

    impl Sparse {
        fn parts(&self) -> [(u64, Vec<u8>); 2] {
            let wanted = [header("b.cls", 1), vec![b'7'; 1]].concat();
            [(0, header("a.bin", self.zeros)), (512 + self.zeros, wanted)]
        }
    }

    impl Store for Sparse {
        fn list(&self, _: &str) -> Result<Vec<Object>, BoxError> {
            Ok(vec![self.object("a.tar")?])
        }

        fn object(&self, key: &str) -> Result<Object, BoxError> {
            Ok(Object {
                key: key.to_owned(),
                bytes: self.zeros + 4 * 512,
                version: None,
            })
        }

        fn read(&self, _: &Object, range: Range<u64>) -> Result<Vec<u8>, BoxError> {
            self.read
                .fetch_add(range.end - range.start, Ordering::SeqCst);
            let mut bytes = vec![0; (range.end - range.start) as usize];
            for (at, part) in self.parts() {
                for (at, byte) in (at..).zip(part) {
                    if range.contains(&at) {
                        bytes[(at - range.start) as usize] = byte;
                    }
                }
            }
            Ok(bytes)
        }
    }

    fn sparse(zeros: u64) -> (Arc<Sparse>, Shards) {
        let store = Arc::new(Sparse {
            zeros,
            read: AtomicU64::new(0),
        });
        let mut wanted = Fields::default();
        wanted.add("cls", true);
        wanted.skip_incomplete = true;
        let shard = StreamedShard {
            object: store.object("a.tar").unwrap(),
            key: "a.tar".into(),
            place: "a.tar".into(),
            expected: None,
        };
        let shards = Shards {
            store: Arc::clone(&store) as Arc<dyn Store>,
            list: vec![shard],
            wanted,
            range_bytes: MIB,
        };
        (store, shards)
    }

    const START: Begun = Begun {
        place: 0,
        samples: 0,
        offset: 0,
    };

    /// However far it is to the next sample that is given: the stream hears that the reader goes on, and the reader that the stream does not.
    #[test]
    fn what_is_left_out_is_told_and_ends_with_the_stream() {
        let (store, shards) = sparse(100 * MIB);
        let (giver, taker) = ahead(AHEAD);
        cut(&shards, &shards.list[0], START, &giver).unwrap();
        drop(giver);
        let steps: Vec<Step> = std::iter::from_fn(|| taker.take()).collect();
        let told = steps.iter().filter(|step| matches!(step, Step::Reads));
        assert_eq!(told.count(), 6);
        let [.., Step::Sample(Ok(_), Behind::Nothing)] = &steps[..] else {
            panic!("{} steps", steps.len())
        };
        assert_eq!(steps.len(), 7);
        assert!(store.read.load(Ordering::SeqCst) > 100 * MIB);

        let (store, shards) = sparse(10_000 * MIB);
        let (giver, taker) = ahead(AHEAD);
        drop(taker);
        cut(&shards, &shards.list[0], START, &giver).unwrap();
        let goes_on = || false;
        let object = &shards.list[0].object;
        let front = Front::open(&shards.store, object, 0, MIB, &goes_on);
        let mut members = Members::new(front.ok().unwrap(), 0);
        let ended = std::iter::from_fn(|| members.next().transpose()).find_map(Result::err);
        assert!(matches!(ended, Some(Cause::Left)), "{ended:?}");
        let read = store.read.load(Ordering::SeqCst);
        assert!(read < 30 * MIB, "{} MiB", read / MIB);
    }

    /// What a field takes is about what it has, whatever was skipped before it.
    #[test]
    fn a_small_field_behind_a_large_one_keeps_no_memory_of_that() {
        let (_, shards) = sparse(3 * MIB);
        let goes_on = || true;
        let object = &shards.list[0].object;
        let front = Front::open(&shards.store, object, 0, MIB, &goes_on);
        let mut members = Members::new(front.ok().unwrap(), 0);
        while let Ok(Some(member)) = members.next() {
            let contents = members.archive();
            let contents = contents.contents(member.at, member.bytes, "it");
            let contents = contents.ok().unwrap();
            assert_eq!(contents.len() as u64, member.bytes);
            assert!(contents.capacity() < contents.len() * 9 / 8 + 128);
        }
    }
}
