//! The host tensor.

use std::fmt;
use std::ops::Range;
use std::ptr::NonNull;

use super::storage::VecStorage;
use super::{DType, Element, Scattered, Shape, Storage, TableColumn};
use crate::error::ShapeError;
use crate::sync::Arc;

/// A tensor in host memory: dense, row-major, of any rank.
///
/// It owns its memory alone, or shares it with views ([`view`](Tensor::view), [`row`](Tensor::row), [`slice`](Tensor::slice)) and with
/// transfers in flight. It can always be read, and written only while nothing shares it ([`as_mut_slice`](Tensor::as_mut_slice)). There is
/// no `Clone`: [`view`](Tensor::view) shares, [`to_vec`](Tensor::to_vec) copies.
///
/// # Examples
///
/// ```
/// use pinfeed::Tensor;
///
/// let mut tensor = Tensor::from_vec(vec![1, 2, 3, 4, 5, 6], &[2, 3])?;
/// assert_eq!(tensor.row(1).as_slice(), [4, 5, 6]);
///
/// let view = tensor.view();
/// assert!(tensor.as_mut_slice().is_none()); // shared with the view
/// drop(view);
/// tensor.as_mut_slice().unwrap()[0] = 7;
/// # Ok::<(), pinfeed::Error>(())
/// ```
pub struct Tensor<T: Element> {
    pointer: NonNull<T>,
    shape: Shape,
    elements: usize,
    storage: Arc<dyn Storage>,
    /// The rows lie elsewhere; `pointer` is the table of their addresses, and only identifies this tensor's memory.
    scattered: bool,
}

// SAFETY: a tensor reads memory that lives as long as `storage`, and writes it only as the sole holder of `storage`
// (*one owner per slab*). So it can be shared and sent like an `Arc<Vec<T>>`, and `Element`s are `Send + Sync`.
unsafe impl<T: Element> Send for Tensor<T> {}
// SAFETY: as above; `&self` only allows reading.
unsafe impl<T: Element> Sync for Tensor<T> {}

impl<T: Element> Tensor<T> {
    /// Takes a vector as a tensor, without copying.
    ///
    /// # Errors
    ///
    /// [`ShapeError`] if the shape's number of elements is not the vector's length.
    pub fn from_vec(vec: Vec<T>, shape: &[usize]) -> Result<Tensor<T>, ShapeError> {
        if Shape::elements(shape) != Some(vec.len()) {
            return Err(ShapeError {
                elements: vec.len(),
                shape: shape.into(),
            });
        }
        let elements = vec.len();
        let (storage, pointer) = VecStorage::new(vec);
        Ok(Tensor {
            pointer,
            shape: shape.into(),
            elements,
            storage: Arc::new(storage),
            scattered: false,
        })
    }

    /// Copies a slice into a new tensor.
    ///
    /// # Errors
    ///
    /// [`ShapeError`] if the shape's number of elements is not the slice's length.
    pub fn from_slice(slice: &[T], shape: &[usize]) -> Result<Tensor<T>, ShapeError> {
        Tensor::from_vec(slice.to_vec(), shape)
    }

    /// Makes a tensor of zeros in pageable memory.
    ///
    /// # Panics
    ///
    /// If the shape's number of elements does not fit a `usize`, or memory runs out.
    pub fn zeros(shape: &[usize]) -> Tensor<T> {
        match Tensor::try_zeros(shape) {
            Some(zeros) => zeros,
            None => panic!(
                "Tensor::zeros: there is no memory for {:?}",
                Shape::from(shape)
            ),
        }
    }

    /// As [`zeros`](Tensor::zeros), but `None` if memory runs out.
    pub(crate) fn try_zeros(shape: &[usize]) -> Option<Tensor<T>> {
        let elements = Shape::elements(shape)?;
        let (storage, pointer) = VecStorage::<T>::zeroed(elements)?;
        crate::system::prefer_huge_pages(pointer.as_ptr().cast(), elements * size_of::<T>());
        Some(Tensor {
            pointer,
            shape: shape.into(),
            elements,
            storage: Arc::new(storage),
            scattered: false,
        })
    }

