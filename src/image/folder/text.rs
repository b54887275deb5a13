//! Lists of pictures in text files.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use super::files::{FileList, FileListBuilder};
use super::walk::is_picture;
use crate::{Error, Result};

/// The most bytes of a line: a path has at most a few thousand. What has longer ones is no list, and need not be read whole.
const LONGEST: usize = 64 << 10;

const BYTE_ORDER_MARK: &[u8] = b"\xEF\xBB\xBF";

/// Reads lines of a path, a tab and a class, or of a path alone.
pub(super) fn read(list: &Path) -> Result<FileList> {
    let wrong = |reason| Error::DataSet {
        path: list.to_owned(),
        reason,
    };
    let unread = |source| Error::Io {
        path: list.to_owned(),
        source,
    };
    let mut lines = Lines::new(BufReader::new(File::open(list).map_err(unread)?));
    let mut builder = FileListBuilder::default();
    let mut classes_given = true;
    let mut heading = None;
    while let Some((number, line)) = lines.next().map_err(unread)? {
        let line = line.map_err(|reason| wrong(format!("line {number} {reason}")))?;
        if line.trim().is_empty() {
            continue;
        }
        let entry = Entry::read(line);
        let entry = entry.ok_or_else(|| wrong(format!("line {number} (`{line}`) {NO_ENTRY}")))?;
        match heading.take() {
            None if builder.is_empty() && entry.may_be_heading() => heading = Some(line.to_owned()),
            Some(first) if is_named_as_picture(entry.path) => {
                return Err(wrong(format!(
                    "its first line (`{first}`) seems to be a heading: it has no picture's ending, and the next one has. Remove it"
                )));
            }
            _ => {}
        }
        classes_given &= entry.has_class;
        builder.push(entry.path, entry.class, number)?;
    }
    if builder.is_empty() {
        return Err(wrong(
            "the list is empty: it needs lines of path, tab and class".to_owned(),
        ));
    }
    let root = list.parent().unwrap_or(Path::new(""));
    let files = builder.finish(root, classes_given);
    files.map_err(|mixed| wrong(mixed.say("line")))
}

const NO_ENTRY: &str = "is neither path, tab and class, nor a path of class folder and picture (one tab stands between path and \
                        class, and no other blank, comma or second tab)";

/// What a line says.
struct Entry<'a> {
    path: &'a Path,
    class: &'a str,
    /// Whether the class was given, and is not the picture's folder.
    has_class: bool,
}

impl<'a> Entry<'a> {
    fn read(line: &'a str) -> Option<Entry<'a>> {
        let (path, class) = match line.rsplit_once('\t') {
            Some((path, class)) => (path.trim(), Some(class.trim())),
            None => (line.trim(), None),
        };
        let path = Path::new(path);
        let entry = Entry {
            path,
            class: class.or_else(|| folder_of(path))?,
            has_class: class.is_some(),
        };
        let is_path = !path.as_os_str().is_empty() && !path.to_str()?.contains('\t');
        (is_path && !entry.class.is_empty()).then_some(entry)
    }

    fn may_be_heading(&self) -> bool {
        self.has_class && !is_named_as_picture(self.path)
    }
}

fn is_named_as_picture(path: &Path) -> bool {
    path.file_name().is_some_and(is_picture)
}

/// The name of a picture's folder, if the path is that of a picture.
fn folder_of(path: &Path) -> Option<&str> {
    if !is_picture(path.file_name()?) {
        return None;
    }
    path.parent()?.file_name()?.to_str()
}

/// The lines of a text file, without a byte order mark.
struct Lines<R> {
    file: R,
    line: Vec<u8>,
    /// That of the last line, from 1.
    number: u64,
}

impl<R: BufRead> Lines<R> {
    fn new(file: R) -> Lines<R> {
        Lines {
            file,
            line: Vec::new(),
            number: 0,
        }
    }

    /// The next line's number, and the line, or what is wrong with it.
    fn next(&mut self) -> std::io::Result<Option<(u64, Result<&str, &'static str>)>> {
        self.line.clear();
        let most = BYTE_ORDER_MARK.len() + LONGEST + 1; // with what ends it
        let mut file = self.file.by_ref().take(most as u64);
        if file.read_until(b'\n', &mut self.line)? == 0 {
            return Ok(None);
        }
        self.number += 1;
        Ok(Some((self.number, self.text())))
    }

    fn text(&self) -> Result<&str, &'static str> {
        let mut line = &self.line[..];
        if self.number == 1 {
            if line.starts_with(b"\xFF\xFE") || line.starts_with(b"\xFE\xFF") {
                return Err("is UTF-16: save the list as UTF-8");
            }
            line = line.strip_prefix(BYTE_ORDER_MARK).unwrap_or(line);
        }
        let line = line.strip_suffix(b"\n").unwrap_or(line);
        if line.len() > LONGEST {
            return Err("has more than 65,536 bytes: this is no list of pictures");
        }
        std::str::from_utf8(line)
            .map_err(|_| "is not UTF-8: save the list as UTF-8, or use ImageFolder::from_list")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_as_many_bytes_as_it_may() {
        let read = |bytes: usize, before: &[u8], behind: &str| {
            let file = [before, &vec![b'a'; bytes], behind.as_bytes()].concat();
            let mut lines = Lines::new(&file[..]);
            let first = lines.next().unwrap().unwrap().1.map(str::len);
            first.map(|len| (len, lines.next().unwrap().is_some()))
        };
        for before in [&b""[..], BYTE_ORDER_MARK] {
            for behind in ["", "\n", "\nb"] {
                let next = behind.ends_with('b');
                assert_eq!(read(LONGEST, before, behind), Ok((LONGEST, next)));
                assert!(read(LONGEST + 1, before, behind).is_err());
            }
        }
        assert!(read(10 * LONGEST, b"", "\n").is_err());
    }
}
