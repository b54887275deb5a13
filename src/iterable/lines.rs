//! Lines of text files.

use std::error::Error as StdError;
use std::fmt;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::ops::Deref;
use std::path::{Path, PathBuf};

use super::state::{Reader, Tag, Writer, wrong};
use super::{ItemIter, IterableDataset, Shard, progress};
use crate::error::BoxError;
use crate::fingerprint::Fingerprint;
use crate::rng::SampleRng;
use crate::sync::Arc;

/// The longest line, in bytes. A file of another kind may have no end of a line at all, and it should not fill the memory.
const LONGEST: usize = 256 << 20;

/// How many bytes are read at once.
const BUFFER_BYTES: usize = 64 << 10;

/// What a line takes that is longer is given back behind it.
const LONG: usize = 1 << 20;

const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// Makes a source of the lines of text files, one file after the other. [`map`](IterableDataset::map) parses them, on all workers.
///
/// *Lines* are those of [`str::lines`]: they end with `\n` or `\r\n`, neither of which belongs to them, and the last one of a file need not
/// end. (A `\r` anywhere else stays. Python's `open` ends a line there.) A byte order mark at the beginning of a file is left out, as by
/// Python's encoding `utf-8-sig`. Empty lines are lines, and an empty file has none.
///
/// *Ranks*: each file goes to one rank, in turn ([`Shard::keeps`]): so each is read once, and ranks have different numbers of lines.
/// Workers share the files of their rank, whatever their number. The order is that of the paths in each epoch;
/// [`shuffle`](IterableDataset::shuffle) mixes it.
///
/// *Reading*: a file is opened when its first line is asked for, and closed behind its last one: one is open at a time, and no more than a
/// line of it is held, beside 64 KiB. A run that is resumed goes to the byte where it was, and reads nothing again. Its source is known by
/// the number and the names of the files, whatever folders they are in; and a file that is shorter than it was, or in which no line begins
/// at that byte, is an error.
///
/// # Errors
///
/// The iterable goes on behind each of these, and [`OnError::Skip`](crate::loader::OnError::Skip) leaves them out. They name the file and
/// the line:
///
/// - A line that is not UTF-8 is an error in its place.
/// - A file that does not open, or cannot be read any further, is one error, in place of all its lines from there on. So is a line of more
///   than 256 MiB: the file is hardly text.
///
/// If there are fewer files than ranks, the iterable does not open, on any rank: some would have nothing to do, and the others would wait
/// for them.
///
/// # Examples
///
/// ```
/// use pinfeed::iterable::{self, IterableDataset};
/// use pinfeed::DataLoader;
///
/// # let folder = tempfile::tempdir()?;
/// # let paths = ["a.csv", "b.csv"].map(|name| folder.path().join(name));
/// # for path in &paths { std::fs::write(path, "0.5,1\r\n1.5,0\r\n")?; }
/// let lines = iterable::lines(paths);
/// let rows = lines.map(|line, _| {
///     let (value, label) = line.split_once(',').ok_or_else(|| line.error("it has no comma"))?;
///     Ok((value.parse::<f32>()?, label.parse::<i64>()?))
/// });
/// let loader = DataLoader::iterable(rows.shuffle(1_000)).batch_size(4).num_workers(2).build()?;
/// for batch in loader.epoch(0) {
///     let (values, labels) = batch?;
///     assert_eq!(values.len(), labels.len());
/// }
/// # Ok::<(), pinfeed::BoxError>(())
/// ```
pub fn lines<P: Into<PathBuf>>(paths: impl IntoIterator<Item = P>) -> Lines {
    let paths = paths.into_iter().map(|path| Arc::from(path.into()));
    Lines {
        paths: paths.collect(),
        skipped: 0,
    }
}

/// The lines of text files: [`lines()`] makes it.
#[derive(Debug, Clone)]
pub struct Lines {
    paths: Arc<[Arc<Path>]>,
    /// How many lines of each file are left out.
    skipped: u64,
}

impl Lines {
    /// Leaves out the first `count` lines of each file, such as the names of a table's columns. (They are read, whatever they are, and
    /// counted: the line behind one of them is line 2.)
    pub fn skip_lines(self, count: u64) -> Lines {
        Lines {
            skipped: count,
            ..self
        }
    }
}

