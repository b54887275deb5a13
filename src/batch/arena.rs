//! The arena: where a `collate_fn` gets memory for its tensors.

mod collate;

use crate::device::Piece;
use crate::error::{CollateError, Error, Result, StackMisfit};
use crate::sync::Arc;
use crate::system::usable_memory_bytes;
use crate::tensor::{ALIGNMENT, Element, Lease, Shape, Storage, Tensor};

/// Allocates a `collate_fn`'s tensors in the batch's slab: with `pin_memory` they are page-locked from the start.
///
/// The slab is as large as recent batches needed. What does not fit (the first batch, or a larger one) goes to pageable
/// memory, and the pin thread copies it.
///
/// [`collate`](Arena::collate) stacks samples as the loader does without a `collate_fn`.
///
/// # Examples
///
/// ```
/// use pinfeed::DataLoader;
/// use pinfeed::collate::Arena;
///
/// let loader = DataLoader::builder(vec![1i64, 2, 3])
///     .batch_size(3)
///     .collate_fn(|samples: Vec<i64>, arena: &mut Arena| {
///         let mut squares = arena.zeros(&[samples.len()])?;
///         let row = squares.as_mut_slice().ok_or("a new tensor is not shared")?;
///         row.iter_mut().zip(samples).for_each(|(square, x)| *square = x * x);
///         Ok(squares)
///     })
///     .build()?;
/// for batch in &loader {
///     assert_eq!(batch?.as_slice(), [1, 4, 9]);
/// }
/// # Ok::<(), pinfeed::Error>(())
/// ```
#[derive(Debug)]
pub struct Arena {
    piece: Option<Piece>,
    used_bytes: usize,
    wanted_bytes: usize,
}

impl Arena {
    pub(super) fn new(piece: Option<Piece>) -> Arena {
        Arena {
            piece,
            used_bytes: 0,
            wanted_bytes: 0,
        }
    }

    /// Returns a new tensor of zeros.
    ///
    /// # Errors
    ///
    /// [`Error::HostMemory`] if the tensor is larger than the memory that the process may use, or memory runs out.
    pub fn zeros<T: Element>(&mut self, shape: &[usize]) -> Result<Tensor<T>> {
        let bytes =
            Shape::elements(shape).and_then(|elements| elements.checked_mul(size_of::<T>()));
        let bytes = bytes.unwrap_or(usize::MAX);
        if bytes > usable_memory_bytes() {
            return Err(Error::HostMemory { bytes });
        }
        let tensor = self.place(shape, bytes)?;
        self.wanted_bytes = self.wanted_bytes.next_multiple_of(ALIGNMENT) + bytes;
        Ok(tensor)
    }

    fn place<T: Element>(&mut self, shape: &[usize], bytes: usize) -> Result<Tensor<T>> {
        let start = self.used_bytes.next_multiple_of(ALIGNMENT);
        match &self.piece {
            Some(piece) if start + bytes <= piece.capacity() => {
                self.used_bytes = start + bytes;
                // SAFETY: the range lies inside the piece (*layouts are in bounds and aligned*).
                let base = unsafe { piece.base().add(start) };
                // SAFETY: the range was not handed out before: `used_bytes` only grows (*one owner per slab*).
                unsafe { std::ptr::write_bytes(base.as_ptr(), 0, bytes) };
                let lease = Arc::new(Lease(Arc::clone(piece.slab()) as Arc<dyn Storage>));
                // SAFETY: the elements are zeros, aligned, and `lease` is the only way to them.
                Ok(unsafe { Tensor::from_raw(base.cast(), shape.into(), lease) })
            }
            _ => Tensor::try_zeros(shape).ok_or(Error::HostMemory { bytes }),
        }
    }

    /// Stacks tensors into a new one. All must have the shape of the first.
    ///
    /// # Errors
    ///
    /// [`Error::Stack`] if the rows' shapes differ, [`Error::HostMemory`] as for [`zeros`](Arena::zeros).
    pub fn stack<T: Element>(&mut self, rows: &[Tensor<T>]) -> Result<Tensor<T>> {
        let row_shape = rows
            .first()
            .map_or(Shape::default(), |row| row.shape().clone());
        if let Some(place) = rows.iter().position(|row| row.shape() != &row_shape) {
            return Err(Error::Stack(Box::new(StackMisfit {
                place,
                count: rows.len(),
                planned_from: Some(0),
                source: CollateError::Shape {
                    field: "",
                    expected: row_shape,
                    found: rows[place].shape().clone(),
                },
            })));
        }
        let mut stacked = self.zeros(&Shape::batched(rows.len(), &row_shape))?;
        if let Some(elements) = stacked.as_mut_slice() {
            let row_elements = row_shape.iter().product::<usize>();
            for (target, row) in elements.chunks_exact_mut(row_elements.max(1)).zip(rows) {
                target.copy_from_slice(row.as_slice());
            }
        }
        Ok(stacked)
    }

    /// The size of a slab that would hold everything requested so far.
    pub(super) fn wanted_bytes(&self) -> usize {
        self.wanted_bytes
    }
}
