//! The list of files: all names in one allocation, because ImageNet has 1.28 million of them.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::{Error, Result};

/// Paths below one root, and the label of each.
#[derive(Debug)]
pub(super) struct FileList {
    root: PathBuf,
    names: Arc<Names>,
    labels: Vec<i64>,
    classes: Vec<String>,
}

impl FileList {
    /// Takes the files of class folders, with names relative to `root`. The i-th part has the label i.
    pub(super) fn of_classes(root: &Path, parts: Vec<(String, Names)>) -> FileList {
        let mut names = Names::default();
        let mut labels = Vec::with_capacity(parts.iter().map(|(_, part)| part.len()).sum());
        names.ends.reserve_exact(labels.capacity());
        names
            .bytes
            .reserve_exact(parts.iter().map(|(_, part)| part.bytes.len()).sum());
        let mut classes = Vec::with_capacity(parts.len());
        for (label, (class, part)) in parts.into_iter().enumerate() {
            labels.resize(labels.len() + part.len(), label as i64);
            names.append(&part);
            classes.push(class);
        }
        FileList {
            root: root.to_owned(),
            names: Arc::new(names),
            labels,
            classes,
        }
    }

    /// Puts a list together from its parts. `None` if they do not fit: names without labels, or labels without classes.
    pub(super) fn of_parts(
        root: &Path,
        names: Names,
        labels: Vec<i64>,
        classes: Vec<String>,
    ) -> Option<FileList> {
        let known = 0..classes.len() as i64;
        let of_classes = classes.is_empty() || labels.iter().all(|label| known.contains(label));
        let fits = names.len() == labels.len() && !labels.is_empty() && of_classes;
        fits.then(|| FileList {
            root: root.to_owned(),
            names: Arc::new(names),
            labels,
            classes,
        })
    }

    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    pub(super) fn names(&self) -> &Names {
        &self.names
    }

    pub(super) fn len(&self) -> usize {
        self.labels.len()
    }

    pub(super) fn labels(&self) -> &[i64] {
        &self.labels
    }

    pub(super) fn classes(&self) -> &[String] {
        &self.classes
    }

    pub(super) fn path(&self, index: usize) -> Option<PathBuf> {
        Some(self.root.join(to_os_str(self.names.get(index)?)))
    }

    /// The same files, with labels that index `classes`. The error says what is wrong with `classes`.
    pub(super) fn with_classes(&self, classes: Vec<String>) -> Result<FileList, String> {
        let labels = relabel(&self.labels, |label| self.class_of(label), &classes)?;
        Ok(FileList {
            root: self.root.clone(),
            names: Arc::clone(&self.names),
            labels,
            classes,
        })
    }

    fn class_of(&self, label: i64) -> String {
        let name = usize::try_from(label)
            .ok()
            .and_then(|index| self.classes.get(index));
        name.cloned().unwrap_or_else(|| label.to_string())
    }
}

/// The labels of the same samples, whose classes are these. The error says what is wrong with `classes`.
pub(super) fn relabel(
    old: &[i64],
    class_of: impl Fn(i64) -> String,
    classes: &[String],
) -> Result<Vec<i64>, String> {
    let mut indices = HashMap::with_capacity(classes.len());
    for (index, class) in classes.iter().enumerate() {
        if indices.insert(class.clone(), index as i64).is_some() {
            return Err(format!("the class `{class}` comes twice"));
        }
    }
    let mut translated = HashMap::new();
    let mut labels = Vec::with_capacity(old.len());
    for &old in old {
        let new = match translated.get(&old) {
            Some(&new) => new,
            None => {
                let class = class_of(old);
                let new = indices.get(&class).copied().ok_or_else(|| {
                    format!("there are pictures of the class `{class}`, which is not among the classes given")
                })?;
                translated.insert(old, new);
                new
            }
        };
        labels.push(new);
    }
    Ok(labels)
}

