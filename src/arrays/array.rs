//! Arrays of a file, and the tensors that are made of them.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

use super::file::{Aligned, FileBytes};
use super::inflate;
use crate::error::{Error, Result};
use crate::shape::{DType, Shape};
use crate::sync::Arc;
use crate::tensor::{Element, Tensor};

/// An array of a file: its type and shape are known, and its numbers become a [`Tensor`] when they are asked for.
///
/// # Examples
///
/// ```
/// use pinfeed::arrays;
/// use pinfeed::tensor::DType;
///
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("x.npy");
/// # let mut file = b"\x93NUMPY\x01\x00\x76\x00{'descr': '<f4', 'fortran_order': False, 'shape': (3,)}".to_vec();
/// # file.resize(128, b' ');
/// # file.extend([7f32, 8.0, 9.0].map(f32::to_le_bytes).as_flattened());
/// # std::fs::write(&path, file)?;
/// let x = arrays::npy(path)?; // numpy.save("x.npy", x)
/// assert_eq!((x.dtype(), &x.shape()[..], x.is_in_place()), (DType::F32, &[3][..], true));
/// assert_eq!(x.tensor::<f32>()?.as_slice(), [7.0, 8.0, 9.0]);
///
/// let error = x.tensor::<f64>().unwrap_err();
/// assert!(error.to_string().ends_with("x.npy: its elements are f32, and were asked for as f64"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Array {
    pub(super) file: FileBytes,
    /// Its name, in a file of several.
    pub(super) name: Option<Arc<str>>,
    pub(super) dtype: DType,
    pub(super) shape: Shape,
    pub(super) content: Content,
    /// The file has its numbers in the other byte order.
    pub(super) is_swapped: bool,
}

/// Where an array's numbers are.
#[derive(Debug, Clone)]
pub(super) enum Content {
    /// They are bytes of the file.
    Stored {
        elements: Range<usize>,
        /// Bytes around them, and their checksum.
        checked: Option<(Range<usize>, u32)>,
    },
    /// They are compressed.
    Deflated {
        compressed: Range<usize>,
        /// How many bytes they become, with those before the numbers.
        length: u64,
        before: usize,
        crc: u32,
    },
}

impl Array {
    /// The type of its elements. (A `bool` of Python's is a `u8`: 0 or 1.)
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The lengths of its dimensions, outermost first.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Whether its numbers are used where they lie in the file. Those that are compressed, in the other byte order, or at an address where
    /// their type cannot begin, are copied into memory by each call of [`tensor`](Array::tensor).
    ///
    /// (Python's `numpy.savez` puts arrays anywhere, and safetensors' writer puts them where they can be used.)
    pub fn is_in_place(&self) -> bool {
        self.place().is_some()
    }

    /// Makes a tensor of it: over the file's bytes where it [is in place](Array::is_in_place), and of a copy otherwise. An array of an
    /// `.npz` file is compared with its checksum, which reads all of it.
    ///
    /// # Errors
    ///
    /// [`Error::DataSet`] if it has elements of another type; if it cannot be decompressed, or its checksum is another; if a copy
    /// of it does not fit into memory; or if the file is [registered](FileBytes::register), and the array would have to be copied.
    pub fn tensor<T: Element>(&self) -> Result<Tensor<T>> {
        if self.dtype != T::DTYPE {
            return Err(self.refused(format!(
                "its elements are {}, and were asked for as {}",
                self.dtype,
                T::DTYPE
            )));
        }
        if let Content::Stored {
            checked: Some((all, crc)),
            ..
        } = &self.content
        {
            self.check(&self.file.as_slice()[all.clone()], *crc)?;
        }
        if let Some(place) = self.place() {
            return self.file.tensor(place, &self.shape);
        }
        if self.file.is_registered() {
            return Err(self.refused(
                "the file is page-locked, and this array has to be copied out of it, for it is compressed, in the other byte order, \
                 or not aligned: register its tensor, and not the file",
            ));
        }
        let (mut copy, before) = self.copied().map_err(|reason| self.refused(reason))?;
        if self.is_swapped {
            let elements = copy.added_mut()[before..].chunks_exact_mut(self.dtype.size_bytes());
            elements.for_each(<[u8]>::reverse);
        }
        Tensor::from_owner_at(copy, before, &self.shape)
    }

    /// Where its first element lies in the file, if it can be used there.
    fn place(&self) -> Option<usize> {
        let Content::Stored { elements, .. } = &self.content else {
            return None;
        };
        let address = self.file.as_slice().as_ptr().addr() + elements.start;
        let is_aligned = address.is_multiple_of(self.dtype.size_bytes()) || elements.is_empty();
        (is_aligned && !self.is_swapped).then_some(elements.start)
    }