/// A line of a text file ([`lines()`]). It is a `str`, and knows where it is from.
///
/// # Examples
///
/// ```
/// use pinfeed::iterable::{self, IterableDataset};
/// use pinfeed::DataLoader;
///
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("numbers.txt");
/// # std::fs::write(&path, "3\n5\nfive\n")?;
/// let numbers = iterable::lines([path]).map(|line, _| {
///     assert!(line.path().ends_with("numbers.txt"));
///     line.parse::<i64>().map_err(|cause| line.error(cause))
/// });
/// let loader = DataLoader::iterable(numbers).batch_size(2).build()?;
/// let mut epoch = loader.epoch(0);
/// assert_eq!(epoch.next().unwrap()?.as_slice(), [3, 5]);
/// let error = epoch.next().unwrap().unwrap_err().to_string();
/// assert!(error.ends_with("numbers.txt, line 3: invalid digit found in string"), "{error}");
/// # Ok::<(), pinfeed::BoxError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    text: String,
    path: Arc<Path>,
    number: u64,
}

impl Line {
    /// Returns its text, without what ends the line.
    pub fn into_string(self) -> String {
        self.text
    }

    /// Returns the path of its file, as it was given to [`lines()`].
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns its number in its file, counted from 1.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Makes an error of what is wrong with it, that names the file and the line.
    pub fn error(&self, cause: impl Into<BoxError>) -> BoxError {
        Failed {
            path: Arc::clone(&self.path),
            line: Some(self.number),
            cause: cause.into(),
        }
        .into()
    }
}

impl Deref for Line {
    type Target = str;

    fn deref(&self) -> &str {
        &self.text
    }
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// What is wrong with a file, or a line of it.
#[derive(Debug)]
struct Failed {
    path: Arc<Path>,
    line: Option<u64>,
    cause: BoxError,
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.path.display())?;
        if let Some(line) = self.line {
            write!(f, ", line {line}")?;
        }
        write!(f, ": {}", self.cause)
    }
}

impl StdError for Failed {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.cause.source()
    }
}

impl IterableDataset for Lines {
    type Item = Line;
    type Sample = Line;
    type Iter = LinesIter;

    fn open(&self, _epoch: u64, shard: Shard) -> Result<LinesIter, BoxError> {
        let (files, ranks) = (self.paths.len() as u64, shard.ranks());
        if files < ranks {
            return Err(format!(
                "`lines` has {files} files for {ranks} ranks, and each file goes to one rank: split them into {ranks} at least"
            )
            .into());
        }
        Ok(LinesIter {
            paths: Arc::clone(&self.paths),
            skipped: self.skipped,
            shard,
            at: At::beginning_of(shard.rank()),
            file: None,
            line: Vec::new(),
        })
    }

    fn load(&self, line: Line, _: &mut SampleRng) -> Result<Line, BoxError> {
        Ok(line)
    }

    /// Of the number and the names of the files, and what is left out: they may be in another folder in the next run.
    fn fingerprint(&self) -> u32 {
        let mut print = Fingerprint::new();
        print.add_number(Tag::Lines as u64);
        print.add_number(self.skipped);
        print.add_number(self.paths.len() as u64);
        for name in self.paths.iter().filter_map(|path| path.file_name()) {
            print.add_number(name.len() as u64);
            print.add(name.as_encoded_bytes());
        }
        print.finish()
    }
}

/// The open iterator of [`Lines`].
#[derive(Debug)]
pub struct LinesIter {
    paths: Arc<[Arc<Path>]>,
    skipped: u64,
    shard: Shard,
    at: At,
    /// `None` before the file's first line.
    file: Option<BufReader<File>>,
    /// The bytes of the line that was read last.
    line: Vec<u8>,
}

/// Where the next line begins.
#[derive(Debug, Clone, Copy)]
struct At {
    /// The number of its file, among those of all ranks.
    file: u64,
    offset: u64,
    /// How many lines of its file are before it.
    lines: u64,
}

impl At {
    fn beginning_of(file: u64) -> At {
        At {
            file,
            offset: 0,
            lines: 0,
        }
    }
}

impl LinesIter {
    /// The file that is read, unless all were.
    fn path(&self) -> Option<&Arc<Path>> {
        self.paths.get(usize::try_from(self.at.file).ok()?)
    }

    /// Goes to this rank's next file.
    fn leave_file(&mut self) {
        self.file = None;
        let next = self.at.file.saturating_add(self.shard.ranks());
        self.at = At::beginning_of(next);
    }

