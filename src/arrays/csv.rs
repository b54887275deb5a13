//! CSV files with a line of names, whose columns are numbers.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use super::file::{FileBytes, IntoFileBytes};
use super::shown::shown;
use crate::error::{Error, Result};
use crate::system::room;
use crate::tensor::{Element, Tensor};

const BYTE_ORDER_MARK: char = '\u{feff}';

/// Opens a CSV file: a line of names, and lines of as many fields, separated by commas.
///
/// It is looked at once, and columns are read as they are asked for ([`CsvTable`]). For a file that does not fit into memory, or lines
/// that are to be left out or made into structures, there is [`iterable::lines`](crate::iterable::lines()).
///
/// The notation is that of RFC 4180: fields in double quotes may have commas, line ends and (doubled) quotes in them; lines end with `\n`
/// or `\r\n`. A byte order mark and empty lines are left out.
///
/// # Errors
///
/// [`Error::DataSet`] if it has no names, is not UTF-8, has a quote that does not end, or a line of more or fewer fields: the error names
/// the line. Those of [`FileBytes::read`], if the file is a path.
///
/// # Examples
///
/// In [`CsvTable`].
///
/// ```
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("table.csv");
/// std::fs::write(&path, "x,y\n1,2\n3\n")?;
/// let error = pinfeed::arrays::csv(&path).unwrap_err();
/// assert!(error.to_string().ends_with("table.csv: line 3: it has 1 field, and there are 2 names"));
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn csv(file: impl IntoFileBytes) -> Result<CsvTable> {
    CsvTable::open(file, ',')
}

/// A table of a CSV file, whose columns become tensors by their names. [`csv`](csv()) opens it.
///
/// # Examples
///
/// ```
/// use pinfeed::{TensorDataset, arrays};
///
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("flowers.csv");
/// # std::fs::write(&path, "sepal,petal,species\r\n5.1,1.4,setosa\r\n7.0,4.7,\"versicolor\"\r\n")?;
/// let flowers = arrays::csv(&path)?;
/// let features = flowers.columns::<f32>(&["sepal", "petal"])?;
/// let species = flowers.classes("species", &["setosa", "versicolor", "virginica"])?;
/// assert_eq!((&features.shape()[..], features.as_slice()), (&[2, 2][..], &[5.1, 1.4, 7.0, 4.7][..]));
/// assert_eq!(species.as_slice(), [0, 1]);
/// let table = TensorDataset::new((features, species))?;
/// # drop(table);
///
/// let error = flowers.column::<f32>("species").unwrap_err().to_string();
/// assert!(error.ends_with("flowers.csv: line 2, column `species`: `setosa` is not a number (f32): invalid float literal"), "{error}");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct CsvTable {
    file: FileBytes,
    separator: char,
    names: Vec<String>,
    rows: usize,
}

impl CsvTable {
    /// Opens a file as [`csv`](csv()) does, whose fields are separated by another character: `'\t'` or `';'`, for example.
    ///
    /// # Errors
    ///
    /// Those of [`csv`](csv()); and [`Error::InvalidOption`] if the separator is a quote or ends lines.
    pub fn open(file: impl IntoFileBytes, separator: char) -> Result<CsvTable> {
        if ['"', '\n', '\r'].contains(&separator) {
            return Err(Error::option(
                "separator",
                "fields are separated by another character than a quote or a line's end",
            ));
        }
        let mut table = CsvTable {
            file: file.into_file_bytes()?,
            separator,
            names: Vec::new(),
            rows: 0,
        };
        let mut records = table.records()?;
        let mut fields = Vec::new();
        let first = records
            .next(&mut fields)
            .map_err(|error| table.refused(error))?;
        if first.is_none() {
            return Err(table.file.refused("it has no line of names"));
        }
        let names: Vec<String> = fields.iter().map(|name| name.trim().to_owned()).collect();
        let mut rows = 0;
        while let Some(line) = records
            .next(&mut fields)
            .map_err(|error| table.refused(error))?
        {
            if fields.len() != names.len() {
                let reason = format!(
                    "it has {} field{}, and there are {} names",
                    fields.len(),
                    if fields.len() == 1 { "" } else { "s" },
                    names.len()
                );
                return Err(table.refused((line, reason)));
            }
            rows += 1;
        }
        (table.names, table.rows) = (names, rows);
        Ok(table)
    }

