//! Which types columns have, as this crate tells them apart.

use std::fmt;

use arrow_schema::{DataType, Field, IntervalUnit, Schema, TimeUnit};

/// The type of a value of a column, within its lists.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Kind {
    /// All values are null: pandas writes such a column if it has seen no value.
    Null,
    /// Any other type that is taken.
    Taken(DataType),
    /// One that is not, and what to do instead.
    Refused(DataType, &'static str),
}

/// A column of values: a column of a table, or a field in a structure, which is named `structure.field`. Parquet stores one after the other.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Leaf {
    pub(crate) path: String,
    pub(crate) kind: Kind,
    /// Within how many lists a value lies.
    pub(crate) lists: usize,
}

impl Leaf {
    /// Whether the values of another file are of the same type. One that has only nulls is of any.
    pub(crate) fn is_like(&self, other: &Leaf) -> bool {
        self.kind == Kind::Null
            || other.kind == Kind::Null
            || (&self.kind, self.lists) == (&other.kind, other.lists)
    }

    /// The type, as errors name it.
    pub(crate) fn type_name(&self) -> String {
        let lists = |what: &str| what.repeat(self.lists);
        format!("{}{}{}", lists("list<"), self.kind, lists(">"))
    }
}

/// The columns of values of a schema, in the order in which Parquet stores them.
pub(crate) fn leaves(schema: &Schema) -> Vec<Leaf> {
    let mut leaves = Vec::new();
    for field in schema.fields() {
        walk(field, field.name(), 0, &mut leaves);
    }
    leaves
}

fn walk(field: &Field, path: &str, lists: usize, leaves: &mut Vec<Leaf>) {
    match field.data_type() {
        DataType::Struct(fields) => {
            for field in fields {
                walk(field, &format!("{path}.{}", field.name()), lists, leaves);
            }
        }
        // (An element of a list has no name of its own. A map is a list of keys and values.)
        DataType::List(element) | DataType::Map(element, _) => {
            walk(element, path, lists + 1, leaves);
        }
        data_type => leaves.push(Leaf {
            path: path.to_owned(),
            kind: Kind::of(data_type),
            lists,
        }),
    }
}

/// The schema that columns are decoded by.
///
/// Texts and bytes are views: what is decoded then points into the pages, so that no value of a dictionary is repeated, and a column takes
/// no more memory than its pages and 16 bytes for each value. Timestamps of 96 bits (Spark's and Impala's) are in microseconds: in
/// nanoseconds, 64 bits hold the years 1677 to 2262 only, and arrow's decoder wraps around beyond them without a word.
pub(crate) fn decoded(schema: &Schema, is_of_96_bits: impl Fn(usize) -> bool) -> Schema {
    let mut leaf = 0;
    let fields = schema.fields().iter();
    let fields = fields.map(|field| decoded_field(field, &mut leaf, &is_of_96_bits));
    Schema::new_with_metadata(fields.collect::<Vec<_>>(), schema.metadata().clone())
}

/// `leaf` is the number of columns of values before it.
fn decoded_field(field: &Field, leaf: &mut usize, is_of_96_bits: &dyn Fn(usize) -> bool) -> Field {
    let mut inside = |field: &Field| decoded_field(field, leaf, is_of_96_bits);
    let data_type = match field.data_type() {
        DataType::Struct(fields) => {
            DataType::Struct(fields.iter().map(|field| inside(field)).collect())
        }
        DataType::List(element) => DataType::List(inside(element).into()),
        DataType::Map(entries, sorted) => DataType::Map(inside(entries).into(), *sorted),
        of_values => {
            let at = *leaf;
            *leaf += 1;
            match of_values {
                DataType::Utf8 | DataType::LargeUtf8 => DataType::Utf8View,
                DataType::Binary | DataType::LargeBinary => DataType::BinaryView,
                DataType::Timestamp(TimeUnit::Nanosecond, None) if is_of_96_bits(at) => {
                    DataType::Timestamp(TimeUnit::Microsecond, None)
                }
                other => other.clone(),
            }
        }
    };
    field.clone().with_data_type(data_type)
}

