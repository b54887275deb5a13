//! Which files a data set has: by a path, a folder or a pattern; and what the names of their folders say.

use std::path::Path;
use std::sync::Arc;

use arrow_schema::DataType;
use pinfeed::BoxError;
use pinfeed::store::{self, Object, Store};

use crate::filter::Scalar;
use crate::kind::{Kind, Leaf};

/// How a file may end that is taken from a folder.
const ENDINGS: [&str; 3] = [".parquet", ".parq", ".pq"];

/// What stands for no value in a folder's name.
const NO_VALUE: &str = "__HIVE_DEFAULT_PARTITION__";

/// Which files of a store.
#[derive(Debug, Clone)]
pub(crate) enum Named {
    /// By a pattern: a folder (empty, or with a slash at its end), a file, or one with `*`, `?` or `**`.
    Pattern(String),
    Keys(Vec<String>),
}

/// Opens what a path or URL names, and the pattern in there.
pub(crate) fn open(url: &str) -> Result<(Arc<dyn Store>, Named), BoxError> {
    let (folder, pattern) = part(url)?;
    Ok((store::open(folder)?, Named::Pattern(pattern.to_owned())))
}

/// Parts a path or URL into what is opened and a pattern in there.
fn part(url: &str) -> Result<(&str, &str), BoxError> {
    // (Behind `s3://`, there is the bucket.)
    let root = url.find("://").map_or(0, |scheme| scheme + 3);
    let wild = url[root..].find(['*', '?']);
    let wild = wild.map_or(url.len(), |at| root + at);
    // (A folder may be called `table.parquet`, as Spark's are, and a file anything.)
    let is_file = match Path::new(url) {
        path if root == 0 && path.is_dir() => false,
        path => is_parquet(url) || (root == 0 && path.is_file()),
    };
    if wild == url.len() && !is_file {
        return Ok((url, ""));
    }
    let is_slash = |of: char| of == '/' || (cfg!(windows) && root == 0 && of == '\\');
    let (folder, pattern) = match url[root..wild].rfind(is_slash) {
        Some(slash) => url.split_at(root + slash + 1),
        None if root > 0 => return Err(format!("{url} names no folder or bucket").into()),
        None => (".", url),
    };
    let shorter = folder.strip_suffix(is_slash);
    let shorter = shorter.filter(|shorter| shorter.len() > root);
    Ok((shorter.unwrap_or(folder), pattern))
}

fn is_parquet(name: &str) -> bool {
    ENDINGS.iter().any(|ending| name.ends_with(ending))
}

/// Lists the files, in the order of their keys.
pub(crate) fn find(store: &dyn Store, named: &Named) -> Result<Vec<Object>, BoxError> {
    let pattern = match named {
        Named::Pattern(pattern) => pattern,
        Named::Keys(keys) => return keys.iter().map(|key| store.object(key)).collect(),
    };
    let is_folder = pattern.is_empty() || pattern.ends_with('/');
    if !is_folder && !pattern.contains(['*', '?']) {
        return Ok(vec![store.object(pattern)?]);
    }
    let plain = pattern.split(['*', '?']).next().unwrap_or_default();
    let folder = plain.rfind('/').map_or("", |slash| &plain[..slash]);
    let objects = store.list(folder)?;
    let listed = objects.len();
    let is_taken = |object: &Object| {
        let key = object.key.as_str();
        match is_folder {
            true => is_parquet(key) && !is_hidden(&key[folder.len()..]),
            false => matches(pattern, key),
        }
    };
    let taken: Vec<Object> = objects.into_iter().filter(is_taken).collect();
    if taken.is_empty() {
        let place = store.locate(folder);
        return Err(match is_folder {
            true => format!(
                "there is no Parquet file in {place}: of its {listed} files, none ends with {}; for another ending, name it (\"{}*.data\")",
                ENDINGS.join(", "),
                if pattern.is_empty() { "folder/" } else { pattern }
            ),
            false => format!(
                "no file matches {pattern:?} in {place}, which has {listed}: `*` and `?` stand for parts of one name, `**` for any folders"
            ),
        }
        .into());
    }
    Ok(taken)
}

/// Names that begin with `_` or `.` are other programs' notes (`_SUCCESS`, `_temporary/`), as for Spark and pyarrow. Those of columns are not
/// (`_year=2024/`).
fn is_hidden(key: &str) -> bool {
    let mut names = key.split('/');
    names.any(|name| (name.starts_with('_') && !name.contains('=')) || name.starts_with('.'))
}

/// Whether a key matches a pattern: `*` and `?` stand for parts of a name, `**` for any names.
pub(crate) fn matches(pattern: &str, key: &str) -> bool {
    let (pattern, key): (Vec<&str>, Vec<&str>) =
        (pattern.split('/').collect(), key.split('/').collect());
    names_match(&pattern, &key)
}

/// (Of several `**`, only the last can need another try, as with `*` in a name.)
fn names_match(pattern: &[&str], key: &[&str]) -> bool {
    wild(
        pattern,
        key,
        |name| *name == "**",
        |pattern, name| name_matches(pattern, name),
    )
}

fn name_matches(pattern: &str, name: &str) -> bool {
    let (pattern, name): (Vec<char>, Vec<char>) =
        (pattern.chars().collect(), name.chars().collect());
    wild(
        &pattern,
        &name,
        |of| *of == '*',
        |of, character| *of == '?' || of == character,
    )
}

