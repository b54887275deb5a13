//! A page: a part of an object, its name, and the file that it is kept in.
//!
//! Numbers in the header are little-endian:
//!
//! | bytes | what they are |
//! | --- | --- |
//! | 0..8 | `pfpage1\n` |
//! | 8..32 | the stamp: run, position, and the sum of both. It is written anew in place, so no other sum covers it |
//! | 32..40 | the sum of what follows, up to the header's end |
//! | 40..64 | number of the page, length of its bytes, length of the identity |
//! | 64..192 | the sums of its bytes, 64 KiB each |
//! | 192..4096 | the identity: the store's origin, where the object is, its version and its length |

use std::ops::Range;

use super::sum::sum;
use crate::store::Object;

/// How long a page's header is: its bytes begin at a page of memory.
pub(super) const HEADER: usize = 4096;

/// What is verified together.
const CHUNK: usize = 64 << 10;
const CHUNKS: usize = 16;

/// The longest page that the header has sums for.
pub(super) const MOST_BYTES: u64 = (CHUNK * CHUNKS) as u64;

const MAGIC: &[u8; 8] = b"pfpage1\n";
const STAMP: Range<usize> = 8..32;
const SUM: Range<usize> = 32..40;
const SUMS: usize = 64;
const IDENTITY: usize = SUMS + 8 * CHUNKS;

/// Which object pages are of: another version of it is another object.
pub(super) struct Identity {
    text: Vec<u8>,
    pub(super) hash: u64,
}

impl Identity {
    /// `None`: the object has no version, one that another content may have, too (a weak ETag, `W/".."`), or a name that is too long for a
    /// header.
    pub(super) fn new(origin: &str, place: &str, object: &Object) -> Option<Identity> {
        let version = object.version.as_deref()?;
        if version.starts_with("W/") {
            return None;
        }
        let text = format!("{origin}\0{place}\0{version}\0{}", object.bytes).into_bytes();
        (text.len() <= HEADER - IDENTITY).then(|| Identity {
            hash: sum(&text),
            text,
        })
    }
}

/// A page of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Page {
    /// The object's hash.
    pub(super) object: u64,
    pub(super) number: u64,
}

impl Page {
    /// The file of a page that is there.
    pub(super) fn file(self) -> String {
        format!("{:016x}-{:x}.page", self.object, self.number)
    }

    /// The file of one that is being fetched.
    pub(super) fn part(self) -> String {
        format!("{:016x}-{:x}.part", self.object, self.number)
    }

    pub(super) fn of_file(name: &str) -> Option<Page> {
        Page::of(name.strip_suffix(".page")?)
    }

    pub(super) fn is_part(name: &str) -> bool {
        name.strip_suffix(".part").and_then(Page::of).is_some()
    }

    fn of(stem: &str) -> Option<Page> {
        let (object, number) = stem.split_once('-')?;
        let hex = |text| u64::from_str_radix(text, 16).ok();
        let page = Page {
            object: hex(object)?,
            number: hex(number)?,
        };
        // (As it is written here, and in no other way.)
        (page.file().strip_suffix(".page") == Some(stem)).then_some(page)
    }
}

/// When a page will be used next: at a position of a run. Of run 0: that is not known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(super) struct Stamp {
    pub(super) run: u64,
    pub(super) next: u64,
}

impl Stamp {
    pub(super) const NONE: Stamp = Stamp { run: 0, next: 0 };
    /// Where it stands in the header.
    pub(super) const AT: u64 = STAMP.start as u64;

    pub(super) fn bytes(self) -> [u8; 24] {
        let mut bytes = [0; 24];
        bytes[..8].copy_from_slice(&self.run.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.next.to_le_bytes());
        let sum = sum(&bytes[..16]);
        bytes[16..].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// One that is torn says nothing.
    pub(super) fn of(bytes: [u8; 24]) -> Stamp {
        let stamp = Stamp {
            run: number(&bytes, 0),
            next: number(&bytes, 8),
        };
        match number(&bytes, 16) == sum(&bytes[..16]) {
            true => stamp,
            false => Stamp::NONE,
        }
    }
}

/// The header of a page.
pub(super) fn header(identity: &Identity, number: u64, bytes: &[u8], stamp: Stamp) -> Vec<u8> {
    let mut header = vec![0; HEADER];
    header[..8].copy_from_slice(MAGIC);
    header[STAMP].copy_from_slice(&stamp.bytes());
    let lengths = [number, bytes.len() as u64, identity.text.len() as u64];
    let numbers = lengths.into_iter().chain(bytes.chunks(CHUNK).map(sum));
    let places = header[SUM.end..IDENTITY].chunks_exact_mut(8);
    places
        .zip(numbers)
        .for_each(|(place, number)| place.copy_from_slice(&number.to_le_bytes()));
    header[IDENTITY..][..identity.text.len()].copy_from_slice(&identity.text);
    let of_header = sum(&header[SUM.end..]);
    header[SUM].copy_from_slice(&of_header.to_le_bytes());
    header
}

/// The header of a page as it was read.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) stamp: Stamp,
    sums: Vec<u64>,
}

/// What is found in a file of a page's name.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Look<T> {
    Right(T),
    /// A page of another object, whose hash is the same.
    Another,
    Damaged,
}

