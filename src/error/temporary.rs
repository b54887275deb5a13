//! Errors that may go away by themselves.

use std::error::Error as StdError;
use std::fmt;
use std::io;

use super::BoxError;
use super::causes::causes;

/// Marks an error as temporary: a data set returns it where trying again may help
/// ([`Builder::retry`](crate::loader::Builder::retry)).
///
/// It prints as the error inside, and has its [`source`](StdError::source).
///
/// # Examples
///
/// ```
/// use pinfeed::error::Temporary;
/// use pinfeed::{BoxError, from_fn};
///
/// fn download(index: u64) -> Result<Vec<u8>, BoxError> {
///     match index % 10 {
///         0 => Err(Temporary::new("503 Service Unavailable").into()),
///         _ => Ok(vec![7; 16]),
///     }
/// }
///
/// let samples = from_fn(100, |index, _| download(index));
/// ```
pub struct Temporary(pub(super) BoxError);

impl Temporary {
    /// Marks this error.
    pub fn new(error: impl Into<BoxError>) -> Temporary {
        Temporary(error.into())
    }

    /// Returns the error inside.
    pub fn into_inner(self) -> BoxError {
        self.0
    }
}

impl fmt::Display for Temporary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl fmt::Debug for Temporary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl StdError for Temporary {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.source()
    }
}

/// Whether an error says that trying again may help: it, or one that it is caused by, is [`Temporary`], or one of the system's that come
/// and go (of the network, of a file system on it, or an interruption).
pub(crate) fn is_temporary(error: &BoxError) -> bool {
    causes(&**error).any(|error| {
        let io = error.downcast_ref::<io::Error>();
        error.is::<Temporary>() || io.is_some_and(comes_and_goes)
    })
}

fn comes_and_goes(error: &io::Error) -> bool {
    use io::ErrorKind::*;
    let is_marked = error.get_ref().is_some_and(|inner| inner.is::<Temporary>());
    is_marked
        || matches!(
            error.kind(),
            Interrupted
                | TimedOut
                | WouldBlock
                | ConnectionRefused
                | ConnectionReset
                | ConnectionAborted
                | NotConnected
                | BrokenPipe
                | HostUnreachable
                | NetworkUnreachable
                | NetworkDown
                | StaleNetworkFileHandle
                | ResourceBusy
        )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::{DocumentError, Error, ItemError};

    #[test]
    fn what_may_go_away_is_told_from_what_stays() {
        let io = |kind: io::ErrorKind| io::Error::new(kind, "so it is");
        let in_file = |kind| Error::Io {
            path: "a.jpg".into(),
            source: io(kind),
        };
        let document = |cause: BoxError| DocumentError::new(7, None, cause);
        let item = |cause: BoxError| ItemError::of(7, None, cause);
        let temporary: [BoxError; 7] = [
            item(Temporary::new("503").into()),
            Temporary::new("503").into(),
            io(io::ErrorKind::TimedOut).into(),
            document(Temporary::new("503").into()).into(),
            in_file(io::ErrorKind::ConnectionReset).into(),
            io::Error::other(Temporary::new("busy")).into(),
            Temporary::new(io(io::ErrorKind::NotFound)).into(),
        ];
        for error in &temporary {
            assert!(is_temporary(error), "{error:?}");
        }
        let lasting: [BoxError; 5] = [
            "404".into(),
            document("404".into()).into(),
            io(io::ErrorKind::NotFound).into(),
            io(io::ErrorKind::UnexpectedEof).into(),
            in_file(io::ErrorKind::PermissionDenied).into(),
        ];
        for error in &lasting {
            assert!(!is_temporary(error), "{error:?}");
        }
    }
}