    /// Its bytes in memory of their own, and how many others come before them.
    fn copied(&self) -> Result<(Aligned, usize), String> {
        let all = self.file.as_slice();
        match &self.content {
            Content::Stored { elements, .. } => {
                let room = Aligned::with_room(elements.len() as u64, 0);
                let mut copy = room.map_err(|no_room| format!("a copy of it takes {no_room}"))?;
                copy.bytes.extend_from_slice(&all[elements.clone()]);
                Ok((copy, 0))
            }
            Content::Deflated {
                compressed,
                length,
                before,
                crc,
            } => {
                let copy = inflate::deflated(&all[compressed.clone()], *length, *before)?;
                self.sum(copy.as_ref(), *crc)?;
                Ok((copy, *before))
            }
        }
    }

    fn check(&self, bytes: &[u8], crc: u32) -> Result<()> {
        self.sum(bytes, crc).map_err(|reason| self.refused(reason))
    }

    fn sum(&self, bytes: &[u8], crc: u32) -> Result<(), String> {
        let mut found = flate2::Crc::new();
        found.update(bytes);
        match found.sum() == crc {
            true => Ok(()),
            false => Err("it is damaged: its checksum (CRC-32) is another".to_owned()),
        }
    }

    fn refused(&self, reason: impl Into<String>) -> Error {
        let reason = reason.into();
        self.file.refused(match &self.name {
            Some(name) => format!("array `{name}`: {reason}"),
            None => reason,
        })
    }
}

impl fmt::Debug for Array {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Array")
            .field("file", &self.file.name())
            .field("name", &self.name)
            .field("dtype", &self.dtype)
            .field("shape", &self.shape)
            .field("is_in_place", &self.is_in_place())
            .finish()
    }
}

/// The arrays of an `.npz` or safetensors file, by their names.
///
/// # Examples
///
/// In [`npz`](super::npz()) and [`safetensors`](super::safetensors()).
///
/// ```
/// use pinfeed::arrays::Arrays;
/// use pinfeed::{Result, TensorDataset, Tensor};
///
/// /// A table of a file: `numpy.savez("table.npz", x=.., y=..)`.
/// fn table(arrays: &Arrays) -> Result<TensorDataset<(Tensor<f32>, Tensor<i64>)>> {
///     TensorDataset::new((arrays.tensor("x")?, arrays.tensor("y")?))
/// }
/// ```
#[derive(Clone)]
pub struct Arrays {
    file: FileBytes,
    /// An array of a type that tensors do not have is a reason why not.
    arrays: BTreeMap<Arc<str>, Result<Array, String>>,
}

impl Arrays {
    pub(super) fn new(file: FileBytes) -> Arrays {
        Arrays {
            file,
            arrays: BTreeMap::new(),
        }
    }

    /// Adds an array. Two of one name are an error.
    pub(super) fn add(&mut self, name: Arc<str>, array: Result<Array, String>) -> Result<()> {
        match self.arrays.insert(Arc::clone(&name), array) {
            None => Ok(()),
            Some(_) => Err(self.file.refused(format!("it has two arrays `{name}`"))),
        }
    }

    /// The names of all arrays, in alphabetical order.
    pub fn names(&self) -> impl ExactSizeIterator<Item = &str> {
        self.arrays.keys().map(|name| &**name)
    }

    /// The number of arrays.
    pub fn len(&self) -> usize {
        self.arrays.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.arrays.is_empty()
    }

    /// Returns an array by its name, for its type and shape.
    ///
    /// # Errors
    ///
    /// [`Error::DataSet`] if there is none of that name (the error lists those that there are), or if tensors have no such elements (text,
    /// Python's objects, complex numbers, `u64`; the error says what to write instead).
    pub fn array(&self, name: &str) -> Result<&Array> {
        match self.arrays.get(name) {
            Some(Ok(array)) => Ok(array),
            Some(Err(reason)) => Err(self.file.refused(format!("array `{name}`: {reason}"))),
            None => Err(self
                .file
                .refused(format!("it has no array `{name}`, but {}", self.listed()))),
        }
    }

    /// Makes a tensor of an array: [`Array::tensor`].
    ///
    /// # Errors
    ///
    /// Those of [`array`](Arrays::array) and [`Array::tensor`].
    pub fn tensor<T: Element>(&self, name: &str) -> Result<Tensor<T>> {
        self.array(name)?.tensor()
    }

    fn listed(&self) -> String {
        const SHOWN: usize = 10;
        let mut listed: Vec<String> = self
            .names()
            .take(SHOWN)
            .map(|name| format!("`{name}`"))
            .collect();
        match self.len() - listed.len() {
            _ if listed.is_empty() => listed.push("none".to_owned()),
            0 => {}
            more => listed.push(format!("{more} more")),
        }
        listed.join(", ")
    }
}

impl fmt::Debug for Arrays {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(&self.arrays).finish()
    }
}
