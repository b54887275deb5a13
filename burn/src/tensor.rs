//! Tensors: [`IntoBurn`], and back by [`from_data`].

use burn::tensor::kind::Basic;
use burn::tensor::{DType, Device, Float, Int, TensorData, bf16, f16};
use burn_std::Reader;
use pinfeed::Tensor;
use pinfeed::tensor::Element;

use crate::error::Error;
use crate::memory;

mod sealed {
    pub trait Sealed {}
}

/// An element type that burn has, too: all of pinfeed's. It is sealed.
pub trait BurnElement: Element + sealed::Sealed {
    /// What a burn tensor of it is: `Float`, or `Int`.
    type Kind: Basic;
    /// Its name in burn.
    const BURN: DType;
}

macro_rules! elements {
    ($($type:ty, $kind:ty, $name:ident);* $(;)?) => {$(
        impl sealed::Sealed for $type {}

        impl BurnElement for $type {
            type Kind = $kind;
            const BURN: DType = DType::$name;
        }
    )*};
}

elements! {
    u8, Int, U8;
    i8, Int, I8;
    i16, Int, I16;
    u16, Int, U16;
    i32, Int, I32;
    u32, Int, U32;
    i64, Int, I64;
    f16, Float, F16;
    bf16, Float, BF16;
    f32, Float, F32;
    f64, Float, F64;
}

/// Makes tensors of burn's of pinfeed's, without a copy on the host.
///
/// The element type stays: bytes are an `Int` tensor of `U8`, which takes a quarter of the copy that `f32` would take, and which the device
/// converts by `float()`. Masks, which are bytes of 0 and 1, become booleans by `equal_elem(1)`.
///
/// Burn computes with integers of one type only, and its own are `I32` on most devices: it panics where a label of `i64` meets a result of
/// `argmax`. So let labels be `i32`, or convert them on the device: `classes.cast(IntDType::I32)`.
///
/// # Synchronization
///
/// On burn's CPU backends the tensor *is* the batch's memory, and holds it until burn drops it. (Flex writes into it, where an operation
/// works in place; ndarray copies then.) On a GPU, burn enqueues a copy from the page-locked memory, and holds it until the copy is known
/// to be done: [how long](crate#how-long-burn-holds-a-batch).
///
/// # Examples
///
/// ```
/// use burn::tensor::Device;
/// use pinfeed::{DataLoader, from_fn};
/// use pinfeed_burn::IntoBurn;
///
/// let device = Device::flex();
/// let samples = from_fn(6, |index, _| Ok(([index as f32; 3], index as i64)));
/// let loader = DataLoader::builder(samples).batch_size(2).pin_memory(&pinfeed::Device::cpu()).build()?;
/// for batch in &loader {
///     let (x, y) = batch?;
///     let x = x.into_burn::<2>(&device)?; // Tensor<2>
///     let y = y.into_burn::<1>(&device)?; // Tensor<1, Int>
///     assert_eq!((x.dims(), y.dims()), ([2, 3], [2]));
/// }
///
/// let image = pinfeed::Tensor::<u8>::zeros(&[3, 32, 32]);
/// let error = image.into_burn::<4>(&device).unwrap_err();
/// assert!(error.to_string().contains("has 3 dimensions, and not 4"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait IntoBurn {
    /// What a burn tensor of it is: `Float`, or `Int`.
    type Kind: Basic;

    /// Makes burn's data of it, which know no device yet.
    fn into_data(self) -> TensorData;

    /// Makes a burn tensor of `D` dimensions on a device.
    ///
    /// # Errors
    ///
    /// [`Error::Rank`] if the tensor has not `D` dimensions, [`Error::Unsupported`] if the device has no tensors of the element type.
    ///
    /// # Panics
    ///
    /// Where burn does: it does not return that a device has no memory left.
    fn into_burn<const D: usize>(
        self,
        device: &Device,
    ) -> Result<burn::tensor::Tensor<D, Self::Kind>, Error>;
}

impl<T: BurnElement> IntoBurn for Tensor<T> {
    type Kind = T::Kind;

    fn into_data(self) -> TensorData {
        let shape = self.shape().to_vec();
        TensorData::from_bytes(memory::bytes(self), shape, T::BURN) // (the bytes are those of the shape)
    }

    fn into_burn<const D: usize>(
        self,
        device: &Device,
    ) -> Result<burn::tensor::Tensor<D, T::Kind>, Error> {
        if self.shape().len() != D {
            return Err(Error::Rank {
                shape: self.shape().clone(),
                wanted: D,
            });
        }
        if !device.supports_dtype(T::BURN) {
            return Err(Error::Unsupported {
                dtype: T::BURN,
                device: format!("{device:?}"),
            });
        }
        // (Without the type, burn converts to what the device calls its default.)
        Ok(burn::tensor::Tensor::from_data(
            self.into_data(),
            (device, T::BURN),
        ))
    }
}

/// Bytes of burn's, as the owner of a tensor of pinfeed's.
struct Owner(burn::tensor::Bytes);

impl AsRef<[u8]> for Owner {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

/// Makes a tensor of pinfeed's of burn's data, such as those in an item of burn's data sets, or a result (`tensor.into_data()`).
///
/// It is not copied, and is read-only, because burn's memory is never written by others. Booleans are taken for bytes, if `T` is `u8`.
///
/// # Synchronization
///
/// Data that lie on a device are copied to the host, and the call waits for that.
///
/// # Errors
///
/// [`Error::ElementType`] if the data are of another type, [`Error::Read`] if they cannot be read on the host.
///
/// # Examples
///
/// ```
/// use burn::tensor::TensorData;
///
/// let tensor = pinfeed_burn::from_data::<f32>(TensorData::from([[1.0f32, 2.0], [3.0, 4.0]]))?;
/// assert_eq!((&tensor.shape()[..], tensor.as_slice()), (&[2, 2][..], &[1.0, 2.0, 3.0, 4.0][..]));
///
/// let error = pinfeed_burn::from_data::<i64>(TensorData::from([1.0f32])).unwrap_err();
/// assert_eq!(error.to_string(), "burn's data are F32, and not I64: convert them before, by `convert_dtype`");
/// # Ok::<(), pinfeed_burn::Error>(())
/// ```
pub fn from_data<T: BurnElement>(data: TensorData) -> Result<Tensor<T>, Error> {
    let (bytes, shape, dtype) = data.into_parts();
    let is_mask = matches!(dtype, DType::Bool(_)) && dtype.size() == 1 && T::BURN == DType::U8;
    if dtype != T::BURN && !is_mask {
        return Err(Error::ElementType {
            found: dtype,
            wanted: T::BURN,
        });
    }
    bytes
        .read(Reader::new())
        .map_err(|error| Error::Read(error.to_string()))?;
    Tensor::from_owner(Owner(bytes), shape.as_slice())
        .map_err(|error| Error::Read(error.to_string()))
}
