//! Errors of documents that were to be packed.

use std::error::Error as StdError;
use std::fmt;

use super::BoxError;
use super::display::begins_with;

/// A document could not be had, for a row of [`PackedDataset`](crate::dataset::PackedDataset) or of [`Packed`](crate::iterable::Packed), or
/// to count its tokens.
///
/// It prints as the document's name and the cause, and its [`source`](StdError::source) begins behind the cause.
#[derive(Debug)]
#[non_exhaustive]
pub struct DocumentError {
    /// The document's index; in an iterable, how many this rank had before it, in the same epoch.
    pub document: u64,
    /// The data set's description of the document, such as its path.
    pub description: Option<String>,
    /// Why not: what the data set, or the iterable, returned.
    pub cause: BoxError,
}

impl DocumentError {
    pub(crate) fn new(
        document: u64,
        description: Option<String>,
        cause: BoxError,
    ) -> DocumentError {
        DocumentError {
            document,
            description,
            cause,
        }
    }
}

impl fmt::Display for DocumentError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cause = self.cause.to_string();
        write!(f, "document {}", self.document)?;
        // A file's error begins with its path.
        if let Some(description) = &self.description
            && !begins_with(&cause, description)
        {
            write!(f, " ({description})")?;
        }
        write!(f, ": {cause}")
    }
}

impl StdError for DocumentError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.cause.source()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_not_said_twice() {
        let said = |cause: &str| {
            let description = Some("texts/7.txt".to_owned());
            DocumentError::new(7, description, cause.into()).to_string()
        };
        assert_eq!(said("no tokens"), "document 7 (texts/7.txt): no tokens");
        assert_eq!(
            said("texts/7.txt cannot be read"),
            "document 7: texts/7.txt cannot be read"
        );
        // But a number that another begins with is not.
        let said = |description: &str, cause: &str| {
            DocumentError::new(7, Some(description.to_owned()), cause.into()).to_string()
        };
        let longer = said("3", "32 bytes expected");
        assert_eq!(longer, "document 7 (3): 32 bytes expected");
        assert_eq!(said("3", "3: no tokens"), "document 7: 3: no tokens");
        assert_eq!(said("", "no tokens"), "document 7: no tokens");
    }
}