/// Builds a list file by file. Classes may come in any order.
#[derive(Default)]
pub(super) struct FileListBuilder {
    names: Names,
    /// Each file's class, numbered in the order of their first appearance.
    classes: Vec<usize>,
    /// The number of each class, and where it appeared first.
    seen: HashMap<String, (usize, u64)>,
}

impl FileListBuilder {
    /// Adds a file. `at` is its place for errors.
    pub(super) fn push(&mut self, path: &Path, class: &str, at: u64) -> Result<()> {
        self.names.push(path.as_os_str())?;
        let next = self.seen.len();
        let class = match self.seen.get(class) {
            Some(&(class, _)) => class,
            None => self.seen.entry(class.to_owned()).or_insert((next, at)).0,
        };
        self.classes.push(class);
        Ok(())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.classes.is_empty()
    }

    /// Finishes the list. If `numbers` allows it and all classes are integers, these become the labels. Otherwise the labels index
    /// the sorted names. Fails if `numbers` allows it and some are numbers: sorted as names, 10 would come before 2.
    pub(super) fn finish(self, root: &Path, numbers: bool) -> Result<FileList, MixedClasses> {
        let seen = self.seen.into_iter();
        let mut classes: Vec<Class> = seen
            .map(|(name, (number, at))| Class { name, number, at })
            .collect();
        classes.sort_unstable_by(|left, right| left.name.cmp(&right.name));
        let as_numbers = match numbers {
            true => numbers_of(&classes)?,
            false => None,
        };
        let mut labels: Vec<i64> = vec![0; classes.len()];
        for (index, class) in classes.iter().enumerate() {
            labels[class.number] = match &as_numbers {
                Some(numbers) => numbers[index],
                None => index as i64,
            };
        }
        Ok(FileList {
            root: root.to_owned(),
            names: Arc::new(self.names),
            labels: self.classes.iter().map(|&class| labels[class]).collect(),
            classes: match as_numbers {
                Some(_) => Vec::new(),
                None => classes.into_iter().map(|class| class.name).collect(),
            },
        })
    }
}

/// A class of a list that is being built.
struct Class {
    name: String,
    /// That in the order of appearance.
    number: usize,
    /// Where it appeared first.
    at: u64,
}

/// Classes some of which are numbers, and not all are integers.
#[derive(Debug)]
pub(super) struct MixedClasses {
    /// The first that is no integer, and its place.
    other: (String, u64),
    /// The first that is one.
    integer: Option<(String, u64)>,
}

impl MixedClasses {
    /// The message, in which places are lines or something else.
    pub(super) fn say(&self, place: &str) -> String {
        let (other, at) = &self.other;
        let beside = match &self.integer {
            Some((integer, at)) => format!("no integer, and `{integer}` of {place} {at} is one"),
            None => "a number, but no integer as it is usually written".to_owned(),
        };
        format!(
            "{place} {at}: its class `{other}` is {beside}. Write all classes as integers (such as 1, not 1.0, +1 or 01), which are \
             labels then, or none of them; is this {place} a heading, or a missing value?"
        )
    }
}

/// The labels that the classes are; `None` if they are names.
fn numbers_of(classes: &[Class]) -> Result<Option<Vec<i64>>, MixedClasses> {
    let numbers: Vec<Option<i64>> = classes
        .iter()
        .map(|class| whole_number(&class.name))
        .collect();
    if let Some(all) = numbers.iter().copied().collect() {
        return Ok(Some(all));
    }
    // As names, numbers of one length (01 to 12) have their own order.
    let is_padded = |class: &Class| class.name.bytes().all(|byte| byte.is_ascii_digit());
    let length = classes.first().map_or(0, |class| class.name.len());
    let are_padded = |class: &Class| is_padded(class) && class.name.len() == length;
    if !classes.iter().any(|class| is_numeric(&class.name)) || classes.iter().all(are_padded) {
        return Ok(None);
    }
    let first = |wanted: &dyn Fn(usize) -> bool| {
        let found = classes
            .iter()
            .enumerate()
            .filter(|(index, _)| wanted(*index));
        let found = found.map(|(_, class)| class).min_by_key(|class| class.at);
        found.map(|class| (class.name.clone(), class.at))
    };
    let integer = first(&|index| numbers[index].is_some());
    let others = |index: usize| match integer {
        Some(_) => numbers[index].is_none(),
        None => is_numeric(&classes[index].name),
    };
    match first(&others) {
        Some(other) => Err(MixedClasses { other, integer }),
        None => Ok(None),
    }
}

