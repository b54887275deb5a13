//! What is wrong with a Parquet file, or with a value of one.

use std::error::Error as StdError;
use std::fmt;

use pinfeed::store::Object;
use pinfeed::{BoxError, Error};

/// Why a Parquet file cannot be read, or a value of it is not what the program takes it for. It names the file, and the column and the row
/// if there are some. [`ParquetError::of`] finds it in an error of a loader.
pub struct ParquetError(Box<Inner>);

struct Inner {
    file: String,
    row: Option<u64>,
    column: Option<String>,
    cause: Cause,
}

impl ParquetError {
    pub(crate) fn new(file: &str, cause: Cause) -> ParquetError {
        ParquetError(Box::new(Inner {
            file: file.to_owned(),
            row: None,
            column: None,
            cause,
        }))
    }

    /// Finds it among the causes of an error: of a loader's [`Error`], or of what [`Dataset::get`](pinfeed::Dataset::get) returns. The
    /// samples of a row group that cannot be read share one error, which has this one as its [`source`](StdError::source).
    ///
    /// # Examples
    ///
    /// ```
    /// use pinfeed::Error;
    /// use pinfeed_parquet::ParquetError;
    ///
    /// /// Which file to copy again.
    /// fn file(error: &Error) -> Option<&str> {
    ///     Some(ParquetError::of(error)?.file())
    /// }
    /// # let _ = file;
    /// ```
    pub fn of<'a>(error: &'a (dyn StdError + 'static)) -> Option<&'a ParquetError> {
        let mut link = Some(error);
        while let Some(error) = link {
            if let Some(found) = error.downcast_ref::<ParquetError>() {
                return Some(found);
            }
            link = match error.downcast_ref::<Error>() {
                // (It prints its cause itself, so the cause is not its source.)
                Some(
                    Error::Source(cause)
                    | Error::Sample(_, cause)
                    | Error::CollateFn { source: cause, .. }
                    | Error::Iterable { source: cause, .. },
                ) => Some(&**cause),
                _ => error.source(),
            };
        }
        None
    }

    pub(crate) fn at(mut self, column: &str) -> ParquetError {
        self.0.column = Some(column.to_owned());
        self
    }

    pub(crate) fn in_row(mut self, row: u64) -> ParquetError {
        self.0.row = Some(row);
        self
    }

    /// A store's error. The store may name the file itself, which is not said twice then.
    pub(crate) fn of_store(file: &str, object: &Object, error: BoxError) -> BoxError {
        let says_where = error.to_string().contains(&object.key);
        ParquetError::new(file, Cause::Store { error, says_where }).into()
    }

    /// Where the file is: what its store's [`locate`](pinfeed::store::Store::locate) says.
    pub fn file(&self) -> &str {
        &self.0.file
    }

    /// The column, if the error is about one.
    pub fn column(&self) -> Option<&str> {
        self.0.column.as_deref()
    }

    /// The row of the file, counted from 0, if the error is about one.
    pub fn row(&self) -> Option<u64> {
        self.0.row
    }
}

impl fmt::Display for ParquetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner {
            file,
            row,
            column,
            cause,
        } = &*self.0;
        if let Cause::Store {
            error,
            says_where: true,
        } = cause
        {
            return write!(f, "{error}");
        }
        write!(f, "{file}")?;
        if let Some(row) = row {
            write!(f, ", row {row}")?;
        }
        if let Some(column) = column {
            write!(f, ", column {column:?}")?;
        }
        write!(f, ": {cause}")
    }
}

/// The same as `{}`: `main` and `unwrap` print errors this way.
impl fmt::Debug for ParquetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl StdError for ParquetError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match &self.0.cause {
            // (The error itself, and not its source, because it may be what says that trying again may help.)
            Cause::Store { error, .. } => Some(&**error),
            _ => None,
        }
    }
}

/// What is wrong.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Cause {
    #[error("{error}")]
    Store { error: BoxError, says_where: bool },
    #[error("it has no bytes: it was not written, or not copied; write it again")]
    Empty,
    #[error("it is no Parquet file: {0}")]
    NotParquet(&'static str),
    #[error(
        "it is cut off: it begins as a Parquet file, and has no footer at its end, so it was not written or copied to its end; copy it again, or write it again if its writer was not closed"
    )]
    CutOff,
    #[error("it is encrypted, which is not read: write it without encryption")]
    Encrypted,
    #[error("its footer is damaged: {0}; copy or write it again")]
    Footer(String),
    #[error("row group {row_group} cannot be decoded: {what}")]
    Damaged { row_group: usize, what: String },
    #[error("there is no such column, but {}", Names(has))]
    NoColumn { has: Vec<String> },
    #[error(
        "two of its columns have this name: a dot separates a structure's name from its field's; rename one"
    )]
    TwoColumns,
    #[error(
        "it has the type {found} here, and {expected} in {first}: {}",
        different_types()
    )]
    OtherType {
        found: String,
        expected: String,
        first: String,
    },
    #[error("its type {kind} is not taken: {instead}")]
    Unsupported { kind: String, instead: &'static str },
    #[error("{0}")]
    Misfit(String),
}

fn different_types() -> &'static str {
    "one data set has one type for each column, so write the files again with one schema, or open those apart that differ"
}

/// Names for a message: all of a few, the first of many.
struct Names<'a>(&'a [String]);

impl fmt::Display for Names<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 20;
        for (at, name) in self.0.iter().take(SHOWN).enumerate() {
            let comma = if at == 0 { "" } else { ", " };
            write!(f, "{comma}{name:?}")?;
        }
        match self.0.len().checked_sub(SHOWN) {
            None | Some(0) => Ok(()),
            Some(more) => write!(f, " and {more} more"),
        }
    }
}
