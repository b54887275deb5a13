//! Host tensors over memory that the program owns, such as a memory-mapped file.

use std::ptr::NonNull;

use super::storage::Owned;
use super::{Element, Shape, Tensor};
use crate::error::{Error, Result};
use crate::sync::Arc;

impl<T: Element> Tensor<T> {
    /// Makes a tensor over memory that something else owns, such as a memory-mapped file, without copying. It can be
    /// read but never written ([`as_mut_slice`](Tensor::as_mut_slice) returns `None`).
    ///
    /// The bytes are read as elements in native byte order. They must not change while the tensor or a view of it
    /// lives. `owner` is asked for them once, and dropped with the last view.
    ///
    /// For elements after a header, see [`from_owner_at`](Tensor::from_owner_at).
    ///
    /// # Errors
    ///
    /// [`Error::OwnedBytes`] if the number of bytes is not exactly that of the shape's elements, or they are not
    /// aligned for `T`.
    ///
    /// # Examples
    ///
    /// ```
    /// use pinfeed::Tensor;
    ///
    /// let file: Vec<u8> = vec![1, 0, 2, 0, 3, 0, 4, 0]; // or a `memmap2::Mmap`
    /// let tensor = Tensor::<u8>::from_owner(file, &[2, 4])?;
    /// assert_eq!(tensor.row(1).as_slice(), [3, 0, 4, 0]);
    /// # Ok::<(), pinfeed::Error>(())
    /// ```
    pub fn from_owner<O>(owner: O, shape: &[usize]) -> Result<Tensor<T>>
    where
        O: AsRef<[u8]> + Send + Sync + 'static,
    {
        Tensor::over(owner, None, shape)
    }

    /// Makes a tensor over a part of the memory that something else owns, as [`from_owner`](Tensor::from_owner) does
    /// over all of it. The elements begin at `byte_offset`, and bytes after them are ignored. Use it for the arrays in
    /// `.npy` and safetensors files, whose headers give the offset.
    ///
    /// Several tensors over one file share an owner that can be cloned, such as an `Arc<Mmap>`.
    ///
    /// # Errors
    ///
    /// [`Error::OwnedBytes`] if fewer bytes follow `byte_offset` than the shape's elements need, or they are not
    /// aligned for `T`. A mapped file begins at a page boundary, so only the offset matters for alignment: `.npy` files
    /// pad their header to 64 bytes, and safetensors files to 8.
    ///
    /// # Examples
    ///
    /// ```
    /// use pinfeed::Tensor;
    ///
    /// // An `.npy` file: a header that gives the type and the shape, then three numbers.
    /// let mut file = b"\x93NUMPY\x01\x00\x76\x00{'descr': '<i4', 'fortran_order': False, 'shape': (3,)}".to_vec();
    /// file.resize(128, b' ');
    /// file.extend([7i32, 8, 9].map(i32::to_le_bytes).as_flattened());
    /// # // (A mapped file begins at a page boundary; a `Vec` may begin anywhere.)
    /// # let file = { #[repr(align(64))] struct Page([u8; 140]);
    /// #     impl AsRef<[u8]> for Page { fn as_ref(&self) -> &[u8] { &self.0 } }
    /// #     Page(file.try_into().unwrap()) };
    ///
    /// let numbers = Tensor::<i32>::from_owner_at(file, 128, &[3])?;
    /// assert_eq!(numbers.as_slice(), [7, 8, 9]);
    /// # Ok::<(), pinfeed::Error>(())
    /// ```
    pub fn from_owner_at<O>(owner: O, byte_offset: usize, shape: &[usize]) -> Result<Tensor<T>>
    where
        O: AsRef<[u8]> + Send + Sync + 'static,
    {
        Tensor::over(owner, Some(byte_offset), shape)
    }

    /// Takes all of the owner's bytes, or as many as it needs from the offset on.
    fn over<O>(owner: O, byte_offset: Option<usize>, shape: &[usize]) -> Result<Tensor<T>>
    where
        O: AsRef<[u8]> + Send + Sync + 'static,
    {
        let storage = Arc::new(Owned(owner));
        // Asked only once the owner is in place: some owners hold their bytes inline.
        let all = storage.0.as_ref();
        match place_of(all, byte_offset, shape)? {
            // SAFETY: the elements lie there, aligned and within the owner's bytes, which `storage` keeps in place and
            // never lets be written (*memory of another owner is never written*).
            Some(pointer) => Ok(unsafe { Tensor::from_raw(pointer, shape.into(), storage) }),
            None => Ok(Tensor::zeros(shape)), // no elements: any address will do, and an empty Vec's is 1
        }
    }
}