    /// Makes a tensor over memory that `storage` owns.
    ///
    /// # Safety
    ///
    /// `pointer` must be the start of as many initialized, aligned elements as the shape has. `storage` must keep them
    /// alive and in place, and nothing else may write them while an `Arc` of this `storage` exists.
    pub(crate) unsafe fn from_raw(
        pointer: NonNull<T>,
        shape: Shape,
        storage: Arc<dyn Storage>,
    ) -> Tensor<T> {
        let elements = shape.iter().product();
        Tensor {
            pointer,
            shape,
            elements,
            storage,
            scattered: false,
        }
    }

    /// Makes a tensor whose rows lie elsewhere.
    ///
    /// # Safety
    ///
    /// `storage` must have the shape's number of rows and elements, aligned for `T`. `table` must be its table.
    pub(super) unsafe fn from_rows(
        table: NonNull<*const u8>,
        shape: Shape,
        storage: Scattered,
    ) -> Tensor<T> {
        Tensor {
            pointer: table.cast(),
            elements: shape.iter().product(),
            shape,
            storage: Arc::new(storage),
            scattered: true,
        }
    }

    /// Makes a tensor of rows that lie in a table on a device, each of this shape. `numbers` says which.
    ///
    /// # Safety
    ///
    /// The column must be of `T`, and have rows of this shape and all these numbers. Nothing may write the numbers any more.
    pub(crate) unsafe fn from_table(
        numbers: &Tensor<i64>,
        row_shape: &[usize],
        column: Arc<dyn TableColumn>,
    ) -> Tensor<T> {
        let shape = Shape::batched(numbers.len(), row_shape);
        let elements = Shape::elements(&shape);
        let bytes = elements.and_then(|elements| elements.checked_mul(size_of::<T>()));
        let (Some(elements), Some(_)) = (elements, bytes) else {
            panic!("a batch of {shape:?} has more bytes than there are addresses");
        };
        let row_bytes = row_shape.iter().product::<usize>() * size_of::<T>();
        let slab = Arc::clone(&numbers.storage);
        // SAFETY: the caller's contract; the tensor's storage keeps its elements.
        let storage =
            unsafe { Scattered::of_table(slab, numbers.pointer, numbers.len(), row_bytes, column) };
        Tensor {
            pointer: numbers.pointer.cast(),
            elements,
            shape,
            storage: Arc::new(storage),
            scattered: true,
        }
    }

    /// The lengths of the dimensions, outermost first.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// The number of elements.
    pub fn len(&self) -> usize {
        self.elements
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.elements == 0
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        T::DTYPE
    }

    /// The size of all elements in bytes.
    pub fn size_bytes(&self) -> usize {
        self.elements * size_of::<T>()
    }

    /// Whether the elements lie in page-locked memory, from which copies to a device are asynchronous.
    ///
    /// On the CPU device it means "from the ring": the system may not have locked those pages. Rows of a table on a device count as well,
    /// until they are read.
    pub fn is_pinned(&self) -> bool {
        let rows = self.storage.scattered();
        self.storage.is_pinned() && !rows.is_some_and(Scattered::is_gathered)
    }

    /// The elements, row-major.
    ///
    /// The rows of a batch may still lie elsewhere: in a table on a device ([`TensorDataset::to_device`](crate::TensorDataset::to_device))
    /// or, in an epoch that goes to a device, in registered memory or as encoded pictures. The first call then copies, gathers or decodes
    /// them, and blocks until that is done.
    ///
    /// # Panics
    ///
    /// If there is no memory for such rows, the device fails, or a picture cannot be decoded.
    pub fn as_slice(&self) -> &[T] {
        // SAFETY: `from_raw`'s contract: the elements exist, are initialized, and are not written while others hold
        // `storage`; `as_mut_slice` borrows `self` exclusively (*one owner per slab*).
        unsafe { std::slice::from_raw_parts(self.base().as_ptr(), self.elements) }
    }

