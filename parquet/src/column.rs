//! Decoded columns: values one behind the other, and which lists and structures they lie in.

use std::ops::Range;

use arrow_array::cast::AsArray;
use arrow_array::types::{
    Date32Type, Decimal128Type, Float16Type, Float32Type, Float64Type, Int8Type, Int16Type,
    Int32Type, Int64Type, Time32MillisecondType, Time32SecondType, Time64MicrosecondType,
    Time64NanosecondType, TimestampMicrosecondType, TimestampMillisecondType,
    TimestampNanosecondType, TimestampSecondType, UInt8Type, UInt16Type, UInt32Type, UInt64Type,
};
use arrow_array::{Array, ArrayRef, BinaryViewArray, FixedSizeBinaryArray, StringViewArray};
use arrow_buffer::{BooleanBuffer, NullBuffer, OffsetBuffer, ScalarBuffer};
use arrow_schema::{DataType, TimeUnit};
use half::f16;

use crate::filter::Scalar;

/// A column of values of some rows, decoded.
pub struct Column {
    /// What lies around the values, from the outside.
    levels: Box<[Level]>,
    pub(crate) values: Values,
    nulls: Option<NullBuffer>,
}

enum Level {
    /// A structure that may be null.
    Structure(NullBuffer),
    List {
        offsets: OffsetBuffer<i32>,
        nulls: Option<NullBuffer>,
    },
}

/// Values of one type, without what is null.
pub(crate) enum Values {
    Null,
    /// The same in all rows: the name of a folder says it.
    Same(Scalar),
    Bool(BooleanBuffer),
    I8(ScalarBuffer<i8>),
    I16(ScalarBuffer<i16>),
    I32(ScalarBuffer<i32>),
    I64(ScalarBuffer<i64>),
    U8(ScalarBuffer<u8>),
    U16(ScalarBuffer<u16>),
    U32(ScalarBuffer<u32>),
    U64(ScalarBuffer<u64>),
    F16(ScalarBuffer<f16>),
    F32(ScalarBuffer<f32>),
    F64(ScalarBuffer<f64>),
    /// Days, or parts of one.
    Time32(ScalarBuffer<i32>),
    Time64(ScalarBuffer<i64>),
    Decimal(ScalarBuffer<i128>, i8),
    Text(StringViewArray),
    Bytes(BinaryViewArray),
    Fixed(FixedSizeBinaryArray),
}

impl Values {
    fn of(array: &ArrayRef) -> Option<Values> {
        use DataType as Type;
        macro_rules! numbers {
            ($variant:ident, $type:ty) => {
                Values::$variant(array.as_primitive_opt::<$type>()?.values().clone())
            };
        }
        Some(match array.data_type() {
            Type::Null => Values::Null,
            Type::Boolean => Values::Bool(array.as_boolean_opt()?.values().clone()),
            Type::Int8 => numbers!(I8, Int8Type),
            Type::Int16 => numbers!(I16, Int16Type),
            Type::Int32 => numbers!(I32, Int32Type),
            Type::Int64 => numbers!(I64, Int64Type),
            Type::UInt8 => numbers!(U8, UInt8Type),
            Type::UInt16 => numbers!(U16, UInt16Type),
            Type::UInt32 => numbers!(U32, UInt32Type),
            Type::UInt64 => numbers!(U64, UInt64Type),
            Type::Float16 => numbers!(F16, Float16Type),
            Type::Float32 => numbers!(F32, Float32Type),
            Type::Float64 => numbers!(F64, Float64Type),
            Type::Date32 => numbers!(Time32, Date32Type),
            Type::Time32(TimeUnit::Second) => numbers!(Time32, Time32SecondType),
            Type::Time32(_) => numbers!(Time32, Time32MillisecondType),
            Type::Time64(TimeUnit::Microsecond) => numbers!(Time64, Time64MicrosecondType),
            Type::Time64(_) => numbers!(Time64, Time64NanosecondType),
            Type::Timestamp(TimeUnit::Second, _) => numbers!(Time64, TimestampSecondType),
            Type::Timestamp(TimeUnit::Millisecond, _) => numbers!(Time64, TimestampMillisecondType),
            Type::Timestamp(TimeUnit::Microsecond, _) => numbers!(Time64, TimestampMicrosecondType),
            Type::Timestamp(TimeUnit::Nanosecond, _) => numbers!(Time64, TimestampNanosecondType),
            Type::Decimal128(_, scale) => {
                let values = array.as_primitive_opt::<Decimal128Type>()?.values();
                Values::Decimal(values.clone(), *scale)
            }
            Type::Utf8View => Values::Text(array.as_string_view_opt()?.clone()),
            Type::BinaryView => Values::Bytes(array.as_binary_view_opt()?.clone()),
            Type::FixedSizeBinary(_) => Values::Fixed(array.as_fixed_size_binary_opt()?.clone()),
            _ => return None,
        })
    }

    /// The bytes of a value that is text or bytes.
    pub(crate) fn bytes(&self, at: usize) -> Option<&[u8]> {
        match self {
            Values::Text(values) => Some(values.value(at).as_bytes()),
            Values::Bytes(values) => Some(values.value(at)),
            Values::Fixed(values) => Some(values.value(at)),
            Values::Same(Scalar::Text(text)) => Some(text.as_bytes()),
            _ => None,
        }
    }

    pub(crate) fn text(&self, at: usize) -> Option<&str> {
        match self {
            Values::Text(values) => Some(values.value(at)),
            Values::Same(Scalar::Text(text)) => Some(text),
            _ => None,
        }
    }
}

