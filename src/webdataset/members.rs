//! The members of a tar archive, by their headers: [`Members`].
//!
//! What is a member, and what of it is skipped, is as in Python's `tarfile`, by which webdataset reads. Where `tarfile` ends without a word
//! (at a damaged header, at a missing end), this is an error.

use std::collections::HashMap;

use tar::{EntryType, Header};

use super::error::Cause;

/// A block: headers have one, and contents a number of them.
pub(super) const BLOCK: u64 = 512;

/// How large an extended header may be. (A path has 4 KiB at most, but extended attributes are there, too.)
const MAX_EXTENDED: u64 = 1 << 20;

/// How far behind the end of an archive another one is looked for. Writers fill the last record, of 10 KiB as a rule.
const SEARCHED: u64 = 64 << 10;

/// Which byte of a sparse member's header, in GNU's old format, says that its map of holes goes on in the block behind it; and which of that
/// block, that it goes on in another one.
const IS_CONTINUED: usize = 482;
const IS_CONTINUED_AGAIN: usize = 504;

/// A regular file in an archive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Member {
    pub(super) name: String,
    /// Where its contents begin.
    pub(super) at: u64,
    pub(super) bytes: u64,
    /// Whether its holes were left out, so that its contents are others than those bytes.
    pub(super) is_sparse: bool,
}

/// What headers are read from. They are asked for in the order in which they lie there.
pub(super) trait Archive {
    /// The `count` bytes at `at`; fewer if the archive ends before that.
    fn bytes(&mut self, at: u64, count: u64) -> Result<&[u8], Cause>;

    /// How long it is. `None`: its end was not seen yet.
    fn len(&self) -> Option<u64>;
}

/// Walks the headers.
pub(super) struct Members<A> {
    archive: A,
    /// Where the next header is.
    at: u64,
    /// The member before it.
    before: String,
    /// Links that were skipped, and the first of them.
    links: (u64, Option<String>),
}

/// What extended headers say of the member behind them.
#[derive(Default)]
struct Extended {
    name: Option<Vec<u8>>,
    long_name: Option<Vec<u8>>,
    size: Option<u64>,
    is_sparse: bool,
    /// Whether there was one.
    any: bool,
}

impl<A: Archive> Members<A> {
    /// Begins at byte `at`, where a header is.
    pub(super) fn new(archive: A, at: u64) -> Members<A> {
        Members {
            archive,
            at,
            before: String::new(),
            links: (0, None),
        }
    }

    /// What they are read from, for the contents of the member that came last.
    pub(super) fn archive(&mut self) -> &mut A {
        &mut self.archive
    }

    /// Where the next header is.
    pub(super) fn at(&self) -> u64 {
        self.at
    }

    /// How many links were skipped, and the first.
    pub(super) fn links(&self) -> (u64, Option<&str>) {
        (self.links.0, self.links.1.as_deref())
    }

    /// The next regular file; `None` at the end of the archive, behind which nothing was looked at yet: [`end`](Members::end).
    pub(super) fn next(&mut self) -> Result<Option<Member>, Cause> {
        let mut extended = Extended::default();
        loop {
            let at = self.at;
            let block = self.block(at)?;
            if block.iter().all(|byte| *byte == 0) {
                return match extended.any {
                    true => Err(header(at, "an extended header has no member behind it")),
                    false => Ok(None),
                };
            }
            if !has_checksum(&block) {
                return Err(self.no_header(at, &block));
            }
            let head = Header::from_byte_slice(&block);
            let own = head
                .entry_size()
                .map_err(|error| header(at, format!("its size, {error}")))?;
            let kind = head.entry_type();
            let mut contents = at + BLOCK;
            match kind {
                kind if kind.is_pax_local_extensions() || block[156] == b'X' => {
                    let text = self.extended(contents, own)?;
                    pax(&text, &mut extended).map_err(|what| header(at, what))?;
                }
                EntryType::GNULongName => {
                    let text = self.extended(contents, own)?;
                    let name = text.split(|byte| *byte == 0).next().unwrap_or_default();
                    (extended.long_name, extended.any) = (Some(name.to_vec()), true);
                }
                EntryType::XGlobalHeader => {
                    let text = self.extended(contents, own)?;
                    let mut global = Extended::default();
                    pax(&text, &mut global).map_err(|what| header(at, what))?;
                    if global.name.is_some() || global.size.is_some() || global.is_sparse {
                        return Err(header(
                            at,
                            "a global header gives all members one name or size",
                        ));
                    }
                }
                EntryType::GNULongLink => self.at = self.behind(contents, own, "a link's name")?,
                _ => {
                    let name = name(head, &extended, self.at)?;
                    let size = extended.size.unwrap_or(own);
                    let is_sparse = extended.is_sparse || kind == EntryType::GNUSparse;
                    extended = Extended::default();
                    // (`tarfile` skips contents of all types but these, which have none, whatever their header says.)
                    let is_bare = matches!(
                        kind,
                        EntryType::Link
                            | EntryType::Symlink
                            | EntryType::Char
                            | EntryType::Block
                            | EntryType::Directory
                            | EntryType::Fifo
                    );
                    let is_regular = matches!(
                        kind,
                        EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse
                    );
                    // Archives of before 1988 have folders as files whose names end so.
                    let is_folder = block[156] == 0 && head.path_bytes().ends_with(b"/");
                    if matches!(kind, EntryType::Link | EntryType::Symlink) {
                        self.links.0 += 1;
                        self.links.1.get_or_insert_with(|| lossy(&name));
                    }
                    if is_bare || is_folder {
                        self.at = contents;
                        continue;
                    }
                    let text = lossy(&name);
                    let what = format!("its member {text:?}");
                    if kind == EntryType::GNUSparse && block[IS_CONTINUED] != 0 {
                        contents = self.behind_map(contents, &what)?;
                    }
                    self.at = self.behind(contents, size, &what)?;
                    self.before.clone_from(&text);
                    if is_regular {
                        let name =
                            String::from_utf8(name).map_err(|_| Cause::Name { name: text })?;
                        return Ok(Some(Member {
                            name,
                            at: contents,
                            bytes: size,
                            is_sparse,
                        }));
                    }
                }
            }
        }
    }