    /// The elements for writing, row-major. `None` while a view or a transfer shares the memory, or if the memory has
    /// another owner ([`from_owner`](Tensor::from_owner)).
    pub fn as_mut_slice(&mut self) -> Option<&mut [T]> {
        if Arc::get_mut(&mut self.storage)?.is_read_only() {
            return None;
        }
        // SAFETY: this tensor is the only holder of its memory, and is itself borrowed exclusively: nothing reads or
        // writes the memory meanwhile (*one owner per slab*, *no access while in flight*).
        Some(unsafe { std::slice::from_raw_parts_mut(self.base().as_ptr(), self.elements) })
    }

    /// Shares the memory: returns another tensor over the same elements. Neither can be written while both exist.
    pub fn view(&self) -> Tensor<T> {
        Tensor {
            pointer: self.pointer,
            shape: self.shape.clone(),
            elements: self.elements,
            storage: Arc::clone(&self.storage),
            scattered: self.scattered,
        }
    }

    /// Shares one row: the elements at `index` of the first dimension, with the shape of the remaining dimensions.
    ///
    /// # Panics
    ///
    /// If the tensor is a scalar, or `index` is not below the first dimension's length.
    pub fn row(&self, index: usize) -> Tensor<T> {
        let Some((&rows, row)) = self.shape.split_first() else {
            panic!("a scalar has no rows");
        };
        assert!(index < rows, "row {index} of a tensor of {rows} rows");
        let shape = Shape::from(row);
        let elements: usize = shape.iter().product();
        Tensor {
            // SAFETY: `index < rows`, so the row lies inside the tensor's elements (*layouts are in bounds*).
            pointer: unsafe { self.base().add(index * elements) },
            shape,
            elements,
            storage: Arc::clone(&self.storage),
            scattered: false,
        }
    }

    /// Shares some rows: those of the range along the first dimension. Neither tensor can be written while both exist.
    ///
    /// # Panics
    ///
    /// If the tensor is a scalar, or the range is not within the first dimension.
    ///
    /// # Examples
    ///
    /// ```
    /// use pinfeed::Tensor;
    ///
    /// let tokens = Tensor::from(vec![5u16, 6, 7, 8, 9]); // or over a mapped file, by `from_owner`
    /// assert_eq!(tokens.slice(1..3).as_slice(), [6, 7]);
    /// assert_eq!(Tensor::<f32>::zeros(&[4, 2]).slice(2..4).shape()[..], [2, 2]);
    /// ```
    pub fn slice(&self, rows: Range<usize>) -> Tensor<T> {
        let Some((&all, row)) = self.shape.split_first() else {
            panic!("a scalar has no rows");
        };
        assert!(
            rows.start <= rows.end && rows.end <= all,
            "rows {rows:?} of a tensor of {all} rows"
        );
        let row_elements = self.elements / all.max(1);
        let shape = Shape::batched(rows.len(), row);
        Tensor {
            // SAFETY: the range lies within the tensor's rows, so it begins inside its elements, or where they end
            // (*layouts are in bounds*).
            pointer: unsafe { self.base().add(rows.start * row_elements) },
            elements: rows.len() * row_elements,
            shape,
            storage: Arc::clone(&self.storage),
            scattered: false,
        }
    }

    /// Returns the same elements in another shape.
    ///
    /// # Errors
    ///
    /// [`ShapeError`] if the number of elements differs.
    pub fn reshape(self, shape: &[usize]) -> Result<Tensor<T>, ShapeError> {
        if Shape::elements(shape) != Some(self.elements) {
            return Err(ShapeError {
                elements: self.elements,
                shape: shape.into(),
            });
        }
        Ok(Tensor {
            shape: shape.into(),
            ..self
        })
    }

    /// Copies the elements out.
    pub fn to_vec(&self) -> Vec<T> {
        self.as_slice().to_vec()
    }

    pub(crate) fn as_ptr(&self) -> *mut T {
        self.base().as_ptr()
    }

    /// Where the elements lie, consecutively. Rows that lie elsewhere are gathered first.
    pub(super) fn base(&self) -> NonNull<T> {
        if !self.scattered {
            return self.pointer;
        }
        let rows = self.storage.scattered();
        rows.map_or(self.pointer, |rows| rows.gathered().cast())
    }

    /// Identifies this tensor's memory, without touching it.
    pub(crate) fn identity(&self) -> NonNull<u8> {
        self.pointer.cast()
    }

