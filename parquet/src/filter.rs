//! Which rows are taken: conditions on columns, and what the statistics of row groups say of them.

use std::cmp::Ordering;
use std::ops::{Bound, RangeBounds};
use std::sync::Arc;

use arrow_schema::DataType;
use parquet::file::statistics::Statistics;

use crate::column::{Cell, Column, Content, Values};
use crate::kind::{Kind, Leaf};

/// A condition on a column, for [`ParquetBuilder::filter`](crate::ParquetBuilder::filter). A value that is null meets none.
///
/// Columns are of numbers, text, or `bool`, and in no list; or they are folders' (`year=2024/`). Numbers of different types compare as
/// numbers, texts by their bytes.
///
/// # Examples
///
/// ```
/// use pinfeed_parquet::Filter;
///
/// let german = Filter::equals("lang", "de");
/// let recent = Filter::within("year", 2020..);
/// let clean = Filter::within("score", 0.5..=1.0);
/// let either = Filter::one_of("source", ["wikipedia", "books"]);
/// let captioned = Filter::present("caption");
/// assert_eq!(format!("{recent:?}"), "year in 2020..");
/// # let _ = (german, clean, either, captioned);
/// ```
#[derive(Clone)]
pub struct Filter {
    column: String,
    test: Test,
}

#[derive(Clone)]
enum Test {
    OneOf(Vec<Scalar>),
    Within(Bound<Scalar>, Bound<Scalar>),
    Present,
}

/// A value that a [`Filter`] compares with.
#[derive(Debug, Clone, PartialEq)]
pub enum Scalar {
    /// No value: it meets no condition.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// A whole number.
    Integer(i128),
    /// A number with a part behind the point.
    Float(f64),
    /// A text.
    Text(Arc<str>),
}

macro_rules! scalars {
    ($($type:ty, $value:ident => $scalar:expr;)*) => {$(
        impl From<$type> for Scalar {
            fn from($value: $type) -> Scalar {
                $scalar
            }
        }
    )*};
}

scalars! {
    bool, value => Scalar::Bool(value);
    i8, value => Scalar::Integer(value.into());
    i16, value => Scalar::Integer(value.into());
    i32, value => Scalar::Integer(value.into());
    i64, value => Scalar::Integer(value.into());
    u8, value => Scalar::Integer(value.into());
    u16, value => Scalar::Integer(value.into());
    u32, value => Scalar::Integer(value.into());
    u64, value => Scalar::Integer(value.into());
    f32, value => Scalar::Float(value.into());
    f64, value => Scalar::Float(value);
    &str, value => Scalar::Text(value.into());
    String, value => Scalar::Text(value.into());
}

impl Scalar {
    /// How two values compare. `None`: they do not, or one is null or no number.
    fn compare(&self, other: &Scalar) -> Option<Ordering> {
        match (self, other) {
            (Scalar::Bool(a), Scalar::Bool(b)) => Some(a.cmp(b)),
            (Scalar::Integer(a), Scalar::Integer(b)) => Some(a.cmp(b)),
            (Scalar::Integer(a), Scalar::Float(b)) => (*a as f64).partial_cmp(b),
            (Scalar::Float(a), Scalar::Integer(b)) => a.partial_cmp(&(*b as f64)),
            (Scalar::Float(a), Scalar::Float(b)) => a.partial_cmp(b),
            (Scalar::Text(a), Scalar::Text(b)) => Some(a.as_bytes().cmp(b.as_bytes())),
            _ => None,
        }
    }

    fn name(&self) -> &'static str {
        match self {
            Scalar::Null => "null",
            Scalar::Bool(_) => "bool",
            Scalar::Integer(_) | Scalar::Float(_) => "a number",
            Scalar::Text(_) => "text",
        }
    }
}

impl std::fmt::Display for Scalar {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Scalar::Null => f.write_str("null"),
            Scalar::Bool(value) => write!(f, "{value}"),
            Scalar::Integer(value) => write!(f, "{value}"),
            Scalar::Float(value) => write!(f, "{value:?}"),
            Scalar::Text(value) => write!(f, "{value:?}"),
        }
    }
}

fn end_of(bound: &Bound<Scalar>) -> Option<&Scalar> {
    match bound {
        Bound::Included(value) | Bound::Excluded(value) => Some(value),
        Bound::Unbounded => None,
    }
}

/// What is known of a row group's rows without reading them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Known {
    AllMeetIt,
    NoneMeetsIt,
    Unknown,
}

impl Known {
    /// Of two conditions together.
    pub(crate) fn and(self, other: Known) -> Known {
        match (self, other) {
            (Known::NoneMeetsIt, _) | (_, Known::NoneMeetsIt) => Known::NoneMeetsIt,
            (Known::AllMeetIt, Known::AllMeetIt) => Known::AllMeetIt,
            _ => Known::Unknown,
        }
    }
}

impl Filter {
    /// Rows whose value is this.
    pub fn equals(column: &str, value: impl Into<Scalar>) -> Filter {
        Filter::one_of(column, [value])
    }