/// The integer that a text is, in its usual spelling: `007` is a name.
fn whole_number(text: &str) -> Option<i64> {
    text.parse()
        .ok()
        .filter(|number: &i64| number.to_string() == text)
}

/// Whether a text is a number, in any spelling. `nan` and `inf` are names.
fn is_numeric(text: &str) -> bool {
    text.bytes().any(|byte| byte.is_ascii_digit()) && text.parse::<f64>().is_ok()
}

/// File names, back to back.
#[derive(Debug, Default)]
pub(super) struct Names {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Names {
    /// Takes names that lie back to back. `None` if the lengths do not match, or, on systems other than Unix, a name is not Unicode.
    pub(super) fn of_lens(
        bytes: Vec<u8>,
        lens: impl ExactSizeIterator<Item = usize>,
    ) -> Option<Names> {
        let mut ends = Vec::with_capacity(lens.len());
        let mut end = 0_usize;
        for len in lens {
            let start = end;
            end = start.checked_add(len)?;
            if !is_name(bytes.get(start..end)?) {
                return None;
            }
            ends.push(end);
        }
        (end == bytes.len()).then_some(Names { bytes, ends })
    }

    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(super) fn lens(&self) -> impl Iterator<Item = usize> {
        let mut start = 0;
        self.ends
            .iter()
            .map(move |&end| end - std::mem::replace(&mut start, end))
    }

    pub(super) fn push(&mut self, name: &OsStr) -> Result<()> {
        self.push_joined(&[name])
    }

    /// Adds one name, whose parts are joined with slashes.
    pub(super) fn push_joined(&mut self, parts: &[&OsStr]) -> Result<()> {
        let start = self.bytes.len();
        for (index, part) in parts.iter().enumerate() {
            if index > 0 {
                self.bytes.push(b'/');
            }
            let Some(part) = to_bytes(part) else {
                self.bytes.truncate(start);
                return Err(Error::DataSet {
                    path: part.into(),
                    reason: "the name is not Unicode".to_owned(),
                });
            };
            self.bytes.extend_from_slice(part);
        }
        self.ends.push(self.bytes.len());
        Ok(())
    }

    fn append(&mut self, other: &Names) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(&other.bytes);
        self.ends.extend(other.ends.iter().map(|end| start + end));
    }

    pub(super) fn get(&self, index: usize) -> Option<&[u8]> {
        let end = *self.ends.get(index)?;
        let start = index.checked_sub(1).map_or(0, |before| self.ends[before]);
        self.bytes.get(start..end)
    }
}

/// A name's bytes: any bytes on Unix, UTF-8 elsewhere.
#[cfg(unix)]
fn to_bytes(name: &OsStr) -> Option<&[u8]> {
    Some(std::os::unix::ffi::OsStrExt::as_bytes(name))
}

#[cfg(unix)]
fn to_os_str(bytes: &[u8]) -> &OsStr {
    std::os::unix::ffi::OsStrExt::from_bytes(bytes)
}

/// Whether [`to_bytes`] could have returned these bytes.
fn is_name(bytes: &[u8]) -> bool {
    cfg!(unix) || std::str::from_utf8(bytes).is_ok()
}

#[cfg(not(unix))]
fn to_bytes(name: &OsStr) -> Option<&[u8]> {
    name.to_str().map(str::as_bytes)
}

