//! The index of a shard: which samples it has, and where their fields lie ([`ShardIndex`]).

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use super::error::{Cause, ShardError};
use super::kept::{Rest, put_text};
use super::members::{BLOCK, Member, Members};
use super::names;
use super::window::Window;
use crate::error::BoxError;
use crate::store::{Object, Store};
use crate::sync::log;

/// What a shard holds, in 18 bytes a field and the length of its key and 8 bytes a sample.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct ShardIndex {
    /// All keys, one behind the other, and where each ends.
    keys: String,
    key_ends: Vec<u32>,
    /// Where each sample's fields end, in the lists below.
    field_ends: Vec<u32>,
    /// The different names of fields.
    names: Vec<String>,
    name: Vec<u16>,
    at: Vec<u64>,
    bytes: Vec<u64>,
}

/// A field of a sample: its contents are `bytes` bytes at `at`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Field {
    /// Which of the index's names.
    pub(super) name: u16,
    pub(super) at: u64,
    pub(super) bytes: u64,
}

impl Field {
    pub(super) fn end(&self) -> u64 {
        self.at + self.bytes
    }
}

impl ShardIndex {
    /// Makes the index from the shard's headers.
    pub(super) fn read(store: &dyn Store, object: &Object) -> Result<ShardIndex, BoxError> {
        let place = store.locate(&object.key);
        let fault = |cause| ShardError::of(&place, object, cause);
        let mut members = Members::new(Window::new(store, object), 0);
        let mut index = Grouped::default();
        while let Some(member) = members.next().map_err(fault)? {
            index.add(&place, &member)?;
        }
        members.end().map_err(fault)?;
        if let (count @ 1.., Some(first)) = members.links() {
            log::warn!(
                "{place}: {count} of its members are links, the first of them {first:?}; they are skipped, as webdataset skips them"
            );
        }
        Ok(index.finish())
    }

    /// How many samples there are.
    pub(super) fn len(&self) -> usize {
        self.key_ends.len()
    }

    pub(super) fn key(&self, sample: usize) -> &str {
        &self.keys[span(&self.key_ends, sample)]
    }

    /// The sample's fields, in the order in which they lie in the shard.
    pub(super) fn fields(&self, sample: usize) -> impl ExactSizeIterator<Item = Field> + '_ {
        span(&self.field_ends, sample).map(|of| Field {
            name: self.name[of],
            at: self.at[of],
            bytes: self.bytes[of],
        })
    }

    /// What a field is called.
    pub(super) fn name(&self, field: Field) -> &str {
        &self.names[usize::from(field.name)]
    }

    /// The same samples and fields, but those that `keep` does not want.
    pub(super) fn filtered(
        &self,
        mut wants_sample: impl FnMut(usize) -> bool,
        mut wants_field: impl FnMut(&str) -> bool,
    ) -> ShardIndex {
        let wanted: Vec<bool> = self.names.iter().map(|name| wants_field(name)).collect();
        let mut kept = ShardIndex {
            names: self.names.clone(),
            ..ShardIndex::default()
        };
        for sample in (0..self.len()).filter(|sample| wants_sample(*sample)) {
            kept.keys.push_str(self.key(sample));
            kept.key_ends.push(kept.keys.len() as u32);
            for field in self
                .fields(sample)
                .filter(|field| wanted[usize::from(field.name)])
            {
                kept.name.push(field.name);
                kept.at.push(field.at);
                kept.bytes.push(field.bytes);
            }
            kept.field_ends.push(kept.name.len() as u32);
        }
        kept.shrink();
        kept
    }

    /// Writes it, for [`parse`](ShardIndex::parse).
    pub(super) fn write(&self, bytes: &mut Vec<u8>) {
        put_text(bytes, &self.keys);
        put_list(bytes, &self.key_ends, |number| number.to_le_bytes());
        put_list(bytes, &self.field_ends, |number| number.to_le_bytes());
        bytes.extend((self.names.len() as u64).to_le_bytes());
        self.names.iter().for_each(|name| put_text(bytes, name));
        put_list(bytes, &self.name, |number| number.to_le_bytes());
        put_list(bytes, &self.at, |number| number.to_le_bytes());
        put_list(bytes, &self.bytes, |number| number.to_le_bytes());
    }

    /// Reads what [`write`](ShardIndex::write) wrote of a shard of `len` bytes; `None` if it is not that.
    pub(super) fn parse(rest: &mut Rest<'_>, len: u64) -> Option<ShardIndex> {
        let keys = rest.text()?.to_owned();
        let key_ends = rest.list(u32::from_le_bytes)?;
        let field_ends = rest.list(u32::from_le_bytes)?;
        let count = rest.number()?;
        let names: Option<Vec<String>> =
            (0..count).map(|_| rest.text().map(str::to_owned)).collect();
        let index = ShardIndex {
            keys,
            key_ends,
            field_ends,
            names: names?,
            name: rest.list(u16::from_le_bytes)?,
            at: rest.list(u64::from_le_bytes)?,
            bytes: rest.list(u64::from_le_bytes)?,
        };
        index.is_sound(len).then_some(index)
    }

    /// Whether all of it is where it says, in a shard of `len` bytes.
    fn is_sound(&self, len: u64) -> bool {
        let fields = self.name.len();
        let ends = |ends: &[u32], last: usize| {
            ends.is_sorted() && ends.last().map_or(0, |end| *end as usize) == last
        };
        let places = self.at.iter().zip(&self.bytes);
        self.at.len() == fields
            && self.bytes.len() == fields
            && self.key_ends.len() == self.field_ends.len()
            && ends(&self.key_ends, self.keys.len())
            && ends(&self.field_ends, fields)
            && self
                .key_ends
                .iter()
                .all(|end| self.keys.is_char_boundary(*end as usize))
            && self
                .name
                .iter()
                .all(|name| usize::from(*name) < self.names.len())
            && self.at.is_sorted()
            && places
                .into_iter()
                .all(|(at, bytes)| is_place(*at, *bytes, len))
    }

    fn shrink(&mut self) {
        self.keys.shrink_to_fit();
        self.key_ends.shrink_to_fit();
        self.field_ends.shrink_to_fit();
        self.name.shrink_to_fit();
        self.at.shrink_to_fit();
        self.bytes.shrink_to_fit();
    }
}