#[cfg(feature = "arrays")]
impl Tensor<u8> {
    /// Shares some of the bytes as elements of another type: those from `byte_offset` on. The memory is as the bytes' own: page-locked, if
    /// that is.
    ///
    /// # Errors
    ///
    /// As [`Tensor::from_owner_at`].
    pub(crate) fn view_as<T: Element>(
        &self,
        byte_offset: usize,
        shape: &[usize],
    ) -> Result<Tensor<T>> {
        let Some(pointer) = place_of(self.as_slice(), Some(byte_offset), shape)? else {
            return Ok(Tensor::zeros(shape));
        };
        let storage = Arc::clone(self.storage());
        // SAFETY: the elements lie there, aligned and within the bytes, which this tensor's storage keeps; it is shared from now on, as by
        // `view`, so nothing writes it while both exist (*one owner per slab*).
        Ok(unsafe { Tensor::from_raw(pointer, shape.into(), storage) })
    }
}

/// Where the elements of a shape lie: in all of the bytes, or in as many as it needs from the offset on. `None` if there are no elements.
fn place_of<T: Element>(
    all: &[u8],
    byte_offset: Option<usize>,
    shape: &[usize],
) -> Result<Option<NonNull<T>>> {
    let refused = |reason: String| Error::OwnedBytes {
        dtype: T::DTYPE,
        shape: shape.into(),
        reason,
    };
    let elements = Shape::elements(shape);
    let bytes = elements.and_then(|elements| elements.checked_mul(size_of::<T>()));
    let Some(bytes) = bytes else {
        return Err(refused("it is larger than memory can be".to_owned()));
    };
    let found = match byte_offset {
        None => Some(all).filter(|all| all.len() == bytes),
        Some(offset) => all.get(offset..).and_then(|rest| rest.get(..bytes)),
    };
    let Some(found) = found else {
        let len = all.len();
        return Err(refused(match byte_offset {
            None => format!(
                "it takes {bytes} bytes, and there are {len} (from_owner_at takes some of them)"
            ),
            Some(offset) => {
                format!("it takes {bytes} bytes from byte {offset} on, and there are {len} in all")
            }
        }));
    };
    if bytes == 0 {
        return Ok(None);
    }
    let pointer = found.as_ptr().cast::<T>();
    let past = pointer.addr() % align_of::<T>();
    let (0, Some(pointer)) = (past, NonNull::new(pointer.cast_mut())) else {
        let alignment = align_of::<T>();
        return Err(refused(format!(
            "it begins at an address {past} past a multiple of {alignment}, and must begin at one: have it begin \
                 elsewhere, or copy it into a Vec"
        )));
    };
    Ok(Some(pointer))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes aligned as an `i64`.
    #[repr(align(8))]
    struct Bytes([u8; 40]);

    impl AsRef<[u8]> for Bytes {
        fn as_ref(&self) -> &[u8] {
            &self.0
        }
    }

    #[test]
    fn bytes_behind_a_header_are_elements_where_they_are_aligned() {
        let at = |offset, shape: &[usize]| {
            let mut bytes = [0; 40];
            bytes[8] = 7;
            let tensor = Tensor::<i64>::from_owner_at(Bytes(bytes), offset, shape);
            tensor.map_err(|error| error.to_string())
        };
        assert_eq!(at(8, &[4]).unwrap().as_slice(), [7, 0, 0, 0]);
        assert_eq!(at(0, &[2, 1]).unwrap().as_slice(), [0, 7]);
        assert!(at(40, &[0]).unwrap().is_empty());
        assert!(at(3, &[0, 4]).unwrap().is_empty()); // no elements: no alignment needed
        let none = Tensor::<i64>::from_owner(Vec::new(), &[0, 4]).unwrap();
        assert_eq!(
            (none.shape()[..].to_vec(), none.as_slice()),
            (vec![0, 4], &[][..])
        );
        for (offset, shape, reason) in [
            (9, &[2][..], "at an address 1 past a multiple of 8"),
            (16, &[4], "takes 32 bytes from byte 16 on, and there are 40"),
            (usize::MAX, &[0], "takes 0 bytes from byte"),
            (8, &[usize::MAX], "larger than memory can be"),
        ] {
            let error = at(offset, shape).unwrap_err();
            assert!(error.contains(reason) && error.contains("i64"), "{error}");
        }
        let whole = Tensor::<i64>::from_owner(Bytes([0; 40]), &[4]).unwrap_err();
        assert!(
            whole
                .to_string()
                .contains("takes 32 bytes, and there are 40")
        );
    }
}
