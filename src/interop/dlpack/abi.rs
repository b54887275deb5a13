//! The structs of DLPack 1.x, as its header `dlpack.h` has them.

use std::ffi::c_void;
use std::fmt;

use crate::tensor::DType;

/// Which memory a tensor is in.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DLDevice {
    /// The kind, by DLPack's number: 1 is host memory, 2 CUDA device memory.
    pub device_type: i32,
    /// Which device of that kind, counted from 0.
    pub device_id: i32,
}

impl DLDevice {
    /// Host memory (`kDLCPU`).
    pub const CPU: DLDevice = DLDevice {
        device_type: 1,
        device_id: 0,
    };
    /// Host memory that CUDA page-locked (`kDLCUDAHost`).
    pub const CUDA_HOST: DLDevice = DLDevice {
        device_type: 3,
        device_id: 0,
    };

    /// Memory of the CUDA device with this number (`kDLCUDA`).
    pub const fn cuda(ordinal: i32) -> DLDevice {
        DLDevice {
            device_type: 2,
            device_id: ordinal,
        }
    }
}

impl fmt::Display for DLDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            DLDevice::CPU => f.write_str("host memory"),
            DLDevice {
                device_type: 2,
                device_id,
            } => write!(f, "cuda:{device_id}"),
            DLDevice { device_type: 3, .. } => f.write_str("host memory that CUDA page-locked"),
            DLDevice {
                device_type: 13,
                device_id,
            } => write!(f, "managed memory of cuda:{device_id}"),
            DLDevice {
                device_type,
                device_id,
            } => write!(f, "DLPack device ({device_type}, {device_id})"),
        }
    }
}

/// An element type.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DLDataType {
    /// The kind of number, by DLPack's number: 0 signed, 1 unsigned, 2 float, 4 bfloat, 6 bool.
    pub code: u8,
    /// The size of one number in bits.
    pub bits: u8,
    /// How many numbers an element has: 1, but in vector types.
    pub lanes: u16,
}

const fn data_type(code: u8, bits: u8) -> DLDataType {
    DLDataType {
        code,
        bits,
        lanes: 1,
    }
}

impl DLDataType {
    /// Truth values of one byte, which tensors of this library hold as `u8`.
    pub const BOOL: DLDataType = data_type(6, 8);
    /// Unsigned integers of 64 bits, which are no element type of this library.
    pub const U64: DLDataType = data_type(1, 64);

    /// The size of an element in bytes; `None` if it is no whole number of bytes.
    pub const fn size_bytes(self) -> Option<usize> {
        let bits = self.bits as usize * self.lanes as usize;
        match bits % 8 {
            0 => Some(bits / 8),
            _ => None,
        }
    }
}

impl From<DType> for DLDataType {
    fn from(dtype: DType) -> DLDataType {
        match dtype {
            DType::U8 => data_type(1, 8),
            DType::U16 => data_type(1, 16),
            DType::U32 => data_type(1, 32),
            DType::I8 => data_type(0, 8),
            DType::I16 => data_type(0, 16),
            DType::I32 => data_type(0, 32),
            DType::I64 => data_type(0, 64),
            DType::F16 => data_type(2, 16),
            DType::F32 => data_type(2, 32),
            DType::F64 => data_type(2, 64),
            DType::BF16 => data_type(4, 16),
        }
    }
}

impl fmt::Display for DLDataType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let DLDataType { code, bits, lanes } = *self;
        match code {
            0 => write!(f, "i{bits}"),
            1 => write!(f, "u{bits}"),
            2 => write!(f, "f{bits}"),
            4 => write!(f, "bf{bits}"),
            5 => write!(f, "complex{bits}"),
            6 => f.write_str("bool"),
            _ => write!(f, "DLPack type {code} of {bits} bits"),
        }?;
        match lanes {
            1 => Ok(()),
            lanes => write!(f, " x {lanes}"),
        }
    }
}

