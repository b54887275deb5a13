//! Tensors in host memory: their elements, types and shapes.
//!
//! A [`Tensor`] is dense and row-major. The loader's tensors lie in page-locked memory and your own in a `Vec`; you use
//! both alike.

// A tensor's memory belongs to its `Storage`: a `Vec`, a slab of the ring, registered memory. This module also puts a
// batch's rows into one slab, public as `sample`, `ragged`, `padded` and `packed`: a batch is planned as a `Layout` of `Field`s, filled
// through `Row`s, possibly by several threads at once, and taken out of `Filled` as tensors. `Sample` ties the three
// together.

pub(crate) mod array_element;
#[expect(unsafe_code, reason = "rows lie in memory that something else owns")]
mod column;
mod element;
#[expect(unsafe_code, reason = "it hands out the fields of a slab")]
pub(crate) mod filled;
#[expect(
    unsafe_code,
    reason = "elements lie in memory that something else owns"
)]
mod host;
pub(crate) mod layout;
pub(crate) mod nullable;
mod offload;
#[expect(
    unsafe_code,
    reason = "elements lie in memory that something else owns"
)]
mod owned;
pub(crate) mod packed;
pub(crate) mod padded;
pub(crate) mod pictures;
pub(crate) mod ragged;
#[expect(unsafe_code, reason = "several threads write rows of one slab")]
pub(crate) mod row;
pub(crate) mod sample;
#[expect(unsafe_code, reason = "rows lie in memory that something else owns")]
mod scattered;
#[expect(unsafe_code, reason = "a Vec gives up its memory and takes it back")]
mod storage;

pub use crate::shape::{DType, Shape};
pub use element::{Element, Float};
pub use host::Tensor;

pub(crate) use array_element::ArrayElement;
pub(crate) use column::{Column, are_below};
pub(crate) use filled::Filled;
pub(crate) use layout::{ALIGNMENT, Field, Layout};
pub(crate) use offload::{Offload, OwnPictures, WHOLE_SHARE};
pub(crate) use packed::{PackedBatch, PackedRow};
pub(crate) use padded::PaddedTensor;
pub(crate) use pictures::{DecodedIn, PictureRow};
pub(crate) use ragged::{Ragged, RaggedTensor};
pub(crate) use row::{Row, copy_rows};
pub(crate) use sample::{Host, Sample};
pub(crate) use scattered::{Gathered, RowList, Scattered, Sources, TableColumn};
pub(crate) use storage::{Backend, Home, Lease, Storage};
