//! The list of files as one binary file, which is fast to read.
//!
//! All numbers are little-endian, with eight bytes, except the lengths of names, which have four:
//!
//! - the header: [`MAGIC`], [`VERSION`], and the numbers of files, bytes in their names, classes, bytes in their names, and runs of
//!   equal labels;
//! - the length of each file name, and of each class name;
//! - the runs: a count and a label each;
//! - the file names, relative to the root, and the class names, back to back;
//! - a checksum of everything before.
//!
//! The memory that reading takes is bounded by the size of the file, whatever its header says.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use super::files::{FileList, Names};
use crate::{Error, Result};

/// As PNG's: no text file begins this way, and it reveals a transfer that changes line endings or clears the eighth
/// bit.
const MAGIC: [u8; 8] = *b"\x89pinf\r\n\x1A";

const VERSION: u64 = 1;

/// The length of the header in words.
const HEADER: usize = 7;

/// Why an index cannot be read.
enum IndexFault {
    Io(io::Error),
    Content(String),
}

impl From<io::Error> for IndexFault {
    fn from(error: io::Error) -> IndexFault {
        IndexFault::Io(error)
    }
}

impl From<&str> for IndexFault {
    fn from(reason: &str) -> IndexFault {
        IndexFault::Content(reason.to_owned())
    }
}

/// Reads an index of files below `root`.
pub(super) fn read(root: &Path, index: &Path) -> Result<FileList> {
    let open = || -> Result<FileList, IndexFault> {
        let file = File::open(index)?;
        let bytes = file.metadata()?.len();
        read_from(file, bytes, root)
    };
    open().map_err(|fault| match fault {
        IndexFault::Io(source) => Error::Io {
            path: index.to_owned(),
            source,
        },
        IndexFault::Content(reason) => Error::DataSet {
            path: index.to_owned(),
            reason: format!("{reason}; ImageFolder::save_index makes a new one"),
        },
    })
}

/// Reads an index of `bytes` bytes.
fn read_from(file: impl Read, bytes: u64, root: &Path) -> Result<FileList, IndexFault> {
    let mut input = Input {
        file,
        sum: Checksum::default(),
    };
    if bytes < MAGIC.len() as u64 || input.section(MAGIC.len() as u64)? != MAGIC {
        return Err("it is not an index of pictures".into());
    }
    const CUT_OFF: &str = "the index is cut off";
    if bytes < 8 * HEADER as u64 {
        return Err(CUT_OFF.into());
    }
    let header = input.section(8 * (HEADER as u64 - 1))?;
    let mut words = words(&header);
    let mut word = || words.next().unwrap_or(0);
    let version = word();
    if version != VERSION {
        let reason =
            format!("the index has version {version}, and this library reads version {VERSION}");
        return Err(IndexFault::Content(reason));
    }
    let [files, name_bytes, classes, class_bytes, runs] = [(); 5].map(|()| word());
    // Before any allocation: the sizes in the header must add up to the size of the file.
    let sizes = [
        files.checked_mul(4),
        classes.checked_mul(4),
        runs.checked_mul(16),
        Some(name_bytes),
        Some(class_bytes),
    ];
    let ends = 8 * (HEADER as u64 + 1);
    let wanted = sizes
        .iter()
        .try_fold(ends, |sum, size| sum.checked_add((*size)?));
    match wanted {
        Some(wanted) if wanted == bytes => {}
        Some(wanted) if wanted > bytes => return Err(CUT_OFF.into()),
        _ => return Err("the index is damaged: its size is not what its header says".into()),
    }
    let [file_lens, class_lens, runs, names, class_names] =
        [0, 1, 2, 3, 4].map(|section| input.section(sizes[section].unwrap_or(0)));
    let (file_lens, class_lens, runs) = (file_lens?, class_lens?, runs?);
    let (names, class_names) = (names?, class_names?);
    let sum = input.sum.0;
    if self::words(&input.section(8)?).next() != Some(sum) {
        return Err("the index is damaged: its checksum is not that of its content".into());
    }

    // The file is intact, but the writer may have been wrong.
    const NONSENSE: &str = "the index makes no sense";
    let names = Names::of_lens(names, lens(&file_lens)).ok_or(NONSENSE)?;
    let labels = labels(&runs, names.len()).ok_or(NONSENSE)?;
    let classes = Names::of_lens(class_names, lens(&class_lens)).ok_or(NONSENSE)?;
    let classes: Option<Vec<String>> = (0..classes.len())
        .map(|index| String::from_utf8(classes.get(index)?.to_vec()).ok())
        .collect();
    FileList::of_parts(root, names, labels, classes.ok_or(NONSENSE)?).ok_or_else(|| NONSENSE.into())
}

/// The labels of all files, from their runs.
fn labels(runs: &[u8], files: usize) -> Option<Vec<i64>> {
    let mut labels = Vec::with_capacity(files);
    let mut words = words(runs);
    while let (Some(count), Some(label)) = (words.next(), words.next()) {
        let count = usize::try_from(count).ok()?;
        let left = files - labels.len();
        labels.resize(
            labels.len() + Some(count).filter(|count| *count <= left)?,
            label as i64,
        );
    }
    (labels.len() == files).then_some(labels)
}

