//! The states of iterables within iterables, as bytes: a tag, numbers, and inner states with their lengths. And the fingerprints of sources
//! within sources.

use crate::error::BoxError;
use crate::fingerprint::Fingerprint;

/// Which kind of iterable a state is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tag {
    Shuffle = 1,
    Chain = 2,
    Take = 3,
    Skip = 4,
    Repeat = 5,
    Mix = 6,
    Pack = 7,
    Documents = 8,
    Lines = 9,
    Filter = 10,
    FlatMap = 11,
    Buckets = 12,
    Loaded = 13,
    Shuffled = 14,
}

/// The fingerprint of a source that is made of others: what it is, and its numbers, among which are the fingerprints of the others.
pub(super) fn fingerprint(tag: Tag, numbers: impl IntoIterator<Item = u64>) -> u32 {
    let mut print = Fingerprint::new();
    print.add_number(tag as u64);
    numbers
        .into_iter()
        .for_each(|number| print.add_number(number));
    print.finish()
}

/// A state that is being written.
pub(super) struct Writer(Vec<u8>);

impl Writer {
    pub(super) fn new(tag: Tag) -> Writer {
        Writer(vec![tag as u8])
    }

    pub(super) fn number(mut self, number: u64) -> Writer {
        self.0.extend_from_slice(&number.to_le_bytes());
        self
    }

    pub(super) fn inner(self, state: &[u8]) -> Writer {
        let mut with_length = self.number(state.len() as u64);
        with_length.0.extend_from_slice(state);
        with_length
    }

    pub(super) fn finish(self) -> Vec<u8> {
        self.0
    }
}

/// A state that is being read.
pub(super) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub(super) fn new(tag: Tag, state: &'a [u8]) -> Result<Reader<'a>, BoxError> {
        match state.split_first() {
            Some((first, rest)) if *first == tag as u8 => Ok(Reader(rest)),
            _ => Err(wrong()),
        }
    }

    fn bytes(&mut self, count: u64) -> Result<&'a [u8], BoxError> {
        let count = usize::try_from(count).map_err(|_| wrong())?;
        let (bytes, rest) = self.0.split_at_checked(count).ok_or_else(wrong)?;
        self.0 = rest;
        Ok(bytes)
    }

    pub(super) fn number(&mut self) -> Result<u64, BoxError> {
        let bytes = self.bytes(8)?.try_into().map_err(|_| wrong())?;
        Ok(u64::from_le_bytes(bytes))
    }

    pub(super) fn inner(&mut self) -> Result<&'a [u8], BoxError> {
        let count = self.number()?;
        self.bytes(count)
    }

    /// Whether nothing is left of it.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn end(self) -> Result<(), BoxError> {
        if self.is_empty() {
            Ok(())
        } else {
            Err(wrong())
        }
    }
}

pub(super) fn wrong() -> BoxError {
    "the state is that of another source: it is shuffled, mixed, chained, repeated or cut in another way".into()
}
