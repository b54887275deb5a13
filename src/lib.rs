//! `pinfeed` keeps a GPU fed: it loads samples on worker threads, collates them into batches in page-locked memory that
//! is reused, and sends them to the device in copies that overlap with the training step. Memory in flight cannot be
//! written, read or reused too early: the mistakes that other loaders leave to the caller's care do not compile here,
//! or are refused.
//!
//! ```
//! use pinfeed::{Batch, DataLoader, Device, from_fn};
//!
//! let device = Device::available(); // the first CUDA device, or the CPU
//! let stream = device.stream()?; // or the program's own: see `interop`
//! let samples = from_fn(1_000, |index, _rng| Ok((vec![index as f32; 64], index as i64)));
//!
//! let loader = DataLoader::builder(samples)
//!     .batch_size(100).shuffle(true).seed(17).drop_last(true)
//!     .num_workers(2)
//!     .pin_memory(&device)
//!     .build()?;
//!
//! for epoch in loader.epochs(0..3) {
//!     for batch in epoch {
//!         let (x, y) = batch?.to_device(&device, true)?; // returns at once
//!         let (x, y) = (x.on(&stream)?, y.on(&stream)?); // the stream waits for the copy, the CPU does not
//!         assert_eq!((x.len(), y.len()), (6_400, 100)); // launch kernels on `stream` here
//!     }
//! }
//! println!("{}", loader.stats()); // where the time went, and which knob to turn
//! # Ok::<(), pinfeed::Error>(())
//! ```
//!
//! # Where to begin
//!
//! A guide, in short pages: [`docs/guide`](https://github.com/pinfeed/pinfeed/blob/main/docs/guide/src/SUMMARY.md). Below is what is where in this reference.
//!
//! The root has what every program uses, and [`prelude`] what a program imports by a glob. (`use pinfeed::*;` would also bring the module
//! [`image`](mod@image), which hides the crate of that name.) The rest is in modules:
//!
//! - A source of samples: [`from_fn`], [`TensorDataset`], or your own [`Dataset`]. Subsets, splits, several as one, packed documents, a
//!   cache in memory: [`dataset`].
//! - Sources without a length or an index, such as files that are read from their beginning: [`iterable`].
//! - Files of arrays (`.npy`, safetensors, MNIST, CSV, ..) and of tokens: `arrays`, with the feature of that name.
//! - Images in folders, decoded, cropped and augmented: [`image`](mod@image). Normalisation, MixUp and CutMix on the
//!   device: [`ops`].
//! - What samples become: [`Sample`]; with named fields instead of tuples, `#[derive(pinfeed::Sample)]`. To implement
//!   it by hand, row by row: [`sample`].
//! - Samples that differ in length, such as an image's boxes or a text's tokens: one behind the other ([`Ragged`],
//!   [`ragged`]), or padded to the longest of their batch ([`Padded`], [`padded`]); documents packed into rows of one length
//!   ([`dataset::PackedDataset`]).
//! - Batches made by a function ([`Builder::collate_fn`](loader::Builder::collate_fn)), as a struct of your own with
//!   `#[derive(pinfeed::Batch)]`: [`collate`].
//! - The options of a [`DataLoader`], its epochs, and where the time went: [`loader`]. The order of samples, or a
//!   subset of them for validation: [`sampler`].
//! - Several processes, each with its share: [`World`](loader::World). Several devices in one process:
//!   [`Epoch::split`](loader::Epoch::split). A run that goes on where it was interrupted:
//!   [`DataLoader::state`] and [`DataLoader::resume`].
//! - Where data lies, in a folder or a bucket, listed once and read in ranges: [`store`].
//! - Samples that are broken: [`Builder::on_error`](loader::Builder::on_error); that fail now and then:
//!   [`retry`](loader::Builder::retry); that hang: [`timeout`](loader::Builder::timeout).
//! - What PyTorch's options are called here, from `persistent_workers` to `set_epoch`: the table in [`loader`].
//! - Devices, streams and memory: [`device`]. Element types and shapes of a [`Tensor`]: [`tensor`].
//! - Other libraries' contexts, streams and tensors: [`interop`].
//! - What can go wrong, and how a program continues: [`Error`], [`error`].
//! - Whole programs to copy from (tables, text, images, `ndarray`, `.npy` files, `tokio`, a replay buffer, broken
//!   files): [`tests/programs`](https://github.com/pinfeed/pinfeed/tree/main/tests/programs).
//!
//! # Features
//!
//! | feature | default | what it adds |
//! | --- | --- | --- |
//! | `cuda` | yes | CUDA devices; the driver is loaded at run time, so the crate builds and runs without CUDA |
//! | `image` | yes | images: [`image`](mod@image) |
//! | `turbojpeg` | no | JPEG files decoded by libjpeg-turbo, which decodes only the part of an image that its crop needs; needs a C compiler, cmake and nasm to build (`No CMAKE_ASM_NASM_COMPILER could be found` means that nasm is missing) |
//! | `nvjpeg` | no | JPEG files decoded by the GPU (`image::Decode`); nvJPEG is loaded at run time |
//! | `derive` | yes | `#[derive(pinfeed::Sample)]`, `#[derive(pinfeed::Batch)]` |
//! | `object-store` | no | objects of S3, Google Cloud Storage, Azure and web servers: `store::RemoteStore`, and URLs in [`store::open`]; needs a C compiler to build, for the cryptography of TLS |
//! | `arrays` | no | files of arrays and tokens, read or memory-mapped: `arrays` |
//! | `dlpack` | no | tensors to and from NumPy, PyTorch, CuPy, JAX and others by DLPack, where they lie: `interop::dlpack` |
//! | `candle` | no | converts tensors to candle's; `candle-cuda`: on the GPU |
//! | `ndarray` | no | views of host tensors as arrays of ndarray's, and tensors of its arrays |
//! | `rand_core` | no | [`SampleRng`] implements the traits of `rand_core` 0.10, and so works with `rand` 0.10 and the crates built on it |
//! | `serde` | no | serializes a run's state ([`LoaderState`](loader::LoaderState), [`IterableState`](loader::IterableState)), statistics and element types |
//! | `tokio` | no | requests of a slow source as tasks of the program's runtime ([`dataset::Staged`]) |
//! | `tracing` | no | spans around loading, pulling, collating, pinning, sending, uploads, and the consumer's waits |
//! | `nvtx` | no | the same as ranges of NVTX, in the domain `pinfeed`, which `nsys profile --trace=cuda,nvtx` shows beside the GPU's work; without a profiler they do nothing, and nothing of CUDA is needed to build them |
//! | `webdataset` | no | WebDataset tar shards, in a folder or a store, with an index, or compressed and read as a stream: [`webdataset`] |
//! | `testing` | no | `Device::hostile`: a CPU device that delays, fails and runs out of memory, to test your own program |
//!
//! # Warnings
//!
//! The library logs its warnings through the crate [`log`](https://docs.rs/log): that the CPU is used and why, which sample is slow, which
//! sample was replaced, what could not be page-locked. Without a logger they are discarded. With the crate `env_logger`, call
//! `env_logger::init();` in `main`, and set `RUST_LOG=warn` in the environment.
//!
//! # Threads
//!
//! A loader has `num_workers` named threads and, with `pin_memory`, a pin thread for each device (and with
//! [`timeout`](loader::Builder::timeout), the threads that hang, beside those that replace them). The CPU device has one thread for each of
//! its streams; a device that decodes pictures (feature `nvjpeg`), one for its decoder; a [`dataset::Staged`], one for each blocking
//! request in flight; a `store::RemoteStore`, four from its first request on; large host copies use a private pool. The crate never uses rayon's global pool, so a `par_iter` inside your
//! `Dataset::get` cannot deadlock. It installs no signal handler and no panic hook. On Unix, it installs a handler of `pthread_atfork`,
//! which counts forks in the child, so that a loader knows whether its threads are there, and with a `store::DiskCache` another one, which
//! lets go of the files that the parent has locked. It sets one environment variable, and only with
//! the feature `nvjpeg` on Linux: [`Device::cuda`] sets `CUDA_DEVICE_MAX_CONNECTIONS=32` if that is not set and the process has no other
//! thread.

