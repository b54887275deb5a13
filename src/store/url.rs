//! What a URL or a path names.

use std::path::PathBuf;

use super::error::{StoreError, StoreErrorKind};

/// What a URL names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Place {
    /// A folder of this machine.
    Folder(PathBuf),
    /// An object store, or a web server.
    Remote {
        /// In lower case.
        scheme: &'static str,
        /// All that is behind `://`.
        rest: String,
    },
}

/// The schemes of stores, with their aliases.
const REMOTE: &[(&str, &str)] = &[
    ("s3", "s3"),
    ("s3a", "s3"),
    ("gs", "gs"),
    ("az", "az"),
    ("https", "https"),
    ("http", "http"),
];

impl Place {
    /// # Errors
    ///
    /// If the URL is of no known kind, or names no place.
    pub(super) fn of(url: &str) -> Result<Place, StoreError> {
        if url.is_empty() {
            return Err(refused(
                "an empty URL",
                "it names no store: \".\" is this folder",
            ));
        }
        let Some((scheme, rest)) = split(url) else {
            return Ok(Place::Folder(PathBuf::from(url)));
        };
        let scheme = scheme.to_ascii_lowercase();
        if scheme == "file" {
            return Ok(Place::Folder(folder_of(rest)?));
        }
        let known = REMOTE.iter().find(|(name, _)| *name == scheme);
        let Some((_, scheme)) = known else {
            let there_are = "it is of no kind that is known: there are s3://, gs://, az://, https://, http://, file://, and paths";
            return Err(refused(&format!("{scheme}://"), there_are));
        };
        if rest.split('/').next().is_none_or(str::is_empty) {
            return Err(refused(
                &format!("{scheme}://"),
                "no name of a bucket or a host follows",
            ));
        }
        Ok(Place::Remote {
            scheme,
            rest: rest.to_owned(),
        })
    }
}

/// The scheme of a URL, and what is behind its `://`. (`C:\data` is a path.)
fn split(url: &str) -> Option<(&str, &str)> {
    let (scheme, rest) = url.split_once("://")?;
    let mut letters = scheme.bytes();
    let is_scheme = letters
        .next()
        .is_some_and(|first| first.is_ascii_alphabetic())
        && letters.all(|letter| letter.is_ascii_alphanumeric() || b"+-.".contains(&letter));
    is_scheme.then_some((scheme, rest))
}

/// (Of the URL only what is shown: the rest may have a password.)
fn refused(shown: &str, what: &str) -> StoreError {
    StoreError::new(shown, StoreErrorKind::Other, what)
}

/// The path of a URL `file://`.
fn folder_of(rest: &str) -> Result<PathBuf, StoreError> {
    let url = format!("file://{rest}");
    let path = rest.strip_prefix("localhost").unwrap_or(rest);
    if !path.starts_with('/') {
        let host = path.split('/').next().unwrap_or_default();
        let what = format!(
            "it names the host {host:?}: a path of this machine has three slashes, file:///{path}"
        );
        return Err(refused(&url, &what));
    }
    let what = "a % is followed by no two digits, or what they say is no UTF-8";
    let path = decoded(path).ok_or_else(|| refused(&url, what))?;
    // file:///C:/data
    let of_drive = path.as_bytes().get(2) == Some(&b':') && cfg!(windows);
    Ok(PathBuf::from(if of_drive { &path[1..] } else { &path }))
}

/// A text without its percent signs (RFC 3986, 2.1).
fn decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut left = text.bytes();
    while let Some(byte) = left.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let mut digit = || char::from(left.next()?).to_digit(16);
        bytes.push((digit()? << 4 | digit()?) as u8);
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_names_a_folder_or_a_store() {
        let folder = |path: &str| Place::Folder(path.into());
        let remote = |scheme: &'static str, rest: &str| Place::Remote {
            scheme,
            rest: rest.to_owned(),
        };
        for (url, place) in [
            ("data/train", folder("data/train")),
            ("/data/a b%20", folder("/data/a b%20")),
            (r"C:\data", folder(r"C:\data")),
            ("file:///data/a%20b%C3%A9", folder("/data/a bé")),
            ("FILE://localhost/data", folder("/data")),
            ("s3://bucket", remote("s3", "bucket")),
            ("S3A://bucket/a/b", remote("s3", "bucket/a/b")),
            ("https://h:8080/a", remote("https", "h:8080/a")),
        ] {
            assert_eq!(Place::of(url).unwrap(), place, "{url}");
        }
    }

    #[test]
    fn what_names_nothing_is_refused_with_what_would() {
        for (url, says) in [
            ("", "this folder"),
            ("ftp://a/b", "s3://"),
            ("hdfs://a/b", "hdfs://"),
            ("s3://", "bucket"),
            ("s3:///a", "bucket"),
            ("file://data/a", "file:///data/a"),
            ("file:///a%2", "%"),
            ("file:///a%ff", "UTF-8"),
        ] {
            let error = Place::of(url).unwrap_err().to_string();
            assert!(error.contains(says), "{url}: {error}");
        }
    }
}