/// Whether a member's contents can lie there.
pub(super) fn is_place(at: u64, bytes: u64, len: u64) -> bool {
    at >= BLOCK && at.is_multiple_of(BLOCK) && at.checked_add(bytes).is_some_and(|end| end <= len)
}

fn put_list<const N: usize, T: Copy>(bytes: &mut Vec<u8>, list: &[T], number: fn(T) -> [u8; N]) {
    bytes.extend((list.len() as u64).to_le_bytes());
    list.iter().for_each(|of| bytes.extend(number(*of)));
}

fn span(ends: &[u32], of: usize) -> Range<usize> {
    let start = of.checked_sub(1).map_or(0, |before| ends[before]);
    start as usize..ends[of] as usize
}

/// An index in the making: members of one key that follow each other are one sample.
#[derive(Default)]
pub(super) struct Grouped {
    index: ShardIndex,
    seen: HashSet<String>,
    name_ids: HashMap<String, u16>,
    key: Option<String>,
    /// The open sample's fields, and what their members are called.
    members: HashMap<u16, String>,
}

impl Grouped {
    /// Takes a member, of the shard called `shard`. Members come in the order in which they lie there.
    pub(super) fn add(&mut self, shard: &str, member: &Member) -> Result<(), ShardError> {
        let Some((key, field)) = names::split(&member.name) else {
            return Ok(());
        };
        let fault = |cause| Err(ShardError::new(shard, Some(key), cause));
        if member.is_sparse {
            let name = member.name.clone();
            return fault(Cause::Sparse { name });
        }
        if self.key.as_deref() != Some(key) {
            if !self.seen.insert(key.to_owned()) {
                return fault(Cause::TwoSamples);
            }
            self.end();
            self.index.keys.push_str(key);
            let Ok(end) = u32::try_from(self.index.keys.len()) else {
                return fault(Cause::TooMany("4 GiB of keys"));
            };
            self.index.key_ends.push(end);
            self.key = Some(key.to_owned());
        }
        let name = match self.name_ids.get(&field) {
            Some(name) => *name,
            None => {
                let Ok(name) = u16::try_from(self.index.names.len()) else {
                    return fault(Cause::TooMany(
                        "65,536 different names of fields (a key goes to the first dot of a file's name, so perhaps the names have too many dots)",
                    ));
                };
                self.name_ids.insert(field.clone(), name);
                self.index.names.push(field);
                name
            }
        };
        if let Some(first) = self.members.insert(name, member.name.clone()) {
            let second = member.name.clone();
            return fault(Cause::TwoFields { first, second });
        }
        if self.index.name.len() >= u32::MAX as usize {
            return fault(Cause::TooMany("4,294,967,295 members"));
        }
        self.index.name.push(name);
        self.index.at.push(member.at);
        self.index.bytes.push(member.bytes);
        Ok(())
    }

    /// Ends the open sample.
    fn end(&mut self) {
        if self.key.take().is_some() {
            self.index.field_ends.push(self.index.name.len() as u32);
        }
        self.members.clear();
    }

    pub(super) fn finish(mut self) -> ShardIndex {
        self.end();
        self.index.shrink();
        self.index
    }
}