    /// The names of the columns, in order.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// The number of rows, without that of names.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Reads a column of numbers: a tensor `[rows]`. Spaces around a number are left out; Rust's [`FromStr`] reads it (`1e-3`, `inf` and
    /// `NaN` are floating-point numbers, and `1.0` is no integer).
    ///
    /// # Errors
    ///
    /// [`Error::DataSet`] if there is no such column, or there are two; or if a field is no number of the type: the error names the line,
    /// the column and what stands there. An empty field is none: nothing is filled in.
    pub fn column<T>(&self, name: &str) -> Result<Tensor<T>>
    where
        T: Element + FromStr<Err: fmt::Display>,
    {
        Ok(Tensor::from(self.read(&[name], number)?))
    }

    /// Reads several columns of numbers: a tensor `[rows, names]`, with the columns in the order of the names.
    ///
    /// # Errors
    ///
    /// Those of [`column`](CsvTable::column).
    pub fn columns<T>(&self, names: &[&str]) -> Result<Tensor<T>>
    where
        T: Element + FromStr<Err: fmt::Display>,
    {
        let numbers = self.read(names, number)?;
        Ok(Tensor::from_vec(numbers, &[self.rows, names.len()])?)
    }

    /// Reads a column of text that names classes: each becomes its place among `classes`, in a tensor `[rows]`.
    ///
    /// # Errors
    ///
    /// [`Error::DataSet`] if there is no such column, or a field is none of the classes.
    pub fn classes(&self, name: &str, classes: &[&str]) -> Result<Tensor<i64>> {
        let place = |field: &str| {
            let place = classes.iter().position(|class| *class == field);
            place
                .map(|place| place as i64)
                .ok_or_else(|| format!("`{}` is none of {classes:?}", shown(field)))
        };
        Ok(Tensor::from(self.read(&[name], place)?))
    }

    /// Reads the fields of some columns, row by row.
    fn read<T>(&self, names: &[&str], value: impl Fn(&str) -> Result<T, String>) -> Result<Vec<T>> {
        let places: Result<Vec<usize>> = names.iter().map(|name| self.place(name)).collect();
        let places = places?;
        let count = self.rows as u64 * places.len() as u64;
        let room = room::room_for(count);
        let mut values =
            room.map_err(|no_room| self.file.refused(format!("its columns take {no_room}")))?;
        let mut records = self.records()?;
        let mut fields = Vec::new();
        records
            .next(&mut fields)
            .map_err(|error| self.refused(error))?; // the names
        while let Some(line) = records
            .next(&mut fields)
            .map_err(|error| self.refused(error))?
        {
            for (place, name) in places.iter().zip(names) {
                let field = fields.get(*place).map_or("", |field| field.trim());
                let value = value(field).map_err(|reason| {
                    let place = format!("line {line}, column `{name}`");
                    self.file.refused(format!("{place}: {reason}"))
                })?;
                values.push(value);
            }
        }
        Ok(values)
    }

    fn place(&self, name: &str) -> Result<usize> {
        let mut found = self
            .names
            .iter()
            .enumerate()
            .filter(|(_, found)| *found == name);
        match (found.next(), found.next()) {
            (Some((place, _)), None) => Ok(place),
            (Some(_), Some(_)) => Err(self.file.refused(format!("it has two columns `{name}`"))),
            (None, _) => {
                const SHOWN: usize = 20;
                let listed: Vec<String> = self
                    .names
                    .iter()
                    .take(SHOWN)
                    .map(|name| format!("`{}`", shown(name)))
                    .collect();
                let more = if self.names.len() > SHOWN { ", .." } else { "" };
                Err(self.file.refused(format!(
                    "it has no column `{name}`, but {}{more}",
                    listed.join(", ")
                )))
            }
        }
    }