    /// Reads the next line's bytes, with what ends it. `false`: the file has no more.
    fn read(&mut self, path: &Path) -> io::Result<bool> {
        let file = match &mut self.file {
            Some(file) => file,
            None => {
                let file = BufReader::with_capacity(BUFFER_BYTES, File::open(path)?);
                self.file.insert(file)
            }
        };
        self.line.clear();
        if self.line.capacity() > LONG {
            self.line.shrink_to(BUFFER_BYTES);
        }
        let most = LONGEST as u64 + 1;
        let read = file.by_ref().take(most).read_until(b'\n', &mut self.line)?;
        if read > LONGEST && !self.line.ends_with(b"\n") {
            let text = format!(
                "it has more than {} MiB, and the file is hardly text",
                LONGEST >> 20
            );
            return Err(io::Error::new(io::ErrorKind::InvalidData, text));
        }
        self.at.offset += read as u64;
        self.at.lines += u64::from(read > 0);
        Ok(read > 0)
    }

    /// The text of the line that was read. `None`: it is none, for there is only a byte order mark.
    fn text(&self) -> Option<Result<String, BoxError>> {
        let is_first = self.at.lines == 1;
        let bytes = &*self.line;
        let bytes = match bytes.strip_prefix(BYTE_ORDER_MARK) {
            Some(rest) if is_first && rest.is_empty() => return None,
            Some(rest) if is_first => rest,
            _ => bytes,
        };
        let bytes = match bytes.strip_suffix(b"\n") {
            Some(line) => line.strip_suffix(b"\r").unwrap_or(line),
            None => bytes,
        };
        let text = std::str::from_utf8(bytes).map(str::to_owned);
        Some(text.map_err(|cause| {
            let is_utf16 = bytes.starts_with(b"\xff\xfe") || bytes.starts_with(b"\xfe\xff");
            match is_first && is_utf16 {
                true => "the file seems to be UTF-16: convert it to UTF-8".into(),
                false => format!("it is not UTF-8: {cause}").into(),
            }
        }))
    }

    /// Opens a file in its middle, where a line begins.
    fn open_at(&self, path: &Path, offset: u64) -> Result<BufReader<File>, BoxError> {
        let mut file = File::open(path)?;
        let length = file.metadata()?.len();
        let before = offset - 1;
        file.seek(SeekFrom::Start(before))?;
        let mut file = BufReader::with_capacity(BUFFER_BYTES, file);
        let mut last = [0];
        let begins = offset <= length && {
            file.read_exact(&mut last)?;
            last == *b"\n" || offset == length
        };
        match begins {
            true => Ok(file),
            false => Err(format!("it is not what it was: no line begins at byte {offset}").into()),
        }
    }
}

impl ItemIter for LinesIter {
    type Item = Line;

    fn next(&mut self) -> Option<Result<Line, BoxError>> {
        loop {
            let path = Arc::clone(self.path()?);
            match self.read(&path) {
                Ok(true) if self.at.lines <= self.skipped => {}
                Ok(true) => {
                    let Some(text) = self.text() else { continue };
                    let line = Line {
                        text: String::new(),
                        path,
                        number: self.at.lines,
                    };
                    return Some(match text {
                        Ok(text) => Ok(Line { text, ..line }),
                        Err(cause) => Err(line.error(cause)),
                    });
                }
                Ok(false) => self.leave_file(),
                Err(cause) => {
                    let line = self.file.as_ref().map(|_| self.at.lines + 1);
                    self.leave_file();
                    let cause = cause.into();
                    return Some(Err(Failed { path, line, cause }.into()));
                }
            }
            // (Many files may be empty, or many lines left out.)
            if let Err(interrupted) = progress() {
                return Some(Err(interrupted.into()));
            }
        }
    }

    fn state(&self) -> Option<Vec<u8>> {
        let At {
            file,
            offset,
            lines,
        } = self.at;
        let state = Writer::new(Tag::Lines).number(file).number(offset);
        Some(state.number(lines).finish())
    }

    fn seek(&mut self, state: &[u8]) -> Result<(), BoxError> {
        let mut state = Reader::new(Tag::Lines, state)?;
        self.at = At {
            file: state.number()?,
            offset: state.number()?,
            lines: state.number()?,
        };
        state.end()?;
        if !self.shard.keeps(self.at.file) {
            return Err(wrong());
        }
        self.file = match self.path() {
            Some(path) if self.at.offset > 0 => {
                let file = self.open_at(path, self.at.offset);
                Some(file.map_err(|cause| Failed {
                    path: Arc::clone(path),
                    line: Some(self.at.lines + 1),
                    cause,
                })?)
            }
            _ => None,
        };
        Ok(())
    }
}