impl Column {
    /// A column that is the same in all rows.
    pub(crate) fn same(value: Scalar) -> Column {
        Column {
            levels: Box::default(),
            values: Values::Same(value),
            nulls: None,
        }
    }

    /// The columns of values of an array, one behind the other, as `kind::leaves` lists them. `None`: it has a type that is not taken.
    pub(crate) fn flatten(array: &ArrayRef, columns: &mut Vec<Column>) -> Option<()> {
        flatten(array, &mut Vec::new(), columns)
    }

    /// Its values, if each row has one.
    pub(crate) fn plain(&self) -> Option<&Values> {
        (self.levels.is_empty() && self.nulls.is_none()).then_some(&self.values)
    }

    /// The cell of a row.
    pub(crate) fn cell(&self, row: usize) -> Cell<'_> {
        Cell {
            column: self,
            level: 0,
            at: row,
        }
    }
}

fn flatten(array: &ArrayRef, around: &mut Vec<Level>, columns: &mut Vec<Column>) -> Option<()> {
    let depth = around.len();
    let nulls = || {
        array
            .nulls()
            .filter(|nulls| nulls.null_count() > 0)
            .cloned()
    };
    match array.data_type() {
        DataType::Struct(_) => {
            let structure = array.as_struct_opt()?;
            around.extend(nulls().map(Level::Structure));
            for field in structure.columns() {
                flatten(field, around, columns)?;
            }
        }
        DataType::List(_) => {
            let list = array.as_list_opt::<i32>()?;
            around.push(Level::List {
                offsets: list.offsets().clone(),
                nulls: nulls(),
            });
            flatten(list.values(), around, columns)?;
        }
        DataType::Map(..) => {
            let map = array.as_map_opt()?;
            around.push(Level::List {
                offsets: map.offsets().clone(),
                nulls: nulls(),
            });
            for field in map.entries().columns() {
                flatten(field, around, columns)?;
            }
        }
        _ => columns.push(Column {
            levels: around.iter().map(Level::share).collect(),
            values: Values::of(array)?,
            nulls: nulls(),
        }),
    }
    around.truncate(depth);
    Some(())
}

impl Level {
    fn share(&self) -> Level {
        match self {
            Level::Structure(nulls) => Level::Structure(nulls.clone()),
            Level::List { offsets, nulls } => Level::List {
                offsets: offsets.clone(),
                nulls: nulls.clone(),
            },
        }
    }
}

fn is_null(nulls: &Option<NullBuffer>, at: usize) -> bool {
    nulls.as_ref().is_some_and(|nulls| nulls.is_null(at))
}

/// A value of a column, or a list of them: what a row has there, or an element of such a list.
#[derive(Clone, Copy)]
pub struct Cell<'a> {
    column: &'a Column,
    /// What lies around it further in.
    level: usize,
    at: usize,
}

/// What a cell has.
pub(crate) enum Content<'a> {
    Null,
    /// The value at this place.
    Value(&'a Values, usize),
    List(List<'a>),
}

impl<'a> Cell<'a> {
    #[inline]
    pub(crate) fn content(self) -> Content<'a> {
        let Cell {
            column,
            mut level,
            at,
        } = self;
        while let Some(around) = column.levels.get(level) {
            level += 1;
            match around {
                Level::Structure(nulls) if nulls.is_null(at) => return Content::Null,
                Level::Structure(_) => {}
                Level::List { nulls, .. } if is_null(nulls, at) => return Content::Null,
                Level::List { offsets, .. } => {
                    let cells = offsets[at] as usize..offsets[at + 1] as usize;
                    return Content::List(List {
                        column,
                        level,
                        cells,
                    });
                }
            }
        }
        if is_null(&column.nulls, at) || column.values.are_null() {
            return Content::Null;
        }
        Content::Value(&column.values, at)
    }

    pub(crate) fn is_null(self) -> bool {
        matches!(self.content(), Content::Null)
    }
}

impl Values {
    #[inline]
    fn are_null(&self) -> bool {
        matches!(self, Values::Null | Values::Same(Scalar::Null))
    }
}

impl std::fmt::Debug for Column {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Column")
            .field("levels", &self.levels.len())
            .finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Cell<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cell")
            .field("at", &self.at)
            .finish_non_exhaustive()
    }
}

impl std::fmt::Debug for List<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("List")
            .field("cells", &self.cells)
            .finish_non_exhaustive()
    }
}

/// A list of cells.
#[derive(Clone)]
pub struct List<'a> {
    column: &'a Column,
    level: usize,
    cells: Range<usize>,
}

impl<'a> List<'a> {
    pub(crate) fn len(&self) -> usize {
        self.cells.len()
    }

    /// How many lists lie in each other here: 1, unless its elements are lists.
    pub(crate) fn depth(&self) -> usize {
        let inside = &self.column.levels[self.level..];
        let lists = inside
            .iter()
            .filter(|level| matches!(level, Level::List { .. }));
        1 + lists.count()
    }

    pub(crate) fn cells(&self) -> impl ExactSizeIterator<Item = Cell<'a>> + use<'a> {
        let (column, level) = (self.column, self.level);
        self.cells.clone().map(move |at| Cell { column, level, at })
    }

    /// Its values, which lie one behind the other, if they are no lists and none is null.
    pub(crate) fn values(&self) -> Option<(&'a Values, Range<usize>)> {
        let inside = &self.column.levels[self.level..];
        let has_nulls = match &self.column.nulls {
            Some(nulls) => {
                let part = nulls.slice(self.cells.start, self.cells.len());
                part.null_count() > 0
            }
            None => self.column.values.are_null(),
        };
        (inside.is_empty() && !has_nulls).then(|| (&self.column.values, self.cells.clone()))
    }
}