    /// Whether the rows lie elsewhere and a device can gather them.
    fn is_scattered(&self) -> bool {
        let rows = self.storage.scattered();
        self.scattered && rows.is_some_and(Scattered::is_gatherable)
    }

    pub(crate) fn storage(&self) -> &Arc<dyn Storage> {
        &self.storage
    }

    /// Whether a copy from this tensor to a device gathers its rows there; and what it holds until it is done. One answer for both, for
    /// another thread may be about to read the rows through a view.
    pub(crate) fn copied_from(&self) -> (bool, &Arc<dyn Storage>) {
        let is_scattered = self.is_scattered();
        let rows = self.storage.scattered().filter(|_| !is_scattered);
        let gathered = rows.and_then(Scattered::gathered_of_table);
        (is_scattered, gathered.unwrap_or(&self.storage))
    }

    /// The memory that stays allocated for this tensor: all of its storage, however little it shows of that, or if others share
    /// the storage, what it shows.
    pub(crate) fn held_bytes(&self) -> usize {
        let all = self.storage.allocated_bytes();
        let own = all.filter(|_| self.sharers() == 0);
        own.unwrap_or_else(|| self.size_bytes())
    }

    /// How many others share the memory.
    pub(crate) fn sharers(&self) -> usize {
        Arc::strong_count(&self.storage) - 1
    }
}

/// Shows the shape, the element type, and the first values. Scattered rows are not gathered for this, so their values
/// are not shown.
impl<T: Element> fmt::Debug for Tensor<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tensor")
            .field("dtype", &T::DTYPE)
            .field("shape", &self.shape)
            .field("is_pinned", &self.is_pinned())
            .field("values", &Values(self))
            .finish()
    }
}

/// The first values of a tensor, in one line.
struct Values<'a, T: Element>(&'a Tensor<T>);

/// How many values are shown.
const SHOWN: usize = 8;

impl<T: Element> fmt::Debug for Values<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rows = self.0.storage.scattered();
        let elsewhere = self.0.scattered && rows.is_some_and(|rows| !rows.is_gathered());
        let values = match elsewhere {
            true => &[],
            false => self.0.as_slice(),
        };
        f.write_str("[")?;
        for (place, value) in values.iter().take(SHOWN).enumerate() {
            f.write_str(if place > 0 { ", " } else { "" })?;
            value.fmt(f)?;
        }
        match self.0.len() > values.len().min(SHOWN) {
            true if values.is_empty() => f.write_str("..]"),
            true => f.write_str(", ..]"),
            false => f.write_str("]"),
        }
    }
}

impl<T: Element> PartialEq for Tensor<T> {
    fn eq(&self, other: &Tensor<T>) -> bool {
        self.shape == other.shape && self.as_slice() == other.as_slice()
    }
}

