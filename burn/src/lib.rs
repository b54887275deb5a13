//! [pinfeed] for [burn](https://burn.dev): batches in page-locked memory become burn's tensors without a copy on the host, and burn's
//! `Learner` trains on them.
//!
//! - [`IntoBurn`] makes a tensor of burn's of one of pinfeed's: for loops of your own.
//! - [`Loader`] is a `DataLoader` of burn's, for its `Learner`.
//! - [`FromBurn`] is a data set of burn's as one of pinfeed's, [`ToBurn`] the other way round.
//! - [`from_data`] makes a tensor of pinfeed's of burn's data.
//!
//! ```
//! use burn::tensor::Device;
//! use pinfeed::{DataLoader, from_fn};
//! use pinfeed_burn::IntoBurn;
//!
//! let device = Device::flex(); // or Device::cuda(0), beside pinfeed's Device::cuda(0)?
//! let loader = DataLoader::builder(from_fn(64, |index, _| Ok(([index as u8; 12], index as i64))))
//!     .batch_size(16)
//!     .num_workers(2)
//!     .pin_memory(&pinfeed::Device::cpu())
//!     .build()?;
//! for batch in loader.epoch(0) {
//!     let (pixels, classes) = batch?;
//!     let pixels = pixels.into_burn::<2>(&device)?.float() / 255.0; // bytes travel; the device converts
//!     let classes = classes.into_burn::<1>(&device)?;
//!     device.flush()?; // small batches: see below
//! #   assert_eq!((pixels.dims(), classes.dims()), ([16, 12], [16]));
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # How long burn holds a batch
//!
//! On the CPU, for as long as there is a tensor of it: usually until the step is done.
//!
//! On a GPU, burn's copy runs while the host goes on, so burn keeps the source until it knows that the copy is done: for up to two of its
//! *flushes*. In cubecl 0.11, which burn 0.22 is built on, there is a flush behind each tensor of more than 10 MiB, and otherwise when 64
//! tensors, or 64 MiB, have come together. With batches of one large tensor and small ones, that is two batches. With small batches only,
//! it would be up to 128 tensors.
//!
//! | batches | flushes | burn holds | of |
//! | --- | --- | --- | --- |
//! | by [`Loader`] | with each batch, by burn or by the loader | 2 batches | `prefetch` + 3 |
//! | in a loop of your own, with `device.flush()` behind each batch | with each batch | 2 batches | `prefetch` + 3 |
//! | in a loop of your own, without | by burn alone | 2 batches with a tensor above 10 MiB each; else up to 128 tensors | `prefetch` + 3 |
//!
//! So the ring has room for what burn holds, and for one batch more that the program keeps ([`RING_ROOM`]). A program that keeps more
//! batches sets a larger [`prefetch`](pinfeed::loader::Builder::prefetch). If there is no room, nothing goes wrong in silence: the batch is
//! in pageable memory, burn copies it once more on the host, the log warns, the statistics count it, and
//! [`strict_pinning`](pinfeed::loader::Builder::strict_pinning) makes it an error.
//!
//! Behind a large tensor, a loop of your own should not flush: the flush waits for the one before, which is behind that tensor's own copy.
//! So the host would wait for the copy, and [`Loader`] does not flush there either.
//!
//! The memory is written again by pinfeed when burn has dropped it, and by nobody before. If burn cannot tell whether a copy is done,
//! because the device failed, it keeps the memory for good.
//!
//! # Which device of pinfeed's
//!
//! `pin_memory` takes the device of pinfeed's on the same GPU: page-locked memory is then of the same context as burn's, which is the GPU's
//! primary one. Batches stay on the host until burn copies them: do not call `prefetch_to_device`, whose copies burn would not use.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod dataset;
mod error;
mod loader;
#[expect(unsafe_code, reason = "burn reads a tensor's memory as bytes")]
mod memory;
mod tensor;

pub use dataset::{FromBurn, ToBurn};
pub use error::Error;
pub use loader::{AnyDataset, Loader};
pub use tensor::{BurnElement, IntoBurn, from_data};

/// How many batches' memory an epoch has beside those that are loaded ahead, for burn and the program to hold.
/// [How long burn holds a batch](crate#how-long-burn-holds-a-batch) says that burn takes two of them.
pub const RING_ROOM: usize = 3;
