//! ndarray's arrays: views of a tensor, and tensors of an array, without a copy.
//!
//! Crate `ndarray` 0.17. Dimensions are static (`Ix3`) or known at run time (`IxDyn`).

use std::fmt;

use ndarray::{Array, ArrayViewD, ArrayViewMutD, Dimension, IxDyn};

// (The types are part of the interface: a program may name them from here, and has the version that fits.)
pub use ndarray::{ArrayView, ArrayViewMut};

use crate::tensor::{Element, Shape, Tensor};

/// Why an array is no tensor, or a tensor no array.
///
/// # Examples
///
/// ```
/// use ndarray::{Array2, Ix3};
/// use pinfeed::Tensor;
/// use pinfeed::interop::ndarray::ArrayError;
///
/// let tensor = Tensor::<f32>::zeros(&[2, 3]);
/// let error = tensor.array_view::<Ix3>().unwrap_err();
/// assert!(matches!(error, ArrayError::Dimensions { wanted: 3, .. }));
///
/// let columns = Array2::<f32>::zeros((2, 3)).reversed_axes();
/// let error = Tensor::from_array(columns.clone()).unwrap_err();
/// assert!(error.to_string().contains("as_standard_layout().into_owned()"));
/// let copied = Tensor::from_array(columns.as_standard_layout().into_owned())?;
/// assert_eq!(copied.shape()[..], [3, 2]);
/// # Ok::<(), ArrayError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum ArrayError {
    /// The tensor has another number of dimensions than the array's type says.
    Dimensions {
        /// The tensor's shape.
        shape: Shape,
        /// The number of dimensions that was asked for.
        wanted: usize,
    },
    /// Something shares the tensor's memory, so it cannot be written: a view, a transfer in flight, or another owner.
    Shared,
    /// The array's elements do not lie one behind the other in row-major order, as a tensor's do.
    Layout {
        /// The array's shape.
        shape: Shape,
        /// The distances between neighbours, in elements.
        strides: Vec<isize>,
    },
    /// The tensor has no elements, and a shape that ndarray refuses: the lengths that are not 0 have a product above `isize::MAX`.
    TooLarge {
        /// The tensor's shape.
        shape: Shape,
    },
}

impl fmt::Display for ArrayError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ArrayError::Dimensions { shape, wanted } => write!(
                f,
                "a tensor of shape {shape:?} has {} dimensions, and not {wanted}: name that number (`Ix{}`, or `IxDyn` for any), or `reshape` it before",
                shape.len(),
                shape.len()
            ),
            ArrayError::Shared => f.write_str(
                "the tensor's memory is shared with a view or a transfer, or belongs to another owner, so it cannot be written: drop the others \
                 before, or write to a copy (`array_view()?.to_owned()`)",
            ),
            ArrayError::Layout { shape, strides } => write!(
                f,
                "the elements of an array of shape {shape:?} and strides {strides:?} do not lie in row-major order, one behind the other: copy it \
                 into that order before, by `as_standard_layout().into_owned()`"
            ),
            ArrayError::TooLarge { shape } => write!(
                f,
                "ndarray has no arrays of shape {shape:?}, although it has no elements: `reshape` the tensor before"
            ),
        }
    }
}

impl std::error::Error for ArrayError {}