    /// Looks at what is behind the archive, once [`next`](Members::next) has come to its end.
    pub(super) fn end(&mut self) -> Result<(), Cause> {
        self.no_other(self.at + BLOCK)
    }

    /// Where the header behind these contents is.
    fn behind(&self, contents: u64, size: u64, what: &str) -> Result<u64, Cause> {
        let blocks = size.checked_next_multiple_of(BLOCK);
        let end = blocks.and_then(|bytes| contents.checked_add(bytes));
        let len = self.archive.len().unwrap_or(u64::MAX);
        end.filter(|end| *end <= len).ok_or_else(|| Cause::CutOff {
            bytes: len,
            what: what.to_owned(),
        })
    }

    /// Where the contents of a sparse member begin whose map of holes goes on in blocks of its own, the first of them at `at`.
    fn behind_map(&mut self, mut at: u64, what: &str) -> Result<u64, Cause> {
        loop {
            let block = self.archive.bytes(at, BLOCK)?;
            let short = block.len() as u64;
            if short < BLOCK {
                return Err(Cause::CutOff {
                    bytes: at + short,
                    what: what.to_owned(),
                });
            }
            let is_continued = block[IS_CONTINUED_AGAIN] != 0;
            at += BLOCK;
            if !is_continued {
                return Ok(at);
            }
        }
    }

    fn block(&mut self, at: u64) -> Result<[u8; BLOCK as usize], Cause> {
        let bytes = self.archive.bytes(at, BLOCK)?;
        let mut block = [0; BLOCK as usize];
        if bytes.len() == block.len() {
            block.copy_from_slice(bytes);
            return Ok(block);
        }
        let (short, end) = (bytes.len() as u64, at + bytes.len() as u64);
        // (A file that is shorter than a block, or has no header, is something else.)
        if at == 0 && short > 0 {
            return Err(no_tar(bytes));
        }
        // What is read from the front only may end before this.
        let len = self.archive.len().unwrap_or(end);
        Err(match len {
            0 => Cause::Empty,
            len if len < at => Cause::CutOff {
                bytes: len,
                what: format!("its member {:?}", self.before),
            },
            len if short == 0 => Cause::NoEnd { bytes: len },
            len => Cause::CutOff {
                bytes: len,
                what: "a header".to_owned(),
            },
        })
    }

    fn no_header(&self, at: u64, block: &[u8]) -> Cause {
        match at {
            0 => no_tar(block),
            _ => Cause::Checksum {
                at,
                before: match self.before.is_empty() {
                    true => "no file".to_owned(),
                    false => format!("{:?}", self.before),
                },
            },
        }
    }

    /// The contents of an extended header, behind which it goes on.
    fn extended(&mut self, contents: u64, size: u64) -> Result<Vec<u8>, Cause> {
        if size > MAX_EXTENDED {
            return Err(header(
                contents - BLOCK,
                format!("an extended header of {size} bytes, of which 1 MiB is read at most"),
            ));
        }
        self.at = self.behind(contents, size, "an extended header")?;
        let bytes = self.archive.bytes(contents, size)?.to_vec();
        match bytes.len() as u64 {
            read if read < size => Err(Cause::CutOff {
                bytes: contents + read,
                what: "an extended header".to_owned(),
            }),
            _ => Ok(bytes),
        }
    }

