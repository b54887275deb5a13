//! What every program writes: `use pinfeed::prelude::*;`.
//!
//! It has the names that belong to loading data: [`DataLoader`], [`from_fn`], [`TensorDataset`], [`Padded`], [`Ragged`],
//! [`SampleRng`], and the traits [`Dataset`], [`IterableDataset`], [`Sample`] and [`Batch`], with the derives of the last two.
//!
//! It has no name that other crates' preludes have as well. [`Device`](crate::Device), [`Tensor`](crate::Tensor) and
//! [`Stream`](crate::Stream) are names of candle's, burn's and tch's, too: import them with the crate's name, as `use pinfeed::Device;`, or
//! write `pinfeed::Device`. So are [`Error`](crate::Error) and [`Result`](crate::Result), which would hide the standard library's.
//! And there is no module in it. `use pinfeed::*;` brings the module [`image`](mod@crate::image), which hides the crate of that
//! name: whatever is public at the root comes with a glob, so no crate can leave a module out.
//!
//! # Examples
//!
//! ```
//! use pinfeed::prelude::*;
//!
//! #[derive(pinfeed::Sample)]
//! struct Point {
//!     x: f32,
//!     y: f32,
//! }
//!
//! let points = from_fn(100, |_index, rng| Ok(Point { x: rng.f32(), y: rng.f32() }));
//! let loader = DataLoader::builder(points).batch_size(25).build()?;
//! for batch in &loader {
//!     let batch = batch?.to_device(&pinfeed::Device::cpu(), true)?; // by the trait `Batch`
//!     assert_eq!((batch.x.len(), batch.y.len()), (25, 25));
//! }
//! # Ok::<(), pinfeed::Error>(())
//! ```

pub use crate::batch::Batch;
pub use crate::dataset::{Dataset, TensorDataset, from_fn};
pub use crate::iterable::IterableDataset;
pub use crate::loader::DataLoader;
pub use crate::rng::SampleRng;
pub use crate::tensor::padded::Padded;
pub use crate::tensor::ragged::Ragged;
pub use crate::tensor::sample::Sample;
#[cfg(feature = "derive")]
pub use pinfeed_derive::{Batch, Sample};