    fn records(&self) -> Result<Records<'_>> {
        let all = self.file.as_slice();
        let text = str::from_utf8(all).map_err(|error| {
            let before = &all[..error.valid_up_to()];
            let line = 1 + before.iter().filter(|byte| **byte == b'\n').count() as u64;
            self.refused((
                line,
                "it is not UTF-8: save the file in that encoding".to_owned(),
            ))
        })?;
        let text = text.strip_prefix(BYTE_ORDER_MARK).unwrap_or(text);
        Ok(Records {
            rest: text,
            line: 1,
            separator: self.separator,
        })
    }

    fn refused(&self, (line, reason): (u64, String)) -> Error {
        self.file.refused(format!("line {line}: {reason}"))
    }
}

impl fmt::Debug for CsvTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CsvTable")
            .field("file", &self.file.name())
            .field("names", &self.names)
            .field("rows", &self.rows)
            .finish()
    }
}

fn number<T: Element + FromStr<Err: fmt::Display>>(field: &str) -> Result<T, String> {
    let number = field.parse();
    number.map_err(|cause| match field {
        "" => format!("it is empty, and should be a number ({})", T::DTYPE),
        _ => format!("`{}` is not a number ({}): {cause}", shown(field), T::DTYPE),
    })
}

/// Lines of fields, one after the other.
struct Records<'a> {
    rest: &'a str,
    /// The line that comes next.
    line: u64,
    separator: char,
}

impl<'a> Records<'a> {
    /// Reads the fields of the next line that has any, and returns its number; `None` at the end. A problem has the number of its line.
    fn next(&mut self, fields: &mut Vec<Cow<'a, str>>) -> Result<Option<u64>, (u64, String)> {
        fields.clear();
        while let Some(rest) = self
            .rest
            .strip_prefix("\r\n")
            .or_else(|| self.rest.strip_prefix('\n'))
        {
            self.rest = rest;
            self.line += 1;
        }
        if self.rest.is_empty() {
            return Ok(None);
        }
        let line = self.line;
        loop {
            let field = match self.rest.strip_prefix('"') {
                Some(inside) => self.quoted(inside).map_err(|reason| (line, reason))?,
                None => self.plain(),
            };
            fields.push(field);
            if let Some(rest) = self.rest.strip_prefix(self.separator) {
                self.rest = rest;
                continue;
            }
            let ended = self
                .rest
                .strip_prefix("\r\n")
                .or_else(|| self.rest.strip_prefix('\n'));
            self.line += u64::from(ended.is_some());
            return match ended {
                Some(rest) => {
                    self.rest = rest;
                    Ok(Some(line))
                }
                None if self.rest.is_empty() => Ok(Some(line)),
                None => Err((
                    line,
                    "text follows a field in quotes, before the next separator".to_owned(),
                )),
            };
        }
    }

    /// Takes a field without quotes: all up to a separator or the line's end.
    fn plain(&mut self) -> Cow<'a, str> {
        let is_end = |c: char| c == self.separator || c == '\n';
        let (mut field, rest) = self
            .rest
            .split_at(self.rest.find(is_end).unwrap_or(self.rest.len()));
        if rest.starts_with('\n') || rest.is_empty() {
            field = field.strip_suffix('\r').unwrap_or(field);
        }
        self.rest = rest;
        Cow::Borrowed(field)
    }

    /// Takes a field in quotes, behind the first one.
    fn quoted(&mut self, inside: &'a str) -> Result<Cow<'a, str>, String> {
        let mut field = Cow::Borrowed("");
        let mut rest = inside;
        loop {
            let Some((part, after)) = rest.split_once('"') else {
                return Err("a field's quote does not end".to_owned());
            };
            self.line += part.bytes().filter(|byte| *byte == b'\n').count() as u64;
            field += part;
            match after.strip_prefix('"') {
                Some(more) => {
                    field += "\"";
                    rest = more;
                }
                None => {
                    self.rest = after;
                    return Ok(field);
                }
            }
        }
    }
}
