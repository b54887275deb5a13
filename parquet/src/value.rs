//! What a cell of a table is taken for: numbers, texts, lists of these.

use std::ops::Range;

use half::f16;
use pinfeed::tensor::Element;
use pinfeed::{Padded, Ragged, Tensor};

use crate::column::{Cell, Column, Content, List, Values};
use crate::filter::Scalar;

/// A type that a value of a column can be taken for: [`Row::get`](crate::Row::get).
///
/// | type | of columns |
/// | --- | --- |
/// | integers | of integers, if each value fits; `bool`, as 0 and 1; `date32` as days since 1970; times and timestamps, in the unit that the column has; decimals without a part behind the point |
/// | `f32`, `f64`, [`half::f16`] | of floats and integers, rounded to the nearest, and an error if it is too large; decimals; `bool` |
/// | `bool` | `bool` |
/// | `String` | text |
/// | `Vec<u8>` | text and bytes; lists of `u8` |
/// | `Vec<T>`, [`Ragged<T>`], [`Padded<T>`] | lists, whatever their lengths |
/// | `[T; N]` | lists of `N` values |
/// | [`Tensor<T>`] | lists of lists, whose inner ones have the same length: of rank 2, and so on |
/// | `Option<T>` | each of them; `None` where it is null |
///
/// A value that is null is an error, unless it is taken for an `Option`. An element of a list is a cell, too:
/// `Vec<Option<f32>>`. It is sealed: types of a program's own are made of these.
///
/// # Examples
///
/// ```
/// use pinfeed_parquet::{Row, ParquetError};
///
/// fn sample(row: &Row<'_>) -> Result<(f32, Option<i64>, Vec<u32>), ParquetError> {
///     Ok((row.get("score")?, row.get("age")?, row.get("tokens")?))
/// }
/// # let _ = sample;
/// ```
#[diagnostic::on_unimplemented(
    message = "a value of a column cannot be taken for `{Self}`",
    note = "numbers, bool, String, Vec<u8>, and Vec, arrays, Option, Tensor, Ragged and Padded of these can"
)]
pub trait Value: Sized + sealed::Sealed {
    #[doc(hidden)]
    fn read(cell: Cell<'_>) -> Result<Self, Misfit>;

    /// All values of a list.
    #[doc(hidden)]
    fn read_all(list: List<'_>) -> Result<Vec<Self>, Misfit> {
        list.cells().map(Self::read).collect()
    }

    /// Writes a column's values, from this row on, into rows of so many values, at this place of each. Returns the row that does not fit.
    #[doc(hidden)]
    fn write(
        column: &Column,
        first: usize,
        at: usize,
        width: usize,
        rows: &mut [Self],
    ) -> Result<(), (usize, Misfit)> {
        for (row, values) in (first..).zip(rows.chunks_exact_mut(width)) {
            values[at] = Self::read(column.cell(row)).map_err(|misfit| (row, misfit))?;
        }
        Ok(())
    }

    /// Bytes, if they are values of this type.
    #[doc(hidden)]
    fn of_bytes(bytes: &[u8]) -> Option<Vec<Self>> {
        let _ = bytes;
        None
    }
}

/// Why a value is not what it was taken for.
#[derive(Debug, Clone)]
pub enum Misfit {
    Null,
    /// It is a list.
    List(usize),
    /// It is no list, but a value.
    NoList,
    /// Its type is another.
    Type(&'static str),
    /// It does not fit the type.
    TooLarge(String, &'static str),
    /// Its list has this length, and should have that.
    Length(usize, usize),
    /// It is null, and a path is beside it.
    Unpacked(String),
}

mod sealed {
    pub trait Sealed {}
}

/// A number of one type, from values of any.
trait Number: Copy {
    fn of(values: &Values, at: usize) -> Result<Self, Misfit>;

    /// The values themselves, if they are of this type.
    fn same(values: &Values) -> Option<&[Self]>;

    /// A byte as a number, for `u8`.
    fn bytes(bytes: &[u8]) -> Option<Vec<Self>> {
        let _ = bytes;
        None
    }
}

/// The content of a cell that is a value.
#[inline]
fn value(cell: Cell<'_>) -> Result<(&Values, usize), Misfit> {
    match cell.content() {
        Content::Value(values, at) => Ok((values, at)),
        Content::Null => Err(Misfit::Null),
        Content::List(list) => Err(Misfit::List(list.len())),
    }
}

/// The content of a cell that is a list.
fn list(cell: Cell<'_>) -> Result<List<'_>, Misfit> {
    match cell.content() {
        Content::List(list) => Ok(list),
        Content::Null => Err(Misfit::Null),
        Content::Value(..) => Err(Misfit::NoList),
    }
}

macro_rules! values {
    ($($type:ty),*) => {$(
        impl sealed::Sealed for $type {}

        impl Value for $type {
            #[inline]
            fn read(cell: Cell<'_>) -> Result<$type, Misfit> {
                let (values, at) = value(cell)?;
                Number::of(values, at)
            }

            fn read_all(list: List<'_>) -> Result<Vec<$type>, Misfit> {
                match list.values() {
                    Some((values, range)) => read_range(values, range),
                    None => list.cells().map(Self::read).collect(),
                }
            }

            fn write(
                column: &Column,
                first: usize,
                at: usize,
                width: usize,
                rows: &mut [$type],
            ) -> Result<(), (usize, Misfit)> {
                let plain = column.plain().and_then(<$type as Number>::same);
                let plain = plain.and_then(|values| values.get(first..first + rows.len() / width));
                if let Some(values) = plain {
                    let places = rows.iter_mut().skip(at).step_by(width);
                    places.zip(values).for_each(|(place, value)| *place = *value);
                    return Ok(());
                }
                for (row, values) in (first..).zip(rows.chunks_exact_mut(width)) {
                    values[at] = Self::read(column.cell(row)).map_err(|misfit| (row, misfit))?;
                }
                Ok(())
            }

            fn of_bytes(bytes: &[u8]) -> Option<Vec<$type>> {
                Number::bytes(bytes)
            }
        }
    )*};
}

values!(i8, i16, i32, i64, u8, u16, u32, u64, f16, f32, f64);

fn read_range<T: Number>(values: &Values, range: Range<usize>) -> Result<Vec<T>, Misfit> {
    match T::same(values).and_then(|same| same.get(range.clone())) {
        Some(same) => Ok(same.to_vec()),
        None => range.map(|at| T::of(values, at)).collect(),
    }
}

macro_rules! integers {
    ($($type:ident $same:ident),*) => {$(
        impl Number for $type {
            #[inline]
            fn of(values: &Values, at: usize) -> Result<$type, Misfit> {
                match values {
                    Values::$same(values) => Ok(values[at]),
                    other => match other {
                        Values::I8(values) => fit(values[at], stringify!($type)),
                        Values::I16(values) => fit(values[at], stringify!($type)),
                        Values::I32(values) | Values::Time32(values) => fit(values[at], stringify!($type)),
                        Values::I64(values) | Values::Time64(values) => fit(values[at], stringify!($type)),
                        Values::U8(values) => fit(values[at], stringify!($type)),
                        Values::U16(values) => fit(values[at], stringify!($type)),
                        Values::U32(values) => fit(values[at], stringify!($type)),
                        Values::U64(values) => fit(values[at], stringify!($type)),
                        Values::Bool(values) => Ok(values.value(at).into()),
                        Values::Same(Scalar::Integer(value)) => fit(*value, stringify!($type)),
                        Values::Decimal(values, scale) => fit(whole(values[at], *scale)?, stringify!($type)),
                        _ => Err(Misfit::Type(stringify!($type))),
                    }
                }
            }

            fn same(values: &Values) -> Option<&[$type]> {
                match values {
                    Values::$same(values) => Some(values),
                    _ => None,
                }
            }

            integers!(@bytes $type);
        }
    )*};
    (@bytes u8) => {
        fn bytes(bytes: &[u8]) -> Option<Vec<u8>> {
            Some(bytes.to_vec())
        }
    };
    (@bytes $type:ident) => {};
}

integers!(i8 I8, i16 I16, i32 I32, i64 I64, u8 U8, u16 U16, u32 U32, u64 U64);

fn fit<V: Copy + ToString, T: TryFrom<V>>(value: V, name: &'static str) -> Result<T, Misfit> {
    T::try_from(value).map_err(|_| Misfit::TooLarge(value.to_string(), name))
}

/// A decimal without a part behind the point.
fn whole(value: i128, scale: i8) -> Result<i128, Misfit> {
    let unit = 10i128.checked_pow(u32::from(scale.unsigned_abs()));
    let unit = unit.ok_or(Misfit::Type("an integer"))?;
    match scale < 0 {
        true => value.checked_mul(unit).ok_or(Misfit::Type("an integer")),
        false if value % unit == 0 => Ok(value / unit),
        false => Err(Misfit::TooLarge(
            decimal(value, scale).to_string(),
            "an integer",
        )),
    }
}

/// (Both numbers are rounded to the nearest, and then their quotient is.)
fn decimal(value: i128, scale: i8) -> f64 {
    let unit = 10f64.powi(i32::from(scale.unsigned_abs()));
    match scale < 0 {
        true => value as f64 * unit,
        false => value as f64 / unit,
    }
}

macro_rules! floats {
    ($($type:ident $same:ident $of:expr;)*) => {$(
        impl Number for $type {
            #[inline]
            fn of(values: &Values, at: usize) -> Result<$type, Misfit> {
                match values {
                    Values::$same(values) => Ok(values[at]),
                    other => {
                        let value = float(other, at).ok_or(Misfit::Type(stringify!($type)))?;
                        let of: fn(f64) -> $type = $of;
                        let rounded = of(value);
                        match value.is_finite() && !rounded.is_finite() {
                            true => Err(Misfit::TooLarge(value.to_string(), stringify!($type))),
                            false => Ok(rounded),
                        }
                    }
                }
            }

            fn same(values: &Values) -> Option<&[$type]> {
                match values {
                    Values::$same(values) => Some(values),
                    _ => None,
                }
            }
        }
    )*};
}

floats! {
    f16 F16 f16::from_f64;
    f32 F32 |value| value as f32;
    f64 F64 |value| value;
}

/// (An integer beyond 2^53 is rounded twice where it is taken for an `f32`: the result is at most one unit of the last place off.)
fn float(values: &Values, at: usize) -> Option<f64> {
    Some(match values {
        Values::F16(values) => values[at].to_f64(),
        Values::F32(values) => values[at].into(),
        Values::F64(values) => values[at],
        Values::I8(values) => values[at].into(),
        Values::I16(values) => values[at].into(),
        Values::I32(values) => values[at].into(),
        Values::I64(values) => values[at] as f64,
        Values::U8(values) => values[at].into(),
        Values::U16(values) => values[at].into(),
        Values::U32(values) => values[at].into(),
        Values::U64(values) => values[at] as f64,
        Values::Bool(values) => u8::from(values.value(at)).into(),
        Values::Decimal(values, scale) => decimal(values[at], *scale),
        Values::Same(Scalar::Integer(value)) => *value as f64,
        _ => return None,
    })
}

impl sealed::Sealed for bool {}

impl Value for bool {
    fn read(cell: Cell<'_>) -> Result<bool, Misfit> {
        match value(cell)? {
            (Values::Bool(values), at) => Ok(values.value(at)),
            _ => Err(Misfit::Type("bool")),
        }
    }
}

impl sealed::Sealed for String {}

impl Value for String {
    fn read(cell: Cell<'_>) -> Result<String, Misfit> {
        text(cell).map(str::to_owned)
    }
}

pub(crate) fn text(cell: Cell<'_>) -> Result<&str, Misfit> {
    let (values, at) = value(cell)?;
    values.text(at).ok_or(Misfit::Type("text"))
}

pub(crate) fn bytes(cell: Cell<'_>) -> Result<&[u8], Misfit> {
    let (values, at) = value(cell)?;
    values.bytes(at).ok_or(Misfit::Type("bytes"))
}

impl<T: Value> sealed::Sealed for Option<T> {}

impl<T: Value> Value for Option<T> {
    fn read(cell: Cell<'_>) -> Result<Option<T>, Misfit> {
        match cell.is_null() {
            true => Ok(None),
            false => T::read(cell).map(Some),
        }
    }
}

impl<T: Value> sealed::Sealed for Vec<T> {}

impl<T: Value> Value for Vec<T> {
    fn read(cell: Cell<'_>) -> Result<Vec<T>, Misfit> {
        match cell.content() {
            Content::List(list) => T::read_all(list),
            Content::Null => Err(Misfit::Null),
            Content::Value(values, at) => {
                let bytes = values.bytes(at).and_then(T::of_bytes);
                bytes.ok_or(Misfit::NoList)
            }
        }
    }
}

impl<T: Value, const N: usize> sealed::Sealed for [T; N] {}

impl<T: Value, const N: usize> Value for [T; N] {
    fn read(cell: Cell<'_>) -> Result<[T; N], Misfit> {
        let values = T::read_all(list(cell)?)?;
        values
            .try_into()
            .map_err(|values: Vec<T>| Misfit::Length(values.len(), N))
    }
}

impl<T: Value + Element> sealed::Sealed for Ragged<T> {}

impl<T: Value + Element> Value for Ragged<T> {
    fn read(cell: Cell<'_>) -> Result<Ragged<T>, Misfit> {
        Vec::<T>::read(cell).map(Ragged::from)
    }
}

impl<T: Value + Element> sealed::Sealed for Padded<T> {}

impl<T: Value + Element> Value for Padded<T> {
    fn read(cell: Cell<'_>) -> Result<Padded<T>, Misfit> {
        Vec::<T>::read(cell).map(Padded::from)
    }
}

impl<T: Value + Element> sealed::Sealed for Tensor<T> {}

impl<T: Value + Element> Value for Tensor<T> {
    fn read(cell: Cell<'_>) -> Result<Tensor<T>, Misfit> {
        let outer = list(cell)?;
        let depth = outer.depth();
        let (mut shape, mut lists) = (vec![outer.len()], vec![outer]);
        // One dimension further in, as many as the column has: of an empty list, those within have the length 0.
        for _ in 1..depth {
            let cells = lists.iter().flat_map(List::cells);
            let inner: Vec<List<'_>> = cells.map(list).collect::<Result<_, _>>()?;
            let length = inner.first().map_or(0, List::len);
            if let Some(other) = inner.iter().find(|list| list.len() != length) {
                return Err(Misfit::Length(other.len(), length));
            }
            shape.push(length);
            lists = inner;
        }
        let mut values = Vec::with_capacity(shape.iter().product());
        for list in lists {
            values.append(&mut T::read_all(list)?);
        }
        let elements = values.len();
        Tensor::from_vec(values, &shape)
            .map_err(|_| Misfit::Length(elements, shape.iter().product()))
    }
}
