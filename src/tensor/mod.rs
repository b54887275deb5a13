//! Host tensors, and how the rows of a batch come to lie in one slab.
//!
//! A [`Tensor`] is dense and row-major, over memory that something else owns: a `Vec`, a slab of the ring, registered
//! memory ([`Storage`]). A batch is planned as a [`Layout`] of [`Field`]s, filled by [`Row`]s, possibly by several
//! threads at once, and taken out of [`Filled`] as tensors. [`Sample`] is what ties the three together.

mod element;
mod entry;
#[expect(unsafe_code, reason = "it hands out the fields of a slab")]
mod filled;
#[expect(
    unsafe_code,
    reason = "elements lie in memory that something else owns"
)]
mod host;
mod layout;
#[expect(
    unsafe_code,
    reason = "elements lie in memory that something else owns"
)]
mod owned;
mod ragged;
#[expect(unsafe_code, reason = "several threads write rows of one slab")]
mod row;
mod sample;
#[expect(unsafe_code, reason = "rows lie in memory that something else owns")]
mod scattered;
#[expect(unsafe_code, reason = "a Vec gives up its memory and takes it back")]
mod storage;

pub use crate::shape::{DType, Shape};
pub use element::{Element, Float};
pub use entry::Entry;
pub use filled::Filled;
pub use host::Tensor;
pub use layout::{Field, Layout};
pub use ragged::{Ragged, RaggedTensor};
pub use row::Row;
pub use sample::{Host, Sample};

pub(crate) use layout::ALIGNMENT;
pub(crate) use scattered::{Scattered, Sources};
pub(crate) use storage::{Backend, Home, Lease, Storage};