impl Kind {
    fn of(data_type: &DataType) -> Kind {
        use DataType::*;
        match data_type {
            Null => Kind::Null,
            Boolean | Int8 | Int16 | Int32 | Int64 | UInt8 | UInt16 | UInt32 | UInt64 | Float16
            | Float32 | Float64 | Date32 | Time32(_) | Time64(_) | Timestamp(..)
            | Decimal128(..) | Utf8View | BinaryView | FixedSizeBinary(_) => {
                Kind::Taken(data_type.clone())
            }
            Decimal256(..) => Kind::Refused(
                data_type.clone(),
                "write it with at most 38 digits, as float64, or as text",
            ),
            Interval(_) => Kind::Refused(
                data_type.clone(),
                "write it as int64, in a unit of your choice",
            ),
            _ => Kind::Refused(data_type.clone(), "write it as numbers, text or bytes"),
        }
    }

    /// How much memory a value takes once it is decoded, in bytes. That of a text or of bytes is of a view, beside its page.
    pub(crate) fn width(&self) -> u64 {
        use DataType::*;
        let (Kind::Taken(data_type) | Kind::Refused(data_type, _)) = self else {
            return 0;
        };
        match data_type {
            Boolean | Int8 | UInt8 => 1,
            Int16 | UInt16 | Float16 => 2,
            Int32 | UInt32 | Float32 | Date32 | Time32(_) => 4,
            FixedSizeBinary(bytes) => u64::try_from(*bytes).unwrap_or(0),
            Decimal128(..) | Utf8View | BinaryView => 16,
            _ => 8,
        }
    }

    /// Whether values lie in their pages, and are only pointed to.
    pub(crate) fn is_viewed(&self) -> bool {
        matches!(self, Kind::Taken(DataType::Utf8View | DataType::BinaryView))
    }
}

/// As pyarrow names types.
impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use DataType::*;
        let unit = |unit: &TimeUnit| match unit {
            TimeUnit::Second => "s",
            TimeUnit::Millisecond => "ms",
            TimeUnit::Microsecond => "us",
            TimeUnit::Nanosecond => "ns",
        };
        let data_type = match self {
            Kind::Null => return f.write_str("null"),
            Kind::Taken(data_type) | Kind::Refused(data_type, _) => data_type,
        };
        match data_type {
            Boolean => f.write_str("bool"),
            Int8 => f.write_str("int8"),
            Int16 => f.write_str("int16"),
            Int32 => f.write_str("int32"),
            Int64 => f.write_str("int64"),
            UInt8 => f.write_str("uint8"),
            UInt16 => f.write_str("uint16"),
            UInt32 => f.write_str("uint32"),
            UInt64 => f.write_str("uint64"),
            Float16 => f.write_str("float16"),
            Float32 => f.write_str("float32"),
            Float64 => f.write_str("float64"),
            Date32 => f.write_str("date32"),
            Time32(of) => write!(f, "time32[{}]", unit(of)),
            Time64(of) => write!(f, "time64[{}]", unit(of)),
            Timestamp(of, None) => write!(f, "timestamp[{}]", unit(of)),
            Timestamp(of, Some(zone)) => write!(f, "timestamp[{}, {zone}]", unit(of)),
            Decimal128(precision, scale) | Decimal256(precision, scale) => {
                write!(f, "decimal({precision}, {scale})")
            }
            Utf8View => f.write_str("string"),
            BinaryView => f.write_str("binary"),
            FixedSizeBinary(bytes) => write!(f, "fixed_size_binary[{bytes}]"),
            Interval(IntervalUnit::YearMonth) => f.write_str("interval[months]"),
            Interval(_) => f.write_str("interval"),
            other => write!(f, "{other}"),
        }
    }
}