#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(feature = "arrays")]
pub mod arrays;
mod batch;
pub mod dataset;
#[expect(unsafe_code, reason = "it owns the memory that copies in flight use")]
pub mod device;
#[expect(unsafe_code, reason = "it calls the drivers, in addresses")]
mod driver;
pub mod error;
mod fingerprint;
#[cfg(feature = "image")]
pub mod image;
pub mod interop;
pub mod iterable;
mod length;
pub mod loader;
#[expect(unsafe_code, reason = "it copies by addresses")]
mod memory;
mod meter;
pub mod ops;
#[doc(hidden)]
pub mod picture;
mod pipeline;
pub mod prelude;
pub mod rng;
pub mod sampler;
mod shape;
pub mod store;
mod sync;
#[cfg_attr(
    all(unix, not(miri)),
    expect(unsafe_code, reason = "it calls the operating system")
)]
mod system;
#[expect(unsafe_code, reason = "a column's type is known to who made it")]
mod table;
pub mod tensor;
mod trace;
mod tuning;
#[cfg(feature = "webdataset")]
pub mod webdataset;

/// The guide's lines (docs/guide), each page's as doctests of a module: `cargo test --doc guide::`. (The programs of its first pages are tests/start.) The snippets of Python are run by
/// python/tests/test_guide.py.
#[cfg(all(
    doctest,
    feature = "arrays",
    feature = "cuda",
    feature = "derive",
    feature = "image",
    feature = "tokio",
    feature = "webdataset"
))]
mod guide {
    macro_rules! pages {
        ($($page:ident: $path:literal,)*) => {
            $(#[doc = include_str!(concat!("../docs/guide/src/", $path))] mod $page {})*
        };
    }

    pages! {
        pytorch: "pytorch.md",
        pinned: "pinned.md",
        non_blocking: "non-blocking.md",
        choosing: "choosing.md",
        starved: "starved.md",
        tabular: "cookbook/tabular.md",
        text: "cookbook/text.md",
        images: "cookbook/images.md",
        masks: "cookbook/masks.md",
        detection: "cookbook/detection.md",
        audio: "cookbook/audio.md",
        own: "cookbook/own.md",
        tokio: "cookbook/tokio.md",
        resume: "cookbook/resume.md",
        weights: "cookbook/weights.md",
        streams: "cookbook/streams.md",
        mixing: "cookbook/mixing.md",
        evaluation: "cookbook/evaluation.md",
        many: "many.md",
        machines: "machines.md",
    }
}

#[doc(inline)]
pub use batch::Batch;
#[doc(inline)]
pub use dataset::{Dataset, TensorDataset, from_fn};
#[doc(inline)]
pub use device::{Device, DeviceTensor, Stream};
#[doc(inline)]
pub use error::{BoxError, Error, Result};
#[doc(inline)]
pub use loader::DataLoader;
#[doc(inline)]
pub use padded::Padded;
#[doc(inline)]
pub use ragged::Ragged;
#[doc(inline)]
pub use rng::SampleRng;
#[doc(inline)]
pub use sample::{Host, Sample};
#[doc(inline)]
pub use tensor::Tensor;

pub mod collate {
    //! How samples become a batch, and how a batch gets to a device.
    //!
    //! Samples are stacked ([`Stack`]) unless the loader has a collate function
    //! ([`Builder::collate_fn`](crate::loader::Builder::collate_fn), [`CollateFn`]), which takes the memory for its
    //! tensors from an [`Arena`]. The function returns a [`Batch`](crate::Batch). A hand-written one lists its
    //! [`Tensors`], and moves through a [`Relocation`] to page-locked memory and through an [`Upload`] to the device.