impl<T: Element> From<Vec<T>> for Tensor<T> {
    /// Takes a vector as a tensor of rank 1, without copying.
    fn from(vec: Vec<T>) -> Tensor<T> {
        let elements = vec.len();
        let (storage, pointer) = VecStorage::new(vec);
        Tensor {
            pointer,
            shape: [elements].as_slice().into(),
            elements,
            storage: Arc::new(storage),
            scattered: false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Gathered;
    use super::*;

    #[test]
    fn a_shape_that_does_not_fit_is_refused() {
        let error = Tensor::from_vec(vec![0u8; 5], &[2, 3]).unwrap_err();
        assert_eq!(error.to_string(), "5 elements do not make the shape [2, 3]");
        assert!(Tensor::<u8>::from_vec(Vec::new(), &[usize::MAX, 2]).is_err());
    }

    #[test]
    fn a_view_outlives_its_tensor_and_stops_writes() {
        let mut tensor = Tensor::from_vec((0..12).collect::<Vec<i32>>(), &[3, 4]).unwrap();
        let row = tensor.row(2);
        assert!(tensor.as_mut_slice().is_none());
        assert_eq!(tensor.sharers(), 1);
        drop(tensor);
        assert_eq!(row.as_slice(), [8, 9, 10, 11]);
    }

    /// Another thread may read the rows between any two questions, so there is only one.
    #[test]
    fn a_copy_holds_what_it_reads() {
        struct Sevens;
        impl TableColumn for Sevens {
            fn address(&self) -> u64 {
                0
            }
            fn device(&self) -> &dyn std::any::Any {
                &()
            }
            fn read(&self, numbers: &[i64], _: &Arc<dyn Storage>) -> Gathered {
                let (storage, base) = VecStorage::new(vec![7u8; numbers.len()]);
                Gathered {
                    base,
                    owner: Arc::new(storage),
                }
            }
        }
        let numbers = Tensor::from(vec![1i64, 0]);
        // SAFETY: the column has a byte for each number.
        let rows: Tensor<u8> = unsafe { Tensor::from_table(&numbers, &[], Arc::new(Sevens)) };
        let held = |rows: &Tensor<u8>| {
            let (is_scattered, held) = rows.copied_from();
            (is_scattered, held.scattered().is_some())
        };
        assert_eq!(held(&rows), (true, true));
        assert_eq!(rows.view().as_slice(), [7, 7]);
        assert_eq!(held(&rows), (false, false));
        assert_eq!(held(&rows.row(1)), (false, false));
    }

    #[test]
    fn a_slice_is_some_of_the_rows() {
        let tensor = Tensor::from_vec((0..12).collect::<Vec<i32>>(), &[3, 4]).unwrap();
        let slice = tensor.slice(1..3);
        assert_eq!(
            (slice.shape()[..].to_vec(), tensor.sharers()),
            (vec![2, 4], 1)
        );
        assert_eq!(slice.slice(1..2).as_slice(), [8, 9, 10, 11]);
        drop(tensor);
        assert_eq!(slice.as_slice(), [4, 5, 6, 7, 8, 9, 10, 11]);
        assert!(slice.slice(2..2).is_empty());
        let nothing = Tensor::<u8>::zeros(&[0, usize::MAX, usize::MAX]);
        assert_eq!(nothing.slice(0..0).shape(), nothing.shape());
    }

    #[test]
    #[should_panic(expected = "rows 1..3 of a tensor of 2 rows")]
    fn rows_that_are_not_there_cannot_be_shared() {
        Tensor::from(vec![1u8, 2]).slice(1..3);
    }

    #[test]
    fn the_first_values_are_shown_in_one_line() {
        let shown = |values: Vec<f32>, shape: &[usize]| {
            format!("{:?}", Tensor::from_vec(values, shape).unwrap())
        };
        assert_eq!(
            shown(vec![1.0, 0.5], &[2, 1]),
            "Tensor { dtype: F32, shape: [2, 1], is_pinned: false, values: [1.0, 0.5] }"
        );
        assert!(shown(vec![0.0; 8], &[8]).ends_with("0.0, 0.0] }"));
        let long = shown(vec![0.25; 1_000_000], &[1_000_000]);
        assert!(
            long.ends_with("0.25, 0.25, ..] }") && long.len() < 150,
            "{long}"
        );
        assert!(shown(vec![], &[0, 3]).ends_with("values: [] }"));
        assert!(shown(vec![3.0], &[]).ends_with("shape: [], is_pinned: false, values: [3.0] }"));

        let tensor = Tensor::from_vec((0..12u8).collect(), &[3, 4]).unwrap();
        let lines = format!("{:#?}", tensor.row(1));
        assert!(lines.contains("\n    values: [4, 5, 6, 7],\n"), "{lines}");
        let lines = format!("{tensor:#?}");
        assert!(
            lines.contains("\n    values: [0, 1, 2, 3, 4, 5, 6, 7, ..],\n"),
            "{lines}"
        );
        assert_eq!(
            format!("{:.1?}", Values(&Tensor::from(vec![0.25f64]))),
            "[0.2]"
        );
    }

    #[test]
    fn empty_and_scalar_tensors_are_tensors() {
        let empty = Tensor::<f32>::zeros(&[0, 7]);
        assert!(empty.is_empty() && empty.as_slice().is_empty());
        let scalar = Tensor::from_vec(vec![4.0f64], &[]).unwrap();
        assert_eq!((scalar.len(), scalar.shape().len()), (1, 0));
    }
}
