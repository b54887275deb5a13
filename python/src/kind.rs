//! The element types that Python's arrays have, and how the library's tensors hold them.

use std::ffi::CStr;
use std::sync::Arc;

use half::{bf16, f16};
use pinfeed::device::Adrift;
use pinfeed::error::ShapeError;
use pinfeed::sample::Field;
use pinfeed::tensor::Element;
use pinfeed::{DeviceTensor, Tensor};

/// Calls a macro with each element type of the library: a variant's name, and the type.
macro_rules! elements {
    ($macro:ident) => {
        $macro! {
            U8 u8, I8 i8, I16 i16, U16 u16, I32 i32, U32 u32, I64 i64, F16 f16, BF16 bf16, F32 f32, F64 f64
        }
    };
}

/// Runs the same code for whichever element type it is.
macro_rules! each {
    ($any:expr, $enum:ident, $inner:ident => $body:expr) => {
        match $any {
            $enum::U8($inner) => $body,
            $enum::I8($inner) => $body,
            $enum::I16($inner) => $body,
            $enum::U16($inner) => $body,
            $enum::I32($inner) => $body,
            $enum::U32($inner) => $body,
            $enum::I64($inner) => $body,
            $enum::F16($inner) => $body,
            $enum::BF16($inner) => $body,
            $enum::F32($inner) => $body,
            $enum::F64($inner) => $body,
        }
    };
}
pub(crate) use each;

/// A type of elements, of a number of which it is not known which it has.
pub(crate) trait OfScalar: Element {
    /// The number, if it is of this type.
    fn of(number: Scalar) -> Option<Self>;
}

macro_rules! families {
    ($($variant:ident $type:ty),*) => {
        /// A host tensor of any element type.
        #[derive(Debug)]
        pub(crate) enum HostTensor { $($variant(Tensor<$type>)),* }

        /// A number of any element type.
        #[derive(Debug, Clone, Copy)]
        pub(crate) enum Scalar { $($variant($type)),* }

        /// A device tensor of any element type.
        #[derive(Debug)]
        pub(crate) enum AnyDeviceTensor { $($variant(DeviceTensor<$type>)),* }

        /// Memory of a device that left, of any element type.
        #[derive(Debug, Clone)]
        pub(crate) enum AnyAdrift { $($variant(Arc<Adrift<$type>>)),* }

        /// A field of a batch, of any element type.
        #[derive(Debug)]
        pub(crate) enum AnyField { $($variant(Field<$type>)),* }

        $(
            impl OfScalar for $type {
                fn of(number: Scalar) -> Option<$type> {
                    match number {
                        Scalar::$variant(number) => Some(number),
                        _ => None,
                    }
                }
            }

            impl From<$type> for Scalar {
                fn from(number: $type) -> Scalar {
                    Scalar::$variant(number)
                }
            }

            impl From<Tensor<$type>> for HostTensor {
                fn from(tensor: Tensor<$type>) -> HostTensor {
                    HostTensor::$variant(tensor)
                }
            }

            impl From<DeviceTensor<$type>> for AnyDeviceTensor {
                fn from(tensor: DeviceTensor<$type>) -> AnyDeviceTensor {
                    AnyDeviceTensor::$variant(tensor)
                }
            }

            impl From<Arc<Adrift<$type>>> for AnyAdrift {
                fn from(adrift: Arc<Adrift<$type>>) -> AnyAdrift {
                    AnyAdrift::$variant(adrift)
                }
            }

            impl From<Field<$type>> for AnyField {
                fn from(field: Field<$type>) -> AnyField {
                    AnyField::$variant(field)
                }
            }
        )*
    };
}
elements!(families);

/// An element type as Python's libraries have it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Bool,
    U8,
    I8,
    I16,
    U16,
    I32,
    U32,
    I64,
    /// The library has none: its tensors hold the bits as `i64`.
    U64,
    F16,
    BF16,
    F32,
    F64,
}

impl Kind {
    /// The type that a buffer's format names (PEP 3118), in this machine's byte order. `None`: another order, or no number.
    pub(crate) fn of_format(format: &CStr, item_bytes: usize) -> Option<Kind> {
        let format = format.to_bytes();
        let code = match format {
            [code] | [b'@' | b'=', code] => *code,
            [b'<', code] if cfg!(target_endian = "little") => *code,
            [b'>', code] if cfg!(target_endian = "big") => *code,
            [b'>' | b'<' | b'!' | b'|', code] if item_bytes == 1 => *code,
            _ => return None,
        };
        Some(match (code, item_bytes) {
            (b'?', 1) => Kind::Bool,
            (b'B' | b'c', 1) => Kind::U8,
            (b'b', 1) => Kind::I8,
            (b'h', 2) => Kind::I16,
            (b'H', 2) => Kind::U16,
            (b'i' | b'l', 4) => Kind::I32,
            (b'I' | b'L', 4) => Kind::U32,
            (b'l' | b'q' | b'n', 8) => Kind::I64,
            (b'L' | b'Q' | b'N', 8) => Kind::U64,
            (b'e', 2) => Kind::F16,
            (b'f', 4) => Kind::F32,
            (b'd', 8) => Kind::F64,
            _ => return None,
        })
    }