    pub use crate::batch::{Arena, Collate, CollateFn, Relocation, Share, Stack};
    pub use crate::device::upload::{Tensors, Upload};
}

pub mod packed {
    //! Documents packed into rows of one length: a row is a [`PackedRow`], a batch of them a [`PackedBatch`], and on a
    //! device a [`PackedDeviceBatch`]. [`dataset::PackedDataset`](crate::dataset::PackedDataset) packs them, and those of an iterable
    //! [`IterableDataset::pack`](crate::iterable::IterableDataset::pack).

    pub use crate::batch::PackedDeviceBatch;
    pub use crate::tensor::packed::{PackedBatch, PackedRow};
}

pub mod padded {
    //! Samples that differ in length, padded to the longest of their batch: [`Padded`]. A batch of them is a
    //! [`PaddedTensor`], and on a device a [`PaddedDeviceTensor`].

    pub use crate::batch::PaddedDeviceTensor;
    pub use crate::tensor::padded::{Padded, PaddedTensor};
}

pub mod ragged {
    //! Samples that differ in length: [`Ragged`]. A batch of them is a [`RaggedTensor`], and on a device a
    //! [`RaggedDeviceTensor`]. Nothing is padded: for that, there is [`padded`](crate::padded).

    pub use crate::batch::RaggedDeviceTensor;
    pub use crate::tensor::ragged::{Ragged, RaggedTensor};
}

pub mod sample {
    //! How a batch is stacked from samples, for types that implement [`Sample`] by hand.
    //!
    //! Numbers, arrays, vectors and tensors are samples, and so are tuples of them and structs with
    //! `#[derive(pinfeed::Sample)]`. Implement [`Sample`] for a type that produces its elements late, such as an image
    //! that is decoded straight into its row. A batch is planned as a [`Layout`] of [`Field`]s; each sample fills its
    //! [`Row`], several at once; and the batch's tensors are taken out of [`Filled`]. [`Host`] is for what stays on the
    //! host.