impl Header {
    /// Of a page of so many bytes.
    pub(super) fn of(header: &[u8], identity: &Identity, page: u64, bytes: usize) -> Look<Header> {
        let is_whole = header.len() == HEADER
            && header.starts_with(MAGIC)
            && sum(&header[SUM.end..]) == number(header, SUM.start);
        if !is_whole {
            return Look::Damaged;
        }
        let [number_of_page, length, length_of_text] =
            [0, 8, 16].map(|at| number(header, SUM.end + at));
        let text = usize::try_from(length_of_text);
        let text = text
            .ok()
            .and_then(|length| header[IDENTITY..].get(..length));
        let text = text.unwrap_or_default();
        if text != identity.text {
            // (A file that has not the hash that is its name is not where it was written.)
            return match sum(text) == identity.hash && number_of_page == page {
                true => Look::Another,
                false => Look::Damaged,
            };
        }
        if (number_of_page, length) != (page, bytes as u64) {
            return Look::Damaged;
        }
        let mut stamp = [0; 24];
        stamp.copy_from_slice(&header[STAMP]);
        Look::Right(Header {
            stamp: Stamp::of(stamp),
            sums: (0..bytes.div_ceil(CHUNK))
                .map(|chunk| number(header, SUMS + 8 * chunk))
                .collect(),
        })
    }

    /// What has to be read of a page of so many bytes, to verify some of them.
    pub(super) fn whole_chunks(wanted: &Range<usize>, bytes: usize) -> Range<usize> {
        let end = wanted.end.div_ceil(CHUNK) * CHUNK;
        wanted.start / CHUNK * CHUNK..end.min(bytes)
    }

    /// Whether these bytes, which are whole chunks from a place in the page on, are what was written.
    pub(super) fn verifies(&self, from: usize, bytes: &[u8]) -> bool {
        let sums = self.sums.get(from / CHUNK..).unwrap_or_default();
        let mut chunks = bytes.chunks(CHUNK).zip(sums);
        bytes.len().div_ceil(CHUNK) <= sums.len() && chunks.all(|(bytes, own)| sum(bytes) == *own)
    }
}

fn number(bytes: &[u8], at: usize) -> u64 {
    let mut number = [0; 8];
    number.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(key: &str) -> Identity {
        let object = Object {
            key: key.to_owned(),
            bytes: 200_000,
            version: Some("1".to_owned()),
        };
        Identity::new("aws", &format!("s3://bucket/{key}"), &object).unwrap()
    }

    #[test]
    fn names_are_read_as_they_are_written() {
        let page = Page {
            object: 0xAB,
            number: 0x1F,
        };
        assert_eq!(page.file(), "00000000000000ab-1f.page");
        assert_eq!(Page::of_file(&page.file()), Some(page));
        assert!(Page::is_part(&page.part()));
        for name in [
            "ab-1f.page",
            "00000000000000AB-1f.page",
            "00000000000000ab-01.page",
            "00000000000000ab.page",
            "a.part",
            "x",
        ] {
            assert!(
                Page::of_file(name).is_none() && !Page::is_part(name),
                "{name}"
            );
        }
    }

    #[test]
    fn any_byte_that_is_altered_is_noticed() {
        let own = identity("a");
        let bytes: Vec<u8> = (0..150_000u64).map(|at| (at * at / 3) as u8).collect();
        let stamp = Stamp { run: 3, next: 77 };
        let header = header(&own, 5, &bytes, stamp);
        let looked = |header: &[u8]| match Header::of(header, &own, 5, bytes.len()) {
            Look::Right(header) => Some(header),
            Look::Another => panic!("it is of another object"),
            Look::Damaged => None,
        };
        let read = looked(&header).unwrap();
        assert_eq!(read.stamp, stamp);
        assert!(read.verifies(0, &bytes));
        assert!(read.verifies(CHUNK, &bytes[CHUNK..]));
        assert!(
            !read.verifies(CHUNK, &bytes[..CHUNK]),
            "they are of another place"
        );
        assert_eq!(
            Header::whole_chunks(&(70_000..140_000), 150_000),
            CHUNK..150_000
        );

        for at in (0..HEADER).filter(|at| !STAMP.contains(at)) {
            let mut header = header.clone();
            header[at] ^= 0x10;
            assert!(looked(&header).is_none(), "byte {at}");
        }
        for at in STAMP {
            let mut header = header.clone();
            header[at] ^= 0x10;
            let read = looked(&header).unwrap();
            assert_eq!(read.stamp, Stamp::NONE, "byte {at}");
        }
        for at in (0..bytes.len()).step_by(997) {
            let mut bytes = bytes.clone();
            bytes[at] ^= 1;
            assert!(!read.verifies(0, &bytes), "byte {at}");
        }
    }

    #[test]
    fn a_page_of_another_object_version_or_place_is_another() {
        let own = identity("a");
        let header = header(&own, 5, b"bytes", Stamp::NONE);
        assert!(matches!(Header::of(&header, &own, 5, 5), Look::Right(_)));
        assert_eq!(Header::of(&header, &identity("b"), 5, 5), Look::Damaged);
        assert_eq!(Header::of(&header, &own, 6, 5), Look::Damaged);
        assert_eq!(Header::of(&header, &own, 5, 4), Look::Damaged);
        // One whose hash is the same: it is as it should be, and stays.
        let other = Identity {
            hash: own.hash,
            ..identity("b")
        };
        assert_eq!(Header::of(&header, &other, 5, 5), Look::Another);
        assert_eq!(Header::of(&header, &other, 6, 5), Look::Damaged);
        let object = Object {
            key: "a".to_owned(),
            bytes: 200_000,
            version: None,
        };
        assert!(Identity::new("", "a", &object).is_none());
        for (version, why) in [
            ("W/\"1\"", "it is weak"),
            (&*"v".repeat(HEADER), "it is long"),
        ] {
            let object = Object {
                version: Some(version.to_owned()),
                ..object.clone()
            };
            assert!(Identity::new("", "a", &object).is_none(), "{why}");
        }
    }
}