    /// Rows whose value is one of these.
    pub fn one_of<V: Into<Scalar>>(column: &str, values: impl IntoIterator<Item = V>) -> Filter {
        Filter {
            column: column.to_owned(),
            test: Test::OneOf(values.into_iter().map(Into::into).collect()),
        }
    }

    /// Rows whose value lies in a range: `2020..`, `0.5..=1.0`, `.."m"`.
    pub fn within<V: Into<Scalar> + Clone>(column: &str, range: impl RangeBounds<V>) -> Filter {
        let bound = |bound: Bound<&V>| bound.cloned().map(Into::into);
        Filter {
            column: column.to_owned(),
            test: Test::Within(bound(range.start_bound()), bound(range.end_bound())),
        }
    }

    /// Rows whose value is not null.
    pub fn present(column: &str) -> Filter {
        Filter {
            column: column.to_owned(),
            test: Test::Present,
        }
    }

    pub(crate) fn column(&self) -> &str {
        &self.column
    }

    /// The values that it compares with.
    fn values(&self) -> Vec<&Scalar> {
        match &self.test {
            Test::OneOf(values) => values.iter().collect(),
            Test::Within(from, to) => end_of(from).into_iter().chain(end_of(to)).collect(),
            Test::Present => Vec::new(),
        }
    }

    /// Why a column's values cannot be compared with this one's.
    pub(crate) fn misfit(&self, leaf: &Leaf) -> Option<String> {
        use DataType::*;
        if let Kind::Refused(_, instead) = leaf.kind {
            let kind = leaf.type_name();
            return Some(format!("its type {kind} is not taken: {instead}"));
        }
        if leaf.lists > 0 {
            return Some(format!(
                "it is {}, and a filter compares single values",
                leaf.type_name()
            ));
        }
        let is_number = matches!(
            leaf.kind,
            Kind::Taken(
                Int8 | Int16
                    | Int32
                    | Int64
                    | UInt8
                    | UInt16
                    | UInt32
                    | UInt64
                    | Float16
                    | Float32
                    | Float64
            )
        );
        let is_like = |value: &&&Scalar| match value {
            _ if leaf.kind == Kind::Null => true,
            Scalar::Bool(_) => leaf.kind == Kind::Taken(Boolean),
            Scalar::Text(_) => leaf.kind == Kind::Taken(Utf8View),
            Scalar::Integer(_) | Scalar::Float(_) => is_number,
            Scalar::Null => false,
        };
        let values = self.values();
        let other = values.iter().find(|value| !is_like(value))?;
        Some(format!(
            "it is {}, and the filter compares it with {} ({other})",
            leaf.type_name(),
            other.name()
        ))
    }

    pub(crate) fn is_met_by(&self, value: &Scalar) -> bool {
        match &self.test {
            Test::OneOf(values) => {
                let mut values = values.iter();
                values.any(|one| value.compare(one) == Some(Ordering::Equal))
            }
            Test::Within(from, to) => {
                let above = match from {
                    Bound::Included(from) => value.compare(from).is_some_and(Ordering::is_ge),
                    Bound::Excluded(from) => value.compare(from).is_some_and(Ordering::is_gt),
                    Bound::Unbounded => *value != Scalar::Null,
                };
                let below = match to {
                    Bound::Included(to) => value.compare(to).is_some_and(Ordering::is_le),
                    Bound::Excluded(to) => value.compare(to).is_some_and(Ordering::is_lt),
                    Bound::Unbounded => *value != Scalar::Null,
                };
                above && below
            }
            Test::Present => *value != Scalar::Null,
        }
    }

    /// Whether a row meets it.
    pub(crate) fn is_met(&self, column: &Column, row: usize) -> bool {
        self.is_met_by(&scalar(column.cell(row)))
    }

    /// What the statistics of a column of a row group say.
    pub(crate) fn known(&self, statistics: Option<&Statistics>, rows: u64, kind: &Kind) -> Known {
        let Some(statistics) = statistics else {
            return Known::Unknown;
        };
        let nulls = statistics.null_count_opt();
        if nulls == Some(rows) {
            return Known::NoneMeetsIt;
        }
        if matches!(self.test, Test::Present) {
            return match nulls {
                Some(0) => Known::AllMeetIt,
                _ => Known::Unknown,
            };
        }
        let Some((least, most)) = bounds(statistics, kind) else {
            return Known::Unknown;
        };
        if !self.may_be_met(&least, &most) {
            return Known::NoneMeetsIt;
        }
        // (Statistics leave out what is no number.)
        let is_float = matches!(least, Scalar::Float(_));
        let has_all = nulls == Some(0)
            && !is_float
            && statistics.min_is_exact()
            && statistics.max_is_exact()
            && match &self.test {
                Test::Within(..) => self.is_met_by(&least) && self.is_met_by(&most),
                _ => least == most && self.is_met_by(&least),
            };
        match has_all {
            true => Known::AllMeetIt,
            false => Known::Unknown,
        }
    }