impl<T: Element> Tensor<T> {
    /// Shows the elements as an array of ndarray's, without a copy.
    ///
    /// As with [`as_slice`](Tensor::as_slice), rows of a batch that lie elsewhere are copied or decoded by the first call.
    ///
    /// # Errors
    ///
    /// [`ArrayError::Dimensions`] if the tensor has another number of dimensions than `D`, [`ArrayError::TooLarge`] if it has no elements
    /// and a shape that ndarray refuses.
    ///
    /// # Panics
    ///
    /// As [`as_slice`](Tensor::as_slice).
    ///
    /// # Examples
    ///
    /// ```
    /// use ndarray::{Axis, Ix2, IxDyn, array};
    /// use pinfeed::Tensor;
    ///
    /// let tensor = Tensor::from_vec(vec![1.0f32, 2.0, 3.0, 4.0], &[2, 2])?;
    /// assert_eq!(tensor.array_view::<Ix2>()?.sum_axis(Axis(0)), array![4.0, 6.0]);
    /// assert_eq!(tensor.array_view::<IxDyn>()?.ndim(), 2);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn array_view<D: Dimension>(&self) -> Result<ArrayView<'_, T, D>, ArrayError> {
        self.check_dimensions::<D>()?;
        let view = ArrayViewD::from_shape(IxDyn(self.shape()), self.as_slice());
        let view = view.and_then(ArrayViewD::into_dimensionality);
        view.map_err(|_| self.too_large())
    }

    /// Shows the elements as an array of ndarray's that can be written, without a copy.
    ///
    /// # Errors
    ///
    /// [`ArrayError::Shared`] where [`as_mut_slice`](Tensor::as_mut_slice) returns `None`, and as [`array_view`](Tensor::array_view).
    ///
    /// # Panics
    ///
    /// As [`as_slice`](Tensor::as_slice).
    ///
    /// # Examples
    ///
    /// ```
    /// use ndarray::Ix2;
    /// use pinfeed::Tensor;
    ///
    /// let mut tensor = Tensor::<f32>::zeros(&[2, 3]);
    /// tensor.array_view_mut::<Ix2>()?.row_mut(1).fill(5.0);
    /// assert_eq!(tensor.as_slice(), [0.0, 0.0, 0.0, 5.0, 5.0, 5.0]);
    ///
    /// let view = tensor.view();
    /// let error = tensor.array_view_mut::<Ix2>().unwrap_err();
    /// assert!(error.to_string().contains("drop the others before"));
    /// # drop(view);
    /// # Ok::<(), pinfeed::interop::ndarray::ArrayError>(())
    /// ```
    pub fn array_view_mut<D: Dimension>(&mut self) -> Result<ArrayViewMut<'_, T, D>, ArrayError> {
        self.check_dimensions::<D>()?;
        let (shape, too_large) = (self.shape().clone(), self.too_large());
        let elements = self.as_mut_slice().ok_or(ArrayError::Shared)?;
        let view = ArrayViewMutD::from_shape(IxDyn(&shape), elements);
        let view = view.and_then(ArrayViewMutD::into_dimensionality);
        view.map_err(|_| too_large)
    }

    /// Takes an array of ndarray's as a tensor, without a copy: a sample, or the rows of a [`TensorDataset`](crate::TensorDataset).
    ///
    /// An array that was cut from a larger one keeps all of that one's memory.
    ///
    /// # Errors
    ///
    /// [`ArrayError::Layout`] if the elements are not in row-major order, one behind the other: a transposed array, or one with every other
    /// column. The array is dropped then: copy it before, by `as_standard_layout().into_owned()`, which copies only if it has to.
    ///
    /// # Examples
    ///
    /// ```
    /// use ndarray::{Array2, s};
    /// use pinfeed::{DataLoader, Tensor, TensorDataset};
    ///
    /// let features = Array2::from_shape_fn((100, 3), |(row, column)| (10 * row + column) as f32);
    /// let address = features.as_ptr();
    /// let features = Tensor::from_array(features)?;
    /// assert_eq!(features.as_slice().as_ptr(), address);
    /// let loader = DataLoader::builder(TensorDataset::new(features)?).batch_size(25).build()?;
    /// assert_eq!(loader.len(), 4);
    ///
    /// let rows = Array2::<u8>::zeros((10, 4)).slice_move(s![2..6, ..]); // whole rows lie one behind the other
    /// assert_eq!(Tensor::from_array(rows)?.shape()[..], [4, 4]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn from_array<D: Dimension>(array: Array<T, D>) -> Result<Tensor<T>, ArrayError> {
        let shape = Shape::from(array.shape());
        let layout = || ArrayError::Layout {
            shape: shape.clone(),
            strides: array.strides().to_vec(),
        };
        if !array.is_standard_layout() {
            return Err(layout());
        }
        let (elements, refused) = (array.len(), layout());
        let (all, offset) = array.into_raw_vec_and_offset();
        let begin = offset.unwrap_or(0); // (an array without elements has none)
        let end = begin + elements;
        let of_all = match (begin, end == all.len()) {
            (0, true) => return Tensor::from_vec(all, &shape).map_err(|_| refused),
            _ => Tensor::from(all).slice(begin..end),
        };
        of_all.reshape(&shape).map_err(|_| refused)
    }

    fn check_dimensions<D: Dimension>(&self) -> Result<(), ArrayError> {
        match D::NDIM {
            Some(wanted) if wanted != self.shape().len() => Err(ArrayError::Dimensions {
                shape: self.shape().clone(),
                wanted,
            }),
            _ => Ok(()),
        }
    }

    fn too_large(&self) -> ArrayError {
        ArrayError::TooLarge {
            shape: self.shape().clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use ndarray::{Array0, Array1, Array2, Array3, ArrayD, Ix0, Ix1, Ix2, Ix3, arr0, s};

    use super::*;

    fn counted(shape: &[usize]) -> Tensor<i32> {
        let elements = shape.iter().product::<usize>() as i32;
        Tensor::from_vec((0..elements).collect(), shape).unwrap()
    }

    #[test]
    fn views_are_of_the_same_memory() {
        let mut tensor = counted(&[2, 3, 4]);
        let address = tensor.as_slice().as_ptr();
        let view = tensor.array_view::<Ix3>().unwrap();
        assert_eq!(
            (view.dim(), view[[1, 2, 3]], view.as_ptr()),
            ((2, 3, 4), 23, address)
        );
        let view = tensor.array_view::<IxDyn>().unwrap();
        assert_eq!(
            (view.shape(), view[[0, 1, 0].as_slice()]),
            (&[2, 3, 4][..], 4)
        );
        tensor.array_view_mut::<IxDyn>().unwrap()[[1, 0, 0].as_slice()] = -1;
        tensor.array_view_mut::<Ix3>().unwrap()[[0, 0, 1]] = -2;
        assert_eq!((tensor.as_slice()[12], tensor.as_slice()[1]), (-1, -2));
    }

    #[test]
    fn views_of_views_and_rows() {
        let tensor = counted(&[4, 3]);
        let view = tensor.slice(1..3);
        assert_eq!(view.array_view::<Ix2>().unwrap().row(1).to_vec(), [6, 7, 8]);
        let mut row = tensor.row(3);
        assert_eq!(row.array_view::<Ix1>().unwrap().to_vec(), [9, 10, 11]);
        assert_eq!(row.array_view_mut::<Ix1>().unwrap_err(), ArrayError::Shared);
        drop((tensor, view));
        row.array_view_mut::<Ix1>().unwrap().fill(0); // alone now
        assert_eq!(row.as_slice(), [0, 0, 0]);
    }

    #[test]
    fn scalars_and_tensors_without_elements() {
        let scalar = counted(&[]).reshape(&[]).unwrap();
        assert_eq!(scalar.array_view::<Ix0>().unwrap(), arr0(0).view());
        let empty = Tensor::<u8>::zeros(&[0, 5]);
        assert_eq!(empty.array_view::<Ix2>().unwrap().dim(), (0, 5));
        assert_eq!(
            Tensor::from_array(Array2::<u8>::zeros((0, 5))).unwrap(),
            empty
        );
        assert_eq!(
            Tensor::from_array(Array0::from_elem((), 7))
                .unwrap()
                .as_slice(),
            [7]
        );
        let huge = Tensor::<u8>::zeros(&[0, usize::MAX, usize::MAX]);
        let error = huge.array_view::<Ix3>().unwrap_err();
        assert!(matches!(error, ArrayError::TooLarge { .. }), "{error}");
    }

    #[test]
    fn another_number_of_dimensions_is_an_error() {
        let error = counted(&[2, 3]).array_view::<Ix1>().unwrap_err();
        assert_eq!(
            error.to_string(),
            "a tensor of shape [2, 3] has 2 dimensions, and not 1: name that number (`Ix2`, or `IxDyn` for any), or `reshape` it before"
        );
        assert!(counted(&[2, 3]).array_view_mut::<Ix3>().is_err());
    }

    #[test]
    fn memory_of_another_owner_is_not_written() {
        let mut tensor = Tensor::<u8>::from_owner(&b"abc"[..], &[3]).unwrap();
        assert_eq!(tensor.array_view::<Ix1>().unwrap()[2], b'c');
        assert_eq!(
            tensor.array_view_mut::<Ix1>().unwrap_err(),
            ArrayError::Shared
        );
    }

    #[test]
    fn arrays_become_tensors_where_they_lie() {
        let array = Array3::from_shape_fn((2, 3, 4), |(a, b, c)| (a * 12 + b * 4 + c) as i32);
        let address = array.as_ptr();
        let mut tensor = Tensor::from_array(array).unwrap();
        assert_eq!(
            (tensor.as_slice().as_ptr(), &tensor),
            (address, &counted(&[2, 3, 4]))
        );
        assert!(tensor.as_mut_slice().is_some());
        let dynamic = ArrayD::from_elem(IxDyn(&[2, 1]), 5u8);
        assert_eq!(Tensor::from_array(dynamic).unwrap().shape()[..], [2, 1]);
    }

    #[test]
    fn an_array_that_was_cut_is_its_own_elements() {
        let rows = Array2::from_shape_fn((4, 3), |(row, column)| (row * 3 + column) as i32);
        let cut = rows.clone().slice_move(s![1..3, ..]);
        let address = cut.as_ptr();
        let mut tensor = Tensor::from_array(cut).unwrap();
        assert_eq!(
            (tensor.as_slice(), tensor.as_slice().as_ptr()),
            (&[3, 4, 5, 6, 7, 8][..], address)
        );
        assert!(tensor.as_mut_slice().is_some()); // nobody else has the others
        let first = Tensor::from_array(rows.slice_move(s![..1, ..])).unwrap();
        assert_eq!(
            (&first.shape()[..], first.as_slice()),
            (&[1, 3][..], &[0, 1, 2][..])
        );
    }

    #[test]
    fn another_layout_is_refused_and_a_copy_of_it_taken() {
        let rows = Array2::from_shape_fn((4, 6), |(row, column)| (row * 6 + column) as i32);
        let layouts = [
            rows.clone().reversed_axes(),
            rows.clone().slice_move(s![.., ..;2]),
            rows.clone().slice_move(s![..;-1, ..]),
            rows.clone().slice_move(s![.., 1..4]),
        ];
        for array in layouts {
            let error = Tensor::from_array(array.clone()).unwrap_err();
            assert!(matches!(error, ArrayError::Layout { .. }), "{error}");
            let copy = Tensor::from_array(array.as_standard_layout().into_owned()).unwrap();
            assert_eq!(copy.array_view::<Ix2>().unwrap(), array);
        }
        // Of one element each, or along a length of 1, strides do not matter.
        let one = Array1::from(vec![1, 2, 3]).slice_move(s![..;3]);
        assert_eq!(Tensor::from_array(one).unwrap().as_slice(), [1]);
    }
}