/// Matches a sequence, where one kind of item stands for any number of others. Linear but for the last such item, which is tried at each place.
fn wild<P, K>(
    pattern: &[P],
    items: &[K],
    is_any: impl Fn(&P) -> bool,
    fits: impl Fn(&P, &K) -> bool,
) -> bool {
    let (mut p, mut k) = (0, 0);
    let mut again = None;
    while k < items.len() {
        match pattern.get(p) {
            Some(of) if is_any(of) => {
                again = Some((p, k));
                p += 1;
            }
            Some(of) if fits(of, &items[k]) => (p, k) = (p + 1, k + 1),
            _ => match again {
                Some((at, from)) => {
                    again = Some((at, from + 1));
                    (p, k) = (at + 1, from + 1);
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(is_any)
}

/// The columns that the names of a file's folders make: `year=2024/lang=de/` has two.
pub(crate) fn partitions(key: &str) -> Vec<(String, Option<String>)> {
    let mut names: Vec<&str> = key.split('/').collect();
    names.pop();
    let parts = names.into_iter().filter_map(|name| name.split_once('='));
    let parts = parts.filter(|(column, _)| !column.is_empty());
    parts
        .map(|(column, value)| {
            let value = (value != NO_VALUE).then(|| decoded(value));
            (decoded(column), value)
        })
        .collect()
}

/// What `%20` stands for.
fn decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, behind)) = rest.split_first() {
        let code = behind.get(..2).filter(|_| *first == b'%');
        let code = code.and_then(|digits| std::str::from_utf8(digits).ok());
        match code.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &behind[2..];
            }
            None => {
                bytes.push(*first);
                rest = behind;
            }
        }
    }
    String::from_utf8(bytes).unwrap_or_else(|_| text.to_owned())
}

/// The values of one such column, of all files: whole numbers if all are, or else texts.
pub(crate) fn typed(values: &[Option<String>]) -> Vec<Scalar> {
    let number = |value: &String| {
        let digits = value.strip_prefix('-').unwrap_or(value);
        let is_plain = !digits.starts_with('0') || digits == "0"; // (`007` is a name)
        value.parse::<i64>().ok().filter(|_| is_plain)
    };
    let are_numbers = values.iter().flatten().all(|value| number(value).is_some());
    let typed = values.iter().map(|value| match value {
        None => Scalar::Null,
        Some(value) => match number(value).filter(|_| are_numbers) {
            Some(number) => number.into(),
            None => value.as_str().into(),
        },
    });
    typed.collect()
}

/// Such a column, as filters see it.
pub(crate) fn leaf<'a>(name: &str, mut values: impl Iterator<Item = &'a Scalar>) -> Leaf {
    let kind = match values.find(|value| **value != Scalar::Null) {
        None => Kind::Null,
        Some(Scalar::Text(_)) => Kind::Taken(DataType::Utf8View),
        Some(_) => Kind::Taken(DataType::Int64),
    };
    Leaf {
        path: name.to_owned(),
        kind,
        lists: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_are_those_of_a_shell() {
        for (pattern, key) in [
            ("train-*.parquet", "train-00000-of-00012.parquet"),
            ("data/*/0000.parquet", "data/train/0000.parquet"),
            ("**/*.parquet", "a.parquet"),
            ("**/*.parquet", "a/b/c.parquet"),
            ("a/**/b/**/c", "a/x/b/b/y/c"),
            ("part-?", "part-1"),
            ("*a*b", "xaxabab"),
        ] {
            assert!(matches(pattern, key), "{pattern} {key}");
        }
        for (pattern, key) in [
            ("train-*.parquet", "data/train-0.parquet"),
            ("*", "a/b"),
            ("a/**/c", "b/c"),
            ("part-?", "part-"),
            ("part-?", "part-12"),
        ] {
            assert!(!matches(pattern, key), "{pattern} {key}");
        }
    }

    #[test]
    fn what_is_opened_is_a_folder_or_a_bucket() {
        for (url, folder, pattern) in [
            (
                "s3://bucket/train/*.parquet",
                "s3://bucket/train",
                "*.parquet",
            ),
            (
                "s3://bucket/a/**/part-*.parquet",
                "s3://bucket/a",
                "**/part-*.parquet",
            ),
            ("s3://bucket/*.parquet", "s3://bucket", "*.parquet"),
            ("gs://bucket/a.parquet", "gs://bucket", "a.parquet"),
            ("s3://bucket/train", "s3://bucket/train", ""),
            (
                "https://host/data/0.parquet",
                "https://host/data",
                "0.parquet",
            ),
            ("file:///data/0.parquet", "file:///data", "0.parquet"),
            ("/0.parquet", "/", "0.parquet"),
            ("nowhere/train-?.pq", "nowhere", "train-?.pq"),
            ("0.parquet", ".", "0.parquet"),
            ("nowhere/", "nowhere/", ""),
        ] {
            assert_eq!(part(url).ok(), Some((folder, pattern)), "{url}");
        }
        assert!(part("s3://*").is_err());
    }

    #[test]
    fn folders_name_columns() {
        let found = partitions(
            "year=2024/city=S%C3%A3o%20Paulo/lang=__HIVE_DEFAULT_PARTITION__/x=1.parquet",
        );
        let expected = [
            ("year", Some("2024")),
            ("city", Some("São Paulo")),
            ("lang", None),
        ];
        let expected =
            expected.map(|(column, value)| (column.to_owned(), value.map(str::to_owned)));
        assert_eq!(found, expected);
        assert_eq!(decoded("100%"), "100%");
        let of = |values: &[&str]| {
            typed(
                &values
                    .iter()
                    .map(|value| Some((*value).to_owned()))
                    .collect::<Vec<_>>(),
            )
        };
        assert_eq!(of(&["2024", "-3"]), [2024i64.into(), (-3i64).into()]);
        assert_eq!(of(&["2024", "007"]), ["2024".into(), "007".into()]);
    }
}