    /// Whether a value between these two may meet it.
    fn may_be_met(&self, least: &Scalar, most: &Scalar) -> bool {
        let order = |a: &Scalar, b: &Scalar| a.compare(b);
        match &self.test {
            Test::OneOf(values) => values.iter().any(|value| {
                order(value, least).is_none_or(Ordering::is_ge)
                    && order(value, most).is_none_or(Ordering::is_le)
            }),
            Test::Within(from, to) => {
                let from = match from {
                    Bound::Included(from) => order(most, from).is_none_or(Ordering::is_ge),
                    Bound::Excluded(from) => order(most, from).is_none_or(Ordering::is_gt),
                    Bound::Unbounded => true,
                };
                let to = match to {
                    Bound::Included(to) => order(least, to).is_none_or(Ordering::is_le),
                    Bound::Excluded(to) => order(least, to).is_none_or(Ordering::is_lt),
                    Bound::Unbounded => true,
                };
                from && to
            }
            Test::Present => true,
        }
    }
}

/// The least and the highest value of a column in a row group, or bounds of these.
fn bounds(statistics: &Statistics, kind: &Kind) -> Option<(Scalar, Scalar)> {
    use DataType::*;
    let Kind::Taken(data_type) = kind else {
        return None;
    };
    match (statistics, data_type) {
        (Statistics::Boolean(of), Boolean) => {
            Some(((*of.min_opt()?).into(), (*of.max_opt()?).into()))
        }
        (Statistics::Int32(of), Int8 | Int16 | Int32) => {
            Some(((*of.min_opt()?).into(), (*of.max_opt()?).into()))
        }
        (Statistics::Int64(of), Int64) => Some(((*of.min_opt()?).into(), (*of.max_opt()?).into())),
        // (Of unsigned numbers, the deprecated fields have the order of signed ones.)
        (_, UInt8 | UInt16 | UInt32 | UInt64) if statistics.is_min_max_deprecated() => None,
        (Statistics::Int32(of), UInt8 | UInt16 | UInt32) => {
            let unsigned = |value: i32| Scalar::from(value.cast_unsigned());
            Some((unsigned(*of.min_opt()?), unsigned(*of.max_opt()?)))
        }
        (Statistics::Int64(of), UInt64) => {
            let unsigned = |value: i64| Scalar::from(value.cast_unsigned());
            Some((unsigned(*of.min_opt()?), unsigned(*of.max_opt()?)))
        }
        (Statistics::Float(of), Float32) => {
            number(f64::from(*of.min_opt()?), f64::from(*of.max_opt()?))
        }
        (Statistics::Double(of), Float64) => number(*of.min_opt()?, *of.max_opt()?),
        (Statistics::ByteArray(of), Utf8View) if !statistics.is_min_max_deprecated() => {
            let text = |bytes: &[u8]| Some(Scalar::from(std::str::from_utf8(bytes).ok()?));
            Some((text(of.min_opt()?.data())?, text(of.max_opt()?.data())?))
        }
        _ => None,
    }
}

/// (Some writers count what is no number.)
fn number(least: f64, most: f64) -> Option<(Scalar, Scalar)> {
    (!least.is_nan() && !most.is_nan()).then(|| (least.into(), most.into()))
}

/// A cell's value, to compare it.
fn scalar(cell: Cell<'_>) -> Scalar {
    let Content::Value(values, at) = cell.content() else {
        return Scalar::Null;
    };
    match values {
        Values::Same(value) => value.clone(),
        Values::Bool(values) => values.value(at).into(),
        Values::I8(values) => values[at].into(),
        Values::I16(values) => values[at].into(),
        Values::I32(values) => values[at].into(),
        Values::I64(values) => values[at].into(),
        Values::U8(values) => values[at].into(),
        Values::U16(values) => values[at].into(),
        Values::U32(values) => values[at].into(),
        Values::U64(values) => values[at].into(),
        Values::F16(values) => values[at].to_f64().into(),
        Values::F32(values) => values[at].into(),
        Values::F64(values) => values[at].into(),
        Values::Text(values) => values.value(at).into(),
        // (Of any other type, it can only be asked whether there is a value.)
        _ => Scalar::Bool(true),
    }
}

impl std::fmt::Debug for Filter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ", self.column)?;
        match &self.test {
            Test::OneOf(values) => {
                let values: Vec<String> = values.iter().map(Scalar::to_string).collect();
                match &values[..] {
                    [only] => write!(f, "== {only}"),
                    several => write!(f, "in [{}]", several.join(", ")),
                }
            }
            Test::Within(from, to) => {
                f.write_str("in ")?;
                match from {
                    Bound::Included(from) => write!(f, "{from}..")?,
                    Bound::Excluded(from) => write!(f, "({from})..")?,
                    Bound::Unbounded => f.write_str("..")?,
                }
                match to {
                    Bound::Included(to) => write!(f, "={to}"),
                    Bound::Excluded(to) => write!(f, "{to}"),
                    Bound::Unbounded => Ok(()),
                }
            }
            Test::Present => f.write_str("is present"),
        }
    }
}