#[cfg(not(unix))]
fn to_os_str(bytes: &[u8]) -> &OsStr {
    // `to_bytes` and `is_name` admit nothing else.
    OsStr::new(std::str::from_utf8(bytes).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn built(items: &[(&str, &str)], numbers: bool) -> Result<FileList, MixedClasses> {
        let mut builder = FileListBuilder::default();
        for (at, (path, class)) in items.iter().enumerate() {
            builder.push(Path::new(path), class, at as u64).unwrap();
        }
        builder.finish(Path::new("root"), numbers)
    }

    fn list(items: &[(&str, &str)], numbers: bool) -> FileList {
        built(items, numbers).unwrap()
    }

    #[test]
    fn names_are_found_again() {
        let mut names = Names::default();
        names.push_joined(&["a".as_ref(), "b".as_ref()]).unwrap();
        names.push("".as_ref()).unwrap();
        let mut all = Names::default();
        all.push("x".as_ref()).unwrap();
        all.append(&names);
        let found: Vec<_> = (0..4).map(|index| all.get(index)).collect();
        assert_eq!(found, [Some(&b"x"[..]), Some(b"a/b"), Some(b""), None]);
    }

    #[test]
    fn numbers_are_labels_only_where_all_are_numbers_and_may_be() {
        let digits = [("a", "10"), ("b", "9"), ("c", "-1")];
        let taken = list(&digits, true);
        assert_eq!(
            (taken.labels(), taken.classes().len()),
            (&[10, 9, -1][..], 0)
        );
        let named = list(&digits, false);
        assert_eq!(named.classes(), ["-1", "10", "9"]);
        assert_eq!(named.labels(), [1, 2, 0]);
        let padded = list(&[("a", "10"), ("b", "09")], true);
        assert_eq!(
            (padded.labels(), padded.classes()),
            (&[1, 0][..], &["09".into(), "10".into()][..])
        );
    }

    /// Sorted as names, 10 would come before 2, and all labels would be wrong.
    #[test]
    fn numbers_beside_anything_else_are_refused() {
        for other in ["nan", "", "label", "1.0", "+1", "01", "1e3", "-0", " 3"] {
            for at in 0..3 {
                let mut classes = ["10", "2", "3"];
                classes[at] = other;
                let items = classes.map(|class| ("a", class));
                let said = built(&items, true).unwrap_err().say("line");
                let expected = format!("line {at}: its class `{other}` is no integer, and `");
                assert!(said.starts_with(&expected), "{said}");
                // The names of folders are names, whatever they are.
                assert_eq!(list(&items, false).classes().len(), 3);
            }
        }
        for (classes, other) in [
            (["2.0", "10.0"], 0),
            (["cat", "+1"], 1),
            (["1.5", "cat"], 0),
        ] {
            let items = classes.map(|class| ("a", class));
            let said = built(&items, true).unwrap_err().say("sample");
            let expected = format!("sample {other}: its class `{}` is a number", classes[other]);
            assert!(said.starts_with(&expected), "{said}");
        }
        for names in [
            ["nan", "cat"],
            ["7up", "inf"],
            ["n02", "n10"],
            ["001", "002"],
        ] {
            assert_eq!(
                list(&names.map(|class| ("a", class)), true).classes().len(),
                2
            );
        }
    }

    #[test]
    fn other_classes_translate_labels() {
        let animals = list(&[("a", "dog"), ("b", "cat"), ("c", "dog")], true);
        let classes = ["dog", "bird", "cat"].map(String::from).to_vec();
        assert_eq!(animals.with_classes(classes).unwrap().labels(), [0, 2, 0]);
        let error = animals.with_classes(vec!["dog".into()]).unwrap_err();
        assert!(error.contains("`cat`"), "{error}");
        let error = animals.with_classes(vec!["dog".into(); 2]).unwrap_err();
        assert!(error.contains("twice"), "{error}");
        let numbers = list(&[("a", "1999"), ("b", "2004")], true);
        let years = ["1999", "2004"].map(String::from).to_vec();
        assert_eq!(numbers.with_classes(years).unwrap().labels(), [0, 1]);
    }
}
