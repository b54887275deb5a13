//! What is wrong with an object, or with its store.

use std::error::Error as StdError;
use std::fmt;
use std::io;
use std::path::Path;

use crate::error::{BoxError, Temporary};

/// What is wrong with an object of a [`Store`](super::Store): where it is, what happened, and what to check.
///
/// It has no credentials: neither from the environment nor from a server's answer. What may go away by itself comes as
/// [`Temporary`], with this inside.
///
/// # Examples
///
/// ```
/// use pinfeed::store::{LocalFiles, Store, StoreError, StoreErrorKind};
///
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("a.bin");
/// # std::fs::write(&path, [1, 2, 3])?;
/// let files = LocalFiles::open(folder.path())?;
/// let object = files.object("a.bin")?;
/// std::fs::write(&path, [1])?;
/// let error = files.read(&object, 0..1).unwrap_err();
/// let error = error.downcast_ref::<StoreError>().unwrap();
/// assert_eq!(error.kind(), StoreErrorKind::Changed);
/// # Ok::<(), pinfeed::BoxError>(())
/// ```
#[derive(Debug)]
pub struct StoreError {
    place: String,
    kind: StoreErrorKind,
    what: String,
}

/// The kinds of [`StoreError`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StoreErrorKind {
    /// There is no such object, folder or bucket.
    NotFound,
    /// The credentials are missing or wrong, or may not do that.
    Denied,
    /// The object is not the one that was listed: it was written again, or is shorter.
    Changed,
    /// The store did not answer in time, or said that it could not now.
    Unavailable,
    /// The call, the URL or the server's answer is at fault.
    Other,
}

impl StoreError {
    pub(super) fn new(
        place: impl Into<String>,
        kind: StoreErrorKind,
        what: impl Into<String>,
    ) -> StoreError {
        StoreError {
            place: place.into(),
            kind,
            what: what.into(),
        }
    }

    /// Returns what kind of error it is.
    pub fn kind(&self) -> StoreErrorKind {
        self.kind
    }

    /// Returns where the object is, or its store: `s3://bucket/train/a.tar`.
    pub fn place(&self) -> &str {
        &self.place
    }

    /// What the system says of a file or a folder.
    pub(super) fn of_file(path: &Path, error: &io::Error) -> StoreError {
        let kind = match error.kind() {
            io::ErrorKind::NotFound => StoreErrorKind::NotFound,
            io::ErrorKind::PermissionDenied => StoreErrorKind::Denied,
            _ => StoreErrorKind::Other,
        };
        StoreError::new(path.display().to_string(), kind, error.to_string())
    }

    /// The same, marked as one that may go away.
    #[cfg_attr(not(feature = "object-store"), allow(dead_code))]
    pub(super) fn temporary(self) -> BoxError {
        Temporary::new(self).into()
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.what)
    }
}

impl StdError for StoreError {}