fn words(bytes: &[u8]) -> impl Iterator<Item = u64> {
    let (words, _) = bytes.as_chunks();
    words.iter().map(|word| u64::from_le_bytes(*word))
}

fn lens(bytes: &[u8]) -> impl ExactSizeIterator<Item = usize> {
    let (lens, _) = bytes.as_chunks();
    lens.iter().map(|len| u32::from_le_bytes(*len) as usize)
}

/// The file, which is read section by section.
struct Input<R> {
    file: R,
    sum: Checksum,
}

impl<R: Read> Input<R> {
    /// Reads the next `bytes` bytes. The file was checked to have them.
    fn section(&mut self, bytes: u64) -> Result<Vec<u8>, IndexFault> {
        let mut section = Vec::new();
        let reserved = usize::try_from(bytes).map(|bytes| section.try_reserve_exact(bytes));
        if !matches!(reserved, Ok(Ok(()))) {
            return Err(IndexFault::Io(io::ErrorKind::OutOfMemory.into()));
        }
        self.file.by_ref().take(bytes).read_to_end(&mut section)?;
        if (section.len() as u64) < bytes {
            return Err(IndexFault::Io(io::ErrorKind::UnexpectedEof.into()));
        }
        self.sum.add(&section);
        Ok(section)
    }
}

/// A checksum against damage, not against malice. Each step is a bijection, so a single wrong word is always detected.
#[derive(Default)]
struct Checksum(u64);

impl Checksum {
    fn add(&mut self, section: &[u8]) {
        let (words, rest) = section.as_chunks();
        for word in words {
            self.step(u64::from_le_bytes(*word));
        }
        if !rest.is_empty() {
            let mut word = [0; 8];
            word[..rest.len()].copy_from_slice(rest);
            self.step(u64::from_le_bytes(word));
        }
    }

    fn step(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(5) ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }
}

/// Writes an index to a draft beside its place, and renames the draft when it is complete.
pub(super) fn write(files: &FileList, index: &Path) -> Result<()> {
    let (draft, file) = draft(index).map_err(|source| cannot_write(index, source))?;
    let written = write_to(files, &file)
        .and_then(|()| file.sync_all())
        .and_then(|()| {
            drop(file); // Windows cannot rename an open file
            std::fs::rename(&draft, index)
        });
    written.map_err(|source| {
        // An error of removing the draft would hide the cause.
        let _ = std::fs::remove_file(&draft);
        cannot_write(index, source)
    })
}

fn cannot_write(index: &Path, source: io::Error) -> Error {
    Error::Write {
        path: index.to_owned(),
        source,
    }
}

/// Creates a file beside the index: hidden, with a unique name.
fn draft(index: &Path) -> io::Result<(PathBuf, File)> {
    const ATTEMPTS: u32 = 1_000;
    let mut attempt = 0;
    loop {
        let mut name = std::ffi::OsString::from(".");
        name.push(index.file_name().unwrap_or_default());
        name.push(format!(".{}-{attempt}.tmp", std::process::id()));
        let draft = index.with_file_name(name);
        match OpenOptions::new().write(true).create_new(true).open(&draft) {
            Ok(file) => return Ok((draft, file)),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && attempt < ATTEMPTS => {
                attempt += 1;
            }
            Err(error) => return Err(error),
        }
    }
}

fn write_to(files: &FileList, mut file: impl Write) -> io::Result<()> {
    let names = files.names();
    let classes = files.classes();
    let class_names = classes.concat();
    let (mut runs, mut run_count) = (Vec::new(), 0);
    for run in files.labels().chunk_by(|left, right| left == right) {
        runs.extend_from_slice(&(run.len() as u64).to_le_bytes());
        runs.extend_from_slice(&run[0].to_le_bytes());
        run_count += 1;
    }
    let numbers = [
        VERSION,
        names.len() as u64,
        names.bytes().len() as u64,
        classes.len() as u64,
        class_names.len() as u64,
        run_count,
    ];
    let header: Vec<u8> = numbers.iter().flat_map(|word| word.to_le_bytes()).collect();
    let mut sum = Checksum::default();
    for section in [
        &MAGIC[..],
        &header,
        &lens_of(names.lens())?,
        &lens_of(classes.iter().map(String::len))?,
        &runs,
        names.bytes(),
        class_names.as_bytes(),
    ] {
        sum.add(section);
        file.write_all(section)?;
    }
    file.write_all(&sum.0.to_le_bytes())
}

fn lens_of(lens: impl Iterator<Item = usize>) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(4 * lens.size_hint().0);
    for len in lens {
        let len = u32::try_from(len)
            .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "a name of 4 GiB"))?;
        bytes.extend_from_slice(&len.to_le_bytes());
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests;