/// A tensor: where its elements are. It owns nothing.
#[repr(C)]
#[derive(Debug)]
pub struct DLTensor {
    /// Where its memory is. (On some devices a handle, and not an address.)
    pub data: *mut c_void,
    /// Which memory that is.
    pub device: DLDevice,
    /// The number of dimensions.
    pub ndim: i32,
    /// The element type.
    pub dtype: DLDataType,
    /// The lengths of the dimensions: `ndim` of them.
    pub shape: *mut i64,
    /// The distances between neighbours, in elements: `ndim` of them, or null, which means dense and row-major.
    pub strides: *mut i64,
    /// Where the first element is, from `data` on.
    pub byte_offset: u64,
}

/// A tensor and its owner, as before DLPack 1.0. In Python, a capsule named `dltensor` holds it.
#[repr(C)]
#[derive(Debug)]
pub struct DLManagedTensor {
    /// The tensor.
    pub dl_tensor: DLTensor,
    /// The owner, which its deleter knows.
    pub manager_ctx: *mut c_void,
    /// What whoever took the tensor calls once, with this struct.
    pub deleter: Option<unsafe extern "C" fn(*mut DLManagedTensor)>,
}

/// The version of the struct.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DLPackVersion {
    /// Another one means another struct.
    pub major: u32,
    /// A larger one means more types, devices and flags.
    pub minor: u32,
}

impl DLPackVersion {
    /// What this library writes.
    pub const OURS: DLPackVersion = DLPackVersion { major: 1, minor: 0 };
}

/// A tensor and its owner, as of DLPack 1.0. In Python, a capsule named `dltensor_versioned` holds it.
#[repr(C)]
#[derive(Debug)]
pub struct DLManagedTensorVersioned {
    /// The version. If its major number is not 1, `deleter` is all that may be used.
    pub version: DLPackVersion,
    /// The owner, which its deleter knows.
    pub manager_ctx: *mut c_void,
    /// What whoever took the tensor calls once, with this struct.
    pub deleter: Option<unsafe extern "C" fn(*mut DLManagedTensorVersioned)>,
    /// [`READ_ONLY`](DLManagedTensorVersioned::READ_ONLY) and others.
    pub flags: u64,
    /// The tensor.
    pub dl_tensor: DLTensor,
}

impl DLManagedTensorVersioned {
    /// The elements must not be written.
    pub const READ_ONLY: u64 = 1;
    /// The elements were copied for this export: nothing else holds them.
    pub const IS_COPIED: u64 = 2;
}

/// The offsets of the C header, on machines with pointers of 64 bits.
#[cfg(target_pointer_width = "64")]
const _: () = {
    use std::mem::offset_of;

    assert!(size_of::<DLDevice>() == 8 && size_of::<DLDataType>() == 4);
    assert!(size_of::<DLTensor>() == 48);
    assert!(offset_of!(DLTensor, device) == 8);
    assert!(offset_of!(DLTensor, ndim) == 16);
    assert!(offset_of!(DLTensor, dtype) == 20);
    assert!(offset_of!(DLTensor, shape) == 24);
    assert!(offset_of!(DLTensor, strides) == 32);
    assert!(offset_of!(DLTensor, byte_offset) == 40);
    assert!(size_of::<DLManagedTensor>() == 64);
    assert!(offset_of!(DLManagedTensor, manager_ctx) == 48);
    assert!(offset_of!(DLManagedTensor, deleter) == 56);
    assert!(size_of::<DLManagedTensorVersioned>() == 80);
    assert!(offset_of!(DLManagedTensorVersioned, manager_ctx) == 8);
    assert!(offset_of!(DLManagedTensorVersioned, deleter) == 16);
    assert!(offset_of!(DLManagedTensorVersioned, flags) == 24);
    assert!(offset_of!(DLManagedTensorVersioned, dl_tensor) == 32);
};