    pub use crate::table::DeviceRow;
    pub use crate::tensor::array_element::ArrayElement;
    pub use crate::tensor::filled::Filled;
    pub use crate::tensor::layout::{Field, Layout};
    pub use crate::tensor::nullable::Nullable;
    pub use crate::tensor::row::Row;
    pub use crate::tensor::sample::{Host, Sample};
}

/// Makes a struct collatable: a batch has the same fields, each holding that field of all samples.
///
/// For `struct Example`, this generates `ExampleBatch`, which has each field as its type's [`Sample::Batch`], and
/// `ExampleDeviceBatch`, with what these become on a device. Both structs have the visibility of the original, field by
/// field, and implement `Debug` if all their fields do. Fields can be of any collatable type, derived structs included.
/// Tuple structs and type parameters work too.
///
/// # Examples
///
/// ```
/// use pinfeed::{Batch, DataLoader, Device, Tensor, from_fn};
///
/// #[derive(pinfeed::Sample)]
/// struct Example {
///     image: Tensor<u8>,
///     label: i64,
///     path: String,
/// }
///
/// let examples = from_fn(64, |index, _| {
///     Ok(Example {
///         image: Tensor::zeros(&[3, 32, 32]),
///         label: index as i64,
///         path: format!("{index}.jpg"),
///     })
/// });
/// let loader = DataLoader::builder(examples).batch_size(16).build()?;
/// for batch in &loader {
///     let batch: ExampleBatch = batch?;
///     assert_eq!(batch.image.shape()[..], [16, 3, 32, 32]);
///     assert_eq!(batch.path.len(), batch.label.len());
///     let batch: ExampleDeviceBatch = batch.to_device(&Device::cpu(), true)?;
/// #   let _ = batch;
/// }
/// # Ok::<(), pinfeed::Error>(())
/// ```
#[cfg(feature = "derive")]
pub use pinfeed_derive::Sample;

/// Makes a struct of batches a batch, so that a `collate_fn` can return a struct of your own.
///
/// For `struct Example`, this generates `ExampleOnDevice`, with the same fields, each as its type's
/// [`Batch::OnDevice`]. It has the visibility of the original, and implements `Debug` if all its fields do. Fields are
/// tensors, `Vec`s and [`Host`] (which stay on the host), tuples, and other batches. Tuple structs and type parameters
/// work too. Tensors are sent in the order of the fields.
///
/// # Examples
///
/// ```
/// use pinfeed::collate::Arena;
/// use pinfeed::{Batch, BoxError, DataLoader, Device, Tensor};
///
/// #[derive(pinfeed::Batch)]
/// #[pinfeed(on_device = "SentencesOnDevice")] // as it is called anyway
/// struct Sentences {
///     tokens: Tensor<i64>,
///     lengths: Tensor<i64>,
///     #[pinfeed(host)]
///     longest: usize,
/// }
///
/// fn pad(mut sentences: Vec<Vec<i64>>, arena: &mut Arena) -> Result<Sentences, BoxError> {
///     let longest = sentences.iter().map(Vec::len).max().unwrap_or(0);
///     let lengths = sentences.iter().map(Vec::len).collect();
///     sentences.iter_mut().for_each(|tokens| tokens.resize(longest, 0));
///     Ok(Sentences { tokens: arena.collate(sentences)?, lengths: arena.collate::<usize>(lengths)?, longest })
/// }
///
/// let sentences = vec![vec![1i64, 2, 3], vec![4]];
/// let loader = DataLoader::builder(sentences).batch_size(2).collate_fn(pad).build()?;
/// for batch in &loader {
///     let batch: SentencesOnDevice = batch?.to_device(&Device::cpu(), true)?;
///     assert_eq!(batch.tokens.shape()[..], [2, batch.longest]);
///     assert_eq!(batch.lengths.shape()[..], [2]);
/// }
/// # Ok::<(), pinfeed::Error>(())
/// ```
#[cfg(feature = "derive")]
pub use pinfeed_derive::Batch;

#[cfg(test)]
#[macro_use]
extern crate watch;
