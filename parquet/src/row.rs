//! Rows, and how values are got out of them: [`Row`].

use std::cell::Cell as Place;

use pinfeed::BoxError;

use crate::column::{Cell, Column};
use crate::dataset::Inner;
use crate::error::{Cause, ParquetError};
use crate::plan::Group;
use crate::value::{self, Misfit, Value};

/// A row, whose values are got by the names of columns.
///
/// A field in a structure is named `structure.field`. Columns that are got in the order in which [`columns`](crate::ParquetBuilder::columns)
/// names them are found at once.
///
/// # Examples
///
/// A struct of a program's own:
///
/// ```
/// use pinfeed::{DataLoader, Ragged};
/// use pinfeed_parquet::Parquet;
///
/// #[derive(pinfeed::Sample)]
/// struct Sentence {
///     id: i64,
///     tokens: Ragged<i32>,
///     score: Option<f32>,
/// }
///
/// # let file = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/types.parquet");
/// let data = Parquet::open(file)?.columns(["id", "tokens", "score"]).build(|row, _rng| {
///     Ok(Sentence { id: row.get("id")?, tokens: row.get("tokens")?, score: row.get("score")? })
/// })?;
/// let loader = DataLoader::builder(data).batch_size(8).build()?;
/// for batch in loader.epoch(0) {
///     let batch = batch?;
///     assert_eq!(batch.tokens.offsets.len(), batch.id.len() + 1);
/// }
/// # Ok::<(), pinfeed::BoxError>(())
/// ```
pub struct Row<'a> {
    pub(crate) inner: &'a Inner,
    pub(crate) group: &'a Group,
    /// Its sample, among those of the row group.
    pub(crate) sample: u64,
    pub(crate) columns: &'a [Column],
    /// Where it is among the rows that were decoded.
    pub(crate) at: usize,
    /// The column that is looked at first.
    pub(crate) next: Place<usize>,
}

impl<'a> Row<'a> {
    /// The value of a column. [`Value`] has the types that it can be taken for.
    ///
    /// # Errors
    ///
    /// If there is no such column, or it was not chosen; if its type is another, or its value does not fit; if it is null, and not taken for an
    /// [`Option`].
    #[inline]
    pub fn get<T: Value>(&self, column: &str) -> Result<T, ParquetError> {
        let cell = self.cell(column)?;
        T::read(cell).map_err(|misfit| self.misfit(column, misfit))
    }

    /// The values of several columns of one type, as features are: one behind the other.
    ///
    /// # Errors
    ///
    /// Those of [`get`](Row::get).
    ///
    /// # Examples
    ///
    /// ```
    /// use pinfeed_parquet::Parquet;
    ///
    /// # let file = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/types.parquet");
    /// let data = Parquet::open(file)?.columns(["a", "b", "id"]).build(|row, _rng| {
    ///     Ok((row.all::<f32>(&["a", "b"])?, row.get::<i64>("id")?)) // [n, 2] and [n]
    /// })?;
    /// # let batch = pinfeed::DataLoader::builder(data).batch_size(4).build()?.epoch(0).next().unwrap()?;
    /// # assert_eq!(batch.0.shape()[..], [4, 2]);
    /// # Ok::<(), pinfeed::BoxError>(())
    /// ```
    pub fn all<T: Value>(&self, columns: &[&str]) -> Result<Vec<T>, ParquetError> {
        columns.iter().map(|column| self.get(column)).collect()
    }

    /// The values of a list: the same as `get::<Vec<T>>`.
    ///
    /// # Errors
    ///
    /// Those of [`get`](Row::get).
    pub fn list<T: Value>(&self, column: &str) -> Result<Vec<T>, ParquetError> {
        self.get(column)
    }

    /// A text, without a copy.
    ///
    /// # Errors
    ///
    /// Those of [`get`](Row::get).
    pub fn str(&self, column: &str) -> Result<&'a str, ParquetError> {
        value::text(self.cell(column)?).map_err(|misfit| self.misfit(column, misfit))
    }

    /// Bytes, or those of a text, without a copy.
    ///
    /// # Errors
    ///
    /// Those of [`get`](Row::get).
    pub fn bytes(&self, column: &str) -> Result<&'a [u8], ParquetError> {
        value::bytes(self.cell(column)?).map_err(|misfit| self.misfit(column, misfit))
    }

    /// Whether there is no value.
    ///
    /// # Errors
    ///
    /// If there is no such column, or it was not chosen.
    pub fn is_null(&self, column: &str) -> Result<bool, ParquetError> {
        Ok(self.cell(column)?.is_null())
    }

    /// The key of its file in the store: `train/0000.parquet`.
    pub fn file(&self) -> &'a str {
        &self.inner.files[self.group.file].object.key
    }

    /// Its number in its file, from 0.
    pub fn number(&self) -> u64 {
        self.group.row + self.group.row_of(self.sample)
    }

    #[inline]
    pub(crate) fn cell(&self, column: &str) -> Result<Cell<'a>, ParquetError> {
        let (names, next) = (&self.inner.names, self.next.get());
        let is_next = names.get(next).is_some_and(|name| name == column);
        let at = match is_next {
            true => Some(next),
            false => names.iter().position(|name| name == column),
        };
        match at.and_then(|at| Some((at, self.columns.get(at)?))) {
            Some((at, column)) => {
                self.next.set(at + 1);
                Ok(column.cell(self.at))
            }
            None => Err(self.no_column(column)),
        }
    }

    #[cold]
    fn no_column(&self, column: &str) -> ParquetError {
        let has = self.inner.names.clone();
        self.fault(Cause::NoColumn { has }).at(column)
    }

    #[cold]
    pub(crate) fn misfit(&self, column: &str, misfit: Misfit) -> ParquetError {
        let names = &self.inner.names;
        let at = names.iter().position(|name| name == column);
        let leaf = at.and_then(|at| self.inner.leaves.get(at));
        let kind = leaf.map_or_else(|| "a folder's name".to_owned(), |leaf| leaf.type_name());
        let what = match misfit {
            Misfit::Null => "it is null: take it as an Option".to_owned(),
            Misfit::List(length) => {
                format!(
                    "it is a list ({kind}), of {length} values: take it as a Vec, or as an array of that length"
                )
            }
            Misfit::NoList => format!("it is {kind}, and no list of what it is taken for"),
            Misfit::Type(wanted) => format!("it is {kind}, and cannot be taken for {wanted}"),
            Misfit::TooLarge(value, wanted) => {
                format!("it is {value} ({kind}), which {wanted} does not hold")
            }
            Misfit::Length(found, wanted) => format!(
                "it is a list ({kind}) of {found} values where {wanted} are expected: take it as a Vec, for Ragged or Padded"
            ),
            Misfit::Unpacked(path) => format!(
                "it is null, and beside it is the path {path:?}: the picture was not packed into the file. Write it with its bytes (`datasets`: `embed_external_files=True`)"
            ),
        };
        self.fault(Cause::Misfit(what)).at(column)
    }

    fn fault(&self, cause: Cause) -> ParquetError {
        let place = &self.inner.files[self.group.file].place;
        ParquetError::new(place, cause).in_row(self.number())
    }
}

impl std::fmt::Debug for Row<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Row")
            .field("file", &self.file())
            .field("number", &self.number())
            .field("columns", &self.inner.names)
            .finish()
    }
}

/// (A closure that returns any error takes `?`.)
const _: fn(ParquetError) -> BoxError = |error| error.into();