    /// The format of a buffer of them; that of `u16` where Python knows none.
    pub(crate) fn format(self) -> &'static CStr {
        match self {
            Kind::Bool => c"?",
            Kind::U8 => c"B",
            Kind::I8 => c"b",
            Kind::I16 => c"h",
            Kind::U16 | Kind::BF16 => c"H",
            Kind::I32 => c"i",
            Kind::U32 => c"I",
            Kind::I64 => c"q",
            Kind::U64 => c"Q",
            Kind::F16 => c"e",
            Kind::F32 => c"f",
            Kind::F64 => c"d",
        }
    }

    /// Its name in PyTorch and NumPy.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Kind::Bool => "bool",
            Kind::U8 => "uint8",
            Kind::I8 => "int8",
            Kind::I16 => "int16",
            Kind::U16 => "uint16",
            Kind::I32 => "int32",
            Kind::U32 => "uint32",
            Kind::I64 => "int64",
            Kind::U64 => "uint64",
            Kind::F16 => "float16",
            Kind::BF16 => "bfloat16",
            Kind::F32 => "float32",
            Kind::F64 => "float64",
        }
    }

    pub(crate) const ALL: [Kind; 13] = [
        Kind::Bool,
        Kind::U8,
        Kind::I8,
        Kind::I16,
        Kind::U16,
        Kind::I32,
        Kind::U32,
        Kind::I64,
        Kind::U64,
        Kind::F16,
        Kind::BF16,
        Kind::F32,
        Kind::F64,
    ];

    /// The type with that name.
    pub(crate) fn named(name: &str) -> Option<Kind> {
        Kind::ALL.into_iter().find(|kind| kind.name() == name)
    }

    pub(crate) fn item_bytes(self) -> usize {
        match self {
            Kind::Bool | Kind::U8 | Kind::I8 => 1,
            Kind::I16 | Kind::U16 | Kind::F16 | Kind::BF16 => 2,
            Kind::I32 | Kind::U32 | Kind::F32 => 4,
            Kind::I64 | Kind::U64 | Kind::F64 => 8,
        }
    }
}

impl Scalar {
    /// A tensor without dimensions.
    pub(crate) fn tensor(self) -> Result<HostTensor, ShapeError> {
        Ok(each!(self, Scalar, number => Tensor::from_vec(vec![number], &[])?.into()))
    }
}

impl HostTensor {
    /// The type of its elements, if Python sees them as they are.
    pub(crate) fn kind(&self) -> Kind {
        match self {
            HostTensor::U8(_) => Kind::U8,
            HostTensor::I8(_) => Kind::I8,
            HostTensor::I16(_) => Kind::I16,
            HostTensor::U16(_) => Kind::U16,
            HostTensor::I32(_) => Kind::I32,
            HostTensor::U32(_) => Kind::U32,
            HostTensor::I64(_) => Kind::I64,
            HostTensor::F16(_) => Kind::F16,
            HostTensor::BF16(_) => Kind::BF16,
            HostTensor::F32(_) => Kind::F32,
            HostTensor::F64(_) => Kind::F64,
        }
    }

    pub(crate) fn shape(&self) -> &[usize] {
        each!(self, HostTensor, tensor => tensor.shape())
    }

    /// Row `index` of the first dimension.
    pub(crate) fn row(&self, index: usize) -> HostTensor {
        each!(self, HostTensor, tensor => tensor.row(index).into())
    }

    pub(crate) fn size_bytes(&self) -> usize {
        each!(self, HostTensor, tensor => tensor.size_bytes())
    }

    /// Where its elements lie.
    pub(crate) fn address(&self) -> *const u8 {
        each!(self, HostTensor, tensor => tensor.as_slice().as_ptr().cast())
    }

    /// Where its elements lie, for writing: the tensor's own memory, or that of a copy in its place, where others share it.
    pub(crate) fn make_own(&mut self) -> *mut u8 {
        each!(self, HostTensor, tensor => make_own(tensor))
    }
}

fn make_own<T: Element>(tensor: &mut Tensor<T>) -> *mut u8 {
    // (A copy also of what is page-locked: an array over it would pose as pageable, and be written while a copy from it is in flight.)
    if tensor.is_pinned() || tensor.as_mut_slice().is_none() {
        let shape = tensor.shape().to_vec();
        match Tensor::from_vec(tensor.to_vec(), &shape) {
            Ok(copy) => *tensor = copy,
            Err(_) => return std::ptr::null_mut(),
        }
    }
    tensor
        .as_mut_slice()
        .map_or(std::ptr::null_mut(), |elements| {
            elements.as_mut_ptr().cast()
        })
}