    /// That no other archive follows the end of this one.
    fn no_other(&mut self, end: u64) -> Result<(), Cause> {
        let mut at = end;
        while at + BLOCK <= end + SEARCHED {
            let block = self.archive.bytes(at, BLOCK)?;
            if block.len() as u64 != BLOCK {
                break;
            }
            if block.iter().any(|byte| *byte != 0) {
                return match has_checksum(block) {
                    true => Err(Cause::Another { at }),
                    false => Ok(()), // (what tar ignores, too)
                };
            }
            at += BLOCK;
        }
        Ok(())
    }
}

/// That the member whose contents begin at byte 512 of `bytes` has this size, by its header there.
pub(super) fn is_header_of(block: &[u8], bytes: u64) -> Result<(), &'static str> {
    if block.len() as u64 != BLOCK || !has_checksum(block) {
        return Err("no header");
    }
    match Header::from_byte_slice(block).entry_size() {
        Ok(size) if size == bytes => Ok(()),
        _ => Err("a member of another size"),
    }
}

/// Whether the block's sum is the one that it says. Old writers summed the bytes as signed numbers.
fn has_checksum(block: &[u8]) -> bool {
    let Ok(expected) = Header::from_byte_slice(block).cksum() else {
        return false;
    };
    let is_sum = |at: &usize| (148..156).contains(at);
    let summed = |at: usize| if is_sum(&at) { b' ' } else { block[at] };
    let unsigned: u32 = (0..block.len()).map(|at| u32::from(summed(at))).sum();
    let signed: i32 = (0..block.len()).map(|at| i32::from(summed(at) as i8)).sum();
    expected == unsigned || i64::from(expected) == i64::from(signed)
}

fn header(at: u64, what: impl Into<String>) -> Cause {
    Cause::Header {
        at,
        what: what.into(),
    }
}

/// What a file is that does not begin with a header.
fn no_tar(start: &[u8]) -> Cause {
    let compressed = [
        (&[0x1f, 0x8b][..], "gzip"),
        (&[0x28, 0xb5, 0x2f, 0xfd], "zstd"),
        (b"BZh", "bzip2"),
        (b"\xfd7zXZ\0", "xz"),
    ];
    if let Some((_, name)) = compressed
        .iter()
        .find(|(magic, _)| start.starts_with(magic))
    {
        return Cause::Compressed(name);
    }
    let begins = String::from_utf8_lossy(&start[..start.len().min(24)]);
    Cause::NoTar(
        match start.starts_with(b"<")
            || start.starts_with(b"{")
            || start.starts_with(b"version https://git-lfs")
        {
            true => format!(
                "it begins with {begins:?}, so a server's answer was saved, or a pointer to the file"
            ),
            false => format!("it begins with {begins:?}, which is no header"),
        },
    )
}

/// The member's name, in bytes.
fn name(head: &Header, extended: &Extended, at: u64) -> Result<Vec<u8>, Cause> {
    let longer = extended.name.as_ref().or(extended.long_name.as_ref());
    let name = longer.map_or_else(|| head.path_bytes().into_owned(), Vec::clone);
    if name.contains(&0) {
        return Err(header(at, "its name has a zero in it"));
    }
    Ok(name)
}

/// Reads the records of a pax header: `length key=value\n`, where the length counts all of it.
fn pax(text: &[u8], extended: &mut Extended) -> Result<(), String> {
    let damaged = || "its pax records are damaged".to_owned();
    extended.any = true;
    let mut rest = text;
    let mut values: HashMap<&[u8], &[u8]> = HashMap::new();
    while !rest.is_empty() && rest[0] != 0 {
        let space = rest
            .iter()
            .position(|byte| *byte == b' ')
            .ok_or_else(damaged)?;
        let length = std::str::from_utf8(&rest[..space]).ok();
        let length: usize = length
            .and_then(|text| text.parse().ok())
            .ok_or_else(damaged)?;
        let record = rest.get(space + 1..length).ok_or_else(damaged)?;
        let record = record.strip_suffix(b"\n").ok_or_else(damaged)?;
        let equals = record
            .iter()
            .position(|byte| *byte == b'=')
            .ok_or_else(damaged)?;
        values.insert(&record[..equals], &record[equals + 1..]);
        rest = &rest[length..];
    }
    if let Some(path) = values.get(&b"path"[..]) {
        extended.name = Some(path.to_vec());
    }
    if let Some(size) = values.get(&b"size"[..]) {
        let size = std::str::from_utf8(size)
            .ok()
            .and_then(|text| text.parse().ok());
        extended.size = Some(size.ok_or_else(damaged)?);
    }
    extended.is_sparse |= values.keys().any(|key| key.starts_with(b"GNU.sparse."));
    if let Some(real) = values.get(&b"GNU.sparse.name"[..]) {
        extended.name = Some(real.to_vec());
    }
    Ok(())
}

fn lossy(name: &[u8]) -> String {
    String::from_utf8_lossy(name).into_owned()
}
